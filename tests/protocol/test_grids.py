"""Codes of numbers on the public grid, and counts of them: as numpy places them, for every number there is."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import MessageError
from concilium.policy.policy import Policy
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.counts import AskCounts
from concilium.protocol.grid import DECADES, FEW_NUMBERS, YEARS, Grid, GridCodes, _list_edges, bin_codes
from concilium.records.columns import Numbers
from concilium.records.table import Records

EDGES = _list_edges(is_date=False)
UNUSUAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 5e-324, -5e-324, 1e300, -1e300, 1e-7, -1e-7])


def by_numpy(values, edges):
    codes = np.searchsorted(edges, values, side="right") + 1
    return np.where(np.isnan(values), 0, codes)


def draw_numbers(seed, size):
    draw = np.random.default_rng(seed)
    known = draw.choice([-1, 1], size) * 10.0 ** draw.uniform(-9, 12, size)
    return np.where(draw.random(size) < 0.1, draw.choice(UNUSUAL, size), known)


def test_every_edge_of_the_grid_and_its_neighbours_are_placed_as_by_numpy():
    values = np.concatenate([EDGES, np.nextafter(EDGES, np.inf), np.nextafter(EDGES, -np.inf), UNUSUAL])
    assert len(values) > FEW_NUMBERS
    placed = GridCodes.place(values, is_date=False)
    expected = by_numpy(values, EDGES)
    np.testing.assert_array_equal(placed.codes, expected)
    zero = DECADES.index(0.0)
    split = tuple(place for place in range(1, len(DECADES)) if place not in (zero, zero + 1))
    everything = Grid(0, len(DECADES), split)
    assert everything.find_edges(is_date=False) == tuple(EDGES)
    np.testing.assert_array_equal(
        placed.count(everything, None), np.bincount(expected, minlength=len(EDGES) + 2)
    )


@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 300, FEW_NUMBERS + 1]), split=st.booleans())
@settings(max_examples=40, deadline=None)
def test_codes_and_counts_between_edges_of_the_grid_are_those_of_the_numbers(seed, size, split):
    values = draw_numbers(seed, size)
    draw = np.random.default_rng(seed)
    first, last = sorted(draw.choice(len(DECADES) + 1, 2, replace=False).tolist())
    grid = Grid(first, last, (20, 22) if split else (), 5)
    edges = grid.find_edges(is_date=False)
    placed = GridCodes.place(values, is_date=False)
    expected = by_numpy(values, edges)
    np.testing.assert_array_equal(placed.merge(edges), expected)
    np.testing.assert_array_equal(bin_codes(values, edges), expected)
    rows = np.flatnonzero(draw.random(size) < 0.5).astype(np.int32)
    for chosen in (None, rows):
        taken = expected if chosen is None else expected[chosen]
        np.testing.assert_array_equal(
            placed.count(grid, chosen), np.bincount(taken, minlength=len(edges) + 2)
        )


def test_edges_beside_the_grid_are_not_merged():
    placed = GridCodes.place(np.arange(50.0), is_date=False)
    assert placed.merge((0.5, 37.25)) is None
    assert placed.merge((0.5, 2e9)) is None
    view = View(Records({"x": Numbers(np.arange(50.0) + 0.3)}), Policy())
    view.place_on_grid("x", is_date=False)
    assert view.binned("x", (10.0, 37.25)).tolist() == [
        1 + (v >= 10) + (v >= 37.25) for v in np.arange(50) + 0.3
    ]


@pytest.mark.parametrize("query", ["", "x > 3"])
def test_a_question_that_names_the_grid_counts_as_one_that_states_its_edges(query):
    table = Records({"x": Numbers(draw_numbers(3, 500)), "y": Numbers(np.arange(500) + 0.5)})
    named = (Attribute("x", grid=Grid(0, len(DECADES), (21,), 1)), Attribute("y", grid=Grid(0, 30)))
    stated = tuple(Attribute(one.name, one.edges) for one in named)
    view = View(table, Policy())
    answers = [
        AskCounts(query=query, target="", attributes=attributes, totals=totals).compute(
            view.select(query, "")
        )
        for attributes in (named, stated)
        for totals in (True, False)
    ]
    np.testing.assert_array_equal(answers[0], answers[2])
    np.testing.assert_array_equal(answers[1], answers[3])


@pytest.mark.parametrize(
    "grid",
    [
        Grid(0, 0),
        Grid(5, 3),
        Grid(-1, 3),
        Grid(0, len(DECADES) + 1),
        Grid(0, 3, (DECADES.index(0.0),), 1),
        Grid(0, 3, (DECADES.index(0.0) + 1,), 1),
        Grid(0, 3, (len(DECADES),), 1),
        Grid(0, 3, (2, 3), 1),
        Grid(0, 3, (), 0),
        Grid(0, 3, (2,), 10**9),
    ],
)
def test_cells_that_the_grid_does_not_have_are_refused(grid):
    with pytest.raises(MessageError, match="does not have"):
        Attribute("x", grid=grid).check()


def test_a_grid_goes_with_no_other_cells():
    one = Attribute("x", grid=Grid(0, 3))
    one.check()
    Attribute("day", date=True, grid=Grid(0, len(YEARS), tuple(range(1, 31)))).check()
    for change in ({"stated_edges": (1.0,)}, {"values": ("a",)}):
        with pytest.raises(MessageError):
            msgspec.structs.replace(one, **change).check()
