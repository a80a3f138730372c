"""A hospital's map: how its own table becomes the columns of a study's dictionary, before anything is coded.

    [map]
    missing = ["?", "-9"]                 # texts that stand for missing, in every column
    decimal = ","                         # and thousands = "."
    dates = "%d.%m.%Y"                    # how dates are written; ISO 8601 without it

    [map.columns]
    age = { from = "birth", until = "admitted", in = "years" }
    sex = { from = "geschlecht", values = { 1 = "m", 2 = "f" } }
    chol = { from = "cholesterin", unit = "mmol/l" }
    bp = { from = "rr", missing = ["0"] }
    cp = "chest pain"                     # renamed
    disease = "num > 0"                   # derived: true or false, missing where that is not known

It belongs to the hospital and never leaves it. A cell is read by itself, whatever other patients have: under `private`
nothing that one patient has may change what is read of others. What a ledger is bound to, and how it tells patients
apart, stays the table as it was read, so that a map can be fixed without another ledger.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import QueryError, RecordsError, StudyError, nearest
from concilium.records.batches import KEEPER
from concilium.records.coding import Kind, Place, ReadingKind, code_dictionary, code_texts, unify
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.dictionary import Dictionary, DictionaryEntry, read_code
from concilium.records.expression import FALSE, TRUE
from concilium.records.grammar import BLANKS, DEFAULT_MISSING, canonical, read_number, read_text
from concilium.records.query import Query, read_as_asked
from concilium.records.sources import is_text_file, name_row, read_columns
from concilium.records.table import Records
from concilium.records.units import convert

Interval = Literal["years", "months", "weeks", "days", "hours", "minutes"]
KEYS = ("missing", "decimal", "thousands", "dates", "columns")
COLUMN_KEYS = ("from", "until", "in", "where", "values", "unit", "missing")
SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60}


class _ColumnMap(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"from_": "from", "in_": "in"},
):
    """Where one column comes from: a column of the hospital's own (`from`), the time from one date until another, or
    a condition that is true or false (`where`); and what is done to its cells."""

    from_: str | None = None
    until: str | None = None
    in_: Interval = "days"
    where: str | None = None
    values: dict[str, str | int | float | bool] = {}
    unit: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableMap:
    """`TableMap.read("north.map.toml")`: what `Records.read` takes as `map`. Without any keys it changes nothing."""

    missing: tuple[str, ...] = ()
    decimal: str = "."
    thousands: str = ""
    dates: str = ""
    columns: Mapping[str, _ColumnMap] = field(default_factory=dict)
    where: str = "the map"

    @classmethod
    def read(cls, path: str | Path) -> TableMap:
        """The section [map] of a TOML file; StudyError says what is wrong in it."""
        path = Path(path)
        try:
            document = tomllib.loads(path.read_bytes().decode("utf-8"))
        except OSError as error:
            raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StudyError(f"{path}: is not a TOML file: {error}") from None
        if list(document) != ["map"]:
            other = next((name for name in document if name != "map"), None)
            problem = (
                "has no section [map]"
                if other is None
                else f"{other!r} stands outside [map]: begin the file with [map], and columns with [map.columns]"
            )
            raise StudyError(f"{path}: {problem}")
        return cls.parse(document["map"], str(path))

    @classmethod
    def parse(cls, section: object, where: str) -> TableMap:
        """The map that a section [map] makes."""
        if not isinstance(section, dict):
            raise StudyError(f"{where}: [map] must be a section of its own with keys")
        for key in section:
            if key not in KEYS:
                hint = nearest(key, KEYS) or "; columns stand under [map.columns]"
                raise StudyError(f"{where}: [map] has no key {key!r}{hint}")
        given = section.get("columns", {})
        if not isinstance(given, dict):
            raise StudyError(
                f"{where}: [map.columns] must be a section of its own with a key for each column"
            )
        columns = {name: _read_column(f"{where}: [map.columns] {name}", one) for name, one in given.items()}
        tokens = section.get("missing", [])
        made = cls(
            missing=_read_tokens(f"{where}: [map] missing", tokens),
            decimal=section.get("decimal", "."),
            thousands=section.get("thousands", ""),
            dates=section.get("dates", ""),
            columns=columns,
            where=where,
        )
        if made.decimal not in (".", ",") or made.thousands not in ("", ".", ",", "'", " "):
            raise StudyError(f'{where}: [map] decimal is "." or ",", and thousands one of "." "," "\'" " "')
        if made.decimal == made.thousands:
            raise StudyError(f"{where}: [map] decimal and thousands must differ; both are {made.decimal!r}")
        if not isinstance(made.dates, str) or (made.dates and "%" not in made.dates):
            raise StudyError(f'{where}: [map] dates says how dates are written, such as "%d.%m.%Y"')
        return made

    @property
    def writes_plainly(self) -> bool:
        """Whether numbers are written as everywhere, so that cells need no other reading."""
        return self.decimal == "." and not self.thousands

    @property
    def sources(self) -> frozenset[str]:
        """The hospital's own columns that become others and are gone under their own names."""
        named = {name for one in self.columns.values() for name in (one.from_, one.until) if name}
        return frozenset(named - set(self.columns))

    @cached_property
    def asked(self) -> frozenset[str]:
        """The columns that conditions look at: each of their cells is read by itself."""
        conditions = [Query.parse(one.where) for one in self.columns.values() if one.where is not None]
        return frozenset(name for condition in conditions for name in condition.attributes)

    def tidy(self, text: str) -> str:
        """A cell with its number as it is written everywhere; text that is none stays as it is, and so does one that
        would read as a number by another custom (`1.5` where commas are decimal), which is then none."""
        if self.writes_plainly:
            return text
        bare = text.strip(BLANKS)
        mark, group = re.escape(self.decimal), re.escape(self.thousands)
        whole = rf"[0-9]{{1,3}}(?:{group}[0-9]{{3}})+|[0-9]+" if group else "[0-9]+"
        if re.fullmatch(rf"[+-]?(?:{whole})(?:{mark}[0-9]*)?(?:[eE][+-]?[0-9]+)?|[+-]?{mark}[0-9]+", bare):
            plain = bare.replace(self.thousands, "") if self.thousands else bare
            return plain.replace(self.decimal, ".")
        return text

    def is_foreign(self, text: str) -> bool:
        """Whether a text is a number by another custom than this map's."""
        return (
            not self.writes_plainly
            and read_number(text) is not None
            and self.tidy(text) == text
            and "." in text
        )


def read_mapped(
    source: Any,
    table: str | None = None,
    schema: Mapping[str, str] | None = None,
    missing: Iterable[str] | None = None,
    dictionary: Dictionary | None = None,
    map: TableMap | None = None,
    problems: dict[str, str] | None = None,
) -> Records:
    """A hospital's table under its map, its columns read as the dictionary (or else the schema) says.

    With `problems` a column that cannot be read so is left out, and why is noted there under its name.
    """
    plan = _Plan(dictionary or Dictionary(), map or TableMap(), dict(schema or {}), problems is not None)
    own = frozenset(missing if missing is not None else DEFAULT_MISSING if is_text_file(source) else ())
    tokens = own | _gather_tokens(plan.map.missing)
    try:
        raw = Records(read_columns(source, table, plan.choose, tokens))
    except RecordsError:
        if plan.as_text:
            raise
        # Read again with its numbers as text, to tell what is wrong with which of them, and how it is fixed.
        plan = replace(plan, as_text=True)
        raw = Records(read_columns(source, table, plan.choose, tokens))
    where = str(source) if isinstance(source, str | Path) else "the table"
    mapping = _Mapping(plan, raw, tokens, where, lambda row: name_row(source, row, table), problems)
    return Records(mapping.columns(), raw=raw)


@dataclass(frozen=True)
class _Plan:
    """What is read of a table, and as what: all of it follows from map, dictionary and schema."""

    dictionary: Dictionary
    map: TableMap
    schema: Mapping[str, str]
    as_text: bool = False

    def choose(self, names: Sequence[str], source: str) -> dict[str, ReadingKind | None]:
        """How each of the hospital's own columns is read at first: what the map or the dictionary speaks of as text,
        unless it is a plain number."""
        quickly = self.map.writes_plainly and not self.as_text
        kinds: dict[str, ReadingKind | None] = {}
        for name in names:
            users = [
                (self.dictionary.get(out), one)
                for out, one in self.map.columns.items()
                if name in (one.from_, one.until)
            ]
            if name not in self.map.columns and name not in self.map.sources and name in self.dictionary:
                users.append((self.dictionary[name], _ColumnMap(from_=name)))
            if not users:
                stated = _kind(self.schema.get(name))
                as_text = not self.map.writes_plainly or (stated is None and name in self.map.asked)
                kinds[name] = "text" if as_text else stated
            elif quickly and all(_is_plain_number(entry, one) for entry, one in users):
                kinds[name] = "number"
            else:
                kinds[name] = "text"
        return kinds


def _is_plain_number(entry: DictionaryEntry | None, one: _ColumnMap) -> bool:
    plain = not (one.values or one.missing or one.until)
    return plain and ((entry is not None and entry.type == "number") or (entry is None and bool(one.unit)))


def _kind(word: str | None) -> Kind | None:
    return "code" if word == "code" else "number" if word == "number" else None


class _Mapping:
    """One table on its way from what the hospital has to what the study knows."""

    def __init__(
        self,
        plan: _Plan,
        raw: Records,
        tokens: frozenset[str],
        where: str,
        row: Callable[[int], str],
        problems: dict[str, str] | None,
    ) -> None:
        self.plan, self.raw, self.tokens, self.where, self.row = plan, raw, tokens, where, row
        self.problems = problems

    def columns(self) -> dict[str, Column]:
        """All columns in the order of the table, derived ones last."""
        made: dict[str, Column] = {}
        for name in self.raw.names:
            if name in self.plan.map.sources or name in self.plan.map.columns:
                continue
            if name in self.plan.dictionary:
                self._add(made, name, partial(self._take, name, _ColumnMap(from_=name)))
            else:
                self._add(made, name, partial(self._leave, name))
        derived = {name: one for name, one in self.plan.map.columns.items() if one.where is not None}
        for name, one in self.plan.map.columns.items():
            if name not in derived:
                self._add(made, name, partial(self._measure_time if one.until else self._take, name, one))
        if derived:
            seen = Records(self._see(made))
            for name, one in derived.items():
                self._add(made, name, partial(self._derive, name, one, seen))
        return made

    def _add(self, made: dict[str, Column], name: str, make: Callable[[], Column]) -> None:
        try:
            keeper, column = KEEPER.get(), make()
            made[name] = column if keeper is None else keeper.keep(name, column)
        except RecordsError as error:
            if self.problems is None:
                raise
            self.problems[name] = str(error)

    def _place(self, name: str, one: _ColumnMap | None = None) -> Place:
        source = name if one is None or not one.from_ or one.from_ == name else f"{name} (from {one.from_})"
        return Place(self.where, source, self.row)

    def _require(self, name: str, source: str) -> None:
        if source not in self.raw:
            raise RecordsError(
                f"{self.plan.map.where}: {name!r} comes from {source!r}, a column that {self.where} does not have"
                f"{nearest(source, self.raw.names)}"
            )

    def _leave(self, name: str, guess: bool = True) -> Column:
        """A column that neither map nor dictionary speaks of: as without them, but for what is missing everywhere and
        how numbers are written. Whether it is read cell by cell follows from its source and the schema alone."""
        column, kind = self._drop_missing(self.raw[name], self.tokens), _kind(self.plan.schema.get(name))
        as_text = not self.plan.map.writes_plainly or (kind is None and name in self.plan.map.asked)
        if not as_text or (kind is None and not _is_text(column)):
            return column
        codes, texts, _ = self._tidy(column)
        guess = guess and not column.by_itself
        made = code_texts(codes, texts, kind, self._place(name), self.tokens, guess=guess)
        return replace(made, by_itself=column.by_itself or kind is not None)

    def _see(self, made: Mapping[str, Column]) -> dict[str, Column]:
        """What conditions look at: the made columns and the hospital's own others, each cell read by itself."""
        seen = {name: self._leave(name, guess=False) for name in self.raw.names if name not in made}
        for name, column in made.items():
            one = self.plan.map.columns.get(name)
            if column.by_itself:
                seen[name] = column
            else:
                seen[name] = self._leave(name, False) if one is None else self._take(name, one, False)
        return seen

    def _tidy(self, column: Column) -> tuple[NDArray[np.integer], list[str], set[int]]:
        """A column as codes into texts, its numbers as they are written everywhere; and which codes are `foreign`."""
        codes, texts, written = _list_cells(column)
        map = self.plan.map
        pairs = list(zip(texts, written, strict=True))
        foreign = {code for code, (text, own) in enumerate(pairs, start=1) if own and map.is_foreign(text)}
        return codes, [map.tidy(text) if own else text for text, own in pairs], foreign

    def _drop_missing(self, column: Column, tokens: frozenset[str]) -> Column:
        """The column without what stands for missing: of text files that is read so already."""
        if isinstance(column, Numbers):
            read = (read_number(token) for token in tokens)
            numbers = [number for number in read if number is not None and label(number) in tokens]
            drop = np.isin(column.numbers, numbers)
            return replace(column, numbers=np.where(drop, np.nan, column.numbers)) if drop.any() else column
        drop = np.array([False, *(_is_missing(label(value), tokens) for value in column.values)])
        return replace(column, codes=np.where(drop[column.codes], 0, column.codes)) if drop.any() else column

    def _take(self, name: str, one: _ColumnMap, guess: bool = True) -> Column:
        """A column of the hospital's own as the dictionary has it; what it does not know is guessed if `guess`."""
        assert one.from_ is not None
        self._require(name, one.from_)
        entry = self.plan.dictionary.get(name)
        kind = entry.kind if entry is not None else _kind(self.plan.schema.get(name))
        if one.unit and kind is None:
            kind = "number"
        tokens = self.tokens | _gather_tokens(one.missing)
        column = self._drop_missing(self.raw[one.from_], tokens)
        place = self._place(name, one)
        if isinstance(column, Numbers) and kind == "number" and not one.values:
            return Numbers(self._convert(column.numbers, one, entry, place), by_itself=True)
        codes, texts, foreign = self._tidy(column)
        texts = [_recode(one.values, text) for text in texts]
        if kind == "number":
            numbers = self._numbers(codes, texts, tokens, place, foreign)
            return Numbers(self._convert(numbers, one, entry, place), by_itself=True)
        if entry is None:
            guess = guess and (not one.values or kind is not None)
            return code_texts(codes, texts, kind, place, tokens, guess=guess)
        read = entry.reader()
        values = unify([None if _is_missing(text, tokens) else read(text) for text in texts])
        return code_dictionary(codes, values, "code", place)

    def _numbers(
        self,
        codes: NDArray[np.integer],
        texts: Sequence[str],
        tokens: frozenset[str],
        place: Place,
        foreign: Collection[int],
    ) -> NDArray[np.float64]:
        """The numbers of these texts; what is none, or is `foreign` (written by another custom than the map says), is
        refused where the table first has it."""
        numbers = np.full(len(texts) + 1, np.nan)
        faulty = []
        for code, text in enumerate(texts, start=1):
            if _is_missing(text, tokens):
                continue
            number = read_number(text)
            if number is None or code in foreign:
                faulty.append(code)
            else:
                numbers[code] = number
        row = _find_first(codes, faulty)
        if row is not None:
            text = texts[int(codes[row]) - 1]
            raise RecordsError(
                f"{place.source}: column {place.name} is a number by the dictionary, but {place.row(row)} holds "
                f"{text!r}; {say_remedy(text, self.plan.map)}"
            )
        return np.take(numbers, codes) + 0.0

    def _convert(
        self, numbers: NDArray[np.float64], one: _ColumnMap, entry: DictionaryEntry | None, place: Place
    ) -> NDArray[np.float64]:
        if not one.unit:
            return numbers
        where = f"{self.plan.map.where}: {place.name}"
        if entry is None or not entry.unit:
            raise RecordsError(f"{where} has a unit, and the dictionary says none that it is converted to")
        return convert(numbers, one.unit, entry.unit, where, entry.molar_mass)

    def _measure_time(self, name: str, one: _ColumnMap) -> Column:
        """The time from one date until another; of years and months those that are completed, as ages are told."""
        assert one.from_ is not None
        assert one.until is not None
        place = self._place(name, one)
        self._require(name, one.from_)
        if not _is_date(one.until, self.plan.map.dates):
            self._require(name, one.until)
        begin = self._read_dates(self.raw[one.from_], one, place)
        if one.until in self.raw:
            end = self._read_dates(self.raw[one.until], one, self._place(one.until))
        else:
            end = np.full(len(begin), np.datetime64(_parse_date(one.until, self.plan.map.dates), "us"))
        known = ~(np.isnat(begin) | np.isnat(end))
        numbers = np.full(len(begin), np.nan)
        numbers[known] = _count_time(begin[known], end[known], one.in_)
        return Numbers(numbers, by_itself=True)

    def _read_dates(self, column: Column, one: _ColumnMap, place: Place) -> NDArray[np.datetime64]:
        tokens = self.tokens | _gather_tokens(one.missing)
        codes, texts = _list_texts(column)
        moments = np.full(len(texts) + 1, np.datetime64("NaT"), dtype="datetime64[us]")
        faulty = []
        for code, text in enumerate(texts, start=1):
            if _is_missing(text, tokens):
                continue
            try:
                moments[code] = np.datetime64(_parse_date(text, self.plan.map.dates), "us")
            except ValueError:
                faulty.append(code)
        row = _find_first(codes, faulty)
        if row is not None:
            text, written = texts[int(codes[row]) - 1], self.plan.map.dates or "ISO 8601 (2024-05-31)"
            raise RecordsError(
                f"{place.source}: column {place.name}, {place.row(row)}: {text!r} is no date as {written} has it; "
                f'say how dates are written, dates = "%d.%m.%Y" under [map], or name it as missing'
            )
        return np.take(moments, codes)

    def _derive(self, name: str, one: _ColumnMap, seen: Records) -> Column:
        """True and false where the condition is, each patient by itself; missing where that is not known."""
        assert one.where is not None
        query = Query.parse(one.where)
        try:
            truth = query.truth(read_as_asked(seen, query))
        except QueryError as error:
            raise RecordsError(f"{self.plan.map.where}: [map.columns] {name}: {error}") from None
        codes = np.select([truth == FALSE, truth == TRUE], [1, 2], 0)
        entry = self.plan.dictionary.get(name)
        read = read_text if entry is None else entry.reader()
        values = [read(_recode(one.values, word)) for word in ("false", "true")]
        if entry is not None and entry.type == "number":
            raise RecordsError(
                f"{self.plan.map.where}: {name!r} is true or false, and by the dictionary a number"
            )
        return code_dictionary(codes, unify([*values]), "code", self._place(name))


def _find_first(codes: NDArray[np.integer], faulty: Sequence[int]) -> int | None:
    """The first row that has one of these codes, which are in the order of values and not of rows."""
    held = np.isin(codes, faulty)
    return int(np.argmax(held)) if held.any() else None


def has_decimal_comma(text: str) -> bool:
    """Whether a text is a number but for a comma where a point is expected."""
    return re.fullmatch(r"[+-]?[0-9]+,[0-9]+", text.strip()) is not None


def say_remedy(text: str, map: TableMap) -> str:
    """What to write in the map about a text that should have been a number."""
    if has_decimal_comma(text) and map.decimal == ".":
        return 'if commas are decimal here, write decimal = "," under [map]'
    if map.is_foreign(text):
        return f"numbers have {map.decimal!r} by [map], and this has a point; write them all in one way"
    return f"name it as missing under [map], missing = [{msgspec.json.encode(text.strip()).decode()}], or recode it"


def _is_missing(text: str, tokens: frozenset[str]) -> bool:
    """Whether a text stands for missing: as it is named, or as a number that is (`-9` and `-9.0`)."""
    bare = text.strip(BLANKS)
    return bare in tokens or canonical(bare) in tokens


def _recode(values: Mapping[str, Value], text: str) -> str:
    """What a hospital's value is called in the study; one that is not named stays."""
    for name in (text.strip(BLANKS), label(read_code(text))):
        if name in values:
            return label(values[name])
    return text


def _list_texts(column: Column) -> tuple[NDArray[np.integer], list[str]]:
    """A column as codes (0: missing) into texts."""
    if isinstance(column, Numbers):
        sizes, codes = np.unique(column.numbers, return_inverse=True)
        sizes = sizes[~np.isnan(sizes)]
        return np.where(codes < len(sizes), codes + 1, 0), [label(float(size)) for size in sizes]
    return column.codes, [label(value) for value in column.values]


def _list_cells(column: Column) -> tuple[NDArray[np.integer], list[str], list[bool]]:
    """A column as codes (0: missing) into texts, and whether each was written as text: a number that a source stored as
    one has no decimal comma, whatever other cells hold."""
    codes, texts = _list_texts(column)
    if not _is_text(column):
        return codes, texts, [False] * len(texts)
    typed = column.typed if isinstance(column, Coded) else None
    if typed is None:
        return codes, texts, [True] * len(texts)
    apart = np.where(typed & (codes > 0), codes.astype(np.int64) + len(texts), codes)
    used, codes = np.unique(np.append(apart, 0), return_inverse=True)
    places = [int(code) - 1 for code in used[1:]]
    return (
        codes[:-1],
        [texts[place % len(texts)] for place in places],
        [place < len(texts) for place in places],
    )


def _gather_tokens(missing: Iterable[str]) -> frozenset[str]:
    """Texts that stand for missing, also as the numbers they stand for: `-9.0` is `-9`."""
    bare = {token.strip(BLANKS) for token in missing}
    return frozenset(bare | {canonical(token) for token in bare})


def _is_text(column: Column) -> bool:
    return isinstance(column, Coded) and all(isinstance(value, str) for value in column.values)


def _parse_date(text: str, form: str) -> datetime:
    """A date as the map says it is written, without a zone; ValueError where it is none."""
    bare = text.strip()
    moment = datetime.strptime(bare, form) if form else datetime.fromisoformat(bare)
    return moment.replace(tzinfo=None)


def _is_date(text: str, form: str) -> bool:
    try:
        _parse_date(text, form)
    except ValueError:
        return False
    return True


def _count_time(
    begin: NDArray[np.datetime64], end: NDArray[np.datetime64], unit: Interval
) -> NDArray[np.float64]:
    if unit in SECONDS:
        return (end - begin).astype(np.int64) / (SECONDS[unit] * 1_000_000)
    months = end.astype("datetime64[M]").astype(np.int64) - begin.astype("datetime64[M]").astype(np.int64)
    within = [
        (one - one.astype("datetime64[M]").astype("datetime64[us]")).astype(np.int64) for one in (begin, end)
    ]
    months -= within[1] < within[0]
    return (months // 12 if unit == "years" else months).astype(np.float64)


def _read_tokens(where: str, given: object) -> tuple[str, ...]:
    tokens = [given] if isinstance(given, str | int | float) else given
    if not isinstance(tokens, list) or any(isinstance(one, bool | dict | list) for one in tokens):
        raise StudyError(f'{where} must be a list of texts, such as ["?", "-9"]')
    return tuple(label(one) for one in tokens)


def _read_column(where: str, given: object) -> _ColumnMap:
    if isinstance(given, str):
        # A condition has a comparison in it; a column of such a name is written { from = "..." }.
        given = {"where": given} if _is_condition(given) else {"from": given}
    if not isinstance(given, dict):
        raise StudyError(
            f'{where} must be the name of a column, a condition, or keys such as {{ from = "alter" }}'
        )
    for key in given:
        if key not in COLUMN_KEYS:
            raise StudyError(f"{where} has no key {key!r}{nearest(key, COLUMN_KEYS)}")
    plain = dict(given)
    if "missing" in plain:
        plain["missing"] = _read_tokens(f"{where}: missing", plain["missing"])
    if isinstance(plain.get("values"), dict):
        plain["values"] = {
            name: value for key, value in plain["values"].items() for name in {key, label(read_code(key))}
        }
    try:
        made = msgspec.convert(plain, _ColumnMap)
    except msgspec.ValidationError as error:
        problem = (
            str(error)
            .replace(" - at `$.", " - in `")
            .replace("Expected", "expected")
            .replace("Invalid", "invalid")
        )
        raise StudyError(f"{where}: {problem}") from None
    _check_column(where, made, has_unit_of_time="in" in plain)
    return made


def _check_column(where: str, made: _ColumnMap, *, has_unit_of_time: bool) -> None:
    """StudyError for keys of a column that do not go together."""
    if (made.from_ is None) == (made.where is None):
        raise StudyError(f"{where} needs either from, a column of the hospital's own, or where, a condition")
    if made.where is not None:
        if made.unit or made.until or made.missing:
            raise StudyError(f"{where} is true or false: it has no unit, no until and no missing of its own")
        try:
            Query.parse(made.where)
        except QueryError as error:
            raise StudyError(f"{where}: {error}") from None
    if made.until and (made.unit or made.values):
        raise StudyError(f"{where} is a time between two dates: it has no unit and no values of its own")
    if has_unit_of_time and not made.until:
        raise StudyError(f"{where}: in goes with until, the second of two dates")


def _is_condition(text: str) -> bool:
    try:
        return Query.parse(text).condition is not None
    except QueryError:
        # A slip in a condition is told as one: no column is called `num > `.
        return bool(re.search(r"[<>=]", text))
