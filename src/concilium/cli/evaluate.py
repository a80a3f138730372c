"""`concilium evaluate`: a model that exists, measured at the hospitals of a study file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import (
    Json,
    ModelFile,
    figure,
    refuse_file,
    say,
    say_json,
    say_table,
    show_progress,
    warn,
)
from concilium.cli.results import COLUMNS, calibrated_row, tell_subgroups
from concilium.cli.run import ALARMED, StudyFile, Wait, tell_plan
from concilium.errors import StudyError

if TYPE_CHECKING:
    from concilium.study import Study
    from concilium.study.validating import ValidatedStudy

SITES_SHOWN = 30


def evaluate(
    model: ModelFile,
    study: StudyFile,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="Only patients since this day: admitted=2025-01-01, or the day alone with [evaluate] date.",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ATTRIBUTE",
            help="Measure in subgroups too: sex, or age=50,65,80. Repeat it for several attributes.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder for the results.")] = None,
    kit: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Your own kit: the hospitals are those of its network (flare)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="With --kit: go on where a person had to agree.")
    ] = False,
    wait: Wait = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Say what it would ask and cost, and whether it fits; measure nothing."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with status 3 where the figures raise an alarm.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a model at hospitals that may have had no part in it.

    Every hospital counts its patients by predicted risk and outcome, and releases the counts as [privacy] of the study
    says: exact, masked, or private at its epsilon. With --since, figures are compared with those on the model's card:
    has it drifted?

    \b
    Example:
      concilium evaluate results/model.json others.toml --plan
      concilium evaluate results/model.json others.toml
      concilium evaluate results/model.json others.toml --since admitted=2025-01-01 --out later
      concilium evaluate results/model.json others.toml --by sex --by age=50,65,80
      concilium evaluate results/model.json others.toml --kit kits/ana@example.org --out elsewhere
    """
    from concilium.study import Study
    from concilium.study.validating import plan_validation, validate_at_hospitals

    definition = Study.read(study, elsewhere=kit is not None)
    if plan:
        planned = plan_validation(model, definition, since, by or ())
        tell_plan(definition, planned, as_json, "the evaluation asks")
        if not planned.fits:
            raise typer.Exit(2)
        return
    if kit is not None:
        validated = _submit(model, definition, kit, out, since, by or (), resume, wait, as_json)
    elif resume or wait is not None:
        raise StudyError("--resume and --wait are for hospitals on machines of their own: give --kit as well")
    else:
        validated = validate_at_hospitals(model, definition, since, by or ())
        if out is not None:
            validated.write(out)
    metrics = validated.metrics
    if as_json:
        say_json(metrics)
    else:
        _tell(metrics)
        if out is not None:
            say(f"results in {out}: evaluation.json, card.json, report.html")
    if strict and metrics["alarms"]:
        raise typer.Exit(ALARMED)


def _submit(
    model: Path,
    study: Study,
    kit: Path,
    out: Path | None,
    since: str | None,
    by: Sequence[str],
    resume: bool,
    wait: float | None,
    as_json: bool,
) -> ValidatedStudy:
    """Have the hospitals of a network measure the model."""
    from concilium.cli.flare import open_own, require_flare, submit_until

    require_flare()
    from concilium.transports.flare.kit import Kit
    from concilium.transports.flare.submitting import submit_validation

    if out is None:
        raise StudyError("say where the results go: --out DIR")
    refuse_file(out.absolute())
    own = open_own(Kit.open(kit, "person"))
    again = ["concilium", "evaluate", str(model), str(study.path), "--kit", str(kit), "--out", str(out)]
    again += [*(["--since", since] if since else []), *(word for one in by for word in ("--by", one))]
    with show_progress(quiet=as_json) as tell:
        submit = partial(submit_validation, model, study, own, out, since=since, by=by, tell=tell, warn=warn)
        return submit_until(
            study, submit, again, resume, study.house.patience if wait is None else wait, tell
        )


def _tell(metrics: dict[str, Any]) -> None:
    for alarm in metrics["alarms"]:
        warn(f"alarm: {alarm}")
    say(
        f"{metrics['target']} = {metrics['positive']}: {metrics['measured']}, released as {metrics['release']}"
    )
    rows = [("overall", metrics["overall"] | {"calibration": metrics["risks"] or {}})]
    if len(metrics["sites"]) <= SITES_SHOWN:
        rows += metrics["sites"].items()
    say_table(COLUMNS, [calibrated_row(*one) for one in rows])
    _tell_drift(metrics.get("drift"))
    tell_subgroups(metrics)
    for name, one in (metrics["heterogeneity"] or {}).items():
        if name in ("auc", "slope") and one is not None:
            shown = {"auc": "AUC", "slope": "calibration slope"}[name]
            low, high = (figure(end) for end in one["prediction"])
            say(
                f"{shown} over {one['hospitals']} hospitals: mean {figure(one['mean'])}; that of a further hospital is "
                f"expected between {low} and {high} (95 %)"
            )
    _tell_gain(metrics["heterogeneity"])
    if metrics["rho"]:
        say(f"charged at every hospital: rho = {metrics['rho']:.6g}")
    for note in metrics["notes"]:
        warn(f"note: {note}")


def _tell_drift(drift: dict[str, Any] | None) -> None:
    """The figures beside those of the model's card."""
    from concilium.evaluation.drift import NAMES

    if drift is None:
        return
    say(f"when it was learned: {drift['before']}")
    say_table(
        ["", "then", "now", "change", "95 %"],
        [
            [
                NAMES[name],
                figure(one["before"]),
                figure(one["now"]),
                f"{one['change']:+.3f}",
                "" if one["interval"] is None else " to ".join(f"{end:+.3f}" for end in one["interval"]),
            ]
            for name, one in drift["figures"].items()
        ],
    )
    say(f"patients by predicted risk: stability index {drift['stability_index']:.3f} (below 0.25 is stable)")


def _tell_gain(heterogeneity: dict[str, Any] | None) -> None:
    """Where an intercept of the hospital's own would help most."""
    gains = {
        site: one["brier"] - one["recalibrated"]
        for site, one in (heterogeneity or {}).get("recalibrated", {}).items()
        if one is not None
    }
    if gains:
        most = max(gains, key=lambda site: gains[site])
        say(
            f"local recalibration (concilium adapt) would gain most at {most}: Brier lower by {gains[most]:.4f}"
        )
