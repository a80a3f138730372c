"""Rule discovery by noisy sums: all templates of a level at once, breadth first, then the parameters.

A search is a generator: it yields questions, is sent noisy counts of clients, and returns what it came to. It sees
nothing else, so whatever it does with the counts costs no more privacy.

Claim. Protected: each client (all its rules at once), from the house and from whoever sees the result. Cost: rho of
zero-concentrated differential privacy in all, a share of it for each question, the shares stated before the first
question and exact; a question that would not be asked (nothing is left to ask about) is not paid for. Assumption: the
counts carry discrete Gaussian noise of at least `question.variance`, and one client adds at most 1 to n and to at most
`question.most` of the counts (template_index.py), so that it moves the vector by at most
sqrt(question.squared_sensitivity) in L2, however many templates are asked about.

docs/methods.md, section 6.8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.models.intervals import WITHIN_95
from concilium.privacy.accounting import epsilon_from_rho, say_epsilon, sigma_squared_for
from concilium.temporal.formula import Formula
from concilium.temporal.limit_pairs import PairBins, is_vacuous
from concilium.temporal.rule_grammar import LEVELS, STRUCTURE, Bins, IntervalBins, RuleGrammar, fill_structure

MOST_ENTRIES = 100
"""R: how many counts of one question a client may be in, unless the study says otherwise."""
MOST_TEMPLATES = 20_000
"""Templates of one question; more are not made, those of the most frequent parents come first."""
MOST_PARENTS = 2_000
"""Of the templates of one question: they are what travels."""
LEVEL_WEIGHTS = (1, 2, 6)
PARAMETER_SHARE = Fraction(1, 4)
ACCEPTED = Fraction(21, 20)
"""A structure is accepted from 1.05 times the threshold on."""
FALSE_RULES = 0.5
"""How many structures that nobody has may be accepted on average, whatever the noise."""
LEAST_SEPARATION = 1.0
"""The threshold in standard deviations of the noise below which a study cannot work."""

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class LevelQuestion:
    """How many clients match each template, and how many clients there are: one count for each, n last.

    The templates are those of a `level` below their `parents`, in order; skeletons have none.
    """

    templates: tuple[Formula, ...]
    rho: Fraction
    most: int
    level: int = LEVELS[0]
    parents: tuple[Formula, ...] = ()
    by_outcome: bool = False
    """All counts come twice, with the outcome and without it."""

    @property
    def squared_sensitivity(self) -> int:
        """One client, added or removed: 1 in each count that it is in, and 1 in n."""
        return min(self.most, len(self.templates)) + 1

    @property
    def variance(self) -> Fraction:
        """Of the noise that makes this cost rho."""
        return sigma_squared_for(self.rho, self.squared_sensitivity)


@dataclass(frozen=True)
class ParameterQuestion:
    """How many clients have each bin of each parameter of each structure, in one vector in that order."""

    structures: tuple[Formula, ...]
    bins: tuple[tuple[Bins, ...], ...]
    rho: Fraction
    most: int

    @property
    def size(self) -> int:
        """How many counts there are."""
        return sum(len(each) for own in self.bins for each in own)

    @property
    def squared_sensitivity(self) -> int:
        """One client, added or removed: 1 in each count that it is in."""
        return min(self.most, self.size)

    @property
    def variance(self) -> Fraction:
        """Of the noise that makes this cost rho."""
        return sigma_squared_for(self.rho, self.squared_sensitivity)


SearchQuestion = LevelQuestion | ParameterQuestion


@dataclass(frozen=True)
class ParameterEstimate:
    """What clients have at one open place of a rule: noisy counts over public bins, and what is read from them.

    Of a number `chosen` is the bin of the quantile that was asked for, of an interval the most frequent one;
    `candidates` are all bins that it could be at 95 %, given the noise.
    """

    bins: Bins
    counts: tuple[int, ...]
    deviation: float
    chosen: int
    candidates: tuple[int, ...]


@dataclass(frozen=True)
class DiscoveredRule:
    """A structure that enough clients have, with the share of clients and its 95 % interval, and its parameters.

    `formula` is the structure with the chosen parameters filled in; without parameters it is the structure.
    """

    structure: Formula
    formula: Formula
    count: float
    prevalence: float
    interval: tuple[float, float]
    parameters: tuple[ParameterEstimate, ...] = ()

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.formula}  ({self.prevalence:.1%}, {low:.1%} to {high:.1%})"


@dataclass(frozen=True)
class _LevelReport:
    """One question of a search: templates asked about and kept, those never made for want of room, noise and cost."""

    level: int
    asked: int
    kept: int
    left_out: int
    deviation: float
    rho: Fraction


@dataclass(frozen=True)
class Discovery:
    """The rules, the most frequent first; n as estimated; what was asked; and what was spent of the budget."""

    rules: tuple[DiscoveredRule, ...]
    clients: float
    clients_deviation: float
    levels: tuple[_LevelReport, ...]
    spent: Fraction


@dataclass(frozen=True)
class LevelSearch:
    """The breadth-first search: what is public about it before the first question.

    Rules that at least a `threshold` of the clients have are looked for with a budget of `rho`; each client is in at
    most `most` counts of a question. `quantile` says which number stands for those that clients have.
    With `by_outcome` templates are counted with and without the outcome, and kept where enough clients have them, or
    enough of those with the outcome; those come first that tell the two apart. `find_variance` gives the variance
    that answers of a price and a squared sensitivity really have: sites add a least noise, and shares of noise as if
    colluding sites added none.
    """

    grammar: RuleGrammar
    threshold: Fraction
    rho: Fraction
    most: int = MOST_ENTRIES
    quantile: float = 0.5
    parameters: bool = True
    most_templates: int = MOST_TEMPLATES
    find_variance: Callable[[Fraction, int], Fraction] = sigma_squared_for
    by_outcome: bool = False

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """The budget of each level, and of the parameters; together rho exactly."""
        for_levels = 1 - PARAMETER_SHARE if self.parameters else Fraction(1)
        levels = [self.rho * for_levels * Fraction(weight, sum(LEVEL_WEIGHTS)) for weight in LEVEL_WEIGHTS]
        return (*levels, self.rho * (1 - for_levels))

    @property
    def final_variance(self) -> Fraction:
        """Of the noise on the counts that decide, if there are as many structures as a client may have."""
        return sigma_squared_for(self.shares[STRUCTURE - 1], self.most + 1)

    def find_separation(self, clients: int) -> float:
        """The threshold of so many clients, in standard deviations of the noise on the counts that decide."""
        return float(self.threshold * clients) / math.sqrt(self.final_variance)

    def check_feasible(self, clients: int, delta: Fraction) -> None:
        """That so many clients (stated, never counted) can show a rule at this budget; else what would do."""
        if self.find_separation(clients) >= LEAST_SEPARATION:
            return
        deviation = math.sqrt(self.final_variance)
        enough = math.ceil(LEAST_SEPARATION * deviation / float(self.threshold))
        wanted = (self.threshold * clients / Fraction(LEAST_SEPARATION)) ** 2
        rho = self.rho * self.final_variance / wanted
        raise StudyError(
            f"this study cannot work: {float(self.threshold):.3g} of {clients} clients are "
            f"{float(self.threshold * clients):.4g}, less than the noise on each count ({deviation:.4g}); "
            f"it would with {enough} clients, or with epsilon = {say_epsilon(epsilon_from_rho(rho, delta))}"
        )

    def run(self) -> Generator[SearchQuestion, Counts, Discovery]:
        """The questions, one after the other; each is answered by a vector of noisy counts."""
        reports: list[_LevelReport] = []
        sizes: list[tuple[float, float]] = []
        parents: Sequence[Formula] = ()
        frontier: Sequence[Formula] = self.grammar.skeletons[: self.most_templates]
        left_out = len(self.grammar.skeletons) - len(frontier)
        structures: list[tuple[Formula, float]] = []
        deviation = 0.0
        for level in LEVELS:
            rho = self.shares[level - 1]
            question = LevelQuestion(tuple(frontier), rho, self.most, level, tuple(parents), self.by_outcome)
            parts = 1 + self.by_outcome
            table = check_answer((yield question), parts * (len(frontier) + 1)).reshape(parts, -1)
            answer = table.sum(axis=0)
            deviation = self.find_deviation(question) * math.sqrt(parts)
            sizes.append((float(answer[-1]), deviation))
            kept = self._keep(level, answer[:-1], pool(sizes)[0], deviation)
            if self.by_outcome:
                kept = self._keep_telling(level, table, kept, self.find_deviation(question))
            reports.append(_LevelReport(level, len(frontier), len(kept), left_out, deviation, rho))
            survivors = [frontier[place] for place in kept]
            if level == STRUCTURE:
                structures = list(zip(survivors, answer[kept].tolist(), strict=True))
                break
            parents, left_out = self.find_parents(survivors, level + 1)
            frontier = [form for parent in parents for form in self.grammar.expand(parent, level + 1)]
            if not frontier:
                break
        clients, spread = pool(sizes)
        rules = [make_rule(form, float(count), deviation, clients, spread) for form, count in structures]
        if rules and self.parameters:
            bins = tuple(self.grammar.find_bins(rule.structure) for rule in rules)
            asked = ParameterQuestion(
                tuple(rule.structure for rule in rules), bins, self.shares[-1], self.most
            )
            answer = check_answer((yield asked), asked.size)
            noise = self.find_deviation(asked)
            reports.append(_LevelReport(STRUCTURE + 1, asked.size, asked.size, 0, noise, self.shares[-1]))
            rules = fill_parameters(rules, bins, answer, [noise] * len(rules), self.quantile)
        spent = sum((report.rho for report in reports), Fraction(0))
        return Discovery(tuple(rules), clients, spread, tuple(reports), spent)

    def find_deviation(self, question: SearchQuestion) -> float:
        """Of the noise that the answers to a question have."""
        return math.sqrt(self.find_variance(question.rho, question.squared_sensitivity))

    def _keep(self, level: int, counts: Counts, clients: float, deviation: float) -> list[int]:
        """The places of the templates that are frequent enough, the most frequent first."""
        if clients <= 0:
            return []
        kept = np.flatnonzero(counts >= self.find_least(level, len(counts), clients, deviation))
        places: list[int] = kept[np.argsort(-counts[kept], kind="stable")].tolist()
        return places

    def _keep_telling(self, level: int, table: Counts, kept: Sequence[int], deviation: float) -> list[int]:
        """With the templates that enough clients with the outcome have, in order of how well they tell it.

        A template of nobody passes at two deviations of the noise above nothing; a structure as in `find_least`.
        """
        (ill, cases), (well, controls) = ((row[:-1], max(float(row[-1]), 1.0)) for row in table)
        least = self.find_least(level, len(ill), cases, deviation)
        places = np.union1d(np.array(kept, dtype=np.intp), np.flatnonzero(ill >= max(least, 2 * deviation)))
        share = np.clip((ill + well) / (cases + controls), 0.0, 1.0)
        spread = share * (1 - share) * (1 / cases + 1 / controls)
        spread += deviation**2 * (1 / cases**2 + 1 / controls**2)
        difference = np.abs(ill / cases - well / controls) / np.sqrt(spread)
        ordered: list[int] = places[np.argsort(-difference[places], kind="stable")].tolist()
        return ordered

    def find_least(self, level: int, asked: int, clients: float, deviation: float) -> float:
        """The noisy count from which a template is kept, or a structure accepted.

        That is a deviation below the threshold, and 1.05 times the threshold. Where the noise is as large as the
        threshold, it is the noise that decides: of templates that nobody has, one in six is kept, and of all that
        were asked about `FALSE_RULES` are accepted on average.
        """
        wanted = float(self.threshold) * clients
        if level < STRUCTURE:
            return max(wanted - deviation, deviation)
        return max(
            float(ACCEPTED) * wanted, NormalDist().inv_cdf(1 - FALSE_RULES / max(asked, 2)) * deviation
        )

    def find_parents(self, survivors: Sequence[Formula], level: int) -> tuple[list[Formula], int]:
        """Those whose children there is room for, the most frequent first; and how many are left out."""
        parents: list[Formula] = []
        room = self.most_templates
        for parent in survivors:
            count = self.grammar.count_children(parent, level)
            if count <= room and len(parents) < MOST_PARENTS:
                parents.append(parent)
                room -= count
        return parents, len(survivors) - len(parents)


def check_answer(answer: Counts, size: int) -> Counts:
    """The counts, if there are as many as were asked for."""
    if np.shape(answer) != (size,):
        raise StudyError(f"{size} counts were asked for; the answer is of shape {np.shape(answer)}")
    return np.asarray(answer)


def pool(sizes: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Several estimates of one number with their deviations, as one: each counts by the inverse of its variance."""
    weight = sum(1 / deviation**2 for _, deviation in sizes)
    return sum(value / deviation**2 for value, deviation in sizes) / weight, math.sqrt(1 / weight)


def make_rule(
    structure: Formula, count: float, deviation: float, clients: float, clients_deviation: float
) -> DiscoveredRule:
    """A rule with its share of the clients, and the interval that the noise on both numbers leaves."""
    share, interval = find_share(count, deviation, clients, clients_deviation)
    return DiscoveredRule(structure, structure, count, share, interval)


def find_share(
    count: float, deviation: float, clients: float, clients_deviation: float
) -> tuple[float, tuple[float, float]]:
    """A noisy count as a share of a noisy number of clients, with the 95 % interval that the noise on both leaves."""
    share = count / clients
    margin = WITHIN_95 * math.hypot(deviation, share * clients_deviation) / clients
    interval = (min(max(share - margin, 0.0), 1.0), min(max(share + margin, 0.0), 1.0))
    return min(max(share, 0.0), 1.0), interval


def fill_parameters(
    rules: Sequence[DiscoveredRule],
    bins: Sequence[Sequence[Bins]],
    answer: Counts,
    deviations: Sequence[float],
    quantile: float,
) -> list[DiscoveredRule]:
    """The rules with the parameters that the counts of all bins, one after the other, tell of; the counts of each rule
    have a deviation of their own. A rule whose numbers contradict each other all the same is left out."""
    complete = []
    first = 0
    for rule, own, deviation in zip(rules, bins, deviations, strict=True):
        edges = [first, *(first := first + len(each) for each in own)]
        estimates = tuple(
            estimate_parameter(each, answer[begin:end], deviation, quantile)
            for each, (begin, end) in zip(own, pairwise(edges), strict=True)
        )
        formula = fill_structure(rule.structure, ((each.bins, each.chosen) for each in estimates))
        complete.append(replace(rule, formula=formula, parameters=estimates))
    return [rule for rule in complete if not is_vacuous(rule.formula)]


def estimate_parameter(bins: Bins, counts: Counts, deviation: float, quantile: float) -> ParameterEstimate:
    """A quantile of numbers or of pairs of them, or the most frequent interval, with the bins that it could be at 95
    %."""
    if isinstance(bins, IntervalBins):
        chosen, candidates = _find_mode(counts, deviation)
    elif isinstance(bins, PairBins):
        chosen, candidates = bins.find_middle(counts, deviation, quantile, WITHIN_95)
    else:
        chosen, candidates = _find_quantile(counts, deviation, quantile)
    return ParameterEstimate(bins, tuple(counts.tolist()), deviation, chosen, candidates)


def _find_quantile(counts: Counts, deviation: float, quantile: float) -> tuple[int, tuple[int, ...]]:
    """The bin in which a quantile lies, and those in which it could: never clipped, so that no bin is favoured.

    The quantile lies in bin j or before where (1 - q) * (count up to j) >= q * (count after j); the noise on that
    difference is known exactly, and each end of the interval is missed with at most 2.5 %.
    """
    size = len(counts)
    before = np.arange(1, size + 1)
    below = np.cumsum(counts, dtype=np.float64)
    difference = (1 - quantile) * below - quantile * (below[-1] - below)
    margin = WITHIN_95 * deviation * np.sqrt((1 - quantile) ** 2 * before + quantile**2 * (size - before))
    last = size - 1
    chosen = _first(difference >= 0, last)
    low = min(_first(difference + margin >= 0, last), chosen)
    unsure = np.flatnonzero(difference - margin < 0)
    high = max(min(int(unsure[-1]) + 1 if len(unsure) else 0, last), chosen)
    return chosen, tuple(range(low, high + 1))


def _find_mode(counts: Counts, deviation: float) -> tuple[int, tuple[int, ...]]:
    """The most frequent of the named bins (the last one is "another"), and those that it could be."""
    named = counts[:-1]
    chosen = int(np.argmax(named))
    near = named >= named[chosen] - WITHIN_95 * math.sqrt(2) * deviation
    return chosen, tuple(np.flatnonzero(near).tolist())


def _first(truths: NDArray[np.bool_], otherwise: int) -> int:
    return int(np.argmax(truths)) if truths.any() else otherwise
