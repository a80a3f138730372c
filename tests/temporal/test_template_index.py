"""The index says exactly what `template.matches` says of every rule, and counts clients, each within its bound."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.temporal.rule_grammar import LEVELS, STRUCTURE, RuleGrammar, abstract, arrange
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.template_index import TemplateIndex
from concilium.temporal.windows import ANY_WINDOW, HOLE
from temporal_formulas import formulas, windows

stl = cc.stl
parse = stl.parse
SLOW = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

NUMBERS = st.sampled_from([0.0, 1.0, 2.0])
RULES = formulas(names=["x", "y"], numbers=NUMBERS, window=windows(2, hours=True), most=6)


@st.composite
def templates_of(draw, rule):
    """A template near a rule: some of its parts opened, some of them changed."""
    rule = rule.canonical()

    def open_some(part):
        if draw(st.integers(0, 9)) == 0:
            return stl.OpenFormula()
        match part:
            case stl.Limit(variable, relation, number):
                opened = [draw(st.booleans()) for _ in range(3)]
                values = (variable, relation, number)
                return stl.Limit(
                    *(HOLE if each else value for each, value in zip(opened, values, strict=True))
                )
            case stl.Conjunction(parts) | stl.Disjunction(parts):
                made = [open_some(each) for each in parts]
                if len(made) > 2 and draw(st.booleans()):
                    made = [*made[: draw(st.integers(1, len(made) - 1))], parse("?")]
                return type(part)(made)
            case stl.Negation(inner):
                return stl.Negation(open_some(inner))
            case stl.Implication(premise, result):
                return stl.Implication(open_some(premise), open_some(result))
            case stl.Always(window, inner) | stl.Eventually(window, inner):
                return type(part)(open_window(window), open_some(inner))
            case stl.Until(left, window, right):
                return stl.Until(open_some(left), open_window(window), open_some(right))
        return part

    def open_window(window):
        choice = draw(st.integers(0, 4))
        if window is None or choice == 0:
            return ANY_WINDOW if choice < 3 else window
        return ((window.low, window.high), (HOLE, window.high), (window.low, HOLE), (HOLE, HOLE))[choice - 1]

    return open_some(rule)


@SLOW
@given(data=st.data())
def test_matching_is_that_of_every_rule_by_itself(data):
    clients = data.draw(st.lists(st.lists(RULES, max_size=4), min_size=1, max_size=5))
    rule_sets = RuleSets(clients)
    index = TemplateIndex(rule_sets)
    pool = [rule for client in clients for rule in client] or [parse("x > 1")]
    for _ in range(5):
        template = data.draw(templates_of(data.draw(st.sampled_from(pool))))
        expected = [any(template.matches(rule) for rule in client) for client in clients]
        assert index.match(template).tolist() == expected
        assert index.match_rules(template).tolist() == [template.matches(rule) for rule in rule_sets.rules]


def test_the_parts_of_a_template_may_stand_in_any_order():
    names = "abcdefgh"
    rule = parse(" and ".join(f"{name} > {number}" for number, name in enumerate(names)))
    other = parse(" and ".join(f"{name} > {number + 1}" for number, name in enumerate(names)))
    index = TemplateIndex(RuleSets([[rule], [other], []]))
    template = parse(" and ".join(f"? > {number}" for number in range(len(names))))
    assert index.match(template).tolist() == [True, False, False]


@SLOW
@given(clients=st.lists(st.lists(RULES, max_size=4), min_size=1, max_size=6), most=st.integers(1, 3))
def test_counts_of_a_level_and_of_any_templates(clients, most):
    index = TemplateIndex(RuleSets(clients))
    pool = list(dict.fromkeys(rule.canonical() for client in clients for rule in client)) or [parse("x > 1")]
    for level in LEVELS:
        asked = list(dict.fromkeys(abstract(rule, level) for rule in pool))
        brute = [
            sum(any(template.matches(rule) for rule in client) for client in clients) for template in asked
        ]
        assert index.count(asked).tolist() == brute
        capped = index.list_templates(asked, most)
        sizes = np.diff(capped.starts)
        full = index.list_templates(asked)
        assert (sizes == np.minimum(np.diff(full.starts), most)).all()
        for client in range(len(clients)):
            own = full.templates[full.starts[client] : full.starts[client + 1]]
            first = capped.templates[capped.starts[client] : capped.starts[client + 1]]
            assert first.tolist() == own[:most].tolist()
            assert len(set(own.tolist())) == len(own)
    mixed = [parse("?"), *pool, abstract(pool[0], STRUCTURE), parse("?")]
    brute = [sum(any(template.matches(rule) for rule in client) for client in clients) for template in mixed]
    assert index.count(mixed).tolist() == brute
    assert (np.diff(index.list_templates(mixed, most).starts) <= most).all()


@SLOW
@given(clients=st.lists(st.lists(RULES, max_size=4), min_size=2, max_size=6), most=st.integers(1, 3))
def test_one_client_moves_the_counts_by_no_more_than_its_bound(clients, most):
    pool = list(dict.fromkeys(abstract(rule, STRUCTURE) for client in clients for rule in client)) or [
        parse("x > 1")
    ]
    everybody = TemplateIndex(RuleSets(clients)).count(pool, most)
    without_first = TemplateIndex(RuleSets(clients[1:])).count(pool, most)
    moved = everybody - without_first
    assert set(moved.tolist()) <= {0, 1}
    assert moved.sum() <= most


def test_parameters_are_counted_by_public_bins():
    grammar = RuleGrammar({"x": (0, 10, 20), "y": (5,)}, [(0, 2), (0, 5)])
    rules = [
        ["G[0,2] x >= 10", "G[0,5] x >= 12", "F[0,2] y < 5"],
        ["G[0,2] x >= -1"],
        ["G[1,2] x >= 99"],
        [],
    ]
    index = TemplateIndex(RuleSets(rules))
    asked = [parse("G[?] x >= ?"), parse("F[?] y < ?"), parse("F[?] x < ?")]
    bins = [grammar.find_bins(one) for one in asked]
    counts = index.count_parameters(asked, bins)
    parts = np.split(counts, np.cumsum([len(each) for own in bins for each in own])[:-1])
    assert [part.tolist() for part in parts] == [
        [2, 1, 1],
        [1, 0, 1, 1],
        [1, 0, 0],
        [0, 1],
        [0, 0, 0],
        [0, 0, 0, 0],
    ]
    first = index.list_parameters(asked, bins, most=2)
    assert np.diff(first.starts).tolist() == [2, 2, 2, 0]


@SLOW
@given(rules=st.lists(RULES, min_size=1, max_size=4))
def test_values_fill_the_template_back_to_the_rule(rules):
    for rule in rules:
        for level in LEVELS:
            template, values = arrange(rule.canonical(), level)
            assert template.fill(*values).canonical() == rule.canonical()


def test_who_has_a_rule_that_a_grammar_can_come_to():
    index = TemplateIndex(RuleSets([["F[0,9] x >= 3", "p"], ["p"], [], ["F z >= 1"]]))
    assert index.find_reached(RuleGrammar({"x": (0,)}, [(0, 2)])).tolist() == [True, False, False, False]
    assert not TemplateIndex(RuleSets([[], []])).find_reached(RuleGrammar({"x": (0,)}, [(0, 2)])).any()
