"""How often does the interval of a rule discovery's prediction hold the true risk?

    python experiments/course_coverage.py [--fits 10]

Three hospitals of synthetic stays whose risk is known: four vital signs, two of them correlated, and an outcome in the
last hour. An interval is about all patients for whom the same rules hold, so that its truth is their mean risk, over
20,000 fresh patients; groups of fewer than 40 are left out. `each` is the share of intervals that hold the risk of the
patient alone, which rules cannot tell from that of others in the group.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

import concilium as cc

FRESH, LEAST = 20_000, 40
STEPS = 8
LIMITS = {
    "HR": [60.0, 80.0, 100.0, 120.0],
    "Temp": [36.0, 37.0, 38.0, 39.0],
    "SBP": [90.0, 110.0, 130.0],
    "Resp": [12.0, 16.0, 20.0, 25.0],
}
SPREADS = {"HR": 3.0, "Temp": 0.15, "SBP": 4.0, "Resp": 1.0}
STUDY: dict[str, Any] = {"bins": LIMITS, "window": "6h", "prevalence": 0.1, "limits": 1, "most_rules": 30}
# Trust, epsilon, patients of each hospital, and how much the vital signs say.
CASES = [
    ("secure-sum", 4.0, 700, 1.0),
    ("secure-sum", 20.0, 700, 1.0),
    ("secure-sum", 4.0, 700, 2.5),
    ("local", 12.0, 2000, 2.5),
]


def draw_stays(count: int, seed: int, strength: float = 1.0) -> tuple[cc.Series, NDArray[np.float64]]:
    """Stays with their outcome, and the true risk of each."""
    draw = np.random.default_rng(seed)
    own, common = draw.normal(size=(4, count)), draw.normal(size=count)
    levels = {
        "HR": 85 + 14 * (0.8 * own[0] + 0.6 * common),
        "Temp": 37.2 + 0.8 * (0.8 * own[1] + 0.6 * common),
        "SBP": 122 - 16 * own[2],
        "Resp": 17 + 4 * own[3],
    }
    off = 0.03 * (levels["HR"] - 85) + 0.6 * (levels["Temp"] - 37.2)
    off += 0.08 * (levels["Resp"] - 17) - 0.02 * (levels["SBP"] - 122)
    risk = 1 / (1 + np.exp(1.2 - strength * off))
    outcome = np.zeros((STEPS, count))
    outcome[-1] = draw.random(count) < risk
    measured = {name: draw.normal(level, SPREADS[name], (STEPS, count)) for name, level in levels.items()}
    return cc.Series({**measured, "sepsis": outcome}), risk


def fit(count: int, seed: int, trust: str, epsilon: float, strength: float) -> cc.RuleDiscovery:
    """A model of three hospitals with so many patients each."""
    policy = cc.Policy(budget=cc.Budget("unlimited"))
    sites = [
        cc.Site(name, draw_stays(count, 10 * seed + place, strength)[0], policy)
        for place, name in enumerate(("north", "south", "west"))
    ]
    return cc.RuleDiscovery("sepsis", trust=trust, epsilon=epsilon, **STUDY).fit(cc.House(sites))


def cover(model: cc.RuleDiscovery, seed: int, strength: float) -> tuple[float, float, float]:
    """The share of fresh patients whose group's mean risk is in the interval; whose own risk is; the mean width."""
    stays, truth = draw_stays(FRESH, 1_000_000 + seed, strength)
    # Patients for whom the same rules hold have the same predicted risk.
    _, groups, sizes = np.unique(
        model.predict_proba(stays)[:, 1].round(9), return_inverse=True, return_counts=True
    )
    held, alone, widths = 0, 0, 0.0
    large = np.flatnonzero(sizes >= LEAST)
    for group in large:
        rows = np.flatnonzero(groups == group)
        course = {name: stays.stays[name].reshape(-1, STEPS)[rows[0]].tolist() for name in LIMITS}
        said = model.explain(course)
        assert said.interval is not None
        low, high = said.interval if said.prediction else (1 - said.interval[1], 1 - said.interval[0])
        held += len(rows) * bool(low <= truth[rows].mean() <= high)
        alone += int(((low <= truth[rows]) & (truth[rows] <= high)).sum())
        widths += len(rows) * (high - low)
    everyone = sizes[large].sum()
    return held / everyone, alone / everyone, widths / everyone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=10)
    fits = parser.parse_args().fits
    print("| trust | epsilon | patients | strength | fits that predict | coverage | each | width |")
    print("|---|---|---|---|---|---|---|---|")
    for trust, epsilon, count, strength in CASES:
        models = [fit(count, seed, trust, epsilon, strength) for seed in range(fits)]
        found = [
            cover(one, seed, strength) for seed, one in enumerate(models) if one.find_why_silent() is None
        ]
        held, alone, width = np.mean(found, axis=0)
        print(
            f"| {trust} | {epsilon:g} | 3 x {count:,} | {strength:g} | {len(found)} of {fits} | "
            f"{held:.0%} | {alone:.0%} | {width:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
