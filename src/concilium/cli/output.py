"""What a command shows: results on standard output, progress and complaints on standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from concilium.errors import StudyError

Tell = Callable[[str], None]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, as `run` writes it.")]
WIDE = 240


def say(text: str = "") -> None:
    """A line for people."""
    typer.echo(text)


def warn(text: str) -> None:
    """A line that must not get lost in results that are piped onwards."""
    typer.echo(text, err=True)


def say_json(value: Any) -> None:
    """The one JSON document of a command with --json."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    # Other control characters than the line breaks of the document are in its strings, and may be written so.
    typer.echo(
        re.sub("[^ -~\n]", lambda one: one[0] if one[0].isprintable() else json.dumps(one[0])[1:-1], text)
    )


def escape_controls(text: str) -> str:
    """A line that others wrote, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def refuse_file(out: Path) -> None:
    """Results go to a folder."""
    if out.exists() and not out.is_dir():
        raise StudyError(f"{out}: is a file; --out takes a folder")


@contextmanager
def show_progress(quiet: bool) -> Iterator[Tell]:
    """A spinner with the latest thing told; nothing where nobody is watching."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(escape(text))


def say_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headings; the first column is text, the rest is aligned as numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # A pipe has no width: nothing is folded for it.
    Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDE).print(table)


def figure(number: float | None, unit: bool = False) -> str:
    """A share or a coefficient with three digits, or a number with a unit; a dash where there is none."""
    if number is not None and unit:
        from concilium.models.outcome import say_number

        return say_number(number)
    return "–" if number is None else f"{number:.3f}"


def size(number: int) -> str:
    """Bytes as people read them."""
    for unit, scale in (("MB", 1_000_000), ("kB", 1_000)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number} bytes"
