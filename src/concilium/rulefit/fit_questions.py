"""The plain questions of a fit, all of them about one set of terms: each is asked and its sum is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError
from concilium.models.threshold import PERCENT_LEFT_OUT, Tally
from concilium.protocol.arrays import pack
from concilium.protocol.conversation import Conversation
from concilium.protocol.held_out import Part
from concilium.protocol.sums import read_reals
from concilium.rulefit.body import Outcome
from concilium.rulefit.fedda import AskDual
from concilium.rulefit.fitting import AskFit, AskRates, Coefficients, Rates, Sums, read_rates, read_sums
from concilium.rulefit.terms import RuleTerms, keep, write_terms

# The patients of every site by whom a penalty or a threshold is chosen, and the others.
HELD_OUT = Part(percent=PERCENT_LEFT_OUT, held=True)
LEARNING = Part(percent=PERCENT_LEFT_OUT, held=False)


@dataclass(frozen=True)
class FitQuestions:
    """Whom a fit is about, its terms, and with how many binary places numbers travel."""

    query: str
    target: str
    outcome: Outcome
    terms: RuleTerms
    places: int

    @property
    def _about(self) -> dict[str, Any]:
        """What all questions say."""
        return {"query": self.query, "target": self.target, "outcome": self.outcome, "places": self.places}

    @cached_property
    def sent(self) -> bytes:
        """The terms as questions carry them."""
        return write_terms(self.terms)

    def ask_sums(
        self,
        candidates: tuple[Coefficients, ...],
        working: tuple[int, ...] | None,
        part: Part | None = None,
    ) -> Conversation[Sums]:
        """For `newton`: losses, gradient and Hessian over everyone, or over a part of the patients."""
        question = AskFit(
            **self._about,
            terms=self.sent,
            candidates=candidates,
            gradient=working is not None,
            working=working,
            part=part,
        )
        return read_sums(question, (yield question))

    def ask_losses_of_held_out(
        self, candidates: tuple[Coefficients, ...]
    ) -> Conversation[NDArray[np.float64]]:
        """The mean loss of each model on the patients held out."""
        sums = yield from self.ask_sums(candidates, None, HELD_OUT)
        if sums.patients == 0:
            raise HouseError(
                "the sites have too few patients to hold some out for choosing a penalty; give one 'penalty'"
            )
        return sums.losses / sums.patients

    def ask_move(
        self, penalty: float, dual: NDArray[np.float64], before: float, step: float, local: int
    ) -> Conversation[NDArray[np.float64]]:
        """For `fedda`: how far the dual vector moves."""
        total = yield AskDual(
            **self._about,
            terms=self.sent,
            dual=pack(dual),
            penalty=penalty,
            before=before,
            step=step,
            local=local,
        )
        return read_reals(total, self.places)

    def ask_rates(self, columns: Sequence[int], scored: Coefficients | None = None) -> Conversation[Rates]:
        """Support, subgroup rates and spread of these columns; with their coefficients, what chances patients have."""
        question = AskRates(**self._about, terms=keep(self.terms, columns), scored=scored)
        return read_rates(question, (yield question))

    def ask_chances(self, w: NDArray[np.float64]) -> Conversation[Tally | None]:
        """What chances a fit gives to those whom it left out; None where it left out nobody of one class."""
        columns = np.flatnonzero(w[1:]).tolist()
        scored = Coefficients.of(np.concatenate([w[:1], w[1:][columns]]))
        question = AskRates(**self._about, terms=keep(self.terms, columns), scored=scored, part=HELD_OUT)
        tally = read_rates(question, (yield question)).tally
        return tally if tally is not None and tally.tells else None
