"""A study run from Python: the same results as the command's, all or nothing, and runs that go on after an end."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import CannotResume, HouseError, RunStopped, StudyError
from concilium.protocol.site import Site
from small_study import HOSPITALS, SEVERAL, SPLIT, lay_out

HOLDOUT = "[evaluate]\nholdout = 0.3\nsimulation = true\n"
LEAVE_OUT = '[evaluate]\nleave_out = "site"\nsimulation = true\n'
PRIVATE = '[privacy]\nrelease = "private"\nepsilon = 1\n[values]\nsex = ["f", "m"]\ndeath = [0, 1]\n'


def without_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_time(item) for key, item in value.items() if key != "seconds"}
    return [without_time(item) for item in value] if isinstance(value, list) else value


def interrupt_after(lines: int, error: type[BaseException]) -> Callable[[str], None]:
    """Progress that is told so many times, and then interrupts the run."""
    told = itertools.count(1)

    def tell(text: str) -> None:
        if next(told) > lines:
            raise error

    return tell


def lose_south(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hospital agrees, gives two answers, and then no more."""
    answer, answers = Site.answer, itertools.count(1)

    def lose(site: Site, message: bytes) -> bytes:
        if site.name == "south" and next(answers) > 3:
            raise ConnectionError("line cut")
        return answer(site, message)

    monkeypatch.setattr(Site, "answer", lose)


@pytest.mark.parametrize("evaluate", ["", HOLDOUT, LEAVE_OUT])
def test_a_run_gives_what_the_command_writes(tmp_path: Path, evaluate: str) -> None:
    path = lay_out(tmp_path, SPLIT + evaluate)
    results = cc.Study.read(path).run(tmp_path / "out")
    assert CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "command")]).exit_code == 0
    for folder in ("out", "command"):
        metrics = json.loads((tmp_path / folder / "metrics.json").read_text())
        assert without_time(metrics) == without_time(results.metrics)
        assert cc.load(tmp_path / folder / "model.json").body == results.model.body
    assert json.loads(results.files["card.json"].read_text()) == results.card.to_dict()
    assert results.files["report.html"].read_text() == results.report()
    assert list(results.files.values()) == [
        tmp_path / "out" / name
        for name in ("model.json", "metrics.json", "card.json", "terms.json", "tree.svg", "report.html")
    ]
    assert sorted(results.files.values()) == sorted((tmp_path / "out").iterdir())
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("evaluate", ["", LEAVE_OUT])
def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluate: str
) -> None:
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    path = lay_out(tmp_path, SPLIT + evaluate)
    before = sorted(tmp_path.rglob("*"))
    results = cc.Study.read(path).run()
    assert sorted(tmp_path.rglob("*")) == before
    assert results.files == {}
    assert results.report().startswith("<!DOCTYPE html>")
    written = cc.Study.read(path).run(str(tmp_path / "out"))
    assert without_time(results.metrics) == without_time(written.metrics)
    assert results.model.body == written.model.body


def test_without_a_folder_hospitals_are_charged_all_the_same(tmp_path: Path) -> None:
    results = cc.Study.read(lay_out(tmp_path, SEVERAL)).run()
    for name in HOSPITALS:
        with cc.Ledger(tmp_path / f"{name}.ledger") as ledger:
            assert len([entry for entry in ledger.entries() if entry.question]) == results.card.rounds


def test_progress_is_told_and_what_is_private_is_warned_of(tmp_path: Path) -> None:
    text = SPLIT + PRIVATE.replace("epsilon = 1", 'epsilon = 1\ndelta = "1/10"')
    lines: list[str] = []
    warned: list[str] = []
    study = cc.Study.read(lay_out(tmp_path, text))
    study.run(on_progress=lines.append, warn=warned.append)
    assert lines[0] == "reading records"
    assert len(lines) > 2
    assert sorted(line.split(":")[0] for line in warned) == sorted(HOSPITALS)
    with pytest.warns(UserWarning, match="delta = 0.1 is above") as caught:
        study.run()
    assert [str(warning.message) for warning in caught] == warned


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize(("text", "lines"), [(SPLIT, 3), (SPLIT, 5), (SEVERAL, 3), (SEVERAL, 6)])
def test_an_interrupted_run_goes_on_to_the_same_results(
    tmp_path: Path, text: str, lines: int, error: type[BaseException]
) -> None:
    (tmp_path / "whole").mkdir()
    whole = cc.Study.read(lay_out(tmp_path / "whole", text + LEAVE_OUT)).run()
    study = cc.Study.read(lay_out(tmp_path, text + LEAVE_OUT))
    with pytest.raises(error):
        study.run(tmp_path / "out", on_progress=interrupt_after(lines, error))
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.glob(".out.partial"))) == 1
    results = study.run(tmp_path / "out", resume=True)
    assert results.model.body == whole.model.body
    assert without_time(results.metrics["sites"]) == without_time(whole.metrics["sites"])
    assert not list(tmp_path.glob(".*.partial"))


def test_a_house_that_stopped_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = cc.Study.read(lay_out(tmp_path, SEVERAL + '[house]\non_loss = "stop"\n'))
    with monkeypatch.context() as patch:
        lose_south(patch)
        with pytest.raises(RunStopped, match=r"run it again with resume=True$") as caught:
            study.run(tmp_path / "out")
    assert "stopped in round 3" in caught.value.reason
    assert "resume" not in caught.value.reason
    assert not (tmp_path / "out").exists()
    results = study.run(tmp_path / "out", resume=True)
    for name in HOSPITALS:
        with cc.Ledger(tmp_path / f"{name}.ledger") as ledger:
            assert len([entry for entry in ledger.entries() if entry.question]) == results.card.rounds


def test_a_house_that_stopped_without_a_folder_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = cc.Study.read(lay_out(tmp_path, SEVERAL + '[house]\non_loss = "stop"\n'))
    lose_south(monkeypatch)
    with pytest.raises(HouseError, match="stopped in round 3") as caught:
        study.run()
    assert not isinstance(caught.value, RunStopped)


def test_only_the_same_study_is_resumed(tmp_path: Path) -> None:
    path = lay_out(tmp_path, SEVERAL)
    with pytest.raises(KeyboardInterrupt):
        cc.Study.read(path).run(tmp_path / "out", on_progress=interrupt_after(3, KeyboardInterrupt))
    path.write_text(SEVERAL.replace("max_depth = 3", "max_depth = 2"))
    with pytest.raises(CannotResume, match=r"run it again without resume=True$") as caught:
        cc.Study.read(path).run(tmp_path / "out", resume=True)
    assert "have changed since" in caught.value.reason
    path.write_text(SEVERAL)
    assert cc.Study.read(path).run(tmp_path / "out", resume=True).files


def test_what_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    study = cc.Study.read(lay_out(tmp_path))
    with pytest.raises(StudyError, match="give 'out' as well"):
        study.run(resume=True)
    (tmp_path / "file").write_text("a file")
    with pytest.raises(StudyError, match=r"file: is a file; results go to a folder$"):
        study.run(tmp_path / "file")
    wrong = cc.Study.read(lay_out(tmp_path, SPLIT.replace('target = "death"', 'target = "deaht"')))
    with pytest.raises(StudyError, match="did you mean 'death'"):
        wrong.run(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))
