"""Reduced-error pruning: the federated tree is the pooled one, the best and smallest cut, and charged as planned."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grouping import merging, nested
from test_private_tree import SITES, VALUES, study
from test_tree_equals_pooled import house_of, key_of, shared

import concilium as cc
from concilium.errors import StudyError
from concilium.models.threshold import ErrorCosts
from concilium.privacy.accounting import rho_for_epsilon
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.cohort import View
from concilium.protocol.held_out import Part
from concilium.trees.growing import GrowingNode
from concilium.trees.pruning import _prune
from pooled_id3 import c45, errors, id3, name_group
from pooled_id3 import prune as prune_pooled
from side_door import find_side_doors, state
from strategies import federations


def divide(sites, percent, policy=None, stated=False):
    """All patients of all sites who are held out, and all who are not, each site dividing its own."""
    policy = policy or cc.Policy()
    both = ([], [])
    for name, rows in sites.items():
        table = state(rows) if stated else cc.Records.from_rows(rows)
        view = View(table, policy, division_key=key_of(name))
        cohort = (view.each_by_itself if stated else view).select("", "y")
        for part, held in zip(both, (True, False), strict=True):
            least = 0 if stated else policy.minimum_patients
            chosen = Part(percent=percent, held=held).choose(cohort, least)
            part += [rows[row] for row in chosen.rows]
    return both


def ungroup(tree):
    """A tree in the oracle's form with groups of one value as that value."""
    counts, split = tree
    if split is None:
        return tree
    return (counts, (split[0], {name_group(group): ungroup(below) for group, below in split[1].items()}))


@given(
    sites=federations(most_rows=60, most_sites=4),
    percent=st.sampled_from([20, 30, 50, 70]),
    criterion=st.sampled_from(["entropy", "gain-ratio"]),
    group=st.booleans(),
    min_leaf=st.integers(1, 2),
)
@settings(max_examples=120)
def test_a_pruned_tree_equals_the_pooled_one(sites, percent, criterion, group, min_leaf):
    taking_part = {name: rows for name, rows in sites.items() if len(rows) >= 4}
    if not taking_part:
        return
    options = {"criterion": criterion, "group": group, "min_leaf": min_leaf}
    tree = cc.DecisionTree("y", growth="id3", prune=percent / 100, **options).fit(house_of(sites))
    held, learning = divide(taking_part, percent)
    grow = id3 if criterion == "entropy" else c45
    merge = merging(min_leaf) if group else None
    expected = grow(learning, shared(taking_part), "y", min_leaf=min_leaf, merge=merge)
    if held:
        expected = prune_pooled(expected, held, "y", tree.classes_)
        assert any(f"{len(held)} held-out patients" in warning for warning in tree.card.warnings)
    else:
        assert any(warning.startswith("not pruned") for warning in tree.card.warnings)
    assert (nested(tree.body) if group else ungroup(nested(tree.body))) == expected


def cuts(tree):
    """Every way to take back splits of a tree."""
    counts, split = tree
    yield (counts, None)
    if split is not None:
        attribute, below = split
        for chosen in itertools.product(*(list(cuts(child)) for child in below.values())):
            yield (counts, (attribute, dict(zip(below, chosen, strict=True))))


def size(tree):
    return 1 + sum(size(child) for child in tree[1][1].values()) if tree[1] else 1


@given(rows=st.lists(st.tuples(*[st.integers(0, 1)] * 4), min_size=20, max_size=60))
@settings(max_examples=60)
def test_of_all_cuts_it_is_the_smallest_of_those_with_fewest_errors(rows):
    table = [dict(zip("abcy", row, strict=True)) for row in rows]
    tree = cc.DecisionTree("y", growth="id3", prune=0.4, max_depth=3).fit(house_of({"s": table}))
    held, learning = divide({"s": table}, 40)
    if not held:
        return
    every = list(cuts(id3(learning, {"a", "b", "c"}, "y", max_depth=3)))
    best = min(errors(one, held, "y", tree.classes_) for one in every)
    found = ungroup(nested(tree.body))
    assert errors(found, held, "y", tree.classes_) == best
    assert size(found) == min(size(one) for one in every if errors(one, held, "y", tree.classes_) == best)


def test_a_tree_of_noise_is_pruned_and_one_of_signal_is_not():
    draw = np.random.default_rng(5)
    rows = [
        {"a": int(draw.integers(2)), **{f"n{i}": int(draw.integers(3)) for i in range(6)}}
        for _ in range(1200)
    ]
    for row in rows:
        row["y"] = int(draw.random() < (0.9 if row["a"] else 0.1))
    sites = {f"s{i}": rows[i::4] for i in range(4)}
    whole, pruned = (
        cc.DecisionTree("y", growth="id3", prune=share).fit(house_of(sites)) for share in (None, 0.3)
    )
    assert len(whole.body.nodes) > 300
    assert len(pruned.body.nodes) < 60
    assert pruned.body.nodes[0].attribute == "a"
    said = next(warning for warning in pruned.card.warnings if warning.startswith("pruned"))
    held, learning = divide(sites, 30)
    assert f"on {len(held)} held-out patients" in said
    assert sum(pruned.body.nodes[0].counts) == len(learning) == 1200 - len(held)
    test = [{**row, "y": None} for row in rows]
    truth = np.array([row["a"] for row in rows])
    assert np.mean(pruned.predict(test) == truth) > np.mean(whole.predict(test) == truth)


def test_under_masks_the_pruned_tree_is_the_same():
    rows = [
        {"a": i % 3, "b": "xyz"[i * i % 7 % 3], "c": i % 5, "y": (i % 3 == 1) ^ (i % 7 == 0)}
        for i in range(240)
    ]
    sites = {f"s{i}": rows[i::4] for i in range(4)}
    options = {"prune": 0.35, "group": True}
    exact = cc.DecisionTree("y", growth="id3", **options).fit(house_of(sites))
    masked = cc.DecisionTree("y", growth="id3", release="masked", **options).fit(house_of(sites))
    assert masked.body == exact.body


def test_through_regions_the_pruned_tree_is_the_same():
    rows = [{"a": i % 3, "b": "xyz"[i * i % 7 % 3], "y": (i % 3 == 1) ^ (i % 7 == 0)} for i in range(240)]
    sites = {f"s{i}": rows[i::6] for i in range(6)}
    flat = cc.DecisionTree("y", growth="id3", prune=0.3, group=True).fit(house_of(sites))
    regions = [
        cc.Region(f"r{i}", house_of({name: sites[name] for name in sorted(sites)[2 * i : 2 * i + 2]}))
        for i in range(3)
    ]
    assert cc.DecisionTree("y", growth="id3", prune=0.3, group=True).fit(cc.House(regions)).body == flat.body


@pytest.mark.parametrize("policy", [{"minimum_cell": 2}, {"branch_floor": 2}, {"dominance": 0.99}])
def test_beside_a_site_that_leaves_small_counts_out_nobody_is_held_out(policy):
    rows = [{"a": i % 3, "b": i * i % 7 % 3, "y": (i % 3 == 1) ^ (i % 7 == 0)} for i in range(200)]
    parts = [cc.Records.from_rows(rows[i::2]) for i in range(2)]

    def house():
        return cc.House([cc.Site("open", parts[0]), cc.Site("shy", parts[1], cc.Policy(**policy))])

    tree = cc.DecisionTree("y", growth="id3", prune=0.3).fit(house())
    assert tree.body == cc.DecisionTree("y", growth="id3").fit(house()).body
    (said,) = [warning for warning in tree.card.warnings if "pruned" in warning]
    assert said.startswith("not pruned: shy leaves small counts out")


def test_sites_too_small_to_be_divided_teach_with_everyone():
    rows = [{"a": i % 2, "y": i % 2} for i in range(8)]
    tree = cc.DecisionTree("y", growth="id3", prune=0.3).fit(house_of({"s": rows}))
    assert sum(tree.body.nodes[0].counts) == 8
    assert len(tree.body.nodes) == 3
    assert any("no site has patients enough" in warning for warning in tree.card.warnings)


def test_patients_whose_value_has_no_branch_rest_where_they_are():
    """Held out are three with a value that no grown branch has: the split stays although it errs on them, since its
    node alone would err on them too."""
    nodes = [
        GrowingNode(0, np.array([6, 4]), 0, [1, 2, -1]),
        GrowingNode(1, np.array([6, 0])),
        GrowingNode(1, np.array([0, 4])),
    ]
    held = {0: np.array([0, 3]), 1: np.array([2, 0]), 2: np.array([0, 1])}
    assert [node.children for node in _prune(nodes, held, ErrorCosts((1, 1)))[0]] == [[1, 2, -1], [], []]
    held[2] = np.array([0, 0])
    assert [node.attribute for node in _prune(nodes, held, ErrorCosts((1, 1)))[0]] == [None]


@pytest.fixture
def fixed_noise(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)


@pytest.mark.parametrize("leave_out", [("big", 0), ("big", 77), ("small", 11), ("tiny", 0), ("one", 2)])
@pytest.mark.parametrize("options", [{"prune": 0.3}, {"prune": 0.3, "group": True}, {"group": True}])
def test_a_private_pruned_tree_has_no_side_door(fixed_noise, leave_out, options):
    assert find_side_doors(SITES, leave_out, lambda house: study(house, **options)) == []


def test_held_out_counts_are_planned_and_charged():
    plain, pruned = (
        cc.DecisionTree("y", release="private", values=VALUES, max_depth=2, epsilon=1, prune=share)
        for share in (None, 0.3)
    )
    asked = pruned.plan().questions
    assert len(asked) == len(plain.plan().questions) + 1
    assert (asked[-1].kind, "held-out" in asked[-1].note) == ("counts", True)
    assert asked[-1].cost == asked[-2].cost > 0
    assert pruned.plan().total <= rho_for_epsilon(1, "1/1000000")
    # A budget of the plan and no more is enough, and all of it but the reserve is spent.
    policy = cc.Policy(budget=cc.Budget(total=str(pruned.plan().total)))
    sites = [cc.Site(name, state(r), policy) for name, r in SITES.items()]
    pruned.fit(cc.House(sites))
    spent = {site.ledger.spent() for site in sites}
    assert len(spent) == 1
    asked = {entry.question for entry in sites[0].ledger.entries() if entry.question}
    assert 0 < spent.pop() <= pruned.plan().total
    assert len(asked) >= 3  # the root, the leaves, and the leaves again for those held out
    assert all(Fraction(release.cost) == sites[0].ledger.spent() for release in pruned.card.releases)
    exact = cc.DecisionTree("y", prune=0.3).plan().questions
    assert [question.cost for question in exact] == [None] * 4


@given(
    table=st.lists(st.fixed_dictionaries({n: st.sampled_from(v) for n, v in VALUES.items()}), min_size=30),
    group=st.booleans(),
)
@settings(max_examples=12)
def test_without_noise_a_private_tree_is_pruned_as_the_pooled_one(table, group):
    sites = {f"s{i}": table[i::3] for i in range(3)}
    rich = cc.Policy(budget=cc.Budget(total=str(10**7)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, SWITCHED_ON)
        with zero_noise():
            whole = study(house_of(sites, rich, state), epsilon=10**6, group=group)
            tree = study(house_of(sites, rich, state), epsilon=10**6, group=group, prune=0.3)
    held, learning = divide(sites, 30, stated=True)
    assert tree.body.nodes[0].counts == [sum(row["y"] == c for row in learning) for c in ("n", "p")]
    assert len(learning) + len(held) == sum(whole.body.nodes[0].counts)
    if (
        tree.body.nodes[0].attribute is not None
    ):  # whatever is left makes fewer errors than the root alone would
        alone = "np"[int(np.argmax(tree.body.nodes[0].counts))]
        wrong = sum(said != row["y"] for said, row in zip(tree.predict(held), held, strict=True))
        assert wrong < sum(row["y"] != alone for row in held)


@pytest.mark.parametrize("share", [0, 1, 0.305, -0.1, 0.95, True, "0.3", float("nan")])
def test_a_share_that_makes_no_sense_is_said(share):
    with pytest.raises(StudyError, match="'prune' of a DecisionTree must be a share in whole percent"):
        cc.DecisionTree("y", prune=share)
    with pytest.raises(StudyError, match="'group' of a DecisionTree must be True or False"):
        cc.DecisionTree("y", group=1)
