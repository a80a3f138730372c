"""An LSTM with one layer and a linear output, forward, backward and trained by Adam, in one compiled loop.

A patient has a handful of windows and the network a few units: calls, not arithmetic, are what a general library
spends its time on. Here an epoch is one pass over the windows without leaving the kernel, and inputs that are zero
(nothing measured: the middle of the range) are skipped. All parameters are one vector: input weights [inputs, 4 units],
recurrent weights [units, 4 units], biases [4 units], output weights [units], output bias; gates in the order input,
forget, candidate, output. docs/methods.md, section 8.1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled

Reals = NDArray[np.float64]
Inputs = NDArray[np.float32]
Lengths = NDArray[np.int64]

DECAY_OF_MEAN, DECAY_OF_SQUARE, TINY = 0.9, 0.999, 1e-8


@compiled()
def _squash(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@compiled()
def find_places(inputs: int, units: int) -> tuple[int, int, int, int]:
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
    recurrent, biases, out, bias = find_places(inputs, units)
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
    recurrent, biases, out, bias = find_places(inputs, units)
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
def fit(
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


@compiled()
def run_all(weights: Reals, windows: Inputs, lengths: Lengths, units: int) -> Reals:
    """The outputs of several networks [network, window, step] on the same windows; zero beyond each window."""
    longest = windows.shape[1]
    gates, outputs = np.empty((longest, 4 * units)), np.empty(longest)
    cells, hidden = np.empty((longest + 1, units)), np.empty((longest + 1, units))
    told = np.zeros((len(weights), len(lengths), longest))
    for network in range(len(weights)):
        for w in range(len(lengths)):
            _run_window(weights[network], windows[w], lengths[w], units, gates, cells, hidden, outputs)
            told[network, w, : lengths[w]] = outputs[: lengths[w]]
    return told
