"""External validation: a model that exists is measured at hospitals that may have had no part in it.

It is a study of its own. Its terms say which model it is, by hash, what it predicts, for whom, and which attributes it
reads: hospitals answer counts of that model and of no other (models/risk_counts.py), at the price that the terms say.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

import msgspec

from concilium.errors import ModelError, StudyError
from concilium.models.measuring import Evaluation, RiskTable, ask_table, find_place, say_needed
from concilium.models.method import (
    Attributes,
    Delta,
    Epsilon,
    Method,
    Positive,
    QueryText,
    ReleaseName,
    Target,
    as_written,
    documented,
)
from concilium.models.risk_counts import AskRiskCounts
from concilium.parameters import Parameter, choice, text
from concilium.privacy.accounting import Plan, PlannedQuestion, rho_for_epsilon
from concilium.protocol.held_out import Holdout
from concilium.protocol.proposal import Proposal
from concilium.protocol.questions import Conversation, Learned, Partners, Statistic
from concilium.protocol.subgroups import Subgroup
from concilium.protocol.terms import MEASURED, Draft, say_subgroups
from concilium.records.columns import Value
from concilium.registry import METHODS


def _read_digest(value: Any) -> str:
    if not isinstance(value, str) or re.fullmatch("[0-9a-f]{64}", value) is None:
        raise ValueError
    return value


@documented
@dataclass(eq=False, repr=False)
class Validation(Proposal[RiskTable]):
    """A study that measures one model: `Validation.of(model, release="exact")`."""

    method: ClassVar[str] = "validation"
    called: ClassVar[str] = "a validation"
    description: ClassVar[str] = "how good a given model is for the patients of these hospitals"
    releases: ClassVar[tuple[str, ...]] = ("exact", "masked", "private")

    target: Target
    positive: Positive
    learned_by: Annotated[
        str, Parameter("the name of a method", choice(*METHODS), "the method that the model was learned by")
    ]
    digest: Annotated[
        str, Parameter("a SHA-256 in hex", _read_digest, "the hash of what the model's file holds of it")
    ]
    attributes: Attributes = None
    time: Annotated[
        str,
        Parameter("an attribute's name, or ''", text, "the time of a model of survival; '': there is none"),
    ] = ""
    query: QueryText = ""
    release: ReleaseName = "exact"
    epsilon: Epsilon = None
    delta: Delta = "1e-6"

    _model: ClassVar[Method[Any] | None] = None
    _holdout: ClassVar[Holdout | None] = None
    _subgroups: ClassVar[tuple[Subgroup, ...]] = ()
    _left_out: ClassVar[Mapping[str, Method[Any]] | None] = None

    @classmethod
    def of(
        cls,
        model: Method[Any],
        *,
        positive: Value | None = None,
        release: str = "exact",
        epsilon: Any = None,
        delta: Any = "1e-6",
        since: Holdout | None = None,
        subgroups: tuple[Subgroup, ...] = (),
        left_out: Mapping[str, Method[Any]] | None = None,
    ) -> Self:
        """The study that measures this model; ModelError where it cannot be measured by counts. With `left_out`, every
        hospital by its name is measured by the model of the others."""
        if not isinstance(model, Method) or model.reads_courses or not model.classes_:
            raise ModelError("models that predict classes from a table, and are not adapted, are measured")
        proposal = cls(
            target=model.target,
            positive=model.classes_[find_place(model, positive)],
            learned_by=model.method,
            digest=_hash_all(model, left_out),
            attributes=model.attributes_ or None,
            time="" if model.followed is None else model.followed.time,
            query=getattr(model, "query", ""),
            release=release,
            epsilon=epsilon,
            delta=delta,
        )
        vars(proposal).update(_model=model, _holdout=since, _subgroups=subgroups, _left_out=left_out)
        return proposal

    def check(self) -> None:
        if self.way_out.bounded != (self.epsilon is not None):
            raise StudyError("a validation has an epsilon where it is released as 'private', and only there")

    @property
    def must_know(self) -> str:
        return self.target

    @property
    def rho(self) -> Fraction | None:
        return (
            None
            if self.epsilon is None
            else rho_for_epsilon(as_written(self.epsilon), as_written(self.delta))
        )

    @property
    def required_columns(self) -> frozenset[str]:
        return frozenset([*(self.attributes or ()), *([self.time] if self.time else [])])

    def plan(self) -> Plan:
        about = say_subgroups(self._subgroups) or ","
        needed = say_needed(self.rho, len(self._subgroups))
        note = f"predicted risk x outcome{about} by the model {self.digest[:12]}{needed}"
        return Plan("rho", (PlannedQuestion(MEASURED, self.rho, note),))

    def draft(self, *, models: int = 1) -> Draft:
        held = self._holdout
        return replace(
            super().draft(models=models),
            holdout=held,
            evaluation=self.rho if held else None,
            subgroups=self._subgroups,
        )

    def find_objection(self, question: Statistic) -> str | None:
        if (
            not isinstance(question, AskRiskCounts)
            or _hash_model(question.method, question.body, question.bodies) != self.digest
        ):
            return "it is about another model than the study's"
        return super().find_objection(question)

    def converse(self, partners: Partners) -> Conversation[Learned[RiskTable]]:
        assert self._model is not None  # `of`
        model = self._model
        evaluation = Evaluation(self._holdout, self.rho, self.positive, self._subgroups)
        dictionary = model.card.dictionary
        table = yield from ask_table(
            model, evaluation, self.query, dictionary, partners, self.way_out, self._left_out
        )
        patients = {site: round(sum(map(sum, counts))) for site, counts in table.sites.items()}
        return Learned(table, patients)


def _hash_model(method: str, body: bytes, bodies: Mapping[str, bytes] | None = None) -> str:
    """By what a study knows a model again, or those of all hospitals."""
    if bodies:
        body = msgspec.json.encode({site: _hash_model(method, bodies[site]) for site in sorted(bodies)})
    return hashlib.sha256(method.encode() + b"\n" + body).hexdigest()


def _hash_all(model: Method[Any], left_out: Mapping[str, Method[Any]] | None) -> str:
    bodies = {site: msgspec.json.encode(one.body) for site, one in (left_out or {}).items()}
    return _hash_model(model.method, b"" if bodies else msgspec.json.encode(model.body), bodies)
