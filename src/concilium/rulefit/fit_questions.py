"""The plain questions of a fit, all of them about one set of terms: each is asked and its sum is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.models.outcome import Outcome
from concilium.models.threshold import PERCENT_LEFT_OUT, Tally
from concilium.protocol.held_out import Folds, Part
from concilium.protocol.questions import Conversation
from concilium.protocol.sums import pack, read_reals
from concilium.rulefit.fedda import AskDual
from concilium.rulefit.fitting import (
    AskFit,
    AskFolds,
    AskRates,
    Coefficients,
    FoldFit,
    Rates,
    Sums,
    read_rates,
    read_sums,
)
from concilium.rulefit.terms import RuleTerms, keep, write_terms

# The patients of every site by whom a threshold is chosen, and the others.
HELD_OUT = Part(percent=PERCENT_LEFT_OUT, held=True)
LEARNING = Part(percent=PERCENT_LEFT_OUT, held=False)
# And the folds by which a penalty is chosen.
DEALT = Folds(repeats=2)


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

    def with_terms(self, terms: RuleTerms) -> FitQuestions:
        """The same questions about other terms."""
        return FitQuestions(self.query, self.target, self.outcome, terms, self.places)

    def ask_folds(self, fits: Sequence[FoldFit]) -> Conversation[list[Sums]]:
        """The sums of fits to all patients but those of a fold, or the losses of the fold's own."""
        question = AskFolds(**self._about, terms=self.sent, folds=DEALT, fits=tuple(fits))
        return question.read((yield question))

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
