"""Readable models beside each other: shapes, RuleFit and trees of ten hospitals; peers that see the pooled patients.

    python benchmarks/readable.py [--data ../shared/data] [--splits 3] [--epsilons .5,1,3] [--tables rhc,support2]

Peers have an environment of their own in build/readable, which the first run makes: LightGBM, EBM without and with ten
pairs, DP-EBM (the better of two learning rates), FIGS, imodels' RuleFit and a logistic regression on splines. 30 % of
the patients are held out. A line has the area under the ROC curve, how far it is from LightGBM's (private: from
DP-EBM's) over the same splits with the standard error of that difference, terms, and processor seconds of a fit
on one thread.
Private models share public bins: quantiles rounded to two digits, which stand in for clinical ranges. Sets of packages
come by themselves, others from the folder. Splits begin at `--first`, which is 0; choices were made on splits 10
to 29. What was measured of a split stays in build/readable/found, and is not measured again: `--again shapes` forgets
the methods whose names begin so. The set `stay` has a number, days in hospital: its figure is R squared, and its peers
are LightGBM, EBM and DP-EBM. It is measured where `--tables` names it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

PEERS = ("LightGBM", "EBM", "EBM, 10 pairs", "FIGS", "imodels RuleFit", "splines")
PEERS_OF_NUMBERS = PEERS[:3]
STAY = [0.0, 15.0]  # days
RATES = (0.01, 0.03)  # of DP-EBM
HOSPITALS = 10
# Of each method: the area under the curve, processor seconds, terms.
Found = dict[str, tuple[float, float, int]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--epsilons", default=".5,1,3")
    parser.add_argument("--tables", default="")
    parser.add_argument(
        "--only", default="", help="only methods with this in their names: epsilon, for private ones"
    )
    parser.add_argument("--without", default="", help="methods whose names begin so are not run")
    parser.add_argument("--again", default="", help="methods whose names begin so are measured again")
    parser.add_argument("--environment", type=Path, default=Path("build/readable"))
    parser.add_argument("--peers", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    threadpool_limits(1)  # threads that wait for work count as processor time
    if given.peers:
        run_peers(given.peers)
        return
    python = make_environment(given.environment)
    tables = list_tables(given.data)
    epsilons = [float(one) for one in given.epsilons.split(",") if one]
    skipped = tuple(one for one in given.without.split(",") if one)

    def is_wanted(name: str) -> bool:
        return given.only in name and not (skipped and name.startswith(skipped))

    forgotten = tuple(one for one in given.again.split(",") if one)
    measured: dict[str, list[Found]] = {}
    for number in range(given.first, given.first + given.splits):
        for name in given.tables.split(",") if given.tables else [one for one in tables if one != "stay"]:
            kept = given.environment / "found" / f"{name}.{number}.json"
            found = measure(tables[name](), number, python, epsilons, is_wanted, forgotten, kept)
            measured.setdefault(name, []).append(found)
    print("| set | method | AUC | difference (SE) | terms | seconds |")
    print("|---" * 6 + "|")
    for name, splits in measured.items():
        report(name, splits)
    report_means(measured)


def make_environment(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        needs = ["interpret-core", "lightgbm", "imodels", "six", "scikit-learn", "pandas", "pyarrow"]
        subprocess.run([python, "-m", "pip", "install", "-q", *needs], check=True)
    return python


# Sets: `outcome` is 0 or 1; numbers may be missing, categories are text.


def list_tables(folder: Path) -> dict[str, Callable[[], pd.DataFrame]]:
    tables: dict[str, Callable[[], pd.DataFrame]] = {
        "rhc": lambda: read_survset("rhc", 30, ()),
        "support2": lambda: read_survset(
            "support2", 180, ("fac_sfdm2", "fac_dnr", "fac_num_co", "fac_dzclass")
        ),
        "flchain": lambda: read_survset(
            "flchain", 8 * 365, ("fac_chapter", "fac_sample_yr", "num_sample_yr")
        ),
        "simulated": simulate,
    }
    if (folder / "bfi-trauma/trauma.csv").exists():
        tables["trauma"] = lambda: read_trauma(folder)
    if (folder / "diabetes130/diabetic_data.csv.gz").exists():
        tables["diabetes130"] = lambda: read_diabetes(folder)
        tables["stay"] = lambda: read_days(folder)
    if (folder / "physionet2012/Outcomes-a.csv").exists():
        tables["phys2012"] = lambda: read_stays(folder / "physionet2012")
    if (folder / "sepsis-challenge2019/patients_first12h.parquet").exists():
        tables["sepsis"] = lambda: read_sepsis(folder / "sepsis-challenge2019")
    return tables


def read_survset(name: str, days: int, without: tuple[str, ...]) -> pd.DataFrame:
    """Who had the event within so many days; who was followed for less is left out."""
    from SurvSet.data import SurvLoader

    frame = SurvLoader().load_dataset(ds_name=name)["df"].reset_index(drop=True)
    frame = frame[(frame.event == 1) | (frame.time >= days)].reset_index(drop=True)
    outcome = ((frame.event == 1) & (frame.time <= days)).astype(int)
    kept = [one for one in frame if one[:4] in ("num_", "fac_") and one not in without]
    return tidy(frame[kept], outcome, [one for one in kept if one.startswith("num_")])


def read_trauma(folder: Path) -> pd.DataFrame:
    frame = pd.read_csv(folder / "bfi-trauma/trauma.csv")
    return tidy(frame[["age", "ISS", "GCS", "sex"]], frame.mortality, ["age", "ISS", "GCS"])


def read_diabetes(folder: Path) -> pd.DataFrame:
    """20,000 patients' first stays: whether they were readmitted."""
    frame = pd.read_csv(folder / "diabetes130/diabetic_data.csv.gz", keep_default_na=False)
    frame = frame.drop_duplicates("patient_nbr")
    died = frame.discharge_disposition_id.astype(int).isin([11, 13, 14, 19, 20, 21])
    frame = frame[~died].sample(20_000, random_state=1).reset_index(drop=True)
    frame["years"] = frame.age.str.extract(r"\[(\d+)")[0].astype(int) + 5
    numbers = ["years", "time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications"]
    numbers += ["number_outpatient", "number_emergency", "number_inpatient", "number_diagnoses"]
    words = ["race", "gender", "admission_type_id", "discharge_disposition_id", "admission_source_id"]
    words += ["medical_specialty", "payer_code", "A1Cresult", "metformin", "insulin", "change", "diabetesMed"]
    for name in words:
        common = frame[name].value_counts().index[:8]
        frame[name] = frame[name].astype(str).where(frame[name].isin(common), "rest")
    return tidy(frame[[*numbers, *words]], (frame.readmitted != "NO").astype(int), numbers)


def read_days(folder: Path) -> pd.DataFrame:
    """The same patients' days in hospital, by what else is known of the stay."""
    frame = read_diabetes(folder)
    return frame.drop(columns=["outcome", "time_in_hospital"]).assign(outcome=frame.time_in_hospital)


def read_stays(folder: Path) -> pd.DataFrame:
    """The means of 4,000 stays' first day in intensive care, and whether they died in the hospital."""
    series = pd.read_parquet(folder / "set-a_long.parquet")
    series = series[(series.Minute <= 1440) & (series.Value >= 0)]
    outcome = pd.read_csv(folder / "Outcomes-a.csv").set_index("RecordID")["In-hospital_death"]
    values = series.groupby(["RecordID", "Parameter"], observed=True).Value
    means, ends = values.mean().unstack().reindex(outcome.index), values.agg(["min", "max"])
    words = ["ICUType", "Gender"]
    frame = means[[one for one in means if one not in words and means[one].notna().mean() > 0.02]].copy()
    for name in ("GCS", "HR", "SysABP", "Temp"):
        for end in ("min", "max"):
            frame[f"{name} {end}"] = ends[end].unstack()[name].reindex(outcome.index)
    numbers = list(frame)
    for name in words:
        frame[name] = means[name]
    return tidy(frame.reset_index(drop=True), outcome, numbers)


def read_sepsis(folder: Path) -> pd.DataFrame:
    """40,336 stays' means of the first twelve hours in intensive care, and whether they became septic."""
    frame = pd.read_parquet(folder / "patients_first12h.parquet")
    words = ["Gender", "Unit1"]
    numbers = [one for one in frame if one.endswith("_mean12h")] + ["Age", "HospAdmTime", "first_iculos"]
    return tidy(frame[[*numbers, *words]], frame.sepsis.astype(int), numbers)


def simulate() -> pd.DataFrame:
    """20 numbers that go together; curves, and rules of two numbers."""
    draw = np.random.default_rng(777)
    x = np.sqrt(0.3) * draw.normal(size=(10_000, 1)) + np.sqrt(0.7) * draw.normal(size=(10_000, 20))
    odds = 1.5 * x[:, 0] - 1.2 * (x[:, 1] < -0.5) + 2.5 * (x[:, 2] > 0) * (x[:, 3] > -0.3)
    odds += -2 * (x[:, 4] > 0.5) * (x[:, 0] < 0.5) - 0.8 * x[:, 5] ** 2
    outcome = pd.Series((draw.random(10_000) < 1 / (1 + np.exp(-odds))).astype(int))
    frame = pd.DataFrame({f"x{place}": x[:, place] for place in range(20)})
    return tidy(frame, outcome, list(frame))


def tidy(frame: pd.DataFrame, outcome: Any, numbers: list[str]) -> pd.DataFrame:
    found = {
        name: frame[name].astype(float)
        if name in numbers
        else frame[name].astype(object).where(frame[name].notna(), "unknown").astype(str)
        for name in frame
    }
    return pd.DataFrame({**found, "outcome": np.asarray(outcome, dtype=int)})


def is_number(frame: pd.DataFrame, name: str) -> bool:
    return bool(pd.api.types.is_numeric_dtype(frame[name]))


def has_classes(outcome: Any) -> bool:
    return set(np.unique(outcome)) <= {0, 1}


def split(frame: pd.DataFrame, number: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Patients to learn from, and 30 % of each class, or of all, to measure on."""
    draw = np.random.default_rng(1000 + number)
    held = np.zeros(len(frame), dtype=bool)
    for value in (0, 1) if has_classes(frame.outcome) else (None,):
        rows = np.arange(len(frame)) if value is None else np.flatnonzero(frame.outcome == value)
        held[draw.permutation(rows)[: round(0.3 * len(rows))]] = True
    return frame[~held].reset_index(drop=True), frame[held].reset_index(drop=True)


def find_bins(frame: pd.DataFrame) -> dict[str, list[float]]:
    """Edges that stand in for clinical ranges: eleven quantiles, rounded to two digits."""
    edges = {}
    for name in frame:
        if name != "outcome" and is_number(frame, name):
            cut = np.unique(np.quantile(frame[name].dropna(), np.arange(1, 12) / 12))
            edges[name] = sorted({float(f"{one:.2g}") for one in cut})
    return edges


# What is learned: each with its area, processor seconds, and terms.


def measure(
    frame: pd.DataFrame,
    number: int,
    python: Path,
    epsilons: list[float],
    is_wanted: Callable[[str], bool],
    forgotten: tuple[str, ...],
    kept: Path,
) -> Found:
    """What is known of all methods on a split; what was measured before is read from a file."""
    from concilium.evaluation.metrics import auc

    found: Found = json.loads(kept.read_text()) if kept.exists() else {}
    found = {name: one for name, one in found.items() if not (forgotten and name.startswith(forgotten))}
    learned, held = split(frame, number)
    bins, truth = find_bins(frame), held.outcome.to_numpy()
    kept.parent.mkdir(exist_ok=True)

    def keep(name: str, risk: Any, seconds: float, terms: int) -> None:
        told = np.asarray(risk, dtype=float)
        figure = 1 - ((truth - told) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()
        if has_classes(truth):
            figure = auc(truth == 1, told) or 0.0
        found[name] = figure, seconds, terms
        kept.write_text(json.dumps(found))

    noisy = [f"DP-EBM {rate}, epsilon {one:g}" for one in epsilons for rate in RATES]
    all_peers = (*(PEERS if has_classes(truth) else PEERS_OF_NUMBERS), *noisy)
    peers = [one for one in all_peers if one not in found and is_wanted(one)]
    if peers:
        with tempfile.TemporaryDirectory() as written:
            folder = Path(written)
            learned.to_parquet(folder / "learned.parquet")
            held.to_parquet(folder / "held.parquet")
            (folder / "asked.json").write_text(json.dumps({"bins": bins, "names": peers}))
            subprocess.run([python, __file__, "--peers", folder], check=True)
            for name, measured in json.loads((folder / "found.json").read_text()).items():
                keep(name, *measured)
    ours = list_ours(learned, bins, epsilons)
    for name in [one for one in ours if one not in found and is_wanted(one)]:
        keep(name, *run_ours(ours[name], learned, held))
    return found


def list_ours(
    learned: pd.DataFrame, bins: dict[str, list[float]], epsilons: list[float]
) -> dict[str, Callable[[], Any]]:
    import concilium as cc

    values = {name: sorted(learned[name].unique()) for name in learned if not is_number(learned, name)}
    classes = has_classes(learned.outcome)
    plain: dict[str, Any] = {"positive": 1} if classes else {"bins": {"outcome": STAY}}
    known: dict[str, Any] = {"positive": 1, "bins": bins, "values": {**values, "outcome": [0, 1]}}
    if not classes:
        known = {"bins": {**bins, "outcome": STAY}, "values": values}
    ways: dict[str, Callable[[], Any]] = {
        "shapes": partial(cc.ShapeModel, "outcome", release="exact", **plain),
        "RuleFit": partial(cc.RuleFit, "outcome", release="exact", **plain),
    }
    for one in epsilons:
        noisy = {**known, "release": "private", "epsilon": one}
        ways[f"shapes, epsilon {one:g}"] = partial(cc.ShapeModel, "outcome", **noisy)
        if classes:
            ways[f"RuleFit, epsilon {one:g}"] = partial(cc.RuleFit, "outcome", **noisy)
    return ways


def run_ours(
    make: Callable[[], Any], learned: pd.DataFrame, held: pd.DataFrame
) -> tuple[list[float], float, int]:
    import concilium as cc

    budget = cc.Policy(budget=cc.Budget("1000"))
    sites = [
        cc.Site(
            f"hospital{place}",
            cc.Records.read(learned.iloc[place::HOSPITALS].reset_index(drop=True)),
            budget,
        )
        for place in range(HOSPITALS)
    ]
    began = time.process_time()
    model = make().fit(cc.House(sites))
    seconds = time.process_time() - began
    records = cc.Records.read(held)
    if not model.classes_:
        return model.predict(records).tolist(), seconds, count_terms(model)
    risk = model.predict_proba(records)[:, list(model.classes_).index(1)]
    return risk.tolist(), seconds, count_terms(model)


def count_terms(model: Any) -> int:
    """Curves, pairs and rules; RuleFit's rules and lines."""
    return len(model.body.terms) if model.method == "shapes" else len(model.list_terms())


def run_peers(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    learned, held = (pd.read_parquet(folder / f"{part}.parquet") for part in ("learned", "held"))
    asked = json.loads((folder / "asked.json").read_text())
    outcome, held = learned.pop("outcome").to_numpy(), held.drop(columns="outcome")

    def fit(name: str, first: pd.DataFrame, target: Any) -> tuple[Any, int]:
        if not name.startswith("DP-EBM"):
            return fit_peer(name, first, target, held)
        rate, epsilon = (float(one) for one in name.removeprefix("DP-EBM ").split(", epsilon "))
        return fit_noisy(first, target, held, asked["bins"], epsilon, rate)

    few = np.arange(200)
    if has_classes(outcome):
        few = np.r_[np.flatnonzero(outcome == 1)[:60], np.flatnonzero(outcome == 0)[:140]]
    first, found = learned.iloc[few].reset_index(drop=True), {}
    for name in asked["names"]:
        fit(name, first, outcome[few])  # imports and compiles
        began = time.process_time()
        risk, terms = fit(name, learned, outcome)
        seconds = time.process_time() - began
        found[name] = np.asarray(risk, dtype=float).tolist(), seconds, terms
    (folder / "found.json").write_text(json.dumps(found))


def fit_peer(name: str, learned: pd.DataFrame, outcome: Any, held: pd.DataFrame) -> tuple[Any, int]:
    numbers = [one for one in learned if is_number(learned, one)]
    words = [one for one in learned if one not in numbers]
    if name == "LightGBM":
        import lightgbm

        both = pd.concat([learned, held]).astype(dict.fromkeys(words, "category"))
        first, rest = both.iloc[: len(learned)], both.iloc[len(learned) :]
        out = np.random.default_rng(0).random(len(learned)) < 0.15
        how: dict[str, Any] = {"learning_rate": 0.03, "num_leaves": 15, "subsample": 0.8, "subsample_freq": 1}
        how |= {"colsample_bytree": 0.7, "n_jobs": 1, "verbose": -1, "random_state": 0}
        classes = has_classes(outcome)
        make = lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor
        model = make(n_estimators=500, **how).fit(
            first[~out],
            outcome[~out],
            eval_set=[(first[out], outcome[out])],
            eval_metric="binary_logloss" if classes else "l2",
            callbacks=[lightgbm.early_stopping(50, verbose=False)],
        )
        trees = max(int(model.best_iteration_ or 500), 10)
        return tell(make(n_estimators=trees, **how).fit(first, outcome), rest), trees
    if name.startswith("EBM"):
        from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

        kinds = ["continuous" if one in numbers else "nominal" for one in learned]
        pairs = 10 if "pairs" in name else 0
        make = ExplainableBoostingClassifier if has_classes(outcome) else ExplainableBoostingRegressor
        model = make(outer_bags=4, interactions=pairs, n_jobs=1, random_state=0, feature_types=kinds)
        return tell(model.fit(learned, outcome), held), len(model.term_names_)
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, SplineTransformer, StandardScaler

    fill = SimpleImputer(strategy="median", keep_empty_features=True)
    hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False, min_frequency=10)
    if name == "splines":
        curves = make_pipeline(fill, SplineTransformer(6, 3, knots="quantile"), StandardScaler())
        change = make_column_transformer((curves, numbers), (hot, words))
    else:
        change = make_column_transformer((fill, numbers), (hot, words))
    lacking = [one for one in numbers if learned[one].isna().mean() > 0.005]
    first = np.hstack([change.fit_transform(learned), learned[lacking].isna()]).astype(float)
    rest = np.hstack([change.transform(held), held[lacking].isna()]).astype(float)
    if name == "splines":
        model = LogisticRegressionCV(Cs=np.logspace(-4, 1, 6), cv=3, scoring="neg_log_loss", max_iter=300)
        return model.fit(first, outcome).predict_proba(rest)[:, 1], learned.shape[1]
    from imodels import FIGSClassifier, RuleFitClassifier

    if name == "FIGS":
        model = FIGSClassifier(max_rules=30).fit(first, outcome)
        return model.predict_proba(rest)[:, 1], int(model.complexity_)
    model = RuleFitClassifier(max_rules=60, random_state=0).fit(first, outcome)
    return model.predict_proba(rest)[:, 1], int(sum(rule.args[0] != 0 for rule in model.rules_))


def tell(model: Any, held: pd.DataFrame) -> Any:
    """Risks, or numbers."""
    return model.predict_proba(held)[:, 1] if hasattr(model, "predict_proba") else model.predict(held)


def fit_noisy(
    learned: pd.DataFrame,
    outcome: Any,
    held: pd.DataFrame,
    bins: dict[str, list[float]],
    epsilon: float,
    rate: float,
) -> tuple[Any, int]:
    """DP-EBM on the numbers of public bins, so that it spends next to nothing on finding its own."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    kinds = ["continuous" if name in bins else "nominal" for name in learned]
    bounds = {place: (-1.5, len(bins[name]) + 0.5) for place, name in enumerate(learned) if name in bins}

    def place_in_bins(frame: pd.DataFrame) -> pd.DataFrame:
        changed = frame.copy()
        for name, edges in bins.items():
            codes = np.searchsorted(edges, frame[name], side="right").astype(float)
            changed[name] = np.where(frame[name].isna(), -1.0, codes)
        return changed

    classes = has_classes(outcome)
    make = DPExplainableBoostingClassifier if classes else DPExplainableBoostingRegressor
    more = {} if classes else {"privacy_target_min": STAY[0], "privacy_target_max": STAY[1]}
    model = make(
        epsilon=epsilon,
        delta=1e-6,
        learning_rate=rate,
        max_bins=16,
        feature_types=kinds,
        n_jobs=1,
        bin_budget_frac=0.1,
        privacy_bounds=bounds,
        random_state=None,
        **more,
    ).fit(place_in_bins(learned), outcome)
    return tell(model, place_in_bins(held)), len(model.term_names_)


def report(name: str, splits: list[Found]) -> None:
    methods = [one for one in splits[0] if all(one in found for found in splits)]

    def list_areas(method: str) -> Any:
        return np.array([found[method][0] for found in splits])

    for method in methods:
        private = method.partition(", epsilon ")[2]
        beside = ["LightGBM"]
        if private:
            beside = [f"DP-EBM {rate}, epsilon {private}" for rate in RATES]
        beside = sorted((one for one in beside if one in methods), key=lambda one: -list_areas(one).mean())
        if private and method in beside[1:]:
            continue
        apart = list_areas(method) - list_areas(beside[0]) if beside else np.full(len(splits), np.nan)
        error = f"{apart.std(ddof=1) / np.sqrt(len(splits)):.4f}" if len(splits) > 1 else "–"
        _, seconds, terms = np.mean([found[method] for found in splits], axis=0)
        print(
            f"| {name} | {method} | {list_areas(method).mean():.4f} | {apart.mean():+.4f} ({error}) | {terms:.0f} "
            f"| {seconds:.1f} |",
            flush=True,
        )


def report_means(measured: dict[str, list[Found]]) -> None:
    """The mean over sets, of the methods that all of them have."""
    tables = list(measured.values())
    for method in tables[0][0]:
        if all(method in found for splits in tables for found in splits):
            numbers = np.mean(
                [np.mean([found[method] for found in splits], axis=0) for splits in tables], axis=0
            )
            print(f"| mean | {method} | {numbers[0]:.4f} | | {numbers[2]:.0f} | {numbers[1]:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
