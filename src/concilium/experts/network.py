"""The one small interface that a sequence model has to offer to be an expert, and the closed list of those there are.

Another model is one file and one line: what it learned is arrays by name, so that it can be kept, sent and put into a
model file as plain numbers. docs/methods.md, section 8.1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, nearest
from concilium.experts.expert_task import NetworkSettings
from concilium.experts.patient_windows import Windows
from concilium.registry import load

Weights: TypeAlias = Mapping[str, NDArray[np.float64]]

NETWORKS = {
    "lstm": "concilium.experts.lstm:SmallLstm",
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
