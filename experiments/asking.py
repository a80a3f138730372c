"""Seventy bedside questions to the tutorial's four departments (123 to 303 patients), before and after consultations.

python experiments/asking.py

A question is about a patient: age +- 5 to 10 years, sex, and sometimes chest pain. One patient in five is held out of
all hospitals and asked about; the others answer. Before: every question is a study of its own, an exact tree for its
query, as a fit with default policies asks it. After: one consultation, from whose release all questions are answered.
"Pooled" is the same model of the same patients in one table. AUC and Brier score are those of the patients asked about.
"""

from __future__ import annotations

import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import concilium as cc
from concilium.cli.demo_patients import write_departments
from concilium.errors import ConciliumError
from concilium.models.prediction import NewPatients
from concilium.protocol.attributes import recode
from concilium.study import Study
from concilium.study.sources import read_tables

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
DEPARTMENTS = ("harbour", "hill", "lake", "valley")
TARGET, POSITIVE = "disease", "yes"
QUESTIONS, MONTH = 70, 1000
BANDS = [50.0, 60.0]
FEW = ["age", "sex", "cp", "exang", "oldpeak"]
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DRAWS = 5


def open_tables(folder: Path) -> tuple[dict[str, cc.Records], cc.Dictionary]:
    """The departments' tables by the tutorial's maps and dictionary."""
    write_departments(folder)
    for name, content in re.findall(r"```toml\n# file: (\S+)\n(.*?)```", TUTORIAL.read_text(), re.S):
        (folder / name).write_text(content)
    sites = "".join(
        f'[[site]]\nname = "{one}"\nrecords = "{one}.csv"\nmap = "{one}.map.toml"\n' for one in DEPARTMENTS
    )
    study = f'[study]\nmethod = "tree"\ntarget = "{TARGET}"\n[dictionary]\nfile = "heart.toml"\n{sites}'
    (folder / "ask.toml").write_text(study)
    read = Study.read(folder / "ask.toml")
    return read_tables(read), read.dictionary


def ask_trees(
    tables: dict[str, cc.Records], patients: list[dict[str, Any]], dictionary: cc.Dictionary
) -> None:
    """The loop before: a tree for each question."""
    dice = random.Random(1)
    house = cc.House([cc.Site(name, table) for name, table in tables.items()], dictionary=dictionary)
    pooled = cc.Records.from_rows([row for table in tables.values() for row in list_rows(table)])
    answered = right = lacking = 0
    refusals: Counter[str] = Counter()
    start = time.perf_counter()
    for patient in patients[:QUESTIONS]:
        reach = dice.randint(5, 10)
        query = f"age >= {patient['age'] - reach} and age <= {patient['age'] + reach} and sex = '{patient['sex']}'"
        if dice.random() < 0.3 and patient["cp"] is not None:
            query += f" and cp = {patient['cp']}"
        entered = {name: value for name, value in patient.items() if name != TARGET}
        try:
            tree = cc.DecisionTree(TARGET, query=query).fit(house)
            answer = tree.explain(entered)
        except ConciliumError as error:
            refusals[
                "no hospital: " + ("until next month" if "too many different" in str(error) else "too few")
            ] += 1
            continue
        alone = cc.DecisionTree(TARGET, query=query).fit({"pooled": pooled}).explain(entered)
        answered += 1
        right += answer.prediction == alone.prediction
        lacking += len(tree.card.sites) < len(tables)
        for one in tree.card.refusals:
            refusals["a hospital: " + ("until next month" if one.rule == "ended" else "too few")] += 1
    seconds = (time.perf_counter() - start) / QUESTIONS
    print(
        f"before, exact trees: answered {answered} of {QUESTIONS}; as pooled {right}; hospitals missing in {lacking}; "
        f"{seconds:.2f} s a question (the pooled fit included); refusals {dict(refusals)}"
    )


def search_outcomes(model: cc.Consultation, tables: dict[str, cc.Records]) -> None:
    """Whose outcome is certain to one who may ask, and knows all else of a patient: a row of the patient's cell has
    patients of one outcome only."""
    body = model.body
    starts = np.cumsum([1, *body.widths])
    sure = right = asked = 0
    for table in tables.values():
        patients = NewPatients(list_rows(table), model.card.dictionary)
        found = [recode(one.attribute, patients) for one in (*body.by, *body.predictors)]
        codes = [np.where(own == 0, 0, cells[own]) for own, cells in found]
        for row, outcome in enumerate(table.values(TARGET)):
            if outcome is None:
                continue
            asked += 1
            cell = int(np.ravel_multi_index([one[row] for one in codes[: len(body.by)]], body.sizes))
            own = [
                0,
                *(int(start + one[row]) for start, one in zip(starts, codes[len(body.by) :], strict=False)),
            ]
            classes = [np.flatnonzero(body.released[cell, one]) for one in own]
            if single := [one[0] for one in classes if len(one) == 1]:
                sure += 1
                right += str(body.classes[single[0]]) == str(outcome)
    print(f"a search of an exact or masked month: {sure} of {asked} outcomes are certain ({right} rightly)")


def list_rows(table: cc.Records) -> list[dict[str, Any]]:
    columns = {name: table.values(name) for name in table.names}
    return [{name: values[row] for name, values in columns.items()} for row in range(len(table))]


def measure(
    model: cc.Consultation, pooled: cc.Consultation, patients: list[dict[str, Any]], limit: int
) -> dict[str, float]:
    """How a consultation answers, beside the pooled one."""
    told, known, truth, seconds, widened, patients_found = [], [], [], 0.0, [], []
    held, widths = [], []
    place = list(map(str, pooled.classes_)).index(POSITIVE)
    for patient in patients[:limit]:
        entered = {name: value for name, value in patient.items() if name != TARGET and value is not None}
        start = time.perf_counter()
        answer = model.ask(entered)
        seconds += time.perf_counter() - start
        told.append(answer.chances[place])
        widened.append(len(answer.narrower))
        patients_found.append(answer.patients)
        other = pooled.ask(entered)
        known.append(other.chances[place])
        same = list(map(str, pooled.classes_)).index(str(answer.prediction))
        held.append(answer.interval[0] <= other.chances[same] <= answer.interval[1])
        widths.append(answer.interval[1] - answer.interval[0])
        truth.append(patient[TARGET] == POSITIVE)
    told, known, truth = map(np.array, (told, known, truth))
    return {
        "answered": len(told),
        "agree": float(np.mean((told > 0.5) == (known > 0.5))),
        "apart": float(np.mean(np.abs(told - known))),
        "auc": float(roc_auc_score(truth, told)),
        "brier": float(np.mean((told - truth) ** 2)),
        "ms": 1000 * seconds / len(told),
        "held": float(np.mean(held)),
        "width": float(np.mean(widths)),
        "patients": float(np.median(patients_found)),
    }


def say(name: str, figures: list[dict[str, float]]) -> None:
    mean = {key: float(np.mean([one[key] for one in figures])) for key in figures[0]}
    print(
        f"{name:44} answered {mean['answered']:.0f}  agrees {mean['agree']:.3f}  risk apart {mean['apart']:.3f}  AUC "
        f"{mean['auc']:.3f}  Brier {mean['brier']:.3f}  interval holds pooled {mean['held']:.3f}, width "
        f"{mean['width']:.3f}  {mean['ms']:.1f} ms  {mean['patients']:.0f} patients"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tables, dictionary = open_tables(Path(folder))
    dice = random.Random(7)
    kept, asked = {}, []
    names = [*dictionary]
    for name, table in tables.items():
        rows = [{one: row.get(one) for one in names} for row in list_rows(table)]
        out = {place for place in range(len(rows)) if dice.random() < 0.2}
        kept[name] = cc.Records.from_rows(
            [row for place, row in enumerate(rows) if place not in out], schema=dictionary.schema
        )
        asked += [
            rows[place]
            for place in sorted(out)
            if None not in (rows[place]["age"], rows[place]["sex"], rows[place][TARGET])
        ]
    dice.shuffle(asked)
    print(f"{sum(map(len, kept.values()))} patients answer; {len(asked)} are asked about")
    ask_trees(kept, asked, dictionary)
    grid = {"grid": ["sex", "age"], "values": dict(dictionary.values)}
    everything = {**dictionary.bins, "age": BANDS}
    pooled_rows = cc.Records.from_rows(
        [row for table in kept.values() for row in list_rows(table)], schema=dictionary.schema
    )
    few = {one: everything[one] for one in FEW if one in everything}

    def fit(
        tables: dict[str, cc.Records], bins: dict[str, Any], attributes: list[str] | None, **more: Any
    ) -> cc.Consultation:
        policy = cc.Policy(budget=cc.Budget("100"))
        sites = [cc.Site(name, table, policy=policy) for name, table in tables.items()]
        said = {"bins": bins, "attributes": attributes, "grid": ["sex", "age"], **more}
        return cc.Consultation(TARGET, positive=POSITIVE, **said).fit(cc.House(sites, dictionary=dictionary))

    columns = [name for name in names if name != TARGET]
    pooled = {
        key: fit({"pooled": pooled_rows}, bins, chosen)
        for key, (bins, chosen) in {"all": (everything, columns), "few": (few, FEW)}.items()
    }
    for chosen, bins in ((columns, everything), (FEW, few)):
        search_outcomes(fit(kept, bins, chosen), kept)
    for release in ("exact", "masked"):
        model = fit(kept, everything, columns, release=release)
        say(f"after, {release}: 9 attributes", [measure(model, pooled["all"], asked, QUESTIONS)])
    model = fit(kept, few, FEW)
    say("after, exact: 5 attributes", [measure(model, pooled["few"], asked, QUESTIONS)])
    time_command(model)
    for epsilon in EPSILONS:
        for key, bins, chosen in (("9", everything, columns), ("5", few, FEW)):
            values = {name: grid["values"][name] for name in [*chosen, TARGET] if name in grid["values"]}
            models = [
                fit(kept, bins, chosen, release="private", epsilon=epsilon, values=values)
                for _ in range(DRAWS)
            ]
            one = pooled["all" if key == "9" else "few"]
            say(
                f"after, private, epsilon {epsilon:g} a month: {key} attributes",
                [measure(model, one, asked, QUESTIONS) for model in models],
            )
    month = [asked[place % len(asked)] for place in range(MONTH)]
    values = {name: grid["values"][name] for name in [*FEW, TARGET] if name in grid["values"]}
    models = [fit(kept, few, FEW, release="private", epsilon=2, values=values) for _ in range(DRAWS)]
    figures = [measure(model, pooled["few"], month, MONTH) for model in models]
    say(f"{MONTH} questions of one month, private, epsilon 2 in all: 5 attributes", figures)
    ask_private_trees(kept, asked, dictionary, few, grid["values"])


def time_command(model: cc.Consultation) -> None:
    """A question by the command line, when the month's release is there: no hospital is asked, wherever they are."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.json")
        command = [sys.executable, "-m", "concilium.cli.main", "ask", "model.json", "age=63", "sex=m"]
        taken = []
        for _ in range(5):
            start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            taken.append((time.perf_counter() - start, work))
    seconds, work = sorted(taken)[len(taken) // 2]
    print(f"concilium ask, with the start of its process: {seconds:.1f} s, {work:.1f} s of processor time")


def ask_private_trees(kept, asked, dictionary, bins, values) -> None:
    """A private tree for each question, at the share of a month's epsilon that a question has."""
    pooled_rows = cc.Records.from_rows(
        [row for table in kept.values() for row in list_rows(table)], schema=dictionary.schema
    )
    chosen = {name: values[name] for name in [*FEW, TARGET] if name in values}
    for epsilon in (8.0,):
        for questions in (QUESTIONS, MONTH):
            agree = []
            for patient in asked[:20]:
                query = f"sex = '{patient['sex']}' and age >= {patient['age'] - 8} and age <= {patient['age'] + 8}"
                entered = {name: value for name, value in patient.items() if name in FEW}
                sites = [cc.Site(name, table) for name, table in kept.items()]
                said = {"query": query, "positive": POSITIVE}
                try:
                    # Gaussian noise: rho adds up, so that a question of many has epsilon / sqrt(many), about.
                    tree = cc.DecisionTree(
                        TARGET,
                        release="private",
                        epsilon=epsilon / questions**0.5,
                        bins=bins,
                        values=chosen,
                        max_depth=2,
                        **said,
                    ).fit(sites)
                    mine = tree.explain(entered).prediction
                except ConciliumError as error:
                    print(str(error)[:150])
                    return
                exact = cc.DecisionTree(TARGET, attributes=FEW, bins=bins, max_depth=2, **said).fit(
                    {"pooled": pooled_rows}
                )
                agree.append(mine == exact.explain(entered).prediction)
            print(
                f"a private tree a question, epsilon {epsilon:g} for {questions} questions: {np.mean(agree):.2f} agree"
            )


if __name__ == "__main__":
    main()
