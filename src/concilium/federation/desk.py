"""A hospital's desk: what a release works with at a site. Whatever leaves, leaves by `reply` or by `charge`.

`reply` is for what tells nothing about patients and is not charged. `charge` enters a release in the ledger and returns
the answer once both are on disk; what it lets out is made inside that transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec

from concilium.federation.cohort import Cohort, View
from concilium.federation.disclosure import Populations
from concilium.federation.masking import Memberships
from concilium.federation.messages import VERSION, Answer, Charge, Envelope, LedgerHead, encode, write_signed
from concilium.policy.policy import Policy
from concilium.privacy.identity import Identity
from concilium.privacy.ledger import LASTING_RULE, Head, Ledger

# One text for all of it: which of them it was would tell something about the patients.
TOO_FEW = "too few patients match this question, or too few tell it apart from what was asked before"
ENDED = (
    "too many different questions of this month, whoever asked them, were refused for too few patients: until {until} "
    "nothing is answered here that could be refused so; private questions are"
)


class Refused(Exception):
    """A rule says no; becomes a Refusal, which may say what was asked, is spent, is left and would fit."""

    def __init__(self, rule: str, reason: str, **receipt: str) -> None:
        self.rule, self.reason, self.receipt = rule, reason, receipt
        super().__init__(reason)


@dataclass(frozen=True)
class Desk:
    """What a site holds: `view` are its records after its policy, `patients` how many there are in all."""

    name: str
    identity: Identity
    policy: Policy
    ledger: Ledger
    view: View
    patients: int
    populations: Populations
    memberships: Memberships
    _deciding: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def deciding(self, envelope: Envelope) -> Iterator[None]:
        """Where patients decide whether there is an answer: such a refusal is one bit about them.

        Protected: patients in small groups, from houses that feel their way along the limits, under whatever names and
        ids. At most `refusals_per_month` different questions are refused so, and then none is answered that could be.
        One question of a process at a time: a refusal is on disk before the next is decided.
        """
        with self._deciding:
            refused, until = self.ledger.count_refused()
            if refused >= self.policy.refusals_per_month:
                raise Refused("ended", ENDED.format(until=until))
            try:
                yield
            except Refused as refusal:
                if refusal.rule == LASTING_RULE:
                    self.ledger.refuse_for_patients(
                        envelope.study, envelope.kind, envelope.id, envelope.content
                    )
                raise

    def check_patients(self, envelope: Envelope, cohort: Cohort) -> None:
        with self.deciding(envelope):
            if len(cohort) < self.policy.minimum_patients:
                raise Refused(LASTING_RULE, TOO_FEW)

    def admit(self, cohort: Cohort) -> None:
        """Refuse patients who are too close to those of an earlier plain answer; called inside a charge."""
        if self.policy.differencing and not self.populations.admit(cohort.population):
            raise Refused(LASTING_RULE, TOO_FEW)

    def reply(self, envelope: Envelope, body: msgspec.Struct) -> bytes:
        """An answer that releases nothing about patients, and is not charged."""
        return self._sign(envelope, body, None, self.ledger.head())

    def charge(
        self, envelope: Envelope, numbers: int, price: Fraction | None, let_out: Callable[[], msgspec.Struct]
    ) -> bytes:
        """Enter the release of so many numbers and let it out: `let_out` runs inside the transaction, which is on disk
        before the answer is returned, and where it raises nothing is charged. A price of None has no bound."""
        charge = Charge(envelope.release, None if price is None else str(price), numbers)
        return self.ledger.charge(
            envelope.id,
            envelope.digest,
            study=envelope.study,
            kind=envelope.kind,
            mode=envelope.release,
            cost=price,
            currency=None if price is None else "rho",
            numbers=numbers,
            seal=lambda head: self._sign(envelope, let_out(), charge, head),
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
