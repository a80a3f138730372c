"""What sharing loses: clinical information loss on average, and how far the frequencies of codes move.

Loss is the taxonomy distance (Eq. 4) between what was recorded and what is shared, and 1 where a code is blotted
out. The source measures it on patients who have a sensitive code. Non-sensitive codes are overwritten too, so it is
said here for sensitive codes, for those patients, and for all codes, with how many entries are false.

docs/methods.md, section 7.8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Added to every count before a divergence: else one code that is gone makes it infinite.
HALF = 0.5


@dataclass(frozen=True)
class InformationLoss:
    """Means of the taxonomy distance, and shares of events.

    `sensitive`: over events with a sensitive code; `sensitive_patients`: over the events of each patient who has one,
    then over those patients (the source's measure); `everything`: over all events. `changed`: events that are shared as
    another code; `false_sensitive`: events shared as a sensitive code that were not sensitive.
    """

    sensitive: float
    sensitive_patients: float
    everything: float
    changed: float
    false_sensitive: float


def measure_loss(
    distances: NDArray[np.float64],
    sensitive: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    before: NDArray[np.intp],
    after: NDArray[np.intp],
) -> InformationLoss:
    """The loss of sharing `after` for `before`: numbers of codes, of which `distances` has rows and columns.

    A number beyond them is a blot.
    """
    size = len(distances)
    blotted = after >= size
    lost = np.where(blotted, 1.0, distances[before, np.where(blotted, 0, after)])
    touched = sensitive[before]
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    patients = np.unique(owners[touched])
    events = np.bincount(owners, minlength=len(offsets) - 1)[patients]
    sums = np.bincount(owners, weights=lost, minlength=len(offsets) - 1)[patients]
    said = ~blotted & sensitive[np.where(blotted, 0, after)]
    return InformationLoss(
        _mean(lost[touched]),
        _mean(sums / events),
        _mean(lost),
        _mean(before != after),
        _mean(said & ~touched),
    )


def measure_divergence(before: NDArray[np.int64], after: NDArray[np.int64]) -> float:
    """The Kullback-Leibler divergence of shared from recorded frequencies, in nats; half a case is added to each code.

    The counts may end with blots, which are no code anyone recorded.
    """
    seen = (before > 0) | (after > 0)
    true, shared = before[seen] + HALF, after[seen] + HALF
    true, shared = true / true.sum(), shared / shared.sum()
    return float(np.sum(true * np.log(true / shared)))


def expect_loss(distances: NDArray[np.float64], channel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Eq. 5: the expected loss of each input, from its distances to the hidden outputs and their probabilities."""
    losses: NDArray[np.float64] = (distances * channel).sum(axis=1)
    return losses


def _mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else 0.0
