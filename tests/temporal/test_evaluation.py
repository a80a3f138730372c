"""What formulas mean on series: against the definition written as recursion, against rtamt, and by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from temporal_formulas import all_series, formulas, reference_grid, windows

VARIABLES = ["HR", "Temp"]
FORMULAS = formulas(VARIABLES, window=windows(hours=True))


def evaluate(formula, series):
    """All that can be asked, for all times; None where the intervals together are longer than the grid."""
    try:
        low, high = cc.stl.bounds_all([formula], series, "all", absent=True)
    except cc.errors.FormulaError:
        with pytest.raises(cc.errors.FormulaError, match=r"longer than any stay|no whole number of steps"):
            cc.stl.bounds_all([formula], series, "all", absent=True)
        return None
    truth = cc.stl.satisfied_all([formula], series, "all", absent=True)
    return low[0], high[0], truth[0]


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(FORMULAS, all_series(), st.sampled_from(["30min", "15min"]))
def test_values_are_those_of_the_definition(formula, series, step):
    series = cc.Series(dict(series.variables), step=step, lengths=series.lengths)
    values = evaluate(formula, series)
    if values is None:
        return
    low, high, truth = values
    expected_low, expected_high = reference_grid(formula, series)
    np.testing.assert_array_equal(low, expected_low.astype(np.float32))
    np.testing.assert_array_equal(high, expected_high.astype(np.float32))
    least, greatest = reference_grid(formula, series, robust=False)
    np.testing.assert_array_equal(np.ma.getmaskarray(truth), least != greatest)
    np.testing.assert_array_equal(truth.filled(False), least == 1)


@settings(max_examples=60)
@given(st.lists(FORMULAS, min_size=1, max_size=6), all_series(), st.data())
def test_a_batch_gives_what_each_formula_gives_alone(batch, series, data):
    batch = [formula for formula in batch if evaluate(formula, series) is not None]
    at = data.draw(st.sampled_from(["all", 0, len(series["HR"]) - 1]))
    robust = cc.stl.robustness_all(batch, series, at, absent=True)
    truths = cc.stl.satisfied_all(batch, series, at, absent=True)
    for formula, values, truth in zip(batch, robust, truths, strict=True):
        low, high, everywhere = evaluate(formula, series)
        alone = np.where(low == high, low, np.nan)
        np.testing.assert_array_equal(values, alone if at == "all" else alone[at])
        assert truth.tolist() == (everywhere if at == "all" else everywhere[at]).tolist()


@settings(max_examples=60)
@given(FORMULAS, all_series())
def test_truth_agrees_with_robustness(formula, series):
    values = evaluate(formula, series)
    if values is None:
        return
    low, high, truth = values
    assert truth.filled(False)[low > 0].all()
    assert not truth.filled(True)[high < 0].any()


@settings(max_examples=40)
@given(FORMULAS, all_series(), st.data())
def test_a_patient_s_value_depends_on_no_other_patient(formula, series, data):
    values = evaluate(formula, series)
    if values is None:
        return
    row = data.draw(st.integers(0, len(series) - 1))
    alone = evaluate(formula, series.take(np.array([row])))
    for together, single in zip(values, alone, strict=True):
        assert together[:, row].tolist() == single[:, 0].tolist() or np.array_equal(
            together[:, row], single[:, 0]
        )


@settings(max_examples=60)
@given(FORMULAS, all_series(), st.data())
def test_what_is_known_stays_true_when_more_is_measured(formula, series, data):
    """Filling gaps and prolonging stays only ever narrows the bounds."""
    values = evaluate(formula, series)
    if values is None:
        return
    filler = st.sampled_from([0.0, 1.0, 2.0, -5.0])
    whole = {
        name: np.where(np.isnan(grid), np.float32(data.draw(filler)), grid)
        for name, grid in series.variables.items()
    }
    # the rest of the stay is another one when the stay is longer
    to_the_end = any(getattr(part, "window", ()) is None for part in formula.walk())
    lengths = series.lengths if to_the_end else np.full(len(series), len(series["HR"]))
    later = cc.Series(whole, lengths=lengths)
    low, high, _ = values
    new_low, new_high, _ = evaluate(formula, later)
    assert (new_low >= low).all()
    assert (new_high <= high).all()


def to_rtamt(formula):
    stl = cc.stl
    match formula:
        case stl.Limit(name, relation, number):
            sign = {"=": "==", "!=": "!=="}.get(relation, relation)
            return f"({name} {sign} ({np.float32(number):.9f}))"
        case stl.Negation(inner):
            return f"(not {to_rtamt(inner)})"
        case stl.Conjunction(parts) | stl.Disjunction(parts):
            word = " and " if isinstance(formula, stl.Conjunction) else " or "
            text = to_rtamt(parts[0])
            for part in parts[1:]:
                text = f"({text}{word}{to_rtamt(part)})"
            return text
        case stl.Implication(premise, result):
            return f"({to_rtamt(premise)} -> {to_rtamt(result)})"
        case stl.Always(window, inner) | stl.Eventually(window, inner):
            word = "always" if isinstance(formula, stl.Always) else "eventually"
            return f"({word}{to_rtamt_window(window)} {to_rtamt(inner)})"
        case stl.Until(left, window, right):
            return f"({to_rtamt(left)} until{to_rtamt_window(window)} {to_rtamt(right)})"
    raise AssertionError(formula)


def to_rtamt_window(window):
    return "" if window is None else f"[{window.low}:{window.high}]"


@pytest.fixture(scope="module")
def monitor():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import rtamt

    def watch(formula, series, patient):
        specification = rtamt.StlDiscreteTimeSpecification()
        for name in [*VARIABLES, "out"]:
            specification.declare_var(name, "float")
        specification.spec = f"out = {to_rtamt(formula)}"
        specification.parse()
        trace = {"time": list(range(len(series["HR"])))}
        trace |= {name: series[name][:, patient].astype(float).tolist() for name in VARIABLES}
        return np.array([value for _, value in specification.evaluate(trace)])

    return watch


@settings(max_examples=60, deadline=None)
@given(
    formulas(
        VARIABLES,
        numbers=st.sampled_from([0.0, 1.0, 2.0, 0.5, -1.0]),
        window=windows(),
        propositions=False,
        constants=False,
        most=8,
    ),
    all_series(missing=False, whole=True),
)
def test_rtamt_says_the_same_where_both_define_the_value(monitor, formula, series):
    """rtamt cuts an interval at the end of the trace, which is one of the continuations that our bounds cover."""
    values = evaluate(formula, series)
    if values is None:
        return
    low, high, _ = values
    for patient in range(len(series)):
        theirs = monitor(formula, series, patient)
        assert (low[:, patient] <= theirs).all()
        assert (theirs <= high[:, patient]).all()


def series_of(*values, **more):
    return cc.Series({"x": np.array(values, dtype=np.float32)[:, None]}, **more)


def one(text, series, at=0):
    """Truth (None: unknown), and robustness."""
    formula = cc.stl.parse(text)
    return formula.satisfied(series, at).tolist()[0], formula.robustness(series, at).tolist()[0]


def test_the_contract():
    rate, heat = np.array([[95, 95], [91, 80]]), np.array([[39, 39], [38.5, 39]])
    series = cc.Series({"HR": rate, "Temp": heat}, step="1h")
    formula = cc.stl.parse("G[0,1](HR >= 90 and Temp > 38)")
    assert formula.robustness(series).tolist() == [0.5, -10.0]
    assert formula.satisfied(series).tolist() == [True, False]
    assert formula.robustness(series, "all").shape == (2, 2)


def test_intervals_include_their_last_step():
    series = series_of(5, 5, 1, 5)
    assert one("G[0,1] x > 3", series) == (True, 2)
    assert one("G[0,2] x > 3", series) == (False, -2)
    assert one("F[1,2] x < 3", series) == (True, 2)
    assert one("F[0,1] x < 3", series) == (False, -2)
    assert one("(x > 3) U[0,2] (x < 3)", series) == (True, 2)
    assert one("(x > 3) U[0,1] (x < 3)", series) == (False, -2)


def test_until_asks_for_the_left_side_from_now_on_and_not_at_the_last_step():
    series = series_of(1, 5, 5, 9)
    assert one("(x > 3) U[1,3] (x > 8)", series)[0] is False  # not at the first step
    assert one("(x < 8) U[1,3] (x > 8)", series)[0] is True


def test_after_the_end_of_the_stay_nothing_is_known_but_what_was_seen_counts():
    series = series_of(5, 1, math.nan, math.nan, lengths=[2])
    assert one("F[0,3] x < 3", series)[0] is True
    assert math.isnan(one("F[0,3] x < 3", series)[1])
    assert one("G[0,3] x > 3", series)[0] is False
    assert one("G[0,3] x > 0", series)[0] is None
    assert one("F[0,3] x > 9", series)[0] is None
    assert one("G[0,1] x > 0", series) == (True, 1)
    assert one("G x > 0", series) == (True, 1)  # the rest of the stay is all there
    assert one("F x > 9", series) == (False, -4)
    assert one("x > 0", series, at=3)[0] is None
    low, high = cc.stl.parse("F[0,3] x < 3").bounds(series)
    assert (low.tolist(), high.tolist()) == ([2], [math.inf])


def test_missing_values_are_unknown_unless_they_do_not_matter():
    series = cc.Series({"x": [[math.nan], [2]], "y": [[1], [math.nan]]})
    assert one("x > 1", series)[0] is None
    assert one("x > 1 and y > 3", series) == (False, pytest.approx(math.nan, nan_ok=True))
    assert one("x > 1 or y > 0", series)[0] is True
    assert one("x > 1 -> y > 0", series)[0] is True
    assert one("not x > 1", series)[0] is None
    assert one("F[0,1] x > 1", series)[0] is True
    assert one("x = 1 or x != 1", series)[0] is None


def test_equality_is_met_or_missed():
    series = series_of(0.1, 0.2)
    assert one("x = 0.1", series) == (True, 0)
    assert one("x != 0.1", series) == (False, 0)
    assert one("F[1,1] x = 0.1", series) == (False, pytest.approx(-0.1))


def test_strict_and_other_relations_differ_at_the_limit_only():
    series = series_of(3)
    assert one("x >= 3", series) == (True, 0)
    assert one("x > 3", series) == (False, 0)


def test_a_proposition_holds_from_one_half_on():
    series = cc.Series({"Sepsis": [[0, 1, 0.5, math.nan]]})
    assert cc.stl.parse("Sepsis").satisfied(series).tolist() == [False, True, True, None]
    assert cc.stl.parse("Sepsis").robustness(series).tolist()[:3] == [-0.5, 0.5, 0]


def test_hours_become_steps_of_the_series():
    values = np.arange(10, dtype=np.float32)[:, None]
    for step, last in (("1h", 3), ("30min", 6), ("90min", 2)):
        series = cc.Series({"x": values}, step=step)
        assert one("F[0h,3h] x > 0", series) == (True, last)
    with pytest.raises(cc.errors.FormulaError, match="3h is no whole number of steps of 2h") as caught:
        one("x > 0 and F[0h,3h] x > 0", cc.Series({"x": values}, step="2h"))
    assert caught.value.column == 11


@pytest.mark.parametrize(
    ("text", "problem", "column"),
    [
        ("x > 1 and Tmp > 3", "there is no variable 'Tmp'; did you mean 'Temp'?", 11),
        (
            "x > 1 -> G[0,9] Temp > 3",
            "the interval [0,9] is longer than any stay: there are 4 points in time",
            10,
        ),
        (
            "x > 1 -> G[1,2] G[0,2] x > 3",
            "the interval [0,2] (with those around it, to step 4) is longer",
            17,
        ),
        ("G[0,2] not F[0,2] x > 3", "is longer than any stay", 12),
        ("x > 1 and empty", "no patient has a value of 'empty'", 11),
        ("x > 1 and ?", "a template is filled before it is evaluated", 11),
        ("x > 1 U[3,4] x > 2", "the interval [3,4] is longer than any stay", 9),
    ],
)
def test_a_formula_that_does_not_fit_the_series_says_where(text, problem, column):
    grid = np.zeros((4, 2))
    series = cc.Series({"x": grid, "Temp": grid, "empty": grid * np.nan})
    with pytest.raises(cc.errors.FormulaError) as caught:
        cc.stl.parse(text).robustness(series)
    assert problem in caught.value.problem
    assert caught.value.column == column
    with pytest.raises(cc.errors.FormulaError):
        cc.stl.parse(text).satisfied(series)


def test_a_variable_without_values_can_be_asked_about_as_unknown():
    series = cc.Series({"x": np.zeros((3, 2)), "empty": np.full((3, 2), np.nan)})
    truth = cc.stl.satisfied_all(
        [cc.stl.parse("empty > 1"), cc.stl.parse("empty > 1 and x > 1")], series, absent=True
    )
    assert truth.tolist() == [[None, None], [False, False]]


def test_no_patients_and_no_formulas():
    series = series_of(1, 2).take(np.array([], dtype=int))
    assert cc.stl.parse("G x > 1").robustness(series).shape == (0,)
    assert cc.stl.robustness_all([], series_of(1, 2)).shape == (0, 1)
    with pytest.raises(cc.errors.FormulaError, match="there is no point in time 2"):
        cc.stl.parse("x > 1").robustness(series_of(1, 2), at=2)


def test_many_patients_in_blocks():
    """More patients than a block has, of different stays and with gaps in some blocks only."""
    dice = np.random.default_rng(3)
    grid = dice.normal(0, 1, (40, 1999)).astype(np.float32)
    grid[dice.random(grid.shape) < 0.001] = np.nan
    series = cc.Series({"x": grid}, lengths=dice.integers(20, 41, 1999))
    formula = cc.stl.parse("G[0,12] F[0,7] (x > 0.5) and (x > -2) U[2,9] (x > 1) -> G x < 3")
    low, high = formula.bounds(series, "all")
    for patient in (0, 777, 1998):
        single = series.take(np.array([patient]))
        one_low, one_high = formula.bounds(single, "all")
        np.testing.assert_array_equal(low[:, patient], one_low[:, 0])
        np.testing.assert_array_equal(high[:, patient], one_high[:, 0])
