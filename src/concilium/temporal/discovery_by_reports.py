"""A discovery by one randomised report of each patient: `trust = "local"` (docs/methods.md, sections 6.9 and 6.11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from concilium.protocol.conversation import Conversation, Learned
from concilium.protocol.counts import AskCounts
from concilium.temporal.discovery_body import DiscoveryBody, write_rules
from concilium.temporal.local_search import BinQuestion, LocalDiscovery
from concilium.temporal.rule_part import RulePart, Stage
from concilium.temporal.rule_reports import AskRuleReports

if TYPE_CHECKING:
    from concilium.temporal.rule_discovery import RuleDiscovery


def converse_by_reports(study: RuleDiscovery) -> Conversation[Learned[DiscoveryBody]]:
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
