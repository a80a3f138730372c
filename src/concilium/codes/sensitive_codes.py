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

from collections.abc import Iterable

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


_ALCOHOL, _DRUGS, _HIV, _SICKLE = "alcohol", "drugs", "HIV", "sickle cell"

ICD9_REVEALING = {
    _ALCOHOL: "357.5 425.5 535.3 571.0 571.1 571.2 571.3 760.71 790.3 980 E860.0 V11.3",
    _DRUGS: "648.3 655.5 760.72 760.73 760.75 779.5 965.0 969.6 970.81 E850.0 E854.1",
    _HIV: "079.53 136.3 176 795.71",
    _SICKLE: "289.52 517.3",
}
"""Codes whose own titles name a protected condition, or that are recorded almost for nobody else."""

ICD10_REVEALING = {
    _ALCOHOL: "E24.4 G31.2 G62.1 G72.1 I42.6 K29.2 K70 K85.2 K86.0 O35.4 P04.3 Q86.0 R78.0 T51.0 Z71.41",
    _DRUGS: "O35.5 O99.32 P04.41 P04.49 P96.1 R78.1 R78.2 R78.3 R78.4 T40 Z71.51",
    _HIV: "B59 C46 R75 Z71.7",
    _SICKLE: "",
}

_REVEALING = {"ICD-9-CM": ICD9_REVEALING, "ICD-10-CM": ICD10_REVEALING}
_WHOLE = {"ICD-9-CM": {"571": _ALCOHOL}}
"""Categories that count as a whole at three digits, though only some of their codes are listed."""

_CONDITIONS = {
    "ICD-9-CM": {_ALCOHOL: "291 303 305.0", _DRUGS: "292 304 305", _HIV: "042 V08", _SICKLE: "282"},
    "ICD-10-CM": {
        _ALCOHOL: "F10",
        _DRUGS: "F11 F12 F13 F14 F15 F16 F18 F19",
        _HIV: "B20 Z21 O98.7",
        _SICKLE: "D57",
    },
}


def revealing_codes(taxonomy: Taxonomy, sensitive: Iterable[str]) -> tuple[str, ...]:
    """The public list of codes that give sensitive ones away, at this level; sorted.

    It follows from what codes mean and from no patient, so that hiding them discloses nothing. It names a code of five
    digits at five digits only: its category holds much else. For conditions and classifications without a list it is
    empty.
    """
    lists = _REVEALING.get(taxonomy.name)
    if lists is None:
        return ()
    chosen = set(sensitive)
    found: set[str] = set()
    for condition, beginnings in _CONDITIONS[taxonomy.name].items():
        if not chosen.intersection(code for text in beginnings.split() for code in taxonomy.under(text)):
            continue
        listed = [text for text in lists[condition].split() if _is_at_level(taxonomy, text)]
        whole = _WHOLE.get(taxonomy.name, {}) if taxonomy.digits == 3 else {}
        listed += [text for text, about in whole.items() if about == condition]
        found.update(code for text in listed for code in taxonomy.under(text))
    return tuple(sorted(found - chosen))


def _is_at_level(taxonomy: Taxonomy, text: str) -> bool:
    return 3 + len(text.partition(".")[2]) <= (taxonomy.digits or 0)


def sensitive_codes(taxonomy: Taxonomy) -> tuple[str, ...]:
    """The codes of a taxonomy, at its level, that section 7332 protects; sorted."""
    if taxonomy.name not in SENSITIVE_7332:
        raise StudyError(
            f"there is no list of sensitive codes for {taxonomy.name}; name them with sensitive=[...]"
        )
    beginnings = SENSITIVE_7332[taxonomy.name]
    return tuple(sorted({code for node in beginnings for code in taxonomy.under(node)}))
