"""A tree under masks over more and more hospitals: masks shared with neighbours on a circle, against every pair.

python benchmarks/many_sites.py [sites ...]      default 10, 30, 100, 200, 1,000 sites of 50 patients, depth 4

Twenty attributes, two classes, ledgers in memory, all sites and the house in one process. Every pair sharing a mask is
measured up to 200 sites. Seconds are those of processors, since the machine may be shared, with those of the clock
beside them. Target: 1,000 sites in under 30 s, and growth of n log n at most.
"""

from __future__ import annotations

import math
import sys
import time

import tiers

import concilium as cc
from concilium.privacy import manifest
from concilium.privacy.manifest import _choose_degree

PATIENTS, DEPTH, MOST_PAIRS = 50, 4, 200


def fit(tables: list[cc.Records], release: str) -> tuple[float, float, cc.DecisionTree]:
    sites = [cc.Site(f"s{index:04d}", table) for index, table in enumerate(tables)]
    clock, begun = time.perf_counter(), time.process_time()
    tree = cc.DecisionTree("outcome", growth="id3", max_depth=DEPTH, release=release).fit(
        cc.House(sites, timeout=600)
    )
    return time.process_time() - begun, time.perf_counter() - clock, tree


def main(counts: list[int]) -> None:
    tiers.PATIENTS = PATIENTS
    everyone = tiers.make(max(counts))
    fit(everyone[:3], "masked")  # compiled once and kept on disk
    print(
        f"{PATIENTS} patients at each site, {tiers.ATTRIBUTES} attributes, depth {DEPTH}, one process; seconds of CPU"
    )
    print(" sites  degree   exact   masked (clock)      MB   every pair      MB   masked by n log n, in ms")
    for count in counts:
        tables = everyone[:count]
        exact, _, plain = fit(tables, "exact")
        busy, clock, tree = fit(tables, "masked")
        pairs = " " * 18
        if count <= MOST_PAIRS:
            manifest._choose_degree = lambda sites, colluders: sites - 1
            complete, _, same = fit(tables, "masked")
            manifest._choose_degree = _choose_degree
            if same.body != tree.body:
                sys.exit("the tree depends on who shares masks with whom")
            pairs = f"{complete:10.2f} {same.card.bytes / 1e6:7.2f}"
        if tree.body != plain.body:
            sys.exit("the masked tree is not the exact tree")
        sent = tree.card.bytes / 1e6
        print(
            f"{count:6,} {_choose_degree(count, 1):7} {exact:7.2f} {busy:8.2f} ({clock:5.2f}) {sent:7.2f}"
            f"   {pairs}   {1000 * busy / (count * math.log2(count)):6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main([int(argument.replace(",", "")) for argument in sys.argv[1:]] or [10, 30, 100, 200, 1000])
