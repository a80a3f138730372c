"""Durable charges a second: the ledger beside a bare SQLite insert and commit with the same durability.

Run: python benchmarks/ledger.py [--charges N] [--folder DIR]
The two take turns in one run, so that a busy disk slows both.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from concilium.ledger.ledger import Ledger

ANSWER_BYTES = 1000
TURNS = 5


def time_ledger(folder: Path, turn: int, charges: int) -> float:
    answer, cost = os.urandom(ANSWER_BYTES), Fraction(1, 1000)
    with Ledger(folder / f"{turn}.ledger", budget=charges) as ledger:

        def charge(number: int) -> None:
            ledger.charge(
                f"study/question/{number}",
                "0" * 64,
                study="study",
                kind="crosstables",
                mode="private",
                cost=cost,
                numbers=100,
                seal=lambda head: answer,
            )

        return rate(charge, charges)


def time_bare(folder: Path, turn: int, charges: int) -> float:
    answer = os.urandom(ANSWER_BYTES)
    database = sqlite3.connect(folder / f"{turn}.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE answers (number INTEGER PRIMARY KEY, answer BLOB)")

    def insert(number: int) -> None:
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO answers VALUES (?, ?)", (number, answer))
        database.execute("COMMIT")

    try:
        return rate(insert, charges)
    finally:
        database.close()


def rate(work: Callable[[int], None], count: int) -> float:
    start = time.perf_counter()
    for number in range(count):
        work(number)
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--charges", type=int, default=1000, help="charges per turn")
    parser.add_argument(
        "--folder", type=Path, help="where the files are made; a temporary folder unless given"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        turns = [
            (time_ledger(folder, turn, options.charges), time_bare(folder, turn, options.charges))
            for turn in range(TURNS)
        ]
    ledger, bare = (statistics.median(rates) for rates in zip(*turns, strict=True))
    print(
        f"{TURNS} turns of {options.charges} commits, answers of {ANSWER_BYTES} bytes, WAL, synchronous FULL"
    )
    print(f"{'':28}{'a second':>10}{'ms each':>10}")
    print(f"{'ledger: durable charges':28}{ledger:10.0f}{1000 / ledger:10.3f}")
    print(f"{'bare: insert and commit':28}{bare:10.0f}{1000 / bare:10.3f}")
    print(f"{'ledger / bare':28}{statistics.median(a / b for a, b in turns):10.2f}")


if __name__ == "__main__":
    main()
