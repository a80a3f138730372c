"""`Describe`: Table 1. Who the patients are, by outcome or any group, over all hospitals or at each.

docs/methods.md, part 9. Counts and shares come from one table of counts by class; means and deviations from sums;
medians and quartiles from histograms on a public grid, interpolated within a cell. It predicts nothing of a patient but
what all patients have: the share of each class.
"""

from __future__ import annotations

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
from concilium.models.prediction import AnyPatients
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
from concilium.records.columns import Value
from concilium.records.dictionary import say_value
from concilium.statistics.columns import HELD_AT_ENDS, ask_schema, check_stated, find_terms, state_terms
from concilium.statistics.moments import AskMoments, read_moments
from concilium.statistics.population_table import (
    CategoryRow,
    Matrix,
    NumberRow,
    PopulationTable,
    add_private_mean,
    say_table,
    tabulate,
)
from concilium.statistics.results import draw_html, draw_text, fold_line, say_number, write_csv

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_CLASSES = 20
SHARE_OF_SUMS = Fraction(2, 5)
# Expected counts below this make chi-squared a rough test.
FEW_EXPECTED = 5.0
# What a reader is told of without looking it up.
MUCH_BETWEEN, MUCH_CORRELATED = 0.75, 0.5
MOST_NAMED = 10
# Hospitals whose tables stand side by side in the text; of more, in the CSV.
MOST_BESIDE = 8


class DescribeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What the file of a table holds: all hospitals together, and each one where that was asked. `lacking`: how
    many patients lack 0, 1, 2, ... attributes; `together`: how many lack both of a pair. `noise` is the standard
    deviation of what noise adds to a count."""

    target: str
    query: str
    classes: list[str | int | float | bool]
    table: PopulationTable
    by_site: dict[str, PopulationTable] = {}
    correlations: list[list[float]] = []
    lacking: list[int] = []
    together: dict[str, dict[str, int]] = {}
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
    tells_apart: ClassVar[bool] = False
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
        summing = None
        if not floored:
            summing = AskMoments(**about, attributes=(*measured, *known_only), measured=len(measured))
        by_site: dict[str, PopulationTable] = {}
        for site in sorted(seen) if self.by_hospital else ():
            counts = yield Among(counting, [site])
            sums = None if summing is None else read_moments(summing, (yield Among(summing, [site])))
            by_site[site] = tabulate(counts[0].astype(np.float64), asked, sums).without_hospitals()
        counts = yield counting
        moments = None if summing is None else read_moments(summing, (yield summing))
        body = DescribeBody(
            target=self.target,
            query=self.query,
            classes=list(classes.values),
            table=tabulate(counts[0].astype(np.float64), asked, moments),
            by_site=by_site,
            correlations=[] if moments is None else moments.correlations.tolist(),
            lacking=[] if moments is None else moments.lacking,
            together={} if moments is None else _name_pairs([one.name for one in asked], moments.together),
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
                add_private_mean(row, cut[i], table.patients, sums[:, i], (noise, of_sums))
                for i, row in enumerate(table.numbers)
            ]
            table = msgspec.structs.replace(table, numbers=rows)
        body = DescribeBody(
            target=self.target, query=self.query, classes=list(classes.values), table=table, noise=noise
        )
        within = f"95 % of counts are within {WITHIN_95 * noise:.0f}"
        said = [f"every count has noise of standard deviation {noise:.1f}: {within}"]
        said += [HELD_AT_ENDS] if numbers else []
        return Learned(body, {}, [self.say_price(), *said])

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
            f"{body.target} = {said} ({say_share(share)} of {'about ' if noise else ''}{n:.0f} patients have it; "
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

    def _say_lacking(self, patient: Mapping[str, Any], explanation: Explanation) -> list[str]:
        return []  # whatever is measured, a table says the same of everybody

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
        table = body.table if site is None else body.by_site[site]
        return say_table(table, body.target, body.classes, self.card.dictionary, noise=body.noise)

    def to_html(self, site: str | None = None) -> str:
        """The table as HTML."""
        return draw_html(self.rows(site))

    def to_csv(self, site: str | None = None) -> str:
        """The table as CSV; without a `site`, that of all hospitals, and what each one has below."""
        beside = self._compare_hospitals() if site is None and self.body.by_site else []
        return write_csv([*self.rows(site), *([[], *beside] if beside else [])])

    def _compare_hospitals(self) -> list[list[str]]:
        """The patients of each hospital side by side, whatever their class."""
        last = len(self.body.classes) + 1
        tables = {site: {row[0]: row[last] for row in self.rows(site)[1:]} for site in self.body.by_site}
        everyone = {row[0]: row[last] for row in self.rows()[1:]}
        return [
            ["", *tables, "all"],
            *(
                [name, *(one.get(name, "") for one in tables.values()), all_]
                for name, all_ in everyone.items()
            ),
        ]

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
        lines += [
            fold_line(f"{title}: {', '.join(said)}")
            for title, said in {
                "missing together": self._say_together(),
                f"correlated (beyond {MUCH_CORRELATED})": self._say_correlated(),
                f"differs between hospitals (I^2 above {MUCH_BETWEEN:.0%})": [
                    one.name for one in self._all_rows if (one.heterogeneity or 0.0) > MUCH_BETWEEN
                ],
                f"chi-squared by {body.target}": [
                    f"{one.name} {say_number(one.chi_squared)} on {one.freedom}"
                    + (" (rough)" if (one.least_expected or 9.0) < FEW_EXPECTED else "")
                    for one in body.table.categories
                    if one.chi_squared is not None
                ],
            }.items()
            if said
        ]
        if any((one.least_expected or 9.0) < FEW_EXPECTED for one in body.table.categories):
            lines.append(f"rough: counts below {FEW_EXPECTED:g} are expected, too few for this test")
        if 0 < len(body.by_site) <= MOST_BESIDE:
            lines += ["", draw_text(self._compare_hospitals())]
        if body.noise:
            lines.append("±: 95 % of the noise")
        return "\n".join(lines)

    @property
    def _all_rows(self) -> list[NumberRow | CategoryRow]:
        return [*self.body.table.numbers, *self.body.table.categories]

    def _say_together(self) -> list[str]:
        """The pairs of attributes that most patients lack both of."""
        pairs = [
            (count, one, other)
            for one, row in self.body.together.items()
            for other, count in row.items()
            if one < other and count
        ]
        pairs.sort(key=lambda pair: (-pair[0], *pair[1:]))
        return [f"{one} and {other} ({count})" for count, one, other in pairs[:MOST_NAMED]]

    def _say_correlated(self) -> list[str]:
        names = [one.name for one in self.body.table.numbers]
        pairs = [
            (value, names[i], names[j])
            for i, row in enumerate(self.body.correlations)
            for j, value in enumerate(row[:i])
            if abs(value) > MUCH_CORRELATED
        ]
        pairs.sort(key=lambda pair: -abs(pair[0]))
        return [f"{other} and {one} {value:.2f}" for value, one, other in pairs[:MOST_NAMED]]

    def correlations(self) -> DataFrame:
        """Pearson's correlations of the numbers, over patients who know both."""
        import pandas

        names = [one.name for one in self.body.table.numbers]
        return pandas.DataFrame(self.body.correlations, index=names, columns=names)

    def missing_together(self) -> DataFrame:
        """How many patients lack both of each pair of attributes; on the diagonal, how many lack one."""
        import pandas

        return pandas.DataFrame(self.body.together)

    def _summary(self) -> str:
        return f"{len(self.attributes_)} attributes"


def _name_pairs(names: Sequence[str], together: Matrix) -> dict[str, dict[str, int]]:
    """How many patients lack both of two attributes, of those that anybody lacks."""
    lacked = [place for place in range(len(together)) if together[place, place] > 0]
    return {names[i]: {names[j]: round(float(together[i, j])) for j in lacked} for i in lacked}


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
