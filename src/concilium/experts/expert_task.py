"""What experts learn, as a study states it and every question repeats it: variables with public ranges, the outcome and
how severe it is, windows, and the network; and the parameters of a study. All of it is public; nothing here depends on
a patient.

docs/methods.md, section 8.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any

import msgspec

from concilium.errors import MessageError, RecordsError
from concilium.models.method import AN_EPSILON, read_edges, read_epsilon, time_span
from concilium.parameters import Parameter, name, number, number_between, one_of, whole, whole_number
from concilium.records.series import Series
from concilium.records.series_times import count_steps

MOST_EXPERTS = 10_000
NETWORKS = {
    "linear": "concilium.experts.linear:Linear",
    "lstm": "concilium.experts.network:SmallLstm",
    "torch-lstm": "concilium.experts.torch_lstm:TorchLstm",
}
KINDS_OF_EXPERTS = ("auto", *NETWORKS)
MOST_VARIABLES, MOST_STEPS, MOST_UNITS, MOST_LAYERS, MOST_EPOCHS, MOST_BOUND = 200, 500, 400, 4, 1000, 1000


class PublicRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A variable that networks see; `low` to `high` become -1 to 1, the same at every hospital."""

    name: str
    low: float
    high: float


class NetworkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which network (`kind`, of network.py) and how it is trained; `clip` is the largest norm of a gradient, and it
    ends early when the loss has not fallen by `least_gain` of itself for `patience` epochs."""

    kind: str = "lstm"
    units: int = 16
    layers: int = 1
    epochs: int = 20
    rate: float = 0.01
    clip: float = 0.25
    dropout: float = 0.0
    batch: int = 1
    patience: int = 5
    least_gain: float = 0.01
    shrink: float = 0.0
    seed: int = 1

    def check(self) -> None:
        """MessageError unless it is of bearable size and means something."""
        fits = (
            1 <= self.units <= MOST_UNITS
            and 1 <= self.layers <= MOST_LAYERS
            and 1 <= self.epochs <= MOST_EPOCHS
            and self.batch >= 1
            and self.patience >= 1
            and 0 < self.rate < 1
            and 0 < self.clip < 1e6
            and 0 <= self.dropout < 1
            and 0 <= self.least_gain < 1
            and 0 <= self.shrink < 1
            and 0 <= self.seed < 2**63
        )
        if not fits:
            raise MessageError(
                f"an expert's network has at most {MOST_UNITS} units, {MOST_LAYERS} layers and {MOST_EPOCHS} epochs"
            )


class ExpertTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`target` is the variable of 0 and 1 that says when the outcome is there; its severity rises to `bound` in the
    `lead` before. With `grade` it is the severity itself, and the outcome is there from this grade on. Windows have
    this length and overlap by half; values are carried forward for `carry` at most."""

    target: str
    variables: tuple[PublicRange, ...]
    step: str = "1h"
    window: str = "24h"
    carry: str = "24h"
    lead: str = "12h"
    bound: int = 4
    network: NetworkSettings = NetworkSettings()
    grade: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(variable.name for variable in self.variables)

    @property
    def steps(self) -> int:
        """Of a window."""
        return count_steps(self.window, self.step, "window")

    @property
    def stride(self) -> int:
        """From the beginning of one window to the next."""
        return max(1, self.steps // 2)

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def check(self) -> None:
        """MessageError unless it is of bearable size and means something."""
        self.network.check()
        try:
            steps = self.steps
            count_steps(self.carry, self.step, "carry")
            count_steps(self.lead, self.step, "lead")
        except RecordsError as error:
            raise MessageError(str(error)) from None
        fits = (
            1 <= len(self.variables) <= MOST_VARIABLES
            and list(self.names) == sorted(set(self.names))
            and self.target not in self.names
            and all(-1e30 < one.low < one.high < 1e30 for one in self.variables)
            and 1 <= steps <= MOST_STEPS
            and 1 <= self.bound <= MOST_BOUND
            and (self.grade is None or 0 < self.grade <= self.bound)
        )
        if not fits:
            raise MessageError(
                f"experts learn from 1 to {MOST_VARIABLES} variables in order of names, each with a range and none of "
                f"them the target, in windows of 1 to {MOST_STEPS} steps; a grade lies above 0, up to the bound"
            )


def _read_public(value: Any) -> Series | str:
    if not isinstance(value, Series | str) or (not isinstance(value, Series) and not value):
        raise ValueError
    return value


TargetVariable = Annotated[
    str,
    Parameter(
        "a variable's name",
        name,
        "the variable of 0 and 1 that says when the outcome is there, or (`grade`) how severe it is",
        "study",
    ),
]
Ranges = Annotated[
    Mapping[str, Sequence[float]],
    Parameter(
        "lists of numbers",
        read_edges,
        "the variables that networks see, each with public numbers: the least and the largest scale it, and rules of "
        "the readable student cut at them; without it: the variables of the public stays, by clinical ranges or else "
        "by quantiles of these stays",
        "bins",
    ),
]
Size = Annotated[
    int,
    whole_number(
        1,
        MOST_EXPERTS,
        "the experts that each hospital answers with on average (private), or may choose from (exact, masked), drawn "
        "from patients whose outcome changes",
    ),
]
Limit = Annotated[
    int | None,
    whole_number(
        1, MOST_EXPERTS, "of a grown ensemble: its experts, at most; None: as many as lower its error"
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
WEIGHTS = ("uniform", "optimal", "history")
ExpertWeights = Annotated[
    str,
    one_of(
        *WEIGHTS,
        about="of a grown ensemble without noise: by the errors of its experts on other patients, or (where public "
        "stays have the outcome) on earlier steps of the same stay",
    ),
]
Every = Annotated[str, time_span("2h", "public stays are asked about one step in so long")]
WindowSpan = Annotated[str, time_span("24h", "what a network sees at a time; windows overlap by half")]
Lead = Annotated[str, time_span("12h", "severity rises from 0 in so long before the target is first 1")]
Grade = Annotated[
    float | None,
    Parameter(
        "a number above 0",
        number(lambda value: value > 0),
        "the target is a grade from 0 to `bound`, and the outcome is there from this grade on; None: the target is 0 "
        "or 1",
    ),
]
Bound = Annotated[int, whole_number(1, MOST_BOUND, "the largest severity: answers are held to it")]
NetworkKind = Annotated[
    str,
    one_of(
        *KINDS_OF_EXPERTS,
        about='"auto": "linear" for a private student and "lstm" otherwise; "linear": compares its patient with '
        'public stays; "lstm": a small network; "torch-lstm": as wide and deep as asked for, with the extra `experts`',
    ),
]
Units = Annotated[int, whole_number(1, MOST_UNITS, "how wide an expert's network is")]
Layers = Annotated[int, whole_number(1, MOST_LAYERS, "of torch-lstm: how deep the network is")]
Dropout = Annotated[
    float,
    Parameter(
        "a number from 0, below 1",
        number(lambda value: 0 <= value < 1),
        "of torch-lstm: between layers, in training",
    ),
]
Epochs = Annotated[int, whole_number(1, MOST_EPOCHS, "the passes over a patient's windows, at most")]
Alarms = Annotated[
    float,
    number_between(
        0, 1, "the share of public steps at which the student would raise an alarm: where its class becomes 1"
    ),
]
Answers = Annotated[
    str,
    one_of(
        "student",
        "step",
        "course",
        about='what is bought: "student": labels that teach one; "step", "course": one answer of the '
        "ensembles themselves",
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
