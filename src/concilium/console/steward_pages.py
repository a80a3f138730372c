"""The steward's pages: what is proposed to each hospital of the folder, the decision on it, the ledger, the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from concilium.cli.agreement_words import describe_agree
from concilium.console.access import ConsoleSession
from concilium.console.ledger_view import LedgerOverview, LedgerViews, read_policy, read_public
from concilium.console.web import (
    ConsoleState,
    Fields,
    PageError,
    State,
    render,
    require,
)
from concilium.consult.consent import decide_on_study, describe_study, find_study, say_title
from concilium.errors import ConciliumError, LedgerError, MaskError
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import read_rules
from concilium.privacy.identity import Identity

ROWS = 100
STATUSES = {"agree": "agreed", "refuse": "refused", "end": "ended"}
Steward = Annotated[ConsoleSession, Depends(require("steward"))]


def make_router() -> APIRouter:
    views = LedgerViews()
    router = APIRouter()

    @router.get("/steward")
    def show_ledgers(request: Request, state: State, session: Steward) -> Response:
        found = state.folder.find()
        rows: list[tuple[str, LedgerOverview | None, str]] = []
        for key, path in found.ledgers.items():
            try:
                rows.append((key, views.look(path, found), ""))
            except ConciliumError as error:
                rows.append((key, None, _without_path(error, path, key)))
        return render(request, "ledgers", session=session, rows=rows)

    @router.get("/steward/study/{study}/{key:path}")
    def show_study(request: Request, state: State, session: Steward, study: str, key: str) -> Response:
        state.trail.enter(session.user, "open study", f"{key} {study[:12]}")
        return _render_study(request, state, session, study, key)

    @router.post("/steward/study/{study}/{key:path}")
    def decide(
        request: Request, state: State, session: Steward, fields: Fields, study: str, key: str
    ) -> Response:
        path = _find_ledger(state, key)
        status = STATUSES.get(fields.get("decision", ""))
        if status is None:
            raise PageError(400, "This form says no decision.")
        who = session.user if state.access.users is not None else fields.get("who", "")
        about = f"{key} {study[:12]}"
        try:
            decide_in(path, study, status, who, fields.get("why", ""))
        except ConciliumError as error:
            state.trail.enter(session.user, fields["decision"], about, "not entered")
            said = _without_path(error, path, key)
            code = 409 if isinstance(error, LedgerError) and " is " in said and "already" in said else 422
            return _render_study(request, state, session, study, key, problem=said, given=fields, status=code)
        state.trail.enter(session.user, fields["decision"], about, "entered")
        return RedirectResponse(request.url.path, 303)

    def _render_study(
        request: Request,
        state: ConsoleState,
        session: ConsoleSession,
        study: str,
        key: str,
        problem: str = "",
        given: dict[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        path = _find_ledger(state, key)
        found = state.folder.find()
        policy, unreadable = None, ""
        try:
            policy = read_policy(views.find_policy(path, found))
        except ConciliumError as error:
            unreadable = _without_path(error, path, key)
        try:
            with Ledger.open_readonly(path) as ledger:
                one = find_study(ledger, study, policy, read_public(path))
                title, sections = say_title(one, ledger), describe_study(one, ledger, policy)
        except LedgerError as error:
            raise PageError(404, _without_path(error, path, key)) from None
        return render(
            request,
            "study",
            status=status,
            session=session,
            key=key,
            study=one,
            title=title,
            sections=sections,
            problem=problem,
            unreadable=unreadable,
            given=given or {},
            asks_name=state.access.users is None,
        )

    @router.get("/steward/ledger/{key:path}")
    def show_ledger(
        request: Request, state: State, session: Steward, key: str, before: int | None = None
    ) -> Response:
        path = _find_ledger(state, key)
        try:
            view = views.look(path, state.folder.find())
            with Ledger.open_readonly(path) as ledger:
                rows = ledger.page(before, ROWS)
        except ConciliumError as error:
            raise PageError(422, _without_path(error, path, key)) from None
        state.trail.enter(session.user, "open ledger", key)
        names = {one.id: one.name for one in view.studies}
        return render(
            request, "ledger", session=session, key=key, view=view, rows=rows, names=names, before=before
        )

    @router.get("/steward/policy/{key:path}")
    def show_policy(request: Request, state: State, session: Steward, key: str) -> Response:
        path = _find_ledger(state, key)
        place = views.find_policy(path, state.folder.find())
        if place is None:
            raise PageError(404, "No study file of this folder names a policy beside this ledger.")
        state.trail.enter(session.user, "open policy", key)
        problem, agreeing = "", []
        try:
            agreeing = describe_agree(read_rules(place))
        except ConciliumError as error:
            problem = _without_path(error, place, place.name)
        text = place.read_text(encoding="utf-8", errors="replace")
        return render(
            request, "policy", session=session, key=key, text=text, agreeing=agreeing, problem=problem
        )

    return router


def decide_in(ledger: Path, study: str, status: str, who: str, why: str) -> None:
    """Enter a decision, signed by the hospital's identity beside its ledger; ConciliumError where it cannot be."""
    try:
        identity = Identity.load(f"{ledger}.identity")
    except MaskError:
        raise LedgerError(
            "the hospital's identity is not beside its ledger here, so a decision could not be signed: decide where it "
            "is, by `concilium studies`"
        ) from None
    with Ledger(ledger) as book:
        decide_on_study(book, study, status, who, why, identity)


def _find_ledger(state: ConsoleState, key: str) -> Path:
    path = state.folder.find().ledgers.get(key)
    if path is None:
        raise PageError(404, "There is no such ledger in this folder.")
    return path


def _without_path(error: ConciliumError, path: Path, key: str) -> str:
    """The sentence of an error, with the key of a file instead of where it lies."""
    said = str(error).replace(str(path), key)
    return f"{said[0].upper()}{said[1:]}"
