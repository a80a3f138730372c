"""How often the intervals of private answers hold the risk of a patient like that, and how wide they are.

python experiments/asking_coverage.py [DRAWS]

Patients are drawn from known truths, with a grid of sex by three bands of age: within a class, predictors are
independent ("alike" in all cells, or "differing" between them), or two of them are the same one ("repeated", where
naive Bayes itself is wrong). The cube gets the noise of one month. Every draw asks about forty new patients; of half
of them none, one or two values are known. "Holds":
the true risk of such a patient (by his cell of the grid and his values) is within the 95 % interval. "Pooled": the
answer of the same consultation without noise is.
"""

from __future__ import annotations

import sys

import numpy as np

import concilium as cc
from concilium.consultations.cube import CubeBody, CubeColumn
from concilium.privacy.accounting import rho_for_epsilon

CELLS = [(sex, age) for sex in range(2) for age in range(3)]
SIZES = (1000, 5000)
EPSILONS = (1, 2, 4)
VALUES = 3
QUESTIONS = 40


class Truth:
    """A population: how many are in each cell, how likely the outcome is there, and what each class has."""

    def __init__(self, kind: str, predictors: int, draw: np.random.Generator) -> None:
        self.cells = draw.dirichlet(np.full(6, 8.0))
        self.risk = np.clip(draw.normal(0.35, 0.12, 6), 0.08, 0.8)
        alike = draw.dirichlet(np.full(VALUES, 4.0), (predictors, 2))
        own = draw.dirichlet(np.full(VALUES, 4.0), (6, predictors, 2))
        self.shares = np.broadcast_to(alike, own.shape) if kind != "differing" else (alike + own) / 2
        self.repeated = kind == "repeated"

    def sample(self, patients: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cell, outcome and values of so many patients."""
        cell = draw.choice(6, patients, p=self.cells)
        ill = (draw.random(patients) < self.risk[cell]).astype(int)
        ends = self.shares[cell, :, ill].cumsum(axis=2)
        values = (draw.random((*ends.shape[:2], 1)) > ends).sum(axis=2).clip(0, VALUES - 1)
        if self.repeated:
            values[:, 1] = values[:, 0]
        return cell, ill, values

    def find_risk(self, cell: int, values: np.ndarray) -> float:
        """That of a patient in this cell with these values."""
        odds = np.log(self.risk[cell] / (1 - self.risk[cell]))
        for place, value in enumerate(values):
            if not (self.repeated and place == 1):
                well, ill = self.shares[cell, place, :, value]
                odds += np.log(ill / well)
        return float(1 / (1 + np.exp(-odds)))


def make_body(cell: np.ndarray, ill: np.ndarray, values: np.ndarray, rho: float | None, draw) -> CubeBody:
    """The cube of these patients, with the noise of a month at this price."""
    predictors = values.shape[1]
    rows = 1 + predictors * VALUES
    counts = np.zeros((6, rows, 2))
    np.add.at(counts, (cell, 0, ill), 1)
    for place in range(predictors):
        np.add.at(counts, (cell, 1 + place * VALUES + values[:, place], ill), 1)
    everybody: list = []
    variance = 0.0
    if rho is not None:
        variance = (predictors + 1) / rho  # half of rho buys each of the two tables
        everybody = (
            np.rint(counts.sum(axis=0) + draw.normal(0, variance**0.5, counts.shape[1:])).astype(int).tolist()
        )
        counts = counts + draw.normal(0, variance**0.5, counts.shape)
    return CubeBody(
        target="y",
        classes=[0, 1],
        query="",
        by=[
            CubeColumn("sex", [], [0, 1], missing=False),
            CubeColumn("age", [50.0, 60.0], missing=False),
        ],
        predictors=[
            CubeColumn(f"x{place}", [], list(range(VALUES)), missing=False) for place in range(predictors)
        ],
        counts=np.rint(counts).astype(int).tolist(),
        everybody=everybody,
        variance=variance,
        enough=50,
    )


def open_consultation(body: CubeBody) -> cc.Consultation:
    """A consultation that answers from this cube."""
    rows = [{"sex": n % 2, "age": 45 + 10 * (n % 3), "y": n % 2} for n in range(60)]
    fitted = cc.Consultation("y", grid=["sex", "age"], bins={"age": [50, 60]}).fit(
        {"one": cc.Records.from_rows(rows)}
    )
    return fitted.of(body, fitted.card)


def ask(method: cc.Consultation, patient: dict) -> tuple[float, tuple[float, float]]:
    """The risk of class 1, and its interval."""
    said = method.explain(patient)
    low, high = said.interval
    return said.chances[1], (1 - high, 1 - low) if said.prediction == 0 else (low, high)


def main() -> None:
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print("truth      patients predictors epsilon   holds   pooled   width   apart   near (width < .3)")
    for kind in ("alike", "differing", "repeated"):
        for patients in SIZES:
            for predictors in (4, 8):
                for epsilon in EPSILONS:
                    report(kind, patients, predictors, epsilon, draws)


def report(kind: str, patients: int, predictors: int, epsilon: float, draws: int) -> None:
    found = []
    for seed in range(draws):
        draw = np.random.default_rng([seed, patients, predictors, epsilon])
        truth = Truth(kind, predictors, draw)
        rho = float(rho_for_epsilon(str(epsilon), "1e-6"))
        cell, ill, values = truth.sample(patients, draw)
        noisy = open_consultation(make_body(cell, ill, values, rho, draw))
        exact = open_consultation(make_body(cell, ill, values, None, draw))
        cells, _, asked = truth.sample(QUESTIONS, draw)
        rng = np.random.default_rng(seed)
        for one, entered in zip(cells, asked, strict=True):
            sex, age = CELLS[one]
            patient = {"sex": sex, "age": 45.0 + 10 * age} | {
                f"x{place}": int(value) for place, value in enumerate(entered)
            }
            if rng.random() < 0.5:  # of every other patient, only the first few values are known
                entered = entered[: rng.integers(0, 3)]
                patient = dict(list(patient.items())[: 2 + len(entered)])
            risk, (low, high) = ask(noisy, patient)
            pooled, _ = ask(exact, patient)
            true = truth.find_risk(one, entered)
            found.append(
                (
                    low <= true <= high,
                    low <= pooled <= high,
                    high - low,
                    abs(risk - pooled),
                    high - low < 0.3,
                )
            )
    holds, pooled, width, apart, near = np.mean(found, axis=0)
    print(
        f"{kind:10} {patients:8} {predictors:10} {epsilon:7}   {holds:.3f}   {pooled:.3f}   {width:.3f}"
        f"   {apart:.3f}   {near:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
