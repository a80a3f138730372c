"""Work in progress lies in one place that the path of the results alone decides, and nothing is resumed without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import CannotResume, RunStopped, StudyError
from concilium.study.results import WorkInProgress

NAMES = st.sampled_from(["a", "b", "results", ".hidden", "with space", "ü"])
PATHS = st.lists(NAMES, min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(out=PATHS, others=st.lists(PATHS, max_size=4), relative=st.booleans())
def test_resuming_finds_the_work_whatever_folders_appeared_meanwhile(
    tmp_path_factory: pytest.TempPathFactory, out: list[str], others: list[list[str]], relative: bool
) -> None:
    """The attack: folders of the path are made between two runs, by hand or by another study."""
    ground = tmp_path_factory.mktemp("ground")
    path = ground.joinpath(*out)
    given_path = Path(os.path.relpath(path)) if relative else path
    work = WorkInProgress.beside(given_path, resume=False)
    work.keep("ticket", "the first")
    path.mkdir(parents=True, exist_ok=True)
    for other in others:
        ground.joinpath(*other).mkdir(parents=True, exist_ok=True)
    again = WorkInProgress.beside(path / ".." / path.name, resume=True)
    assert again.folder == work.folder
    assert again.recall("ticket", str) == "the first"


@settings(max_examples=60, deadline=None)
@given(out=PATHS, others=st.lists(PATHS, max_size=4))
def test_there_is_nothing_to_resume_where_nothing_was_begun(
    tmp_path_factory: pytest.TempPathFactory, out: list[str], others: list[list[str]]
) -> None:
    ground = tmp_path_factory.mktemp("ground")
    for other in [one for one in others if one != out]:
        WorkInProgress.beside(ground.joinpath(*other), resume=False)
    before = sorted(ground.rglob("*"))
    with pytest.raises(CannotResume, match="there is no work in progress"):
        WorkInProgress.beside(ground.joinpath(*out), resume=True)
    assert sorted(ground.rglob("*")) == before


def test_discarded_work_leaves_no_folder_that_was_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for out in (tmp_path / "kept" / "new" / "out", tmp_path / "new" / "newer" / "out"):
        work = WorkInProgress.beside(out, resume=False)
        with pytest.raises(StudyError), work.until_done(resume=False):
            raise StudyError("it would come out the same again")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "kept"]


def test_work_is_discarded_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process killed while it deletes leaves no folder that looks like work without its ticket."""
    work = WorkInProgress.beside(tmp_path / "out", resume=False)
    work.keep("ticket", "the first")

    def die(folder: Path, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("concilium.study.results.shutil.rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            work.discard()
    with pytest.raises(CannotResume):
        WorkInProgress.beside(tmp_path / "out", resume=True)
    fresh = WorkInProgress.beside(tmp_path / "out", resume=False)
    fresh.discard()
    assert not list(tmp_path.iterdir())


def test_work_that_can_go_on_is_kept(tmp_path: Path) -> None:
    work = WorkInProgress.beside(tmp_path / "new" / "out", resume=False)
    with pytest.raises(RunStopped), work.until_done(resume=False):
        raise RunStopped("the house ended")
    assert WorkInProgress.beside(tmp_path / "new" / "out", resume=True).folder == work.folder
