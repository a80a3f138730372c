"""CDS Hooks services: what they ask for, what they answer from what a call brings, and what they say is missing."""

from __future__ import annotations

import copy
from datetime import date

import msgspec
import pytest

import concilium as cc
from concilium.consult.cds_hooks import OVERRIDE_REASONS, CdsError, HookCall, make_services
from concilium.consult.fhir_values import find_mapping
from concilium.errors import ModelError
from consult.cds_patients import (
    CHOL,
    DICTIONARY,
    ORDER_SELECT,
    PATIENT_VIEW,
    bundle,
    fit,
    observe,
)

pytest.importorskip("fhir.resources")

DAY = date(2026, 11, 18)
CONSOLE = "https://models.example.org"


@pytest.fixture(scope="module")
def model():
    return fit()


@pytest.fixture(scope="module")
def services(model):
    return make_services({"death": (model, find_mapping(model, None))}, console=CONSOLE)


def ask(services, document, name="death", **prefetch):
    document = copy.deepcopy(document)
    document["prefetch"] |= prefetch
    return services[name].answer(msgspec.convert(document, HookCall), DAY)["cards"]


def test_prefetch_templates_come_of_the_codes(services):
    found = [one.discovery for one in services.values()]
    assert [one["hook"] for one in found] == ["patient-view", "order-select"]
    assert [one["id"] for one in found] == ["death", "death-order-select"]
    patient = "patient={{context.patientId}}"
    assert (
        found[0]["prefetch"]
        == found[1]["prefetch"]
        == {
            "patient": "Patient/{{context.patientId}}",
            "chol": f"Observation?{patient}&code=http://loinc.org|14647-2,http://loinc.org|2093-3"
            "&status=final,amended,corrected,preliminary&_sort=-date&_count=1",
            "conditions": f"Condition?{patient}",  # all: I21 means all codes below it
            "medications": f"MedicationRequest?{patient}",  # all: none means no only where all are there
        }
    )
    assert all(one["title"] == "Risk of death in 30 days = yes" for one in found)


def test_searches_are_cut_to_codes_where_nothing_found_has_no_meaning(model):
    def list_searches(drugs, **infarct):
        entries = find_mapping(model, None)
        change = msgspec.structs.replace
        entries["antibiotic"] = change(entries["antibiotic"], codes={"rxnorm": ", ".join(drugs)}, absent="")
        entries["infarct"] = change(entries["infarct"], codes={"snomed": "22298006"}, **infarct)
        return make_services({"death": (model, entries)})["death"].prefetch

    patient, code = "patient={{context.patientId}}", "http://snomed.info/sct|22298006"
    found = list_searches(["1", "2"], absent="")
    assert found["conditions"] == f"Condition?{patient}&code={code}"
    assert found["infarct"].startswith(f"Observation?{patient}&code={code}&")
    assert found["medications"].endswith(
        "&code=http://www.nlm.nih.gov/research/umls/rxnorm|1,http://www.nlm.nih.gov/research/umls/rxnorm|2"
    )
    found = list_searches(map(str, range(51)), absent="0")
    assert "infarct" not in found
    assert found["conditions"] == f"Condition?{patient}"
    assert found["medications"] == f"MedicationRequest?{patient}"


def test_the_example_of_the_specification_is_answered_and_what_is_missing_is_said(services, model):
    (card,) = ask(services, PATIENT_VIEW)
    assert card["source"]["label"].startswith("Concilium: death (3 hospitals")
    assert card["indicator"] in ("info", "warning")
    assert card["links"] == [
        {"label": "How the model decides", "url": f"{CONSOLE}/models/death", "type": "absolute"}
    ]
    assert [one["code"] for one in card["overrideReasons"]] == list(OVERRIDE_REASONS)
    assert all(one["display"] for one in card["overrideReasons"])
    assert "Read from the record: age 100: Patient; sex m: Patient." in card["detail"]
    assert "Not in the record: antibiotic, chol, infarct." in card["detail"]
    own = model.explain({"age": 100, "sex": "m"})
    assert f"{own.probability if own.prediction == 1 else 1 - own.probability:.0%}" in card["summary"]


def test_a_card_says_what_the_model_says_of_the_same_values(services, model):
    given = {
        "chol": bundle(observe(CHOL, "2026-11-01")),
        "conditions": bundle(
            {
                "resourceType": "Condition",
                "subject": {"reference": "Patient/1288992"},
                "code": {"coding": [{"system": "http://hl7.org/fhir/sid/icd-10", "code": "I21.4"}]},
            }
        ),
        "medications": bundle(),
    }
    (card,) = ask(services, PATIENT_VIEW, **given)
    said = model.explain({"age": 100, "sex": "m", "chol": 6.5 * 38.665, "infarct": 1, "antibiotic": 0})
    assert said.prediction == 1
    assert card["indicator"] == "warning"
    assert card["summary"].startswith(f"death in 30 days = yes: {said.probability:.0%}")
    assert "antibiotic 0: nothing recorded" in card["detail"]
    assert "Not in the record" not in card["detail"]


def test_nothing_means_what_the_mapping_says_only_where_it_was_looked_for(services):
    (card,) = ask(services, PATIENT_VIEW, conditions=None)
    assert "infarct" in card["detail"].rpartition("Not in the record")[2]
    failed = {"resourceType": "OperationOutcome", "issue": []}
    (card,) = ask(services, PATIENT_VIEW, conditions=failed)
    assert "infarct" in card["detail"].rpartition("Not in the record")[2]
    (card,) = ask(services, PATIENT_VIEW, conditions=bundle())
    assert "infarct 0: nothing recorded" in card["detail"]
    page = {**bundle(), "link": [{"relation": "next", "url": "https://ehr.example.org/2"}]}
    (card,) = ask(services, PATIENT_VIEW, conditions=page)
    assert "infarct" in card["detail"].rpartition("Not in the record")[2]


def test_a_record_in_other_code_systems_does_not_say_no(services):
    """An EHR that codes by SNOMED CT has no ICD code of an infarct, whoever had one."""
    elsewhere = {
        "resourceType": "Condition",
        "subject": {"reference": "Patient/1288992"},
        "code": {"coding": [{"system": "http://snomed.info/sct", "code": "22298006"}]},
    }
    (card,) = ask(services, PATIENT_VIEW, conditions=bundle(elsewhere))
    assert "infarct (conditions are recorded, and none has a code of its code system)" in card["detail"]
    other = copy.deepcopy(elsewhere)
    other["code"]["coding"][0] |= {"system": "http://hl7.org/fhir/sid/icd-10", "code": "E11"}
    (card,) = ask(services, PATIENT_VIEW, conditions=bundle(elsewhere, other))
    assert "infarct 0: nothing recorded" in card["detail"]


def test_what_is_old_impossible_or_of_another_unit_is_named_and_not_used(services):
    (card,) = ask(services, PATIENT_VIEW, chol=bundle(observe(CHOL, "2020-11-01")))
    assert "Too old, and so not used: chol (Observation of 2020-11-01)." in card["detail"]
    for value in ({"value": 6.5, "unit": "mg/dl"}, {"value": 6.5, "unit": "cm", "code": "cm"}):
        (card,) = ask(services, PATIENT_VIEW, chol=bundle(observe(value, "2026-11-01")))
        assert "Not readable, and so not used: chol (Observation of 2026-11-01: chol" in card["detail"]


def test_the_order_of_the_specification_changes_the_answer(services, model):
    (card,) = ask(services, ORDER_SELECT, "death-order-select")
    with_it = model.explain({"age": 100, "sex": "m", "antibiotic": 1})
    without = model.explain({"age": 100, "sex": "m"})
    assert with_it.prediction == 1
    assert card["summary"].startswith(f"death in 30 days = yes: {with_it.probability:.0%}")
    risk = without.probability if without.prediction == 1 else 1 - without.probability
    assert f"Without the selected order: death in 30 days = yes: {risk:.0%}" in card["detail"]
    assert "antibiotic 1: selected order" in card["detail"]


def test_an_order_that_the_model_does_not_ask_about_gets_no_card(services):
    other = copy.deepcopy(ORDER_SELECT)
    other["context"]["selections"] = ["NutritionOrder/pureeddiet-simple"]
    assert ask(services, other, "death-order-select") == []


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"hook": "order-sign"}, 400, "this service is for the hook patient-view"),
        ({"prefetch": {}}, 412, "the prefetch has no Patient"),
        ({"context": {"patientId": "other"}}, 400, "another one than context.patientId names"),
        (
            {"prefetch": {"patient": {"resourceType": "Patient", "birthDate": "secret"}}},
            400,
            "Patient.birthDate is not",
        ),
        (
            {"prefetch": {"patient": {"resourceType": "Patient", "gender": ["secret"]}}},
            400,
            "Patient.gender is not",
        ),
        ({"prefetch": {"chol": {"resourceType": "Bundle", "entry": "secret"}}}, 400, "entry is no list"),
        (
            {"prefetch": {"chol": {"resourceType": "Bundle", "entry": ["secret"]}}},
            400,
            "entry 0 holds no resource",
        ),
        ({"prefetch": {"chol": bundle(bundle())}}, 400, "a bundle in a bundle"),
        (
            {"prefetch": {"chol": bundle({"resourceType": "Observation"})}},
            400,
            "prefetch.chol: Observation.code",
        ),
    ],
)
def test_a_call_that_cannot_be_answered_is_one_sentence_without_a_value(services, change, status, said):
    call = msgspec.convert({**PATIENT_VIEW, **change}, HookCall)
    with pytest.raises(CdsError, match=said) as refused:
        services["death"].answer(call, DAY)
    assert refused.value.status == status
    assert "secret" not in str(refused.value)


def test_a_patient_outside_of_the_query_gets_no_card_and_one_who_cannot_be_judged_hears_why():
    model = fit(query="age >= 50")
    service = make_services({"old": (model, find_mapping(model, None))})
    young = copy.deepcopy(PATIENT_VIEW)
    young["prefetch"]["patientToGreet"]["birthDate"] = "2000-01-01"
    assert ask(service, young, "old") == []
    del young["prefetch"]["patientToGreet"]["birthDate"]
    (card,) = ask(service, young, "old")
    assert "the record lacks what tells whom the model is about" in card["summary"]
    assert card["indicator"] == "info"


@pytest.mark.parametrize("label", ["x" * 200, "*bold* <b>"])
def test_summaries_are_short_and_details_are_text(label, model):
    entries = find_mapping(model, None)
    entries["died"] = msgspec.structs.replace(entries["died"], label=label)
    (card,) = ask(make_services({"death": (model, entries)}), ORDER_SELECT, "death-order-select")
    assert len(card["summary"]) < 140
    assert label[0] == "x" or r"\*bold\* \<b\>" in card["detail"]


def test_only_flagged_patients_may_get_cards(model):
    quiet = make_services({"death": (model, find_mapping(model, None))}, flagged_only=True)
    young = copy.deepcopy(PATIENT_VIEW)
    young["prefetch"]["patientToGreet"]["birthDate"] = "1990-01-01"
    assert ask(quiet, young, conditions=bundle(), medications=bundle()) == []


@pytest.mark.parametrize(
    "method", [cc.DecisionTree, cc.RuleFit, cc.ShapeModel, cc.Regression, cc.Consultation]
)
def test_other_methods_answer_too(method):
    model = fit(method)
    service = make_services({"one": (model, find_mapping(model, None))})
    (card,) = ask(service, PATIENT_VIEW, "one", conditions=bundle(), medications=bundle())
    assert card["summary"].startswith("death in 30 days = yes: ")
    (again,) = ask(service, PATIENT_VIEW, "one", conditions=bundle(), medications=bundle())
    assert again | {"uuid": ""} == card | {"uuid": ""}


def test_a_mapping_adds_codes_and_contradicts_nothing(tmp_path, model):
    place = tmp_path / "map.toml"
    place.write_text(
        '[dictionary.sex]\nvalues = { f = "female", m = "male" }\ncodes = { loinc = "76689-9" }\n'
    )
    assert find_mapping(model, place)["sex"].codes == {"loinc": "76689-9"}
    for text, said in (
        (
            '[dictionary.chol]\ntype = "number"\nunit = "mmol/l"\n',
            "values are converted into the unit of the study",
        ),
        (
            '[dictionary.sexx]\ntype = "code"\n',
            "describes nothing that the model asks about; did you mean 'sex'?",
        ),
        (
            '[dictionary.chol]\ntype = "number"\ncodes = { lonic = "2093-3" }\n',
            "there is no code system 'lonic'; did you mean 'loinc'?",
        ),
    ):
        place.write_text(text)
        with pytest.raises(ModelError, match=said):
            find_mapping(model, place)


def test_the_dictionary_of_the_tests_is_written_and_read_again(tmp_path):
    place = tmp_path / "d.toml"
    place.write_text(DICTIONARY.to_toml())
    assert cc.Dictionary.read(place).entries == DICTIONARY.entries
