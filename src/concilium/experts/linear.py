"""An expert that says how much like its patient's severe hours an hour looks, against public stays: no network.

A network that has seen one stay knows how that patient changed, and hardly how patients differ. This expert has the
public stays beside its own: its direction is S^-1 (m - c), where m is the mean of the features of its patient's hours,
weighed by severity, and c and S are the mean and the covariance of the features of public hours. One of the features is
the time since admission, which the expert then leaves out: severe hours come late, and that alone is no reason. The
average over experts is the linear discriminant of severe against public hours at the same time since admission. Every
expert is scaled to the same spread over public hours, whatever its patient had. It depends on its own stay and on what
is public.

docs/methods.md, section 8.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.experts.network import Network, Weights
from concilium.experts.patient_windows import SPREAD, Windows

RIDGE, LEAST_VARIANCE = 0.03, 1e-5
"""Of the covariance: this share of each variance is added to it, and at least so much."""


def _read_windows(windows: Windows) -> NDArray[np.float64]:
    """[window, step, feature]: the latest value of each variable, and mean, highest and lowest in the window so far."""
    seen = windows.inputs.astype(np.float64)
    counts = np.arange(1, seen.shape[1] + 1)[:, None]
    return np.concatenate(
        [
            seen,
            np.cumsum(seen, axis=1) / counts,
            np.maximum.accumulate(seen, axis=1),
            np.minimum.accumulate(seen, axis=1),
        ],
        axis=2,
    )


def _add_hours(windows: Windows) -> NDArray[np.float64]:
    """The same with the time since admission, as a logarithm, as a last feature."""
    assert windows.firsts is not None
    steps = windows.firsts[:, None] + np.arange(windows.inputs.shape[1])
    return np.concatenate([_read_windows(windows), np.log1p(steps)[:, :, None]], axis=2)


def _find_counted(windows: Windows) -> NDArray[np.bool_]:
    """The steps that count, [window, step]: each of a stay once, in the window that has more of the stay before it."""
    assert windows.firsts is not None
    steps = np.arange(windows.inputs.shape[1])
    later = steps >= len(steps) - max(1, len(steps) // 2)
    counted: NDArray[np.bool_] = (steps < windows.lengths[:, None]) & (later | (windows.firsts == 0)[:, None])
    return counted


class Linear(Network):
    """An expert that is trained `against` public stays."""

    compares = True

    def against(self, public: Windows, bound: int) -> None:
        features = _add_hours(public)[_find_counted(public)]
        self._bound, self._center = bound, features.mean(axis=0)
        off = features - self._center
        self._covariance = off.T @ off / len(off)
        held = self._covariance + np.diag(RIDGE * np.diag(self._covariance) + LEAST_VARIANCE)
        self._inverse = np.linalg.inv(held)

    def train(self, windows: Windows) -> Weights:
        severity = np.where(_find_counted(windows), np.nan_to_num(windows.targets), 0.0)
        weighed = np.einsum("ws,wsf->f", severity, _add_hours(windows))
        # What the time since admission explains is left out, by leaving its own weight out.
        direction = (self._inverse @ (weighed / max(float(severity.sum()), 1e-9) - self._center))[:-1]
        spread = float(np.sqrt(direction @ self._covariance[:-1, :-1] @ direction))
        direction *= self._bound * float(SPREAD) / max(spread, 1e-9)
        return {"direction": direction, "offset": np.array([self._bound / 2 - direction @ self._center[:-1]])}

    def run(self, learned: Sequence[Weights], windows: Windows) -> NDArray[np.float64]:
        directions = np.array([one["direction"] for one in learned])
        offsets = np.array([one["offset"][0] for one in learned])
        return np.moveaxis(_read_windows(windows) @ directions.T + offsets, 2, 0)

    def estimate_seconds(self, windows: int, steps: int) -> float:
        return 1e-6 * windows * steps + 1e-8 * (4 * self.inputs) ** 2
