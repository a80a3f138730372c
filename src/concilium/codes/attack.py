"""The inference attack of Eq. 3: for each hidden output, the most likely code behind it.

The adversary knows the mechanism, the counts of the auxiliary patients and all that was shared, and guesses among
*all* codes, not among the sensitive ones alone: Bayes' rule with P(output | code) from the channel, and for the
code before it P(e | O_NS) ~ P(e) * product over the patient's codes in the clear c of P(c | e) / P(c). It is
optimal where those codes are independent given e. What it achieves is its precision: of the guesses that name a
code, how many are right.

docs/methods.md, section 7.9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.codes.dependence import DependenceGraph

PATIENTS_AT_ONCE = 2_000
LEAST_GUESSES = 30
# A code of no auxiliary patient is half as likely as one that was recorded once.
UNSEEN = 0.5


@dataclass(frozen=True, eq=False)
class SharedView:
    """What the adversary sees, in terms of k states (codes it thinks possible).

    Of each event `hidden` is the place among the hidden outputs, or -1; `shown` the state of a code in the clear, or -1
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


def find_priors(graph: DependenceGraph) -> NDArray[np.float64]:
    """P(e) of an event."""
    weights = np.maximum(graph.events, UNSEEN)
    priors: NDArray[np.float64] = weights / weights.sum()
    return priors


def find_lifts(graph: DependenceGraph) -> NDArray[np.float32]:
    """log(P(c | e) / P(c)) in row c and column e, each shrunk towards independence as by one patient more."""
    shares = (graph.patients + UNSEEN) / (graph.population + 1)
    conditionals = (graph.joint + shares) / (graph.patients + 1.0)[:, None]
    lifts: NDArray[np.float32] = np.log(conditionals / shares).T.astype(np.float32)
    return lifts


def guess_events(graph: DependenceGraph, channel: NDArray[np.float64], view: SharedView) -> NDArray[np.intp]:
    """The most likely state behind each event; a code in the clear is itself. `channel`: P(hidden output | state)."""
    with np.errstate(divide="ignore"):
        likelihoods = np.log(channel).T.astype(np.float32)
    lifts, priors = find_lifts(graph), np.log(find_priors(graph)).astype(np.float32)
    guesses = view.shown.copy()
    owners = view.owners
    for events, patients in _take_patients(view, owners):
        rows = np.searchsorted(patients, owners[events])
        seen = view.shown[events] >= 0
        context = np.unique(rows[seen] * graph.size + view.shown[events][seen])
        beliefs = np.repeat(priors[None], len(patients), axis=0)
        having, firsts = np.unique(context // graph.size, return_index=True)
        if len(having):
            beliefs[having] += np.add.reduceat(lifts[context % graph.size], firsts)
        unknown = np.flatnonzero(view.hidden[events] >= 0)
        scores = beliefs[rows[unknown]] + likelihoods[view.hidden[events][unknown]]
        guesses[events[unknown]] = scores.argmax(axis=1)
    return guesses


def _take_patients(
    view: SharedView, owners: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The events and numbers of some thousand patients at a time, of those with something hidden."""
    attacked = np.unique(owners[view.hidden >= 0])
    for first in range(0, len(attacked), PATIENTS_AT_ONCE):
        patients = attacked[first : first + PATIENTS_AT_ONCE]
        yield np.flatnonzero(np.isin(owners, patients)), patients


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
