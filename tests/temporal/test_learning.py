"""Rules that were planted are found; what is given out is bounded, canonical, the same again, and the patient's own."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import RecordsError, StudyError
from concilium.records.series import Series
from concilium.temporal.evaluation import satisfied_all
from concilium.temporal.formula import Always, Eventually, Until
from concilium.temporal.learning import (
    SAME,
    SOFTNESS,
    LabelledWindows,
    RuleLearner,
    _describe_windows,
    _pick_unlike,
)
from concilium.temporal.parsing import parse
from concilium.temporal.search_space import LARGEST, Breeder, SearchSpace, _is_state

SPACE = SearchSpace.from_ranges(["HR", "Temp", "MAP"], 6)


def draw_series(windows, seed, missing=0.0):
    draw = np.random.default_rng(seed)
    grids = {
        "HR": draw.normal(85, 15, (6, windows)),
        "Temp": draw.normal(37.3, 0.8, (6, windows)),
        "MAP": draw.normal(80, 12, (6, windows)),
    }
    for grid in grids.values():
        grid[draw.random(grid.shape) < missing] = np.nan
    return Series(grids, lengths=np.full(windows, 6))


def label_by(text, series, wrong=0.0, seed=0):
    truth = parse(text).satisfied(series).filled(False)
    flip = np.random.default_rng(seed).random(len(truth)) < wrong
    return LabelledWindows(series, truth ^ flip, np.arange(len(truth)))


@pytest.mark.parametrize(
    "planted",
    ["G[0,5] HR >= 80", "F[3,5] Temp >= 38.5", "F[0,5](HR >= 110 and Temp >= 37.5)", "G[0,2] MAP >= 70"],
)
def test_a_planted_rule_is_found(planted):
    series = draw_series(600, 1)
    learner = RuleLearner(space=SPACE, population=60, generations=30, patience=6, seed=3)
    rules = learner.learn(label_by(planted, series, wrong=0.02))
    other = draw_series(2000, 2)
    truth = parse(planted).satisfied(other).filled(False)
    agrees = rules[0].formula.satisfied(other).filled(False) == truth
    assert np.mean([agrees[truth].mean(), agrees[~truth].mean()]) > 0.9


def test_the_same_seed_gives_the_same_rules_and_another_may_not():
    windows = label_by("G[0,5] HR >= 75 or F[0,5] Temp >= 39", draw_series(200, 4), wrong=0.1)
    first, again = (RuleLearner(space=SPACE, seed=5).learn(windows) for _ in range(2))
    assert first == again
    assert RuleLearner(space=SPACE, seed=6).learn(windows) != first


@given(st.integers(0, 10**6), st.integers(1, 12))
@settings(max_examples=8)
def test_rules_are_few_canonical_small_and_different(seed, most):
    windows = label_by("F[0,5] MAP < 65", draw_series(60, seed, missing=0.05), wrong=0.2, seed=seed)
    if windows.labels.all() or not windows.labels.any():
        return
    rules = RuleLearner(space=SPACE, rules=most, generations=4, seed=seed).learn(windows)
    formulas = [rule.formula for rule in rules]
    assert len(formulas) == len(set(formulas)) <= most
    assert all(formula == formula.canonical() and formula.size <= LARGEST for formula in formulas)
    for formula in formulas:
        for name in formula.variables:
            assert name in SPACE.limits
    held = satisfied_all(formulas, windows.series).filled(False)
    assert len({holds.tobytes() for holds in held}) == len(formulas)


def test_fitness_is_separation_less_the_size():
    """Against the definition, in a loop."""
    windows = label_by("G[0,5] HR >= 75", draw_series(80, 7), wrong=0.1)
    learner = RuleLearner(space=SPACE, generations=3, penalty=0.02)
    for rule in learner.learn(windows):
        scaled = rule_in_widths(rule.formula)
        squashed = [
            value / (abs(value) + SOFTNESS) for value in scaled.robustness(SPACE.scale(windows.series))
        ]
        sides = [
            np.mean([s for s, y in zip(squashed, windows.labels, strict=True) if y == side])
            for side in (1, 0)
        ]
        separation = (sides[0] - sides[1]) / 2
        assert rule.fitness == pytest.approx(separation - 0.02 * (rule.formula.size - 2), abs=1e-5)


def rule_in_widths(formula):
    text = str(formula)
    for name in SPACE.names:
        for number, scaled in zip(SPACE.limits[name], SPACE.scaled_limits[name], strict=True):
            for relation in (">=", "<"):
                text = text.replace(f"{name} {relation} {number:g})", f"{name} {relation} {scaled!r})")
                text = text.replace(f"{name} {relation} {number:g} ", f"{name} {relation} {scaled!r} ")
                if text.endswith(f"{name} {relation} {number:g}"):
                    text = text.removesuffix(f"{number:g}") + f"{scaled!r}"
    return parse(text)


def make_patients(count, seed):
    series = draw_series(count * 8, seed)
    windows = label_by("F[0,5] HR >= 110", series, wrong=0.05)
    owners = np.repeat(np.arange(count), 8)
    named = Series.from_stays(series.stays, series.lengths, step="1h", ids=[f"p{owner}" for owner in owners])
    return LabelledWindows(named, windows.labels, owners)


def test_a_patients_rules_depend_on_that_patient_alone():
    windows = make_patients(7, 11)
    learner = RuleLearner(space=SPACE, generations=3)
    together = learner.learn_each(windows)
    assert list(together) == list(range(7))
    for patient in range(7):
        alone = learner.learn_each(windows.take(windows.owners == patient))
        assert alone[patient] == together[patient]
    shuffled = np.random.default_rng(1).permutation(len(windows))
    by_patient = np.argsort(windows.owners[shuffled], kind="stable")
    reordered = windows.take(shuffled[by_patient])
    for patient, rules in learner.learn_each(reordered).items():
        assert {rule.formula for rule in rules} == {rule.formula for rule in together[patient]}


def test_two_processes_learn_what_one_does():
    windows = make_patients(60, 12)
    learner = RuleLearner(space=SPACE, generations=2, population=10)
    steps = []
    assert learner.learn_each(windows, processes=2, progress=steps.append) == learner.learn_each(windows)
    assert sum(steps) == 60


def test_windows_of_one_outcome_are_described():
    windows = draw_series(12, 13)
    learner = RuleLearner(space=SPACE, rules=5)
    for labels in (np.ones(12, bool), np.zeros(12, bool)):
        rules = learner.learn(LabelledWindows(windows, labels, np.zeros(12, np.intp)))
        assert 1 <= len(rules) <= 5
        for rule in rules:
            assert rule.formula == rule.formula.canonical()
            assert rule.formula.satisfied(windows).all()


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=25)
def test_descriptions_hold_and_are_the_tightest(seed, count):
    """One limit further, and it does not hold in every window."""
    series = draw_series(count, seed)
    described = _describe_windows(SPACE, series, 100)
    for formula, tightness in described:
        assert 0 < tightness <= 1
        assert formula.satisfied(series).all()
        inner = formula.inner
        for limit in inner.children or (inner,):
            numbers = SPACE.limits[limit.variable]
            place = numbers.index(limit.number) + (1 if limit.relation == ">=" else -1)
            if 0 <= place < len(numbers):
                tighter = type(formula)(
                    formula.window, type(limit)(limit.variable, limit.relation, numbers[place])
                )
                assert not tighter.satisfied(series).all()


def test_what_was_not_measured_is_not_described():
    series = draw_series(5, 3)
    holes = series["Temp"]
    holes[2, 1] = np.nan
    described = _describe_windows(SPACE, series.with_stays({**series.stays, "Temp": holes.T.ravel()}), 100)
    assert {name for formula, _ in described for name in formula.variables} >= {"HR", "MAP"}
    for formula, _ in described:
        if "Temp" in formula.variables:
            assert not formula.window.low <= 2 <= formula.window.high


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_breeding_keeps_types_sizes_and_limits(seed):
    breeder = Breeder(SPACE, Random(seed))
    living = [breeder.draw() for _ in range(4)]
    for _ in range(40):
        living.append(breeder.cross(living[-1], living[-3]))
        living.append(breeder.mutate(living[-2]))
    living += list(breeder.vary(living[-1]))
    for formula in living:
        assert formula.size <= LARGEST
        for part in formula.walk():
            if isinstance(part, Always | Eventually | Until):
                assert all(_is_state(child) for child in part.children)
                assert tuple(part.window)[:2] in SPACE.intervals
                assert not (isinstance(part, Eventually) and part.window[0] == part.window[1])
        SPACE.unscale_formula(formula)  # which finds every number among the limits


def test_rules_that_repeat_others_come_late_or_not_at_all():
    held = np.array(
        [[1, 1, 0, 0, 0, 1], [1, 1, 0, 0, 0, 1], [0, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1]], dtype=bool
    )
    assert _pick_unlike(np.array([0.9, 0.8, 0.3, 0.7]), held, 4) == [0, 2]
    assert _pick_unlike(np.array([0.9, 0.8, 0.3, 0.7]), held, 1) == [0]
    assert _pick_unlike(np.array([]), np.zeros((0, 6), bool), 3) == []


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 30))
@settings(max_examples=40)
def test_picking_is_that_of_a_loop_with_correlations(seed, rules, windows):
    draw = np.random.default_rng(seed)
    held = draw.random((rules, windows)) < draw.random((rules, 1))
    fitness = draw.random(rules)
    expected = []
    left = [rule for rule in range(rules) if 0 < held[rule].sum() < windows]
    while left:

        def worth(rule):
            alike = [np.corrcoef(held[rule], held[other])[0, 1] ** 2 for other in expected]
            return fitness[rule] * (1 - max(alike, default=0)), max(alike, default=0)

        left = [rule for rule in left if worth(rule)[1] < SAME]
        if left:
            expected.append(max(left, key=lambda rule: worth(rule)[0]))
            left.remove(expected[-1])
    assert _pick_unlike(fitness, held, rules) == expected


def test_values_at_a_limit_count_as_the_rule_says():
    """Whole numbers that are limits themselves: that a rule holds is its truth, and not a robustness above zero."""
    draw = np.random.default_rng(5)
    series = Series({"HR": draw.choice([80.0, 90.0, 100.0], (2, 300))})
    windows = label_by("G[0,1] HR >= 90", series, wrong=0.05)
    space = SearchSpace({"HR": (80.0, 85.0, 90.0, 95.0, 100.0)}, 2)
    rules = [rule.formula for rule in RuleLearner(space=space).learn(windows)]
    held = satisfied_all(rules, series).filled(False)
    assert len({holds.tobytes() for holds in held}) == len(rules)
    assert any((holds == parse("G[0,1] HR >= 90").satisfied(series)).all() for holds in held)


def test_many_windows_are_looked_at_in_parts(monkeypatch):
    windows = label_by("F[0,5] HR >= 110", draw_series(90, 8), wrong=0.1)
    learner = RuleLearner(space=SPACE, generations=3)
    whole = learner.learn(windows)
    monkeypatch.setattr("concilium.temporal.learning.MOST_CELLS", 90 * 7)
    parts = learner.learn(windows)
    assert [rule.formula for rule in parts] == [rule.formula for rule in whole]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rules": 0},
        {"population": 1},
        {"patience": True},
        {"penalty": 1.0},
        {"penalty": "small"},
        {"least": -1},
        {"seed": "one"},
    ],
)
def test_settings_out_of_range(wrong):
    with pytest.raises(StudyError, match=r"must be a whole number|from 0 to 1"):
        RuleLearner(space=SPACE, **wrong)


def test_windows_that_do_not_fit_the_space():
    windows = label_by("F[0,5] HR >= 110", draw_series(20, 9))
    for labels in (windows.labels, np.ones(20, bool)):  # also where they are only described
        labelled = LabelledWindows(windows.series, labels, windows.owners)
        for learn in ("learn", "learn_each"):
            with pytest.raises(RecordsError, match="no variable 'Lactate'"):
                getattr(RuleLearner(space=SearchSpace.from_ranges(["HR", "Lactate"], 6)), learn)(labelled)
            with pytest.raises(StudyError, match="windows of 5 steps, and these have 6"):
                getattr(RuleLearner(space=SearchSpace.from_ranges(["HR"], 5)), learn)(labelled)


def test_no_windows_have_no_rules():
    windows = label_by("F[0,5] HR >= 110", draw_series(5, 9)).take(np.zeros(5, bool))
    learner = RuleLearner(space=SPACE)
    with pytest.raises(StudyError, match="no windows to learn from"):
        learner.learn(windows)
    assert learner.learn_each(windows) == {}
    with pytest.raises(StudyError, match="processes must be a whole number"):
        learner.learn_each(windows, processes=0)


@pytest.mark.parametrize("positive", [[True, False], [True, True]])
def test_what_was_never_measured_has_no_rules(positive):
    draw = draw_series(20, 10)
    nothing = np.full_like(draw.stays["HR"], np.nan)
    labels = np.tile(positive, 10)
    learner = RuleLearner(space=SPACE, generations=2, least=0)
    one = LabelledWindows(draw.with_stays({**draw.stays, "HR": nothing}), labels, np.arange(20))
    assert all("HR" not in rule.formula.variables for rule in learner.learn(one))
    none = LabelledWindows(draw.with_stays(dict.fromkeys(SPACE.names, nothing)), labels, np.arange(20))
    assert learner.learn(none) == []


def test_a_description_names_the_shortest_time_in_which_something_happens():
    series = Series({"HR": [[80.0], [80.0], [80.0], [120.0], [80.0], [80.0]]})
    (rises,) = (
        formula
        for formula, _ in _describe_windows(SearchSpace({"HR": (90.0, 110.0)}, 6), series, 9)
        if isinstance(formula, Eventually) and formula.inner.relation == ">="
    )
    assert str(rises) == "F[3,5] HR >= 110"
