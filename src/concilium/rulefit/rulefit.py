"""`RuleFit`: rules of every site and linear terms in one sparse model over all of them (Wan, Tanioka, Shimokawa 2026).

Shared cutoffs, local boosting, L1-penalised regression across sites: METHODS.md, section 2, with its corrections. With
`release="exact"` and `"masked"` the coefficients are those of the pooled table, to the precision asked for; what a
release does and does not protect is said on the card.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, MessageError, ModelError, StudyError
from concilium.federation.arrays import pack
from concilium.federation.card import Card
from concilium.federation.held_out import Part
from concilium.federation.histograms import AskHistograms, check_edges
from concilium.federation.house import House
from concilium.federation.messages import Release, decode, encode
from concilium.federation.patients import as_records, known, read_patient
from concilium.federation.run import Run
from concilium.federation.schema import AskSchema, SchemaSeen, in_order, read_schema
from concilium.model import Fitted
from concilium.privacy.accounting import Plan, PlannedQuestion, exact_delta, exact_positive, rho_for_epsilon
from concilium.records.query import Query
from concilium.records.table import Records, Value, label
from concilium.rulefit import fedda, newton, path
from concilium.rulefit.body import RuleBody, Told
from concilium.rulefit.charts import draw_importances, draw_rates
from concilium.rulefit.cutoffs import WIDE_EDGES, cut, measure, missed, refuse_bins, unite
from concilium.rulefit.design import Design, Line, Terms, build_for, keep
from concilium.rulefit.explanation import Explanation, explain
from concilium.rulefit.fitting import AskFit, Coefficients, Sums, choose_places, read_sums
from concilium.rulefit.generation import LEAST_SUPPORT, MOST_LEAVES, MOST_TREES, AskRules, Rules
from concilium.rulefit.outcome import Outcome, probability
from concilium.rulefit.private_fit import PrivateFit
from concilium.rulefit.rates import AskRates, read_rates
from concilium.rulefit.rules import Attribute, Rule, check_rules
from concilium.rulefit.table import Row, draw_table, make_table, rank_attributes

if TYPE_CHECKING:
    from pandas import DataFrame

# Percent of the patients of every site, to choose a penalty by.
HELD_OUT = 30

Solver = Literal["newton", "fedda"]

NOT_PRIVATE = (
    "the house saw the rules of each site's own trees, and which site sent them. Rules, gradients and Hessians are "
    "exact: masks hide which hospital a sum comes from, and do not protect patients. Enough sums over rules give back "
    "single outcomes"
)


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
        self.bins = read_bins(bins or {})
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
        self._private = self._state() if release == "private" else None
        self.path_: list[path.Choice] = []

    def fit(self, house: House) -> Self:
        """Make rules and fit the model with the sites of this house; returns itself."""
        names = "target positive query trees leaves shrinkage penalty bins values cutoffs solver attributes support"
        parameters = {name: getattr(self, name) for name in (*names.split(), "seed")}
        parameters |= {"epsilon": str(self.epsilon), "delta": str(self.delta)}
        house.converse(self.method, self.release, parameters, self._fit)
        return self

    def _state(self) -> PrivateFit:
        """The private study that these parameters state; those that say how sites make rules have no place in it."""
        named = ("trees", "leaves", "shrinkage", "penalty", "solver", "support")
        defaults = inspect.signature(type(self)).parameters
        given = [name for name in named if getattr(self, name) != defaults[name].default]
        if given:
            raise StudyError(
                f"a private RuleFit has no {given[0]!r}: its rules are drawn from the 'seed', and noise decides how "
                "much coefficients shrink"
            )
        names = "target positive query values bins attributes cutoffs epsilon delta seed"
        return PrivateFit(**{name: getattr(self, name) for name in names.split()})

    def _fit(self, run: Run) -> None:
        if self._private is not None:
            self._body, told = self._private.fit(run)
            self._card = run.finish({}, told)
            return
        said: list[str] = []
        measured = self.positive is None and self.target in self.bins
        asked = AskSchema(
            query=self.query,
            target=self.target,
            bins={name: edges for name, edges in self.bins.items() if name != self.target},
            attributes=self.attributes,
            count_patients=self.release != "masked",
            measured=measured,
        )
        seen = {site: read_schema(body) for site, body in run.gather("rulefit.schema", asked).items()}
        classes, outcome = self._find_outcome(seen, measured)
        attributes, left_out = unite(seen, asked.bins, self.attributes or list(asked.bins))
        attributes, lines, constant = self._choose_cutoffs(run, attributes)
        left_out |= dict.fromkeys(constant, "all patients are in one of its bins")
        if not attributes:
            raise HouseError(
                "no attribute is left to make rules of: "
                + "; ".join(f"{n}: {why}" for n, why in left_out.items())
            )
        rules = self._gather_rules(run, outcome, attributes, said)
        terms = Terms(tuple(attributes), tuple(rules), tuple(lines))
        w = self._solve(run, outcome, terms, said)
        self._body, patients = self._tell(run, outcome, terms, w, classes)
        if len(terms) > patients:
            said.append(
                f"there were {len(terms)} terms to choose from for {patients} patients; the penalty took "
                f"{len(self._body.told)}"
            )
        said += [f"left out: {name} ({why})" for name, why in sorted(left_out.items())]
        if self.release == "masked":
            said.append(NOT_PRIVATE)
        self._card = run.finish({site: schema.patients for site, schema in seen.items()}, said)

    def _find_outcome(self, seen: Mapping[str, SchemaSeen], measured: bool) -> tuple[list[Value], Outcome]:
        """What is predicted: two classes, the positive one second, or a number within its range."""
        if measured:
            if len(self.bins[self.target]) < 2:
                raise StudyError(
                    f"the 'bins' of {self.target!r} must give the range of a number: two at least"
                )
            return [], Outcome(low=self.bins[self.target][0], high=self.bins[self.target][-1])
        found = [v for v in in_order(c for schema in seen.values() for c in schema.classes) if v is not None]
        if len(found) < 2:
            only = f"{self.target} = {label(found[0])}" if found else f"no {self.target}"
            raise HouseError(f"all patients of the query have {only}: there is nothing to predict")
        if self.positive is None:
            if len(found) > 2:
                raise StudyError(
                    f"{self.target!r} has {len(found)} values ({', '.join(map(label, found[:5]))}, ...): say which is "
                    f"'positive', or give its range in 'bins' if it is a number"
                )
            return found, Outcome(positive=found[1])
        own = [value for value in found if label(value) == label(self.positive)]
        if not own:
            raise StudyError(
                f"no patient has {self.target} = {label(self.positive)}; there are {', '.join(map(label, found[:10]))}"
            )
        others = [value for value in found if value is not own[0]]
        negative = others[0] if len(others) == 1 else f"not {label(own[0])}"
        return [negative, own[0] if len(others) == 1 else label(own[0])], Outcome(positive=own[0])

    def _choose_cutoffs(
        self, run: Run, attributes: Sequence[Attribute]
    ) -> tuple[list[Attribute], list[Line], list[str]]:
        """Attributes with their cutoffs, linear terms, and the attributes that are constant."""
        edges = {a.name: list(a.edges) for a in attributes if a.numeric}
        free = {n: e for n, e in edges.items() if self.cutoffs is None or len(e) <= self.cutoffs}
        charged = {n: e for n, e in edges.items() if n not in free}
        if self.release == "masked" and self.epsilon is not None and charged:
            # One patient is in one bin of each, so that all of them together cost epsilon.
            variance = run.masked.variance(rho_for_epsilon(self.epsilon, self.delta), len(charged))
            histograms = self._ask_histograms(run, charged, variance)
            histograms |= self._ask_histograms(run, free, None)
        else:
            histograms = self._ask_histograms(run, edges, None)
        for name in edges:
            if missed(histograms[name]):
                wide = self._ask_histograms(run, {name: list(WIDE_EDGES)}, None)
                raise refuse_bins(name, edges[name], wide[name])
        kept: list[Attribute] = []
        lines: list[Line] = []
        constant: list[str] = []
        for attribute in attributes:
            if not attribute.numeric:
                kept.append(attribute)
                continue
            with_cutoffs = cut(attribute, histograms[attribute.name], self.cutoffs)
            if with_cutoffs is None:
                constant.append(attribute.name)
                continue
            line = measure(len(kept), attribute.edges, histograms[attribute.name])
            lines += [] if line is None else [line]
            kept.append(with_cutoffs)
        return kept, lines, constant

    def _ask_histograms(
        self, run: Run, edges: Mapping[str, list[float]], variance: Fraction | None
    ) -> dict[str, NDArray[np.int64]]:
        if not edges:
            return {}
        question = AskHistograms(
            query=self.query,
            target=self.target,
            edges=dict(edges),
            variance=None if variance is None else str(variance),
        )
        release: Release | None = None if variance is None else "private"
        counts = run.add_up("histograms", question, (question.numbers,), release=release)
        return question.split(counts)

    def _gather_rules(
        self, run: Run, outcome: Outcome, attributes: Sequence[Attribute], said: list[str]
    ) -> list[Rule]:
        """The different rules of all sites."""
        question = AskRules(
            query=self.query,
            target=self.target,
            outcome=outcome,
            attributes=tuple(attributes),
            trees=self.trees,
            leaves=self.leaves,
            shrinkage=self.shrinkage,
            support=self.support,
            seed=self.seed,
        )
        found: set[Rule] = set()
        for site, body in run.gather("rulefit.rules", question).items():
            try:
                own = decode(body, Rules).rules
                check_rules(own, attributes)
            except MessageError as error:
                raise HouseError(f"{site} answered with what is no set of rules: {error}") from None
            if not own:
                said.append(
                    f"{site} had no rule to tell: its patients are alike, of one class, or fewer than "
                    f"{2 * self.support}"
                )
            found.update(own)
        return sorted(found)

    def _solve(self, run: Run, outcome: Outcome, terms: Terms, said: list[str]) -> NDArray[np.float64]:
        """The coefficients, intercept first."""
        if self.solver == "fedda":
            assert isinstance(self.penalty, float)
            averaged = fedda.fit(self._ask_dual(run, outcome, terms, self.penalty), len(terms), self.penalty)
            said.append(
                f"dual averaging took {averaged.questions} questions, in steps of {averaged.step:g}; it comes near the "
                "optimum and does not reach it"
            )
            return averaged.w
        penalty = self.penalty
        if not isinstance(penalty, float):
            self.path_ = path.walk(
                self._ask_fit(run, outcome, terms, Part(percent=HELD_OUT, held=False)),
                self._ask_losses(run, outcome, terms),
                newton.Columns.of(terms),
                None if penalty == "auto" else list(penalty),
            )
            best = min(self.path_, key=lambda choice: (choice.deviance, -choice.penalty))
            penalty = best.penalty
            said.append(
                f"of {len(self.path_)} penalties {penalty:.3g} had the least loss on patients held out "
                f"({best.deviance:.4f})"
            )
        fitted = newton.fit(self._ask_fit(run, outcome, terms), newton.Columns.of(terms), penalty)
        if not fitted.converged:
            said.append(
                f"the solver stopped after {fitted.questions} questions, about {fitted.gap:.1g} above the optimum"
            )
        return fitted.w

    def _ask_fit(self, run: Run, outcome: Outcome, terms: Terms, part: Part | None = None) -> newton.Ask:
        sent = encode(terms)

        def ask(candidates: tuple[Coefficients, ...], working: tuple[int, ...] | None) -> Sums:
            question = AskFit(
                query=self.query,
                target=self.target,
                outcome=outcome,
                terms=sent,
                candidates=candidates,
                gradient=working is not None,
                working=working,
                places=choose_places(run.hospitals),
                part=part,
            )
            return read_sums(question, run.add_up("rulefit.fit", question, (question.numbers,)))

        return ask

    def _ask_losses(self, run: Run, outcome: Outcome, terms: Terms) -> Any:
        held_out = self._ask_fit(run, outcome, terms, Part(percent=HELD_OUT, held=True))

        def ask(candidates: tuple[Coefficients, ...]) -> NDArray[np.float64]:
            sums = held_out(candidates, None)
            if sums.patients == 0:
                raise HouseError(
                    "the sites have too few patients to hold some out for choosing a penalty; give one 'penalty'"
                )
            return sums.losses / sums.patients

        return ask

    def _ask_dual(self, run: Run, outcome: Outcome, terms: Terms, penalty: float) -> fedda.AskMove:
        sent = encode(terms)

        def ask(dual: NDArray[np.float64], before: float, step: float, local: int) -> NDArray[np.float64]:
            question = fedda.AskDual(
                query=self.query,
                target=self.target,
                outcome=outcome,
                terms=sent,
                dual=pack(dual),
                penalty=penalty,
                before=before,
                step=step,
                local=local,
                places=choose_places(run.hospitals),
            )
            total = run.add_up("rulefit.dual", question, (question.numbers,))
            return np.ldexp(total.astype(np.float64), -question.places)

        return ask

    def _tell(
        self, run: Run, outcome: Outcome, terms: Terms, w: NDArray[np.float64], classes: list[Value]
    ) -> tuple[RuleBody, int]:
        """The model's body, with what the sites tell of the terms it has taken, and how many patients there are."""
        taken = np.flatnonzero(w[1:]).tolist()
        question = AskRates(
            query=self.query,
            target=self.target,
            outcome=outcome,
            terms=keep(terms, taken),
            places=choose_places(run.hospitals),
        )
        rates = read_rates(question, run.add_up("rulefit.rates", question, (question.numbers,)))
        told = [
            Told(
                column,
                round(float(rates.support[index]), 12),
                finite(rates.inside[index]),
                finite(rates.outside[index]),
                float(rates.deviation[index]),
            )
            for index, column in enumerate(taken)
        ]
        body = RuleBody(
            target=self.target,
            query=self.query,
            outcome=outcome,
            classes=list(classes),
            terms=terms,
            intercept=float(w[0]),
            coefficients=w[1:].tolist(),
            told=told,
            patients=rates.patients,
            mean=rates.mean,
        )
        return body, rates.patients

    def plan(self) -> Plan:
        """What a fit will ask, what each question costs, and all of it together."""
        if self._private is not None:
            return self._private.plan()
        rho = None
        if self.release == "masked" and self.epsilon is not None and self.cutoffs is not None:
            rho = rho_for_epsilon(self.epsilon, self.delta)
        questions = (
            PlannedQuestion("rulefit.schema", None, "which attributes, values and classes there are"),
            PlannedQuestion("histograms", rho, "histograms on the public bins, for cutoffs and scales"),
            PlannedQuestion("rulefit.rules", None, f"rules of {self.trees} boosted trees at every site"),
            PlannedQuestion(
                *(
                    ("rulefit.dual", None, f"{fedda.ROUNDS} times: how far the dual vector moves")
                    if self.solver == "fedda"
                    else ("rulefit.fit", None, "about ten times: loss, gradient and Hessian")
                )
            ),
            PlannedQuestion("rulefit.rates", None, "support and subgroup rates of the model's rules"),
        )
        return Plan("rho", questions)

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
        """Every term in the model, the most important first: rule, odds ratio, importance 0-100, support, rates."""
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
            charts["patients inside and outside of each rule"] = draw_rates(rows, self.target, outcome)
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


def read_bins(bins: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Public edges as lists of numbers; StudyError where they are not rising numbers."""
    try:
        read = {name: [float(edge) for edge in edges] for name, edges in bins.items()}
        for name, edges in read.items():
            check_edges(name, edges)
    except MessageError as error:
        raise StudyError(str(error)) from None
    except (TypeError, ValueError):
        raise StudyError(f"the 'bins' of a RuleFit must be lists of numbers; got {bins!r}") from None
    return read


def finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
