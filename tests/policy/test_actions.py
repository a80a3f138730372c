"""What constraint graphs do: refuse, eliminate, substitute; and never let out what a rule takes out."""

from __future__ import annotations

import copy
import json
import random
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium import policy
from concilium.errors import PolicyError
from concilium.policy.actions import Decision

SECRET = b"a secret for these tests"
Graph = dict[str, Any]


def graph(*nodes: dict[str, Any], edges: list[list[Any]] | None = None) -> Graph:
    return {"nodes": list(nodes), "edges": edges or []}


def apply(text: str, *nodes: dict[str, Any], edges: list[list[Any]] | None = None) -> Graph | None:
    return policy.parse(text, secret=SECRET).apply(graph(*nodes, edges=edges))


def substitute(transform: str, value: Any) -> Any:
    changed = apply(f"graph S {{ node x substitute x.v =~ {transform}; }}", {"v": value})
    assert changed is not None
    return changed["nodes"][0].get("v")


# 4.3.1: "name, address, date of birth and social security all together in one transaction makes it unqualified"
EXISTS = """graph C {  node u exists u.name,
                              exists u.address,
                              exists u.dob,
                              exists u.ss; }"""
PERSON = {"id": "p", "name": "Ann", "address": "Elm St", "dob": "1950-01-31", "ss": "123-45-6789"}


def test_exists_refuses_where_all_hold() -> None:
    assert apply(EXISTS, PERSON) is None
    assert apply(EXISTS, {"id": "q", "sex": "f"}, PERSON) is None


@pytest.mark.parametrize("lacking", ["name", "address", "dob", "ss"])
def test_exists_lets_the_full_graph_through_where_one_does_not(lacking: str) -> None:
    for without in (
        {name: value for name, value in PERSON.items() if name != lacking},
        {**PERSON, lacking: None},
    ):
        assert apply(EXISTS, without) == graph(without)


def test_exists_is_about_the_transaction_not_about_one_node() -> None:
    apart = [{"id": "a", "name": "Ann", "ss": "1"}, {"id": "b", "address": "Elm St", "dob": "1950"}]
    assert apply(EXISTS, *apart) is None
    together = "graph C { node u where u.name is not missing and u.dob is not missing exists u; }"
    assert apply(together, *apart) == graph(*apart)
    assert apply(together, PERSON) is None


def test_exists_needs_the_motif() -> None:
    rule = "graph C { node u where u.type = 'Patient' exists u.name; node v where v.type = 'Study'; edge (u, v); }"
    patient, study = {"id": 1, "type": "Patient", "name": "Ann"}, {"id": 2, "type": "Study"}
    assert apply(rule, patient, study, edges=[[1, 2]]) is None
    assert apply(rule, patient, study, edges=[[2, 1]]) is None
    assert apply(rule, patient, study) == graph(patient, study)


# 4.3.2: each eliminate action is independent of the other
ELIMINATE = """graph E {   node x + eliminate x.dob;
                     node y + where y.country = “USA” eliminate y.id; }"""


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ([{"id": "a", "dob": "1"}], [{"id": "a"}]),
        ([{"id": "a", "dob": "1", "country": "USA"}], [{"country": "USA"}]),
        (
            [{"id": "a", "country": "USA"}, {"id": "b", "dob": "2", "country": "CH"}],
            [{"country": "USA"}, {"id": "b", "country": "CH"}],
        ),
        ([{"id": "a", "dob": None, "sex": "f"}], [{"id": "a", "sex": "f"}]),
        ([], []),
    ],
)
def test_eliminations_are_independent(nodes: list[dict[str, Any]], left: list[dict[str, Any]]) -> None:
    assert apply(ELIMINATE, *nodes) == graph(*left)


def test_an_eliminated_id_does_not_survive_in_the_edges() -> None:
    nodes = [{"id": "mrn-1", "country": "USA"}, {"id": "b"}, {"id": "c"}]
    left = apply(ELIMINATE, *nodes, edges=[["mrn-1", "b"], ["b", "c"]])
    assert left == graph({"country": "USA"}, {"id": "b"}, {"id": "c"}, edges=[["b", "c"]])


def test_a_whole_node_can_be_eliminated_with_its_edges() -> None:
    rule = "graph E { node x where x.type = 'note' eliminate x; }"
    left = apply(rule, {"id": 1, "type": "note"}, {"id": 2}, {"id": 3}, edges=[[1, 2], [2, 3]])
    assert left == graph({"id": 2}, {"id": 3}, edges=[[2, 3]])


def test_tags_without_action_are_conditions() -> None:
    rule = "graph E { node x + where x.type = 'p' eliminate x.zip; node c + where c.consent = 'no'; }"
    patient = {"id": 1, "type": "p", "zip": "02139"}
    assert apply(rule, patient, {"id": 2, "consent": "no"}) == graph(
        {"id": 1, "type": "p"}, {"id": 2, "consent": "no"}
    )
    assert apply(rule, patient, {"id": 2, "consent": "yes"}) == graph(patient, {"id": 2, "consent": "yes"})


def test_only_the_nodes_that_fit_are_reached() -> None:
    rule = (
        "graph F { node p + where p.type = 'p' eliminate p.name; node s + where s.type = 's'; edge (p, s); }"
    )
    nodes = [{"id": i, "type": kind, "name": "N"} for i, kind in enumerate("pps")]
    left = apply(rule, *nodes, edges=[[0, 2]])
    assert left is not None
    assert ["name" in node for node in left["nodes"]] == [False, True, True]


def test_quantifiers_decide_whether_a_rule_acts() -> None:
    nodes = [{"id": i, "a": 1} for i in range(3)]
    for quantifier, acts in [
        ("?", False),
        ("+", True),
        ("{3}", True),
        ("{2}", False),
        ("{2,}", True),
        ("{1,2}", False),
    ]:
        left = apply(f"graph Q {{ node x {quantifier} eliminate x.a; }}", *nodes)
        assert left is not None
        assert all(("a" in node) != acts for node in left["nodes"]), quantifier


def test_rules_are_decided_on_what_came_in_and_elimination_is_final() -> None:
    rules = """graph A { node x + eliminate x.country; }
               graph B { node x + where x.country = 'USA' eliminate x.zip; }
               graph C { node x substitute x.zip =~ /zip3()/, substitute x.country =~ /USA/here/; }"""
    assert apply(rules, {"id": 1, "country": "USA", "zip": "02139"}) == graph({"id": 1})
    assert apply(rules, {"id": 1, "country": "CH", "zip": "02139"}) == graph({"id": 1, "zip": "021"})


def test_the_transaction_itself_is_never_changed() -> None:
    before = graph(
        {"id": "a", "dob": "1950-01-31", "codes": ["E11.65", "I10"]}, {"id": "b"}, edges=[["a", "b"]]
    )
    kept = copy.deepcopy(before)
    rules = policy.parse(
        "graph S { node x substitute x.codes =~ /generalise()/, substitute x.id =~ /a/c/, eliminate x.dob; }"
    )
    after = rules.apply(before)
    assert before == kept
    assert after == graph({"id": "c", "codes": ["E11.6"]}, {"id": "b"}, edges=[["c", "b"]])
    assert policy.parse("graph N { node x where x.no = 1 eliminate x.id; }").apply(before) == before


# 4.3.3: a function, or a pattern followed by a replacement


@pytest.mark.parametrize(
    ("transform", "value", "changed"),
    [
        ("/year()/", "1950-01-31", "1950"),
        (r"/(\d{3})-\d{2}-(\d{4})/\1-xx-\2/", "123-45-6789", "123-xx-6789"),
        (r"/\d/#/", "a1b22", "a#b##"),
        (r"/[A-Z][a-z]+/X/", "Ann Lee", "X X"),
        ("/nothing/x/", 12, 12),
        ("/2/9/", 12, "19"),
        ("/1//", 12, "2"),
        ("/true/yes/", True, "yes"),
        ("/a/b/", ["a", None, "ca", 5], ["b", "cb", 5]),
        ("/year()/", ["1950-01-31", "never"], ["1950"]),
        ("/year()/", "never", None),
        ("/year()/", ["never"], None),
        ("/a/b/", "a" * 2_001, None),
        ("/a/b/", None, None),
    ],
)
def test_substitution(transform: str, value: Any, changed: Any) -> None:
    assert substitute(transform, value) == changed


def test_substitutions_are_made_in_the_order_written() -> None:
    text = "graph S { node x substitute x.v =~ /a/b/; node y + substitute y.v =~ /b/c/, substitute x.v =~ /c/d/; }"
    assert apply(text, {"v": "a"}) == graph({"v": "d"})


def test_a_substitution_can_be_about_every_attribute() -> None:
    left = apply(
        r"graph S { node x substitute x =~ /\d+/N/; }",
        {"id": "a1", "b": "22 c", "d": None},
        {"id": 2},
        edges=[["a1", 2]],
    )
    assert left == graph({"id": "aN", "b": "N c", "d": None}, {"id": "N"}, edges=[["aN", "N"]])


def test_hash_and_shift_dates_rest_on_the_secret() -> None:
    text = "graph S { node x substitute x.id =~ /hash()/, substitute x.seen =~ /shift_dates(mrn)/; }"
    nodes = [
        {"id": "a", "mrn": 1, "seen": "2020-02-28"},
        {"id": "b", "mrn": 1, "seen": "2020-03-09T10:30:00Z"},
    ]
    first, again = (
        policy.parse(text, secret=SECRET).apply(graph(*nodes, edges=[["a", "b"]])) for _ in range(2)
    )
    assert first is not None
    assert first == again
    one, two = first["nodes"]
    assert one["id"] != two["id"]
    assert first["edges"] == [[one["id"], two["id"]]]
    shifted = [date.fromisoformat(node["seen"][:10]) for node in (one, two)]
    assert (shifted[1] - shifted[0]).days == 10
    assert two["seen"].endswith("T10:30:00Z")
    other = policy.parse(text, secret=b"another secret of a site").apply(graph(*nodes))
    assert other is not None
    assert {node["id"] for node in other["nodes"]}.isdisjoint({one["id"], two["id"]})


def test_dates_without_a_patient_are_eliminated() -> None:
    assert apply("graph S { node x substitute x.d =~ /shift_dates()/; }", {"d": "2020-01-01"}) == graph({})


def test_without_a_secret_nothing_is_hashed() -> None:
    rules = policy.parse("graph S { node x where x.a = 1 substitute x.id =~ /hash()/; }")
    assert rules.needs_secret
    with pytest.raises(PolicyError, match="need the site's secret"):
        rules.apply(graph({"id": "a"}))
    with pytest.raises(PolicyError, match="at least 16 bytes"):
        policy.parse("graph S { node x; }", secret=b"short")


def test_decisions_name_their_rules_for_the_log() -> None:
    rules = policy.parse(
        f"{EXISTS} graph E {{ node x where x.sex = 'm' eliminate x.dob; }} graph N {{ node x eliminate x.z; }}"
    )
    assert rules.decide(graph(PERSON)) == Decision(None, "C", ("C",))
    man = {"id": 1, "sex": "m", "dob": "1950"}
    assert rules.decide(graph(man)) == Decision(graph({"id": 1, "sex": "m"}), None, ("E", "N"))


@pytest.mark.parametrize(
    ("transaction", "words"),
    [
        ([], "no list of nodes"),
        ({"nodes": "ab"}, "no list of nodes"),
        ({"nodes": [], "notes": "x"}, "nothing else"),
        ({"nodes": ["a"]}, "node 1 is not an object"),
        ({"nodes": [{"id": 1}, {5: 1}]}, "node 2 is not an object"),
        ({"nodes": [{"name": {"family": "Roe"}}]}, "no rule could see inside it"),
        ({"nodes": [{"names": [["Roe"]]}]}, "no rule could see inside it"),
        ({"nodes": [{"id": "a"}, {"id": "a"}]}, "node 2 has the id of an earlier node"),
        ({"nodes": [{"id": 1.5}]}, "neither text nor a whole number"),
        ({"nodes": [{"id": "a"}], "edges": {"a": "a"}}, "a list of pairs"),
        ({"nodes": [{"id": "a"}], "edges": [["a"]]}, "edge 1 is not a pair"),
        ({"nodes": [{"id": "a"}], "edges": [["a", "b"]]}, "edge 1 ends at a node that is not"),
        ({"nodes": [{"id": 1}], "edges": [[1, True]]}, "edge 1 ends at a node that is not"),
        ({"nodes": [{"name": "Roe"}] * 20_001}, "at most 20,000 nodes"),
        (
            {"nodes": [{"id": 1}, {"id": 2}], "edges": [[1, 2]] * 100_001},
            "at most 20,000 nodes and 100,000 edges",
        ),
        ({"nodes": [{"id": "a"}], "edges": [["a", ["a"]]]}, "edge 1 ends at a node that is not"),
    ],
)
def test_what_no_rule_could_see_is_refused(transaction: Any, words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        policy.parse("graph E { node x + eliminate x.dob; }").apply(transaction)
    assert "Roe" not in str(caught.value)


def test_ids_of_different_kinds_are_different() -> None:
    assert apply(
        "graph E { node x where x.a = 1 eliminate x.id; }", {"id": 1, "a": 1}, {"id": "1"}, edges=[["1", "1"]]
    ) == graph({"a": 1}, {"id": "1"}, edges=[["1", "1"]])


MARK = "SECRET"
FILTER = policy.parse(
    """graph A { node x + eliminate x.ssn; }
       graph B { node y + where y.type = 'note' eliminate y; }
       graph C { node z + where z.age > 89 or z.age is missing substitute z.age =~ /decade()/; node w; edge (z, w); }"""
)
SEED: Graph = graph(
    {"id": "a", "ssn": f"{MARK}-1", "age": 91, "type": "p"},
    {"id": "b", "ssn": [f"{MARK}-2"], "age": None, "tags": ["x", "y"]},
    {"id": "c", "type": "note", "text": MARK, "age": 5},
    edges=[["a", "b"], ["b", "c"]],
)
ODD: list[Any] = [
    None,
    True,
    0,
    -1.5,
    float("nan"),
    "",
    "x",
    "note",
    [],
    ["note"],
    [[]],
    {},
    {"ssn": 1},
    "a",
    10**400,
    "\ud800",
]


def mutate(value: Any, dice: random.Random) -> Any:
    """The value with something changed somewhere inside; the mark only ever stays where a rule takes it out."""
    if isinstance(value, dict) and value and dice.random() < 0.97:
        name = dice.choice(list(value))
        if name in {"text", "type"}:
            return value
        changed = {key: item for key, item in value.items() if key != name or dice.random() < 0.9}
        if name in changed:
            changed[name] = mutate(value[name], dice)
        if dice.random() < 0.2:
            changed[dice.choice(["id", "extra", "nodes"])] = dice.choice(ODD)
        return changed
    if isinstance(value, list) and value and dice.random() < 0.97:
        index = dice.randrange(len(value))
        return [
            *value[:index],
            *[mutate(value[index], dice)] * dice.choice([0, 1, 1, 1, 1, 2]),
            *value[index + 1 :],
        ]
    return dice.choice(ODD)


def filtered(transaction: Any) -> Graph | str | None:
    try:
        return FILTER.apply(transaction)
    except PolicyError as error:
        return str(error)


def test_mutated_transactions_are_filtered_or_refused() -> None:
    dice = random.Random(7)
    passed = 0
    for _ in range(6_000):
        # Mostly the nodes, since most of what happens to the edges ends in an error about them.
        inside = dice.random() < 0.7
        transaction: Any = {**SEED, "nodes": mutate(SEED["nodes"], dice)} if inside else mutate(SEED, dice)
        if dice.random() < 0.3:
            transaction = mutate(transaction, dice)
        left = filtered(transaction)
        assert MARK not in repr(left)
        if isinstance(left, dict):
            passed += 1
            assert not any("ssn" in node for node in left["nodes"])
            names = [node.get("id") for node in left["nodes"]]
            assert all(end in names for edge in left["edges"] for end in edge)
    assert 1_000 < passed < 5_000


ATTRIBUTES = ["a", "b", "c"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(ATTRIBUTES), st.sampled_from([0, 1, "x"])), max_size=5),
    st.lists(
        st.tuples(st.sampled_from(ATTRIBUTES), st.sampled_from([0, 1, "x"]), st.sampled_from(ATTRIBUTES)),
        min_size=1,
        max_size=4,
    ),
)
def test_independent_eliminations_equal_a_node_by_node_filter(
    nodes: list[dict[str, Any]], rules: list[tuple[str, Any, str]]
) -> None:
    statements = [
        f"node x{number} + where x{number}.{asked} = {json.dumps(value)} eliminate x{number}.{lost};"
        for number, (asked, value, lost) in enumerate(rules)
    ]
    expected = [
        {
            name: value
            for name, value in node.items()
            if not any(lost == name and str(node.get(asked)) == str(wanted) for asked, wanted, lost in rules)
        }
        for node in nodes
    ]
    assert policy.parse(f"graph E {{ {' '.join(statements)} }}").apply(graph(*nodes)) == graph(*expected)
