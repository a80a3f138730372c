"""Measuring a model through the gate: seconds and processor time of counting a million held-out patients at ten sites,
beside the model's own `predict_proba` on the pooled table.

    python benchmarks/evaluating.py
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

import concilium as cc
from concilium.records.columns import Coded, Numbers
from concilium.records.table import Records


def make_table(count: int, seed: int) -> Records:
    """Patients with four attributes and an outcome that follows from them."""
    chance = np.random.default_rng(seed)
    age, pressure = chance.normal(60, 15, count).round(1), chance.normal(130, 20, count).round(0)
    sex, ward = chance.integers(1, 3, count).astype(np.uint8), chance.integers(1, 5, count).astype(np.uint8)
    risk = 1 / (1 + np.exp(-((age - 68) / 10 + 0.3 * (sex == 2) + 0.02 * (pressure - 130))))
    outcome = (1 + (chance.random(count) < risk)).astype(np.uint8)
    return Records(
        {
            "age": Numbers(age),
            "pressure": Numbers(pressure),
            "sex": Coded(sex, ("f", "m")),
            "ward": Coded(ward, ("a", "b", "c", "d")),
            "death": Coded(outcome, ("no", "yes")),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=1_000_000)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--times", type=int, default=10)
    arguments = parser.parse_args()
    pooled = make_table(arguments.patients, 1)
    rows = np.array_split(np.arange(arguments.patients), arguments.sites)
    sites = [cc.Site(f"site {place}", pooled.take(own)) for place, own in enumerate(rows)]
    small = {f"s{place}": cc.Site(f"s{place}", make_table(4000, 10 + place)) for place in range(3)}
    for make in (
        lambda: cc.DecisionTree("death", positive="yes", max_depth=5),
        lambda: cc.RuleFit("death", positive="yes"),
    ):
        model = make().fit(list(small.values()))
        model.evaluate(list(small.values()))  # compiled once
        model.predict_proba(pooled.take(np.arange(5000)))
        runs = {
            "predict_proba, pooled": partial(model.predict_proba, pooled),
            "evaluate, through the gate": partial(model.evaluate, cc.House(sites)),
        }
        best: dict[str, tuple[float, float]] = {}
        for _ in range(arguments.times):
            for name, run in runs.items():
                wall, own = time.perf_counter(), time.process_time()
                run()
                took = time.perf_counter() - wall, time.process_time() - own
                best[name] = min(best.get(name, took), took, key=lambda one: one[1])
        print(
            f"{model.method}: {arguments.patients:,} patients, {arguments.sites} sites; best of {arguments.times}"
        )
        for name, (seconds, processor) in best.items():
            print(f"  {name:28} {seconds:6.2f} s, {processor:6.2f} s of processor")
        gate, peer = best["evaluate, through the gate"][1], best["predict_proba, pooled"][1]
        print(f"  processor time: {gate / peer:.2f} x that of predict_proba (target: at most 1.5)")


if __name__ == "__main__":
    main()
