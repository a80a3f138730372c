"""The mechanism as a distribution: exact ratios, the equalities of the paper, and draws against the channel."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from concilium.codes.block_response import BlockResponse, Suppression, tabulate_channel
from concilium.errors import StudyError
from concilium.privacy import randomness
from taylor import bound_exponential

epsilons = st.fractions(min_value=Fraction(1, 100), max_value=20, max_denominator=100)
shapes = st.integers(2, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1)))


def make(protected, block, epsilon, clear=3):
    places = np.arange(protected, dtype=np.int32)
    distances = np.abs(places[:, None] - places[None]) / protected
    return BlockResponse.from_distances(protected + clear, places, distances, block, Fraction(epsilon))


@given(shapes, epsilons)
def test_no_output_in_the_protected_set_tells_inputs_apart_by_more_than_e_to_the_epsilon(shape, epsilon):
    mechanism = make(*shape, epsilon)
    below = bound_exponential(epsilon)[0]
    assert mechanism.elsewhere <= mechanism.inside <= below * mechanism.elsewhere
    # A code in the clear reaches each protected one as often as a protected one from elsewhere, never less.
    assert mechanism.replaced == mechanism.elsewhere * len(mechanism.protected)


@given(shapes, epsilons)
def test_the_probabilities_are_the_equalities_of_section_7_5(shape, epsilon):
    count, block = shape
    mechanism = make(count, block, epsilon)
    below, above = bound_exponential(epsilon)
    in_block, replaced = mechanism.inside * block, mechanism.replaced
    slack = Fraction(1, 2**64) + (above - below)
    assert abs(replaced - count / (count - block + below * block)) <= slack
    assert abs(in_block - below * block / (count - block + below * block)) <= slack
    assert in_block + mechanism.elsewhere * (count - block) == 1


def test_the_bound_of_the_paper_without_equality_is_not_private():
    """|Y| = 20, b = 5, E = 1 and p_T = 0.1, which its theorem allows: a ratio of 3."""
    assert Fraction(9, 10) / 15 / (Fraction(1, 10) / 5) == 3


@given(shapes, epsilons, st.integers(0, 4))
def test_every_row_of_the_channel_adds_up_to_one_and_has_the_exact_values(shape, epsilon, clear):
    mechanism = make(*shape, epsilon, clear)
    inputs = np.arange(mechanism.size)
    outputs, matrix = tabulate_channel(mechanism, inputs)
    assert sorted(outputs.tolist()) == inputs.tolist()
    assert np.allclose(matrix.sum(axis=1), 1)
    for row, x in enumerate(inputs):
        for column, y in enumerate(outputs):
            if y >= shape[0]:
                exact = 1 - mechanism.replaced if x == y else Fraction(0)
            elif x < shape[0] and y in mechanism.protected[mechanism.blocks[x]]:
                exact = mechanism.inside
            else:
                exact = mechanism.elsewhere
            assert matrix[row, column] == float(exact)


@pytest.mark.parametrize(("count", "block", "epsilon"), [(7, 3, 1), (7, 1, 2.5), (2, 1, 0.1), (40, 12, 5)])
def test_draws_have_the_distribution_of_the_channel(count, block, epsilon):
    mechanism = make(count, block, epsilon)
    inputs = np.arange(mechanism.size)
    outputs, matrix = tabulate_channel(mechanism, inputs)
    draws = 20_000
    p_values = []
    for x in inputs:
        seen = np.bincount(mechanism.randomize(np.full(draws, x, dtype=np.int32)), minlength=mechanism.size)
        expected = matrix[x] * draws
        possible = expected > 0
        assert not seen[outputs[~possible]].any()
        if possible.sum() > 1:
            p_values.append(stats.chisquare(seen[outputs[possible]], expected[possible]).pvalue)
    # The smallest of m independent p-values is below 1e-9/m once in 1e9 runs.
    assert min(p_values) > 1e-9 / len(p_values)


def test_neighbouring_events_are_drawn_independently():
    mechanism = make(4, 2, 1)
    drawn = mechanism.randomize(np.zeros(40_000, dtype=np.int32)).reshape(-1, 2)
    table = np.zeros((4, 4))
    np.add.at(table, (drawn[:, 0], drawn[:, 1]), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-9


def test_umaxrr_and_k_rr_are_blocks_of_one():
    protected = np.array([1, 3, 4], dtype=np.int32)
    umaxrr = BlockResponse.without_blocks(6, protected, Fraction(1))
    e = np.e
    assert float(umaxrr.inside) == pytest.approx(e / (3 + e - 1))
    assert float(umaxrr.elsewhere) == pytest.approx(1 / (3 + e - 1))
    assert float(1 - umaxrr.replaced) == pytest.approx((e - 1) / (3 + e - 1))
    k_rr = BlockResponse.without_blocks(6, np.arange(6, dtype=np.int32), Fraction(1))
    assert np.allclose(k_rr.find_hidden(np.arange(6)), (1 + (e - 1) * np.eye(6)) / (6 + e - 1))
    assert not k_rr.find_shown(np.arange(6)).any()


def test_suppression_blots_out_the_protected_codes_and_nothing_else():
    mechanism = Suppression(5, np.array([1, 4], dtype=np.int32))
    assert mechanism.randomize(np.array([0, 1, 2, 4, 4, 3], dtype=np.int32)).tolist() == [0, 5, 2, 5, 5, 3]
    outputs, matrix = tabulate_channel(mechanism, np.arange(5))
    assert outputs.tolist() == [5, 0, 2, 3]
    assert matrix.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]


def test_long_inputs_are_drawn_in_parts(monkeypatch):
    monkeypatch.setattr("concilium.codes.block_response.CODES_AT_ONCE", 7)
    mechanism = make(5, 2, 30)
    codes = np.arange(40, dtype=np.int32) % mechanism.size
    drawn = mechanism.randomize(codes)
    clear = codes >= 5
    assert (drawn[clear] == codes[clear]).all()  # an epsilon of 30 replaces one in 10^13
    assert all(y in mechanism.blocks[x] for x, y in zip(codes[~clear], drawn[~clear], strict=True))


def test_without_noise_a_code_stays_what_it_is(monkeypatch):
    monkeypatch.setenv(randomness.SWITCH, randomness.SWITCHED_ON)
    codes = np.arange(8, dtype=np.int32)
    with randomness.zero_noise():
        assert make(5, 2, 1).randomize(codes).tolist() == codes.tolist()


@pytest.mark.parametrize(("count", "block"), [(1, 1), (4, 4)])
def test_a_block_must_be_smaller_than_the_protected_set(count, block):
    with pytest.raises(StudyError, match="protected codes"):
        make(count, block, 1)
