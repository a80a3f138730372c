"""What a rule model's file holds: all terms considered, their coefficients, and what the sites told of them."""

from __future__ import annotations

import msgspec

from concilium.errors import MessageError
from concilium.models.threshold import Decided
from concilium.rulefit.outcome import Outcome
from concilium.rulefit.rules import say_rule
from concilium.rulefit.terms import Line, RuleTerms, list_attributes


class TakenTerm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A term that is in the model: its column, its mean over all patients (a rule's support), the mean outcome of the
    patients inside and outside of a rule, and its pooled standard deviation. None where that was not asked."""

    column: int
    support: float | None
    inside: float | None
    outside: float | None
    deviation: float


class RuleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """`coefficients` belong to the terms in their order: rules, linear terms, shapes. Zero: considered, not taken."""

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
