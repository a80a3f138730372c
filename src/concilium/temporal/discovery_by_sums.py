"""A discovery by noisy sums over all hospitals: `trust = "secure-sum"` (docs/methods.md, sections 6.8, 6.11 and 6.12).

First, for a thousandth of the budget, how many patients there are, unless the study states it: a study that cannot work
ends there. Then, where there are many variables, which of them occur at all: a rule is as rare as each of its
variables. Then the search, and at last what the rules say of the outcome, where hospitals hold series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.protocol.conversation import Conversation, Learned, Partners
from concilium.protocol.questions import Gaussian
from concilium.temporal.discovery_body import DiscoveryBody, FoundRule, is_complete, write_rules
from concilium.temporal.discovery_search import Discovery, LevelQuestion
from concilium.temporal.rule_counts import AskRuleCounts
from concilium.temporal.rule_evidence import weigh_rules
from concilium.temporal.rule_outcomes import AskRuleOutcomes, is_within_window
from concilium.temporal.rule_part import STAGES, RulePart, Stage

if TYPE_CHECKING:
    from concilium.temporal.rule_discovery import RuleDiscovery

NOTHING_IN_COMMON = (
    "no rule was found: none that the study looks for is frequent enough to be told from noise. Rules about other "
    "variables, or of other forms, are not looked for: each hospital's log says whether its patients have any"
)


def converse_by_sums(study: RuleDiscovery, partners: Partners) -> Conversation[Learned[DiscoveryBody]]:
    budget = study.split_budget()
    if budget["clients"]:
        counts = yield ask_counts(study, partners, budget["clients"], "clients", 1)
        check_estimate(study, float(counts[-1]), find_deviation(partners, budget["clients"], 1))
    names: tuple[str, ...] = ()
    if budget["names"]:
        size = min(study.most_rules, len(study.task.names)) + 1
        counts = yield ask_counts(study, partners, budget["names"], "names", size)
        names = find_names(study, counts, find_deviation(partners, budget["names"], size))
        if not names:
            return study.conclude(float(counts[-1]), [], [NOTHING_IN_COMMON])
    found: Discovery = yield from search(study, partners, names)
    rules, warnings = write_rules(found.rules), []
    if rules and budget["outcomes"]:
        rules = yield from weigh(study, partners, rules, budget["outcomes"])
    if not rules:
        warnings.append(NOTHING_IN_COMMON)
    left_out = sum(report.left_out for report in found.levels)
    if left_out:
        warnings.append(
            f"{left_out} templates were not looked into, for want of room for what follows from them: give fewer "
            "variables under bins, or fewer limits"
        )
    return study.conclude(found.clients, rules, warnings)


def search(study: RuleDiscovery, partners: Partners, names: tuple[str, ...]) -> Conversation[Discovery]:
    """The breadth-first search over these variables (none: all)."""
    steps = study.open_search(names, partners.noise_factor).run()
    try:
        question = next(steps)
        while True:
            stage: Stage = "parameters"
            about: Sequence[Any]
            if isinstance(question, LevelQuestion):
                stage, about = STAGES[question.level - 1], question.parents
            else:
                about = question.structures
            texts = tuple(map(str, about))
            sensitivity = question.squared_sensitivity
            counts = yield ask_counts(study, partners, question.rho, stage, sensitivity, names, texts)
            question = steps.send(counts)
    except StopIteration as end:
        found: Discovery = end.value
        return found


def ask_counts(
    study: RuleDiscovery,
    partners: Partners,
    rho: Fraction,
    stage: Stage,
    squared_sensitivity: int,
    names: tuple[str, ...] = (),
    about: tuple[str, ...] = (),
) -> AskRuleCounts:
    return AskRuleCounts(
        query=study.query,
        target="",
        part=RulePart(study.task, stage, names, about),
        most=study.most_rules,
        noise=Gaussian(str(partners.variance(rho, squared_sensitivity))),
    )


def find_deviation(partners: Partners, rho: Fraction, squared_sensitivity: int) -> float:
    """Of the noise that a sum of this price has."""
    return math.sqrt(partners.variance(rho, squared_sensitivity) * partners.noise_factor)


def check_estimate(study: RuleDiscovery, patients: float, deviation: float) -> None:
    """Stop where the patients are too few by more than the noise on their number."""
    try:
        study.check_feasible(max(1, math.ceil(patients + 2 * deviation)))
    except StudyError as error:
        raise StudyError(
            f"{error}. There are about {max(patients, 0):.0f} patients: finding that out has cost a thousandth of the "
            "budget, and nothing else was asked; state clients= where their number is public"
        ) from None


def find_names(study: RuleDiscovery, counts: NDArray[np.int64], deviation: float) -> tuple[str, ...]:
    """The variables that a rule at the threshold can be about."""
    wanted = float(study.exact_threshold) * float(counts[-1])
    least = max(wanted - deviation, deviation)
    return tuple(
        name for name, count in zip(study.task.names, counts.tolist(), strict=False) if count >= least
    )


def weigh(
    study: RuleDiscovery, partners: Partners, rules: list[FoundRule], rho: Fraction
) -> Conversation[list[FoundRule]]:
    """The rules with what each says of the outcome, where it has no holes and fits into a window: noise may put
    together what no patient's rule is."""
    judged = [rule for rule in rules if is_complete(rule) and is_within_window(rule.formula, study.task)]
    if not judged:
        return rules
    variance = partners.variance(rho, len(judged))
    counts = yield AskRuleOutcomes(
        query=study.query,
        target="",
        task=study.task,
        rules=tuple(rule.text for rule in judged),
        noise=Gaussian(str(variance)),
    )
    deviation = math.sqrt(variance * partners.noise_factor)
    weights = dict(zip([rule.text for rule in judged], weigh_rules(counts, deviation), strict=True))
    return [
        msgspec.structs.replace(rule, if_true=weights[rule.text][0], if_false=weights[rule.text][1])
        if rule.text in weights
        else rule
        for rule in rules
    ]
