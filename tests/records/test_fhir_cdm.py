"""FHIR resources by a cohort file: bundles, NDJSON and a server on loopback; and what is wrong with them."""

from __future__ import annotations

import gzip
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

import concilium as cc
from cdm import HOSPITAL, SECTIONS, list_resources, write_cohort, write_export
from concilium.errors import MissingExtra, RecordsError, StudyError
from concilium.records import fhir_server
from concilium.records.cohort_file import CohortFile
from concilium.records.fhir_resources import OIDS, SYSTEMS
from concilium.records.fhir_server import list_searches

COHORT = '[cohort]\nentry = { visit = "ward" }\n[covariates]\nglucose = { measurement = "glucose" }\n'
WARD = {"system": SYSTEMS["encounter"], "code": "IMP"}
GLUCOSE = {"coding": [{"system": SYSTEMS["loinc"], "code": "2345-7"}]}
PATIENT = {"resourceType": "Patient", "id": "p1", "gender": "female", "birthDate": "1960-05"}
STAY = {
    "resourceType": "Encounter",
    "status": "finished",
    "class": WARD,
    "subject": {"reference": "Patient/p1"},
    "period": {"start": "2024-03-01T08:00:00+01:00", "end": "2024-03-09"},
}
RESULT = {
    "resourceType": "Observation",
    "status": "final",
    "code": GLUCOSE,
    "subject": {"reference": "Patient/p1"},
    "effectiveDateTime": "2024-02-28T07:30:00+01:00",
    "valueQuantity": {"value": 95, "unit": "mg/dL"},
}


def write_lines(folder: Path, *resources: object, name: str = "all.ndjson") -> Path:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in resources]
    (folder / name).write_text("\n".join(lines) + "\n")
    return write_cohort(folder / "x.toml", f'fhir = "{name}"', COHORT)


def read(path: Path) -> list[dict[str, object]]:
    table = cc.Records.read(path)
    return [
        dict(zip(table.names, row, strict=True)) for row in zip(*map(table.values, table.names), strict=True)
    ]


def test_a_bundle_whose_entries_are_named_by_uuids(tmp_path):
    address = "urn:uuid:8c95253e-8ee8-9ae8-6d40-021d702dc78e"
    entries = [
        {"fullUrl": "urn:uuid:1", "resource": {**RESULT, "subject": {"reference": address}}},
        {"fullUrl": address, "resource": PATIENT},
        {"fullUrl": "urn:uuid:2", "resource": STAY},
        {"fullUrl": "urn:uuid:3", "resource": {"resourceType": "Provenance", "code": 5}},
        {"fullUrl": "urn:uuid:4"},
    ]
    (tmp_path / "bundle.json").write_text(
        json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries})
    )
    path = write_cohort(tmp_path / "x.toml", 'fhir = "bundle.json"', COHORT)
    assert read(path) == [{"patient": "p1", "glucose": 95.0}]


def test_whatever_form_an_export_has_it_is_the_same_table(tmp_path):
    resources = list_resources(HOSPITAL)
    sections = SECTIONS.replace("WAY", "")
    write_export(tmp_path / "export", HOSPITAL)
    (tmp_path / "gz").mkdir()
    for file in (tmp_path / "export").iterdir():
        (tmp_path / "gz" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    (tmp_path / "all.jsonl").write_text("\n\n".join(map(json.dumps, reversed(resources))))
    bundle = {"resourceType": "Bundle", "entry": [{"resource": one} for one in resources]}
    (tmp_path / "bundle.json").write_text(json.dumps(bundle))
    digests = {
        cc.Patients.read(write_cohort(tmp_path / "x.toml", f'fhir = "{form}"', sections)).digest
        for form in ("export", "gz", "all.jsonl", "bundle.json")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("change", "glucose"),
    [
        ({}, 95.0),
        ({"valueQuantity": {"value": 95, "comparator": "<"}}, None),
        ({"valueQuantity": None, "valueInteger": 7}, 7.0),
        ({"status": "entered-in-error"}, None),
        ({"subject": {"reference": "https://example.org/fhir/Patient/p1"}}, 95.0),
        ({"subject": {"reference": "Patient/p2"}}, None),
        ({"subject": {"reference": "Group/p1"}}, None),
        ({"subject": {}}, None),
        ({"effectiveDateTime": None, "effectivePeriod": {"start": "2024-02-01", "end": "2024-02-02"}}, 95.0),
        ({"effectiveDateTime": None, "effectiveInstant": "2024-02-28T07:30:00.5Z"}, 95.0),
        ({"effectiveDateTime": "2024-02"}, 95.0),
        ({"effectiveDateTime": "2024"}, 95.0),
        ({"effectiveDateTime": "2024-03-02"}, None),
        ({"effectiveDateTime": None}, None),
        ({"code": {"coding": [{"system": next(iter(OIDS)), "code": "2345-7"}]}}, 95.0),
        ({"code": {"coding": [{"system": "urn:local", "code": "GLU"}, *GLUCOSE["coding"]]}}, 95.0),
        ({"code": {"text": "a panel"}, "component": [{"code": GLUCOSE, "valueQuantity": {"value": 7}}]}, 7.0),
    ],
)
def test_a_result_counts_as_it_says(change, glucose, tmp_path):
    result = {name: value for name, value in {**RESULT, **change}.items() if value is not None}
    path = write_lines(tmp_path, result, STAY, PATIENT, {"resourceType": "Device", "id": "d1"})
    assert read(path) == [{"patient": "p1", "glucose": glucose}]


def test_drugs_are_found_by_reference_too_and_codes_of_icd_by_the_longer_ones(tmp_path):
    medication = {"resourceType": "Medication", "id": "m1"}
    medication["code"] = {"coding": [{"system": SYSTEMS["rxnorm"], "code": "140587"}]}
    given = {
        "resourceType": "MedicationAdministration",
        "status": "completed",
        "subject": {"reference": "Patient/p1"},
        "medicationReference": {"reference": "Medication/m1"},
        "effectivePeriod": {"start": "2024-02-20"},
    }
    bleed = {
        "resourceType": "Condition",
        "subject": {"reference": "Patient/p1"},
        "code": {"coding": [{"system": SYSTEMS["icd10cm"], "code": "K9221"}]},
        "recordedDate": "2024-02-21",
    }
    refuted = {**bleed, "verificationStatus": {"coding": [{"code": "refuted"}]}, "recordedDate": "2023-05-05"}
    (tmp_path / "a.ndjson").write_text(
        "\n".join(map(json.dumps, [given, medication, bleed, refuted, STAY, PATIENT]))
    )
    path = write_cohort(
        tmp_path / "x.toml",
        'fhir = "a.ndjson"',
        '[cohort]\nentry = { visit = "ward" }\n[covariates]\nage = "age"\ndrug = { drug = "drug", take = "count" }\n'
        'bleed = { condition = "bleed", take = "count" }\npain = { observation = "glucose" }\n',
    )
    assert read(path) == [{"patient": "p1", "age": 63, "drug": 1, "bleed": 1, "pain": "no"}]


SECRET = "Ada Lovelace"
FAULTS = {
    "not JSON": ("{" + SECRET, "line 2: is not JSON"),
    "half a line": (json.dumps(RESULT)[:-20], "line 2: is not JSON"),
    "not FHIR": (
        {**RESULT, "code": SECRET},
        "line 2: is not a resource as FHIR has it (Expected `object`, got `str`",
    ),
    "a number as text": ({**RESULT, "valueQuantity": {"value": SECRET}}, "- at `$.valueQuantity.value`"),
    "no type": ({"id": SECRET}, "line 2: is not a resource as FHIR has it"),
    "no date": ({**RESULT, "effectiveDateTime": SECRET}, "line 2: has a date that is none of FHIR's"),
    "no day": ({**RESULT, "effectiveDateTime": "2024-02-31"}, "line 2: has a date that is none of FHIR's"),
    "twice": (PATIENT, "line 2: is a Patient that came before"),
    "no id": ({"resourceType": "Patient"}, "line 2: is a Patient without an id"),
    "systems": (
        {**RESULT, "code": {"coding": [{"system": "urn:lab", "code": SECRET}]}},
        "no measurement has a code of http://loinc.org, by which the cohort file looks for 'glucose'; the code systems "
        "there are urn:lab",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_line_is_a_sentence_that_names_it_and_nobody(fault, tmp_path):
    line, sentence = FAULTS[fault]
    path = write_lines(tmp_path, PATIENT, line, STAY)
    with pytest.raises(RecordsError, match=re.escape(sentence)) as caught:
        cc.Records.read(path)
    assert str(caught.value).startswith(str(tmp_path / "all.ndjson"))
    assert "\n" not in str(caught.value)
    assert "Ada" not in str(caught.value)


def test_what_is_wrong_with_a_file_is_a_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "half.ndjson.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-9])
    (tmp_path / "patient.json").write_text(json.dumps(PATIENT))
    (tmp_path / "list.json").write_text("[1]")
    for name, sentence in {
        "nowhere": "is not there",
        "empty": "holds no file whose name ends in .ndjson",
        "half.ndjson.gz": "is not a complete gzip file",
        "patient.json": "is a FHIR resource and no Bundle",
        "list.json": "is not a bundle as FHIR has it",
        "x.toml": "is no file whose name ends in",
    }.items():
        path = write_cohort(tmp_path / "x.toml", f'fhir = "{name}"', COHORT)
        with pytest.raises(RecordsError, match=re.escape(sentence)):
            cc.Records.read(path)


def test_an_unknown_code_system_is_named_with_its_key(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(
        '[source]\nfhir = "x"\n[concepts]\na = { lonic = "1" }\n[cohort]\nentry = { visit = "a" }\n'
    )
    with pytest.raises(StudyError, match=re.escape("[concepts] a has no key 'lonic'; did you mean 'loinc'?")):
        CohortFile.read(path)
    path.write_text('[source]\nfhir = "x"\n[concepts]\na = 5\n[cohort]\nentry = { visit = "a" }\n')
    with pytest.raises(StudyError, match="the concepts 'a' have no codes, such as a = "):
        CohortFile.read(path)


# A server


class _Server(BaseHTTPRequestHandler):
    """Answers searches with two resources a page, of those of the type and with one of the codes asked for."""

    resources: ClassVar[list] = []
    asked: ClassVar[list] = []
    fault = ""

    def do_GET(self):
        self.asked.append((self.path, self.headers.get("Authorization")))
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.fault == "status":
            self.send_error(403)
            return
        kind, page = parts.path.rsplit("/", 1)[-1], int(query.get("page", 0))
        codes = next(
            (query[name].split(",") for name in ("code", "combo-code", "vaccine-code") if name in query), None
        )
        found = [one for one in self.resources if one["resourceType"] == kind and self._has(one, codes)]
        host = f"http://127.0.0.1:{self.server.server_port}"
        following = f"{host}{parts.path}?{parts.query}&page={page + 1}"
        following = {"elsewhere": "http://localhost:1/fhir/Patient", "endless": f"{host}{self.path}"}.get(
            self.fault, following
        )
        more = 2 * page + 2 < len(found) or self.fault in ("elsewhere", "endless")
        bundle = {
            "resourceType": "Bundle",
            "entry": [{"resource": one} for one in found[2 * page : 2 * page + 2]],
            "link": [{"relation": "next", "url": following}] if more else [],
        }
        content = b"<html>" if self.fault == "html" else json.dumps(bundle).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @staticmethod
    def _has(one, codes):
        coded = one.get("code") or one.get("medicationCodeableConcept") or {}
        own = {f"{coding['system']}|{coding['code']}" for coding in coded.get("coding", [])}
        return codes is None or bool(own & set(codes))

    def log_message(self, *words):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(_Server, "resources", list_resources(HOSPITAL))
    monkeypatch.setattr(_Server, "asked", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/fhir"
        httpd.shutdown()
        thread.join()


def test_a_server_gives_the_table_that_its_export_is(server, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCILIUM_FHIR_TOKEN", "a-token")
    write_export(tmp_path / "export", HOSPITAL)
    sections = SECTIONS.replace("WAY", "").partition("[codes]")[0]
    path = write_cohort(tmp_path / "x.toml", f'fhir = "{server}"', sections)
    exported = write_cohort(tmp_path / "y.toml", 'fhir = "export"', sections)
    assert read(path) == read(exported)
    kinds = [urlsplit(place).path for place, _ in _Server.asked]
    assert kinds.count("/fhir/Encounter") == 2  # four stays, two a page
    assert {token for _, token in _Server.asked} == {"Bearer a-token"}
    searches = list_searches(CohortFile.read(path))
    assert "Observation?combo-code=http%3A%2F%2Floinc.org%7C2345-7&_count=1000" in searches
    assert "Condition?_count=1000" in searches  # longer codes of ICD count, which no search finds


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("status", "Patient, page 1: the server answers with status 403; it may need a token"),
        ("elsewhere", "the next page is at another server"),
        ("endless", "the pages do not end"),
        ("html", "Patient, page 1: is not JSON"),
    ],
)
def test_a_server_that_misbehaves_is_a_sentence(server, fault, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(_Server, "fault", fault)
    path = write_cohort(tmp_path / "x.toml", f'fhir = "{server}"', COHORT)
    with pytest.raises(RecordsError, match=re.escape(sentence)):
        cc.Records.read(path)


def test_a_page_that_is_too_long_is_not_read_on(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fhir_server, "MOST_BYTES", 100)
    path = write_cohort(tmp_path / "x.toml", f'fhir = "{server}"', COHORT)
    with pytest.raises(RecordsError, match="Patient, page 1: is longer than"):
        cc.Records.read(path)


def test_no_server_and_no_library_are_sentences(tmp_path, monkeypatch):
    path = write_cohort(tmp_path / "x.toml", 'fhir = "http://127.0.0.1:1/fhir"', COHORT)
    with pytest.raises(RecordsError, match=r"the FHIR server at 127\.0\.0\.1 does not answer"):
        cc.Records.read(path)
    with pytest.raises(RecordsError, match="this is no address of a FHIR server"):
        cc.Records.read(write_cohort(tmp_path / "y.toml", 'fhir = "ftp://host/fhir"', COHORT))
    monkeypatch.setitem(__import__("sys").modules, "httpx2", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'concilium[fhir]'")):
        cc.Records.read(path)
