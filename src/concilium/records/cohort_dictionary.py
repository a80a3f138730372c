"""What a cohort file says of its columns, for the draft of a study's dictionary: labels of the vocabulary, units, codes
by which FHIR finds the same, and values that no patient is looked at for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from concilium.records.cohort_file import OF_EVENTS, SEXES, CohortFile, ConceptSet
from concilium.records.dictionary import MOST_TEXT, Dictionary, DictionaryEntry
from concilium.records.fhir_resources import SYSTEMS
from concilium.records.omop import find_labels

if TYPE_CHECKING:
    from concilium.records.drafting import DictionaryDraft

YES_NO = {"no": "", "yes": ""}
COUNTED = (1.0, 2.0, 3.0, 5.0, 10.0)  # where counts may be cut


def complete_draft(draft: DictionaryDraft, file: CohortFile) -> DictionaryDraft:
    """The draft with what a cohort file says of its columns. Events and counts have an entry whatever patients have."""
    labels = find_labels(file)
    stated = {name: _label(entry, labels.get(name, "")) for name, entry in _state(file).items()}
    entries = dict(draft.dictionary.entries)
    for name, entry in stated.items():
        drafted = entries.get(name)
        if entry.type == "code" or entry.bins:
            entries[name] = entry
        elif drafted is not None and drafted.type == "number":
            entries[name] = msgspec.structs.replace(
                drafted,
                label=entry.label or drafted.label,
                unit=entry.unit or drafted.unit,
                codes=entry.codes,
            )
    return replace(
        draft,
        dictionary=Dictionary(entries),
        notes={name: note for name, note in draft.notes.items() if name not in stated},
        left_out={name: why for name, why in draft.left_out.items() if name not in entries},
    )


def _state(file: CohortFile) -> dict[str, DictionaryEntry]:
    """What is known of each column before anybody is looked at."""
    entries: dict[str, DictionaryEntry] = {}
    if file.age:
        entries[file.age] = DictionaryEntry(
            type="number", label="age", unit="years", codes={"fhir": "birthDate"}
        )
    if file.sex:
        entries[file.sex] = DictionaryEntry(
            type="code", label="sex", values=dict.fromkeys(SEXES, ""), codes={"fhir": "gender"}
        )
    for one in file.covariates:
        codes = _list_codes(one.event.concepts)
        if one.take not in OF_EVENTS:
            entries[one.name] = DictionaryEntry(type="number", unit=one.unit, codes=codes)
        elif one.take == "count":
            entries[one.name] = DictionaryEntry(type="number", bins=COUNTED)
        else:
            entries[one.name] = DictionaryEntry(type="code", values=YES_NO, codes=codes)
    if file.outcome is not None:
        entries[file.outcome.name] = DictionaryEntry(type="code", values=YES_NO)
    return entries


def _list_codes(concepts: ConceptSet | None) -> dict[str, str]:
    """By what FHIR finds it: of each code system that the file names one code of."""
    names = {address: name for name, address in reversed(SYSTEMS.items())}
    listed = {} if concepts is None else concepts.codes
    return {names.get(system, system): codes[0] for system, codes in listed.items() if len(codes) == 1}


def _label(entry: DictionaryEntry, label: str) -> DictionaryEntry:
    shown = label if label.isprintable() else ""
    return entry if not shown else msgspec.structs.replace(entry, label=shown[:MOST_TEXT])
