"""Estimates from shared codes: unbiased within their errors, and honest about what is confounded."""

from fractions import Fraction

import numpy as np
import pytest

from concilium.codes.block_response import BlockResponse, Suppression
from concilium.codes.frequencies import estimate_frequencies

TRUE = np.array([4000, 100, 2500, 900, 50, 700, 20_000, 12_000])


def share(mechanism, counts=TRUE):
    return mechanism.randomize(np.repeat(np.arange(len(counts)), counts).astype(np.int32)).astype(np.intp)


def test_umaxrr_identifies_every_code():
    mechanism = BlockResponse.without_blocks(8, np.arange(6, dtype=np.int32), Fraction(3))
    found = estimate_frequencies(mechanism, share(mechanism))
    assert sorted(found.codes.tolist()) == list(range(8))
    assert not found.confounded
    assert (found.errors > 0).all()
    distance = np.abs(found.counts - TRUE[found.codes]) / found.errors
    assert distance.max() < 7  # a normal deviate of 7 happens once in 4e11


def test_errors_are_as_large_as_the_estimates_scatter():
    mechanism = BlockResponse.without_blocks(8, np.arange(6, dtype=np.int32), Fraction(2))
    runs = [estimate_frequencies(mechanism, share(mechanism)) for _ in range(200)]
    order = np.argsort(runs[0].codes)
    estimates = np.array([run.counts[np.argsort(run.codes)] for run in runs])
    scatter, said = estimates.std(axis=0), runs[0].errors[order]
    assert (scatter < 1.35 * said).all()
    assert (scatter[6:] > 0.65 * said[6:]).all()
    assert np.abs(estimates.mean(axis=0) - TRUE).max() < 7 * (said / np.sqrt(200)).max()


def test_codes_with_one_block_are_confounded_and_their_sum_is_not():
    blocks = np.array([[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5]])
    mechanism = BlockResponse(8, np.arange(6, dtype=np.int32), blocks, Fraction(3))
    found = estimate_frequencies(mechanism, share(mechanism))
    assert sorted(found.codes.tolist()) == [6, 7]
    assert sorted(members for members, _ in found.confounded) == [[0, 1], [2, 3], [4, 5]]
    for members, total in found.confounded:
        value, error = total
        assert abs(value - TRUE[members].sum()) < 7 * error
    for first, second in (
        [0, 1],
        [2, 3],
        [4, 5],
    ):  # nothing tells them apart, so EM leaves them as they began
        assert found.likely[first] == pytest.approx(found.likely[second])


def test_a_code_may_be_identified_though_others_are_not():
    blocks = np.array([[0, 1], [0, 1], [2, 0]])
    mechanism = BlockResponse(4, np.arange(3, dtype=np.int32), blocks, Fraction(4))
    counts = np.array([3000, 1000, 2000, 9000])
    found = estimate_frequencies(mechanism, share(mechanism, counts))
    estimates = dict(zip(found.codes.tolist(), zip(found.counts, found.errors, strict=True), strict=True))
    assert set(estimates) == {2, 3}
    assert abs(estimates[2][0] - 2000) < 7 * estimates[2][1]
    assert [members for members, _ in found.confounded] == [[0, 1]]


def test_em_comes_near_the_truth_where_the_channel_identifies_it():
    mechanism = BlockResponse.without_blocks(8, np.arange(6, dtype=np.int32), Fraction(6))
    found = estimate_frequencies(mechanism, share(mechanism))
    assert all(abs(found.likely[code] - TRUE[code]) < 400 for code in range(6))


def test_suppression_tells_the_sum_alone():
    mechanism = Suppression(8, np.array([1, 3], dtype=np.int32))
    found = estimate_frequencies(mechanism, share(mechanism))
    assert dict(zip(found.codes.tolist(), found.counts.tolist(), strict=True)) == {
        code: TRUE[code] for code in (0, 2, 4, 5, 6, 7)
    }
    [(members, total)] = found.confounded
    assert members == [1, 3]
    assert total[0] == pytest.approx(1000)


def test_k_rr_leaves_no_code_in_the_clear():
    mechanism = BlockResponse.without_blocks(8, np.arange(8, dtype=np.int32), Fraction(3))
    found = estimate_frequencies(mechanism, share(mechanism))
    assert sorted(found.codes.tolist()) == list(range(8))
