"""The closed set of questions a house may ask. There is no other way to ask a site anything.

A kind is a msgspec struct that says what it would release and computes it from a cohort; it lives with its
method, and is named here so that a site can list, load and refuse it without knowing the method.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.closed_lists import KINDS, load
from concilium.errors import MessageError, nearest
from concilium.federation.cohort import Cohort
from concilium.federation.messages import Envelope, decode

MOST_CHARACTERS = 1000
MOST_REMEMBERED = 1 << 16  # bytes of a question


class Gathered(msgspec.Struct, frozen=True):
    """A body that the house gathers site by site; `numbers` says how many numbers about patients are in it."""

    @property
    def numbers(self) -> int:
        return 0


class Question(Protocol):
    """What every kind of question tells the gate."""

    releases: ClassVar[frozenset[str]]

    def check(self, release: str) -> None:
        """MessageError unless the question is consistent in itself, of bearable size, and fit for this release."""


class Statistic(Question, Protocol):
    """A question about patients: a query selects them, and `target` must be known for each."""

    additive: ClassVar[bool]
    query: str
    target: str

    @property
    def noise(self) -> Fraction:
        """Private only: the variance of the noise that the sum is to have."""

    @property
    def sensitivity_squared(self) -> Fraction:
        """Private only: the squared L2 norm of what one patient can change, worked out by the site itself."""

    @property
    def numbers(self) -> int:
        """How many numbers an additive answer holds."""

    @property
    def largest(self) -> int:
        """Masked only: no number of an additive answer is beyond this, whoever the patients are."""

    def compute(self, cohort: Cohort, template: bytes) -> Gathered | NDArray[np.unsignedinteger]:
        """The statistic: an array of counts, which the house adds up over sites, or a struct it gathers."""


def open_question(envelope: Envelope) -> Question:
    """The question inside an envelope, checked; MessageError if its kind is unknown or its body malformed."""
    if len(envelope.body) > MOST_REMEMBERED:
        return read_question(envelope.kind, envelope.release, envelope.body)
    return read_again(envelope.kind, envelope.release, envelope.body)


def read_question(kind: str, release: str, body: bytes) -> Question:
    """The question of this kind in these bytes, fit for this release."""
    place = KINDS.get(kind)
    if place is None:
        raise MessageError(f"there is no kind of question {kind[:60]!r}{nearest(kind[:60], KINDS)}")
    question = cast(Question, decode(body, load(place)))
    if release not in question.releases:
        raise MessageError(f"a question of kind {kind!r} cannot be released as {release!r}")
    if len(getattr(question, "target", "")) > MOST_CHARACTERS:
        raise MessageError(f"the name of an attribute may have at most {MOST_CHARACTERS} characters")
    question.check(release)
    return question


# All sites of a process are asked the same: a question, which nobody changes, is read once for all of them.
read_again = lru_cache(maxsize=8)(read_question)
