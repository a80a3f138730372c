"""From an OMOP database and a FHIR export to a table of patients.

python benchmarks/omop.py [persons] [measurements]      default 10,000 persons, 1,000,000 measurements

A generated CDM of DuckDB: 50 covariates (20 conditions, 15 drugs, 5 procedures, 10 measurements) out of 100 events of a
person. And a generated bulk export: NDJSON of patients, encounters and laboratory results, of which ten become columns.
Each reading is a process of its own. Memory is the peak of the process.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

CONDITIONS, DRUGS, PROCEDURES, MEASURED, EVENTS = 20, 15, 5, 10, 100
ENTRY, OUTCOME = 900, 901
KINDS = {  # table, concept, date, first concept, how many, share of the events
    "condition": ("condition_occurrence", "condition_concept_id", "condition_start", 100, CONDITIONS, 0.3),
    "drug": ("drug_exposure", "drug_concept_id", "drug_exposure_start", 200, DRUGS, 0.3),
    "procedure": ("procedure_occurrence", "procedure_concept_id", "procedure", 300, PROCEDURES, 0.1),
    "measurement": ("measurement", "measurement_concept_id", "measurement", 400, MEASURED, 0.3),
}


def write_cdm(path: Path, persons: int) -> None:
    connection = duckdb.connect(str(path))
    execute = connection.execute
    execute("SELECT setseed(0.5)")
    execute(
        f"CREATE TABLE person AS SELECT i AS person_id, CASE WHEN i % 2 = 0 THEN 8507 ELSE 8532 END AS"
        f" gender_concept_id, 1930 + i % 70 AS year_of_birth, 1 + i % 12 AS month_of_birth, 1 + i % 28 AS day_of_birth"
        f" FROM range(1, {persons} + 1) t(i)"
    )
    execute(
        "CREATE TABLE observation_period AS SELECT person_id, DATE '2010-01-01' AS observation_period_start_date,"
        " DATE '2022-12-31' AS observation_period_end_date FROM person"
    )
    execute("CREATE TABLE cdm_source AS SELECT '5.4' AS cdm_version")
    concepts = [(first + i, kind) for kind, (*_, first, many, _) in KINDS.items() for i in range(many)]
    concepts += [(ENTRY, "visit"), (OUTCOME, "condition")]
    rows = ", ".join(
        f"({one}, 'concept {one}', '{kind.title()}', 'S', '{one}', 'X')" for one, kind in concepts
    )
    rows += ", (8840, 'mg/dL', 'Unit', 'S', 'mg/dL', 'UCUM')"
    execute(
        f"CREATE TABLE concept AS SELECT * FROM (VALUES {rows}) v(concept_id, concept_name, domain_id,"
        " standard_concept, concept_code, vocabulary_id)"
    )
    execute(
        "CREATE TABLE concept_ancestor AS SELECT concept_id AS ancestor_concept_id, concept_id AS"
        " descendant_concept_id FROM concept"
    )
    execute(
        "CREATE TABLE visit_occurrence AS SELECT person_id AS visit_occurrence_id, person_id, 900 AS visit_concept_id,"
        " DATE '2020-06-01' + (person_id % 200)::INT AS visit_start_date FROM person"
    )
    for kind, (table, concept, start, first, many, share) in KINDS.items():
        more = ", 100 + random() * 50 AS value_as_number, 8840 AS unit_concept_id, 0 AS operator_concept_id"
        execute(
            f"CREATE TABLE {table} AS SELECT row_number() OVER () AS {table}_id, person_id, {first} + CAST(floor("
            f"random() * {many}) AS INT) AS {concept}, DATE '2019-01-01' + CAST(floor(random() * 500) AS INT) AS"
            f" {start}_date, NULL::TIMESTAMP AS {start}_datetime{more if kind == 'measurement' else ''}"
            f" FROM person, range({int(EVENTS * share)})"
        )
    execute(
        "INSERT INTO condition_occurrence SELECT -person_id, person_id, 901, DATE '2021-01-15', NULL FROM person"
        " WHERE random() < 0.2"
    )
    connection.close()


def write_cohort(path: Path, source: str, fhir: bool) -> None:
    def name(kind: str, number: int, more: str = "") -> str:
        first = KINDS[kind][3]
        return f"{kind}{number} = {{ {kind} = {first + number}{more} }}"

    lines = [f'[source]\n{"fhir" if fhir else "omop"} = "{source}"\n']
    if fhir:
        lines.append("[concepts]")
        lines += [f'lab{n} = {{ loinc = "{1000 + n}-1" }}' for n in range(MEASURED)]
        lines += ['visit = { encounter = "IMP" }', "[cohort]", 'entry = { visit = "visit" }', "[covariates]"]
        lines += ['age = "age"', 'sex = "sex"']
        lines += [f'lab{n} = {{ measurement = "lab{n}", unit = "mg/dL" }}' for n in range(MEASURED)]
    else:
        lines += ["[cohort]", f"entry = {{ visit = {ENTRY} }}", "observed_before = 365"]
        lines += [
            "[outcome]",
            'name = "outcome"',
            f"condition = {OUTCOME}",
            "days = [1, 365]",
            "[covariates]",
        ]
        lines += ['age = "age"', 'sex = "sex"']
        for kind, (*_, many, _) in KINDS.items():
            unit = ', unit = "mg/dL"' if kind == "measurement" else ""
            lines += [name(kind, number, unit) for number in range(many)]
    path.write_text("\n".join(lines) + "\n")


def write_export(folder: Path, measurements: int) -> int:
    """NDJSON as a bulk export writes it, 100 results of a patient; how many bytes."""
    folder.mkdir()
    dice, patients = random.Random(1), max(1, measurements // 100)
    with (folder / "Patient.ndjson").open("w") as file:
        for n in range(patients):
            one = {"resourceType": "Patient", "id": f"p{n}", "gender": "female", "birthDate": "1960-05-01"}
            file.write(json.dumps(one) + "\n")
    with (folder / "Encounter.ndjson").open("w") as file:
        for n in range(patients):
            one = {
                "resourceType": "Encounter",
                "id": f"e{n}",
                "status": "finished",
                "class": {"system": "http://terminology.hl7.org/CodeSystem/v3-ActCode", "code": "IMP"},
                "subject": {"reference": f"Patient/p{n}"},
                "period": {"start": "2024-01-10T08:00:00+01:00", "end": "2024-01-20"},
            }
            file.write(json.dumps(one) + "\n")
    with (folder / "Observation.ndjson").open("w") as file:
        for n in range(measurements):
            code = 1000 + dice.randrange(2 * MEASURED)
            day = f"2023-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}T07:{dice.randrange(60):02d}:00+01:00"
            one = {
                "resourceType": "Observation",
                "id": f"o{n}",
                "meta": {"lastUpdated": "2024-02-01T00:00:00Z"},
                "status": "final",
                "category": [{"coding": [{"system": "http://hl7.org/c", "code": "laboratory"}]}],
                "code": {
                    "coding": [{"system": "http://loinc.org", "code": f"{code}-1", "display": "a result"}]
                },
                "subject": {"reference": f"Patient/p{n % patients}"},
                "encounter": {"reference": f"Encounter/e{n % patients}"},
                "effectiveDateTime": day,
                "valueQuantity": {
                    "value": round(dice.gauss(100, 15), 1),
                    "unit": "mg/dL",
                    "system": "http://unitsofmeasure.org",
                    "code": "mg/dL",
                },
            }
            file.write(json.dumps(one) + "\n")
    return sum(one.stat().st_size for one in folder.iterdir())


def measure(path: str) -> None:
    import concilium as cc

    start = time.perf_counter()
    records = cc.Records.read(path)
    seconds = time.perf_counter() - start
    work = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    columns = len(records.names) - 2
    print(
        f"{len(records):,} persons, {columns} covariates: {seconds:.1f} s, {work:.1f} s of processor, {peak:.2f} GB "
        "at most"
    )


def main() -> None:
    persons, measurements = (
        int(sys.argv[place]) if len(sys.argv) > place else usual
        for place, usual in ((1, 10_000), (2, 1_000_000))
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cdm(folder / "cdm.duckdb", persons)
        write_cohort(folder / "omop.toml", "cdm.duckdb", fhir=False)
        size = write_export(folder / "export", measurements)
        write_cohort(folder / "fhir.toml", "export", fhir=True)
        print(f"OMOP, {persons:,} persons with {EVENTS} events each:")
        subprocess.run([sys.executable, __file__, "--read", str(folder / "omop.toml")], check=True)
        print(f"FHIR, {measurements:,} measurements in {size / 1e6:,.0f} MB of NDJSON:")
        subprocess.run([sys.executable, __file__, "--read", str(folder / "fhir.toml")], check=True)


if __name__ == "__main__":
    measure(sys.argv[2]) if sys.argv[1:2] == ["--read"] else main()
