"""`Describe`: Table 1. Who the patients are, by outcome or any group, over all hospitals or at each.

docs/methods.md, part 9. Counts and shares come from one table of counts by class; means and deviations from sums;
medians and quartiles from histograms on a public grid, interpolated within a cell. It predicts nothing of a patient but
what all patients have: the share of each class.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, StudyError
from concilium.models.explanation import Explanation, say_share
from concilium.models.explanation import say_interval as say_share_interval
from concilium.models.grid import find_edges
from concilium.models.intervals import WITHIN_95
from concilium.models.method import (
    Attributes,
    Bins,
    Delta,
    Epsilon,
    OnMisfit,
    PrivateMethod,
    QueryText,
    ReleaseName,
    Target,
    Values,
    documented,
)
from concilium.models.prediction import AnyPatients, Entries
from concilium.parameters import Parameter, flag
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.attributes import Attribute, present
from concilium.protocol.counts import AskCounts
from concilium.protocol.grid import all_on_grid
from concilium.protocol.questions import Among, Conversation, Gaussian, Learned, Partners
from concilium.protocol.schema import (
    SchemaSeen,
    find_cautions,
    name_classes,
    say_left_out,
    state_values,
)
from concilium.records.columns import Value, label
from concilium.records.dictionary import say_value
from concilium.statistics.columns import ask_schema, check_stated, find_terms, state_terms
from concilium.statistics.distributions import chi_squared_tail
from concilium.statistics.moments import AskMoments, SummedMoments, read_moments
from concilium.statistics.results import draw_html, draw_text, known, say_number, say_p

if TYPE_CHECKING:
    from pandas import DataFrame

Matrix = NDArray[np.float64]
MOST_CLASSES = 20
SHARE_OF_SUMS = Fraction(2, 5)


class NumberRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A number, for each class and then for all: patients who know it and who lack it, mean, deviation, quartiles.

    `mean_error`: the standard error of a mean, noise included. `difference`: standardised, between two classes.
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


class CategoryRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A category, [value][class and then all]: counts; the standard error of a count that noise adds; chi-squared."""

    name: str
    values: list[str]
    counts: list[list[float]]
    missing: list[float]
    difference: float | None = None
    chi_squared: float | None = None
    freedom: int | None = None
    p: float | None = None


class PopulationTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table: patients of each class, and its rows."""

    patients: list[float]
    numbers: list[NumberRow]
    categories: list[CategoryRow]


class DescribeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What the file of a table holds: all hospitals together, and each one where that was asked. `noise` is the
    standard deviation of what noise adds to a count."""

    target: str
    query: str
    classes: list[str | int | float | bool]
    table: PopulationTable
    by_site: dict[str, PopulationTable] = {}
    correlations: list[list[float]] = []
    lacking: list[int] = []
    noise: float = 0.0

    def __post_init__(self) -> None:
        if len(self.table.patients) != len(self.classes) + 1:
            raise ValueError("a table has a column for each class, and one for all")


@documented
@dataclass(eq=False, repr=False)
class Describe(PrivateMethod[DescribeBody]):
    """`Describe(target="death").fit(house)`: Table 1 by outcome, over all hospitals."""

    method: ClassVar[str] = "describe"
    called: ClassVar[str] = "a Describe"
    description: ClassVar[str] = "a table of the population over all sites"
    body_type: ClassVar[type[DescribeBody]] = DescribeBody
    compares: ClassVar[bool] = False
    decides: ClassVar[str] = "the most frequent class is predicted, whoever the patient is"
    differs_from_pooled: ClassVar[str] = (
        "equals the table of the pooled patients to eight digits, not to the last bit; spread between hospitals needs "
        "hospitals"
    )

    target: Target
    query: QueryText = ""
    release: ReleaseName = "masked"
    _: KW_ONLY
    attributes: Attributes = None
    on_misfit: OnMisfit = "attribute"
    by_hospital: Annotated[
        bool,
        Parameter(
            "true or false", flag, "and a table of each hospital (exact only): the house sees it anyway"
        ),
    ] = False
    epsilon: Epsilon = None
    delta: Delta = "1/1000000"
    values: Values = field(default_factory=dict)
    bins: Bins = field(default_factory=dict)

    def check(self) -> None:
        if self.by_hospital and not self.way_out.by_site:
            raise StudyError(f"by_hospital = true goes with release = 'exact', and not with {self.release!r}")
        if not self.way_out.bounded:
            return
        if self.epsilon is None:
            raise StudyError("a private Describe needs an 'epsilon', such as 1.0")
        if len(self.values.get(self.target, ())) < 1:
            raise StudyError(f"a private Describe states the classes of {self.target!r} in 'values'")
        check_stated(self, "needs two bins at least of {!r}: its ends")

    def plan(self) -> Plan:
        if self.way_out.bounded:
            numbers, _ = state_terms(self)
            share = SHARE_OF_SUMS if numbers else Fraction(0)
            counts = PlannedQuestion("counts", self.rho * (1 - share), "patients by value and class")
            sums = PlannedQuestion(AskMoments.kind, self.rho * share, "sums of numbers and squares, by class")
            return Plan("rho", (counts, sums) if numbers else (counts,))
        each = ", and of each hospital" if self.by_hospital else ""
        return Plan(
            "rho",
            (
                PlannedQuestion("tree.schema", None, "which attributes, values and classes there are"),
                PlannedQuestion(
                    "counts", None, f"patients by value and class, numbers on a public grid{each}"
                ),
                PlannedQuestion(
                    AskMoments.kind, None, f"sums of numbers, squares and products, by class{each}"
                ),
            ),
        )

    def may_cut(self, name: str, edges: Sequence[float]) -> bool:
        """Quartiles need the public grid, whatever bins the study has for other methods."""
        return super().may_cut(name, edges) or (not self.way_out.bounded and all_on_grid(tuple(edges)))

    def converse(self, partners: Partners) -> Conversation[Learned[DescribeBody]]:
        return self._converse_privately(partners) if self.way_out.bounded else self._converse_plainly()

    def _converse_plainly(self) -> Conversation[Learned[DescribeBody]]:
        seen: dict[str, SchemaSeen] = yield ask_schema(self)
        classes = name_classes(self.target, (value for one in seen.values() for value in one.classes))
        if not 1 <= classes.size <= MOST_CLASSES:
            raise HouseError(
                f"{self.target!r} has {classes.size} values: a table has 1 to {MOST_CLASSES} groups"
            )
        bins = {one: edges for one, edges in self.bins.items() if one != self.target}
        numbers, listed, left_out = find_terms(seen, bins, ())
        left_out = {one: why for one, why in left_out.items() if why != "the same for everybody"}
        single = _present_values(seen, {*numbers, *listed, *left_out})

        def ask(attributes: tuple[Attribute, ...]) -> tuple[AskCounts, float]:
            return AskCounts(query=self.query, target=self.target, attributes=attributes, totals=False), 0.0

        cut, without = yield from find_edges(numbers, ask, beyond=True)
        left_out |= without
        categories = tuple(
            Attribute(one, (), values, missing=True, other=False)
            for one, values in {**listed, **single}.items()
        )
        asked = (*cut, *categories)
        about: dict[str, Any] = {"query": self.query, "target": self.target, "classes": classes}
        if not asked:
            raise HouseError("no attribute is left for a table: " + say_left_out(left_out))
        floored = any(one.floored for one in seen.values())
        measured = tuple(Attribute(one.name) for one in cut)
        known_only = tuple(msgspec.structs.replace(one, missing=False) for one in categories)
        counting = AskCounts(**about, attributes=asked)
        summing = (
            AskMoments(**about, attributes=(*measured, *known_only), measured=len(measured))
            if measured
            else None
        )
        by_site: dict[str, PopulationTable] = {}
        for site in sorted(seen) if self.by_hospital else ():
            counts = yield Among(counting, [site])
            sums = read_moments(summing, (yield Among(summing, [site]))) if summing and not floored else None
            by_site[site] = tabulate(counts[0].astype(np.float64), asked, sums)
        counts = yield counting
        moments = read_moments(summing, (yield summing)) if summing is not None and not floored else None
        body = DescribeBody(
            target=self.target,
            query=self.query,
            classes=list(classes.values),
            table=tabulate(counts[0].astype(np.float64), asked, moments),
            by_site=by_site,
            correlations=[] if moments is None else moments.correlations.tolist(),
            lacking=[] if moments is None else moments.lacking,
        )
        warnings = [say_left_out(left_out)] if left_out else []
        if floored:
            warnings.append(
                "hospitals leave small counts out: there are no means, and counts are of the others"
            )
        warnings += find_cautions(seen)
        return Learned(body, {site: one.patients for site, one in seen.items()}, warnings)

    def _converse_privately(self, partners: Partners) -> Conversation[Learned[DescribeBody]]:
        numbers, listed = state_terms(self)
        cut = tuple(Attribute(one, tuple(self.bins[one])) for one in numbers)
        asked = (*cut, *(Attribute(one, (), values, missing=False) for one, values in listed.items()))
        classes = name_classes(self.target, state_values(self.values[self.target]))
        about: dict[str, Any] = {"query": self.query, "target": self.target, "classes": classes}
        share = SHARE_OF_SUMS if numbers else Fraction(0)
        variance = partners.variance(self.rho * (1 - share), len(asked) + 1)
        counts = yield AskCounts(**about, attributes=asked, noise=Gaussian(str(variance)))
        noise = math.sqrt(float(variance) * float(partners.noise_factor))
        table = tabulate(counts[0].astype(np.float64), asked, None, noise)
        if numbers:
            summing = AskMoments(**about, attributes=cut, measured=len(cut), noise=Gaussian("1"))
            variance = partners.variance(self.rho * share, summing.sensitivity.squared)
            summing = msgspec.structs.replace(summing, noise=Gaussian(str(variance)))
            sums = np.ldexp((yield summing).astype(np.float64), -summing.binary_places)
            of_sums = math.ldexp(
                math.sqrt(float(variance) * float(partners.noise_factor)), -summing.binary_places
            )
            rows = [
                _add_private_mean(row, cut[i], table.patients, sums[:, i], (noise, of_sums))
                for i, row in enumerate(table.numbers)
            ]
            table = msgspec.structs.replace(table, numbers=rows)
        body = DescribeBody(
            target=self.target, query=self.query, classes=list(classes.values), table=table, noise=noise
        )
        within = f"95 % of counts are within {WITHIN_95 * noise:.0f}"
        said = f"every count has noise of standard deviation {noise:.1f}: {within}"
        return Learned(body, {}, [self.say_price(), said])

    @property
    def attributes_(self) -> list[str]:
        table = self.body.table
        return sorted([*(one.name for one in table.numbers), *(one.name for one in table.categories)])

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """The share of each class among all patients, whoever the patient is."""
        counts = np.maximum(np.array(self.body.table.patients[:-1]), 1e-9)
        return np.tile(counts / counts.sum(), (len(self.read(patients)), 1))

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        body = self.body
        shares = self.predict_proba([{body.target: None}])[0]
        best = int(np.argmax(shares))
        share, n = float(shares[best]), max(body.table.patients[-1], 1.0)
        error = math.sqrt(share * (1 - share) / n + 2 * (body.noise / n) ** 2)
        interval = max(share - WITHIN_95 * error, 0.0), min(share + WITHIN_95 * error, 1.0)
        noise = ", noise included" if body.noise else ""
        said = say_value(body.classes[best], self.card.dictionary.get(body.target))
        first = (
            f"{body.target} = {said} ({say_share(share)} of {n:.0f} patients have it; "
            f"{say_share_interval(interval)}{noise}). A table of the population does not tell patients apart."
        )
        return Explanation(
            body.target,
            body.classes[best],
            float(shares[best]),
            (),
            (first,),
            float(shares[best]),
            patients=round(body.table.patients[-1]),
            chances=tuple(shares.tolist()),
            interval=interval,
        )

    def importances(self) -> dict[str, float]:
        """How far classes are apart in each attribute (standardised difference), the largest 100."""
        table = self.body.table
        found = {one.name: abs(one.difference or 0.0) for one in table.numbers}
        found |= {one.name: abs(one.difference or 0.0) for one in table.categories}
        most = max(found.values(), default=0.0) or 1.0
        return {one: 100 * found[one] / most for one in sorted(found, key=lambda one: (-found[one], one))}

    def rows(self, site: str | None = None) -> list[list[str]]:
        """The table in words, the head first; of one hospital where it was asked."""
        body = self.body
        return say_table(body.table if site is None else body.by_site[site], body, self.card.dictionary)

    def to_html(self, site: str | None = None) -> str:
        """The table as HTML."""
        return draw_html(self.rows(site))

    def to_csv(self, site: str | None = None) -> str:
        """The table as CSV."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(self.rows(site))
        return out.getvalue()

    def frame(self, site: str | None = None) -> DataFrame:
        """The table as a data frame of pandas."""
        import pandas

        head, *rows = self.rows(site)
        return pandas.DataFrame(rows, columns=head)

    def _text(self) -> str:
        body = self.body
        lines = [draw_text(self.rows())]
        if body.lacking:
            complete, everyone = body.lacking[0], max(sum(body.lacking), 1)
            lines.append(f"{complete} of {everyone} patients ({complete / everyone:.0%}) lack no value")
        apart = [one.name for one in body.table.numbers if (one.heterogeneity or 0.0) > 0.75]
        if apart:
            lines.append(f"differs between hospitals (I^2 above 75 %): {', '.join(apart)}")
        return "\n".join(lines)

    def _summary(self) -> str:
        return f"{len(self.attributes_)} attributes"


def _present_values(seen: Mapping[str, SchemaSeen], apart: set[str]) -> dict[str, tuple[Value, ...]]:
    """The categories that every hospital has with a single value, which a table shows too."""
    shared = set.intersection(*({a.name for a in one.attributes} for one in seen.values())) - apart
    found: dict[str, tuple[Value, ...]] = {}
    for name in sorted(shared):
        listed = present(
            value for one in seen.values() for a in one.attributes if a.name == name for value in a.values
        )
        if len(listed) == 1:
            found[name] = listed
    return found


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
            categories.append(_describe_category(attribute, own, noise))
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
    columns = counts.shape[1]
    row = NumberRow(
        name=attribute.name,
        patients=cells.sum(axis=0).tolist(),
        missing=missing.tolist(),
        mean=[None] * columns,
        deviation=[None] * columns,
        mean_error=[None] * columns,
        quartiles=[_find_quartiles(cells[:, place], attribute.edges) for place in range(columns)],
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
        between_hospitals=between,
        heterogeneity=heterogeneity,
    )


def _standardise(mean: Matrix, variance: Matrix) -> float | None:
    """The difference of two means over their deviation; None of other than two classes."""
    if len(mean) != 2 or not (np.isfinite(mean).all() and np.isfinite(variance).all() and variance.sum() > 0):
        return None
    return float((mean[1] - mean[0]) / math.sqrt(variance.mean()))


def _find_quartiles(cells: Matrix, edges: Sequence[float]) -> list[float] | None:
    """Lower quartile, median and upper quartile, interpolated within cells between edges; None where one lies beyond
    the outer edges, or nobody is counted."""
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
        found.append(float(edges[place - 1] + part * (edges[place] - edges[place - 1])))
    return found


def _describe_category(attribute: Attribute, counts: Matrix, noise: float) -> CategoryRow:
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
        difference=_standardise_shares(inner[:, :-1]),
    )
    table = inner[:, :-1]
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    if noise or min(table.shape, default=0) < 2:
        return row
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return msgspec.structs.replace(
        row, chi_squared=statistic, freedom=freedom, p=chi_squared_tail(statistic, freedom)
    )


def _standardise_shares(counts: Matrix) -> float | None:
    """The standardised difference of a category between two classes (Yang and Dalton 2012); it has no sign."""
    if counts.shape[1] != 2 or len(counts) < 2 or not counts.sum(axis=0).all():
        return None
    one, other = (counts / counts.sum(axis=0))[1:].T
    spread = [np.diag(p) - np.outer(p, p) for p in (one, other)]
    apart = other - one
    return math.sqrt(max(float(apart @ np.linalg.pinv((spread[0] + spread[1]) / 2) @ apart), 0.0))


def _add_private_mean(
    row: NumberRow, attribute: Attribute, totals: Sequence[float], sums: Matrix, noises: tuple[float, float]
) -> NumberRow:
    """A number's row with means from noisy sums of scaled values; errors include the noise of sums and of counts."""
    low, wide = attribute.edges[0], attribute.edges[-1] - attribute.edges[0]
    sums = np.column_stack([sums, sums.sum(axis=1)])
    classes = sums.shape[1] - 1
    mean: list[float | None] = []
    deviation: list[float | None] = []
    error: list[float | None] = []
    for place, (total, missing) in enumerate(zip(totals, row.missing, strict=True)):
        parts = classes if place == classes else 1
        # Those who know it are all but those who lack it: two counts, each with noise.
        n, of_count, of_sum = total - missing, *(noise * math.sqrt(parts) for noise in noises)
        of_count *= math.sqrt(2)
        if n < 3 * max(of_count, of_sum, 1.0):
            mean.append(None)
            deviation.append(None)
            error.append(None)
            continue
        share, square = float(np.clip(sums[0, place] / n, 0, 1)), float(sums[1, place] / n)
        variance = max(square - share**2, 0.0)
        mean.append(low + wide * share)
        deviation.append(wide * math.sqrt(variance))
        error.append(wide * math.sqrt(variance / n + (of_sum**2 + (share * of_count) ** 2) / n**2))
    return msgspec.structs.replace(row, mean=mean, deviation=deviation, mean_error=error)


def say_table(table: PopulationTable, body: DescribeBody, dictionary: Entries) -> list[list[str]]:
    """The rows of a table in words."""
    entry = dictionary.get(body.target)
    columns = [f"{body.target} = {say_value(value, entry)}" for value in body.classes]
    head = ["", *columns, "all", "difference", "p"]
    rows = [head, ["patients", *(f"{one:,.0f}" for one in table.patients), "", ""]]
    for number in table.numbers:
        middle = [_say_mean(number, place) for place in range(len(head) - 3)]
        rows.append([f"{number.name}, mean (sd)", *middle, _say_difference(number.difference), ""])
        if any(number.quartiles):
            rows.append(
                [f"{number.name}, median [quartiles]", *map(_say_quartiles, number.quartiles), "", ""]
            )
        rows += (
            [[f"{number.name}, missing", *_say_counts(number.missing), "", ""]] if any(number.missing) else []
        )
    for category in table.categories:
        known_here = [sum(column) for column in zip(*category.counts, strict=True)]
        for place, (value, counts) in enumerate(zip(category.values, category.counts, strict=True)):
            shares = [
                f"{count:,.0f} ({count / max(all_of, 1e-9):.1%})"
                for count, all_of in zip(counts, known_here, strict=True)
            ]
            last = ["", ""] if place else [_say_difference(category.difference), say_p(category.p)]
            said = say_value(value, dictionary.get(category.name))
            rows.append([f"{category.name} = {said}", *shares, *last])
        rows += (
            [[f"{category.name}, missing", *_say_counts(category.missing), "", ""]]
            if any(category.missing)
            else []
        )
    return rows


def _say_counts(counts: Sequence[float]) -> list[str]:
    return [f"{one:,.0f}" for one in counts]


def _say_difference(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _say_mean(row: NumberRow, place: int) -> str:
    mean, deviation = row.mean[place], row.deviation[place]
    return "" if mean is None else f"{say_number(mean)} ({say_number(deviation)})"


def _say_quartiles(quartiles: list[float] | None) -> str:
    if quartiles is None:
        return ""
    low, middle, high = map(say_number, quartiles)
    return f"{middle} [{low}, {high}]"
