"""Templates: holes in order, filling them, and matching against all fillings tried one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.temporal.windows import ANY_WINDOW
from temporal_formulas import formulas, windows

stl = cc.stl
parse = stl.parse
HOLE = stl.HOLE


def matches(template, rule):
    return parse(template).matches(parse(rule))


@pytest.mark.parametrize(
    ("template", "rule", "expected"),
    [
        ("G[?,?](? > ? and ? < ?)", "G[0,1](BG > 200 and basal < 0.02)", True),
        ("G[?,?](? > ? and ? < ?)", "G[0,2](basal < 0.06 and BG > 180)", True),
        ("G[?,?](? > ? and ? < ?)", "G[0,2](BG > 180 and basal > 0.06)", False),
        ("?", "x > 1", True),
        ("? and x > 1", "x > 1 and y < 2", True),
        ("? and x > 1", "x > 1 and y < 2 and z > 3", True),
        ("? and ?", "x > 1 and y < 2 and z > 3", True),
        ("? and ? and ? and ?", "x > 1 and y < 2 and z > 3", False),
        ("? and x > 1", "x > 1", False),
        ("? and ?", "x > 1", False),
        ("x > ? and x > ?", "x > 1 and x > 2", True),
        ("x > ? and x > ?", "x > 1", False),
        ("x > ? and ? > 1", "x > 1 and y > 1", True),
        ("x > ? and ? > 1 and ?", "x > 1 and x > 2 and y < 0", True),
        ("x > ? and ? > 1", "x > 1 and x > 2 and y < 0", False),
        ("x > ? and ? > 1", "x > 1 and y > 2", False),
        ("(? or x > 1) and y", "y and (x > 1 or z)", True),
        ("not (? and x > 1)", "x <= 1 or y", True),
        ("not ?", "x > 1", True),
        ("not G[0,?] ?", "F[0,5] p", True),
        ("x ? 3", "not x > 3", True),
        ("? ? ?", "p", False),
        ("F[?] ?", "F p", True),
        ("F[?] ?", "F[0,3h] p", True),
        ("F[?,?] ?", "F p", False),
        ("F ?", "F[0,1] p", False),
        ("F[0,?] ?", "F[0,6h] p", True),
        ("G[0,2] ?", "G[0,5] x > 1", False),
        ("? U[?,3] x > 1", "(a and b) U[1,3] (x > 1)", True),
        ("? U[?,3] x > 1", "a U[1,4] (x > 1)", False),
        ("? -> F[0,?] Sepsis = 1", "G[0,6] HR >= 90 -> F[0,12] Sepsis = 1", True),
        ("not (? U ?)", "not (a U b)", True),
    ],
)
def test_matching(template, rule, expected):
    assert matches(template, rule) is expected


def weight(formula):
    """What survives being sorted, flattened and turned around, but neither dropping nor merging."""
    counted = (
        stl.Limit | stl.Proposition | stl.Constant | stl.Always | stl.Eventually | stl.Until | stl.Implication
    )
    return sum(isinstance(part, counted) for part in formula.walk())


def fillings(rule):
    """All that could fill a hole of each kind so that the rule comes out."""
    parts = list(dict.fromkeys(rule.walk()))
    choices = {
        "formula": list(parts),
        "variable": [],
        "relation": ["<", "<=", ">", ">=", "=", "!="],
        "number": [],
    }
    choices |= {"interval": [], "bound": []}
    for part in parts:
        match part:
            case stl.Limit(variable, _, number):
                choices["variable"].append(variable)
                choices["number"].append(number)
            case stl.Conjunction(several) | stl.Disjunction(several):
                for count in range(2, len(several)):
                    choices["formula"] += [
                        type(part)(group) for group in itertools.combinations(several, count)
                    ]
            case stl.Always(window) | stl.Eventually(window) | stl.Until(window=window):
                choices["interval"].append(window)
                choices["bound"] += [] if window is None else [window.low, window.high]
    return {kind: list(dict.fromkeys(values)) for kind, values in choices.items()}


def tried(template, rule):
    """Whether any filling gives the rule, without anything dropped or merged; None where there are too many."""
    template, rule = template.canonical(), rule.canonical()
    choices = fillings(rule)
    kinds = [hole.kind for hole in template.holes]
    count = 1
    for kind in kinds:
        count *= len(choices[kind])
    if count > 5_000:
        return None
    for values in itertools.product(*(choices[kind] for kind in kinds)):
        try:
            filled = template.fill(*values)
        except cc.errors.FormulaError:
            continue  # a reversed interval
        if filled.canonical() == rule and weight(filled) == weight(rule):
            return True
    return False


@st.composite
def punched(draw, formula):
    """The formula with holes in some places."""
    if draw(st.integers(0, 3)) == 0:
        return stl.OpenFormula()
    children = [draw(punched(child)) for child in formula.children]
    rarely = st.integers(0, 3).map(lambda number: number == 0)

    def window_of(window):
        if window is None or draw(rarely):
            return ANY_WINDOW if draw(rarely) else window
        return tuple(HOLE if draw(rarely) else bound for bound in window[:2])

    match formula:
        case stl.Limit(variable, relation, number):
            return stl.Limit(*(HOLE if draw(rarely) else value for value in (variable, relation, number)))
        case stl.Conjunction() | stl.Disjunction():
            return type(formula)(draw(st.permutations(children)))
        case stl.Always(window) | stl.Eventually(window):
            return type(formula)(window_of(window), children[0])
        case stl.Until(window=window):
            return stl.Until(children[0], window_of(window), children[1])
        case stl.Negation() | stl.Implication():
            return type(formula)(*children)
    return formula


SMALL = formulas(["x", "y"], numbers=st.sampled_from([1.0, 2.0]), window=windows(1), most=5)


@settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(SMALL, SMALL, st.data())
def test_a_template_matches_exactly_what_its_fillings_give(formula, other, data):
    source = data.draw(st.sampled_from([formula, formula.canonical(), other]))
    template = data.draw(punched(source))
    expected = tried(template, formula)
    assume(expected is not None)
    assert template.matches(formula) is expected


@given(formulas(), st.data())
def test_a_formula_matches_itself_and_filling_its_holes_gives_it_back(formula, data):
    assert formula.matches(formula)
    template = data.draw(punched(formula))
    assert len(template.holes) == template.open_places
    text = str(template)
    assert all(text[hole.place] == "?" for hole in template.holes)
    assert parse(text) == template
    assert template.fill(*["?"] * template.open_places) == template


def test_holes_in_the_order_written():
    template = parse("F[?,3](? > ? or HR ? 1) -> (? U[?] x < ?)")
    kinds = ["bound", "variable", "number", "relation", "formula", "interval", "number"]
    assert [hole.kind for hole in template.holes] == kinds
    filled = template.fill(1, "HR", 90, "<=", "p and ?", (0, "2h"), 4.5)
    assert str(filled) == "F[1,3](HR > 90 or HR <= 1) -> (p and ?) U[0,2h] (x < 4.5)"
    assert str(filled.fill_hole(0, parse("q"))).count("p and q") == 1
    assert str(template.fill_hole(5, None)) == "F[?,3](? > ? or HR ? 1) -> ? U (x < ?)"


@pytest.mark.parametrize(
    ("template", "values", "column"),
    [
        ("G[?,3] x > 1", [5], 3),
        ("x > ?", ["a"], 5),
        ("x > ?", [None], 5),
        ("x ? 1", ["~"], 3),
        ("? > 1", [3], 1),
        ("x > 1 and ?", [3], 11),
        ("F[?] p", [3], 3),
        ("F[?,?] p", [0, "half"], 5),
        ("F[?,?] p", [0], 1),
    ],
)
def test_what_does_not_fit_a_hole_is_refused_with_its_place(template, values, column):
    with pytest.raises(cc.errors.FormulaError) as caught:
        parse(template).fill(*values)
    assert caught.value.column == column


def test_holes_that_are_not_there():
    with pytest.raises(cc.errors.FormulaError, match="there is no hole 1"):
        parse("?").fill_hole(1, "x > 1")
    with pytest.raises(cc.errors.FormulaError, match="a rule to be matched has no holes"):
        parse("?").matches(parse("? and x"))


def test_many_parts_are_matched_without_trying_all_orders():
    rule = parse(" and ".join(f"x{i} > {i}" for i in range(60)))
    template = parse(" and ".join(["? > ?"] * 59 + ["x3 > ?"]))
    assert template.matches(rule)
    assert not parse(" and ".join(["? > ?"] * 58 + ["x3 > ?"] * 2)).matches(rule)


def test_a_rule_may_be_its_text():
    assert parse("G[?] HR >= ?").matches("G[0,6] HR >= 90")
    assert not parse("G[?] HR >= ?").matches("F[0,6] HR >= 90")
    with pytest.raises(cc.errors.FormulaError, match="no holes"):
        parse("G[?] HR >= ?").matches("G[0,6] HR >= ?")
