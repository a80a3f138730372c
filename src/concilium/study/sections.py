"""The sections of a study file as structs (docs/studies.md explains their keys), and how a section is read.

The first key that is unknown, missing or of the wrong kind is one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from concilium.errors import StudyError, nearest

S = TypeVar("S", bound=msgspec.Struct)

Value = str | int | float | bool  # as in records.columns, which is too heavy to load for reading a study
HELD_BACK = ("leave_out", "holdout", "file")

Text = Annotated[str, Meta(min_length=1, description="text")]
Amount = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0")]
Share = Annotated[float, Meta(gt=0, lt=1, description="a number between 0 and 1")]
LeaveOut = Annotated[str, Meta(pattern="^(site|band:[1-9][0-9]*)$", description='"site" or, say, "band:10"')]
Purpose = Annotated[str, Meta(max_length=2000, description="a text of at most 2000 characters")]
Days = Annotated[int, Meta(ge=1, le=366, description="a whole number from 1 to 366")]
Patience = Annotated[float, Meta(ge=0, le=1e9, description="a number of seconds from 0")]
Names = Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of columns")]
Gateways = Annotated[int, Meta(ge=1, le=1000, description="a whole number from 1 to 1000")]
Stated = Annotated[bool, Meta(description="true or false")]
Kind = Literal["code", "number"]
Map = Annotated[
    str | dict[str, Any],
    Meta(description='the file of a hospital\'s map, or its keys, such as { missing = ["?"] }'),
]
Listed = Annotated[
    tuple[str | int | float | bool, ...],
    Meta(min_length=1, description="a list of values, such as ['f', 'm']"),
]
Exact = Annotated[str, Meta(min_length=1, description='a number in quotes, such as "1e-6"')]
Edges = Annotated[
    tuple[float, ...], Meta(min_length=1, description="a list of numbers, each larger than the one before")
]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """[study]: what is asked."""

    name: Text
    method: Text
    target: Text = ""
    outcome: Text | None = None
    query: Annotated[str, Meta(description="text")] = ""
    attributes: Names | None = None
    positive: Annotated[str | int | float | bool, Meta(description="a value of the target")] | None = None
    decision: Text | None = None
    purpose: Purpose = ""


class Privacy(msgspec.Struct, frozen=True, kw_only=True):
    """[privacy]: how answers leave a hospital, and the budget of what is private."""

    release: Text | None = None
    epsilon: Amount | None = None
    delta: Exact = "1e-6"


class SplitTable(msgspec.Struct, frozen=True, kw_only=True):
    """[sites]: one table split by a column, or series or rules dealt to so many gateways, a simulation."""

    records: Text | None = None
    by: Text | None = None
    table: Text | None = None
    series: Text | None = None
    rules: Text | None = None
    gateways: Gateways | None = None
    policy: Text | None = None
    map: Map | None = None
    one_row_per_patient: Stated = False


class Hospital(msgspec.Struct, frozen=True, kw_only=True):
    """[[site]]: one hospital with its own table, or with series or rules of its patients."""

    name: Text
    records: Text | None = None
    table: Text | None = None
    series: Text | None = None
    rules: Text | None = None
    policy: Text | None = None
    ledger: Text | None = None
    map: Map | None = None
    patient: Text | None = None
    one_row_per_patient: Stated = False

    @property
    def source(self) -> str:
        """The file that tells it from others."""
        return self.records or self.series or self.rules or ""


class CourseColumns(msgspec.Struct, frozen=True, kw_only=True):
    """[series]: the columns of files of series or rules; those that are not named are recognised by their names."""

    patient: Text | None = None
    time: Text | None = None
    time_unit: Literal["seconds", "minutes", "hours", "days"] | None = None
    origin: Text | None = None
    variable: Text | None = None
    value: Text | None = None
    variables: Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of variables")] | None = (
        None
    )
    rule: Text = "rule"


class HouseRules(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: who asks, how long it waits, and what a lost hospital means."""

    timeout: Amount = 60.0
    on_loss: Literal["continue", "stop"] = "continue"
    identity: Text | None = None
    days: Days = 30
    patience: Patience = 0.0
    check_tables: Annotated[bool, Meta(description="true or false")] = False


class Evaluate(msgspec.Struct, frozen=True, kw_only=True):
    """[evaluate]: who is held back from learning, so that the model can be measured on them."""

    leave_out: LeaveOut | None = None
    holdout: Share | None = None
    file: Text | None = None
    compare: Annotated[bool, Meta(description="true or false")] = False

    @property
    def bands(self) -> int | None:
        """How many groups of sites take turns being left out; None when every site is its own."""
        return int(self.leave_out.removeprefix("band:")) if self.leave_out not in (None, "site") else None


def read_section(path: Path, name: str, document: Mapping[str, Any], kind: type[S]) -> S:
    """One section as its struct; without the section, its defaults."""
    return fill(path, f"[{name}]", document.get(name, {}), kind)


def require_section(path: Path, title: str, section: object) -> dict[str, Any]:
    """The section, which must be one with keys."""
    if not isinstance(section, dict):
        raise StudyError(f"{path}: {title} must be a section of its own with keys, not {shown(section)}")
    return section


def fill(path: Path, title: str, value: object, kind: type[S]) -> S:
    """A table of keys as a struct; StudyError for the first key unknown, missing or of the wrong kind."""
    section = require_section(path, title, value)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in section:
        if key not in fields:
            raise StudyError(f"{path}: {title} has no key {key!r}{nearest(key, fields)}")
    for key, field in fields.items():
        if field.required and key not in section:
            raise StudyError(f"{path}: {title} needs the key {key!r}")
    values = {key: read_value(path, title, key, value, fields[key].type) for key, value in section.items()}
    return kind(**values)


def read_columns(path: Path, name: str, document: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """A section whose keys are columns of the hospitals' tables."""
    section = require_section(path, f"[{name}]", document.get(name, {}))
    return {column: read_value(path, f"[{name}]", column, value, kind) for column, value in section.items()}


def read_value(path: Path, title: str, key: str, value: object, kind: Any) -> Any:
    try:
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise msgspec.ValidationError
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise StudyError(f"{path}: {title} {key} must be {describe_kind(kind)}; got {shown(value)}") from None


def describe_kind(kind: Any) -> str:
    """What a key takes, in words."""
    if get_origin(kind) is Annotated:
        return str(next(note.description for note in get_args(kind) if isinstance(note, Meta)))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))
    return describe_kind(get_args(kind)[0])


def shown(value: object) -> str:
    """A value of the file as the user wrote it, more or less, and not at length."""
    text = (
        f'"{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else repr(value)
    )
    return text if len(text) <= 60 else text[:57] + "..."
