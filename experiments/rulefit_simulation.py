"""Section 3 of Federated RuleFit: learning together, alone or pooled, beside a linear and a forest baseline.

python experiments/rulefit_simulation.py [--repetitions 20] [--scenarios 1 2 3] [--shapes linear nonlinear]
                                         [--methods federated local BFI forest] [--jobs 2]

Simulated hospitals as in `simulation.py`. Every figure is measured on the test patients of all hospitals together;
`local` is the mean over the hospitals' own models. Shown are differences to pooled RuleFit on the same patients, median
and (mean) over repetitions. RuleFit has its default settings and public edges every 0.06 from -3 to 3, of which it
chooses 20 cutoffs; BFI has the prior precision 1, its package's default; the forest has a hundred trees.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

import bfi
import concilium as cc
import forest
from concilium.evaluation.metrics import measure
from simulation import (
    COVARIATES,
    SHAPES,
    TARGET,
    Cell,
    Site,
    as_records,
    deal,
    list_cells,
    pool,
)

Floats = NDArray[np.float64]
Predictor = Callable[[Floats], Floats]  # patients -> the probability that the outcome is 1
Method = Callable[[list[Site], int], Predictor]

SEED = 2604
FIGURES = ("auc", "accuracy", "f1")
EDGES = {f"x{place}": np.linspace(-3, 3, 101).tolist() for place in range(1, COVARIATES + 1)}
CLOSE = 0.005


def learn_rulefit(sites: list[Site], seed: int) -> Predictor:
    house = cc.House([cc.Site(f"s{place:02d}", as_records(*site)) for place, site in enumerate(sites)])
    model = cc.RuleFit(
        target=TARGET, positive=1, bins=EDGES, penalty=0.01, max_terms="all", release="exact"
    ).fit(house)
    positive = list(model.classes_).index(1)
    return lambda matrix: model.predict_proba(as_records(matrix))[:, positive]


def learn_pooled(sites: list[Site], seed: int) -> Predictor:
    return learn_rulefit([pool(sites)], seed)


def learn_bfi(sites: list[Site], seed: int) -> Predictor:
    found = bfi.infer(sites)
    return lambda matrix: found.predict_proba(matrix)[:, 1]


def learn_forest(sites: list[Site], seed: int) -> Predictor:
    grown = forest.grow(sites, seed)
    return lambda matrix: grown.predict_proba(matrix)[:, 1]


METHODS: dict[str, Method] = {"federated": learn_rulefit, "BFI": learn_bfi, "forest": learn_forest}


@dataclass(frozen=True)
class Result:
    """The figures of one repetition, method by method."""

    cell: Cell
    repetition: int
    figures: dict[str, dict[str, float]]
    seconds: dict[str, float]


def repeat(methods: tuple[str, ...], task: tuple[Cell, int]) -> Result:
    """Every method on the same patients."""
    cell, repetition = task
    dealt = deal(cell, SEED, repetition)
    figures, seconds = {}, {}
    for name in methods:
        begun = time.perf_counter()
        if name == "local":
            own = [judge(learn_rulefit([site], repetition), dealt.test) for site in dealt.sites]
            figures[name] = {figure: statistics.mean(one[figure] for one in own) for figure in FIGURES}
        else:
            method = learn_pooled if name == "pooled" else METHODS[name]
            figures[name] = judge(method(dealt.sites, repetition), dealt.test)
        seconds[name] = time.perf_counter() - begun
    return Result(cell, repetition, figures, seconds)


def judge(predictor: Predictor, test: Site) -> dict[str, float]:
    """The figures of the test patients; an F1 of a model that finds nobody is 0."""
    matrix, outcome = test
    chance = predictor(matrix)
    shares = np.column_stack([1 - chance, chance])
    measured = measure(outcome.tolist(), (chance > 0.5).astype(float).tolist(), shares, [0.0, 1.0], 1.0)
    return {figure: measured[figure] or 0.0 for figure in FIGURES}


def differences(results: Iterable[Result], method: str, figure: str) -> list[float]:
    return [one.figures[method][figure] - one.figures["pooled"][figure] for one in results]


def tell(by_cell: dict[Cell, list[Result]], methods: tuple[str, ...]) -> None:
    """One row for each setting and method: differences to pooled RuleFit, median (mean)."""
    print(
        "| model | scenario | setting | method | AUC | accuracy | F1 | pooled AUC, accuracy, F1 | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for cell, results in by_cell.items():
        level = ", ".join(
            f"{statistics.mean(one.figures['pooled'][figure] for one in results):.3f}" for figure in FIGURES
        )
        for method in methods:
            shown = [
                f"{statistics.median(found):+.4f} ({statistics.mean(found):+.4f})"
                for found in (differences(results, method, figure) for figure in FIGURES)
            ]
            took = statistics.median(one.seconds[method] for one in results)
            print(
                f"| {cell.shape} | {cell.scenario} | {cell.setting} | {method} | {' | '.join(shown)} "
                f"| {level} | {took:.2f} |"
            )


def check_aims(by_cell: dict[Cell, list[Result]], methods: tuple[str, ...]) -> None:
    """What is aimed at, by mean AUC in every setting, and where it is missed."""
    if "federated" not in methods:
        return
    to_pooled = {
        cell: statistics.mean(differences(results, "federated", "auc")) for cell, results in by_cell.items()
    }
    say(f"federated at most {CLOSE} AUC below pooled", {c: CLOSE + gap for c, gap in to_pooled.items()})
    average = statistics.mean(to_pooled.values())
    print(f"federated above pooled on average: {'yes' if average > 0 else 'NO'} ({average:+.4f} AUC)")
    for other, shapes in (("forest", SHAPES), ("BFI", ("nonlinear",))):
        if other in methods:
            gaps = {
                cell: gap - statistics.mean(differences(results, other, "auc"))
                for (cell, gap), results in zip(to_pooled.items(), by_cell.values(), strict=True)
                if cell.shape in shapes
            }
            say(f"federated above {other} ({', '.join(shapes)})", gaps)


def say(aim: str, margins: dict[Cell, float]) -> None:
    missed = [f"{c.shape} {c.scenario} {c.setting} by {-m:.4f}" for c, m in margins.items() if m <= 0]
    least = f", least margin {min(margins.values()):+.4f}" if margins else ""
    print(f"{aim}: {len(margins) - len(missed)} of {len(margins)} settings{least}", end="")
    print(f"; missed in {'; '.join(missed)}" if missed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--scenarios", type=int, nargs="+", choices=(1, 2, 3), default=(1, 2, 3))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--methods", nargs="+", choices=("federated", "local", "BFI", "forest"))
    parser.add_argument("--jobs", type=int, default=1, help="repetitions at the same time")
    options = parser.parse_args()
    methods = tuple(options.methods or ("federated", "local", "BFI", "forest"))
    cells = [c for c in list_cells() if c.scenario in options.scenarios and c.shape in options.shapes]
    tasks = [(cell, repetition) for cell in cells for repetition in range(options.repetitions)]
    begun = time.perf_counter()
    work = partial(repeat, ("pooled", *methods))
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as workers:
            results = list(workers.map(work, tasks))
    else:
        results = [work(task) for task in tasks]
    by_cell = {cell: [one for one in results if one.cell == cell] for cell in cells}
    took = time.perf_counter() - begun
    print(f"{options.repetitions} repetitions of {len(cells)} settings, {took:.0f} s\n")
    tell(by_cell, methods)
    print()
    check_aims(by_cell, methods)


if __name__ == "__main__":
    main()
