"""The stop rule against the thesis' own pseudo-code (7.4, step 15) and tables."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from concilium.evaluation import metrics
from concilium.trees.ensemble import _balanced_accuracy, _find_final, experts_at

DELTA = Fraction(1, 1000)


def step_15(scores, delta):
    """The pseudo-code word for word: MaxENS, its next and the next after that are stages, None is null."""
    max_ens, max_ba = 0, scores(0)
    following = after = None
    built = 1
    while True:
        if following is None:
            following, built = built, built + 1
        if after is None:
            after, built = built, built + 1
        next_ba, after_ba = scores(following), scores(after)
        if next_ba <= max_ba + delta and after_ba <= max_ba + delta:
            return max_ens, built
        if after_ba > max_ba and after_ba > next_ba:
            max_ens, max_ba = after, after_ba
            following = after = None
        elif next_ba > max_ba:
            max_ens, max_ba = following, next_ba
            following, after = after, None


def scripted(listed):
    """A sequence of scores that stays at its last, and notes what was asked of it."""
    asked = []

    def score(stage):
        asked.append(stage)
        return listed[min(stage, len(listed) - 1)]

    return score, asked


def settle(score, delta):
    """The final stage, and the measures of all that were tried, one after the other."""
    tried = []
    while (best := _find_final(tried, delta)) is None:
        tried.append(score(len(tried)))
    return best, tried


@given(
    thousandths=st.lists(st.integers(480, 520), min_size=1, max_size=20),
    delta=st.sampled_from([Fraction(0), DELTA, Fraction(1, 500)]),
)
def test_the_rule_is_the_pseudo_code(thousandths, delta):
    listed = [Fraction(n, 1000) for n in thousandths]
    score, asked = scripted(listed)
    best, tried = settle(score, delta)
    expected, built = step_15(scripted(listed)[0], delta)
    assert (best, len(tried)) == (expected, built)
    assert asked == list(range(built)), "each ensemble is grown and measured once, in order"
    assert tried == [listed[min(stage, len(listed) - 1)] for stage in range(built)]


def test_table_7_1_ends_with_eleven_experts():
    listed = [7806, 7954, 7970, 8254, 8268, 8369, 8296, 8376]
    best, tried = settle(scripted([Fraction(n, 10000) for n in listed])[0], DELTA)
    assert experts_at(best) == 11
    assert experts_at(len(tried) - 1) == 15


def test_table_7_2_ends_with_thirteen_experts_whatever_its_text_says():
    listed = [6370, 6450, 6530, 6610, 6690, 6773, 6816, 6781, 6803]  # 3 to 9 are not printed: rising
    best, _ = settle(scripted([Fraction(n, 10000) for n in listed])[0], DELTA)
    assert experts_at(best) == 13


def test_table_7_3_ends_with_twenty_five_experts():
    listed = [*range(7824, 8064, 20), 8064, 8067, 8057]  # up to 23 not printed: rising
    best, tried = settle(scripted([Fraction(n, 10000) for n in listed])[0], DELTA)
    assert (experts_at(best), experts_at(len(tried) - 1)) == (25, 29)


def test_delta_itself_is_not_enough():
    at = [Fraction(1, 2), Fraction(1, 2) + DELTA, Fraction(1, 2) + DELTA]
    assert settle(scripted(at)[0], DELTA)[0] == 0
    above = [*at[:2], at[2] + Fraction(1, 10**9)]
    assert settle(scripted(above)[0], DELTA)[0] == 2


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4))
def test_balanced_accuracy_is_that_of_the_metrics(cells):
    confusion = [cells[:2], cells[2:]]
    (expected,) = metrics._balanced_accuracy(np.array([confusion], dtype=float))
    if all(map(sum, confusion)):
        assert abs(float(_balanced_accuracy(confusion)) - expected) < 1e-12
    else:
        assert _balanced_accuracy(confusion) <= Fraction(1, 2), (
            "a class without patients counts as never found"
        )


def test_the_number_of_experts_is_odd():
    assert [experts_at(stage) for stage in range(4)] == [1, 3, 5, 7]
