"""Donor models (docs/methods.md, 1.15): a hospital with too few patients borrows the model of one that has enough.

Candidates are the hospitals whose own model is right for more than 95 % of their own patients. They are ranked by how
many positive patients they have and by AUC; rank r weighs 1.1 - 0.1 r (the first five ranks count), and the best
mean of the two weights wins. Where means are equal, the one with more positives does, then the first by name. A
model that is passed on releases what it shows: the counts in its leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.evaluation.alone import cross_validate, fit_alone
from concilium.evaluation.folds import M
from concilium.evaluation.leave_out import Predictions, figures, find_classes
from concilium.records.table import Records, Value, label

THRESHOLD = 0.95
RANKS = 5


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How well a hospital's own model does on its own patients."""

    site: str
    accuracy: float
    positives: int
    auc: float


class Donor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate with the mean of its weights."""

    site: str
    accuracy: float
    positives: int
    auc: float
    weight: float


def rank_donors(
    candidates: Iterable[Candidate], threshold: float = THRESHOLD, ranks: int = RANKS
) -> list[Donor]:
    """The candidates above the threshold, best first."""
    able = [candidate for candidate in candidates if candidate.accuracy > threshold]
    by_positives = weigh([candidate.positives for candidate in able], ranks)
    by_auc = weigh([candidate.auc for candidate in able], ranks)
    donors = [
        Donor(c.site, c.accuracy, c.positives, c.auc, (one + other) / 2)
        for c, one, other in zip(able, by_positives, by_auc, strict=True)
    ]
    # Weights are tenths: what differs in the fifteenth digit only is equal.
    return sorted(donors, key=lambda donor: (-round(donor.weight, 9), -donor.positives, donor.site))


def weigh(figures: Sequence[float], ranks: int = RANKS) -> list[float]:
    """1.1 - 0.1 x rank, the largest figure first and equal ones alike; nothing beyond the last rank that counts."""
    places = [1 + sum(other > figure for other in figures) for figure in figures]
    return [1.1 - 0.1 * place if place <= ranks else 0.0 for place in places]


class Donors(Generic[M]):
    """`Donors(make, positive=1).fit({"north": records, ...})`; then it predicts as the best donor does.

    make        opens the method that every hospital fits alone
    threshold   only hospitals whose own model is right for more than this share of their patients are asked
    """

    def __init__(
        self,
        make: Callable[[], M],
        *,
        positive: Value,
        division: str = "",
        threshold: float = THRESHOLD,
    ) -> None:
        if not 0 <= threshold < 1:
            raise StudyError(
                f"the 'threshold' of Donors must be a share from 0 to below 1; got {threshold!r}"
            )
        self._make = make
        self.positive, self.division, self.threshold = positive, division, threshold
        self.donors_: list[Donor] = []
        self._tables: Mapping[str, Records] = {}
        self._models: dict[str, M] = {}
        self._best: Candidate | None = None

    def fit(self, tables: Mapping[str, Records], own: Mapping[str, Predictions | None] | None = None) -> Self:
        """Rank the hospitals; `own` is what cross-validation inside each has said, where that is done already."""
        if own is None:
            classes = find_classes(tables.values(), self._make().target)
            own = {
                site: cross_validate(self._make, site, records, classes=classes, division=self.division)
                for site, records in tables.items()
            }
        candidates = [
            describe(predictions, self.positive)
            for predictions in own.values()
            if predictions is not None and predictions.truth
        ]
        self._tables, self._models = tables, {}
        self._best = max(candidates, key=lambda candidate: candidate.accuracy, default=None)
        self.donors_ = rank_donors(candidates, self.threshold)
        return self

    def donor_for(self, site: str | None = None) -> str:
        """The best donor; for a hospital, the best other than itself."""
        others = self.others(site)
        if not others:
            raise StudyError(self.why_none())
        return others[0]

    def others(self, site: str | None = None) -> list[str]:
        """All donors but the hospital itself, best first."""
        return [donor.site for donor in self.donors_ if donor.site != site]

    def why_none(self) -> str:
        """Why there is nobody to borrow from, in a sentence."""
        best = "none has a model of its own"
        if self._best is not None:
            best = f"the best, {self._best.site}, reaches {self._best.accuracy:.1%}"
        return f"no other hospital's own model is right for more than {self.threshold:.0%} of its patients ({best})"

    def model_for(self, site: str | None = None) -> M:
        """The model of the best donor (other than the hospital itself), fitted on all of the donor's patients."""
        donor = self.donor_for(site)
        if donor not in self._models:
            self._models[donor] = fit_alone(self._make, donor, self._tables[donor])
        return self._models[donor]

    @property
    def classes_(self) -> list[Value]:
        return self.model_for().classes_

    def predict(self, records: Records) -> NDArray[Any]:
        return self.model_for().predict(records)

    def predict_proba(self, records: Records) -> NDArray[np.float64]:
        return self.model_for().predict_proba(records)


def describe(predictions: Predictions, positive: Value) -> Candidate:
    """A hospital's candidature, from what its own models said of its patients."""
    metrics = figures([predictions], positive)
    positives = sum(label(value) == label(positive) for value in predictions.truth)
    return Candidate(predictions.site, metrics["accuracy"] or 0.0, positives, metrics["auc"] or 0.0)
