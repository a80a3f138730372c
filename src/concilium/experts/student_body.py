"""What the model file of experts holds: never an expert, but the student that learned what ensembles said in noise."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import msgspec
import numpy as np

from concilium.errors import MessageError
from concilium.experts.expert_task import ExpertTask, check_task
from concilium.experts.network import NETWORKS, Weights

WIDE = 100


class StoredArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of a network, plain, in C order."""

    shape: list[int]
    values: list[float]

    def __post_init__(self) -> None:
        if math.prod(self.shape) != len(self.values) or any(size < 0 for size in self.shape):
            raise ValueError("an array of a network has as many numbers as its shape says")


class StoredStudent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sequence model (`task` says which, `weights` what it learned; it tells severity in units of `scale` from
    `center`), where its alarm is (`alarm`, `spread`), and the readable one: a RuleFit's body on these `features`."""

    task: ExpertTask
    weights: dict[str, StoredArray]
    center: float
    scale: float
    alarm: float
    spread: float
    features: list[str]
    readable: dict[str, Any] | None

    def __post_init__(self) -> None:
        try:
            check_task(self.task)
        except MessageError as error:
            raise ValueError(str(error)) from None
        numbers = [self.center, self.scale, self.alarm, self.spread]
        if self.task.network.kind not in NETWORKS or not all(map(math.isfinite, numbers)) or self.spread <= 0:
            raise ValueError("a student has a network of the list, and finite numbers")

    @property
    def arrays(self) -> Weights:
        return {
            name: np.array(one.values, dtype=np.float64).reshape(one.shape)
            for name, one in self.weights.items()
        }


class StudentBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`selection` is "unselected" or "grown"; `size` how many experts taught, as the study says or as hospitals told,
    `septic` how many of these had the outcome, where that was told; `labels` how many steps were asked about,
    `deviation` of the noise on each. `student` is None until there are public stays; `answer` is what
    ensembles said of the one stay that they were asked about."""

    target: str
    query: str
    selection: str
    size: int
    septic: int | None
    labels: int
    deviation: float
    protects: str
    student: StoredStudent | None
    answer: list[float] = msgspec.field(default_factory=list)

    @property
    def classes(self) -> list[int]:
        """Without the outcome, and with it."""
        return [0, 1]


def store(weights: Weights) -> dict[str, StoredArray]:
    """Arrays as a model file holds them; floats of 32 bits are enough, and half as long to read."""
    return {
        name: StoredArray(list(values.shape), np.float32(values).astype(np.float64).ravel().tolist())
        for name, values in weights.items()
    }


def write_student(body: StudentBody, table: str) -> str:
    """The model for terminals and logs: who taught it, at what price, and the readable student."""
    lines = [f"{body.target}: a student of {body.size} experts ({body.selection})"]
    if body.student is None:
        lines.append("no student yet: student(public) has the ensembles label public stays")
    else:
        noise = f", each with noise of deviation {body.deviation:.3g}" if body.deviation else ""
        lines.append(f"taught by {body.labels} labels of public stays{noise}")
        network = body.student.task.network
        rules = (
            f"rules on {len(body.student.features)} window features"
            if table
            else "none, for want of a cutoff"
        )
        lines.append(
            f"network: {network.kind}, {network.units} units, {len(body.student.task.variables)} variables, windows of "
            f"{body.student.task.window}; readable: {rules}"
        )
    return "\n".join([*lines, *([table] if table else []), *textwrap.wrap(body.protects, WIDE)])
