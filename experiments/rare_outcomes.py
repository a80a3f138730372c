"""Twelve rare outcomes: one tree, the same tree cut at prevalence, voting trees, RuleFit, and two of scikit-learn's.

python experiments/rare_outcomes.py DATA                 DATA is a folder with diabetic_data.csv.gz (UCI 296)
python experiments/rare_outcomes.py DATA --divisions 1   one division of the patients in place of three

Nine of the twelve are patient data of SurvSet (`pip install SurvSet`) with a fixed table, at least 2,900 patients and
three attributes: the outcome is the event within so short a time that at most one patient in fifty has it, and who was
censored before is left out (of Dialysis, rhc and acath more have it at the first time there is). Three are how the
first stays of diabetics end. None of them had a say in any default. Sites are eight, by chance. 30 % of every site's
patients are held back, and the figures are theirs: means over divisions of the patients, then medians over problems.

All trees have at most four questions and five patients to a leaf (one has 50); numbers are cut at fifths (RuleFit: at
twentieths) of the patients learned from, which stand for public cutoffs. scikit-learn has the pooled table, numbers as
they are and codes one column each: `balanced tree` is DecisionTreeClassifier(class_weight="balanced") of the same size;
`balanced forest` is Chen, Liaw and Breiman's (2004): 300 trees to the end, each of as many negatives as positives,
drawn with replacement.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score
from sklearn.tree import DecisionTreeClassifier
from SurvSet.data import SurvLoader

import concilium as cc
from concilium.evaluation.leave_out import hold_out

SURVSET = (
    "dataDIVAT1", "prostateSurvival", "nwtco", "dataDIVAT3", "smarto", "support2", "flchain", "Framingham", "rott2",
)  # fmt: skip
# Known after the outcome: the cause of death, how long a stay was and what it cost, orders not to resuscitate.
LATER = ("fac_chapter", "num_slos", "num_hday", "num_charges", "num_totcst", "num_totmcst", "num_avtisst", "fac_dnr",
         "num_dnrday", "fac_sfdm2", "fac_hospdead")  # fmt: skip
DISCHARGES = {"died": ("11",), "hospice": ("13", "14"), "left against advice": ("7",)}
RARE = 0.02
SITES = 8
HELD_BACK = 0.3
DIVISIONS = 3
FOREST = 300
LIMITS = {"max_depth": 4, "min_leaf": 5}
LARGER_LEAF = 50

Labels = NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """Patients (columns that begin with num_ are numbers), who of them is positive, and where they are."""

    name: str
    table: pd.DataFrame
    positive: Labels
    site: NDArray[np.str_]

    @property
    def numbers(self) -> list[str]:
        return [name for name in self.table if name.startswith("num_")]


@dataclass(frozen=True)
class Part:
    """The patients of a division: to learn from, or held back."""

    problem: Problem
    rows: NDArray[np.intp]

    @property
    def truth(self) -> Labels:
        return self.problem.positive[self.rows]

    @property
    def table(self) -> pd.DataFrame:
        return self.problem.table.iloc[self.rows]


def read_survset(name: str) -> Problem:
    """The event within the time in which one patient in fifty has it."""
    frame, _ = SurvLoader().load_dataset(name).values()
    time_, event = frame["time"].to_numpy(dtype=float), frame["event"].to_numpy() == 1
    horizon = max(one for one in np.unique(time_[event]) if share_by(time_, event, one) <= RARE)
    known = (event & (time_ <= horizon)) | (time_ > horizon)
    frame, positive = frame[known].reset_index(drop=True), (event & (time_ <= horizon))[known]
    apart = [one for one in ("pid", "event", "time", *LATER) if one in frame]
    return Problem(name, frame.drop(columns=apart), positive, deal(len(frame), name))


def share_by(time_: NDArray[np.float64], event: Labels, horizon: float) -> float:
    """The share of those who have the event by then, among those of whom that is known."""
    had = int((event & (time_ <= horizon)).sum())
    return had / (had + int((time_ > horizon).sum()))


def read_diabetes(folder: Path, discharge: str) -> Problem:
    """How a stay ends, by what is known on admission."""
    stays = pd.read_csv(folder / "diabetic_data.csv.gz", dtype=str, keep_default_na=False, na_values="?")
    stays = stays.sort_values("encounter_id", key=lambda ids: ids.astype(int)).drop_duplicates("patient_nbr")
    codes = [
        "race",
        "gender",
        "payer_code",
        "admission_type_id",
        "admission_source_id",
        "A1Cresult",
        "insulin",
    ]
    table = stays[codes].rename(columns=lambda name: f"fac_{name}").reset_index(drop=True)
    table["num_age"] = stays["age"].str.extract(r"(\d+)", expand=False).astype(float).to_numpy()
    for name in ("number_outpatient", "number_emergency", "number_inpatient", "number_diagnoses"):
        table[f"num_{name}"] = stays[name].astype(float).to_numpy()
    table["fac_diagnosis"] = stays["diag_1"].str.slice(0, 1).to_numpy()
    positive = stays["discharge_disposition_id"].isin(DISCHARGES[discharge]).to_numpy()
    return Problem(f"diabetes130: {discharge}", table, positive, deal(len(table), discharge))


def deal(patients: int, name: str) -> NDArray[np.str_]:
    draw = np.random.default_rng(sum(map(ord, name)))
    return np.array([f"site {one}" for one in draw.integers(SITES, size=patients)])


def divide(problem: Problem, division: int) -> tuple[Part, Part]:
    held = np.zeros(len(problem.table), dtype=np.bool_)
    for site in np.unique(problem.site):
        rows = np.flatnonzero(problem.site == site)
        if len(rows) > 1:
            held[rows] = hold_out(len(rows), HELD_BACK, f"{problem.name} {site}", f"rare {division}")
    return Part(problem, np.flatnonzero(~held)), Part(problem, np.flatnonzero(held))


def open_house(part: Part) -> cc.House:
    table = as_records(part.table.assign(outcome=np.where(part.truth, "yes", "no")))
    sites = part.problem.site[part.rows]
    return cc.House(
        [cc.Site(str(name), table.take(np.flatnonzero(sites == name))) for name in np.unique(sites)]
    )


def as_records(frame: pd.DataFrame) -> cc.Records:
    schema = {name: "number" if name.startswith("num_") else "code" for name in frame}
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return cc.Records.from_rows(rows, schema=schema)


def find_bins(part: Part, parts: int) -> dict[str, list[float]]:
    quantiles = np.arange(1, parts) / parts
    bins = {name: np.unique(part.table[name].dropna().quantile(quantiles)) for name in part.problem.numbers}
    return {name: edges.tolist() for name, edges in bins.items() if len(edges)}


def try_tree(learn: Part, held: Part) -> dict[str, Labels]:
    house, patients = open_house(learn), as_records(held.table)
    options = {
        "positive": "yes",
        "threshold": "prevalence",
        "growth": "id3",
        "bins": find_bins(learn, 5),
        **LIMITS,
    }
    tree = cc.DecisionTree("outcome", **options).fit(house)
    larger = cc.DecisionTree("outcome", **{**options, "min_leaf": LARGER_LEAF}).fit(house)
    return {
        "tree at a half": tree.predict_proba(patients)[:, 1] > 0.5,
        "tree at prevalence": tree.predict(patients) == "yes",
        f"tree at prevalence, {LARGER_LEAF} to a leaf": larger.predict(patients) == "yes",
    }


def try_voting(learn: Part, held: Part) -> dict[str, Labels]:
    model = cc.VotingTrees("outcome", "yes", growth="id3", bins=find_bins(learn, 5)).fit(open_house(learn))
    return {"voting trees": model.predict(as_records(held.table)) == "yes"}


def try_rulefit(learn: Part, held: Part) -> dict[str, Labels]:
    model = cc.RuleFit(
        "outcome", "yes", bins=find_bins(learn, 20), penalty="auto", threshold="prevalence", release="exact"
    ).fit(open_house(learn))
    return {"RuleFit at prevalence": model.predict(as_records(held.table)) == "yes"}


def try_sklearn(learn: Part, held: Part) -> dict[str, Labels]:
    both = pd.concat([learn.table, held.table])
    flat = pd.get_dummies(both, columns=[one for one in both if not one.startswith("num_")], dummy_na=True)
    flat = flat.fillna(learn.table[learn.problem.numbers].median())
    matrix = flat.to_numpy(dtype=np.float64)
    x, new = matrix[: len(learn.rows)], matrix[len(learn.rows) :]
    tree = DecisionTreeClassifier(class_weight="balanced", max_depth=4, min_samples_leaf=5, random_state=0)
    return {
        "balanced tree": tree.fit(x, learn.truth).predict(new),
        "balanced forest": grow_forest(x, learn.truth, new),
    }


def grow_forest(x: NDArray[np.float64], y: Labels, new: NDArray[np.float64]) -> Labels:
    """What most trees of a balanced forest say of new patients."""
    draw = np.random.default_rng(0)
    yes, no = np.flatnonzero(y), np.flatnonzero(~y)
    votes = np.zeros(len(new))
    for number in range(FOREST):
        rows = np.concatenate([draw.choice(yes, len(yes)), draw.choice(no, len(yes))])
        tree = DecisionTreeClassifier(max_features="sqrt", random_state=number).fit(x[rows], y[rows])
        votes += tree.predict(new)
    said: Labels = votes > FOREST / 2
    return said


WAYS: tuple[Callable[[Part, Part], dict[str, Labels]], ...] = (try_tree, try_voting, try_rulefit, try_sklearn)


def measure(problem: Problem, divisions: int) -> dict[str, float]:
    """The balanced accuracy of every way, in points, as a mean over divisions."""
    figures: dict[str, list[float]] = {}
    for division in range(divisions):
        learn, held = divide(problem, division)
        for way in WAYS:
            for name, called in way(learn, held).items():
                figures.setdefault(name, []).append(100 * balanced_accuracy_score(held.truth, called))
    return {name: statistics.mean(own) for name, own in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder with diabetic_data.csv.gz")
    parser.add_argument("--divisions", type=int, default=DIVISIONS)
    asked = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for name in (*SURVSET, *DISCHARGES):
        begun = time.perf_counter()
        problem = read_diabetes(asked.data, name) if name in DISCHARGES else read_survset(name)
        figures = results[name] = measure(problem, asked.divisions)
        if len(results) == 1:
            print(f"| balanced accuracy, points | patients | positive | {' | '.join(figures)} |")
            print("|---|" + "---|" * (len(figures) + 2))
        row = " | ".join(f"{one:.1f}" for one in figures.values())
        print(
            f"| {problem.name} | {len(problem.table):,} | {int(problem.positive.sum())} | {row} |", flush=True
        )
        print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    ways = list(results["died"])
    medians = " | ".join(f"{statistics.median(one[way] for one in results.values()):.1f}" for way in ways)
    print(f"| median | | | {medians} |")
    beside = [
        f"{statistics.median(one['voting trees'] - one[way] for one in results.values()):+.1f}"
        for way in ways
    ]
    print(f"| voting trees above it, median | | | {' | '.join(beside)} |")


if __name__ == "__main__":
    main()
