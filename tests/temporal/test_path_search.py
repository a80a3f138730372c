"""The search along paths: the closed form of its budget, an unbiased estimator, UCT, and never more than a path has."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest

import concilium as cc
from concilium.errors import StudyError
from concilium.privacy.mechanisms import randomize_bits
from concilium.temporal.path_search import (
    EXPLORATION,
    PATH_LENGTH,
    UNIT,
    PathSearch,
    _find_yes_deviation,
    estimate_yes,
    find_question_epsilon,
)
from concilium.temporal.rule_grammar import LEVELS, STRUCTURE, RuleGrammar, abstract, find_level
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.template_index import TemplateIndex

parse = cc.stl.parse
GRAMMAR = RuleGrammar({"HR": (60, 80, 100), "Temp": (36, 38)}, [(0, 2), (0, 5)], limits=2)
SHARES = {"G[0,5](HR >= 60 and HR < 100)": 0.6, "F[0,5] Temp >= 38": 0.4, "F[0,2] HR < 60": 0.02}
CLIENTS = 20_000
RNG = np.random.default_rng(0)
HELD = {text: RNG.random(CLIENTS) < share for text, share in SHARES.items()}
INDEX = TemplateIndex(RuleSets([[text for text in SHARES if HELD[text][row]] for row in range(CLIENTS)]))


def run(search, randomize=True):
    conversation, questions = search.run(), []
    question = next(conversation)
    try:
        while True:
            questions.append(question)
            bits = INDEX.match(question.template)
            if randomize:
                bits = randomize_bits(bits, question.epsilon)
            question = conversation.send(int(bits.sum()))
    except StopIteration as end:
        return end.value, questions


def test_the_closed_form_of_the_budget():
    quantile = NormalDist().inv_cdf(0.95)
    assert find_question_epsilon(40_336, 0.01, quantile) == pytest.approx(0.80, abs=0.005)
    for clients, margin in ((1000, 0.05), (40_336, 0.01), (500, 0.02)):
        epsilon = find_question_epsilon(clients, margin, quantile)
        deviation = _find_yes_deviation(clients, Fraction(epsilon))
        assert NormalDist(0, deviation).cdf(-margin * clients) == pytest.approx(0.05, rel=1e-6)


def test_the_estimator_is_unbiased():
    clients, count, epsilon = 1000, 10, Fraction(1)
    p = math.e / (1 + math.e)
    expected = count * p + (clients - count) * (1 - p)
    low, high = (estimate_yes(yes, clients, epsilon) for yes in (math.floor(expected), math.ceil(expected)))
    assert low + (high - low) * (expected % 1) == pytest.approx(count)
    assert estimate_yes(0, clients, epsilon) < 0  # never clipped
    with pytest.raises(StudyError):
        estimate_yes(clients + 1, clients, epsilon)


def test_scores():
    search = PathSearch(GRAMMAR, 0.01, Fraction(8), CLIENTS)
    assert search.score(0.0099, 1, 100) == 0
    assert search.score(0.5, 4, 100) == pytest.approx(0.5 + EXPLORATION * math.sqrt(math.log(100) / 4))


@pytest.mark.parametrize("allocation", ["uniform", "adaptive"])
def test_frequent_rules_are_found_and_no_path_is_overdrawn(allocation):
    search = PathSearch(GRAMMAR, 0.05, Fraction(8), CLIENTS, allocation, margin=0.03)
    search.check_feasible()
    discovery, questions = run(search)
    assert {rule.structure for rule in discovery.rules} == {
        abstract(parse(text), STRUCTURE) for text in list(SHARES)[:2]
    }
    assert discovery.exhausted
    assert discovery.questions == len(questions)
    assert discovery.unit == UNIT
    for rule, share in zip(discovery.rules, (0.6, 0.4), strict=True):
        assert rule.prevalence == pytest.approx(share, abs=0.05)
    spent = defaultdict(Fraction)
    for question in questions:
        spent[question.template] += question.epsilon
    paths = [
        sum(spent.get(abstract(template, level), 0) for level in LEVELS if level <= find_level([template]))
        for template in spent
    ]
    assert max(paths) == discovery.spent <= 8


def test_questions_come_best_first_and_stop_at_their_number():
    search = PathSearch(GRAMMAR, 0.01, Fraction(100), CLIENTS, "uniform", questions=25)
    discovery, questions = run(search)
    assert len(questions) == discovery.questions == 25
    assert not discovery.exhausted
    skeletons = len(GRAMMAR.skeletons)
    assert [question.template for question in questions[:skeletons]] == list(GRAMMAR.skeletons)
    best = max(GRAMMAR.skeletons, key=lambda form: INDEX.match(form).sum())
    assert questions[skeletons].template in GRAMMAR.expand(best)


def test_an_infeasible_study_is_refused_with_what_would_do():
    for allocation in ("uniform", "adaptive"):
        search = PathSearch(GRAMMAR, 0.01, Fraction(1, 10), 40_336, allocation)
        with pytest.raises(StudyError, match="cannot work") as caught:
            search.check_feasible()
        clients, epsilon = str(caught.value).split("it would with ")[1].split(" clients, or with epsilon = ")
        PathSearch(GRAMMAR, 0.01, Fraction(1, 10), int(clients), allocation).check_feasible()
        PathSearch(GRAMMAR, 0.01, Fraction(epsilon), 40_336, allocation).check_feasible()
    assert PathSearch(GRAMMAR, 0.01, Fraction(4), 100, "uniform").per_question * PATH_LENGTH == 4


def test_a_path_that_cannot_be_paid_to_its_end_stays_within_its_budget():
    price = PathSearch(GRAMMAR, 0.01, Fraction(1), CLIENTS).per_question
    for budget in (price * 2 + Fraction(1, 10), price * 4 - Fraction(1, 10**9)):
        discovery, questions = run(PathSearch(GRAMMAR, 0.01, budget, CLIENTS))  # not checked beforehand
        assert len(questions) >= len(GRAMMAR.skeletons)
        assert discovery.rules == ()
        assert discovery.spent <= budget
    conversation = PathSearch(GRAMMAR, 0.01, price / 2, CLIENTS).run()
    with pytest.raises(StopIteration) as end:
        next(conversation)
    assert end.value.value.questions == 0
