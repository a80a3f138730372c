"""How often does the interval of a RuleFit's prediction hold the patient's true risk?

    python experiments/rulefit_coverage.py [--fits 25] [--patients 400]

Three hospitals of synthetic patients whose risk is known. Every fit is judged on twenty fresh patients. Truths: a
smooth risk, rules, a weak signal, a steep risk that nearly separates the classes, and a number to predict (its true
mean). A risk counts as held by an interval that misses it by less than half a percent, as both are printed in
percent. `given` is the coverage of an interval that takes the selected terms as given. Fits without terms, which
answer with the base rate and say so, are counted and left out of the coverage.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import concilium as cc

FRESH = 20
PRINTED = 0.005
Columns = dict[str, NDArray[Any]]


def _smooth(x: Columns) -> NDArray[np.float64]:
    return (
        -1.2
        + 0.04 * (x["age"] - 60)
        - 0.015 * (x["pressure"] - 120)
        + 0.35 * (x["lactate"] - 2)
        + 0.6 * _icu(x)
    )


def _rules(x: Columns) -> NDArray[np.float64]:
    both = (x["age"] >= 65) & (x["lactate"] >= 2)
    return -1.8 + 1.3 * both + 0.9 * (x["pressure"] < 105) + 0.6 * _icu(x)


def _weak(x: Columns) -> NDArray[np.float64]:
    return -0.8 + 0.02 * (x["age"] - 60) + 0.2 * (x["lactate"] - 2)


def _steep(x: Columns) -> NDArray[np.float64]:
    return 4 * _smooth(x)


def _icu(x: Columns) -> NDArray[np.float64]:
    return (x["ward"] == "icu").astype(float)


TRUTHS: dict[str, Callable[[Columns], NDArray[np.float64]]] = {
    "smooth": _smooth,
    "rules": _rules,
    "weak": _weak,
    "steep": _steep,
    "number": _smooth,
}


def draw_patients(truth: str, count: int, seed: int) -> tuple[list[dict[str, Any]], NDArray[np.float64]]:
    """Patients with an outcome, and the true risk of each (or the true mean, where the outcome is a number)."""
    draw = np.random.default_rng(seed)
    columns: Columns = {
        "age": draw.integers(20, 95, count).astype(float),
        "pressure": draw.normal(122, 17, count).round(),
        "lactate": np.exp(draw.normal(0.6, 0.5, count)).round(1),
        "ward": draw.choice(["icu", "surgery", "medicine"], count, p=[0.3, 0.3, 0.4]),
        "noise": draw.normal(50, 10, count).round(),
    }
    predictor = TRUTHS[truth](columns)
    if truth == "number":
        true = 20 + 5 * predictor
        columns["outcome"] = true + draw.normal(0, 8, count)
    else:
        true = 1 / (1 + np.exp(-predictor))
        columns["outcome"] = np.where(draw.random(count) < true, "yes", "no")
    rows = [
        dict(zip(columns, row, strict=True))
        for row in zip(*(c.tolist() for c in columns.values()), strict=True)
    ]
    return rows, true


def fit(truth: str, count: int, seed: int) -> cc.RuleFit:
    """A model of three hospitals with so many patients each."""
    sites = []
    for place, name in enumerate(("north", "south", "west")):
        rows, _ = draw_patients(truth, count, 10 * seed + place)
        sites.append(cc.Site(name, cc.Records.from_rows(rows)))
    known: dict[str, Any] = {"bins": {"outcome": [-30, 70]}} if truth == "number" else {"positive": "yes"}
    return cc.RuleFit("outcome", release="exact", **known).fit(cc.House(sites))


def cover(model: cc.RuleFit, truth: str, seed: int) -> tuple[float, float]:
    """The share of fresh patients whose true risk is in their interval, and the mean width of the intervals."""
    rows, true = draw_patients(truth, FRESH, 1_000_000 + seed)
    within, widths = [], []
    for row, risk in zip(rows, true.tolist(), strict=True):
        said = model.explain({name: value for name, value in row.items() if name != "outcome"})
        assert said.interval is not None
        low, high = said.interval
        true_one = 1 - risk if said.prediction == "no" else risk
        within.append(low - PRINTED <= true_one <= high + PRINTED)
        widths.append(high - low)
    return float(np.mean(within)), float(np.mean(widths))


def take_terms_as_given(model: cc.RuleFit) -> cc.RuleFit:
    """The same model with intervals of its coefficients alone."""
    plain = msgspec.structs.replace(model.body.validation, inflation=1.0, misfit=0.0)
    return cc.RuleFit.of(msgspec.structs.replace(model.body, validation=plain), model.card)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=25)
    parser.add_argument("--patients", type=int, default=400, help="of each hospital")
    arguments = parser.parse_args()
    print("| truth | fits with terms | given | coverage | width |\n|---|---|---|---|---|")
    for truth in TRUTHS:
        found, given = [], []
        for seed in range(arguments.fits):
            model = fit(truth, arguments.patients, seed)
            if model.body.taken:
                found.append(cover(model, truth, seed))
                given.append(cover(take_terms_as_given(model), truth, seed)[0])
        share, width = np.mean(found, axis=0)
        print(
            f"| {truth} | {len(found)} of {arguments.fits} | {np.mean(given):.0%} | {share:.0%} | {width:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
