"""A hospital's desk: what a release works with at a site. Whatever leaves, leaves by `reply` or by `charge`.

`reply` is for what tells nothing about patients and is not charged. `charge` enters a release in the ledger and returns
the answer once both are on disk; what it lets out is made inside that transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from concilium.federation.cohort import View
from concilium.federation.masking import Memberships
from concilium.federation.messages import VERSION, Answer, Charge, Envelope, LedgerHead, encode, write_signed
from concilium.federation.meter import Meter
from concilium.federation.refused import Refused
from concilium.federation.studies import Studies
from concilium.policy.policy import Policy
from concilium.privacy.accounting import rho_from_pure
from concilium.privacy.identity import Identity
from concilium.privacy.ledger import Head, Ledger


@dataclass(frozen=True)
class Desk:
    """What a site holds: `view` are its records after its policy, `patients` how many there are in all."""

    name: str
    identity: Identity
    policy: Policy
    ledger: Ledger
    view: View
    patients: int
    studies: Studies
    memberships: Memberships
    meter: Meter

    def reply(self, envelope: Envelope, body: msgspec.Struct) -> bytes:
        """An answer that releases nothing about patients, and is not charged."""
        return self._sign(envelope, body, None, self.ledger.head())

    def charge(
        self, envelope: Envelope, numbers: int, price: Fraction | None, let_out: Callable[[], msgspec.Struct]
    ) -> bytes:
        """Enter the release of so many numbers and let it out: `let_out` runs inside the transaction, which is on disk
        before the answer is returned, and where it raises nothing is charged. A price of None has no bound; no study
        costs more than its terms say."""
        return self._charge(envelope, numbers, price, price, "rho", let_out)

    def charge_epsilon(
        self, envelope: Envelope, numbers: int, epsilon: Fraction, let_out: Callable[[], msgspec.Struct]
    ) -> bytes:
        """The same for what costs pure epsilon, or nothing more than the study has paid already (zero)."""
        rho = rho_from_pure(epsilon) if epsilon else Fraction(0)
        return self._charge(envelope, numbers, rho, epsilon, "epsilon", let_out)

    def _charge(
        self,
        envelope: Envelope,
        numbers: int,
        price: Fraction | None,
        cost: Fraction | None,
        currency: str,
        let_out: Callable[[], msgspec.Struct],
    ) -> bytes:
        """`price` in rho, for the card, is `cost` in a currency for the ledger. The study is held to its own price in
        the ledger's currency: many small costs in epsilon add up to less rho than one, and would otherwise fit."""
        charge, own = Charge(envelope.release, None, numbers), price
        if price is not None:
            settings = self.ledger.settings
            charge = Charge(envelope.release, str(price), numbers, settings.budget is not None)
            own = price if settings.currency == "rho" else cost

        def seal(head: Head) -> bytes:
            if own is not None:
                self._spend(envelope.study, own)
            return self._sign(envelope, let_out(), charge, head)

        return self.ledger.charge(
            envelope.id,
            envelope.digest,
            study=envelope.study,
            kind=envelope.kind,
            mode=envelope.release,
            cost=cost or None,
            currency=currency if cost else None,
            paid=cost == 0,
            numbers=numbers,
            seal=seal,
        )

    def _spend(self, study: str, price: Fraction) -> None:
        left = self.ledger.studies.spend(study, price)
        if left is not None:
            raise Refused(
                "agreed",
                f"not agreed: this answer would cost more than what is left of the study's price, {left}",
                asked=str(price),
                left=str(left),
            )

    def _sign(self, envelope: Envelope, body: msgspec.Struct, charge: Charge | None, head: Head) -> bytes:
        answer = Answer(
            version=VERSION,
            id=envelope.id,
            site=self.name,
            body=encode(body),
            charge=charge,
            ledger=LedgerHead(head.count, head.hash),
            identity=self.identity.public,
        )
        return write_signed(answer, self.identity)
