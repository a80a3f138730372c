"""The figures of rule discovery, on clients and stays that are synthetic; the audit, on losses that are known."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import rule_discovery_figures as experiment
from concilium.privacy.accounting import rho_for_epsilon
from concilium.temporal.discovery_search import LevelSearch
from concilium.temporal.parsing import parse
from concilium.temporal.path_search import PATH_LENGTH
from concilium.temporal.rule_grammar import SKELETON, RuleGrammar, abstract
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.template_index import TemplateIndex
from temporal_rules import VITALS

GRAMMAR = RuleGrammar({"HR": (60, 80, 100, 120), "Temp": (36, 37, 38, 39)}, [(0, 2), (0, 5)], limits=1)
FREQUENT = ["G[0,5] HR >= 100", "F[0,2] Temp < 37"]

pytestmark = pytest.mark.filterwarnings("ignore::concilium.records.series_description.OddValues")


@pytest.fixture(scope="module")
def population() -> experiment.Population:
    """Of 6,000 clients two thirds have a rule, every other one another, and one in a hundred a third."""
    clients = [
        [*FREQUENT[:1] * (row % 3 > 0), *FREQUENT[1:] * (row % 2), *["F[0,5] HR < 60"] * (row % 100 == 0)]
        for row in range(6000)
    ]
    return experiment.Population(RuleSets(clients), GRAMMAR)


def texts(rules) -> list[str]:
    return sorted(str(rule.formula) for rule in rules)


def test_what_there_is_to_find_has_the_parameters_of_its_holders(population):
    found = population.find_exactly(Fraction(1, 10))
    assert texts(found) == sorted(FREQUENT)
    assert sorted(rule.prevalence for rule in found) == [0.5, pytest.approx(2 / 3)]
    assert len(population.find_exactly(Fraction(1, 100))) == 3


def test_each_search_finds_the_rules_and_their_parameters(population):
    share = Fraction(1, 10)
    assert texts(population.search_sums(share, "8")) == sorted(FREQUENT)
    assert texts(population.search_reports(share, "12")) == sorted(FREQUENT)
    assert texts(population.search_paths_and_parameters(share, "40", "uniform")) == sorted(FREQUENT)


def test_parameters_of_a_path_are_paid_from_its_budget(population, monkeypatch):
    spent = []
    channel = experiment.ReportChannel

    def record(templates, most, epsilon):
        spent.append(epsilon)
        return channel(templates, most, epsilon)

    monkeypatch.setattr(experiment, "ReportChannel", record)
    (rule, _) = population.find_exactly(Fraction(1, 10))
    population.ask_parameters(rule, Fraction(3))
    assert sum(spent) == 3


def test_a_question_is_a_level_or_the_final_check(population):
    found, questions = experiment.follow_paths(
        population.plan_paths(Fraction(1, 10), Fraction(8), "adaptive"), population.index
    )
    steps = experiment.name_steps(questions)
    assert len(steps) == found.questions
    assert steps.count("skeleton") == len(GRAMMAR.skeletons)
    assert steps.count("final check") >= len(found.rules) == 2
    checks = [question for question, step in zip(questions, steps, strict=True) if step == "final check"]
    for check in checks:
        rest = check.epsilon + (PATH_LENGTH - 1) * questions[0].epsilon
        assert rest == found.spent == 8


@pytest.mark.parametrize(("distance", "delta"), [(0.2, 1e-6), (1.0, 1e-3), (3.0, 1e-6)])
def test_the_loss_of_gaussian_noise(distance, delta):
    epsilon = experiment.find_gaussian_loss(distance, delta)

    def excess(x):
        return max(0.0, norm.pdf(x - distance) - np.exp(epsilon) * norm.pdf(x))

    first = distance / 2 + epsilon / distance
    assert quad(excess, first, first + 10, epsabs=1e-12)[0] == pytest.approx(delta, rel=1e-3)


def test_a_bound_is_below_the_loss_and_catches_a_claim_that_is_too_small():
    draw = np.random.default_rng(1)
    yes, no = (draw.random(200_000) < chance for chance in (0.75, 0.25))  # a coin of epsilon = ln 3
    seen = experiment.bound_loss(yes.astype(float), no.astype(float), [0.5])
    assert 1.0 < seen <= np.log(3)
    assert experiment.bound_loss(no.astype(float), no.astype(float), [0.5]) == 0


def test_the_full_client_moves_every_question_as_far_as_it_may():
    grammar = RuleGrammar({"HR": (60, 80, 100, 120), "Temp": (36, 37, 38, 39)}, [(0, 2), (0, 5), (3, 5)])
    client = experiment.make_full_client(grammar, 100)
    assert len({abstract(rule, SKELETON) for rule in client}) == 100
    others = RuleSets([[FREQUENT[0]], [], FREQUENT])
    more = TemplateIndex(RuleSets([*(others[row] for row in range(3)), client]))
    plan = LevelSearch(grammar, Fraction(1, 100), rho_for_epsilon("1", experiment.DELTA))
    questions = experiment.list_questions(plan, client)
    assert sum(question.rho for question in questions) == plan.rho
    for question in questions:
        moved = experiment.count_exactly(more, question) - experiment.count_exactly(
            TemplateIndex(others), question
        )
        assert (moved**2).sum() == question.squared_sensitivity
    seen, exact, entries = experiment.audit_sums(others, grammar, "1", 50)
    assert entries == 3 * 101 + 100
    assert 0 <= seen <= exact < 1
    assert experiment.audit_sums(others, grammar, "1", 50, weaker=5000)[0] > 1


def test_one_report_costs_what_it_claims_and_paths_cost_a_client_more(population):
    seen, exact = experiment.audit_reports(50, 10, "1", 50_000)
    assert 0.8 < seen < 1.1  # once in forty it is a little above
    assert 1 - 1e-9 < exact <= 1
    losses, seen = experiment.audit_paths(population, Fraction(1, 10), "4", 5000)
    both = np.array([row % 3 > 0 and row % 2 == 1 for row in range(6000)])
    assert losses[population.rule_sets.counts == 0].max() == 0
    assert losses[both].min() > 4  # two rules on two paths, each charged 4 at most
    assert losses.max() <= 4 * population.rule_sets.counts.max()
    assert seen > 0


@pytest.fixture
def sepsis(tmp_path: Path) -> Path:
    """Sixty stays of twenty hours, every third with sepsis from hour 10 on, the heart racing from hour 6."""
    others = ", ".join(f"80 + 5 * random() as {name}" for name in VITALS if name != "HR")
    path = tmp_path / "sepsis-challenge2019" / "challenge2019_sample2000.parquet"
    path.parent.mkdir()
    duckdb.connect().execute("select setseed(0.5)").execute(
        f"copy (select 'p' || p as patient, h as ICULOS, {others}, "
        "80 + 8 * random() + 40 * (p % 3 = 0 and h >= 6)::int as HR, (p % 3 = 0 and h >= 10)::int as SepsisLabel "
        f"from range(60) t(p), range(1, 21) u(h)) to '{path}' (format parquet)"
    )
    return tmp_path


def test_utility_is_of_patients_held_out(sepsis, monkeypatch, capsys):
    command = [
        "figures",
        str(sepsis),
        "--figure",
        "10",
        "--runs",
        "1",
        "--both",
        "--trust",
        "secure-sum",
        "--rules",
        str(sepsis / "rules"),
    ]
    monkeypatch.setattr(sys, "argv", command)
    experiment.main()
    printed = capsys.readouterr().out
    assert "20 have windows of both outcomes" in printed
    lines = {line[:40].strip(): line[40:].split() for line in printed.splitlines()}
    assert lines["secure-sum, V = 10.0%, epsilon = 1"] == ["refused"]
    rules, votes, accuracy, _, auc, *both_ways = map(float, lines["without noise, V = 10.0%"])
    assert rules >= votes >= 1
    assert accuracy > 0.8
    assert auc > 0.9
    assert both_ways[2] > 0.9
    kept = (sepsis / "rules").read_text(encoding="utf-8")
    experiment.main()
    assert (sepsis / "rules").read_text(encoding="utf-8") == kept


def test_windows_of_one_patient_are_never_on_both_sides(sepsis):
    windows = experiment.read_sepsis(sepsis)
    learned_from = np.random.default_rng(3).random(60) < 0.5
    judgement = experiment.Judgement(windows, learned_from, 40)
    assert learned_from[judgement.training.owners].all()
    assert not learned_from[judgement.held_out.owners].any()
    assert len(judgement.training) == 40
    assert judgement.training.labels.sum() == 20
    assert judgement.judge([])[2] == 0.5


def test_clients_counted_several_times_are_other_clients():
    rule_sets = RuleSets([[FREQUENT[0]], FREQUENT, []], ids=["a", "b", "c"])
    repeated = experiment.count_times(rule_sets, 4)
    assert len(set(repeated.ids)) == len(repeated) == 12
    assert TemplateIndex(repeated).count([parse("G[?] HR >= ?")]).tolist() == [8]
