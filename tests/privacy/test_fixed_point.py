import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.privacy.shares import widen_sensitivity


@given(st.integers(0, 8), st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=8))
def test_rounded_neighbours_are_no_further_apart_than_said(bits, pairs):
    squared = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs)
    steps = np.rint(np.ldexp(np.array(pairs), bits)).astype(np.int64).tolist()
    assert sum((a - b) ** 2 for a, b in steps) <= widen_sensitivity(squared, len(pairs), bits)


def test_the_widened_sensitivity_is_the_square_of_the_sum():
    assert widen_sensitivity(Fraction(9), 4, 2) == (3 * 4 + 2) ** 2
    assert float(widen_sensitivity(Fraction(1), 5, 10)) == pytest.approx(
        (1024 + math.sqrt(5)) ** 2, rel=1e-12
    )
    assert widen_sensitivity(Fraction(0), 7, 3) == 7
