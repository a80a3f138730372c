"""Cutoffs on the public grid: the even quantiles of the pooled column, whatever its sign, size and gaps."""

from __future__ import annotations

import math
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.models import grid
from concilium.models.grid import CUTOFFS, ask_cutoffs, merge_cutoffs
from concilium.protocol.grid import DECADES, HIGHEST, LOWEST, on_grid


def count(attribute, values):
    """The histogram of an attribute at its edges, as sites count it: missing first."""
    known = values[~np.isnan(values)]
    cells = np.searchsorted(attribute.edges, known, side="right")
    return np.concatenate(
        [[len(values) - len(known)], np.bincount(cells, minlength=len(attribute.edges) + 1)]
    )


def find(columns, dates=(), cutoffs=CUTOFFS, variance=0.0, seed=0):
    """Cutoffs, reasons, and the edges of the second question."""
    columns = {name: np.asarray(values, dtype=float) for name, values in columns.items()}
    chance = np.random.default_rng(seed)
    asked = []
    conversation = ask_cutoffs(list(columns), lambda them: (them, variance), dates=dates, cutoffs=cutoffs)
    try:
        question = next(conversation)
        while True:
            asked.append({attribute.name: attribute.edges for attribute in question})
            counts = np.concatenate([count(a, columns[a.name]) for a in question])
            if variance:
                counts = counts + np.rint(chance.normal(0, math.sqrt(variance), len(counts))).astype(int)
            question = conversation.send(counts[None, :, None])
    except StopIteration as end:
        assert len(asked) <= 2
        return *end.value, asked[1] if len(asked) > 1 else {}


def by_brute_force(values, edges, cutoffs=CUTOFFS):
    """For every even quantile the edge below the least value of a higher cell; none where nobody is above."""
    known = np.sort(values[~np.isnan(values)])
    chosen = set()
    for part in range(1, cutoffs + 1):
        # The least value that at least part/(cutoffs + 1) of the patients do not exceed, in whole numbers.
        place = -(-part * len(known) // (cutoffs + 1)) - 1
        above = [edge for edge in edges if edge > known[place]]
        higher = known[known >= above[0]] if above else []
        if len(higher):
            chosen.add(max(edge for edge in edges if edge <= higher[0]))
    return tuple(sorted(chosen))


SIGNS = st.sampled_from([1.0, -1.0, 0.0])


@st.composite
def columns_of_numbers(draw):
    """Numbers of any sign and magnitude: around one size, over many decades, whole, few values, or with gaps."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(1, 400))
    power = draw(st.integers(LOWEST, HIGHEST - 1))
    kind = draw(st.sampled_from(["narrow", "wide", "whole", "few", "both signs", "digits"]))
    values = {
        "narrow": lambda: 10.0**power * chance.normal(3, 0.5, size),
        "wide": lambda: chance.choice([-1, 1], size) * 10.0 ** chance.uniform(-8, 11, size),
        "whole": lambda: chance.integers(-50, 120, size).astype(float),
        "few": lambda: chance.choice(10.0**power * chance.normal(0, 1, 3), size),
        "both signs": lambda: 10.0**power * chance.standard_cauchy(size),
        "digits": lambda: np.round(chance.gamma(2, 40, size), 1),
    }[kind]()
    gone = chance.random(size) < draw(st.sampled_from([0.0, 0.0, 0.3, 0.95]))
    return np.where(gone, np.nan, values)


@given(values=columns_of_numbers(), cutoffs=st.sampled_from([1, 4, CUTOFFS]))
@settings(max_examples=300, deadline=None)
def test_cutoffs_are_the_even_quantiles_of_the_pooled_column(values, cutoffs):
    chosen, without, again = find({"x": values}, cutoffs=cutoffs)
    if np.isnan(values).all():
        assert (chosen, without) == ({}, {"x": "missing for everybody"})
        return
    if not np.nanmin(values) >= -(10.0**HIGHEST) or not np.nanmax(values) < 10.0**HIGHEST:
        assert (chosen, without) == ({}, {"x": grid.BEYOND})
        return
    edges = again["x"]
    assert list(edges) == sorted(set(edges))
    assert len(edges) <= 1000
    assert all(on_grid(edge) for edge in edges)
    expected = by_brute_force(values, edges, cutoffs)
    assert chosen.get("x", ()) == expected
    assert len(expected) <= cutoffs
    assert ("x" in without) == (not expected)


@given(values=columns_of_numbers())
@settings(max_examples=200, deadline=None)
def test_a_cutoff_is_within_a_cell_of_its_quantile(values):
    """By numpy, without the edges: above each quantile there is a cutoff no further than the cell of the next value."""
    known = np.sort(values[~np.isnan(values)])
    size = np.abs(known)
    assume(len(known) and size.min() >= 10.0**LOWEST and size.max() < 10.0**HIGHEST)
    decades = {
        (sign, math.floor(math.log10(abs(v)) + 1e-12)) for v, sign in zip(known, np.sign(known), strict=True)
    }
    assume(len(decades) <= 10)  # of more decades some are not looked at again
    chosen = np.array(find({"x": values})[0].get("x", ()))

    def width(value):
        return 10.0 ** (math.floor(math.log10(abs(value)) + 1e-12) - 1)  # ten cells of the finest grid

    for quantile in np.quantile(known, np.arange(1, CUTOFFS + 1) / (CUTOFFS + 1), method="inverted_cdf"):
        higher = known[known >= quantile + 2 * width(quantile)]
        if len(higher):
            assert np.any((chosen > quantile - 1e-9 * abs(quantile)) & (chosen <= higher[0])), quantile
    # And each parts the patients: some lie below it, some do not.
    assert all(0 < np.sum(known < cutoff) < len(known) for cutoff in chosen)


@given(values=columns_of_numbers(), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_several_columns_are_cut_as_each_alone(values, seed):
    other = np.random.default_rng(seed).normal(120, 15, len(values))
    together = find({"x": values, "other": other})
    for name, column in (("x", values), ("other", other)):
        alone = find({name: column})
        assert together[0].get(name) == alone[0].get(name)
        assert together[1].get(name) == alone[1].get(name)


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 1e-9, 1e12, -1e12, 37.123, 1e-6, 1e9, -1e9])
def test_a_constant_has_no_cutoffs(value):
    chosen, without, _ = find({"x": [value] * 50})
    assert chosen == {}
    assert list(without) == ["x"]
    if abs(value) < 1e9:
        assert "the same for nearly everybody" in without["x"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (1e10 + 1e9 * np.arange(50), grid.BEYOND),
        (-1e10 - 1e9 * np.arange(50), grid.BEYOND),
        (1e-8 * (1 + np.arange(50)), "the same for nearly everybody, or nearer to 0 than 1e-6"),
        ([np.inf] * 9, grid.BEYOND),
        ([*np.arange(100.0), np.inf], grid.BEYOND),
        ([*np.arange(100.0), -np.inf], grid.BEYOND),
    ],
)
def test_what_lies_beyond_the_grid_is_said(values, said):
    chosen, without, _ = find({"x": values})
    assert (chosen, without) == ({}, {"x": said})


def test_one_value_per_patient_and_two_values():
    values = np.arange(1, 2001) / 10
    chosen, _, _ = find({"x": values})
    assert len(chosen["x"]) == CUTOFFS
    parts = np.bincount(np.searchsorted(chosen["x"], values, side="right"))
    assert (
        np.abs(parts - 2000 / (CUTOFFS + 1)).max() <= 50
    )  # a cell of the third decade, 5 wide, holds 50 values
    assert find({"x": [0.0] * 30 + [1.0] * 30})[0] == {"x": (1.0,)}
    assert find({"x": [-3.0] * 30 + [0.0] * 30 + [4.0] * 30})[0] == {"x": (0.0, 4.0)}


def test_nothing_is_asked_of_no_numbers():
    assert find({}) == ({}, {}, {})


@given(st.integers(1905, 2090), st.integers(1, 4000), st.integers(20, 300), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_dates_are_cut_at_the_beginning_or_the_middle_of_months(year, days, size, seed):
    chance = np.random.default_rng(seed)
    start = date(min(year, 2085), 1, 1).toordinal()
    values = (start + chance.integers(0, min(days, 5000), size)).astype(float)
    chosen, without, again = find({"d": values}, dates={"d"})
    expected = by_brute_force(values, again["d"])
    assert chosen.get("d", ()) == expected
    assert ("d" in without) == (not expected)
    for cutoff in chosen.get("d", ()):
        assert date.fromordinal(int(cutoff)).day in (1, 16)
        assert on_grid(cutoff)
    # No quantile is further from a cutoff than the next patient's half of a month.
    for quantile in np.quantile(values, np.arange(1, CUTOFFS + 1) / (CUTOFFS + 1), method="inverted_cdf"):
        higher = values[values >= quantile + 17]
        if len(higher):
            assert any(quantile < cutoff <= higher.min() for cutoff in chosen["d"])


def test_on_grid():
    for edge in (
        *DECADES,
        *grid.YEARS,
        0.0,
        -0.0,
        5.0,
        -37.2,
        0.123,
        1.23e-6,
        999e7,
        date(2024, 2, 16).toordinal(),
    ):
        assert on_grid(float(edge)), edge
    for edge in (
        37.25,
        1.2345,
        -1001.0,
        738000.0 + 1,
        date(2024, 2, 17).toordinal(),
        math.nan,
        math.inf,
        -math.inf,
    ):
        assert not on_grid(float(edge)), edge


@given(
    values=columns_of_numbers(),
    variance=st.sampled_from([0.01, 1.0, 25.0, 900.0]),
    cutoffs=st.sampled_from([1, 5, CUTOFFS]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=300, deadline=None)
def test_noisy_cutoffs_rise_lie_on_the_grid_and_are_never_too_many(values, variance, cutoffs, seed):
    chosen, without, again = find({"x": values}, cutoffs=cutoffs, variance=variance, seed=seed)
    assert set(chosen) | set(without) == {"x"}
    for edges in chosen.values():
        assert list(edges) == sorted(set(edges))
        assert 1 <= len(edges) <= cutoffs
        assert all(on_grid(edge) for edge in edges)
        low, high = again["x"][0], again["x"][-1]
        assert all(low <= edge <= high for edge in edges)


@pytest.mark.parametrize("sign", [1, -1])
def test_noisy_cutoffs_do_not_divide_zero(sign):
    values = sign * np.repeat([0.0, 1.0, 2.0, 3.0], [600, 200, 100, 100])
    chosen, _, _ = find({"visits": values}, variance=4.0)
    assert not [edge for edge in chosen["visits"] if 0 < abs(edge) < 1e-6]
    assert any(min(0, sign) < edge <= max(0, sign) for edge in chosen["visits"])  # none, and some


@given(st.integers(0, 10**6), st.sampled_from([1.0, -1.0]), st.integers(-4, 6))
@settings(max_examples=60, deadline=None)
def test_with_little_noise_they_are_near_the_quantiles(seed, sign, power):
    chance = np.random.default_rng(seed)
    values = sign * 10.0**power * chance.uniform(2, 9, 20_000)
    chosen, _, _ = find({"x": values}, variance=4.0, seed=seed)
    assert len(chosen["x"]) >= 10
    expected = np.quantile(values, np.arange(1, len(chosen["x"]) + 1) / (len(chosen["x"]) + 1))
    # Two digits, and a third where the first is 1: within .05 of the first digit, and what noise and cells add.
    assert np.abs(np.array(chosen["x"]) - expected).max() <= 0.12 * 10.0**power


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=60))
def test_the_rising_sequence_is_that_of_isotonic_regression(values):
    isotonic = pytest.importorskip("sklearn.isotonic")
    ours = grid._rise(np.array(values, dtype=float))
    theirs = isotonic.IsotonicRegression().fit_transform(np.arange(len(values)), values)
    np.testing.assert_allclose(ours, np.clip(theirs, 0, None), atol=1e-6)
    assert np.all(np.diff(ours) >= 0)


def test_stated_cutoffs_come_before_those_of_the_grid():
    assert merge_cutoffs({"a": (1, 2)}, {"a": (3.0,), "b": (4.0,)}) == {"a": [1, 2], "b": [4.0]}


def make_rows(size=240):
    chance = np.random.default_rng(5)
    return [
        {
            "lab": float(chance.lognormal(3, 1)),
            "change": float(chance.normal(0, 0.01)),
            "count": int(chance.integers(0, 40)),
            "seen": (date(2020, 1, 1) + timedelta(days=int(chance.integers(0, 90)))).isoformat(),
            "same": 37.5,
            "never": None,
            "wild": [math.inf, -math.inf, 1.0, 2.5][i % 4],
            "y": "ny"[int(chance.random() < 0.4)],
        }
        for i in range(size)
    ]


@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize("make", [cc.DecisionTree, cc.NaiveBayes])
def test_models_cut_the_columns_of_hospitals_there(release, make):
    """The pooled quantiles, from three hospitals whose tables differ, in two questions more."""
    rows = make_rows()
    order = sorted(rows, key=lambda row: row["lab"])  # one hospital has the low values, another the high ones
    parts = {"low": order[:60], "middle": order[60:130], "high": order[130:]}
    schema = dict.fromkeys(("lab", "change", "count", "same", "wild", "never"), "number")
    house = cc.House(
        [cc.Site(name, cc.Records.from_rows(part, schema=schema)) for name, part in parts.items()]
    )
    model = make("y", release=release).fit(house)
    columns = {
        name: [math.nan if row[name] is None else row[name] for row in rows]
        for name in ("lab", "change", "count", "same", "never", "wild")
    }
    columns["seen"] = [date.fromisoformat(row["seen"]).toordinal() for row in rows]
    chosen, without, _ = find(columns, dates={"seen"})
    assert {name: tuple(edges) for name, edges in model.body.bins.items()} == chosen
    assert set(without) == {"same", "never", "wild"}
    (said,) = [warning for warning in model.card.warnings if warning.startswith("left out")]
    assert "never (missing for everybody)" in said
    assert "same (the same for nearly everybody" in said
    assert said.removeprefix("left out: ") in model.text()


def test_under_noise_text_and_numbers_that_it_hides_are_told_apart():
    """Where no cell stands out: text is missing for everybody, and few patients over many decades are nowhere."""
    text = np.full(600, np.nan)
    hidden = 10.0 ** np.linspace(-5, 8, 40)
    for seed in range(20):
        assert find({"x": text}, variance=400, seed=seed)[1] == {"x": grid.TEXT}
    reasons = [find({"x": hidden}, variance=400, seed=seed)[1].get("x") for seed in range(20)]
    assert grid.HIDDEN in reasons
    assert grid.TEXT not in reasons


def part_evenly(values, cutoffs):
    """How evenly cutoffs part the values: the entropy of the parts, in bits."""
    parts = np.diff([0.0, *(float(np.mean(values < cutoff)) for cutoff in cutoffs), 1.0])
    parts = parts[parts > 0]
    return float(-(parts * np.log2(parts)).sum())


def test_noisy_cutoffs_of_a_narrow_clinical_range_are_where_patients_are():
    """Sodium is 139, give or take 4: by its name alone its cutoffs are looked for there."""
    sodium = np.random.default_rng(1).normal(139, 4, 1500).round()
    bits = {
        name: np.mean(
            [part_evenly(sodium, find({name: sodium}, variance=400, seed=seed)[0][name]) for seed in range(8)]
        )
        for name in ("sodium", "x")
    }
    assert bits["sodium"] > bits["x"] + 1
    edges = find({"sodium": sodium}, variance=400)[2]["sodium"]
    assert all(on_grid(edge) for edge in edges)
    assert {135.0, 140.0} <= set(edges)


def test_a_known_name_in_another_unit_is_cut_as_any_number():
    sodium = np.random.default_rng(1).normal(13.9, 0.4, 1500).round(1)
    assert find({"sodium": sodium}, variance=400)[0]["sodium"] == find({"x": sodium}, variance=400)[0]["x"]
    exact = np.random.default_rng(1).normal(139, 4, 1500).round()
    assert find({"sodium": exact})[0]["sodium"] == find({"x": exact})[0]["x"]
