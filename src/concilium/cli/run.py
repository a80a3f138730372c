"""`concilium run`: a study file in; model.json, metrics.json, card.json and report.html out, all or nothing.

With `--plan`: what the study would ask, what each question costs each hospital, and what its policy forbids.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import (
    Tell,
    escape_controls,
    refuse_file,
    say,
    say_json,
    say_table,
    show_progress,
    warn,
)
from concilium.cli.results import tell_all
from concilium.cli.share import plan_or_share
from concilium.errors import CannotResume, ConciliumError, HouseError, RunStopped, StudyError, StudyPending

if TYPE_CHECKING:
    from fractions import Fraction

    from concilium.errors import StudyPending
    from concilium.ledger.budgets import Balance
    from concilium.study import Study
    from concilium.study.planning import SiteBalance, StudyPlan


def say_pending(study: Study, pending: StudyPending) -> str:
    """For whom a study waits (of several methods, each), and by which command it is decided on there. Across machines
    nobody but the hospital knows where its ledger is."""
    ledgers = {one.name: study.locate(one.ledger) for one in study.hospitals if one.ledger}
    lines = []
    for one in (pending, *pending.others):
        names = " and ".join(filter(None, [", ".join(one.sites[:-1]), one.sites[-1]]))
        short = one.study[:12]
        if study.elsewhere:
            where = "where a person decides, at the hospital:"
            commands = [
                f"concilium studies show LEDGER {short}",
                f"concilium studies agree LEDGER {short} --who NAME --why TEXT",
            ]
        else:
            where = "where a person decides:"
            commands = [shlex.join(["concilium", "studies", "show", ledgers[s], short]) for s in one.sites]
        lines.append("\n  ".join([f"{study.name}: study {short} waits for {names}, {where}", *commands]))
    return "\n".join(lines)


ALARMED = 3
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).")]
Wait = Annotated[
    float | None,
    typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long where a person must agree."),
]
MetricsJson = Annotated[bool, typer.Option("--json", help="Print metrics.json, and nothing else.")]


def run(
    study: StudyFile,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder for the results.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last finished round of an interrupted run.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it would ask and cost, and whether it fits; run nothing.")
    ] = False,
    wait: Wait = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with status 3 where the results raise an alarm.")
    ] = False,
    as_json: MetricsJson = False,
) -> None:
    """Run a study: learn with its hospitals, evaluate, write model, metrics, card and report.

    With method = "code-sharing" it shares codes instead: shared.csv, shared.json and shared.html.

    The figures are at the study's threshold, from which on the positive class is predicted: [study] threshold =
    "majority" (a half), "prevalence", "cost 5:1", "sensitivity 0.9" or "youden". It is stored in the model, and costs
    nothing more.

    \b
    Example:
      concilium run study.toml --plan
      concilium run study.toml --out results
      open results/report.html
    """
    from concilium.study import Study
    from concilium.study.sections import read_document, shares_entries

    if shares_entries(read_document(study)[1]):
        _share(study, out, plan, wait, as_json)
        return
    definition = Study.read(study)
    if plan:
        planned = definition.plan()
        tell_plan(definition, planned, as_json)
        if not planned.fits or planned.unstated:
            raise typer.Exit(2)
        return
    if out is None:
        raise StudyError("say where the results go: --out DIR (or --plan, to see what it would cost)")
    with show_progress(quiet=as_json) as tell:
        results = run_study(definition, out, resume, tell, wait)
    if as_json:
        say_json(results.metrics)
    else:
        tell_all(results, out)
    if strict and (results.alarms or results.differences):
        raise typer.Exit(ALARMED)


def _share(file: Path, out: Path | None, plan: bool, wait: float | None, as_json: bool) -> None:
    """Share codes as a study file says: shared.csv, shared.json and shared.html in the folder."""
    from concilium.study.code_sharing import SharingStudy
    from concilium.study.results import make_folder

    study = SharingStudy.read(file)
    if wait is not None:
        study = replace(study, patience=wait)
    if out is None:
        plan_or_share(study, None, plan=plan, as_json=as_json)
        return
    refuse_file(out.absolute())
    make_folder(out)
    plan_or_share(study, out / "shared.csv", plan=plan, as_json=as_json)


def run_study(study: Study, out: Path, resume: bool, tell: Tell, wait: float | None = None) -> Any:
    """Run a study; a run that can go on says by which command."""
    patience = study.house.patience if wait is None else wait
    proposed: set[str] = set()
    while True:
        try:
            return _run_once(study, out, resume, patience if proposed else 0, tell)
        except StudyPending as pending:
            hint = f"to go on then: {_resuming(study, out)}"
            studies = {one.study for one in (pending, *pending.others)}
            if not patience or studies <= proposed:
                raise HouseError(f"{say_pending(study, pending)}\n{hint}") from None
            warn(f"{say_pending(study, pending)}\nwaiting {patience:g} s for that")
            proposed |= studies
            resume = True


def _resuming(study: Study, out: Path) -> str:
    return shlex.join(["concilium", "run", str(study.path), "--out", str(out), "--resume"])


def _run_once(study: Study, out: Path, resume: bool, wait: float, tell: Tell) -> Any:
    refuse_file(out.absolute())
    hint = f"to go on from the last finished round: {_resuming(study, out)}"
    try:
        return study.run(
            out, resume=resume, wait=wait, on_progress=tell, warn=lambda text: warn(f"warning: {text}")
        )
    except RunStopped as error:
        raise HouseError(f"{error.reason}; {hint}") from None
    except CannotResume as error:
        raise StudyError(f"{error.reason}; run it again without --resume") from None
    except ConciliumError:
        raise
    except BaseException:
        warn(f"not finished; {hint}")
        raise


def tell_plan(study: Study, plan: StudyPlan, as_json: bool, asks: str = "a fit asks") -> None:
    """The plan of one fit, how often it is charged, and what each hospital has left before and after it."""
    from concilium.errors import name_some
    from concilium.privacy.accounting import epsilon_from_rho, say_epsilon, shown
    from concilium.protocol.schema import say_left_out
    from concilium.study.sources import say_missing

    if as_json:
        say_json(plan.to_dict())
        return
    say(f"{study.name}: what {asks} of every site, and what that costs")
    say_table(["kind", "rho", "about"], plan.rows)
    for release in dict.fromkeys(one.release for one in study.several or (study,) if not one.way_out.bounded):
        say(f"{release} releases have no bound: epsilon is unlimited, whatever the budget")
    for column in plan.unstated:
        say(say_missing(column))
    for name, why in plan.passed_over.items():
        say(escape_controls(f"{name} is not chosen: it {why}"))
    for name, why in plan.steps_aside.items():
        say(escape_controls(f"{name} will not take part: {why}"))
    if plan.left_out:
        say(escape_controls(f"by the names of columns, {say_left_out(plan.left_out)}"))
    if plan.total:
        rho = plan.questions.total
        epsilon = say_epsilon(epsilon_from_rho(rho, study.privacy.delta))
        say(
            f"in all rho = {shown(rho)}: epsilon = {epsilon} at delta = {study.privacy.delta} for every patient"
        )
        if plan.models > 1:
            more = f"the evaluation fits {plan.models - 1} more models, each charged"
            say(f"{more}: at most rho = {shown(plan.total)}")
        if plan.sites:
            say_table(
                ["hospital", "of", "spent", "left", "after this study", "room"],
                [line for site in plan.sites for line in _list_balance(site)],
            )
    if study.elsewhere:
        say("hospitals check budget, month, policy and columns when it is proposed, before the first charge")
    refusing: dict[str, list[str]] = {}
    for site in plan.sites:
        for sentence in site.forbidden:
            refusing.setdefault(sentence, []).append(site.site)
    for sentence, sites in refusing.items():
        say(f"{name_some(sites)} will refuse: {sentence}")


def _list_balance(site: SiteBalance) -> list[list[str]]:
    """A hospital's budget as lines of a table: all of it and, where that is capped, this month's."""
    balance = site.balance
    rows = [("all", balance.spent, balance.left)]
    if balance.per_month is not None:
        rows.append((balance.month, balance.month_spent, balance.month_left))
    lines = []
    for of, spent, left in rows:
        if left is None:
            after, room = "unlimited", "fits"
        else:
            room = "fits" if site.cost <= left else "does not fit"
            after = _say_amount(balance, left - site.cost) if site.cost <= left else "–"
        if not site.payable:
            room = "does not fit: its budget is in epsilon, for pure mechanisms, and Gaussian noise costs rho"
        rest = "unlimited" if left is None else _say_amount(balance, left)
        lines.append([site.site, of, _say_amount(balance, spent), rest, after, room])
    return lines


def _say_amount(balance: Balance, amount: Fraction) -> str:
    """An amount in the ledger's currency and, where that is rho, as epsilon."""
    from concilium.privacy.accounting import shown

    exact = f"{balance.currency} {shown(amount)}"
    return f"{exact} ({balance.show_epsilon(amount)})" if balance.currency == "rho" and amount else exact
