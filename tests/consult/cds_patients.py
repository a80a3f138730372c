"""A small model with a mapping, and the calls of the CDS Hooks specification for it."""

from __future__ import annotations

import concilium as cc

RXNORM = "http://www.nlm.nih.gov/research/umls/rxnorm"
UCUM = "http://unitsofmeasure.org"

DICTIONARY = cc.Dictionary.parse(
    {
        "age": {"label": "age", "unit": "years", "range": [0, 120], "bins": [40, 60, 80]},
        "sex": {"values": {"f": "female", "m": "male"}},
        "chol": {
            "label": "serum cholesterol",
            "unit": "mg/dl",
            "range": [80, 700],
            "bins": [200, 240],
            "molar_mass": 386.65,
            "codes": {"loinc": "2093-3, 14647-2"},
        },
        "infarct": {"values": {"0": "no", "1": "yes"}, "codes": {"icd10": "I21"}, "absent": "0"},
        "antibiotic": {"values": {"0": "no", "1": "yes"}, "codes": {"rxnorm": "617993"}, "absent": "0"},
        "died": {"label": "death in 30 days", "values": {"0": "no", "1": "yes"}},
    },
    "test",
)


def make_rows(seed: int, count: int = 150) -> list[dict[str, object]]:
    rows = []
    for place in range(count):
        number = (place * 7919 + seed * 104729) % 1009
        row = {
            "age": 30 + number % 60,
            "sex": "fm"[number % 2],
            "chol": 180 + number % 90,
            "infarct": number % 5 == 0,
            "antibiotic": number % 3 == 0,
        }
        risk = (row["age"] > 60) + 2 * row["infarct"] + 2 * row["antibiotic"] + (row["chol"] > 240)
        died = risk + number % 3 > 3
        rows.append(
            {**row, "infarct": int(row["infarct"]), "antibiotic": int(row["antibiotic"]), "died": int(died)}
        )
    return rows


def fit(method=cc.NaiveBayes, **more):
    tables = {
        name: cc.Records.from_rows(make_rows(place)) for place, name in enumerate(("north", "south", "west"))
    }
    sites = [cc.Site(name, table) for name, table in tables.items()]
    return method("died", positive=1, bins=DICTIONARY.bins, **more).fit(
        cc.House(sites, dictionary=DICTIONARY)
    )


def observe(
    value: dict[str, object], day: str, status: str = "final", code: str = "2093-3"
) -> dict[str, object]:
    return {
        "resourceType": "Observation",
        "status": status,
        "code": {"coding": [{"system": "http://loinc.org", "code": code}]},
        "subject": {"reference": "Patient/1288992"},
        "effectiveDateTime": day,
        "valueQuantity": value,
    }


def bundle(*resources: object) -> dict[str, object]:
    return {"resourceType": "Bundle", "type": "searchset", "entry": [{"resource": one} for one in resources]}


CHOL = {"value": 6.5, "unit": "mmol/L", "system": UCUM, "code": "mmol/L"}

# The example request of the specification, with its key of the prefetch, and a token that is not used.
PATIENT_VIEW = {
    "hookInstance": "d1577c69-dfbe-44ad-ba6d-3e05e953b2ea",
    "fhirServer": "http://hooks.smarthealthit.org:9080",
    "hook": "patient-view",
    "fhirAuthorization": {
        "access_token": "some-opaque-fhir-access-token",
        "token_type": "Bearer",
        "expires_in": 300,
        "scope": "patient/Patient.read patient/Observation.read",
        "subject": "cds-service4",
    },
    "context": {"userId": "Practitioner/example", "patientId": "1288992", "encounterId": "89284"},
    "prefetch": {
        "patientToGreet": {
            "resourceType": "Patient",
            "gender": "male",
            "birthDate": "1925-12-23",
            "id": "1288992",
            "active": True,
        }
    },
}

# The context of the specification's order-select, with the parts of its orders that are not read cut short. It says
# doseAndRate as FHIR R4 does not have it.
ORDER_SELECT = {
    "hookInstance": "d1577c69-dfbe-44ad-ba6d-3e05e953b2ea",
    "hook": "order-select",
    "context": {
        "userId": "PractitionerRole/123",
        "patientId": "1288992",
        "encounterId": "89284",
        "selections": ["NutritionOrder/pureeddiet-simple", "MedicationRequest/smart-MedicationRequest-103"],
        "draftOrders": {
            "resourceType": "Bundle",
            "entry": [
                {
                    "resource": {
                        "resourceType": "NutritionOrder",
                        "id": "pureeddiet-simple",
                        "status": "draft",
                        "patient": {"reference": "Patient/1288992"},
                        "dateTime": "2014-09-17",
                    }
                },
                {
                    "resource": {
                        "resourceType": "MedicationRequest",
                        "id": "smart-MedicationRequest-103",
                        "meta": {"lastUpdated": "2018-04-30T13:25:40.845-04:00"},
                        "status": "draft",
                        "intent": "order",
                        "medicationCodeableConcept": {
                            "coding": [{"system": RXNORM, "code": "617993", "display": "Amoxicillin"}],
                            "text": "Amoxicillin 120 MG/ML / clavulanate potassium 8.58 MG/ML Oral Suspension",
                        },
                        "subject": {"reference": "Patient/1288992"},
                        "dosageInstruction": [
                            {
                                "text": "5 mL bid x 10 days",
                                "doseAndRate": {"doseQuantity": {"value": 5, "unit": "mL"}},
                            }
                        ],
                    }
                },
            ],
        },
    },
    "prefetch": PATIENT_VIEW["prefetch"],
}

FEEDBACK = [
    {
        "card": "4e0a3a1e-3283-4575-ab82-028d55fe2719",
        "outcome": "accepted",
        "acceptedSuggestions": [{"id": "e56e1945-20b3-4393-8503-a1a20fd73152"}],
        "outcomeTimestamp": "2020-12-11T00:00:00Z",
    },
    {
        "card": "f6b95768-b1c8-40dc-8385-bf3504b82ffb",
        "outcome": "overridden",
        "outcomeTimestamp": "2020-12-11T00:00:00Z",
    },
    {
        "card": "9368d37b-283f-44a0-93ea-547cebab93ed",
        "outcome": "overridden",
        "overrideReason": {
            "reason": {"code": "d7ecf885", "system": "https://example.com/cds-hooks/override-reason-system"},
            "userComment": "A comment entered by the clinician.",
        },
        "outcomeTimestamp": "2020-12-11T00:00:00Z",
    },
]

# Key, claims and signed token of the specification.
JWKS = {
    "keys": [
        {
            "kty": "EC",
            "use": "sig",
            "crv": "P-384",
            "kid": "example-kid",
            "x": "46SDH7Znh821wblCBglA61sNE9ZrHYKKt3qRtRTmSXyOI_FIGBLWrWa0GPUkDCEk",
            "y": "XMcRuuoGW7CXjQdy-F5i3FeBE0x9hPLdeFdSoDd3ELmx404tLX0VRRcqzAsPhXcI",
            "alg": "ES384",
        }
    ]
}
TOKEN = (
    "eyJhbGciOiJFUzM4NCIsInR5cCI6IkpXVCIsImtpZCI6ImV4YW1wbGUta2lkIiwiamt1IjoiaHR0cHM6Ly9maGlyLWVoci5leGFtcGxlLmNvbS9q"
    "d2tfdXJpIn0.eyJpc3MiOiJodHRwczovL2ZoaXItZWhyLmV4YW1wbGUuY29tLyIsInN1YiI6ImNsaWVudF9pZCIsImF1ZCI6Imh0dHBzOi8vY2Rz"
    "LmV4YW1wbGUub3JnL2Nkcy1zZXJ2aWNlcy9zb21lLXNlcnZpY2UiLCJleHAiOjE0MjI1Njg4NjAsImlhdCI6MTMxMTI4MDk3MCwianRpIjoiZWUy"
    "MmIwMjEtZTFiNy00NjExLWJhNWItOGVlYzZhMzNhYzFlIiwidGVuYW50IjoiMmRkZDZjM2EtOGU5YS00NGM2LWEzMDUtNTIxMTFhZDMwMmEyIn0."
    "CUFPkplnWd6YGIvzoHolWCQBDsCL8QtTWKGg_QFpS169WrqDGzktRi-_we6-6rVzbjerU27ZKww_SW0-b9RTz-dPJNcqsueMio8r6EqXUXhbLm_c"
    "h3XFSbDlGHDl_tqo"
)
EXPIRES = 1422568860
