"""A ledger's log of refusals, and its count of those that depended on patients.

Neither is part of the chain: nothing was released. Protected by the count: patients in small groups, from houses that
feel their way along the limits (protocol/studies.py); it is on disk before the refusal leaves, kept apart from the
log, where nothing that is refused later can push it out, and begins anew with a month and not with a clock that is put
back.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from concilium.ledger import chain as chain
from concilium.ledger.chain import Tail
from concilium.ledger.file import LedgerFile, require_text

MOST_NOTES = 10_000
LASTING_RULE = "patients"
"""The rule whose refusals depend on patients: they are counted by month (protocol/studies.py)."""

# By what was asked, under whatever name: a question counts once in a month.
_REFUSED = """CREATE TABLE IF NOT EXISTS refused_for_patients (
    month TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (month, content)) WITHOUT ROWID"""


@dataclass(frozen=True)
class RefusalNote:
    """One line of the log of refusals, which is not part of the chain: nothing was released."""

    time: datetime
    study: str
    kind: str
    question: str
    rule: str


class RefusalLog:
    """The refusals of a ledger."""

    _file: LedgerFile

    def _writing(self) -> AbstractContextManager[Tail]:
        raise NotImplementedError

    def refuse(self, study: str, kind: str, question: str, rule: str) -> None:
        """Log a refusal and the rule behind it; the log is for the hospital and not part of the chain.

        A question that is asked again and refused by the same rule is noted once. Of more than MOST_NOTES the oldest
        are dropped, those of the lasting rule last: a house cannot fill the disk, nor have the site forget, by asking.
        """
        names = ("study", "kind", "question id", "rule")
        texts = [
            require_text(value, name)
            for value, name in zip((study, kind, question, rule), names, strict=True)
        ]
        with self._writing():
            self._note_refusal(*texts)

    def refuse_for_patients(self, study: str, kind: str, question: str, content: str) -> None:
        """Log a refusal by the lasting rule and count it, once for each content and month: on disk on return.

        The count is kept apart from the log, where nothing that is refused later can push it out.
        """
        with self._writing():
            self._file.run(_REFUSED)
            values = (self._find_month(), require_text(content, "content"))
            if self._file.find("SELECT 1 FROM refused_for_patients WHERE month = ? AND content = ?", values):
                return
            self._file.run("INSERT INTO refused_for_patients VALUES (?, ?)", values)
            self._note_refusal(study, kind, question, LASTING_RULE)

    def refusals(self, study: str | None = None) -> list[RefusalNote]:
        """The log of refusals, oldest first."""
        with self._file.reading():
            rows = self._file.rows(
                "SELECT time, study, kind, question, rule FROM refusals WHERE study = ifnull(?, study) ORDER BY number",
                (study,),
            )
            return [RefusalNote(chain.parse_time(self._file, when), *rest) for when, *rest in rows]

    def count_refused(self) -> tuple[int, str]:
        """To how many different questions the lasting rule said no this month, and the day that ends the month."""
        with self._file.reading():
            if not self._has_refused():  # nearly always the answer
                return 0, ""
            month = self._find_month()
            (count,) = self._file.get("SELECT count(*) FROM refused_for_patients WHERE month = ?", (month,))
        year, number = divmod(12 * int(month[:4]) + int(month[5:]), 12)
        return int(count), f"{year:04d}-{number + 1:02d}-01"

    def _find_month(self) -> str:
        """The month, such as 2026-11 (UTC); a clock that is put back begins no month anew."""
        latest = [chain.now(), chain.read_tail(self._file).time]
        if self._has_refused():
            latest.append(self._file.get("SELECT ifnull(max(month), '') FROM refused_for_patients")[0])
        return max(latest)[:7]

    def _has_refused(self) -> bool:
        """Whether the table is there, which is made with the first refusal that is counted."""
        return self._file.has_table("refused_for_patients")

    def _note_refusal(self, *texts: str) -> None:
        if self._file.find(
            "SELECT 1 FROM refusals WHERE study = ? AND kind = ? AND question = ? AND rule = ?", texts
        ):
            return
        self._file.run(
            "INSERT INTO refusals (time, study, kind, question, rule) VALUES (?, ?, ?, ?, ?)",
            (chain.now(), *texts),
        )
        (notes,) = self._file.get("SELECT count(*) FROM refusals")
        if notes > MOST_NOTES:
            self._file.run(
                "DELETE FROM refusals WHERE number IN"
                " (SELECT number FROM refusals ORDER BY rule = ?, number LIMIT ?)",
                (LASTING_RULE, notes - MOST_NOTES),
            )
