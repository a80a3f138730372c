"""Figures of rule discovery: what a question costs, which rules are found, what they are good for, and who is exposed.

python experiments/rule_discovery_figures.py DATA --figure 7|8|9|10|11 [--whole] [--rules FILE] [--runs 3] ...
python experiments/rule_discovery_figures.py DATA --stays [--times 10] [--runs 10]
python experiments/rule_discovery_figures.py DATA --audit [--whole] [--rules FILE]

The numbers are those of the figures in the paper that the searches come from (docs/methods.md, sections 6.7 to 6.10):
7 the budget of each question, 8 the effect of V and 9 of theta on coverage and precision, 10 what the found rules tell
of sepsis in patients held out, at each epsilon, and 11 at each V. Data, rules, coverage and precision are those of
rule_discovery.py.

Utility. Patients are divided by a public seed, seven in ten to learn from. The searches see the rule sets of those; the
weights of the vote come from windows of those (as many negative as positive ones, drawn by the seed, without privacy);
figures are of all windows of the others. Beside them stand the rules of a search without noise, all structures of at
least V with the parameters that their holders have, and a logistic regression on the same windows. A vote has two
columns of figures: each rule counts for the outcome only, or also against it, as rules that describe the well would (a
logistic regression on the votes, with the same ridge). `acc` is the balanced accuracy. The search along
paths asks for no parameters: here a quarter of its budget does, one k-ary answer for each parameter.
`--both` lets only those patients be clients who have windows of both outcomes.

`--stays`: 4,000 other stays (death in intensive care), on which nothing of the searches was tuned. Each stay has one
outcome, so that its rules describe it. `--times 10` counts each stay as ten clients, which gives the noise the weight
that it has among 40,000.

`--audit`: the privacy loss that an attacker sees who knows everything but one client, as a lower bound at 95 %
(Clopper-Pearson, for thresholds chosen before the draws, by Bonferroni), beside what is claimed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, norm
from sklearn.linear_model import LogisticRegression

from concilium.errors import StudyError
from concilium.evaluation.metrics import Figures, measure
from concilium.evaluation.rule_judgement import judge_vote
from concilium.privacy.accounting import rho_for_epsilon
from concilium.privacy.local_reports import ListedAnswers, ReportChannel, split_clients
from concilium.privacy.mechanisms import add_gaussian, randomize_bits
from concilium.records.series_description import OddValues
from concilium.temporal.discovery_search import (
    DiscoveredRule,
    LevelQuestion,
    LevelSearch,
    ParameterQuestion,
    fill_parameters,
    make_rule,
)
from concilium.temporal.formula import Formula
from concilium.temporal.learning import LabelledWindows, RuleLearner, RuleVote, cast_votes
from concilium.temporal.local_search import GROUPS, MOST_ASKED, MOST_LISTED, LocalSearch
from concilium.temporal.path_search import (
    PATH_LENGTH,
    UNIT,
    BitQuestion,
    PathDiscovery,
    PathSearch,
    estimate_yes,
    find_question_epsilon,
)
from concilium.temporal.rule_discovery import Allocation
from concilium.temporal.rule_grammar import (
    LEVELS,
    SKELETON,
    STRUCTURE,
    Bins,
    RuleGrammar,
    abstract,
    fill_structure,
    find_level,
)
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.search_space import SearchSpace
from concilium.temporal.template_index import TemplateIndex
from rule_discovery import (
    DELTA,
    TRUST,
    Gateway,
    find_truth,
    judge,
    keep_rules,
    learn_rules,
    load_rules,
    run,
    run_locally,
    run_paths,
)
from temporal_rules import ICU, VITALS, judge_regression, read_mortality, read_sepsis

SEED = 1
LEARNED_FROM = 0.7
MOST = 100
SHARES = tuple(Fraction(share) for share in ("1/1000", "1/200", "1/100", "1/50", "1/20", "1/10"))
THETAS = (0.01, 0.05, 0.10, 0.20)
EPSILONS = ("0.25", "0.5", "1", "2", "4", "8")
ALLOCATIONS: tuple[Allocation, ...] = ("uniform", "adaptive")
PARAMETER_SHARE = Fraction(1, 4)
SHOWN = ("balanced_accuracy", "f1", "auc")
NOTHING = [0.5, math.nan, 0.5]
"""The figures of a vote in which nobody votes."""
ALARM = 0.05


class Population:
    """Clients with their rules, and the three ways to ask them."""

    def __init__(self, rule_sets: RuleSets, grammar: RuleGrammar) -> None:
        self.rule_sets, self.grammar = rule_sets, grammar
        self.index = TemplateIndex(rule_sets)

    @cached_property
    def parts(self) -> list[TemplateIndex]:
        groups = split_clients(self.rule_sets.ids, GROUPS, "experiment")
        return [TemplateIndex(self.rule_sets.take(groups == group)) for group in range(len(GROUPS))]

    def search_sums(self, threshold: Fraction, epsilon: str) -> Sequence[DiscoveredRule]:
        plan = LevelSearch(self.grammar, threshold, rho_for_epsilon(epsilon, DELTA), MOST)
        plan.check_feasible(len(self.rule_sets), DELTA)
        return run(plan.run(), Gateway(self.index, 1)).rules

    def search_reports(self, threshold: Fraction, epsilon: str) -> Sequence[DiscoveredRule]:
        plan = LocalSearch(self.grammar, threshold, Fraction(epsilon))
        plan.check_feasible(len(self.rule_sets))
        return run_locally(plan, self.parts).rules

    def plan_paths(
        self, threshold: Fraction, epsilon: Fraction, allocation: Allocation, theta: float = 0.05
    ) -> PathSearch:
        clients, margin = len(self.rule_sets), float(threshold) / 2
        return PathSearch(self.grammar, float(threshold), epsilon, clients, allocation, theta, margin)

    def search_paths(
        self, threshold: Fraction, epsilon: str, allocation: Allocation, theta: float = 0.05
    ) -> Sequence[DiscoveredRule]:
        plan = self.plan_paths(threshold, Fraction(epsilon), allocation, theta)
        plan.check_feasible()
        return run_paths(plan, self.index).rules

    def search_paths_and_parameters(
        self, threshold: Fraction, epsilon: str, allocation: Allocation
    ) -> Sequence[DiscoveredRule]:
        whole = Fraction(epsilon)
        plan = self.plan_paths(threshold, whole * (1 - PARAMETER_SHARE), allocation)
        plan.check_feasible()
        return [
            self.ask_parameters(rule, whole * PARAMETER_SHARE) for rule in run_paths(plan, self.index).rules
        ]

    def ask_parameters(self, rule: DiscoveredRule, epsilon: Fraction) -> DiscoveredRule:
        """One k-ary answer of every client for each parameter: the bin of its first rule of this structure, or none.

        Protected: one rule, as in the search along paths; the parameters share epsilon.
        """
        bins = self.grammar.find_bins(rule.structure)
        listed = self.index.list_parameters([rule.structure], [bins])
        clients = np.repeat(np.arange(len(self.rule_sets)), np.diff(listed.starts))
        counts, spread, offset = [], 0.0, 0
        for each in bins:
            inside = (listed.templates >= offset) & (listed.templates < offset + len(each))
            owners, first = np.unique(clients[inside], return_index=True)
            starts = np.searchsorted(owners, np.arange(len(self.rule_sets) + 1))
            channel = ReportChannel(len(each), 1, epsilon / len(bins))
            reports = channel.draw(ListedAnswers(starts, listed.templates[inside][first] - offset))
            counts.append(np.rint(channel.estimate(channel.count_reports(reports))).astype(np.int64))
            spread = channel.find_deviation(len(self.rule_sets), max(rule.count, 0.0))
            offset += len(each)
        (filled,) = fill_parameters([rule], [bins], np.concatenate(counts), [spread], 0.5)
        return filled

    def find_exactly(self, threshold: Fraction) -> Sequence[DiscoveredRule]:
        """What there is to find, without noise: the structures of at least the threshold, with parameters."""
        structures = sorted(find_truth(self.index, threshold), key=str)
        clients = len(self.rule_sets)
        counts = self.index.count(structures)
        rules = [
            make_rule(form, float(count), 0.0, clients, 0.0)
            for form, count in zip(structures, counts, strict=True)
        ]
        bins: list[Sequence[Bins]] = [self.grammar.find_bins(form) for form in structures]
        exact = self.index.count_parameters(structures, bins)
        return fill_parameters(rules, bins, exact, [0.0] * len(rules), 0.5)


def average(runs: int, once: Callable[[], tuple[float, ...]]) -> list[float] | None:
    """The mean of several runs (of those that have a figure); None where the study is refused."""
    figures = []
    for _ in range(runs):
        try:
            figures.append(once())
        except StudyError:
            return None
    columns = np.array(figures, dtype=float).T
    return [float(np.nanmean(column)) if np.isfinite(column).any() else math.nan for column in columns]


def show(figures: Sequence[float] | None, width: int = 6) -> str:
    """A row of figures; a dash where there is none."""
    if figures is None:
        return f"{'refused':>{2 * width}}"
    return "".join(f"{'-' if math.isnan(figure) else format(figure, '.2f'):>{width}}" for figure in figures)


# Figure 7


def follow_paths(plan: PathSearch, index: TemplateIndex) -> tuple[PathDiscovery, list[BitQuestion]]:
    """What a search came to, and its questions in the order asked."""
    search, questions = plan.run(), []
    try:
        question = next(search)
        while True:
            questions.append(question)
            bits = randomize_bits(index.match(question.template), question.epsilon)
            question = search.send(int(bits.sum()))
    except StopIteration as end:
        return end.value, questions


def name_steps(questions: Sequence[BitQuestion]) -> list[str]:
    """The level of each question; a template that is asked about again is at its final check."""
    seen: set[Formula] = set()
    steps = []
    for question in questions:
        level = find_level([question.template])
        again = question.template in seen
        steps.append("final check" if again else {1: "skeleton", 2: "variables", 3: "structure"}[level or 0])
        seen.add(question.template)
    return steps


def measure_loss(clients: int, threshold: float, margin: float, epsilon: Fraction, runs: int) -> float:
    """How often a template that exactly a threshold of the clients have is pruned."""
    bits = np.zeros(clients, dtype=bool)
    bits[: round(threshold * clients)] = True
    least = (threshold - margin) * clients
    lost = (
        estimate_yes(int(randomize_bits(bits, epsilon).sum()), clients, epsilon) < least for _ in range(runs)
    )
    return sum(lost) / runs


def draw_budget(population: Population, trials: int = 1000) -> None:
    """Figure 7."""
    clients = len(population.rule_sets)
    print(
        "\nbudget of a question, b = 2 asinh(z/(2 m sqrt n)), theta = 5 %, V = 1 %; a path has four questions"
    )
    print(
        f"{'n':>10} {'b, m = V':>9} {'b, m = V/2':>11} {'path':>6} {'uniform at 1':>13}   lost at V, m = V/2"
    )
    quantile = NormalDist().inv_cdf(0.95)
    for size in (4000, clients, 400_000, 4_000_000):
        wide, narrow = (find_question_epsilon(size, margin, quantile) for margin in (0.01, 0.005))
        lost = (
            f"{measure_loss(size, 0.01, 0.005, Fraction(narrow), trials):.3f} of {trials}"
            if size <= 50_000
            else ""
        )
        print(f"{size:10,} {wide:9.3f} {narrow:11.3f} {4 * narrow:6.2f} {1 / PATH_LENGTH:13.2f}   {lost}")
    for threshold, epsilon in ((Fraction(1, 100), "1"), (Fraction(1, 100), "8"), (Fraction(1, 10), "1")):
        for allocation in ALLOCATIONS:
            plan = population.plan_paths(threshold, Fraction(epsilon), allocation)
            head = f"\nV = {float(threshold):.0%}, epsilon = {epsilon} for a path, {allocation}: "
            try:
                plan.check_feasible()
            except StudyError as error:
                print(f"{head}{error}")
                continue
            found, questions = follow_paths(plan, population.index)
            steps = name_steps(questions)
            every = float(sum(question.epsilon for question in questions))
            print(
                f"{head}{found.questions} questions, "
                f"{'nothing left to ask' if found.exhausted else 'stopped'}; all questions together "
                f"{every:,.0f}, the dearest path {float(found.spent):.3g}"
            )
            numbers = Counter(steps)
            for step in ("skeleton", "variables", "structure", "final check"):
                costs = {float(q.epsilon) for q, own in zip(questions, steps, strict=True) if own == step}
                price = (
                    " to ".join(dict.fromkeys(f"{cost:.3f}" for cost in (min(costs), max(costs))))
                    if costs
                    else "-"
                )
                print(f"  {step:12} {numbers[step]:6,} questions at {price}")
            spread = np.array_split(np.array([float(question.epsilon) for question in questions]), 10)
            print("  mean of each tenth:", " ".join(f"{part.mean():.2f}" for part in spread))


# Figures 8 and 9


def list_searches(
    trust: Sequence[str],
) -> Iterator[tuple[str, Callable[[Population, Fraction], list[Formula]]]]:
    """The columns of figure 8: a search under each trust, at the epsilon named."""

    def forms(rules: Sequence[DiscoveredRule]) -> list[Formula]:
        return [rule.structure for rule in rules]

    if "secure-sum" in trust:
        yield "secure-sum 1", lambda population, share: forms(population.search_sums(share, "1"))
    for epsilon in ("1", "4") if "local" in trust else ():
        yield (
            f"local {epsilon}",
            lambda population, share, epsilon=epsilon: forms(population.search_reports(share, epsilon)),
        )
    for allocation, epsilon in itertools.product(ALLOCATIONS, ("1", "8")) if "rule" in trust else ():
        yield (
            f"rule {allocation} {epsilon}",
            lambda population, share, epsilon=epsilon, allocation=allocation: forms(
                population.search_paths(share, epsilon, allocation)
            ),
        )


def draw_thresholds(population: Population, runs: int, trust: Sequence[str]) -> None:
    """Figure 8."""
    searches = list(list_searches(trust))
    print(f"\ncoverage and precision, mean of {runs} runs; the number is epsilon; rule protects {UNIT}")
    print(f"{'V':>6} {'truth':>6}" + "".join(f"{name:>17}" for name, _ in searches))
    for share in SHARES:
        truth = find_truth(population.index, share)
        print(f"{float(share):6.1%} {len(truth):6}", end="", flush=True)
        for _, search in searches:
            figures = average(
                runs, lambda search=search, share=share, truth=truth: judge(search(population, share), truth)
            )
            print(f"{show(figures):>17}", end="", flush=True)
        print()


def draw_theta(population: Population, runs: int) -> None:
    """Figure 9."""
    print(f"\nrule, adaptive, mean of {runs} runs (protects {UNIT}); margin V/2")
    print(
        f"{'V':>6} {'epsilon':>8} {'theta':>6} {'b':>6} {'path':>6} {'questions':>10} {'coverage':>9} {'precision':>10}"
    )
    for threshold, epsilon in ((Fraction(1, 100), "8"), (Fraction(1, 10), "1")):
        truth = find_truth(population.index, threshold)
        for theta in THETAS:
            plan = population.plan_paths(threshold, Fraction(epsilon), "adaptive", theta)
            asked = []

            def once(
                plan: PathSearch = plan, truth: set[Formula] = truth, asked: list[int] = asked
            ) -> tuple[float, float]:
                plan.check_feasible()
                found = run_paths(plan, population.index)
                asked.append(found.questions)
                return judge([rule.structure for rule in found.rules], truth)

            figures = average(runs, once)
            cost = float(plan.per_question)
            print(
                f"{float(threshold):6.0%} {epsilon:>8} {theta:6.0%} {cost:6.3f} {PATH_LENGTH * cost:6.2f} "
                f"{np.mean(asked) if asked else 0:10,.0f} {show(figures, 10)}",
                flush=True,
            )


# Figures 10 and 11


class Judgement:
    """Windows to weigh rules with, and windows of other patients to judge them on."""

    def __init__(self, windows: LabelledWindows, learned_from: NDArray[np.bool_], most: int) -> None:
        inside = learned_from[windows.owners]
        training = windows.take(inside)
        draw = np.random.default_rng(SEED)
        kinds = [np.flatnonzero(training.labels), np.flatnonzero(~training.labels)]
        each = min(most // 2, len(kinds[0]))
        chosen = np.sort(np.concatenate([draw.choice(kind, each, replace=False) for kind in kinds]))
        self.training, self.held_out = training.take(chosen), windows.take(~inside)
        self._known: dict[frozenset[Formula], tuple[float, ...]] = {}

    def judge(self, rules: Sequence[DiscoveredRule]) -> tuple[float, ...]:
        """How many rules there are, how many of them vote, and the figures; nobody votes where there are none."""
        formulas = frozenset(rule.formula for rule in rules)
        if formulas not in self._known:
            self._known[formulas] = self._judge(sorted(formulas, key=str))
        return self._known[formulas]

    def _judge(self, formulas: list[Formula]) -> tuple[float, ...]:
        if not formulas:
            return 0, 0, *NOTHING, *NOTHING
        vote = RuleVote.fit(formulas, self.training)
        figures = pick(judge_vote(vote, self.held_out)) if vote.rules else NOTHING
        return len(formulas), len(vote.rules), *figures, *self._judge_both_ways(formulas)

    def _judge_both_ways(self, formulas: list[Formula]) -> list[float]:
        """The same where a rule may also vote against the outcome, as those that describe the well do."""
        votes, others = (cast_votes(formulas, part.series) for part in (self.training, self.held_out))
        model = LogisticRegression(class_weight="balanced", C=0.1, max_iter=5000)
        chance = model.fit(votes, self.training.labels).predict_proba(others)
        positive = (chance[:, 1] > 0.5).tolist()
        return pick(measure(self.held_out.labels.tolist(), positive, chance, (False, True), positive=True))

    def explain(self, rules: Sequence[DiscoveredRule]) -> str:
        return str(RuleVote.fit([rule.formula for rule in rules], self.training))


def pick(figures: Figures) -> list[float]:
    return [float("nan" if figures[name] is None else figures[name]) for name in SHOWN]


def show_utility(name: str, figures: Sequence[float] | None) -> None:
    if figures is None:
        print(f"{name:40}refused", flush=True)
        return
    rules, votes, *rest = figures
    shown = "".join(f"{'-' if math.isnan(one) else format(one, '.3f'):>7}" for one in rest)
    print(f"{name:40}{rules:6.1f}{votes:7.1f}{shown}", flush=True)


def draw_utility(
    population: Population,
    judgement: Judgement,
    pairs: Sequence[tuple[Fraction, str]],
    runs: int,
    trust: Sequence[str],
) -> None:
    """Figures 10 and 11: what rules found at these thresholds and epsilons tell of patients held out."""
    held_out = judgement.held_out
    print(
        f"\n{len(population.rule_sets):,} clients; weights from {len(judgement.training):,} windows; "
        f"{len(held_out):,} windows of other patients, {held_out.labels.mean():.2%} of them positive"
    )
    print(f"{'':53}{'for the outcome':>21}{'for and against':>21}")
    print(f"{'':40}{'rules':>6}{'voting':>7}" + 2 * f"{'acc':>7}{'F1':>7}{'AUC':>7}")
    share = held_out.labels.mean()
    show_utility("everyone positive", [0, 0, 0.5, 2 * share / (1 + share), 0.5])
    show_utility("logistic regression", [0, 0, *pick(judge_regression(judgement.training, held_out))])
    for threshold in dict.fromkeys(threshold for threshold, _ in pairs):
        exact = population.find_exactly(threshold)
        show_utility(f"without noise, V = {float(threshold):.1%}", judgement.judge(exact))
    searches: list[tuple[str, Callable[[Fraction, str], Sequence[DiscoveredRule]]]] = []
    if "secure-sum" in trust:
        searches.append(("secure-sum", population.search_sums))
    if "local" in trust:
        searches.append(("local", population.search_reports))
    if "rule" in trust:
        searches.append(
            ("rule", lambda share, epsilon: population.search_paths_and_parameters(share, epsilon, "uniform"))
        )
    for name, search in searches:
        for threshold, epsilon in pairs:
            figures = average(
                runs,
                lambda search=search, threshold=threshold, epsilon=epsilon: judgement.judge(
                    search(threshold, epsilon)
                ),
            )
            show_utility(f"{name}, V = {float(threshold):.1%}, epsilon = {epsilon}", figures)


def study_utility(
    data: Path,
    whole: bool,
    rule_sets: RuleSets,
    grammar: RuleGrammar,
    figure: int,
    runs: int,
    most: int,
    both: bool,
    trust: Sequence[str],
) -> None:
    windows = read_sepsis(data, whole)
    learned_from = np.random.default_rng(SEED).random(len(rule_sets)) < LEARNED_FROM
    judgement = Judgement(windows, learned_from, most)
    positive = np.bincount(windows.owners, windows.labels, len(rule_sets))
    mixed = (positive > 0) & (positive < np.bincount(windows.owners, minlength=len(rule_sets)))
    print(
        f"{len(rule_sets):,} patients, {learned_from.sum():,} to learn from; {mixed.sum():,} have windows of both "
        f"outcomes, {(mixed & learned_from).sum():,} of them to learn from; the rules of all others describe"
    )
    population = Population(rule_sets.take(learned_from & mixed if both else learned_from), grammar)
    threshold = Fraction(1, 10) if both else Fraction(1, 100)
    pairs = (
        [(threshold, epsilon) for epsilon in EPSILONS] if figure == 10 else [(share, "1") for share in SHARES]
    )
    draw_utility(population, judgement, pairs, runs, trust)
    print("\nthe heaviest votes of the rules without noise:")
    print("\n".join(judgement.explain(population.find_exactly(threshold)).splitlines()[:8]))


# Other stays


def learn_stays(data: Path, space: SearchSpace) -> RuleSets:
    """The rules of each stay; it has one outcome, so they describe it."""
    windows = read_mortality(data)
    learned = RuleLearner(space=space, rules=MOST, seed=SEED).learn_each(windows)
    return RuleSets([[rule.formula for rule in learned[row]] for row in sorted(learned)])


def count_times(rule_sets: RuleSets, times: int) -> RuleSets:
    """Every client so many times, each time as one more client."""
    repeated = rule_sets.take(np.tile(np.arange(len(rule_sets)), times))
    repeated.ids = range(1, len(repeated) + 1)
    return repeated


def study_stays(data: Path, times: int, runs: int, threshold: Fraction, trust: Sequence[str]) -> None:
    space = SearchSpace.from_ranges(ICU, 11)
    rule_sets = learn_stays(data, space)
    population = Population(count_times(rule_sets, times), RuleGrammar.from_space(space))
    truth = find_truth(population.index, threshold)
    print(
        f"{rule_sets}, each stay {times} times; {len(truth)} structures of at least {float(threshold):.1%}; at most "
        f"{rule_sets.counts.max()} rules of a stay; mean of {runs} runs"
    )
    for name, search in (("secure-sum", population.search_sums), ("local", population.search_reports)):
        if name not in trust:
            continue
        print(f"\n{name}\n{'epsilon':>8} {'coverage':>9} {'precision':>10} {'seconds':>8}")
        for epsilon in EPSILONS:
            start = time.perf_counter()
            figures = average(
                runs,
                lambda search=search, epsilon=epsilon: judge(
                    [rule.structure for rule in search(threshold, epsilon)], truth
                ),
            )
            seconds = (time.perf_counter() - start) / runs
            print(f"{epsilon:>8} {show(figures, 10)} {seconds:8.1f}", flush=True)


# Audit


def bound_loss(
    with_client: NDArray[np.float64],
    without: NDArray[np.float64],
    thresholds: Sequence[float],
    delta: float = 0.0,
) -> float:
    """The epsilon that there must be at least, from a statistic seen with a client and without: at 95 %, for the
    events that it is at least, or at most, one of the thresholds."""
    level = ALARM / (4 * len(thresholds))
    best = 0.0
    for threshold in thresholds:
        above = [int((sample >= threshold).sum()) for sample in (with_client, without)]
        below = [len(sample) - count for sample, count in zip((with_client, without), above, strict=True)]
        for (more, n), (fewer, m) in (
            ((above[0], len(with_client)), (above[1], len(without))),
            ((below[1], len(without)), (below[0], len(with_client))),
        ):
            at_least = float(beta.ppf(level, more, n - more + 1)) if more else 0.0
            at_most = float(beta.isf(level, fewer + 1, m - fewer)) if fewer < m else 1.0
            if at_least > delta:
                best = max(best, math.log((at_least - delta) / at_most))
    return best


def find_gaussian_loss(distance: float, delta: float) -> float:
    """The exact epsilon between N(0, 1) and N(distance, 1) at delta (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        left, right = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
        return float(norm.cdf(left) - np.exp(epsilon + norm.logcdf(right)) - delta)

    return float(brentq(excess, 0.0, distance * (distance + 40))) if excess(0.0) > 0 else 0.0


def make_full_client(grammar: RuleGrammar, most: int) -> list[Formula]:
    """So many rules, each of a skeleton of its own: a client that is in as many counts as it may."""
    rules = []
    for skeleton in grammar.skeletons:
        for form in itertools.islice(grammar.expand(skeleton, STRUCTURE), 2000):
            bins = enumerate(grammar.find_bins(form), 1)
            rule = fill_structure(form, ((each, place % (len(each) - 1)) for place, each in bins))
            if abstract(rule, SKELETON) == skeleton:
                rules.append(rule)
                break
        if len(rules) == most:
            return rules
    raise StudyError(f"the grammar has no {most} skeletons with rules")


def list_questions(plan: LevelSearch, client: Sequence[Formula]) -> list[LevelQuestion | ParameterQuestion]:
    """The questions of a search in which the client counts as often as it may: its templates of each level, and all
    bins of its structures."""
    questions: list[LevelQuestion | ParameterQuestion] = [
        LevelQuestion(tuple(dict.fromkeys(abstract(rule, level) for rule in client)), share, plan.most)
        for level, share in zip(LEVELS, plan.shares, strict=False)
    ]
    structures = tuple(dict.fromkeys(abstract(rule, STRUCTURE) for rule in client))
    bins = tuple(plan.grammar.find_bins(form) for form in structures)
    return [*questions, ParameterQuestion(structures, bins, plan.shares[-1], plan.most)]


def count_exactly(index: TemplateIndex, question: LevelQuestion | ParameterQuestion) -> NDArray[np.int64]:
    if isinstance(question, LevelQuestion):
        return np.append(index.count(question.templates, question.most), len(index.rule_sets))
    return index.count_parameters(question.structures, question.bins, question.most)


def audit_sums(
    others: RuleSets, grammar: RuleGrammar, epsilon: str, runs: int, weaker: int = 1
) -> tuple[float, float, float]:
    """The lower bound seen, the exact loss of these counts at delta, and how many counts the client is in.

    With the client and without: all noisy counts of one discovery, and of them the sum of differences by their
    variances, the most telling statistic there is. Counts in which the client is not tell nothing and are not drawn.
    `weaker` divides the variance: noise that is not enough.
    """
    client = make_full_client(grammar, MOST)
    with_client = TemplateIndex(RuleSets([*(others[row] for row in range(len(others))), client]))
    without = TemplateIndex(others)
    plan = LevelSearch(grammar, Fraction(1, 100), rho_for_epsilon(epsilon, DELTA), MOST)
    seen = [np.zeros(runs), np.zeros(runs)]
    distance = entries = 0.0
    for question in list_questions(plan, client):
        more, fewer = count_exactly(with_client, question), count_exactly(without, question)
        changed = np.flatnonzero(more != fewer)
        variance = question.variance / weaker
        distance += float(((more - fewer) ** 2).sum() / variance)
        entries += len(changed)
        for sample, counts in zip(seen, (more, fewer), strict=True):
            for first in range(0, runs, 1000):
                size = min(1000, runs - first)
                noisy = add_gaussian(np.tile(counts[changed], (size, 1)), variance)
                telling = (noisy - fewer[changed]) @ (more - fewer)[changed]
                sample[first : first + size] += telling / float(variance)
    distance = math.sqrt(distance)
    thresholds = [distance * (distance / 2 + step) for step in (-2, -1.5, -1, 1, 1.5, 2)]
    return bound_loss(*seen, thresholds, float(DELTA)), find_gaussian_loss(distance, float(DELTA)), entries


def audit_reports(templates: int, most: int, epsilon: str, runs: int) -> tuple[float, float]:
    """The lower bound seen, and the exact loss, between two clients with full lists that have nothing in common; what
    tells most is whether the report is on the list of one."""
    channel = ReportChannel(templates, most, Fraction(epsilon))
    lists = [np.arange(channel.entries), np.arange(channel.entries, 2 * channel.entries)]
    chances = [channel.find_probabilities(own.tolist()) for own in lists]
    exact = max(abs(math.log(one / other)) for one, other in zip(*chances, strict=True))
    seen = []
    for own in lists:
        starts = np.arange(runs + 1, dtype=np.int64) * len(own)
        reports = channel.draw(ListedAnswers(starts, np.tile(own, runs).astype(np.int32)))
        seen.append((reports < channel.entries).astype(float))
    return bound_loss(seen[0], seen[1], [0.5]), exact


def audit_paths(
    population: Population, threshold: Fraction, epsilon: str, runs: int
) -> tuple[NDArray[np.float64], float]:
    """The loss of every client, against one without rules, in one search; and the lower bound seen for a median one.

    Each answer is flipped by itself, so the loss is exactly the sum of the epsilons of the questions that the client
    would answer with yes.
    """
    plan = population.plan_paths(threshold, Fraction(epsilon), "uniform")
    _, questions = follow_paths(plan, population.index)
    losses = np.zeros(len(population.rule_sets))
    for question in questions:
        losses += float(question.epsilon) * population.index.match(question.template)
    client = int(np.argsort(losses, kind="stable")[len(losses) // 2])
    paid = [question.epsilon for question in questions if population.index.match(question.template)[client]]
    seen = []
    for answer in (True, False):
        sample = np.zeros(runs)
        for each in paid:
            sample += float(each) * randomize_bits(np.full(runs, answer), each)
        seen.append(sample)
    middle = float(sum(paid)) / 2
    return losses, bound_loss(seen[0], seen[1], [middle * factor for factor in (0.8, 1.0, 1.2)])


def study_audit(population: Population, runs: int) -> None:
    grammar = population.grammar
    others = population.rule_sets.take(np.arange(min(200, len(population.rule_sets))))
    print(
        f"secure-sum: a client with {MOST} rules more or less; all counts of one discovery, {runs:,} times each"
    )
    print(
        f"{'claimed':>8} {'seen at least':>14} {'exact':>6} {'counts':>7} {'seen, noise for one rule only':>31}"
    )
    for epsilon in ("1", "4"):
        seen, exact, entries = audit_sums(others, grammar, epsilon, runs)
        broken, _, _ = audit_sums(others, grammar, epsilon, max(runs // 4, 100), weaker=MOST + 1)
        print(f"{epsilon:>8} {seen:14.2f} {exact:6.2f} {entries:7.0f} {broken:31.2f}", flush=True)
    print(f"\nlocal: one report of two clients with nothing in common, {100 * runs:,} times each")
    print(f"{'claimed':>8} {'question':>11} {'seen at least':>14} {'exact':>8}")
    truth = find_truth(population.index, Fraction(1, 100))
    bins = sum(len(each) for form in truth for each in grammar.find_bins(form))
    for epsilon, (name, size, most) in itertools.product(
        ("1", "4"),
        zip(
            ("skeletons", "structures", "parameters"),
            (len(grammar.skeletons), MOST_ASKED, bins),
            MOST_LISTED,
            strict=True,
        ),
    ):
        seen, exact = audit_reports(size, most, epsilon, 100 * runs)
        print(f"{epsilon:>8} {name:>11} {seen:14.3f} {exact:8.5f}", flush=True)
    print(
        f"\nrule, uniform, V = 5 %: claimed for {UNIT}; what one search exposes of a client, against one without rules"
    )
    print(
        f"{'claimed':>8} {'median client':>14} {'99 of 100':>10} {'largest':>8} {'seen at least (median)':>23}"
    )
    for epsilon in ("1", "4"):
        losses, seen = audit_paths(population, Fraction(1, 20), epsilon, runs)
        middle, high = np.quantile(losses, [0.5, 0.99], method="higher")
        print(f"{epsilon:>8} {middle:14.1f} {high:10.1f} {losses.max():8.1f} {seen:23.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--figure", type=int, choices=range(7, 12))
    what.add_argument("--stays", action="store_true")
    what.add_argument("--audit", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--rules", type=Path)
    parser.add_argument("--trust", nargs="+", choices=TRUST, default=TRUST)
    parser.add_argument("--threshold", type=Fraction, default=Fraction(1, 100))
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--windows", type=int, default=20_000)
    parser.add_argument("--both", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore", OddValues)
    start = time.process_time()
    if options.stays:
        study_stays(options.data, options.times, options.runs, options.threshold, options.trust)
    else:
        study_sepsis(options)
    print(f"\n{time.process_time() - start:.0f} s of one core")


def study_sepsis(options: argparse.Namespace) -> None:
    space = SearchSpace.from_ranges(VITALS, 6)
    grammar = RuleGrammar.from_space(space)
    if options.rules is not None and options.rules.exists():
        rule_sets = load_rules(options.rules)
    else:
        rule_sets = learn_rules(options.data, space, options.whole, 1)
        if options.rules is not None:
            keep_rules(options.rules, rule_sets)
    if options.figure in (10, 11):
        study_utility(
            options.data,
            options.whole,
            rule_sets,
            grammar,
            options.figure,
            options.runs,
            options.windows,
            options.both,
            options.trust,
        )
        return
    population = Population(rule_sets, grammar)
    print(rule_sets)
    if options.audit:
        study_audit(population, options.draws)
    elif options.figure == 7:
        draw_budget(population)
    elif options.figure == 8:
        draw_thresholds(population, options.runs, options.trust)
    else:
        draw_theta(population, options.runs)


if __name__ == "__main__":
    main()
