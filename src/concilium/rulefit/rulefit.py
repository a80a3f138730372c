"""`RuleFit`: rules of every site and linear terms in one sparse model over all of them (Wan, Tanioka, Shimokawa 2026).

Shared cutoffs, local boosting, L1-penalised regression across sites: METHODS.md, section 2, with its corrections. With
`release="exact"` and `"masked"` the coefficients are those of the pooled table, to the precision asked for; what a
release does and does not protect is said on the card.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError, StudyError
from concilium.federation.card import Card
from concilium.federation.histograms import read_bins
from concilium.federation.house import House
from concilium.federation.messages import Release
from concilium.federation.patients import as_records, known, read_patient
from concilium.federation.run import Run
from concilium.model import Fitted
from concilium.privacy.accounting import Plan, exact_delta, exact_positive
from concilium.records.query import Query
from concilium.records.table import Records, Value, label
from concilium.rulefit.body import RuleBody
from concilium.rulefit.charts import draw_importances, draw_rates
from concilium.rulefit.design import Design, build_for
from concilium.rulefit.explanation import Explanation, explain
from concilium.rulefit.generation import LEAST_SUPPORT, MOST_LEAVES, MOST_TREES
from concilium.rulefit.outcome import probability
from concilium.rulefit.path import Choice
from concilium.rulefit.plain_fit import PlainFit, Solver
from concilium.rulefit.private_fit import PrivateFit
from concilium.rulefit.table import Row, draw_table, make_table, rank_attributes
from concilium.rulefit.terms import keep

if TYPE_CHECKING:
    from pandas import DataFrame


class RuleFit(Fitted[RuleBody]):
    """`RuleFit(target="death", positive=1, bins={"age": range(20, 90, 2)}).fit(house)`.

    target      the outcome: an attribute with two values; with more, `positive` against the rest; or a number
    positive    the value that is predicted; None: the second of two, or a number if `bins` has the target's range
    query       attributes of interest: the patients to learn from; empty: everyone
    trees, leaves, shrinkage   how each site makes rules: boosted trees, leaves on average, learning rate
    support     no rule about fewer patients of a site than this, nor one that leaves out fewer
    penalty     of the coefficients, against the mean loss; "auto" or a list: chosen by held-out deviance
    bins        public edges of numeric attributes; whole numbers of which sites list the values need none
    cutoffs     rules cut at so many of the edges at most, at even quantiles of a histogram; None or "all": at all
    epsilon     masked: what choosing cutoffs may cost, noise in shares; None: exact histograms under masks
    solver      "newton": about ten questions to the optimum; "fedda": the paper's, hundreds
    release     "exact": the house sees each site's numbers; "masked": sums over all sites only (three at least), though
                each site's rules; "private": sums with noise, at the price of `epsilon` and `delta` per patient, for
                which the study must state `values` (of categories, and the classes) or `bins` for all it asks about
    """

    method: ClassVar[str] = "rulefit"

    def __init__(
        self,
        target: str,
        positive: Value | None = None,
        query: str = "",
        trees: int = 333,
        leaves: float = 4,
        shrinkage: float = 0.01,
        penalty: float | Sequence[float] | Literal["auto"] = 0.01,
        bins: Mapping[str, Sequence[float]] | None = None,
        cutoffs: int | Literal["all"] | None = 20,
        epsilon: float | str | Fraction | None = 1.0,
        solver: Solver = "newton",
        release: Release = "masked",
        *,
        delta: float | str | Fraction = "1/1000000",
        values: Mapping[str, Sequence[Value]] | None = None,
        attributes: Sequence[str] | None = None,
        support: int = 10,
        seed: int = 0,
    ) -> None:
        if not isinstance(target, str) or not target:
            raise StudyError(f"the 'target' of a RuleFit must be an attribute's name; got {target!r}")
        if not isinstance(query, str):
            raise StudyError(f"the 'query' of a RuleFit must be text; got {query!r}")
        Query.parse(query)
        for name, value, least, most in (
            ("trees", trees, 1, MOST_TREES),
            ("support", support, LEAST_SUPPORT, 2**31),
            ("seed", seed, 0, 2**63 - 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise StudyError(
                    f"the {name!r} of a RuleFit must be {least} or more, and at most {most}; got {value!r}"
                )
        cutoffs = None if cutoffs == "all" else cutoffs
        if cutoffs is not None and (not isinstance(cutoffs, int) or isinstance(cutoffs, bool) or cutoffs < 1):
            raise StudyError(f"the 'cutoffs' of a RuleFit must be 1 or more, or None; got {cutoffs!r}")
        numbers = all(isinstance(value, int | float) for value in (leaves, shrinkage))
        if not numbers or not 2 <= leaves <= MOST_LEAVES or not 0 < shrinkage <= 1:
            raise StudyError(
                f"the 'leaves' of a RuleFit are 2 to {MOST_LEAVES}, its 'shrinkage' above 0 and at most 1; got "
                f"{leaves!r} and {shrinkage!r}"
            )
        if solver not in ("newton", "fedda"):
            raise StudyError(f"the 'solver' of a RuleFit must be 'newton' or 'fedda'; got {solver!r}")
        if release not in ("exact", "masked", "private"):
            raise StudyError(
                f"the 'release' of a RuleFit must be 'exact', 'masked' or 'private'; got {release!r}"
            )
        if isinstance(attributes, str):
            raise StudyError(f"the 'attributes' of a RuleFit must be a list of names; got {attributes!r}")
        self.target, self.positive, self.query = target, known(positive), query
        self.trees, self.leaves, self.shrinkage = trees, float(leaves), float(shrinkage)
        self.penalty = read_penalty(penalty)
        self.bins = read_bins("a RuleFit", bins or {})
        self.cutoffs, self.solver, self.support, self.seed = cutoffs, solver, support, seed
        self.release: Release = release
        self.attributes = None if attributes is None else list(attributes)
        # As it is written: a float stands for its shortest decimal, 0.1 for one tenth.
        self.epsilon = str(epsilon) if isinstance(epsilon, float) else epsilon
        self.delta = str(delta) if isinstance(delta, float) else delta
        exact_delta(self.delta)
        if self.epsilon is not None:
            exact_positive(self.epsilon, "epsilon")
        if solver == "fedda" and not isinstance(self.penalty, float):
            raise StudyError("a RuleFit with solver 'fedda' needs one 'penalty'; a path takes 'newton'")
        self.values = {name: list(listed) for name, listed in (values or {}).items()}
        self.path_: list[Choice] = []
        _ = self._study  # a private one says at once what it lacks

    def fit(self, house: House) -> Self:
        """Make rules and fit the model with the sites of this house; returns itself."""
        names = "target positive query trees leaves shrinkage penalty bins values cutoffs solver attributes support"
        parameters = {name: getattr(self, name) for name in (*names.split(), "seed")}
        parameters |= {"epsilon": str(self.epsilon), "delta": str(self.delta)}
        house.converse(self.method, self.release, parameters, self._fit)
        return self

    def plan(self) -> Plan:
        """What a fit will ask, what each question costs, and all of it together."""
        return self._study.plan()

    def _fit(self, run: Run) -> None:
        study = self._study
        if isinstance(study, PrivateFit):
            self._body, said = study.fit(run)
            self._card = run.finish({}, said)
            return
        learned = study.fit(run)
        self._body, self.path_ = learned.body, learned.path
        self._card = run.finish(learned.patients, learned.said)

    @property
    def _study(self) -> PlainFit | PrivateFit:
        """What these parameters state; those that say how sites make rules have no place in a private study."""
        study = PrivateFit if self.release == "private" else PlainFit
        if study is PrivateFit:
            named = ("trees", "leaves", "shrinkage", "penalty", "solver", "support")
            defaults = inspect.signature(type(self)).parameters
            given = [name for name in named if getattr(self, name) != defaults[name].default]
            if given:
                raise StudyError(
                    f"a private RuleFit has no {given[0]!r}: its rules are drawn from the 'seed', and noise decides "
                    "how much coefficients shrink"
                )
        return study(**{each.name: getattr(self, each.name) for each in fields(study)})

    @property
    def classes_(self) -> list[Value]:
        return list(self.body.classes)

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
        """The attributes that the model looks at."""
        return sorted({name for told in self.body.told for name in self.body.attributes_of(told.column)})

    def design(self, records: Records | DataFrame | Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """The matrix that `coef_` multiplies: a column for each rule (0 or 1) and each linear term."""
        return build_for(self.body.terms, as_records(records)).matrix()

    def decide(self, records: Records | DataFrame | Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """The linear predictor: log odds of the positive class, or the number in half ranges from the middle."""
        design, values = self._taken(as_records(records))
        return design.matrix() @ values + design.ones * self.body.intercept

    def predict_proba(
        self, records: Records | DataFrame | Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """For each patient the chances of the classes; columns as in classes_."""
        if not self.body.outcome.binary:
            raise ModelError("this RuleFit predicts a number; use predict")
        chance = probability(self.decide(records))
        return np.column_stack([1 - chance, chance])

    def predict(self, records: Records | DataFrame | Sequence[Mapping[str, Any]]) -> NDArray[Any]:
        """The likelier class of each patient, or the number."""
        predictor = self.decide(records)
        if not self.body.outcome.binary:
            return self.body.outcome.unscale(predictor)
        labels: NDArray[Any] = np.array(self.classes_).take((predictor >= 0).astype(np.intp))
        return labels

    def explain(self, patient: Mapping[str, Any]) -> Explanation:
        """Which rules hold for this patient, and what each moved: prints as sentences, `.reasons` is data."""
        asked = self.attributes_
        values = read_patient(patient, asked)
        row = {name: values.get(name) for name in asked} or {self.body.target: None}
        schema = {
            a.name: "number" if a.numeric else "code" for a in self.body.terms.attributes if a.name in row
        }
        design, _ = self._taken(Records.from_rows([row], schema=schema))
        taken = [told.column for told in self.body.told]
        return explain(self.body, taken, design.matrix()[0], float(design.ones[0]))

    def table(self) -> list[Row]:
        """Every term in the model, the most important first: rule, odds ratio (or what it adds to a number),
        importance 0-100, support, rates."""
        return make_table(self.body)

    def importances(self) -> dict[str, float]:
        """Importances of the attributes, the largest 100."""
        return rank_attributes(self.body)

    def text(self) -> str:
        """The model as a table of its most important terms."""
        return draw_table(self.body)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """Charts for a page: what the attributes weigh, and the rates inside and outside of each rule."""
        rows = self.table()
        charts = (
            {"importance of attributes": draw_importances(self.importances(), self.target)} if rows else {}
        )
        if any(row.rate_in is not None for row in rows):
            outcome = f"{self.target} = {label(self.classes_[1])}" if self.classes_ else f"Mean {self.target}"
            charts["patients inside and outside of each rule"] = draw_rates(
                rows, outcome, shares=self.body.outcome.binary
            )
        return charts

    @classmethod
    def from_body(cls, raw: msgspec.Raw, card: Card) -> Self:
        """A fitted model from a model file."""
        body = msgspec.json.decode(raw, type=RuleBody)
        fitted = cls(body.target, body.outcome.positive, body.query)
        fitted.release = cast(Release, card.release)
        fitted._body, fitted._card = body, card
        return fitted

    def _taken(self, records: Records) -> tuple[Design, NDArray[np.float64]]:
        """The design of the terms that are in the model, and their coefficients."""
        taken = [told.column for told in self.body.told]
        missing = sorted(set(self.attributes_) - set(records.names))
        if missing:
            raise ModelError(f"the records have no attribute {missing[0]!r}, which the model looks at")
        return build_for(keep(self.body.terms, taken), records), self.coef_[taken]


def read_penalty(penalty: Any) -> float | list[float] | Literal["auto"]:
    """A penalty, several to choose from, or "auto"; StudyError for anything else."""
    if penalty == "auto":
        return "auto"
    several = isinstance(penalty, Sequence) and not isinstance(penalty, str)
    try:
        values = [float(value) for value in (penalty if several else [penalty])]
    except (TypeError, ValueError):
        values = []
    if not values or not all(0 < value < 1e6 for value in values):
        raise StudyError(
            f"the 'penalty' of a RuleFit must be above 0, a list of such numbers, or 'auto'; got {penalty!r}"
        )
    return sorted(set(values), reverse=True) if several else values[0]
