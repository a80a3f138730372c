"""A rule model to read: as a table of its terms, as the reasons for one patient's prediction, and as pictures.

docs/methods.md, section 2.10: the importance of a term is |coefficient| x its pooled standard deviation, on a scale
where the most important is 100; an attribute's is that of its linear term and its share in every rule it is part of.
One picture shows what attributes weigh, the other what became of patients inside and outside of each rule (Figure 3 of
the paper).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import name_some
from concilium.models.explanation import (
    Explanation,
    Reason,
    read_odds,
    say_hidden,
    say_odds,
    say_risk,
    say_risk_interval,
    say_share,
)
from concilium.models.intervals import WITHIN_95, find_unentered, share_interval
from concilium.models.outcome import say_number
from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text
from concilium.models.threshold import choose_one, probability, say_decided
from concilium.records.columns import label, say_plain
from concilium.rulefit.body import PenaltyChoice, RuleBody
from concilium.rulefit.shapes import AttributeShape, list_shapes, say_shapes
from concilium.rulefit.terms import Line

MOST_SHOWN = 10
NEARLY_WHOLE = 0.95
NO_INTERVAL = (
    "There is no interval: a fixed penalty shrinks the coefficients, and how sure they are is not known."
)
SAYS_NOTHING = ("odds ratio 0.99", "odds ratio 1.00", "odds ratio 1.01")
WIDTH, NAMES, BAR, BETWEEN, LINE = 780, 330, 14, 14, 16
OUTSIDE, INSIDE = COLOURS[:2]
LETTERS = 42
MOST_BARS = 12


@dataclass(frozen=True)
class Row:
    """A term of the model. `odds_ratio`: exp(coefficient), what fulfilling a rule multiplies the odds by, or what one
    standard deviation more does for a linear term; None where a number is predicted, and `adds` says what the same adds
    to it, in its own unit. `low`, `high`: 95 % confidence interval of either, None where coefficients are shrunk.
    `selected`: share of the folds in which a term for nearly the same patients was selected, where there were folds.
    `rate_in`, `rate_out`: share of positive patients (or the mean outcome) in and out of a rule."""

    rule: str
    coefficient: float
    odds_ratio: float | None
    adds: float | None
    low: float | None
    high: float | None
    selected: float | None
    importance: float
    support: float | None
    rate_in: float | None
    rate_out: float | None
    is_rule: bool


def make_table(body: RuleBody) -> list[Row]:
    """Every term in the model, the most important first."""
    weights = {t.column: abs(body.coefficients[t.column]) * t.deviation for t in body.taken}
    most = max(weights.values(), default=0.0) or 1.0
    rows = []
    places = {term.column: 1 + place for place, term in enumerate(body.taken)}
    for term in sorted(body.taken, key=lambda term: (-weights[term.column], term.column)):
        value = body.coefficients[term.column]
        is_rule = term.column < len(body.terms.rules)
        unit = 1.0 if is_rule else term.deviation
        error = body.find_error(np.eye(len(body.taken) + 1)[places[term.column]])
        beyond = None if error is None else WITHIN_95 * error
        low, middle, high = (
            _read_effect(body, unit * v) for v in (value - (beyond or 0), value, value + (beyond or 0))
        )
        rows.append(
            Row(
                rule=body.name(term.column),
                coefficient=value,
                odds_ratio=middle if body.outcome.binary else None,
                adds=None if body.outcome.binary else middle,
                low=None if beyond is None else low,
                high=None if beyond is None else high,
                selected=term.selected,
                importance=100 * weights[term.column] / most,
                support=term.support if is_rule else None,
                rate_in=term.inside if is_rule else None,
                rate_out=term.outside if is_rule else None,
                is_rule=is_rule,
            )
        )
    return rows


def _read_effect(body: RuleBody, moved: float) -> float:
    """What a step of the predictor is to a reader: an odds ratio, or so much of the outcome's own unit."""
    if body.outcome.binary:
        return read_odds(moved)
    return moved * body.outcome.unit


def rank_attributes(body: RuleBody) -> dict[str, float]:
    """Importances of attributes, the largest 100."""
    total: dict[str, float] = {}
    for term in body.taken:
        names = body.attributes_of(term.column)
        for name in names:
            share = abs(body.coefficients[term.column]) * term.deviation / len(names)
            total[name] = total.get(name, 0.0) + share
    most = max(total.values(), default=0.0) or 1.0
    return {name: 100 * total[name] / most for name in sorted(total, key=lambda n: (-total[n], n))}


AFTER_SELECTION = (
    "Intervals take the terms as given. The same patients selected them, so that true uncertainty is larger; 'folds' "
    "says in how many folds of cross-validation a term for nearly the same patients was selected."
)


def _draw_rows(rows: Sequence[Row], *, binary: bool) -> list[str]:
    """A line for each term, below a line of titles; columns in which nothing is said are left out."""
    effects = [row.odds_ratio if row.adds is None else row.adds for row in rows]
    columns = [
        ("odds ratio" if binary else "adds", [_say_effect(one, binary=binary) for one in effects]),
        ("95 % CI", [f"{_say_interval(row, binary=binary):>15}" for row in rows]),
        ("folds", ["" if row.selected is None else f"{row.selected:.0%}" for row in rows]),
        ("support", ["" if row.support is None else f"{row.support:.0%}" for row in rows]),
        ("importance", [f"{row.importance:.0f}" for row in rows]),
    ]
    told = [column for column in columns if any(cell.strip() for cell in column[1])]
    lines = []
    for place, term in enumerate(["term", *(row.rule for row in rows)] if rows else []):
        cells = [(title, *values)[place].rjust(max(len(title), *map(len, values))) for title, values in told]
        lines.append("  ".join([*cells, term]))
    return lines


def draw_table(body: RuleBody) -> str:
    """All of the model in plain text, its most important terms first."""
    if body.curves:
        return _draw_private(body)
    rows = make_table(body)
    lines = _draw_rows(rows, binary=body.outcome.binary)
    lines += say_selected(body)
    if any(not row.is_rule for row in rows):
        lines.append("A linear term is for one standard deviation more.")
    if any(row.low is not None for row in rows):
        lines.append(AFTER_SELECTION)
    if not body.outcome.binary:
        start = say_number(float(body.outcome.unscale(np.array(body.intercept))))
        lines.append(f"Everybody starts at {body.target} = {start}.")
    if body.decided is not None:
        lines.append(say_decided(body.decided))
    return "\n".join(lines)


def _draw_private(body: RuleBody) -> str:
    """The shapes, and the rules that stand out of their noise."""
    lines = say_shapes(list_shapes(body))
    rules = [row for row in make_table(body) if row.is_rule]
    if rules:
        lines.append("rules (drawn at random, of which noise hides the others):")
    lines += [
        f"  {_say_effect(row.odds_ratio, binary=True):>6}  {_say_interval(row, binary=True):>15}         {row.rule}"
        for row in rules
    ]
    if body.decided is not None:
        lines.append(say_decided(body.decided))
    return "\n".join(lines)


def say_selected(body: RuleBody) -> list[str]:
    """How the terms were selected, and a sentence where there is none: for the text, the card and the report."""
    found = body.validation
    if found is not None and found.penalty is None:
        return [
            f"no term predicts {body.target} clearly better than the base rate on held-out patients ({found.folds} "
            f"folds): {_say_same_for_all(body)}"
        ]
    if not body.taken:
        less = (
            ""
            if body.outcome.binary
            else "; a smaller penalty, or a narrower range of the number, selects some"
        )
        return [f"no term is worth its penalty: {_say_same_for_all(body)}{less}"]
    if found is None or found.penalty is None:
        return []
    shrunk = (
        "the patients alone do not determine the odds ratios, so each is drawn towards 1 (a weak prior)"
        if found.factor is None
        else f"coefficients are multiplied by {found.factor:.2f}, which fits held-out patients best"
    )
    return [
        f"penalty {found.penalty:.3g}, chosen by {found.folds} folds of cross-validation: mean loss {found.loss:.4f} "
        f"on held-out patients, {found.loss_without:.4f} without terms; {shrunk}"
    ]


def _say_same_for_all(body: RuleBody) -> str:
    if body.mean is None:
        return "every patient gets the same answer"
    known = f"{body.mean:.1%}" if body.outcome.binary else say_number(body.mean)
    return f"every patient gets the same answer, {known}"


def _say_effect(value: float | None, *, binary: bool) -> str:
    """An odds ratio, or what a term adds; beyond a thousand times nothing is known but the direction."""
    if value is None:
        return ""
    if not binary:
        return say_number(value, "+")
    return say_odds(value)


def _say_interval(row: Row, *, binary: bool) -> str:
    """The 95 % confidence interval of a term."""
    if row.low is None or row.high is None:
        return ""
    return f"{_say_effect(row.low, binary=binary)} to {_say_effect(row.high, binary=binary)}"


def explain(
    body: RuleBody,
    row: NDArray[np.float64],
    ones: float,
    patient: Mapping[str, Any],
    undecided: Mapping[int, float] | None = None,
    variance: float = 0.0,
) -> Explanation:
    """The explanation of a patient of whom `row` has the columns of the terms taken. Those that are `undecided`, for
    something was not entered, count by what stands for them and are no reasons. `variance`: of the predictor, beyond
    what the coefficients bring."""
    undecided = undecided or {}
    columns = [term.column for term in body.taken]
    told = np.array([undecided.get(c, value) for c, value in zip(columns, row.tolist(), strict=True)])
    moved = dict(zip(columns, (np.array(body.coefficients)[columns] * told).tolist(), strict=True))
    reasons = _list_reasons(body, {c: value for c, value in moved.items() if c not in undecided}, patient)
    start = ones * body.intercept
    stood_in = sum(moved[c] for c in undecided) + _lead_to_mean(body, undecided, ones)
    end = start + sum(value for c, value in moved.items() if c not in undecided) + stood_in
    error = body.find_error(np.concatenate([[ones], told]))
    chosen = body.validation or PenaltyChoice(0, None, 0.0, 0.0, None)
    nothing = bool(columns) and len(undecided) == len(columns) and body.mean is not None
    unheard = nothing and not set(patient) & set(rank_attributes(body))
    # Rules about the same attributes move together. Of a patient of whom nothing is known the mean is told.
    silent = sum(abs(body.coefficients[t.column]) * t.deviation for t in body.taken if t.column in undecided)
    variance += 0.0 if unheard else find_unentered(ones * silent)
    beyond = WITHIN_95 * math.sqrt(chosen.inflation * (error or 0.0) ** 2 + chosen.misfit + variance)
    reach = [] if error is None else [end - beyond, end + beyond]
    start = end if nothing else start
    left = _say_undecided(body, undecided, patient, None if nothing else stood_in)
    notes = (*left, *_say_missing(body, patient), *_say_shortened(body, ones), *_say_doubt(body))
    points = np.array([start, end, *reach])
    say = functools.partial(
        _say_reasons, body, reasons, nothing=nothing, unsure=bool(undecided), unheard=unheard
    )
    if body.outcome.binary:
        return _explain_risk(body, points, reasons, notes, say, counted=unheard or not columns)
    return _explain_number(body, points, reasons, notes, say)


_Say = Callable[[str], list[str]]
"""From where the prediction starts, in words, to the reasons in sentences."""


def _explain_risk(
    body: RuleBody,
    points: NDArray[np.float64],
    reasons: tuple[Reason, ...],
    notes: tuple[str, ...],
    say: _Say,
    *,
    counted: bool,
) -> Explanation:
    """Of a class: `points` are the predictor at the start, for this patient, and at the ends of its interval, if there
    is one. Where the answer is the share of all patients, the interval is that of a share (`counted`)."""
    base, positive, *ends = probability(points).tolist()
    if counted and ends and body.mean is not None and body.patients:
        ends = list(share_interval(body.mean * body.patients, body.patients, including=positive))
    chances = [1 - positive, positive]
    place = choose_one(chances, body.classes, body.decided)
    interval = (ends[0], ends[1]) if ends else None
    within = "" if interval is None else f"; {say_risk_interval(interval)}"
    about = "about " if body.curves else ""
    overall = "" if body.mean is None else f"; base rate {about}{say_share(body.mean)}"
    answer = f"{body.target} = {label(body.classes[place])}"
    whose = "" if place else f"{label(body.classes[1])}: "
    begin = f"{answer} ({whose}{say_risk(positive)}{within}{overall})."
    return Explanation(
        body.target,
        body.classes[place],
        chances[place],
        reasons,
        (begin, *say(say_risk(base)), *notes),
        base,
        notes=notes,
        interval=interval if place or interval is None else (1 - interval[1], 1 - interval[0]),
    )


def _explain_number(
    body: RuleBody,
    points: NDArray[np.float64],
    reasons: tuple[Reason, ...],
    notes: tuple[str, ...],
    say: _Say,
) -> Explanation:
    """Of a number; `points` as of a risk."""
    base, number, *ends = body.outcome.unscale(points).tolist()
    within = f" (95% interval of the mean {say_number(ends[0])} to {say_number(ends[1])})" if ends else ""
    overall = "" if body.mean is None else f"; mean {say_number(body.mean)}"
    begin = f"{body.target} = {say_number(number)}{within}{overall}."
    return Explanation(
        body.target,
        number,
        None,
        reasons,
        (begin, *say(say_number(base)), *notes),
        base,
        notes=notes,
        interval=(ends[0], ends[1]) if ends else None,
    )


def _lead_to_mean(body: RuleBody, undecided: Mapping[int, float], ones: float) -> float:
    """What to add to the predictor where terms are undecided, so that a patient of whom nothing is known has the mean
    outcome. The mean risk is not the risk of a mean patient. Of the difference the undecided terms have their share by
    importance."""
    if body.mean is None or not undecided:
        return 0.0
    mean = body.mean
    if body.outcome.binary:
        mean = min(max(mean, 1e-9), 1 - 1e-9)
        goal = math.log(mean / (1 - mean))
    else:
        goal = float(body.outcome.scale(np.array(mean)))
    rules = len(body.terms.rules)
    centre, weights = ones * body.intercept, {}
    for term in body.taken:
        coefficient = body.coefficients[term.column]
        centre += coefficient * ((term.support or 0.0) if term.column < rules else 0.0)
        weights[term.column] = abs(coefficient) * term.deviation
    total = sum(weights.values())
    share = sum(weights[column] for column in undecided) / total if total else 0.0
    return share * (goal - centre)


def _list_reasons(
    body: RuleBody, moved: Mapping[int, float], patient: Mapping[str, Any]
) -> tuple[Reason, ...]:
    """The terms that move this patient's prediction, the weightiest first."""
    support = {term.column: term.support for term in body.taken}
    rules, totals = len(body.terms.rules), dict[str, float]()
    reasons = []
    for column, value in moved.items():
        names = tuple(body.attributes_of(column))
        if column < rules and value:
            own = support[column]
            reasons.append(Reason(names, body.name(column), moved=value * body.outcome.unit, support=own))
        elif column >= rules:  # the shape and the linear term of an attribute are one reason
            totals[names[0]] = totals.get(names[0], 0.0) + value
    for name, value in totals.items():
        entered = patient.get(name)
        known = (
            "is missing" if entered is None else f"= {say_plain(entered)}{_say_clipped(body, name, entered)}"
        )
        if value:
            reasons.append(Reason((name,), f"{name} {known}", moved=value * body.outcome.unit))
    return tuple(sorted(reasons, key=lambda reason: -abs(reason.moved or 0.0)))


def _say_clipped(body: RuleBody, name: str, entered: Any) -> str:
    """As what a linear term counts a number that lies beyond its bounds."""
    if body.curves or isinstance(entered, bool) or not isinstance(entered, int | float):
        return ""
    for line in body.terms.lines:
        if body.terms.attributes[line.attribute].name == name and not line.low <= entered <= line.high:
            return f" (counts as {say_number(min(max(entered, line.low), line.high))})"
    return ""


def _say_undecided(
    body: RuleBody, undecided: Mapping[int, float], patient: Mapping[str, Any], moved: float | None
) -> tuple[str, ...]:
    """What was not entered, how the model goes on without it, and by how much that `moved` the predictor."""
    asked = dict.fromkeys(name for column in undecided for name in body.attributes_of(column))
    names = [name for name in asked if name not in patient]
    if not names:
        return ()
    if body.curves:
        return (f"Not entered, and counted as the mean: {name_some(names, MOST_SHOWN)}.",)
    together = ""
    if moved is not None:
        effect = _say_effect(_read_effect(body, moved), binary=body.outcome.binary)
        together = f" Together: {'odds ratio' if body.outcome.binary else 'adds'} {effect}."
    return (
        f"Not entered: {name_some(names, MOST_SHOWN)}. A rule that needs "
        f"{'it' if len(names) == 1 else 'one of them'} counts by the share of patients for whom it holds, a number as "
        f"its median.{together}",
    )


def _say_missing(body: RuleBody, patient: Mapping[str, Any]) -> tuple[str, ...]:
    """What was entered as missing, and what that does to terms that ask for it."""
    asked: dict[str, set[bool]] = {}
    for term in body.taken:
        for name in body.attributes_of(term.column):
            asked.setdefault(name, set()).add(isinstance(body.terms.in_order[term.column], Line))
    names = [name for name in asked if name in patient and patient[name] is None]
    if not names or body.curves:
        return ()
    lines = [name for name in names if True in asked[name]]
    medians = f" As a number, {', '.join(lines)} {'counts' if len(lines) == 1 else 'count'} as the median."
    said = f"Missing: {', '.join(names)}. A rule holds for a missing value only where it says so."
    said += medians if lines else ""
    if unheard := [name for name in names if name in body.always_known]:
        said += (
            f" No patient of the model lacked {name_some(unheard)}, so that the risk may be far off. "
            "Leave out what is not known: then the share of patients for whom a rule holds stands for it."
        )
    return (said,)


def _say_shortened(body: RuleBody, ones: float) -> tuple[str, ...]:
    """That a private model counts this patient's values for less than its table says, if it does so noticeably."""
    if not body.curves or ones > NEARLY_WHOLE:
        return ()
    return (
        f"The values of this patient lie far out, and count for {ones:.0%} of what the table says: so noise hides each "
        "patient.",
    )


def _say_doubt(body: RuleBody) -> tuple[str, ...]:
    """What a prediction does not say by itself."""
    if body.validation is not None and body.validation.penalty is None:
        return (
            f"No term predicts {body.target} clearly better than the base rate: every patient gets this answer. "
            "Single patients may be at a higher or lower risk.",
        )
    if body.curves:
        return (
            "The model was learned with noise, which protects single patients; the interval includes it.",
        )
    if body.covariance is None and body.taken:
        return (NO_INTERVAL,)
    return ()


def _say_start(body: RuleBody, start: str) -> str:
    """Whose prediction is the intercept."""
    rules = any(term.column < len(body.terms.rules) for term in body.taken)
    lines = any(term.column >= len(body.terms.rules) for term in body.taken)
    either = (["no rule holds"] if rules else []) + (["numbers are at their medians"] if lines else [])
    kind = "risk" if body.outcome.binary else "mean"
    return f"Where {' and '.join(either)}, the {kind} is {start}. For this patient:"


def _say_no_reason(start: str, *, binary: bool, unsure: bool) -> str:
    if unsure:
        return "No rule of the model is known to hold for this patient."
    kind = "risk" if binary else "mean"
    return f"No rule of the model holds for this patient. The {kind} of such patients is {start}."


def _say_reasons(
    body: RuleBody, reasons: Sequence[Reason], start: str, *, nothing: bool, unsure: bool, unheard: bool
) -> list[str]:
    """Where the prediction starts, the weightiest reasons a line each, and the others in one. `nothing` of what was
    entered decides a term, or not all do (`unsure`); `unheard`: nothing was entered that any asks for."""
    if not body.taken:
        return [] if _say_doubt(body) else ["The model has no terms: every patient gets this answer."]
    binary = body.outcome.binary
    if nothing:
        said = f"his is the {'share' if binary else 'mean'} among all patients of the model."
        return ["T" + said if unheard else "What was entered decides no rule by itself: t" + said]
    if not reasons:
        return [_say_no_reason(start, binary=binary, unsure=unsure)]
    told, hidden, rest = _sort_reasons(body, reasons)
    # The rows of a private model are scaled, each by itself: there is no one number to start at.
    lines = ["Against the mean of all patients:"] if body.curves else [_say_start(body, start)]
    line = "" if body.curves else ", against the median"
    for number, reason in enumerate(told, start=1):
        about = line if reason.support is None else f" ({reason.support:.0%} of patients)"
        lines.append(f"{number}. {reason.condition}: {_say_moved([reason], binary)}{about}.")
    if hidden:
        names = [reason.attributes[0] for reason in hidden]
        lines.append(say_hidden(names, _say_moved(hidden, binary)))
    if rest and (len(rest) > 1 or len(told) == MOST_SHOWN):
        lines.append(f"{len(rest)} more together: {_say_moved(rest, binary)}.")
    elif rest:
        lines.append(f"Next to nothing: {rest[0].condition}.")
    return lines


def _sort_reasons(
    body: RuleBody, reasons: Sequence[Reason]
) -> tuple[list[Reason], list[Reason], list[Reason]]:
    """Reasons to list; those that noise hides; and all others, which say less or nothing that is printed."""
    shapes = {shape.attribute: shape for shape in list_shapes(body)}
    hidden = [
        reason
        for reason in reasons
        if reason.support is None and shapes and _is_hidden(shapes[reason.attributes[0]], reason)
    ]
    seen = [reason for reason in reasons if reason not in hidden]
    told = [one for one in seen if not body.outcome.binary or _say_moved([one], True) not in SAYS_NOTHING]
    told = told[:MOST_SHOWN]
    return told, hidden, [reason for reason in seen if reason not in told]


def _is_hidden(shape: AttributeShape, reason: Reason) -> bool:
    """Whether noise hides what an attribute does, or what it does where it is missing or has a value that was not
    stated."""
    said = {one.name: one for one in shape.bins}
    name = "missing" if reason.condition.endswith(" is missing") else "any other value"
    if name != "missing" and (name not in said or reason.condition.partition(" = ")[2] in said):
        return shape.hidden
    return shape.hidden or name not in said or said[name].low <= 1 <= said[name].high


def _say_moved(reasons: Sequence[Reason], binary: bool) -> str:
    """By how much reasons together change the odds, or the number."""
    moved = sum(reason.moved for reason in reasons if reason.moved is not None)
    if not binary:
        return f"adds {say_number(moved, '+')}"
    return f"odds ratio {_say_effect(read_odds(moved), binary=True)}"


def draw_importances(importances: Mapping[str, float], target: str) -> str:
    """A bar for each attribute, the most important first."""
    shown = list(importances.items())[:MOST_BARS]
    parts: list[str] = []
    top = 4.0
    for name, value in shown:
        parts += _name(name, top)
        parts += _bar(value / 100, top + 2, INSIDE, f"{value:.0f}")
        top += LINE + BETWEEN / 2
    return _frame(f"What weighs most in the rules for {target}, the largest 100", parts, top)


def draw_rates(rows: Sequence[Row], outcome: str, *, shares: bool = True) -> str:
    """For each rule two bars: the rate inside and the rate outside, or (not `shares`) the mean of a number; bars of
    numbers below zero begin at the least of them."""
    rules = [row for row in rows if row.rate_in is not None and row.rate_out is not None][:MOST_BARS]
    rates = [rate for row in rules for rate in (row.rate_in, row.rate_out) if rate is not None]
    least = min([0.0, *rates])
    scale = 1.0 if shares else (max([0.0, *rates]) - least) or 1.0
    parts = [
        f'<rect x="{NAMES}" y="2" width="10" height="10" fill="{INSIDE}"/>'
        f'<text x="{NAMES + 16}" y="12">patients for whom the rule holds</text>'
        f'<rect x="{NAMES + 230}" y="2" width="10" height="10" fill="{OUTSIDE}"/>'
        f'<text x="{NAMES + 246}" y="12">all others</text>'
    ]
    top = 26.0
    for row in rules:
        support = "" if row.support is None else f", {row.support:.0%} of patients"
        parts += _name(row.rule, top)
        for rate, colour in ((row.rate_in, INSIDE), (row.rate_out, OUTSIDE)):
            assert rate is not None
            shown = f"{rate:.0%}" if shares else say_number(rate)
            parts += _bar((rate - least) / scale, top, colour, shown + (support if colour == INSIDE else ""))
            top += BAR + 2
        top += max(0, len(_wrap(row.rule)) - 2) * LINE + BETWEEN
    return _frame(f"{outcome} inside and outside of each rule", parts, top)


def _name(text: str, top: float) -> list[str]:
    return [
        f'<text x="{NAMES - 10}" y="{top + 12 + LINE * number:g}" text-anchor="end">{element_text(line)}</text>'
        for number, line in enumerate(_wrap(text))
    ]


def _bar(share: float, top: float, colour: str, text: str) -> list[str]:
    """A bar, and beside it what it stands for."""
    width = max(1.0, min(share, 1.0) * (WIDTH - NAMES - 150))
    return [
        f'<rect x="{NAMES}" y="{top:g}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<text x="{NAMES + 6 + width:.1f}" y="{top + BAR - 3:g}" fill="{SOFT}">{element_text(text)}</text>',
    ]


def _wrap(text: str) -> list[str]:
    """A name in lines that fit beside the bars, broken between conditions; at most three."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > LETTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines if len(lines) <= 3 else [*lines[:2], lines[2][: LETTERS - 3] + "..."]


def _frame(title: str, parts: Sequence[str], height: float) -> str:
    line = f'<line x1="{NAMES}" y1="0" x2="{NAMES}" y2="{height:g}" stroke="{RULE}"/>'
    return draw_frame(title, [line, *parts], WIDTH, height + 6)
