"""Units of measurement, by pint: numbers of one unit as numbers of another. Loaded where something is converted."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MissingExtra, RecordsError

DIGITS = 10
"""Significant digits that a converted number keeps: 98.6 °F is 37 °C, not 37.00000000000006."""


def convert(
    numbers: NDArray[np.float64], unit: str, to: str, where: str, molar_mass: float | None = None
) -> NDArray[np.float64]:
    """The same amounts in another unit, with so many digits; RecordsError where the two do not go together."""
    if unit.casefold() == to.casefold():
        return numbers
    import_pint()
    from pint.errors import DimensionalityError, PintError

    registry = _registry()
    try:
        scale, plain = _parse(registry, unit)
        target_scale, target = _parse(registry, to)
        given = registry.Quantity(numbers * scale, plain)
        with np.errstate(all="ignore"):
            if molar_mass is None:
                converted = given.to(target)
            else:
                converted = given.to(target, "chemistry", mw=registry.Quantity(molar_mass, "g/mol"))
    except DimensionalityError:
        hint = (
            "" if molar_mass else "; amounts of substance (mol) and of mass (g) need its molar_mass, in g/mol"
        )
        raise RecordsError(f"{where}: {unit} cannot be converted to {to}{hint}") from None
    except (PintError, ValueError, AttributeError, TypeError, SyntaxError):
        raise RecordsError(
            f"{where}: {unit} or {to} is no unit that pint knows, such as mg/dl or mmHg"
        ) from None
    return _round(np.asarray(converted.magnitude, dtype=np.float64) / target_scale)


def is_unit(text: str) -> bool:
    """Whether pint knows a unit of this name."""
    import_pint()
    from pint.errors import PintError

    try:
        _parse(_registry(), text)
    except (PintError, ValueError, AttributeError, TypeError, SyntaxError):
        return False
    return True


def import_pint() -> Any:
    try:
        import pint
    except ImportError:
        raise MissingExtra("units", "converting units of measurement") from None
    return pint


@cache
def _registry() -> Any:
    return import_pint().UnitRegistry()


def _parse(registry: Any, text: str) -> tuple[float, Any]:
    """A unit and what it is multiplied by: 10^9/l is 10^9 of 1/l."""
    quantity = registry.parse_expression(text.replace("°C", "degC").replace("°F", "degF"))
    if isinstance(quantity, int | float):  # a bare number has no unit
        return float(quantity), registry.Unit("")
    return float(quantity.magnitude), quantity.units


def _round(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    known = np.isfinite(numbers) & (numbers != 0)
    power = np.zeros_like(numbers)
    power[known] = DIGITS - 1 - np.floor(np.log10(np.abs(numbers[known])))
    scale = 10.0 ** np.clip(power, -300, 300)
    return np.where(known, np.round(numbers * scale) / scale, numbers)
