"""What the model file of a discovery holds: the rules that many patients have, how many, and who was protected."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import msgspec

from concilium.models.threshold import Decided
from concilium.temporal.discovery_search import DiscoveredRule, ParameterEstimate
from concilium.temporal.formula import Formula
from concilium.temporal.parsing import parse

WIDE = 100


class FoundParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number or an interval of a rule: the one that stands for those that patients have, in words, and all that it
    could be at 95 %, given the noise."""

    chosen: str
    candidates: list[str]


class FoundRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule with the share of the patients who have one like it, whatever its numbers.

    `interval` holds that share at 95 %, given the noise. `if_true` and `if_false` are what it adds to the log odds of
    the outcome where a patient fulfils and breaks it; None where the study did not ask for that.
    """

    text: str
    structure: str
    prevalence: float
    interval: tuple[float, float]
    parameters: list[FoundParameter] = msgspec.field(default_factory=list)
    if_true: float | None = None
    if_false: float | None = None

    @property
    def formula(self) -> Formula:
        """The rule as a formula (`concilium.stl`)."""
        return read_formula(self.text)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.text}  ({self.prevalence:.1%}, {low:.1%} to {high:.1%})"


class DiscoveryBody(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """`protects` says who is protected from whom, at what price; `patients` is how many there are, as it was estimated;
    `asked` are the questions with what they cost. A patient is judged by the last `window` of a stay, with values
    carried forward for `carry`, or from its beginning on where there is no window.
    """

    outcome: str
    query: str
    trust: str
    threshold: str
    epsilon: str
    delta: str
    protects: str
    patients: float
    asked: list[str]
    step: str
    window: str | None
    carry: str
    rules: list[FoundRule]
    decided: Decided | None = None

    def __post_init__(self) -> None:
        if self.decided is not None:
            self.decided.check(self.classes)
        for rule in self.rules:
            read_formula(rule.text)
            if not 0 <= rule.prevalence <= 1 or (rule.if_true is None) != (rule.if_false is None):
                raise ValueError(f"{rule.text}: a rule has a share of the patients, and two weights or none")

    @property
    def classes(self) -> list[int]:
        """Without the outcome, and with it."""
        return [0, 1]


@lru_cache(maxsize=1 << 12)
def read_formula(text: str) -> Formula:
    return parse(text)


def write_rules(rules: Sequence[DiscoveredRule]) -> list[FoundRule]:
    """Rules as the model file holds them, the most frequent first."""
    return [
        FoundRule(
            text=str(rule.formula),
            structure=str(rule.structure),
            prevalence=rule.prevalence,
            interval=rule.interval,
            parameters=[write_parameter(estimate) for estimate in rule.parameters],
        )
        for rule in rules
    ]


def write_parameter(estimate: ParameterEstimate) -> FoundParameter:
    bins = estimate.bins
    return FoundParameter(
        bins.describe(estimate.chosen), [bins.describe(place) for place in estimate.candidates]
    )


def is_complete(rule: FoundRule) -> bool:
    """Whether it has no holes, so that it can be judged on a patient."""
    return not rule.formula.open_places


def write_table(body: DiscoveryBody) -> str:
    """The rules for terminals and logs, a line each."""
    threshold = float(Fraction(body.threshold))
    lines = [
        f"{body.outcome}: {len(body.rules)} rules that at least {threshold:.2%} of about {body.patients:,.0f} patients "
        "have"
    ]
    width = max((len(rule.text) for rule in body.rules), default=0)
    for rule in body.rules:
        low, high = rule.interval
        line = f"{rule.text.ljust(width)}  {rule.prevalence:7.2%}  ({low:.2%} to {high:.2%})"
        if rule.if_true is not None and rule.if_false is not None:
            line += f"  odds x {math.exp(rule.if_true):.2f} if so, x {math.exp(rule.if_false):.2f} if not"
        lines.append(line)
    return "\n".join([*lines, *textwrap.wrap(body.protects, WIDE)])
