"""The paper's network in torch (the extra `experts`): LSTM layers as wide and as deep as asked for, with dropout.

The same interface as the small one, at many times its price: for whoever wants the published architecture, two layers
of 200 units and dropout 0.2, or begins another sequence model from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MissingExtra
from concilium.experts.expert_task import NetworkSettings
from concilium.experts.network import Network, Weights
from concilium.experts.patient_windows import Windows

SECONDS_PER_WEIGHT = 4e-9


def load_torch() -> ModuleType:
    try:
        import torch
    except ImportError:
        raise MissingExtra("experts", "an expert that is a torch network") from None
    return torch


class TorchLstm(Network):
    """`layers` of `units`, `dropout` between them, minibatches of `batch` windows."""

    def __init__(self, settings: NetworkSettings, inputs: int) -> None:
        super().__init__(settings, inputs)
        self._torch = load_torch()

    def _build(self) -> tuple[Any, Any]:
        nn, own = self._torch.nn, self.settings
        dropout = own.dropout if own.layers > 1 else 0.0
        core = nn.LSTM(self.inputs, own.units, own.layers, batch_first=True, dropout=dropout)
        return core, nn.Linear(own.units, 1)

    def train(self, windows: Windows) -> Weights:
        torch, own = self._torch, self.settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(own.seed)
            core, out = self._build()
            inputs, targets = torch.from_numpy(windows.inputs), torch.from_numpy(windows.targets).float()
            known = ~torch.isnan(targets)
            targets = torch.nan_to_num(targets)
            parameters = [*core.parameters(), *out.parameters()]
            optimiser = torch.optim.Adam(parameters, lr=own.rate)
            best, waited = float("inf"), 0
            for _ in range(own.epochs):
                loss = 0.0
                for first in range(0, len(windows), own.batch):
                    part = slice(first, first + own.batch)
                    optimiser.zero_grad()
                    outputs = out(core(inputs[part])[0])[..., 0]
                    miss = (outputs - targets[part])[known[part]]
                    error = (miss**2).sum() / max(1, miss.numel())
                    error.backward()
                    torch.nn.utils.clip_grad_norm_(parameters, own.clip)
                    optimiser.step()
                    loss += float(error.detach()) * len(inputs[part])
                loss /= max(1, len(windows))
                best, waited = (loss, 0) if loss < best * (1 - own.least_gain) else (best, waited + 1)
                if waited >= own.patience:
                    break
        learned = {f"core.{name}": value for name, value in core.state_dict().items()}
        learned |= {f"out.{name}": value for name, value in out.state_dict().items()}
        return {name: value.numpy().astype(np.float64) for name, value in learned.items()}

    def run(self, learned: Sequence[Weights], windows: Windows) -> NDArray[np.float64]:
        torch = self._torch
        outputs = np.zeros((len(learned), *windows.inputs.shape[:2]))
        inputs = torch.from_numpy(windows.inputs)
        with torch.no_grad():
            core, out = self._build()
            core.eval()
            for place, weights in enumerate(learned):
                for part, name in ((core, "core."), (out, "out.")):
                    state = {
                        key.removeprefix(name): torch.from_numpy(np.array(value)).float()
                        for key, value in weights.items()
                        if key.startswith(name)
                    }
                    part.load_state_dict(state)
                outputs[place] = out(core(inputs)[0])[..., 0].numpy()
        return outputs

    def estimate_seconds(self, windows: int, steps: int) -> float:
        own = self.settings
        size = 4 * own.units * (self.inputs + own.units * (2 * own.layers - 1))
        return own.epochs * (SECONDS_PER_WEIGHT * size * windows * steps + 2e-4 * steps)
