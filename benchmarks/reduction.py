"""Auto-reduction (docs/methods.md, section 1.6): the bytes and the processor time of exact trees with and without it.

python benchmarks/reduction.py [DATA] [repeats]      DATA is a folder with diabetic_data.csv.gz (UCI 296, diabetes130)

Two tables. *Stays*, with DATA: all 101,766 of diabetes130 at four sites, the attributes of fewer than 25 values (ids,
diagnoses, payer, specialty and weight are left out), readmitted within 30 days or not, depth 5. *Rare*: 200,000
patients drawn at ten sites, 262 attributes of two values as the thesis has them: 20 that matter, and 242 of which half
are had by fewer than one patient in fifty, depth 8. Every threshold is fitted in turn, in the other direction every
second time, on the same sites; processor time is over all threads of the process, and of that the time in which sites
answered, and medians are shown. "Root alone" is a tree of one question, for which nothing is asked below the root: what
no reduction can save. Shares are against the run without reduction; the card's sentence, which is printed below, is
not: it compares with the questions of its own tree, had they named all attributes.
"""

from __future__ import annotations

import csv
import gzip
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import concilium as cc
from concilium.records.columns import Coded
from concilium.records.table import Records

THRESHOLDS = (None, 0.0, 0.05, 0.1)
LEFT_OUT = {
    "encounter_id",
    "patient_nbr",
    "diag_1",
    "diag_2",
    "diag_3",
    "medical_specialty",
    "payer_code",
    "weight",
}
MOST_VALUES = 25
PATIENTS, ATTRIBUTES, THAT_MATTER = 200_000, 262, 20


class TimedSite(cc.Site):
    """A site that knows how long it was busy."""

    busy = 0.0

    def answer(self, message: bytes) -> bytes:
        start = time.thread_time()
        try:
            return super().answer(message)
        finally:
            self.busy += time.thread_time() - start


def encode(values: list[str]) -> Coded:
    distinct, codes = np.unique(np.array(values), return_inverse=True)
    return Coded((codes + 1).astype(np.uint16), tuple(distinct.tolist()))


def read_stays(folder: Path) -> list[TimedSite]:
    with gzip.open(folder / "diabetic_data.csv.gz", "rt", newline="") as file:
        names, *rows = csv.reader(file)
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    kept = {
        name: encode(values)
        for name, values in columns.items()
        if name not in LEFT_OUT | {"readmitted"} and len(set(values)) < MOST_VALUES
    }
    kept["outcome"] = encode(["yes" if said == "<30" else "no" for said in columns["readmitted"]])
    table = Records(kept)
    return [TimedSite(f"site {own}", table.take(np.arange(own, len(rows), 4))) for own in range(4)]


def draw_rare() -> list[TimedSite]:
    draw = np.random.default_rng(1)
    shares = np.concatenate([np.full(THAT_MATTER, 0.4), 0.3 * draw.random(ATTRIBUTES - THAT_MATTER) ** 4])
    codes = (draw.random((ATTRIBUTES, PATIENTS), dtype=np.float32) < shares[:, None]).astype(np.uint8) + 1
    score = codes[:THAT_MATTER].astype(np.float32).sum(axis=0) + draw.normal(0, 1.5, PATIENTS)
    columns = {f"x{place:03d}": Coded(one, ("n", "y")) for place, one in enumerate(codes)}
    columns["outcome"] = Coded((score > np.median(score)).astype(np.uint8) + 1, ("no", "yes"))
    table = Records(columns)
    return [TimedSite(f"site {own}", table.take(np.arange(own, PATIENTS, 10))) for own in range(10)]


def compare(says: str, sites: list[TimedSite], depth: int, repeats: int) -> None:
    trees = {
        "root alone": cc.DecisionTree("outcome", growth="id3", max_depth=1),
        **{
            "without" if share is None else f"reduce = {share:g}": cc.DecisionTree(
                "outcome", growth="id3", max_depth=depth, reduce=share
            )
            for share in THRESHOLDS
        },
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    for turn in range(repeats + 1):
        for name in list(trees) if turn % 2 else reversed(trees):
            start, busy = time.process_time(), sum(site.busy for site in sites)
            trees[name].fit(cc.House(sites))
            took = time.process_time() - start, sum(site.busy for site in sites) - busy
            seconds[name].append(took)
    # The first run is not counted: it compiles.
    medians = {
        name: [statistics.median(part) for part in zip(*runs[1:], strict=True)]
        for name, runs in seconds.items()
    }
    whole, (long, long_there) = trees["without"].card.bytes, medians["without"]
    print(f"{says}, depth {depth}; processor time: median of {repeats}")
    for name, tree in trees.items():
        took, there = medians[name]
        print(
            f"  {name:13} {tree.card.bytes / 1000:8.1f} kB ({tree.card.bytes / whole - 1:+7.1%})"
            f"  {took:6.3f} s ({took / long - 1:+7.1%}), at sites {there:6.3f} s ({there / long_there - 1:+7.1%})"
            f"  {len(tree.body.nodes)} nodes"
        )
        for said in tree.card.warnings:
            if said.startswith("auto-reduction"):
                print(f"                {said}")


def main(data: Path | None, repeats: int) -> None:
    if data is not None:
        compare("stays", read_stays(data), 5, repeats)
    compare("rare", draw_rare(), 8, repeats)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, int(sys.argv[2]) if len(sys.argv) > 2 else 9)
