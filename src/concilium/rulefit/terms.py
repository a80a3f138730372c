"""The terms of a rule model, and how questions carry them (docs/methods.md, section 2.1).

Columns are, in this order: rules (0 or 1), linear terms (winsorised, as multiples of a shared scale, 0 where missing)
and steps (one height for each code of an attribute). `coef_` multiplies exactly these.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain, islice
from typing import Annotated

import msgspec
from msgspec.structs import replace

from concilium.errors import MessageError
from concilium.protocol.attributes import Attribute
from concilium.protocol.messages import decode, encode
from concilium.rulefit.packed import Conditions, list_conditions
from concilium.rulefit.rules import Condition, Rule, check_coded, check_rules, share

MOST_COLUMNS = 100_000
# Winsorising bounds are this far apart at most, in units of the scale, so that sums keep their precision.
WIDEST = 1000.0


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
        different = share(list(chain.from_iterable(self.rules))).values()
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
            if not 0 <= steps.attribute < len(self.attributes):
                raise MessageError("a shape is of no attribute of the model")
            if len(steps.heights) != self.attributes[steps.attribute].size or not _tame(steps.heights):
                raise MessageError("a shape does not fit its attribute")
        if self.norm is not None and not 0 < self.norm <= WIDEST:
            raise MessageError("the norm of a patient's row is out of range")

    def _check_line(self, line: Line) -> None:
        if not 0 <= line.attribute < len(self.attributes) or not self.attributes[line.attribute].numeric:
            raise MessageError("a linear term needs a number")
        span = [line.scale * (end - line.center) for end in (line.low, line.high)]
        if not (line.low <= line.center <= line.high and line.scale > 0 and _tame(span)):
            raise MessageError("the bounds of a linear term are out of range")


def _tame(heights: Sequence[float]) -> bool:
    return all(-WIDEST <= height <= WIDEST for height in heights)


class SentTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    place_of = {key: place.setdefault(condition, len(place)) for key, condition in share(listed).items()}
    places = map(place_of.__getitem__, map(id, listed))
    rules = tuple([tuple(islice(places, len(rule))) for rule in terms.rules])
    return encode(SentTerms(terms.attributes, tuple(place), rules, terms.lines, terms.steps, terms.norm))


@functools.lru_cache(maxsize=8)
def read_terms(data: bytes) -> RuleTerms:
    """The terms that a question carries, checked. Every question of a fit carries the same ones, so that a site needs
    no memory of earlier questions; what is remembered here only saves the time to read them again."""
    sent = decode(data, SentTerms)
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
