"""Readable models beside each other: shapes, RuleFit and trees of ten hospitals; peers that see the pooled patients.

    python benchmarks/readable.py [--data ../shared/data] [--splits 3] [--epsilon 1] [--tables rhc,support2]

Peers have an environment of their own in build/readable, which the first run makes: LightGBM, EBM without and with ten
pairs, DP-EBM (the better of two learning rates), FIGS, imodels' RuleFit and a logistic regression on splines. 30 % of
the patients are held out. A line has the area under the ROC curve, how far it is from LightGBM's (private: from
DP-EBM's) over the same splits with the standard error of that difference, terms, and processor seconds of a fit.
Private models share public bins: quantiles rounded to two digits, which stand in for clinical ranges. Sets of packages
come by themselves, others from the folder. Splits begin at 0; choices for shapes were made on splits 10 to 29.
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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

PEERS = ("LightGBM", "EBM", "EBM, 10 pairs", "FIGS", "imodels RuleFit", "splines")
HOSPITALS = 10
Found = dict[str, tuple[list[float], float, int]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--tables", default="")
    parser.add_argument("--environment", type=Path, default=Path("build/readable"))
    parser.add_argument("--peers", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peers:
        run_peers(given.peers)
        return
    python = make_environment(given.environment)
    tables = list_tables(given.data)
    print("| set | method | AUC | difference (SE) | terms | seconds |")
    print("|---" * 6 + "|")
    for name in given.tables.split(",") if given.tables else tables:
        report(name, tables[name](), python, given.splits, given.epsilon)


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


def split(frame: pd.DataFrame, number: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Patients to learn from, and 30 % of each class to measure on."""
    draw = np.random.default_rng(1000 + number)
    held = np.zeros(len(frame), dtype=bool)
    for value in (0, 1):
        rows = np.flatnonzero(frame.outcome == value)
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


# What is learned: each with predictions, seconds of the processor, and terms.


def run_ours(
    learned: pd.DataFrame, held: pd.DataFrame, bins: dict[str, list[float]], epsilon: float
) -> Found:
    import concilium as cc

    values = {name: sorted(learned[name].unique()) for name in learned if not is_number(learned, name)}
    private = {
        "release": "private",
        "epsilon": epsilon,
        "bins": bins,
        "values": {**values, "outcome": [0, 1]},
    }
    ways: dict[str, Callable[[], Any]] = {
        "shapes": lambda: cc.ShapeModel("outcome", positive=1, release="exact"),
        "RuleFit": lambda: cc.RuleFit("outcome", positive=1, release="exact"),
        f"shapes, epsilon {epsilon:g}": lambda: cc.ShapeModel("outcome", positive=1, **private),
        f"RuleFit, epsilon {epsilon:g}": lambda: cc.RuleFit("outcome", positive=1, **private),
    }
    found: Found = {}
    budget = cc.Policy(budget=cc.Budget("1000"))
    for name, make in ways.items():
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
        risk = model.predict_proba(cc.Records.read(held))[:, list(model.classes_).index(1)]
        terms = len(model.body.terms) if isinstance(model, cc.ShapeModel) else len(model.table())
        found[name] = risk.tolist(), seconds, terms
    return found


def run_peers(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    learned, held = (pd.read_parquet(folder / f"{part}.parquet") for part in ("learned", "held"))
    asked = json.loads((folder / "asked.json").read_text())
    outcome = learned.pop("outcome").to_numpy()
    held = held.drop(columns="outcome")
    found: Found = {}
    for name in PEERS:
        began = time.process_time()
        risk, terms = fit_peer(name, learned, outcome, held)
        found[name] = np.asarray(risk, dtype=float).tolist(), time.process_time() - began, terms
    for rate in (0.01, 0.03):
        began = time.process_time()
        risk, terms = fit_noisy(learned, outcome, held, asked["bins"], asked["epsilon"], rate)
        found[f"DP-EBM {rate}"] = np.asarray(risk, dtype=float).tolist(), time.process_time() - began, terms
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
        model = lightgbm.LGBMClassifier(n_estimators=500, **how).fit(
            first[~out],
            outcome[~out],
            eval_set=[(first[out], outcome[out])],
            eval_metric="binary_logloss",
            callbacks=[lightgbm.early_stopping(50, verbose=False)],
        )
        trees = max(int(model.best_iteration_ or 500), 10)
        model = lightgbm.LGBMClassifier(n_estimators=trees, **how).fit(first, outcome)
        return model.predict_proba(rest)[:, 1], trees
    if name.startswith("EBM"):
        from interpret.glassbox import ExplainableBoostingClassifier

        kinds = ["continuous" if one in numbers else "nominal" for one in learned]
        pairs = 10 if "pairs" in name else 0
        model = ExplainableBoostingClassifier(
            outer_bags=4, interactions=pairs, n_jobs=1, random_state=0, feature_types=kinds
        ).fit(learned, outcome)
        return model.predict_proba(held)[:, 1], len(model.term_names_)
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


def fit_noisy(
    learned: pd.DataFrame,
    outcome: Any,
    held: pd.DataFrame,
    bins: dict[str, list[float]],
    epsilon: float,
    rate: float,
) -> tuple[Any, int]:
    """DP-EBM on the numbers of public bins, so that it spends next to nothing on finding its own."""
    from interpret.privacy import DPExplainableBoostingClassifier

    kinds = ["continuous" if name in bins else "nominal" for name in learned]
    bounds = {place: (-1.5, len(bins[name]) + 0.5) for place, name in enumerate(learned) if name in bins}

    def place_in_bins(frame: pd.DataFrame) -> pd.DataFrame:
        changed = frame.copy()
        for name, edges in bins.items():
            codes = np.searchsorted(edges, frame[name], side="right").astype(float)
            changed[name] = np.where(frame[name].isna(), -1.0, codes)
        return changed

    model = DPExplainableBoostingClassifier(
        epsilon=epsilon,
        delta=1e-6,
        learning_rate=rate,
        max_bins=16,
        feature_types=kinds,
        n_jobs=1,
        bin_budget_frac=0.1,
        privacy_bounds=bounds,
        random_state=None,
    ).fit(place_in_bins(learned), outcome)
    return model.predict_proba(place_in_bins(held))[:, 1], len(model.term_names_)


def report(name: str, frame: pd.DataFrame, python: Path, splits: int, epsilon: float) -> None:
    from concilium.evaluation.metrics import auc

    bins = find_bins(frame)
    areas: dict[str, list[float]] = {}
    costs: dict[str, list[tuple[float, int]]] = {}
    for number in range(splits):
        learned, held = split(frame, number)
        with tempfile.TemporaryDirectory() as written:
            folder = Path(written)
            learned.to_parquet(folder / "learned.parquet")
            held.to_parquet(folder / "held.parquet")
            (folder / "asked.json").write_text(json.dumps({"bins": bins, "epsilon": epsilon}))
            subprocess.run([python, __file__, "--peers", folder], check=True)
            found: Found = json.loads((folder / "found.json").read_text())
        found |= run_ours(learned, held, bins, epsilon)
        for method, (risk, seconds, terms) in found.items():
            areas.setdefault(method, []).append(auc(held.outcome.to_numpy() == 1, np.array(risk)) or 0.0)
            costs.setdefault(method, []).append((seconds, terms))
    noisy = max(
        (method for method in areas if method.startswith("DP-EBM")), key=lambda one: np.mean(areas[one])
    )
    for method, own in areas.items():
        if method.startswith("DP-EBM") and method != noisy:
            continue
        beside = areas[noisy if "epsilon" in method or method == noisy else "LightGBM"]
        apart = np.array(own) - beside
        error = apart.std(ddof=1) / np.sqrt(splits) if splits > 1 else float("nan")
        seconds, terms = np.mean(costs[method], axis=0)
        print(
            f"| {name} | {method} | {np.mean(own):.3f} | {apart.mean():+.4f} ({error:.4f}) | {terms:.0f} "
            f"| {seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
