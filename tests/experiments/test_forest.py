"""The federated forest, against scikit-learn's own forests and a count of votes by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier

from concilium.errors import StudyError
from concilium.evaluation.metrics import auc
from forest import Floats, Forest, grow

Sites = list[tuple[Floats, Floats]]


def draw_sites(seed: int, sizes: list[int]) -> Sites:
    draw = np.random.default_rng(seed)
    sites = []
    for size in sizes:
        matrix = draw.normal(size=(size, 3))
        sites.append((matrix, (matrix[:, 0] * matrix[:, 1] + 0.3 * draw.normal(size=size) > 0).astype(float)))
    return sites


def trees_of(forest: Forest) -> list[int]:
    return [len(grove.estimators_) for grove in forest.groves]


@pytest.mark.parametrize(
    ("sites", "trees", "shares"),
    [(1, 100, [100]), (3, 100, [34, 33, 33]), (4, 100, [25] * 4), (5, 3, [1] * 5)],
)
def test_every_site_gives_an_equal_share(sites: int, trees: int, shares: list[int]) -> None:
    assert trees_of(grow(draw_sites(1, [30] * sites), 7, trees)) == shares


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(2, 40), min_size=1, max_size=4))
def test_votes_and_means_are_those_counted_by_hand(seed: int, sizes: list[int]) -> None:
    sites = draw_sites(seed, sizes)
    new = np.random.default_rng(seed).normal(size=(20, 3))
    majority, mean = (grow(sites, seed, 12, voting) for voting in ("majority", "mean"))
    said = np.array(
        [
            grove.classes_[tree.predict(new).astype(int)]
            for grove in majority.groves
            for tree in grove.estimators_
        ]
    )
    np.testing.assert_allclose(majority.predict_proba(new)[:, 1], said.mean(axis=0))
    weights = np.array(trees_of(mean)) / sum(trees_of(mean))
    expected = np.zeros((20, 2))
    for grove, weight in zip(mean.groves, weights, strict=True):
        expected[:, grove.classes_.astype(int)] += weight * grove.predict_proba(new)
    np.testing.assert_allclose(mean.predict_proba(new), expected, atol=1e-12)


def test_the_seed_decides_the_forest_and_sites_do_not_share_one() -> None:
    (site,) = draw_sites(2, [60])
    new = np.random.default_rng(3).normal(size=(200, 3))
    twins = grow([site, site], 5, 20)
    np.testing.assert_array_equal(twins.predict_proba(new), grow([site, site], 5, 20).predict_proba(new))
    assert np.any(twins.predict_proba(new) != grow([site, site], 6, 20).predict_proba(new))
    alone = [Forest((grove,), "mean").predict_proba(new) for grove in twins.groves]
    assert np.any(alone[0] != alone[1])


def test_one_site_does_as_well_as_scikit_learns_forest_and_five_better_than_one_of_them() -> None:
    sites, ((test, truth),) = draw_sites(4, [60] * 5), draw_sites(5, [1000])
    matrix, outcome = (np.concatenate(parts) for parts in zip(*sites, strict=True))

    def measure(forest: Forest | RandomForestClassifier) -> float:
        found = auc(truth == 1, forest.predict_proba(test)[:, 1])
        assert found is not None
        return found

    pooled = measure(RandomForestClassifier(100, random_state=1).fit(matrix, outcome))
    assert measure(grow([(matrix, outcome)], 1, voting="mean")) == pytest.approx(pooled, abs=0.01)
    assert np.mean([measure(grow([site], 1)) for site in sites]) < measure(grow(sites, 1)) < pooled


def test_a_site_that_never_met_the_condition_votes_against_it() -> None:
    (site,) = draw_sites(6, [50])
    healthy, ill = (site[0], np.zeros(50)), (site[0], np.ones(50))
    assert np.all(grow([healthy, ill], 1, 10).predict_proba(site[0]) == 0.5)
    assert np.all(grow([healthy, ill, ill, ill], 1, 20, "mean").predict_proba(site[0])[:, 1] == 0.75)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grow([], 1), "got 0 sites, 100 trees"),
        (lambda: grow(draw_sites(1, [5]), 1, 0), "got 1 sites, 0 trees"),
        (lambda: grow(draw_sites(1, [5]), 1, voting="loudest"), "'majority' or 'mean'; got 'loudest'"),
        (lambda: grow([(np.zeros((2, 1)), np.array([1.0, 2.0]))], 1), "must be 0 or 1"),
    ],
)
def test_what_is_wrong_is_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        call()
