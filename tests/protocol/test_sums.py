"""Sums as they travel: any whole numbers, whatever their signs, and the same however they are added up."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np
import pytest
from conversation import site_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import concilium as cc
from agreed import draft
from concilium import registry as registry
from concilium.errors import MessageError
from concilium.protocol.attributes import Workload
from concilium.protocol.messages import encode
from concilium.protocol.questions import PLAIN, Summed
from concilium.protocol.sums import (
    BOUND,
    MOST_PLACES,
    Array,
    Sum,
    add_sum,
    bound_reals,
    choose_places,
    pack,
    read_reals,
    read_sum,
    write_reals,
    write_sum,
)
from strategies import deal_tiers

INT64 = np.iinfo(np.int64)
WHOLE = st.one_of(
    st.integers(INT64.min, INT64.max),
    st.integers(-300, 300),
    st.builds(
        lambda power, sign, step: sign * 2**power + step,
        st.integers(0, 62),
        st.sampled_from([-1, 1]),
        st.sampled_from([-1, 0]),
    ),
)


class AskNumbers(Summed, frozen=True, kw_only=True):
    """Numbers of a site's own, so that any may be asked for."""

    kind: ClassVar[str] = "test.numbers"
    releases: ClassVar[frozenset[str]] = PLAIN

    size: list[int]
    places: int = 0
    patients: bool = False
    held: ClassVar[dict[int, np.ndarray]] = {}  # by how many patients a site has

    @property
    def shape(self):
        return tuple(self.size)

    @property
    def binary_places(self):
        return self.places

    @property
    def counts(self):
        return self.patients

    def compute(self, cohort):
        return self.held[len(cohort)]

    def estimate(self, patients, columns):
        return Workload(patients, patients)


def asked(words, places=0):
    return AskNumbers(query="", target="y", size=list(np.shape(words)), places=places)


@given(arrays("i8", array_shapes(max_dims=4, max_side=5, min_side=0), elements=WHOLE), st.integers(0, 40))
@settings(max_examples=300)
def test_whole_numbers_survive_the_journey(words, places):
    back = read_sum(encode(write_sum(words, places)), asked(words, places))
    np.testing.assert_array_equal(back, words)
    assert np.array_equal(np.zeros(words.shape, dtype=np.int64) + back, words)  # and are added as such


@given(st.sampled_from(["u1", "u2", "u4", "i1", "i2", "i4", "i8", "u8"]), st.data())
def test_in_whatever_words_they_were_counted(dtype, data):
    info = np.iinfo(dtype)
    elements = st.integers(int(info.min), min(int(info.max), int(INT64.max)))
    words = data.draw(arrays(dtype, array_shapes(max_dims=2, max_side=5), elements=elements))
    np.testing.assert_array_equal(read_sum(encode(write_sum(words, 0)), asked(words)), words)


@given(arrays("i8", array_shapes(max_dims=3, max_side=5), elements=WHOLE))
@settings(max_examples=300)
def test_numbers_travel_in_the_narrowest_words(words):
    dtype = np.dtype(write_sum(words, 0).words.dtype)
    low, high = int(words.min()), int(words.max())
    assert (dtype.kind == "i") == (low < 0)
    assert np.iinfo(dtype).min <= low
    assert high <= np.iinfo(dtype).max
    if dtype.itemsize > 1:
        narrower = np.iinfo(f"{dtype.kind}{dtype.itemsize // 2}")
        assert low < narrower.min or high > narrower.max


@pytest.mark.parametrize("seen", [[127, -128], [-129], [255], [256], [2**63 - 1], [-(2**63)], []])
def test_the_ends_of_each_word(seen):
    words = np.array(seen, dtype=np.int64)
    assert read_sum(encode(write_sum(words, 3)), asked(words, 3)).tolist() == seen


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (Sum(1, pack(np.zeros((2, 3), dtype=np.int8))), "1 binary places where 0 were asked for"),
        (Sum(-1, pack(np.zeros((2, 3), dtype=np.int8))), "-1 binary places where 0"),
        (Sum(0, pack(np.zeros((3, 2), dtype=np.int8))), r"\(3, 2\) where \(2, 3\)"),
        (Sum(0, pack(np.zeros(6, dtype=np.int8))), r"\(6,\) where \(2, 3\)"),
        (Sum(0, pack(np.zeros((2, 3)))), "made of whole numbers"),
        (Sum(0, pack(np.full((2, 3), np.nan))), "made of whole numbers"),
        (Sum(0, pack(np.full((2, 3), 2**63, dtype=np.uint64))), "too large"),
        (Sum(0, Array("O", [2, 3], b"x" * 48)), "dtype"),
        (Sum(0, Array("i8", [2, 3], b"x" * 47)), "buffer"),
        (Sum(0, Array("?", [2, 3], b"x" * 6)), "dtype"),
    ],
)
def test_what_was_not_asked_for_is_refused(body, problem):
    question = AskNumbers(query="", target="y", size=[2, 3])
    with pytest.raises(MessageError, match=problem):
        read_sum(encode(body), question)


@given(st.binary(max_size=100))
def test_bytes_that_are_no_sum_are_refused(data):
    with pytest.raises(MessageError, match="not a well-formed Sum"):
        read_sum(data, AskNumbers(query="", target="y", size=[1]))


def test_a_sum_has_no_other_field():
    more = msgspec.msgpack.decode(encode(write_sum(np.array([1]), 0))) | {"patients": 3}
    with pytest.raises(MessageError, match="unknown field"):
        read_sum(msgspec.msgpack.encode(more), AskNumbers(query="", target="y", size=[1]))


# Reals in fixed point


@given(arrays("f8", st.integers(0, 20), elements=st.floats(-BOUND, BOUND)), st.integers(0, MOST_PLACES))
def test_reals_are_written_to_half_a_unit(reals, places):
    words = write_reals(reals, places)
    assert words.dtype == np.int64
    back = read_reals(words, places)
    assert np.all(np.abs(back - reals) <= 2.0 ** -(places + 1))


@given(st.floats(allow_nan=True, allow_infinity=True), st.integers(0, MOST_PLACES))
def test_no_real_is_written_beyond_the_bound(real, places):
    (word,) = write_reals(np.array([real]), places).tolist()
    assert abs(word) <= bound_reals(places)
    if np.isnan(real) or real >= BOUND:
        assert word == bound_reals(places)
    if real <= -BOUND:
        assert word == -bound_reals(places)


@given(st.integers(1, 5000))
def test_sums_over_so_many_sites_have_room(sites):
    places = choose_places(sites)
    assert sites * bound_reals(places) < 2**63
    assert choose_places(sites + 1) <= places


# Through tiers


PATIENTS = [{"a": i % 3, "y": i % 2} for i in range(20)]


@given(
    st.data(),
    st.lists(
        arrays("i8", (2, 3), elements=st.integers(-(2**59), 2**59) | st.integers(-200, 200)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0, 3, 24]),
)
@settings(max_examples=60)
def test_sums_through_any_tiers_are_the_flat_sum(data, numbers, places):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.KINDS, AskNumbers.kind, f"{__name__}:AskNumbers")
        patch.setattr(AskNumbers, "held", {8 + i: words for i, words in enumerate(numbers)})
        policy = cc.Policy(kinds=(*registry.KINDS,))
        sites = [site_of(PATIENTS[:count], name=f"s{count}", policy=policy) for count in AskNumbers.held]
        members = deal_tiers(data, sites)
        with cc.House(members).open(draft()) as run:
            total = run.ask(asked(numbers[0], places))
    assert total.dtype == np.int64
    np.testing.assert_array_equal(total, np.sum(numbers, axis=0))


def test_nobody_counts_fewer_patients_than_none():
    for words in (np.array([3, -1]), np.array([-128], dtype=np.int8)):
        data = encode(Sum(0, pack(words)))
        question = asked(words)
        np.testing.assert_array_equal(read_sum(data, question), words)
        with pytest.raises(MessageError, match="a count of patients is below zero"):
            read_sum(data, msgspec.structs.replace(question, patients=True))


@given(st.lists(WHOLE, min_size=1, max_size=4))
def test_a_sum_is_right_or_refused(numbers):
    question, total, expected = asked(np.zeros(1)), np.zeros(1, dtype=np.int64), 0
    for number in numbers:
        data = encode(write_sum(np.array([number]), 0))
        expected += number
        if INT64.min <= expected <= INT64.max:
            add_sum(total, data, question)
            assert total.tolist() == [expected]
            continue
        with pytest.raises(MessageError, match="too large to be added up"):
            add_sum(total, data, question)
        return
