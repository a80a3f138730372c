"""Windows of patients' stays, each with the outcome that it is to tell (docs/methods.md, section 6.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import RecordsError
from concilium.records.series import Series
from concilium.records.time_grid import count_steps


@dataclass(frozen=True, eq=False)
class LabelledWindows:
    """A series whose "patients" are windows; `labels` says which are positive, `owners` whose (a row of the series that
    they were cut from)."""

    series: Series
    labels: NDArray[np.bool_]
    owners: NDArray[np.intp]

    def __post_init__(self) -> None:
        labels, owners = np.asarray(self.labels), np.asarray(self.owners)
        shape = (len(self.series),)
        if labels.shape != shape or labels.dtype != np.bool_:
            raise RecordsError(f"labels are true or false, one for each of the {len(self.series)} windows")
        if owners.shape != shape or not np.issubdtype(owners.dtype, np.integer) or (owners < 0).any():
            raise RecordsError(
                f"owners are whole numbers from 0, one for each of the {len(self.series)} windows"
            )
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "owners", owners)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> LabelledWindows:
        return LabelledWindows(self.series.take(rows), self.labels[rows], self.owners[rows])


def cut_windows(
    series: Series, outcome: str | ArrayLike, length: int | str, every: int | str = 1
) -> LabelledWindows:
    """All windows of this length, one `every` so many steps, back from the end of each stay.

    `outcome` names the variable of 0 and 1 whose value in a window's last step is its label, and which is left out of
    the windows; or it has a label for each patient, which all windows of the patient get. Windows whose label is
    missing are left out, as are stays that are shorter than a window; where nothing is left, that is an error.
    """
    steps, stride = count_steps(length, series.step, "length"), count_steps(every, series.step, "every")
    if steps < 1 or stride < 1:
        raise RecordsError(
            f"windows have at least one step and are at least one apart; got {length!r}, {every!r}"
        )
    longest = int(series.lengths.max(initial=0))
    if longest < steps:
        raise RecordsError(f"no stay is as long as a window of {steps} steps; the longest has {longest}")
    counts = np.where(series.lengths >= steps, (series.lengths - steps) // stride + 1, 0)
    owners = np.repeat(np.arange(len(series)), counts)
    nth = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = series.lengths[owners] - nth * stride
    if isinstance(outcome, str):
        series.check([outcome])
        labels = series.stays[outcome][series.starts[:-1][owners] + ends - 1]
        others = [name for name in series.names if name != outcome]
        if not others:
            raise RecordsError(f"there is no variable beside the outcome {outcome!r}")
        series = series.choose(others)
    else:
        try:
            each = np.asarray(outcome, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise RecordsError(f"an outcome is 0 or 1, or missing (NaN): {error}") from None
        if each.shape != (len(series),):
            raise RecordsError(f"the outcome has one label for each of the {len(series)} patients")
        labels = each[owners]
    odd = ~np.isnan(labels) & (labels != 0) & (labels != 1)
    if odd.any():
        raise RecordsError(f"an outcome is 0 or 1, or missing; got {labels[odd][0]}")
    labelled = ~np.isnan(labels)
    if not labelled.any():
        raise RecordsError("the outcome is missing in every window")
    owners, ends, labels = owners[labelled], ends[labelled], labels[labelled]
    return LabelledWindows(series.cut(ends, steps, owners), labels == 1, owners)
