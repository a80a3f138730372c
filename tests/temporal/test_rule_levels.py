"""Levels of abstraction: one template of each for every rule, and a grammar that comes to all the learner can breed."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import StudyError
from concilium.temporal.rule_grammar import (
    LEVELS,
    SKELETON,
    STRUCTURE,
    VARIABLES,
    IntervalBins,
    RuleGrammar,
    _NumberBins,
    abstract,
    find_level,
)
from concilium.temporal.search_space import Breeder, SearchSpace
from temporal_formulas import formulas, windows

stl = cc.stl
parse = stl.parse
SLOW = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
SPACE = SearchSpace({"HR": (60.0, 80.0, 100.0), "Temp": (36.0, 38.0), "MAP": (65.0,)}, 6)


def shuffled(formula, random):
    """The same formula with the parts of and and or in another order."""
    children = [shuffled(child, random) for child in formula.children]
    match formula:
        case stl.Conjunction() | stl.Disjunction():
            random.shuffle(children)
            return type(formula)(children)
        case stl.Negation():
            return stl.Negation(*children)
        case stl.Implication():
            return stl.Implication(*children)
        case stl.Always() | stl.Eventually():
            return type(formula)(formula.window, *children)
        case stl.Until():
            return stl.Until(children[0], formula.window, children[1])
    return formula


def test_the_levels_of_a_rule():
    rule = parse("G[0,5](HR >= 60 and HR < 110) -> F Temp > 38")
    assert str(abstract(rule, SKELETON)) == "G[?](? ? ? and ? ? ?) -> F[?] ? ? ?"
    assert str(abstract(rule, VARIABLES)) == "G[?](HR ? ? and HR ? ?) -> F[?] Temp ? ?"
    assert str(abstract(rule, STRUCTURE)) == "G[?](HR < ? and HR >= ?) -> F[?] Temp > ?"


@SLOW
@given(formulas(names=["x", "y"], window=windows(3, hours=True)), st.randoms())
def test_abstraction_is_canonical_matches_and_does_not_depend_on_the_form(rule, random):
    for level in LEVELS:
        template = abstract(rule, level)
        assert template.canonical() == template
        assert template.matches(rule)
        assert abstract(rule.canonical(), level) == template
        assert abstract(shuffled(rule, random), level) == template
    for coarse, fine in itertools.combinations(LEVELS, 2):
        assert abstract(abstract(rule, fine), coarse) == abstract(rule, coarse)


@SLOW
@given(
    st.lists(formulas(names=["x", "y"], most=4, propositions=False, constants=False), min_size=2, max_size=4)
)
def test_templates_of_a_level_divide_the_rules(rules):
    for level in LEVELS:
        templates = {abstract(rule, level) for rule in rules}
        assert find_level(templates) == level
        for rule in rules:
            assert [template for template in templates if template.matches(rule)] == [abstract(rule, level)]


@pytest.mark.parametrize(
    "text", ["?", "G[?] ?", "G[0,1] x > ?", "G[?] x > 1", "G[?](x > ? and ? ? ?)", "G x > ?"]
)
def test_other_templates_are_of_no_level(text):
    assert find_level([parse(text)]) is None


def breed(seed, count):
    breeder = Breeder(SPACE, Random(seed))
    random = Random(seed)
    living = [breeder.draw().canonical() for _ in range(20)]
    for turn in range(count):
        one, other = random.choice(living[-20:]), random.choice(living)
        young = breeder.cross(one, other) if turn % 2 else breeder.mutate(one)
        living.append(young.canonical())
    return living


def test_the_grammar_comes_to_whatever_the_learner_breeds():
    grammar = RuleGrammar.from_space(SPACE, limits=9)
    largest = 0
    for seed in range(20):
        for rule in breed(seed, 150):
            assert grammar.produces(rule), str(rule)
            limits = sum(isinstance(part, stl.Limit) for part in rule.walk())
            largest = max(largest, limits)
    assert largest >= 5


def test_children_lead_to_the_structure_of_a_rule():
    grammar = RuleGrammar.from_space(SPACE, limits=3)
    skeletons = set(grammar.skeletons)
    for rule in breed(1, 200):
        limits = sum(isinstance(part, stl.Limit) for part in rule.walk())
        assert grammar.produces(rule) == (limits <= 3)
        if limits <= 3:
            first, second, third = (abstract(rule, level) for level in LEVELS)
            assert first in skeletons
            assert second in grammar.expand(first)
            assert third in grammar.expand(second)
            assert third in grammar.expand(first, STRUCTURE)


def test_children_are_canonical_each_once_and_divide():
    grammar = RuleGrammar.from_space(SPACE, limits=2)
    for skeleton in grammar.skeletons:
        assert find_level([skeleton]) == SKELETON
        children = grammar.expand(skeleton)
        assert len(children) == len(set(children)) <= grammar.count_children(skeleton, VARIABLES)
        assert all(child.canonical() == child and abstract(child, SKELETON) == skeleton for child in children)
        every = [grand for child in children for grand in grammar.expand(child)]
        assert sorted(map(str, every)) == sorted(map(str, grammar.expand(skeleton, STRUCTURE)))
        assert len(every) == len(set(every))
        assert all(find_level([grand]) == STRUCTURE for grand in every)
    with pytest.raises(StudyError, match="no children"):
        grammar.expand(every[0])


def test_skeletons_with_two_limits_by_hand():
    grammar = RuleGrammar({"x": (1,)}, [(0, 1)], limits=2)
    states = ["? ? ? and ? ? ?", "? ? ? or ? ? ?"]
    expected = [f"{kind}[?] ? ? ?" for kind in "GF"]
    expected += [f"{kind}[?]({state})" for kind in "GF" for state in states]
    expected += ["(? ? ?) U[?] (? ? ?)"]
    expected += [f"G[?] ? ? ? {join} F[?] ? ? ?" for join in ("and", "or")]
    expected += [f"{kind}[?] ? ? ? {join} {kind}[?] ? ? ?" for join in ("and", "or") for kind in "GF"]
    expected += [f"{one}[?] ? ? ? -> {other}[?] ? ? ?" for one in "GF" for other in "GF"]
    assert set(grammar.skeletons) == {parse(text).canonical() for text in expected}
    assert len(grammar.skeletons) == len(expected)
    assert len(RuleGrammar({"x": (1,)}, [(0, 1)], operators=("G",), limits=4).skeletons) == 1


def test_rules_that_no_search_can_come_to():
    grammar = RuleGrammar({"x": (1,)}, [(0, 1)], limits=2)
    assert grammar.produces(parse("F[3,9] x >= 77"))
    for text in (
        "F y >= 1",
        "F x > 1",
        "F(x >= 1 and x < 2 and x < 3)",
        "x >= 1",
        "G F x >= 1",
        "F p",
        "true",
    ):
        assert not grammar.produces(parse(text)), text


def test_bins():
    numbers = _NumberBins((0.0, 10.0))
    assert numbers.place([-1, 0, 9.9, 10, 99]).tolist() == [0, 1, 1, 2, 2]
    assert [numbers.choose(place) for place in range(3)] == [0.0, 0.0, 10.0]
    assert [numbers.describe(place) for place in range(3)] == ["below 0", "0 to 10", "10 or more"]
    grammar = RuleGrammar({"x": (0, 10)}, [(0, 1), None])
    intervals = grammar.find_bins(parse("(x >= ?) U[?] (x < ?)"))[1]
    assert isinstance(intervals, IntervalBins)
    assert intervals.place([stl.Window(0, 1), None, stl.Window(0, 2)]).tolist() == [0, 1, 2]
    assert [intervals.describe(place) for place in range(3)] == [
        "[0,1]",
        "the rest of the stay",
        "another interval",
    ]
    assert [hole.kind for hole in parse("(x >= ?) U[?] (x < ?)").holes] == ["number", "interval", "number"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"edges": {}},
        {"edges": {"x": ()}},
        {"edges": {"x": (2, 1)}},
        {"operators": ("G", "X")},
        {"operators": ("and",)},
        {"relations": ()},
        {"limits": 0},
    ],
)
def test_no_grammar(arguments):
    with pytest.raises(StudyError):
        RuleGrammar(**{"edges": {"x": (1,)}, "intervals": ((0, 1),), **arguments})
