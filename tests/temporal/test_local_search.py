"""One randomised report of each client: the exact channel keeps to e^epsilon, and its estimates are unbiased."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import concilium as cc
from concilium.errors import StudyError
from concilium.privacy.local_reports import ListedAnswers, ReportChannel, _amplify, split_clients
from concilium.temporal.local_search import GROUPS, BinQuestion, LocalSearch
from concilium.temporal.rule_grammar import STRUCTURE, RuleGrammar, abstract
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.template_index import TemplateIndex

parse = cc.stl.parse
GRAMMAR = RuleGrammar({"HR": (60, 80, 100), "Temp": (36, 38), "MAP": (65,)}, [(0, 2), (0, 5)], limits=2)


def lists(templates):
    """All lists of templates that a client can match, in every order that matters: which ones, and none."""
    return [
        chosen for size in range(templates + 1) for chosen in itertools.combinations(range(templates), size)
    ]


def clients_of(each):
    starts = np.cumsum([0, *map(len, each)])
    return ListedAnswers(starts, np.array([place for own in each for place in own], dtype=np.int32))


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(4), Fraction(8)])
@pytest.mark.parametrize(("templates", "most"), [(1, 1), (3, 1), (4, 2), (4, 9), (5, 3)])
def test_the_exact_channel_keeps_to_its_epsilon(templates, most, epsilon):
    getcontext().prec = 60
    channel = ReportChannel(templates, most, epsilon)
    rows = [channel.find_probabilities(own) for own in lists(templates)]
    assert all(sum(row) == 1 for row in rows)
    worst = max(one / other for answers in zip(*rows, strict=True) for one in answers for other in answers)
    bound = (Decimal(epsilon.numerator) / Decimal(epsilon.denominator)).exp()
    assert Decimal(worst.numerator) / Decimal(worst.denominator) <= bound
    assert float(worst) == pytest.approx(math.exp(epsilon), rel=1e-9)  # and nothing is given away


def test_one_answer_for_all_blanks_would_not_be_private():
    """Why every blank is an answer of its own: a client without rules would say "none" with probability p, one with a
    full list with q, and p/q is e^e', not e^e."""
    assert math.exp(_amplify(Fraction(1), 5)) == pytest.approx(5 * (math.e - 1) + 1)
    channel = ReportChannel(10, 5, Fraction(1))
    nobody, full = channel.find_probabilities([]), channel.find_probabilities(range(5))
    assert float(sum(nobody[10:]) / sum(full[10:])) == pytest.approx(math.e)


def test_amplification():
    for epsilon, entries in ((Fraction(1), 100), (Fraction(1, 100), 7), (Fraction(8), 20)):
        wanted = math.log(entries * (math.exp(epsilon) - 1) + 1)
        assert float(_amplify(epsilon, entries)) == pytest.approx(wanted, rel=1e-12)
    assert _amplify(Fraction(1), 1) <= 1


def test_the_estimate_is_unbiased_and_its_deviation_exact():
    channel = ReportChannel(5, 3, Fraction(2))
    each = [(0, 1), (1,), (), (1, 2, 3), (4, 1)] * 40
    rows = np.array([[float(share) for share in channel.find_probabilities(own)] for own in each])
    counts = np.bincount([place for own in each for place in own], minlength=5)
    difference = float(channel.when_listed - channel.otherwise)
    expected = (rows.sum(axis=0)[:5] - len(each) * float(channel.otherwise)) / difference
    assert expected == pytest.approx(counts)
    spread = np.sqrt((rows * (1 - rows)).sum(axis=0)[:5]) / difference
    assert [channel.find_deviation(len(each), count) for count in counts] == pytest.approx(spread)
    with pytest.raises(StudyError):
        channel.estimate(np.zeros(5, dtype=np.int64))


def test_reports_are_drawn_as_the_channel_says():
    channel = ReportChannel(4, 3, Fraction(2))
    for own in ((), (2,), (3, 0), (0, 1, 2, 3)):
        reports = channel.draw(clients_of([own] * 40_000))
        expected = [float(share) * 40_000 for share in channel.find_probabilities(own)]
        assert stats.chisquare(channel.count_reports(reports), expected).pvalue > 1e-6


def test_groups_depend_on_ids_alone():
    ids = list(range(20_000))
    groups = split_clients(ids, GROUPS, "study")
    assert abs(np.mean(groups == 0) - 0.2) < 0.02
    assert split_clients([77, "77"], GROUPS, "study").tolist() == [groups[77]] * 2
    assert (split_clients(ids, GROUPS, "another") != groups).any()
    with pytest.raises(StudyError):
        split_clients(ids, (Fraction(1, 2), Fraction(1, 3)), "study")


def run(search, indexes):
    conversation, questions = search.run(), []
    question = next(conversation)
    try:
        while True:
            questions.append(question)
            channel, index = question.channel, indexes[question.group]
            if isinstance(question, BinQuestion):
                listed = index.list_parameters(question.structures, question.bins, channel.entries)
            else:
                listed = index.list_templates(question.templates, channel.entries)
            question = conversation.send(channel.count_reports(channel.draw(listed)))
    except StopIteration as end:
        return end.value, questions


def test_frequent_rules_are_found_and_each_client_is_asked_once():
    rng = np.random.default_rng(0)
    shares = {"G[0,5](HR >= 60 and HR < 100)": 0.6, "F[0,5] Temp >= 38": 0.4, "F[0,2] MAP < 65": 0.005}
    held = {text: rng.random(8000) < share for text, share in shares.items()}
    rule_sets = RuleSets([[text for text, who in held.items() if who[row]] for row in range(8000)])
    groups = split_clients(rule_sets.ids, GROUPS, "study")
    indexes = [TemplateIndex(rule_sets.take(groups == group)) for group in (0, 1, 2)]
    search = LocalSearch(GRAMMAR, Fraction(1, 100), Fraction(4))
    search.check_feasible(8000)
    discovery, questions = run(search, indexes)
    assert [question.group for question in questions] == [0, 1, 2]
    assert discovery.clients == 8000
    assert all(question.channel.epsilon == 4 for question in questions)
    accepted = {rule.structure: rule for rule in discovery.rules}
    for text in list(shares)[:2]:
        rule = accepted[abstract(parse(text), STRUCTURE)]
        assert rule.prevalence == pytest.approx(shares[text], abs=0.2)  # more than four deviations
    assert str(accepted[abstract(parse("F[0,5] Temp >= 38"), STRUCTURE)].formula) == "F[0,5] Temp >= 38"
    # Two, and by the noise half a one more on average: six more in one of 70,000 runs.
    assert len(accepted) <= 7
    assert discovery.least_share < 0.2


def test_nothing_is_found_where_nobody_has_rules():
    empty = TemplateIndex(RuleSets([[] for _ in range(4000)]))
    accepted = [
        len(run(LocalSearch(GRAMMAR, Fraction(1, 100), Fraction(2)), [empty] * 3)[0].rules) for _ in range(20)
    ]
    assert sum(accepted) <= 25  # half a rule in each on average, if any skeleton is kept at all


def test_a_study_that_cannot_work_is_refused_with_what_would_do():
    search = LocalSearch(GRAMMAR, Fraction(1, 100), Fraction(1))
    search.check_feasible(100_000)
    with pytest.raises(StudyError, match="cannot work") as caught:
        search.check_feasible(300)
    clients, epsilon = str(caught.value).split("it would with ")[1].split(" clients or with epsilon = ")
    search.check_feasible(int(clients))
    LocalSearch(GRAMMAR, Fraction(1, 100), Fraction(epsilon)).check_feasible(300)
    assert search.find_least_share(1_000_000) < search.find_least_share(10_000)


def test_no_channel():
    with pytest.raises(StudyError):
        ReportChannel(0, 1, Fraction(1))
