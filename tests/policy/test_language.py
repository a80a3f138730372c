"""The language of constraint graphs: every example of chapter 4 reads, and errors point at what is wrong."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from concilium.errors import PolicyError
from concilium.policy.functions import Call
from concilium.policy.language import (
    ConstraintGraph,
    Eliminate,
    Exists,
    MotifEdge,
    Node,
    Quantifier,
    Substitute,
    check_attributes,
    read_language,
)
from concilium.policy.patterns import Pattern
from concilium.records.expression import Comparison, Literal, Name

DOCS = Path(__file__).parents[2] / "docs" / "constraint-graphs.md"
SOME, ONE = Quantifier(1, None), Quantifier(1, 1)

# Chapter 4 as printed, with the quotation marks of its typesetting.
PRINTED = {
    "G": """graph G {
                             node v1;
                                  node v2;
                                  edge e(v1,v2);
                              }""",
    "A": "graph A { node x +; \n node y ?; }",
    "B": "graph B { node u +;  \n node v +; \n edge (u,v); }",
    "C": "graph C { node u {3}; }",
    "P": "graph P {   node x + where x.sex = ‘m’; \n node y ? where y.temp > 99; }",
    "exists": """graph C {  node u exists u.name,
                              exists u.address,
                              exists u.dob,
                              exists u.ss; }""",
    "E": """graph E {   node x + eliminate x.dob;
                     node y + where y.country = “USA” eliminate y.id; }""",
}


def only(text: str) -> ConstraintGraph:
    (graph,) = read_language(text).graphs
    return graph


def about(tag: str, attribute: str, sign: str, kind: str, value: str | int) -> Comparison:
    return Comparison(Name(attribute, tag), sign, Literal(kind, value))


@pytest.mark.parametrize(
    ("example", "meant"),
    [
        ("G", ConstraintGraph("G", (Node("v1"), Node("v2")), (MotifEdge("e", "v1", "v2"),), ())),
        ("A", ConstraintGraph("A", (Node("x", SOME), Node("y", ONE)), (), ())),
        ("B", ConstraintGraph("B", (Node("u", SOME), Node("v", SOME)), (MotifEdge(None, "u", "v"),), ())),
        ("C", ConstraintGraph("C", (Node("u", Quantifier(3, 3)),), (), ())),
        (
            "P",
            ConstraintGraph(
                "P",
                (
                    Node("x", SOME, about("x", "sex", "=", "text", "m")),
                    Node("y", ONE, about("y", "temp", ">", "number", 99)),
                ),
                (),
                (),
            ),
        ),
        (
            "exists",
            ConstraintGraph(
                "C",
                (Node("u"),),
                (),
                tuple(Exists("u", attribute) for attribute in ("name", "address", "dob", "ss")),
            ),
        ),
        (
            "E",
            ConstraintGraph(
                "E",
                (Node("x", SOME), Node("y", SOME, about("y", "country", "=", "text", "USA"))),
                (),
                (Eliminate("x", "dob"), Eliminate("y", "id")),
            ),
        ),
    ],
)
def test_printed_examples_read_as_meant(example: str, meant: ConstraintGraph) -> None:
    assert only(PRINTED[example]) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("", Quantifier(1, None)),
        ("?", Quantifier(1, 1)),
        ("+", Quantifier(1, None)),
        ("{2}", Quantifier(2, 2)),
        ("{ 2 , 5 }", Quantifier(2, 5)),
        ("{2,}", Quantifier(2, None)),
        ("{0}", Quantifier(0, 0)),
        (
            "[diabetes, 'high blood pressure', 250, `a b`]",
            Quantifier(1, None, ("diabetes", "high blood pressure", "250", "a b")),
        ),
    ],
)
def test_quantifiers(written: str, meant: Quantifier) -> None:
    assert only(f"graph Q {{ node x {written}; }}").nodes[0].quantifier == meant


def test_actions_name_a_tag_or_its_attribute() -> None:
    graph = only(
        r"""GRAPH `my rule` {  # words of the language in any case
            Node x WHERE x.name.family = 'a' ELIMINATE x.`date of birth`, eliminate x,
                substitute x.a =~ /year()/, substitute x =~ / round( 5 ) /, exists x;
            node y substitute x.t =~ /\/(\d+)\//<\1>/; }"""
    )
    assert graph.name == "my rule"
    eliminate_one, eliminate_all, year, rounded, exists, replace = graph.actions
    assert (eliminate_one, eliminate_all) == (Eliminate("x", "date of birth"), Eliminate("x", None))
    assert year == Substitute("x", "a", Call("year"))
    assert rounded == Substitute("x", None, Call("round", (5.0,)))
    assert exists == Exists("x", None)
    assert isinstance(replace, Substitute)
    assert isinstance(replace.transform, Pattern)
    assert replace.transform.substitute("a/12/b/c/") == "a<12>b/c/"
    assert graph.nodes[0].condition == about("x", "name.family", "=", "text", "a")


def test_words_of_the_language_can_be_tags_and_attributes() -> None:
    graph = only("graph node { node where where where.exists = 1 eliminate where.node; }")
    assert graph.nodes[0].tag == "where"
    assert graph.actions == (Eliminate("where", "node"),)


def test_two_functions_after_one_another_are_not_one_pattern() -> None:
    graph = only("graph S { node x substitute x.a =~ /year()/, substitute x.b =~ /zip3()/; }")
    assert [action.transform for action in graph.actions if isinstance(action, Substitute)] == [
        Call("year"),
        Call("zip3"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "expected 'graph'"),
        ("graph", 1, 6, "expected a name"),
        ("graph G {", 1, 10, "expected 'node' or 'edge'"),
        ("graph G { }", 1, 11, "expected 'node' or 'edge', but found '}'"),
        ("graph G { node x }", 1, 18, "expected a quantifier, such as + or {2,5}, 'where', an action"),
        ("graph G {\n  node x elimnate x.a;\n}", 2, 10, "an action (exists, eliminate or substitute)"),
        ("graph G { node x where; }", 1, 23, "expected a condition, such as x.age > 20"),
        ("graph G { node x where x.sex = m; }", 1, 32, "write it in quotes: 'm'"),
        ("graph G { node x where sex = 'm'; }", 1, 24, "write x.sex"),
        ("graph G { node x where y.a = 1; node z; }", 1, 24, "no node of this graph is tagged y"),
        ("graph G { node x where y.a = 1; node y; }", 1, 24, "only be about x itself"),
        ("graph G { node x where x.a > true; }", 1, 30, "has no order"),
        ("graph G { node x where x.a between 1 and 'b'; }", 1, 42, "not of one kind"),
        ("graph G { node pat eliminate pta.a; }", 1, 30, "did you mean 'pat'?"),
        ("graph G { node x; node x; }", 1, 24, "two nodes tagged x"),
        ("graph G { node x; }\ngraph G { node y; }", 2, 7, "two graphs named G"),
        ("graph G { node x {3,2}; }", 1, 19, "can never hold"),
        ("graph G { node x {0} eliminate x.a; }", 1, 32, "no node at all"),
        ("graph G { node x {}; }", 1, 19, "expected a number"),
        ("graph G { node x []; }", 1, 19, "expected a value"),
        ("graph G { node x; edge (x, y); }", 1, 28, "no node of this graph is tagged y"),
        ("graph G { node x; edge (x, x); }", 1, 28, "never join a tag to itself"),
        ("graph G { edge (u, v); }", 1, 7, "has no node"),
        ("graph G { node x substitute x.a =~ /yeer()/; }", 1, 37, "did you mean 'year'?"),
        ("graph G { node x substitute x.a =~ /eval(1)/; }", 1, 37, "there is no function eval"),
        ("graph G { node x substitute x.a =~ /year(2)/; }", 1, 37, "takes nothing"),
        ("graph G { node x substitute x.a =~ /round(0)/; }", 1, 37, "above 0"),
        ("graph G { node x substitute x.a =~ /generalise(2.5)/; }", 1, 37, "from 3 to 7"),
        (
            "graph G { node x substitute x.a =~ /dob/; }",
            1,
            36,
            "expected /function()/ or /pattern/replacement/",
        ),
        ("graph G { node x substitute x.a =~ /a[bc/x/; }", 1, 38, "bracket is never closed"),
        ("graph G { node x substitute x.a =~ /(a+)+b/x/; }", 1, 38, "cannot tell where to stop"),
        (r"graph G { node x substitute x.a =~ /(a)b/\2/; }", 1, 42, "no group 2"),
        ("graph G { node x exists x.a exists x.b; }", 1, 29, "expected a comma or a semicolon"),
        ("graph G { node x;", 1, 18, "expected 'node', 'edge' or a closing brace"),
    ],
)
def test_errors_say_what_was_expected_and_point_there(text: str, line: int, column: int, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_language(text)
    problem, *_, caret = str(caught.value).splitlines()
    assert words in problem
    assert f"(line {line}, column {column})" in problem
    assert caret.index("^") == column + 1


def test_a_graph_has_a_bounded_number_of_tags() -> None:
    nodes = [f"node x{number};" for number in range(13)]
    assert len(only(f"graph G {{ {' '.join(nodes[:12])} }}").nodes) == 12
    with pytest.raises(PolicyError, match="at most 12 nodes"):
        read_language(f"graph G {{ {' '.join(nodes)} }}")


def test_a_mistyped_attribute_is_noticed_where_the_data_are_known() -> None:
    text = "graph G {\n  node x where x.sex = 'm' eliminate x.dbo; }"
    graphs = read_language(text).graphs
    check_attributes(graphs, ["sex", "dbo"], text)
    with pytest.raises(PolicyError, match=r"mentions dbo, .*did you mean 'dob'\? \(line 2, column 38\)"):
        check_attributes(graphs, ["sex", "dob"], text)
    with pytest.raises(PolicyError, match="mentions sex"):
        check_attributes(graphs, ["dbo"], text)


def test_every_example_in_the_documentation_reads() -> None:
    blocks = re.findall(r"```graph\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert [graph.name for block in blocks for graph in read_language(block).graphs] == [
        "identity",
        "birthdays",
        "coarser",
        "kinship",
        "own_ward",
        "own_functions",
        "safe_harbour",
        "v2",
    ]


LARK_WORDS = re.compile(
    r"\b(?:[LR](?:PAR|BRACE|SQB)|COMMA|DOT|NUMBER|TEXT|BARE|SEMICOLON|QMARK|PLUS|COUNT|FUNCTION)\b|\$END|_[A-Z]+"
)


def read_or_explain(text: str) -> str | None:
    try:
        read_language(text)
    except PolicyError as error:
        return str(error)
    return None


def test_mutated_policies_read_or_are_explained() -> None:
    dice = random.Random(4)
    seeds = [
        *PRINTED.values(),
        r"graph S { node x [a, 'b'] where not x.a in {1, 'c'} substitute x.t =~ /(\d{3})-\d+/\1/; }",
    ]
    pieces = [
        *"(){}[];,.+?=~/\\'\"`<>#*|^$ \n0123x\x00é",
        "node ",
        "edge",
        "where ",
        "exists ",
        "/year()/",
        "and",
        "not ",
    ]
    explained = 0
    for _ in range(4_000):
        text = dice.choice(seeds)
        for _ in range(dice.randint(1, 3)):
            start = dice.randrange(len(text) + 1)
            end = min(len(text), start + dice.randint(0, 4))
            text = text[:start] + dice.choice([dice.choice(pieces), ""]) + text[end:]
        problem = read_or_explain(text)
        if problem is not None:
            explained += 1
            assert re.search(r"\(line \d+, column \d+\)\n", problem)
            assert "something else" not in problem
            assert not LARK_WORDS.search(problem.split(" (line ")[0].split(", but found")[0])
    assert 1_000 < explained < 3_900
