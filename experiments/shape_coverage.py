"""Do bands of shapes hold the truth at their level, and what does a score sheet lose?

    python experiments/shape_coverage.py [--draws 25] [--patients 3000] [--epsilon 1] [--number]

Patients are drawn from known log odds: a wave, a threshold, a line, three wards, and a number that says nothing. Of
each draw five hospitals learn an exact and a private model with the same public bins. Printed: how often the 95 % band
of a curve holds the mean true log odds in a bin (against the curve's mean); how often the interval of a fresh patient
holds the risk at the mean of the patient's bins, and the patient's own; and the AUC that whole points lose on 20,000
fresh patients. `--number`: the same of a number, 10 + 3 x these log odds and noise of deviation 3, and R squared.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd

import concilium as cc
from concilium.evaluation.metrics import auc
from concilium.models.intervals import WITHIN_95
from concilium.shapes.reading import find_cells

BINS = {
    "age": [float(edge) for edge in range(25, 90, 5)],
    "lab": [-1.0, -0.5, 0.0, 0.5, 1.0],
    "dose": [-1.0, -0.5, 0.0, 0.5, 1.0],
    "noise": [-1.0, 0.0, 1.0],
}
WARDS = ["a", "b", "c"]
HOSPITALS, ASKED, FRESH = 5, 100, 20_000
MIDDLE, STEP, RANGE = 10.0, 3.0, [-20.0, 40.0]  # of the number


def draw_patients(count: int, seed: int) -> tuple[pd.DataFrame, dict[str, Any], Any]:
    """The table, the part of the log odds that each column gives, and all of the log odds."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": draw.uniform(20, 90, count)})
    for name in ("lab", "dose", "noise"):
        frame[name] = draw.normal(size=count)
    frame["ward"] = np.array(WARDS)[draw.integers(0, 3, count)]
    parts = {
        "age": 1.2 * np.sin(frame.age.to_numpy() / 15),
        "lab": 1.0 * (frame.lab.to_numpy() > 0.5),
        "dose": 0.6 * frame.dose.to_numpy(),
        "noise": np.zeros(count),
        "ward": frame.ward.map({"a": -0.8, "b": 0.0, "c": 0.8}).to_numpy(),
    }
    odds = -1.0 + sum(parts.values())
    frame["y"] = (draw.random(count) < 1 / (1 + np.exp(-odds))).astype(int)
    frame["stay"] = MIDDLE + STEP * (odds + draw.normal(size=count))
    return frame, parts, odds


def count_bands(model: cc.ShapeModel, fresh: pd.DataFrame, parts: dict[str, Any]) -> tuple[int, int]:
    """How many cells of curves hold the truth, of how many."""
    held = cells_seen = 0
    places = find_cells(model.body, model.read(cc.Records.read(fresh)), len(fresh))
    for term, own in zip(model.body.terms, places, strict=True):
        if len(term.cells.attributes) > 1:
            continue
        truth = parts[model.body.name(term)] * (1 if model.classes_ else STEP)
        seen = [cell for cell in range(len(term.values)) if (own == cell).sum() >= 100]
        means = np.array([truth[own == cell].mean() for cell in seen])
        shares = np.array([(own == cell).mean() for cell in seen])
        values, errors = np.array(term.values)[seen], np.array(term.errors)[seen]
        off = (values - shares @ values) - (means - shares @ means)
        held += int((np.abs(off) <= WITHIN_95 * errors).sum())
        cells_seen += len(seen)
    return held, cells_seen


def average_in_bins(fresh: pd.DataFrame, parts: dict[str, Any]) -> Any:
    """The log odds of each patient, were each column's part the mean over its bin: what a model of bins can say."""
    total = np.full(len(fresh), -1.0)
    for name, part in parts.items():
        place = np.digitize(fresh[name], BINS[name]) if name in BINS else fresh[name]
        total += pd.Series(part).groupby(np.asarray(place)).transform("mean").to_numpy()
    return total


def count_risks(model: cc.ShapeModel, fresh: pd.DataFrame, odds: Any) -> int:
    held = 0
    for row, truth in zip(
        fresh.drop(columns=["y", "stay"]).head(ASKED).to_dict("records"), odds, strict=False
    ):
        said = model.explain(row)
        if not model.classes_:
            held += bool(said.interval[0] <= MIDDLE + STEP * truth <= said.interval[1])
            continue
        risk = 1 / (1 + np.exp(-truth))
        low, high = said.interval
        held += bool(low <= (risk if said.prediction == 1 else 1 - risk) <= high)
    return held


def lose(model: cc.ShapeModel, fresh: pd.DataFrame) -> float:
    """The AUC, or R squared, of the model less that of its points."""
    source = model.read(cc.Records.read(fresh))
    cells = find_cells(model.body, source, len(fresh))
    points = sum(np.array([*term.points, 0])[own] for term, own in zip(model.body.terms, cells, strict=True))
    own, positive, stay = model.decide(fresh), fresh.y.to_numpy() == 1, fresh.stay.to_numpy()
    if model.classes_:
        return (auc(positive, own) or 0) - (auc(positive, points) or 0)
    added = model.body.sheet.start + model.body.sheet.unit * points
    return float(((stay - added) ** 2).sum() - ((stay - own) ** 2).sum()) / float(
        ((stay - stay.mean()) ** 2).sum()
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=25)
    parser.add_argument("--patients", type=int, default=3000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--number", action="store_true")
    given = parser.parse_args()
    target, more, classes = ("stay", {"stay": RANGE}, {}) if given.number else ("y", {}, {"y": [0, 1]})
    fresh, parts, odds = draw_patients(FRESH, 10_000)
    in_bins = average_in_bins(fresh, parts)
    ways: dict[str, dict[str, Any]] = {
        "exact": {"release": "exact"},
        "private": {"release": "private", "epsilon": given.epsilon, "values": {"ward": WARDS, **classes}},
    }
    print(
        "| release | bands hold the truth | cells | risks held, of bins | of single patients | points lose |"
    )
    print("|---" * 6 + "|")
    for name, how in ways.items():
        held = cells = risks = single = 0
        lost = []
        for seed in range(given.draws):
            frame, _, _ = draw_patients(given.patients, seed)
            frame = frame.drop(columns="y" if given.number else "stay")
            sites = [
                cc.Site(f"h{place}", cc.Records.read(frame.iloc[place::HOSPITALS].reset_index(drop=True)))
                for place in range(HOSPITALS)
            ]
            positive = None if given.number else 1
            model = cc.ShapeModel(target, positive=positive, bins={**BINS, **more}, **how).fit(
                cc.House(sites)
            )
            own, of = count_bands(model, fresh, parts)
            held, cells = held + own, cells + of
            risks += count_risks(model, fresh, in_bins)
            single += count_risks(model, fresh, odds)
            lost.append(lose(model, fresh))
        error = np.std(lost) / np.sqrt(len(lost))
        print(
            f"| {name} | {held / cells:.1%} | {cells} | {risks / ASKED / given.draws:.1%} "
            f"| {single / ASKED / given.draws:.1%} "
            f"| {np.mean(lost):.4f} (SE {error:.4f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
