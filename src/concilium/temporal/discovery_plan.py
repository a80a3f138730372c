"""What a discovery will ask, what that costs, and whom it protects from whom, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from concilium.privacy.accounting import PlannedQuestion, rho_from_pure
from concilium.temporal.path_search import UNIT

if TYPE_CHECKING:
    from concilium.temporal.rule_discovery import RuleDiscovery

LEVEL_NOTES = (
    "patients who have each skeleton of a rule",
    "the same with variables",
    "the same with relations",
    "numbers and intervals of the rules that many have",
)


def plan_questions(study: RuleDiscovery) -> Iterator[PlannedQuestion]:
    """The questions of a study, in order."""
    if study.trust == "local":
        yield PlannedQuestion("counts", None, "how many patients there are")
        report = "one randomised report of each patient, in three groups"
        yield PlannedQuestion("rules.reports", rho_from_pure(study.exact_epsilon), report)
    elif study.trust == "rule":
        yield PlannedQuestion("counts", None, "how many patients there are")
        bits = f"yes or no of each patient, flipped by a coin, for at most {study.questions} templates"
        yield PlannedQuestion("rules.bits", None, bits)
        yield PlannedQuestion(
            "rules.codes", None, "numbers and intervals of rules, randomised by each patient"
        )
    else:
        yield from plan_sums(study)


def plan_sums(study: RuleDiscovery) -> Iterator[PlannedQuestion]:
    budget = study.split_budget()
    if budget["clients"]:
        yield PlannedQuestion("rules.counts", budget["clients"], "how many patients there are")
    if budget["names"]:
        names = f"which of {len(study.task.names)} variables their rules are about"
        yield PlannedQuestion("rules.counts", budget["names"], names)
    for note, rho in zip(LEVEL_NOTES, study.open_search().shares, strict=True):
        yield PlannedQuestion("rules.counts", rho, note)
    if budget["outcomes"]:
        yield PlannedQuestion("rules.outcomes", budget["outcomes"], "what the rules say of the outcome")


def say_protection(study: RuleDiscovery) -> str:
    """Who is protected from whom, and at what price."""
    epsilon = f"{float(study.exact_epsilon):g}"
    if study.trust == "local":
        return (
            "protected is each patient, with all its rules, from everybody: one report, randomised by itself, at "
            f"epsilon = {epsilon} (pure); that the patient is there is not hidden"
        )
    if study.trust == "rule":
        return (
            f"protected is {UNIT}: epsilon = {epsilon} on a path of the search, if a patient's rules were independent "
            "of each other; what all answers tell of one patient has no such bound"
        )
    return (
        "protected is each patient, with all its rules, from the house and as many colluding hospitals as the study "
        f"tolerates: {study.say_price()}"
    )
