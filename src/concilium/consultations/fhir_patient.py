"""A patient of a FHIR R4 bundle (or of `$everything`), as a consultation's dictionary names what it needs.

An entry's `codes` say what an attribute is called elsewhere: `codes = { loinc = "2093-3" }`. Observations, their
components and conditions are found by code system and code; the latest one counts. A condition with a code, or with a
longer one of the same ICD class, means yes; without one the attribute is missing, since a record that is silent says
nothing. Age and sex are read of the Patient, for attributes with these names, or with `codes = { fhir = "birthDate" }`.

No text of a bundle is quoted in an error: only paths in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import msgspec

from concilium.errors import ModelError
from concilium.records.columns import say_plain
from concilium.records.dictionary import DictionaryEntry
from concilium.records.fhir_resources import (
    SYSTEMS,
    VOID,
    Component,
    Concept,
    Condition,
    Observation,
    Patient,
    last_part,
)

OF_PATIENT = {"age": "birthDate", "sex": "gender", "gender": "gender"}
OVER = frozenset({"inactive", "remission", "resolved"})
OLDEST = 365


class _Entry(msgspec.Struct, frozen=True):
    resource: dict[str, Any] = {}


class _Bundle(msgspec.Struct, frozen=True, rename="camel"):
    resource_type: str
    entry: tuple[_Entry, ...] = ()


TYPES: dict[str, type[msgspec.Struct]] = {
    "Patient": Patient,
    "Observation": Observation,
    "Condition": Condition,
}


@dataclass(frozen=True)
class BundledPatient:
    """Values by attribute as a person would enter them; of each the resource it was `used` from, in words; those whose
    latest resource is `too_old` or cannot be read (`unread`); and those of which the bundle has nothing."""

    values: Mapping[str, Any]
    used: Mapping[str, str]
    too_old: Mapping[str, str]
    unread: Mapping[str, str]
    missing: tuple[str, ...]

    def say(self) -> list[str]:
        """What was read and what was not, in sentences."""
        said = []
        if self.used:
            read = "; ".join(
                f"{name} {say_plain(self.values[name])}: {where}" for name, where in self.used.items()
            )
            said.append(f"Read from the bundle: {read}.")
        for what, listed in (("Too old", self.too_old), ("Not readable", self.unread)):
            if listed:
                named = "; ".join(f"{name} ({why})" for name, why in listed.items())
                said.append(f"{what}, and so not used: {named}.")
        if self.missing:
            said.append(f"Not in the bundle: {', '.join(self.missing)}.")
        return said


def is_bundle(patient: Mapping[str, Any]) -> bool:
    """Whether this is a FHIR resource, and no patient as a person writes one down."""
    return isinstance(patient.get("resourceType"), str)


def read_bundle(
    bundle: Mapping[str, Any],
    names: Collection[str],
    dictionary: Mapping[str, DictionaryEntry],
    day: date,
    oldest: int = OLDEST,
) -> BundledPatient:
    """What a bundle says of its one patient about these attributes, on a day; observations older than so many days are
    not used. ModelError where it is no bundle of one patient."""
    resources = _list_resources(bundle)
    patients = [one for one in resources if isinstance(one, Patient)]
    if len(patients) != 1:
        raise ModelError(
            f"the bundle has {len(patients) or 'no'} Patient resources: give that of one patient "
            "(Patient/ID/$everything)"
        )
    patient = patients[0]
    values: dict[str, Any] = {}
    used: dict[str, str] = {}
    too_old: dict[str, str] = {}
    unread: dict[str, str] = {}
    own = [one for one in resources if not isinstance(one, Patient) and _is_of(one, patient)]
    for name in names:
        entry = dictionary.get(name)
        codes = {
            SYSTEMS.get(key, key): code for key, code in (entry.codes if entry is not None else {}).items()
        }
        element = codes.pop("fhir", OF_PATIENT.get(name.casefold(), ""))
        if (value := _read_element(patient, element, day)) is not None:
            values[name], used[name] = value, "Patient"
            continue
        found = sorted(_find(own, codes, day), key=lambda one: one[0])
        if not found:
            continue
        when, kind, value = found[-1]
        where = f"{kind} of {when}" if when else f"{kind} without a date"
        if value is None:
            unread[name] = f"{where} has no value, or one with a comparator"
        elif kind == "Observation" and (not when or when < (day - timedelta(oldest)).isoformat()):
            too_old[name] = where
        else:
            values[name], used[name] = value, where
    missing = tuple(name for name in names if name not in {*values, *too_old, *unread})
    return BundledPatient(values, used, too_old, unread, missing)


def _list_resources(bundle: Mapping[str, Any]) -> list[msgspec.Struct]:
    try:
        read = msgspec.convert(dict(bundle), _Bundle)
    except msgspec.ValidationError as error:
        raise ModelError(f"this is no FHIR bundle ({error})") from None
    if read.resource_type != "Bundle":
        raise ModelError(
            "this FHIR resource is no Bundle: give the patient's Bundle (Patient/ID/$everything)"
        )
    resources = []
    for place, entry in enumerate(read.entry):
        form = TYPES.get(str(entry.resource.get("resourceType")))
        try:
            if form is not None:
                resources.append(msgspec.convert(entry.resource, form))
        except msgspec.ValidationError as error:
            raise ModelError(f"entry {place} of the bundle is not as FHIR has it ({error})") from None
    return resources


def _is_of(resource: Any, patient: Patient) -> bool:
    """Whether a resource is about this patient: a bundle of one may leave that out, or name it by a URL."""
    subject = resource.subject.reference
    return not subject or not patient.id or last_part(subject) == patient.id


def _read_element(patient: Patient, element: str, day: date) -> Any:
    """Age or sex; None where the Patient does not say."""
    if element == "gender":
        return patient.gender if patient.gender not in ("", "unknown") else None
    if element != "birthDate":
        return None
    try:
        born = date.fromisoformat(patient.birth_date)
    except ValueError:  # only a year or a month: an age that may be wrong by one
        return day.year - int(patient.birth_date[:4]) if patient.birth_date[:4].isdecimal() else None
    return day.year - born.year - ((day.month, day.day) < (born.month, born.day))


def _find(resources: list[Any], codes: Mapping[str, str], day: date) -> Iterator[tuple[str, str, Any]]:
    """Day, kind and value of every resource with one of these codes; nothing of days to come."""
    for one in resources:
        if one.day > day.isoformat():
            continue
        if isinstance(one, Condition):
            states = {_find_code(one.clinical_status), _find_code(one.verification_status)}
            if _has(one.code, codes, longer=True) and not states & {*VOID, *OVER}:
                yield one.day, "Condition", "refuted" not in states
        elif one.status not in VOID:
            for part in (one, *one.component):
                if _has(part.code, codes):
                    yield one.day, "Observation", _read_value(part)


def _find_code(concept: Concept) -> str:
    return concept.coding[0].code if concept.coding else ""


def _has(concept: Concept, codes: Mapping[str, str], *, longer: bool = False) -> bool:
    """Whether one of a concept's codes is one of these, or of ICD (`longer`) one below it."""
    for coding in concept.coding:
        wanted = codes.get(coding.system)
        if wanted is None:
            continue
        below = longer and "/sid/icd-" in coding.system and coding.code.startswith(wanted)
        if coding.code == wanted or below:
            return True
    return False


def _read_value(part: Component) -> Any:
    """A value as a person would enter it: a number with its unit, a code, yes or no; None where there is none."""
    quantity, concept = part.value_quantity, part.value_codeable_concept
    if quantity is not None:
        return None if quantity.amount is None else f"{quantity.amount:.10g} {quantity.in_unit}".strip()
    if concept is not None:
        return _find_code(concept) or concept.text or None
    return next(
        (one for one in (part.value_boolean, part.value_integer, part.value_string) if one is not None), None
    )
