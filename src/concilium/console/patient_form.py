"""A form about one patient, from what a model says of its attributes; and the patient whom a filled form describes.

Three things can be said of an attribute. A value. Nothing: it counts neither for nor against. "Not measured": it
counts as it did for patients learned from who lacked it (`Method.explain`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import msgspec

from concilium.models.explanation import LEAST_NAME
from concilium.protocol.attributes import Attribute
from concilium.records.clinical_ranges import find_range
from concilium.records.columns import Value, label
from concilium.records.dictionary import DictionaryEntry
from concilium.records.grammar import DEFAULT_MISSING, read_cell, read_number
from concilium.records.query import Query
from concilium.trees.body import BodyOfTrees, TreeNode

VALUE, ABSENT = "v.", "m."
"""How the names of a form's fields begin: a value, and the tick that it was not measured."""
MOST_TEXT = 200
MOST_COURSE = 4000
MOST_OPTIONS = 60
MOST_SUGGESTED = 300


@dataclass(frozen=True)
class FormField:
    """One attribute in a form.

    kind       number, date, choice (one of `options`), text (`options` are suggestions) or course (numbers in order)
    options    values as they are sent, each with its meaning
    low, high  what is plausible
    edges      where the model cuts it, where nobody said what is plausible
    """

    name: str
    kind: str
    label: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    edges: tuple[float, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    in_query: bool = False

    @property
    def title(self) -> str:
        return self.label or self.name

    @property
    def help(self) -> str:
        """What can be entered, in words."""
        parts = [self.name] if self.label and self.label.lower() != self.name.lower() else []
        if self.kind == "number" and self.low is not None and self.high is not None:
            parts.append(f"{self.low:g} to {self.high:g}{f' {self.unit}' if self.unit else ''}")
        elif self.unit and self.kind != "course":  # it stands beside the title
            parts.append(self.unit)
        if self.kind == "course":
            parts.append("numbers in order of time, the newest last, such as 88, 95, 102")
        return "; ".join(parts)

    def mean(self, text: str) -> str:
        """What an entered text means."""
        return dict(self.options).get(text, text)

    @property
    def reach(self) -> tuple[float, float] | None:
        """From where to where a slider goes: what is plausible, or somewhat beyond the outermost cuts."""
        if self.low is not None and self.high is not None:
            return (self.low, self.high) if self.low < self.high else None
        if not self.edges:
            return None
        first, last = min(self.edges), max(self.edges)
        more = (last - first) / 4 or abs(first) / 2 or 1.0
        low, high = (max(first - more, 0.0) if first >= 0 else first - more), last + more
        step = 10.0 ** math.floor(math.log10((high - low) / 100))
        return math.floor(low / step) * step, math.ceil(high / step) * step

    @property
    def step(self) -> str:
        """By how much a slider moves."""
        if self.reach is None:
            return "any"
        wide = self.reach[1] - self.reach[0]
        return f"{max(10.0 ** math.floor(math.log10(wide / 100)), 10.0**-6):g}" if wide < 100 else "1"


@dataclass(frozen=True)
class FilledForm:
    """What was entered: the text of each field, which were not measured, and what is wrong, by attribute."""

    texts: Mapping[str, str]
    absent: frozenset[str]
    patient: dict[str, Any]
    problems: Mapping[str, str]

    def say(self, name: str) -> str:
        """One attribute as it was entered; empty where nothing was."""
        return "not measured" if name in self.absent else self.texts.get(name, "")


def list_fields(model: Any) -> tuple[FormField, ...]:
    """The fields of a model: what it asks about, in its order, then what only its query is about."""
    known = _find_known(model.body)
    dictionary = model.card.dictionary
    asked = list(dict.fromkeys(map(str, model.attributes_)))
    queried = sorted(Query.parse(model.query).attributes)
    names = [*asked, *(name for name in queried if name not in asked and name != model.target)]
    return tuple(
        replace(
            _make_field(name, dictionary.get(name), known.get(name), model.reads_courses and name in asked),
            in_query=name in queried,
        )
        for name in names
    )


@dataclass(frozen=True)
class _KnownValues:
    """What a model's body tells of an attribute."""

    values: tuple[Value, ...] = ()
    edges: tuple[float, ...] = ()
    is_date: bool = False


def _find_known(body: msgspec.Struct) -> dict[str, _KnownValues]:
    """By attribute the values or edges that are written anywhere in a model's body."""
    values: dict[str, dict[str, Value]] = {}
    edges: dict[str, tuple[float, ...]] = {}
    dates: set[str] = set()
    for found in _walk(body):
        if isinstance(found, BodyOfTrees):
            edges |= {name: tuple(cuts) for name, cuts in found.bins.items()}
            dates |= set(found.dates)
        elif isinstance(found, Attribute):
            if found.numeric:
                edges[found.name] = found.edges
            if found.date:
                dates.add(found.name)
            values.setdefault(found.name, {}).update({label(one): one for one in found.values})
        elif isinstance(found, TreeNode) and found.attribute is not None:
            named = [one.value for one in found.branches if one.value is not None]
            values.setdefault(found.attribute, {}).update({label(one): one for one in named})
    return {
        name: _KnownValues(
            tuple(values.get(name, {}).values()) if name not in edges else (),
            edges.get(name, ()),
            name in dates,
        )
        for name in {*values, *edges}
    }


def _walk(thing: Any) -> Iterator[Any]:
    """All structures inside a body; lists of plain numbers and texts are passed over."""
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if isinstance(one, msgspec.Struct):
            yield one
            waiting += [getattr(one, name) for name in one.__struct_fields__]
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple) and one and not isinstance(one[0], int | float | str):
            waiting += one


def _make_field(
    name: str, entry: DictionaryEntry | None, known: _KnownValues | None, is_course: bool
) -> FormField:
    known = known or _KnownValues()
    clinical = find_range(name) if entry is None and len(name) >= LEAST_NAME else None
    if is_course:
        return FormField(name, "course", unit=clinical.unit if clinical else "")
    if known.is_date:
        return FormField(name, "date", entry.label if entry else "")
    if entry is not None and entry.type == "number":
        low, high = entry.range or (None, None)
        return FormField(name, "number", entry.label, entry.unit, low, high, known.edges)
    if entry is not None and entry.values:
        options = tuple((value, meaning or value) for value, meaning in entry.values.items())
        return FormField(
            name, "choice" if len(options) <= MOST_OPTIONS else "text", entry.label, options=options
        )
    title = entry.label if entry is not None else ""
    if known.edges or (clinical is not None and not known.values):
        if clinical is None:
            return FormField(name, "number", title, edges=known.edges)
        return FormField(name, "number", title, clinical.unit, clinical.lowest, clinical.highest)
    options = tuple((label(one), label(one)) for one in _in_order(known.values)[:MOST_SUGGESTED])
    return FormField(name, "choice" if 0 < len(options) <= MOST_OPTIONS else "text", title, options=options)


def _in_order(values: tuple[Value, ...]) -> list[Value]:
    numbers = sorted(one for one in values if isinstance(one, int | float) and not isinstance(one, bool))
    return [*numbers, *sorted((one for one in values if one not in numbers), key=label)]


def read_form(fields: tuple[FormField, ...], sent: Mapping[str, str]) -> FilledForm:
    """What a form that was sent says of the patient. A value that no field could have is a problem beside its field,
    and is not part of the patient; a field that the model does not have is one under its own name."""
    names = {field.name for field in fields}
    texts: dict[str, str] = {}
    problems: dict[str, str] = {}
    absent, patient = set[str](), dict[str, Any]()
    for key in sent:
        if key.startswith((VALUE, ABSENT)) and key[len(VALUE) :] not in names:
            problems[key[len(VALUE) :][:40]] = "the model does not ask about this"
    for field in fields:
        text = sent.get(VALUE + field.name, "").strip()
        is_absent = ABSENT + field.name in sent
        if text:
            texts[field.name] = text[: MOST_COURSE + 1]
        if text and is_absent:
            problems[field.name] = "has a value and is ticked as not measured: leave one of them out"
        elif is_absent:
            absent.add(field.name)
            patient[field.name] = None
        elif text:
            try:
                patient[field.name] = _read_value(field, text)
            except ValueError as error:
                problems[field.name] = str(error)
    return FilledForm(texts, frozenset(absent), patient, problems)


def _read_value(field: FormField, text: str) -> Any:
    """ValueError, as a sentence, for a value that it cannot have. It does not repeat the value."""
    if field.kind == "course":
        if len(text) > MOST_COURSE:
            raise ValueError(f"is too long: at most {MOST_COURSE} characters")
        numbers = [read_number(part.strip()) if part.strip() else None for part in text.split(",")]
        if any(
            part.strip() and number is None for part, number in zip(text.split(","), numbers, strict=True)
        ):
            raise ValueError("must be numbers with commas between, such as 88, 95, 102")
        return numbers
    if len(text) > MOST_TEXT or not text.isprintable():
        raise ValueError(f"must be one line of at most {MOST_TEXT} characters")
    if field.kind == "number":
        number = read_number(text)
        if number is None or not math.isfinite(number):
            hint = "; write a point, as in 37.5" if "," in text else ""
            raise ValueError(f"must be a number{f' in {field.unit}' if field.unit else ''}{hint}")
        return int(number) if number.is_integer() and abs(number) < 1e15 else number
    if field.kind == "date":
        try:
            return date.fromisoformat(text).isoformat()
        except ValueError:
            raise ValueError("must be a day, such as 2026-03-31") from None
    return read_cell(text, frozenset(DEFAULT_MISSING))
