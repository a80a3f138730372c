"""`concilium share`: coded histories in; a copy with the sensitive codes randomised out, and a page to sign."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import say, say_json, say_table, show_progress
from concilium.errors import HouseError, StudyError, StudyPending

if TYPE_CHECKING:
    from concilium.study.code_sharing import SharingFiles, SharingPlan, SharingResults


def share(
    codes: Annotated[
        str,
        typer.Argument(
            metavar="CODES", help="Dated codes: a long table, or FHIR Conditions (.json).", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The randomised copy (csv, csv.gz, parquet).", show_default=False
        ),
    ] = None,
    sensitive: Annotated[
        list[str] | None,
        typer.Option(
            "--sensitive",
            metavar="CODES",
            help="Codes or headings to hide, such as 042,303; 38 U.S.C. 7332 unless given.",
            show_default=False,
        ),
    ] = None,
    epsilon: Annotated[str, typer.Option("--epsilon", help="What one event costs.")] = "1",
    max_events: Annotated[
        int, typer.Option("--max-events", help="The latest so many of a patient; everyone pays for all.")
    ] = 100,
    taxonomy: Annotated[
        str, typer.Option("--taxonomy", help="icd9, icd10, or a table with parent and child.")
    ] = "icd9",
    digits: Annotated[int, typer.Option("--digits", help="How fine the codes are.")] = 3,
    zeros_lost: Annotated[
        bool, typer.Option("--zeros-lost", help="ICD-9 codes lost dots and leading zeros; doubt is refused.")
    ] = False,
    keep_headings: Annotated[
        bool, typer.Option("--keep-headings", help="Headings such as 585 are codes of their own.")
    ] = False,
    gamma: Annotated[
        float, typer.Option("--gamma", help="What codes in the clear may say on average; 1: no bound.")
    ] = 0.05,
    gamma_max: Annotated[
        float, typer.Option("--gamma-max", help="What any one code in the clear may say; 1: no bound.")
    ] = 0.2,
    within: Annotated[
        float, typer.Option("--within", help="Codes so many days apart belong together.")
    ] = 300,
    mechanism: Annotated[str, typer.Option("--mechanism", help="blocks, umaxrr or k-rr.")] = "blocks",
    block_size: Annotated[
        int | None,
        typer.Option(
            "--block-size", help="Codes in a block; what loses least unless given.", show_default=False
        ),
    ] = None,
    never_show_hidden: Annotated[
        bool, typer.Option("--never-show-hidden", help="Codes hidden for what they say do not come out.")
    ] = False,
    auxiliary: Annotated[
        str | None,
        typer.Option(
            "--auxiliary", metavar="FILE", help="Codes of other patients, to learn from.", show_default=False
        ),
    ] = None,
    auxiliary_percent: Annotated[
        int, typer.Option("--auxiliary-percent", help="Without that file: patients held back to learn from.")
    ] = 20,
    keep_dates: Annotated[
        bool, typer.Option("--keep-dates", help="Dates as recorded, not days since the first event.")
    ] = False,
    patient: Annotated[
        str | None, typer.Option("--patient", help="The column of patients in CODES.", show_default=False)
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", help="The column of dates or days in CODES.", show_default=False)
    ] = None,
    code: Annotated[
        str | None, typer.Option("--code", help="The column of codes in CODES.", show_default=False)
    ] = None,
    records: Annotated[
        str | None,
        typer.Option(
            "--records", metavar="TABLE", help="The table of the same patients.", show_default=False
        ),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Its column of patients' ids.")] = "patient",
    query: Annotated[
        str, typer.Option("--query", help="Whose codes, by that table.", show_default=False)
    ] = "",
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            metavar="FILE",
            help="The hospital's ledger; CODES.ledger unless given.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="FILE", help="The hospital's policy.", show_default=False),
    ] = None,
    site: Annotated[
        str | None, typer.Option("--site", metavar="NAME", help="The hospital's name.", show_default=False)
    ] = None,
    house: Annotated[
        str | None,
        typer.Option(
            "--house", metavar="FILE", help="The identity of whoever gets the codes.", show_default=False
        ),
    ] = None,
    purpose: Annotated[str, typer.Option("--purpose", help="What for, in words.", show_default=False)] = "",
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="For the hospital alone: which number is whom.", show_default=False
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Draw anew, at the full price, instead of the same copy.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would be hidden and charged; share nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Share coded histories, the sensitive codes randomised: a copy, how it was drawn, and a page to sign.

    Each code is randomised by itself. Sensitive codes become similar ones, others are sometimes overwritten, and codes
    that give sensitive ones away are hidden with them. The copy is NOT FOR CARE: many entries are false. The ledger is
    charged for every patient before anything is written; the same command again gives the same copy, free.

    \b
    Example:
      concilium share diagnoses.csv --plan --epsilon 0.1 --max-events 10
      concilium share diagnoses.csv --out shared.csv --epsilon 0.1 --max-events 10
      open shared.html
    """
    from concilium.study.code_sharing import SharingFiles, plan_sharing, share_codes

    settings: dict[str, Any] = {
        "taxonomy": taxonomy,
        "digits": digits,
        "zeros": "lost" if zeros_lost else "kept",
        "headings": "keep" if keep_headings else "refuse",
        "epsilon": epsilon,
        "max_events": max_events,
        "gamma": None if gamma == 1 else gamma,
        "gamma_max": None if gamma_max == 1 else gamma_max,
        "within": within,
        "mechanism": mechanism,
        "block_size": block_size,
        "show_hidden": not never_show_hidden,
    }
    if sensitive:
        settings["sensitive"] = [text.strip() for one in sensitive for text in one.split(",") if text.strip()]
    columns = {"patient": patient, "time": time, "code": code}
    files = SharingFiles(
        codes=codes,
        columns={name: column for name, column in columns.items() if column is not None},
        auxiliary=auxiliary,
        percent=auxiliary_percent,
        records=records,
        by=by,
        ledger=ledger,
        policy=policy,
        site=site,
        house=house,
        purpose=purpose,
        settings=settings,
        query=query,
        dates="kept" if keep_dates else "since first",
    )
    if plan:
        planned = plan_sharing(files)
        tell_plan(planned, as_json)
        if not planned.fits:
            raise typer.Exit(2)
        return
    if out is None:
        raise StudyError("say where the copy goes: --out FILE (or --plan, to see what it would cost)")
    with show_progress(quiet=as_json) as tell:
        try:
            results = share_codes(files, out, again=again, key=key, tell=tell)
        except StudyPending as pending:
            raise HouseError(say_pending(files, pending)) from None
    tell_results(results, as_json)


def say_pending(files: SharingFiles, pending: StudyPending) -> str:
    show = shlex.join(["concilium", "studies", "show", str(files.ledger_path), pending.study[:12]])
    return (
        f"study {pending.study[:12]} waits for a person of the hospital to agree:\n  {show}\n"
        "then run the same command again"
    )


def tell_plan(plan: SharingPlan, as_json: bool) -> None:
    """What would be hidden, charged and lost."""
    from concilium.codes.code_design import open_design
    from concilium.codes.sharing_report import find_expected_loss
    from concilium.privacy.accounting import shown

    if as_json:
        say_json(plan.to_dict())
        return
    design, balance = plan.agreed.design, plan.balance
    say(
        f"{plan.patients:,} patients would be shared; {plan.auxiliary:,} auxiliary ones, to learn from, would not"
    )
    for name, listed in (
        ("sensitive", design.sensitive),
        ("hidden with them", design.hidden),
        ("company", design.company),
    ):
        say(f"{name}: {', '.join(listed) or 'none'}")
    replaced = float(open_design(design)[1].replaced)
    say(
        f"blocks of {design.block_size}; {replaced:.1%} of all other codes would be overwritten; expected loss on "
        f"sensitive codes {find_expected_loss(plan.sharing):.3f} (0 nothing, 1 all)"
    )
    say(
        f"epsilon = {float(plan.sharing.epsilon):g} for each event, {float(plan.agreed.pure_price):g} for every "
        f"patient: {balance.currency} = {shown(plan.cost)}; what is in the clear has no bound"
    )
    left = "no cap is set" if balance.left is None else f"{balance.currency} = {shown(balance.left)} is left"
    say(f"of the budget {left}: {'it fits' if plan.room is None else 'it does not fit'}")
    if plan.room is not None:
        say(plan.room)
    for sentence in plan.forbidden:
        say(f"the hospital will refuse: {sentence}")


def tell_results(results: SharingResults, as_json: bool) -> None:
    """What was shared, and where the files are."""
    measured, loss, sharing = results.report.measured, results.report.measured.loss, results.sharing
    if as_json:
        say_json(
            {
                "study": results.card.study,
                "patients": len(results.shared),
                "codes": len(results.shared.codes),
                "epsilon_per_event": str(sharing.epsilon),
                "epsilon_per_patient": str(sharing.price),
                "cost": results.card.releases[0].cost,
                "attack_precision": measured.largest,
                "attack_precision_histories": measured.largest_by_history,
                "loss_sensitive": loss.sensitive,
                "loss_all": loss.everything,
                "false": loss.changed,
                "false_sensitive": loss.false_sensitive,
                "files": {name: str(path) for name, path in results.files.items()},
            }
        )
        return
    say(f"{len(results.shared.codes):,} codes of {len(results.shared):,} patients are shared. NOT FOR CARE.")
    say_table(
        ["", ""],
        [
            ["epsilon of each event", f"{float(sharing.epsilon):g}"],
            ["epsilon of each patient", f"{float(sharing.price):g}"],
            ["attack precision, at most", say_precision(measured.largest)],
            ["the same on whole histories", say_precision(measured.largest_by_history)],
            ["lost of sensitive codes", f"{loss.sensitive:.3f}"],
            ["lost over all codes", f"{loss.everything:.3f}"],
            ["false entries", f"{loss.changed:.1%}"],
            ["false sensitive entries", f"{loss.false_sensitive:.1%}"],
        ],
    )
    files = results.files
    say(f"for whoever gets them: {files['codes']}, {files['draw']}")
    kept = ", ".join(str(files[name]) for name in ("page", "key") if name in files)
    say(f"for the hospital alone: {kept}")


def say_precision(value: float | None) -> str:
    return "no code named 30 times" if value is None else f"{value:.2f}"
