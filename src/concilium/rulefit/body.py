"""What a rule model's file holds: all terms considered, their coefficients, and what the sites told of them."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.models.follow_up import Followed
from concilium.models.outcome import Outcome
from concilium.models.prediction import Entries
from concilium.models.threshold import Decided
from concilium.records.dictionary import say_value
from concilium.rulefit.terms import Line, RuleTerms, list_attributes, say_rule


class TakenTerm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A term that is in the model: its column, its mean over all patients (a rule's support), the mean outcome of the
    patients inside and outside of a rule, its pooled standard deviation, and the share of folds in which a term that
    holds for nearly the same patients was selected. None where that was not asked."""

    column: int
    support: float | None
    inside: float | None
    outside: float | None
    deviation: float
    selected: float | None = None


class PenaltyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a penalty was chosen: over so many folds, the penalty (None: no term beats the model without terms), its
    mean loss on held-out patients, that of the model without terms, and the factor by which coefficients are multiplied
    so that predicted risks are not too extreme (None: a weak prior shrinks them, refit.py). For the interval of a
    prediction: by what the variance that the coefficients bring is multiplied, because the same patients selected the
    terms, and what is added to it for what these terms cannot say (cross_validation.py)."""

    folds: int
    penalty: float | None
    loss: float
    loss_without: float
    factor: float | None
    inflation: float = 1.0
    misfit: float = 0.0


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one attribute of a private model does, code by code: the share of patients with the code, what it adds to
    the log odds of a patient of mean row length, against the mean over patients, its standard error, and the part of
    the error that the heights of the shape bring, in units of its column."""

    attribute: int
    shares: list[float]
    moved: list[float]
    errors: list[float]
    heights: list[float]


class RuleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """`coefficients` belong to the terms in their order: rules, linear terms, shapes. Zero: considered, not taken.
    `covariance`: the upper triangle, row after row, of that of the intercept and the terms taken; None where they are
    shrunk by a penalty. `always_known`: attributes that no patient of the model lacked, as far as that was counted."""

    target: str
    query: str
    outcome: Outcome
    classes: list[str | int | float | bool]
    terms: RuleTerms
    intercept: float
    coefficients: list[float]
    taken: list[TakenTerm] = msgspec.field(name="told")
    patients: int | None
    mean: float | None
    decided: Decided | None = None
    covariance: list[float] | None = None
    validation: PenaltyChoice | None = None
    curves: list[Curve] = []
    always_known: list[str] = []
    followed: Followed | None = None

    def __post_init__(self) -> None:
        try:
            self.terms.check()
            self.outcome.check()
        except MessageError as error:
            raise ValueError(str(error)) from None
        if not self.target or len(self.coefficients) != len(self.terms):
            raise ValueError("a rule model needs a target and a coefficient for each term")
        if len(self.classes) != (2 if self.outcome.binary else 0):
            raise ValueError("a rule model has two classes, or a number to predict and none")
        if [term.column for term in self.taken] != [c for c, value in enumerate(self.coefficients) if value]:
            raise ValueError("a rule model tells of exactly the terms that it has taken")
        if self.decided is not None:
            self.decided.check(self.classes)
        size = len(self.taken) + 1
        if self.covariance is not None and len(self.covariance) != size * (size + 1) // 2:
            raise ValueError("a rule model has a covariance of the intercept and the terms that it has taken")

    def find_error(self, row: NDArray[np.float64]) -> float | None:
        """The standard error of the predictor of a patient, of whom `row` has the intercept's column and those of the
        terms taken; None where it is not known."""
        if self.covariance is None:
            return None
        table = np.zeros((len(row), len(row)))
        table[np.triu_indices(len(row))] = self.covariance
        table = table + np.triu(table, 1).T
        return math.sqrt(max(0.0, float(row @ table @ row)))

    def in_words(self, dictionary: Entries) -> RuleBody:
        """The same to be read: classes and values as what the dictionary says they mean. It predicts nothing."""
        attributes = []
        for attribute in self.terms.attributes:
            entry = dictionary.get(attribute.name)
            if entry is not None and attribute.values:
                words = tuple(entry.say(value) for value in attribute.values)
                attribute = msgspec.structs.replace(attribute, values=words)
            attributes.append(attribute)
        entry, decided = dictionary.get(self.target), self.decided
        if decided is not None:
            decided = msgspec.structs.replace(decided, positive=say_value(decided.positive, entry))
        return msgspec.structs.replace(
            self,
            terms=msgspec.structs.replace(self.terms, attributes=tuple(attributes)),
            classes=[say_value(value, entry) for value in self.classes],
            decided=decided,
        )

    def name(self, column: int) -> str:
        """A term in words."""
        term = self.terms.in_order[column]
        if isinstance(term, tuple):
            return say_rule(term, self.terms.attributes)
        kind = "linear" if isinstance(term, Line) else "shape"
        return f"{self.terms.attributes[term.attribute].name} ({kind})"

    def attributes_of(self, column: int) -> list[str]:
        """The attributes that a term looks at."""
        return [self.terms.attributes[index].name for index in list_attributes(self.terms.in_order[column])]
