"""Edges with attributes, relations taken out alone, tags compared with each other; against a brute-force matcher."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import PolicyError
from concilium.policy import parse
from concilium.policy.explain import describe

Graph = dict[str, Any]


def graph(*nodes: dict[str, Any], edges: list[Any] | None = None) -> Graph:
    return {"nodes": list(nodes), "edges": edges or []}


WARD: list[dict[str, Any]] = [
    {"id": "p", "type": "Patient", "mrn": "7", "ward": "3a"},
    {"id": "d", "type": "Doctor", "ward": "3a"},
    {"id": "e", "type": "Doctor", "ward": "4b"},
]
TREATS = ["p", "d", {"kind": "treats", "since": "2020-01-31"}]
KNOWS = ["d", "p", {"kind": "knows"}]
SEES = ["e", "p", {"kind": "treats", "since": "2021-05-05", "note": "VIP"}]


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("edge r(p, d) where r.kind = 'knows' eliminate r;", [TREATS, SEES]),
        ("edge r(p, d) eliminate r;", []),
        (
            "edge r(p, d) where r.kind = 'treats' eliminate r.since;",
            [["p", "d", {"kind": "treats"}], KNOWS, ["e", "p", {"kind": "treats", "note": "VIP"}]],
        ),
        (
            "edge r(p, d) substitute r.since =~ /year()/;",
            [
                ["p", "d", {"kind": "treats", "since": "2020"}],
                KNOWS,
                ["e", "p", {"kind": "treats", "since": "2021", "note": "VIP"}],
            ],
        ),
        ("edge r(p, d) substitute r.kind =~ /year()/, eliminate r.since, eliminate r.note;",
         [["p", "d"], ["d", "p"], ["e", "p"]]),
        ("edge r(p, d) where d.ward = p.ward eliminate r;", [SEES]),
        ("edge r(p, d) where d.ward != p.ward eliminate r;", [TREATS, KNOWS]),
        ("edge r(p, d) where r.since > '2020-06' eliminate r;", [TREATS, KNOWS]),
        ("edge r(p, d) where r.other = 1 eliminate r;", [TREATS, KNOWS, SEES]),
    ],
)  # fmt: skip
def test_what_is_done_to_edges(rule: str, left: list[Any]) -> None:
    tags = "node p where p.type = 'Patient'; node d where d.type = 'Doctor';"
    changed = parse(f"graph R {{ {tags} {rule} }}").apply(graph(*WARD, edges=[TREATS, KNOWS, SEES]))
    assert changed == graph(*WARD, edges=left)


def test_a_relation_is_taken_out_and_its_nodes_stay() -> None:
    changed = parse("graph R { node a; node b; edge r(a, b) eliminate r; }").apply(
        graph({"id": 1}, {"id": 2}, {"id": 3}, edges=[[1, 2], [3, 3]])
    )
    assert changed == graph({"id": 1}, {"id": 2}, {"id": 3}, edges=[[3, 3]])


def test_an_edge_can_refuse_a_message() -> None:
    rules = parse(
        "graph R { node a; node b; edge r(a, b) where r.kind = 'family' exists r.note, exists a.name; }"
    )
    one, two = {"id": 1, "name": "Ann"}, {"id": 2}
    assert rules.apply(graph(one, two, edges=[[2, 1, {"kind": "family", "note": "x"}]])) is None
    for edges in ([[1, 2, {"kind": "family"}]], [[1, 2, {"kind": "other", "note": "x"}]], [[1, 2]]):
        assert rules.apply(graph(one, two, edges=edges)) == graph(one, two, edges=edges)


def test_actions_on_an_edge_do_not_depend_on_other_actions() -> None:
    rules = parse(
        """graph R { node a where a.k = 1; node b where b.k = 2; edge r(a, b) eliminate r;
                     node c where c.k = 3 eliminate c.z; }"""
    )
    assert rules.apply(graph({"id": 1, "k": 3, "z": 1})) == graph({"id": 1, "k": 3})
    pair = graph({"id": 1, "k": 1}, {"id": 2, "k": 2}, edges=[[1, 2]])
    assert rules.apply(pair) == {**pair, "edges": []}


@pytest.mark.parametrize(
    ("condition", "one", "other", "found"),
    [
        ("x.a = y.b", "5", 5.0, True),
        ("x.a = y.b", "5.0", 5, True),
        ("x.a = y.b", "05", "5", False),
        ("x.a = y.b", None, None, False),
        ("x.a = y.b", [], "", False),
        ("x.a = y.b", ["1", "2"], ["2", "3"], True),
        ("x.a != y.b", ["1", "2"], ["2", "3"], False),
        ("x.a != y.b", ["1"], ["2", "3"], True),
        ("x.a = y.b", True, "true", True),
        ("x.a = y.b", True, 1, False),
        ("x.a < y.b", "9", "10", True),
        ("x.a < y.b", 9, "10", True),
        ("x.a < y.b", "1950-01-31", "1950-02-01", True),
        ("x.a < y.b", "b", "a", False),
        ("x.a >= y.b", 2, [1, 5], True),
        ("not x.a < y.b", None, 1, False),
        ("not (x.a = y.b)", "1", "2", True),
        ("x.a = y.b or x.a is missing", None, "2", True),
    ],
)
def test_comparing_two_tags(condition: str, one: Any, other: Any, found: bool) -> None:
    rules = parse(f"graph C {{ node x where x.t = 'x' and ({condition}); node y where y.t = 'y'; }}")
    transaction = graph({"t": "x", "a": one}, {"t": "y", "b": other})
    assert bool(rules.matches(transaction)) == found
    if "missing" not in condition:
        turned = parse(f"graph C {{ node x where x.t = 'x'; node y where {condition} and y.t = 'y'; }}")
        assert bool(turned.matches(transaction)) == found


def test_comparing_two_attributes_of_one_tag() -> None:
    rules = parse("graph C { node x + where x.born > x.died eliminate x.died; }")
    nodes = [{"born": "1950", "died": "1940"}, {"born": "1950", "died": "2000"}, {"born": "1950"}]
    assert rules.apply(graph(*nodes)) == graph({"born": "1950"}, *nodes[1:])


def test_what_cannot_be_compared_is_an_error_that_keeps_the_data_to_itself() -> None:
    rules = parse("graph C { node x where x.a < y.b eliminate x.a; node y; }")
    with pytest.raises(PolicyError, match=r"graph C compares a with y\.b.* nothing was let out") as caught:
        rules.apply(graph({"a": "Roe"}, {"b": 5}))
    assert "Roe" not in str(caught.value)


def test_a_kinsman_without_consent() -> None:
    """A {0} tag compared with another: nobody with the same family name has said no."""
    rules = parse(
        """graph K { node x where x.role = 'patient' eliminate x.gene;
                     node n {0} where n.consent = 'no' and n.family = x.family; }"""
    )
    patient = {"id": 1, "role": "patient", "family": "Roe", "gene": "BRCA1"}
    other = {"id": 2, "consent": "no", "family": "Doe"}
    kin = {**other, "family": "Roe"}
    without = {name: value for name, value in patient.items() if name != "gene"}
    assert rules.apply(graph(patient, other)) == graph(without, other)
    assert rules.apply(graph(patient, kin)) == graph(patient, kin)


def test_the_condition_of_an_edge_to_an_absent_node_asks_nothing_of_the_others() -> None:
    rules = parse(
        """graph A { node x where x.t = 'x' eliminate x.z; node w where w.t = 'w'; node y {0,1} where y.t = 'y';
                     edge (x, y) where x.a = w.a; }"""
    )
    one, other = {"id": 1, "t": "x", "a": 1, "z": 1}, {"id": 2, "t": "w", "a": 2}
    assert rules.apply(graph(one, other)) == graph({"id": 1, "t": "x", "a": 1}, other)


def test_many_nodes_are_compared_by_an_index() -> None:
    rules = parse(
        "graph C { node x + where x.t = 'x' and x.key = y.key eliminate x.key; node y where y.t = 'y'; }"
    )
    nodes = [
        {"t": side, "key": f"{side if number % 2 else ''}{number}"}
        for number in range(3_000)
        for side in "xy"
    ]
    changed = rules.apply(graph(*nodes))
    assert changed is not None
    assert sum("key" not in node for node in changed["nodes"]) == 1_500


def test_comparisons_without_an_index_end_in_bounded_time() -> None:
    rules = parse(
        "graph C { node x + where x.t = 'x' and x.n > y.n eliminate x.key; node y where y.t = 'y'; }"
    )
    with pytest.raises(PolicyError, match="nothing was let out"):
        rules.apply(graph(*({"t": side, "n": 1} for side in "xy" for _ in range(400))))


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ([["a", "b", "treats"]], "what edge 1 has is not an object"),
        ([["a", "b", {"k": {"Roe": 1}}]], "what edge 1 has has an attribute|no rule could see inside it"),
        ([["a", "b", {"k": 1}, "Roe"]], "edge 1 is not a pair"),
        ([["a", "a", {"k": "Roe"}]], "joins a node to itself and has attributes"),
    ],
)
def test_what_no_rule_could_see_of_an_edge_is_refused(edges: list[Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        parse("graph R { node a; }").apply(graph({"id": "a"}, {"id": "b"}, edges=edges))
    assert "Roe" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("node x where x.a = y.b; node y {0};", 30, "y may stand for nothing"),
        ("node x where y.b = 1 or y.c = 2; node y;", 24, "can only be about x itself, or compare it"),
        ("node x where x.a = z.b;", 30, "no node of this graph is tagged z"),
        ("node x where x.a = z;", 30, "write it in quotes: 'z'"),
        ("node x; node y; edge x(x, y);", 32, "two nodes or edges tagged x"),
        ("node x; node y; edge e(x, y) where u.k = 1;", 46, "no node of this graph is tagged u"),
        ("node x; node y; edge e(x, y) where x.k = 1;", 46, "the condition of e can only be about e itself"),
        ("node x; node y; edge (x, y) where k = 1;", 45, "an attribute belongs to a tag"),
        ("node x; node y {0}; edge e(x, y) eliminate e;", 54, "y stands for no node at all"),
        ("node x; node y; edge e(x, y) +;", 40, "expected 'where', an action"),
        ("node x; node e where e.k = f.k; node y {0,1}; edge f(x, y);", 38, "f may stand for nothing"),
    ],
)
def test_errors_point_at_the_place(text: str, column: int, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(f"graph G {{ {text} }}")
    assert words in str(caught.value)
    assert f"(line 1, column {column})" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "node p; node d; edge r(p, d) where r.kind = 'kin' eliminate r;",
            "takes out edges where r.kind = 'kin' between p (any node) and d (any node)",
        ),
        (
            "node p eliminate p.zip; node d; edge (p, d) where d.ward = p.ward;",
            "takes out zip of every node, in messages with any node, joined as (p, d), where d.ward = p.ward",
        ),
        (
            "node p; node d; edge r(p, d) exists r.note;",
            "refuses a message that has note (edges between p (any node) and d (any node))",
        ),
        (
            "node p where p.t = 1 eliminate p.zip; node d; edge r(p, d) where r.k = 2;",
            "takes out zip of nodes where p.t = 1, in messages with any node, joined as (p, d) where r.k = 2",
        ),
        (
            "node p where p.t = 1 and p.a = d.a; node d {2,}; edge r(p, d) eliminate r.since;",
            "takes out since of edges between p (nodes where p.t = 1) and d (any node if there are 2 or more), where "
            "p.a = d.a",
        ),
        (
            "node p where p.t = 1 and p.a = q.a substitute p.a =~ /hash()/; node q;",
            "changes a of nodes where p.t = 1 by hash(), in messages with any node, where p.a = q.a",
        ),
    ],
)
def test_rules_in_words(text: str, sentence: str) -> None:
    assert describe(parse(f"graph G {{ {text} }}").graphs[0]) == [sentence]


# The oracle: every way to put nodes at tags and edges at edges' tags, as the documentation says, without any shortcut.
# It reads no rule text: motifs are drawn as the values below, and written down for the product alone.


@dataclass(frozen=True)
class Term:
    """`tag.k SIGN value` or `tag.k SIGN other.k`."""

    tag: str
    sign: str
    other: str | int

    def write(self) -> str:
        return f"{self.tag}.k {self.sign} {self.other}{'' if isinstance(self.other, int) else '.k'}"

    def tags(self) -> set[str]:
        return {self.tag} if isinstance(self.other, int) else {self.tag, self.other}

    def is_true(self, has: dict[str, Any]) -> bool:
        one, other = has[self.tag], self.other if isinstance(self.other, int) else has[self.other]
        if one is None or other is None:
            return False
        pairs = list(itertools.product(*(v if isinstance(v, list) else [v] for v in (one, other))))
        if self.sign == "!=":
            return all(left != right for left, right in pairs)
        return any(left == right if self.sign == "=" else left < right for left, right in pairs)


@dataclass(frozen=True)
class Statement:
    """A tag (an edge's where it has ends) with its conditions: each a list of terms of which one must be true."""

    tag: str
    ends: tuple[str, str] | None
    least: int
    most: int | None
    conditions: tuple[tuple[Term, ...], ...]

    def write(self, action: str) -> str:
        where = " and ".join(f"({' or '.join(term.write() for term in one)})" for one in self.conditions)
        end = f"{f'where {where}' if where else ''} {action};"
        if self.ends is not None:
            return f"edge {self.tag}({self.ends[0]}, {self.ends[1]}) {end}"
        return f"node {self.tag} {{{self.least},{'' if self.most is None else self.most}}} {end}"

    def own_nodes(self) -> set[str]:
        return {self.tag} if self.ends is None else set(self.ends)


@dataclass(frozen=True)
class Oracle:
    statements: tuple[Statement, ...]
    nodes: list[Any]
    edges: list[tuple[int, int, Any]]

    def __post_init__(self) -> None:
        by_tag = {one.tag: one for one in self.statements}
        object.__setattr__(self, "by_tag", by_tag)

    def needed(self) -> set[str]:
        return {one.tag for one in self.statements if one.ends is None and one.least > 0}

    def part(self, start: set[str]) -> set[str]:
        """The tags of nodes that edges and comparisons connect with the start, as far as they are needed."""
        tags = set(start)
        while True:
            more: set[str] = set()
            for one in self.statements:
                if one.ends is not None and tags & set(one.ends):
                    more |= set(one.ends) & self.needed()
                if not one.own_nodes() <= tags | self.needed():
                    continue
                for condition in one.conditions:
                    said = set().union(*(self.nodes_of(tag) for term in condition for tag in term.tags()))
                    said |= (
                        one.own_nodes()
                        if len({t for term in condition for t in term.tags()} | {one.tag}) > 1
                        else set()
                    )
                    if said & tags:
                        more |= said & self.needed()
            if more <= tags:
                return tags
            tags |= more

    def nodes_of(self, tag: str) -> set[str]:
        return self.by_tag[tag].own_nodes()  # type: ignore[attr-defined,no-any-return]

    def placements(self, tags: set[str]) -> Iterator[dict[str, int]]:
        ordered = sorted(tags)
        active = [one for one in self.statements if one.own_nodes() <= tags]
        edges = [one for one in active if one.ends is not None]
        for chosen in itertools.permutations(range(len(self.nodes)), len(ordered)):
            placed = dict(zip(ordered, chosen, strict=True))
            choices = []
            for one in edges:
                assert one.ends is not None
                pair = {placed[end] for end in one.ends}
                choices.append([i for i, (a, b, _) in enumerate(self.edges) if {a, b} == pair])
            for taken in itertools.product(*choices):
                whole = {**placed, **{one.tag: i for one, i in zip(edges, taken, strict=True)}}
                has = {
                    tag: self.nodes[item] if tag in placed else self.edges[item][2]
                    for tag, item in whole.items()
                }
                if all(any(t.is_true(has) for t in cond) for one in active for cond in one.conditions):
                    yield whole

    def fits(self, tag: str) -> set[int]:
        return {placed[tag] for placed in self.placements(self.part(self.nodes_of(tag)))}

    def matches(self) -> bool:
        nodes = [one for one in self.statements if one.ends is None]
        fits = {one.tag: self.fits(one.tag) for one in nodes}
        to_share = sorted(set().union(*fits.values()))
        for core in self.placements(self.needed()):
            for given_to in itertools.product(
                *([tag for tag in fits if node in fits[tag]] for node in to_share)
            ):
                shared = dict(zip(to_share, given_to, strict=True))
                if all(
                    one.least <= given_to.count(one.tag) <= (9 if one.most is None else one.most)
                    for one in nodes
                ) and all(shared[core[tag]] == tag for tag in self.needed()):
                    return True
        return False


@st.composite
def motifs(draw: st.DrawFn) -> tuple[Statement, ...]:
    tags = "uvw"[: draw(st.integers(1, 3))]
    counts = {
        tag: draw(st.sampled_from([(1, None), (1, None), (1, 1), (2, None), (0, 1), (0, 0)])) for tag in tags
    }
    pairs = list(itertools.permutations(tags, 2))
    joined = draw(st.lists(st.sampled_from(pairs), max_size=2)) if pairs else []
    edges = {f"e{number}": pair for number, pair in enumerate(joined)}
    needed = {tag for tag in tags if counts[tag][0] > 0}
    needed |= {edge for edge, pair in edges.items() if set(pair) <= needed}

    def conditions(tag: str) -> tuple[tuple[Term, ...], ...]:
        others = sorted((needed | set(edges.get(tag, ()))) - {tag})
        sign = st.sampled_from(["=", "=", "!=", "<"])
        own = st.builds(Term, st.just(tag), sign, st.integers(0, 2))
        term = st.one_of(own, st.builds(Term, st.just(tag), sign, st.sampled_from(others))) if others else own
        if tag in edges:
            end = edges[tag][0]
            term |= st.builds(
                Term, st.just(end), sign, st.sampled_from([one for one in others if one != end])
            )
        return tuple(draw(st.lists(st.lists(term, min_size=1, max_size=2).map(tuple), max_size=2)))

    return tuple(
        Statement(tag, edges.get(tag), *(counts.get(tag, (1, None))), conditions(tag))
        for tag in (*tags, *edges)
    )


VALUES = st.sampled_from([0, 1, 2, None, [0, 2], [1]])


@settings(max_examples=400, deadline=None)
@given(
    motifs(),
    st.lists(VALUES, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), VALUES), max_size=4),
    st.randoms(use_true_random=False),
)
def test_reaches_what_a_brute_force_matcher_reaches(
    motif: tuple[Statement, ...], nodes: list[Any], drawn: list[tuple[int, int, Any]], dice: Any
) -> None:
    edges = [(a, b, value) for a, b, value in drawn if max(a, b) < len(nodes) and a != b]
    oracle = Oracle(motif, nodes, edges)
    transaction = graph(
        *({"id": index, "k": value, "mark": 1} for index, value in enumerate(nodes)),
        edges=[[a, b, {"k": value, "mark": 1}] for a, b, value in edges],
    )
    text = " ".join(one.write("") for one in motif)
    assert bool(parse(f"graph M {{ {text} }}").matches(transaction)) == oracle.matches()

    absent = {one.tag for one in motif if one.most == 0}
    targets = [one for one in motif if not one.own_nodes() & absent]
    if not targets:
        return
    target = dice.choice(targets)
    text = " ".join(one.write(f"eliminate {one.tag}.mark" if one is target else "") for one in motif)
    changed = parse(f"graph M {{ {text} }}").apply(transaction)
    assert changed is not None
    having = [one[2] for one in changed["edges"]] if target.ends else changed["nodes"]
    reached = {index for index, one in enumerate(having) if "mark" not in one}
    assert reached == (oracle.fits(target.tag) if oracle.matches() else set())
