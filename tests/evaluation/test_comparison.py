"""Side by side on the same patients: counts by hand, and pooled equal to federated."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.evaluation.comparison import (
    _contrast,
    _wrong,
    compare,
    estimate_difference,
    learn_in_every_way,
    tally,
)
from concilium.evaluation.folds import learn_folds
from concilium.evaluation.leave_out import Predictions, find_classes, leave_sites_out, predict_at


def said(site, truth, predicted):
    return Predictions(site, (0, 1), truth, predicted, [[1 - p, p] for p in predicted])


LOCAL = {"a": said("a", [0, 1, 1, 0], [1, 0, 1, 0]), "b": said("b", [1, 1], [0, 1]), "c": None}
FEDERATED = {
    "a": said("a", [0, 1, 1, 0], [0, 0, 1, 0]),
    "b": said("b", [1, 1], [1, 1]),
    "c": said("c", [0], [1]),
}


def test_wrongly_diagnosed_patients_are_counted_and_small_hospitals_told_apart():
    found = compare({"local": LOCAL, "federated": FEDERATED}, 1)
    local, federated = found["ways"]["local"], found["ways"]["federated"]
    assert (local["patients"], local["wrong"], local["without"]) == (6, 3, ["c"])
    assert (federated["patients"], federated["wrong"], federated["without"]) == (7, 2, [])
    assert (federated["same_patients"]["patients"], federated["same_patients"]["wrong"]) == (6, 1)
    assert local["accuracy"] == pytest.approx(0.5)
    assert found["sites"] == {
        "a": {"patients": 4, "local": 2, "federated": 1},
        "b": {"patients": 2, "local": 1, "federated": 0},
        "c": {"patients": 1, "local": None, "federated": 1},
    }
    interval = estimate_difference([0.25, 0.5], [4, 2])
    assert found["intervals"] == {
        "local": {
            "mean": pytest.approx(interval.mean),
            "error": pytest.approx(interval.error),
            "low": pytest.approx(interval.low),
            "high": pytest.approx(interval.high),
            "folds": 2,
            "confidence": 0.95,
            "significant": False,
        }
    }
    json.dumps(found, allow_nan=False)


def test_one_site_tells_no_interval_and_nobody_no_figures():
    assert _contrast({"a": LOCAL["a"]}, FEDERATED) is None
    assert tally([], 1) == {"patients": 0, "wrong": 0}
    assert _wrong(said("a", [], [])) == 0


@st.composite
def hospitals(draw):
    seed = draw(st.integers(0, 10_000))
    numbers = np.random.default_rng(seed)
    sizes = draw(st.lists(st.integers(4, 30), min_size=2, max_size=4))
    return {
        f"h{i}": cc.Records.from_rows(
            [
                {"x": int(x), "z": "uvw"[z], "y": int((x + z) % 2 if numbers.random() < 0.8 else 1)}
                for x, z in numbers.integers(0, 3, (size, 2))
            ]
        )
        for i, size in enumerate(sizes)
    }


@given(hospitals())
@settings(max_examples=15, deadline=None)
def test_pooled_says_what_federated_says(tables):
    classes = find_classes(tables.values(), "y")

    def make():
        return cc.DecisionTree("y", max_depth=2)

    sites = {name: cc.Site(name, table) for name, table in tables.items()}
    folds = leave_sites_out({name: len(table) for name, table in tables.items()})
    learned = learn_folds(
        make, folds, lambda fold: cc.House([sites[n] for n in (sites if fold is None else fold.learn)])
    )
    federated = {
        fold.left_out[0]: predict_at(fold.left_out[0], model, tables[fold.left_out[0]], classes)
        for fold, model in zip(folds, learned.models, strict=True)
    }
    ways, donors = learn_in_every_way(make, tables, federated, positive=1, classes=classes, division="s")
    assert ways["pooled"] == ways["federated"]
    assert [site for site, outcome in ways["local"].items() if outcome is None] == [
        site for site, table in tables.items() if len(table) < 10
    ]
    assert isinstance(donors, str) == ("donor" not in ways)
    if "donor" in ways:
        assert all(
            outcome is None
            for site, outcome in ways["donor"].items()
            if [site] == [d["site"] for d in donors]
        )
    found = compare(ways, 1)
    assert found["ways"]["pooled"]["wrong"] == found["ways"]["federated"]["wrong"]


def test_without_a_positive_class_there_are_no_donors():
    rows = [{"x": i % 3, "y": "abc"[i % 3]} for i in range(30)]
    tables = {"one": cc.Records.from_rows(rows), "two": cc.Records.from_rows(rows[::2])}
    federated = {name: Predictions(name, ("a", "b", "c"), [], [], []) for name in tables}
    ways, donors = learn_in_every_way(
        lambda: cc.DecisionTree("y"),
        tables,
        federated,
        positive=None,
        classes=["a", "b", "c"],
        division="s",
    )
    assert set(ways) == {"local", "federated", "adapted", "pooled"}
    assert "names no positive class" in donors
