"""What a cohort file says of its columns, for the draft of a study's dictionary: labels of the vocabulary, units, codes
by which FHIR finds the same, and values that no patient is looked at for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from concilium.records.cohort_file import PATIENT, SEXES, CohortFile, Covariate
from concilium.records.dictionary import MOST_BYTES, MOST_CODES, MOST_TEXT, Dictionary, DictionaryEntry
from concilium.records.fhir_resources import SYSTEMS
from concilium.records.omop import find_words

if TYPE_CHECKING:
    from concilium.records.drafting import DictionaryDraft

YES_NO = {"no": "", "yes": ""}
Words = Mapping[str, Mapping[str, Sequence[str]]]
COUNTED = (1.0, 2.0, 3.0, 5.0, 10.0)  # where counts may be cut


def complete_draft(draft: DictionaryDraft, file: CohortFile) -> DictionaryDraft:
    """The draft with what a cohort file says of its columns. Events and counts have an entry whatever patients have."""
    labels, words = find_words(file)
    stated, cut = _state(file, words)
    stated = {name: _label(entry, labels.get(name, "")) for name, entry in stated.items()}
    entries = dict(draft.dictionary.entries)
    for name, entry in stated.items():
        drafted = entries.get(name)
        if drafted is not None and drafted.codes:  # of another hospital's file, which is the same study's
            entry = msgspec.structs.replace(entry, codes=drafted.codes, absent=drafted.absent)
        if entry.type == "code" or entry.bins:
            entries[name] = entry
        elif drafted is not None and drafted.type == "number":
            entries[name] = msgspec.structs.replace(
                drafted,
                label=entry.label or drafted.label,
                unit=entry.unit or drafted.unit,
                codes=entry.codes,
            )
    spared = {*entries, PATIENT, file.cohort.date}  # neither is meant to be looked at
    return replace(
        draft,
        dictionary=Dictionary(entries),
        notes={name: note for name, note in draft.notes.items() if name not in stated} | cut,
        left_out={name: why for name, why in draft.left_out.items() if name not in spared},
    )


def _state(file: CohortFile, words: Words) -> tuple[dict[str, DictionaryEntry], dict[str, str]]:
    """What is known of each column before anybody is looked at; and notes of those whose codes are too many."""
    entries: dict[str, DictionaryEntry] = {}
    notes: dict[str, str] = {}
    if file.age:
        entries[file.age] = DictionaryEntry(
            type="number", label="age", unit="years", codes={"fhir": "birthDate"}
        )
    if file.sex:
        entries[file.sex] = DictionaryEntry(
            type="code", label="sex", values=dict.fromkeys(SEXES, ""), codes={"fhir": "gender"}
        )
    # All entries together travel in the terms of a study.
    most = min(MOST_CODES, MOST_BYTES // 2 // max(1, len(file.covariates)))
    for one in file.covariates:
        listed = _list_codes(one, words)
        codes = {system: _join(known, most) for system, known in listed.items()}
        if left := sum(len(known) - 1 - codes[system].count(",") for system, known in listed.items()):
            notes[one.name] = f"{left} more codes are below these: name those that your records have"
        if one.take == "count":
            entries[one.name] = DictionaryEntry(type="number", bins=COUNTED)
        elif one.take != "any":
            entries[one.name] = DictionaryEntry(type="number", unit=one.unit, codes=codes)
        else:
            absent = "no" if codes and not left else ""  # as in the table: no is that nothing is recorded
            entries[one.name] = DictionaryEntry(type="code", values=YES_NO, codes=codes, absent=absent)
    if file.outcome is not None:
        entries[file.outcome.name] = DictionaryEntry(type="code", values=YES_NO)
    return entries, notes


def _list_codes(one: Covariate, words: Words) -> dict[str, list[str]]:
    """By what a FHIR patient shows the same: by the codes of the file, and by those of the vocabulary. Nothing where
    one resource would not say it: two or more events, a mean, whether something was measured."""
    concepts, event = one.event.concepts, one.event
    says_it = event.kind in ("condition", "drug") if one.take == "any" else one.take == "latest"
    if concepts is None or event.at_least > 1 or not says_it:
        return {}
    names = {address: name for name, address in reversed(SYSTEMS.items())}
    listed = {names.get(system, system): [*codes] for system, codes in concepts.codes.items()}
    for system, codes in words.get(concepts.name, {}).items():
        listed.setdefault(system, []).extend(codes)
    return {system: list(dict.fromkeys(codes)) for system, codes in listed.items()}


def _join(codes: Sequence[str], most: int) -> str:
    """Codes as an entry has them, in at most so many characters; those of the set itself come first."""
    text = ""
    for code in codes:
        longer = f"{text}, {code}" if text else code
        if len(longer) > most:
            break
        text = longer
    return text


def _label(entry: DictionaryEntry, label: str) -> DictionaryEntry:
    shown = label if label.isprintable() else ""
    return entry if not shown else msgspec.structs.replace(entry, label=shown[:MOST_TEXT])
