"""What trees and the one-level model ask first, or take from the study instead, and what a private study must say.

Also what the card must say of unusual patients: classes that one site alone has, attributes that separate nobody.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.models.method import (
    Attributes,
    Bins,
    Delta,
    Epsilon,
    PositiveClass,
    PrivateMethod,
    QueryText,
    ReleaseName,
    Target,
    Values,
)
from concilium.models.threshold import DecisionRule, find_positive
from concilium.privacy.accounting import PlannedQuestion
from concilium.privacy.shares import is_too_small
from concilium.protocol.attributes import Attribute
from concilium.protocol.conversation import B, Conversation
from concilium.protocol.counts import AskCounts
from concilium.protocol.questions import Statistic
from concilium.protocol.releases.release import Release
from concilium.protocol.schema import AskSchema, SchemaSeen, SharedSchema, find_foreign_codings, state_values
from concilium.records.columns import Value, label
from concilium.trees.private_growing import TreeBudget

PLAN_SCHEMA = PlannedQuestion("tree.schema", None, "which attributes, values and classes there are")
MOST_NAMED = 5


class TreeStudy(Protocol):
    """The parameters of a method that decide whom and what its trees ask."""

    target: str
    query: str
    bins: Mapping[str, Sequence[float]]
    attributes: Sequence[str] | None

    @property
    def way_out(self) -> Release: ...


def ask_schemas(study: TreeStudy) -> Conversation[dict[str, SchemaSeen]]:
    """What every site can be asked about; under masks it does not say how many patients it has."""
    seen: dict[str, SchemaSeen] = yield AskSchema(
        query=study.query,
        target=study.target,
        bins={name: list(edges) for name, edges in study.bins.items()},
        attributes=None if study.attributes is None else list(study.attributes),
        count_patients=study.way_out.by_site,
    )
    return seen


@dataclass(eq=False, repr=False)
class TreeMethod(PrivateMethod[B]):
    """The parameters that a tree and the one-level model share, and what a private study of either must say: a private
    model learns nothing from the data but noisy counts."""

    target: Target
    query: QueryText = ""
    release: ReleaseName = "exact"
    _: KW_ONLY
    epsilon: Epsilon = None
    delta: Delta = "1/1000000"
    values: Values = field(default_factory=dict)
    bins: Bins = field(default_factory=dict)
    attributes: Attributes = None
    positive: PositiveClass = None
    decision: DecisionRule = "majority"

    def check(self) -> None:
        if not self.way_out.bounded:
            return
        model = f"a private {type(self).__name__}"
        if self.epsilon is None:
            raise StudyError(f"{model} needs an 'epsilon', such as 1.0")
        if self.target not in self.values:
            raise StudyError(f"{model} needs the classes: values = {{{self.target!r}: [...]}}")
        self.find_positive(state_values(self.values[self.target]))
        stated = {*self.stated[0], *self.stated[1]}
        unsaid = sorted(set(self.attributes or ()) - stated)
        if unsaid:
            raise StudyError(f"{model} needs 'values' or 'bins' for {', '.join(map(repr, unsaid))}")
        if not stated - {self.target}:
            raise StudyError(f"{model} needs its attributes: give 'values' of codes, 'bins' of numbers")
        if is_too_small(self.budget.share()):
            raise StudyError(f"an 'epsilon' of {self.epsilon} is too small for any question to be answered")

    def find_positive(self, classes: Sequence[Value]) -> int | None:
        """Which of the classes its decision is about; None where there is nothing to decide."""
        return find_positive(self.decision, self.target, classes, self.positive)

    def find_objection(self, question: Statistic) -> str | None:
        if isinstance(question, AskCounts) and question.sample is not None:
            return "it asks about a sample of the patients, and the study draws none"
        return super().find_objection(question)

    @property
    @abstractmethod
    def budget(self) -> TreeBudget:
        """How a private model spends its epsilon."""

    @property
    def stated(self) -> tuple[dict[str, Sequence[Value]], dict[str, Sequence[float]]]:
        """The values and bins of a private study, of the chosen attributes if some are."""
        everything = {*self.values, *self.bins}
        chosen = everything if self.attributes is None else {*self.attributes, self.target}
        values = {name: listed for name, listed in self.values.items() if name in chosen}
        return values, {name: edges for name, edges in self.bins.items() if name in chosen}


def find_lonely_classes(target: str, classes: Mapping[str, Sequence[Value]]) -> list[str]:
    """A caution if a class occurs at one of several sites only: often it is a slip of the pen, Yes for yes."""
    holders: dict[str, list[str]] = {}
    for site, listed in classes.items():
        for name in {label(value) for value in listed}:
            holders.setdefault(name, []).append(site)
    lonely = sorted((name, sites[0]) for name, sites in holders.items() if len(sites) == 1)
    if len(classes) < 2 or not lonely:
        return []
    slips = _name_some([f"{target} = {name} at {site}" for name, site in lonely])
    return [f"values of the target that one site alone has: {slips}; check how they are written"]


def find_constant(table: NDArray[np.int64], attributes: Sequence[Attribute]) -> list[str]:
    """The attributes of which all patients at the root have the same value, by the root's table [cell, class]."""
    constant, start = [], 1
    everyone = int(table[0].sum())
    for attribute in attributes:
        patients = table[start : start + attribute.size].sum(axis=1)
        # A site that leaves small counts out may show no value at all: that does not make it constant.
        if everyone and patients.max(initial=0) == everyone:
            constant.append(attribute.name)
        start += attribute.size
    return constant


def say_constant(names: Sequence[str]) -> list[str]:
    """A caution about attributes that separate nobody."""
    if not names:
        return []
    return [f"the same for every patient learned from, at every site, and so of no use: {_name_some(names)}"]


def _name_some(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def find_oddities(study: TreeStudy, schema: SharedSchema, seen: Mapping[str, SchemaSeen]) -> list[str]:
    """What a reader of the card must be warned of, besides what every run says."""
    warnings = []
    if schema.left_out:
        warnings.append(
            "left out: " + "; ".join(f"{name} ({why})" for name, why in sorted(schema.left_out.items()))
        )
    unknown = [
        name for name in (study.attributes or study.bins) if all(name not in s.names for s in seen.values())
    ]
    if unknown:
        warnings.append(f"no site knows {', '.join(map(repr, unknown))}")
    if not schema.attributes:
        warnings.append("no attribute is known at every site: the model is a single leaf")
    if schema.classes.size == 1:
        whose = f" of the query {study.query!r}" if study.query else ""
        warnings.append(
            f"every patient{whose} has {study.target} = {label(schema.classes.values[0])}: there is nothing to learn"
        )
    warnings += find_foreign_codings(seen)
    floored = [site for site, own in seen.items() if own.floored]
    if floored:
        warnings.append(
            f"{', '.join(floored)}: small counts are left out there, so the tree is not that of the pooled patients"
        )
    return warnings
