"""Results for whoever may read them: all runs side by side, methods side by side, a model's terms to sort and find."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from concilium.console.results_folder import FoundModel, read_figures
from concilium.console.sorted_table import TableCell, TableColumn, arrange, number, span
from concilium.console.web import PageError, State, Viewer, describe_method, find_model, open_model, render

COLUMNS = (
    TableColumn("study", "Study"),
    TableColumn("method", "Method"),
    TableColumn("release", "Release"),
    TableColumn("patients", "Held-out patients", True),
    TableColumn("auc", "AUC (95 %)", True),
    TableColumn("sensitivity", "Sensitivity", True),
    TableColumn("specificity", "Specificity", True),
    TableColumn("rmse", "RMSE", True),
    TableColumn("epsilon", "Epsilon", True),
    TableColumn("alarms", "Alarms", True),
    TableColumn("date", "Learned on", True),
)


def make_router() -> APIRouter:
    router = APIRouter()

    @router.get("/compare")
    def compare(request: Request, state: State, session: Viewer) -> Response:
        found = state.folder.find()
        table = arrange(COLUMNS, map(_list_figures, found.models.values()), request.query_params)
        shown = [
            place
            for place in range(len(COLUMNS))
            if place == 0 or any(row[place].text not in ("–", "") for row in table.rows)
        ]
        several = [(key, read_figures(folder)) for key, folder in found.comparisons.items()]
        return render(request, "compare", session=session, table=table, shown=shown, several=several)

    @router.get("/terms/{key:path}")
    def show_terms(request: Request, state: State, session: Viewer, key: str) -> Response:
        from concilium.console.rule_table import list_terms  # which loads what learns

        found = find_model(state, key)
        listed = list_terms(open_model(state, found))
        if listed is None:
            raise PageError(404, "This model is no list of terms.")
        state.trail.enter(session.user, "open terms", key)
        table = arrange(*listed, request.query_params)
        return render(
            request, "terms", session=session, found=found, table=table, shown=range(len(table.columns))
        )

    return router


def _list_figures(found: FoundModel) -> list[TableCell]:
    """A run's figures in one line."""
    figures = read_figures(found)
    intervals: dict[str, Any] = (figures.get("overall") or {}).get("intervals") or {}

    def figure(name: str) -> TableCell:
        value = figures.get(name)
        if not isinstance(value, int | float):
            return TableCell("–")
        low, high = intervals.get(name) or (None, None)
        return TableCell(f"{value:.3f}", float(value), note=span(low, high, ".3f"))

    epsilon = figures.get("epsilon")
    alarms = len(found.alarms)
    return [
        TableCell(found.title, found.title, f"/models/{quote(found.key)}"),
        TableCell(found.method, describe_method(found.method)),
        TableCell(found.release, found.release),
        number(figures["patients"], ",d") if figures.get("patients") else TableCell("–"),
        *map(figure, ("auc", "sensitivity", "specificity", "rmse")),
        TableCell(f"{epsilon:g}", epsilon) if isinstance(epsilon, int | float) else TableCell("–"),
        TableCell(str(alarms) if alarms else "none", alarms, is_alarm=bool(alarms)),
        TableCell(found.date or "–", found.date or None),
    ]
