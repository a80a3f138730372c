"""What a site adds to a fit, against numbers worked out from its patients one by one."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pooled_lasso import objective
from rule_patients import BINS, design_of, draw, records_of

import concilium as cc
from agreed import check
from concilium.errors import MessageError
from concilium.models.outcome import Outcome
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.sums import BOUND, choose_places, pack, read_reals, write_reals
from concilium.rulefit.fedda import AskDual, _recover
from concilium.rulefit.fitting import (
    MOST_CANDIDATES,
    MOST_WORKING,
    AskFit,
    AskRates,
    Coefficients,
    read_rates,
    read_sums,
)
from concilium.rulefit.generation import AskRules
from concilium.rulefit.terms import Line, RuleTerms, write_terms

ATTRIBUTES = tuple(Attribute(name, tuple(edges)) for name, edges in sorted(BINS.items()))
TERMS = RuleTerms(
    ATTRIBUTES,
    (((0, 1, 20),), ((0, 25, 42), (1, 1, 24)), ((1, 30, 42), (3, 10, 42)), ((2, 0, 10, 30, 42),)),
    (Line(0, -2.0, 2.0, 0.0, 0.4), Line(2, -1.9, 2.1, 0.1, 0.5)),
)
COLUMNS = len(TERMS)
YES, RANGE = Outcome(positive=1), Outcome(low=-1.0, high=2.0)


def cohort_of(table, outcome, query="", target="y"):
    policy = cc.Policy(allow=("a", "b", "c", "d"))
    return View(records_of(table, outcome), policy).select(query, target)


def ask(**changes):
    first = Coefficients(-0.3, (0, 1, 4), (0.5, -1.25, 0.75))
    asked = {"query": "", "target": "y", "outcome": YES, "terms": write_terms(TERMS), "candidates": (first,)}
    return AskFit(**{**asked, "places": 30, **changes})


def answer(question, *cohorts):
    check(question, "exact")
    parts = [question.compute(cohort) for cohort in cohorts]
    assert all(len(part) == question.numbers for part in parts)
    return read_sums(question, np.sum(parts, axis=0))


def vector(coefficients):
    w = np.zeros(COLUMNS + 1)
    w[0] = coefficients.intercept
    w[[column + 1 for column in coefficients.columns]] = coefficients.values
    return w


@pytest.fixture(scope="module")
def patients():
    return draw(150, 4)


@pytest.mark.parametrize("outcome", [YES, RANGE])
def test_losses_gradient_and_hessian_are_those_of_the_table(patients, outcome):
    table, y = patients
    target = "y" if outcome.binary else "d"
    candidates = (
        Coefficients(-0.3, (0, 1, 4), (0.5, -1.25, 0.75)),
        Coefficients(),
        Coefficients(1.0, (5, 2), (2.0, -3.0)),
    )
    question = ask(outcome=outcome, target=target, candidates=candidates, working=(5, 0, 3))
    sums = answer(question, cohort_of(table, y, target=target))
    design = design_of(TERMS, records_of(table, y)).matrix()
    scaled = y.astype(float) if outcome.binary else (np.clip(table[:, 3], -1, 2) - 0.5) / 1.5

    def loss(w):
        return len(y) * objective(design, scaled, w[0], w[1:], 0.0, binary=outcome.binary)

    assert sums.patients == 150
    assert sums.losses == pytest.approx([loss(vector(candidate)) for candidate in candidates], abs=1e-7)
    at, small = vector(candidates[0]), 1e-5
    steps = small * np.eye(COLUMNS + 1)
    slopes = [(loss(at + step) - loss(at - step)) / (2 * small) for step in steps]
    assert sums.gradient == pytest.approx(slopes, abs=1e-4)
    for i, row in enumerate((0, 6, 1, 4)):
        for j, column in enumerate((0, 6, 1, 4)):
            wide = 1e-3 * np.eye(COLUMNS + 1)
            around = [loss(at + s * wide[row] + t * wide[column]) for s in (1, -1) for t in (1, -1)]
            curve = (around[0] - around[1] - around[2] + around[3]) / 4e-6
            assert sums.hessian[i, j] == pytest.approx(curve, rel=1e-3, abs=1e-3)


@given(st.integers(1, 7), st.integers(0, 1000), st.sampled_from([0, 5, 20, 28]))
@settings(max_examples=30)
def test_sums_over_sites_are_those_of_the_pooled_table_to_the_places(sites, seed, places):
    table, y = draw(80, seed)
    question = ask(working=(0, 4), places=places)
    apart = answer(question, *(cohort_of(table[part::sites], y[part::sites]) for part in range(sites)))
    pooled = answer(question, cohort_of(table, y))
    room = (sites + 1) * 0.5**places / 2 + 1e-9
    assert apart.patients == pooled.patients == 80
    for one, other in ((apart.losses, pooled.losses), (apart.gradient, pooled.gradient)):
        assert np.abs(one - other).max() <= room
    assert np.abs(apart.hessian - pooled.hessian).max() <= room


def test_only_what_is_asked_for_is_sent(patients):
    cohort = cohort_of(*patients)
    only = answer(ask(gradient=False), cohort)
    assert (only.gradient, only.hessian) == (None, None)
    assert ask(gradient=False).numbers == 2
    assert ask().numbers == 2 + COLUMNS + 1
    assert ask(working=()).numbers == 2 + COLUMNS + 1 + 1
    assert ask(working=(1, 2)).numbers == 2 + COLUMNS + 1 + 6


@given(st.lists(st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=9))
def test_numbers_travel_in_fixed_point_and_are_held_within_bounds(reals):
    words = write_reals(np.array(reals), 32)
    assert words.dtype == np.int64
    back = read_reals(words, 32)
    for real, found in zip(reals, back, strict=True):
        held = min(max(real, -BOUND), BOUND) if real == real else BOUND
        assert abs(found - held) <= 2**-33 + 1e-15 * abs(held)


@given(st.integers(1, 100_000))
def test_the_sum_over_all_sites_fits_in_63_bits(sites):
    assert sites * BOUND * 2.0 ** choose_places(sites) <= 2**62
    assert choose_places(sites) >= 15


BAD_FITS = {
    "candidates": {"candidates": ()},
    "1 to 100 candidates": {"candidates": (Coefficients(),) * (MOST_CANDIDATES + 1)},
    "a column beyond": {"candidates": (Coefficients(0, (COLUMNS,), (1.0,)),)},
    "a column before": {"candidates": (Coefficients(0, (-1,), (1.0,)),)},
    "a column twice": {"candidates": (Coefficients(0, (1, 1), (1.0, 2.0)),)},
    "too few values": {"candidates": (Coefficients(0, (1, 2), (1.0,)),)},
    "not a number": {"candidates": (Coefficients(0, (1,), (math.nan,)),)},
    "no intercept": {"candidates": (Coefficients(math.nan),)},
    "endless": {"candidates": (Coefficients(0, (1,), (math.inf,)),)},
    "huge": {"candidates": (Coefficients(1e7),)},
    "working beyond": {"working": (COLUMNS,)},
    "working before": {"working": (-1,)},
    "working twice": {"working": (2, 2)},
    "places": {"places": -1},
    "many places": {"places": 33},
    "terms": {"terms": b"\x00"},
    "no outcome": {"outcome": Outcome()},
    "two outcomes": {"outcome": Outcome(positive=1, low=0.0, high=1.0)},
    "half a range": {"outcome": Outcome(low=0.0)},
    "half of both": {"outcome": Outcome(positive=1, high=1.0)},
    "range falls": {"outcome": Outcome(low=1.0, high=0.0)},
    "range is endless": {"outcome": Outcome(low=-math.inf, high=0.0)},
    "range is no number": {"outcome": Outcome(low=math.nan, high=0.0)},
}


@pytest.mark.parametrize("changes", BAD_FITS.values(), ids=BAD_FITS)
def test_fits_that_lie_are_refused(changes):
    with pytest.raises(MessageError):
        check(ask(**changes), "exact")


def test_a_fit_works_on_so_many_columns_at_most():
    wide = RuleTerms(ATTRIBUTES, (((0, 1, 20),),) * (MOST_WORKING + 1))
    question = ask(
        terms=write_terms(wide), candidates=(Coefficients(),), working=tuple(range(MOST_WORKING + 1))
    )
    with pytest.raises(MessageError, match="at most 2000 columns"):
        check(question, "exact")


def ask_rules(**changes):
    asked = {"query": "", "target": "y", "outcome": YES, "attributes": ATTRIBUTES, "trees": 5, "leaves": 4.0}
    return AskRules(**{**asked, "shrinkage": 0.1, "support": 10, "seed": 0, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"trees": 0},
        {"trees": 10_001},
        {"leaves": 1.9},
        {"leaves": 1e9},
        {"leaves": math.nan},
        {"shrinkage": 0.0},
        {"shrinkage": 1.5},
        {"shrinkage": math.nan},
        {"seed": -1},
        {"seed": 2**63},
        {"support": 4},
        {"attributes": (Attribute("a", (2.0, 1.0)),)},
        {"attributes": ATTRIBUTES[:1] * 2},
        {"attributes": (Attribute("a", (), ("x",), missing=False),)},
        {"attributes": (Attribute("a", (), ("x",), other=False),)},
        {"attributes": (Attribute("a", of=2),)},
        {"outcome": Outcome()},
    ],
)
def test_questions_for_rules_that_lie_are_refused(changes):
    with pytest.raises(MessageError):
        check(ask_rules(**changes), "exact")


def test_rules_of_a_site_are_about_enough_of_its_patients(patients):
    table, y = patients
    for policy, least in (
        (cc.Policy(), 10),
        (cc.Policy(branch_floor=25), 25),
        (cc.Policy(minimum_cell=20), 20),
    ):
        cohort = View(records_of(table, y), policy).select("", "y")
        found = ask_rules(trees=20).compute(cohort)
        terms = RuleTerms(ATTRIBUTES, found.rules)
        terms.check()
        held = design_of(terms, records_of(table, y)).matrix().sum(axis=0)
        assert len(held)
        assert np.all((held >= least) & (held <= 150 - least))
        assert found.numbers == sum(len(rule) for rule in found.rules)


def ask_dual(**changes):
    asked = {
        "query": "",
        "target": "y",
        "outcome": YES,
        "terms": write_terms(TERMS),
        "penalty": 0.01,
        "before": 0.0,
    }
    return AskDual(**{**asked, "dual": pack(np.zeros(COLUMNS + 1)), "step": 0.1, "local": 3, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"dual": pack(np.zeros(COLUMNS))},
        {"dual": pack(np.zeros(COLUMNS + 1, dtype=np.uint8))},
        {"dual": pack(np.full(COLUMNS + 1, np.nan))},
        {"dual": pack(np.full(COLUMNS + 1, np.inf))},
        {"dual": pack(np.full(COLUMNS + 1, 1e300))},
        {"dual": msgspec.structs.replace(pack(np.zeros(COLUMNS + 1)), data=b"x")},
        {"local": 0},
        {"local": 1001},
        {"places": -1},
        {"penalty": -1.0},
        {"penalty": math.nan},
        {"before": math.inf},
        {"step": 0.0},
        {"step": math.nan},
        {"terms": b""},
        {"outcome": Outcome()},
    ],
)
def test_dual_steps_that_lie_are_refused(changes):
    with pytest.raises(MessageError):
        check(ask_dual(**changes), "exact")


def test_dual_steps_at_a_site_are_those_of_the_algorithm(patients):
    table, y = patients
    question = ask_dual(before=0.2, places=30)
    check(question, "exact")
    sums = question.compute(cohort_of(table, y)) / 2.0**30
    wide = np.column_stack([np.ones(150), design_of(TERMS, records_of(table, y)).matrix()])
    dual = np.zeros(COLUMNS + 1)
    for step in range(3):
        w = _recover(dual, (0.2 + 0.1 * (step + 1)) * 0.01)
        dual = dual - 0.1 * wide.T @ (1 / (1 + np.exp(-wide @ w)) - y) / 150
    assert sums[:2] == pytest.approx([150, 150 * math.log(2)], abs=1e-6)
    assert sums[2:] / 150 == pytest.approx(dual, abs=1e-8)
    assert len(sums) == question.numbers


def test_steps_that_run_away_are_answered_within_bounds(patients):
    """A house may ask for steps that no method would take: numbers stay numbers."""
    question = ask_dual(outcome=RANGE, target="d", step=9e5, local=1000)
    check(question, "exact")
    sums = question.compute(cohort_of(*patients, target="d"))
    assert np.all(np.abs(sums) <= BOUND * 2.0**24)


def test_recovering_shrinks_all_but_the_intercept():
    assert _recover(np.array([0.05, 0.3, -0.3, 0.05, -0.05]), 0.1) == pytest.approx([0.05, 0.2, -0.2, 0, 0])


@pytest.mark.parametrize("outcome", [YES, RANGE])
def test_rates_are_those_of_the_table(patients, outcome):
    table, y = patients
    target = "y" if outcome.binary else "d"
    question = AskRates(query="", target=target, outcome=outcome, terms=TERMS, places=30)
    check(question, "exact")
    sites = 4
    cohorts = [cohort_of(table[part::sites], y[part::sites], target=target) for part in range(sites)]
    parts = [question.compute(cohort) for cohort in cohorts]
    assert all(len(part) == question.numbers for part in parts)
    rates = read_rates(question, np.sum(parts, axis=0))
    design = design_of(TERMS, records_of(table, y)).matrix()
    # In the outcome's own unit: shares of patients, or the number as it is measured.
    measured = y.astype(float) if outcome.binary else np.clip(table[:, 3], -1, 2)
    assert rates.patients == 150
    assert rates.mean == pytest.approx(measured.mean(), abs=1e-7)
    assert rates.support == pytest.approx(design.mean(axis=0), abs=1e-8)
    for column in range(len(TERMS.rules)):
        inside = design[:, column] == 1
        assert rates.inside[column] == pytest.approx(measured[inside].mean(), abs=1e-7)
        assert rates.outside[column] == pytest.approx(measured[~inside].mean(), abs=1e-7)
    own = [design[part::sites] for part in range(sites)]
    squares = sum((len(d) - 1) * d.var(axis=0, ddof=1) for d in own)
    assert rates.deviation == pytest.approx(np.sqrt(squares / (150 - sites)), abs=1e-7)


def test_rates_of_a_rule_that_nobody_or_everybody_fulfils(patients):
    terms = RuleTerms(ATTRIBUTES[:1], (((0, 0, 0),), ((0, 1, 42),)))
    question = AskRates(query="", target="y", outcome=YES, terms=terms)
    rates = read_rates(question, question.compute(cohort_of(*patients)))
    assert rates.support.tolist() == [0, 1]
    assert math.isnan(rates.inside[0])
    assert rates.inside[1] == pytest.approx(patients[1].mean())
    assert math.isnan(rates.outside[1])
    assert rates.deviation.tolist() == [0, 0]


def test_rates_of_no_terms_and_of_lying_questions(patients):
    none = AskRates(query="", target="y", outcome=YES, terms=RuleTerms(()))
    rates = read_rates(none, none.compute(cohort_of(*patients)))
    assert (rates.patients, len(rates.support)) == (150, 0)
    for changes in (
        {"places": 33},
        {"places": -1},
        {"outcome": Outcome()},
        {"terms": RuleTerms(ATTRIBUTES * 2)},
    ):
        with pytest.raises(MessageError):
            check(msgspec.structs.replace(none, **changes), "exact")
