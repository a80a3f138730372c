"""Sums of reals through regions: the flat house's to the last bit, whatever the tiers and whatever the signs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_patients import BINS, Forging, draw, records_of, small_rulefit

import concilium as cc
from agreed import draft
from concilium.errors import HouseError
from concilium.models.outcome import Outcome
from concilium.protocol.attributes import Attribute
from concilium.protocol.messages import encode
from concilium.protocol.sums import choose_places, pack
from concilium.rulefit.fedda import AskDual
from concilium.rulefit.fitting import AskFit, AskRates, Coefficients
from concilium.rulefit.generation import Rules
from concilium.rulefit.terms import Line, RuleTerms, write_terms

TERMS = RuleTerms(
    tuple(Attribute(name, tuple(edges)) for name, edges in sorted(BINS.items())),
    (((0, 1, 20),), ((0, 25, 42), (1, 1, 24)), ((2, 0, 10, 30, 42),)),
    (Line(0, -2.0, 2.0, 0.0, 0.4), Line(3, -1.9, 2.1, 0.1, 0.5)),
)
EACH = 12
HOSPITALS = 9


def open_sites(count, seed=1):
    table, outcome = draw(EACH * count, seed)
    return [
        cc.Site(f"s{part}", records_of(table[part::count], outcome[part::count])) for part in range(count)
    ]


@pytest.mark.parametrize("count", [20, 33])
def test_regions_of_small_hospitals_make_the_model_of_the_flat_house(count):
    """Sums of few patients are small, and negative as often as not: nobody may narrow them as if they were counts."""
    flat = small_rulefit(support=5).fit(cc.House(open_sites(count)))
    assert any(value < 0 for value in flat.coef_)
    for each in (1, 3, count):
        sites = open_sites(count)
        parts = [sites[start : start + each] for start in range(0, count, each)]
        regions = [cc.Region(f"region {place}", cc.House(part)) for place, part in enumerate(parts)]
        assert small_rulefit(support=5).fit(cc.House(regions)).body == flat.body
        above = cc.House([cc.Region("north", cc.House(regions[::2])), *regions[1::2]])
        assert small_rulefit(support=5).fit(above).body == flat.body


def build_tiers(shape, sites, names):
    """A shape is a number of hospitals, or a list of shapes, each a region."""
    if isinstance(shape, int):
        return [next(sites) for _ in range(shape)]
    parts = [part for one in shape for part in build_tiers(one, sites, names)]
    return [cc.Region(f"region {next(names)}", cc.House(parts))]


def count_hospitals(shape):
    return shape if isinstance(shape, int) else sum(map(count_hospitals, shape))


SHAPES = st.recursive(
    st.integers(1, 4), lambda below: st.lists(below, min_size=1, max_size=3), max_leaves=5
).filter(lambda shape: count_hospitals(shape) <= HOSPITALS)
NUMBERS = st.floats(-3, 3)


@st.composite
def questions(draw_, places):
    binary = draw_(st.booleans())
    base = {
        "query": draw_(st.sampled_from(["", "a > -1"])),
        "target": "y" if binary else "d",
        "outcome": Outcome(positive=draw_(st.sampled_from([0, 1])))
        if binary
        else Outcome(low=-2.0, high=1.0),
        "places": places,
    }
    match draw_(st.sampled_from(["fit", "dual", "rates"])):
        case "fit":
            columns = tuple(draw_(st.lists(st.integers(0, len(TERMS) - 1), unique=True)))
            values = draw_(st.lists(NUMBERS, min_size=len(columns), max_size=len(columns)))
            candidates = (Coefficients(draw_(NUMBERS), columns, tuple(values)), Coefficients())
            return AskFit(**base, terms=write_terms(TERMS), candidates=candidates, working=columns)
        case "dual":
            dual = np.array(draw_(st.lists(NUMBERS, min_size=len(TERMS) + 1, max_size=len(TERMS) + 1)))
            steps = {"penalty": 0.01, "before": 0.5, "step": 0.1, "local": draw_(st.integers(1, 4))}
            return AskDual(**base, terms=write_terms(TERMS), dual=pack(dual), **steps)
        case _:
            return AskRates(**base, terms=TERMS)


@given(st.data(), SHAPES, st.integers(0, 100), st.sampled_from([0, 3, None]))
@settings(max_examples=60)
def test_sums_through_any_tiers_are_those_of_the_flat_house_to_the_last_bit(data, shape, seed, places):
    count = count_hospitals(shape)
    question = data.draw(questions(choose_places(count) if places is None else places))
    regions = build_tiers(shape, iter(open_sites(count, seed)), iter(range(100)))
    sums = []
    for parts in (open_sites(count, seed), regions):
        with cc.House(parts).open(draft(query=question.query, target=question.target)) as run:
            sums.append(run.ask(question))
    assert sums[0].dtype == sums[1].dtype == np.int64
    assert np.array_equal(*sums)


def test_a_site_of_a_region_that_sends_what_is_no_rule_ends_the_study():
    sites = open_sites(4)
    forging = Forging(sites[3], "rulefit.rules", encode(Rules((((0, 5, 2),),))))
    house = cc.House([cc.Region("north", cc.House([sites[2], forging])), *sites[:2]])
    with pytest.raises(HouseError, match="north: a rule's condition is not in canonical form"):
        small_rulefit(support=5).fit(house)
