"""Made-up coded histories for the part of the demo that shares them: no such patients may be passed on freely by pip,
so these are drawn, the same ones every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

COMMON = {
    "401.9": 9,
    "250.00": 6,
    "272.4": 6,
    "414.01": 5,
    "428.0": 4,
    "427.31": 4,
    "496": 3,
    "585.9": 3,
    "530.81": 3,
}
COMMON |= {
    "486": 2,
    "285.9": 2,
    "599.0": 2,
    "244.9": 2,
    "584.9": 2,
    "311": 2,
    "300.00": 2,
    "V58.61": 1,
    "715.90": 1,
}
# How many have a sensitive code, and how often which other comes with it.
SENSITIVE = {
    "303.90": (0.05, {"571.2": 0.5, "291.81": 0.3}),
    "305.00": (0.04, {}),
    "304.01": (0.02, {"070.54": 0.5}),
    "042": (0.01, {"136.3": 0.3, "112.0": 0.3}),
    "282.62": (0.003, {}),
}
ALONE = {"571.2": 0.004, "070.54": 0.006, "112.0": 0.004, "136.3": 0.001}


def make_histories(patients: int, seed: int) -> DataFrame:
    """One row for each code of a patient: what is common, and for some what is sensitive with what gives it away."""
    import pandas as pd

    dice = np.random.default_rng(seed)
    codes, weights = list(COMMON), np.array(list(COMMON.values()), dtype=float)
    rows = []
    for patient in range(1, patients + 1):
        own = dice.choice(codes, dice.integers(1, 6), p=weights / weights.sum(), replace=False).tolist()
        for sensitive, (share, company) in SENSITIVE.items():
            if dice.random() < share:
                own += [sensitive, *(code for code, often in company.items() if dice.random() < often)]
        own += [code for code, share in ALONE.items() if dice.random() < share]
        days = np.sort(dice.integers(0, 1000, len(own)))
        first = np.datetime64("2019-01-01")
        listed = dice.permutation(own).tolist()
        rows += [
            (f"p{patient:05}", str(first + int(day)), code) for day, code in zip(days, listed, strict=True)
        ]
    return pd.DataFrame(rows, columns=["patient", "date", "code"])
