"""The steward's pages: what is proposed to each hospital of the folder, the decision on it, the ledger, the policy to
try and to change, sharings of codes to sign, what gateways decided."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from concilium.cli.agreement_words import describe_agree
from concilium.console.access import ConsoleSession
from concilium.console.gateway_log import read_decisions
from concilium.console.guard import POLICY, REPORT_POLICY
from concilium.console.ledger_view import LedgerOverview, LedgerViews, read_policy, read_public
from concilium.console.policy_trial import pair_lines, try_text
from concilium.console.saved_text import SavedMeanwhile, digest_text, read_text, save_text
from concilium.console.signed_sharing import look_at_sharing, sign_sharing
from concilium.console.web import (
    ConsoleState,
    Fields,
    PageError,
    State,
    render,
    require,
)
from concilium.consult.consent import decide_on_study, describe_study, find_study, say_title
from concilium.errors import ConciliumError, LedgerError, MaskError, PolicyError
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import Policy
from concilium.privacy.identity import Identity

ROWS = 100
MOST_TEXT = 200_000
STATUSES = {"agree": "agreed", "refuse": "refused", "end": "ended"}
Steward = Annotated[ConsoleSession, Depends(require("steward"))]


def make_router(views: LedgerViews, inside: Path | None = None) -> APIRouter:
    """The pages; `inside` is where the files of policies must lie, None for the one person of this machine."""
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
        return render(
            request,
            "ledgers",
            session=session,
            rows=rows,
            sharings=list(found.sharings),
            logs=list(found.logs),
        )

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
        who = session.user if state.access.has_users else fields.get("who", "")
        about = f"{key} {study[:12]}"
        try:
            _decide_in(path, study, status, who, fields.get("why", ""))
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
            asks_name=not state.access.has_users,
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
        place = find_policy(state, key)
        state.trail.enter(session.user, "open policy", key)
        text = read_text(place)
        return _show_policy(request, session, key, place, text, digest=digest_text(text))

    @router.post("/steward/policy/{key:path}")
    def change_policy(request: Request, state: State, session: Steward, fields: Fields, key: str) -> Response:
        place = find_policy(state, key)
        text = fields.get("text", "").replace("\r\n", "\n")
        record = fields.get("record", "")
        if fields.get("do") != "save":
            return _show_policy(request, session, key, place, text, record, digest=fields.get("digest", ""))
        try:
            _save_policy(place, text, fields.get("digest", ""), inside)
        except (PolicyError, SavedMeanwhile) as error:
            state.trail.enter(session.user, "save policy", key, "refused")
            status = 409 if isinstance(error, SavedMeanwhile) else 422
            said = _without_path(error, place, place.name)
            digest = fields.get("digest", "")
            return _show_policy(request, session, key, place, text, record, digest, said, status)
        state.trail.enter(session.user, "save policy", key, f"saved {digest_text(text)[:12]}")
        state.folder.forget()
        return RedirectResponse(f"{request.url.path}?saved=1", 303)

    def find_policy(state: ConsoleState, key: str) -> Path:
        place = views.find_policy(_find_ledger(state, key), state.folder.find())
        if place is None:
            raise PageError(404, "No study file of this folder names a policy beside this ledger.")
        return place

    def _show_policy(
        request: Request,
        session: ConsoleSession,
        key: str,
        place: Path,
        text: str,
        record: str = "",
        digest: str = "",
        problem: str = "",
        status: int = 200,
    ) -> Response:
        """A policy's text, what it agrees to, and what it does to a record that was entered."""
        agreeing, outcomes, wrong = [], [], ""
        try:
            _refuse_outside(place, text, inside)
            rules = Policy.read(place, text=text)
            agreeing = describe_agree(rules)
        except ConciliumError as error:
            wrong = f"This policy does not parse: {_without_path(error, place, place.name)}"
        try:
            if record.strip() and not wrong:
                outcomes = [(one, pair_lines(one)) for one in try_text(rules, record)]
        except ConciliumError as error:
            wrong = f"It was not tried: {_without_path(error, place, place.name)}"
        return render(
            request,
            "policy",
            status=422 if wrong and status == 200 and request.method == "POST" else status,
            session=session,
            key=key,
            name=place.name,
            text=text,
            record=record,
            digest=digest,
            agreeing=agreeing,
            outcomes=outcomes,
            problem=problem or wrong,
            saved="saved" in request.query_params,
        )

    @router.get("/steward/sharing/{key:path}")
    def show_sharing(request: Request, state: State, session: Steward, key: str) -> Response:
        state.trail.enter(session.user, "open sharing", key)
        return _render_sharing(request, state, session, key)

    @router.get("/steward/sharing-page/{key:path}")
    def show_sharing_page(state: State, session: Steward, key: str) -> Response:
        policy = REPORT_POLICY.replace("frame-ancestors 'none'", "frame-ancestors 'self'")
        headers = {"content-security-policy": policy, "x-frame-options": "SAMEORIGIN"}
        return FileResponse(_find_sharing(state, key), media_type="text/html", headers=headers)

    @router.post("/steward/sharing/{key:path}")
    def sign(request: Request, state: State, session: Steward, fields: Fields, key: str) -> Response:
        view = look_at_sharing(_find_sharing(state, key), state.folder.find().ledgers)
        who = session.user if state.access.has_users else fields.get("who", "")
        try:
            sign_sharing(view, fields.get("decision", ""), who, fields.get("why", ""))
        except ConciliumError as error:
            state.trail.enter(session.user, "sign sharing", key, "refused")
            return _render_sharing(request, state, session, key, _without_path(error, view.page, key), fields)
        state.trail.enter(session.user, "sign sharing", key, fields["decision"])
        return RedirectResponse(request.url.path, 303)

    def _render_sharing(
        request: Request,
        state: ConsoleState,
        session: ConsoleSession,
        key: str,
        problem: str = "",
        given: Mapping[str, str] | None = None,
    ) -> Response:
        view = look_at_sharing(_find_sharing(state, key), state.folder.find().ledgers)
        reply = render(
            request,
            "sharing",
            status=422 if problem else 200,
            session=session,
            key=key,
            view=view,
            problem=problem,
            given=given or {},
            asks_name=not state.access.has_users,
        )
        reply.headers["content-security-policy"] = f"{POLICY}; frame-src 'self'"
        return reply

    @router.get("/steward/gateway/{key:path}")
    def show_gateway(request: Request, state: State, session: Steward, key: str) -> Response:
        path = state.folder.find().logs.get(key)
        if path is None:
            raise PageError(404, "There is no such log of a gateway in this folder.")
        state.trail.enter(session.user, "open gateway log", key)
        return render(request, "gateway", session=session, key=key, seen=read_decisions(path))

    return router


def _decide_in(ledger: Path, study: str, status: str, who: str, why: str) -> None:
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
    return said if said.startswith(key) else f"{said[0].upper()}{said[1:]}"


def _save_policy(path: Path, text: str, digest: str, inside: Path | None) -> None:
    """Write a policy's text to its file; PolicyError where it does not parse, or the file is another by now. What gates
    and gateways read is the old file or the new one, never a part."""
    if len(text) > MOST_TEXT:
        raise PolicyError(f"a policy has at most {MOST_TEXT:,} characters here")
    _refuse_outside(path, text, inside)
    Policy.read(path, text=text)
    save_text(path, text, digest)


def _refuse_outside(path: Path, text: str, inside: Path | None) -> None:
    """PolicyError where a policy names a file that is not in the folder."""
    if inside is None:
        return
    try:
        section = tomllib.loads(text).get("constraints", {})
    except (ValueError, RecursionError):
        return  # which is said when it is read
    named = [section.get(key) for key in ("file", "secret")] if isinstance(section, dict) else []
    for one in named:
        if isinstance(one, str) and not (path.parent / one.replace("\0", "")).resolve().is_relative_to(
            inside
        ):
            raise PolicyError(f"{one[:80]!r} is not in the folder of the console")


def _find_sharing(state: ConsoleState, key: str) -> Path:
    path = state.folder.find().sharings.get(key)
    if path is None:
        raise PageError(404, "There is no such page of a sharing in this folder.")
    return path
