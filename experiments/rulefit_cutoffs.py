"""Appendix B of Federated RuleFit: how many bins, and how many cutoffs chosen among them, against AUC, time and rules.

python experiments/rulefit_cutoffs.py [--repetitions 20] [--bins 10 20 50 100] [--cutoffs 5 10 20 50]

The paper's simulation with M = 5. Bins are of equal width from -3 to 3; a shared histogram tells which of their edges
lie at even quantiles, and these are the cutoffs. `all` takes every edge and asks for no histogram. The last row of each
model has edges every 0.025, as good as none: the paper's comparison without preprocessing. Counts are exact here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import concilium as cc
from rulefit_simulation import FIGURES, SEED, judge
from simulation import COVARIATES, SHAPES, TARGET, Cell, as_records, deal, list_cells

FINE = 240


@dataclass(frozen=True)
class Trial:
    """What one fit gave."""

    figures: dict[str, float]
    seconds: float
    candidates: int
    terms: int


def run(cell: Cell, bins: int, cutoffs: int | None, repetition: int) -> Trial:
    dealt = deal(cell, SEED, repetition)
    house = cc.House([cc.Site(f"s{place}", as_records(*site)) for place, site in enumerate(dealt.sites)])
    edges = np.linspace(-3, 3, bins + 1).tolist()
    begun = time.perf_counter()
    model: Any = cc.RuleFit(
        target=TARGET,
        positive=1,
        bins={f"x{place}": edges for place in range(1, COVARIATES + 1)},
        cutoffs=cutoffs,
        penalty=0.01,
        max_terms="all",
        release="exact",
    ).fit(house)
    seconds = time.perf_counter() - begun
    positive = list(model.classes_).index(1)
    figures = judge(lambda matrix: model.predict_proba(as_records(matrix))[:, positive], dealt.test)
    return Trial(figures, seconds, len(model.rules_), int(np.count_nonzero(model.coef_)))


def tell(cell: Cell, bins: int, cutoffs: int | None, trials: list[Trial]) -> None:
    figures = [f"{statistics.median(one.figures[name] for one in trials):.4f}" for name in FIGURES]
    seconds = statistics.median(one.seconds for one in trials)
    candidates = statistics.median(one.candidates for one in trials)
    terms = statistics.median(one.terms for one in trials)
    chosen = "all" if cutoffs is None else cutoffs
    print(
        f"| {cell.shape} | {bins} | {chosen} | {' | '.join(figures)} | {seconds:.2f} | {candidates:g} | {terms:g} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--bins", type=int, nargs="+", default=(10, 20, 50, 100))
    parser.add_argument("--cutoffs", type=int, nargs="+", default=(5, 10, 20, 50))
    options = parser.parse_args()
    settings = [
        (bins, cutoffs)
        for bins in options.bins
        for cutoffs in (*(count for count in options.cutoffs if count < bins), None)
    ]
    print(f"M = 5, medians of {options.repetitions} repetitions\n")
    print("| model | bins | cutoffs | AUC | accuracy | F1 | seconds | rules | terms with a coefficient |")
    print("|---|---|---|---|---|---|---|---|---|")
    for shape in SHAPES:
        cell = next(c for c in list_cells() if (c.shape, c.scenario, c.setting) == (shape, 1, "M = 5"))
        for bins, cutoffs in [*settings, (FINE, None)]:
            trials = [run(cell, bins, cutoffs, repetition) for repetition in range(options.repetitions)]
            tell(cell, bins, cutoffs, trials)


if __name__ == "__main__":
    main()
