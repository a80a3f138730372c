"""Coefficients of a private fit: what a site adds to a noisy gradient (the house's steps: models/private_descent.py).

Claim: with the noise that the question states, added in shares, each patient is protected at the price that the site
works out from the question: a patient's row, intercept included, is scaled down to the public `norm` and its residual
lies between -1 and 1, so that one patient more or less moves the gradient by at most `norm` (L2). Each patient's share
is rounded to the grid by itself and added up in whole numbers, whatever the other patients are: rounding lengthens it
by at most half a step per number, for which `widen_sensitivity` allows twice. No house is believed in any of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.errors import MessageError
from concilium.models.outcome import Outcome
from concilium.privacy.shares import widen_sensitivity
from concilium.protocol.attributes import LABELLING, READ_LABEL, Attribute, Workload
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PRIVATE, Sensitivity, Summed
from concilium.rulefit.design import PATIENTS_AT_ONCE, Bits, build_at_site, estimate_design
from concilium.rulefit.fitting import Coefficients
from concilium.rulefit.terms import RuleTerms, read_terms

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

# With the widest norm and so many patients in each of seven hospitals, a sum fits 63 bits.
MOST_PLACES = 24
MOST_PATIENTS = 1 << 26


class AskGradient(Summed, frozen=True, kw_only=True):
    """In which direction does your patients' loss grow at these coefficients? The variance, as the sensitivity, is in
    steps of the grid."""

    kind: ClassVar[str] = "rulefit.gradient"
    releases: ClassVar[frozenset[str]] = PRIVATE
    rows_at_once: ClassVar[int] = PATIENTS_AT_ONCE

    outcome: Outcome
    terms: bytes
    at: Coefficients
    places: int

    @property
    def columns(self) -> RuleTerms:
        return read_terms(self.terms)

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"positive": self.outcome.positive}

    @property
    def named(self) -> Sequence[Attribute]:
        return self.columns.attributes

    @property
    def sensitivity(self) -> Sensitivity:
        norm = Fraction(self.columns.norm or 0)
        return Sensitivity(widen_sensitivity(norm**2, self.numbers, self.places))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.columns) + 1,)

    @property
    def binary_places(self) -> int:
        return self.places

    @property
    def largest(self) -> int:
        return math.ceil((self.columns.norm or 0) * (1 << self.places) + 1) * MOST_PATIENTS

    @property
    def adds_blocks(self) -> bool:
        return True

    def check(self, release: Release) -> None:
        if not self.outcome.binary:
            raise MessageError("a private gradient is of an outcome that is yes or no")
        if self.columns.norm is None:
            raise MessageError("a private gradient needs the norm to which rows are scaled")
        if not 0 <= self.places <= MOST_PLACES:
            raise MessageError(f"a private gradient has 0 to {MOST_PLACES} binary places")
        self.at.check_terms(len(self.columns))

    def estimate(self, patients: int, columns: int) -> Workload:
        shares = Workload(
            (2 * len(self.columns) + READ_LABEL + 20) * patients, LABELLING * patients + 32 * self.numbers
        )
        return estimate_design(self.columns, patients, each_by_itself=True) + shares

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        design = build_at_site(self.columns, cohort)
        target = cohort.view.coded(self.target)
        outcome = np.take(self.outcome.is_positive(target), target.codes[cohort.rows])
        w = np.zeros(self.numbers)
        w[0] = self.at.intercept
        w[[column + 1 for column in self.at.columns]] = self.at.values
        # Every patient's share of the gradient, intercept first, in steps of 2^-places.
        total = np.zeros(len(w), dtype=np.int64)
        _add_shares(design.bits, design.dense, design.ones, outcome, w, 2.0**self.places, total)
        return total


@compiled()
def _add_shares(
    bits: Bits,
    dense: NDArray[np.float64],
    shrink: NDArray[np.float64],
    outcome: NDArray[np.float64],
    w: NDArray[np.float64],
    steps: float,
    total: NDArray[np.int64],
) -> None:
    # One patient after the other: a matrix product may round a patient's numbers by how many others there are.
    rules = bits.shape[1]
    for patient in range(len(outcome)):
        group, bit = patient >> 3, patient & 7
        predictor = w[0]
        for rule in range(rules):
            if bits[group, rule] >> bit & 1:
                predictor += w[1 + rule]
        for column in range(dense.shape[1]):
            predictor += w[1 + rules + column] * dense[patient, column]
        residual = 0.5 * (1 + math.tanh(0.5 * predictor * shrink[patient])) - outcome[patient]
        share = residual * shrink[patient] * steps
        rounded = np.int64(np.rint(share))
        total[0] += rounded
        for rule in range(rules):
            if bits[group, rule] >> bit & 1:
                total[1 + rule] += rounded
        for column in range(dense.shape[1]):
            total[1 + rules + column] += np.int64(np.rint(share * dense[patient, column]))
