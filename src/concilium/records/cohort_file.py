"""A cohort file: which patients of an OMOP database or of FHIR resources, and what of each becomes a column.

    [source]
    omop = "north.duckdb"                  # or postgresql://..., mssql://...; or fhir = "export"
    schema = "cdm"
    cohort = "celecoxib.toml"              # the file with the sections below, where they are not here

    [concepts]                             # OMOP ids (with all below them), and codes for FHIR
    celecoxib = 1118084
    gi_bleed = { omop = 192671, snomed = "74474003" }

    [cohort]
    entry = { drug = "celecoxib" }
    observed_before = 365                  # days

    [outcome]
    condition = "gi_bleed"
    days = [1, 365]                        # after entry: the time at risk

    [covariates]
    age = "age"
    osteoarthritis = { condition = 80180, days = [-365, 0] }
    sbp = { measurement = 3004249, take = "latest", unit = "mm[Hg]" }

[source] is the hospital's own. The other sections belong to a study, and are the same at all hospitals.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeAlias

from concilium.errors import StudyError, find_wrong_section, nearest
from concilium.records.columns import label
from concilium.records.fhir_resources import SYSTEMS

ENDING = ".toml"
PATIENT = "patient"
"""The column of patients' ids in every table that a cohort file makes."""
PATIENTS, CODES, MEASUREMENTS = "patients", "codes", "measurements"
"""The tables that a cohort file makes: one row a patient, one a code, one a measurement."""

Kind: TypeAlias = Literal["condition", "drug", "procedure", "measurement", "observation", "visit", "death"]
KINDS: tuple[Kind, ...] = ("condition", "drug", "procedure", "measurement", "observation", "visit", "death")
VALUED = ("measurement", "observation")
OF_EVENTS, OF_VALUES = ("any", "count"), ("latest", "mean", "min", "max")
SEXES = ("female", "male")
COUNTED = ("days", "at_least")  # keys of an event that is there or not

LARGEST_CONCEPT = 2**53
MOST_DAYS = 100_000
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,127}(\.[A-Za-z_][A-Za-z0-9_$]{0,127})?")


@dataclass(frozen=True)
class ConceptSet:
    """Concepts that count as one: OMOP ids, with all below them (`descendants`), and codes by FHIR's code systems."""

    name: str
    omop: tuple[int, ...] = ()
    descendants: bool = True
    codes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """Events of one kind in a window of days around entry (0: the day of entry)."""

    kind: Kind
    concepts: ConceptSet | None
    days: tuple[int, int]
    at_least: int = 1


@dataclass(frozen=True)
class Covariate:
    """A column. `take` is any or count of the events; or of values the latest, mean, min or max, in `unit`. Rows that
    have no unit are in `without_unit`."""

    name: str
    event: Event
    take: str = "any"
    unit: str = ""
    without_unit: str = ""
    molar_mass: float | None = None


@dataclass(frozen=True)
class CohortRule:
    """Who is in it, from when: the first entry event of a person, or every one."""

    entry: tuple[Event, ...]
    every: bool = False
    observed_before: int = 0
    require: tuple[Event, ...] = ()
    exclude: tuple[Event, ...] = ()
    age: tuple[int, int] | None = None
    sex: str = ""
    date: str = ""


@dataclass(frozen=True)
class CohortOutcome:
    """What is predicted: whether it happens in the time at risk, `time` also when."""

    name: str
    event: Event
    time: str = ""
    lost: str = "leave out"
    before: str = "leave out"


@dataclass(frozen=True)
class CohortFile:
    """`CohortFile.read("north.toml")`. `where` is what errors call it."""

    path: Path
    cohort: CohortRule
    outcome: CohortOutcome | None = None
    age: str = ""
    sex: str = ""
    covariates: tuple[Covariate, ...] = ()
    codes: tuple[Event, ...] = ()
    code_source: bool = False
    series: tuple[Covariate, ...] = ()
    omop: str = ""
    fhir: str = ""
    schema: str = ""
    vocabulary: str = ""

    @classmethod
    def read(cls, path: str | PathLike[str]) -> CohortFile:
        """The cohort file, with the one that its [source] names; StudyError says what is wrong in which of them."""
        path = Path(path)
        document = _load(path)
        source = _section(path, document, "source", required=True)
        _check_keys(path, "source", source, ("omop", "fhir", "schema", "vocabulary", "cohort"))
        own = {name: section for name, section in document.items() if name != "source"}
        place = path
        if "cohort" in source:
            place = path.parent / _text(path, "[source] cohort", source["cohort"])
            if own:
                raise StudyError(
                    f"{path}: [source] cohort names {place.name}, and [{next(iter(own))}] stands here too: write it in "
                    "one of them"
                )
            own = _load(place)
            if "source" in own:
                raise StudyError(f"{place}: [source] belongs in the file of the hospital, {path.name}")
        made = _parse(place, own)
        return _locate(replace(made, path=path), path, source)

    @property
    def address(self) -> str:
        """The database or the resources."""
        return self.omop or self.fhir

    @property
    def sets(self) -> Mapping[str, ConceptSet]:
        """All concept sets that are looked for, by name."""
        return {one.concepts.name: one.concepts for one in self.events() if one.concepts is not None}

    def events(self) -> Iterator[Event]:
        """All that is looked for."""
        yield from (*self.cohort.entry, *self.cohort.require, *self.cohort.exclude, *self.codes)
        yield from (one.event for one in (*self.covariates, *self.series))
        if self.outcome is not None:
            yield self.outcome.event


def is_cohort_file(source: object) -> bool:
    """Whether a source of patients is a cohort file, by its name."""
    return isinstance(source, str | PathLike) and fspath(source).lower().endswith(ENDING)


def names_cohort(path: str | Path) -> bool:
    """Whether a TOML file is a cohort file, and no study: it has a section [source] and no [study]."""
    document = _load(Path(path))
    return "source" in document and "study" not in document


def find_patient_column(source: object, named: str | None) -> str | None:
    """The column of patients' ids: the one that is named, or that of a cohort file."""
    return PATIENT if named is None and is_cohort_file(source) else named


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        why = "" if isinstance(error, UnicodeDecodeError) else f" ({error})"
        raise StudyError(
            f"{path}: is not a TOML file{why}; a cohort file says who the patients of a database are (docs/omop.md)"
        ) from None


def _locate(made: CohortFile, path: Path, source: Mapping[str, Any]) -> CohortFile:
    given = [name for name in ("omop", "fhir") if name in source]
    if len(given) != 1:
        problem = "names both" if given else "names neither"
        raise StudyError(
            f"{path}: [source] {problem}: give omop, a DuckDB file or the address of a server, or fhir, a bundle, a "
            "folder of NDJSON files, or the address of a server"
        )
    (kind,) = given
    place = _text(path, f"[source] {kind}", source[kind])
    place = place if "://" in place else str(path.parent / place)
    names = {}
    for name in ("schema", "vocabulary"):
        if name not in source:
            continue
        if kind == "fhir":
            raise StudyError(f"{path}: [source] {name} is for omop only")
        names[name] = _text(path, f"[source] {name}", source[name])
        if not _SCHEMA.fullmatch(names[name]):
            raise StudyError(
                f"{path}: [source] {name} must be a name of letters, digits and _, or two with a point between"
            )
    located = replace(
        made,
        omop=place if kind == "omop" else "",
        fhir=place if kind == "fhir" else "",
        schema=names.get("schema", ""),
        vocabulary=names.get("vocabulary", ""),
    )
    lacking = next(
        (one for one in located.sets.values() if not (one.omop if kind == "omop" else one.codes)), None
    )
    if lacking is not None:
        need = "omop = ID" if kind == "omop" else f'codes, such as {lacking.name} = {{ snomed = "..." }}'
        raise StudyError(f"{path}: the concepts {lacking.name!r} have no {need}, which {kind} needs")
    return located


SECTIONS = ("concepts", "cohort", "outcome", "covariates", "codes", "series")


def _parse(path: Path, document: Mapping[str, Any]) -> CohortFile:
    """What the sections of a study say."""
    if wrong := find_wrong_section(document, SECTIONS):
        raise StudyError(f"{path}: {wrong}")
    concepts = _section(path, document, "concepts")
    sets = {name: _read_set(path, name, one) for name, one in concepts.items()}
    reader = _SectionReader(path, sets)
    cohort = reader.cohort(_section(path, document, "cohort", required=True))
    outcome = reader.outcome(document["outcome"]) if "outcome" in document else None
    columns = _section(path, document, "covariates")
    people: dict[str, str] = {}
    covariates = []
    for name, one in columns.items():
        if one in ("age", "sex"):
            if one in people:
                raise StudyError(f"{path}: [covariates] {one} stands there twice: {people[one]} and {name}")
            people[one] = name
        else:
            covariates.append(reader.covariate("covariates", name, one))
    codes, code_source = reader.codes(_section(path, document, "codes"))
    made = CohortFile(
        path,
        cohort,
        outcome,
        covariates=tuple(covariates),
        codes=codes,
        code_source=code_source,
        series=reader.series(_section(path, document, "series")),
        **people,
    )
    _check_columns(path, made)
    return made


def list_columns(file: CohortFile) -> list[str]:
    """The columns of the table of patients, in order."""
    outcome = file.outcome
    names = [PATIENT, file.cohort.date, file.age, file.sex, *(one.name for one in file.covariates)]
    return [name for name in (*names, *((outcome.time, outcome.name) if outcome else ())) if name]


def _check_columns(path: Path, made: CohortFile) -> None:
    if made.cohort.every and (made.codes or made.series):
        raise StudyError(
            f'{path}: [cohort] which = "every" gives a patient several rows; [codes] and [series] go with "first"'
        )
    names = list_columns(made)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StudyError(f"{path}: two columns are called {twice!r}; rename one of them")


def _section(path: Path, document: Mapping[str, Any], name: str, required: bool = False) -> dict[str, Any]:
    if name not in document and required:
        raise StudyError(f"{path}: the section [{name}] is missing (docs/omop.md)")
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise StudyError(f"{path}: [{name}] must be a section of its own with keys")
    return section


def _check_keys(path: Path, where: str, section: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in section:
        if key not in known:
            raise StudyError(f"{path}: [{where}] has no key {key!r}{nearest(key, known)}")


def _text(path: Path, where: str, given: object) -> str:
    if not isinstance(given, str) or not given.strip() or not given.isprintable():
        raise StudyError(f"{path}: {where} must be text")
    return given


def _whole(path: Path, where: str, given: object, low: int, high: int) -> int:
    if type(given) is not int or not low <= given <= high:
        raise StudyError(f"{path}: {where} must be a whole number from {low} to {high}; got {_say(given)}")
    return given


def _say(given: object) -> str:
    return repr(given)[:60]


def _read_set(path: Path, name: str, given: object) -> ConceptSet:
    where = f"[concepts] {name}"
    if not isinstance(given, dict):
        return ConceptSet(name, _read_ids(path, where, given))
    codes: dict[str, tuple[str, ...]] = {}
    known = ("omop", "descendants", *SYSTEMS)
    for key, value in given.items():
        if key in ("omop", "descendants"):
            continue
        if key not in SYSTEMS and "://" not in key and not key.startswith("urn:"):
            raise StudyError(
                f"{path}: {where} has no key {key!r}{nearest(key, known)}; the code systems are "
                f"{', '.join(SYSTEMS)}, or the address of another one"
            )
        listed = value if isinstance(value, list) else [value]
        if not listed or not all(isinstance(one, str | int) and not isinstance(one, bool) for one in listed):
            raise StudyError(f"{path}: {where} {key} must be a code or a list of codes, as text")
        system = str(key)
        codes[SYSTEMS.get(system, system)] = tuple(label(one).strip() for one in listed)
    descendants = given.get("descendants", True)
    if not isinstance(descendants, bool):
        raise StudyError(f"{path}: {where} descendants must be true or false")
    ids = _read_ids(path, where, given["omop"]) if "omop" in given else ()
    return ConceptSet(name, ids, descendants, codes)


def _read_ids(path: Path, where: str, given: object) -> tuple[int, ...]:
    listed = given if isinstance(given, list) else [given]
    if not listed or not all(type(one) is int and 0 < one < LARGEST_CONCEPT for one in listed):
        raise StudyError(
            f"{path}: {where} must be an OMOP concept id, a list of them, or a table such as "
            f'{{ omop = 192671, snomed = "74474003" }}; got {_say(given)}'
        )
    return tuple(dict.fromkeys(listed))


@dataclass(frozen=True)
class _SectionReader:
    """Sections of one file, whose concepts are known."""

    path: Path
    sets: Mapping[str, ConceptSet]

    def cohort(self, section: Mapping[str, Any]) -> CohortRule:
        known = ("entry", "which", "observed_before", "require", "exclude", "age", "sex", "date")
        _check_keys(self.path, "cohort", section, known)
        if "entry" not in section:
            raise StudyError(f'{self.path}: [cohort] needs the key entry, such as {{ drug = "celecoxib" }}')
        which = section.get("which", "first")
        if which not in ("first", "every"):
            raise StudyError(f'{self.path}: [cohort] which must be "first" or "every"; got {_say(which)}')
        given = section["entry"]
        before = _whole(
            self.path, "[cohort] observed_before", section.get("observed_before", 0), 0, MOST_DAYS
        )
        listed = given if isinstance(given, list) else [given]
        entry = tuple(self._event("[cohort] entry", one, (0, 0), ()) for one in listed)
        if not entry:
            raise StudyError(f"{self.path}: [cohort] entry names no event")
        sex = section.get("sex", "")
        if sex not in ("", *SEXES):
            raise StudyError(f'{self.path}: [cohort] sex must be "female" or "male"; got {_say(sex)}')
        age = section.get("age")
        return CohortRule(
            entry,
            which == "every",
            before,
            self._conditions("require", section.get("require", [])),
            self._conditions("exclude", section.get("exclude", [])),
            None if age is None else self._window("[cohort] age", age, 0, 150, "ages"),
            sex,
            _text(self.path, "[cohort] date", section["date"]) if "date" in section else "",
        )

    def _conditions(self, key: str, given: object) -> tuple[Event, ...]:
        listed = given if isinstance(given, list) else [given]
        return tuple(self._event(f"[cohort] {key}", one, (-MOST_DAYS, 0), COUNTED) for one in listed)

    def outcome(self, given: object) -> CohortOutcome:
        if not isinstance(given, dict):
            raise StudyError(f"{self.path}: [outcome] must be a section of its own with keys")
        own = ("name", "days", "time", "lost", "before")
        event = self._event("[outcome]", {k: v for k, v in given.items() if k not in own}, (1, 365), ())
        low, high = self._window("[outcome] days", given.get("days", [1, 365]), -MOST_DAYS, MOST_DAYS, "days")
        if low < 0:
            raise StudyError(
                f"{self.path}: [outcome] days begin {-low} days before entry; an outcome lies after entry, as in "
                "days = [1, 365]"
            )
        for key in ("lost", "before"):
            other = "no" if key == "lost" else "keep"
            if given.get(key, other) not in ("leave out", other):
                raise StudyError(f'{self.path}: [outcome] {key} must be "leave out" or "{other}"')
        time = _text(self.path, "[outcome] time", given["time"]) if "time" in given else ""
        if time and "lost" in given:
            raise StudyError(f"{self.path}: [outcome] lost has no meaning beside time; leave it out")
        name = given.get("name", event.concepts.name if event.concepts is not None else "died")
        return CohortOutcome(
            _text(self.path, "[outcome] name", name),
            replace(event, days=(low, high)),
            time,
            given.get("lost", "leave out"),
            given.get("before", "leave out"),
        )

    def covariate(self, section: str, name: str, given: object) -> Covariate:
        where = f"[{section}] {name}"
        if not isinstance(given, dict):
            raise StudyError(
                f'{self.path}: {where} must be "age", "sex", or a table such as '
                f"{{ condition = 80180, days = [-365, 0] }}; got {_say(given)}"
            )
        own = ("take", "unit", "without_unit", "molar_mass")
        event = self._event(where, {k: v for k, v in given.items() if k not in own}, (-365, 0), COUNTED)
        take = given.get("take", "latest" if event.kind == "measurement" else "any")
        allowed = (*OF_EVENTS, *(OF_VALUES if event.kind in VALUED else ()))
        if take not in allowed:
            raise StudyError(
                f"{self.path}: {where} take must be one of {', '.join(allowed)}; got {_say(take)}"
            )
        if take != "any" and "at_least" in given:
            raise StudyError(
                f"{self.path}: {where} at_least is for yes or no, and take = {take!r} is a number; leave one out"
            )
        units = {key: _text(self.path, f"{where} {key}", given[key]) for key in own[1:3] if key in given}
        if take in OF_EVENTS and (units or "molar_mass" in given):
            raise StudyError(f"{self.path}: {where} take = {take!r} has no unit; leave it out")
        mass = given.get("molar_mass")
        if mass is not None and (not isinstance(mass, int | float) or not 0 < mass < 1e9):
            raise StudyError(f"{self.path}: {where} molar_mass must be a number of g/mol")
        return Covariate(name, event, take, **units, molar_mass=mass)

    def codes(self, section: Mapping[str, Any]) -> tuple[tuple[Event, ...], bool]:
        _check_keys(self.path, "codes", section, ("kinds", "days", "source"))
        if not section:
            return (), False
        kinds = section.get("kinds", ["condition"])
        listed = kinds if isinstance(kinds, list) else [kinds]
        for kind in listed:
            if kind not in KINDS[:-1]:
                raise StudyError(
                    f"{self.path}: [codes] kinds must be of {', '.join(KINDS[:-1])}; got {_say(kind)}"
                )
        days = self._window("[codes] days", section.get("days", [-365, 0]), -MOST_DAYS, MOST_DAYS, "days")
        source = section.get("source", False)
        if not isinstance(source, bool):
            raise StudyError(f"{self.path}: [codes] source must be true or false")
        return tuple(Event(kind, None, days) for kind in listed), source

    def series(self, section: Mapping[str, Any]) -> tuple[Covariate, ...]:
        _check_keys(self.path, "series", section, ("days", "variables"))
        days = self._window("[series] days", section.get("days", [-365, 0]), -MOST_DAYS, MOST_DAYS, "days")
        variables = section.get("variables", {})
        if not isinstance(variables, dict):
            raise StudyError(f"{self.path}: [series.variables] must be a section of its own with keys")
        made = []
        for name, one in variables.items():
            if isinstance(one, dict) and {"take", "days"} & set(one):
                raise StudyError(f"{self.path}: [series.variables] {name} has all values in [series] days")
            plain = {**one, "days": list(days)} if isinstance(one, dict) else one
            variable = self.covariate("series.variables", name, plain)
            if variable.take != "latest":
                raise StudyError(f"{self.path}: [series.variables] {name} must be a measurement")
            made.append(variable)
        return tuple(made)

    def _event(self, where: str, given: object, days: tuple[int, int], keys: Sequence[str]) -> Event:
        if not isinstance(given, dict):
            raise StudyError(
                f'{self.path}: {where} must be a table such as {{ condition = "name of concepts" }}; got {_say(given)}'
            )
        kinds = [key for key in given if key in KINDS]
        for key in given:
            if key not in KINDS and key not in keys:
                known = (*KINDS, *keys)
                raise StudyError(f"{self.path}: {where} has no key {key!r}{nearest(key, known)}")
        if len(kinds) != 1:
            raise StudyError(
                f"{self.path}: {where} names one of {', '.join(KINDS)}; got {', '.join(kinds) or 'none'}"
            )
        (kind,) = kinds
        concepts = self._concepts(f"{where} {kind}", kind, given[kind])
        window = given.get("days", list(days))
        low_high = self._window(f"{where} days", window, -MOST_DAYS, MOST_DAYS, "days")
        if low_high[1] > 0 and where.startswith(("[covariates]", "[cohort]")):
            raise StudyError(
                f"{self.path}: {where} days end {low_high[1]} days after entry, which nobody knows at entry; end them "
                "at 0, as in days = [-365, 0]"
            )
        at_least = _whole(self.path, f"{where} at_least", given.get("at_least", 1), 1, 10_000)
        return Event(kind, concepts, low_high, at_least)

    def _concepts(self, where: str, kind: str, given: object) -> ConceptSet | None:
        if kind == "death":
            if given is not True:
                raise StudyError(f"{self.path}: {where} must be true: deaths have no concepts")
            return None
        if isinstance(given, str):
            if given not in self.sets:
                hint = nearest(given, self.sets) or "; write its OMOP ids there, as in celecoxib = 1118084"
                raise StudyError(f"{self.path}: {where} names {given!r}, which is not under [concepts]{hint}")
            return self.sets[given]
        ids = _read_ids(self.path, where, given)
        return ConceptSet("concept " + " and ".join(map(str, ids)), ids)

    def _window(self, where: str, given: object, low: int, high: int, what: str) -> tuple[int, int]:
        if not isinstance(given, list) or len(given) != 2:
            raise StudyError(f"{self.path}: {where} must be two {what}, such as [-365, 0]; got {_say(given)}")
        first, last = (_whole(self.path, where, one, low, high) for one in given)
        if first > last:
            raise StudyError(f"{self.path}: {where} must be in rising order; got {given}")
        return first, last
