"""Sections of a TOML file as structs: the first key that is unknown, missing or of the wrong kind is one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from concilium.errors import StudyError, nearest

S = TypeVar("S", bound=msgspec.Struct)


def read_section(path: Path, name: str, document: Mapping[str, Any], kind: type[S]) -> S:
    """One section as its struct; without the section, its defaults."""
    return fill(path, f"[{name}]", document.get(name, {}), kind)


def fill(path: Path, title: str, given: object, kind: type[S]) -> S:
    """A table of keys as a struct; StudyError for the first key unknown, missing or of the wrong kind."""
    if not isinstance(given, dict):
        raise StudyError(f"{path}: {title} must be a section of its own with keys, not {shown(given)}")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in given:
        if key not in fields:
            raise StudyError(f"{path}: {title} has no key {key!r}{nearest(key, fields)}")
    for key, field in fields.items():
        if field.required and key not in given:
            raise StudyError(f"{path}: {title} needs the key {key!r}")
    values = {key: read_value(path, title, key, value, fields[key].type) for key, value in given.items()}
    return kind(**values)


def read_columns(path: Path, name: str, document: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """A section whose keys are columns of the hospitals' tables."""
    given = document.get(name, {})
    if not isinstance(given, dict):
        raise StudyError(f"{path}: [{name}] must be a section of its own with keys, not {shown(given)}")
    return {column: read_value(path, f"[{name}]", column, value, kind) for column, value in given.items()}


def read_value(path: Path, title: str, key: str, value: object, kind: Any) -> Any:
    try:
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise msgspec.ValidationError
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise StudyError(f"{path}: {title} {key} must be {wanted(kind)}; got {shown(value)}") from None


def wanted(kind: Any) -> str:
    """What a key takes, in words."""
    if get_origin(kind) is Annotated:
        return str(next(note.description for note in get_args(kind) if isinstance(note, Meta)))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))
    return wanted(get_args(kind)[0])


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
