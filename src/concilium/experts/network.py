"""The interface that a sequence model offers to be an expert, the list of such models, and the usual one: a small LSTM.

Another model is one file and one line: what it learned is arrays by name, so that it can be kept, sent and put into a
model file as plain numbers. docs/methods.md, section 8.1.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, nearest
from concilium.experts import lstm_kernel
from concilium.experts.expert_task import NetworkSettings
from concilium.experts.patient_windows import Windows
from concilium.registry import load

Weights: TypeAlias = Mapping[str, NDArray[np.float64]]

NETWORKS = {
    "lstm": "concilium.experts.network:SmallLstm",
    "torch-lstm": "concilium.experts.torch_lstm:TorchLstm",
}


class Network(ABC):
    """A sequence model of so many inputs and one output at each step, trained by mean squared error."""

    def __init__(self, settings: NetworkSettings, inputs: int) -> None:
        self.settings, self.inputs = settings, inputs

    @abstractmethod
    def train(self, windows: Windows) -> Weights:
        """What these windows teach; the same windows teach the same."""

    @abstractmethod
    def run(self, learned: Sequence[Weights], windows: Windows) -> NDArray[np.float64]:
        """What several trained networks say at each step, [network, window, step]; anything beyond a window."""

    @abstractmethod
    def estimate_seconds(self, windows: int, steps: int) -> float:
        """About how long training on so many windows takes on one core."""


def open_network(settings: NetworkSettings, inputs: int) -> Network:
    """The network of these settings; MessageError where there is none, MissingExtra where it is not installed."""
    if settings.kind not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise MessageError(
            f"there is no network {settings.kind[:60]!r}{nearest(settings.kind[:60], NETWORKS)}; known: {known}"
        )
    network: Network = load(NETWORKS[settings.kind])(settings, inputs)
    return network


def _draw_public(seed: int, purpose: str, count: int) -> NDArray[np.float64]:
    """So many numbers from -1 to 1, by SHAKE-256 of seed and purpose.

    They look random and are the same for everybody. Networks begin with weights from here, so that no patient's
    expert depends on who else is there, or on what was drawn before. It hides nothing: noise for privacy comes from
    privacy/randomness.py alone.
    """
    stream = hashlib.shake_256(f"concilium/public-chance@1 {seed} {purpose}".encode()).digest(8 * count)
    whole = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
    drawn: NDArray[np.float64] = whole.astype(np.float64) / 2.0**52 - 1.0
    return drawn


# Of one step of one window, for each weight, forward and backward.
SECONDS_PER_WEIGHT = 2e-9


class SmallLstm(Network):
    """`units` wide, one layer, without dropout: the settings for those mean nothing to it.

    lstm_kernel.py does the arithmetic.
    """

    @property
    def size(self) -> int:
        """How many weights it has."""
        units = self.settings.units
        return 4 * units * (self.inputs + units + 1) + units + 1

    def begin(self) -> NDArray[np.float64]:
        """The weights before training: small, from the public seed; forget gates open."""
        units, inputs = self.settings.units, self.inputs
        weights = _draw_public(self.settings.seed, f"lstm {inputs} {units}", self.size)
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
