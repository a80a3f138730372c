"""The plain conversation, `exact` or `masked`: what is asked, in which order, and what is made of the answers.

Shared cutoffs, rules of every site, coefficients of the pooled optimum, and what the sites tell of the terms taken
(docs/methods.md, sections 2.1 to 2.10). Neither release protects a patient: under `masked` the house
sees sums over all sites only, and each site's rules; `NOT_PRIVATE` goes on the card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, StudyError, name_some
from concilium.models.grid import CUTOFFS, find_edges, find_groups, say_alike, say_two_units
from concilium.models.method import as_written
from concilium.models.outcome import (
    WIDE_EDGES,
    Outcome,
    check_range,
    find_range,
    missed,
    order_classes,
    say_missed,
)
from concilium.models.threshold import PERCENT_LEFT_OUT, Tally, decide, probability, warn_of_all_flagged
from concilium.privacy.accounting import Plan, PlannedQuestion, exact_positive, rho_from_pure, say_epsilon
from concilium.privacy.mechanisms import LARGEST_SCALE
from concilium.privacy.shares import LARGEST_POLYA_SCALE, is_unpayable
from concilium.protocol.attributes import MISSING, MOST_EDGES, Attribute, present
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.questions import Conversation, Gaussian, Laplace, Learned, Partners
from concilium.protocol.schema import (
    SchemaSeen,
    find_cautions,
    find_numbers,
    say_left_out,
)
from concilium.protocol.sums import choose_places
from concilium.records.columns import Value
from concilium.rulefit import fedda, generation, newton
from concilium.rulefit.body import PenaltyChoice, RuleBody, TakenTerm
from concilium.rulefit.cross_validation import Validated, choose_penalty
from concilium.rulefit.cutoffs import (
    AskRuleSchema,
    Noise,
    count_codes,
    cut,
    judge_bins,
    measure,
    rescale,
    share_attributes,
)
from concilium.rulefit.fit_questions import LEARNING, FitQuestions
from concilium.rulefit.fitting import Coefficients
from concilium.rulefit.generation import AskRules
from concilium.rulefit.reading import say_selected
from concilium.rulefit.refit import refit, relax
from concilium.rulefit.terms import Line, Rule, RuleTerms, unite_rules

if TYPE_CHECKING:
    from concilium.rulefit.rulefit import RuleFit

NOT_PRIVATE = (
    "the house saw the rules of each site's own trees, and which site sent them. Rules, gradients and Hessians are "
    "exact: masks hide which hospital a sum comes from, and do not protect patients. Enough sums over rules give back "
    "single outcomes"
)

HALF, WHOLE = Fraction(1, 2), Fraction(1)
# The paper's, where there are too few patients to choose one.
FALLBACK_PENALTY = 0.01
# Nobody reads a longer model, whatever a study allows.
MOST_TERMS = 200
HARDER = 1.15

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
            questions.append(("rulefit.fit", None, "about ten times: loss, gradient and Hessian"))
        if rulefit.folds is not None:
            questions.append(
                ("rulefit.folds", None, f"some dozens of times: the same for {len(rulefit.folds)} folds")
            )
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
        if measured:
            warnings += yield from check_range(rulefit.target, outcome, self._ask_histograms)
        found, without = yield from self._find_edges(partners, schemas, bins)
        edges = {attribute.name: list(attribute.edges) for attribute in found}
        attributes, left_out = share_attributes(schemas, bins | edges, rulefit.attributes or list(bins))
        left_out |= without
        attributes = [attribute for attribute in attributes if attribute.name not in left_out]
        on_grid = {*edges, *without}
        grouped: list[str] = []
        attributes, counts, lines, without = yield from self._choose_cutoffs(
            partners, attributes, on_grid, warnings, grouped
        )
        left_out |= without
        dates = {attribute.name for attribute in found if attribute.date}
        attributes = [msgspec.structs.replace(a, date=a.name in dates) for a in attributes]
        if not attributes:
            raise HouseError("no attribute is left to make rules of: " + say_left_out(left_out))
        places = choose_places(partners.hospitals)
        if rulefit.scale == "within" and lines:
            terms = RuleTerms(tuple(attributes), (), tuple(lines))
            scaling = FitQuestions(rulefit.query, rulefit.target, outcome, terms, places)
            rates = yield from scaling.ask_rates(range(len(lines)))
            lines = rescale(lines, rates.deviation.tolist())
        questions = FitQuestions(rulefit.query, rulefit.target, outcome, RuleTerms(tuple(attributes)), places)
        counts = yield from _count_values(questions, counts)
        rules, of_folds = yield from self._gather_rules(outcome, attributes, counts, warnings)
        terms = RuleTerms(tuple(attributes), tuple(rules), tuple(lines))
        questions = questions.with_terms(terms)
        solved = yield from self._solve(questions, of_folds, warnings)
        body, said = yield from self._tell(questions, solved, classes, warnings)
        if not self._noisy and not any(schema.floored for schema in schemas.values()):
            known = [a.name for a, counted in zip(attributes, counts, strict=True) if not counted[MISSING]]
            body = msgspec.structs.replace(body, always_known=known)
        if body.patients is not None and len(terms) > body.patients:
            warnings.append(
                f"{len(body.taken)} of {len(terms)} candidate terms were selected, by {body.patients} patients"
            )
        # Under masks nobody knows how many a hospital has.
        most = max((schema.patients or body.patients or 0 for schema in schemas.values()), default=0)
        if most > generation.MOST_LEARNED_FROM:
            warnings.append(
                f"a hospital of more than {generation.MOST_LEARNED_FROM:,} patients grows its trees over about that "
                "many, drawn at random; support, coefficients and figures are of all its patients"
            )
        warnings += [say_left_out(left_out)] if left_out else []
        warnings += find_cautions(schemas, grouped)
        if not rulefit.way_out.by_site:
            warnings.append(NOT_PRIVATE)
        return Learned(body, {site: schema.patients for site, schema in schemas.items()}, warnings, said)

    def _find_edges(
        self,
        partners: Partners,
        schemas: Mapping[str, SchemaSeen],
        bins: Mapping[str, Sequence[float]],
    ) -> Conversation[tuple[tuple[Attribute, ...], dict[str, str]]]:
        """Edges on the public grid for numbers without bins, and those that have none, and why."""
        numbers, left_out = find_numbers(schemas, bins, MOST_EDGES)
        noisy = self._noisy and self.rulefit.most_cutoffs is not None
        dates = {name for schema in schemas.values() for name in schema.dates}

        def ask(attributes: tuple[Attribute, ...]) -> tuple[AskCounts, float]:
            if not noisy:
                return self._ask_plainly(attributes), 0.0
            question, noise = self._ask_with_noise(partners, attributes, HALF)
            return question, noise.variance

        cutoffs = self.rulefit.most_cutoffs or CUTOFFS
        found, without = yield from find_edges(numbers, ask, dates=dates, cutoffs=cutoffs)
        return found, {**left_out, **without}

    def _find_outcome(self, schemas: Mapping[str, SchemaSeen], measured: bool) -> tuple[list[Value], Outcome]:
        """What is predicted: two classes, the positive one second, or a number within its range."""
        target = self.rulefit.target
        if measured:
            return [], find_range(target, self.rulefit.bins[target])
        found = present(value for schema in schemas.values() for value in schema.classes)
        classes = order_classes(target, found, self.rulefit.positive)
        return classes, Outcome(positive=classes[1])

    def _choose_cutoffs(
        self,
        partners: Partners,
        attributes: Sequence[Attribute],
        on_grid: Set[str],
        warnings: list[str],
        grouped: list[str],
    ) -> Conversation[tuple[list[Attribute], list[NDArray[np.int64]], list[Line], dict[str, str]]]:
        """Attributes with their cutoffs, how many patients have each code of a number (1 where noise hides it), linear
        terms, and the attributes without any cutoff, and why.

        `on_grid`: numbers of which decades were asked for already, at half of the price where there is one. `grouped`
        receives those of them that lie in two groups far apart, where counts are exact.
        """
        most = self.rulefit.most_cutoffs
        numbers = [attribute for attribute in attributes if attribute.numeric]
        noisy = self._noisy and most is not None
        charged = [a for a in numbers if self._is_told_with_noise(a) or (noisy and a.name in on_grid)]
        histograms, without = yield from self._ask_noisy(
            partners, charged, warnings, HALF if on_grid else WHOLE
        )
        plain = [a for a in numbers if a not in charged]
        histograms |= yield from self._ask_histograms(plain)
        # Only where the study has no noise for it anyway: hospitals agreed to tell the others with noise alone.
        without |= yield from self._look_again([a for a in plain if missed(histograms[a.name])])
        kept: list[Attribute] = []
        counts: list[NDArray[np.int64]] = []
        lines: list[Line] = []
        for attribute in attributes:
            if not attribute.numeric:
                kept.append(attribute)
                counts.append(np.ones(attribute.size, dtype=np.int64))
                continue
            if attribute.name in without:
                continue
            with_cutoffs = cut(attribute, histograms[attribute.name], most, on_grid=attribute.name in on_grid)
            if with_cutoffs is None:
                without[attribute.name] = (
                    say_alike(histograms[attribute.name][1:], attribute.edges)
                    if attribute.name in on_grid
                    else "all patients are in one of its bins"
                )
                continue
            if attribute.name in on_grid and attribute not in charged:
                groups = find_groups(histograms[attribute.name], attribute.edges)
                if groups is not None and (why := say_two_units(attribute.name, groups)):
                    without[attribute.name] = why
                    continue
                grouped += [attribute.name] if groups is not None else []
            line = measure(len(kept), attribute.edges, histograms[attribute.name])
            lines += [] if line is None else [line]
            kept.append(with_cutoffs)
            counts.append(
                np.ones(with_cutoffs.size, dtype=np.int64)
                if attribute in charged
                else count_codes(with_cutoffs, attribute.edges, histograms[attribute.name])
            )
        return kept, counts, lines, without

    def _ask_noisy(
        self, partners: Partners, charged: Sequence[Attribute], warnings: list[str], share: Fraction
    ) -> Conversation[tuple[Histograms, dict[str, str]]]:
        """Histograms with noise of these attributes, and those of them that are left out, and why. What noise hides
        is said, and not asked again: that would be exact."""
        if not charged:
            return {}, {}
        question, noise = self._ask_with_noise(partners, charged, share)
        histograms = {name: table[:, 0] for name, table in split_counts(charged, (yield question)).items()}
        warnings.append(self._say_noised([a.name for a in charged]))
        without, hidden = judge_bins([(a, histograms[a.name]) for a in charged], noise)
        warnings += hidden
        return histograms, without

    def _ask_with_noise(
        self, partners: Partners, attributes: Sequence[Attribute], share: Fraction
    ) -> tuple[AskCounts, Noise]:
        """The question for histograms at this share of epsilon, and the noise of their sum. One patient is in one bin
        of each, so that all of them together cost that."""
        rulefit = self.rulefit
        about = self._ask_plainly(attributes)
        # Under `exact` each hospital adds all of the noise by itself; in shares there is somewhat more than was asked.
        parts = float(partners.hospitals if rulefit.way_out.by_site else partners.noise_factor)
        if self._pure:
            self._check_scale(len(attributes))
            epsilon = self._epsilon * share
            question = msgspec.structs.replace(about, noise=Laplace(str(epsilon)))
            return question, Noise(float(question.variance) * parts, float(len(attributes) / epsilon))
        variance = partners.variance(rulefit.rho * share, len(attributes))
        return msgspec.structs.replace(about, noise=Gaussian(str(variance))), Noise(float(variance) * parts)

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
            f"of all that was told only the histograms that chose the cutoffs of {name_some(names)} have noise, which "
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
        counts = yield self._ask_plainly(attributes)
        return {name: table[:, 0] for name, table in split_counts(attributes, counts).items()}

    def _ask_plainly(self, attributes: Sequence[Attribute]) -> AskCounts:
        return AskCounts(
            query=self.rulefit.query, target=self.rulefit.target, attributes=tuple(attributes), totals=False
        )

    def _look_again(self, attributes: Sequence[Attribute]) -> Conversation[dict[str, str]]:
        """What to say of attributes whose bins miss everybody, after a second look on wider ones."""
        wide = yield from self._ask_histograms([Attribute(a.name, WIDE_EDGES) for a in attributes])
        return {a.name: say_missed(a.edges, wide[a.name]) for a in attributes}

    def _gather_rules(
        self,
        outcome: Outcome,
        attributes: Sequence[Attribute],
        counts: Sequence[NDArray[np.int64]],
        warnings: list[str],
    ) -> Conversation[tuple[list[Rule], list[list[Rule]]]]:
        """The different rules of all sites, and those of every fold."""
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
            folds=rulefit.folds,
        )
        replies = yield question
        warnings += [
            f"{site} had no rule to tell: its patients are alike, of one class, or too few"
            for site, reply in replies.items()
            if not reply.rules
        ]
        united = question.unite(list(replies.values()))
        rules, *of_folds = (
            unite_rules(
                one,
                attributes,
                counts,
                most_conditions=rulefit.max_conditions,
                most_values=rulefit.max_values,
            )
            for one in (united.rules, *united.by_fold)
        )
        return rules, of_folds

    def _solve(
        self, questions: FitQuestions, of_folds: Sequence[Sequence[Rule]], warnings: list[str]
    ) -> Conversation[_Solved]:
        """The coefficients, what is known of how sure they are, and what a decision is chosen by, if it needs that."""
        rulefit, penalty = self.rulefit, self.rulefit.penalty
        if rulefit.solver == "fedda":
            assert isinstance(penalty, float)
            return (yield from _average(questions, penalty, warnings))
        columns = newton.Columns.of(questions.terms)
        validated = None
        if not isinstance(penalty, float):
            listed = None if isinstance(penalty, str) else list(penalty)
            validated = yield from choose_penalty(
                questions, of_folds, listed, rulefit.most_terms or MOST_TERMS
            )
            if validated is None:
                penalty = FALLBACK_PENALTY
                warnings.append(
                    f"the hospitals have too few patients to choose a penalty by others held out: {penalty} was taken"
                )
            else:
                rulefit.path_ = validated.tried
                penalty = validated.penalty or math.inf
        first, tally = None, None
        if rulefit.rule.tallied and questions.outcome.binary and penalty < math.inf:
            ask = partial(questions.ask_sums, part=LEARNING)
            left = yield from self._select(ask, columns, penalty, [])
            relaxed = left.w if validated is None else relax(left.point)
            first, tally = left.point, (yield from questions.ask_chances(relaxed))
        if penalty == math.inf:
            w = np.zeros(len(questions.terms) + 1)
        else:
            w = (yield from self._select(questions.ask_sums, columns, penalty, warnings, first)).w
        if validated is None:
            return _Solved(w, None, None, None, tally)
        return (yield from _refit(questions, w, validated, tally))

    def _select(
        self,
        ask: newton.AskSums,
        columns: newton.Columns,
        penalty: float,
        warnings: list[str],
        near: newton.Point | None = None,
    ) -> Conversation[newton.NewtonFit]:
        """The penalised fit, with a larger penalty where it has more terms than a page holds."""
        fitted = yield from newton.fit(ask, columns, penalty, near=near)
        raised, most = penalty, self.rulefit.most_terms
        while most is not None and np.count_nonzero(fitted.w[1:]) > most:
            raised *= HARDER
            fitted = yield from newton.fit(ask, columns, raised, start=fitted.point)
        if raised > penalty:
            warnings.append(
                f"the penalty was raised from {penalty:.3g} to {raised:.3g}, for a model of at most {most} terms"
            )
        if not fitted.converged:
            warnings.append(
                f"the solver stopped after {fitted.questions} questions, about {fitted.gap:.1g} above the optimum"
            )
        return fitted

    def _tell(
        self, questions: FitQuestions, solved: _Solved, classes: list[Value], warnings: list[str]
    ) -> Conversation[tuple[RuleBody, str]]:
        """The model's body, with what the sites tell of the terms it has taken, and what the card says of its
        decision."""
        w, tally = solved.w, solved.tally
        columns = np.flatnonzero(w[1:]).tolist()
        taken_by = Coefficients.of(np.concatenate([w[:1], w[1:][columns]]))
        rates = yield from questions.ask_rates(columns, taken_by if self.rulefit.rule.tallied else None)
        shares: Sequence[float | None] = solved.shares or [None] * len(columns)
        taken = [
            TakenTerm(
                column,
                round(float(rates.support[index]), 12),
                _finite(rates.inside[index]),
                _finite(rates.outside[index]),
                float(rates.deviation[index]),
                shares[index],
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
            decided, said = decide(self.rulefit.threshold, classes[1], rates.mean, *chosen_by)
        if decided is not None and not columns and self.rulefit.rule.tallied:
            # The risks that were counted are those of the intercept as it was: everybody has the same.
            threshold = min(decided.threshold, float(probability(np.array(intercept))))
            decided = msgspec.structs.replace(decided, threshold=threshold)
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
            covariance=solved.covariance,
            validation=solved.validation,
        )
        warnings += [*say_selected(body), *warn_of_all_flagged(decided, rates.tally)]
        return body, said


@dataclass(frozen=True)
class _Solved:
    """Coefficients, intercept first; the upper triangle of their covariance and in how many folds each term was
    selected, where that is known; how the penalty was chosen; and what a threshold is chosen by."""

    w: NDArray[np.float64]
    covariance: list[float] | None
    shares: list[float] | None
    validated: Validated | None
    tally: Tally | None

    @property
    def validation(self) -> PenaltyChoice | None:
        return None if self.validated is None else self.validated.summary


def _count_values(
    questions: FitQuestions, counts: Sequence[NDArray[np.int64]]
) -> Conversation[list[NDArray[np.int64]]]:
    """The counts of codes, of categories as well: of each code as a rule by itself."""
    codes = [
        (index, code)
        for index, attribute in enumerate(questions.terms.attributes)
        for code in range(0 if attribute.numeric else attribute.size)
    ]
    counted = list(counts)
    if not codes:
        return counted
    terms = msgspec.structs.replace(questions.terms, rules=tuple(((i, code, code),) for i, code in codes))
    rates = yield from questions.with_terms(terms).ask_rates(range(len(codes)))
    for (index, code), support in zip(codes, rates.support.tolist(), strict=True):
        counted[index][code] = round(support * rates.patients)
    return counted


def _average(questions: FitQuestions, penalty: float, warnings: list[str]) -> Conversation[_Solved]:
    """The coefficients of dual averaging."""
    averaged = yield from fedda.fit(partial(questions.ask_move, penalty), len(questions.terms), penalty)
    warnings.append(
        f"dual averaging took {averaged.questions} questions, in steps of {averaged.step:g}; it comes near the "
        "optimum and does not reach it"
    )
    return _Solved(averaged.w, None, None, None, None)


def _refit(
    questions: FitQuestions, selected: NDArray[np.float64], validated: Validated, tally: Tally | None
) -> Conversation[_Solved]:
    """The selected terms without penalty."""
    own = {questions.terms.in_order[column]: column for column in np.flatnonzero(selected[1:]).tolist()}
    of_folds = validated.selected
    united = {*own, *(term for fold in of_folds for term in fold)}
    rules = sorted(term for term in united if isinstance(term, tuple))
    lines = [line for line in questions.terms.lines if line in united]
    terms = RuleTerms(questions.terms.attributes, tuple(rules), tuple(lines))
    place = {term: index for index, term in enumerate(terms.in_order)}
    start = np.zeros(len(terms) + 1)
    start[0] = selected[0]
    for term, column in own.items():
        start[1 + place[term]] = selected[1 + column]
    refitted = yield from refit(
        questions.with_terms(terms).ask_sums,
        start,
        [[place[term] for term in fold] for fold in of_folds],
        [len(term) if isinstance(term, tuple) else 1 for term in terms.in_order],
        1.0 if validated.factor is None else validated.factor,
        binary=questions.outcome.binary,
    )
    if refitted.held:  # a prior that is wider than what folds could say
        validated = replace(validated, factor=None, inflation=1.0, misfit=0.0)
    w = np.zeros_like(selected)
    w[0] = refitted.w[0]
    for column in refitted.kept:
        w[1 + own[terms.in_order[column]]] = refitted.w[1 + column]
    upper = refitted.covariance[np.triu_indices(len(refitted.covariance))]
    return _Solved(w, upper.tolist(), refitted.shares, validated, tally)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
