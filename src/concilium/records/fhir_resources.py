"""FHIR R4 resources as far as they are read: who, what, when and how much. Codes, units, states and dates of them.

No text of a resource is quoted in an error: only paths in it.
"""

from __future__ import annotations

import msgspec

SYSTEMS = {
    "loinc": "http://loinc.org",
    "snomed": "http://snomed.info/sct",
    "rxnorm": "http://www.nlm.nih.gov/research/umls/rxnorm",
    "atc": "http://www.whocc.no/atc",
    "cvx": "http://hl7.org/fhir/sid/cvx",
    "ndc": "http://hl7.org/fhir/sid/ndc",
    "cpt": "http://www.ama-assn.org/go/cpt",
    "icd10": "http://hl7.org/fhir/sid/icd-10",
    "icd10cm": "http://hl7.org/fhir/sid/icd-10-cm",
    "icd10gm": "http://fhir.de/CodeSystem/bfarm/icd-10-gm",
    "icd9": "http://hl7.org/fhir/sid/icd-9-cm",
    "icd9cm": "http://hl7.org/fhir/sid/icd-9-cm",
    "encounter": "http://terminology.hl7.org/CodeSystem/v3-ActCode",
}
"""What a dictionary or a cohort file calls the code systems of FHIR. Another one is written as its address."""

OF_DRUGS = frozenset(SYSTEMS[name] for name in ("rxnorm", "atc", "ndc", "cvx"))
"""The code systems of medications."""

OIDS = {
    "urn:oid:2.16.840.1.113883.6.1": SYSTEMS["loinc"],
    "urn:oid:2.16.840.1.113883.6.96": SYSTEMS["snomed"],
    "urn:oid:2.16.840.1.113883.6.88": SYSTEMS["rxnorm"],
    "urn:oid:2.16.840.1.113883.6.73": SYSTEMS["atc"],
    "urn:oid:2.16.840.1.113883.6.3": SYSTEMS["icd10"],
    "urn:oid:2.16.840.1.113883.6.90": SYSTEMS["icd10cm"],
    "urn:oid:2.16.840.1.113883.6.103": SYSTEMS["icd9cm"],
}
"""The same systems as older interfaces name them."""

UCUM = "http://unitsofmeasure.org"
VOID = frozenset({"entered-in-error", "cancelled", "registered", "unknown"})
"""States of observations that say nothing."""
NEVER = frozenset({"entered-in-error", "cancelled", "not-done", "draft", "refuted"})
"""States of what was never done, given or the case."""


class Coding(msgspec.Struct, frozen=True):
    system: str = ""
    code: str = ""


class Concept(msgspec.Struct, frozen=True):
    coding: tuple[Coding, ...] = ()
    text: str = ""


class Quantity(msgspec.Struct, frozen=True):
    value: float | None = None
    comparator: str = ""
    unit: str = ""
    system: str = ""
    code: str = ""

    @property
    def amount(self) -> float | None:
        """The number; None where a comparator such as < says that it is none."""
        return None if self.comparator else self.value

    @property
    def in_unit(self) -> str:
        """The unit, by UCUM where it is coded so."""
        return self.code if self.system == UCUM and self.code else self.unit


class Reference(msgspec.Struct, frozen=True):
    reference: str = ""


class Period(msgspec.Struct, frozen=True):
    start: str = ""
    end: str = ""


class Component(msgspec.Struct, frozen=True, rename="camel"):
    code: Concept = Concept()
    value_quantity: Quantity | None = None
    value_codeable_concept: Concept | None = None
    value_integer: int | None = None
    value_boolean: bool | None = None
    value_string: str | None = None


class Observation(Component, frozen=True, rename="camel"):
    id: str = ""
    status: str = "final"
    subject: Reference = Reference()
    effective_date_time: str = ""
    effective_instant: str = ""
    effective_period: Period = Period()
    issued: str = ""
    component: tuple[Component, ...] = ()

    @property
    def moment(self) -> str:
        """When it was, as far as it says."""
        period = self.effective_period.end or self.effective_period.start
        return self.effective_date_time or self.effective_instant or period or self.issued

    @property
    def day(self) -> str:
        """The day it is of."""
        return self.moment[:10]


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    id: str = ""
    code: Concept = Concept()
    subject: Reference = Reference()
    clinical_status: Concept = Concept()
    verification_status: Concept = Concept()
    recorded_date: str = ""
    onset_date_time: str = ""
    onset_period: Period = Period()

    @property
    def day(self) -> str:
        """The day it was recorded on, or began."""
        return (self.recorded_date or self.onset_date_time)[:10]

    @property
    def moment(self) -> str:
        """When it began, or else was recorded."""
        return self.onset_date_time or self.onset_period.start or self.recorded_date


class Patient(msgspec.Struct, frozen=True, rename="camel"):
    id: str = ""
    gender: str = ""
    birth_date: str = ""
    deceased_date_time: str = ""


class Encounter(msgspec.Struct, frozen=True, rename={"class_": "class"}):
    subject: Reference = Reference()
    status: str = ""
    class_: Coding = Coding()
    type: tuple[Concept, ...] = ()
    period: Period = Period()


class Procedure(msgspec.Struct, frozen=True, rename="camel"):
    subject: Reference = Reference()
    status: str = ""
    code: Concept = Concept()
    performed_date_time: str = ""
    performed_period: Period = Period()


class Medication(msgspec.Struct, frozen=True):
    id: str = ""
    code: Concept = Concept()


class Drug(msgspec.Struct, frozen=True, rename="camel"):
    """A request, statement, administration or dispense of a medication, or an immunisation."""

    subject: Reference = Reference()
    patient: Reference = Reference()
    status: str = ""
    medication_codeable_concept: Concept = Concept()
    medication_reference: Reference = Reference()
    vaccine_code: Concept = Concept()
    effective_date_time: str = ""
    effective_period: Period = Period()
    occurrence_date_time: str = ""
    when_handed_over: str = ""
    authored_on: str = ""
    date_asserted: str = ""

    @property
    def moment(self) -> str:
        """When it was given, or else prescribed or told of."""
        given = self.effective_date_time or self.effective_period.start or self.occurrence_date_time
        return given or self.when_handed_over or self.authored_on or self.date_asserted


TYPES: dict[str, type[msgspec.Struct]] = {
    "Patient": Patient,
    "Observation": Observation,
    "Condition": Condition,
    "Encounter": Encounter,
    "Procedure": Procedure,
    "Medication": Medication,
    "MedicationRequest": Drug,
    "MedicationStatement": Drug,
    "MedicationAdministration": Drug,
    "MedicationDispense": Drug,
    "Immunization": Drug,
}


def last_part(reference: str) -> str:
    """Whom or what a reference names: `Patient/7`, an address that ends so, or `urn:uuid:...`."""
    return reference.rsplit("/", 1)[-1].removeprefix("urn:uuid:")
