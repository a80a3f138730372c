"""Rules from a public seed, and the second moments of columns: both from noisy shares alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.protocol.attributes import Attribute
from concilium.records.columns import Coded
from concilium.rulefit.design import build
from concilium.rulefit.private_terms import (
    LEAST_SHARE,
    LEAST_SUPPORT,
    Shape,
    _hash_uniform,
    _list_conditions,
    draw_rules,
    find_products,
    multiply,
)
from concilium.rulefit.terms import Line, RuleTerms, Steps, check_rules, read_codes

ATTRIBUTES = (
    Attribute("age", (30.0, 50.0, 70.0)),
    Attribute("sex", (), ("f", "m")),
    Attribute("wbc", (4.0, 12.0)),
)


def shapes_of(shares, deviations=(1.0, 0.5, 0.2)):
    found = []
    for attribute, share, deviation in zip(ATTRIBUTES, shares, deviations, strict=True):
        heights = np.zeros(attribute.size)
        heights[1] = deviation
        total = np.array(share) + 1e-12
        found.append(Shape(attribute, total / total.sum(), heights, np.zeros(attribute.size)))
    return found


SHARES = st.tuples(*[st.lists(st.floats(0, 1), min_size=a.size, max_size=a.size) for a in ATTRIBUTES])


@settings(max_examples=50)
@given(shares=SHARES, seed=st.integers(0, 2**62))
def test_rules_are_canonical_different_and_follow_from_the_seed(shares, seed):
    shapes = shapes_of(shares)
    rules = draw_rules(shapes, 15, seed)
    assert rules == draw_rules(shapes, 15, seed)
    assert rules == sorted(set(rules))
    assert len(rules) <= 15
    for rule in rules:
        check_rules([rule], ATTRIBUTES)
        assert len(rule) in (2, 3)
        held = [float(shapes[c[0]].shares[sorted(read_codes(c))].sum()) for c in rule]
        assert np.prod(held) >= LEAST_SUPPORT * (1 - 1e-9)
        assert all(LEAST_SHARE <= share <= 1 - LEAST_SHARE for share in held)


def test_another_seed_draws_other_rules_and_a_flat_attribute_is_in_none():
    even = [[0.0, 1, 1, 1, 1], [0.0, 1, 1, 0], [0.0, 1, 1, 1]]
    assert draw_rules(shapes_of(even), 10, 1) != draw_rules(shapes_of(even), 10, 2)
    drawn = draw_rules(shapes_of(even, (1.0, 0.5, 0.0)), 10, 1)
    assert drawn
    assert {condition[0] for rule in drawn for condition in rule} == {0, 1}
    assert draw_rules(shapes_of(even, (1.0, 0.0, 0.0)), 10, 1) == []


def test_attributes_are_drawn_as_often_as_their_shapes_say():
    even = [[0.0, 1, 1, 1, 1], [0.0, 1, 1, 0], [0.0, 1, 1, 1]]
    pairs = [rule for rule in draw_rules(shapes_of(even, (1.0, 0.5, 0.05)), 40, 3) if len(rule) == 2]
    assert sum((0 in {c[0] for c in rule}) for rule in pairs) > len(pairs) / 2


def test_missing_patients_are_in_conditions_only_where_they_are_many():
    few = shapes_of([[0.1, 1, 1, 1, 1], [0.0, 1, 1, 0], [3, 1, 1, 1]])
    assert not any(0 in codes for codes in _list_conditions(few[0]))
    assert {0} in _list_conditions(few[2])
    assert {1, 2, 3} in _list_conditions(few[2])
    assert _list_conditions(few[1]) == [{1}, {2, 3}, {2}, {1, 3}]


def test_hashed_numbers_are_uniform():
    drawn = np.array([_hash_uniform(5, turn, "x") for turn in range(4000)])
    counts = np.bincount((drawn * 20).astype(int), minlength=20)
    assert ((counts - 200) ** 2 / 200).sum() < 44  # chi-squared, 19 degrees of freedom, p = 0.001
    assert 0 <= drawn.min() <= drawn.max() < 1


class Cells:
    """A source of patients of whom the codes are known, and for each code of a number its middle."""

    def __init__(self, cells, middles):
        names = [attribute.name for attribute in ATTRIBUTES]
        self.codes = dict(zip(names, cells.T.astype(np.uint8), strict=True))
        self.middles = dict(zip(names, middles, strict=True))

    def binned(self, name, edges):
        return self.codes[name]

    def reread(self, name):
        return None

    def coded(self, name):
        return Coded(self.codes[name], ("f", "m", "any other"))

    def measured(self, name, rows=None):
        return self.middles[name][self.codes[name]]


@settings(max_examples=25)
@given(shares=SHARES, height=st.floats(-3, 3))
def test_moments_are_those_of_a_table_with_every_combination(shares, height):
    shapes = shapes_of(shares)
    terms = RuleTerms(
        ATTRIBUTES,
        rules=(((0, 2, 3), (1, 1, 1)), ((0, 0, 1), (2, 1, 1)), ((1, 2, 3),)),
        lines=(Line(0, 30.0, 70.0, 50.0, 0.05),),
        steps=(Steps(1, (0.0, height, 1.0, -1.0)), Steps(2, (0.5, -1.0, height, 2.0))),
    )
    middles = [np.array([np.nan, 30.0, 40.0, 60.0, 70.0]), np.zeros(4), np.array([np.nan, 4, 8, 12])]
    cells = np.array(list(itertools.product(*(range(a.size) for a in ATTRIBUTES))))
    weight = np.prod([each.shares[cells[:, i]] for i, each in enumerate(shapes)], axis=0)
    design = build(terms, len(cells), Cells(cells, middles))
    table = np.column_stack([design.ones, design.matrix()])
    expected = table.T @ (table * weight[:, None])
    found = multiply(find_products(terms, middles), [each.shares for each in shapes])
    assert found == pytest.approx(expected, abs=1e-9)
