"""A hospital: records, policy and ledger behind one door, `Site.answer`. There is no second way out.

The gate protects by rule, not by mathematics: under `exact` the house sees a site's numbers and small cells
single people out. What holds always: nothing leaves before its charge is on disk (privacy/ledger.py), no record
leaves, a column that policy withholds or that identifies patients does not exist outside, and whatever arrives
is met with an answer or a refusal, never with a traceback.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

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
from concilium.federation.disclosure import MOST_REFUSALS, Populations
from concilium.federation.held_out import Part
from concilium.federation.masking import Covered, End, Hello, Join, Meet, Open, Opened, Seats
from concilium.federation.messages import (
    VERSION,
    Answer,
    Charge,
    Envelope,
    LedgerHead,
    Refusal,
    Release,
    encode,
    open_envelope,
)
from concilium.federation.questions import Gathered, Statistic, open_question
from concilium.policy.policy import Policy
from concilium.privacy.identity import Identity, statement
from concilium.privacy.ledger import Head, Ledger
from concilium.records.table import Records

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())

# One text for all of it: which of them it was would tell something about the patients.
TOO_FEW = "too few patients match this question, or too few tell it apart from what was asked before"
ENDED = "this study was refused too often for too few patients; nothing more is answered to it"
TOO_MANY = (
    "more numbers were asked for than this hospital's cap leaves; the cap is by patients, so that what is left is not "
    "told under masks"
)
LEDGER_SAYS_NO = (
    "the site's ledger does not allow this answer (an id used before for something else, or a ledger that cannot be "
    "written or trusted); the site's own log says which"
)


class Refused(Exception):
    """A rule of the gate says no; becomes a Refusal, which may say what was asked, is spent, is left and would fit."""

    def __init__(self, rule: str, reason: str, **receipt: str) -> None:
        self.rule, self.reason, self.receipt = rule, reason, receipt
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
        if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():
            raise StudyError(f"a site's name must have 1 to 100 printable characters; got {name!r}")
        if not isinstance(records, Records):
            raise StudyError(
                f"site {name!r} takes Records, such as Records.read(...); got {type(records).__name__}"
            )
        if policy is not None and not isinstance(policy, Policy):
            raise StudyError(f"site {name!r} takes a Policy, such as Policy.read(...); got {policy!r}")
        self.name = name
        self.policy = policy if policy is not None else Policy()
        self._patients = len(records)
        self.policy.check(records.names)  # before any file is made
        self.ledger = ledger if isinstance(ledger, Ledger) else self._open_ledger(ledger, records)
        self.identity = identity if isinstance(identity, Identity) else self._find_identity(identity)
        if not isinstance(ledger, Ledger):
            self.ledger.bind_site(f"{name} ({self.identity.fingerprint})")
        self._view = View(records, self.policy, self._derive_secret())
        self._populations = Populations(self.ledger, records.digest, self.policy.minimum_patients)
        self._seats = Seats(name, self.identity, self.policy, self.ledger, records.digest)

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
            self._check_study(envelope.study)
            # The patients asked about, as constrained by policy.
            private = envelope.release == "private"
            view = self._view.stated if private else self._view
            cohort = view.select(question.query, question.target).under(envelope.release)
            plain = envelope.release == "exact" or (envelope.release == "masked" and not question.additive)
            if plain:  # enough patients? (of a masked sum when it is opened)
                self._check_patients(cohort)
            part: Part | None = getattr(question, "part", None)
            if part is not None:  # those who are held out, or all but those
                least = 0 if private else self.policy.minimum_patients
                cohort = part.choose(cohort, question.query, question.target, least)
            return self._release(envelope, question, cohort)  # compute, protect, charge, log, answer
        except Refused as refusal:
            return self._refuse(envelope, refusal.rule, refusal.reason, **refusal.receipt)
        except BudgetError as error:
            asked, spent, left = str(error.asked), str(error.spent), str(error.left)
            return self._refuse(
                envelope, "budget", str(error), asked=asked, spent=spent, left=left, would_fit=left
            )
        except QueryError as error:
            return self._refuse(envelope, "query", f"{error.problem} (column {error.column} of the query)")
        except LedgerError:
            # Its sentence names files of the hospital, which are nobody's business outside.
            log.exception("site %s has a ledger that does not allow an answer", self.name)
            return self._refuse(envelope, "ledger", LEDGER_SAYS_NO)
        except (MessageError, MaskError, RecordsError, StudyError) as error:
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
            fitting = ", ".join(self.policy.kinds)
            reason = f"questions of kind {envelope.kind!r} are not answered here"
            raise Refused("kind", reason, asked=envelope.kind, would_fit=fitting)
        if envelope.release not in self.policy.modes:
            fitting = ", ".join(self.policy.modes)
            reason = f"nothing is released as {envelope.release!r} here"
            raise Refused("mode", reason, asked=envelope.release, would_fit=fitting)
        seen = envelope.seen
        if seen is not None and not self.ledger.holds(Head(seen.count, seen.hash)):
            raise Refused(
                "rollback",
                f"this site's ledger is behind what it told the house before (entry {seen.count}): "
                "an older copy was put in its place, or another ledger; nothing is answered from it",
            )

    def _check_study(self, study: str) -> None:
        """Refuse a study that has felt its way along the limits too often."""
        if self.ledger.count_refused(study) >= MOST_REFUSALS:
            raise Refused("ended", ENDED)

    def _check_patients(self, cohort: Cohort) -> None:
        if len(cohort) < self.policy.minimum_patients:
            raise Refused("patients", TOO_FEW)

    def _release(self, envelope: Envelope, question: Statistic, cohort: Cohort) -> bytes:
        """A statistic as its release says: charged and plain, or under masks (with noise if private), and then not
        charged before it is opened."""
        masked = envelope.release != "exact" and question.additive
        if masked and (covered := self._seats.covered(envelope)) is not None:
            return self._reply(envelope, Covered(covered))
        if envelope.release == "private":
            self._check_budget(self._seats.price(envelope.study, question))
        statistic = question.compute(cohort, envelope.template)
        if envelope.release == "exact" or isinstance(statistic, Gathered):
            return self._release_exactly(envelope, cohort, statistic)
        return self._reply(envelope, Covered(self._seats.cover(envelope, question, statistic)))

    def _release_exactly(
        self, envelope: Envelope, cohort: Cohort, statistic: Gathered | NDArray[np.unsignedinteger]
    ) -> bytes:
        """Charged and plain, unless the patients asked about are too close to those of an earlier answer."""
        body = statistic if isinstance(statistic, Gathered) else Counts(pack_counts(statistic))

        def let_out() -> msgspec.Struct:
            if self.policy.differencing and not self._populations.admit(cohort.population):
                raise Refused("patients", TOO_FEW)
            return body

        numbers = statistic.numbers if isinstance(statistic, Gathered) else statistic.size
        return self._charge(envelope, numbers, None, let_out)

    def _open(self, envelope: Envelope, question: Open) -> bytes:
        # What is opened must be a question of this very release: noise goes with its price, and only with that.
        asked = msgspec.structs.replace(envelope, kind=question.kind, body=question.body)
        opened = cast(Statistic, open_question(asked))
        price = self._seats.price(envelope.study, opened) if envelope.release == "private" else None
        numbers = self._seats.length(envelope.study, question, envelope.release)
        if envelope.release == "masked":
            # Not before: what is covered is not charged, so that it must not tell whether there are enough.
            self._check_study(envelope.study)
            self._check_patients(self._view.select(opened.query, opened.target))
        seats, study, shown = self._seats, envelope.study, envelope.template
        release = envelope.release
        return self._charge(
            envelope, numbers, price, lambda: Opened(seats.open(study, question, shown, release))
        )

    def _check_budget(self, price: Fraction) -> None:
        """Refuse before computing what could not be opened later."""
        if self.ledger.currency != "rho":
            raise Refused(
                "currency",
                f"this hospital's budget is in {self.ledger.currency}, for pure mechanisms; the noise of this question "
                "is Gaussian and costs rho",
            )
        left = self.ledger.remaining()
        if left is not None and not self.ledger.fits(price, "rho"):
            raise BudgetError(self.ledger.currency, price, self.ledger.spent(), left)

    def _charge(
        self, envelope: Envelope, numbers: int, price: Fraction | None, protect: Callable[[], msgspec.Struct]
    ) -> bytes:
        """Enter the release and let it out: `protect` runs inside the transaction, which is on disk before the
        answer is returned. A price of None has no bound."""
        charge = Charge(envelope.release, None if price is None else str(price), numbers)

        def seal(head: Head) -> bytes:
            if price is None:
                self._check_numbers(numbers, envelope.release)
            return self._sign(envelope, protect(), charge, head)

        return self.ledger.charge(
            envelope.id,
            envelope.digest,
            study=envelope.study,
            kind=envelope.kind,
            mode=envelope.release,
            cost=price,
            currency=None if price is None else "rho",
            numbers=numbers,
            seal=seal,
        )

    def _check_numbers(self, numbers: int, release: Release) -> None:
        """Inside the transaction of a charge, which is counted already: no more exact numbers than policy allows.

        The cap is so many for each patient, so that what is left of it tells how many there are: under masks the
        refusal does not say it.
        """
        cap = self.policy.numbers_per_patient
        if cap is None:
            return
        with self.ledger.sharing() as connection:
            row = connection.execute(
                "SELECT sum(numbers) FROM entries WHERE mode IN ('exact', 'masked')"
            ).fetchone()
        most, before = int(cap * self._patients), row[0] - numbers
        if row[0] > most and release == "masked":
            raise Refused("numbers", TOO_MANY, asked=str(numbers))
        if row[0] > most:
            raise Refused(
                "numbers",
                f"{numbers} numbers were asked for; {before} are released already and the cap is "
                f"{cap:g} per patient, {most} in all",
                asked=str(numbers),
                spent=str(before),
                left=str(max(0, most - before)),
                would_fit=str(max(0, most - before)),
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

    def _refuse(self, envelope: Envelope | None, rule: str, reason: str, **receipt: str) -> bytes:
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
                asked=receipt.get("asked"),
                spent=receipt.get("spent"),
                left=receipt.get("left"),
                would_fit=receipt.get("would_fit"),
            )
        )

    def _open_ledger(self, path: str | Path | None, records: Records) -> Ledger:
        where = ":memory:" if path is None else path
        budget = self.policy.budget
        if budget is None:
            return Ledger(where, records=records.digest)
        return Ledger(
            where,
            records=records.digest,
            budget=budget.amount,
            currency=budget.currency,
            delta=budget.exact_delta,
        )

    def _derive_secret(self) -> bytes:
        """The site's own secret for `hash` and `shift_dates`, where its policy names none: a signature that it never
        sends, which is the same as long as its identity is."""
        return hashlib.sha256(self.identity.sign(statement("concilium/constraints-secret@1"))).digest()

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
    StudyError: "message",
}
