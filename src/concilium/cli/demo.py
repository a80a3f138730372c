"""`concilium demo`: the whole way on real patients, embedded in one process.

Patients come with the package SurvSet (extra `demo`), nothing is vendored. Four studies are of real patients: all 67
federally funded haemodialysis centres of Rio de Janeiro State (Sá Carvalho et al., Int. J. Qual. Health Care 15, 2003),
where the centres are real; and three of intensive-care patients of the right heart catheterisation study (Connors et
al., JAMA 276, 1996), whose hospitals are not in the public data, so that patients are dealt to twenty made-up ones. The
fifth and the sixth have made-up patients: three wards with hourly measurements (demo_ward.py). So has the last part, in
which a hospital shares coded histories (demo_codes.py).
"""

from __future__ import annotations

import hashlib
import json
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import figure, refuse_file, say, say_table, show_progress
from concilium.cli.results import SHOWN
from concilium.cli.run import run_study
from concilium.errors import HouseError, MissingExtra, StudyError

if TYPE_CHECKING:
    from pandas import DataFrame

    from concilium.study import Study

DIALYSIS = """\
# Does a patient who starts haemodialysis die within a year? Every centre is left out once.
[study]
name = "a year of dialysis"
method = "tree"
target = "died"

[schema]
age = "number"

[bins]
age = [40, 50, 60, 70, 80]

[tree]
max_depth = 3
min_leaf = 20

[evaluate]
leave_out = "site"
"""

INTENSIVE_CARE = """\
# Does a critically ill adult die within 30 days? Cutoffs are clinical ranges: public, so they cost nothing.
[study]
name = "thirty days after intensive care"
method = "tree"
target = "died"

[schema]
{schema}

[bins]
{bins}

[tree]
max_depth = 3
min_leaf = 20

[evaluate]
holdout = 0.3
"""

EARLY_DEATH = """\
# Which critically ill adult dies within two days? Few do, so that one tree would say "no" to nearly everyone.
[study]
name = "two days after intensive care"
method = "{method}"
target = "died"
positive = "yes"

[sites]
records = "patients.csv"
by = "hospital"

[schema]
{schema}

[bins]
{bins}

[evaluate]
holdout = 0.3
"""

ONE_TREE = """
[tree]
max_depth = 4
min_leaf = 5
"""

RULES = """\
# The same question as the second study, answered by rules. Hospitals add up under masks: the house sees
# each one's rules, and otherwise sums only.
[study]
name = "thirty days after intensive care"
method = "rulefit"
target = "died"
positive = "yes"

[privacy]
release = "masked"

[sites]
records = "patients.csv"
by = "hospital"
one_row_per_patient = true

[schema]
{schema}

[bins]
{bins}

[rulefit]
trees = 100

[evaluate]
holdout = 0.3
"""

COURSES = """\
# What do patients have in common in the hours before sepsis? Each hospital learns rules of each of its patients from
# hourly measurements; sums of how many patients have which rule leave it, under masks and with noise.
[study]
name = "the hours before sepsis"
method = "discovery"
outcome = "sepsis"

[privacy]
epsilon = 4.0

[series]
patient = "patient"
time = "hour"

[bins]
HR = [60, 70, 80, 90, 100, 110, 120]
Resp = [12, 16, 20, 24, 28]
Temp = [36, 37, 37.5, 38, 38.5]
MAP = [55, 65, 75, 85, 95]

[discovery]
window = "6h"
threshold = 0.05
limits = 2
most_rules = 20

[evaluate]
holdout = 0.3
"""

TEACHERS = """\
# Who falls ill with sepsis? Each hospital trains a small network of each of its patients. What these say of public
# stays on average leaves it, under masks and with noise, and teaches a student: a network, and rules that can be read.
[study]
name = "a student of patient experts"
method = "experts"
target = "sepsis"

[privacy]
epsilon = 4.0

[series]
patient = "patient"
time = "hour"

[bins]
HR = [60, 70, 80, 90, 100, 110, 120]
Resp = [12, 16, 20, 24, 28]
Temp = [36, 37, 37.5, 38, 38.5]
MAP = [55, 65, 75, 85, 95]

[experts]
public = "public.csv"
experts = 150
window = "12h"
lead = "8h"

[evaluate]
holdout = 0.3
"""

HOSPITALS = 20
RULES_SHOWN = 6
WARDS, PATIENTS_OF_A_WARD = ("north", "south", "west"), 300
PUBLIC_STAYS = 200
CODED_PATIENTS, EVENT_EPSILON, EVENTS = 6000, "1", 8
SHARING_POLICY = """\
# Room for one sharing of eight events at epsilon 1, and not for two: two draws of one code tell more than one.
[budget]
currency = "epsilon"
total = "10"
"""

MEASURED = {
    "age": ("num_age", [50, 65, 75]),
    "acute physiology score": ("num_aps1", [40, 60, 80]),
    "coma score": ("num_scoma1", [1, 40, 80]),
    "mean blood pressure": ("num_meanbp1", [60, 70, 110]),
    "heart rate": ("num_hrt1", [60, 100, 140]),
    "respiratory rate": ("num_resp1", [12, 25, 40]),
    "temperature": ("num_temp1", [36, 38.3]),
    "PaO2/FiO2": ("num_pafi1", [100, 200, 300]),
    "PaCO2": ("num_paco21", [35, 45, 60]),
    "pH": ("num_ph1", [7.25, 7.35, 7.45]),
    "albumin": ("num_alb1", [2.5, 3.5]),
    "bilirubin": ("num_bili1", [1.2, 2, 6]),
    "creatinine": ("num_crea1", [1.2, 2, 3.5]),
    "haematocrit": ("num_hema1", [25, 30, 40]),
    "leucocytes": ("num_wblc1", [4, 12, 20]),
    "sodium": ("num_sod1", [135, 145]),
}

RECORDED = {
    "sex": "fac_sex",
    "primary disease": "fac_cat1",
    "cancer": "fac_ca",
    "do not resuscitate": "fac_dnr1",
    "sepsis": "fac_seps",
    "respiratory diagnosis": "fac_resp",
    "cardiovascular diagnosis": "fac_card",
    "neurological diagnosis": "fac_neuro",
    "haematological diagnosis": "fac_hema",
    "trauma": "fac_trauma",
}

HISTORY = {
    "heart failure": "fac_chfhx",
    "chronic lung disease": "fac_chrpulhx",
    "chronic renal disease": "fac_renalhx",
    "cirrhosis": "fac_liverhx",
    "dementia": "fac_dementhx",
    "immunosuppression": "fac_immunhx",
    "malignancy": "fac_malighx",
}


def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder for everything the demo writes.")
    ] = Path("concilium-demo"),
    departments: Annotated[
        Path | None,
        typer.Option(
            "--departments",
            metavar="DIR",
            help="Only write the tables of four made-up departments, each with its own codes and units, for the "
            "tutorial.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run four studies on real patients and two on made-up ones, share codes, and write everything to a folder.

    \b
    Examples:
      concilium demo --out /tmp/concilium-demo
      concilium demo --departments heart
    """
    if departments is not None:
        write_raw_tables(departments)
        return
    load = find_patients()
    refuse_file(out)
    run_dialysis(load("Dialysis"), out / "dialysis")
    say()
    patients = load("rhc")
    tree = run_intensive_care(patients, out / "intensive-care")
    say()
    run_early_death(patients, out / "early-death")
    say()
    run_rules(patients, out / "rules", tree)
    say()
    run_courses(out / "courses")
    say()
    run_experts(out / "experts")
    say()
    run_sharing(out / "sharing")
    say()
    say(f"Everything is in {out}. Open {out / 'intensive-care' / 'results' / 'report.html'}, or go on with:")
    say("  " + shlex.join(["concilium", "run", str(out / "dialysis" / "study.toml"), "--out", "again"]))
    say("  " + shlex.join(["concilium", "ledger", str(out / "intensive-care" / "hospital-01.ledger")]))


def write_raw_tables(folder: Path) -> None:
    """The tables that docs/tutorial.md begins with."""
    from concilium.cli.demo_departments import write_departments

    refuse_file(folder)
    for name, patients in write_departments(folder).items():
        say(f"{folder / name}.csv: {patients} made-up patients")


def find_patients() -> Callable[[str], DataFrame]:
    """A function from the name of a public data set to its data frame."""
    try:
        from SurvSet.data import SurvLoader
    except ImportError:
        raise MissingExtra("demo", "the demo's real patients (SurvSet)") from None

    def load(name: str) -> DataFrame:
        with warnings.catch_warnings():
            # SurvSet's files were written by an older NumPy, whose names today's warns about.
            warnings.simplefilter("ignore", DeprecationWarning)
            return SurvLoader().load_dataset(ds_name=name)["df"]

    return load


def run_dialysis(patients: DataFrame, folder: Path) -> None:
    """Leave-one-centre-out over real dialysis centres."""
    # Treatment must have begun a year before the end of observation (month 44), or deaths would be seen and
    # survivors not; those lost to follow-up within their year are left out.
    cohort = patients[patients["num_begin"] <= 32]
    cases = cohort[(cohort["event"] == 1) | (cohort["time"] >= 12)]
    table = cases[["num_age", "fac_disease"]].rename(columns={"num_age": "age", "fac_disease": "disease"})
    table["died"] = died_within(cases, 12)
    centres = {f"centre {code}": part for code, part in table.groupby(cases["fac_center"].astype(str))}
    study = write_study(folder, DIALYSIS, centres)
    say(
        f"1. {len(centres)} real dialysis centres, {len(table)} patients: who dies within a year? "
        "Each centre is predicted by a model of the others."
    )
    with show_progress(quiet=False) as tell:
        results = run_study(study, folder / "results", resume=False, tell=tell)
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


def run_intensive_care(patients: DataFrame, folder: Path) -> dict[str, Any]:
    """Local, federated and pooled models side by side, and one patient explained; the federated figures."""
    from concilium.study.evaluating import compare_held_back, hold_back
    from concilium.study.sources import read_tables

    table = deal_patients(patients, days=30)
    hospitals = {str(name): part.drop(columns="hospital") for name, part in table.groupby("hospital")}
    study = write_study(folder, fill_in(INTENSIVE_CARE), hospitals, ledgers=True)
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
    say_figures(rows)
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


def run_early_death(patients: DataFrame, folder: Path) -> None:
    """A rare outcome: one tree beside trees that vote, on the same patients."""
    table = deal_patients(patients, days=2)
    study = write_study(folder, fill_in(EARLY_DEATH, "voting-trees"), {"patients": table}, sites=False)
    single = write_study(folder, fill_in(EARLY_DEATH, "tree") + ONE_TREE, {}, file="one-tree.toml")
    rare = int((table["died"] == "yes").sum())
    say(
        f"3. {len(table)} intensive-care patients in {HOSPITALS} hospitals: who dies within two days? "
        f"Only {rare} do ({rare / len(table):.1%})."
    )
    with show_progress(quiet=False) as tell:
        results = run_study(study, folder / "results", resume=False, tell=tell)
        tell("one tree of the same patients")
        rows = {
            "one tree": single.run().metrics,
            f"{len(results.model.pictures())} trees that vote": results.metrics,
        }
    say_figures(rows)


def run_rules(patients: DataFrame, folder: Path, tree: dict[str, Any]) -> None:
    """Rules beside the tree of the second study, on the same patients."""
    table = deal_patients(patients, days=30)
    study = write_study(folder, fill_in(RULES), {"patients": table}, sites=False)
    say(
        f"4. The {len(table)} intensive-care patients of the second study once more, with rules instead of a tree, and "
        "with masks, so that the clearing house sees sums over all hospitals only."
    )
    with show_progress(quiet=False) as tell:
        results = run_study(study, folder / "results", resume=False, tell=tell)
    rows = {"the tree": tree, "rules": results.metrics}
    say_figures(rows)
    say("\n".join(results.model.text().splitlines()[: RULES_SHOWN + 1]))


def run_courses(folder: Path) -> None:
    """What patients have in common, from measurements over time, privately."""
    from concilium.cli.demo_ward import make_ward

    wards = {name: make_ward(PATIENTS_OF_A_WARD, seed) for seed, name in enumerate(WARDS, start=1)}
    study = write_study(folder, COURSES, wards, part="series")
    say(
        f"5. {len(wards) * PATIENTS_OF_A_WARD} made-up patients on {len(wards)} wards, measured every hour: which "
        "temporal rules do many have, and what do these say of sepsis? Every patient is protected at epsilon = 4."
    )
    with show_progress(quiet=False) as tell:
        results = run_study(study, folder / "results", resume=False, tell=tell)
    say_figures({"patients held back": results.metrics})
    say("\n".join(results.model.text().splitlines()[: RULES_SHOWN + 1]))
    discovery = results.metrics["discovery"]
    say(
        f"Of the {discovery['truth']} forms of rules that 5% have, {discovery['coverage']:.0%} were found; of the "
        f"{discovery['rules']} found, {discovery['precision']:.0%} are among them."
    )


def run_experts(folder: Path) -> None:
    """A student of networks of single patients, privately, and one patient whom it judges."""
    from concilium.cli.demo_ward import make_ward

    wards = {name: make_ward(PATIENTS_OF_A_WARD, seed) for seed, name in enumerate(WARDS, start=1)}
    public = make_ward(PUBLIC_STAYS, len(WARDS) + 1)
    study = write_study(folder, TEACHERS, wards, part="series", beside={"public": public})
    say(
        f"6. The same {len(wards) * PATIENTS_OF_A_WARD} patients: each ward trains networks of 150, one each, and "
        f"what these say of {PUBLIC_STAYS} other stays teaches a student: epsilon = 4 once, however often it is asked."
    )
    with show_progress(quiet=False) as tell:
        results = run_study(study, folder / "results", resume=False, tell=tell)
    say_figures({"patients held back": results.metrics})
    say("\n".join(results.model.text().splitlines()[1 : RULES_SHOWN + 3]))
    patient: dict[str, list[float]] = {"HR": [88, 95, 104, 112], "Temp": [37.2, 37.9, 38.4, 38.9]}
    pairs = [f"{name}={','.join(map(str, values))}" for name, values in patient.items()]
    say("$ " + shlex.join(["concilium", "consult", str(folder / "results" / "model.json"), *pairs]))
    say("\n".join(str(results.model.explain(patient)).splitlines()[: RULES_SHOWN - 1]))


def run_sharing(folder: Path) -> None:
    """Coded histories, handed on with the sensitive codes randomised, and what a second copy would cost."""
    from concilium.cli.demo_codes import make_histories
    from concilium.cli.share import say_precision
    from concilium.consult.sharing_page import compare
    from concilium.study.code_sharing import SharingFiles, share_codes

    try:
        folder.mkdir(parents=True, exist_ok=True)
        make_histories(CODED_PATIENTS, seed=1).to_csv(folder / "codes.csv", index=False)
        (folder / "policy.toml").write_text(SHARING_POLICY, encoding="utf-8")
        for old in folder.glob("codes.csv.ledger*"):
            old.unlink()
    except OSError as error:
        raise StudyError(f"{folder}: cannot be written to ({error.strerror})") from None
    files = SharingFiles(
        codes=str(folder / "codes.csv"),
        policy=str(folder / "policy.toml"),
        purpose="a demonstration",
        settings={"epsilon": EVENT_EPSILON, "max_events": EVENTS},
    )
    say(
        f"7. The coded histories of {CODED_PATIENTS:,} made-up patients, handed to a research group: who has HIV, and "
        f"who abuses drugs? Every event is randomised at epsilon = {EVENT_EPSILON}, and everyone pays for {EVENTS}."
    )
    with show_progress(quiet=False) as tell:
        results = share_codes(files, folder / "shared.csv", tell=tell)
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
        share_codes(files, folder / "second.csv", again=True)
    except HouseError as refused:
        say(
            f"A second copy of the same patients is refused: {str(refused).split(': ', 2)[-1].split(';')[0]}."
        )
    say(f"{folder / 'shared.html'} is the page that a data steward signs. The codes are not for care.")


def say_figures(rows: dict[str, dict[str, Any]]) -> None:
    """What several models are worth, one below the other."""
    say_table(
        ["", *SHOWN], [[name, *(figure(row[key]) for key in SHOWN.values())] for name, row in rows.items()]
    )


def deal_patients(patients: DataFrame, days: int) -> DataFrame:
    """The intensive-care patients, each with a made-up hospital and whether he died within so many days."""
    cases = patients[(patients["event"] == 1) | (patients["time"] >= days)]
    columns = {column: name for name, (column, _) in MEASURED.items()}
    columns |= {column: name for name, column in {**RECORDED, **HISTORY}.items()}
    table = cases[list(columns)].rename(columns=columns)
    for name in HISTORY:
        table[name] = table[name].astype(int).map({0: "no", 1: "yes"})
    table["died"] = died_within(cases, days)
    table["hospital"] = [f"hospital {deal(row, HOSPITALS):02}" for row in range(len(table))]
    return table


def fill_in(text: str, method: str = "") -> str:
    """A study of the intensive-care patients, with what is measured and its clinical ranges."""
    schema = "\n".join(f'"{name}" = "number"' for name in MEASURED)
    bins = "\n".join(f'"{name}" = {edges}' for name, (_, edges) in MEASURED.items())
    return text.format(schema=schema, bins=bins, method=method)


def died_within(patients: DataFrame, horizon: int) -> Any:
    """yes or no for every patient."""
    return ((patients["event"] == 1) & (patients["time"] <= horizon)).map({True: "yes", False: "no"})


def deal(row: int, hospitals: int) -> int:
    """The made-up hospital of a patient: by hash, so that everyone deals alike."""
    return int.from_bytes(hashlib.sha256(str(row).encode()).digest()[:8], "big") % hospitals + 1


def write_study(
    folder: Path,
    text: str,
    tables: dict[str, DataFrame],
    *,
    sites: bool = True,
    ledgers: bool = False,
    part: str = "records",
    file: str = "study.toml",
    beside: dict[str, DataFrame] | None = None,
) -> Study:
    """A study file beside its csv files: one per hospital, or (without `sites`) those that the text names; and those
    `beside`, which are no hospital's."""
    from concilium.study import Study

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in (beside or {}).items():
            table.to_csv(folder / f"{name}.csv", index=False)
        for name, table in tables.items():
            stem = name.replace(" ", "-")
            table.to_csv(folder / f"{stem}.csv", index=False)
            if sites:
                text += f'\n[[site]]\nname = "{name}"\n{part} = "{stem}.csv"\n'
            if ledgers:
                text += f'ledger = "{stem}.ledger"\n'
        path = folder / file
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StudyError(f"{folder}: cannot be written to ({error.strerror})") from None
    return Study.read(path)
