"""What experts learn, as a study states it and every question repeats it: variables with public ranges, the outcome and
how severe it is, windows, and the network. All of it is public; nothing here depends on a patient.

docs/methods.md, section 8.1.
"""

from __future__ import annotations

import hashlib

import msgspec

from concilium.errors import MessageError, RecordsError
from concilium.records.time_grid import count_steps

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


class ExpertTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`target` is the variable of 0 and 1 that says when the outcome is there; its severity rises to `bound` in the
    `lead` before. Windows have this length and overlap by half; values are carried forward for `carry` at most."""

    target: str
    variables: tuple[PublicRange, ...]
    step: str = "1h"
    window: str = "24h"
    carry: str = "24h"
    lead: str = "12h"
    bound: int = 4
    network: NetworkSettings = NetworkSettings()

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


def check_task(task: ExpertTask) -> None:
    """MessageError unless a task is of bearable size and means something."""
    network = task.network
    try:
        steps = task.steps
        count_steps(task.carry, task.step, "carry")
        count_steps(task.lead, task.step, "lead")
    except RecordsError as error:
        raise MessageError(str(error)) from None
    fits = (
        1 <= len(task.variables) <= MOST_VARIABLES
        and list(task.names) == sorted(set(task.names))
        and task.target not in task.names
        and all(-1e30 < one.low < one.high < 1e30 for one in task.variables)
        and 1 <= steps <= MOST_STEPS
        and 1 <= task.bound <= MOST_BOUND
        and 1 <= network.units <= MOST_UNITS
        and 1 <= network.layers <= MOST_LAYERS
        and 1 <= network.epochs <= MOST_EPOCHS
        and network.batch >= 1
        and network.patience >= 1
        and 0 < network.rate < 1
        and 0 < network.clip < 1e6
        and 0 <= network.dropout < 1
        and 0 <= network.least_gain < 1
        and 0 <= network.shrink < 1
        and 0 <= network.seed < 2**63
    )
    if not fits:
        raise MessageError(
            f"experts learn from 1 to {MOST_VARIABLES} variables in order of names, each with a range and none of them "
            f"the target, in windows of 1 to {MOST_STEPS} steps, by networks of at most {MOST_UNITS} units"
        )
