"""A draft of a dictionary, made from the tables of a study: locally, for people to correct before they share it.

A dictionary is public, so a draft says as little of single patients as it can: plausible ranges are public clinical
ones where the name is known and the table agrees, else rounded and wider than what most patients have; of codes only
values that several patients have; of columns with about one value per patient nothing. It is no release with a bound.

Every entry states values or a range that hold for all tables, so that a private study can start from the draft. What
that cannot be said of is left out, with the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from concilium.errors import name_some
from concilium.records.clinical_ranges import find_range
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.dictionary import MOST_TEXT, Dictionary, DictionaryEntry
from concilium.records.grammar import measure, read_day
from concilium.records.patients import NEARLY_ALL, names_patients, numbers_patients
from concilium.records.table import Records
from concilium.records.table_map import has_decimal_comma
from concilium.records.units import compare_sizes, find_other_unit, find_quartiles

LEAST_PATIENTS = 10
MOST_DRAFTED = 50
MOST_ODD = 3  # texts among numbers that may stand for missing
MEASURED = 12  # whole numbers with more different values than this are taken for measured ones


@dataclass(frozen=True)
class DictionaryDraft:
    """The entries that could be drafted, what a reader must know of some (`notes`), and the columns without an entry,
    each with the reason (`left_out`)."""

    dictionary: Dictionary
    notes: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def to_toml(self, sources: Sequence[str]) -> str:
        """Write the draft as text for a study file, with its notes as comments."""
        named = ", ".join(sources)
        lines = [
            f"# A draft from {named}. Complete it: labels, units, plausible ranges, what values mean.",
            "# It is meant to be public. Look whether it says anything that is not.",
            "# A private study also needs one_row_per_patient = true under [sites]: true if no patient has two rows.",
        ]
        for name, entry in self.dictionary.entries.items():
            lines += ["", *([f"# {name}: {self.notes[name]}"] if name in self.notes else [])]
            lines.append(Dictionary({name: entry}).to_toml().rstrip())
        if self.left_out:
            lines.append("")
        for name, why in self.left_out.items():
            lines.append(f"# {name if name.isprintable() else 'a column'}: left out: {why}")
        return "\n".join(lines) + "\n"


class _NoEntry(Exception):
    """A column of which nothing is drafted, and why."""


def draft_dictionary(tables: Mapping[str, Records]) -> DictionaryDraft:
    """Draft a dictionary that holds for all tables of a study, by the names that people know them by."""
    entries: dict[str, DictionaryEntry] = {}
    notes: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(name for records in tables.values() for name in records.names):
        columns = {source: records[name] for source, records in tables.items() if name in records}
        try:
            lacking = [source for source in tables if source not in columns]
            if lacking:
                raise _NoEntry(f"not in {name_some(lacking)}; a hospital's map may make it of another column")
            entries[name], note = _draft(name, columns)
        except _NoEntry as reason:
            left_out[name] = str(reason)
        else:
            if note:
                notes[name] = note
    return DictionaryDraft(Dictionary(entries), notes, left_out)


def _refuse_odd(name: str, known: Mapping[str, Column]) -> None:
    """_NoEntry for a column that nobody has, that names patients, or that holds dates."""
    if not known:
        raise _NoEntry("missing for everyone")
    if names_patients(name):
        raise _NoEntry("it identifies patients, by its name")
    if any(map(_holds_dates, known.values())):
        raise _NoEntry(f'dates; a map makes a time of them: {{ from = "{name}", until = ..., in = "days" }}')


def _find_texts(known: Mapping[str, Column]) -> list[str]:
    """The tables where a column holds text; _NoEntry where it is a number in others."""
    texts = [source for source, column in known.items() if _holds_text(column)]
    numbers = [source for source, column in known.items() if not _list_odd(column)]
    if texts and numbers and not _are_truths(known.values()):
        raise _NoEntry(
            f"numbers in {name_some(numbers)}, text in {name_some(texts)}; maps make them the same"
        )
    return texts


def _draft(name: str, columns: Mapping[str, Column]) -> tuple[DictionaryEntry, str]:
    """The entry of a column by what all tables hold of it, and a note."""
    if not name.isprintable() or len(name) > MOST_TEXT:
        raise _NoEntry("its name cannot be printed, or is too long")
    known = {source: column for source, column in columns.items() if _is_known(column)}
    _refuse_odd(name, known)
    commas = [source for source, column in known.items() if _has_commas(column)]
    if commas:
        where = "" if len(columns) == 1 else f" in {name_some(commas)}"
        return (
            DictionaryEntry(type="number"),
            f'numbers with decimal commas{where}: write decimal = "," under [map], and draft it once more with --map',
        )
    for source, column in known.items():
        if _identifies(name, column):
            where = "" if len(columns) == 1 else f" in {source}"
            raise _NoEntry(f"it may identify patients: about one value for each{where}")
    texts = _find_texts(known)
    distinct = {
        label(value) for column in known.values() if isinstance(column, Coded) for value in column.values
    }
    measured = any(isinstance(column, Numbers) for column in known.values()) or len(distinct) > MEASURED
    if not texts and measured:
        return _draft_number(name, known)
    return _draft_code([column for column in known.values() if isinstance(column, Coded)])


def _draft_code(columns: Sequence[Coded]) -> tuple[DictionaryEntry, str]:
    """The values that enough patients of all tables together have, in the spelling of most."""
    counts = _count_labels(columns)
    common = [text for text, count in counts.items() if count >= LEAST_PATIENTS]
    if not common:
        raise _NoEntry(f"free text, or codes of fewer than {LEAST_PATIENTS} patients each")
    rare, many = len(counts) - len(common), len(common)
    note = ""
    if many > MOST_DRAFTED:
        common = sorted(common, key=lambda text: -counts[text])[:MOST_DRAFTED]
        note = f"the {MOST_DRAFTED} most common of {len(counts)} values; the others count as one"
    elif rare:
        note = f"{rare} more value{'' if rare == 1 else 's'}, of fewer than {LEAST_PATIENTS} patients each"
    # What looks like a number and reads as itself only as text (0389) stays text.
    kept = any(text != text.strip() or _loses(text) for text in common)
    ordered = sorted(common, key=_order)
    return DictionaryEntry(type="text" if kept else "code", values=dict.fromkeys(ordered, "")), note


def _count_labels(columns: Sequence[Coded]) -> dict[str, int]:
    """How many patients of all tables have each value. What differs between tables in capitals alone is one value, and
    so are false and 0, true and 1, where one table writes this and another that."""
    each = [_count(column) for column in columns]
    total = sum(each, Counter[str]())
    spelling = {text: text for text in total}
    if {"0", "1", "false", "true"} >= set(total) and not any({"0", "false"} <= set(c) for c in each):
        numeric = "0" in total or "1" in total
        spelling |= {"false": "0", "true": "1"} if numeric else {}
    by_word: dict[str, list[str]] = {}
    for text in total:
        by_word.setdefault(text.casefold(), []).append(text)
    for alike in by_word.values():
        if len(alike) > 1 and all(len(set(alike) & set(counts)) < 2 for counts in each):
            spelling |= dict.fromkeys(alike, max(alike, key=lambda text: total[text]))
    united: Counter[str] = Counter()
    for text, count in total.items():
        united[spelling[text]] += count
    return dict(united)


def _count(column: Coded) -> Counter[str]:
    counts = np.bincount(column.codes, minlength=len(column.values) + 1)[1:].tolist()
    found: Counter[str] = Counter()
    for value, count in zip(column.values, counts, strict=True):
        if count:
            found[label(value)] += count
    return found


def _order(text: str) -> tuple[bool, float, str]:
    """Numbers by size, then text by text."""
    size = measure(text)
    return math.isnan(size), 0.0 if math.isnan(size) else size, text


def _loses(text: str) -> bool:
    """Whether a code has leading zeros, or more digits than a number keeps."""
    return len(text) > 1 and text.isdigit() and (text[0] == "0" or len(text) > 15)


def _is_known(column: Column) -> bool:
    """Whether some patient has a value."""
    if isinstance(column, Numbers):
        return bool(np.isfinite(column.numbers).any())
    return bool(column.codes.any())


def _list_odd(column: Column) -> list[Value]:
    """The values that are no numbers."""
    return [] if isinstance(column, Numbers) else [v for v in column.values if math.isnan(measure(v))]


def _holds_text(column: Column) -> bool:
    """Whether a column is of text: more than a few texts among measured numbers."""
    odd = _list_odd(column)
    if not odd or isinstance(column, Numbers):
        return False
    return len(odd) > MOST_ODD or len(column.values) <= MEASURED


def _has_commas(column: Column) -> bool:
    odd = _list_odd(column)
    commas = [value for value in odd if has_decimal_comma(label(value))]
    return bool(commas) and len(odd) - len(commas) <= MOST_ODD


def _holds_dates(column: Column) -> bool:
    return isinstance(column, Coded) and not any(math.isnan(read_day(value)) for value in column.values)


def _are_truths(columns: Collection[Column]) -> bool:
    """Whether tables write false and true, others 0 and 1."""
    labels = {label(v) for c in columns if isinstance(c, Coded) for v in c.values}
    return all(isinstance(c, Coded) for c in columns) and labels <= {"0", "1", "false", "true"}


def _identifies(name: str, column: Column) -> bool:
    """Whether nearly every patient has a value of their own."""
    if isinstance(column, Numbers) or column.numeric:
        return numbers_patients(name, _measure(column))
    counts = _count(column)
    odd = _list_odd(column)
    if 0 < len(odd) <= MOST_ODD and len(column.values) > MEASURED:
        return False  # measured numbers, with a text for missing among them
    return len(counts) >= LEAST_PATIENTS and len(counts) >= NEARLY_ALL * sum(counts.values())


def _measure(column: Column) -> NDArray[np.float64]:
    """The numbers of a column, without missing ones and texts."""
    if isinstance(column, Numbers):
        return column.numbers[np.isfinite(column.numbers)]
    sizes: NDArray[np.float64] = np.array([np.nan, *map(measure, column.values)])[column.codes]
    return sizes[np.isfinite(sizes)]


def _draft_number(name: str, columns: Mapping[str, Column]) -> tuple[DictionaryEntry, str]:
    """A number with a range that holds for every table."""
    odd = list(dict.fromkeys(label(value) for column in columns.values() for value in _list_odd(column)))
    if odd:
        texts = ", ".join(map(repr, odd))
        return (
            DictionaryEntry(type="number"),
            f"numbers, with {texts} among them: name those as missing in the map",
        )
    sizes = {source: _measure(column) for source, column in columns.items()}
    lows, highs = zip(*(np.quantile(known, [0.02, 0.98]).tolist() for known in sizes.values()), strict=True)
    low, high = min(lows), max(highs)
    quartiles = {source: find_quartiles(known) for source, known in sizes.items()}
    if (other := find_other_unit(name, quartiles)) is not None:
        raise _NoEntry(f"{other}; maps convert it, once an entry states its unit")
    note = compare_sizes(quartiles)
    clinical = find_range(name) if len(name) > 2 else None
    if clinical is not None and clinical.lowest <= low and high <= clinical.highest:
        return (
            DictionaryEntry(
                type="number",
                label=clinical.words,
                unit=clinical.unit,
                range=(float(clinical.lowest), float(clinical.highest)),
            ),
            note or "the range is what is plausible for adults, in that unit",
        )
    tables = "this table" if len(columns) == 1 else "these tables"
    if clinical is not None:
        verb = "is" if len(columns) == 1 else "are"
        note = note or (
            f"{clinical.words} is {clinical.lowest:g} to {clinical.highest:g} {clinical.unit}, and {tables} {verb} not"
        )
    middle = float(np.median(np.concatenate(list(sizes.values()))))
    note = note or f"the range is rounded from {tables}: what is plausible?"
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
