"""What noise on histograms does to cutoffs: in shares under masks, or at every site, as Federated RuleFit has it.

python experiments/rulefit_noise.py [--repetitions 10] [--bins 20 100] [--epsilon 1]

The paper's simulation with M = 5. `shares`: the sites' Gaussian noise adds up to what `epsilon` needs for all ten
histograms together, as `RuleFit(release="masked")` does it. `per site`: every site adds Laplace noise to its own
histograms and the house adds them up; with `epsilon` for all ten, and, as printed in the paper, with `epsilon` for
each, which is ten times that. Shown are how far a cutoff lies from its quantile (mean over cutoffs, in patients of
1,000) and the AUC of a model with these cutoffs on test patients; medians.
"""

from __future__ import annotations

import argparse
import statistics
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

import concilium as cc
from concilium.privacy.mechanisms import add_laplace
from concilium.protocol.attributes import choose_cutoffs
from rulefit_simulation import SEED, judge
from simulation import COVARIATES, SHAPES, TARGET, Dealt, as_records, deal, list_cells

CUTOFFS = 20
NAMES = [f"x{place}" for place in range(1, COVARIATES + 1)]
Cuts = dict[str, list[float]]


def count(values: NDArray[np.float64], edges: list[float]) -> NDArray[np.int64]:
    """A histogram as sites count it: missing first, then the bins."""
    bins = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
    return np.concatenate([[0], bins])


def per_site(dealt: Dealt, edges: list[float], epsilon: Fraction | None) -> Cuts:
    """Cutoffs from histograms to which each site has added its own noise; None: no noise."""
    found = {}
    for place, name in enumerate(NAMES):
        tables = [count(matrix[:, place], edges) for matrix, _ in dealt.sites]
        noisy = tables if epsilon is None else [add_laplace(table, epsilon) for table in tables]
        found[name] = choose_cutoffs(np.sum(noisy, axis=0), edges, CUTOFFS)
    return found


def fit(dealt: Dealt, cuts: Cuts, **options: Any) -> Any:
    house = cc.House([cc.Site(f"s{place}", as_records(*site)) for place, site in enumerate(dealt.sites)])
    return cc.RuleFit(target=TARGET, positive=1, bins=cuts, penalty=0.01, max_terms="all", **options).fit(
        house
    )


def find_error(dealt: Dealt, cuts: Cuts) -> float:
    """How far cutoffs lie from the even quantiles next to them, in patients."""
    matrix = np.concatenate([rows for rows, _ in dealt.sites])
    wanted = np.arange(1, CUTOFFS + 1) / (CUTOFFS + 1)
    errors = []
    for place, name in enumerate(NAMES):
        reached = np.searchsorted(np.sort(matrix[:, place]), cuts[name]) / len(matrix)
        errors += [np.abs(reached - share).min(initial=1.0) * len(matrix) for share in wanted]
    return float(np.mean(errors))


def run(dealt: Dealt, edges: list[float], epsilon: Fraction, way: str) -> tuple[float, float]:
    """The error of the cutoffs and the AUC of the model."""
    if way == "shares":
        model = fit(dealt, dict.fromkeys(NAMES, edges), cutoffs=CUTOFFS, epsilon=epsilon)
        cuts = {attribute.name: list(attribute.edges) for attribute in model.body.terms.attributes}
    else:
        budget = {"exact": None, "per site": epsilon / COVARIATES, "per site, as printed": epsilon}[way]
        cuts = per_site(dealt, edges, budget)
        model = fit(dealt, cuts, cutoffs=None, release="exact")
    positive = list(model.classes_).index(1)
    figures = judge(lambda matrix: model.predict_proba(as_records(matrix))[:, positive], dealt.test)
    return find_error(dealt, cuts), figures["auc"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--bins", type=int, nargs="+", default=(20, 100))
    parser.add_argument("--epsilon", default="1")
    options = parser.parse_args()
    epsilon = Fraction(options.epsilon)
    spent = {
        "exact": "unlimited",
        "shares": str(epsilon),
        "per site": str(epsilon),
        "per site, as printed": str(epsilon * COVARIATES),
    }
    print("| model | bins | noise | epsilon in all | cutoffs are off by | AUC |\n|---|---|---|---|---|---|")
    for shape in SHAPES:
        cell = next(c for c in list_cells() if (c.shape, c.scenario, c.setting) == (shape, 1, "M = 5"))
        for bins in options.bins:
            edges = np.linspace(-3, 3, bins + 1).tolist()
            for way, cost in spent.items():
                found = [
                    run(deal(cell, SEED, repetition), edges, epsilon, way)
                    for repetition in range(options.repetitions)
                ]
                error, auc = (statistics.median(column) for column in zip(*found, strict=True))
                print(f"| {shape} | {bins} | {way} | {cost} | {error:.0f} | {auc:.4f} |", flush=True)


if __name__ == "__main__":
    main()
