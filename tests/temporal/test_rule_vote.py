"""Votes of rules: weights against another library, unknown rules abstain, and judging on windows not seen."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from concilium.errors import ModelError
from concilium.evaluation.rule_judgement import judge_vote
from concilium.records.series import Series
from concilium.temporal.learning import LabelledWindows, LearnedRule, RuleVote, cast_votes
from concilium.temporal.parsing import parse

RULES = [parse("F[0,2] HR >= 100"), parse("G[0,2] Temp >= 37")]


def draw_windows(count, seed):
    draw = np.random.default_rng(seed)
    series = Series({"HR": draw.normal(95, 10, (3, count)), "Temp": draw.normal(37.4, 0.7, (3, count))})
    votes = cast_votes(RULES, series)
    chance = 1 / (1 + np.exp(-(votes @ [1.0, 0.7] - 1.5)))
    return LabelledWindows(series, draw.random(count) < chance, np.arange(count))


@pytest.mark.parametrize("strength", [1.0, 10.0])
def test_weights_are_those_of_scikit_learn(strength):
    windows = draw_windows(900, 1)
    vote = RuleVote.fit(RULES, windows, strength)
    peer = LogisticRegression(C=1 / strength, class_weight="balanced", tol=1e-10, max_iter=1000)
    peer.fit(cast_votes(RULES, windows.series), windows.labels)
    np.testing.assert_allclose(vote.weights, peer.coef_[0], atol=1e-5)
    assert vote.bias == pytest.approx(peer.intercept_[0], abs=1e-5)
    np.testing.assert_array_equal(
        vote.predict(windows.series), peer.predict(cast_votes(RULES, windows.series))
    )


def test_a_rule_that_would_vote_against_itself_is_left_out():
    windows = draw_windows(900, 2)
    vote = RuleVote.fit([*RULES, parse("F[0,2] HR < 90")], windows)
    assert vote.rules == tuple(RULES)
    assert all(weight >= 0 for weight in vote.weights)


def test_an_unknown_rule_abstains():
    series = Series({"HR": [[110.0, 80.0, np.nan]], "Temp": [[np.nan, np.nan, np.nan]]}, lengths=[1, 1, 1])
    rules = [parse("G[0,0] HR >= 100"), parse("G[0,0] Temp >= 37")]
    assert cast_votes(rules, series).tolist() == [[1, 0], [-1, 0], [0, 0]]
    vote = RuleVote(tuple(rules), (2.0, 1.0), -0.5)
    assert vote.score(series).tolist() == [1.5, -2.5, -0.5]
    assert vote.predict(series).tolist() == [True, False, False]
    assert str(vote).splitlines()[0].split() == ["+2.000", "G[0,0]", "HR", ">=", "100"]


def test_a_vote_is_judged_by_the_usual_figures():
    vote = RuleVote.fit(RULES, draw_windows(900, 3))
    other = draw_windows(4000, 4)
    figures = judge_vote(vote, other)
    predicted = vote.predict(other.series)
    sides = [np.mean(predicted[other.labels]), np.mean(~predicted[~other.labels])]
    assert figures["balanced_accuracy"] == pytest.approx(np.mean(sides))
    assert figures["sensitivity"] == pytest.approx(sides[0])
    hits = np.sum(predicted & other.labels)
    assert figures["f1"] == pytest.approx(2 * hits / (predicted.sum() + other.labels.sum()))
    assert figures["auc"] > 0.6


def test_bad_votes():
    windows = draw_windows(20, 5)
    with pytest.raises(ModelError, match="at least one rule"):
        RuleVote.fit([], windows)
    with pytest.raises(ModelError, match="of one kind"):
        RuleVote.fit(RULES, LabelledWindows(windows.series, np.ones(20, bool), windows.owners))
    for strength in (0, -1.0, float("nan")):
        with pytest.raises(ModelError, match="above zero"):
            RuleVote.fit(RULES, windows, strength)
    with pytest.raises(ModelError, match="2 rules and 1 weights"):
        RuleVote(tuple(RULES), (1.0,), 0.0)


def test_rules_vote_as_they_were_learned():
    windows = draw_windows(300, 6)
    learned = [LearnedRule(rule, 0.5) for rule in RULES]
    one, other = RuleVote.fit(learned, windows), RuleVote.fit(RULES, windows)
    assert (one.rules, one.weights, one.bias) == (other.rules, other.weights, other.bias)


def test_weights_of_any_size_are_judged():
    windows = draw_windows(300, 7)
    assert judge_vote(RuleVote(tuple(RULES), (1e6, 1.0), 0.0), windows)["auc"] is not None
