"""A study of made-up patients that a site's process learns by itself while it reads its records: what a process loads
once, kernels above all, is there by then, and the first question is answered as quickly as those after it."""

from __future__ import annotations

import logging

from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.columns import Value
from concilium.records.table import Records
from concilium.trees.tree import DecisionTree

log = logging.getLogger(__name__)

# Fewer are counted without kernels (protocol/counting.py).
PATIENTS = 3000


def rehearse() -> None:
    """Nothing of it stays, and nothing leaves. A site that cannot is none the worse for it."""
    rows: list[dict[str, Value]] = [
        {"number": n % 7, "code": "xyz"[n % 3], "outcome": "np"[n % 2]} for n in range(PATIENTS)
    ]
    try:
        sites = [Site(name, Records.from_rows(rows)) for name in ("one", "other")]
        DecisionTree("outcome", max_depth=3, bins={"number": [0, 2, 4, 6]}).fit(House(sites))
    except Exception:
        log.exception("the rehearsal failed; studies will show why")
