"""The crosstables of one expert's sample (chapter 7 of the thesis), in two classes: not positive, and positive.

`exact` or `masked`, never private: one patient more changes who else is drawn, which the noise of a count would not
cover. Under masks the house sees sums over all sites, also of sites that add nothing because they could not take part.
Two experts' sums differ by those hospitals alone whose samples differ: where all others lay out everybody they have for
every expert, the difference of two sums is one hospital's own (docs/voting-trees.md says so).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.federation.cohort import Cohort
from concilium.federation.questions import PLAIN
from concilium.federation.work import Workload
from concilium.trees.conditional import Conditional
from concilium.trees.layout import Sample, positive_codes
from concilium.trees.site_columns import find_columns
from concilium.trees.site_tables import SiteTables
from concilium.trees.splits import Split, cells_of_node, check_tables, estimate_tables


class AskSampleCrosstables(Conditional, frozen=True, kw_only=True):
    """How many patients of a sample have each value of each attribute, by class, in each of these nodes?"""

    kind: ClassVar[str] = "tree.sample"
    releases: ClassVar[frozenset[str]] = PLAIN

    sample: Sample
    tree: list[Split]
    nodes: list[int]

    @property
    def fixed(self) -> Mapping[str, Any]:
        return self.sample.fixed

    @property
    def counting(self) -> list[int]:
        """Which attributes are counted: all."""
        return list(range(len(self.attributes)))

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.nodes), cells_of_node(self.attributes, self.counting), 2

    def check(self, release: str) -> None:
        self.sample.check(release)
        self.check_told(release)
        check_tables(
            self.attributes, self.counting, 2, self.tree, self.nodes, alternatives=release == "exact"
        )

    def estimate(self, patients: int, columns: int) -> Workload:
        tables = estimate_tables(self.attributes, self.counting, 2, self.tree, self.nodes, patients)
        return self.sample.estimate(patients) + tables

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        target = cohort.view.coded(self.target)
        return SiteTables(
            self.sample.choose(cohort, self.query, self.target),
            find_columns(cohort, self, template if self.hides_values or template else None),
            (target.codes, positive_codes(target, self.sample.positive).astype(np.int32)),
            2,
            self.tree,
            self.nodes,
            self.counting,
        ).count()
