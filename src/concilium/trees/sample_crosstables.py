"""The crosstables of one expert's sample (chapter 7 of the thesis), in two classes: not positive, and positive.

`exact` only. One patient more changes who else is drawn: the noise of a private count would not cover that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.federation.cohort import Cohort
from concilium.federation.questions import EXACT
from concilium.federation.work import Workload
from concilium.trees.conditional import Conditional
from concilium.trees.layout import Sample, positive_codes
from concilium.trees.site_columns import find_columns
from concilium.trees.site_tables import SiteTables
from concilium.trees.splits import Split, cells_of_node, check_tables, estimate_tables


class AskSampleCrosstables(Conditional, frozen=True, kw_only=True):
    """How many patients of a sample have each value of each attribute, by class, in each of these nodes?"""

    kind: ClassVar[str] = "tree.sample"
    releases: ClassVar[frozenset[str]] = EXACT

    sample: Sample
    tree: list[Split]
    nodes: list[int]

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"positive": self.sample.positive, "negatives": self.sample.negatives}

    @property
    def counting(self) -> list[int]:
        """Which attributes are counted: all."""
        return list(range(len(self.attributes)))

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.nodes), cells_of_node(self.attributes, self.counting), 2

    def check(self, release: str) -> None:
        self.sample.check()
        self.check_hidden()
        check_tables(self.attributes, self.counting, 2, self.tree, self.nodes)

    def estimate(self, patients: int, columns: int) -> Workload:
        tables = estimate_tables(self.attributes, self.counting, 2, self.tree, self.nodes, patients)
        return self.sample.estimate(patients) + tables

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        target = cohort.view.coded(self.target)
        return SiteTables(
            self.sample.choose(cohort, self.query, self.target),
            find_columns(cohort, self, template),
            (target.codes, positive_codes(target, self.sample.positive).astype(np.int32)),
            2,
            self.tree,
            self.nodes,
            self.counting,
        ).count()
