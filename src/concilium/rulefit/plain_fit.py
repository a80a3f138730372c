"""The plain fit, `exact` or `masked`: what is asked, in which order, and what is made of the answers.

Shared cutoffs, rules of every site, coefficients of the pooled optimum, and what the sites tell of the terms taken
(Algorithm 1 of federated RuleFit; METHODS.md, section 2). Neither release protects a patient: under `masked` the house
sees sums over all sites only, and each site's rules; `NOT_PRIVATE` goes on the card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, MessageError, StudyError
from concilium.federation.histograms import AskHistograms
from concilium.federation.messages import Release, decode
from concilium.federation.run import Run
from concilium.federation.schema import AskSchema, SchemaSeen, in_order, read_schema
from concilium.privacy.accounting import Plan, PlannedQuestion, rho_for_epsilon
from concilium.records.table import Value, label
from concilium.rulefit import fedda, newton, path
from concilium.rulefit.asking import Asking
from concilium.rulefit.body import RuleBody, Told
from concilium.rulefit.cutoffs import WIDE_EDGES, check_range, cut, measure, missed, refuse_bins, unite
from concilium.rulefit.generation import AskRules, Rules
from concilium.rulefit.outcome import Outcome
from concilium.rulefit.rules import Attribute, Rule, check_rules
from concilium.rulefit.terms import Line, Terms

Solver = Literal["newton", "fedda"]

NOT_PRIVATE = (
    "the house saw the rules of each site's own trees, and which site sent them. Rules, gradients and Hessians are "
    "exact: masks hide which hospital a sum comes from, and do not protect patients. Enough sums over rules give back "
    "single outcomes"
)


@dataclass(frozen=True)
class Learned:
    """A model, how many patients each site says it has, the path over penalties, and what the card has to say."""

    body: RuleBody
    patients: dict[str, int | None]
    path: list[path.Choice]
    said: list[str]


@dataclass(frozen=True)
class PlainFit:
    """What a study states; `fit` asks the sites of a run. The names are those of RuleFit's parameters."""

    target: str
    positive: Value | None
    query: str
    trees: int
    leaves: float
    shrinkage: float
    support: int
    penalty: float | list[float] | Literal["auto"]
    bins: Mapping[str, list[float]]
    cutoffs: int | None
    epsilon: str | int | Fraction | None
    delta: str | int | Fraction
    solver: Solver
    attributes: list[str] | None
    seed: int
    release: Release

    def plan(self) -> Plan:
        """What a fit will ask, what each question costs, and all of it together."""
        rho = None
        if self.release == "masked" and self.epsilon is not None and self.cutoffs is not None:
            rho = rho_for_epsilon(self.epsilon, self.delta)
        if self.solver == "fedda":
            solving = PlannedQuestion(
                "rulefit.dual", None, f"{fedda.ROUNDS} times: how far the dual vector moves"
            )
        else:
            often = (
                "about ten times" if isinstance(self.penalty, float) else "some dozens of times, for a path"
            )
            solving = PlannedQuestion("rulefit.fit", None, f"{often}: loss, gradient and Hessian")
        questions = (
            PlannedQuestion("rulefit.schema", None, "which attributes, values and classes there are"),
            PlannedQuestion("histograms", rho, "histograms on the public bins, for cutoffs and scales"),
            PlannedQuestion("rulefit.rules", None, f"rules of {self.trees} boosted trees at every site"),
            solving,
            PlannedQuestion("rulefit.rates", None, "support and subgroup rates of the model's rules"),
        )
        return Plan("rho", questions)

    def fit(self, run: Run) -> Learned:
        """The model, with what there is to say of how it came about."""
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
        said += check_range(self.target, outcome, lambda edges: self._ask_histograms(run, edges, None))
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
        asking = Asking(run, self.query, self.target, outcome, terms)
        w, choices = self._solve(asking, said)
        body, patients = self._tell(asking, w, classes)
        if len(terms) > patients:
            said.append(
                f"there were {len(terms)} terms to choose from for {patients} patients; the penalty took "
                f"{len(body.told)}"
            )
        said += [f"left out: {name} ({why})" for name, why in sorted(left_out.items())]
        if self.release == "masked":
            said.append(NOT_PRIVATE)
        return Learned(body, {site: schema.patients for site, schema in seen.items()}, choices, said)

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

    def _solve(self, asking: Asking, said: list[str]) -> tuple[NDArray[np.float64], list[path.Choice]]:
        """The coefficients, intercept first, and the path over penalties where one was to be chosen."""
        choices: list[path.Choice] = []
        penalty = self.penalty
        if self.solver == "fedda":
            assert isinstance(penalty, float)
            averaged = fedda.fit(asking.moves(penalty), len(asking.terms), penalty)
            said.append(
                f"dual averaging took {averaged.questions} questions, in steps of {averaged.step:g}; it comes near the "
                "optimum and does not reach it"
            )
            return averaged.w, choices
        columns = newton.Columns.of(asking.terms)
        if not isinstance(penalty, float):
            choices = path.walk(
                asking.sums_without_held_out(),
                asking.losses_of_held_out,
                columns,
                None if penalty == "auto" else list(penalty),
            )
            best = min(choices, key=lambda choice: (choice.deviance, -choice.penalty))
            penalty = best.penalty
            said.append(
                f"of {len(choices)} penalties {penalty:.3g} had the least loss on patients held out "
                f"({best.deviance:.4f})"
            )
            if self.penalty == "auto" and len(choices) < path.LENGTH:
                said.append(
                    f"smaller penalties were not tried: their models have more than {path.MOST_TERMS} terms, which "
                    "nobody reads; a list of penalties is tried whole"
                )
        fitted = newton.fit(asking.sums(), columns, penalty)
        if not fitted.converged:
            said.append(
                f"the solver stopped after {fitted.questions} questions, about {fitted.gap:.1g} above the optimum"
            )
        return fitted.w, choices

    def _tell(self, asking: Asking, w: NDArray[np.float64], classes: list[Value]) -> tuple[RuleBody, int]:
        """The model's body, with what the sites tell of the terms it has taken, and how many patients there are."""
        taken = np.flatnonzero(w[1:]).tolist()
        rates = asking.rates(taken)
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
            outcome=asking.outcome,
            classes=list(classes),
            terms=asking.terms,
            intercept=float(w[0]),
            coefficients=w[1:].tolist(),
            told=told,
            patients=rates.patients,
            mean=rates.mean,
        )
        return body, rates.patients


def finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
