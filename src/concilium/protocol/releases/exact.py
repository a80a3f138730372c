"""`exact`: the house sees each site's numbers. Protects no patient: small cells single people out.

What a hospital's policy may still do is a guard and never a guarantee: minimum counts, tables left out, differencing,
a cap on numbers (docs/policies.md). Every release is entered in the ledger as unlimited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from concilium.errors import MessageError
from concilium.protocol.card import ReleaseCard
from concilium.protocol.messages import Envelope
from concilium.protocol.questions import Gathered, Statistic, Summed
from concilium.protocol.releases.release import Release, tell_plainly
from concilium.protocol.site_context import SiteContext
from concilium.protocol.sums import write_sum


class Exact(Release):
    name: ClassVar[str] = "exact"
    meaning: ClassVar[str] = (
        "exact: the house saw each site's numbers; epsilon is unlimited. This hides no patient: a small count can "
        "single a person out."
    )
    by_site: ClassVar[bool] = True
    comparable: ClassVar[bool] = True
    begins_anew: ClassVar[bool] = True
    added_below: ClassVar[bool] = True

    def answer(self, context: SiteContext, envelope: Envelope, question: Statistic) -> bytes:
        cohort = question.select(context.view)
        cohort = context.divide(envelope.study, question, cohort, context.policy.minimum_patients)
        if isinstance(question, Gathered):
            reply = question.compute(cohort)
            return tell_plainly(context, envelope, question, reply.numbers, reply, tell_cap=True)
        if not isinstance(question, Summed):
            raise MessageError(f"a question of kind {question.kind!r} has no exact answer")
        words = question.compute_all(cohort)
        question.suppress(words, cohort)
        body = write_sum(words, question.binary_places)
        return tell_plainly(context, envelope, question, words.size, body, tell_cap=True)

    def warn(self, releases: Sequence[ReleaseCard], patients: Mapping[str, int | None]) -> list[str]:
        """A warning if sites released more than one exact number for every two patients."""
        numbers: dict[str, int] = {}
        for release in releases:
            numbers[release.site] = numbers.get(release.site, 0) + release.numbers
        many = [site for site, count in numbers.items() if count > (patients.get(site) or count) / 2]
        if not many:
            return []
        most = max(many, key=lambda site: numbers[site] / (patients.get(site) or 1))
        about = "" if patients.get(most) is None else f" about {patients[most]} patients"
        who = most if len(many) == 1 else f"{len(many)} sites, {most} above all,"
        return [
            f"{who} released more than one exact number for every two patients ({most}: {numbers[most]} "
            f"numbers{about}): single patients can often be worked out from them"
        ]
