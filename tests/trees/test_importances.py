"""Importances of a tree: entropy taken away, worked out from the patients who come to each node."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

import concilium as cc


def take_away(tree: cc.DecisionTree, rows: list[dict], node: int, gains: dict[str, float]) -> None:
    """Add what asking takes away, at this node and below, from the rows that come to it."""

    def bits(some: list[dict]) -> float:
        return (
            len(some) * entropy(np.unique([row["y"] for row in some], return_counts=True)[1], base=2)
            if some
            else 0.0
        )

    asked = tree.body.nodes[node]
    if asked.attribute is None:
        return
    left = 0.0
    for branch in asked.branches:
        here = [row for row in rows if row[asked.attribute] == branch.value]
        left += bits(here)
        take_away(tree, here, branch.node, gains)
    gains[asked.attribute] = gains.get(asked.attribute, 0.0) + bits(rows) - left


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_importances_are_what_the_patients_tell(seed: int) -> None:
    chance = np.random.default_rng(seed)
    names = ["a", "b", "c"]
    rows = [dict(zip(names, chance.integers(0, 3, 3).tolist(), strict=True)) for _ in range(60)]
    for row in rows:
        row["y"] = "yes" if row["a"] + chance.normal() > 1 else "no"
    schema = dict.fromkeys([*names, "y"], "code")
    sites = [cc.Site(str(i), cc.Records.from_rows(rows[i::2], schema=schema)) for i in range(2)]
    tree = cc.DecisionTree("y").fit(sites)
    gains: dict[str, float] = {}
    take_away(tree, rows, 0, gains)
    total = sum(gains.values())
    expected = [gains[name] / total for name in tree.attributes_] if total else [0.0] * len(tree.attributes_)
    assert tree.feature_importances_ == pytest.approx(expected)
    assert list(tree.importances()) == sorted(gains, key=lambda name: (-round(gains[name], 9), name))
