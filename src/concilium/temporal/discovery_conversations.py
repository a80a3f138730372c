"""The conversations of a discovery, one for each kind of trust: noisy sums, randomised reports, yes/no along paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.protocol.conversation import Conversation, Learned, Partners
from concilium.protocol.counts import AskCounts
from concilium.protocol.questions import Gaussian
from concilium.temporal.discovery_body import DiscoveryBody, FoundRule, is_complete, weigh_rules, write_rules
from concilium.temporal.discovery_search import (
    DiscoveredRule,
    Discovery,
    LevelQuestion,
    check_answer,
    estimate_parameter,
)
from concilium.temporal.local_search import BinQuestion, LocalDiscovery
from concilium.temporal.path_search import PATH_LENGTH, PathDiscovery
from concilium.temporal.rule_questions import (
    AskRuleBits,
    AskRuleCodes,
    AskRuleCounts,
    AskRuleOutcomes,
    AskRuleReports,
    estimate_codes,
    is_within_window,
)
from concilium.temporal.rule_task import STAGES, RulePart, Stage, open_grammar

if TYPE_CHECKING:
    from concilium.temporal.rule_discovery import RuleDiscovery

NOTHING_IN_COMMON = (
    "no rule was found: none that the study looks for is frequent enough to be told from noise. Rules about other "
    "variables, or of other forms, are not looked for: each hospital's log says whether its patients have any"
)


def converse_by_sums(study: RuleDiscovery, partners: Partners) -> Conversation[Learned[DiscoveryBody]]:
    """Noisy sums over all hospitals: `trust = "secure-sum"` (docs/methods.md, sections 6.8, 6.11 and 6.12).

    First, for a thousandth of the budget, how many patients there are, unless the study states it: a study that
    cannot work ends there. Then, where there are many variables, which of them occur at all: a rule is as rare as
    each of its variables. Then the search, and at last what the rules say of the outcome, where hospitals hold
    series.
    """
    budget = study.split_budget()
    if budget["clients"]:
        counts = yield _ask_counts(study, partners, budget["clients"], "clients", 1)
        _check_estimate(study, float(counts[-1]), _find_deviation(partners, budget["clients"], 1))
    names: tuple[str, ...] = ()
    if budget["names"]:
        size = min(study.most_rules, len(study.task.names)) + 1
        counts = yield _ask_counts(study, partners, budget["names"], "names", size)
        names = _find_names(study, counts, _find_deviation(partners, budget["names"], size))
        if not names:
            return study.conclude(float(counts[-1]), [], [NOTHING_IN_COMMON])
    found: Discovery = yield from _search_levels(study, partners, names)
    rules, warnings = write_rules(found.rules), []
    if rules and budget["outcomes"]:
        rules = yield from _weigh_outcomes(study, partners, rules, budget["outcomes"])
    if not rules:
        warnings.append(NOTHING_IN_COMMON)
    left_out = sum(report.left_out for report in found.levels)
    if left_out:
        warnings.append(
            f"{left_out} templates were not looked into, for want of room for what follows from them: give fewer "
            "variables under bins, or fewer limits"
        )
    return study.conclude(found.clients, rules, warnings)


def _search_levels(
    study: RuleDiscovery, partners: Partners, names: tuple[str, ...]
) -> Conversation[Discovery]:
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
            counts = yield _ask_counts(study, partners, question.rho, stage, sensitivity, names, texts)
            question = steps.send(counts)
    except StopIteration as end:
        found: Discovery = end.value
        return found


def _ask_counts(
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


def _find_deviation(partners: Partners, rho: Fraction, squared_sensitivity: int) -> float:
    """Of the noise that a sum of this price has."""
    return math.sqrt(partners.variance(rho, squared_sensitivity) * partners.noise_factor)


def _check_estimate(study: RuleDiscovery, patients: float, deviation: float) -> None:
    """Stop where the patients are too few by more than the noise on their number."""
    try:
        study.check_feasible(max(1, math.ceil(patients + 2 * deviation)))
    except StudyError as error:
        raise StudyError(
            f"{error}. There are about {max(patients, 0):.0f} patients: finding that out has cost a thousandth of the "
            "budget, and nothing else was asked; state clients= where their number is public"
        ) from None


def _find_names(study: RuleDiscovery, counts: NDArray[np.int64], deviation: float) -> tuple[str, ...]:
    """The variables that a rule at the threshold can be about."""
    wanted = float(study.exact_threshold) * float(counts[-1])
    least = max(wanted - deviation, deviation)
    return tuple(
        name for name, count in zip(study.task.names, counts.tolist(), strict=False) if count >= least
    )


def _weigh_outcomes(
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


def converse_by_reports(study: RuleDiscovery) -> Conversation[Learned[DiscoveryBody]]:
    """One randomised report of each patient: `trust = "local"` (docs/methods.md, sections 6.9 and 6.11)."""
    counted = yield AskCounts(query="", target="")
    patients = int(counted[0, 0, 0])
    study.check_feasible(patients)
    search = study.open_local_search().run()
    try:
        question = next(search)
        while True:
            stage: Stage = "skeletons"
            about: Sequence[Any] = ()
            if isinstance(question, BinQuestion):
                stage, about = "parameters", question.structures
            elif question.parents:
                stage, about = "structures", question.parents
            histogram = yield AskRuleReports(
                query="",
                target="",
                part=RulePart(study.task, stage, (), tuple(map(str, about))),
                most=question.channel.most,
                epsilon=str(study.exact_epsilon),
                group=question.group,
            )
            question = search.send(histogram)
    except StopIteration as end:
        found: LocalDiscovery = end.value
    seen = f"a rule was seen if at least {found.least_share:.1%} of the patients have it"
    return study.conclude(float(patients), write_rules(found.rules), [seen])


QUANTILE = 0.5


def converse_along_paths(study: RuleDiscovery) -> Conversation[Learned[DiscoveryBody]]:
    """Yes/no questions along a tree of templates: `trust = "rule"` (docs/methods.md, section 6.10).

    Three quarters of the epsilon of a path go to the search with its final check, one to the parameters of its
    results.
    """
    counted = yield AskCounts(query=study.query, target="")
    patients = int(counted[0, 0, 0])
    study.check_feasible(patients)
    found = yield from _walk_paths(study, patients)
    rules = []
    for rule in found.rules:
        complete = yield from _ask_parameters(study, rule)
        rules.append(complete)
    more = f"the search ended after {found.questions} questions, with more to ask"
    return study.conclude(float(patients), write_rules(rules), [] if found.exhausted else [more])


def _walk_paths(study: RuleDiscovery, patients: int) -> Conversation[PathDiscovery]:
    """The search, question by question."""
    plan = study.open_path_search(patients)
    last = plan.budget - (PATH_LENGTH - 1) * plan.per_question
    search = plan.run()
    try:
        question = next(search)
        while True:
            said = yield AskRuleBits(
                query=study.query,
                target="",
                task=study.task,
                template=str(question.template),
                each=str(plan.per_question),
                last=str(last),
                final=question.final,
            )
            question = search.send(int(check_answer(said, 1)[0]))
    except StopIteration as end:
        found: PathDiscovery = end.value
        return found


def _ask_parameters(study: RuleDiscovery, rule: DiscoveredRule) -> Conversation[DiscoveredRule]:
    """The rule with its parameters, each asked for by itself."""
    estimates = []
    for place, bins in enumerate(open_grammar(study.task).find_bins(rule.structure)):
        question = AskRuleCodes(
            query=study.query,
            target="",
            task=study.task,
            structure=str(rule.structure),
            parameter=place,
            epsilon=str(study.exact_epsilon),
        )
        said = yield question
        counts, deviation = estimate_codes(said, Fraction(question.own_epsilon))
        estimates.append(estimate_parameter(bins, counts, deviation, QUANTILE))
    chosen = (estimate.bins.choose(estimate.chosen) for estimate in estimates)
    formula = rule.structure.fill(*chosen).canonical()
    return replace(rule, formula=formula, parameters=tuple(estimates))
