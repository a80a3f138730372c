"""`RuleFit`: rules of every site and linear terms in one sparse model over all of them (Wan, Tanioka, Shimokawa 2026).

Shared cutoffs, local boosting, L1-penalised regression across sites: docs/methods.md, part 2. With
`release="exact"` and `"masked"` the coefficients are those of the pooled table, to the precision asked for; what a
release does and does not protect is said on the card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.models.explanation import Explanation
from concilium.models.method import (
    AN_EPSILON,
    Attributes,
    Bins,
    Delta,
    OnMisfit,
    QueryText,
    ReleaseName,
    Target,
    Values,
    documented,
    read_epsilon,
    read_value,
)
from concilium.models.outcome import WIDE_EDGES
from concilium.models.prediction import AnyPatients, NewPatients
from concilium.models.risk_by_horizon import RiskByHorizon, RiskHorizon, Time
from concilium.models.threshold import CallingRule, DecisionRule, probability
from concilium.parameters import MOST_COUNTED, Parameter, choice, number, unwrap, whole
from concilium.policy.policy import LEAST_SUPPORT
from concilium.privacy.accounting import Plan
from concilium.protocol.attributes import MOST_EDGES
from concilium.protocol.counts import AskCounts
from concilium.protocol.grid import on_grid
from concilium.protocol.held_out import Folds
from concilium.protocol.questions import Conversation, Learned, Partners, Statistic
from concilium.records.columns import label
from concilium.records.dictionary import say_value
from concilium.rulefit.body import RuleBody
from concilium.rulefit.cross_validation import PenaltyTried
from concilium.rulefit.design import build, find_codes
from concilium.rulefit.exports import Adapt, adapt_body, to_cql, to_pmml
from concilium.rulefit.fit_questions import DEALT, HELD_OUT
from concilium.rulefit.fitting import AskRates, AskReals
from concilium.rulefit.generation import MOST_LEAVES, MOST_TREES, AskRules
from concilium.rulefit.plain_fit import PlainFit
from concilium.rulefit.private_fit import PrivateFit
from concilium.rulefit.reading import (
    Row,
    draw_importances,
    draw_rates,
    draw_table,
    explain,
    make_table,
    rank_attributes,
)
from concilium.rulefit.shapes import AttributeShape, draw_shapes, list_shapes
from concilium.rulefit.terms import Steps, keep, read_codes

read_leaves = number(lambda leaves: 2 <= leaves <= MOST_LEAVES)


def _read_penalty(value: Any) -> float | list[float] | str:
    """A penalty, several to choose from (the largest first), or "auto"."""
    if value == "auto":
        return "auto"
    read = number(lambda penalty: 0 < penalty < 1e6)
    if isinstance(value, str) or not isinstance(value, Sequence):
        return float(read(value))
    if not value:
        raise ValueError
    return sorted({read(unwrap(one)) for one in value}, reverse=True)


def _read_most_terms(value: Any) -> int | None:
    """A number of terms; None for all."""
    return None if value == "all" else whole(1, MOST_COUNTED)(value)


def _read_cutoffs(value: Any) -> int | None:
    """A number of cutoffs; None for all."""
    return None if value == "all" else whole(1, MOST_EDGES)(value)


@documented
@dataclass(eq=False, repr=False)
class RuleFit(RiskByHorizon[RuleBody]):
    """`RuleFit(target="death", positive=1, bins={"age": range(20, 90, 2)}).fit(house)`."""

    method: ClassVar[str] = "rulefit"
    called: ClassVar[str] = "a RuleFit"
    description: ClassVar[str] = "rules and linear terms in one sparse model over all sites"
    body_type: ClassVar[type[RuleBody]] = RuleBody
    against_rest: ClassVar[bool] = True
    predicts_numbers: ClassVar[tuple[str, ...]] = ("exact", "masked")
    pure_releases: ClassVar[tuple[str, ...]] = ("exact", "masked")
    differs_from_pooled: ClassVar[str] = (
        "is not the model of the pooled table: every site makes rules of its own patients, and one table would make "
        "others; the coefficients of these rules are those of the pooled patients"
    )

    target: Target
    positive: Annotated[
        str | int | float | bool | None,
        Parameter(
            "a value of the target, such as 'yes'",
            read_value,
            "the value that is predicted, against all others together; None: the second of two, or a number if `bins` "
            "has the target's range",
            "study",
        ),
    ] = None
    query: QueryText = ""
    trees: Annotated[
        int,
        Parameter(
            f"a whole number from 1 to {MOST_TREES}",
            whole(1, MOST_TREES),
            "how many trees each site boosts to make rules of",
        ),
    ] = 333
    leaves: Annotated[
        float,
        Parameter(
            f"a number from 2 to {MOST_LEAVES}",
            read_leaves,
            "how many leaves these trees have on average",
        ),
    ] = 4
    shrinkage: Annotated[
        float,
        Parameter(
            "a number above 0, at most 1",
            number(lambda rate: 0 < rate <= 1),
            "the learning rate of these trees",
        ),
    ] = 0.01
    penalty: Annotated[
        float | Sequence[float] | Literal["auto"],
        Parameter(
            'a number above 0, a list of them, or "auto"',
            _read_penalty,
            'selects terms, against the mean loss; "auto" or a list: chosen by repeated cross-validation, and selected '
            "terms are fitted again without it; a number: as in the paper, coefficients are shrunk",
        ),
    ] = "auto"
    bins: Bins = field(default_factory=dict)
    cutoffs: Annotated[
        int | Literal["all"] | None,
        Parameter(
            f'a whole number from 1 to {MOST_EDGES}, or "all"',
            _read_cutoffs,
            'rules cut at so many of the edges at most, at even quantiles of a histogram; None or "all": at all',
        ),
    ] = 20
    epsilon: Annotated[
        float | str | Fraction | None,
        Parameter(
            AN_EPSILON,
            read_epsilon,
            "private: what the model may cost per patient (None: 1); masked, or with noise = 'laplace': what choosing "
            "cutoffs may, None: exact histograms",
            "privacy",
        ),
    ] = None
    solver: Annotated[
        Literal["newton", "fedda"],
        Parameter(
            "'newton' or 'fedda'",
            choice("newton", "fedda"),
            '"newton": about ten questions to the optimum; "fedda": the paper\'s, hundreds',
        ),
    ] = "newton"
    release: ReleaseName = "masked"
    _: KW_ONLY
    delta: Delta = "1/1000000"
    values: Values = field(default_factory=dict)
    attributes: Attributes = None
    on_misfit: OnMisfit = "attribute"
    support: Annotated[
        int,
        Parameter(
            f"a whole number from {LEAST_SUPPORT} to {MOST_COUNTED}",
            whole(LEAST_SUPPORT, MOST_COUNTED),
            "exact: no rule about fewer patients of a site than this, nor one that leaves out fewer; masked: each "
            "hospital's policy says how many",
        ),
    ] = 10
    max_values: Annotated[
        int,
        Parameter(
            f"a whole number from 1 to {MOST_COUNTED}",
            whole(1, MOST_COUNTED),
            "no rule names more values of a category than this",
        ),
    ] = 4
    max_conditions: Annotated[
        int,
        Parameter(
            f"a whole number from 1 to {MOST_COUNTED}",
            whole(1, MOST_COUNTED),
            "no rule has more conditions than this",
        ),
    ] = 3
    max_terms: Annotated[
        int | Literal["all"] | None,
        Parameter(
            f'a whole number from 1 to {MOST_COUNTED}, or "all"',
            _read_most_terms,
            'the model has no more terms than this; None or "all": as many as the penalty selects',
        ),
    ] = 35
    seed: Annotated[
        int,
        Parameter(
            "a whole number from 0, below 2 to the power of 63",
            whole(0, 2**63 - 1),
            "of boosting, and of the rules of a private model",
        ),
    ] = 0
    scale: Annotated[
        Literal["overall", "within"],
        Parameter(
            "'overall' or 'within'",
            choice("overall", "within"),
            "linear terms get the deviation of a rule by that of all patients together, as a histogram tells it "
            '("overall"), or by the one within hospitals, pooled over them, at one more question '
            '("within", the paper\'s)',
        ),
    ] = "overall"
    noise: Annotated[
        Literal["gaussian", "laplace"],
        Parameter(
            "'gaussian' or 'laplace'",
            choice("gaussian", "laplace"),
            'of the histograms that cutoffs are chosen by: "gaussian": under masks, at epsilon and delta; "laplace", '
            "the paper's: at pure epsilon, under masks in shares, and under exact all of it at every site",
        ),
    ] = "gaussian"
    time: Time = "time"
    at: RiskHorizon = None
    threshold: DecisionRule = "majority"
    # What was learned of each penalty on the way to one; empty where one was given.
    path_: Sequence[PenaltyTried] = field(init=False, default=())

    def check(self) -> None:
        if self.way_out.bounded and self.epsilon is None:
            self.epsilon = "1"
        self._way.check()

    def find_decision_fault(self, rule: CallingRule) -> str | None:
        if rule.kind != "majority" and self.positive is None and self.target in self.bins:
            return f"{self.target!r} is a number, and none of two classes"
        if rule.tallied and self.way_out.bounded:
            return (
                "what a private one is told does not say how many patients have which chance, and one more question "
                "would cost more; take 'prevalence' or a cost, or a tree"
            )
        return None

    def plan_learning(self) -> Plan:
        return self._way.plan()

    @property
    def pure_price(self) -> Fraction | None:
        return self._way.pure_price

    @property
    def percent_held_out(self) -> int | None:
        return HELD_OUT.percent if self.rule.tallied and not self.way_out.bounded else None

    @property
    def folds(self) -> Folds | None:
        return None if isinstance(self.penalty, float) or self.way_out.bounded else DEALT

    @property
    def most_terms(self) -> int | None:
        """How many terms the model may have; None: any number."""
        return self.max_terms if isinstance(self.max_terms, int) else None

    def may_cut(self, name: str, edges: Sequence[float]) -> bool:
        """At the edges of its bins, at those of a second look where they miss everybody, at the end of a range, and
        on the public grid and at whole numbers that hospitals list as values, where it states none."""
        if name not in self.bins:
            return all(edge.is_integer() or on_grid(edge) for edge in edges)
        return _list_cuts(tuple(self.bins.get(name, ()))).issuperset(edges)

    def find_objection(self, question: Statistic) -> str | None:
        outcome = question.outcome if isinstance(question, AskReals | AskRules) else None
        if outcome is not None and outcome.low is not None:
            edges = self.bins.get(self.target, ())
            if not edges or (outcome.low, outcome.high) != (edges[0], edges[-1]):
                return f"the range of {self.target!r} is not the one of the study"
        if isinstance(question, AskRates) and question.scored is not None and not self.rule.tallied:
            return "it asks what chances patients have, and the study's decision does not need that"
        if (
            isinstance(question, AskCounts)
            and isinstance(self._way, PlainFit)
            and not self.asks_times(question)
        ):
            objection = self._way.find_objection_to_counts(question)
            if objection is not None:
                return objection
        return super().find_objection(question)

    def converse_known(self, partners: Partners) -> Conversation[Learned[RuleBody]]:
        return self._way.converse(partners)

    @property
    def _way(self) -> PlainFit | PrivateFit:
        return PrivateFit(self) if self.way_out.bounded else PlainFit(self)

    @property
    def most_cutoffs(self) -> int | None:
        """At how many edges of an attribute rules may cut; None: at all."""
        return self.cutoffs if isinstance(self.cutoffs, int) else None

    @classmethod
    def parameters_in(cls, body: RuleBody) -> dict[str, Any]:
        return {**super().parameters_in(body), "positive": body.outcome.positive}

    @property
    def rules_(self) -> list[str]:
        """All rules that were considered, in words, in the order of the columns of `design`."""
        return [self.body.name(column) for column in range(len(self.body.terms.rules))]

    @property
    def terms_(self) -> list[str]:
        """All columns of `design` in words: the rules, then the linear terms."""
        return [self.body.name(column) for column in range(len(self.body.terms))]

    @property
    def coef_(self) -> NDArray[np.float64]:
        """A coefficient for each column of `design`; most are zero."""
        return np.array(self.body.coefficients)

    @property
    def intercept_(self) -> float:
        return self.body.intercept

    @property
    def attributes_(self) -> list[str]:
        if self.body.terms.norm is not None:  # the length of a row follows from all of its columns
            return sorted(attribute.name for attribute in self.body.terms.attributes)
        return sorted({name for term in self.body.taken for name in self.body.attributes_of(term.column)})

    def design(self, patients: AnyPatients) -> NDArray[np.float64]:
        """The matrix that `coef_` multiplies: a column for each rule (0 or 1) and each linear term."""
        source = self.read(patients)
        return build(self.body.terms, len(source), source).matrix()

    def decide(self, patients: AnyPatients) -> NDArray[np.float64]:
        """The linear predictor: log odds of the positive class, or the number in half ranges from the middle."""
        table, ones = self._find_columns(patients)
        coefficients = self.coef_[[term.column for term in self.body.taken]]
        return table @ coefficients + ones * self.body.intercept

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        if not self.body.outcome.binary:
            raise ModelError("this RuleFit predicts a number; use predict")
        chance = probability(self.decide(patients))
        return np.column_stack([1 - chance, chance])

    def predict(self, patients: AnyPatients) -> NDArray[Any]:
        """The class that is called for each patient, or the number."""
        if self.body.outcome.binary:
            return super().predict(patients)
        return self.body.outcome.unscale(self.decide(patients))

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        row = {name: patient.get(name) for name in self.attributes_} or {self.body.target: None}
        table, shrink = self._find_columns([row])
        ones = float(shrink[0])
        undecided = self._find_undecided(patient, self.read([row]))
        stands_for = {column: share * ones for column, share in undecided.items()}
        variance = ones**2 * self._vary_heights(patient, self.read([row]))
        spoken = {
            name: value if value is None else say_value(value, self.card.dictionary.get(name))
            for name, value in patient.items()
            if name in self.card.dictionary and self.card.dictionary[name].values
        }
        said = explain(self._in_words, table[0], ones, {**patient, **spoken}, stands_for, variance)
        if not self.classes_:
            return said
        place = list(map(label, self._in_words.classes)).index(label(said.prediction))
        return replace(said, prediction=self.classes_[place])

    @property
    def _in_words(self) -> RuleBody:
        """The body to be read, with what the dictionary says of its values."""
        body, dictionary = self.body, self.card.dictionary
        if not dictionary:
            return body
        kept: tuple[Any, Any, RuleBody] | None = self.__dict__.get("_words")
        if kept is None or kept[0] is not body or kept[1] is not dictionary:
            kept = self.__dict__["_words"] = body, dictionary, body.in_words(dictionary)
        return kept[2]

    def _vary_heights(self, patient: Mapping[str, Any], source: NewPatients) -> float:
        """What the noise in the shapes of a private model adds to the variance of a patient's log odds."""
        variance, terms = 0.0, self.body.terms
        if not self.body.curves:
            return variance
        weights = {
            term.attribute: self.coef_[column]
            for column, term in enumerate(terms.in_order)
            if isinstance(term, Steps)
        }
        for curve in self.body.curves:
            attribute = terms.attributes[curve.attribute]
            if attribute.name not in patient:
                continue
            code = int(find_codes(attribute, source)[0])
            variance += (weights.get(curve.attribute, 0.0) * curve.heights[code]) ** 2
        return float(variance)

    def _find_undecided(self, patient: Mapping[str, Any], source: NewPatients) -> dict[int, float]:
        """The columns of terms that what was entered does not decide, with what stands for each: of a rule the share of
        patients for whom it holds, of anything else nothing at all, which is where its middle is."""
        attributes = self.body.terms.attributes
        undecided: dict[int, float] = {}
        for taken in self.body.taken:
            term = self.body.terms.in_order[taken.column]
            if all(name in patient for name in self.body.attributes_of(taken.column)):
                continue
            if not isinstance(term, tuple):
                undecided[taken.column] = 0.0
                continue
            known = [condition for condition in term if attributes[condition[0]].name in patient]
            codes = [int(find_codes(attributes[one[0]], source)[0]) for one in known]
            if all(code in read_codes(one) for code, one in zip(codes, known, strict=True)):
                undecided[taken.column] = taken.support or 0.0
        return undecided

    def _find_columns(self, patients: AnyPatients) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The columns of the terms that are in the model, and that of the intercept."""
        source, terms = self.read(patients), self.body.terms
        columns = [term.column for term in self.body.taken]
        if terms.norm is None:
            design = build(keep(terms, columns), len(source), source)
            return design.matrix(), design.ones
        design = build(terms, len(source), source)
        return design.columns(columns), design.ones

    def list_terms(self) -> list[Row]:
        """Every term in the model, the most important first: rule, odds ratio (or what it adds to a number),
        importance 0-100, support, rates."""
        return make_table(self.body)

    def shapes(self) -> list[AttributeShape]:
        """Every shape of a private model, the most important first: odds ratio against the mean, with a 95 % interval
        of noise and chance, for each bin or value; none where a model has rules and linear terms alone."""
        return list_shapes(self.body)

    def to_pmml(self, adapt: Adapt | None = None) -> str:
        """A PMML 4.4 Scorecard that adds up the terms; ModelError for a private model, which is no such sum."""
        return to_pmml(adapt_body(self.body, adapt))

    def to_cql(self, adapt: Adapt | None = None) -> str:
        """Definitions in CQL: each term, their sum, and the risk."""
        return to_cql(adapt_body(self.body, adapt))

    def importances(self) -> dict[str, float]:
        """Importances of the attributes, the largest 100."""
        return rank_attributes(self.body)

    def _text(self) -> str:
        """The model as a table of all its terms, the most important first."""
        return draw_table(self._in_words)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """Charts for a page: what the attributes weigh, and the rates inside and outside of each rule."""
        body = self._in_words
        rows = make_table(body)
        if body.curves:
            outcome = f"{self.target} = {label(body.classes[1])}"
            return draw_shapes(list_shapes(body), outcome, whole=whole)
        charts = (
            {"importance of attributes": draw_importances(self.importances(), self.target)} if rows else {}
        )
        if any(row.rate_in is not None for row in rows):
            outcome = f"{self.target} = {label(body.classes[1])}" if body.classes else f"Mean {self.target}"
            charts["patients inside and outside of each rule"] = draw_rates(
                rows, outcome, shares=self.body.outcome.binary
            )
        return charts

    def _summary(self) -> str:
        return f"{len(self.body.taken)} of {len(self.body.terms)} terms"


@lru_cache(maxsize=1024)
def _list_cuts(edges: tuple[float, ...]) -> frozenset[float]:
    """Where a study with these edges of an attribute may cut it."""
    return frozenset((*edges, *WIDE_EDGES, *(math.nextafter(edge, math.inf) for edge in edges)))
