"""The events of patients as a mechanism takes them: the latest so many, each with the number of its code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.codes.taxonomy import Taxonomy
from concilium.records.sequences import Sequences


def take_latest(sequences: Sequences, most: int) -> Sequences:
    """Of each patient the latest events, so many at most; of several at one time those listed last."""
    counts = sequences.counts
    if counts.max(initial=0) <= most:
        return sequences
    kept = np.minimum(counts, most)
    offsets = np.concatenate([[0], np.cumsum(kept)])
    events = np.arange(offsets[-1]) + np.repeat(sequences.offsets[1:] - offsets[1:], kept)
    return Sequences.from_arrays(
        offsets,
        sequences.codes[events],
        sequences.times[events],
        sequences.labels,
        ids=sequences.ids,
        clock=sequences.clock,
    )


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


def start_at_zero(sequences: Sequences) -> Sequences:
    """The same events in days since each patient's first: no calendar is left."""
    counts = sequences.counts
    firsts = sequences.times[sequences.offsets[:-1][counts > 0]]
    times = sequences.times - np.repeat(firsts, counts[counts > 0])
    return Sequences.from_arrays(
        sequences.offsets, sequences.codes, times, sequences.labels, ids=sequences.ids
    )
