"""The parameters of experts: what each takes and means (concilium/parameters.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any

from concilium.errors import RecordsError
from concilium.experts.expert_answers import MOST_EXPERTS
from concilium.experts.expert_task import MOST_BOUND, MOST_EPOCHS, MOST_LAYERS, MOST_UNITS
from concilium.experts.network import NETWORKS
from concilium.models.method import AN_EPSILON, read_edges, read_epsilon
from concilium.parameters import Parameter, choice, name, number, whole
from concilium.records.series import Series
from concilium.records.time_grid import read_duration


def _read_time(value: Any) -> str:
    try:
        read_duration(value, "time")
    except RecordsError:
        raise ValueError from None
    return str(value)


def _read_public(value: Any) -> Series | str:
    if not isinstance(value, Series | str) or (not isinstance(value, Series) and not value):
        raise ValueError
    return value


TargetVariable = Annotated[
    str,
    Parameter(
        "a variable's name", name, "the variable of 0 and 1 that says when the outcome is there", "study"
    ),
]
Ranges = Annotated[
    Mapping[str, Sequence[float]],
    Parameter(
        "lists of numbers",
        read_edges,
        "the variables that networks see, each with public numbers: the least and the largest scale it, and rules of "
        "the readable student cut at them; without it: clinical ranges of fifty",
        "bins",
    ),
]
Size = Annotated[
    int,
    Parameter(
        f"a whole number from 1 to {MOST_EXPERTS}",
        whole(1, MOST_EXPERTS),
        "the experts that each hospital answers with (private), or may choose from (exact, masked); it is public, and "
        "where a hospital has fewer those missing say 0",
    ),
]
Limit = Annotated[
    int | None,
    Parameter(
        f"a whole number from 1 to {MOST_EXPERTS}",
        whole(1, MOST_EXPERTS),
        "of a grown ensemble: its experts, at most; None: as many as lower its error",
    ),
]
Conditional = Annotated[
    str | float | Fraction | None,
    Parameter(
        AN_EPSILON,
        read_epsilon,
        "of a grown ensemble: each hospital adds noise of this epsilon to its average, which protects members on "
        "condition of the choice and is no differential privacy; None: no noise",
    ),
]
Public = Annotated[
    Series | str | None,
    Parameter(
        "a Series, or the name of a file of series",
        _read_public,
        "public stays that the ensembles label once, to teach the student; None: none yet, see student()",
    ),
]
Every = Annotated[
    str, Parameter("a time such as '2h'", _read_time, "public stays are asked about one step in so long")
]
Step = Annotated[str, Parameter("a time such as '1h'", _read_time, "the step of the series")]
WindowSpan = Annotated[
    str,
    Parameter("a time such as '24h'", _read_time, "what a network sees at a time; windows overlap by half"),
]
Carry = Annotated[
    str,
    Parameter("a time such as '24h'", _read_time, "how long a value of a series stands for those missing"),
]
Lead = Annotated[
    str,
    Parameter(
        "a time such as '12h'", _read_time, "severity rises from 0 in so long before the target is first 1"
    ),
]
Bound = Annotated[
    int,
    Parameter(
        f"a whole number from 1 to {MOST_BOUND}",
        whole(1, MOST_BOUND),
        "the largest severity: answers are held to it",
    ),
]
NetworkKind = Annotated[
    str,
    Parameter(
        " or ".join(map(repr, NETWORKS)),
        choice(*NETWORKS),
        '"lstm": small and fast; "torch-lstm": as wide and deep as asked for, with the extra `experts`',
    ),
]
Units = Annotated[
    int,
    Parameter(
        f"a whole number from 1 to {MOST_UNITS}", whole(1, MOST_UNITS), "how wide an expert's network is"
    ),
]
Layers = Annotated[
    int,
    Parameter(
        f"a whole number from 1 to {MOST_LAYERS}",
        whole(1, MOST_LAYERS),
        "of torch-lstm: how deep the network is",
    ),
]
Dropout = Annotated[
    float,
    Parameter(
        "a number from 0, below 1",
        number(lambda value: 0 <= value < 1),
        "of torch-lstm: between layers, in training",
    ),
]
Epochs = Annotated[
    int,
    Parameter(
        f"a whole number from 1 to {MOST_EPOCHS}",
        whole(1, MOST_EPOCHS),
        "the passes over a patient's windows, at most",
    ),
]
Alarms = Annotated[
    float,
    Parameter(
        "a number between 0 and 1",
        number(lambda value: 0 < value < 1),
        "the share of public steps at which the student would raise an alarm: where its class becomes 1",
    ),
]
Answers = Annotated[
    str,
    Parameter(
        "'student', 'step' or 'course'",
        choice("student", "step", "course"),
        'what is bought: "student": labels that teach one; "step", "course": one answer of the ensembles themselves',
    ),
]
Seed = Annotated[
    int,
    Parameter(
        "a whole number from 0, below 2 to the power of 63",
        whole(0, 2**63 - 1),
        "public: where networks begin, and whose experts answer",
    ),
]
