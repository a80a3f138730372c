"""The boosted trees of a hospital beside LightGBM's, which are the same trees.

python benchmarks/boosting.py

333 trees of about four leaves, each over half of the patients; attributes have 20 codes. LightGBM also writes its model
out, which is how its splits are had. Processor time, the best of three, in turns; that the splits are the same is held
by tests/rulefit/test_boosted_trees.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from concilium.rulefit.boosted_trees import grow_trees

TREES, CODES, SUPPORT, SHRINKAGE, SEED = 333, 20, 10, 0.01, 7
SIZES = ((200, 10), (2_000, 30), (10_000, 100), (100_000, 30))


def draw_patients(patients: int, width: int) -> tuple[list[NDArray[np.uint8]], NDArray[np.float64]]:
    draws = np.random.default_rng(SEED)
    codes = [draws.integers(1, CODES + 1, size=patients).astype(np.uint8) for _ in range(width)]
    odds = 1.0 * (codes[0] > 7) - 1.0 * (codes[1] > 12) * (codes[2] > 4)
    return codes, (draws.random(patients) < 1 / (1 + np.exp(-odds))).astype(float)


def grow_theirs(codes: list[NDArray[np.uint8]], outcome: NDArray[np.float64], leaves: list[int]) -> str:
    settings: dict[str, Any] = {
        "objective": "binary",
        "learning_rate": SHRINKAGE,
        "min_data_in_leaf": SUPPORT,
        "min_sum_hessian_in_leaf": 0.0,
        "min_data_in_bin": 1,
        "max_bin": CODES + 2,
        "bagging_fraction": 0.5,
        "bagging_freq": 1,
        "seed": SEED,
        "feature_pre_filter": False,
        "enable_bundle": False,
        "deterministic": True,
        "force_col_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(np.column_stack(codes).astype(float), outcome, params=settings)
    booster = lightgbm.Booster({**settings, "num_leaves": leaves[0]}, data)
    before = leaves[0]
    for size in leaves:
        if size != before:
            booster.reset_parameter({"num_leaves": size})
            before = size
        booster.update()
    text: str = booster.model_to_string()
    return text


def grow_ours(codes: list[NDArray[np.uint8]], outcome: NDArray[np.float64], leaves: list[int]) -> object:
    return grow_trees(
        codes,
        [True] * len(codes),
        outcome,
        binary=True,
        sizes=leaves,
        shrinkage=SHRINKAGE,
        support=SUPPORT,
        sample=0.5,
        seed=SEED,
    )


def timed(grow: Callable[..., object], *asked: Any) -> float:
    start = time.process_time()
    grow(*asked)
    return time.process_time() - start


def main() -> None:
    leaves = [2 + int(extra) for extra in np.random.default_rng(SEED).exponential(2, size=TREES)]
    grow_ours(*draw_patients(200, 3), leaves)  # loads and compiles what a process needs once
    print(f"{TREES} trees, seconds of processor")
    for patients, width in SIZES:
        drawn = draw_patients(patients, width)
        turns = [[timed(grow, *drawn, leaves) for grow in (grow_ours, grow_theirs)] for _ in range(3)]
        ours, theirs = (min(one[at] for one in turns) for at in (0, 1))
        print(
            f"  {patients:>7,} x {width:<3}  Concilium {ours:7.3f}   LightGBM {theirs:7.3f}   ratio {ours / theirs:.2f}"
        )


if __name__ == "__main__":
    main()
