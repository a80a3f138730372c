"""What every listed method really asks of a hospital, written down message by message in small studies, for adversaries
to change, repeat and search. A new method, release or kind is among it without a new line here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any
from unittest import mock

import concilium as cc
from concilium.protocol.messages import Answer, Envelope, Refusal, open_envelope, open_reply
from concilium.protocol.questions import Question, open_question
from concilium.registry import PROPOSED
from concilium.rulefit import fedda
from concilium.statistics import cox
from concilium.temporal import outcome_fit
from concilium.temporal.outcome_fit import RuleEffect
from contract.patients import SITES, VARIANTS, make, make_rows, method_types, open_sites, proposed_types

# Nothing of what an adversary asks is stopped by an allowance: what stops it must be the rule that is tested.
GENEROUS = cc.Policy(budget=cc.Budget("unlimited"))
ROWS = {name: make_rows(30 + 2 * place, place) for place, name in enumerate(SITES)}
FEW_TREES = {"trees": 5, "max_depth": 2}
ENOUGH = 100.0  # epsilon at which a dozen patients whose outcome changes teach a student
ROUNDS = 3  # of a solver that asks the same hundreds of times
# Parts of the patients, and cutoffs that are chosen (with noise, under masks), are asked about when a study says so.
STUDIES = [
    *VARIANTS,
    *(("tree", release, {"prune": 0.3, "cutoffs": 2}) for release in method_types()["tree"].releases),
    ("rulefit", "masked", {"solver": "fedda", "penalty": 0.01}),
    ("rulefit", "masked", {"cutoffs": 1}),
    ("rulefit", "exact", {"cutoffs": 1, "noise": "laplace"}),
    ("voting-trees", "masked", {"imbalance": 1, "max_depth": 2}),
]


@dataclass(frozen=True)
class Exchange:
    """One message to a site and what it replied."""

    site: str
    message: bytes
    reply: bytes

    @cached_property
    def envelope(self) -> Envelope:
        return open_envelope(self.message)

    @cached_property
    def question(self) -> Question:
        return open_question(self.envelope)

    @cached_property
    def opened(self) -> Answer | Refusal:
        return open_reply(self.reply)

    def __hash__(self) -> int:
        return hash(self.message)


@dataclass(eq=False)
class Relay:
    """A site whose exchanges are written down; `send` and `give_back` may be another's, who sits in between."""

    site: Any
    exchanges: list[Exchange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self.identity, self.introduce = self.site.name, self.site.identity, self.site.introduce

    def answer(self, message: bytes) -> bytes:
        reply = self.give_back(message, self.site.answer(message))
        self.exchanges.append(Exchange(self.name, message, reply))
        return reply

    def give_back(self, message: bytes, reply: bytes) -> bytes:
        return reply


@dataclass(eq=False)
class Recording:
    """A study that ran: its method, its hospitals, its house, and all that passed between them, in order."""

    name: str
    release: str
    method: Any
    sites: list[cc.Site]
    house: cc.House
    exchanges: list[Exchange]

    def at(self, site: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.site == site]

    def few_of_each_kind(self, site: str, most: int = 2) -> list[Exchange]:
        """The first questions of each kind, and release, to one site."""
        few: dict[tuple[str, str], list[Exchange]] = {}
        for exchange in self.at(site):
            few.setdefault((exchange.envelope.kind, exchange.envelope.release), []).append(exchange)
        return [exchange for listed in few.values() for exchange in listed[:most]]


def make_small(name: str, release: str, **more: Any) -> Any:
    """A method with what it declares of the study, as little work as may be."""
    method = proposed_types()[name]
    bounded: dict[str, Any] = {} if release == "private" else FEW_TREES
    if name == "experts" and release == "private" and "answers" not in more:
        bounded = {"epsilon": ENOUGH}
    return make(method, release, **{**bounded, **more})


def fit_all(effects: Sequence[RuleEffect]) -> list[int]:
    return list(range(len(effects)))


@contextmanager
def few_rounds() -> Iterator[None]:
    """The same for as long as a test needs it. Rules are fitted together though none is sure to say something, and
    hazards though noise may hide all events: so few patients would leave that to chance, and a kind of question."""
    with (
        mock.patch.dict(fedda.fit.__kwdefaults__, rounds=ROUNDS),
        mock.patch.object(outcome_fit, "choose_fitted", fit_all),
        mock.patch.object(cox, "SURELY", -math.inf),
    ):
        yield


def run(name: str, release: str, more: dict[str, Any], sites: list[cc.Site], **options: Any) -> Recording:
    """The method learned from these sites, and all that was said."""
    exchanges: list[Exchange] = []
    house = cc.House([Relay(site, exchanges) for site in sites], timeout=600, **options)
    with few_rounds():
        method = make_small(name, release, **more).fit(house)
    return Recording(name, release, method, sites, house, exchanges)


@cache
def record(place: int) -> Recording:
    """The study at this place of STUDIES, run once for all tests; whoever uses it leaves its sites as they were."""
    name, release, more = STUDIES[place]
    return run(name, release, more, open_sites(ROWS, policy=GENEROUS))


def describe(study: tuple[str, str, dict[str, Any]]) -> str:
    name, release, more = study
    return "-".join([name, release, *more])


PLACES = range(len(STUDIES))
NAMES = [describe(study) for study in STUDIES]
assert {name for name, _, _ in STUDIES} == set(PROPOSED)
