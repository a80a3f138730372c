"""What a statistic may see: the site's records after its policy, and the patients a question selects.

`View` is the constraint stage of DIDT (Gi = constraints(Li)): a column that policy withholds, or that identifies
patients, does not exist in it, for queries as for statistics. `Cohort` is the base population of one question.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.errors import PolicyError, RecordsError
from concilium.policy.policy import Policy
from concilium.records.query import Query
from concilium.records.table import Coded, Numbers, Records

IDENTIFIER_VALUES = 10
IDENTIFIER_SHARE = 0.9
REMEMBERED_SELECTIONS = 4


@dataclass(frozen=True)
class Cohort:
    """The patients a question is about: `rows` of the view's records, in order."""

    view: View
    rows: NDArray[np.int32]
    branch_floor: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def everyone(self) -> bool:
        """Whether the cohort is the whole table, so that columns need no indexing."""
        return len(self.rows) == len(self.view.records)


class View:
    """A site's records as the outside may know them. `hidden` says what is left out and why (never sent)."""

    def __init__(self, records: Records, policy: Policy) -> None:
        self.hidden = {
            name: "identifies patients" for name in records.names if identifies(records, name, policy)
        }
        self.hidden |= {name: "withheld by policy" for name in policy.withhold if name in records}
        visible = {name: records[name] for name in records.names if name not in self.hidden}
        if not visible:
            raise PolicyError(
                "nothing is left of this table: every column identifies patients or is withheld"
            )
        self.records = Records(visible)
        self._branch_floor = policy.branch_floor
        self._lock = threading.Lock()
        self._selections: OrderedDict[tuple[str, str], NDArray[np.int32]] = OrderedDict()
        self._binned: dict[tuple[str, tuple[float, ...]], NDArray[np.unsignedinteger]] = {}

    def select(self, query: str, target: str) -> Cohort:
        """Everyone for whom the query is true and the target is known."""
        key = (query, target)
        with self._lock:
            rows = self._selections.get(key)
        if rows is None:
            mask = Query.parse(query).mask(self.records) & present(self.records, target)
            rows = np.flatnonzero(mask).astype(np.int32)
            with self._lock:
                self._selections[key] = rows
                while len(self._selections) > REMEMBERED_SELECTIONS:
                    self._selections.popitem(last=False)
        return Cohort(self, rows, self._branch_floor)

    def binned(self, name: str, edges: tuple[float, ...]) -> NDArray[np.unsignedinteger]:
        """A numeric column as codes: 0 missing, then 1 + the number of public edges at or below the value."""
        key = (name, edges)
        with self._lock:
            codes = self._binned.get(key)
        if codes is None:
            codes = bin_codes(numbers(self.records, name), edges)
            with self._lock:
                if len(self._binned) > 4 * len(self.records.names):
                    self._binned.clear()
                self._binned[key] = codes
        return codes


def identifies(records: Records, name: str, policy: Policy) -> bool:
    """Whether a column has about one value per patient (or is stated to identify them)."""
    if name in policy.identifiers:
        return True
    column = records[name]
    if isinstance(column, Numbers) or name in policy.allow:
        return False
    codes = column.codes
    distinct = int(np.count_nonzero(np.bincount(codes, minlength=1)[1:]))
    return distinct >= IDENTIFIER_VALUES and distinct >= IDENTIFIER_SHARE * int(np.count_nonzero(codes))


def present(records: Records, name: str) -> NDArray[np.bool_]:
    """Where a column is not missing."""
    column = records[name]
    return ~np.isnan(column.numbers) if isinstance(column, Numbers) else column.codes != 0


def numbers(records: Records, name: str) -> NDArray[np.float64]:
    """A column as numbers, NaN where missing; RecordsError if it holds text."""
    column = records[name]
    if isinstance(column, Numbers):
        return column.numbers
    if not isinstance(column, Coded) or not all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in column.values
    ):
        raise RecordsError(f"attribute {name!r} holds text, so bins do not apply to it")
    sizes: NDArray[np.float64] = np.array([np.nan, *column.values], dtype=np.float64)
    return np.take(sizes, column.codes)


def bin_codes(values: NDArray[np.float64], edges: tuple[float, ...]) -> NDArray[np.unsignedinteger]:
    """Codes of numbers between public edges: 0 missing, i where edges[i-2] <= value < edges[i-1]."""
    codes = np.searchsorted(np.asarray(edges, dtype=np.float64), values, side="right") + 1
    codes[np.isnan(values)] = 0
    return codes.astype(np.min_scalar_type(len(edges) + 1))
