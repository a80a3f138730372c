"""Tables 7.4 and 7.5 of the thesis on other patients: one tree against voting trees for twenty rare diagnoses.

python experiments/voting_diabetes.py DATA      DATA is a folder with diabetic_data.csv.gz (UCI 296, diabetes130)
python experiments/voting_diabetes.py DATA --development

Patients are the first stays of 71,518 diabetics; sites are the medical specialties that admitted them (the data name no
hospital). A diagnosis is a three-character ICD-9 category among diag_1 to diag_3, so none of these three columns is an
attribute. The twenty are drawn by SEED from those that 0.5 to 2.5 % of all patients have, each with a query like those
of 7.5 (a span of age, and a sex or a race) that selects at least 100 positives, fewer than 2.5 % of its patients. 30 %
of every site's patients are held back from learning, and the figures are theirs. The defaults of `VotingTrees` were
settled on twenty DEVELOPMENT diagnoses, which are not among those drawn from: --development prints what was TRIED.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import concilium as cc
from concilium.evaluation.leave_out import hold_out
from concilium.evaluation.metrics import Figures, measure
from concilium.records.columns import Coded, Column
from concilium.trees.voting import VotingTrees

SEED = 7
DIAGNOSES = 20
RARE = (0.005, 0.025)
LEAST_POSITIVES = 100
HELD_BACK = 0.3
# fmt: off
DEVELOPMENT = {
    "197", "295", "303", "357", "402", "413", "415", "425", "433", "435",
    "507", "571", "577", "578", "590", "722", "784", "799", "8", "996",
}
# fmt: on
SPANS = ((20, 60), (40, 70), (50, 80), (60, 90))
GROUPS = ("gender = 'Female'", "gender = 'Male'", "race = 'Caucasian'", "race = 'AfricanAmerican'")
QUERIES = tuple(f"age >= {low} and age < {high} and {group}" for low, high in SPANS for group in GROUPS)
THESIS = {"vote": "majority", "max_depth": None, "min_leaf": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "the thesis: majority vote, any depth": THESIS,
    "the default: balanced vote, at most 4 questions, 5 patients to a branch": {},
    "the default with 20 patients to a branch": {"min_leaf": 20},
    "the default with a majority vote": {"vote": "majority"},
    "the thesis with 1 negative and at most 4 questions": {**THESIS, "negatives": 1, "max_depth": 4},
}
# What was tried on the DEVELOPMENT diagnoses before the default was settled.
TRIED: dict[str, dict[str, Any]] = {
    "the thesis: majority vote, any depth": THESIS,
    **{
        f"balanced vote, depth {depth or 'any'}, {leaf} to a branch": {"max_depth": depth, "min_leaf": leaf}
        for depth, leaf in ((3, 1), (4, 1), (5, 1), (4, 5), (4, 10), (4, 20), (None, 10), (None, 20))
    },
}
SHOWN_IN_FULL = 2

CODES = ("admission_type_id", "discharge_disposition_id", "admission_source_id")
DIAG = ("diag_1", "diag_2", "diag_3")
BINS = {
    "time_in_hospital": [2, 4, 7],
    "num_lab_procedures": [20, 35, 50, 65],
    "num_procedures": [1, 2, 4],
    "num_medications": [8, 12, 16, 22],
    "number_outpatient": [1],
    "number_emergency": [1],
    "number_inpatient": [1, 2],
    "number_diagnoses": [5, 7, 9],
}
# Of the 23 drugs those that at least one patient in fifty gets; weight is missing for 97 %.
DRUGS = ("metformin", "glimepiride", "glipizide", "glyburide", "pioglitazone", "rosiglitazone", "insulin")
PLAIN = ("race", "gender", "payer_code", "max_glu_serum", "A1Cresult", "change", "diabetesMed")
ATTRIBUTES = ("age", *PLAIN, *CODES, *DRUGS, *BINS)
FIGURES = ("balanced_accuracy", "mcc", "sensitivity", "specificity")

Categories = NDArray[np.str_]


@dataclass(frozen=True)
class Task:
    """One diagnosis, and whom it is looked for among."""

    diagnosis: str
    query: str


@dataclass(frozen=True)
class Outcome:
    """What one tree and the ensemble did for a task."""

    task: Task
    positives: int
    patients: int
    sites: int
    experts: int
    learned_from: float | None
    single: Figures
    voting: Figures

    @property
    def gain(self) -> float:
        return value(self.voting, "balanced_accuracy") - value(self.single, "balanced_accuracy")


def read_patients(folder: Path) -> tuple[dict[str, Column], Categories]:
    """The columns of every patient's first stay, and the categories of its three diagnoses."""
    stated = dict.fromkeys((*CODES, *DIAG), "code") | {"encounter_id": "number", "patient_nbr": "number"}
    stays = cc.Records.read(folder / "diabetic_data.csv.gz", schema=stated, missing=("?",))
    number = {name: stays[name].numbers for name in ("encounter_id", "patient_nbr")}
    order = np.lexsort((number["encounter_id"], number["patient_nbr"]))
    who = number["patient_nbr"][order]
    first = stays.take(np.sort(order[np.concatenate([[True], who[1:] != who[:-1]])]))
    columns = {name: first[name] for name in ATTRIBUTES}
    columns["age"] = recode(first["age"], lambda span: int(span.strip("[)").split("-")[0]), 0)
    columns["site"] = recode(first["medical_specialty"], str, "not recorded")
    return columns, np.column_stack([category(first[name]) for name in DIAG])


def recode(column: Coded, read: Any, missing: Any) -> Coded:
    """A column with other values, and one for what is missing."""
    return encode(np.array([missing, *(read(one) for one in column.values)])[column.codes])


def encode(values: NDArray[Any]) -> Coded:
    distinct, codes = np.unique(values, return_inverse=True)
    return Coded((codes + 1).astype(np.uint16), tuple(distinct.tolist()))


def category(column: Coded) -> Categories:
    """The three-character category of each row's code: what stands before the dot."""
    return np.array(["", *(str(code).split(".")[0] for code in column.values)])[column.codes]


def draw_tasks(columns: dict[str, Column], categories: Categories, development: bool) -> list[Task]:
    """The diagnoses and their queries, by SEED: the first twenty of a shuffled list that a shuffled query fits."""
    draw = random.Random(SEED)
    shares = {one: float((categories == one).any(axis=1).mean()) for one in np.unique(categories) if one}
    rare = sorted(one for one, share in shares.items() if RARE[0] <= share <= RARE[1])
    everyone = cc.Records(columns)
    selected = {query: cc.Query.parse(query).mask(everyone) for query in QUERIES}
    tasks = []
    for diagnosis in draw.sample(rare, len(rare)):
        positive = (categories == diagnosis).any(axis=1)
        for query in draw.sample(QUERIES, len(QUERIES)):
            among = positive[selected[query]]
            if among.sum() >= LEAST_POSITIVES and among.mean() < RARE[1]:
                if (diagnosis in DEVELOPMENT) == development:
                    tasks.append(Task(str(diagnosis), query))
                break
    return tasks[:DIAGNOSES]


def deal(columns: dict[str, Column], positive: NDArray[np.bool_], query: str) -> tuple[Any, Any]:
    """Every site's patients to learn from, and all that are held back."""
    table = cc.Records({**columns, "diagnosis": encode(np.where(positive, "yes", "no"))})
    learning, held_back = {}, []
    for site, patients in table.take(cc.Query.parse(query).mask(table)).split("site").items():
        held = np.zeros(len(patients), dtype=np.bool_)
        if len(patients) > 1:
            held = hold_out(len(patients), HELD_BACK, site, "voting diabetes")
        learning[site] = patients.take(~held)
        held_back.append(patients.take(held))
    return learning, held_back


def compare(
    task: Task, columns: dict[str, Column], categories: Categories, settings: dict[str, Any]
) -> Outcome:
    """One tree and the ensemble, learnt from the same sites and tried on the same held-back patients."""
    learning, held_back = deal(columns, (categories == task.diagnosis).any(axis=1), task.query)
    house = cc.House([cc.Site(name, patients) for name, patients in learning.items()])
    options = {"growth": "id3", "query": task.query, "bins": BINS, "attributes": ATTRIBUTES, **settings}
    # No share is below 0: one ordinary tree, of the very sites that take part in the ensemble.
    single = VotingTrees("diagnosis", "yes", **options, imbalance=0).fit(house)
    voting = VotingTrees("diagnosis", "yes", **options).fit(house)
    body = voting.body
    return Outcome(
        task,
        body.positives,
        body.patients,
        len(voting.card.sites),
        len(body.experts),
        next((s.balanced_accuracy for s in body.stages if s.experts == len(body.experts)), None),
        try_on(single, held_back),
        try_on(voting, held_back),
    )


def try_on(model: VotingTrees, tables: list[cc.Records]) -> Figures:
    truth = [one for table in tables for one in table.values("diagnosis")]
    shares = np.concatenate([model.predict_proba(table) for table in tables if len(table)])
    predicted = np.array(model.classes_).take(np.argmax(shares, axis=1)).tolist()
    return measure(truth, predicted, shares, model.classes_, positive="yes")


def value(figures: Figures, name: str) -> float:
    figure = figures[name]
    assert figure is not None, "held-back patients of both classes are needed"
    return figure


def tell(outcomes: list[Outcome]) -> None:
    """A row for each diagnosis, and the medians."""
    print(
        "| ICD-9 | query | sites | positives | patients | experts | balanced accuracy | gain | MCC |", end=""
    )
    print(" sensitivity | specificity |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for one in outcomes:
        pairs = [f"{value(one.single, name):.3f} → {value(one.voting, name):.3f}" for name in FIGURES]
        print(
            f"| {one.task.diagnosis} | {one.task.query} | {one.sites} | {one.positives} | {one.patients} "
            f"| {one.experts} | {pairs[0]} | {100 * one.gain:+.1f} | {' | '.join(pairs[1:])} |"
        )
    print(f"| median | | | | | {' | '.join(medians(outcomes))} |")


def medians(outcomes: list[Outcome]) -> list[str]:
    """Experts, balanced accuracy, gain, MCC, sensitivity, specificity."""
    kinds = ([one.single for one in outcomes], [one.voting for one in outcomes])
    pairs = [
        " → ".join(f"{statistics.median(value(figures, name) for figures in kind):.3f}" for kind in kinds)
        for name in FIGURES
    ]
    experts = statistics.median(one.experts for one in outcomes)
    gain = 100 * statistics.median(one.gain for one in outcomes)
    return [f"{experts:g}", pairs[0], f"{gain:+.1f}", *pairs[1:]]


def tell_medians(results: dict[str, list[Outcome]]) -> None:
    print(
        "| medians | experts | balanced accuracy | gain | MCC | sensitivity | specificity | of those learned from |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, outcomes in results.items():
        own = statistics.median(one.learned_from for one in outcomes if one.learned_from is not None)
        print(f"| {name} | {' | '.join(medians(outcomes))} | {own:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder with diabetic_data.csv.gz")
    parser.add_argument("--development", action="store_true", help="what the default was settled on")
    asked = parser.parse_args()
    columns, categories = read_patients(asked.data)
    tasks = draw_tasks(columns, categories, asked.development)
    results = {}
    for name, settings in (TRIED if asked.development else SETTINGS).items():
        begun = time.perf_counter()
        results[name] = [compare(task, columns, categories, settings) for task in tasks]
        print(f"\n{name} ({time.perf_counter() - begun:.0f} s)\n", flush=True)
        if len(results) <= SHOWN_IN_FULL and not asked.development:
            tell(results[name])
    print()
    tell_medians(results)
    if not asked.development:
        thesis, default = list(results.values())[:2]
        gain = statistics.median(
            value(after.voting, "balanced_accuracy") - value(before.single, "balanced_accuracy")
            for before, after in zip(thesis, default, strict=True)
        )
        print(f"\nmedian gain of the default over the thesis' single tree: {100 * gain:+.1f} points")


if __name__ == "__main__":
    main()
