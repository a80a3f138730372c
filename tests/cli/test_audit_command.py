"""`concilium audit`: files or a study's own patients in; tables, JSON and a page out; a sentence for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_run_discovery import STUDY as COURSES
from typer.testing import CliRunner

from concilium.cli.demo_patients import make_ward
from concilium.cli.main import app
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.study import Study
from small_study import SPLIT, lay_out, make_patients, write_csv

HELD_BACK = SPLIT.replace("max_depth = 3", "min_leaf = 1") + "[evaluate]\nholdout = 0.5\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    Study.read(lay_out(folder, HELD_BACK)).run(folder / "results")
    patients = make_patients(120, seed=11)
    write_csv(folder / "members.csv", make_patients())
    write_csv(folder / "others.csv", patients)
    return folder


def audit(folder: Path, *arguments: object, model: str = "results/model.json") -> Any:
    return CliRunner().invoke(app, ["audit", str(folder / model), *map(str, arguments)])


def test_a_study_that_holds_back_is_enough(folder: Path) -> None:
    page = folder / "audit.html"
    done = audit(
        folder, "--study", folder / "study.toml", "--attribute", "smoker", "--shadows", 4, "--out", page
    )
    assert done.exit_code == 0, done.output
    assert "90 members, 90 others" in done.stdout
    for text in ("loss threshold", "likelihood ratio, 4 shadows", "by chance", "smoker, guessed by"):
        assert text in done.stdout
    assert "nothing bounds what a better attack would find" in done.stdout
    assert f"The page is {page}." in done.stdout
    assert "Audit of model.json" in page.read_text()
    assert "<script" not in page.read_text()


def test_members_and_others_may_be_files(folder: Path) -> None:
    files = ["--members", folder / "members.csv", "--others", folder / "others.csv"]
    done = audit(folder, *files, "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["about"] == [180, 120]
    assert figures["bound"] is None
    assert set(figures["membership"]) == {"threshold"}
    assert figures["membership"]["threshold"]["found"]["0.001"] is None  # 120 others are too few for that
    assert figures["meaning"]
    # A study says how columns are read, and by which column hospitals are told apart.
    assert audit(folder, *files, "--study", folder / "study.toml", "--shadows", 4).exit_code == 0


def test_the_same_audit_twice_is_the_same(folder: Path) -> None:
    order = ["--study", folder / "study.toml", "--attribute", "sex", "--shadows", 4, "--json"]
    assert audit(folder, *order).stdout == audit(folder, *order).stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "say whom the model learned from"),
        (["--members", "members.csv"], "both --members and --others"),
        (["--members", "members.csv", "--others", "others.csv", "--shadows", "8"], "with --study"),
        (["--members", "members.csv", "--others", "gone.csv"], "gone.csv"),
        (["--study", "study.toml", "--attribute", "smokr"], "'smoker'"),
        (["--study", "study.toml", "--shadows", "2"], "at least 4 shadow models"),
        (["--study", "everybody.toml"], "learned from everybody"),
        (["--study", "other.toml"], "its target is 'sex', and that of the model 'death'"),
        (["--study", "study.toml", "--out", "."], "is a folder"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(folder: Path, arguments: list[str], problem: str) -> None:
    (folder / "everybody.toml").write_text(SPLIT)
    (folder / "other.toml").write_text(SPLIT.replace('"death"', '"sex"'))
    names = {"members.csv", "others.csv", "gone.csv", "study.toml", "everybody.toml", "other.toml", "."}
    done = audit(folder, *(folder / word if word in names else word for word in arguments))
    assert done.exit_code == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.filterwarnings("ignore:the model is no better than chance")
def test_models_of_courses_take_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = COURSES
    for seed, name in enumerate(("north", "south", "west")):
        make_ward(120, seed).to_csv(tmp_path / f"{name}.csv", index=False)
        text += f'[[site]]\nname = "{name}"\nseries = "{name}.csv"\n'
    (tmp_path / "study.toml").write_text(text)
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    with zero_noise():  # of fewer patients, or by bad luck, no rule predicts anything
        Study.read(tmp_path / "study.toml").run(tmp_path / "results")
    done = audit(tmp_path, "--study", tmp_path / "study.toml", "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert sum(figures["about"]) <= 360
    assert figures["bound"]["epsilon"] <= 6
    make_ward(60, 8).to_csv(tmp_path / "others.csv", index=False)
    files = ["--members", tmp_path / "north.csv", "--others", tmp_path / "others.csv"]
    done = audit(tmp_path, *files, "--study", tmp_path / "study.toml", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["about"][1] <= 60
