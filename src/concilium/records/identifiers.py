"""Columns that number or name patients: by their names alone, and by what they hold."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from concilium.records.clinical_ranges import find_range

_PATTERN = re.compile(r"(?i)(^|.*_)(id|mrn|ssn|uuid|guid|name|surname|nhs_?number|patient|subject)$")
# Names of numbers that patients, cases or visits are given; a measured number may be called so, and then differs less.
_NUMBERING = re.compile(
    r"(.*[a-z]ID|(?i:.*(patient|patienten|subject|person|member|case|fall|record|chart|account|visit|admission|encounter)"
    r"[\W_]*(id|no|nr|num|number|nummer|key)))$"
)

# Ages of a dozen patients may all differ; whole numbers of half a hundred that all differ may number the patients.
LEAST_NUMBERS = 50
NEARLY_ALL = 0.9
# Whole numbers are close together if they lie within so many times their number, and long from five digits on.
CLOSE, LONG = 4, 1e4


def names_patients(column: str) -> bool:
    """Whether a column's name says that it identifies patients; no patient is looked at for it."""
    return _PATTERN.match(column) is not None


def numbers_patients(name: str, known: NDArray[np.float64]) -> bool:
    """Whether these numbers, in the order of rows, number the patients: they are whole, nearly every patient has
    another, and they rise or fall from row to row, are close together, are long, or are named so.

    Measured values that happen to differ do none of this, and lie in their clinical range where there is one.
    """
    if known.size < LEAST_NUMBERS or not np.all(known == np.floor(known)):
        return False
    distinct = len(np.unique(known))
    if distinct < max(LEAST_NUMBERS, NEARLY_ALL * known.size):
        return False
    if names_patients(name) or _NUMBERING.match(name):
        return True
    clinical = find_range(name)
    if (
        clinical is not None
        and np.mean((known >= clinical.lowest) & (known <= clinical.highest)) >= NEARLY_ALL
    ):
        return False
    steps = np.diff(known)
    ordered = max(np.mean(steps > 0), np.mean(steps < 0)) >= NEARLY_ALL
    close = np.ptp(known) < CLOSE * known.size
    long = np.mean(np.abs(known) >= LONG) >= NEARLY_ALL
    return bool(ordered or close or long)
