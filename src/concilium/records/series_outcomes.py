"""Where a stay is looked at to judge a prediction: at the first step with the outcome, or at the last without it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.records.series import Series


def find_windows(series: Series, outcome: str, steps: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the one window of each patient ends (0: it has none), and whether it has the outcome."""
    values, starts = series.stays[outcome], series.starts
    cells = np.arange(len(values)) - np.repeat(starts[:-1], np.diff(starts))
    owners = np.repeat(np.arange(len(series)), np.diff(starts))
    fits = cells >= steps - 1
    ends = np.zeros(len(series), dtype=np.int64)
    never, ever = np.flatnonzero(fits & (values == 0)), np.flatnonzero(fits & (values == 1))
    ends[owners[never]] = cells[never] + 1  # the last of each stays
    first = ever[::-1]
    ends[owners[first]] = cells[first] + 1  # the first of each stays
    positive = np.zeros(len(series), dtype=np.bool_)
    positive[owners[ever]] = True
    return ends, positive
