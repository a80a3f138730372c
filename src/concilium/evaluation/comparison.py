"""Alone, together, pooled: what becomes of the same patients, how many are diagnosed wrongly (docs/methods.md, 1.14).

`local` is ten-fold cross-validation inside each hospital, `federated` the model of all other hospitals without their
records, `adapted` the same with an intercept, and perhaps a slope, of the hospital's own (in the same ten folds: nobody
is predicted by what was fitted to him), `pooled` the model of the table that nobody holds, `donor` the model borrowed
from one other hospital (donors.py). Hospitals too small for a model of their own are told apart, as in the thesis'
tables: their patients are not counted under `local`. Only what is measured on the same patients is compared. A number
that is predicted is never quite right: there the mean absolute error takes the place of wrong diagnoses.

Is one model better than another? A weighted t interval (docs/methods.md, section 1.16). With d_i the difference of two
error rates in fold i of k and n_i the patients measured there, the mean is weighted by w_i = n_i / sum n, its variance
is sum w_i (d_i - mean)^2 / (k - 1), and the interval takes Student's t with k - 1 degrees of freedom. That is exact
where the d_i are normal with variance in proportion to 1 / n_i. Two limits: folds that learn from mostly the same
patients are not independent, so the interval is somewhat too narrow (Bengio and Grandvalet, JMLR 5, 2004); and the
thesis takes the one-sided quantile of t: what its Table 6.11 calls 95 % is 90 % here, where both sides count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from concilium.errors import StudyError
from concilium.evaluation.alone import adapt_in_folds, cross_validate, fit_alone, pool
from concilium.evaluation.donors import Ranking, count_own, describe
from concilium.evaluation.folds import M
from concilium.evaluation.leave_out import Predictions, complete, figures, predict_at
from concilium.records.columns import Value
from concilium.records.table import Records
from concilium.statistics.distributions import student_quantile


class _Interval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A weighted mean difference, its standard error, and where it lies with this confidence."""

    mean: float
    error: float
    low: float
    high: float
    folds: int
    confidence: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def estimate_difference(
    differences: Sequence[float], patients: Sequence[int], confidence: float = 0.95
) -> _Interval:
    """The interval of a mean difference over folds, each weighted by its patients; folds without any do not count."""
    if len(differences) != len(patients):
        raise StudyError("every fold needs both a difference and its number of patients")
    if not 0 < confidence < 1:
        raise StudyError(f"the confidence must be between 0 and 1; got {confidence!r}")
    folds = [(d, n) for d, n in zip(differences, patients, strict=True) if n > 0]
    if len(folds) < 2:
        raise StudyError("an interval needs at least two folds with patients")
    everyone = sum(n for _, n in folds)
    mean = math.fsum(d * n for d, n in folds) / everyone
    spread = math.fsum(n * (d - mean) ** 2 for d, n in folds) / everyone
    error = math.sqrt(spread / (len(folds) - 1))
    half = student_quantile((1 + confidence) / 2, len(folds) - 1) * error
    return _Interval(mean, error, mean - half, mean + half, len(folds), confidence)


# For each way of learning and each site what it said of the site's patients; None where it had nothing to say.
Ways = Mapping[str, Mapping[str, Predictions | None]]


def learn_in_every_way(
    make: Callable[[], M],
    tables: Mapping[str, Records],
    federated: Mapping[str, Predictions],
    *,
    positive: Value | None,
    classes: Sequence[Value],
    division: str = "",
) -> tuple[dict[str, dict[str, Predictions | None]], list[dict[str, Any]] | str]:
    """What every way of learning says of each site's patients, and the ranking of donors (or why there is none)."""

    names = sorted({name for table in tables.values() for name in table.names})

    def predict(site: str, model: M) -> Predictions:
        return predict_at(site, model, complete(tables[site], names), classes)

    local = {
        site: cross_validate(make, site, table, classes=classes, division=division)
        for site, table in tables.items()
    }
    ways: dict[str, dict[str, Predictions | None]] = {
        "local": local,
        "federated": dict(federated),
        "adapted": {site: adapt_in_folds(said, division=division) for site, said in federated.items()},
    }
    everyone = pool(tables)
    home = np.repeat(np.arange(len(tables)), [len(table) for table in tables.values()])
    ways["pooled"] = {
        site: predict(site, fit_alone(make, "everyone else", everyone.take(home != number)))
        for number, site in enumerate(tables)
    }
    if not next(iter(federated.values())).classes:
        return (
            ways,
            "donors are ranked by how many patients their model diagnoses rightly, and a number is no diagnosis",
        )
    if positive is None:
        return ways, "donors are ranked by positive patients, and the study names no positive class"
    own = {site: count_own(said, positive) for site, said in local.items() if said is not None}
    ranking = Ranking(tuple(describe(site, counts) for site, counts in own.items()))
    if not ranking.donors:
        return ways, ranking.why_none()
    # The only donor there is has nobody to borrow from.
    lent = {site: next(iter(ranking.others(site)), None) for site in tables}
    models = {donor: fit_alone(make, donor, tables[donor]) for donor in {*lent.values()} if donor is not None}
    ways["donor"] = {
        site: None if donor is None else predict(site, models[donor]) for site, donor in lent.items()
    }
    return ways, [msgspec.to_builtins(donor) for donor in ranking.donors]


def learn_alone_and_pooled(
    make: Callable[[], M],
    tables: Mapping[str, Records],
    held_back: Mapping[str, Records],
    classes: Sequence[Value],
) -> tuple[dict[str, dict[str, Predictions]], M]:
    """What a model of each site's own patients (`local`) and one of all sites' in one table (`pooled`) say of the
    patients whom each site holds back; and the pooled model."""
    pooled_model = fit_alone(make, "everyone", pool(tables))
    models = {
        "local": {site: fit_alone(make, site, table) for site, table in tables.items()},
        "pooled": dict.fromkeys(tables, pooled_model),
    }
    ways = {
        way: {site: predict_at(site, model, held_back[site], classes) for site, model in by_site.items()}
        for way, by_site in models.items()
    }
    return ways, pooled_model


def compare(ways: Ways, positive: Value | None) -> dict[str, Any]:
    """The ways side by side, as plain JSON values: overall, on the same patients, by site, and each against
    `federated` as a difference of error rates (or of mean absolute errors) with its interval: above zero, federated
    is wrong less often."""
    sites = list(ways["federated"])
    same = [site for site in sites if all(row.get(site) is not None for row in ways.values())]
    return {
        "ways": {
            way: {
                **tally([at_site for at_site in row.values() if at_site is not None], positive),
                "without": [site for site in sites if row.get(site) is None],
                "same_patients": tally(
                    [at_site for site in same if (at_site := row[site]) is not None], positive
                ),
            }
            for way, row in ways.items()
        },
        "sites": {
            site: {
                "patients": max(len(o.truth) for row in ways.values() if (o := row.get(site)) is not None),
                **{way: None if (o := row.get(site)) is None else _miss(o) for way, row in ways.items()},
            }
            for site in sites
            if any(row.get(site) is not None for row in ways.values())
        },
        "intervals": {
            way: _contrast(row, ways["federated"]) for way, row in ways.items() if way != "federated"
        },
    }


def tally(predictions: Sequence[Predictions], positive: Value | None) -> dict[str, Any]:
    """How many patients, how many of them wrongly diagnosed (of classes only), and the figures."""
    patients = sum(len(at_site.truth) for at_site in predictions)
    metrics = figures(predictions, positive) if predictions else {}
    if predictions and not predictions[0].classes:
        return {"patients": patients, **metrics}
    return {"patients": patients, "wrong": sum(map(_wrong, predictions)), **metrics}


def _miss(predictions: Predictions) -> int | float | None:
    """By what a site's patients are missed: how many wrongly diagnosed, or the mean absolute error."""
    return _wrong(predictions) if predictions.classes else figures([predictions], None)["mae"]


def _error(predictions: Predictions) -> float:
    """The share of patients wrongly diagnosed, or the mean absolute error."""
    return (
        _wrong(predictions) / len(predictions.truth)
        if predictions.classes
        else figures([predictions], None)["mae"] or 0.0
    )


def _wrong(predictions: Predictions) -> int:
    """How many patients were given another class than theirs."""
    return sum(one != other for one, other in zip(predictions.truth, predictions.predicted, strict=True))


def _contrast(
    by_site: Mapping[str, Predictions | None], beside: Mapping[str, Predictions | None]
) -> dict[str, Any] | None:
    """The difference of errors, site by site, weighted by patients; None where fewer than two sites tell."""
    differences, patients = [], []
    for site, predictions in by_site.items():
        other = beside.get(site)
        if predictions is not None and other is not None and predictions.truth:
            differences.append(_error(predictions) - _error(other))
            patients.append(len(predictions.truth))
    if len(patients) < 2:
        return None
    interval = estimate_difference(differences, patients)
    return {**msgspec.to_builtins(interval), "significant": interval.significant}
