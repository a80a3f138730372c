"""What a hospital adds to a Cox regression: partial likelihood, score and information (Cox 1972; ties: Efron 1977).

Stratified by hospital, the partial likelihood is a sum over hospitals: risk sets never cross them, so that the fit is
that of the pooled table with hospitals as strata. A common baseline needs risk sets over all hospitals, and these a
public grid of times: sums over those at risk and over events in each of its cells. Efron's correction needs nothing
else, so that this fit is that of the pooled table with times cut to the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.errors import MessageError
from concilium.protocol.attributes import CALL, READ_LABEL, Attribute, Workload, check_edges, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.records.blocks import (
    each_block,
    fill_room,
    find_distinct,
    list_parts,
    make_room,
    order_falling,
    read_block,
    write_block,
)
from concilium.records.columns import label
from concilium.statistics.columns import (
    ROWS_OF_MATRIX,
    Column,
    Matrix,
    build_at_site,
    check_columns,
    pack_triangle,
    unpack_triangle,
)
from concilium.statistics.wide_sums import WideSum, hold_overflow, read_wide, refuse_floored, write_wide

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

Vector = NDArray[np.float64]
FIRST = 9
LARGEST_LOG = 100.0
# Hospitals whose typical times differ by this factor hardly measure them in one unit.
OTHER_UNIT = 4.0


class _AskCox(WideSum, frozen=True, kw_only=True):
    """What both questions of a Cox regression are about."""

    rows_at_once: ClassVar[int] = ROWS_OF_MATRIX

    attributes: tuple[Attribute, ...]
    columns: tuple[Column, ...]
    time: str
    positive: str | int | float | bool
    at: tuple[float, ...]

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"time": self.time, "positive": self.positive}

    @property
    def _triangle(self) -> int:
        return len(self.columns) * (len(self.columns) + 1) // 2

    def check(self, release: Release) -> None:
        check_columns(self.attributes, self.columns)
        if len(self.at) != len(self.columns) or not np.isfinite(self.at).all():
            raise MessageError("a Cox regression has a finite coefficient for each column")

    def estimate(self, patients: int, columns: int) -> Workload:
        size, factors = len(self.columns), sum(len(column.factors) for column in self.columns)
        per_patient = 40 * factors + 16 * size * size + 40 * size + 2000 + READ_LABEL
        return estimate_columns(self.attributes, patients) + Workload(
            per_patient * patients + CALL * (60 + factors),
            (48 * (size + factors) + 256) * patients + 64 * self.numbers + 64 * size * size,
        )

    def _read(self, cohort: Cohort) -> _Survivors:
        refuse_floored(cohort)
        matrix, rows, left_out = build_at_site(self.attributes, self.columns, cohort)
        times = cohort.view.measured(self.time, rows)
        column = cohort.view.coded(self.target)
        name = label(self.positive)
        is_event = np.array([False, *(label(value) == name for value in column.values)])
        events = np.take(is_event, column.codes[rows])
        fine = np.isfinite(times) & (times >= 0)
        return _Survivors(matrix[fine], times[fine], events[fine], left_out, int((~fine).sum()))

    def _read_falling(self, cohort: Cohort) -> Iterator[tuple[_Survivors, Vector, Vector]]:
        """The patients block by block, with their clocks and log risks; times fall."""
        order, at = order_by_time(cohort, self.time), np.array(self.at)

        def read(block: slice) -> tuple[_Survivors, Vector, Vector]:
            found = self._read(cohort.take(read_block(order, block)))
            matrix = np.ascontiguousarray(found.matrix)
            eta = np.clip(matrix @ at, -LARGEST_LOG, LARGEST_LOG) if len(at) else np.zeros(len(found.times))
            return replace(found, matrix=matrix), np.log1p(found.times), eta

        return each_block(list_parts(len(cohort), self.rows_at_once), read)


def order_by_time(cohort: Cohort, time: str) -> NDArray[np.int64]:
    """The places of patients in a cohort by their times, the latest first; then those without one."""

    def read(block: slice) -> Vector:
        times = cohort.view.measured(time, read_block(cohort.rows, block))
        return np.where(np.isfinite(times) & (times >= 0), times, -1.0)

    return order_falling(fill_room(len(cohort), np.float64, cohort.view.room, read), cohort.view.room)


@dataclass(frozen=True)
class _Survivors:
    matrix: Matrix
    times: Vector
    events: NDArray[np.bool_]
    left_out: int
    untimed: int


class AskCox(_AskCox, frozen=True, kw_only=True):
    """Your partial likelihood, score and information at these coefficients, within your hospital.

    `last`: and the score's outer product, what tests proportional hazards, and concordance.
    """

    kind: ClassVar[str] = "statistics.cox"

    last: bool = False

    @property
    def count(self) -> int:
        size = len(self.columns)
        return FIRST + 3 * size + self._triangle + (self._triangle + size + 5 if self.last else 0)

    @property
    def goes_by_blocks(self) -> bool:
        return True

    @hold_overflow()
    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        size, counts, clocks = len(self.columns), np.zeros(4), np.zeros(3)
        columns, squares, risk_sets = np.zeros(size), np.zeros(size), RiskSets(size)
        room = cohort.view.room
        held = [make_room(len(cohort), dtype, room) for dtype in (np.float64, np.bool_, np.float64)]
        for found, clock, eta in self._read_falling(cohort):
            risk_sets.add(found.times, clock, found.events, found.matrix, eta)
            begin = int(counts[0])
            counts += [len(eta), found.left_out, found.untimed, found.events.sum()]
            marks = clock[found.events]
            clocks += [clock.sum(), marks.sum(), (marks**2).sum()]
            columns += found.matrix.sum(axis=0)
            squares += (found.matrix**2).sum(axis=0)
            for kept, rows in zip(held, (found.times, found.events, eta), strict=True) if self.last else ():
                write_block(kept, slice(begin, begin + len(eta)), rows)
        likelihood, score, information, late = risk_sets.close()
        told = int(counts[0])
        mean = clocks[0] / max(told, 1)
        parts: list[Any] = [
            [*counts, bool(counts[3]), likelihood],
            [bool(told), told * mean, told * mean**2],
            columns,
            squares,
            score,
            pack_triangle(information),
        ]
        if self.last:
            parts += [pack_triangle(np.outer(score, score)), late, clocks[1:]]
            times, events, eta = (kept[:told] for kept in held)
            parts.append(_count_pairs(times, events, eta, room))
        return write_wide(np.concatenate(parts))


class RiskSets:
    """Partial likelihood, score, information, and the score weighted by a clock, of patients whose times fall. They may
    come in parts, also of one time: the sums are those of all at once."""

    def __init__(self, size: int) -> None:
        self._numbers = np.zeros(4)
        self._when = np.full(2, np.nan)
        self._vectors, self._matrices = np.zeros((5, size)), np.zeros((3, size, size))

    def add(
        self, times: Vector, clock: Vector, events: NDArray[np.bool_], matrix: Matrix, eta: Vector
    ) -> None:
        """More patients; `matrix` is in the order of rows."""
        _add_patients(
            times, clock, events, matrix, eta, self._numbers, self._when, self._vectors, self._matrices
        )

    def close(self) -> tuple[float, Vector, Matrix, Vector]:
        """The sums; of the information its upper triangle."""
        _add_events(self._numbers, self._when, self._vectors, self._matrices)
        return float(self._numbers[3]), self._vectors[3], self._matrices[2], self._vectors[4]


@compiled()
def _add_patients(
    times: Vector,
    clock: Vector,
    events: NDArray[np.bool_],
    matrix: Matrix,
    eta: Vector,
    numbers: Vector,
    when: Vector,
    vectors: Matrix,
    matrices: NDArray[np.float64],
) -> None:
    """`numbers` are the sum of risks, that of events of the last time, how many these are, and the likelihood."""
    s1, e1, total = vectors[0], vectors[1], vectors[2]
    s2, e2 = matrices[0], matrices[1]
    for row in range(len(times)):
        if times[row] != when[0]:
            _add_events(numbers, when, vectors, matrices)
            when[0], when[1] = times[row], clock[row]
        risk = math.exp(eta[row])
        numbers[0] += risk
        for j in range(len(s1)):
            part = risk * matrix[row, j]
            s1[j] += part
            for k in range(j, len(s1)):
                s2[j, k] += part * matrix[row, k]
        if events[row]:
            numbers[1] += risk
            numbers[2] += 1
            numbers[3] += eta[row]
            for j in range(len(s1)):
                part = risk * matrix[row, j]
                total[j] += matrix[row, j]
                e1[j] += part
                for k in range(j, len(s1)):
                    e2[j, k] += part * matrix[row, k]


@compiled()
def _add_events(numbers: Vector, when: Vector, vectors: Matrix, matrices: NDArray[np.float64]) -> None:
    """What the events of one time add, once all who are at risk then are known (ties: Efron)."""
    s1, e1, total, score, late = vectors[0], vectors[1], vectors[2], vectors[3], vectors[4]
    s2, e2, information = matrices[0], matrices[1], matrices[2]
    deaths = int(numbers[2])
    if not deaths:
        return
    one = share = two = cross = both = 0.0
    for tie in range(deaths):
        f = tie / deaths
        left = 1.0 / (numbers[0] - f * numbers[1])
        numbers[3] += math.log(left)
        one += left
        share += f * left
        two += left * left
        cross += f * left * left
        both += f * f * left * left
    for j in range(len(s1)):
        moved = total[j] - (s1[j] * one - e1[j] * share)
        score[j] += moved
        late[j] += when[1] * moved
        for k in range(j, len(s1)):
            information[j, k] += s2[j, k] * one - e2[j, k] * share
            information[j, k] -= s1[j] * s1[k] * two + e1[j] * e1[k] * both
            information[j, k] += (s1[j] * e1[k] + e1[j] * s1[k]) * cross
    numbers[1] = numbers[2] = 0.0
    e1[:], total[:], e2[:] = 0.0, 0.0, 0.0


def _count_pairs(
    times: Vector, events: NDArray[np.bool_], eta: Vector, room: Path | None
) -> tuple[float, float, float]:
    """Pairs of patients of whom one has the event before the other's time (or at it, where the other is censored): in
    how many the earlier one has the higher risk, in how many both have the same, and how many there are; times fall."""
    values = find_distinct(eta, room)
    ranks = fill_room(
        len(eta),
        np.int32,
        room,
        lambda block: np.minimum(np.searchsorted(values, read_block(eta, block)), len(values) - 1),
    )
    tree, same = (make_room(len(values) + more, np.float64, room) for more in (1, 0))
    return _add_pairs(*map(np.asarray, (times, events, ranks, tree, same)))


@compiled()
def _add_pairs(
    times: Vector, events: NDArray[np.bool_], ranks: NDArray[np.int32], tree: Vector, same: Vector
) -> tuple[float, float, float]:
    agreeing = tied = pairs = later = 0.0
    start = 0
    while start < len(times):
        end = start
        while end < len(times) and times[end] == times[start]:
            end += 1
        for is_event in (False, True):
            for place in range(start, end):
                if events[place] != is_event:
                    continue
                if is_event:
                    below, at = 0.0, ranks[place]
                    while at > 0:
                        below += tree[at]
                        at -= at & -at
                    agreeing += below
                    tied += same[ranks[place]]
                    pairs += later
            for place in range(start, end):
                if events[place] == is_event:
                    same[ranks[place]] += 1
                    later += 1
                    at = ranks[place] + 1
                    while at < len(tree):
                        tree[at] += 1
                        at += at & -at
        start = end
    return agreeing, tied, pairs


@dataclass(frozen=True)
class CoxSums:
    """The sums over all hospitals."""

    patients: int
    left_out: int
    untimed: int
    events: int
    hospitals_with_events: int
    likelihood: float
    hospitals: int
    clocks: tuple[float, float]
    columns: Vector
    squares: Vector
    score: Vector
    information: Matrix
    clustered: Matrix | None = None
    late: Vector | None = None
    marks: tuple[float, float] = (0.0, 0.0)
    pairs: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def warn_of_hospitals(self, time: str) -> list[str]:
        """What a card says of hospitals without events, and of times that are hardly in one unit."""
        warnings = []
        if self.hospitals_with_events < self.hospitals:
            without = self.hospitals - self.hospitals_with_events
            warnings.append(
                f"{without} of {self.hospitals} hospitals {'has' if without == 1 else 'have'} no event"
            )
        mean = self.clocks[0] / max(self.patients, 1)
        between = math.sqrt(max(self.clocks[1] / max(self.patients, 1) - mean**2, 0.0))
        if between > math.log(OTHER_UNIT) / 2:
            warnings.append(
                f"typical values of {time} differ between hospitals by a factor of about "
                f"{math.exp(2 * between):.0f}: is it in days at one and in months at another?"
            )
        return warnings


def read_cox(question: AskCox, total: NDArray[np.int64]) -> CoxSums:
    """What the sites' numbers, added up, say."""
    reals = read_wide(total)
    size = len(question.columns)
    triangle = size * (size + 1) // 2
    ends = np.cumsum([FIRST, size, size, size, triangle, triangle, size, 2, 3])
    first, columns, squares, score, packed, *last = np.split(reals, ends[: 9 if question.last else 5])[:9]
    counts = [round(first[place]) for place in range(5)]
    sums = CoxSums(
        counts[0],
        counts[1],
        counts[2],
        counts[3],
        counts[4],
        float(first[5]),
        round(first[6]),
        (float(first[7]), float(first[8])),
        columns,
        squares,
        score,
        unpack_triangle(packed, size),
    )
    if not question.last:
        return sums
    marks, pairs = last[2].tolist(), last[3].tolist()
    return replace(
        sums,
        clustered=unpack_triangle(last[0], size),
        late=last[1],
        marks=(marks[0], marks[1]),
        pairs=(pairs[0], pairs[1], pairs[2]),
    )


class AskCoxCells(_AskCox, frozen=True, kw_only=True):
    """In each cell of this grid of times: your events, and sums of relative risks over events and over those who leave;
    of those who are censored, also for the part of the cell that comes after; and columns weighted by relative risks.

    `moments`: and those of events, and products of columns, which a fit with a common baseline needs.
    """

    kind: ClassVar[str] = "statistics.cox-cells"

    grid: tuple[float, ...]
    moments: bool = False

    @property
    def cells(self) -> int:
        """One before the first edge, one from each edge on."""
        return len(self.grid) + 1

    @property
    def _width(self) -> int:
        size = len(self.columns)
        return 5 + size + (2 * size + 2 * self._triangle if self.moments else 0)

    @property
    def count(self) -> int:
        return 3 + self.cells * self._width

    @property
    def adds_blocks(self) -> bool:
        return True

    def check(self, release: Release) -> None:
        super().check(release)
        check_edges(self.time, self.grid)

    @hold_overflow()
    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        found = self._read(cohort)
        at, size = np.array(self.at), len(self.columns)
        cell = np.searchsorted(np.asarray(self.grid), found.times, side="right")
        eta = np.clip(found.matrix @ at, -LARGEST_LOG, LARGEST_LOG) if size else np.zeros(len(cell))
        risk, event = np.exp(eta), found.events.astype(np.float64)

        def add(weights: Vector) -> Vector:
            return np.bincount(cell, weights=weights, minlength=self.cells).astype(np.float64)

        unseen = (1 - event) * risk * self._find_unseen(found.times, cell)
        table = [add(event), add(event * eta), add(event * risk), add(risk), add(unseen)]
        columns = list(found.matrix.T)
        table += [add(risk * column) for column in columns]
        if self.moments:
            table += [add(weight * column) for weight in (event, event * risk) for column in columns]
            for weight in (event * risk, risk):
                table += [add(weight * columns[j] * columns[k]) for j in range(size) for k in range(j, size)]
        counts = np.array([len(cell), found.left_out, found.untimed], dtype=np.float64)
        return write_wide(np.concatenate([counts, np.array(table).T.ravel()]))

    def _find_unseen(self, times: Vector, cell: NDArray[np.intp]) -> Vector:
        """Which part of a patient's last cell comes after the patient's time. None where the cell begins at that time:
        who is censored then was at risk of what happened then."""
        starts = np.array([0.0, *self.grid])[cell]
        ends = np.array([*self.grid, np.inf])[cell]
        return np.where((times > starts) & np.isfinite(ends), (ends - times) / (ends - starts), 0.0)


@dataclass(frozen=True)
class CoxCells:
    """By cell: events, sums of predictors over events, and relative risks of events, of all at risk when it begins, and
    of the censored for the part of the cell after they left; columns weighted by the risks of those at risk. With
    `moments`: columns over events, and weighted by their risks; products, weighted by risks of events and of all."""

    patients: int
    left_out: int
    untimed: int
    events: Vector
    predictors: Vector
    risk_of_events: Vector
    at_risk: Vector
    unseen: Vector
    weighted: Matrix
    moments: tuple[Matrix, Matrix, Matrix, Matrix] | None = None

    def cumulative_hazard(self) -> tuple[Vector, Vector, Matrix]:
        """Of a patient of relative risk 1, at the end of each cell (Breslow, with Efron's ties); its variance at these
        coefficients; and how far it falls as each coefficient rises.

        Who is censored within a cell is at risk for the part of it that was seen: counted for the whole cell, a grid of
        twenty cells understates risks by a fifth."""
        steps, variances = np.zeros(len(self.events)), np.zeros(len(self.events))
        for cell, deaths in enumerate(np.rint(self.events).astype(int).tolist()):
            shares = np.arange(deaths) / max(deaths, 1)
            each = 1 / (self.at_risk[cell] - self.unseen[cell] - shares * self.risk_of_events[cell])
            steps[cell], variances[cell] = each.sum(), (each**2).sum()
        means = self.weighted / np.where(self.at_risk > 0, self.at_risk, 1.0)[:, None]
        return np.cumsum(steps), np.cumsum(variances), np.cumsum(steps[:, None] * means, axis=0)

    def add_efron(self) -> tuple[float, Vector, Matrix]:
        """Partial likelihood, score and information with risk sets over all hospitals."""
        assert self.moments is not None
        columns, first, second, of_all = self.moments
        size = columns.shape[1]
        likelihood, score = float(self.predictors.sum()), columns.sum(axis=0)
        packed = np.zeros(size * (size + 1) // 2)
        rows, across = np.triu_indices(size)
        for cell in np.flatnonzero(self.events > 0.5):
            deaths = round(self.events[cell])
            f = np.arange(deaths) / deaths
            left = 1 / (self.at_risk[cell] - f * self.risk_of_events[cell])
            e1, s1 = first[cell], self.weighted[cell]
            e2, s2 = second[cell], of_all[cell]
            likelihood += float(np.log(left).sum())
            score = score - (s1 * left.sum() - e1 * (f * left).sum())
            packed += s2 * left.sum() - e2 * (f * left).sum()
            two, cross, both = (left**2).sum(), (f * left**2).sum(), (f**2 * left**2).sum()
            packed -= s1[rows] * s1[across] * two + e1[rows] * e1[across] * both
            packed += (s1[rows] * e1[across] + e1[rows] * s1[across]) * cross
        return likelihood, score, unpack_triangle(packed, size)


def read_cells(question: AskCoxCells, total: NDArray[np.int64]) -> CoxCells:
    """What the sites' numbers, added up, say; who leaves later is at risk in every cell before."""
    reals = read_wide(total)
    table = reals[3:].reshape(question.cells, -1)

    def at_risk(leaving: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.cumsum(leaving[::-1], axis=0)[::-1]

    patients, left_out, untimed = (round(one) for one in reals[:3])
    size = len(question.columns)
    triangle = size * (size + 1) // 2
    first, weighted, columns, e1, e2, s2 = np.split(table, np.cumsum([5, size, size, size, triangle]), axis=1)
    events, predictors, risk_of_events, leaving, unseen = first.T
    return CoxCells(
        patients,
        left_out,
        untimed,
        events,
        predictors,
        risk_of_events,
        at_risk(leaving),
        unseen,
        at_risk(weighted),
        (columns, e1, e2, at_risk(s2)) if question.moments else None,
    )
