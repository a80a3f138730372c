"""A hospital: records, policy and ledger behind one door, `Site.answer`. There is no second way out.

The gate protects by rule, not by mathematics: under `exact` the house sees a site's numbers and small cells
single people out. What holds always: nothing leaves before its charge is on disk (privacy/ledger.py), no record
leaves, a column that policy withholds or that identifies patients does not exist outside, and whatever arrives
is met with an answer or a refusal, never with a traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import cast

import msgspec

from concilium.errors import (
    BudgetError,
    ConciliumError,
    LedgerError,
    MaskError,
    MessageError,
    QueryError,
    RecordsError,
    StudyError,
)
from concilium.federation.arrays import Counts, pack_counts
from concilium.federation.cohort import Cohort, View
from concilium.federation.masking import Covered, End, Hello, Join, Meet, Open, Opened, Seats
from concilium.federation.messages import (
    VERSION,
    Answer,
    Charge,
    Envelope,
    LedgerHead,
    Refusal,
    encode,
    open_envelope,
)
from concilium.federation.questions import Gathered, Statistic, open_question
from concilium.policy.policy import Policy
from concilium.privacy.identity import Identity
from concilium.privacy.ledger import Head, Ledger
from concilium.records.table import Records

log = logging.getLogger(__name__)

TOO_FEW = "too few patients match this question"


class Refused(Exception):
    """A rule of the gate says no; becomes a Refusal."""

    def __init__(self, rule: str, reason: str) -> None:
        self.rule, self.reason = rule, reason
        super().__init__(reason)


class Site:
    """`Site("cleveland", records, policy=Policy.read("policy.toml"), ledger="cleveland.ledger")`.

    Without a ledger file the ledger is kept in memory: fine for a simulation, gone with the process. The site's
    identity is kept beside the ledger (`cleveland.ledger.identity`) unless another file is named.
    """

    def __init__(
        self,
        name: str,
        records: Records,
        policy: Policy | None = None,
        ledger: str | Path | Ledger | None = None,
        identity: str | Path | Identity | None = None,
    ) -> None:
        if not name or len(name) > 100 or not name.isprintable():
            raise StudyError(f"a site's name must have 1 to 100 printable characters; got {name!r}")
        self.name = name
        self.policy = policy if policy is not None else Policy()
        self._patients = len(records)
        self._view = View(records, self.policy)
        self.ledger = ledger if isinstance(ledger, Ledger) else self._open_ledger(ledger, records)
        self.identity = identity if isinstance(identity, Identity) else self._find_identity(identity)
        self._seats = Seats(name, self.identity, self.policy, self.ledger.mask_store())

    def answer(self, message: bytes) -> bytes:
        """The gate. Bytes of a question in; bytes of an answer or a refusal out."""
        envelope: Envelope | None = None
        try:
            envelope = open_envelope(message)
            question = open_question(envelope)  # known kind?
            self._allow(envelope)  # allowed here?
            stored = self.ledger.recall(envelope.id, envelope.digest)  # asked before? the same bytes, free
            if stored is not None:
                return stored
            if isinstance(question, Hello | Join | Meet | End):  # sets up masks: releases nothing
                return self._reply(envelope, self._seats.set_up(envelope.study, question))
            if isinstance(question, Open):  # everybody has answered: take our own mask off, charged
                return self._open(envelope, question)
            question = cast(Statistic, question)
            cohort = self._view.select(question.query, question.target)  # as constrained by policy
            if (
                envelope.release != "private" and len(cohort) < self.policy.minimum_patients
            ):  # enough patients?
                raise Refused("patients", TOO_FEW)
            return self._release(envelope, question, cohort)  # compute, protect, charge, log, answer
        except Refused as refusal:
            return self._refuse(envelope, refusal.rule, refusal.reason)
        except BudgetError as error:
            return self._refuse(envelope, "budget", str(error), error)
        except QueryError as error:
            return self._refuse(envelope, "query", f"{error.problem} (column {error.column} of the query)")
        except (MessageError, MaskError, RecordsError, LedgerError) as error:
            return self._refuse(envelope, RULES[type(error)], str(error))
        except Exception:
            log.exception("site %s could not answer a question", self.name)
            return self._refuse(envelope, "internal", "the site could not answer; its own log says why")

    def introduce(self, peers: Mapping[str, str]) -> bool:
        """Take a house's word for who its peers are, for want of pinned ones (embedded houses only).

        False where the policy pins peers: those stand.
        """
        return self._seats.introduce(peers)

    def _allow(self, envelope: Envelope) -> None:
        if envelope.kind not in self.policy.kinds:
            raise Refused("kind", f"questions of kind {envelope.kind!r} are not answered here")
        if envelope.release not in self.policy.modes:
            raise Refused("mode", f"nothing is released as {envelope.release!r} here")
        seen = envelope.seen
        if seen is not None and not self.ledger.holds(Head(seen.count, seen.hash)):
            raise Refused(
                "rollback",
                f"this site's ledger is behind what it told the house before (entry {seen.count}): "
                "an older copy was put in its place, or another ledger; nothing is answered from it",
            )

    def _release(self, envelope: Envelope, question: Statistic, cohort: Cohort) -> bytes:
        """A statistic as its release says: charged and plain, or under masks (with noise if private), and then not
        charged before it is opened."""
        masked = envelope.release != "exact" and question.additive
        if masked and (covered := self._seats.covered(envelope)) is not None:
            return self._reply(envelope, Covered(covered))
        if envelope.release == "private":
            self._check_budget(self._seats.price(envelope.study, question))
        statistic = question.compute(cohort, envelope.template)
        if isinstance(statistic, Gathered):
            return self._charge(envelope, statistic.numbers, None, lambda: statistic)
        if masked:
            return self._reply(envelope, Covered(self._seats.cover(envelope, question, statistic)))
        return self._charge(envelope, statistic.size, None, lambda: Counts(pack_counts(statistic)))

    def _open(self, envelope: Envelope, question: Open) -> bytes:
        # What is opened must be a question of this very release: noise goes with its price, and only with that.
        asked = msgspec.structs.replace(envelope, kind=question.kind, body=question.body)
        opened = cast(Statistic, open_question(asked))
        price = self._seats.price(envelope.study, opened) if envelope.release == "private" else None
        numbers = self._seats.length(envelope.study, question)
        seats, study, shown = self._seats, envelope.study, envelope.template
        return self._charge(envelope, numbers, price, lambda: Opened(seats.open(study, question, shown)))

    def _check_budget(self, price: Fraction) -> None:
        """Refuse before computing what could not be opened later."""
        left = self.ledger.remaining()
        if left is not None and not self.ledger.fits(price, "rho"):
            raise BudgetError(self.ledger.currency, price, self.ledger.spent(), left)

    def _charge(
        self, envelope: Envelope, numbers: int, price: Fraction | None, protect: Callable[[], msgspec.Struct]
    ) -> bytes:
        """Enter the release and let it out: `protect` runs inside the transaction, which is on disk before the
        answer is returned. A price of None has no bound."""
        cap = self.policy.numbers_per_patient
        if cap is not None and price is None:
            released = self.ledger.numbers(mode="exact") + self.ledger.numbers(mode="masked")
            if released + numbers > cap * self._patients:
                raise Refused(
                    "numbers",
                    f"{numbers} numbers were asked for; {released} are released already and the cap is "
                    f"{cap:g} per patient, {int(cap * self._patients)} in all",
                )
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
            seal=lambda head: self._sign(envelope, protect(), charge, head),
        )

    def _reply(self, envelope: Envelope, body: msgspec.Struct) -> bytes:
        """An answer that releases nothing about patients, and is not charged."""
        return self._sign(envelope, body, None, self.ledger.head())

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
        return encode(msgspec.structs.replace(answer, signature=self.identity.sign(answer.signed)))

    def _refuse(
        self, envelope: Envelope | None, rule: str, reason: str, budget: BudgetError | None = None
    ) -> bytes:
        kind, study, question = (envelope.kind, envelope.study, envelope.id) if envelope else ("", "", "")
        log.info("site %s refused %r of study %r: %s", self.name, kind, study, rule)
        if envelope is not None:
            try:
                self.ledger.refuse(study, kind, question, rule)
            except ConciliumError:
                log.warning("site %s could not note a refusal in its ledger", self.name)
        return encode(
            Refusal(
                version=VERSION,
                id=question,
                site=self.name,
                rule=rule,
                reason=reason,
                asked=str(budget.asked) if budget else None,
                spent=str(budget.spent) if budget else None,
                left=str(budget.left) if budget else None,
                would_fit=str(budget.left) if budget else None,
            )
        )

    def _open_ledger(self, path: str | Path | None, records: Records) -> Ledger:
        where = ":memory:" if path is None else path
        budget = self.policy.budget
        if budget is None:
            return Ledger(where, site=self.name, records=records.digest)
        return Ledger(
            where,
            site=self.name,
            records=records.digest,
            budget=budget.amount,
            currency=budget.currency,
            delta=budget.exact_delta,
        )

    def _find_identity(self, path: str | Path | None) -> Identity:
        if path is None and self.ledger.path == ":memory:":
            return Identity.create()
        return Identity.at(path if path is not None else f"{self.ledger.path}.identity")

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {self._patients} patients)"


RULES: dict[type[ConciliumError], str] = {
    MessageError: "message",
    MaskError: "mask",
    RecordsError: "attribute",
    LedgerError: "ledger",
}
