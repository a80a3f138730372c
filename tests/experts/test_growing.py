from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import StudyError
from concilium.experts.expert import Expert, ExpertEnsemble, average, train_experts
from concilium.experts.patient_windows import lay_out
from concilium.experts.site_experts import ExpertGrowth, find_covariance, weigh_by_history, weigh_optimally
from experts.expert_patients import make_series, make_task


def draw_answers(seed, experts, cells):
    dice = np.random.default_rng(seed)
    truth = dice.uniform(0, 4, cells)
    truth[dice.random(cells) < 0.2] = np.nan
    told = np.nan_to_num(truth, nan=1.0) * dice.uniform(0, 1, (experts, 1)) + dice.normal(
        0, 1, (experts, cells)
    )
    return np.clip(told, 0, 4), truth, dice.random(experts) < 0.5


def find_error(told, truth):
    known = ~np.isnan(truth)
    return ((told.mean(axis=0) - truth)[known] ** 2).mean()


def grow_by_hand(told, truth, septic, limit):
    """Algorithm 2 with every error computed anew from the answers."""
    alone = [find_error(told[[i]], truth) for i in range(len(told))]
    order = sorted(range(len(told)), key=lambda i: (not septic[i], alone[i], i))
    members = []
    while limit is None or len(members) < limit:
        now = find_error(told[members], truth) if members else np.inf
        better = (
            c for c in order if c not in members and find_error(told[[*members, c]], truth) < now - 1e-12
        )
        chosen = next(better, None)
        if chosen is None:
            break
        members.append(chosen)
    return members


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(2, 30), st.sampled_from([None, 1, 3]))
def test_growing_is_the_paper_s_algorithm(seed, experts, cells, limit):
    told, truth, septic = draw_answers(seed, experts, cells)
    truth[0] = 2.0
    growth = ExpertGrowth(find_covariance(told, truth), septic, limit).grow()
    assert growth.members == grow_by_hand(told, truth, septic, limit)
    for size, error in enumerate(growth.errors, start=1):
        assert error == pytest.approx(find_error(told[growth.members[:size]], truth), rel=1e-9, abs=1e-12)
    assert growth.errors == sorted(growth.errors, reverse=True)
    # The paper's inequality (1), for everybody who is left.
    n, left = len(growth.members), set(range(experts)) - set(growth.members)
    if limit is None:
        for c in left:
            right = 2 * growth.covariance[c, growth.members].sum() + growth.covariance[c, c]
            assert (2 * n + 1) * growth.error <= right + 1e-9


@given(st.integers(0, 10**6))
def test_the_error_of_any_weights_is_the_covariance_between_them(seed):
    told, truth, _ = draw_answers(seed, 5, 20)
    truth[0] = 1.0
    covariance = find_covariance(told, truth)
    weights = np.random.default_rng(seed).normal(size=5)
    weights /= weights.sum()
    known = ~np.isnan(truth)
    expected = ((average(told, weights) - truth)[known] ** 2).mean()
    assert weights @ covariance @ weights == pytest.approx(expected, rel=1e-6)
    best = weigh_optimally(covariance)
    assert best.sum() == pytest.approx(1)
    assert best @ covariance @ best <= expected + 1e-6
    assert best @ covariance @ best <= np.diag(covariance).min() + 1e-6


def test_optimal_weights_of_uncorrelated_errors_are_the_closed_form():
    errors = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(weigh_optimally(np.diag(errors)), (1 / errors) / (1 / errors).sum())
    np.testing.assert_allclose(weigh_optimally(np.diag([3.0, 3.0])), [0.5, 0.5])
    twins = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1.0]])  # no inverse
    np.testing.assert_allclose(weigh_optimally(twins), [1 / 6, 1 / 6, 2 / 3])
    with pytest.raises(StudyError, match="no optimal weights"):
        weigh_optimally(np.array([[0.0]]))


@given(st.integers(0, 10**6), st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_weights_by_history_look_back_in_the_same_stay_only_and_begin_equal(seed, lengths):
    told, truth, _ = draw_answers(seed, 3, sum(lengths))
    starts = np.concatenate(([0], np.cumsum(lengths)))
    weights = weigh_by_history(told, truth, starts)
    for first, last in pairwise(starts):
        for cell in range(first, last):
            raw = []
            for expert in range(3):
                before = [c for c in range(first, cell) if not np.isnan(truth[c])]
                raw.append(1 + sum(1 / (1 + (told[expert, c] - truth[c]) ** 2) for c in before))
            np.testing.assert_allclose(weights[:, cell], np.array(raw) / sum(raw))
    assert np.isfinite(average(told, weights)).all()


def test_a_new_patient_joins_if_that_lowers_the_error_and_nobody_is_trained_again():
    told, truth, septic = draw_answers(3, 12, 60)
    covariance = find_covariance(told, truth)
    for new in range(12):
        rest = [i for i in range(12) if i != new]
        growth = ExpertGrowth(covariance[np.ix_(rest, rest)], septic[rest], None).grow()
        before, members = growth.error, list(growth.members)
        joined = growth.join(covariance[new, rest], covariance[new, new], bool(septic[new]))
        with_new = find_error(told[[*(rest[i] for i in members), new]], truth)
        assert joined == (with_new < before)
        assert growth.members == ([*members, 11] if joined else members)
        assert growth.error == pytest.approx(with_new if joined else before)
    full = ExpertGrowth(covariance[:11, :11], septic[:11], 2).grow()
    assert not full.join(covariance[11, :11], 0.0, True)


def test_an_ensemble_averages_its_experts_held_to_the_bound():
    series, task = make_series(9, 2, ill=1.0), make_task()
    laid = lay_out(series, task)
    ensemble = ExpertEnsemble(
        task, [*train_experts(laid, range(4)), Expert(None, 9.0, True), Expert(None, -1.0, False)]
    )
    told = ensemble.tell(series)
    assert told.shape == (6, int(series.starts[-1]))
    assert told.min() >= 0
    assert told.max() <= 4
    assert (told[4] == 4).all()
    assert (told[5] == 0).all()
    np.testing.assert_allclose(ensemble.predict(series), told.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(ensemble.take([4, 5]).predict(series), 2.0)
    alone = ensemble.predict(series.take(np.array([3])))
    np.testing.assert_allclose(
        alone, ensemble.predict(series)[series.starts[3] : series.starts[4]], rtol=1e-6
    )


def test_weights_must_sum_to_one_and_be_one_for_each():
    told = np.ones((3, 2))
    with pytest.raises(StudyError, match=r"must sum to 1; got 1\.5"):
        average(told, [0.5, 0.5, 0.5])
    with pytest.raises(StudyError, match="one weight for each of the 3 experts"):
        average(told, [0.5, 0.5])
    with pytest.raises(StudyError, match="without an expert"):
        average(np.zeros((0, 2)))
    with pytest.raises(StudyError, match="none of them has a known severity"):
        find_covariance(told, np.full(2, np.nan))
    with pytest.raises(StudyError, match="at least one candidate"):
        ExpertGrowth(np.zeros((0, 0)), np.zeros(0, dtype=bool))
    with pytest.raises(StudyError, match="limit of 0"):
        ExpertGrowth(np.ones((1, 1)), np.ones(1, dtype=bool), 0)
