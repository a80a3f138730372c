"""The one question of a sharing of codes, and what a hospital answers: its patients' codes, each randomised by itself.

Claim: as protocol/releases/shared.py and block_response.py say. Everyone is charged max_events * epsilon of the
design, whoever has how many events. The order of a hospital's rows does not show: patients leave in an order that only
the hospital can work out, and codes of one moment sorted by what they leave as. A text that is no code
of the design's taxonomy leaves as any protected code: a refusal would tell that somebody has it. The hospital's own log
names such texts.

Claim. Protected: each recorded code, from whoever sees how shared codes are ordered and which were left out. A file
may be sorted by code, so that its order tells codes that were randomised. Which of several events of one moment are
left out is therefore drawn at random, and those that leave are sorted by the code that they leave as.

docs/methods.md, section 7.13.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.codes.block_response import UNREADABLE
from concilium.codes.code_design import CodeDesign, open_design
from concilium.codes.sharing_parameters import SINCE_FIRST
from concilium.codes.taxonomy import Taxonomy
from concilium.errors import DoesNotFit, MessageError, StudyError, UnknownCode
from concilium.privacy import randomness
from concilium.protocol.attributes import CALL, Workload
from concilium.protocol.cohort import Cohort
from concilium.protocol.patient_identity import order_patients
from concilium.protocol.questions import Randomised, Reply
from concilium.protocol.sums import Array, find_narrowest, pack, unpack
from concilium.records.sequence_reading import MILLISECONDS
from concilium.records.sequences import Clock, Sequences

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release


def count_kept(counts: NDArray[np.int64], most: int, lengths: Sequence[int] = ()) -> NDArray[np.int64]:
    """How many events of each patient leave: at most so many and, where there are public lengths, the longest of these
    that the history reaches (none where it reaches none)."""
    kept = np.minimum(counts, most)
    if not lengths:
        return kept
    public = np.array([0, *lengths], dtype=np.int64)
    return public[np.searchsorted(public, kept, side="right") - 1]


def take_latest(sequences: Sequences, most: int, lengths: Sequence[int] = ()) -> Sequences:
    """Of each patient the latest events, as many as `count_kept` says; which of several at one time, is drawn anew."""
    kept = count_kept(sequences.counts, most, lengths)
    if (kept == sequences.counts).all():
        return sequences
    offsets = np.concatenate([[0], np.cumsum(kept)])
    latest = np.arange(offsets[-1]) + np.repeat(sequences.offsets[1:] - offsets[1:], kept)
    tickets = randomness.draw_words(len(sequences.codes))
    events = np.lexsort((tickets, number_moments(sequences)))[latest]
    return Sequences.from_arrays(
        offsets,
        sequences.codes[events],
        sequences.times[events],
        sequences.labels,
        ids=sequences.ids,
        clock=sequences.clock,
    )


def replace_codes(sequences: Sequences, codes: NDArray[np.integer], labels: Sequence[str]) -> Sequences:
    """The same patients and times with the codes that were drawn, those of one moment sorted by what was drawn."""
    drawn = sequences.with_codes(codes, labels)
    first = number_moments(drawn) * len(drawn.labels)
    return drawn.with_codes(np.sort(first + drawn.codes) - first, drawn.labels)


def number_moments(sequences: Sequences) -> NDArray[np.int64]:
    """For each event the number of its moment: events of one patient at one time have the same."""
    times, owners = sequences.times, sequences.owners
    begins = np.ones(len(times), dtype=bool)
    begins[1:] = (times[1:] != times[:-1]) | (owners[1:] != owners[:-1])
    return np.cumsum(begins, dtype=np.int64)


def number_codes(taxonomy: Taxonomy, sequences: Sequences) -> NDArray[np.int32]:
    """The number of each event's code in the taxonomy; a blot has the number after the last. UnknownCode names what is
    no code of it."""
    blot, known = taxonomy.root, len(taxonomy.codes)
    names = iter(taxonomy.normalise_all([text for text in sequences.labels if text != blot]))
    numbers = np.array(
        [known if text == blot else taxonomy.number_of[next(names)] for text in sequences.labels],
        dtype=np.int32,
    )
    return numbers[sequences.codes] if len(numbers) else np.zeros(0, dtype=np.int32)


def read_codes(taxonomy: Taxonomy, sequences: Sequences) -> NDArray[np.int32]:
    """The number of each event's code, read by itself; UNREADABLE where it is none of the taxonomy, or suppressed."""
    read = taxonomy.read_each(sequences.labels)
    numbers = [UNREADABLE if code is None else taxonomy.number_of[code] for code in read]
    return np.array(numbers, dtype=np.int32)[sequences.codes] if numbers else np.zeros(0, dtype=np.int32)


def _start_at_zero(sequences: Sequences) -> Sequences:
    """The same events in days since each patient's first: no calendar is left.

    They are rounded to the millisecond, since the last digits of a difference tell how large both numbers were.
    """
    counts = sequences.counts
    firsts = sequences.times[sequences.offsets[:-1][counts > 0]]
    times = sequences.times - np.repeat(firsts, counts[counts > 0])
    times = np.rint(times * MILLISECONDS) / MILLISECONDS
    return Sequences.from_arrays(
        sequences.offsets, sequences.codes, times, sequences.labels, ids=sequences.ids
    )


log = logging.getLogger(__name__)

MOST_LETTERS = 64
# For each event, and for each patient: to cut, order, number and draw it. And to read the codes that there are.
OF_AN_EVENT, OF_A_PATIENT, OF_ALL_CODES = 60, 1_500, 60_000_000
EVENT_BYTES, PATIENT_BYTES = 120, 600


class CodesReply(Reply, frozen=True):
    """Patients 1, 2, ...: how many events each has, and for all events one after the other the time, in days, and the
    place of the code in `labels`."""

    clock: Clock
    labels: list[str]
    counts: Array
    codes: Array
    times: Array

    @property
    def numbers(self) -> int:
        return len(self.codes.data) and self.codes.shape[0]

    def open(self) -> Sequences:
        """As sequences; MessageError where it is none."""
        counts, codes, times = (unpack(array) for array in (self.counts, self.codes, self.times))
        whole = all(array.dtype.kind in "iu" for array in (counts, codes))
        if not whole or any(array.ndim != 1 for array in (counts, codes, times)):
            raise MessageError(
                "these are not the codes of patients: counts and codes are lists of whole numbers"
            )
        counted, placed = counts.astype(np.int64), codes.astype(np.int64)
        events = len(placed)
        if (
            counted.min(initial=0) < 0
            or counted.max(initial=0) > events
            or counted.sum() != events
            or len(times) != events
            or placed.min(initial=0) < 0
            or placed.max(initial=-1) >= len(self.labels)
            or not np.isfinite(times.astype(np.float64)).all()
        ):
            raise MessageError("these are not the codes of patients: their numbers do not fit together")
        if any(not text.isprintable() or not 0 < len(text) <= MOST_LETTERS for text in self.labels):
            raise MessageError("these are not the codes of patients: a code is a short text")
        offsets = np.concatenate([[0], np.cumsum(counted)])
        return Sequences.from_arrays(offsets, placed, times.astype(np.float64), self.labels, clock=self.clock)


class AskSharedCodes(Randomised[CodesReply], frozen=True, kw_only=True):
    """Hand on the codes of your patients, randomised by this design."""

    kind: ClassVar[str] = "codes.shared"
    reply: ClassVar[type[CodesReply]] = CodesReply
    reads_part: ClassVar[str] = "codes"

    design: CodeDesign

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"design": self.design}

    @property
    def price(self) -> Fraction:
        return self.design.price

    def check(self, release: Release) -> None:
        try:
            self.design.check()
        except StudyError as error:
            raise MessageError(str(error)) from None

    def read(self, data: bytes) -> CodesReply:
        answer = super().read(data)
        answer.open()
        return answer

    def estimate(self, patients: int, columns: int) -> Workload:
        events = patients * self.design.max_events
        return Workload(
            OF_AN_EVENT * events + OF_A_PATIENT * patients + OF_ALL_CODES + CALL,
            EVENT_BYTES * events + PATIENT_BYTES * patients + (1 << 20),
        )

    def count(self, cohort: Cohort) -> int:
        held = find_codes(cohort)
        return int(count_kept(held.counts, self.design.max_events, self.design.lengths).sum())

    def compute(self, cohort: Cohort, order: bytes = b"") -> CodesReply:
        taxonomy, response = open_design(self.design)
        held = find_codes(cohort)
        latest = take_latest(
            held.take(order_patients(order, held.ids)), self.design.max_events, self.design.lengths
        )
        if self.design.dates == SINCE_FIRST:
            latest = _start_at_zero(latest)
        _warn_of_unreadable(taxonomy, held)
        drawn = response.randomize(read_codes(taxonomy, latest))
        return _write_codes(replace_codes(latest, drawn, taxonomy.codes))


def _warn_of_unreadable(taxonomy: Taxonomy, held: Sequences) -> None:
    """Say in the hospital's own log which codes cannot be read: outside nobody is told, since one patient could decide
    it."""
    try:
        taxonomy.normalise_all([text for text in held.labels if text != taxonomy.root])
    except UnknownCode as error:
        log.warning("codes that cannot be read leave as any protected code: %s", error)
    if taxonomy.root in held.labels:
        log.warning("codes that are suppressed (%s) leave as any protected code", taxonomy.root)


def find_codes(cohort: Cohort) -> Sequences:
    part = cohort.take_part("codes")
    if not isinstance(part, Sequences):
        raise DoesNotFit("this hospital holds its codes in a form that cannot be shared")
    return part


def _write_codes(sequences: Sequences) -> CodesReply:
    counts, codes = (values.astype(find_narrowest(values)) for values in (sequences.counts, sequences.codes))
    return CodesReply(
        sequences.clock, list(sequences.labels), pack(counts), pack(codes), pack(sequences.times)
    )
