"""What a hospital has let out, and what that cost: one append-only SQLite file per site (docs/methods.md, section 0.6).

Claim. Protected: every patient of the site, from everyone who sees its answers, up to the budget the hospital set.
The sum of all private costs never exceeds the budget, whoever asks, from however many threads and processes, and
through `kill -9` or a power cut: entry, noise and stored answer are one transaction, and `charge` returns only when
it is on disk, so that a crash can over-count and never under-count. Releases without a bound (registry.py) are
outside that claim and entered as unlimited. Assumptions: the disk keeps what it says it has synced; what is charged
is what the mechanism costs (accounting.py, with the references); nobody else writes to the tables of a ledger.

Every patient of the site is charged for every question, whether or not the question selects them: a balance that
depended on who matched would tell who matched.

What a site remembers beside the chain of its entries is in memory.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from concilium.errors import LedgerError
from concilium.ledger import chain as chain
from concilium.ledger.budgets import BY_STEWARD, Allowance, Balance, settle
from concilium.ledger.chain import SETTINGS, Entry, Head, LedgerSettings, Tail
from concilium.ledger.file import LedgerFile, no_ledger, open_to_read, open_to_write, require_text, write_copy
from concilium.ledger.head import HeadFile, find_problem, find_swap, name_site, read_head
from concilium.ledger.mask_store import SqliteMaskStore
from concilium.ledger.memory import (
    LASTING_RULE,
    MEMORY_TABLES,
    OF_HOUSE,
    REFUSAL_TABLE,
    LedgerMemory,
    RefusalLog,
    RefusalNote,
)
from concilium.ledger.study_book import StudyBook
from concilium.privacy import accounting
from concilium.privacy.accounting import Number
from concilium.privacy.identity import Identity, statement
from concilium.registry import RELEASES

__all__ = [
    "DEFAULT_DELTA",
    "LASTING_RULE",
    "SETTINGS",
    "Entry",
    "Head",
    "Ledger",
    "LedgerSettings",
    "RefusalNote",
]

DEFAULT_DELTA = Fraction(1, 10**6)

_TABLES = (*MEMORY_TABLES, REFUSAL_TABLE)
_EXACT_BITS = 1024
_GRID = 2**256


class Ledger(LedgerMemory, RefusalLog):
    """A site's book of releases. Threads of one process may share it; other processes open the same file.

    `Ledger(path)` opens an existing ledger whatever its settings, or makes one: currency rho, delta 1e-6, no cap.
    Keyword arguments say what the ledger must be bound to, and one bound to something else is refused; a ledger
    not yet bound to a site or to records is bound by the first that names them. The
    budget is changed by `set_budget`, the records by `rebind`; each leaves an entry. A site's ledger is made under the
    `allowance` of its policy, and held to it by `settle`: one without a budget gets the default (budgets.py). How far
    it has come is kept in a file beside it (head.py), and one that is behind that is refused until
    `accept_restored`.
    """

    _file: LedgerFile
    _seen: Head
    _head_file: HeadFile | None = None
    _entered: Head | None = None
    _absent: tuple[str, Head] | None = None
    _is_setting: bool = False
    _site: str | None = None

    def __init__(
        self,
        path: str | os.PathLike[str] = ":memory:",
        *,
        site: str | None = None,
        records: str | None = None,
        budget: Number | None = None,
        currency: str | None = None,
        delta: Number | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        if currency not in (None, *accounting.CURRENCIES):
            raise LedgerError(f"a ledger's currency is 'epsilon' or 'rho'; got {currency!r}")
        requirements: dict[str, Any] = {
            "currency": currency,
            "delta": None if delta is None else accounting.exact_delta(delta),
            "budget": None if budget is None else _exact_budget(budget),
            "site": None if site is None else require_text(site, "site"),
            "records": None if records is None else require_text(records, "records digest"),
        }
        requirements = {name: value for name, value in requirements.items() if value is not None}
        default = LedgerSettings(currency="rho", delta=DEFAULT_DELTA, budget=None, site=None, records=None)
        begun = replace(default, **requirements)
        if allowance is not None:
            begun, _ = settle(begun, Fraction(0), allowance)
        self._file = open_to_write(path, lambda file: chain.begin(file, begun, _TABLES))
        self._records = records
        try:
            self._open_head()
            self._bind(requirements)
        except BaseException:
            self.close()
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
            with ledger._file.reading():
                ledger._seen = chain.recognise(ledger._file)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def accept_restored(cls, path: str | os.PathLike[str], reason: str) -> Head:
        """Go on with a ledger that is behind its head file, or has lost it, knowingly: the reason is entered.

        What was entered after the copy was made is lost: it counts neither as spent nor as remembered. The head from
        which the ledger goes on is returned.
        """
        if not require_text(reason, "reason").strip():
            raise LedgerError(f"to accept {os.fspath(path)} as it is needs a reason, which is entered")
        if not Path(path).exists():
            raise no_ledger(path)
        ledger = cls.__new__(cls)
        ledger._file = open_to_write(path, lambda file: None)
        ledger._records = None
        try:
            problem = ledger._open_head(accepting=True)
            if problem is None:
                raise LedgerError(f"{ledger.path} is not behind its head file; there is nothing to accept")
            if swapped := find_swap(ledger.path, ledger.settings.site):
                raise LedgerError(swapped)
            with ledger.writing(accepting=True) as tail:
                settings = chain.read_settings(ledger._file)
                ledger._enter_settings(tail, "restored", settings, f"{reason} ({problem})")
            return ledger._seen
        finally:
            ledger.close()

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
        paid: bool = False,
    ) -> bytes:
        """Enter a release, and return the answer that `seal` makes of the head after it once both are on disk.

        The same question with the same digest gets the stored answer and costs nothing; with another digest it is
        refused. `cost` is in the ledger's currency unless `currency` says otherwise (pure epsilon enters rho); what
        is `paid` for, or told by what is, costs no more (protocol/releases/local.py).
        `seal` runs inside the transaction: it draws the noise, and where it raises nothing was charged. Of this ledger
        it may use what joins that transaction, from `unbounded_numbers` to `mask_store` below, and nothing else.
        """
        for value, name in ((question, "question id"), (digest, "digest"), (kind, "kind"), (mode, "mode")):
            if not require_text(value, name):
                raise LedgerError(f"a charge needs a {name}; got an empty one")
        require_text(study, "study")
        if isinstance(numbers, bool) or not isinstance(numbers, int) or not 0 <= numbers < 2**63:
            raise LedgerError(f"the count of numbers released must be a whole number from 0; got {numbers!r}")
        price = Fraction(0) if paid and cost is None else self._price(mode, cost, currency)
        with self.writing() as tail:
            if self._absent != (question, tail.head):  # else it was looked for, and nothing was entered since
                answer = chain.find_answer(self._file, question, digest)
                if answer is not None:
                    return answer
            settings = chain.read_settings(self._file)
            if self._records is not None and settings.records != self._records:
                raise LedgerError(f"{self.path} was bound to other records while in use; open the site again")
            if self._site is not None and settings.site != self._site:
                raise LedgerError(
                    f"{self.path} was bound to another identity while in use; start the site again"
                )
            price, spent = _enterable(price, tail.spent)
            is_within = settings.budget is None or spent <= settings.budget
            if price is not None and not (is_within and settings.per_month is None):
                self._find_balance(settings, tail).check(price)
            head = chain.append(
                self._file,
                tail,
                study=study,
                question=question,
                digest=digest,
                kind=kind,
                mode=mode,
                cost=price,
                spent=spent,
                numbers=numbers,
            )
            answer = seal(head)
            if not isinstance(answer, bytes):
                raise TypeError(f"seal must return the answer as bytes; got {type(answer).__name__}")
            chain.store(self._file, head, answer)
            self._entered = head
        return answer

    def recall(self, question: str, digest: str) -> bytes | None:
        """The stored answer to this question, or None where it was never answered."""
        require_text(question, "question id")
        with self._file.reading():
            answer = chain.find_answer(self._file, question, require_text(digest, "digest"))
            # A chain that ends where it was last seen to end has had nothing added since.
            self._absent = None if answer is not None else (question, self._seen)
        return answer

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def settings(self) -> LedgerSettings:
        """What the ledger is bound to now (another process may have changed the budget or the records)."""
        with self._file.reading():
            return chain.read_settings(self._file)

    def check_room(self, cost: Number | None, currency: str | None = None) -> None:
        """BudgetError unless a charge of this cost would be accepted now; nothing is spent by asking."""
        price = None if cost is None else self._convert(cost, currency)
        balance = self.balance()
        price, _ = _enterable(price, balance.spent)
        if price is not None:
            balance.check(price)

    def balance(self, allowance: Allowance | None = None) -> Balance:
        """What is spent and what is left, in all and of this month; with an allowance, as `settle` would have it."""
        with self._file.reading():
            settings, tail = chain.read_settings(self._file), chain.read_tail(self._file)
            if allowance is not None:
                settings, _ = settle(settings, tail.spent, allowance)
            return self._find_balance(settings, tail)

    def spent(self) -> Fraction:
        """The exact sum of all costs entered."""
        with self._file.reading():
            return chain.read_tail(self._file).spent

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

    def remaining(self) -> Fraction | None:
        """What is left of the budget; None where none is set."""
        with self._file.reading():
            budget = chain.read_settings(self._file).budget
            return None if budget is None else budget - chain.read_tail(self._file).spent

    def entries(self) -> list[Entry]:
        """Every entry after the opening one, oldest first; a change of settings has mode 'settings'."""
        with self._file.reading():
            return list(chain.read_entries(self._file))

    def page(self, before: int | None = None, most: int = 100) -> list[Entry]:
        """The newest entries, or those before the entry with this number, newest first; quick in a long ledger."""
        with self._file.reading():
            return list(chain.read_page(self._file, 2**62 if before is None else before, most))

    def spending(self, points: int = 200) -> list[tuple[datetime, Fraction]]:
        """What was spent in all, over time: at about so many entries, the last among them."""
        with self._file.reading():
            return chain.read_spending(self._file, points)

    def head(self) -> Head:
        """How far the chain has come."""
        with self._file.reading():
            return chain.read_tail(self._file).head

    def holds(self, head: Head) -> bool:
        """Whether that head is in our chain; where not, this file is older than, or not, the one it came from.

        The one that was entered last here is: that it still is in the file is looked at before each charge.
        """
        with self._file.reading():
            return head == self._seen or chain.holds(self._file, head)

    def verify(self) -> int:
        """Check the whole file and return how many entries it has; the first thing wrong raises LedgerError.

        Found: a damaged file, a changed field or hash, an entry removed, inserted or moved, a changed or missing
        answer, a sum that is not the sum, a budget overspent. Not found, because what is left is a valid ledger: a
        cut tail, or a chain written anew from the start. Those are found by the head beside the file, which is looked
        at where it is there, and by `holds`, with a head seen before.
        """
        kept = None if self._file.in_memory else read_head(Path(self.path).resolve())
        with self._file.snapshot():
            count = chain.verify(self._file)
            problem = kept and find_problem(self._file, kept, chain.read_tail(self._file).head)
            if problem:
                raise LedgerError(problem)
            return count

    def rebind(self, records: str, forget: str | None = None, note: str = "the records changed") -> None:
        """The hospital's table changed: bind to the new records' digest, with a note of how. What is spent stays spent.

        Whom earlier answers were about is remembered still, unless `forget` says why not: what was answered could then
        be subtracted from what will be.
        """
        digest = require_text(records, "records digest")
        if forget is not None and not require_text(forget, "reason").strip():
            raise LedgerError(f"to forget the patients of {self.path} needs a reason, which is entered")
        if swapped := find_swap(self.path, self.settings.site):
            raise LedgerError(swapped)
        with self.writing() as tail:
            settings = chain.read_settings(self._file)
            if forget is not None:
                note += f"; whom {self._forget_patients()} answers were about was forgotten: {forget}"
            if forget is not None or settings.records != digest:
                self._enter_settings(tail, "rebind", replace(settings, records=digest), note)
        self._records = digest

    def forget_peer(self, fingerprint: str, reason: str) -> None:
        """Take another hospital's ledger as it is from now on: it accepted a restored one, and said so to people."""
        if not require_text(reason, "reason").strip():
            raise LedgerError(f"to forget a peer's ledger in {self.path} needs a reason, which is entered")
        with self.writing() as tail:
            known = self.peer_heads().get(fingerprint)
            if known is None:
                raise LedgerError(f"{self.path} remembers no ledger of {fingerprint}; check the fingerprint")
            self._forget_peer(fingerprint)
            note = f"entry {known.count} of the ledger of {fingerprint} was forgotten: {reason}"
            self._enter_settings(tail, "peer", chain.read_settings(self._file), note)

    def bind_site(self, site: str) -> None:
        """Bind to this site (its name and identity), or LedgerError where it is bound to another."""
        requirements = {"site": require_text(site, "site")}
        self._bind(requirements if self._records is None else {**requirements, "records": self._records})
        self._site = site

    def replace_identity(self, old: Identity, new: Identity, reason: str) -> None:
        """Bind to the same hospital under a new identity: the reason, both fingerprints and a signature by each are
        entered, and what people decided is signed again. Nothing that is spent or remembered changes. Once it is bound
        to the new identity, nothing more happens."""
        if not require_text(reason, "reason").strip():
            raise LedgerError(f"a new identity for {self.path} needs a reason, which is entered")
        with self.writing() as tail:
            settings = chain.read_settings(self._file)
            name = "" if settings.site is None else name_site(settings.site)
            if settings.site == f"{name} ({new.fingerprint})":
                return
            if settings.site != f"{name} ({old.fingerprint})":
                raise LedgerError(
                    f"{self.path} is the ledger of {settings.site or 'no hospital yet'}, and this is the identity "
                    f"{old.fingerprint}: name the ledger that belongs to it"
                )
            self.studies.sign_again(old, new)
            change = statement("concilium/rotation@1", name.encode(), old.public, new.public)
            note = (
                f"{old.fingerprint} became {new.fingerprint}: {reason} "
                f"(signed {old.sign(change).hex()} and {new.sign(change).hex()})"
            )
            after = replace(settings, site=f"{name} ({new.fingerprint})")
            self._enter_settings(tail, "identity", after, note)

    def back_up(self, path: str | os.PathLike[str]) -> Head:
        """Write a copy to a new file, whole also while others write here; how far the chain had come in it.

        The head beside it (head.py) is not copied: a copy that is put back is noticed, and goes on only by
        `accept_restored`.
        """
        write_copy(self._file, Path(path))
        with Ledger.open_readonly(path) as copy:
            copy.verify()
            return copy.head()

    def set_budget(self, budget: Number | None, reason: str) -> None:
        """Set a new budget (None: no cap) and say why; it may go up or down, but not below what is spent."""
        amount = None if budget is None else _exact_budget(budget)
        if not require_text(reason, "reason").strip():
            raise LedgerError(f"a new budget for {self.path} needs a reason, which is entered beside it")
        with self.writing() as tail:
            settings = chain.read_settings(self._file)
            if amount is not None and amount < tail.spent:
                raise LedgerError(
                    f"the budget of {self.path} cannot become {settings.currency} = {accounting.shown(amount)}: "
                    f"{accounting.shown(tail.spent)} is spent already, and what was released cannot be taken back"
                )
            self._enter_settings(tail, "budget", replace(settings, budget=amount, source=BY_STEWARD), reason)

    def forgive_refusals(self, reason: str, house: str = "") -> int:
        """Let a house's refusals of this month no longer count, and enter why; how many there were.

        They were the house's honest mistakes, says the steward: it may then learn as many bits of patients again.
        """
        if not require_text(reason, "reason").strip():
            raise LedgerError(f"to forgive refusals of {self.path} needs a reason, which is entered")
        with self.writing() as tail:
            of_house = f"FROM refused_for_patients WHERE month = ? AND {OF_HOUSE}"
            which = (self._find_month(), house)
            (count,) = self._file.get(f"SELECT count(*) {of_house}", which)
            self._file.run(f"DELETE {of_house}", which)
            note = f"{count} refusals of {house or 'houses that are not listed'} forgiven: {reason}"
            self._enter_settings(tail, "refusals", chain.read_settings(self._file), note)
        return int(count)

    def settle(self, allowance: Allowance) -> str:
        """Take what the hospital's policy says of the budget, or the default; what was entered of it, if anything.

        LedgerError where the policy says another budget than the steward, or an earlier policy, set.
        """
        with self._file.reading():
            after = chain.read_settings(self._file)
            note = settle(after, chain.read_tail(self._file).spent, allowance)[1]
        if note:
            with self.writing() as tail:
                after, note = settle(chain.read_settings(self._file), tail.spent, allowance)
                if note:
                    self._enter_settings(tail, "budget", after, note)
        wanted = None if allowance.unlimited else allowance.total
        if (allowance.unlimited or wanted is not None) and after.budget != wanted:
            self._refuse_binding("budget", after.budget, wanted)
        return note

    def unbounded_numbers(self) -> int:
        """How many numbers were released without a cost; inside `seal`, those of the entry being charged too."""
        with self._file.joining():
            (count,) = self._file.get(f"SELECT ifnull(sum(numbers), 0) FROM entries WHERE {chain.UNBOUNDED}")
        return int(count)

    @cached_property
    def studies(self) -> StudyBook:
        """The studies that were proposed to the hospital, and what it decided on each."""
        return StudyBook(self)

    def count_work(self, operations: int) -> int:
        """Add to what was computed today (UTC) and return the sum, which is on disk; of earlier days nothing is kept.

        It is no part of the chain: nothing was released. A clock that is put back begins no day anew.
        """
        if not operations:
            with self._file.reading():
                row = self._file.find("SELECT operations FROM work_done WHERE day >= ?", (chain.now()[:10],))
            return 0 if row is None else int(row[0])
        with self.writing():
            (latest,) = self._file.get("SELECT ifnull(max(day), '') FROM work_done")
            day = max(chain.now()[:10], latest)
            self._file.run("DELETE FROM work_done WHERE day < ?", (day,))
            self._file.run(
                "INSERT INTO work_done VALUES (?, ?)"
                " ON CONFLICT (day) DO UPDATE SET operations = operations + excluded.operations",
                (day, operations),
            )
            return int(self._file.get("SELECT operations FROM work_done WHERE day = ?", (day,))[0])

    def count_proposals(self, house: str, operations: int) -> int:
        """Add to what reading the proposals of a house took today (UTC) and return the sum, which is on disk."""
        with self.writing():
            (latest,) = self._file.get("SELECT ifnull(max(day), '') FROM proposals_read")
            day = max(chain.now()[:10], latest)
            self._file.run("DELETE FROM proposals_read WHERE day < ?", (day,))
            self._file.run(
                "INSERT INTO proposals_read VALUES (?, ?, ?)"
                " ON CONFLICT (house) DO UPDATE SET operations = operations + excluded.operations",
                (house, day, operations),
            )
            return int(self._file.get("SELECT operations FROM proposals_read WHERE house = ?", (house,))[0])

    def mask_store(self) -> SqliteMaskStore:
        """Where the site keeps its masked studies: in this file, changed together with the charges they cause."""
        with self._file.joining(to_write=True) as connection:
            return SqliteMaskStore(connection, self._file.lock)

    def close(self) -> None:
        """Let go of the file; a closed ledger answers nothing."""
        self._file.close()
        if self._head_file is not None:
            self._head_file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self.path!r})"

    @contextmanager
    def writing(self, *, accepting: bool = False) -> Iterator[Tail]:
        """One transaction at the end of the chain, if the chain still holds what was seen of it, here and beside it."""
        with self._file.lock:
            self._entered, self._is_setting = None, False
            with self._file.writing():
                tail = chain.read_tail(self._file)
                if not (accepting or tail.head == self._seen or chain.holds(self._file, self._seen)):
                    raise LedgerError(
                        f"{self.path} was put back to an older state while in use; restore the newest copy"
                    )
                if self._head_file is not None and not accepting:
                    kept = self._head_file.read()
                    if kept != tail.head and (problem := find_problem(self._file, kept, tail.head)):
                        raise LedgerError(problem)
                yield tail
            if self._entered is not None:
                self._seen = self._entered
                if accepting and self._head_file is not None:
                    self._head_file.replace(self._seen)
                elif self._head_file is not None:
                    self._head_file.write(self._seen, at_once=self._is_setting)

    def _find_balance(self, settings: LedgerSettings, tail: Tail) -> Balance:
        month = max(chain.now(), tail.time)[:7]  # that of an entry made now
        capped = settings.per_month is not None
        return Balance(
            settings.currency,
            settings.delta,
            tail.spent,
            settings.budget,
            settings.source,
            month,
            tail.spent - chain.read_spent_before(self._file, month) if capped else Fraction(0),
            settings.per_month,
        )

    def _open_head(self, *, accepting: bool = False) -> str | None:
        """Check the ledger against the head beside it, which is made where there is none yet; what is wrong is raised,
        or returned where it is to be accepted."""
        if self._file.disk is None:
            self._seen = chain.recognise(self._file)
            return None
        beside = self._head_file = HeadFile(Path(self.path).resolve())
        kept = problem = None
        try:
            kept = beside.read()  # before the chain, which may grow
        except LedgerError as error:
            if not accepting:
                raise
            problem = str(error)
        with self._file.reading():
            self._seen = chain.recognise(self._file)
            if problem is None:
                # One that was missing may be there by now, where another process made the ledger just now.
                if find_problem(self._file, kept, self._seen) and kept is None:
                    kept = beside.read()
                problem = find_problem(self._file, kept, self._seen)
        if problem is not None and not accepting:
            raise LedgerError(problem)
        self._file.make_durable()
        if problem is not None:
            return problem
        if kept is None:
            beside.make(self._seen)
        self._file.disk.keeper = beside
        # A file that cannot be written is refused now, not when an answer is ready.
        with self._file.writing():
            self._file.run("DELETE FROM refusals WHERE 0")  # BEGIN IMMEDIATE alone passes on a read-only file
        return None

    def _bind(self, requirements: dict[str, Any]) -> None:
        """Refuse a ledger that is bound to something else; bind one that is not bound yet."""
        if self._find_unbound(requirements, self.settings):
            with self.writing() as tail:
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
            elif current == requirement:
                continue
            else:
                self._refuse_binding(name, current, requirement)
        return unbound

    def _refuse_binding(self, name: str, current: Any, requirement: Any) -> NoReturn:
        if name == "records":
            site = self.settings.site
            whose = "" if site is None else f"the ledger of {name_site(site)!r} and "
            raise LedgerError(
                f"{self.path} is {whose}bound to other records (their digest begins {current[:12]}, not "
                f"{requirement[:12]}); if that hospital's table changed, rebind the ledger to it: what is spent stays "
                "spent (a site that names its column of patients goes on by itself); if it is another hospital's "
                "table, name that hospital's own ledger"
            )
        remedy = {
            "site": "give each site its own ledger, and keep its identity file beside it",
            "budget": "a budget is changed by set_budget (concilium ledger budget), which enters the reason",
            "currency": "a ledger has one currency for good, so state that one or use another file",
            "delta": "a ledger has one delta for good, so state that one or use another file",
        }[name]
        raise LedgerError(f"{self.path} has {name} {_words(current)}, not {_words(requirement)}; {remedy}")

    def _enter_settings(self, tail: Tail, kind: str, settings: LedgerSettings, note: str) -> None:
        self._entered = chain.append(self._file, tail, kind=kind, mode=SETTINGS, note=note, settings=settings)
        self._is_setting = True

    def _price(self, mode: str, cost: Number | None, currency: str | None) -> Fraction | None:
        if mode not in RELEASES:
            raise LedgerError(f"a release is {' or '.join(map(repr, RELEASES))}; got {mode!r}")
        if not RELEASES[mode].priced:
            if cost is not None:
                raise LedgerError(f"{mode!r} is entered as unlimited and takes no cost; got {cost!r}")
            return None
        if cost is None:
            raise LedgerError(f"a release as {mode!r} needs its cost")
        return self._convert(cost, currency)

    def _convert(self, cost: Number, currency: str | None) -> Fraction:
        """The cost as an exact number in the ledger's currency."""
        price = accounting.exact_positive(cost, "cost")
        return price if currency is None else accounting.convert(price, currency, self.settings.currency)


def _enterable(price: Fraction | None, spent: Fraction) -> tuple[Fraction | None, Fraction]:
    """The price as it is entered, and what is spent with it: as it is, until sums of very unlike fractions would need
    hundreds of digits.

    From there on it is rounded up, against us, to a multiple of 2^-256, so that a ledger can grow for ever.
    """
    if price is None:
        return None, spent
    total = spent + price
    if total.denominator.bit_length() <= _EXACT_BITS:
        return price, total
    price = Fraction(math.ceil(price * _GRID), _GRID)
    return price, spent + price


def _exact_budget(budget: Number) -> Fraction:
    value = accounting.exact(budget, "budget")
    if value < 0:
        raise LedgerError(f"a budget must not be below zero; got {value}")
    return value


def _words(value: object) -> str:
    if value is None:
        return "without a cap"
    return accounting.shown(value) if isinstance(value, Fraction) else repr(value)
