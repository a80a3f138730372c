"""Evaluation through the gate beside scikit-learn on the same patients: many tiny hospitals, real dialysis centres, and
a private one; what measuring costs beside learning; how often intervals cover, and drift is alarmed about by chance.

python experiments/gate_evaluation.py

Tiny: 79 synthetic hospitals of 5 to 60 patients. Dialysis: who dies within a year, 67 centres in Rio de Janeiro State
(SurvSet). Large: 8 synthetic hospitals of 1,000 to 3,000 patients. Every hospital holds out three in ten patients by
its key.
`scikit-learn` are the functions of sklearn.metrics, and a logistic regression of the outcome on the log odds, on the
model's predictions for these patients pooled. `its own model` is a logistic regression of scikit-learn, learned from
the pooled patients who are not held out and measured on those who are.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import concilium as cc
from collaboration import read_dialysis
from concilium.evaluation.drift import describe_performance, find_drift
from concilium.evaluation.risk_tables import measure_table, summarise_table
from concilium.models.measuring import Evaluation, RiskTable, count_risks, lay_grid, learn_and_measure
from concilium.privacy.accounting import rho_for_epsilon
from concilium.protocol.cohort import View
from concilium.protocol.held_out import SIMULATION_KEY, Holdout

HOLDOUT = Holdout(percent=30)
DELTA = "1e-6"
Row = dict[str, Any]


@dataclass(frozen=True)
class Hospitals:
    name: str
    rows: dict[str, list[Row]]
    target: str
    numbers: dict[str, list[float]]
    values: dict[str, list[str]]

    def open_site(self, name: str) -> cc.Site:
        kinds = {
            **dict.fromkeys(self.numbers, "number"),
            **dict.fromkeys((*self.values, self.target), "code"),
        }
        records = cc.Records.from_rows(self.rows[name], schema=kinds)
        patients = cc.Patients(table=records, one_row_per_patient=True)
        return cc.Site(name, patients, division_key=SIMULATION_KEY)

    def find_held(self, name: str, least: int) -> np.ndarray:
        """Whom a hospital holds out: nobody, where either part would be of fewer patients than it tells apart."""
        kinds = {
            **dict.fromkeys(self.numbers, "number"),
            **dict.fromkeys((*self.values, self.target), "code"),
        }
        view = View(
            cc.Records.from_rows(self.rows[name], schema=kinds), cc.Policy(), division_key=SIMULATION_KEY
        )
        held = HOLDOUT.find_held(view.select("", self.target))
        return held if min(held.sum(), (~held).sum()) >= least else np.zeros(len(held), dtype=bool)


def make_hospitals(name: str, hospitals: int, fewest: int, most: int) -> Hospitals:
    """Synthetic hospitals of so many patients, who differ in how many of them die."""
    chance = np.random.default_rng(1)
    rows: dict[str, list[Row]] = {}
    for number in range(hospitals):
        shift = chance.normal(0, 0.4)
        own = []
        for _ in range(chance.integers(fewest, most + 1)):
            age, score = float(chance.integers(20, 90)), float(chance.integers(0, 16))
            sex, ward = "fm"[chance.integers(2)], "abc"[chance.integers(3)]
            odds = shift + (age - 65) / 18 + (score - 9) / 4 + 0.3 * (sex == "m")
            died = "yes" if chance.random() < 1 / (1 + np.exp(-odds)) else "no"
            own.append({"age": age, "score": score, "sex": sex, "ward": ward, "died": died})
        rows[f"h{number:02}"] = own
    numbers = {"age": [30.0, 40.0, 50.0, 60.0, 70.0, 80.0], "score": [3.0, 6.0, 9.0, 12.0]}
    return Hospitals(name, rows, "died", numbers, {"sex": ["f", "m"], "ward": ["a", "b", "c"]})


def make_dialysis() -> Hospitals:
    study = read_dialysis()
    rows = {
        f"centre {name}": [
            {column: table.values(column)[at] for column in ("age", "disease", "died")}
            for at in range(len(table))
        ]
        for name, table in study.tables.items()
    }
    diseases = sorted({row["disease"] for own in rows.values() for row in own})
    return Hospitals("dialysis", rows, "died", {"age": [40.0, 50.0, 60.0, 70.0, 80.0]}, {"disease": diseases})


def measure_pooled(hospitals: Hospitals, model: Any, least: int) -> tuple[list[str], list[str]]:
    """The model's figures by scikit-learn on the patients held out, and those of a logistic regression of its own."""
    held, rest = [], []
    for name, own in hospitals.rows.items():
        for row, out in zip(own, hospitals.find_held(name, least), strict=True):
            (held if out else rest).append(row)
    outcome = np.array([row[hospitals.target] == "yes" for row in held])
    risks = model.predict_proba(held)[:, list(model.classes_).index("yes")]
    columns = [*hospitals.numbers, *hospitals.values]
    tables = [
        np.array([[row[name] for name in columns] for row in part], dtype=object) for part in (rest, held)
    ]
    count = len(hospitals.numbers)
    own = make_pipeline(
        make_column_transformer(
            (StandardScaler(), list(range(count))),
            (OneHotEncoder(handle_unknown="ignore"), list(range(count, len(columns)))),
        ),
        LogisticRegression(max_iter=2000),
    ).fit(tables[0], [row[hospitals.target] for row in rest])
    other = own.predict_proba(tables[1])[:, list(own.classes_).index("yes")]
    return tuple(say_figures(len(held), int(outcome.sum()), outcome, one) for one in (risks, other))  # type: ignore[return-value]


def say_figures(patients: int, events: int, outcome: np.ndarray, risks: np.ndarray) -> list[str]:
    at = np.log(np.clip(risks, 1e-3, 1 - 1e-3) / (1 - np.clip(risks, 1e-3, 1 - 1e-3)))[:, None]
    slope = LogisticRegression(C=1e12, max_iter=2000).fit(at, outcome).coef_[0, 0]
    area, brier = roc_auc_score(outcome, risks), brier_score_loss(outcome, risks)
    return [f"{patients:,}", f"{events:,}", f"{area:.3f}", f"{slope:.2f}", f"{brier:.3f}"]


def say_table(table: RiskTable) -> list[str]:
    summary = summarise_table(table)
    overall, risks = summary["overall"], summary["risks"]
    if overall["auc"] is None:
        return [f"{overall['patients']:,}", f"{overall['events']:,}", "too much noise", "", ""]
    between = overall["intervals"]
    return [
        f"{overall['patients']:,}",
        f"{overall['events']:,}",
        *(
            f"{value:.{digits}f} ({between[key][0]:.{digits}f} to {between[key][1]:.{digits}f})"
            for key, value, digits in (
                ("auc", overall["auc"], 3),
                ("slope", risks["slope"], 2),
                ("brier", risks["brier"], 3),
            )
        ),
    ]


def show(hospitals: Hospitals) -> None:
    sizes = [len(own) for own in hospitals.rows.values()]
    print(
        f"\n{hospitals.name}: {sum(sizes):,} patients, {len(sizes)} hospitals of {min(sizes)} to {max(sizes)}\n"
    )
    print(
        "| release | measured by | patients | events | AUC (95 %) | slope | Brier |\n|---|---|---|---|---|---|---|"
    )
    for release in ("exact", "private"):
        private = release == "private"
        stated = {
            "bins": hospitals.numbers,
            "values": {**hospitals.values, hospitals.target: ["no", "yes"]},
            **({"epsilon": 1} if private else {}),
        }
        model = cc.NaiveBayes(hospitals.target, positive="yes", release=release, **stated)
        rho = rho_for_epsilon(1, DELTA) if private else None
        sites = [hospitals.open_site(name) for name in hospitals.rows]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = learn_and_measure(model, cc.House(sites), Evaluation(HOLDOUT, rho))
        least = 0 if private else cc.Policy().minimum_patients
        ours, theirs = measure_pooled(hospitals, model, least)
        for who, cells in (
            ("hospitals", say_table(table)),
            ("scikit-learn", ours),
            ("its own model", theirs),
        ):
            print(f"| {release} | {who} | {' | '.join(cells)} |")
        if rho is not None:
            learning = model.plan().total
            print(
                f"\nrho: learning {float(learning):.4f}, measuring {float(rho):.4f} (epsilon 1 each) at most; charged "
                f"{float(max(site.ledger.spent() for site in sites)):.4f} in all; noise of "
                f"{table.variance**0.5:.1f} patients in each of {2 * len(table.risks)} counts"
            )
        else:
            measured = sum(np.sum(counts) > 0 for counts in table.sites.values())
            print(f"| exact | ({measured} hospitals hold patients out) | | | | | |")


def count_false_alarms(deviation: float, pairs: int = 200, patients: int = 4000) -> int:
    """Pairs of tables of one population that are said to differ."""

    def draw(seed: int) -> RiskTable:
        chance = np.random.default_rng(seed)
        odds = chance.normal(-1.5, 1.0, patients)
        risks = 1 / (1 + np.exp(-odds))
        table = count_risks(risks, (chance.random(patients) < risks).astype(float))
        if not deviation:
            return table
        edges, middles = lay_grid(0.5, noisy=True)
        counts = np.rint(chance.normal(0, deviation, (len(middles), 2))).astype(int)
        np.add.at(counts, np.searchsorted(edges, table.risks, side="right"), table.counts)
        fields = {"threshold": 0.5, "called": 0, "variance": deviation**2}
        return RiskTable(edges=edges, risks=middles, counts=counts.tolist(), **fields)

    alarmed = 0
    for seed in range(pairs):
        before = describe_performance(draw(seed), "")
        assert before is not None
        found = find_drift(before, draw(seed + 10_000))
        alarmed += bool(found and found["alarms"])
    return alarmed


def count_covered(patients: int, deviation: float, draws: int = 200) -> tuple[dict[str, float], int]:
    """How many percent of 95 % intervals hold the figure of the whole population, each time with fresh patients and
    fresh noise; and how many draws had an AUC at all."""
    edges, middles = lay_grid(0.5, noisy=True)
    chance = np.random.default_rng(7)

    def draw(count: int, noise: float) -> RiskTable:
        odds = chance.normal(-1.2, 1.0, count)
        risks = 1 / (1 + np.exp(-odds))
        cells = 2 * np.searchsorted(edges, risks, side="right") + (chance.random(count) < risks)
        counts = np.bincount(cells, minlength=2 * len(middles)).reshape(-1, 2)
        counts += np.rint(chance.normal(0, noise, counts.shape)).astype(int)
        called, fields = len(middles) // 2, {"threshold": 0.5, "variance": noise**2}
        return RiskTable(edges=edges, risks=middles, counts=counts.tolist(), called=called, **fields)

    whole = draw(3_000_000, 0.0)
    truth = {**measure_table(whole, whole.counts)[0], "slope": 1.0, "intercept": 0.0}
    inside: dict[str, list[bool]] = {}
    for _ in range(draws):
        table = draw(patients, deviation)
        _, intervals = measure_table(table, table.counts)
        for name in ("auc", "slope", "intercept", "brier", "sensitivity", "ppv"):
            if (between := intervals.get(name)) is not None:
                inside.setdefault(name, []).append(between[0] <= truth[name] <= between[1])
    return {name: 100 * float(np.mean(found)) for name, found in inside.items()}, len(inside["auc"])


def main() -> None:
    show(make_hospitals("tiny", 79, 5, 60))
    show(make_dialysis())
    show(make_hospitals("large", 8, 1000, 3000))
    print("\ncoverage of 95 % intervals over 200 draws, in percent")
    for patients, deviation in ((260, 5.2), (1000, 4.5), (5000, 4.5), (5000, 16.0)):
        shares, told = count_covered(patients, deviation)
        found = ", ".join(f"{name} {share:.1f}" for name, share in shares.items())
        print(
            f"  {patients:,} patients, noise of {deviation:g} in each of 52 counts: {found} ({told} with figures)"
        )
    print("\ndrift: alarms of 200 pairs of tables of 4,000 patients of one population")
    for deviation in (0.0, 4.0):
        print(f"  noise of {deviation:g} patients in each count: {count_false_alarms(deviation)}")


if __name__ == "__main__":
    main()
