"""The sections of a study file as structs (docs/studies.md explains their keys), and how a section is read.

The first key that is unknown, missing or of the wrong kind is one sentence. What a study file says of its method
follows from how the method declares its parameters.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from concilium.errors import StudyError, nearest
from concilium.registry import METHODS, RELEASES, SHARINGS, load

if TYPE_CHECKING:
    from concilium.codes.sharing_parameters import SharingParameters
    from concilium.models.method import Method


S = TypeVar("S", bound=msgspec.Struct)

Value = str | int | float | bool  # as in records.columns, which is too heavy to load for reading a study
HELD_BACK = ("leave_out", "holdout", "since", "file")

Text = Annotated[str, Meta(min_length=1, description="text")]
Amount = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0")]
Share = Annotated[float, Meta(gt=0, lt=1, description="a number between 0 and 1")]
LeaveOut = Annotated[str, Meta(pattern="^(site|band:[1-9][0-9]*)$", description='"site" or, say, "band:10"')]
Purpose = Annotated[str, Meta(max_length=2000, description="a text of at most 2000 characters")]
Days = Annotated[int, Meta(ge=1, le=366, description="a whole number from 1 to 366")]
Patience = Annotated[float, Meta(ge=0, le=1e9, description="a number of seconds from 0")]
Names = Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of columns")]
Band = Annotated[tuple[int, int], Meta(description="two numbers of patients, such as [100, 999]")]
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
    time: Text | None = None
    query: Annotated[str, Meta(description="text")] = ""
    attributes: Names | None = None
    positive: Annotated[str | int | float | bool, Meta(description="a value of the target")] | None = None
    threshold: Text | None = None
    on_misfit: Text | None = None
    encounters: Annotated[int, Meta(ge=1, le=100, description="a whole number from 1 to 100")] | None = None
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
    encounters: Stated = False
    region: Text | None = None
    declares: Names | None = None
    size: Band | None = None

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
    static: Annotated[tuple[Text, ...], Meta(description="a list of columns")] | None = None
    rule: Text = "rule"
    by: Text | None = None
    leave_out: Annotated[tuple[Text, ...], Meta(description="a list of columns")] = ()
    missing: Annotated[tuple[str | int | float, ...], Meta(description="a list of values")] = ()
    step: Text | None = None
    windows: Text | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """What it states of the method: its step, the length of its windows, and which columns are static."""
        stated = {"step": self.step, "window": self.windows, "static": self.static}
        return {name: value for name, value in stated.items() if value is not None}


class HouseRules(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: who asks, how long it waits, and what a lost hospital means."""

    timeout: Amount = 180.0
    on_loss: Literal["continue", "stop"] = "continue"
    identity: Text | None = None
    days: Days = 30
    patience: Patience = 0.0
    check_tables: Annotated[bool, Meta(description="true or false")] = False


class Evaluate(msgspec.Struct, frozen=True, kw_only=True):
    """[evaluate]: who is held back from learning, so that the model can be measured on them."""

    leave_out: LeaveOut | None = None
    holdout: Share | None = None
    since: (
        Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$", description='a day such as "2025-01-31"')] | None
    ) = None
    date: Text | None = None
    file: Text | None = None
    epsilon: Amount | None = None
    subgroups: Names | None = None
    simulation: Stated | None = None
    compare: Annotated[bool, Meta(description="true or false")] = False
    sensitivity: Share = 0.8
    onset_after: Text | None = None

    @property
    def bands(self) -> int | None:
        """How many groups of sites take turns being left out; None when every site is its own."""
        return int(self.leave_out.removeprefix("band:")) if self.leave_out not in (None, "site") else None


class DonorRules(msgspec.Struct, frozen=True, kw_only=True):
    """[donors]: who may lend a model, and who borrows one (`concilium donors`)."""

    accuracy: Share = 0.95
    borrowers: Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of hospitals")] | None = (
        None
    )
    blocks: Annotated[int, Meta(ge=2, le=1000, description="a whole number from 2 to 1000")] | None = None


ROWS = "one_row_per_patient"


def read_document(path: Path, text: str | None = None) -> tuple[bytes, dict[str, Any]]:
    """A study file, as it is (or as `text` would have it) and as a document; StudyError where it is not TOML.

    The short forms are written out: without a name the study is called after its file, and hospitals listed under
    [sites] (`north = "north.csv"`) become one [[site]] each. `one_row_per_patient` there holds for all of them.
    """
    try:
        content = path.read_bytes() if text is None else text.encode()
        document = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{path}: is not a TOML file: {error}") from None
    if isinstance(about := document.get("study"), dict):
        document["study"] = {"name": path.stem, **about}
    _write_sites_out(path, document, about)
    return content, document


def _write_sites_out(path: Path, document: dict[str, Any], about: object) -> None:
    """One [[site]] for each hospital that [sites] lists."""
    sites: Any = document.get("sites")
    listed = {name: sites[name] for name in sites if name != ROWS} if isinstance(sites, dict) else {}
    named: Any = document.get("site", [])
    if isinstance(sites, dict) and (listed or named) and not {*listed} & {*SplitTable.__struct_fields__}:
        if not all(isinstance(source, str) for source in listed.values()):
            raise StudyError(f'{path}: [sites] must name one file per hospital, such as north = "north.csv"')
        stated = {ROWS: sites[ROWS]} if ROWS in sites else {}
        if isinstance(named, list) and all(isinstance(site, dict) for site in named):
            document["site"] = [{**stated, **site} for site in [*named, *_write_out(listed, about)]]
            del document["sites"]


def _write_out(listed: Mapping[str, str], about: object) -> list[dict[str, str]]:
    """One [[site]] for each hospital of a list; what its file holds follows from the study's first method."""
    method = about.get("method") if isinstance(about, dict) else None
    first = method[0] if isinstance(method, list) and method else method
    name = first.split()[0] if isinstance(first, str) and first.strip() else ""
    found = load(METHODS[name]) if name in METHODS else None
    key = "series" if found is not None and found.reads_courses else "records"
    return [{"name": name, key: source} for name, source in listed.items()]


def shares_entries(document: Mapping[str, Any]) -> bool:
    """Whether a study file shares patients' own entries, and learns no model."""
    about = document.get("study")
    method = about.get("method") if isinstance(about, dict) else None
    return isinstance(method, str) and method in SHARINGS


HOMES: dict[str, type[msgspec.Struct]] = {
    "study": About,
    "privacy": Privacy,
    "evaluate": Evaluate,
    "house": HouseRules,
}
MEANT_RECORDS = {"file", "files", "data", "path", "csv", "source", "dataset"}
EXAMPLES = {"method": f', such as method = "tree" (available: {", ".join(METHODS)})'}


def read_section(path: Path, name: str, document: Mapping[str, Any], kind: type[S]) -> S:
    """One section as its struct; without the section, its defaults."""
    return fill(path, f"[{name}]", document.get(name, {}), kind)


def _require_section(path: Path, title: str, section: object) -> dict[str, Any]:
    """The section, which must be one with keys."""
    if not isinstance(section, dict):
        raise StudyError(f"{path}: {title} must be a section of its own with keys, not {shown(section)}")
    return section


def fill(path: Path, title: str, value: object, kind: type[S]) -> S:
    """A table of keys as a struct; StudyError for the first key unknown, missing or of the wrong kind."""
    section = _require_section(path, title, value)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in section:
        if key not in fields:
            hint = _find_home(key, section, kind) or nearest(key, fields)
            raise StudyError(f"{path}: {title} has no key {key!r}{hint}")
    for key, field in fields.items():
        if field.required and key not in section:
            example = EXAMPLES.get(key, "") if kind is About else ""
            raise StudyError(f"{path}: {title} needs the key {key!r}{example}")
    values = {key: _read_value(path, title, key, value, fields[key].type) for key, value in section.items()}
    return kind(**values)


def _find_home(key: str, section: Mapping[str, Any], kind: type) -> str:
    """Where a key stands that is not one of this section: in another section, or in that of the study's method."""
    if kind is Hospital and key.lower() in MEANT_RECORDS:
        return '; a hospital\'s table is records = "north.csv"'
    if kind not in HOMES.values():
        return ""
    if key == "dictionary":
        return '; write [dictionary] and file = "..." below it'
    homes = [name for name, other in HOMES.items() if key in other.__struct_fields__]
    method = section.get("method")
    if isinstance(method, str) and method in METHODS:
        own = load(METHODS[method]).parameters().values()
        homes += [method for one in own if one.name == key and not one.parameter.section]
    return f"; it goes under [{homes[0]}]" if homes else ""


def read_columns(path: Path, name: str, document: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """A section whose keys are columns of the hospitals' tables."""
    section = _require_section(path, f"[{name}]", document.get(name, {}))
    return {column: _read_value(path, f"[{name}]", column, value, kind) for column, value in section.items()}


def _read_value(path: Path, title: str, key: str, value: object, kind: Any) -> Any:
    try:
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise msgspec.ValidationError
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise StudyError(
            f"{path}: {title} {key} must be {_describe_kind(kind)}; got {shown(value)}"
        ) from None


def _describe_kind(kind: Any) -> str:
    """What a key takes, in words."""
    if get_origin(kind) is Annotated:
        return str(next(note.description for note in get_args(kind) if isinstance(note, Meta)))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))
    return _describe_kind(get_args(kind)[0])


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


def split_by_method(path: Path, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A study file as one document for each method that it lists, each without the sections of the others: by the name
    of the method or, where the list says how it is released ("rulefit masked"), by both ("rulefit-masked")."""
    about = document["study"]
    listed = about.get("method") if isinstance(about, dict) else None
    if not isinstance(listed, list):
        return {"": dict(document)}
    parts = [one.split() if isinstance(one, str) else [] for one in listed]
    names = ["-".join(part) for part in parts]
    if not parts or not all(1 <= len(part) <= 2 for part in parts) or len(set(names)) < len(names):
        raise StudyError(
            f'{path}: [study] method must be text, or a list of different methods such as ["tree", "rulefit"], each '
            f'perhaps with its release, ["tree exact", "rulefit masked"]; got {shown(listed)}'
        )
    methods = {part[0] for part in parts}
    return {
        name: {
            **{key: section for key, section in document.items() if key == part[0] or key not in methods},
            "study": {**about, "method": part[0]},
            **(_release_as(path, part[1], document) if len(part) > 1 else {}),
        }
        for name, part in zip(names, parts, strict=True)
    }


def _release_as(path: Path, release: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """[privacy] and [evaluate] for one of several releases: an epsilon is for what has a price, and where one release
    pays for its figures all are measured through the gate, on the same patients."""
    if release not in RELEASES:
        raise StudyError(
            f"{path}: [study] method: there is no release {release!r}{nearest(release, RELEASES)}"
        )
    sections = {
        name: dict(_require_section(path, f"[{name}]", document[name]))
        for name in ("privacy", "evaluate")
        if name in document
    }
    if not RELEASES[release].bounded:
        sections.get("privacy", {}).pop("epsilon", None)
        if sections.get("evaluate", {}).pop("epsilon", None) is not None:
            sections["evaluate"].setdefault("simulation", False)
    return {**sections, "privacy": {**sections.get("privacy", {}), "release": release}}


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


def read_parameters(
    path: Path, method: type[Method[Any] | SharingParameters], document: Mapping[str, Any]
) -> dict[str, Any]:
    """The section named after the method, whose keys are its own parameters; StudyError for the first that is not."""
    title = f"[{method.method}]"
    section = _require_section(path, title, document.get(method.method, {}))
    own = {one.name: one for one in method.parameters().values() if not one.parameter.section}
    given: dict[str, Any] = {}
    for key, value in section.items():
        name = method.aliases.get(key, key)
        if name not in own:
            home = method.parameters()[name].parameter.section if name in method.parameters() else ""
            hint = f"; it goes under [{home}]" if home else nearest(key, own)
            raise StudyError(f"{path}: {title} has no key {key!r}{hint}")
        if name in given:
            raise StudyError(f"{path}: {title} states {name} twice, once as {key}: leave one of them out")
        try:
            own[name].read(value)
        except ValueError:
            takes = _as_in_toml(own[name].parameter.takes)
            raise StudyError(f"{path}: {title} {key} must be {takes}; got {shown(value)}") from None
        given[name] = value
    return given


def _as_in_toml(takes: str) -> str:
    """What a parameter takes, as a study file writes it."""
    return takes.replace("'", '"').replace("True or False", "true or false")


Least = Annotated[int, Meta(ge=1, description="a whole number from 1")]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """[choose]: which of the hospitals take part, by what each declares under its [[site]]."""

    columns: Names | None = None
    least: Least | None = None
    most: Least | None = None


def choose_hospitals(
    path: Path, hospitals: Sequence[Hospital], choice: Choice
) -> tuple[tuple[Hospital, ...], dict[str, str]]:
    """Those who take part, and of the others why they do not; StudyError where nobody does.

    *Protects:* every patient, *from:* being a reason why a hospital is chosen or not: what is declared stands in the
    study file, and no table is looked at. *Cost:* none. *Assumes:* a hospital declares a band that one patient does
    not change.
    """
    for one in hospitals:
        if one.size is not None and not 1 <= one.size[0] <= one.size[1]:
            raise StudyError(
                f"{path}: [[site]] {one.name}: size must be a band such as [100, 999]; got {list(one.size)}"
            )
    passed_over = {one.name: why for one in hospitals if (why := _find_reason(one, choice))}
    chosen = tuple(one for one in hospitals if one.name not in passed_over)
    if hospitals and not chosen:
        raise StudyError(f"{path}: [choose] leaves no hospital: {say_passed_over(passed_over)}")
    return chosen, passed_over


def say_passed_over(passed_over: Mapping[str, str]) -> str:
    """Who was not chosen, and why."""
    return "; ".join(f"{name} {why}" for name, why in passed_over.items())


def _find_reason(hospital: Hospital, choice: Choice) -> str:
    """Why a hospital does not take part; empty where it does."""
    absent = [name for name in choice.columns or () if name not in (hospital.declares or ())]
    if absent:
        return f"declares no column {absent[0]!r}"
    if (choice.least, choice.most) == (None, None):
        return ""
    if hospital.size is None:
        return "declares no size"
    low, high = hospital.size
    if choice.least is not None and low < choice.least:
        return f"declares {low:,} to {high:,} patients, which may be fewer than {choice.least:,}"
    if choice.most is not None and high > choice.most:
        return f"declares {low:,} to {high:,} patients, which may be more than {choice.most:,}"
    return ""
