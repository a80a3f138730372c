"""`concilium adapt`: a model that was received, with an intercept and perhaps a slope of this hospital's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concilium.cli.output import Json, ModelFile, figure, say, say_json, say_table
from concilium.errors import ModelError

if TYPE_CHECKING:
    from concilium.study.finished_models import AdaptedAtHome


def adapt(
    model: ModelFile,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="The hospital's own patients, with their outcomes; of a model of courses, their series.",
        ),
    ],
    site: Annotated[
        str, typer.Option(metavar="NAME", help="The hospital, by the name it took part with, if it did.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The model file of the adapted model.")],
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="The hospital's map of this table.")
    ] = None,
    database_table: Annotated[str | None, typer.Option("--table", help="The table in a database.")] = None,
    records: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Of a model of courses with a query: the table of the same patients."
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="STUDY",
            help="Of a model of courses: a study file whose [series] names the columns of TABLE.",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="PAGE", help="Also write a page (HTML).")] = None,
    as_json: Json = False,
) -> None:
    """Adapt a model to this hospital's own patients, locally: an intercept and, of many patients, a slope.

    Nothing leaves, and nothing is charged. The adapted model holds numbers about these patients, and stays here.

    \b
    Examples:
      concilium adapt results/model.json north.csv --site north --out north.json
      concilium adapt results/model.json north-stays.csv --site north --study study.toml --out north.json
      concilium consult north.json age=63 sex=f
    """
    from concilium.study import Study
    from concilium.study.finished_models import AdaptationOrder
    from concilium.study.results import write_whole

    for place in filter(None, (out, report)):
        if place.is_dir():
            raise ModelError(f"{place}: is a folder; give a file")
    if out.exists() and out.samefile(model):
        raise ModelError(f"{out}: is the model that was received; write the adapted one to another file")
    home = AdaptationOrder(
        model,
        table,
        site,
        map_file,
        database_table,
        None if study is None else Study.read(study),
        records,
    ).run()
    home.model.save(out)
    if report is not None:
        write_whole(report, home.report().encode())
    if as_json:
        say_json(home.to_dict())
        return
    _tell(home)
    say(f"{out}: the adapted model, for this hospital alone")
    if report is not None:
        say(f"{report}: a page about it, for this hospital alone")


def _tell(home: AdaptedAtHome) -> None:
    """What was changed, why, and what that is worth."""
    from concilium.models.recalibrated import say_adapted

    for sentence in say_adapted(home.model.adaptation, home.model.origin):
        say(sentence)
    rows = {"as received": home.before, "adapted": home.after}
    if "range" in home.after:
        columns = {"RMSE": "rmse", "mean error": "mae", "R²": "r2"}
        cells = {
            name: [figure(row[key], key != "r2") for key in columns.values()] for name, row in rows.items()
        }
    else:
        columns = {"accuracy": "accuracy", "balanced": "balanced_accuracy", "AUC": "auc"}
        cells = {name: [figure(row[key]) for key in columns.values()] for name, row in rows.items()}
    risks = ("brier", "slope", "intercept") if home.after["risks"] else ()
    for name, row in rows.items():
        cells[name] += [figure(row["risks"][key]) for key in risks]
    say(home.after["evaluation"])
    say_table(["", *columns, *risks], [[name, *row] for name, row in cells.items()])
