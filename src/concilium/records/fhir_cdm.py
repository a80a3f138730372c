"""FHIR R4 resources as a small CDM in memory, so that the statements for OMOP databases read them too.

Only what a cohort file names is kept, an event for each concept set that has its code: a file is read line by line, and
may be larger than memory. A person is under observation from the first to the last dated resource in the source.

A moment counts as the hospital's clock showed it. A year or a month is its first day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from concilium.errors import RecordsError, name_some
from concilium.records.cdm_databases import DuckDBCdm
from concilium.records.cohort_file import CohortFile, ConceptSet, Event, Kind
from concilium.records.fhir_files import Found, each_resource
from concilium.records.fhir_resources import (
    NEVER,
    OIDS,
    TYPES,
    VOID,
    Coding,
    Component,
    Concept,
    Condition,
    Drug,
    Encounter,
    Medication,
    Observation,
    Patient,
    Procedure,
    Reference,
    last_part,
)
from concilium.records.omop_statements import DUCKDB, EVENT_TABLES
from concilium.records.relation import scratch_database

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EPOCH = date(1970, 1, 1).toordinal()
ROWS = 50_000  # events that are kept in Python before they go to the database
GENDERS = {"male": 8507, "female": 8532, "other": 8521}
ANY = 0  # the concept of an event that is kept for [codes]
KIND_OF: Mapping[str, Kind] = {
    "Observation": "measurement",
    "Condition": "condition",
    "Encounter": "visit",
    "Procedure": "procedure",
    **{name: "drug" for name, form in TYPES.items() if form is Drug},
}
_MOMENT = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?)?)?)?")


@contextmanager
def open_fhir(file: CohortFile) -> Iterator[StagedCdm]:
    """The resources that a cohort file names, as a CDM."""
    with scratch_database() as (connection, _):
        staging = _Staging(file, connection)
        for found in each_resource(file):
            staging.add(found)
        names = staging.finish()
        yield StagedCdm(
            connection, file.fhir, dialect=replace(DUCKDB, prefix=""), catalog="memory", patients=tuple(names)
        )


@dataclass(frozen=True)
class StagedCdm(DuckDBCdm):
    """Resources in memory. `patients` are their ids, by person."""

    patients: tuple[str, ...] = ()

    def name_people(self, persons: Any) -> list[str]:
        return [self.patients[person] for person in persons.tolist()]


def name_sets(file: CohortFile) -> CohortFile:
    """The cohort file with a concept of its own for each set: what resources are staged by."""
    numbers = {name: number for number, name in enumerate(file.sets, start=1)}

    def number(event: Event) -> Event:
        if event.concepts is None:
            return event
        concepts = ConceptSet(event.concepts.name, (numbers[event.concepts.name],), descendants=False)
        return replace(event, concepts=concepts)

    def number_all(events: Iterable[Event]) -> tuple[Event, ...]:
        return tuple(map(number, events))

    cohort = replace(
        file.cohort,
        entry=number_all(file.cohort.entry),
        require=number_all(file.cohort.require),
        exclude=number_all(file.cohort.exclude),
    )
    return replace(
        file,
        cohort=cohort,
        outcome=None if file.outcome is None else replace(file.outcome, event=number(file.outcome.event)),
        covariates=tuple(replace(one, event=number(one.event)) for one in file.covariates),
        series=tuple(replace(one, event=number(one.event)) for one in file.series),
        code_source=True,
    )


@dataclass
class _StagedEvents:
    """Events of one kind on their way to the database: person, concept, day, second of it, unit, value, code."""

    rows: list[tuple[int, int, int, int, int, float | None, str]] = field(default_factory=list)


class _Staging:
    """Takes resources one by one, and knows whose they are and which of their codes are wanted."""

    def __init__(self, file: CohortFile, connection: DuckDBPyConnection) -> None:
        self._file, self._connection = file, connection
        self._numbers = {name: number for number, name in enumerate(file.sets, start=1)}
        self._kinds = {_stage_as(event.kind) for event in file.events()}
        self._coded = {_stage_as(event.kind) for event in file.codes}
        self._wanted = self._list_wanted()
        self._matches: dict[tuple[Kind, Coding], tuple[int, ...]] = {}
        self._systems: dict[Kind, set[str]] = {}
        self._persons: dict[str, int] = {}
        self._patients: dict[int, tuple[str, Patient]] = {}
        self._same: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._units: dict[str, int] = {"": 0}
        self._days: dict[str, int] = {}
        self._events: dict[Kind, _StagedEvents] = {kind: _StagedEvents() for kind in set(KIND_OF.values())}
        self._drugs: dict[str, Concept] = {}
        self._unresolved: list[tuple[int, int, int, str]] = []
        self._add: dict[type[Any], Callable[[Found], None]] = {
            Patient: self._add_patient,
            Observation: self._add_observation,
            Condition: self._add_condition,
            Encounter: self._add_encounter,
            Procedure: self._add_procedure,
            Drug: self._add_drug,
            Medication: self._add_medication,
        }
        for kind in self._events:
            table = EVENT_TABLES[kind]
            connection.execute(
                f"CREATE TABLE {table.name} (person BIGINT, {table.concept} BIGINT, {table.day} DATE,"
                f" {table.moment} TIMESTAMP, unit_concept_id BIGINT, value_as_number DOUBLE, {table.source} VARCHAR,"
                f" {table.id} BIGINT, operator_concept_id BIGINT)"
            )

    def _list_wanted(self) -> dict[Kind, dict[str, list[tuple[str, bool, int]]]]:
        """By kind and code system the codes that are wanted, whether longer ones count, and the number of the set."""
        wanted: dict[Kind, dict[str, list[tuple[str, bool, int]]]] = {}
        for event in self._file.events():
            if event.concepts is None:
                continue
            for system, codes in event.concepts.codes.items():
                longer = event.concepts.descendants and "/icd-" in system
                listed = wanted.setdefault(_stage_as(event.kind), {}).setdefault(system, [])
                for code in codes:
                    one = (
                        code.replace(".", "") if longer else code,
                        longer,
                        self._numbers[event.concepts.name],
                    )
                    if one not in listed:
                        listed.append(one)
        return wanted

    def add(self, found: Found) -> None:
        """Take one resource."""
        try:
            self._add[type(found.resource)](found)
        except _BadDate:
            raise RecordsError(
                f"{found.where}: has a date that is none of FHIR's; write 2024-05-01, or 2024-05-01T13:30:00+02:00"
            ) from None

    # What a resource says

    def _find_person(self, reference: Reference) -> int | None:
        text = reference.reference
        if not text or ("/" in text and text.split("/")[-2] != "Patient"):
            return None
        return self._persons.setdefault(last_part(text), len(self._persons))

    def _see(self, person: int, day: int) -> None:
        if day < self._first.get(person, day + 1):
            self._first[person] = day
        if day > self._last.get(person, day - 1):
            self._last[person] = day

    def _read_moment(self, text: str) -> tuple[int, int] | None:
        """The day since 1970 and the second of it; None where there is none."""
        if not text:
            return None
        day = self._days.get(text[:10])
        if day is None:
            day = self._days[text[:10]] = _read_day(text[:10])
        if len(text) <= 10:
            return day, 0
        if not _MOMENT.fullmatch(text):
            raise _BadDate
        return day, int(text[11:13]) * 3600 + int(text[14:16]) * 60 + (
            int(text[17:19]) if text[16:17] == ":" else 0
        )

    def _match(self, kind: Kind, codings: Iterable[Coding]) -> set[int]:
        """The sets that have one of these codes."""
        found: set[int] = set()
        for coding in codings:
            key = (kind, coding)
            matches = self._matches.get(key)
            if matches is None:
                matches = self._matches[key] = tuple(self._look_up(kind, coding))
            found.update(matches)
        return found

    def _look_up(self, kind: Kind, coding: Coding) -> Iterator[int]:
        system = OIDS.get(coding.system, coding.system)
        if system:
            self._systems.setdefault(kind, set()).add(system)
        plain = coding.code.replace(".", "")
        for code, longer, number in self._wanted.get(kind, {}).get(system, ()):
            if plain.startswith(code) if longer else coding.code == code:
                yield number

    def _keep(
        self,
        kind: Kind,
        person: int,
        moment: tuple[int, int],
        codings: Iterable[Coding],
        amount: float | None = None,
        unit: str = "",
    ) -> None:
        """An event for each concept set that has one of the codes, and one for [codes]."""
        listed = tuple(codings)
        numbers = self._match(kind, listed)
        rows = self._events[kind].rows
        if numbers:
            place = self._units.setdefault(unit, len(self._units)) if unit else 0
            rows.extend((person, number, *moment, place, amount, "") for number in numbers)
        if kind in self._coded and listed and listed[0].code:
            rows.append((person, ANY, *moment, 0, None, listed[0].code))
        if len(rows) >= ROWS:
            self._flush(kind)

    def _add_patient(self, found: Found) -> None:
        patient: Patient = found.resource
        names = [name for name in (patient.id, last_part(found.address)) if name]
        if not names:
            raise RecordsError(f"{found.where}: is a Patient without an id")
        known = [self._persons.setdefault(name, len(self._persons)) for name in names]
        if known[0] in self._patients:
            raise RecordsError(f"{found.where}: is a Patient that came before; give each once")
        self._patients[known[0]] = names[0], patient
        if known[-1] != known[0]:
            self._same[known[-1]] = known[0]

    def _add_observation(self, found: Found) -> None:
        one: Observation = found.resource
        person, moment = self._find_person(one.subject), self._read_moment(one.moment)
        if person is None or moment is None or one.status in VOID:
            return
        self._see(person, moment[0])
        self._keep_value(person, moment, one)
        for part in one.component:
            self._keep_value(person, moment, part)

    def _keep_value(self, person: int, moment: tuple[int, int], part: Component) -> None:
        quantity = part.value_quantity
        if quantity is not None:
            self._keep("measurement", person, moment, part.code.coding, quantity.amount, quantity.in_unit)
        else:
            amount = None if part.value_integer is None else float(part.value_integer)
            self._keep("measurement", person, moment, part.code.coding, amount)

    def _add_condition(self, found: Found) -> None:
        one: Condition = found.resource
        person, moment = self._find_person(one.subject), self._read_moment(one.moment)
        states = {coding.code for coding in one.verification_status.coding}
        if person is not None and moment is not None and not states & NEVER:
            self._see(person, moment[0])
            self._keep("condition", person, moment, one.code.coding)

    def _add_encounter(self, found: Found) -> None:
        one: Encounter = found.resource
        person, moment = self._find_person(one.subject), self._read_moment(one.period.start)
        if person is None or moment is None or one.status in NEVER:
            return
        self._see(person, moment[0])
        if (end := self._read_moment(one.period.end)) is not None:
            self._see(person, end[0])
        self._keep(
            "visit", person, moment, (one.class_, *(code for kind in one.type for code in kind.coding))
        )

    def _add_procedure(self, found: Found) -> None:
        one: Procedure = found.resource
        person = self._find_person(one.subject)
        moment = self._read_moment(one.performed_date_time or one.performed_period.start)
        if person is not None and moment is not None and one.status not in NEVER:
            self._see(person, moment[0])
            self._keep("procedure", person, moment, one.code.coding)

    def _add_drug(self, found: Found) -> None:
        one: Drug = found.resource
        person = self._find_person(one.subject if one.subject.reference else one.patient)
        moment = self._read_moment(one.moment)
        if person is None or moment is None or one.status in NEVER:
            return
        self._see(person, moment[0])
        codings = one.medication_codeable_concept.coding or one.vaccine_code.coding
        if not codings and one.medication_reference.reference:
            self._unresolved.append((person, *moment, last_part(one.medication_reference.reference)))
        self._keep("drug", person, moment, codings)

    def _add_medication(self, found: Found) -> None:
        one: Medication = found.resource
        for name in {one.id, last_part(found.address)} - {""}:
            self._drugs[name] = one.code

    # What becomes a CDM

    def _flush(self, kind: Kind) -> None:
        import pyarrow

        rows, table = self._events[kind].rows, EVENT_TABLES[kind]
        if not rows:
            return
        names = ("person", "concept", "day", "second", "unit", "amount", "code")
        forms = ("int64", "int64", "int32", "int32", "int64", "float64", "string")
        arrays = [
            pyarrow.array(cells, form) for cells, form in zip(zip(*rows, strict=True), forms, strict=True)
        ]
        self._connection.register("rows", pyarrow.table(arrays, names=list(names)))
        self._connection.execute(
            f"INSERT INTO {table.name} SELECT person, concept, DATE '1970-01-01' + day,"
            " TIMESTAMP '1970-01-01' + to_days(day) + to_seconds(second), unit, amount, code,"
            f" (SELECT count(*) FROM {table.name}) + row_number() OVER (), 0 FROM rows"
        )
        self._connection.unregister("rows")
        rows.clear()

    def finish(self) -> list[str]:
        """Make the tables of persons and of the vocabulary; return the patients' ids, by person."""
        for person, day, second, name in self._unresolved:
            if name in self._drugs:
                self._keep("drug", person, (day, second), self._drugs[name].coding)
        for kind in self._events:
            self._flush(kind)
        self._check_systems()
        execute = self._connection.execute
        pairs = {person: self._same.get(person, person) for person in self._persons.values()}
        _insert(self._connection, "same", {"person": list(pairs), "person_id": list(pairs.values())})
        for kind in self._events:
            table = EVENT_TABLES[kind]
            execute(f"ALTER TABLE {table.name} RENAME TO staged_{table.name}")
            execute(
                f"CREATE VIEW {table.name} AS SELECT s.person_id, e.* FROM staged_{table.name} e JOIN same s"
                " USING (person)"
            )
        execute(
            "CREATE VIEW observation AS SELECT person_id, measurement_concept_id AS observation_concept_id,"
            " measurement_date AS observation_date, measurement_datetime AS observation_datetime,"
            " measurement_id AS observation_id, measurement_source_value AS observation_source_value,"
            " value_as_number, unit_concept_id FROM measurement"
        )
        self._make_persons()
        execute("CREATE TABLE cdm_source AS SELECT '5.4' AS cdm_version")
        units = {text: number for text, number in self._units.items() if number}
        _insert(self._connection, "units", {"concept_id": list(units.values()), "concept_code": list(units)})
        execute(
            "CREATE TABLE concept AS SELECT concept_id, concept_code, 'UCUM' AS vocabulary_id, concept_code AS"
            " concept_name, 'Unit' AS domain_id, 'S' AS standard_concept FROM units"
        )
        _insert(self._connection, "sets", {"concept_id": list(self._numbers.values())})
        execute(
            "CREATE TABLE concept_ancestor AS SELECT concept_id AS ancestor_concept_id, concept_id AS"
            " descendant_concept_id FROM sets"
        )
        names = {person: name for person, (name, _) in self._patients.items()}
        return [names.get(person, "") for person in range(len(self._persons))]

    def _make_persons(self) -> None:
        people: dict[str, list[Any]] = {name: [] for name in ("person_id", "gender", "year", "month", "day")}
        deaths: dict[str, list[Any]] = {"person_id": [], "day": []}
        for person, (_, patient) in self._patients.items():
            born = [int(part) for part in patient.birth_date.split("-")[:3] if part.isdecimal()]
            row = (person, GENDERS.get(patient.gender, 0), *(*born, None, None, None)[:3])
            for cells, cell in zip(people.values(), row, strict=True):
                cells.append(cell)
            if (died := self._read_moment(patient.deceased_date_time)) is not None:
                deaths["person_id"].append(person)
                deaths["day"].append(died[0])
        _insert(self._connection, "people", people)
        _insert(self._connection, "deaths", deaths)
        spans: dict[int, tuple[int, int]] = {}
        for person, first in self._first.items():
            own = self._same.get(person, person)
            low, high = spans.get(own, (first, self._last[person]))
            spans[own] = min(low, first), max(high, self._last[person])
        _insert(
            self._connection,
            "spans",
            {
                "person_id": list(spans),
                "low": [low for low, _ in spans.values()],
                "high": [high for _, high in spans.values()],
            },
        )
        for statement in (
            "CREATE TABLE person AS SELECT person_id, gender AS gender_concept_id, year AS year_of_birth, month AS"
            " month_of_birth, day AS day_of_birth FROM people",
            "CREATE TABLE death AS SELECT person_id, DATE '1970-01-01' + day::INT AS death_date FROM deaths",
            "CREATE TABLE observation_period AS SELECT person_id, DATE '1970-01-01' + low::INT AS"
            " observation_period_start_date, DATE '1970-01-01' + high::INT AS observation_period_end_date FROM spans",
        ):
            self._connection.execute(statement)

    def _check_systems(self) -> None:
        """That the resources have codes of the systems that the file names, where they have any."""
        for kind, by_system in self._wanted.items():
            there = self._systems.get(kind, set())
            for one in {number for listed in by_system.values() for *_, number in listed}:
                systems = {
                    system for system, listed in by_system.items() if any(row[2] == one for row in listed)
                }
                if there and not systems & there:
                    name = next(name for name, number in self._numbers.items() if number == one)
                    raise RecordsError(
                        f"{self._file.fhir}: no {kind} has a code of {name_some(sorted(systems))}, by which the cohort "
                        f"file looks for {name!r}; the code systems there are {name_some(sorted(there), 5)}"
                    )


class _BadDate(Exception):
    """A text that is no date of FHIR's."""


def _read_day(text: str) -> int:
    if not _MOMENT.fullmatch(text):
        raise _BadDate
    try:
        return date.fromisoformat(text + "-01-01"[(len(text) - 4) :]).toordinal() - EPOCH
    except ValueError:
        raise _BadDate from None


def _stage_as(kind: Kind) -> Kind:
    """FHIR has one kind of resource for what OMOP divides into measurements and observations."""
    return "measurement" if kind == "observation" else kind


def _insert(connection: DuckDBPyConnection, name: str, columns: Mapping[str, list[Any]]) -> None:
    """A new table of these columns: texts where the first says so, otherwise whole numbers."""
    import pyarrow

    arrays = {
        column: pyarrow.array(cells, "string" if cells and isinstance(cells[0], str) else "int64")
        for column, cells in columns.items()
    }
    connection.register("columns_of_it", pyarrow.table(arrays))
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM columns_of_it")
    connection.unregister("columns_of_it")
