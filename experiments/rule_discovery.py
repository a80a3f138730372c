"""Rule discovery on sepsis patients: how many of the rules that patients share are found, under which trust.

python experiments/rule_discovery.py DATA [--whole] [--rules FILE] [--epsilons 0.25 0.5 1 2 4 8] [--runs 3] ...

DATA is the folder of data sets. Each patient's rules come from the local learner (six hours of vital signs, sepsis as
the outcome; with `--labs` also fifteen laboratory values); `--rules FILE` keeps them, or reads them when the file is
there. The truth is every structure that at least a share V of the patients has. A search answers with what it accepted:
coverage is the share of the truth among it, precision the share of it that is true. Noise is drawn by the mechanisms of
the package from the operating system's generator, for the sum of all patients at once, as if by one gateway.

The sample has 2,000 patients. `--times 20` counts every patient of it so many times, which gives the noise the weight
that it has among 40,000 without pretending that there are more kinds of patients; `--whole` takes all 40,336.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from concilium.errors import StudyError
from concilium.privacy.accounting import rho_for_epsilon
from concilium.privacy.local_reports import split_clients
from concilium.privacy.mechanisms import add_gaussian, randomize_bits
from concilium.records.series import Series
from concilium.records.series_description import OddValues
from concilium.temporal.discovery_search import (
    Counts,
    Discovery,
    LevelQuestion,
    LevelSearch,
    SearchQuestion,
)
from concilium.temporal.formula import Formula
from concilium.temporal.learning import RuleLearner
from concilium.temporal.local_search import GROUPS, BinQuestion, LocalDiscovery, LocalSearch
from concilium.temporal.path_search import UNIT, PathDiscovery, PathSearch
from concilium.temporal.rule_discovery import Allocation
from concilium.temporal.rule_grammar import STRUCTURE, RuleGrammar
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.search_space import SearchSpace
from concilium.temporal.template_index import TemplateIndex
from temporal_rules import VITALS

DELTA = Fraction(1, 10**6)
TRUST = ("secure-sum", "local", "rule")
LABS = [
    "FiO2",
    "pH",
    "PaCO2",
    "BUN",
    "Calcium",
    "Chloride",
    "Creatinine",
    "Glucose",
    "Magnesium",
    "Phosphate",
]
LABS += ["Potassium", "Hct", "Hgb", "WBC", "Platelets"]


def learn_rules(data: Path, space: SearchSpace, whole: bool, processes: int) -> RuleSets:
    name = "challenge2019_all.parquet" if whole else "challenge2019_sample2000.parquet"
    series = Series.read(
        data / "sepsis-challenge2019" / name,
        time="ICULOS",
        origin="first",
        variables=[*space.names, "SepsisLabel"],
    ).carry_forward({name: "6h" if name in VITALS else "24h" for name in space.names})
    learner = RuleLearner(space=space, rules=100, seed=1)
    return RuleSets.learn(series, learner, "SepsisLabel", "6h", processes=processes)


def load_rules(path: Path) -> RuleSets:
    lines = path.read_text(encoding="utf-8").splitlines()
    return RuleSets([[rule for rule in line.split("\t") if rule] for line in lines])


def keep_rules(path: Path, rule_sets: RuleSets) -> None:
    lines = ("\t".join(map(str, rule_sets[row])) for row in range(len(rule_sets)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def find_truth(index: TemplateIndex, threshold: Fraction) -> set[Formula]:
    structures = index.find_templates(STRUCTURE)
    counts = index.count(structures)
    least = float(threshold) * len(index.rule_sets)
    return {form for form, count in zip(structures, counts.tolist(), strict=True) if count >= least}


class Gateway:
    """Answers a search for all patients at once, each of them counted so many times."""

    def __init__(self, index: TemplateIndex, times: int) -> None:
        self._index, self._times = index, times

    def answer(self, question: SearchQuestion) -> Counts:
        if isinstance(question, LevelQuestion):
            counts = self._index.count(question.templates, question.most)
            counts = np.append(counts, len(self._index.rule_sets))
        else:
            counts = self._index.count_parameters(question.structures, question.bins, question.most)
        return add_gaussian(counts * self._times, question.variance)


def run(search: Generator[SearchQuestion, Counts, Discovery], gateway: Gateway) -> Discovery:
    try:
        question = next(search)
        while True:
            question = search.send(gateway.answer(question))
    except StopIteration as end:
        discovery: Discovery = end.value
        return discovery


def run_locally(plan: LocalSearch, parts: Sequence[TemplateIndex]) -> LocalDiscovery:
    search = plan.run()
    try:
        question = next(search)
        while True:
            channel, index = question.channel, parts[question.group]
            if isinstance(question, BinQuestion):
                listed = index.list_parameters(question.structures, question.bins, channel.entries)
            else:
                listed = index.list_templates(question.templates, channel.entries)
            question = search.send(channel.count_reports(channel.draw(listed)))
    except StopIteration as end:
        discovery: LocalDiscovery = end.value
        return discovery


def run_paths(plan: PathSearch, index: TemplateIndex) -> PathDiscovery:
    search = plan.run()
    try:
        question = next(search)
        while True:
            bits = randomize_bits(index.match(question.template), question.epsilon)
            question = search.send(int(bits.sum()))
    except StopIteration as end:
        discovery: PathDiscovery = end.value
        return discovery


def judge(accepted: Sequence[Formula], truth: set[Formula]) -> tuple[float, float]:
    """Coverage and precision, of distinct structures."""
    distinct = set(accepted)
    right = len(distinct & truth)
    return right / len(truth), right / len(distinct) if distinct else float("nan")


def tabulate(
    name: str, epsilons: Sequence[str], runs: int, once: Callable[[str], tuple[float, float]]
) -> None:
    print(f"\n{name}\n{'epsilon':>8} {'coverage':>9} {'precision':>10} {'seconds':>8}")
    for epsilon in epsilons:
        start = time.perf_counter()
        figures = np.array([once(epsilon) for _ in range(runs)])
        seconds = (time.perf_counter() - start) / runs
        coverage, precision = (
            np.nanmean(column) if np.isfinite(column).any() else np.nan for column in figures.T
        )
        print(f"{epsilon:>8} {coverage:9.2f} {precision:10.2f} {seconds:8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--labs", action="store_true")
    parser.add_argument("--trust", nargs="+", choices=TRUST, default=TRUST)
    parser.add_argument("--rules", type=Path)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--epsilons", nargs="+", default=["0.25", "0.5", "1", "2", "4", "8"])
    parser.add_argument("--threshold", type=Fraction, default=Fraction(1, 100))
    parser.add_argument("--limits", type=int, default=3)
    parser.add_argument("--most", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", OddValues)
    space = SearchSpace.from_ranges([*VITALS, *LABS] if options.labs else VITALS, 6)
    if options.rules is not None and options.rules.exists():
        rule_sets = load_rules(options.rules)
    else:
        rule_sets = learn_rules(options.data, space, options.whole, options.processes)
        if options.rules is not None:
            keep_rules(options.rules, rule_sets)
    index = TemplateIndex(rule_sets)
    truth = find_truth(index, options.threshold)
    grammar = RuleGrammar.from_space(space, options.limits)
    outside = sum(not grammar.produces(rule) for rule in rule_sets.rules)
    print(
        f"{rule_sets}, each counted {options.times} times; {len(truth)} structures of at least "
        f"{float(options.threshold):.1%}; {len(grammar.skeletons)} skeletons; the grammar does not come to "
        f"{outside} of the distinct rules, nor to {sum(not grammar.produces(form) for form in truth)} of the truth"
    )
    gateway = Gateway(index, options.times)

    def search(epsilon: str) -> tuple[float, float]:
        plan = LevelSearch(grammar, options.threshold, rho_for_epsilon(epsilon, DELTA), options.most)
        return judge([rule.structure for rule in run(plan.run(), gateway).rules], truth)

    def search_locally(epsilon: str) -> tuple[float, float]:
        plan = LocalSearch(grammar, options.threshold, Fraction(epsilon))
        return judge([rule.structure for rule in run_locally(plan, parts).rules], truth)

    def search_paths(allocation: Allocation) -> Callable[[str], tuple[float, float]]:
        def once(epsilon: str) -> tuple[float, float]:
            plan = PathSearch(
                grammar,
                float(options.threshold),
                Fraction(epsilon),
                len(rule_sets),
                allocation,
                margin=float(options.threshold) / 2,
            )
            try:
                plan.check_feasible()
            except StudyError:
                return float("nan"), float("nan")
            return judge([rule.structure for rule in run_paths(plan, index).rules], truth)

        return once

    if "secure-sum" in options.trust:
        tabulate("secure-sum", options.epsilons, options.runs, search)
    groups = split_clients(rule_sets.ids, GROUPS, "experiment")
    parts = [TemplateIndex(rule_sets.take(groups == group)) for group in range(len(GROUPS))]
    if "local" in options.trust:
        tabulate("local (no patient counted twice)", options.epsilons, options.runs, search_locally)
    for allocation in ("uniform", "adaptive") if "rule" in options.trust else ():
        title = f"rule, {allocation} budget (protects {UNIT}; nan: refused; no patient counted twice)"
        tabulate(title, options.epsilons, options.runs, search_paths(allocation))


if __name__ == "__main__":
    main()
