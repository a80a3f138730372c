"""What any mechanism for codes is: how it draws, and the exact probabilities of what it draws.

docs/methods.md, section 7.7.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class CodeMechanism(Protocol):
    """Codes 0 ... size - 1 in; out comes a hidden output, or the code itself."""

    @property
    def size(self) -> int:
        """How many codes there are; a larger output is the blot of a suppressed code."""

    @property
    def hidden_outputs(self) -> NDArray[np.int32]:
        """The outputs that do not tell their input; any other is its input."""

    @property
    def places(self) -> NDArray[np.int32]:
        """Negative for codes in the clear; all others leave as they are by chance at most."""

    def randomize(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Each code by itself."""

    def find_hidden(self, inputs: NDArray[np.intp]) -> NDArray[np.float64]:
        """P(y | x) for each input x (rows) and each hidden output y."""

    def find_shown(self, inputs: NDArray[np.intp]) -> NDArray[np.float64]:
        """The probability that each input leaves as it is, in the clear."""


def tabulate_channel(
    mechanism: CodeMechanism, inputs: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The possible outputs of these inputs, and P(output | input) in a row for each input."""
    hidden = mechanism.hidden_outputs.astype(np.intp)
    clear = np.flatnonzero(mechanism.places[inputs] < 0)
    matrix = np.zeros((len(inputs), len(hidden) + len(clear)))
    matrix[:, : len(hidden)] = mechanism.find_hidden(inputs)
    matrix[clear, len(hidden) + np.arange(len(clear))] = mechanism.find_shown(inputs)[clear]
    return np.concatenate([hidden, inputs[clear]]), matrix
