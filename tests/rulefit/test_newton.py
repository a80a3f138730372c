"""The solver reaches the pooled optimum, whatever the columns: the optimum is certified by duality, apart from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pooled_lasso import Pooled, answer, end, find_optimum, is_optimal, objective, unlike

from concilium.errors import HouseError
from concilium.protocol.attributes import Attribute
from concilium.protocol.sums import write_reals
from concilium.rulefit import newton
from concilium.rulefit.fitting import Sums, read_sums
from concilium.rulefit.newton import Columns
from concilium.rulefit.terms import Line, RuleTerms


def rules(draws, patients, columns):
    return (draws.random((patients, columns)) < draws.random(columns)).astype(float)


def make(kind, draws, patients, columns):
    """Columns of a kind that solvers stumble over."""
    table = rules(draws, patients, columns)
    match kind:
        case "twins":
            table[:, columns // 2 :] = table[:, : columns - columns // 2]
        case "constant":
            table[:, 0], table[:, -1] = 1, 0
        case "scales":
            table = table * 10.0 ** draws.integers(-3, 4, size=columns)
        case "alike":
            table = draws.normal(size=(patients, 1)) + 1e-3 * draws.normal(size=(patients, columns))
        case "nested":
            table = np.maximum.accumulate(table, axis=1)
        case "tails":
            table = np.clip(draws.standard_cauchy(size=(patients, columns)), -1000, 1000)
    return table


KINDS = ["rules", "twins", "constant", "scales", "alike", "nested", "tails"]


@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
    patients=st.integers(8, 90),
    columns=st.integers(1, 50),
    power=st.floats(-4.3, -0.5),
    outcome=st.sampled_from(["drawn", "rare", "separable", "number"]),
    families=st.integers(1, 50),
    first=st.integers(0, 5),
)
@settings(max_examples=120)
def test_reaches_the_certified_optimum_and_never_rises(
    kind, seed, patients, columns, power, outcome, families, first
):
    """Whatever is said of families and of the columns to begin with: that is for speed alone."""
    draws = np.random.default_rng(seed)
    design, penalty, binary = make(kind, draws, patients, columns), 10.0**power, outcome != "number"
    match outcome:
        case "separable":
            y = (design[:, 0] > np.median(design[:, 0])).astype(float)
        case "number":
            y = np.clip(0.3 * design[:, 0] + 0.3 * draws.normal(size=patients), -1, 1)
        case _:
            y = (draws.random(patients) < (0.05 if outcome == "rare" else 0.4)).astype(float)
    y[:2] = [0, 1]
    pooled = Pooled(design, y, binary=binary)
    hints = Columns(columns, draws.integers(families, size=columns), tuple(range(columns))[:first])
    fitted = end(newton.fit(pooled, hints, penalty))
    reached = objective(design, y, fitted.w[0], fitted.w[1:], penalty, binary=binary)
    assert reached <= find_optimum(design, y, penalty, binary=binary) + 1e-7
    assert fitted.objective == pytest.approx(reached, abs=1e-8)
    assert fitted.questions == pooled.asked < newton.MOST_QUESTIONS
    # Where it stands never gets worse: what was accepted is what the next question starts from.
    start = objective(design, y, 0.0, np.zeros(columns), penalty, binary=binary)
    assert reached <= start + 1e-9


@pytest.mark.parametrize("seed", [6, 10, 13, 20, 22, 24])
@pytest.mark.parametrize("columns", [20, 26, 40])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_columns_alike_to_a_thousandth_are_solved_in_few_questions(seed, columns, first):
    """Eight patients and more columns than that, nearly equal: their Hessian is rounding noise in most directions."""
    draws = np.random.default_rng(seed)
    design = make("alike", draws, 8, columns)
    y = np.clip(0.3 * design[:, 0] + 0.3 * draws.normal(size=8), -1, 1)
    y[:2] = [0, 1]
    hints = Columns(columns, np.zeros(columns, dtype=np.intp), tuple(range(first)))
    fitted = end(newton.fit(Pooled(design, y, binary=False), hints, 1e-4))
    reached = objective(design, y, fitted.w[0], fitted.w[1:], 1e-4, binary=False)
    assert reached <= find_optimum(design, y, 1e-4, binary=False) + 1e-7
    assert fitted.questions <= 15


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_is_taken_uphill(kind):
    draws = np.random.default_rng(8)
    design = make(kind, draws, 80, 30)
    y = (design[:, 0] > np.median(design[:, 0])).astype(float)
    y[:2] = [0, 1]
    pooled = Pooled(design, y)
    stands = [np.inf]

    def watch(candidates, working):
        if len(candidates) > 1:
            # The last candidate is a thousandth of the way from where the solver stands.
            first, last = (newton_vector(c, 30) for c in (candidates[0], candidates[-1]))
            w = (last - newton.STEPS[-1] * first) / (1 - newton.STEPS[-1])
            stands.append(objective(design, y, w[0], w[1:], 0.002))
        return pooled(candidates, working)

    end(newton.fit(watch, unlike(30), 0.002))
    assert len(stands) > 3
    assert np.all(np.diff(stands) <= 1e-8)


def newton_vector(coefficients, columns):
    w = np.zeros(columns + 1)
    w[0] = coefficients.intercept
    w[[column + 1 for column in coefficients.columns]] = coefficients.values
    return w


def realistic(patients=600, columns=400, seed=3):
    """Conjunctions of cuts, as boosted trees make them, many of them about few patients."""
    draws = np.random.default_rng(seed)
    base = draws.normal(size=(patients, 6))
    design = np.ones((patients, columns))
    for column in range(columns):
        for _ in range(draws.integers(1, 4)):
            above, at = base[:, draws.integers(6)], round(draws.normal(), 1)
            design[:, column] *= (above > at) if draws.random() < 0.5 else (above <= at)
    held = design.sum(axis=0)
    design = design[:, (held >= 10) & (held <= patients - 10)]
    chance = 1 / (1 + np.exp(1 - 2 * (base[:, 0] > 0.5) * (base[:, 1] < 0.3) - base[:, 2]))
    return design, (draws.random(patients) < chance).astype(float)


@pytest.mark.parametrize("penalty", [0.03, 0.01, 0.003, 0.001, 0.0003])
def test_fifteen_questions_do_on_rules(penalty):
    design, y = realistic()
    fitted = end(newton.fit(Pooled(design, y), unlike(design.shape[1]), penalty))
    assert fitted.converged
    assert fitted.questions <= 15
    assert is_optimal(design, y, fitted.w, penalty, 1e-8)


def test_a_column_about_few_patients_cannot_be_forgotten():
    """A violation of the optimality conditions that looks small is worth much where a column is about few patients."""
    design, y = realistic(columns=900, seed=5)
    design = design[:, design.mean(axis=0) < 0.08]
    for penalty in (0.001, 0.0007):
        fitted = end(newton.fit(Pooled(design, y), unlike(design.shape[1]), penalty))
        slope = fitted.point.gradient[1:]
        inside = fitted.w[1:] != 0
        asleep = np.setdiff1d(np.arange(design.shape[1]), fitted.point.working)
        assert np.all(np.abs(slope[asleep]) <= penalty * (1 + 1e-6))
        assert np.all(np.abs(slope[~inside]) <= penalty + 1e-5)
        assert np.abs(slope + penalty * np.sign(fitted.w[1:]))[inside].max() < 1e-5
        assert is_optimal(design, y, fitted.w, penalty, 1e-8)


def test_more_columns_than_patients():
    draws = np.random.default_rng(2)
    design = rules(draws, 20, 300)
    y = (draws.random(20) < 0.5).astype(float)
    fitted = end(newton.fit(Pooled(design, y), unlike(300), 0.01))
    assert objective(design, y, fitted.w[0], fitted.w[1:], 0.01) <= find_optimum(design, y, 0.01) + 1e-7
    assert np.count_nonzero(fitted.w[1:]) <= 40


def test_without_columns_the_intercept_is_the_log_odds():
    y = np.repeat([0.0, 1.0], [30, 10])
    fitted = end(newton.fit(Pooled(np.zeros((40, 0)), y), unlike(0), 0.1))
    assert fitted.w == pytest.approx([np.log(1 / 3)], abs=1e-5)
    mean = end(newton.fit(Pooled(np.zeros((40, 0)), y - 0.5, binary=False), unlike(0), 0.1))
    assert mean.w == pytest.approx([-0.25], abs=1e-8)


def test_one_class_does_not_run_away():
    fitted = end(newton.fit(Pooled(rules(np.random.default_rng(1), 30, 5), np.ones(30)), unlike(5), 0.01))
    assert 0 < fitted.objective < 1e-6
    assert np.all(np.abs(fitted.w) < 50)


def test_a_warm_start_ends_at_the_same_optimum_sooner():
    design, y = realistic()
    columns = design.shape[1]
    near = end(newton.fit(Pooled(design, y), unlike(columns), 0.012))
    cold = end(newton.fit(Pooled(design, y), unlike(columns), 0.01))
    warm = end(newton.fit(Pooled(design, y), unlike(columns), 0.01, start=near.point))
    assert warm.objective == pytest.approx(cold.objective, abs=1e-8)
    assert warm.questions < cold.questions


def test_a_large_enough_penalty_leaves_no_term():
    design, y = realistic()
    at_mean = np.abs(design.T @ (y.mean() - y)).max() / len(y)
    assert not np.any(end(newton.fit(Pooled(design, y), unlike(design.shape[1]), at_mean * 1.001)).w[1:])
    assert np.any(end(newton.fit(Pooled(design, y), unlike(design.shape[1]), at_mean * 0.98)).w[1:])


def test_no_patients_are_nothing_to_fit():
    with pytest.raises(HouseError, match="no patients to fit"):
        end(
            newton.fit(
                lambda *_: answer(Sums(0.0, np.zeros(1), np.zeros(2), np.zeros((1, 1)))), unlike(1), 0.1
            )
        )


def test_the_working_set_stays_within_bounds_and_keeps_what_is_in_the_model():
    w = np.zeros(11)
    w[[1, 2]] = 1.0
    point = newton.Point(w, 1.0, np.zeros(11), np.eye(4), [0, 1, 2])
    target = w.copy()
    target[2] = 0
    worst = [3, 5, 6, 7, 4]
    assert newton._grow(point, target, worst, 0.1, 100) == [0, 1, 3, 5, 6, 7, 4]
    assert newton._grow(point, target, worst, 0.1, 4) == [0, 3, 5, 6]
    point.gradient[3] = 0.098  # not in the model, but near to it
    assert newton._grow(point, target, worst, 0.1, 100) == [0, 1, 2, 3, 5, 6, 7, 4]


def test_the_worst_violators_are_not_all_of_one_family():
    outside = np.array([0, 5, 4.9, 4.8, 0, 3, 2.9, 1.0])
    assert newton._find_worst(outside, np.arange(8), 3) == [1, 2, 3]
    families = np.array([0, 1, 1, 1, 1, 2, 2, 3])
    # 4.9 and 2.9 are second in their family, 4.8 third: they count for 3.46, 2.05 and 2.77.
    assert newton._find_worst(outside, families, 3) == [1, 2, 5]
    assert newton._find_worst(outside, families, 9) == [1, 2, 5, 3, 6, 7]
    assert newton._find_worst(np.zeros(8), families, 9) == []


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.7, 2.0]), st.integers(0, 3)), max_size=30),
    st.integers(0, 40),
)
def test_violators_are_chosen_as_a_plain_loop_would(columns, most):
    outside = np.array([violation for violation, _ in columns])
    families = np.array([family for _, family in columns], dtype=np.intp)
    before, scores = [0] * 4, {}
    for column in sorted(range(len(columns)), key=lambda c: (-outside[c], c)):
        before[families[column]] += 1
        scores[column] = outside[column] / before[families[column]] ** newton.CROWDING
    wanted = sorted((c for c in scores if outside[c] > 0), key=lambda c: (-scores[c], c))[:most]
    assert newton._find_worst(outside, families, most) == wanted


def test_rules_about_the_same_attributes_are_a_family_and_linear_terms_come_first():
    attributes = tuple(Attribute(name, (0.0, 1.0)) for name in "abc")
    found = Columns.of(
        RuleTerms(
            attributes,
            rules=(((0, 1, 1),), ((0, 2, 3), (2, 1, 1)), ((0, 1, 2),), ((0, 1, 1), (2, 2, 2)), ((2, 1, 1),)),
            lines=(Line(0, 0.0, 1.0, 0.5, 1.0), Line(1, 0.0, 1.0, 0.5, 1.0)),
        )
    )
    assert found.count == 7
    assert found.families.tolist() == [0, 1, 0, 1, 2, 3, 4]
    assert found.first == (5, 6)
    assert (
        len(Columns.of(RuleTerms(attributes, lines=(Line(0, 0.0, 1.0, 0.5, 1.0),) * 80)).first)
        == newton.GROWTH
    )


def test_a_coefficient_that_is_not_worked_on_is_not_forgotten():
    """Where more columns are in the model than may be worked on, those left out must still be seen to be wrong."""
    w = np.array([0.0, 2.0, 0.0])
    point = newton.Point(w, 1.0, np.array([0.0, 0.5, 0.05]), np.eye(1), [])
    assert newton._violations(point, 0.1) == pytest.approx([0.6, 0.0])


def test_sums_are_read_as_they_were_written():
    class Question:
        places, candidates, gradient, working, columns = 20, (0, 0), True, (3, 1), range(4)

    hessian = np.array([[4, 1, 2], [1, 5, 3], [2, 3, 6.0]])
    parts = [[10, 1.5, 2.5], np.arange(5) - 2.25, hessian[np.triu_indices(3)]]
    words = write_reals(np.concatenate(parts), 20)
    sums = read_sums(Question, words)
    assert sums.patients == 10
    assert sums.losses.tolist() == [1.5, 2.5]
    assert sums.gradient.tolist() == (np.arange(5) - 2.25).tolist()
    assert np.array_equal(sums.hessian, hessian)
