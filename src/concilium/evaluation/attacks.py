"""Attacks on a model by someone who holds patients: who was a member (shadow models), and what a sensitive attribute
is.

Figures of every attack: the *advantage* is the share of members above a threshold minus that of others (Yeom,
Giacomelli, Fredrikson, Jha: Privacy Risk in Machine Learning, 2018). An average hides attacks that are sure of a few
patients only, so the share of members found while 1 % and 0.1 % of the others are taken for members counts as well
(Carlini et al.: Membership Inference Attacks From First Principles, 2022). Between two thresholds an attacker may toss
a coin: curves are straight there, and an attack that knows nothing finds 1 % at 1 %. Intervals are 95 % percentiles of
1,000 resamples, members and others each drawn with replacement: about other patients of the same model, not about
another model.

Attribute inference: Fredrikson et al. (Privacy in Pharmacogenetics, 2014; section 5 of Yeom et al., 2018): the attacker
knows the outcome and every other attribute, tries each value of the sensitive one, and asks the model how likely the
outcome would be with it. By Bayes' rule value v is guessed by P(v) x P(outcome | v, the rest), where the model gives
the second factor.

Four guesses, from less to more knowledge:

marginal     the commonest value
imputation   a naive Bayes model of the attribute given the outcome and all other attributes, learned from some of the
             others: what the population says, without the model under audit
model        the marginal, weighed by the model
both         naive Bayes given the other attributes (not the outcome), weighed by the model

Each is made for members and for others, none of them among those whom the attacker learned from. That a guess is right
more often than the marginal shows what the population says. Only what it gains on members above others is there
because they were members (Yeom's advantage). Numbers are guessed by the quarter in which they lie.

The likelihood-ratio attack with shadow models (Carlini et al., 2022, online variant): the attacker draws samples of
patients from the same population, as large as the training set, and learns a shadow model of each with the same method
and parameters. Each patient is in the sample of some shadows and not of others. What the shadows say of the patient is
taken as normal, once for those that learned from it and once for the rest. The score is the logarithm of the ratio of
both densities at what the model says. Variances are those of the patient, shrunk towards the mean over all patients as
if PRIOR more shadows had it. This attacker knows patients of the same hospitals, the method and all its parameters:
more than most would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ConciliumError, ModelError, nearest
from concilium.evaluation.alone import fit_alone
from concilium.evaluation.audited_patients import LEAST_SHARE, AuditedPatients, observe, share_of_truth
from concilium.models.method import Method
from concilium.policy.policy import Budget, Policy
from concilium.protocol.held_out import SIMULATION_KEY
from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.patients import Patients
from concilium.records.table import Records
from concilium.trees.naive_bayes import NaiveBayes

Floats = NDArray[np.float64]

RESAMPLES = 1000
FALSE_ALARMS = (0.01, 0.001)
TAILS = (2.5, 97.5)
ROUNDING = 1e-9


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure and where it lies at 95 %."""

    value: float
    low: float
    high: float


class AttackFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`found` are the shares of members found at so many false alarms, by that share as text; None where there are too
    few others to tell."""

    members: int
    others: int
    advantage: Estimate
    auc: Estimate
    found: dict[str, Estimate | None]


def _measure_attack(
    members: Floats,
    others: Floats,
    choose_threshold: Callable[[float], float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> AttackFigures:
    """The figures of an attack with these scores. `choose_threshold` is given the mean score of the members (drawn)."""
    if not len(members) or not len(others):
        raise ModelError("an attack is measured on at least one member and one other patient")
    levels, places = np.unique(-np.concatenate([members, others]), return_inverse=True)
    inside, outside = places[: len(members)], places[len(members) :]

    def look(inside: NDArray[np.intp], outside: NDArray[np.intp]) -> list[float]:
        counts = [np.bincount(drawn, minlength=len(levels)) for drawn in (inside, outside)]
        curve = _Curve(*(count.cumsum() / count.sum() for count in counts))
        threshold = choose_threshold(float(-(counts[0] @ levels) / len(inside)))
        at = int(np.searchsorted(levels, -threshold, side="right")) - 1
        return [curve.advantage(at), curve.area(), *(curve.found_at(alarms) for alarms in FALSE_ALARMS)]

    measured = look(inside, outside)
    draw = np.random.default_rng(seed)
    drawn = np.array(
        [look(draw.choice(inside, len(inside)), draw.choice(outside, len(outside))) for _ in range(resamples)]
    )
    low, high = np.percentile(drawn, TAILS, axis=0)
    estimates = [
        Estimate(value, float(least), float(most))
        for value, least, most in zip(measured, low, high, strict=True)
    ]
    return AttackFigures(
        len(members),
        len(others),
        estimates[0],
        estimates[1],
        {
            str(alarms): estimate if len(others) * alarms >= 1 else None
            for alarms, estimate in zip(FALSE_ALARMS, estimates[2:], strict=True)
        },
    )


@dataclass(frozen=True)
class _Curve:
    """The shares of members and of others at or above each score, the highest score first (ROC)."""

    members: Floats
    others: Floats

    def advantage(self, at: int) -> float:
        """With the threshold at one of the scores; before the first (-1) nobody is taken for a member."""
        return float(self.members[at] - self.others[at]) if at >= 0 else 0.0

    def area(self) -> float:
        """The chance that a member scores above another patient, ties counting half."""
        members, others = np.append(0.0, self.members), np.append(0.0, self.others)
        return float(np.diff(others) @ (members[1:] + members[:-1]) / 2)

    def found_at(self, alarms: float) -> float:
        """The share of members found while this share of the others is taken for members."""
        members, others = np.append(0.0, self.members), np.append(0.0, self.others)
        at = int(np.searchsorted(others, alarms, side="right")) - 1
        if at == len(others) - 1:
            return float(members[at])
        further = (alarms - others[at]) / (others[at + 1] - others[at])
        return float(members[at] + further * (members[at + 1] - members[at]))


def measure_threshold_attack(
    members: Floats, others: Floats, *, resamples: int = RESAMPLES, seed: int = 0
) -> AttackFigures:
    """Yeom's attack on these losses: whoever is predicted no worse than members are on average is taken for one."""

    def choose(mean: float) -> float:
        return mean - ROUNDING * abs(mean)  # where all members have the same loss, their mean is that

    return _measure_attack(-members, -others, choose, resamples=resamples, seed=seed)


QUARTERS = (0.25, 0.5, 0.75)
TENTHS = tuple(tenth / 10 for tenth in range(1, 10))
MOST_VALUES = 100
LEAST_OTHERS = 20


class _Guess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a guess is right of members and of others; `advantage` is the difference."""

    members: Estimate
    others: Estimate
    advantage: Estimate


class AttributeFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`asked` is whether the model asks about the attribute at all; `learned_from` are the others whom the attacker
    learned from, and `guesses` those four by name."""

    attribute: str
    values: list[str]
    asked: bool
    members: int
    others: int
    learned_from: int
    guesses: dict[str, _Guess]


@dataclass(frozen=True)
class _Candidates:
    """The values that an attribute may have: how each is called, and what a model is told to try it."""

    names: list[str]
    tried: list[Column]
    place: NDArray[np.intp]
    """Of each patient's own value; -1 where it is missing, or no training patient has it."""


def attack_attribute(
    model: Method[Any],
    audited: AuditedPatients,
    attribute: str,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> AttributeFigures:
    """How often each guess of an attribute is right."""
    table = _find_table(model, audited, attribute)
    rows = model.find_outcomes(audited.patients).rows
    about, member = table.take(rows), audited.member[rows]
    draw = np.random.default_rng(seed)
    reference = np.zeros(len(about), dtype=np.bool_)
    outside = np.flatnonzero(~member)
    if len(outside) < LEAST_OTHERS:
        raise ModelError(
            f"guessing {attribute!r} takes at least {LEAST_OTHERS} others, of whom the attacker learns from half; "
            f"there are {len(outside)}"
        )
    reference[draw.permutation(outside)[: len(outside) // 2]] = True
    candidates = _list_candidates(about[attribute], reference, attribute)
    known = candidates.place >= 0
    marginal = np.bincount(candidates.place[reference & known], minlength=len(candidates.names)) + 0.5
    marginal /= marginal.sum()
    likely = _weigh(model, about, attribute, candidates, reference)
    priors = {
        "marginal": np.tile(marginal, (len(about), 1)),
        "imputation": _impute(about, attribute, candidates, reference & known, None),
        "model": marginal * likely,
        "both": _impute(about, attribute, candidates, reference & known, model.target) * likely,
    }
    inside, outside_rest = member & known, ~member & ~reference & known
    if not inside.any() or not outside_rest.any():
        raise ModelError(f"{attribute!r} is missing for all members, or for all others")
    guesses = {}
    for name, scores in priors.items():
        right = np.argmax(scores, axis=1) == candidates.place
        guesses[name] = _compare_guesses(right[inside], right[outside_rest], resamples, draw)
    return AttributeFigures(
        attribute,
        candidates.names,
        attribute in model.attributes_,
        int(inside.sum()),
        int(outside_rest.sum()),
        int(reference.sum()),
        guesses,
    )


def _find_table(model: Method[Any], audited: AuditedPatients, attribute: str) -> Records:
    if model.reads_courses or audited.patients.table is None:
        raise ModelError(
            "a model of courses is asked about series, not about attributes of a table, so that none is guessed from it"
        )
    table = audited.patients.table
    if attribute == model.target:
        raise ModelError(f"{attribute!r} is what the model predicts; name an attribute that it is told")
    if attribute not in table:
        raise ModelError(f"the patients have no attribute {attribute!r}{nearest(attribute, table.names)}")
    return table


def _list_candidates(column: Column, reference: NDArray[np.bool_], attribute: str) -> _Candidates:
    """The values that some of the reference have, or quarters of their numbers, each tried by its median."""
    if isinstance(column, Numbers):
        held = column.numbers[reference & ~np.isnan(column.numbers)]
        edges = np.unique(np.quantile(held, QUARTERS)) if len(held) else np.array([])
        places = np.searchsorted(edges, column.numbers, side="right")
        own = np.searchsorted(edges, held, side="right")
        there = np.unique(own)
        if len(there) < 2:
            raise ModelError(f"{attribute!r} is nearly the same for everybody; there is nothing to guess")
        renumber = np.full(len(edges) + 1, -1)
        renumber[there] = np.arange(len(there))
        place = np.where(np.isnan(column.numbers), -1, renumber[places])
        medians = [float(np.median(held[own == group])) for group in there]
        names = [_name_quarter(edges, group) for group in there]
        size = len(column.numbers)
        return _Candidates(names, [Numbers(np.full(size, median)) for median in medians], place)
    codes = np.unique(column.codes[reference])
    codes = codes[codes > 0]
    if len(codes) < 2:
        raise ModelError(f"{attribute!r} is the same for everybody; there is nothing to guess")
    if len(codes) > MOST_VALUES:
        raise ModelError(f"{attribute!r} has {len(codes)} values; at most {MOST_VALUES} can be guessed from")
    renumber = np.full(len(column.values) + 1, -1)
    renumber[codes] = np.arange(len(codes))
    tried: list[Column] = [
        Coded(np.full(len(column), code), column.values, column.stated, column.by_itself) for code in codes
    ]
    return _Candidates([label(column.values[code - 1]) for code in codes], tried, renumber[column.codes])


def _name_quarter(edges: Floats, group: int) -> str:
    low = "" if group == 0 else f"from {edges[group - 1]:g}"
    high = "" if group == len(edges) else f"below {edges[group]:g}"
    return " ".join(filter(None, [low, high]))


def _weigh(
    model: Method[Any],
    about: Records,
    attribute: str,
    candidates: _Candidates,
    reference: NDArray[np.bool_],
) -> Floats:
    """How likely each patient's outcome is by the model with each value of the attribute, [patient, value]."""
    columns = {name: about[name] for name in about.names}
    truth = about.values(model.target)
    if model.classes_:
        given = [
            share_of_truth(model, Records({**columns, attribute: tried}), truth) for tried in candidates.tried
        ]
        return np.maximum(np.column_stack(given), LEAST_SHARE)
    outcome = np.array([float(value) for value in truth if value is not None])
    errors = np.column_stack(
        [
            outcome - np.asarray(model.predict(Records({**columns, attribute: tried})), dtype=np.float64)
            for tried in candidates.tried
        ]
    )
    # Errors are taken as normal, as wide as those of the reference with their own values.
    held = reference & (candidates.place >= 0)
    own = errors[held, candidates.place[held]]
    spread = max(float(np.mean(own**2)), np.finfo(np.float64).tiny)
    log = -0.5 * errors**2 / spread
    likely: Floats = np.exp(log - log.max(axis=1, keepdims=True))
    return likely


def _impute(
    about: Records,
    attribute: str,
    candidates: _Candidates,
    reference: NDArray[np.bool_],
    hidden: str | None,
) -> Floats:
    """The shares of the values by naive Bayes from all other columns but `hidden`, learned from the reference."""
    columns: dict[str, Column] = {
        name: about[name] for name in about.names if name not in (attribute, hidden)
    }
    names = tuple(map(str, range(len(candidates.names))))
    bins: Mapping[str, list[float]] = {
        name: edges.tolist()
        for name, column in columns.items()
        if isinstance(column, Numbers) and len(edges := _find_tenths(column.numbers[reference]))
    }
    sought = Coded((candidates.place + 1).astype(np.uint32), names, stated=True)
    table = Records({**columns, attribute: sought})
    imputer = fit_alone(
        lambda: NaiveBayes(target=attribute, bins=bins), "what the attacker knows", table.take(reference)
    )
    shares = np.zeros((len(about), len(names)))
    classes: list[Value] = imputer.classes_
    shares[:, [int(label(value)) for value in classes]] = imputer.predict_proba(table)
    return shares


def _find_tenths(numbers: Floats) -> Floats:
    """Edges at the tenths of what was measured; none where everybody has the same."""
    there = numbers[~np.isnan(numbers)]
    edges: Floats = np.unique(np.quantile(there, TENTHS)) if len(there) else there
    return edges[(edges > there.min()) & (edges <= there.max())] if len(edges) else edges


def _compare_guesses(
    inside: NDArray[np.bool_], outside: NDArray[np.bool_], resamples: int, draw: np.random.Generator
) -> _Guess:
    """How often guesses were right; resampling right and wrong with replacement is drawing from a binomial."""
    rates = [float(right.mean()) for right in (inside, outside)]
    drawn = [
        draw.binomial(len(right), rate, resamples) / len(right)
        for right, rate in zip((inside, outside), rates, strict=True)
    ]
    measured = [(rates[0], drawn[0]), (rates[1], drawn[1]), (rates[0] - rates[1], drawn[0] - drawn[1])]
    return _Guess(*(Estimate(value, *map(float, np.percentile(spread, TAILS))) for value, spread in measured))


LEAST_SHADOWS = 4
PRIOR = 4
LEAST_VARIANCE = 1e-12
SMALLEST_RATIO = 1e-9  # ratios nearer to one are those of equal densities

Make = Callable[[], Method[Any]]
Tell = Callable[[str], None]


def _choose_samples(patients: int, shadows: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Who is in the sample of which shadow, [shadow, patient]: each patient in the same number of them, this share, and
    in at least two and out of at least two."""
    if shadows < LEAST_SHADOWS:
        raise ModelError(f"at least {LEAST_SHADOWS} shadow models are needed; got {shadows}")
    times = min(max(round(share * shadows), 2), shadows - 2)
    order = np.argsort(np.random.default_rng(seed).random((shadows, patients)), axis=0)
    return order < times


def _learn_shadow(make: Make, patients: Patients, homes: Sequence[str]) -> Method[Any]:
    """A model of these patients, learned through a house of their hospitals, of which `homes` names one for each.

    The hospitals let out whatever is asked at any price; what looks like an identifier is withheld as always.
    """
    names = np.array(homes)
    policy = Policy(minimum_patients=0, differencing=False, budget=Budget("unlimited"))
    sites = [
        Site(str(name), patients.take(names == name), policy, division_key=SIMULATION_KEY)
        for name in np.unique(names)
    ]
    return make().fit(House(sites))


def _compare_densities(signals: Floats, sampled: NDArray[np.bool_], observed: Floats) -> Floats:
    """For each patient the log ratio of the densities of what the model says, inside over outside.

    `signals` and `sampled` are [shadow, patient].
    """
    densities = []
    for there in (sampled, ~sampled):
        times = there.sum(axis=0)
        mean = (signals * there).sum(axis=0) / times
        squares = (((signals - mean) * there) ** 2).sum(axis=0)
        pooled = squares.sum() / max((times - 1).sum(), 1)
        variance = np.maximum((squares + PRIOR * pooled) / (times - 1 + PRIOR), LEAST_VARIANCE)
        densities.append(-0.5 * ((observed - mean) ** 2 / variance + np.log(variance)))
    ratios: Floats = densities[0] - densities[1]
    ratios[np.abs(ratios) < SMALLEST_RATIO] = 0.0
    return ratios


def attack_with_shadows(
    model: Method[Any],
    audited: AuditedPatients,
    make: Make,
    *,
    shadows: int,
    resamples: int = RESAMPLES,
    seed: int = 0,
    tell: Tell = lambda text: None,
) -> AttackFigures:
    """The figures of the attack; the threshold of its advantage is where both densities are equal."""
    observed = observe(model, audited.patients)
    samples = _choose_samples(len(audited), shadows, float(audited.member.mean()), seed)
    signals = np.empty((shadows, len(observed)))
    for number, sample in enumerate(samples):
        tell(f"shadow model {number + 1} of {shadows}")
        try:
            homes = [audited.homes[row] for row in np.flatnonzero(sample).tolist()]
            shadow = _learn_shadow(make, audited.patients.take(sample), homes)
            signals[number] = observe(shadow, audited.patients).signals
        except ConciliumError as error:
            raise ModelError(
                f"shadow model {number + 1} of {shadows} could not be learned, from {int(sample.sum())} of the members "
                f"and others: {error}"
            ) from None
    ratios = _compare_densities(signals, samples[:, observed.rows], observed.signals)
    member = audited.member[observed.rows]
    # Where nothing is known either way the ratio is 1, and nobody is called a member for that.
    above_one = float(np.nextafter(0.0, 1.0))
    return _measure_attack(
        ratios[member], ratios[~member], lambda mean: above_one, resamples=resamples, seed=seed
    )
