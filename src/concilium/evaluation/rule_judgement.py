"""How well temporal rules do: a vote on windows that it has not seen, a discovery beside what patients really share
(docs/methods.md, sections 6.6 and 6.12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from concilium.evaluation.metrics import Figures, measure
from concilium.temporal.discovery_body import FoundRule
from concilium.temporal.formula import Formula
from concilium.temporal.learning import LabelledWindows, RuleVote
from concilium.temporal.parsing import parse
from concilium.temporal.rule_grammar import STRUCTURE
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.template_index import TemplateIndex


def judge_vote(vote: RuleVote, windows: LabelledWindows) -> Figures:
    """Balanced accuracy, F1 and more on these windows; for an honest figure, windows of patients whom neither the rules
    nor their weights were learned from."""
    score = vote.score(windows.series)
    chance = 1 / (1 + np.exp(-np.clip(score, -500, 500)))
    return measure(
        windows.labels.tolist(),
        (score > 0).tolist(),
        np.column_stack([1 - chance, chance]),
        (False, True),
        positive=True,
    )


@dataclass(frozen=True)
class DiscoveryFigures:
    """How much of what patients share was found, and how much of what was found they share: distinct structures, one
    to one. None where there is nothing to find, or nothing was."""

    found: int
    truth: int
    coverage: float | None
    precision: float | None


def judge_discovery(
    rules: Sequence[FoundRule], rule_sets: Sequence[RuleSets], threshold: Fraction
) -> DiscoveryFigures:
    """A discovery beside the exact truth of all hospitals together: for whoever holds the patients; it is not
    covered by any epsilon."""
    holders: Counter[Formula] = Counter()
    for one in rule_sets:
        index = TemplateIndex(one)
        structures = index.find_templates(STRUCTURE)
        holders.update(dict(zip(structures, index.count(structures).tolist(), strict=True)))
    least = threshold * sum(map(len, rule_sets))
    truth = {structure for structure, count in holders.items() if count >= least}
    found = {parse(rule.structure).canonical() for rule in rules}
    right = len(found & truth)
    return DiscoveryFigures(
        len(found),
        len(truth),
        right / len(truth) if truth else None,
        right / len(found) if found else None,
    )
