"""Rule discovery by yes/no questions along a tree of templates, one at a time: the search of the paper, corrected.

Selection by UCT (with ln of the parent's visits under the root, the best child and never a random one, score 0 below
the threshold), expansion from the grammar, a randomised answer of every client, and visits counted back to the root.
A structure that is frequent enough is asked about once more before it counts as a rule; that question is charged too.

Claim, and its narrow unit. Protected: *one rule* of one client, added or removed, from everybody, if a client's rules
are independent of each other. It is not a client: a client with k rules is exposed up to k times as much, and rules of
one patient are not independent. Cost: pure epsilon, the largest sum over a path from the root to a leaf: a rule has one
template on each level, so it can change the answers on its own path only. Assumption: each answer is flipped with
probability 1/(1 + e^b), by itself (privacy/mechanisms.py). The label `UNIT` goes with every result.

docs/methods.md, section 6.10.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import NormalDist

from concilium.errors import StudyError
from concilium.privacy.mechanisms import find_flip_threshold
from concilium.temporal.discovery_search import DiscoveredRule, make_rule, pool
from concilium.temporal.formula import Formula
from concilium.temporal.rule_grammar import LEVELS, STRUCTURE, RuleGrammar

UNIT = "one rule (not one client)"
EXPLORATION = 1 / math.sqrt(2)
PATH_LENGTH = len(LEVELS) + 1
"""Questions on a path: one on each level, and the final check."""


@dataclass(frozen=True)
class BitQuestion:
    """Whether each client has a rule that the template matches; every answer is flipped at this epsilon.

    The `final` one of a path is the second about its structure.
    """

    template: Formula
    epsilon: Fraction
    final: bool = False


@dataclass(frozen=True)
class PathDiscovery:
    """The rules that passed the final check, the most frequent first; `spent` is that of the dearest path."""

    rules: tuple[DiscoveredRule, ...]
    questions: int
    exhausted: bool
    spent: Fraction
    unit: str = UNIT


@dataclass
class _TemplateNode:
    template: Formula | None
    level: int
    parent: _TemplateNode | None
    left: Fraction
    share: float = 0.0
    visits: int = 0
    finished: bool = False
    children: list[_TemplateNode] = field(default_factory=list)
    expanded: bool = False


@dataclass(frozen=True)
class PathSearch:
    """What is public about the search. `epsilon` is the budget of a path, `clients` how many answer.

    `uniform` divides the budget evenly over the questions of a path. `adaptive` pays for each question as much as it
    takes to lose a template at the threshold with a probability of at most `theta`, pruning below threshold - margin
    (without it: the threshold itself); what is left goes to the final check. At most so many `questions` are asked. A
    share of epsilon is `reserved` for what is asked of a rule after that.
    """

    grammar: RuleGrammar
    threshold: float
    epsilon: Fraction
    clients: int
    allocation: str = "adaptive"
    theta: float = 0.05
    margin: float | None = None
    questions: int = 5000
    reserved: Fraction = Fraction(0)

    @property
    def budget(self) -> Fraction:
        """Of a path of the search: what is not reserved for what is asked after it."""
        return self.epsilon * (1 - self.reserved)

    @property
    def slack(self) -> float:
        """How far below the threshold a template is still kept."""
        return self.threshold if self.margin is None else self.margin

    @property
    def per_question(self) -> Fraction:
        """What a question on a level costs."""
        if self.allocation == "uniform":
            return self.budget / PATH_LENGTH
        quantile = NormalDist().inv_cdf(1 - self.theta)
        return Fraction(find_question_epsilon(self.clients, self.slack, quantile))

    def check_feasible(self) -> None:
        """That a path can be paid for, or that its answers can tell a rule at the threshold from none."""
        share = self.budget / PATH_LENGTH
        if self.allocation == "adaptive":
            quantile, margin = NormalDist().inv_cdf(1 - self.theta), self.slack
        else:
            quantile, margin = 1.0, self.threshold
        wanted = Fraction(find_question_epsilon(self.clients, margin, quantile))
        if wanted <= share:
            return
        enough = math.ceil((quantile / (2 * margin * math.sinh(float(share) / 2))) ** 2)
        raise StudyError(
            f"this study cannot work: with {self.clients} clients each of the {PATH_LENGTH} questions of a path needs "
            f"epsilon = {float(wanted):.3g}, and {float(share):.3g} is what each can have; it would with {enough} "
            f"clients, or with epsilon = {math.ceil(100 * PATH_LENGTH * wanted / (1 - self.reserved)) / 100:g}"
        )

    def run(self) -> Generator[BitQuestion, int, PathDiscovery]:
        """The questions, one after the other; each is answered by the number of clients that said yes."""
        root = _TemplateNode(None, 0, None, self.budget)
        root.finished = self.per_question > self.budget
        asked, dearest = 0, Fraction(0)
        rules: list[DiscoveredRule] = []
        while not root.finished and asked < self.questions:
            node = self._select(root)
            assert node.template is not None
            cost = self.per_question
            count = estimate_yes((yield BitQuestion(node.template, cost)), self.clients, cost)
            asked += 1
            node.left -= cost
            node.share = count / self.clients
            checked = 0
            if node.share < self.threshold - self.slack or node.left < cost:
                node.finished = True
            elif node.level == STRUCTURE:
                node.finished = True
                if asked < self.questions:
                    final = node.left
                    question = BitQuestion(node.template, final, final=True)
                    again = estimate_yes((yield question), self.clients, final)
                    asked += 1
                    node.left = Fraction(0)
                    checked = 1
                    if again / self.clients >= self.threshold:
                        rules.append(self._make_rule(node.template, (count, cost), (again, final)))
            dearest = max(dearest, self.budget - node.left)
            self._go_back(node, 1 + checked)
        rules.sort(key=lambda rule: -rule.count)
        return PathDiscovery(tuple(rules), asked, root.finished, dearest)

    def _select(self, root: _TemplateNode) -> _TemplateNode:
        """A child that was never asked about, or else down the best one."""
        node = root
        while True:
            if not node.expanded:
                self._expand(node)
            for child in node.children:
                if not child.visits:
                    return child
            node = max(
                (child for child in node.children if not child.finished),
                key=lambda child: self.score(child.share, child.visits, node.visits),
            )

    def _expand(self, node: _TemplateNode) -> None:
        templates = self.grammar.skeletons if node.template is None else self.grammar.expand(node.template)
        node.children = [_TemplateNode(form, node.level + 1, node, node.left) for form in templates]
        node.expanded = True

    def score(self, share: float, visits: int, parent_visits: int) -> float:
        """UCT; 0 below the threshold."""
        if share < self.threshold:
            return 0.0
        return share + EXPLORATION * math.sqrt(math.log(parent_visits) / visits)

    def _go_back(self, node: _TemplateNode, visits: int) -> None:
        """Count the visits up to the root, and close what has nothing left to ask."""
        step: _TemplateNode | None = node
        while step is not None:
            step.visits += visits
            if step.expanded and all(child.finished for child in step.children):
                step.finished = True
            step = step.parent

    def _make_rule(
        self, structure: Formula, first: tuple[float, Fraction], final: tuple[float, Fraction]
    ) -> DiscoveredRule:
        estimates = [(count, _find_yes_deviation(self.clients, cost)) for count, cost in (first, final)]
        count, deviation = pool(estimates)
        return make_rule(structure, count, deviation, self.clients, 0.0)


def find_question_epsilon(clients: int, margin: float, quantile: float) -> float:
    """The least b at which a template at the threshold falls below threshold - margin with probability
    1 - Phi(quantile) at most: 2 asinh(z / (2 m sqrt n)), from z sqrt(n p q)/(p - q) = m n. (Eq. 5 as printed has no
    solution: without a margin that probability is one half for every b.)"""
    return 2 * math.asinh(quantile / (2 * margin * math.sqrt(clients)))


def _find_flip_probability(epsilon: Fraction) -> float:
    """q, as it is tossed."""
    return find_flip_threshold(epsilon) / 2**64


def estimate_yes(yes: int, clients: int, epsilon: Fraction) -> float:
    """How many clients match, from how many said so: (y - n q)/(p - q), without bias and never clipped."""
    if not 0 <= yes <= clients:
        raise StudyError(f"{yes} of {clients} clients cannot have said yes")
    flipped = _find_flip_probability(epsilon)
    return (yes - clients * flipped) / (1 - 2 * flipped)


def _find_yes_deviation(clients: int, epsilon: Fraction) -> float:
    """The standard deviation of that estimate: sqrt(n p q)/(p - q), whatever the true count."""
    flipped = _find_flip_probability(epsilon)
    return math.sqrt(clients * flipped * (1 - flipped)) / (1 - 2 * flipped)
