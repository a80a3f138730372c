"""What a check found of a hospital's table as one page of HTML, with a picture of every column. It is for the hospital
alone: it shows how many patients have what."""

from __future__ import annotations

from collections.abc import Sequence

import markupsafe

from concilium.consult.report import make_environment
from concilium.consult.table_check import ColumnCheck, TableCheck
from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text

WIDTH, TALL, BAR = 320, 60, 16
NAMES = 120
PLAUSIBLE = "#e3f1ea"


def render_check(checks: Sequence[TableCheck], title: str) -> str:
    """The page of some tables' checks."""
    tables = [
        {
            "check": check,
            "columns": [
                {
                    "column": column,
                    "findings": check.about(column.name),
                    "picture": markupsafe.Markup(draw_column(column)) if column.bars else "",
                }
                for column in check.columns
            ],
        }
        for check in checks
    ]
    return make_environment().get_template("check_page.html.jinja").render(title=title, tables=tables)


def draw_column(column: ColumnCheck) -> str:
    """How many patients have what: a histogram of a number, its plausible range behind it, or a bar for each value."""
    return draw_numbers(column, *column.ends) if column.ends is not None else draw_values(column)


def draw_numbers(column: ColumnCheck, low: float, high: float) -> str:
    most = max(count for _, count in column.bars)
    first, last = (low, high) if low < high else (low - 0.5, high + 0.5)
    begin, end = first, last
    plausible = None if column.entry is None else column.entry.range
    if plausible is not None:
        begin, end = min(first, plausible[0]), max(last, plausible[1])

    def place(value: float) -> float:
        return WIDTH * (value - begin) / (end - begin)

    parts = []
    if plausible is not None:
        x, width = place(plausible[0]), place(plausible[1]) - place(plausible[0])
        parts.append(f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="{TALL}" fill="{PLAUSIBLE}"/>')
    step = (last - first) / len(column.bars)
    for number, (_, count) in enumerate(column.bars):
        x = place(first + number * step)
        height = TALL * count / most
        wide = max(place(first + step) - place(first) - 1, 1.5)
        parts.append(
            f'<rect x="{x:.1f}" y="{TALL - height:.1f}" width="{wide:.1f}" height="{height:.1f}" fill="{COLOURS[0]}">'
            f"<title>{count:,} patients</title></rect>"
        )
    parts.append(f'<line x1="0" y1="{TALL}" x2="{WIDTH}" y2="{TALL}" stroke="{RULE}"/>')
    for value, anchor in ((begin, "start"), (end, "end")):
        x = place(value)
        parts.append(
            f'<text x="{x:.1f}" y="{TALL + 14}" text-anchor="{anchor}" fill="{SOFT}">{value:.4g}</text>'
        )
    return draw_frame(f"Patients by {column.name}", parts, WIDTH, TALL + 18)


def draw_values(column: ColumnCheck) -> str:
    most = max(count for _, count in column.bars)
    listed = {} if column.entry is None else column.entry.values
    parts = []
    for number, (name, count) in enumerate(column.bars):
        y = number * BAR
        width = max((WIDTH - NAMES - 50) * count / most, 1)
        colour = COLOURS[1] if listed and name not in listed else COLOURS[0]
        text = name if len(name) <= 16 else name[:15] + "…"
        parts.append(f'<text x="{NAMES - 6}" y="{y + 12}" text-anchor="end">{element_text(text)}</text>')
        parts.append(
            f'<rect x="{NAMES}" y="{y + 2}" width="{width:.1f}" height="{BAR - 4}" fill="{colour}"/>'
        )
        parts.append(f'<text x="{NAMES + width + 5:.1f}" y="{y + 12}" fill="{SOFT}">{count:,}</text>')
    return draw_frame(f"Patients by {column.name}", parts, WIDTH, len(column.bars) * BAR + 4)
