"""Kernels that count clients by what their rules are, compiled by numba: one pass over all rules of all clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled


@compiled(boundscheck=False)
def mark_clients(
    rules: NDArray[np.bool_],
    starts: NDArray[np.int64],
    clients: NDArray[np.int32],
    marks: NDArray[np.bool_],
) -> None:
    """Mark whoever has one of the rules; rule r is held by `clients[starts[r]:starts[r + 1]]`."""
    for rule in range(len(rules)):
        if rules[rule]:
            for place in range(starts[rule], starts[rule + 1]):
                marks[clients[place]] = True


@compiled(boundscheck=False)
def list_entries(
    starts: NDArray[np.int64],
    members: NDArray[np.int32],
    entry_starts: NDArray[np.int64],
    entries: NDArray[np.int32],
    columns: int,
    most: int,
    begins: NDArray[np.int64],
    chosen: NDArray[np.int32],
) -> int:
    """The distinct columns of each client, the first `most` in the order of its rules, one client after the other.

    Rule r has the columns `entries[entry_starts[r]:entry_starts[r + 1]]`. Client c gets
    `chosen[begins[c]:begins[c + 1]]`; the return value is how many there are of all.
    """
    seen = np.full(columns, -1, dtype=np.int64)
    count = 0
    for client in range(len(starts) - 1):
        begins[client] = count
        own = 0
        for place in range(starts[client], starts[client + 1]):
            rule = members[place]
            for entry in range(entry_starts[rule], entry_starts[rule + 1]):
                column = entries[entry]
                if own < most and seen[column] != client:
                    seen[column] = client
                    chosen[count] = column
                    count += 1
                    own += 1
    begins[len(starts) - 1] = count
    return count
