"""Table 1 from the sums of all hospitals: its rows, what is made of counts and moments, and how it reads.

docs/methods.md, section 9.3. Under `private` the noise of counts and sums is known: a row says it, and what noise alone
could make is not told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.models.intervals import WITHIN_95
from concilium.models.prediction import Entries
from concilium.protocol.attributes import Attribute
from concilium.records.columns import Value, label
from concilium.records.dictionary import say_value
from concilium.statistics.distributions import chi_squared_tail, fisher_tail, two_sided
from concilium.statistics.moments import SummedMoments
from concilium.statistics.results import known, say_number, say_p

Matrix = NDArray[np.float64]
# A variance of fewer deviations of its noise is hidden.
HIDDEN = 3.0
# Edges that are no further apart than this part of them are as good as one value.
CLOSE, MOST_DIGITS = 0.05, 12


class NumberRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A number, for each class and then for all: patients who know it and who lack it, mean, deviation, quartiles.

    `mean_error`: the standard error of a mean, noise included; `mean_noise`: that of the noise alone. `difference`:
    standardised, between two classes. `p`: Welch's test of equal means.
    """

    name: str
    patients: list[float]
    missing: list[float]
    mean: list[float | None]
    deviation: list[float | None]
    mean_error: list[float | None]
    quartiles: list[list[float] | None]
    difference: float | None = None
    between_hospitals: float | None = None
    heterogeneity: float | None = None
    p: float | None = None
    mean_noise: list[float | None] = []


class CategoryRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A category, [value][class and then all]: counts; chi-squared of value by class, and the smallest count that it
    expects; what tells hospitals apart, as of a number."""

    name: str
    values: list[str]
    counts: list[list[float]]
    missing: list[float]
    difference: float | None = None
    chi_squared: float | None = None
    freedom: int | None = None
    p: float | None = None
    least_expected: float | None = None
    between_hospitals: float | None = None
    heterogeneity: float | None = None


class PopulationTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table: patients of each class, and its rows."""

    patients: list[float]
    numbers: list[NumberRow]
    categories: list[CategoryRow]

    def without_hospitals(self) -> PopulationTable:
        """The same of one hospital, which differs from no other."""
        alone = {"between_hospitals": None, "heterogeneity": None}
        return PopulationTable(
            patients=self.patients,
            numbers=[msgspec.structs.replace(one, **alone) for one in self.numbers],
            categories=[msgspec.structs.replace(one, **alone) for one in self.categories],
        )


def tabulate(
    counts: Matrix, attributes: Sequence[Attribute], moments: SummedMoments | None, noise: float = 0.0
) -> PopulationTable:
    """The rows of a table from counts [1 + cell, class]."""
    counts = np.maximum(counts, 0.0) if noise else counts
    counts = np.column_stack([counts, counts.sum(axis=1)])
    numbers: list[NumberRow] = []
    categories: list[CategoryRow] = []
    start = 1
    for attribute in attributes:
        own = counts[start : start + attribute.size]
        start += attribute.size
        if attribute.edges:
            place = len(numbers)
            numbers.append(
                _describe_number(attribute, own, None if moments is None else _take(moments, place))
            )
        else:
            place = len(categories)
            between = None if moments is None else moments.squared_counts[place]
            categories.append(_describe_category(attribute, own, noise, between))
    return PopulationTable(patients=counts[0].tolist(), numbers=numbers, categories=categories)


def _take(moments: SummedMoments, place: int) -> tuple[Matrix, float, float]:
    """How many know a number, its sums and squares, for each class and all; share between hospitals, I^2."""
    table = np.array([one[:, place] for one in (moments.known, moments.sums, moments.squares)])
    return (
        np.column_stack([table, table.sum(axis=1)]),
        moments.shares_between[place],
        moments.heterogeneity[place],
    )


def _describe_number(
    attribute: Attribute, counts: Matrix, moments: tuple[Matrix, float, float] | None
) -> NumberRow:
    missing, cells = counts[0], counts[1:]
    columns, edges = counts.shape[1], np.asarray(attribute.edges)
    whole = moments is not None and _are_whole(cells[:, -1], edges)
    row = NumberRow(
        name=attribute.name,
        patients=cells.sum(axis=0).tolist(),
        missing=missing.tolist(),
        mean=[None] * columns,
        deviation=[None] * columns,
        mean_error=[None] * columns,
        quartiles=[_find_quartiles(cells[:, place], edges, whole) for place in range(columns)],
    )
    if moments is None:
        return row
    (n, sums, squares), between, heterogeneity = moments
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = sums / n
        variance = np.maximum(squares - n * mean**2, 0) / (n - 1)
        error = np.sqrt(variance / n)
    return msgspec.structs.replace(
        row,
        mean=[known(one) for one in mean.tolist()],
        deviation=[known(one) for one in np.sqrt(variance).tolist()],
        mean_error=[known(one) for one in error.tolist()],
        difference=_standardise(mean[:-1], variance[:-1]),
        p=known(_compare_means(n[:-1], mean[:-1], variance[:-1])),
        between_hospitals=between,
        heterogeneity=heterogeneity,
    )


def _compare_means(n: Matrix, mean: Matrix, variance: Matrix) -> float:
    """The p-value of Welch's test that classes have one mean (Welch 1951): of two classes, his t-test."""
    told = (n > 1) & (variance > 0)
    classes = int(told.sum())
    if classes < 2 or classes < int((n > 0).sum()):
        return math.nan
    n, mean, variance = n[told], mean[told], variance[told]
    weight = n / variance
    total = weight.sum()
    apart = (weight * (mean - weight @ mean / total) ** 2).sum() / (classes - 1)
    unequal = (((1 - weight / total) ** 2) / (n - 1)).sum() / (classes**2 - 1)
    return fisher_tail(apart / (1 + 2 * (classes - 2) * unequal), classes - 1, 1 / (3 * unequal))


def _standardise(mean: Matrix, variance: Matrix) -> float | None:
    """The difference of two means over their deviation; None of other than two classes."""
    if len(mean) != 2 or not (np.isfinite(mean).all() and np.isfinite(variance).all() and variance.sum() > 0):
        return None
    return float((mean[1] - mean[0]) / math.sqrt(variance.mean()))


def _are_whole(cells: Matrix, edges: Matrix) -> bool:
    """Whether values are whole numbers: so they begin all cells narrower than one that hold anybody."""
    narrow = (np.diff(edges) < 1) & (cells[1:-1] > 0)
    starts = edges[:-1][narrow]
    return bool(narrow.any() and (starts == np.rint(starts)).all())


def _find_quartiles(cells: Matrix, edges: Matrix, whole: bool) -> list[float] | None:
    """Lower quartile, median and upper quartile: whole numbers are told; between edges that are close the shortest
    number there, as patients' values are; elsewhere they are interpolated. None where one lies beyond the outer edges,
    or nobody is counted."""
    total = float(cells.sum())
    if total <= 0:
        return None
    reached = np.cumsum(cells)
    found = []
    for share in (0.25, 0.5, 0.75):
        place = int(np.searchsorted(reached, share * total))
        if not 0 < place < len(edges):
            return None
        before = reached[place - 1]
        part = (share * total - before) / max(cells[place], 1e-12)
        low, high = float(edges[place - 1]), float(edges[place])
        is_told = whole and high - low <= 1
        found.append(low if is_told else _shorten(low + float(part) * (high - low), low, high))
    return found


def _shorten(value: float, low: float, high: float) -> float:
    """The number of fewest digits from `low` to below `high`, the one nearest to the value; where these are far apart,
    the value itself. A score of 15 is not 15.1."""
    if high - low > CLOSE * max(abs(low), abs(high)):
        return value
    for digits in range(-MOST_DIGITS, MOST_DIGITS + 1):
        step = 10.0**-digits
        least, most = math.ceil(round(low / step, 6)), math.ceil(round(high / step, 6)) - 1
        if least <= most:
            return round(min(max(round(value / step), least), most) * step, max(digits, 0))
    return value


def _describe_category(
    attribute: Attribute, counts: Matrix, noise: float, between: tuple[int, Matrix] | None
) -> CategoryRow:
    first = attribute.first
    values = [label(value) for value in attribute.values]
    inner = counts[first : first + len(values)]
    if attribute.other_cell >= 0:
        values, inner = [*values, "other or missing"], counts[first:]
    row = CategoryRow(
        name=attribute.name,
        values=values,
        counts=inner.tolist(),
        missing=(counts[0] if attribute.missing else np.zeros(counts.shape[1])).tolist(),
        difference=_standardise_shares(inner[:, :-1], noise),
    )
    table = inner[:, :-1]
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    if noise:
        return row
    if between is not None:
        share, heterogeneity = _find_between(inner[:, -1], *between)
        row = msgspec.structs.replace(row, between_hospitals=share, heterogeneity=heterogeneity)
    if min(table.shape, default=0) < 2:
        return row
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return msgspec.structs.replace(
        row,
        chi_squared=statistic,
        freedom=freedom,
        p=chi_squared_tail(statistic, freedom),
        least_expected=float(expected.min()),
    )


def _find_between(counts: Matrix, hospitals: int, squared: Matrix) -> tuple[float, float]:
    """The share of a category's variance that lies between hospitals (Goodman and Kruskal's tau), and I^2 by the
    chi-squared of value by hospital. `squared`: for each value the sum over hospitals of n_v^2 / n."""
    there = counts > 0
    counts, squared, total = counts[there], squared[there], float(counts.sum())
    freedom = (hospitals - 1) * (len(counts) - 1)
    if freedom < 1:
        return 0.0, 0.0
    statistic = total * (float((squared / counts).sum()) - 1)
    same = float((counts**2).sum()) / total
    share = (float(squared.sum()) - same) / (total - same)
    heterogeneity = 1 - freedom / statistic if statistic > freedom else 0.0
    return min(max(share, 0.0), 1.0), heterogeneity


def _standardise_shares(counts: Matrix, noise: float) -> float | None:
    """The standardised difference of a category between two classes (Yang and Dalton 2012); it has no sign. None where
    noise alone could make half of it."""
    if counts.shape[1] != 2 or len(counts) < 2 or not counts.sum(axis=0).all():
        return None
    one, other = (counts / counts.sum(axis=0))[1:].T
    spread = [np.diag(p) - np.outer(p, p) for p in (one, other)]
    inverse, apart = np.linalg.pinv((spread[0] + spread[1]) / 2), other - one
    squared = float(apart @ inverse @ apart)
    of_noise = float(np.trace(inverse)) * noise**2 * float((1 / counts.sum(axis=0) ** 2).sum())
    return None if of_noise and squared < 4 * of_noise else math.sqrt(max(squared - of_noise, 0.0))


def add_private_mean(
    row: NumberRow, attribute: Attribute, totals: Sequence[float], sums: Matrix, noises: tuple[float, float]
) -> NumberRow:
    """A number's row with means from noisy sums of scaled values; errors include the noise of sums and of counts. A
    deviation that noise hides is not told, and none but the range bounds it in the error."""
    low, wide = attribute.edges[0], attribute.edges[-1] - attribute.edges[0]
    sums = np.column_stack([sums, sums.sum(axis=1)])
    classes = sums.shape[1] - 1
    told: list[tuple[float | None, ...]] = []
    for place, (total, missing) in enumerate(zip(totals, row.missing, strict=True)):
        parts = classes if place == classes else 1
        # Those who know it are all but those who lack it: two counts, each with noise.
        n, of_count, of_sum = total - missing, *(noise * math.sqrt(parts) for noise in noises)
        of_count *= math.sqrt(2)
        if n < 3 * max(of_count, of_sum, 1.0):
            told.append((None, None, None, None))
            continue
        # Away from the middle of the range, in units of it; squares were doubled.
        away, square = float(np.clip(sums[0, place] / n, -0.5, 0.5)), float(sums[1, place] / n / 2)
        noisy = math.hypot(of_sum, away * of_count) / n
        variance = square - away**2
        # Of the variance: noise in squares, in the mean, and in how many there are.
        of_variance = math.hypot(of_sum / 2, 2 * away * of_sum, (away**2 - variance) * of_count) / n
        hidden = variance < HIDDEN * of_variance
        bound = min(max(variance, 0.0) + HIDDEN * of_variance, 0.25 - away**2) if hidden else variance
        told.append(
            (
                low + wide * (0.5 + away),
                None if hidden else wide * math.sqrt(variance),
                wide * math.hypot(math.sqrt(bound / n), noisy),
                wide * noisy,
            )
        )
    mean, deviation, error, of_noise = map(list, zip(*told, strict=True))
    difference, p = _compare_privately(mean, deviation, error, of_noise) if classes == 2 else (None, None)
    return msgspec.structs.replace(
        row,
        mean=mean,
        deviation=deviation,
        mean_error=error,
        mean_noise=of_noise,
        difference=difference,
        p=p,
    )


def _compare_privately(*columns: Sequence[float | None]) -> tuple[float | None, float | None]:
    """The standardised difference of two classes, None where noise alone could make half of it; and the p-value of
    equal means, by errors that include the noise."""
    means, deviations, errors, noises = (
        np.array([math.nan if one is None else one for one in column[:2]]) for column in columns
    )
    apart, error = float(means[1] - means[0]), float(np.hypot(*errors))
    p = known(two_sided(apart / error)) if error > 0 else None
    told = abs(apart) >= 2 * np.hypot(*noises) and (deviations > 0).all()
    return (apart / math.sqrt((deviations**2).mean()) if told else None), p


def say_table(
    table: PopulationTable, target: str, classes: Sequence[Value], dictionary: Entries, *, noise: float = 0.0
) -> list[list[str]]:
    """The rows of a table in words, the head first. `noise`: of a count; 95 % of it follows each number."""
    entry = dictionary.get(target)
    columns = [f"{target} = {say_value(value, entry)}" for value in classes]
    shown: list[NumberRow | CategoryRow] = [*table.numbers, *table.categories]
    compared = any(one.heterogeneity is not None for one in shown)
    head = ["", *columns, "all", "difference", "p", *(["I^2 (share)"] if compared else [])]
    # Those of all classes together are sums, each with noise.
    noises = [*[noise] * len(classes), noise * math.sqrt(len(classes))]

    def fill(name: str, cells: Iterable[str], row: NumberRow | CategoryRow | None = None) -> list[str]:
        last = (
            ["", "", ""]
            if row is None
            else [_say_difference(row.difference), say_p(row.p), _say_between(row)]
        )
        return [name, *cells, *last[: 2 + compared]]

    def say_counts(counts: Sequence[float]) -> list[str]:
        return [f"{one:,.0f}{_say_noise(of, 0)}" for one, of in zip(counts, noises, strict=True)]

    rows = [head, fill("patients", say_counts(table.patients))]
    for number in table.numbers:
        means = [_say_mean(number, place) for place in range(len(noises))]
        rows.append(fill(f"{number.name}, mean (sd)", means, number))
        if any(number.quartiles):
            rows.append(fill(f"{number.name}, median [quartiles]", map(_say_quartiles, number.quartiles)))
        if any(number.missing):
            rows.append(fill(f"{number.name}, missing", say_counts(number.missing)))
    for category in table.categories:
        known_here = np.sum(category.counts, axis=0).tolist()
        for place, (value, counts) in enumerate(zip(category.values, category.counts, strict=True)):
            shares = [
                f"{said} ({count / max(everyone, 1e-9):.1%}{_say_noise(100 * of / max(everyone, 1e-9), 1)})"
                for said, count, everyone, of in zip(
                    say_counts(counts), counts, known_here, noises, strict=True
                )
            ]
            name = f"{category.name} = {say_value(value, dictionary.get(category.name))}"
            rows.append(fill(name, shares, None if place else category))
        if any(category.missing):
            rows.append(fill(f"{category.name}, missing", say_counts(category.missing)))
    return rows


def _say_noise(deviation: float, places: int) -> str:
    return f" ±{WITHIN_95 * deviation:,.{places}f}" if deviation else ""


def _say_difference(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _say_between(row: NumberRow | CategoryRow) -> str:
    if row.heterogeneity is None or row.between_hospitals is None:
        return ""
    return f"{row.heterogeneity:.0%} ({row.between_hospitals:.1%})"


def _say_mean(row: NumberRow, place: int) -> str:
    mean, deviation = row.mean[place], row.deviation[place]
    if mean is None:
        return ""
    noise = row.mean_noise[place] if row.mean_noise else None
    said = say_number(mean) if noise is None else f"{say_number(mean)} ±{WITHIN_95 * noise:.2g}"
    return f"{said} ({'hidden' if deviation is None and noise else say_number(deviation)})"


def _say_quartiles(quartiles: list[float] | None) -> str:
    if quartiles is None:
        return ""
    low, middle, high = map(say_number, quartiles)
    return f"{middle} [{low}, {high}]"
