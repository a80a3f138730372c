"""Temporal rules for sepsis, death in intensive care and high glucose, beside logistic regression on the same windows.

python experiments/temporal_rules.py DATA [--pages FOLDER] [--each] [--whole]

DATA is the folder of the three data sets. A quarter of the patients is held out: rules and weights come from the rest,
the figures from them. The logistic regression sees the mean, the least, the largest and the last value of every
variable in the same windows (missing values replaced by the training median), both classes counting the same.
`--pages` writes the report of each, with courses of patients. `--each` times the rule sets of single patients: those
of the sample, or with `--whole` of all 40,336.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress
from sklearn.linear_model import LogisticRegression

from concilium.consult.rule_report import render_rule_report
from concilium.evaluation.metrics import Figures, measure
from concilium.evaluation.rule_judgement import judge_vote
from concilium.records.series import Series
from concilium.records.series_description import OddValues
from concilium.temporal.learning import LabelledWindows, RuleLearner, RuleVote, cut_windows
from concilium.temporal.search_space import SearchSpace

SEED, PROCESSES = 1, 2
VITALS = ["HR", "O2Sat", "Temp", "SBP", "MAP", "DBP", "Resp"]
ICU = ["HR", "Temp", "NISysABP", "GCS", "Urine", "BUN", "Creatinine", "HCO3", "WBC", "Glucose", "Platelets"]
SHOWN = ("balanced_accuracy", "f1", "auc")


def read_sepsis(data: Path, whole: bool = False) -> LabelledWindows:
    """Six hours of vital signs; positive from six hours before the onset of sepsis on."""
    name = "challenge2019_all.parquet" if whole else "challenge2019_sample2000.parquet"
    series = Series.read(
        data / "sepsis-challenge2019" / name,
        time="ICULOS",
        origin="first",
        variables=[*VITALS, "SepsisLabel"],
    )
    return cut_windows(series.carry_forward(dict.fromkeys(VITALS, "6h")), "SepsisLabel", "6h")


def read_mortality(data: Path) -> LabelledWindows:
    """The first two days in intensive care, in steps of four hours; positive who died in hospital."""
    series = Series.read(
        data / "physionet2012" / "set-a_long.parquet",
        step="4h",
        variables=ICU,
        outside="leave out",
        longest=12,
    )
    outcomes = np.genfromtxt(data / "physionet2012" / "Outcomes-a.csv", delimiter=",", names=True)
    died = dict(
        zip(outcomes["RecordID"].astype(int).tolist(), outcomes["Inhospital_death"].tolist(), strict=True)
    )
    labels = [died[int(str(patient))] for patient in series.ids]
    return cut_windows(series.carry_forward(None), labels, 11, 100)


def read_glucose(data: Path) -> LabelledWindows:
    """Two hours of a glucose sensor; positive where it shows more than 180 mg/dL an hour later."""
    series = Series.read(
        data / "shanghai-cgm" / "shanghai_cgm.parquet", patient="file", step="15min", variables=["cgm_mgdl"]
    )
    glucose, ahead = series.stays["cgm_mgdl"], 4
    later = np.full_like(glucose, np.nan)
    later[:-ahead] = np.where(np.isnan(glucose[ahead:]), np.nan, glucose[ahead:] > 180)
    for end in series.starts[1:].tolist():  # the next patient's values are no future
        later[end - ahead : end] = np.nan
    windows = cut_windows(series.with_stays({"CGM": glucose, "high": later}), "high", "2h", "1h")
    # Some patients wore a sensor twice or three times; whoever is held out is held out with all recordings.
    people = np.array([str(recording).split("_")[0] for recording in series.ids])
    _, patients = np.unique(people, return_inverse=True)
    return LabelledWindows(windows.series, windows.labels, patients[windows.owners])


def describe_by_numbers(windows: LabelledWindows) -> NDArray[np.float64]:
    """Mean, least, largest and last value of every variable: what a regression sees of a window."""
    columns = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of windows without a value
        for name in windows.series.names:
            grid = windows.series[name]
            columns += [np.nanmean(grid, 0), np.nanmin(grid, 0), np.nanmax(grid, 0), grid[-1]]
    return np.array(columns, dtype=np.float64).T


def judge_regression(training: LabelledWindows, held_out: LabelledWindows) -> Figures:
    table, other = describe_by_numbers(training), describe_by_numbers(held_out)
    median = np.nan_to_num(np.nanmedian(table, axis=0))
    table, other = (np.where(np.isnan(part), median, part) for part in (table, other))
    mean, spread = table.mean(axis=0), table.std(axis=0) + 1e-9
    model = LogisticRegression(class_weight="balanced", max_iter=5000).fit(
        (table - mean) / spread, training.labels
    )
    chance = model.predict_proba((other - mean) / spread)
    return measure(
        held_out.labels.tolist(), (chance[:, 1] > 0.5).tolist(), chance, (False, True), positive=True
    )


def study(name: str, windows: LabelledWindows, learner: RuleLearner, pages: Path | None) -> None:
    fold = np.random.default_rng(SEED).integers(0, 4, int(windows.owners.max()) + 1)[windows.owners]
    training, held_out = windows.take(fold > 0), windows.take(fold == 0)
    start = time.perf_counter()
    rules = [rule.formula for rule in learner.learn(training)]
    vote = RuleVote.fit(rules, training)
    seconds = time.perf_counter() - start
    print(
        f"\n{name}: {len(training):,} windows to learn from, {len(held_out):,} held out, "
        f"{windows.labels.mean():.1%} positive"
    )
    print(f"  learned in {seconds:.1f} s; {len(vote.rules)} rules vote")
    for who, figures in (
        ("rules", judge_vote(vote, held_out)),
        ("logistic regression", judge_regression(training, held_out)),
    ):
        print(f"  {who:20}" + "   ".join(f"{key} {figures[key]:.3f}" for key in SHOWN))
    for line in str(vote).splitlines()[:8]:
        print(f"    {line}")
    if pages is not None:
        pages.mkdir(parents=True, exist_ok=True)
        page = pages / f"{name.split()[0].lower()}.html"
        page.write_text(render_rule_report(vote, held_out, name), encoding="utf-8")
        print(f"  {page}")


def time_each(data: Path, whole: bool) -> None:
    windows = read_sepsis(data, whole)
    learner = RuleLearner(space=SearchSpace.from_ranges(VITALS, 6), seed=SEED)
    patients = len(np.unique(windows.owners))
    start = time.perf_counter()
    with Progress() as bar:
        task = bar.add_task("patients", total=patients)
        each = learner.learn_each(windows, PROCESSES, lambda count: bar.advance(task, count))
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    count = sum(map(len, each.values()))
    print(
        f"\nrule sets of {patients:,} patients: {seconds:.0f} s on {PROCESSES} cores, "
        f"{count / patients:.1f} rules each, {memory:.2f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--pages", type=Path)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore", OddValues)
    if options.each:
        time_each(options.data, options.whole)
        return

    def make_learner(windows: LabelledWindows) -> RuleLearner:
        space = SearchSpace.from_ranges(windows.series.names, windows.series.points)
        return RuleLearner(
            space=space, rules=20, population=100, generations=40, patience=6, least=0.02, seed=SEED
        )

    for name, windows in (
        ("Sepsis in six hours", read_sepsis(options.data)),
        ("Death in hospital, from the first two days", read_mortality(options.data)),
        ("Glucose above 180 in an hour", read_glucose(options.data)),
    ):
        study(name, windows, make_learner(windows), options.pages)


if __name__ == "__main__":
    main()
