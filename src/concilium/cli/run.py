"""`concilium run`: a study file in; model.json, metrics.json, card.json and report.html out, all or nothing."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concilium.cli.output import Tell, refuse_file, say, say_json, show_progress, warn
from concilium.cli.plan import tell_plan
from concilium.cli.results import tell_results
from concilium.errors import CannotResume, ConciliumError, HouseError, RunStopped, StudyError

if TYPE_CHECKING:
    from concilium.study import Study
    from concilium.study.results import StudyResults


def run(
    study: Annotated[
        Path, typer.Argument(metavar="STUDY", help="The study file (TOML).", show_default=False)
    ],
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
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json, and nothing else.")] = False,
) -> None:
    """Run a study: learn with its hospitals, evaluate, write model, metrics, card and report.

    \b
    Example:
      concilium run study.toml --plan
      concilium run study.toml --out results
      open results/report.html
    """
    from concilium.study import Study

    definition = Study.read(study)
    if plan:
        tell_plan(definition, definition.plan(), as_json)
        return
    if out is None:
        raise StudyError("say where the results go: --out DIR (or --plan, to see what it would cost)")
    with show_progress(quiet=as_json) as tell:
        results = run_study(definition, out, resume, tell)
    if as_json:
        say_json(results.metrics)
        return
    tell_results(results)
    say(f"results in {out}: {', '.join(results.files)}")


def run_study(study: Study, out: Path, resume: bool, tell: Tell) -> StudyResults:
    """Run a study; a run that can go on says by which command."""
    refuse_file(out.absolute())
    command = shlex.join(["concilium", "run", str(study.path), "--out", str(out), "--resume"])
    hint = f"to go on from the last finished round: {command}"
    try:
        return study.run(out, resume=resume, on_progress=tell, warn=lambda text: warn(f"warning: {text}"))
    except RunStopped as error:
        raise HouseError(f"{error.reason}; {hint}") from None
    except CannotResume as error:
        raise StudyError(f"{error.reason}; run it again without --resume") from None
    except ConciliumError:
        raise
    except BaseException:
        warn(f"not finished; {hint}")
        raise
