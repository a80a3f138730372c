"""The attack on whole histories: a hidden chain of codes, each seen through the channel.

States follow one another as codes did in auxiliary patients; the outputs are what the mechanism makes of them. The
forward-backward recursion gives the probability of each code behind each event from all that was shared of the
patient, randomised neighbours included, which the attack on single events does not use. Optimal where codes are a
first-order chain.

docs/methods.md, section 7.10.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.codes.attack import SharedView, find_priors
from concilium.codes.dependence import DependenceGraph

PATIENTS_AT_ONCE = 2_000


def count_transitions(offsets: NDArray[np.int64], codes: NDArray[np.int32], size: int) -> NDArray[np.float32]:
    """How often code b was the next event after code a of the same patient, in row a and column b."""
    follows = np.ones(max(len(codes) - 1, 0), dtype=bool)
    starts = offsets[1:-1]
    follows[starts[(starts > 0) & (starts < len(codes))] - 1] = False
    left, right = codes[:-1][follows].astype(np.int64), codes[1:][follows].astype(np.int64)
    counts = np.bincount(left * size + right, minlength=size * size).reshape(size, size)
    return counts.astype(np.float32)


def find_transitions(counts: NDArray[np.float32], graph: DependenceGraph) -> NDArray[np.float32]:
    """P(next = b | a), each row shrunk towards the priors as by one event more."""
    priors = find_priors(graph).astype(np.float32)
    weights: NDArray[np.float32] = (counts + priors) / (counts.sum(axis=1, keepdims=True) + np.float32(1))
    return weights


def guess_histories(
    graph: DependenceGraph,
    transitions: NDArray[np.float32],
    channel: NDArray[np.float64],
    view: SharedView,
) -> NDArray[np.intp]:
    """The most likely state behind each event given the whole history; a code in the clear is itself."""
    guesses = view.shown.copy()
    lengths = np.diff(view.offsets)
    owners = view.owners
    attacked = np.zeros(len(lengths), dtype=bool)
    attacked[owners[view.hidden >= 0]] = True
    order = np.flatnonzero(attacked)[np.argsort(-lengths[attacked], kind="stable")]
    priors = find_priors(graph).astype(np.float32)
    emissions = channel.T.astype(np.float32)
    for first in range(0, len(order), PATIENTS_AT_ONCE):
        patients = order[first : first + PATIENTS_AT_ONCE]
        _guess_some(guesses, view, patients, priors, transitions, emissions)
    return guesses


def _guess_some(
    guesses: NDArray[np.intp],
    view: SharedView,
    patients: NDArray[np.intp],
    priors: NDArray[np.float32],
    transitions: NDArray[np.float32],
    emissions: NDArray[np.float32],
) -> None:
    """Patients with the longest history first, so that those still going on are the first rows at every step."""
    starts, lengths = view.offsets[patients], np.diff(view.offsets)[patients]
    going = [int(np.count_nonzero(lengths > step)) for step in range(int(lengths[0]))]

    def emit(step: int, rows: int) -> NDArray[np.float32]:
        events = starts[:rows] + step
        likely = np.ones((rows, len(priors)), dtype=np.float32)
        hidden, shown = view.hidden[events], view.shown[events]
        covered, open_ = np.flatnonzero(hidden >= 0), np.flatnonzero(shown >= 0)
        likely[covered] = emissions[hidden[covered]]
        likely[open_] = 0.0
        likely[open_, shown[open_]] = 1.0
        return likely

    forward: list[NDArray[np.float32]] = []
    for step, rows in enumerate(going):
        before = (
            np.broadcast_to(priors, (rows, len(priors))) if step == 0 else forward[-1][:rows] @ transitions
        )
        forward.append(_normalise(before * emit(step, rows)))
    backward = np.ones((going[-1], len(priors)), dtype=np.float32)
    for step in range(len(going) - 1, -1, -1):
        rows = going[step]
        if len(backward) < rows:  # whose history ends here
            ends = np.ones((rows - len(backward), len(priors)), dtype=np.float32)
            backward = np.concatenate([backward, ends])
        events = starts[:rows] + step
        unknown = np.flatnonzero(view.hidden[events] >= 0)
        guesses[events[unknown]] = (forward[step][unknown] * backward[unknown]).argmax(axis=1)
        if step:
            backward = _normalise(np.matmul(backward * emit(step, rows), transitions.T))


def _normalise(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    sums = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, np.where(sums > 0, sums, 1), dtype=np.float32)
