"""The columns of a regression: what each term makes of a patient's values, at a hospital and to predict.

A column is the product of one or two factors. A factor is a number, a basis function of a restricted cubic spline on
public knots (Harrell, "Regression Modeling Strategies", 2.4.5), or 1 where a category has one value and 0 elsewhere.
A patient for whom any value is missing, or a category none of the named ones, is left out (complete cases).

Under `private` every number is held between the public ends of its bins and scaled to -1..1, so that a column is never
beyond 1. `squared_norm` bounds the squared length of a row from the columns alone: two values of one category exclude
each other, and count once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, StudyError
from concilium.protocol.attributes import Attribute, Source, present, recode, unite
from concilium.protocol.cohort import Cohort, View
from concilium.protocol.schema import AskSchema, SchemaSeen, find_numbers, say_lacking, state_values
from concilium.records.columns import Value, label

if TYPE_CHECKING:
    from collections.abc import Hashable

Matrix = NDArray[np.float64]

MOST_LEVELS = 50
LEAST_KNOTS, MOST_KNOTS = 3, 10
MOST_COLUMNS = 500
LARGEST_END = 1e15
HELD_AT_ENDS = "numbers beyond the ends of their bins count as these ends"
LARGEST_CENTER = 2.0**60  # no sum over patients is beyond (wide_sums.py)
LEAST_GAP = 1e-9  # between knots, of what they span
ROWS_OF_MATRIX = 1 << 16  # of a large table, in one block


class _ColumnSource(Source, Protocol):
    """Where the columns of patients are read: at a site, or to predict."""

    def measured(self, name: str, rows: NDArray[np.integer] | None = None) -> NDArray[np.float64]:
        """A column, or some rows of it, as numbers, NaN where missing."""


class Factor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A number; `basis` 1, 2, ... of a spline on `knots`; or, with a `cell`, whether the category has that value.

    `low` and `high` are the public ends between which a private study holds a number.
    """

    attribute: int
    cell: int | None = None
    knots: tuple[float, ...] = ()
    basis: int = 0
    low: float | None = None
    high: float | None = None

    def check(self) -> None:
        knots = np.asarray(self.knots, dtype=np.float64)
        if self.knots and not (
            LEAST_KNOTS <= len(knots) <= MOST_KNOTS
            and (np.abs(knots) < LARGEST_END).all()
            and knots[-1] - knots[0] > 1 / LARGEST_END
            and (np.diff(knots) > LEAST_GAP * (knots[-1] - knots[0])).all()
        ):
            raise MessageError(f"a spline has {LEAST_KNOTS} to {MOST_KNOTS} knots in rising order, apart")
        if not 0 <= self.basis <= max(0, len(knots) - 2):
            raise MessageError("a spline has no such basis function")
        if (self.low is None) != (self.high is None):
            raise MessageError("a number has both public ends, or none")
        if (
            self.low is not None
            and self.high is not None
            and not -LARGEST_END < self.low < self.high < LARGEST_END
        ):
            raise MessageError("the public ends of a number must rise")

    def read(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """What it makes of numbers; NaN stays NaN."""
        if self.low is None or self.high is None:
            return numbers if not self.basis else self._bend(numbers)
        held = np.clip(numbers, self.low, self.high)
        if not self.basis:
            # Of ends that nearly meet, rounding alone would go beyond 1.
            return np.clip((2 * held - (self.low + self.high)) / (self.high - self.low), -1, 1)
        most = float(self._bend(np.array([self.high]))[0])
        return np.clip(self._bend(held) / most, 0, 1) if most > 0 else np.zeros_like(held)

    def _bend(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The basis function: a cubic between the knots, linear beyond the outer ones. It rises from zero."""
        t, before, last = self.knots[self.basis - 1], self.knots[-2], self.knots[-1]
        bent = np.maximum(x - t, 0) ** 3
        bent -= np.maximum(x - before, 0) ** 3 * (last - t) / (last - before)
        bent += np.maximum(x - last, 0) ** 3 * (before - t) / (last - before)
        scaled: NDArray[np.float64] = bent / (last - self.knots[0]) ** 2
        return scaled


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The product of its factors, less `center`, in units of `scale`."""

    factors: tuple[Factor, ...]
    center: float = 0.0
    scale: float = 1.0

    def check(self) -> None:
        if not 1 <= len(self.factors) <= 2:
            raise MessageError("a column has one factor or two")
        for factor in self.factors:
            factor.check()
        # Beyond these a quotient overflows, and who is left out would follow from what the house says.
        if not (abs(self.center) <= LARGEST_CENTER and 1 / LARGEST_CENTER <= self.scale <= LARGEST_CENTER):
            raise MessageError("a column is centred and scaled by numbers of a patient's size")

    @property
    def attributes(self) -> tuple[int, ...]:
        """What it is about."""
        return tuple(dict.fromkeys(factor.attribute for factor in self.factors))


def check_columns(attributes: Sequence[Attribute], columns: Sequence[Column]) -> None:
    """MessageError unless every column is about attributes that are named, and their cells."""
    if not len(columns) <= MOST_COLUMNS:
        raise MessageError(f"a regression has at most {MOST_COLUMNS} columns")
    for column in columns:
        column.check()
        for factor in column.factors:
            if not 0 <= factor.attribute < len(attributes):
                raise MessageError("a column is about an attribute that is not named")
            if factor.cell is not None and not 0 <= factor.cell < attributes[factor.attribute].size:
                raise MessageError("a column is about a value that is not named")


def refuse_endless(columns: Sequence[Column]) -> None:
    """MessageError where a number of a private question has no public ends, or is not in units of them."""
    if any(
        (factor.cell is None and factor.low is None) or column.center or column.scale != 1
        for column in columns
        for factor in column.factors
    ):
        raise MessageError("every number of a private regression has public ends")


def find_scales(
    terms: RegressionTerms,
) -> tuple[RegressionTerms, NDArray[np.float64], NDArray[np.float64]]:
    """Private terms in the units of the attributes, and what their columns are multiplied by, and shifted by, to lie
    between -1 and 1. The ends stay: who predicts holds numbers between them, as the fit did. With splines and products
    all stay in the units of scaled columns."""
    size = len(terms.columns)
    scales, shifts = np.ones(size), np.zeros(size)
    if any(f.basis or len(c.factors) > 1 for c in terms.columns for f in c.factors):
        return terms, scales, shifts
    for place, column in enumerate(terms.columns):
        low, high = column.factors[0].low, column.factors[0].high
        if low is not None and high is not None:
            scales[place], shifts[place] = 2 / (high - low), -(low + high) / (high - low)
    columns = tuple(
        msgspec.structs.replace(column, center=float(shift), scale=float(scale))
        for column, shift, scale in zip(terms.columns, shifts, scales, strict=True)
    )
    return msgspec.structs.replace(terms, columns=columns), scales, shifts


def squared_norm(columns: Sequence[Column]) -> int:
    """How long a row can be under `private`, squared, with the intercept: no column is beyond 1, and of columns that
    are about different values of the same categories one alone is not 0."""
    often = Counter(
        (
            tuple((f.attribute, f.basis if f.cell is None else -1) for f in column.factors),
            tuple(f.cell for f in column.factors),
        )
        for column in columns
    )
    most: dict[Hashable, int] = {}
    for (group, _), count in often.items():
        most[group] = max(most.get(group, 0), count)
    return 1 + sum(most.values())


def build(
    attributes: Sequence[Attribute],
    columns: Sequence[Column],
    source: _ColumnSource,
    rows: NDArray[np.integer],
) -> Matrix:
    """A row for each patient, a column for each term (in column-major order); NaN where a value is missing."""
    made: dict[Factor, NDArray[np.float64]] = {}
    numbers: dict[int, NDArray[np.float64]] = {}
    cells: dict[int, NDArray[np.int32]] = {}
    matrix = np.ones((len(rows), len(columns)), order="F")
    for place, column in enumerate(columns):
        for factor in column.factors:
            attribute, index = attributes[factor.attribute], factor.attribute
            if factor.cell is not None:
                if index not in cells:
                    codes, places = recode(attribute, source)
                    cells[index] = np.take(places, codes[rows])
                if factor not in made:
                    is_value = (cells[index] == factor.cell).astype(np.float64)
                    made[factor] = np.where(cells[index] < 0, np.nan, is_value)
            elif factor not in made:
                if index not in numbers:
                    numbers[index] = source.measured(attribute.name, rows)
                made[factor] = factor.read(numbers[index])
            matrix[:, place] *= made[factor]
        if column.center or column.scale != 1:
            matrix[:, place] -= column.center
            matrix[:, place] /= column.scale
    # Infinity is no measurement.
    matrix[~np.isfinite(matrix)] = np.nan
    return matrix


_last: WeakKeyDictionary[View, tuple[Hashable, Matrix, NDArray[np.int32], int]] = WeakKeyDictionary()


def build_at_site(
    attributes: tuple[Attribute, ...], columns: tuple[Column, ...], cohort: Cohort
) -> tuple[Matrix, NDArray[np.int32], int]:
    """The rows of complete cases, which rows of the table they are, and how many patients are left out; kept in the
    hospital's memory for the next step of the same fit."""
    # As bytes: 1 and true are equal, and not the same value.
    key = (msgspec.msgpack.encode((attributes, columns)), cohort.rows.tobytes())
    found = _last.get(cohort.view)
    if found is None or found[0] != key:
        matrix = build(attributes, columns, cohort.view, cohort.rows)
        complete = ~np.isnan(matrix).any(axis=1)
        if not complete.all():
            matrix = np.asfortranarray(matrix[complete])
        rows = cohort.rows[complete]
        found = key, matrix, rows, len(cohort.rows) - len(rows)
        _last[cohort.view] = found
    return found[1:]


class RegressionTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a regression is about: attributes, the columns made of them, and the name of each column."""

    attributes: tuple[Attribute, ...]
    columns: tuple[Column, ...]
    names: tuple[str, ...]

    def take(self, kept: Sequence[int]) -> RegressionTerms:
        """Some of the columns."""
        return RegressionTerms(
            self.attributes, tuple(self.columns[i] for i in kept), tuple(self.names[i] for i in kept)
        )

    def group(self) -> dict[str, list[int]]:
        """The columns of each attribute or interaction, by its name: what is tested together."""
        groups: dict[str, list[int]] = {}
        for place, column in enumerate(self.columns):
            name = " x ".join(self.attributes[index].name for index in column.attributes)
            groups.setdefault(name, []).append(place)
        return groups


@dataclass(frozen=True)
class Declaration:
    """The terms that a study declares: public knots, reference values, interactions, public ends of numbers."""

    splines: Mapping[str, Sequence[float]]
    reference: Mapping[str, Value]
    interactions: Sequence[Sequence[str]]
    ends: Mapping[str, Sequence[float]] | None = None

    def make_terms(
        self, numbers: Sequence[str], categories: Mapping[str, Sequence[Value]]
    ) -> RegressionTerms:
        """The columns of these numbers and categories, in the order of their names."""
        names = sorted({*numbers, *categories})
        attributes = tuple(
            Attribute(name, (), tuple(categories[name]), missing=False, other=False)
            if name in categories
            else Attribute(name)
            for name in names
        )
        single = {
            name: list(self._make_factors(place, one))
            for place, (name, one) in enumerate(zip(names, attributes, strict=True))
        }
        columns = [(said, Column((factor,))) for name in names for said, factor in single[name]]
        for pair in self.interactions:
            first, second = (single.get(name, []) for name in pair)
            columns += [(f"{a} x {b}", Column((one, two))) for a, one in first for b, two in second]
        return RegressionTerms(
            attributes, tuple(column for _, column in columns), tuple(said for said, _ in columns)
        )

    def _make_factors(self, place: int, attribute: Attribute) -> list[tuple[str, Factor]]:
        if attribute.values:
            stated = self.reference.get(attribute.name)
            labels = [label(value) for value in attribute.values]
            base = labels.index(label(stated)) if stated is not None and label(stated) in labels else 0
            return [
                (f"{attribute.name} = {said}", Factor(place, cell=cell))
                for said, cell in zip(labels, attribute.cells, strict=True)
                if cell != attribute.cells[base]
            ]
        knots = tuple(self.splines.get(attribute.name, ()))
        ends = None if self.ends is None else self.ends[attribute.name]
        low, high = (None, None) if ends is None else (float(ends[0]), float(ends[-1]))
        return [
            (attribute.name + "'" * basis, Factor(place, None, knots, basis, low, high))
            for basis in range(max(1, len(knots) - 1))
        ]


def ask_schema(study: Any, *, measured: bool = False) -> AskSchema:
    """The question which attributes a study of a target, query, bins and attributes can be about."""
    return AskSchema(
        query=study.query,
        target=study.target,
        bins={one: list(edges) for one, edges in study.bins.items() if one != study.target},
        attributes=None if study.attributes is None else list(study.attributes),
        count_patients=study.way_out.by_site,
        measured=measured,
    )


def find_terms(
    schemas: Mapping[str, SchemaSeen], bins: Mapping[str, Sequence[float]], as_categories: Sequence[str]
) -> tuple[list[str], dict[str, tuple[Value, ...]], dict[str, str]]:
    """The numbers and categories that every hospital has, and what is left out, and why. Whole numbers are numbers,
    unless the study names a reference value."""
    numbers, left_out = find_numbers(schemas, {**bins, **dict.fromkeys(as_categories, ())}, 0)
    shared = set.intersection(*(schema.names for schema in schemas.values()))
    numbers += sorted((set(bins) & shared) - set(as_categories))
    dates = {name for schema in schemas.values() for name in schema.dates}
    for name in sorted(dates & set(numbers)):
        left_out[name] = "a date; take a number of days instead"
    united, lacking = unite({site: schema.attributes for site, schema in schemas.items()})
    left_out |= {name: say_lacking(site) for name, site in lacking.items() if name not in numbers}
    categories: dict[str, tuple[Value, ...]] = {}
    for name, seen in united.items():
        values = present(seen.values)
        if name in numbers or name in left_out or name in bins:
            continue
        if len(values) < 2:
            left_out[name] = "the same for everybody" if values else "missing for everybody"
        elif len(values) > MOST_LEVELS:
            left_out[name] = f"{len(values):,} different values; group them, or take it out"
        else:
            categories[name] = values
    return [name for name in dict.fromkeys(numbers) if name not in left_out], categories, left_out


def state_terms(study: Any) -> tuple[list[str], dict[str, tuple[Value, ...]]]:
    """The numbers and categories of a private study, which states them all."""
    among, target = study.attributes, study.target
    wanted = {*study.values, *study.bins} if among is None else set(among)
    numbers = [name for name in study.bins if name != target and name in wanted]
    categories = {
        name: state_values(listed)
        for name, listed in study.values.items()
        if name != target and name in wanted
    }
    return numbers, categories


def check_stated(study: Any, need: str) -> None:
    """StudyError unless a private study states all it is about, and two bins of each number; `need` says why two."""
    numbers, categories = state_terms(study)
    private = f"a private {type(study).__name__}"
    lacking = [one for one in study.attributes or () if one not in numbers and one not in categories]
    if lacking or not (numbers or categories):
        without = f"{lacking[0]!r} has none" if lacking else "it has none"
        raise StudyError(
            f"{private} states 'bins' for each number and 'values' for each category it is about; {without}"
        )
    if short := [one for one in numbers if len(study.bins[one]) < 2]:
        raise StudyError(f"{private} {need.format(short[0])}")


def pack_triangle(matrix: Matrix) -> NDArray[np.float64]:
    """The upper triangle of a symmetric matrix, row by row."""
    return matrix[np.triu_indices(len(matrix))]


def unpack_triangle(packed: Sequence[float] | NDArray[np.float64], size: int) -> Matrix:
    """The symmetric matrix of an upper triangle."""
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = packed
    return matrix + np.triu(matrix, 1).T


def find_dependent(gram: Matrix, tolerance: float = 1e-9) -> list[int]:
    """The columns that are a linear combination of those before them, by the Gram matrix of all."""
    size = np.sqrt(np.maximum(np.diagonal(gram), 0))
    scaled = gram / np.where(size > 0, size, 1)[:, None] / np.where(size > 0, size, 1)
    kept: list[int] = []
    dependent: list[int] = []
    for place in range(len(gram)):
        rest = scaled[place, place]
        if kept:
            across = scaled[np.ix_(kept, [place])][:, 0]
            rest -= across @ np.linalg.solve(scaled[np.ix_(kept, kept)], across)
        (kept if size[place] > 0 and rest > tolerance else dependent).append(place)
    return dependent
