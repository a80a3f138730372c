"""How natural values become columns: which are codes, and which are numbers.

A column stated as a "code" or a "number" is read cell by cell, each as the grammar says, whatever the others hold. For
the rest the whole column is looked at, the same for every source: whole numbers with at most 256 distinct values are
codes with int values (usable as categories and as numbers), other numbers stay numbers, text and truth values are
codes. Nothing is rounded: text whose digits a number would lose (leading zeros, whole numbers of 2**53 and more) stays
text. The values of a column are of one type, and where its cells are not, they are their labels; a stated cell's label
is its own all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from operator import lt
from typing import Any, Literal, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.columns import EXACT, Coded, Column, Numbers, Value, keep_raw, label, narrowest
from concilium.records.grammar import (
    BEGINNINGS,
    BLANKS,
    DEFAULT_MISSING,
    NUMBER,
    TRUTH,
    canonical,
    is_infinite,
    is_losing,
    is_moment,
    is_number,
    is_whole,
    iso_text,
    read_number,
    read_text,
    tidy_moment,
)

Kind: TypeAlias = Literal["code", "number"]
KINDS: tuple[Kind, ...] = ("code", "number")

ReadingKind: TypeAlias = Kind | Literal["time", "text"]
"""As what a column is read. Where times are asked for, a source that can gives `Moments`, and one that cannot reads the
column as if nothing was stated. Where text is asked for, each text stays as it stands: `250.00` is not 250."""
Chooser: TypeAlias = Callable[[Sequence[str], str], Mapping[str, ReadingKind | None]]
"""From the columns of a source and its name to those that are read, each with its kind where that is stated."""
Schema: TypeAlias = Mapping[str, str] | Chooser | None

MOST_CATEGORIES = 256  # whole numbers with more distinct values than this are measurements
PROBE = 10_000  # rows looked at before the whole column is
DENSE = 1 << 20  # whole numbers within so short a range are counted, not sorted

FIRST_SIGNS = BEGINNINGS + "iI"
"""With what a text begins that may stand for a truth value, a number (infinite ones among them) or a moment."""
SAFE_NUMBER = NUMBER.replace(r"[0-9]*)(?:\.[0-9]*)?|", r"[0-9]{0,14})|(?:0|[1-9][0-9]*)\.[0-9]*|")
PANDAS_MISSING = ("NAType", "NaTType")  # by name, since pandas may not be there to import
PANDAS_TEXT = ("Interval", "Period")


@dataclass(frozen=True)
class Place:
    """Where a column comes from, for error messages: its source, its name, and how a row is called there."""

    source: str
    name: str
    row: Callable[[int], str] = lambda row: f"row {row + 1}"

    def not_a_number(self, row: int, value: object) -> RecordsError:
        text = repr(value) if isinstance(value, str) else str(value)
        comma = isinstance(value, str) and is_number(value.strip(BLANKS).replace(",", ".", 1))
        remedy = ', or write decimal = "," in the map of the hospital' if comma else ""
        return RecordsError(
            f"{self.source}: column {self.name!r} is stated as a number, but {self.row(row)} holds {text}; "
            f'state it as a "code" or name {text} as missing{remedy}'
        )


def check_schema(schema: Mapping[str, str] | None, names: Sequence[str], source: str) -> dict[str, Kind]:
    """The stated kinds, once every column named is there and every kind is one we know."""
    kinds: dict[str, Kind] = {}
    for name, word in (schema or {}).items():
        if name not in names:
            raise RecordsError(
                f"{source}: the schema names a column {name!r} that is not there{nearest(name, names)}"
            )
        for kind in KINDS:
            if word == kind:
                kinds[name] = kind
        if name not in kinds:
            raise RecordsError(
                f"{source}: the schema calls column {name!r} a {word!r}, but a column is a "
                f'"code" or a "number"{nearest(str(word), KINDS)}'
            )
    return kinds


def plan_reading(schema: Schema, names: Sequence[str], source: str) -> dict[str, ReadingKind | None]:
    """The columns to read, in the order of the source, each with its kind where that is stated."""
    check_names(names, source)
    if callable(schema):
        chosen = schema(names, source)
        return {name: chosen[name] for name in names if name in chosen}
    kinds = check_schema(schema, names, source)
    return {name: kinds.get(name) for name in names}


def stated_kind(kind: ReadingKind | None) -> Kind | None:
    """The kind as far as it says how a cell is read as a value."""
    return None if kind == "time" or kind == "text" else kind


def check_names(names: Sequence[str], source: str) -> None:
    """Every column has a name of its own."""
    positions: dict[str, int] = {}
    for position, name in enumerate(names, start=1):
        if not name.strip():
            raise RecordsError(f"{source}: column {position} has no name; give every column a name")
        if name in positions:
            raise RecordsError(
                f"{source}: columns {positions[name]} and {position} are both named {name!r}; rename one of them"
            )
        positions[name] = position


def code_numbers(numbers: NDArray[np.float64], kind: Kind | None = None) -> Column:
    """A column of numbers (NaN: missing) as codes where they are few and whole, or as they are."""
    numbers = np.asarray(numbers, dtype=np.float64) + 0.0  # -0.0 becomes 0.0: one value, one digest
    if kind == "number":
        return Numbers(numbers, by_itself=True)
    few = kind is None
    if few and len(numbers) > PROBE and _too_many(numbers[:PROBE]):
        return Numbers(numbers)
    here = ~np.isnan(numbers)
    present = numbers[here]
    if not _all_whole(present):
        if few:
            return Numbers(numbers)
        return _code_as_text(present, here)
    distinct, places = _distinct(present.astype(np.int64))
    if few and len(distinct) > MOST_CATEGORIES:
        return Numbers(numbers)
    codes = _spread(places, here).astype(narrowest(len(distinct)))
    return Coded(codes, tuple(distinct.tolist()), stated=kind == "code")


def code_whole(numbers: NDArray[np.integer], kind: Kind | None) -> Column:
    """`code_numbers` for whole numbers below 2**53, none missing: counted, not sorted, where their range is short."""
    lowest, highest = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if kind == "number" or highest - lowest >= DENSE:
        return code_numbers(numbers.astype(np.float64), kind)
    offsets = np.subtract(numbers, lowest, dtype=np.int64)
    occurs = np.bincount(offsets) > 0
    values = (np.flatnonzero(occurs) + lowest).tolist()
    if kind is None and len(values) > MOST_CATEGORIES:
        return Numbers(numbers.astype(np.float64))
    codes = np.cumsum(occurs, dtype=narrowest(len(values)))[offsets]
    return Coded(codes, tuple(values), stated=kind == "code")


def _code_as_text(present: NDArray[np.float64], here: NDArray[np.bool_]) -> Coded:
    """Stated codes that are not whole are kept as text, as a text file would give them."""
    distinct, places = np.unique(present, return_inverse=True)
    texts = [label(float(number)) for number in distinct]
    rank = {text: code for code, text in enumerate(sorted(texts), start=1)}
    table = np.array([0, *(rank[text] for text in texts)], dtype=np.int64)
    return Coded(table[_spread(places, here)].astype(narrowest(len(rank))), tuple(rank), stated=True)


def _too_many(numbers: NDArray[np.float64]) -> bool:
    present = numbers[~np.isnan(numbers)]
    return not _all_whole(present) or len(np.unique(present)) > MOST_CATEGORIES


def _all_whole(present: NDArray[np.float64]) -> bool:
    return bool(np.all((np.abs(present) < EXACT) & (np.trunc(present) == present)))


def _distinct(whole: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`np.unique` with inverse, without sorting where the numbers lie in a short range."""
    lowest = int(whole.min(initial=0))
    if int(whole.max(initial=0)) - lowest >= DENSE:
        return np.unique(whole, return_inverse=True)
    offsets = whole - lowest
    present = np.zeros(int(offsets.max(initial=0)) + 1, dtype=bool)
    present[offsets] = True
    return np.flatnonzero(present) + lowest, (np.cumsum(present) - 1)[offsets]


def _spread(places: NDArray[np.int64], here: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Codes for all rows from the places of the present ones."""
    codes = np.zeros(len(here), dtype=np.int64)
    codes[here] = places + 1
    return codes


def _arrange(values: Sequence[Value | None], kind: Kind | None) -> tuple[tuple[Value, ...], list[int]] | None:
    """The ordered categories of values of one type and the code of each value; None where they stay numbers.

    The same rules as `code_numbers`, for values few enough to be looked at one by one.
    """
    texts = [value for value in values if isinstance(value, str)]
    if texts and len(texts) == len(values) and all(map(lt, texts, texts[1:])):  # as ids often are
        return tuple(texts), list(range(1, len(texts) + 1))
    present = dict.fromkeys(values)  # keeps the order, which for most sources is the right one already
    present.pop(None, None)
    texts = [value for value in present if isinstance(value, str)]
    categories: list[Value]
    if texts:
        categories = [*sorted(texts)]
    elif any(isinstance(value, bool) for value in present):
        categories = [truth for truth in (False, True) if truth in present]
    elif kind == "number":
        return None
    else:
        numbers = sorted(value for value in present if value is not None and not isinstance(value, str))
        if all(abs(number) < EXACT and number == int(number) for number in numbers):
            categories = [int(number) for number in numbers]
            if kind is None and len(categories) > MOST_CATEGORIES:
                return None
        elif kind is None:
            return None
        else:
            values = [None if value is None else label(value) for value in values]
            categories = [*sorted(label(number) for number in numbers)]
    code: dict[Value | None, int] = dict(zip(categories, range(1, len(categories) + 1), strict=True))
    code[None] = 0
    return tuple(categories), list(map(code.__getitem__, values))


def code_dictionary(
    codes: NDArray[np.integer], values: Sequence[Value | None], kind: Kind | None, place: Place
) -> Column:
    """A column given as codes (0: missing) into values of one type, in any order, also unused or equal."""
    present = np.bincount(codes, minlength=len(values) + 1) > 0
    present[0] = False
    present_values = (
        values if present[1:].all() else [values[code - 1] for code in np.flatnonzero(present).tolist()]
    )
    if kind == "number":
        wrong = np.zeros(len(values) + 1, dtype=bool)
        wrong[present] = [isinstance(value, str | bool) for value in present_values]
        _refuse_first(wrong, codes, values, place)
    arrangement = _arrange(present_values, kind)
    if arrangement is None:
        numbers = np.full(len(values) + 1, np.nan)
        numbers[present] = [np.nan if value is None else float(value) for value in present_values]
        return Numbers(numbers[codes] + 0.0, by_itself=kind == "number")
    categories, new = arrangement
    table = np.zeros(len(values) + 1, dtype=narrowest(len(categories)))
    table[present] = new
    return Coded(table[codes], categories, stated=kind == "code")


def _refuse_first(
    wrong: NDArray[np.bool_], codes: NDArray[np.integer], values: Sequence[Value | None], place: Place
) -> None:
    """Stop at the first row whose value cannot be the number it is stated to be."""
    if wrong.any():
        row = int(np.argmax(wrong[codes]))
        raise place.not_a_number(row, values[int(codes[row]) - 1])


def code_texts(
    codes: NDArray[np.integer],
    texts: Sequence[str],
    kind: Kind | None,
    place: Place,
    missing: frozenset[str] = frozenset(),
    guess: bool = False,
) -> Column:
    """A column given as codes (0: missing) into texts; `guess` where a text may stand for a number."""
    present = _drop_missing(texts, missing)
    values: Sequence[Value | None]
    if kind == "number":
        values = _stated_numbers(present, codes, place)
    elif kind == "code":
        read: Callable[[str], Value] = read_text if guess else canonical
        values = unify([None if text is None else read(text) for text in present])
    else:
        values = _guess_values(present) if guess else present
    column = code_dictionary(codes, values, kind, place)
    own = missing.difference(DEFAULT_MISSING)
    if own or kind == "number":
        bare = [text.strip(BLANKS) for text in texts]
        if not own.isdisjoint(bare) or (kind == "number" and any(map(is_losing, bare))):
            return replace(column, raw=keep_raw(codes, texts))
    return column


def _drop_missing(texts: Sequence[str], missing: frozenset[str]) -> Sequence[str | None]:
    """The texts, None for those that stand for missing."""
    together = "".join(texts)
    if missing.isdisjoint(texts) and not any(blank in together for blank in BLANKS):
        return texts
    return [None if text.strip(BLANKS) in missing else text for text in texts]


def _stated_numbers(
    texts: Sequence[str | None], codes: NDArray[np.integer], place: Place
) -> list[float | None]:
    numbers = [None if text is None else read_number(text) for text in texts]
    wrong = [number is None and text is not None for text, number in zip(texts, numbers, strict=True)]
    _refuse_first(np.array([False, *wrong]), codes, texts, place)
    return numbers


def _guess_values(texts: Sequence[str | None]) -> Sequence[Value | None]:
    """What the texts of one column of a file stand for: truth values, numbers, moments, or, where they are of several
    kinds, the label of each."""
    if any(text is not None and text[:1] not in FIRST_SIGNS for text in texts):
        # Text at least: each by itself, and all that begin like this one are what they are.
        return [text if text is None or text[:1] not in BEGINNINGS else canonical(text) for text in texts]
    bare = [text.strip(BLANKS) for text in texts if text is not None]
    if bare and all(text in TRUTH for text in bare):
        return [None if text is None else TRUTH[text.strip(BLANKS)] for text in texts]
    if all(is_whole(text) and abs(int(text)) < EXACT for text in bare):
        return [None if text is None else int(text.strip(BLANKS)) for text in texts]
    if all(map(reads_as_number, bare)) and any(map(is_number, bare)):
        return [None if text is None else float(text.strip(BLANKS)) for text in texts]
    if all(map(is_moment, bare)):
        return [None if text is None else tidy_moment(text.strip(BLANKS)) for text in texts]
    # Each by itself: `4.0` is 4 beside text as it is among numbers, or another hospital would have another value.
    return [None if text is None else canonical(text) for text in texts]


def reads_as_number(bare: str) -> bool:
    """Whether a number can stand for this text, in a column of numbers, without losing a digit that matters."""
    if is_whole(bare):
        return abs(int(bare)) < EXACT
    return bool(is_number(bare) or is_infinite(bare))


class Numbering(dict[Any, int]):
    """Codes for values of one type in the order in which they are first met; None is 0."""

    def __init__(self) -> None:
        super().__init__({None: 0})

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code

    def code(self, values: Collection[Any]) -> NDArray[np.uint32]:
        return np.fromiter(map(self.__getitem__, values), np.uint32, len(values))

    @property
    def distinct(self) -> list[Any]:
        return [value for value in self if value is not None]


def number_cells(values: Sequence[Value | None]) -> tuple[NDArray[np.uint32], list[Value]]:
    """Codes (0: missing) for cells of any types, and the distinct cells: 1, 1.0, '1' and True are four."""
    numbering = Numbering()
    if len(set(map(type, values)) - {type(None)}) <= 1:
        return numbering.code(values), numbering.distinct
    codes = numbering.code([None if value is None else (type(value), value) for value in values])
    return codes, [value for _, value in numbering.distinct]


def code_values(values: Sequence[object], kind: Kind | None, place: Place) -> Column:
    """A column given row by row as Python values; mixed types become text."""
    codes, distinct = number_cells([natural_value(value, row, place) for row, value in enumerate(values)])
    return code_cells(codes, distinct, kind, place)


def code_cells(
    codes: NDArray[np.integer],
    values: list[Value],
    kind: Kind | None,
    place: Place,
    missing: frozenset[str] = frozenset(),
) -> Column:
    """A column given as codes (0: missing) into cells of any types, of which text alone may stand for missing."""
    if set(map(type, values)) == {str}:
        return code_texts(codes, [str(value) for value in values], kind, place, missing)
    kept = _drop_texts(values, missing)
    natural = unify(kept)
    if all(value is None or type(value) is int or type(value) is float for value in natural):
        column = code_numbers(np.array([None, *natural], dtype=np.float64)[codes], kind)
    elif any(isinstance(value, bool) for value in natural):
        column = code_dictionary(codes, natural, kind, place)
    else:
        here = np.array([False, *(value is not None for value in natural)])
        texts = [str(value) for value in natural if value is not None]
        column = code_texts(np.where(here, np.cumsum(here), 0)[codes], texts, kind, place)
    typed = np.array([False, *(value is not None and not isinstance(value, str) for value in kept)])[codes]
    if isinstance(column, Coded) and typed.any():
        column = replace(column, typed=typed)
    if kept is values or missing <= set(DEFAULT_MISSING):
        return column
    return replace(column, raw=keep_raw(codes, [label(value) for value in values]))


def _drop_texts(values: Sequence[Value | None], missing: frozenset[str]) -> Sequence[Value | None]:
    """The values, None for each text that stands for missing; a number never does, whatever the other cells hold."""
    if not any(isinstance(value, str) and value.strip(BLANKS) in missing for value in values):
        return values
    return [None if isinstance(value, str) and value.strip(BLANKS) in missing else value for value in values]


def unify(values: Sequence[Value | None]) -> Sequence[Value | None]:
    """Values of one type: numbers, truth values, or text, which mixtures and numbers with too many digits become."""
    types = set(map(type, values)) - {type(None)}
    if types in ({str}, {bool}):
        return values
    if types <= {int, float} and not any(type(value) is int and abs(value) >= EXACT for value in values):
        return values
    return [None if value is None else label(value) for value in values]


def natural_value(value: object, row: int, place: Place) -> Value | None:
    """The natural value of what a driver, a data frame or a program hands over; dates as ISO text."""
    if value is None or type(value) is str or type(value) is int or type(value) is bool:
        return value
    if type(value) is float:
        return None if value != value else value
    if isinstance(value, np.datetime64):  # in nanoseconds it would turn into a plain number
        return natural_value(value.astype("datetime64[us]").item(), row, place)
    if isinstance(value, np.generic):
        return natural_value(value.item(), row, place)
    if isinstance(value, Decimal):
        if value.is_nan():
            return None
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    if type(value).__name__ in PANDAS_MISSING:
        return None
    if isinstance(value, date | time | timedelta):
        return iso_text(value)
    if isinstance(value, UUID) or type(value).__name__ in PANDAS_TEXT:
        return str(value)
    for plain in (str, bool, int, float):
        if isinstance(value, plain):
            return natural_value(plain(value), row, place)
    raise RecordsError(
        f"{place.source}: column {place.name!r} holds a {type(value).__name__} in {place.row(row)}; "
        f"a cell is text, a number, true or false, a date, or missing"
    )
