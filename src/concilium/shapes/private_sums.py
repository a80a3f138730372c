"""What a hospital adds to a private fit of shapes: noisy sums along directions (docs/methods.md, 10.6).

*Protects:* every patient, from the house and up to t colluding hospitals. *Cost:* the rho that the site works out from
the question. *Assumes:* noise in shares. A patient's row of directions is scaled down to the public `cap`. Residuals
lie between -1 and 1; those of a number, in half ranges, are cut there. A patient is in one cell of each pair. So one
patient moves the gradient by at most the root of cap^2 + lead^2 + pairs x share^2 (L2), and products of the row by at
most cap^2. Each patient's numbers are rounded by themselves and added up as whole numbers.
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
from concilium.models.outcome import Outcome
from concilium.privacy.shares import widen_sensitivity
from concilium.protocol.attributes import CALL, LABELLING, READ_LABEL, Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PRIVATE, Sensitivity, Summed
from concilium.shapes.cells import Cells, Vector, find_starts, read_codes
from concilium.shapes.shape_sums import LARGEST, MOST_PATIENTS

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

PLACES = 16
MOST_DIRECTIONS, LARGEST_CAP = 1000, 100.0
MOST_PAIRS, MOST_CELLS_OF_PAIR = 500, 1001


class Direction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A number for each code of one attribute."""

    attribute: int
    heights: tuple[float, ...]


class AskDirections(Summed, frozen=True, kw_only=True):
    """Your residuals along these directions at these shapes, `lead` times their sum, and `share` times their sums in
    the cells of `pairs`.

    `shapes` has the log odds of each code of each attribute, `heights` those of the cells of each pair. `products`:
    instead of residuals, the products of every two directions, each summed over patients.
    """

    kind: ClassVar[str] = "shapes.directions"
    releases: ClassVar[frozenset[str]] = PRIVATE

    attributes: tuple[Attribute, ...]
    outcome: Outcome
    directions: tuple[Direction, ...]
    cap: float
    lead: float = 0.0
    intercept: float = 0.0
    shapes: tuple[tuple[float, ...], ...] = ()
    products: bool = False
    pairs: tuple[Cells, ...] = ()
    heights: tuple[tuple[float, ...], ...] = ()
    share: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        size = len(self.directions)
        cells = find_starts(self.pairs, self.attributes)[-1]  # one of them is that of the lead
        return (size * (size + 1) // 2 if self.products else size + cells,)

    @property
    def sensitivity(self) -> Sensitivity:
        cap, lead, share = Fraction(self.cap), Fraction(self.lead), Fraction(self.share)
        cap = cap if self.directions else Fraction(0)
        squared = cap**4 if self.products else cap**2 + lead**2 + len(self.pairs) * share**2
        return Sensitivity(widen_sensitivity(squared, self.numbers, PLACES))

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"positive": self.outcome.positive}

    @property
    def binary_places(self) -> int:
        return PLACES

    @property
    def largest(self) -> int:
        return math.ceil(max(self.cap, self.cap**2, 1.0) * (1 << PLACES) + 1) * MOST_PATIENTS

    def check(self, release: Release) -> None:
        self.outcome.check()
        if not 1 <= len(self.directions) + len(self.pairs) <= MOST_DIRECTIONS:
            raise MessageError(f"there are 1 to {MOST_DIRECTIONS} directions and pairs")
        if not 0 < self.cap <= LARGEST_CAP or not 0 <= self.lead <= 1 or not 0 <= self.share <= 1:
            raise MessageError(f"rows are scaled to at most {LARGEST_CAP:g}, lead and share are from 0 to 1")
        sizes = [one.size for one in self.attributes]
        for one in self.directions:
            if not 0 <= one.attribute < len(sizes) or len(one.heights) != sizes[one.attribute]:
                raise MessageError("a direction does not fit its attribute")
        if self.shapes and [len(shape) for shape in self.shapes] != sizes:
            raise MessageError("the shapes do not fit the attributes")
        if len(self.pairs) > MOST_PAIRS or (self.products and self.pairs):
            raise MessageError(f"there are at most {MOST_PAIRS} pairs, and none beside products")
        for pair in self.pairs:
            pair.check_among(self.attributes)
            if pair.count(self.attributes) > MOST_CELLS_OF_PAIR:
                raise MessageError(f"a pair has at most {MOST_CELLS_OF_PAIR} cells")
        if len(self.heights) not in (0, len(self.pairs)) or any(
            len(own) != pair.count(self.attributes)
            for own, pair in zip(self.heights, self.pairs, strict=False)
        ):
            raise MessageError("the heights do not fit the pairs")
        numbers = [self.intercept, *(x for shape in (*self.shapes, *self.heights) for x in shape)]
        numbers += [x for one in self.directions for x in one.heights]
        if not all(abs(number) <= LARGEST for number in numbers):
            raise MessageError("heights and shapes are of bearable size")
        if not all(attribute.covers_everyone for attribute in self.attributes):
            raise MessageError("every attribute of a private question has a cell for every patient")

    @property
    def adds_blocks(self) -> bool:
        return True

    def estimate(self, patients: int, columns: int) -> Workload:
        looked_up = len(self.directions) + len(self.attributes) + 2 * len(self.pairs)
        per_patient = 10 * looked_up + 4 * self.numbers + 60 + READ_LABEL
        return estimate_columns(self.attributes, patients, each_by_itself=True) + Workload(
            per_patient * patients + CALL * (40 + 4 * len(self.pairs)),
            (2 * (len(self.attributes) + len(self.pairs)) + 32 + LABELLING) * patients + 32 * self.numbers,
        )

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        codes = np.stack(read_codes(self.attributes, cohort.view, cohort.rows))
        cells = np.empty((len(self.pairs), codes.shape[1]), dtype=np.uint16)
        for place, pair in enumerate(self.pairs):
            cells[place] = pair.place(list(codes), self.attributes)
        own = np.array([one.attribute for one in self.directions], dtype=np.int64)
        heights = np.zeros((len(own), max(one.size for one in self.attributes)))
        for place, one in enumerate(self.directions):
            heights[place, : len(one.heights)] = one.heights
        shapes = np.zeros((len(self.shapes), heights.shape[1]))
        for place, shape in enumerate(self.shapes):
            shapes[place, : len(shape)] = shape
        outcome, binary = self.outcome.at_site(cohort, self.target), self.outcome.binary
        total = np.zeros(self.numbers, dtype=np.int64)
        steps = 2.0**PLACES
        if self.products:
            _add_products(codes, own, heights, self.cap, steps, total)
        else:
            odds = np.full(codes.shape[1], self.intercept)
            _add_odds(codes, shapes, odds)
            widest = max((pair.count(self.attributes) for pair in self.pairs), default=1)
            crossed = np.zeros((len(self.heights), widest))
            for place, values in enumerate(self.heights):
                crossed[place, : len(values)] = values
            _add_odds(cells, crossed, odds)
            _add_residuals(codes, own, heights, odds, outcome, binary, self.cap, self.lead, steps, total)
            starts = np.array(find_starts(self.pairs, self.attributes), dtype=np.int64) + len(own)
            _add_cells(cells, starts, odds, outcome, binary, self.share * steps, total)
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
def _add_odds(cells: NDArray[np.uint16], heights: NDArray[np.float64], odds: Vector) -> None:
    for patient in range(cells.shape[1]):
        for place in range(heights.shape[0]):
            odds[patient] += heights[place, cells[place, patient]]


@compiled()
def _find_residual(outcome: float, odds: float, binary: bool) -> float:
    """Of log odds, or of a number from -1 to 1, which is cut to as much; who has none there adds nothing."""
    if binary:
        return outcome - 0.5 * (1 + math.tanh(0.5 * odds))
    return 0.0 if math.isnan(outcome) else min(max(outcome - odds, -1.0), 1.0)


@compiled()
def _add_residuals(
    codes: NDArray[np.uint16],
    own: NDArray[np.int64],
    heights: NDArray[np.float64],
    odds: Vector,
    outcome: Vector,
    binary: bool,
    cap: float,
    lead: float,
    steps: float,
    total: NDArray[np.int64],
) -> None:
    row = np.empty(len(own))
    for patient in range(codes.shape[1]):
        residual = _find_residual(outcome[patient], odds[patient], binary)
        _fill_row(codes, patient, own, heights, cap, row)
        total[0] += np.int64(np.rint(lead * residual * steps))
        for place in range(len(own)):
            total[1 + place] += np.int64(np.rint(residual * row[place] * steps))


@compiled()
def _add_cells(
    cells: NDArray[np.uint16],
    starts: NDArray[np.int64],
    odds: Vector,
    outcome: Vector,
    binary: bool,
    steps: float,
    total: NDArray[np.int64],
) -> None:
    for place in range(cells.shape[0]):
        for patient in range(cells.shape[1]):
            residual = _find_residual(outcome[patient], odds[patient], binary)
            total[starts[place] + cells[place, patient]] += np.int64(np.rint(residual * steps))


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
