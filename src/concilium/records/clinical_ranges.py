"""Public constants for vital signs and laboratory values: the reference range of adults, and what is plausible at all.

`low` to `high` is the reference range of a resting adult as printed on laboratory reports and in textbooks (Harrison's
Principles of Internal Medicine, appendix of reference values; the vital signs as in any textbook of nursing), in the
units of the PhysioNet challenges of 2012 and 2019 (US conventional). Laboratories differ by a little, sexes are united.
`lowest` to `highest` is wide: outside it a value is a slip, another unit or a code, hardly a living patient. These are
constants to scale and to check by, the same for every hospital and every patient; they are no advice for treatment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["CLINICAL_RANGES", "ClinicalRange", "find_range", "place_limits"]

PARTS = 4  # of a reference range, one limit for each
NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class ClinicalRange:
    """One variable: its reference range, what is plausible, its unit, and what it is called in words."""

    low: float
    high: float
    lowest: float
    highest: float
    unit: str
    words: str


_TABLE: dict[str, ClinicalRange] = {
    # vital signs
    "HR": ClinicalRange(60, 100, 10, 300, "beats/min", "heart rate"),
    "O2Sat": ClinicalRange(95, 100, 20, 100, "%", "oxygen saturation by pulse oximeter"),
    "Temp": ClinicalRange(36.1, 37.8, 25, 45, "°C", "body temperature"),
    "SBP": ClinicalRange(90, 140, 20, 310, "mmHg", "systolic blood pressure"),
    "MAP": ClinicalRange(65, 105, 10, 310, "mmHg", "mean arterial pressure"),
    "DBP": ClinicalRange(60, 90, 5, 310, "mmHg", "diastolic blood pressure"),
    "Resp": ClinicalRange(12, 20, 1, 100, "breaths/min", "respiratory rate"),
    "EtCO2": ClinicalRange(35, 45, 1, 120, "mmHg", "end-tidal carbon dioxide"),
    "GCS": ClinicalRange(13, 15, 3, 15, "points", "Glasgow coma scale"),
    "Urine": ClinicalRange(30, 100, 0, 5000, "mL", "urine output of about an hour"),
    "Weight": ClinicalRange(50, 100, 20, 400, "kg", "body weight"),
    "Height": ClinicalRange(150, 190, 100, 240, "cm", "body height"),
    "Age": ClinicalRange(18, 90, 0, 120, "years", "age"),
    "Gender": ClinicalRange(0, 1, 0, 1, "0 or 1", "sex as the challenges code it"),
    # breathing and blood gases
    "FiO2": ClinicalRange(0.21, 1.0, 0.2, 1.0, "fraction", "inspired oxygen"),
    "MechVent": ClinicalRange(0, 1, 0, 1, "0 or 1", "mechanical ventilation"),
    "BaseExcess": ClinicalRange(-2, 2, -50, 50, "mmol/L", "base excess"),
    "HCO3": ClinicalRange(22, 28, 1, 60, "mmol/L", "bicarbonate"),
    "pH": ClinicalRange(7.35, 7.45, 6.5, 8.0, "pH", "arterial pH"),
    "PaCO2": ClinicalRange(35, 45, 5, 200, "mmHg", "arterial carbon dioxide"),
    "PaO2": ClinicalRange(75, 100, 10, 700, "mmHg", "arterial oxygen"),
    "SaO2": ClinicalRange(95, 100, 10, 100, "%", "arterial oxygen saturation"),
    "Lactate": ClinicalRange(0.5, 2.0, 0.05, 40, "mmol/L", "lactate"),
    # blood chemistry
    "Sodium": ClinicalRange(136, 145, 90, 190, "mmol/L", "sodium"),
    "Potassium": ClinicalRange(3.5, 5.0, 1, 12, "mmol/L", "potassium"),
    "Chloride": ClinicalRange(98, 106, 50, 160, "mmol/L", "chloride"),
    "Calcium": ClinicalRange(8.5, 10.5, 1, 20, "mg/dL", "calcium"),
    "Magnesium": ClinicalRange(1.6, 2.6, 0.2, 12, "mg/dL", "magnesium"),
    "Phosphate": ClinicalRange(2.5, 4.5, 0.2, 25, "mg/dL", "phosphate"),
    "BUN": ClinicalRange(7, 20, 1, 300, "mg/dL", "blood urea nitrogen"),
    "Creatinine": ClinicalRange(0.6, 1.3, 0.05, 50, "mg/dL", "creatinine"),
    "Glucose": ClinicalRange(70, 140, 5, 2000, "mg/dL", "glucose"),
    "Glucose_mmol": ClinicalRange(3.9, 7.8, 0.3, 110, "mmol/L", "glucose"),
    "CGM": ClinicalRange(70, 180, 36, 600, "mg/dL", "interstitial glucose by sensor; its range of control"),
    "CGM_mmol": ClinicalRange(
        3.9, 10.0, 2.0, 33.3, "mmol/L", "interstitial glucose by sensor; its range of control"
    ),
    "Albumin": ClinicalRange(3.5, 5.0, 0.5, 8, "g/dL", "albumin"),
    "Cholesterol": ClinicalRange(125, 200, 20, 1000, "mg/dL", "total cholesterol"),
    # liver and heart
    "ALP": ClinicalRange(40, 130, 1, 5000, "U/L", "alkaline phosphatase"),
    "ALT": ClinicalRange(7, 56, 1, 20000, "U/L", "alanine aminotransferase"),
    "AST": ClinicalRange(10, 40, 1, 30000, "U/L", "aspartate aminotransferase"),
    "Bilirubin_total": ClinicalRange(0.2, 1.2, 0.01, 90, "mg/dL", "total bilirubin"),
    "Bilirubin_direct": ClinicalRange(0.0, 0.3, 0.0, 60, "mg/dL", "direct bilirubin"),
    "TroponinI": ClinicalRange(0.0, 0.04, 0.0, 1000, "ng/mL", "troponin I"),
    "TroponinT": ClinicalRange(0.0, 0.01, 0.0, 100, "ng/mL", "troponin T"),
    # blood count and clotting
    "Hct": ClinicalRange(36, 50, 5, 75, "%", "haematocrit"),
    "Hgb": ClinicalRange(12, 17, 1, 26, "g/dL", "haemoglobin"),
    "WBC": ClinicalRange(4.5, 11, 0.01, 500, "10^9/L", "leukocytes"),
    "Platelets": ClinicalRange(150, 400, 1, 3000, "10^9/L", "platelets"),
    "PTT": ClinicalRange(25, 35, 10, 260, "s", "partial thromboplastin time"),
    "Fibrinogen": ClinicalRange(200, 400, 10, 2000, "mg/dL", "fibrinogen"),
}

_ALSO_CALLED = {
    "HR": "heart rate, pulse",
    "O2Sat": "SpO2",
    "Temp": "temperature, body temperature",
    "SBP": "SysABP, NISysABP, systolic",
    "MAP": "NIMAP, MeanABP",
    "DBP": "DiasABP, NIDiasABP, diastolic",
    "Resp": "RespRate, respiratory rate, RR",
    "HCO3": "bicarbonate",
    "Sodium": "Na",
    "Potassium": "K",
    "Chloride": "Cl",
    "Magnesium": "Mg",
    "Calcium": "Ca",
    "ALP": "Alkalinephos",
    "Bilirubin_total": "Bilirubin",
    "TroponinI": "TropI",
    "TroponinT": "TropT",
    "Hct": "haematocrit, hematocrit",
    "Hgb": "haemoglobin, hemoglobin",
    "Glucose": "glucose_mgdl, cbg_mgdl",
    "Glucose_mmol": "glucose_mmol_l",
    "CGM": "cgm_mgdl",
    "CGM_mmol": "cgm_mmol_l",
}


def _plain(name: str) -> str:
    return re.sub(r"[\s_\-/]", "", name).casefold()


class _ClinicalRanges(Mapping[str, ClinicalRange]):
    """Ranges by name, whatever its capitals, blanks and underscores, also by the usual other names."""

    def __init__(self) -> None:
        self._by_name = {_plain(name): clinical for name, clinical in _TABLE.items()}
        for name, others in _ALSO_CALLED.items():
            self._by_name.update({_plain(other): _TABLE[name] for other in others.split(", ")})

    def __getitem__(self, name: str) -> ClinicalRange:
        try:
            return self._by_name[_plain(name)]
        except KeyError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(_TABLE)

    def __len__(self) -> int:
        return len(_TABLE)


CLINICAL_RANGES: Mapping[str, ClinicalRange] = _ClinicalRanges()
"""By the names of the PhysioNet challenges and others that are usual; iterating gives one name for each."""


def find_range(name: str) -> ClinicalRange | None:
    """The public range of a variable of this name, None where there is none."""
    return CLINICAL_RANGES.get(name)


def place_limits(clinical: ClinicalRange) -> tuple[float, ...]:
    """Round numbers about a quarter of the reference range apart, from half a range below it to one above."""
    width = clinical.high - clinical.low
    step = _round_step(width / PARTS)
    first = max(clinical.low - width / 2, clinical.lowest)
    last = min(clinical.high + width, clinical.highest)
    numbers = [round(k * step, 10) for k in range(math.ceil(first / step), math.floor(last / step) + 1)]
    inside = tuple(number for number in numbers if clinical.lowest < number <= clinical.highest)
    return inside or (clinical.low,)


def _round_step(width: float) -> float:
    power = 10.0 ** math.floor(math.log10(width))
    return power * min(NICE, key=lambda nice: abs(math.log(nice * power / width)))
