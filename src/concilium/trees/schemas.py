"""What trees and the one-level model ask first, or take from the study instead, and what a private study must say.

Also what the card must say of unusual patients: classes that one site alone has, attributes that separate nobody.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError, name_some
from concilium.models.grid import CUTOFFS, ask_cutoffs, merge_cutoffs
from concilium.models.method import (
    Attributes,
    Bins,
    Delta,
    Epsilon,
    OnMisfit,
    PositiveClass,
    PrivateMethod,
    QueryText,
    ReleaseName,
    Target,
    Values,
)
from concilium.models.outcome import refuse_number
from concilium.models.private_start import CLASSES
from concilium.models.threshold import DecisionRule, find_positive
from concilium.privacy.accounting import PlannedQuestion
from concilium.privacy.shares import is_too_small
from concilium.protocol.attributes import Attribute, choose_cutoffs, present
from concilium.protocol.cohort import MOST_INTEGER_VALUES
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.questions import B, Conversation, Statistic
from concilium.protocol.releases.release import Release
from concilium.protocol.schema import (
    AskSchema,
    SchemaSeen,
    SharedSchema,
    find_cautions,
    find_numbers,
    say_left_out,
    share_schema,
    state_schema,
    state_values,
)
from concilium.records.columns import Value, label
from concilium.trees.private_growing import TreeBudget

FEW_VALUES = 5
"""Whole numbers with more values than this are cut as numbers are, where a tree is to be readable."""
PLAN_SCHEMA = PlannedQuestion("tree.schema", None, "which attributes, values and classes there are")
PLAN_CUTOFFS = PlannedQuestion("counts", None, "two histograms of numbers without bins, for cutoffs")
MOST_NAMED = 5


class TreeStudy(Protocol):
    """The parameters of a method that decide whom and what its trees ask."""

    target: str
    query: str
    bins: Mapping[str, Sequence[float]]
    attributes: Sequence[str] | None
    against_rest: ClassVar[bool]

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
    if not study.against_rest:
        refuse_number(study.target, present(value for own in seen.values() for value in own.classes))
    return seen


def settle_schema(
    study: TreeStudy,
    seen: Mapping[str, SchemaSeen],
    *,
    cutoffs: int | None = None,
    unstated: int = CUTOFFS,
    most_values: int = MOST_INTEGER_VALUES,
    constants: bool = False,
) -> Conversation[SharedSchema]:
    """The attributes that all sites have: numbers at the study's bins, or at so many quantiles on the public grid
    (`unstated`: of numbers without bins). `constants`: also those that are the same for everybody."""
    numbers, left_out = find_numbers(seen, study.bins, most_values)
    dates = {name for own in seen.values() for name in own.dates}
    grouped: list[str] = []

    def ask(attributes: tuple[Attribute, ...]) -> tuple[AskCounts, float]:
        question = AskCounts(query=study.query, target=study.target, attributes=attributes, totals=False)
        return question, 0.0

    chosen, without = yield from ask_cutoffs(
        numbers, ask, dates=dates, cutoffs=cutoffs or unstated, grouped=grouped
    )
    stated = dict(study.bins)
    shared = set.intersection(*(own.names for own in seen.values()))
    named = tuple(Attribute(name, tuple(edges)) for name, edges in stated.items() if name in shared)
    if cutoffs is not None and named:
        stated |= yield from choose_edges(ask(named)[0], cutoffs)
    bins = merge_cutoffs(stated, chosen)
    schema = share_schema(seen, bins, study.target, {**left_out, **without}, constants=constants)
    return replace(schema, grouped=tuple(grouped))


def choose_edges(question: AskCounts, cutoffs: int) -> Conversation[dict[str, list[float]]]:
    """So many of each attribute's edges, at even quantiles of a histogram."""
    histograms = split_counts(question.attributes, (yield question))
    # An attribute whose patients all lie in one bin keeps an edge: it separates nobody, and that is cheap to see.
    return {
        a.name: choose_cutoffs(histograms[a.name][:, 0], a.edges, cutoffs) or list(a.edges[:1])
        for a in question.attributes
    }


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
    on_misfit: OnMisfit = "attribute"
    positive: PositiveClass = None
    threshold: DecisionRule = "majority"

    def check(self) -> None:
        if not self.way_out.bounded:
            return
        model = f"a private {type(self).__name__}"
        if self.epsilon is None:
            raise StudyError(f"{model} needs an 'epsilon', such as 1.0")
        if self.target in self.values:
            self.find_positive(state_values(self.values[self.target]))
        elif self.positive is not None and not any(
            label(self.positive) in map(label, pair) for pair in CLASSES
        ):
            raise StudyError(f"{model} needs the classes: values = {{{self.target!r}: [...]}}")
        if is_too_small(self.budget.share()):
            raise StudyError(f"an 'epsilon' of {self.epsilon} is too small for any question to be answered")

    def find_positive(self, classes: Sequence[Value]) -> int | None:
        """Which of the classes its decision is about; None where there is nothing to decide."""
        return find_positive(self.threshold, self.target, classes, self.positive)

    def find_objection(self, question: Statistic) -> str | None:
        if isinstance(question, AskCounts) and question.sample is not None:
            return "it asks about a sample of the patients, and the study draws none"
        return super().find_objection(question)

    @property
    @abstractmethod
    def budget(self) -> TreeBudget:
        """How a private model spends its epsilon."""

    def state_schema(self) -> SharedSchema:
        """The attributes and classes of a private study."""
        return state_schema(*self.stated, self.target)

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
    slips = name_some([f"{target} = {name} at {site}" for name, site in lonely], MOST_NAMED)
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
    return [
        f"the same for every patient learned from, at every site, and so of no use: {name_some(names, MOST_NAMED)}"
    ]


def find_oddities(study: TreeStudy, schema: SharedSchema, seen: Mapping[str, SchemaSeen]) -> list[str]:
    """What a reader of the card must be warned of, besides what every run says."""
    warnings = []
    if schema.left_out:
        warnings.append(say_left_out(schema.left_out))
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
    warnings += find_cautions(seen, schema.grouped)
    floored = [site for site, own in seen.items() if own.floored]
    if floored:
        warnings.append(
            f"{', '.join(floored)}: small counts are left out there, so the tree is not that of the pooled patients"
        )
    return warnings
