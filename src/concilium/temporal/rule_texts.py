"""Reading many rules that differ in their numbers only: each form is parsed once, and the numbers are filled in.

`RuleTexts().read(text)` gives exactly what `parse(text)` gives, or raises what it raises: whatever is not plainly a
form with numbers goes through `parse` itself.
"""

from __future__ import annotations

import re
from typing import Any

from concilium.errors import FormulaError
from concilium.temporal.formula import Formula
from concilium.temporal.parsing import parse
from concilium.temporal.templates import fill, holes

_NUMERAL = re.compile(r"(?<![\w.])-?[0-9]+(?:\.[0-9]+)?(?![\w.])")
_UNUSUAL = re.compile(r"[?#`]")


def _read_bound(numeral: str) -> int | str:
    return int(numeral) if numeral.isdecimal() else numeral


_READERS: dict[str, Any] = {"number": float, "bound": _read_bound}


class RuleTexts:
    """Remembers the forms that were read."""

    def __init__(self) -> None:
        self._forms: dict[str, tuple[Formula, list[Any]] | None] = {}

    def read(self, text: str) -> Formula:
        """The formula that a text says."""
        if not isinstance(text, str) or _UNUSUAL.search(text):
            return parse(text)
        form = _NUMERAL.sub("?", text)
        if form not in self._forms:
            self._forms[form] = _read_form(form)
        entry = self._forms[form]
        numerals = _NUMERAL.findall(text)
        if entry is None or len(entry[1]) != len(numerals):
            return parse(text)
        template, readers = entry
        try:
            return fill(
                template, [reader(numeral) for reader, numeral in zip(readers, numerals, strict=True)]
            )
        except FormulaError:
            return parse(text)


def _read_form(form: str) -> tuple[Formula, list[Any]] | None:
    """The template, and how to read the text of what fills each hole; None where a hole is no number or bound."""
    try:
        template = parse(form)
    except FormulaError:
        return None
    kinds = [hole.kind for hole in holes(template)]
    return (template, [_READERS[kind] for kind in kinds]) if set(kinds) <= set(_READERS) else None
