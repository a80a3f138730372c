"""Shared cutoffs: histograms that add up to the pooled one, and quantiles that survive noise."""

from __future__ import annotations

import bisect

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from agreed import check
from concilium.errors import MessageError, StudyError
from concilium.privacy.randomness import SWITCH, SWITCHED_ON
from concilium.protocol.attributes import Attribute, choose_cutoffs
from concilium.protocol.cohort import View
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.held_out import Sample
from concilium.protocol.questions import Gaussian
from concilium.protocol.releases import find_release
from concilium.protocol.site import Site
from side_door import find_side_doors, state

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
    assert {release.kind for release in shared.card.releases} == {"tree.schema", "counts"}


def test_histograms_are_split_by_attribute():
    attributes = (Attribute("a", (1.0, 2.0)), Attribute("b", (5.0,)))
    question = AskCounts(totals=False, query="", target="y", attributes=attributes)
    parts = split_counts(attributes, np.arange(7).reshape(question.shape))
    assert {name: part[:, 0].tolist() for name, part in parts.items()} == {"a": [0, 1, 2, 3], "b": [4, 5, 6]}
    assert question.numbers == 7
    by_class = split_counts(attributes, np.arange(14).reshape(1, 7, 2))
    assert {name: part.shape for name, part in by_class.items()} == {"a": (4, 2), "b": (3, 2)}


PATIENTS = st.fixed_dictionaries(
    {
        "age": AGES,
        "sex": st.sampled_from(["f", "m", "x", None]),
        "race": st.sampled_from(["f", "g", None]),
        "y": st.sampled_from(["n", "p", "q"]),
    }
)


def count_tables(patients, classes):
    """Each cell by looking at each patient: ages by bin, sexes by value (with and without a cell for missing), all by
    class."""
    width = len(classes) + 1 if classes else 1
    ages, sexes, coarse = np.zeros((len(EDGES) + 2, width)), np.zeros((4, width)), np.zeros((2, width))
    for one in patients:
        column = ([*classes, "other"].index(one["y"] if one["y"] in classes else "other")) if classes else 0
        ages[0 if one["age"] is None else 1 + bisect.bisect_right(EDGES, one["age"]), column] += 1
        sexes[[None, "f", "m", "x"].index(one["sex"]), column] += 1
        coarse[0 if one["race"] == "f" else 1, column] += 1
    return {"age": ages.tolist(), "sex": sexes.tolist(), "race": coarse.tolist()}


@given(st.lists(PATIENTS, min_size=1, max_size=40), st.sampled_from([[], ["p"], ["n", "p"]]))
def test_tables_by_class_are_those_of_the_patients_and_one_patient_is_in_one_cell_of_each(patients, classes):
    attributes = (
        Attribute("age", tuple(EDGES)),
        Attribute("sex", (), ("f", "m")),
        Attribute("race", (), ("f",), missing=False),
    )
    question = AskCounts(
        totals=False,
        query="",
        target="y",
        attributes=attributes,
        classes=Attribute("y", (), tuple(classes), missing=False) if classes else None,
        noise=Gaussian("4"),
    )
    assert check(question, "private") == question
    schema = {"age": "number", "sex": "code", "race": "code", "y": "code"}
    view = View(cc.Records.from_rows(patients, schema=schema), cc.Policy()).each_by_itself
    counts = question.compute(view.select("", "y").telling_all()).astype(np.int64)
    assert counts.shape == question.shape
    tables = split_counts(attributes, counts)
    assert {name: table.tolist() for name, table in tables.items()} == count_tables(patients, classes)
    without = count_tables(patients[:-1], classes)
    change = sum(((table - np.array(without[name])) ** 2).sum() for name, table in tables.items())
    assert change == question.sensitivity.squared == 3


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
    sites = [cc.Site(name, state(r, age="number")) for name, r in PARTS.items()]
    tree = cc.DecisionTree("y", release="private", epsilon=2, max_depth=2, **options)
    plan = tree.plan()
    assert [question.kind for question in plan.questions] == ["counts", *["counts"] * 3]
    tree.fit(cc.House(sites))
    opened = [entry for entry in sites[0].ledger.entries() if entry.kind == "mask.open"]
    assert opened[0].numbers == len(EDGES) + 2
    assert sites[0].ledger.spent() <= plan.total * (1 + 2 * 10**-6)
    assert set(tree.body.bins["age"]) <= set(EDGES)
    assert len(tree.body.bins["age"]) <= 3


AGE = Attribute("a", (1.0,))


def plain(*attributes):
    return AskCounts(totals=False, query="", target="y", attributes=attributes)


def noisy(*attributes, variance="4", **more):
    return msgspec.structs.replace(plain(*attributes), noise=Gaussian(variance), **more)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (plain(), "1 to 4194304 numbers"),
        (noisy(), "1 to 262144 numbers"),
        (plain(Attribute("a", (2.0, 1.0))), "must rise"),
        (noisy(Attribute("a", (), (5, "5"))), "'a' must have different values"),
        (noisy(AGE, classes=Attribute("y", (), (1, 1), missing=False)), "'y' must have different values"),
        (noisy(AGE, classes=Attribute("z", (), ("p",), missing=False)), "values of the target"),
        (plain(Attribute("a", (1.0,), (1,))), "both a number and a category"),
        (noisy(Attribute("a", (1.0,), (1,))), "both a number and a category"),
        (plain(AGE, AGE), "named twice"),
        (noisy(AGE, Attribute("a", (), ("x",))), "named twice"),
        (noisy(AGE, classes=Attribute("y", (), tuple(range(1000)), missing=False)), "1 to 1000 classes"),
        (
            msgspec.structs.replace(
                plain(*(Attribute(f"a{i}", of=1 << 20) for i in range(5))),
                classes=Attribute("y", (), ("p",), missing=False),
            ),
            "1 to 4194304 numbers",
        ),
        (noisy(*(Attribute(f"a{i}", tuple(map(float, range(1000)))) for i in range(270))), "numbers"),
        *[
            (noisy(AGE, variance=v), "a variance above 0")
            for v in ("", "0", "1e9", "1E9", "-1", "1/0", "nan")
        ],
        (noisy(AGE, variance="1" * 201), "a variance above 0"),
        (noisy(Attribute("a", of=3)), "told the same values"),
        (noisy(AGE, classes=Attribute("y", missing=False, of=2)), "told the same values"),
        # Where somebody has no cell, a refusal, or a count in somebody else's cell, would tell who.
        (noisy(Attribute("a", (1.0,), missing=False)), "a cell for every patient"),
        (noisy(Attribute("a", (), ("x",), missing=True, other=False)), "a cell for every patient"),
        (noisy(Attribute("a", (), ("x",), missing=False, other=False)), "a cell for every patient"),
        (noisy(AGE, sample=Sample(positive="p")), "without noise only"),
        (msgspec.structs.replace(plain(AGE), counted=[1]), "must be among those named"),
        (msgspec.structs.replace(plain(AGE), counted=[0, 0]), "must be among those named"),
        (msgspec.structs.replace(plain(AGE), nodes=[1]), "only leaves"),
    ],
)
def test_questions_that_do_not_fit_are_refused(question, said):
    with pytest.raises(MessageError, match=said):
        check(question, "exact" if question.noise is None else "private")


@pytest.mark.parametrize(
    ("question", "release"),
    [(plain(AGE), "private"), (plain(AGE), "noised"), (noisy(AGE), "exact"), (noisy(AGE), "noised")],
)
def test_noise_comes_with_a_release_that_adds_it_and_with_no_other(question, release):
    with pytest.raises(MessageError, match="other noise, or none"):
        check(question, release)


def test_cutoffs_without_bins_are_quantiles_on_the_public_grid():
    rows = [{"age": 20.07 + i, "y": i % 2} for i in range(60)]
    tree = cc.DecisionTree("y", cutoffs=3).fit([cc.Records.from_rows(rows)])
    assert tree.body.bins["age"] == pytest.approx([35, 50, 65], abs=1.5)
    with pytest.raises(StudyError, match="'cutoffs'"):
        cc.DecisionTree("y", cutoffs=0)
    with pytest.raises(StudyError, match="'cutoffs'"):
        cc.DecisionTree("y", cutoffs=0, bins={"age": [1]})


@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize(
    "attribute",
    [
        Attribute("sex", (), ("f", "m")),
        Attribute("sex"),
        Attribute("age", (1.0,), missing=False),
    ],
)
def test_values_are_no_second_way_to_tables_that_a_site_leaves_out(release, attribute):
    with pytest.raises(MessageError, match="by class, or with noise"):
        check(plain(Attribute("other", (1.0,)), attribute), release)


def test_how_many_match_is_not_told_under_masks():
    count = AskCounts(query="age > 5", target="")
    check(count, "exact")
    with pytest.raises(MessageError, match="under 'exact' only"):
        check(count, "masked")


def test_a_histogram_with_a_small_bin_is_left_out_where_the_policy_says_so():
    patients = [{"age": 10.5, "y": "n"}] * 9 + [{"age": 70.5, "y": "p"}] * 2
    question = plain(Attribute("age", (40.0,)))
    records = cc.Records.from_rows(patients, schema={"age": "number"})

    def told(release, **rules):
        context = Site("a", records, cc.Policy(**rules))._context
        cohort = (
            context.view.select("", "y")
            if release == "exact"
            else find_release(release).select(context, question)
        )
        counts = question.compute(cohort)
        question.suppress(counts, cohort)
        return counts.reshape(-1).tolist()

    assert told("exact") == told("exact", minimum_cell=2) == [0, 9, 2]
    assert told("exact", minimum_cell=3) == [0, 0, 0]
    assert told("masked", minimum_cell=3) == [0, 9, 2]
