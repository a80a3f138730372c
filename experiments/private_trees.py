"""What privacy costs a tree: AUC of held-back patients against epsilon, beside other ways to spend the same budget.

python experiments/private_trees.py DATA [--peer PYTHON]     DATA is a folder with diabetic_data.csv.gz (UCI 296)

Three studies, each dealt to five hospitals, three in ten patients held back by a hash: 13,000 simulated patients with
20 attributes, eight of which matter; SurvSet's support2 (who of 9,105 seriously ill patients dies within 180 days);
diabetes130 (which of 69,973 diabetics discharged alive are admitted again). Values and cutoffs are public: codes as
documented, clinical ranges. Every private figure is the mean of REPETITIONS studies through a house with real noise at
delta = 1e-6. Ways: the private tree; one with a branch for each value (growth = "id3"); the same with its budget spread
evenly (every level asks about all attributes, all questions weigh the same); the one-level model; RuleFit;
diffprivlib's tree and its forest of ten, which see all patients in one table, at pure epsilon.
Infinite epsilon is release = "exact".

diffprivlib 0.6.6 does not import with scikit-learn 1.9; the table then says so. To see its figures, make it a Python of
its own and name it:  python -m venv peer && peer/bin/pip install diffprivlib==0.6.6 scikit-learn==1.5.2
                      python experiments/private_trees.py DATA --peer peer/bin/python
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import concilium as cc
from concilium.evaluation.leave_out import hold_out
from concilium.evaluation.metrics import auc
from concilium.models.prediction import NewPatients
from concilium.protocol.attributes import NOWHERE, Attribute, recode
from concilium.records.columns import Coded, Column, Numbers
from concilium.trees.private_growing import TreeBudget

UNLIMITED = cc.Policy(budget=cc.Budget("unlimited"))  # a simulation, with an epsilon of 10 in it
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, math.inf)
REPETITIONS = 3
DEPTH = 5
HOSPITALS = 5
HELD_BACK = 0.3

YES_NO = ["no", "yes"]
SUPPORT2_BINS = {
    "num_age": [50, 65, 75],
    "num_num_co": [1, 2, 3],
    "num_edu": [9, 12, 16],
    "num_scoma": [1, 40, 80],
    "num_hday": [2, 4, 10],
    "num_sps": [20, 30, 40],
    "num_meanbp": [60, 70, 110],
    "num_wblc": [4, 12, 20],
    "num_hrt": [60, 100, 140],
    "num_resp": [12, 25, 40],
    "num_temp": [36, 38.3],
    "num_pafi": [100, 200, 300],
    "num_alb": [2.5, 3.5],
    "num_bili": [1.2, 2, 6],
    "num_crea": [1.2, 2, 3.5],
    "num_sod": [135, 145],
    "num_ph": [7.25, 7.35, 7.45],
    "num_glucose": [70, 140, 200],
    "num_bun": [20, 40, 80],
    "num_urine": [500, 1500, 3000],
    "num_adls": [1, 3, 5],
}
SUPPORT2_VALUES = {
    "fac_sex": ["female", "male"],
    "fac_dzgroup": [
        "ARF/MOSF w/Sepsis",
        "CHF",
        "COPD",
        "Cirrhosis",
        "Colon Cancer",
        "Coma",
        "Lung Cancer",
        "MOSF w/Malig",
    ],
    "fac_race": ["white", "black", "hispanic", "asian"],
    "fac_diabetes": [0, 1],
    "fac_dementia": [0, 1],
    "fac_ca": ["no", "yes", "metastatic"],
}
DIABETES_BINS = {
    "age": [40, 50, 60, 70, 80],
    "time_in_hospital": [2, 4, 7],
    "num_lab_procedures": [20, 35, 50, 65],
    "num_procedures": [1, 2, 4],
    "num_medications": [8, 12, 16, 22],
    "number_outpatient": [1],
    "number_emergency": [1],
    "number_inpatient": [1, 2],
    "number_diagnoses": [5, 7, 9],
}
DOSES = ["No", "Steady", "Up", "Down"]
DRUGS = ("metformin", "glimepiride", "glipizide", "glyburide", "pioglitazone", "rosiglitazone", "insulin")
DIABETES_VALUES = {
    "race": ["AfricanAmerican", "Caucasian", "Hispanic"],
    "gender": ["Female", "Male"],
    "admission_type_id": [1, 2, 3],
    "discharge_disposition_id": [1, 2, 3, 5, 6, 22],
    "admission_source_id": [1, 4, 6, 7],
    "payer_code": ["BC", "HM", "MC", "MD", "SP"],
    "max_glu_serum": ["None", "Norm", ">200", ">300"],
    "A1Cresult": ["None", "Norm", ">7", ">8"],
    "change": ["No", "Ch"],
    "diabetesMed": ["No", "Yes"],
    **dict.fromkeys(DRUGS, DOSES),
}
DIED_OR_DYING = (11, 13, 14, 19, 20, 21)


@dataclass(frozen=True)
class Study:
    """Patients with a yes-or-no outcome, and all that a private study must say of them."""

    name: str
    learning: list[cc.Records]
    held_back: cc.Records
    values: dict[str, list[Any]]
    bins: dict[str, list[float]]

    def score(self, model: Any) -> float:
        likely = model.predict_proba(self.held_back)[:, model.classes_.index("yes")]
        return measure(self.truth, likely)

    @property
    def truth(self) -> NDArray[np.bool_]:
        return np.array([outcome == "yes" for outcome in self.held_back.values("outcome")])

    @property
    def names(self) -> list[str]:
        return sorted({*self.values, *self.bins})


def make_study(
    name: str, table: cc.Records, values: dict[str, list[Any]], bins: dict[str, list[float]]
) -> Study:
    # Private questions are answered about columns of which the hospital states how they are read.
    table = cc.Records({column: state(table[column]) for column in table.names})
    held = hold_out(len(table), HELD_BACK, name, "private trees")
    rows = np.flatnonzero(~held)
    home = np.array([deal(int(row)) for row in rows])
    learning = [table.take(rows[home == hospital]) for hospital in range(HOSPITALS)]
    return Study(name, learning, table.take(held), values, bins)


def state(column: Column) -> Column:
    if isinstance(column, Numbers):
        return Numbers(column.numbers, by_itself=True)
    return Coded(column.codes, column.values, stated=True)


def deal(row: int) -> int:
    """The synthetic hospital of a patient: by hash, so that everyone deals alike."""
    return int.from_bytes(hashlib.sha256(str(row).encode()).digest()[:8], "big") % HOSPITALS


def simulate() -> Study:
    """Eight attributes of twenty move the odds, and two of them together."""
    draw = np.random.default_rng(5)
    patients = round(13_000 / (1 - HELD_BACK))
    codes = draw.integers(0, 3, size=(patients, 20))
    weights = np.array([1.2, -1.0, 0.9, 0.8, -0.7, 0.6, 0.5, 0.5])
    odds = (codes[:, :8] - 1) @ weights + 0.9 * ((codes[:, 0] == 2) & (codes[:, 1] == 0))
    sick = draw.random(patients) < 1 / (1 + np.exp(-odds))
    names = [f"x{number:02}" for number in range(20)]
    columns = {
        name: Coded((codes[:, i] + 1).astype(np.uint8), ("a", "b", "c")) for i, name in enumerate(names)
    }
    table = cc.Records({**columns, "outcome": outcome(sick)})
    return make_study("simulation", table, {name: ["a", "b", "c"] for name in names}, {})


def read_support2() -> Study:
    from SurvSet.data import SurvLoader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        patients = SurvLoader().load_dataset(ds_name="support2")["df"]
    known = patients[(patients["event"] == 1) | (patients["time"] >= 180)]
    kinds = {**dict.fromkeys(SUPPORT2_BINS, "number"), **dict.fromkeys(SUPPORT2_VALUES, "code")}
    table = cc.Records.read(known[list(kinds)].reset_index(drop=True), schema=kinds)
    died = ((known["event"] == 1) & (known["time"] <= 180)).to_numpy()
    whole = cc.Records({**{name: table[name] for name in kinds}, "outcome": outcome(died)})
    return make_study("support2", whole, SUPPORT2_VALUES, SUPPORT2_BINS)


def read_diabetes(folder: Path) -> Study:
    """The first stay of every patient who left the hospital alive and not for a hospice."""
    places = [folder / "diabetes130" / "diabetic_data.csv.gz", folder / "diabetic_data.csv.gz"]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise SystemExit(f"{folder}: there is no diabetes130/diabetic_data.csv.gz in it")
    codes = [name for name in DIABETES_VALUES if name.endswith("_id")]
    kinds = {**dict.fromkeys(codes, "code"), "encounter_id": "number", "patient_nbr": "number"}
    stays = cc.Records.read(found, schema=kinds, missing=("?",))
    who, when = (stays[name].numbers for name in ("patient_nbr", "encounter_id"))
    order = np.lexsort((when, who))
    first = np.sort(order[np.concatenate([[True], np.diff(who[order]) != 0])])
    left = np.array(stays.values("discharge_disposition_id"))[first]
    stay = stays.take(first[~np.isin(left, DIED_OR_DYING)])
    columns = {name: stay[name] for name in (*DIABETES_VALUES, *DIABETES_BINS)}
    decade = [int(span.strip("[)").split("-")[0]) for span in stay.values("age")]
    columns["age"] = Numbers(np.array(decade, dtype=np.float64))
    again = np.array(stay.values("readmitted")) != "NO"
    table = cc.Records({**columns, "outcome": outcome(again)})
    return make_study("diabetes130", table, DIABETES_VALUES, DIABETES_BINS)


def outcome(yes: NDArray[np.bool_]) -> Coded:
    return Coded((yes + 1).astype(np.uint8), tuple(YES_NO))


def measure(truth: NDArray[np.bool_], likely: NDArray[np.float64]) -> float:
    figure = auc(truth, likely)
    assert figure is not None, "held-back patients of both classes are needed"
    return figure


class EvenTree(cc.DecisionTree):
    """A private tree that knows no better: all attributes at every level, every question the same weight."""

    @property
    def budget(self) -> TreeBudget:
        every = len({*self.values, *self.bins})
        return dataclasses.replace(super().budget, root_weight=1, screened=every)


def try_ours(study: Study, make: Any, epsilon: float, **options: Any) -> float:
    """The mean AUC of models learned from the study's hospitals, each with noise of its own."""
    given = {"attributes": study.names, "bins": study.bins, "release": "exact", **options}
    if math.isfinite(epsilon):
        stated = {**study.values, "outcome": YES_NO}
        given |= {"release": "private", "epsilon": epsilon, "delta": "1e-6", "values": stated}
    scores = []
    for _ in range(REPETITIONS if math.isfinite(epsilon) else 1):
        house = cc.House(
            [cc.Site(f"hospital {number}", part, UNLIMITED) for number, part in enumerate(study.learning)]
        )
        scores.append(study.score(make("outcome", **given).fit(house)))
    return float(np.mean(scores))


PEER = """
import json, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
asked = json.load(open(sys.argv[1]))
data = np.load(asked["data"])
try:
    from diffprivlib.models import DecisionTreeClassifier, RandomForestClassifier
except Exception as error:
    print(json.dumps(f"does not run: {type(error).__name__}: {error}"))
    sys.exit()
bounds = (np.zeros(len(asked["sizes"])), np.array(asked["sizes"]) - 1.0)
scores = {}
for name, make in (("tree", DecisionTreeClassifier), ("forest", RandomForestClassifier)):
    scores[name] = []
    for epsilon in asked["epsilons"]:
        for turn in range(asked["repetitions"]):
            options = {"epsilon": epsilon or float("inf"), "bounds": bounds, "classes": [0, 1]}
            model = make(max_depth=asked["depth"], random_state=turn, **options).fit(data["x"], data["y"])
            scores[name].append(model.predict_proba(data["held"])[:, 1].tolist())
print(json.dumps(scores))
"""


def try_peer(study: Study, python: str) -> dict[str, list[float]] | str:
    """Mean AUCs of diffprivlib's tree and forest for every epsilon, or why there are none."""
    sizes = [len(study.bins[n]) + 2 if n in study.bins else len(study.values[n]) + 1 for n in study.names]
    pooled = [as_matrix(study, part) for part in study.learning]
    with tempfile.TemporaryDirectory() as folder:
        data, asked = Path(folder) / "data.npz", Path(folder) / "asked.json"
        sick = [one == "yes" for part in study.learning for one in part.values("outcome")]
        np.savez(
            data,
            x=np.concatenate(pooled),
            y=np.array(sick, dtype=int),
            held=as_matrix(study, study.held_back),
        )
        question = {
            "data": str(data),
            "sizes": sizes,
            "depth": DEPTH,
            "repetitions": REPETITIONS,
            "epsilons": [epsilon if math.isfinite(epsilon) else None for epsilon in EPSILONS],
        }
        asked.write_text(json.dumps(question))
        done = subprocess.run([python, "-c", PEER, str(asked)], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"does not run: {done.stderr.strip().splitlines()[-1]}"
    found = json.loads(done.stdout)
    if isinstance(found, str):
        return found
    return {
        name: np.array([measure(study.truth, np.array(likely)) for likely in scores])
        .reshape(len(EPSILONS), REPETITIONS)
        .mean(axis=1)
        .tolist()
        for name, scores in found.items()
    }


def as_matrix(study: Study, table: cc.Records) -> NDArray[np.float64]:
    """Patients as numbers: the place of each value among those stated, or of its bin; the last is any other, or
    missing."""
    columns = []
    for name in study.names:
        attribute = Attribute(
            name, tuple(study.bins.get(name, ())), tuple(study.values.get(name, ())), missing=False
        )
        codes, cells = recode(attribute, NewPatients(table))
        columns.append(np.where(cells == NOWHERE, attribute.inner, cells)[codes].astype(np.float64))
    return np.column_stack(columns)


def tell(study: Study, python: str) -> None:
    """A row for each way, a column for each epsilon."""
    begun = time.perf_counter()
    patients = sum(len(part) for part in study.learning)
    print(
        f"\n{study.name}: {patients:,} patients to learn from, {len(study.held_back):,} held back, "
        f"{len(study.names)} attributes, {study.truth.mean():.0%} yes\n"
    )
    print(f"| AUC at epsilon = | {' | '.join(f'{e:g}' for e in EPSILONS)} |")
    print(f"|---|{'---|' * len(EPSILONS)}")
    ways = {
        "tree": (cc.DecisionTree, {}),
        "tree, a branch for each value (id3)": (cc.DecisionTree, {"growth": "id3", "max_depth": DEPTH}),
        "the same, budget spread evenly": (EvenTree, {"growth": "id3", "max_depth": DEPTH}),
        "one level (NaiveBayes)": (cc.NaiveBayes, {}),
        "rules (RuleFit)": (cc.RuleFit, {}),
    }
    for name, (make, options) in ways.items():
        tell_row(name, [try_ours(study, make, epsilon, **options) for epsilon in EPSILONS])
    peer = try_peer(study, python)
    if isinstance(peer, str):
        print(f"| diffprivlib | {peer} |")
    else:
        tell_row("diffprivlib, one tree", peer["tree"])
        tell_row("diffprivlib, ten trees", peer["forest"])
    print(f"\n{time.perf_counter() - begun:.0f} s", flush=True)


def tell_row(name: str, scores: list[float]) -> None:
    print(f"| {name} | {' | '.join(f'{score:.3f}' for score in scores)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder with diabetic_data.csv.gz")
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON", help="a Python with diffprivlib")
    asked = parser.parse_args()
    for study in (simulate(), read_support2(), read_diabetes(asked.data)):
        tell(study, asked.peer)


if __name__ == "__main__":
    main()
