"""What the model file of a discovery holds: the rules that many patients have, how many, and who was protected.

It also holds what the rules say of a patient, where a study asked: a logistic model of which rules hold. Without that
there is no prediction; the rules remain, and a similarity. All of it is made from what was released, so that it costs
no more (docs/methods.md, section 6.12).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.models.explanation import Explanation, Reason, say_odds, say_risk, say_risk_interval
from concilium.models.intervals import Interval, find_unentered, log_odds_interval
from concilium.models.pictures import COLOURS, INK, RULE, SOFT, draw, draw_frame
from concilium.models.prediction import AnySeries, lay_out_courses
from concilium.models.threshold import Decided, choose_one
from concilium.records.dictionary import DictionaryEntry, say_value
from concilium.records.series import Series
from concilium.records.series_times import count_steps
from concilium.temporal.discovery_search import DiscoveredRule, ParameterEstimate
from concilium.temporal.evaluation import count_points
from concilium.temporal.formula import Formula
from concilium.temporal.learning import cast_votes
from concilium.temporal.outcome_fit import FittedWeights, RuleEffect
from concilium.temporal.parsing import parse, say_formula, say_time
from concilium.temporal.rule_questions import carry_values, is_within_window
from concilium.temporal.rule_task import RuleTask, hold_latest, list_conditions, say_condition

WIDE = 100


class _FoundParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number or an interval of a rule: the one that stands for those that patients have, in words, and all that it
    could be at 95 %, given the noise."""

    chosen: str
    candidates: list[str]


NO_INTERVAL = "There is no interval of this risk: this model file does not say how sure its weights are."
ABOUT_RULES = "The interval is about all patients for whom the same rules hold. It includes the noise."
WITH_NOISE = "The interval includes the noise."


class FoundRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule that many patients have, and what it says of the outcome.

    prevalence  the share of patients who have a rule of this form, whatever its numbers; `interval` holds it at 95 %
    share       the share of patients of whom the rule is true with these numbers: who fulfil it, where hospitals hold
                series, or who have it, where they hold rules; None where the study did not ask
    odds        the odds ratio of the outcome, fulfilled against broken, with a 95 % interval; None without an outcome
    tells       whether the odds ratio differs from 1 by more than noise and sampling leave open, all rules considered
    weight      what it adds to the log odds where it holds, all other rules considered; None: it is not in the model
    error       the standard error of the weight, noise included; None where the model file does not say
    """

    text: str
    structure: str
    prevalence: float
    interval: tuple[float, float]
    parameters: list[_FoundParameter] = msgspec.field(default_factory=list)
    share: float | None = None
    share_interval: tuple[float, float] | None = None
    odds: float | None = None
    odds_interval: tuple[float, float] | None = None
    tells: bool = False
    weight: float | None = None
    error: float | None = None

    @property
    def formula(self) -> Formula:
        """The rule as a formula (`concilium.stl`)."""
        return _read_formula(self.text)

    @property
    def shown(self) -> tuple[float, tuple[float, float]]:
        """The share of patients that is about these numbers, with its interval; of the form where nobody asked."""
        if self.share is not None and self.share_interval is not None:
            return self.share, self.share_interval
        return self.prevalence, self.interval

    def __str__(self) -> str:
        shown, (low, high) = self.shown
        return f"{self.text}  ({shown:.1%}, {low:.1%} to {high:.1%})"


class DiscoveryBody(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """`protects` says who is protected from whom, at what price; `patients` is how many there are, as it was estimated;
    `asked` are the questions with what they cost. A patient is judged by the last `window` of a stay, with values
    carried forward for `carry`, or from its beginning on where there is no window. Without an `intercept` there is no
    prediction; `intercept_error` is its standard error, where the file says it. `hours` are the weights by which
    patients without the outcome were judged at a matched time. `beside` are conditions on static columns, such as
    `Age >= 65`: they are in the model as rules are, and are none of the rules.
    """

    outcome: str
    query: str
    trust: str
    prevalence: str = msgspec.field(name="threshold")
    epsilon: str
    delta: str
    protects: str
    patients: float
    asked: list[str]
    step: str
    window: str | None
    carry: str
    rules: list[FoundRule]
    beside: list[FoundRule] = msgspec.field(default_factory=list)
    intercept: float | None = None
    intercept_error: float | None = None
    base: float | None = None
    hours: list[float] = msgspec.field(default_factory=list)
    decided: Decided | None = None

    def __post_init__(self) -> None:
        if self.decided is not None:
            self.decided.check(self.classes)
        if any(len(condition.formula.variables) != 1 for condition in self.beside):
            raise ValueError("a condition beside the rules is about one static column")
        for rule in (*self.rules, *self.beside):
            _read_formula(rule.text)
            if not 0 <= rule.prevalence <= 1 or not 0 <= rule.shown[0] <= 1:
                raise ValueError(f"{rule.text}: a rule has a share of the patients, between 0 and 1")
            if rule.weight is not None and (self.intercept is None or rule.share is None):
                raise ValueError(f"{rule.text}: a rule with a weight has a share, and the model an intercept")

    @property
    def steps(self) -> int | None:
        """Of a window."""
        return None if self.window is None else count_steps(self.window, self.step, "window")

    @property
    def classes(self) -> list[int]:
        """Without the outcome, and with it."""
        return [0, 1]

    @property
    def variables(self) -> list[str]:
        """What the rules are about."""
        return sorted({name for rule in self.rules for name in rule.formula.variables})

    @property
    def static(self) -> list[str]:
        """The static columns of the conditions beside the rules."""
        return sorted({name for condition in self.beside for name in condition.formula.variables})


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


@dataclass(frozen=True)
class OutcomeModel:
    """What was learned of the outcome: the fit, if any rule says something, the hours of controls, how frequent it
    is, and the conditions beside the rules; `unknown` are static columns of which hardly any patient has a value."""

    fitted: FittedWeights | None
    hours: tuple[float, ...]
    prevalence: float
    beside: tuple[FoundRule, ...] = ()
    unknown: tuple[str, ...] = ()


def open_conditions(task: RuleTask) -> list[FoundRule]:
    """The conditions of a study on static columns, of which nothing is known yet."""
    return [
        FoundRule(text=text, structure=text, prevalence=0.0, interval=(0.0, 0.0))
        for text in list_conditions(task.static)
    ]


def find_judged(rules: Sequence[FoundRule], task: RuleTask) -> list[FoundRule]:
    """The rules that hospitals can judge: without holes, within a window, each once."""
    judged = {rule.text: rule for rule in rules if is_complete(rule) and is_within_window(rule.formula, task)}
    return list(judged.values())


def enter_effects(
    judged: Sequence[FoundRule],
    effects: Sequence[RuleEffect],
    telling: Sequence[int],
    fitted: FittedWeights | None,
) -> list[FoundRule]:
    """The rules that were judged, with what was learned of them."""
    weights = dict(zip(telling, fitted.weights, strict=True)) if fitted is not None else {}
    errors = dict(zip(telling, fitted.errors[1:], strict=True)) if fitted is not None else {}
    return [
        msgspec.structs.replace(
            rule,
            share=round(effect.share, 6),
            share_interval=effect.share_interval,
            odds=effect.odds,
            odds_interval=effect.odds_interval,
            tells=effect.tells,
            weight=round(weights[place], 6) if place in weights else None,
            error=round(errors[place], 6) if place in errors else None,
        )
        for place, (rule, effect) in enumerate(zip(judged, effects, strict=True))
    ]


def rank_rules(rules: Sequence[FoundRule], known: Iterable[FoundRule]) -> list[FoundRule]:
    """The rules with what is known of them, those first that say most of the outcome."""
    by_text = {rule.text: rule for rule in known}
    every = {rule.text: by_text.get(rule.text, rule) for rule in rules}
    return sorted(every.values(), key=_rank)


NEARLY_EVERYONE = 0.95


def _says_little(rule: FoundRule) -> bool:
    """Whether nearly everyone fulfils it, and it says nothing of the outcome."""
    return not rule.tells and rule.odds is not None and rule.shown[0] >= NEARLY_EVERYONE


def _rank(rule: FoundRule) -> tuple[int, float]:
    """Those that say most of the outcome first, by the end of the interval that is nearer to 1; then by prevalence."""
    if rule.tells and rule.odds_interval is not None:
        low, high = rule.odds_interval
        return 0, -max(math.log(low), -math.log(high))
    return (2 if _says_little(rule) else 1), -rule.prevalence


def write_table(body: DiscoveryBody, dictionary: Mapping[str, DictionaryEntry] | None = None) -> str:
    """The rules for terminals and logs, a line each: those that tell something of the outcome, the others, in one
    paragraph those that nearly everyone fulfils, and apart from them the conditions on static columns."""
    threshold = 100 * float(Fraction(body.prevalence))
    rules = "1 rule" if len(body.rules) == 1 else f"{len(body.rules)} rules"
    lines = [
        f"{body.outcome}: {rules} of forms that at least {threshold:g}% of about {body.patients:,.0f} patients have"
    ]
    listed = [rule for rule in body.rules if not _says_little(rule)]
    width = max((len(rule.text) for rule in listed), default=0)
    for rule, before in zip(listed, [None, *listed], strict=False):
        if rule.odds is not None and not rule.tells and (before is None or before.tells):
            lines.append("Noise and sampling leave open whether these say anything of the outcome:")
        lines.append(f"{rule.text.ljust(width)}  {_say_numbers(rule, body)}")
    folded = [rule.text for rule in body.rules if _says_little(rule)]
    if folded:
        lines.append(
            f"{len(folded)} more that nearly everyone fulfils, and that say nothing of {body.outcome}:"
        )
        # No rule is broken over two lines.
        unbroken = textwrap.wrap("; ".join(text.replace(" ", "\0") for text in folded), WIDE)
        lines += [line.replace("\0", " ") for line in unbroken]
    if body.beside:
        lines.append("Beside the rules, of columns that do not change within a stay:")
        said = [say_condition(one.formula, dictionary or {}) for one in body.beside]
        width = max(map(len, said))
        lines += [
            f"{text.ljust(width)}  {_say_numbers(one, body)}{'' if one.tells else '; noise leaves it open'}"
            for text, one in zip(said, body.beside, strict=True)
        ]
    return "\n".join([*lines, *textwrap.wrap(body.protects, WIDE)])


def _say_numbers(rule: FoundRule, body: DiscoveryBody) -> str:
    """How many patients, and what it says of the outcome."""
    shown, (low, high) = rule.shown
    said = f"{shown:6.1%} ({low:.1%} to {high:.1%})"
    if rule.share is None:
        return f"{said} have one of this form"
    said += " fulfil it" if body.window is not None else " have it"
    if rule.odds is not None and rule.odds_interval is not None:
        between = " to ".join(map(say_odds, rule.odds_interval))
        said += f"; odds ratio {say_odds(rule.odds)} ({between})"
        if rule.weight is not None:
            said += f", with the others {say_odds(math.exp(rule.weight))}"
    return said


WIDTH, NAMES, BAR, LINE = 780, 330, 12, 24
MOST_BARS = 20
LETTERS = 52


def draw_prevalences(body: DiscoveryBody, *, whole: bool = False) -> str:
    """A bar for each rule in order, with its 95 % interval as a line; `whole`: all of them."""
    listed = body.rules if whole else body.rules[:MOST_BARS]
    room = WIDTH - NAMES - 150
    parts, top = [], 4.0
    for rule in listed:
        name = rule.text
        if body.steps is not None and is_complete(rule):
            said = say_formula(rule.formula, body.step, body.steps)
            name = said if len(said) <= LETTERS else name
        name = name if len(name) <= LETTERS else f"{name[: LETTERS - 3]}..."
        shown, interval = rule.shown
        low, high = (NAMES + share * room for share in interval)
        middle = top + BAR / 2
        label = f"{shown:.1%} ({interval[0]:.1%} to {interval[1]:.1%})"
        ends = {"x1": low, "y1": middle, "x2": high, "y2": middle}
        parts += [
            draw("text", name, x=NAMES - 10, y=top + 10, text_anchor="end"),
            draw("rect", x=NAMES, y=top, width=max(1.0, shown * room), height=BAR, fill=COLOURS[0]),
            draw("line", **ends, stroke=INK, stroke_width=2),
            draw("text", label, x=high + 8, y=top + 10, fill=SOFT),
        ]
        top += LINE
    axis = draw("line", x1=NAMES, y1=0, x2=NAMES, y2=top, stroke=RULE)
    title = f"{body.outcome}: the share of patients who have each rule, with its 95 % interval"
    return draw_frame(title, [axis, *parts], WIDTH, top + 4)


MOST_SHOWN = 10
# A rule that moves log odds by less is no reason to name: its odds ratio would read 1.00 or 0.99.
LEAST_MOVED = 0.015


def read_courses(
    patients: AnySeries,
    rules: Sequence[Formula],
    names: Sequence[str],
    static: Sequence[str],
    step: str,
    window: str | None,
    carry: str,
) -> Series:
    """The courses of these variables: the last window of each stay with values carried forward as
    where the rules were learned, or all of it; ModelError where there is none. A stay that is shorter than a window
    is its end: what came before is unknown. Static columns have their latest value throughout."""
    variables, names = names, [*names, *static]
    series = patients if isinstance(patients, Series) else lay_out_courses(patients, names, step)
    if not any(name in series for name in names):
        raise ModelError(
            "the patients have none of the attributes that this model asks about: " + ", ".join(sorted(names))
        )
    series = series.state(names)
    if len(series) and window is not None:
        carried = carry_values(series, variables, static, carry)
        series = hold_latest(_align_to_end(carried, count_steps(window, step, "window")), static)
    return Series.from_stays(
        series.stays,
        series.lengths,
        step=series.step,
        ids=series.ids,
        points=max([series.points, *(count_points(rule, series.step_hours) for rule in rules)]),
    )


def _align_to_end(series: Series, steps: int) -> Series:
    """The last so many steps of each stay; before a shorter one, steps in which nothing is known."""
    last = series.cut(series.lengths, steps)
    inside = np.arange(steps) >= steps - last.lengths[:, None]
    stays = {}
    for name, values in last.stays.items():
        grid = np.full(inside.shape, np.nan, dtype=np.float32)
        grid[inside] = values
        stays[name] = grid.reshape(-1)
    lengths = np.full(len(series), steps, dtype=np.int32)
    return Series.from_stays(stays, lengths, step=series.step, ids=series.ids, points=steps)


def _judge_courses(rules: Sequence[FoundRule], courses: Series) -> NDArray[np.float64]:
    """[patient, rule]: 1 where it holds, 0 where it fails, NaN where that is unknown."""
    if not rules:
        return np.zeros((len(courses), 0))
    votes = cast_votes([rule.formula for rule in rules], courses)
    return np.where(votes == 0, np.nan, (votes > 0).astype(np.float64))


def find_similarity(body: DiscoveryBody, courses: Series) -> NDArray[np.float64]:
    """The share of the rules that hold for each patient, each counting by how many patients have it; NaN where no rule
    is known."""
    rules = [rule for rule in body.rules if is_complete(rule)]
    holds = _judge_courses(rules, courses)
    shares = np.array([rule.prevalence for rule in rules])
    known = (~np.isnan(holds) * shares).sum(axis=1)
    total = (np.nan_to_num(holds) * shares).sum(axis=1)
    return np.where(known > 0, total / np.where(known > 0, known, 1.0), np.nan)


def _move_courses(body: DiscoveryBody, courses: Series) -> tuple[list[FoundRule], NDArray[np.float64]]:
    """The rules of the model, and the conditions beside them, and what each adds to the log odds of each patient,
    [patient, rule], against a patient of whom it is unknown: NaN where it is."""
    rules = [rule for rule in (*body.rules, *body.beside) if rule.weight is not None]
    centres = np.array([rule.share or 0.0 for rule in rules])
    weights = np.array([rule.weight or 0.0 for rule in rules])
    return rules, (_judge_courses(rules, courses) - centres) * weights


def find_weightiest(body: DiscoveryBody, course: Series, most: int) -> list[FoundRule]:
    """The rules that say most of one patient, those that can be judged first; without weights, as they are listed."""
    rules, moved = _move_courses(body, course)
    weights = {rule.text: adds for rule, adds in zip(rules, np.abs(moved[0]).tolist(), strict=True)}
    listed = [rule for rule in body.rules if is_complete(rule) and (rule.weight is not None or not rules)]
    judged = ~np.isnan(_judge_courses(listed, course)[0])
    order = sorted(
        range(len(listed)), key=lambda place: (not judged[place], -weights.get(listed[place].text, 0.0))
    )
    return [listed[place] for place in order[:most]]


def score_courses(body: DiscoveryBody, courses: Series) -> NDArray[np.float64]:
    """The predicted risk of each patient; the share of all patients where nothing is known."""
    risk: NDArray[np.float64] = 1 / (1 + np.exp(-_add_up(body, *_move_courses(body, courses))))
    return risk


def _spread_rules(rules: Sequence[FoundRule]) -> NDArray[np.float64]:
    """The standard deviation over patients of what each rule adds to the log odds."""
    shares = np.array([rule.share or 0.0 for rule in rules])
    weights = np.array([rule.weight or 0.0 for rule in rules])
    spread: NDArray[np.float64] = np.abs(weights) * np.sqrt(shares * (1 - shares))
    return spread


def _add_up(
    body: DiscoveryBody, rules: Sequence[FoundRule], moved: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The log odds of each patient. The share of all patients is not the risk of an average one: who is unknown has
    that share, in part who is known in part."""
    assert body.intercept is not None
    odds: NDArray[np.float64] = body.intercept + np.nan_to_num(moved).sum(axis=1)
    spread = _spread_rules(rules)
    if body.base is None or not 0 < body.base < 1 or not spread.any():
        return odds
    unknown: NDArray[np.float64] = np.isnan(moved) @ spread / spread.sum()
    led: NDArray[np.float64] = odds + unknown * (math.log(body.base / (1 - body.base)) - body.intercept)
    return led


def _find_interval(body: DiscoveryBody, course: Series) -> Interval | None:
    """The 95 % interval of the risk of patients for whom the same rules hold; None where the file does not say it. It
    is wider for rules that cannot be judged, which may go with those that can; not where none can, for a share."""
    rules, moved = _move_courses(body, course)
    if body.intercept is None or body.intercept_error is None or any(rule.error is None for rule in rules):
        return None
    centres = np.array([rule.share or 0.0 for rule in rules])
    errors = np.array([rule.error or 0.0 for rule in rules])
    # The mean patient stands in for a rule that cannot be judged.
    off = np.nan_to_num((_judge_courses(rules, course)[0] - centres) * errors)
    odds, unknown = float(_add_up(body, rules, moved)[0]), np.isnan(moved[0])
    silent = 0.0 if unknown.all() else float(_spread_rules(rules)[unknown].sum())
    return log_odds_interval(odds, odds, body.intercept_error**2 + float(off @ off) + find_unentered(silent))


def explain_courses(
    body: DiscoveryBody,
    course: Series,
    carried: Sequence[str] = (),
    dictionary: Mapping[str, DictionaryEntry] | None = None,
) -> Explanation:
    """The explanation of one patient; `carried` says which values are old."""
    assert body.intercept is not None
    rules, moved = _move_courses(body, course)
    risk = float(score_courses(body, course)[0])
    reasons = _find_reasons(body, course, dictionary or {})
    notes = list(carried)
    unknown = int(np.isnan(moved[0]).sum())
    if 0 < unknown < len(rules):
        judged = "rules and conditions" if any(map(body.beside.__contains__, rules)) else "rules"
        notes.append(f"{unknown} of {len(rules)} {judged} cannot be judged with what is known.")
    interval = _find_interval(body, course)
    notes.append(NO_INTERVAL if interval is None else ABOUT_RULES if unknown < len(rules) else WITH_NOISE)
    within = "" if interval is None else f"; {say_risk_interval(interval)}"
    prediction = choose_one([1 - risk, risk], body.classes, body.decided)
    base = 1 / (1 + math.exp(-body.intercept))
    average = (
        ""
        if unknown == len(rules) and body.base is not None
        else f"; {say_risk(base)} for an average patient"
    )
    named = say_value(prediction, (dictionary or {}).get(body.outcome))
    first = f"{body.outcome} = {named} (predicted risk {say_risk(risk)}{within}{average})."
    if interval is not None and not prediction:
        interval = 1 - interval[1], 1 - interval[0]
    return Explanation(
        body.outcome,
        prediction,
        risk if prediction else 1 - risk,
        tuple(reasons),
        (first, *_say_reasons(reasons), *notes),
        base=base,
        notes=tuple(notes),
        chances=(1 - risk, risk),
        interval=interval,
    )


def _find_reasons(
    body: DiscoveryBody, course: Series, dictionary: Mapping[str, DictionaryEntry]
) -> list[Reason]:
    """What each rule of the model says of the patient, where it can be judged, the weightiest first."""
    rules, moved = _move_courses(body, course)
    reasons = []
    for rule, holds, adds in zip(rules, _judge_courses(rules, course)[0], moved[0].tolist(), strict=True):
        if not math.isnan(adds):
            said = (
                say_condition(rule.formula, dictionary)
                if rule in body.beside
                else say_formula(rule.formula, body.step, body.steps)
            )
            condition = said if holds else f"not: {said}"
            reasons.append(
                Reason(tuple(sorted(rule.formula.variables)), condition, moved=adds, support=rule.share)
            )
    return sorted(reasons, key=lambda reason: -abs(reason.moved or 0.0))


def _say_reasons(reasons: list[Reason]) -> list[str]:
    if not reasons:
        return ["No rule can be judged with what is known: this is the share among all patients."]
    lines = ["Against an average patient:"]
    telling = [one for one in reasons if abs(one.moved or 0.0) >= LEAST_MOVED]
    for place, reason in enumerate(telling[:MOST_SHOWN], start=1):
        share = reason.support or 0.0
        like = 1 - share if reason.condition.startswith("not: ") else share
        lines.append(
            f"{place}. {reason.condition}: odds ratio {say_odds(math.exp(reason.moved or 0.0))} "
            f"({like:.0%} of patients)."
        )
    if rest := len(reasons) - min(len(telling), MOST_SHOWN):
        lines.append(f"{rest} more, {'which says' if rest == 1 else 'each of which says'} less.")
    return lines


def say_carried(series: Series, names: Sequence[str], carry: str) -> list[str]:
    """Which of these variables of one patient were last measured before the last step, and when."""
    said = []
    for name in names:
        values = series.stays.get(name)
        known = np.flatnonzero(~np.isnan(values)) if values is not None else np.zeros(0, dtype=np.intp)
        if len(known) and (age := len(values) - 1 - int(known[-1])):  # type: ignore[arg-type]
            if age > count_steps(carry, series.step, "carry"):
                said.append(
                    f"{name} was last measured {say_time(age, series.step)} before, too long ago to count."
                )
            else:
                said.append(
                    f"{name} was last measured {say_time(age, series.step)} before, and carried forward."
                )
    return said
