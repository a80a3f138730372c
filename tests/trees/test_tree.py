"""The model: predicting, explaining, drawing, saving, loading, and what is said of bad parameters and files."""

from __future__ import annotations

import json

import numpy as np
import pytest

import concilium as cc
from concilium.errors import ConciliumError, HouseError, ModelError, QueryError, StudyError

ROWS = [
    {"age": age, "sex": sex, "smoker": smoker, "death": "yes" if age >= 60 and smoker == "y" else "no"}
    for age in range(20, 90)
    for sex in "fm"
    for smoker in ("y", "n", None)
]


def fitted(rows=ROWS, **options):
    records = cc.Records.from_rows(rows)
    site = cc.Site("a", records.take(np.arange(0, len(rows), 2)))
    other = cc.Site("b", records.take(np.arange(1, len(rows), 2)))
    return cc.DecisionTree(**{"target": "death", "bins": {"age": [40, 60]}, **options}).fit(
        cc.House([site, other])
    )


def test_the_tree_finds_the_rule_and_draws_it():
    tree = fitted()
    assert tree.text().splitlines() == [
        "death (420 patients)",
        "├─ smoker = n or missing: no (280 of 280)",
        "└─ smoker = y",
        "   ├─ age < 60: no (80 of 80)",
        "   └─ age >= 60: yes (60 of 60)",
    ]
    assert tree.depth == 2
    assert tree.classes_ == ["no", "yes"]
    assert tree.card.rounds == 3


def test_by_id3_every_value_is_a_branch():
    tree = fitted(growth="id3")
    assert tree.text().splitlines() == [
        "death (420 patients)",
        "├─ smoker = n: no (140 of 140)",
        "├─ smoker = y",
        "│  ├─ age < 40: no (40 of 40)",
        "│  ├─ 40 <= age < 60: no (40 of 40)",
        "│  └─ age >= 60: yes (60 of 60)",
        "└─ smoker is missing: no (140 of 140)",
    ]
    assert tree.depth == 2
    assert tree.classes_ == ["no", "yes"]
    assert tree.card.rounds == 3


def test_prediction_equals_the_rule_and_keeps_the_labels_type():
    tree = fitted()
    assert list(tree.predict(cc.Records.from_rows(ROWS))) == [row["death"] for row in ROWS]
    numeric = fitted([{**row, "death": int(row["death"] == "yes")} for row in ROWS])
    assert numeric.classes_ == [0, 1]
    assert numeric.predict(ROWS).dtype.kind == "i"
    np.testing.assert_array_equal(numeric.predict(ROWS), [row["death"] == "yes" for row in ROWS])


def test_a_data_frame_and_columns_stored_otherwise_predict_the_same():
    pandas = pytest.importorskip("pandas")
    tree = fitted()
    frame = pandas.DataFrame(ROWS)
    frame["age"] = frame["age"] + 0.25
    assert list(tree.predict(frame)) == [row["death"] for row in ROWS]
    coded = fitted([{"grade": i % 4, "death": i % 4 > 1} for i in range(80)], bins={})
    texts = cc.Records.from_rows([{"grade": str(i)} for i in range(4)])
    numbers = cc.Records.from_rows([{"grade": i} for i in range(4)], schema={"grade": "number"})
    assert list(coded.predict(texts)) == list(coded.predict(numbers)) == [False, False, True, True]


def test_values_never_seen_stop_at_the_node():
    tree = fitted()
    shares = tree.predict_proba([{"smoker": "sometimes", "age": 70}])
    np.testing.assert_allclose(shares, [[360 / 420, 60 / 420]])


def test_explanations_are_sentences_and_data():
    tree = fitted()
    explanation = tree.explain({"age": 63, "smoker": "y", "sex": "f", "mrn": "ignored"})
    assert [reason.condition for reason in explanation.reasons] == ["smoker = y", "age >= 60"]
    assert explanation.prediction == "yes"
    assert explanation.probability == 1.0
    assert str(explanation).splitlines() == [
        "death = yes (100% of 60 similar patients; 95% interval 87% to 100%).",
        "The interval is about the average of such patients. The probability of this one may lie outside it.",
        "1. smoker = y: yes goes from 14% to 43% (140 patients).",
        "2. age >= 60: yes goes from 43% to 100% (60 patients).",
    ]
    unknown = tree.explain({"smoker": "y"})
    assert "Not entered, and so not counted for or against: age" in str(unknown)
    assert "age, which is missing" in str(tree.explain({"smoker": "y", "age": None}))
    assert "no patient of the model who came this far had smoker = sometimes" in str(
        tree.explain({"smoker": "sometimes"})
    )
    assert "Measure smoker first." in str(tree.explain({"smokr": "y"}))


def test_an_explanation_agrees_with_the_prediction_for_every_patient():
    tree = fitted(max_depth=1)
    for row in ROWS[::7]:
        explanation = tree.explain(row)
        (share,) = tree.predict_proba([row])
        assert explanation.prediction == tree.predict([row])[0]
        assert explanation.probability == max(share)


def test_a_saved_model_loads_and_is_the_same(tmp_path):
    tree = fitted(query="age >= 30")
    tree.save(tmp_path / "tree.json")
    loaded = cc.load(tmp_path / "tree.json")
    assert loaded.body == tree.body
    assert loaded.card == tree.card
    np.testing.assert_array_equal(loaded.predict_proba(ROWS), tree.predict_proba(ROWS))
    document = json.loads((tmp_path / "tree.json").read_text())
    assert document["format"] == "concilium/model@1"
    assert set(document) == {"format", "method", "parameters", "body", "card"}
    assert [path.name for path in tmp_path.iterdir()] == ["tree.json"]


def damage(document, path, value):
    *parents, last = path
    for part in parents:
        document = document[part]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["colour"], 1, "unknown field `colour`"),
        (["body", "colour"], 1, "unknown field `colour`"),
        (["card", "colour"], 1, "unknown field `colour`"),
        (["format"], "concilium/model@9", "its format is"),
        (["method"], "tre", "did you mean 'tree'"),
        (["body", "classes"], [], "needs a target, classes and nodes"),
        (["body", "nodes", 0, "counts"], [1], "one count for each class"),
        (["body", "nodes", 0, "branches", 0, 1], 0, "leads nowhere"),
        (["body", "nodes", 0, "branches", 0, 1], 999, "leads nowhere"),
        (["body", "nodes", 0, "attribute"], None, "or neither"),
        (["body", "nodes", 0, "counts"], ["a", "b"], "Expected `int`"),
        (["card", "rounds"], "three", "Expected `int`"),
    ],
)
def test_a_damaged_model_file_is_refused_in_one_sentence(tmp_path, path, value, said):
    file = tmp_path / "tree.json"
    fitted().save(file)
    document = json.loads(file.read_text())
    damage(document, path, value)
    file.write_text(json.dumps(document))
    with pytest.raises(ModelError, match=r"tree\.json: ") as caught:
        cc.load(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[1, 2", b"\xff\xfe", b"[]", b"null"])
def test_what_is_not_a_model_is_refused(tmp_path, content):
    file = tmp_path / "tree.json"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"tree\.json: this is not"):
        cc.load(file)
    with pytest.raises(ModelError, match="cannot be read"):
        cc.load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"target": ""}, StudyError, "'target'"),
        ({"release": "secret"}, StudyError, "'release'"),
        ({"max_depth": -1}, StudyError, "'max_depth'"),
        ({"max_depth": 1.5}, StudyError, "'max_depth'"),
        ({"min_leaf": 0}, StudyError, "'min_leaf'"),
        ({"bins": {"age": [60, 40]}}, StudyError, "must rise"),
        ({"bins": {"age": []}}, StudyError, "1 to 1000"),
        ({"bins": {"age": [float("nan")]}}, StudyError, "finite"),
        ({"query": "age >"}, QueryError, "column"),
        ({"query": "agee > 3"}, HouseError, "did you mean 'age'"),
        ({"target": "deth"}, HouseError, "did you mean 'death'"),
        ({"target": "age", "bins": {}}, StudyError, "'age' is a number: hospitals have 70 values"),
        ({"bins": {"sex": [1]}}, HouseError, "holds text"),
    ],
)
def test_bad_parameters_are_said(options, error, said):
    with pytest.raises(error) as caught:
        fitted(**options)
    assert said in str(caught.value)
    assert isinstance(caught.value, ConciliumError)


def test_an_unfitted_tree_says_so():
    with pytest.raises(ModelError, match="not fitted yet"):
        cc.DecisionTree("death").predict(ROWS)
    with pytest.raises(ModelError, match="not fitted yet"):
        _ = cc.DecisionTree("death").card


@pytest.mark.parametrize("growth", ["readable", "id3"])
def test_numbers_without_bins_are_cut_on_the_grid(growth):
    """At 20 quantiles, each the least value of those above; nothing is left out."""
    for rows in (ROWS, [{**row, "age": row["age"] + 0.5} for row in ROWS]):
        tree = fitted(rows, bins={}, growth=growth)
        assert "left out" not in tree.text()
        assert not any("left out" in warning for warning in tree.card.warnings)
        assert len(tree.body.bins["age"]) == 20
        assert set(tree.body.bins["age"]) <= {row["age"] for row in rows}
        assert tree.card.rounds == 5
        assert np.mean(tree.predict(rows) == [row["death"] for row in rows]) > 0.98


def test_a_single_class_and_a_single_leaf_are_said():
    tree = fitted(query="smoker = 'n'", bins={})
    assert len(tree.body.nodes) == 1
    assert any("has death = no: there is nothing to learn" in warning for warning in tree.card.warnings)
    assert str(tree.explain({"smoker": "n"})) == (
        "death = no (100% of all 140 patients; 95% interval 97% to 100%).\n"
        "The interval is about the average of all patients. The probability of this one may lie outside it.\n"
        "The model asks nothing about the patient."
    )
    alone = fitted([{"death": i % 2} for i in range(20)], bins={})
    assert any("no attribute is known at every site" in warning for warning in alone.card.warnings)


def test_chosen_attributes_only():
    tree = fitted(attributes=["sex", "age"])
    assert {node.attribute for node in tree.body.nodes} <= {"sex", "age", None}
    tree = fitted(attributes=["sex", "aeg"])
    assert any("no site knows 'aeg'" in warning for warning in tree.card.warnings)


def test_a_code_stored_as_number_here_and_text_there_is_one_value():
    one = cc.Site("a", cc.Records.from_rows([{"code": i % 2, "y": i % 2} for i in range(20)]))
    two = cc.Site("b", cc.Records.from_rows([{"code": str(i % 2 or "V5"), "y": i % 2} for i in range(20)]))
    tree = cc.DecisionTree("y").fit(cc.House([one, two]))
    assert [branch.value for branch in tree.body.nodes[0].branches] == ["0", "1", "V5"]
    assert list(tree.predict([{"code": 1}, {"code": 0}])) == [1, 0]


@pytest.mark.parametrize("missing", [float("nan"), None, np.nan, "NaT", "NA"])
def test_missing_in_any_guise_is_not_known(missing):
    pandas = pytest.importorskip("pandas")
    value = (
        {"NaT": pandas.NaT, "NA": pandas.NA}.get(missing, missing) if isinstance(missing, str) else missing
    )
    assert "age, which is missing here" in str(
        fitted(query="smoker = 'y'").explain({"smoker": "y", "age": value, "sex": "f"})
    ) or ("age" not in fitted(query="smoker = 'y'").attributes_)
    tree = fitted()
    assert str(tree.explain({"smoker": "y", "age": value})) == str(tree.explain({"smoker": "y", "age": None}))


def test_a_row_of_a_data_frame_is_a_patient():
    pandas = pytest.importorskip("pandas")
    tree = fitted()
    frame = pandas.DataFrame(ROWS)
    for place in (0, 133, 400):
        assert tree.explain(frame.iloc[place]).prediction == ROWS[place]["death"]
    assert tree.explain({"age": np.int64(63), "smoker": np.str_("y")}).prediction == "yes"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cc.DecisionTree("y", bins={"age": ["x"]}), "lists of numbers"),
        (lambda: cc.DecisionTree("y", bins={"age": 40}), "lists of numbers"),
        (lambda: cc.DecisionTree("y", query=None), "'query'"),
        (lambda: cc.DecisionTree("y", attributes="sex"), "list of names"),
        (lambda: cc.DecisionTree("y", max_depth=True), "'max_depth'"),
        (lambda: cc.House({"a": 1}), "list of sites"),
        (lambda: cc.House([cc.Site("a", cc.Records.from_rows(ROWS))], timeout="x"), "timeout"),
        (lambda: cc.Site("a", ROWS), "Records"),
        (lambda: cc.Site(5, cc.Records.from_rows(ROWS)), "name"),
        (lambda: cc.Site("a", cc.Records.from_rows(ROWS), policy="policy.toml"), "Policy.read"),
    ],
)
def test_a_wrong_kind_of_thing_is_said_in_one_sentence(make, said):
    with pytest.raises(ConciliumError, match=said):
        make()
    assert cc.DecisionTree("y", max_depth=np.int64(2)).max_depth == 2
    assert cc.DecisionTree("y", cutoffs=np.int64(2), bins={"x": [1.0, 2.0]}).plan()
    with pytest.raises(AttributeError, match="'DecisionTree' object has no attribute 'depht'"):
        _ = cc.DecisionTree("y").depht
    with pytest.raises(AttributeError, match="the 'max_depth' of a DecisionTree is settled"):
        cc.DecisionTree("y").max_depth = 3
