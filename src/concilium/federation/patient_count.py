"""How many patients there are: for what must be known before anything is asked of each of them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort
from concilium.federation.questions import EXACT, LOCAL, Summed
from concilium.federation.work import CALL, Workload


class AskPatientCount(Summed, frozen=True, kw_only=True):
    """How many patients does this query select?

    Under `local` everybody: that many reports will be seen anyway, so that it costs nothing.
    """

    kind: ClassVar[str] = "patients.count"
    releases: ClassVar[frozenset[str]] = EXACT | LOCAL

    @property
    def reads(self) -> frozenset[str]:
        return frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        return (1,)

    def check(self, release: str) -> None:
        if release != "exact" and (self.query or self.target):
            raise MessageError("how many patients match a query is told under 'exact' only")

    def estimate(self, patients: int, columns: int) -> Workload:
        return Workload(CALL, 0)

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        return np.array([len(cohort)], dtype=np.uint32)
