"""What a card says of a threshold that was chosen by a sensitivity or by Youden, beside what becomes of new patients.

python experiments/held_out_thresholds.py [--draws N]

Four hospitals of 1,500 generated patients each, of whom about one in 27 is positive, more often the old, some wards,
and men with a high pressure; 20,000 others of the same kind. Exact models: a tree of depth 4 with at least 20 patients
in a branch, naive Bayes, RuleFit with 60 trees and a penalty of 0.002. Figures are sensitivity and specificity.
"""

from __future__ import annotations

import argparse
import math
import random
from typing import Any

import numpy as np

import concilium as cc

HOSPITALS, PATIENTS, OTHERS = 4, 1500, 20_000
BINS = {"age": list(range(30, 90, 10)), "pressure": list(range(100, 160, 10)), "z": [-1, -0.5, 0, 0.5, 1]}
DECISIONS = ("sensitivity 0.9", "youden")


def draw_patients(count: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        row = {
            "age": draw.uniform(20, 90),
            "pressure": draw.gauss(120, 20),
            "sex": draw.choice("fm"),
            "ward": draw.choice("abcdef"),
            "z": draw.gauss(0, 1),
        }
        odds = -4.2 + 1.3 * (row["age"] > 70) + 0.8 * (row["ward"] in "ab")
        odds += 0.6 * (row["pressure"] > 140) * (row["sex"] == "m")
        rows.append({**row, "y": "yes" if draw.random() < 1 / (1 + math.exp(-odds)) else "no"})
    return rows


def make_models(decision: str) -> dict[str, Any]:
    return {
        "tree": cc.DecisionTree("y", growth="id3", bins=BINS, max_depth=4, min_leaf=20, threshold=decision),
        "naive-bayes": cc.NaiveBayes("y", bins=BINS, threshold=decision),
        "rulefit": cc.RuleFit(
            "y", "yes", bins=BINS, trees=60, penalty=0.002, threshold=decision, release="exact"
        ),
    }


def measure(draws: int) -> dict[tuple[str, str], np.ndarray]:
    """For each method and decision, a row for each draw: sensitivity and specificity by the card, and of others."""
    others = draw_patients(OTHERS, 99)
    table, truth = cc.Records.from_rows(others), np.array([row["y"] == "yes" for row in others])
    figures: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(draws):
        tables = [draw_patients(PATIENTS, 1000 * number + 7 + site) for site in range(HOSPITALS)]
        for decision in DECISIONS:
            for name, model in make_models(decision).items():
                model.fit(
                    [
                        cc.Site(f"h{site}", cc.Records.from_rows(rows), division_key=b"an experiment")
                        for site, rows in enumerate(tables)
                    ]
                )
                called = model.predict(table) == "yes"
                told = model.decided.sensitivity, model.decided.specificity
                figures.setdefault((name, decision), []).append(
                    [*told, called[truth].mean(), (~called)[~truth].mean()]
                )
    return {key: np.array(rows) for key, rows in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=8)
    figures = measure(parser.parse_args().draws)
    print("| method | decision | by the card | new patients |\n|---|---|---|---|")
    for (name, decision), rows in figures.items():
        card, new = (f"{one:.3f}, {other:.3f}" for one, other in rows.mean(axis=0).reshape(2, 2).tolist())
        print(f"| {name} | {decision} | {card} | {new} |")


if __name__ == "__main__":
    main()
