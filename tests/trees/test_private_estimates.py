"""Estimates from noisy tables: closed forms, no bias, less noise, and nothing changed where there is none."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from concilium.trees.private_growing import ExpectedCounts, _estimate_leaf, _find_shares, estimate

SIZES = (2, 3, 4)
NOTHING = 1e-12


def tables_of(patients):
    """The table of patients given as (value of each attribute ..., class), [1 + cell, class]."""
    table = np.zeros((1 + sum(SIZES), 2), dtype=np.int64)
    starts = np.cumsum([1, *SIZES])
    for *values, outcome in patients:
        table[0, outcome] += 1
        for start, value in zip(starts, values, strict=False):
            table[start + value, outcome] += 1
    return table


patients = st.lists(st.tuples(*(st.integers(0, size - 1) for size in SIZES), st.integers(0, 1)), min_size=1)


@given(patients=patients, data=st.data())
def test_without_noise_the_counts_are_as_they_were(patients, data):
    table = tables_of(patients)
    found = estimate(table, SIZES, NOTHING)
    assert np.allclose(found.tables, table)
    attribute = data.draw(st.integers(0, 2))
    values = data.draw(st.lists(st.integers(0, SIZES[attribute] - 1), min_size=1, unique=True))
    here = [patient for patient in patients if patient[attribute] in values]
    child = found.expect_child(attribute, values)
    assert np.allclose(child.counts, tables_of(here)[0])
    assert not here or np.allclose(child.shares, child.counts / len(here))
    assert np.allclose(estimate(tables_of(here), SIZES, NOTHING, child).tables, tables_of(here))
    leaf = _estimate_leaf(tables_of(here)[0], NOTHING, child)
    assert np.allclose(leaf.counts, tables_of(here)[0])


@given(
    table=arrays(np.int64, (10, 2), elements=st.integers(-500, 5000)),
    variance=st.floats(1e-6, 1e6),
    below=st.none() | arrays(np.float64, (2,), elements=st.floats(-100, 1000)),
)
@settings(max_examples=200)
def test_whatever_the_noise_shares_are_shares_and_nobody_is_below_zero(table, variance, below):
    expected = None
    if below is not None:
        expected = ExpectedCounts(below, variance, np.array([0.25, 0.75]), np.full((9, 2), 0.3))
    found = estimate(table, SIZES, variance, expected)
    assert found.tables.min() >= 0
    for shares in (found.class_shares, found.shares):
        assert np.allclose(shares.sum(axis=-1), 1)
        assert shares.min() >= 0
    for part in (found.keep([2, 0]), found):
        child = part.expect_child(0, [1, 0])
        assert np.isfinite(child.given).all()
        leaf = _estimate_leaf(table[0], variance, child)
        assert np.isclose(leaf.class_shares.sum(), 1)


def test_class_counts_are_the_least_squares_solution():
    draw = np.random.default_rng(1)
    table = draw.integers(50, 300, (10, 2))
    # One unknown for every cell of every attribute and class; the sums of all tables and the class counts agree.
    for outcome in range(2):
        free, rows, seen = sum(SIZES) + 1, [], []
        for cell in range(free):
            rows.append(np.eye(free)[cell])
            seen.append(table[cell, outcome])
        constraints, start = [], 1
        for size in SIZES:
            constraints.append(np.eye(free)[0] - np.eye(free)[start : start + size].sum(axis=0))
            start += size
        matrix = np.block(
            [[np.eye(free), np.array(constraints).T], [np.array(constraints), np.zeros((len(SIZES),) * 2)]]
        )
        solved = np.linalg.solve(matrix, np.concatenate([seen, np.zeros(len(SIZES))]))[:free]
        found = estimate(table, SIZES, NOTHING)
        assert np.isclose(found.counts[outcome], solved[0])
        assert np.allclose(found.cells[:, outcome], solved[1:])


def test_what_the_level_above_says_is_averaged_by_its_variance():
    above = ExpectedCounts(np.array([300.0, 100.0]), 4.0, np.array([0.75, 0.25]), np.empty((0, 2)))
    leaf = _estimate_leaf(np.array([360, 120]), 12.0, above)
    assert np.allclose(leaf.counts, [315, 105])
    assert np.isclose(leaf.variance, 3)


def test_shares_are_drawn_to_what_is_expected_as_far_as_noise_hides_them():
    counts, expected = np.array([60.0, 40.0]), np.array([0.2, 0.8])
    assert np.allclose(_find_shares(counts, expected, 0.0), [0.6, 0.4])
    assert np.allclose(_find_shares(counts, expected, 1e12), expected)
    # MISFIT = 0.2 of 20 and 80 patients: variances 16 and 256 of the expectation beside 16 of the noise.
    mixed = np.array([(60 + 20) / 2, (256 * 40 + 16 * 80) / 272])
    assert np.allclose(_find_shares(counts, expected, 16.0), mixed / mixed.sum())
    assert np.allclose(_find_shares(np.array([-9.0, 2.0]), expected, 1.0), expected)


def test_less_noise_is_left_than_in_the_counts_themselves():
    draw = np.random.default_rng(4)
    truth = tables_of([(i % 2, i % 3, i % 4, int(draw.random() < 0.2 + 0.3 * (i % 2))) for i in range(3000)])
    raw, ours = [], []
    for _ in range(200):
        noisy = truth + np.rint(draw.normal(0, 60, truth.shape)).astype(np.int64)
        found = estimate(noisy, SIZES, 3600.0)
        raw.append([noisy[0, 0] - truth[0, 0], *(noisy[1:, 0] - truth[1:, 0])])
        ours.append([found.counts[0] - truth[0, 0], *(found.tables[1:, 0] - truth[1:, 0])])
    spread = np.std(ours, axis=0) / np.std(raw, axis=0)
    assert abs(spread[0] - (1 + 1 / 2 + 1 / 3 + 1 / 4) ** -0.5) < 0.1
    assert spread[1:].max() < 0.95
    assert abs(np.mean(ours, axis=0)[0]) < 15
