"""Federated RuleFit against imodels' RuleFit on the pooled table, and on a table a hundred times as large.

python benchmarks/rulefit.py              both; large or small alone: python benchmarks/rulefit.py small

Small: the paper's nonlinear simulation, 1,000 patients x 10 covariates, 333 trees at each of 5 sites, against
RuleFitClassifier(max_rules=2000, cv=False), which tries a hundred penalties and keeps the least. A second line gives
imodels our number of trees and our penalty (a sum over patients there), so that it solves one problem as we do.
Sites are new for every fit; a fit of ours is short beside what else a machine does, so that the median of five counts,
some before and some after those of imodels; seconds are those of processors, since the machine may be shared. Large:
100,000 x 100 over 10 sites in a process of its own, seconds by the clock; memory is its peak, with the patients in it.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from operator import truediv
from pathlib import Path
from typing import Any

import numpy as np

import concilium as cc
from concilium.evaluation.metrics import auc

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))

from simulation import PATIENTS, TARGET, Cell, Site, as_records, deal, draw_patients, pool

REPEATS, TREES, PENALTY, SEED = 3, 333, 0.01, 7
SMALL = Cell("nonlinear", 1, "M = 5", (PATIENTS // 5,) * 5)
LARGE_PATIENTS, LARGE_COVARIATES, LARGE_SITES = 100_000, 100, 10
TEST_PATIENTS = 10_000


def open_house(sites: list[Site]) -> cc.House:
    return cc.House([cc.Site(f"s{place:02d}", as_records(*site)) for place, site in enumerate(sites)])


def fit_ours(house: cc.House, covariates: int, release: Any = "exact") -> Any:
    edges = {f"x{place}": np.linspace(-3, 3, 101).tolist() for place in range(1, covariates + 1)}
    settings = {"trees": TREES, "penalty": PENALTY, "max_terms": "all", "release": release}
    return cc.RuleFit(target=TARGET, positive=1, bins=edges, **settings).fit(house)


def measure_ours(model: Any, test: Site) -> float:
    positive = list(model.classes_).index(1)
    return auc(test[1] == 1, model.predict_proba(as_records(test[0]))[:, positive]) or 0.0


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> tuple[float, Any]:
    start = clock()
    done = work()
    return clock() - start, done


def run_small() -> None:
    from imodels import RuleFitClassifier

    # imodels asks scikit-learn for its penalty in a way that 1.8 began to warn about.
    warnings.simplefilter("ignore")
    peers: dict[str, dict[str, Any]] = {
        "imodels, max_rules=2000, cv=False": {"max_rules": 2000, "cv": False},
        f"imodels, {TREES} trees, our penalty": {"n_estimators": TREES, "alpha": PENALTY * PATIENTS},
    }
    ours: dict[str, Any] = {"Concilium": "exact", "Concilium, masked": "masked"}
    for release in ours.values():  # loads and compiles what a process needs once
        fit_ours(open_house(deal(SMALL, SEED, REPEATS).sites), 10, release)
    seconds: dict[str, list[float]] = {name: [] for name in (*ours, *peers)}
    figures: dict[str, list[float]] = {name: [] for name in (*ours, *peers)}
    for repetition in range(REPEATS):
        dealt = deal(SMALL, SEED, repetition)
        own: dict[str, list[float]] = {name: [] for name in ours}
        models: dict[str, Any] = {}

        def fit_again(
            sites: list[Site] = dealt.sites,
            own: dict[str, list[float]] = own,
            models: dict[str, Any] = models,
        ) -> None:
            for name, release in ours.items():
                house = open_house(sites)
                took, models[name] = timed(
                    lambda house=house, release=release: fit_ours(house, 10, release), time.process_time
                )
                own[name].append(took)

        matrix, outcome = pool(dealt.sites)
        for name, settings in peers.items():
            fit_again()
            fit_again()
            peer = RuleFitClassifier(**settings, random_state=repetition)
            took, _ = timed(
                lambda peer=peer, x=matrix, y=outcome: peer.fit(x, y.astype(int)), time.process_time
            )
            seconds[name].append(took)
            figures[name].append(auc(dealt.test[1] == 1, peer.predict_proba(dealt.test[0])[:, 1]) or 0.0)
        fit_again()
        for name in ours:
            seconds[name].append(statistics.median(own[name]))
            figures[name].append(measure_ours(models[name], dealt.test))

    print(
        f"{PATIENTS:,} patients x 10 covariates, nonlinear; medians of {REPEATS} data sets, interleaved, seconds of CPU"
    )
    for name, taken in seconds.items():
        aim = ""
        if name in peers:
            ratios = [statistics.median(map(truediv, taken, seconds[one])) for one in ours]
            aim = f"   ratio {ratios[0]:5.1f}, masked {ratios[1]:5.1f}"
            aim += "  (target: at least 20)" if "cv=False" in name else ""
        print(
            f"  {name:<36} {statistics.median(taken):8.2f} s   "
            f"test AUC {statistics.median(figures[name]):.4f}{aim}"
        )
    for name, model in models.items():
        print(f"  {name}: {model.card.rounds} rounds, {model.card.bytes / 1e6:.2f} MB in all")


def run_large() -> None:
    draw = np.random.default_rng(SEED)
    size = LARGE_PATIENTS // LARGE_SITES
    house = open_house([draw_patients("nonlinear", size, draw, LARGE_COVARIATES) for _ in range(LARGE_SITES)])
    before = peak()
    took, model = timed(lambda: fit_ours(house, LARGE_COVARIATES))
    after = peak()
    found = measure_ours(model, draw_patients("nonlinear", TEST_PATIENTS, draw, LARGE_COVARIATES))
    print(f"{LARGE_PATIENTS:,} patients x {LARGE_COVARIATES} covariates, nonlinear, {LARGE_SITES} sites")
    print(f"  Concilium {took:8.1f} s  (target: under 60)   test AUC {found:.4f}")
    print(f"  peak memory {after:.2f} GB  (target: under 2), of which {before:.2f} GB before the fit")
    print(f"  {model.card.rounds} rounds, {model.card.bytes / 1e6:.1f} MB in all")


def peak() -> float:
    """The most memory this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main(parts: list[str]) -> None:
    if not parts:
        # First of all, since a child process begins with its parent's peak.
        subprocess.run([sys.executable, __file__, "large"], check=True)
        run_small()
    for part in parts:
        {"small": run_small, "large": run_large}[part]()


if __name__ == "__main__":
    main(sys.argv[1:])
