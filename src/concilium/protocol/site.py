"""A hospital: records, policy and ledger behind one door, `Site.answer`. There is no second way out.

The gate protects by rule; how much an answer itself protects is the release's to say (releases/). What holds always:
nothing leaves before its charge is on disk (ledger/ledger.py), no record leaves, a column that policy withholds or
that identifies patients does not exist outside, and whatever arrives is met with an answer or a refusal, never with a
traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from concilium.errors import (
    BudgetError,
    ConciliumError,
    LedgerError,
    MaskError,
    MessageError,
    PolicyError,
    QueryError,
    RecordsError,
    StudyError,
    lacks_memory,
)
from concilium.ledger.chain import Head
from concilium.ledger.head import name_site
from concilium.ledger.ledger import Ledger
from concilium.ledger.memory import LASTING_RULE
from concilium.policy.policy import Policy
from concilium.privacy.identity import Identity, statement
from concilium.protocol.cohort import SiteCache, View
from concilium.protocol.disclosure import Populations
from concilium.protocol.masking import Memberships
from concilium.protocol.messages import Envelope, Refused, open_envelope, write_refusal
from concilium.protocol.meter import Meter
from concilium.protocol.patient_identity import derive_order, order_patients
from concilium.protocol.questions import Question, Statistic, Step, open_question
from concilium.protocol.releases import find_release
from concilium.protocol.releases.release import check_cap
from concilium.protocol.site_context import NO_BOUND, SiteContext
from concilium.protocol.studies import Studies
from concilium.protocol.terms import Agreed, Propose
from concilium.records.columns import Value
from concilium.records.patients import PatientPart, Patients
from concilium.records.table import Records

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())

NO_MEMORY = "the site's machine had not enough memory for this question: ask about fewer attributes at a time"
LEDGER_SAYS_NO = (
    "the site's ledger does not allow this answer (an id used before for something else, or a ledger that cannot be "
    "written or trusted); the site's own log says which"
)


class Site:
    """`Site("cleveland", records, policy=Policy.read("policy.toml"), ledger="cleveland.ledger")`.

    It holds one population: a table with one row for each patient, another part alone, or `Patients` with several
    parts (or with the column of patients' ids, which come once each, or once for each encounter). Without a ledger
    file the ledger is kept in memory: fine for a simulation, gone with the process. The site's identity is kept beside
    the ledger (`cleveland.ledger.identity`) unless another file is named. From it follows who is held out
    (held_out.py), unless a simulation, which is to come out the same again, gives the key itself.
    """

    def __init__(
        self,
        name: str,
        data: Records | Patients | PatientPart,
        policy: Policy | None = None,
        ledger: str | Path | Ledger | None = None,
        identity: str | Path | Identity | None = None,
        division_key: bytes | None = None,
    ) -> None:
        if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():
            raise StudyError(f"a site's name must have 1 to 100 printable characters; got {name!r}")
        patients = Patients.of(data)
        if patients is None:
            raise StudyError(
                f"site {name!r} takes Records, such as Records.read(...), or Patients; got {type(data).__name__}"
            )
        if policy is not None and not isinstance(policy, Policy):
            raise StudyError(f"site {name!r} takes a Policy, such as Policy.read(...); got {policy!r}")
        table = patients.selectable
        self.name = name
        # How the table changed since the ledger was last used (for the hospital alone); empty where it did not.
        self.grown = ""
        self.policy = policy if policy is not None else Policy()
        self.policy.check(table.names)  # before any file is made
        self.ledger = ledger if isinstance(ledger, Ledger) else self._open_ledger(ledger, patients, identity)
        if note := self.ledger.settle(self.policy.allowance):
            log.warning("site %s has a ledger whose budget changed: %s", name, note)
        self.identity = identity if isinstance(identity, Identity) else self._find_identity(identity)
        if self.policy.revokes(self.identity.public):
            raise PolicyError(
                f"the policy of {name!r} revokes {self.identity.fingerprint}, which is its own identity: rotate it "
                "(concilium identity rotate), or put the newest identity file back"
            )
        if not isinstance(ledger, Ledger):
            self.ledger.bind_site(f"{name} ({self.identity.fingerprint})")
        self._division_key = division_key or partial(
            _derive_secret, self.identity, "concilium/division-key@1"
        )
        self._reads = frozenset(patients.reads)
        secret = None
        if self.policy.graphs() is not None:
            secret = _derive_secret(self.identity, "concilium/constraints-secret@1")
        in_memory = self.ledger.path == ":memory:"
        view = View(
            table,
            self.policy,
            secret,
            patients.by,
            division_key=self._division_key,
            parts=patients.parts,
            cache=SiteCache(None if in_memory else Path(f"{self.ledger.path}.cache")),
            rows_are_patients=patients.rows_are_patients,
            site=name,
            owners=patients.owners,
        )
        populations = Populations(self.ledger, patients, self.policy.minimum_patients, view)
        memberships = Memberships(name, self.identity, self.policy, self.ledger, patients.digest)
        meter = Meter(
            self.policy.work,
            self.ledger,
            memberships,
            len(patients),
            len(table.names),
            in_store=table.room is not None,
            held=patients.bytes_held,
        )
        where = "in memory" if table.room is None else f"on disk in {table.room}"
        log.info(
            "site %s: %d rows x %d columns %s; it takes %s",
            name,
            len(table),
            len(table.names),
            where,
            meter.describe_memory(),
        )
        self._context = SiteContext(
            name=name,
            identity=self.identity,
            policy=self.policy,
            ledger=self.ledger,
            currency=self.ledger.settings.currency,
            view=view,
            patients=patients.people,
            studies=Studies(name, self.identity, self.policy, self.ledger, view, populations, meter),
            memberships=memberships,
            meter=meter,
        )

    def answer(self, message: bytes) -> bytes:
        """The gate. Bytes of a question in; bytes of an answer or a refusal out."""
        envelope: Envelope | None = None
        try:
            envelope = open_envelope(message)
            release = find_release(envelope.release)
            question = open_question(envelope)  # known kind?
            if isinstance(question, Propose):  # a study: agreed, refused, or to be decided by a person
                self._notice_rollback(envelope.seen)
                agreed = self._context.studies.consider(question)
                if agreed.numbers:  # what is said of the table depends on patients
                    return self._tell_of_table(envelope, agreed, tell_cap=release.by_site)
                return self._context.reply(envelope, agreed)
            self._allow(envelope, question)  # allowed here?
            if not (isinstance(question, Step) and question.before_study):
                self._context.studies.hold(envelope, question)  # agreed to?
            self._notice_rollback(envelope.seen)  # once it is proven that the house saw it
            stored = self.ledger.recall(envelope.id, envelope.digest)  # asked before? the same bytes, free
            if stored is not None:
                return stored
            if isinstance(question, Step):  # what the release has to agree on with its sites
                return release.step(self._context, envelope, question)
            if not isinstance(question, Statistic):
                raise MessageError(f"nothing is answered to a question of kind {envelope.kind!r}")
            self._context.meter.admit(envelope, question, release)  # not too much work?
            # Select, compute, protect, charge, answer: as the release says.
            return release.answer(self._context, envelope, question)
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
            if not error.leaves:
                log.error("site %s could not answer: %s", self.name, error)
            rule = next(RULES[kind] for kind in type(error).__mro__ if kind in RULES)
            return self._refuse(envelope, rule, error.outside)
        except Exception as error:
            if lacks_memory(error):
                kind = envelope.kind if envelope else ""
                log.error(
                    "site %s had not enough memory for a question of kind %r: %s", self.name, kind, error
                )
                return self._refuse(envelope, "work", NO_MEMORY)
            log.exception("site %s could not answer a question", self.name)
            return self._refuse(envelope, "internal", "the site could not answer; its own log says why")

    def _tell_of_table(self, envelope: Envelope, agreed: Agreed, *, tell_cap: bool) -> bytes:
        """An agreement that says something of the table, charged as any plain answer is."""

        def let_out() -> Agreed:
            check_cap(self._context, agreed.numbers, tell_cap=tell_cap)
            return agreed

        return self._context.charge(envelope, agreed.numbers, NO_BOUND, let_out)

    @property
    def division_key(self) -> bytes:
        """What decides who is held out: the same also after a rotation of the identity, and never sent."""
        return self._division_key if isinstance(self._division_key, bytes) else self._division_key()

    def introduce(self, peers: Mapping[str, str], house: str) -> bool:
        """Know a house of this process, and take its word for who the peers are, for want of pinned ones.

        False where the policy pins peers: those stand.
        """
        self._context.studies.introduce(house)
        return self._context.memberships.introduce(peers)

    def name_patients(self, study: str) -> list[Value | None]:
        """For the hospital itself: the ids of the patients whose entries it handed on in a study, in the order of the
        numbers they had there."""
        method = self._context.studies.look_up(study).method
        if method.handed_on not in self._reads:
            raise StudyError(f"study {study[:12]} hands on no entries of patients that {self.name} holds")
        ids = self._context.view.select(method.query, method.must_know).take_part(method.handed_on).ids
        return [ids[row] for row in order_patients(derive_order(self.identity, study), ids).tolist()]

    def _allow(self, envelope: Envelope, question: Question) -> None:
        if envelope.kind not in self.policy.kinds:
            fitting = ", ".join(self.policy.kinds)
            reason = f"questions of kind {envelope.kind!r} are not answered here"
            raise Refused("kind", reason, asked=envelope.kind, would_fit=fitting)
        if envelope.release not in self.policy.modes:
            fitting = ", ".join(self.policy.modes)
            reason = f"nothing is released as {envelope.release!r} here"
            raise Refused("mode", reason, asked=envelope.release, would_fit=fitting)
        if isinstance(question, Statistic) and not question.reads <= self._reads:
            absent = ", ".join(sorted(question.reads - self._reads))
            raise Refused("kind", f"this hospital holds no {absent} of its patients", asked=envelope.kind)

    def _notice_rollback(self, seen: Head | None) -> None:
        if seen is not None and not self.ledger.holds(seen):
            raise Refused(
                "rollback",
                f"this site's ledger is behind what it told the house before (entry {seen.count}): "
                "an older copy was put in its place, or another ledger; nothing is answered from it",
            )

    def _refuse(self, envelope: Envelope | None, rule: str, reason: str, **receipt: str) -> bytes:
        kind, study, question = (envelope.kind, envelope.study, envelope.id) if envelope else ("", "", "")
        log.info("site %s refused %r of study %r: %s", self.name, kind, study, rule)
        if envelope is not None and rule != LASTING_RULE:  # which is noted when it is decided (studies.py)
            try:
                self.ledger.refuse(study, kind, question, rule)
            except ConciliumError:
                log.warning("site %s could not note a refusal in its ledger", self.name)
        return write_refusal(self.identity, self.name, question, rule, reason, **receipt)

    def _open_ledger(
        self, path: str | Path | None, patients: Patients, identity: str | Path | Identity | None
    ) -> Ledger:
        budget = self.policy.budget
        digest = self._find_digest(path, patients)
        open_for = partial(
            Ledger,
            ":memory:" if path is None else path,
            currency=None if budget is None else budget.currency,
            delta=None if budget is None else budget.exact_delta,
            allowance=self.policy.allowance,
        )
        try:
            return open_for(records=digest)
        except LedgerError:
            self._refuse_stranger(path)
            if path is None or (patients.by is None and patients.table is not None):
                raise
            book = open_for()
            file = identity if identity is not None else f"{path}.identity"
            if not isinstance(file, Identity) and not Path(file).exists():
                book.close()
                raise
            own = file if isinstance(file, Identity) else Identity.at(file)
            if not self._goes_on(book, patients, digest, own):
                book.close()
                raise
            return book

    def _refuse_stranger(self, path: str | Path | None) -> None:
        """LedgerError where a ledger is bound to another site: there is nothing to rebind then."""
        if path is None or not Path(path).exists():
            return
        with Ledger.open_readonly(path) as book:
            owner = book.settings.site
        if owner is not None and name_site(owner) != self.name:
            raise LedgerError(
                f"{path} is the ledger of {name_site(owner)!r}, and was given to {self.name!r}: name the ledger of "
                f"{self.name!r}, or put the files back if they were swapped. To rebind this one would enter what "
                f"{self.name!r} releases in another hospital's book"
            )

    def _goes_on(self, book: Ledger, patients: Patients, digest: str, identity: Identity) -> bool:
        """Bind a ledger of this hospital to its table as it is now, where patients are known by an id: some were added,
        corrected or taken out, which is entered. What is spent stays spent, and whom earlier answers were about stays
        remembered, by id, over all versions of the table.

        False where the ledger is another site's, or its patients are hardly in this table: that is a slip.
        """
        settings = book.settings
        if settings.records in (None, digest) or settings.site != f"{self.name} ({identity.fingerprint})":
            return False
        known, still = Populations(book, patients, self.policy.minimum_patients).count_known()
        if still < known / 2:
            return False
        said = f"; of {known} patients who are remembered {still} are in it" if known else ""
        self.grown = (
            f"the table has changed since its ledger was last used: {patients.people} patients now{said}"
        )
        book.rebind(digest, note=self.grown)
        return True

    def _find_digest(self, path: str | Path | None, patients: Patients) -> str:
        """What the ledger is to be bound to: all parts together; or the table alone, where a ledger of that table is
        there already. What else is held of the same patients opens no new account."""
        if path is not None and patients.table is not None and Path(path).exists():
            with Ledger.open_readonly(path) as book:
                if book.settings.records == patients.table.digest:
                    return patients.table.digest
        return patients.digest

    def _find_identity(self, path: str | Path | None) -> Identity:
        if path is None and self.ledger.path == ":memory:":
            return Identity.create()
        return Identity.at(path if path is not None else f"{self.ledger.path}.identity")

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {self._context.patients} patients)"


def _derive_secret(identity: Identity, purpose: str) -> bytes:
    """A site's own secret for `hash` and `shift_dates` (where its policy names none), or for another purpose. It is
    never sent, and stays the same when the identity is rotated."""
    return identity.derive(statement(purpose))


RULES: dict[type, str] = {
    MessageError: "message",
    MaskError: "mask",
    RecordsError: "attribute",
    StudyError: "message",
}
