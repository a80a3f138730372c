"""How often intervals of a private Cox regression hold the truth, on synthetic patients.

    python experiments/private_cox.py [--draws 200]

Four terms, a grid of four cells. Noise has the deviation that the price buys, and is added to the sums of one hospital
as the gate would add it. `weibull`: above one, hazards rise within the cells of the grid.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import pandas as pd

import concilium as cc
from concilium.privacy.accounting import rho_for_epsilon
from concilium.protocol.cohort import View
from concilium.protocol.questions import Gaussian
from concilium.statistics import regression_fit
from concilium.statistics.columns import Declaration
from concilium.statistics.cox import SHARE_OF_TABLE
from concilium.statistics.private_hazards import AskHazards

TERMS = Declaration({}, {}, (), {"u": [-1, 1], "v": [-1, 1]}).make_terms(["u", "v"], {"c": ("a", "b", "c")})
TRUTH = np.array([0.6, 0.0, 0.8, -0.5])
GRID = (60.0, 120.0, 200.0, 300.0)
SCHEMA = {"u": "number", "v": "number", "c": "code", "t": "number", "y": "code"}
PLACES = 12
SETTINGS = [(8000, "3", 1.0), (12_000, "3", 1.0), (30_000, "1", 1.0), (12_000, "3", 1.5)]


def draw(dice: np.random.Generator, patients: int, weibull: float) -> pd.DataFrame:
    """Patients of whom about a third has the event; hazards are proportional."""
    u, v = np.clip(dice.normal(0, 0.35, (2, patients)), -1, 1)
    c = dice.integers(0, 3, patients)
    eta = np.column_stack([c == 1, c == 2, u, v]) @ TRUTH
    event = 400 * dice.weibull(weibull, patients) * np.exp(-eta / weibull)
    end = dice.uniform(50, 600, patients)
    names = np.array(list("abc"))[c]
    event_first = np.where(event <= end, "yes", "no")
    return pd.DataFrame({"u": u, "v": v, "c": names, "t": np.minimum(event, end), "y": event_first})


def fit(dice: np.random.Generator, frame: pd.DataFrame, epsilon: str) -> regression_fit.PrivateEnd:
    """Where four noisy steps end, from the hazards of all patients."""
    rho = float((1 - SHARE_OF_TABLE) * rho_for_epsilon(epsilon, "1/1000000"))
    cohort = View(cc.Records.read(frame, schema=SCHEMA), cc.Policy()).select("", "y")
    leaving = np.histogram(frame.t, [0, *GRID, 1e9])[0].astype(float)
    events = np.histogram(frame.t[frame.y == "yes"], [0, *GRID])[0]
    at_risk = leaving.sum() - np.cumsum(leaving[:-1]) + leaving[:-1] / 2
    at = np.concatenate([np.log(events / at_risk), np.zeros(len(TRUTH))])
    for share in regression_fit.STEPS:
        question = AskHazards(
            query="",
            target="y",
            attributes=TERMS.attributes,
            columns=TERMS.columns,
            time="t",
            positive="yes",
            grid=GRID,
            at=tuple(at.tolist()),
            noise=Gaussian("1"),
            places=PLACES,
        )
        noise = math.ldexp(float(question.bound) / math.sqrt(2 * rho * float(share)), PLACES)
        added = np.rint(dice.normal(0, noise, question.numbers)).astype(np.int64)
        sums = question.read(question.compute(cohort) + added, noise**2)
        end = regression_fit._step(sums, at, "poisson")
        at = end.coefficients
    return end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    draws = parser.parse_args().draws
    for place, (patients, epsilon, weibull) in enumerate(SETTINGS):
        dice = np.random.default_rng(place)
        covered, errors, shares = [], [], []
        for _ in range(draws):
            end = fit(dice, draw(dice, patients, weibull), epsilon)
            own = end.coefficients[len(GRID) :] - TRUTH
            errors.append(own)
            if end.covariance is not None:
                deviations = np.sqrt(np.diagonal(end.covariance)[len(GRID) :])
                covered.append(np.abs(own) < 1.96 * deviations)
                shares.append(end.noise_share)
        print(
            f"{patients:,} patients, epsilon {epsilon}, weibull {weibull}: intervals in {len(covered)} of {draws} "
            f"draws, which hold the truth in {np.mean(covered) if covered else math.nan:.1%}; noise "
            f"{np.mean(shares) if shares else math.nan:.0%} of the variance; largest bias "
            f"{np.abs(np.mean(errors, axis=0)).max():.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
