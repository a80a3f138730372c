"""A cohort file against an OMOP database: the table is what the rows say, by an oracle written apart; and what is wrong
with file or database is a sentence."""

from __future__ import annotations

import math
import re
import statistics
import sys
import tomllib
import types
from datetime import date

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from cdm import (
    BELOW,
    BLEED,
    BLEED_BELOW,
    DAY,
    DRUG,
    DRUG_BELOW,
    HOSPITAL,
    LAB,
    MG,
    MMOL,
    PAIN,
    SECTIONS,
    SURGERY,
    WARD,
    Happening,
    Hospital,
    write_cohort,
    write_duckdb,
    write_export,
)
from concilium.errors import ConciliumError, MissingExtra, RecordsError, StudyError
from concilium.records.cdm_databases import ServerCdm
from concilium.records.cohort_dictionary import complete_draft
from concilium.records.cohort_file import CohortFile
from concilium.records.drafting import draft_dictionary
from concilium.records.omop_statements import SQL_SERVER
from concilium.records.sequences import Sequences
from concilium.records.series import Series

KIND_OF = {
    DRUG: "drug",
    DRUG_BELOW: "drug",
    BLEED: "condition",
    BLEED_BELOW: "condition",
    PAIN: "condition",
    LAB: "measurement",
    SURGERY: "procedure",
    WARD: "visit",
}
WAYS = {"leave out": "", "no": 'lost = "no"\nbefore = "keep"', "time": 'time = "days"'}


@st.composite
def hospitals(draw):
    persons = {
        person: (
            draw(st.sampled_from([8507, 8532, 0])),
            date(
                draw(st.sampled_from([1935, 1960, 2005])), draw(st.integers(1, 12)), draw(st.integers(1, 28))
            ),
        )
        for person in range(1, draw(st.integers(2, 5)))
    }
    # Somebody who is no patient here has one of everything, so that every code system is in use.
    events = [Happening(kind, 99, concept, 0) for concept, kind in KIND_OF.items()]
    for person in persons:
        for concept in (DRUG, WARD, *draw(st.lists(st.sampled_from(sorted(KIND_OF)), max_size=12))):
            one = Happening(KIND_OF[concept], person, concept, draw(st.integers(0, 40)))
            if concept == LAB:
                one.value = draw(st.sampled_from([None, 90.0, 5.5, 101.25]))
                one.unit = draw(st.sampled_from([MG, MMOL, 0]))
            events.append(one)
    # The CDM has one moment a day here: of two values of a day, the later row counts.
    return Hospital(persons, events)


def work_out(hospital, way):
    """What the table must say, event by event in plain Python."""

    def days_of(person, concepts):
        below = {lower for upper, lower in BELOW if upper in concepts}
        return [
            one.day for one in hospital.events if one.person == person and one.concept in {*concepts, *below}
        ]

    spans = {person: (first, last) for person, first, last in hospital.spans()}
    table = {}
    for person, (gender, born) in hospital.persons.items():
        entry = min(days_of(person, [DRUG]))
        first, last = spans[person]
        on = date.fromordinal(DAY.toordinal() + entry)
        age = on.year - born.year - ((on.month, on.day) < (born.month, born.day))
        gaps = {
            name: [day - entry for day in days_of(person, [name])] for name in (PAIN, BLEED, WARD, SURGERY)
        }
        visited = any(-30 <= gap <= 0 for gap in gaps[WARD])
        operated = sum(-5 <= gap <= 0 for gap in gaps[SURGERY])
        if entry - first < 3 or not visited or operated >= 2 or not 20 <= age <= 80:
            continue
        bleeds = [gap for gap in gaps[BLEED] if 1 <= gap <= 10]
        if way != "no" and any(gap < 1 for gap in gaps[BLEED]):
            continue
        if way == "leave out" and not bleeds and last - entry < 10:
            continue
        if way == "time" and not bleeds and last - entry < 1:
            continue
        values = [
            (one.day, place, one.value * (18 if one.unit == MMOL else 1))
            for place, one in enumerate(hospital.events)
            if one.person == person and one.concept == LAB and one.value is not None
        ]
        inside = [(day, place, value) for day, place, value in values if -365 <= day - entry <= 0]
        amounts = [value for *_, value in inside]
        row = {
            "patient": str(person),
            "entry": on.isoformat(),
            "age": age,
            "sex": {8507: "male", 8532: "female"}.get(gender),
            "pain": "yes" if any(-20 <= gap <= 0 for gap in gaps[PAIN]) else "no",
            "often": "yes" if sum(-20 <= gap <= 0 for gap in gaps[PAIN]) >= 2 else "no",
            "pains": sum(-20 <= gap <= -1 for gap in gaps[PAIN]),
            "glucose": max(inside)[2] if inside else None,
            "lowest": min(amounts, default=None),
            "highest": max(amounts, default=None),
            "mean": statistics.fmean(amounts) if amounts else None,
            "measured": sum(-365 <= day - entry <= 0 for day in days_of(person, [LAB])),
            "bleed": "yes" if bleeds else "no",
        }
        if way == "time":
            row["days"] = min(bleeds, default=min(last - entry, 10))
        table[str(person)] = row
    return table


def same(one, other):
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def rows_of(records):
    return [
        dict(zip(records.names, row, strict=True))
        for row in zip(*map(records.values, records.names), strict=True)
    ]


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hospital=hospitals())
def test_the_table_is_what_the_rows_say(way, hospital, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cdm")
    write_duckdb(folder / "x.duckdb", hospital)
    write_export(folder / "export", hospital)
    expected = work_out(hospital, way)
    for source in ('omop = "x.duckdb"', 'fhir = "export"'):
        path = write_cohort(folder / "x.toml", source, SECTIONS.replace("WAY", WAYS[way]))
        if not expected:
            with pytest.raises(RecordsError, match="nobody"):
                cc.Records.read(path)
            continue
        rows = rows_of(cc.Records.read(path))
        assert sorted(row["patient"] for row in rows) == sorted(expected)  # FHIR: in the order of its files
        for row in rows:
            wanted = expected[row["patient"]]
            assert row.keys() == wanted.keys()
            assert {
                name: (row[name], wanted[name]) for name in row if not same(row[name], wanted[name])
            } == {}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospital")
    write_duckdb(folder / "x.duckdb", HOSPITAL)
    write_export(folder / "export", HOSPITAL)
    return folder


def test_cdm_5_3_is_read_and_a_cdm_without_a_version(place, tmp_path):
    sections = SECTIONS.replace("WAY", "")
    ours = cc.Patients.read(write_cohort(place / "ours.toml", 'omop = "x.duckdb"', sections))
    for version in ("5.3.1", "v5.3", "CDM v5.4.0", ""):
        (tmp_path / "y.duckdb").unlink(missing_ok=True)
        write_duckdb(tmp_path / "y.duckdb", HOSPITAL, version=version)
        theirs = cc.Patients.read(write_cohort(tmp_path / "y.toml", 'omop = "y.duckdb"', sections))
        assert theirs.digest == ours.digest


@pytest.mark.parametrize("source", ['omop = "x.duckdb"', 'fhir = "export"'])
def test_codes_and_series_are_of_the_same_patients_as_the_table(place, source):
    path = write_cohort(place / "parts.toml", source, SECTIONS.replace("WAY", ""))
    patients = cc.Patients.read(path, step="1d")
    assert patients.reads == ("table", "series", "codes")
    assert patients.table.values("patient") == ["1", "2"]
    code = {"1": [(-5.0, "22253000"), (0.0, "140587")], "2": [(0.0, "213469")]}
    assert [list(one) for one in patients.codes] == list(code.values())
    glucose = patients.series["glucose"]
    assert glucose.shape == (9, 2)  # ten days before entry, to the last value
    assert glucose[6, 0] == 90.0
    assert glucose[8, 0] == 90.0  # 5 mmol/L
    assert list(Sequences.read(path)[0]) == code["1"]
    assert Series.read(path, step="1d").names == ("glucose",)
    assert len(cc.Records.read(path, table="codes")) == 3


def test_a_first_entry_is_by_patient_and_every_entry_is_by_encounter(place):
    path = write_cohort(
        place / "every.toml", 'omop = "x.duckdb"', '[cohort]\nentry = { drug = "drug" }\nwhich = "every"\n'
    )
    assert cc.Records.read(path).values("patient") == ["1", "2", "2"]
    assert cc.Patients.read(path).people == 2


def test_where_one_cell_is_read_no_other_patient_matters(place, tmp_path):
    one = Hospital({1: HOSPITAL.persons[1]}, [event for event in HOSPITAL.events if event.person == 1])
    write_duckdb(tmp_path / "x.duckdb", one)
    sections = SECTIONS.replace("WAY", "")
    alone = rows_of(cc.Records.read(write_cohort(tmp_path / "x.toml", 'omop = "x.duckdb"', sections)))
    beside = rows_of(cc.Records.read(write_cohort(place / "x.toml", 'omop = "x.duckdb"', sections)))
    assert alone == [row for row in beside if row["patient"] == "1"]
    table = cc.Records.read(place / "x.toml")
    assert all(table[name].by_itself for name in table.names)


def test_a_statement_is_sent_once_for_a_kind_however_many_covariates(place, monkeypatch):
    from concilium.records import cdm_databases

    sent = []
    ask = cdm_databases.DuckDBCdm.batches
    monkeypatch.setattr(
        cdm_databases.DuckDBCdm, "batches", lambda self, text: sent.append(text) or ask(self, text)
    )
    counts = []
    for many in (1, 30):
        lines = [f"pain{n} = {{ condition = {PAIN}, days = [-{n + 1}, 0] }}" for n in range(many)]
        sections = '[cohort]\nentry = { drug = "drug" }\n[covariates]\n' + "\n".join(lines)
        cc.Records.read(write_cohort(place / "many.toml", 'omop = "x.duckdb"', sections))
        counts.append(len(sent))
        sent.clear()
    assert counts[0] == counts[1] == 4  # version, concepts, persons, conditions


COHORT = '[cohort]\nentry = { drug = "drug" }\n'
FAULTS = {
    "no entry": ("[cohort]\n", "[cohort] needs the key entry"),
    "unknown section": (
        f"{COHORT}[covariate]\n",
        "there is no section [covariate]; did you mean 'covariates'?",
    ),
    "unknown key": (
        f"{COHORT}observed = 3\n",
        "[cohort] has no key 'observed'; did you mean 'observed_before'?",
    ),
    "unknown set": (
        '[cohort]\nentry = { drug = "drugs" }',
        "names 'drugs', which is not under [concepts]; did you",
    ),
    "unknown kind": ('[cohort]\nentry = { drugs = "drug" }', "has no key 'drugs'; did you mean 'drug'?"),
    "two kinds": ("[cohort]\nentry = { drug = 11, visit = 51 }", "names one of"),
    "outcome before entry": (
        f"{COHORT}[outcome]\ncondition = 21\ndays = [-3, 30]",
        "begin 3 days before entry",
    ),
    "covariate after entry": (
        f"{COHORT}[covariates]\nx = {{ condition = 21, days = [-3, 3] }}",
        "end 3 days after entry",
    ),
    "falling window": (f"{COHORT}[covariates]\nx = {{ condition = 21, days = [0, -3] }}", "in rising order"),
    "no window": (f"{COHORT}[covariates]\nx = {{ condition = 21, days = 3 }}", "must be two days"),
    "not a concept": (
        f"{COHORT}[covariates]\nx = {{ condition = '21; DROP TABLE person' }}",
        "is not under [concep",
    ),
    "a number as text": (f"{COHORT}[covariates]\nx = {{ condition = 2.5 }}", "must be an OMOP concept id"),
    "a sum of conditions": (
        f"{COHORT}[covariates]\nx = {{ condition = 21, take = 'mean' }}",
        "one of any, count",
    ),
    "a unit of a count": (
        f"{COHORT}[covariates]\nx = {{ measurement = 31, take = 'count', unit = 'kg' }}",
        "has no unit",
    ),
    "a number at least": (
        f"{COHORT}[covariates]\nx = {{ condition = 21, take = 'count', at_least = 2 }}",
        "at_least is for yes or no, and take = 'count' is a number",
    ),
    "age twice": (f'{COHORT}[covariates]\na = "age"\nb = "age"', "age stands there twice"),
    "a column twice": (f'{COHORT}date = "x"\n[covariates]\nx = "age"', "two columns are called 'x'"),
    "which": (f'{COHORT}which = "last"', 'which must be "first" or "every"'),
    "a dead concept": ("[cohort]\nentry = { death = 4 }", "must be true"),
    "every with codes": (f'{COHORT}which = "every"\n[codes]\nkinds = ["drug"]', "several rows"),
    "code kinds": (f'{COHORT}[codes]\nkinds = ["death"]', "[codes] kinds must be of"),
    "lost and time": (
        f'{COHORT}[outcome]\ncondition = 21\ntime = "t"\nlost = "no"',
        "has no meaning beside time",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_in_a_cohort_file_is_a_sentence(fault, tmp_path):
    sections, sentence = FAULTS[fault]
    path = write_cohort(tmp_path / "x.toml", 'omop = "x.duckdb"', sections)
    with pytest.raises(StudyError, match=re.escape(sentence)) as caught:
        CohortFile.read(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("", "names neither: give omop"),
        ('omop = "x.duckdb"\nfhir = "export"', "names both"),
        ('omop = "x.duckdb"\nschema = "main; DROP"', "must be a name of letters"),
        ('omop = "x.duckdb"\nscheme = "main"', "[source] has no key 'scheme'; did you mean 'schema'?"),
        ('omop = "x.duckdb"\ncohort = "other.toml"', "and [concepts] stands here too"),
        ('fhir = "export"\nschema = "main"', "schema is for omop only"),
    ],
)
def test_what_is_wrong_with_a_source_is_a_sentence(source, sentence, tmp_path):
    with pytest.raises(StudyError, match=re.escape(sentence)):
        CohortFile.read(write_cohort(tmp_path / "x.toml", source, COHORT))


DATABASES = {
    "no file": ('omop = "y.duckdb"', "", "there is no file"),
    "wrong schema": ('omop = "x.duckdb"\nschema = "cdm"', "", "there is no schema 'cdm'; there are: main"),
    "missing table": (
        'omop = "no-visits.duckdb"',
        "",
        "has no table 'visit_occurrence' that can be read",
    ),
    "vocabulary elsewhere": (
        'omop = "elsewhere.duckdb"',
        "",
        "has no table 'concept' that can be read, and the cohort file needs it; 'vocab' has one: write vocabulary = ",
    ),
    "missing column": ('omop = "no-gender.duckdb"', "", "table 'person' has no column gender_concept_id"),
    "version": ('omop = "old.duckdb"', "", "says CDM version '4.0'; versions 5.3 and 5.4 are read"),
    "unknown concept": (
        'omop = "x.duckdb"',
        "[covariates]\nx = { condition = 77 }",
        "concept 77 is not in the",
    ),
    "other domain": (
        'omop = "x.duckdb"',
        "[covariates]\nx = { condition = 11 }",
        "concept 11 (concept 11) is of the domain Drug, and the file looks for it among the conditions",
    ),
    "not standard": (
        'omop = "not-standard.duckdb"',
        "",
        "concept 11 of 'drug' (concept 11) is no standard concept, so that nobody has it",
    ),
    "empty cohort": (
        'omop = "x.duckdb"',
        "[outcome]\ncondition = 21\ndays = [5, 4000]\n",
        "nobody of the 2 in the cohort has a known outcome",
    ),
    "two units": (
        'omop = "x.duckdb"',
        "[covariates]\nx = { measurement = 31 }",
        "x is measured in mg/dL and mmol/L: say which one it should be, unit = ",
    ),
    "no driver": ('omop = "oracle://host/cdm"', "", "cannot read a CDM from a oracle:// address"),
    "damaged": ('omop = "damaged.duckdb"', "", "cannot be opened as a DuckDB file"),
}


@pytest.fixture(scope="module")
def faulty(place):
    changes = {
        "no-visits": "DROP TABLE visit_occurrence",
        "no-gender": "ALTER TABLE person DROP COLUMN gender_concept_id",
        "elsewhere": "CREATE SCHEMA vocab; CREATE TABLE vocab.concept AS FROM concept; DROP TABLE concept",
        "old": "UPDATE cdm_source SET cdm_version = 'V4.0'",
        "not-standard": "UPDATE concept SET standard_concept = NULL WHERE concept_id = 11",
    }
    for name, statement in changes.items():
        with duckdb.connect(str(write_duckdb(place / f"{name}.duckdb", HOSPITAL))) as connection:
            connection.execute(statement)
    (place / "damaged.duckdb").write_text("no database")
    return place


@pytest.mark.parametrize("fault", DATABASES)
def test_what_is_wrong_with_a_database_is_a_sentence(fault, faulty):
    source, sections, sentence = DATABASES[fault]
    cohort = f'{COHORT}require = [{{ visit = "ward" }}]\nage = [60, 80]\n'
    path = write_cohort(faulty / "fault.toml", source, cohort + sections)
    with pytest.raises(ConciliumError, match=re.escape(sentence)) as caught:
        cc.Records.read(path)
    assert "\n" not in str(caught.value)


def test_codes_are_those_of_the_vocabulary_and_silence_means_no_only_where_all_are_listed(tmp_path):
    with duckdb.connect(str(write_duckdb(tmp_path / "x.duckdb", HOSPITAL))) as connection:
        connection.execute("UPDATE concept SET vocabulary_id = 'RxNorm' WHERE concept_id IN (11, 12)")
        connection.execute("UPDATE concept SET vocabulary_id = 'SNOMED' WHERE concept_id = 23")
        connection.execute(
            "INSERT INTO concept SELECT i, 'x', 'Condition', 'S', 'K92.' || i, 'ICD10CM' FROM range(1000, 1400) t(i)"
        )
        connection.execute("INSERT INTO concept_ancestor SELECT 21, i FROM range(1000, 1400) t(i)")
    sections = f"""{COHORT}[covariates]
drugs = {{ drug = 11 }}
pain = {{ condition = "pain" }}
bleed = {{ condition = "bleed" }}
twice = {{ condition = "pain", at_least = 2 }}
mean = {{ measurement = "glucose", take = "mean", unit = "mg/dL", molar_mass = 180 }}
"""
    path = write_cohort(tmp_path / "x.toml", 'omop = "x.duckdb"', sections)
    draft = complete_draft(draft_dictionary({"x": cc.Records.read(path)}), CohortFile.read(path))
    found = {name: (one.codes, one.absent) for name, one in draft.dictionary.entries.items()}
    assert found["drugs"] == ({"rxnorm": "140587, 213469"}, "no")
    assert found["pain"] == ({"snomed": "22253000"}, "no")
    assert found["twice"] == ({}, "")
    codes, absent = found["bleed"]
    assert codes["icd10cm"].startswith("K92.2, K92.1000, K92.1001, ")
    assert (len(codes["icd10cm"]) <= 1000, absent) == (True, "")
    assert re.fullmatch(r"\d+ more codes are below these: .*", draft.notes["bleed"])
    cc.Dictionary.parse({"bleed": tomllib.loads(draft.to_toml(["x"]))["dictionary"]["bleed"]}, "the draft")


def test_a_database_by_itself_says_what_to_write(place):
    with pytest.raises(RecordsError, match=r"is an OMOP database.*\[cohort\] entry = .*, such as person"):
        cc.Records.read(place / "x.duckdb")
    with pytest.raises(StudyError, match=r"is not a TOML file; a cohort file says who the patients"):
        cc.Patients.read(place / "x.duckdb")
    assert len(cc.Records.read(place / "x.duckdb", table="person")) == 3


def test_an_empty_cohort_says_how_far_patients_came(place):
    path = write_cohort(place / "none.toml", 'omop = "x.duckdb"', f"{COHORT}observed_before = 15\n")
    assert cc.Records.read(path).values("patient") == ["2"]
    for more, sentence in {
        "observed_before = 400": "2 had the entry event, and none of them was under observation then, and for 400 days",
        "age = [10, 20]": "of these 2 were left by require and exclude; age and sex left none",
        'require = [{ procedure = "surgery" }]': "require and exclude left none of them",
    }.items():
        write_cohort(path, 'omop = "x.duckdb"', f"{COHORT}{more}\n")
        with pytest.raises(RecordsError, match=sentence):
            cc.Records.read(path)


def test_rows_without_a_unit_are_in_the_one_that_is_stated(tmp_path):
    events = [*HOSPITAL.events, Happening("measurement", 1, LAB, 9, 7.0, 0)]
    write_duckdb(tmp_path / "x.duckdb", Hospital(HOSPITAL.persons, events))

    def read(covariate):
        sections = f"{COHORT}[covariates]\nx = {{ measurement = 31, {covariate} }}\n"
        return cc.Records.read(write_cohort(tmp_path / "x.toml", 'omop = "x.duckdb"', sections)).values("x")

    with pytest.raises(RecordsError, match="some rows have no unit"):
        read('unit = "mg/dL", molar_mass = 180')
    assert read('unit = "mg/dL", molar_mass = 180, without_unit = "mmol/L"') == [126.0, None]
    with pytest.raises(RecordsError, match=r"mmol/L cannot be converted to mg/dL.*molar_mass"):
        read('unit = "mg/dL", without_unit = "mg/dL"')


def test_a_value_with_an_operator_is_no_number(tmp_path):
    write_duckdb(tmp_path / "x.duckdb", HOSPITAL)
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        connection.execute(
            "UPDATE measurement SET operator_concept_id = 4171756 WHERE unit_concept_id = 8753"
        )
    sections = (
        f"{COHORT}[covariates]\nx = {{ measurement = 31 }}\nn = {{ measurement = 31, take = 'count' }}\n"
    )
    table = cc.Records.read(write_cohort(tmp_path / "x.toml", 'omop = "x.duckdb"', sections))
    assert (table.values("x"), table.values("n")) == ([90.0, None], [2, 0])


# SQL Server: its statements run here in DuckDB, which knows all of them but DATEDIFF and DATEPART.


class _Cursor:
    def __init__(self, connection):
        self._connection = connection.cursor()

    def execute(self, statement):
        assert not re.search(r"EXTRACT|TIMESTAMP\)|hospital\.", statement)
        statement = re.sub(r"DATE(DIFF|PART)\((\w+),", r"date_\1('\2',", statement).replace(
            "date_DIFF", "date_diff"
        )
        self._connection.execute(
            statement.replace("date_PART", "date_part").replace("DATETIME2", "TIMESTAMP")
        )
        self.description = self._connection.description

    def fetchmany(self, rows):
        return self._connection.fetchmany(rows)

    def fetchall(self):
        return self._connection.fetchall()

    def close(self):
        self._connection.close()


def pretend_odbc(monkeypatch, drivers, database=None, settings_seen=None):
    module = types.ModuleType("pyodbc")

    class Failure(Exception):
        pass

    def connect(text, **more):
        if settings_seen is not None:
            settings_seen.append((text, more))
        if database is None:
            raise Failure("('28000', \"Login failed for user 'ada' with password 'secret'\")")
        opened = duckdb.connect(str(database), read_only=True)
        return types.SimpleNamespace(cursor=lambda: _Cursor(opened), close=opened.close)

    module.Error, module.drivers, module.connect = Failure, lambda: drivers, connect
    monkeypatch.setitem(sys.modules, "pyodbc", module)


ODBC = "ODBC Driver 18 for SQL Server"


def test_the_statements_of_sql_server_make_the_same_table(place, monkeypatch):
    seen = []
    pretend_odbc(monkeypatch, [ODBC], place / "x.duckdb", seen)
    sections = SECTIONS.replace("WAY", "")
    ours = cc.Records.read(write_cohort(place / "duckdb.toml", 'omop = "x.duckdb"', sections))
    address = 'omop = "mssql://ada:sec%7Dret@host:1433/cdm"\nschema = "main"'
    path = write_cohort(place / "mssql.toml", address, sections)
    assert rows_of(cc.Records.read(path)) == rows_of(ours)
    ((text, more),) = seen
    assert "Server={host,1433};Database={cdm};UID={ada};PWD={sec}}ret}" in text
    assert more["readonly"] is True
    parts = cc.Patients.read(path)
    assert parts.series["glucose"][8, 0] == 90.0
    assert [len(one) for one in parts.codes] == [2, 1]


@pytest.mark.parametrize(
    ("address", "drivers", "sentence"),
    [
        ("mssql://ada:secret@host/cdm", [ODBC], "SQL Server at host:1433 does not answer"),
        (
            "mssql://ada:secret@host/cdm",
            ["FreeTDS"],
            f"the ODBC driver '{ODBC}' is not installed; there are: FreeTDS",
        ),
        ("mssql://ada:secret@host/cdm?driver=Nine", [], "driver 'Nine' is not installed; there are: none"),
        ("mssql://host", [ODBC], "this is no address of SQL Server"),
    ],
)
def test_what_is_wrong_with_sql_server_is_a_sentence(place, monkeypatch, address, drivers, sentence):
    pretend_odbc(monkeypatch, drivers)
    path = write_cohort(place / "wrong.toml", f'omop = "{address}"', COHORT)
    with pytest.raises(RecordsError, match=re.escape(sentence)) as caught:
        cc.Records.read(path)
    assert "secret" not in str(caught.value)


def test_a_missing_driver_is_named(place, monkeypatch):
    path = write_cohort(place / "mssql.toml", 'omop = "mssql://host/cdm"', COHORT)
    monkeypatch.setitem(sys.modules, "pyodbc", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'concilium[sqlserver]'")):
        cc.Records.read(path)


def test_a_server_that_fails_is_a_sentence():
    class Failing:
        def execute(self, statement):
            raise ValueError("row 3 of person holds 'Ada'")

    cdm = ServerCdm(Failing, "SQL Server at host:1433", "dbo", SQL_SERVER, ValueError)
    with pytest.raises(RecordsError, match="could not be read") as caught:
        list(cdm.batches("SELECT 1"))
    assert "Ada" not in str(caught.value)
