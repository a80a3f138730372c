"""What the model file of a discovery holds: the rules that many patients have, how many, and who was protected.

It also holds what the rules say of a patient. Where a study asked, each rule adds the logarithm of how much
likelier it holds (or fails) with the outcome than without. Rules of one patient repeat each other, so the mean of
what they say counts, not the sum. What noise alone could have made says nothing. All of it is made from what was
released, so that it costs no more (docs/methods.md, section 6.12).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.models.explanation import Explanation, Reason
from concilium.models.pictures import COLOURS, INK, RULE, SOFT, draw_frame, element_text
from concilium.models.threshold import Decided, choose_one
from concilium.records.series import Series
from concilium.temporal.discovery_search import DiscoveredRule, ParameterEstimate
from concilium.temporal.formula import Formula
from concilium.temporal.parsing import parse
from concilium.temporal.printing import say_formula
from concilium.temporal.rule_vote import cast_votes

WIDE = 100


class _FoundParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    parameters: list[_FoundParameter] = msgspec.field(default_factory=list)
    if_true: float | None = None
    if_false: float | None = None

    @property
    def formula(self) -> Formula:
        """The rule as a formula (`concilium.stl`)."""
        return _read_formula(self.text)

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
            _read_formula(rule.text)
            if not 0 <= rule.prevalence <= 1 or (rule.if_true is None) != (rule.if_false is None):
                raise ValueError(f"{rule.text}: a rule has a share of the patients, and two weights or none")

    @property
    def classes(self) -> list[int]:
        """Without the outcome, and with it."""
        return [0, 1]


@lru_cache(maxsize=1 << 12)
def _read_formula(text: str) -> Formula:
    return parse(text)


def write_rules(rules: Sequence[DiscoveredRule]) -> list[FoundRule]:
    """Rules as the model file holds them, the most frequent first."""
    return [
        FoundRule(
            text=str(rule.formula),
            structure=str(rule.structure),
            prevalence=rule.prevalence,
            interval=rule.interval,
            parameters=[_write_parameter(estimate) for estimate in rule.parameters],
        )
        for rule in rules
    ]


def _write_parameter(estimate: ParameterEstimate) -> _FoundParameter:
    bins = estimate.bins
    return _FoundParameter(
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


WIDTH, NAMES, BAR, LINE = 780, 330, 12, 24
MOST_BARS = 20
LETTERS = 46


def draw_prevalences(rules: Sequence[FoundRule], outcome: str, *, whole: bool = False) -> str:
    """A bar for each rule, the most frequent first, with its 95 % interval as a line; `whole`: all of them."""
    shown = rules if whole else rules[:MOST_BARS]
    room = WIDTH - NAMES - 150
    parts, top = [], 4.0
    for rule in shown:
        name = rule.text if len(rule.text) <= LETTERS else f"{rule.text[: LETTERS - 3]}..."
        low, high = (NAMES + share * room for share in rule.interval)
        middle = top + BAR / 2
        label = f"{rule.prevalence:.1%} ({rule.interval[0]:.1%} to {rule.interval[1]:.1%})"
        parts += [
            f'<text x="{NAMES - 10}" y="{top + 10:g}" text-anchor="end">{element_text(name)}</text>',
            f'<rect x="{NAMES}" y="{top:g}" width="{max(1.0, rule.prevalence * room):.1f}" height="{BAR}" '
            f'fill="{COLOURS[0]}"/>',
            f'<line x1="{low:.1f}" y1="{middle:g}" x2="{high:.1f}" y2="{middle:g}" stroke="{INK}" stroke-width="2"/>',
            f'<text x="{high + 8:.1f}" y="{top + 10:g}" fill="{SOFT}">{element_text(label)}</text>',
        ]
        top += LINE
    axis = f'<line x1="{NAMES}" y1="0" x2="{NAMES}" y2="{top:g}" stroke="{RULE}"/>'
    title = f"{outcome}: the share of patients who have each rule, with its 95 % interval"
    return draw_frame(title, [axis, *parts], WIDTH, top + 4)


SURE = 2.0
"""So many standard deviations from nothing, or a rule says nothing."""
MOST_SHOWN = 10


def weigh_rules(counts: NDArray[np.int64], deviation: float) -> list[tuple[float, float]]:
    """For each rule what it adds to the log odds where it holds and where it fails: [rule, 4] as in `AskRuleOutcomes`.

    Shares are held away from 0 and 1 by as many patients as noise could have made of nobody. A rule whose shares with
    and without the outcome differ by less than noise and sampling leave open says nothing.
    """
    weights = []
    spare = 0.5 + deviation
    for row in np.maximum(counts, 0).tolist():
        shares, variance = [], 0.0
        for holds, fails in (row[:2], row[2:]):
            everyone = holds + fails + 2 * spare
            share = (holds + spare) / everyone
            shares.append(share)
            variance += share * (1 - share) / everyone + (deviation / everyone) ** 2
        with_outcome, without = shares
        tells = abs(with_outcome - without) > SURE * math.sqrt(variance)
        if_true = math.log(with_outcome / without) if tells else 0.0
        if_false = math.log((1 - with_outcome) / (1 - without)) if tells else 0.0
        weights.append((round(if_true, 6), round(if_false, 6)))
    return weights


def _move_courses(body: DiscoveryBody, courses: Series) -> tuple[list[FoundRule], NDArray[np.float64]]:
    """The rules that can be judged, and what each adds for each patient, [patient, rule]: NaN where that is unknown."""
    rules = [rule for rule in body.rules if is_complete(rule)]
    if not rules:
        return [], np.zeros((len(courses), 0))
    votes = cast_votes([rule.formula for rule in rules], courses)
    if rules[0].if_true is None:
        shares = np.array([rule.prevalence for rule in rules])
        return rules, np.where(votes == 0, np.nan, (votes > 0) * shares)
    weights = np.array([[rule.if_false or 0.0, rule.if_true or 0.0] for rule in rules])
    moved = np.where(votes > 0, weights[:, 1], weights[:, 0])
    return rules, np.where(votes == 0, np.nan, moved)


def _count_telling(rules: list[FoundRule], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each patient how many of the rules that are known say anything of the outcome; one at least."""
    tells = np.array([bool(rule.if_true or rule.if_false) for rule in rules])
    count: NDArray[np.float64] = np.maximum((known & tells).sum(axis=1), 1).astype(np.float64)
    return count


def score_courses(body: DiscoveryBody, courses: Series) -> NDArray[np.float64]:
    """How much the rules speak for the outcome of each patient, between 0 and 1; a half where nothing is known."""
    rules, moved = _move_courses(body, courses)
    known = ~np.isnan(moved)
    total = np.where(known, moved, 0.0).sum(axis=1)
    if rules and rules[0].if_true is not None:
        chance: NDArray[np.float64] = 1 / (1 + np.exp(-total / _count_telling(rules, known)))
        return chance
    whole = (known * np.array([rule.prevalence for rule in rules])).sum(axis=1)
    return np.where(whole > 0, total / np.where(whole > 0, whole, 1), 0.5)


def explain_courses(body: DiscoveryBody, course: Series) -> Explanation:
    """The explanation of one patient."""
    rules, moved = _move_courses(body, course)
    likely = float(score_courses(body, course)[0])
    weighed = bool(rules) and rules[0].if_true is not None
    votes = cast_votes([rule.formula for rule in rules], course)[0] if rules else np.zeros(0)
    scale = float(_count_telling(rules, ~np.isnan(moved))[0]) if rules else 1.0
    reasons, silent = [], 0
    for place, rule in enumerate(rules):
        if votes[place] == 0:
            continue
        said = say_formula(rule.formula, body.step)
        condition = said if votes[place] > 0 else f"not: {said}"
        adds = float(moved[0, place]) / scale if weighed else None
        if adds == 0:
            silent += 1
            continue
        reasons.append(
            Reason(tuple(sorted(rule.formula.variables)), condition, moved=adds, support=rule.prevalence)
        )
    unknown = len(rules) - len(reasons) - silent
    if weighed:
        reasons.sort(key=lambda reason: -abs(reason.moved or 0.0))
    prediction = choose_one([1 - likely, likely], body.classes, body.decided)
    chance = likely if prediction else 1 - likely
    notes = []
    if silent:
        notes.append(
            f"{silent} of {len(rules)} rules say nothing of the outcome, by what noise leaves to be seen."
        )
    if unknown:
        notes.append(f"{unknown} of {len(rules)} rules cannot be judged with what is known.")
    sentences = (_say_first(body, prediction, likely, weighed), *_say_reasons(reasons, weighed), *notes)
    return Explanation(
        body.outcome, prediction, chance, tuple(reasons), sentences, base=0.5, notes=tuple(notes)
    )


def _say_first(body: DiscoveryBody, prediction: int, likely: float, weighed: bool) -> str:
    if weighed:
        return f"{body.outcome} = {prediction} ({likely:.0%} if it were as frequent as not)."
    return f"{body.outcome} = {prediction} (rules that hold: {likely:.0%} of all, by how many patients have them)."


def _say_reasons(reasons: list[Reason], weighed: bool) -> list[str]:
    if not reasons:
        return ["No rule speaks for or against it."]
    lines = []
    for place, reason in enumerate(reasons[:MOST_SHOWN], start=1):
        moved = f": odds x {math.exp(reason.moved):.2f}" if weighed and reason.moved is not None else ""
        lines.append(f"{place}. {reason.condition}{moved} ({reason.support:.1%} of patients have this rule).")
    rest = len(reasons) - MOST_SHOWN
    return [*lines, f"{rest} more."] if rest > 0 else lines
