"""The LACE index of a stay: length of stay, acute admission, comorbidity from codes, emergency visits before.

van Walraven et al. (2010): 0 to 19 points; 10 or more is a high risk of death or readmission within 30 days. The
conditions are those of Charlson's index by the codes of Quan et al. (2005), in ICD-9-CM and ICD-10, with the points of
LACE. Of shared codes it is as good as the codes are: conditions that a randomised code stands for may be false.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from concilium.errors import StudyError

POINTS = {
    "myocardial infarction": 1,
    "cerebrovascular disease": 1,
    "peripheral vascular disease": 1,
    "diabetes without complications": 1,
    "congestive heart failure": 2,
    "diabetes with complications": 2,
    "chronic pulmonary disease": 2,
    "mild liver disease": 2,
    "renal disease": 2,
    "cancer": 2,
    "dementia": 3,
    "connective tissue disease": 3,
    "HIV": 4,
    "moderate or severe liver disease": 4,
    "metastatic cancer": 6,
}

# Beginnings of codes without dots; 4254-4259 is each from the one to the other.
_CODES = {
    "ICD-9-CM": {
        "myocardial infarction": "410 412",
        "congestive heart failure": "39891 40201 40211 40291 40401 40403 40411 40413 40491 40493 4254-4259 428",
        "peripheral vascular disease": "0930 4373 440 441 4431-4439 4471 5571 5579 V434",
        "cerebrovascular disease": "36234 430-438",
        "dementia": "290 2941 3312",
        "chronic pulmonary disease": "4168 4169 490-505 5064 5081 5088",
        "connective tissue disease": "4465 7100-7104 7140-7142 7148 725",
        "mild liver disease": "07022 07023 07032 07033 07044 07054 0706 0709 570 571 5733 5734 5738 5739 V427",
        "diabetes without complications": "2500-2503 2508 2509",
        "diabetes with complications": "2504-2507",
        "renal disease": "40301 40311 40391 40402 40403 40412 40413 40492 40493 582 5830-5837 585 586 5880 V420 V451 "
        "V56",
        "cancer": "140-172 174-194 1950-1958 200-208 2386",
        "moderate or severe liver disease": "4560-4562 5722-5728",
        "metastatic cancer": "196-199",
        "HIV": "042-044",
    },
    "ICD-10-CM": {
        "myocardial infarction": "I21 I22 I252",
        "congestive heart failure": "I099 I110 I130 I132 I255 I420 I425-I429 I43 I50 P290",
        "peripheral vascular disease": "I70 I71 I731 I738 I739 I771 I790 I792 K551 K558 K559 Z958 Z959",
        "cerebrovascular disease": "G45 G46 H340 I60-I69",
        "dementia": "F00-F03 F051 G30 G311",
        "chronic pulmonary disease": "I278 I279 J40-J47 J60-J67 J684 J701 J703",
        "connective tissue disease": "M05 M06 M315 M32-M34 M351 M353 M360",
        "mild liver disease": "B18 K700-K703 K709 K713-K715 K717 K73 K74 K760 K762-K764 K768 K769 Z944",
        "diabetes without complications": "E100 E101 E106 E108 E109 E110 E111 E116 E118 E119 E120 E121 E126 E128 E129 "
        "E130 E131 E136 E138 E139 E140 E141 E146 E148 E149",
        "diabetes with complications": "E102-E105 E107 E112-E115 E117 E122-E125 E127 E132-E135 E137 E142-E145 E147",
        "renal disease": "I120 I131 N032-N037 N052-N057 N18 N19 N250 Z490-Z492 Z940 Z992",
        "cancer": "C00-C26 C30-C34 C37-C41 C43 C45-C58 C60-C76 C81-C85 C88 C90-C97",
        "moderate or severe liver disease": "I850 I859 I864 I982 K704 K711 K721 K729 K765-K767",
        "metastatic cancer": "C77-C80",
        "HIV": "B20-B22 B24",
    },
}

WITHOUT_9 = {"250": "2500"}
WITHOUT_10 = {f"E{number}": f"E{number}9" for number in range(10, 15)}


def _find_conditions(codes: Iterable[str], system: str = "ICD-9-CM") -> frozenset[str]:
    """The conditions of LACE that these codes stand for. A category that holds several, such as 250 or E11 at three
    digits, stands for the first of them: diabetes without complications."""
    table = _list_beginnings(system)
    found: set[str] = set()
    for text in codes:
        bare = text.strip().upper().replace(".", "")
        if _is_of_other(bare, system):
            other = next(name for name in _CODES if name != system)
            raise StudyError(f"{text!r} is a code of {other}, not of {system}: give system={other!r}")
        bare = {"ICD-9-CM": WITHOUT_9, "ICD-10-CM": WITHOUT_10}[system].get(bare, bare)
        found.update(
            name for length in (3, 4, 5) for name in table.get(bare[:length], ()) if len(bare) >= length
        )
    return frozenset(found)


def _is_of_other(bare: str, system: str) -> bool:
    """Whether a code can only be of the other classification: E and V codes may be of both."""
    if not bare[1:3].isdigit():
        return False
    return bare[0].isdigit() if system == "ICD-10-CM" else bare[0].isalpha() and bare[0] not in "EV"


def find_lace(days: float, acute: bool, codes: Iterable[str], visits: int, system: str = "ICD-9-CM") -> int:
    """The index of a stay of so many days, from its codes, with so many emergency visits in the six months before."""
    length = 0 if days < 1 else int(days) if days <= 3 else 4 if days <= 6 else 5 if days <= 13 else 7
    points = sum(POINTS[name] for name in _find_conditions(codes, system))
    return length + 3 * acute + (5 if points >= 4 else points) + min(visits, 4)


@cache
def _list_beginnings(system: str) -> dict[str, tuple[str, ...]]:
    if system not in _CODES:
        raise StudyError(f"LACE is known for {' and '.join(_CODES)}; got {system!r}")
    table: dict[str, list[str]] = {}
    for name, listed in _CODES[system].items():
        for text in listed.split():
            first, _, last = text.partition("-")
            letter = first[:1] if first[:1].isalpha() else ""
            width = len(first) - len(letter)
            for number in range(int(first[len(letter) :]), int((last or first)[len(letter) :]) + 1):
                table.setdefault(f"{letter}{number:0{width}}", []).append(name)
    return {beginning: tuple(names) for beginning, names in table.items()}
