"""What trees and the one-level model ask first, or are told by the study instead, and what a private study must say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Protocol

from concilium.errors import StudyError
from concilium.federation.conversation import Conversation
from concilium.federation.releases.release import Release
from concilium.federation.schema import AskSchema, SchemaSeen, SharedSchema, state_schema
from concilium.privacy.accounting import PlannedQuestion, epsilon_from_rho, rho_for_epsilon, say_epsilon
from concilium.records.columns import Value

PLAN_SCHEMA = PlannedQuestion("tree.schema", None, "which attributes, values and classes there are")


class TreeStudy(Protocol):
    """The parameters of a method that decide whom and what its trees ask."""

    target: str
    query: str
    bins: Mapping[str, Sequence[float]]
    attributes: Sequence[str] | None

    @property
    def way_out(self) -> Release: ...


class PrivateTreeStudy(TreeStudy, Protocol):
    """The same where it may be private."""

    method: ClassVar[str]
    epsilon: Any
    delta: Any
    values: Mapping[str, Sequence[Value]]


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


def choose_lists(study: PrivateTreeStudy) -> tuple[dict[str, Sequence[Value]], dict[str, Sequence[float]]]:
    """The values and bins of a private study, of the chosen attributes if some are."""
    chosen = {*study.values, *study.bins} if study.attributes is None else {*study.attributes, study.target}
    values = {name: listed for name, listed in study.values.items() if name in chosen}
    return values, {name: edges for name, edges in study.bins.items() if name in chosen}


def build_schema(study: PrivateTreeStudy) -> SharedSchema:
    """The schema of a private study: all of it comes from the study, nothing from the records."""
    return state_schema(*choose_lists(study), study.target)


def find_rho(study: PrivateTreeStudy) -> Fraction:
    """What a private study costs."""
    assert study.epsilon is not None
    return rho_for_epsilon(study.epsilon, study.delta)


def find_epsilon(study: PrivateTreeStudy) -> float:
    """The same as an epsilon."""
    return epsilon_from_rho(find_rho(study), study.delta)


def say_price(study: PrivateTreeStudy) -> str:
    """What the card says first of a private model."""
    epsilon = say_epsilon(find_epsilon(study))
    return f"differential privacy per patient: epsilon = {epsilon} at delta = {study.delta}"


def check_private(study: PrivateTreeStudy) -> None:
    """A private model learns nothing from the data but noisy counts: StudyError unless the study says all the rest."""
    model = f"a private {type(study).__name__}"
    if study.epsilon is None:
        raise StudyError(f"{model} needs an 'epsilon', such as 1.0")
    if study.target not in study.values:
        raise StudyError(f"{model} needs the classes: values = {{{study.target!r}: [...]}}")
    values, bins = choose_lists(study)
    unsaid = sorted(set(study.attributes or ()) - {*values, *bins})
    if unsaid:
        raise StudyError(f"{model} needs 'values' or 'bins' for {', '.join(map(repr, unsaid))}")
    if not {*values, *bins} - {study.target}:
        raise StudyError(f"{model} needs its attributes: give 'values' of codes, 'bins' of numbers")


def say_too_small(study: PrivateTreeStudy) -> StudyError:
    return StudyError(f"an 'epsilon' of {study.epsilon} is too small for any question to be answered")
