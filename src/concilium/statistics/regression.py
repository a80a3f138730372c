"""`Regression`: coefficients with standard errors, intervals and tests, as on the pooled table.

docs/methods.md, part 9. Exact and masked equal a pooled generalised linear model to eight digits; private has noise in
its score, and intervals that include it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError, StudyError, name_some
from concilium.models.explanation import Explanation
from concilium.models.intervals import WITHIN_95
from concilium.models.method import PositiveClass, QueryText, ReleaseName, Target, documented
from concilium.models.outcome import order_classes
from concilium.models.prediction import AnyPatients
from concilium.models.private_start import find_stated_classes
from concilium.parameters import Parameter, choice, flag
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.questions import Conversation, Gaussian, Learned, Partners
from concilium.protocol.schema import SchemaSeen, refuse_foreign_outcome, state_values
from concilium.records.columns import Value
from concilium.statistics.columns import (
    RegressionTerms,
    ask_schema,
    find_scales,
    pack_triangle,
    state_terms,
    unpack_triangle,
)
from concilium.statistics.distributions import chi_squared_tail
from concilium.statistics.families import COUNTS, FAMILIES, NEGATIVE_BINOMIAL, OutcomeFamily, Vector
from concilium.statistics.regression_fit import STEPS, Fit, PlainNewton, PrivateEnd, fit_privately
from concilium.statistics.regression_sums import AskRegression
from concilium.statistics.results import TermEstimate, TermTest, known, say_number
from concilium.statistics.term_model import (
    INTERCEPT,
    TermBody,
    TermModel,
    estimate_all,
    estimate_privately,
    say_explained,
    wald_tests,
    warn_of_terms,
)

ERRORS = ("model", "robust", "clustered")
# Counts whose robust errors are so many times those of the model do not follow Poisson's law.
OVERDISPERSED = 1.2
MANY_HOSPITALS = 30
FEW_HOSPITALS = 10


class RegressionBody(TermBody, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a regression's file holds; the intercept is the first estimate."""

    family: str
    patients: int | None = None
    left_out: int | None = None
    outcomes: float | None = None
    likelihood: float | None = None
    null_likelihood: float | None = None
    dispersion: float | None = None
    spread_of_intercepts: float | None = None
    separated: list[str] = msgspec.field(default_factory=list)

    intercepts: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.family not in FAMILIES or len(self.classes) != (2 if self.family == "binomial" else 0):
            raise ValueError("a regression has a family, and two classes or none")


@documented
@dataclass(eq=False, repr=False)
class Regression(TermModel[RegressionBody]):
    """`Regression(target="death", positive="yes", attributes=["age", "sex"]).fit(house)`: odds ratios, rate ratios or
    differences with confidence intervals."""

    method: ClassVar[str] = "regression"
    called: ClassVar[str] = "a Regression"
    description: ClassVar[str] = "a regression with confidence intervals over all sites"
    body_type: ClassVar[type[RegressionBody]] = RegressionBody
    against_rest: ClassVar[bool] = True
    predicts_numbers: ClassVar[tuple[str, ...]] = ("exact", "masked", "private")
    decides: ClassVar[str] = "the likelier class is predicted"
    differs_from_pooled: ClassVar[str] = (
        "equals the pooled regression to eight digits, not to the last bit; errors clustered by hospital need hospitals"
    )

    target: Target
    positive: PositiveClass = None
    family: Annotated[
        Literal["binomial", "gaussian", "poisson", "negative-binomial"],
        Parameter(
            "'binomial', 'gaussian', 'poisson' or 'negative-binomial'",
            choice(*FAMILIES),
            "of the outcome: yes or no (odds ratios), a number (differences), or a count (rate ratios), which with "
            '"negative-binomial" may vary more than Poisson\'s law says; `bins` has the range of a number or count',
        ),
    ] = "binomial"
    query: QueryText = ""
    release: ReleaseName = "masked"
    _: KW_ONLY
    intercepts: Annotated[
        Literal["common", "hospital", "random"],
        Parameter(
            "'common', 'hospital' or 'random'",
            choice("common", "hospital", "random"),
            '"hospital": every hospital has an intercept of its own, which it tells nobody (fixed effects); "random": '
            "these are drawn from a normal distribution (random effects)",
        ),
    ] = "common"
    firth: Annotated[
        bool,
        Parameter(
            "true or false",
            flag,
            "Firth's penalised likelihood, for rare outcomes and where a term separates them (binomial)",
        ),
    ] = False
    tests: Annotated[
        Literal["wald", "likelihood"],
        Parameter(
            "'wald' or 'likelihood'",
            choice("wald", "likelihood"),
            'of each attribute: by its covariance, or by a fit without it ("likelihood": some questions for each)',
        ),
    ] = "wald"
    errors: Annotated[
        Literal["model", "robust", "clustered"],
        Parameter(
            "'model', 'robust' or 'clustered'",
            choice(*ERRORS),
            'behind intervals and p-values: by the model; "robust" where the outcome varies otherwise than the model '
            'says, as counts often do; "clustered" where patients of a hospital are alike (with 30 hospitals or more)',
        ),
    ] = "model"

    def check(self) -> None:
        if self.firth and (self.family != "binomial" or self.intercepts != "common"):
            raise StudyError("firth = true goes with family = 'binomial' and intercepts = 'common'")
        plain = self.intercepts == "common" and self.errors == "model" and not self.by_hospital
        if self.family == NEGATIVE_BINOMIAL and not plain:
            raise StudyError(
                "a negative binomial has one intercept for all, errors by the model, and no comparison by_hospital: "
                'take family = "poisson" with errors = "robust" for these'
            )
        if self.errors != "model" and self.intercepts == "random":
            raise StudyError(f"random intercepts have errors by the model, and not {self.errors!r}")
        if self.family != "binomial":
            if self.positive is not None:
                raise StudyError(
                    f"family = {self.family!r} is about a number, and positive = {self.positive!r} about yes or no: "
                    "leave one of them out"
                )
            self._check_range()
        super().check()

    def _check_range(self) -> None:
        edges = self.bins.get(self.target, ())
        if len(edges) < 2 or (self.family in COUNTS and edges[0] < 0):
            raise StudyError(
                f"family = {self.family!r} needs both ends of the range of {self.target!r} in 'bins', such as "
                f"[0, 100]; got {list(edges)}"
            )

    def _check_private(self) -> None:
        if self.epsilon is None:
            raise StudyError("a private Regression needs an 'epsilon', such as 1.0")
        if self.family == NEGATIVE_BINOMIAL:
            raise StudyError('a private Regression of counts has family = "poisson"')
        if (
            self.intercepts != "common"
            or self.firth
            or self.tests != "wald"
            or self.by_hospital
            or self.errors != "model"
        ):
            raise StudyError(
                "a private Regression has one intercept for all, no Firth's correction, tests and errors by its "
                "covariance, and no comparison by_hospital"
            )
        if self.family == "binomial":
            find_stated_classes(self, self.positive)

    def plan(self) -> Plan:
        if self.way_out.bounded:
            questions = [
                PlannedQuestion(
                    AskRegression.kind,
                    self.rho * share,
                    f"step {number} of {len(STEPS)}: score and information",
                )
                for number, share in enumerate(STEPS, start=1)
            ]
            return Plan("rho", tuple(questions))
        often = "about eight times" + (", and for each attribute again" if self.tests == "likelihood" else "")
        return Plan(
            "rho",
            (
                PlannedQuestion("tree.schema", None, "which attributes, values and classes there are"),
                PlannedQuestion(AskRegression.kind, None, f"{often}: likelihood, score and information"),
                *self._plan_between,
            ),
        )

    def _is_agreed(self, parameter: str, asked: Any) -> bool:
        """A negative binomial begins with Poisson's law."""
        begins = parameter == "family" and self.family == NEGATIVE_BINOMIAL and asked == "poisson"
        return begins or super()._is_agreed(parameter, asked)

    def converse(self, partners: Partners) -> Conversation[Learned[RegressionBody]]:
        return self._converse_privately(partners) if self.way_out.bounded else self._converse_plainly()

    def _converse_plainly(self) -> Conversation[Learned[RegressionBody]]:
        measured = self.family != "binomial"
        seen: dict[str, SchemaSeen] = yield ask_schema(self, measured=measured)
        refuse_foreign_outcome(seen, self.target)
        found = state_values(value for one in seen.values() for value in one.classes)
        classes = [] if measured else order_classes(self.target, found, self.positive)
        terms, left_out = self._choose_terms(seen)
        about = {
            "query": self.query,
            "target": self.target,
            "positive": None if measured else self.positive if self.positive is not None else classes[1],
        }

        def start() -> PlainNewton:
            return PlainNewton(about, self.family, self.intercepts == "hospital", self.firth)

        def learn(terms: RegressionTerms) -> Conversation[Fit]:
            further = self.intercepts == "random" or self.family == NEGATIVE_BINOMIAL
            return start().fit_further(terms) if further else start().fit(terms)

        fit = yield from learn(terms)
        tests = wald_tests(fit.terms, fit.coefficients, self._choose_covariance(fit))
        if self.tests == "likelihood":
            tests = []
            for group, places in fit.terms.group().items():
                kept = [place for place in range(len(fit.terms.columns)) if place not in places]
                less = yield from learn(fit.terms.take(kept))
                rise = 2 * (fit.likelihood - less.likelihood)
                tests.append(
                    TermTest(
                        group, "likelihood ratio", rise, len(places), chi_squared_tail(rise, len(places))
                    )
                )
        if fit.deviation is not None or self.family == NEGATIVE_BINOMIAL:
            # A deviation is never below zero: half of the time it is zero by chance.
            p = chi_squared_tail(fit.rise, 1) / 2 if fit.rise else 1.0
            what = (
                "counts vary more than Poisson's"
                if fit.deviation is None
                else "differences between hospitals"
            )
            tests = [*tests, TermTest(what, "likelihood ratio", fit.rise, 1, p)]
        warnings = self._warn(fit, len(seen))
        body = yield from self._compare(
            self._make_body(fit, classes, tests, len(seen)), about, self.family, warnings
        )
        return self._finish(body, seen, left_out, warnings)

    def _choose_covariance(self, fit: Fit) -> NDArray[np.float64]:
        chosen = (fit.covariance, fit.robust, fit.clustered)[ERRORS.index(self.errors)]
        assert chosen is not None
        return chosen

    def _warn(self, fit: Fit, hospitals: int) -> list[str]:
        warnings = []
        if self.errors == "clustered" and hospitals < MANY_HOSPITALS:
            warnings.append(
                f"errors clustered by {hospitals} hospitals are too small below about {MANY_HOSPITALS}: intervals are "
                "those of a t distribution, and are rough"
            )
        if self.family == "poisson" and fit.robust is not None:
            ratio = math.sqrt(float(np.mean(np.diagonal(fit.robust) / np.diagonal(fit.covariance))))
            if ratio > OVERDISPERSED and self.errors == "model":
                warnings.append(
                    f"counts vary more than Poisson's law says: intervals are too narrow by a factor of about "
                    f'{ratio:.1f}; take errors = "robust", or family = "negative-binomial"'
                )
        if fit.deviation is not None and fit.freedom < FEW_HOSPITALS - 1:
            warnings.append(
                f"random intercepts of {fit.freedom + 1} hospitals: their deviation is hardly known below "
                f'{FEW_HOSPITALS}; intercepts = "hospital" needs no such assumption'
            )
        warnings += warn_of_terms(fit.left_out, fit.patients, fit.dependent)
        if fit.separated:
            warnings.append(
                f"{', '.join(fit.separated[:5])}: separates the outcome, so that its coefficient has no finite value; "
                "take firth = true, join values, or leave the term out"
            )
        events = min(fit.outcomes, fit.patients - fit.outcomes) if self.family == "binomial" else fit.patients
        if events < 5 * len(fit.terms.columns):
            warnings.append(
                f"{events:.0f} {'patients of the rarer class' if self.family == 'binomial' else 'patients'} for "
                f"{len(fit.terms.columns)} terms: estimates are unstable below ten for each"
            )
        return warnings

    def _make_body(
        self, fit: Fit, classes: list[Value], tests: list[TermTest], hospitals: int
    ) -> RegressionBody:
        first = int(self.intercepts != "hospital")
        freedom = fit.freedom if self.family == "gaussian" and fit.deviation is None else None
        estimates = estimate_all(
            [INTERCEPT, *fit.terms.names][1 - first :],
            fit.coefficients,
            (fit.covariance, fit.robust, fit.clustered),
            [*[math.nan] * first, *fit.inflation],
            hospitals - 1 if self.errors == "clustered" else freedom,
            fit.separated,
            ERRORS.index(self.errors),
        )
        spread = fit.deviation
        if fit.intercepts is not None:
            estimates.insert(0, TermEstimate(INTERCEPT, fit.intercepts[0]))
            spread = fit.intercepts[1]
        elif not first:
            estimates.insert(0, TermEstimate(INTERCEPT, 0.0))
        return RegressionBody(
            target=self.target,
            query=self.query,
            family=self.family,
            classes=classes,
            terms=fit.terms,
            estimates=estimates,
            covariance=pack_triangle(self._choose_covariance(fit)).tolist(),
            means=fit.means.tolist(),
            deviations=fit.deviations.tolist(),
            tests=tests,
            patients=fit.patients,
            left_out=fit.left_out,
            outcomes=fit.outcomes,
            likelihood=known(fit.likelihood),
            null_likelihood=known(fit.null_likelihood),
            dispersion=known(fit.dispersion),
            spread_of_intercepts=spread,
            separated=list(fit.separated),
        )

    def _converse_privately(self, partners: Partners) -> Conversation[Learned[RegressionBody]]:
        binomial = self.family == "binomial"
        classes = find_stated_classes(self, self.positive) if binomial else []
        numbers, categories = state_terms(self)
        terms = self._declaration.make_terms(numbers, categories)
        edges = (0.0, 1.0) if binomial else (self.bins[self.target][0], self.bins[self.target][-1])

        def make(at: tuple[float, ...], noise: Gaussian, places: int) -> AskRegression:
            return AskRegression(
                query=self.query,
                target=self.target,
                attributes=terms.attributes,
                columns=terms.columns,
                family=self.family,
                positive=(self.positive if self.positive is not None else classes[1]) if binomial else None,
                at=at,
                low=edges[0],
                high=edges[1],
                noise=noise,
                places=places,
            )

        end = yield from fit_privately(
            make, np.zeros(len(terms.columns) + 1), self.family, self.rho, partners
        )
        warnings = [self.say_price(), *end.warn()]
        return Learned(self._make_private_body(terms, end, classes), {}, warnings)

    def _make_private_body(
        self, terms: RegressionTerms, end: PrivateEnd, classes: list[Value]
    ) -> RegressionBody:
        """The fit in the units of the attributes: a number from -1 to 1 is half its range."""
        terms, scale, shift = find_scales(terms)
        back = np.diag([1.0, *scale])
        back[0, 1:] = shift
        values = back @ end.coefficients
        covariance = None if end.covariance is None else back @ end.covariance @ back.T
        weight = max(float(end.start[0, 0]), 1e-9)
        means = np.clip(end.start[0, 1:] / weight, -1, 1)
        squares = np.clip(np.diagonal(end.start)[1:] / weight, 0, 1)
        deviations = np.sqrt(np.maximum(squares - means**2, 0.0))
        return RegressionBody(
            target=self.target,
            query=self.query,
            family=self.family,
            classes=classes,
            terms=terms,
            means=((means - shift) / scale).tolist(),
            deviations=(deviations / scale).tolist(),
            **estimate_privately(terms, values, covariance),
        )

    @property
    def _family(self) -> OutcomeFamily:
        return FAMILIES[self.body.family]

    @property
    def _ratio(self) -> str:
        return self._family.ratio

    @property
    def intercept_(self) -> float:
        return self.body.estimates[0].coefficient

    @property
    def covariance_(self) -> NDArray[np.float64]:
        """The covariance of the estimates by the model, intercept first where it is one for all."""
        packed = self.body.covariance
        return unpack_triangle(packed, round((math.sqrt(8 * len(packed) + 1) - 1) / 2))

    @property
    def _base(self) -> float:
        """The linear predictor of an average patient."""
        return self.intercept_ + float(np.array(self.body.means) @ self.coef_)

    def decide(self, patients: AnyPatients) -> Vector:
        """The linear predictor."""
        return self._base + self._center(patients) @ self.coef_

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        if self.body.family != "binomial":
            raise ModelError("this Regression predicts a number; use predict")
        chance = self._family.mean(self.decide(patients))
        return np.column_stack([1 - chance, chance])

    def predict(self, patients: AnyPatients) -> NDArray[Any]:
        """The likelier class of each patient, or the expected number."""
        if self.body.family == "binomial":
            return super().predict(patients)
        return self._family.mean(self.decide(patients))

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        body = self.body
        row, centred, reasons, doubts, notes = self._say_terms(patient)
        predictor = self._base + float(centred @ self.coef_)
        ends = self._family.mean(np.array([self._base, predictor])).tolist()
        interval = self._find_interval(centred, predictor, self._find_silent(row))
        noisy = self.way_out.bounded
        entry = self.card.dictionary.get(body.target)
        return say_explained(
            body.target, body.classes, ends, reasons, doubts, notes, self._ratio, interval, noisy, entry
        )

    def _find_interval(self, centred: Vector, predictor: float, silent: float) -> tuple[float, float]:
        """Of the expected outcome of a patient with these columns: everything where there is no covariance. Where each
        hospital has its own intercept, nobody knows that of the patient's: it is as far from the mean as theirs are.
        `silent`: the variance of what is not known of the patient."""
        covariance, body = self.covariance_, self.body
        if self._find_endless(centred) or not covariance.size:
            return (0.0, 1.0) if body.classes else (-math.inf, math.inf)
        first = len(covariance) - len(centred)
        at = np.concatenate([np.ones(first), centred + np.array(body.means) * first])
        variance = max(float(at @ covariance @ at), 0.0) + silent
        if body.spread_of_intercepts is not None:
            of_mean = float(self._family.weight(self._family.mean(np.array([self._base])))[0])
            variance += body.spread_of_intercepts**2 + (body.dispersion or 1.0) / (
                of_mean * (body.patients or 1)
            )
        reach = WITHIN_95 * math.sqrt(variance)
        low, high = self._family.mean(np.array([predictor - reach, predictor + reach])).tolist()
        return low, high

    def _say_counts(self) -> list[str]:
        body, lines = self.body, []
        if self.errors != "model":
            lines.append(f"intervals and p-values by {self.errors} errors")
        if body.patients is not None:
            lines.append(f"{body.patients} patients; {body.left_out} with a missing value left out")
        if body.separated:
            lines.append(
                f"the outcome is separated by {name_some(body.separated)}: no finite coefficient there, nor a "
                "prediction to rely on; take firth = True, or state fewer attributes"
            )
        if body.family == NEGATIVE_BINOMIAL:
            lines.append(f"the variance of a count is its mean m + {say_number(body.dispersion)} m^2")
        if body.spread_of_intercepts is not None:
            lines.append(
                f"{'random' if self.intercepts == 'random' else 'own'} intercepts of hospitals: mean "
                f"{say_number(body.estimates[0].coefficient)}, deviation {say_number(body.spread_of_intercepts)}"
            )
        return lines
