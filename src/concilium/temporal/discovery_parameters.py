"""The parameters of a discovery: what each takes and means (concilium/parameters.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any

from concilium.errors import RecordsError
from concilium.models.method import read_edges
from concilium.parameters import MOST_COUNTED, Parameter, choice, name, number, share, whole
from concilium.records.time_grid import read_duration
from concilium.temporal.rule_part import MOST_HORIZON, MOST_LIMITS

MOST_TEMPLATES_ASKED = 1_000_000
TRUST = {"secure-sum": "private", "local": "local", "rule": "exact"}
"""How answers leave the hospitals, by whom the patients trust."""


def read_time(value: Any) -> str:
    try:
        read_duration(value, "time")
    except RecordsError:
        raise ValueError from None
    return str(value)


def read_threshold(value: Any) -> str | float | Fraction:
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
        read_threshold,
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
        read_time,
        "hospitals hold series and learn each patient's rules from windows of this length; None: they hold rules",
    ),
]
Step = Annotated[str, Parameter("a time such as '1h'", read_time, "the step of the series")]
Carry = Annotated[
    str, Parameter("a time such as '24h'", read_time, "how long a value of a series stands for those missing")
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
