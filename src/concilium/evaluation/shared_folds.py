"""Folds that leave sites out, learned in one conversation instead of one each (DIDT chapter 6; METHODS.md section 1).

Under `exact` the house sees each site's numbers, so a sum without some sites is a sum of numbers it has already. All
folds are learned side by side, round by round: what several of them ask is asked once, of all sites, and every fold
adds up the answers of its own. The model of a fold is the one that a house of its sites alone would learn. A site
enters each number that it releases once, however many folds use it. Patients are protected as `exact` protects
them: not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, MessageError
from concilium.evaluation.leave_out import Fold, Predictor
from concilium.evaluation.shared_tables import Request, SharedTables, add_up
from concilium.evaluation.turns import Finished, Turn
from concilium.federation.arrays import Counts, unpack
from concilium.federation.card import Card
from concilium.federation.house import House
from concilium.federation.messages import Release, decode, encode
from concilium.federation.run import Run, SitesChanged
from concilium.trees.crosstables import AskCrosstables
from concilium.trees.schema import read_schema

# So many folds are learned side by side; more would hold too many tables at once.
AT_ONCE = 64


class Learner(Predictor, Protocol):
    """A method that learns with a house."""

    def fit(self, house: House) -> Self: ...


M = TypeVar("M", bound=Learner)


class CannotShare(Exception):
    """What a fold asks cannot be asked of all sites: it is learned alone."""


@dataclass(frozen=True)
class Learned(Generic[M]):
    """A model for every fold; `card` is that of the conversation in which `together` of them were learned."""

    models: list[M]
    together: int
    card: Card | None


@dataclass(frozen=True)
class Whole:
    """A question as it stands; wanted are the answers by site."""

    kind: str
    question: msgspec.Struct


def learn_folds(
    make: Callable[[], M], folds: Sequence[Fold], open_house: Callable[[Fold | None], House]
) -> Learned[M]:
    """A model for every fold. `open_house` opens the house of a fold's sites, or (None) that of all sites."""
    models: dict[int, M] = {}
    with open_house(None).open("folds", "exact", {"left_out": [fold.left_out for fold in folds]}) as run:
        tables, done = SharedTables(run), 0
        while done < len(folds):
            group = range(done, min(done + AT_ONCE, len(folds)))
            try:
                models |= learn_together(run, tables, make, {number: folds[number] for number in group})
                done = group.stop
            except SitesChanged:
                # What was learned so far is of other sites; sites only ever get fewer, so this ends.
                models, tables, done = {}, SharedTables(run), 0
        together = len(models)
        patients = {site.name: site.patients for model in models.values() for site in model.card.sites}
        card = run.finish(patients, [describe(together)]) if together else None
    for number, fold in enumerate(folds):
        if number not in models:
            models[number] = make().fit(open_house(fold))
    return Learned([models[number] for number in range(len(folds))], together, card)


def describe(folds: int) -> str:
    return (
        f"{folds} folds were learned in one conversation: every number was released, and entered in its site's ledger, "
        "once for all folds that use it"
    )


def learn_together(
    run: Run, tables: SharedTables, make: Callable[[], M], folds: Mapping[int, Fold]
) -> dict[int, M]:
    """The models of those folds whose questions can be asked together."""

    def work(fold: Fold) -> Callable[[Turn[M]], M]:
        return lambda turn: make().fit(FoldHouse(run.house, fold, turn))

    turns = {number: Turn(work(fold)) for number, fold in folds.items()}
    models: dict[int, M] = {}
    try:
        # What each fold is told next; the first thing is to begin.
        answers: dict[int, Any] = dict.fromkeys(turns, None)
        while answers:
            asked = {}
            for number, answer in answers.items():
                said = advance(turns[number], answer)
                if isinstance(said, Finished):
                    models[number] = said.result
                elif said is not None:
                    asked[number] = said
            answers = answer_all(run, tables, asked)
    finally:
        for turn in turns.values():
            turn.abandon()
    return models


def advance(turn: Turn[M], answer: Any) -> Any:
    """Let a fold go on until it asks or is finished; None where it cannot share, and ends here."""
    try:
        return turn.begin() if answer is None else turn.tell(answer)
    except CannotShare:
        return None


def answer_all(run: Run, tables: SharedTables, asked: Mapping[int, Whole | Request]) -> dict[int, Any]:
    """What each fold asked, in as few questions as possible."""
    answers: dict[int, Any] = {}
    gathered: dict[tuple[str, bytes], dict[str, bytes]] = {}
    for number, question in asked.items():
        if isinstance(question, Whole):
            same = (question.kind, encode(question.question))
            if same not in gathered:
                gathered[same] = run.gather(question.kind, question.question)
            answers[number] = gathered[same]
    requests = {number: request for number, request in asked.items() if isinstance(request, Request)}
    for request in requests.values():
        tables.meet(request)
    shared = {number: request for number, request in requests.items() if tables.can_share(request)}
    answers |= dict.fromkeys(requests.keys() - shared.keys(), CannotShare())
    for part in dict.fromkeys(request.question.part for request in shared.values()):
        alike = {number: request for number, request in shared.items() if request.question.part == part}
        answers |= zip(alike, tables.ask(list(alike.values())), strict=True)
    return answers


class FoldHouse(House):
    """The house of one fold: it asks no site itself, but has the conversation ask."""

    def __init__(self, everyone: House, fold: Fold, turn: Turn[Any]) -> None:
        super().__init__(transport=everyone.transport)
        self.heads, self.identities = everyone.heads, everyone.identities
        self._fold, self._turn = fold, turn

    @property
    def names(self) -> tuple[str, ...]:
        return self._fold.learn

    def open(self, method: str, release: Release, parameters: Mapping[str, Any]) -> Run:
        # Experts of an ensemble learn from samples, and sites opt out of it: each fold is a conversation of its own.
        if release != "exact" or method != "tree":
            raise CannotShare
        return FoldRun(self, method, parameters, self._turn)


class FoldRun(Run):
    """A run whose questions are asked together with those of the other folds."""

    def __init__(self, house: FoldHouse, method: str, parameters: Mapping[str, Any], turn: Turn[Any]) -> None:
        super().__init__(house, method, "exact", parameters)
        self._learn = tuple(self.sites)
        self._turn = turn

    def gather(
        self,
        kind: str,
        question: msgspec.Struct,
        templates: Mapping[str, bytes] | None = None,
        *,
        live: bool = False,
    ) -> dict[str, bytes]:
        if templates:
            raise CannotShare
        self.rounds += 1
        everyone: dict[str, bytes] = self._turn.ask(Whole(kind, question))
        bodies = {site: everyone[site] for site in self._learn if site in everyone}
        if not bodies:
            raise HouseError("no site answered of those that this fold learns from")
        # A site that leaves small counts out looks at the whole tree to do so: it is asked about one at a time.
        if kind == "tree.schema" and any(read_schema(body).floored for body in everyone.values()):
            raise CannotShare
        self.sites = list(bodies)
        return bodies

    def add_up(
        self,
        kind: str,
        question: msgspec.Struct,
        shape: tuple[int, ...],
        templates: Mapping[str, bytes] | None = None,
    ) -> NDArray[np.int64]:
        if templates and isinstance(question, AskCrosstables):
            self.rounds += 1
            counts: NDArray[np.int64] = self._turn.ask(Request(question, templates, frozenset(self._learn)))
            return counts
        try:
            bodies = self.gather(kind, question, templates)
            return add_up(unpack(decode(body, Counts).counts, shape) for body in bodies.values())
        except MessageError as error:
            raise HouseError(f"a site answered with what cannot be added up: {error}") from None

    def finish(self, patients: Mapping[str, int | None], warnings: Iterable[str] = ()) -> Card:
        said = "one of several folds learned in one conversation; what was released is on the card of that"
        return super().finish(patients, [*warnings, said])
