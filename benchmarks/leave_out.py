"""Ten-fold leave-one-band-out in one conversation, against one fit and against ten fits.

python benchmarks/leave_out.py [patients] [sites]      default 100,000 patients x 262 attributes, 10 sites, depth 8

Two kinds of patients: `graded`, where attributes differ in how common they are and in what they tell, as diagnoses do;
and `equal`, where twenty attributes tell the same, so that folds disagree about nearly every split: the worst case.
Target: ten folds in under 3 x one fit, on `graded`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import concilium as cc
from concilium.evaluation.folds import learn_folds
from concilium.evaluation.leave_out import leave_bands_out
from concilium.records.columns import Coded
from concilium.records.table import Records

ATTRIBUTES, BANDS, DEPTH, REPEATS = 262, 10, 8, 5


def make_graded(patients: int):
    draw = np.random.default_rng(5)
    common = draw.uniform(0.02, 0.5, (ATTRIBUTES, 1)).astype(np.float32)
    codes = (draw.random((ATTRIBUTES, patients), dtype=np.float32) < common).astype(np.uint8)
    tells = np.where(np.arange(ATTRIBUTES) < 40, draw.normal(0, 1, ATTRIBUTES), 0)
    score = tells @ codes + draw.normal(0, 1.5, patients)
    return codes, score > np.quantile(score, 0.8)


def make_equal(patients: int):
    draw = np.random.default_rng(2)
    codes = (draw.random((ATTRIBUTES, patients), dtype=np.float32) < 0.4).astype(np.uint8)
    score = codes[:20].sum(axis=0) + draw.normal(0, 1.5, patients)
    return codes, score > np.median(score)


def measure(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main(patients: int, count: int) -> None:
    print(
        f"{patients:,} patients x {ATTRIBUTES} attributes, {count} sites, depth {DEPTH}; median of {REPEATS}"
    )
    for kind, make in (("graded", make_graded), ("equal", make_equal)):
        codes, outcome = make(patients)
        edges = np.linspace(0, patients, count + 1).astype(int)
        sites = {}
        for index in range(count):
            here = slice(edges[index], edges[index + 1])
            columns = {f"x{i:03d}": Coded(codes[i, here] + 1, ("n", "y")) for i in range(ATTRIBUTES)}
            columns["outcome"] = Coded(outcome[here].astype(np.uint8) + 1, ("bad", "good"))
            sites[f"s{index:03d}"] = cc.Site(f"s{index:03d}", Records(columns))
        folds = leave_bands_out(dict.fromkeys(sites, patients // count), BANDS)

        def open_house(fold, sites=sites):
            return cc.House(list(sites.values()) if fold is None else [sites[name] for name in fold.learn])

        def fit(fold=None, open_house=open_house):
            return cc.DecisionTree("outcome", growth="id3", max_depth=DEPTH).fit(open_house(fold))

        def learn(folds=folds, open_house=open_house):
            return learn_folds(
                lambda: cc.DecisionTree("outcome", growth="id3", max_depth=DEPTH), folds, open_house
            )

        alone, learned = [fit(fold) for fold in folds], learn()
        if [model.body for model in learned.models] != [model.body for model in alone]:
            raise SystemExit("a fold is not the model of its sites alone")
        one, together = measure(fit), measure(learn)
        start = time.perf_counter()
        for fold in folds:
            fit(fold)
        apart = time.perf_counter() - start
        numbers = [sum(release.numbers for release in card.releases) for card in (m.card for m in alone)]
        shared = sum(release.numbers for release in learned.card.releases)
        print(
            f"  {kind}: one fit {one:.2f} s; {BANDS} folds together {together:.2f} s, {together / one:.1f} x",
            end="",
        )
        print(f" (target on graded: under 3); {BANDS} folds one by one {apart:.2f} s, {apart / one:.1f} x")
        print(f"    numbers charged together {shared:,}, one by one {sum(numbers):,}", end="")
        print(f"; rounds {learned.card.rounds} instead of {sum(model.card.rounds for model in alone)}")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*[*given, *(100_000, 10)[len(given) :]])
