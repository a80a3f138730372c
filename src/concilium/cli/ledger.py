"""`concilium ledger`: what a hospital has released, what is left, and whether the book is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from concilium.cli.output import say, say_json, say_table

if TYPE_CHECKING:
    from concilium.privacy.ledger import Entry, Ledger


class ShowByDefault(TyperGroup):
    """`ledger FILE` is `ledger show FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=ShowByDefault, no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A hospital's ledger file.", show_default=False)]


@app.callback()
def ledger() -> None:
    """What a hospital has released, and what is left. `ledger FILE` is short for `ledger show FILE`.

    \b
    Example:
      concilium ledger north.ledger
    """


@app.command(short_help="List every release, what is spent and what is left.")
def show(file: File, as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """List every release with its cost, then what is spent and what is left.

    \b
    Example:
      concilium ledger show north.ledger --json
    """
    from concilium.privacy.ledger import Ledger

    with Ledger.open_readonly(file) as book:
        if as_json:
            say_json(as_plain(book))
            return
        entries = book.entries()
        if entries:
            say_table(
                ["#", "time", "study", "kind", "release", "cost", "numbers"],
                [list_entry(entry) for entry in entries],
            )
        say(summarise(book))


@app.command(short_help="Check that no entry was changed or removed.")
def verify(
    file: File, as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False
) -> None:
    """Check that no entry was changed, removed or put in between (exit code 2 if one was).

    \b
    Example:
      concilium ledger verify north.ledger
    """
    from concilium.privacy.ledger import Ledger

    with Ledger.open_readonly(file) as book:
        checked, head = book.verify(), book.head()
    if as_json:
        say_json({"ledger": str(file), "entries": checked, "head": head.hash})
    else:
        say(f"{file}: {checked} entries, unbroken; the last one is {head.hash}")


def list_entry(entry: Entry) -> list[str]:
    """An entry as a line of the table."""
    from concilium.privacy.accounting import shown

    released = entry.mode != "settings"
    return [
        str(entry.sequence),
        f"{entry.time:%Y-%m-%d %H:%M}",
        entry.study if len(entry.study) <= 8 else entry.study[:7] + "…",
        entry.kind if released else f"{entry.kind}: {entry.note}",
        entry.mode,
        ("unlimited" if released else "–") if entry.cost is None else shown(entry.cost),
        str(entry.numbers) if released else "–",
    ]


def summarise(book: Ledger) -> str:
    """What was released, what is spent and what is left, in sentences."""
    from concilium.privacy.accounting import epsilon_from_rho, shown

    releases = [entry for entry in book.entries() if entry.mode != "settings"]
    refusals = len(book.refusals())
    lines = [f"{len(releases)} releases, {refusals} refusals"]
    open_ended = sum(entry.numbers for entry in releases if entry.cost is None)
    if open_ended:
        lines.append(f"{open_ended} numbers left without a bound on what they tell (epsilon = unlimited)")
    spent, left = book.spent(), book.remaining()
    balance = f"{book.currency} = {shown(spent)} is spent"
    if book.currency == "rho" and spent:
        balance += f" (epsilon = {epsilon_from_rho(spent, book.delta):.4g} at delta = {shown(book.delta)})"
    lines.append(balance + ("; no budget is set" if left is None else f"; {shown(left)} is left"))
    return "\n".join(lines)


def as_plain(book: Ledger) -> dict[str, Any]:
    """The whole ledger as JSON values; exact numbers stay exact, as text."""
    left = book.remaining()
    return {
        "ledger": book.path,
        "site": book.settings.site,
        "currency": book.currency,
        "delta": str(book.delta),
        "spent": str(book.spent()),
        "left": None if left is None else str(left),
        "entries": [
            {
                "sequence": entry.sequence,
                "time": entry.time.isoformat(),
                "study": entry.study,
                "question": entry.question,
                "digest": entry.digest,
                "kind": entry.kind,
                "release": entry.mode,
                "cost": None if entry.cost is None else str(entry.cost),
                "numbers": entry.numbers,
                "note": entry.note,
                "hash": entry.hash,
            }
            for entry in book.entries()
        ],
        "refusals": [
            {
                "time": r.time.isoformat(),
                "study": r.study,
                "kind": r.kind,
                "question": r.question,
                "rule": r.rule,
            }
            for r in book.refusals()
        ],
    }
