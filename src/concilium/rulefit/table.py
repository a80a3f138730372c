"""The model as a table to read: odds ratio (or what is added to a number), importance and support of every term.

docs/methods.md, section 2.10: the importance of a term is |coefficient| x its pooled standard deviation, on a scale
where the most important is 100; an attribute's is that of its linear term and its share in every rule it is part of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from concilium.models.threshold import say_decided
from concilium.rulefit.body import RuleBody
from concilium.rulefit.outcome import say_number

LARGEST = 700.0  # of a logarithm of odds: exp of more is no number


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
