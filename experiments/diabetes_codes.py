"""The diagnoses of Diabetes 130-US hospitals as sequences: what the experiments on shared codes read.

The table has up to three diagnoses for each stay and no dates. Stays are in the order of their numbers; the k-th
stay of a patient is day k, so that a patient's codes all belong together.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from concilium.records.sequences import Sequences

DIAGNOSES = ["diag_1", "diag_2", "diag_3"]


def read_stays(data: Path) -> pd.DataFrame:
    """A row for each stay, those of one patient next to each other and in order."""
    path = data / "diabetes130" / "diabetic_data.csv.gz"
    stays = pd.read_csv(path, dtype=str, keep_default_na=False)
    stays["stay"] = stays["encounter_id"].astype(int)
    stays = stays.sort_values(["patient_nbr", "stay"], kind="stable").reset_index(drop=True)
    stays["day"] = stays.groupby("patient_nbr").cumcount()
    return stays


def list_diagnoses(stays: pd.DataFrame) -> Sequences:
    """The codes of each patient."""
    ids, rows = np.unique(stays["patient_nbr"], return_inverse=True)
    texts = stays[DIAGNOSES].to_numpy().ravel()
    there = texts != "?"
    owners, days = (
        np.repeat(rows, len(DIAGNOSES))[there],
        np.repeat(stays["day"].to_numpy(), len(DIAGNOSES))[there],
    )
    order = np.lexsort((days, owners))
    labels, codes = np.unique(texts[there], return_inverse=True)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(ids)))])
    return Sequences.from_arrays(
        offsets, codes[order], days[order].astype(float), labels.tolist(), ids=ids.tolist()
    )


def split(sequences: Sequences, seed: int, share: float = 0.8) -> tuple[Sequences, Sequences]:
    """Auxiliary patients, and those whose codes are shared."""
    auxiliary = np.random.default_rng(seed).random(len(sequences)) < share
    return sequences.take(auxiliary), sequences.take(~auxiliary)
