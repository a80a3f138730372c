"""What a hospital adds to a private fit of shapes: noisy sums along directions (docs/methods.md, 10.6).

*Protects:* every patient, from the house and up to t colluding hospitals. *Cost:* the rho that the site works out from
the question. *Assumes:* noise in shares. A patient's row of directions is scaled down to the public `cap`. Residuals
lie between -1 and 1. So one patient moves the gradient by at most the root of cap^2 + lead^2 (L2), and products of
the row by at most cap^2. Each patient's numbers are rounded by themselves and added up as whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.errors import MessageError
from concilium.privacy.shares import widen_sensitivity
from concilium.protocol.attributes import CALL, LABELLING, READ_LABEL, Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PRIVATE, Sensitivity, Summed
from concilium.records.columns import label
from concilium.shapes.cells import Vector, read_codes
from concilium.shapes.shape_sums import LARGEST, MOST_PATIENTS

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

PLACES = 16
MOST_DIRECTIONS, LARGEST_CAP = 1000, 100.0


class Direction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A number for each code of one attribute."""

    attribute: int
    heights: tuple[float, ...]


class AskDirections(Summed, frozen=True, kw_only=True):
    """Your residuals along these directions at these shapes, and `lead` times their sum.

    `shapes` has the log odds of each code of each attribute. `products`: instead of residuals, the products of every
    two directions, each summed over patients.
    """

    kind: ClassVar[str] = "shapes.directions"
    releases: ClassVar[frozenset[str]] = PRIVATE

    attributes: tuple[Attribute, ...]
    positive: str | int | float | bool
    directions: tuple[Direction, ...]
    cap: float
    lead: float = 0.0
    intercept: float = 0.0
    shapes: tuple[tuple[float, ...], ...] = ()
    products: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        size = len(self.directions)
        return (size * (size + 1) // 2 if self.products else size + 1,)

    @property
    def sensitivity(self) -> Sensitivity:
        cap, lead = Fraction(self.cap), Fraction(self.lead)
        squared = cap**4 if self.products else cap**2 + lead**2
        return Sensitivity(widen_sensitivity(squared, self.numbers, PLACES))

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"positive": self.positive}

    @property
    def binary_places(self) -> int:
        return PLACES

    @property
    def largest(self) -> int:
        return math.ceil(max(self.cap, self.cap**2, 1.0) * (1 << PLACES) + 1) * MOST_PATIENTS

    def check(self, release: Release) -> None:
        if not 1 <= len(self.directions) <= MOST_DIRECTIONS:
            raise MessageError(f"there are 1 to {MOST_DIRECTIONS} directions")
        if not 0 < self.cap <= LARGEST_CAP or not 0 <= self.lead <= 1:
            raise MessageError(f"rows are scaled to at most {LARGEST_CAP:g}, and the lead is from 0 to 1")
        sizes = [one.size for one in self.attributes]
        for one in self.directions:
            if not 0 <= one.attribute < len(sizes) or len(one.heights) != sizes[one.attribute]:
                raise MessageError("a direction does not fit its attribute")
        if self.shapes and [len(shape) for shape in self.shapes] != sizes:
            raise MessageError("the shapes do not fit the attributes")
        numbers = [self.intercept, *(x for shape in self.shapes for x in shape)]
        numbers += [x for one in self.directions for x in one.heights]
        if not all(abs(number) <= LARGEST for number in numbers):
            raise MessageError("heights and shapes are of bearable size")
        if not all(attribute.covers_everyone for attribute in self.attributes):
            raise MessageError("every attribute of a private question has a cell for every patient")

    def estimate(self, patients: int, columns: int) -> Workload:
        per_patient = 10 * (len(self.directions) + len(self.attributes)) + 4 * self.numbers + 60 + READ_LABEL
        return estimate_columns(self.attributes, patients, each_by_itself=True) + Workload(
            per_patient * patients + CALL * 40,
            (2 * len(self.attributes) + 32 + LABELLING) * patients + 32 * self.numbers,
        )

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        codes = np.stack(read_codes(self.attributes, cohort.view, cohort.rows))
        own = np.array([one.attribute for one in self.directions], dtype=np.int64)
        heights = np.zeros((len(own), max(one.size for one in self.attributes)))
        for place, one in enumerate(self.directions):
            heights[place, : len(one.heights)] = one.heights
        shapes = np.zeros((len(self.shapes), heights.shape[1]))
        for place, shape in enumerate(self.shapes):
            shapes[place, : len(shape)] = shape
        column = cohort.view.coded(self.target)
        name = label(self.positive)
        positive = np.array([0.0, *(float(label(value) == name) for value in column.values)])
        outcome = positive[column.codes[cohort.rows]]
        total = np.zeros(self.numbers, dtype=np.int64)
        steps = 2.0**PLACES
        if self.products:
            _add_products(codes, own, heights, self.cap, steps, total)
        else:
            _add_residuals(
                codes, own, heights, shapes, self.intercept, outcome, self.cap, self.lead, steps, total
            )
        return total


@compiled()
def _fill_row(
    codes: NDArray[np.uint16],
    patient: int,
    own: NDArray[np.int64],
    heights: NDArray[np.float64],
    cap: float,
    row: Vector,
) -> None:
    """A patient's number along each direction, scaled down to the cap."""
    squares = 0.0
    for place in range(len(own)):
        row[place] = heights[place, codes[own[place], patient]]
        squares += row[place] * row[place]
    shrink = min(1.0, cap / math.sqrt(squares)) if squares > 0 else 1.0
    for place in range(len(own)):
        row[place] *= shrink


@compiled()
def _add_residuals(
    codes: NDArray[np.uint16],
    own: NDArray[np.int64],
    heights: NDArray[np.float64],
    shapes: NDArray[np.float64],
    intercept: float,
    outcome: Vector,
    cap: float,
    lead: float,
    steps: float,
    total: NDArray[np.int64],
) -> None:
    row = np.empty(len(own))
    for patient in range(codes.shape[1]):
        odds = intercept
        for place in range(shapes.shape[0]):
            odds += shapes[place, codes[place, patient]]
        residual = outcome[patient] - 0.5 * (1 + math.tanh(0.5 * odds))
        _fill_row(codes, patient, own, heights, cap, row)
        total[0] += np.int64(np.rint(lead * residual * steps))
        for place in range(len(own)):
            total[1 + place] += np.int64(np.rint(residual * row[place] * steps))


@compiled()
def _add_products(
    codes: NDArray[np.uint16],
    own: NDArray[np.int64],
    heights: NDArray[np.float64],
    cap: float,
    steps: float,
    total: NDArray[np.int64],
) -> None:
    row = np.empty(len(own))
    for patient in range(codes.shape[1]):
        _fill_row(codes, patient, own, heights, cap, row)
        at = 0
        for one in range(len(own)):
            total[at] += np.int64(np.rint(row[one] * row[one] * steps))
            at += 1
            for other in range(one + 1, len(own)):
                total[at] += np.int64(np.rint(math.sqrt(2.0) * row[one] * row[other] * steps))
                at += 1
