"""The scientist's pages: the folder's studies, each as text to check and to plan; nothing is asked or spent here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from concilium.console.access import ConsoleSession
from concilium.console.results_folder import FileCache
from concilium.console.web import ConsoleState, Fields, PageError, State, render, require
from concilium.errors import ConciliumError, StudyError
from concilium.privacy.accounting import shown
from concilium.study.planning import StudyPlan
from concilium.study.study import Study

MOST_TEXT = 200_000
MOST_LISTED = 1000
Scientist = Annotated[ConsoleSession, Depends(require("scientist"))]


@dataclass(frozen=True)
class CheckedStudy:
    """What is wrong with a study's text, or the study, and with prices where they were asked for its plan."""

    study: Study | None = None
    plan: StudyPlan | None = None
    problem: str = ""

    @property
    def total(self) -> str:
        return "" if self.plan is None else shown(self.plan.total)


def check_study(path: Path, text: str, *, inside: Path | None, plan: bool = False) -> CheckedStudy:
    """Check a study's text as `concilium run --plan` checks the file at that path; nothing is asked, spent or written.

    *Protects:* files of this machine outside of `inside`, where that is given, from who may send such a text.
    """
    try:
        if inside is not None:
            _refuse_outside(path, text, inside)
        study = Study.read(path, text=text)
        return CheckedStudy(study, study.plan() if plan else None)
    except ConciliumError as error:
        # What quotes cells of a hospital's table stays on this machine, unless it is the scientist's own.
        said = str(error) if inside is None else error.outside
        return CheckedStudy(problem=said.replace(str(path), path.name))


def _refuse_outside(path: Path, text: str, inside: Path) -> None:
    """StudyError where a study names what is not in the folder: another path, or a database."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        return  # which is said when it is read
    for value in _list_texts(document):
        place = value.replace("\0", "")
        if "://" in place or not (path.parent / place).resolve().is_relative_to(inside):
            raise StudyError(
                f"{value[:80]!r} is not in the folder of the console; run this study by `concilium run`, where its "
                "files are"
            )


def _list_texts(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def make_router(inside: Path | None) -> APIRouter:
    """The pages; `inside` is where the files of studies must lie, None for the one person of this machine."""
    router = APIRouter()
    listed = FileCache(lambda path: _check_file(path, inside), MOST_LISTED)

    @router.get("/scientist")
    def show_studies(request: Request, state: State, session: Scientist) -> Response:
        rows = [(key, listed.get(path)) for key, path in state.folder.find().studies.items()]
        return render(request, "studies", session=session, rows=rows)

    @router.get("/scientist/study/{key:path}")
    def show_study(request: Request, state: State, session: Scientist, key: str) -> Response:
        path = _find_study(state, key)
        state.trail.enter(session.user, "open study file", key)
        text = path.read_text(encoding="utf-8", errors="replace")
        return _show(request, state, session, key, text, check_study(path, text, inside=inside))

    @router.post("/scientist/study/{key:path}")
    def check(request: Request, state: State, session: Scientist, fields: Fields, key: str) -> Response:
        path = _find_study(state, key)
        text = fields.get("text", "").replace("\r\n", "\n")
        if len(text) > MOST_TEXT:
            raise PageError(413, f"A study file has at most {MOST_TEXT:,} characters here.")
        plans = "plan" in fields
        checked = check_study(path, text, inside=inside, plan=plans)
        if plans:
            state.trail.enter(session.user, "plan", key, "wrong" if checked.problem else "planned")
        return _show(request, state, session, key, text, checked, 422 if checked.problem else 200)

    def _show(
        request: Request,
        state: ConsoleState,
        session: ConsoleSession,
        key: str,
        text: str,
        checked: CheckedStudy,
        status: int = 200,
    ) -> Response:
        folder = (state.folder.path / key).parent
        models = [one for one in state.folder.find().models.values() if one.folder.is_relative_to(folder)]
        return render(
            request,
            "study_file",
            status=status,
            session=session,
            key=key,
            text=text,
            checked=checked,
            models=models,
        )

    return router


def _check_file(path: Path, inside: Path | None) -> CheckedStudy:
    return check_study(path, path.read_text(encoding="utf-8", errors="replace"), inside=inside)


def _find_study(state: ConsoleState, key: str) -> Path:
    path = state.folder.find().studies.get(key)
    if path is None:
        raise PageError(404, "There is no such study file in this folder.")
    return path
