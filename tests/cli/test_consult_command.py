"""`concilium consult`: patients from files, pairs and standard input; one sentence for those it cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.consult import _read_value
from concilium.cli.main import app
from concilium.records.grammar import canonical
from small_study import make_patients

PATIENT = {"age": 71, "sex": "f", "smoker": "yes"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.json"
    rows = [
        {key: value or None if key == "smoker" else value for key, value in row.items()}
        for row in make_patients()
    ]
    sites = [cc.Site(name, part) for name, part in cc.Records.from_rows(rows).split("hospital").items()]
    cc.DecisionTree(target="death", bins={"age": [40, 60]}, max_depth=3).fit(cc.House(sites)).save(path)
    return path


def consult(model: Path, *arguments: str, given: str | None = None) -> Any:
    return CliRunner().invoke(app, ["consult", str(model), *arguments], input=given)


def test_pairs_files_and_standard_input_say_the_same(model: Path, tmp_path: Path) -> None:
    expected = str(cc.load(model).explain(PATIENT)) + "\n"
    (tmp_path / "patient.json").write_text(json.dumps(PATIENT))
    table = "age,sex,smoker\n71,f,yes\n"
    (tmp_path / "patient.csv").write_text(table)
    for arguments, standard_input in (
        (["age=71", "sex=f", "smoker=yes"], None),
        ([str(tmp_path / "patient.json")], None),
        ([str(tmp_path / "patient.csv")], None),
        (["-"], json.dumps(PATIENT)),
        (["-"], table),
    ):
        result = consult(model, *arguments, given=standard_input)
        assert result.exit_code == 0, result.output
        assert result.stdout == expected


def test_json_holds_prediction_and_reasons(model: Path) -> None:
    plain = json.loads(consult(model, "age=71", "sex=f", "smoker=yes", "--json").stdout)
    explanation = cc.load(model).explain(PATIENT)
    assert plain["prediction"] == explanation.prediction
    assert plain["probability"] == explanation.probability
    assert [reason["attributes"] for reason in plain["reasons"]] == [
        list(reason.attributes) for reason in explanation.reasons
    ]
    assert plain["reasons"]
    assert plain["sentences"] == str(explanation).splitlines()


def test_several_patients_are_numbered_and_listed(model: Path) -> None:
    rows = "age,sex,smoker\n71,f,yes\n25,m,no\n"
    result = consult(model, "-", given=rows)
    assert [line for line in result.stdout.splitlines() if line.startswith("patient")] == [
        "patient 1",
        "patient 2",
    ]
    assert len(json.loads(consult(model, "-", "--json", given=rows).stdout)) == 2
    assert len(json.loads(consult(model, "-", "--json", given=json.dumps([PATIENT] * 3)).stdout)) == 3


def test_what_is_not_known_may_be_left_empty(model: Path) -> None:
    results = [consult(model, "age=71", "sex=f", *more).stdout for more in ([], ["smoker="], ["smoker=NA"])]
    assert results[1] == results[2]
    assert "smoker" in results[0]
    assert "Not entered, and so not counted for or against: smoker" in results[0]


def test_more_than_the_model_asks_is_welcome(model: Path) -> None:
    assert consult(model, "age=71", "sex=f", "smoker=yes", "ward=7", "mrn=123").exit_code == 0


BAD_PATIENTS = [
    (["agee=71", "sex=f"], None, "the model does not ask about 'agee'; did you mean 'age'?"),
    (["age=71", "nonsense"], None, "'nonsense' is neither a file nor attribute=value"),
    (["none.json"], None, "'none.json' is neither a file nor attribute=value"),
    (["age=71", "age=72"], None, "'age' is given twice"),
    (["=71"], None, "'=71' names no attribute"),
    (["age=old", "sex=f"], None, "'age'"),
    (["-"], "{", "standard input: line 1, column 2: is not JSON"),
    (["-"], "[]", "standard input: there is no patient in it"),
    (["-"], "[5]", "a patient is an object"),
    (["-"], '{"age": [1]}', "'age' must be text, a number, true, false or null"),
    (["-"], '{"age": NaN}', "NaN is not a value"),
    (["-"], "age,sex\n", "patient"),
]


@pytest.mark.parametrize(("arguments", "given", "sentence"), BAD_PATIENTS)
def test_a_patient_who_cannot_be_read_is_one_sentence(
    model: Path, arguments: list[str], given: str | None, sentence: str
) -> None:
    result = consult(model, *arguments, given=given)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1


def break_model(model: dict[str, Any], kind: str) -> str:
    if kind == "unknown field":
        return json.dumps({**model, "weights": []})
    if kind == "unknown field inside":
        return json.dumps({**model, "body": {**model["body"], "pruned": True}})
    if kind == "other format":
        return json.dumps({**model, "format": "concilium/model@9"})
    if kind == "other method":
        return json.dumps({**model, "method": "forest"})
    return json.dumps(model)[:-20] if kind == "cut short" else "{}"


@pytest.mark.parametrize(
    "kind", ["unknown field", "unknown field inside", "other format", "other method", "cut short", "empty"]
)
def test_a_file_that_is_no_model_is_one_sentence_with_its_name(
    model: Path, tmp_path: Path, kind: str
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(break_model(json.loads(model.read_text()), kind))
    result = consult(broken, "age=71")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{broken}: ")
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    result = consult(tmp_path / "none.json", "age=71")
    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path / 'none.json'}: cannot be read (No such file or directory)\n",
    )


@given(st.integers(-(2**53) + 1, 2**53 - 1))
def test_whole_numbers_are_numbers(number: int) -> None:
    assert _read_value(str(number)) == number


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**6), max_value=10**6))
def test_decimals_are_numbers(number: Any) -> None:
    assert _read_value(str(number)) == float(number)


@given(st.text())
def test_any_text_is_a_value(text: str) -> None:
    value = _read_value(text)
    assert value is None or isinstance(value, str | int | float | bool)
    if isinstance(value, str):
        assert value == text or value == canonical(text)


@pytest.mark.parametrize("text", ["007", "+5", "0x10", "١", "inf", "1_000", "9007199254740993", "tRUE"])
def test_what_people_do_not_write_as_a_number_stays_text(text: str) -> None:
    assert _read_value(text) == text
