"""Pictures as SVG text, drawn without a library for reports that must stand alone: nothing is fetched, nothing runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape

# Distinct to people who do not tell red from green, and dark enough to print (after Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#5c6670")
INK, SOFT, RULE = "#1d2733", "#5a6776", "#aab4bf"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"
SMALL = 12
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Picture(str):
    """An SVG picture as text, which notebooks draw."""

    __slots__ = ()

    def __repr__(self) -> str:
        title = re.search("<title>(.*?)</title>", self)
        return f"<SVG picture: {title[1] if title else 'no title'}; print() shows its text>"

    def _repr_svg_(self) -> str:
        return str(self)


def draw_frame(title: str, parts: Sequence[str], width: float, height: float, margin: int = 0) -> Picture:
    """A picture of this size; `margin` is what it leaves free at the left and above."""
    lines = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-margin} {-margin} {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" font-family="{FONT}" font-size="{SMALL}" fill="{INK}">',
            f"<title>{element_text(title)}</title>",
            *parts,
            "</svg>",
            "",
        ]
    )
    return Picture(lines)


def printable(text: str) -> str:
    """Text without the characters that no XML document can hold."""
    return UNPRINTABLE.sub("\ufffd", text)


def element_text(text: str) -> str:
    """Text between tags."""
    return escape(printable(text))


def draw(tag: str, content: str = "", /, **attributes: str | float) -> str:
    """An element with text between its tags; `stroke_width` is stroke-width, numbers have two decimals at most, and
    `title` is what a pointer shows."""
    title = attributes.pop("title", "")
    inside = element_text(content) + (f"<title>{element_text(str(title))}</title>" if title else "")
    written = "".join(
        f' {name.replace("_", "-")}="{value if isinstance(value, str) else f"{round(value, 2):.10g}"}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>"
