"""A discovery by yes/no questions along a tree of templates: `trust = "rule"` (docs/methods.md, section 6.10).

Three quarters of the epsilon of a path go to the search with its final check, one to the parameters of what it found.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from concilium.protocol.conversation import Conversation, Learned
from concilium.protocol.counts import AskCounts
from concilium.temporal.discovery_body import DiscoveryBody, write_rules
from concilium.temporal.discovery_search import DiscoveredRule, check_answer, estimate_parameter
from concilium.temporal.path_search import PATH_LENGTH, PathDiscovery
from concilium.temporal.rule_bits import AskRuleBits
from concilium.temporal.rule_codes import AskRuleCodes, estimate_codes
from concilium.temporal.rule_task import open_grammar

if TYPE_CHECKING:
    from concilium.temporal.rule_discovery import RuleDiscovery

QUANTILE = 0.5


def converse_along_paths(study: RuleDiscovery) -> Conversation[Learned[DiscoveryBody]]:
    counted = yield AskCounts(query=study.query, target="")
    patients = int(counted[0, 0, 0])
    study.check_feasible(patients)
    found = yield from walk(study, patients)
    rules = []
    for rule in found.rules:
        complete = yield from ask_parameters(study, rule)
        rules.append(complete)
    more = f"the search ended after {found.questions} questions, with more to ask"
    return study.conclude(float(patients), write_rules(rules), [] if found.exhausted else [more])


def walk(study: RuleDiscovery, patients: int) -> Conversation[PathDiscovery]:
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


def ask_parameters(study: RuleDiscovery, rule: DiscoveredRule) -> Conversation[DiscoveredRule]:
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
