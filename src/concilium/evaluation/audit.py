"""An audit of a model: attacks on membership and attributes by who holds both groups, beside what privacy allows.

All of it is computed where both groups of patients are at hand, past any gate, and charged to nobody: it is for the
hospitals' own eyes, or for simulations. Attacks here protect nobody, so that their chance comes from a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec

from concilium.errors import ModelError
from concilium.evaluation import attacks
from concilium.evaluation.attacks import Estimate
from concilium.evaluation.audited_patients import AuditedPatients, observe
from concilium.models.method import Method
from concilium.privacy.accounting import epsilon_from_rho
from concilium.protocol.card import Card
from concilium.protocol.releases import find_release
from concilium.registry import RELEASES


class _AdvantageBound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that TPR - FPR of any attack can be: `by_epsilon` from epsilon and delta, `least` the best known of rho.

    An attacker tells a model of some patients from the same with one patient more. By (epsilon, delta), TPR - FPR is at
    most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh, Viswanath: The Composition Theorem for Differential
    Privacy, 2015). The KL divergence of a rho-zCDP release is at most rho, so its total variation is at most
    sqrt(rho / 2) (Pinsker) and sqrt(1 - e^-rho) (Bretagnolle and Huber). An attacker who knows that a member would
    otherwise have been replaced by another patient counts rho four times.
    """

    rho: str
    epsilon: float
    delta: str
    by_epsilon: float
    least: float


def _bound_advantage(rho: Fraction, delta: Fraction | str) -> _AdvantageBound:
    """The most that an attacker can gain on a release of this price."""
    epsilon = epsilon_from_rho(rho, delta)
    by_epsilon = _bound_by(epsilon, float(Fraction(delta)))
    divergence = float(rho)
    least = min(by_epsilon, math.sqrt(divergence / 2), math.sqrt(-math.expm1(-divergence)))
    return _AdvantageBound(str(rho), epsilon, str(delta), by_epsilon, least)


def _bound_by(epsilon: float, delta: float) -> float:
    """(e^epsilon - 1 + 2 delta) / (e^epsilon + 1)."""
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (math.exp(min(epsilon, 700.0)) + 1))


def _find_bound(card: Card, delta: Fraction | str) -> _AdvantageBound | None:
    """The bound of the hospital whose patients paid most; None where something was released without a price."""
    if not RELEASES[card.release].bounded or any(release.cost is None for release in card.releases):
        return None
    paid: dict[str, Fraction] = {}
    for release in card.releases:
        paid[release.site] = paid.get(release.site, Fraction(0)) + Fraction(release.cost or 0)
    return _bound_advantage(max(paid.values()), delta) if paid else None


DELTA = "1e-6"
FEW = 300
LEAST_ALARMS = 10
MEMBERSHIP = {"threshold": "loss threshold", "shadows": "likelihood ratio"}
GUESSES = {
    "marginal": "the commonest value",
    "imputation": "imputation from others",
    "model": "the model",
    "both": "imputation and the model",
}


class Audit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What attacks on a model came to; `shadows` is how many models the likelihood ratio took, none without it.

    `about` are those of the members and others whom the model is about and whose outcome is known.
    """

    method: str
    target: str
    release: str
    about: tuple[int, int]
    doubles: int
    membership: dict[str, attacks.AttackFigures]
    shadows: int
    attribute: attacks.AttributeFigures | None
    bound: _AdvantageBound | None

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain JSON values, with what it means in words."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {**plain, "meaning": say_meaning(self)}


def audit_model(
    model: Method[Any],
    audited: AuditedPatients,
    *,
    attribute: str | None = None,
    shadows: int = 0,
    make: attacks.Make | None = None,
    delta: Fraction | str = DELTA,
    resamples: int = attacks.RESAMPLES,
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Attack a model with its members and others at hand. `make` makes its method anew, with the same parameters, for
    shadow models; these take as long as so many fits."""
    if shadows and make is None:
        raise ModelError("shadow models need the parameters that the model was learned with")
    if shadows and shadows < attacks.LEAST_SHADOWS:
        raise ModelError(f"at least {attacks.LEAST_SHADOWS} shadow models are needed; got {shadows}")
    tell("comparing losses of members and others")
    responses = observe(model, audited.patients)
    member = audited.member[responses.rows]
    if member.all() or not member.any():
        who = "others" if member.all() else "members"
        raise ModelError(
            f"there is nobody among the {who} whom the model is about and whose outcome is known"
        )
    membership = {
        "threshold": attacks.measure_threshold_attack(
            responses.losses[member], responses.losses[~member], resamples=resamples, seed=seed
        )
    }
    guessed = None
    if attribute is not None:
        tell(f"guessing {attribute}")
        guessed = attacks.attack_attribute(model, audited, attribute, resamples=resamples, seed=seed)
    if shadows and make is not None:
        membership["shadows"] = attacks.attack_with_shadows(
            model, audited, make, shadows=shadows, resamples=resamples, seed=seed, tell=tell
        )
    return Audit(
        method=model.method,
        target=model.target,
        release=model.card.release,
        about=(int(member.sum()), int((~member).sum())),
        doubles=audited.count_doubles(),
        membership=membership,
        shadows=shadows,
        attribute=guessed,
        bound=_find_bound(model.card, delta),
    )


def say_meaning(audit: Audit) -> list[str]:
    """What the figures mean, and what they do not, in sentences."""
    sentences = [_say_attack(MEMBERSHIP[name], figures) for name, figures in audit.membership.items()]
    if audit.attribute is not None:
        sentences += _say_guesses(audit.attribute)
    sentences.append(_say_bound(audit))
    if min(audit.about) < FEW:
        sentences.append(
            f"With {min(audit.about)} patients in the smaller group intervals are wide: more patients tell more."
        )
    if audit.doubles:
        sentences.append(
            f"{audit.doubles} of the others have, cell for cell, the row of a member: if they are the same patients, "
            "the figures are too low."
        )
    if not audit.shadows:
        sentences.append(
            "The loss threshold is the weakest attack there is; shadow models make a stronger one (--shadows)."
        )
    sentences.append(
        "An attack that fails shows that this attack fails on these patients, and nothing about better ones: only a "
        "private release bounds them all. Whether the members really are members is taken on trust."
    )
    return sentences


def _say_attack(name: str, figures: attacks.AttackFigures) -> str:
    """Whether members were told from others."""
    advantage, auc = figures.advantage, figures.auc
    signs = []
    if auc.low > 0.5:
        signs.append(f"a member scores above another patient in {auc.value:.1%} of pairs")
    if advantage.low > 0:
        signs.append(f"TPR - FPR is {say_estimate(advantage, '+.3f')}")
    for alarms, estimate in figures.found.items():
        share = float(alarms)
        # What a handful of false alarms says is chance.
        if estimate is not None and estimate.low > share and share * figures.others >= LEAST_ALARMS:
            signs.append(f"{estimate.value:.1%} of the members are found at {share:.1%} false alarms")
    if not signs:
        return (
            f"{name}: members were not told from others better than by chance "
            f"(TPR - FPR {say_estimate(advantage, '+.3f')})."
        )
    return f"{name}: members can be told from others better than by chance: {'; '.join(signs)}."


def _say_guesses(figures: attacks.AttributeFigures) -> list[str]:
    """What of an attribute was inferred because of membership, and what the population says."""
    guesses = figures.guesses
    best = max(("model", "both"), key=lambda name: guesses[name].members.value)
    rates = ", ".join(f"{GUESSES[name]} {guess.members.value:.1%}" for name, guess in guesses.items())
    sentences = [f"{figures.attribute} of members is guessed rightly by: {rates}."]
    if not figures.asked:
        sentences.append(
            f"The model does not ask about {figures.attribute}, so that it says nothing of it by itself."
        )
    # By chance the groups differ in how easily they are guessed at all: that is no doing of the model.
    without = {"model": guesses["marginal"].advantage, "both": guesses["imputation"].advantage}
    gains = {name: guesses[name].advantage for name in without}
    because = [name for name, gain in gains.items() if gain.low > max(without[name].value, 0.0)]
    if because:
        gain = max((gains[name] for name in because), key=lambda one: one.value)
        sentences.append(
            "Guesses with the model are right more often of members than of others, by "
            f"{say_estimate(gain, '+.3f')}: so much is inferred because they were members."
        )
    else:
        sentences.append(
            "Guesses with the model are right about as often of members as of others "
            f"({say_estimate(gains[best], '+.3f')}): what it gives away is what it says of the population."
        )
    return sentences


def _say_bound(audit: Audit) -> str:
    """What privacy allows any attacker, beside what was measured."""
    bound = audit.bound
    if bound is None:
        return (
            f"This model was released as {audit.release}: nothing bounds what a better attack would find, and epsilon "
            "is unlimited."
        )
    worst = max(figures.advantage.value for figures in audit.membership.values())
    seen = find_release(audit.release).by_site
    about = " (about what is true of a patient; who is there is seen)" if seen else ""
    return (
        f"This model cost at most epsilon = {bound.epsilon:.3g} at delta = {bound.delta} per patient{about}: by that "
        f"no attack of any kind has TPR - FPR above {bound.by_epsilon:.3f}, and by its rho none above "
        f"{bound.least:.3f}. Measured here: {worst:+.3f}."
    )


def say_estimate(estimate: Estimate | None, form: str = ".3f") -> str:
    """A figure with its interval; a dash where patients are too few."""
    if estimate is None:
        return "–"
    return f"{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"
