"""A hospital's constraint graphs at its gate: no question, and no byte that leaves, knows better."""

from __future__ import annotations

import pytest
from conversation import read_schema, schema_message
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import Asker, deliver
from concilium.errors import PolicyError
from concilium.policy.functions import Secret
from concilium.protocol.messages import Answer, Refusal, open_reply
from strategies import tables

PATIENTS = [
    {
        "mrn": f"MRN-{7919 * i % 1000:04d}",
        "zip": f"{2139 + 100 * (i % 9):05d}",
        "ward": ["north wing", "psychiatry"][i % 4 == 3],
        "diagnosis": ["E11.65", "E11.9", "F20.0"][i % 4 - 1 if i % 4 == 3 else i % 2],
        "consent": ["yes", "no-consent"][i % 10 == 9],
        "age": 20 + i,
        "y": "ny"[i % 3 % 2],
    }
    for i in range(80)
]


class Listening(cc.Site):
    """Keeps every byte that leaves."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.said = b""

    def answer(self, message):
        reply = super().answer(message)
        self.said += reply
        return reply


def site_of(constraints, rows=PATIENTS, **policy):
    return Listening("a", cc.Records.from_rows(rows), policy=cc.Policy(constraints=constraints, **policy))


def schema_of(site, **question):
    seen = read_schema(site, **question)
    return {attribute.name: attribute.values for attribute in seen.attributes}, seen


def test_an_eliminated_attribute_does_not_exist_for_anybody_outside():
    site = site_of("graph E { node x + eliminate x.ward; }")
    tree = cc.DecisionTree("y", bins={"age": [40.0, 60.0]}).fit(cc.House([site]))
    assert "ward" not in tree.attributes_
    for trace in (b"ward", b"psychiatry", b"wing"):
        assert trace not in site.said
    for query in ("ward = 'psychiatry'", "ward is missing"):
        reply = open_reply(deliver(site, schema_message("question-9", query=query)))
        assert isinstance(reply, Refusal)
        assert "psych" not in reply.reason
    reply = open_reply(deliver(site, schema_message("question-8", target="ward")))
    assert isinstance(reply, Refusal)


def test_without_the_rule_the_same_bytes_would_hold_it():
    site = site_of("")
    cc.DecisionTree("y").fit(cc.House([site]))
    assert b"psychiatry" in site.said


def test_a_tree_leaves_out_what_some_site_does_not_know():
    """Table 4.3: an attribute blocked at one site is out of everybody's tree, and the card says why."""
    records = cc.Records.from_rows(PATIENTS)
    blocked = cc.Policy(constraints="graph B { node x + eliminate x.ward; }")
    sites = [cc.Site("open", records), cc.Site("blocking", records, policy=blocked)]
    tree = cc.DecisionTree("y").fit(cc.House(sites))
    assert "ward" not in tree.attributes_
    assert any("ward (not known at blocking, or withheld there)" in warning for warning in tree.card.warnings)


def test_with_a_condition_the_value_is_missing_for_those_it_is_about():
    site = site_of("graph P { node x + where x.ward = 'psychiatry' eliminate x.diagnosis; }")
    attributes, _ = schema_of(site)
    assert attributes["diagnosis"] == ["E11.65", "E11.9", None]
    _, seen = schema_of(site, name="question-2", query="diagnosis is missing")
    assert seen.patients == sum(row["ward"] == "psychiatry" for row in PATIENTS)
    assert b"F20.0" not in site.said


def test_patients_whom_a_rule_refuses_are_in_no_statistic():
    site = site_of("graph C { node x where x.consent = 'no-consent' exists x; }")
    attributes, seen = schema_of(site)
    assert seen.patients == sum(row["consent"] == "yes" for row in PATIENTS)
    assert attributes["consent"] == ["yes"]
    tree = cc.DecisionTree("y").fit(cc.House([site]))
    assert sum(tree.body.nodes[0].counts) == seen.patients
    assert b"no-consent" not in site.said


def test_codes_are_coarser_outside_and_can_be_asked_about_as_such():
    site = site_of(
        "graph S { node x substitute x.diagnosis =~ /generalise(3)/, substitute x.zip =~ /zip3()/; }"
    )
    attributes, _ = schema_of(site)
    assert attributes["diagnosis"] == ["E11", "F20"]
    assert attributes["zip"] == ["021", "022", "023", "024", "025", "026", "027", "028", "029"]
    _, seen = schema_of(site, name="question-2", query="diagnosis = 'F20'")
    assert seen.patients == 20
    assert b"E11." not in site.said


def test_rounded_numbers_become_categories_or_bins():
    rows = [{**row, "weight": 50 + 0.37 * i} for i, row in enumerate(PATIENTS)]
    site = site_of("graph S { node x substitute x.weight =~ /round(10)/; }", rows)
    attributes, seen = schema_of(site)
    assert attributes["weight"] == [50, 60, 70, 80]
    assert "weight" not in seen.unbinned
    cut = schema_of(
        site, name="question-2", study="another", bins={"weight": [55.0]}
    )  # asked once in a study
    assert cut[0]["weight"] == []


def test_an_identifier_is_hidden_however_a_rule_thins_it_out():
    thinned = "graph T { node x where x.age > 25 eliminate x.mrn; }"
    assert "mrn" not in schema_of(site_of(thinned))[0]
    hashed = "graph H { node x substitute x.mrn =~ /hash()/; }"
    assert "mrn" not in schema_of(site_of(hashed))[0]
    coarse = "graph F { node x substitute x.mrn =~ /first3()/; }"
    assert schema_of(site_of(coarse))[0]["mrn"] == ["MRN"]


def test_rules_see_attributes_that_nobody_outside_does():
    site = site_of(
        "graph W { node x where x.ward = 'psychiatry' eliminate x.diagnosis; }", withhold=("ward",)
    )
    attributes, _ = schema_of(site)
    assert "ward" not in attributes
    assert None in attributes["diagnosis"]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"constraints": "graph E { node x + eliminate x.wrad; }"}, "mentions wrad, .* did you mean 'ward'"),
        ({"withhold": ("wrad",)}, "withhold names 'wrad', .* did you mean 'ward'"),
        ({"identifiers": ("mnr",)}, "did you mean 'mrn'"),
        (
            {"constraints": "graph E { node x + where x.ward > 5 eliminate x.age; }"},
            "compares ward with a number",
        ),
    ],
)
def test_a_rule_that_does_not_fit_the_table_is_an_error_when_the_site_opens(tmp_path, policy, words):
    with pytest.raises(PolicyError, match=words):
        cc.Site("a", cc.Records.from_rows(PATIENTS), policy=cc.Policy(**policy))


def test_a_misspelt_attribute_leaves_no_ledger_behind(tmp_path):
    policy = cc.Policy(constraints="graph E { node x + eliminate x.wrad; }")
    with pytest.raises(PolicyError):
        cc.Site("a", cc.Records.from_rows(PATIENTS), policy=policy, ledger=tmp_path / "a.ledger")
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_leaves_nothing_or_nobody():
    everything = ", ".join(f"eliminate x.{name}" for name in PATIENTS[0])
    with pytest.raises(PolicyError, match="nothing is left"):
        site_of(f"graph E {{ node x {everything}; }}")
    reply = open_reply(deliver(site_of("graph E { node x eliminate x; }"), schema_message()))
    assert isinstance(reply, Refusal)
    assert reply.rule == "patients"


HASHED = "graph H { node x substitute x.ward =~ /hash()/; }"


def wards(site):
    return schema_of(site)[0]["ward"]


def test_pseudonyms_are_those_of_the_site_as_long_as_its_identity_is(tmp_path):
    records, policy = cc.Records.from_rows(PATIENTS), cc.Policy(constraints=HASHED)
    first = cc.Site("a", records, policy=policy, ledger=tmp_path / "a.ledger")
    shown = wards(first)
    first.ledger.close()
    again = cc.Site("a", records, policy=policy, ledger=tmp_path / "a.ledger")
    assert schema_of(again, name="question-2")[0]["ward"] == shown
    elsewhere = cc.Site("a", records, policy=policy, ledger=tmp_path / "b.ledger")
    assert set(wards(elsewhere)).isdisjoint(shown)


def test_a_policy_s_own_secret_gives_the_same_pseudonyms_everywhere():
    records = cc.Records.from_rows(PATIENTS)
    policy = cc.Policy(constraints=HASHED, secret=Secret(b"a secret of two sites"))
    assert wards(cc.Site("a", records, policy=policy)) == wards(cc.Site("b", records, policy=policy))


ACTIONS = st.sampled_from(
    [
        "node x + where x.x0 = 'v1' eliminate x.x1",
        "node x + eliminate x.x1",
        "node x where x.x0 is missing exists x.x1",
        "node x where x.x0 = 1 or x.x0 = 'v0' substitute x.x0 =~ /v0/v1/",
        "node x + substitute x.x0 =~ /[0-9]/N/",
    ]
)


@settings(max_examples=60)
@given(tables(most_columns=3), st.lists(ACTIONS, min_size=1, max_size=3))
def test_a_tree_behind_a_policy_is_the_tree_of_the_filtered_patients(rows, actions):
    """The gate adds nothing and takes nothing else away: filter by hand with the engine, and learn from that."""
    rows = [{"x0": None, "x1": None, **row} for row in rows]
    text = "\n".join(f"graph G{number} {{ {action}; }}" for number, action in enumerate(actions))
    rules = cc.policy.parse(text)
    kept = [rules.apply({"nodes": [row]}) for row in rows]
    left = [node for graph in kept if graph is not None for node in graph["nodes"]]
    names = [name for name in rows[0] if not ("node x + eliminate x.x1" in actions and name == "x1")]
    left = [{name: node.get(name) for name in names} for node in left]
    if not left:
        return
    free = cc.Policy(minimum_patients=0)
    behind = cc.Policy(minimum_patients=0, constraints=text)
    ours = cc.DecisionTree("y").fit(cc.House([cc.Site("a", cc.Records.from_rows(rows), policy=behind)]))
    by_hand = cc.DecisionTree("y").fit(cc.House([cc.Site("a", cc.Records.from_rows(left), policy=free)]))
    assert ours.body == by_hand.body


@pytest.mark.parametrize(
    ("policy", "receipt"),
    [
        ({"kinds": ("counts",)}, ("kind", "tree.schema", None, None, "counts")),
        ({"modes": ("masked", "private")}, ("mode", "exact", None, None, "masked, private")),
        ({"minimum_patients": 1000}, ("patients", None, None, None, None)),
    ],
)
def test_a_refusal_is_a_receipt_unless_it_is_about_patients(policy, receipt):
    site = site_of("", **policy)
    refused = open_reply(Asker([site], method="tree").propose(site))
    assert isinstance(refused, Refusal)
    assert (refused.rule, refused.asked, refused.spent, refused.left, refused.would_fit) == receipt


def test_the_receipt_for_numbers_says_what_is_left_of_them():
    site = site_of("", numbers_per_patient=0.5)
    first = open_reply(deliver(site, schema_message()))
    assert isinstance(first, Answer)
    told = first.charge.numbers
    for number in range(40 // told):
        last = open_reply(deliver(site, schema_message(f"question-{number + 2}")))
    assert isinstance(last, Refusal)
    spent = 40 // told * told
    assert (last.rule, last.asked, last.spent) == ("numbers", str(told), str(spent))
    assert last.left == last.would_fit == str(40 - spent)
