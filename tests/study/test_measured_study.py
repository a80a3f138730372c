"""`[evaluate]` through the gate: what a private study shows was paid for, and a simulation says that it is one."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import StudyError
from concilium.ledger.ledger import Ledger
from concilium.privacy.accounting import rho_for_epsilon
from small_study import HOSPITALS, SEVERAL, SPLIT, lay_out

PRIVATE = '[privacy]\nrelease = "private"\nepsilon = 1\n[values]\nsex = ["f", "m"]\ndeath = [0, 1]\n'
MASKED = '[privacy]\nrelease = "masked"\n'
GATE = "[evaluate]\nholdout = 0.3\nsimulation = false\n"
PAID = "[evaluate]\nholdout = 0.3\nepsilon = 2\n"


def test_exact_shows_sites_masked_their_sum_and_both_are_of_the_same_patients(tmp_path: Path) -> None:
    exact = cc.Study.read(lay_out(tmp_path, SEVERAL + GATE)).run(warn=lambda text: None)
    masked = cc.Study.read(lay_out(tmp_path, SEVERAL + MASKED + GATE)).run(warn=lambda text: None)
    assert set(exact.metrics["sites"]) == set(HOSPITALS)
    assert masked.metrics["sites"] == {}
    for key in ("patients", "auc", "sensitivity", "ppv", "intervals"):
        assert masked.metrics[key] == exact.metrics[key]
    assert exact.metrics["patients"] == sum(row["patients"] for row in exact.metrics["sites"].values())
    assert "held back from learning by the site itself" in exact.metrics["evaluation"]
    assert exact.metrics["risks"]["brier"] == pytest.approx(masked.metrics["risks"]["brier"])


def test_a_private_study_pays_for_its_figures_and_shows_no_others(tmp_path: Path) -> None:
    study = cc.Study.read(lay_out(tmp_path, SEVERAL + PRIVATE + PAID))
    plan = study.plan()
    assert plan.rows[-1][0] == "model.risks"
    results = study.run(tmp_path / "out", warn=lambda text: None)
    for name in HOSPITALS:
        with Ledger.open_readonly(tmp_path / f"{name}.ledger") as book:
            learned = plan.total - plan.questions.questions[-1].cost  # type: ignore[operator]
            assert learned < book.spent() <= plan.total
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["sites"] == {}
    assert metrics["epsilon"] == pytest.approx(2.284, abs=0.01)
    assert "simulation" not in metrics
    assert "noise with a standard deviation of 3.4" in metrics["evaluation"]
    assert results.metrics["auc"] == metrics["auc"]


def test_a_simulation_of_a_private_study_says_so_in_the_first_line_of_its_page(tmp_path: Path) -> None:
    text = SPLIT + PRIVATE + "[evaluate]\nholdout = 0.3\nsimulation = true\n"
    results = cc.Study.read(lay_out(tmp_path, text)).run(warn=lambda text: None)
    page = results.report()
    body = page[page.index("<header>") :]
    assert body.index("A simulation: whoever ran this study holds all records.") < body.index("<h1>")
    assert results.metrics["auc"] is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PRIVATE + "[evaluate]\nholdout = 0.3\n", "measures with noise: give epsilon = 0.5"),
        (PRIVATE + '[evaluate]\nleave_out = "site"\n', "measures with noise: give epsilon"),
        ('[evaluate]\nleave_out = "band:2"\nsimulation = false\n', "leaves single hospitals out"),
        (MASKED + '[evaluate]\nleave_out = "site"\nsimulation = false\n', "that hospital's whole answer"),
        (PRIVATE + "[evaluate]\nholdout = 0.305\nepsilon = 1\n", "0.01 to 0.9, in hundredths"),
        ("[evaluate]\nholdout = 0.3\nepsilon = 1\n", "epsilon is for measuring through the gate"),
        (GATE + "epsilon = 1\n", 'epsilon is for release = "private"'),
        ('[evaluate]\nsince = "2024-01-01"\n', "since goes with date"),
        ('[evaluate]\nsince = "soon"\ndate = "day"\n', 'since must be a day such as "2025-01-31"'),
        (
            '[evaluate]\nholdout = 0.3\nsimulation = true\nsubgroups = ["age"]\n',
            "subgroups is for measuring through the gate",
        ),
        (GATE + 'subgroups = ["sex"]\n', "nothing says into which groups 'sex' falls"),
        (PRIVATE.replace("[0, 1]", "[0, 1, 2]") + PAID, "say which by \\[study\\] positive"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is_read(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(StudyError, match=words):
        cc.Study.read(lay_out(tmp_path, SPLIT + text))


def test_a_model_is_validated_at_the_hospitals_of_a_study(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    model = str(tmp_path / "out" / "model.json")
    shown = CliRunner().invoke(app, ["evaluate", model, str(study), "--out", str(tmp_path / "ev")])
    assert shown.exit_code == 0, shown.output
    assert "AUC over 3 hospitals: mean" in shown.stdout
    assert {path.name for path in (tmp_path / "ev").iterdir()} == {
        "evaluation.json",
        "card.json",
        "report.html",
    }
    metrics = json.loads(CliRunner().invoke(app, ["evaluate", model, str(study), "--json"]).stdout)
    assert set(metrics["sites"]) == set(HOSPITALS)
    assert metrics["overall"]["patients"] == 180
    assert any("had a part in the model" in note for note in metrics["notes"])
    study.write_text(study.read_text().replace('target = "death"', 'target = "smoker"'))
    refused = CliRunner().invoke(app, ["evaluate", model, str(study)])
    assert (refused.exit_code, "the model predicts 'death'" in refused.stderr) == (2, True)
    poor = study.read_text().replace('"smoker"', '"death"') + PRIVATE.replace("epsilon = 1", "epsilon = 30")
    study.write_text(poor)
    refused = CliRunner().invoke(app, ["evaluate", model, str(study)])
    assert (
        refused.exit_code,
        "has no room for that (rho 1 is left): take a smaller epsilon (nothing was asked)" in refused.stderr,
    ) == (2, True)


def test_a_hospital_that_codes_the_outcome_otherwise_is_named_before_anybody_answers(tmp_path: Path) -> None:
    """Everyone there would have counted as without the outcome."""
    study = lay_out(tmp_path, SEVERAL + '[values]\nsex = ["f", "m"]\ndeath = [0, 1]\n' + GATE)
    CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    model = str(tmp_path / "out" / "model.json")
    for file in tmp_path.glob("*.ledger*"):
        file.unlink()
    head, *rows = (tmp_path / "coast.csv").read_text().splitlines()
    (tmp_path / "coast.csv").write_text(
        "\n".join([head, *(f"{row[:-1]}{'dead' if row.endswith('1') else 'alive'}" for row in rows)])
    )
    assert head.endswith("death")
    plain = tmp_path / "plain.toml"
    plain.write_text(SEVERAL)
    for command, words in (
        (["run", str(study), "--out", str(tmp_path / "again")], "which the study states"),
        (["evaluate", model, str(plain)], "which the model tells apart"),
    ):
        refused = CliRunner().invoke(app, command)
        assert refused.exit_code == 2
        assert f"site 'coast': no patient has death = 0 or 1, {words}" in " ".join(refused.stderr.split())
        assert not list(tmp_path.glob("*.ledger"))


def test_a_run_names_the_hospital_whose_held_out_patients_lack_the_outcome(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL + GATE)
    head, *rows = (tmp_path / "coast.csv").read_text().splitlines()
    (tmp_path / "coast.csv").write_text("\n".join([head, *(row for row in rows if row.endswith("0"))]))
    shown = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert shown.exit_code == 0, shown.output
    assert "note: coast: no patient of" in shown.stderr
    assert "coast: no patient of" in (tmp_path / "out" / "report.html").read_text()


def test_the_page_of_a_study_says_what_all_of_it_costs_and_of_a_validation_what_it_is(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL + PRIVATE + PAID)
    results = cc.Study.read(study).run(tmp_path / "out", warn=lambda text: None)
    assert f"all of it costs every patient epsilon = {results.metrics['epsilon']}" in results.report()
    assert results.metrics["epsilon"] > 2
    plain = tmp_path / "plain.toml"
    plain.write_text(SEVERAL)
    CliRunner().invoke(
        app, ["evaluate", str(tmp_path / "out" / "model.json"), str(plain), "--out", str(tmp_path / "ev")]
    )
    page = " ".join((tmp_path / "ev" / "report.html").read_text().split())
    assert "measured on 180 patients of 3 sites" in page
    assert "Learned on" not in page


def test_the_study_of_a_model_names_the_column_of_dates_for_later(tmp_path: Path) -> None:
    """By which `evaluate --since` finds later patients; a share of all is held out meanwhile."""
    study = lay_out(tmp_path, SEVERAL + GATE + 'date = "admitted"\n')
    for name in HOSPITALS:
        head, *rows = (tmp_path / f"{name}.csv").read_text().splitlines()
        days = [f"{row},202{3 + at % 3}-01-0{1 + at % 7}" for at, row in enumerate(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{head},admitted", *days]))
    ran = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    model = str(tmp_path / "out" / "model.json")
    shown = CliRunner().invoke(app, ["evaluate", model, str(study), "--since", "2025-01-01", "--json"])
    assert shown.exit_code == 0, shown.output
    metrics = json.loads(shown.stdout)
    assert 50 < metrics["overall"]["patients"] < 70
    assert metrics["drift"]["figures"]


def test_the_plan_of_a_study_across_machines_makes_up_no_budgets(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    elsewhere = (
        '[study]\nname = "far"\nmethod = "tree"\ntarget = "death"\n[bins]\nage = [40, 60]\n'
        + PRIVATE
        + '[evaluate]\nleave_out = "site"\nepsilon = 1\n'
        + "".join(f'[[site]]\nname = "{name}"\n' for name in ("a", "b", "c", "d"))
    )
    path = tmp_path / "far.toml"
    path.write_text(elsewhere)
    planned = CliRunner().invoke(app, ["flare", "submit", str(path), "--kit", str(tmp_path), "--plan"])
    assert planned.exit_code == 0, planned.output
    assert "the evaluation fits 3 more models, each charged" in planned.stdout
    assert "before the first charge" in planned.stdout
    assert "default budget" not in planned.stdout
    assert cc.Study.read(path, elsewhere=True).plan().sites == ()


def test_subgroups_are_asked_for_planned_charged_and_shown(tmp_path: Path) -> None:
    asked = PAID + 'subgroups = ["sex", "age=50"]\n'
    study = cc.Study.read(lay_out(tmp_path, SEVERAL + PRIVATE + asked))
    plan = study.plan()
    assert plan.rows[-1][2].startswith("predicted risk x outcome, also by sex, age, of")
    assert plan.total == cc.Study.read(lay_out(tmp_path, SEVERAL + PRIVATE + PAID)).plan().total
    study = cc.Study.read(lay_out(tmp_path, SEVERAL + PRIVATE + asked))
    results = study.run(tmp_path / "out", warn=lambda text: None)
    assert "subgroups" in results.metrics
    assert b'"subgroups":[{"name":"sex","values":["f","m"]},{"name":"age","cutoffs":[50.0]}]' in results.terms


def test_subgroups_of_an_exact_study_add_up_and_stand_in_the_report(tmp_path: Path) -> None:
    text = SEVERAL + '[values]\nsex = ["f", "m"]\n[evaluate]\nholdout = 0.4\nsubgroups = ["sex", "age"]\n'
    study = lay_out(tmp_path, text)
    shown = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert shown.exit_code == 0, shown.output
    assert "by sex" in shown.stdout
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert set(metrics["subgroups"]["age"]) == {"below 40", "40 to 60", "60 or more"}
    for groups in metrics["subgroups"].values():
        assert sum(row["patients"] for row in groups.values()) == metrics["patients"]
        assert sum(row["events"] for row in groups.values()) == metrics["events"]
    assert "<h3>In subgroups</h3>" in (tmp_path / "out" / "report.html").read_text()
    model = str(tmp_path / "out" / "model.json")
    command = ["evaluate", model, str(study), "--by", "age=30,70", "--json"]
    later = json.loads(CliRunner().invoke(app, command).stdout)
    assert set(later["subgroups"]["age"]) == {"below 30", "30 to 70", "70 or more"}
    assert later["subgroups"]["age"]["30 to 70"]["intervals"]["auc"] is not None


LEFT_OUT = '[evaluate]\nleave_out = "site"\n'


def test_hospitals_left_out_are_measured_by_the_models_of_the_others(tmp_path: Path) -> None:
    """As a simulation with all records at hand finds, but for bins of risk."""
    by_gate = cc.Study.read(lay_out(tmp_path, SEVERAL + LEFT_OUT + "simulation = false\n"))
    gate = by_gate.run(tmp_path / "gate", warn=lambda text: None).metrics
    seen = cc.Study.read(lay_out(tmp_path, SPLIT + LEFT_OUT)).run(warn=lambda text: None).metrics
    assert gate["patients"] == seen["patients"] == 180
    for key in ("accuracy", "sensitivity", "specificity", "ppv", "events"):
        assert gate[key] == pytest.approx(seen[key])
        assert gate["sites"]["north"][key] == pytest.approx(seen["sites"]["north"][key])
    assert gate["auc"] == pytest.approx(seen["auc"], abs=0.01)
    assert gate["risks"]["brier"] == pytest.approx(seen["risks"]["brier"], abs=0.002)
    assert "every site left out in turn" in gate["evaluation"]


def test_private_folds_are_charged_each_and_measured_once_as_the_plan_says(tmp_path: Path) -> None:
    text = SEVERAL + PRIVATE.replace("epsilon = 1", "epsilon = 2") + LEFT_OUT + "epsilon = 2\n"
    study = lay_out(tmp_path, text)
    with pytest.raises(StudyError, match="needs 4 hospitals or more"):
        cc.Study.read(study)
    rows = (tmp_path / "south.csv").read_text().splitlines()
    (tmp_path / "south.csv").write_text("\n".join([rows[0], *rows[1::2]]) + "\n")
    (tmp_path / "hill.csv").write_text("\n".join([rows[0], *rows[2::2]]) + "\n")
    site = (
        '[[site]]\nname = "hill"\nrecords = "hill.csv"\nledger = "hill.ledger"\none_row_per_patient = true\n'
    )
    study.write_text(text + site)
    plan = cc.Study.read(study).plan()
    learning, measuring = plan.questions.total - rho_for_epsilon(2, "1e-6"), rho_for_epsilon(2, "1e-6")
    assert (plan.models, plan.total) == (4, 4 * learning + measuring)
    metrics = cc.Study.read(study).run(tmp_path / "out", warn=lambda text: None).metrics
    for name in (*HOSPITALS, "hill"):
        with Ledger.open_readonly(tmp_path / f"{name}.ledger") as book:
            kinds = [entry.study for entry in book.entries() if entry.cost]
            assert len(set(kinds)) == 1 + 3 + 1  # all, without each other hospital, and the measuring
            assert measuring < book.spent() <= plan.total
    assert metrics["sites"] == {}
    assert metrics["epsilon"] > 4


def test_an_evaluation_is_planned_as_it_is_charged_and_refused(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    model = str(tmp_path / "out" / "model.json")
    study.write_text(SEVERAL + PRIVATE)
    planned = CliRunner().invoke(app, ["evaluate", model, str(study), "--plan"])
    assert planned.exit_code == 0, planned.output
    assert "small: what the evaluation asks of every site" in planned.stdout
    said = CliRunner().invoke(app, ["evaluate", model, str(study), "--plan", "--json"])
    done = CliRunner().invoke(app, ["evaluate", model, str(study)])
    assert done.exit_code == 0, done.output
    with Ledger.open_readonly(tmp_path / "north.ledger") as book:
        assert 0 < book.spent() <= Fraction(json.loads(said.stdout)["total"])
    study.write_text(study.read_text().replace("epsilon = 1", "epsilon = 30"))
    for options in ([], ["--plan"]):
        refused = CliRunner().invoke(app, ["evaluate", model, str(study), *options])
        assert refused.exit_code == 2, refused.output


def test_a_private_run_says_what_learning_and_measuring_cost_together(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL + PRIVATE + PAID.replace("epsilon = 2", "epsilon = 4"))
    shown = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert (
        f"learning and measuring together cost every patient epsilon = {metrics['epsilon']:g}" in shown.stdout
    )
    assert metrics["epsilon"] > 4
