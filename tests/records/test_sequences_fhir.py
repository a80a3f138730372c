"""Dated codes from FHIR Condition resources."""

from __future__ import annotations

import gzip
import json

import pytest

import concilium as cc
from concilium.errors import RecordsError

ICD9, ICD10, SNOMED = (
    "http://hl7.org/fhir/sid/icd-9-cm",
    "http://hl7.org/fhir/sid/icd-10-cm",
    "http://snomed.info/sct",
)


def condition(patient="Patient/1", code="250.00", system=ICD9, when="2024-05-01", **more):
    coding = [{"system": SNOMED, "code": "73211009"}, {"system": system, "code": code}]
    return {
        "resourceType": "Condition",
        "subject": {"reference": patient},
        "code": {"coding": coding},
        **({} if when is None else {"onsetDateTime": when}),
        **more,
    }


def write_bundle(folder, *resources, addresses=None):
    entries = [
        {"resource": resource} | ({} if addresses is None else {"fullUrl": addresses[place]})
        for place, resource in enumerate(resources)
    ]
    path = folder / "bundle.json"
    path.write_text(json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries}))
    return path


def test_a_bundle_and_lines_read_the_same(tmp_path):
    resources = [
        {"resourceType": "Patient", "id": "3"},
        condition(when="2024-05-03"),
        condition("https://ehr.example/fhir/Patient/2/_history/7", "042", when="2024-05-01T12:00:00+02:00"),
        {"resourceType": "Observation", "status": "final"},
        condition(code=" V08 ", when="2024-05-01"),
    ]
    expected = {"3": [], "1": [(19844.0, "V08"), (19846.0, "250.00")], "2": [(19844.5, "042")]}
    lines = "\n".join(map(json.dumps, resources)) + "\n\n"
    (tmp_path / "conditions.ndjson").write_text(lines)
    (tmp_path / "conditions.ndjson.gz").write_bytes(gzip.compress(lines.encode()))
    for path in (
        write_bundle(tmp_path, *resources),
        tmp_path / "conditions.ndjson",
        tmp_path / "conditions.ndjson.gz",
    ):
        sequences = cc.Sequences.read_fhir(path)
        assert dict(zip(sequences.patients, sequences, strict=True)) == expected


def test_a_patient_is_found_by_the_address_of_the_entry(tmp_path):
    path = write_bundle(
        tmp_path,
        {"resourceType": "Patient", "id": "17"},
        condition("urn:uuid:aa-1"),
        condition("Patient/17", "042"),
        addresses=["urn:uuid:aa-1", "urn:uuid:bb", "urn:uuid:cc"],
    )
    sequences = cc.Sequences.read_fhir(path)
    assert (list(sequences.patients), sequences.counts.tolist()) == (["17"], [2])


@pytest.mark.parametrize(
    ("when", "days"),
    [
        ({"onsetDateTime": "2024"}, 19723.0),
        ({"onsetDateTime": "2024-05"}, 19844.0),
        ({"onsetDateTime": "2024-05-01T12:00:00.000Z"}, 19844.5),
        ({"onsetDateTime": "2024-05-01T12:00:00-08:00"}, 19844.5),
        ({"onsetPeriod": {"start": "2024-05-01"}, "recordedDate": "2025-01-01"}, 19844.0),
        ({"recordedDate": "2024-05-01"}, 19844.0),
    ],
)
def test_when_a_condition_began_or_was_recorded(tmp_path, when, days):
    path = write_bundle(tmp_path, condition(when=None, **when))
    assert cc.Sequences.read_fhir(path).times.tolist() == [days]


@pytest.mark.parametrize("status", ["refuted", "entered-in-error"])
def test_what_is_no_diagnosis_is_left_out(tmp_path, status):
    for said in (status, {"coding": [{"code": status}]}):
        path = write_bundle(tmp_path, condition(code="042", verificationStatus=said), condition())
        assert cc.Sequences.read_fhir(path).labels == ("250.00",)
    path = write_bundle(tmp_path, condition(verificationStatus={"coding": [{"code": "confirmed"}]}))
    assert cc.Sequences.read_fhir(path).labels == ("250.00",)


def test_classifications_are_not_mixed(tmp_path):
    path = write_bundle(
        tmp_path, condition(), condition(code="E11.9", system=ICD10), condition(system=SNOMED)
    )
    with pytest.raises(
        RecordsError, match=r"icd-9-cm \(first in entry 1\) and icd-10-cm \(first in entry 2\) are mixed"
    ):
        cc.Sequences.read_fhir(path)
    with pytest.raises(RecordsError, match=r"entry 2: the condition has codes of .*icd-10-cm.*others="):
        cc.Sequences.read_fhir(path, system="icd-9-cm")
    assert cc.Sequences.read_fhir(path, system="icd-9-cm", others="leave out").labels == ("250.00",)
    assert cc.Sequences.read_fhir(path, system=ICD10, others="leave out").labels == ("E11.9",)
    with pytest.raises(RecordsError, match=r"icd-9-cm .* are mixed"):
        cc.Sequences.read_fhir(path, others="leave out")


def test_a_condition_in_two_classifications_is_chosen_by_the_system(tmp_path):
    both = condition()
    both["code"]["coding"].append({"system": ICD10, "code": "E11.9"})
    path = write_bundle(tmp_path, both)
    with pytest.raises(RecordsError, match=r"entry 1: the condition has codes of .*choose with system="):
        cc.Sequences.read_fhir(path)
    assert cc.Sequences.read_fhir(path, system="icd-10-cm").labels == ("E11.9",)
    assert cc.Sequences.read_fhir(path, system=SNOMED).labels == ("73211009",)


@pytest.mark.parametrize(
    ("resource", "problem"),
    [
        (
            condition(when=None),
            "entry 1: the condition has no onsetDateTime, onsetPeriod.start or recordedDate",
        ),
        (
            condition(when="yesterday"),
            "entry 1: the condition has the time 'yesterday', which is none of FHIR's",
        ),
        (condition(when="2024-02-31"), "has the time '2024-02-31'"),
        (condition(patient=None), "entry 1: the condition has no subject.reference"),
        (condition(patient="Patient/"), "entry 1: a patient has no id"),
        (condition(code=""), "entry 1: the condition has codes of"),
        ({"resourceType": "Condition"}, "entry 1: the condition has no code"),
        ({"resourceType": "Observation"}, "holds no Condition and no Patient"),
        ({"code": 1}, "entry 1 is no FHIR resource"),
        (None, "entry 1 is no FHIR resource"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path, resource, problem):
    with pytest.raises(RecordsError, match=problem):
        cc.Sequences.read_fhir(write_bundle(tmp_path, resource))


def test_files_that_are_none(tmp_path):
    path = tmp_path / "conditions.ndjson"
    with pytest.raises(RecordsError, match="there is no file"):
        cc.Sequences.read_fhir(path)
    for text, problem in (
        (json.dumps(condition()) + "\n{", "line 2 is not JSON"),
        ("[]\n", "line 1 is no FHIR resource"),
        ("", "holds no Condition"),
    ):
        path.write_text(text)
        with pytest.raises(RecordsError, match=problem):
            cc.Sequences.read_fhir(path)
    bundle = tmp_path / "bundle.json"
    bundle.write_text("[" * 100_000)
    with pytest.raises(RecordsError, match="its text is not JSON"):
        cc.Sequences.read_fhir(bundle)
    bundle.write_text('{"resourceType": "Bundle", "entry": {"a": 1}}')
    with pytest.raises(RecordsError, match="entries of a bundle are a list"):
        cc.Sequences.read_fhir(bundle)
    bundle.write_bytes(b"\xff")
    with pytest.raises(RecordsError, match="not UTF-8"):
        cc.Sequences.read_fhir(bundle)


def test_the_words_of_the_arguments(tmp_path):
    path = write_bundle(tmp_path, condition())
    with pytest.raises(RecordsError, match=r"system must be one of icd-9-cm.*did you mean 'icd-9-cm'"):
        cc.Sequences.read_fhir(path, system="icd-9")
    with pytest.raises(RecordsError, match="others must be refuse or leave out"):
        cc.Sequences.read_fhir(path, others="skip")
