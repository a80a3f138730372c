"""Temporal rules of one hospital, judged on the patients of another: A and B of Challenge 2019, in both directions.

    python experiments/temporal_transfer.py DATA [--patients 20000] [--epsilon 4]
    python experiments/temporal_transfer.py DATA --telling [--patients 20000]

Rules are discovered and weighed under `secure-sum` over three gateways of the one hospital. Beside them stands a
logistic regression without privacy on mean, least, largest and last value of the same windows. A patient is judged in
one window of six hours: where SepsisLabel turns 1 (six hours before clinical onset), or at a matched time since
admission. Then, what a ward asks: AUROC so
many hours before onset, and alarms for each patient-day with the lead time, at a sensitivity of 0.8 over stays.

`--telling` asks how many of the rules that say most of the outcome a search finds, at each epsilon: the 20 whose odds
ratio is furthest from 1 in a search by discrimination without noise worth the name (epsilon = 1000), at hospital A.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import concilium as cc
from concilium.records.clinical_ranges import CLINICAL_RANGES, place_limits
from concilium.temporal.outcome_questions import count_hours, find_judged_windows, match_controls
from concilium.temporal.rule_questions import prepare

NAMES = [
    "HR",
    "Temp",
    "Resp",
    "MAP",
    "SBP",
    "DBP",
    "O2Sat",
    "WBC",
    "Lactate",
    "Creatinine",
    "BUN",
    "Platelets",
    "pH",
    "Glucose",
]
WINDOW, STEPS = "6h", 6
HORIZONS = (4, 8, 12, 24)


def read_hospital(data: Path, hospital: str, patients: int) -> cc.Series:
    """The hourly series of the first so many patients; the outcome turns 1 at onset (the label comes six hours
    earlier)."""
    columns = ["patient", "hospital", "ICULOS", "SepsisLabel", *NAMES]
    table = pd.read_parquet(data / "sepsis-challenge2019" / "challenge2019_all.parquet", columns=columns)
    table = table[table["hospital"] == hospital]
    table = table[table["patient"].isin(table["patient"].unique()[:patients])]
    return cc.Series.read(
        table.drop(columns="hospital"),
        patient="patient",
        time="ICULOS",
        step="1h",
        variables=[*NAMES, "SepsisLabel"],
    )


def discover(series: cc.Series, epsilon: float, search: str = "prevalence") -> tuple[cc.RuleDiscovery, float]:
    """The model of one hospital, over three gateways, and the seconds that it took."""
    rich = cc.Policy(budget=cc.Budget("unlimited"))
    rows = np.arange(len(series)) % 3
    sites = [cc.Site(f"gateway {place + 1}", series.take(rows == place), rich) for place in range(3)]
    bins = {name: list(place_limits(CLINICAL_RANGES[name])) for name in NAMES}
    start = time.perf_counter()
    model = cc.RuleDiscovery(
        "SepsisLabel", window=WINDOW, prevalence=0.05, epsilon=epsilon, bins=bins, limits=2, search=search
    ).fit(cc.House(sites))
    return model, time.perf_counter() - start


def summarise(windows: cc.Series) -> np.ndarray:
    """Mean, least, largest and last value of every variable in each window."""
    with np.errstate(all="ignore"):
        grids = [windows[name] for name in NAMES]
        filled = [pd.DataFrame(grid).ffill().to_numpy() for grid in grids]
        rows = [
            one
            for grid, last in zip(grids, filled, strict=True)
            for one in (
                pd.DataFrame(grid).mean(),
                pd.DataFrame(grid).min(),
                pd.DataFrame(grid).max(),
                last[-1],
            )
        ]
    return np.column_stack([np.asarray(row, dtype=float) for row in rows])


def judge(model: cc.RuleDiscovery, learn: cc.Series, test: cc.Series) -> dict[str, float]:
    """AUROC of the rules and of a logistic regression on the windows of another hospital."""
    task = model.task
    prepared = [prepare(one, task) for one in (learn, test)]
    weights = match_controls(count_hours(prepared[0], "SepsisLabel", STEPS), 0.0)
    cut = []
    for one in prepared:
        ends, positive = find_judged_windows(one, "SepsisLabel", STEPS, weights)
        rows = np.flatnonzero(ends)
        cut.append((one.choose(NAMES).cut(ends[rows], STEPS, rows), positive[rows], rows, ends[rows]))
    (train, truth, _, _), (fresh, labels, rows, ends) = cut
    plain = make_pipeline(
        SimpleImputer(keep_empty_features=True), StandardScaler(), LogisticRegression(max_iter=300)
    )
    plain.fit(summarise(train), truth)
    risk = model.predict_proba(fresh)[:, 1]
    figures = {
        "rules": roc_auc_score(labels, risk),
        "regression": roc_auc_score(labels, plain.predict_proba(summarise(fresh))[:, 1]),
        "mean risk": float(risk.mean()),
        "prevalence": float(labels.mean()),
    }
    for hours in HORIZONS:
        there = ~labels | (ends - hours >= STEPS)
        moved = np.where(labels, ends - hours, ends)[there]
        early = prepared[1].choose(NAMES).cut(moved, STEPS, rows[there])
        figures[f"rules, {hours} h before"] = roc_auc_score(labels[there], model.predict_proba(early)[:, 1])
    figures |= count_alarms(model, prepared[1])
    return figures


def count_alarms(model: cc.RuleDiscovery, series: cc.Series, sensitivity: float = 0.8) -> dict[str, float]:
    """Alarms for each patient-day, and hours from the first alarm to onset, where 80 % of the septic stays have one
    before onset. A stay is judged every hour until onset; an alarm is the beginning of a run of hours above the
    threshold."""
    outcome, starts = series.stays["SepsisLabel"], series.starts
    stays = np.random.default_rng(1).permutation(len(series))[:3000]
    owners, ends = [], []
    for row in stays.tolist():
        ill = np.flatnonzero(outcome[starts[row] : starts[row + 1]] == 1)
        last = int(ill[0]) if len(ill) else int(series.lengths[row])
        owners += [row] * max(last - STEPS + 1, 0)
        ends += range(STEPS, last + 1)
    owned, ended = np.array(owners), np.array(ends)
    risk = model.predict_proba(series.choose(NAMES).cut(ended, STEPS, owned))[:, 1]
    septic = {row for row in stays.tolist() if (outcome[starts[row] : starts[row + 1]] == 1).any()}
    best = pd.Series(risk).groupby(owned).max()
    peaks = np.sort(best[[row in septic for row in best.index]])[::-1]
    threshold = peaks[min(int(np.ceil(sensitivity * len(peaks))) - 1, len(peaks) - 1)]
    flagged = risk >= threshold
    begins = flagged & ~(
        np.concatenate(([False], flagged[:-1])) & (np.concatenate(([-1], owned[:-1])) == owned)
    )
    frame = pd.DataFrame({"owner": owned, "end": ended})
    first = frame[flagged & np.isin(owned, list(septic))].groupby("owner")["end"].min()
    onset = frame.groupby("owner")["end"].max()
    return {
        "alarms per patient-day": float(begins.sum() / (len(risk) / 24)),
        "median lead time, hours": float((onset[first.index] - first).median()),
    }


def count_telling(series: cc.Series) -> None:
    """Of the 20 most telling rules without noise, the share that each search finds; how many it takes for telling."""

    def find(epsilon: float, search: str) -> tuple[list[str], int]:
        rules = discover(series, epsilon, search)[0].rules_
        return [rule.structure for rule in rules], sum(rule.tells for rule in rules)

    reference = set(find(1000, "discrimination")[0][:20])
    print(
        f"| of the {len(reference)} most telling rules, {len(series):,} patients | found | rules found | telling |"
    )
    print("|---|---|---|---|")
    for search in ("prevalence", "discrimination"):
        for epsilon in (1, 2, 4, 8):
            found, telling = find(epsilon, search)
            share = len(reference & {*found}) / len(reference)
            print(f"| {search}, e = {epsilon} | {share:.0%} | {len(found)} | {telling} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--patients", type=int, default=40_000)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--telling", action="store_true")
    chosen = parser.parse_args()
    if chosen.telling:
        count_telling(read_hospital(chosen.data, "A", chosen.patients))
        return
    hospitals = {name: read_hospital(chosen.data, name, chosen.patients) for name in "AB"}
    for here, there in (("A", "B"), ("B", "A")):
        model, seconds = discover(hospitals[here], chosen.epsilon)
        print(f"learned at {here} ({len(hospitals[here])} patients, {seconds:.0f} s), judged at {there}")
        for name, figure in judge(model, hospitals[here], hospitals[there]).items():
            print(f"  {name:32} {figure:.3f}")
        print("\n".join(model.text().splitlines()[:12]), flush=True)


if __name__ == "__main__":
    main()
