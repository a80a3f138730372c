"""The console's pages: who may open which, and what they show. Routes are thin; what they do is in functions beside.

Nothing that a patient is described by is ever in an address: it is posted, answered, and kept nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

import jinja2
import markupsafe
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from concilium.console.access import Access, AccessError, ConsoleSession
from concilium.console.audit_trail import AuditTrail
from concilium.console.guard import REPORT_POLICY
from concilium.console.openid import CALLBACK
from concilium.console.patient_answer import PatientAnswer, answer_patient, walk_tree
from concilium.console.patient_form import FilledForm, FormField, list_fields, read_form
from concilium.console.results_folder import (
    REPORT,
    FoundModel,
    ResultsFolder,
    find_download,
    list_downloads,
    read_figures,
)
from concilium.consult.report import make_environment
from concilium.errors import ConciliumError
from concilium.models.model_file import name_by_content
from concilium.models.recalibrated import AdaptedModel
from concilium.registry import METHODS, load
from concilium.trees.body import TreeBody

HERE = Path(__file__).parent
STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
MOST_FIELDS = 2000
COOKIE, SECURE_COOKIE, OPENID_COOKIE = "concilium", "__Host-concilium", "concilium-openid"
BEFORE = "before."
NavPage = tuple[str, str, tuple[str, ...]]
"""Address, name and roles of a page beside the list of models."""


class PageError(ConciliumError):
    """What a page says instead, with its status."""

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        super().__init__(sentence)


@dataclass(frozen=True)
class ConsoleState:
    """What all pages share."""

    folder: ResultsFolder
    access: Access
    trail: AuditTrail
    secure: bool = False
    behind_proxy: bool = False

    @property
    def cookie(self) -> str:
        return SECURE_COOKIE if self.secure else COOKIE


@cache
def _make_pages() -> jinja2.Environment:
    """The console's templates, which write numbers as reports do."""
    environment = make_environment().overlay(loader=jinja2.FileSystemLoader(HERE / "pages"))
    environment.filters["key"] = lambda key: quote(key, safe="/")
    environment.filters["picture"] = markupsafe.Markup
    return environment


def render(
    request: Request,
    template: str,
    *,
    status: int = 200,
    session: ConsoleSession | None = None,
    **content: Any,
) -> HTMLResponse:
    """A page in its frame, for who is logged in."""
    state: ConsoleState = request.app.state.console
    text = (
        _make_pages()
        .get_template(f"{template}.html.jinja")
        .render(
            session=session,
            has_users=state.access.has_users,
            openid=state.access.openid,
            here=request.url.path,
            more_pages=request.app.state.pages,
            **content,
        )
    )
    return HTMLResponse(text, status)


def _find_state(request: Request) -> ConsoleState:
    state: ConsoleState = request.app.state.console
    return state


def _find_session(request: Request) -> ConsoleSession | None:
    state = _find_state(request)
    return state.access.find_session(request.cookies.get(state.cookie, ""))


def require(*roles: str) -> Callable[[Request], ConsoleSession]:
    """Who is logged in, with one of these roles; without roles, anybody who is."""

    def check(request: Request) -> ConsoleSession:
        session = _find_session(request)
        if session is None:
            raise PageError(401, "You are not logged in, or your session has ended.")
        if roles and not session.may(*roles):
            raise PageError(403, f"This page is for the role {' or '.join(roles)}, which you do not have.")
        return session

    return check


async def _read_fields(request: Request) -> dict[str, str]:
    """The fields of a form that a page of this session sent; PageError where it is no such form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise PageError(415, "This is not a form of the console.")
    body = await request.body()
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS
        )
    except ValueError:
        raise PageError(400, "This form cannot be read.") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise PageError(400, "A field of this form is there twice.")
    session = _find_session(request)
    if session is not None and not session.owns(fields.get("csrf", "")):
        raise PageError(403, "This form is not from a page of your session. Open the page again.")
    return fields


Fields = Annotated[dict[str, str], Depends(_read_fields)]
Viewer = Annotated[ConsoleSession, Depends(require())]
Clinician = Annotated[ConsoleSession, Depends(require("clinician"))]
State = Annotated[ConsoleState, Depends(_find_state)]


def find_model(state: ConsoleState, key: str) -> FoundModel:
    """The model of a key, or the one that has this content (`name_by_content`), as cards of an EHR call it."""
    models = state.folder.find().models
    found = models.get(key)
    if found is None and key.startswith("sha256-"):
        found = next((one for one in models.values() if name_by_content(one.path) == key), None)
    if found is None:
        raise PageError(404, "There is no such model in this folder.")
    return found


def open_model(state: ConsoleState, found: FoundModel) -> Any:
    """The model of a folder of results; PageError where its file is of another version."""
    try:
        return state.folder.open_model(found)
    except ConciliumError as error:
        said = str(error).replace(str(found.path), f"{found.key}/model.json")
        raise PageError(422, f"This model cannot be opened: {said}") from None


def make_app(
    state: ConsoleState, routers: Sequence[APIRouter] = (), pages: Sequence[NavPage] = ()
) -> FastAPI:
    """The pages as an application, with those of other roles; `serving.py` puts the guard before it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.console, app.state.pages = state, list(pages)
    app.add_exception_handler(ConciliumError, _show_error)
    app.add_exception_handler(HTTPException, _show_error)
    app.add_exception_handler(RequestValidationError, _show_error)
    app.add_exception_handler(Exception, _show_failure)
    app.get("/static/{name}")(_show_static)
    app.get("/login")(_show_login)
    app.post("/login")(_log_in)
    app.get("/login/openid")(_begin_openid)
    app.get(CALLBACK)(_finish_openid)
    app.post("/logout")(_log_out)
    app.get("/")(_show_models)
    app.get("/report/{key:path}")(_show_report)
    app.get("/file/{name}/{key:path}")(download)
    app.post("/answer/{key:path}")(answer)
    app.get("/models/{key:path}")(_show_model)
    for router in routers:
        app.include_router(router)
    return app


def _show_error(request: Request, error: Exception) -> Response:
    """An error as a sentence on a page; who is not logged in gets to the log-in from a page."""
    status = error.status if isinstance(error, PageError) else getattr(error, "status_code", 422)
    if status == 401 and request.method == "GET":
        return RedirectResponse("/login", 303)
    said = {404: "There is no such page.", 405: "This page takes no such request."}.get(status, "")
    sentence = str(error) if isinstance(error, ConciliumError) else said or "This request cannot be read."
    return render(request, "error", status=status, session=_find_session(request), sentence=sentence)


def _show_failure(request: Request, error: Exception) -> Response:
    """An unforeseen error, of which nothing is told; the guard logs its kind and its line."""
    sentence = (
        "The console could not do this. Its log has the line of code. Nothing of your request was kept."
    )
    return render(request, "error", status=500, session=_find_session(request), sentence=sentence)


def _show_static(name: str) -> Response:
    if name not in STATIC:
        raise PageError(404, "There is no such file.")
    return Response(
        _read_static(name), media_type=STATIC[name], headers={"cache-control": "public, max-age=300"}
    )


@cache
def _read_static(name: str) -> str:
    """A file of ours; the style begins with that of reports."""
    text = (HERE / "static" / name).read_text(encoding="utf-8")
    if name.endswith(".css"):
        return (HERE.parent / "consult" / "report.css").read_text(encoding="utf-8") + text
    return text


def _find_peer(request: Request, state: ConsoleState) -> str:
    """Where a request comes from; behind a proxy, as that says last."""
    forwarded = request.headers.get("x-forwarded-for", "") if state.behind_proxy else ""
    return forwarded.rpartition(",")[2].strip()[:64] or (request.client.host if request.client else "")


def _show_login(request: Request, state: State, token: str = "") -> Response:
    if token:
        try:
            cookie = state.access.open_by_token(token)
        except AccessError as error:
            state.trail.enter("", "log in", outcome="refused")
            return render(request, "login", status=403, problem=str(error), asks=False)
        state.trail.enter("one person", "log in", outcome="opened by the token")
        return _set_cookie(RedirectResponse("/", 303), state, cookie)
    if _find_session(request) is not None:
        return RedirectResponse("/", 303)
    if state.access.openid is not None:
        return render(request, "login", problem="", asks=state.access.users is not None)
    asks = state.access.has_users
    problem = "" if asks else "Open the address that the terminal shows: it has a token that opens once."
    return render(request, "login", status=200 if asks else 401, problem=problem, asks=asks)


def _begin_openid(request: Request, state: State) -> Response:
    """On to the provider, with a cookie by which this browser is known when it is back."""
    if state.access.openid is None:
        raise PageError(404, "This console has no other place to log in.")
    try:
        place, browser = state.access.openid.begin()
    except AccessError as error:
        return render(request, "login", status=503, problem=str(error), asks=state.access.users is not None)
    response = RedirectResponse(place, 303)
    # Lax: it must come with the browser from the provider's page. The session's own cookie does not.
    response.set_cookie(
        OPENID_COOKIE, browser, max_age=600, httponly=True, samesite="lax", secure=state.secure, path=CALLBACK
    )
    return response


def _finish_openid(request: Request, state: State) -> Response:
    """Back from the provider. A page of our own leads on, since a strict cookie does not come with a redirect of
    somebody else's."""
    given = request.query_params
    try:
        cookie, name = state.access.come_back(
            given.get("state", ""),
            given.get("code", ""),
            request.cookies.get(OPENID_COOKIE, ""),
            _find_peer(request, state),
        )
    except AccessError as error:
        state.trail.enter("", "log in", outcome="refused")
        status = 429 if "Too many" in str(error) else 403
        return render(
            request, "login", status=status, problem=str(error), asks=state.access.users is not None
        )
    state.trail.enter(name, "log in", outcome="opened by the provider")
    response = _set_cookie(render(request, "logged_in"), state, cookie)
    response.delete_cookie(OPENID_COOKIE, path=CALLBACK, secure=state.secure, httponly=True, samesite="lax")
    return response


def _log_in(request: Request, state: State, fields: Fields) -> Response:
    # A page elsewhere could log somebody in as somebody else; browsers say where a form comes from.
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise PageError(403, "This form is not from a page of the console.")
    name = fields.get("name", "")
    try:
        cookie = state.access.log_in(name, fields.get("password", ""), _find_peer(request, state))
    except AccessError as error:
        state.trail.enter("", "log in", outcome="refused")
        status = 429 if "Too many" in str(error) else 403
        return render(request, "login", status=status, problem=str(error), asks=True)
    state.trail.enter(name.strip(), "log in", outcome="opened")
    return _set_cookie(RedirectResponse("/", 303), state, cookie)


def _set_cookie(response: Response, state: ConsoleState, cookie: str) -> Response:
    response.set_cookie(state.cookie, cookie, httponly=True, samesite="strict", secure=state.secure, path="/")
    return response


def _log_out(request: Request, state: State, session: Viewer, fields: Fields) -> Response:
    state.access.end(request.cookies.get(state.cookie, ""))
    state.trail.enter(session.user, "log out")
    response = RedirectResponse("/login", 303)
    response.delete_cookie(state.cookie, path="/", secure=state.secure, httponly=True, samesite="strict")
    return response


def describe_method(name: str) -> str:
    """A method in words; its name where this version does not have it."""
    return str(load(METHODS[name]).description) if name in METHODS else name


def _show_models(request: Request, state: State, session: Viewer) -> Response:
    found = state.folder.find()
    return render(
        request,
        "models",
        session=session,
        models=list(found.models.values()),
        describe=describe_method,
        folder=state.folder.path.name,
    )


def _show_model(request: Request, state: State, session: Viewer, key: str) -> Response:
    found = find_model(state, key)
    model = open_model(state, found)
    state.trail.enter(session.user, "open model", found.key)
    may_ask = session.may("clinician")
    return _render_model(request, state, session, found, model, _empty(), may_ask=may_ask)


def _empty() -> FilledForm:
    return FilledForm({}, frozenset(), {}, {})


def _find_fields(model: Any) -> tuple[tuple[FormField, ...], str]:
    """The form of a model, or why there is none."""
    try:
        why = model.find_why_silent()
        fields = () if why else list_fields(model)
    except (ConciliumError, AttributeError, NotImplementedError):
        return (), "it describes patients together, and has no answer about one"
    if not fields and not why:
        why = "it asks nothing about a patient"
    return fields, why or ""


def _render_model(
    request: Request,
    state: ConsoleState,
    session: ConsoleSession,
    found: FoundModel,
    model: Any,
    filled: FilledForm,
    *,
    status: int = 200,
    may_ask: bool = True,
    answered: PatientAnswer | None = None,
    before: tuple[FilledForm, PatientAnswer] | None = None,
    problem: str = "",
    requester: str = "",
) -> Response:
    form, silent = _find_fields(model)
    tree = walk_tree(model) if isinstance(model.body, TreeBody) else None
    pictures = {} if tree is not None else model.pictures()
    first = filled if before is None else before[0]
    return render(
        request,
        "model",
        status=status,
        session=session,
        found=found,
        model=model,
        form=form,
        filled=filled,
        silent=silent,
        may_ask=may_ask,
        answer=answered,
        first=first,
        before=None if before is None else before[1],
        changed=_list_changes(form, first, filled),
        problem=problem,
        asks_name=not state.access.has_users and bool(getattr(model, "requesters", None)),
        requester=requester,
        tree=tree,
        pictures=pictures,
        about=_describe_model(found, model),
        has_report=(found.folder / REPORT).is_file(),
        performance=_list_performance(found),
        subgroups=read_figures(found).get("subgroups") or {},
        has_terms=bool(model.list_terms()),
        downloads=list_downloads(found),
    )


PERFORMANCE = {
    "auc": "AUC",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "rmse": "RMSE",
    "mae": "Mean abs. error",
    "r2": "R²",
}


def _list_performance(found: FoundModel) -> list[tuple[str, str, str]]:
    """A model's main figures, each with its 95 % interval."""
    figures = read_figures(found)
    intervals = (figures.get("overall") or {}).get("intervals") or {}
    return [
        (
            name,
            f"{figures[key]:.3f}",
            " to ".join(f"{end:.3f}" for end in intervals.get(key) or () if isinstance(end, int | float)),
        )
        for key, name in PERFORMANCE.items()
        if isinstance(figures.get(key), int | float)
    ]


def _list_changes(
    form: tuple[FormField, ...], first: FilledForm, now: FilledForm
) -> list[tuple[str, str, str]]:
    """What differs between two filled forms: the attribute, and both values as they were entered."""
    return [
        (
            field.title,
            field.mean(first.say(field.name)) or "not entered",
            field.mean(now.say(field.name)) or "not entered",
        )
        for field in form
        if first.say(field.name) != now.say(field.name)
    ]


def _name_target(model: Any) -> str:
    """What is predicted, by its label and its name."""
    entry = model.card.dictionary.get(model.target)
    named = entry.label if entry is not None else ""
    return str(model.target) if named in ("", model.target) else f"{named} ({model.target})"


def _describe_model(found: FoundModel, model: Any) -> list[tuple[str, str]]:
    """What a reader must know of a model before believing it, as label and text."""
    card, figures = model.card, read_figures(found)
    rows = [
        ("About" if card.method == "describe" else "Predicts", _name_target(model)),
        ("Method", describe_method(card.method)),
        ("Patients", model.query or "everyone"),
        ("Hospitals", ", ".join(site.name for site in card.sites)),
        ("Released as", card.meaning),
    ]
    counted = [site.patients for site in card.sites if site.patients is not None]
    if counted:
        rows.insert(3, ("Learned from", f"{sum(counted):,} patients"))
    if isinstance(figures.get("auc"), int | float):
        interval = ((figures.get("overall") or {}).get("intervals") or {}).get("auc")
        said = f" (95 % interval {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
        rows.append(("AUC on held-out patients", f"{figures['auc']:.2f}{said}"))
    if card.date:
        rows.append(("Learned on", card.date))
    if isinstance(model, AdaptedModel):
        rows.append(("Adapted", "to one hospital's own patients"))
    return rows


def answer(request: Request, state: State, session: Clinician, key: str, fields: Fields) -> Response:
    """Answer about a patient; with what was entered before, also how that answer differs."""
    found = find_model(state, key)
    model = open_model(state, found)
    form, silent = _find_fields(model)
    if silent:
        raise PageError(422, f"This model says nothing of a single patient: {silent}.")
    filled = read_form(form, {name: text for name, text in fields.items() if not name.startswith(BEFORE)})
    anyway = "anyway" in fields
    # Who is logged in is asked for no other name.
    requester = session.user if state.access.has_users else fields.get("requester", "")
    if filled.problems:
        state.trail.enter(session.user, "answer", key, "not read")
        return _render_model(request, state, session, found, model, filled, status=422)
    try:
        answered = answer_patient(model, filled.patient, anyway=anyway, requester=requester)
        before = _answer_before(model, form, fields, requester, anyway)
    except ConciliumError as error:
        state.trail.enter(session.user, "answer", key, "refused")
        return _render_model(
            request, state, session, found, model, filled, status=422, problem=str(error), requester=requester
        )
    outcome = "outside of the model's patients" if answered.is_refused else "answered"
    state.trail.enter(session.user, "answer", key, outcome)
    return _render_model(
        request, state, session, found, model, filled, answered=answered, before=before, requester=requester
    )


def _answer_before(
    model: Any, form: tuple[FormField, ...], fields: Mapping[str, str], requester: str, anyway: bool
) -> tuple[FilledForm, PatientAnswer] | None:
    """The answer to what was entered first, where the form brings that."""
    earlier = {name[len(BEFORE) :]: text for name, text in fields.items() if name.startswith(BEFORE)}
    if not earlier:
        return None
    filled = read_form(form, earlier)
    if filled.problems:
        return None
    return filled, answer_patient(model, filled.patient, anyway=anyway, requester=requester)


def _show_report(request: Request, state: State, session: Viewer, key: str) -> Response:
    # A report of several methods leads to theirs by the names of their folders.
    key = key.removesuffix(f"/{REPORT}").rstrip("/")
    found = state.folder.find()
    folder = found.models[key].folder if key in found.models else found.comparisons.get(key)
    if folder is None or not (folder / REPORT).is_file():
        raise PageError(404, "There is no such report in this folder.")
    state.trail.enter(session.user, "open report", key)
    return _show_file(folder / REPORT)


def _show_file(path: Path) -> Response:
    """A page that stands alone, trusted with nothing but its own style."""
    return FileResponse(path, media_type="text/html", headers={"content-security-policy": REPORT_POLICY})


def download(request: Request, state: State, session: Viewer, key: str, name: str) -> Response:
    found = find_model(state, key)
    try:
        path = find_download(found, name)
    except ConciliumError as error:
        raise PageError(404, f"{str(error)[0].upper()}{str(error)[1:]}.") from None
    state.trail.enter(session.user, f"download {name}", key)
    stem = re.sub(r"[^\w-]+", "-", found.key, flags=re.ASCII)
    return FileResponse(
        path,
        filename=f"{stem}-{name}",
        headers={"content-security-policy": REPORT_POLICY},
    )
