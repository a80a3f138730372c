"""A study's dictionary: what every attribute is called, what it is measured in, and which values it can have.

It is public: people write it (`[dictionary]` of a study file, or a file of its own), it travels in the terms that
hospitals agree to and on the card of the model, and nothing in it comes from a patient. From it follows how columns are
read (`schema`), which values and classes there are (`values`) and where numbers may be cut (`bins`): a private study
needs nothing else. Every hospital maps its own table to it (table_map.py), and `concilium check` says whether it fits.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from concilium.errors import StudyError, nearest
from concilium.records.columns import Value, label, say_plain
from concilium.records.grammar import canonical, read_number, read_text

# What no committee could read is agreed to by none (protocol/terms.py bounds the terms as a whole).
MOST_ATTRIBUTES = 2000
MOST_VALUES = 1000
MOST_TEXT = 200
MOST_CODES = 1000  # characters of an attribute's codes in one system
MOST_BYTES = 1 << 17
CUTS = 10  # into so many parts at most a plausible range is cut, where no bins are given
STEPS = (1.0, 2.0, 5.0, 10.0)

TRUTHS = (("0", "1"), ("no", "yes"))
"""What stands for false and true where neither of them is listed."""

Type = Literal["number", "code", "text"]
KEYS = ("label", "type", "unit", "range", "values", "bins", "codes", "absent", "molar_mass")


class DictionaryEntry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One attribute.

    type         number; code: `1`, `1.0` and `01` are one value; text: a code of which each character counts (`0389`)
    label        what people call it
    unit         what it is measured in, such as mg/dl
    range        what is plausible: outside it a value is a slip, another unit or a code for missing
    values       the values of a code, each with what it means (or with nothing)
    bins         where a number may be cut
    codes        what it is called elsewhere: {"loinc": "2093-3"}
    absent       the value of a patient in whose record there is nothing of these codes
    molar_mass   in g/mol, to convert mmol/l into mg/dl
    """

    type: Type
    label: str = ""
    unit: str = ""
    range: tuple[float, float] | None = None
    values: dict[str, str] = {}
    bins: tuple[float, ...] = ()
    codes: dict[str, str] = {}
    absent: str = ""
    molar_mass: float | None = None

    @property
    def kind(self) -> Literal["code", "number"]:
        """As what a column is read (records/coding.py)."""
        return "number" if self.type == "number" else "code"

    @property
    def listed(self) -> tuple[Value, ...]:
        """The values as a table holds them."""
        return tuple(name if self.type == "text" else read_text(name) for name in self.values)

    @property
    def edges(self) -> tuple[float, ...]:
        """Where it is cut: as it says, or evenly over the plausible range."""
        if self.type != "number" or self.bins:
            return self.bins
        return _cut_evenly(*self.range) if self.range is not None else ()

    def read(self, text: str) -> Value:
        """The value of one cell of a code, by itself: as it is listed, whatever its capitals, or by what it means; what
        no value is listed for stays what it is."""
        return self.reader()(text)

    def reader(self) -> Callable[[str], Value]:
        """`read`, for many cells."""
        listed = dict(zip(self.values, self.listed, strict=True))
        words = {word: listed[value] for word, value in self._find_words().items()}

        def read(text: str) -> Value:
            own = text.strip() if self.type == "text" else read_code(text)
            found = listed.get(label(own))
            return words.get(label(own).casefold(), own) if found is None else found

        return read

    def say(self, value: Value) -> str:
        """What a value means; the value itself where the dictionary does not say."""
        return self.values.get(label(value)) or say_plain(value)

    def lists(self, value: Value) -> bool:
        """Whether a value is one of those listed, or none are."""
        return not self.values or label(value) in self.values

    def _find_words(self) -> dict[str, str]:
        """Values by what else they are written as: in other capitals, by their meaning, or as a truth value. What would
        stand for two of them stands for none."""
        words: dict[str, set[str]] = {}
        for value, meaning in self.values.items():
            for word in {value.casefold(), meaning.casefold()} - {""}:
                words.setdefault(word, set()).add(value)
        for no, yes in TRUTHS:
            if {no, yes} <= set(self.values):
                words.setdefault("false", set()).add(no)
                words.setdefault("true", set()).add(yes)
        return {word: next(iter(values)) for word, values in words.items() if len(values) == 1}

    def say_range(self) -> str:
        """The plausible range in words."""
        if self.range is None:
            return ""
        low, high = (f"{end:g}" for end in self.range)
        return f"{low} to {high}{f' {self.unit}' if self.unit else ''}"


def say_value(value: Value, entry: DictionaryEntry | None) -> str:
    """What a value means by its entry, if it has one; otherwise the value itself."""
    return say_plain(value) if entry is None else entry.say(value)


@dataclass(frozen=True)
class Dictionary:
    """`Dictionary.read("heart.toml")`; `dictionary["age"]` is an entry. `schema`, `values` and `bins` are what readers
    of tables and methods take."""

    entries: Mapping[str, DictionaryEntry] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Dictionary:
        """The dictionary in a TOML file, its own or a study's; or in the terms of a study, as JSON."""
        path = Path(path)
        document = _read_file(path)
        return document if isinstance(document, Dictionary) else find_dictionary(path, document)

    @classmethod
    def parse(cls, sections: object, where: str) -> Dictionary:
        """The dictionary that the sections of a TOML file make; StudyError names the first that is wrong."""
        if not isinstance(sections, dict):
            raise StudyError(f"{where}: [dictionary] has a section for each attribute, [dictionary.age]")
        entries = {name: _read_entry(f"{where}: [dictionary.{name}]", sections[name]) for name in sections}
        check_entries(entries, where)
        return cls(entries)

    def __getitem__(self, name: str) -> DictionaryEntry:
        return self.entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, name: str) -> DictionaryEntry | None:
        return self.entries.get(name)

    @cached_property
    def schema(self) -> dict[str, Literal["code", "number"]]:
        """How each column is read."""
        return {name: entry.kind for name, entry in self.entries.items()}

    @cached_property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """The values of every code that lists them."""
        return {name: entry.listed for name, entry in self.entries.items() if entry.values}

    @cached_property
    def bins(self) -> dict[str, tuple[float, ...]]:
        """Where every number may be cut."""
        return {name: entry.edges for name, entry in self.entries.items() if entry.edges}

    def to_toml(self) -> str:
        """The dictionary as text for a study file, or for a file of its own."""
        return "\n".join(
            f"[dictionary.{_write_key(name)}]\n" + "".join(f"{line}\n" for line in _write_entry(entry))
            for name, entry in self.entries.items()
        )


def draft_entries(values: Mapping[str, Sequence[Value]]) -> dict[str, DictionaryEntry]:
    """Entries of codes of which only the values are known."""
    return {
        name: DictionaryEntry(type="code", values={label(one): "" for one in listed})
        for name, listed in values.items()
    }


class _Terms(msgspec.Struct):
    dictionary: dict[str, DictionaryEntry] = {}


def find_dictionary(path: Path, document: Mapping[str, Any]) -> Dictionary:
    """The dictionary of a TOML file: its sections [dictionary.NAME], or those of the file that [dictionary] names."""
    section = document.get("dictionary", {})
    if not isinstance(section, dict) or not isinstance(section.get("file"), str):
        return Dictionary.parse(section, str(path))
    if len(section) > 1:
        raise StudyError(f"{path}: [dictionary] has sections of its own, or names a file, and not both")
    place = path.parent / section["file"]
    named = _read_file(place)
    if isinstance(named, Dictionary):
        return named
    if isinstance(named["dictionary"], dict) and isinstance(named["dictionary"].get("file"), str):
        raise StudyError(f"{place}: is the file that {path} names, and must hold the dictionary itself")
    return Dictionary.parse(named["dictionary"], str(place))


def _read_file(path: Path) -> Dictionary | dict[str, Any]:
    """The dictionary in the terms of a study, or a TOML file that has one."""
    try:
        content = path.read_bytes()
        if path.suffix.lower() == ".json":
            return Dictionary(msgspec.json.decode(content, type=_Terms).dictionary)
        document = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    except msgspec.MsgspecError:
        raise StudyError(f"{path}: these are not the terms of a study") from None
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{path}: is not a TOML file: {error}") from None
    if "dictionary" not in document:
        raise StudyError(
            f"{path}: says nothing of any attribute; of age, say, it does in a section [dictionary.age]"
        )
    return document


def describe_entry(entry: DictionaryEntry) -> str:
    """What an attribute can be, in words."""
    if entry.type == "number":
        unit = f" in {entry.unit}" if entry.unit else ""
        return f"a number{unit}" + (f", plausible from {entry.say_range()}" if entry.range else "")
    if not entry.values:
        return "text as it is written" if entry.type == "text" else "a code"
    return ", ".join(f"{value} ({meaning})" if meaning else value for value, meaning in entry.values.items())


def read_code(text: str) -> Value:
    """What one cell of a code stands for: as the grammar has it, and also `01` and `+1` are 1."""
    value = read_text(text)
    if not isinstance(value, str):
        return value
    number = read_number(value)
    return value.strip() if number is None or not math.isfinite(number) else read_text(label(number))


def _cut_evenly(low: float, high: float) -> tuple[float, ...]:
    """Round numbers that cut a range into even parts, ten at most; between a few whole numbers at each of them."""
    least = (high - low) / CUTS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * one for one in STEPS if power * one >= least * (1 - 1e-9))
    if float(low).is_integer() and float(high).is_integer() and step < 1 and high - low > 1:
        step = 1.0
    first, last = math.floor(low / step), math.ceil(high / step)
    edges = (float(f"{place * step:.12g}") for place in range(first, last + 1))
    return tuple(edge for edge in edges if low < edge < high or (step == 1.0 and edge == high))


def check_entries(entries: Mapping[str, DictionaryEntry], where: str) -> None:
    """StudyError where it is no dictionary, or one that no committee could read."""
    if len(entries) > MOST_ATTRIBUTES or len(msgspec.json.encode(entries)) > MOST_BYTES:
        raise StudyError(
            f"{where}: a dictionary travels in the terms of a study, which a committee reads: at most "
            f"{MOST_ATTRIBUTES:,} attributes and {MOST_BYTES:,} bytes; these are {len(entries):,}"
        )
    for name, entry in entries.items():
        if not name.strip() or not name.isprintable() or len(name) > MOST_TEXT:
            raise StudyError(f"{where}: an attribute's name has at most {MOST_TEXT} printable characters")
        _check_entry(f"{where}: [dictionary.{name}]", entry)


def _read_entry(where: str, section: object) -> DictionaryEntry:
    if not isinstance(section, dict):
        raise StudyError(f"{where}: must be a section of its own with keys such as label, type and unit")
    for key in section:
        if key not in KEYS:
            raise StudyError(f"{where} has no key {key!r}{nearest(key, KEYS)}")
    plain = dict(section)
    kind = plain.get("type") or (
        "code" if "values" in plain else "number" if {"bins", "range"} & set(plain) else ""
    )
    if not kind:
        raise StudyError(f'{where} needs its type: "number", "code" or "text"')
    if "values" in plain:
        plain["values"] = _read_values(where, plain["values"], kind == "text")
    if isinstance(plain.get("codes"), dict):
        plain["codes"] = {
            str(system): ", ".join(map(str, codes if isinstance(codes, list) else [codes]))
            for system, codes in plain["codes"].items()
        }
    if isinstance(plain.get("absent"), int | float | bool):
        plain["absent"] = label(plain["absent"])
    try:
        return msgspec.convert({**plain, "type": kind}, DictionaryEntry)
    except msgspec.ValidationError as error:
        problem = str(error).replace(" - at `$.", " - in `").replace("Expected", "expected")
        raise StudyError(f"{where}: {problem}") from None


def _read_values(where: str, given: object, as_text: bool) -> dict[str, str]:
    """The values by their labels, each with its meaning."""
    pairs: list[tuple[Any, Any]]
    if isinstance(given, dict):
        pairs = list(given.items())
    elif isinstance(given, list):
        pairs = [(value, "") for value in given]
    else:
        raise StudyError(f'{where}: values must be a list, or a table such as {{ f = "female", m = "male" }}')
    values: dict[str, str] = {}
    for value, meaning in pairs:
        if not isinstance(value, str | int | float | bool) or not isinstance(meaning, str):
            raise StudyError(f"{where}: values are text, numbers or truth values, and their meanings text")
        name = label(value) if as_text or not isinstance(value, str) else canonical(label(read_code(value)))
        if name in values:
            raise StudyError(f"{where}: the value {name} is listed twice")
        values[name] = meaning
    return values


def _check_entry(where: str, entry: DictionaryEntry) -> None:
    texts = [
        entry.label,
        entry.unit,
        entry.absent,
        *entry.values,
        *entry.values.values(),
        *entry.codes,
    ]
    if any(len(text) > MOST_TEXT or not text.isprintable() for text in texts):
        raise StudyError(f"{where}: texts have at most {MOST_TEXT} printable characters")
    if any(len(text) > MOST_CODES or not text.isprintable() for text in entry.codes.values()):
        raise StudyError(f"{where}: codes of one system have at most {MOST_CODES:,} printable characters")
    if len(entry.values) > MOST_VALUES:
        raise StudyError(f"{where}: at most {MOST_VALUES} values are listed; these are {len(entry.values)}")
    if entry.absent and not entry.codes:
        raise StudyError(f"{where}: absent says what a record without these codes means: give codes, too")
    if entry.absent and not entry.lists(entry.read(entry.absent)):
        raise StudyError(f"{where}: absent is no value of it: {describe_entry(entry)}")
    numeric = {"unit": entry.unit, "range": entry.range, "bins": entry.bins, "molar_mass": entry.molar_mass}
    odd = [key for key, value in numeric.items() if value] if entry.type != "number" else []
    if entry.type == "number" and entry.values:
        odd = ["values"]
    if odd:
        other = "a number" if entry.type != "number" else "a code"
        raise StudyError(f"{where}: {odd[0]} is for {other}, and its type is {entry.type!r}")
    for key, numbers in (("range", entry.range or ()), ("bins", entry.bins)):
        if not all(map(math.isfinite, numbers)) or any(not low < high for low, high in pairwise(numbers)):
            raise StudyError(f"{where}: {key} must be numbers in rising order; got {list(numbers)}")
    if entry.molar_mass is not None and not 0 < entry.molar_mass < math.inf:
        raise StudyError(f"{where}: molar_mass must be a number above 0, in g/mol; got {entry.molar_mass}")


def _write_entry(entry: DictionaryEntry) -> Iterator[str]:
    if entry.label:
        yield f"label = {_write(entry.label)}"
    yield f"type = {_write(entry.type)}"
    if entry.unit:
        yield f"unit = {_write(entry.unit)}"
    if entry.range is not None:
        yield f"range = {_write_list(entry.range)}"
    if entry.bins:
        yield f"bins = {_write_list(entry.bins)}"
    if any(entry.values.values()):
        yield f"values = {_write_table(entry.values)}"
    elif entry.values:
        yield f"values = {_write_list(entry.listed)}"
    if entry.codes:
        yield f"codes = {_write_table(entry.codes)}"
    if entry.absent:
        yield f"absent = {_write(entry.absent)}"
    if entry.molar_mass is not None:
        yield f"molar_mass = {entry.molar_mass:g}"


def _write_list(values: Sequence[Value]) -> str:
    return f"[{', '.join(map(_write, values))}]"


def _write_table(table: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{_write_key(key)} = {_write(value)}" for key, value in table.items()) + " }"


def _write_key(name: str) -> str:
    """A key of TOML, bare where it may be."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _write(name)


def _write(value: Value) -> str:
    """A value of TOML; what JSON writes of a text is also text there."""
    return label(value) if not isinstance(value, str) else msgspec.json.encode(value).decode()
