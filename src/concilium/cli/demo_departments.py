"""Made-up patients of four cardiology departments, the same ones every time, in files as departments keep them: each
with its own codes, units, decimal marks and signs for what is missing (docs/tutorial.md walks from there to a model).

Of a disease of the coronary arteries that 36 to 93 % have, by department; what it does to a patient is everywhere the
same. No such table may be passed on freely by pip, so these are drawn; sizes and shares are like those of a well-known
set of four departments.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from concilium.errors import StudyError

Patient = dict[str, float | None]
Write = Callable[[Patient], dict[str, str]]
# What is usual, how far patients differ, and what the disease adds to it.
MEASURED = {
    "age": (51.0, 9.0, 5.0),
    "trestbps": (130.0, 17.0, 4.0),
    "chol": (236.0, 48.0, 12.0),
    "thalach": (149.0, 21.0, -19.0),
    "oldpeak": (0.3, 0.9, 1.0),
}
# How likely each code is without and with the disease.
CODED = {
    "sex": ((0.35, 0.65), (0.14, 0.86)),
    "cp": ((0.08, 0.37, 0.31, 0.24), (0.05, 0.08, 0.16, 0.71)),
    "fbs": ((0.88, 0.12), (0.82, 0.18)),
    "restecg": ((0.66, 0.22, 0.12), (0.56, 0.27, 0.17)),
    "exang": ((0.84, 0.16), (0.42, 0.58)),
}
FIRST_CODE = {"cp": 1}
HIGHEST = {"age": 80.0, "oldpeak": 6.0}
LEAST = {"age": 28.0, "trestbps": 85.0, "chol": 120.0, "thalach": 65.0, "oldpeak": 0.0}
CHOLESTEROL = 386.65  # g/mol


@dataclass(frozen=True)
class Department:
    """How many patients, how many of them ill, how often a measurement is missing, and how rows are written."""

    name: str
    patients: int
    ill: float
    missing: float
    write: Write
    delimiter: str = ","


def draw_patient(dice: np.random.Generator, ill: bool, missing: float) -> Patient:
    """One patient; what is not known is None. `num` says how many vessels are narrowed."""
    patient: Patient = {}
    for name, (usual, spread, more) in MEASURED.items():
        value = float(dice.normal(usual + more * ill, spread))
        value = min(max(value, LEAST[name]), HIGHEST.get(name, np.inf))
        patient[name] = round(value, 1) if name == "oldpeak" else float(round(value))
    for name, chances in CODED.items():
        patient[name] = float(dice.choice(len(chances[ill]), p=chances[ill]) + FIRST_CODE.get(name, 0))
    for name in ("trestbps", "chol", "thalach", "fbs", "restecg", "oldpeak"):
        if dice.random() < missing:
            patient[name] = None
    patient["num"] = float(dice.integers(1, 5)) if ill else 0.0
    return patient


def whole(value: float | None, missing: str = "?") -> str:
    return missing if value is None else f"{value:.0f}"


def tenths(value: float | None, missing: str = "?") -> str:
    return missing if value is None else f"{value:.1f}"


def write_harbour(patient: Patient) -> dict[str, str]:
    """Everything is a number with a decimal point, codes too; `?` is missing."""
    return {name: tenths(patient[name]) for name in (*MEASURED, *CODED, "num")}


def write_hill(patient: Patient) -> dict[str, str]:
    """Whole codes, M and F, `?` is missing."""
    row = {name: whole(patient[name]) for name in (*MEASURED, *CODED, "num")}
    return {**row, "sex": "FM"[int(patient["sex"] or 0)], "oldpeak": tenths(patient["oldpeak"])}


def write_lake(patient: Patient) -> dict[str, str]:
    """Semicolons and decimal commas, cholesterol in mmol/l, words for the sexes, names of its own."""
    chol = patient["chol"]
    return {
        "age": whole(patient["age"]),
        "gender": ("female", "male")[int(patient["sex"] or 0)],
        "cp": whole(patient["cp"]),
        "rr": whole(patient["trestbps"], ""),
        "chol": "" if chol is None else f"{chol * 10 / CHOLESTEROL:.2f}".replace(".", ","),
        "fbs": whole(patient["fbs"], ""),
        "restecg": whole(patient["restecg"], ""),
        "pulse": whole(patient["thalach"], ""),
        "exang": whole(patient["exang"], ""),
        "oldpeak": tenths(patient["oldpeak"], "").replace(".", ","),
        "num": whole(patient["num"]),
    }


def write_valley(patient: Patient) -> dict[str, str]:
    """-9 is missing, and cholesterol that was not measured is 0; the diagnosis is yes or no."""
    row = {name: whole(patient[name], "-9") for name in (*MEASURED, *CODED)}
    return {
        **row,
        "chol": whole(patient["chol"], "0"),
        "oldpeak": tenths(patient["oldpeak"], "-9"),
        "exang": ("no", "yes")[int(patient["exang"] or 0)],
        "diagnosis": "yes" if patient["num"] else "no",
    }


DEPARTMENTS = (
    Department("harbour", 303, 0.46, 0.03, write_harbour),
    Department("hill", 294, 0.36, 0.12, write_hill),
    Department("lake", 123, 0.93, 0.15, write_lake, ";"),
    Department("valley", 200, 0.75, 0.20, write_valley),
)


def write_departments(folder: Path, seed: int = 4) -> dict[str, int]:
    """A table of each department, as it keeps it, in a folder; how many patients each has."""
    dice = np.random.default_rng(seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in DEPARTMENTS:
            ill = np.arange(one.patients) < round(one.ill * one.patients)
            dice.shuffle(ill)
            rows = [one.write(draw_patient(dice, bool(has), one.missing)) for has in ill]
            with (folder / f"{one.name}.csv").open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, list(rows[0]), delimiter=one.delimiter, lineterminator="\n")
                table.writeheader()
                table.writerows(rows)
    except OSError as error:
        raise StudyError(f"{folder}: cannot be written to ({error.strerror})") from None
    return {one.name: one.patients for one in DEPARTMENTS}
