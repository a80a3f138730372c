"""What a study file has to do with its method: all of it follows from how the method declares its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.errors import StudyError, nearest
from concilium.registry import METHODS, load
from concilium.study.sections import require_section, shown

if TYPE_CHECKING:
    from concilium.models.method import Method


def split_by_method(path: Path, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A study file as one document for each method that it lists, each without the sections of the others."""
    about = document["study"]
    named = about.get("method") if isinstance(about, dict) else None
    if not isinstance(named, list):
        return [dict(document)]
    if not named or not all(isinstance(one, str) for one in named) or len(set(named)) < len(named):
        raise StudyError(
            f'{path}: [study] method must be text, or a list of different methods such as ["tree", "rulefit"]; '
            f"got {shown(named)}"
        )
    return [
        {
            **{name: section for name, section in document.items() if name == one or name not in named},
            "study": {**about, "method": one},
        }
        for one in named
    ]


def find_method(path: Path, name: str, document: Mapping[str, Any]) -> type[Method[Any]]:
    """The study's method, with no other's section beside its own."""
    if name not in METHODS:
        problem = f"there is no method {name!r}{nearest(name, METHODS)}"
        raise StudyError(f"{path}: [study] {problem} (available: {', '.join(METHODS)})")
    for other in METHODS:
        if other in document and other != name:
            raise StudyError(
                f"{path}: [{other}] is for method = {other!r}; the keys of this study's method go under [{name}]"
            )
    method: type[Method[Any]] = load(METHODS[name])
    return method


def read_parameters(path: Path, method: type[Method[Any]], document: Mapping[str, Any]) -> dict[str, Any]:
    """The section named after the method, whose keys are its own parameters; StudyError for the first that is not."""
    title = f"[{method.method}]"
    section = require_section(path, title, document.get(method.method, {}))
    own = {one.name: one for one in method.parameters().values() if not one.parameter.section}
    for key, value in section.items():
        if key not in own:
            raise StudyError(f"{path}: {title} has no key {key!r}{nearest(key, own)}")
        try:
            own[key].read(value)
        except ValueError:
            takes = as_in_toml(own[key].parameter.takes)
            raise StudyError(f"{path}: {title} {key} must be {takes}; got {shown(value)}") from None
    return dict(section)


def tabulate_parameters(method: type[Method[Any]]) -> str:
    """The section named after a method as a table for docs/studies.md: key, what it takes, default, what it means."""
    rows = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for one in method.parameters().values():
        if not one.parameter.section:
            default = "–" if one.default is None else f"`{shown(one.default)}`"
            takes, about = (
                as_in_toml(one.parameter.takes),
                one.parameter.about.replace("None: ", "without it: "),
            )
            rows.append(f"| `{one.name}` | {takes} | {default} | {about} |")
    return "\n".join(rows)


def as_in_toml(takes: str) -> str:
    """What a parameter takes, as a study file writes it."""
    return takes.replace("'", '"').replace("True or False", "true or false")
