"""What rules say of the outcome, from noisy numbers: shares, odds ratios, and the weights of a logistic model.

The odds ratio of a rule comes from its noisy table, with an interval for sampling and for the noise that sums really
have. Rules that a test at 5 %, corrected for the number of rules, finds to say something get a weight each, all at
once: rules repeat each other, so that their log odds do not add up. Under `secure-sum` the weights are fitted with
noisy gradients (models/private_descent.py); under `local`, where there is only the table, one rule counts of those
about the same variables. All of it is made from what was released, so that it costs no more.

docs/methods.md, section 6.12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from concilium.models.intervals import WITHIN_95
from concilium.models.private_descent import find_covariance

Floats = NDArray[np.float64]

FALSE_ALARMS = 0.05
"""How often any rule at all is taken to say something where none does."""
DOUBT = 0.5
"""How far the weight of a rule may be from where it starts: a standard deviation of log odds."""
DOUBT_OF_INTERCEPT = 1.0
LEAST_SURPRISE = 1.0
"""A rule joins the fit from so many standard deviations on, where any rule at all is sure to say something."""
LEAST_KNOWN = 3.0
"""A rule by which fewer can be judged, in standard deviations of the noise, could be judged by nobody."""
MOST_FITTED = 60
START = 1.5
"""Rules repeat each other: each starts with its log odds ratio, times this, over the number of rules."""


@dataclass(frozen=True)
class RuleEffect:
    """The share of patients who fulfil a rule, and its odds ratio, each with a 95 % interval; whether it `tells`
    anything of the outcome."""

    share: float
    share_interval: tuple[float, float]
    odds: float
    odds_interval: tuple[float, float]
    tells: bool
    surprise: float
    """How many standard deviations it is from saying nothing."""
    error: float
    """The standard error of the logarithm of the odds ratio."""
    known: float
    """How many patients can be judged by it, in standard deviations of the noise."""


@dataclass(frozen=True)
class FittedWeights:
    """log odds = intercept + sum of weights times (vote - centre); the intercept is that of an average patient.

    `errors` are the standard errors of the intercept and of the weights, sampling and noise together.
    """

    intercept: float
    weights: tuple[float, ...]
    errors: tuple[float, ...]


def find_effects(counts: NDArray[np.int64], deviations: Sequence[float]) -> list[RuleEffect]:
    """Of each rule, from [rule, 4] as in `AskRuleOutcomes` and the noise of its counts."""
    level = NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * max(len(counts), 1)))
    return [
        _find_effect(row, deviation, level)
        for row, deviation in zip(counts.astype(np.float64), deviations, strict=True)
    ]


def _find_effect(row: Floats, noise: float, level: float) -> RuleEffect:
    holds, fails = row[[0, 2]], row[[1, 3]]
    everyone = np.maximum(holds + fails, 1.0)
    share = float(np.clip(holds.sum() / everyone.sum(), 0.0, 1.0))
    total = float(everyone.sum())
    spread = math.sqrt(share * (1 - share) / total + 2 * noise**2 * (1 - 2 * share * (1 - share)) / total**2)
    interval = (max(share - WITHIN_95 * spread, 0.0), min(share + WITHIN_95 * spread, 1.0))
    shares = holds / everyone
    # Were the rule silent: sampling and noise of the difference of its two shares.
    silent = share * (1 - share) * (1 / everyone).sum()
    silent += noise**2 * (share**2 + (1 - share) ** 2) * (1 / everyone**2).sum()
    surprise = abs(float(shares[0] - shares[1])) / math.sqrt(max(silent, 1e-12))
    enough = bool((everyone > 3 * noise).all())
    cells = np.maximum(row, max(noise, 0.0)) + 0.5
    log_odds = float(np.log(cells[0]) - np.log(cells[1]) - np.log(cells[2]) + np.log(cells[3]))
    error = math.sqrt(float((1 / cells + noise**2 / cells**2).sum()))
    margin = WITHIN_95 * error
    return RuleEffect(
        share,
        interval,
        math.exp(log_odds),
        (math.exp(max(log_odds - margin, -50.0)), math.exp(min(log_odds + margin, 50.0))),
        enough and surprise > level,
        surprise,
        error,
        float(row.sum()) / (2 * noise) if noise else math.inf,  # of four cells
    )


def choose_fitted(effects: Sequence[RuleEffect]) -> list[int]:
    """The places of the rules that are fitted together: none where no rule is sure to say something."""
    if not any(effect.tells for effect in effects):
        return []
    order = sorted(range(len(effects)), key=lambda place: -effects[place].surprise)[:MOST_FITTED]
    return sorted(
        place
        for place in order
        if effects[place].surprise >= LEAST_SURPRISE and effects[place].known > LEAST_KNOWN
    )


def choose_one_of_each(
    effects: Sequence[RuleEffect], subjects: Sequence[frozenset[str]]
) -> FittedWeights | None:
    """Weights from tables alone: of rules that share a variable the most surprising counts, with its log odds ratio."""
    order = sorted(range(len(effects)), key=lambda place: -effects[place].surprise)
    weights, errors, used = [0.0] * len(effects), [0.0] * len(effects), set[str]()
    for place in order:
        if effects[place].tells and not subjects[place] & used:
            weights[place] = math.log(effects[place].odds)
            errors[place] = effects[place].error
            used |= subjects[place]
    return FittedWeights(0.0, tuple(weights), (0.0, *errors)) if used else None


def center_intercept(
    weights: FittedWeights, effects: Sequence[RuleEffect], prevalence: float, error: float
) -> FittedWeights:
    """The weights with the intercept at which the mean risk is the prevalence, were rules independent of each other.
    `error`: the standard error of the prevalence's log odds."""
    log_odds = math.log(prevalence / (1 - prevalence))
    stretch = _find_stretch(weights.weights, effects)
    return FittedWeights(log_odds * stretch, weights.weights, (error * stretch, *weights.errors[1:]))


def _find_stretch(weights: Sequence[float], effects: Sequence[RuleEffect]) -> float:
    """E sigmoid(b + Z) is about sigmoid(b / this), Z being what rules add, were they independent of each other."""
    variance = sum(
        weight**2 * effect.share * (1 - effect.share) for weight, effect in zip(weights, effects, strict=True)
    )
    return math.sqrt(1 + math.pi * variance / 8)


@dataclass(frozen=True)
class _DescentStart:
    """Where a descent over these rules begins, and what it takes for the spread of votes."""

    start: Floats
    hessian: Floats
    doubt: Floats
    norm: float
    signs: Floats


def begin_descent(effects: Sequence[RuleEffect], prevalence: float) -> _DescentStart:
    """Of the rules that tell something; the intercept comes first. No rule argues against what it says by itself: a
    weight that would turn is held at nothing."""
    count = len(effects)
    # What a rule says by itself, shrunk by as much of it as is sampling and noise.
    logs = np.array([math.log(effect.odds) * max(1 - 1 / effect.surprise**2, 0.0) for effect in effects])
    start = np.concatenate(([math.log(prevalence / (1 - prevalence))], START * logs / max(count, 1)))
    shares = np.array([effect.share for effect in effects])
    spread = np.maximum(shares * (1 - shares), 0.01)
    hessian = np.diag(prevalence * (1 - prevalence) * np.concatenate(([1.0], spread)))
    doubt = np.concatenate(([DOUBT_OF_INTERCEPT], np.full(count, DOUBT)))
    signs = np.sign(np.concatenate(([0.0], logs)))
    return _DescentStart(start, hessian, doubt, float(round(math.sqrt(1 + 1.2 * spread.sum()), 6)), signs)


def end_descent(
    begun: _DescentStart, w: Floats, effects: Sequence[RuleEffect], noise: float, rounds: int, patients: float
) -> FittedWeights:
    """The weights that a descent ended with, and their errors. Risks that differ leave less to learn from each patient
    than at the mean risk: the Hessian is taken down by as much."""
    intercept, weights = float(w[0]), tuple(w[1:].tolist())
    stretch = _find_stretch(weights, effects)
    mean = 1 / (1 + math.exp(-intercept / stretch))
    curvature = mean * (1 - mean) / stretch / float(begun.hessian[0, 0])
    covariance = find_covariance(begun.hessian * curvature, begun.doubt, noise, rounds, patients)
    return FittedWeights(intercept, weights, tuple(np.sqrt(np.diag(covariance)).tolist()))
