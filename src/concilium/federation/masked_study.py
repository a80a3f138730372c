"""The house's side of a masked study: the manifest, the keys, and two exchanges for every sum.

The house sees each site's vector only under masks; what it can compute from all it holds is the one sum per
question (privacy/masks.py says under which assumptions). Participants are fixed when the manifest is composed.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError
from concilium.federation.masking import (
    Commitments,
    Covered,
    End,
    Greeting,
    Hello,
    Join,
    Joined,
    Meet,
    Open,
    Opened,
)
from concilium.federation.messages import Release, decode, encode
from concilium.privacy.manifest import Participant, compose, read_manifest
from concilium.privacy.masks import address
from concilium.privacy.shares import SMALLEST_VARIANCE, variance_within
from concilium.privacy.study_keys import verify_study_keys
from concilium.privacy.unmasking import MaskedRound

if TYPE_CHECKING:
    from concilium.federation.run import Run

ATTEMPT = 1  # a site stores what it answered, so a resumed run asks for the same attempt again

VOUCHED = (
    "the house vouched for the sites' identities: this is a simulation. Against a house that lies about who is who, "
    "each site must pin the fingerprints of its peers in its own policy"
)


class MaskedStudy:
    """Set up once per run (again after a restart: sites that were restarted take their seats anew)."""

    def __init__(self, run: Run) -> None:
        self._run = run
        run.fixed = True
        self._vouched = run.house.transport.introduce()
        greetings = run.gather("mask.hello", Hello(), live=True)
        told = {site: decode(body, Greeting) for site, body in greetings.items()}
        composed = compose(
            run.id,
            [
                Participant(site, run.house.identities[site], said.reveal_on_dropout)
                for site, said in told.items()
            ],
            colluders=max(said.colluders for said in told.values()),
        ).encoded
        self._manifest = read_manifest(
            composed if run.journal is None else run.journal.note("manifest", composed)
        )
        run.study = self._manifest.study_id.hex()
        joined = run.gather("mask.join", Join(self._manifest.encoded), live=True)
        keys = [decode(body, Joined).key for body in joined.values()]
        self._keys = verify_study_keys(self._manifest, keys)
        run.gather("mask.meet", Meet(keys), live=True)

    @property
    def least_variance(self) -> Fraction:
        """The least noise of a private sum: a share below what adds up to a Gaussian would be refused."""
        return Fraction(SMALLEST_VARIANCE * (len(self._manifest.participants) - self._manifest.colluders))

    def variance(self, rho: Fraction, squared_sensitivity: Fraction | int) -> Fraction:
        """The noise of a private sum that costs rho, or less where even the least noise is more than that."""
        return max(variance_within(rho, squared_sensitivity), self.least_variance)

    def add_up(
        self, kind: str, question: msgspec.Struct, shape: tuple[int, ...], release: Release
    ) -> NDArray[np.int64]:
        """The sum over all participants of their answers to one question."""
        opening = Open(kind, encode(question), ATTEMPT)
        covered = self._run.gather(kind, question, release=release)
        vectors = [decode(answer, Covered).masked for answer in covered.values()]
        round_ = MaskedRound(self._manifest, self._keys, opening.content, ATTEMPT)
        commitments = round_.commitments(vectors)
        shown = {site: encode(Commitments(list(address(commitments, site)))) for site in covered}
        opened = self._run.gather("mask.open", opening, shown, release=release)
        total = round_.unmask(vectors, [decode(answer, Opened).seed for answer in opened.values()])
        if total.size != int(np.prod(shape)):
            raise HouseError(
                f"the sites added up {total.size} numbers where {int(np.prod(shape))} were asked for"
            )
        return total.view(np.int64).reshape(shape)

    def end(self) -> list[str]:
        """Have every site forget its keys; what the card must say of how the masks were set up."""
        with suppress(HouseError):
            self._run.gather("mask.end", End(), live=True)
        return [VOUCHED] if self._vouched else []
