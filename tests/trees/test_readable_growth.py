"""Readable trees: equal to the pooled one, halves as good as any, no small leaf, and no story told by chance."""

from __future__ import annotations

import itertools
import math
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.protocol.attributes import MISSING, Attribute
from concilium.trees.grouping import WORTH, WORTH_AT_ROOT, WORTH_OF_VALUES, halve


@st.composite
def dealt_tables(draw, most_rows=160):
    """A table of numbers, whole numbers, categories and dates, some missing, and the site of every patient."""
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    count = draw(st.integers(12, most_rows))
    classes = draw(st.sampled_from([["no", "yes"], [0, 1], ["a", "b", "c"]]))
    scale = draw(st.sampled_from([1e-4, 1.0, 37.5, 1e6]))
    gaps = draw(st.sampled_from([0.0, 0.1, 0.5]))
    rows = []
    for _ in range(count):
        risk = chance.normal()
        row = {
            "lab": scale * risk,
            "age": int(50 + 12 * risk + chance.normal(0, 5)),
            "ward": f"w{chance.integers(0, 5)}" if chance.random() < 0.6 else f"w{int(risk > 0)}",
            "grade": int(chance.integers(0, 3)),
            "seen": (date(2019, 1, 1) + timedelta(days=int(chance.integers(0, 900)))).isoformat(),
        }
        row = {name: None if chance.random() < gaps else value for name, value in row.items()}
        place = int(np.clip(risk + chance.normal(0, 0.4) + len(classes) / 2, 0, len(classes) - 1))
        rows.append({**row, "y": classes[place]})
    sites = draw(st.integers(1, 5))
    owners = (
        chance.integers(0, sites, count) if draw(st.booleans()) else np.sort(chance.integers(0, sites, count))
    )
    return rows, owners


SCHEMA = {"lab": "number", "age": "number", "ward": "code", "grade": "code", "y": "code"}


def open_house(rows, owners):
    return cc.House(
        [
            cc.Site(
                f"s{site}",
                cc.Records.from_rows([rows[i] for i in np.flatnonzero(owners == site)], schema=SCHEMA),
                cc.Policy(minimum_patients=0, allow=("seen",)),
            )
            for site in np.unique(owners).tolist()
        ]
    )


@given(
    dealt=dealt_tables(),
    min_leaf=st.sampled_from([None, 1, 3, 8]),
    max_depth=st.sampled_from([None, 1, 3, "all"]),
    criterion=st.sampled_from(["entropy", "gain-ratio"]),
)
@settings(max_examples=60, deadline=None)
def test_a_readable_tree_is_that_of_the_pooled_table(dealt, min_leaf, max_depth, criterion):
    rows, owners = dealt
    options = {"min_leaf": min_leaf, "max_depth": max_depth, "criterion": criterion}
    pooled = cc.DecisionTree("y", **options).fit(open_house(rows, np.zeros(len(rows), dtype=int)))
    releases = ["exact", "masked"] if len(np.unique(owners)) >= 3 else ["exact"]
    for release in releases:
        tree = cc.DecisionTree("y", release=release, **options).fit(open_house(rows, owners))
        assert tree.body == pooled.body
        np.testing.assert_array_equal(tree.predict_proba(rows), pooled.predict_proba(rows))
    check_shape(
        pooled.body, 20 if min_leaf is None else min_leaf, {None: 5, "all": None}.get(max_depth, max_depth)
    )


def check_shape(body, min_leaf, max_depth):
    """Every question parts its patients in two, neither side too small, and none is asked too deep."""
    depth = {0: 0}
    for index, node in enumerate(body.nodes):
        children = sorted(set(node.children))
        assert len(children) in (0, 2)
        if children:
            assert np.array_equal(np.sum([body.nodes[c].counts for c in children], axis=0), node.counts)
            assert all(sum(body.nodes[c].counts) >= min_leaf for c in children)
        depth |= dict.fromkeys(children, depth[index] + 1)
    assert max_depth is None or max(depth.values()) <= max_depth


@given(dealt=dealt_tables(), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_the_order_of_patients_and_sites_changes_nothing(dealt, seed):
    rows, owners = dealt
    order = np.random.default_rng(seed).permutation(len(rows))
    renamed = owners.max() - owners[order]
    one = cc.DecisionTree("y", min_leaf=3).fit(open_house(rows, owners))
    other = cc.DecisionTree("y", min_leaf=3).fit(open_house([rows[i] for i in order], renamed))
    assert one.body == other.body


def entropy(counts):
    total = sum(counts)
    return sum(-n * math.log2(n / total) for n in counts if n)


def cost(sides, counts):
    return sum(
        entropy(np.sum([row for row, own in zip(counts, sides, strict=True) if own == s], axis=0))
        for s in (0, 1)
    )


def try_all_values(counts, min_leaf, attributes, root=False):
    """The least entropy of all ways to part these values in two; None where none is allowed, or none is worth it."""
    patients = counts.sum(axis=1)
    rare = [v for v in range(len(counts)) if 0 < patients[v] < min_leaf]
    groups = [[v] for v in range(len(counts)) if patients[v] >= max(min_leaf, 1)] + ([rare] if rare else [])
    tables = [counts[group].sum(axis=0) for group in groups]
    ways = [
        cost(sides, tables)
        for sides in itertools.product((0, 1), repeat=len(groups))
        if sides
        and sides[0] == 0
        and 1 in sides
        and min(sum(t.sum() for t, s in zip(tables, sides, strict=True) if s == side) for side in (0, 1))
        >= min_leaf
    ]
    gain = entropy(counts.sum(axis=0)) - min(ways, default=math.inf)
    worth, of_values = (WORTH_AT_ROOT, WORTH_AT_ROOT) if root else (WORTH, WORTH_OF_VALUES)
    least = worth * math.log2(attributes) + of_values * (len(groups) - 1)
    return min(ways) if ways and gain > least else None


def try_all_edges(bins, unknown, min_leaf, attributes, root=False):
    """The same of a number: all edges that have somebody on both sides, and missing values on either."""
    ways = {}
    for edge in range(1, len(bins)):
        left, right = bins[:edge].sum(axis=0), bins[edge:].sum(axis=0)
        if not left.sum() or not right.sum():
            continue
        for side in (0, 1):
            both = (left + unknown, right) if side == 0 else (left, right + unknown)
            if min(one.sum() for one in both) >= min_leaf:
                ways[tuple(left), side] = sum(map(entropy, both))  # the same patients, the same way
    gain = entropy(bins.sum(axis=0) + unknown) - min(ways.values(), default=math.inf)
    bits = math.log2(attributes) + math.log2(max(len(ways), 1))
    worth = WORTH_AT_ROOT if root else WORTH
    return (
        min(ways.values()) if ways and gain > worth * bits + 1e-9 else None
    )  # a gain of 0 may be rounded up


def read_groups(grouped, start, size):
    """The values of each group that somebody has, and what the table says of it."""
    first = grouped.first[start : start + size] - start
    return first, grouped.table[start : start + size]


@st.composite
def counted(draw, classes=2):
    """The counts of an attribute's values, in which an outcome may hang together with the value, or not."""
    size = draw(st.integers(2, 7))
    cell = st.integers(0, 3) if draw(st.booleans()) else st.sampled_from([0, 1, 2, 5, 9, 30, 80])
    return np.array(
        draw(st.lists(st.lists(cell, min_size=classes, max_size=classes), min_size=size, max_size=size))
    )


@given(
    counts=counted(),
    min_leaf=st.integers(1, 12),
    others=st.sampled_from([0, 1, 6]),
    gaps=st.booleans(),
    root=st.booleans(),
)
@settings(max_examples=600, deadline=None)
def test_values_are_parted_as_well_as_by_any_way(counts, min_leaf, others, gaps, root):
    attribute = Attribute("v", (), tuple("abcdefg"[: len(counts) - gaps]), missing=gaps, other=False)
    assert attribute.size == len(counts)
    constant = [Attribute(f"w{i}", (), ("x",), missing=False, other=False) for i in range(others)]
    total = counts.sum(axis=0)
    table = np.vstack([total, counts, *([total] * others)]).astype(np.int64)
    grouped = halve(table, [attribute, *constant], min_leaf, root=root)
    first, merged = read_groups(grouped, 1, attribute.size)
    best = try_all_values(counts, min_leaf, 1 + others, root)
    groups = sorted({int(first[v]) for v in range(len(counts)) if counts[v].any()})
    for value in range(len(counts)):
        if counts[value].any():
            assert counts[first[value]].any()
        else:  # nobody knows where it would belong
            assert first[value] == value
            assert not merged[value].any()
    for leader in groups:
        assert merged[leader].tolist() == counts[first == leader].sum(axis=0).tolist()
    if best is None:
        assert len(groups) <= 1
        return
    assert len(groups) == 2
    assert min(merged[leader].sum() for leader in groups) >= min_leaf
    assert sum(entropy(merged[leader]) for leader in groups) == pytest.approx(best, abs=1e-6)


def test_rare_values_that_may_not_be_alone_take_the_best_with_them():
    """r is unlike all others and too rare to be a side: b, not the next in order, goes with it at least cost."""
    counts = np.array([[700, 300], [14, 6], [690, 310], [15, 0]])
    attribute = Attribute("v", (), ("a", "b", "c", "r"), missing=False, other=False)
    grouped = halve(np.vstack([counts.sum(axis=0), counts]), [attribute], 20)
    assert grouped.first.tolist() == [0, 1, 2, 1, 2]


@example(counts=np.array([[0, 1], [0, 1], [2, 2], [2, 2]]), min_leaf=5, others=0, unknown=True, root=False)
@given(
    counts=counted(),
    min_leaf=st.integers(1, 12),
    others=st.sampled_from([0, 1, 6]),
    unknown=st.booleans(),
    root=st.booleans(),
)
@settings(max_examples=600, deadline=None)
def test_numbers_are_parted_as_well_as_at_any_edge(counts, min_leaf, others, unknown, root):
    bins, missing = (counts[:-1], counts[-1]) if unknown else (counts, np.zeros(2, dtype=np.int64))
    attribute = Attribute("v", tuple(float(i) for i in range(1, len(bins))) or (0.0,))
    if len(bins) == 1:
        bins = np.vstack([bins, np.zeros((1, 2), dtype=np.int64)])
    assert attribute.missing
    assert attribute.first == 1
    assert MISSING == 0
    constant = [Attribute(f"w{i}", (), ("x",), missing=False, other=False) for i in range(others)]
    cells = np.vstack([missing, bins])
    total = cells.sum(axis=0)
    table = np.vstack([total, cells, *([total] * others)]).astype(np.int64)
    grouped = halve(table, [attribute, *constant], min_leaf, root=root)
    first, merged = read_groups(grouped, 1, attribute.size)
    best = try_all_edges(bins, missing, min_leaf, 1 + others, root)
    groups = sorted({int(first[c]) for c in range(len(cells)) if cells[c].any()})
    if best is None:
        assert len(groups) <= 1
        return
    assert len(groups) == 2
    sides = first[1:].tolist()  # of bins: one range, then another, bins without patients among them
    assert sides == sorted(sides)
    assert set(sides) == set(groups)
    assert missing.any() == (first[MISSING] != MISSING)
    assert min(merged[leader].sum() for leader in groups) >= min_leaf
    assert sum(entropy(merged[leader]) for leader in groups) == pytest.approx(best, abs=1e-6)


@given(counts=counted(classes=4), min_leaf=st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_of_several_classes_no_half_is_too_small_and_a_sure_split_is_found(counts, min_leaf):
    attribute = Attribute("v", (), tuple("abcdefg"[: len(counts)]), missing=False, other=False)
    table = np.vstack([counts.sum(axis=0), counts]).astype(np.int64)
    grouped = halve(table, [attribute], min_leaf)
    held = grouped.table[1:][grouped.table[1:].any(axis=1)]
    assert len(held) <= 2
    assert held.sum(axis=0).tolist() == table[0].tolist() if len(held) else not table[0].any()
    assert len(held) < 2 or min(one.sum() for one in held) >= min_leaf
    best = try_all_values(counts, min_leaf, 1)
    if len(held) == 2:
        assert best is not None
        assert sum(map(entropy, held)) >= best - 1e-6


MOST_NODES, LEAST_BARE = 15, 15


def draw_by_chance(seed, count=1200):
    """An admission date, 66 codes, numbers and a ward; the outcome has nothing to do with any of them."""
    chance = np.random.default_rng(seed)
    codes = [f"{letter}{number:02}" for letter in "EIJNRZ" for number in range(10, 21)]
    return [
        {
            "admitted": (date(2022, 1, 1) + timedelta(days=int(chance.integers(0, 300)))).isoformat(),
            "diagnosis": codes[int(chance.integers(0, len(codes)))],
            "age": int(chance.integers(18, 95)),
            "crp": float(np.round(chance.lognormal(2, 1), 1)),
            "ward": "abcde"[int(chance.integers(0, 5))],
            "died": ["no", "yes"][int(chance.random() < 0.3)],
        }
        for _ in range(count)
    ]


def test_of_an_outcome_drawn_at_random_a_tree_tells_nearly_nothing():
    """Over 20 draws: never a large tree, and most often none. By id3 it is thousands of nodes."""
    sizes = []
    for seed in range(20):
        rows = draw_by_chance(seed)
        tables = {
            name: cc.Records.from_rows(rows[place::3])
            for place, name in enumerate(("north", "south", "coast"))
        }
        tree = cc.DecisionTree("died").fit(cc.House([cc.Site(name, table) for name, table in tables.items()]))
        assert {"admitted", "age", "crp"} <= set(tree.body.bins)
        assert not any("left out" in warning for warning in tree.card.warnings)
        check_shape(tree.body, 20, 5)
        sizes.append(len(tree.body.nodes))
    assert max(sizes) <= MOST_NODES, sizes
    assert sizes.count(1) >= LEAST_BARE, sizes
