"""Made-up stays on three wards, for the part of the demo that needs measurements over time: no such patients may be
passed on freely by pip, so these are drawn, the same ones every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

HOURS = (18, 36)
FALL_ILL = 0.2
# What is usual, between patients and from hour to hour, and what sepsis adds to it when it is there.
USUAL = {
    "HR": (82.0, 10.0, 5.0, 14.0),
    "Resp": (17.0, 2.5, 2.0, 4.0),
    "Temp": (36.9, 0.4, 0.25, 0.8),
    "MAP": (84.0, 9.0, 5.0, -10.0),
}
BEFORE = 8
"""Hours in which it comes."""


def make_ward(patients: int, seed: int) -> DataFrame:
    """The stays of one hospital, one row for each hour: who falls ill has a faster heart and breath, a fever, and a
    lower pressure in the hours before."""
    import pandas as pd

    dice = np.random.default_rng(seed)
    stays = []
    for patient in range(1, patients + 1):
        hours = np.arange(int(dice.integers(*HOURS)))
        ill = dice.random() < FALL_ILL
        onset = int(dice.integers(12, len(hours))) if ill and len(hours) > 12 else 10 * len(hours)
        course = np.clip((hours - onset + BEFORE) / BEFORE, 0, 1)
        stay = {"patient": f"p{patient:04}", "hour": hours}
        for name, (usual, between, within, change) in USUAL.items():
            values = usual + dice.normal(0, between) + dice.normal(0, within, len(hours)) + change * course
            values[dice.random(len(hours)) < 0.1] = np.nan
            stay[name] = np.round(values, 1)
        stay["sepsis"] = (hours >= onset).astype(int)
        stays.append(pd.DataFrame(stay))
    return pd.concat(stays, ignore_index=True)
