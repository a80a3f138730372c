"""How far a naive Bayes model's own tables may be trusted with a threshold, on patients held back.

python experiments/implied_thresholds.py

A private NaiveBayes has noisy tables of every attribute by class, and nothing of patients by chance. Taken at its word,
attributes are independent within a class, so that the distribution of log odds of each class follows from the tables,
by convolution, at no price. This asks what comes of it at best: with exact tables, without any noise. Patients are of
five data sets of SurvSet (`pip install SurvSet`), the outcome is the event, 30 % are held back (means of three
divisions); numbers are cut at the 10, 25, 50, 75 and 90 % quantiles. `implied` is the sensitivity on the patients held
back where the model's tables say 0.9; `counted` is what a study has that counts patients by class and chance.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from SurvSet.data import SurvLoader

import concilium as cc
from concilium.trees.naive_bayes import NaiveBayesBody

DATA = ("rhc", "support2", "Dialysis", "Framingham", "flchain")
REACH, DIVISIONS, HELD_BACK, SITES, STEP = 0.9, 3, 0.3, 3, 0.02
GRID = np.arange(-40, 40, STEP)


def spread_odds(body: NaiveBayesBody, of: int) -> NDArray[np.float64]:
    """The distribution over GRID of the log odds of the second class among patients of one class, where attributes are
    independent."""
    shares = body.class_shares
    spread = np.zeros(len(GRID))
    spread[np.argmin(np.abs(GRID - np.log(shares[1] / shares[0])))] = 1
    for number, nodes in enumerate(body.attributes):
        moved = body.evidence(number)[1:] @ np.array([-1.0, 1.0])
        patients = np.array([node.counts[of] for node in nodes[1:]], dtype=np.float64)
        steps = np.rint(moved / STEP).astype(int)
        spread = sum(
            (share * np.roll(spread, by) for share, by in zip(patients / patients.sum(), steps, strict=True)),
            np.zeros(len(GRID)),
        )
    return spread


def find_implied(body: NaiveBayesBody) -> float:
    """The highest chance from which on nine in ten positives are called, by the model's own tables."""
    called = spread_odds(body, 1)[::-1].cumsum()[::-1]
    return float(1 / (1 + np.exp(-GRID[np.flatnonzero(called >= REACH)[-1]])))


def learn(table: pd.DataFrame, bins: dict[str, list[float]], decision: str) -> cc.NaiveBayes:
    parts = np.array_split(np.arange(len(table)), SITES)
    sites = [
        cc.Site(f"s{n}", cc.Records.read(table.iloc[rows].reset_index(drop=True)))
        for n, rows in enumerate(parts)
    ]
    return cc.NaiveBayes("event", bins=bins, threshold=decision, positive="yes").fit(sites)


def main() -> None:
    print(
        f"{'data':<12} {'patients':>8} {'events':>7} {'implied':>8} {'counted':>8}   sensitivity, where 0.9 is asked"
    )
    for name in DATA:
        table = SurvLoader().load_dataset(ds_name=name)["df"]
        table = table.drop(columns=[column for column in ("pid", "time", "time2") if column in table])
        table["event"] = np.where(table["event"] == 1, "yes", "no")
        numbers = [c for c in table if table[c].dtype.kind in "fi" and table[c].nunique() > 8]
        bins = {
            c: np.unique(np.nanquantile(table[c].astype(float), [0.1, 0.25, 0.5, 0.75, 0.9])).tolist()
            for c in numbers
        }
        reached = []
        for division in range(DIVISIONS):
            order = np.random.default_rng(division).permutation(len(table))
            kept = int((1 - HELD_BACK) * len(table))
            learned, held = table.iloc[order[:kept]], table.iloc[order[kept:]].reset_index(drop=True)
            model = learn(learned, bins, f"sensitivity {REACH}")
            assert model.decided is not None
            chance = model.predict_proba(cc.Records.read(held))[:, 1][(held["event"] == "yes").to_numpy()]
            reached.append(
                [(chance >= at).mean() for at in (find_implied(model.body), model.decided.threshold)]
            )
        implied, counted = np.mean(reached, axis=0)
        share = (table["event"] == "yes").mean()
        print(f"{name:<12} {len(table):>8,} {share:>7.1%} {implied:>8.3f} {counted:>8.3f}", flush=True)


if __name__ == "__main__":
    main()
