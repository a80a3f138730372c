"""What a house may ask: every kind declares itself, and there is no other way to ask a site anything.

A kind is a msgspec struct: its name, the releases it may have, what it reads, and a pure function of a cohort. It
declares its shape, its sensitivity (how far one patient can move it) and its work. It knows nothing of noise, masks,
floors and budgets: releases add and charge them. *Gathered* answers come back site by site, *summed* ones are added
up; of *reported* ones each patient randomises its own, and *randomised* ones are entries of patients themselves.
`registry.KINDS` lists all kinds.

A method learns by a conversation: a generator that yields questions and receives answers. A gathered question
receives the answers by site, a summed one the sum over the sites, of the question's shape. The method asks nobody
itself: a house drives the conversation (`Run.converse`), and so do folds that learn several models in step
(evaluation/folds.py). A conversation asks the same questions in the same order when it receives the same answers, so
that an interrupted one resumes from the journal by beginning anew.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, nearest
from concilium.privacy.local_reports import ListedAnswers, ReportChannel, split_clients
from concilium.protocol.attributes import Attribute, Workload, check_attributes, estimate_columns
from concilium.protocol.cohort import Cohort, View
from concilium.protocol.followed_outcome import FollowedOutcome
from concilium.protocol.held_out import Folds, Part
from concilium.protocol.messages import Envelope, decode
from concilium.protocol.releases import find_release
from concilium.protocol.subgroups import Subgroup
from concilium.records.blocks import ROWS_AT_ONCE, each_block, is_large, list_blocks
from concilium.records.columns import Value
from concilium.registry import KINDS, load

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_CHARACTERS = 1000
# Of the numbers that an answer may hold, and of those with noise, which take some microseconds each to draw.
MOST_NUMBERS, MOST_NOISY_NUMBERS = 1 << 22, 1 << 18
MOST_DIGITS = 200  # of an exact number
MOST_RATE = 40  # epsilon over sensitivity: noise other than zero would hardly ever be drawn
MOST_REMEMBERED = 1 << 16  # bytes of a question

EXACT = frozenset({"exact"})
PLAIN = frozenset({"exact", "masked"})
UNDER_MASKS = frozenset({"masked", "private"})
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

    def check(self, release: Release) -> None:
        """MessageError unless the fields fit together, and this release. The gate has checked each of them by its type
        (`check_fields`)."""


class Step(Question, frozen=True, kw_only=True):
    """A step of the protocol that a release has with its sites; it is about no patient (releases/masked.py).

    `before_study`: it comes before there is a study that was agreed to.
    """

    before_study: ClassVar[bool] = False


class Statistic(Question, frozen=True, kw_only=True):
    """A question about patients: a query selects them, and `target` must be known for each. `followed`: the target is
    whether the event came by a horizon."""

    measures: ClassVar[bool] = False  # a model, on the patients whom the study holds out
    reads_part: ClassVar[str] = "table"
    rows_at_once: ClassVar[int] = ROWS_AT_ONCE  # of a block, where it goes by blocks
    one_block: ClassVar[int] = ROWS_AT_ONCE  # it goes by blocks over more patients than this

    query: str
    target: str
    followed: FollowedOutcome | msgspec.UnsetType = msgspec.UNSET

    def see(self, view: View) -> View:
        """A site's records as it is about them."""
        return self.followed.see(view, self.target) if self.followed else view

    def select(self, view: View) -> Cohort:
        """The patients it is about."""
        return self.see(view).select(self.query, self.target)

    @property
    def reads(self) -> frozenset[str]:
        """The parts of a hospital's patients that it is about (records/patients.py)."""
        return frozenset({self.reads_part})

    @property
    def division(self) -> Part | None:
        """Whether it is about those who are held out only, or about all but those."""
        return None

    @property
    def subgroups(self) -> Sequence[Subgroup]:
        """The subgroups that it tells apart, beside all patients together."""
        return ()

    @property
    def dealing(self) -> Folds | None:
        """The folds that it tells apart."""
        return None

    @property
    def goes_by_blocks(self) -> bool:
        """Whether a table in a column store is gone over block by block, so that no more of it is held at once."""
        return False

    def estimate(self, patients: int, columns: int) -> Workload:
        """What computing it takes at most in a table of so many patients and columns, whoever matches."""
        return estimate_columns(self.named, patients, each_by_itself=True)

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
    """A question whose answers the house reads site by site. `of_patients`: they depend on patients, and have a price
    or no bound."""

    reply: ClassVar[type[Any]]
    of_patients: ClassVar[bool] = True

    def compute(self, cohort: Cohort) -> R:
        """What this site answers."""
        raise NotImplementedError

    def read(self, data: bytes) -> R:
        """A site's answer; MessageError unless it is one."""
        answer: R = decode(data, self.reply)
        return answer

    def unite(self, replies: Sequence[R]) -> R:
        """The answer of a region, from those of its sites."""
        _cannot_be_united(self.kind)

    def find_known(self, reply: R) -> Mapping[str, Sequence[Value | None]]:
        """The values of attributes that this answer says the site has: later questions name no others to it."""
        return {}


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
        """The entries, drawn anew each time; patients in the order of this key (patient_identity.py)."""
        raise NotImplementedError


class Gaussian(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gaussian"):
    """Discrete Gaussian noise of this variance on each number of a sum: it costs rho."""

    variance: str

    def check(self) -> None:
        if not is_positive(self.variance):
            raise MessageError("Gaussian noise has a variance above 0, such as '81/2'")


class Laplace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="laplace"):
    """Discrete Laplace noise on each number, at pure epsilon for all of them together."""

    epsilon: str

    def check(self) -> None:
        if not is_positive(self.epsilon):
            raise MessageError("Laplace noise has an epsilon above 0, such as '1/2'")

    @property
    def price(self) -> Fraction:
        return Fraction(self.epsilon)


Noise = Gaussian | Laplace


@dataclass(frozen=True)
class Sensitivity:
    """How far one patient more or less can move an answer, from the question alone: the squared L2 norm, and the L1
    norm where it is a whole number (which Laplace noise needs)."""

    squared: Fraction
    l1: int | None = None

    @classmethod
    def of_counts(cls, cells: int) -> Sensitivity:
        """Of counts where one patient adds 1 to at most so many cells."""
        return cls(Fraction(cells), cells)


class Summed(Statistic, frozen=True, kw_only=True):
    """A question whose answers are added up over sites: whole numbers, or reals with so many binary places.

    `noise` is what the house asks for and pays: `private` and `noised` need it, other releases have none. The release
    draws it and works out its price from `sensitivity`. Where it does not `adds_up`, the sum means nothing, and it is
    read site by site (`BySite`).
    """

    adds_up: ClassVar[bool] = True

    noise: Noise | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array that a site answers with."""
        raise NotImplementedError

    @property
    def sensitivity(self) -> Sensitivity | None:
        """How far one patient can move it; None: it is never released with noise."""
        return None

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
        return self.binary_places == 0 and self.noise is None

    @property
    def variance(self) -> Fraction:
        """Of the noise that each number of the sum is to have."""
        if isinstance(self.noise, Laplace):
            return 2 * (self.l1 / self.noise.price) ** 2
        return Fraction(0 if self.noise is None else self.noise.variance)

    @property
    def l1(self) -> int:
        """The L1 sensitivity; MessageError where there is none."""
        if self.sensitivity is None or self.sensitivity.l1 is None:
            raise MessageError(f"a question of kind {self.kind!r} cannot have Laplace noise")
        return self.sensitivity.l1

    @property
    def adds_blocks(self) -> bool:
        """Whether its array is the sum of those of some of the patients each, whoever they are together."""
        return False

    @property
    def goes_by_blocks(self) -> bool:
        return self.adds_blocks

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        """The array, of all patients of the cohort."""
        raise NotImplementedError

    def compute_all(self, cohort: Cohort) -> NDArray[np.integer]:
        """The same, block by block on all cores where there are very many. So it is for a table in memory and for one
        on disk, whose answers are then the same."""
        if not self.adds_blocks or not is_large(len(cohort)):
            return self.compute(cohort)
        total = np.zeros(self.shape, dtype=np.int64)
        parts = list_blocks(len(cohort), self.rows_at_once)
        for one in each_block(parts, lambda block: self.compute(cohort.take_block(block))):
            total += one.reshape(self.shape)
        return total

    def suppress(self, words: NDArray[np.integer], cohort: Cohort) -> None:
        """Take out of the array what the hospital's disclosure rules do not let it tell of this cohort (disclosure.py):
        called by releases that tell numbers without noise."""


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

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        """How often each answer is reported, each patient's report drawn and randomised by itself before that."""
        channel = self.channel
        return channel.count_reports(channel.draw(self.list_answers(cohort)))

    def check(self, release: Release) -> None:
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


def _cannot_be_united(kind: str) -> NoReturn:
    raise MessageError(f"a region cannot answer {kind!r} for its sites: ask the hospitals themselves")


def open_question(envelope: Envelope) -> Question:
    """The question inside an envelope, checked; MessageError if its kind is unknown or its body malformed."""
    if len(envelope.body) > MOST_REMEMBERED:
        return _read_question(envelope.kind, envelope.release, envelope.body)
    # Sites ask at the same time: the first reads, the others wait and take the same object. No check is left out, since
    # a question that fails one is never remembered.
    with _reading:
        return read_again(envelope.kind, envelope.release, envelope.body)


def _read_question(kind: str, release: str, body: bytes) -> Question:
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
    _check_parts(question)
    way_out = find_release(release)
    question.check(way_out)
    if isinstance(question, Summed):
        _check_sum(question, way_out)
    return question


def _check_parts(whole: Any) -> None:
    """MessageError unless every part of a question keeps to the rule of its type: attributes, edges, shares, noise.

    Who is protected: the hospital's process, from a hostile field. It runs before any code of the question's own kind.
    """
    parts = [getattr(whole, name) for name in whole.__struct_fields__]
    for part in parts:
        if isinstance(part, tuple | list) and part and isinstance(part[0], Attribute):
            check_attributes(part)
            continue
        for one in part if isinstance(part, tuple | list) else (part,):
            if not isinstance(one, msgspec.Struct):
                break  # all of one type
            _check_parts(one)
            if hasattr(one, "check"):
                one.check()


def _check_sum(question: Summed, release: Release) -> None:
    """MessageError unless a sum is of bearable size and has the noise of its release, and no other."""
    most = MOST_NUMBERS if question.noise is None else MOST_NOISY_NUMBERS
    if not 1 <= question.numbers <= most:
        raise MessageError(f"an answer may hold 1 to {most} numbers")
    if not isinstance(question.noise, release.noise or type(None)):
        raise MessageError(f"a question released as {release.name!r} has other noise, or none")
    if any(attribute.of for attribute in question.named) and not release.tells_each:
        # Sites that are told different things count into cells of their own, which a sum then tells apart.
        raise MessageError(f"under {release.name!r} all sites are told the same values")
    if isinstance(question.noise, Laplace) and question.noise.price > MOST_RATE * question.l1:
        raise MessageError(f"an epsilon of {question.noise.epsilon[:60]} would mean no noise at all")
    if question.noise is not None and question.sensitivity is None:
        raise MessageError(f"a question of kind {question.kind!r} cannot be released with noise")


# All sites of a process are asked the same: a question, which nobody changes, is read once for all of them.
read_again = lru_cache(maxsize=8)(_read_question)
_reading = threading.RLock()


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


T = TypeVar("T")
B = TypeVar("B", bound=msgspec.Struct)


@dataclass(frozen=True)
class Among:
    """A summed question to some of the sites: the house must see each site's numbers anyway."""

    question: Summed
    sites: Collection[str]


@dataclass(frozen=True)
class BySite:
    """A summed question whose answers are read site by site: the house must see each site's numbers anyway."""

    question: Summed


Asked: TypeAlias = Gathered[Any] | Summed | Among | BySite
# What is sent is dict[str, Reply] for a gathered question, NDArray[np.int64] for a summed one, and for one that is read
# by site a dict of these.
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
    def encounters(self) -> int:
        """How many rows of each patient count at most in what has a price."""

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
    has to warn of, and what it says of the decision (models/threshold.py)."""

    body: B
    patients: Mapping[str, int | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    decision: str = ""
