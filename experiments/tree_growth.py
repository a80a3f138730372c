"""How a default tree should be grown: depth, leaf size and criterion, by the area under the ROC curve of patients held
out.

    python experiments/tree_growth.py                the tables that the default was chosen on
    python experiments/tree_growth.py --untouched    others, with the default alone

Four halves of every table; the median over tables of how far a tree lies below gradient boosting (scikit-learn) on the
same patients. docs/methods.md, section 1.7.
"""

from __future__ import annotations

import sys
import warnings
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier
from SurvSet.data import SurvLoader

import concilium as cc

CHOSEN_ON = ("prostate", "whas500", "rott2", "smarto", "acath", "LeukSurv", "nwtco", "colon", "vlbw")
UNTOUCHED = ("rhc", "support2", "TRACE", "actg", "GBSG2", "uis", "dataDIVAT1", "zinc", "scania")
WAYS: dict[str, dict[str, Any]] = {
    "id3, all cutoffs": {"growth": "id3"},
    "readable, the default": {},
    "readable, depth 4": {"max_depth": 4},
    "readable, depth 6": {"max_depth": 6},
    "readable, leaf 10": {"min_leaf": 10},
    "readable, leaf 40": {"min_leaf": 40},
    "readable, gain ratio": {"criterion": "gain-ratio"},
    "grouped as C4.5, leaf 20": {"group": True},
}


def read(name: str) -> pd.DataFrame:
    """A table of SurvSet as a hospital would have it: who had the event, and what was known of them."""
    frame = SurvLoader().load_dataset(name)["df"].drop(columns=["pid", "time"])
    return frame.head(6000).astype({column: str for column in frame.columns if column.startswith("fac_")})


def encode(frame: pd.DataFrame) -> pd.DataFrame:
    """The same for scikit-learn."""
    return pd.get_dummies(frame.drop(columns="event"), dtype=float)


def measure(frame: pd.DataFrame, ways: dict[str, dict[str, Any]], splits: int = 4) -> dict[str, list[float]]:
    """For each way of growing, and for scikit-learn's, the area under the curve of every split."""
    dummies = encode(frame)
    found: dict[str, list[float]] = {}
    for split in range(splits):
        held = np.random.default_rng(split).random(len(frame)) < 0.5
        truth = frame.event[held].to_numpy()
        peers = {
            "gradient boosting": HistGradientBoostingClassifier(random_state=0),
            "CART, depth 5": DecisionTreeClassifier(max_depth=5, min_samples_leaf=20, random_state=0),
        }
        for name, peer in peers.items():
            filled = dummies if name == "gradient boosting" else dummies.fillna(dummies[~held].median())
            chance = peer.fit(filled[~held], frame.event[~held]).predict_proba(filled[held])[:, 1]
            found.setdefault(name, []).append(float(roc_auc_score(truth, chance)))
        for name, how in ways.items():
            tree = cc.DecisionTree("event", **how).fit({"all": frame[~held]})
            chance = tree.predict_proba(frame[held])[:, 1]
            found.setdefault(name, []).append(float(roc_auc_score(truth, chance)))
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    untouched = "--untouched" in sys.argv
    ways = {"readable, the default": {}} if untouched else WAYS
    below: dict[str, list[float]] = {}
    for name in UNTOUCHED if untouched else CHOSEN_ON:
        found = {way: float(np.mean(each)) for way, each in measure(read(name), ways).items()}
        best = found["gradient boosting"]
        print(f"{name:12}", "  ".join(f"{way} {each:.3f}" for way, each in found.items()), flush=True)
        for way, each in found.items():
            below.setdefault(way, []).append(best - each)
    print("\nmedian below gradient boosting")
    for way, each in below.items():
        print(f"  {way:28} {median(each):.3f}")


if __name__ == "__main__":
    main()
