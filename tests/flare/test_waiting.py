"""A person who waits for stewards, without a network: the same study is submitted again, in the same terms."""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace

import pytest

from concilium.cli import flare as command
from concilium.errors import HouseError, StudyError, StudyPending

pytest.importorskip("nvflare")


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_a_person_waits_for_stewards_as_long_as_asked(monkeypatch, patience, tmp_path, capsys):
    asked, slept = [], []

    def submit(resume):
        asked.append(resume)
        if len(asked) < 3:
            raise StudyPending("abc", ("north", "south"))
        return "results"

    monkeypatch.setattr(command.time, "sleep", slept.append)
    study = SimpleNamespace(path=tmp_path / "study.toml", name="a", hospitals=(), elsewhere=True)

    def run():
        return command.submit_until(study, submit, ["concilium"], False, patience, lambda text: None)

    if not patience:
        with pytest.raises(HouseError, match=r"(?s)waits for north and south.*--resume"):
            run()
        assert asked == [False]
        return
    assert run() == "results"
    assert asked == [False, True, True]  # the same terms, not new ones
    assert slept == [command.FIRST_PAUSE, 2 * command.FIRST_PAUSE]
    assert capsys.readouterr().err.count("waiting 60 s") == 1


def test_resuming_a_study_that_was_never_submitted_asks_nobody(monkeypatch, tmp_path):
    """It had been submitted as a new study, and charged again."""
    from concilium.transports.flare import submitting

    monkeypatch.setattr(submitting, "open_session", lambda kit: pytest.fail("a session was opened"))
    study = SimpleNamespace(path=tmp_path / "study.toml", name="a", several=(), hospitals=())
    kit = SimpleNamespace(folder=tmp_path / "kit")
    submit = partial(
        submitting.submit_study, study, kit, tmp_path / "new" / "out", tell=lambda text: None, warn=print
    )
    with pytest.raises(StudyError, match=r"no work in progress .* submit it again without --resume"):
        command.submit_until(study, submit, ["concilium"], True, 0.0, lambda text: None)
    assert not (tmp_path / "new").exists()


JOBS = {"d756befe-1": "FINISHED:COMPLETED", "d756aaaa-2": "RUNNING", "0123": "SUBMITTED"}


@pytest.mark.parametrize(
    ("beginning", "said"),
    [
        ("d756b", "has ended already"),
        ("d756", "2 jobs have an id that begins with d756"),
        ("ffff", "no job has an id that begins with ffff"),
        ("d75", "is no job"),
        ("d756 -u other", "is no job"),
        ("d756a", ""),
        ("0123", ""),
    ],
)
def test_one_job_is_ended_and_one_that_has_ended_is_said_so(monkeypatch, beginning, said):
    from concilium.transports.flare import session

    ended = []
    house = SimpleNamespace(
        list_jobs=lambda id_prefix: [{"job_id": one} for one in JOBS if one.startswith(id_prefix)],
        get_job_meta=lambda job: {"status": JOBS[job]},
        abort_job=ended.append,
    )
    monkeypatch.setattr(session, "open_session", lambda kit: contextlib.nullcontext(house))
    if said:
        with pytest.raises(HouseError, match=said):
            session.end_job(None, beginning)
        assert not ended
    else:
        assert session.end_job(None, beginning).startswith(beginning)
        assert len(ended) == 1
