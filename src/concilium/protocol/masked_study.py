"""The house's side of a masked study: the keys, and two exchanges for every sum.

The house sees each site's vector only under masks; what it can compute from all it holds is the one sum per
question (privacy/masks.py says under which assumptions). Participants are fixed by the terms they agreed to.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, MessageError
from concilium.privacy.shares import SMALLEST_VARIANCE, variance_within
from concilium.privacy.study_keys import call_roll, verify_study_keys
from concilium.privacy.unmasking import MaskedRound
from concilium.protocol.masking import (
    Covered,
    End,
    Join,
    Joined,
    Meet,
    Open,
    Opened,
)
from concilium.protocol.messages import decode, encode
from concilium.protocol.questions import Summed
from concilium.protocol.sums import check_counts

if TYPE_CHECKING:
    from concilium.protocol.run import Run

VOUCHED = (
    "the house vouched for the sites' identities: this is a simulation. Against a house that lies about who is who, "
    "each site must pin the fingerprints of its peers in its own policy"
)


class MaskedStudy:
    """Set up once per run (again after a restart: sites that were restarted become members anew)."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._manifest = run.begin().manifest
        joined = run.gather(Join(), live=True)
        keys = [decode(data, Joined).key for data in joined.values()]
        verify_study_keys(self._manifest, keys)
        rolls = call_roll(self._manifest, keys)
        self._roll = rolls[self._manifest.names[0]].root
        run.gather(Meet(), {site: encode(roll) for site, roll in rolls.items()}, live=True)

    @property
    def least_variance(self) -> Fraction:
        """The least noise of a private sum: a share below what adds up to a Gaussian would be refused."""
        return Fraction(SMALLEST_VARIANCE * (len(self._manifest.participants) - self._manifest.colluders))

    @property
    def noise_factor(self) -> Fraction:
        """How much more noise a private sum has than was asked for: shares are as if the colluders added none."""
        sites = len(self._manifest.participants)
        return Fraction(sites, sites - self._manifest.colluders)

    def variance(self, rho: Fraction, squared_sensitivity: Fraction | int) -> Fraction:
        """The noise of a private sum that costs rho, or less where even the least noise is more than that."""
        return max(variance_within(rho, squared_sensitivity), self.least_variance)

    def add_up(self, question: Summed, release: str) -> NDArray[np.int64]:
        """The sum over all participants of their answers to one question."""
        opening = Open(kind_asked=question.kind, body=encode(question))
        covered = self._run.gather(question)
        vectors = [decode(answer, Covered).masked for answer in covered.values()]
        round_ = MaskedRound(self._manifest, self._roll, opening.content)
        commitments = round_.commitments(vectors)
        shown = {site: encode(part) for site, part in round_.show(commitments).items()}
        opened = self._run.gather(opening, shown, release=release)
        total = round_.unmask(vectors, [decode(answer, Opened).seed for answer in opened.values()])
        if total.size != question.numbers:
            raise HouseError(
                f"the sites added up {total.size} numbers where {question.numbers} were asked for"
            )
        sums = total.view(np.int64).reshape(question.shape)
        try:
            check_counts(sums, question)
        except MessageError as error:
            raise HouseError(f"the sites added up what cannot be: {error}") from None
        return sums

    def end(self) -> list[str]:
        """Have every site forget its keys; what the card must say of how the masks were set up."""
        with suppress(HouseError):
            self._run.gather(End(), live=True)
        return [VOUCHED] if self._run.vouched else []
