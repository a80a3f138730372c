"""FHIR bundles: resources are nodes, references are edges, and no nested value slips past a rule about its parent."""

from __future__ import annotations

import copy
import json
import random
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium import policy
from concilium.errors import PolicyError
from concilium.policy.fhir import decide_bundle, is_bundle

SECRET = b"a secret for these tests"
PATIENT: dict[str, Any] = {
    "resourceType": "Patient",
    "id": "p1",
    "text": {"status": "generated", "div": "<div>Ann Roe, born 1950-01-31</div>"},
    "name": [
        {
            "use": "official",
            "family": "Roe",
            "given": ["Ann", "May"],
            "_given": [None, {"id": "second name"}],
        },
        {"use": "nickname", "given": ["Annie"]},
    ],
    "birthDate": "1950-01-31",
    "_birthDate": {"extension": [{"url": "birthTime", "valueDateTime": "1950-01-31T14:35:45-05:00"}]},
    "address": [{"city": "Boston", "postalCode": "02139", "line": ["1 Elm St"]}],
    "multipleBirthInteger": 2,
    "active": True,
}
OBSERVATION: dict[str, Any] = {
    "resourceType": "Observation",
    "id": "o1",
    "text": {"status": "generated", "div": "<div>glucose of Ann Roe</div>"},
    "status": "final",
    "subject": {"reference": "Patient/p1", "display": "Ann Roe", "identifier": {"value": "MRN-1"}},
    "performer": [{"reference": "urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0"}, {"reference": "#lab"}],
    "contained": [{"resourceType": "Organization", "id": "lab", "name": "Elm Lab"}],
    "effectiveDateTime": "2020-02-28",
    "valueQuantity": {"value": 6.5, "unit": "mmol/l"},
}
PRACTITIONER: dict[str, Any] = {"resourceType": "Practitioner", "name": [{"family": "Lee"}]}
BUNDLE: dict[str, Any] = {
    "resourceType": "Bundle",
    "id": "b-7",
    "type": "collection",
    "timestamp": "2020-03-01T00:00:00Z",
    "link": [{"relation": "self", "url": "https://ehr/Patient?name=Roe"}],
    "entry": [
        {"fullUrl": "https://ehr/fhir/Patient/p1", "resource": PATIENT},
        {"fullUrl": "https://ehr/fhir/Observation/o1", "resource": OBSERVATION, "search": {"mode": "match"}},
        {"fullUrl": "urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0", "resource": PRACTITIONER},
    ],
}


def bundle_of(*resources: dict[str, Any], **entry: Any) -> dict[str, Any]:
    return {
        "resourceType": "Bundle",
        "type": "collection",
        "entry": [{"resource": r, **entry} for r in resources],
    }


def filtered(text: str, bundle: Any = BUNDLE) -> Any:
    return decide_bundle(policy.parse(text, secret=SECRET), bundle).graph


def resources(text: str, bundle: Any = BUNDLE) -> dict[str, dict[str, Any]]:
    left = filtered(text, bundle)
    assert left is not None
    return {entry["resource"]["resourceType"]: entry["resource"] for entry in left["entry"]}


NOTHING = "graph N { node x where x.resourceType = 'Claim' eliminate x.id; }"


def test_a_bundle_that_no_rule_is_about_goes_on_with_its_resources_as_they_are() -> None:
    before = copy.deepcopy(BUNDLE)
    left = filtered(NOTHING)
    assert before == BUNDLE
    assert left == {
        "resourceType": "Bundle",
        "type": "collection",
        "entry": [{key: entry[key] for key in ("fullUrl", "resource")} for entry in BUNDLE["entry"]],
    }
    assert is_bundle(left)


def test_a_path_is_eliminated_with_everything_beneath_it() -> None:
    left = resources("graph E { node x + eliminate x.name, eliminate x.birthDate; }")
    assert "name" not in left["Patient"]
    assert "birthDate" not in left["Patient"]
    assert "_birthDate" not in left["Patient"]
    assert "Practitioner" in left
    for trace in ("Ann", "Roe", "Annie", "second name", "1950", "Lee", "Elm Lab"):
        assert trace not in json.dumps(left)
    assert left["Patient"]["address"] == PATIENT["address"]


def test_nested_fields_are_reached_by_their_path() -> None:
    text = """graph S { node x + where x.resourceType = 'Patient'
                substitute x.address.postalCode =~ /zip3()/, eliminate x.address.line, eliminate x.name.given; }"""
    left = resources(text)["Patient"]
    assert left["address"] == [{"city": "Boston", "postalCode": "021"}]
    assert left["name"] == [{"use": "official", "family": "Roe"}, {"use": "nickname"}]


def test_substituting_a_field_takes_out_what_its_extensions_say_about_it() -> None:
    left = resources("graph S { node x substitute x.birthDate =~ /year()/; }")["Patient"]
    assert left["birthDate"] == "1950"
    assert "_birthDate" not in left


def test_substituting_a_parent_changes_every_value_beneath_it() -> None:
    left = resources("graph S { node x where x.resourceType = 'Patient' substitute x.name =~ /[a-z]+/x/; }")
    assert left["Patient"]["name"] == [
        {"use": "x", "family": "Rx", "given": ["Ax", "Mx"]},
        {"use": "x", "given": ["Ax"]},
    ]


def test_values_in_step_with_their_extensions_stay_in_step() -> None:
    left = resources("graph S { node x where x.active = true eliminate x.birthDate; }")["Patient"]
    assert left["name"][0]["given"] == ["Ann", "May"]
    assert left["name"][0]["_given"] == [None, {"id": "second name"}]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("x.birthDate = '1950-01-31'", True),
        ("x.birthDate < '1960'", True),
        ("x.birthDate.extension.url = 'birthTime'", True),
        ("x.name.given = 'Annie'", True),
        ("x.name = 'Roe'", True),
        ("x.name is missing", False),
        ("x.deceased is missing", True),
        ("x.multipleBirthInteger > 1", True),
        ("x.active = true", True),
        ("x.address.postalCode in {'02138'}", False),
    ],
)
def test_conditions_see_own_values_or_all_beneath(condition: str, found: bool) -> None:
    rules = policy.parse(f"graph C {{ node x where {condition} and x.resourceType = 'Patient' exists x; }}")
    assert (decide_bundle(rules, BUNDLE).refused_by == "C") == found


def test_references_are_edges_whichever_way_they_are_written() -> None:
    rule = "graph R {{ node x where x.resourceType = '{}' exists x; node y where y.resourceType = '{}'; edge (x, y); }}"
    for left, right, joined in [
        ("Observation", "Patient", True),
        ("Patient", "Observation", True),
        ("Observation", "Practitioner", True),
        ("Observation", "Organization", True),
        ("Patient", "Practitioner", False),
        ("Patient", "Organization", False),
    ]:
        assert (filtered(rule.format(left, right)) is None) == joined, (left, right)


def test_resources_inside_resources_are_nodes_too() -> None:
    inside = {
        **OBSERVATION,
        "contained": [{**PATIENT, "id": "inner"}],
        "performer": [{"reference": "#inner"}],
    }
    text = "graph E { node p + where p.resourceType = 'Patient' eliminate p.birthDate, eliminate p.name; }"
    left = resources(text, bundle_of(PATIENT, inside))["Observation"]
    assert left["contained"][0]["address"] == PATIENT["address"]
    assert "1950" not in json.dumps(left)
    assert "Annie" not in json.dumps(left)
    gone = resources("graph E { node p where p.id = 'inner' eliminate p; }", bundle_of(PATIENT, inside))[
        "Observation"
    ]
    assert "contained" not in gone
    assert "performer" not in gone
    gone = resources("graph E { node o + eliminate o.contained; }", bundle_of(PATIENT, inside))["Observation"]
    assert "contained" not in gone
    assert "inner" not in json.dumps(gone)


def test_an_eliminated_resource_leaves_no_reference_behind() -> None:
    left = filtered("graph E { node p where p.resourceType = 'Patient' eliminate p; }")
    assert [entry["resource"]["resourceType"] for entry in left["entry"]] == ["Observation", "Practitioner"]
    for trace in ("p1", "Ann", "Roe", "MRN-1"):
        assert trace not in json.dumps(left)


def test_an_eliminated_id_is_in_no_address() -> None:
    left = filtered("graph E { node p where p.resourceType in {'Patient', 'Practitioner'} eliminate p.id; }")
    written = json.dumps(left)
    for trace in ("p1", "0c3151bd", "MRN-1", "Ann Roe"):
        assert trace not in written
    assert left["entry"][0]["resource"]["birthDate"] == "1950-01-31"
    assert left["entry"][1]["fullUrl"] == "https://ehr/fhir/Observation/o1"


def test_references_and_addresses_follow_an_id_that_changes() -> None:
    left = filtered("graph S { node p substitute p.id =~ /hash()/; }")
    patient, observation, practitioner = (entry["resource"] for entry in left["entry"])
    urls = [entry["fullUrl"] for entry in left["entry"]]
    assert patient["id"] != "p1"
    assert len(patient["id"]) == 32
    assert urls[0] == f"https://ehr/fhir/Patient/{patient['id']}"
    assert observation["subject"] == {"reference": f"Patient/{patient['id']}"}
    assert observation["performer"] == [
        {"reference": urls[2]},
        {"reference": f"#{observation['contained'][0]['id']}"},
    ]
    assert urls[2].startswith("urn:uuid:")
    assert "id" not in practitioner
    assert "0c3151bd" not in json.dumps(left)


@pytest.mark.parametrize(
    "reference",
    [
        "Patient/p1",
        "https://ehr/fhir/Patient/p1",
        "Patient/p1/_history/p1",
        "https://ehr/fhir/Patient/p1/_history/2",
    ],
)
def test_every_way_of_writing_an_address_is_followed(reference: str) -> None:
    observation = {
        **OBSERVATION,
        "subject": {"reference": reference},
        "performer": [],
        "note": [{"text": reference}],
    }
    bundle = bundle_of(PATIENT, observation)
    bundle["entry"][0]["fullUrl"] = "https://ehr/fhir/Patient/p1"
    left = resources(
        "graph S { node p where p.resourceType = 'Patient' substitute p.id =~ /p1/new/; }", bundle
    )
    server = reference.partition("Patient")[0]
    assert left["Observation"]["subject"] == {"reference": f"{server}Patient/new"}
    assert left["Observation"]["note"] == [{"text": f"{server}Patient/new"}]
    assert "p1" not in json.dumps(left)


def test_a_reference_inside_an_extension_is_followed() -> None:
    inside = {"extension": [{"url": "who", "valueReference": {"reference": "Patient/p1"}}]}
    left = resources(
        "graph S { node p substitute p.id =~ /p1/new/; }", bundle_of({**PATIENT, "_gender": inside})
    )
    assert left["Patient"]["_gender"]["extension"][0]["valueReference"] == {"reference": "Patient/new"}
    gone = filtered(
        "graph E { node p where p.resourceType = 'Patient' eliminate p.id; }",
        bundle_of({**OBSERVATION, "performer": [], "_status": inside}, PATIENT),
    )
    assert "p1" not in json.dumps(gone)


def test_what_a_reference_says_about_a_resource_goes_when_that_is_changed() -> None:
    left = resources("graph E { node p where p.resourceType = 'Patient' eliminate p.name; }")
    assert left["Observation"]["subject"] == {"reference": "Patient/p1"}
    assert "text" not in left["Observation"]
    untouched = resources("graph E { node p where p.resourceType = 'Patient' eliminate p.maritalStatus; }")
    assert untouched["Observation"] == OBSERVATION


def test_dates_of_one_patient_move_together_in_all_resources() -> None:
    text = """graph S { node x substitute x.birthDate =~ /shift_dates()/,
                               substitute x.effectiveDateTime =~ /shift_dates()/; }"""
    left = resources(text)
    born, seen = (
        date.fromisoformat(left["Patient"]["birthDate"]),
        date.fromisoformat(left["Observation"]["effectiveDateTime"]),
    )
    assert born != date(1950, 1, 31)
    assert seen - born == date(2020, 2, 28) - date(1950, 1, 31)


def test_requests_of_a_transaction_follow_the_id() -> None:
    put = bundle_of(PATIENT, request={"method": "PUT", "url": "Patient/p1"})
    renamed = filtered("graph S { node p substitute p.id =~ /p1/new/; }", put)
    assert renamed["entry"][0]["request"] == {"method": "PUT", "url": "Patient/new"}
    lost = filtered("graph E { node p eliminate p.id; }", put)
    assert lost["entry"][0]["request"] == {"method": "POST", "url": "Patient"}
    post = bundle_of(PATIENT, request={"method": "POST", "url": "Patient"})
    assert (
        filtered("graph E { node p eliminate p.id; }", post)["entry"][0]["request"]
        == post["entry"][0]["request"]
    )


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        ({"resourceType": "Patient", "id": "Roe"}, "is a Bundle"),
        ({"resourceType": "Bundle", "entry": {}}, "are a list"),
        ({"resourceType": "Bundle", "type": "Roe's bundle", "entry": []}, "type of a bundle"),
        (
            bundle_of({**OBSERVATION, "subject": {"reference": "Patient/Roe"}}),
            "entry 1 refers to a resource that is not",
        ),
        (
            bundle_of(PATIENT, {**OBSERVATION, "subject": {"reference": "https://x/Patient/p1"}}),
            "entry 2 refers to",
        ),
        (bundle_of({**PATIENT, "link": [{"other": {"reference": "#Roe"}}]}), "entry 1 refers to"),
        (bundle_of(PATIENT, PATIENT), "entries 1 and 2 have the same address"),
        (
            {"resourceType": "Bundle", "entry": [{"request": {"method": "DELETE", "url": "Roe"}}]},
            "entry 1 has no resource",
        ),
        ({"resourceType": "Bundle", "entry": ["Roe"]}, "entry 1 has no resource"),
        (bundle_of({"id": "Roe"}), "does not say its resourceType"),
        (bundle_of({"resourceType": "Patient", "na.me": "Roe"}), "a field whose name"),
        (bundle_of({"resourceType": "Patient", "__name": "Roe"}), "a field whose name"),
        (bundle_of({"resourceType": "Patient", "name": [["Roe"]]}), "a list inside a list"),
        (bundle_of({"resourceType": "Patient", "name": float("nan")}), "not JSON"),
        (bundle_of(PATIENT, fullUrl=["Roe"]), "fullUrl of entry 1"),
        (
            bundle_of(PATIENT, request={"method": "POST", "url": "Patient", "ifNoneExist": "name=Roe"}),
            "request of entry 1",
        ),
        (bundle_of(PATIENT, request={"method": "POST", "url": "Patient?name=Roe"}), "request of entry 1"),
        (bundle_of(PATIENT, request={"method": ["Roe"], "url": "Patient"}), "request of entry 1"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_does_not_repeat_it(bundle: Any, words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        filtered("graph E { node x + eliminate x.name; }", bundle)
    assert "Roe" not in str(caught.value)


def test_nesting_is_bounded() -> None:
    deep: Any = "Roe"
    for _ in range(60):
        deep = {"a": deep}
    with pytest.raises(PolicyError, match="nested more than 50 deep"):
        filtered(NOTHING, bundle_of({"resourceType": "Patient", "name": deep}))


def test_rules_that_need_a_secret_do_not_run_without_one() -> None:
    with pytest.raises(PolicyError, match="need the site's secret"):
        decide_bundle(policy.parse("graph S { node x substitute x.id =~ /hash()/; }"), BUNDLE)


def test_the_example_of_the_page_does_what_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "constraint-graphs.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```graph\n(graph safe_harbour.*?)```", page, flags=re.DOTALL)
    left = resources(text)
    patient = left["Patient"]
    assert patient == {
        "resourceType": "Patient",
        "id": patient["id"],
        "birthDate": "1950",
        "address": [{"city": "Boston", "postalCode": "021"}],
        "multipleBirthInteger": 2,
        "active": True,
    }
    for trace in ("p1", "o1", "Ann", "Roe", "1950-", "MRN-1", "2020-02-28", "0c3151bd"):
        assert trace not in json.dumps(left)


MARK = "SECRET"
FIELDS = st.from_regex(r"_?[a-z]{1,3}", fullmatch=True)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(0, 9), st.sampled_from([MARK, "x", "Patient/p1", ""])
)
NESTED = st.recursive(
    SCALARS,
    lambda inner: (
        st.dictionaries(FIELDS, inner, max_size=3)
        | st.lists(SCALARS | st.dictionaries(FIELDS, inner, max_size=2), max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=300)
@given(NESTED, st.dictionaries(FIELDS, NESTED, max_size=2), st.booleans())
def test_whatever_is_under_an_eliminated_path_is_gone(
    under: Any, deeper: dict[str, Any], underscore: bool
) -> None:
    patient = {
        "resourceType": "Patient",
        "id": "p1",
        "_name" if underscore else "name": under,
        "address": [{"line": deeper, "_line": under, "city": "Boston"}],
    }
    left = resources("graph E { node x + eliminate x.name, eliminate x.address.line; }", bundle_of(patient))
    assert left["Patient"] == {"resourceType": "Patient", "id": "p1", "address": [{"city": "Boston"}]}


@settings(max_examples=300)
@given(st.dictionaries(FIELDS, NESTED, max_size=4))
def test_substituting_everything_reaches_every_value(fields: dict[str, Any]) -> None:
    patient = {"resourceType": "Patient", "id": "p1", **fields}
    left = filtered(f"graph S {{ node x + substitute x =~ /{MARK}/gone/; }}", bundle_of(patient))
    assert MARK not in json.dumps(left)


RULES = policy.parse(
    """graph A { node x + eliminate x.name; }
       graph B { node y + where y.resourceType = 'Practitioner' eliminate y; }
       graph C { node z + eliminate z.id, substitute z.note =~ /SECRET/x/; }"""
)
SEED = bundle_of(
    {
        "resourceType": "Patient",
        "id": f"{MARK}-1",
        "name": [{"family": MARK, "given": [MARK]}],
        "gender": "f",
    },
    {
        "resourceType": "Observation",
        "id": f"{MARK}-2",
        "subject": {"reference": f"Patient/{MARK}-1"},
        "note": [{"text": f"about {MARK}"}],
        "valueQuantity": {"value": 6.5},
    },
    {"resourceType": "Practitioner", "id": f"{MARK}-3", "telecom": [{"value": MARK}]},
)
ODD: list[Any] = [
    None,
    True,
    0,
    -1.5,
    float("nan"),
    "",
    "x",
    [],
    [[]],
    {},
    {"a": 1},
    10**400,
    "\ud800",
    "Patient/x",
    "#",
]


def mutate(value: Any, dice: random.Random) -> Any:
    """The value with something changed inside; the mark stays only where a rule takes it out."""
    if isinstance(value, dict) and value and dice.random() < 0.97:
        name = dice.choice(list(value))
        changed = {key: item for key, item in value.items() if key != name or dice.random() < 0.9}
        if name in changed and name not in {"resourceType", "resource", "telecom", "note"}:
            changed[name] = mutate(value[name], dice)
        elif name == "resource":
            changed[name] = mutate(value[name], dice) if name in changed else {"resourceType": "Patient"}
        if dice.random() < 0.2:
            changed[dice.choice(["extra", "fullUrl", "entry", "_name"])] = dice.choice(ODD)
        return changed
    if isinstance(value, list) and value and dice.random() < 0.97:
        index = dice.randrange(len(value))
        copies = [mutate(value[index], dice)] * dice.choice([0, 1, 1, 1, 1, 2])
        return [*value[:index], *copies, *value[index + 1 :]]
    return dice.choice(ODD)


def outcome(bundle: Any) -> Any:
    try:
        return decide_bundle(RULES, bundle).graph
    except PolicyError as error:
        return str(error)


def test_mutated_bundles_are_filtered_or_refused() -> None:
    dice = random.Random(5)
    passed = 0
    for _ in range(3_000):
        bundle = mutate(SEED, dice)
        if dice.random() < 0.3:
            bundle = mutate(bundle, dice)
        left = outcome(bundle)
        assert MARK not in repr(left)
        passed += isinstance(left, dict)
    assert 300 < passed < 2_800


@pytest.mark.parametrize(
    ("rule", "performers", "subject"),
    [
        ("where r.path = 'performer' and b.resourceType = 'Practitioner'", ["#lab"], True),
        ("where r.path = 'performer'", [], True),
        ("where r.path = 'subject'", ["urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0", "#lab"], False),
        ("where b.name.family = 'Roe'", ["urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0", "#lab"], False),
    ],
)
@pytest.mark.parametrize("action", ["eliminate r", "eliminate r.path", "substitute r.path =~ /first3()/"])
def test_a_reference_is_taken_out_alone(rule: str, performers: list[str], subject: bool, action: str) -> None:
    own, _, other = rule.removeprefix("where ").partition(" and ")
    target = other or (own if own.startswith("b.") else "")
    condition = f"where {own}" if own.startswith("r.") else ""
    left = filtered(
        f"""graph R {{ node a where a.resourceType = 'Observation'; node b {f"where {target}" if target else ""};
                      edge r(a, b) {condition} {action}; }}""",
        BUNDLE,
    )
    assert left is not None
    patient, observation, practitioner = (entry["resource"] for entry in left["entry"])
    assert [one["reference"] for one in observation.get("performer", [])] == performers
    assert ("subject" in observation) == subject
    assert (patient["id"], practitioner["name"]) == ("p1", [{"family": "Lee"}])
    assert "text" not in observation


def test_what_is_contained_goes_with_its_relation() -> None:
    left = filtered(
        "graph R { node a; node b; edge r(a, b) where r.path = 'contained' eliminate r; }", BUNDLE
    )
    assert left is not None
    observation = left["entry"][1]["resource"]
    assert "contained" not in observation
    assert [one["reference"] for one in observation["performer"]] == [
        "urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0"
    ]
    assert "Elm Lab" not in json.dumps(left)
