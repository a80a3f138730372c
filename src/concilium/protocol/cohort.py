"""What a statistic may see: the site's records after its policy, and the patients a question selects.

`View` is the records under the policy (docs/methods.md, section 1.1): what its constraint graphs take out or change is
taken out and changed in it, and a column that policy withholds, or that identifies patients, does not exist, for
queries as for statistics. `Cohort` is the base population of one question.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, PolicyError
from concilium.policy.constrain import Constrained, constrain
from concilium.policy.policy import Policy
from concilium.privacy.randomness import draw_bytes
from concilium.protocol.disclosure import Guard, Population
from concilium.protocol.shelf import Shelf
from concilium.records.cells import read_as_asked, read_as_labels, read_as_numbers
from concilium.records.expression import names
from concilium.records.patients import PatientPart
from concilium.records.query import Query
from concilium.records.series import Series
from concilium.records.table import Coded, Column, Numbers, Records

IDENTIFIER_VALUES = 10
IDENTIFIER_SHARE = 0.9
# Ages of a dozen patients may all differ; whole numbers of half a hundred that all differ number the patients.
IDENTIFIER_NUMBERS = 50
REMEMBERED_SELECTIONS = 4
NO_PARTS: Mapping[str, PatientPart] = MappingProxyType({})
# A column of numbers that is asked about as a category may have as many labels as there are patients.
REMEMBERED_LABELS = 1 << 14


@dataclass(frozen=True)
class Cohort:
    """The patients a question is about: `rows` of the view's records, in order.

    `population` are the same patients by their rows in the hospital's own table. `branch_floor` and `guard` say which
    counts the site does not tell. `support` is the hospital's own: what its patients have in common is told of so many
    at least; None: as the study says.
    """

    view: View
    rows: NDArray[np.int32]
    population: Population
    branch_floor: int
    guard: Guard
    support: int | None = None

    def telling_all(self, branch_floor: int = 0, support: int | None = None) -> Cohort:
        """The same patients, with no count left out but those of branches below the floor."""
        return replace(self, branch_floor=branch_floor, guard=Guard(), support=support)

    @property
    def floored(self) -> bool:
        """Whether counts may be left out, so that sums over sites are not those of the pooled patients."""
        return self.branch_floor > 0 or self.guard.on

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def everyone(self) -> bool:
        """Whether the cohort is the whole table, so that columns need no indexing."""
        return len(self.rows) == len(self.view.records)

    def take(self, chosen: NDArray[np.intp]) -> Cohort:
        """Some of the patients, by their places in the cohort."""
        rows = self.rows[chosen]
        return replace(self, rows=rows, population=Population(self.view.patients[rows]))

    def take_part(self, name: str) -> PatientPart:
        """What the hospital holds of these patients beside its table, such as their series."""
        part = self.view.find_part(name)
        return part if len(self.population) == len(part) else part.take(self.population.rows.astype(np.intp))


class View:
    """A site's records as the outside may know them: `patients` are those who are left, by their rows in the
    hospital's table, and `hidden` says which columns are left out and why (never sent). `by` is the column of patients'
    ids, if there is one. `division_key`, or what makes it where it is needed, decides who is held out (held_out.py).
    `parts` are what is held of the same patients beside the table, `shelf` what was worked out of them and is kept."""

    def __init__(
        self,
        records: Records,
        policy: Policy,
        secret: bytes | None = None,
        by: str | None = None,
        *,
        division_key: bytes | Callable[[], bytes] | None = None,
        by_itself: frozenset[str] | None = None,
        constrained: Constrained | None = None,
        parts: Mapping[str, Records | PatientPart] = NO_PARTS,
        shelf: Shelf | None = None,
        rows_are_patients: bool = True,
    ) -> None:
        self._rows_are_patients = rows_are_patients
        self.shelf = shelf or Shelf()
        self.parts = {name: part for name, part in parts.items() if not isinstance(part, Records)}
        self._by_itself, self._policy, self._by = by_itself is not None, policy, by
        # A view that is nobody's divides its patients in a way that nobody else can know either.
        self._division_key = draw_bytes(32) if division_key is None else division_key
        # By what was stated, in the table as it was read: a rule may have changed a column since.
        self._own_labels = frozenset(name for name in records.names if records[name].by_itself)
        self._looked_at: set[str] = set()  # by rules of the policy, to decide about patients
        left = self._constrain(records, policy, secret) if constrained is None else constrained
        self._constrained = left
        self.hidden = {name: f"eliminated by graph {graph}" for name, graph in left.eliminated.items()}
        for name, column in left.columns.items():
            # Before as well as after, or a rule that thins a column out would make it fit to be told.
            same = name in left.replaced or column is records[name]
            looked_at = [column] if same else [records[name], column]
            found = not self._by_itself and any(identifies(name, one, policy) for one in looked_at)
            if found or name == by or name in policy.identifiers:
                self.hidden[name] = "identifies patients"
        self.hidden |= dict.fromkeys(policy.withhold, "withheld by policy")
        visible = {name: column for name, column in left.columns.items() if name not in self.hidden}
        if not visible:
            raise PolicyError(
                "nothing is left of this table: every column identifies patients, or is withheld or eliminated"
            )
        stated = {name: c for name, c in visible.items() if by_itself is None or name in by_itself}
        if not stated:
            raise DoesNotFit(NOTHING_STATED)
        self.records = Records(stated)
        self.patients = left.rows
        self._branch_floor = policy.branch_floor
        self._guard = Guard(policy.minimum_cell, policy.dominance)
        self._lock = threading.Lock()
        self._selections: OrderedDict[tuple[str, str], tuple[NDArray[np.int32], Population]] = OrderedDict()
        self._labelled: dict[str, Coded] = {}
        self._binned: dict[tuple[str, tuple[float, ...]], NDArray[np.unsignedinteger]] = {}

    @property
    def idle(self) -> tuple[str, ...]:
        """The graphs of the policy that concern no patient (never sent)."""
        return self._constrained.idle

    @property
    def named(self) -> frozenset[str]:
        """The columns that there are for a private study, by their names and what policy says of them alone."""
        apart = {self._by, *self._policy.withhold, *self._policy.identifiers, *self._constrained.eliminated}
        return frozenset(self._constrained.columns) - apart

    @property
    def division_key(self) -> bytes:
        return self._division_key if isinstance(self._division_key, bytes) else self._division_key()

    @cached_property
    def each_by_itself(self) -> View:
        """The same for private questions, where nothing but the noise may depend on a patient: which columns there are
        is what policy says, not what the columns hold, each cell is read by itself (cells.py), and a column that was
        guessed from all of its cells is refused, by DoesNotFit."""
        left = self._constrained
        if not self._rows_are_patients:
            raise DoesNotFit(ROWS_UNSTATED)
        if not self._looked_at <= self._own_labels:
            raise DoesNotFit(RULES_GUESS)
        return View(
            Records(left.columns),
            self._policy,
            by=self._by,
            division_key=self._division_key,
            by_itself=self._own_labels,
            constrained=left,
            parts=self.parts,
            shelf=self.shelf,
        )

    def find_part(self, name: str) -> PatientPart:
        """Find what is held of all patients beside the table; DoesNotFit if a private question needs it stated."""
        part = self.parts[name]
        if self._by_itself and isinstance(part, Series) and not part.stated:
            raise DoesNotFit(SERIES_UNSTATED)
        return part

    def _constrain(self, records: Records, policy: Policy, secret: bytes | None) -> Constrained:
        policy.check(records.names)
        graphs = policy.graphs(secret)
        if graphs is not None:
            nodes = [node for graph in graphs.graphs for node in graph.nodes]
            conditions = [node.condition for node in nodes if node.condition is not None]
            self._looked_at |= {name.attribute for each in conditions for name in names(each)}
            if any(node.quantifier.listed for node in nodes):  # looked for in every column
                self._looked_at |= set(records.names)
            return constrain(records, graphs)
        columns = {name: records[name] for name in records.names}
        return Constrained(columns, np.arange(len(records)), {}, frozenset())

    def select(self, query: str, target: str) -> Cohort:
        """Everyone for whom the query is true and the target is known."""
        key = (query, target)
        with self._lock:
            found = self._selections.get(key)
        if found is None:
            asked = Query.parse(query)
            self._refuse_guessed(target, *sorted(asked.attributes))
            records = read_as_asked(self.records, asked) if self._by_itself else self.records
            mask = asked.mask(records)
            if target:  # what is not in the table needs none
                mask = mask & present(self.records, target)
            rows = np.flatnonzero(mask).astype(np.int32)
            found = rows, Population(self.patients[rows])
            with self._lock:
                self._selections[key] = found
                while len(self._selections) > REMEMBERED_SELECTIONS:
                    self._selections.popitem(last=False)
        return Cohort(self, *found, self._branch_floor, self._guard)

    def binned(self, name: str, edges: tuple[float, ...]) -> NDArray[np.unsignedinteger]:
        """A numeric column as codes: 0 missing, then 1 + the number of public edges at or below the value."""
        key = (name, edges)
        with self._lock:
            codes = self._binned.get(key)
        if codes is None:
            codes = bin_codes(self.measured(name), edges)
            with self._lock:
                if len(self._binned) > 4 * len(self.records.names):
                    self._binned.clear()
                self._binned[key] = codes
        return codes

    def measured(self, name: str) -> NDArray[np.float64]:
        """A column as numbers, NaN where missing; DoesNotFit if it holds text, which is missing where each cell is
        read by itself."""
        self._refuse_guessed(name)
        return read_as_numbers(self.records[name]) if self._by_itself else numbers(self.records, name)

    def reread(self, name: str) -> None:
        """At a site a value is its own label, as the table was read, and nothing else."""

    def coded(self, name: str) -> Coded:
        """A column of categories; DoesNotFit where it is one of numbers, which have labels where each cell is read by
        itself."""
        self._refuse_guessed(name)
        column = self.records[name]
        if self._by_itself:
            with self._lock:
                labelled = self._labelled.get(name)
                if labelled is None:
                    labelled = read_as_labels(column)
                    if len(labelled.values) <= REMEMBERED_LABELS:
                        self._labelled[name] = labelled
                return labelled
        if isinstance(column, Numbers):
            raise DoesNotFit(
                f"{name!r} is a number here; a tree needs bins for it, and categories to predict"
            )
        return column

    def _refuse_guessed(self, *names: str) -> None:
        """Refuse in the same words whether a column is guessed or not there: rows may decide even that."""
        for name in names:
            if self._by_itself and name and name not in self.records:
                raise DoesNotFit(say_unstated(name))


NOTHING_STATED = (
    "no column is stated at this hospital, so that one patient could change how they are read for others, and no "
    'private question is answered; state what is asked about there, as "code" or "number", under [schema] of the study '
    "file or by schema= of Records.read"
)
RULES_GUESS = (
    "a rule of this hospital's policy looks at a column that is not stated there, so that one patient could change "
    "whom it reaches, and no private question is answered; state every column of its conditions there, as "
    '"code" or as "number"'
)
ROWS_UNSTATED = (
    "this hospital does not state that one row of its table is one patient, so that a patient with many rows could "
    "change more than is charged for, and no private question is answered; name the column of patients' ids there, "
    'patient = "...", or write one_row_per_patient = true'
)
SERIES_UNSTATED = (
    "no variable of the series is stated at this hospital, so that one patient could change which there are, and no "
    "private question about them is answered; state them there, variables = [...] under [series] of its file or by "
    "variables= of Series.read"
)


def say_unstated(name: str) -> str:
    return (
        f"there is no column {name!r} that is stated at this hospital, so that one patient could change how it is read "
        f'for others, and no private question about it is answered; state it there, {name} = "code" or '
        f'{name} = "number", under [schema] of the study file or by schema= of Records.read'
    )


def identifies(name: str, column: Column, policy: Policy) -> bool:
    """Whether a column has about one value per patient (or is stated to identify them)."""
    if name in policy.identifiers:
        return True
    if name in policy.allow:
        return False
    if isinstance(column, Numbers):
        known = column.numbers[~np.isnan(column.numbers)]
        whole = known.size and bool(np.all(known == np.floor(known)))
        distinct = len(np.unique(known)) if whole and known.size >= IDENTIFIER_NUMBERS else 0
        return distinct >= IDENTIFIER_NUMBERS and distinct >= IDENTIFIER_SHARE * known.size
    least = IDENTIFIER_NUMBERS if column.numeric else IDENTIFIER_VALUES
    if len(column.values) < least:
        return False
    distinct = int(np.count_nonzero(np.bincount(column.codes, minlength=1)[1:]))
    return distinct >= least and distinct >= IDENTIFIER_SHARE * int(np.count_nonzero(column.codes))


def near_unique(column: Coded) -> bool:
    """Whether a column of categories has about one value per patient, so that to list them is to list patients."""
    if len(column.values) < IDENTIFIER_VALUES:
        return False
    distinct = int(np.count_nonzero(np.bincount(column.codes, minlength=1)[1:]))
    return distinct >= IDENTIFIER_VALUES and distinct >= IDENTIFIER_SHARE * int(
        np.count_nonzero(column.codes)
    )


def present(records: Records, name: str) -> NDArray[np.bool_]:
    """Where a column is not missing."""
    column = records[name]
    return ~np.isnan(column.numbers) if isinstance(column, Numbers) else column.codes != 0


def numbers(records: Records, name: str) -> NDArray[np.float64]:
    """A column as numbers, NaN where missing; DoesNotFit if it holds text."""
    column = records[name]
    if isinstance(column, Numbers):
        return column.numbers
    if not isinstance(column, Coded) or not all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in column.values
    ):
        raise DoesNotFit(
            f"attribute {name!r} holds text, so bins do not apply to it; mend the column, or give no bins for it "
            "(where the text stands for missing, or has a decimal comma, the hospital's map says so)"
        )
    sizes: NDArray[np.float64] = np.array([np.nan, *column.values], dtype=np.float64)
    return np.take(sizes, column.codes)


def bin_codes(values: NDArray[np.float64], edges: tuple[float, ...]) -> NDArray[np.unsignedinteger]:
    """Codes of numbers between public edges: 0 missing, i where edges[i-2] <= value < edges[i-1]."""
    codes = np.searchsorted(np.asarray(edges, dtype=np.float64), values, side="right") + 1
    codes[np.isnan(values)] = 0
    return codes.astype(np.min_scalar_type(len(edges) + 1))
