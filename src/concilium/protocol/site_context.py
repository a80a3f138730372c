"""What a release works with at a site. Whatever leaves, leaves by `reply` or by `charge`.

`reply` is for what tells nothing about patients and is not charged. `charge` enters a release in the ledger and returns
the answer once both are on disk; what it lets out is made inside that transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from concilium.ledger.chain import Head
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import Policy
from concilium.privacy.accounting import rho_from_pure
from concilium.privacy.identity import Identity
from concilium.privacy.randomness import draw_bytes
from concilium.protocol.cohort import Cohort, View
from concilium.protocol.masking import Memberships, Open
from concilium.protocol.messages import Charge, Envelope, Refused, write_answer
from concilium.protocol.meter import Meter
from concilium.protocol.questions import Statistic
from concilium.protocol.studies import Studies, say_currency


@dataclass(frozen=True)
class Cost:
    """What a release costs: in rho, for the study and the card, and as an amount of a currency, for the ledger. None
    has no bound."""

    rho: Fraction | None
    amount: Fraction | None
    currency: str


NO_BOUND = Cost(None, None, "rho")


def price_epsilon(epsilon: Fraction) -> Cost:
    """The cost of pure epsilon; of zero, for what the study has paid already."""
    return Cost(rho_from_pure(epsilon) if epsilon else Fraction(0), epsilon, "epsilon")


@dataclass(frozen=True)
class SiteContext:
    """What a site holds: `view` are its records after its policy, `patients` how many there are in all; `currency` is
    that of its ledger, which has one for good."""

    name: str
    identity: Identity
    policy: Policy
    ledger: Ledger
    currency: str
    view: View
    patients: int
    studies: Studies
    memberships: Memberships
    meter: Meter

    def divide(self, study: str, question: Statistic, cohort: Cohort, least: int) -> Cohort:
        """Those of the cohort whom a question of a study is about: whom the terms hold out are measured, and never
        learned from."""
        holdout = self.studies.at(study).terms.holdout
        if holdout:
            cohort = holdout.choose(cohort, least, held=question.measures)
        return cohort if question.division is None else question.division.choose(cohort, least)

    def reply(self, envelope: Envelope, body: msgspec.Struct, charge: Charge | None = None) -> bytes:
        """An answer for which nothing is charged now: it releases nothing about patients, or what it releases was
        charged before (`charge`)."""
        return write_answer(self.identity, self.name, envelope.id, body, self.ledger.head(), charge)

    def check_room(self, cost: Cost) -> None:
        """Refuse before computing what could not be paid."""
        if not cost.amount:
            return
        if cost.currency == "rho" and self.currency != "rho":
            raise Refused("currency", say_currency(self.currency))
        self.ledger.check_room(cost.amount, cost.currency)

    def charge(
        self, envelope: Envelope, numbers: int, cost: Cost, let_out: Callable[[], msgspec.Struct]
    ) -> bytes:
        """Enter the release of so many numbers and let it out: `let_out` runs inside the transaction, which is on disk
        before the answer is returned, and where it raises nothing is charged. No study costs more than its terms say.
        """
        charge = self.describe(envelope, numbers, cost.rho)

        def seal(head: Head) -> bytes:
            self._spend(envelope.study, cost)
            return write_answer(self.identity, self.name, envelope.id, let_out(), head, charge)

        return self._enter(envelope, envelope.id, envelope.digest, envelope.kind, numbers, cost, seal)

    def enter(
        self,
        envelope: Envelope,
        name: str,
        numbers: int,
        cost: Cost,
        keep: Callable[[], None],
    ) -> None:
        """Enter what is answered under masks before it leaves, under a name of its own: with the answer the neighbours
        are shown how far our ledger has come, this charge included. `keep` runs inside the transaction."""

        def seal(head: Head) -> bytes:
            self._spend(envelope.study, cost)
            keep()
            self.ledger.remember_masked(head)
            # Nothing is told again from the ledger; what is stored makes the next link another.
            return draw_bytes(16)

        self._enter(envelope, name, envelope.content, Open.kind, numbers, cost, seal)

    def describe(self, envelope: Envelope, numbers: int, price: Fraction | None) -> Charge:
        """What an answer says of its charge; `price` in rho."""
        if price is None:
            return Charge(envelope.release, None, numbers)
        return Charge(envelope.release, str(price), numbers, self.ledger.settings.budget is not None)

    def _enter(
        self,
        envelope: Envelope,
        name: str,
        digest: str,
        kind: str,
        numbers: int,
        cost: Cost,
        seal: Callable[[Head], bytes],
    ) -> bytes:
        return self.ledger.charge(
            name,
            digest,
            study=envelope.study,
            kind=kind,
            mode=envelope.release,
            cost=cost.amount or None,
            currency=cost.currency if cost.amount else None,
            paid=cost.amount == 0,
            numbers=numbers,
            seal=seal,
        )

    def _spend(self, study: str, cost: Cost) -> None:
        """Inside a charge: hold a study to its own price, in the ledger's currency. Many small costs in epsilon add up
        to less rho than one, and would otherwise fit."""
        price = cost.amount if self.currency == "epsilon" else cost.rho
        if price is None or cost.rho is None:
            return
        left = self.ledger.studies.spend(study, price)
        if left is not None:
            raise Refused(
                "agreed",
                f"not agreed: this answer would cost more than what is left of the study's price, {left}",
                asked=str(price),
                left=str(left),
            )
