"""Newton's method over sums of all hospitals, and what follows from where it ends.

Exact and masked: the first question, at zero, tells how many patients there are, means and the Gram matrix. Columns
are then centred and scaled, so that no precision is lost, and columns that others already tell are left out. Each step
is one question; a step that lowers the likelihood is halved. The last question adds the outer products of scores.

Private: a fixed number of steps with noisy scores and information. The last step ends at b + H^-1 (g + e), with noise e
of known variance s^2 in the score: its covariance is H^-1 (S + s^2 I) H^-1, where S is the covariance of the score. It
counts what noise adds, so that intervals cover at their level (tests/statistics/test_private_regression.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError
from concilium.protocol.questions import Conversation, Gaussian, Partners
from concilium.statistics.columns import HELD_AT_ENDS, RegressionTerms, find_dependent, pack_triangle
from concilium.statistics.families import COUNTS, FAMILIES, NEGATIVE_BINOMIAL, Vector
from concilium.statistics.private_hazards import AskHazards
from concilium.statistics.regression_sums import (
    MOST_PLACES,
    AskRegression,
    NoisySums,
    RegressionSums,
    read_regression,
)

Matrix = NDArray[np.float64]
AskNoisy = AskRegression | AskHazards
# What is climbed, its score and its information.
Point = tuple[float, Vector, Matrix]

MOST_STEPS = 25
# Twice what the likelihood would still rise by: the step after this one changes nothing that a float shows.
CONVERGED = 1e-9
LEAST_STEP = 1 / 1024
# Where the deviation of random intercepts begins, in units of residuals or of the linear predictor.
FIRST_DEVIATION = 0.5
# Below this, in the same units, hospitals do not differ.
NO_DEVIATION = 1e-6
# A coefficient of a standardised column that moves by this when the likelihood hardly rises has no finite value.
STILL_MOVING = 1e-2
# Of the price of a private fit, what each step may cost: the last one decides.
STEPS = (Fraction(1, 10), Fraction(3, 20), Fraction(1, 4), Fraction(1, 2))
# Information whose smallest eigenvalue is below so many standard deviations of its noise tells nothing.
LEAST_SIGNAL = 1.5
LARGEST_STEP = 4.0  # of a private fit, in log odds or in ranges of a number


@dataclass(frozen=True)
class Fit:
    """Where a fit ended, in the units of the attributes: coefficients, intercept first where it is one for all, and
    covariances by the model, robust to patients' variances, and clustered by hospital."""

    terms: RegressionTerms
    coefficients: Vector
    covariance: Matrix
    robust: Matrix | None
    clustered: Matrix | None
    patients: int
    left_out: int
    likelihood: float
    null_likelihood: float
    outcomes: float
    dispersion: float
    means: Vector
    deviations: Vector
    inflation: Vector
    separated: tuple[str, ...]
    dependent: tuple[str, ...]
    intercepts: tuple[float, float] | None
    freedom: int
    # Of random intercepts: their deviation; and twice what they, or a negative binomial, raise the likelihood by.
    deviation: float | None = None
    rise: float = 0.0


@dataclass
class PlainNewton:
    """The questions of one fit; `about` is what all of them say."""

    about: Mapping[str, Any]
    family: str
    own_intercepts: bool
    firth: bool

    def ask(
        self,
        terms: RegressionTerms,
        at: Vector,
        *,
        robust: bool = False,
        inverse: Matrix | None = None,
        random: bool = False,
    ) -> Conversation[RegressionSums]:
        """The sums at these coefficients."""
        question = AskRegression(
            **self.about,
            attributes=terms.attributes,
            columns=terms.columns,
            family=self.family,
            own_intercepts=self.own_intercepts,
            at=tuple(at.tolist()),
            random=random,
            robust=robust,
            inverse=() if inverse is None else tuple(pack_triangle(inverse).tolist()),
        )
        return read_regression(question, (yield question))

    @property
    def first(self) -> int:
        """How many coefficients come before those of columns."""
        return int(not self.own_intercepts)

    def fit(self, terms: RegressionTerms) -> Conversation[Fit]:
        """Where the likelihood of these terms is greatest."""
        size = len(terms.columns) + self.first
        start = yield from self.ask(terms, np.zeros(size))
        if start.patients == 0:
            raise HouseError(
                "no patient is left: everybody lacks a value of some attribute; name fewer 'attributes', or look at "
                'what is missing (method = "describe")'
            )
        # At zero every patient has the same weight; where intercepts are their own, that of the average outcome, about.
        family = FAMILIES[self.family]
        mean = start.outcomes / start.patients if self.own_intercepts else family.mean(np.zeros(1))[0]
        gram = start.information / (float(family.weight(np.array(mean))) or 1.0)
        dependent = [place - self.first for place in find_dependent(gram) if place >= self.first]
        kept = [place for place in range(len(terms.columns)) if place not in dependent]
        if not kept and terms.columns:
            raise HouseError("no term is left: every attribute is the same for everybody")
        left_out = tuple(terms.names[place] for place in dependent)
        terms, means = terms.take(kept), start.columns[kept] / start.patients
        among = [*range(self.first), *(place + self.first for place in kept)]
        gram = gram[np.ix_(among, among)]
        # Within hospitals, where intercepts are their own, columns are centred already.
        squares = np.diagonal(gram)[self.first :] / start.patients
        scaled, spread = standardise(terms, means, squares - (means**2 if self.first else 0.0))
        end, separated = yield from self._climb(scaled, start)
        final = yield from self.ask(scaled, end, robust=True)
        return self._finish(terms, end, final, start, means, spread, left_out, separated)

    def fit_further(self, terms: RegressionTerms) -> Conversation[Fit]:
        """Where the likelihood of these terms is greatest with random intercepts of hospitals, from the fit without;
        or of a negative binomial, from that of Poisson's law."""
        counts = self.family == NEGATIVE_BINOMIAL
        fit = yield from (replace(self, family="poisson") if counts else self).fit(terms)
        scaled, size = _scale(fit.terms, fit.means, fit.deviations), len(fit.coefficients)
        back = _find_way_back(fit.means, fit.deviations)
        gaussian = self.family == "gaussian"
        spread = math.sqrt(fit.dispersion) if gaussian else 1.0
        more = [spread * FIRST_DEVIATION, *([math.log(spread)] if gaussian else [])]
        if counts:
            more = [math.log(FIRST_DEVIATION)]

        def look(at: Vector) -> Conversation[Point]:
            sums = yield from self.ask(scaled, at, random=not counts)
            return sums.likelihood, sums.score, _lift(sums.information)

        at, moved, _, _ = yield from climb(look, np.array([*np.linalg.solve(back, fit.coefficients), *more]))
        final = yield from self.ask(scaled, at, random=not counts)
        covariance = back @ invert(final.information)[:size, :size] @ back.T
        likelihood = final.likelihood - (final.patients / 2 * math.log(2 * math.pi) if gaussian else 0.0)
        coefficients = back @ at[:size]
        running = {**dict.fromkeys(fit.separated), **dict.fromkeys(find_running(scaled, moved[1:size]))}
        deviation = float(abs(at[size])) if abs(at[size]) > NO_DEVIATION * spread else 0.0
        return replace(
            fit,
            coefficients=coefficients,
            covariance=covariance,
            robust=None,
            clustered=None,
            likelihood=likelihood,
            null_likelihood=math.nan,
            dispersion=math.exp(2 * at[-1]) if gaussian else math.exp(at[-1]) if counts else 1.0,
            separated=tuple(running),
            deviation=None if counts else deviation,
            rise=max(2 * (likelihood - fit.likelihood), 0.0),
            freedom=final.own_intercepts - 1,
        )

    def _climb(
        self, terms: RegressionTerms, sums_at_zero: RegressionSums
    ) -> Conversation[tuple[Vector, tuple[str, ...]]]:
        """Newton's steps, and the terms whose coefficients run away."""

        def look(at: Vector) -> Conversation[Point]:
            sums = yield from self.ask(terms, at)
            return self._objective(sums), sums.score, sums.information

        def correct(at: Vector, inverse: Matrix) -> Conversation[Vector]:
            return (yield from self.ask(terms, at, inverse=inverse)).score

        start = np.zeros(len(terms.columns) + self.first)
        if self.family in COUNTS and self.first and sums_at_zero.outcomes:
            # From zero the first step to a mean of fifty would end at a rate of exp(50).
            start[0] = math.log(sums_at_zero.outcomes / sums_at_zero.patients)
        at, moved, _, _ = yield from climb(look, start, correct if self.firth else None)
        return at, find_running(terms, moved[self.first :])

    def _objective(self, sums: RegressionSums) -> float:
        if not self.firth:
            return sums.likelihood
        return sums.likelihood + 0.5 * float(np.linalg.slogdet(sums.information)[1])

    def _finish(
        self,
        terms: RegressionTerms,
        at: Vector,
        final: RegressionSums,
        start: RegressionSums,
        means: Vector,
        spread: Vector,
        dependent: tuple[str, ...],
        separated: tuple[str, ...],
    ) -> Fit:
        """The fit in the units of the attributes, with what sums of squares say of it."""
        size = len(at)
        inverse = invert(final.information)
        freedom = final.patients - size - final.own_intercepts
        dispersion, likelihood, null = 1.0, final.likelihood, self._null(start)
        if self.family == "gaussian":
            dispersion = -2 * final.likelihood / freedom if freedom > 0 else math.nan
            likelihood, null = (_gaussian_likelihood(-2 * one, final.patients) for one in (likelihood, null))
        assert final.robust is not None
        assert final.clustered is not None
        # Back to the units of attributes: columns less their means, in units of their deviations.
        back = _find_way_back(means, spread) if self.first else np.diag(1 / spread)
        covariance = back @ (dispersion * inverse) @ back.T
        robust, clustered = (
            back @ inverse @ meat @ inverse @ back.T for meat in (final.robust, final.clustered)
        )
        patients, total, squares = final.intercepts
        mean = total / patients if patients else math.nan
        shift = float((means / spread) @ at) if self.own_intercepts else 0.0
        own = (mean - shift, math.sqrt(max(squares / patients - mean**2, 0.0))) if patients else None
        return Fit(
            terms,
            back @ at,
            covariance,
            robust,
            clustered,
            final.patients,
            final.left_out,
            likelihood,
            null,
            final.outcomes,
            dispersion,
            means,
            spread,
            self._inflate(start, means, spread, terms, dependent),
            separated,
            dependent,
            own,
            freedom,
        )

    def _null(self, start: RegressionSums) -> float:
        """The likelihood without any term; at zero, where intercepts are the hospitals' own, it is that."""
        if self.own_intercepts:
            return start.likelihood
        n, y = start.patients, start.outcomes
        if self.family == "gaussian":
            return -0.5 * (start.squares - y**2 / n)
        if self.family == "binomial":
            return sum(part * math.log(part / n) for part in (y, n - y) if part > 0)
        # At zero a count's likelihood is -1 for each patient, less its constant.
        return (y * math.log(y / n) - y if y > 0 else 0.0) + start.likelihood + n

    def _inflate(
        self,
        start: RegressionSums,
        means: Vector,
        spread: Vector,
        terms: RegressionTerms,
        dependent: Sequence[str],
    ) -> Vector:
        """Variance inflation factors: the diagonal of the inverse correlation matrix of the columns."""
        if dependent or not len(means):
            return np.full(len(terms.columns), math.nan)
        inner = start.information[self.first :, self.first :].copy()
        if self.first:
            inner = inner / start.information[0, 0] - np.outer(means, means)
        size = np.sqrt(np.maximum(np.diagonal(inner), 1e-300))
        return np.diagonal(np.linalg.pinv(inner / np.outer(size, size), hermitian=True)).copy()


def invert(matrix: Matrix) -> Matrix:
    """The inverse of a symmetric matrix; of one that has none, the pseudoinverse."""
    inverse: Matrix = np.linalg.pinv(matrix, hermitian=True).astype(np.float64)
    return inverse


def climb(
    look: Callable[[Vector], Conversation[Point]],
    at: Vector,
    correct: Callable[[Vector, Matrix], Conversation[Vector]] | None = None,
) -> Conversation[tuple[Vector, Vector, Point, Point | None]]:
    """Newton's steps from here, halved where they lower the objective; `correct` asks for another score.

    Returns where they end, how far the last one moved, the first point, and the last one; None where nobody looked
    there, after the step that converged.
    """
    here = first = yield from look(at)
    moved = np.zeros_like(at)
    for _ in range(MOST_STEPS):
        objective, score, information = here
        inverse = invert(information)
        if correct is not None:
            score = yield from correct(at, inverse)
        step = inverse @ score
        if float(step @ score) < CONVERGED:
            return at + step, step, first, None
        length = 1.0
        while True:
            there = yield from look(at + length * step)
            if there[0] >= objective - 1e-10 * abs(objective) or length < LEAST_STEP:
                break
            length /= 2
        at, here, moved = at + length * step, there, length * step
    return at, moved, first, here


def standardise(terms: RegressionTerms, means: Vector, variances: Vector) -> tuple[RegressionTerms, Vector]:
    """The terms with columns of mean 0 and deviation 1, and the deviations; 1 for a column that does not vary."""
    spread = np.sqrt(np.maximum(variances, 0))
    spread = np.where(spread > 0, spread, 1.0)
    return _scale(terms, means, spread), spread


def _scale(terms: RegressionTerms, means: Vector, spread: Vector) -> RegressionTerms:
    """The terms with columns less their means, in units of their deviations."""
    columns = tuple(
        msgspec.structs.replace(column, center=float(mean), scale=float(one))
        for column, mean, one in zip(terms.columns, means, spread, strict=True)
    )
    return msgspec.structs.replace(terms, columns=columns)


def _find_way_back(means: Vector, spread: Vector) -> Matrix:
    """What takes coefficients of such columns, intercept first, to the units of the attributes."""
    back = np.diag([1.0, *(1 / spread)])
    back[0, 1:] = -means / spread
    return back


def _lift(information: Matrix) -> Matrix:
    """The information with no direction in which it falls: away from the top, that of a deviation may."""
    values, vectors = np.linalg.eigh(information)
    lifted: Matrix = (vectors * np.maximum(np.abs(values), 1e-6 * np.abs(values).max())) @ vectors.T
    return lifted


def find_running(terms: RegressionTerms, step: Vector) -> tuple[str, ...]:
    """The terms whose coefficients still move, though the likelihood hardly rises: they have no finite value."""
    return tuple(terms.names[place] for place in np.flatnonzero(np.abs(step) > STILL_MOVING).tolist())


def _gaussian_likelihood(squares: float, patients: int) -> float:
    """The greatest likelihood with this sum of squared residuals."""
    return -0.5 * patients * (math.log(2 * math.pi * squares / patients) + 1) if squares > 0 else math.inf


@dataclass(frozen=True)
class PrivateEnd:
    """Where a private fit ended, in scaled columns: covariance None where noise hides what patients tell. `start` is
    the information of the first step, in which no term says anything yet, so that all patients weigh the same: there
    are their means. Later those at a risk of a half weigh most."""

    coefficients: Vector
    covariance: Matrix | None
    start: Matrix
    noise_share: float

    def warn(self) -> list[str]:
        """What a card says of it."""
        if self.covariance is None:
            said = (
                "noise is as large as what patients tell: there are no intervals; take fewer terms, more patients or a "
                "larger epsilon"
            )
        else:
            said = f"noise is {self.noise_share:.0%} of the variance of the estimates; intervals include it"
        return [said, HELD_AT_ENDS]


def fit_privately(
    make: Callable[[tuple[float, ...], Gaussian, int], AskNoisy],
    at: Vector,
    family: str,
    rho: Fraction,
    partners: Partners,
) -> Conversation[PrivateEnd]:
    """Newton's steps with noise from here on; each costs its share of rho."""
    end = PrivateEnd(at, None, np.eye(len(at)), math.nan)
    start: Matrix | None = None
    for share in STEPS:
        places = _choose_places(make, at, rho * share, partners)
        question = make(tuple(at.tolist()), Gaussian("1"), places)
        assert question.sensitivity is not None
        variance = partners.variance(rho * share, question.sensitivity.squared)
        question = make(tuple(at.tolist()), Gaussian(str(variance)), places)
        answer = yield question
        sums = question.read(answer, float(variance) * float(partners.noise_factor))
        start = sums.information if start is None else start
        most = LARGEST_STEP
        if isinstance(question, AskRegression) and family == "gaussian":
            most *= question.high - question.low
        end = _step(sums, at, family, most)
        at = end.coefficients
    return end if start is None else replace(end, start=start)


def _choose_places(
    make: Callable[[tuple[float, ...], Gaussian, int], AskNoisy],
    at: Vector,
    rho: Fraction,
    partners: Partners,
) -> int:
    """So many binary places that rounding is far below the noise."""
    probe = make(tuple(at.tolist()), Gaussian("1"), 0)
    deviation = math.sqrt(float(probe.bound) ** 2 / (2 * float(rho)))
    return int(np.clip(math.ceil(10 - math.log2(max(deviation, 1e-6))), 0, MOST_PLACES))


def _step(sums: NoisySums, at: Vector, family: str, most: float = LARGEST_STEP) -> PrivateEnd:
    """One step, at most so far (columns lie between -1 and 1). Information that noise could have made is lifted to
    where it is not."""
    values, vectors = np.linalg.eigh(sums.information)
    # The largest eigenvalue of a symmetric matrix of such noise.
    noise = sums.noise_of_information * math.sqrt(2 * len(at))
    held = np.maximum(values, max(noise, 1e-9))
    inverse = (vectors / held) @ vectors.T
    step = inverse @ sums.score
    step *= min(1.0, most / max(float(np.abs(step).max()), 1e-12))
    dispersion = 1.0
    if family == "gaussian":
        dispersion = max(sums.squares, 0.0) / max(float(sums.information[0, 0]) - len(at), 1.0)
    spread = dispersion * sums.information + sums.noise**2 * np.eye(len(at))
    told = bool(values[0] > LEAST_SIGNAL * noise)
    covariance = inverse @ spread @ inverse if told else None
    of_noise = inverse @ inverse * sums.noise**2
    share = float(np.trace(of_noise) / np.trace(covariance)) if covariance is not None else math.nan
    return PrivateEnd(at + step, covariance, sums.information, share)
