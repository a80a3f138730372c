"""`concilium demo`: eight parts on real and synthetic patients, embedded in one process.

Study files come with the package (demo_studies/, to copy and change); patients come from demo_patients.py.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import figure, refuse_file, say, say_table, show_progress
from concilium.cli.results import SHOWN
from concilium.cli.run import run_study
from concilium.errors import HouseError, StudyError

if TYPE_CHECKING:
    from pandas import DataFrame

    from concilium.study import Study
    from concilium.study.results import StudyResults

STUDIES = Path(__file__).parent / "demo_studies"
RULES_SHOWN = 6
WARDS, PATIENTS_OF_A_WARD = ("north", "south", "west"), 300
PUBLIC_STAYS = 200
CODED_PATIENTS = 6000


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder for everything the demo writes.")
    ] = Path("concilium-demo"),
    departments: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Only write the tables of four synthetic departments, each with its own codes and units, for the "
            "tutorial.",
        ),
    ] = None,
) -> None:
    """Run four studies on real patients and three on synthetic ones, share codes, and write everything to a folder.

    \b
    Examples:
      concilium demo --out /tmp/concilium-demo
      concilium demo --departments heart
    """
    from concilium.cli.demo_patients import find_omop, find_patients, write_departments

    if departments is not None:
        refuse_file(departments)
        for name, many in write_departments(departments).items():
            say(f"{departments / name}.csv: {many} synthetic patients")
        return
    load, database = find_patients(), find_omop()
    refuse_file(out)
    _run_dialysis(load("Dialysis"), out / "dialysis")
    say()
    patients = load("rhc")
    tree = _run_intensive_care(patients, out / "intensive-care")
    say()
    _run_early_death(patients, out / "early-death")
    say()
    _run_rules(patients, out / "rules", tree)
    say()
    _run_courses(out / "courses")
    say()
    _run_experts(out / "experts")
    say()
    _run_sharing(out / "sharing")
    say()
    _run_omop(database, out / "omop")
    say()
    say(f"Everything is in {out}. Open {out / 'intensive-care' / 'results' / 'report.html'}, or go on with:")
    if activation := _find_activation():
        say(f"  {activation}")
    say("  " + shlex.join(["concilium", "run", str(out / "dialysis" / "study.toml"), "--out", "again"]))
    say("  " + shlex.join(["concilium", "ledger", str(out / "intensive-care" / "hospital-01.ledger")]))
    say("Look at all of it in a browser:")
    say("  " + shlex.join([_find_command(), "console", str(out)]))


def _find_command() -> str:
    """How to call `concilium` from here: by its name, or by its place where no environment is active."""
    beside = Path(sys.executable).with_name("concilium")
    return "concilium" if shutil.which("concilium") or not beside.exists() else os.path.relpath(beside)


def _find_activation() -> str:
    """The line that puts `concilium` on the path of a shell; empty where it is there already."""
    script = Path(sys.executable).with_name("activate")
    found = script.exists() and not shutil.which("concilium")
    return f"source {shlex.quote(os.path.relpath(script))}" if found else ""


def _lay_out(folder: Path, tables: dict[str, DataFrame]) -> Path:
    """Put the demo's study files of this folder, and the tables that they name, into it; return the study file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in (STUDIES / folder.name).glob("*.*"):
            shutil.copyfile(file, folder / file.name)
        for name, table in tables.items():
            table.to_csv(folder / f"{name}.csv", index=False)
    except OSError as error:
        raise StudyError(f"{folder}: cannot be written to ({error.strerror})") from None
    return folder / "study.toml"


def _read(file: Path) -> Study:
    from concilium.study import Study

    return Study.read(file)


def _run(file: Path) -> StudyResults:
    with show_progress(quiet=False) as tell:
        results: StudyResults = run_study(_read(file), file.parent / "results", resume=False, tell=tell)
    return results


def _run_dialysis(patients: DataFrame, folder: Path) -> None:
    """Leave out one real dialysis centre after the other."""
    from concilium.cli.demo_patients import list_dialysis_patients

    table = list_dialysis_patients(patients)
    file = _lay_out(folder, {"patients": table})
    say(
        f"1. {table['centre'].nunique()} real dialysis centres, {len(table)} patients: who dies within a year? "
        "Each centre is predicted by a model of the others."
    )
    results = _run(file)
    say_table(
        ["", "patients", "died", "accuracy", "AUC"],
        [
            [
                "centres not in the model",
                str(results.metrics["patients"]),
                f"{(table['died'] == 'yes').mean():.0%}",
                figure(results.metrics["accuracy"]),
                figure(results.metrics["auc"]),
            ]
        ],
    )
    say(results.model.text())


def _run_intensive_care(patients: DataFrame, folder: Path) -> dict[str, Any]:
    """Show local, federated and pooled models side by side, and explain one patient; return the federated figures."""
    from concilium.cli.demo_patients import deal_patients
    from concilium.study.evaluating import compare_held_back, hold_back
    from concilium.study.sources import read_tables

    table = deal_patients(patients, days=30)
    hospitals = {str(name): part.drop(columns="hospital") for name, part in table.groupby("hospital")}
    study = _read(_lay_out(folder, {name.replace(" ", "-"): part for name, part in hospitals.items()}))
    say(
        f"2. {len(table)} intensive-care patients, dealt to {len(hospitals)} hospitals: who dies within 30 days? "
        "30% of each hospital's patients are held back and predicted."
    )
    with show_progress(quiet=False) as tell:
        results = run_study(study, folder / "results", resume=False, tell=tell)
        tell("the same patients without the other hospitals, and in one table")
        tables = read_tables(study)
        ways, pooled_model = compare_held_back(study, tables)
    rows = {
        "each hospital alone": ways["local"],
        "together (federated)": results.metrics,
        "one table (pooled)": ways["pooled"],
    }
    _say_figures(rows)
    if pooled_model.body == results.model.body:
        say("The federated tree is the pooled one, node for node.")
    _, held_back = hold_back(study, tables)
    first = next(iter(held_back.values()))
    patient = {name: first.values(name)[0] for name in first.names}
    outcome = patient.pop("died")
    file = folder / "patient.json"
    file.write_text(json.dumps(patient, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    say(f"One of the patients held back (who {'died' if outcome == 'yes' else 'lived'}), explained:")
    say()
    say("$ " + shlex.join(["concilium", "consult", str(folder / "results" / "model.json"), str(file)]))
    say(str(results.model.explain(patient)))
    metrics: dict[str, Any] = results.metrics
    return metrics


def _run_early_death(patients: DataFrame, folder: Path) -> None:
    """Show one tree beside an ensemble of trees, for a rare outcome of the same patients."""
    from concilium.cli.demo_patients import HOSPITALS, deal_patients

    table = deal_patients(patients, days=2)
    file = _lay_out(folder, {"patients": table})
    rare = int((table["died"] == "yes").sum())
    say(
        f"3. {len(table)} intensive-care patients in {HOSPITALS} hospitals: who dies within two days? "
        f"Only {rare} do ({rare / len(table):.1%})."
    )
    results = _run(file)
    trees = len(results.model.pictures())
    rows = {
        "one tree": _read(folder / "one-tree.toml").run().metrics,
        "1 tree of a balanced sample" if trees == 1 else f"{trees} trees that vote": results.metrics,
    }
    _say_figures(rows)


def _run_rules(patients: DataFrame, folder: Path, tree: dict[str, Any]) -> None:
    """Show rules beside the tree of the second study, on the same patients."""
    from concilium.cli.demo_patients import deal_patients

    table = deal_patients(patients, days=30)
    file = _lay_out(folder, {"patients": table})
    say(
        f"4. The {len(table)} intensive-care patients of the second study once more, with rules instead of a tree, and "
        "with masks, so that the clearing house sees sums over all hospitals only."
    )
    results = _run(file)
    _say_figures({"the tree": tree, "rules": results.metrics})
    say("\n".join(results.model.text().splitlines()[: RULES_SHOWN + 1]))


def _make_wards() -> dict[str, DataFrame]:
    from concilium.cli.demo_patients import make_ward

    return {name: make_ward(PATIENTS_OF_A_WARD, seed) for seed, name in enumerate(WARDS, start=1)}


def _run_courses(folder: Path) -> None:
    """Find what patients have in common, from measurements over time, privately."""
    file = _lay_out(folder, _make_wards())
    say(
        f"5. {len(WARDS) * PATIENTS_OF_A_WARD} synthetic patients on {len(WARDS)} wards, measured every hour: which "
        "temporal rules do many have, and what do these say of sepsis? Every patient is protected at epsilon = 4."
    )
    results = _run(file)
    _say_figures({"patients held back": results.metrics})
    say("\n".join(results.model.text().splitlines()[: RULES_SHOWN + 1]))
    discovery = results.metrics["discovery"]
    say(
        f"Of the {discovery['truth']} forms of rules that 5% have, {discovery['coverage']:.0%} were found; of the "
        f"{discovery['rules']} found, {discovery['precision']:.0%} are among them."
    )


def _run_experts(folder: Path) -> None:
    """Train a student of networks of single patients, privately, and explain one patient."""
    from concilium.cli.demo_patients import make_ward

    file = _lay_out(folder, {**_make_wards(), "public": make_ward(PUBLIC_STAYS, len(WARDS) + 1)})
    say(
        f"6. The same {len(WARDS) * PATIENTS_OF_A_WARD} patients: up to 150 of those who fall ill train a small "
        f"network each. What these say of {PUBLIC_STAYS} other stays teaches a student: epsilon = 6 once, however "
        "often it is asked."
    )
    results = _run(file)
    _say_figures({"patients held back": results.metrics})
    say("\n".join(results.model.text().splitlines()[1 : RULES_SHOWN + 3]))
    patient: dict[str, list[float]] = {"HR": [88, 95, 104, 112], "Temp": [37.2, 37.9, 38.4, 38.9]}
    pairs = [f"{name}={','.join(map(str, values))}" for name, values in patient.items()]
    say("$ " + shlex.join(["concilium", "consult", str(folder / "results" / "model.json"), *pairs]))
    say("\n".join(str(results.model.explain(patient)).splitlines()[: RULES_SHOWN - 1]))


def _run_sharing(folder: Path) -> None:
    """Share coded histories with the sensitive codes randomised, and show what a second copy would cost."""
    from concilium.cli.demo_patients import make_histories
    from concilium.cli.share import say_precision
    from concilium.consult.sharing_page import compare
    from concilium.study.code_sharing import SharingStudy

    file = _lay_out(folder, {"codes": make_histories(CODED_PATIENTS, seed=1)})
    for old in folder.glob("codes.csv.ledger*"):
        old.unlink()
    study = SharingStudy.read(file)
    epsilon, events = study.parameters["epsilon"], study.parameters["max_events"]
    say(
        f"7. The coded histories of {CODED_PATIENTS:,} synthetic patients, given to a research group: who has HIV, and "
        f"who abuses drugs? Every event is randomised at epsilon = {epsilon}, and everyone pays for {events}."
    )
    with show_progress(quiet=False) as tell:
        results = study.run(folder / "shared.csv", tell=tell)
    rows = []
    for row in compare(results.report):
        loss = row["measured"].loss
        precision = say_precision(row["measured"].largest)
        rows.append(
            [row["name"], precision, f"{loss.sensitive:.3f}", f"{loss.everything:.3f}", f"{loss.changed:.0%}"]
        )
    say_table(["", "attack precision", "lost: sensitive", "all codes", "false entries"], rows)
    say(f"Hidden with the sensitive codes, since they give them away: {', '.join(results.report.hidden)}.")
    try:
        study.run(folder / "second.csv", again=True)
    except HouseError as refused:
        say(
            f"A second copy of the same patients is refused: {str(refused).split(': ', 2)[-1].split(';')[0]}."
        )
    say(f"{folder / 'shared.html'} is the page that a data steward signs. The codes are not for care.")


def _run_omop(database: Path, folder: Path) -> None:
    """Learn from three OMOP databases, each read where it is by the same cohort file."""
    from concilium.cli.check import dictionary
    from concilium.cli.demo_patients import split_omop

    file = _lay_out(folder, {})
    persons = split_omop(database, folder, WARDS)
    say(
        f"8. {len(WARDS)} OMOP databases with {persons:,} synthetic persons (Eunomia): who takes celecoxib for "
        "the first time, and bleeds within a year? One cohort file says so at every hospital."
    )
    (folder / "dictionary.toml").unlink(missing_ok=True)
    records = [str(folder / f"{name}.toml") for name in WARDS]
    dictionary(records, table=None, map_files=None, out=folder / "dictionary.toml")
    results = _run(file)
    _say_figures({"patients held back": results.metrics})
    say("\n".join(results.model.text().splitlines()[2:RULES_SHOWN]))
    _say_card(folder)


def _say_card(folder: Path) -> None:
    """Serve the model as an EHR sees it, in a process of its own, and show the card of a patient with an ulcer."""
    from urllib.request import Request, urlopen

    model, call = folder / "results" / "model.json", folder / "call.json"
    command = ["cds", str(model), "--port", "0", "--audit", str(folder / "cds-audit.jsonl")]
    with subprocess.Popen(
        [sys.executable, "-m", "concilium.cli.main", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().rpartition(" ")[2].strip()
            if not address:
                say("The EHR's part needs the extra cds: pip install 'concilium[cds]'.")
                return
            request = Request(
                f"{address}/results", call.read_bytes(), {"Content-Type": "application/json"}, method="POST"
            )
            with urlopen(request, timeout=60) as answer:
                (card,) = json.load(answer)["cards"]
        finally:
            server.terminate()
    say(
        f"An EHR opens a patient, and calls `{shlex.join(['concilium', 'cds', str(model)])}` with {call}. The card:"
    )
    say(f"  [{card['indicator']}] {card['summary']}")
    say("\n".join(f"  {line}" for line in card["detail"].replace("\\", "").splitlines()))


def _say_figures(rows: dict[str, dict[str, Any]]) -> None:
    """Show the figures of several models, one below the other."""
    say_table(
        ["", *SHOWN], [[name, *(figure(row[key]) for key in SHOWN.values())] for name, row in rows.items()]
    )
