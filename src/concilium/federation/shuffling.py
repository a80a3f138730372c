"""Patients in an order, or in parts, that follow from the question and not from the house's choice.

Every site works it out by itself from the row in its table, and a repeated question finds the same patients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mix(rows: NDArray[np.integer], key: int) -> NDArray[np.uint64]:
    """A number for each row that looks drawn at random: SplitMix64's output function on row and key, never a tie."""
    mixed: NDArray[np.uint64] = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
