"""How often the interval of an answer holds the mean risk of the patients with the values that were entered.

    python experiments/partial_answers.py

One to three values of four are entered. The four numbers go together (correlation 0.6), or not at all. 6 fits to 2,000
synthetic patients each; the truth is the mean of 400,000 others with the same values.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import concilium as cc

NAMES = list("abcd")
METHODS = {
    "tree": lambda: cc.DecisionTree("y", positive=1),
    "naive Bayes": lambda: cc.NaiveBayes("y", positive=1),
    "RuleFit": lambda: cc.RuleFit("y", 1, trees=60, release="exact"),
    "shapes": lambda: cc.ShapeModel("y", 1, release="exact"),
    "regression": lambda: cc.Regression("y", positive=1, release="exact"),
}
FITS, ANSWERS = 6, 25


def draw(patients: int, seed: int, like: float) -> tuple[pd.DataFrame, np.ndarray]:
    """Patients with four numbers that correlate, and their risks."""
    random = np.random.default_rng(seed)
    common = random.normal(size=(patients, 1))
    seen = like**0.5 * common + (1 - like) ** 0.5 * random.normal(size=(patients, 4))
    frame = pd.DataFrame(np.clip((3 * seen).round(), -6, 6), columns=NAMES)
    odds = -1.2 + 0.3 * frame.a + 0.2 * frame.b + 0.5 * ((frame.a > 0) & (frame.c > 2))
    return frame, 1 / (1 + np.exp(-odds.to_numpy()))


def main() -> None:
    for like in (0.0, 0.6):
        everyone, risks = draw(400_000, 99, like)
        for name, make in METHODS.items():
            held: dict[int, list[bool]] = {1: [], 2: [], 3: []}
            for seed in range(FITS):
                frame, own = draw(2000, seed, like)
                random = np.random.default_rng(1000 + seed)
                frame["y"] = (random.random(len(frame)) < own).astype(int)
                model = make().fit([frame[part::4] for part in range(4)])
                for place in random.integers(0, len(everyone), ANSWERS).tolist():
                    for many, found in held.items():
                        entered = everyone.loc[place, random.choice(NAMES, many, replace=False)].to_dict()
                        alike = np.all([everyone[key] == value for key, value in entered.items()], axis=0)
                        said, truth = model.explain(entered), float(risks[alike].mean())
                        low, high = said.interval
                        found.append(low <= (truth if said.prediction == 1 else 1 - truth) <= high)
            shares = ", ".join(f"{many} entered {np.mean(found):.0%}" for many, found in held.items())
            print(f"correlation {like}: {name}: {shares}", flush=True)


if __name__ == "__main__":
    main()
