"""`ShapeModel`: one curve of log odds for each attribute, and few pairs, over all sites (docs/methods.md, part 10).

A readable additive model: an intercept, a table for each attribute, a heat map for few pairs. With `release="exact"`
and `"masked"` it is the model of the pooled table, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.models.explanation import Explanation
from concilium.models.method import (
    Attributes,
    Bins,
    Delta,
    Epsilon,
    OnMisfit,
    PositiveClass,
    QueryText,
    ReleaseName,
    Target,
    Values,
    documented,
)
from concilium.models.outcome import WIDE_EDGES, Outcome, cut_range, find_range
from concilium.models.prediction import AnyPatients
from concilium.models.risk_by_horizon import RiskByHorizon, RiskHorizon, Time
from concilium.models.threshold import PERCENT_LEFT_OUT, CallingRule, DecisionRule, probability
from concilium.parameters import Parameter, whole
from concilium.privacy.accounting import Plan
from concilium.protocol.held_out import Part
from concilium.protocol.questions import Conversation, Learned, Partners, Statistic
from concilium.shapes.body import ShapeBody
from concilium.shapes.drawing import draw_patient, draw_terms
from concilium.shapes.exports import Adapt, adapt_body, to_cql, to_json, to_pmml
from concilium.shapes.page import to_html
from concilium.shapes.plain_fit import ShapeFit
from concilium.shapes.private_fit import PrivateShapes
from concilium.shapes.private_sums import AskDirections
from concilium.shapes.reading import (
    ScoreSheet,
    ShapeRow,
    add_up,
    explain,
    list_rows,
    make_sheet,
    say_model,
)
from concilium.shapes.shape_sums import AskShapes

MOST_CUTOFFS, MOST_TERMS, MOST_PAIRS, MOST_RULES = 100, 500, 50, 100
WAYS = ("rising", "falling")


def _read_directions(value: Any) -> dict[str, str]:
    directions = dict(value)
    if not all(isinstance(name, str) and name and way in WAYS for name, way in directions.items()):
        raise ValueError
    return directions


def _read_monotone(value: Any) -> dict[str, str]:
    try:
        return _read_directions({} if value is None else value)
    except TypeError:
        raise ValueError from None


@documented
@dataclass(eq=False, repr=False)
class ShapeModel(RiskByHorizon[ShapeBody]):
    """`ShapeModel(target="death", positive=1).fit(house)`: one curve for each attribute, and few pairs."""

    method: ClassVar[str] = "shapes"
    called: ClassVar[str] = "a ShapeModel"
    description: ClassVar[str] = (
        "a curve of each attribute, and few pairs, in one additive model over all sites"
    )
    body_type: ClassVar[type[ShapeBody]] = ShapeBody
    against_rest: ClassVar[bool] = True
    predicts_numbers: ClassVar[tuple[str, ...]] = ("exact", "masked", "private")

    target: Target
    positive: PositiveClass = None
    query: QueryText = ""
    release: ReleaseName = "masked"
    _: KW_ONLY
    max_terms: Annotated[
        int,
        Parameter(
            f"a whole number from 1 to {MOST_TERMS}",
            whole(1, MOST_TERMS),
            "the model has no more curves and pairs than this",
        ),
    ] = 60
    max_pairs: Annotated[
        int,
        Parameter(
            f"a whole number from 0 to {MOST_PAIRS}",
            whole(0, MOST_PAIRS),
            "no more pairs of attributes than this, each a heat map; only pairs that chance does not explain",
        ),
    ] = 20
    rules: Annotated[
        int,
        Parameter(
            f"a whole number from 0 to {MOST_RULES}",
            whole(0, MOST_RULES),
            "no more rules of two attributes than this beside the curves; only rules that chance does not explain, and "
            "no attribute of 'monotone' is in one",
        ),
    ] = 0
    monotone: Annotated[
        Mapping[str, str],
        Parameter(
            "'rising' or 'falling' by attribute",
            _read_monotone,
            "curves that may only rise, or only fall, as clinicians state: {'age': 'rising'}; no pair has such an "
            "attribute",
        ),
    ] = field(default_factory=dict)
    cutoffs: Annotated[
        int,
        Parameter(
            f"a whole number from 1 to {MOST_CUTOFFS}",
            whole(1, MOST_CUTOFFS),
            "a number is cut at no more places than this",
        ),
    ] = 24
    epsilon: Epsilon = None
    delta: Delta = "1/1000000"
    values: Values = field(default_factory=dict)
    bins: Bins = field(default_factory=dict)
    attributes: Attributes = None
    on_misfit: OnMisfit = "attribute"
    time: Time = "time"
    at: RiskHorizon = None
    threshold: DecisionRule = "majority"

    def check(self) -> None:
        if self.way_out.bounded:
            PrivateShapes(self).check()

    @property
    def measured(self) -> Outcome | None:
        """The number that is predicted, within the range that `bins` give; None where classes are."""
        if self.positive is not None or self.target not in self.bins:
            return None
        return find_range(self.target, self.bins[self.target])

    def find_decision_fault(self, rule: CallingRule) -> str | None:
        if rule.kind != "majority" and self.measured is not None:
            return f"{self.target!r} is a number, and none of two classes"
        if rule.tallied and self.way_out.bounded:
            return (
                "what a private one is told does not say how many patients have which chance, and one more question "
                "would cost more; take 'prevalence' or a cost"
            )
        return None

    def plan_learning(self) -> Plan:
        return PrivateShapes(self).plan() if self.way_out.bounded else ShapeFit(self).plan()

    def converse_known(self, partners: Partners) -> Conversation[Learned[ShapeBody]]:
        if self.way_out.bounded:
            return PrivateShapes(self).converse(partners)
        return ShapeFit(self).converse()

    def _may_measure(self, outcome: Outcome) -> bool:
        """Whether a question may be about numbers between these ends: those of the study. Noise protects patients
        whatever they are, and a private fit narrows them to where it has found patients."""
        if self.measured is None:
            return False
        low, high = self.measured.ends
        apart = (high - low) * self.way_out.bounded
        return (
            low - apart <= outcome.ends[0]
            and outcome.ends[1] <= high + apart
            and (self.way_out.bounded or outcome == self.measured)
        )

    @property
    def percent_held_out(self) -> int | None:
        return PERCENT_LEFT_OUT if self.rule.tallied else None

    def may_cut(self, name: str, edges: Sequence[float]) -> bool:
        """Also the target, where that is a number: within its range, and by decades where that misses everybody."""
        if name == self.target and self.measured is not None:
            return {*cut_range(self.measured), *WIDE_EDGES}.issuperset(edges)
        return super().may_cut(name, edges)

    def find_objection(self, question: Statistic) -> str | None:
        outcome = question.outcome if isinstance(question, AskShapes | AskDirections) else None
        if outcome is not None and not outcome.binary and not self._may_measure(outcome):
            return f"the range of {self.target!r} is not the one of the study"
        if isinstance(question, AskShapes) and isinstance(question.part, Part) and not self.rule.tallied:
            return "it asks about a part of the patients, and the study's threshold does not need that"
        return super().find_objection(question)

    @classmethod
    def parameters_in(cls, body: ShapeBody) -> dict[str, Any]:
        stored = super().parameters_in(body)
        del stored["attributes"]
        return {**stored, "positive": body.classes[1] if body.binary else None}

    @property
    def attributes_(self) -> list[str]:
        return sorted(self.body.names)

    @property
    def intercept_(self) -> float:
        """The log odds, or the number, of a patient for whom every curve is at its mean."""
        return self.body.intercept

    def decide(self, patients: AnyPatients) -> NDArray[np.float64]:
        """The log odds of the positive class, or the number that is predicted."""
        source = self.read(patients)
        return add_up(self.body, source, len(source))

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        if not self.body.binary:
            raise ModelError("this ShapeModel predicts a number; use predict")
        risk = probability(self.decide(patients))
        return np.column_stack([1 - risk, risk])

    def predict(self, patients: AnyPatients) -> NDArray[Any]:
        """The class that is called for each patient, or the number."""
        return super().predict(patients) if self.body.binary else self.decide(patients)

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        row = {name: patient.get(name) for name in self.body.names} or {self.target: None}
        return explain(self.body, self.read([row]), patient, self.card.dictionary)

    def list_terms(self) -> list[ShapeRow]:
        """Every curve and pair as rows, the term that moves risks most first: odds ratio (or what is added to a number)
        with its 95 % interval against the mean over patients, points, share of patients. Neighbours with equal points
        are one row."""
        return list_rows(self.body, self.card.dictionary)

    def score_sheet(self) -> ScoreSheet:
        """The model as whole points to add up by hand; it says what AUC, or R squared, that loses. Prints as text."""
        return make_sheet(self.body, self.card.dictionary)

    def to_json(self) -> str:
        """The model for other software: every cell as plain conditions with what it adds (shapes/exports.py)."""
        return to_json(self.body)

    def to_html(self) -> str:
        """The model on one page that prints to PDF: points, odds ratios, risks, every curve."""
        return to_html(self.body, self.card.dictionary)

    def to_cql(self, adapt: Adapt | None = None) -> str:
        """The model as definitions in CQL, for decision support that speaks FHIR: log odds and risk, or the number."""
        return to_cql(adapt_body(self.body, adapt))

    def to_pmml(self, adapt: Adapt | None = None) -> str:
        """The model as a PMML 4.4 Scorecard of log odds, with the risk as its second output; or of the number."""
        return to_pmml(adapt_body(self.body, adapt))

    def importances(self) -> dict[str, float]:
        """How much the risks of patients differ by each attribute; a pair counts half for each of its two."""
        weights = dict.fromkeys(self.body.names, 0.0)
        for term in self.body.terms:
            for index in term.cells.attributes:
                weights[self.body.names[index]] += term.deviation / len(term.cells.attributes)
        largest = max(weights.values(), default=0.0) or 1.0
        order = sorted(weights, key=lambda name: (-weights[name], name))
        return {name: 100 * weights[name] / largest for name in order}

    def _text(self) -> str:
        """The model as a table of its curves, the one that moves risks most first."""
        return say_model(self.body, self.card.dictionary)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """A curve with its 95 % band for each attribute, and a heat map for each pair, those that matter most first."""
        return draw_terms(self.body, self.card.dictionary, whole=whole)

    def draw_patient(self, patient: Mapping[str, Any]) -> str:
        """Every curve as SVG, with where this patient stands on it."""
        return draw_patient(self.body, self.card.dictionary, self.read, patient)

    def _summary(self) -> str:
        rules = sum(term.cells.rule for term in self.body.terms)
        pairs = sum(len(term.cells.attributes) > 1 for term in self.body.terms) - rules
        said = f"{len(self.body.terms) - pairs - rules} curves, {pairs} pairs"
        return f"{said}, {rules} rules" if rules else said
