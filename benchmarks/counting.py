"""Counting one level at a site: the product's path (routing, keys, kernel, table) against the bare kernel.

python benchmarks/counting.py [patients]      default 1,000,000 patients x 262 attributes x 16 nodes
"""

from __future__ import annotations

import statistics
import sys
import time

import numba
import numpy as np

import concilium as cc
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.counts import AskCounts
from concilium.protocol.schema import name_classes
from concilium.protocol.splits import Split
from concilium.records.columns import Coded
from concilium.records.table import Records

ATTRIBUTES, NODES, REPEATS = 262, 16, 7


@numba.njit(nogil=True)
def bare(codes, keys, width, table):
    """The bare kernel: nothing but the increments, one column after the other."""
    for column in range(codes.shape[0]):
        for row in range(codes.shape[1]):
            table[column, codes[column, row] * width + keys[row]] += 1


def main(patients: int) -> None:
    draw = np.random.default_rng(1)
    codes = draw.integers(1, 5, size=(ATTRIBUTES, patients), dtype=np.uint8)
    outcome = draw.integers(1, 3, size=patients, dtype=np.uint8)
    columns = {f"x{i:03d}": Coded(codes[i], ("a", "b", "c", "d")) for i in range(ATTRIBUTES)}
    records = Records({**columns, "y": Coded(outcome, ("no", "yes"))})
    cohort = View(records, cc.Policy()).select("", "y")
    question = AskCounts(
        query="",
        target="y",
        classes=name_classes("y", ("no", "yes")),
        attributes=tuple(
            Attribute(name, (), ("a", "b", "c", "d"), missing=False, other=False) for name in columns
        ),
        tree=[
            Split(0, 0, [1, 2, 3, 4]),
            *(Split(i, 1, [4 * i + j for j in range(1, 5)]) for i in range(1, 5)),
        ],
        nodes=list(range(5, 21)),
    )
    keys = ((codes[0] - 1) * 8 + (codes[1] - 1) * 2 + (outcome - 1)).astype(np.uint8)
    table = np.zeros((ATTRIBUTES, 5 * NODES * 2), dtype=np.uint32)
    bare(codes[:, :10], keys[:10], NODES * 2, table)
    question.compute(cohort)

    def timed(work) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    ours, peer = [], []
    for _ in range(REPEATS):
        table[:] = 0
        peer.append(timed(lambda: bare(codes, keys, NODES * 2, table)))
        ours.append(timed(lambda: question.compute(cohort)))
    counts = question.compute(cohort)
    expected = table.reshape(ATTRIBUTES, 5, NODES, 2)[:, 1:].transpose(2, 0, 1, 3).reshape(NODES, -1, 2)
    assert (counts[:, 1:] == expected).all()
    print(f"one level, {patients:,} patients x {ATTRIBUTES} attributes x {NODES} nodes, median of {REPEATS}")
    print(f"  bare numba kernel   {statistics.median(peer):7.3f} s")
    print(f"  AskCounts           {statistics.median(ours):7.3f} s")
    print(
        f"  ratio               {statistics.median(ours) / statistics.median(peer):7.2f}   (target: at most 1.3)"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
