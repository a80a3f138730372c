"""Students of patient experts as a ward would have them: at natural prevalence, beside logistic regression, and from
one hospital to another.

python experiments/ward_students.py DATA [--sample] [--patients 12000] [--transfer] [--epsilon 4]

DATA is the folder of data sets; what is read is PhysioNet's challenge of 2019 (40,336 stays of hospitals A and B,
hourly, 7 % with sepsis); `--sample` reads the first 2,000. Patients are drawn by a hash of their ids.

The aim: three gateways with 200 experts each, epsilon = 4, delta = 1e-6. Three in four stays are the hospitals', 300
others are public, the rest test. Beside the student: a logistic regression that learns from the *true* label of the
very hours that the experts label, of the same public stays, with the same window features and a penalty by
cross-validation over patients.

Transfer: the same, learned at one hospital and tested at the other; beside it temporal rules at the same epsilon, one
network of all patients of the learning hospital and a logistic regression of them, both without privacy.
"""

from __future__ import annotations

import argparse
import hashlib
import time
import warnings
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import concilium as cc
from concilium.errors import StudyError
from concilium.evaluation.horizons import HORIZONS, ScoredStays, count_alarms, measure_horizons
from concilium.experts.expert_task import NetworkSettings
from concilium.experts.patient_windows import lay_out
from concilium.experts.student import find_features, teach_network, tell
from concilium.records.series_description import OddValues

FOLDER = Path("sepsis-challenge2019")
TARGET, BEFORE_ONSET = "SepsisLabel", 6
NAMES = (
    *("HR", "O2Sat", "Temp", "SBP", "MAP", "DBP", "Resp", "BaseExcess", "HCO3", "FiO2", "pH", "PaCO2", "BUN"),
    *("Calcium", "Chloride", "Creatinine", "Glucose", "Lactate", "Magnesium", "Phosphate", "Potassium"),
    *("Bilirubin_total", "Hct", "Hgb", "PTT", "WBC", "Platelets", "Age"),
)
PUBLIC, GATEWAYS, EXPERTS = 300, 3, 200
PENALTIES = {"logisticregression__C": [1e-4, 1e-3, 1e-2, 1e-1]}
RULES = {"window": "6h", "prevalence": 0.05, "limits": 2, "search": "discrimination"}
NETWORK = NetworkSettings(units=32, epochs=12, rate=0.005, batch=20)
Reals = NDArray[np.float64]

console = Console(width=130)


def read_stays(path: Path, hospital: str | None, patients: int) -> cc.Series:
    """Stays in an order that a hash of their ids decides."""
    where = f"WHERE hospital = '{hospital}'" if hospital else ""
    rows = duckdb.sql(f"SELECT DISTINCT patient FROM '{path}' {where}").fetchall()
    ids = sorted((row[0] for row in rows), key=lambda one: hashlib.sha256(one.encode()).digest())[:patients]
    read = cc.Series.read(path, time="ICULOS", origin="first", variables=[*NAMES, TARGET], patients=ids)
    return read.take(np.random.default_rng(1).permutation(len(read)))


def open_house(training: cc.Series) -> cc.House:
    dealt = np.arange(len(training)) % GATEWAYS
    policy = cc.Policy(budget=cc.Budget("unlimited"))
    return cc.House(
        [cc.Site(f"gateway {one + 1}", training.take(dealt == one), policy) for one in range(GATEWAYS)]
    )


def make_study(public: cc.Series, epsilon: float) -> cc.Experts:
    return cc.Experts(
        TARGET, epsilon=epsilon, experts=EXPERTS, public=public.choose([*NAMES]), bins=choose_ranges()
    )


def choose_ranges() -> dict[str, list[float]]:
    from concilium.records.clinical_ranges import CLINICAL_RANGES, place_limits

    return {name: [*place_limits(CLINICAL_RANGES[name])] for name in NAMES}


def fit_regression(features: Reals, truth: NDArray[np.bool_], owners: NDArray[np.intp]) -> Pipeline:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    folds = StratifiedGroupKFold(4)
    search = GridSearchCV(model, PENALTIES, scoring="roc_auc", cv=folds).fit(features, truth, groups=owners)
    return search.best_estimator_


def say(table: Table, name: str, scores: Reals, test: cc.Series, study: cc.Experts) -> None:
    stays = ScoredStays(scores, test.starts, study.find_onsets(test) + BEFORE_ONSET)
    matched, paper = measure_horizons(stays), measure_horizons(stays, matched=False, draws=0)
    alarms = count_alarms(stays, 0.8)
    assert alarms is not None
    cells = []
    for at in HORIZONS:
        own, other = matched[at], paper[at]
        assert own is not None
        assert other is not None
        cells.append(
            f"{100 * own.value:.1f} ({100 * own.low:.0f}-{100 * own.high:.0f}) / {100 * other.value:.1f}"
        )
    table.add_row(name, *cells, f"{alarms.per_patient_day:.2f}", f"{alarms.lead_hours:.0f} h")


def make_table(title: str) -> Table:
    return Table("AUROC, matched / all hours", *HORIZONS, "alarms a day", "lead", title=title)


def run_aim(stays: cc.Series, epsilon: float) -> None:
    bound = 3 * len(stays) // 4
    rows = np.arange(len(stays))
    training, public, test = (
        stays.take(rows[part])
        for part in (slice(0, bound), slice(bound, bound + PUBLIC), slice(bound + PUBLIC, None))
    )
    study = make_study(public, epsilon)
    table = make_table(
        f"{len(training)} stays of hospitals, {PUBLIC} public, {len(test)} test; epsilon = {epsilon:g}"
    )
    try:
        start = time.perf_counter()
        student = study.fit(open_house(training))
        seconds = time.perf_counter() - start
        console.print(
            f"{student.body.size} experts taught, in {seconds:.0f} s; doubt {student.body.doubt:.1g}"
        )
        say(table, "student", student.predict_severity(test, whole=True), test, study)
    except StudyError as error:
        console.print(f"refused: {error}")
    assert study.stays is not None
    laid, asked = study.stays.open(study.task)
    truth = public.stays[TARGET][asked] == 1
    owners = np.repeat(np.arange(len(public)), public.lengths)[asked]
    regression = fit_regression(find_features(laid)[asked], truth, owners)
    features = find_features(lay_out(test, study.task))
    name = f"logistic regression, {len(asked)} true labels"
    say(table, name, regression.decision_function(features), test, study)
    console.print(table)


def run_transfer(path: Path, patients: int, epsilon: float) -> None:
    stays = {name: read_stays(path, name, patients) for name in ("A", "B")}
    for home, away in (("A", "B"), ("B", "A")):
        rows = np.arange(len(stays[home]))
        training, public = stays[home].take(rows[PUBLIC:]), stays[home].take(rows[:PUBLIC])
        test = stays[away]
        study = make_study(public, epsilon)
        table = make_table(f"learned at {home}, tested at {away} ({len(test)} stays); epsilon = {epsilon:g}")
        student = study.fit(open_house(training))
        name = f"student of {student.body.size} experts"
        say(table, name, student.predict_severity(test, whole=True), test, study)
        rules = cc.RuleDiscovery(TARGET, variables=NAMES, epsilon=epsilon, **RULES).fit(open_house(training))
        name = f"temporal rules, {sum(rule.weight is not None for rule in rules.rules_)} with a weight"
        say(table, name, rules.predict_steps(test), test, study)
        laid, held = lay_out(training, study.task), lay_out(test, study.task)
        network = teach_network(laid, laid.severity, NETWORK)
        say(table, "one network of all patients", tell(network, held), test, study)
        cells = np.arange(0, len(laid.values), 4)
        owners = np.repeat(np.arange(len(training)), training.lengths)[cells]
        regression = fit_regression(find_features(laid)[cells], training.stays[TARGET][cells] == 1, owners)
        say(
            table,
            "logistic regression of all patients",
            regression.decision_function(find_features(held)),
            test,
            study,
        )
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--sample", action="store_true", help="the first 2,000 patients")
    parser.add_argument("--patients", type=int, default=12_000, help="at most so many (of each hospital)")
    parser.add_argument("--transfer", action="store_true")
    parser.add_argument("--epsilon", type=float, default=4.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", OddValues)
    name = "challenge2019_sample2000.parquet" if arguments.sample else "challenge2019_all.parquet"
    path = arguments.data / FOLDER / name
    if arguments.transfer:
        run_transfer(path, arguments.patients, arguments.epsilon)
    else:
        run_aim(read_stays(path, None, arguments.patients), arguments.epsilon)


if __name__ == "__main__":
    main()
