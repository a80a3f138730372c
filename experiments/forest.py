"""A federated random forest (Hauschild et al., Bioinformatics 38, 2022): each hospital grows trees, all trees vote.

The paper lets every hospital grow a whole forest and takes an equal share of trees at random from each; trees of a
forest are independent draws, so here each grows its share only. A baseline for accuracy, without a claim of privacy:
trees grown until their leaves are pure tell about single patients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from concilium.errors import StudyError

Floats = NDArray[np.float64]
Voting = Literal["majority", "mean"]

TREES = 100


@dataclass(frozen=True, eq=False)
class Forest:
    """The forests of all hospitals as one; every tree has a vote."""

    groves: tuple[Any, ...]
    voting: Voting

    def predict_proba(self, matrix: Floats) -> Floats:
        """Probabilities of 0 and 1: the share of trees that say so, or the mean of what their leaves hold."""
        chances = np.array([chance for grove in self.groves for chance in _ask(grove, matrix)])
        # An undecided leaf says 0, as scikit-learn does where two classes are equally many.
        votes = (chances > 0.5).astype(np.float64) if self.voting == "majority" else chances
        positive = votes.mean(axis=0)
        return np.column_stack([1 - positive, positive])


def grow(
    sites: Sequence[tuple[Floats, Floats]], seed: int, trees: int = TREES, voting: Voting = "majority"
) -> Forest:
    """A forest from the (matrix, outcomes of 0 and 1) of every hospital; the same one for the same seed.

    Where trees do not divide evenly, the first hospitals give one more, and every hospital gives at least one.
    """
    if not sites or trees < 1:
        raise StudyError(f"a forest needs a site and a tree at least; got {len(sites)} sites, {trees} trees")
    if voting not in ("majority", "mean"):
        raise StudyError(f"voting must be 'majority' or 'mean'; got {voting!r}")
    groves = []
    for place, (matrix, outcome) in enumerate(sites):
        if not np.all((outcome == 0) | (outcome == 1)):
            raise StudyError("outcomes of a forest must be 0 or 1; code the positive class as 1")
        share = max(1, trees // len(sites) + (place < trees % len(sites)))
        groves.append(RandomForestClassifier(share, random_state=_own_seed(seed, place)).fit(matrix, outcome))
    return Forest(tuple(groves), voting)


def _own_seed(seed: int, place: int) -> int:
    """A seed for each site: with one for all, bootstraps of sites of one size would choose the same rows."""
    return int.from_bytes(hashlib.sha256(f"{seed} {place}".encode()).digest()[:4], "little")


def _ask(grove: Any, matrix: Floats) -> list[Floats]:
    """What every tree of a hospital gives for class 1; a hospital that never met one gives nothing."""
    if 1 not in grove.classes_:
        return [np.zeros(len(matrix))] * len(grove.estimators_)
    column = grove.classes_.tolist().index(1)
    return [tree.predict_proba(matrix)[:, column] for tree in grove.estimators_]
