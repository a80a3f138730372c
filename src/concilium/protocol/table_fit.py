"""Whether a hospital's table fits the dictionary of a study, as far as a house may learn it: which columns, no count.

Asked for in the terms (`check_tables`), told where the hospital's policy says so (`tell_fit`; by default it does not).

Who is protected: patients with a rare value, from the house. A column does not fit if it is not there for the study
(not in the table, withheld or eliminated: these look alike), or if so many patients as any group the hospital tells of
(`minimum_patients`) have codes that the dictionary does not list, or if of a number more than half of those whose value
is known, and so many at least, are outside what is plausible, as in another unit; the slip of one patient is not told.
No value and no count: that is `concilium check`, at home. A house chooses the dictionary, and could ask by it, in study
after study, whether a value occurs, or on which side of a number the median is. So only columns are looked at that the
study asks about, whose values it may be told in any case; each study is one that the hospital agrees to; and every
column that was looked at is entered in the ledger as a number. What is left: by one study after another a house may
find out which values of agreed columns so many patients have, and medians. Under noise (`private`, `local`)
nothing may depend on a patient: there a column does not fit only if it is not there by its name and the policy's,
whatever the patients have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from concilium.records.cells import read_as_numbers
from concilium.records.columns import Coded, Column
from concilium.records.dictionary import DictionaryEntry

if TYPE_CHECKING:
    from concilium.protocol.cohort import View

WORDS = {
    "absent": "it is not there",
    "codes": "it has codes that are not listed",
    "range": "most of its numbers are not plausible, as if in another unit",
}


class Misfit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that does not fit, and why."""

    column: str
    why: Literal["absent", "codes", "range"]


class TableFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a hospital tells of its table: the columns that do not fit, and in how many it looked at patients."""

    misfits: tuple[Misfit, ...] = ()
    looked_at: int = 0

    def __str__(self) -> str:
        if not self.misfits:
            return "fits the dictionary"
        said = "; ".join(f"{one.column}: {WORDS[one.why]}" for one in self.misfits)
        return f"does not fit the dictionary ({said})"


def find_fit(
    view: View, dictionary: Mapping[str, DictionaryEntry], asked: Sequence[str], least: int, *, bounded: bool
) -> TableFit:
    """How the columns that a study asks about fit its dictionary, as the outside may know it."""
    names = frozenset(view.records.names)
    if bounded:  # nothing but what policy says of names
        names = view.named
    misfits, looked_at = [], 0
    for name in sorted(set(asked) & set(dictionary)):
        entry = dictionary[name]
        if name not in names:
            misfits.append(Misfit(name, "absent"))
        elif not bounded and entry.values and isinstance(column := view.records[name], Coded):
            looked_at += 1
            if count_unlisted(column, entry) >= least:
                misfits.append(Misfit(name, "codes"))
        elif not bounded and entry.range is not None:
            looked_at += 1
            if is_mostly_outside(view.records[name], entry.range, least):
                misfits.append(Misfit(name, "range"))
    return TableFit(tuple(misfits), looked_at)


def is_mostly_outside(column: Column, plausible: tuple[float, float], least: int) -> bool:
    """Whether more than half of the known numbers, and so many at least, are not plausible."""
    numbers = read_as_numbers(column)
    known = numbers[~np.isnan(numbers)]
    outside = int(((known < plausible[0]) | (known > plausible[1])).sum())
    return outside >= least and 2 * outside > len(known)


def count_unlisted(column: Coded, entry: DictionaryEntry) -> int:
    """How many patients have a code that the dictionary does not list."""
    counts = np.bincount(column.codes, minlength=len(column.values) + 1)[1:]
    listed = np.array([entry.lists(value) for value in column.values], dtype=np.bool_)
    return int(counts[~listed].sum())
