"""Both bounds hold afterwards, and what an error says can be met can be met."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from concilium.codes.dependence import extend_protection
from concilium.errors import StudyError

CODES, SENSITIVE = 8, 2
probabilities = arrays.arrays(np.float64, (CODES, SENSITIVE), elements=st.floats(0, 1))
weights = arrays.arrays(np.float64, CODES, elements=st.floats(0.01, 1))
CLEAR = np.arange(CODES) >= SENSITIVE


@given(probabilities, weights, st.floats(1e-6, 0.5), st.floats(1e-6, 0.9))
def test_afterwards_both_bounds_hold(conditionals, raw, gamma, gamma_max):
    frequencies = raw / raw.sum()
    extension = extend_protection(
        conditionals, frequencies, CLEAR, np.full(SENSITIVE, gamma), gamma_max, CODES
    )
    left = [code for code in range(SENSITIVE, CODES) if code not in extension.added]
    for column in range(SENSITIVE):
        leakage = sum(conditionals[code, column] * frequencies[code] for code in left)
        assert leakage <= gamma + 1e-9
        assert extension.leakage_after[column] == pytest.approx(leakage)
        worst = max((conditionals[code, column] for code in left), default=0.0)
        assert worst <= gamma_max + 1e-9
        assert extension.worst_after[column] == worst
    assert not set(extension.added) & set(range(SENSITIVE))
    # None of those above gamma_max could have stayed.
    assert all(conditionals[code].max() > gamma_max for code in extension.above_worst)


def test_a_rare_code_that_gives_it_away_is_hidden_though_it_passes_on_average():
    conditionals = np.array([[0.0], [0.95], [0.001]])
    frequencies = np.array([0.003, 0.003, 0.994])
    clear = np.array([False, True, True])
    loose = extend_protection(conditionals, frequencies, clear, np.array([0.01]), 1.0, 2)
    assert loose.added.tolist() == []
    assert loose.leakage_after[0] < 0.01
    assert extend_protection(conditionals, frequencies, clear, np.array([0.01]), 0.2, 2).added.tolist() == [1]


def test_the_code_that_says_most_goes_first():
    conditionals = np.array([[0.0], [0.1], [0.1], [0.1]])
    frequencies = np.array([0.1, 0.2, 0.5, 0.2])
    clear = np.arange(4) > 0
    extension = extend_protection(conditionals, frequencies, clear, np.array([0.03]), 0.2, 3)
    assert extension.added.tolist() == [2, 1]


@given(probabilities, weights, st.integers(0, 4))
def test_the_smallest_gamma_it_names_can_be_met(conditionals, raw, most):
    frequencies = raw / raw.sum()

    def extend(gamma, gamma_max=2.0):
        return extend_protection(conditionals, frequencies, CLEAR, np.full(SENSITIVE, gamma), gamma_max, most)

    try:
        extend(1e-6)
    except StudyError as error:
        smallest = float(re.search(r"can is ([\d.]+)$", str(error))[1])
        assert len(extend(smallest).added) <= most
    try:
        extend(10.0, 1e-6)
    except StudyError as error:
        smallest = float(re.search(r"can is ([\d.]+)$", str(error))[1])
        assert len(extend(10.0, smallest).added) <= most
