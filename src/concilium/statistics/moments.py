"""What a hospital adds to a table of the population beside counts: sums of numbers and of their products.

Exact and masked: by class, how many know each number, its sum and its sum of squares; products of all pairs for
correlations; how many attributes patients lack, and of pairs of attributes how many lack both; and what tells hospitals
apart: of each number sums over hospitals of n m and n m^2 (the share of variance between them), and of w, w m and w m^2
with w = n / s^2 (Cochran's Q and I^2); of each value of a category, of n_v^2 / n (chi-squared of value by hospital).

Private: of each number, held between its public ends and scaled to d = -1/2..1/2, sums of d and of 2 d^2. One patient
moves each of them by at most 1/2: the squared sensitivity is half the number of attributes. Every share is rounded to
the grid by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.privacy.shares import widen_sensitivity
from concilium.protocol.attributes import (
    CALL,
    LABELLING,
    READ_LABEL,
    Attribute,
    Workload,
    estimate_columns,
    recode,
)
from concilium.protocol.cohort import Cohort, View
from concilium.protocol.questions import PLAIN, PRIVATE, Sensitivity
from concilium.statistics.columns import LARGEST_END, ROWS_OF_MATRIX, pack_triangle, unpack_triangle
from concilium.statistics.wide_sums import (
    LARGEST,
    WideSum,
    hold_overflow,
    read_wide,
    refuse_floored,
    write_wide,
)

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_NUMBERS = 500
# Of more attributes nobody reads which pairs are missing together.
MOST_TOGETHER = 100
PLACES = 12
MOST_PATIENTS = 1 << 26
Matrix = NDArray[np.float64]


class AskMoments(WideSum, frozen=True, kw_only=True):
    """Sums of your patients' numbers, by class. The first `numbers` attributes are numbers; with noise, their public
    ends are their edges."""

    kind: ClassVar[str] = "statistics.moments"
    rows_at_once: ClassVar[int] = ROWS_OF_MATRIX
    releases: ClassVar[frozenset[str]] = PLAIN | PRIVATE

    attributes: tuple[Attribute, ...]
    measured: int
    classes: Attribute

    @property
    def named(self) -> Sequence[Attribute]:
        return (*self.attributes, self.classes)

    @property
    def count(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """How many reals each part has, in the order of `_add_up`."""
        p, q = self.measured, len(self.attributes)
        together = q * (q + 1) // 2 if q <= MOST_TOGETHER else 0
        listed = sum(one.size for one in self.attributes[p:])
        pairs = p * (p + 1) // 2
        return [
            *[p * self.classes.size] * 3,
            *[pairs] * 2,
            *[p * p] * 2,
            q + 1,
            6 * p,
            together,
            q - p,
            listed,
        ]

    @property
    def shape(self) -> tuple[int, ...]:
        return super().shape if self.noise is None else (2, self.measured, self.classes.size)

    @property
    def binary_places(self) -> int:
        return super().binary_places if self.noise is None else PLACES

    @property
    def largest(self) -> int:
        return LARGEST if self.noise is None else ((1 << PLACES) + 1) * MOST_PATIENTS

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(widen_sensitivity(Fraction(self.measured, 2), 2 * self.measured, PLACES))

    def check(self, release: Release) -> None:
        if not (self.noise is not None) <= self.measured <= min(len(self.attributes), MOST_NUMBERS):
            raise MessageError(f"moments are of 1 to {MOST_NUMBERS} numbers, or of none without noise")
        if self.classes.name != self.target or self.classes.edges:
            raise MessageError("the classes must be values of the target, and nothing else")
        numbers = self.attributes[: self.measured]
        if any(one.values or one.of for one in numbers) or not all(
            one.inner for one in self.attributes[self.measured :]
        ):
            raise MessageError("moments are of numbers, which name no values, beside others, which do")
        if self.noise is not None and not all(
            len(one.edges) > 1 and -LARGEST_END < one.edges[0] < one.edges[-1] < LARGEST_END
            for one in numbers
        ):
            raise MessageError("every number of a private table has public ends")

    def estimate(self, patients: int, columns: int) -> Workload:
        p, q = self.measured, len(self.attributes)
        work = estimate_columns(self.named, patients, each_by_itself=self.noise is not None)
        return work + Workload(
            (12 * p * p + 60 * p + 4 * q * q + 40 * q + READ_LABEL) * patients + CALL * (40 + 10 * p + 6 * q),
            (64 * p + 16 * q + 128 + LABELLING) * patients + 64 * self.numbers,
        )

    @property
    def goes_by_blocks(self) -> bool:
        return True

    @hold_overflow()
    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        if self.noise is not None:
            shares = (self._add_shares(*self._read(part)[1:]) for part in cohort.split(self.rows_at_once))
            return sum(shares, np.zeros(self.shape, dtype=np.int64))
        refuse_floored(cohort)
        blocks = list(cohort.split(self.rows_at_once))
        kept = self._read(cohort) if len(blocks) == 1 else None
        sums: list[NDArray[Any]] = []
        for part in blocks:
            own = self._add_up(part.view, *(kept or self._read(part)))
            sums = [one + more for one, more in zip(sums, own, strict=True)] if sums else own
        *parts, n, total, together = sums[: len(sums) - len(self.attributes) + self.measured]
        listed = sums[len(sums) - len(self.attributes) + self.measured :]
        mean = total / np.maximum(n, 1)
        squares = [self._square((kept or self._read(part))[1], mean) for part in blocks]
        parts.append(self._between(n, mean, sum(squares[1:], squares[0])))
        parts += [together] if len(self.attributes) <= MOST_TOGETHER else []
        hospitals = [bool(counts.any()) for counts in listed]
        shares_of_values = [counts**2 / max(counts.sum(), 1) for counts in listed]
        return write_wide(np.concatenate([*(one.ravel() for one in parts), hospitals, *shares_of_values]))

    def _read(self, cohort: Cohort) -> tuple[NDArray[np.int32], Matrix, NDArray[np.int32]]:
        """The rows of those whose class is named, their numbers, and the place of each one's class."""
        codes, cells = recode(self.classes, cohort.view)
        place = np.take(cells, codes[cohort.rows])
        told = place >= 0
        rows, place = cohort.rows[told], place[told]
        columns = [cohort.view.measured(one.name, rows) for one in self.attributes[: self.measured]]
        numbers = np.column_stack(columns) if columns else np.zeros((len(rows), 0))
        numbers[~np.isfinite(numbers)] = np.nan
        return rows, numbers, place

    def _add_shares(self, numbers: Matrix, place: NDArray[np.int32]) -> NDArray[np.integer]:
        words = np.zeros((2, self.measured, self.classes.size), dtype=np.int64)
        for index, one in enumerate(self.attributes[: self.measured]):
            low, high = one.edges[0], one.edges[-1]
            known = ~np.isnan(numbers[:, index])
            away = (np.clip(numbers[known, index], low, high) - low) / (high - low) - 0.5
            for power, share in enumerate((away, 2 * away**2)):
                steps = np.rint(share * (1 << PLACES)).astype(np.int64)
                np.add.at(words[power, index], place[known], steps)
        return words

    def _add_up(
        self, view: View, rows: NDArray[np.int32], numbers: Matrix, place: NDArray[np.int32]
    ) -> list[NDArray[Any]]:
        """What adds up over patients: the first parts of the answer; of each number how many know it, and its sum; of
        which attributes patients lack both; and how many have each value of each category."""
        known = ~np.isnan(numbers)
        filled = np.where(known, numbers, 0.0)
        is_class = (place[:, None] == np.arange(self.classes.size)).astype(np.float64)
        by_class = [is_class.T @ one for one in (known.astype(np.float64), filled, filled**2)]
        both = known.astype(np.float64)
        lacks, listed = [*(~known).T], []
        for one in self.attributes[self.measured :]:
            codes, cells = recode(one, view)
            cell = np.take(cells, codes[rows])
            lacks.append(cell < 0)
            listed.append(np.bincount(cell[cell >= 0], minlength=one.size))
        missing = np.array(lacks, dtype=np.float64)
        lacking = np.bincount(missing.sum(axis=0).astype(int), minlength=len(self.attributes) + 1)
        parts: list[NDArray[Any]] = [
            *by_class,
            pack_triangle(both.T @ both),
            pack_triangle(filled.T @ filled),
        ]
        parts += [filled.T @ both, (filled**2).T @ both, lacking]
        parts += [known.sum(axis=0).astype(np.float64), filled.sum(axis=0)]
        together = len(self.attributes) <= MOST_TOGETHER
        return [*parts, pack_triangle(missing @ missing.T) if together else np.zeros(0), *listed]

    @staticmethod
    def _square(numbers: Matrix, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        squares: NDArray[np.float64] = np.where(np.isnan(numbers), 0.0, (numbers - mean) ** 2).sum(axis=0)
        return squares

    @staticmethod
    def _between(n: NDArray[np.float64], mean: NDArray[np.float64], squares: NDArray[np.float64]) -> Matrix:
        """Of each number what tells hospitals apart."""
        variance = squares / np.maximum(n - 1, 1)
        weight = np.where((n > 1) & (variance > 0), n / np.where(variance > 0, variance, 1.0), 0.0)
        return np.array(
            [n * mean, n * mean**2, weight > 0, weight, weight * mean, weight * mean**2], dtype=np.float64
        )


@dataclass(frozen=True)
class SummedMoments:
    """The sums over all hospitals: [class, number] how many know it, sums, squares; correlations of numbers; how many
    patients lack 0, 1, 2, ... attributes, and both of each pair; the share of each number's variance between hospitals,
    and I^2; for each category how many hospitals have it, and the sum over them of n_v^2 / n for each value v."""

    known: Matrix
    sums: Matrix
    squares: Matrix
    correlations: Matrix
    lacking: list[int]
    shares_between: list[float]
    heterogeneity: list[float]
    together: Matrix
    squared_counts: list[tuple[int, Matrix]]


def read_moments(question: AskMoments, total: NDArray[np.int64]) -> SummedMoments:
    """What the sites' numbers, added up, say."""
    reals, p, classes = read_wide(total), question.measured, question.classes.size
    known, sums, squares, n, products, beside, squares_beside, lacking, between, *more = np.split(
        reals, np.cumsum(question.sizes)[:-1]
    )
    together, hospitals_with, listed = more
    others = question.attributes[p:]
    squared_counts = np.split(listed, np.cumsum([one.size for one in others])[:-1]) if others else []
    by_class = [one.reshape(classes, p) for one in (known, sums, squares)]
    everyone = [one.sum(axis=0) for one in by_class]
    weighed, squared, hospitals, w, wm, wmm = between.reshape(6, p)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = everyone[2] - everyone[1] ** 2 / everyone[0]
        shares = (squared - weighed**2 / everyone[0]) / spread
        q = wmm - wm**2 / w
        heterogeneity = np.maximum(0.0, (q - (hospitals - 1)) / q)
    return SummedMoments(
        by_class[0],
        by_class[1],
        by_class[2],
        _correlate(
            unpack_triangle(n, p),
            unpack_triangle(products, p),
            beside.reshape(p, p),
            squares_beside.reshape(p, p),
        ),
        [round(one) for one in lacking.tolist()],
        np.nan_to_num(np.clip(shares, 0, 1)).tolist(),
        np.nan_to_num(heterogeneity).tolist(),
        unpack_triangle(together, len(question.attributes)) if together.size else np.zeros((0, 0)),
        [(round(h), one) for h, one in zip(hospitals_with.tolist(), squared_counts, strict=True)],
    )


def _correlate(n: Matrix, products: Matrix, sums: Matrix, squares: Matrix) -> Matrix:
    """Pearson's correlation of patients who know both numbers; 0 where there are none."""
    n = np.maximum(n, 1)
    covariance = products / n - sums * sums.T / n**2
    variance = np.maximum(squares / n - (sums / n) ** 2, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Matrix = covariance / np.sqrt(variance * variance.T)
    return np.nan_to_num(found)
