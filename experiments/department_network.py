"""The tutorial's four departments as a network of processes: a house and four hospitals over mutual TLS, each with its
own table, map, policy and ledger. What they measure of a model is shown beside scikit-learn on the same patients.

python experiments/department_network.py
python experiments/department_network.py --coverage    how often private intervals hold that figure, of 200

Naive Bayes under each release. Every department holds out three in ten patients by its own key. `scikit-learn` applies
sklearn.metrics to the model's predictions for these patients in one table. `its own model` is a logistic regression of
scikit-learn, learned from the pooled training patients. Who is held out is worked out afterwards from the keys of all
departments, which are on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import concilium as cc
from concilium.evaluation.risk_tables import measure_table
from concilium.models.measuring import Evaluation, learn_and_measure
from concilium.models.model_file import load
from concilium.privacy.accounting import rho_for_epsilon
from concilium.protocol.held_out import Holdout
from concilium.records.table import Records
from concilium.study import Study
from concilium.study.sources import read_tables
from concilium.transports.flare.own_files import SiteFile
from gate_evaluation import say_figures

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
from flare_network import FlareNetwork, run_command  # noqa: E402

DEPARTMENTS = ("harbour", "hill", "lake", "valley")
NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak")
TARGET, POSITIVE = "disease", "yes"
AGREES = '[agree]\nreleases = ["exact", "masked", "private"]\nmethods = ["naive-bayes"]\n'
STUDY = """
[study]
name = "{release}"
method = "naive-bayes"
target = "disease"
positive = "yes"
[privacy]
release = "{release}"
{learning}
[dictionary]
file = "heart.toml"
[evaluate]
holdout = 0.3
{measuring}
"""


class Departments(FlareNetwork):  # type: ignore[misc]
    """The network whose hospitals are the departments, with tables and maps as the tutorial has them."""

    def set_records(self, site: str, courses: bool = False) -> None:
        heart = self.folder / "heart"
        (self.kits / site / "local" / "concilium.toml").write_text(
            f'[site]\nrecords = "{heart}/{site}.csv"\none_row_per_patient = true\n'
            f'policy = "policy.toml"\nledger = "../../{site}-state/{site}.ledger"\n'
            f"{(heart / 'heart.toml').read_text()}\n{(heart / f'{site}.map.toml').read_text()}"
        )


def write_departments(folder: Path) -> None:
    """Tables, dictionary and maps, from the command and the page of the tutorial."""
    with contextlib.chdir(folder):
        run_command("demo", "--departments", "heart")
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for block in re.findall(r"```toml\n# file: (.*?)```", page, flags=re.DOTALL):
        name, _, text = block.partition("\n")
        (folder / "heart" / name).write_text(text, encoding="utf-8")
    (folder / "heart.toml").write_text((folder / "heart" / "heart.toml").read_text())


def part_patients(network: Departments, release: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All departments' patients in one table: those learned from, and those held out."""
    parts: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for name in DEPARTMENTS:
        site = SiteFile.read(network.kits / name).open(name)
        view = site._context.view
        chosen = view.each_by_itself if release == "private" else view
        held = Holdout(percent=30).find_held(chosen.select("", TARGET))
        for part, mask in zip(parts, (~held, held), strict=True):
            part.extend(list_rows(view.records.take(mask)))
        site.ledger.close()
    return parts


def list_rows(table: Records) -> list[dict[str, Any]]:
    columns = {name: table.values(name) for name in table.names}
    return [{name: values[at] for name, values in columns.items()} for at in range(len(table))]


def fit_pooled(rows: list[dict[str, Any]], codes: list[str]) -> Any:
    count = len(NUMBERS)
    model = make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), list(range(count))),
            (OneHotEncoder(handle_unknown="ignore"), list(range(count, count + len(codes)))),
        ),
        LogisticRegression(max_iter=2000),
    )
    return model.fit(tabulate(rows, codes), [row[TARGET] for row in rows])


def tabulate(rows: list[dict[str, Any]], codes: list[str]) -> np.ndarray:
    numbers = [[np.nan if row[name] is None else float(row[name]) for name in NUMBERS] for row in rows]
    return np.array(
        [[*own, *(str(row[name]) for name in codes)] for own, row in zip(numbers, rows, strict=True)],
        dtype=object,
    )


def say_measured(metrics: dict[str, Any]) -> list[str]:
    overall, risks = metrics["overall"], metrics["risks"] or {}
    if overall["auc"] is None:
        return [f"{overall['patients']:,}", f"{overall['events']:,}", "too much noise", "", ""]
    cells = [f"{overall['patients']:,}", f"{overall['events']:,}"]
    for key, value, digits in (
        ("auc", overall["auc"], 3),
        ("slope", risks.get("slope"), 2),
        ("brier", risks.get("brier"), 3),
    ):
        between = overall["intervals"].get(key)
        interval = "" if between is None else f" ({between[0]:.{digits}f} to {between[1]:.{digits}f})"
        cells.append("–" if value is None else f"{value:.{digits}f}{interval}")
    return cells


def show(network: Departments, results: dict[str, Path]) -> None:
    print("| release | measured by | patients | events | AUC (95 %) | slope | Brier |")
    print("|---|---|---|---|---|---|---|")
    costs = ""
    for release, out in results.items():
        metrics = json.loads((out / "metrics.json").read_bytes())
        model = load(out / "model.json")
        rest, held = part_patients(network, release)
        codes = [name for name in model.attributes_ if name not in NUMBERS]
        outcome = np.array([row[TARGET] == POSITIVE for row in held])
        risks = model.predict_proba(held)[:, [str(one) for one in model.classes_].index(POSITIVE)]
        pooled = fit_pooled(rest, codes)
        other = pooled.predict_proba(tabulate(held, codes))[:, list(pooled.classes_).index(POSITIVE)]
        patients, events = len(held), int(outcome.sum())
        for who, cells in (
            ("hospitals", say_measured(metrics)),
            ("scikit-learn", say_figures(patients, events, outcome, risks)),
            ("its own model", say_figures(patients, events, outcome, other)),
        ):
            print(f"| {release} | {who} | {' | '.join(cells)} |")
        if release == "private":
            card = json.loads((out / "card.json").read_bytes())
            spent = sum(Fraction(one["cost"]) for one in card["releases"] if one["site"] == "lake")
            plan = Study.read(network.folder / "private.toml", elsewhere=True).plan()
            prices = {one.kind: float(one.cost or 0) for one in plan.questions.questions}
            costs = (
                f"rho: learning {prices['counts']:.4f}, measuring {prices['model.risks']:.4f} (epsilon 1 each) at "
                f"most; charged {float(spent):.4f} in all"
            )
    print(f"\n{costs}; {metrics['evaluation']}")


def count_covered(folder: Path, draws: int = 200) -> str:
    """The private release in one process, each time with new keys and noise."""
    sites = "".join(
        f'[[site]]\nname = "{name}"\nrecords = "{name}.csv"\nmap = "{name}.map.toml"\none_row_per_patient = true\n'
        for name in DEPARTMENTS
    )
    price = "epsilon = 1"
    path = folder / "heart" / "coverage.toml"
    path.write_text(STUDY.format(release="private", learning=price, measuring=price) + sites)
    study = Study.read(path)
    tables: dict[str, Any] = {name: getattr(one, "table", one) for name, one in read_tables(study).items()}
    holdout, rho = Holdout(percent=30), rho_for_epsilon(1, "1e-6")
    inside: dict[str, list[bool]] = {"auc": [], "slope": []}
    for _ in range(draws):
        departments = [
            cc.Site(name, cc.Patients(table=one, one_row_per_patient=True), division_key=os.urandom(32))
            for name, one in tables.items()
        ]
        model = study.open_method()
        table = learn_and_measure(model, cc.House(departments), Evaluation(holdout, rho, POSITIVE))
        intervals = measure_table(table, table.counts)[1]
        held = [
            row
            for site, one in zip(departments, tables.values(), strict=True)
            for row in list_rows(
                one.take(holdout.find_held(site._context.view.each_by_itself.select("", TARGET)))
            )
        ]
        outcome = np.array([row[TARGET] == POSITIVE for row in held])
        risks = model.predict_proba(held)[:, [str(one) for one in model.classes_].index(POSITIVE)]
        odds = np.log(risks / (1 - risks))[:, None]
        slope = LogisticRegression(C=1e12, max_iter=2000).fit(odds, outcome).coef_[0, 0]
        for name, value in (("auc", roc_auc_score(outcome, risks)), ("slope", slope)):
            if (between := intervals.get(name)) is not None:
                inside[name].append(bool(between[0] <= value <= between[1]))
    shares = ", ".join(f"{name} {sum(found)} of {len(found)}" for name, found in inside.items())
    return f"95 % intervals that hold scikit-learn's figure, over {draws} draws: {shares}"


def main() -> None:
    if "--coverage" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_departments(Path(place))
            print(count_covered(Path(place)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_departments(folder)
        network = Departments(folder, policy=AGREES, sites=DEPARTMENTS)
        sites = "".join(f'[[site]]\nname = "{name}"\n' for name in DEPARTMENTS)
        results = {}
        try:
            network.start().wait_until_connected()
            for release in ("exact", "masked", "private"):
                price = "epsilon = 1" if release == "private" else ""
                text = STUDY.format(release=release, learning=price, measuring=price)
                _, results[release] = network.submit(network.write_study(release, text + sites))
        finally:
            network.stop()
        show(network, results)


if __name__ == "__main__":
    main()
