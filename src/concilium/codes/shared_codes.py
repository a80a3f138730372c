"""The one question of a sharing of codes, and what a hospital answers: its patients' codes, each randomised by itself.

Claim: as protocol/releases/shared.py and block_response.py say. Everyone is charged max_events * epsilon of the
design, whoever has how many events. The order of a hospital's rows does not show: patients leave in an order that only
the hospital can work out, and codes of one moment sorted by what they leave as (code_events.py). A text that is no code
of the design's taxonomy leaves as any protected code: a refusal would tell that somebody has it. The hospital's own log
names such texts.

docs/methods.md, section 7.13.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from concilium.codes.code_design import SINCE_FIRST, CodeDesign, open_design
from concilium.codes.code_events import read_codes, replace_codes, start_at_zero, take_latest
from concilium.codes.taxonomy import Taxonomy
from concilium.errors import DoesNotFit, MessageError, StudyError, UnknownCode
from concilium.protocol.arrays import Array, pack, unpack
from concilium.protocol.cohort import Cohort
from concilium.protocol.patient_numbers import order_patients
from concilium.protocol.questions import Randomised, Reply
from concilium.protocol.sums import find_narrowest
from concilium.protocol.work import CALL, Workload
from concilium.records.sequences import Clock, Sequences

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

log = logging.getLogger(__name__)

MOST_LETTERS = 64
# For each event, and for each patient: to cut, order, number and draw it. And to read the codes that there are.
OF_AN_EVENT, OF_A_PATIENT, OF_ALL_CODES = 60, 1_500, 60_000_000
EVENT_BYTES, PATIENT_BYTES = 120, 600


class SharedCodes(Reply, frozen=True):
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


class AskSharedCodes(Randomised[SharedCodes], frozen=True, kw_only=True):
    """Hand on the codes of your patients, randomised by this design."""

    kind: ClassVar[str] = "codes.shared"
    reply: ClassVar[type[SharedCodes]] = SharedCodes

    design: CodeDesign

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"codes"})

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

    def read(self, data: bytes) -> SharedCodes:
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
        return int(np.minimum(held.counts, self.design.max_events).sum())

    def compute(self, cohort: Cohort, order: bytes = b"") -> SharedCodes:
        taxonomy, response = open_design(self.design)
        held = find_codes(cohort)
        latest = take_latest(held.take(order_patients(order, held.ids)), self.design.max_events)
        if self.design.dates == SINCE_FIRST:
            latest = start_at_zero(latest)
        warn_of_unreadable(taxonomy, held)
        drawn = response.randomize(read_codes(taxonomy, latest))
        return write_codes(replace_codes(latest, drawn, taxonomy.codes))


def warn_of_unreadable(taxonomy: Taxonomy, held: Sequences) -> None:
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
        raise DoesNotFit("this hospital holds its codes in a form that cannot be handed on")
    return part


def write_codes(sequences: Sequences) -> SharedCodes:
    counts, codes = (values.astype(find_narrowest(values)) for values in (sequences.counts, sequences.codes))
    return SharedCodes(
        sequences.clock, list(sequences.labels), pack(counts), pack(codes), pack(sequences.times)
    )
