"""`SurvivalCurve`: Kaplan-Meier curves with intervals and numbers at risk, over all hospitals.

docs/methods.md, part 9. All of it follows from counts of patients by time cell, kind of end and group. Each patient is
in one cell: the squared sensitivity of the whole table is 1, whatever the number of cells and groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, ModelError, StudyError
from concilium.models.explanation import ALMOST_ALL, Explanation, say_risk, say_risk_interval
from concilium.models.follow_up import Followed
from concilium.models.method import (
    Bins,
    Delta,
    Epsilon,
    PositiveClass,
    PrivateMethod,
    QueryText,
    ReleaseName,
    Target,
    Values,
    documented,
    read_value,
)
from concilium.models.pictures import COLOURS, SOFT, draw_frame, element_text
from concilium.models.prediction import AnyPatients
from concilium.models.risk_by_horizon import Horizon, Time
from concilium.parameters import Parameter, name
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.attributes import MOST_EDGES, Attribute, present, recode, say_edge
from concilium.protocol.counts import AskCounts
from concilium.protocol.questions import Conversation, Gaussian, Learned, Partners, Statistic
from concilium.protocol.schema import (
    AskSchema,
    SchemaSeen,
    refuse_foreign_outcome,
    set_against_rest,
    state_values,
)
from concilium.protocol.splits import Split
from concilium.records.columns import Value, label
from concilium.records.dictionary import say_value
from concilium.statistics.cox import Grid
from concilium.statistics.cox_sums import AskCox, read_cox
from concilium.statistics.results import (
    LETTERS,
    TermTest,
    draw_html,
    draw_text,
    known,
    say_number,
    say_p,
    write_csv,
)
from concilium.statistics.survival import (
    FreeShares,
    SurvivalSteps,
    Vector,
    choose_horizon,
    compare_groups,
    make_curve,
    say_survival,
    say_time,
)

MOST_GROUPS = 20
MOST_LOOKS = 20
EVERYONE = "all patients"
# A value with its interval; None where there is none.
Told = tuple[float, float | None, float | None]
FAINT = "#e6eaee"
LEFT, TOP, WIDE, HIGH, LINE, LETTER = 64, 16, 460, 260, 18, 8


def _read_causes(value: Any) -> list[Value]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError
    return [read_value(one) for one in value]


class SurvivalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What the file of survival curves holds. The curve of all patients comes first, then one for each group, in the
    order of the cells of `groups`. `times`: when what a cell tells is known."""

    target: str
    query: str
    time: str
    classes: list[str | int | float | bool]
    competing: list[str | int | float | bool]
    groups: Attribute | None = None
    times: list[float]
    curves: list[SurvivalSteps]
    horizon: float
    test: TermTest | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        cells = 0 if self.groups is None else self.groups.size
        if len(self.curves) != 1 + cells or len(self.classes) != 2 or not self.times:
            raise ValueError("survival curves are of all patients, and of each group")
        if any(len(one.survival) != len(self.times) for one in self.curves):
            raise ValueError("a survival curve has a value for each time")


@documented
@dataclass(eq=False, repr=False)
class SurvivalCurve(PrivateMethod[SurvivalBody]):
    """`SurvivalCurve(target="death", time="days", by="ward").fit(house)`: curves with intervals and numbers at risk."""

    method: ClassVar[str] = "survival-curve"
    called: ClassVar[str] = "a SurvivalCurve"
    description: ClassVar[str] = "survival curves with confidence intervals over all sites"
    body_type: ClassVar[type[SurvivalBody]] = SurvivalBody
    against_rest: ClassVar[bool] = True
    follows_time: ClassVar[bool] = True
    decides: ClassVar[str] = "the event is predicted where its risk by the horizon is above one half"

    target: Target
    time: Time = "time"
    positive: PositiveClass = None
    query: QueryText = ""
    release: ReleaseName = "masked"
    _: KW_ONLY
    by: Annotated[
        str | None,
        Parameter(
            "an attribute's name", name, "a curve for each of its values, and a log-rank test between them"
        ),
    ] = None
    competing: Annotated[
        Sequence[Value],
        Parameter(
            "a list of values of the target",
            _read_causes,
            "ends that make the event impossible, such as death before relapse (Aalen-Johansen); all others censor",
        ),
    ] = ()
    grid: Grid = None
    at: Horizon = None
    epsilon: Epsilon = None
    delta: Delta = "1/1000000"
    values: Values = field(default_factory=dict)
    bins: Bins = field(default_factory=dict)

    def check(self) -> None:
        if self.time in (self.target, self.by) or self.by == self.target:
            raise StudyError("the 'target', the 'time' and 'by' of a SurvivalCurve must be three columns")
        if not self.way_out.bounded:
            return
        if self.epsilon is None:
            raise StudyError("a private SurvivalCurve needs an 'epsilon', such as 1.0")
        if not self._stated_grid:
            raise StudyError(
                f"a private SurvivalCurve needs the 'grid' of {self.time!r}, such as [30, 60, 90]"
            )
        if self.by is not None and self.by not in self.values and self.by not in self.bins:
            raise StudyError(f"a private SurvivalCurve states 'values' or 'bins' for {self.by!r}")
        self._name_ends(state_values(self.values.get(self.target, ())))

    @property
    def _stated_grid(self) -> list[float] | None:
        """From zero on: what is before is no time."""
        stated = self.grid or self.bins.get(self.time)
        return None if not stated else sorted({0.0, *(one for one in stated if one >= 0)})

    def _name_ends(self, found: Sequence[Value]) -> list[Value]:
        """No event and the event."""
        competing = {label(value) for value in self.competing}
        if self.positive is None:
            rest = [value for value in found if label(value) not in competing]
            if len(rest) != 2:
                raise (StudyError if self.way_out.bounded else HouseError)(
                    f"{self.target!r} has {len(found)} values; say which one is the event, positive = ..."
                )
            return rest
        others = [value for value in found if label(value) not in {*competing, label(self.positive)}]
        if found and not self.way_out.bounded and label(self.positive) not in map(label, found):
            raise HouseError(
                f"no patient has {self.target} = {label(self.positive)}: nobody has the event, and every curve is flat"
            )
        return list(set_against_rest(self.positive, others or ["censored"]))

    def plan(self) -> Plan:
        note = "patients by time, kind of end and group"
        if self.way_out.bounded:
            return Plan("rho", (PlannedQuestion("counts", self.rho, note),))
        schema = PlannedQuestion("tree.schema", None, "which ends and groups there are")
        often = "" if self._stated_grid else f", a thousand times at once: at most {MOST_LOOKS} times"
        units = PlannedQuestion(AskCox.kind, None, f"whether {self.time} has one unit everywhere")
        return Plan("rho", (schema, PlannedQuestion("counts", None, note + often), units))

    @property
    def _asked(self) -> list[str]:
        return [] if self.by is None else [self.by]

    def _is_agreed(self, parameter: str, asked: Any) -> bool:
        if parameter == "attributes":
            return bool(asked == self._asked)
        if parameter == "bins":
            return bool(asked == self._asked_bins)
        return super()._is_agreed(parameter, asked)

    @property
    def _asked_bins(self) -> dict[str, list[float]]:
        return {one: list(self.bins[one]) for one in self._asked if one in self.bins}

    def may_cut(self, name: str, edges: Sequence[float]) -> bool:
        if name != self.time:
            return super().may_cut(name, edges)
        stated = self._stated_grid
        return all(edge.is_integer() for edge in edges) if stated is None else set(edges) <= set(stated)

    def _find_foreign(self, question: Statistic) -> str | None:
        for one in question.named:
            if one.name not in (self.target, self.time, self.by):
                return f"it asks about {one.name!r}, which the study does not"
        return super()._find_foreign(question)

    def converse(self, partners: Partners) -> Conversation[Learned[SurvivalBody]]:
        if self.way_out.bounded:
            return self._converse_privately(partners)
        return self._converse_plainly()

    def _converse_plainly(self) -> Conversation[Learned[SurvivalBody]]:
        seen: dict[str, SchemaSeen] = yield AskSchema(
            query=self.query,
            target=self.target,
            bins=self._asked_bins,
            attributes=self._asked,
            count_patients=self.way_out.by_site,
        )
        refuse_foreign_outcome(seen, self.target)
        ends = self._name_ends(state_values(value for one in seen.values() for value in one.classes))
        by = self._find_groups(seen)
        tables, edges, lost = yield from self._count(ends, by)
        if tables[:, :, :-1].sum() == 0:
            raise HouseError("nobody has the event: all patients are censored, and every curve is flat")
        warnings = []
        if lost[0]:
            warnings.append(f"{lost[0]} patients without a {self.time} are left out")
        if lost[1]:
            warnings.append(
                f"{lost[1]} patients with a negative {self.time} are left out: correct it where it is wrong"
            )
        if any(one.floored for one in seen.values()):
            warnings.append("hospitals leave small counts out: curves are of the others")
        else:
            # A Cox regression without terms: how many have events, and how long patients are followed.
            event = self.positive if self.positive is not None else ends[1]
            about: dict[str, Any] = {"query": self.query, "target": self.target, "time": self.time}
            question = AskCox(**about, positive=event, attributes=(), columns=(), at=())
            warnings += read_cox(question, (yield question)).warn_of_hospitals(self.time)
        body = self._make_body(ends, by, tables, edges, 0.0)
        if self.at is not None and self.at > body.horizon:
            warnings.append(
                f"nobody is followed to {self.time} = {self.at:g}: curves, and what is predicted, end at "
                f"{body.horizon:g}"
            )
        return Learned(body, {site: one.patients for site, one in seen.items()}, warnings)

    def _find_groups(self, seen: Mapping[str, SchemaSeen]) -> Attribute | None:
        if self.by is None:
            return None
        if self.by in self.bins:
            return Attribute(self.by, tuple(self.bins[self.by]))
        listed = [one for schema in seen.values() for one in schema.attributes if one.name == self.by]
        if len(listed) < len(seen):
            raise HouseError(
                f"{self.by!r} is a number somewhere, or not known: give it bins, or take another attribute for 'by'"
            )
        values = present(value for one in listed for value in one.values)
        if not 1 <= len(values) <= MOST_GROUPS:
            raise HouseError(
                f"{self.by!r} has {len(values)} values: curves are drawn for 1 to {MOST_GROUPS} groups"
            )
        missing = any(None in one.values for one in listed)
        return Attribute(self.by, (), values, missing=missing, other=False)

    def _ask(self, ends: list[Value], by: Attribute | None, edges: Sequence[float], **more: Any) -> AskCounts:
        event = self.positive if self.positive is not None else ends[1]
        time = Attribute(self.time, tuple(edges))
        tree = [] if by is None else [Split(0, 1, list(range(1, by.size + 1)))]
        return AskCounts(
            query=self.query,
            target=self.target,
            attributes=(time,) if by is None else (time, by),
            classes=Attribute(self.target, (), (event, *self.competing), missing=False, other=True),
            tree=tree,
            nodes=[0] if by is None else list(range(1, by.size + 1)),
            counted=[0],
            totals=False,
            **more,
        )

    def _count(
        self, ends: list[Value], by: Attribute | None
    ) -> Conversation[tuple[NDArray[np.float64], list[float], tuple[int, int]]]:
        """Tables [group, cell, kind], the edges of their cells, and how many lack a time or have a negative one."""
        stated = self._stated_grid
        edges = stated or [float(day) for day in range(MOST_EDGES)]
        counts = (yield self._ask(ends, by, edges)).astype(np.float64)
        lost = round(counts[:, 0].sum()), round(counts[:, 1].sum())
        table = counts[:, 2:]
        looks = 1
        while stated is None and table[:, -1].any() and looks < MOST_LOOKS:
            start = edges[-1]
            more = [start + day for day in range(MOST_EDGES)]
            counts = (yield self._ask(ends, by, more)).astype(np.float64)
            table = np.concatenate([table[:, :-1], counts[:, 2:]], axis=1)
            edges = [*edges[:-1], *more]
            looks += 1
        return table, edges, lost

    def _converse_privately(self, partners: Partners) -> Conversation[Learned[SurvivalBody]]:
        ends = self._name_ends(state_values(self.values.get(self.target, ())))
        by = None
        if self.by in self.bins:
            by = Attribute(str(self.by), tuple(self.bins[str(self.by)]))
        elif self.by is not None:
            by = Attribute(self.by, (), state_values(self.values[self.by]), missing=False)
        edges = self._stated_grid
        assert edges is not None
        variance = partners.variance(self.rho, 1)
        counts = yield self._ask(ends, by, edges, noise=Gaussian(str(variance)))
        added = float(variance) * float(partners.noise_factor)
        body = self._make_body(ends, by, counts.astype(np.float64)[:, 2:], edges, added)
        return Learned(body, {}, [self.say_price(), "curves have noise, and their intervals include it"])

    def _make_body(
        self,
        ends: list[Value],
        by: Attribute | None,
        tables: NDArray[np.float64],
        edges: list[float],
        variance: float,
    ) -> SurvivalBody:
        """The last cell, from the last edge on, is at risk until then and tells nothing."""
        whole = self._stated_grid is None
        if whole:
            last = int(np.flatnonzero(tables.sum(axis=(0, 2)))[-1]) + 1
            tables, times = tables[:, :last], edges[:last]
        else:
            times = edges[1:]
        # Who is beyond the last edge is at risk to the end: a censored patient of one more cell.
        shown = len(times)
        everyone = tables.sum(axis=0)
        listed = [(EVERYONE, everyone, variance * len(tables))]
        listed += (
            []
            if by is None
            else [(self._say_group(by, cell), tables[cell], variance) for cell in range(by.size)]
        )
        curves = [_cut(make_curve(said, table, noise, cut=not whole), shown) for said, table, noise in listed]
        test = None if variance or by is None else compare_groups(_with_rest(tables, shown))
        return SurvivalBody(
            target=self.target,
            query=self.query,
            time=self.time,
            classes=ends,
            competing=list(self.competing),
            groups=by,
            times=times,
            curves=curves,
            horizon=min(float(self.at), times[-1])
            if self.at is not None
            else choose_horizon(times, np.array(curves[0].at_risk))
            if whole
            else float(times[-1]),
            test=test,
            exact=whole,
        )

    @staticmethod
    def _say_group(by: Attribute, cell: int) -> str:
        if by.missing and cell == 0:
            return f"{by.name} missing"
        if cell == by.other_cell:
            return f"{by.name} {'any other' if by.missing else 'missing or any other'}"
        place = cell - by.first
        if not by.edges:
            return f"{by.name} = {label(by.values[place])}"
        low = f"{say_edge(by.edges[place - 1])} <= " if place else ""
        high = f" < {say_edge(by.edges[place])}" if place < len(by.edges) else ""
        return f"{low}{by.name}{high}"

    def _say_curve(self, curve: SurvivalSteps) -> str:
        """Whose curve it is, with what the dictionary says of the value."""
        by = self.body.groups
        if by is None:
            return curve.group
        entry = self.card.dictionary.get(by.name)
        said = {
            f"{by.name} = {label(value)}": f"{by.name} = {say_value(value, entry)}" for value in by.values
        }
        return said.get(curve.group, curve.group)

    @property
    def attributes_(self) -> list[str]:
        return [] if self.body.groups is None else [self.body.groups.name]

    @property
    def followed(self) -> Followed:
        """What a cell tells is known when it ends; of one day, on that day."""
        body = self.body
        end = float(np.nextafter(body.horizon, np.inf)) if body.exact else body.horizon
        return Followed(body.time, end, tuple(map(label, body.competing)))

    def _find_curves(self, patients: AnyPatients) -> list[SurvivalSteps]:
        """The curve of each patient's group; that of all patients where the group is not known, or noise hides it."""
        source = self.read(patients)
        by = self.body.groups
        if by is None:
            return [self.body.curves[0]] * len(source)
        codes, cells = recode(by, source)
        return [
            self.body.curves[0] if self._is_hidden(curve) else curve
            for curve in (self.body.curves[cell + 1] for cell in np.take(cells, codes).tolist())
        ]

    def _is_hidden(self, curve: SurvivalSteps) -> bool:
        """Whether noise leaves nothing to tell of a group: it may have no patients at all."""
        _, low, high = self._find_risk(curve, self.body.horizon)
        return self.way_out.bounded and (low is None or high is None or high - low >= ALMOST_ALL)

    def _find_free(self, curve: SurvivalSteps) -> FreeShares:
        return curve.find_free(competing=bool(self.body.competing))

    def _find_survival(self, curve: SurvivalSteps, time: float) -> Told:
        """The share without the event at a time, with its interval."""
        body = self.body
        if time > body.times[-1]:
            raise ModelError(
                f"the curves end at {body.time} = {body.times[-1]:g}: there is no risk by {time:g}"
            )
        value, low, high = self._find_free(curve).at(body.times, time, cut=not body.exact)
        return value, known(low), known(high)

    def _find_risk(self, curve: SurvivalSteps, time: float) -> Told:
        """The risk of the event by a time, with its interval."""
        value, low, high = self._find_survival(curve, time)
        return 1 - value, None if high is None else 1 - high, None if low is None else 1 - low

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """Of no event, and of the event, by the horizon: that of the patient's group."""
        risk = np.array([self._find_risk(one, self.body.horizon)[0] for one in self._find_curves(patients)])
        risk = np.clip(risk, 0.0, 1.0)
        return np.column_stack([1 - risk, risk])

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        body = self.body
        row = {one: patient.get(one) for one in self.attributes_} or {body.target: None}
        entered = all(name in patient for name in self.attributes_)
        curve = self._find_curves([row])[0] if entered else body.curves[0]
        risk, low, high = self._find_risk(curve, body.horizon)
        chances = (1 - risk, risk)
        best = int(np.argmax(chances))
        told = (0.0, 1.0) if low is None or high is None else (low, high)
        noise = ", noise included" if self.way_out.bounded else ""
        count = f"{curve.patients:.0f} patients"
        if noise:
            count = f"about {count}" if curve.group != EVERYONE else f"patients, about {curve.patients:.0f}"
        whose = f"all {count}" if curve.group == EVERYONE else f"{self._say_curve(curve)}, {count}"
        entry = self.card.dictionary.get(body.target)
        when = say_time(body.time, body.horizon, self.card.dictionary)
        of_event = "" if best else f"{say_value(body.classes[1], entry)}: "
        first = (
            f"{body.target} = {say_value(body.classes[best], entry)} by {when} "
            f"({of_event}{say_risk(risk)}; {say_risk_interval(told)}{noise}; {whose})."
        )
        survival = [] if body.competing else [say_survival(when, risk, told)]
        notes = []
        if curve.group == EVERYONE and self.attributes_ and self.attributes_[0] in patient:
            name = self.attributes_[0]
            value = say_value(patient[name], self.card.dictionary.get(name))
            group = f"{name} missing" if patient[name] is None else f"{name} = {value}"
            notes.append(f"There is no curve for {group}: the answer is about all patients.")
        told = told if best else (1 - told[1], 1 - told[0])
        base = self._find_risk(body.curves[0], body.horizon)[0]
        return Explanation(
            body.target,
            body.classes[best],
            chances[best],
            (),
            (first, *survival, *notes),
            base if best else 1 - base,
            patients=round(curve.patients),
            notes=tuple(notes),
            chances=chances,
            interval=told,
        )

    def importances(self) -> dict[str, float]:
        return dict.fromkeys(self.attributes_, 100.0)

    def survival_at(self, time: float) -> dict[str, Told]:
        """The share without the event at a time with its interval, by group: all patients first."""
        return {one.group: self._find_survival(one, time) for one in self.body.curves}

    @property
    def medians_(self) -> dict[str, tuple[float | None, ...]]:
        """The median time with its interval, by group; None where it is not reached."""
        body = self.body
        return {
            one.group: self._find_free(one).find_median(body.times, cut=not body.exact) for one in body.curves
        }

    @property
    def restricted_means_(self) -> dict[str, tuple[float, float, float]]:
        """The mean time without the event up to the horizon with its interval, by group."""
        body = self.body
        return {
            one.group: self._find_free(one).find_restricted_mean(body.times, body.horizon, cut=not body.exact)
            for one in body.curves
        }

    def rows(self) -> list[list[str]]:
        """For each group the share at the horizon, the median and the restricted mean, with intervals."""
        body, medians, means = self.body, self.medians_, self.restricted_means_
        what, find = ("incidence", self._find_risk) if body.competing else ("survival", self._find_survival)
        by = f"{body.horizon:g}"
        rows = [
            [body.target, "patients", "events", f"{what} at {by}", "95 % CI", "median", f"mean up to {by}"]
        ]
        for one in body.curves:
            hidden = self._is_hidden(one)
            value, low, high = find(one, body.horizon)
            rows.append(
                [
                    self._say_curve(one),
                    f"{one.patients:.0f}",
                    f"{sum(one.events):.0f}",
                    "hidden by noise" if hidden else f"{value:.1%}",
                    "" if hidden or low is None or high is None else f"{low:.1%} to {high:.1%}",
                    "" if hidden else _say_median(medians[one.group]),
                    "" if hidden else _say_mean(means[one.group]),
                ]
            )
        return rows

    def to_html(self) -> str:
        """The table as HTML."""
        return draw_html(self.rows())

    def to_csv(self) -> str:
        """Every step of every curve: what is drawn, with numbers at risk. The share without the event, or beside
        competing ends the incidence, stands with its interval."""
        body = self.body
        what = "incidence" if body.competing else "survival"
        rows: list[list[Any]] = [
            ["group", body.time, "at_risk", "events", "competing", "censored", what, "low", "high"]
        ]
        for one in body.curves:
            shares = self._find_free(one)
            told = (shares.value, shares.low, shares.high)
            if body.competing:
                told = (1 - shares.value, 1 - shares.high, 1 - shares.low)
            counts = (one.at_risk, one.events, one.competing, one.censored)
            for time, *rest in zip(body.times, *counts, *(each.tolist() for each in told), strict=True):
                rows.append([self._say_curve(one), time, *map(known, rest)])
        return write_csv(rows)

    def _text(self) -> str:
        body = self.body
        lines = [draw_text(self.rows())]
        if body.test is not None:
            alone, test = " of the event alone" if body.competing else "", body.test
            lines.append(
                f"log-rank test{alone}: chi-squared {test.statistic:.2f} on {test.freedom}, p {say_p(test.p)}"
            )
        if (more := len(self._drawn) - len(COLOURS)) > 0:
            lines.append(f"the picture has the first {len(COLOURS)} groups; {more} more in the table")
        if not body.exact:
            lines.append(f"times are cut to a grid of {len(body.times)}")
        return "\n".join(lines)

    @property
    def _drawn(self) -> list[SurvivalSteps]:
        """The groups of which noise hides nothing; all patients where there are none."""
        return [one for one in self.body.curves[1:] if not self._is_hidden(one)] or self.body.curves[:1]

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """Curves with intervals, and numbers at risk below."""
        body = self.body
        shown = [
            (msgspec.structs.replace(one, group=self._say_curve(one)), self._find_free(one))
            for one in self._drawn[: len(COLOURS)]
        ]
        what = "incidence" if body.competing else "survival"
        drawn = draw_curves(shown, body.times, body.time, cut=not body.exact, rising=bool(body.competing))
        return {what: drawn}

    def _summary(self) -> str:
        return f"{len(self.body.curves)} curve{'' if len(self.body.curves) == 1 else 's'}"


def _say_median(median: tuple[float | None, ...]) -> str:
    value, low, high = (None if one is None else say_number(one) for one in median)
    if value is None:
        return "not reached" if low is None else f"not reached (after {low})"
    return (
        f"{value} ({low} to {high})"
        if low and high
        else f"{value} ({f'after {low}' if low else 'no interval'})"
    )


def _say_mean(mean: tuple[float, float, float]) -> str:
    value, low, high = map(say_number, mean)
    return f"{value} ({low} to {high})"


def _with_rest(tables: NDArray[np.float64], shown: int) -> list[NDArray[np.float64]]:
    """Each group's table, where events beyond the cells that are shown count as censored."""
    settled = tables.copy()
    settled[:, shown:, -1] += settled[:, shown:, :-1].sum(axis=2)
    settled[:, shown:, :-1] = 0
    return list(settled)


def _cut(curve: SurvivalSteps, shown: int) -> SurvivalSteps:
    """The curve up to the last cell that is told."""
    lists = {
        one: getattr(curve, one)[:shown]
        for one in curve.__struct_fields__
        if isinstance(getattr(curve, one), list)
    }
    return msgspec.structs.replace(curve, **lists)


def _shorten(group: str) -> str:
    return group if len(group) <= LETTERS else f"{group[: LETTERS - 1]}…"


def draw_curves(
    curves: Sequence[tuple[SurvivalSteps, FreeShares]],
    times: Sequence[float],
    axis: str,
    *,
    cut: bool,
    rising: bool,
) -> str:
    """Survival with bands, or `rising` incidence, and below the patients at risk at each tick. Steps; with wide cells
    (`cut`), lines."""
    last = max(times[-1], 1e-9)
    step = 10 ** math.floor(math.log10(last / 4))
    step *= next(one for one in (1, 2, 5, 10) if last / (one * step) <= 6)
    ticks = [step * tick for tick in range(int(last / step) + 1)]
    if cut:  # how many are at risk is known at the ends of cells
        ends = np.array([0.0, *times])
        ticks = sorted({float(ends[np.abs(ends - tick).argmin()]) for tick in ticks})
    bottom = TOP + HIGH

    def x(time: float) -> float:
        return LEFT + WIDE * time / last

    def y(share: float) -> float:
        return TOP + HIGH * (1 - share)

    def shape(shares: Vector) -> list[tuple[float, float]]:
        level = 1.0
        points = [(x(0), y(1 - level if rising else level))]
        for time, share in zip(times, shares.tolist(), strict=True):
            before, level = level, level if math.isnan(share) else share
            ends = [level] if cut else [before, level]
            points += [(x(time), y(1 - one if rising else one)) for one in ends]
        return points

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line x1="{LEFT}" y1="{y(share):.1f}" x2="{LEFT + WIDE}" y2="{y(share):.1f}" stroke="{FAINT}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end" fill="{SOFT}">{share:.0%}</text>'
        )
    for tick in ticks:
        parts.append(
            f'<text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle" fill="{SOFT}">{tick:g}</text>'
        )
    parts.append(
        f'<text x="{LEFT + WIDE / 2:g}" y="{bottom + 36}" text-anchor="middle">{element_text(axis)}</text>'
    )
    parts.append(f'<text x="0" y="{bottom + 56}" fill="{SOFT}">at risk</text>')
    for number, ((curve, shares), colour) in enumerate(zip(curves, COLOURS, strict=False)):
        path, high, low = map(shape, (shares.value, shares.high, shares.low))
        band = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*high, *reversed(low)])
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in path)
        parts.append(f'<polygon points="{band}" fill="{colour}" fill-opacity="0.15"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        below = bottom + 56 + LINE * (number + 1)
        # At risk when a cell begins: a day itself, or where the wide cell before it ended.
        left = curve.at_risk[-1] - curve.events[-1] - curve.competing[-1] - curve.censored[-1]
        at_risk = [*curve.at_risk, left]
        for tick in ticks:
            count = at_risk[int(np.searchsorted(times, tick, side="right" if cut else "left"))]
            parts.append(
                f'<text x="{x(tick):.1f}" y="{below}" text-anchor="middle" fill="{colour}">{max(count, 0):.0f}</text>'
            )
        parts.append(
            f'<text x="{LEFT + WIDE + 24}" y="{below}" fill="{colour}">{element_text(_shorten(curve.group))}</text>'
        )
    return draw_frame(
        "Incidence" if rising else "Survival",
        parts,
        LEFT + WIDE + 40 + LETTER * max(len(_shorten(curve.group)) for curve, _ in curves),
        bottom + 70 + LINE * (len(curves) + 1),
        4,
    )
