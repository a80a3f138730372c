"""Shared cutoffs: histograms that add up to the pooled one, and quantiles that survive noise."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import MessageError, StudyError
from concilium.federation.cohort import View
from concilium.federation.histograms import AskHistograms, choose_cutoffs
from concilium.privacy.randomness import SWITCH, SWITCHED_ON
from side_door import find_side_doors

EDGES = [float(edge) for edge in range(10, 100, 5)]
AGES = st.one_of(st.none(), st.integers(0, 110))


def pooled_histogram(values, edges):
    counts = [0] * (len(edges) + 2)
    for value in values:
        counts[0 if value is None else 1 + bisect.bisect_right(edges, value)] += 1
    return counts


def quantile_edges(values, edges, count):
    """The right edges of the bins of the even quantiles, by sorting the patients."""
    known = sorted(value for value in values if value is not None)
    found = set()
    for step in range(1, count + 1):
        # The smallest bin by whose end at least step/(count + 1) of the patients are reached.
        for place in range(len(edges) + 1):
            reached = sum(bisect.bisect_right(edges, value) <= place for value in known)
            if reached * (count + 1) >= step * len(known):
                if place < len(edges) and reached < len(known):
                    found.add(edges[place])
                break
    return sorted(found)


@given(st.lists(AGES, min_size=1, max_size=60), st.integers(1, 20))
def test_cutoffs_are_the_quantiles_of_the_pooled_patients(values, count):
    histogram = np.array(pooled_histogram(values, EDGES))
    if all(value is None for value in values):
        assert choose_cutoffs(histogram, EDGES, count) == []
        return
    assert choose_cutoffs(histogram, EDGES, count) == quantile_edges(values, EDGES, count)


@given(st.lists(st.integers(-50, 50), min_size=len(EDGES) + 2, max_size=len(EDGES) + 2), st.integers(1, 10))
def test_noise_below_zero_never_breaks_the_order(counts, count):
    cutoffs = choose_cutoffs(np.array(counts), EDGES, count)
    assert cutoffs == sorted(set(cutoffs))
    assert set(cutoffs) <= set(EDGES)
    assert len(cutoffs) <= count


def rows(count, shift=0):
    return [
        {
            "age": None if i % 17 == 0 else (i * 7 + shift) % 90 + 0.5,
            "sex": "fm"[i % 2],
            "y": "np"[(i * 7) % 90 > 50],
        }
        for i in range(count)
    ]


PARTS = {"a": rows(60), "b": rows(30, 1), "c": rows(45, 2), "d": rows(5, 3)}


def house(parts=PARTS):
    return cc.House(
        [cc.Site(name, cc.Records.from_rows(r, schema={"age": "number"})) for name, r in parts.items()]
    )


def test_a_tree_on_shared_cutoffs_is_the_tree_on_the_pooled_quantiles():
    everyone = [row["age"] for part in PARTS.values() for row in part]
    wanted = quantile_edges(everyone, EDGES, 4)
    shared = cc.DecisionTree("y", bins={"age": EDGES}, cutoffs=4).fit(house())
    stated = cc.DecisionTree("y", bins={"age": wanted}).fit(house())
    assert shared.body.bins == {"age": wanted}
    assert shared.body.nodes == stated.body.nodes
    masked = cc.DecisionTree("y", bins={"age": EDGES}, cutoffs=4, release="masked").fit(house())
    assert masked.body == shared.body
    assert {release.kind for release in shared.card.releases} == {
        "tree.schema",
        "tree.crosstables",
        "histograms",
    }


def test_histograms_are_split_by_attribute():
    edges = {"a": [1.0, 2.0], "b": [5.0]}
    question = AskHistograms(query="", target="y", edges=edges)
    parts = question.split(np.arange(7))
    assert {name: part.tolist() for name, part in parts.items()} == {"a": [0, 1, 2, 3], "b": [4, 5, 6]}
    assert question.numbers == 7


PATIENTS = st.fixed_dictionaries(
    {"age": AGES, "sex": st.sampled_from(["f", "m", "x", None]), "y": st.sampled_from(["n", "p", "q"])}
)


def count_tables(patients, classes):
    """Each cell by looking at each patient: ages by bin, sexes by value, both by class."""
    width = len(classes) + 1 if classes else 1
    ages, sexes = np.zeros((len(EDGES) + 2, width)), np.zeros((4, width))
    for one in patients:
        column = ([*classes, "other"].index(one["y"] if one["y"] in classes else "other")) if classes else 0
        ages[0 if one["age"] is None else 1 + bisect.bisect_right(EDGES, one["age"]), column] += 1
        sexes[[None, "f", "m", "x"].index(one["sex"]), column] += 1
    tables = {"age": ages, "sex": sexes}
    return {name: (table if classes else table[:, 0]).tolist() for name, table in tables.items()}


@given(st.lists(PATIENTS, min_size=1, max_size=40), st.sampled_from([[], ["p"], ["n", "p"]]))
def test_tables_by_class_are_those_of_the_patients_and_one_patient_is_in_one_cell_of_each(patients, classes):
    question = AskHistograms(
        query="",
        target="y",
        edges={"age": EDGES},
        values={"sex": ["f", "m"]},
        classes=classes,
        variance="4",
    )
    question.check("private")
    schema = {"age": "number", "sex": "code", "y": "code"}
    view = View(cc.Records.from_rows(patients, schema=schema), cc.Policy(), stated=True)
    counts = question.compute(view.select("", "y").under("private"), b"").astype(np.int64)
    assert counts.size == question.numbers
    tables = question.split(counts)
    assert {name: table.tolist() for name, table in tables.items()} == count_tables(patients, classes)
    without = count_tables(patients[:-1], classes)
    change = sum(((table - np.array(without[name])) ** 2).sum() for name, table in tables.items())
    assert change == question.sensitivity_squared == 2


@pytest.mark.parametrize("leave_out", [("a", 3), ("d", 0), ("d", 4)])
def test_private_cutoffs_have_no_side_door(monkeypatch, leave_out):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    coded = {
        name: [{**row, "age": None if row["age"] is None else int(row["age"])} for row in part]
        for name, part in PARTS.items()
    }

    def study(house):
        options = {
            "bins": {"age": [20, 40, 60, 80]},
            "cutoffs": 2,
            "values": {"y": ["n", "p"], "sex": ["f", "m"]},
        }
        return cc.DecisionTree("y", release="private", epsilon=50, max_depth=1, **options).fit(house)

    assert (
        find_side_doors(coded, leave_out, study, schema={"age": "number", "sex": "code", "y": "code"}) == []
    )


def test_private_cutoffs_are_planned_and_charged():
    options = {"bins": {"age": EDGES}, "cutoffs": 3, "values": {"y": ["n", "p"], "sex": ["f", "m"]}}
    sites = [cc.Site(name, cc.Records.from_rows(r, schema={"age": "number"})) for name, r in PARTS.items()]
    tree = cc.DecisionTree("y", release="private", epsilon=2, max_depth=2, **options)
    plan = tree.plan()
    assert [question.kind for question in plan.questions] == ["histograms", *["tree.crosstables"] * 3]
    tree.fit(cc.House(sites))
    opened = [entry for entry in sites[0].ledger.entries() if entry.kind == "mask.open"]
    assert opened[0].numbers == len(EDGES) + 2
    assert sites[0].ledger.spent() <= plan.total * (1 + 2 * 10**-6)
    assert set(tree.body.bins["age"]) <= set(EDGES)
    assert len(tree.body.bins["age"]) <= 3


@pytest.mark.parametrize(
    ("question", "release", "said"),
    [
        (AskHistograms(query="", target="y", edges={}), "exact", "must name an attribute"),
        (AskHistograms(query="", target="y", edges={"a": [2.0, 1.0]}), "exact", "must rise"),
        (AskHistograms(query="", target="y", edges={}, values={"a": [5, "5"]}), "exact", "'a' must differ"),
        (AskHistograms(query="", target="y", edges={"a": [1.0]}, classes=[1, 1]), "exact", "'y' must differ"),
        (
            AskHistograms(query="", target="y", edges={"a": [1.0]}, values={"a": [1]}),
            "exact",
            "either edges or values",
        ),
        (
            AskHistograms(query="", target="y", edges={"a": [1.0]}, classes=list(range(400_000))),
            "exact",
            "at most 1048576 numbers",
        ),
        (AskHistograms(query="", target="y", edges={"a": [1.0]}), "private", "says the variance"),
        (
            AskHistograms(query="", target="y", edges={"a": [1.0]}, variance="4"),
            "masked",
            "says the variance",
        ),
        (
            AskHistograms(query="", target="y", edges={"a": [1.0]}, variance="1e9"),
            "private",
            "says the variance",
        ),
        (
            AskHistograms(query="", target="y", edges={"a": [1.0]}, variance="-1"),
            "private",
            "says the variance",
        ),
    ],
)
def test_questions_that_do_not_fit_are_refused(question, release, said):
    with pytest.raises(MessageError, match=said):
        question.check(release)


def test_cutoffs_need_bins():
    with pytest.raises(StudyError, match="give these"):
        cc.DecisionTree("y", cutoffs=3)
    with pytest.raises(StudyError, match="'cutoffs'"):
        cc.DecisionTree("y", cutoffs=0, bins={"age": [1]})


def test_values_and_classes_are_no_second_way_to_tables_that_a_site_leaves_out():
    for more in ({"values": {"sex": ["f", "m"]}}, {"classes": ["p"]}):
        question = AskHistograms(query="", target="y", edges={"age": EDGES}, **more)
        for release in ("exact", "masked"):
            with pytest.raises(MessageError, match="under 'private' only"):
                question.check(release)


def test_a_histogram_with_a_small_bin_is_left_out_where_the_policy_says_so():
    patients = [{"age": 10.5, "y": "n"}] * 9 + [{"age": 70.5, "y": "p"}] * 2
    question = AskHistograms(query="", target="y", edges={"age": [40.0]})
    records = cc.Records.from_rows(patients, schema={"age": "number"})

    def told(release, **rules):
        view = View(records, cc.Policy(**rules))
        return question.compute(view.select("", "y").under(release), b"").tolist()

    assert told("exact") == told("exact", minimum_cell=2) == [0, 9, 2]
    assert told("exact", minimum_cell=3) == [0, 0, 0]
    assert told("masked", minimum_cell=3) == [0, 9, 2]
