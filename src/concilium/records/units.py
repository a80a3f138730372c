"""Units of measurement, in UCUM or as pint writes them: numbers of one unit as numbers of another. Both libraries are
loaded where something is converted.

And whether hospitals record a number in two units, by its quartiles (docs/evidence/first-fit.md has the measurement).
Another unit multiplies every value by a known factor. Other patients move a number too, but hardly as far. A number is
taken to be in two units where its medians differ by such a factor, and by twice what the middle half of patients spans.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MissingExtra, RecordsError
from concilium.records.clinical_ranges import find_range
from concilium.records.grammar import read_number

DIGITS = 10
"""Significant digits that a converted number keeps: 98.6 °F is 37 °C, not 37.00000000000006."""


UNCLEAR = (
    (re.compile(r"\d[eE]\d"), "10E9 may be meant as 10*9 or as 10*10; write one of these"),
    (re.compile(r"\d\.\d"), "a factor such as 1.73 belongs in braces, {1.73_m2}, which are a remark"),
    (re.compile(r"\d\s*\*\s*\d+\s+|\s\d+\s*\*\s*\d|\d\s+\*|\*\s+\d"), "write 10*9/L without blanks"),
    (
        re.compile(r"[*^]\s*[-+(]*\s*\d{3}|[*^][^/.]*\^|\^[^/.]*[*^]|\*\*[^/.]*\*"),
        "a power has one or two digits",
    ),
)
"""What one writes for another than is read: 10E9/L is 10*10/L for a computer, and UCUM has no decimals. And powers that
would take forever: the unit of a dictionary is a stranger's text."""
LONGEST = 60
OTHER_UNITS = (
    "mmol/l", "umol/l", "nmol/l", "mg/dl", "g/dl", "g/l", "mg/l", "ug/l", "ng/ml", "degC", "degF", "kelvin", "kg", "g",
    "pound", "m", "cm", "mm", "inch", "foot", "mmHg", "kPa", "year", "month", "week", "day", "hour", "minute", "second",
    "1/l", "1/ul", "10^9/l", "percent", "dimensionless",
)  # fmt: skip
"""What a number may have been measured in instead; pint says which of them go with the dictionary's unit."""


def convert(
    numbers: NDArray[np.float64], unit: str, to: str, where: str, molar_mass: float | None = None
) -> NDArray[np.float64]:
    """The same amounts in another unit, with so many digits; RecordsError where the two do not go together."""
    if unit.casefold() == to.casefold():
        return numbers
    (scale, given), (target_scale, target) = (_parse(text, where) for text in (unit, to))
    from pint.errors import DimensionalityError

    if ("equivalents" in str(given)) != ("equivalents" in str(target)):
        raise RecordsError(
            f"{where}: {unit} cannot be converted to {to}: how many equivalents a mole has is the ion's charge; where "
            f"that is 1, as of sodium, write {to}, and otherwise convert before"
        )
    registry = _registry()
    try:
        with np.errstate(all="ignore"):
            amounts = registry.Quantity(numbers * scale, given)
            if molar_mass is None:
                converted = amounts.to(target)
            else:
                converted = amounts.to(target, "chemistry", mw=registry.Quantity(molar_mass, "g/mol"))
    except (ArithmeticError, DimensionalityError):
        hint = (
            "" if molar_mass else "; amounts of substance (mol) and of mass (g) need its molar_mass, in g/mol"
        )
        if unit.startswith("K/"):
            hint = "; K is kelvin: thousands in a microlitre are 10*3/uL"
        raise RecordsError(f"{where}: {unit} cannot be converted to {to}{hint}") from None
    return _round(np.asarray(converted.magnitude, dtype=np.float64) / target_scale)


def read_amount(text: str, unit: str, where: str, molar_mass: float | None = None) -> float:
    """A number, or a number and its unit (`6.2 mmol/l`), in this unit; RecordsError where it is neither."""
    amount, _, given = text.strip().partition(" ")
    number = read_number(amount)
    if number is None:
        raise RecordsError(f"{where} must be a number{f' in {unit}' if unit else ''}; got {text!r}")
    if not given or given.strip().casefold() == unit.casefold():
        return number
    if not unit:
        raise RecordsError(
            f"{where} has the unit {given!r}, and the dictionary says none: give the number alone"
        )
    return float(convert(np.array([number]), given.strip(), unit, where, molar_mass)[0])


def find_likely_units(
    number: float, unit: str, plausible: tuple[float, float], molar_mass: float | None = None
) -> list[str]:
    """Units in which a number would be plausible that is not in its own; none where nothing converts them."""
    if not unit:
        return []
    found = []
    for other in OTHER_UNITS:
        try:
            size = float(convert(np.array([number]), other, unit, "", molar_mass)[0])
        except MissingExtra:
            return []
        except RecordsError:
            continue
        if other.casefold() != unit.casefold() and plausible[0] <= size <= plausible[1] and size != number:
            found.append(other)
    return found[:3]


def _import_ucum() -> Any:
    try:
        import pint  # noqa: F401 - what it is made of
        import ucumvert
    except ImportError:
        raise MissingExtra("units", "converting units of measurement") from None
    return ucumvert


@cache
def _registry() -> Any:
    return _import_ucum().PintUcumRegistry()


def _parse(text: str, where: str) -> tuple[float, Any]:
    """A unit and what it is multiplied by. By UCUM, the code of laboratories (`10*9/L`, `mm[Hg]`, `{beats}/min`), and
    where it is none of that, as pint writes it (`mmHg`, `degC`); RecordsError where neither knows it."""
    from lark.exceptions import LarkError

    for unclear, remedy in UNCLEAR:
        if unclear.search(re.sub(r"\{[^}]*\}", "", text)):
            raise RecordsError(f"{where}: the unit {text} is not clear: {remedy}")
    ucum, registry = _import_ucum(), _registry()
    if len(text) > LONGEST:
        raise RecordsError(f"{where}: a unit has at most {LONGEST} characters; got {len(text)}")
    try:
        quantity = registry.from_ucum(text)
        if isinstance(quantity, str):  # a remark alone, such as {score}
            quantity = 1.0
    except ucum.InvalidUcumError:
        quantity = _parse_by_pint(registry, text)
    except LarkError:
        quantity = None
    if quantity is None or not np.isfinite(getattr(quantity, "magnitude", quantity)):
        raise RecordsError(
            f"{where}: {text} is no unit that is known; write it in UCUM, such as mmol/L, 10*9/L, mm[Hg], [degF] or "
            "{beats}/min, or as pint does, such as mmHg or degC"
        )
    if isinstance(quantity, int | float):  # a bare number has no unit
        return float(quantity), registry.Unit("")
    return float(quantity.magnitude), quantity.units


def _parse_by_pint(registry: Any, text: str) -> Any:
    try:
        return registry.parse_expression(text.replace("°C", "degC").replace("°F", "degF"))
    except Exception:  # whatever Python makes of it as an expression: it is no unit
        return None


def _round(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    known = np.isfinite(numbers) & (numbers != 0)
    power = np.zeros_like(numbers)
    power[known] = DIGITS - 1 - np.floor(np.log10(np.abs(numbers[known])))
    scale = 10.0 ** np.clip(power, -300, 300)
    return np.where(known, np.round(numbers * scale) / scale, numbers)


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
