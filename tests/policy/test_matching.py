"""Where motifs are found: the documented examples, and a brute-force matcher on random small graphs."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import PolicyError
from concilium.policy import parse
from concilium.policy.language import ConstraintGraph, read_language
from concilium.policy.matching import Links, each, judge_of, match, motif_of, scope
from concilium.records.columns import Coded
from concilium.records.expression import TRUE
from concilium.records.query import Query
from concilium.records.table import Records

DOCS = Path(__file__).parents[2] / "docs" / "constraint-graphs.md"
Graph = dict[str, Any]


def draw_graph(drawn: str) -> Graph:
    """A transaction from the notation of the documentation: `a sex=m, b | a-b:kind=kin`."""
    nodes, _, edges = drawn.partition("|")
    listed = [node.split() for node in nodes.split(",")]
    return {
        "nodes": [{"id": name, **dict(pair.split("=") for pair in pairs)} for name, *pairs in listed],
        "edges": [
            [*ends.split("-"), *([dict([has.split("=")])] if has else [])]
            for ends, _, has in (edge.partition(":") for edge in edges.split())
        ],
    }


def documented() -> Iterator[tuple[str, str, bool]]:
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        row = re.fullmatch(r"\| `(graph .*)` \| `(.*)` \| (yes|no) \|", line)
        if row:
            yield row[1], row[2].replace("\\|", "|"), row[3] == "yes"


def test_the_documentation_shows_the_printed_motifs() -> None:
    rows = list(documented())
    assert len(rows) >= 20
    printed = [(motif.split()[1], found) for motif, drawn, found in rows if drawn == "v1, v2 | v1-v2"]
    assert printed == [("A", True), ("B", True), ("C", False)]


@pytest.mark.parametrize(("motif", "drawn", "found"), list(documented()))
def test_documented_examples(motif: str, drawn: str, found: bool) -> None:
    assert bool(parse(motif).matches(draw_graph(drawn))) == found


@pytest.mark.parametrize(
    ("condition", "node", "found"),
    [
        ("x.temp > 99", {"temp": 100}, True),
        ("x.temp > 99", {"temp": 98.6}, False),
        ("x.temp > 99", {"temp": "100.5"}, True),
        ("x.temp > 99", {}, False),
        ("x.temp > 99", {"temp": None}, False),
        ("x.temp > 99", {"temp": float("nan")}, False),
        ("not x.temp > 99", {}, False),
        ("x.temp > 99 or x.temp is missing", {}, True),
        ("x.temp is missing", {"temp": []}, True),
        ("x.code = 5", {"code": "5"}, True),
        ("x.code = '5'", {"code": 5.0}, True),
        ("x.code = true", {"code": True}, True),
        ("x.code = 1", {"code": True}, False),
        ("x.codes = 'E11'", {"codes": ["I10", "E11"]}, True),
        ("x.codes != 'E11'", {"codes": ["I10", "E11"]}, False),
        ("x.codes in {'A', 'I10'}", {"codes": ["I10", None]}, True),
        ("x.counts > 5", {"counts": [1, 9]}, True),
        ("x.dob < '1960-01-01'", {"dob": "1950-01-31"}, True),
        ("x.dob between '1950' and '1951'", {"dob": "1950-01-31"}, True),
        ("x.id = 'n'", {}, True),
        ("x.name.family = 'Roe'", {"name.family": "Roe"}, True),
    ],
)
def test_conditions_on_a_node(condition: str, node: dict[str, Any], found: bool) -> None:
    rules = parse(f"graph Q {{ node x where {condition}; }}")
    assert bool(rules.matches({"nodes": [{"id": "n", **node}]})) == found


@pytest.mark.parametrize(
    ("condition", "value"),
    [("x.a > 9", "secret"), ("x.a > 9", True), ("x.a > 'm'", 5), ("x.a between 1 and 2", ["5", "secret"])],
)
def test_what_cannot_be_compared_is_an_error_that_keeps_the_data_to_itself(
    condition: str, value: Any
) -> None:
    rules = parse(f"graph Q {{ node x where {condition} eliminate x.b; }}")
    with pytest.raises(PolicyError, match=r"graph Q compares a with .* nothing was let out") as caught:
        rules.apply({"nodes": [{"id": "patient-7", "a": value, "b": 1}]})
    assert "secret" not in str(caught.value)
    assert "patient-7" not in str(caught.value)


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ({"id": "diabetes"}, True),
        ({"diabetes": True}, True),
        ({"diabetes": 1}, True),
        ({"diabetes": "No"}, False),
        ({"diabetes": 0}, False),
        ({"diabetes": None}, False),
        ({"diabetes": ""}, False),
        ({"condition": "diabetes"}, True),
        ({"conditions": ["asthma", "diabetes"]}, True),
        ({"condition": "diabetes insipidus"}, False),
        ({"code": 250}, True),
    ],
)
def test_one_of_the_listed(node: dict[str, Any], found: bool) -> None:
    assert bool(parse("graph L { node x [diabetes, 250]; }").matches({"nodes": [node]})) == found


def test_actions_depend_on_their_own_tag_on_conditions_and_on_what_edges_tie_to_them() -> None:
    (graph,) = read_language(
        """graph G { node a; node b eliminate b.x; node c eliminate c.x; node d eliminate d.x; node e exists e.x;
                     edge (c, d); }"""
    ).graphs
    assert scope(graph, frozenset("b")) == set("ab")
    assert scope(graph, frozenset("c")) == set("acd")
    assert scope(graph, frozenset("e")) == set("ae")


def test_a_search_that_takes_too_long_is_refused() -> None:
    tags = "uvwxyz"
    nodes = " ".join(f"node {tag} ?;" for tag in tags)
    edges = " ".join(f"edge ({left}, {right});" for left, right in itertools.combinations(tags, 2))
    rules = parse(f"graph K {{ {nodes} {edges} }}")
    half = 30
    dense = [[left, right] for left in range(half) for right in range(half, 2 * half)]
    dense += [[left, right] for left in range(half) for right in range(left) if (left ^ right) & 3]
    with pytest.raises(PolicyError, match="so many edges; nothing was let out"):
        rules.matches({"nodes": [{"id": number} for number in range(2 * half)], "edges": dense})


def test_a_million_patients_are_decided_like_ten_nodes() -> None:
    """The same matcher on a table: conditions by column, sets of patients as bits."""
    (graph,) = read_language("graph T { node x + where x.age > 89 eliminate x.age; }").graphs
    ages = np.arange(1_000_000) % 101
    records = Records({"age": Coded(ages.astype(np.uint8), tuple(range(1, 101)))})
    mask = Query(graph.nodes[0].condition).mask(records)
    fits = match(motif_of(graph), [int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")])
    assert fits is not None
    reached = np.unpackbits(
        np.frombuffer(fits[0].to_bytes(125_000, "little"), dtype=np.uint8), bitorder="little"
    )
    assert np.array_equal(reached.astype(bool), ages > 89)


# The oracle: every way to place nodes and to share them out, as the documentation says, without any shortcut.


def placements(
    graph: ConstraintGraph, tags: list[str], fulfil: dict[str, set[int]], joined: set[frozenset[int]]
) -> Iterator[dict[str, int]]:
    everyone = set().union(*fulfil.values())
    for chosen in itertools.permutations(everyone, len(tags)):
        placed = dict(zip(tags, chosen, strict=True))
        if all(node in fulfil[tag] for tag, node in placed.items()) and all(
            frozenset({placed[left], placed[right]}) in joined
            for left, right in ((edge.left, edge.right) for edge in graph.edges)
            if left in placed and right in placed
        ):
            yield placed


def connected(graph: ConstraintGraph, tag: str, needed: set[str]) -> list[str]:
    found = [tag]
    for reached in found:
        for left, right in ((edge.left, edge.right) for edge in graph.edges):
            other = right if left == reached else left if right == reached else None
            if other in needed and other not in found:
                found.append(other)
    return found


def brute_force(
    graph: ConstraintGraph, fulfil: dict[str, set[int]], joined: set[frozenset[int]]
) -> dict[str, set[int]] | None:
    quantifiers = {node.tag: node.quantifier for node in graph.nodes}
    needed = {tag for tag, quantifier in quantifiers.items() if quantifier.least > 0}
    fits = {
        tag: {placed[tag] for placed in placements(graph, connected(graph, tag, needed), fulfil, joined)}
        for tag in quantifiers
    }
    to_share = sorted(set().union(*fits.values()))
    cores = list(placements(graph, sorted(needed), fulfil, joined))
    for given_to in itertools.product(
        *([tag for tag in quantifiers if node in fits[tag]] for node in to_share)
    ):
        shared = dict(zip(to_share, given_to, strict=True))
        counts = {tag: given_to.count(tag) for tag in quantifiers}
        if all(
            quantifier.least <= counts[tag] and (quantifier.most is None or counts[tag] <= quantifier.most)
            for tag, quantifier in quantifiers.items()
        ) and any(all(shared[node] == tag for tag, node in core.items()) for core in cores):
            return fits
    return None


QUANTIFIERS = ["", "+", "?", "{2}", "{1,2}", "{2,}", "{0}", "{0,1}", "{0,}"]


@st.composite
def motifs(draw: st.DrawFn) -> str:
    tags = "uvw"[: draw(st.integers(1, 3))]
    text = ""
    for tag in tags:
        where = draw(
            st.sampled_from(
                ["", f"where {tag}.k = 1", f"where {tag}.k in {{1, 2}}", f"where not {tag}.k = 0"]
            )
        )
        text += f"node {tag} {draw(st.sampled_from(QUANTIFIERS))} {where}; "
    for left, right in itertools.combinations(tags, 2):
        if draw(st.booleans()):
            text += f"edge ({left}, {right}); "
    return f"graph M {{ {text}}}"


@st.composite
def transactions(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(0, 5))
    kinds = draw(st.lists(st.sampled_from([0, 1, 2, None]), min_size=count, max_size=count))
    pairs = list(itertools.product(range(count), repeat=2))
    edges = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    return {
        "nodes": [{"id": index, "k": kind} for index, kind in enumerate(kinds)],
        "edges": [list(pair) for pair in edges],
    }


@settings(max_examples=600, deadline=None)
@given(motifs(), transactions())
def test_finds_what_a_brute_force_matcher_finds(text: str, transaction: Graph) -> None:
    (graph,) = read_language(text).graphs
    fulfil: dict[str, set[int]] = {}
    for node in graph.nodes:
        judge = judge_of(node)
        found = [judge is None or judge(attributes) == TRUE for attributes in transaction["nodes"]]
        fulfil[node.tag] = {index for index, fulfilled in enumerate(found) if fulfilled}
    joined = {frozenset(pair) for pair in transaction["edges"] if pair[0] != pair[1]}
    expected = brute_force(graph, fulfil, joined)

    assert bool(parse(text).matches(transaction)) == (expected is not None)
    candidates = [sum(1 << node for node in fulfil[node_.tag]) for node_ in graph.nodes]
    ends = [(left, right) for left, right in transaction["edges"]]
    fits = match(motif_of(graph), candidates, Links(transaction["nodes"], [{} for _ in ends], ends))
    assert (fits is None) == (expected is None)
    if fits is not None and expected is not None:
        assert [set(each(nodes)) for nodes in fits] == [expected[node.tag] for node in graph.nodes]


VALUES = ["a", "b", "5", "10"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*VALUES, None]), min_size=1, max_size=6),
    st.lists(st.sampled_from([1, 5, 7.5, 10, None]), min_size=6, max_size=6),
    st.randoms(use_true_random=False),
)
def test_conditions_mean_the_same_on_nodes_and_on_columns(
    texts: list[str | None], numbers: list[float | None], dice: random.Random
) -> None:
    rows = [{"id": "n", "t": text, "n": number} for text, number in zip(texts, numbers, strict=False)]

    def condition(depth: int) -> str:
        if depth and dice.random() < 0.7:
            left, right = condition(depth - 1), condition(depth - 1)
            return dice.choice([f"not ({left})", f"({left}) and ({right})", f"({left}) or ({right})"])
        number = dice.choice([1, 5, 6, 10])
        text = dice.choice(VALUES)
        about_text = [
            f"x.t = '{text}'",
            f"x.t != {number}",
            f"x.t < '{text}'",
            f"x.t in {{'{text}', {number}}}",
        ]
        about_number = [
            f"x.n = {number}",
            f"x.n <= {number}",
            f"x.n between {number} and 10",
            f"{number} < x.n",
        ]
        return dice.choice([*about_text, *about_number, "x.t is missing", "x.n is not missing"])

    (graph,) = read_language(f"graph Q {{ node x where {condition(3)}; }}").graphs
    judge = judge_of(graph.nodes[0])
    assert judge is not None
    column_wise = Query(graph.nodes[0].condition).mask(Records.from_rows([{**row, "n2": 0} for row in rows]))
    assert [judge(row) == TRUE for row in rows] == column_wise.tolist()
