"""The interface that a sequence model offers to be an expert, and the usual one: a small LSTM.

Another model is one file and one line in `expert_task.NETWORKS`: what it learned is arrays by name, so that it can be
kept, sent and put into a model file as plain numbers.

The small LSTM has one layer and a linear output; forward, backward and Adam are one compiled loop. A patient has a
handful of windows and the network a few units: calls, not arithmetic, are what a general library spends its time on.
Here an epoch is one pass over the windows without leaving the kernel, and inputs that are zero (nothing measured: the
middle of the range) are skipped. All parameters are one vector: input weights [inputs, 4 units], recurrent weights
[units, 4 units], biases [4 units], output weights [units], output bias; gates in the order input, forget, candidate,
output. docs/methods.md, section 8.1.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.errors import MessageError, nearest
from concilium.experts.expert_task import NETWORKS, NetworkSettings
from concilium.experts.patient_windows import Windows
from concilium.registry import load

Reals = NDArray[np.float64]
Inputs = NDArray[np.float32]
Lengths = NDArray[np.int64]

DECAY_OF_MEAN, DECAY_OF_SQUARE, TINY = 0.9, 0.999, 1e-8


@compiled()
def _squash(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@compiled()
def _find_places(inputs: int, units: int) -> tuple[int, int, int, int]:
    """Where the recurrent weights, the biases, the output weights and the output bias begin."""
    recurrent = inputs * 4 * units
    biases = recurrent + units * 4 * units
    out = biases + 4 * units
    return recurrent, biases, out, out + units


@compiled()
def _run_window(
    weights: Reals,
    window: Inputs,
    length: int,
    units: int,
    gates: Reals,
    cells: Reals,
    hidden: Reals,
    outputs: Reals,
) -> None:
    """One window forward: gates [step, 4 units] after their functions, cells and hidden [step + 1, units], outputs."""
    inputs = window.shape[1]
    recurrent, biases, out, bias = _find_places(inputs, units)
    wide = 4 * units
    cells[0, :] = 0.0
    hidden[0, :] = 0.0
    for step in range(length):
        gate = gates[step]
        for j in range(wide):
            gate[j] = weights[biases + j]
        for d in range(inputs):
            x = float(window[step, d])
            if x != 0.0:
                row = d * wide
                for j in range(wide):
                    gate[j] += x * weights[row + j]
        for k in range(units):
            h = hidden[step, k]
            row = recurrent + k * wide
            for j in range(wide):
                gate[j] += h * weights[row + j]
        total = weights[bias]
        for k in range(units):
            i, f = _squash(gate[k]), _squash(gate[units + k])
            g, o = math.tanh(gate[2 * units + k]), _squash(gate[3 * units + k])
            gate[k], gate[units + k], gate[2 * units + k], gate[3 * units + k] = i, f, g, o
            cell = f * cells[step, k] + i * g
            cells[step + 1, k] = cell
            hidden[step + 1, k] = o * math.tanh(cell)
            total += weights[out + k] * hidden[step + 1, k]
        outputs[step] = total


@compiled()
def _turn_back(
    weights: Reals,
    window: Inputs,
    length: int,
    units: int,
    gates: Reals,
    cells: Reals,
    hidden: Reals,
    slopes: Reals,
    gradient: Reals,
) -> None:
    """One window backward: adds to the gradient what the slopes of the loss by each output make of it."""
    inputs = window.shape[1]
    recurrent, biases, out, bias = _find_places(inputs, units)
    wide = 4 * units
    dh, dc, dz = np.zeros(units), np.zeros(units), np.zeros(wide)
    for back in range(length):
        step = length - 1 - back
        slope = slopes[step]
        gate = gates[step]
        gradient[bias] += slope
        for k in range(units):
            gradient[out + k] += slope * hidden[step + 1, k]
            i, f, g, o = gate[k], gate[units + k], gate[2 * units + k], gate[3 * units + k]
            bent = math.tanh(cells[step + 1, k])
            down = dh[k] + slope * weights[out + k]
            through = dc[k] + down * o * (1.0 - bent * bent)
            dz[k] = through * g * i * (1.0 - i)
            dz[units + k] = through * cells[step, k] * f * (1.0 - f)
            dz[2 * units + k] = through * i * (1.0 - g * g)
            dz[3 * units + k] = down * bent * o * (1.0 - o)
            dc[k] = through * f
        for j in range(wide):
            gradient[biases + j] += dz[j]
        for d in range(inputs):
            x = float(window[step, d])
            if x != 0.0:
                row = d * wide
                for j in range(wide):
                    gradient[row + j] += x * dz[j]
        for k in range(units):
            h = hidden[step, k]
            row = recurrent + k * wide
            total = 0.0
            for j in range(wide):
                gradient[row + j] += h * dz[j]
                total += weights[row + j] * dz[j]
            dh[k] = total


@compiled()
def _find_gradient(
    weights: Reals, windows: Inputs, targets: Reals, lengths: Lengths, units: int, gradient: Reals
) -> float:
    """The mean squared error over all steps whose target is known, and its gradient."""
    longest = windows.shape[1]
    gates, slopes = np.empty((longest, 4 * units)), np.empty(longest)
    cells, hidden = np.empty((longest + 1, units)), np.empty((longest + 1, units))
    outputs = np.empty(longest)
    known = 0
    for w in range(len(lengths)):
        for step in range(lengths[w]):
            known += not math.isnan(targets[w, step])
    gradient[:] = 0.0
    if known == 0:
        return 0.0
    error = 0.0
    for w in range(len(lengths)):
        length = lengths[w]
        _run_window(weights, windows[w], length, units, gates, cells, hidden, outputs)
        for step in range(length):
            slopes[step] = 0.0
            if not math.isnan(targets[w, step]):
                miss = outputs[step] - targets[w, step]
                error += miss * miss
                slopes[step] = 2.0 * miss / known
        _turn_back(weights, windows[w], length, units, gates, cells, hidden, slopes, gradient)
    return error / known


@compiled()
def _fit(
    weights: Reals,
    windows: Inputs,
    targets: Reals,
    lengths: Lengths,
    units: int,
    batch: int,
    epochs: int,
    rate: float,
    clip: float,
    shrink: float,
    patience: int,
    least_gain: float,
) -> int:
    """Adam on the mean squared error, in place; how many epochs it took.

    Batches of windows come in order, gradients are clipped to a norm, and `shrink` pulls weights towards zero. It ends
    when the loss has not fallen by a share of `least_gain` for `patience` epochs.
    """
    size = len(weights)
    gradient, mean, square = np.zeros(size), np.zeros(size), np.zeros(size)
    best, waited, turn = np.inf, 0, 0
    for epoch in range(epochs):
        loss, parts = 0.0, 0
        for first in range(0, len(lengths), batch):
            last = min(first + batch, len(lengths))
            error = _find_gradient(
                weights, windows[first:last], targets[first:last], lengths[first:last], units, gradient
            )
            loss += error * (last - first)
            parts += last - first
            norm = 0.0
            for j in range(size):
                norm += gradient[j] * gradient[j]
            norm = math.sqrt(norm)
            factor = clip / norm if norm > clip else 1.0
            turn += 1
            flat, steep = 1.0 - DECAY_OF_MEAN**turn, 1.0 - DECAY_OF_SQUARE**turn
            for j in range(size):
                slope = gradient[j] * factor
                mean[j] = DECAY_OF_MEAN * mean[j] + (1.0 - DECAY_OF_MEAN) * slope
                square[j] = DECAY_OF_SQUARE * square[j] + (1.0 - DECAY_OF_SQUARE) * slope * slope
                weights[j] -= rate * (
                    mean[j] / flat / (math.sqrt(square[j] / steep) + TINY) + shrink * weights[j]
                )
        loss /= max(parts, 1)
        if loss < best * (1.0 - least_gain):
            best, waited = loss, 0
        else:
            waited += 1
            if waited >= patience:
                return epoch + 1
    return epochs


WINDOWS_AT_ONCE = 4096


def _run_all(weights: Reals, windows: Inputs, lengths: Lengths, units: int) -> Inputs:
    """The outputs of several networks [network, window, step] on the same windows, in single precision.

    All windows go through a step together: that is a few products of matrices, many times faster than a window after
    the other. Zero beyond each window.
    """
    inputs, wide = windows.shape[2], 4 * units
    recurrent, biases, out, _ = _find_places(inputs, units)
    outputs = np.empty((len(weights), *windows.shape[:2]), dtype=np.float32)
    for place, own in enumerate(weights.astype(np.float32)):
        entering = own[:recurrent].reshape(inputs, wide)
        coupling = own[recurrent:biases].reshape(units, wide)
        for first in range(0, len(windows), WINDOWS_AT_ONCE):
            part = slice(first, first + WINDOWS_AT_ONCE)
            seen = windows[part]
            driven = (seen.reshape(-1, inputs) @ entering + own[biases:out]).reshape(*seen.shape[:2], wide)
            cells = np.zeros((len(seen), units), dtype=np.float32)
            hidden = np.zeros_like(cells)
            for step in range(seen.shape[1]):
                gates = driven[:, step] + hidden @ coupling
                candidate = np.tanh(gates[:, 2 * units : 3 * units])
                # The logistic function by tanh, which is vectorised and cannot overflow.
                opened = 0.5 + 0.5 * np.tanh(0.5 * gates)
                cells = opened[:, units : 2 * units] * cells + opened[:, :units] * candidate
                hidden = opened[:, 3 * units :] * np.tanh(cells)
                outputs[place, part, step] = hidden @ own[out:-1] + own[-1]
    outputs[:, np.arange(windows.shape[1]) >= lengths[:, None]] = 0.0
    return outputs


Weights: TypeAlias = Mapping[str, NDArray[np.float64]]


class Network(ABC):
    """A sequence model of so many inputs and one output at each step. `compares`: it is trained `against` public
    stays. `shares_a_process`: several can be trained in threads of one process, each as if it were alone."""

    compares: ClassVar[bool] = False
    shares_a_process: ClassVar[bool] = False

    def __init__(self, settings: NetworkSettings, inputs: int) -> None:
        self.settings, self.inputs = settings, inputs

    def against(self, public: Windows, bound: int) -> None:
        """Look at the public stays, before training; answers are held to [0, bound]."""
        del public, bound

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
    return whole.astype(np.float64) / 2.0**52 - 1.0


# Of one step of one window, for each weight, forward and backward.
SECONDS_PER_WEIGHT = 2e-9


class SmallLstm(Network):
    """`units` wide, one layer, without dropout: the settings for those mean nothing to it."""

    shares_a_process = True

    @property
    def size(self) -> int:
        """How many weights it has."""
        units = self.settings.units
        return 4 * units * (self.inputs + units + 1) + units + 1

    def begin(self) -> NDArray[np.float64]:
        """The weights before training: small, from the public seed; forget gates open."""
        units, inputs = self.settings.units, self.inputs
        weights = _draw_public(self.settings.seed, f"lstm {inputs} {units}", self.size)
        recurrent, biases, out, _ = _find_places(inputs, units)
        weights[:recurrent] /= math.sqrt(inputs + units)
        weights[recurrent:biases] /= math.sqrt(units)
        weights[biases:out] = 0.0
        weights[biases + units : biases + 2 * units] = 1.0
        weights[out:] /= math.sqrt(units)
        weights[-1] = 0.0
        return weights

    def train(self, windows: Windows) -> Weights:
        own, weights = self.settings, self.begin()
        _fit(
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
        return _run_all(weights, windows.inputs, windows.lengths, self.settings.units).astype(np.float64)

    def estimate_seconds(self, windows: int, steps: int) -> float:
        return SECONDS_PER_WEIGHT * self.size * windows * steps * self.settings.epochs
