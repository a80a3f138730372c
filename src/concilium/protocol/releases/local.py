"""`local`: each patient's report is randomised by itself before anything is added up; no one need be trusted.

Who is protected: every patient, from everybody who sees what leaves the hospital, the house and all other hospitals
included, at pure epsilon for the one report that a patient gives in a study: the same report is almost as likely
whatever is true of the patient (privacy/local_reports.py). What is not hidden is that there is a patient: how many
reports there are is seen, so that there is no query. A study asks groups of patients one after the other, whom their
ids and the study divide; each patient is in one group, and each group reports once, so that what a patient pays is the
price of one report: the first group's question pays it for all, the others are entered at no further cost.
"""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar

from concilium.errors import MessageError
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Envelope
from concilium.protocol.questions import Reported, Statistic
from concilium.protocol.releases.release import Release
from concilium.protocol.site_context import SiteContext, price_epsilon
from concilium.protocol.sums import Sum, write_sum


class Local(Release):
    name: ClassVar[str] = "local"
    meaning: ClassVar[str] = (
        "local: the house saw one report of each patient, randomised by itself before it left. What is true of any one "
        "patient changes what it saw only as much as the cost below says, whoever sides with whom; how many patients "
        "there are is seen."
    )
    by_site: ClassVar[bool] = True
    comparable: ClassVar[bool] = True

    def answer(self, context: SiteContext, envelope: Envelope, question: Statistic) -> bytes:
        if isinstance(question, AskCounts) and question.is_bare:
            everyone = context.view.each_by_itself.select("", "")
            count = write_sum(question.compute(everyone), 0)
            # Free: it is seen in the reports anyway.
            return context.charge(envelope, 1, price_epsilon(Fraction(0)), lambda: count)
        if not isinstance(question, Reported):
            raise MessageError(f"a question of kind {question.kind!r} cannot be released as 'local'")
        paid = context.studies.have_reported(envelope.study, question.epsilon)
        cost = price_epsilon(Fraction(0) if paid else question.price)
        context.check_room(cost)
        cohort = context.view.each_by_itself.select("", "").telling_all()

        def let_out() -> Sum:
            context.studies.report(envelope, question.group, question.epsilon, paid=paid)
            group = question.choose(cohort, envelope.study)
            return write_sum(question.compute(group), 0)

        return context.charge(envelope, question.numbers, cost, let_out)
