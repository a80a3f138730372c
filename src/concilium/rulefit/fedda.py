"""Federated dual averaging, the solver of the paper (Algorithms 2 and 3; Yuan, Zaheer, Reddi 2021), corrected.

Corrections (docs/methods.md, 2.9): the server adds what the sites send, which are negative gradients already; the loss
is the mean over patients, so that a site weighs as much as it has patients; the intercept is not penalised. Each site
takes `local` steps of dual averaging on its own patients, and sends how far its dual vector moved. Nothing of that is
private; `solver="newton"` reaches the optimum with a fraction of the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.attributes import CALL, Attribute, Workload
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import Conversation
from concilium.protocol.sums import Array, unpack, write_reals
from concilium.rulefit.design import estimate_design, recall_at_site
from concilium.rulefit.fitting import AskReals, Coefficients, predict, refuse_floored
from concilium.rulefit.terms import read_terms

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_LOCAL = 1000
LARGEST = 1e12
ROUNDS = 300
LOCAL = 20
CLIENT_STEP = 0.01
SERVER_STEP = 1.0


class AskDual(AskReals, frozen=True, kw_only=True):
    """From this dual vector take `local` steps on your patients; how far did it move, times your patients?"""

    kind: ClassVar[str] = "rulefit.dual"

    terms: bytes
    dual: Array
    penalty: float
    before: float
    step: float
    local: int

    @property
    def goes_by_blocks(self) -> bool:
        return False  # a site takes steps of its own, each over all patients

    @property
    def named(self) -> Sequence[Attribute]:
        return read_terms(self.terms).attributes

    @property
    def shape(self) -> tuple[int, ...]:
        return (2 + len(read_terms(self.terms)) + 1,)

    def check(self, release: Release) -> None:
        super().check(release)
        if self.dual.dtype != "f8" or not np.all(np.abs(self.start) <= LARGEST):
            raise MessageError(f"a dual vector is made of numbers up to {LARGEST:g}")
        if not 1 <= self.local <= MOST_LOCAL:
            raise MessageError(f"a site takes 1 to {MOST_LOCAL} steps by itself")
        if not (0 <= self.penalty < 1e6 and 0 <= self.before < 1e9 and 0 < self.step < 1e6):
            raise MessageError("the steps of a dual averaging are out of range")

    @property
    def start(self) -> NDArray[np.float64]:
        return unpack(self.dual, (len(read_terms(self.terms)) + 1,)).astype(np.float64)

    def estimate(self, patients: int, columns: int) -> Workload:
        terms = read_terms(self.terms)
        rules, dense = len(terms.rules), len(terms.lines) + len(terms.steps)
        step = (2 * rules + rules // 4 + 6 * dense + 100) * patients + 200 * len(terms) + 10 * CALL
        held = (rules // 4 + 9 * dense + 128) * patients + 400 * len(terms)
        return estimate_design(terms, patients) + Workload(self.local * step, held)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        refuse_floored(cohort)
        design = recall_at_site(self.terms, cohort, (self.query, self.target))
        outcome = self.outcome.at_site(cohort, self.target)
        dual, patients, loss = self.start, max(1, len(cohort)), 0.0
        # Steps that are too long run away from any number; what is sent is held within bounds.
        with np.errstate(over="ignore", invalid="ignore"):
            for step in range(self.local):
                w = _recover(dual, (self.before + self.step * (step + 1)) * self.penalty)
                predictor = predict(design, [Coefficients.of(w)])[:, 0]
                if step == 0:
                    loss = float(self.outcome.loss(outcome, predictor).sum())
                residual = self.outcome.residual(outcome, predictor)
                gradient = np.concatenate([[residual @ design.ones], design.add_up(residual)])
                dual = dual - self.step * gradient / patients
            moved = len(cohort) * (dual - self.start)
        return write_reals(np.concatenate([[len(cohort), loss], moved]), self.places)


def _recover(dual: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """The primal vector of a dual one: shrunk towards zero by the threshold, but for the intercept."""
    w = np.sign(dual) * np.maximum(np.abs(dual) - threshold, 0.0)
    w[0] = dual[0]
    return w


@dataclass(frozen=True)
class Averaged:
    """Coefficients with the intercept first, the client step used in the end, and how many questions it took."""

    w: NDArray[np.float64]
    step: float
    questions: int


# At a dual vector, after steps of so much in all, with steps of this length, so many of them.
AskMove = Callable[[NDArray[np.float64], float, float, int], Conversation[NDArray[np.float64]]]


def fit(
    ask: AskMove,
    columns: int,
    penalty: float,
    *,
    rounds: int = ROUNDS,
    local: int = LOCAL,
    step: float = CLIENT_STEP,
) -> Conversation[Averaged]:
    """`ask(dual, before, step, local)` is the sites' sum: patients, loss at the start, patients x movement.

    The paper's step of 0.01 diverges where rules are many and alike. Where the loss rises above that of no model at all
    the steps are halved and it starts again from nothing: small enough steps always descend.
    """
    questions = 0
    while True:
        dual, before, first, worst = np.zeros(columns + 1), 0.0, np.inf, 0
        for number in range(rounds):
            sums = yield from ask(dual, before, step, local)
            questions += 1
            loss = sums[1] / sums[0]
            first = loss if number == 0 else first
            worst = worst + 1 if not loss <= first * 1.0001 else 0
            if worst >= 3:
                break
            dual = dual + SERVER_STEP * sums[2:] / sums[0]
            before += SERVER_STEP * step * local
        else:
            return Averaged(_recover(dual, before * penalty), step, questions)
        step /= 2
