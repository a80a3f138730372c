"""How severe a patient's state is at each step, from 0 to B, from the label that says when the outcome is there.

The paper's physicians gave grades; where there is a label of 0 and 1 alone, severity is B while it is there, rises to B
in a straight line over the `lead` before it first is, and is 0 elsewhere. It is unknown where the label is
missing, or neither 0 nor 1: such a step teaches nothing. docs/methods.md, section 8.1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.records.series import Series


def grade(series: Series, target: str, lead: int, bound: int) -> NDArray[np.float64]:
    """The severity of every cell of the stays, NaN where it is unknown."""
    label = series.stays[target]
    cells = np.arange(len(label)) - np.repeat(series.starts[:-1], series.lengths)
    first = np.repeat(find_onsets(series, target), series.lengths)
    rising = 1.0 - (first - cells) / max(lead, 1)
    severity = np.where(label == 1, 1.0, np.where(cells < first, np.clip(rising, 0.0, 1.0), 0.0))
    return np.where((label == 0) | (label == 1), bound * severity, np.nan)


def find_onsets(series: Series, target: str) -> NDArray[np.float64]:
    """The step at which each patient's label is first 1; infinite where it never is."""
    label, starts = series.stays[target], series.starts
    there = np.flatnonzero(label == 1)
    owners = np.searchsorted(starts, there, side="right") - 1
    onsets = np.full(len(series), np.inf)
    onsets[owners[::-1]] = (there - starts[owners])[::-1]  # the first of each stays
    return onsets
