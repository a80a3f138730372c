"""What a release is: how a statistic leaves a site, what that costs there, and how the house adds it up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.card import ReleaseCard
from concilium.protocol.messages import Envelope, Refused
from concilium.protocol.questions import Gathered, Noise, Statistic, Step, Summed
from concilium.protocol.site_context import NO_BOUND, SiteContext
from concilium.registry import RELEASES

if TYPE_CHECKING:
    from concilium.protocol.run import Run


class Release(ABC):
    """One of the ways in which answers leave a hospital.

    bounded      whether what it lets out has a price: differential privacy
    tells_each   whether each site may be told something else, since the house sees its numbers one by one anyway
    meaning      what it means for patients, in words, for the card
    by_site      whether the house sees each site's own numbers, and not sums over all sites alone
    comparable   whether sums over different circles of hospitals may be told: where not, leaving one out would tell its
                 whole answer
    begins_anew  whether a study goes on with the rest where a site is lost, by asking them from the beginning
    added_below  whether a region may see what its hospitals answer, and answer with the sum, as the house would
    hands_on     whether entries of single patients leave, and not statistics
    noise        the noise that it adds to sums; none where there is none
    sendings     how often a question for a sum goes to each site
    word         how many bytes each number of a sum travels in; None: as few as all of them need
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    by_site: ClassVar[bool]
    comparable: ClassVar[bool]
    begins_anew: ClassVar[bool] = False
    added_below: ClassVar[bool] = False
    hands_on: ClassVar[bool] = False
    noise: ClassVar[tuple[type[Noise], ...]] = ()
    sendings: ClassVar[int] = 1
    word: ClassVar[int | None] = None

    def __init__(self) -> None:
        self.bounded = RELEASES[self.name].bounded
        self.tells_each = self.by_site and not self.bounded

    @abstractmethod
    def answer(self, context: SiteContext, envelope: Envelope, question: Statistic) -> bytes:
        """The site's half: select and constrain the patients, compute, protect, charge, and answer."""

    def step(self, context: SiteContext, envelope: Envelope, question: Step) -> bytes:
        """The site's half of what the release has to agree on with its sites, besides statistics."""
        raise MessageError(f"there is nothing to agree on under {self.name!r}")

    def add_up(self, run: Run, question: Summed) -> NDArray[np.int64]:
        """The house's half: the sum over all participants of what they answer."""
        return run.add_answers(question)

    def warn(self, releases: Sequence[ReleaseCard], patients: Mapping[str, int | None]) -> list[str]:
        """What the card must warn of, given what the participants released and how many patients they say they have."""
        return []


def tell_plainly(
    context: SiteContext,
    envelope: Envelope,
    question: Statistic,
    numbers: int,
    body: msgspec.Struct,
    *,
    tell_cap: bool,
) -> bytes:
    """A statistic charged and plain; a study asks what is gathered once, as what is drawn at random."""

    def let_out() -> msgspec.Struct:
        if isinstance(question, Gathered):
            context.studies.ask_in_plain(envelope)
        elif question.once is not None:
            context.studies.ask_once(envelope, *question.once)
        check_cap(context, numbers, tell_cap=tell_cap)
        return body

    return context.charge(envelope, numbers, NO_BOUND, let_out)


def check_cap(context: SiteContext, numbers: int, *, tell_cap: bool) -> None:
    """Inside the transaction of a charge, which is counted already: no more unbounded numbers than policy allows.

    The cap is so many for each patient, so that what is left of it tells how many there are: where that is not told
    otherwise (under masks) the refusal does not say it.
    """
    cap = context.policy.numbers_per_patient
    if cap is None:
        return
    released, most = context.ledger.unbounded_numbers(), int(cap * context.patients)
    if released <= most:
        return
    if not tell_cap:
        raise Refused(
            "numbers",
            "more numbers were asked for than this hospital's cap leaves; the cap is by patients, so that what is left "
            "is not told under masks",
            asked=str(numbers),
        )
    before = released - numbers
    left = str(max(0, most - before))
    raise Refused(
        "numbers",
        f"{numbers} numbers were asked for; {before} are released already and the cap is {cap:g} per patient, "
        f"{most} in all",
        asked=str(numbers),
        spent=str(before),
        left=left,
        would_fit=left,
    )
