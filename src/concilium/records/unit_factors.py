"""Whether hospitals record a number in two units, by its quartiles (docs/evidence/first-fit.md has the measurement).

Another unit multiplies every value by a known factor. Other patients move a number too, but hardly as far. A number is
taken to be in two units where its medians differ by such a factor, and by twice what the middle half of patients spans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.records.clinical_ranges import find_range

Quartiles = tuple[float, float, float]

# Powers of ten; glucose, cholesterol, creatinine and bilirubin in mg/dL and mol/L; mmHg and kPa; inch, pound.
FACTORS = (10.0, 100.0, 1000.0, 18.02, 38.67, 88.4, 17.1, 7.5, 2.54, 2.2)
# By the unit of a measurement that is known by its name. Ages differ between hospitals more than anything else.
FACTORS_OF = {
    "years": (),
    "points": (),
    "0 or 1": (),
    "pH": (),
    "beats/min": (),
    "breaths/min": (),
    "kg": (2.2, 1000.0),
    "cm": (2.54, 10.0, 100.0),
    "°C": (2.66,),
    "%": (100.0,),
    "fraction": (100.0,),
    "mmHg": (7.5, 10.0),
}
TOLERANCE = 1.25
SPREADS = 2.0
OTHER_SIZE = 5.0  # medians that differ by this factor are hardly of one unit


@dataclass(frozen=True)
class _OtherUnit:
    """A table whose numbers are about so many times those of another."""

    larger: str
    smaller: str
    factor: float

    def __str__(self) -> str:
        return (
            f"about {self.factor:g} times as large at {self.larger} as at {self.smaller}, as in another unit"
        )


def find_other_unit(name: str, tables: Mapping[str, Quartiles]) -> _OtherUnit | None:
    """The first table in another unit than the one in the middle, if there is any."""
    ordered = sorted((source for source, one in tables.items() if one[0] > 0), key=lambda s: tables[s][1])
    if len(ordered) < 2:
        return None
    middle = ordered[(len(ordered) - 1) // 2]
    for source in ordered:
        if source == middle:
            continue
        smaller, larger = sorted((source, middle), key=ordered.index)
        factor = find_factor(name, tables[smaller], tables[larger])
        if factor is not None:
            return _OtherUnit(larger, smaller, factor)
    return None


def find_factor(name: str, smaller: Quartiles, larger: Quartiles) -> float | None:
    """The factor between the units of two groups of numbers, if they seem to be in two."""
    spread = max(math.log(third / first) for first, _, third in (smaller, larger))
    # A code that most patients share has no spread, and no unit.
    if min(third - first for first, _, third in (smaller, larger)) <= 0:
        return None
    ratio = larger[1] / smaller[1]
    if math.log(ratio) < SPREADS * spread:
        return None
    known = find_range(name)
    factors = FACTORS if known is None else FACTORS_OF.get(known.unit, FACTORS)
    near = [factor for factor in factors if max(ratio / factor, factor / ratio) <= TOLERANCE]
    return min(near, key=lambda factor: abs(math.log(ratio / factor)), default=None)


def find_quartiles(known: NDArray[np.float64]) -> Quartiles:
    """The quartiles of some numbers."""
    first, median, third = np.quantile(known, [0.25, 0.5, 0.75]).tolist()
    return first, median, third


def has_size(quartiles: Quartiles) -> bool:
    """Whether numbers with these quartiles show their unit: all but a few are positive, and of like size."""
    return quartiles[0] > 0 and quartiles[2] <= OTHER_SIZE * quartiles[0]


def compare_sizes(tables: Mapping[str, Quartiles]) -> str:
    """A note where a table's numbers are much larger than another's, as in another unit. No number is told."""
    medians = {source: one[1] for source, one in tables.items() if has_size(one)}
    if not medians:
        return ""
    least, most = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    if medians[most] < OTHER_SIZE * medians[least]:
        return ""
    return f"much larger in {most} than in {least}: is it another unit there? A map converts it"
