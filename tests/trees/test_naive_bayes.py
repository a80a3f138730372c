"""`NaiveBayes`, the one-level model: that of the pooled table, whatever the split; private, no side door; readable."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import ConciliumError, ModelError
from concilium.privacy.accounting import epsilon_from_rho, rho_for_epsilon
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.records.columns import Coded
from concilium.records.table import Records
from side_door import UNLIMITED, find_side_doors, state

VALUES = {"a": ["0", "1"], "b": ["x", "y", "z"], "y": ["n", "p"]}
BINS = {"age": [40.0, 60.0]}


def pooled(rows, patient, names, bins):
    """Naive Bayes as it stands in books, from the rows themselves, one patient beforehand for every value."""

    def value(row, name):
        if name not in bins or row[name] is None:
            return row[name]
        return sum(row[name] >= edge for edge in bins[name])

    classes = sorted({row["y"] for row in rows})
    shares = [sum(row["y"] == c for row in rows) / len(rows) for c in classes]
    score = list(shares)
    for name in names:
        same = [row["y"] for row in rows if value(row, name) == value(patient, name)]
        for index, outcome in enumerate(classes):
            score[index] *= (same.count(outcome) + shares[index]) / (len(same) + 1) / shares[index]
    return classes, [one / sum(score) for one in score]


patients = st.fixed_dictionaries(
    {
        "a": st.sampled_from(["0", "1", None]),
        "b": st.sampled_from(["x", "y", "z"]),
        "age": st.none() | st.integers(20, 90),
        "y": st.sampled_from(["n", "p", "q"]),
    }
)


@given(
    rows=st.lists(patients, min_size=15, max_size=60), others=st.lists(patients, max_size=4), data=st.data()
)
@settings(max_examples=40)
def test_whatever_the_split_it_is_the_naive_bayes_of_the_pooled_table(rows, others, data):
    sites = data.draw(st.integers(1, 3))
    release = data.draw(st.sampled_from(["exact", "masked"] if sites == 3 else ["exact"]))
    schema = {"age": "number", "a": "code", "b": "code", "y": "code"}
    house = cc.House(
        [cc.Site(f"s{i}", cc.Records.from_rows(rows[i::sites], schema=schema)) for i in range(sites)]
    )
    model = cc.NaiveBayes("y", release=release, bins=BINS, min_cell=1).fit(house)
    tried = Records.from_rows([*rows, *others], schema=schema)
    ours = model.predict_proba(tried)
    for row, likely in zip([*rows, *others], ours, strict=True):
        classes, expected = pooled(rows, row, ["a", "b", "age"], BINS)
        assert model.classes_ == classes
        assert np.allclose(likely, expected)
        explanation = model.explain(row)
        assert math.isclose(explanation.probability, max(expected))
        assert explanation.probability == pytest.approx(likely[model.classes_.index(explanation.prediction)])


def rows(count, shift=0):
    return [
        {
            "a": "01"[i % 2],
            "b": "xyz"[(i + shift) % 3],
            "y": "np"[(i % 2) ^ (i % 11 == 0)],
            "mrn": f"m{i}{shift}",
        }
        for i in range(count)
    ]


SITES = {"big": rows(150), "small": rows(40, 1), "tiny": rows(1, 2), "one": rows(3, 3)}


def open_sites():
    return [cc.Site(name, state(r), UNLIMITED) for name, r in SITES.items()]


def study(house, **options):
    return cc.NaiveBayes("y", release="private", **{"values": VALUES, "epsilon": 1, **options}).fit(house)


@pytest.fixture
def fixed_noise(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)


@pytest.mark.parametrize("leave_out", [("big", 0), ("small", 11), ("tiny", 0), ("one", 2)])
@pytest.mark.parametrize("options", [{}, {"query": "b = 'z' and a = '0'"}, {"epsilon": 0.01}])
def test_a_private_model_has_no_side_door(fixed_noise, leave_out, options):
    assert find_side_doors(SITES, leave_out, lambda house: study(house, **options)) == []


def test_one_question_takes_the_whole_budget_and_no_more():
    sites = open_sites()
    model = study(cc.House(sites), epsilon=0.1)
    (asked,) = model.plan().questions
    assert asked.cost == rho_for_epsilon("0.1", "1/1000000")
    (spent,) = {site.ledger.spent() for site in sites}
    assert Fraction(999, 1000) * asked.cost < spent <= asked.cost
    assert epsilon_from_rho(spent, "1/1000000") <= 0.1
    assert any("epsilon = 0.1 at delta" in warning for warning in model.card.warnings)
    assert [site.patients for site in model.card.sites] == [None] * 4


def test_what_no_value_names_counts_as_other(fixed_noise):
    with zero_noise():
        model = study(cc.House(open_sites()), values={**VALUES, "a": ["1"]}, epsilon=20)
    assert list(model.predict([{"a": one, "b": "x"} for one in ("1", "0", None)])) == ["p", "n", "n"]
    assert "a is missing or anything else" in model.text()
    assert "a is missing or anything else" in str(model.explain({"a": "?", "b": "x"}))


def test_it_learns_where_a_tree_cannot():
    draw = np.random.default_rng(3)
    codes = draw.integers(1, 4, size=(10, 16_000)).astype(np.uint8)
    score = (codes[:6].astype(float) - 2).sum(axis=0)
    outcome = (draw.random(16_000) < 1 / (1 + np.exp(-score))).astype(np.uint8) + 1

    def part(where):
        columns = {f"x{i}": Coded(codes[i, where], (0, 1, 2), stated=True) for i in range(10)}
        return Records({**columns, "y": Coded(outcome[where], (0, 1), stated=True)})

    house = cc.House([cc.Site(f"s{i}", part(slice(3000 * i, 3000 * i + 3000))) for i in range(4)])
    options = {
        "epsilon": 0.1,
        "release": "private",
        "values": {**{f"x{i}": [0, 1, 2] for i in range(10)}, "y": [0, 1]},
    }
    test = part(slice(12_000, 16_000))
    right = outcome[12_000:] - 1
    one_level = np.mean(cc.NaiveBayes("y", **options).fit(house).predict(test) == right)
    tree = cc.DecisionTree("y", **options).fit(house)
    assert one_level > np.mean((score[12_000:] > 0) == right) - 0.06
    assert one_level > np.mean(tree.predict(test) == right)
    assert any("naive-bayes" in warning for warning in tree.card.warnings)
    assert "naive-bayes" in tree.plan().render()
    generous = cc.DecisionTree("y", **{**options, "epsilon": 0.5})
    assert "naive-bayes" not in generous.plan().render()


def test_a_model_file_is_the_model(tmp_path):
    model = cc.NaiveBayes("y", bins=BINS).fit(
        cc.House(
            [cc.Site("s", cc.Records.from_rows([{**row, "age": 7 * i} for i, row in enumerate(rows(60))]))]
        )
    )
    model.save(tmp_path / "model.json")
    again = cc.load(tmp_path / "model.json")
    assert isinstance(again, cc.NaiveBayes)
    assert again.body == model.body
    assert again.card == model.card
    assert again.text() == model.text()
    document = json.loads((tmp_path / "model.json").read_text())
    root = document["body"]["attributes"][0][0]
    for change in ({"counts": [1, 2]}, {"attribute": None}, {"branches": []}):
        broken = {**document, "body": {**document["body"], "attributes": [[{**root, **change}]]}}
        (tmp_path / "broken.json").write_text(json.dumps(broken))
        with pytest.raises(ModelError, match="this is not a model file"):
            cc.load(tmp_path / "broken.json")


def test_it_tells_what_every_attribute_moves():
    model = cc.NaiveBayes("y", attributes=["a", "b"]).fit(
        cc.House([cc.Site("s", cc.Records.from_rows(rows(132)))])
    )
    assert model.text().splitlines()[:4] == [
        "y: n 50%, p 50% of 132 patients; each attribute moves these by itself",
        "a",
        "├─ a = 0: n 91%, p 9% of 66 patients",
        "└─ a = 1: n 9%, p 91% of 66 patients",
    ]
    explanation = model.explain({"a": "0", "b": "?"})
    assert explanation.prediction == "n"
    assert [reason.attributes for reason in explanation.reasons] == [("a",)]
    assert explanation.reasons[0].before == 0.5
    assert (explanation.base, explanation.patients) == (0.5, 132)
    unseen = "No patient of the model had the value given for b: it is not counted."
    assert explanation.notes == (unseen,)
    assert str(explanation).splitlines() == [
        "y = n (90%; 95% interval 81% to 95%; against 50% of all 132 patients).",
        "1. a = 0: n goes from 50% to 90% (66 patients).",
        unseen,
    ]
    assert "Measure a first." in str(model.explain({"c": 1}))
    assert msgspec.to_builtins(explanation)["reasons"][0]["condition"] == "a = 0"


def test_reasons_that_say_little_are_told_together():
    many = [
        {**row, **{f"v{i}": str((n * (i + 3)) % 5) for i in range(10)}} for n, row in enumerate(rows(200))
    ]
    for row in many:
        del row["mrn"]
    model = cc.NaiveBayes("y").fit(cc.House([cc.Site("s", cc.Records.from_rows(many))]))
    explanation = model.explain(many[0])
    assert len(explanation.reasons) == 10  # two of the ten are the same for everybody
    assert "2 more attributes, each of which says less" in str(explanation)
    assert explanation.reasons[0].attributes == ("a",)
    for before, after in zip(explanation.reasons, explanation.reasons[1:], strict=False):
        assert before.after == after.before
    assert explanation.reasons[-1].after == explanation.probability


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": None}, "a private NaiveBayes needs an 'epsilon'"),
        ({"values": {"a": ["0", "1"]}, "positive": "p"}, "NaiveBayes needs the classes"),
        ({"epsilon": 1e-9}, "too small"),
        ({"release": "open"}, "'release' of a NaiveBayes"),
        ({"bins": {"a": [2, 1]}}, "bins"),
    ],
)
def test_what_a_study_must_say(options, said):
    with pytest.raises(ConciliumError, match=said):
        cc.NaiveBayes("y", **{"release": "private", "values": VALUES, "epsilon": 1, **options})


def test_what_a_study_need_not_say_is_planned_with_its_price():
    """Without classes or attributes it asks for them first, within the same epsilon."""
    stated = cc.NaiveBayes("y", release="private", values=VALUES, epsilon=1).plan()
    for values, kinds in (
        ({"a": ["0", "1"]}, ["counts"]),
        ({"y": ["n", "p"]}, ["columns", "counts", "counts"]),
        ({}, ["counts", "columns", "counts", "counts"]),
    ):
        plan = cc.NaiveBayes("y", release="private", values=values, epsilon=1).plan()
        assert [question.kind for question in plan.questions] == [*kinds, "counts"]
        assert plan.total == stated.total
        assert all((question.cost == 0) == (question.kind == "columns") for question in plan.questions)


def test_before_it_is_fitted_there_is_no_model():
    model = cc.NaiveBayes("y")
    for use in (lambda: model.body, lambda: model.card, lambda: model.predict([{"a": 1}])):
        with pytest.raises(ModelError, match="not fitted yet"):
            use()
    assert model.plan().unlimited == 3
    assert repr(model) == "NaiveBayes(target='y')"


def test_of_no_more_patients_than_noise_no_share_is_printed(fixed_noise):
    """One patient has the value: the noise that the model states could be more."""
    with zero_noise():
        frame = [
            {"a": "u" if place else "v", "b": "mn"[place % 2], "y": ["no", "yes"][place % 3 == 0]}
            for place in range(3000)
        ]
        sites = [cc.Site(name, state(frame[start::3]), UNLIMITED) for start, name in enumerate("pqr")]
        model = cc.NaiveBayes(
            "y", release="private", epsilon=4, values={"a": ["u", "v"], "b": ["m", "n"], "y": ["no", "yes"]}
        ).fit(cc.House(sites))
    assert "a = v: no more patients than noise" in model.text()
    assert "patients than noise" not in next(line for line in model.text().splitlines() if "a = u" in line)
