"""What a house may ask: every kind declares itself, and there is no other way to ask a site anything.

A kind is a msgspec struct that says its name, the releases it may have, what it reads, what it computes from a cohort,
and how a region answers it for its sites. What is *gathered* comes back site by site, what is *summed* is added up, and
of what is *noisy* the site itself works out the price. `closed_lists.KINDS` lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.closed_lists import KINDS, load
from concilium.errors import MessageError, nearest
from concilium.federation.attributes import Attribute
from concilium.federation.cohort import Cohort
from concilium.federation.held_out import Part
from concilium.federation.messages import Envelope, decode
from concilium.federation.work import Workload

if TYPE_CHECKING:
    from concilium.federation.method import Method

MOST_CHARACTERS = 1000
MOST_REMEMBERED = 1 << 16  # bytes of a question

EXACT = frozenset({"exact"})
PLAIN = frozenset({"exact", "masked"})
PRIVATE = frozenset({"private"})


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one site answers to a question that is gathered."""

    @property
    def numbers(self) -> int:
        """How many numbers about patients are in it."""
        return 0

    @property
    def leaves(self) -> str | None:
        """Why the site takes no further part in the study, if it does not."""
        return None


R = TypeVar("R", bound=Reply)


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every kind tells the gate. `merges`: folds of an evaluation may ask it together, of all sites."""

    kind: ClassVar[str]
    releases: ClassVar[frozenset[str]]
    merges: ClassVar[bool] = False

    def check(self, release: str) -> None:
        """MessageError unless the question is consistent in itself, of bearable size, and fit for this release."""


class Step(Question, frozen=True, kw_only=True):
    """A step of the protocol that a release has with its sites; it is about no patient (releases/masked.py).

    `before_study`: it comes before there is a study that was agreed to.
    """

    before_study: ClassVar[bool] = False


class Statistic(Question, frozen=True, kw_only=True):
    """A question about patients: a query selects them, and `target` must be known for each."""

    reads: ClassVar[frozenset[str]] = frozenset({"table"})

    query: str
    target: str

    @property
    def division(self) -> Part | None:
        """Whether it is about those who are held out only, or about all but those."""
        return None

    def estimate(self, patients: int, columns: int) -> Workload:
        """What computing it takes at most in a table of so many patients and columns, whoever matches (work.py)."""
        raise NotImplementedError

    @property
    def fixed(self) -> Mapping[str, Any]:
        """What of it must be as the parameters of the study say, by their names: a house chooses none of it twice."""
        return {}

    @property
    def named(self) -> Sequence[Attribute]:
        """The attributes that it is about, with their cutoffs and values: those that the study may ask about."""
        return ()


class Gathered(Statistic, Generic[R], frozen=True, kw_only=True):
    """A question whose answers the house reads site by site."""

    reply: ClassVar[type[Any]]

    def compute(self, cohort: Cohort) -> R:
        """What this site answers."""
        raise NotImplementedError

    def read(self, data: bytes) -> R:
        """A site's answer; MessageError unless it is one."""
        answer: R = decode(data, self.reply)
        return answer

    def unite(self, replies: Sequence[R]) -> R:
        """The answer of a region, from those of its sites."""
        cannot_be_united(self.kind)


class Summed(Statistic, frozen=True, kw_only=True):
    """A question whose answers are added up over sites: whole numbers, or reals with so many binary places."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array that a site answers with."""
        raise NotImplementedError

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def binary_places(self) -> int:
        return 0

    @property
    def largest(self) -> int:
        """No number of an answer is beyond this, whoever the patients are."""
        return int(np.iinfo(np.uint32).max)

    @property
    def counts(self) -> bool:
        """Whether its numbers count patients: then none is below zero."""
        return self.binary_places == 0

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        """The array; `template` is what this site alone was told."""
        raise NotImplementedError

    def asked_before(self, study: Method[Any]) -> Gathered[Any] | None:
        """For a region: the question of this study from whose answers the house made what it tells each site, if it
        does."""
        return None

    def tell_on(self, template: bytes, replies: Mapping[str, Any]) -> dict[str, bytes]:
        """For a region: what each site is told, from what the region was told and what its sites answered before."""
        raise NotImplementedError


class Noisy(Summed, frozen=True, kw_only=True):
    """A question that is released as `private` only: the sites add noise of this variance in shares.

    The variance is the house's to choose; what it costs follows from it and from `sensitivity_squared`, which the site
    works out from the question alone.
    """

    releases: ClassVar[frozenset[str]] = PRIVATE

    variance: str

    @property
    def noise(self) -> Fraction:
        """The variance of the noise that the sum is to have."""
        return Fraction(self.variance)

    @property
    def counts(self) -> bool:
        """Noise may be below zero."""
        return False

    @property
    def sensitivity_squared(self) -> Fraction:
        """The squared L2 norm of what one patient can change."""
        raise NotImplementedError

    def check(self, release: str) -> None:
        try:
            fine = (
                len(self.variance) <= 200 and "e" not in self.variance.lower() and Fraction(self.variance) > 0
            )
        except (ValueError, ZeroDivisionError):
            fine = False
        if not fine:
            raise MessageError("a private question says the variance of its noise, such as '81/2'")


def cannot_be_united(kind: str) -> NoReturn:
    raise MessageError(f"a region cannot answer {kind!r} for its sites: ask the hospitals themselves")


def open_question(envelope: Envelope) -> Question:
    """The question inside an envelope, checked; MessageError if its kind is unknown or its body malformed."""
    read = read_question if len(envelope.body) > MOST_REMEMBERED else read_again
    return read(envelope.kind, envelope.release, envelope.body)


def read_question(kind: str, release: str, body: bytes) -> Question:
    """The question of this kind in these bytes, fit for this release."""
    place = KINDS.get(kind)
    if place is None:
        raise MessageError(f"there is no kind of question {kind[:60]!r}{nearest(kind[:60], KINDS)}")
    form: type[Question] = load(place)
    question = decode(body, form)
    if release not in question.releases:
        raise MessageError(f"a question of kind {kind!r} cannot be released as {release[:60]!r}")
    if isinstance(question, Statistic) and len(question.target) > MOST_CHARACTERS:
        raise MessageError(f"the name of an attribute may have at most {MOST_CHARACTERS} characters")
    question.check(release)
    return question


# All sites of a process are asked the same: a question, which nobody changes, is read once for all of them.
read_again = lru_cache(maxsize=8)(read_question)


def estimate(envelope: Envelope, question: Statistic, patients: int, columns: int) -> Workload:
    """What computing this question of an envelope takes in such a table; worked out once for tables of one size."""
    if len(envelope.body) > MOST_REMEMBERED:
        return question.estimate(patients, columns)
    return _estimate_again(envelope.kind, envelope.release, envelope.body, patients, columns)


@lru_cache(maxsize=32)
def _estimate_again(kind: str, release: str, body: bytes, patients: int, columns: int) -> Workload:
    question = read_again(kind, release, body)
    assert isinstance(question, Statistic)
    return question.estimate(patients, columns)
