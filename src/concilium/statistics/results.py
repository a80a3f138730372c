"""What a regression says of its terms: estimates with intervals and tests, as text, HTML and CSV; forest plots."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import msgspec

from concilium.models.explanation import read_odds, say_odds
from concilium.models.pictures import COLOURS, INK, RULE, SOFT, draw_frame, element_text

ROW, NAMES, PLOT, NUMBERS, TOP = 22, 260, 300, 190, 34
LETTERS = 40
WIDEST_LINE = 105
FORMULA = re.compile(r"[=+@]|-(?![\d.]+$)")
ENDLESS = 1e5  # a ratio of which nothing is known but the direction


class TermEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One coefficient: standard errors by the model, robust to patients' variances, and clustered by hospital; with the
    interval and the p-value by the model. None where there is none."""

    term: str
    coefficient: float
    error: float | None = None
    robust: float | None = None
    clustered: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    inflation: float | None = None


class TermTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A test of all columns of a term together."""

    term: str
    kind: str
    statistic: float
    freedom: int
    p: float


class TermBetween(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a term's coefficient differs between so many `hospitals`: Cochran's Q, which `share` of the variance is no
    chance (I^2), and each hospital's own coefficient and error where the release shows them."""

    term: str
    hospitals: int
    statistic: float
    share: float
    p: float
    own: dict[str, tuple[float, float]] = {}


@dataclass(frozen=True)
class RegressionLine:
    """A row of a regression table: `ratio` is exp(coefficient), and so are its ends; None where it is a difference."""

    term: str
    coefficient: float
    error: float | None
    robust: float | None
    clustered: float | None
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    inflation: float | None


def known(value: float) -> float | None:
    """A number as a file holds it: None where there is none."""
    return float(value) if math.isfinite(value) else None


def make_lines(estimates: Sequence[TermEstimate], ratio: str) -> list[RegressionLine]:
    """The rows of a table; of ratios, with the ends of their intervals."""

    def show(value: float | None) -> float | None:
        return value if value is None or not ratio else read_odds(value)

    return [
        RegressionLine(
            one.term,
            one.coefficient,
            one.error,
            one.robust,
            one.clustered,
            show(one.coefficient) if ratio else None,
            show(one.low),
            show(one.high),
            one.p,
            one.inflation,
        )
        for one in estimates
    ]


def say_number(value: float | None) -> str:
    """Three digits, near one three decimals; or none."""
    if value is None:
        return ""
    if 0.9 < abs(value) < 1.1:
        return f"{value:.3f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def say_p(p: float | None) -> str:
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def say_interval(line: RegressionLine) -> str:
    """An estimate and its interval."""
    value = line.coefficient if line.ratio is None else line.ratio
    if line.low is None or line.high is None:
        return f"{say_number(value) if line.ratio is None else say_odds(value)} (no interval)"
    said, low, high = _say_alike(value, line.low, line.high)
    if line.ratio is not None:
        said = said if float(said.replace(",", "")) else say_odds(value)
        said, high = (
            say_odds(one) if one > ENDLESS else shown for one, shown in ((value, said), (line.high, high))
        )
    return f"{said} ({low} to {high})"


def _say_alike(value: float, low: float, high: float) -> Sequence[str]:
    """An estimate and the ends of its interval with the same decimals: as many as the interval's width is worth."""
    width = high - low
    if not (math.isfinite(width) and width > 0):
        return [say_number(value), say_number(low), say_number(high)]
    places = max(2, 1 + round(-math.log10(width))) if width < 10 else int(width < 100)
    return [f"{one:,.{places}f}" for one in (value, low, high)]


def draw_text(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns that line up, the first one flush left."""
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(size) if place == 0 else cell.rjust(size)
            for place, (cell, size) in enumerate(zip(row, width, strict=True))
        ).rstrip()
        for row in rows
    )


def fold_line(line: str) -> str:
    """A sentence beside a table, folded where a page or a terminal ends."""
    return textwrap.fill(line, WIDEST_LINE, subsequent_indent="  ", break_on_hyphens=False)


def draw_html(rows: Sequence[Sequence[str]]) -> str:
    """The same as a table of a page, the first row its head."""
    head, *body = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


def write_csv(rows: Sequence[Sequence[Any]]) -> str:
    """Rows as CSV. A cell of text that begins like a formula would be one in a spreadsheet: it is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow(
            ["" if c is None else f"'{c}" if isinstance(c, str) and FORMULA.match(c) else c for c in row]
        )
    return out.getvalue()


def draw_forest(lines: Sequence[RegressionLine], called: str) -> str:
    """Every estimate with its interval on one axis; ratios on a logarithmic one."""
    shown = [line for line in lines if line.low is not None and line.high is not None]
    logarithmic = any(line.ratio is not None for line in shown)

    def place(value: float) -> float:
        return math.log(max(value, 1e-30)) if logarithmic else value

    centre = 0.0
    ends = [place(one) for line in shown for one in (line.low or 0.0, line.high or 0.0)] or [0.0]
    reach = max(min(max(abs(end - centre) for end in ends), 1e300), 1e-9)
    if logarithmic:
        reach = min(reach, math.log(100))
    height = TOP + ROW * len(lines) + 30

    def across(value: float) -> float:
        return NAMES + PLOT * (0.5 + 0.5 * max(-1.0, min(1.0, (place(value) - centre) / reach)))

    middle = NAMES + PLOT / 2
    parts = [
        f'<line x1="{middle:g}" y1="{TOP - 8}" x2="{middle:g}" y2="{height - 26}" stroke="{RULE}"/>',
        f'<text x="0" y="18" fill="{SOFT}">{element_text(called or "difference")} (95 % CI)</text>',
    ]
    for number, line in enumerate(lines):
        y = TOP + ROW * number + 8
        name = line.term if len(line.term) <= LETTERS else f"{line.term[: LETTERS - 1]}…"
        parts.append(f'<text x="0" y="{y + 4}">{element_text(name)}</text>')
        value = line.coefficient if line.ratio is None else line.ratio
        if line.low is not None and line.high is not None:
            parts.append(
                f'<line x1="{across(line.low):.1f}" y1="{y}" x2="{across(line.high):.1f}" y2="{y}" '
                f'stroke="{COLOURS[0]}" stroke-width="2"/>'
            )
        parts.append(
            f'<rect x="{across(value) - 4:.1f}" y="{y - 4}" width="8" height="8" fill="{COLOURS[0]}"/>'
        )
        parts.append(
            f'<text x="{NAMES + PLOT + 14}" y="{y + 4}" fill="{INK}">{element_text(say_interval(line))}</text>'
        )
    low, high = (math.exp(-reach), math.exp(reach)) if logarithmic else (-reach, reach)
    for value, anchor in ((low, "start"), (1.0 if logarithmic else 0.0, "middle"), (high, "end")):
        parts.append(
            f'<text x="{across(value):.1f}" y="{height - 8}" text-anchor="{anchor}" fill="{SOFT}">'
            f"{say_number(value)}</text>"
        )
    return draw_frame(f"Forest plot: {called or 'difference'}", parts, NAMES + PLOT + NUMBERS, height, 4)
