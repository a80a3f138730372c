"""`concilium ledger`: what a hospital has released, what is left, and whether the book is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from concilium.cli.output import escape_controls, say, say_json, say_table

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
        count, head = book.verify(), book.head()
    if as_json:
        say_json({"ledger": str(file), "entries": count, "head": head.hash})
    else:
        say(f"{file}: {count} entries, unbroken; the last one is {head.hash}")


@app.command(short_help="Set a new budget, with a reason.")
def budget(
    file: File,
    amount: Annotated[
        str, typer.Argument(metavar="AMOUNT", help='The new budget, such as "3/2"; "none" for no cap.')
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is entered beside the change.")],
) -> None:
    """Set a hospital's budget anew; it is entered in the ledger with the reason, and what is spent stays spent.

    \b
    Example:
      concilium ledger budget north.ledger 3/2 --reason "approved by the data committee"
    """
    from concilium.privacy.ledger import Ledger

    with Ledger(existing(file)) as book:
        book.set_budget(None if amount == "none" else amount, reason)
        say(summarise(book))


@app.command(short_help="The hospital's table changed: bind the ledger to it.")
def rebind(
    file: File,
    records: Annotated[str, typer.Argument(metavar="RECORDS", help="The hospital's table as it is now.")],
    table: Annotated[str | None, typer.Option("--table", help="The table in a database.")] = None,
    code: Annotated[
        list[str] | None, typer.Option("--code", help="A column that is a code, not a number.")
    ] = None,
    number: Annotated[list[str] | None, typer.Option("--number", help="A column that is a number.")] = None,
) -> None:
    """Bind the ledger to the hospital's table as it is now; what is spent stays spent.

    State the same columns as the study does (--code, --number), or the digest will be another.

    \b
    Example:
      concilium ledger rebind north.ledger north.csv --code race
    """
    from concilium.privacy.ledger import Ledger
    from concilium.records.table import Records

    path = existing(file)
    schema = dict.fromkeys(code or (), "code") | dict.fromkeys(number or (), "number")
    digest = Records.read(records, table=table, schema=schema).digest
    with Ledger(path) as book:
        book.rebind(digest)
    say(f"{file}: bound to {records} (digest {digest[:12]}…); what is spent stays spent")


def existing(file: Path) -> Path:
    """The file, which must be there: changing a ledger never makes one."""
    from concilium.errors import LedgerError

    if not file.exists():
        raise LedgerError(f"there is no ledger {file}; check the path")
    return file


def list_entry(entry: Entry) -> list[str]:
    """An entry as a line of the table."""
    from concilium.privacy.accounting import shown

    is_release = entry.mode != "settings"
    cells = [
        str(entry.sequence),
        f"{entry.time:%Y-%m-%d %H:%M}",
        entry.study if len(entry.study) <= 8 else entry.study[:7] + "…",
        entry.kind if is_release else f"{entry.kind}: {entry.note}",
        entry.mode,
        ("unlimited" if is_release else "–") if entry.cost is None else shown(entry.cost),
        str(entry.numbers) if is_release else "–",
    ]
    return [
        escape_controls(cell) for cell in cells
    ]  # an older version took whatever name a house gave its study


def summarise(book: Ledger) -> str:
    """What was released, what is spent and what is left, in sentences."""
    from concilium.privacy.accounting import epsilon_from_rho, say_epsilon, shown

    releases = [entry for entry in book.entries() if entry.mode != "settings"]
    refusals = len(book.refusals())
    lines = [f"{len(releases)} releases, {refusals} refusals"]
    open_ended = sum(entry.numbers for entry in releases if entry.cost is None)
    if open_ended:
        lines.append(f"{open_ended} numbers left without a bound on what they tell (epsilon = unlimited)")
    spent, remainder = book.spent(), book.remaining()
    balance = f"{book.currency} = {shown(spent)} is spent"
    if book.currency == "rho" and spent:
        epsilon = say_epsilon(epsilon_from_rho(spent, book.delta), digits=4)
        balance += f" (epsilon = {epsilon} at delta = {shown(book.delta)})"
    lines.append(balance + ("; no budget is set" if remainder is None else f"; {shown(remainder)} is left"))
    return "\n".join(map(escape_controls, lines))


def as_plain(book: Ledger) -> dict[str, Any]:
    """The whole ledger as JSON values; exact numbers stay exact, as text."""
    remainder = book.remaining()
    return {
        "ledger": book.path,
        "site": book.settings.site,
        "currency": book.currency,
        "delta": str(book.delta),
        "spent": str(book.spent()),
        "left": None if remainder is None else str(remainder),
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
