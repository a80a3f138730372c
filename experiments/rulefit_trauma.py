"""Section 4 of Federated RuleFit: who of 371 trauma patients in three hospitals dies (Jonker et al. 2024).

python experiments/rulefit_trauma.py DATA [--repetitions 100]      DATA is a folder with trauma.csv (R package BFI)

First 70 % of every hospital's patients teach and 30 % test, again and again: AUC on the test patients of all three,
beside Bayesian Federated Inference on standardised covariates, with the prior precision of its guide and with its
package's default. Then one model of everyone: the five most important rules that more than a tenth of the patients
fulfil beside the paper's Table 1 (with the support that its rules have among these patients), and the importance of
every variable beside its size in BFI (4.2, Figure 4). Last, how many rules there are beside the 82 that the paper's
model "generated" (4.1), which may be those made or those in the model: with the loss as a mean, as here, and as the sum
over patients that the paper prints; with deviations of linear terms over all patients and within hospitals.
Bin edges are public: whole years, and whole points of both scores.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bfi
import concilium as cc
from concilium.evaluation.leave_out import hold_out
from concilium.evaluation.metrics import auc

Tables = Mapping[str, cc.Records]
Floats = NDArray[np.float64]

TARGET = "mortality"
MEASURED = ("age", "ISS", "GCS")
COVARIATES = ("sex", *MEASURED)
EDGES = {"age": list(range(1, 100)), "ISS": list(range(2, 76)), "GCS": list(range(4, 16))}
HELD_BACK = 0.3
PRECISIONS = {"BFI, precision 0.01 (guide)": 0.01, "BFI, precision 1 (default)": 1.0}
SHOWN, LEAST_SUPPORT = 5, 0.1
PENALTY, GENERATED = 0.01, 82
TABLE_1 = (
    ("age < 57.23 and GCS >= 5.086 and ISS < 57.66", 0.80, 100, 0.50),
    ("age >= 22.27 and ISS >= 26.73", 1.21, 83, 0.50),
    ("age < 56.64 and ISS < 57.66", 0.82, 82, 0.68),
    ("age < 57.23 and ISS < 57.66", 0.82, 80, 0.69),
    ("age < 33.4 and GCS >= 3.703 and ISS < 57.66", 0.84, 79, 0.43),
)


def read_hospitals(folder: Path) -> Tables:
    found = next(
        (p for p in (folder / "trauma.csv", folder / "bfi-trauma" / "trauma.csv") if p.exists()), None
    )
    if found is None:
        raise SystemExit(f"{folder}: there is no trauma.csv in it")
    return cc.Records.read(found, schema=dict.fromkeys(MEASURED, "number") | {"hospital": "code"}).split(
        "hospital"
    )


def fit_rulefit(tables: Tables, **options: Any) -> Any:
    house = cc.House([cc.Site(name, table) for name, table in tables.items()])
    settings = {"penalty": PENALTY, "max_terms": "all", "release": "exact", **options}
    return cc.RuleFit(target=TARGET, positive=1, bins=EDGES, **settings).fit(house)


def as_matrix(table: cc.Records) -> tuple[Floats, Floats]:
    matrix = np.column_stack([np.array(table.values(name), dtype=float) for name in COVARIATES])
    return matrix, np.array(table.values(TARGET), dtype=float)


def standardise(tables: Tables) -> tuple[Floats, Floats]:
    """Mean and sd of all that teach, as the guide to BFI has it; sex stays 0 or 1."""
    matrix = np.concatenate([as_matrix(table)[0] for table in tables.values()])
    plain = np.array([name not in MEASURED for name in COVARIATES])
    return np.where(plain, 0, matrix.mean(axis=0)), np.where(plain, 1, matrix.std(axis=0, ddof=1))


def fit_bfi(tables: Tables, precision: float) -> tuple[bfi.Posterior, Floats, Floats]:
    mean, spread = standardise(tables)
    sites = [as_matrix(table) for table in tables.values()]
    return (
        bfi.infer([((matrix - mean) / spread, outcome) for matrix, outcome in sites], precision),
        mean,
        spread,
    )


def repeat(tables: Tables, repetition: int) -> dict[str, float]:
    """Every method's AUC on the patients held back this time."""
    held = {
        name: hold_out(len(table), HELD_BACK, name, f"trauma {repetition}") for name, table in tables.items()
    }
    learning = {name: table.take(~held[name]) for name, table in tables.items()}
    testing = [table.take(held[name]) for name, table in tables.items()]
    truth = np.concatenate([as_matrix(table)[1] for table in testing]) == 1
    model = fit_rulefit(learning)
    positive = list(model.classes_).index(1)
    found = {
        "federated RuleFit": auc(
            truth, np.concatenate([model.predict_proba(table)[:, positive] for table in testing])
        )
    }
    for name, precision in PRECISIONS.items():
        posterior, mean, spread = fit_bfi(learning, precision)
        scores = [posterior.predict((as_matrix(table)[0] - mean) / spread) for table in testing]
        found[name] = auc(truth, np.concatenate(scores))
    return {name: figure for name, figure in found.items() if figure is not None}


def tell_repetitions(found: list[dict[str, float]]) -> None:
    ours = [one["federated RuleFit"] for one in found]
    print(f"{len(found)} times 70 % / 30 % within each hospital, AUC\n")
    print("| method | median | quartiles | RuleFit higher |")
    print("|---|---|---|---|")
    for name in found[0]:
        figures = [one[name] for one in found]
        low, high = np.percentile(figures, [25, 75])
        higher = statistics.mean((a > b) + (a == b) / 2 for a, b in zip(ours, figures, strict=True))
        shown = "" if name == "federated RuleFit" else f"{higher:.0%}"
        print(f"| {name} | {statistics.median(figures):.4f} | {low:.3f} to {high:.3f} | {shown} |")


def tell_rules(model: Any, tables: Tables) -> None:
    print("\nrules that more than a tenth of the patients fulfil, the most important first\n")
    print("| | rule | odds ratio | importance | support |")
    print("|---|---|---|---|---|")
    top = [row for row in model.table() if row.support is not None and row.support > LEAST_SUPPORT][:SHOWN]
    for row in top:
        print(f"| here | {row.rule} | {row.odds_ratio:.2f} | {row.importance:.0f} | {row.support:.2f} |")
    for rule, ratio, importance, support in TABLE_1:
        found = np.concatenate([cc.Query.parse(rule).mask(table) for table in tables.values()]).mean()
        print(f"| Table 1 | {rule} | {ratio:.2f} | {importance} | {support:.2f}, here {found:.2f} |")


def tell_importances(model: Any, tables: Tables) -> None:
    posterior, _, spread = fit_bfi(tables, 0.01)
    deviation = np.concatenate([as_matrix(table)[0] for table in tables.values()]).std(axis=0, ddof=1)
    linear = np.abs(posterior.coefficients[1:]) * deviation / spread
    theirs = dict(zip(COVARIATES, 100 * linear / linear.max(), strict=True))
    ours = model.importances()
    top = max(ours.values())
    print("\n| variable | importance here | in BFI (size of the coefficient x sd) |")
    print("|---|---|---|")
    for name in sorted(COVARIATES, key=lambda name: -ours.get(name, 0.0)):
        print(f"| {name} | {100 * ours.get(name, 0.0) / top:.0f} | {theirs[name]:.0f} |")


def tell_numbers(tables: Tables) -> None:
    patients = sum(map(len, tables.values()))
    print(f"\nhow many rules (the paper: {GENERATED})\n")
    print(
        "| loss | deviation of linear terms | penalty | rules made | rules in the model | linear terms in it |"
    )
    print("|---|---|---|---|---|---|")
    for loss, penalty in (("mean", PENALTY), ("sum, as printed", PENALTY / patients)):
        for scale in ("overall", "within"):
            model = fit_rulefit(tables, penalty=penalty, scale=scale)
            made = len(model.body.terms.rules)
            taken = sum(one.column < made for one in model.body.taken)
            lines = len(model.body.taken) - taken
            print(f"| {loss} | {scale} | {penalty:.3g} | {made} | {taken} | {lines} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder with trauma.csv")
    parser.add_argument("--repetitions", type=int, default=100)
    options = parser.parse_args()
    tables = read_hospitals(options.data)
    sizes = ", ".join(str(len(table)) for table in tables.values())
    print(f"{sum(map(len, tables.values()))} patients in {len(tables)} hospitals ({sizes})")
    tell_repetitions([repeat(tables, repetition) for repetition in range(options.repetitions)])
    model = fit_rulefit(tables)
    tell_rules(model, tables)
    tell_importances(model, tables)
    tell_numbers(tables)


if __name__ == "__main__":
    main()
