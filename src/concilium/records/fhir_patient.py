"""A patient of a FHIR R4 bundle (or of `$everything`), as a dictionary names what a model needs.

An entry's `codes` say what an attribute is called elsewhere: `codes = { loinc = "2093-3, 14647-2" }`. Observations,
their components, conditions and medications are found by code system and code; the latest one counts. A condition with
a code, or with a longer one of the same ICD class, and a medication that is taken mean yes. Without one the attribute
is missing, since a record that is silent says nothing, unless the entry says what that means (`absent = 0`). A
condition that is over (resolved) is named and not used, and is no silence; nor are conditions of other code systems.
Age and sex are read of the Patient, for attributes with these names, or with `codes = { fhir = "birthDate" }`.

No text of a bundle is quoted in an error: only paths in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import msgspec

from concilium.errors import ModelError
from concilium.records.columns import say_plain
from concilium.records.dictionary import DictionaryEntry
from concilium.records.fhir_resources import (
    NEVER,
    OF_DRUGS,
    OIDS,
    SYSTEMS,
    VOID,
    Component,
    Concept,
    Condition,
    Drug,
    Medication,
    Observation,
    Patient,
    last_part,
)
from concilium.records.fhir_resources import TYPES as ALL_TYPES

OF_PATIENT = {"age": "birthDate", "sex": "gender", "gender": "gender"}
OVER = frozenset({"inactive", "remission", "resolved"})
NOT_TAKEN = NEVER | {"stopped", "on-hold", "not-taken", "unknown"}
"""States of medications that a patient does not take."""
OLDEST = 365
MOST_RESOURCES = 5000

TYPES = {
    name: ALL_TYPES[name]
    for name in (
        "Patient",
        "Observation",
        "Condition",
        "Medication",
        "MedicationRequest",
        "MedicationStatement",
        "MedicationAdministration",
        "MedicationDispense",
    )
}
"""The resources that are read."""


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
    """What a bundle says of its one patient about these attributes, on a day; observations and medications older than
    so many days are not used. ModelError where it is no bundle of one patient."""
    if bundle.get("resourceType") != "Bundle":
        raise ModelError(
            "this FHIR resource is no Bundle: give the patient's Bundle (Patient/ID/$everything)"
        )
    searched = () if has_more(bundle) else None
    return read_resources(
        list_resources(bundle, "the bundle"), names, dictionary, day, oldest, searched=searched
    )


def has_more(bundle: Mapping[str, Any]) -> bool:
    """Whether a bundle is a page with others to come: what is not in it may be in those."""
    links = bundle.get("link")
    listed = links if isinstance(links, list) else []
    return any(isinstance(one, dict) and one.get("relation") == "next" for one in listed)


def read_resources(
    resources: Sequence[Any],
    names: Collection[str],
    dictionary: Mapping[str, DictionaryEntry],
    day: date,
    oldest: int = OLDEST,
    *,
    ordered: Sequence[Drug] = (),
    searched: Collection[str] | None = None,
) -> BundledPatient:
    """What resources say of their one patient. `ordered`: medications that count though they are drafts. `searched`:
    the attributes of which the resources are all there is, so that nothing means what their entry says of that."""
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
    named = {one.id: one.code for one in resources if isinstance(one, Medication)}
    about = [one for one in resources if not isinstance(one, Patient | Medication) and _is_of(one, patient)]
    oldest_day = (day - timedelta(min(oldest, day.toordinal() - 1))).isoformat()
    for name in names:
        entry = dictionary.get(name)
        codes = list_codes(entry)
        element = find_element(name, entry)
        if (value := _read_element(patient, element, day)) is not None:
            values[name], used[name] = value, "Patient"
            continue
        if any(_has(_find_drug(one, named), codes) for one in ordered):
            values[name], used[name] = True, "selected order"
            continue
        found = sorted(_find(about, codes, day, named), key=lambda one: one[0])
        if not found and (over := [one.day for one in about if _is_over(one, codes, day)]):
            unread[name] = f"Condition{_say_day(max(over))} is over"
            continue
        if not found:
            if entry is None or not entry.absent or (searched is not None and name not in searched):
                continue
            if other := _find_other_codes(about, codes, named):
                unread[name] = f"{other}, and none has a code of its code system"
            else:
                values[name], used[name] = entry.absent, "nothing recorded"
            continue
        when, kind, value = found[-1]
        where = f"{kind}{_say_day(when)}"
        if value is None:
            unread[name] = f"{where} has no value, or one with a comparator"
        elif kind != "Condition" and (not when or when < oldest_day):
            too_old[name] = where
        else:
            values[name], used[name] = value, where
    missing = tuple(name for name in names if name not in {*values, *too_old, *unread})
    return BundledPatient(values, used, too_old, unread, missing)


def find_element(name: str, entry: DictionaryEntry | None) -> str:
    """The element of a Patient that an attribute is; empty where it is none."""
    stated = entry.codes.get("fhir", "") if entry is not None else ""
    return stated or OF_PATIENT.get(name.casefold(), "")


def list_codes(entry: DictionaryEntry | None) -> dict[str, frozenset[str]]:
    """The codes of an attribute by the address of their system; what is no system of FHIR is left out."""
    codes = {} if entry is None else entry.codes
    return {
        SYSTEMS.get(key, key): frozenset(one.strip() for one in listed.split(","))
        for key, listed in codes.items()
        if is_system(key)
    }


def is_system(key: str) -> bool:
    """Whether a key of `codes` is a code system that FHIR resources may have: its name here, or its address."""
    return key in SYSTEMS or "://" in key or key.startswith("urn:")


def list_resources(document: Mapping[str, Any], where: str) -> list[Any]:
    """The resources of a bundle, or the one that this is, as far as they are read; ModelError where one of them is not
    as FHIR has it."""
    if document.get("resourceType") != "Bundle":
        entries: list[Any] = [{"resource": document}]
    else:
        entries = document.get("entry", [])
    if not isinstance(entries, list):
        raise ModelError(f"this is no FHIR bundle ({where}: entry is no list)")
    if len(entries) > MOST_RESOURCES:
        raise ModelError(f"{where}: has more than {MOST_RESOURCES:,} resources: ask for less")
    resources = []
    for place, entry in enumerate(entries):
        resource = entry.get("resource", {}) if isinstance(entry, dict) else None
        if not isinstance(resource, dict):
            raise ModelError(f"{where}: entry {place} holds no resource")
        if resource.get("resourceType") == "Bundle":
            raise ModelError(f"{where}: entry {place} is a bundle in a bundle")
        form = TYPES.get(str(resource.get("resourceType")))
        try:
            if form is not None:
                resources.append(msgspec.convert(resource, form))
        except (msgspec.ValidationError, RecursionError) as error:
            said = f" ({error})" if isinstance(error, msgspec.ValidationError) else ""
            raise ModelError(f"entry {place} of {where} is not as FHIR has it{said}") from None
    return resources


def _is_of(resource: Any, patient: Patient) -> bool:
    """Whether a resource is about this patient: a bundle of one may leave that out, or name it by a URL."""
    subject = resource.subject.reference or getattr(resource, "patient", resource.subject).reference
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


def _find(
    resources: Sequence[Any], codes: Mapping[str, frozenset[str]], day: date, named: Mapping[str, Concept]
) -> Iterator[tuple[str, str, Any]]:
    """Day, kind and value of every resource with one of these codes; nothing of days to come."""
    if not codes:
        return
    for one in resources:
        when = one.moment[:10] if isinstance(one, Drug) else one.day
        if when > day.isoformat():
            continue
        if isinstance(one, Drug):
            if one.status not in NOT_TAKEN and _has(_find_drug(one, named), codes):
                yield when, "Medication", True
        elif isinstance(one, Condition):
            verified, over = _find_code(one.verification_status), _find_code(one.clinical_status) in OVER
            if _has(one.code, codes, longer=True) and not over and verified not in VOID:
                yield when, "Condition", verified != "refuted"
        elif isinstance(one, Observation) and one.status not in VOID:
            for part in (one, *one.component):
                if _has(part.code, codes):
                    yield when, "Observation", _read_value(part)


def _is_over(resource: Any, codes: Mapping[str, frozenset[str]], day: date) -> bool:
    """Whether it is a condition that the patient had and has no more: it is neither a yes nor a no of today."""
    return (
        isinstance(resource, Condition)
        and resource.day <= day.isoformat()
        and _find_code(resource.clinical_status) in OVER
        and _find_code(resource.verification_status) not in NEVER
        and _has(resource.code, codes, longer=True)
    )


def _find_other_codes(
    resources: Sequence[Any], codes: Mapping[str, frozenset[str]], named: Mapping[str, Concept]
) -> str:
    """That medications, or conditions, are there and coded by other systems only: then nothing found says nothing."""
    drugs = bool(codes.keys() & OF_DRUGS)
    if drugs:
        concepts = [_find_drug(one, named) for one in resources if isinstance(one, Drug)]
    else:
        concepts = [one.code for one in resources if isinstance(one, Condition)]
    systems = {OIDS.get(one.system, one.system) for concept in concepts for one in concept.coding}
    if not concepts or systems & codes.keys():
        return ""
    return "medications are recorded" if drugs else "conditions are recorded"


def _say_day(day: str) -> str:
    return f" of {day}" if day else " without a date"


def _find_drug(drug: Drug, named: Mapping[str, Concept]) -> Concept:
    """What it is a medication of."""
    concept = drug.medication_codeable_concept
    return concept if concept.coding else named.get(last_part(drug.medication_reference.reference), concept)


def _find_code(concept: Concept) -> str:
    return concept.coding[0].code if concept.coding else ""


def _has(concept: Concept, codes: Mapping[str, frozenset[str]], *, longer: bool = False) -> bool:
    """Whether one of a concept's codes is one of these, or of ICD (`longer`) one below it."""
    for coding in concept.coding:
        wanted = codes.get(OIDS.get(coding.system, coding.system), ())
        if coding.code in wanted:
            return True
        if longer and "/sid/icd-" in coding.system and coding.code.startswith(tuple(wanted)):
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
