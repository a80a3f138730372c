"""Blocks against sorting by hand, and the expected loss against the channel's own probabilities."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.codes.block_response import BlockResponse, _form_blocks, choose_blocking, find_losses
from concilium.errors import StudyError


def draw_distances(seed, size):
    points = np.random.default_rng(seed).random((size, 2))
    return np.abs(points[:, None] - points[None]).sum(axis=2) / 2


@given(st.integers(0, 1000), st.integers(2, 9), st.data())
def test_a_block_is_the_code_and_those_nearest_to_it(seed, count, data):
    size = data.draw(st.integers(1, count - 1))
    distances = draw_distances(seed, count)
    for row, block in enumerate(_form_blocks(distances, size)):
        assert block[0] == row
        assert len(set(block.tolist())) == size
        others = [code for code in range(count) if code not in block]
        assert max(distances[row, block]) <= min(distances[row, others])


@given(st.integers(0, 1000), st.integers(2, 9), st.floats(0.1, 5), st.integers(1, 9))
def test_the_expected_loss_is_that_of_the_channel(seed, count, epsilon, sensitive):
    sensitive = min(sensitive, count)
    distances = draw_distances(seed, count)
    losses = find_losses(distances[:sensitive], math.expm1(epsilon))
    assert len(losses) == count - 1
    for size, loss in enumerate(losses, 1):
        mechanism = BlockResponse.from_distances(
            count, np.arange(count, dtype=np.int32), distances, size, Fraction(epsilon)
        )
        channel = mechanism.find_hidden(np.arange(sensitive))
        assert loss == pytest.approx((channel * distances[:sensitive]).sum(axis=1).mean())


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(0, 5), st.integers(0, 6), st.floats(0.1, 5))
def test_the_choice_is_no_worse_than_any_size_and_its_loss_is_true(
    seed, sensitive, protected, candidates, epsilon
):
    known = sensitive + protected
    distances = draw_distances(seed, known + candidates)
    exact = Fraction(epsilon)
    if known < 2 and not candidates:
        with pytest.raises(StudyError, match="at least two protected codes"):
            choose_blocking(distances[:sensitive, :known], distances[:sensitive, known:], exact, candidates)
        return
    chosen = choose_blocking(distances[:sensitive, :known], distances[:sensitive, known:], exact, candidates)
    members = np.concatenate([np.arange(known), known + chosen.added])
    assert chosen.size < len(members) == len(set(members.tolist()))
    losses = find_losses(distances[:sensitive][:, members], math.expm1(epsilon))
    assert chosen.loss == pytest.approx(losses[chosen.size - 1])
    if known >= 2:
        assert chosen.loss <= find_losses(distances[:sensitive, :known], math.expm1(epsilon)).min() + 1e-9


@pytest.mark.parametrize("size", [0, 3, 4])
def test_a_block_that_does_not_fit_is_refused(size):
    with pytest.raises(StudyError, match=f"a size of {size} does not fit 3 protected codes; take 1 to 2"):
        _form_blocks(draw_distances(1, 3), size)
