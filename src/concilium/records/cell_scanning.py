"""A text file's cells as codes into the distinct texts of each column, in one pass over its bytes.

So whoever reads the cells looks at each distinct text once, and not at each cell. Nothing is read as anything here: a
text is the bytes between two delimiters, quotation marks and all. There is one exception: a column of more than
`FEW_TEXTS` texts which the reader says are all numbers. From then on its plain decimals are kept as the float64 that
Python's `float` gives (up to 15 digits and a power of ten are two exact numbers, and their quotient is rounded once),
and only its other texts are numbered. What is not regular (fields too many or too few, quotation marks out of place,
bytes that are not UTF-8) is not judged here: the pass ends with nothing, and the careful reading says what is wrong.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numba
import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.records.columns import narrowest

FEW_TEXTS = 256  # with more distinct texts than this, a column may be one of measurements
FIRST_ROWS, ROWS = (
    512,
    4096,
)  # rows coded before anybody looks at how many texts there are: at first, and later
STRIDE = ROWS + 32  # so that the columns of a block do not fall on the same lines of the processor's cache
CHUNK = 1 << 20
LONGEST = 131_072  # bytes of one field; of more the careful reading knows what to say

SHORT = 7  # bytes that, with their number, are a key of 64 bits
EMPTY = np.uint64(0)  # the key of no text
BETWEEN = b"\0"  # stands between texts, so that many are told apart at once; a text may hold it all the same
FIRST_BITS = 4  # of the number of slots that a column begins with
DONE, IRREGULAR, MORE_ENTRIES, MORE_BYTES, MORE_SLOTS = range(5)
POWERS = 10.0 ** np.arange(16)
QUOTE, LINE_FEED, RETURN, MINUS, POINT, ZERO, NINE = (ord(sign) for sign in '"\n\r-.09')

Item = TypeVar("Item", bound=np.generic)


class ByteSource(Protocol):
    """What bytes are read from, block by block."""

    def read(self, size: int, /) -> bytes: ...


@dataclass
class ScannedColumn:
    """One column, block by block: for each row the code of its text, from 1, or a number where that is 0."""

    codes: list[NDArray[np.unsignedinteger]] = field(default_factory=list)
    numbers: list[NDArray[np.float64] | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def has_numbers(self) -> bool:
        """Whether some of its cells were kept as numbers, so that it has no code for each of them."""
        return any(block is not None for block in self.numbers)

    def join_codes(self) -> tuple[NDArray[np.unsignedinteger], list[str]]:
        """A code for each row, and the distinct texts without quotation marks: `1` and `"1"` are one."""
        codes = np.concatenate(self.codes)
        if '"' not in "".join(self.texts):
            return codes, list(self.texts)
        bare = [unquote(text) for text in self.texts]
        code_of = {text: code for code, text in enumerate(dict.fromkeys(bare), start=1)}
        if len(code_of) < len(bare):
            codes = np.array([0, *(code_of[text] for text in bare)], dtype=codes.dtype)[codes]
        return codes, list(code_of)

    def join_numbers(self, sizes: Sequence[float]) -> NDArray[np.float64]:
        """A number for each row, where these are the numbers of the texts."""
        table = np.array([np.nan, *sizes], dtype=np.float64)
        return np.concatenate(
            [
                table[codes] if numbers is None else np.where(codes == 0, numbers, table[codes])
                for codes, numbers in zip(self.codes, self.numbers, strict=True)
            ]
        )

    def forget(self) -> None:
        """Give up the memory of a column that has been read."""
        self.codes.clear()
        self.numbers.clear()
        self.texts.clear()


def unquote(text: str) -> str:
    """A field without its quotation marks."""
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


class CellScanner:
    """Scans some columns of a file of text, all in one pass.

    `places` says which of its `width` columns; `may_be_numbers`, asked once about a column of many texts with those met
    so far, says whether plain decimals may be kept as numbers there.
    """

    def __init__(
        self,
        delimiter: str,
        width: int,
        places: Sequence[int],
        may_be_numbers: Callable[[int, Sequence[str]], bool],
    ) -> None:
        count = len(places)
        self.columns = [ScannedColumn() for _ in places]
        self._may_be_numbers = may_be_numbers
        self._delimiter = ord(delimiter)
        self._column_of = np.full(width, -1, dtype=np.int32)
        self._column_of[list(places)] = np.arange(count)
        self._limit, self._filled = FIRST_ROWS, 0  # rows of the block
        self._codes = np.zeros((count, STRIDE), dtype=np.uint32)
        self._numbers = np.zeros((0, STRIDE))
        self._numbers_of = np.full(count, -1, dtype=np.int32)
        self._asked = [False] * count
        # The texts met: of each column a table of slots by key, and of each slot the entry that holds its text.
        self._first_slot = np.arange(count, dtype=np.int64) << FIRST_BITS
        self._bits = np.full(count, FIRST_BITS, dtype=np.int64)
        self._met = np.zeros(count, dtype=np.int64)
        self._keys = np.zeros(4 * count << FIRST_BITS, dtype=np.uint64)
        self._slot_entry = np.zeros(len(self._keys), dtype=np.int32)
        self._slot_code = np.zeros(len(self._keys), dtype=np.uint32)
        self._entry_column = np.zeros(4096, dtype=np.int32)
        self._entry_end = np.zeros(4096, dtype=np.int64)
        self._bytes = np.zeros(LONGEST, dtype=np.uint8)
        self._used = np.array([0, 0, count << FIRST_BITS], dtype=np.int64)  # entries, bytes, slots
        self._taken = 0  # entries whose text a column has

    def scan(self, raw: ByteSource) -> int | None:
        """How many rows there are after the header; None where the file is not regular."""
        buffer = np.zeros(2 * CHUNK + 1, dtype=np.uint8)
        decoder = codecs.getincrementaldecoder("utf-8")()
        start = end = rows = 0
        first, header = True, True
        while True:
            block = raw.read(CHUNK)
            try:
                if not block.isascii() or decoder.getstate()[0] or not block:
                    decoder.decode(block, final=not block)
            except UnicodeDecodeError:
                return None
            if first and block.startswith(codecs.BOM_UTF8):
                block = block[len(codecs.BOM_UTF8) :]
            first = False
            rest = buffer[start:end].copy()
            if len(rest) + CHUNK >= len(buffer):
                buffer = np.zeros(2 * len(buffer), dtype=np.uint8)
            start, end = 0, len(rest) + len(block)
            buffer[: len(rest)] = rest
            buffer[len(rest) : end] = np.frombuffer(block, dtype=np.uint8)
            buffer[end] = LINE_FEED  # where the last field ends at the latest
            while True:
                status, start = self._scan_block(buffer, start, end, not block, header)
                if status == IRREGULAR:
                    return None
                if status != DONE:
                    self._make_room(status)
                elif header and self._filled:
                    header, self._filled = False, 0
                elif self._filled == self._limit or not block:
                    rows += self._filled
                    self._put_away()
                    if not block and start >= end:
                        return rows
                else:
                    break

    def _scan_block(
        self, buffer: NDArray[np.uint8], start: int, end: int, final: bool, header: bool
    ) -> tuple[int, int]:
        nowhere = np.full_like(self._column_of, -1)
        status, start, self._filled = _scan(
            buffer, start, end, final, self._delimiter, self._filled, 1 if header else self._limit,
            nowhere if header else self._column_of, self._codes, self._numbers_of, self._numbers, self._first_slot,
            self._bits, self._met, self._keys, self._slot_entry, self._slot_code, self._entry_column, self._entry_end,
            self._bytes, self._used, POWERS,
        )  # fmt: skip
        return status, start

    def _make_room(self, status: int) -> None:
        if status == MORE_ENTRIES:
            self._entry_column = _double(self._entry_column)
            self._entry_end = _double(self._entry_end)
        elif status == MORE_BYTES:
            self._bytes = _double(self._bytes)
        else:
            self._keys = _double(self._keys)
            self._slot_entry = _double(self._slot_entry)
            self._slot_code = _double(self._slot_code)

    def _put_away(self) -> None:
        """The rows of the block go to their columns, and columns of many numbers are kept as numbers from now on."""
        self._take_texts()
        for index, column in enumerate(self.columns):
            numbers = self._numbers_of[index]
            column.codes.append(self._codes[index, : self._filled].astype(narrowest(len(column.texts))))
            column.numbers.append(None if numbers < 0 else self._numbers[numbers, : self._filled].copy())
            if len(column.texts) > FEW_TEXTS and not self._asked[index]:
                self._asked[index] = True
                if self._may_be_numbers(index, column.texts):
                    self._numbers_of[index] = self._numbers_of.max() + 1
        self._numbers = np.zeros((self._numbers_of.max() + 1, STRIDE))
        self._limit, self._filled = ROWS, 0

    def _take_texts(self) -> None:
        """Each column gets the texts that are new in it."""
        new = slice(self._taken, int(self._used[0]))
        if new.start == new.stop:
            return
        ends = self._entry_end[new]
        begin = int(self._entry_end[self._taken - 1]) + 1 if self._taken else 0
        data = self._bytes[begin : int(ends[-1])].tobytes()
        if data.count(BETWEEN) == len(ends) - 1:
            texts = data.decode().split(chr(BETWEEN[0]))
        else:  # some text holds what stands between texts
            places = [-1, *(ends - begin).tolist()]
            texts = [data[first + 1 : last].decode() for first, last in pairwise(places)]
        owners = self._entry_column[new]
        order = np.argsort(owners, kind="stable")
        indices, firsts = np.unique(owners[order], return_index=True)
        sorted_texts = [texts[place] for place in order.tolist()]
        for index, (first, last) in zip(
            indices.tolist(), pairwise([*firsts.tolist(), len(texts)]), strict=True
        ):
            self.columns[index].texts += sorted_texts[first:last]
        self._taken = new.stop


def _type_word(typing: Any, data: Any, place: Any) -> Any:
    """Eight bytes of an array at once, wherever they begin: in a loop of single bytes most of the time would go."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(data)(context, builder, value=arguments[0])
        size = context.get_value_type(numba.uint64).as_pointer()
        word = builder.load(builder.bitcast(builder.gep(array.data, [arguments[1]]), size))
        word.align = 1
        return word

    return numba.uint64(data, place), generate


def _type_byte(typing: Any, data: Any, place: Any) -> Any:
    """One byte of an array, at a place that is never negative: the compiler need not look."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(data)(context, builder, value=arguments[0])
        return builder.load(builder.gep(array.data, [arguments[1]]))

    return numba.uint8(data, place), generate


_word: Any = intrinsic(_type_word)
_byte: Any = intrinsic(_type_byte)


def _double(array: NDArray[Item]) -> NDArray[Item]:
    return np.concatenate([array, np.zeros_like(array)])


@compiled()
def _scan(
    data: Any, start: int, end: int, final: bool, delimiter: int, row: int, limit: int, column_of: Any, codes: Any,
    numbers_of: Any, numbers: Any, first_slot: Any, bits: Any, met: Any, keys: Any, slot_entry: Any, slot_code: Any,
    entry_column: Any, entry_end: Any, texts: Any, used: Any, powers: Any,
) -> tuple[int, int, int]:  # fmt: skip
    """Rows `row` to `limit` of a block from `data[start:end]`: a status, where the next record begins, the next row.

    A record that does not end in the data, or for which there is no room, is begun anew the next time.
    """
    width = len(column_of)
    position = start
    while row < limit and position < end:
        record = position
        if width > 1 and (_byte(data, position) == LINE_FEED or _byte(data, position) == RETURN):
            position += 1  # a blank line; of a return and a line feed the second is one more
            continue
        column = 0
        while True:
            begin = position
            key = np.uint64(0)
            index = column_of[column] if column < width else -1
            plain = False
            if index >= 0 and numbers_of[index] >= 0:
                # In one pass, where it is one: most cells of such a column are.
                place, number = _read_plain_decimal(data, begin, powers)
                if place > begin:
                    after = _byte(data, place)
                    plain = not (after != delimiter and after != LINE_FEED and after != RETURN)
            if plain:
                position = place
            elif _byte(data, position) == QUOTE:
                while True:
                    position += 1
                    while position + 8 <= end and not _has_quote(_word(data, position)):
                        position += 8
                    while position < end and _byte(data, position) != QUOTE:
                        position += 1
                    if position >= end and (final or position - begin > LONGEST):
                        return IRREGULAR, record, row
                    if position + 1 >= end and not final:
                        return DONE, record, row
                    position += 1
                    if position >= end or _byte(data, position) != QUOTE:
                        break
                after = _byte(data, position)  # the line feed behind the data at the latest
                if after != delimiter and after != LINE_FEED and after != RETURN:
                    return IRREGULAR, record, row
                if position - begin <= SHORT:
                    for place in range(begin, position):
                        key = (key << np.uint64(8)) | np.uint64(_byte(data, place))
            else:
                byte = _byte(data, position)
                while byte != delimiter and byte != LINE_FEED and byte != RETURN:
                    key = (key << np.uint64(8)) | np.uint64(byte)
                    position += 1
                    byte = _byte(data, position)
            length = position - begin
            if length > LONGEST:
                return IRREGULAR, record, row
            if not final and (position >= end or (position + 1 == end and _byte(data, position) == RETURN)):
                return DONE, record, row
            if column >= width:
                if length > 0 and not (length == 2 and _byte(data, begin) == QUOTE):
                    return IRREGULAR, record, row
            elif index >= 0:
                if plain:
                    numbers[numbers_of[index], row] = number
                    codes[index, row] = 0
                else:
                    if length <= SHORT:
                        key |= np.uint64(length + 1) << np.uint64(56)
                    else:
                        key = _hash(data, begin, length)
                    slot = _find_slot(key, first_slot[index], bits[index])
                    last = first_slot[index] + (1 << bits[index]) - 1
                    while keys[slot] != EMPTY:
                        if keys[slot] == key and (
                            length <= SHORT
                            or _is_text(texts, entry_end, slot_entry[slot], data, begin, length)
                        ):
                            break
                        slot = slot + 1 if slot < last else first_slot[index]
                    code = slot_code[slot]
                    if keys[slot] == EMPTY:
                        status = _add_text(
                            data, begin, length, key, index, first_slot, bits, met, keys, slot_entry, slot_code,
                            entry_column, entry_end, texts, used,
                        )  # fmt: skip
                        if status != DONE:
                            return status, record, row
                        code = met[index]
                    codes[index, row] = code
            column += 1
            if position < end and _byte(data, position) == delimiter:
                position += 1
            else:
                break
        if column < width:
            return IRREGULAR, record, row
        if position + 1 < end and _byte(data, position) == RETURN and _byte(data, position + 1) == LINE_FEED:
            position += 1
        position += 1
        row += 1
    return DONE, min(position, end), row


@compiled()
def _hash(data: Any, begin: int, length: int) -> Any:
    """The key of a text of eight bytes or more, its last eight once more; two texts may have one."""
    key = _mix(np.uint64(length), _word(data, begin + length - 8))
    for place in range(begin, begin + length - 8, 8):
        key = _mix(key, _word(data, place))
    return key | np.uint64(0xFF) << np.uint64(56)


@compiled()
def _mix(key: Any, word: Any) -> Any:
    mixed = (key ^ word) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(32))


@compiled()
def _has_quote(word: Any) -> bool:
    """Whether one of eight bytes is a quotation mark: where one is, its difference from eight of them has a zero."""
    apart = word ^ np.uint64(0x2222222222222222)
    zeros = (apart - np.uint64(0x0101010101010101)) & ~apart & np.uint64(0x8080808080808080)
    return bool(zeros != np.uint64(0))


@compiled()
def _is_text(texts: Any, entry_end: Any, entry: int, data: Any, begin: int, length: int) -> bool:
    """Whether the text of an entry is this one, of eight bytes or more."""
    stored = entry_end[entry - 1] + 1 if entry > 0 else 0
    if entry_end[entry] - stored != length:
        return False
    if _word(texts, stored + length - 8) != _word(data, begin + length - 8):
        return False
    place = 0
    while place < length - 8 and _word(texts, stored + place) == _word(data, begin + place):
        place += 8
    return place >= length - 8


@compiled()
def _add_text(
    data: Any, begin: int, length: int, key: Any, index: int, first_slot: Any, bits: Any, met: Any, keys: Any,
    slot_entry: Any, slot_code: Any, entry_column: Any, entry_end: Any, texts: Any, used: Any,
) -> int:  # fmt: skip
    """A text that its column has not met gets the next code, in a table of slots of which half stay empty."""
    if used[0] >= len(entry_column):
        return MORE_ENTRIES
    if used[1] + length + 1 > len(texts):
        return MORE_BYTES
    if 2 * (met[index] + 1) > 1 << bits[index]:
        wider = bits[index] + 1
        if used[2] + (1 << wider) > len(keys):
            return MORE_SLOTS
        for old in range(first_slot[index], first_slot[index] + (1 << bits[index])):
            if keys[old] != EMPTY:
                new = _find_free(keys, keys[old], used[2], wider)
                keys[new] = keys[old]
                slot_entry[new] = slot_entry[old]
                slot_code[new] = slot_code[old]
        first_slot[index] = used[2]
        bits[index] = wider
        used[2] += 1 << wider
    entry = used[0]
    for place in range(length):
        texts[used[1] + place] = data[begin + place]
    texts[used[1] + length] = BETWEEN[0]
    entry_column[entry] = index
    entry_end[entry] = used[1] + length
    used[0] += 1
    used[1] += length + 1
    met[index] += 1
    slot = _find_free(keys, key, first_slot[index], bits[index])
    keys[slot] = key
    slot_entry[slot] = entry
    slot_code[slot] = met[index]
    return DONE


@compiled()
def _find_slot(key: Any, first: int, bits: int) -> int:
    scattered = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)
    return first + int(scattered)


@compiled()
def _find_free(keys: Any, key: Any, first: int, bits: int) -> int:
    slot = _find_slot(key, first, bits)
    while keys[slot] != EMPTY:
        slot = slot + 1 if slot + 1 < first + (1 << bits) else first
    return slot


@compiled()
def _read_plain_decimal(data: Any, begin: int, powers: Any) -> tuple[int, float]:
    """Where a number as commonly written, without an exponent and of at most 15 digits, ends, and that number; where it
    begins, if there is none. The line feed behind the data ends it at the latest."""
    place = begin
    if _byte(data, place) == MINUS:
        place += 1
    first = place
    digits = 0
    byte = _byte(data, place)
    while ZERO <= byte <= NINE and place - first <= 15:
        digits = 10 * digits + byte - ZERO
        place += 1
        byte = _byte(data, place)
    whole = place - first
    if whole > 1 and _byte(data, first) == ZERO:
        return begin, 0.0
    fraction = 0
    if byte == POINT:
        place += 1
        byte = _byte(data, place)
        while ZERO <= byte <= NINE and whole + fraction <= 15:
            digits = 10 * digits + byte - ZERO
            place += 1
            byte = _byte(data, place)
            fraction += 1
    if not 0 < whole + fraction <= 15:
        return begin, 0.0
    number = digits / powers[fraction]
    return place, -number if _byte(data, begin) == MINUS else number
