"""Private Cox regression: hazards that are constant within the cells of a public grid, times hazard ratios.

The log-likelihood is that of counts: in cell k of the grid a patient of columns x is expected to have exp(a_k + bx) s_k
events, s_k being the part of the cell that was seen. Score and information over (a, b) are sums over patients.

Who is protected: each patient, from everybody outside the hospital, at the price that the site works out from the
question. A patient whose expected events reach one is followed no further: the residual then lies between -1 and 1, and
so does the sum of the expected events. That censoring follows from columns and coefficients alone, so that it biases
no estimate; it gives away what the highest risks would still say. With rows at most R long (a cell's indicator
included) the score moves by at most R, and the information, times 1/(2R), by at most R/2: together sqrt(5/4) R. Every
share is rounded to the grid of the sum by itself. docs/methods.md, section 9.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.privacy.shares import widen_sensitivity
from concilium.protocol.attributes import CALL, LABELLING, READ_LABEL, Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PRIVATE, Sensitivity, Summed
from concilium.records.columns import label
from concilium.statistics.columns import (
    ROWS_OF_MATRIX,
    Column,
    Matrix,
    build_at_site,
    check_columns,
    refuse_endless,
    squared_norm,
    unpack_triangle,
)
from concilium.statistics.families import LARGEST_LOG, Vector
from concilium.statistics.regression_sums import MOST_PATIENTS, MOST_PLACES, NoisySums
from concilium.statistics.wide_sums import hold_overflow

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_CELLS = 20


class AskHazards(Summed, frozen=True, kw_only=True):
    """Score and information at these coefficients: logarithms of each cell's hazard, then of hazard ratios."""

    kind: ClassVar[str] = "statistics.hazards"
    rows_at_once: ClassVar[int] = ROWS_OF_MATRIX
    releases: ClassVar[frozenset[str]] = PRIVATE

    attributes: tuple[Attribute, ...]
    columns: tuple[Column, ...]
    time: str
    positive: str | int | float | bool
    grid: tuple[float, ...]
    at: tuple[float, ...]
    places: int = 0

    @property
    def size(self) -> int:
        """How many coefficients there are."""
        return len(self.grid) + len(self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        cells, columns = len(self.grid), len(self.columns)
        return (self.size + cells * (1 + columns) + columns * (columns + 1) // 2,)

    @property
    def binary_places(self) -> int:
        return self.places

    @property
    def largest(self) -> int:
        return math.ceil(float(self.bound) * (1 << self.places) + 1) * MOST_PATIENTS

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"time": self.time, "positive": self.positive}

    @property
    def _shrink(self) -> float:
        """What the information is multiplied by: it weighs half of what the score does."""
        return 1 / (2 * math.sqrt(squared_norm(self.columns)))

    @property
    def bound(self) -> Fraction:
        """How far one patient can move the answer (L2); a trifle more, for the rounding of floats."""
        return Fraction(math.sqrt(1.25 * squared_norm(self.columns)) * (1 + 1e-9))

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(widen_sensitivity(self.bound**2, self.numbers, self.places))

    def check(self, release: Release) -> None:
        check_columns(self.attributes, self.columns)
        refuse_endless(self.columns)
        if not self.columns or len(self.at) != self.size or not np.isfinite(self.at).all():
            raise MessageError(
                "hazards have a finite coefficient for each cell and column, of which there is one"
            )
        rising = all(low < high for low, high in zip((0.0, *self.grid), self.grid, strict=False))
        if not 1 <= len(self.grid) <= MOST_CELLS or not rising or not self.grid[-1] < 1e15:
            raise MessageError(f"hazards are of 1 to {MOST_CELLS} cells of time, which rise from zero")
        if not 0 <= self.places <= MOST_PLACES:
            raise MessageError(f"hazards have 0 to {MOST_PLACES} binary places")

    @property
    def adds_blocks(self) -> bool:
        return True

    def estimate(self, patients: int, columns: int) -> Workload:
        factors = sum(len(column.factors) for column in self.columns)
        per_patient = 40 * factors + 30 * self.numbers + 60 * len(self.grid) + 400 + READ_LABEL
        return estimate_columns(self.attributes, patients, each_by_itself=True) + Workload(
            per_patient * patients + CALL * (60 + factors + 4 * self.numbers),
            (24 * (self.size + factors) + 48 * len(self.grid) + 512 + LABELLING) * patients
            + 64 * self.numbers,
        )

    @hold_overflow()
    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        # No matrix product: it may round a patient's numbers by how many others there are.
        matrix, rows, _ = build_at_site(self.attributes, self.columns, cohort)
        times = cohort.view.measured(self.time, rows)
        fine = np.isfinite(times) & (times >= 0)
        target, name = cohort.view.coded(self.target), label(self.positive)
        is_event = np.array([False, *(label(value) == name for value in target.values)])
        events = np.take(is_event, target.codes[rows])[fine]
        columns, times = list(matrix[fine].T), times[fine]
        cells = len(self.grid)
        eta = np.zeros(len(times))
        for value, column in zip(self.at[cells:], columns, strict=True):
            eta += value * column
        expected, happened = self._follow(times, events, eta)
        residuals = [own - one for own, one in zip(happened, expected, strict=True)]
        residual, total = sum(residuals, np.zeros(len(times))), sum(expected, np.zeros(len(times)))
        steps, shrink = 2.0**self.places, self._shrink

        def add(shares: Vector) -> int:
            return int(np.rint(shares * steps).astype(np.int64).sum())

        words = [*map(add, residuals), *(add(residual * column) for column in columns)]
        words += [add(one * shrink) for one in expected]
        words += [add(one * column * (shrink * math.sqrt(2))) for one in expected for column in columns]
        for place, one in enumerate(columns):
            scaled = total * one * shrink
            words += [
                add(scaled * other * (1.0 if other is one else math.sqrt(2))) for other in columns[place:]
            ]
        return np.array(words, dtype=np.int64)

    def _follow(
        self, times: Vector, events: NDArray[np.bool_], eta: Vector
    ) -> tuple[list[Vector], list[Vector]]:
        """For each cell how many events every patient is expected to have, one in all at most, and has."""
        risk = np.exp(np.clip(eta, -LARGEST_LOG, LARGEST_LOG))
        cell = np.searchsorted(np.array(self.grid), times, side="right")
        before, expected = np.zeros(len(times)), []
        for start, end, hazard in zip((0.0, *self.grid), self.grid, self.at, strict=False):
            seen = np.clip((times - start) / (end - start), 0.0, 1.0)
            after = before + math.exp(min(max(hazard, -LARGEST_LOG), LARGEST_LOG)) * risk * seen
            expected.append(np.minimum(after, 1.0) - np.minimum(before, 1.0))
            before = after
        followed = events & (before <= 1.0)
        return expected, [(followed & (cell == place)).astype(np.float64) for place in range(len(self.grid))]

    def read(self, total: NDArray[np.int64], variance: float) -> NoisySums:
        """What the sum says; `variance` is that of the noise in a word."""
        reals = np.ldexp(total.astype(np.float64), -self.places)
        deviation, cells = math.ldexp(math.sqrt(variance), -self.places), len(self.grid)
        score, own, across, packed = np.split(reals, np.cumsum([self.size, cells, cells * len(self.columns)]))
        information: Matrix = np.zeros((self.size, self.size))
        information[:cells, :cells] = np.diag(own)
        information[:cells, cells:] = across.reshape(cells, -1) / math.sqrt(2)
        information[cells:, :cells] = information[:cells, cells:].T
        inner = unpack_triangle(packed, len(self.columns)) / math.sqrt(2)
        inner[np.diag_indices_from(inner)] *= math.sqrt(2)
        information[cells:, cells:] = inner
        shrink = self._shrink
        return NoisySums(score, information / shrink, 0.0, deviation, deviation / shrink)
