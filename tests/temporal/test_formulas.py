"""Formulas as values, as text and back; what is wrong with a text is said with its place."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.records.expression import LONGEST_TEXT
from concilium.temporal.formula import DEEPEST
from temporal_formulas import NAMES, formulas, windows

stl = cc.stl
parse = stl.parse


@given(formulas(window=windows(hours=True)))
def test_what_is_written_reads_back_as_the_same_formula(formula):
    text = str(formula)
    again = parse(text)
    assert again == formula
    assert hash(again) == hash(formula)
    assert str(again) == text


@given(st.text(alphabet="GFU[]()?<=>!&|-, 016hmxy`#'\"\n", max_size=40))
def test_any_text_is_a_formula_or_an_error_with_its_place(text):
    error = None
    try:
        formula = parse(text)
    except cc.errors.FormulaError as caught:
        error = caught
    if error is None:
        assert parse(str(formula)) == formula
    else:
        assert error.column >= 1
        assert 1 <= error.line <= text.count("\n") + 1


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("G[0,6](HR >= 90 and Temp > 38) -> F[0,12] Sepsis = 1", None),
        ("□_[0,300](BG ≥ 70 ∧ BG ≤ 180)", "G[0,300](BG >= 70 and BG <= 180)"),
        ("((MET ≥ 0.007) U_[0,1] (DeathProb = 0.032))", "(MET >= 0.007) U[0,1] (DeathProb = 0.032)"),
        ("◇[1,2](((PaCO2 ≥ 0.171 ∨ Cl ≤ 8.029) ⟹ K ≥ 0.014) ∧ P ≥ 0.85)",
         "F[1,2]((PaCO2 >= 0.171 or Cl <= 8.029 -> K >= 0.014) and P >= 0.85)"),
        ("¬p 𝒰[1,2] q", "(not p) U[1,2] q"),
        ("!(x == 1) && y <> 2 || z", "(not x = 1 and y != 2) or z"),
        ("always[0,3] x > 1 implies EVENTUALLY y", "G[0,3] x > 1 -> F y"),
        ("p until q", "p U q"),
        ("a -> b -> c", "a -> b -> c"),
        ("(a -> b) -> c", None),
        ("(a and b) and c", None),
        ("a U b and c U d", "a U b and c U d"),
        ("not a and b", "not a and b"),
        ("90 < HR", "HR > 90"),
        ("G[0h,90min] p", "G[0,90min] p"),
        ("F[1d, 1.5d] p", "F[24h,36h] p"),
        ("F[2.5min,1h] p", "F[2.5min,1h] p"),
        ("`heart rate` > 1e-7 and `G` and gf and `not`", "`heart rate` > 1e-07 and `G` and gf and `not`"),
        ("x > -0.0 # a remark\n and true", "x > 0 and true"),
        ("⊤ or ⊥", "true or false"),
        ("G F p", "G F p"),
        ("G[?,?](? > ? and ? < ?)", None),
        ("F[?] ? and (? ? ?) U[0,?] HR ? 3", "F[?] ? and (? ? ?) U[0,?] (HR ? 3)"),
    ],
)  # fmt: skip
def test_words_and_symbols(text, printed):
    assert str(parse(text)) == (printed or text)
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "problem", "column"),
    [
        ("", "expected a formula, such as HR >= 90", 1),
        ("G[6,0] x > 1", "the interval [6,0] is reversed; the smaller bound comes first", 3),
        ("G[2h,30min] x > 1", "is reversed", 3),
        ("x > 1 and G[-1,3] x>1", "the bound -1 lies in the past", 13),
        ("G[0,1.5] x", "1.5 is no whole number of steps; a time has a unit, such as 1.5h", 5),
        ("G[2,6h] x", "mixes steps and time", 3),
        ("G[0,99999999] x", "longer than any stay", 5),
        ("(a and b", "expected a closing parenthesis, but the text ends here", 9),
        ("a and b)", "this closing parenthesis has no opening one", 8),
        ("x > > 3", "expected a number or ?, but found '>'", 5),
        ("x > y", "this compares two variables", 5),
        ("3 > 4", "this compares two numbers", 1),
        ("20 < age < 41", "comparisons are joined by and", 10),
        ("x > 1e50", "this number is too large", 5),
        ("a U b U c", "but found 'U'", 7),
        ("G[0 6] x", "expected a comma, but found '6'", 5),
        ("G[0,6 x", "expected a closing bracket, but found 'x'", 7),
        ("`abc > 3", "this quote is never closed", 1),
        ("x + 3 > 2", "but found '+'", 3),
        ("x > 1 and\n  y >", "expected a number or ?, but the text ends here", 6),
    ],
)
def test_errors_say_what_and_where(text, problem, column):
    with pytest.raises(cc.errors.FormulaError) as caught:
        parse(text)
    assert problem in caught.value.problem
    assert caught.value.column == column
    assert isinstance(caught.value, cc.errors.ConciliumError)


@pytest.mark.parametrize("levels", [1_000, 50_000, 100_000])
@pytest.mark.parametrize(
    ("before", "after"),
    [("not ", ""), ("(", ")"), ("G[0,1]", ""), ("x -> ", ""), ("x and (", ")"), ("(", "")],
)
def test_a_formula_too_deep_is_an_error_with_its_place(before, after, levels):
    with pytest.raises(cc.errors.FormulaError) as caught:
        parse(before * levels + "x" + after * levels)
    if len(before + after) * levels >= LONGEST_TEXT:
        assert "at most 65,536 are read" in str(caught.value)
    elif after or before != "(":
        assert f"more than {DEEPEST} deep" in str(caught.value)
        assert caught.value.column > 1
    else:
        assert "the text ends here" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_deepest_formula_works_and_no_deeper_one_can_be_made():
    formula = stl.Limit("x", ">", 1)
    while formula.depth < DEEPEST:
        formula = stl.Implication(formula, stl.Constant(True))
        if formula.depth < DEEPEST:
            formula = stl.Negation(formula)
    assert parse(str(formula)) == formula
    assert formula.canonical().depth <= DEEPEST
    series = cc.Series({"x": [[2.0]]})
    assert formula.satisfied(series).tolist()[0] in (True, False)
    with pytest.raises(cc.errors.FormulaError, match=f"at most {DEEPEST} deep"):
        stl.Negation(formula)


def test_no_formula_is_larger_than_can_be_written():
    formula = stl.Limit("x", ">", 1)
    for _ in range(15):
        formula = stl.Implication(formula, formula)
    with pytest.raises(cc.errors.FormulaError, match="at most 100,000 parts"):
        stl.Implication(formula, formula)


def test_a_long_flat_formula_is_read():
    formula = parse(" and ".join(f"x > {number}" for number in range(4_000)))
    assert formula.size == 4_001
    assert formula.depth == 2
    assert formula.satisfied(cc.Series({"x": [[30_000.0]]})).tolist() == [True]
    with pytest.raises(cc.errors.FormulaError, match="characters long"):
        parse(" " * (LONGEST_TEXT + 1))


def test_formulas_are_values():
    formula = parse("G[0,6](HR >= 90 and Temp > 38) -> (p U[1,2] HR < 3)")
    assert (formula.size, formula.depth, formula.variables) == (8, 4, {"HR", "Temp", "p"})
    assert (
        len({formula, parse(str(formula)), copy.deepcopy(formula), pickle.loads(pickle.dumps(formula))}) == 1
    )
    assert formula != "G"
    assert parse("p and q") != parse("p or q")
    assert parse("G[0,1] p") != parse("F[0,1] p")
    assert repr(parse("x > 1")) == "stl.parse('x > 1')"
    with pytest.raises(AttributeError, match="does not change"):
        formula.premise = formula
    with pytest.raises(AttributeError, match="stays"):
        del formula.premise


@settings(max_examples=30)
@given(formulas())
def test_size_depth_and_variables(formula):
    parts = list(formula.walk())
    assert formula.size == len(parts)
    assert formula.depth == 1 + max((child.depth for child in formula.children), default=0)
    assert formula.variables <= set(NAMES)


@pytest.mark.parametrize(
    "make",
    [
        lambda: stl.Limit("", ">", 1),
        lambda: stl.Limit("x", "~", 1),
        lambda: stl.Limit("x", ">", float("nan")),
        lambda: stl.Limit("x", ">", float("inf")),
        lambda: stl.Proposition(""),
        lambda: stl.Conjunction([stl.Constant(True)]),
        lambda: stl.Negation("x > 1"),
        lambda: stl.Always((3, 1), stl.Constant(True)),
        lambda: stl.Always(3, stl.Constant(True)),
        lambda: stl.Until(stl.Constant(True), (0.5, 1), stl.Constant(True)),
        lambda: stl.Always((True, 3), stl.Constant(True)),
        lambda: parse(3),
    ],
)
def test_parts_that_make_no_formula_are_refused(make):
    with pytest.raises(cc.errors.FormulaError):
        make()
