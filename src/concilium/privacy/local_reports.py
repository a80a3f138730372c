"""One randomised report of each client: which template one of its rules has, so that no one need be trusted.

A client matches some of the k templates asked about. It fills its list up to L entries with blanks (each blank is an
answer of its own: were there one "none", a client with many blanks would stand out), picks one entry, and reports it
by k-ary randomised response among the k + L answers at e' = ln(L (e^e - 1) + 1).

Claim. Protected: each client (all its rules at once), from everybody, the hospital's own gateway after the report is
drawn included. Cost: pure epsilon e for the one report; a client reports once. Every answer is on a client's list at
most once, so it is reported with probability q, or q + (p - q)/L if it is on the list; the ratio of the two is at most
1 + (e^e' - 1)/L = e^e. Assumption: the operating system's generator. e' is rounded down and the chance of a random
answer up, so the ratio never exceeds e^e.
(Amplification by sampling as in Wang, Li, Jha: Locally differentially private frequent itemset mining, 2018.)

docs/methods.md, section 6.9.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.privacy import randomness
from concilium.privacy.mechanisms import find_replacement_threshold, randomize_codes
from concilium.records.columns import Value, label

_DIGITS = 60


@dataclass(frozen=True)
class ListedAnswers:
    """Which of the templates of a question each client matches, each once: client c has
    `templates[starts[c]:starts[c + 1]]`."""

    starts: NDArray[np.int64]
    templates: NDArray[np.int32]


@dataclass(frozen=True)
class ReportChannel:
    """What a client with at most `entries` of so many `templates` reports, and what the reports tell.

    Answers 0 ... templates - 1 are the templates, the `entries` after them the blanks.
    """

    templates: int
    most: int
    epsilon: Fraction

    def __post_init__(self) -> None:
        if self.templates < 1 or self.most < 1 or self.epsilon <= 0:
            raise StudyError(
                "a report needs at least one template, one entry and an epsilon above zero; "
                f"got {self.templates}, {self.most} and {self.epsilon}"
            )

    @property
    def entries(self) -> int:
        """L: how long every client's list is."""
        return min(self.most, self.templates)

    @property
    def answers(self) -> int:
        """How many different reports there are."""
        return self.templates + self.entries

    @cached_property
    def amplified(self) -> Fraction:
        """e', rounded down."""
        return _amplify(self.epsilon, self.entries)

    @cached_property
    def _replaced(self) -> Fraction:
        """The exact probability that an answer is replaced by a random one."""
        return Fraction(find_replacement_threshold(self.answers, self.amplified), 2**64)

    @property
    def when_listed(self) -> Fraction:
        """The exact probability of reporting an answer that is on the client's list."""
        return self.otherwise + (1 - self._replaced) / self.entries

    @property
    def otherwise(self) -> Fraction:
        """The exact probability of reporting an answer that is not on it."""
        return self._replaced / self.answers

    def find_probabilities(self, listed: Iterable[int]) -> list[Fraction]:
        """The exact probability of each answer, for a client that matches these templates."""
        chosen = set(list(dict.fromkeys(listed))[: self.entries])
        blanks = range(self.templates + len(chosen), self.answers)
        return [
            self.when_listed if answer in chosen or answer in blanks else self.otherwise
            for answer in range(self.answers)
        ]

    def draw(self, clients: ListedAnswers) -> NDArray[np.int64]:
        """One report for each client, independent of all others; from here on nothing depends on anything else."""
        counts = np.minimum(np.diff(clients.starts), self.entries)
        picked = randomness.draw_below(self.entries, len(counts)).astype(np.int64)
        answers = self.templates + picked
        shown = np.flatnonzero(picked < counts)
        answers[shown] = clients.templates[clients.starts[:-1][shown] + picked[shown]]
        return randomize_codes(answers, self.answers, self.amplified).astype(np.int64)

    def count_reports(self, reports: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many reports of each answer there are: what leaves a site."""
        return np.bincount(reports, minlength=self.answers).astype(np.int64)

    def estimate(self, histogram: NDArray[np.int64]) -> NDArray[np.float64]:
        """How many of the clients match each template, without bias and never clipped."""
        if np.shape(histogram) != (self.answers,):
            raise StudyError(f"there are {self.answers} answers, not {np.shape(histogram)}")
        clients = int(np.sum(histogram))
        expected = float(clients * self.otherwise)
        reported = np.asarray(histogram[: self.templates], dtype=np.float64)
        estimates: NDArray[np.float64] = (reported - expected) / float(self.when_listed - self.otherwise)
        return estimates

    def find_deviation(self, clients: float, count: float = 0.0) -> float:
        """The standard deviation of that estimate where `count` of the clients match: reports and picking together."""
        listed, otherwise = float(self.when_listed), float(self.otherwise)
        spread = count * listed * (1 - listed) + (clients - count) * otherwise * (1 - otherwise)
        return math.sqrt(max(spread, 0.0)) / (listed - otherwise)


def _amplify(epsilon: Fraction, entries: int) -> Fraction:
    """ln(L (e^epsilon - 1) + 1), rounded down."""
    down = Context(prec=_DIGITS, rounding=ROUND_FLOOR, Emax=MAX_EMAX, Emin=MIN_EMIN)
    exponent = down.divide(Decimal(epsilon.numerator), Decimal(epsilon.denominator))
    # exp and ln round to the nearest whatever the context says; one step down makes them bounds.
    grown = down.subtract(down.next_minus(down.exp(exponent)), Decimal(1))
    amplified = Fraction(
        down.next_minus(down.ln(down.add(down.multiply(grown, Decimal(entries)), Decimal(1))))
    )
    if amplified <= 0:
        raise StudyError(f"epsilon = {float(epsilon):.3g} is too small for any report")
    return amplified


def split_clients(ids: Sequence[Value | None], shares: Sequence[Fraction], salt: str) -> NDArray[np.intp]:
    """The group of each client, in about these shares, by its id and the study's salt alone.

    Whoever restarts comes to the same groups, so that no client is ever asked twice.
    """
    if sum(shares) != 1 or min(shares) <= 0:
        raise StudyError(f"the shares of the groups are above zero and add up to 1; got {shares}")
    edges = np.cumsum([float(share) for share in shares])[:-1]
    turns = [
        int.from_bytes(
            hashlib.sha256(f"{salt}\n{label(client)}".encode("utf-8", "surrogatepass")).digest()[:8], "big"
        )
        / 2**64
        for client in ids
    ]
    return np.searchsorted(edges, turns, side="right")
