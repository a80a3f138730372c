"""What a statistic may see: the site's records after its policy, and the patients a question selects.

Encounters. A table may have one row for each encounter of a patient (records/patients.py). Who is held out, and in
which fold, then follows from the patient's id alone, and minimum counts are of patients. What has a price reads at most
N rows of each patient, N as the terms say (one without): the last ones that a query selects, in the order of the table.
So which rows count follows from the patient's own rows alone. Every statistic declares what one row can change; N rows
change at most N times that (group privacy), and that is what `private` charges for: the house asks for noise N times as
large, so that a patient pays what the study says. Cells of tables that are told without noise, and floors on them,
count rows.

`View` is the records under the policy (docs/methods.md, section 1.1): what its constraint graphs take out or change is
taken out and changed in it, and a column that policy withholds, or that identifies patients, does not exist, for
queries as for statistics. `Cohort` is the base population of one question.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, PolicyError
from concilium.policy.constrain import Constrained, constrain
from concilium.policy.policy import Policy
from concilium.privacy.randomness import draw_bytes
from concilium.protocol.disclosure import Guard, Population
from concilium.protocol.grid import GridCodes, bin_codes
from concilium.protocol.journal import open_for_owner
from concilium.records.blocks import (
    count_codes,
    each_block,
    fill_room,
    hash_array,
    is_large,
    list_blocks,
    list_parts,
    look_up,
    make_room,
    read_block,
    write_block,
)
from concilium.records.columns import Coded, Column, Numbers, RowValues, map_values, take_block
from concilium.records.expression import names
from concilium.records.grammar import measure, measure_or_day, read_day
from concilium.records.patients import (
    LEAST_NUMBERS,
    Owners,
    PatientPart,
    many_number_patients,
    numbers_patients,
)
from concilium.records.query import Query, read_as_asked, read_as_labels, read_as_numbers
from concilium.records.series import Series
from concilium.records.table import Records
from concilium.records.units import Quartiles

if TYPE_CHECKING:
    from concilium.records.column_store import Store

NAME = re.compile(r"[a-z]+-[0-9a-f]{64}")


class SiteCache:
    """Bytes by name, such as `expert-` and a digest; a file that cannot be read or written is as if it were not.

    It lies beside the ledger, as a folder. Nothing in it leaves the hospital, and who may read it may as well read
    the patients' records: files are the owner's. Without a ledger file it is kept in memory. It can be deleted at any
    time; what is missing is computed again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._kept: dict[str, bytes] = {}

    def find(self, name: str) -> bytes | None:
        if self.folder is None:
            return self._kept.get(name)
        try:
            return self._place(name).read_bytes()
        except OSError:
            return None

    def keep(self, name: str, content: bytes) -> None:
        """Written beside its place and moved there whole."""
        if self.folder is None:
            self._kept[name] = content
            return
        place = self._place(name)
        partial = place.with_name(f"{place.name}.{os.getpid()}.part")
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(open_for_owner(partial, os.O_TRUNC), "wb") as file:
                file.write(content)
            partial.replace(place)
        except OSError:
            partial.unlink(missing_ok=True)

    def _place(self, name: str) -> Path:
        assert self.folder is not None
        assert NAME.fullmatch(name), name
        return self.folder / name


V = TypeVar("V")


class LastResults(Generic[V]):
    """The last few results of what a hospital computes from a part of its patients, in memory only.

    Whoever asks for one while it is computed waits for it.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.RLock()
        self._results: WeakKeyDictionary[PatientPart, OrderedDict[Hashable, V]] = WeakKeyDictionary()

    def find(self, part: PatientPart, key: Hashable, make: Callable[[], V]) -> V:
        """The result of a part for this key; made where it is not there."""
        with self._lock:
            own = self._results.setdefault(part, OrderedDict())
            if key not in own:
                own[key] = make()
            own.move_to_end(key)
            while len(own) > self._most:
                own.popitem(last=False)
            return own[key]

    def clear(self) -> None:
        """As if nothing had been computed."""
        self._results.clear()


# An integer attribute with more values than this over all sites is a number, not a category.
MOST_INTEGER_VALUES = 32
# Different texts among numbers, up to which they are taken for what a hospital writes where nothing was measured.
ODD_TEXTS = 3
IDENTIFYING = "identifies patients"
IDENTIFIER_VALUES = 10
FEW_KNOWN = 20
IDENTIFIER_SHARE = 0.9
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

    def count_patients(self, chosen: NDArray[np.bool_] | None = None) -> int:
        """How many patients these are, or those chosen among the rows."""
        owners = self.view.owners
        if owners is None:
            return len(self.rows) if chosen is None else int(chosen.sum())
        rows = self.rows if chosen is None else self.rows[chosen]
        return len(np.unique(owners.codes[rows]))

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

    def find_quartiles(self, name: str) -> Quartiles | None:
        """The quartiles of a number, each as the edge of the public grid below it; None of fewer than FEW_KNOWN, where
        they are beyond the grid, and where one is not positive."""
        placed = self.view.place_on_grid(name, is_date=False)
        return placed.find_quartiles(None if self.everyone else self.rows, least=FEW_KNOWN)

    @property
    def digest(self) -> bytes:
        """Of who the patients are, by their rows in the hospital's own table."""
        return hash_array(self.population.rows, "<i8")

    def take(self, chosen: NDArray[np.intp]) -> Cohort:
        """Some of the patients, by their places in the cohort."""
        rows = self.rows[chosen]
        return replace(self, rows=rows, population=Population(self.view.patients[rows]))

    def take_block(self, block: slice) -> Cohort:
        """Some of the patients, who follow each other."""
        rows = read_block(self.rows, block)
        return replace(self, rows=rows, population=self.view.find_population(rows))

    def split(self, at_once: int | None = None) -> Iterator[Cohort]:
        """The patients by blocks; one block where there are few."""
        for block in list_parts(len(self), at_once) if is_large(len(self)) else ():
            yield self.take_block(block)
        if not is_large(len(self)):
            yield self

    def take_part(self, name: str) -> PatientPart:
        """What the hospital holds of these patients beside its table, such as their series."""
        part = self.view.find_part(name)
        return part if len(self.population) == len(part) else part.take(self.population.rows.astype(np.intp))


class View:
    """A site's records as the outside may know them: `patients` are those who are left, by their rows in the
    hospital's table, and `hidden` says which columns are left out and why (never sent). `by` is the column of patients'
    ids, if there is one. `division_key`, or what makes it where it is needed, decides who is held out (held_out.py).
    `parts` are what is held of the same patients beside the table, `cache` what was worked out of them and is kept.
    `site` is the hospital's name. `owners` says whose each row is where a patient may have several, of which `most` are
    read (None: all)."""

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
        cache: SiteCache | None = None,
        rows_are_patients: bool = True,
        site: str = "",
        owners: Owners | None = None,
        most: int | None = None,
    ) -> None:
        self.site = site
        self._rows_are_patients = rows_are_patients
        self.cache = cache or SiteCache()
        self.parts = {name: part for name, part in parts.items() if not isinstance(part, Records)}
        self._by_itself, self._policy, self._by = by_itself is not None, policy, by
        # A view that is nobody's divides its patients in a way that nobody else can know either.
        self._division_key = draw_bytes(32) if division_key is None else division_key
        # By what was stated, in the table as it was read: a rule may have changed a column since.
        self._has_header = records.has_header
        self._own_labels = frozenset(name for name in records.names if records[name].by_itself)
        self._looked_at: set[str] = set()  # by rules of the policy, to decide about patients
        left = self._constrain(records, policy, secret) if constrained is None else constrained
        self._constrained = left
        self.hidden = {name: f"eliminated by graph {graph}" for name, graph in left.eliminated.items()}
        self.room = records.room
        for name, column in left.columns.items():
            # Before as well as after, or a rule that thins a column out would make it fit to be told.
            same = name in left.replaced or column is records[name]
            looked_at = [column] if same else [records[name], column]
            store = records.store if column is records[name] else None
            found = not self._by_itself and any(identifies(name, one, policy, store) for one in looked_at)
            if found or name == by or name in policy.identifiers:
                self.hidden[name] = IDENTIFYING
        self.hidden |= dict.fromkeys(policy.withhold, "withheld by policy")
        visible = {name: column for name, column in left.columns.items() if name not in self.hidden}
        if not visible:
            raise PolicyError(
                "nothing is left of this table: every column identifies patients, or is withheld or eliminated"
            )
        stated = {name: c for name, c in visible.items() if by_itself is None or name in by_itself}
        if not stated:
            raise DoesNotFit(NOTHING_STATED)
        self.records = Records(stated, room=self.room)
        self.patients = left.rows
        self.owners = None if owners is None else owners.take(left.rows)
        self._owners, self._most = owners, most
        self._alone: dict[int, View] = {}
        self._branch_floor = policy.branch_floor
        self._guard = Guard(policy.minimum_cell, policy.dominance)
        # Rows are in order, so that the last says whether one before it is missing.
        self._rows_are_hospitals = not len(left.rows) or int(left.rows[-1]) == len(left.rows) - 1
        self._lock = threading.Lock()
        self._selections: OrderedDict[tuple[str, str], tuple[NDArray[np.int32], Population]] = OrderedDict()
        self._labelled: dict[str, Coded] = {}
        self._binned: dict[tuple[str, tuple[float, ...]], NDArray[np.unsignedinteger]] = {}
        self._gridded: dict[str, GridCodes] = {}

    @property
    def idle(self) -> tuple[str, ...]:
        """The graphs of the policy that concern no patient (never sent)."""
        return self._constrained.idle

    @property
    def identifying(self) -> set[str]:
        """The columns that are left out since they identify patients, but for those that the hospital names itself."""
        stated = {self._by, *self._policy.identifiers, *self._policy.withhold}
        return {name for name, why in self.hidden.items() if why == IDENTIFYING} - stated

    @property
    def named(self) -> frozenset[str]:
        """The columns that there are for a private study, by their names and what policy says of them alone."""
        apart = {self._by, *self._policy.withhold, *self._policy.identifiers, *self._constrained.eliminated}
        return frozenset(self._constrained.columns) - apart

    @property
    def policy_columns(self) -> Records:
        """The columns that there are for a private study, also where this view leaves out more: whom a study holds out
        follows from these, so that it is the same patients under every release."""
        names = self.named if self._has_header else self.named & self._own_labels
        if self._by_itself or not names or names == frozenset(self.records.names):
            return self.records
        return Records({name: column for name, column in self._constrained.columns.items() if name in names})

    @property
    def minimum_patients(self) -> int:
        """No part of fewer patients is told apart."""
        return self._policy.minimum_patients

    @property
    def division_key(self) -> bytes:
        return self._division_key if isinstance(self._division_key, bytes) else self._division_key()

    @property
    def each_by_itself(self) -> View:
        """The same for private questions, with one row of each patient."""
        return self.read_alone(1)

    def read_alone(self, encounters: int) -> View:
        """The same for private questions, with so many rows of each patient at most."""
        most = 1 if self.owners is None else encounters
        with self._lock:
            if most not in self._alone:
                self._alone[most] = self._read_alone(most)
            return self._alone[most]

    def _read_alone(self, most: int) -> View:
        """The same for private questions, where nothing but the noise may depend on a patient: which columns there are
        is what policy says, not what the columns hold, and each cell is read by itself (query.py), also of a column
        whose kind was guessed from all of them. Of a table without a header, where one row may add a column, those
        that are not stated are refused, by DoesNotFit."""
        left = self._constrained
        if not self._rows_are_patients:
            raise DoesNotFit(ROWS_UNSTATED)
        if not self._looked_at <= self._own_labels:
            raise DoesNotFit(RULES_GUESS)
        return View(
            Records(left.columns, room=self.room),
            self._policy,
            by=self._by,
            division_key=self._division_key,
            by_itself=frozenset(left.columns) if self._has_header else self._own_labels,
            constrained=left,
            parts=self.parts,
            cache=self.cache,
            site=self.site,
            owners=self._owners,
            most=most,
        )

    def with_outcome(self, target: str, outcome: Coded, without: str) -> View:
        """The same patients with another column as the target, and without a column that says when."""
        held = {**self._constrained.columns, target: outcome}
        columns = {name: column for name, column in held.items() if name != without}
        return View(
            Records(columns, room=self.room),
            self._policy,
            by=self._by,
            division_key=self._division_key,
            by_itself=frozenset(self.records.names) if self._by_itself else None,
            constrained=replace(self._constrained, columns=columns),
            parts=self.parts,
            cache=self.cache,
            rows_are_patients=self._rows_are_patients,
            site=self.site,
            owners=self._owners,
            most=self._most,
        )

    def require(self, names: Iterable[str]) -> None:
        """DoesNotFit where a private question about one of these columns would be refused; no patient decides that."""
        self._refuse_guessed(*sorted(names))

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
        everyone = fill_room(
            len(records),
            np.int32,
            records.room,
            lambda rows: np.arange(rows.start, rows.stop, dtype=np.int32),
        )
        return Constrained(columns, everyone, {}, frozenset())

    def select(self, query: str, target: str) -> Cohort:
        """Everyone for whom the query is true and the target is known."""
        key = (query, target)
        with self._lock:
            found = self._selections.get(key)
        if found is None:
            asked = Query.parse(query)
            self._refuse_guessed(target, *sorted(asked.attributes))
            rows = self._find_rows(asked, target)
            if self.owners is not None and self._most is not None:
                rows = rows[_are_last(self.owners.codes[rows], self._most)]
            found = rows, self.find_population(rows)
            with self._lock:
                self._selections[key] = found
                while len(self._selections) > REMEMBERED_SELECTIONS:
                    self._selections.popitem(last=False)
        return Cohort(self, *found, self._branch_floor, self._guard)

    def find_population(self, rows: NDArray[np.int32]) -> Population:
        """The patients of these rows of the view."""
        return Population(rows if self._rows_are_hospitals else self.patients[rows])

    def _find_rows(self, asked: Query, target: str) -> NDArray[np.int32]:
        """The rows for which a query is true and the target is known."""

        def find(block: slice) -> NDArray[np.int32]:
            names = {*asked.attributes, *([target] if target else [])} or {self.records.names[0]}
            records = self.records
            if large:
                held = {name: take_block(records[name], block) for name in records.names if name in names}
                records = Records(held)
            mask = asked.mask(read_as_asked(records, asked) if self._by_itself else records)
            if target:  # what is not in the table needs none
                mask = mask & present(records, target)
            here: NDArray[np.int32] = (np.flatnonzero(mask) + block.start).astype(np.int32)
            return here

        size, large = len(self.records), is_large(len(self.records))
        if not large:
            return find(slice(0, size))
        if target and target not in self.records:
            self.records[target]  # DoesNotFit, with the nearest of all names
        if not asked.attributes <= set(self.records.names):
            asked.mask(self.records.take(np.zeros(0, dtype=np.intp)))  # QueryError, likewise
        found = list(each_block(list_blocks(size), find))
        count = sum(map(len, found))
        if count == size and self._rows_are_hospitals:
            everyone: NDArray[np.int32] = self.patients.astype(np.int32, copy=False)
            return everyone
        rows: NDArray[np.int32] = make_room(count, np.int32, self.room)
        ends = np.cumsum([0, *map(len, found)])
        for start, part in zip(ends.tolist(), found, strict=False):
            write_block(rows, slice(start, start + len(part)), part)
        return rows

    def binned(self, name: str, edges: tuple[float, ...]) -> NDArray[np.unsignedinteger]:
        """A numeric column as codes: 0 missing, then 1 + the number of public edges at or below the value."""
        key = (name, edges)
        with self._lock:
            codes = self._binned.get(key)
        if codes is None:
            coded = self._measure_codes(name)
            if coded is not None:
                codes = look_up(bin_codes(coded[1], edges), coded[0], self.room)
            else:
                with self._lock:
                    placed = self._gridded.get(name)
                merged = None if placed is None else placed.merge(edges, self.room)
                codes = bin_codes(self.measured(name), edges, self.room) if merged is None else merged
            with self._lock:
                if len(self._binned) > 4 * len(self.records.names):
                    self._binned.clear()
                self._binned[key] = codes
        return codes

    def place_on_grid(self, name: str, *, is_date: bool) -> GridCodes:
        """A numeric column, or one of dates, between all edges of the public grid."""
        with self._lock:
            placed = self._gridded.get(name)
        if placed is None or placed.is_date != is_date:
            coded = self._measure_codes(name)
            if coded is not None:
                placed = GridCodes.place(coded[1], is_date=is_date).look_up(coded[0], self.room)
            else:
                placed = GridCodes.place(self.measured(name), is_date=is_date, room=self.room)
            with self._lock:
                self._gridded[name] = placed
        return placed

    def measured(self, name: str, rows: NDArray[np.integer] | None = None) -> NDArray[np.float64]:
        """A column, or some rows of it, as numbers, NaN where missing; DoesNotFit if it holds text. Where each cell is
        read by itself, that is missing, and a date is its day."""
        self._refuse_guessed(name)
        column = self.records[name]
        if rows is not None and isinstance(column, Coded) and not isinstance(column.values, RowValues):
            column = Coded.trust(column.codes[rows], column.values, column.stated, column.by_itself)
        elif rows is not None:
            some: NDArray[np.float64] = self.measured(name)[rows]
            return some
        return self._measure(name, column)

    def _measure(self, name: str, column: Column) -> NDArray[np.float64]:
        if not self._by_itself:
            return read_numbers(name, column, self.room)
        return (
            column.numbers if isinstance(column, Numbers) else map_values(column, measure_or_day, self.room)
        )

    def _measure_codes(self, name: str) -> tuple[NDArray[np.unsignedinteger], NDArray[np.float64]] | None:
        """Of a large column that is coded its codes, and the number that each of them stands for: eight bytes a row
        are then not needed."""
        self._refuse_guessed(name)
        column = self.records[name]
        if not is_large(len(column)) or not isinstance(column, Coded) or isinstance(column.values, RowValues):
            return None
        every = np.arange(len(column.values) + 1, dtype=np.uint32)
        every_value = Coded.trust(every, column.values, column.stated, column.by_itself)
        return column.codes, self._measure(name, every_value)

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
                    labelled = read_as_labels(column, self.room)
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
                raise DoesNotFit(_say_unknown(name))


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


def _say_unknown(name: str) -> str:
    """In the same words for a table whose rows may decide which columns there are, so that they do not tell."""
    return (
        f"there is no column {name!r} at this hospital that a private question may read; where its table has no "
        f'header, state the column there, {name} = "code" or {name} = "number", under [schema] of the study '
        "file or by schema= of Records.read"
    )


def _are_last(owners: NDArray[np.integer], most: int) -> NDArray[np.bool_]:
    """For each row whether it is among the last so many of its patient."""
    last = np.zeros(len(owners), dtype=np.bool_)
    after = np.zeros(int(owners.max(initial=-1)) + 1, dtype=np.int32)  # rows of each patient in later blocks
    for block in reversed(list_blocks(len(owners))):
        order = np.argsort(owners[block], kind="stable")  # the rows of a patient together, in their order
        together = owners[block][order]
        from_the_end = np.searchsorted(together, together, side="right") - np.arange(len(together))
        last[block][order] = from_the_end + after[together] <= most
        after += np.bincount(together, minlength=len(after)).astype(np.int32)
    return last


def identifies(name: str, column: Column, policy: Policy, store: Store | None = None) -> bool:
    """Whether a column has about one value per patient (or is stated to identify them)."""
    if name in policy.identifiers:
        return True
    if name in policy.allow:
        return False
    if store is not None:  # found when it was read
        return bool(store.recall(f"{name} identifies", lambda: _looks_identifying(name, column)))
    return _looks_identifying(name, column)


def _looks_identifying(name: str, column: Column) -> bool:
    """The same by its name and what it holds alone. Of texts with more different values than are counted (RowValues)
    only dates are of use."""
    if isinstance(column, Coded) and isinstance(column.values, RowValues):
        return near_unique(column) or not holds_dates(column)
    if isinstance(column, Coded) and len(column.values) < IDENTIFIER_VALUES:
        return False
    if isinstance(column, Numbers) or column.numeric or holds_measurements(column):
        if isinstance(column, Coded) and len(column.values) < LEAST_NUMBERS:
            return False
        if is_large(len(column)) and isinstance(column, Coded):
            # As many distinct numbers as nearly all patients would be kept as numbers, not as codes.
            return False
        if is_large(len(column)):
            return many_number_patients(name, read_as_numbers(column))
        measured = read_as_numbers(column)
        return numbers_patients(name, measured[np.isfinite(measured)])
    return near_unique(column)


def near_unique(column: Coded) -> bool:
    """Whether a column of categories has about one value per patient, so that to list them is to list patients."""
    if len(column.values) < IDENTIFIER_VALUES:
        return False
    if isinstance(column.values, RowValues):
        known = sum(np.count_nonzero(read_block(column.codes, rows)) for rows in list_blocks(len(column)))
        return bool(column.values.distinct >= IDENTIFIER_SHARE * known)
    counts = count_codes(column.codes, len(column.values) + 1)[1:]
    distinct = int(np.count_nonzero(counts))
    return distinct >= IDENTIFIER_VALUES and distinct >= IDENTIFIER_SHARE * int(counts.sum())


def present(records: Records, name: str) -> NDArray[np.bool_]:
    """Where a column is not missing."""
    column = records[name]
    return ~np.isnan(column.numbers) if isinstance(column, Numbers) else column.codes != 0


def read_numbers(name: str, column: Column, room: Path | None) -> NDArray[np.float64]:
    """A column as numbers, NaN where missing; DoesNotFit if it holds text."""
    if isinstance(column, Numbers):
        return column.numbers
    if holds_dates(column):
        assert isinstance(column, Coded)
        return map_values(column, read_day, room)
    if holds_measurements(column):
        return read_as_numbers(column, room)
    if not isinstance(column, Coded) or not all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in column.values
    ):
        raise DoesNotFit(say_text(name))
    sizes: NDArray[np.float64] = np.array([np.nan, *column.values], dtype=np.float64)
    return look_up(sizes, column.codes, room)


def say_text(name: str) -> str:
    return (
        f"attribute {name!r} holds text, so bins do not apply to it; fix the column, or give no bins for it (where "
        "the text stands for missing, or has a decimal comma, the hospital's map says so)"
    )


def holds_measurements(column: Column) -> bool:
    """Whether these are numbers with a text or two among them, such as `?` for missing, that nobody stated: measured
    values, of which each would otherwise be a category of its own."""
    if isinstance(column, Numbers) or column.by_itself or len(column.values) <= MOST_INTEGER_VALUES:
        return False
    odd = islice((value for value in column.values if math.isnan(measure(value))), ODD_TEXTS + 1)
    return 1 <= len(list(odd)) <= ODD_TEXTS


def holds_dates(column: Column) -> bool:
    """Whether all values of a column are dates, which nobody stated to be codes."""
    return (
        isinstance(column, Coded)
        and not column.stated
        and bool(column.values)
        and not any(math.isnan(read_day(value)) for value in column.values)
    )
