"""A decision from the study file to the report, the terminal and a consultation."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import StudyError
from small_study import SPLIT, lay_out, make_patients

DECIDED = SPLIT.replace('target = "death"', 'target = "death"\npositive = 1\nthreshold = "sensitivity 0.9"')
run = CliRunner().invoke


def test_a_decision_is_in_every_file_of_a_run(tmp_path):
    study = lay_out(tmp_path, DECIDED + "[evaluate]\nholdout = 0.3\n")
    done = run(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    model = json.loads((tmp_path / "out" / "model.json").read_text())
    decided = model["body"]["decided"]
    assert decided["rule"] == "sensitivity 0.9"
    assert decided["sensitivity"] >= 0.9
    assert metrics["threshold"] == decided["threshold"]
    said = f"predicts 1 at a risk of {100 * decided['threshold']:.3g} % or more, for a sensitivity of 0.9"
    assert metrics["decision"].startswith(said)
    assert said in done.output.replace("\n", " ")
    assert model["card"]["decision"] == metrics["decision"]
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count(said) == 3  # what was asked, the figures, the tree as text
    loaded = cc.load(tmp_path / "out" / "model.json")
    patients = cc.Records.from_rows(make_patients())
    below = run(app, ["consult", str(tmp_path / "out" / "model.json"), "age=63", "smoker=yes", "--json"])
    assert json.loads(below.output)["called_from"] == decided["threshold"]
    shown = run(app, ["consult", str(tmp_path / "out" / "model.json"), "age=63", "smoker=yes"])
    assert said.capitalize() in shown.output
    chances = loaded.predict_proba(patients)[:, 1]
    assert loaded.predict(patients).tolist() == (chances >= decided["threshold"]).astype(int).tolist()


@pytest.mark.parametrize(
    ("method", "section", "unit"),
    [
        ("naive-bayes", "", " % or more"),
        ("voting-trees", "[voting-trees]\nimbalance = 1.0\n", " votes or more"),
    ],
)
def test_models_that_count_for_it_decide_by_a_sensitivity(tmp_path, method, section, unit):
    text = DECIDED.replace('"tree"', f'"{method}"').replace("[tree]\nmax_depth = 3\n", section)
    done = run(app, ["run", str(lay_out(tmp_path, text)), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    model = json.loads((tmp_path / "out" / "model.json").read_text())
    said = model["card"]["decision"]
    assert unit in said
    assert model["body"]["decided"]["sensitivity"] >= 0.9
    assert said in (tmp_path / "out" / "report.html").read_text()
    shown = run(app, ["consult", str(tmp_path / "out" / "model.json"), "age=63", "smoker=yes"])
    assert f"{said[0].upper()}{said[1:]}." in shown.output.replace("\n", " ")


def test_without_a_decision_the_likeliest_class_is_called(tmp_path):
    results = cc.Study.read(lay_out(tmp_path)).run()
    assert results.metrics["decision"] == "predicts the likeliest class"
    assert results.metrics["threshold"] is None


def test_folds_have_thresholds_of_their_own(tmp_path):
    text = (
        DECIDED.replace("sensitivity 0.9", "prevalence") + '[evaluate]\nleave_out = "site"\ncompare = true\n'
    )
    metrics = cc.Study.read(lay_out(tmp_path, text)).run().metrics
    assert metrics["decision"].endswith("each fold has its own")
    assert metrics["sensitivity"] is not None
    assert metrics["comparison"]["ways"]["local"]["patients"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (DECIDED.replace("sensitivity 0.9", "half"), "the 'threshold' of a DecisionTree must be 'majority'"),
        (
            DECIDED.replace('"tree"', '"voting-trees"').replace("sensitivity 0.9", "prevalence")
            .replace("[tree]\nmax_depth = 3\n", '[voting-trees]\nvote = "majority"\n'),
            "VotingTrees cannot decide by 'prevalence': vote = 'majority' says how experts vote already",
        ),
        (
            DECIDED.replace('"tree"', '"experts"').replace("[tree]\nmax_depth = 3\n", "")
            .replace('[sites]\nrecords = "all.csv"\nby = "hospital"\n', '[sites]\nseries = "s.csv"\ngateways = 3\n'),
            "takes no 'threshold': the student calls an alarm as often as",
        ),
    ],
)  # fmt: skip
def test_what_a_study_cannot_decide_is_one_sentence(tmp_path, text, problem):
    with pytest.raises(StudyError, match=problem):
        cc.Study.read(lay_out(tmp_path, text)).run()
