"""What a hospital adds to a Cox regression: partial likelihood, score and information (Cox 1972; ties: Efron 1977).

Stratified by hospital, the partial likelihood is a sum over hospitals: risk sets never cross them, so that the fit is
that of the pooled table with hospitals as strata. A common baseline needs risk sets over all hospitals, and these a
public grid of times: sums over those at risk and over events in each of its cells. Efron's correction needs nothing
else, so that this fit is that of the pooled table with times cut to the grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.errors import MessageError
from concilium.protocol.attributes import CALL, READ_LABEL, Attribute, Workload, check_edges, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.records.blocks import each_block, is_large, list_blocks
from concilium.records.columns import label
from concilium.statistics.columns import (
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
    def _only_counts(self) -> bool:
        """Whether nothing is fitted: the question of a survival curve, about events and times alone."""
        return not self.columns and not self.last

    @property
    def goes_by_blocks(self) -> bool:
        return self._only_counts and not self.followed

    @hold_overflow()
    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        if self._only_counts and is_large(len(cohort)):
            return self._count(cohort)
        found = self._read(cohort)
        at = np.array(self.at)
        order = np.argsort(-found.times, kind="stable")
        matrix = np.ascontiguousarray(found.matrix[order])
        times, events = found.times[order], found.events[order]
        eta = np.clip(matrix @ at, -LARGEST_LOG, LARGEST_LOG) if len(at) else np.zeros(len(times))
        clock = np.log1p(times)
        likelihood, score, information, late = add_efron(times, clock, events, matrix, eta)
        told, mean = len(times), float(clock.mean()) if len(times) else 0.0
        parts: list[Any] = [
            [told, found.left_out, found.untimed, events.sum(), bool(events.any()), likelihood],
            [bool(told), told * mean, told * mean**2],
            matrix.sum(axis=0),
            (matrix**2).sum(axis=0),
            score,
            pack_triangle(information),
        ]
        if self.last:
            marks = clock[events]
            agreeing, tied, pairs = _count_pairs(times, events, eta)
            parts += [pack_triangle(np.outer(score, score)), late, [marks.sum(), (marks**2).sum()]]
            parts.append([agreeing, tied, pairs])
        return write_wide(np.concatenate(parts))

    def _count(self, cohort: Cohort) -> NDArray[np.integer]:
        """The same of very many patients, block by block, without the likelihood: nobody compares it with another."""

        def read(block: slice) -> Vector:
            found = self._read(cohort.take_block(block))
            clock = np.log1p(found.times).sum()
            return np.array([len(found.times), found.left_out, found.untimed, found.events.sum(), clock])

        told, left_out, untimed, events, clock = sum(each_block(list_blocks(len(cohort)), read), np.zeros(5))
        mean = clock / max(told, 1)
        first = [told, left_out, untimed, events, bool(events), 0.0]
        return write_wide([*first, bool(told), told * mean, told * mean**2])


@compiled()
def add_efron(
    times: Vector, clock: Vector, events: NDArray[np.bool_], matrix: Matrix, eta: Vector
) -> tuple[float, Vector, Matrix, Vector]:
    """Partial likelihood, score, information, and the score weighted by `clock`; times fall."""
    size = matrix.shape[1]
    s1, s2 = np.zeros(size), np.zeros((size, size))
    score, late, information = np.zeros(size), np.zeros(size), np.zeros((size, size))
    s0 = likelihood = 0.0
    start = 0
    while start < len(times):
        e0, e1, e2 = 0.0, np.zeros(size), np.zeros((size, size))
        total = np.zeros(size)
        deaths = 0
        end = start
        while end < len(times) and times[end] == times[start]:
            risk = math.exp(eta[end])
            s0 += risk
            for j in range(size):
                part = risk * matrix[end, j]
                s1[j] += part
                for k in range(j, size):
                    s2[j, k] += part * matrix[end, k]
            if events[end]:
                deaths += 1
                likelihood += eta[end]
                e0 += risk
                for j in range(size):
                    total[j] += matrix[end, j]
                    part = risk * matrix[end, j]
                    e1[j] += part
                    for k in range(j, size):
                        e2[j, k] += part * matrix[end, k]
            end += 1
        if deaths:
            one = share = two = cross = both = 0.0
            for tie in range(deaths):
                f = tie / deaths
                left = 1.0 / (s0 - f * e0)
                likelihood += math.log(left)
                one += left
                share += f * left
                two += left * left
                cross += f * left * left
                both += f * f * left * left
            for j in range(size):
                moved = total[j] - (s1[j] * one - e1[j] * share)
                score[j] += moved
                late[j] += clock[start] * moved
                for k in range(j, size):
                    information[j, k] += s2[j, k] * one - e2[j, k] * share
                    information[j, k] -= s1[j] * s1[k] * two + e1[j] * e1[k] * both
                    information[j, k] += (s1[j] * e1[k] + e1[j] * s1[k]) * cross
        start = end
    return likelihood, score, information, late


@compiled()
def _count_pairs(times: Vector, events: NDArray[np.bool_], eta: Vector) -> tuple[float, float, float]:
    """Pairs of patients of whom one has the event before the other's time (or at it, where the other is censored): in
    how many the earlier one has the higher risk, in how many both have the same, and how many there are; times fall."""
    values = np.unique(eta)
    ranks = np.searchsorted(values, eta)
    tree, same = np.zeros(len(values) + 1), np.zeros(len(values))
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
