"""A study file as a form: its keys as fields, and a text in which fields were changed, comments and order kept.

What the form does not show (dictionary, hospitals, columns) stays in the text as it is. The text is the study: nothing
is known here of whether it is right, which `check_study` says.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from concilium.errors import MissingExtra, StudyError
from concilium.registry import METHODS, RELEASES, load

FIELD = "f."
"""How the names of the form's fields begin."""
MOST_FIELD = 4000


@dataclass(frozen=True)
class StudyField:
    """A key of a study file; `kind`: text, list (with commas), choice, or literal (a number, true, a list, or text)."""

    section: str
    name: str
    label: str
    kind: str = "text"
    help: str = ""
    value: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Its name in the form."""
        return f"{FIELD}{self.section}.{self.name}"


def read_study_form(text: str) -> list[StudyField]:
    """The fields of a study's text with what they hold; none where it is not TOML."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        return []
    about = document.get("study", {})
    if not isinstance(about, dict):
        return []
    return [_fill(one, document) for one in _list_fields(about.get("method", ""))]


def _list_fields(method: object) -> list[StudyField]:
    methods = tuple((name, f"{name}: {load(place).description}") for name, place in METHODS.items())
    releases = tuple((name, name) for name, one in RELEASES.items() if one.of_models)
    listed = [
        StudyField("study", "name", "Name"),
        StudyField("study", "purpose", "Purpose", help="what for, in words that stewards read"),
        StudyField("study", "method", "Methods", "list", "with commas")
        if isinstance(method, list)
        else StudyField("study", "method", "Method", "choice", options=methods),
        StudyField("study", "target", "Target", help="the column that is predicted"),
        StudyField(
            "study", "positive", "Positive value", "literal", "the value of the target that is predicted"
        ),
        StudyField("study", "query", "Patients", help="such as age >= 18 and sex = 'f'; nothing: everyone"),
        StudyField(
            "study", "attributes", "Attributes", "list", "with commas; nothing: all that hospitals share"
        ),
        StudyField(
            "study", "threshold", "Threshold", help="majority, prevalence, cost 5:1, sensitivity 0.9, youden"
        ),
        StudyField("privacy", "release", "Release", "choice", options=(("", "the method's own"), *releases)),
        StudyField("privacy", "epsilon", "Epsilon", "literal", "of what is private"),
        StudyField(
            "evaluate", "holdout", "Held-out share", "literal", "of each hospital's patients, such as 0.3"
        ),
        StudyField("evaluate", "leave_out", "Leave out", help="site, or bands of hospitals such as band:10"),
        StudyField("evaluate", "since", "Held out since", help="a day, such as 2026-01-31"),
        StudyField("evaluate", "subgroups", "Subgroups", "list", "columns, with commas"),
    ]
    if isinstance(method, str) and method in METHODS:
        for one in load(METHODS[method]).parameters().values():
            if not one.parameter.section:
                default = "" if one.default in (None, "", ()) else f"; {_write(one.default)} unless said"
                about = one.parameter.about.replace("None: ", "without it: ")
                listed.append(StudyField(method, one.name, one.name, "literal", f"{about}{default}"))
    return listed


def _fill(field: StudyField, document: Mapping[str, Any]) -> StudyField:
    section = document.get(field.section, {})
    value = section.get(field.name) if isinstance(section, dict) else None
    if value is None:
        return field
    if field.kind == "list" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        shown = ", ".join(value)
    elif field.kind in ("text", "choice") and isinstance(value, str):
        shown = value
    else:
        shown = _write(value)
    options = field.options
    if field.kind == "choice" and shown not in dict(options):
        options = (*options, (shown, shown))
    return StudyField(field.section, field.name, field.label, field.kind, field.help, shown, options)


def _write(value: Any) -> str:
    """A value as a person would write it in a field: text without quotes, unless it would be read as something else."""
    if isinstance(value, str):
        return value if _read(value) == value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_write_item(one) for one in value) + "]"
    return str(value)


def _write_item(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _write(value)


def _read(text: str) -> Any:
    """What is written in a field that takes anything: a number, true or false, a list; text otherwise."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return document["value"] if set(document) == {"value"} else text


def change_text(text: str, sent: Mapping[str, str]) -> str:
    """A study's text with what a form says otherwise than it; StudyError where the text has no form."""
    try:
        import tomlkit
    except ImportError:
        raise MissingExtra("web", "the console") from None
    fields = read_study_form(text)
    if not fields:
        raise StudyError("this text has no form: it is not TOML; change it as text")
    document: Any = tomlkit.parse(text)
    method = sent.get(f"{FIELD}study.method", "").strip()
    for field in fields:
        if field.key not in sent:
            continue
        new = sent[field.key].replace("\r\n", "\n").strip()
        if len(new) > MOST_FIELD:
            raise StudyError(f"{field.label}: at most {MOST_FIELD:,} characters")
        if new == field.value.strip() or (field.section in METHODS and field.section != method):
            continue
        section = document.get(field.section)
        if not new:
            if isinstance(section, dict):
                section.pop(field.name, None)
                if not section:
                    document.pop(field.section)
        else:
            if section is None:
                section = document[field.section] = tomlkit.table()
            section[field.name] = _take(field, new)
    for other in METHODS:  # a section of a method that is not the study's any more
        if method in METHODS and other != method and other in document:
            document.pop(other)
    return str(tomlkit.dumps(document))


def _take(field: StudyField, text: str) -> Any:
    if field.kind == "list":
        return [part.strip() for part in text.split(",") if part.strip()]
    return _read(text) if field.kind == "literal" else text
