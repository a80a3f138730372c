"""A small study on disk for the tests of commands: three hospitals, a table each, and everything in one table."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HOSPITALS = ("north", "south", "coast")

SPLIT = """
[study]
name = "small"
method = "tree"
target = "death"
[sites]
records = "all.csv"
by = "hospital"
one_row_per_patient = true
[bins]
age = [40, 60]
[tree]
max_depth = 3
"""

SEVERAL = """
[study]
name = "small"
method = "tree"
target = "death"
[bins]
age = [40, 60]
[tree]
max_depth = 3
""" + "".join(
    f'[[site]]\nname = "{name}"\nrecords = "{name}.csv"\nledger = "{name}.ledger"\none_row_per_patient = true\n'
    for name in HOSPITALS
)


def make_patients(count: int = 180, seed: int = 7) -> list[Row]:
    """Patients whose risk rises with age and smoking; some values are missing."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        age, smoker = draw.randint(20, 90), draw.choice(["yes", "no", "no"])
        risk = 0.1 + 0.5 * (age > 60) + 0.25 * (smoker == "yes")
        rows.append(
            {
                "hospital": draw.choice(HOSPITALS),
                "age": age,
                "sex": draw.choice(["f", "m"]),
                "smoker": "" if draw.random() < 0.1 else smoker,
                "death": int(draw.random() < risk),
            }
        )
    return rows


def write_csv(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def lay_out(folder: Path, text: str = SPLIT) -> Path:
    """Tables and study file in a folder; returns the study file."""
    rows = make_patients()
    write_csv(folder / "all.csv", rows)
    for name in HOSPITALS:
        own = [{key: row[key] for key in row if key != "hospital"} for row in rows if row["hospital"] == name]
        write_csv(folder / f"{name}.csv", own)
    study = folder / "study.toml"
    study.write_text(text, encoding="utf-8")
    return study
