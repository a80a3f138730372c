"""Dated codes of many patients: for each a list of (time, code), as diagnoses come.

All events lie one after the other, each patient's in the order of time; those of one moment stay in the order in which
they were given. How a cell is read depends on that cell alone: a code is its text without blanks around it, letter by
letter (a taxonomy says what it means, never the other codes), and a time is

    a number           in days, from wherever the hospital counts
    a date             2024-05-01, or a `date`: its first moment
    a moment           2024-05-01 13:30 (ISO text), or a `datetime`, with or without a time zone, to the millisecond

One population has times of one of these kinds (dates and moments without a zone are one); a mixture is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError
from concilium.records.blocks import (
    count_codes,
    fill_room,
    gather_spans,
    is_large,
    list_blocks,
    list_groups,
    look_up,
    make_room,
    read_block,
    write_block,
)
from concilium.records.columns import Value, label
from concilium.records.row_hashes import Hashes, hash_contents, hash_texts
from concilium.records.table import number_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame

Clock: TypeAlias = Literal["days", "dates", "zoned dates"]
"""What the times are: numbers of days, or days since 1970 of dates without or with a time zone (then in UTC)."""

CHUNK = 1 << 20


class Sequences:
    """`Sequences([[("2019-03-01", "250.00"), ("2020-11-13", "305.1")], [], ...])`: a list of (time, code) per patient.

    `patients` names them (without it: 1, 2, ...). A patient may have no events. `sequences[0]` is such a list again.
    """

    part: ClassVar[str] = "codes"

    def __init__(
        self, lists: Iterable[Iterable[tuple[Any, str]]], patients: Sequence[Value] | None = None
    ) -> None:
        from concilium.records.sequence_reading import read_lists

        counts, times, codes, labels, clock = read_lists(lists, patients)
        ids: Sequence[Value | None] = range(1, len(counts) + 1) if patients is None else list(patients)
        self._set(counts, times, codes, labels, ids, clock)

    def _set(
        self,
        counts: NDArray[np.int64],
        times: NDArray[np.float64],
        codes: NDArray[np.integer],
        labels: Sequence[str],
        ids: Sequence[Value | None],
        clock: Clock,
        room: Path | None = None,
    ) -> None:
        """Events in the order of patients; times within a patient and labels in any order, labels also twice."""
        offsets: NDArray[np.int64] = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        if not _are_ordered(times, offsets):
            order = np.lexsort((times, np.repeat(np.arange(len(counts)), counts)))  # stable
            times, codes = times[order], codes[order]
        held = count_codes(codes, len(labels))
        texts = sorted({labels[code] for code in np.flatnonzero(held).tolist()})
        code_of = {text: code for code, text in enumerate(texts)}
        table = np.array([code_of.get(text, 0) for text in labels], dtype=np.int32)
        # The folder for what is as long as all events and need not stay in memory; None where all of it does.
        self.room = room
        self.offsets: NDArray[np.int64] = offsets
        """Patient p has the events from `offsets[p]` to `offsets[p + 1]`."""
        same = codes.dtype == np.int32 and np.array_equal(table, np.arange(len(table)))
        self.codes: NDArray[np.int32] = codes.view(np.int32) if same else look_up(table, codes, room)
        """For each event the place of its code in `labels`."""
        self.times: NDArray[np.float64] = _settle(times, room)
        """For each event its time in days."""
        self.labels: tuple[str, ...] = tuple(texts)
        """The codes that some event has, sorted."""
        self.ids = ids
        self.clock: Clock = clock

    @classmethod
    def from_arrays(
        cls,
        offsets: NDArray[np.int64],
        codes: NDArray[np.integer],
        times: NDArray[np.float64],
        labels: Sequence[str],
        *,
        ids: Sequence[Value | None] | None = None,
        clock: Clock = "days",
        room: Path | None = None,
    ) -> Sequences:
        """The sequences of events that lie one after the other, patient by patient."""
        counts = np.diff(offsets)
        if len(codes) != len(times) or counts.sum() != len(codes) or np.any(counts < 0):
            raise RecordsError(
                f"there are {len(codes)} codes, {len(times)} times, and offsets for {int(counts.sum())} events"
            )
        sequences = object.__new__(cls)
        names = range(1, len(counts) + 1) if ids is None else ids
        sequences._set(counts, times, codes, labels, names, clock, room)
        return sequences

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str] | DataFrame,
        table: str | None = None,
        *,
        patient: str | None = None,
        code: str | None = None,
        time: str | None = None,
        missing: Iterable[str] | None = None,
        columns: str | os.PathLike[str] | None = None,
    ) -> Sequences:
        """From a long table, a row for each code of a patient, from any source that `Records.read` takes.

        Columns that are not named are recognised by their usual names. A row without code and time says that there is
        such a patient; one of them alone is an error. `missing` lists the texts that stand for a missing cell. The
        order of the rows matters only for codes of one patient at one time. `columns` is a folder, such as
        `north.ledger.columns`, for large tables, as with `Series.read`.
        """
        from concilium.records.sequence_reading import read_sequences
        from concilium.records.sources import saying_memory

        named = {"patient": patient, "code": code, "time": time}
        with saying_memory(source):
            return read_sequences(source, table, **named, missing=missing, columns=columns)

    @classmethod
    def read_fhir(
        cls,
        path: str | os.PathLike[str],
        *,
        system: str | None = None,
        others: Literal["refuse", "leave out"] = "refuse",
    ) -> Sequences:
        """From the Condition resources of a FHIR Bundle (.json) or of one resource in each line (.ndjson), also .gz.

        The code is that of ICD-9-CM or ICD-10-CM, or of the `system` that is named ("icd-9-cm", "icd-10-cm", or its
        address); a condition without one is an error, or left out with `others="leave out"`. The time is the onset, or
        else when it was recorded, as the hospital's clock showed it (a zone is not counted); a year or a month is its
        first day. Conditions that were refuted or entered in error are none. A Patient resource says that there is such
        a patient, also without conditions.
        """
        from concilium.records.sequence_reading import read_conditions

        return read_conditions(path, system, others)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Sequences({len(self)} patients, {len(self.codes)} events, {len(self.labels)} codes)"

    def __getitem__(self, row: int) -> list[tuple[float, str]]:
        """The (time, code) of one patient, times in days."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"there are {len(self)} patients")
        row %= len(self)
        events = slice(int(self.offsets[row]), int(self.offsets[row + 1]))
        codes = [self.labels[code] for code in self.codes[events].tolist()]
        return list(zip(self.times[events].tolist(), codes, strict=True))

    def __iter__(self) -> Iterator[list[tuple[float, str]]]:
        return (self[row] for row in range(len(self)))

    def to_lists(self) -> list[list[tuple[float, str]]]:
        """For each patient the list of (time, code), times in days."""
        return list(self)

    @property
    def patients(self) -> Sequence[Value | None]:
        """The patients, in order; the same as `ids`."""
        return self.ids

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many events each patient has."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> NDArray[np.int64]:
        """For each event the row number of its patient."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> Sequences:
        """The patients of a mask or of row numbers, in that order, with their events and nobody else's."""
        numbers = number_rows(rows, len(self))
        if len(numbers) == len(self) and np.array_equal(numbers, np.arange(len(self))):
            return self
        firsts, counts = self.offsets[:-1][numbers], self.counts[numbers]
        return Sequences.from_arrays(
            np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
            gather_spans(self.codes, firsts, counts, self.room),
            gather_spans(self.times, firsts, counts, self.room),
            self.labels,
            ids=[self.ids[row] for row in numbers.tolist()],
            clock=self.clock,
            room=self.room,
        )

    def with_patients(self, ids: Iterable[Value | None]) -> Sequences:
        """The same, and after them whoever of these is not among them yet, without events: a table of patients says who
        there is, also who has no code."""
        known = {label(one) for one in self.ids}
        more = [one for one in dict.fromkeys(ids) if label(one) not in known]
        offsets = np.concatenate([self.offsets, np.full(len(more), self.offsets[-1])])
        return Sequences.from_arrays(
            offsets,
            self.codes,
            self.times,
            self.labels,
            ids=[*self.ids, *more],
            clock=self.clock,
            room=self.room,
        )

    def with_codes(self, codes: NDArray[np.integer], labels: Sequence[str]) -> Sequences:
        """The same patients and times with other codes: for each event a place in `labels`."""
        if len(codes) != len(self.codes):
            raise RecordsError(f"there are {len(self.codes)} events and {len(codes)} codes")
        return Sequences.from_arrays(
            self.offsets, codes, self.times, labels, ids=self.ids, clock=self.clock, room=self.room
        )

    def rename(self, names: Sequence[str] | Mapping[str, str]) -> Sequences:
        """The same events with other names of codes: one for each of `labels`, in order or by label.

        Labels may be given one name, as where codes are cut to three digits.
        """
        chosen = [names[text] for text in self.labels] if isinstance(names, Mapping) else list(names)
        if len(chosen) != len(self.labels):
            raise RecordsError(f"there are {len(self.labels)} codes and {len(chosen)} names")
        return self.with_codes(self.codes, chosen)

    def write(
        self,
        path: str | os.PathLike[str],
        *,
        patient: str = "patient",
        time: str = "time",
        code: str = "code",
        notice: str | None = None,
    ) -> None:
        """A long table that `read` reads back: .csv, .csv.gz or .parquet; who has no events has a row without any.

        A `notice` is repeated in every row, in a column of that name: rows get copied without what stands above them.
        """
        from concilium.records.sequence_reading import write_sequences

        write_sequences(self, path, (patient, time, code), notice)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids, times and codes in this order of patients; codes of one moment count in any order."""
        content = hashlib.sha256(f"concilium/sequences@1\n{self.clock}\n".encode())
        for text in (*map(label, self.ids), *self.labels):
            encoded = text.encode("utf-8", "surrogatepass")
            content.update(len(encoded).to_bytes(8, "little") + encoded)
        content.update(self.counts.astype("<i8").tobytes())
        order = make_room(len(self.codes), np.int64, self.room)
        for events, owners, times, codes in self._each_group():
            write_block(order, events, np.lexsort((codes, times, owners)) + events.start)
        for first in range(0, len(order), CHUNK):
            chosen = read_block(order, slice(first, first + CHUNK))
            content.update(self.times[chosen].astype("<f8").tobytes())
            content.update(self.codes[chosen].astype("<i4").tobytes())
        return content.hexdigest()

    def _each_group(
        self,
    ) -> Iterator[tuple[slice, NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]]:
        """Some patients at a time: which events are theirs, whose each is, when and what."""
        for group in list_groups(self.counts):
            events = slice(int(self.offsets[group.start]), int(self.offsets[group.stop]))
            owners = np.repeat(np.arange(group.start, group.stop), self.counts[group])
            yield events, owners, read_block(self.times, events), read_block(self.codes, events)

    @cached_property
    def hashes(self) -> Hashes:
        """Of the codes of each patient and their times; those of one moment in any order."""
        kinds, hashes = hash_texts(self.labels), np.zeros((2, len(self)), dtype=np.uint64)
        for _, owners, times, codes in self._each_group():
            hashes += hash_contents(times.view(np.uint64), kinds[codes], owners, len(self))
        return hashes

    @property
    def bytes_held(self) -> int:
        """The memory that its events take; none where they are mapped from files."""
        held: tuple[NDArray[Any], ...] = (self.codes, self.times)
        return sum(one.nbytes for one in held if not isinstance(one, np.memmap))


def _are_ordered(times: NDArray[np.float64], offsets: NDArray[np.int64]) -> bool:
    """Whether times rise within each patient."""
    for block in list_blocks(len(times)):
        own = times[max(block.start - 1, 0) : block.stop]
        falls = np.flatnonzero(own[1:] < own[:-1]) + max(block.start - 1, 0) + 1
        begins = offsets[np.minimum(np.searchsorted(offsets, falls), len(offsets) - 1)]
        if np.any(begins != falls):
            return False
    return True


def _settle(times: NDArray[np.floating], room: Path | None) -> NDArray[np.float64]:
    """The times as they are kept: -0.0 becomes 0.0."""
    if not is_large(len(times)):
        return np.asarray(times, dtype=np.float64) + 0.0
    return fill_room(
        len(times), np.float64, room, lambda block: read_block(times, block).astype(np.float64) + 0.0
    )
