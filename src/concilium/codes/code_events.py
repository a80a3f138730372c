"""The events of patients as a mechanism takes them, the latest so many, and as they leave, in an order of their own.

Claim. Protected: each recorded code, from whoever sees how shared codes are ordered and which were left out. A file
may be sorted by code, so that its order tells codes that were randomised. Which of several events of one moment are
left out is therefore drawn at random, and those that leave are sorted by the code that they leave as.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.codes.block_response import UNREADABLE
from concilium.codes.taxonomy import Taxonomy
from concilium.privacy import randomness
from concilium.records.sequence_lists import MILLISECONDS
from concilium.records.sequences import Sequences


def take_latest(sequences: Sequences, most: int) -> Sequences:
    """Of each patient the latest events, so many at most; which of several at one time, is drawn anew each time."""
    counts = sequences.counts
    if counts.max(initial=0) <= most:
        return sequences
    kept = np.minimum(counts, most)
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
    number_of = {code: number for number, code in enumerate(taxonomy.codes)}
    blot, known = taxonomy.root, len(taxonomy.codes)
    names = iter(taxonomy.normalise_all([text for text in sequences.labels if text != blot]))
    numbers = np.array(
        [known if text == blot else number_of[next(names)] for text in sequences.labels], dtype=np.int32
    )
    return numbers[sequences.codes] if len(numbers) else np.zeros(0, dtype=np.int32)


def read_codes(taxonomy: Taxonomy, sequences: Sequences) -> NDArray[np.int32]:
    """The number of each event's code, read by itself; UNREADABLE where it is none of the taxonomy, or suppressed."""
    number_of = {code: number for number, code in enumerate(taxonomy.codes)}
    read = taxonomy.read_each(sequences.labels)
    numbers = [UNREADABLE if code is None else number_of[code] for code in read]
    return np.array(numbers, dtype=np.int32)[sequences.codes] if numbers else np.zeros(0, dtype=np.int32)


def start_at_zero(sequences: Sequences) -> Sequences:
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
