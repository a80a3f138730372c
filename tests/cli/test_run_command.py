"""`concilium run`: all files or none, figures that can be checked by hand, and runs that go on after an end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.evaluation.leave_out import hold_out
from concilium.protocol.site import Site
from concilium.records.columns import Coded
from concilium.study import running
from concilium.study.sources import read_tables
from small_study import HOSPITALS, SEVERAL, SPLIT, lay_out, make_patients, write_csv

FIGURES = ("accuracy", "balanced_accuracy", "auc", "f1", "mcc", "sensitivity", "specificity")
LEAVE_OUT = '[evaluate]\nleave_out = "site"'
RESULTS = ["card.json", "metrics.json", "model.json", "report.html", "terms.json", "tree.svg"]


def run(study: Path, out: Path, *more: str) -> Any:
    return CliRunner().invoke(app, ["run", str(study), "--out", str(out), *more])


def finished(study: Path, out: Path, *more: str) -> dict[str, Any]:
    result = run(study, out, *more)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == RESULTS
    assert not list(out.parent.glob(".*.partial"))
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    return metrics


def grow(tables: dict[str, cc.Records]) -> cc.DecisionTree:
    house = cc.House([cc.Site(name, records) for name, records in tables.items()])
    return cc.DecisionTree(target="death", bins={"age": [40, 60]}, max_depth=3).fit(house)


def share_right(model: cc.DecisionTree, records: cc.Records) -> float:
    right = [
        guess == truth for guess, truth in zip(model.predict(records), records.values("death"), strict=True)
    ]
    return sum(right) / len(right)


def test_without_evaluation_there_is_a_model_and_no_figure(tmp_path: Path) -> None:
    metrics = finished(lay_out(tmp_path), tmp_path / "out")
    model = cc.load(tmp_path / "out" / "model.json")
    expected = grow(cc.Records.read(tmp_path / "all.csv").split("hospital"))
    assert model.body == expected.body
    assert [metrics[name] for name in FIGURES] == [None] * 7
    assert metrics["evaluation"] == "not evaluated: the study file has no [evaluate]"
    assert metrics["rounds"] == model.card.rounds > 1
    assert metrics["bytes"] == model.card.bytes > 100
    assert metrics["seconds"] >= 0
    assert metrics["epsilon"] is None
    assert json.loads((tmp_path / "out" / "card.json").read_text()) == model.card.to_dict()


def test_every_site_left_out_is_predicted_by_the_others(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SPLIT + '[evaluate]\nleave_out = "site"')
    metrics = finished(study, tmp_path / "out")
    tables = cc.Records.read(tmp_path / "all.csv").split("hospital")
    right = 0.0
    for name, own in tables.items():
        others = grow({other: table for other, table in tables.items() if other != name})
        row = metrics["sites"][name]
        assert row["accuracy"] == pytest.approx(share_right(others, own))
        assert (row["patients"], row["rounds"]) == (len(own), others.card.rounds)
        # What folds share is exchanged once, and each has an equal share of it.
        assert 0 < row["bytes"] == metrics["folds_took"]["bytes"] // 3 < others.card.bytes
        right += row["accuracy"] * len(own)
    assert metrics["accuracy"] == pytest.approx(right / 180)
    assert metrics["overall"]["accuracy"] == metrics["accuracy"]
    assert set(metrics["overall"]) >= {*FIGURES, "rounds", "bytes", "seconds", "epsilon"}
    assert [fold["left_out"] for fold in metrics["folds"]] == [[name] for name in tables]
    assert cc.load(tmp_path / "out" / "model.json").body == grow(tables).body


def test_bands_leave_each_site_out_once(tmp_path: Path) -> None:
    metrics = finished(lay_out(tmp_path, SPLIT + '[evaluate]\nleave_out = "band:2"'), tmp_path / "out")
    assert sorted(name for fold in metrics["folds"] for name in fold["left_out"]) == sorted(HOSPITALS)
    assert [len(fold["left_out"]) for fold in metrics["folds"]] == [2, 1]
    assert metrics["patients"] == 180


def test_a_holdout_measures_the_model_that_is_written(tmp_path: Path) -> None:
    metrics = finished(lay_out(tmp_path, SPLIT + "[evaluate]\nholdout = 0.3"), tmp_path / "out")
    tables = cc.Records.read(tmp_path / "all.csv").split("hospital")
    held = {name: hold_out(len(table), 0.3, name) for name, table in tables.items()}
    model = grow({name: table.take(~held[name]) for name, table in tables.items()})
    assert cc.load(tmp_path / "out" / "model.json").body == model.body
    for name, table in tables.items():
        assert metrics["sites"][name]["accuracy"] == pytest.approx(share_right(model, table.take(held[name])))
    assert metrics["patients"] == sum(mask.sum() for mask in held.values())


def test_a_test_file_is_measured_by_hospital_where_it_says_which(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SPLIT + '[evaluate]\nfile = "new.csv"')
    rows = make_patients(60, seed=8)
    write_csv(tmp_path / "new.csv", rows)
    metrics = finished(study, tmp_path / "out")
    assert sorted(metrics["sites"]) == sorted(HOSPITALS)
    model = cc.load(tmp_path / "out" / "model.json")
    assert metrics["accuracy"] == pytest.approx(share_right(model, cc.Records.read(tmp_path / "new.csv")))
    write_csv(tmp_path / "new.csv", [{key: row[key] for key in row if key != "hospital"} for row in rows])
    assert list(finished(study, tmp_path / "again")["sites"]) == ["new.csv"]


def test_a_query_selects_patients_for_learning_and_for_measuring(tmp_path: Path) -> None:
    text = SPLIT.replace('target = "death"', 'target = "death"\nquery = "sex = \'f\'"')
    metrics = finished(lay_out(tmp_path, text + "[evaluate]\nholdout = 0.5"), tmp_path / "out")
    women = sum(row["sex"] == "f" for row in make_patients())
    learned = sum(site.patients for site in cc.load(tmp_path / "out" / "model.json").card.sites)
    assert learned + metrics["patients"] == women


def test_masked_sums_make_the_same_model(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SPLIT + '[privacy]\nrelease = "masked"\n[evaluate]\nholdout = 0.3')
    masked = finished(study, tmp_path / "masked")
    study.write_text(SPLIT + "[evaluate]\nholdout = 0.3")
    exact = finished(study, tmp_path / "exact")
    assert {name: masked[name] for name in FIGURES} == {name: exact[name] for name in FIGURES}
    bodies = [cc.load(tmp_path / release / "model.json").body for release in ("masked", "exact")]
    assert bodies[0] == bodies[1]


def test_a_site_that_lacks_a_column_is_measured_with_it_missing(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL + '[evaluate]\nleave_out = "site"')
    rows = [
        {k: row[k] for k in ("age", "sex", "death")} for row in make_patients() if row["hospital"] == "coast"
    ]
    write_csv(tmp_path / "coast.csv", rows)
    metrics = finished(study, tmp_path / "out")
    assert metrics["sites"]["coast"]["patients"] == len(rows)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert any("smoker" in warning for warning in card["warnings"])


def test_json_is_the_metrics_file(tmp_path: Path) -> None:
    result = run(lay_out(tmp_path, SPLIT + "[evaluate]\nholdout = 0.3"), tmp_path / "out", "--json")
    assert json.loads(result.stdout) == json.loads((tmp_path / "out" / "metrics.json").read_text())


def test_people_get_a_line_a_table_and_the_place(tmp_path: Path) -> None:
    result = run(lay_out(tmp_path, SPLIT + "[evaluate]\nholdout = 0.3"), tmp_path / "out")
    assert result.stdout.startswith("small: learned from 3 sites in ")
    for word in ("overall", "north", "accuracy", "AUC"):
        assert word in result.stdout
    assert (
        f"results in {tmp_path / 'out'}: model.json, metrics.json, card.json, terms.json, tree.svg, "
        "report.html" in result.stdout
    )


def test_an_existing_folder_keeps_its_other_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "model.json").write_text("old")
    assert run(lay_out(tmp_path), out).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == sorted([*RESULTS, "notes.txt"])
    assert (out / "notes.txt").read_text() == "mine"
    cc.load(out / "model.json")


def test_a_folder_in_folders_that_are_not_there_yet_is_made(tmp_path: Path) -> None:
    finished(lay_out(tmp_path), tmp_path / "a" / "b" / "out")
    assert not list(tmp_path.glob(".*"))


def complain(study: Path, out: Path, *more: str) -> str:
    """The one sentence of a run that fails and leaves everything as it was."""
    before = sorted(study.parent.rglob("*"))
    result = run(study, out, *more)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert [path for path in sorted(study.parent.rglob("*")) if ".ledger" not in path.name] == [
        path for path in before if ".ledger" not in path.name
    ]
    return str(result.stderr).strip()


BAD_STUDIES = [
    (
        'target = "death"',
        'target = "deaht"',
        "there is no column 'deaht', which is the target; did you mean 'death'?",
    ),
    (
        'target = "death"',
        'target = "death"\nquery = "agee > 3"',
        "[study] query names 'agee', a column no site has; did you mean 'age'?",
    ),
    ('target = "death"', 'target = "death"\nquery = "age > > 3"', "[study] query: "),
    ('target = "death"', 'target = "death"\nquery = "age > 300"', "too few patients match"),
    ('target = "death"', 'target = "death"\nattributes = ["sexx"]', "[study] attributes names 'sexx'"),
    (
        'target = "death"',
        'target = "death"\npositive = "dead"',
        "positive = 'dead' is not a value of 'death'",
    ),
    ("age = [40, 60]", "agge = [40, 60]", "[bins] names 'agge', a column no site has; did you mean 'age'?"),
    ("age = [40, 60]", "sex = [40, 60]", "'sex' has bins, and holds 'f' and the like"),
    ("[bins]", '[schema]\nward = "code"\n[bins]', "'ward'"),
    ('records = "all.csv"', 'records = "none.csv"', "none.csv"),
    ('by = "hospital"', 'by = "hospitl"', "there is no column 'hospitl'; did you mean 'hospital'?"),
    ('by = "hospital"', 'by = "smoker"', "column 'smoker' is missing for"),
    ('by = "hospital"', 'by = "hospital"\npolicy = "no.toml"', "no.toml: cannot be read"),
    ("[tree]", '[privacy]\nrelease = "private"\n[tree]', "needs an 'epsilon', such as 1.0"),
    (
        "[tree]",
        '[evaluate]\nleave_out = "band:9"\n[tree]',
        'leave_out = "band:9" needs at least 9 sites; there are 3',
    ),
    ("[tree]", '[evaluate]\nfile = "none.csv"\n[tree]', "none.csv"),
]


@pytest.mark.parametrize(("good", "bad", "sentence"), BAD_STUDIES)
def test_a_wrong_study_is_one_sentence_and_nothing_written(
    tmp_path: Path, good: str, bad: str, sentence: str
) -> None:
    assert good in SPLIT
    assert sentence in complain(lay_out(tmp_path, SPLIT.replace(good, bad)), tmp_path / "out")


BAD_TABLES = {
    "ragged": b"age,sex,smoker,death\n50,f,no,1\n60,m\n",
    "empty": b"",
    "only a header": b"age,sex,smoker,death\n",
    "not UTF-8": b"age,sex,smoker,death\n50,caf\xe9,no,1\n",
    "no target": b"age,sex,smoker\n50,f,no\n",
}


@pytest.mark.parametrize("kind", BAD_TABLES)
def test_a_wrong_table_is_named_with_its_file(tmp_path: Path, kind: str) -> None:
    study = lay_out(tmp_path, SEVERAL.replace("ledger", "#"))
    (tmp_path / "south.csv").write_bytes(BAD_TABLES[kind])
    assert "south" in complain(study, tmp_path / "out")


def test_two_sites_of_one_name(tmp_path: Path) -> None:
    sentence = complain(lay_out(tmp_path, SEVERAL.replace('"south"', '"north"')), tmp_path / "out")
    assert "two sites are named 'north' (north.csv and south.csv)" in sentence


def test_every_site_refuses(tmp_path: Path) -> None:
    (tmp_path / "closed.toml").write_text("[release]\nkinds = []\n")
    study = lay_out(tmp_path, SPLIT.replace('by = "hospital"', 'by = "hospital"\npolicy = "closed.toml"'))
    sentence = complain(study, tmp_path / "out")
    assert "each site will refuse: its policy answers no" in sentence


def test_a_corrupt_ledger(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    (tmp_path / "south.ledger").write_bytes(b"this was a ledger once" * 100)
    assert "south.ledger" in complain(study, tmp_path / "out")


def test_a_ledger_of_other_records(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    finished(study, tmp_path / "out")
    (tmp_path / "south.csv").write_text((tmp_path / "north.csv").read_text())
    assert "south.ledger" in complain(study, tmp_path / "other")


def test_results_cannot_go_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    assert complain(lay_out(tmp_path), tmp_path / "out").endswith("out: is a file; --out takes a folder")


def test_a_fault_of_ours_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(running, "write_results", fail)
    result = run(lay_out(tmp_path), tmp_path / "out")
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)
    assert not (tmp_path / "out").exists()


class Interruption:
    """Lets so many answers through, then is Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
        self.left, self.answered = answers, 0
        answer = Site.answer

        def interrupted(site: Site, message: bytes) -> bytes:
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
            self.left -= 1
            self.answered += 1
            return answer(site, message)

        monkeypatch.setattr(Site, "answer", interrupted)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], cc.DecisionTree]:
    """The results of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    metrics = finished(lay_out(folder, SPLIT + LEAVE_OUT), folder / "out")
    return metrics, cc.load(folder / "out" / "model.json")


@pytest.mark.parametrize(
    ("text", "answers"), [(SPLIT, 4), (SPLIT, 14), (SEVERAL, 2), (SEVERAL, 8), (SEVERAL, 14)]
)
def test_an_interrupted_run_goes_on_to_the_same_results(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: tuple[dict[str, Any], cc.DecisionTree],
    text: str,
    answers: int,
) -> None:
    study = lay_out(tmp_path, text + LEAVE_OUT)
    with monkeypatch.context() as patch:
        Interruption(patch, answers)
        result = run(study, tmp_path / "out")
    assert result.exit_code == 130
    assert f"concilium run {study} --out {tmp_path / 'out'} --resume" in result.stderr
    assert not (tmp_path / "out").exists()
    again = finished(study, tmp_path / "out", "--resume")
    metrics, model = whole
    assert without_time(again["sites"]) == without_time(metrics["sites"])
    assert without_time(again["overall"]) == without_time(metrics["overall"])
    resumed = cc.load(tmp_path / "out" / "model.json")
    assert resumed.body == model.body
    assert sorted(map(str, resumed.card.releases)) == sorted(map(str, model.card.releases))


def without_time(metrics: dict[str, Any]) -> dict[str, Any]:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key != "seconds"}
        return [strip(item) for item in value] if isinstance(value, list) else value

    stripped: dict[str, Any] = strip(metrics)
    return stripped


def test_what_was_answered_before_the_end_is_not_charged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = lay_out(tmp_path, SEVERAL)
    with monkeypatch.context() as patch:
        Interruption(patch, 7)
        assert run(study, tmp_path / "out").exit_code == 130
    finished(study, tmp_path / "out", "--resume")
    rounds = cc.load(tmp_path / "out" / "model.json").card.rounds
    for name in HOSPITALS:
        with cc.Ledger(tmp_path / f"{name}.ledger") as ledger:
            assert len([entry for entry in ledger.entries() if entry.question]) == rounds


def test_a_changed_study_cannot_be_resumed_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = lay_out(tmp_path, SEVERAL)
    with monkeypatch.context() as patch:
        Interruption(patch, 4)
        run(study, tmp_path / "out")
    (workshop,) = tmp_path.glob(".*.partial")
    study.write_text(SEVERAL.replace("max_depth = 3", "max_depth = 2"))
    assert "run it again without --resume" in complain(study, tmp_path / "out", "--resume")
    assert workshop.exists()
    study.write_text(SEVERAL)
    finished(study, tmp_path / "out", "--resume")


def test_a_house_that_stops_for_a_lost_site_can_go_on_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = lay_out(tmp_path, SEVERAL + '[house]\non_loss = "stop"')
    answer, answered = Site.answer, 0

    def lose_south(site: Site, message: bytes) -> bytes:
        nonlocal answered
        if site.name == "south":
            answered += 1
            if answered > 3:
                raise ConnectionError("line cut")
        return answer(site, message)

    with monkeypatch.context() as patch:
        patch.setattr(Site, "answer", lose_south)
        result = run(study, tmp_path / "out")
    assert result.exit_code == 2
    assert "stopped in round 3" in result.stderr
    assert "south" in result.stderr
    assert "--resume" in result.stderr
    finished(study, tmp_path / "out", "--resume")


def test_a_ledger_put_back_to_an_older_copy_is_noticed_on_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = lay_out(tmp_path, SEVERAL + '[house]\non_loss = "stop"')
    finished(study, tmp_path / "before")
    older = (tmp_path / "south.ledger").read_bytes()
    with monkeypatch.context() as patch:
        Interruption(patch, 7)
        assert run(study, tmp_path / "out").exit_code == 130
    for leftover in tmp_path.glob("south.ledger-*"):
        leftover.unlink()
    (tmp_path / "south.ledger").write_bytes(older)
    result = run(study, tmp_path / "out", "--resume")
    assert result.exit_code == 2
    assert "south.ledger is not as it was left" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_installed_command_ends_with_its_exit_codes(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    command = [sys.executable, "-m", "concilium.cli.main", "run"]

    def execute(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"}
        )

    done = execute("study.toml", "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "study.toml: cannot be read (No such file or directory)\n"
    done = execute(str(study), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == RESULTS
    assert execute(str(study)).returncode == 2


def test_a_killed_run_leaves_no_folder_and_can_go_on(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    script = """
import os, signal, sys
from concilium.cli.main import main
from concilium.protocol.site import Site
from concilium.records.table import Coded
answer, left = Site.answer, int(sys.argv.pop(1))
def killed(site, message):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(site, message)
Site.answer = killed
main(sys.argv[1:])
"""
    arguments = ["run", str(study), "--out", str(tmp_path / "out")]
    killed = subprocess.run([sys.executable, "-c", script, "5", *arguments], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "out").exists()
    finished(study, tmp_path / "out", "--resume")


def test_a_stated_column_may_be_absent_from_some_hospitals_but_not_from_all(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL + '[schema]\nward = "code"')
    assert "[schema] names 'ward', a column no site has" in complain(study, tmp_path / "out")
    lines = (tmp_path / "south.csv").read_text().splitlines()
    extended = [f"{line},{'ward' if row == 0 else row % 3}" for row, line in enumerate(lines)]
    (tmp_path / "south.csv").write_text("\n".join(extended) + "\n")
    tables = read_tables(cc.Study.read(study))
    assert ["ward" in table for table in tables.values()] == [False, True, False]
    column = tables["south"]["ward"]
    assert isinstance(column, Coded)
    assert column.stated
    finished(study, tmp_path / "out")


def test_columns_that_are_stated_later_ask_for_no_rebind_and_open_no_way_around_what_was_asked(
    tmp_path: Path,
) -> None:
    study = lay_out(tmp_path, SEVERAL.replace("[bins]", 'query = "age < 80"\n[bins]'))
    finished(study, tmp_path / "out")
    near = SEVERAL.replace("[bins]", "query = \"age < 80 or (age = 80 and sex = 'f')\"\n[bins]")
    for text in (
        near,
        near + '[schema]\nsex = "code"\n',
        near + '[schema]\nage = "number"\ndeath = "code"\n',
    ):
        study.write_text(text, encoding="utf-8")
        finished(study, tmp_path / "again")  # without the hospital that holds a woman of 80
        assert (
            "too few tell it apart from what was asked before" in (tmp_path / "again/card.json").read_text()
        )
    study.write_text(SEVERAL.replace("[bins]", 'query = "age < 80"\n[bins]') + '[schema]\nsex = "code"\n')
    finished(study, tmp_path / "out")


def test_a_ledger_that_was_tampered_with_or_put_back_stops_the_run(tmp_path: Path) -> None:
    import shutil
    import sqlite3

    study = lay_out(tmp_path, SEVERAL)
    finished(study, tmp_path / "out")

    def copy(one: str, other: str, endings: tuple[str, ...] = ("", ".head")) -> None:
        for ending in endings:
            shutil.copy(tmp_path / f"{one}{ending}", tmp_path / f"{other}{ending}")

    copy("north.ledger", "older")
    finished(study, tmp_path / "out")
    copy("north.ledger", "newer")
    copy("older", "north.ledger", ("",))
    assert "a restored backup" in complain(study, tmp_path / "again")
    copy("older", "north.ledger")  # with the head beside it: the house remembers
    assert "a ledger cannot be trusted: north: " in complain(study, tmp_path / "again")
    copy("newer", "north.ledger")
    finished(study, tmp_path / "out")
    database = sqlite3.connect(tmp_path / "north.ledger")
    database.execute("DROP TRIGGER entries_refuse_update")
    database.execute("UPDATE entries SET numbers = 0 WHERE sequence = 3")
    database.commit()
    database.close()
    said = complain(study, tmp_path / "again")
    assert "north.ledger" in said
    assert not (tmp_path / "again").exists()
