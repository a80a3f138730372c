"""A tree through three tiers in one process: many small sites in regions, against one house over all of them.

python benchmarks/tiers.py [sites] [regions]      default 1,000 sites of 100 patients in 30 regions, depth 6

Twenty attributes, two classes. Ledgers are kept in memory. Target: sites built and tree grown in under 10 s.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import concilium as cc
from concilium.protocol.region import Region
from concilium.records.columns import Coded
from concilium.records.table import Records

PATIENTS, ATTRIBUTES, DEPTH = 100, 20, 6


def make(sites: int) -> list[Records]:
    draw = np.random.default_rng(3)
    everyone = sites * PATIENTS
    codes = (draw.random((ATTRIBUTES, everyone)) < draw.uniform(0.1, 0.5, (ATTRIBUTES, 1))).astype(np.uint8)
    score = draw.normal(0, 1, ATTRIBUTES) @ codes + draw.normal(0, 1, everyone)
    outcome = (score > np.median(score)).astype(np.uint8)
    tables = []
    for start in range(0, everyone, PATIENTS):
        here = slice(start, start + PATIENTS)
        columns = {f"x{i:02d}": Coded(codes[i, here] + 1, ("n", "y")) for i in range(ATTRIBUTES)}
        tables.append(Records({**columns, "outcome": Coded(outcome[here] + 1, ("bad", "good"))}))
    return tables


def main(sites: int, regions: int) -> None:
    tables = make(sites)
    # Compiled once and kept on disk: a first run after an upgrade would otherwise measure the compiler.
    cc.DecisionTree("outcome", growth="id3", max_depth=2).fit(cc.House([cc.Site("warm", tables[0])]))

    def build() -> list[cc.Site]:
        return [cc.Site(f"s{index:04d}", table) for index, table in enumerate(tables)]

    start, begun = time.perf_counter(), time.process_time()
    hospitals = build()
    built = time.perf_counter() - start
    start = time.perf_counter()
    tiers = [Region(f"r{index:02d}", cc.House(hospitals[index::regions])) for index in range(regions)]
    tiered = cc.DecisionTree("outcome", growth="id3", max_depth=DEPTH).fit(cc.House(tiers, timeout=600))
    through, busy = time.perf_counter() - start, time.process_time() - begun
    start = time.perf_counter()
    flat = cc.DecisionTree("outcome", growth="id3", max_depth=DEPTH).fit(cc.House(build(), timeout=600))
    alone = time.perf_counter() - start - built
    if tiered.body != flat.body:
        raise SystemExit("the tree through tiers is not the tree of one house")
    print(f"{sites:,} sites x {PATIENTS} patients x {ATTRIBUTES} attributes, depth {DEPTH}, one process")
    print(f"  building the sites     {built:6.2f} s")
    grown = f"{len(tiered.body.nodes)} nodes, {tiered.card.rounds} rounds"
    print(f"  {regions} regions, 3 tiers   {through:6.2f} s   {grown}")
    print(f"  together               {built + through:6.2f} s   {busy:.2f} s of CPU (target: under 10)")
    print(f"  one house over all     {alone:6.2f} s   the same tree")
    print(
        f"  to the national house  {tiered.card.bytes / 1e6:6.2f} MB, instead of {flat.card.bytes / 1e6:.2f} MB"
    )


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*[*given, *(1000, 30)[len(given) :]])
