"""`concilium columns`: what a hospital keeps of its large tables beside its ledger, whether it is in order, and how to
be rid of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concilium.cli.ledger import ShowByDefault
from concilium.cli.output import Json, say, say_json, say_table
from concilium.errors import RecordsError

if TYPE_CHECKING:
    from concilium.records.column_store import Store


class _ListColumnsByDefault(ShowByDefault):
    """`columns LEDGER` is `columns list LEDGER`."""

    default = "list"


app = typer.Typer(cls=_ListColumnsByDefault, no_args_is_help=True, rich_markup_mode=None)

Place = Annotated[
    Path, typer.Argument(metavar="LEDGER", help="The hospital's ledger, or the folder LEDGER.columns.")
]


@app.callback()
def columns() -> None:
    """A table that is too large for memory is read once, into columns on disk. `columns LEDGER` lists them.

    \b
    Example:
      concilium columns north.ledger
    """


@app.command("list", short_help="List the tables that are kept as columns.")
def _list_all(place: Place, as_json: Json = False) -> None:
    """List the tables that are kept as columns: the file each was read from, rows, columns and size on disk.

    \b
    Example:
      concilium columns list north.ledger
    """
    stores = _find(place)
    if as_json:
        say_json([{**_describe(one), "damaged": None} for one in stores])
        return
    if not stores:
        say("no table is kept as columns here")
        return
    say_table(
        ["read from", "rows", "columns", "on disk", "folder"],
        [
            [
                one.source,
                f"{one.rows:,}",
                str(len(one.manifest["columns"])),
                f"{one.bytes / 1e9:.2f} GB",
                one.folder.name,
            ]
            for one in stores
        ],
    )


@app.command("check", short_help="Read all columns, and compare them with their checksums.")
def _check(place: Place, as_json: Json = False) -> None:
    """Read every byte that is kept, and compare it with what was written.

    What is damaged is named, and the command ends with status 2. Remove it, and the site reads the table again.

    \b
    Example:
      concilium columns check north.ledger
    """
    stores = _find(place)
    damaged = {one.folder.name: one.find_damage() for one in stores}
    if as_json:
        say_json([{**_describe(one), "damaged": damaged[one.folder.name]} for one in stores])
    for folder, files in damaged.items():
        if files:
            raise RecordsError(
                f"{place}: {', '.join(files)} in {folder} are not as they were written; remove them (concilium columns "
                "remove), and the table is read again"
            )
    if not as_json:
        say(f"{len(stores)} {'table is' if len(stores) == 1 else 'tables are'} as written")


@app.command("remove", short_help="Delete all columns; they are read again when needed.")
def _remove(place: Place) -> None:
    """Delete the columns of all tables. Nothing of the ledger is lost: they are read again when the site starts. Those
    that a site has open stay.

    \b
    Example:
      concilium columns remove north.ledger
    """
    from concilium.records.column_store import remove_stores

    removed, kept = remove_stores(_locate(place))
    open_now = f"; {kept} more {'is' if kept == 1 else 'are'} open: stop the site first" if kept else ""
    say(f"{removed} {'table was' if removed == 1 else 'tables were'} removed{open_now}")


def _locate(place: Path) -> Path:
    return place if place.name.endswith(".columns") else place.with_name(f"{place.name}.columns")


def _find(place: Path) -> list[Store]:
    from concilium.records.column_store import list_stores

    return list_stores(_locate(place))


def _describe(store: Store) -> dict[str, object]:
    return {
        "digest": store.digest,
        "rows": store.rows,
        "columns": len(store.manifest["columns"]),
        "bytes": store.bytes,
        "source": store.source,
        "folder": store.folder.name,
    }
