"""Rules of boosted trees: about exactly the patients who reach a node, and never about three."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from concilium.protocol.attributes import Attribute
from concilium.rulefit import generation
from concilium.rulefit.boosted_trees import GAPPED
from concilium.rulefit.generation import _boost, _count_leaves
from concilium.rulefit.terms import check_rules

EDGES = tuple(float(edge) for edge in range(1, 9))
CITIES = ("a", "b", "c", "d", "e", "f", "g")
ATTRIBUTES = (
    Attribute("x", EDGES),
    Attribute("z", EDGES[:3]),
    Attribute("city", (), CITIES),
    Attribute("sex", (), ("f", "m")),
    Attribute("constant", EDGES),
)
SIZES = [attribute.size for attribute in ATTRIBUTES]


def draw(patients=400, seed=0, *, missing=True):
    """Codes of five attributes, and an outcome that depends on number, category and missingness."""
    draws = np.random.default_rng(seed)
    low = 0 if missing else 1
    codes = [
        draws.integers(low, SIZES[0], size=patients),
        draws.integers(1, SIZES[1], size=patients),
        draws.integers(low, SIZES[2] - 1, size=patients),
        draws.integers(low, SIZES[3] - 1, size=patients),
        np.full(patients, 4),
    ]
    score = (
        (codes[0] > 5) * 2.0 - (codes[0] == 0) + np.isin(codes[2], [1, 4, 6]) * 1.5 - 1.5 + (codes[1] == 2)
    )
    y = (draws.random(patients) < 1 / (1 + np.exp(-2 * score))).astype(float)
    return [code.astype(np.uint8) for code in codes], y


def learn(codes, y, **options):
    asked = {"trees": 25, "leaves": 4, "shrinkage": 0.1, "support": 10, "seed": 3, "binary": True}
    return _boost(codes, y, ATTRIBUTES, **{**asked, **options})


def holds(rule, codes):
    inside = np.ones(len(codes[0]), dtype=bool)
    for condition in rule:
        runs = list(zip(condition[1::2], condition[2::2], strict=True))
        inside &= np.array([any(low <= code <= high for low, high in runs) for code in codes[condition[0]]])
    return inside


@pytest.mark.parametrize("support", [5, 10, 40])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_rule_is_about_few_patients_nor_leaves_out_few(support, seed):
    codes, y = draw(seed=seed)
    rules = learn(codes, y, support=support, leaves=8, seed=seed)
    assert len(rules) > 10
    for rule in rules:
        check_rules([rule], ATTRIBUTES)
        assert support <= holds(rule, codes).sum() <= len(y) - support


def test_rules_are_different_and_in_order_and_the_same_each_time():
    codes, y = draw()
    rules = learn(codes, y)
    assert rules == sorted(set(rules)) == learn(codes, y)
    assert rules != learn(codes, y, seed=4)


def keep_trees(monkeypatch):
    """The trees that rules are read from, as they are grown."""
    kept = []
    grow = generation.grow_trees
    monkeypatch.setattr(generation, "grow_trees", lambda *a, **k: kept.append(grow(*a, **k)) or kept[-1])
    return kept


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_every_node_is_a_rule_about_exactly_the_patients_in_it(monkeypatch, missing, binary):
    """Patients are sent down the trees by their bins, one split at a time."""
    codes, y = draw(missing=missing)
    kept = keep_trees(monkeypatch)
    rules = {
        frozenset(np.flatnonzero(holds(rule, codes))): rule
        for rule in learn(codes, y, leaves=6, binary=binary)
    }
    splits, layout = kept[0].splits, kept[0].layout
    reached = {int(root): np.arange(len(y)) for root in kept[0].ends[:-1]}
    nodes = set()
    for split, attribute in enumerate(splits.attributes.tolist()):
        here = reached[split]
        bins = kept[0].bins[here, attribute]
        if ATTRIBUTES[attribute].numeric:
            to_left = bins <= splits.at[split]
            if layout.kinds[attribute] == GAPPED:
                last = layout.starts[attribute + 1] - layout.starts[attribute] - 1
                to_left = np.where(bins == last, splits.missing_left[split], to_left).astype(bool)
        else:
            to_left = np.isin(bins, splits.together[split])
        for side, lead in ((here[to_left], splits.left[split]), (here[~to_left], splits.right[split])):
            nodes.add(frozenset(side))
            if lead >= 0:
                reached[int(lead)] = side
    assert {0, 2} <= set(splits.attributes.tolist())
    assert set(rules) == {node for node in nodes if 10 <= len(node) <= len(y) - 10}


def test_a_site_without_missing_values_has_not_learned_where_they_belong():
    codes, y = draw(missing=False)
    numeric = [c for rule in learn(codes, y) for c in rule if ATTRIBUTES[c[0]].numeric]
    assert numeric
    assert all(condition[1] > 0 for condition in numeric)
    with_missing, y = draw(missing=True)
    assert any(c[0] == 0 and c[1] == 0 for rule in learn(with_missing, y) for c in rule)


def test_categories_make_membership_rules():
    codes, y = draw(missing=False)
    alone = [rule[0] for rule in learn(codes, y, leaves=2) if len(rule) == 1 and rule[0][0] == 2]
    assert any(
        {1, 4, 6} <= set().union(*(range(lo, hi + 1) for lo, hi in zip(c[1::2], c[2::2], strict=True)))
        for c in alone
    )
    # A value that no patient here has goes to all that is not named.
    other = SIZES[2] - 1
    assert any(condition[-1] == other for condition in alone)


def test_constant_columns_are_never_asked_about():
    codes, y = draw()
    rules = learn(codes, y)
    assert not any(condition[0] == 4 for rule in rules for condition in rule)
    assert learn([np.full(400, 2, np.uint8)] * 5, y) == []


def test_where_there_is_nothing_to_learn_there_are_no_rules():
    codes, y = draw()
    assert learn(codes, np.zeros(400)) == []
    assert learn(codes, np.ones(400)) == []
    assert learn([code[:19] for code in codes], y[:19]) == []
    assert learn([code[:0] for code in codes], y[:0]) == []
    assert _boost([], y, (), binary=True, trees=3, leaves=4, shrinkage=0.1, support=10, seed=0) == []


def test_a_small_site_learns_from_all_of_its_patients():
    """Half of twenty-four patients cannot be split into two tens; all of them can."""
    codes = [np.repeat([1, 8], 12).astype(np.uint8)]
    y = np.repeat([0.0, 1.0], 12)
    asked = {"binary": True, "trees": 5, "leaves": 4, "shrinkage": 0.1, "support": 10, "seed": 0}
    found = _boost(codes, y, ATTRIBUTES[:1], **asked)
    assert [holds(rule, codes).sum() for rule in found] == [12, 12]


def test_leaves_are_two_and_a_floor_of_an_exponential():
    """P(leaves = 2 + j) = exp(-j/m) (1 - exp(-1/m)) with m = mean - 2."""
    mean, count = 4.0, 20_000
    drawn = np.array([_count_leaves(mean, 7, tree) for tree in range(count)])
    j = np.arange(12)
    chances = np.exp(-j / 2) * (1 - np.exp(-1 / 2))
    observed = np.bincount(np.minimum(drawn - 2, 12), minlength=13)
    assert stats.chisquare(observed, count * np.append(chances, 1 - chances.sum())).pvalue > 1e-3
    assert {_count_leaves(2.0, 7, tree) for tree in range(50)} == {2}
    assert [_count_leaves(mean, 8, tree) for tree in range(50)] != drawn[:50].tolist()


def test_trees_have_as_many_leaves_as_drawn(monkeypatch):
    codes, y = draw(2000)
    kept = keep_trees(monkeypatch)
    learn(codes, y, leaves=5, trees=15)
    wanted = [_count_leaves(5, 3, tree) for tree in range(15)]
    assert len(set(wanted)) > 2
    assert (np.diff(kept[0].ends) + 1).tolist() == wanted


def test_cuts_are_at_shared_cutoffs_only():
    """The same patients under finer numbers make the same rules: boosting sees codes and nothing else."""
    draws = np.random.default_rng(1)
    values = draws.normal(size=500) * 3 + 4
    y = (draws.random(500) < 1 / (1 + np.exp(4 - values))).astype(float)
    codes = [(np.searchsorted(EDGES, values, side="right") + 1).astype(np.uint8)]
    asked = {"binary": True, "trees": 20, "leaves": 4, "shrinkage": 0.1, "support": 10, "seed": 0}
    rules = _boost(codes, y, ATTRIBUTES[:1], **asked)
    assert rules
    assert all(1 <= low <= high <= len(EDGES) + 1 for rule in rules for _, low, high in rule)
