"""What automatic cutoffs cost: trees of 200,000 patients x 262 numbers, cut on the grid and at stated bins.

    python benchmarks/cutoffs.py [patients]

The ratio is processor time of the fit alone, sites being opened before; both trees have 20 cutoffs of every number.
Each is the least of several fits, which take turns: what other programs add to a time is never negative.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import concilium as cc
from concilium.records.columns import Coded, Numbers
from concilium.records.table import Records

ATTRIBUTES, SITES, REPEATS = 262, 3, 9


def make(patients: int) -> list[Records]:
    draw = np.random.default_rng(5)
    hospitals = []
    for _ in range(SITES):
        here = patients // SITES
        columns = {
            f"x{i:03d}": Numbers(np.round(draw.lognormal(i % 5, 1.0, here), 2)) for i in range(ATTRIBUTES)
        }
        score = sum(np.log(columns[f"x{i:03d}"].numbers + 0.01) for i in range(10))
        died = (score + draw.normal(0, 2, here) > np.median(score)).astype(np.uint8) + 1
        hospitals.append(Records({**columns, "died": Coded(died, ("n", "y"))}))
    return hospitals


def run(tables: list[Records], release: str, **how: object) -> tuple[float, cc.DecisionTree]:
    house = cc.House([cc.Site(f"site{i}", table) for i, table in enumerate(tables)])
    began = time.process_time()
    tree = cc.DecisionTree("died", release=release, **how).fit(house)
    return time.process_time() - began, tree


def main(patients: int) -> None:
    tables = make(patients)
    for release in ("exact", "masked"):
        _, automatic = run(tables, release)
        pooled = {
            name: np.concatenate([table[name].numbers for table in tables]) for name in tables[0].names[:-1]
        }
        bins = {
            name: sorted(set(np.quantile(each, np.arange(1, 21) / 21).round(2)))
            for name, each in pooled.items()
        }
        seconds = [(run(tables, release, bins=bins)[0], run(tables, release)[0]) for _ in range(REPEATS)]
        stated, chosen = map(min, zip(*seconds, strict=True))
        print(
            f"{release}: {chosen / stated:.2f} of the time with stated bins ({chosen:.2f} s and {stated:.2f} s), "
            f"{automatic.card.rounds} rounds"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
