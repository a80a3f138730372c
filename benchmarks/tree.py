"""A federated exact tree, 10 sites in one process, against LightGBM and scikit-learn on the pooled table.

python benchmarks/tree.py [patients]      default 1,000,000 patients x 262 attributes, two classes, depth 8

LightGBM grows one tree (max_depth 8, 256 leaves, 2 threads) on data that is already binned; scikit-learn grows its
entropy tree of depth 8 on the pooled table. Ledgers are files, so every answer is charged durably.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import concilium as cc
from concilium.records.columns import Coded
from concilium.records.table import Records

ATTRIBUTES, SITES, DEPTH, REPEATS = 262, 10, 8, 3


def make(patients: int):
    draw = np.random.default_rng(2)
    codes = (draw.random((ATTRIBUTES, patients), dtype=np.float32) < 0.4).astype(np.uint8) + 1
    score = codes[:20].astype(np.float32).sum(axis=0) + draw.normal(0, 1.5, patients).astype(np.float32)
    return codes, (score > np.median(score)).astype(np.uint8)


def main(patients: int) -> None:
    codes, outcome = make(patients)
    edges = np.linspace(0, patients, SITES + 1).astype(int)
    with tempfile.TemporaryDirectory() as folder:
        sites = []
        for index in range(SITES):
            here = slice(edges[index], edges[index + 1])
            columns = {f"x{i:03d}": Coded(codes[i, here].copy(), ("n", "y")) for i in range(ATTRIBUTES)}
            columns["outcome"] = Coded(outcome[here] + 1, ("bad", "good"))
            sites.append(cc.Site(f"s{index}", Records(columns), ledger=Path(folder) / f"s{index}.ledger"))
        tree = cc.DecisionTree("outcome", growth="id3", max_depth=DEPTH)
        tree.fit(cc.House(sites))
        ours = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            tree.fit(cc.House(sites))
            ours.append(time.perf_counter() - start)
        found = tree.predict(
            Records({name: Coded(codes[i], ("n", "y")) for i, name in enumerate(columns) if i < ATTRIBUTES})
        )
        accuracy = float(np.mean((found == "good") == outcome))
        card = tree.card

    import lightgbm

    table = np.ascontiguousarray((codes - 1).T.astype(np.float32))
    data = lightgbm.Dataset(
        table,
        outcome,
        params={"verbose": -1, "num_threads": 2, "feature_pre_filter": False},
        free_raw_data=False,
    ).construct()
    settings = {
        "objective": "binary",
        "max_depth": DEPTH,
        "num_leaves": 256,
        "num_threads": 2,
        "min_data_in_leaf": 1,
        "min_sum_hessian_in_leaf": 0,
        "verbose": -1,
    }
    lightgbm.train(settings, data, num_boost_round=1)
    light = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        lightgbm.train(settings, data, num_boost_round=1)
        light.append(time.perf_counter() - start)
    del data

    from sklearn.tree import DecisionTreeClassifier

    start = time.perf_counter()
    pooled = DecisionTreeClassifier(criterion="entropy", max_depth=DEPTH).fit(table, outcome)
    scikit = time.perf_counter() - start
    theirs = float(pooled.score(table, outcome))

    mine, peer = statistics.median(ours), statistics.median(light)
    print(
        f"{patients:,} patients x {ATTRIBUTES} attributes, depth {DEPTH}; median of {REPEATS} (scikit-learn: 1)"
    )
    print(
        f"  Concilium, {SITES} sites, exact  {mine:8.2f} s   {len(tree.body.nodes)} nodes, accuracy {accuracy:.4f}"
    )
    print(f"  LightGBM, one tree          {peer:8.2f} s   ratio {mine / peer:5.2f}  (target: at most 1)")
    print(
        f"  scikit-learn, entropy       {scikit:8.2f} s   ratio {scikit / mine:5.1f}  (target: at least 20), "
        f"accuracy {theirs:.4f}"
    )
    print(f"  {card.rounds} rounds, {card.bytes / 1e6:.1f} MB in all")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
