"""The studies that were proposed to a hospital, and what it decided on each: kept in the ledger's file.

Claim: what a person decides (agree, refuse, end) is entered in the chain of the ledger, with who and why, and signed by
the hospital's identity: a person's decision without that signature counts as none. What the policy agrees to is listed
with the studies. What a study may cost, in the ledger's currency, and that a kind is asked as often as it may be, is
kept here with the charges it bounds, in one transaction. Assumption: as for the ledger, nobody else writes the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import TYPE_CHECKING

from concilium.errors import LedgerError
from concilium.ledger import chain as chain
from concilium.privacy.identity import Identity, is_signed, statement

if TYPE_CHECKING:
    from concilium.ledger.ledger import Ledger

WAITING, AGREED, REFUSED, ENDED = "waiting", "agreed", "refused", "ended"
MOST_WAITING = 500
"""So many studies may wait at a time: of more, the one that waits longest makes room. Nobody can fill the disk."""

_FIELDS = "id, terms, signature, proposed, status, who, why, decided, seal, price, spent"
_INSERT = f"INSERT INTO study ({_FIELDS}) VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO"
_INSERT_NEW = f"{_INSERT} NOTHING"
# One that waited keeps when it was proposed.
_INSERT_DECIDED = f"""{_INSERT} UPDATE SET status = excluded.status, who = excluded.who, why = excluded.why,
    decided = excluded.decided, seal = excluded.seal"""


@dataclass(frozen=True)
class StudyRecord:
    """One study: its terms as they came, how it stands, who decided that, when and why, and what it may cost and has
    cost, in the ledger's currency."""

    id: str
    terms: bytes
    signature: bytes
    proposed: datetime
    status: str
    who: str
    why: str
    decided: datetime | None
    seal: bytes
    price: Fraction | None
    spent: Fraction

    def is_sealed(self, public: bytes) -> bool:
        """Whether the holder of this key decided so."""
        when = "" if self.decided is None else self.decided.isoformat(timespec="microseconds")
        return is_signed(_write_decision(self.id, self.status, self.who, self.why, when), self.seal, public)

    def counts_for(self, public: bytes) -> bool:
        """Whether the hospital of this key stands by how it is: what a person decided without its signature was never
        decided."""
        return self.status == WAITING or self.who == POLICY or self.is_sealed(public)


def _write_decision(study: str, status: str, who: str, why: str, when: str) -> bytes:
    return statement("concilium/decision@1", *(text.encode() for text in (study, status, who, why, when)))


class StudyBook:
    """Opened by `Ledger.studies`; threads may share it, and other processes have their own on the same file."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._file = ledger, ledger._file
        self._decisions = 0

    @property
    def version(self) -> int:
        """Another number whenever another process has written the file, or a person decided in this one."""
        if self._file.in_memory:
            return self._decisions
        with self._file.reading():
            return int(self._file.get("PRAGMA data_version")[0]) + self._decisions

    def find(self, study: str) -> StudyRecord | None:
        with self._file.joining():
            row = self._file.find(f"SELECT {_FIELDS} FROM study WHERE id = ?", (study,))
        return None if row is None else self._read(row)

    def list(self) -> list[StudyRecord]:
        """All studies, in the order in which they were proposed."""
        return list(self._select(""))

    def get(self, beginning: str) -> StudyRecord:
        """The one study whose id begins so; LedgerError where there is none, or more than one."""
        alike = self._select(beginning)
        if len(alike) != 1 or not beginning:
            number = "no study" if not alike else f"{len(alike)} studies"
            advice = "; give more of the id" if alike else "; look at the list of its studies"
            raise LedgerError(f"{self._ledger.path} has {number} whose id begins with {beginning!r}{advice}")
        return alike[0]

    def count_answers(self) -> dict[str, tuple[int, int]]:
        """By study: how many answers it got, and how many numbers without a bound were in them."""
        with self._file.reading():
            rows = list(
                self._file.rows(
                    f"SELECT study, count(*), ifnull(sum(CASE WHEN {chain.UNBOUNDED} THEN numbers END), 0)"
                    " FROM entries WHERE mode != ? GROUP BY study",
                    (chain.SETTINGS,),
                )
            )
        return {str(study): (int(answers), int(numbers)) for study, answers, numbers in rows}

    def wait(self, study: str, terms: bytes, signature: bytes, price: Fraction | None) -> None:
        """Enter a study that waits for a person."""
        with self._ledger.writing():
            self._insert(_INSERT_NEW, study, terms, signature, WAITING, "", "", "", price)
            (waiting,) = self._file.get("SELECT count(*) FROM study WHERE status = ?", (WAITING,))
            if waiting > MOST_WAITING:
                self._file.run(
                    "DELETE FROM study WHERE id IN (SELECT id FROM study WHERE status = ? ORDER BY proposed LIMIT ?)",
                    (WAITING, waiting - MOST_WAITING),
                )

    def agree_by_policy(
        self, study: str, terms: bytes, signature: bytes, price: Fraction | None, why: str
    ) -> None:
        """Enter that the policy agrees; inside `Ledger.writing`."""
        self._insert(_INSERT_DECIDED, study, terms, signature, AGREED, POLICY, why, chain.now(), price)

    def decide(self, study: str, status: str, who: str, why: str, identity: Identity) -> None:
        """A person's decision: on disk, and in the chain, on return."""
        if not who.strip() or not why.strip():
            raise LedgerError("a decision on a study says who decided, and why")
        with self._ledger.writing() as tail:
            record = self.find(study)
            if record is None:
                raise LedgerError(f"{self._ledger.path} has no study {study!r}")
            # What somebody else signed (or this hospital, with a key that it has lost) is not decided.
            before = record.status if record.counts_for(identity.public) else WAITING
            if status not in FOLLOWS[before]:
                by = f" by {record.who}: {record.why}" if before != WAITING else ""
                already = " already" if status == before else ""
                raise LedgerError(f"study {study[:12]} is {before}{already}{by}; {ADVICE[before]}")
            now = chain.now()
            seal = identity.sign(_write_decision(study, status, who, why, now))
            self._file.run(
                "UPDATE study SET status = ?, who = ?, why = ?, decided = ?, seal = ? WHERE id = ?",
                (status, who, why, now, seal, study),
            )
            note = f"{study} {status} by {who}: {why} (signed {seal.hex()})"
            self._ledger._enter_settings(tail, "study", chain.read_settings(self._file), note)
        self._decisions += 1

    def sign_again(self, old: Identity, new: Identity) -> None:
        """Sign what people decided by another identity of the same hospital; inside a transaction. A refusal whose
        signature no longer counted would be a study that nobody has decided on."""
        with self._file.joining(to_write=True):
            rows = list(self._file.rows(f"SELECT {_FIELDS} FROM study WHERE who != ?", (POLICY,)))
            for record in map(self._read, rows):
                if record.decided is not None and record.is_sealed(old.public):
                    when = record.decided.isoformat(timespec="microseconds")
                    decision = _write_decision(record.id, record.status, record.who, record.why, when)
                    self._file.run("UPDATE study SET seal = ? WHERE id = ?", (new.sign(decision), record.id))
        self._decisions += 1

    def spend(self, study: str, price: Fraction) -> Fraction | None:
        """Add to what a study has cost; inside a charge. What is left of its price is returned where that is too
        little, and then the charge must not stand."""
        with self._file.joining(to_write=True):
            row = self._file.find("SELECT price, spent FROM study WHERE id = ?", (study,))
            if row is None:
                raise LedgerError(f"{self._ledger.path} has no study {study!r}")
            most, spent = Fraction(row[0] or 0), Fraction(row[1])
            if spent + price > most:
                return most - spent
            self._file.run("UPDATE study SET spent = ? WHERE id = ?", (str(spent + price), study))
        return None

    def ask(self, study: str, kind: str, content: str, most: int) -> bool:
        """Whether a study may ask this of a kind that is answered in plain: at most so many different questions, this
        one among them from now on. Inside a charge."""
        with self._file.joining(to_write=True):
            self._file.run("INSERT OR IGNORE INTO study_asked VALUES (?, ?, ?)", (study, kind, content))
            (asked,) = self._file.get(
                "SELECT count(*) FROM study_asked WHERE study = ? AND kind = ?", (study, kind)
            )
        return int(asked) <= most

    def ask_once(self, study: str, kind: str, content: str) -> bool:
        """Whether a study has never asked this of a kind; from now on it has. Inside a charge."""
        with self._file.joining(to_write=True):
            before = self._file.find(
                "SELECT 1 FROM study_asked WHERE study = ? AND kind = ? AND content = ?",
                (study, kind, content),
            )
            self._file.run("INSERT OR IGNORE INTO study_asked VALUES (?, ?, ?)", (study, kind, content))
        return before is None

    def find_asked(self, study: str, kind: str) -> tuple[str, ...]:
        """What a study has asked of a kind, where that is noted."""
        with self._file.joining():
            rows = self._file.rows(
                "SELECT content FROM study_asked WHERE study = ? AND kind = ?", (study, kind)
            )
            return tuple(str(content) for (content,) in rows)

    def begin(self, study: str) -> None:
        """Note that a study has begun, once; inside `Ledger.writing`."""
        self._file.run("INSERT OR IGNORE INTO study_asked VALUES (?, '', '')", (study,))

    def has_begun(self, study: str) -> bool:
        """Whether its patients were compared with those of studies before, and found to be enough."""
        with self._file.joining():
            return (
                self._file.find("SELECT 1 FROM study_asked WHERE study = ? AND kind = ''", (study,))
                is not None
            )

    def price_of_month(self) -> Fraction:
        """The price of all studies that the policy agreed to this month (UTC), in the ledger's currency."""
        with self._file.joining():
            rows = list(
                self._file.rows(
                    "SELECT price FROM study WHERE who = ? AND price IS NOT NULL AND substr(decided, 1, 7) >= ?",
                    (POLICY, chain.now()[:7]),
                )
            )
        return sum((Fraction(price) for (price,) in rows), Fraction(0))

    def _insert(
        self,
        insertion: str,
        study: str,
        terms: bytes,
        signature: bytes,
        status: str,
        who: str,
        why: str,
        when: str,
        price: Fraction | None,
    ) -> None:
        written = None if price is None else str(price)
        values = (study, terms, signature, chain.now(), status, who, why, when, b"", written, "0")
        self._file.run(insertion, values)

    def _select(self, beginning: str) -> tuple[StudyRecord, ...]:
        """Those whose id begins so, in the order in which they were proposed."""
        query = f"SELECT {_FIELDS} FROM study WHERE substr(id, 1, ?) = ? ORDER BY proposed, id"
        with self._file.reading():
            rows = list(self._file.rows(query, (len(beginning), beginning)))
        return tuple([self._read(row) for row in rows])

    def _read(self, row: tuple[object, ...]) -> StudyRecord:
        study, terms, signature, proposed, status, who, why, decided, seal, price, spent = row
        try:
            return StudyRecord(
                str(study),
                bytes(terms),  # type: ignore[call-overload]
                bytes(signature),  # type: ignore[call-overload]
                datetime.fromisoformat(str(proposed)),
                str(status),
                str(who),
                str(why),
                datetime.fromisoformat(str(decided)) if decided else None,
                bytes(seal),  # type: ignore[call-overload]
                None if price is None else Fraction(str(price)),
                Fraction(str(spent)),
            )
        except (ValueError, TypeError, ZeroDivisionError):
            self._file.damaged("a study in it cannot be read")


POLICY = "policy"
"""Who decided where no person did."""

FOLLOWS = {
    WAITING: (AGREED, REFUSED),
    AGREED: (ENDED,),
    REFUSED: (AGREED,),
    ENDED: (),
}
"""What may become of a study: one that ended is never taken up again."""

ADVICE = {
    WAITING: "it can be agreed to or refused",
    AGREED: "it can be ended",
    REFUSED: "it can still be agreed to",
    ENDED: "it is not taken up again, so have the house propose a new one",
}
