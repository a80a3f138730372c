"""`concilium run`: a study file in; model.json, metrics.json, card.json and report.html out, all or nothing."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import Tell, refuse_file, say_json, show_progress, warn
from concilium.cli.pending import say_pending
from concilium.cli.plan import tell_plan
from concilium.cli.results import tell_all
from concilium.cli.study_options import MetricsJson, StudyFile, Wait
from concilium.errors import CannotResume, ConciliumError, HouseError, RunStopped, StudyError, StudyPending

if TYPE_CHECKING:
    from concilium.study import Study


def run(
    study: StudyFile,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The folder for the results.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last finished round of an interrupted run.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it would ask and cost, and whether it fits; run nothing.")
    ] = False,
    wait: Wait = None,
    as_json: MetricsJson = False,
) -> None:
    """Run a study: learn with its hospitals, evaluate, write model, metrics, card and report.

    The figures are those of the study's decision, from which chance on the positive class is called: [study] decision =
    "majority" (a half), "prevalence", "cost 5:1", "sensitivity 0.9" or "youden". It is stored in the model, and costs
    nothing more.

    \b
    Example:
      concilium run study.toml --plan
      concilium run study.toml --out results
      open results/report.html
    """
    from concilium.study import Study

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
        return
    tell_all(results, out)


def run_study(study: Study, out: Path, resume: bool, tell: Tell, wait: float | None = None) -> Any:
    """Run a study; a run that can go on says by which command."""
    patience = study.house.patience if wait is None else wait
    proposed: set[str] = set()
    while True:
        try:
            return run_once(study, out, resume, patience if proposed else 0, tell)
        except StudyPending as pending:
            hint = f"to go on then: {resuming(study, out)}"
            studies = {one.study for one in (pending, *pending.others)}
            if not patience or studies <= proposed:
                raise HouseError(f"{say_pending(study, pending)}\n{hint}") from None
            warn(f"{say_pending(study, pending)}\nwaiting {patience:g} s for that")
            proposed |= studies
            resume = True


def resuming(study: Study, out: Path) -> str:
    return shlex.join(["concilium", "run", str(study.path), "--out", str(out), "--resume"])


def run_once(study: Study, out: Path, resume: bool, wait: float, tell: Tell) -> Any:
    refuse_file(out.absolute())
    hint = f"to go on from the last finished round: {resuming(study, out)}"
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
