"""Folds that leave sites out, learned in one conversation instead of one each (docs/methods.md, section 1.14).

Under `exact` the house sees each site's numbers, so a sum without some sites is a sum of numbers it has already. The
conversations of all folds go in step: what several of them ask is asked once, of all sites, and every fold is sent the
answers of its own. The model of a fold is the one that a house of its sites alone would learn. A site enters each
number that it releases once, however many folds use it. Patients are protected as `exact` protects them: not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from concilium.errors import HouseError, MessageError
from concilium.evaluation.leave_out import Fold
from concilium.evaluation.shared_tables import Request, SharedTables, add_up
from concilium.models.method import Method
from concilium.protocol.card import Card
from concilium.protocol.conversation import Among, Asked, Learned
from concilium.protocol.counts import AskCounts
from concilium.protocol.house import House
from concilium.protocol.messages import encode
from concilium.protocol.questions import Gathered, Summed
from concilium.protocol.run import Run, SitesChanged
from concilium.protocol.schema import SchemaSeen
from concilium.protocol.sums import read_sum

# So many folds are learned side by side; more would hold too many tables at once.
AT_ONCE = 64

M = TypeVar("M", bound=Method[Any])


@dataclass(frozen=True)
class FoldModels(Generic[M]):
    """A model for every fold; `card` is that of the conversation in which `together` of them were learned."""

    models: list[M]
    together: int
    card: Card | None


def learn_folds(
    make: Callable[[], M], folds: Sequence[Fold], open_house: Callable[[Fold | None], House]
) -> FoldModels[M]:
    """A model for every fold. `open_house` opens the house of a fold's sites, or (None) that of all sites."""
    models: dict[int, M] = {}
    with open_house(None).open(make().draft(models=max(1, len(folds)))) as run:
        shared, start = SharedAnswers(run), 0
        while start < len(folds):
            group = range(start, min(start + AT_ONCE, len(folds)))
            try:
                models |= learn_together(shared, make, {number: folds[number] for number in group})
                start = group.stop
            except SitesChanged:
                # What was learned so far is of other sites; sites only ever get fewer, so this ends.
                models, shared, start = {}, SharedAnswers(run), 0
        together = len(models)
        patients = {site.name: site.patients for model in models.values() for site in model.card.sites}
        card = run.finish(patients, [describe(together)]) if together else None
    for number, fold in enumerate(folds):
        if number not in models:
            models[number] = make().fit(open_house(fold))
    return FoldModels([models[number] for number in range(len(folds))], together, card)


def describe(folds: int) -> str:
    return (
        f"{folds} folds were learned in one conversation: every number was released, and entered in its site's ledger, "
        "once for all folds that use it"
    )


def learn_together(shared: SharedAnswers, make: Callable[[], M], folds: Mapping[int, Fold]) -> dict[int, M]:
    """The models of those folds whose questions can all be asked together."""
    conversations = {
        number: FoldConversation(make(), fold, shared.run.house) for number, fold in folds.items()
    }
    models: dict[int, M] = {}
    while conversations := {number: one for number, one in conversations.items() if one.asked is not None}:
        answers = shared.answer({number: one for number, one in conversations.items() if one.can_share})
        for number, one in list(conversations.items()):
            if number not in answers:  # it asks what cannot be shared: it is learned alone
                del conversations[number]
            elif one.send(answers[number]):
                models[number] = one.method
    return models


class FoldConversation(Generic[M]):
    """One fold's conversation; `asked` is what it waits for. It asks no site itself."""

    def __init__(self, method: M, fold: Fold, everyone: House) -> None:
        self.method, self.fold = method, fold
        house = FoldHouse(everyone, fold)
        self._run = house.open(method.draft())
        self._conversation = method.converse(self._run) if method.way_out.by_site else None
        self.asked: Asked | None = None if self._conversation is None else next(self._conversation)

    @property
    def can_share(self) -> bool:
        return self.asked is not None and not isinstance(self.asked, Among) and self.asked.merges

    def send(self, answer: Any) -> bool:
        """Go on with an answer; whether the conversation is over, and the method has its model."""
        assert self._conversation is not None
        self._run.rounds += 1
        if isinstance(answer, dict):
            self._run.sites = list(answer)
        try:
            self.asked = self._conversation.send(answer)
        except StopIteration as end:
            self.asked = None
            result: Learned[Any] = end.value
            note = (
                "one of several folds learned in one conversation; what was released is on the card of that"
            )
            card = self._run.finish(result.patients, [*result.warnings, note], result.decision)
            self.method.take(result.body, card)
            return True
        return False


class FoldHouse(House):
    """The house of one fold: its sites are some of those that the conversation asks."""

    def __init__(self, everyone: House, fold: Fold) -> None:
        super().__init__(transport=everyone.transport, identity=everyone.identity)
        self.heads, self.identities = everyone.heads, everyone.identities
        self._fold = fold

    @property
    def names(self) -> tuple[str, ...]:
        return self._fold.learn


class SharedAnswers:
    """What all folds ask, in as few questions as possible, over the sites of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._tables = SharedTables(run)

    def answer(self, folds: Mapping[int, FoldConversation[Any]]) -> dict[int, Any]:
        """What each fold asked; those that cannot be answered together are left out."""
        answers: dict[int, Any] = {}
        by_question: dict[tuple[str, bytes], Mapping[str, Any]] = {}
        requests: dict[int, Request] = {}
        for number, one in folds.items():
            asked, learn = one.asked, one.fold.learn
            assert asked is not None
            assert not isinstance(asked, Among)
            if isinstance(asked, AskCounts) and asked.classes is not None:
                if asked.sample is None:
                    requests[number] = Request(asked, frozenset(learn))
                continue
            key = (asked.kind, encode(asked))
            if key not in by_question:
                by_question[key] = self._ask(asked)
            by_site = by_question[key]
            # A site that leaves small counts out looks at the whole tree to do so: it is asked about one at a time.
            if any(isinstance(reply, SchemaSeen) and reply.floored for reply in by_site.values()):
                continue
            own = {site: by_site[site] for site in learn if site in by_site}
            if not own:
                raise HouseError("no site answered of those that this fold learns from")
            answers[number] = own if isinstance(asked, Gathered) else add_up(own.values())
        for request in requests.values():
            self._tables.meet(request)
        shareable = {n: request for n, request in requests.items() if self._tables.can_share(request)}
        for part in dict.fromkeys(request.question.part for request in shareable.values()):
            alike = {n: request for n, request in shareable.items() if request.question.part == part}
            answers |= zip(alike, self._tables.ask(list(alike.values())), strict=True)
        return answers

    def _ask(self, question: Gathered[Any] | Summed) -> dict[str, Any]:
        """One question to all sites: replies, or arrays, by site."""
        if isinstance(question, Gathered):
            return self.run.gather_replies(question)
        answers: dict[str, Any] = {}
        for site, data in self.run.gather(question).items():
            try:
                answers[site] = read_sum(data, question)
            except MessageError as error:
                raise HouseError(f"{site} answered with what was not asked for: {error}") from None
        return answers
