"""How often each code was recorded, from what was shared: for what the channel identifies.

Unprotected codes: their count over 1 - p_S. Protected codes: the counts of hidden outputs solve a linear system,
and a code is identified where its own unit vector is in the range of the channel. Codes that share their block have
the same row: only sums are, and the codes are named as confounded. What EM says of one of them rests on where it
started.

Loss is the taxonomy distance (Eq. 4) between what was recorded and what is shared, and 1 where a code is
suppressed. The source measures it on patients who have a sensitive code. Non-sensitive codes are overwritten too,
so it is reported for sensitive codes, for those patients, and for all codes, with how many entries are false
(docs/methods.md, section 7.8).

docs/methods.md, section 7.11.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.codes.block_response import CodeMechanism

TOLERANCE = 1e-8
ROUNDS = 2_000


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Estimated counts, unbiased and never clipped, with standard errors.

    `codes`, `counts`, `errors`: every identified code. `confounded`: groups of protected codes (by number) that the
    channel does not tell apart, each with the estimate and the error of its sum, or None where even that is open.
    `likely`: an EM estimate for each protected code, no more than a guess for the confounded.
    """

    codes: NDArray[np.intp]
    counts: NDArray[np.float64]
    errors: NDArray[np.float64]
    confounded: list[tuple[list[int], tuple[float, float] | None]]
    likely: dict[int, float]


def estimate_frequencies(mechanism: CodeMechanism, shared: NDArray[np.intp]) -> Frequencies:
    """From the codes that were shared."""
    hidden = mechanism.hidden_outputs
    seen = np.bincount(shared, minlength=mechanism.size + 1)
    protected = np.flatnonzero(mechanism.places >= 0)
    is_hidden = np.zeros(mechanism.size + 1, dtype=bool)
    is_hidden[hidden] = True
    clear = np.flatnonzero((seen > 0) & ~is_hidden)
    kept = mechanism.find_shown(clear) if len(clear) else np.ones(0)
    outputs = np.append(seen[hidden], seen[clear].sum()).astype(np.float64)
    channel = _gather_clear(mechanism, protected)
    solver = np.linalg.pinv(channel.T, rcond=TOLERANCE)
    counts = solver @ outputs
    # Of independent draws from different rows the covariance is at most that of as many from their mean.
    covariance = np.diag(outputs) - np.outer(outputs, outputs) / max(outputs.sum(), 1.0)
    spread = solver @ covariance @ solver.T
    known = solver @ channel.T  # the projection on what is identified
    identified = np.abs(known - np.eye(len(known))).max(axis=1) < 1e-6
    alone = np.flatnonzero(identified[:-1])
    groups: list[tuple[list[int], tuple[float, float] | None]] = []
    for members in _group_rows(channel[:-1], np.flatnonzero(~identified[:-1])):
        chosen = np.zeros(len(channel))
        chosen[members] = 1.0
        open_ = np.abs(chosen @ known - chosen).max() > 1e-6
        total = float(chosen @ counts), float(np.sqrt(max(chosen @ spread @ chosen, 0.0)))
        groups.append((protected[members].tolist(), None if open_ else total))
    shown = seen[clear] / np.where(kept > 0, kept, 1.0)
    return Frequencies(
        np.concatenate([clear, protected[alone]]),
        np.concatenate([shown, counts[alone]]),
        np.concatenate(
            [
                np.sqrt(shown * (1 - kept) / np.where(kept > 0, kept, 1.0)),
                np.sqrt(np.maximum(np.diag(spread)[alone], 0.0)),
            ]
        ),
        groups,
        dict(zip(protected.tolist(), _maximise(channel, outputs)[:-1].tolist(), strict=True)),
    )


def _gather_clear(mechanism: CodeMechanism, protected: NDArray[np.intp]) -> NDArray[np.float64]:
    """The channel with all unprotected codes as one input (the last), and all unprotected outputs as one."""
    clear = np.flatnonzero(mechanism.places < 0)[:1]
    inputs = np.concatenate([protected, clear])
    channel = np.zeros((len(protected) + 1, len(mechanism.hidden_outputs) + 1))
    channel[: len(inputs), :-1] = mechanism.find_hidden(inputs)
    channel[: len(inputs), -1] = mechanism.find_shown(inputs)
    return channel


def _group_rows(channel: NDArray[np.float64], rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Rows that are the same, in groups."""
    if not len(rows):
        return []
    _, numbers = np.unique(np.round(channel[rows], 14), axis=0, return_inverse=True)
    return [rows[numbers.ravel() == number] for number in range(int(numbers.max()) + 1)]


def _maximise(channel: NDArray[np.float64], outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The most likely counts of inputs (EM from equal counts): always above zero, and biased where noise is large."""
    counts = np.full(len(channel), outputs.sum() / len(channel))
    for _ in range(ROUNDS):
        expected = counts @ channel
        ratio = np.divide(outputs, expected, out=np.zeros_like(outputs), where=expected > 0)
        after = counts * (channel @ ratio)
        if np.abs(after - counts).max() < 1e-6 * max(outputs.sum(), 1.0):
            return after
        counts = after
    return counts


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
