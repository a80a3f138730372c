"""Why a rule model says what it says of one patient: the rules that fired, and what each moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.models.explanation import Explanation, Reason
from concilium.models.risk_counts import probability
from concilium.models.threshold import choose_one
from concilium.records.columns import Value, label
from concilium.rulefit.body import RuleBody
from concilium.rulefit.outcome import say_number
from concilium.rulefit.table import LARGEST

MOST_SHOWN = 10


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
    notes = say_undecided(body, undecided)
    sentences = (begin, *say_reasons(reasons, binary=body.outcome.binary), *notes)
    return Explanation(body.target, prediction, chance, reasons, sentences, base, notes=notes)


def say_undecided(body: RuleBody, undecided: Mapping[int, float]) -> tuple[str, ...]:
    """What was not entered, and how the model goes on without it."""
    if not undecided:
        return ()
    many = len(undecided)
    return (
        f"{many} term{' is' if many == 1 else 's are'} not decided by what was entered, and not counted for or "
        "against: a rule stands for the share of patients for whom it holds.",
    )


def say_reasons(reasons: Sequence[Reason], *, binary: bool) -> list[str]:
    """The weightiest reasons a line each, the others in one."""
    if not reasons:
        return ["No rule of the model holds for this patient."]
    adds, add = ("multiplies the odds by", "multiply the odds by") if binary else ("adds", "add")
    lines = []
    for number, reason in enumerate(reasons[:MOST_SHOWN], start=1):
        about = "" if reason.support is None else f" (holds for {reason.support:.0%} of patients)"
        lines.append(f"{number}. {reason.condition}: {adds} {say_moved([reason], binary)}{about}.")
    rest = reasons[MOST_SHOWN:]
    return [*lines, f"{len(rest)} more together {add} {say_moved(rest, binary)}."] if rest else lines


def say_moved(reasons: Sequence[Reason], binary: bool) -> str:
    """By how much reasons together change the odds, or the number."""
    moved = sum(reason.moved for reason in reasons if reason.moved is not None)
    return f"{math.exp(min(moved, LARGEST)):.2f}" if binary else say_number(moved, "+")
