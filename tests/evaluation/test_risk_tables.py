"""Figures from counts of risk bin by outcome: equal to those of the patients themselves, and intervals that cover."""

from __future__ import annotations

import re
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, matthews_corrcoef, roc_auc_score

from concilium.evaluation import risk_tables
from concilium.evaluation.risk_tables import (
    _find_auc_variance,
    compare_sites,
    find_untold,
    measure_table,
    summarise_table,
)
from concilium.models.measuring import RiskTable, lay_grid, say_needed

LEVELS = np.array([0.02, 0.1, 0.2, 0.35, 0.6, 0.9])
SHARES = [0.3, 0.25, 0.2, 0.1, 0.1, 0.05]


def draw_patients(count: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Risks of six levels, and outcomes that follow them, log odds moved by `shift`."""
    chance = np.random.default_rng(seed)
    risks = chance.choice(LEVELS, count, p=SHARES)
    true = 1 / (1 + np.exp(-(np.log(risks / (1 - risks)) + shift)))
    return risks, (chance.random(count) < true).astype(int)


def tabulate(risks: np.ndarray, outcomes: np.ndarray) -> list[list[int]]:
    return [[int(((risks == one) & (outcomes == o)).sum()) for o in (0, 1)] for one in LEVELS]


def make_table(counts: list[list[int]], **more: object) -> RiskTable:
    risks = LEVELS.tolist()
    return RiskTable(
        edges=risks[1:],
        risks=risks,
        counts=counts,
        threshold=0.3,
        called=3,
        **more,  # type: ignore[arg-type]
    )


def test_figures_are_those_of_the_patients() -> None:
    risks, outcomes = draw_patients(3000, 1)
    table = make_table(tabulate(risks, outcomes))
    found, intervals = measure_table(table, table.counts)
    called = risks >= 0.3
    assert found["auc"] == pytest.approx(roc_auc_score(outcomes, risks))
    assert found["brier"] == pytest.approx(brier_score_loss(outcomes, risks))
    assert found["mcc"] == pytest.approx(matthews_corrcoef(outcomes, called))
    assert found["ppv"] == pytest.approx(outcomes[called].mean())
    assert found["npv"] == pytest.approx(1 - outcomes[~called].mean())
    assert found["sensitivity"] == pytest.approx(called[outcomes == 1].mean())
    assert found["accuracy"] == pytest.approx((called == outcomes).mean())
    for name in ("slope", "intercept", "auc", "ppv"):
        low, high = intervals[name]
        assert low < found[name] < high
    assert intervals["slope"][0] < 1 < intervals["slope"][1]


def test_slope_and_intercept_are_those_of_a_logistic_regression() -> None:
    sm = pytest.importorskip("sklearn.linear_model")
    risks, outcomes = draw_patients(5000, 2, shift=0.7)
    table = make_table(tabulate(risks, outcomes))
    at = np.log(risks / (1 - risks))[:, None]
    fitted = sm.LogisticRegression(C=1e12, tol=1e-10, max_iter=1000).fit(at, outcomes)
    found, _ = measure_table(table, table.counts)
    assert found["slope"] == pytest.approx(fitted.coef_[0, 0], abs=1e-4)
    assert found["intercept"] == pytest.approx(0.7, abs=0.15)


def test_the_variance_of_the_auc_is_that_of_delong() -> None:
    risks, outcomes = draw_patients(400, 3)
    table = np.array(tabulate(risks, outcomes), dtype=float)
    positive, negative = risks[outcomes == 1], risks[outcomes == 0]
    wins = (positive[:, None] > negative).astype(float) + 0.5 * (positive[:, None] == negative)
    by_pairs = wins.mean(axis=1).var(ddof=1) / len(positive) + wins.mean(axis=0).var(ddof=1) / len(negative)
    assert _find_auc_variance(table[:, 0], table[:, 1]) == pytest.approx(by_pairs)


@pytest.mark.parametrize(("deviation", "patients"), [(0.0, 600), (6.0, 3000)])
def test_intervals_cover_at_their_level_noise_included(
    deviation: float, patients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred tables of fresh patients with fresh noise: what is true is inside about 95 % of the intervals."""
    monkeypatch.setattr(risk_tables, "TIMES", 120)  # as quick, and a little less sharp
    expected = np.array(SHARES)[:, None] * np.column_stack([1 - LEVELS, LEVELS]) * 10**9
    whole = make_table(expected.astype(int).tolist())
    truth = measure_table(whole, whole.counts)[0]
    chance = np.random.default_rng(5)
    inside = dict.fromkeys(("auc", "slope", "intercept", "brier", "sensitivity", "ppv"), 0)
    for draw in range(200):
        counts = np.array(tabulate(*draw_patients(patients, 1000 + draw)))
        noisy = counts + np.rint(chance.normal(0, deviation, counts.shape)).astype(int)
        table = make_table(noisy.tolist(), variance=deviation**2)
        _, intervals = measure_table(table, table.counts)
        for name in inside:
            low, high = intervals[name]
            inside[name] += low <= truth[name] <= high
    for name, count in inside.items():
        assert 0.9 <= count / 200 <= 0.99, (name, count)


@pytest.mark.parametrize(
    ("mean", "spread", "patients", "deviation"), [(-1.2, 0.6, 1280, 4.5), (-4.0, 1.0, 20_000, 4.5)]
)
def test_the_slope_covers_at_its_level_also_where_most_bins_are_empty(
    mean: float, spread: float, patients: int, deviation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the 26 bins of a model without levels noise outweighs the few patients of those far out."""
    monkeypatch.setattr(risk_tables, "TIMES", 2)
    edges, risks = lay_grid(0.5, noisy=True)
    chance, inside, deviation = np.random.default_rng(3), 0, 4.5
    for _ in range(200):
        odds = chance.normal(mean, spread, patients)
        outcome = (chance.random(patients) < 1 / (1 + np.exp(-odds))).astype(int)
        cells = 2 * np.searchsorted(edges, 1 / (1 + np.exp(-odds)), side="right") + outcome
        counts = np.bincount(cells, minlength=2 * len(risks)).reshape(-1, 2)
        counts += np.rint(chance.normal(0, deviation, counts.shape)).astype(int)
        table = RiskTable(
            edges=edges, risks=risks, counts=counts.tolist(), threshold=0.5, called=13, variance=deviation**2
        )
        low, high = measure_table(table, table.counts)[1]["slope"]
        inside += low <= 1 <= high
    assert 0.9 <= inside / 200 <= 0.99, inside


def test_intervals_say_what_was_drawn() -> None:
    table = make_table([[90, 2], [80, 9], [60, 15], [30, 16], [20, 30], [5, 45]])
    assert measure_table(table, table.counts)[1]["drawn"] == "patients"
    noisy = msgspec.structs.replace(table, variance=4.0)
    assert measure_table(noisy, noisy.counts)[1]["drawn"] == "patients and noise"


def test_noise_alone_tells_nothing() -> None:
    chance = np.random.default_rng(8)
    noise = np.rint(chance.normal(0, 5, (6, 2))).astype(int).tolist()
    table = make_table(noise, variance=25.0)
    summary = summarise_table(table)
    assert summary["overall"]["auc"] is None
    assert summary["risks"] is None


def test_a_plan_says_below_how_many_patients_noise_leaves_no_figures() -> None:
    """A study of 569 patients paid for a measurement that could tell nothing."""
    for rho, groupings in ((Fraction("0.02"), 0), (Fraction("0.5"), 2)):
        needed = int(re.search(r"below about (\d+) with", say_needed(rho, groupings))[1])
        edges, risks = lay_grid(0.5, noisy=True)
        for events, told in ((needed, True), (needed - 1, False)):
            counts = [[100 * needed, 0], *[[0, 0]] * (len(risks) - 2), [0, events]]
            variance = float((1 + groupings) / (2 * rho))
            table = RiskTable(
                edges=edges, risks=risks, counts=counts, threshold=0.5, called=13, variance=variance
            )
            summary = summarise_table(table)
            assert (summary["overall"]["auc"] is not None) == told, (rho, events)
            said = find_untold(summary, "died")
            assert said == (
                []
                if told
                else ["no figures: noise could make as many with the outcome 'died', or without it"]
            )
    assert say_needed(None) == ""


def test_no_event_leaves_no_figure_and_says_how_many_patients() -> None:
    table = make_table([[10, 0]] * 6)
    overall = summarise_table(table)["overall"]
    assert (overall["patients"], overall["events"], overall["auc"]) == (60, 0, None)


def test_hospitals_that_differ_show_a_spread_and_what_recalibration_gains() -> None:
    shifts = np.linspace(-1, 1, 12)
    sites = {f"h{i}": tabulate(*draw_patients(2000, 50 + i, shift)) for i, shift in enumerate(shifts)}
    total = np.sum(list(sites.values()), axis=0).tolist()
    found = compare_sites(make_table(total, sites=sites))
    alike = {f"h{i}": tabulate(*draw_patients(2000, 80 + i)) for i in range(12)}
    same = compare_sites(make_table(np.sum(list(alike.values()), axis=0).tolist(), sites=alike))
    for one in (found["auc"], same["auc"]):
        assert (
            one["prediction"][0]
            <= one["interval"][0]
            < one["mean"]
            < one["interval"][1]
            <= one["prediction"][1]
        )
    assert same["slope"]["between"] < 0.1
    gains = found["recalibrated"]
    assert gains["h0"]["intercept"] == pytest.approx(-1, abs=0.2)
    assert gains["h0"]["recalibrated"] < gains["h0"]["brier"]
    assert gains["h6"]["brier"] - gains["h6"]["recalibrated"] < 0.002
    assert (
        measure_table(make_table(total, sites=sites), total, list(sites.values()))[1]["drawn"] == "hospitals"
    )
