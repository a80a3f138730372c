"""`CoxRegression`: hazard ratios with confidence intervals, stratified by hospital or with a common baseline.

docs/methods.md, part 9. Stratified, coefficients and errors equal the pooled Cox regression with hospitals as strata to
eight digits; with a common baseline, the pooled one with times cut to the public grid. Predicted risks take one
baseline for all hospitals, on the grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, ModelError, StudyError
from concilium.models.explanation import Explanation
from concilium.models.follow_up import Followed
from concilium.models.intervals import WITHIN_95
from concilium.models.method import PositiveClass, QueryText, ReleaseName, Target, documented
from concilium.models.prediction import AnyPatients
from concilium.models.risk_by_horizon import Horizon, Time
from concilium.parameters import Parameter, choice
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.grid import on_grid
from concilium.protocol.questions import Conversation, Gaussian, Learned, Partners, Statistic
from concilium.protocol.schema import (
    SchemaSeen,
    refuse_foreign_outcome,
    set_against_rest,
    state_values,
)
from concilium.records.columns import Value, label
from concilium.statistics.columns import (
    RegressionTerms,
    ask_schema,
    find_dependent,
    find_scales,
    pack_triangle,
    state_terms,
    unpack_triangle,
)
from concilium.statistics.cox_sums import AskCox, AskCoxCells, CoxCells, CoxSums, read_cells, read_cox
from concilium.statistics.distributions import chi_squared_tail
from concilium.statistics.families import Vector
from concilium.statistics.own_fits import HAZARDS
from concilium.statistics.private_hazards import MOST_CELLS, AskHazards
from concilium.statistics.regression_fit import (
    STEPS,
    Point,
    PrivateEnd,
    climb,
    find_running,
    fit_privately,
    invert,
    standardise,
)
from concilium.statistics.results import TermTest, fold_line
from concilium.statistics.survival import choose_horizon, say_survival, say_time
from concilium.statistics.term_model import (
    TermBody,
    TermModel,
    estimate_all,
    estimate_privately,
    say_explained,
    wald_tests,
    warn_of_terms,
)

CELLS = 100
# Of the price of a private fit, what the table of events costs.
SHARE_OF_TABLE = Fraction(1, 10)
# Fewer events than so many deviations of their noise are none.
SURELY = 5.0


def _read_grid(value: Any) -> list[float]:
    """Times in rising order, the first at zero or later."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not 1 <= len(value) <= 1000:
        raise ValueError
    plain = [one for one in value if isinstance(one, int | float) and not isinstance(one, bool)]
    times = [float(one) for one in plain if -1e15 < one < 1e15]
    rising = all(low < high for low, high in itertools.pairwise(times))
    if len(times) != len(value) or not rising or not times[0] >= 0 or not times[-1] < 1e15:
        raise ValueError
    return times


Grid = Annotated[
    Sequence[float] | None,
    Parameter(
        "a list of times in rising order",
        _read_grid,
        "public times at which curves and baselines are told; None: chosen on a public grid",
    ),
]


class CoxBody(TermBody, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a Cox regression's file holds. `hazard` is cumulative, of a patient of average columns, at each edge of the
    grid. Of its logarithm at the horizon, `baseline_variance` is the variance at these coefficients, and
    `baseline_means` is how far it falls as each coefficient rises: the mean columns of those at risk."""

    time: str
    grid: list[float]
    hazard: list[float]
    horizon: float
    patients: int
    events: int
    left_out: int
    likelihood: float | None = None
    null_likelihood: float | None = None
    concordance: float | None = None
    proportional: list[TermTest] = msgspec.field(default_factory=list)
    baseline_variance: float | None = None
    baseline_means: list[float] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) != 2 or len(self.grid) != len(self.hazard) or not self.grid:
            raise ValueError("a Cox regression has two classes, and a hazard for each time of its grid")
        if len(self.baseline_means) not in (0, len(self.terms.columns)):
            raise ValueError("a Cox regression has a mean of those at risk for each column, or none")


@dataclass
class _Newton:
    """The questions of one Cox regression."""

    about: Mapping[str, Any]
    grid: tuple[float, ...]
    common: bool

    def ask(self, terms: RegressionTerms, at: Vector, *, last: bool = False) -> Conversation[CoxSums]:
        question = AskCox(
            **self.about, attributes=terms.attributes, columns=terms.columns, at=tuple(at.tolist()), last=last
        )
        return read_cox(question, (yield question))

    def ask_cells(
        self, terms: RegressionTerms, at: Vector, *, moments: bool = False
    ) -> Conversation[CoxCells]:
        question = AskCoxCells(
            **self.about,
            attributes=terms.attributes,
            columns=terms.columns,
            at=tuple(at.tolist()),
            grid=self.grid,
            moments=moments,
        )
        return read_cells(question, (yield question))

    def look(self, terms: RegressionTerms, at: Vector) -> Conversation[Point]:
        """Partial likelihood, score and information."""
        if self.common:
            return (yield from self.ask_cells(terms, at, moments=True)).add_efron()
        sums = yield from self.ask(terms, at)
        return sums.likelihood, sums.score, sums.information

    def climb(
        self, terms: RegressionTerms
    ) -> Conversation[tuple[Vector, NDArray[np.float64], float, float, tuple[str, ...]]]:
        """Newton's steps: coefficients, information, likelihood there and at zero, and what runs away."""
        at, moved, null, last = yield from climb(partial(self.look, terms), np.zeros(len(terms.columns)))
        likelihood, _, information = last or (yield from self.look(terms, at))
        return at, information, likelihood, null[0], find_running(terms, moved)


@documented
@dataclass(eq=False, repr=False)
class CoxRegression(TermModel[CoxBody]):
    """`CoxRegression(target="death", time="days", positive="yes").fit(house)`: hazard ratios."""

    method: ClassVar[str] = "cox"
    called: ClassVar[str] = "a CoxRegression"
    description: ClassVar[str] = "hazard ratios with confidence intervals over all sites"
    body_type: ClassVar[type[CoxBody]] = CoxBody
    against_rest: ClassVar[bool] = True
    follows_time: ClassVar[bool] = True
    decides: ClassVar[str] = "the event is predicted where its risk by the horizon is above one half"
    differs_from_pooled: ClassVar[str] = (
        "is stratified: it equals the Cox regression of the pooled table with hospitals as strata to eight digits"
    )

    target: Target
    time: Time = "time"
    positive: PositiveClass = None
    query: QueryText = ""
    release: ReleaseName = "masked"
    _: KW_ONLY
    baseline: Annotated[
        Literal["hospital", "common"],
        Parameter(
            "'hospital' or 'common'",
            choice("hospital", "common"),
            '"hospital": each has its own baseline hazard (strata); "common": one for all, with times cut to `grid`',
        ),
    ] = "hospital"
    grid: Grid = None
    at: Horizon = None

    def check(self) -> None:
        if self.time == self.target:
            raise StudyError(f"{self.time!r} is the target, and cannot be the 'time' as well")
        if self.time in (self.attributes or ()):
            raise StudyError(f"{self.time!r} is the time, and cannot be among the 'attributes': take it out")
        super().check()

    def _check_private(self) -> None:
        if self.epsilon is None:
            raise StudyError("a private CoxRegression needs an 'epsilon', such as 3.0")
        self.baseline = "common"
        if not 2 <= len(self._ends) <= MOST_CELLS:
            raise StudyError(
                f"a private CoxRegression needs a public 'grid' of 2 to {MOST_CELLS} times, with a constant hazard "
                "between them; five are often enough"
            )
        if self.by_hospital:
            raise StudyError("a private CoxRegression has no comparison by_hospital: leave it out")
        if self.positive is None:
            raise StudyError(
                f"a private CoxRegression needs the value of {self.target!r} that is the event: positive"
            )

    @property
    def _ends(self) -> tuple[float, ...]:
        """Where the cells of a private study end."""
        return tuple(one for one in self.grid or self.bins.get(self.time, ()) if one > 0)

    @property
    def needed_columns(self) -> frozenset[str]:
        return super().needed_columns | ({self.time} if self.way_out.bounded else set())

    def plan(self) -> Plan:
        if self.way_out.bounded:
            first = PlannedQuestion(
                "counts", self.rho * SHARE_OF_TABLE, "events and censored patients on the grid"
            )
            steps = [
                PlannedQuestion(
                    AskHazards.kind,
                    self.rho * (1 - SHARE_OF_TABLE) * share,
                    f"step {number} of {len(STEPS)}: score and information",
                )
                for number, share in enumerate(STEPS, start=1)
            ]
            return Plan("rho", (first, *steps))
        kinds = [
            ("tree.schema", "which attributes, values and classes there are"),
            *([] if self.grid else [("counts", "how many patients have which times, for a grid: twice")]),
            (AskCox.kind, "about eight times: partial likelihood, score and information"),
            (AskCoxCells.kind, "events and relative risks on the grid, for the baseline"),
        ]
        questions = (PlannedQuestion(kind, None, note) for kind, note in kinds)
        return Plan("rho", (*questions, *self._plan_between))

    def may_cut(self, name: str, edges: Sequence[float]) -> bool:
        """The time on the study's grid, or on the public one."""
        if name == self.time:
            return set(edges) <= {0.0, *(self.grid or ()), *self._ends} or all(
                edge.is_integer() or on_grid(edge) for edge in edges
            )
        return super().may_cut(name, edges)

    def _find_foreign(self, question: Statistic) -> str | None:
        if isinstance(question, AskCounts) and [one.name for one in question.attributes] == [self.time]:
            return None if self.may_cut(self.time, question.named[0].edges) else "it cuts the time elsewhere"
        if isinstance(question, AskHazards) and question.grid != self._ends:
            return "it cuts the time elsewhere"
        return super()._find_foreign(question)

    def converse(self, partners: Partners) -> Conversation[Learned[CoxBody]]:
        return self._converse_privately(partners) if self.way_out.bounded else self._converse_plainly()

    def _converse_privately(self, partners: Partners) -> Conversation[Learned[CoxBody]]:
        """Newton's steps with noise, from the hazards that a noisy table shows."""
        grid, positive = self._ends, self.positive
        assert positive is not None
        numbers, categories = state_terms(self)
        terms = self._declaration.make_terms([one for one in numbers if one != self.time], categories)
        variance = partners.variance(self.rho * SHARE_OF_TABLE, 1)
        table = yield AskCounts(
            query=self.query,
            target=self.target,
            attributes=(Attribute(self.time, (0.0, *grid)),),
            classes=Attribute(self.target, (), (positive,), missing=False),
            totals=False,
            noise=Gaussian(str(variance)),
        )
        ends = np.maximum(table[0][2:].astype(np.float64), 0.0)
        events, leaving = ends[:-1, 0], ends[:-1].sum(axis=1)
        at_risk = ends.sum() - np.cumsum(leaving) + leaving / 2
        noise = math.sqrt(float(variance) * float(partners.noise_factor))
        if events.sum() <= SURELY * noise * math.sqrt(len(grid)):
            raise HouseError(
                f"noise hides the events of {self.target!r}: about {events.sum():.0f} by {self.time} = {grid[-1]:g}; "
                "raise epsilon, or look at the unit of the times"
            )
        hazards = np.log(np.maximum(events, 1.0) / np.maximum(at_risk, 1.0))

        def make(at: tuple[float, ...], noise: Gaussian, places: int) -> AskHazards:
            return AskHazards(
                query=self.query,
                target=self.target,
                attributes=terms.attributes,
                columns=terms.columns,
                time=self.time,
                positive=positive,
                grid=grid,
                at=at,
                noise=noise,
                places=places,
            )

        start = np.concatenate([hazards, np.zeros(len(terms.columns))])
        end = yield from fit_privately(make, start, "poisson", self.rho * (1 - SHARE_OF_TABLE), partners)
        body = self._make_private_body(terms, end, (round(float(ends.sum())), round(float(events.sum()))))
        return Learned(body, {}, [self.say_price(), *end.warn()])

    def _make_private_body(self, terms: RegressionTerms, end: PrivateEnd, counts: tuple[int, int]) -> CoxBody:
        """The fit in the units of the attributes; means are those over the events that would be
        expected if no term said anything."""
        grid, cells = self._ends, len(self._ends)
        told, scales, shifts = find_scales(terms)
        beta, expected = end.coefficients[cells:], np.maximum(np.diagonal(end.start)[:cells], 0.0)
        weight = max(float(expected.sum()), 1e-9)
        means = np.clip(end.start[:cells, cells:].sum(axis=0) / weight, -1, 1)
        squares = np.clip(np.diagonal(end.start)[cells:] / weight, 0, 1)
        steps = np.exp(end.coefficients[:cells] + means @ beta)
        hazard = np.cumsum(steps)
        horizon = float(self.at if self.at is not None else grid[-1])
        shares = steps * np.clip((horizon - np.array([0.0, *grid[:-1]])) / np.diff([0.0, *grid]), 0.0, 1.0)
        shares = shares / max(shares.sum(), 1e-300)
        covariance, variance, centre = None, None, means
        if end.covariance is not None:
            # The variance of log H(horizon) + x b as that of (x - centre) b, and what is left of the baseline.
            within, between = end.covariance[cells:, cells:], shares @ end.covariance[:cells, cells:]
            lean = invert(within) @ between
            covariance = within * np.outer(scales, scales)
            centre = -lean
            variance = float(shares @ end.covariance[:cells, :cells] @ shares - between @ lean)
        return CoxBody(
            target=self.target,
            query=self.query,
            time=self.time,
            classes=_name_classes(self.positive, state_values(self.values.get(self.target, ()))),
            terms=told,
            means=((means - shifts) / scales).tolist(),
            deviations=(np.sqrt(np.maximum(squares - means**2, 0.0)) / scales).tolist(),
            **estimate_privately(told, beta * scales, covariance),
            grid=list(grid),
            hazard=hazard.tolist(),
            horizon=horizon,
            baseline_variance=variance,
            baseline_means=[] if covariance is None else ((centre - means) / scales).tolist(),
            patients=counts[0],
            events=counts[1],
            left_out=0,
        )

    def _converse_plainly(self) -> Conversation[Learned[CoxBody]]:
        seen: dict[str, SchemaSeen] = yield ask_schema(self)
        refuse_foreign_outcome(seen, self.target)
        classes = _name_event(self.target, self.positive, seen)
        terms, left_out = self._choose_terms(seen, self.time)
        about: dict[str, Any] = {"query": self.query, "target": self.target, "time": self.time}
        grid = tuple(self.grid or (yield from _find_grid(self.query, self.target, self.time)))
        about |= {"positive": self.positive if self.positive is not None else classes[1]}
        newton = _Newton(about, grid, self.baseline == "common")
        start = yield from newton.ask(terms, np.zeros(len(terms.columns)))
        self._refuse_empty(start)
        dependent = find_dependent(start.information)
        kept = [place for place in range(len(terms.columns)) if place not in dependent]
        if not kept:
            raise HouseError("no term is left: every attribute is the same for all patients at risk")
        without = [terms.names[place] for place in dependent]
        terms = terms.take(kept)
        means = start.columns[kept] / start.patients
        scaled, spread = standardise(terms, means, start.squares[kept] / start.patients - means**2)
        at, information, likelihood, null, running = yield from newton.climb(scaled)
        last = yield from newton.ask(scaled, at, last=True)
        cells = yield from newton.ask_cells(scaled, at)
        body = self._make_body(
            terms, classes, (at, information, likelihood, null), last, cells, (means, spread), grid, running
        )
        warnings = self._warn(last, without, running)
        body = yield from self._compare(body, about, HAZARDS, warnings)
        return self._finish(body, seen, left_out, warnings)

    def _refuse_empty(self, start: CoxSums) -> None:
        if start.patients == 0:
            raise HouseError(
                f"no patient is left: everybody lacks {self.time!r} or a value of some attribute; name fewer "
                "'attributes'"
            )
        if start.events == 0:
            raise HouseError(
                f"nobody has the event: all {start.patients} patients are censored, and there is nothing to compare"
            )

    def _warn(self, last: CoxSums, dependent: Sequence[str], running: Sequence[str]) -> list[str]:
        warnings = warn_of_terms(last.left_out, last.patients, dependent)
        if last.untimed:
            warnings.append(f"{last.untimed} patients with a missing or negative {self.time} are left out")
        warnings += last.warn_of_hospitals(self.time)
        if running:
            warnings.append(
                f"{', '.join(running[:5])}: all events, or none, are on one side: the hazard ratio has no finite "
                "value; join values, or leave the term out"
            )
        return warnings

    def _make_body(
        self,
        terms: RegressionTerms,
        classes: list[Value],
        fitted: tuple[Vector, NDArray[np.float64], float, float],
        last: CoxSums,
        cells: CoxCells,
        scales: tuple[Vector, Vector],
        grid: tuple[float, ...],
        running: tuple[str, ...],
    ) -> CoxBody:
        at, information, likelihood, null = fitted
        means, spread = scales
        inverse = invert(information)
        back = np.diag(1 / spread)
        covariance = back @ inverse @ back
        assert last.clustered is not None
        clustered = back @ inverse @ last.clustered @ inverse @ back
        coefficients = back @ at
        estimates = estimate_all(
            terms.names,
            coefficients,
            (covariance, None, clustered if self.baseline == "hospital" else None),
            None,
            None,
            running,
        )
        agreeing, tied, pairs = last.pairs
        # A cell ends where the next one begins: what happened before an edge is known there.
        hazard, *certainty = (one[:-1] for one in cells.cumulative_hazard())
        horizon = float(self.at or (grid[-1] if self.grid else choose_horizon([0.0, *grid], cells.at_risk)))
        cell = min(int(np.searchsorted(grid, horizon)), len(grid) - 1)
        return CoxBody(
            target=self.target,
            query=self.query,
            time=self.time,
            classes=classes,
            terms=terms,
            estimates=estimates,
            covariance=pack_triangle(covariance).tolist(),
            means=means.tolist(),
            deviations=spread.tolist(),
            tests=wald_tests(terms, coefficients, covariance),
            grid=list(grid),
            hazard=hazard.tolist(),
            horizon=horizon,
            baseline_variance=float(certainty[0][cell] / hazard[cell] ** 2) if hazard[cell] else None,
            baseline_means=(certainty[1][cell] / hazard[cell] * spread).tolist() if hazard[cell] else [],
            patients=last.patients,
            events=last.events,
            left_out=last.left_out + last.untimed,
            likelihood=likelihood,
            null_likelihood=null,
            concordance=(agreeing + tied / 2) / pairs if pairs else None,
            proportional=_judge_proportional(terms, last, inverse),
        )

    @property
    def _ratio(self) -> str:
        return "hazard ratio"

    @property
    def concordance_(self) -> float | None:
        """Of pairs of patients of one hospital, in how many the one with the earlier event has the higher risk."""
        return self.body.concordance

    def _hazard_at(self, time: float) -> float:
        """The cumulative baseline hazard up to a time, linear within a cell."""
        body = self.body
        if time > body.grid[-1]:
            raise ModelError(
                f"the grid of this model ends at {body.grid[-1]:g}: there is no risk by {time:g}"
            )
        return float(np.interp(time, [0.0, *body.grid], [0.0, *body.hazard]))

    @property
    def followed(self) -> Followed:
        return Followed(self.body.time, min(self.body.horizon, self.body.grid[-1]))

    def decide(self, patients: AnyPatients) -> Vector:
        """The logarithm of each patient's hazard ratio to a patient of average columns."""
        ratios: Vector = self._center(patients) @ self.coef_
        return ratios

    def predict_survival(self, patients: AnyPatients, time: float) -> Vector:
        """The probability of no event by this time."""
        return np.asarray(np.exp(-self._hazard_at(time) * np.exp(np.clip(self.decide(patients), -100, 100))))

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """Of no event, and of the event, by the horizon."""
        alive = self.predict_survival(patients, self.followed.horizon)
        return np.column_stack([alive, 1 - alive])

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        body = self.body
        row, centred, reasons, doubts, notes = self._say_terms(patient)
        horizon = self.followed.horizon
        hazard, when = self._hazard_at(horizon), say_time(self.time, horizon, self.card.dictionary)
        ends = [1 - math.exp(-hazard), float(self.predict_proba([row])[0, 1])]
        interval = self._find_interval(centred, hazard, self._find_silent(row))
        return say_explained(
            body.target,
            body.classes,
            ends,
            reasons,
            doubts,
            notes,
            self._ratio,
            interval,
            self.way_out.bounded,
            entry=self.card.dictionary.get(body.target),
            by=f" by {when}",
            then=(say_survival(when, ends[1], interval),),
        )

    def _find_interval(self, centred: Vector, hazard: float, silent: float) -> tuple[float, float]:
        """Of the risk by the horizon of a patient with these columns; 0 to 1 where nobody can tell. `silent`: the
        variance of what is not known of the patient."""
        body = self.body
        if not body.covariance or self._find_endless(centred):  # noise hides it, or there is no finite ratio
            return 0.0, 1.0
        covariance = unpack_triangle(body.covariance, len(centred))
        # Files of before say nothing about the baseline: the log of a constant hazard has the variance 1 / events.
        from_mean = centred - np.array(body.baseline_means or np.zeros(len(centred)))
        variance = max(float(from_mean @ covariance @ from_mean), 0.0) + (
            1 / max(body.events, 1) if body.baseline_variance is None else body.baseline_variance
        )
        reach, log_risk = WITHIN_95 * math.sqrt(variance + silent), float(centred @ self.coef_)
        low, high = (
            1 - math.exp(-hazard * math.exp(min(log_risk + side, 100.0))) for side in (-reach, reach)
        )
        return low, high

    def _say_counts(self) -> list[str]:
        body, lines = self.body, []
        doubtful = [test.term for test in body.proportional if test.p < 0.05]
        if doubtful:
            said = ", ".join(map(self._say_term, doubtful))
            lines.append(fold_line(f"hazards may not be proportional (Schoenfeld test, p < 0.05): {said}"))
        if body.concordance is not None:
            lines.append(f"concordance within hospitals {body.concordance:.3f}")
        if self.way_out.bounded:
            lines.append(f"about {body.patients} patients and {body.events} events, with noise")
        else:
            lines.append(f"{body.patients} patients, {body.events} events; {body.left_out} left out")
        return lines


def _name_event(target: str, positive: Value | None, seen: Mapping[str, SchemaSeen]) -> list[Value]:
    """No event and the event, in this order."""
    found = state_values(value for one in seen.values() for value in one.classes)
    if positive is None:
        if len(found) != 2:
            raise HouseError(
                f"{target!r} has {len(found)} values; say which one is the event, positive = ..."
            )
        return list(found)
    if all(label(value) != label(positive) for value in found):
        raise HouseError(f"no patient has {target} = {label(positive)}: nobody has the event")
    return _name_classes(positive, found)


def _name_classes(positive: Any, found: Sequence[Value]) -> list[Value]:
    others = [value for value in found if label(value) != label(positive)]
    return list(set_against_rest(positive, others or ["censored"]))


def _find_grid(query: str, target: str, time: str) -> Conversation[list[float]]:
    """About a hundred times of two digits up to the last one, by two histograms: decades, and then their digits."""
    decades = tuple(float(f"1e{power}") for power in range(-3, 10))
    first = Attribute(time, decades)
    counts = split_counts(
        (first,), (yield AskCounts(query=query, target=target, attributes=(first,), totals=False))
    )
    cells = counts[time][1:, 0]
    if not cells.any():
        raise HouseError(f"nobody has a {time!r} that is a number, so that there is nothing to follow")
    last = int(np.flatnonzero(cells)[-1])
    top = decades[min(last, len(decades) - 1)]
    steps = tuple(float(f"{top * part / CELLS:.3g}") for part in range(1, CELLS + 1))
    second = Attribute(time, steps)
    counts = split_counts(
        (second,), (yield AskCounts(query=query, target=target, attributes=(second,), totals=False))
    )
    held = np.flatnonzero(counts[time][1:, 0])
    used = steps[: min(int(held[-1]) + 1, len(steps))]
    return list(used)


def _judge_proportional(
    terms: RegressionTerms, last: CoxSums, inverse: NDArray[np.float64]
) -> list[TermTest]:
    """Whether each coefficient changes with log(1 + time): scaled Schoenfeld residuals (Grambsch and Therneau 1994)."""
    assert last.late is not None
    total, squares = last.marks
    mean = total / last.events
    spread = squares - last.events * mean**2
    if last.events < 2 or spread <= 0:
        return []
    moved = last.events * (inverse @ (last.late - mean * last.score))
    statistics = moved**2 / (last.events * np.diagonal(inverse) * spread)
    return [
        TermTest(term, "proportional hazards", float(one), 1, chi_squared_tail(float(one), 1))
        for term, one in zip(terms.names, statistics.tolist(), strict=True)
    ]
