"""A discovery from its study file to a patient: series or rules of hospitals, results, a consultation, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.demo_patients import make_ward
from concilium.cli.main import app
from concilium.errors import StudyError

STUDY = """
[study]
name = "before sepsis"
method = "discovery"
outcome = "sepsis"
[privacy]
epsilon = 6.0
[series]
time = "hour"
[bins]
HR = [60, 80, 90, 100, 120]
Temp = [36, 37.5, 38.5]
[discovery]
window = "4h"
prevalence = 0.2
limits = 1
most_rules = 5
[evaluate]
holdout = 0.3
simulation = true
"""
RULES = """
[study]
name = "in common"
method = "discovery"
outcome = "sepsis"
query = "ward = 'a'"
[privacy]
epsilon = 7.0
[schema]
ward = "code"
[discovery]
prevalence = 0.3
limits = 1
most_rules = 5
[bins]
HR = [60, 90, 120]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ward")
    text = STUDY
    for seed, name in enumerate(("north", "south", "west")):
        make_ward(240, seed).to_csv(folder / f"{name}.csv", index=False)
        text += f'[[site]]\nname = "{name}"\nseries = "{name}.csv"\n'
    (folder / "study.toml").write_text(text)
    ran = CliRunner().invoke(app, ["run", str(folder / "study.toml"), "--out", str(folder / "results")])
    assert ran.exit_code == 0, ran.output
    return folder / "results"


def test_a_study_of_series_leaves_whole_results(results):
    metrics = json.loads((results / "metrics.json").read_text())
    assert metrics["discovery"]["truth"] >= 1
    assert metrics["discovery"]["coverage"] == pytest.approx(
        metrics["discovery"]["precision"] * metrics["discovery"]["rules"] / metrics["discovery"]["truth"]
    )
    assert metrics["patients"] == 216
    assert metrics["epsilon"] == 6
    assert 0.5 < metrics["horizons"]["4h"]["value"] <= 1
    assert "alarms in a day of a patient" in metrics["evaluation"]
    model = cc.load(results / "model.json")
    assert isinstance(model, cc.RuleDiscovery)
    assert all(
        rule.text in (results / "report.html").read_text().replace("&gt;", ">").replace("&lt;", "<")
        for rule in model.rules_
    )


def test_a_patient_is_consulted_as_a_course(results, tmp_path):
    runner = CliRunner()
    said = runner.invoke(
        app, ["consult", str(results / "model.json"), "HR=88,95,102,110", "Temp=37,38,39,39"]
    )
    assert said.exit_code == 0, said.output
    assert said.output.startswith("sepsis = ")
    svg = tmp_path / "patient.svg"
    drawn = runner.invoke(
        app, ["consult", str(results / "model.json"), "HR=88,95,102,110", "--picture", str(svg)]
    )
    assert drawn.exit_code == 0, drawn.output
    assert svg.read_text().startswith("<svg")
    patient = tmp_path / "patient.json"
    patient.write_text(json.dumps({"HR": [88, 95, None, 110], "Temp": 38.9}))
    told = runner.invoke(app, ["consult", str(results / "model.json"), str(patient), "--json"])
    assert json.loads(told.output)["target"] == "sepsis"
    odd = runner.invoke(app, ["consult", str(results / "model.json"), "HR=fast"])
    assert odd.exit_code == 2


def write_rules(folder: Path, count: int = 60) -> None:
    for name in ("north", "south", "west"):
        rows = [f"p{place},G[0;2] HR >= 90" for place in range(count)]
        text = "patient,rule\n" + "\n".join(rows).replace(";", ",").replace(
            "G[0,2] HR >= 90", '"G[0,2] HR >= 90"'
        )
        (folder / f"{name}-rules.csv").write_text(text + "\n")
        wards = "patient,ward\n" + "\n".join(f"p{place},{'ab'[place % 2]}" for place in range(count))
        (folder / f"{name}.csv").write_text(wards + "\n")


def test_a_query_selects_patients_by_the_table_beside_their_rules(tmp_path):
    write_rules(tmp_path)
    sites = "".join(
        f'[[site]]\nname = "{name}"\nrules = "{name}-rules.csv"\nrecords = "{name}.csv"\n'
        for name in ("north", "south", "west")
    )
    (tmp_path / "study.toml").write_text(RULES + sites)
    model = cc.Study.read(tmp_path / "study.toml").run().model
    assert [rule.structure for rule in model.rules_] == ["G[?] HR >= ?"]
    assert model.body.patients == pytest.approx(90, abs=25)  # every other of 180


def test_one_file_is_dealt_to_gateways(tmp_path):
    write_rules(tmp_path, 150)
    text = RULES.replace("query = \"ward = 'a'\"\n", "").replace('[schema]\nward = "code"\n', "")
    (tmp_path / "study.toml").write_text(text + '[sites]\nrules = "north-rules.csv"\ngateways = 3\n')
    results = cc.Study.read(tmp_path / "study.toml").run()
    assert [site.name for site in results.card.sites] == ["gateway 1", "gateway 2", "gateway 3"]
    assert results.model.rules_[0].text == "G[0,2] HR >= 90"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("outcome =", "target ="), "[study] method = 'discovery' takes 'outcome', not 'target'"),
        (('outcome = "sepsis"\n', ""), "[study] needs the key 'outcome'"),
        (
            ('rules = "rules', 'series = "rules'),
            "[sites] needs the key 'rules', and it alone: [discovery] gives no window",
        ),
        (
            ("gateways = 3", 'by = "ward"'),
            "[sites] by is for tables: of series, [series] by names the column of the hospital",
        ),
        (("[discovery]", '[discovery]\nwindow = "6h"'), "[sites] needs the key 'series', and it alone"),
        (
            ("epsilon = 7.0", 'release = "private"'),
            "[privacy] release follows from [discovery] trust: leave it out",
        ),
        (
            ("[bins]", '[evaluate]\nleave_out = "site"\n[bins]'),
            "[evaluate] of method = 'discovery' holds patients",
        ),
        (
            ("prevalence = 0.3", "prevalence = 2"),
            "[discovery] prevalence must be a number between 0 and 1; got 2",
        ),
        (("prevalence = 0.3", "prevalence = 0.01\nclients = 100"), "this study cannot work"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, change, sentence):
    text = RULES.replace("query = \"ward = 'a'\"\n", "") + '[sites]\nrules = "rules.csv"\ngateways = 3\n'
    (tmp_path / "study.toml").write_text(text.replace(*change))
    with pytest.raises(StudyError) as error:
        cc.Study.read(tmp_path / "study.toml").plan()
    assert sentence in str(error.value)


def test_other_methods_take_no_courses(tmp_path):
    text = '[study]\nname = "x"\nmethod = "tree"\ntarget = "y"\n'
    text += '[[site]]\nname = "a"\nrecords = "a.csv"\nrules = "b.csv"\n'
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(StudyError, match="rules are for methods that learn from courses"):
        cc.Study.read(tmp_path / "study.toml")
