"""What the time and the length of answers under `private` tell about patients: a hospital and its neighbour, timed.

No noise covers the time that an answer takes. Three hospitals of one process learn the same model again and again; one
of them holds one of two populations, in turn. What is timed is its own answers: the processor time of one study, which
is what an observer next to an idle machine would see at best. The AUC is that of an observer who sees one study and
guesses which population it was: 0.5 is guessing, 1 is certainty.

python experiments/answer_timing.py [--runs 40] [--patients 10000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import concilium as cc
from concilium.experts.site_experts import open_ranked
from concilium.protocol.cohort import View
from concilium.protocol.messages import open_envelope
from concilium.records.columns import Coded, Numbers
from concilium.records.table import Records

RICH = cc.Policy(budget=cc.Budget("unlimited"))
RANGES = {"HR": (60.0, 100.0), "Temp": (36.0, 38.0)}
EDGES = {"HR": [60.0, 80.0, 100.0, 120.0], "Temp": [36.0, 37.0, 38.0]}


@dataclass(eq=False)
class Timed:
    """A site whose answers to questions of these kinds are timed."""

    site: cc.Site
    kinds: frozenset[str]
    seconds: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self.identity, self.introduce = self.site.name, self.site.identity, self.site.introduce

    def answer(self, message: bytes) -> bytes:
        start = time.thread_time()
        reply = self.site.answer(message)
        taken = time.thread_time() - start
        if open_envelope(message).kind in self.kinds:
            self.seconds.append(taken)
            self.lengths.append(len(reply))
        return reply


def make_table(patients: int, matching: int, seed: int) -> Records:
    """Patients of whom so many match the query `age >= 50`."""
    draw = np.random.default_rng(seed)
    age = np.where(np.arange(patients) < matching, 60.0, 40.0)
    columns = {
        f"x{i}": Coded(draw.integers(1, 4, patients).astype(np.uint8), ("a", "b", "c"), True)
        for i in range(8)
    }
    outcome = Coded(draw.integers(1, 3, patients).astype(np.uint8), ("n", "p"), True)
    return Records({**columns, "age": Numbers(age, by_itself=True), "y": outcome})


def make_series(patients: int, longest: int, seed: int) -> cc.Series:
    """Stays of 24 hours, and one of so many."""
    draw = np.random.default_rng(seed)
    lengths = np.full(patients, 24)
    lengths[1] = longest  # who has the outcome: of the others an expert learns nothing
    most = int(lengths.max())
    grids = {}
    for name, (low, high) in RANGES.items():
        grids[name] = draw.uniform(low, high, (most, patients))
    grids["sepsis"] = (np.arange(most)[:, None] >= lengths - 6).astype(float) * (np.arange(patients) % 2)
    for grid in grids.values():
        grid[np.arange(most)[:, None] >= lengths] = np.nan
    return cc.Series(grids, lengths=lengths)


def bayes() -> cc.NaiveBayes:
    values = {f"x{i}": ["a", "b", "c"] for i in range(8)} | {"y": ["n", "p"]}
    return cc.NaiveBayes(
        "y", query="age >= 50", release="private", epsilon=1, values=values, bins={"age": [50]}
    )


def experts() -> cc.Experts:
    return cc.Experts(
        "sepsis",
        bins=EDGES,
        units=3,
        epochs=10,
        window="12h",
        lead="6h",
        epsilon=10,
        experts=20,
        public=make_series(10, 24, 0),
    )


def ask(table: Records, others: list[Records]) -> tuple[float, tuple[int, ...]]:
    """Milliseconds that one study takes the hospital that holds this table, and the lengths of its answers."""
    method = bayes()
    kinds = frozenset(question.kind for question in method.plan().questions)
    watched = Timed(cc.Site("north", table, RICH), kinds)
    method.fit(cc.House([watched, *(cc.Site(f"site {i}", one, RICH) for i, one in enumerate(others))]))
    return 1e3 * sum(watched.seconds), tuple(watched.lengths)


def train(series: cc.Series) -> tuple[float, tuple[int, ...]]:
    """Milliseconds of all threads to train the experts of a hospital, which is what answers of experts wait for."""
    view = View(cc.Patients(series=series).selectable, RICH, parts={"series": series})
    start = time.process_time()
    open_ranked(view.select("", ""), experts().task, len(series))
    return 1e3 * (time.process_time() - start), ()


def find_auc(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float((other[None] > one[:, None]).mean() + (other[None] == one[:, None]).mean() / 2)


def compare(
    name: str, holds: list[Callable[[int], Any]], measure: Callable[[Any], tuple[float, Any]], runs: int
) -> None:
    for hold in holds:
        measure(hold(runs))  # whatever is compiled or read once
    times: list[list[float]] = [[], []]
    lengths = set()
    for run in range(runs):
        for place in (0, 1) if run % 2 else (1, 0):
            taken, seen = measure(holds[place](run))
            times[place].append(taken)
            lengths.add(seen)
    one, other = (np.array(taken) for taken in times)
    print(
        f"{name:54} {np.median(one):9.2f} {np.median(other):9.2f} {find_auc(one, other):6.2f}"
        f"   {'same' if len(lengths) == 1 else 'DIFFER'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--patients", type=int, default=10_000)
    options = parser.parse_args()
    size, runs, half = options.patients, options.runs, options.patients // 2
    others = [make_table(500, 250, seed) for seed in (1, 2)]
    print(f"{'':54} {'ms':>9} {'ms':>9} {'AUC':>6}   lengths")
    for name, one, other in (
        (f"naive Bayes, {half} of {size} match | one more", (size, half), (size, half + 1)),
        (f"naive Bayes, {size} patients | one more", (size, half), (size + 1, half)),
        ("naive Bayes, nobody matches | all match", (size, 0), (size, size)),
    ):
        holds = [lambda run, of=of: make_table(*of, run) for of in (one, other)]
        compare(name, holds, lambda table: ask(table, others), runs)
    for hours in (25, 96, 2_000):
        stays = [lambda run, hours=longest: make_series(20, hours, run) for longest in (24, hours)]
        compare(f"experts, one of 20 stays has 24 hours | {hours}", stays, train, runs)


if __name__ == "__main__":
    main()
