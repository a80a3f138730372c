"""The meter of a site: what a question takes is found before anything is computed, and held to the policy's [work].

Who is protected: the hospital's machine, from a small message that takes hours or all of its memory, whoever sends it.
What a refusal may tell: nothing about who matches. Under `exact` and `masked` a table counts as the next power of two
above its rows, so that refusals tell the order of its size at most. Under `private` no patient may decide whether there
is an answer: a table counts as ASSUMED_PATIENTS whatever is in it, or as the policy's `patients`, and a larger one
takes more than is counted.

To read a proposal is work too: a known house's are counted by the bytes of their terms before they are read, with all
other work and by house, so that one house leaves a day to the others. Who is no known house is refused before that.

What was computed today (UTC) is counted for all houses and studies together, whether or not it was answered. It is
written to the ledger's file by hundredths of a day's limit, not with every question: a site that is killed, and each
process besides, forgets or oversees less than a hundredth.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from concilium.errors import PolicyError
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import WorkLimits
from concilium.protocol.attributes import CALL, Attribute, Workload, estimate_columns
from concilium.protocol.masking import Memberships
from concilium.protocol.messages import Envelope, Refused
from concilium.protocol.questions import Statistic, Summed, estimate
from concilium.records.blocks import ROWS_AT_ONCE
from concilium.records.expression import literals, predicates
from concilium.records.query import Query

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

log = logging.getLogger(__name__)

ASSUMED_PATIENTS = 1_000_000
# What one question may take where the policy does not say: a million rows take some minutes at most, and up to ten
# thousand some seconds.
OF_EACH_PATIENT, LEAST_LIMIT = 10**6, 10**10
DAY = 86_400
CHUNKS = 100
LARGEST = 1 << 62  # what a ledger's file can add up

# What is held of each row of a table that is gone over by blocks: who is held out, and its number in the ledger.
OF_EACH_ROW = 6
# What a process takes with an empty table, with its libraries and kernels; and the least that is left for questions.
OF_PROCESS, LEAST_LEFT = 250_000_000, 100_000_000
WORTH_A_LINE = 1 << 28  # bytes: before more than this is taken, the log says so
# For each number: to draw its noise; to mask it, and for each site that it shares masks with.
NOISE, MASK, MASK_OF_EACH = 5_000, 60, 8
MASKED_BYTES = 80
# For each patient: to find who is held out, which hashes each row, and to choose them.
HOLD_OUT, HELD_OUT_BYTES = 5_000, 160
# For each proposal, and for each byte of its terms: to open the method that they name, and what it plans to ask.
PROPOSAL, OF_EACH_BYTE = 1_000_000, 2_000
# What all proposals of a house may take in a day: a hundredth of it, and this at least.
LEAST_OF_A_HOUSE = 10**9


class Meter:
    """What one site has computed, and may."""

    def __init__(
        self,
        limits: WorkLimits,
        ledger: Ledger,
        memberships: Memberships,
        patients: int,
        columns: int,
        *,
        in_store: bool = False,
        held: int = 0,
    ) -> None:
        if limits.patients is not None and limits.patients < patients:
            raise PolicyError(
                f"[work] takes a table to have {limits.patients} patients, and this one has {patients}: state as many "
                "as it may come to have"
            )
        self._in_store = in_store
        self._limits, self._ledger, self._memberships = limits, ledger, memberships
        self._most_memory = limits.bytes_of_question
        self._held = OF_PROCESS + held
        if limits.bytes_of_site is not None:
            left = limits.bytes_of_site - self._held
            if left < LEAST_LEFT:
                raise PolicyError(
                    f"[work] memory = {limits.memory!r} is too little: this site holds {_say_bytes(self._held)} before "
                    f"it is asked anything, and a question needs {_say_bytes(LEAST_LEFT)} more. Allow "
                    f"{_say_bytes(self._held + LEAST_LEFT)}, or give the site a ledger file and a larger table, whose "
                    "columns then stay on disk"
                )
            self._most_memory = min(self._most_memory, left)
        self._rounded, self._columns = 1 << max(0, patients - 1).bit_length(), columns
        self._lock = threading.Lock()
        self._day = -1
        self._written = self._unwritten = 0

    def describe_memory(self) -> str:
        """What the site holds, and what it may hold more for a question, for its own log."""
        return f"{_say_bytes(self._held)} of memory, and {_say_bytes(self._most_memory)} more for a question at most"

    def admit(self, envelope: Envelope, question: Statistic, release: Release) -> None:
        """Count the work of a question; Refused where it is more than the policy allows."""
        patients = self._assume(release)
        work = estimate(envelope, question, patients, self._columns)
        work += self._estimate_choice(question, patients, release)
        if question.goes_by_blocks and self._goes_by_blocks(patients, release, question.one_block):
            cores = os.cpu_count() or 1
            held = estimate(envelope, question, question.rows_at_once * cores, self._columns)
            held += self._estimate_choice(question, min(patients, ROWS_AT_ONCE * cores), release)
            if patients <= ROWS_AT_ONCE:  # whose codes are in memory all the same
                held += estimate_columns(question.named, patients)
            work = Workload(work.operations, held.memory + OF_EACH_ROW * patients)
        if isinstance(question, Summed) and not release.by_site:
            neighbours = len(self._memberships.at(envelope.study).neighbours)
            each = MASK + MASK_OF_EACH * neighbours + NOISE * release.bounded
            work += Workload(each * question.numbers, MASKED_BYTES * question.numbers)
        elif isinstance(question, Summed) and question.noise is not None:
            work += Workload(NOISE * question.numbers, MASKED_BYTES * question.numbers)
        self._spend(work, patients)
        if work.memory >= WORTH_A_LINE:
            log.info(
                "a question of kind %r goes over %s patients, with %s of memory at most: %.3g operations",
                envelope.kind,
                f"{patients:,}",
                _say_bytes(work.memory),
                work.operations,
            )

    def _estimate_choice(self, question: Statistic, patients: int, release: Release) -> Workload:
        """What it takes to find the patients of a question."""
        work = _estimate_selection(question.query, patients, each_by_itself=release.bounded)
        if question.followed:
            work += estimate_columns([question.followed.attribute], patients, each_by_itself=True)
        if question.division is not None or question.followed:
            work += Workload(HOLD_OUT * patients, HELD_OUT_BYTES * patients)
        return work

    def _goes_by_blocks(self, patients: int, release: Release, one_block: int = ROWS_AT_ONCE) -> bool:
        """Whether a table of these patients is read block by block. Under a release with a bound neither a patient nor
        a store may decide that. A smaller table, which is then estimated as large, fits anyway."""
        return patients > one_block and (self._in_store or release.bounded)

    def admit_selection(self, query: str, release: Release) -> None:
        """The same for finding the patients of a query, where nothing else is computed."""
        patients = self._assume(release)
        work = _estimate_selection(query, patients, each_by_itself=release.bounded)
        if self._goes_by_blocks(patients, release):
            rows = ROWS_AT_ONCE * (os.cpu_count() or 1)
            held = _estimate_selection(query, rows, each_by_itself=release.bounded).memory
            work = Workload(work.operations, held + OF_EACH_ROW * patients)
        self._spend(work, patients)

    def check_study(self, query: str, columns: Iterable[Attribute], questions: int) -> None:
        """Refused where a study with a price asks more than the policy allows even if it only reads its columns, and
        finds its patients, with so many questions: before any hospital is charged. No patient decides that."""
        patients = self._limits.patients or ASSUMED_PATIENTS
        selecting = _estimate_selection(query, patients, each_by_itself=True)
        read = estimate_columns(columns, patients, each_by_itself=True)
        self._check(selecting + read, patients)
        with self._lock:
            self._check_day(questions * selecting.operations + read.operations, "this study")

    def admit_proposal(self, house: str, size: int) -> None:
        """Count the work of reading a proposal of so many bytes; Refused where its house proposed too much today."""
        operations = PROPOSAL + OF_EACH_BYTE * size
        limit = max(LEAST_OF_A_HOUSE, min(int(self._limits.operations_per_day), LARGEST) // CHUNKS)
        self._count(operations)
        taken = self._ledger.count_proposals(house, operations)
        if taken > limit:
            raise Refused(
                "work",
                f"the proposals of this house have taken the {limit:.3g} operations that this hospital reads of one "
                "house in a day: propose again after midnight (UTC)",
                asked=f"{operations} operations",
                spent=f"{taken - operations} operations",
                left=f"{max(0, limit - taken + operations)} operations",
            )

    def _assume(self, release: Release) -> int:
        """How many patients the table counts as."""
        if self._limits.patients is not None:
            return self._limits.patients
        return ASSUMED_PATIENTS if release.bounded else self._rounded

    def _spend(self, work: Workload, patients: int) -> None:
        self._check(work, patients)
        self._count(min(work.operations, LARGEST))

    def _check(self, work: Workload, patients: int) -> None:
        """Refused where one question takes more than the policy allows."""
        limit = self._limits.operations_per_question
        most = max(LEAST_LIMIT, OF_EACH_PATIENT * patients) if limit is None else int(limit)
        if work.memory > self._most_memory:
            raise Refused(
                "work",
                f"this question may take {_say_bytes(work.memory)} of memory, and this hospital allows "
                f"{_say_bytes(self._most_memory)} for one question: {ASK_LESS}",
                asked=f"{work.memory} bytes",
                would_fit=f"{self._most_memory} bytes",
            )
        if work.operations > most:
            raise Refused(
                "work",
                f"this question may take {work.operations:.3g} operations, and this hospital allows "
                f"{most:.3g} for one question: {ASK_LESS}",
                asked=f"{work.operations} operations",
                would_fit=f"{most} operations",
            )

    def _count(self, operations: int) -> None:
        with self._lock:
            limit = self._check_day(operations)
            self._unwritten += operations
            if self._unwritten > limit // CHUNKS:
                self._written, self._unwritten = self._ledger.count_work(self._unwritten), 0

    def _check_day(self, operations: int, asked: str = "this question") -> int:
        """The most that may be computed in a day; Refused where less than this is left of it."""
        limit = min(int(self._limits.operations_per_day), LARGEST)
        today = int(time.time() // DAY)
        if today > self._day:  # a clock that is put back begins no day anew
            self._day, self._written, self._unwritten = today, self._ledger.count_work(0), 0
        spent = self._written + self._unwritten
        if spent + operations > limit:
            raise Refused(
                "work",
                f"{asked} may take {operations:.3g} operations, and of the {limit:.3g} that this hospital "
                f"allows for a day {max(0, limit - spent):.3g} are left until midnight (UTC)",
                asked=f"{operations} operations",
                spent=f"{spent} operations",
                left=f"{max(0, limit - spent)} operations",
                would_fit=f"{max(0, limit - spent)} operations",
            )
        return limit


ASK_LESS = "ask about fewer attributes, nodes, terms or steps at a time"


def _estimate_selection(query: str, patients: int, *, each_by_itself: bool) -> Workload:
    """To find who matches a query."""
    conditions, values, attributes = _count_conditions(query)
    operations, held = 20 + 20 * conditions + min(values, 200 * conditions), 120
    if each_by_itself:  # the columns of the query are read anew
        operations, held = operations + 500 * attributes, held + 240 + 12 * attributes
    return Workload(operations * patients + CALL * (20 + conditions + values), held * patients + (1 << 20))


@lru_cache(maxsize=64)
def _count_conditions(query: str) -> tuple[int, int, int]:
    """How many conditions, values and different attributes a query has; QueryError where it is none."""
    parsed = Query.parse(query)
    if parsed.condition is None:
        return 0, 0, 0
    conditions = list(predicates(parsed.condition))
    return len(conditions), sum(len(list(literals(one))) for one in conditions), len(parsed.attributes)


def _say_bytes(count: int) -> str:
    """A number of bytes as people read it."""
    return f"{count / 1e9:.3g} GB" if count >= 10**9 else f"{count / 1e6:.3g} MB"
