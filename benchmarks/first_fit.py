"""The first fit: ten data sets, nothing stated, three hospitals each, every method and release beside pooled boosting.

    python benchmarks/first_fit.py [--data ../shared/data] [--splits 2]

Half of the patients are held out; the figure is the area under the ROC curve on them, the mean over splits, beside
that of scikit-learn's gradient boosting on the pooled rows of the other half. Nothing was tuned on these tables. Five
of them come with packages; the others are read from a folder, and left out where it is not there. Private models have
epsilon 1. Seconds are those of the first exact tree of a table, reading included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from SurvSet.data import SurvLoader

import concilium as cc

METHODS: dict[str, Callable[..., Any]] = {
    "tree": cc.DecisionTree,
    "naive Bayes": cc.NaiveBayes,
    "RuleFit": cc.RuleFit,
    "voting trees": lambda target, **how: cc.VotingTrees(target, positive=1, **how),
}
RELEASES = ("exact", "masked", "private")


def read_breast_cancer() -> pd.DataFrame:
    frame = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "outcome"})
    return frame.rename(columns={name: name.replace(" ", "_") for name in frame.columns})


def read_survset(name: str) -> pd.DataFrame:
    """Who had the event, and what was known of them before."""
    frame = SurvLoader().load_dataset(name)["df"].drop(columns=["time"])
    return frame.rename(columns={"event": "outcome"})


def read_files(folder: Path) -> dict[str, Callable[[], pd.DataFrame]]:
    """Tables of a folder: a file, its outcome, the value that counts, and what would give that away."""
    listed = [
        ("icu", "aplore3/icu.csv", "sta", "Died", []),
        ("trauma", "bfi-trauma/trauma.csv", "mortality", 1, []),
        ("polypharm", "aplore3/polypharm.csv", "polypharmacy", "Yes", []),
        ("breast-w", "uci-categorical/breast-w.csv", "Class", "malignant", []),
        ("heart", "uci-categorical/heart-statlog.csv", "class", "present", []),
    ]

    def read(path: str, target: str, positive: Any, without: list[str]) -> pd.DataFrame:
        frame = pd.read_csv(folder / path, keep_default_na=False, na_values=[""])
        frame["outcome"] = (frame.pop(target) == positive).astype(int)
        return frame.drop(columns=without)

    return {name: lambda how=how: read(*how) for name, *how in listed if (folder / how[0]).exists()}


def split(frame: pd.DataFrame, number: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    held = np.random.default_rng(number).random(len(frame)) < 0.5
    return frame[~held].reset_index(drop=True), frame[held].reset_index(drop=True)


def boost(learned: pd.DataFrame, held: pd.DataFrame) -> float:
    """The area under the curve of pooled gradient boosting."""
    both = pd.get_dummies(pd.concat([learned, held]).drop(columns="outcome"), dtype=float)
    both.columns = [str(place) for place in range(both.shape[1])]
    model = HistGradientBoostingClassifier(random_state=0).fit(both[: len(learned)], learned.outcome)
    return float(roc_auc_score(held.outcome, model.predict_proba(both[len(learned) :])[:, 1]))


def fit(method: str, release: str, files: list[Path], held: pd.DataFrame) -> float | str:
    """The area under the curve of a model that was told the target and nothing else; or why there is none."""
    more = {"epsilon": "1"} if release == "private" else {}
    try:
        model = METHODS[method]("outcome", release=release, **more).fit(files)
    except cc.errors.ConciliumError as error:
        return str(error)
    chance = model.predict_proba(held.drop(columns="outcome"))[:, 1]
    return float(roc_auc_score(held.outcome, chance))


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--splits", type=int, default=2)
    given = parser.parse_args()
    tables: dict[str, Callable[[], pd.DataFrame]] = {
        "breast_cancer": read_breast_cancer,
        **{name: lambda name=name: read_survset(name) for name in ("rhc", "support2", "TRACE", "actg")},
        **read_files(given.data),
    }
    ways = [(m, r) for m in METHODS for r in RELEASES if (m, r) != ("voting trees", "private")]
    print("| table | patients | seconds | boosting |", " | ".join(f"{m}, {r}" for m, r in ways), "|")
    print("|---" * (4 + len(ways)) + "|")
    refused: list[str] = []
    means: dict[Any, list[float]] = {}
    for name, read in tables.items():
        frame = read()
        found: dict[Any, list[float]] = {}
        seconds = 0.0
        for number in range(given.splits):
            learned, held = split(frame, number)
            found.setdefault("boosting", []).append(boost(learned, held))
            with tempfile.TemporaryDirectory() as folder:
                files = [Path(folder) / f"hospital{k}.csv" for k in range(3)]
                for k, file in enumerate(files):
                    learned.iloc[k::3].to_csv(file, index=False)
                for way in ways:
                    began = time.perf_counter()
                    area = fit(*way, files, held)
                    if way == ("tree", "exact"):
                        seconds = time.perf_counter() - began
                    if isinstance(area, str):
                        refused.append(f"{name}, {way[0]}, {way[1]}: {area}")
                    else:
                        found.setdefault(way, []).append(area)
        for way in ["boosting", *ways]:  # what is refused tells as much as a coin
            means.setdefault(way, []).append(float(np.mean(found.get(way, [0.5]))))
        cells = [f"{np.mean(found[way]):.3f}" if way in found else "–" for way in ["boosting", *ways]]
        print(f"| {name} | {len(frame):,} | {seconds:.1f} |", " | ".join(cells), "|", flush=True)
    middle = [f"{median(means[way]):.3f}" for way in ["boosting", *ways]]
    print("| median | | |", " | ".join(middle), "|")
    for line in refused:
        print(line)


if __name__ == "__main__":
    main()
