"""No model that was told nothing but its target has a leaf, a rule or a cell of fewer than five patients.

Patients are synthetic: rare codes, missing values, a long tail of grades, and an outcome that is common or rare.
Rules are counted by a reader of their text, on the pooled rows.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import concilium as cc

LEAST = 5


def draw_patients(seed: int, intercept: float, patients: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    weights = 1 / np.arange(1, 41) ** 1.5
    frame = pd.DataFrame(
        {
            "age": draw.integers(20, 95, patients).astype(float),
            "crp": draw.lognormal(2, 1.2, patients).round(1),
            "code": draw.choice([f"c{i}" for i in range(40)], patients, p=weights / weights.sum()),
            "grade": np.minimum(draw.geometric(0.5, patients), 9),
        }
    )
    odds = intercept + 0.03 * (frame.age - 50) + 0.8 * np.log(frame.crp) + 2 * (frame.code == "c3")
    frame["died"] = (draw.random(patients) < 1 / (1 + np.exp(-odds - (frame.grade > 4)))).astype(int)
    frame.loc[draw.random(patients) < 0.01, "crp"] = np.nan
    frame.loc[draw.random(patients) < 0.01, "code"] = None
    return frame


def meets(frame: pd.DataFrame, condition: str) -> pd.Series:
    """Who meets one condition of a rule, as it is written."""
    if condition.startswith("("):
        parts = condition.strip("()").split(" or ")
        name = re.search(r"[a-z]+", parts[0])[0]
        return np.logical_or.reduce(
            [frame[name].isna() if p == "missing" else meets(frame, p) for p in parts]
        )
    if " is known and " in condition:
        return meets(frame, condition.replace(" is known and", "")) & frame[condition.split()[0]].notna()
    if found := re.fullmatch(r"(\w+) (not in|in) \{(.*)\}", condition):
        name, how, values = found.groups()
        among = frame[name].isin(values.split(", ")) | (
            frame[name].isna() & ("missing" in values.split(", "))
        )
        return among if how == "in" else ~among
    if found := re.fullmatch(r"(\S+) <= (\w+) < (\S+)", condition):
        low, name, high = found.groups()
        return (frame[name] >= float(low)) & (frame[name] < float(high))
    if found := re.fullmatch(r"(\w+) (?:is|=) (not )?(.+)", condition):
        name, negated, value = found.groups()
        same = frame[name].isna() if value == "missing" else frame[name].astype(str) == value
        return ~same if negated else same
    name, sign, edge = condition.split()
    return frame[name] < float(edge) if sign == "<" else frame[name] >= float(edge)


@pytest.mark.parametrize(("release", "seed"), [("exact", 0), ("exact", 1), ("masked", 2)])
@pytest.mark.parametrize("intercept", [-3.0, -7.5], ids=["common", "rare"])
def test_no_leaf_rule_or_cell_is_small(seed: int, release: str, intercept: float) -> None:
    frame = draw_patients(seed, intercept, 450)
    tables = [frame.iloc[place::3] for place in range(3)]
    tree = cc.DecisionTree("died", release=release).fit(tables)
    assert min(sum(node.counts) for node in tree.body.nodes) >= LEAST
    bayes = cc.NaiveBayes("died", release=release).fit(tables)
    assert min(sum(node.counts) for nodes in bayes.body.attributes for node in nodes) >= LEAST
    voting = cc.VotingTrees("died", positive=1, release=release).fit(tables)
    assert min(sum(node.counts) for nodes in voting.body.experts for node in nodes) >= LEAST
    rules = cc.RuleFit("died", release=release, trees=40).fit(tables).rules_
    assert len(rules) > 5
    for rule in rules:
        chosen = np.logical_and.reduce([meets(frame, part) for part in rule.split(" & ")])
        assert chosen.sum() >= LEAST, rule
