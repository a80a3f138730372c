"""What a clinician would read off a window: the latest, mean, highest and lowest value of each variable at every step.

docs/methods.md, section 8.5.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from concilium.experts.expert_task import ExpertTask
from concilium.experts.patient_windows import LaidOut

FEATURES = ("latest", "mean", "highest", "lowest")


def name_features(task: ExpertTask) -> list[str]:
    """The features in the order of `find_features`, such as "HR highest"."""
    return [f"{name} {feature}" for feature in FEATURES for name in task.names]


def find_features(laid: LaidOut) -> NDArray[np.float64]:
    """[cell, feature], on the scale of the networks: over the last window of each step, or as much as there is."""
    steps, width = laid.task.steps, laid.values.shape[1]
    found = np.empty((len(laid.values), len(FEATURES) * width))
    for first, last in zip(laid.starts[:-1].tolist(), laid.starts[1:].tolist(), strict=True):
        stay = laid.values[first:last].astype(np.float64)
        padded = np.concatenate([np.repeat(stay[:1], steps - 1, axis=0), stay])
        seen = sliding_window_view(padded, steps, axis=0)
        sums = np.cumsum(stay, axis=0)
        sums[steps:] -= sums[:-steps].copy()
        counts = np.minimum(np.arange(1, len(stay) + 1), steps)[:, None]
        found[first:last] = np.concatenate([stay, sums / counts, seen.max(axis=2), seen.min(axis=2)], axis=1)
    return found


def in_units(features: NDArray[np.float64], task: ExpertTask) -> NDArray[np.float64]:
    """Features in the units of their variables."""
    middle = np.array([(one.low + one.high) / 2 for one in task.variables])
    half = np.array([(one.high - one.low) / 2 for one in task.variables])
    spread: NDArray[np.float64] = features * np.tile(2 * half, len(FEATURES)) + np.tile(middle, len(FEATURES))
    return spread
