"""`concilium run`: a study file in; model.json, metrics.json, card.json and report.html out, all or nothing.

Work in progress is kept in a hidden folder beside the results: finished rounds (journal), finished folds,
ledgers of hospitals that name none. It is what `--resume` goes on from, and gone once the results are there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import Tell, figure, say, say_json, say_table, show_progress, size, warn
from concilium.errors import ConciliumError, HouseError, StudyError

if TYPE_CHECKING:
    from concilium.evaluation.leave_out import FoldResult
    from concilium.federation.card import Card
    from concilium.federation.house import House
    from concilium.federation.site import Site
    from concilium.records.table import Records, Value
    from concilium.study import Evaluate, Study
    from concilium.trees.tree import DecisionTree

SITES_SHOWN = 12
WARNINGS_SHOWN = 3
LEAVES_SHOWN = 24
LEAVES_DRAWN = 1000
SHOWN = {
    "accuracy": "accuracy",
    "balanced": "balanced_accuracy",
    "AUC": "auc",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
}


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
    say(f"results in {out}: {', '.join(RESULTS)}")


@dataclass(frozen=True)
class Results:
    """A fitted model with its figures, before any of it is written."""

    model: DecisionTree
    metrics: dict[str, Any]


RESULTS = ("model.json", "metrics.json", "card.json", "tree.svg", "report.html")


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
    from concilium.evaluation.leave_out import find_classes, measure_model, summarise

    method = study.open_method()
    tables, test = study.read_tables(), study.read_test_file()
    classes = find_classes([*tables.values(), *test.values()], study.target)
    positive = study.find_positive(classes)
    warn_of_deltas(study, tables)
    bind(workshop, study, [*tables.values(), *test.values()])
    sites = study.open_sites(tables, spare=workshop / "ledgers")
    try:
        learning, held_back = hold_back(study, tables, sites)
        begun = time.perf_counter()
        model = method.fit(open_house(study, learning.values(), workshop / "model.journal", on_round))
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
    if folds_took is not None:
        metrics["folds_took"] = folds_took
    if study.evaluate is not None and study.evaluate.compare:
        on_round("comparing with local, pooled and donor models")
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


def hold_back(
    study: Study, tables: Mapping[str, Records], sites: Mapping[str, Site]
) -> tuple[Mapping[str, Site], dict[str, Records]]:
    """The sites as they learn, and the patients of each that are held back for evaluation (if any)."""
    from concilium.evaluation.leave_out import hold_out
    from concilium.federation.site import Site

    if study.evaluate is None or study.evaluate.holdout is None:
        return sites, {}
    learning, held_back = {}, {}
    for name, site in sites.items():
        held = hold_out(len(tables[name]), study.evaluate.holdout, study.name, name)
        # The ledger stays that of the whole table: holding patients back opens no new account.
        learning[name] = Site(name, tables[name].take(~held), site.policy, site.ledger, site.identity)
        held_back[name] = tables[name].take(held)
    return learning, held_back


def leave_out_together(
    study: Study,
    tables: Mapping[str, Records],
    sites: Mapping[str, Site],
    measure: Callable[..., FoldResult],
    workshop: Path,
    on_round: Tell,
) -> tuple[list[FoldResult], dict[str, Any]]:
    """The folds of leave-one-site-out or leave-one-band-out, learned in one conversation, and what that took."""
    import msgspec

    from concilium.evaluation.leave_out import Fold, FoldResult, deal_folds
    from concilium.evaluation.shared_folds import learn_folds

    assert study.evaluate is not None
    folds = deal_folds({name: len(table) for name, table in tables.items()}, study.evaluate.bands)
    kept = workshop / "folds.json"
    on_disk = any(hospital.ledger for hospital in study.hospitals)
    partners = sites if on_disk else study.open_sites(tables)
    if not kept.exists():

        def open_for(fold: Fold | None) -> House:
            place = f"{len(folds)} folds together" if fold is None else f"fold {folds.index(fold) + 1}"
            file = "folds.journal" if fold is None else f"fold-{folds.index(fold) + 1}.journal"
            members = [partners[name] for name in (partners if fold is None else fold.learn)]
            journal = workshop / file if on_disk else None
            return open_house(study, members, journal, lambda text: on_round(f"{place}, {text}"))

        begun = time.perf_counter()
        learned = learn_folds(study.open_method, folds, open_for)
        seconds = time.perf_counter() - begun
        took = describe_folds(learned.together, learned.card, seconds)
        results = []
        for fold, model in zip(folds, learned.models, strict=True):
            patients = widen({name: tables[name] for name in fold.left_out}, tables)
            result = measure(model, seconds / len(folds), patients, left_out=fold.left_out)
            # A fold that asked nothing itself has an equal share of what was exchanged for all.
            share = result.bytes or took["bytes"] // max(learned.together, 1)
            results.append(msgspec.structs.replace(result, bytes=share))
        write_whole(kept, msgspec.json.encode((results, took)))
    return msgspec.json.decode(kept.read_bytes(), type=tuple[list[FoldResult], dict[str, Any]])


def describe_folds(together: int, card: Card | None, seconds: float) -> dict[str, Any]:
    """What the conversation took in which folds were learned together, for metrics.json."""
    return {
        "together": together,
        "rounds": card.rounds if card else 0,
        "bytes": card.bytes if card else 0,
        "numbers": sum(release.numbers for release in card.releases) if card else 0,
        "seconds": round(seconds, 3),
    }


def compare_ways(
    study: Study,
    tables: Mapping[str, Records],
    results: list[FoldResult],
    classes: list[Value],
    positive: Value | None,
) -> dict[str, Any]:
    """Local, federated, pooled and donor models side by side, for metrics.json."""
    from concilium.evaluation.comparison import compare, learn_in_every_way

    federated = {outcome.site: outcome for result in results for outcome in result.outcomes}
    ways, donors = learn_in_every_way(
        study.open_method,
        tables,
        {site: federated[site] for site in tables},
        query=study.query,
        target=study.target,
        positive=positive,
        classes=classes,
        study=study.name,
    )
    return {**compare(ways, positive), "donors": donors}


def leave_out(
    study: Study,
    tables: Mapping[str, Records],
    sites: Mapping[str, Site],
    measure: Callable[..., FoldResult],
    workshop: Path,
    on_round: Tell,
) -> list[FoldResult]:
    """The folds where each must be learned and charged alone; a finished fold is kept and not run again."""
    import msgspec

    from concilium.evaluation.leave_out import FoldResult, deal_folds

    assert study.evaluate is not None
    folds = deal_folds({name: len(table) for name, table in tables.items()}, study.evaluate.bands)
    on_disk = any(hospital.ledger for hospital in study.hospitals)
    # Where no hospital keeps a ledger of its own, folds are charged in memory: thousands of charges that
    # nobody will read need not wait for the disk, and a fold is quickly run again.
    partners = sites if on_disk else study.open_sites(tables)
    results = []
    for number, fold in enumerate(folds, start=1):
        kept = workshop / f"fold-{number}.json"
        if not kept.exists():

            def tell_fold(text: str, place: str = f"fold {number} of {len(folds)}") -> None:
                on_round(f"{place}, {text}")

            journal = workshop / f"fold-{number}.journal" if on_disk else None
            house = open_house(study, [partners[name] for name in fold.learn], journal, tell_fold)
            begun = time.perf_counter()
            model = study.open_method().fit(house)
            seconds = time.perf_counter() - begun
            patients = widen({name: tables[name] for name in fold.left_out}, tables)
            write_whole(kept, msgspec.json.encode(measure(model, seconds, patients, left_out=fold.left_out)))
        results.append(msgspec.json.decode(kept.read_bytes(), type=FoldResult))
    return results


def open_house(study: Study, sites: Iterable[Site], journal: Path | None, on_round: Tell) -> House:
    from concilium.federation.house import House

    return House(
        list(sites),
        timeout=study.house.timeout,
        on_loss=study.house.on_loss,
        journal=journal,
        # Beside the study, so that the next run notices a ledger that was put back to an older copy.
        memory=study.path.with_suffix(".house.json") if any(h.ledger for h in study.hospitals) else None,
        on_round=on_round,
    )


def widen(patients: Mapping[str, Records], tables: Mapping[str, Records]) -> dict[str, Records]:
    """Patients to be predicted, with the columns that only other sites have as missing."""
    from concilium.evaluation.leave_out import complete

    names = {name for table in tables.values() for name in table.names}
    return {site: complete(table, sorted(names)) for site, table in patients.items()}


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


def tabulate(
    study: Study, model: DecisionTree, seconds: float, measured: dict[str, Any], positive: Value | None
) -> dict[str, Any]:
    """metrics.json: the overall figures under plain names, then the same for each site and each fold."""
    from concilium.evaluation.metrics import FIGURES

    epsilon = total_epsilon(study) if study.privacy.release == "private" else None
    overall = {
        "patients": 0,
        **dict.fromkeys(FIGURES),
        **measured["overall"],
        "rounds": model.card.rounds,
        "bytes": model.card.bytes,
        "seconds": round(seconds, 3),
        "epsilon": epsilon,
    }
    return {
        "study": study.name,
        "method": study.method,
        "target": study.target,
        "positive": positive,
        "evaluation": describe_evaluation(study),
        **overall,
        "overall": overall,
        "sites": {site: {**row, "epsilon": epsilon} for site, row in measured["sites"].items()},
        "folds": measured["folds"],
    }


def total_epsilon(study: Study) -> float | None:
    """What the study spends per patient: that of its model, and of every fold a site takes part in."""
    from concilium.cli.plan import count_fits
    from concilium.privacy.accounting import epsilon_from_rho

    fits = count_fits(study)
    if fits == 1:
        return study.privacy.epsilon
    return round(epsilon_from_rho(study.open_method().plan().total * fits, study.privacy.delta), 6)


def describe_evaluation(study: Study) -> str:
    """How the figures came about, in a sentence."""
    evaluate = study.evaluate
    if evaluate is None:
        return "not evaluated: the study file has no [evaluate]"
    if study.privacy.release == "private":
        # In a simulation all records are at hand; between hospitals such figures would be releases of their own.
        return f"{_describe_held_back(evaluate)} (exact figures of a simulation, not covered by epsilon)"
    return _describe_held_back(evaluate)


def _describe_held_back(evaluate: Evaluate) -> str:
    if evaluate.bands is not None:
        return (
            f"{evaluate.bands} bands of sites, each left out in turn and predicted by a model of the others"
        )
    if evaluate.leave_out is not None:
        return "every site left out in turn and predicted by a model of the others"
    if evaluate.holdout is not None:
        return f"{evaluate.holdout:.0%} of the patients of every site, held back from learning"
    return f"the patients of {evaluate.file}"


def write_results(study: Study, results: Results, folder: Path) -> None:
    """All files in a folder of their own."""
    from concilium.consult.report import render_report

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    card = results.model.card.to_dict()
    report = render_report(
        metrics=results.metrics,
        card=card,
        drawing=results.model.text(),
        query=study.query,
        picture=results.model.to_svg(most_leaves=LEAVES_SHOWN),
    )
    results.model.save(folder / "model.json")
    write_json(folder / "metrics.json", results.metrics)
    write_json(folder / "card.json", card)
    write_whole(folder / "tree.svg", results.model.to_svg(most_leaves=LEAVES_DRAWN).encode())
    write_whole(folder / "report.html", report.encode())


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there in full or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None


def publish(finished: Path, out: Path) -> None:
    """Put finished results in place; other files of an existing folder are left alone."""
    try:
        if out.exists():
            for file in sorted(finished.iterdir()):
                file.replace(out / file.name)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            finished.rename(out)
    except OSError as error:
        raise StudyError(f"{out}: cannot be written ({error.strerror})") from None


def tell_results(study: Study, results: Results) -> None:
    """What came out, for people: a line, the figures, and what to be warned of."""
    card, metrics = results.model.card, results.metrics
    say(
        f"{study.name}: learned from {count(len(card.sites), 'site')} in {count(card.rounds, 'round')}, "
        f"{size(card.bytes)}, {metrics['seconds']:.1f} s"
    )
    if study.evaluate is not None:
        rows = [("overall", metrics["overall"])]
        if len(metrics["sites"]) <= SITES_SHOWN:
            rows += metrics["sites"].items()
        say(
            f"evaluated on {metrics['evaluation']}" if not study.evaluate.leave_out else metrics["evaluation"]
        )
        say_table(
            ["", "patients", *SHOWN],
            [
                [name, str(row["patients"]), *(figure(row[key]) for key in SHOWN.values())]
                for name, row in rows
            ],
        )
    if "comparison" in metrics:
        tell_comparison(metrics["comparison"])
    for warning in card.warnings[:WARNINGS_SHOWN]:
        warn(f"warning: {warning}")
    if len(card.warnings) > WARNINGS_SHOWN:
        warn(f"and {count(len(card.warnings) - WARNINGS_SHOWN, 'more warning')}: see report.html")


def tell_comparison(comparison: Mapping[str, Any]) -> None:
    """How many patients each way of learning diagnoses wrongly."""
    say("wrongly diagnosed when learned")
    say_table(
        ["", "patients", "wrong", "accuracy", "AUC"],
        [
            [way, str(row["patients"]), str(row["wrong"]), figure(row["accuracy"]), figure(row["auc"])]
            for way, row in ((way, row["same_patients"]) for way, row in comparison["ways"].items())
            if row["patients"]
        ],
    )


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
