"""What the file of a shape model holds: its terms, cell by cell, with what their errors have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np

from concilium.models.follow_up import Followed
from concilium.models.prediction import Entries
from concilium.models.threshold import Decided
from concilium.protocol.attributes import MISSING, Attribute, find_runs, say_edge
from concilium.records.columns import label
from concilium.records.dictionary import say_value
from concilium.shapes.cells import Cells, Vector, find_starts

FACTORS = 48
DIGITS = 5


class ShapeTerm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape, a pair or a rule: for each cell the log odds against the mean over patients, the standard error, the
    share of patients, and its points on the score sheet."""

    cells: Cells
    values: list[float]
    errors: list[float]
    shares: list[float]
    points: list[int]

    @property
    def deviation(self) -> float:
        """The standard deviation of its log odds over patients."""
        return math.sqrt(sum(share * value**2 for share, value in zip(self.shares, self.values, strict=True)))


class Sheet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The score sheet: the log odds of one point and of none, and the AUC of the points and of the model on the
    training patients (None: not measured). Where a number is predicted, of that, and R squared instead of the AUC."""

    unit: float
    start: float
    auc: float | None = None
    auc_of_model: float | None = None


class ShapeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """`factors` times their transpose, with `rest` beside the diagonal, is the covariance of the intercept and of all
    cells, term after term. `mean` is the share of patients with the outcome; `patients` is None under noise. Where a
    number is predicted there are no classes, `range` has its ends, and all is in its unit instead of log odds."""

    target: str
    query: str
    classes: list[str | int | float | bool]
    decided: Decided | None = None
    attributes: tuple[Attribute, ...]
    terms: list[ShapeTerm]
    intercept: float
    mean: float
    patients: int | None
    factors: list[list[float]]
    rest: list[float]
    sheet: Sheet
    range: tuple[float, float] | None = None
    followed: Followed | None = None

    def __post_init__(self) -> None:
        if len(self.classes) != (2 if self.range is None else 0) or not self.target:
            raise ValueError("a shape model has a target of two classes, or a number and its range")
        if self.decided is not None:
            self.decided.check(self.classes)
        for one in self.attributes:
            one.check()
        for term in self.terms:
            term.cells.check_among(self.attributes)
            sizes = {len(term.values), len(term.errors), len(term.shares), len(term.points)}
            if sizes != {term.cells.count(self.attributes)}:
                raise ValueError("a term of a shape model has a number for each of its cells")
        width = self.starts[-1]
        if len(self.rest) != width or any(len(factor) != width for factor in self.factors):
            raise ValueError("the covariance of a shape model does not fit its terms")

    @property
    def binary(self) -> bool:
        return self.range is None

    @cached_property
    def starts(self) -> list[int]:
        return find_starts([term.cells for term in self.terms], self.attributes)

    @cached_property
    def names(self) -> list[str]:
        return [attribute.name for attribute in self.attributes]

    @cached_property
    def at(self) -> Vector:
        """The intercept and the value of each cell, as patients' log odds are added up."""
        return np.array([self.intercept, *(value for term in self.terms for value in term.values)])

    def name(self, term: ShapeTerm) -> str:
        """Its attributes; of a rule its conditions."""
        if term.cells.rule:
            return " and ".join(
                f"{self.names[index]} {_say_codes(self.attributes[index], np.flatnonzero(groups).tolist(), {})}"
                for index, groups in zip(term.cells.attributes, term.cells.groups, strict=True)
            )
        return " and ".join(self.names[index] for index in term.cells.attributes)

    def find_error(self, inside: Sequence[int]) -> float:
        """The standard error of the log odds of who is in these cells, numbered from the intercept."""
        table = np.array(self.factors).reshape(len(self.factors), -1)[:, list(inside)]
        return math.sqrt(float((table.sum(axis=1) ** 2).sum()) + sum(self.rest[cell] for cell in inside))

    def say_cells_of(self, codes: Sequence[int], term: ShapeTerm, dictionary: Entries) -> str:
        """Some cells of a shape in words."""
        return _say_codes(self.attributes[term.cells.attributes[0]], codes, dictionary)

    def say_cells(self, term: ShapeTerm, dictionary: Entries) -> list[tuple[str, ...]]:
        """Each cell in words: for each attribute of the term what the patient has; of a rule whether it holds."""
        if term.cells.rule:
            return [("does not hold",), ("holds",)]
        sides = []
        sizes = term.cells.sizes(self.attributes)
        for place, index in enumerate(term.cells.attributes):
            attribute = self.attributes[index]
            groups = term.cells.groups[place] if term.cells.groups else range(attribute.size)
            members: list[list[int]] = [[] for _ in range(sizes[place])]
            for code, group in enumerate(groups):
                members[group].append(code)
            sides.append([_say_codes(attribute, codes, dictionary) for codes in members])
        if len(sides) == 1:
            return [(words,) for words in sides[0]]
        return [(one, other) for one in sides[0] for other in sides[1]]


def _say_codes(attribute: Attribute, codes: Sequence[int], dictionary: Entries) -> str:
    """Some codes of an attribute in words, without its name: `40 to 50`, `a or b`, `missing`."""
    entry = dictionary.get(attribute.name)
    parts: list[str] = []
    if attribute.numeric:
        edges = [say_edge(edge, date=attribute.date) for edge in attribute.edges]
        for first, last in find_runs(code - attribute.first for code in codes if code >= attribute.first):
            if first == 0 and last == len(edges):
                parts.append("any value")
            elif first == 0:
                parts.append(f"below {edges[last]}")
            elif last == len(edges):
                parts.append(f"{edges[first - 1]} or more")
            else:
                parts.append(f"{edges[first - 1]} to {edges[last]}")
    else:
        values = dict(zip(attribute.cells, attribute.values, strict=True))
        parts += [say_value(values[code], entry) for code in codes if code in values]
        parts += ["any other value"] if attribute.other_cell in codes else []
    missing = attribute.missing and MISSING in codes
    return " or ".join([*parts, *(["missing"] if missing else [])])


def factor_covariance(covariance: Vector, shares: Vector) -> tuple[list[list[float]], list[float]]:
    """A covariance as few rows whose squares add up to it, and what is left of its diagonal.

    The rows hold what matters most for patients with these shares of cells (Nystroem's approximation). What they leave
    out is never negative.
    """
    weight = np.sqrt(shares)
    values, vectors = np.linalg.eigh(weight[:, None] * covariance * weight)
    kept = [place for place in np.argsort(-values)[:FACTORS].tolist() if values[place] > 1e-9 * values[-1]]
    rows = (covariance * weight) @ vectors[:, kept] / np.sqrt(values[kept])
    rows = np.array([[float(f"{value:.{DIGITS}g}") for value in row] for row in rows.T])
    rows = rows.reshape(-1, len(covariance))
    rest = np.maximum(np.diag(covariance) - (rows**2).sum(axis=0), 0.0)
    return rows.tolist(), [float(f"{value:.{DIGITS}g}") for value in rest]


def name_outcome(body: ShapeBody, dictionary: Entries) -> str:
    """What is predicted, in words."""
    if not body.binary:
        return body.target
    return f"{body.target} = {translate_classes(body, dictionary)[1]}{say_horizon(body)}"


def say_horizon(body: ShapeBody) -> str:
    """By when the outcome is told, where that is not for ever."""
    return "" if body.followed is None else f" by {body.followed}"


def translate_classes(body: ShapeBody, dictionary: Entries) -> list[str]:
    """The two classes as the dictionary says them."""
    entry = dictionary.get(body.target)
    words = [say_value(value, entry) for value in body.classes]
    return words if len(set(words)) == 2 else [label(value) for value in body.classes]
