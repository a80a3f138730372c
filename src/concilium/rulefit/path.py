"""A path over penalties, and the choice of one by held-out deviance.

Three in ten patients of every site are held out; the path is fitted to the others, from the largest penalty at which a
model has a term down to a hundredth of it, or to where models have more terms than anybody reads, each from where the
last ended; one question then asks for the loss of all these models on the patients held out. The model is fitted to
everyone with the penalty that was best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.conversation import Conversation
from concilium.rulefit import newton
from concilium.rulefit.fitting import Coefficients
from concilium.rulefit.newton import AskSums, Columns

LENGTH = 12
SHORTEST = 0.01
MOST_TERMS = 200
# No data are so strong that a term would pay this.
NO_TERM = 1e9


@dataclass(frozen=True)
class PenaltyTried:
    """A penalty, the mean loss of its model on held-out patients, and how many terms the model has."""

    penalty: float
    deviance: float
    terms: int


def walk(
    ask: AskSums,
    ask_held_out: Callable[[tuple[Coefficients, ...]], Conversation[NDArray[np.float64]]],
    columns: Columns,
    penalties: list[float] | None,
    length: int = LENGTH,
) -> Conversation[list[PenaltyTried]]:
    """The models along the path, with their mean loss on the patients held out. A path that is not given ends before
    the first model with more than MOST_TERMS terms."""
    given = penalties is not None
    largest = NO_TERM if penalties is None else max(penalties)
    start = yield from newton.fit(ask, columns, largest, tolerance=1e-6)
    if penalties is None:
        largest = float(np.abs(start.point.gradient[1:]).max(initial=0.0)) or 1.0
        penalties = np.geomspace(largest, SHORTEST * largest, length + 1)[1:].tolist()
    models: list[tuple[float, NDArray[np.float64]]] = []
    point = start.point
    for penalty in sorted(penalties, reverse=True):
        fitted = yield from newton.fit(ask, columns, penalty, tolerance=1e-5, start=point)
        if models and not given and np.count_nonzero(fitted.w[1:]) > MOST_TERMS:
            break
        models.append((penalty, fitted.w))
        point = fitted.point
    losses = yield from ask_held_out(tuple(Coefficients.of(w) for _, w in models))
    return [
        PenaltyTried(penalty, float(loss), int(np.count_nonzero(w[1:])))
        for (penalty, w), loss in zip(models, losses, strict=True)
    ]
