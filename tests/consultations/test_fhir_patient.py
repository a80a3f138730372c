"""A patient of a FHIR bundle: which resource each attribute was read from, what is too old, and what is missing."""

from __future__ import annotations

import copy
import json
from datetime import date, timedelta

import msgspec
import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import ConciliumError, ModelError
from concilium.protocol.terms import today
from concilium.records.fhir_patient import read_bundle
from concilium.records.fhir_resources import UCUM

DAY = date(2026, 11, 18)
DICTIONARY = cc.Dictionary.parse(
    {
        "age": {"unit": "years", "range": [0, 120], "bins": [40, 60]},
        "sex": {"values": {"f": "female", "m": "male"}},
        "chol": {
            "unit": "mg/dl",
            "range": [80, 700],
            "molar_mass": 386.65,
            "bins": [200, 240],
            "codes": {"loinc": "2093-3"},
        },
        "sbp": {"unit": "mmHg", "range": [60, 260], "bins": [140], "codes": {"loinc": "8480-6"}},
        "infarct": {"values": {"0": "no", "1": "yes"}, "codes": {"icd10": "I21"}},
        "smoker": {"values": {"0": "no", "1": "yes"}, "codes": {"snomed": "77176002"}},
    },
    "test",
)
NAMES = ["age", "sex", "chol", "sbp", "infarct", "smoker"]


def code(system, value):
    return {"coding": [{"system": system, "code": value, "display": "x"}]}


def observe(loinc, day, **more):
    return {
        "resourceType": "Observation",
        "status": "final",
        "subject": {"reference": "Patient/p1"},
        "code": code("http://loinc.org", loinc),
        "effectiveDateTime": f"{day}T08:00:00Z",
        **more,
    }


def make_bundle(day=DAY):
    recent, older = day - timedelta(30), day - timedelta(90)
    quantity = {"value": 6.2, "unit": "mmol per liter", "system": UCUM, "code": "mmol/L"}
    pressure = {"code": code("http://loinc.org", "8480-6"), "valueQuantity": {"value": 151, "unit": "mmHg"}}
    resources = [
        {"resourceType": "Patient", "id": "p1", "gender": "male", "birthDate": "1963-11-19"},
        observe("2093-3", older, valueQuantity={"value": 300, "unit": "mg/dl"}),
        observe("2093-3", recent, valueQuantity=quantity),
        observe("85354-9", older, component=[pressure]),
        {
            "resourceType": "Condition",
            "subject": {"reference": "Patient/p1"},
            "code": code("http://hl7.org/fhir/sid/icd-10", "I21.4"),
            "recordedDate": "2015-03-01",
        },
        {"resourceType": "MedicationRequest", "intent": "order"},
    ]
    return {"resourceType": "Bundle", "type": "searchset", "entry": [{"resource": r} for r in resources]}


def read(bundle, **more):
    return read_bundle(bundle, NAMES, DICTIONARY.entries, DAY, **more)


def test_each_attribute_comes_of_the_latest_resource_that_says_it():
    found = read(make_bundle())
    assert found.values == {
        "age": 62,
        "sex": "male",
        "chol": "6.2 mmol/L",
        "sbp": "151 mmHg",
        "infarct": True,
    }
    assert found.used["chol"] == "Observation of 2026-10-19"
    assert found.used["infarct"] == "Condition of 2015-03-01"
    assert (found.missing, found.too_old) == (("smoker",), {})


def test_what_is_too_old_is_named_and_not_used():
    found = read(make_bundle(), oldest=60)
    assert "sbp" not in found.values
    assert found.too_old == {"sbp": "Observation of 2026-08-20"}
    assert "Too old, and so not used: sbp (Observation of 2026-08-20)." in found.say()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"status": "entered-in-error"}, "chol"),
        ({"subject": {"reference": "Patient/another"}}, "chol"),
        ({"effectiveDateTime": "2027-01-01"}, "chol"),
        ({"code": code("http://snomed.info/sct", "2093-3")}, "chol"),
    ],
)
def test_resources_that_are_not_of_this_patient_now_do_not_count(change, name):
    bundle = make_bundle()
    bundle["entry"] = [
        one for one in bundle["entry"] if one["resource"].get("code") != code("http://loinc.org", "2093-3")
    ]
    bundle["entry"].append(
        {
            "resource": {
                **observe("2093-3", "2026-10-19", valueQuantity={"value": 200, "unit": "mg/dl"}),
                **change,
            }
        }
    )
    assert name in read(bundle).missing


def test_a_condition_that_is_over_says_nothing_and_a_refuted_one_says_no():
    for field, state, expected in (
        ("clinicalStatus", "resolved", None),
        ("verificationStatus", "entered-in-error", None),
        ("verificationStatus", "refuted", False),
    ):
        bundle = make_bundle()
        bundle["entry"][4]["resource"][field] = code("x", state)
        assert read(bundle).values.get("infarct") is expected


def test_a_condition_that_is_over_is_named_and_is_not_taken_for_none():
    """Where a record without the condition means no, a record with a resolved one does not."""
    bundle = make_bundle()
    absent = msgspec.structs.replace(DICTIONARY.entries["infarct"], absent="0")
    bundle["entry"][4]["resource"]["clinicalStatus"] = code("x", "resolved")
    found = read_bundle(bundle, ["infarct"], {"infarct": absent}, DAY)
    assert found.say() == ["Not readable, and so not used: infarct (Condition of 2015-03-01 is over)."]
    del bundle["entry"][4]["resource"]["clinicalStatus"]
    silent = {**bundle, "entry": bundle["entry"][:4]}
    assert read_bundle(silent, ["infarct"], {"infarct": absent}, DAY).values == {"infarct": "0"}
    page = {**silent, "link": [{"relation": "next", "url": "https://ehr.example.org/2"}]}
    assert read_bundle(page, ["infarct"], {"infarct": absent}, DAY).missing == ("infarct",)
    bundle["entry"][4]["resource"]["clinicalStatus"] = code("x", "resolved")
    again = {**bundle["entry"][4]["resource"], "clinicalStatus": code("x", "active"), "recordedDate": "2010"}
    bundle["entry"].append({"resource": again})
    assert read_bundle(bundle, ["infarct"], {"infarct": absent}, DAY).values == {"infarct": True}


def test_a_value_that_is_only_above_a_limit_is_not_read():
    bundle = make_bundle()
    bundle["entry"][2]["resource"]["valueQuantity"]["comparator"] = ">"
    found = read(bundle)
    assert "chol" in found.unread
    assert "chol" not in found.values


@pytest.mark.parametrize(
    ("bundle", "said"),
    [
        ({"resourceType": "Patient", "id": "p"}, "is no Bundle: give the patient's Bundle"),
        ({"resourceType": "Bundle"}, "the bundle has no Patient resources"),
        ({"resourceType": "Bundle", "entry": 3}, "this is no FHIR bundle .*entry"),
        (
            {"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Patient", "gender": 7}}]},
            "entry 0",
        ),
        (
            {"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Patient"}}] * 2},
            "the bundle has 2 Patient resources",
        ),
    ],
)
def test_a_malformed_bundle_is_one_sentence(bundle, said):
    with pytest.raises(ModelError, match=said):
        read(bundle)


@pytest.fixture(scope="module")
def consultation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    rows = [
        {
            "age": 30 + 5 * (n % 10),
            "sex": "fm"[n % 2],
            "chol": 180.0 + n % 90,
            "sbp": 110 + n % 60,
            "infarct": n % 2,
            "smoker": n % 3 % 2,
            "death": int(n % 7 < 2 + n % 2),
        }
        for n in range(400)
    ]
    entries = DICTIONARY.entries | cc.Dictionary.parse({"death": {"values": ["0", "1"]}}, "x").entries
    dictionary = cc.Dictionary(entries)
    sites = [
        cc.Site(name, cc.Records.from_rows(rows, schema=dictionary.schema)) for name in ("north", "south")
    ]
    model = cc.Consultation(
        "death", positive="1", grid=["sex", "age"], attributes=NAMES, bins=dictionary.bins
    )
    model.fit(cc.House(sites, dictionary=dictionary)).save(folder / "model.json")
    return folder / "model.json"


def test_asking_with_a_bundle_is_asking_with_its_values_and_says_where_they_are_from(consultation, tmp_path):
    model, bundle = cc.load(consultation), make_bundle(today())
    answer = model.ask(bundle)
    by_hand = model.ask(
        {"age": 62 if answer.resources else 0, "sex": "m", "chol": 239.7, "sbp": 151, "infarct": 1}
    )
    assert answer.probability == by_hand.probability
    assert set(answer.resources) == {"age", "sex", "chol", "sbp", "infarct"}
    assert "Not in the bundle: smoker." in str(answer)
    place = tmp_path / "bundle.json"
    place.write_text(json.dumps(bundle))
    said = CliRunner().invoke(app, ["ask", str(consultation), str(place), "--oldest", "60", "--json"])
    assert said.exit_code == 0, said.output
    assert list(json.loads(said.stdout)["too_old"]) == ["sbp"]
    other = tmp_path / "codes.toml"
    other.write_text('[dictionary.smoker]\nvalues = ["0", "1"]\ncodes = { icd10 = ["F17", "I21"] }\n')
    mapped = CliRunner().invoke(app, ["ask", str(consultation), str(place), "--map", str(other)])
    assert "smoker true: Condition of 2015-03-01" in mapped.stdout
    refused = CliRunner().invoke(app, ["ask", str(consultation), "age=60", "--map", str(other)])
    assert "--map is for a FHIR Bundle" in refused.output
    consulted = CliRunner().invoke(app, ["consult", str(consultation), str(place)])
    assert "Not in the bundle: smoker." in consulted.stdout
    assert consulted.output.startswith(answer.sentences[0])


def test_an_impossible_value_of_a_bundle_is_refused_as_any(consultation):
    bundle = copy.deepcopy(make_bundle(today()))
    bundle["entry"][2]["resource"]["valueQuantity"] = {"value": 6.2, "unit": "kg"}
    with pytest.raises(ConciliumError, match="chol"):
        cc.load(consultation).ask(bundle)


def test_a_form_asks_again_for_what_is_impossible(consultation):
    # sex, age (impossible, then right), then the predictors: all but one not known.
    said = CliRunner().invoke(app, ["ask", str(consultation)], input="m\n500\n63\n\n1\n\n\n")
    assert said.exit_code == 0, said.output
    assert "age = 500 is impossible" in said.output
    by_hand = CliRunner().invoke(app, ["ask", str(consultation), "sex=m", "age=63", "infarct=1"])
    assert by_hand.stdout in said.output
