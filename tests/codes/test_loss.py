"""Losses of a handful of events, by hand."""

import math

import numpy as np
import pytest

from concilium.codes.frequencies import measure_divergence, measure_loss

DISTANCES = np.array([[0, 0.2, 0.6], [0.2, 0, 0.4], [0.6, 0.4, 0]])
SENSITIVE = np.array([True, False, False])


def test_losses_by_hand():
    offsets = np.array([0, 2, 2, 4, 5])
    before, after = np.array([0, 1, 1, 2, 0]), np.array([1, 1, 0, 2, 3])
    loss = measure_loss(DISTANCES, SENSITIVE, offsets, before, after)
    assert loss.sensitive == pytest.approx((0.2 + 1) / 2)
    assert loss.sensitive_patients == pytest.approx((0.2 / 2 + 1) / 2)
    assert loss.everything == pytest.approx((0.2 + 0 + 0.2 + 0 + 1) / 5)
    assert loss.changed == 3 / 5
    assert loss.false_sensitive == 1 / 5


def test_nothing_shared_loses_nothing():
    none = np.zeros(0, dtype=np.intp)
    loss = measure_loss(DISTANCES, SENSITIVE, np.array([0, 0]), none, none)
    assert (loss.sensitive, loss.sensitive_patients, loss.everything, loss.changed) == (0, 0, 0, 0)


def test_divergence_is_zero_for_the_same_and_finite_for_codes_that_are_gone():
    counts = np.array([10, 5, 0])
    assert measure_divergence(counts, counts) == 0
    true, shared = np.array([10.5, 5.5, 0.5]) / 16.5, np.array([10.5, 0.5, 5.5]) / 16.5
    expected = sum(p * math.log(p / q) for p, q in zip(true, shared, strict=True))
    assert measure_divergence(counts, np.array([10, 0, 5])) == pytest.approx(expected)
