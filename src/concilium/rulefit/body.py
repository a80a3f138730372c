"""What a rule model's file holds: all terms considered, their coefficients, and what the sites told of them."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, MessageError
from concilium.models.follow_up import Followed
from concilium.models.prediction import Entries
from concilium.models.threshold import Decided, probability
from concilium.protocol.cohort import Cohort
from concilium.records.columns import Coded, label
from concilium.records.dictionary import say_value
from concilium.rulefit.terms import Line, RuleTerms, list_attributes, say_rule


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a rule model: yes or no with logistic loss, or a number with squared loss.

    `positive` is the value that counts as yes; `low` and `high` are the range of a number. One or the other. A number
    is held between the public ends of its range and measured in half ranges from its middle, so that no single patient
    weighs more than the study says and sums keep their precision.
    """

    positive: str | int | float | bool | None = None
    low: float | None = None
    high: float | None = None

    @property
    def binary(self) -> bool:
        return self.positive is not None

    def check(self) -> None:
        ranged = self.low is not None and self.high is not None
        if self.binary == ranged or (self.low is None) != (self.high is None):
            raise MessageError("an outcome has a positive value or a range, and not both")
        if self.low is not None and self.high is not None and not -1e300 < self.low < self.high < 1e300:
            raise MessageError("the range of an outcome must rise from its low to its high end")

    def at_site(self, cohort: Cohort, target: str) -> NDArray[np.float64]:
        """The outcome of each patient of a cohort: 0 or 1, or from -1 to 1."""
        if not self.binary:
            return self.scale(cohort.view.measured(target, cohort.rows))
        column = cohort.view.records[target]
        if not isinstance(column, Coded):
            column = cohort.view.coded(target)
        return np.take(self.is_positive(column), column.codes[cohort.rows])

    def is_positive(self, column: Coded) -> NDArray[np.float64]:
        """For each code of a column 1 where it stands for the positive value (5 and '5' are one), otherwise 0."""
        if self.positive is None:
            raise DoesNotFit("this outcome is a number")
        name = label(self.positive)
        return np.array([0.0, *(float(label(value) == name) for value in column.values)])

    def scale(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers as half ranges from the middle of the range."""
        assert self.low is not None
        assert self.high is not None
        return (2 * np.clip(values, self.low, self.high) - (self.low + self.high)) / (self.high - self.low)

    def unscale(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What half ranges from the middle mean in the outcome's own unit."""
        assert self.low is not None
        assert self.high is not None
        return (values * (self.high - self.low) + (self.low + self.high)) / 2

    @property
    def unit(self) -> float:
        """What one step of the predictor is in the outcome's own unit: half a range; 1 where it is log odds."""
        return 1.0 if self.low is None or self.high is None else (self.high - self.low) / 2

    def loss(self, outcome: NDArray[np.float64], predictor: NDArray[np.float64]) -> NDArray[np.float64]:
        """What each patient adds to the loss; `predictor` may have several columns, [patient, candidate]."""
        outcome = outcome.reshape(-1, *[1] * (predictor.ndim - 1))
        if self.binary:
            return np.logaddexp(0, predictor) - outcome * predictor
        return 0.5 * (outcome - predictor) ** 2

    def residual(self, outcome: NDArray[np.float64], predictor: NDArray[np.float64]) -> NDArray[np.float64]:
        """The first derivative of each patient's loss."""
        return (probability(predictor) if self.binary else predictor) - outcome

    def curvature(self, predictor: NDArray[np.float64]) -> NDArray[np.float64]:
        """The second derivative of each patient's loss."""
        if not self.binary:
            return np.ones_like(predictor)
        chance = probability(predictor)
        return chance * (1 - chance)


def say_number(value: float, sign: str = "") -> str:
    """A number as people read it: four digits, or whole with its thousands set apart; `sign="+"` for a change."""
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value + 0.0:{sign}.4g}"


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
