"""How often does the interval of a tree's answer hold the mean risk of its leaf, and that of a single patient?

    python experiments/leaf_coverage.py [--fits 20]

Three hospitals of synthetic patients whose risk is known, by four numbers. `leaf` is the share of fresh patients for
whom the interval holds the mean true risk of all fresh patients of the same leaf, which is what it is about; `wilson`
the same of Wilson's own interval, which does not know that these patients chose the questions. `each` is the share for
whom the interval holds the patient's own risk.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import concilium as cc
from concilium.models.intervals import share_interval

FRESH = 10_000
CASES = [("exact", 900), ("exact", 4500), ("private", 4500)]
BINS = {f"x{place}": [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5] for place in range(4)}


def draw_patients(count: int, seed: int) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """Patients with their outcome, and the true risk of each."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({name: draw.normal(size=count).round(2) for name in BINS})
    risk = (1 / (1 + np.exp(1.2 - frame.x0 - 0.5 * frame.x1))).to_numpy()
    return frame.assign(ill=(draw.random(count) < risk).astype(int)), risk


def fit(release: str, count: int, seed: int) -> cc.DecisionTree:
    """A tree of three hospitals with so many patients in all."""
    frame, _ = draw_patients(count, seed)
    stated = {"bins": BINS, "values": {"ill": [0, 1]}, "epsilon": 2.0} if release == "private" else {}
    policy = cc.Policy(budget=cc.Budget("10"))
    sites = [cc.Site(str(part), cc.Records.read(frame[part::3]), policy) for part in range(3)]
    return cc.DecisionTree("ill", positive=1, release=release, **stated).fit(sites)


def count_held(tree: cc.DecisionTree) -> NDArray[np.float64]:
    """Of fresh patients the share whose leaf's mean risk is held, by the tree's interval and by Wilson's; and the share
    whose own risk is."""
    fresh, risks = draw_patients(FRESH, 999)
    predicted, held = tree.predict_proba(fresh)[:, 1], np.zeros(3)
    for value in np.unique(predicted):
        there = np.flatnonzero(predicted == value)
        said = tree.explain(fresh.iloc[there[0]].to_dict())
        own = risks[there] if said.prediction == 1 else 1 - risks[there]
        low, high = said.interval
        narrow = share_interval(said.probability * said.patients, said.patients)
        held += [
            len(there) * (low <= own.mean() <= high),
            len(there) * (narrow[0] <= own.mean() <= narrow[1]),
            ((low <= own) & (own <= high)).sum(),
        ]
    return held / FRESH


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=20)
    fits = parser.parse_args().fits
    print(f"{'release':<10}{'patients':>9}{'leaf':>8}{'wilson':>8}{'each':>8}")
    for release, count in CASES:
        held = np.mean([count_held(fit(release, count, seed)) for seed in range(fits)], axis=0)
        print(f"{release:<10}{count:>9}" + "".join(f"{share:>8.0%}" for share in held))


if __name__ == "__main__":
    main()
