"""The parameters of a discovery: what each takes and means (concilium/parameters.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from concilium.errors import RecordsError
from concilium.models.method import read_edges
from concilium.parameters import MOST_COUNTED, Parameter, choice, name, number, share, whole
from concilium.privacy.accounting import PlannedQuestion, rho_from_pure
from concilium.records.time_grid import read_duration
from concilium.temporal.path_search import UNIT
from concilium.temporal.rule_task import MOST_HORIZON, MOST_LIMITS

if TYPE_CHECKING:
    from concilium.temporal.rule_discovery import RuleDiscovery

MOST_TEMPLATES_ASKED = 1_000_000
TRUST = {"secure-sum": "private", "local": "local", "rule": "exact"}
"""How answers leave the hospitals, by whom the patients trust."""


def _read_time(value: Any) -> str:
    try:
        read_duration(value, "time")
    except RecordsError:
        raise ValueError from None
    return str(value)


def _read_threshold(value: Any) -> str | float | Fraction:
    if not 0 < share(value) < 1:
        raise ValueError
    kept: str | float | Fraction = value
    return kept


Outcome = Annotated[
    str,
    Parameter(
        "a name",
        name,
        "what the rules are about: of series the variable of 0 and 1 that says when it is there",
        "study",
    ),
]
Threshold = Annotated[
    float | str | Fraction,
    Parameter(
        "a number between 0 and 1",
        _read_threshold,
        "the share of the patients who must have a rule for it to be looked for",
    ),
]
Trust = Annotated[
    str,
    Parameter(
        "'secure-sum', 'local' or 'rule'",
        choice(*TRUST),
        '"secure-sum": patients trust that hospitals do not collude; "local": nobody; "rule": one rule is protected, '
        "not one patient",
    ),
]
Limits = Annotated[
    Mapping[str, Sequence[float]],
    Parameter(
        "lists of numbers",
        read_edges,
        "the variables that rules may be about, each with its public limits; without it: clinical ranges of fifty",
        "bins",
    ),
]
Clients = Annotated[
    int | None,
    Parameter(
        f"a whole number from 1 to {MOST_COUNTED}",
        whole(1, MOST_COUNTED),
        "how many patients take part, if that is public: then a study that cannot work is refused before anything is "
        "spent; None: under secure-sum a thousandth of the budget goes to find out",
    ),
]
MostRules = Annotated[
    int,
    Parameter(
        "a whole number from 1 to 1000", whole(1, 1000), "the rules of one patient that count, at most"
    ),
]
MostLimits = Annotated[
    int,
    Parameter(
        f"a whole number from 1 to {MOST_LIMITS}",
        whole(1, MOST_LIMITS),
        "the comparisons of a rule with a number, at most",
    ),
]
Horizon = Annotated[
    int,
    Parameter(
        f"a whole number from 0 to {MOST_HORIZON}",
        whole(0, MOST_HORIZON),
        "the last step of intervals that are told apart, of rules that were given",
    ),
]
WindowLength = Annotated[
    str | None,
    Parameter(
        "a time such as '6h'",
        _read_time,
        "hospitals hold series and learn each patient's rules from windows of this length; None: they hold rules",
    ),
]
Step = Annotated[str, Parameter("a time such as '1h'", _read_time, "the step of the series")]
Carry = Annotated[
    str,
    Parameter("a time such as '24h'", _read_time, "how long a value of a series stands for those missing"),
]
Allocation = Annotated[
    str,
    Parameter(
        "'adaptive' or 'uniform'",
        choice("adaptive", "uniform"),
        "of trust = rule: what a question costs, as much as it takes or a share of all",
    ),
]
Theta = Annotated[
    float,
    Parameter(
        "a number between 0 and 0.5",
        number(lambda value: 0 < value < 0.5),
        "of trust = rule: how often a rule at the threshold may be lost to a question",
    ),
]
MostQuestions = Annotated[
    int,
    Parameter(
        f"a whole number from 1 to {MOST_TEMPLATES_ASKED}",
        whole(1, MOST_TEMPLATES_ASKED),
        "of trust = rule: the questions, at most",
    ),
]


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
        yield from _plan_sums(study)


def _plan_sums(study: RuleDiscovery) -> Iterator[PlannedQuestion]:
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
