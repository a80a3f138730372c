"""The patients of an audit: who the model learned from, who not, at which hospital each was, and what the model says of
each as an attacker sees it (a loss and a signal).

Of classes the loss is 1 minus the share that the model gives to what happened, and the signal the log odds of that
share; of a number they are the squared error and the prediction itself. A patient with many windows has the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.evaluation.alone import pool
from concilium.evaluation.leave_out import is_set_apart
from concilium.models.method import Method
from concilium.records.columns import Coded, label
from concilium.records.patients import Patients
from concilium.records.series import Series
from concilium.records.table import Records

Hospitals = Mapping[str, Patients]
NUMBER = "(number of the patient)"


@dataclass(frozen=True)
class AuditedPatients:
    """`member` is true for those whom the model learned from; `homes` names the hospital of each."""

    patients: Patients
    member: NDArray[np.bool_]
    homes: Sequence[str]

    @classmethod
    def join(cls, members: Hospitals, others: Hospitals) -> AuditedPatients:
        """Members and others, each by hospital."""
        for group, name in ((members, "members"), (others, "others")):
            if not sum(map(len, group.values())):
                raise ModelError(f"there is nobody among the {name}: an audit needs members and others")
        groups = [*members.items(), *others.items()]
        sizes = [len(patients) for _, patients in groups]
        inside = sum(len(patients) for patients in members.values())
        return cls(
            _join_parts([patients for _, patients in groups]),
            np.arange(sum(sizes)) < inside,
            [home for (home, _), size in zip(groups, sizes, strict=True) for _ in range(size)],
        )

    def __len__(self) -> int:
        return len(self.patients)

    def deal(self, hospitals: int, seed: int) -> AuditedPatients:
        """The same patients at so many hospitals, dealt at random."""
        order = np.random.default_rng(seed).permutation(len(self)) % hospitals
        return AuditedPatients(self.patients, self.member, [f"site {place + 1}" for place in order])

    def count_doubles(self) -> int:
        """How many of the others have a row that is, cell for cell, the row of a member."""
        table = self.patients.table
        if table is None:
            return 0
        names = [name for name in table.names if name != self.patients.by]
        columns = [np.unique(_as_numbers(table, name), return_inverse=True)[1] for name in names]
        rows = np.unique(np.column_stack(columns), axis=0, return_inverse=True)[1].ravel()
        return int(np.isin(rows[~self.member], rows[self.member]).sum())


def _as_numbers(table: Records, name: str) -> NDArray[Any]:
    column = table[name]
    return column.codes if isinstance(column, Coded) else np.nan_to_num(column.numbers, nan=-np.inf)


def _join_parts(groups: Sequence[Patients]) -> Patients:
    """Tables and series of several groups one after the other, with ids of their own where both are there."""
    parts: dict[str, Any] = {}
    tables = [group.table for group in groups if group.table is not None]
    series = [group.series for group in groups if isinstance(group.series, Series)]
    ids = range(1, sum(map(len, groups)) + 1)
    for name, found in (("table", tables), ("series", series)):
        if found and len(found) < len(groups):
            raise ModelError(f"some of the patients have {name} and some have not: give the same for all")
    if series:
        parts["series"] = _join_series(series, list(ids))
    if tables:
        dropped = [
            table
            if group.by is None
            else Records({name: table[name] for name in table.names if name != group.by})
            for group, table in zip(groups, tables, strict=True)
        ]
        joined = pool({str(number): table for number, table in enumerate(dropped)})
        if series:
            numbers = Coded(np.arange(1, len(joined) + 1, dtype=np.uint32), tuple(ids), stated=True)
            joined = Records({NUMBER: numbers, **{name: joined[name] for name in joined.names}})
            parts["by"] = NUMBER
        parts["table"] = joined
    return Patients(**parts)


def _join_series(series: Sequence[Series], ids: Sequence[int]) -> Series:
    """Stays one after the other, with the variables that all have."""
    first, *others = series
    if any(other.step_hours != first.step_hours for other in others):
        raise ModelError("the series of members and others have different steps: read them with the same")
    names = [name for name in first.names if all(name in other for other in others)]
    return Series.from_stays(
        {name: np.concatenate([one.stays[name] for one in series]) for name in names},
        np.concatenate([one.lengths for one in series]),
        step=first.step,
        ids=ids,
        stated=all(one.stated for one in series),
        static=first.static,
    )


Floats = NDArray[np.float64]

# Shares nearer to 0 and 1 than this are alike: log odds stay finite where a leaf is pure.
LEAST_SHARE = 1e-4


@dataclass(frozen=True)
class _Responses:
    """`rows` are the patients of the population whom the model is about and whose outcome is known, in order; a lower
    loss is a better prediction."""

    rows: NDArray[np.intp]
    losses: Floats
    signals: Floats

    def __len__(self) -> int:
        return len(self.rows)


def observe(model: Method[Any], patients: Patients) -> _Responses:
    """What a model says of these patients; ModelError where there is nobody whom it is about."""
    outcomes = model.find_outcomes(patients)
    if not len(outcomes.rows):
        raise ModelError(
            "among these patients there is none whom the model is about and whose outcome is known"
        )
    if model.classes_:
        shares = share_of_truth(model, outcomes.asked, list(outcomes.truth))
        kept = np.clip(shares, LEAST_SHARE, 1 - LEAST_SHARE)
        losses, signals = 1 - shares, np.log(kept / (1 - kept))
    else:
        signals = np.asarray(model.predict(outcomes.asked), dtype=np.float64)
        losses = (signals - np.array([float(value) for value in outcomes.truth])) ** 2
    rows, place = np.unique(outcomes.rows, return_inverse=True)
    times = np.bincount(place)
    return _Responses(rows, np.bincount(place, losses) / times, np.bincount(place, signals) / times)


def share_of_truth(model: Method[Any], asked: Any, truth: list[Any]) -> Floats:
    """For each patient the share that the model gives to what happened; none where it never met that class."""
    classes = model.classes_
    columns = {label(value): column for column, value in enumerate(classes)}
    others = 0 if is_set_apart(classes) else -1
    true = np.array([columns.get(label(value), others) for value in truth], dtype=np.intp)
    shares = np.asarray(model.predict_proba(asked), dtype=np.float64)
    return np.where(true < 0, 0.0, shares[np.arange(len(true)), np.maximum(true, 0)])
