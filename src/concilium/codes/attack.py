"""The inference attack of Eq. 3: for each hidden output, the most likely code behind it.

The adversary knows the mechanism, the counts of the auxiliary patients and all that was shared, and guesses among
*all* codes, not among the sensitive ones alone: Bayes' rule with P(output | code) from the channel, and for the
code before it P(e | O_NS) ~ P(e) * product over the patient's unprotected codes c of P(c | e) / P(c). It is
optimal where those codes are independent given e. What it achieves is its precision: of the guesses that name a
code, how many are right.

The attack on patients asks who has it: the probability that a patient has a sensitive code at all, from all of the
patient's entries together, 1 minus the product over hidden entries of P(none of them | output, unprotected codes). Its
figure is the AUC over patients, and how many of the 25 patients it is surest of have one. Beside it stands what the
number of entries alone gives away, which no epsilon hides (`lengths` does).

The attack on whole histories takes a patient's codes as a hidden chain. States follow one another as codes did in
auxiliary patients; outputs are what the mechanism makes of them. The forward-backward recursion gives the
probability of each code behind each event from everything shared of the patient, randomised neighbours included. It
is optimal where codes are a first-order chain (docs/methods.md, section 7.10).

docs/methods.md, section 7.9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.codes.dependence import DependenceGraph, count_dependence
from concilium.records.sequences import Sequences

PATIENTS_AT_ONCE = 2_000
LEAST_GUESSES = 30
TOP = 25
# A code of no auxiliary patient is half as likely as one that was recorded once.
UNSEEN = 0.5


@dataclass(frozen=True, eq=False)
class SharedView:
    """What the adversary sees, in terms of k states (codes it thinks possible).

    Of each event `hidden` is the place among the hidden outputs, or -1; `shown` the state of an unprotected code, or -1
    where it is hidden or no state.
    """

    offsets: NDArray[np.int64]
    hidden: NDArray[np.intp]
    shown: NDArray[np.intp]

    @property
    def owners(self) -> NDArray[np.intp]:
        """The patient of each event."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class Precision:
    """How often one sensitive code was guessed, how often rightly, and how often it was there to be guessed."""

    guesses: int
    right: int
    hidden: int

    @property
    def value(self) -> float | None:
        """The share of right guesses; None where there are too few to tell."""
        return self.right / self.guesses if self.guesses >= LEAST_GUESSES else None


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What an adversary has learned from patients: the codes it thinks possible (`states`, numbers in the taxonomy),
    how often they come alone and together, and how often one follows another."""

    states: NDArray[np.intp]
    graph: DependenceGraph
    transitions: NDArray[np.float32]


def learn(
    sequences: Sequences, codes: NDArray[np.int32], more: NDArray[np.intp], within: float, prior: float
) -> Knowledge:
    """What these patients teach, whose events have these codes; `more` are codes that are possible beside theirs."""
    states = np.unique(np.concatenate([codes.astype(np.intp), more]))
    places = np.searchsorted(states, codes).astype(np.int32)
    size, offsets = len(states), sequences.offsets
    return Knowledge(
        states,
        count_dependence(offsets, places, sequences.times, size, within, prior),
        _count_transitions(offsets, places, size),
    )


def _find_priors(graph: DependenceGraph) -> NDArray[np.float64]:
    """P(e) of an event."""
    weights = np.maximum(graph.events, UNSEEN)
    priors: NDArray[np.float64] = weights / weights.sum()
    return priors


def _find_lifts(graph: DependenceGraph) -> NDArray[np.float32]:
    """log(P(c | e) / P(c)) in row c and column e, each shrunk towards independence as by one patient more."""
    shares = (graph.patients + UNSEEN) / (graph.population + 1)
    conditionals = (graph.joint + shares) / (graph.patients + 1.0)[:, None]
    return np.log(conditionals / shares).T.astype(np.float32)


def guess_events(graph: DependenceGraph, channel: NDArray[np.float64], view: SharedView) -> NDArray[np.intp]:
    """The most likely state behind each event; an unprotected code is itself. `channel`: P(hidden output | state)."""
    guesses = view.shown.copy()
    for hidden, scores in _score_states(graph, channel, view):
        guesses[hidden] = scores.argmax(axis=1)
    return guesses


def _score_states(
    graph: DependenceGraph, channel: NDArray[np.float64], view: SharedView
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """Events that are hidden, of some patients at a time, and the log-likelihood of each state behind them."""
    with np.errstate(divide="ignore"):
        likelihoods = np.log(channel).T.astype(np.float32)
    owners = view.owners
    for events, patients in _take_patients(view, owners):
        beliefs, rows = _find_beliefs(graph, view, events, patients, owners)
        unknown = np.flatnonzero(view.hidden[events] >= 0)
        yield events[unknown], beliefs[rows[unknown]] + likelihoods[view.hidden[events][unknown]]


def _take_patients(
    view: SharedView, owners: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The events and numbers of some thousand patients at a time, of those with something hidden."""
    attacked = np.unique(owners[view.hidden >= 0])
    for first in range(0, len(attacked), PATIENTS_AT_ONCE):
        patients = attacked[first : first + PATIENTS_AT_ONCE]
        yield np.flatnonzero(np.isin(owners, patients)), patients


@dataclass(frozen=True)
class Finding:
    """How well patients who have a code are told from those who have not: AUC, and of the `TOP` patients most suspected
    how many have it. None where there are too few to tell."""

    having: int
    patients: int
    auc: float | None
    top: float | None

    @property
    def share(self) -> float:
        """How many of all patients have it: what naming patients at random finds."""
        return self.having / max(self.patients, 1)


def judge_patients(scores: NDArray[np.float64], having: NDArray[np.bool_]) -> Finding:
    """How far scores put patients who have a code first; equal scores count half, and share places among the first."""
    positive, count = int(having.sum()), len(having)
    if min(positive, count - positive) < LEAST_GUESSES:
        return Finding(positive, count, None, None)
    _, ranks, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(ties)
    middles = ends - (ties - 1) / 2  # ranks from 1, ties share their mean
    wins = middles[ranks][having].sum() - positive * (positive + 1) / 2
    found = np.bincount(ranks, weights=having, minlength=len(ties))
    taken = np.diff(np.minimum(np.cumsum(ties[::-1]), TOP), prepend=0)
    top = float((taken * (found / ties)[::-1]).sum()) / TOP
    return Finding(positive, count, float(wins / (positive * (count - positive))), top)


def suspect_patients(
    graph: DependenceGraph, channel: NDArray[np.float64], view: SharedView, targets: NDArray[np.intp]
) -> NDArray[np.float64]:
    """For each patient (rows) the probability of having each target (columns) and, last, any of them."""
    none, owners = np.zeros((len(view.offsets) - 1, len(targets) + 1)), view.owners
    for hidden, scores in _score_states(graph, channel, view):
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores)
        each = (weights[:, targets] / weights.sum(axis=1, keepdims=True)).astype(np.float64)
        each = np.column_stack([each, each.sum(axis=1)])
        np.add.at(none, owners[hidden], np.log1p(-np.clip(each, 0.0, 1 - 1e-12)))
    return -np.expm1(none)


def _find_beliefs(
    graph: DependenceGraph,
    view: SharedView,
    events: NDArray[np.intp],
    patients: NDArray[np.intp],
    owners: NDArray[np.intp],
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """For each of these patients the log probability of each state before its output is seen; each event's row."""
    lifts, priors = _find_lifts(graph), np.log(_find_priors(graph)).astype(np.float32)
    rows = np.searchsorted(patients, owners[events])
    seen = view.shown[events] >= 0
    context = np.unique(rows[seen] * graph.size + view.shown[events][seen])
    beliefs = np.repeat(priors[None], len(patients), axis=0)
    having, firsts = np.unique(context // graph.size, return_index=True)
    if len(having):
        beliefs[having] += np.add.reduceat(lifts[context % graph.size], firsts)
    return beliefs, rows


def judge_guesses(
    guesses: NDArray[np.intp], truth: NDArray[np.intp], hidden: NDArray[np.bool_], sensitive: NDArray[np.intp]
) -> list[Precision]:
    """For each sensitive state, how its guesses fared, over the hidden outputs."""
    said, true = guesses[hidden], truth[hidden]
    size = int(max(said.max(initial=-1), true.max(initial=-1), sensitive.max(initial=-1))) + 1
    named = np.bincount(said[said >= 0], minlength=size)
    right = np.bincount(said[(said == true) & (said >= 0)], minlength=size)
    there = np.bincount(true[true >= 0], minlength=size)
    return [Precision(int(named[code]), int(right[code]), int(there[code])) for code in sensitive]


def find_largest(precisions: list[Precision]) -> float | None:
    """MAP: the precision on the sensitive code for which it is largest; None where no code was guessed often enough."""
    values = [one.value for one in precisions if one.value is not None]
    return max(values, default=None)


HISTORIES_AT_ONCE = 2_000


def _count_transitions(
    offsets: NDArray[np.int64], codes: NDArray[np.int32], size: int
) -> NDArray[np.float32]:
    """How often code b was the next event after code a of the same patient, in row a and column b."""
    follows = np.ones(max(len(codes) - 1, 0), dtype=bool)
    starts = offsets[1:-1]
    follows[starts[(starts > 0) & (starts < len(codes))] - 1] = False
    left, right = codes[:-1][follows].astype(np.int64), codes[1:][follows].astype(np.int64)
    counts = np.bincount(left * size + right, minlength=size * size).reshape(size, size)
    return counts.astype(np.float32)


def find_transitions(counts: NDArray[np.float32], graph: DependenceGraph) -> NDArray[np.float32]:
    """P(next = b | a), each row shrunk towards the priors as by one event more."""
    priors = _find_priors(graph).astype(np.float32)
    weights: NDArray[np.float32] = (counts + priors) / (counts.sum(axis=1, keepdims=True) + np.float32(1))
    return weights


def guess_histories(
    graph: DependenceGraph,
    transitions: NDArray[np.float32],
    channel: NDArray[np.float64],
    view: SharedView,
) -> NDArray[np.intp]:
    """The most likely state behind each event given the whole history; an unprotected code is itself."""
    guesses = view.shown.copy()
    lengths = np.diff(view.offsets)
    owners = view.owners
    attacked = np.zeros(len(lengths), dtype=bool)
    attacked[owners[view.hidden >= 0]] = True
    order = np.flatnonzero(attacked)[np.argsort(-lengths[attacked], kind="stable")]
    priors = _find_priors(graph).astype(np.float32)
    emissions = channel.T.astype(np.float32)
    for first in range(0, len(order), HISTORIES_AT_ONCE):
        patients = order[first : first + HISTORIES_AT_ONCE]
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
