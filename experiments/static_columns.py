"""Age and sex as variables of temporal rules, left out, and as conditions beside the rules: Challenge 2019.

    python experiments/static_columns.py DATA [--whole] [--epsilon 4] [--runs 5]

Half of the patients of both hospitals teach, dealt to three gateways under `secure-sum`, and the other half is
predicted: AUROC in one window of each patient, at the label's onset or at a matched time since admission. The sample
has 2,000 patients; `--whole` takes all 40,336. A run draws noise anew; the patients who teach are the same.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import concilium as cc
from concilium.records.clinical_ranges import CLINICAL_RANGES, place_limits
from concilium.records.series_description import OddValues
from temporal_transfer import NAMES

STATIC = {"Age": [45.0, 65.0, 80.0], "Gender": [1.0]}
SETTINGS = {
    "variables of rules": {"bins": STATIC, "static": []},
    "left out": {"bins": {}, "static": []},
    "conditions beside the rules": {"bins": {}, "static": [*STATIC]},
}


def read(data: Path, whole: bool) -> cc.Series:
    """The hourly series of both hospitals."""
    file = "challenge2019_all.parquet" if whole else "challenge2019_sample2000.parquet"
    columns = ["patient", "ICULOS", "SepsisLabel", *NAMES, *STATIC]
    table = pd.read_parquet(data / "sepsis-challenge2019" / file, columns=columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OddValues)
        return cc.Series.read(table, patient="patient", time="ICULOS", step="1h")


def discover(gateways: list[cc.Series], epsilon: float, bins: dict, static: list[str]) -> cc.RuleDiscovery:
    """One model."""
    rich = cc.Policy(budget=cc.Budget("unlimited"))
    sites = [cc.Site(f"gateway {place}", one, rich) for place, one in enumerate(gateways, start=1)]
    limits = {name: list(place_limits(CLINICAL_RANGES[name])) for name in NAMES}
    return cc.RuleDiscovery(
        "SepsisLabel",
        window="6h",
        prevalence=0.05,
        epsilon=epsilon,
        bins={**limits, **bins},
        static=static,
        limits=2,
    ).fit(cc.House(sites))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    series = read(asked.data, asked.whole)
    half = np.random.default_rng(1).permutation(len(series)) % 2 == 0
    learn, test = series.take(half), cc.Patients(series=series.take(~half))
    gateways = [learn.take(np.arange(len(learn)) % 3 == place) for place in range(3)]
    print(f"{len(learn):,} patients teach, {len(test):,} are predicted; epsilon = {asked.epsilon:g}\n")
    print("| Age and Gender | rules | that name Age or Gender | AUROC, held-out patients |")
    print("|---|---|---|---|")
    last = None
    for name, setting in SETTINGS.items():
        rules, naming, scores = [], [], []
        for _ in range(asked.runs):
            last = discover(gateways, asked.epsilon, **setting)
            rules.append(len(last.rules_))
            naming.append(sum(bool(rule.formula.variables & {*STATIC}) for rule in last.rules_))
            if last.find_why_silent() is None:
                found = last.find_outcomes(test)
                scores.append(roc_auc_score(found.truth, last.predict_proba(found.asked)[:, 1]))
        auc = f"{np.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})" if scores else "none"
        silent = asked.runs - len(scores)
        said = f"{auc}; {silent} of {asked.runs} predict nothing" if scores and silent else auc
        print(f"| {name} | {np.mean(rules):.0f} | {np.mean(naming):.0f} | {said} |", flush=True)
        if "variables" in name:
            first = [rule.text for rule in last.rules_ if rule.formula.variables & {*STATIC}][:4]
    print(f"\nRules such as {'; '.join(first)}\n")
    print(last.text())


if __name__ == "__main__":
    main()
