"""`concilium studies`: what was proposed to a hospital, as a page to decide on, and the decision."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concilium.cli.ledger import ShowByDefault, existing
from concilium.cli.output import Json, escape_controls, say, say_json, say_table

if TYPE_CHECKING:
    from concilium.consult.consent import StudyOverview
    from concilium.ledger.budgets import Balance
    from concilium.policy.policy import Policy


class _ListStudies(ShowByDefault):
    """`studies LEDGER` is `studies list LEDGER`."""

    default = "list"


app = typer.Typer(cls=_ListStudies, no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="LEDGER", help="The hospital's ledger file.")]
Study = Annotated[str, typer.Argument(metavar="ID", help="The study's id, or how it begins.")]
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", metavar="FILE", help="The hospital's policy, which names houses.")
]
Who = Annotated[str, typer.Option("--who", metavar="NAME", help="Who decided; it is entered.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="Why; it is entered.")]
IdentityFile = Annotated[
    Path | None,
    typer.Option("--identity", metavar="FILE", help="The hospital's identity; LEDGER.identity without it."),
]


@app.callback()
def studies() -> None:
    """What houses propose to a hospital, and what it decides. `studies LEDGER` is short for `studies list LEDGER`.

    \b
    Example:
      concilium studies north.ledger
    """


@app.command("list", short_help="List what was proposed, how it stands, and what it cost.")
def _list_all(
    file: File, policy: PolicyFile = None, identity: IdentityFile = None, as_json: Json = False
) -> None:
    """List the studies that were proposed to a hospital: how each stands, and what it has cost so far.

    \b
    Example:
      concilium studies list north.ledger --policy north.toml
    """
    from concilium.consult.consent import list_studies
    from concilium.ledger.ledger import Ledger

    with Ledger.open_readonly(file) as book:
        proposed = list_studies(book, _read_policy(policy), _find_public(file, identity))
        balance, site = book.balance(), book.settings.site
    if as_json:
        say_json({"ledger": str(file), "site": site, "studies": [study.to_dict() for study in proposed]})
        return
    if not proposed:
        say(f"{file}: no study was proposed yet")
        return
    say_table(
        ["study", "status", "asks", "of", "release", "house", "price", "cost so far", "until", "id"],
        [_list_study(study, balance) for study in proposed],
    )
    waiting = [study for study in proposed if study.status == "waiting"]
    for study in waiting:
        say(f"to decide: {shlex.join(['concilium', 'studies', 'show', str(file), study.short_id])}")


@app.command(short_help="One study as a page to decide on.")
def show(
    file: File,
    study: Study,
    policy: PolicyFile = None,
    identity: IdentityFile = None,
    as_json: Json = False,
) -> None:
    """Show one study as a page to decide on: who asks what, what leaves, the worst case, and what is left after it.

    \b
    Example:
      concilium studies show north.ledger 3f2a9c --policy north.toml
    """
    from concilium.consult.consent import find_study, write_page
    from concilium.ledger.ledger import Ledger

    rules = _read_policy(policy)
    with Ledger.open_readonly(file) as book:
        proposed = find_study(book, study, rules, _find_public(file, identity))
        if as_json:
            balance = book.balance()
            left = {"left": balance.left, "left_of_month": balance.month_left}
            amounts = {name: None if amount is None else str(amount) for name, amount in left.items()}
            say_json({**proposed.to_dict(), "currency": balance.currency, **amounts})
        else:
            say(write_page(proposed, book, rules))


@app.command(short_help="Agree to a study.")
def agree(file: File, study: Study, who: Who, why: Why, identity: IdentityFile = None) -> None:
    """Agree to a study: the site answers its questions from now on. It is signed, and entered in the ledger.

    \b
    Example:
      concilium studies agree north.ledger 3f2a9c --who "Dr. Meyer" --why "ethics vote 12/26"
    """
    _decide(file, study, "agreed", who, why, identity)


@app.command(short_help="Refuse a study.")
def refuse(file: File, study: Study, who: Who, why: Why, identity: IdentityFile = None) -> None:
    """Refuse a study; the house is told why. It is signed, and entered in the ledger.

    \b
    Example:
      concilium studies refuse north.ledger 3f2a9c --who "Dr. Meyer" --why "the purpose is too wide"
    """
    _decide(file, study, "refused", who, why, identity)


@app.command(short_help="End a study that was agreed to.")
def end(file: File, study: Study, who: Who, why: Why, identity: IdentityFile = None) -> None:
    """End a study that was agreed to: nothing more is answered in it, and it is never taken up again.

    What was answered stays answered. It is signed, and entered in the ledger; the house is told why.

    \b
    Example:
      concilium studies end north.ledger 3f2a9c --who "Dr. Meyer" --why "consent was withdrawn"
    """
    _decide(file, study, "ended", who, why, identity)


def _decide(file: Path, study: str, status: str, who: str, why: str, identity: Path | None) -> None:
    from concilium.consult.consent import decide_on_study
    from concilium.ledger.ledger import Ledger
    from concilium.privacy.identity import Identity

    path = existing(file)
    own = Identity.load(identity if identity is not None else f"{path}.identity")
    with Ledger(path) as book:
        decided = decide_on_study(book, study, status, who, why, own)
    say(escape_controls(f"{file}: study {decided.short_id} is {status} by {who}: {why}"))


def _find_public(file: Path, identity: Path | None) -> bytes | None:
    """The hospital's key, by which its decisions are told from others'; None where who looks may not read it."""
    from concilium.errors import MaskError
    from concilium.privacy.identity import Identity

    try:
        return Identity.load(f"{file}.identity" if identity is None else identity).public
    except MaskError:
        if identity is not None:
            raise
        return None


def _read_policy(path: Path | None) -> Policy | None:
    from concilium.policy.policy import Policy

    return None if path is None else Policy.read(path)


def _list_study(study: StudyOverview, balance: Balance) -> list[str]:
    """A study as a line of the table: names first, its id last."""
    from concilium.consult.consent import describe_cost, say_amount

    terms = study.opened
    price = study.record.price
    cells = [
        study.name,
        study.status,
        study.asks,
        study.query,
        "–" if terms is None else terms.method.release,
        study.asked_by,
        "–" if price is None else say_amount(price, balance, pure=study.is_pure).split(" (")[0],
        describe_cost(study, balance),
        "–" if terms is None else terms.terms.ends,
        study.short_id,
    ]
    return [escape_controls(cell) for cell in cells]
