"""`concilium run`: a study file in; model.json, metrics.json, card.json and report.html out, all or nothing.

Work in progress is kept in a hidden folder beside the results: finished rounds (journal), finished folds,
ledgers of hospitals that name none. It is what `--resume` goes on from, and gone once the results are there.
"""

from __future__ import annotations

import functools
import hashlib
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concilium.cli.evaluating import compare_ways, hold_back, leave_out, leave_out_together, widen
from concilium.cli.output import Tell, say, say_json, show_progress, warn
from concilium.cli.results import (
    RESULTS,
    Results,
    publish,
    tabulate,
    tell_results,
    write_results,
    write_whole,
)
from concilium.errors import ConciliumError, HouseError, StudyError

if TYPE_CHECKING:
    from concilium.evaluation.leave_out import FoldResult
    from concilium.records.table import Records
    from concilium.study import Study


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
    from concilium.cli.plan import tell_plan
    from concilium.study import Study

    asked = Study.read(study)
    if plan:
        tell_plan(asked, as_json)
        return
    if out is None:
        raise StudyError("say where the results go: --out DIR (or --plan, to see what it would cost)")
    with show_progress(quiet=as_json) as tell:
        results = run_study(asked, out, resume, tell)
    if as_json:
        say_json(results.metrics)
        return
    tell_results(asked, results)
    say(f"results in {out}: {', '.join(name for name in RESULTS if (out / name).exists())}")


def run_study(study: Study, out: Path, resume: bool, tell: Tell) -> Results:
    """Conduct a study and put its results in place; whatever goes wrong, no half of them is left behind."""
    workshop = open_workshop(out, resume)
    rounds = 0

    def on_round(text: str) -> None:
        nonlocal rounds
        rounds += 1
        tell(text)

    keep = resume
    try:
        tell("reading records")
        results = conduct(study, workshop, on_round)
        write_results(study, results, workshop / "results")
        publish(workshop / "results", out)
        keep = False
    except HouseError as error:
        # Only a house that stops for a lost site will ask it again; any other end would come out the same.
        stops = study.house.on_loss == "stop" or study.privacy.release != "exact"
        if stops and rounds > 1:
            keep = True
            raise HouseError(f"{error}; {hint(study.path, out)}") from None
        raise
    except ConciliumError:
        raise
    except BaseException as error:
        keep = True
        warn(f"not finished; {hint(study.path, out)}")
        # A Ctrl-C that hits a lock while it is being released comes out as that lock's complaint.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        if not keep:
            shutil.rmtree(workshop, ignore_errors=True)
    return results


def hint(study: Path, out: Path) -> str:
    command = shlex.join(["concilium", "run", str(study), "--out", str(out), "--resume"])
    return f"to go on from the last finished round: {command}"


def open_workshop(out: Path, resume: bool) -> Path:
    """The folder for work in progress, beside where the results will be; fresh unless resuming."""
    out = out.absolute()
    if out.exists() and not out.is_dir():
        raise StudyError(f"{out}: is a file; --out takes a folder")
    ground = next(parent for parent in out.parents if parent.is_dir())
    token = hashlib.sha256(str(out).encode()).hexdigest()[:8]
    workshop = ground / f".{out.name}.{token}.partial"
    try:
        if workshop.exists() and not resume:
            shutil.rmtree(workshop)
        (workshop / "ledgers").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"{ground}: cannot be written to ({error.strerror})") from None
    return workshop


def conduct(study: Study, workshop: Path, on_round: Tell) -> Results:
    """Fit the study's method with all its sites, and evaluate it as the study says."""
    from concilium.evaluation.leave_out import calibrate_all, measure_model, summarise

    method = study.open_method()
    tables, test = study.read_tables(), study.read_test_file()
    classes = study.find_classes([*tables.values(), *test.values()])
    positive = study.find_positive(classes)
    warn_of_deltas(study, tables)
    bind(workshop, study, [*tables.values(), *test.values()])
    sites = study.open_sites(tables, spare=workshop / "ledgers")
    try:
        learning, held_back = hold_back(study, tables, sites)
        begun = time.perf_counter()
        model = method.fit(study.open_house(learning.values(), workshop / "model.journal", on_round))
        seconds = time.perf_counter() - begun
        whole = functools.partial(measure_model, query=study.query, target=study.target, classes=classes)
        results: list[FoldResult] = []
        folds_took = None
        if study.evaluate is None:
            pass
        elif study.evaluate.leave_out is not None and study.privacy.release == "exact":
            results, folds_took = leave_out_together(study, tables, sites, whole, workshop, on_round)
        elif study.evaluate.leave_out is not None:
            results = leave_out(study, tables, sites, whole, workshop, on_round)
        else:
            results = [whole(model, seconds, widen({**held_back, **test}, tables))]
    finally:
        for site in sites.values():
            site.ledger.close()
    measured = summarise(results, positive) if results else {"overall": {}, "sites": {}, "folds": []}
    metrics = tabulate(study, model, seconds, measured, positive)
    if study.target_range is not None:
        metrics["calibration"] = calibrate_all(results)
    if folds_took is not None:
        metrics["folds_took"] = folds_took
    if study.evaluate is not None and study.evaluate.compare:
        on_round(f"comparing with local{', pooled and donor' if classes else ' and pooled'} models")
        metrics["comparison"] = compare_ways(study, tables, results, classes, positive)
    return Results(model, metrics)


def warn_of_deltas(study: Study, tables: Mapping[str, Records]) -> None:
    """Say where delta is so large that it allows publishing somebody's whole record."""
    from concilium.privacy.accounting import warn_of_delta

    if study.privacy.release != "private":
        return
    for name, table in tables.items():
        said = warn_of_delta(study.privacy.delta, len(table))
        if said is not None:
            warn(f"warning: {name}: {said}")


def bind(workshop: Path, study: Study, tables: Iterable[Records]) -> None:
    """Tie the work in progress to this study and these records, so that only the same can resume it."""
    mark = hashlib.sha256("\n".join([study.digest, *(table.digest for table in tables)]).encode()).hexdigest()
    bound = workshop / "study.sha256"
    if bound.exists() and bound.read_text() != mark:
        raise StudyError(
            f"{study.path}: the study or its records have changed since the run that was interrupted; "
            "run it again without --resume"
        )
    write_whole(bound, mark.encode())
