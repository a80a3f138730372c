"""A rule model to read: as a table of its terms, as the reasons for one patient's prediction, and as pictures.

docs/methods.md, section 2.10: the importance of a term is |coefficient| x its pooled standard deviation, on a scale
where the most important is 100; an attribute's is that of its linear term and its share in every rule it is part of.
One picture shows what attributes weigh, the other what became of patients inside and outside of each rule (Figure 3 of
the paper).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.models.explanation import Explanation, Reason
from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text
from concilium.models.risk_counts import probability
from concilium.models.threshold import choose_one, say_decided
from concilium.records.columns import Value, label
from concilium.rulefit.body import RuleBody, say_number

LARGEST = 700.0  # of a logarithm of odds: exp of more is no number
MOST_SHOWN = 10
WIDTH, NAMES, BAR, BETWEEN, LINE = 780, 330, 14, 14, 16
OUTSIDE, INSIDE = COLOURS[:2]
LETTERS = 42
MOST_BARS = 12


@dataclass(frozen=True)
class Row:
    """A term of the model. `odds_ratio`: exp(coefficient), what fulfilling a rule multiplies the odds by, or what one
    standard deviation more does for a linear term; None where a number is predicted, and `adds` says what the same adds
    to it, in its own unit. `rate_in`, `rate_out`: share of positive patients (or the mean outcome) in and out of a
    rule."""

    rule: str
    coefficient: float
    odds_ratio: float | None
    adds: float | None
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
    for term in sorted(body.taken, key=lambda term: (-weights[term.column], term.column)):
        value = body.coefficients[term.column]
        is_rule = term.column < len(body.terms.rules)
        unit = 1.0 if is_rule else term.deviation
        rows.append(
            Row(
                rule=body.name(term.column),
                coefficient=value,
                odds_ratio=math.exp(min(value * unit, LARGEST)) if body.outcome.binary else None,
                adds=None if body.outcome.binary else value * unit * body.outcome.unit,
                importance=100 * weights[term.column] / most,
                support=term.support if is_rule else None,
                rate_in=term.inside if is_rule else None,
                rate_out=term.outside if is_rule else None,
                is_rule=is_rule,
            )
        )
    return rows


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


def draw_table(body: RuleBody) -> str:
    """All of the model in plain text, its most important terms first."""
    rows = make_table(body)
    effect = "odds x" if body.outcome.binary else "adds"
    lines = [f"{'importance':>10}  {effect:>8}  {'support':>7}  term"]
    for row in rows:
        change = f"{row.odds_ratio:.2f}" if row.adds is None else say_number(row.adds, "+")
        support = "" if row.support is None else f"{row.support:.2f}"
        lines.append(f"{row.importance:>10.0f}  {change:>8}  {support:>7}  {row.rule}")
    if not rows:
        less = (
            ""
            if body.outcome.binary
            else "; a smaller penalty, or a narrower range of the number, takes some"
        )
        lines.append(f"no term: every patient gets the same answer{less}")
    if not body.outcome.binary:
        start = say_number(float(body.outcome.unscale(np.array(body.intercept))))
        lines.append(
            f"everybody starts at {body.target} = {start}; a linear term adds so much for each standard deviation "
            "above the middle"
        )
    if body.decided is not None:
        lines.append(say_decided(body.decided))
    return "\n".join(lines)


def explain(
    body: RuleBody, row: NDArray[np.float64], ones: float, undecided: Mapping[int, float] | None = None
) -> Explanation:
    """The explanation of a patient of whom `row` has the columns of the terms taken. Those that are `undecided`, for
    something was not entered, count by what stands for them and are no reasons."""
    undecided = undecided or {}
    moved = {
        term.column: body.coefficients[term.column] * value
        for term, value in zip(body.taken, row.tolist(), strict=True)
        if term.column not in undecided
    }
    support = {term.column: term.support for term in body.taken if term.column < len(body.terms.rules)}
    reasons = tuple(
        Reason(
            tuple(body.attributes_of(column)),
            body.name(column),
            moved=moved[column] * body.outcome.unit,
            support=support.get(column),
        )
        for column in sorted(moved, key=lambda column: (-abs(moved[column]), column))
        if moved[column]
    )
    start = ones * body.intercept + sum(body.coefficients[column] * v for column, v in undecided.items())
    ends = np.array([start, start + sum(moved.values())])
    prediction: Value
    if body.outcome.binary:
        base, positive = probability(ends).tolist()
        chances = [1 - positive, positive]
        place = choose_one(chances, body.classes, body.decided)
        prediction, chance = body.classes[place], chances[place]
        begin = (
            f"{body.target} = {label(prediction)} ({label(body.classes[1])}: {positive:.0%}; "
            f"with no rule fulfilled {base:.0%})."
        )
    else:
        base, number = body.outcome.unscale(ends).tolist()
        prediction, chance = number, None
        begin = f"{body.target} = {say_number(number)}; everybody starts at {say_number(base)}."
    notes = _say_undecided(body, undecided)
    sentences = (begin, *_say_reasons(reasons, binary=body.outcome.binary), *notes)
    return Explanation(body.target, prediction, chance, reasons, sentences, base, notes=notes)


def _say_undecided(body: RuleBody, undecided: Mapping[int, float]) -> tuple[str, ...]:
    """What was not entered, and how the model goes on without it."""
    if not undecided:
        return ()
    many = len(undecided)
    return (
        f"{many} term{' is' if many == 1 else 's are'} not decided by what was entered, and not counted for or "
        "against: a rule stands for the share of patients for whom it holds.",
    )


def _say_reasons(reasons: Sequence[Reason], *, binary: bool) -> list[str]:
    """The weightiest reasons a line each, the others in one."""
    if not reasons:
        return ["No rule of the model holds for this patient."]
    adds, add = ("multiplies the odds by", "multiply the odds by") if binary else ("adds", "add")
    lines = []
    for number, reason in enumerate(reasons[:MOST_SHOWN], start=1):
        about = "" if reason.support is None else f" (holds for {reason.support:.0%} of patients)"
        lines.append(f"{number}. {reason.condition}: {adds} {_say_moved([reason], binary)}{about}.")
    rest = reasons[MOST_SHOWN:]
    return [*lines, f"{len(rest)} more together {add} {_say_moved(rest, binary)}."] if rest else lines


def _say_moved(reasons: Sequence[Reason], binary: bool) -> str:
    """By how much reasons together change the odds, or the number."""
    moved = sum(reason.moved for reason in reasons if reason.moved is not None)
    return f"{math.exp(min(moved, LARGEST)):.2f}" if binary else say_number(moved, "+")


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
