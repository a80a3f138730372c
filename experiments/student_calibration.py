"""Is the score of a student of experts a risk?

    python experiments/student_calibration.py

Three hospitals of 400 synthetic stays each, in which heart rate and temperature rise before the outcome. `slope` is
the calibration slope over 2,000 fresh patients, and `mean score` the mean of their scores: where a score is a risk, the
slope is 1, and the mean is that of the outcomes. Elsewhere no interval around the score is one of a risk. `adapted` is
the slope after recalibration on 400 patients of one hospital (`concilium adapt`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import concilium as cc

BINS = {"HR": [60.0, 80.0, 100.0, 120.0], "Temp": [36.0, 37.0, 38.0, 39.0]}
# Release, share of patients with the outcome, and how far vital signs rise.
CASES = [
    ("private", 0.3, 0.5),
    ("private", 0.3, 0.3),
    ("private", 0.1, 0.4),
    ("masked", 0.3, 1.0),
    ("masked", 0.1, 1.0),
]


def draw_stays(count: int, seed: int, share: float, rise: float) -> cc.Series:
    """Stays of 12 to 40 hours; the signs rise in the six hours before the outcome, in this share of patients."""
    draw, longest = np.random.default_rng(seed), 40
    lengths = draw.integers(12, longest + 1, count)
    ill = draw.random(count) < share
    onset = np.where(ill, draw.integers(lengths // 2, lengths), 10 * longest)
    hours = np.arange(longest)[:, None]
    risen = rise * np.clip((hours - onset + 6) / 6, 0, 1)
    signs = {
        "HR": 80 + draw.normal(0, 6, count) + draw.normal(0, 4, risen.shape) + 25 * risen,
        "Temp": 37 + draw.normal(0, 0.4, count) + draw.normal(0, 0.2, risen.shape) + 0.8 * risen,
    }
    return cc.Series({**signs, "sepsis": (hours >= onset).astype(float)}, lengths=lengths)


def find_slope(scores: NDArray[np.float64], outcomes: NDArray[np.float64]) -> float:
    """The calibration slope, by Newton's method."""
    held = np.clip(scores, 1e-3, 1 - 1e-3)
    rows = np.column_stack([np.ones_like(held), np.log(held / (1 - held))])
    found = np.array([0.0, 1.0])
    for _ in range(50):
        risk = 1 / (1 + np.exp(-np.clip(rows @ found, -30, 30)))
        hessian = rows.T @ (rows * (risk * (1 - risk))[:, None]) + 1e-6 * np.eye(2)
        found = found + np.clip(np.linalg.solve(hessian, rows.T @ (outcomes - risk)), -1, 1)
    return float(found[1])


def main() -> None:
    policy = cc.Policy(budget=cc.Budget("unlimited"))
    print("| release | outcome | rise | slope | mean score | adapted |\n|---|---|---|---|---|---|")
    for release, share, rise in CASES:
        sites = [
            cc.Site(name, draw_stays(400, place, share, rise), policy) for place, name in enumerate("abc")
        ]
        model = cc.Experts(
            "sepsis",
            bins=BINS,
            window="12h",
            lead="6h",
            release=release,
            epsilon=8.0,
            experts=100 if release == "private" else 20,
            units=4,
            epochs=5,
            public=draw_stays(150, 99, share, rise),
        ).fit(cc.House(sites))
        fresh = model.find_outcomes(cc.Patients(series=draw_stays(2000, 500, share, rise)))
        outcomes = np.array(fresh.truth, dtype=float)
        scores = model.predict_proba(fresh.asked)[:, 1]
        adapted = cc.adapt(model, draw_stays(400, 600, share, rise), site="d").predict_proba(fresh.asked)[
            :, 1
        ]
        print(
            f"| {release} | {outcomes.mean():.1%} | {rise:g} | {find_slope(scores, outcomes):.2f} | "
            f"{scores.mean():.1%} | {find_slope(adapted, outcomes):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
