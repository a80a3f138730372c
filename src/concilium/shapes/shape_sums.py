"""What a hospital adds to a fit of shapes: loss, gradient and Gram sums over cells (docs/methods.md, 10.2).

The loss is that of log odds for yes or no, and half of the squared residual for a number, whose weights are one.

Each patient's residual, weight and loss are rounded to a grid by themselves, and then added up as whole numbers. So the
sums are those of the pooled patients to the last bit, however the patients are split over hospitals.

*Protects:* under `masked`, which hospital a number comes from. It protects no patient: exact gradients of enough cells
give outcomes back. The card says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.errors import MessageError
from concilium.models.outcome import Outcome
from concilium.models.threshold import BINS, Tally, count_chances, find_edges, read_chances
from concilium.protocol.attributes import CALL, Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.held_out import Part
from concilium.protocol.questions import MOST_NUMBERS, PLAIN, Summed
from concilium.shapes.cells import MOST_CELLS, Cells, Codes, Vector, find_starts, read_codes

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

PLACES = 20
MOST_PATIENTS = 1 << 26
MOST_TERMS = 2000
FURTHEST = 30.0  # of log odds
# A number counts in so many steps of half its range from the middle, or rounding would be more than patients differ.
STEPS_OF_NUMBER, FURTHEST_NUMBER = 8.0, 16.0
LARGEST = 1e6  # of a coefficient
FIRST = 5  # numbers before those of cells: patients, events, loss, residuals, weights


class AskShapes(Summed, frozen=True, kw_only=True):
    """Your loss at these shapes; residuals, weights and patients in each cell of the terms asked about.

    `at`: the intercept, then a number for each cell of each of the `terms`. `asked`: the terms to add up, those of the
    model where there are none. `gram`: weights for every two cells too. `scores`: patients by class and log odds, at
    each of these coefficients.
    """

    kind: ClassVar[str] = "shapes.sums"
    releases: ClassVar[frozenset[str]] = PLAIN

    attributes: tuple[Attribute, ...]
    outcome: Outcome
    terms: tuple[Cells, ...]
    at: tuple[float, ...]
    asked: tuple[Cells, ...] = ()
    gram: bool = False
    scores: tuple[tuple[float, ...], ...] = ()
    part: Part | None = None

    @property
    def summed(self) -> tuple[Cells, ...]:
        """The terms whose cells are added up."""
        return self.asked or self.terms

    @property
    def sizes(self) -> list[int]:
        return [term.count(self.attributes) for term in self.summed]

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = self.sizes
        cells = sum(sizes)
        crossed = (cells**2 - sum(size**2 for size in sizes)) // 2 if self.gram else 0
        return (FIRST + 3 * cells + crossed + 2 * BINS * len(self.scores),)

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"positive": self.outcome.positive}

    @property
    def division(self) -> Part | None:
        return self.part

    @property
    def binary_places(self) -> int:
        return PLACES

    @property
    def largest(self) -> int:
        most = FURTHEST + 1 if self.outcome.binary else (STEPS_OF_NUMBER + FURTHEST_NUMBER) ** 2 / 2 + 1
        return math.ceil(most) * (1 << PLACES) * MOST_PATIENTS

    def check(self, release: Release) -> None:
        if max(len(self.terms), len(self.asked)) > MOST_TERMS or not self.attributes:
            raise MessageError(f"shapes have at least one attribute, and at most {MOST_TERMS} terms")
        self.outcome.check()
        if self.scores and not self.outcome.binary:
            raise MessageError("only patients of two classes are counted by their log odds")
        for term in (*self.terms, *self.asked):
            term.check_among(self.attributes)
        if self.gram and sum(self.sizes) > MOST_CELLS:
            raise MessageError(f"a Gram has at most {MOST_CELLS} cells")
        cells = find_starts(self.terms, self.attributes)[-1]
        for at in (self.at, *self.scores):
            if len(at) != cells or not all(abs(value) <= LARGEST for value in at):
                raise MessageError(
                    "shapes have a number for the intercept and for each cell, of bearable size"
                )
        if len(self.scores) > 2 or self.numbers > MOST_NUMBERS:
            raise MessageError("a question about shapes asks for too many numbers")
        if self.part is not None:
            self.part.check()

    @property
    def adds_blocks(self) -> bool:
        return True

    def estimate(self, patients: int, columns: int) -> Workload:
        terms = len(self.terms) + len(self.summed)
        crossed = len(self.summed) ** 2 if self.gram else 0
        per_patient = 8 * terms + 2 * crossed + 40 * len(self.scores) * (1 + len(self.terms)) + 200
        return estimate_columns(self.attributes, patients) + Workload(
            per_patient * patients + CALL * (40 + 4 * terms + crossed) + 20 * self.numbers,
            (2 * len(self.attributes) + 2 * terms + 64) * patients + 40 * self.numbers,
        )

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        if cohort.floored:
            raise MessageError(
                "this site leaves small counts out of what it tells exactly, and sums over the cells of shapes cannot "
                "do that: ask masked"
            )
        codes = read_codes(self.attributes, cohort.view, cohort.rows)
        cells = _stack(self.terms, codes, self.attributes, len(cohort))
        starts = np.array(find_starts(self.terms, self.attributes)[:-1], dtype=np.int64)
        outcome = self.outcome.at_site(cohort, self.target)
        if not self.outcome.binary:
            outcome = STEPS_OF_NUMBER * outcome
        shares = np.empty((3, len(cohort)), dtype=np.int64)
        _share_out(cells, starts, np.array(self.at), outcome, self.outcome.binary, 2.0**PLACES, shares)
        _, residual, weight = shares
        one = 1 << PLACES
        total = np.rint(outcome * one).astype(np.int64).sum()
        parts = [np.array([len(cohort) * one, total, *shares.sum(axis=1)])]
        summed = _stack(self.asked, codes, self.attributes, len(cohort)) if self.asked else cells
        everyone = np.full(len(cohort), one, dtype=np.int64)
        for own, size in zip(summed, self.sizes, strict=True):
            parts += [_add_up(own, values, size) for values in (residual, weight, everyone)]
        if self.gram:
            sizes = self.sizes
            for place, (own, size) in enumerate(zip(summed, sizes, strict=True)):
                for other, width in zip(summed[:place], sizes[:place], strict=True):
                    parts.append(_cross(own, other, weight, size, width))
        for at in self.scores:
            odds = np.empty(len(cohort))
            _add_cells(cells, starts, np.array(at), odds)
            edges = _find_score_edges(at, starts.tolist())
            parts.append(count_chances(odds, outcome > 0, edges).ravel().astype(np.int64) * one)
        return np.concatenate(parts)


def _find_score_edges(at: Sequence[float], starts: Sequence[int]) -> Vector:
    """The edges by which log odds are counted: between the least and the greatest that these coefficients give."""
    ends = [*starts[1:], len(at)]
    own = [at[start:end] for start, end in zip(starts, ends, strict=True)]
    return find_edges(at[0] + sum(map(min, own)), at[0] + sum(map(max, own)))


@dataclass(frozen=True)
class ShapeSums:
    """The sums over all hospitals, with the intercept first. `gram` is empty where it was not asked for. `events` is
    the sum of outcomes."""

    patients: int
    events: float
    loss: float
    gradient: Vector
    weights: Vector
    counts: Vector
    gram: NDArray[np.float64]
    tallies: list[Tally]


def read_shapes(question: AskShapes, total: NDArray[np.int64], who: str) -> ShapeSums:
    """What the sums over all hospitals say."""
    reals = np.ldexp(total.astype(np.float64), -PLACES)
    sizes = question.sizes
    starts = find_starts(question.summed, question.attributes)
    width = starts[-1]
    cells = np.empty((3, width))
    cells[:, 0] = reals[[3, 4, 0]]
    at = FIRST
    for start, size in zip(starts, sizes, strict=False):
        cells[:, start : start + size] = reals[at : at + 3 * size].reshape(3, size)
        at += 3 * size
    gradient, weights, counts = cells
    gram = np.diag(weights) if question.gram else np.zeros((0, 0))
    if question.gram:
        gram[0], gram[:, 0] = weights, weights
        for place, size in enumerate(sizes):
            own = slice(starts[place], starts[place] + size)
            for before in range(place):
                other = slice(starts[before], starts[before] + sizes[before])
                block = reals[at : at + size * sizes[before]].reshape(size, sizes[before])
                gram[own, other], gram[other, own] = block, block.T
                at += size * sizes[before]
    tallies = []
    first = find_starts(question.terms, question.attributes)[:-1]
    for scored in question.scores:
        counted = np.rint(reals[at : at + 2 * BINS]).astype(np.int64)
        tallies.append(read_chances(counted, _find_score_edges(scored, first), who))
        at += 2 * BINS
    return ShapeSums(
        round(reals[0]), float(reals[1]), float(reals[2]), gradient, weights, counts, gram, tallies
    )


def _stack(
    terms: Sequence[Cells], codes: Sequence[Codes], attributes: Sequence[Attribute], patients: int
) -> NDArray[np.uint16]:
    """The cell of each patient, [term, patient]."""
    cells = np.empty((len(terms), patients), dtype=np.uint16)
    for place, term in enumerate(terms):
        cells[place] = term.place(codes, attributes)
    return cells


# Compiled loops, one patient after the other: a product of matrices may round a patient's numbers by how many others
# there are.
@compiled()
def _add_cells(cells: NDArray[np.uint16], starts: NDArray[np.int64], at: Vector, odds: Vector) -> None:
    odds[:] = at[0]
    for term in range(cells.shape[0]):
        start = starts[term]
        for patient in range(cells.shape[1]):
            odds[patient] += at[start + cells[term, patient]]


@compiled()
def _share_out(
    cells: NDArray[np.uint16],
    starts: NDArray[np.int64],
    at: Vector,
    outcome: Vector,
    binary: bool,
    steps: float,
    shares: NDArray[np.int64],
) -> None:
    odds = np.full(cells.shape[1], at[0])
    for term in range(cells.shape[0]):
        start = starts[term]
        for patient in range(cells.shape[1]):
            odds[patient] += at[start + cells[term, patient]]
    for patient in range(cells.shape[1]):
        if not binary:
            residual = outcome[patient] - min(max(odds[patient], -FURTHEST_NUMBER), FURTHEST_NUMBER)
            shares[0, patient] = np.int64(np.rint(residual * residual / 2 * steps))
            shares[1, patient] = np.int64(np.rint(residual * steps))
            shares[2, patient] = np.int64(steps)
            continue
        held = min(max(odds[patient], -FURTHEST), FURTHEST)
        chance = 0.5 * (1 + math.tanh(0.5 * held))
        shares[1, patient] = np.int64(np.rint((outcome[patient] - chance) * steps))
        shares[2, patient] = np.int64(np.rint(chance * (1 - chance) * steps))
        signed = held if outcome[patient] > 0 else -held
        shares[0, patient] = np.int64(np.rint(math.log1p(math.exp(-abs(signed))) * steps)) + np.int64(
            np.rint(max(-signed, 0.0) * steps)
        )


@compiled(boundscheck=False)
def _add_up(cells: NDArray[np.uint16], values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    total = np.zeros(size, dtype=np.int64)
    for patient in range(len(cells)):
        total[cells[patient]] += values[patient]
    return total


@compiled(boundscheck=False)
def _cross(
    own: NDArray[np.uint16], other: NDArray[np.uint16], weight: NDArray[np.int64], size: int, width: int
) -> NDArray[np.int64]:
    total = np.zeros(size * width, dtype=np.int64)
    for patient in range(len(own)):
        total[np.int64(own[patient]) * width + other[patient]] += weight[patient]
    return total
