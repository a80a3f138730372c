"""The likelihood-ratio attack with shadow models (Carlini et al., 2022), its online variant.

The attacker draws samples of patients from the same population, as large as the one that the model learned from, and
learns a shadow model of each with the same method and parameters. So each patient is in the sample of some shadows and
not of others. What the shadows say of the patient (responses.py) is taken as normal, once for those that learned from
it and once for the rest, and the score is the logarithm of the ratio of both densities at what the model says.

Variances are those of the patient, shrunk towards the mean over all patients as if PRIOR more shadows had it: with few
shadows nearly all patients share one, with many each has its own.

This attacker knows patients of the same hospitals, the method and all its parameters: more than most would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ConciliumError, ModelError
from concilium.evaluation.attack_figures import RESAMPLES, AttackFigures, Floats, measure_attack
from concilium.evaluation.audited_patients import AuditedPatients
from concilium.evaluation.responses import observe
from concilium.models.method import Method
from concilium.policy.policy import Budget, Policy
from concilium.protocol.held_out import SIMULATION_KEY
from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.patients import Patients

LEAST_SHADOWS = 4
PRIOR = 4
LEAST_VARIANCE = 1e-12
ROUNDING = 1e-9  # ratios nearer to one are those of equal densities

Make = Callable[[], Method[Any]]
Tell = Callable[[str], None]


def choose_samples(patients: int, shadows: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Who is in the sample of which shadow, [shadow, patient]: each patient in the same number of them, this share, and
    in at least two and out of at least two."""
    if shadows < LEAST_SHADOWS:
        raise ModelError(f"at least {LEAST_SHADOWS} shadow models are needed; got {shadows}")
    times = min(max(round(share * shadows), 2), shadows - 2)
    order = np.argsort(np.random.default_rng(seed).random((shadows, patients)), axis=0)
    return order < times


def learn_shadow(make: Make, patients: Patients, homes: Sequence[str]) -> Method[Any]:
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


def compare_densities(signals: Floats, sampled: NDArray[np.bool_], observed: Floats) -> Floats:
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
    ratios[np.abs(ratios) < ROUNDING] = 0.0
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
    samples = choose_samples(len(audited), shadows, float(audited.member.mean()), seed)
    signals = np.empty((shadows, len(observed)))
    for number, sample in enumerate(samples):
        tell(f"shadow model {number + 1} of {shadows}")
        try:
            homes = [audited.homes[row] for row in np.flatnonzero(sample).tolist()]
            shadow = learn_shadow(make, audited.patients.take(sample), homes)
            signals[number] = observe(shadow, audited.patients).signals
        except ConciliumError as error:
            raise ModelError(
                f"shadow model {number + 1} of {shadows} could not be learned, from {int(sample.sum())} of the members "
                f"and others: {error}"
            ) from None
    ratios = compare_densities(signals, samples[:, observed.rows], observed.signals)
    member = audited.member[observed.rows]
    # Where nothing is known either way the ratio is 1, and nobody is called a member for that.
    above_one = float(np.nextafter(0.0, 1.0))
    return measure_attack(
        ratios[member], ratios[~member], lambda mean: above_one, resamples=resamples, seed=seed
    )
