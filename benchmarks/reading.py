"""A CSV file read, and from the file to a tree, beside pandas and LightGBM.

python benchmarks/reading.py [patients] [repeats]      default 200,000 patients x 262 attributes, 3 times

Three files: small whole numbers (0 to 11); two values and an outcome, for trees (as in benchmarks/tree.py); and a
hospital's mixture of measurements with decimals, codes of text, whole numbers with gaps and an id. Every measurement is
a process of its own that has imported its libraries (for trees from DataFrames: that has grown a small one); ours
import them when they are needed, so that the modules that read are named. What numba loads when a compiled function is
first called counts as reading. "From the start" is the processor time of the whole process, imports among it, which a
user waits for once. Peers take turns, since the machine may be busy. Processor time is over all threads, memory the
peak of the process. One run before is not counted: numba compiles once for an installation.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

ATTRIBUTES, DEPTH, SITES, BLOCK = 262, 8, 10, 5_000
SETTINGS = {
    "objective": "binary",
    "max_depth": DEPTH,
    "num_leaves": 2**DEPTH,
    "num_threads": 2,
    "verbose": -1,
}
SETTINGS |= {"min_data_in_leaf": 1, "min_sum_hessian_in_leaf": 0}


def write_numbers(path: Path, patients: int) -> None:
    draw = np.random.default_rng(1)
    with path.open("w", encoding="ascii") as file:
        file.write(",".join(f"x{i:03d}" for i in range(ATTRIBUTES)) + "\n")
        for start in range(0, patients, BLOCK):
            rows = min(BLOCK, patients - start)
            np.savetxt(file, draw.integers(0, 12, (rows, ATTRIBUTES)), fmt="%d", delimiter=",")


def write_outcomes(path: Path, patients: int) -> None:
    draw = np.random.default_rng(2)
    with path.open("w", encoding="ascii") as file:
        file.write(",".join(f"x{i:03d}" for i in range(ATTRIBUTES)) + ",outcome\n")
        for start in range(0, patients, BLOCK):
            rows = min(BLOCK, patients - start)
            cells = draw.random((rows, ATTRIBUTES + 1)) < 0.4
            cells[:, -1] = cells[:, :20].sum(axis=1) + draw.normal(0, 1.5, rows) > 8
            np.savetxt(file, cells, fmt="%d", delimiter=",")


def write_mixture(path: Path, patients: int) -> None:
    draw = np.random.default_rng(3)
    wards = np.array(["medicine", "surgery", "intensive care", "emergency, adults", "paediatrics"])
    with path.open("w", encoding="ascii") as file:
        names = [f"{kind}{i:02d}" for i in range(20) for kind in ("lab", "code", "count")]
        file.write(",".join(["id", *names]) + "\n")
        for start in range(0, patients, BLOCK):
            rows = min(BLOCK, patients - start)
            columns = [[f"P{start + row:08d}" for row in range(rows)]]
            for _ in range(20):
                columns.append([f"{number:.4f}" for number in draw.normal(100, 20, rows)])
                columns.append([f'"{ward}"' for ward in wards[draw.integers(0, len(wards), rows)]])
                columns.append(["" if n > 990 else str(n) for n in draw.integers(0, 1000, rows)])
            file.writelines(",".join(row) + "\n" for row in zip(*columns, strict=True))


def read_theirs(path: str):
    import pandas

    yield
    yield pandas.read_csv(path)


def read_ours(path: str):
    import pyarrow.compute
    import pyarrow.csv  # noqa: F401 (the modules that read)

    import concilium as cc
    import concilium.records.delimited

    yield
    yield cc.Records.read(path)


def grow_theirs(path: str):
    import lightgbm
    import pandas

    yield
    frame = pandas.read_csv(path)
    outcome = frame.pop("outcome")
    settings = {
        "objective": "binary",
        "max_depth": DEPTH,
        "num_leaves": 2**DEPTH,
        "num_threads": 2,
        "verbose": -1,
    }
    settings |= {"min_data_in_leaf": 1, "min_sum_hessian_in_leaf": 0}
    yield lightgbm.train(settings, lightgbm.Dataset(frame, outcome), num_boost_round=1)


def grow_ours(path: str):
    import concilium as cc

    with tempfile.TemporaryDirectory() as folder:
        yield
        site = cc.Site("here", cc.Records.read(path), ledger=Path(folder) / "here.ledger")
        yield cc.DecisionTree("outcome", growth="id3", max_depth=DEPTH).fit(cc.House([site]))


def settle_theirs(path: str):
    """The same trees from DataFrames, once each library has grown one."""
    import lightgbm
    import pandas

    frame = pandas.read_csv(path)
    outcome = frame.pop("outcome")

    def grow(rows: int):
        return lightgbm.train(SETTINGS, lightgbm.Dataset(frame[:rows], outcome[:rows]), num_boost_round=1)

    grow(1_000)
    yield
    yield grow(len(frame))


def settle_ours(path: str):
    import pandas

    import concilium as cc

    frame = pandas.read_csv(path)
    edges = np.linspace(0, len(frame), SITES + 1).astype(int)
    frames = [frame[start:end].reset_index(drop=True) for start, end in pairwise(edges)]

    def grow(folder: Path, rows: int):
        sites = [
            cc.Site(f"s{i}", cc.Records.read(part[:rows]), ledger=folder / f"{i}-{rows}.ledger")
            for i, part in enumerate(frames)
        ]
        return cc.DecisionTree("outcome", growth="id3", max_depth=DEPTH).fit(cc.House(sites))

    with tempfile.TemporaryDirectory() as name:
        grow(Path(name), 1_000)
        yield
        yield grow(Path(name), len(frame))


def measure(name: str, path: str) -> None:
    """In a process of its own: seconds, seconds of the processor, the same from its start, and peak memory in MB."""
    steps = globals()[name](path)
    next(steps)
    wall, processor = time.perf_counter(), time.process_time()
    kept = next(steps)
    spent = time.perf_counter() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert kept is not None
    print(json.dumps([*spent, time.process_time(), peak]))


def compare(task: str, path: Path, repeats: int, peer: str) -> None:
    def run(name: str) -> list[float]:
        command = [sys.executable, __file__, "measure", name, str(path)]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    run(f"{task}_ours")
    turns = [(run(f"{task}_theirs"), run(f"{task}_ours")) for _ in range(repeats)]
    theirs, ours = (
        [statistics.median(turn[side][unit] for turn in turns) for unit in range(4)] for side in (0, 1)
    )
    ratios = [statistics.median(turn[1][unit] / turn[0][unit] for turn in turns) for unit in range(4)]
    for name, (wall, processor, whole, peak) in ((peer, theirs), ("Concilium", ours)):
        print(
            f"  {name:18} {wall:7.2f} s {processor:7.2f} s of processor, {whole:6.2f} from the start {peak:8,.0f} MB"
        )
    print(
        f"  {'ratio':18} {ratios[0]:7.2f}   {ratios[1]:7.2f} {'':15} {ratios[2]:6.2f} {'':14} {ratios[3]:8.2f}"
    )


def main(patients: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "patients.csv"
        for text, write, task, peer in (
            (f"Read {patients:,} x {ATTRIBUTES} small whole numbers", write_numbers, "read", "pandas"),
            (f"Read {patients:,} x 61: measurements, codes, an id", write_mixture, "read", "pandas"),
            (f"From file to tree, {patients:,} x {ATTRIBUTES}, depth {DEPTH}",
             write_outcomes, "grow", "pandas, LightGBM"),
            (f"From {SITES} hospitals' DataFrames to a tree, pooled for LightGBM", None, "settle", "LightGBM"),
        ):  # fmt: skip
            if write is not None:
                write(path, patients)
            print(f"{text} ({path.stat().st_size / 1e6:.0f} MB); median of {repeats}")
            compare(task, path, repeats, peer)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(sys.argv[2], sys.argv[3])
    else:
        given = [int(word) for word in sys.argv[1:]]
        main(*given, *(200_000, 3)[len(given) :])
