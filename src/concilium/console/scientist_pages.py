"""The scientist's pages: the folder's studies, each as a form and as text, to check, plan, save and run; their runs."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from concilium.console.access import ConsoleSession
from concilium.console.network_view import NetworkView
from concilium.console.results_folder import FileCache
from concilium.console.saved_text import SavedMeanwhile, digest_text, read_text, save_text
from concilium.console.study_form import change_text, read_study_form
from concilium.console.study_runs import StudyRun, StudyRuns, suggest_folder
from concilium.console.web import ConsoleState, Fields, PageError, State, render, require
from concilium.errors import ConciliumError, StudyError
from concilium.privacy.accounting import epsilon_from_rho, say_epsilon, shown
from concilium.study.planning import StudyPlan
from concilium.study.results import write_whole
from concilium.study.sections import shares_entries
from concilium.study.study import Study

if TYPE_CHECKING:
    from concilium.consult.table_check import TableCheck

MOST_TEXT = 200_000
EVENTS_SECONDS, LOOK_SECONDS = 60.0, 0.15
SOURCES = ("site", "sites", "house", "series")
"""Sections that say whose records are read, behind which policy and ledger, and as whom."""
MOST_LISTED = 1000
Scientist = Annotated[ConsoleSession, Depends(require("scientist"))]


@dataclass(frozen=True)
class CheckedStudy:
    """What is wrong with a study's text, or the study, and with prices where they were asked for its plan."""

    study: Study | None = None
    plan: StudyPlan | None = None
    tables: tuple[TableCheck, ...] = ()
    problem: str = ""
    is_sharing: bool = False

    @property
    def methods(self) -> str:
        """What the study learns, method by method."""
        studies = () if self.study is None else self.study.several or (self.study,)
        return ", ".join(dict.fromkeys(one.method for one in studies))

    @property
    def total(self) -> str:
        if self.plan is None or self.study is None:
            return ""
        epsilon = say_epsilon(epsilon_from_rho(self.plan.total, self.study.privacy.delta))
        return f"{shown(self.plan.total)} (epsilon {epsilon})"


def _check_study(
    path: Path,
    text: str,
    *,
    inside: Path | None,
    plan: bool = False,
    tables: bool = False,
    has_kit: bool = False,
) -> CheckedStudy:
    """Check a study's text as `concilium run --plan` checks the file at that path, and with `tables` as `concilium
    check` does; nothing is asked, spent or written.

    *Protects:* files of this machine outside of `inside`, where that is given, from who may send such a text.
    """
    try:
        if inside is not None:
            _refuse_outside(path, text, inside)
        study = Study.read(path, text=text, elsewhere=has_kit and _is_elsewhere(text))
        if tables and study.elsewhere:
            raise StudyError("the tables are at the hospitals: each checks its own, by `concilium check`")
        return CheckedStudy(
            study, study.plan() if plan else None, tuple(_check_tables(study)) if tables else ()
        )
    except ConciliumError as error:
        # What quotes cells of a hospital's table stays on this machine, unless it is the scientist's own.
        said = str(error) if inside is None else error.outside
        return CheckedStudy(problem=said.replace(str(path), path.name), is_sharing=_is_sharing(text))


def _is_sharing(text: str) -> bool:
    """Whether a study shares patients' own entries, and learns no model."""
    try:
        return shares_entries(tomllib.loads(text))
    except (ValueError, RecursionError):
        return False


def _check_tables(study: Study) -> list[TableCheck]:
    from concilium.study.running import check_study as check_each  # which loads all that learns

    return check_each(study)


def _is_elsewhere(text: str) -> bool:
    """Whether a study names no records: its hospitals are on machines of their own."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    sites = document.get("site", [])
    split = document.get("sites")
    held = {"records", "series", "rules"}
    named = isinstance(sites, list) and any(isinstance(one, dict) and held & set(one) for one in sites)
    return not named and not split


def _refuse_other_sources(before: str, text: str) -> None:
    """StudyError where a text reads other records than the file does, or behind another policy or ledger.

    *Protects:* patients of tables in the folder, from who may change a study and not the folder: they are asked as
    whoever keeps the folder has laid down, at each hospital's gate.
    """
    try:
        old, new = tomllib.loads(before), tomllib.loads(text)
    except (ValueError, RecursionError):
        raise StudyError("only a file that is TOML can be changed here") from None

    def list_sources(document: Mapping[str, Any]) -> list[Any]:
        apart = [(name, "file") for name in ("evaluate", "dictionary")]
        inner = [section.get(key) for name, key in apart if isinstance(section := document.get(name), dict)]
        return [*(document.get(name) for name in SOURCES), [one for one in inner if one is not None]]

    if list_sources(old) != list_sources(new):
        raise StudyError(
            "hospitals, their records, policies and ledgers stay as the file has them; who keeps the folder may "
            "change those"
        )


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


def open_studies(inside: Path | None, kit: Path | None) -> FileCache[CheckedStudy]:
    """What is known of study files, each checked once as it is."""
    return FileCache(lambda path: _check_file(path, inside, kit is not None), MOST_LISTED)


def make_router(
    inside: Path | None, runs: StudyRuns, listed: FileCache[CheckedStudy], kit: Path | None = None
) -> APIRouter:
    """The pages; `inside` is where the files of studies must lie, None for the one person of this machine. `kit` is
    that of a person of a network, for studies of hospitals on machines of their own."""
    router = APIRouter()
    network = None if kit is None else NetworkView(kit)

    @router.get("/scientist")
    def show_studies(request: Request, state: State, session: Scientist) -> Response:
        rows = [(key, listed.get(path)) for key, path in state.folder.find().studies.items()]
        seen = None if network is None else network.look()
        return render(
            request, "studies", session=session, rows=rows, runs=runs.list_runs()[:20], network=seen
        )

    @router.get("/scientist/study/{key:path}")
    def show_study(request: Request, state: State, session: Scientist, key: str) -> Response:
        path = _find_study(state, key)
        state.trail.enter(session.user, "open study file", key)
        text = read_text(path)
        return _show(request, state, session, key, text, check_text(path, text), digest=digest_text(text))

    @router.post("/scientist/study/{key:path}")
    def change(request: Request, state: State, session: Scientist, fields: Fields, key: str) -> Response:
        path = _find_study(state, key)
        text = fields.get("text", "").replace("\r\n", "\n")
        if len(text) > MOST_TEXT:
            raise PageError(413, f"A study file has at most {MOST_TEXT:,} characters here.")
        do = fields.get("do", "check")
        problem = ""
        if fields.get("edited") == "form" or do == "take":
            try:
                text = change_text(text, fields)
            except StudyError as error:
                problem = str(error)
        if do in ("save", "run") and not problem:
            return save(request, state, session, fields, key, text, do)
        checked = check_text(path, text, plan=do == "plan", tables=do == "tables")
        if do in ("plan", "tables"):
            action = "plan" if do == "plan" else "check tables"
            state.trail.enter(session.user, action, key, "wrong" if checked.problem else "done")
        return _show(
            request,
            state,
            session,
            key,
            text,
            checked,
            422 if checked.problem or problem else 200,
            digest=fields.get("digest", ""),
            problem=problem,
        )

    def save(
        request: Request,
        state: ConsoleState,
        session: ConsoleSession,
        fields: Mapping[str, str],
        key: str,
        text: str,
        do: str,
    ) -> Response:
        """Save a study that is right, beside its file if it has another name; then run it, if that is asked for."""
        path = _find_study(state, key)
        checked = check_text(path, text)
        status, problem, place = 422, checked.problem, path
        if not problem:
            try:
                place = _save_study(path, text, fields.get("name", ""), fields.get("digest", ""), inside)
                if do == "run":
                    key = place.relative_to(state.folder.path).as_posix()
                    run = runs.start(
                        key,
                        place,
                        fields.get("out", "").strip(),
                        session.user,
                        kit=kit if checked.study is not None and checked.study.elsewhere else None,
                    )
                    state.trail.enter(session.user, "run", key, f"run {run.number} began")
                    return RedirectResponse(f"/scientist/run/{run.number}", 303)
            except SavedMeanwhile as error:
                status, problem = 409, str(error)
            except ConciliumError as error:
                problem = str(error)
        if problem:
            state.trail.enter(session.user, do, key, "refused")
            digest = fields.get("digest", "")
            return _show(request, state, session, key, text, checked, status, digest=digest, problem=problem)
        key = place.relative_to(state.folder.path).as_posix()
        state.trail.enter(session.user, "save study file", key, "saved")
        state.folder.forget()
        return RedirectResponse(f"/scientist/study/{quote(key)}?saved=1", 303)

    def check_text(path: Path, text: str, *, plan: bool = False, tables: bool = False) -> CheckedStudy:
        return _check_study(path, text, inside=inside, plan=plan, tables=tables, has_kit=kit is not None)

    def _show(
        request: Request,
        state: ConsoleState,
        session: ConsoleSession,
        key: str,
        text: str,
        checked: CheckedStudy,
        status: int = 200,
        *,
        digest: str,
        problem: str = "",
    ) -> Response:
        path = state.folder.path / key
        models = [
            one for one in state.folder.find().models.values() if one.folder.is_relative_to(path.parent)
        ]
        return render(
            request,
            "study_file",
            status=status,
            session=session,
            key=key,
            text=text,
            form=read_study_form(text),
            checked=checked,
            models=models,
            digest=digest,
            problem=problem or checked.problem,
            runs=runs.list_runs(key),
            saved="saved" in request.query_params,
            shows_cells=inside is None,
            out=suggest_folder(path),
            file_name=path.name,
        )

    @router.get("/scientist/run/{number}")
    def show_run(request: Request, state: State, session: Scientist, number: int) -> Response:
        run = _find_run(runs, number)
        return _show_run(request, state, session, run)

    def _show_run(
        request: Request,
        state: ConsoleState,
        session: ConsoleSession,
        run: StudyRun,
        status: int = 200,
        problem: str = "",
    ) -> Response:
        state.folder.forget()
        models = [one for one in state.folder.find().models.values() if one.folder.is_relative_to(run.out)]
        return render(
            request,
            "run",
            status=status,
            session=session,
            run=run,
            models=models if run.state == "finished" else [],
            said=run.said if inside is None else run.outside,
            # Warnings may quote cells of a hospital's table.
            notes=[one for one in run.lines if not one.number and (inside is None or not one.is_warning)],
            hidden=0 if inside is None else sum(one.is_warning for one in run.lines),
            problem=problem,
            may_decide=session.may("steward"),
        )

    @router.get("/scientist/run/{number}/events")
    async def follow_run(state: State, session: Scientist, number: int) -> Response:
        # Ends after a while, and the browser asks again: a session that has ended sees no more.
        run = _find_run(runs, number)
        return StreamingResponse(_list_events(run), media_type="text/event-stream")

    @router.post("/scientist/run/{number}")
    def change_run(
        request: Request, state: State, session: Scientist, fields: Fields, number: int
    ) -> Response:
        run = _find_run(runs, number)
        if fields.get("do") == "end":
            runs.end(run)
            state.trail.enter(session.user, "end run", run.key, f"run {number}")
            return RedirectResponse(f"/scientist/run/{number}", 303)
        if fields.get("do") != "resume" or not run.can_go_on:
            return _show_run(
                request, state, session, run, 409, "This run cannot go on: it has ended otherwise."
            )
        try:
            again = runs.start(run.key, run.path, run.out.name, session.user, resume=True, kit=run.kit)
        except StudyError as error:
            return _show_run(request, state, session, run, 409, str(error))
        state.trail.enter(session.user, "resume run", run.key, f"run {again.number} began")
        return RedirectResponse(f"/scientist/run/{again.number}", 303)

    return router


def _save_study(path: Path, text: str, name: str, digest: str, inside: Path | None) -> Path:
    """Write a study's text to its file, or to a new one of that name beside it; StudyError where it may not be."""
    before = read_text(path)
    if inside is not None:
        _refuse_other_sources(before, text)
    name = name.strip() or path.name
    if name == path.name:
        save_text(path, text, digest)
        return path
    if not re.fullmatch(r"\w[\w.-]{0,60}\.toml", name, re.ASCII):
        raise StudyError("a study file has a name such as second.toml, of letters, digits, dots and dashes")
    if path.with_name(name).exists() or path.with_name(name).is_symlink():
        raise StudyError(f"{name}: there is a file of this name; choose another")
    write_whole(path.with_name(name), text.encode())
    return path.with_name(name)


async def _list_events(run: StudyRun) -> AsyncIterator[bytes]:
    """A message for each thing that changes in a run: how much it has said, and its state."""
    loop, seen = asyncio.get_running_loop(), None
    until = loop.time() + EVENTS_SECONDS
    yield b"retry: 500\n\n"
    while loop.time() < until:
        now = len(run.lines), run.state
        if now != seen:
            seen = now
            yield f"data: {run.state} {len(run.lines)}\n\n".encode()
        if run.state != "running":
            return
        await asyncio.sleep(LOOK_SECONDS)


def _find_run(runs: StudyRuns, number: int) -> StudyRun:
    run = runs.find(number)
    if run is None:
        raise PageError(404, "There is no such run: the console was started since, or it is long over.")
    return run


def _check_file(path: Path, inside: Path | None, has_kit: bool) -> CheckedStudy:
    return _check_study(path, read_text(path), inside=inside, has_kit=has_kit)


def _find_study(state: ConsoleState, key: str) -> Path:
    path = state.folder.find().studies.get(key)
    if path is None:
        raise PageError(404, "There is no such study file in this folder.")
    return path
