"""Conditions as CQL writes them: decision support that speaks FHIR reads these expressions."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from concilium.protocol.attributes import find_runs
from concilium.records.columns import Value


def write_condition(attribute: str, values: Sequence[Value | None], edges: Sequence[float] | None) -> str:
    """The condition of the branches for these values; of a number these are its bins, None is missing."""
    name = write_name(attribute)
    named = [value for value in values if value is not None]
    parts = [f"{name} is null"] if None in values else []
    if edges is not None:
        parts += [write_range(name, *run, edges) for run in find_runs(map(int, named))]
    elif len(named) == 1:
        parts.append(f"{name} = {write_literal(named[0])}")
    elif named:
        parts.append(f"{name} in {{{', '.join(map(write_literal, named))}}}")
    if len(parts) == 1:
        return parts[0]
    return f"({' or '.join(f'({part})' if ' and ' in part else part for part in parts)})"


def write_range(name: str, first: int, last: int, edges: Sequence[float]) -> str:
    """The bins from first to last."""
    lower = [f"{name} >= {write_literal(float(edges[first - 1]))}"] if first else []
    upper = [f"{name} < {write_literal(float(edges[last]))}"] if last < len(edges) else []
    return " and ".join([*lower, *upper]) or f"{name} is not null"


def write_name(attribute: str) -> str:
    """An attribute as a quoted identifier."""
    return '"' + _escape(attribute).replace('"', '\\"') + '"'


def write_literal(value: Value) -> str:
    """A value as CQL writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + _escape(value).replace("'", "\\'") + "'"
    if isinstance(value, int) or float(value).is_integer():
        return str(int(value))
    return format(Decimal(repr(float(value))), "f")  # CQL has no exponents


def _escape(text: str) -> str:
    """Backslashes and line ends as CQL writes them inside quotes."""
    named = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(named.get(character, character) for character in text)
