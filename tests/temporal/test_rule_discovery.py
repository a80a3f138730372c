"""What many patients have in common, asked of hospitals: found under each trust, charged once, never asked twice."""

from __future__ import annotations

import logging
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import concilium as cc
from agreed import Asker
from concilium.errors import HouseError, ModelError, StudyError
from concilium.evaluation.rule_judgement import judge_discovery
from concilium.privacy.accounting import rho_for_epsilon, rho_from_pure
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.cohort import View
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Answer, Refusal
from concilium.protocol.questions import Gaussian
from concilium.protocol.sums import read_sum
from concilium.records.series import find_windows
from concilium.temporal.discovery_body import FoundRule, find_judged
from concilium.temporal.discovery_conversations import _ask_counts
from concilium.temporal.outcome_fit import find_effects
from concilium.temporal.outcome_questions import AskRuleOutcomes
from concilium.temporal.parsing import say_formula
from concilium.temporal.rule_grammar import STRUCTURE, abstract
from concilium.temporal.rule_questions import (
    AskRuleBits,
    AskRuleCodes,
    AskRuleCounts,
    AskRuleReports,
    estimate_codes,
)
from concilium.temporal.rule_task import RulePart, open_part
from concilium.temporal.template_index import work_out_once

BINS = {"HR": [60, 80, 90, 100], "Temp": [36, 38, 39], "MAP": [65, 80]}
TEXTS = {
    "G[0,2] HR >= 90": 0.6,
    "F[0,1] Temp > 38": 0.4,
    "G[0,2](HR >= 90 and Temp > 38)": 0.25,
    "G[0,2] HR >= 60 -> F[0,2] MAP < 65": 0.15,
    "G[0,2] MAP >= 80": 0.02,
    "G[0,2] unknown > 3": 0.5,
}
RICH = cc.Policy(budget=cc.Budget("unlimited"))
STUDY = {"outcome": "sepsis", "prevalence": 0.1, "bins": BINS, "limits": 2, "horizon": 2, "most_rules": 10}


def make_clients(count, seed):
    dice = np.random.default_rng(seed)
    held = {text: dice.random(count) < share for text, share in TEXTS.items()}
    return [[text for text, who in held.items() if who[client]] for client in range(count)]


CLIENTS = [make_clients(400 + 100 * place, place) for place in range(3)]


def open_sites(clients=CLIENTS, policy=RICH, **options):
    return [
        cc.Site(name, cc.RuleSets(own), policy, **options)
        for name, own in zip(("north", "south", "east"), clients, strict=True)
    ]


def discover(sites=None, **more):
    return cc.RuleDiscovery(**{**STUDY, **more}).fit(cc.House(sites or open_sites()))


def find_truth(threshold=0.1):
    """The structures that enough clients have, of those that the study looks for, by brute force over all rules."""
    everybody = [own for site in CLIENTS for own in site]
    shares = {}
    for text in TEXTS:
        structure = str(abstract(cc.stl.parse(text), STRUCTURE))
        shares[structure] = np.mean([text in own for own in everybody])
    return {form: share for form, share in shares.items() if share >= threshold and "unknown" not in form}


def structures(model):
    return {rule.structure for rule in model.rules_}


# Each trust


def test_sums_find_what_is_common_with_the_share_of_patients():
    sites = open_sites()
    model = discover(sites, epsilon=8.0)
    truth = find_truth()
    assert structures(model) == set(truth)
    for rule in model.rules_:
        low, high = rule.interval
        assert low - 0.01 <= truth[rule.structure] <= high + 0.01
        assert low <= rule.prevalence <= high
        assert str(cc.stl.parse(rule.text).canonical()) == rule.text
    assert model.rules_[0].text == "G[0,2] HR >= 90"
    assert [rule.prevalence for rule in model.rules_] == sorted(
        (rule.prevalence for rule in model.rules_), reverse=True
    )
    assert all(site.ledger.spent() <= rho_for_epsilon(8, Fraction(1, 10**6)) for site in sites)
    assert "each patient, with all its rules" in model.body.protects
    assert model.body.patients == pytest.approx(1500, abs=60)


def test_noise_alone_makes_hardly_any_rule():
    """Of twenty thousand templates that nobody has half a one is accepted on average, by the noise that sums have."""
    silent = [[[] for _ in range(400)] for _ in range(3)]
    study = {**STUDY, "bins": {}, "limits": 2, "most_rules": 100, "prevalence": 0.1, "epsilon": 1.0}
    found = [len(discover(open_sites(silent), **study).rules_) for _ in range(2)]
    assert sum(found) <= 8  # 1 on average


def test_the_noise_of_a_sum_is_what_the_search_takes_it_for():
    deviations, spread = [], []
    for _ in range(40):
        house = cc.House(open_sites([own[:50] for own in CLIENTS]))
        model = cc.RuleDiscovery(**STUDY)
        with house.open(model.draft()) as run:
            question = _ask_counts(model, run, model.split_budget()["levels"], "skeletons", 11)
            deviations.append(math.sqrt(Fraction(question.noise.variance) * run.noise_factor))
            exact = sum(count(own[:50], question) for own in CLIENTS)
            spread += (run.ask(question) - exact).tolist()
    assert np.std(spread) == pytest.approx(deviations[0], rel=0.1)


def test_reports_find_what_very_many_have_and_are_paid_once():
    sites = open_sites()
    model = discover(sites, trust="local", epsilon=6.0)
    assert "G[?] HR >= ?" in structures(model)
    assert structures(model) <= set(find_truth())
    for site in sites:
        entries = [entry for entry in site.ledger.entries() if entry.kind == "rules.reports"]
        assert 2 <= len(entries) <= 3
        assert [entry.cost for entry in entries] == [rho_from_pure(6), *[0] * (len(entries) - 1)]
        assert site.ledger.spent() == rho_from_pure(6)
    assert model.card.release == "local"
    assert "from everybody" in model.body.protects


def test_paths_find_common_rules_and_claim_no_patients_privacy():
    sites = open_sites()
    model = discover(sites, trust="rule", epsilon=8.0, limits=1)
    assert "G[?] HR >= ?" in structures(model)
    assert all(site.ledger.epsilon() == math.inf for site in sites)
    assert "not one client" in model.body.protects
    assert all(not rule.formula.open_places for rule in model.rules_)


@pytest.mark.parametrize("trust", ["secure-sum", "local", "rule"])
def test_one_truth_and_one_judgement(trust):
    model = discover(trust=trust, epsilon=8.0, limits=1)
    figures = judge_discovery(model.rules_, [cc.RuleSets(own) for own in CLIENTS], Fraction(1, 10))
    right = structures(model) & (set(find_truth()) | {"G[?] unknown > ?"})
    assert figures.found == len(structures(model))
    assert figures.precision == pytest.approx(len(right) / figures.found)
    assert figures.coverage == pytest.approx(len(right) / figures.truth)
    assert figures.truth == len(find_truth()) + 1  # nobody looks for the unknown variable


# What a study cannot find


def test_too_few_patients_are_refused_before_anything_is_spent_where_their_number_is_public():
    for trust in ("secure-sum", "local", "rule"):
        with pytest.raises(StudyError, match=r"this study cannot work.*it would with \d+ clients"):
            cc.RuleDiscovery(
                **{**STUDY, "prevalence": 0.01, "epsilon": 0.1, "trust": trust}, clients=300
            ).draft()
        cc.RuleDiscovery(**{**STUDY, "epsilon": 8, "trust": trust}, clients=10**6).draft()


def test_where_their_number_is_not_public_a_thousandth_is_spent_to_find_out():
    sites = open_sites([own[:20] for own in CLIENTS])
    with pytest.raises(StudyError, match="a thousandth of the budget, and nothing else was asked"):
        discover(sites, prevalence=0.01, epsilon=0.5)
    for site in sites:
        assert 0 < site.ledger.spent() <= rho_for_epsilon("0.5", Fraction(1, 10**6)) / 1000


@pytest.mark.parametrize("trust", ["local", "rule"])
def test_where_reports_are_counted_anyway_it_is_found_out_for_nothing(trust):
    sites = open_sites([own[:20] for own in CLIENTS])
    with pytest.raises(StudyError, match="this study cannot work"):
        discover(sites, prevalence=0.01, epsilon=0.5, trust=trust)
    assert all(site.ledger.spent() == 0 for site in sites)


def test_patients_without_rules_and_rules_of_another_kind(caplog):
    silent = [[[] for _ in range(300)] for _ in range(3)]
    model = discover(open_sites(silent), epsilon=4.0)
    assert model.rules_ == []
    assert any("no rule was found" in warning for warning in model.card.warnings)
    assert np.isnan(model.similarity([{"HR": [90]}])).all()
    foreign = [[["G[0,2] lactate > 4"] for _ in range(300)] for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        assert discover(open_sites(foreign), epsilon=4.0).rules_ == []
    assert "no patient here has a rule that this study can find" in caplog.text
    with pytest.raises(HouseError, match="holds no rules of its patients"):
        discover([cc.Site(n, cc.Records.from_rows([{"y": 1}] * 20)) for n in "abc"])


def test_many_variables_are_looked_for_first():
    model = discover(open_sites(), epsilon=8.0, bins={}, limits=3)
    assert any("which of 50 variables" in asked for asked in model.body.asked)
    assert structures(model) == set(find_truth())


def test_rules_are_about_the_variables_that_a_study_states():
    own = {"variables": ["HR", "score", "Lactate", "zonk", "sepsis"], "bins": {"score": [2.0, 5.0]}}
    stated = cc.RuleDiscovery("sepsis", **own)
    assert stated.task.names == ("HR", "Lactate", "score")  # of a clinical range, or with bins
    assert stated.task.edges["score"] == (2.0, 5.0)
    assert stated._say_left_out() == ["left out: zonk (no clinical range is known: give bins)"]
    with pytest.raises(StudyError, match="no clinical range is known of zonk: give bins"):
        cc.RuleDiscovery("sepsis", variables=["zonk"])
    aged = cc.RuleDiscovery("sepsis", variables=["HR", "Age"], window="6h")
    assert (aged.task.names, aged.task.static_names) == (("HR",), ("Age",))


# What one patient can change


rules = st.lists(st.sampled_from(list(TEXTS)[:5]), max_size=5, unique=True)
populations = st.lists(rules, min_size=1, max_size=8)


def count(clients, question):
    view = View(
        cc.Patients.of(cc.RuleSets(clients)).selectable, cc.Policy(), parts={"rules": cc.RuleSets(clients)}
    )
    return question.compute(view.select("", ""))


@given(
    populations, rules, st.integers(1, 4), st.sampled_from(["clients", "names", "skeletons", "parameters"])
)
@settings(max_examples=60, deadline=None)
def test_no_patient_changes_more_than_is_charged(clients, one_more, most, stage):
    task = cc.RuleDiscovery(**STUDY).task
    about = ("G[?] HR >= ?", "F[?] Temp > ?") if stage == "parameters" else ()
    question = AskRuleCounts(
        query="", target="", part=RulePart(task, stage, (), about), most=most, noise=Gaussian("1")
    )
    question.check("private")
    moved = count([*clients, one_more], question) - count(clients, question)
    assert (moved**2).sum() <= question.sensitivity.squared
    assert len(moved) == question.shape[0]


def test_counts_are_those_of_the_templates_one_by_one():
    task = cc.RuleDiscovery(**STUDY).task
    part = RulePart(task, "variables", ("HR", "Temp"), ("G[?] ? ? ?", "F[?] ? ? ?"))
    question = AskRuleCounts(query="", target="", part=part, most=10, noise=Gaussian("1"))
    counted = count(CLIENTS[0], question)
    templates = open_part(part).templates
    for template, number in zip(templates, counted, strict=False):
        matched = [any(template.matches(cc.stl.parse(rule)) for rule in own) for own in CLIENTS[0]]
        assert number == sum(matched)
    assert counted[-1] == len(CLIENTS[0])
    assert {str(template) for template in templates} == {
        "G[?] HR ? ?",
        "G[?] Temp ? ?",
        "F[?] HR ? ?",
        "F[?] Temp ? ?",
    }


def test_reports_through_the_gate_are_those_of_the_channel():
    clients = [["G[0,2] HR >= 90"]] * 30_000
    (site,) = [cc.Site("north", cc.RuleSets(clients), RICH)]
    method = cc.RuleDiscovery(**{**STUDY, "trust": "local", "epsilon": 1, "limits": 1})
    question = AskRuleReports(
        query="", target="", part=RulePart(method.task, "skeletons"), most=2, epsilon="1", group=0
    )
    asker = Asker([site], target="", release="local", price="10000000")
    answer = asker.put(site, question)
    assert isinstance(answer, Answer)
    histogram = read_sum(answer.body, question).astype(np.int64)
    place = [str(form) for form in open_part(question.part).templates].index("G[?] ? ? ?")
    expected = np.array([float(p) for p in question.channel.find_probabilities([place])])
    assert histogram.sum() == pytest.approx(6000, abs=400)  # a fifth of them
    assert stats.chisquare(histogram, expected * histogram.sum()).pvalue > 1e-6
    assert max(expected) / min(expected) <= math.e * (1 + 1e-12)


# What a house may not ask twice


def ask_twice(asker, site, one, other):
    first = asker.put(site, one)
    assert isinstance(first, Answer), first
    return asker.put(site, other)


def test_a_group_reports_once_and_at_one_epsilon():
    method = cc.RuleDiscovery(**{**STUDY, "trust": "local"})
    skeletons = RulePart(method.task, "skeletons")

    def ask(group, epsilon="1", part=skeletons):
        return AskRuleReports(query="", target="", part=part, most=2, epsilon=epsilon, group=group)

    other = RulePart(method.task, "structures", (), ("G[?] ? ? ?",))
    for second, word in ((ask(0, part=other), "reports once"), (ask(1, "2"), "one epsilon")):
        (site,) = open_sites()[:1]
        asker = Asker([site], target="", release="local", price="10000000")
        asker.propose(site)
        refusal = ask_twice(asker, site, ask(0), second)
        assert isinstance(refusal, Refusal)
        assert word in refusal.reason
        assert site.ledger.spent() == rho_from_pure(1)
    answered = ask_twice(asker, open_again(asker), ask(0), ask(1, part=other))
    assert isinstance(answered, Answer)


def open_again(asker):
    (site,) = open_sites()[:1]
    asker.propose(site)
    return site


def test_bits_and_codes_are_asked_once_at_one_epsilon():
    method = cc.RuleDiscovery(**{**STUDY, "trust": "rule"})
    bit = {"query": "", "target": "", "task": method.task, "each": "1/4", "last": "1/4"}
    code = {"query": "", "target": "", "task": method.task, "structure": "G[?] HR >= ?", "epsilon": "1"}
    pairs = [
        (AskRuleBits(**bit, template="G[?] ? ? ?"), AskRuleBits(**bit, template="G[?] ? ? ?"), False),
        (AskRuleBits(**bit, template="G[?] ? ? ?"), AskRuleBits(**bit, template="F[?] ? ? ?"), True),
        (
            AskRuleBits(**bit, template="G[?] ? ? ?"),
            AskRuleBits(**{**bit, "last": "1/2"}, template="F[?] ? ? ?"),
            False,
        ),
        (AskRuleCodes(**code, parameter=0), AskRuleCodes(**code, parameter=0), False),
        (AskRuleCodes(**code, parameter=0), AskRuleCodes(**code, parameter=1), True),
    ]
    conjunction = AskRuleBits(**bit, template="G[?](HR >= ? and Temp > ?)")
    turned = AskRuleBits(**bit, template="G[?](Temp > ? and (HR >= ?))")
    pairs.append((conjunction, turned, False))  # the same, written otherwise
    pairs.append((conjunction, AskRuleBits(**bit, template="G[?](HR >= ? and Temp > ?)", final=True), True))
    pairs.append(
        (
            AskRuleCodes(**code, parameter=0),
            AskRuleCodes(**{**code, "structure": "G[?](HR >= ?)"}, parameter=0),
            False,
        )
    )
    for template, final in (
        ("?", False),
        ("G[0,?] HR >= ?", False),
        ("G[0,2] HR >= 90", False),
        ("G[?] HR ? ?", True),
    ):
        # A rule matches many such templates, so that together they would cost more than a path.
        pairs.append((conjunction, AskRuleBits(**bit, template=template, final=final), False))
    for one, other, answered in pairs:
        (site,) = open_sites()[:1]
        asker = Asker([site], target="")
        asker.propose(site)
        assert isinstance(ask_twice(asker, site, one, other), Answer) == answered


def test_a_study_asks_what_it_says_and_of_everybody():
    with pytest.raises(StudyError, match="there is no query"):
        cc.RuleDiscovery(**STUDY, trust="local", query="age > 3")
    model = cc.RuleDiscovery(**STUDY)
    other = cc.RuleDiscovery(**{**STUDY, "bins": {"HR": [50]}})
    question = AskRuleCounts(
        query="", target="", part=RulePart(other.task, "clients"), most=10, noise=Gaussian("9")
    )
    assert "'task' is not that of the study" in model.find_objection(question)
    more = AskRuleCounts(
        query="", target="", part=RulePart(model.task, "clients"), most=11, noise=Gaussian("9")
    )
    assert "'most_rules' is not that of the study" in model.find_objection(more)
    path = cc.RuleDiscovery(**STUDY, trust="rule", epsilon=1)
    bit = AskRuleBits(query="", target="", task=path.task, template="G[?] ? ? ?", each="1/2", last="1/2")
    assert "'exact_epsilon' is not that of the study" in path.find_objection(bit)
    (site,) = open_sites()[:1]
    asker = Asker([site], target="", release="local", query="patient = 'here'", price="10000000")
    asker.propose(site)
    assert isinstance(asker.put(site, AskCounts(query="patient = 'here'", target="")), Refusal)


def test_codes_are_estimated_without_bias():
    dice = np.random.default_rng(3)
    clients = [["G[0,2] HR >= 90"] if share < 0.7 else [] for share in dice.random(4000)]
    task = cc.RuleDiscovery(**STUDY).task
    question = AskRuleCodes(
        query="", target="", task=task, structure="G[?] HR >= ?", parameter=1, epsilon="16"
    )
    has = sum(map(bool, clients))
    estimates = []
    for _ in range(30):
        counts, deviation = estimate_codes(count(clients, question).astype(np.int64), question.own_epsilon)
        estimates.append(counts)
    mean = np.mean(estimates, axis=0)
    truth = np.array([has if bins == 3 else 0 for bins in range(len(mean))])  # 90 to 100
    assert np.all(np.abs(mean - truth) < 6 * max(deviation, 30) / math.sqrt(30))


# Learned from series, and weighed


def make_series(count, seed, odd=False):
    """Whose heart rate rises and whose pressure falls before sepsis."""
    dice = np.random.default_rng(seed)
    hours, ill = 12, dice.random(count) < 0.4
    onset = np.where(ill, dice.integers(7, hours, count), 10 * hours)
    later = np.arange(hours)[:, None] >= onset - 4
    series = {
        "HR": dice.normal(75, 4, (hours, count)) + 40 * later,
        "MAP": dice.normal(90, 4, (hours, count)) - 35 * later,
        "sepsis": (np.arange(hours)[:, None] >= onset).astype(float),
    }
    if odd:
        series["sepsis"][:, 0] = 7
    return cc.Series(series)


SERIES = {"outcome": "sepsis", "prevalence": 0.1, "bins": {"HR": [60, 80, 100], "MAP": [65, 80, 100]}}
SERIES |= {"window": "3h", "limits": 1, "most_rules": 10, "epsilon": 8.0}


@pytest.fixture(scope="module")
def learned():
    sites = [cc.Site(name, make_series(150, place), RICH) for place, name in enumerate("abc")]
    return cc.RuleDiscovery(**SERIES).fit(cc.House(sites))


def test_rules_are_learned_from_series_and_predict_patients_never_seen(learned):
    assert learned.rules_
    assert any(rule.weight for rule in learned.rules_)
    unseen = make_series(300, 9)
    ends, positive = find_windows(unseen, "sepsis", 3)
    windows = unseen.cut(ends, 3)
    predicted = learned.predict(windows)
    sensitivity, specificity = (predicted[positive] == 1).mean(), (predicted[~positive] == 0).mean()
    assert (sensitivity + specificity) / 2 > 0.8
    explanation = learned.explain({"HR": [118, 120, 121], "MAP": [52, 51, 50]})
    assert explanation.prediction == 1
    assert str(explanation).startswith("sepsis = 1 (")
    assert any("HR" in reason.condition and reason.moved > 0 for reason in explanation.reasons)


def test_no_patient_decides_whether_there_is_an_answer():
    """One patient's odd outcome leaves every other patient's rules and every message as they were."""
    task = cc.RuleDiscovery(**SERIES).task
    part = RulePart(task, "skeletons")
    question = AskRuleCounts(query="", target="", part=part, most=10, noise=Gaussian("1"))
    counts = []
    for odd in (False, True):
        series = make_series(40, 1, odd)
        view = View(cc.Patients.of(series).selectable, cc.Policy(), parts={"series": series})
        counts.append(question.compute(view.select("", "")))
    assert counts[0].shape == counts[1].shape
    assert ((counts[0] - counts[1]) ** 2).sum() <= question.sensitivity.squared
    silent = make_series(10, 1)
    silent = silent.with_stays({**silent.stays, "sepsis": silent.stays["sepsis"] * np.nan})
    early = make_series(10, 1)
    outcome = early.stays["sepsis"].copy()
    outcome[np.arange(len(outcome)) % 12 >= 2] = (
        np.nan
    )  # known in the first two hours only, and a window has three
    judged = AskRuleOutcomes(query="", target="", task=task, rules=("G[0,2] HR >= 100",), noise=Gaussian("1"))
    for own in (silent, early.with_stays({**early.stays, "sepsis": outcome})):
        view = View(cc.Patients.of(own).selectable, cc.Policy(), parts={"series": own})
        nobody = question.compute(view.select("", ""))
        assert nobody.tolist() == [*[0] * (len(counts[0]) - 1), 10]
        assert judged.compute(view.select("", "")).tolist() == [[0, 0, 0, 0]]


@given(st.integers(0, 10**6), st.integers(0, 19))
@settings(max_examples=15, deadline=None)
def test_judged_rules_move_by_one_patient_no_more_than_is_charged(seed, left_out):
    series = make_series(20, seed)
    task = cc.RuleDiscovery(**SERIES).task
    question = AskRuleOutcomes(
        query="", target="", task=task, rules=("G[0,2] HR >= 100", "F[0,2] MAP < 65"), noise=Gaussian("1")
    )
    question.check("private")

    def judge(own):
        view = View(cc.Patients.of(own).selectable, cc.Policy(), parts={"series": own})
        return question.compute(view.select("", ""))

    moved = judge(series) - judge(series.take(np.arange(20) != left_out))
    assert (moved**2).sum() <= question.sensitivity.squared


def test_windows_are_the_first_with_the_outcome_or_the_last():
    outcome = np.array([[0, 0, 0, np.nan], [0, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, np.nan]], dtype=float)
    series = cc.Series({"y": outcome, "x": outcome})
    ends, positive = find_windows(series, "y", 2)
    assert ends.tolist() == [3, 2, 4, 3]
    assert positive.tolist() == [True, True, False, False]
    assert find_windows(series, "y", 5)[0].tolist() == [0, 0, 0, 0]


def test_rules_that_noise_put_together_beyond_a_window_are_not_judged():
    """Hospitals would refuse to, and with it the whole study would end."""
    study = cc.RuleDiscovery(**SERIES)
    texts = (
        "F[0h,2h] HR >= 100",
        "G[0,2] HR >= 60 -> F[0,2] MAP < 65",
        "F[0h,2h] G[0h,2h] HR >= 100",
        "G[0h,9h] HR >= 100",
    )
    rules = [FoundRule(text, text, 0.5, (0.4, 0.6)) for text in texts]
    assert [rule.text for rule in find_judged(rules, study.task)] == list(
        texts[:2]
    )  # side by side is not in a row
    AskRuleOutcomes(query="", target="", task=study.task, rules=texts[:2], noise=Gaussian("1")).check(
        "private"
    )


def test_odds_ratios_come_with_intervals_and_are_silent_within_the_noise():
    counts = np.array([[800, 200, 1000, 9000], [500, 500, 5000, 5000], [1000, -3, 2, 10_000]])
    telling, silent, surely = find_effects(counts, [1.0] * 3)
    assert telling.odds == pytest.approx(4 * 9, rel=0.02)
    assert telling.odds_interval[0] < 36 < telling.odds_interval[1]
    assert telling.share == pytest.approx(1800 / 11_000)
    assert telling.tells
    assert surely.tells
    assert surely.odds > 1e5
    assert not silent.tells
    assert silent.odds_interval[0] < 1 < silent.odds_interval[1]
    assert not any(effect.tells for effect in find_effects(counts[:2], [3000.0] * 2))


def test_another_step_or_no_outcome_is_a_sentence():
    sites = [
        cc.Site(name, cc.Series({"HR": np.ones((4, 9)), "sepsis": np.zeros((4, 9))}, step="2h"), RICH)
        for name in "abc"
    ]
    with pytest.raises(HouseError, match="have a step of 2h, and the study's is 1h"):
        cc.RuleDiscovery(**{**SERIES, "prevalence": 0.9}).fit(cc.House(sites))
    with pytest.raises(StudyError, match="must be a time such as '6h'"):
        cc.RuleDiscovery(outcome="sepsis", window="six hours")
    with pytest.raises(StudyError, match="rules are not about the outcome"):
        cc.RuleDiscovery(outcome="HR", bins={"HR": [60]})


def test_nothing_but_noise_tells_whether_a_patient_is_there(monkeypatch):
    """The same messages of the same length at the same price, with the noise held at zero, one patient left out."""

    monkeypatch.setenv(SWITCH, SWITCHED_ON)

    def listen(clients):
        seen = []
        sites = open_sites([clients, *CLIENTS[1:]])
        with zero_noise():
            discover(sites, epsilon=8.0)
        for site in sites:
            seen.append([(entry.kind, entry.cost, entry.numbers) for entry in site.ledger.entries()])
        return seen

    assert listen(CLIENTS[0]) == listen(CLIENTS[0][1:])


# Models and words


def test_a_patient_is_a_course_or_a_row(learned):
    assert learned.predict_proba([{"HR": 120, "MAP": 50}]).shape == (1, 2)
    rows = cc.Records.from_rows([{"HR": 120, "MAP": 50}, {"HR": None, "MAP": 90}])
    assert learned.predict_proba(rows).shape == (2, 2)
    with pytest.raises(ModelError, match="'HR' is a number, or a list of numbers"):
        learned.explain({"HR": ["fast"]})
    with pytest.raises(ModelError, match="none of the attributes"):
        learned.predict([{"height": 180}])


def test_a_model_file_says_what_it_found(learned, tmp_path):
    learned.save(tmp_path / "rules.json")
    again = cc.load(tmp_path / "rules.json")
    assert again.rules_ == learned.rules_
    assert all(isinstance(rule, FoundRule) for rule in again.rules_)
    assert again.text() == learned.text()
    assert learned.rules_[0].text in learned.text()


def test_a_picture_has_a_bar_for_each_rule_and_its_interval(learned):
    root = ElementTree.fromstring(learned.pictures(whole=True)["prevalence"])
    space = "{http://www.w3.org/2000/svg}"
    bars, texts = root.findall(f"{space}rect"), [text.text for text in root.findall(f"{space}text")]
    assert len(bars) == len(learned.rules_)
    steps = learned.body.steps
    said = [say_formula(rule.formula, "1h", steps) if steps else rule.text for rule in learned.rules_]
    assert said == [text for text in texts if "%" not in text]
    for bar, line, rule in zip(bars, root.findall(f"{space}line")[1:], learned.rules_, strict=True):
        room = float(bar.get("width")) / rule.share
        ends = [(float(line.get(end)) - float(bar.get("x"))) / room for end in ("x1", "x2")]
        assert ends == pytest.approx(rule.share_interval, abs=0.01)


def test_formulas_are_said_in_words():
    said = {
        "G[0,5] HR >= 90": "in hours 0 to 5 always HR at least 90",
        "F[2,2](Temp > 38.5 or MAP < 65)": "in hour 2 at some time (MAP below 65 or Temp above 38.5)",
        "HR >= 90 -> F Temp <= 38": "if HR at least 90, then (from then on at some time Temp at most 38)",
        "(HR > 90) U[0,3] (MAP < 65)": "HR above 90 until, in hours 0 to 3, MAP below 65",
    }
    for text, words in said.items():
        assert say_formula(cc.stl.parse(text).canonical()) == words
    of_six = {
        "G[0,5] HR >= 90": "in the latest 6 hours always HR at least 90",
        "F[3,5] HR >= 90": "in the latest 3 hours at some time HR at least 90",
        "G[5,5] HR >= 90": "in the latest hour always HR at least 90",
        "G[0,2] HR >= 90": "in the 3 hours that ended 3 hours ago always HR at least 90",
    }
    for text, words in of_six.items():
        assert say_formula(cc.stl.parse(text).canonical(), window=6) == words
    assert (
        say_formula(cc.stl.parse("G[1,3] CGM >= 90"), "15min", 4)
        == "in the latest 45 minutes always CGM at least 90"
    )
    assert say_formula(cc.stl.parse("G[0,1] HR >= 90"), "15min") == "in steps 0 to 1 always HR at least 90"


def test_what_sites_ask_at_the_same_time_is_worked_out_once():
    asked, started = [], threading.Barrier(4)

    @work_out_once
    def find(number):
        asked.append(number)
        time.sleep(0.05)  # all ask meanwhile
        return [number]

    def ask():
        started.wait()
        return find(7)

    with ThreadPoolExecutor(4) as threads:
        found = [one.result() for one in [threads.submit(ask) for _ in range(4)]]
    assert asked == [7]
    assert all(one is found[0] for one in found)


def test_a_number_given_as_threshold_is_the_prevalence():
    method = cc.RuleDiscovery("sepsis", threshold=0.05)
    assert (method.prevalence, method.threshold) == (
        cc.RuleDiscovery("sepsis", prevalence=0.05).prevalence,
        "majority",
    )
    by_cost = cc.RuleDiscovery("sepsis", window="6h", threshold="cost 5:1")
    assert (by_cost.prevalence, by_cost.threshold) == (cc.RuleDiscovery("sepsis").prevalence, "cost 5:1")
    with pytest.raises(StudyError, match="the 'prevalence' of a RuleDiscovery must be"):
        cc.RuleDiscovery("sepsis", threshold=2)


def test_a_study_file_may_state_the_prevalence_as_threshold(tmp_path):
    def read(lines):
        path = tmp_path / "study.toml"
        path.write_text(
            '[study]\nname = "in common"\nmethod = "discovery"\noutcome = "sepsis"\n'
            f'[discovery]\n{lines}\n[[site]]\nname = "north"\nrules = "north.csv"\n'
        )
        return cc.Study.read(path)

    method = read("threshold = 0.05").open_method()
    assert (method.prevalence, method.threshold) == (0.05, "majority")
    with pytest.raises(StudyError, match="threshold must be a number between 0 and 1; got 2"):
        read("threshold = 2")
    with pytest.raises(StudyError, match="states prevalence twice"):
        read("threshold = 0.05\nprevalence = 0.1")
