"""The terms of a rule model, and how questions carry them (docs/methods.md, sections 2.1 and 2.4).

Columns are, in this order: rules (0 or 1), linear terms (winsorised, as multiples of a shared scale, 0 where missing)
and steps (one height for each code of an attribute). `coef_` multiplies exactly these.

Rules have one canonical form, so that logically equal rules are one. Every attribute has finitely many codes: 0 is
missing; a number has one code for each interval between its shared cutoffs, a category one for each value and a last
one for all others. A condition is the set of codes that fulfil it, written as rising runs (attribute, low, high, low,
high, ...); a rule is a conjunction of conditions on different attributes, in the order of attributes, and none of them
is fulfilled by everybody. Two such rules hold for the same patients, whoever they may be, if and only if they are
equal. `unite_rules` goes further: over the codes that patients have, equal and complementary rules are one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Annotated

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.attributes import MISSING, Attribute, check_attributes, find_runs, say_edge
from concilium.protocol.messages import decode, encode
from concilium.records.columns import Value, label

Condition = tuple[int, ...]
Rule = tuple[Condition, ...]

# Each different condition is looked up in a table of its attribute's codes.
MOST_CELLS = 1 << 26
MOST_COLUMNS = 100_000
# Winsorising bounds are this far apart at most, in units of the scale, so that sums keep their precision.
WIDEST = 1000.0


def check_coded(attributes: Sequence[Attribute]) -> None:
    """MessageError unless attributes are well formed, with a code for each patient: missing, and any other value."""
    check_attributes(attributes)
    if any(a.of or not (a.missing and a.other) for a in attributes):
        raise MessageError(
            "an attribute of a rule model has a code for what is missing and for any other value"
        )


def _write_condition(attribute: int, codes: Iterable[int]) -> Condition:
    """The condition that exactly these codes fulfil."""
    return (attribute, *(end for run in find_runs(set(codes)) for end in run))


def read_codes(condition: Condition) -> set[int]:
    """The codes that fulfil a condition."""
    runs = zip(condition[1::2], condition[2::2], strict=True)
    return {code for low, high in runs for code in range(low, high + 1)}


def write_rule(allowed: Mapping[int, set[int]], sizes: Sequence[int]) -> Rule:
    """The rule with these codes for each attribute, without conditions that everybody fulfils."""
    return tuple(
        _write_condition(attribute, codes)
        for attribute, codes in sorted(allowed.items())
        if len(codes) < sizes[attribute]
    )


def unite_rules(
    rules: Iterable[Rule],
    attributes: Sequence[Attribute],
    counts: Sequence[NDArray[np.int64]],
    *,
    most_conditions: int,
    most_values: int,
) -> list[Rule]:
    """The different rules over codes that occur, in canonical order; `counts` has the patients with each code.

    Codes that nobody has decide nothing, so that `smoke = n` and `smoke is not y` are one rule where no value is
    missing. Of a condition and its complement the one of fewer patients stays. Rules of more conditions or named values
    than a reader follows are left out.
    """
    told = [_Told(attribute, count) for attribute, count in zip(attributes, counts, strict=True)]
    united: set[Rule] = set()
    for rule in rules:
        settled = [told[condition[0]].settle(condition) for condition in rule]
        kept = tuple(filter(None, settled))
        if not kept or len(kept) > most_conditions or None in settled:
            continue
        if len(kept) == 1:
            kept = (told[kept[0][0]].take_fewer(kept[0]),)
        if all(told[condition[0]].count_named(condition) <= most_values for condition in kept):
            united.add(kept)
    return sorted(united)


class _Told:
    """An attribute with how many patients have each code: over those that occur, conditions are written in one way."""

    def __init__(self, attribute: Attribute, counts: NDArray[np.int64]) -> None:
        self._attribute, self._counts = attribute, counts
        self._codes = frozenset(np.flatnonzero(counts > 0).tolist())
        self._settled: dict[Condition, Condition | None] = {}
        self._fewer: dict[Condition, Condition] = {}
        self._named: dict[Condition, int] = {}

    def settle(self, condition: Condition) -> Condition | None:
        """The condition as it is written over codes that occur: empty where everybody fulfils it, None where nobody
        does."""
        if condition not in self._settled:
            codes = self._codes & read_codes(condition)
            written = () if codes == self._codes else self._write(condition[0], codes)
            self._settled[condition] = written if codes else None
        return self._settled[condition]

    def take_fewer(self, condition: Condition) -> Condition:
        """The condition, or its complement where fewer patients fulfil that; rather the one without missing values."""
        if condition not in self._fewer:
            codes = self._codes & read_codes(condition)
            sides = [codes, self._codes - codes]
            fewer = min(
                sides, key=lambda side: (MISSING in side, self._counts[sorted(side)].sum(), sorted(side))
            )
            self._fewer[condition] = self._write(condition[0], fewer)
        return self._fewer[condition]

    def count_named(self, condition: Condition) -> int:
        """How many values of a category a reader is told."""
        if self._attribute.numeric:
            return 0
        if condition not in self._named:
            codes, values = read_codes(condition), range(1, self._attribute.size - 1)
            excludes = self._attribute.size - 1 in codes
            self._named[condition] = sum((code in codes) != excludes for code in values)
        return self._named[condition]

    def _write(self, index: int, codes: frozenset[int]) -> Condition:
        """The condition that patients with these codes fulfil. Codes that nobody has go with their neighbours; among
        values, where all go that are not named, and the fewer are named."""
        strange = set(range(1, self._attribute.size)) - self._codes
        known, others = codes - {MISSING}, self._codes - codes - {MISSING}
        if not known or not others:  # whether a value is known, and nothing else
            added = strange if known else set()
        elif self._attribute.numeric:
            held = sorted(self._codes - {MISSING})
            added = {code for code in strange if min(held, key=lambda one: (abs(one - code), one)) in codes}
        else:
            added = strange if len(others) < len(known) else set()
        return _write_condition(index, codes | added)


def check_rules(rules: Sequence[Rule], attributes: Sequence[Attribute]) -> None:
    """MessageError unless every rule is in canonical form over these attributes."""
    lasts = [attribute.size - 1 for attribute in attributes]
    listed = list(chain.from_iterable(rules))
    fine = set(_share(listed).values())
    for condition in fine:
        _check_condition(condition, lasts)
    lengths = np.fromiter(map(len, rules), dtype=np.int64, count=len(rules))
    if not lengths.all():
        raise MessageError("a rule needs a condition")
    about = np.fromiter(map(itemgetter(0), listed), dtype=np.int64, count=len(listed))
    rising = np.diff(about) > 0
    rising[lengths.cumsum()[:-1] - 1] = True  # from one rule to the next
    if not rising.all():
        raise MessageError("a rule is not in canonical form: its conditions are out of order")
    if sum(lasts[condition[0]] + 1 for condition in fine) > MOST_CELLS:
        raise MessageError("the rules have too many different conditions on attributes with many values")


def _share(listed: Sequence[Condition]) -> dict[int, Condition]:
    """Conditions by their id. Rules that were sent share theirs, and to hash a long one again for each of them would
    take long."""
    return dict(zip(map(id, listed), listed, strict=True))


def _check_condition(condition: Condition, lasts: Sequence[int]) -> None:
    """MessageError unless a condition is made of rising runs of its attribute's codes; `lasts` are the last codes."""
    if len(condition) < 3 or len(condition) % 2 == 0 or not 0 <= condition[0] < len(lasts):
        raise MessageError("a rule's condition is not in canonical form")
    last, at = lasts[condition[0]], -2
    for low, high in zip(condition[1::2], condition[2::2], strict=True):
        if not at + 1 < low <= high <= last:
            raise MessageError("a rule's condition is not in canonical form")
        at = high
    if condition[1:] == (0, last):
        raise MessageError("a rule has a condition that everybody fulfils")


def tabulate(conditions: Sequence[Condition], size: int) -> NDArray[np.bool_]:
    """For conditions on one attribute, and each of its codes, whether it fulfils the condition: [condition, code]."""
    runs = [(row, run) for row, condition in enumerate(conditions) for run in range(1, len(condition), 2)]
    table = np.zeros((len(conditions), size + 1), dtype=np.int8)
    rows = [row for row, _ in runs]
    table[rows, [conditions[row][run] for row, run in runs]] = 1
    table[rows, [conditions[row][run + 1] + 1 for row, run in runs]] = -1
    return np.cumsum(table[:, :-1], axis=1, dtype=np.int8).astype(np.bool_)


def say_rule(rule: Rule, attributes: Sequence[Attribute]) -> str:
    """A rule in words: `age >= 57 & sex = f`."""
    return " & ".join(_say_condition(condition, attributes[condition[0]]) for condition in rule)


def _say_condition(condition: Condition, attribute: Attribute) -> str:
    codes = read_codes(condition)
    present = codes - {MISSING}
    if not present:
        return f"{attribute.name} is missing"
    if len(present) == attribute.size - 1:
        return f"{attribute.name} is not missing"
    if not attribute.numeric:
        return _say_values(codes, attribute.name, attribute.values)
    text = _say_intervals(present, attribute)
    return f"({text} or missing)" if MISSING in codes else text


def _say_intervals(codes: set[int], attribute: Attribute) -> str:
    last = attribute.size - 1
    parts = []
    for low, high in find_runs(codes):
        if low == 1:
            parts.append(f"{attribute.name} < {_say_edge(attribute, high - 1)}")
        elif high == last:
            parts.append(f"{attribute.name} >= {_say_edge(attribute, low - 2)}")
        else:
            parts.append(
                f"{_say_edge(attribute, low - 2)} <= {attribute.name} < {_say_edge(attribute, high - 1)}"
            )
    return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"


def _say_edge(attribute: Attribute, index: int) -> str:
    """A date, or an edge with six digits, or as many more as tell it from its neighbours: 100000.5 is not 100000."""
    edges = attribute.edges
    edge = edges[index]
    if attribute.date:
        return say_edge(edge, date=True)
    beside = edges[max(0, index - 1) : index + 2]
    room = 1e-3 * min((abs(edge - other) for other in beside if other != edge), default=1e-9 * abs(edge))
    texts = (f"{edge:.{digits}g}" for digits in range(6, 18))
    return next(text for text in texts if abs(float(text) - edge) <= room)


def _say_values(codes: set[int], name: str, values: Sequence[Value]) -> str:
    """`not` takes in whatever is known and not named; where missing values fulfil it too, it says so."""
    named = [code for code in range(1, len(values) + 1) if (code in codes) != (len(values) + 1 in codes)]
    labels = [label(values[code - 1]) for code in named]
    if len(values) + 1 in codes:
        text = f"{name} is not {labels[0]}" if len(labels) == 1 else f"{name} not in {{{', '.join(labels)}}}"
    else:
        text = f"{name} = {labels[0]}" if len(labels) == 1 else f"{name} in {{{', '.join(labels)}}}"
    return f"({text} or missing)" if MISSING in codes else text


@dataclass(frozen=True)
class Conditions:
    """The different conditions of rules: of each attribute the places of its own, with a table [condition, code] of
    what fulfils them. Rule after rule `listed` has the places of its conditions, up to its one of `ends`."""

    count: int
    of: dict[int, tuple[list[int], NDArray[np.bool_]]]
    listed: NDArray[np.int64]
    ends: NDArray[np.int64]


def list_conditions(rules: Sequence[Rule], sizes: Sequence[int]) -> Conditions:
    """The conditions of these rules, over attributes with so many codes."""
    place: dict[Condition, int] = {}
    listed = list(chain.from_iterable(rules))
    place_of = {key: place.setdefault(condition, len(place)) for key, condition in _share(listed).items()}
    own: dict[int, list[Condition]] = {}
    for condition in place:
        own.setdefault(condition[0], []).append(condition)
    return Conditions(
        len(place),
        {
            index: ([place[condition] for condition in conditions], tabulate(conditions, sizes[index]))
            for index, conditions in own.items()
        },
        np.fromiter(map(place_of.__getitem__, map(id, listed)), dtype=np.int64, count=len(listed)),
        np.cumsum(list(map(len, rules)), dtype=np.int64),
    )


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A number held between `low` and `high`, as the distance from `center` in units of 1/`scale`."""

    attribute: int
    low: float
    high: float
    center: float
    scale: float


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A height for each code of an attribute: a shape function, learned before."""

    attribute: int
    heights: tuple[float, ...]


class RuleTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """What the columns of a model are, over which attributes. `norm` scales each patient's row down to that length
    where it is longer, as a private fit needs it."""

    attributes: tuple[Attribute, ...]
    rules: tuple[Rule, ...] = ()
    lines: tuple[Line, ...] = ()
    steps: tuple[Steps, ...] = ()
    norm: float | None = None

    def __len__(self) -> int:
        return len(self.rules) + len(self.lines) + len(self.steps)

    @functools.cached_property
    def in_order(self) -> tuple[Rule | Line | Steps, ...]:
        """The term of each column."""
        return (*self.rules, *self.lines, *self.steps)

    @functools.cached_property
    def extent(self) -> tuple[int, int, int]:
        """How many conditions the rules have, how many of these are different, and how many cells those go over."""
        different = _share(list(chain.from_iterable(self.rules))).values()
        sizes = [attribute.size + 1 for attribute in self.attributes]
        return sum(map(len, self.rules)), len(different), sum(sizes[condition[0]] for condition in different)

    @functools.cached_property
    def conditions(self) -> Conditions:
        """The different conditions of the rules."""
        return list_conditions(self.rules, [attribute.size for attribute in self.attributes])

    def check(self) -> None:
        """MessageError unless all of it fits together."""
        if len(self) > MOST_COLUMNS:
            raise MessageError(f"a model may have at most {MOST_COLUMNS} terms; this one has {len(self)}")
        check_coded(self.attributes)
        check_rules(self.rules, self.attributes)
        for terms in (self.lines, self.steps):
            # What is no bit is a number for every patient: there are no more of those than the table has.
            if len({term.attribute for term in terms}) != len(terms):
                raise MessageError("an attribute has two linear terms, or two shapes")
        for line in self.lines:
            self._check_line(line)
        for steps in self.steps:
            self._check_steps(steps)
        if self.norm is not None and not 0 < self.norm <= WIDEST:
            raise MessageError("the norm of a patient's row is out of range")

    def _check_line(self, line: Line) -> None:
        if not 0 <= line.attribute < len(self.attributes) or not self.attributes[line.attribute].numeric:
            raise MessageError("a linear term needs a number")
        span = [line.scale * (end - line.center) for end in (line.low, line.high)]
        if not (line.low <= line.center <= line.high and line.scale > 0 and _tame(span)):
            raise MessageError("the bounds of a linear term are out of range")

    def _check_steps(self, steps: Steps) -> None:
        if not 0 <= steps.attribute < len(self.attributes):
            raise MessageError("a shape is of no attribute of the model")
        if len(steps.heights) != self.attributes[steps.attribute].size or not _tame(steps.heights):
            raise MessageError("a shape does not fit its attribute")


def _tame(heights: Sequence[float]) -> bool:
    return all(-WIDEST <= height <= WIDEST for height in heights)


class _SentTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Terms on their way: thousands of rules share few conditions, which are listed once; a rule is their places."""

    attributes: tuple[Attribute, ...]
    conditions: tuple[Condition, ...]
    # Refused before anything is made of it: a rule may be two bytes here, and takes sixty in memory.
    rules: Annotated[tuple[tuple[int, ...], ...], msgspec.Meta(max_length=MOST_COLUMNS)]
    lines: tuple[Line, ...]
    steps: tuple[Steps, ...]
    norm: float | None


def write_terms(terms: RuleTerms) -> bytes:
    """Terms as a question carries them."""
    place: dict[Condition, int] = {}
    listed = list(chain.from_iterable(terms.rules))
    place_of = {key: place.setdefault(condition, len(place)) for key, condition in _share(listed).items()}
    places = map(place_of.__getitem__, map(id, listed))
    rules = tuple([tuple(islice(places, len(rule))) for rule in terms.rules])
    return encode(_SentTerms(terms.attributes, tuple(place), rules, terms.lines, terms.steps, terms.norm))


@functools.lru_cache(maxsize=8)
def read_terms(data: bytes) -> RuleTerms:
    """The terms that a question carries, checked. Every question of a fit carries the same ones, so that a site needs
    no memory of earlier questions; what is remembered here only saves the time to read them again."""
    sent = decode(data, _SentTerms)
    last = len(sent.conditions) - 1
    places = set(chain.from_iterable(sent.rules))
    if places and not 0 <= min(places) <= max(places) <= last:
        raise MessageError("a rule has a condition that is not listed")
    rules = tuple([tuple(map(sent.conditions.__getitem__, rule)) for rule in sent.rules])
    terms = RuleTerms(sent.attributes, rules, sent.lines, sent.steps, sent.norm)
    terms.check()
    return terms


def list_attributes(term: Rule | Line | Steps) -> list[int]:
    """The attributes that a term looks at."""
    return [condition[0] for condition in term] if isinstance(term, tuple) else [term.attribute]


def find_ends(term: Rule | Line | Steps) -> tuple[float, float]:
    """The least and the greatest value of a column."""
    if isinstance(term, Line):
        return term.scale * (term.low - term.center), term.scale * (term.high - term.center)
    return (0.0, 1.0) if isinstance(term, tuple) else (min(term.heights), max(term.heights))


def keep(terms: RuleTerms, columns: Sequence[int]) -> RuleTerms:
    """The terms with these columns only, and the attributes that they need."""
    kept = [terms.in_order[column] for column in columns]
    used = sorted({attribute for term in kept for attribute in list_attributes(term)})
    place = {attribute: index for index, attribute in enumerate(used)}
    return RuleTerms(
        attributes=tuple(terms.attributes[index] for index in used),
        rules=tuple(tuple((place[c[0]], *c[1:]) for c in rule) for rule in kept if isinstance(rule, tuple)),
        lines=tuple(replace(t, attribute=place[t.attribute]) for t in kept if isinstance(t, Line)),
        steps=tuple(replace(t, attribute=place[t.attribute]) for t in kept if isinstance(t, Steps)),
        norm=terms.norm,
    )
