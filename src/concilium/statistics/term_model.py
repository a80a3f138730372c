"""What regressions share: their parameters, their columns, and what they say of terms and of a patient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, StudyError, name_some
from concilium.models.explanation import (
    Explanation,
    Reason,
    read_odds,
    say_hidden,
    say_odds,
    say_risk,
    say_risk_interval,
)
from concilium.models.intervals import WITHIN_95, find_unentered
from concilium.models.method import (
    Attributes,
    Bins,
    Delta,
    Epsilon,
    OnMisfit,
    PrivateMethod,
    Values,
    read_edges,
)
from concilium.models.prediction import AnyPatients, Entries
from concilium.parameters import Parameter, flag, name, names
from concilium.privacy.accounting import PlannedQuestion
from concilium.protocol.questions import Conversation, Learned
from concilium.protocol.schema import SchemaSeen, find_cautions, say_left_out
from concilium.records.columns import Value, label
from concilium.records.dictionary import DictionaryEntry, say_value
from concilium.statistics.columns import (
    LEAST_KNOTS,
    MOST_KNOTS,
    Declaration,
    RegressionTerms,
    build,
    check_stated,
    find_terms,
    pack_triangle,
)
from concilium.statistics.distributions import (
    chi_squared_tail,
    student_quantile,
    student_two_sided,
    two_sided,
)
from concilium.statistics.families import Vector
from concilium.statistics.own_fits import LEAST_EVENTS, AskOwnFits, ask_between
from concilium.statistics.results import (
    RegressionLine,
    TermBetween,
    TermEstimate,
    TermTest,
    draw_forest,
    draw_html,
    draw_text,
    fold_line,
    known,
    make_lines,
    say_interval,
    say_number,
    say_p,
    write_csv,
)

LEVEL = 0.975
MOST_SHOWN = 10
FEW_DRAWN = 4
NOT_PRIVATE = (
    "scores and information are exact: masks hide which hospital a sum comes from, not which patient"
)

# A number so many standard deviations from the mean is one that hardly any patient of the model had.
FAR = 5.0
MANY_LOST = 0.1
INTERCEPT = "intercept"
ENDLESS = "by which the outcome separates. This answer has no interval. Leave such terms out, or join values."


def _read_reference(value: Any) -> dict[str, Value]:
    """A value for each of some attributes."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(one, str | int | float) for one in value.values()
    ):
        raise ValueError
    return {name(key): one for key, one in value.items()}


def _read_pairs(value: Any) -> list[list[str]]:
    """Pairs of names."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError
    pairs = [names(one) for one in value]
    if any(len(set(one)) != 2 or len(one) != 2 for one in pairs):
        raise ValueError
    return pairs


Splines = Annotated[
    Mapping[str, Sequence[float]],
    Parameter(
        "lists of numbers",
        read_edges,
        f'public knots of restricted cubic splines, {{"age": [40, 55, 70]}}: {LEAST_KNOTS} to {MOST_KNOTS} each',
    ),
]
Reference = Annotated[
    Mapping[str, Value],
    Parameter(
        "values by attribute",
        _read_reference,
        "the value of a category that all others are compared with; without it the first in order. A whole number that "
        "is named here is a category",
    ),
]
Interactions = Annotated[
    Sequence[Sequence[str]],
    Parameter("a list of pairs of names", _read_pairs, 'products of two attributes, [["age", "sex"]]'),
]
ByHospital = Annotated[
    bool,
    Parameter(
        "true or false",
        flag,
        "compare what hospitals find alone: I^2 of each term, and a forest plot by hospital where they show it; one "
        "question more, and not under private",
    ),
]


class TermBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What every regression's file holds. `means` are those of columns: what stands for a value that is missing."""

    target: str
    query: str
    classes: list[str | int | float | bool]
    terms: RegressionTerms
    estimates: list[TermEstimate]
    covariance: list[float]
    means: list[float]
    deviations: list[float]
    tests: list[TermTest]
    between: list[TermBetween] = []

    intercepts: ClassVar[int] = 0

    def __post_init__(self) -> None:
        columns = len(self.terms.columns)
        if [len(self.estimates) - self.intercepts, len(self.means), len(self.deviations)] != [columns] * 3:
            raise ValueError("a regression has an estimate, a mean and a deviation for each column")


B = TypeVar("B", bound=TermBody)


@dataclass(eq=False, repr=False, kw_only=True)
class TermModel(PrivateMethod[B]):
    """A sum of terms, each with an estimate and its interval, and the parameters that all of them have."""

    attributes: Attributes = None
    on_misfit: OnMisfit = "attribute"
    splines: Splines = field(default_factory=dict)
    reference: Reference = field(default_factory=dict)
    interactions: Interactions = ()
    by_hospital: ByHospital = False
    epsilon: Epsilon = None
    delta: Delta = "1/1000000"
    values: Values = field(default_factory=dict)
    bins: Bins = field(default_factory=dict)

    def check(self) -> None:
        for attribute, knots in self.splines.items():
            if not LEAST_KNOTS <= len(knots) <= MOST_KNOTS:
                raise StudyError(
                    f"the splines of {attribute!r} need {LEAST_KNOTS} to {MOST_KNOTS} knots; got {len(knots)}"
                )
        if self.way_out.bounded:
            self._check_private()
            check_stated(self, "holds a number between the ends of its bins: give {!r} two at least")

    def _check_private(self) -> None:
        """StudyError where a private study lacks something, or asks for what it cannot have."""
        raise NotImplementedError

    @property
    def _declaration(self) -> Declaration:
        ends = dict(self.bins.items()) if self.way_out.bounded else None
        return Declaration(self.splines, self.reference, self.interactions, ends)

    def _choose_terms(
        self, seen: Mapping[str, SchemaSeen], time: str = ""
    ) -> tuple[RegressionTerms, dict[str, str]]:
        """The terms that every hospital has columns for, without a `time`; and what is left out, and why."""
        bins = {one: edges for one, edges in self.bins.items() if one not in (self.target, time)}
        numbers, categories, left_out = find_terms(seen, bins, list(self.reference))
        numbers = [one for one in numbers if one != time]
        for named in (categories, left_out):
            named.pop(time, None)
        self._refuse_lacking({*numbers, *categories}, left_out)
        return self._declaration.make_terms(numbers, categories), left_out

    def _compare(
        self, body: B, about: Mapping[str, Any], family: str, warnings: list[str]
    ) -> Conversation[B]:
        """The body with how hospitals differ, where the study asks for it."""
        if not self.by_hospital:
            return body
        between = yield from ask_between(body.terms, about, family, by_site=self.way_out.by_site)
        if not between:
            warnings.append(
                f"no two hospitals have {LEAST_EVENTS} events or more each: they are not compared with each other"
            )
        return msgspec.structs.replace(body, between=between)

    @property
    def _plan_between(self) -> list[PlannedQuestion]:
        note = "what each hospital finds alone, for how they differ"
        return [PlannedQuestion(AskOwnFits.kind, None, note)] if self.by_hospital else []

    def _refuse_lacking(self, usable: set[str], left_out: Mapping[str, str]) -> None:
        """HouseError where what the study names is not there to be asked about."""
        wanted = [
            *(self.attributes or ()),
            *self.splines,
            *self.reference,
            *(n for p in self.interactions for n in p),
        ]
        for one in wanted:
            if one not in usable:
                why = left_out.get(one, "no hospital has it, or they withhold it")
                raise HouseError(f"the study names {one!r}, which cannot be a term: {why}")
        if not usable:
            raise HouseError("no attribute is left for a regression: " + say_left_out(left_out))

    def _finish(
        self, body: B, seen: Mapping[str, SchemaSeen], left_out: Mapping[str, str], warnings: Sequence[str]
    ) -> Learned[B]:
        """What an exact or masked regression learned, with all that its card has to warn of."""
        said = [*warnings, *([] if self.way_out.by_site else [NOT_PRIVATE])]
        said += [say_left_out(left_out)] if left_out else []
        patients = {site: one.patients for site, one in seen.items()}
        return Learned(body, patients, [*said, *find_cautions(seen)])

    @property
    def _ratio(self) -> str:
        """What exp(coefficient) is; empty where a coefficient is a difference."""
        raise NotImplementedError

    @property
    def attributes_(self) -> list[str]:
        terms = self.body.terms
        return sorted({terms.attributes[i].name for column in terms.columns for i in column.attributes})

    @property
    def terms_(self) -> list[str]:
        """The columns of the regression in words."""
        return list(self.body.terms.names)

    @property
    def coef_(self) -> Vector:
        """The coefficient of each term, in the order of `terms_`."""
        return np.array([one.coefficient for one in self._estimates])

    @property
    def _estimates(self) -> list[TermEstimate]:
        """Without the intercept, which stands first where there is one."""
        return self.body.estimates[-len(self.body.terms.columns) :] if self.body.terms.columns else []

    def _build(self, patients: AnyPatients) -> NDArray[np.float64]:
        """The columns of patients less their means: NaN where a value is missing, or none that the model knows."""
        source = self.read(patients)
        terms = self.body.terms
        matrix = build(terms.attributes, terms.columns, source, np.arange(len(source)))
        centred: NDArray[np.float64] = matrix - np.array(self.body.means)
        return centred

    def _center(self, patients: AnyPatients) -> NDArray[np.float64]:
        """The same with the mean, 0, where nothing is known."""
        return np.nan_to_num(self._build(patients))

    def _say_terms(
        self, patient: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Vector, list[Reason], tuple[str, ...], tuple[str, ...]]:
        """What the model reads of a patient, its columns less their means, what each attribute moves, the strongest
        first; why its answer may be far off; and what is not known. What noise hides is no reason."""
        row = {one: patient.get(one) for one in self.attributes_} or {self.body.target: None}
        known = self._build([row])[0]
        centred = np.nan_to_num(known)
        moved = centred * self.coef_
        groups = self.body.terms.group()
        reasons = [
            Reason(
                tuple(group.split(" x ")),
                _say_value(group, row, self.card.dictionary),
                moved=float(moved[places].sum()),
            )
            for group, places in groups.items()
            if moved[places].any()
        ]
        reasons.sort(key=lambda one: (-abs(one.moved or 0.0), one.condition))
        noisy = self.way_out.bounded
        notes = [*_say_silent(groups, known, row, self.card.dictionary, noisy), *self._say_incomplete()]
        if noisy:
            hidden = [one for one in reasons if self._is_hidden(groups[" x ".join(one.attributes)])]
            reasons = [one for one in reasons if one not in hidden]
            if hidden:
                names = [" x ".join(one.attributes) for one in hidden]
                moved = sum(one.moved or 0.0 for one in hidden)
                effect = (
                    f"{self._ratio} {say_odds(read_odds(moved))}" if self._ratio else f"adds {moved:+.3g}"
                )
                notes.insert(0, say_hidden(names, effect))
            return row, centred, reasons, (), (*notes, *self._say_held(row))
        endless = self._find_endless(centred)
        doubts = (f"No finite coefficient fits {name_some(endless)}, {ENDLESS}",) if endless else ()
        return row, centred, reasons, (*doubts, *self._say_far(centred, row)), tuple(notes)

    def _is_hidden(self, places: Sequence[int]) -> bool:
        """Whether noise hides what these columns do: it is as large as what patients tell, so that there are no
        errors."""
        return all(self._estimates[place].error is None for place in places)

    def _find_silent(self, row: Mapping[str, Any]) -> float:
        """The variance that attributes bring which are not known of a patient."""
        silent = [
            place
            for group, places in self.body.terms.group().items()
            if any(row.get(one) is None for one in group.split(" x "))
            for place in places
        ]
        return find_unentered(
            float(np.hypot.reduce((self.coef_ * self.body.deviations)[silent], initial=0.0))
        )

    def _find_endless(self, centred: Vector) -> list[str]:
        """The terms of this patient whose coefficients have no finite value; none where noise leaves no errors."""
        estimates = self._estimates
        if all(one.error is None for one in estimates) or self.way_out.bounded:
            return []
        return [
            self._say_term(one.term)
            for one, value in zip(estimates, centred, strict=True)
            if value and one.error is None
        ]

    def _say_far(self, centred: Vector, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Which numbers lie beyond what patients of the model had, as far as mean and deviation tell."""
        body = self.body
        rows = zip(body.terms.names, centred, body.means, body.deviations, strict=True)
        far = [
            f"{name} = {label(row[name])} is far from what patients of the model had (mean {say_number(mean)}, "
            f"standard deviation {say_number(deviation)}). The answer extrapolates."
            for name, value, mean, deviation in rows
            if row.get(name) is not None and 0 < FAR * deviation < abs(value)
        ]
        return tuple(far)

    def _say_held(self, row: Mapping[str, Any]) -> Iterator[str]:
        """Which numbers lie beyond the ends that a private model holds them between: its means have noise."""
        attributes = self.body.terms.attributes
        factors = (factor for column in self.body.terms.columns for factor in column.factors)
        ends = {attributes[one.attribute].name: (one.low, one.high) for one in factors}
        for one, (low, high) in ends.items():
            value = row.get(one)
            if low is None or high is None or not isinstance(value, int | float) or low <= value <= high:
                continue
            yield f"{one} = {label(value)} counts as {label(low if value < low else high)}, the end of its bins."

    def _say_incomplete(self) -> tuple[str, ...]:
        """Of how many patients the model knows nothing, because they lack a value; nothing where they are few."""
        used, lost = getattr(self.body, "patients", None), getattr(self.body, "left_out", None)
        if not used or not lost or lost < MANY_LOST * (used + lost) or self.way_out.bounded:
            return ()
        return (f"Learned from {used} of {used + lost} patients: the others lack a value, and may differ.",)

    def list_terms(self) -> list[RegressionLine]:
        """Every term with its estimate, errors, interval and p-value."""
        return make_lines(self._estimates, self._ratio)

    def to_csv(self) -> str:
        """The table with all its numbers."""
        names = [one.name for one in fields(RegressionLine)]
        return write_csv([names, *([getattr(line, name) for name in names] for line in self.list_terms())])

    def to_html(self) -> str:
        """The table as HTML."""
        return draw_html(self.rows())

    def rows(self) -> list[list[str]]:
        """Every term with its ratio, interval and p-value, in words."""
        head = [self.body.target, f"{self._ratio or 'difference'} (95 % CI)", "p"]
        return [head, *([line.term, say_interval(line), say_p(line.p)] for line in self._in_words)]

    @property
    def _in_words(self) -> list[RegressionLine]:
        """The table with what the dictionary says of values."""
        return [replace(line, term=self._say_term(line.term)) for line in self.list_terms()]

    def _say_term(self, term: str) -> str:
        """A term with what the dictionary says of its values: `sex = female`, not `sex = 0`."""
        said = {
            f"{one.name} = {label(value)}": f"{one.name} = {say_value(value, self.card.dictionary.get(one.name))}"
            for one in self.body.terms.attributes
            for value in one.values
        }
        return " x ".join(said.get(part, part) for part in term.split(" x "))

    def importances(self) -> dict[str, float]:
        """How much each attribute moves the predictor, by the deviation of its columns, the largest 100."""
        weights = np.abs(self.coef_ * np.array(self.body.deviations))
        total = {
            group: float(weights[places].sum())
            for group, places in self.body.terms.group().items()
            if " x " not in group
        }
        most = max(total.values(), default=0.0) or 1.0
        ranked = sorted(total, key=lambda one: (-total[one], one))
        return {one: 100 * total[one] / most for one in ranked}

    def _text(self) -> str:
        tests = [
            f"{test.term}: {test.kind} test, chi-squared {say_number(test.statistic)} on {test.freedom}, "
            f"p {say_p(test.p)}"
            for test in self.body.tests
            if test.freedom > 1 or test.kind != "Wald"
        ]
        differ = [
            f"{self._say_term(one.term)}: between {one.hospitals} hospitals I^2 {one.share:.0%} "
            f"(Q {say_number(one.statistic)}, p {say_p(one.p)})"
            for one in self.body.between
        ]
        return "\n".join(
            [draw_text(self.rows()), *self._say_references(), *tests, *differ, *self._say_counts()]
        )

    def _say_references(self) -> list[str]:
        """What each category is compared with: the values without a term, or with none that is left."""
        terms = self.body.terms
        told = {(f.attribute, f.cell) for column in terms.columns for f in column.factors}
        used = {attribute for attribute, _ in told}
        others = [
            self._say_term(f"{one.name} = {label(value)}")
            for place, one in enumerate(terms.attributes)
            if place in used
            for value, cell in zip(one.values, one.cells, strict=True)
            if (place, cell) not in told
        ]
        return [fold_line(f"compared with {', '.join(others)}")] if others else []

    def _say_counts(self) -> list[str]:
        """Whom the estimates are from."""
        raise NotImplementedError

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """A forest plot of all terms."""
        drawn = {"forest plot": draw_forest(self._in_words, self._ratio)}
        lines = {line.term: line for line in self.list_terms()}
        most_apart = sorted(self.body.between, key=lambda one: -one.share)
        for one in most_apart[: MOST_SHOWN if whole else FEW_DRAWN]:
            reach = WITHIN_95
            own = [
                TermEstimate(site, value, error, low=value - reach * error, high=value + reach * error)
                for site, (value, error) in one.own.items()
            ]
            if own:
                every = replace(lines[one.term], term=f"all (I^2 {one.share:.0%})")
                term = self._say_term(one.term)
                drawn[f"by hospital: {term}"] = draw_forest(
                    [*make_lines(own, self._ratio), every], self._ratio
                )
        return drawn

    def _summary(self) -> str:
        return f"{len(self.body.terms.columns)} terms"


def estimate_all(
    terms: Sequence[str],
    values: Vector,
    covariances: Sequence[NDArray[np.float64] | None],
    inflation: Sequence[float] | None,
    freedom: int | None,
    separated: Sequence[str],
    by: int = 0,
) -> list[TermEstimate]:
    """Estimates with errors; intervals and p-values `by` one of the covariances, and Student's t with degrees of
    freedom."""
    errors = [
        None if one is None else np.sqrt(np.maximum(np.diagonal(one), 0)).tolist() for one in covariances
    ]
    quantile = WITHIN_95 if freedom is None else student_quantile(LEVEL, freedom)
    estimates = []
    for place, (term, value) in enumerate(zip(terms, values.tolist(), strict=True)):
        model, robust, clustered = own = [None if one is None else known(one[place]) for one in errors]
        error = own[by]
        if term in separated or not error:
            estimates.append(TermEstimate(term, value))
            continue
        z = value / error
        estimates.append(
            TermEstimate(
                term,
                value,
                model,
                robust,
                clustered,
                known(value - quantile * error),
                known(value + quantile * error),
                two_sided(z) if freedom is None else student_two_sided(z, freedom),
                None if inflation is None else known(inflation[place]),
            )
        )
    return estimates


def estimate_privately(
    terms: RegressionTerms, values: Vector, covariance: NDArray[np.float64] | None
) -> dict[str, Any]:
    """Estimates, covariance and tests of a private body; without errors where noise hides them (None)."""
    names = [INTERCEPT, *terms.names][-len(values) :]
    if covariance is None:
        estimates = [TermEstimate(term, float(one)) for term, one in zip(names, values, strict=True)]
        return {"estimates": estimates, "covariance": [], "tests": []}
    return {
        "estimates": estimate_all(names, values, (covariance, None, None), None, None, ()),
        "covariance": pack_triangle(covariance).tolist(),
        "tests": wald_tests(terms, values, covariance),
    }


def warn_of_terms(lacking: int, patients: int, dependent: Sequence[str]) -> list[str]:
    """What a card says of patients and of terms that are left out."""
    said = []
    if lacking:
        said.append(f"{lacking} patients with a missing value are left out; {patients} are in the regression")
    if dependent:
        said.append(
            f"left out: {', '.join(dependent[:5])} (a combination of other terms, or the same for everybody)"
        )
    return said


def wald_tests(
    terms: RegressionTerms, coefficients: Vector, covariance: NDArray[np.float64]
) -> list[TermTest]:
    """A test of each attribute's columns together."""
    first = len(coefficients) - len(terms.columns)
    tests = []
    for group, places in terms.group().items():
        at = [place + first for place in places]
        value, inner = coefficients[at], covariance[np.ix_(at, at)]
        statistic = float(value @ np.linalg.pinv(inner, hermitian=True) @ value)
        tests.append(TermTest(group, "Wald", statistic, len(at), chi_squared_tail(statistic, len(at))))
    return tests


def _say_value(group: str, row: Mapping[str, Any], dictionary: Entries) -> str:
    return ", ".join(
        f"{one} = {say_value(row[one], dictionary.get(one))}"
        if row.get(one) is not None
        else f"{one} missing"
        for one in group.split(" x ")
    )


def _say_times(moved: float) -> str:
    """By what a step of the predictor multiplies, in words."""
    return say_odds(read_odds(moved)).replace("> ", "more than ").replace("< ", "less than ")


def _it(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _say_silent(
    groups: Mapping[str, Sequence[int]],
    known: Vector,
    row: Mapping[str, Any],
    dictionary: Entries,
    noisy: bool,
) -> tuple[str, ...]:
    """Say which attributes are not known of a patient, or have a value that no patient of the model had (a `noisy` one
    knows the values that its study states): the mean stands for either."""
    single = {group: places for group, places in groups.items() if " x " not in group}
    silent = sorted(one for one in single if row.get(one) is None)
    unseen = [
        f"{one} = {say_value(row[one], dictionary.get(one))}"
        for one, places in single.items()
        if row.get(one) is not None and np.isnan(known[list(places)]).all()
    ]
    stands = "the mean of all patients stands for"
    wider = f"The interval is wider for {_it(silent)}."
    said = [f"Not known: {name_some(silent, MOST_SHOWN)}; {stands} {_it(silent)}. {wider}"] if silent else []
    if unseen:
        lacks = "The study states no" if noisy else "No patient of the model had"
        said.append(f"{lacks} {', '.join(unseen)}; {stands} {_it(unseen)}.")
    return tuple(said)


def say_explained(
    target: str,
    classes: Sequence[Value],
    ends: Sequence[float],
    reasons: Sequence[Reason],
    doubts: tuple[str, ...],
    notes: tuple[str, ...],
    ratio: str,
    interval: tuple[float, float],
    noisy: bool = False,
    entry: DictionaryEntry | None = None,
    by: str = "",
    then: tuple[str, ...] = (),
) -> Explanation:
    """An explanation by what attributes move, from the mean patient's risk to this one's; `doubts` are said before the
    reasons. `entry` says what classes mean, `by` by which time the event is predicted, and `then` what follows the
    first sentence."""
    base, end = ends
    prediction: Value
    chances: tuple[float, ...] = ()
    if classes:
        chances = (1 - end, end)
        place = int(np.argmax(chances))
        prediction, chance = classes[place], chances[place]
        base = base if place else 1 - base
        within = f"; {say_risk_interval(interval)}{', noise included' if noisy else ''}"
        interval = interval if place else (1 - interval[1], 1 - interval[0])
        risk = f"{'' if place else f'{say_value(classes[1], entry)}: '}{say_risk(end)}{within}"
        said = say_value(prediction, entry)
        begin = f"{target} = {said}{by} ({risk}; {say_risk(ends[0])} for an average patient)."
    else:
        prediction, chance = end, None
        within = f"95% interval of the mean {say_number(interval[0])} to {say_number(interval[1])}; "
        begin = f"{target} = {say_number(end)} ({within}{say_number(base)} for an average patient)."
    lines = [
        f"{number}. {one.condition}: "
        + (
            f"multiplies the {ratio.removesuffix(' ratio')} by {_say_times(one.moved or 0.0)}."
            if ratio
            else f"adds {one.moved or 0.0:+.3g}."
        )
        for number, one in enumerate(reasons[:MOST_SHOWN], start=1)
    ]
    if (rest := len(reasons) - MOST_SHOWN) > 0:
        lines.append(f"{rest} more, {'which says' if rest == 1 else 'each of which says'} less.")
    return Explanation(
        target,
        prediction,
        chance,
        tuple(reasons),
        (begin, *then, *doubts, *lines, *notes),
        base,
        notes=(*doubts, *notes),
        chances=chances,
        interval=interval,
    )
