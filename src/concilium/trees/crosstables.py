"""Stage 2 (docs/methods.md, 1.3): the crosstables of all attributes for every asked node of a level, in one question.

The question carries the partial tree, so a site needs no memory of earlier ones. An answer is one array
[node, cell, class]: cell 0 holds the node's class counts, then come the cells of each attribute (the ULCMs side by
side). Under `exact` the house sees it per site; the sum over sites is the UGCM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.federation.attributes import Attribute
from concilium.federation.cohort import Cohort
from concilium.federation.held_out import Part
from concilium.federation.questions import PLAIN
from concilium.federation.work import Workload, estimate_columns
from concilium.trees.conditional import Conditional
from concilium.trees.site_columns import find_columns
from concilium.trees.site_tables import SiteTables
from concilium.trees.splits import Split, cells_of_node, check_classes, check_tables, estimate_tables


class AskCrosstables(Conditional, frozen=True, kw_only=True):
    """How many patients have each value of each attribute, by class, in each of these nodes?

    Under `exact` values and classes are hidden, and each site is told its own; under masks all are told one common
    schema (conditional.py). `counted`: these attributes only; the others are there for the tree to ask about.
    """

    kind: ClassVar[str] = "tree.crosstables"
    releases: ClassVar[frozenset[str]] = PLAIN
    merges: ClassVar[bool] = True

    classes: Attribute
    tree: list[Split]
    nodes: list[int]
    counted: list[int] | None = None
    part: Part | None = None

    @property
    def counting(self) -> list[int]:
        """Which attributes are counted."""
        return list(range(len(self.attributes))) if self.counted is None else self.counted

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.nodes), cells_of_node(self.attributes, self.counting), self.classes.size

    @property
    def named(self) -> Sequence[Attribute]:
        return (*self.attributes, self.classes)

    @property
    def division(self) -> Part | None:
        return self.part

    def check(self, release: str) -> None:
        self.check_told(release)
        check_classes(self.classes, self.target)
        if self.part is not None:
            self.part.check()
        check_tables(
            self.attributes,
            self.counting,
            self.classes.size,
            self.tree,
            self.nodes,
            alternatives=release == "exact",
        )

    def estimate(self, patients: int, columns: int) -> Workload:
        classes = estimate_columns((self.classes,), patients)
        return classes + estimate_tables(
            self.attributes, self.counting, self.classes.size, self.tree, self.nodes, patients
        )

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        columns = find_columns(cohort, self, template if self.classes.hidden else None)
        return SiteTables(
            cohort,
            columns,
            columns.find_target(self.classes, cohort.view),
            self.classes.size,
            self.tree,
            self.nodes,
            self.counting,
        ).count()
