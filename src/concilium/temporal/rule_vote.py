"""A weighted vote of rules: how much each one counts is learned from training patients, and from nobody else.

docs/methods.md, section 6.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.records.series import Series
from concilium.temporal.evaluation import satisfied_all
from concilium.temporal.formula import Formula
from concilium.temporal.learning import LabelledWindows, LearnedRule

Floats = NDArray[np.float64]

MOST_ROUNDS = 50
CLOSE = 1e-8


@dataclass(frozen=True, eq=False)
class RuleVote:
    """Each rule votes with its weight where it holds, against it where it does not, and abstains where that is unknown;
    the outcome is positive where the sum is above zero."""

    rules: tuple[Formula, ...]
    weights: tuple[float, ...]
    bias: float

    def __post_init__(self) -> None:
        if len(self.rules) != len(self.weights):
            raise ModelError(f"there are {len(self.rules)} rules and {len(self.weights)} weights")

    @classmethod
    def fit(
        cls, rules: Sequence[Formula | LearnedRule], windows: LabelledWindows, strength: float = 10.0
    ) -> RuleVote:
        """Weights by logistic regression on the votes, both classes counting the same, held back by a ridge of this
        strength: rules that say the same share their weight. No rule votes against what it says: those that would
        are left out."""
        if not rules:
            raise ModelError("a vote needs at least one rule")
        if not (np.isfinite(strength) and strength > 0):
            raise ModelError(f"the strength of the ridge is a number above zero; got {strength!r}")
        if windows.labels.all() or not windows.labels.any():
            raise ModelError("a vote is learned from positive and negative windows; these are of one kind")
        formulas = [rule.formula if isinstance(rule, LearnedRule) else rule for rule in rules]
        votes = cast_votes(formulas, windows.series)
        kept = np.arange(len(formulas))
        while True:
            weights, bias = _fit_ridge(votes[:, kept], windows.labels, strength)
            if (weights >= 0).all():
                return cls(tuple(formulas[place] for place in kept.tolist()), tuple(weights.tolist()), bias)
            kept = kept[weights > 0]

    def score(self, series: Series) -> Floats:
        """The sum of votes for each window: log odds, were both outcomes as frequent."""
        sums: Floats = cast_votes(self.rules, series) @ np.array(self.weights)
        return sums + self.bias

    def predict(self, series: Series) -> NDArray[np.bool_]:
        return self.score(series) > 0

    def __str__(self) -> str:
        order = sorted(zip(self.weights, map(str, self.rules), strict=True), key=lambda one: -abs(one[0]))
        return "\n".join(f"{weight:+7.3f}  {rule}" for weight, rule in [*order, (self.bias, "always")])


def cast_votes(rules: Sequence[Formula], series: Series) -> Floats:
    """[window, rule]: 1 where a rule holds, -1 where it does not, 0 where that is unknown."""
    truths = satisfied_all(list(rules), series, absent=True)
    return np.where(np.ma.getmaskarray(truths), 0.0, np.where(truths.data, 1.0, -1.0)).T


def _fit_ridge(votes: Floats, positive: NDArray[np.bool_], strength: float) -> tuple[Floats, float]:
    """Newton's method on the weighted logistic loss with a ridge on all but the bias; equal rows are taken together."""
    rows, group = np.unique(np.column_stack([votes, positive]), axis=0, return_inverse=True)
    count = np.bincount(group.ravel()).astype(np.float64)
    label = rows[:, -1]
    design = np.column_stack([rows[:, :-1], np.ones(len(rows))])
    share = np.where(label == 1, 0.5 / positive.mean(), 0.5 / (1 - positive.mean())) * count
    ridge = np.diag([strength] * votes.shape[1] + [0.0])
    weights = np.zeros(design.shape[1])
    for _ in range(MOST_ROUNDS):
        chance = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        slope = design.T @ (share * (label - chance)) - ridge @ weights
        curve = (design * (share * np.maximum(chance * (1 - chance), 1e-9))[:, None]).T @ design + ridge
        step = np.linalg.solve(curve + 1e-9 * np.eye(len(curve)), slope)
        weights += step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < CLOSE:
            break
    return weights[:-1], float(weights[-1])
