"""Static columns, such as age and sex: conditions beside the rules, never variables of them.

A condition compares one static column with a public number: `Age >= 65`, or `Gender = 1` of a code. It is judged by the
latest value that was recorded until the end of a patient's window. Claim: which conditions there are follows from the
study alone, so that it costs no privacy; what they say of the outcome is counted and fitted with the rules
(outcome_questions.py), where each condition is one more rule in the sensitivity.

docs/methods.md, section 6.12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from concilium.records.dictionary import DictionaryEntry, say_value
from concilium.records.series import Series
from concilium.temporal.formula import Conjunction, Formula, Limit


class StaticColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that does not change within a stay: where it is cut (`edges`, rising), or the values of a code
    (`values`, the first of which the others are compared with)."""

    name: str
    edges: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def conditions(self) -> tuple[Formula, ...]:
        """One for each cutoff, and for each value but the first."""
        cut = [Limit(self.name, ">=", edge) for edge in self.edges]
        coded = [
            Conjunction([Limit(self.name, ">=", value), Limit(self.name, "<=", value)])
            for value in self.values[1:]
        ]
        return tuple(one.canonical() for one in (*cut, *coded))


def list_conditions(columns: Iterable[StaticColumn]) -> tuple[str, ...]:
    """The conditions of these columns, as questions write them."""
    return tuple(str(condition) for column in columns for condition in column.conditions)


def say_condition(condition: Formula, dictionary: Mapping[str, DictionaryEntry]) -> str:
    """A condition in words, a value as the dictionary calls it."""
    (name,) = condition.variables
    limits = [part for part in condition.walk() if isinstance(part, Limit)]
    number = float(limits[0].number)  # type: ignore[arg-type]
    if len(limits) == 1:
        return f"{name} >= {number:g}"
    value = int(number) if number.is_integer() else number
    return f"{name} = {say_value(value, dictionary.get(name))}"


def hold_latest(series: Series, names: Iterable[str]) -> Series:
    """The latest value of these columns in every step of a stay, or window."""
    names = [name for name in names if name in series]
    if not names or not len(series):
        return series
    latest = series.choose(names).carry_forward(None)
    owners = np.repeat(series.starts[1:] - 1, series.lengths)
    return series.with_stays({**series.stays, **{name: latest.stays[name][owners] for name in names}})
