"""Figures of a model from counts of patients by bin of predicted risk and outcome (models/risk_counts.py).

AUC is the share of pairs that are ranked rightly, those in one bin counting half; its variance comes from the binned
placement values (DeLong et al., Biometrics 44, 1988), its interval from that on the log odds scale. Calibration is the
Brier score, and slope and intercept of a logistic regression of the outcome on the log odds of the risk (Cox 1958).
The decision curve is net benefit (Vickers and Elkin 2006). All other intervals are those of a parametric bootstrap: a
count of m patients is drawn anew as a Poisson number of mean m, and where cells are noisy, noise of the same variance
is added to each: so intervals include it. Of a model of survival, only patients whose outcome by the horizon is known
count for the width of intervals. From ten hospitals on, whole hospitals are drawn instead, where their tables
are known. An interval is the estimate less the quantiles of what draws are off by (the basic bootstrap), which also
takes out the bias that noise brings. The slope of noisy counts is fitted as it is (`_fit_noisy_slope`): what noise puts
into empty bins far out would flatten it.

Where noise leaves fewer than three standard deviations of patients with the outcome, or without it, figures are None.
Draws come from a fixed seed: no figure tells more than the table, which was paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from concilium.evaluation.metrics import GROUPS, Floats, ratio
from concilium.evaluation.summary import (
    CONFIDENCE,
    ENOUGH_HOSPITALS,
    SEED,
    STEEP,
    THRESHOLDS,
    find_log_odds,
    fit_logistic,
)
from concilium.models.intervals import WITHIN_95
from concilium.models.measuring import DEVIATIONS, RiskTable
from concilium.records.columns import Value, label
from concilium.statistics.distributions import student_quantile

TIMES = 400
FIGURES_OF_RISKS = ("brier", "slope", "intercept", "observed_expected", "mean_risk")
# Those that are shares, or as good as: no interval leaves these ends.
ENDS = {
    "mcc": (-1.0, 1.0),
    "slope": (-np.inf, np.inf),
    "intercept": (-np.inf, np.inf),
    "observed_expected": (0.0, np.inf),
}


@dataclass(frozen=True)
class _Counts:
    """Tables of one form, [draw, bin]."""

    risks: Floats
    others: Floats
    events: Floats
    called: int

    @classmethod
    def of(cls, table: RiskTable, counts: Sequence[Sequence[float]]) -> _Counts:
        cells = np.array(counts, dtype=np.float64)
        return cls(np.array(table.risks), cells[None, :, 0], cells[None, :, 1], table.called)

    def measure(self) -> dict[str, Floats]:
        """All figures of each table, NaN where it cannot tell."""
        positives, negatives = self.events.sum(axis=1), self.others.sum(axis=1)
        found, alarms = self.events[:, self.called :].sum(axis=1), self.others[:, self.called :].sum(axis=1)
        missed, spared = positives - found, negatives - alarms
        everyone = positives + negatives
        expected = ((self.events + self.others) * self.risks).sum(axis=1)
        sensitivity, specificity = ratio(found, positives), ratio(spared, negatives)
        product = (found + alarms) * (missed + spared) * positives * negatives
        return {
            "auc": _find_auc(self.others, self.events),
            "accuracy": ratio(found + spared, everyone),
            "balanced_accuracy": (sensitivity + specificity) / 2,
            "f1": ratio(2 * found, found + alarms + positives),
            "mcc": np.where(
                product > 0, (found * spared - alarms * missed) / np.sqrt(np.maximum(product, 1e-300)), 0.0
            ),
            "sensitivity": sensitivity,
            "specificity": specificity,
            "ppv": ratio(found, found + alarms),
            "npv": ratio(spared, missed + spared),
            "brier": ratio(
                (self.events * (1 - self.risks) ** 2 + self.others * self.risks**2).sum(axis=1), everyone
            ),
            "observed_expected": ratio(positives, expected),
            "mean_risk": ratio(expected, everyone),
            **self._calibrate(),
        }

    def _calibrate(self) -> dict[str, Floats]:
        """Slope, and the intercept at slope 1; counts below zero, which noise makes, are projected away."""
        events, others = _project(self.events), _project(self.others)
        known = (self.events.sum(axis=1) > 0) & (self.others.sum(axis=1) > 0)
        at = find_log_odds(self.risks)
        _, slope = fit_logistic(at, events, events + others, slope=True)
        intercept, _ = fit_logistic(at, events, events + others, slope=False)
        defined = known & (np.abs(slope) < STEEP) & (np.ptp(at) > 0)
        return {"slope": np.where(defined, slope, np.nan), "intercept": np.where(known, intercept, np.nan)}


def summarise_table(table: RiskTable) -> dict[str, Any]:
    """Figures over all patients measured and, where it is known, by site, as `summary.summarise` has them."""
    overall, _ = _describe(table, table.counts, list(table.sites.values()))
    by_site = {site: _describe(table, counts, []) for site, counts in table.sites.items()}
    return {
        "overall": overall,
        "sites": {site: {**row, "calibration": calibration} for site, (row, calibration) in by_site.items()},
        "folds": [],
        "risks": _judge_risks(table, table.counts),
        "noise": table.variance**0.5,
        **({"subgroups": _describe_groups(table)} if table.groups else {}),
        **({"follow_up": msgspec.to_builtins(table.follow_up)} if table.follow_up else {}),
    }


def find_untold(summary: Mapping[str, Any], positive: Value) -> list[str]:
    """What figures cannot tell for want of patients with the outcome, or without it, and where."""
    notes, outcome = [], label(positive)
    for site, row in summary["sites"].items():
        if not row["patients"]:
            notes.append(f"{site}: nobody to measure the model on, or its policy leaves small counts out")
        elif row["events"] in (0, row["patients"]):
            every = "no" if not row["events"] else "every"
            notes.append(
                f"{site}: {every} patient of {row['patients']} has the outcome {outcome!r}, so that it has no AUC "
                "of its own (is the outcome coded otherwise there?)"
            )
    if summary["overall"]["auc"] is None:
        who = f"with the outcome {outcome!r}, or without it"
        notes.append(
            f"no figures: noise could make as many {who}" if summary["noise"] else f"too few patients {who}"
        )
    return notes


def _describe_groups(table: RiskTable) -> dict[str, dict[str, Any]]:
    """Figures of every subgroup with a patient, by attribute and group."""
    found: dict[str, dict[str, Any]] = {}
    for one in table.groups:
        row, calibration = _describe(table, one.counts, one.sites)
        if row["patients"]:
            found.setdefault(one.attribute, {})[one.group] = {**row, "calibration": calibration}
    return found


def _describe(
    table: RiskTable, counts: Sequence[Sequence[float]], sites: Sequence[Sequence[Sequence[float]]]
) -> tuple[dict[str, Any], dict[str, float | None]]:
    """Patients, events, figures and intervals of one table; and how well risks come true."""
    found, intervals = measure_table(table, counts, sites)
    cells = np.array(counts)
    calibration = {name: found.pop(name) for name in FIGURES_OF_RISKS}
    others, events = (round(max(0.0, float(count))) for count in cells.sum(axis=0))
    patients = others + events
    prevalence = events / patients if patients else 0.0
    row = {"patients": patients, "events": events, "prevalence": prevalence, **found}
    return {**row, "intervals": intervals}, calibration


def measure_table(
    table: RiskTable, counts: Sequence[Sequence[float]], sites: Sequence[Sequence[Sequence[float]]] = ()
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Every figure of these counts, None where they cannot tell, and the intervals."""
    own = _Counts.of(table, counts)
    figures = {name: float(values[0]) for name, values in own.measure().items()}
    if not _tells(own, table.variance):
        return dict.fromkeys(figures), {}
    drawn = "hospitals" if len(sites) >= ENOUGH_HOSPITALS else "patients"
    chance = np.random.default_rng(SEED)
    if drawn == "hospitals":
        tables = np.array(sites, dtype=np.float64)
        weights = chance.multinomial(len(sites), [1 / len(sites)] * len(sites), TIMES)
        redrawn = np.einsum("ds,sbo->dbo", weights.astype(np.float64), tables)
        centre = figures
    else:
        base = np.stack([_project(own.others)[0], _project(own.events)[0]], axis=1)
        redrawn = chance.poisson(table.known * base, (TIMES, *base.shape)) / table.known + chance.normal(
            0, table.variance**0.5, (TIMES, *base.shape)
        )
        centre = {n: float(v[0]) for n, v in _Counts.of(table, base.tolist()).measure().items()}
    draws = _Counts(own.risks, redrawn[:, :, 0], redrawn[:, :, 1], own.called).measure()
    intervals: dict[str, Any] = {
        "drawn": f"{drawn} and noise" if table.variance else drawn,
        "times": TIMES,
    }
    for name, values in draws.items():
        intervals[name] = _take_basic(figures[name], values - centre[name], *ENDS.get(name, (0.0, 1.0)))
    if table.variance:
        figures["slope"], intervals["slope"] = _fit_noisy_slope(table, own)
    if drawn == "patients" and not table.variance:
        intervals["auc"] = _find_auc_interval(table.known * own.others[0], table.known * own.events[0])
    return {
        name: None if np.isnan(value) else _hold(name, value) for name, value in figures.items()
    }, intervals


def _hold(name: str, value: float) -> float:
    """A share that noise carries beyond its ends is held at them."""
    low, high = ENDS.get(name, (0.0, 1.0))
    return float(min(max(value, low), high))


def _tells(counts: _Counts, variance: float) -> bool:
    """Whether there are patients with the outcome and without it, beyond what noise could make of none."""
    least = DEVIATIONS * (variance * len(counts.risks)) ** 0.5
    return bool(counts.events.sum() > least and counts.others.sum() > least)


def _take_basic(figure: float, off: Floats, low: float, high: float) -> list[float] | None:
    """The estimate less the quantiles of what draws are off by; None where a draw in ten, or more, has no figure."""
    known = off[~np.isnan(off)]
    if np.isnan(figure) or len(known) <= 0.9 * len(off):
        return None
    edge = (1 - CONFIDENCE) / 2
    above, below = np.quantile(known, [1 - edge, edge])
    return [float(min(max(end, low), high)) for end in (figure - above, figure - below)]


def _find_auc(others: Floats, events: Floats) -> Floats:
    below = np.cumsum(others, axis=1) - others
    won = (events * (below + others / 2)).sum(axis=1)
    positives, negatives = events.sum(axis=1), others.sum(axis=1)
    return np.where((positives > 0) & (negatives > 0), ratio(won, positives * negatives), np.nan)


def _find_auc_variance(others: Floats, events: Floats) -> float:
    """The variance of the AUC of one table by its placement values; NaN where there are fewer than two of either."""
    positives, negatives = events.sum(), others.sum()
    if min(positives, negatives) < 2:
        return float("nan")
    below = (np.cumsum(others) - others + others / 2) / negatives
    above = (positives - np.cumsum(events) + events / 2) / positives
    area = float((events * below).sum() / positives)
    spread = (events * (below - area) ** 2).sum() / (positives - 1) / positives
    return float(spread + (others * (above - area) ** 2).sum() / (negatives - 1) / negatives)


def _find_auc_interval(others: Floats, events: Floats) -> list[float] | None:
    area, variance = float(_find_auc(others[None], events[None])[0]), _find_auc_variance(others, events)
    if np.isnan(variance) or not 0 < area < 1:
        return None
    centre = np.log(area / (1 - area))
    half = WITHIN_95 * variance**0.5 / (area * (1 - area))
    return [float(1 / (1 + np.exp(-end))) for end in (centre - half, centre + half)]


def _project(counts: Floats) -> Floats:
    """The nearest counts from zero on with the same sum, row by row; what is there already stays."""
    if counts.min(initial=0) >= 0:
        return counts
    total = np.maximum(counts.sum(axis=1, keepdims=True), 0.0)
    ordered = -np.sort(-counts, axis=1)
    excess = (np.cumsum(ordered, axis=1) - total) / np.arange(1, counts.shape[1] + 1)
    kept = np.maximum((ordered > excess).sum(axis=1, keepdims=True) - 1, 0)
    projected: Floats = np.maximum(counts - np.take_along_axis(excess, kept, axis=1), 0.0)
    return projected


def _fit_noisy_slope(table: RiskTable, counts: _Counts) -> tuple[float, list[float] | None]:
    """The calibration slope of noisy counts with its 95 % interval; NaN and None where they cannot tell it.

    The score of a logistic regression is linear in the counts, so that noise leaves it without bias: counts stay as
    they are, below zero too. Bins at both ends that together have no more patients than noise could make of none
    (three standard deviations) are left out, since noise there has much weight. The variance is the sandwich of
    sampling and noise. Grouping flattens a slope by the spread within a bin, which is taken out (Sheppard 1898).
    """
    unknown = float("nan"), None
    at, events = find_log_odds(counts.risks), counts.events[0]
    everyone = events + counts.others[0]
    least = DEVIATIONS * (2 * table.variance * np.arange(1, len(at) + 1)) ** 0.5
    low, high = np.cumsum(everyone) > least, np.cumsum(everyone[::-1]) > least
    inner = slice(int(np.argmax(low)), len(at) - int(np.argmax(high)))
    if not (low.any() and high.any()) or inner.stop - inner.start < 2:
        return unknown
    at, events, everyone = at[inner], events[inner], everyone[inner]
    a, b = fit_logistic(at, events[None], everyone[None], slope=True)
    likely = 1 / (1 + np.exp(-np.clip(a[0] + b[0] * at, -500, 500)))
    design = np.column_stack([np.ones_like(at), at])
    weight = everyone * likely * (1 - likely)
    information = design.T @ (design * weight[:, None])
    left = design.T @ (events - everyone * likely)
    if (
        not abs(b[0]) < STEEP
        or information[0, 0] <= 0
        or np.linalg.det(information) <= 0
        or np.abs(left).max() > 1
    ):
        return unknown
    noise = table.variance * ((1 - likely) ** 2 + likely**2)
    meat = design.T @ (design * (np.maximum(weight, 0) / table.known + noise)[:, None])
    bread = np.linalg.inv(information)
    grouped = 1.0
    if table.risks[1:] != table.edges:
        centre = (everyone * at).sum() / everyone.sum()
        spread = float((everyone * (at - centre) ** 2).sum() / everyone.sum())
        within = float(np.mean(np.diff(at)) ** 2 / 12)
        grouped = spread / (spread - within) if spread > 3 * within else 1.5
    half = WITHIN_95 * float((bread @ meat @ bread)[1, 1]) ** 0.5
    return grouped * float(b[0]), [grouped * float(b[0] - half), grouped * float(b[0] + half)]


def _judge_risks(table: RiskTable, counts: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    """ROC, calibration in about ten groups, and the decision curve, as `summary` has them; None where noise, or one
    class, leaves nothing to tell."""
    own = _Counts.of(table, counts)
    if not _tells(own, table.variance):
        return None
    others, events = _project(own.others)[0], _project(own.events)[0]
    figures, intervals = measure_table(table, counts)
    found = np.concatenate([[0], np.cumsum(events[::-1])]) / events.sum()
    alarms = np.concatenate([[0], np.cumsum(others[::-1])]) / others.sum()
    return {
        **{name: figures[name] for name in FIGURES_OF_RISKS},
        "slope_interval": intervals.get("slope"),
        "groups": _group(own.risks, others, events),
        "roc": [[float(x), float(y)] for x, y in zip(alarms, found, strict=True)],
        "net_benefit": _trace_benefit(table, others, events),
    }


def _group(risks: Floats, others: Floats, events: Floats) -> list[dict[str, Any]]:
    """Neighbouring bins together, so that there are about ten groups of equal size."""
    everyone = others + events
    rank = np.cumsum(everyone) - everyone / 2
    tenth = np.floor(GROUPS * rank / max(everyone.sum(), 1)).astype(int)
    groups = []
    for one in np.unique(tenth[everyone > 0]):
        own = (tenth == one) & (everyone > 0)
        patients = everyone[own].sum()
        groups.append(
            {
                "patients": round(float(patients)),
                "predicted": float((everyone[own] * risks[own]).sum() / patients),
                "observed": float(events[own].sum() / patients),
            }
        )
    return groups


def _trace_benefit(table: RiskTable, others: Floats, events: Floats) -> dict[str, list[float]]:
    """The net benefit for each patient of treating from each threshold on: those at which bins end, or any where a bin
    has one risk."""
    exact_levels = table.risks[1:] == table.edges
    thresholds = list(THRESHOLDS) if exact_levels else [edge for edge in table.edges if 0.01 <= edge <= 0.99]
    everyone = others.sum() + events.sum()

    def benefit(first: int, at: float) -> float:
        return float((events[first:].sum() - others[first:].sum() * at / (1 - at)) / everyone)

    firsts = [int(np.searchsorted(table.edges, at, side="left")) + 1 for at in thresholds]
    if exact_levels:
        firsts = [sum(risk < at for risk in table.risks) for at in thresholds]
    return {
        "threshold": thresholds,
        "model": [benefit(first, at) for first, at in zip(firsts, thresholds, strict=True)],
        "everyone": [benefit(0, at) for at in thresholds],
    }


def compare_sites(table: RiskTable) -> dict[str, Any]:
    """How far hospitals differ: of AUC (on the log odds scale) and slope the mean, the spread between hospitals and the
    interval in which that of a further hospital would lie; and what local recalibration would gain.

    The mean is that of a random-effects model (DerSimonian and Laird 1986) and the prediction interval has a t
    distribution (Higgins, Thompson and Spiegelhalter 2009). None where fewer than three hospitals can tell.
    """
    areas, slopes = [], []
    for counts in table.sites.values():
        own = _Counts.of(table, (table.known * np.array(counts)).tolist())
        area, variance = (
            float(_find_auc(own.others, own.events)[0]),
            _find_auc_variance(own.others[0], own.events[0]),
        )
        if 0 < area < 1 and variance > 0:
            areas.append((np.log(area / (1 - area)), variance / (area * (1 - area)) ** 2))
        slope = own.measure()["slope"][0]
        if not np.isnan(slope) and (spread := _find_slope_variance(own)) > 0:
            slopes.append((float(slope), spread))
    return {
        "auc": _pool(areas, lambda odds: 1 / (1 + float(np.exp(-odds)))),
        "slope": _pool(slopes, float),
        "recalibrated": {site: _gain(table, counts) for site, counts in table.sites.items()},
    }


def _find_slope_variance(counts: _Counts) -> float:
    at, everyone = find_log_odds(counts.risks), counts.events + counts.others
    a, b = fit_logistic(at, counts.events, everyone, slope=True)
    likely = 1 / (1 + np.exp(-np.clip(a[0] + b[0] * at, -500, 500)))
    weight = everyone[0] * likely * (1 - likely)
    determinant = weight.sum() * (weight * at * at).sum() - (weight * at).sum() ** 2
    return float(weight.sum() / determinant) if determinant > 1e-12 else float("nan")


def _pool(found: Sequence[tuple[float, float]], show: Callable[[float], float]) -> dict[str, Any] | None:
    """A random-effects mean with its interval, the spread between hospitals, and the prediction interval."""
    if len(found) < 3:
        return None
    values, variances = (np.array(column) for column in zip(*found, strict=True))
    fixed = 1 / variances
    mean = (fixed * values).sum() / fixed.sum()
    q = float((fixed * (values - mean) ** 2).sum())
    scale = fixed.sum() - (fixed**2).sum() / fixed.sum()
    between = max(0.0, (q - (len(values) - 1)) / scale)
    weights = 1 / (variances + between)
    mean, error = float((weights * values).sum() / weights.sum()), float(weights.sum()) ** -0.5
    reach = student_quantile(0.5 + CONFIDENCE / 2, len(values) - 2) * (between + error**2) ** 0.5
    return {
        "hospitals": len(values),
        "mean": show(mean),
        "interval": [show(mean - WITHIN_95 * error), show(mean + WITHIN_95 * error)],
        "between": between**0.5,
        "i_squared": max(0.0, 1 - (len(values) - 1) / q) if q > 0 else 0.0,
        "prediction": [show(mean - reach), show(mean + reach)],
    }


def _gain(table: RiskTable, counts: Sequence[Sequence[float]]) -> Mapping[str, float] | None:
    """The Brier score as it is and, with an intercept of the hospital's own, as it would be at best."""
    own = _Counts.of(table, counts)
    if not _tells(own, 0.0):
        return None
    at, everyone = find_log_odds(own.risks), own.events + own.others
    intercept, _ = fit_logistic(at, own.events, everyone, slope=False)
    moved = _Counts(1 / (1 + np.exp(-at - intercept[0])), own.others, own.events, own.called)
    return {
        "intercept": float(intercept[0]),
        "brier": float(own.measure()["brier"][0]),
        "recalibrated": float(moved.measure()["brier"][0]),
    }
