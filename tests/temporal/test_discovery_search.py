"""The searches by themselves: exact without noise, never overdrawn, and with intervals that keep their word."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import StudyError
from concilium.privacy.accounting import rho_for_epsilon
from concilium.temporal.discovery_search import (
    LevelQuestion,
    LevelSearch,
    ParameterQuestion,
    _find_mode,
    _find_quantile,
    make_rule,
    pool,
)
from concilium.temporal.rule_grammar import STRUCTURE, RuleGrammar, abstract
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.template_index import TemplateIndex

parse = cc.stl.parse
GRAMMAR = RuleGrammar(
    {"HR": (60, 80, 100), "Temp": (36, 38), "MAP": (65,)}, [(0, 2), (0, 5), (3, 5)], limits=2
)
DELTA = Fraction(1, 10**6)
TEXTS = {
    "G[0,5](HR >= 60 and HR < 100)": 0.5,
    "G[0,2](HR >= 80 and HR < 100)": 0.2,
    "F[0,5] Temp >= 38": 0.3,
    "F[3,5] MAP < 65": 0.06,
    "G[0,5] HR >= 60 -> F[0,2] MAP < 65": 0.02,
    "F[0,2] y < 1": 0.6,
}


def make_clients(count, seed=0):
    rng = np.random.default_rng(seed)
    held = {text: rng.random(count) < share for text, share in TEXTS.items()}
    return RuleSets([[text for text, who in held.items() if who[client]] for client in range(count)])


RULE_SETS = make_clients(2000)
INDEX = TemplateIndex(RULE_SETS)


def answer(question, rng=None):
    if isinstance(question, LevelQuestion):
        counts = np.append(INDEX.count(question.templates, question.most), len(RULE_SETS))
    else:
        counts = INDEX.count_parameters(question.structures, question.bins, question.most)
    if rng is None:
        return counts
    return counts + np.rint(rng.normal(0, math.sqrt(question.variance), len(counts))).astype(np.int64)


def run(search, rng=None):
    questions, conversation = [], search.run()
    try:
        question = next(conversation)
        while True:
            questions.append(question)
            question = conversation.send(answer(question, rng))
    except StopIteration as end:
        return end.value, questions


def test_with_hardly_any_noise_the_search_comes_to_the_truth():
    search = LevelSearch(GRAMMAR, Fraction(1, 20), Fraction(10**9))
    discovery, questions = run(search)
    shares = {
        abstract(parse(text), STRUCTURE): INDEX.match(abstract(parse(text), STRUCTURE)).mean()
        for text in TEXTS
        if GRAMMAR.produces(parse(text))
    }
    expected = {form: share for form, share in shares.items() if share >= 0.05 * 1.05}
    assert len(expected) == 3
    assert {rule.structure: rule.prevalence for rule in discovery.rules} == pytest.approx(expected, abs=1e-6)
    assert [type(question) for question in questions] == [LevelQuestion] * 3 + [ParameterQuestion]
    assert discovery.clients == pytest.approx(2000)
    assert [rule.prevalence for rule in discovery.rules] == sorted(expected.values(), reverse=True)
    assert str(discovery.rules[0].formula) == "G[0,5](HR >= 60 and HR < 100)"
    for rule in discovery.rules:
        assert not rule.formula.open_places
        assert abstract(rule.formula, STRUCTURE) == rule.structure
        assert rule.interval[0] <= rule.prevalence <= rule.interval[1]


def test_the_budget_is_spent_to_the_last_fraction_and_no_further():
    rho = rho_for_epsilon("1", DELTA)
    search = LevelSearch(GRAMMAR, Fraction(1, 20), rho)
    assert sum(search.shares) == rho
    assert [share / rho for share in search.shares] == [
        Fraction(1, 12),
        Fraction(1, 6),
        Fraction(1, 2),
        Fraction(1, 4),
    ]
    discovery, questions = run(search, np.random.default_rng(1))
    assert discovery.spent == sum(question.rho for question in questions) <= rho
    for question in questions:  # the noise is enough for what was paid
        assert question.squared_sensitivity / (2 * question.variance) <= question.rho
    bare = LevelSearch(GRAMMAR, Fraction(1, 20), rho, parameters=False)
    assert sum(bare.shares[:3]) == rho
    assert all(rule.formula == rule.structure for rule in run(bare)[0].rules)


def test_a_search_ends_when_nothing_is_left():
    search = LevelSearch(GRAMMAR, Fraction(99, 100), Fraction(10**9))
    discovery, questions = run(search)
    assert discovery.rules == ()
    assert len(questions) == 1
    assert discovery.spent == search.shares[0]


def test_sensitivity_is_what_one_client_can_do():
    templates = tuple(GRAMMAR.skeletons)
    assert LevelQuestion(templates, Fraction(1), 5).squared_sensitivity == 6
    assert LevelQuestion(templates[:3], Fraction(1), 5).squared_sensitivity == 4
    everybody = TemplateIndex(RULE_SETS).count(templates, 2)
    for client in range(20):
        rest = TemplateIndex(RULE_SETS.take(np.arange(2000) != client)).count(templates, 2)
        moved = np.append(everybody - rest, 1)
        assert (moved**2).sum() <= LevelQuestion(templates, Fraction(1), 2).squared_sensitivity


def test_parents_without_room_for_their_children_are_counted():
    search = LevelSearch(GRAMMAR, Fraction(1, 20), Fraction(10**9), most_templates=16)
    discovery, questions = run(search)
    assert all(len(question.templates) <= 16 for question in questions[:3])
    assert sum(report.left_out for report in discovery.levels) > 0
    many, few = GRAMMAR.skeletons[-1], GRAMMAR.skeletons[0]
    narrow = LevelSearch(GRAMMAR, Fraction(1, 2), Fraction(1), most_templates=6)
    assert narrow.find_parents([many, few], 2) == ([few], 1)
    for question in questions[1:3]:  # both ends expand the same parents
        expanded = [form for one in question.parents for form in GRAMMAR.expand(one, question.level)]
        assert question.templates == tuple(expanded)


def test_intervals_hold_the_true_share_in_95_of_100():
    rng = np.random.default_rng(5)
    clients, count, deviation = 2000, 300, 25.0
    inside = 0
    for _ in range(2000):
        noisy, size = rng.normal((count, clients), (deviation, deviation))
        rule = make_rule(parse("G[?] HR >= ?"), noisy, deviation, size, deviation)
        inside += rule.interval[0] <= count / clients <= rule.interval[1]
    assert 0.935 < inside / 2000 < 0.965


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 200), min_size=2, max_size=12).filter(any), st.sampled_from([0.1, 0.5, 0.8]))
def test_a_quantile_is_that_of_the_values_and_its_interval_holds(counts, quantile):
    counts = np.array(counts)
    values = np.repeat(np.arange(len(counts)), counts)
    true = int(values[max(math.ceil(quantile * len(values)) - 1, 0)])
    below = np.cumsum(counts)
    if (below == quantile * below[-1]).any():  # between two bins: either is right
        return
    assert _find_quantile(counts, 1e-9, quantile) == (true, (true,))
    rng = np.random.default_rng(0)
    deviation, inside = 10.0, 0
    for _ in range(200):
        noisy = counts + np.rint(rng.normal(0, deviation, len(counts))).astype(np.int64)
        chosen, candidates = _find_quantile(noisy, deviation, quantile)
        assert chosen in candidates
        inside += true in candidates
    assert inside >= 178  # 190 expected at the least


def test_the_most_frequent_interval_is_a_named_one():
    assert _find_mode(np.array([5, 90, 88, 500]), 1.0) == (1, (1, 2))
    assert _find_mode(np.array([5, 90, 88, 500]), 0.1) == (1, (1,))


def test_pooling_weighs_by_precision():
    assert pool([(100.0, 1.0), (110.0, 3.0)]) == pytest.approx((101.0, math.sqrt(0.9)))


def test_noise_alone_is_hardly_ever_taken_for_a_rule():
    search = LevelSearch(GRAMMAR, Fraction(1, 100), Fraction(1, 1000), parameters=False)
    rng = np.random.default_rng(2)
    accepted = 0
    for _ in range(40):
        conversation = search.run()
        question = next(conversation)
        try:
            while True:
                noise = rng.normal(0, math.sqrt(question.variance), len(question.templates) + 1)
                noise[-1] += 40_000
                question = conversation.send(np.rint(noise).astype(np.int64))
        except StopIteration as end:
            accepted += len(end.value.rules)
    assert accepted <= 40  # half a rule in each, on average, at most


@pytest.mark.parametrize("epsilon", ["0.1", "1"])
def test_a_study_that_cannot_work_is_refused_with_what_would_do(epsilon):
    search = LevelSearch(GRAMMAR, Fraction(1, 100), rho_for_epsilon(epsilon, DELTA))
    if epsilon == "1":
        search.check_feasible(40_336, DELTA)
        assert search.find_separation(40_336) > 4
        return
    with pytest.raises(StudyError, match="cannot work") as caught:
        search.check_feasible(40_336, DELTA)
    clients, wanted = str(caught.value).split("with ")[1:]
    search.check_feasible(int(clients.split()[0]), DELTA)
    enough = wanted.split("= ")[1]
    LevelSearch(GRAMMAR, Fraction(1, 100), rho_for_epsilon(enough, DELTA)).check_feasible(40_336, DELTA)
    with pytest.raises(StudyError):
        search.check_feasible(int(clients.split()[0]) - 10, DELTA)


def test_an_answer_of_another_length_is_refused():
    conversation = LevelSearch(GRAMMAR, Fraction(1, 20), Fraction(1)).run()
    next(conversation)
    with pytest.raises(StudyError, match="counts were asked for"):
        conversation.send(np.zeros(3, dtype=np.int64))


def test_what_is_kept_is_decided_by_the_threshold_or_by_the_noise():
    search = LevelSearch(GRAMMAR, Fraction(1, 100), Fraction(1))
    assert search.find_least(1, 500, 40_000, 10) == 390
    assert search.find_least(1, 500, 40_000, 390) == 390
    assert search.find_least(3, 500, 40_000, 10) == pytest.approx(420)
    assert search.find_least(3, 500, 40_000, 300) == pytest.approx(300 * NormalDist().inv_cdf(0.999))
