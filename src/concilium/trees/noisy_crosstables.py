"""Crosstables with noise: what a private tree, or a private one-level model, asks of its sites.

Who is protected: every patient of every site, from the house and up to t colluding sites, at rho = D^2 / (2 sigma^2)
(federation/releases/private.py). One patient is in at most one of the nodes, and adds 1 there to the class counts and
1 to one cell of each counted attribute, whoever the others are: D^2 is 1 + the number of counted attributes. So it
must stay: everything is said in the question and nothing comes from the records but the counts; every attribute has a
cell for every patient; whoever has a class that is not named is left out (a refusal would tell); and nothing is
remembered from one question to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.attributes import NOWHERE, Attribute, recode
from concilium.federation.cohort import Cohort
from concilium.federation.held_out import Part
from concilium.federation.histograms import count_cells
from concilium.federation.questions import Noisy
from concilium.federation.work import CALL, Workload, estimate_columns
from concilium.trees.routing import route
from concilium.trees.site_columns import fold
from concilium.trees.splits import (
    Split,
    cells_of_node,
    check_classes,
    check_tables,
    estimate_routing,
    find_branchings,
)

MOST_NOISY_CELLS = 1 << 18


class AskNoisyCrosstables(Noisy, frozen=True, kw_only=True):
    """How many patients are in each cell of the `counted` attributes, by class, in each of these nodes, with noise?"""

    kind: ClassVar[str] = "tree.noisy"

    attributes: tuple[Attribute, ...]
    classes: Attribute
    tree: list[Split]
    nodes: list[int]
    counted: list[int]
    part: Part | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.nodes), cells_of_node(self.attributes, self.counted), self.classes.size

    @property
    def sensitivity_squared(self) -> Fraction:
        return Fraction(1 + len(self.counted))

    @property
    def named(self) -> Sequence[Attribute]:
        return (*self.attributes, self.classes)

    @property
    def division(self) -> Part | None:
        return self.part

    def check(self, release: str) -> None:
        super().check(release)
        if self.classes.hidden or any(attribute.hidden for attribute in self.attributes):
            raise MessageError("a private question says all that it counts")
        if not all(attribute.covers_everyone for attribute in self.attributes):
            raise MessageError("every attribute of a private question has a cell for every patient")
        check_classes(self.classes, self.target)
        if self.part is not None:
            self.part.check()
        check_tables(
            self.attributes, self.counted, self.classes.size, self.tree, self.nodes, most=MOST_NOISY_CELLS
        )

    def estimate(self, patients: int, columns: int) -> Workload:
        counted = [self.attributes[index] for index in self.counted]
        tables = Workload(
            16 * len(counted) * patients + 2 * CALL * len(self.nodes) * len(counted), 32 * patients
        )
        classes = estimate_columns((self.classes,), patients, each_by_itself=True)
        return (
            estimate_columns(self.attributes, patients, each_by_itself=True)
            + classes
            + tables
            + estimate_routing(self.tree, patients)
            + Workload(16 * self.numbers, 32 * self.numbers)
        )

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        codes, cells = recode(self.classes, cohort.view)
        named = cohort.rows[cells[codes[cohort.rows]] != NOWHERE]
        columns = [recode(attribute, cohort.view) for attribute in self.attributes]
        folded = [fold(column, a.size) for column, a in zip(columns, self.attributes, strict=True)]
        resting = route(named, find_branchings(self.tree, folded))
        counts = np.zeros(self.shape, dtype=np.int64)
        for table, node in zip(counts, self.nodes, strict=True):
            here = resting.get(node, named[:0])
            classes = cells[codes[here]].astype(np.int64)
            table[0] = np.bincount(classes, minlength=self.classes.size)
            start = 1
            for index in self.counted:
                size = self.attributes[index].size
                end = start + size
                table[start:end] = count_cells(folded[index], size, here, classes, self.classes.size)
                start = end
        return counts
