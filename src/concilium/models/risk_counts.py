"""How good a model is, by counts of patients in bins of predicted risk and by outcome: what every site answers.

The model travels in the question as the body of its file (models/model_file.py): JSON that is checked by its method's
types, and no code. A site predicts for the patients whom the study holds out (protocol/held_out.py), or for all where
nobody learns, and answers one table [bin, outcome], of a model of survival [bin, end of follow-up] (follow_up.py).
Below it, where the study measures subgroups too, stands one for every group of each attribute. Bins are public. From a
table follow AUC, calibration, Brier score, decision curve and the figures at the threshold (evaluation/risk_tables.py).

Sensitivity: a patient is in one bin, has one outcome and is in one group of each attribute, so that one more or less
moves one cell by 1 for all together, and one for each attribute: with k attributes the squared norm is 1 + k, and
rho = (1 + k) / (2 variance). Under `private` every cell of a patient's record is read by itself, an attribute that
the site lacks is missing for everybody, and no outcome leads to a refusal, so that no patient decides about another's
cell or about whether there is an answer.

Who is protected, under `exact` and `masked`: nobody beyond what the release says; a house chooses the model, which can
single out any group that its attributes describe, as it can with any count.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium import registry as registry
from concilium.errors import ConciliumError, DoesNotFit, MessageError, nearest
from concilium.models.follow_up import Followed, place_ends
from concilium.protocol.attributes import Attribute, Workload, estimate_columns, recode
from concilium.protocol.card import Card
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PLAIN, PRIVATE, Sensitivity, Summed
from concilium.protocol.subgroups import Subgroup, check_subgroups
from concilium.protocol.terms import MEASURED
from concilium.records.columns import Coded, label
from concilium.records.dictionary import DictionaryEntry
from concilium.records.table import Records
from concilium.registry import METHODS

if TYPE_CHECKING:
    from concilium.models.method import Method
    from concilium.protocol.releases.release import Release

MOST_BYTES = 1 << 22
_opening = threading.Lock()
MOST_EDGES = 512
MOST_CELLS = 100
# Predicted at a time: of a large model fewer, so that what it takes stays in bounds.
MOST_ROWS, LEAST_ROWS, AT_ONCE = 1 << 18, 1 << 12, 1 << 30
# For each patient: of each byte of a model, of each column that is read, and to count.
OF_EACH_BYTE, OF_EACH_COLUMN, COUNTING = 1, 600, 100


class AskRiskCounts(Summed, frozen=True, kw_only=True):
    """How many patients have a predicted risk in each bin, without the outcome and with it?

    `edges` are risks above 0, up to 1: a patient is in bin i if so many edges are at or below the risk. `body` is what
    the model's file holds, `dictionary` what it says of the attributes. The tables of the groups of each attribute of
    `by` stand below that of all patients. Where hospitals are left out in turn, each predicts by the model of the
    others: `bodies` has it by the hospital's name, and `body` is empty. A model of survival is measured by ends of
    follow-up in cells of time, which end at `times`: at the horizon, the last (follow_up.py).
    """

    kind: ClassVar[str] = MEASURED
    releases: ClassVar[frozenset[str]] = PLAIN | PRIVATE
    measures: ClassVar[bool] = True

    method: str
    body: bytes
    positive: str | int | float | bool
    edges: tuple[float, ...]
    dictionary: dict[str, DictionaryEntry] = msgspec.field(default_factory=dict)
    by: tuple[Subgroup, ...] = ()
    bodies: dict[str, bytes] = msgspec.field(default_factory=dict)
    times: tuple[float, ...] = ()

    @property
    def bins(self) -> int:
        """How many bins of risk there are."""
        return len(self.edges) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bins * (1 + sum(one.attribute.size for one in self.by)), self.ends

    @property
    def ends(self) -> int:
        """How many outcomes there are, or ends of follow-up."""
        return 2 * len(self.times) + 1 if self.times else 2

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity.of_counts(1 + len(self.by))

    @property
    def subgroups(self) -> Sequence[Subgroup]:
        return self.by

    @property
    def named(self) -> Sequence[Attribute]:
        return [
            Attribute(name=name) for name in dict.fromkeys(n for one in self.models for n in one.attributes_)
        ]

    @property
    def fixed(self) -> Mapping[str, Any]:
        followed = self.models[0].followed
        return {"positive": self.positive, **({} if followed is None else {"time": followed.time})}

    def check(self, release: Release) -> None:
        if self.size > MOST_BYTES:
            raise MessageError(f"models to be measured have at most {MOST_BYTES >> 20} MB")
        if bool(self.body) == bool(self.bodies):
            raise MessageError("one model is measured, or one of each hospital")
        if not 1 <= len(self.edges) <= MOST_EDGES or not all(0 < edge <= 1 for edge in self.edges):
            raise MessageError(
                f"risks are counted between 1 to {MOST_EDGES} edges, each above 0 and at most 1"
            )
        if any(not low < high for low, high in pairwise(self.edges)):
            raise MessageError("the edges of risks must rise")
        check_subgroups(self.by)
        if self.method not in METHODS:
            raise MessageError(f"there is no method {self.method[:60]!r}{nearest(self.method[:60], METHODS)}")
        if any(label(self.positive) not in map(label, one.classes_) for one in self.models):
            raise MessageError("the positive value is none of the model's classes")
        self._check_times()

    def _check_times(self) -> None:
        horizons = {None if one.followed is None else one.followed.horizon for one in self.models}
        if horizons != ({self.times[-1]} if self.times else {None}):
            raise MessageError("a model of survival is measured at its horizon, and no other has one")
        if len(self.times) > MOST_CELLS or any(not low < high for low, high in pairwise((0.0, *self.times))):
            raise MessageError(
                f"follow-up is counted in at most {MOST_CELLS} cells of time, which rise from zero"
            )

    @property
    def goes_by_blocks(self) -> bool:
        return True

    def estimate(self, patients: int, columns: int) -> Workload:
        largest = max(map(len, (self.body, *self.bodies.values())))
        at_once = min(patients, _count_at_once(largest))
        of_each = round(registry.load(METHODS[self.method]).memory_share * largest) + 64 * columns
        groups = estimate_columns(
            [one.attribute for one in self.by], patients, each_by_itself=self.noise is not None
        )
        return groups + Workload(
            (OF_EACH_BYTE * largest + OF_EACH_COLUMN * columns + COUNTING) * patients,
            at_once * of_each + 32 * patients + (1 << 20),
        )

    @property
    def size(self) -> int:
        """The bytes of all models."""
        return len(self.body) + sum(map(len, self.bodies.values()))

    @property
    def models(self) -> list[Method[Any]]:
        """The models that it carries; MessageError where one is none, or cannot be measured."""
        return [
            self._open(body) for body in dict.fromkeys([self.body] if self.body else self.bodies.values())
        ]

    def _open(self, body: bytes) -> Method[Any]:
        return _open_model(self.method, body, _encode_dictionary(self.dictionary), self.noise is not None)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        if self.bodies and cohort.view.site not in self.bodies:
            raise DoesNotFit("there is no model that leaves this hospital out")
        body = self.bodies[cohort.view.site] if self.bodies else self.body
        model = self._open(body)
        place = [label(value) for value in model.classes_].index(label(self.positive))
        counts, seen = np.zeros(self.numbers, dtype=np.int64), False
        for part in cohort.split():
            seen |= self._add_counts(counts, part, model, place, _count_at_once(len(body)))
        if self.noise is None and not seen:
            _refuse_other_codes(cohort, self.target, model)
        return counts.reshape(self.shape)

    def _add_counts(
        self, counts: NDArray[np.int64], cohort: Cohort, model: Method[Any], place: int, step: int
    ) -> bool:
        """Count these patients too; whether one of them has the outcome."""
        happened = _find_outcome(cohort, self.target, {label(self.positive)})
        outcome = self._place_ends(model.followed, happened, cohort) if model.followed else happened
        names = [name for name in model.attributes_ if name in cohort.view.records]
        columns = Records({name: cohort.view.records[name] for name in names}) if names else None
        groups = list(self._place_groups(cohort))
        edges = np.array(self.edges)
        for start in range(0, len(cohort), step):
            rows = cohort.rows[start : start + step]
            patients = _complete(columns, rows, model.attributes_, self.target)
            bins = model.bin_risks(patients, place, edges)
            known = outcome[start : start + step] >= 0
            cells = (self.ends * bins + outcome[start : start + step])[known]
            counts += np.bincount(cells, minlength=self.numbers)
            for first, group in groups:
                tables = first + group[start : start + step][known]
                counts += np.bincount(self.ends * self.bins * tables + cells, minlength=self.numbers)
        return bool(happened.any())

    def _place_ends(self, followed: Followed, events: NDArray[np.int64], cohort: Cohort) -> NDArray[np.int64]:
        codes, cells = recode(Attribute(followed.time, (0.0, *self.times)), cohort.view)
        competing = _find_outcome(cohort, self.target, {*followed.competing})
        # Cells of the attribute: missing, below zero, and from zero on those of follow-up.
        return place_ends(cells[codes[cohort.rows]] - 2, len(self.times), events, competing)

    def _place_groups(self, cohort: Cohort) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Of each attribute the place of its first table, and the group of each patient."""
        first = 1
        for one in self.by:
            codes, cells = recode(one.attribute, cohort.view)
            yield first, cells[codes[cohort.rows]]
            first += one.attribute.size

    def suppress(self, words: NDArray[np.integer], cohort: Cohort) -> None:
        """Leave out all tables of an attribute where the hospital would not tell one of them: what is left out of one
        group could be had from the others. Where that of all patients is left out, nothing is told."""
        if not cohort.floored:
            return
        tables = words.reshape(-1, self.bins, self.ends)
        small = tables.sum(axis=(1, 2)) < cohort.branch_floor
        hidden = cohort.guard.withholds(tables) | (small & tables.any(axis=(1, 2)))
        first = 1
        for one in self.by:
            own = slice(first, first + one.attribute.size)
            if hidden[0] or hidden[own].any():
                tables[own] = 0
            first = own.stop
        if hidden[0]:
            tables[0] = 0


def _encode_dictionary(dictionary: Mapping[str, DictionaryEntry]) -> bytes:
    return msgspec.json.encode(dictionary)


def _count_at_once(size: int) -> int:
    """How many patients are predicted at a time by a model of so many bytes."""
    return max(LEAST_ROWS, min(MOST_ROWS, AT_ONCE // max(1, size)))


def _open_model(method: str, body: bytes, dictionary: bytes, by_itself: bool) -> Method[Any]:
    with _opening:
        return _open_once(method, body, dictionary, by_itself)


@lru_cache(maxsize=128)  # all sites of a process are sent the same
def _open_once(method: str, body: bytes, dictionary: bytes, by_itself: bool) -> Method[Any]:
    card = make_bare_card(
        method,
        "private" if by_itself else "exact",
        msgspec.json.decode(dictionary, type=dict[str, DictionaryEntry]),
    )
    try:
        model: Method[Any] = registry.load(METHODS[method]).from_body(body, card)
        classes = model.classes_
    except (ConciliumError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MessageError(f"this is not the model of a {method!r} study: {str(error)[:200]}") from None
    if not classes or model.reads_courses:
        raise MessageError("models that predict classes from a table are measured by counts of risks")
    return model


def make_bare_card(method: str, release: str, dictionary: Mapping[str, DictionaryEntry]) -> Card:
    """A card that says how the model reads patients, and nothing else."""
    return Card(
        study="",
        dictionary=dict(dictionary),
        method=method,
        release=release,
        meaning="",
        sites=[],
        rounds=0,
        bytes=0,
        releases=[],
        refusals=[],
        dropouts=[],
        warnings=[],
        version="",
    )


def _refuse_other_codes(cohort: Cohort, target: str, model: Method[Any]) -> None:
    """DoesNotFit where no patient has an outcome that the model knows; not asked under noise, where no patient may
    decide about an answer."""
    column, known = cohort.view.coded(target), set(map(label, model.classes_))
    occur = np.flatnonzero(np.bincount(column.codes[cohort.rows])).tolist()
    if occur and model.names_classes and not any(label(column.values[c - 1]) in known for c in occur if c):
        raise DoesNotFit(
            f"the outcome {target!r} is coded otherwise here: none of the model's classes occurs; the hospital's map "
            "says what its codes mean"
        )


def _find_outcome(cohort: Cohort, target: str, wanted: set[str]) -> NDArray[np.int64]:
    """1 for each patient of the cohort whose target has such a value, else 0."""
    column = cohort.view.coded(target)
    is_positive = np.array([0, *(int(label(value) in wanted) for value in column.values)], dtype=np.int64)
    return np.take(is_positive, column.codes[cohort.rows])


def _complete(
    columns: Records | None, rows: NDArray[np.int32], wanted: Sequence[str], target: str
) -> Records:
    """These patients with all columns that a model asks about: those that the site lacks are missing."""
    absent = Coded(np.zeros(len(rows), dtype=np.uint8), ())
    everyone = columns is not None and len(rows) == len(columns)  # rows are in order, each once
    taken = columns if columns is None or everyone else columns.take(rows)
    known = {} if taken is None else {name: taken[name] for name in taken.names}
    return Records({**dict.fromkeys([*wanted] or [target], absent), **known})
