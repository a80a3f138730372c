"""`masked`: the house sees sums over all sites, and of what is gathered (values, rules) each site's own.

Who is protected: a hospital's own numbers, from the house and up to `policy.colluders` other sites; no patient. A
statistic leaves in two steps: covered (its vector under masks, which is charged and tells nothing) and opened (the seed
of the site's own mask, once all participants have committed to their vectors). It is charged when it is covered, so
that the neighbours are shown a ledger that holds the charge before there is a sum, and notice an older copy of it
(ledger/memory.py, `follow_peer`). Whether there are enough patients is decided when the study begins
(studies.py), and by nothing after. The protocol is in protocol/membership.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import BudgetError, MaskError, MessageError
from concilium.privacy.manifest import Manifest
from concilium.privacy.masks import WIRE
from concilium.protocol.cohort import Cohort
from concilium.protocol.masking import Covered, Join, Open, Opened, write_content
from concilium.protocol.messages import Envelope
from concilium.protocol.questions import Gathered, Statistic, Step, Summed, open_question
from concilium.protocol.releases.release import Release, check_cap, tell_plainly
from concilium.protocol.site_context import NO_BOUND, Cost, SiteContext

if TYPE_CHECKING:
    from concilium.protocol.run import Run


class Masked(Release):
    name: ClassVar[str] = "masked"
    meaning: ClassVar[str] = (
        "masked: the house saw sums over all sites, and which values occur at which site; epsilon is unlimited. This "
        "hides which hospital a number came from, not which patient: a small sum can single a person out."
    )
    by_site: ClassVar[bool] = False
    comparable: ClassVar[bool] = False
    sendings: ClassVar[int] = 2  # to be answered, and to be opened
    word: ClassVar[int | None] = 8

    def answer(self, context: SiteContext, envelope: Envelope, question: Statistic) -> bytes:
        if isinstance(question, Summed):
            return self._cover(context, envelope, question)
        if not isinstance(question, Gathered):
            raise MessageError(f"a question of kind {question.kind!r} has no answer under masks")
        context.memberships.check(context.studies.at(envelope.study).manifest)
        # A number of the house's choosing here would be felt along until it told the count behind it.
        cohort = question.select(context.view).telling_all(
            context.policy.branch_floor, context.policy.support
        )
        cohort = context.divide(envelope.study, question, cohort, context.policy.minimum_patients)
        reply = question.compute(cohort)
        return tell_plainly(context, envelope, question, reply.numbers, reply, tell_cap=False)

    def step(self, context: SiteContext, envelope: Envelope, question: Step) -> bytes:
        if isinstance(question, Open):
            return self._open(context, envelope, question)
        study = envelope.study
        if isinstance(question, Join):
            return context.reply(
                envelope, context.memberships.join(study, context.studies.at(study).manifest)
            )
        return context.reply(envelope, context.memberships.set_up(study, question, envelope.template))

    def select(self, context: SiteContext, question: Summed, encounters: int = 1) -> Cohort:
        """The patients asked about, whether or not there are enough; of what has a price so many rows of each."""
        return question.select(context.view).telling_all(context.policy.branch_floor)

    def price(self, context: SiteContext, study: str, question: Summed) -> Cost:
        """What it costs."""
        return NO_BOUND

    def protect(self, question: Summed, words: NDArray[np.int64], manifest: Manifest) -> NDArray[np.int64]:
        """The numbers as they go under the masks."""
        return words

    def bound(self, question: Summed) -> int:
        """No number of one site is beyond this under the masks, whoever the patients are."""
        return question.largest

    def _check_bound(self, question: Summed, largest: int) -> None:
        """MaskError where a sum could wrap round: from public bounds alone, before anything is computed. A refusal of
        the numbers themselves would tell how large they are."""
        if (bound := self.bound(question)) > largest:
            raise MaskError(
                f"this question may have numbers of up to {bound}, and sums over so many sites hold {largest} of each: "
                "ask with fewer binary places, or with less noise"
            )

    def _cover(self, context: SiteContext, envelope: Envelope, question: Summed) -> bytes:
        """The statistic under masks, charged and stored before it is sent; one that was asked for before is not
        computed again."""
        memberships, study = context.memberships, envelope.study
        membership = memberships.at(study)
        self._check_bound(question, membership.manifest.largest)
        cohort = self.select(context, question, context.studies.at(study).encounters)
        # Either side of a division has so many patients, or nobody is held out.
        least = 0 if self.bounded else context.policy.minimum_patients
        cohort = context.divide(study, question, cohort, least)
        covered = memberships.recall(envelope, self.comparable)
        if covered is None:
            cost = self.price(context, study, question)
            try:
                context.check_room(cost)
            except BudgetError:
                # Another process of this hospital may have entered this very question since, and have used the budget.
                covered = memberships.recall(envelope, self.comparable)
                if covered is None:
                    raise
                return context.reply(envelope, Covered(covered))
            computed = question.compute_all(cohort)
            question.suppress(computed, cohort)
            words = computed.astype(np.int64).reshape(-1)
            content = write_content(envelope.kind, envelope.body_digest)

            def keep() -> None:
                if cost.rho is None:
                    check_cap(context, words.size, tell_cap=False)
                covering = self.protect(question, words, membership.manifest).view(np.uint64)
                membership.keep(content, covering, comparable=self.comparable)

            # The charge goes by the label of its one vector.
            context.enter(envelope, f"mask {membership.label(content).hex()}", words.size, cost, keep)
            covered = memberships.recall(envelope, self.comparable)
            if covered is None:  # charged before and dropped, unopened: another vector then tells nothing
                keep()
                covered = memberships.recall(envelope, self.comparable)
                assert covered is not None
        return context.reply(envelope, Covered(covered))

    def _open(self, context: SiteContext, envelope: Envelope, step: Open) -> bytes:
        """Everybody has answered, and was charged: take our own mask off."""
        # What is opened must be a question of this very release: noise goes with its price, and only with that.
        asked = msgspec.structs.replace(envelope, kind=step.kind_asked, body=step.body, template=b"")
        question = open_question(asked)
        if not isinstance(question, Summed):
            raise MessageError("only sums are opened")
        memberships, study = context.memberships, envelope.study
        context.studies.check(study, question, envelope.release)
        size = memberships.at(study).measure(step.content)
        if size is None:
            raise MaskError(f"{context.name} has not answered this question yet: ask it first")
        cost = self.price(context, study, question)
        charge = context.describe(envelope, size // WIRE.itemsize, cost.rho)
        with context.ledger.writing():
            opened = Opened(memberships.open(study, step, envelope.template, self.comparable))
        return context.reply(envelope, opened, charge)

    def add_up(self, run: Run, question: Summed) -> NDArray[np.int64]:
        return run.masked_study.add_up(question, self.name)
