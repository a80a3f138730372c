"""What differential privacy leaves to any attacker: the most that TPR - FPR can be, from what a model's card says.

Whoever must tell a model of some patients from the same with one patient more, and takes it for the second with
probability FPR and TPR, has TPR - FPR <= (e^epsilon - 1 + 2 delta) / (e^epsilon + 1): that is where the two conditions
of differential privacy meet (Kairouz, Oh, Viswanath: The Composition Theorem for Differential Privacy, 2015). The KL
divergence of a release that is rho-zCDP is at most rho, and so its total variation at most sqrt(rho / 2) (Pinsker) and
sqrt(1 - e^-rho) (Bretagnolle and Huber), which is often less. The bounds are about one patient more or less; for an
attacker who knows that a member would otherwise have been replaced by another patient, rho counts four times.
"""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec

from concilium.privacy.accounting import epsilon_from_rho
from concilium.protocol.card import Card
from concilium.registry import RELEASES


class AdvantageBound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`by_epsilon` is what epsilon at this delta implies, `least` the best that is known of rho."""

    rho: str
    epsilon: float
    delta: str
    by_epsilon: float
    least: float


def bound_advantage(rho: Fraction, delta: Fraction | str) -> AdvantageBound:
    """The most that an attacker can gain on a release of this price."""
    epsilon = epsilon_from_rho(rho, delta)
    by_epsilon = bound_by(epsilon, float(Fraction(delta)))
    divergence = float(rho)
    least = min(by_epsilon, math.sqrt(divergence / 2), math.sqrt(-math.expm1(-divergence)))
    return AdvantageBound(str(rho), epsilon, str(delta), by_epsilon, least)


def bound_by(epsilon: float, delta: float) -> float:
    """(e^epsilon - 1 + 2 delta) / (e^epsilon + 1)."""
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (math.exp(min(epsilon, 700.0)) + 1))


def find_bound(card: Card, delta: Fraction | str) -> AdvantageBound | None:
    """The bound of the hospital whose patients paid most; None where something was released without a price."""
    if not RELEASES[card.release].bounded or any(release.cost is None for release in card.releases):
        return None
    paid: dict[str, Fraction] = {}
    for release in card.releases:
        paid[release.site] = paid.get(release.site, Fraction(0)) + Fraction(release.cost or 0)
    return bound_advantage(max(paid.values()), delta) if paid else None
