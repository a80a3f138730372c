"""95 % intervals of risks: shares of counted patients, with and without noise, and sums of log odds.

`share_interval` inverts the score test. A share p of n patients is kept if (c - p n)^2 <= z^2 Var(c - p n), where c of
them are positive. Without noise Var is n p (1 - p), and the interval is Wilson's (J. Am. Stat. Assoc. 22, 1927). With
noise of variance v on the count of each of k classes, v (1 - 2 p + k p^2) is added: Fieller's interval of a ratio
(J. R. Stat. Soc. B 16, 1954). The variance of the noise is public, so the interval costs nothing.

`log_odds_interval` is the delta method. Both are about patients like those learned from, given the model. Of a leaf
whose questions the same patients chose, `share_interval` takes a wider `z` (`CHOSEN`), which was measured
(docs/reading-a-model.md).

What was not entered may go with what was: old patients have other wards than young ones, and a model of sums does not
know which. So an interval reaches a standard deviation further, of what that does among all patients
(`find_unentered`): as far as the mean of a part of them is from that of all, unless the part is a sixth or less.
"""

from __future__ import annotations

import math

WITHIN_95 = 1.959963984540054
"""So many deviations from its mean hold 95 % of a normal variable."""
CHOSEN = 1.5 * WITHIN_95
Interval = tuple[float, float]


def share_interval(
    positives: float,
    patients: float,
    *,
    noise: float = 0.0,
    classes: int = 2,
    including: float | None = None,
    z: float = WITHIN_95,
) -> Interval:
    """The interval of a share of counted patients; `noise` is the variance on each class count. It holds the share that
    is stated (`including`), which may have been drawn towards others."""
    held = max(patients, 0.0)
    square = patients**2 + z**2 * (held - noise * classes)
    linear = 2 * positives * patients + z**2 * (held - 2 * noise)
    constant = positives**2 - z**2 * noise
    inside = linear**2 - 4 * square * constant
    low, high = 0.0, 1.0
    if square > 0 and inside >= 0:
        root = math.sqrt(inside)
        low, high = ((linear + sign * root) / (2 * square) for sign in (-1, 1))
    if including is not None:
        low, high = min(low, including), max(high, including)
    return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)


def log_odds_interval(lowest: float, highest: float, variance: float) -> Interval:
    """The interval of a risk whose log odds lie between these, each with this variance."""
    reach = WITHIN_95 * math.sqrt(variance)
    return _risk(lowest - reach), _risk(highest + reach)


def find_unentered(deviation: float) -> float:
    """The variance to add for attributes that were not entered, which move the predictor by this standard deviation
    among all patients."""
    return (deviation / WITHIN_95) ** 2


def _risk(odds: float) -> float:
    return (
        1 / (1 + math.exp(-odds))
        if odds > 0
        else math.exp(max(odds, -700.0)) / (1 + math.exp(max(odds, -700.0)))
    )
