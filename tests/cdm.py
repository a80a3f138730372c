"""Small OMOP databases for tests: the same persons as a DuckDB file, as SQL for a server, and as a FHIR bulk export."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import duckdb

DAY = date(2020, 1, 1)
DRUG, DRUG_BELOW, BLEED, BLEED_BELOW, PAIN, LAB, SURGERY, WARD = 11, 12, 21, 22, 23, 31, 41, 51
MG, MMOL = 8840, 8753
CODES = {
    DRUG: ("http://www.nlm.nih.gov/research/umls/rxnorm", "140587"),
    DRUG_BELOW: ("http://www.nlm.nih.gov/research/umls/rxnorm", "213469"),
    BLEED: ("http://hl7.org/fhir/sid/icd-10-cm", "K92.2"),
    BLEED_BELOW: ("http://hl7.org/fhir/sid/icd-10-cm", "K92.21"),
    PAIN: ("http://snomed.info/sct", "22253000"),
    LAB: ("http://loinc.org", "2345-7"),
    SURGERY: ("http://snomed.info/sct", "387713003"),
    WARD: ("http://terminology.hl7.org/CodeSystem/v3-ActCode", "IMP"),
}
UNITS = {MG: "mg/dL", MMOL: "mmol/L", 0: ""}
TABLES = {
    "drug": ("drug_exposure", "drug", "drug_exposure_start"),
    "condition": ("condition_occurrence", "condition", "condition_start"),
    "procedure": ("procedure_occurrence", "procedure", "procedure"),
    "visit": ("visit_occurrence", "visit", "visit_start"),
    "measurement": ("measurement", "measurement", "measurement"),
}
DOMAINS = {1: "Drug", 2: "Condition", 3: "Measurement", 4: "Procedure", 5: "Visit"}
BELOW = {(DRUG, DRUG_BELOW), (BLEED, BLEED_BELOW)}

COHORT = """
[concepts]
drug = { omop = 11, rxnorm = ["140587", "213469"] }
bleed = { omop = 21, icd10cm = "K92.2" }
pain = { omop = 23, snomed = "22253000" }
glucose = { omop = 31, loinc = "2345-7" }
surgery = { omop = 41, snomed = "387713003" }
ward = { omop = 51, encounter = "IMP" }
"""


@dataclass
class Happening:
    """One event, so many days after DAY; `value` and `unit` of a measurement."""

    kind: str
    person: int
    concept: int
    day: int
    value: float | None = None
    unit: int = 0

    @property
    def date(self) -> date:
        return DAY + timedelta(self.day)


@dataclass
class Hospital:
    """Persons by id (gender concept, date of birth), what happened, and who was observed from when until when."""

    persons: dict[int, tuple[int, date]]
    events: list[Happening]
    periods: list[tuple[int, int, int]] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)

    def spans(self) -> list[tuple[int, int, int]]:
        """From the first to the last event of each person."""
        days: dict[int, list[int]] = {}
        for one in self.events:
            days.setdefault(one.person, []).append(one.day)
        return [(person, min(own), max(own)) for person, own in days.items()]


SECTIONS = """
[cohort]
entry = { drug = "drug" }
observed_before = 3
require = [{ visit = "ward", days = [-30, 0] }]
exclude = [{ procedure = "surgery", days = [-5, 0], at_least = 2 }]
age = [20, 80]
date = "entry"

[outcome]
condition = "bleed"
days = [1, 10]
WAY

[covariates]
age = "age"
sex = "sex"
pain = { condition = "pain", days = [-20, 0] }
often = { condition = "pain", days = [-20, 0], at_least = 2 }
pains = { condition = "pain", take = "count", days = [-20, -1] }
glucose = { measurement = "glucose", unit = "mg/dL", without_unit = "mg/dL", molar_mass = 180 }
lowest = { measurement = "glucose", take = "min", unit = "mg/dL", without_unit = "mg/dL", molar_mass = 180 }
highest = { measurement = "glucose", take = "max", unit = "mg/dL", without_unit = "mg/dL", molar_mass = 180 }
mean = { measurement = "glucose", take = "mean", unit = "mg/dL", without_unit = "mg/dL", molar_mass = 180 }
measured = { measurement = "glucose", take = "count" }

[codes]
kinds = ["condition", "drug"]
days = [-30, 0]
source = true

[series]
days = [-10, 0]

[series.variables]
glucose = { measurement = "glucose", unit = "mg/dL", without_unit = "mg/dL", molar_mass = 180 }
"""
"""WAY is replaced by more keys of [outcome]."""

HOSPITAL = Hospital(
    {1: (8507, date(1950, 5, 1)), 2: (8532, date(1960, 1, 1)), 3: (8532, date(1970, 1, 1))},
    [
        Happening("visit", 1, WARD, 0),
        Happening("condition", 1, PAIN, 5),
        Happening("measurement", 1, LAB, 6, 90.0, MG),
        Happening("measurement", 1, LAB, 8, 5.0, MMOL),
        Happening("drug", 1, DRUG, 10),
        Happening("condition", 1, BLEED, 12),
        Happening("visit", 2, WARD, 0),
        Happening("drug", 2, DRUG_BELOW, 20),
        Happening("drug", 2, DRUG, 25),
        Happening("visit", 2, WARD, 90),
        Happening("visit", 3, WARD, 0),
    ],
)


def list_statements(hospital: Hospital, schema: str = "main", version: str = "v5.4.0") -> list[str]:
    """SQL that DuckDB and PostgreSQL run."""
    made = [
        "person (person_id BIGINT, gender_concept_id INT, year_of_birth INT, month_of_birth INT, day_of_birth INT)",
        "observation_period (person_id BIGINT, observation_period_start_date DATE, observation_period_end_date DATE)",
        "death (person_id BIGINT, death_date DATE)",
        "cdm_source (cdm_version VARCHAR(20))",
        "concept (concept_id INT, concept_name VARCHAR(255), domain_id VARCHAR(20), standard_concept VARCHAR(1),"
        " concept_code VARCHAR(50), vocabulary_id VARCHAR(20))",
        "concept_ancestor (ancestor_concept_id INT, descendant_concept_id INT)",
    ]
    for kind, (table, stem, start) in TABLES.items():
        value = ", value_as_number NUMERIC, unit_concept_id INT, operator_concept_id INT"
        made.append(
            f"{table} ({table}_id BIGINT, person_id BIGINT, {stem}_concept_id INT, {start}_date DATE,"
            f" {start}_datetime TIMESTAMP, {stem}_source_value VARCHAR(50){value if kind == 'measurement' else ''})"
        )
    said = [f"CREATE TABLE {schema}.{one}" for one in made]

    def insert(table: str, row: tuple[Any, ...]) -> None:
        cells = ", ".join("NULL" if cell is None else repr(str(cell)) for cell in row)
        said.append(f"INSERT INTO {schema}.{table} VALUES ({cells})")

    insert("cdm_source", (version,))
    for concept, (_, code) in CODES.items():
        name = "Gastrointestinal haemorrhage" if concept == BLEED else f"concept {concept}"
        insert("concept", (concept, name, DOMAINS[concept // 10], "S", code, "of FHIR"))
        insert("concept_ancestor", (concept, concept))
    for unit in (MG, MMOL):
        insert("concept", (unit, UNITS[unit], "Unit", "S", UNITS[unit], "UCUM"))
    for pair in BELOW:
        insert("concept_ancestor", pair)
    for person, (gender, born) in hospital.persons.items():
        insert("person", (person, gender, born.year, born.month, born.day))
    for person, first, last in hospital.periods or hospital.spans():
        insert("observation_period", (person, DAY + timedelta(first), DAY + timedelta(last)))
    for person, day in hospital.deaths.items():
        insert("death", (person, DAY + timedelta(day)))
    for number, one in enumerate(hospital.events):
        row = (number, one.person, one.concept, one.date, None, CODES[one.concept][1])
        measured = (one.value, one.unit, 0) if one.kind == "measurement" else ()
        insert(TABLES[one.kind][0], (*row, *measured))
    return said


def write_duckdb(path: Path, hospital: Hospital, version: str = "v5.4.0") -> Path:
    with duckdb.connect(str(path)) as connection:
        for statement in list_statements(hospital, version=version):
            connection.execute(statement)
    return path


def list_resources(hospital: Hospital) -> list[dict[str, Any]]:
    """The same persons and events as FHIR resources."""

    def coded(concept: int) -> dict[str, Any]:
        system, code = CODES[concept]
        return {"coding": [{"system": system, "code": code}]}

    resources: list[dict[str, Any]] = []
    for person, (gender, born) in hospital.persons.items():
        one = {"resourceType": "Patient", "id": str(person), "birthDate": born.isoformat()}
        one["gender"] = {8507: "male", 8532: "female"}.get(gender, "unknown")
        if person in hospital.deaths:
            one["deceasedDateTime"] = (DAY + timedelta(hospital.deaths[person])).isoformat()
        resources.append(one)
    for event in hospital.events:
        subject, day = {"reference": f"Patient/{event.person}"}, event.date.isoformat()
        if event.kind == "drug":
            made = {"resourceType": "MedicationRequest", "authoredOn": day}
            made["medicationCodeableConcept"] = coded(event.concept)
        elif event.kind == "condition":
            made = {"resourceType": "Condition", "onsetDateTime": day, "code": coded(event.concept)}
        elif event.kind == "procedure":
            made = {"resourceType": "Procedure", "performedDateTime": day, "code": coded(event.concept)}
        elif event.kind == "visit":
            made = {"resourceType": "Encounter", "period": {"start": day}}
            made["class"] = coded(event.concept)["coding"][0]
        else:
            made = {"resourceType": "Observation", "status": "final", "effectiveDateTime": day}
            made["code"] = coded(event.concept)
            if event.value is not None:
                unit = UNITS[event.unit]
                made["valueQuantity"] = {"value": event.value, "unit": unit, "code": unit}
                made["valueQuantity"]["system"] = "http://unitsofmeasure.org"
        resources.append({**made, "subject": subject})
    return resources


def write_export(folder: Path, hospital: Hospital) -> Path:
    """An NDJSON file for each type of resource."""
    folder.mkdir()
    for one in list_resources(hospital):
        with (folder / f"{one['resourceType']}.ndjson").open("a") as file:
            file.write(json.dumps(one) + "\n")
    return folder


def write_cohort(path: Path, source: str, sections: str) -> Path:
    """A cohort file; `source` is the line of [source] that says where."""
    path.write_text(f"[source]\n{source}\n{COHORT}\n{sections}")
    return path
