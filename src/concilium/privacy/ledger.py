"""What a hospital has let out, and what that cost: one append-only SQLite file per site (docs/methods.md, section 0.6).

Claim. Protected: every patient of the site, from everyone who sees its answers, up to the budget the hospital set.
The sum of all private costs never exceeds the budget, whoever asks, from however many threads and processes, and
through `kill -9` or a power cut: entry, noise and stored answer are one transaction, and `charge` returns only when
it is on disk, so that a crash can over-count and never under-count. Releases without a bound (closed_lists.py) are
outside that claim and entered as unlimited. Assumptions: the disk keeps what it says it has synced; what is charged
is what the mechanism costs (accounting.py, with the references); nobody else writes to the tables of a ledger.

Every patient of the site is charged for every question, whether or not the question selects them: a balance that
depended on who matched would tell who matched.

Beside the chain of its entries a site remembers the patients that each plain answer was about, and the hospitals that
it has opened masked sums with. Who is protected: patients and hospitals, from two answers of which one is subtracted
from the other (the rules are in federation/disclosure.py and federation/masking.py). What is remembered inside a charge
is on disk with its entry, or not at all.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from types import TracebackType
from typing import Any, NoReturn, Self

from concilium.closed_lists import RELEASES
from concilium.errors import BudgetError, LedgerError
from concilium.privacy import accounting
from concilium.privacy import ledger_chain as chain
from concilium.privacy.accounting import Number
from concilium.privacy.ledger_chain import SETTINGS, Entry, Head, LedgerSettings, Tail
from concilium.privacy.ledger_file import open_to_read, open_to_write
from concilium.privacy.mask_store import SqliteMaskStore

__all__ = ["DEFAULT_DELTA", "SETTINGS", "Entry", "Head", "Ledger", "LedgerSettings", "RefusalNote"]

DEFAULT_DELTA = Fraction(1, 10**6)

MOST_NOTES = 10_000
LASTING_RULE = "patients"
"""The rule whose refusals depend on patients: they are counted by month (federation/desk.py)."""

# By what was asked, under whatever name: a question counts once in a month.
_REFUSED = """CREATE TABLE IF NOT EXISTS refused_for_patients (
    month TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (month, content)) WITHOUT ROWID"""

# Each is made when something is first remembered in it.
_MEMORY = {
    "disclosure_population": """CREATE TABLE IF NOT EXISTS disclosure_population (
    number INTEGER PRIMARY KEY, records TEXT NOT NULL, digest BLOB NOT NULL, patients BLOB NOT NULL,
    UNIQUE (records, digest))""",
    "mask_circle": """CREATE TABLE IF NOT EXISTS mask_circle (
    records TEXT NOT NULL, names TEXT NOT NULL, PRIMARY KEY (records, names)) WITHOUT ROWID""",
}
_EXACT_BITS = 1024
_GRID = 2**256


@dataclass(frozen=True)
class RefusalNote:
    """One line of the log of refusals, which is not part of the chain: nothing was released."""

    time: datetime
    study: str
    kind: str
    question: str
    rule: str


class Ledger:
    """A site's book of releases. Threads of one process may share it; other processes open the same file.

    `Ledger(path)` opens an existing ledger whatever its settings, or makes one: currency rho, delta 1e-6, no cap.
    Keyword arguments say what the ledger must be bound to, and one bound to something else is refused; a ledger
    not yet bound to a site or to records is bound by the first that names them. The budget is changed by
    `set_budget`, the records by `rebind`; each leaves an entry.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = ":memory:",
        *,
        site: str | None = None,
        records: str | None = None,
        budget: Number | None = None,
        currency: str | None = None,
        delta: Number | None = None,
    ) -> None:
        if currency not in (None, *accounting.CURRENCIES):
            raise LedgerError(f"a ledger's currency is 'epsilon' or 'rho'; got {currency!r}")
        requirements: dict[str, Any] = {
            "currency": currency,
            "delta": None if delta is None else accounting.exact_delta(delta),
            "budget": None if budget is None else _exact_budget(budget),
            "site": None if site is None else _text(site, "site"),
            "records": None if records is None else _text(records, "records digest"),
        }
        requirements = {name: value for name, value in requirements.items() if value is not None}
        default = LedgerSettings(currency="rho", delta=DEFAULT_DELTA, budget=None, site=None, records=None)
        self._file = open_to_write(path, lambda file: chain.begin(file, replace(default, **requirements)))
        self._records = records
        try:
            self._seen = self._recognise()
            self._file.make_durable()
            chain.check_writable(self._file)
            self._bind(requirements)
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def open_readonly(cls, path: str | os.PathLike[str]) -> Self:
        """A ledger to look at; no file is made or changed beside it, so it may lie on a read-only disk.

        Of a ledger in use, each look sees what is committed by then; of one at rest, what was there on opening.
        """
        ledger = cls.__new__(cls)
        ledger._file = open_to_read(path)
        ledger._records = None
        try:
            ledger._seen = ledger._recognise()
        except BaseException:
            ledger._file.close()
            raise
        return ledger

    def charge(
        self,
        question: str,
        digest: str,
        *,
        study: str,
        kind: str,
        mode: str,
        cost: Number | None = None,
        numbers: int = 0,
        seal: Callable[[Head], bytes],
        currency: str | None = None,
    ) -> bytes:
        """Enter a release, and return the answer that `seal` makes of the head after it once both are on disk.

        The same question with the same digest gets the stored answer and costs nothing; with another digest it is
        refused. `cost` is in the ledger's currency unless `currency` says otherwise (pure epsilon enters rho).
        `seal` runs inside the transaction: it draws the noise, and where it raises nothing was charged. Of this ledger
        it may use what joins that transaction, from `unbounded_numbers` to `mask_store` below, and nothing else.
        """
        for value, name in ((question, "question id"), (digest, "digest"), (kind, "kind"), (mode, "mode")):
            if not _text(value, name):
                raise LedgerError(f"a charge needs a {name}; got an empty one")
        _text(study, "study")
        if isinstance(numbers, bool) or not isinstance(numbers, int) or not 0 <= numbers < 2**63:
            raise LedgerError(f"the count of numbers released must be a whole number from 0; got {numbers!r}")
        price = self._price(mode, cost, currency)
        with self._writing() as tail:
            answer = chain.find_answer(self._file, question, digest)
            if answer is not None:
                return answer
            settings = chain.read_settings(self._file)
            if self._records is not None and settings.records != self._records:
                raise LedgerError(f"{self.path} was bound to other records while in use; open the site again")
            price = _enterable(price, tail.spent)
            if price is not None and settings.budget is not None and tail.spent + price > settings.budget:
                raise BudgetError(settings.currency, price, tail.spent, settings.budget - tail.spent)
            head = chain.append(
                self._file,
                tail,
                study=study,
                question=question,
                digest=digest,
                kind=kind,
                mode=mode,
                cost=price,
                numbers=numbers,
            )
            answer = seal(head)
            if not isinstance(answer, bytes):
                raise TypeError(f"seal must return the answer as bytes; got {type(answer).__name__}")
            chain.store(self._file, head, answer)
        self._seen = head
        return answer

    def recall(self, question: str, digest: str) -> bytes | None:
        """The stored answer to this question, or None where it was never answered."""
        with self._file.reading():
            return chain.find_answer(self._file, _text(question, "question id"), _text(digest, "digest"))

    def refuse(self, study: str, kind: str, question: str, rule: str) -> None:
        """Log a refusal and the rule behind it; the log is for the hospital and not part of the chain.

        A question that is asked again and refused by the same rule is noted once. Of more than MOST_NOTES the oldest
        are dropped, those of the lasting rule last: a house cannot fill the disk, nor have the site forget, by asking.
        """
        names = ("study", "kind", "question id", "rule")
        texts = [_text(value, name) for value, name in zip((study, kind, question, rule), names, strict=True)]
        with self._writing():
            self._note_refusal(*texts)

    def refuse_for_patients(self, study: str, kind: str, question: str, content: str) -> None:
        """Log a refusal by the lasting rule and count it, once for each content and month: on disk on return.

        The count is kept apart from the log, where nothing that is refused later can push it out.
        """
        with self._writing():
            self._file.run(_REFUSED)
            values = (self._find_month(), _text(content, "content"))
            if self._file.find("SELECT 1 FROM refused_for_patients WHERE month = ? AND content = ?", values):
                return
            self._file.run("INSERT INTO refused_for_patients VALUES (?, ?)", values)
            self._note_refusal(study, kind, question, LASTING_RULE)

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def settings(self) -> LedgerSettings:
        """What the ledger is bound to now (another process may have changed the budget or the records)."""
        with self._file.reading():
            return chain.read_settings(self._file)

    @property
    def currency(self) -> str:
        return self.settings.currency

    @property
    def delta(self) -> Fraction:
        return self.settings.delta

    @property
    def budget(self) -> Fraction | None:
        return self.settings.budget

    def fits(self, cost: Number | None, currency: str | None = None) -> bool:
        """Whether a charge of this cost would be accepted now; nothing is spent by asking."""
        price = None if cost is None else self._convert(cost, currency)
        with self._file.reading():
            spent, budget = chain.read_tail(self._file).spent, chain.read_settings(self._file).budget
        price = _enterable(price, spent)
        return price is None or budget is None or spent + price <= budget

    def spent(self) -> Fraction:
        """The exact sum of all costs entered."""
        with self._file.reading():
            return chain.read_tail(self._file).spent

    def remaining(self) -> Fraction | None:
        """What is left of the budget; None where none is set."""
        with self._file.reading():
            budget = chain.read_settings(self._file).budget
            return None if budget is None else budget - chain.read_tail(self._file).spent

    def epsilon(self) -> float:
        """The epsilon to show for everything released so far, at the ledger's delta; infinite is 'unlimited'."""
        with self._file.reading():
            spent, settings = chain.read_tail(self._file).spent, chain.read_settings(self._file)
            unlimited = self._file.find(f"SELECT 1 FROM entries WHERE {chain.UNBOUNDED} LIMIT 1")
        if unlimited:
            return math.inf
        if settings.currency == "rho":
            return accounting.epsilon_from_rho(spent, settings.delta)
        return accounting.float_above(spent)

    def numbers(self, study: str | None = None, mode: str | None = None) -> int:
        """How many numbers were released: in all, in one study, in one release mode."""
        with self._file.reading():
            (count,) = self._file.get(
                "SELECT ifnull(sum(numbers), 0) FROM entries"
                " WHERE study = ifnull(?, study) AND mode = ifnull(?, mode)",
                (study, mode),
            )
        return int(count)

    def entries(self) -> list[Entry]:
        """Every entry after the opening one, oldest first; a change of settings has mode 'settings'."""
        with self._file.reading():
            return list(chain.read_entries(self._file))

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
            if not self._has_refused():  # asked with every question, and nearly always the answer
                return 0, ""
            month = self._find_month()
            (count,) = self._file.get("SELECT count(*) FROM refused_for_patients WHERE month = ?", (month,))
        year, number = divmod(12 * int(month[:4]) + int(month[5:]), 12)
        return int(count), f"{year:04d}-{number + 1:02d}-01"

    def head(self) -> Head:
        """How far the chain has come."""
        with self._file.reading():
            return chain.read_tail(self._file).head

    def holds(self, head: Head) -> bool:
        """Whether that head is in our chain; where not, this file is older than, or not, the one it came from."""
        with self._file.reading():
            return chain.holds(self._file, head)

    def verify(self) -> int:
        """Check the whole file and return how many entries it has; the first thing wrong raises LedgerError.

        Found: a damaged file, a changed field or hash, an entry removed, inserted or moved, a changed or missing
        answer, a sum that is not the sum, a budget overspent. Not found, because what is left is a valid ledger: a
        cut tail, or a chain written anew from the start. Those are found by `holds`, with a head seen before.
        """
        with self._file.snapshot():
            return chain.verify(self._file)

    def rebind(self, records: str) -> None:
        """The hospital's table changed: bind to the new records' digest. What is spent stays spent."""
        digest = _text(records, "records digest")
        with self._writing() as tail:
            settings = chain.read_settings(self._file)
            if settings.records != digest:
                self._enter_settings(tail, "rebind", replace(settings, records=digest), "the records changed")
        self._records = digest

    def bind_site(self, site: str) -> None:
        """Bind to this site (its name and identity), or LedgerError where it is bound to another."""
        requirements = {"site": _text(site, "site")}
        self._bind(requirements if self._records is None else {**requirements, "records": self._records})

    def set_budget(self, budget: Number | None, reason: str) -> None:
        """Set a new budget (None: no cap) and say why; it may go up or down, but not below what is spent."""
        amount = None if budget is None else _exact_budget(budget)
        if not _text(reason, "reason").strip():
            raise LedgerError(f"a new budget for {self.path} needs a reason, which is entered beside it")
        with self._writing() as tail:
            settings = chain.read_settings(self._file)
            if amount is not None and amount < tail.spent:
                raise LedgerError(
                    f"the budget of {self.path} cannot become {settings.currency} = {accounting.shown(amount)}: "
                    f"{accounting.shown(tail.spent)} is spent already, and what was released cannot be taken back"
                )
            self._enter_settings(tail, "budget", replace(settings, budget=amount), reason)

    def unbounded_numbers(self) -> int:
        """How many numbers were released without a cost; inside `seal`, those of the entry being charged too."""
        with self._file.joining():
            (count,) = self._file.get(f"SELECT ifnull(sum(numbers), 0) FROM entries WHERE {chain.UNBOUNDED}")
        return int(count)

    def populations(self, records: str, after: int) -> list[tuple[int, bytes, bytes]]:
        """Number, digest and patients (as they were given) of what was remembered of these records since `after`."""
        return self._recollect(
            "disclosure_population",
            "SELECT number, digest, patients FROM disclosure_population"
            " WHERE records = ? AND number > ? ORDER BY number",
            (records, after),
        )

    def remember_population(self, records: str, digest: bytes, patients: bytes) -> None:
        """Keep whom a plain answer was about, once; inside `seal`, if and only if the charge stands."""
        self._remember(
            "disclosure_population",
            "INSERT OR IGNORE INTO disclosure_population (records, digest, patients) VALUES (?, ?, ?)",
            (records, digest, patients),
        )

    def circles(self) -> list[tuple[str, ...]]:
        """The circles of hospitals that masked sums were opened with, whatever the records were."""
        try:
            rows = self._recollect("mask_circle", "SELECT DISTINCT names FROM mask_circle")
            return [tuple(json.loads(names)) for (names,) in rows]
        except (ValueError, TypeError):
            self._file.damaged("a circle of hospitals in it cannot be read")

    def remember_circle(self, records: str, names: tuple[str, ...]) -> None:
        """Keep with whom a masked sum was opened, once for each state of the records; inside `seal`, if and only if the
        charge stands."""
        statement = "INSERT OR IGNORE INTO mask_circle VALUES (?, ?)"
        self._remember("mask_circle", statement, (records, json.dumps(names)))

    def mask_store(self) -> SqliteMaskStore:
        """Where the site keeps its masked studies: in this file, changed together with the charges they cause."""
        with self._file.joining(to_write=True) as connection:
            return SqliteMaskStore(connection, self._file.lock)

    def close(self) -> None:
        """Let go of the file; a closed ledger answers nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self.path!r})"

    @contextmanager
    def _writing(self) -> Iterator[Tail]:
        """A transaction at the end of the chain, if the chain still holds what this process saw of it."""
        with self._file.writing():
            tail = chain.read_tail(self._file)
            if tail.head != self._seen and not chain.holds(self._file, self._seen):
                raise LedgerError(
                    f"{self.path} was put back to an older state while in use; restore the newest copy"
                )
            yield tail

    def _find_month(self) -> str:
        """The month, such as 2026-11 (UTC); a clock that is put back begins no month anew."""
        latest = [chain.now(), chain.read_tail(self._file).time]
        if self._has_refused():
            latest.append(self._file.get("SELECT ifnull(max(month), '') FROM refused_for_patients")[0])
        return max(latest)[:7]

    def _has_refused(self) -> bool:
        """Whether the table is there, which is made with the first refusal that is counted."""
        return self._file.find("SELECT 1 FROM sqlite_master WHERE name = 'refused_for_patients'") is not None

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

    def _recognise(self) -> Head:
        with self._file.reading():
            chain.recognise(self._file)
            chain.read_settings(self._file)
            return chain.read_tail(self._file).head

    def _bind(self, requirements: dict[str, Any]) -> None:
        """Refuse a ledger that is bound to something else; bind one that is not bound yet."""
        if self._find_unbound(requirements, self.settings):
            with self._writing() as tail:
                settings = chain.read_settings(self._file)
                unbound = self._find_unbound(requirements, settings)
                if unbound:
                    note = f"bound to its {' and '.join(sorted(unbound))}"
                    self._enter_settings(tail, "bind", replace(settings, **unbound), note)

    def _find_unbound(self, requirements: dict[str, Any], settings: LedgerSettings) -> dict[str, Any]:
        unbound = {}
        for name, requirement in requirements.items():
            current = getattr(settings, name)
            if current is None and name in ("site", "records"):
                unbound[name] = requirement
            elif current != requirement:
                self._refuse_binding(name, current, requirement)
        return unbound

    def _refuse_binding(self, name: str, current: Any, requirement: Any) -> NoReturn:
        if name == "records":
            raise LedgerError(
                f"{self.path} is bound to other records (their digest begins {current[:12]}, not {requirement[:12]}); "
                "if the hospital's table changed, rebind the ledger to it: what is spent stays spent"
            )
        remedy = {
            "site": "give each site its own ledger, and keep its identity file beside it",
            "budget": "a budget is changed by set_budget, which enters the reason",
            "currency": "a ledger has one currency for good, so state that one or use another file",
            "delta": "a ledger has one delta for good, so state that one or use another file",
        }[name]
        raise LedgerError(f"{self.path} has {name} {_words(current)}, not {_words(requirement)}; {remedy}")

    def _enter_settings(self, tail: Tail, kind: str, settings: LedgerSettings, note: str) -> None:
        chain.append(self._file, tail, kind=kind, mode=SETTINGS, note=note, settings=settings)

    def _recollect(self, table: str, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._file.joining():
            is_made = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            return list(self._file.rows(query, values)) if self._file.find(is_made, (table,)) else []

    def _remember(self, table: str, statement: str, values: tuple[object, ...]) -> None:
        with self._file.joining(to_write=True):
            self._file.run(_MEMORY[table])
            self._file.run(statement, values)

    def _price(self, mode: str, cost: Number | None, currency: str | None) -> Fraction | None:
        if mode not in RELEASES:
            raise LedgerError(f"a release is {' or '.join(map(repr, RELEASES))}; got {mode!r}")
        if not RELEASES[mode].bounded:
            if cost is not None:
                raise LedgerError(f"{mode!r} is entered as unlimited and takes no cost; got {cost!r}")
            return None
        if cost is None:
            raise LedgerError(f"a release as {mode!r} needs its cost")
        return self._convert(cost, currency)

    def _convert(self, cost: Number, currency: str | None) -> Fraction:
        """The cost as an exact number in the ledger's currency."""
        price = accounting.exact_positive(cost, "cost")
        return price if currency is None else accounting.convert(price, currency, self.currency)


def _enterable(price: Fraction | None, spent: Fraction) -> Fraction | None:
    """The price as it is entered: as it is, until sums of very unlike fractions would need hundreds of digits.

    From there on it is rounded up, against us, to a multiple of 2^-256, so that a ledger can grow for ever.
    """
    if price is None or (spent + price).denominator.bit_length() <= _EXACT_BITS:
        return price
    return Fraction(math.ceil(price * _GRID), _GRID)


def _exact_budget(budget: Number) -> Fraction:
    value = accounting.exact(budget, "budget")
    if value < 0:
        raise LedgerError(f"a budget must not be below zero; got {value}")
    return value


def _words(value: object) -> str:
    if value is None:
        return "without a cap"
    return accounting.shown(value) if isinstance(value, Fraction) else repr(value)


def _text(value: str, name: str) -> str:
    if not isinstance(value, str):
        raise LedgerError(f"the {name} must be text; got {value!r}, a {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise LedgerError(f"the {name} must be text that UTF-8 can write; got {value!r}") from None
    return value
