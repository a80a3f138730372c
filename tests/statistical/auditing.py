"""How noise is judged: goodness of fit against an exact distribution, and the privacy loss seen in samples.

Every verdict here is wrong with a probability below ALARM on a sound mechanism, so that a hundred of them together
raise a false alarm less than once in a million runs.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.stats import beta, chi2
from sklearn.tree import DecisionTreeClassifier

ALARM = 1e-8

Event = Callable[[np.ndarray], np.ndarray]
Pmf = Callable[[np.ndarray], np.ndarray]


def fits(draws: np.ndarray, pmf: Pmf, reach: int) -> bool:
    """Whether integers could come from a distribution: chi-squared over about forty cells of much the same weight.

    With n draws a scale that is off by a factor 1 + x adds about n x^2 (Laplace) or 2 n x^2 (Gaussian) to a
    statistic that stays below 120 otherwise.
    """
    seen, hoped = count_cells(draws, pmf, reach)
    return bool(chi2.sf(((seen - hoped) ** 2 / hoped).sum(), seen.size - 1) > ALARM)


def count_cells(draws: np.ndarray, pmf: Pmf, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws seen and expected in cells of neighbouring integers, each with a fortieth of all draws or more."""
    support = np.arange(-reach, reach + 1)
    ends, weights, weight = [], [], 0.0
    for k, chance in zip(support, pmf(support), strict=True):
        weight += chance
        if weight >= max(1 / 40, 50 / draws.size):
            ends.append(k)
            weights.append(weight)
            weight = 0.0
    # What is left over on the right is too light for a cell of its own.
    weights[-1] += weight
    cells = np.searchsorted(ends[:-1], draws)
    hoped = np.array(weights) / sum(weights) * draws.size
    return np.bincount(cells, minlength=hoped.size), hoped


def laplace(scale: float) -> Pmf:
    """P(k) = tanh(1/(2 scale)) e^(-|k|/scale)."""
    return lambda k: math.tanh(1 / (2 * scale)) * np.exp(-np.abs(k) / scale)


def gaussian(variance: float) -> Pmf:
    """P(k) in proportion to e^(-k^2/(2 variance))."""

    def pmf(k: np.ndarray) -> np.ndarray:
        all_of_it = np.arange(-int(40 * math.sqrt(variance)) - 40, int(40 * math.sqrt(variance)) + 41)
        return np.exp(-(k**2) / (2 * variance)) / np.exp(-(all_of_it**2) / (2 * variance)).sum()

    return pmf


def bound_epsilon(one: np.ndarray, other: np.ndarray, events: Iterable[Event], delta: float = 0.0) -> float:
    """The epsilon that a mechanism must have at least, seen from its outputs on two neighbouring inputs.

    P(event | one) <= e^epsilon P(event | other) + delta bounds epsilon from below by a Clopper-Pearson interval
    for each probability, for every event and both ways round, all of them right at once but for ALARM. The events
    must be chosen before the samples are seen.
    """
    events = list(events)
    level = ALARM / (4 * len(events))
    best = 0.0
    for event in events:
        seen = [(int(event(x).sum()), len(x)) for x in (one, other)]
        for (more, n), (fewer, m) in (seen, seen[::-1]):
            at_least = beta.ppf(level, more, n - more + 1) if more else 0.0
            at_most = beta.isf(level, fewer + 1, m - fewer) if fewer < m else 1.0
            if at_least > delta:
                best = max(best, math.log((at_least - delta) / at_most))
    return best


def tails_and_points(values: Iterable[int]) -> list[Event]:
    """At most v, at least v, and exactly v, for each value."""
    return [
        event
        for v in values
        for event in (lambda x, v=v: x <= v, lambda x, v=v: x >= v, lambda x, v=v: x == v)
    ]


def learn_epsilon(one: np.ndarray, other: np.ndarray, delta: float = 0.0, depth: int = 4) -> float:
    """The epsilon that a mechanism must have at least, seen by an attacker who learns what to look for.

    Each row is all that an attacker sees of one draw, as numbers in any form. A decision tree learns from every other
    row which of two neighbouring inputs it came from; the events are then how sure it is, on the rows it did not see.
    """
    one, other = (x.reshape(len(x), -1) for x in (one, other))
    seen, truth = np.concatenate([one[::2], other[::2]]), np.repeat([1, 0], [len(one[::2]), len(other[::2])])
    tree = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=20, random_state=1).fit(seen, truth)
    scores = [tree.predict_proba(x[1::2])[:, 1] for x in (one, other)]
    levels = np.unique(tree.predict_proba(seen)[:, 1])[1:]
    events: list[Event] = [lambda x, level=level: x >= level for level in levels]
    # Sure of either input: beside the most telling leaf of the tree, the most telling one on the other side.
    events += [lambda x, level=level: x < level for level in levels]
    return bound_epsilon(*scores, events, delta) if events else 0.0
