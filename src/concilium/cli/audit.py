"""`concilium audit`: what a model gives away of the patients it learned from, attacked by who has them at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concilium.cli.output import Json, ModelFile, say, say_json, say_table, show_progress
from concilium.errors import StudyError

if TYPE_CHECKING:
    from concilium.evaluation.audit import Audit


def audit(
    model: ModelFile,
    members: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Patients whom the model learned from.")
    ] = None,
    others: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Patients like them whom it did not.")
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="STUDY",
            help="The model's study: how columns are read, parameters for shadow models, and, without files, whom it "
            "held back.",
        ),
    ] = None,
    attribute: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="A sensitive attribute to guess.")
    ] = None,
    shadows: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Learn so many shadow models for a stronger attack; 64 are many."
        ),
    ] = 0,
    out: Annotated[Path | None, typer.Option(metavar="PAGE", help="Also write a page (HTML).")] = None,
    as_json: Json = False,
) -> None:
    """Attack a model: whom did it learn from, and what does it tell of them?

    \b
    Examples:
      concilium audit results/model.json --study study.toml
      concilium audit results/model.json --members learned.csv --others new.csv
      concilium audit results/model.json --study study.toml --attribute sex --shadows 64 --out audit.html
    """
    from concilium.study import Study
    from concilium.study.finished_models import AuditOrder

    if out is not None and out.is_dir():
        raise StudyError(f"{out}: is a folder; --out takes a file for the page")
    order = AuditOrder(
        model, members, others, None if study is None else Study.read(study), attribute, shadows
    )
    with show_progress(quiet=as_json) as tell:
        result = order.run(tell)
    if out is not None:
        from concilium.consult.audit_report import render_audit
        from concilium.study.results import write_whole

        write_whole(out, render_audit(result, model.name).encode())
    if as_json:
        say_json(result.to_dict())
        return
    _tell_audit(result)
    if out is not None:
        say(f"The page is {out}.")


def _tell_audit(audit: Audit) -> None:
    """The figures as tables, and what they mean."""
    from concilium.evaluation.audit import GUESSES, MEMBERSHIP, say_estimate, say_meaning

    inside, outside = audit.about
    say(
        f"{audit.method}, {audit.target}, released as {audit.release}: {inside:,} members, {outside:,} others"
    )
    say()
    alarms = list(next(iter(audit.membership.values())).found)
    rows = [
        [
            MEMBERSHIP[name] + (f", {audit.shadows} shadows" if name == "shadows" else ""),
            say_estimate(figures.advantage),
            say_estimate(figures.auc),
            *(say_estimate(figures.found[share], ".1%") for share in alarms),
        ]
        for name, figures in audit.membership.items()
    ]
    rows.append(["by chance", "0.000", "0.500", *(f"{float(share):.1%}" for share in alarms)])
    if audit.bound is not None:
        rows.append(
            [f"at most, by epsilon {audit.bound.epsilon:.3g}", f"{audit.bound.by_epsilon:.3f}", "", "", ""]
        )
        rows.append(["at most, by its rho", f"{audit.bound.least:.3f}", "", "", ""])
    say_table(
        ["who is a member?", "TPR - FPR", "AUC", *(f"found at {float(share):.1%} FPR" for share in alarms)],
        rows,
    )
    if audit.attribute is not None:
        say()
        say_table(
            [f"{audit.attribute.attribute}, guessed by", "members", "others", "difference"],
            [
                [
                    GUESSES[name],
                    say_estimate(g.members, ".1%"),
                    say_estimate(g.others, ".1%"),
                    say_estimate(g.advantage),
                ]
                for name, g in audit.attribute.guesses.items()
            ],
        )
    for sentence in say_meaning(audit):
        say()
        say(sentence)
