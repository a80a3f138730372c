"""The cube: counts of all patients by cell of a public grid, by predictor and by class, and what is worked out from it.

The grid (age bands x sex, say) is fixed when the consultation is agreed. A patient is in one cell of it, and in one
cell of every predictor: one more or less moves one count of each predictor by 1, and one of the totals. So the cube of
A predictors has squared L2 sensitivity A + 1, once, whatever is asked of it afterwards: every answer is post-processing
at the house. Populations are unions of cells, so that no two answers differ by anything but published cells.

Before it answers, the house does what sees no patient and costs nothing. Under noise the tables of a cell are made to
add up: each predictor counts the same patients again. The tables of a level of the grid are drawn towards those of the
level above, the more, the less they differ beside noise and sampling (empirical Bayes: the spread between cells is
estimated from the released tables). Nothing is below zero. Without noise all numbers of patients of a value, and of a
class, stay as they were counted. Under noise half of the price buys the same table of everybody, to which all cells are
drawn: the sum of many noisy cells would say less of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.models.intervals import WITHIN_95
from concilium.models.threshold import Decided
from concilium.protocol.attributes import Attribute, check_attributes
from concilium.protocol.counts import AskCounts
from concilium.protocol.splits import Split

MOST_CELLS = 4096
ROUNDS = 20
# By what part the count of a value in a class may plausibly differ from what its parent lets expect.
PLAUSIBLE = 0.2
Table = NDArray[np.float64]
# Of each attribute of the grid the cells that a population takes in; None: all of them.
Chosen = tuple[tuple[int, ...] | None, ...]


class Drawn(NamedTuple):
    """Estimated counts [cell, row, class], with the variance that each has by itself, and the deviation that it shares
    with its siblings."""

    counts: Table
    own: Table
    shared: Table

    def repeat(self, times: int) -> Drawn:
        """The same for each of so many children."""
        return Drawn(*(np.repeat(one, times, axis=0) for one in self))


class CubeColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An attribute of the cube: the cutoffs of a number, or the values of a category; which rest has a cell."""

    name: str
    edges: list[float] = []
    values: list[str | int | float | bool] = []
    missing: bool = True
    other: bool = False
    date: bool = False

    @classmethod
    def of(cls, one: Attribute) -> CubeColumn:
        """The column that a question asked about."""
        return cls(one.name, list(one.edges), list(one.values), one.missing, one.other, one.date)

    @property
    def attribute(self) -> Attribute:
        """The same as hospitals are asked about it."""
        return Attribute(
            self.name, tuple(self.edges), tuple(self.values), self.missing, self.other, date=self.date
        )


class CubeBody(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, dict=True
):
    """What the file of a consultation holds: `counts` [cell of the grid, class counts and then cells of predictors,
    class], as they were released, with the `variance` that noise adds to each; `everybody` is the same of all patients,
    asked by itself under noise."""

    target: str
    classes: list[str | int | float | bool]
    query: str
    by: list[CubeColumn]
    predictors: list[CubeColumn]
    counts: list[list[list[int]]]
    everybody: list[list[int]] = []
    variance: float = 0.0
    enough: int
    decided: Decided | None = None

    def __post_init__(self) -> None:
        columns = [one.attribute for one in (*self.by, *self.predictors)]
        check_attributes(columns)
        cells = math.prod(self.sizes)
        if not 1 <= cells <= MOST_CELLS or not self.classes:
            raise ValueError(f"a cube has 1 to {MOST_CELLS} cells, and classes")
        shape = cells, 1 + sum(self.widths), len(self.classes)
        told = (
            len(self.counts),
            *({len(one) for one in self.counts}),
            *({len(r) for c in self.counts for r in c}),
        )
        if told != shape:
            raise ValueError("the counts of a cube must be those of its cells, predictors and classes")
        if self.everybody and {len(self.everybody), *map(len, self.everybody)} != {shape[1], shape[2]}:
            raise ValueError("the counts of everybody must be those of predictors and classes")
        if not 0 <= self.variance < math.inf or self.enough < 1:
            raise ValueError("a cube has a variance from 0, and asks for one patient or more")
        if self.decided is not None:
            self.decided.check(self.classes)

    @property
    def sizes(self) -> list[int]:
        """How many cells each attribute of the grid has."""
        return [one.attribute.size for one in self.by]

    @property
    def widths(self) -> list[int]:
        """How many cells each predictor has."""
        return [one.attribute.size for one in self.predictors]

    @cached_property
    def blocks(self) -> list[slice]:
        """The rows of a table that each predictor has; before them are the class counts."""
        ends = np.cumsum([1, *self.widths]).tolist()
        return [slice(start, end) for start, end in pairwise(ends)]

    @cached_property
    def released(self) -> Table:
        """The counts as an array."""
        return np.array(self.counts, dtype=np.float64)

    @property
    def precision(self) -> float:
        """How much less noise the class counts of a cell have once its tables add up: a table of k cells counts the
        same patients again, with k times the noise."""
        return 1 + sum(1 / width for width in self.widths)

    @cached_property
    def measured(self) -> Table:
        """The released counts with tables that add up: without bias, and below zero where noise is."""
        return self._add_up(self.released) if self.variance else self.released

    def _add_up(self, released: Table) -> Table:
        adjusted = released.copy()
        sums = [released[:, block].sum(axis=1) for block in self.blocks]
        for total, width in zip(sums, self.widths, strict=True):
            adjusted[:, 0] += total / width
        adjusted[:, 0] /= self.precision
        for total, width, block in zip(sums, self.widths, self.blocks, strict=True):
            adjusted[:, block] += ((adjusted[:, 0] - total) / width)[:, None, :]
        return adjusted

    @property
    def estimated(self) -> Table:
        """The counts to predict by, [cell, row, class]: those measured, drawn towards the levels above, none below
        zero. Without noise there are as many patients of each class, and of each value, as were counted."""
        return self._drawn.counts

    @cached_property
    def _drawn(self) -> Drawn:
        above: Table = self.measured.sum(axis=0, keepdims=True)
        variance = float(len(self.counts)) * self.variance
        if self.everybody:
            cells = len(self.counts)  # of which the sum has as many times the noise
            asked = self._add_up(np.array([self.everybody], dtype=np.float64))
            above = (cells * asked + above) / (cells + 1)
            variance = cells * self.variance / (cells + 1)
        above = np.maximum(above, 0)
        drawn = Drawn(above, above + variance, np.zeros_like(above))
        for level in range(1, len(self.by) + 1):
            cells, rest = math.prod(self.sizes[:level]), math.prod(self.sizes[level:])
            own = self.measured.reshape(cells, rest, *self.measured.shape[1:]).sum(axis=1)
            drawn = self._draw(own, drawn.repeat(self.sizes[level - 1]), rest * self.variance)
        return drawn if self.variance else Drawn(self._rake(drawn.counts), drawn.own, drawn.shared)

    def find_deviations(self, chosen: Chosen) -> Table:
        """Standard deviations of a population's estimates, as `tabulate` has them: noise, chance, and how far cells may
        be from what their parents let expect. What cells take from one parent errs together."""
        own = self.tabulate(chosen, self._drawn.own)
        shared = self.tabulate(chosen, self._drawn.shared)
        return np.sqrt(own + shared**2)

    def _rake(self, drawn: Table) -> Table:
        """Tables with the associations of these and the margins that were counted (Deming and Stephan, Ann. Math. Stat.
        11, 1940)."""
        raked = drawn.copy()
        raked[:, 0] = self.measured[:, 0]
        for block in self.blocks:
            values = self.measured[:, block].sum(axis=2, keepdims=True)
            for _ in range(ROUNDS):
                raked[:, block] *= _divide(raked[:, :1], raked[:, block].sum(axis=1, keepdims=True))
                raked[:, block] *= _divide(values, raked[:, block].sum(axis=2, keepdims=True))
        return raked

    def _draw(self, measured: Table, parents: Drawn, variance: float) -> Drawn:
        """Tables of sibling cells, each drawn towards what its parent lets expect of so many patients. A block of k
        counts that differs from that by D on average, beside noise and sampling N, is believed by 1 - N / D."""
        patients = np.maximum(measured[:, 0].sum(axis=1), 0)
        everyone = np.maximum(parents.counts[:, 0].sum(axis=1), 1e-9)
        drawn, own, shared = (np.empty_like(measured) for _ in range(3))
        ratio = (patients / everyone)[:, None, None]
        for block in (slice(0, 1), *self.blocks):
            expected = parents.counts[:, block] * ratio
            size = expected[0].size
            noise = variance / (1 if block.start else self.precision)
            doubt = size * noise + expected.sum(axis=(1, 2))
            apart = ((measured[:, block] - expected) ** 2).sum(axis=(1, 2))
            spread = max(float((apart - doubt).sum()), 0.0) / max(float((patients**2).sum()), 1.0)
            trust = (spread * patients**2 / np.maximum(spread * patients**2 + doubt, 1e-9))[:, None, None]
            drawn[:, block] = expected + trust * (measured[:, block] - expected)
            own[:, block], shared[:, block] = noise + np.maximum(expected, 0), 0.0
            if block.start == 0:  # of a predictor, what patients of each class have in the parent cell
                classes = np.maximum(drawn[:, :1], 0)
                ratio = _divide(classes, parents.counts[:, :1])
                continue  # class counts have little noise: they are held to be no better than they were measured
            # What cells differ by is estimated from few of them: a standard error more, as far as that is plausible.
            likely = np.maximum(expected, 0)
            error = math.sqrt(2 * float((doubt**2).sum()) / size) / max(float((patients**2).sum()), 1.0)
            total = np.maximum(likely.sum(axis=(1, 2)), 1e-9)
            unlike = ((spread + error) * patients**2 / total)[:, None, None] * likely
            unlike = np.minimum(unlike, (PLAUSIBLE * likely) ** 2)
            own[:, block] = trust**2 * (noise + likely) + (1 - trust) ** 2 * unlike
            deviations = np.sqrt(parents.own[:, block] + parents.shared[:, block] ** 2)
            shared[:, block] = (1 - trust) * ratio * deviations
        drawn = np.maximum(drawn, 0)
        # Tables count the patients of the cell, whom the class counts say best.
        for block in self.blocks:
            sums = drawn[:, block].sum(axis=1, keepdims=True)
            drawn[:, block] *= _divide(drawn[:, :1], sums)
        return Drawn(drawn, own, shared)

    def find_cells(self, chosen: Chosen) -> NDArray[np.intp]:
        """The numbers of the cells that a population takes in."""
        sides = [range(size) if one is None else one for size, one in zip(self.sizes, chosen, strict=True)]
        grid = np.arange(math.prod(self.sizes)).reshape(self.sizes or [1])
        return np.sort(grid[np.ix_(*sides)].reshape(-1)) if sides else grid

    def count(self, chosen: Chosen) -> tuple[float, float]:
        """How many patients a population has, and the standard deviation that noise adds to that."""
        cells = self.find_cells(chosen)
        noise = math.sqrt(len(cells) * len(self.classes) * self.variance / self.precision)
        return float(self.measured[cells, 0].sum()), noise

    def count_revealed(self) -> int:
        """How many patients at least stand in a count beside which all other classes are empty."""
        alone = self.released.sum(axis=2) * ((self.released > 0).sum(axis=2) == 1)
        return int(max((alone[:, block].sum() for block in (slice(0, 1), *self.blocks)), default=0))

    def find_spanned(self, chosen: Chosen) -> list[int]:
        """The attributes of the grid of which a population has several cells, so that they tell its patients apart."""
        return [
            place
            for place, one in enumerate(chosen)
            if self.sizes[place] > 1 and (one is None or len(one) > 1)
        ]

    def tabulate(self, chosen: Chosen, counts: Table) -> Table:
        """One table of a population, [row, class]: class counts, the cells of each attribute of the grid that tells its
        patients apart, and those of each predictor."""
        cells = self.find_cells(chosen)
        own = counts[cells]
        rows = [own[:, 0].sum(axis=0, keepdims=True)]
        for place in self.find_spanned(chosen):
            inner = math.prod(self.sizes[place + 1 :])
            at = cells // inner % self.sizes[place]
            table = np.zeros((self.sizes[place], len(self.classes)))
            np.add.at(table, at, own[:, 0])
            rows.append(table)
        rows.append(own[:, 1:].sum(axis=0))
        return np.concatenate(rows)

    def find_hidden(self, chosen: Chosen) -> NDArray[np.bool_]:
        """The rows of a population's table whose values no more patients of all have than noise may add."""
        everyone: Chosen = (None,) * len(self.by)
        hidden = [np.zeros(1, dtype=np.bool_)]
        for place in self.find_spanned(chosen):
            slices = (
                self.count((*everyone[:place], (cell,), *everyone[place + 1 :]))
                for cell in range(self.sizes[place])
            )
            hidden.append(np.array([patients <= WITHIN_95 * noise for patients, noise in slices]))
        table, times = self.measured[:, 1:].sum(axis=0), len(self.counts)
        if self.everybody:
            table, times = self._add_up(np.array([self.everybody], dtype=np.float64))[0, 1:], 1
        noise = math.sqrt(times * self.variance * len(self.classes))
        hidden.append(table.sum(axis=1) <= WITHIN_95 * noise)
        return np.concatenate(hidden) if self.variance else np.zeros(sum(map(len, hidden)), dtype=np.bool_)


def _divide(one: Table, other: Table) -> Table:
    """Quotients, none where there is nothing to divide by."""
    return np.divide(one, other, out=np.zeros_like(other), where=other > 0)


def make_tree(sizes: Sequence[int], places: Sequence[int]) -> tuple[list[Split], list[int]]:
    """The partial tree whose leaves are the cells of a grid, in order; `places` are the attributes of the question that
    the grid is made of, with so many cells each."""
    splits, leaves, born = [], [0], 1
    for size, place in zip(sizes, places, strict=True):
        below = []
        for node in leaves:
            children = list(range(born, born + size))
            born += size
            splits.append(Split(node, place, children))
            below += children
        leaves = below
    return splits, leaves


def is_cube(question: AskCounts, grid: Sequence[str], *, whole: bool = False) -> bool:
    """Whether a question asks for all cells of this grid, and for nothing between or below them; for the `whole`, of
    all cells together."""
    names = [one.name for one in question.attributes]
    if not set(grid) <= set(names) or question.part is not None or question.sample is not None:
        return False
    places = [names.index(name) for name in grid]
    tree, leaves = make_tree([question.attributes[place].size for place in places], places)
    others = [place for place in range(len(names)) if place not in places]
    if whole:
        tree, leaves = [], [0]
    return (question.tree, question.nodes, question.counting, question.totals) == (tree, leaves, others, True)


def round_rows(table: Table) -> NDArray[np.int64]:
    """A table in whole patients, each row with as many as it has."""
    ends = np.rint(np.cumsum(table, axis=1)).astype(np.int64)
    return np.diff(ends, axis=1, prepend=0)


def list_cells(sizes: Sequence[int]) -> list[Chosen]:
    """Every cell of a grid as a population of its own."""
    return [tuple((cell,) for cell in cells) for cells in product(*map(range, sizes))]
