"""What else must be said of a patient whom a model is asked about: values that are hardly plausible, what names mean.

By the dictionary of the model's study; of an attribute that it does not have, by public clinical ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from concilium.models.explanation import Explanation
from concilium.records.clinical_ranges import find_range
from concilium.records.columns import label
from concilium.records.dictionary import DictionaryEntry, describe_entry

LEAST_NAME = 3  # `ca` may be calcium, or the number of vessels


def annotate(
    explanation: Explanation,
    patient: Mapping[str, Any],
    asked: Iterable[str],
    dictionary: Mapping[str, DictionaryEntry],
) -> Explanation:
    """The explanation with what is odd about the patient's values first of its notes, and what is meant last."""
    odd = tuple(find_implausible(patient, asked, dictionary))
    spoken = dict.fromkeys(name for reason in explanation.reasons for name in reason.attributes)
    meant = tuple(say_meaning(name, dictionary[name]) for name in spoken if name in dictionary)
    if not odd and not meant:
        return explanation
    return replace(
        explanation,
        notes=(*odd, *explanation.notes),
        sentences=(*explanation.sentences, *odd, *filter(None, meant)),
    )


def find_implausible(
    patient: Mapping[str, Any], asked: Iterable[str], dictionary: Mapping[str, DictionaryEntry]
) -> Iterator[str]:
    """Values that are hardly meant."""
    for name in asked:
        value = patient.get(name)
        if value is None or isinstance(value, list | tuple | dict):
            continue
        entry = dictionary.get(name)
        if entry is not None and entry.values:
            if not entry.lists(entry.read(label(value))):
                yield f"{name} = {label(value)} is no value of it: {describe_entry(entry)}. Check it."
        elif isinstance(value, int | float) and not isinstance(value, bool):
            low, high, words = _find_ends(name, entry)
            if not low <= value <= high:
                yield f"{name} = {label(value)} is hardly plausible: {words}. Check it."


def _find_ends(name: str, entry: DictionaryEntry | None) -> tuple[float, float, str]:
    if entry is not None:
        ends = entry.range or (float("-inf"), float("inf"))
        return *ends, entry.say_range()
    clinical = find_range(name) if len(name) >= LEAST_NAME else None
    if clinical is None:
        return float("-inf"), float("inf"), ""
    return clinical.lowest, clinical.highest, f"{clinical.lowest:g} to {clinical.highest:g} {clinical.unit}"


def say_meaning(name: str, entry: DictionaryEntry) -> str:
    """What a name of the reasons stands for; nothing where the dictionary does not say."""
    if entry.type == "number":
        said = ", ".join(filter(None, [entry.label, entry.unit]))
    else:
        meanings = ", ".join(f"{value} {meaning}" for value, meaning in entry.values.items() if meaning)
        said = "; ".join(filter(None, [entry.label, meanings]))
    return f"{name}: {said}." if said else ""
