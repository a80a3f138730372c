"""The conditions that United States law protects in veterans' records, as codes: what is sensitive unless stated.

Title 38 U.S.C. section 7332(a)(1) protects records about drug abuse, alcoholism or alcohol abuse, infection with
the human immunodeficiency virus, and sickle cell anemia. The law names conditions, not codes; the beginnings of
codes below are our translation, which whoever shares data checks for their own law. In the list: mental disorders
that alcohol and drugs induce, dependence, and abuse without dependence; HIV disease and HIV infection without
symptoms; sickle cell disease, and the trait, since it says as much about a family. Not in it: tobacco (305.1, F17),
poisoning, diseases of organs that alcohol causes (571.0, K70), testing and family history.

At three digits a category counts as soon as one of its codes does: 282 for sickle cell, 305 though tobacco is in
it.
"""

from __future__ import annotations

from concilium.codes.taxonomy import Taxonomy
from concilium.errors import StudyError

ICD9_7332 = {
    "042": "HIV disease",
    "V08": "HIV infection without symptoms",
    "282.41": "sickle cell thalassemia",
    "282.42": "sickle cell thalassemia",
    "282.5": "sickle cell trait",
    "282.6": "sickle cell disease",
    "291": "mental disorders induced by alcohol",
    "292": "mental disorders induced by drugs",
    "303": "alcohol dependence",
    "304": "drug dependence",
    "305.0": "alcohol abuse",
    "305.2": "cannabis abuse",
    "305.3": "hallucinogen abuse",
    "305.4": "sedative, hypnotic or anxiolytic abuse",
    "305.5": "opioid abuse",
    "305.6": "cocaine abuse",
    "305.7": "amphetamine abuse",
    "305.8": "antidepressant abuse",
    "305.9": "abuse of other, mixed or unspecified drugs",
}

ICD10_7332 = {
    "B20": "HIV disease",
    "Z21": "HIV infection without symptoms",
    "O98.7": "HIV disease in pregnancy and childbirth",
    "D57": "sickle cell disorders",
    "F10": "alcohol-related disorders",
    "F11": "opioid-related disorders",
    "F12": "cannabis-related disorders",
    "F13": "sedative-, hypnotic- or anxiolytic-related disorders",
    "F14": "cocaine-related disorders",
    "F15": "other stimulant-related disorders",
    "F16": "hallucinogen-related disorders",
    "F18": "inhalant-related disorders",
    "F19": "disorders related to other psychoactive substances",
}

SENSITIVE_7332 = {"ICD-9-CM": ICD9_7332, "ICD-10-CM": ICD10_7332}
"""Beginnings of codes, with what they are, for each classification."""


def sensitive_codes(taxonomy: Taxonomy) -> tuple[str, ...]:
    """The codes of a taxonomy, at its level, that section 7332 protects; sorted."""
    if taxonomy.name not in SENSITIVE_7332:
        raise StudyError(
            f"there is no list of sensitive codes for {taxonomy.name}; name them with sensitive=[...]"
        )
    beginnings = SENSITIVE_7332[taxonomy.name]
    return tuple(sorted({code for node in beginnings for code in taxonomy.under(node)}))
