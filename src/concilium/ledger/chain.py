"""The entries of a ledger as a chain of hashes, each covering the entry before it (docs/methods.md, section 0.6).

An entry's hash covers the hash before it and every field of its own, written as one JSON list. An answer carries its
own entry's hash, so that hash cannot cover the answer: the *following* entry covers the answer's digest.
Changing, dropping or swapping entries in place is found by `verify`. A cut tail leaves a valid shorter chain, and
whoever can write the file can write a whole new one: both are seen only by someone who remembers a head, which is
why heads travel in answers.

What may never change under one format name: the order and the meaning of the hashed fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn

import msgspec

from concilium.errors import LedgerError
from concilium.ledger.file import LedgerFile, open_in_memory
from concilium.registry import RELEASES

FORMAT = "concilium/ledger@1"
SETTINGS = "settings"
"""The mode of an entry that changes what the ledger is bound to, and releases nothing."""
_PARTLY = ", ".join(repr(name) for name, listed in RELEASES.items() if listed.priced and not listed.bounded)
UNBOUNDED = f"(cost IS NULL AND mode != '{SETTINGS}' OR mode IN ({_PARTLY}))"
"""Entries of what no budget bounds: releases without a cost, and those that leave a part unprotected."""

_APPLICATION = 0x436F6E63
_VERSION = 2
_FIELDS = "sequence, time, study, question, digest, kind, mode, cost, spent, numbers, note, settings"
_SCHEMA = (
    """CREATE TABLE entries (
        sequence INTEGER PRIMARY KEY, time TEXT NOT NULL, study TEXT NOT NULL, question TEXT UNIQUE,
        digest TEXT NOT NULL, kind TEXT NOT NULL, mode TEXT NOT NULL, cost TEXT, spent TEXT NOT NULL,
        numbers INTEGER NOT NULL, note TEXT NOT NULL, settings TEXT, hash TEXT NOT NULL)""",
    "CREATE TABLE answers (sequence INTEGER PRIMARY KEY, sealed TEXT NOT NULL, answer BLOB NOT NULL)",
    """CREATE TABLE refusals (
        number INTEGER PRIMARY KEY, time TEXT NOT NULL, study TEXT NOT NULL, kind TEXT NOT NULL,
        question TEXT NOT NULL, rule TEXT NOT NULL)""",
    "CREATE INDEX entries_of_settings ON entries (sequence) WHERE settings IS NOT NULL",
    # INSERT OR REPLACE deletes without firing a DELETE trigger, hence the two on INSERT.
    """CREATE TRIGGER entries_follow BEFORE INSERT ON entries
        WHEN NEW.sequence IS NOT (SELECT ifnull(max(sequence) + 1, 0) FROM entries)
          OR EXISTS (SELECT 1 FROM entries WHERE question = NEW.question)
        BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END""",
    """CREATE TRIGGER answers_follow BEFORE INSERT ON answers
        WHEN EXISTS (SELECT 1 FROM answers WHERE sequence = NEW.sequence)
        BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END""",
    *(
        f"""CREATE TRIGGER {table}_refuse_{verb.lower()} BEFORE {verb} ON {table}
        BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END"""
        for table in ("entries", "answers")
        for verb in ("UPDATE", "DELETE")
    ),
)
# What every site counts and keeps beside the chain.
_BESIDE = (
    # What was computed on one day (UTC), in operations.
    """CREATE TABLE work_done (
    day TEXT PRIMARY KEY, operations INTEGER NOT NULL) WITHOUT ROWID""",
    # Of that, what reading the proposals of each house took on its last day.
    """CREATE TABLE proposals_read (
    house TEXT PRIMARY KEY, day TEXT NOT NULL, operations INTEGER NOT NULL) WITHOUT ROWID""",
    # The studies that were proposed, and which kinds they asked about what (study_book.py).
    """CREATE TABLE study (
    id TEXT PRIMARY KEY, terms BLOB NOT NULL, signature BLOB NOT NULL, proposed TEXT NOT NULL, status TEXT NOT NULL,
    who TEXT NOT NULL, why TEXT NOT NULL, decided TEXT NOT NULL, seal BLOB NOT NULL, price TEXT,
    spent TEXT NOT NULL)""",
    """CREATE TABLE study_asked (
    study TEXT NOT NULL, kind TEXT NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (study, kind, content)) WITHOUT ROWID""",
)
# Other parts of a site may keep tables of their own in the file.
_OWN_SCHEMA = """SELECT sql FROM sqlite_master
    WHERE sql IS NOT NULL AND tbl_name IN ('entries', 'answers', 'refusals')"""
# A blob is no field of ours; as a list it cannot pass for a text.
_LISTED = json.JSONEncoder(separators=(",", ":"), default=lambda odd: [repr(odd)])


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a chain has come: its number of entries after the opening one, and the hash of the last. It travels in
    every answer, and back."""

    count: int
    hash: str


@dataclass(frozen=True)
class Entry:
    """One line of the ledger; a cost of None is unlimited, or no release at all (settings)."""

    sequence: int
    time: datetime
    study: str
    question: str
    digest: str
    kind: str
    mode: str
    cost: Fraction | None
    numbers: int
    hash: str
    note: str = ""

    @property
    def is_pure(self) -> bool:
        """Whether its cost is that of a pure mechanism, in whatever currency it was entered."""
        return self.mode in RELEASES and RELEASES[self.mode].pure

    @property
    def unbounded(self) -> bool:
        """Whether no budget bounds what it let out, or a part of that."""
        return self.mode in RELEASES and not RELEASES[self.mode].bounded


@dataclass(frozen=True)
class LedgerSettings:
    """What a ledger is bound to; a budget of None is no cap, a site or records of None is not bound yet.

    `source` says who set the budget (ledger/budgets.py); a ledger without a site does not.
    """

    currency: str
    delta: Fraction
    budget: Fraction | None
    site: str | None
    records: str | None
    per_month: Fraction | None = None
    source: str = ""


@dataclass(frozen=True)
class Tail:
    """What the next entry has to follow; `sealed` is the digest of the last entry's answer."""

    head: Head
    time: str
    spent: Fraction
    sealed: str | None


_NOTHING = Tail(Head(-1, ""), "", Fraction(0), None)


def begin(file: LedgerFile, settings: LedgerSettings, more: tuple[str, ...] = ()) -> None:
    """Make the tables, `more` among them, and the opening entry, number 0, which binds the settings."""
    file.make_durable()
    if file.in_memory:
        file.copy(_make_empty(more))
    with file.writing():
        if not file.in_memory:
            _make_tables(file, more)
        append(file, _NOTHING, kind="open", mode=SETTINGS, settings=settings)


def _make_tables(file: LedgerFile, more: tuple[str, ...]) -> None:
    for statement in (*_SCHEMA, *_BESIDE, *more):
        file.run(statement)
    file.run(f"PRAGMA application_id = {_APPLICATION}")
    file.run(f"PRAGMA user_version = {_VERSION}")


@lru_cache(maxsize=1)
def _make_empty(more: tuple[str, ...]) -> LedgerFile:
    """Tables to copy: a simulation of a thousand sites makes a thousand ledgers in memory."""
    file = open_in_memory()
    _make_tables(file, more)
    return file


def recognise(file: LedgerFile) -> Head:
    """Refuse a database that is not a ledger, or one of a format we do not know; how far the chain has come."""
    if file.get("PRAGMA application_id")[0] != _APPLICATION:
        raise LedgerError(f"{file.path} is a database but not a ledger; check the path")
    version = file.get("PRAGMA user_version")[0]
    if version != _VERSION:
        raise LedgerError(
            f"{file.path} has ledger format {version}, and this version of concilium reads format {_VERSION}; open it "
            "with the version that wrote it"
        )
    read_settings(file)
    return read_tail(file).head


def append(
    file: LedgerFile,
    tail: Tail,
    *,
    kind: str,
    mode: str,
    study: str = "",
    question: str | None = None,
    digest: str = "",
    cost: Fraction | None = None,
    spent: Fraction | None = None,
    numbers: int = 0,
    note: str = "",
    settings: LedgerSettings | None = None,
) -> Head:
    """Write the entry that follows the tail; no entry's time is before the one it follows. What is spent with it is
    added up unless it is given."""
    when = now()
    if when < tail.time:
        behind = (parse_time(file, tail.time) - datetime.fromisoformat(when)).total_seconds()
        note = "; ".join(filter(None, (note, f"the clock was {behind:.6g} s behind the entry before")))
        when = tail.time
    if spent is None:
        spent = tail.spent if cost is None else tail.spent + cost
    terms = None if settings is None else _write_settings(settings)
    price = None if cost is None else _ratio(cost)
    sequence = tail.head.count + 1
    fields = (sequence, when, study, question, digest, kind, mode, price, _ratio(spent), numbers, note, terms)
    link = _link(tail, fields)
    file.run(f"INSERT INTO entries ({_FIELDS}, hash) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", (*fields, link))
    return Head(sequence, link)


def store(file: LedgerFile, head: Head, answer: bytes) -> None:
    """Keep the answer of the entry at that head."""
    file.run("INSERT INTO answers VALUES (?, ?, ?)", (head.count, _digest(answer), answer))


def find_answer(file: LedgerFile, question: str, digest: str) -> bytes | None:
    """The stored answer to a question, or None where it was never answered; asked with another digest it is refused."""
    row = file.find(
        "SELECT digest, sealed, answer FROM entries LEFT JOIN answers USING (sequence) WHERE question = ?",
        (question,),
    )
    if row is None:
        return None
    first_digest, sealed, answer = row
    if not isinstance(answer, bytes) or _digest(answer) != sealed:
        file.damaged(f"the answer to {question!r} was changed")
    if first_digest != digest:
        raise LedgerError(
            f"question {question!r} was answered before with other content (see {file.path}); "
            "a new question needs a new id"
        )
    return answer


def read_tail(file: LedgerFile) -> Tail:
    sequence, when, spent, link, sealed = file.get(
        "SELECT sequence, time, spent, hash, sealed FROM entries LEFT JOIN answers USING (sequence)"
        " ORDER BY sequence DESC LIMIT 1"
    )
    return Tail(Head(sequence, link), when, _fraction(file, spent), sealed)


def read_spent_before(file: LedgerFile, month: str) -> Fraction:
    """What was spent when a month such as 2026-11 began; no entry's time is before the one it follows."""
    row = file.find("SELECT spent FROM entries WHERE time < ? ORDER BY sequence DESC LIMIT 1", (month,))
    return Fraction(0) if row is None else _fraction(file, row[0])


def read_settings(file: LedgerFile) -> LedgerSettings:
    query = "SELECT settings FROM entries WHERE settings IS NOT NULL ORDER BY sequence DESC LIMIT 1"
    return _parse_settings(file, file.get(query)[0])


def read_entries(file: LedgerFile) -> Iterator[Entry]:
    """Every entry after the opening one."""
    return _read_rows(file, "sequence > 0 ORDER BY sequence", ())


def read_page(file: LedgerFile, before: int, most: int) -> Iterator[Entry]:
    """The last entries before a place, newest first."""
    return _read_rows(file, "sequence > 0 AND sequence < ? ORDER BY sequence DESC LIMIT ?", (before, most))


def read_spending(file: LedgerFile, points: int) -> list[tuple[datetime, Fraction]]:
    """What was spent in all, at entries evenly apart and at the last."""
    last = read_tail(file).head.count
    places = sorted({last, *(last * point // points for point in range(points))})
    marks = ",".join("?" * len(places))
    query = f"SELECT time, spent FROM entries WHERE sequence IN ({marks}) ORDER BY sequence"
    rows = file.rows(query, tuple(places))
    return [(parse_time(file, when), _fraction(file, spent)) for when, spent in rows]


def _read_rows(file: LedgerFile, which: str, values: tuple[object, ...]) -> Iterator[Entry]:
    for row in file.rows(f"SELECT {_FIELDS}, hash FROM entries WHERE {which}", values):
        sequence, when, study, question, digest, kind, mode, cost, _, numbers, note, _, link = row
        price, time = None if cost is None else _fraction(file, cost), parse_time(file, when)
        yield Entry(sequence, time, study, question or "", digest, kind, mode, price, numbers, link, note)


def holds(file: LedgerFile, head: Head) -> bool:
    # A head comes from outside; a count that SQLite could not hold is one that no ledger has.
    if not isinstance(head.count, int) or not 0 <= head.count < 2**63:
        return False
    return file.find("SELECT hash FROM entries WHERE sequence = ?", (head.count,)) == (head.hash,)


def verify(file: LedgerFile) -> int:
    """Check the whole file and return how many entries follow the opening one; the first thing wrong raises."""
    for (problem,) in file.rows("PRAGMA integrity_check(1)"):
        if problem != "ok":
            file.damaged(str(problem).splitlines()[-1])
    if {row[0] for row in file.rows(_OWN_SCHEMA)} != set(_SCHEMA):
        _distrust(file, "its tables, or its guards against change, are not the original ones")
    tail, budget, answers = _NOTHING, None, 0
    per_month, month_began = None, Fraction(0)
    for row in file.rows(
        f"SELECT {_FIELDS}, hash, sealed, answer FROM entries LEFT JOIN answers USING (sequence) ORDER BY sequence"
    ):
        fields, (link, sealed, answer) = row[:-3], row[-3:]
        number = tail.head.count + 1
        if fields[0] != number:
            _distrust(file, f"entry {number} is missing")
        if link != _link(tail, fields):
            _distrust(file, f"entry {number} (or the answer before it) was changed: its hash does not match")
        before = tail
        tail, settings = _follow(file, tail, fields, link, sealed)
        month_began = month_began if tail.time[:7] == before.time[:7] else before.spent
        if settings is not None:
            budget, per_month = settings.budget, settings.per_month
        if budget is not None and tail.spent > budget:
            _distrust(file, f"entry {number} overspends the budget")
        # The cap may have been lowered in the middle of a month, below what was spent by then.
        if per_month is not None and tail.spent > before.spent and tail.spent - month_began > per_month:
            _distrust(file, f"entry {number} overspends its month")
        if sealed is not None and (not isinstance(answer, bytes) or _digest(answer) != sealed):
            _distrust(file, f"the answer of entry {number} was changed")
        answers += sealed is not None
    if tail.head.count < 0:
        _distrust(file, "the opening entry is missing")
    if file.get("SELECT count(*) FROM answers")[0] != answers:
        _distrust(file, "it holds an answer without an entry")
    return tail.head.count


def _follow(
    file: LedgerFile, tail: Tail, fields: tuple[Any, ...], link: str, sealed: str | None
) -> tuple[Tail, LedgerSettings | None]:
    """The tail after an entry whose hash is right, if what it says follows from the tail before it."""
    sequence, when, _, question, _, _, mode, cost, spent, _, _, terms = fields
    price = None if cost is None else _fraction(file, cost)
    is_release, total = mode in RELEASES, tail.spent + (price or 0)
    has_price = is_release and RELEASES[mode].priced
    follows = (
        when >= tail.time
        and _fraction(file, spent) == total
        and (price is not None) == has_price
        and (price is None or price > 0)
        and is_release == (question is not None) == (sealed is not None) == (terms is None)
        and (is_release or mode == SETTINGS)
    )
    if not follows:
        _distrust(file, f"entry {sequence} does not follow from the one before it, or its answer is missing")
    settings = None if terms is None else _parse_settings(file, terms)
    return Tail(Head(sequence, link), when, total, sealed), settings


def _distrust(file: LedgerFile, what: str) -> NoReturn:
    raise LedgerError(f"{file.path} cannot be trusted: {what}; compare it with a copy known to be good")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _link(tail: Tail, fields: tuple[object, ...]) -> str:
    """The hash of an entry: over one JSON list, in which no two different entries look alike."""
    return _digest(_LISTED.encode([FORMAT, tail.head.hash, tail.sealed, *fields]).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _ratio(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}"


def _fraction(file: LedgerFile, text: str) -> Fraction:
    try:
        return _parse_fraction(text)
    except (ValueError, TypeError, AttributeError, ZeroDivisionError):
        file.damaged(f"{text!r} is not a number")


@lru_cache(maxsize=4096)  # most sums are those of the entry before
def _parse_fraction(text: str) -> Fraction:
    numerator, _, denominator = text.partition("/")
    return Fraction(int(numerator), int(denominator))


def parse_time(file: LedgerFile, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except (ValueError, TypeError):
        file.damaged(f"{text!r} is not a time")


def _write_settings(settings: LedgerSettings) -> str:
    caps = {
        name: None if cap is None else _ratio(cap)
        for name, cap in (("budget", settings.budget), ("per_month", settings.per_month))
    }
    return json.dumps({**vars(settings), "delta": _ratio(settings.delta), **caps}, sort_keys=True)


def _parse_settings(file: LedgerFile, text: str) -> LedgerSettings:
    try:
        return _remember_settings(text)
    except (ValueError, TypeError, KeyError, ZeroDivisionError):
        file.damaged("its settings cannot be read")


@lru_cache(maxsize=4096)  # read with every charge, changed once a year
def _remember_settings(text: str) -> LedgerSettings:
    fields = json.loads(text)
    caps = {
        name: None if fields.get(name) is None else Fraction(fields[name]) for name in ("budget", "per_month")
    }
    return LedgerSettings(**{**fields, "delta": Fraction(fields["delta"]), **caps})
