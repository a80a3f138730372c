"""Is a penalty that is chosen worth its time? AUC and seconds of RuleFit with penalty = 0.01 and with "auto".

    python experiments/rulefit_penalty.py DATA [--divisions 3]

DATA is a folder with trauma.csv (R package BFI), burn1000.csv (R package aplore3) and patients_first12h.parquet
(PhysioNet Challenge 2019), in folders of their own or not; sets that are not there are left out. The other sets come by
pip or are synthetic: intensive care of `concilium demo`, and its four departments. Every division holds back 30 % of
every hospital's patients: mean AUC of all of these together, and seconds of a fit.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import concilium as cc
from concilium.cli.demo import STUDIES
from concilium.cli.demo_patients import MEASURED, deal_patients, find_patients, write_departments
from concilium.evaluation.leave_out import hold_out
from concilium.evaluation.metrics import auc
from concilium.records.columns import label

HELD_BACK = 0.3
DEPARTMENTS = {
    "harbour": {"missing": ["?"], "columns": {"ill": "num > 0"}},
    "hill": {
        "missing": ["?"],
        "columns": {"sex": {"from": "sex", "values": {"F": 0, "M": 1}}, "ill": "num > 0"},
    },
    "lake": {
        "decimal": ",",
        "columns": {
            "sex": {"from": "gender", "values": {"female": 0, "male": 1}},
            "trestbps": "rr",
            "thalach": "pulse",
            "ill": "num > 0",
        },
    },
    "valley": {
        "missing": ["-9"],
        "columns": {"ill": {"from": "diagnosis", "values": {"no": False, "yes": True}}},
    },
}

Tables = Mapping[str, cc.Records]


def find(folder: Path, name: str) -> Path | None:
    return next(iter(sorted(folder.rglob(name))), None)


def list_sets(folder: Path) -> Iterator[tuple[str, Tables, dict[str, Any]]]:
    """Name, tables by hospital, and what a RuleFit is told of them."""
    load = find_patients()
    with tempfile.TemporaryDirectory() as scratch:
        yield "four departments", *read_departments(Path(scratch))
        bins = tomllib.loads((STUDIES / "intensive-care" / "study.toml").read_text())["bins"]
        for title, days in (("intensive care, 30 days", 30), ("intensive care, 2 days", 2)):
            path = Path(scratch) / "patients.csv"
            deal_patients(load("rhc"), days=days).to_csv(path, index=False)
            table = cc.Records.read(path, schema=dict.fromkeys(MEASURED, "number"))
            yield title, table.split("hospital"), {"target": "died", "positive": "yes", "bins": bins}
    trauma = find(folder, "trauma.csv")
    if trauma:
        edges = {"age": range(1, 100), "ISS": range(2, 76), "GCS": range(4, 16)}
        table = cc.Records.read(trauma, schema=dict.fromkeys(edges, "number") | {"hospital": "code"})
        bins = {name: list(map(float, listed)) for name, listed in edges.items()}
        yield "trauma", table.split("hospital"), {"target": "mortality", "positive": 1, "bins": bins}
    burns = find(folder, "burn1000.csv")
    if burns:
        table = cc.Records.read(burns, schema={"age": "number", "tbsa": "number", "facility": "code"})
        bins = {"age": list(range(5, 90, 5)), "tbsa": [1, 2, 5, 10, 15, 20, 30, 40, 60]}
        positive = sorted(map(label, set(table.values("death"))))[-1]
        large = {name: part for name, part in table.split("facility").items() if len(part) >= 25}
        spare = {"attributes": [n for n in table.names if n not in ("id", "facility", "death", "rownames")]}
        yield "burns", large, {"target": "death", "positive": positive, "bins": bins, **spare}
    sepsis = find(folder, "patients_first12h.parquet")
    if sepsis:
        from rulefit_private import CLINICAL, CODES

        stated = dict.fromkeys(CLINICAL, "number") | dict.fromkeys((*CODES, "sepsis"), "code")
        table = cc.Records.read(sepsis, schema=stated)
        table = cc.Records({n: table[n] for n in (*CLINICAL, *CODES, "sepsis", "hospital")})
        bins = {name: list(map(float, edges)) for name, edges in CLINICAL.items()}
        yield (
            "sepsis, first 12 hours",
            table.split("hospital"),
            {"target": "sepsis", "positive": 1, "bins": bins},
        )


def read_departments(folder: Path) -> tuple[Tables, dict[str, Any]]:
    write_departments(folder)
    measured = {
        "age": range(35, 80, 5), "trestbps": range(100, 190, 10), "thalach": range(90, 200, 10),
        "oldpeak": [0.5, 1, 1.5, 2, 3],
    }  # fmt: skip
    named = [*measured, "sex", "cp", "fbs", "restecg", "ill"]
    tables = {}
    for name, content in DEPARTMENTS.items():
        map_ = cc.TableMap.parse(content, name)
        whole = cc.Records.read(folder / f"{name}.csv", map=map_, schema=dict.fromkeys(measured, "number"))
        tables[name] = cc.Records({column: whole[column] for column in named})
    bins = {name: list(map(float, edges)) for name, edges in measured.items()}
    return tables, {"target": "ill", "positive": True, "bins": bins}


def fit(tables: Tables, division: str, penalty: Any, told: dict[str, Any]) -> tuple[float, float]:
    """AUC on those held back, and seconds."""
    held = {name: hold_out(len(table), HELD_BACK, name, division) for name, table in tables.items()}
    house = cc.House([cc.Site(name, table.take(~held[name])) for name, table in tables.items()])
    start = time.perf_counter()
    model = cc.RuleFit(**told, release="exact", penalty=penalty).fit(house)
    seconds = time.perf_counter() - start
    risks, truth = [], []
    for name, table in tables.items():
        out = table.take(held[name])
        truth += [label(value) == label(told["positive"]) for value in out.values(told["target"])]
        risks.append(model.predict_proba(out)[:, 1])
    return auc(np.array(truth), np.concatenate(risks)) or 0.5, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--divisions", type=int, default=3)
    arguments = parser.parse_args()
    print(
        "| set | patients | hospitals | AUC, 0.01 | AUC, auto | difference | seconds, 0.01 | auto | times |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for title, tables, told in list_sets(arguments.data):
        pairs = [
            (fit(tables, str(number), 0.01, told), fit(tables, str(number), "auto", told))
            for number in range(arguments.divisions)
        ]
        fixed, chosen = (statistics.mean(pair[way][0] for pair in pairs) for way in (0, 1))
        quick, slow = (statistics.mean(pair[way][1] for pair in pairs) for way in (0, 1))
        many = sum(map(len, tables.values()))
        print(
            f"| {title} | {many:,} | {len(tables)} | {fixed:.3f} | {chosen:.3f} | {chosen - fixed:+.3f} "
            f"| {quick:.1f} | {slow:.1f} | {slow / quick:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
