"""The usual expert: an LSTM of one layer, a few units wide (lstm_kernel.py does the arithmetic)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.experts import lstm_kernel
from concilium.experts.network import Network, Weights
from concilium.experts.patient_windows import Windows
from concilium.experts.public_chance import draw_public

# Of one step of one window, for each weight, forward and backward.
SECONDS_PER_WEIGHT = 2e-9


class SmallLstm(Network):
    """`units` wide, one layer, without dropout: the settings for those mean nothing to it."""

    @property
    def size(self) -> int:
        """How many weights it has."""
        units = self.settings.units
        return 4 * units * (self.inputs + units + 1) + units + 1

    def begin(self) -> NDArray[np.float64]:
        """The weights before training: small, from the public seed; forget gates open."""
        units, inputs = self.settings.units, self.inputs
        weights = draw_public(self.settings.seed, f"lstm {inputs} {units}", self.size)
        recurrent, biases, out, _ = lstm_kernel.find_places(inputs, units)
        weights[:recurrent] /= math.sqrt(inputs + units)
        weights[recurrent:biases] /= math.sqrt(units)
        weights[biases:out] = 0.0
        weights[biases + units : biases + 2 * units] = 1.0
        weights[out:] /= math.sqrt(units)
        weights[-1] = 0.0
        return weights

    def train(self, windows: Windows) -> Weights:
        own, weights = self.settings, self.begin()
        lstm_kernel.fit(
            weights,
            windows.inputs,
            windows.targets,
            windows.lengths,
            own.units,
            own.batch,
            own.epochs,
            own.rate,
            own.clip,
            own.shrink,
            own.patience,
            own.least_gain,
        )
        return {"weights": weights}

    def run(self, learned: Sequence[Weights], windows: Windows) -> NDArray[np.float64]:
        weights = np.array([one["weights"] for one in learned]).reshape(-1, self.size)
        told: NDArray[np.float64] = lstm_kernel.run_all(
            weights, windows.inputs, windows.lengths, self.settings.units
        )
        return told

    def estimate_seconds(self, windows: int, steps: int) -> float:
        return SECONDS_PER_WEIGHT * self.size * windows * steps * self.settings.epochs
