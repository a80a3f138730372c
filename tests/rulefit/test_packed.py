"""Bits and sums of bits, against plain arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from concilium.rulefit.design import _add_up_bits, _combine_bits, _cross_bits, _pick_upper, _unpack, unfold


@given(st.integers(0, 70), st.integers(0, 12), st.integers(0, 10**6))
def test_bits_are_the_columns_and_sums_are_their_sums(patients, columns, seed):
    draws = np.random.default_rng(seed)
    table = draws.random((patients, columns)) < 0.4
    weights = draws.normal(size=patients) * 10.0 ** draws.integers(-3, 4)
    bits = np.packbits(table, axis=0, bitorder="little")
    assert bits.shape == ((patients + 7) // 8, columns)
    chosen = draws.permutation(columns)[: columns // 2]
    assert np.array_equal(_unpack(bits, chosen, patients), table[:, chosen].astype(float))
    assert np.array_equal(_unpack(bits, [], patients), np.zeros((patients, 0)))
    close = {"rtol": 1e-12, "atol": 1e-12 * np.abs(weights).sum()}
    assert np.allclose(_add_up_bits(bits, weights), weights @ table, **close)
    assert np.allclose(_cross_bits(bits, weights), np.triu(table.T @ (weights[:, None] * table)), **close)
    several = draws.normal(size=(columns, 3))
    assert np.allclose(_combine_bits(bits, several, patients), table @ several, rtol=1e-12, atol=1e-12)


def test_counts_are_exact():
    table = np.random.default_rng(1).random((100_003, 3)) < 0.5
    assert (
        _add_up_bits(np.packbits(table, axis=0, bitorder="little"), np.ones(len(table))).tolist()
        == table.sum(axis=0).tolist()
    )


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_an_upper_triangle_is_picked_in_another_order_and_unfolded_again(size, seed):
    draws = np.random.default_rng(seed)
    table = draws.normal(size=(size, size))
    table = table + table.T
    place = draws.permutation(size)
    picked = _pick_upper(np.triu(table), place)
    hoped = table[np.ix_(place, place)]
    assert np.array_equal(picked, hoped[np.triu_indices(size)])
    assert np.array_equal(unfold(picked, size), hoped)
