"""What rules say of the outcome: no prediction without it, no impossible rule, shares and intervals that hold."""

from __future__ import annotations

import math
from fractions import Fraction
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import ModelError, StudyError
from concilium.models.explanation import say_risk_interval
from concilium.models.private_descent import descend
from concilium.privacy.accounting import rho_from_pure
from concilium.privacy.local_reports import ReportChannel
from concilium.protocol.cohort import View
from concilium.protocol.questions import Gaussian
from concilium.temporal.discovery_body import DiscoveryBody, FoundRule, OutcomeModel, write_table
from concilium.temporal.discovery_conversations import _part_conditions
from concilium.temporal.discovery_search import LevelSearch, fill_parameters, make_rule
from concilium.temporal.evaluation import count_points
from concilium.temporal.formula import Limit
from concilium.temporal.limit_pairs import PairBins, is_vacuous
from concilium.temporal.outcome_fit import begin_descent, choose_fitted, end_descent, find_effects
from concilium.temporal.outcome_questions import (
    CELLS,
    EVENLY,
    HOURS,
    AskOutcomeHours,
    AskOutcomeReports,
    AskRuleGradient,
    AskRuleOutcomes,
    _judge_rules,
    count_hours,
    find_judged_windows,
    match_controls,
)
from concilium.temporal.rule_grammar import STRUCTURE, RuleGrammar, abstract
from concilium.temporal.rule_questions import AskRuleCounts, prepare
from concilium.temporal.rule_task import ALL_RELATIONS, RulePart, open_part

parse = cc.stl.parse
RICH = cc.Policy(budget=cc.Budget("unlimited"))
BINS = {"HR": [60.0, 80.0, 100.0], "Temp": [36.0, 37.0, 38.0]}
STUDY = {"outcome": "sepsis", "bins": BINS, "window": "6h", "prevalence": 0.1, "limits": 1, "most_rules": 10}
NORMAL = {"HR": [72, 74, 71, 73, 75, 72], "Temp": [36.6, 36.7, 36.6, 36.5, 36.6, 36.7]}
SEPTIC = {"HR": [121, 124, 126, 128, 129, 130], "Temp": [38.9, 39.1, 39.2, 39.4, 39.5, 39.5]}


def make_series(count, seed, ill=0.3, hours=40, rise=0.7):
    """Stays of every length; heart rate and temperature rise six hours before sepsis, in this share of patients."""
    dice = np.random.default_rng(seed)
    lengths = dice.integers(12, hours, count)
    septic = dice.random(count) < ill
    onset = np.where(septic, (lengths * dice.uniform(0.5, 1.0, count)).astype(int), 10 * hours)
    later = (np.arange(hours)[:, None] >= onset - 6) & (dice.random(count) < rise)
    return cc.Series(
        {
            "HR": dice.normal(78, 9, (hours, count)) + 25 * later,
            "Temp": dice.normal(36.8, 0.4, (hours, count)) + 1.4 * later,
            "sepsis": (np.arange(hours)[:, None] >= onset).astype(float),
        },
        lengths=lengths,
    )


def ask(question, series):
    question.check("private")
    view = View(cc.Patients.of(series).selectable, cc.Policy(), parts={"series": series})
    return question.compute(view.select("", ""))


TASK = cc.RuleDiscovery(**STUDY).task
RULES = ("G[0,5] HR >= 80", "F[3,5] Temp >= 38", "G[0,5] HR >= 60 -> F[0,5] Temp >= 37")


# Without an outcome there is no prediction


@pytest.fixture(scope="module")
def given_rules():
    clients = [["G[0,5](HR >= 60 and HR < 100)", "G[0,5] Temp < 38"]] * 80
    study = {"bins": BINS, "limits": 2, "horizon": 5, "prevalence": 0.5, "epsilon": 8.0, "most_rules": 5}
    return cc.RuleDiscovery("sepsis", **study).fit([cc.Site(n, cc.RuleSets(clients), RICH) for n in "abc"])


def test_rules_without_an_outcome_refuse_to_predict_and_tell_a_similarity(given_rules):
    for asked in (given_rules.predict, given_rules.predict_proba, lambda rows: given_rules.explain(rows[0])):
        with pytest.raises(ModelError, match=r"predicts nothing: it was made from rules without an outcome"):
            asked([NORMAL])
    like, unlike = given_rules.similarity([NORMAL, SEPTIC])
    assert like == 1
    assert unlike == 0
    assert np.isnan(given_rules.similarity([{"HR": [None]}])).all()
    assert any("predicts nothing" in warning for warning in given_rules.card.warnings)
    with pytest.raises(StudyError, match="say nothing of an outcome"):
        cc.RuleDiscovery("sepsis", threshold="cost 5:1")


def test_shares_are_those_of_the_rules_with_their_numbers():
    """Of a form that everybody has, nobody may have the median numbers."""
    dice = np.random.default_rng(1)
    clients = [[f"G[0,5] HR >= {dice.choice([60, 80, 100], p=[0.3, 0.4, 0.3])}"] for _ in range(900)]
    study = {"bins": BINS, "limits": 1, "horizon": 5, "prevalence": 0.5, "epsilon": 8.0, "most_rules": 5}
    sites = [cc.Site(n, cc.RuleSets(clients[i::3]), RICH) for i, n in enumerate("abc")]
    model = cc.RuleDiscovery("sepsis", **study).fit(sites)
    (rule,) = model.rules_
    truth = np.mean([own == [rule.text] for own in clients])
    assert rule.prevalence > 0.95
    assert rule.share == pytest.approx(truth, abs=0.05)
    assert rule.share_interval[0] <= truth <= rule.share_interval[1]
    assert f"{rule.share:.1%}" in model.text()
    assert f"{rule.prevalence:.2%}" not in model.text()
    assert "how many have these rules with these numbers" in str(model.plan())
    assert all(site.ledger.spent() <= model.rho for site in sites)


def test_local_reports_tell_what_rules_say_of_the_outcome():
    series = [make_series(600, seed, ill=0.5, hours=14, rise=1.0) for seed in range(3)]
    sites = [cc.Site(name, own, RICH) for name, own in zip("abc", series, strict=True)]
    model = cc.RuleDiscovery(**{**STUDY, "trust": "local", "epsilon": 12.0}).fit(sites)
    risks = model.predict_proba([NORMAL, SEPTIC])[:, 1]
    assert risks[0] < 0.5 < risks[1]
    assert len([rule for rule in model.rules_ if rule.weight]) <= 2  # one for each variable
    assert all(site.ledger.spent() == rho_from_pure(12) for site in sites)


# No rule that cannot be


def test_pairs_of_limits_are_counted_together_and_never_cross():
    grammar = RuleGrammar({"WBC": (4, 8, 10, 12, 14)}, [(0, 5)], limits=3)
    structure = parse("G[?](WBC < ? and WBC >= ?)").canonical()
    interval, pair = grammar.find_bins(structure)
    assert isinstance(pair, PairBins)
    assert all(upper > lower for upper, lower in map(pair.choose, range(len(pair) - 1)))
    either = grammar.find_bins(parse("G[?](WBC < ? or WBC >= ?)").canonical())[1]
    assert all(upper < lower for upper, lower in map(either.choose, range(len(either) - 1)))
    # Half have 4 to 10, half 10 to 14: one by one the medians would be 10 and 10.
    numbers = [(10.0, 4.0)] * 500 + [(14.0, 10.0)] * 510
    counts = np.bincount(pair.place(numbers), minlength=len(pair))
    rule = make_rule(structure, 1010, 1.0, 1010, 1.0)
    (filled,) = fill_parameters([rule], [(interval, pair)], np.append([1010, 0], counts), [1.0], 0.5)
    assert str(filled.formula) in ("G[0,5](WBC >= 4 and WBC < 10)", "G[0,5](WBC >= 10 and WBC < 14)")


@given(st.lists(st.integers(-50, 50), min_size=11, max_size=11), st.floats(0.1, 0.9))
@settings(max_examples=60, deadline=None)
def test_noise_never_makes_an_empty_interval(counts, quantile):
    for together in (True, False):
        pair = PairBins((4.0, 8.0, 10.0, 12.0, 14.0), together)
        chosen, candidates = pair.find_middle(np.array(counts), 10.0, quantile, 1.96)
        assert chosen in candidates
        if chosen < len(pair.pairs):
            upper, lower = pair.choose(chosen)
            assert (upper > lower) is together


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("G[0,2](score >= 1 and score <= 1)", True),  # as the paper writes "= 1"
        ("G[0,2](score < 1 or score > 1)", True),
        ("G[0,2](score >= 1 and score <= 0)", False),  # which no pair stands for
    ],
)
def test_limits_may_be_one_number_and_no_pair_is_made_up(text, complete):
    structure = abstract(parse(text), STRUCTURE)
    grammar = RuleGrammar({"score": (0, 1, 2)}, [(0, 2)], relations=ALL_RELATIONS, limits=2, wide=True)
    interval, pair = grammar.find_bins(structure)
    limits = sorted(
        (part for part in parse(text).walk() if isinstance(part, Limit)), key=lambda one: one.relation
    )
    cell = pair.place([tuple(one.number for one in limits)])
    counts = np.append([100, 0], 100 * (np.arange(len(pair)) == cell))
    rule = make_rule(structure, 100, 1.0, 100, 1.0)
    (filled,) = fill_parameters([rule], [(interval, pair)], counts, [1.0], 0.5)
    assert (str(filled.formula) == str(parse(text).canonical())) is complete
    assert bool(filled.formula.open_places) is not complete


@pytest.mark.parametrize(
    ("text", "vacuous"),
    [
        ("G[9,10](WBC < 10 and WBC >= 10)", True),
        ("G[9,10](WBC < 12 and WBC >= 10)", False),
        ("G[0,5] WBC < 10 and G[3,8] WBC >= 10", True),
        ("G[0,5] WBC < 10 and G[6,8] WBC >= 10", False),
        ("F[0,5] WBC < 10 and F[0,5] WBC >= 10", False),
        ("G[0,5](HR < 90 or HR >= 80)", True),
        ("G[0,5](HR < 80 or HR >= 90)", False),
        ("G[0,5](HR <= 80 and HR >= 80)", False),
    ],
)
def test_rules_that_cannot_hold_or_cannot_fail_are_known(text, vacuous):
    assert is_vacuous(parse(text).canonical()) == vacuous


def test_intervals_side_by_side_do_not_add_up():
    reach = {
        "G[0,5] HR >= 60 -> F[0,5] MAP < 65": 6,
        "G[0,5] HR >= 60 and F[2,3] MAP < 65": 6,
        "F[0,2] G[0,3] HR >= 60": 6,
        "(G[0,2] HR > 60) U[0,3] (F[0,4] MAP < 65)": 8,
    }
    for text, points in reach.items():
        assert count_points(parse(text), 1.0) == points


# Windows


def test_controls_are_judged_at_the_hours_at_which_the_outcome_begins():
    series = make_series(6000, 3, ill=0.3, hours=90)
    counts = count_hours(series, "sepsis", 6)
    weights = match_controls(counts, 0.0)
    hours = {}
    for name, chosen in (("matched", weights), ("last", ())):
        ends, positive = find_judged_windows(series, "sepsis", 6, chosen)
        assert (ends[~positive] >= 6).all()
        assert (series["sepsis"][ends - 1, np.arange(6000)] == positive).all()
        shares = [
            np.bincount(np.searchsorted(HOURS, ends[positive == ill]), minlength=11) / (positive == ill).sum()
            for ill in (True, False)
        ]
        hours[name] = np.abs(shares[0] - shares[1]).sum() / 2
    assert hours["matched"] < 0.1 < hours["last"]
    assert match_controls(counts, 1e6) == EVENLY


def test_a_patients_window_is_its_own_whoever_else_is_there():
    series = make_series(40, 4)
    weights = match_controls(count_hours(series, "sepsis", 6), 0.0)
    ends, _ = find_judged_windows(series, "sepsis", 6, weights)
    rows = np.arange(40) != 7
    without = cc.Series.from_stays(
        series.take(rows).stays, series.lengths[rows], step="1h", ids=range(1, 40), points=series.points
    )
    assert find_judged_windows(without, "sepsis", 6, weights)[0].tolist() == ends[rows].tolist()


# What one patient can change


@given(st.integers(0, 10**6), st.integers(0, 11))
@settings(max_examples=10, deadline=None)
def test_questions_about_the_outcome_move_by_one_patient_no_more_than_is_charged(seed, left_out):
    series = make_series(12, seed)
    common = {"query": "", "target": "", "task": TASK, "noise": Gaussian("1")}
    questions = [
        AskOutcomeHours(**common),
        AskRuleOutcomes(**common, rules=RULES, weights=EVENLY),
        AskRuleGradient(
            **common,
            rules=RULES,
            weights=EVENLY,
            centres=(0.2, 0.5, 1.0),
            at=(9.0, 5.0, -5.0, 3.0),
            norm=0.7,
            places=12,
        ),
    ]
    fewer = series.take(np.arange(12) != left_out)
    for question in questions:
        moved = ask(question, series) - ask(question, fewer)
        assert (moved.astype(float) ** 2).sum() <= question.sensitivity.squared


def test_a_gradient_is_that_of_the_logistic_loss():
    series = make_series(150, 8)
    votes, positive = _judge_rules(prepare(series, TASK), TASK, list(map(parse, RULES)), EVENLY)
    centres, at = np.array([0.3, 0.4, 0.9]), np.array([-0.5, 0.7, -0.2, 0.1])
    rows = np.column_stack([np.ones(len(votes)), np.where(votes < 0, 0, votes - centres)])

    def loss(w):
        return np.logaddexp(0, rows @ w).sum() - (rows @ w)[positive].sum()

    slope = [(loss(at + step) - loss(at - step)) / 2e-5 for step in 1e-5 * np.eye(4)]
    question = AskRuleGradient(
        query="", target="", task=TASK, rules=RULES, weights=EVENLY, centres=tuple(centres), at=tuple(at),
        norm=10.0, places=16, noise=Gaussian("1"),
    )  # fmt: skip
    assert ask(question, series) / 2**16 == pytest.approx(slope, abs=1e-3)


def test_reports_list_how_each_rule_stands_to_the_outcome():
    series = make_series(30, 5)
    question = AskOutcomeReports(query="", target="", task=TASK, rules=RULES, epsilon="1", group=3)
    view = View(cc.Patients.of(series).selectable, cc.Policy(), parts={"series": series})
    listed = question.list_answers(view.select("", ""))
    votes, positive = _judge_rules(prepare(series, TASK), TASK, list(map(parse, RULES)), EVENLY)
    counts = np.bincount(listed.templates, minlength=12).reshape(3, 4)
    for rule in range(3):
        for cell, (ill, holds) in enumerate([(True, 1), (True, 0), (False, 1), (False, 0)]):
            assert counts[rule, cell] == ((votes[:, rule] == holds) & (positive == ill)).sum()
    assert question.channel == ReportChannel(12, 3, Fraction(1))


# Intervals and tests


def test_intervals_hold_with_the_noise_that_sites_really_add():
    """Where a price is high, the least noise of the sites is more than the price asks for."""
    study = cc.RuleDiscovery(**{**STUDY, "window": None, "epsilon": 10**4, "horizon": 5})
    house = cc.House([cc.Site(name, cc.RuleSets([["G[0,5] HR >= 80"]]), RICH) for name in "abcdef"])
    with house.open(study.draft()) as run:
        search = study.open_search(partners=run)
        real = run.variance(Fraction(10**4), 1) * run.noise_factor
    assert isinstance(search, LevelSearch)
    assert (
        search.find_variance(Fraction(10**4), 1)
        == real
        > 10 * study.open_search().find_variance(Fraction(10**4), 1)
    )


def test_odds_ratios_are_covered_and_silent_rules_stay_silent():
    """20 rules without information, and one with an odds ratio of 3, counted with noise, 300 times."""
    dice = np.random.default_rng(2)
    noise, ill, well = 12.0, 600, 4000
    covered = alarms = inside = 0
    for _ in range(300):
        rows = []
        for rule in range(21):
            share = 0.3
            odds = 3.0 if rule == 0 else 1.0
            among_ill = odds * share / (1 - share + odds * share)
            held, held_well = dice.binomial(ill, among_ill), dice.binomial(well, share)
            rows.append([held, ill - held, held_well, well - held_well])
        counts = np.rint(np.array(rows) + dice.normal(0, noise, (21, 4))).astype(np.int64)
        effects = find_effects(counts, [noise] * 21)
        low, high = effects[0].odds_interval
        covered += low <= 3.0 <= high
        truth = (0.3 * well + ill * 0.5625) / (ill + well)
        inside += effects[0].share_interval[0] <= truth <= effects[0].share_interval[1]
        alarms += any(effect.tells for effect in effects[1:])
        assert effects[0].tells
    assert 0.92 <= covered / 300 <= 0.99
    assert inside / 300 >= 0.92
    assert alarms / 300 <= 0.09


# The model


@pytest.fixture(scope="module")
def weighed():
    sites = [cc.Site(name, make_series(250, seed), RICH) for seed, name in enumerate("abc")]
    model = cc.RuleDiscovery(**{**STUDY, "epsilon": 10.0})
    return model.fit(sites), sites


def test_risks_are_those_of_a_logistic_regression_on_the_same_votes(weighed):
    from sklearn.linear_model import LogisticRegression

    model, sites = weighed
    assert all(site.ledger.spent() <= model.rho for site in sites)
    used = [rule for rule in model.rules_ if rule.weight is not None]
    learning = prepare(make_series(2100, 20), model.task)
    fresh = prepare(make_series(3000, 21), model.task)
    formulas = [rule.formula for rule in used]
    votes, positive = _judge_rules(learning, model.task, formulas, model.body.hours)
    rows, truth = _judge_rules(fresh, model.task, formulas, model.body.hours)
    oracle = LogisticRegression(C=1.0).fit(np.maximum(votes, 0), positive)
    found = model.find_outcomes(cc.Patients(series=make_series(3000, 21)))
    risks = model.predict_proba(found.asked)[:, 1]
    best = oracle.predict_proba(np.maximum(rows, 0))[:, 1]

    def auc(score, labels):
        ranks = np.argsort(np.argsort(score, kind="stable"), kind="stable")
        return (ranks[labels].mean() - (labels.sum() - 1) / 2) / (~labels).sum()

    labels = np.array(found.truth, dtype=bool)
    assert auc(risks + 1e-9 * np.arange(len(risks)), labels) > auc(best, truth) - 0.03
    assert risks.mean() == pytest.approx(labels.mean(), abs=0.03)
    assert risks.max() > 0.6
    assert risks.min() < 0.25


def test_no_rule_argues_against_what_it_says_by_itself(weighed):
    """Rules repeat each other: of two that say nearly the same, one would turn."""
    weights = [(rule.weight, rule.odds) for rule in weighed[0].rules_ if rule.weight]
    assert len(weights) > 3
    assert all((weight > 0) == (odds > 1) for weight, odds in weights)


def test_a_sign_holds_a_coefficient_at_nothing_and_leaves_others_alone():
    def run(signs):
        rows, target = np.array([[1.0, 0.95], [0.95, 1.0]]), np.array([1.0, -0.5])
        steps = descend(ask, np.array([0.1, 0.1]), np.eye(2), np.ones(2), 1e-9, 400, signs)
        w = next(steps)
        try:
            while True:
                w = steps.send(rows @ w - target)
        except StopIteration as end:
            return end.value

    def ask(w):
        return (yield w)

    free, held = run(None), run(np.array([0.0, 1.0]))
    assert free[1] < -1
    assert held == pytest.approx([1.0, 0.0], abs=0.02)


def test_septic_courses_are_at_more_risk_than_normal_ones(weighed):
    model, _ = weighed
    normal, septic = model.predict_proba([NORMAL, SEPTIC])[:, 1]
    assert normal < 0.3 < 0.6 < septic
    explanation = model.explain(SEPTIC)
    assert explanation.prediction == 1
    low, high = explanation.interval
    assert 0.3 < low < septic < high < 1
    assert f"{say_risk_interval((low, high))};" in explanation.sentences[0]
    assert "It includes the noise." in str(explanation)
    healthy = model.explain(NORMAL)
    assert healthy.interval[0] < 1 - normal < healthy.interval[1]
    assert f"{say_risk_interval((1 - healthy.interval[1], 1 - healthy.interval[0]))};" in healthy.sentences[0]
    assert "in the latest" in str(explanation)
    assert sum(reason.moved for reason in explanation.reasons) == pytest.approx(
        math.log(septic / (1 - septic)) - model.body.intercept, abs=1e-6
    )


def test_a_model_file_without_errors_says_that_it_has_no_interval(weighed):
    model, _ = weighed
    old = msgspec.structs.replace(model.body, intercept_error=None)
    said = cc.RuleDiscovery.of(old, model.card).explain(SEPTIC)
    assert said.interval is None
    assert "There is no interval of this risk" in str(said)


@pytest.mark.parametrize("noise", [0.0005, 0.02])
@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_intervals_of_a_noisy_fit_cover_at_their_level(noise, alike):
    """Of rules that are independent, and of two that agree for half of the patients and more."""
    true, shares, patients, rounds = np.array([-1.0, 0.9, 0.6, 0.5]), (0.3, 0.5, 0.2), 2000, 20
    covered = []
    for seed in range(60):
        draw = np.random.default_rng(seed)
        votes = (draw.random((patients, 3)) < shares).astype(float)
        votes[:, 1] = np.where(draw.random(patients) < alike, votes[:, 0], votes[:, 1])
        truth = true[0] + votes @ true[1:]
        ill = draw.random(patients) < 1 / (1 + np.exp(-truth))
        counts = [[(rule[ill == ends] == holds).sum() for ends, holds in CELLS] for rule in votes.T]
        effects = find_effects(np.array(counts), [0.0] * 3)
        rows = np.column_stack([np.ones(patients), votes - [effect.share for effect in effects]])

        def ask(at, rows=rows, ill=ill, draw=draw):
            off = 1 / (1 + np.exp(-rows @ at)) - ill
            return rows.T @ off / patients + draw.normal(0, noise, len(at))
            yield

        begun = begin_descent(effects, ill.mean())
        descent = descend(ask, begun.start, begun.hessian, begun.doubt, noise, rounds)
        with pytest.raises(StopIteration) as ended:
            next(descent)
        fitted = end_descent(begun, ended.value.value, effects, noise, rounds, patients)
        error = np.sqrt(((rows * fitted.errors) ** 2).sum(axis=1))
        said = rows @ [fitted.intercept, *fitted.weights]
        covered.append(np.mean(np.abs(said - truth) <= 1.96 * error))
    assert 0.92 <= np.mean(covered) <= 0.99


def test_rules_come_by_what_they_say_of_the_outcome(weighed):
    model, _ = weighed
    telling = [rule.tells for rule in model.rules_]
    assert telling == sorted(telling, reverse=True)
    near = [max(math.log(r.odds_interval[0]), -math.log(r.odds_interval[1])) for r in model.rules_ if r.tells]
    assert near == sorted(near, reverse=True)
    assert "odds ratio" in model.text()


def test_a_short_course_is_the_end_of_a_window_and_old_values_are_said(weighed):
    model, _ = weighed
    last = {name: values[-3:] for name, values in SEPTIC.items()}
    padded = {name: [None] * 3 + values for name, values in last.items()}
    assert model.predict_proba([last]).tolist() == model.predict_proba([padded]).tolist()
    uneven = {"HR": SEPTIC["HR"], "Temp": SEPTIC["Temp"][-2:]}
    same = {"HR": SEPTIC["HR"], "Temp": [None] * 4 + SEPTIC["Temp"][-2:]}
    assert model.predict_proba([uneven]).tolist() == model.predict_proba([same]).tolist()
    stale = model.explain({"HR": [120, 121, None, None], "Temp": [39, 39, 39, 39]})
    assert "HR was last measured 2 hours before, and carried forward." in str(stale)


def test_a_patients_picture_shades_each_window_where_the_rule_holds_and_fails(weighed):
    model, _ = weighed
    root = ElementTree.fromstring(model.draw_patient(SEPTIC, most=2))
    space = "{http://www.w3.org/2000/svg}"
    used = sorted((rule for rule in model.rules_ if rule.weight), key=lambda rule: -abs(rule.weight))[:2]
    truths = [
        bool(rule.formula.satisfied(cc.Series({n: np.array(v)[:, None] for n, v in SEPTIC.items()}))[0])
        for rule in used
    ]
    captions = [text.text for text in root.findall(f"{space}text") if text.get("font-weight") == "600"]
    assert [caption.startswith("holds: ") for caption in captions] == truths
    shades = [rect.get("fill") for rect in root.findall(f"{space}rect") if rect.get("opacity")]
    panels = [truth for rule, truth in zip(used, truths, strict=True) for _ in rule.formula.variables]
    assert [shade == "#0b5c6b" for shade in shades] == panels
    assert len(root.findall(f"{space}circle")) == 6 * len(panels)
    assert model.draw_patient(SEPTIC)._repr_svg_().startswith("<svg")  # for notebooks


def test_a_patients_picture_begins_with_what_can_be_judged(weighed):
    model, _ = weighed
    for name in NORMAL:
        picture = ElementTree.fromstring(model.draw_patient({name: SEPTIC[name]}, most=1))
        assert any((text.text or "").startswith(("holds: ", "fails: ")) for text in picture.iter())


def test_a_page_has_the_answer_above_the_picture(weighed, tmp_path):
    model, page = weighed[0], tmp_path / "patient.html"
    model.save(tmp_path / "model.json")
    values = [f"{name}={','.join(map(str, own))}" for name, own in SEPTIC.items()]
    said = CliRunner().invoke(app, ["consult", str(tmp_path / "model.json"), *values, "--picture", str(page)])
    assert said.exit_code == 0
    written = page.read_text()
    assert written.index(said.output.splitlines()[0]) < written.index(model.draw_patient(SEPTIC))


# A search for what tells the outcome


def make_rare(count, seed):
    """One in ten falls ill, and half of these have a fever first: fewer than one in twenty patients."""
    dice = np.random.default_rng(seed)
    ill = dice.random(count) < 0.1
    fever = ill & (dice.random(count) < 0.6)
    onset = np.where(ill, 12, 99)
    hours = np.arange(16)[:, None]
    return cc.Series(
        {
            "HR": dice.normal(78, 3, (16, count)),
            "Temp": np.where(fever & (hours >= onset - 3), 39.0, 36.5) + dice.normal(0, 0.1, (16, count)),
            "sepsis": (hours >= onset).astype(float),
        }
    )


def test_counts_by_outcome_add_up_to_those_of_all_and_cost_the_same():
    series = make_rare(60, 1)
    both = cc.RuleDiscovery(**STUDY, search="discrimination").task
    counts = {}
    for task in (TASK, both):
        question = AskRuleCounts(
            query="", target="", part=RulePart(task, "skeletons"), most=10, noise=Gaussian("1")
        )
        counts[task.by_outcome] = ask(question, series)
        assert question.sensitivity.squared == min(10, open_part(question.part).size) + 1
        fewer = ask(question, series.take(np.arange(60) != 5))
        assert ((counts[task.by_outcome] - fewer) ** 2).sum() <= question.sensitivity.squared
    ill, well = counts[True].reshape(2, -1)
    assert (ill + well).tolist() == counts[False].tolist()
    assert ill[-1] == series["sepsis"].any(axis=0).sum()
    for wrong in ({"trust": "local"}, {"window": None}):
        with pytest.raises(StudyError, match="search = 'discrimination' needs a window"):
            cc.RuleDiscovery(**{**STUDY, **wrong}, search="discrimination")


def test_what_only_the_ill_have_is_found_where_outcomes_are_told_apart():
    found = {}
    for search in ("prevalence", "discrimination"):
        sites = [cc.Site(name, make_rare(400, seed), RICH) for seed, name in enumerate("abc")]
        study = {**STUDY, "prevalence": 0.2, "epsilon": 10.0, "search": search, "clients": 1200}
        model = cc.RuleDiscovery(**study).fit(sites)
        assert all(site.ledger.spent() <= model.rho for site in sites)
        found[search] = {
            rule.structure for rule in model.rules_ if "Temp >= ?" in rule.structure and "F" in rule.structure
        }
    assert not found["prevalence"]
    assert "F[?] Temp >= ?" in found["discrimination"]
    assert model.rules_[0].odds > 1


def test_rules_that_nobody_can_be_judged_by_get_no_weight():
    telling, silent = [400, 100, 100, 400], [30, -10, -15, 20]
    effects = find_effects(np.array([telling, silent, telling]), [10.0] * 3)
    assert effects[1].surprise > 1
    assert choose_fitted(effects) == [0, 2]


@pytest.mark.parametrize("judged_by_many", [True, False])
def test_rules_that_noise_alone_could_be_are_left_out(judged_by_many):
    rules = [
        FoundRule(
            text=text, structure=text, prevalence=0.2, interval=(0.1, 0.3), share=0.5, share_interval=(0, 1)
        )
        for text in RULES[:2]
    ]
    counts = np.array([[300, 200, 500, 400] if judged_by_many else [9, 9, 9, 9], [4, -3, 6, 2]])
    kept, _ = _part_conditions(
        cc.RuleDiscovery(**STUDY),
        rules,
        rules,
        find_effects(counts, [10.0, 10.0]),
        OutcomeModel(None, EVENLY, 0.1),
    )
    assert [rule.text for rule in kept] == [rule.text for rule in (rules[:1] if judged_by_many else rules)]


def test_the_text_parts_rules_that_tell_from_those_that_may_not():
    rules = [
        FoundRule(
            text="F[0,5] HR >= 100", structure="F[?] HR >= ?", prevalence=0.5, interval=(0.4, 0.6), share=0.3
        )
        for _ in range(3)
    ]
    rules = [
        msgspec.structs.replace(
            rule, share_interval=(0.2, 0.4), odds=odds, odds_interval=interval, tells=tells
        )
        for rule, odds, interval, tells in zip(
            rules, (3.0, 1.2, 0.9), ((2.0, 4.5), (0.5, 3.0), (0.4, 2.0)), (True, False, False), strict=True
        )
    ]
    body = DiscoveryBody(
        outcome="sepsis", query="", trust="secure-sum", prevalence="1/20", epsilon="4", delta="1e-6", protects="x",
        patients=900, asked=[], step="1h", window="6h", carry="6h", rules=rules,
    )  # fmt: skip
    lines = write_table(body).splitlines()
    assert lines[0].startswith("sepsis: 3 rules of forms that at least 5% of about 900 patients have")
    assert [line.startswith("Noise and sampling leave open") for line in lines[1:5]] == [
        False,
        True,
        False,
        False,
    ]
