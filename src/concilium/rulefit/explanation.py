"""Why a rule model says what it says of one patient: the rules that fired, and what each moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.records.table import Value, label
from concilium.rulefit.body import RuleBody
from concilium.rulefit.outcome import probability, say_number
from concilium.rulefit.table import LARGEST

MOST_SHOWN = 10


@dataclass(frozen=True)
class Reason:
    """A term that holds for the patient, and what it adds to the log odds of the positive class (or to the number)."""

    rule: str
    moved: float
    support: float | None


@dataclass(frozen=True)
class Explanation:
    """A prediction for one patient, the reasons for it by size, and where everybody starts (`base`)."""

    target: str
    positive: Value | None
    prediction: Value
    probability: float | None
    base: float
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        if self.probability is None:
            said, base = say_number(float(self.prediction)), say_number(self.base)
            lines = [f"{self.target} = {said}; everybody starts at {base}."]
        else:
            lines = [
                f"{self.target} = {label(self.prediction)} ({label(self.positive)}: {self.probability:.0%}; "
                f"with no rule fulfilled {self.base:.0%})."
            ]
        if not self.reasons:
            lines.append("No rule of the model holds for this patient.")
        for number, reason in enumerate(self.reasons[:MOST_SHOWN], start=1):
            if self.probability is None:
                effect = f"adds {say_number(reason.moved, '+')}"
            else:
                effect = f"multiplies the odds by {math.exp(min(reason.moved, LARGEST)):.2f}"
            about = "" if reason.support is None else f" (holds for {reason.support:.0%} of patients)"
            lines.append(f"{number}. {reason.rule}: {effect}{about}.")
        if len(self.reasons) > MOST_SHOWN:
            rest = sum(reason.moved for reason in self.reasons[MOST_SHOWN:])
            effect = (
                f"add {say_number(rest, '+')}"
                if self.probability is None
                else f"multiply the odds by {math.exp(min(rest, LARGEST)):.2f}"
            )
            lines.append(f"{len(self.reasons) - MOST_SHOWN} more together {effect}.")
        return "\n".join(lines)


def explain(body: RuleBody, taken: list[int], row: NDArray[np.float64], ones: float) -> Explanation:
    """The explanation of a patient whose columns `taken` are `row`."""
    support = {told.column: told.support for told in body.told}
    moved = {
        column: body.coefficients[column] * value for column, value in zip(taken, row.tolist(), strict=True)
    }
    predictor = np.array([ones * body.intercept + sum(moved.values())])
    start = np.array([ones * body.intercept])
    fired = [column for column in sorted(taken, key=lambda c: (-abs(moved[c]), c)) if moved[column]]
    rules = len(body.terms.rules)
    unit = body.outcome.unit
    reasons = tuple(Reason(body.name(c), moved[c] * unit, support[c] if c < rules else None) for c in fired)
    if not body.outcome.binary:
        said, base = (float(body.outcome.unscale(x)[0]) for x in (predictor, start))
        return Explanation(body.target, None, said, None, base, reasons)
    chance, base = float(probability(predictor)[0]), float(probability(start)[0])
    return Explanation(
        body.target, body.classes[1], body.classes[int(predictor[0] >= 0)], chance, base, reasons
    )
