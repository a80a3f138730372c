"""Whether a hospital's table fits a study's dictionary, its own map and its own policy, and a page of HTML about it.

Protects: patients, from anyone but the hospital: findings and page name values and count patients, so they are for
those who may read the table anyway. A fault would be refused or read wrongly; what is unusual may be meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import markupsafe
import numpy as np
from numpy.typing import NDArray

from concilium.consult.report import render
from concilium.errors import PolicyError, QueryError, RecordsError, nearest
from concilium.models.pictures import COLOURS, RULE, SOFT, draw, draw_frame
from concilium.policy.constrain import explain_idle, say_held
from concilium.policy.policy import Policy
from concilium.protocol.cohort import View, holds_measurements, identifies, present
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.dictionary import Dictionary, DictionaryEntry
from concilium.records.grammar import measure
from concilium.records.query import Query, read_as_asked, read_as_numbers
from concilium.records.table import Records
from concilium.records.units import find_likely_units

Level = Literal["fault", "odd"]

STAND_IN_SECRET = bytes(32)  # for rules with pseudonyms: whom they concern does not depend on it
MANY_OUTSIDE = 0.2
MANY_MISSING = 0.5
BINS = 24
MOST_BARS = 12
SHOWN = 5
LONGEST = 40


@dataclass(frozen=True)
class _CheckFinding:
    """What does not fit, or is odd, about a column (or, without one, about the table)."""

    level: Level
    what: str
    column: str = ""


@dataclass(frozen=True)
class _ColumnCheck:
    """One column as the study will know it. `bars` are what a picture shows of it: names with numbers of patients, or
    for a number, with `ends`, patients between even steps from the first to the last."""

    name: str
    entry: DictionaryEntry | None
    known: int
    missing: int
    summary: str
    bars: tuple[tuple[str, int], ...] = ()
    ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class TableCheck:
    """What a check found of one hospital's table. `selected` are the patients whom the study's query leaves, None where
    that could not be told."""

    name: str
    patients: int
    columns: tuple[_ColumnCheck, ...]
    findings: tuple[_CheckFinding, ...]
    query: str = ""
    selected: int | None = None

    @property
    def fits(self) -> bool:
        return not any(one.level == "fault" for one in self.findings)

    def about(self, column: str) -> list[_CheckFinding]:
        return [one for one in self.findings if one.column == column]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "site": self.name,
            "fits": self.fits,
            "patients": self.patients,
            "query": self.query,
            "selected": self.selected,
            "columns": [
                {"name": one.name, "known": one.known, "missing": one.missing, "summary": one.summary}
                for one in self.columns
            ],
            "findings": [
                {"level": f.level, "column": f.column or None, "what": f.what} for f in self.findings
            ],
        }


@dataclass(frozen=True)
class TableUnderStudy:
    """A hospital's table as its map leaves it, and what a study wants of it.

    `problems` are columns that could not be read at all; `asked` those that the study asks about, beside the target;
    `values` what a private study states of codes.
    """

    name: str
    records: Records
    dictionary: Dictionary = field(default_factory=Dictionary)
    policy: Policy = field(default_factory=Policy)
    query: str = ""
    target: str = ""
    asked: Sequence[str] = ()
    values: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> TableCheck:
        """Everything that a hospital should know of its table before it takes part."""
        findings = [*self._find_absent(), *self._find_in_columns(), *self._find_in_rows()]
        view, problems = self._constrain()
        findings += problems
        selected = None
        if view is not None:
            findings += self._find_hidden(view)
            selected, problems = self._select(view)
            findings += problems
        order = {"fault": 0, "odd": 1}
        return TableCheck(
            self.name,
            len(self.records),
            tuple(self._look(name) for name in self._wanted if name in self.records),
            tuple(sorted(findings, key=lambda one: (order[one.level], one.column))),
            self.query,
            selected,
        )

    def find_faults(self) -> list[str]:
        """In short, for whoever runs a simulation: what is wrong with columns, and rules that concern nobody."""
        found = [one for one in self._find_in_columns() if one.level == "fault"]
        if self.policy.graphs() is not None:
            found += self._constrain()[1]
        return [f"{one.column}: {one.what}" if one.column else one.what for one in found]

    @cached_property
    def _wanted(self) -> list[str]:
        """The columns that matter: the dictionary's and those asked about; without either all there are."""
        wanted = dict.fromkeys([*self.dictionary, *self.asked, *([self.target] if self.target else [])])
        return list(wanted) if self.dictionary or self.asked else list(self.records.names)

    def _find_absent(self) -> Iterator[_CheckFinding]:
        for name in self._wanted:
            if name in self.problems:
                yield _CheckFinding("fault", self.problems[name], name)
            elif name not in self.records:
                rest = [other for other in self.records.names if other not in self._wanted]
                yield _CheckFinding(
                    "fault", f"is not in the table{nearest(name, rest) or ';'} map it from a column", name
                )
        for name, problem in self.problems.items():
            if name not in self._wanted:
                yield _CheckFinding("odd", problem, name)
        if self.dictionary:
            unknown = [name for name in self.records.names if name not in self._wanted]
            if unknown:
                names = ", ".join(unknown[:SHOWN]) + (
                    f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
                )
                yield _CheckFinding("odd", f"not in the dictionary, and so no part of the study: {names}")

    def _find_in_columns(self) -> Iterator[_CheckFinding]:
        for name in self._wanted:
            if name not in self.records:
                continue
            column, entry = self.records[name], self.dictionary.get(name)
            known = present(self.records, name)
            if not known.any():
                yield _CheckFinding("fault" if entry else "odd", "is missing for everyone", name)
                continue
            absent = 1 - float(known.mean())
            if absent > MANY_MISSING:
                yield _CheckFinding("odd", f"is missing for {absent:.0%} of the patients", name)
            if len(known) > 1 and _is_constant(column):
                yield _CheckFinding("odd", f"is the same for everyone ({say_held(column)})", name)
            if isinstance(column, Coded) and holds_measurements(column):
                yield _CheckFinding(
                    "fault", f"holds numbers and {_say_odd_texts(column)}: name what is missing", name
                )
            if entry is not None and entry.type == "number":
                yield from _find_outside(name, read_as_numbers(column), entry)
            else:
                yield from _find_unlisted(name, column, self._listed(name, entry))

    def _listed(self, name: str, entry: DictionaryEntry | None) -> set[str]:
        if name in self.values:
            return {label(value) for value in self.values[name]}
        return set() if entry is None else set(entry.values)

    def _find_in_rows(self) -> Iterator[_CheckFinding]:
        # Of the two halves of a hash only the first tells equal rows apart.
        alike = len(self.records) - len(np.unique(self.records.tell_apart()[1]))
        if alike:
            rows = "1 row says" if alike == 1 else f"{alike} rows say"
            yield _CheckFinding(
                "odd", f"{rows} the same as an earlier one in every column: is a patient there twice?"
            )

    def _constrain(self) -> tuple[View | None, list[_CheckFinding]]:
        try:
            view = View(self.records, self.policy, STAND_IN_SECRET)
        except (PolicyError, RecordsError) as error:
            return None, [_CheckFinding("fault", f"the policy does not fit: {error}")]
        graphs = self.policy.graphs(STAND_IN_SECRET)
        idle = [] if graphs is None else explain_idle(self.records, graphs, view.idle)
        return view, [_CheckFinding("odd", f"the policy's {sentence}") for sentence in idle]

    def _find_hidden(self, view: View) -> Iterator[_CheckFinding]:
        for name in self._wanted if self.dictionary or self.asked else ():
            if name in view.hidden:
                why = view.hidden[name]
                found = why == "identifies patients" and identifies(name, self.records[name], Policy())
                hint = (
                    f', since nearly every patient has another; if it does not, [release] allow = ["{name}"]'
                )
                yield _CheckFinding(
                    "fault", f"does not exist for the study: {why}{hint if found else ''}", name
                )

    def _select(self, view: View) -> tuple[int | None, list[_CheckFinding]]:
        """How many patients the query leaves, of those whom the policy does."""
        try:
            query = Query.parse(self.query)
            records = view.records
            stated = all(records[name].by_itself for name in query.attributes if name in records)
            mask = query.mask(read_as_asked(records, query) if stated else records)
        except QueryError as error:
            return None, [_CheckFinding("fault", f"the query does not fit: {error}")]
        if self.target and self.target in view.records:
            mask = mask & present(view.records, self.target)
        selected = int(mask.sum())
        if selected < self.policy.minimum_patients:
            least = self.policy.minimum_patients
            return selected, [
                _CheckFinding(
                    "fault",
                    f"the query leaves {selected} patients, and the policy answers about {least} at least",
                )
            ]
        return selected, []

    def _look(self, name: str) -> _ColumnCheck:
        column, entry = self.records[name], self.dictionary.get(name)
        known = int(present(self.records, name).sum())
        shape = (name, entry, known, len(column) - known)
        if isinstance(column, Numbers):
            numbers = column.numbers[np.isfinite(column.numbers)]
            if not numbers.size:
                return _ColumnCheck(*shape, "missing for everyone")
            low, first, middle, third, high = np.quantile(numbers, [0, 0.25, 0.5, 0.75, 1])
            counts, _ = np.histogram(
                numbers, bins=BINS, range=(low, high) if low < high else (low - 0.5, high + 0.5)
            )
            summary = f"median {middle:.4g} ({first:.4g} to {third:.4g}), all from {low:.4g} to {high:.4g}"
            ends = (float(low), float(high))
            return _ColumnCheck(*shape, summary, tuple(("", int(count)) for count in counts), ends)
        counts = np.bincount(column.codes, minlength=len(column.values) + 1)[1:]
        places = np.argsort(-counts, kind="stable")[:MOST_BARS]
        bars = tuple((label(column.values[place]), int(counts[place])) for place in places if counts[place])
        return _ColumnCheck(*shape, say_held(column), bars)


def _is_constant(column: Column) -> bool:
    if isinstance(column, Numbers):
        known = column.numbers[~np.isnan(column.numbers)]
        return bool(known.size) and bool(known.min() == known.max())
    return int(np.count_nonzero(np.bincount(column.codes, minlength=1)[1:])) == 1


def _say_odd_texts(column: Coded) -> str:
    """The texts among numbers."""
    odd = [label(value) for value in column.values if np.isnan(measure(value))]
    return ", ".join(map(repr, odd[:SHOWN]))


def _find_unlisted(name: str, column: Column, listed: set[str]) -> Iterator[_CheckFinding]:
    """Values of a code that nobody expects."""
    if not listed or isinstance(column, Numbers):
        return
    counts = np.bincount(column.codes, minlength=len(column.values) + 1)[1:]
    unlisted = [
        (int(count), label(value))
        for value, count in zip(column.values, counts, strict=True)
        if count and label(value) not in listed
    ]
    if not unlisted:
        return
    total = sum(count for count, _ in unlisted)
    names = ", ".join(
        f"{_shorten(value)!r} ({count})" for count, value in sorted(unlisted, reverse=True)[:SHOWN]
    )
    known = ", ".join(_shorten(value) for value in sorted(listed)[:SHOWN])
    more = f" and {len(unlisted) - SHOWN} more" if len(unlisted) > SHOWN else ""
    none = " and none of those listed" if total == int(counts.sum()) else ""
    yield _CheckFinding(
        "fault",
        f"has values that are not listed: {names}{more}{none}; listed are {known}; recode "
        "them in the map, or name them as missing",
        name,
    )


def _shorten(value: str) -> str:
    """A value as a sentence can hold it."""
    return value if len(value) <= LONGEST else f"{value[:LONGEST]}..."


def _find_outside(name: str, numbers: NDArray[np.float64], entry: DictionaryEntry) -> Iterator[_CheckFinding]:
    """Numbers that are not plausible; where many are, perhaps another unit."""
    if entry.range is None:
        return
    known = numbers[~np.isnan(numbers)]
    low, high = entry.range
    outside = known[(known < low) | (known > high)]
    if not outside.size:
        return
    share = outside.size / known.size
    plausible = f"plausible is {entry.say_range()}"
    if share <= MANY_OUTSIDE:
        some = ", ".join(f"{number:g}" for number in np.unique(outside)[:SHOWN])
        number = "1 patient" if outside.size == 1 else f"{outside.size} patients"
        yield _CheckFinding("odd", f"is not plausible for {number} ({some}); {plausible}", name)
        return
    median = float(np.median(known))
    units = find_likely_units(median, entry.unit, entry.range, entry.molar_mass)
    hint = "is it another unit, or a code for missing?"
    if units:
        hint = f'it would be, if this were {" or ".join(units)}: say so in the map, unit = "{units[0]}"'
    yield _CheckFinding(
        "fault",
        f"is not plausible for {share:.0%} of the patients: the median is {median:.4g}, and {plausible}; {hint}",
        name,
    )


WIDTH, TALL, BAR = 320, 60, 16
NAMES = 120
PLAUSIBLE = "#e3f1ea"


def render_check(checks: Sequence[TableCheck], title: str) -> str:
    """The page of some tables' checks."""
    tables = [
        {
            "check": check,
            "columns": [
                {
                    "column": column,
                    "findings": check.about(column.name),
                    "picture": markupsafe.Markup(_draw_column(column)) if column.bars else "",
                }
                for column in check.columns
            ],
        }
        for check in checks
    ]
    return render("check_page.html.jinja", title=title, tables=tables)


def _draw_column(column: _ColumnCheck) -> str:
    """How many patients have what: a histogram of a number, its plausible range behind it, or a bar for each value."""
    return _draw_numbers(column, *column.ends) if column.ends is not None else _draw_values(column)


def _draw_numbers(column: _ColumnCheck, low: float, high: float) -> str:
    most = max(count for _, count in column.bars)
    first, last = (low, high) if low < high else (low - 0.5, high + 0.5)
    begin, end = first, last
    plausible = None if column.entry is None else column.entry.range
    if plausible is not None:
        begin, end = min(first, plausible[0]), max(last, plausible[1])

    def place(value: float) -> float:
        return WIDTH * (value - begin) / (end - begin)

    parts = []
    if plausible is not None:
        x, width = place(plausible[0]), place(plausible[1]) - place(plausible[0])
        parts.append(draw("rect", x=x, y=0, width=width, height=TALL, fill=PLAUSIBLE))
    step = (last - first) / len(column.bars)
    wide = max(place(first + step) - place(first) - 1, 1.5)
    for number, (_, count) in enumerate(column.bars):
        box = {"x": place(first + number * step), "y": TALL - TALL * count / most, "width": wide}
        said = f"{count:,} patients"
        parts.append(draw("rect", **box, height=TALL * count / most, fill=COLOURS[0], title=said))
    parts.append(draw("line", x1=0, y1=TALL, x2=WIDTH, y2=TALL, stroke=RULE))
    for value, anchor in ((begin, "start"), (end, "end")):
        parts.append(draw("text", f"{value:.4g}", x=place(value), y=TALL + 14, text_anchor=anchor, fill=SOFT))
    return draw_frame(f"Patients by {column.name}", parts, WIDTH, TALL + 18)


def _draw_values(column: _ColumnCheck) -> str:
    most = max(count for _, count in column.bars)
    listed = {} if column.entry is None else column.entry.values
    parts = []
    for number, (name, count) in enumerate(column.bars):
        y = number * BAR
        width = max((WIDTH - NAMES - 50) * count / most, 1)
        colour = COLOURS[1] if listed and name not in listed else COLOURS[0]
        text = name if len(name) <= 16 else name[:15] + "…"
        parts.append(draw("text", text, x=NAMES - 6, y=y + 12, text_anchor="end"))
        parts.append(draw("rect", x=NAMES, y=y + 2, width=width, height=BAR - 4, fill=colour))
        parts.append(draw("text", f"{count:,}", x=NAMES + width + 5, y=y + 12, fill=SOFT))
    return draw_frame(f"Patients by {column.name}", parts, WIDTH, len(column.bars) * BAR + 4)
