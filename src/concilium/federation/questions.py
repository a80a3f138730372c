"""What a house may ask: every kind declares itself, and there is no other way to ask a site anything.

A kind is a msgspec struct that says its name, the releases it may have, what it reads, what it computes from a cohort,
and how a region answers it for its sites. What is *gathered* comes back site by site, what is *summed* is added up, of
what is *noisy* the site itself works out the price, what is *reported* each patient randomises, and what is
*randomised* are entries of patients themselves. `closed_lists.KINDS` lists them all.
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
from concilium.privacy.local_reports import ListedAnswers, ReportChannel, split_clients
from concilium.records.columns import Value

if TYPE_CHECKING:
    from concilium.federation.undertaking import Undertaking

MOST_CHARACTERS = 1000
MOST_DIGITS = 200  # of an exact number
MOST_RATE = 40  # epsilon over sensitivity: noise other than zero would hardly ever be drawn
MOST_REMEMBERED = 1 << 16  # bytes of a question

EXACT = frozenset({"exact"})
PLAIN = frozenset({"exact", "masked"})
MASKED = frozenset({"masked"})
PRIVATE = frozenset({"private"})
LOCAL = frozenset({"local"})
NOISED = frozenset({"noised"})
SHARED = frozenset({"shared"})


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

    @property
    def patience(self) -> float:
        """Seconds that a site may need to answer, where that is more than a house would wait."""
        return 0.0

    def check(self, release: str) -> None:
        """MessageError unless the question is consistent in itself, of bearable size, and fit for this release."""


class Step(Question, frozen=True, kw_only=True):
    """A step of the protocol that a release has with its sites; it is about no patient (releases/masked.py).

    `before_study`: it comes before there is a study that was agreed to.
    """

    before_study: ClassVar[bool] = False


class Statistic(Question, frozen=True, kw_only=True):
    """A question about patients: a query selects them, and `target` must be known for each."""

    query: str
    target: str

    @property
    def reads(self) -> frozenset[str]:
        """The parts of a hospital's patients that it is about (records/patients.py)."""
        return frozenset({"table"})

    @property
    def division(self) -> Part | None:
        """Whether it is about those who are held out only, or about all but those."""
        return None

    def estimate(self, patients: int, columns: int) -> Workload:
        """What computing it takes at most in a table of so many patients and columns, whoever matches (work.py)."""
        raise NotImplementedError

    @property
    def once(self) -> tuple[str, str] | None:
        """Where its answer is drawn at random without a price: what all such questions of a study have in common, and
        what this one is about, which a study asks once, so that a house cannot average the noise away."""
        return None

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


class Randomised(Gathered[R], frozen=True, kw_only=True):
    """A question that is released as `shared` only: entries of each patient, each randomised by itself.

    The price is that of as many entries as anyone may have, from the question alone.
    """

    releases: ClassVar[frozenset[str]] = SHARED

    @property
    def price(self) -> Fraction:
        """The epsilon of all entries of a patient together."""
        raise NotImplementedError

    def count(self, cohort: Cohort) -> int:
        """How many entries leave; RecordsError where they cannot be read."""
        raise NotImplementedError

    def compute(self, cohort: Cohort, order: bytes = b"") -> R:
        """The entries, drawn anew each time; patients in the order of this key (patient_numbers.py)."""
        raise NotImplementedError


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

    def asked_before(self, study: Undertaking[Any]) -> Gathered[Any] | None:
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
        if not is_positive(self.variance):
            raise MessageError("a private question says the variance of its noise, such as '81/2'")


class NoisyPure(Noisy, frozen=True, kw_only=True):
    """A `private` question whose sums get discrete Laplace noise in shares, for pure epsilon: it states no variance.
    One that may also be `noised` gets all of the noise at each site, where the house sees each site's numbers.

    A ledger in either currency can pay for it. The house chooses the epsilon, and the site works out `sensitivity`.
    """

    variance: str = ""
    epsilon: str

    @property
    def price(self) -> Fraction:
        """The epsilon that it costs."""
        return Fraction(self.epsilon)

    @property
    def sensitivity(self) -> int:
        """The L1 norm of what one patient can change."""
        raise NotImplementedError

    @property
    def sensitivity_squared(self) -> Fraction:
        return Fraction(self.sensitivity**2)

    @property
    def noise(self) -> Fraction:
        return 2 * (self.sensitivity / self.price) ** 2

    def check(self, release: str) -> None:
        if self.variance or not is_positive(self.epsilon):
            raise MessageError("a question of pure epsilon says that, such as '1/2', and no variance")
        if self.price > MOST_RATE * self.sensitivity:
            raise MessageError(f"an epsilon of {self.epsilon[:60]} would mean no noise at all")


class Reported(Summed, frozen=True, kw_only=True):
    """A question that is released as `local` only: each patient of one group reports one answer, randomised by itself
    (privacy/local_reports.py), at this epsilon, and what is added up are reports.

    Groups are parts of the patients by their ids and the study alone. A study asks each of them once, so that a patient
    reports once in it. There is no query: how many match would be told exactly.
    """

    releases: ClassVar[frozenset[str]] = LOCAL

    epsilon: str
    group: int

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """Of the patients that each group has, about."""
        raise NotImplementedError

    @property
    def channel(self) -> ReportChannel:
        """How an answer is drawn from those that are true of a patient, and randomised."""
        raise NotImplementedError

    @property
    def price(self) -> Fraction:
        """The epsilon of one report."""
        return Fraction(self.epsilon)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channel.answers,)

    def list_ids(self, cohort: Cohort) -> Sequence[Value | None]:
        """Who the patients are, for the site alone: what decides their groups."""
        raise NotImplementedError

    def list_answers(self, cohort: Cohort) -> ListedAnswers:
        """The answers that are true of each patient."""
        raise NotImplementedError

    def choose(self, cohort: Cohort, study: str) -> Cohort:
        """The patients of the group in a study."""
        groups = split_clients(self.list_ids(cohort), self.shares, study)
        return cohort.take(np.flatnonzero(groups == self.group))

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        """How often each answer is reported, each patient's report drawn and randomised by itself before that."""
        channel = self.channel
        return channel.count_reports(channel.draw(self.list_answers(cohort)))

    def check(self, release: str) -> None:
        if not is_positive(self.epsilon):
            raise MessageError("a question for reports says their epsilon, such as '1/2'")
        if not 0 <= self.group < len(self.shares):
            raise MessageError(f"there are {len(self.shares)} groups of patients; got {self.group}")
        if self.query or self.target:
            raise MessageError(
                "everybody is asked for a report: how many match a query would be told exactly"
            )


def is_positive(number: str) -> bool:
    """Whether this is an exact number above zero, such as '81/2'; '1e999999999', which would fill the memory, is not
    even looked at."""
    try:
        return len(number) <= MOST_DIGITS and "e" not in number.lower() and Fraction(number) > 0
    except (ValueError, ZeroDivisionError):
        return False


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
