"""`shared`: entries of patients leave the hospital, each randomised by itself; what need not be hidden is unprotected.

Who is protected, from whom, at what cost: what was recorded in each entry, from everybody who sees it, wherever it left
as one of the protected outputs of its question, at the question's pure epsilon for each entry; everyone is charged for
as many entries as anyone may have. Who is not: an unprotected entry is what was recorded, whatever was paid for the
others, so that the ledger holds the price *and* says that no bound holds for all of it. How many entries a patient
has, and that there is one, is seen. The order of the hospital's own rows is not: patients leave under numbers, in an
order that only the hospital can work out (patient_identity.py), and entries in an order of their own (shared_codes.py).
The draw, the charge and the stored answer are one transaction: a repeated question gets the same draw, and another draw
is another study, which is charged again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.messages import Envelope
from concilium.protocol.patient_identity import derive_order
from concilium.protocol.questions import Randomised, Statistic, Summed
from concilium.protocol.releases.release import Release, check_cap
from concilium.protocol.site_context import SiteContext, price_epsilon

if TYPE_CHECKING:
    from concilium.protocol.run import Run


class Shared(Release):
    name: ClassVar[str] = "shared"
    meaning: ClassVar[str] = (
        "shared: the house saw entries of each patient, under numbers. What is sensitive in them was randomised, each "
        "entry by itself, and is protected at the cost below; what is not was left unprotected, but for what was "
        "overwritten at random, and epsilon is unlimited for that. How many entries a patient has is seen."
    )
    by_site: ClassVar[bool] = True
    comparable: ClassVar[bool] = True
    begins_anew: ClassVar[bool] = True
    hands_on: ClassVar[bool] = True

    def answer(self, context: SiteContext, envelope: Envelope, question: Statistic) -> bytes:
        if not isinstance(question, Randomised):
            raise MessageError(f"a question of kind {question.kind!r} cannot be released as {self.name!r}")
        context.check_room(price_epsilon(question.price))
        cohort = question.select(context.view).telling_all()
        numbers = question.count(cohort)

        def let_out() -> msgspec.Struct:
            context.studies.ask_once(envelope, "", envelope.content)
            check_cap(context, numbers, tell_cap=True)
            answer: msgspec.Struct = question.compute(cohort, derive_order(context.identity, envelope.study))
            return answer

        return context.charge(envelope, numbers, price_epsilon(question.price), let_out)

    def add_up(self, run: Run, question: Summed) -> NDArray[np.int64]:
        raise MessageError("entries of patients are not added up")
