"""Rule discovery from one randomised report of each client, in three groups of clients.

The first group is asked for skeletons, the second for the structures of those that were frequent enough, the third for
the parameters of the structures that were accepted. Reports are noisy: where few clients report, only what very many
of them have is seen, and the search says from which share on.

Claim. Protected: each client, from everybody (privacy/local_reports.py). Cost: pure epsilon, once, because each
client is in one group and reports once. Assumption: groups depend on ids and public text only, never on rules.

docs/methods.md, section 6.9.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.privacy.local_reports import ReportChannel
from concilium.temporal.discovery_search import (
    ACCEPTED,
    FALSE_RULES,
    DiscoveredRule,
    check_answer,
    fill_parameters,
    make_rule,
)
from concilium.temporal.formula import Formula
from concilium.temporal.rule_grammar import STRUCTURE, Bins, RuleGrammar

GROUPS = (Fraction(1, 5), Fraction(3, 5), Fraction(1, 5))
GROUPS_OF_SERIES = (Fraction(3, 20), Fraction(9, 20), Fraction(3, 20), Fraction(1, 4))
"""Where hospitals hold series, a quarter of the clients reports how a rule stands to the outcome."""
MOST_LISTED = (4, 20, 40)
"""L: how many skeletons, structures and bins of parameters are on a client's list."""
MOST_ALIKE = 6
"""Ways to order three parts that are alike."""
MOST_ASKED = 500
"""Structures of the second question; the more there are, the noisier are the reports."""


def find_groups(series: bool) -> tuple[Fraction, ...]:
    """The share of the clients that each question asks."""
    return GROUPS_OF_SERIES if series else GROUPS


@dataclass(frozen=True)
class ReportQuestion:
    """Each client of one group reports one of the templates that it matches, by the channel.

    They are skeletons, or all structures below their `parents`, in order.
    """

    templates: tuple[Formula, ...]
    group: int
    channel: ReportChannel
    parents: tuple[Formula, ...] = ()


@dataclass(frozen=True)
class BinQuestion:
    """Each client of one group reports one of the bins in which the parameters of its rules lie, by the channel."""

    structures: tuple[Formula, ...]
    bins: tuple[tuple[Bins, ...], ...]
    group: int
    channel: ReportChannel


@dataclass(frozen=True)
class LocalDiscovery:
    """The rules, the most frequent first, how many clients reported, and from which share on a rule was seen."""

    rules: tuple[DiscoveredRule, ...]
    clients: int
    least_share: float
    epsilon: Fraction


@dataclass(frozen=True)
class LocalSearch:
    """What is public about the search before the first question. `most` bounds how many of the skeletons, of the
    structures and of the bins one client may have a report drawn from."""

    grammar: RuleGrammar
    threshold: Fraction
    epsilon: Fraction
    most: tuple[int, int, int] = MOST_LISTED
    groups: tuple[Fraction, ...] = GROUPS
    quantile: float = 0.5
    most_templates: int = MOST_ASKED

    def find_least_share(self, clients: int) -> float:
        """The share of the clients that must have a rule for it to be accepted, if all the room is asked about."""
        skeletons = ReportChannel(len(self.grammar.skeletons), self.most[0], self.epsilon)
        every = sum(self.grammar.count_children(form, STRUCTURE) for form in self.grammar.skeletons)
        structures = ReportChannel(min(every, self.most_templates), self.most[1], self.epsilon)
        first, second = (float(share) * clients for share in self.groups[:2])
        return max(
            self.find_least(skeletons, first, final=False) / first,
            self.find_least(structures, second, final=True) / second,
        )

    def find_least(self, channel: ReportChannel, clients: float, final: bool) -> float:
        """The estimate from which a template is kept, or a structure accepted.

        That is a deviation below the threshold, and a deviation above it; and as in the search by sums it is high
        enough that templates that nobody has are rarely kept, and `FALSE_RULES` of them accepted on average.
        """
        wanted = float(self.threshold) * clients
        deviation = channel.find_deviation(clients, wanted)
        if not final:
            return max(wanted - deviation, 2 * channel.find_deviation(clients))
        alpha = FALSE_RULES / max(channel.templates, 2)
        certain = NormalDist().inv_cdf(1 - alpha) * channel.find_deviation(clients)
        return max(float(ACCEPTED) * wanted, wanted + deviation, certain)

    def check_feasible(self, clients: int) -> None:
        """That a rule that half of the clients have would be seen; else with how many clients or which epsilon."""
        if self.find_least_share(clients) <= 0.5:
            return
        enough = clients
        while self.find_least_share(enough) > 0.5:
            enough *= 2
        low = enough // 2
        while enough - low > max(1, enough // 1000):
            middle = (low + enough) // 2
            low, enough = (low, middle) if self.find_least_share(middle) <= 0.5 else (middle, enough)
        epsilon = self.epsilon
        while epsilon < 30 and replace(self, epsilon=epsilon).find_least_share(clients) > 0.5:
            epsilon += Fraction(1, 10)
        remedy = f" or with epsilon = {float(epsilon):.3g}" if epsilon < 30 else ""
        raise StudyError(
            f"this study cannot work: with one randomised report of each of {clients} clients not even a rule "
            f"that half of them have would be seen; it would with {enough} clients{remedy}"
        )

    def run(self) -> Generator[ReportQuestion | BinQuestion, NDArray[np.int64], LocalDiscovery]:
        """At most three questions, each answered by how many reports of each answer there are."""
        skeletons = self.grammar.skeletons
        channel = ReportChannel(len(skeletons), self.most[0], self.epsilon)
        histogram = check_answer((yield ReportQuestion(skeletons, 0, channel)), channel.answers)
        reporting = int(histogram.sum())
        least = self.find_least(channel, reporting, final=False)
        parents, frontier = self._expand(channel.estimate(histogram), least)
        if not frontier:
            return LocalDiscovery((), reporting, least / max(reporting, 1), self.epsilon)
        channel = ReportChannel(len(frontier), self.most[1], self.epsilon)
        asked = ReportQuestion(tuple(frontier), 1, channel, tuple(parents))
        histogram = check_answer((yield asked), channel.answers)
        clients = int(histogram.sum())
        estimates = channel.estimate(histogram)
        least = self.find_least(channel, clients, final=True)
        rules = [
            make_rule(
                frontier[place],
                float(estimates[place]),
                channel.find_deviation(clients, max(float(estimates[place]), 0.0)),
                clients,
                0.0,
            )
            for place in np.argsort(-estimates, kind="stable").tolist()
            if clients and estimates[place] >= least
        ]
        reporting += clients
        share = least / max(clients, 1)
        if rules:
            bins = tuple(self.grammar.find_bins(rule.structure) for rule in rules)
            channel = ReportChannel(
                sum(len(each) for own in bins for each in own), self.most[2], self.epsilon
            )
            question = BinQuestion(tuple(rule.structure for rule in rules), bins, 2, channel)
            histogram = check_answer((yield question), channel.answers)
            clients = int(histogram.sum())
            reporting += clients
            counts = np.rint(channel.estimate(histogram)).astype(np.int64)
            deviations = [channel.find_deviation(clients, rule.prevalence * clients) for rule in rules]
            rules = fill_parameters(rules, bins, counts, deviations, self.quantile)
        return LocalDiscovery(tuple(rules), reporting, share, self.epsilon)

    def _expand(self, estimates: NDArray[np.float64], least: float) -> tuple[list[Formula], list[Formula]]:
        """The skeletons that are frequent enough and whose structures there is room for, the most frequent first; and
        these structures."""
        skeletons = self.grammar.skeletons
        parents: list[Formula] = []
        frontier: list[Formula] = []
        for place in np.argsort(-estimates, kind="stable").tolist():
            # What is counted is an upper bound, at most some times too large where parts of a skeleton are alike.
            roughly = self.grammar.count_children(skeletons[place], STRUCTURE)
            if estimates[place] >= least and roughly <= MOST_ALIKE * self.most_templates:
                children = self.grammar.expand(skeletons[place], STRUCTURE)
                if len(children) <= self.most_templates - len(frontier):
                    parents.append(skeletons[place])
                    frontier += children
        return parents, frontier
