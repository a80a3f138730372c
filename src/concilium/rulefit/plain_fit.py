"""The plain conversation, `exact` or `masked`: what is asked, in which order, and what is made of the answers.

Shared cutoffs, rules of every site, coefficients of the pooled optimum, and what the sites tell of the terms taken
(docs/methods.md, sections 2.1 to 2.10). Neither release protects a patient: under `masked` the house
sees sums over all sites only, and each site's rules; `NOT_PRIVATE` goes on the card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, StudyError
from concilium.models.method import as_written
from concilium.models.threshold import PERCENT_LEFT_OUT, Tally, decide
from concilium.privacy.accounting import Plan, PlannedQuestion, exact_positive, rho_from_pure, say_epsilon
from concilium.privacy.mechanisms import LARGEST_SCALE
from concilium.privacy.shares import LARGEST_POLYA_SCALE, is_unpayable
from concilium.protocol.attributes import Attribute, present
from concilium.protocol.conversation import Conversation, Learned, Partners
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.questions import Gaussian, Laplace
from concilium.protocol.schema import SchemaSeen, find_foreign_codings, set_against_rest
from concilium.protocol.sums import choose_places
from concilium.records.columns import Value, label
from concilium.rulefit import fedda, newton
from concilium.rulefit.body import Outcome, RuleBody, TakenTerm, say_number
from concilium.rulefit.cutoffs import (
    WIDE_EDGES,
    AskRuleSchema,
    Noise,
    cut,
    judge_bins,
    list_some,
    measure,
    missed,
    rescale,
    say_missed,
    share_attributes,
)
from concilium.rulefit.fit_questions import LEARNING, FitQuestions
from concilium.rulefit.fitting import Coefficients
from concilium.rulefit.generation import AskRules
from concilium.rulefit.terms import Line, Rule, RuleTerms

if TYPE_CHECKING:
    from concilium.rulefit.rulefit import RuleFit

NOT_PRIVATE = (
    "the house saw the rules of each site's own trees, and which site sent them. Rules, gradients and Hessians are "
    "exact: masks hide which hospital a sum comes from, and do not protect patients. Enough sums over rules give back "
    "single outcomes"
)

Histograms = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class PlainFit:
    """How a RuleFit learns under `exact` and `masked`."""

    rulefit: RuleFit

    def check(self) -> None:
        if self.rulefit.noise == "laplace" and self.rulefit.epsilon is None:
            raise StudyError("a RuleFit with noise = 'laplace' needs an 'epsilon', such as 1.0")
        if self._noisy and self.rulefit.most_cutoffs is not None:
            if self._pure:
                self._check_scale(1)
            elif is_unpayable(self.rulefit.rho):
                raise self._too_small
        if self.rulefit.solver == "fedda" and not isinstance(self.rulefit.penalty, float):
            raise StudyError("a RuleFit with solver 'fedda' needs one 'penalty'; a path takes 'newton'")

    def plan(self) -> Plan:
        """What a fit will ask, what each question costs, and all of it together."""
        rulefit = self.rulefit
        questions: list[tuple[str, Fraction | None, str]] = [
            ("rulefit.schema", None, "which attributes, values and classes there are"),
            ("counts", None, "histograms on the public bins, for cutoffs and scales"),
        ]
        if self._noisy and rulefit.most_cutoffs is not None:
            more = f"the same with noise, of numbers with more than {rulefit.most_cutoffs} edges"
            if self._pure:
                questions.append(("counts", rho_from_pure(self._epsilon), f"{more}, at pure epsilon"))
            else:
                questions.append(("counts", rulefit.rho, more))
        if rulefit.scale == "within":
            questions.append(
                ("rulefit.rates", None, "the spread of each number within hospitals, for scales")
            )
        questions.append(("rulefit.rules", None, f"rules of {rulefit.trees} boosted trees at every site"))
        if rulefit.solver == "fedda":
            solving = f"{fedda.ROUNDS} times: how far the dual vector moves"
            questions.append(("rulefit.dual", None, solving))
        else:
            one = isinstance(rulefit.penalty, float)
            often = "about ten times" if one else "some dozens of times, for a path"
            questions.append(("rulefit.fit", None, f"{often}: loss, gradient and Hessian"))
        last = "support and subgroup rates of the model's rules"
        if rulefit.rule.tallied and rulefit.solver != "fedda":
            first = f"as often before, for a first fit without {PERCENT_LEFT_OUT} % of the patients"
            questions.append(("rulefit.fit", None, first))
        if rulefit.rule.tallied:
            last += ", and patients by class and chance, for the decision"
        questions.append(("rulefit.rates", None, last))
        return Plan("rho", tuple(PlannedQuestion(*question) for question in questions))

    def converse(self, partners: Partners) -> Conversation[Learned[RuleBody]]:
        rulefit = self.rulefit
        warnings: list[str] = []
        measured = rulefit.positive is None and rulefit.target in rulefit.bins
        bins = {name: list(edges) for name, edges in rulefit.bins.items() if name != rulefit.target}
        schemas: dict[str, SchemaSeen] = yield AskRuleSchema(
            query=rulefit.query,
            target=rulefit.target,
            bins=bins,
            attributes=None if rulefit.attributes is None else list(rulefit.attributes),
            count_patients=rulefit.way_out.by_site,
            measured=measured,
        )
        classes, outcome = self._find_outcome(schemas, measured)
        warnings += yield from self._check_range(outcome)
        attributes, left_out = share_attributes(schemas, bins, rulefit.attributes or list(bins))
        attributes, lines, without = yield from self._choose_cutoffs(partners, attributes, warnings)
        left_out |= without
        if not attributes:
            raise HouseError(
                "no attribute is left to make rules of: "
                + "; ".join(f"{name}: {why}" for name, why in left_out.items())
            )
        places = choose_places(partners.hospitals)
        if rulefit.scale == "within" and lines:
            terms = RuleTerms(tuple(attributes), (), tuple(lines))
            scaling = FitQuestions(rulefit.query, rulefit.target, outcome, terms, places)
            rates = yield from scaling.ask_rates(range(len(lines)))
            lines = rescale(lines, rates.deviation.tolist())
        rules = yield from self._gather_rules(outcome, attributes, warnings)
        terms = RuleTerms(tuple(attributes), tuple(rules), tuple(lines))
        questions = FitQuestions(rulefit.query, rulefit.target, outcome, terms, places)
        w, tally = yield from self._solve(questions, warnings)
        body, said = yield from self._tell(questions, w, classes, tally)
        if not body.taken:
            warnings.append("no term is worth its penalty: every patient gets the same answer")
        if body.patients is not None and len(terms) > body.patients:
            warnings.append(
                f"there were {len(terms)} terms to choose from for {body.patients} patients; the penalty took "
                f"{len(body.taken)}"
            )
        warnings += [f"left out: {name} ({why})" for name, why in sorted(left_out.items())]
        warnings += find_foreign_codings(schemas)
        if not rulefit.way_out.by_site:
            warnings.append(NOT_PRIVATE)
        return Learned(body, {site: schema.patients for site, schema in schemas.items()}, warnings, said)

    def _find_outcome(self, schemas: Mapping[str, SchemaSeen], measured: bool) -> tuple[list[Value], Outcome]:
        """What is predicted: two classes, the positive one second, or a number within its range."""
        target = self.rulefit.target
        if measured:
            edges = self.rulefit.bins[target]
            if len(edges) < 2:
                raise StudyError(f"the 'bins' of {target!r} must give the range of a number: two at least")
            return [], Outcome(low=edges[0], high=edges[-1])
        classes = present(value for schema in schemas.values() for value in schema.classes)
        if len(classes) < 2:
            only = f"{target} = {label(classes[0])}" if classes else f"no {target}"
            raise HouseError(f"all patients of the query have {only}: there is nothing to predict")
        return self._order_classes(classes)

    def _order_classes(self, classes: Sequence[Value]) -> tuple[list[Value], Outcome]:
        """The two classes of a target with these values, the positive one second."""
        target, positive = self.rulefit.target, self.rulefit.positive
        if positive is None:
            if len(classes) > 2:
                raise StudyError(
                    f"{target!r} has {len(classes)} values ({', '.join(map(label, classes[:5]))}, ...): say which is "
                    f"'positive', or give its range in 'bins' if it is a number"
                )
            return list(classes), Outcome(positive=classes[1])
        own = [value for value in classes if label(value) == label(positive)]
        if not own:
            raise StudyError(
                f"no patient has {target} = {label(positive)}; there are {', '.join(map(label, classes[:10]))}"
            )
        others = [value for value in classes if value is not own[0]]
        return [*set_against_rest(own[0], others)], Outcome(positive=own[0])

    def _check_range(self, outcome: Outcome) -> Conversation[list[str]]:
        """StudyError where no patient's number lies in the range that the study states; what to say where some do
        not."""
        if outcome.low is None or outcome.high is None:
            return []
        target = self.rulefit.target
        # The upper end itself is in the range, and a bin would begin with it.
        edges = (outcome.low, float(np.nextafter(outcome.high, np.inf)))
        histogram = (yield from self._ask_histograms([Attribute(target, edges)]))[target]
        if missed(histogram):
            why = yield from self._look_again([Attribute(target, edges)])
            raise StudyError(f"{target!r} cannot be predicted: {why[target]}")
        below, within, above = np.maximum(histogram[1:], 0).tolist()
        if not below + above:
            return []
        share = (below + above) / (below + within + above)
        return [
            f"{share:.1%} of the patients have a {target} beyond its range, {say_number(outcome.low)} to "
            f"{say_number(outcome.high)}, and count as its ends"
        ]

    def _choose_cutoffs(
        self, partners: Partners, attributes: Sequence[Attribute], warnings: list[str]
    ) -> Conversation[tuple[list[Attribute], list[Line], dict[str, str]]]:
        """Attributes with their cutoffs, linear terms, and the attributes without any cutoff, and why."""
        most = self.rulefit.most_cutoffs
        numbers = [attribute for attribute in attributes if attribute.numeric]
        charged = [a for a in numbers if self._is_told_with_noise(a)]
        histograms, without = yield from self._ask_noisy(partners, charged, warnings)
        plain = [a for a in numbers if a not in charged]
        histograms |= yield from self._ask_histograms(plain)
        # Only where the study has no noise for it anyway: hospitals agreed to tell the others with noise alone.
        without |= yield from self._look_again([a for a in plain if missed(histograms[a.name])])
        kept: list[Attribute] = []
        lines: list[Line] = []
        for attribute in attributes:
            if not attribute.numeric:
                kept.append(attribute)
                continue
            if attribute.name in without:
                continue
            with_cutoffs = cut(attribute, histograms[attribute.name], most)
            if with_cutoffs is None:
                without[attribute.name] = "all patients are in one of its bins"
                continue
            line = measure(len(kept), attribute.edges, histograms[attribute.name])
            lines += [] if line is None else [line]
            kept.append(with_cutoffs)
        return kept, lines, without

    def _ask_noisy(
        self, partners: Partners, charged: Sequence[Attribute], warnings: list[str]
    ) -> Conversation[tuple[Histograms, dict[str, str]]]:
        """Histograms with noise of these attributes, and those of them that are left out, and why. What noise hides
        is said, and not asked again: that would be exact."""
        if not charged:
            return {}, {}
        rulefit = self.rulefit
        # One patient is in one bin of each, so that all of them together cost epsilon.
        about: dict[str, Any] = {
            "query": rulefit.query,
            "target": rulefit.target,
            "attributes": tuple(charged),
            "totals": False,
        }
        # Under `exact` each hospital adds all of the noise by itself; in shares there is somewhat more than was asked.
        parts = float(partners.hospitals if rulefit.way_out.by_site else partners.noise_factor)
        if self._pure:
            self._check_scale(len(charged))
            question = AskCounts(**about, noise=Laplace(str(self._epsilon)))
            noise = Noise(float(question.variance) * parts, float(len(charged) / self._epsilon))
        else:
            variance = partners.variance(rulefit.rho, len(charged))
            question = AskCounts(**about, noise=Gaussian(str(variance)))
            noise = Noise(float(variance) * parts)
        histograms = {name: table[:, 0] for name, table in split_counts(charged, (yield question)).items()}
        warnings.append(self._say_noised([a.name for a in charged]))
        without, hidden = judge_bins([(a, histograms[a.name]) for a in charged], noise)
        warnings += hidden
        return histograms, without

    def _say_noised(self, names: Sequence[str]) -> str:
        """What the card says of what had noise, beside its price."""
        rulefit = self.rulefit
        added = (
            "each hospital added by itself" if rulefit.way_out.by_site else "the hospitals added in shares"
        )
        if self._pure:
            price = f"epsilon = {say_epsilon(float(self._epsilon))}"
        else:
            price = f"epsilon = {say_epsilon(rulefit.epsilon_of_rho)} and delta = {rulefit.delta}"
        return (
            f"of all that was told only the histograms that chose the cutoffs of {list_some(names)} have noise, which "
            f"{added}, at {price} for all of them together; everything else is exact"
        )

    def _check_scale(self, attributes: int) -> None:
        """StudyError where the noise on histograms of so many attributes is more than can be drawn."""
        most = LARGEST_SCALE if self.rulefit.way_out.by_site else LARGEST_POLYA_SCALE
        if attributes > most * self._epsilon:
            raise self._too_small

    @property
    def _too_small(self) -> StudyError:
        return StudyError(
            f"an 'epsilon' of {self.rulefit.epsilon} is too small for any question to be answered"
        )

    def find_objection_to_counts(self, question: AskCounts) -> str | None:
        """Why the study does not need these counts: it asks for histograms only, and for some with noise."""
        if question.classes is not None or question.totals or question.tree or question.sample:
            return "it asks for more than histograms, for cutoffs"
        for attribute in question.attributes if question.noise is None else ():
            if attribute.name != self.rulefit.target and self._is_told_with_noise(attribute):
                return f"the histogram of {attribute.name!r} is told with noise in this study, and it asks exactly"
        return None

    def _is_told_with_noise(self, attribute: Attribute) -> bool:
        """Whether hospitals that agreed to the study tell the histogram of a number with noise, and not otherwise."""
        most = self.rulefit.most_cutoffs
        edges = self.rulefit.bins.get(attribute.name, attribute.edges)
        return self._noisy and most is not None and len(edges) > most

    @property
    def _noisy(self) -> bool:
        """Whether histograms of many bins come with noise, at a price: under masks where there is an epsilon, and
        wherever the study asks for the paper's noise."""
        return self._pure or (not self.rulefit.way_out.by_site and self.rulefit.epsilon is not None)

    @property
    def pure_price(self) -> Fraction | None:
        """What has a price are the histograms, at pure epsilon where their noise is the paper's."""
        return self._epsilon if self._pure and self.rulefit.most_cutoffs is not None else None

    @property
    def _pure(self) -> bool:
        return self.rulefit.noise == "laplace"

    @property
    def _epsilon(self) -> Fraction:
        assert self.rulefit.epsilon is not None
        return exact_positive(as_written(self.rulefit.epsilon), "epsilon")

    def _ask_histograms(self, attributes: Sequence[Attribute]) -> Conversation[Histograms]:
        if not attributes:
            return {}
        counts = yield AskCounts(
            query=self.rulefit.query,
            target=self.rulefit.target,
            attributes=tuple(attributes),
            totals=False,
        )
        return {name: table[:, 0] for name, table in split_counts(attributes, counts).items()}

    def _look_again(self, attributes: Sequence[Attribute]) -> Conversation[dict[str, str]]:
        """What to say of attributes whose bins miss everybody, after a second look on wider ones."""
        wide = yield from self._ask_histograms([Attribute(a.name, WIDE_EDGES) for a in attributes])
        return {a.name: say_missed(a.edges, wide[a.name]) for a in attributes}

    def _gather_rules(
        self, outcome: Outcome, attributes: Sequence[Attribute], warnings: list[str]
    ) -> Conversation[list[Rule]]:
        """The different rules of all sites."""
        rulefit = self.rulefit
        question = AskRules(
            query=rulefit.query,
            target=rulefit.target,
            outcome=outcome,
            attributes=tuple(attributes),
            trees=rulefit.trees,
            leaves=rulefit.leaves,
            shrinkage=rulefit.shrinkage,
            support=rulefit.support,
            seed=rulefit.seed,
        )
        replies = yield question
        warnings += [
            f"{site} had no rule to tell: its patients are alike, of one class, or too few"
            for site, reply in replies.items()
            if not reply.rules
        ]
        return list(question.unite(list(replies.values())).rules)

    def _solve(
        self, questions: FitQuestions, warnings: list[str]
    ) -> Conversation[tuple[NDArray[np.float64], Tally | None]]:
        """The coefficients, intercept first, and what a decision is chosen by, if it needs that. Where a penalty was to
        be chosen, the path over penalties is kept."""
        penalty = self.rulefit.penalty
        if self.rulefit.solver == "fedda":
            assert isinstance(penalty, float)
            averaged = yield from fedda.fit(
                partial(questions.ask_move, penalty), len(questions.terms), penalty
            )
            warnings.append(
                f"dual averaging took {averaged.questions} questions, in steps of {averaged.step:g}; it comes near the "
                "optimum and does not reach it"
            )
            return averaged.w, None
        columns = newton.Columns.of(questions.terms)
        if not isinstance(penalty, float):
            tried = yield from newton.fit_path(
                partial(questions.ask_sums, part=LEARNING),
                questions.ask_losses_of_held_out,
                columns,
                None if isinstance(penalty, str) else list(penalty),
            )
            self.rulefit.path_ = tried
            best = min(tried, key=lambda one: (one.deviance, -one.penalty))
            warnings.append(
                f"of {len(tried)} penalties {best.penalty:.3g} had the least loss on patients held out "
                f"({best.deviance:.4f})"
            )
            if penalty == "auto" and len(tried) < newton.PATH_LENGTH:
                warnings.append(
                    f"smaller penalties were not tried: their models have more than {newton.MOST_TERMS} terms, which "
                    "nobody reads; a list of penalties is tried whole"
                )
            penalty = best.penalty
        first, tally = None, None
        if self.rulefit.rule.tallied and questions.outcome.binary:
            left = yield from newton.fit(partial(questions.ask_sums, part=LEARNING), columns, penalty)
            first, tally = left.point, (yield from questions.ask_chances(left.w))
        fitted = yield from newton.fit(questions.ask_sums, columns, penalty, near=first)
        if not fitted.converged:
            warnings.append(
                f"the solver stopped after {fitted.questions} questions, about {fitted.gap:.1g} above the optimum"
            )
        return fitted.w, tally

    def _tell(
        self,
        questions: FitQuestions,
        w: NDArray[np.float64],
        classes: list[Value],
        tally: Tally | None,
    ) -> Conversation[tuple[RuleBody, str]]:
        """The model's body, with what the sites tell of the terms it has taken, and what the card says of its
        decision."""
        columns = np.flatnonzero(w[1:]).tolist()
        taken_by = Coefficients.of(np.concatenate([w[:1], w[1:][columns]]))
        rates = yield from questions.ask_rates(columns, taken_by if self.rulefit.rule.tallied else None)
        taken = [
            TakenTerm(
                column,
                round(float(rates.support[index]), 12),
                _finite(rates.inside[index]),
                _finite(rates.outside[index]),
                float(rates.deviation[index]),
            )
            for index, column in enumerate(columns)
        ]
        intercept = float(w[0])
        if classes and not columns:
            # Nothing but the intercept is solved for as a whole, where the solver only comes near: by a little too much
            # everybody would be likelier than the mean.
            intercept = math.log(rates.mean / (1 - rates.mean))
        decided, said = None, ""
        if classes:
            chosen_by = (rates.tally, None) if tally is None else (tally, rates.tally)
            decided, said = decide(self.rulefit.decision, classes[1], rates.mean, *chosen_by)
        body = RuleBody(
            target=questions.target,
            query=questions.query,
            outcome=questions.outcome,
            classes=classes,
            decided=decided,
            terms=questions.terms,
            intercept=intercept,
            coefficients=w[1:].tolist(),
            taken=taken,
            patients=rates.patients,
            mean=rates.mean,
        )
        return body, said


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
