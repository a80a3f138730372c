"""Which column of a table of measurements is the patient, the time, the variable and the value.

Columns that are named by the caller are taken; the others are recognised by their names alone, never by what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.blocks import list_blocks
from concilium.records.columns import Column
from concilium.records.sources import name_row

USUAL_NAMES = {
    "patient": (
        "patient patientid patientnumber patientunitstayid person personid subject subjectid stay stayid icustayid "
        "recordid id pid"
    ),
    "time": (
        "time timestamp datetime date moment charttime observationtime hour hours minute minutes second seconds day "
        "days iculos offset"
    ),
    "variable": "variable parameter item itemid label measurement signal concept conceptid",
    "value": "value valuenum valueasnumber result reading",
    "code": "code icd icdcode icd9code icd10code icd9 icd10 diagnosis diagnosiscode dx dxcode conditioncode",
}
"""How the columns are usually called, without blanks, underscores and capitals."""

UNITS_BY_NAME = {
    "second": "seconds",
    "minute": "minutes",
    "hour": "hours",
    "iculos": "hours",
    "day": "days",
}


@dataclass(frozen=True)
class Roles:
    """What the columns of a table of measurements are: long where there are `variable` and `value`, otherwise wide."""

    patient: str
    time: str
    variable: str | None
    value: str | None
    measured: tuple[str, ...]
    origin: str | None
    static: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurements:
    """The columns of one table, and how its rows are called in errors."""

    source: Any
    name: str
    roles: Roles
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def find(self, test: Callable[[slice], NDArray[np.bool_]]) -> NDArray[np.integer]:
        """The rows for which a test of each block is true."""
        blocks = list_blocks(len(self))
        return np.concatenate([np.flatnonzero(test(block)) + block.start for block in blocks])

    def refuse(self, problem: str, places: NDArray[np.integer], advice: str = "") -> RecordsError:
        """An error that says how many rows have a problem, and where the first is."""
        first = name_row(self.source, int(places.min()))
        where = f"in {first}" if len(places) == 1 else f"in {len(places)} rows, first in {first}"
        return RecordsError(f"{self.name}: {problem} {where}{advice}")


@dataclass(frozen=True)
class ColumnChoice:
    """What the caller says of the columns; None is left to recognition."""

    patient: str | None = None
    time: str | None = None
    variable: str | None = None
    value: str | None = None
    variables: tuple[str, ...] | None = None
    static: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    origin: str | None = None

    def find(self, names: Sequence[str], source: str) -> Roles:
        """The roles of these columns, or an error that says which one is not there or not clear."""
        patient = find_column("patient", self.patient, names, source)
        time = find_column("time", self.time, names, source)
        if self.origin is not None:
            _check_there("origin", self.origin, names, source)
        for name in self.leave_out:
            _check_there("leave_out", name, names, source)
        self._check_static(source)
        variable, value = self._find_long(names, source)
        taken = {
            "patient": patient,
            "time": time,
            "variable": variable,
            "value": value,
            "origin": self.origin,
        }
        role_of: dict[str, str] = {}
        for role, column in taken.items():
            if column in role_of:
                raise RecordsError(
                    f"{source}: column {column!r} cannot be both the {role_of[column]} and the {role}"
                )
            if column is not None:
                role_of[column] = role
        measured = self._find_measured(names, role_of, source) if variable is None else ()
        return Roles(patient, time, variable, value, measured, self.origin, self.static)

    def _find_measured(
        self, names: Sequence[str], role_of: Mapping[str, str], source: str
    ) -> tuple[str, ...]:
        """The columns of measurements of a wide table."""
        rest = tuple(name for name in names if name not in role_of and name not in self.leave_out)
        measured = rest if self.variables is None else self.variables
        for name in self.static:
            _check_there("static", name, names, source)
        for name in measured:
            _check_there("variables", name, names, source)
        measured = tuple(dict.fromkeys((*measured, *self.static)))
        for name in measured:
            if name in role_of:
                raise RecordsError(f"{source}: column {name!r} is the {role_of[name]}, not a variable")
        if not measured:
            taken = " and ".join(repr(name) for name, role in role_of.items() if role in ("patient", "time"))
            raise RecordsError(f"{source}: there is no column of measurements beside {taken}")
        return measured

    def _check_static(self, source: str) -> None:
        for name in self.static:
            other = "variables" if name in (self.variables or ()) else "leave_out"
            if name in (self.variables or ()) or name in self.leave_out:
                raise RecordsError(
                    f"{source}: {name!r} is under static and under {other}; name it once: a static column is read, and "
                    "is no variable of rules over time"
                )

    @property
    def stated(self) -> tuple[str, ...] | None:
        """All that is to be read of a long table, if that is stated."""
        return None if self.variables is None else (*self.variables, *self.static)

    def _find_long(self, names: Sequence[str], source: str) -> tuple[str | None, str | None]:
        """The columns of variable and value, or None for both where the table is a wide one."""
        if self.variable is None and self.value is None:
            candidates = {role: _recognise(role, names) for role in ("variable", "value")}
            if not all(candidates.values()):
                return None, None
        return (
            find_column("variable", self.variable, names, source),
            find_column("value", self.value, names, source),
        )


def tell_unit(column: str) -> str:
    """The unit of times that are numbers, as the name of their column says it: hours unless it says otherwise."""
    return UNITS_BY_NAME.get(_plain(column).removesuffix("s"), "hours")


def find_column(role: str, name: str | None, names: Sequence[str], source: str) -> str:
    """The column that has a role: the one that is named, or else the one that is usually called so."""
    if name is not None:
        return _check_there(role, name, names, source)
    candidates = _recognise(role, names)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise RecordsError(
            f"{source}: {' and '.join(map(repr, candidates))} could both be the {role}; say which with {role}=..."
        )
    raise RecordsError(
        f"{source}: no column is recognised as the {role}; say which with {role}=..., one of {_list(names)}"
    )


def _recognise(role: str, names: Sequence[str]) -> list[str]:
    """The columns that may be meant; the plain name of the role leaves no doubt."""
    if role in names:
        return [role]
    usual = USUAL_NAMES[role].split()
    return [name for name in names if _plain(name) in usual]


def _check_there(role: str, name: str, names: Sequence[str], source: str) -> str:
    if name not in names:
        hint = nearest(str(name), names) or f"; there are {_list(names)}"
        raise RecordsError(f"{source}: {role} names a column {name!r} that is not there{hint}")
    return name


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")


def _plain(name: str) -> str:
    return re.sub(r"[\s_\-]", "", name).casefold()
