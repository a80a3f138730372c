"""`concilium ledger`: what a hospital has released, what is left, and whether the book is whole."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from concilium.cli.output import Json, escape_controls, say, say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from concilium.consult.consent import StudyOverview
    from concilium.ledger.budgets import Balance
    from concilium.ledger.chain import Entry
    from concilium.ledger.ledger import Ledger


IDS = 64  # characters of a study's id: what is shorter is a name


class ShowByDefault(TyperGroup):
    """`ledger FILE` is `ledger show FILE`."""

    default = "show"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=ShowByDefault, no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A hospital's ledger file.")]


@app.callback()
def ledger() -> None:
    """What a hospital has released, and what is left. `ledger FILE` is short for `ledger show FILE`.

    \b
    Example:
      concilium ledger north.ledger
    """


@app.command(short_help="List every release, what is spent and what is left.")
def show(file: File, as_json: Json = False) -> None:
    """List every release with its cost, then what is spent and what is left.

    \b
    Example:
      concilium ledger show north.ledger --json
    """
    from concilium.ledger.head import name_site
    from concilium.ledger.ledger import Ledger

    with Ledger.open_readonly(file) as book:
        if as_json:
            say_json(_as_plain(book))
            return
        entries, studies, balance = book.entries(), _know_studies(book), book.balance()
        if book.settings.site is not None:
            say(escape_controls(f"{file}: the ledger of {name_site(book.settings.site)}"))
        if studies:
            say_table(
                ["study", "asks", "of", "house", "id"],
                [
                    [escape_controls(cell) for cell in (s.name, s.asks, s.query, s.asked_by, s.short_id)]
                    for s in studies.values()
                ],
            )
        if entries:
            say_table(
                ["#", "time", "study", "kind", "release", "price", "numbers", "id"],
                [_list_entry(entry, studies, balance) for entry in entries],
            )
        say(_summarise(book))


@app.command(short_help="Check that no entry was changed or removed.")
def verify(file: File, as_json: Json = False) -> None:
    """Check that no entry was changed, removed or put in between (exit code 2 if one was).

    \b
    Example:
      concilium ledger verify north.ledger
    """
    from concilium.ledger.ledger import Ledger

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
        str, typer.Argument(metavar="AMOUNT", help='The new budget, such as "3/2"; "unlimited" for no cap.')
    ],
    reason: Annotated[str, typer.Option(help="Why; it is entered beside the change.")],
) -> None:
    """Set a hospital's budget anew; it is entered in the ledger with the reason, and what is spent stays spent.

    \b
    Example:
      concilium ledger budget north.ledger 3/2 --reason "approved by the data committee"
    """
    from concilium.ledger.ledger import Ledger

    with Ledger(existing(file)) as book:
        book.set_budget(None if amount in ("unlimited", "none") else amount, reason)
        say(_summarise(book))


@app.command(short_help="Let a house's refusals of this month no longer count.")
def forgive(
    file: File,
    reason: Annotated[str, typer.Option(help="Why; it is entered in the ledger.")],
    house: Annotated[
        str,
        typer.Option(
            metavar="FINGERPRINT", help="A house that the policy lists; without it, those that are not."
        ),
    ] = "",
) -> None:
    """Let a house's refusals for too few patients no longer count this month, where they were honest mistakes.

    Each refusal told it one bit about patients. It can learn as many again.

    \b
    Example:
      concilium ledger forgive north.ledger --reason "a mistyped query"
    """
    from concilium.ledger.ledger import Ledger

    with Ledger(existing(file)) as book:
        count = book.forgive_refusals(reason, house)
        say(f"{count} refusals of this month no longer count; it is entered")


@app.command(short_help="The hospital's table changed: bind the ledger to it.")
def rebind(
    file: File,
    records: Annotated[str, typer.Argument(metavar="RECORDS", help="The hospital's table as it is now.")],
    table: Annotated[str | None, typer.Option(help="The table in a database.")] = None,
    patient: Annotated[
        str | None, typer.Option(help="The column of patients' ids, if the site names one.")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="The hospital, where too few patients are as before to tell by: the ledger must be its own."
        ),
    ] = None,
    forget: Annotated[
        str | None, typer.Option(help="Forget whom earlier answers were about; says why.")
    ] = None,
) -> None:
    """Bind the ledger to the hospital's table as it is now; what is spent stays spent.

    Whom earlier answers were about stays remembered, and is compared with the new table as far as it holds the same
    patients. Where that does not show that the table is this hospital's, or cannot be told, --site must.

    \b
    Example:
      concilium ledger rebind north.ledger north.csv
    """
    from concilium.errors import LedgerError
    from concilium.ledger.ledger import Ledger
    from concilium.protocol.disclosure import Populations
    from concilium.records.patients import Patients
    from concilium.records.table import Records

    path = existing(file)
    patients = Patients(table=Records.read(records, table=table), by=patient)
    with Ledger(path) as book:
        before = still = 0
        try:
            before, still = Populations(book, patients, least=0).count_known()
        except LedgerError:  # it remembers patients by what the table does not say any more
            if forget is None:
                raise
        if book.settings.records != patients.digest or forget is not None:
            _refuse_strange_table(book, records, before, still, site)
        book.rebind(patients.digest, forget)
    say(f"{file}: bound to {records} (digest {patients.digest[:12]}…); what is spent stays spent")
    if before and forget is None:
        say(
            f"of {before} patients who are remembered, {still} are in the table as they were; the others count as gone"
        )
    if forget is not None:
        say("whom earlier answers were about is forgotten: the next ones could be subtracted from them")


def _refuse_strange_table(book: Ledger, records: str, before: int, still: int, site: str | None) -> None:
    """LedgerError where a table looks like another hospital's than that of the ledger, and nobody says that it is not:
    what that hospital releases would be entered in this one's book."""
    from concilium.errors import LedgerError
    from concilium.ledger.head import find_swap, name_site

    if swapped := find_swap(book.path, book.settings.site):
        raise LedgerError(swapped)
    if book.settings.records is None:
        return
    owner = None if book.settings.site is None else name_site(book.settings.site)
    if site is not None and owner is not None and site != owner:
        raise LedgerError(
            f"{book.path} is the ledger of {owner!r}, not of {site!r}; name the ledger of {site!r}"
        )
    if site is not None or owner is None or (before and still >= before / 2):
        return
    if before:
        why = (
            f"of {before} patients whom it remembers {still} are in {records}: this looks like another hospital's "
            "table, whose releases do not belong in this book. If it is"
        )
    else:
        why = f"remembers no patients by whom to tell whether {records} is that hospital's table. If it is"
    raise LedgerError(
        f"{book.path} is the ledger of {owner!r}, and {why} the table of {owner!r}{' all the same' * bool(before)}, "
        f"say so: --site {shlex.quote(owner)}"
    )


@app.command("accept-restored", short_help="Go on with a ledger that was restored from a backup.")
def accept_restored(
    file: File, reason: Annotated[str, typer.Option(help="Why; it is entered in the ledger.")]
) -> None:
    """Go on with a ledger that is behind its head file: an older copy was put back. It is entered with the reason.

    What was released after the copy was made is in nobody's sum any more, and its patients are forgotten: lower the
    budget by it. Houses and hospitals that saw the newer ledger will still not accept this one.

    \b
    Example:
      concilium ledger accept-restored north.ledger --reason "the disk failed on 3 May"
    """
    from concilium.ledger.ledger import Ledger

    head = Ledger.accept_restored(existing(file), reason)
    say(
        f"{file}: goes on from entry {head.count}; what was entered after the copy was made is lost: lower the budget"
    )


@app.command("forget-peer", short_help="Take another hospital's restored ledger as it is.")
def forget_peer(
    file: File,
    fingerprint: Annotated[str, typer.Argument(help="That hospital's fingerprint.")],
    reason: Annotated[str, typer.Option(help="Why; it is entered in the ledger.")],
) -> None:
    """Forget how far another hospital's ledger had come. It accepted an older copy, and told you so in person.

    Until then nothing is added up with that hospital: its older copy does not hold what was charged before.

    \b
    Example:
      concilium ledger forget-peer north.ledger "$SOUTH" --reason "south lost a disk on 3 May"
    """
    from concilium.ledger.ledger import Ledger

    with Ledger(existing(file)) as book:
        book.forget_peer(fingerprint, reason)
    say(f"{file}: goes on with {fingerprint}, from whatever its ledger shows next")


@app.command(short_help="Copy the ledger, also while its site runs.")
def backup(
    file: File,
    out: Annotated[Path, typer.Option(metavar="COPY", help="A new file for the copy.")],
) -> None:
    """Copy a ledger with all that was entered by now, and the identity beside it; also while its site runs.

    A plain copy of the file misses what is still in its log (FILE-wal). The head beside the ledger is not copied: by it
    a copy that is put back is noticed, and `ledger accept-restored` goes on from there.

    \b
    Example:
      concilium ledger backup north.ledger --out /backup/north-monday.ledger
    """
    from concilium.errors import LedgerError
    from concilium.ledger.ledger import Ledger
    from concilium.privacy.identity import Identity

    identity, copy = Path(f"{file}.identity"), Path(f"{out}.identity")
    if copy.exists():
        raise LedgerError(f"{copy}: there is a file already, and a copy replaces none; name another")
    with Ledger.open_readonly(existing(file)) as book:
        head = book.back_up(out)
    if identity.exists():
        Identity.load(identity).save(copy)
    say(f"{out}: {head.count} entries, unbroken; the last one is {head.hash}")
    say(
        f"{copy}: the hospital's key; keep it secret"
        if identity.exists()
        else "no identity lies beside the ledger"
    )


def existing(file: Path) -> Path:
    """The file, which must be there: changing a ledger never makes one."""
    from concilium.ledger.file import no_ledger

    if not file.exists():
        raise no_ledger(file)
    return file


def _know_studies(book: Ledger) -> dict[str, StudyOverview]:
    """The studies that were proposed to the hospital, by id."""
    from concilium.consult.consent import list_studies

    return {study.id: study for study in list_studies(book)}


def _list_entry(entry: Entry, studies: Mapping[str, StudyOverview], balance: Balance) -> list[str]:
    """An entry as a line of the table: the study by its name, the price as epsilon, the id last."""
    is_release = entry.mode != "settings"
    note = entry.note.rsplit(" (signed ", 1)[0] if entry.kind == "study" else entry.note
    known = studies.get(entry.study)
    price = "–"
    if entry.cost is not None:
        price = (
            balance.show_epsilon(entry.cost, pure=entry.is_pure).replace(" = ", " ") if entry.cost else "0"
        )
    elif is_release:
        price = "unlimited"
    cells = [
        str(entry.sequence),
        f"{entry.time:%Y-%m-%d %H:%M}",
        known.name if known is not None else entry.study if len(entry.study) < IDS else "–",
        entry.kind if is_release else f"{entry.kind}: {note}",
        entry.mode,
        price,
        str(entry.numbers) if is_release else "–",
        entry.study if len(entry.study) <= 8 else entry.study[:7] + "…",
    ]
    return [
        escape_controls(cell) for cell in cells
    ]  # an older version took whatever name a house gave its study


def _summarise(book: Ledger) -> str:
    """What was released, what is spent and what is left, in sentences."""
    from concilium.privacy.accounting import shown

    releases = [entry for entry in book.entries() if entry.mode != "settings"]
    refusals = len(book.refusals())
    many = [(len(releases), "release"), (refusals, "refusal")]
    lines = [", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in many)]
    open_ended = sum(entry.numbers for entry in releases if entry.unbounded)
    if open_ended:
        lines.append(f"{open_ended} numbers left without a bound on what they tell (epsilon = unlimited)")
    balance = book.balance()
    spent = f"{balance.currency} = {shown(balance.spent)} is spent"
    if balance.currency == "rho" and balance.spent:
        spent += f" ({_show_sum(releases, balance)})"
    lines.append(f"{spent}; {_say_what_is_left(balance)}")
    if balance.per_month is not None and balance.month_left is not None:
        lines.append(
            f"in {balance.month} {shown(balance.month_spent)} of {shown(balance.per_month)} is spent; "
            f"{shown(balance.month_left)} is left"
        )
    return "\n".join(map(escape_controls, lines))


def _show_sum(releases: Sequence[Entry], balance: Balance) -> str:
    """All that was spent as epsilon: the sum of pure ones where all are and it is less, or else by way of delta."""
    from concilium.privacy.accounting import epsilon_from_rho, pure_from_rho, say_epsilon, shown

    priced = [entry for entry in releases if entry.cost]
    if all(entry.is_pure for entry in priced):
        total = sum(float(pure_from_rho(entry.cost)) for entry in priced if entry.cost)
        if total <= epsilon_from_rho(balance.spent, balance.delta):
            return f"epsilon = {say_epsilon(round(total, 12), digits=4)}"
    return f"{balance.show_epsilon(balance.spent)} at delta = {shown(balance.delta)}"


def _say_what_is_left(balance: Balance) -> str:
    """What is left of the budget, and who set it where the hospital did not say a number."""
    from concilium.ledger.budgets import BY_DEFAULT, DEFAULT_BUDGETS
    from concilium.privacy.accounting import shown

    if balance.left is None and balance.source:
        return f"the budget is unlimited, as the {balance.source} says"
    if balance.left is None:
        default = f"{balance.currency} = {shown(DEFAULT_BUDGETS[balance.currency])}"
        return f"no budget is set: {default} holds from when its site opens it"
    by_default = " of the default budget" if balance.source == BY_DEFAULT else ""
    return f"{shown(balance.left)} is left{by_default}"


def _as_plain(book: Ledger) -> dict[str, Any]:
    """The whole ledger as JSON values; exact numbers stay exact, as text."""
    balance = book.balance()
    return {
        "ledger": book.path,
        "site": book.settings.site,
        "currency": balance.currency,
        "delta": str(balance.delta),
        "spent": str(balance.spent),
        "left": None if balance.left is None else str(balance.left),
        "budget_set_by": balance.source or None,
        "month": None
        if balance.per_month is None
        else {"month": balance.month, "spent": str(balance.month_spent), "left": str(balance.month_left)},
        "studies": {
            study.id: {"name": study.name, "asks": study.asks, "query": study.query, "house": study.house}
            for study in _know_studies(book).values()
        },
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
