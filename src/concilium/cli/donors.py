"""`concilium donors`: which hospital of a study lends its own model, and how that does where it is borrowed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from concilium.cli.output import Json, figure, refuse_file, say, say_json, say_table, show_progress, warn
from concilium.cli.run import StudyFile, say_pending, tell_plan
from concilium.errors import CannotResume, HouseError, StudyError, StudyPending


def donors(
    study: StudyFile,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder for the results.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a person had to agree, or a run was interrupted.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it would ask and cost, and whether it fits; ask nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find a hospital that lends its own model to those with too few patients.

    Every hospital says how well a model of its own does for its own patients: exact counts or, with release =
    "private", noisy figures, charged. The best of those above [donors] accuracy is asked to lend its model, in a study
    of its own that it may refuse. Each borrower measures the model on its own patients.

    \b
    Example:
      concilium donors study.toml --plan
      concilium donors study.toml --out donors
    """
    from concilium.study import Study
    from concilium.study.donating import find_donors, plan_donors

    definition = Study.read(study)
    if plan:
        planned = plan_donors(definition)
        tell_plan(definition, planned, as_json, "the ranking of donors asks")
        if not planned.fits:
            raise typer.Exit(2)
        return
    if out is not None:
        refuse_file(out.absolute())
    try:
        with show_progress(quiet=as_json) as tell:
            results = find_donors(definition, out, resume=resume, on_progress=tell)
    except StudyPending as pending:
        again = shlex.join(["concilium", "donors", str(study), "--out", str(out), "--resume"])
        raise HouseError(f"{say_pending(definition, pending)}\nto go on then: {again}") from None
    except CannotResume as error:
        raise StudyError(f"{error.reason}; run it again without --resume") from None
    metrics = results.metrics
    if as_json:
        say_json(metrics)
        return
    _tell(metrics)
    if out is not None:
        say(f"results in {out}: {', '.join(['donors.json', *metrics['models'].values()])}")


def _tell(metrics: dict[str, Any]) -> None:
    say(
        f"{metrics['target']} = {metrics['positive']}: hospitals' own models, released as {metrics['release']}"
    )
    say_table(
        ["hospital", "accuracy", "positives", "AUC", "weight"],
        [
            [
                row["site"],
                f"{100 * row['accuracy']:.2f} %",
                str(row["positives"]),
                figure(row["auc"]),
                "–" if row["weight"] is None else f"{row['weight']:.2f}",
            ]
            for row in metrics["hospitals"]
        ],
    )
    if noise := metrics["noise"]:
        say(
            f"with noise of standard deviation {100 * noise['accuracy']:.2g} % in accuracy, {noise['auc']:.2g} in AUC "
            f"and {noise['positives']:.2g} positives; charged at every hospital: rho = {metrics['rho']:.6g}"
        )
    for name, row in metrics["borrowers"].items():
        say(f"{name} {_say_loan(row, at_home=noise is not None)}")
    if interval := metrics["interval"]:
        say(
            f"error of own models above that of lent ones: {interval['mean']:+.3f} "
            f"({interval['low']:+.3f} to {interval['high']:+.3f}, 95 %)"
        )
    for note in metrics["notes"]:
        warn(f"note: {note}")


def _say_loan(row: dict[str, Any], *, at_home: bool) -> str:
    if row["donor"] is None:
        return f"borrows from nobody: {row['why']}"
    said = f"borrows from {row['donor']}"
    if row.get("patients"):
        said += f": wrong for {row['wrong']} of {row['patients']} patients"
    else:
        return f"{said}, {'and measures the model itself' if at_home else 'and the model could not be measured there'}"
    if row.get("own_patients"):
        said += f" (its own model: {row['own_wrong']} of {row['own_patients']})"
    return said
