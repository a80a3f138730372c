"""Patients that every site holds out of learning, chosen without a word between sites: for pruning, by held-out counts.

A patient's ticket is a hash, under a key that only the site has, of all that the site's table says of the patient (each
value as it reads by itself, whatever the others have), and of how many rows before say exactly the same. The lowest
tickets are held out. So membership follows from the patient and the site's key alone: with one patient more or fewer,
the patients held out are the same but for that one (of several rows that say the same it does not matter which is
gone), and likewise those who are not. That is what lets the noise of a private count, which is for one patient, cover a
count over either part; the claim needs the hash of rows (128 bits of SHA-256) to be free of collisions.

Who is protected: a patient whose whole record the house knows, from a house that would have that patient on the side of
its choice and subtract. Without the key nobody can tell who is held out, and there is nothing to choose: the query and
the target have no say, so that other words divide the same patients in the same way, in every study, for as long as the
site has its identity (Site.division_key). The one thing a house names is the share. No share holds out those of
another and a few more: each whole percent divides anew, so that the counts of two shares differ by patients on both
sides; and under `exact` differencing compares the parts as it does whole cohorts (disclosure.py).

Under `exact` and `masked` a site of which either part would have fewer than its policy's `minimum_patients` holds out
nobody, and where small counts are left out of tables no part is told at all: what is left out of one part could be had
from the whole and the other.

Folds of cross-validation, under `exact` and `masked` alone: ten cells of about a tenth of the patients each, by the
same draw that holds out 30 percent, and every fold is two of the cells; each repetition pairs them anew. So whatever a
house subtracts from another sum of these parts is a cell at least. A site with a cell below `minimum_patients` is in
one fold as a whole: no part of it is told apart, and under masks its rules of that fold, of which there are none, say
that it is such a site.

Samples (docs/methods.md, section 1.11). Every expert has all positives of the site and `negatives` times as many
negatives. The negatives stand in a circle, in an order that hashing gives, and each expert takes the next ones: none
is used again before all were used, and the last turn is filled up from the first. The thesis draws at random. Here
the order follows from the question (query, target and positive value) and from the row in the site's table, so that a
repeated question finds the same patients, a site needs no memory of earlier ones, and the house cannot aim at anyone:
all it can do is ask in other words. It can ask for two turns that differ by one patient, though, and differencing
(protocol/disclosure.py) does not look at samples, since honest turns of a site with few positives differ by few
patients as well: a sample is released as `exact` only, which protects nobody.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, MessageError
from concilium.protocol.attributes import Attribute, Workload
from concilium.protocol.cohort import Cohort, View
from concilium.protocol.disclosure import Population
from concilium.records.blocks import (
    count_codes,
    fill_room,
    list_blocks,
    make_room,
    read_block,
    split_hashes,
    write_block,
)
from concilium.records.columns import Coded, Column, Numbers, Value, label, take_block
from concilium.records.grammar import canonical, measure, read_day
from concilium.records.patients import Owners
from concilium.records.query import read_as_labels
from concilium.records.row_hashes import mix, tell_apart
from concilium.records.table import Records

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_PERCENT = 90
REMEMBERED_PARTS = 6
APART_FROM_PARTS = 1000  # whole percents are below
APART_FROM_BLOCKS = 2000
ROWS_AT_ONCE = 1024

Tickets = NDArray[np.uint64]
Cells = NDArray[np.uint64]  # two for every value

# Whoever runs a simulation has all tables in hand; so that it comes out the same again, and pooled patients are divided
# as their hospitals divide them.
SIMULATION_KEY = b"concilium: a simulation"

NUMBER = int.from_bytes(b"a number", "little")

TICKETS: WeakKeyDictionary[View, Tickets] = WeakKeyDictionary()
HOLDOUT_TICKETS: WeakKeyDictionary[View, Tickets] = WeakKeyDictionary()
Divisions = dict[tuple[bytes, "Part | Holdout", bool, int], tuple[NDArray[np.int32], Population]]
PARTS: WeakKeyDictionary[View, Divisions] = WeakKeyDictionary()


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `percent` of the patients who are held out, or (not `held`) all the others."""

    percent: int
    held: bool

    def check(self) -> None:
        if not 1 <= self.percent <= MOST_PERCENT:
            raise MessageError(f"1 to {MOST_PERCENT} percent of the patients can be held out")

    def choose(self, cohort: Cohort, least: int) -> Cohort:
        """Those of the cohort who are in this part; nobody is held out where a part would have fewer than `least`."""
        return _choose(cohort, self, least, held=self.held)

    def find_held(self, cohort: Cohort) -> NDArray[np.bool_]:
        return _draw(recall_tickets(cohort.view), cohort.rows, self.percent, self.percent)


class Holdout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Whom a study holds out of learning altogether, to measure its model on: `percent` of the patients by the site's
    key, or those whose `column` is the day `since` or later. It stands in the terms, so that a site applies it to
    every question of the study by itself.

    Guarantee: as for a part. Membership follows from a patient's own record, the site's key and the terms alone. The
    draw is another than that of a part of the same percent, which methods prune and choose thresholds by. It is the
    same under every release, so that models are compared on the same patients.
    """

    percent: int = 0
    column: str = ""
    since: str = ""

    def check(self) -> None:
        """MessageError unless it says one of the two."""
        by_time = bool(self.column and self.since)
        if (self.percent != 0) == by_time or bool(self.column) != bool(self.since):
            raise MessageError(
                "a study holds out a percentage of the patients, or those of a column since a day"
            )
        if by_time and (len(self.column) > 1000 or np.isnan(read_day(self.since))):
            raise MessageError("patients are held out since a day such as 2025-01-31")
        if not by_time and not 1 <= self.percent <= MOST_PERCENT:
            raise MessageError(f"1 to {MOST_PERCENT} percent of the patients can be held out")

    def describe(self) -> str:
        """Who that is, in words."""
        return (
            f"{self.percent} % of the patients, held out"
            if self.percent
            else f"patients since {self.since}, held out"
        )

    def choose(self, cohort: Cohort, least: int, *, held: bool) -> Cohort:
        """Those of the cohort who are held out, or all others; nobody is where either part would have fewer than
        `least`."""
        return _choose(cohort, self, least, held=held)

    def find_held(self, cohort: Cohort) -> NDArray[np.bool_]:
        if self.percent:
            tickets = _recall_holdout_tickets(cohort.view)
            return _draw(tickets, cohort.rows, self.percent, self.percent + APART_FROM_PARTS)
        held = self._find_later(cohort)
        owners = cohort.view.owners
        if owners is not None:  # who has one encounter since is held out with all others
            whose = owners.codes[cohort.rows]
            held = np.isin(whose, whose[held])
        return held

    def find_measured(self, cohort: Cohort, held: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The rows of those held out on which a model is measured: by time, their encounters since that day alone."""
        if self.percent or cohort.view.owners is None:
            return held
        return held & self._find_later(cohort)

    def _find_later(self, cohort: Cohort) -> NDArray[np.bool_]:
        view = cohort.view
        if self.column not in view.records and self.column in view.policy_columns:
            # Left out where nearly every patient has another day: here days are compared with one, and none is listed.
            column = read_as_labels(view.policy_columns[self.column])
        else:
            column = view.coded(self.column)  # DoesNotFit where it is not there
        days = np.array([np.nan, *map(read_day, column.values)])[column.codes[cohort.rows]]
        later: NDArray[np.bool_] = days >= read_day(self.since)
        return later


def _choose(cohort: Cohort, part: Part | Holdout, least: int, *, held: bool) -> Cohort:
    """Those of the cohort on one side of a division."""
    if cohort.floored:
        raise MessageError("a site that leaves small counts out does not tell part of its patients apart")
    parts = PARTS.setdefault(cohort.view, {})
    key = (cohort.population.digest, part, held, least)
    if key not in parts:
        chosen = part.find_held(cohort)
        if min(cohort.count_patients(chosen), cohort.count_patients(~chosen)) < least:
            chosen[:] = False
        side = chosen == held
        if held and isinstance(part, Holdout):
            side = part.find_measured(cohort, side)
        rows = keep_rows(cohort, side)
        for oldest in list(islice(parts, max(0, len(parts) - REMEMBERED_PARTS + 1))):
            parts.pop(oldest, None)
        parts[key] = rows, cohort.view.find_population(rows)
    rows, population = parts[key]
    return replace(cohort, rows=rows, population=population)


def keep_rows(cohort: Cohort, side: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The rows of some of a cohort."""
    kept = make_room(int(np.count_nonzero(side)), np.int32, cohort.view.room)
    start = 0
    for block in list_blocks(len(side)):
        rows = read_block(cohort.rows, block)[side[block]]
        write_block(kept, slice(start, start + len(rows)), rows)
        start += len(rows)
    return kept


def _draw(tickets: Tickets, rows: NDArray[np.int32], percent: int, salt: int) -> NDArray[np.bool_]:
    """For each of these rows whether its ticket is among so many percent."""
    held = np.empty(len(rows), dtype=np.bool_)
    for block in list_blocks(len(rows)):
        held[block] = mix(tickets[read_block(rows, block)], salt) < np.uint64((percent << 64) // 100)
    return held


def deal_blocks(cohort: Cohort, blocks: int) -> NDArray[np.intp]:
    """For each patient of the cohort one of so many blocks, by the patient's ticket alone."""
    drawn = mix(recall_tickets(cohort.view)[cohort.rows], APART_FROM_BLOCKS)
    return (drawn % np.uint64(blocks)).astype(np.intp)


FOLDS, CELLS, MOST_REPEATS = 5, 10, 9


class Folds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Five folds of every site's patients, dealt so many times."""

    repeats: int

    def __len__(self) -> int:
        return FOLDS * self.repeats

    def check(self) -> None:
        if not 1 <= self.repeats <= MOST_REPEATS:
            raise MessageError(f"folds are dealt 1 to {MOST_REPEATS} times")

    def deal(self, cohort: Cohort) -> NDArray[np.int8]:
        """The fold of each patient in every repetition, [repetition, patient]; 5 more from one repetition to the next,
        so that every fold has a number."""
        if cohort.floored:
            raise MessageError("a site that leaves small counts out does not tell part of its patients apart")
        tickets, room, owners = recall_tickets(cohort.view), cohort.view.room, cohort.view.owners

        def draw(block: slice) -> NDArray[np.uint8]:
            drawn = mix(tickets[read_block(cohort.rows, block)], PERCENT_OF_CELLS)
            return (drawn // np.uint64((1 << 64) // CELLS + 1)).astype(np.uint8)

        dealt = cells = fill_room(len(cohort), np.uint8, room, draw)
        fold_of = np.array([_pair_cells(repeat) for repeat in range(self.repeats)], dtype=np.int8)
        if owners is not None:  # each patient once
            dealt = cells[np.unique(owners.codes[cohort.rows], return_index=True)[1]]
        if count_codes(dealt, CELLS).min() < max(1, cohort.view.minimum_patients):
            digest = hashlib.sha256(b"cell" + cohort.view.division_key).digest()
            cells[:] = digest[0] % CELLS
        shape = self.repeats, len(cohort)
        return fill_room(shape, np.int8, room, lambda block: fold_of[:, read_block(cells, block)])

    def list_parts(self, cohort: Cohort) -> list[Cohort]:
        """The patients of every fold, and in each case the others."""
        dealt = self.deal(cohort)
        sides = [
            side
            for fold in range(len(self))
            for side in (dealt[fold // FOLDS] == fold, dealt[fold // FOLDS] != fold)
        ]
        return [cohort.take(np.flatnonzero(side)) for side in sides if 0 < side.sum() < len(cohort)]


# A part of 30 percent is the first three cells.
PERCENT_OF_CELLS = 30


def _pair_cells(repeat: int) -> list[int]:
    """The fold of each cell: pairs as in a tournament, where nobody meets the same one twice."""
    last = CELLS - 1
    pairs = [(last, repeat), *(((repeat + i) % last, (repeat - i) % last) for i in range(1, FOLDS))]
    place = {cell: fold for fold, pair in enumerate(pairs) for cell in pair}
    return [FOLDS * repeat + place[cell] for cell in range(CELLS)]


def recall_tickets(view: View) -> Tickets:
    """A number for every row of a site's table, drawn by its key."""
    tickets = TICKETS.get(view)
    if tickets is None:
        tickets = TICKETS[view] = (
            _find_tickets(view.records, view.division_key)
            if view.owners is None
            else _find_own_tickets(view.owners, view.division_key)
        )
    return tickets


def _recall_holdout_tickets(view: View) -> Tickets:
    """The same by the columns that a private study would see."""
    if view not in HOLDOUT_TICKETS:
        columns = view.policy_columns
        same = columns is view.records or view.owners is not None
        HOLDOUT_TICKETS[view] = recall_tickets(view) if same else _find_tickets(columns, view.division_key)
    return HOLDOUT_TICKETS[view]


def share_tickets(view: View, other: View) -> View:
    """Have another view of the same rows hold out and deal the same patients; the other view."""
    TICKETS[other], HOLDOUT_TICKETS[other] = recall_tickets(view), _recall_holdout_tickets(view)
    return other


def _find_own_tickets(owners: Owners, key: bytes) -> Tickets:
    """The same where a patient has several rows: one for all of them, a hash under this key of the id."""
    own = np.empty(len(owners.labels), dtype=np.uint64)
    for block in list_blocks(len(own)):
        texts = [name.encode("utf-8", "surrogatepass") for name in owners.labels[block]]
        drawn = b"".join([hmac.digest(key, text, "sha256")[:8] for text in texts])
        own[block] = np.frombuffer(drawn, dtype="<u8")
    tickets: Tickets = own[owners.codes]
    return tickets


def _find_tickets(records: Records, key: bytes) -> Tickets:
    """A number for every row: a hash under this key of what it says, and of how many rows before say the same."""
    names = sorted(records.names)
    digests = make_room((2, len(records)), np.uint64, records.room)
    secret = np.frombuffer(hashlib.sha256(key).digest() * ROWS_AT_ONCE, dtype="<u8").reshape(ROWS_AT_ONCE, -1)
    for block in list_blocks(len(records)):
        columns = [_read_cells(take_block(records[name], block)) for name in names]
        found = np.empty((block.stop - block.start, 2), dtype=np.uint64)
        for start in range(0, len(found), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            content = [read(rows) for read in columns]
            # All rows are of one length and no hash is ever shown, so that a key before the row is enough.
            cells = np.concatenate([secret[: len(content[0])], *content], axis=1)
            hashed = b"".join([hashlib.sha256(row).digest()[:16] for row in cells])
            found[rows] = np.frombuffer(hashed, dtype="<u8").reshape(-1, 2)
        write_block(digests, block, found.T)
    tickets: Tickets = tell_apart(digests, records.room)[0]
    return tickets


def _read_cells(column: Column) -> Callable[[slice], Cells]:
    """What some rows of a column say, as it is hashed: two numbers each, zero where it is missing."""
    if isinstance(column, Numbers):
        numbers = column.numbers
        return lambda rows: _as_cells(numbers[rows])
    values = [np.nan, *map(measure, column.values)]
    cells, codes = _as_cells(np.array(values)), column.codes
    for code, value in enumerate(column.values, start=1):
        if np.isnan(values[code]):
            text = hashlib.sha256(canonical(value).encode()).digest()[:16]
            cells[code] = np.frombuffer(text, dtype="<u8")
    return lambda rows: np.take(cells, codes[rows], axis=0)


def _as_cells(numbers: NDArray[np.float64]) -> Cells:
    known = ~np.isnan(numbers)
    bits = np.where(known, numbers + 0.0, 0.0).astype("<f8").view("<u8")  # -0.0 and 0.0 are one number
    return np.stack([bits, np.where(known, np.uint64(NUMBER), np.uint64(0))], axis=1)


MOST_NEGATIVES = 1_000_000
# Statistics of fewer can be traced back to people, so that such a site opts out.
LEAST_PATIENTS = 4
# An ensemble stops long before; each expert goes over all patients.
MOST_EXPERTS = 1001


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All patients with the positive value, and the `expert`-th helping of `negatives` others for each of them.

    It is nobody where that would be fewer than four; without `negatives` it is everyone. Either way there are two
    classes: 0, not positive, and 1, positive. `everyone`: all patients, but nobody where that sample would be nobody;
    so under masks a site that would opt out of an `exact` study adds nothing, and nobody sees that it did.
    """

    positive: str | int | float | bool
    negatives: int | None = None
    expert: int = 0
    everyone: bool = False

    @property
    def fixed(self) -> dict[str, Any]:
        """What must be as the study's parameters say."""
        return {"positive": self.positive, "negatives": self.negatives}

    def check_release(self, release: Release) -> None:
        """MessageError where this release shows no such sample. One patient more changes who else is drawn, which the
        noise of a count would not cover."""
        if release.bounded:
            raise MessageError("a sample of patients is counted without noise only")
        if release.by_site:
            return
        if self.negatives is None:
            raise MessageError("under masks a sample says how many negatives an expert takes")
        if self.expert >= MOST_EXPERTS:
            raise MessageError(f"under masks experts are numbered 0 to {MOST_EXPERTS - 1}")

    def tells_apart(self, classes: Attribute) -> bool:
        """Whether these are its two classes."""
        named = [label(value) for value in classes.values]
        return named in ([label(self.positive)], []) and classes.inner == 1 and classes.other

    def check(self) -> None:
        if self.negatives is not None and not 1 <= self.negatives <= MOST_NEGATIVES:
            raise MessageError(f"an expert takes 1 to {MOST_NEGATIVES} negatives for each positive")
        if not 0 <= self.expert <= MOST_NEGATIVES:
            raise MessageError(f"experts are numbered 0 to {MOST_NEGATIVES}")

    def estimate(self, patients: int) -> Workload:
        """What choosing them takes."""
        return Workload(250 * patients, 96 * patients)

    def choose(self, cohort: Cohort, query: str, target: str) -> Cohort:
        """The patients of the cohort that the expert learns from, in table order."""
        if self.negatives is None:
            return cohort
        if self.everyone:
            return self.leave_out_unfit(cohort, query, target)
        positive = is_positive(cohort, target, self.positive)
        key, wanted = _order_key(query, target, self.positive), self.negatives * int(positive.sum())
        others = take_turn(cohort.rows, ~positive, key, wanted, self.expert, cohort.view.room)
        rows = keep_rows(cohort, positive | others)
        return replace(cohort, rows=rows if len(rows) >= LEAST_PATIENTS else rows[:0])

    def leave_out_unfit(self, cohort: Cohort, query: str, target: str) -> Cohort:
        """The cohort, or nobody of it where an expert could not learn from it."""
        laid_out = msgspec.structs.replace(self, everyone=False).choose(cohort, query, target)
        return cohort if len(laid_out) else laid_out


def _positive_codes(column: Coded, positive: Value) -> NDArray[np.bool_]:
    """For each code of a column whether it stands for the value (5 and '5' are one, as everywhere between sites)."""
    name = label(positive)
    return np.array([False, *(label(value) == name for value in column.values)])


def is_positive(cohort: Cohort, target: str, positive: Value) -> NDArray[np.bool_]:
    """For each patient of the cohort whether the target, which must be a category, has the value."""
    column = cohort.view.records[target]
    if not isinstance(column, Coded):
        raise DoesNotFit(f"the target {target!r} is a number; a tree predicts categories")
    codes, stands_for = column.codes, _positive_codes(column, positive)
    positives: NDArray[np.bool_] = fill_room(
        len(cohort),
        np.bool_,
        cohort.view.room,
        lambda block: stands_for[codes[read_block(cohort.rows, block)]],
    )
    return positives


def take_turn(
    rows: NDArray[np.int32], among: NDArray[np.bool_], key: int, count: int, turn: int, room: Path | None
) -> NDArray[np.bool_]:
    """Which of the rows have this turn: `count` of those `among` them (all, where there are no more), after those of
    the turns before. They stand in a circle by their hashes: SplitMix64's output function on row and key, which never
    ties."""
    size = int(np.count_nonzero(among))
    if count >= size:
        return among
    hashes = fill_room(
        len(rows), np.uint64, room, lambda block: mix(read_block(rows, block).astype(np.uint64), key)
    )
    chosen, passed = np.zeros(len(rows), dtype=np.bool_), 0
    for part in split_hashes(hashes):
        part = part[among[part]]
        turns = (np.arange(passed, passed + len(part)) - turn * count % size) % size
        passed += len(part)
        if (turns < count).any():
            chosen[part[np.argsort(hashes[part])[turns < count]]] = True
    return chosen


def _order_key(query: str, target: str, positive: Value) -> int:
    """What the order of the negatives depends on, besides their rows."""
    words = "".join(f"{len(word)}:{word}" for word in (query, target, label(positive)))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little")
