"""How a method learns: by a conversation, a generator that yields questions and is sent what they brought.

A gathered question is sent the answers by site, a summed one the sum over the sites, of the question's shape. The
method asks nobody itself: a house drives the conversation (`Run.converse`), and so do folds that learn several models
in step (evaluation/folds.py). A conversation asks the same questions in the same order when it is sent the same
answers, so that one that was interrupted is taken up again from the journal by beginning it anew.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from concilium.protocol.questions import Gathered, Summed

T = TypeVar("T")
B = TypeVar("B", bound=msgspec.Struct)


@dataclass(frozen=True)
class Among:
    """A summed question to some of the sites: the house must see each site's numbers anyway."""

    question: Summed
    sites: Collection[str]


Asked: TypeAlias = Gathered[Any] | Summed | Among
# What is sent is dict[str, Reply] for a gathered question, NDArray[np.int64] for a summed one.
Conversation: TypeAlias = Generator[Asked, Any, T]


class Partners(Protocol):
    """What a conversation may know of the sites that it talks to."""

    @property
    def hospitals(self) -> int:
        """How many hospitals take part, those behind a region among them."""

    @property
    def bytes(self) -> int:
        """How many bytes have gone to and fro."""

    @property
    def answered(self) -> int:
        """How many of these were what answers hold, without the envelopes and signatures around it."""

    @property
    def least_variance(self) -> Fraction:
        """The least noise that a private sum can have: a share below it would be refused."""

    @property
    def noise_factor(self) -> Fraction:
        """The variance of a private sum, in units of what was asked for: one or more (privacy/shares.py)."""

    def variance(self, rho: Fraction, squared_sensitivity: Fraction | int) -> Fraction:
        """The noise of a private sum that costs rho, or less where even the least noise is more than that."""


@dataclass(frozen=True)
class Learned(Generic[B]):
    """What a conversation ends with: what the model file holds, how many patients each site says it has, what the card
    has to warn of, and what it says of the decision (decision.py)."""

    body: B
    patients: Mapping[str, int | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    decision: str = ""
