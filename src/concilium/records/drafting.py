"""A draft of a dictionary, made from a hospital's own table: locally, for people to mend before they share it.

A dictionary is public, so a draft says as little of single patients as it can: plausible ranges are public clinical
ones where the name is known and the table agrees, else rounded and wider than what most patients have; of codes only
values that several patients have; of columns with about one value per patient nothing. It is no release with a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from concilium.records.clinical_ranges import find_range
from concilium.records.columns import Column, Numbers, label
from concilium.records.dictionary import MOST_TEXT, Dictionary, DictionaryEntry
from concilium.records.grammar import measure
from concilium.records.table import Records
from concilium.records.table_map import has_decimal_comma

LEAST_PATIENTS = 10
MOST_DRAFTED = 50
MOST_ODD = 3  # texts among numbers that may stand for missing
MEASURED = 12  # whole numbers with more different values than this are taken for measured ones
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class DictionaryDraft:
    """The entries that could be drafted, and what a reader must know of each column."""

    dictionary: Dictionary
    notes: dict[str, str] = field(default_factory=dict)

    def to_toml(self, source: str) -> str:
        """The draft as text for a study file, with its notes as comments."""
        lines = [
            f"# A draft from {source}, for people to mend: labels, units, plausible ranges, what values mean.",
            "# It is meant to be public. Look whether it says anything that is not.",
        ]
        for name in [*self.dictionary, *(name for name in self.notes if name not in self.dictionary)]:
            lines.append("")
            if name in self.notes:
                lines.append(f"# {name}: {self.notes[name]}" if name.isprintable() else "# a column")
            if name in self.dictionary:
                lines.append(Dictionary({name: self.dictionary[name]}).to_toml().rstrip())
        return "\n".join(lines) + "\n"


def draft_dictionary(records: Records) -> DictionaryDraft:
    """What the columns of a table look like."""
    entries: dict[str, DictionaryEntry] = {}
    notes: dict[str, str] = {}
    for name in records.names:
        entry, note = _draft(name, records[name])
        if entry is not None:
            entries[name] = entry
        if note:
            notes[name] = note
    return DictionaryDraft(Dictionary(entries), notes)


def _draft(name: str, column: Column) -> tuple[DictionaryEntry | None, str]:
    if not name.isprintable() or len(name) > MOST_TEXT:
        return None, "left out: its name cannot be printed, or is too long"
    if isinstance(column, Numbers) or (column.numeric and len(column.values) > MEASURED):
        return _draft_number(name, column)
    counts = np.bincount(column.codes, minlength=len(column.values) + 1)[1:]
    present = int(counts.sum())
    if not present:
        return None, "left out: missing for everyone"
    odd = [value for value in column.values if math.isnan(measure(value))]
    commas = [value for value in odd if has_decimal_comma(label(value))]
    if commas and len(odd) - len(commas) <= MOST_ODD:
        return (
            DictionaryEntry(type="number"),
            'numbers with decimal commas: write decimal = "," under [map], and draft it once more with --map',
        )
    if len(column.values) >= LEAST_PATIENTS and np.count_nonzero(counts) >= NEARLY_ALL * present:
        return None, "left out: about one value for each patient, so that it may identify them"
    if 0 < len(odd) <= MOST_ODD and len(column.values) > MEASURED:
        texts = ", ".join(repr(label(value)) for value in odd)
        return DictionaryEntry(
            type="number"
        ), f"numbers, with {texts} among them: name those as missing in the map"
    common = [value for value, count in zip(column.values, counts, strict=True) if count >= LEAST_PATIENTS]
    if len(common) > MOST_DRAFTED:
        return DictionaryEntry(type="text"), f"{len(column.values)} different values, which are not listed"
    rare = int(np.count_nonzero(counts)) - len(common)
    note = (
        f"{rare} more value{'' if rare == 1 else 's'}, of fewer than {LEAST_PATIENTS} patients each"
        if rare
        else ""
    )
    # What looks like a number and reads as itself only as text (0389) stays text.
    kept = any((isinstance(v, str) and v != label(v).strip()) or _loses(label(v)) for v in common)
    values = {label(value): "" for value in common}
    return DictionaryEntry(type="text" if kept else "code", values=values), note


def _loses(text: str) -> bool:
    """Whether a code has leading zeros, or more digits than a number keeps."""
    return len(text) > 1 and text.isdigit() and (text[0] == "0" or len(text) > 15)


def _draft_number(name: str, column: Column) -> tuple[DictionaryEntry | None, str]:
    sizes: NDArray[np.float64] = (
        column.numbers
        if isinstance(column, Numbers)
        else np.array([np.nan, *map(measure, column.values)])[column.codes]
    )
    known = sizes[np.isfinite(sizes)]
    if not known.size:
        return None, "left out: missing for everyone"
    whole = bool(np.all(known == np.floor(known)))
    distinct = len(np.unique(known))
    if whole and distinct >= 50 and distinct >= NEARLY_ALL * known.size:
        return None, "left out: whole numbers that nearly all differ, so that they may identify patients"
    low, middle, high = np.quantile(known, [0.02, 0.5, 0.98])
    clinical = find_range(name) if len(name) > 2 else None
    if clinical is not None and clinical.lowest <= low and high <= clinical.highest:
        return (
            DictionaryEntry(
                type="number",
                label=clinical.words,
                unit=clinical.unit,
                range=(float(clinical.lowest), float(clinical.highest)),
            ),
            "the range is what is plausible for adults, in that unit",
        )
    note = "the range is rounded from this table: what is plausible?"
    if clinical is not None:
        note = f"{clinical.words} is {clinical.lowest:g} to {clinical.highest:g} {clinical.unit}, and this table is not"
    return DictionaryEntry(type="number", range=_round_range(low, middle, high)), note


def _round_range(low: float, middle: float, high: float) -> tuple[float, float]:
    """A range wider than from low to high by half, at round numbers, and not below zero where nothing is."""
    spread = max(high - low, abs(middle) / 10, 1e-9)
    step = 10.0 ** math.floor(math.log10(spread))
    first = math.floor((low - spread / 2) / step) * step
    last = math.ceil((high + spread / 2) / step) * step
    if low >= 0:
        first = max(first, 0.0)
    return float(f"{first:.6g}"), float(f"{last:.6g}")
