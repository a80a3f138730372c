"""The terms of a model as rows to sort and find: rules, terms with odds ratios, steps of curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from concilium.console.sorted_table import TableCell, TableColumn, number, span
from concilium.models.explanation import say_share
from concilium.rulefit.reading import Row
from concilium.shapes.reading import ShapeRow
from concilium.statistics.results import RegressionLine
from concilium.temporal.discovery_body import FoundRule

RULE = TableColumn("rule", "Term")
ODDS = TableColumn("odds", "Odds ratio (95 %)", True)
Rows = tuple[Sequence[TableColumn], list[list[TableCell]]]


def list_terms(model: Any) -> Rows | None:
    """Columns and rows of a model that is a list of terms; None of any other."""
    found: Sequence[Any] = model.list_terms()
    if not found:
        return None
    match found[0]:
        case Row():
            return _list_rules(found)
        case FoundRule():
            return _list_found(found)
        case ShapeRow():
            return _list_steps(found)
        case RegressionLine():
            return _list_lines(found)
    return None


def _share(value: float | None) -> TableCell:
    return TableCell("–") if value is None else TableCell(say_share(value), float(value))


def _ratio(value: float | None, low: float | None, high: float | None) -> TableCell:
    return TableCell("–") if value is None else TableCell(f"{value:.3g}", float(value), note=span(low, high))


def _list_rules(rows: Sequence[Row]) -> Rows:
    adds = any(one.odds_ratio is None for one in rows)
    columns = (
        RULE,
        TableColumn("effect", "Adds (95 %)" if adds else "Odds ratio (95 %)", True),
        TableColumn("importance", "Importance", True),
        TableColumn("support", "Patients", True),
        TableColumn("in", "Inside", True),
        TableColumn("out", "Outside", True),
    )

    def rate(value: float | None) -> TableCell:
        return number(value) if adds else _share(value)

    return columns, [
        [
            TableCell(one.rule, one.rule),
            _ratio(one.odds_ratio if one.odds_ratio is not None else one.adds, one.low, one.high),
            number(one.importance, ".0f"),
            _share(one.support),
            rate(one.rate_in),
            rate(one.rate_out),
        ]
        for one in rows
    ]


def _list_found(rows: Sequence[FoundRule]) -> Rows:
    columns = (
        RULE,
        TableColumn("prevalence", "Patients with a rule of this form (95 %)", True),
        TableColumn("share", "Patients who fulfil it", True),
        ODDS,
    )
    return columns, [
        [
            TableCell(one.text, one.text),
            TableCell(
                say_share(one.prevalence), one.prevalence, note=" to ".join(map(say_share, one.interval))
            ),
            _share(one.share),
            _ratio(one.odds, *(one.odds_interval or (None, None))),
        ]
        for one in rows
    ]


def _list_steps(rows: Sequence[ShapeRow]) -> Rows:
    columns = (
        RULE,
        TableColumn("condition", "Condition"),
        ODDS,
        TableColumn("points", "Points", True),
        TableColumn("share", "Patients", True),
    )
    return columns, [
        [
            TableCell(one.term, one.term),
            TableCell(one.condition, one.condition),
            _ratio(one.odds_ratio, one.low, one.high),
            number(one.points, "d"),
            _share(one.share),
        ]
        for one in rows
    ]


def _list_lines(rows: Sequence[RegressionLine]) -> Rows:
    ratios = any(one.ratio is not None for one in rows)
    columns = (
        RULE,
        TableColumn("effect", "Ratio (95 %)" if ratios else "Adds (95 %)", True),
        TableColumn("p", "p", True),
    )
    return columns, [
        [
            TableCell(one.term, one.term),
            _ratio(one.ratio if ratios else one.coefficient, one.low, one.high),
            number(one.p),
        ]
        for one in rows
    ]
