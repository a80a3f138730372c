"""How often a fit takes a number for one in two units: never of real hospitals, and mostly where it is.

    python experiments/two_units.py [--data ../shared/data]

Real tables are split by hospital, department or ward, and those of SurvSet by each of their categories: harsher than
hospitals are. No column is in two units there. Then one of three hospitals has its numbers multiplied. The rule is that
of records/units.py, by the quartiles of hospitals, and of models/grid.py, by the sum over them.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from SurvSet.data import SurvLoader

from concilium.models.grid import _clear, _look_closer, find_groups, say_two_units
from concilium.protocol.grid import DECADES, Grid, GridCodes
from concilium.records.clinical_ranges import find_range
from concilium.records.units import FACTORS_OF, find_other_unit, find_quartiles

LEAST_PATIENTS, LEAST_VALUES, MOST_SITES = 20, 12, 100
FACTORS = (10, 18.02, 38.67, 88.4, 100, 1000)
# Splits by what follows from the outcome, not by who is treated where.
NO_SITES = ("event", "time")
# Columns of no measurement: who treats, and how long patients were followed.
NO_NUMBERS = ("phy_id", "sub_id", "time", "time2")

Parts = dict[str, NDArray[np.float64]]


def read_tables(folder: Path) -> Iterator[tuple[str, pd.DataFrame, str]]:
    """Tables with the column that says where a patient was treated."""
    yield "sepsis", pd.read_parquet(folder / "sepsis-challenge2019/patients_first12h.parquet"), "hospital"
    stays = pd.read_parquet(folder / "physionet2012/set-a_long.parquet").query("Value != -1")
    wide = stays.groupby(["RecordID", "Parameter"]).Value.mean().unstack()
    yield "physionet2012", wide, "ICUType"
    burns = pd.read_csv(folder / "aplore3/burn1000.csv")
    yield "burn1000", burns, "facility"
    yield "burn1000, children and adults", burns.assign(child=burns.age < 16), "child"
    yield "glow500", pd.read_csv(folder / "aplore3/glow500.csv"), "site_id"
    yield "trauma", pd.read_csv(folder / "bfi-trauma/trauma.csv"), "hospital"
    stays = pd.read_csv(folder / "diabetes130/diabetic_data.csv.gz", keep_default_na=False, low_memory=False)
    for by in ("medical_specialty", "payer_code", "age"):
        yield f"diabetes130 by {by}", stays.drop(columns=["encounter_id", "patient_nbr"]), by


def read_survset() -> Iterator[tuple[str, pd.DataFrame, str]]:
    loader = SurvLoader()
    for name in loader.df_ds.ds:
        frame = loader.load_dataset(name)["df"].drop(columns="pid", errors="ignore")
        if len(frame) >= 100 and frame.shape[1] <= 200:
            for by in frame.columns:
                if by not in NO_SITES and 2 <= frame[by].nunique() <= MOST_SITES and by.startswith("fac_"):
                    yield f"{name} by {by}", frame, by


def split(frame: pd.DataFrame, column: str, by: str) -> Parts:
    numbers = pd.to_numeric(frame[column], errors="coerce")
    parts = {str(site): part.dropna().to_numpy(float) for site, part in numbers.groupby(frame[by])}
    kept = {site: part for site, part in parts.items() if len(part) >= LEAST_PATIENTS}
    return kept if len(kept) > 1 and numbers.nunique() > LEAST_VALUES else {}


def is_found_by_hospital(column: str, parts: Parts) -> bool:
    return find_other_unit(column, {site: find_quartiles(part) for site, part in parts.items()}) is not None


def is_found_in_sum(column: str, parts: Parts) -> bool:
    placed = GridCodes.place(np.concatenate(list(parts.values())), is_date=False)
    coarse = placed.count(Grid(0, len(DECADES)), None)
    closer = _look_closer(_clear(coarse, 0.0), DECADES, 20, 0.0, False)
    groups = find_groups(placed.count(closer, None), closer.find_edges(is_date=False))
    return groups is not None and say_two_units(column, groups) is not None


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    real = list(read_tables(parser.parse_args().data))
    judged, left_out, in_sum = 0, [], []
    for name, frame, by in [*real, *read_survset()]:
        for column in frame.columns.drop(by):
            parts = split(frame, column, by)
            if parts and column not in NO_NUMBERS:
                judged += 1
                left_out += [f"{name}: {column}"] if is_found_by_hospital(column, parts) else []
                in_sum += [f"{name}: {column}"] if is_found_in_sum(column, parts) else []
    print(f"{judged} columns in one unit; left out by hospital: {left_out}; in the sum: {in_sum}")
    for factor in FACTORS:
        columns = by_hospital = by_sum = 0
        for _, frame, by in real:
            for column in frame.columns.drop(by):
                known = find_range(column)
                if column in NO_NUMBERS or (known is not None and known.unit in FACTORS_OF):
                    continue
                parts = split(frame, column, by)
                largest = sorted(parts, key=lambda site: -len(parts[site]))[:3]
                if not largest or any(np.quantile(parts[site], 0.25) <= 0 for site in largest):
                    continue
                changed = {site: parts[site] * (factor if site == largest[-1] else 1) for site in largest}
                columns += 1
                by_hospital += is_found_by_hospital(column, changed)
                by_sum += is_found_in_sum(column, changed)
        print(
            f"times {factor:g}: {by_hospital} of {columns} found by hospital, {by_sum} in the sum", flush=True
        )


if __name__ == "__main__":
    main()
