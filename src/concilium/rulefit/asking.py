"""What the solvers ask the sites of a run, all of it about one set of terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError
from concilium.federation.arrays import pack
from concilium.federation.held_out import Part
from concilium.federation.run import Run
from concilium.rulefit import fedda, newton
from concilium.rulefit.fitting import AskFit, Coefficients, Sums, choose_places, read_sums
from concilium.rulefit.outcome import Outcome
from concilium.rulefit.rates import AskRates, Rates, read_rates
from concilium.rulefit.terms import Terms, keep, write_terms

# Percent of the patients of every site, to choose a penalty by.
HELD_OUT = 30


@dataclass(frozen=True)
class Asking:
    """A run, whom it is about, and the terms."""

    run: Run
    query: str
    target: str
    outcome: Outcome
    terms: Terms

    @cached_property
    def sent(self) -> bytes:
        return write_terms(self.terms)

    @property
    def places(self) -> int:
        return choose_places(self.run.hospitals)

    def sums(self, part: Part | None = None) -> newton.Ask:
        """For `newton`: losses, gradient and Hessian over everyone, or over those that are held out or are not."""

        def ask(candidates: tuple[Coefficients, ...], working: tuple[int, ...] | None) -> Sums:
            question = AskFit(
                query=self.query,
                target=self.target,
                outcome=self.outcome,
                terms=self.sent,
                candidates=candidates,
                gradient=working is not None,
                working=working,
                places=self.places,
                part=part,
            )
            return read_sums(question, self.run.add_up("rulefit.fit", question, (question.numbers,)))

        return ask

    def sums_without_held_out(self) -> newton.Ask:
        return self.sums(Part(percent=HELD_OUT, held=False))

    def losses_of_held_out(self, candidates: tuple[Coefficients, ...]) -> NDArray[np.float64]:
        """The mean loss of each model on the patients held out."""
        found = self.sums(Part(percent=HELD_OUT, held=True))(candidates, None)
        if found.patients == 0:
            raise HouseError(
                "the sites have too few patients to hold some out for choosing a penalty; give one 'penalty'"
            )
        return found.losses / found.patients

    def moves(self, penalty: float) -> fedda.AskMove:
        """For `fedda`: how far the dual vector moves."""

        def ask(dual: NDArray[np.float64], before: float, step: float, local: int) -> NDArray[np.float64]:
            question = fedda.AskDual(
                query=self.query,
                target=self.target,
                outcome=self.outcome,
                terms=self.sent,
                dual=pack(dual),
                penalty=penalty,
                before=before,
                step=step,
                local=local,
                places=self.places,
            )
            total = self.run.add_up("rulefit.dual", question, (question.numbers,))
            return np.ldexp(total.astype(np.float64), -question.places)

        return ask

    def rates(self, columns: Sequence[int]) -> Rates:
        """Support, subgroup rates and spread of these columns."""
        question = AskRates(
            query=self.query,
            target=self.target,
            outcome=self.outcome,
            terms=keep(self.terms, columns),
            places=self.places,
        )
        return read_rates(question, self.run.add_up("rulefit.rates", question, (question.numbers,)))
