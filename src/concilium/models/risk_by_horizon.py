"""Learn the risk of an event by a horizon, with any method for yes or no (protocol/followed_outcome.py).

`at` makes a study one of survival: the target says whether the event happened, `time` when. One more question comes
first, how many patients had the event or were censored in each cell of time up to the horizon. Everything that the
method asks after it is about outcomes by the horizon, and the method needs to know nothing of it. A private study pays
a twentieth of its price for that question: one patient is in one cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, StudyError, name_some
from concilium.models.explanation import Explanation
from concilium.models.follow_up import Followed
from concilium.models.method import PrivateMethod
from concilium.models.private_start import CLASSES
from concilium.parameters import Parameter, name, number
from concilium.privacy.accounting import Plan, PlannedQuestion, epsilon_from_rho, rho_for_epsilon
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.followed_outcome import FollowedOutcome, find_kept
from concilium.protocol.questions import (
    Among,
    Asked,
    BySite,
    Conversation,
    Gaussian,
    Learned,
    Partners,
    Statistic,
)
from concilium.protocol.schema import name_rest, state_values
from concilium.records.columns import Value, label

Time = Annotated[
    str,
    Parameter(
        "an attribute's name",
        name,
        "the time to the event, or to the end of follow-up; the target says which of them it is",
        "study",
    ),
]
Horizon = Annotated[
    float | None,
    Parameter(
        "a time above 0",
        number(lambda time: 0 < time < 1e15),
        "predict the risk of the event by this time; None: by the last time of `grid`, or else the last to which a "
        "tenth of the patients are followed",
    ),
]
RiskHorizon = Annotated[
    float | None,
    Parameter(
        "a time above 0",
        number(lambda time: 0 < time < 1e15),
        "predict the risk of `positive` by this `time`, counting the censored; None: the target is known of all",
    ),
]
SHARE_OF_FOLLOW_UP = Fraction(1, 20)
# Fewer patients who are followed to the horizon, or have the event, than this many deviations of noise are none.
DEVIATIONS = 3.0
FEW_FOLLOWED = 0.1
# Of so many patients of a hospital somebody is followed as long as at others.
ENOUGH = 20

B = TypeVar("B", bound=msgspec.Struct)
Floats = NDArray[np.float64]


class RiskByHorizon(PrivateMethod[B]):
    """A method for yes or no that learns from patients who were followed for different times, where `at` is stated."""

    time: str
    at: float | None
    positive: Any

    def converse_known(self, partners: Partners) -> Conversation[Learned[B]]:
        """What the method asks about outcomes that are known."""
        raise NotImplementedError

    def plan_learning(self) -> Plan:
        """What that costs."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at is None:
            return
        if self.positive is None:
            raise StudyError(
                f"the risk by {self.time} = {self.at:g} is that of an event: say which value of {self.target!r} it is, "
                "positive = ..."
            )
        if self.time == self.target or self.time in (getattr(self, "attributes", None) or ()):
            raise StudyError(
                f"{self.time!r} is the time of the event, and cannot be the target or among the 'attributes'"
            )

    @property
    def horizon(self) -> Followed | None:
        """Up to where it learns risks; None where no time plays a part."""
        return None if self.at is None else Followed(self.time, float(self.at))

    @property
    def followed(self) -> Followed | None:
        told: Followed | None = getattr(self.body, "followed", None)
        return told

    @property
    def rho_in_all(self) -> Fraction:
        """What `epsilon` at `delta` buys, with the first question."""
        return rho_for_epsilon(self.epsilon, self.delta)

    @property
    def rho(self) -> Fraction:
        return self.rho_in_all * (1 - (SHARE_OF_FOLLOW_UP if self.at and self.way_out.bounded else 0))

    @property
    def epsilon_of_rho(self) -> float:
        return epsilon_from_rho(self.rho_in_all, self.delta)

    def plan(self) -> Plan:
        plan = self.plan_learning()
        if self.at is None:
            return plan
        cost = self.rho_in_all * SHARE_OF_FOLLOW_UP if self.way_out.bounded else None
        first = PlannedQuestion(
            "counts", cost, f"events and censored patients up to {self.time} = {self.at:g}"
        )
        return Plan(plan.currency, (first, *plan.questions))

    def converse(self, partners: Partners) -> Conversation[Learned[B]]:
        horizon = self.horizon
        if horizon is None:
            return (yield from self.converse_known(partners))
        outcome, warnings = yield from self._find_outcome(horizon, partners)
        learned = yield from _ask_about(self.converse_known(partners), outcome)
        body = msgspec.structs.replace(learned.body, followed=horizon)
        return replace(learned, body=body, warnings=[*learned.warnings, *warnings])

    def _find_outcome(
        self, horizon: Followed, partners: Partners
    ) -> Conversation[tuple[FollowedOutcome, list[str]]]:
        """The outcome by the horizon, by a table of all patients."""
        bounded = self.way_out.bounded
        times = horizon.cut(noisy=bounded)
        variance = partners.variance(self.rho_in_all * SHARE_OF_FOLLOW_UP, 1) if bounded else Fraction(0)
        question = AskCounts(
            query=self.query,
            target=self.target,
            attributes=(Attribute(self.time, (0.0, *times)),),
            classes=Attribute(self.target, (), (self.positive,), missing=False),
            totals=False,
            noise=Gaussian(str(variance)) if bounded else None,
        )
        warnings: list[str] = []
        if self.way_out.by_site:
            answers = yield BySite(question)
            table = sum(answers.values(), np.zeros(question.shape, dtype=np.int64))
            enough = {site: own[0] for site, own in answers.items() if own[0].sum() >= ENOUGH}
            short = [site for site, own in enough.items() if not own[-1].any()]
            none = [site for site, own in enough.items() if not own[:, 0].any()]
            if none and len(none) < len(answers):
                warnings.append(
                    f"nobody at {name_some(none, 5)} has {self.target} = {label(self.positive)}: is it coded otherwise "
                    "there?"
                )
            if short and len(short) < len(answers):
                warnings.append(
                    f"nobody at {name_some(short, 5)} is followed to {horizon}: is {self.time!r} in another unit there?"
                )
        else:
            table = yield question
        noise = math.sqrt(float(variance) * float(partners.noise_factor)) if bounded else 0.0
        outcome, said = self._read_table(horizon, times, np.maximum(table[0].astype(np.float64), 0.0), noise)
        return outcome, [*said, *warnings]

    def _read_table(
        self, horizon: Followed, times: tuple[float, ...], table: Floats, noise: float
    ) -> tuple[FollowedOutcome, list[str]]:
        unknown, inside, later = table[:2].sum(), table[2:-1], float(table[-1].sum())
        events, censored = inside[:, 0], inside[:, 1]
        everyone, happened = float(inside.sum()) + later, float(events.sum())
        least = DEVIATIONS * noise
        if everyone <= least * math.sqrt(table.size):
            raise HouseError(
                f"nobody has a {horizon.time!r} that is a number from 0 on"
                + (", or noise hides them: raise epsilon" if noise else "")
            )
        if happened <= least * math.sqrt(len(events)):
            raise HouseError(
                f"nobody has {self.target} = {label(self.positive)} by {horizon}: there is nothing to "
                "learn; take a later 'at', or look at how times and events are coded"
            )
        if later <= least:
            raise HouseError(
                f"nobody is followed to {horizon}: take an earlier 'at', or look at the unit of "
                f"{horizon.time!r}"
            )
        kept = find_kept(events, censored, later)
        stays = float(events @ kept)
        warnings = [
            f"the risk is that by {horizon}: {censored.sum() / everyone:.0%} of the patients were censored "
            f"before and are left out, and so are {1 - stays / happened:.0%} of those with the event, as many as would "
            "have been censored"
        ]
        if later < FEW_FOLLOWED * everyone:
            warnings.append(
                f"only {later / everyone:.0%} of the patients are followed to {horizon}: an earlier 'at' "
                "says more"
            )
        if unknown > max(least, 0.0):
            warnings.append(f"{unknown:.0f} patients with a missing or negative {horizon.time} are left out")
        rest = self._name_rest()
        positive = label(self.positive) if isinstance(rest, str) else self.positive
        return FollowedOutcome(
            time=horizon.time, positive=positive, rest=rest, times=times, kept=tuple(kept)
        ), warnings

    def _name_rest(self) -> Value:
        """What patients without the event have: the other of two values that are stated or common, or not the event."""
        stated = state_values(self._stated("values").get(self.target, ()))
        for pair in (stated, *CLASSES):
            others = [one for one in pair if label(one) != label(self.positive)]
            if len(pair) == 2 and len(others) == 1:
                return others[0]
        return name_rest(self.positive)

    @property
    def needed_columns(self) -> frozenset[str]:
        return super().needed_columns | ({self.time} if self.at is not None else set())

    def find_objection(self, question: Statistic) -> str | None:
        outcome = question.followed or None
        if outcome is not None:
            agreed = self.horizon
            if agreed is None or (outcome.time, outcome.times[-1]) != (agreed.time, agreed.horizon):
                return "its outcome is one by another time or horizon than the study's"
            if label(outcome.positive) != label(self.positive) or label(outcome.rest) != label(
                self._name_rest()
            ):
                return "its outcome has other values than the study's"
        elif self.at is not None and not question.measures and not self.asks_times(question):
            return "it is about outcomes at any time, and the study about those by a horizon"
        return super().find_objection(question)

    def asks_times(self, question: Statistic) -> bool:
        """Whether it is the question about how long patients were followed."""
        return (
            self.at is not None
            and isinstance(question, AskCounts)
            and [one.name for one in question.attributes] == [self.time]
        )

    def _find_foreign(self, question: Statistic) -> str | None:
        horizon = self.horizon
        if horizon is None or question.followed or not self.asks_times(question):
            return super()._find_foreign(question)
        (attribute,) = question.attributes  # type: ignore[attr-defined]
        allowed = [(0.0, *horizon.cut(noisy=noisy)) for noisy in (False, True)]
        return None if attribute.edges in allowed else "it cuts the time elsewhere"

    def explain(self, patient: Mapping[str, Any], *, anyway: bool = False) -> Explanation:
        said = super().explain(patient, anyway=anyway)
        if self.followed is None or not said.sentences or said.prediction is None:
            return said
        note = self._say_horizon()
        first, *others = said.sentences
        return replace(said, notes=(note, *said.notes), sentences=(first, note, *others))

    def text(self) -> str:
        return "\n".join(filter(None, [super().text(), self._say_horizon()]))

    def _say_horizon(self) -> str:
        return "" if self.followed is None else f"The risk is that by {self.followed}."

    @property
    def names_classes(self) -> bool:
        return getattr(self.body, "followed", None) is None and super().names_classes


def _ask_about(conversation: Conversation[Learned[B]], outcome: FollowedOutcome) -> Conversation[Learned[B]]:
    """The same conversation with every question about this outcome."""
    try:
        asked = next(conversation)
        while True:
            asked = conversation.send((yield _stamp(asked, outcome)))
    except StopIteration as end:
        learned: Learned[B] = end.value
        return learned


def _stamp(asked: Asked, outcome: FollowedOutcome) -> Asked:
    if isinstance(asked, BySite | Among):
        return replace(asked, question=_stamp(asked.question, outcome))  # type: ignore[arg-type]
    return msgspec.structs.replace(asked, followed=outcome)
