"""What leaves a gate under `local`, `noised` and `private`, audited: a hospital and its neighbour, asked for real.

As in test_audit.py a sound release is accused once in 1e8 runs. Where a hospital holds many patients who are answered
for independently of each other, each of them is a draw of its own; so thousands of draws take one question.
"""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from auditing import bound_epsilon, learn_epsilon, tails_and_points

import concilium as cc
from agreed import Asker
from concilium.experts.expert_answers import AskExpertLabels, _find_sensitivity, _sum_on_grid
from concilium.experts.patient_windows import PublicStays
from concilium.privacy import local_reports
from concilium.privacy.accounting import epsilon_from_rho
from concilium.privacy.shares import price_gaussian_shares
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Answer
from concilium.protocol.questions import Gaussian, Laplace
from concilium.protocol.releases import find_release
from concilium.protocol.releases import noised as noised_release
from concilium.protocol.sums import pack, read_sum
from concilium.temporal.rule_questions import AskRuleReports
from concilium.temporal.rule_task import RulePart
from experts.expert_patients import make_task

RICH = cc.Policy(budget=cc.Budget("unlimited"), minimum_patients=0)
BINS = {"HR": [60, 80, 90, 100], "Temp": [36, 38, 39], "MAP": [65, 80]}
ALIKE = [f"G[0,{last}] HR {sign} {limit}" for last in (1, 2) for sign in (">=", "<") for limit in (80, 90)]
RULES = {
    "nothing": [],
    "one": ["G[0,2] HR >= 90"],
    "another": ["F[0,1] Temp > 38"],
    "both": ["G[0,2] HR >= 90", "F[0,1] Temp > 38"],
    "many that are alike": ALIKE,
    "more than a list holds": [*ALIKE, "F[0,1] Temp > 38", "G[0,2] HR >= 60 -> F[0,2] MAP < 65"],
}


def ask(site, question, release):
    answer = Asker([site], target="", release=release, price="10000000").put(site, question)
    assert isinstance(answer, Answer), answer
    return read_sum(answer.body, question).astype(np.int64)


def draw_reports(rules, most, clients=25_000):
    """What a fifth of so many patients with these rules report through the gate, each by itself."""
    task = cc.RuleDiscovery(
        outcome="sepsis", prevalence=0.1, bins=BINS, limits=2, horizon=2, trust="local"
    ).task
    question = AskRuleReports(
        query="", target="", part=RulePart(task, "skeletons"), most=most, epsilon="2", group=0
    )
    histogram = ask(cc.Site("north", cc.RuleSets([rules] * clients), RICH), question, "local")
    return np.repeat(np.arange(len(histogram)), histogram)


def audit_reports(most):
    """Among these pairs are the worst there are: all answers of the one are none of the other's."""
    reports = [draw_reports(rules, most) for rules in RULES.values()]
    points = tails_and_points(np.unique(np.concatenate(reports)))
    pairs = [(one, other) for place, one in enumerate(reports) for other in reports[:place]]
    return max(max(bound_epsilon(*pair, points), learn_epsilon(*pair)) for pair in pairs)


@pytest.mark.parametrize("most", [1, 4])
def test_a_report_costs_what_it_claims_whatever_rules_a_patient_has(most):
    assert 1 < audit_reports(most) <= 2


def test_reports_that_are_amplified_as_if_lists_were_longer_are_caught(monkeypatch):
    plain = local_reports._amplify
    monkeypatch.setattr(local_reports, "_amplify", lambda epsilon, entries: plain(epsilon, 4 * entries))
    assert audit_reports(1) > 2


def ask_histograms(values, epsilon, cells=1_000, times=15):
    """What so many hospitals answer under `noised` of two attributes with so many cells: a row for each cell."""
    edges = tuple(float(edge) for edge in range(1, cells))
    rows = [{"a": value, "b": value} for value in values] or [{"a": None, "b": None}]
    table = cc.Records.from_rows(rows, schema={"a": "number", "b": "number"})
    attributes = tuple(Attribute(name, edges) for name in ("a", "b"))
    question = AskCounts(totals=False, query="", target="", attributes=attributes, noise=Laplace(epsilon))
    answers = [ask(cc.Site("north", table, RICH), question, "noised") for _ in range(times)]
    return np.concatenate([answer.reshape(2, -1).T[1:] for answer in answers])  # the first cell: missing


EVERYWHERE = [place + 0.5 for place in range(1_000)]
"""A patient in every cell, who is in one cell of each attribute: neighbours wherever one looks."""


@pytest.mark.parametrize("epsilon", ["1", "3"])
def test_noised_histograms_cost_what_they_claim(epsilon):
    one, other = (ask_histograms(values, epsilon) for values in ([], EVERYWHERE))
    claim = float(Fraction(epsilon))
    sums = [seen.sum(axis=1) for seen in (one, other)]
    by_sums = bound_epsilon(*sums, tails_and_points(range(-3, 6)))
    by_all = learn_epsilon(np.c_[one, sums[0]], np.c_[other, sums[1]])
    assert 0.4 * claim < max(by_sums, by_all) <= claim


def test_noise_for_one_attribute_where_two_are_asked_about_is_caught(monkeypatch):
    plain = noised_release.add_laplace
    monkeypatch.setattr(noised_release, "add_laplace", lambda words, epsilon, _: plain(words, epsilon, 1))
    one, other = (ask_histograms(values, "1") for values in ([], EVERYWHERE))
    assert learn_epsilon(one, other) > 1


# Private experts: one expert who says nothing, and one who says the most there is, seen by the house and one hospital.


def make_question(kind, steps, **more):
    """A question about so many steps of a public stay."""
    inputs, asked = np.zeros((steps, 2), dtype=np.int16), np.arange(steps)
    stays = PublicStays(pack(inputs), pack(np.array([steps])), pack(asked))
    return kind(query="", target="", task=make_task(), experts=40, stays=stays, **more)


def draw_private(question, moved, draws, circle=(3, 1)):
    """What the hospitals that do not collude release together, [draw, step], where one patient moved the sums so."""
    manifest = SimpleNamespace(participants=range(circle[0]), colluders=circle[1], largest=1 << 50)
    honest = circle[0] - circle[1]
    release, steps = find_release("private"), question.numbers
    zeros = np.zeros(draws * steps, dtype=np.int64)
    sums = [release.protect(question, zeros, manifest) for _ in range(honest)]
    return sum(sums).reshape(draws, steps) + moved


def test_one_step_of_private_experts_costs_what_it_claims():
    question = make_question(AskExpertLabels, 1, noise=Laplace("1"))
    largest = question.l1
    bound = question.task.bound
    said = [
        _sum_on_grid(np.array([[answer]]), bound)[0] for answer in (0, math.nan, math.inf, -math.inf, 1e30)
    ]
    assert max(said) - min(said) == largest  # whatever a network says
    one, other = (draw_private(question, moved, 40_000) for moved in (0, largest))
    events = tails_and_points(range(-2 * largest, 4 * largest, largest // 2))
    assert 0.4 < bound_epsilon(one[:, 0], other[:, 0], events) <= 1
    assert learn_epsilon(one, other) <= 1
    halved = draw_private(question, 2 * largest, 40_000)  # as if an expert could say twice as much
    assert learn_epsilon(one, halved) > 1


def test_labels_of_private_experts_cost_what_they_claim():
    steps, delta = 6, Fraction(1, 1000)
    question = make_question(
        AskExpertLabels, steps, noise=Gaussian(str(8 * steps * _find_sensitivity(4) ** 2))
    )
    claim = epsilon_from_rho(
        price_gaussian_shares(question.sensitivity.squared, question.variance, question.numbers, 3, 1), delta
    )
    one, other = (
        draw_private(question, moved, 20_000) for moved in (0, _find_sensitivity(question.task.bound))
    )
    # The direction in which an expert moves the answers most: whoever knows the mechanism looks along it.
    rows = [np.c_[x, x.sum(axis=1)] for x in (one, other)]
    assert 0.05 < learn_epsilon(*rows, delta=float(delta)) <= claim
    beyond = one[1::2] + 4 * _find_sensitivity(question.task.bound)
    assert learn_epsilon(rows[0], np.c_[beyond, beyond.sum(axis=1)], delta=float(delta)) > claim
