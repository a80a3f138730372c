"""A patient of FHIR resources as a model takes one: by the dictionary, which also says what attributes are elsewhere.

The dictionary of a model's study stands on its card. A hospital may add to it (`--map`): codes, and entries of
attributes that the study did not describe. It cannot say what an attribute means otherwise than the study does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from concilium.consultations.answers import read_value
from concilium.errors import ConciliumError, ModelError, nearest
from concilium.models.explanation import Explanation
from concilium.models.method import Method
from concilium.models.prediction import Entries
from concilium.records.dictionary import Dictionary, DictionaryEntry
from concilium.records.fhir_patient import BundledPatient, find_element, is_system, list_codes, read_bundle
from concilium.records.fhir_resources import SYSTEMS
from concilium.records.query import Query


def list_inputs(method: Method[Any]) -> list[str]:
    """The attributes that a model asks about, and those of its query."""
    return sorted({*method.attributes_, *Query.parse(method.query).attributes})


def find_mapping(method: Method[Any], path: Path | None) -> dict[str, DictionaryEntry]:
    """The dictionary of the model with what a hospital's own file adds; ModelError where these contradict each other,
    or where nothing that the model asks about has codes."""
    if method.reads_courses:
        raise ModelError(
            f"{method.called} reads series of measurements, and not a FHIR patient: give a model of a table"
        )
    inputs = list_inputs(method)
    entries = (
        dict(method.card.dictionary) if path is None else add_codes(method.card.dictionary, path, inputs)
    )
    if not any(is_found(name, entries) for name in inputs):
        raise ModelError(
            f"the dictionary has no codes of {', '.join(inputs)}: give a file with them (--map), such as "
            f'[dictionary.{inputs[0] if inputs else "chol"}] with codes = {{ loinc = "2093-3" }}'
        )
    return entries


def add_codes(own: Entries, path: Path, inputs: Collection[str]) -> dict[str, DictionaryEntry]:
    """A study's dictionary with what a hospital's own file adds to it."""
    entries, added = dict(own), Dictionary.read(path).entries
    for name, entry in added.items():
        if unknown := [key for key in entry.codes if key != "fhir" and not is_system(key)]:
            hint = nearest(unknown[0], SYSTEMS)
            raise ModelError(
                f"{path}: [dictionary.{name}] codes: there is no code system {unknown[0]!r}{hint}; there are "
                f"{', '.join(SYSTEMS)}, or the address of another one"
            )
        entries[name] = _join(path, name, entries[name], entry) if name in entries else entry
    if not {*added} & {*inputs}:
        hint = next(filter(None, (nearest(one, inputs) for one in added)), "")
        raise ModelError(f"{path}: describes nothing that the model asks about{hint}: {', '.join(inputs)}")
    return entries


def is_found(name: str, entries: Entries) -> bool:
    """Whether the mapping says where in FHIR an attribute is."""
    entry = entries.get(name)
    return bool(list_codes(entry)) or bool(find_element(name, entry))


def _join(path: Path, name: str, own: DictionaryEntry, added: DictionaryEntry) -> DictionaryEntry:
    """An entry of the study with the codes of the hospital."""
    if added.type != own.type or (added.unit and own.unit and added.unit != own.unit):
        raise ModelError(
            f"{path}: [dictionary.{name}] says {added.type} {added.unit}".rstrip()
            + f", and the model's study {own.type} {own.unit}".rstrip()
            + ": values are converted into the unit of the study, so write that one"
        )
    return msgspec.structs.replace(
        own,
        codes={**own.codes, **added.codes},
        absent=added.absent or own.absent,
        molar_mass=own.molar_mass or added.molar_mass,
    )


def read_patient_bundle(
    method: Method[Any],
    bundle: Mapping[str, Any],
    entries: Entries,
    day: date,
    oldest: int,
) -> BundledPatient:
    """What a bundle says of what the model asks about, as the model takes it."""
    return as_model_takes(read_bundle(bundle, list_inputs(method), entries, day, oldest), entries)


def as_model_takes(found: BundledPatient, entries: Entries) -> BundledPatient:
    """Values in the units and words of the study. One that cannot be, or that the dictionary calls impossible, is
    named as not readable: it would move the answer by a slip."""
    values: dict[str, Any] = {}
    unread = dict(found.unread)
    for name, value in found.values.items():
        try:
            values[name] = read_value(name, value, entries.get(name))
        except ConciliumError as error:
            unread[name] = f"{found.used[name]}: {error}"
    used = {name: where for name, where in found.used.items() if name in values}
    return replace(found, values=values, used=used, unread=unread)


def add_sources(explanation: Explanation, said: list[str]) -> Explanation:
    """An explanation with what was read from where, after all else."""
    if not said:
        return explanation
    return replace(explanation, notes=(*explanation.notes, *said), sentences=(*explanation.sentences, *said))
