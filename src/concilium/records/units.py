"""Units of measurement, in UCUM or as pint writes them: numbers of one unit as numbers of another. Both libraries are
loaded where something is converted."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MissingExtra, RecordsError

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
