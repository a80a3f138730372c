"""The canonical form: equal by the rules is equal, and nothing changes its meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.temporal.templates import OPPOSITE
from temporal_formulas import all_series, formulas, windows

stl = cc.stl
VARIABLES = ["HR", "Temp"]
FORMULAS = formulas(VARIABLES, window=windows(hours=True))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("not not x > 1", "x > 1"),
        ("not x > 1", "x <= 1"),
        ("not x = 1", "x != 1"),
        ("not p", "not p"),
        ("y > 1 and x > 2 and y > 1", "x > 2 and y > 1"),
        ("BG <= 180 and BG >= 70", "BG >= 70 and BG <= 180"),
        ("x > 1 or (z or y)", "x > 1 or y or z"),
        ("x > 1 and x > 1", "x > 1"),
        ("not (x > 1 and y < 2)", "x <= 1 or y >= 2"),
        ("not G[0,3] x > 1", "F[0,3] x <= 1"),
        ("not F (p and q)", "G(not p or not q)"),
        ("G[0,2] G[1,3] x > 1", "G[1,5] x > 1"),
        ("G[0,2] not F[1,3] x > 1", "G[1,5] x <= 1"),
        ("F[0,1h] F[30min,2h] p", "F[30min,3h] p"),
        ("G G p", "G p"),
        ("G G[0,1] p", "G G[0,1] p"),
        ("G[0,2] G[0,1h] p", "G[0,2] G[0,1h] p"),
        ("G F p", "G F p"),
        ("not (p U q)", "not (p U q)"),
        ("not (p -> q)", "not (p -> q)"),
        ("not not p -> not not q", "p -> q"),
        ("true and x > 1", "x > 1"),
        ("false and x > 1", "false"),
        ("not true or p or true", "true"),
        ("G false", "false"),
        ("G[0,3] true", "G[0,3] true"),
        ("? and not ? and x > 1", "x > 1 and ? and ?"),
        ("not (x ? 3)", "x ? 3"),
        ("not (? > 3)", "? <= 3"),
    ],
)
def test_rules(text, canonical):
    assert str(stl.parse(text).canonical()) == canonical


@given(FORMULAS)
def test_the_canonical_form_of_a_canonical_form_is_itself(formula):
    once = formula.canonical()
    assert once.canonical() == once
    assert once.depth <= formula.depth


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(FORMULAS, all_series())
def test_the_canonical_form_means_the_same(formula, series):
    try:
        bounds = stl.bounds_all([formula], series, "all", absent=True)
    except cc.errors.FormulaError:
        with pytest.raises(cc.errors.FormulaError, match=r"longer than any stay|whole number of steps"):
            stl.bounds_all([formula], series, "all", absent=True)
        return
    same = stl.bounds_all([formula.canonical()], series, "all", absent=True)
    np.testing.assert_array_equal(bounds, same)
    truth, other = (
        stl.satisfied_all([one], series, "all", absent=True) for one in (formula, formula.canonical())
    )
    assert truth.tolist() == other.tolist()


def rewritten(draw, formula):
    """The formula, changed here and there by rules that keep its meaning."""
    children = [rewritten(draw, child) for child in formula.children]
    match formula:
        case stl.Conjunction() | stl.Disjunction():
            kind = type(formula)
            parts = draw(st.permutations(children))
            if draw(st.booleans()):
                parts = [*parts, draw(st.sampled_from(parts))]
            if draw(st.booleans()) and len(parts) > 2:
                parts = [kind(parts[:2]), *parts[2:]]
            if draw(st.booleans()):
                parts = [*parts, stl.Constant(kind is stl.Conjunction)]
            if draw(st.booleans()):
                dual = stl.Disjunction if kind is stl.Conjunction else stl.Conjunction
                formula = stl.Negation(dual([stl.Negation(part) for part in parts]))
            else:
                formula = kind(parts)
        case stl.Always(window) | stl.Eventually(window):
            kind = type(formula)
            formula = kind(window, children[0])
            if window is None and draw(st.booleans()):
                formula = kind(None, formula)
            elif window is not None and draw(st.booleans()):
                zero = (
                    (0, 0)
                    if draw(st.booleans()) or isinstance(window.high, stl.Duration)
                    else (0, window.low)
                )
                rest = (window.low - zero[1], window.high - zero[1]) if zero[1] else window
                outer = (zero[1], zero[1]) if zero[1] else zero
                formula = kind(outer, kind(rest, children[0]))
            if draw(st.booleans()):
                dual = stl.Eventually if kind is stl.Always else stl.Always
                formula = stl.Negation(dual(window, stl.Negation(children[0])))
        case stl.Limit(variable, relation, number) if draw(st.booleans()):
            formula = stl.Negation(stl.Limit(variable, OPPOSITE[relation], number))
        case stl.Negation():
            formula = stl.Negation(children[0])
        case stl.Implication():
            formula = stl.Implication(*children)
        case stl.Until(window=window):
            formula = stl.Until(children[0], window, children[1])
    if draw(st.integers(0, 4)) == 0:
        formula = stl.Negation(stl.Negation(formula))
    return formula


@given(st.data())
def test_formulas_equal_by_the_rules_have_one_canonical_form(data):
    formula = data.draw(FORMULAS)
    other = rewritten(data.draw, formula)
    assert other.canonical() == formula.canonical()
