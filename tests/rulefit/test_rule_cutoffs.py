"""Cutoffs, winsorising bounds and scales from shared histograms, against the numbers themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.models.outcome import WIDE_EDGES, missed, say_missed
from concilium.protocol.attributes import Attribute, AttributeSeen
from concilium.protocol.schema import SchemaSeen
from concilium.rulefit.cutoffs import (
    RULE_DEVIATION,
    TAIL,
    _quantile,
    cut,
    measure,
    share_attributes,
)
from concilium.rulefit.terms import RuleTerms

EDGES = (10.0, 20.0, 30.0)


def histogram_of(values, edges):
    """Missing first, then the bins."""
    present = values[~np.isnan(values)]
    counts = np.bincount(np.searchsorted(edges, present, side="right"), minlength=len(edges) + 1)
    return np.concatenate([[np.isnan(values).sum()], counts]).astype(np.int64)


@given(
    st.lists(st.integers(-5, 30), min_size=2, max_size=8).filter(lambda bins: max(bins) > 0),
    st.floats(0.01, 0.99),
)
def test_a_quantile_is_interpolated_within_its_bin(noisy, share):
    bins = np.maximum(noisy, 0)
    edges = np.arange(len(bins) - 1) * 10.0
    # Many patients evenly within each bin; the open ones have all of theirs at their one edge.
    ends = [edges[0], *edges, edges[-1]]
    spread = [np.linspace(ends[i], ends[i + 1], 1000 * n) for i, n in enumerate(bins.tolist())]
    everyone = np.concatenate(spread)
    at = np.quantile(everyone, [max(0.0, share - 1e-3), min(1.0, share + 1e-3)])
    assert at[0] - 0.1 <= _quantile(bins, edges, share) <= at[1] + 0.1


def test_coarse_clinical_bins_clip_few_and_give_the_median():
    """Body mass index on the WHO's edges: bounds at edges would clip four in ten patients and say 30 for the median."""
    values = np.random.default_rng(2).normal(25.7, 4.2, size=20_000)
    edges = (18.5, 25.0, 30.0, 35.0, 40.0)
    line = measure(0, edges, histogram_of(values, edges))
    assert line.center == pytest.approx(np.median(values), abs=0.4)
    assert np.mean((values < line.low) | (values > line.high)) < 0.07
    assert line.scale == pytest.approx(RULE_DEVIATION / np.clip(values, line.low, line.high).std(), rel=0.1)


@given(st.lists(st.integers(-50, 50), min_size=5, max_size=40), st.integers(1, 10))
def test_cutoffs_are_edges_that_rise_and_noise_below_zero_is_none(noisy, most):
    histogram = np.array([7, *noisy])
    attribute = Attribute("x", tuple(float(edge) for edge in range(len(noisy) - 1)))
    found = cut(attribute, histogram, most)
    held = np.flatnonzero(np.maximum(noisy, 0))
    if len(held) < 2:
        assert found is None
        return
    assert found is not None
    assert set(found.edges) <= set(attribute.edges)
    assert list(found.edges) == sorted(set(found.edges))
    if len(attribute.edges) > most:
        assert 1 <= len(found.edges) <= most
        # Every cutoff tells patients apart: there are some on both sides of it.
        assert all(held[0] <= attribute.edges.index(edge) < held[-1] for edge in found.edges)
    assert cut(attribute, np.maximum(histogram, 0), most) == found


def test_even_quantiles():
    attribute = Attribute("x", tuple(float(edge) for edge in range(1, 100)))
    histogram = np.array([0, *[10] * 100])
    assert cut(attribute, histogram, 4).edges == (20.0, 40.0, 60.0, 80.0)
    assert cut(attribute, histogram, None) == attribute
    assert cut(attribute, histogram, 99) == attribute


@pytest.mark.parametrize("heavy", [0, 2, 5])
def test_an_attribute_that_is_nearly_always_the_same_still_has_a_cutoff(heavy):
    """Also where nearly everyone is in the last bin, which has no right edge."""
    bins = np.array([3, 3, 3, 3, 3, 3])
    bins[heavy] = 1000
    found = cut(Attribute("x", (1.0, 2.0, 3.0, 4.0, 5.0)), np.array([0, *bins]), 2)
    assert found is not None
    assert abs(found.edges[0] - heavy) <= 1


@pytest.mark.parametrize("shape", ["normal", "skewed", "tailed"])
def test_bounds_center_and_scale_are_those_of_the_numbers(shape):
    draws = np.random.default_rng(3)
    values = {
        "normal": draws.normal(50, 10, size=20_000),
        "skewed": draws.exponential(10, size=20_000),
        "tailed": draws.standard_t(2, size=20_000) * 5,
    }[shape]
    values[::50] = np.nan
    edges = np.linspace(np.nanquantile(values, 0.001), np.nanquantile(values, 0.999), 900)
    line = measure(4, edges.tolist(), histogram_of(values, edges))
    width = edges[1] - edges[0]
    present = values[~np.isnan(values)]
    low, middle, high = np.quantile(present, [TAIL, 0.5, 1 - TAIL], method="inverted_cdf")
    assert line.attribute == 4
    assert abs(line.low - low) <= 1.01 * width
    assert abs(line.high - high) <= 1.01 * width
    assert abs(line.center - middle) <= 1.01 * width
    held = np.clip(present, line.low, line.high)
    assert line.scale == pytest.approx(RULE_DEVIATION / held.std(), rel=0.005)
    assert (line.scale * (held - line.center)).std() == pytest.approx(RULE_DEVIATION, rel=0.005)


@given(st.lists(st.integers(-20, 1000), min_size=3, max_size=30), st.integers(0, 1000))
def test_a_linear_term_is_always_within_what_sites_accept(bins, seed):
    draws = np.random.default_rng(seed)
    edges = np.cumsum(draws.exponential(size=len(bins) - 1) * 10.0 ** draws.integers(-6, 7))
    line = measure(0, edges.tolist(), np.array([5, *bins]))
    if line is not None:
        RuleTerms((Attribute("x", tuple(edges.tolist())),), lines=(line,)).check()
    else:
        held = np.maximum(bins, 0)
        share = np.cumsum(held) / max(1, held.sum())
        spread = np.searchsorted(share, 1 - TAIL) > np.searchsorted(share, TAIL)
        at_end = np.searchsorted(share, TAIL) >= len(edges) - 1
        assert not spread or at_end or held.sum() == 0


def test_a_spike_in_a_wide_range_has_no_linear_term():
    edges = [0.0, *np.linspace(1, 1e7, 50).tolist()]
    bins = np.zeros(52, dtype=np.int64)
    bins[0], bins[-1] = 97, 3
    assert measure(0, edges, np.array([0, *bins])) is not None
    bins[0], bins[-1] = 10**9, 1
    assert measure(0, edges, np.array([0, *bins])) is None
    assert measure(0, [0.5], np.array([0, 5, 5])) is None
    assert measure(0, EDGES, np.array([9, 0, 0, 0, 0])) is None


def site(attributes, unbinned=(), classes=(0, 1)):
    seen = [AttributeSeen(name, list(values), numeric) for name, (values, numeric) in attributes.items()]
    return SchemaSeen(seen, list(classes), 10, list(unbinned), False)


def test_attributes_that_every_site_has_are_united():
    one = site({"k": ([1, 2], True), "sex": (["f", "m"], False), "age": ([], True)})
    two = site({"k": ([2, 5, None], True), "sex": (["m", "x"], False), "age": ([], True)})
    attributes, left_out = share_attributes({"one": one, "two": two}, {"age": [40, 60]})
    assert attributes == [
        Attribute("age", (40.0, 60.0)),
        Attribute("k", (2.0, 5.0)),
        Attribute("sex", (), ("f", "m", "x")),
    ]
    assert left_out == {}


def test_what_is_left_out_is_said_with_the_site():
    one = site({"a": ([1, 2], True), "b": (["x"], False), "c": ([3], True), "d": (["u", "v"], False)})
    two = site({"b": (["x", None], False), "c": ([3], True), "d": (["v"], False)}, unbinned=["n"])
    three = site(
        {"a": ([1, 2], True), "b": (["x"], False), "c": ([3], True), "d": ([], False), "n": ([1, 2], True)}
    )
    attributes, left_out = share_attributes({"one": one, "two": two, "three": three}, {})
    assert [attribute.name for attribute in attributes] == ["d"]
    assert left_out == {
        "a": "not known at two, or withheld there",
        "b": "the same for everybody",
        "c": "the same for everybody",
        "n": "not known at one, or withheld there",
    }


def test_numbers_at_one_site_and_text_at_another_are_categories():
    one, two = site({"k": ([1, 2], True)}), site({"k": (["2", "unknown"], False)})
    (attribute,), _ = share_attributes({"one": one, "two": two}, {})
    assert attribute == Attribute("k", (), ("1", "2", "unknown"))


def test_a_site_with_nothing_but_missing_values_does_not_make_a_number_a_category():
    one, two = site({"k": ([1, 2, 4], True)}), site({"k": ([None], True)})
    (attribute,), _ = share_attributes({"one": one, "two": two}, {})
    assert attribute == Attribute("k", (2.0, 4.0))


def test_numbers_with_too_many_values_are_not_cut_at_each_of_them():
    sites = {str(part): site({"k": (list(range(part * 250, part * 250 + 250)), True)}) for part in range(5)}
    attributes, left_out = share_attributes(sites, {})
    assert attributes == []
    assert left_out["k"] == "a number with 1250 values"


@pytest.mark.parametrize(
    ("histogram", "is_missed"),
    [
        ([0, 9, 0, 0, 0], True),
        ([3, 0, 0, 0, 9], True),
        ([0, 9, 0, 0, 1], False),
        ([0, 0, 9, 0, 0], False),
        ([5, 0, 0, 0, 0], False),
        ([0, 9, -3, -1, -2], True),
        ([0, 9, 0], False),
    ],
)
def test_bins_miss_all_patients_where_all_are_beyond_one_end(histogram, is_missed):
    assert missed(np.array(histogram)) is is_missed


@pytest.mark.parametrize(
    ("values", "would"),
    [
        ([0.02, 0.5], "edges between 0.01 and 1 would do"),
        ([5000.0, 123456.0], "edges between 1000 and 1e+06 would do"),
        ([-3.0, 7.0], "edges between -10 and 10 would do"),
        ([1e12], "edges between 1e+09 and inf would do"),
    ],
)
def test_a_range_that_would_do_holds_the_numbers(values, would):
    said = say_missed(EDGES, histogram_of(np.array(values), WIDE_EDGES))
    assert said == f"its bins, 10 to 30, miss all patients: {would}"


def test_where_no_range_may_be_told_none_is():
    """Sites that leave small counts out tell nothing of where their patients are."""
    said = say_missed(EDGES, np.zeros(35, dtype=np.int64))
    assert said == "its bins, 10 to 30, miss all patients: give edges within the range of the column"
