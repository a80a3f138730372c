"""`concilium share`: coded histories in; a copy with the sensitive codes randomised out, and a page to sign."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import Json, say, say_json, say_table, show_progress
from concilium.codes.sharing_parameters import SharingParameters
from concilium.errors import HouseError, StudyError, StudyPending
from concilium.parameters import names

if TYPE_CHECKING:
    from concilium.study.code_sharing import SharingResults, SharingStudy
    from concilium.study.sharing_plan import SharingPlan


def _take_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each parameter of `CodeSharing`, as it is declared there."""
    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    listed = [*own, *_list_options()]
    command.__signature__ = signature.replace(parameters=listed)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in listed}
    return command


def _list_options() -> Iterator[inspect.Parameter]:
    for one in SharingParameters.parameters().values():
        kind: Any = str | None
        if isinstance(one.default, bool):
            kind = bool | None
        elif one.parameter.read is names or isinstance(one.default, tuple):
            kind = list[str] | None
        default = "" if one.default in (None, "", ()) else f" [default: {one.default}]"
        about = one.parameter.about.replace("None: ", "without it: ")
        option = typer.Option(
            help=f"{about[0].upper()}{about[1:]}.{default}", metavar=one.name.upper(), show_default=False
        )
        if kind == bool | None:
            option.metavar = None
        yield inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
        )


def _read_option(given: Any) -> Any:
    """An option as a study file would have it: a number where it is one, a list where several are named."""
    if isinstance(given, list):
        return [text.strip() for text in ",".join(given).split(",") if text.strip()]
    for read in (int, float):
        try:
            return given if isinstance(given, bool) else read(given)
        except ValueError:
            pass
    return given


@_take_parameters
def share(
    codes: Annotated[
        str, typer.Argument(metavar="CODES", help="Dated codes: a long table, or FHIR Conditions (.json).")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The randomised copy (csv, csv.gz, parquet).")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would be hidden, charged and bought; share nothing.")
    ] = False,
    auxiliary: Annotated[
        str | None, typer.Option(metavar="FILE", help="Codes of other patients, who teach what to hide.")
    ] = None,
    patient: Annotated[str | None, typer.Option(help="The column of patients in CODES.")] = None,
    time: Annotated[str | None, typer.Option(help="The column of dates or days in CODES.")] = None,
    code: Annotated[str | None, typer.Option(help="The column of codes in CODES.")] = None,
    records: Annotated[
        str | None, typer.Option(metavar="TABLE", help="The table of the same patients.")
    ] = None,
    wishes: Annotated[
        str | None, typer.Option(metavar="TABLE", help="What each patient wants hidden (patient, hide).")
    ] = None,
    by: Annotated[str, typer.Option(help="Its column of patients' ids.")] = "patient",
    ledger: Annotated[
        str | None, typer.Option(metavar="FILE", help="The hospital's ledger; CODES.ledger unless given.")
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="The hospital's policy.")] = None,
    site: Annotated[str | None, typer.Option(metavar="NAME", help="The hospital's name.")] = None,
    house: Annotated[
        str | None, typer.Option(metavar="FILE", help="The identity of whoever gets the codes.")
    ] = None,
    purpose: Annotated[str, typer.Option(help="What for, in words.", show_default=False)] = "",
    counts: Annotated[
        str | None,
        typer.Option(metavar="EPSILON", help="Release noisy counts of codes and pairs (.json), and no copy."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For the hospital alone: which number is whom.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Draw anew, at the full price, instead of the same copy.")
    ] = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Share coded histories, the sensitive codes randomised: a copy, how it was drawn, and a page to sign.

    Each code is randomised by itself. Sensitive codes become similar ones, others are sometimes overwritten, and codes
    that give sensitive ones away are hidden with them. The copy is NOT FOR CARE: many entries are false. The ledger is
    charged for every patient before anything is written; the same command again gives the same copy, free.
    A study file can say the same: concilium run share.toml.

    \b
    Example:
      concilium share diagnoses.csv --plan --out shared.csv --epsilon 0.1 --max-events 10
      concilium share diagnoses.csv --out shared.csv --epsilon 0.1 --max-events 10
      open shared.html
    """
    from concilium.study.code_sharing import SharingStudy

    if codes.lower().endswith(".toml"):
        where = "DIR" if out is None else str(out.parent)
        command = shlex.join(["concilium", "run", codes, *(["--plan"] if plan else ["--out", where])])
        raise StudyError(
            f"{codes}: this is a study file, and CODES are dated codes. Share as it says: {command}"
        )
    columns = {"patient": patient, "time": time, "code": code}
    study = SharingStudy(
        codes=codes,
        columns={name: column for name, column in columns.items() if column is not None},
        auxiliary=auxiliary,
        records=records,
        wishes=wishes,
        by=by,
        ledger=ledger,
        policy=policy,
        site=site,
        house=house,
        purpose=purpose,
        parameters={name: _read_option(given) for name, given in options.items() if given is not None},
    )
    if counts is not None:
        _count(study, out, counts, as_json)
        return
    plan_or_share(study, out, plan=plan, again=again, key=key, as_json=as_json)


def _count(study: SharingStudy, out: Path | None, epsilon: str, as_json: bool) -> None:
    """Release counts, and say how precise they are."""
    if out is None:
        raise StudyError("say where the counts go: --out counts.json")
    try:
        counts = study.count(out, epsilon)
    except StudyPending as pending:
        raise HouseError(_say_pending(study, pending)) from None
    if as_json:
        say_json({"epsilon": str(counts.epsilon), "deviation": counts.deviation, "file": str(out)})
        return
    say(
        f"how many of about {counts.population:,.0f} patients have each code, alone and with a sensitive one: {out}"
    )
    say(
        f"each count has noise with a standard deviation of {counts.deviation:.1f}, at epsilon = {counts.epsilon}"
    )


def plan_or_share(
    study: SharingStudy,
    out: Path | None,
    *,
    plan: bool = False,
    again: bool = False,
    key: Path | None = None,
    as_json: bool = False,
) -> None:
    """Say what a sharing would cost, or share and say what came of it."""
    if plan:
        planned = study.plan(out)
        _tell_plan(planned, as_json)
        if not planned.fits:
            raise typer.Exit(2)
        return
    if out is None:
        raise StudyError("say where the copy goes: --out (or --plan, to see what it would cost)")
    with show_progress(quiet=as_json) as tell:
        try:
            results = study.run(out, again=again, key=key, tell=tell)
        except StudyPending as pending:
            raise HouseError(_say_pending(study, pending)) from None
    _tell_results(results, as_json)


def _say_pending(study: SharingStudy, pending: StudyPending) -> str:
    show = shlex.join(["concilium", "studies", "show", str(study.ledger_path), pending.study[:12]])
    return (
        f"study {pending.study[:12]} waits for a person of the hospital to agree:\n  {show}\n"
        "then run the same command again"
    )


def _tell_plan(plan: SharingPlan, as_json: bool) -> None:
    """What would be hidden, charged and lost."""
    from concilium.codes.code_design import open_design
    from concilium.codes.sharing_report import find_expected_loss
    from concilium.privacy.accounting import shown
    from concilium.study.sharing_plan import find_affordable, find_left

    if as_json:
        say_json(plan.to_dict())
        return
    design, balance = plan.agreed.design, plan.balance
    histories = plan.histories
    say(
        f"{plan.patients:,} patients would be shared; entries of a patient: at most {histories.median} for half of "
        f"them, {histories.most_of_them} for 95 %, {histories.longest} for all; {histories.cut:.1%} of the entries "
        "would be left out"
    )
    taught = f", {plan.auxiliary:,} of them" if plan.auxiliary else ""
    for name, listed in (
        ("sensitive", design.sensitive),
        (f"hidden with them ({plan.source}{taught})", design.hidden),
        ("company", design.company),
    ):
        say(f"{name}: {', '.join(listed) or 'none'}")
    replaced = float(open_design(design)[1].replaced)
    say(
        f"blocks of {design.block_size}; {replaced:.1%} of all other codes would be overwritten; expected loss, as a "
        f"mean over the sensitive codes: {find_expected_loss(plan.sharing):.3f} (0 nothing, 1 all)"
    )
    say(
        f"epsilon = {float(plan.sharing.epsilon):g} for each event, {float(plan.agreed.pure_price):g} for every "
        f"patient: {balance.currency} = {shown(plan.cost)}; what is unprotected has no bound"
    )
    left = "no cap is set"
    if (rest := find_left(balance)) is not None:
        most = float(find_affordable(rest, balance.currency))
        left = f"{balance.currency} = {shown(rest)} is left, enough for one release of epsilon = {most:g}"
    say(f"of the budget {left}: {'it fits' if plan.room is None else 'it does not fit'}")
    if plan.room is not None:
        say(plan.room)
    for sentence in plan.forbidden:
        say(f"the hospital will refuse: {sentence}")
    _tell_curve(plan)
    say(f"plan {plan.digest[:12]}: the same options on the same records share exactly this")


def _tell_curve(plan: SharingPlan) -> None:
    """What each budget buys, on the hospital's own histories."""
    say(
        f"what a budget buys at max_events = {plan.sharing.max_events} (expected on these histories, nothing drawn):"
    )
    say_table(
        ["epsilon of each patient", "of each event", "false entries", "lost: all codes", "sensitive", "fits"],
        [
            [
                f"{float(point.price):g}" + (" (this plan)" if point.price == plan.agreed.pure_price else ""),
                f"{float(point.epsilon):.3g}",
                f"{point.false:.1%}",
                f"{point.loss:.3f}",
                f"{point.loss_sensitive:.3f}",
                "yes" if point.fits else "no",
            ]
            for point in plan.curve
        ],
    )


def _tell_results(results: SharingResults, as_json: bool) -> None:
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
                "attack_auc_patients": measured.patients.any_code.auc,
                "attack_auc_length": measured.patients.by_length.auc,
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
            ["attack on entries: precision, at most", say_precision(measured.largest)],
            ["the same on whole histories", say_precision(measured.largest_by_history)],
            ["attack on patients: AUC", say_precision(measured.patients.any_code.auc)],
            ["from the number of entries alone", say_precision(measured.patients.by_length.auc)],
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
    return "too few to tell" if value is None else f"{value:.2f}"
