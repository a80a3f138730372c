"""`RuleFit(release="private")`: shapes from noisy tables, rules from a public seed, coefficients from noisy gradients.

Claim: every patient of every site is protected from the house and up to t colluding sites, by the epsilon and delta of
the study, which all its questions together cost (docs/methods.md, section 2.11). 30 % of the budget pays for
tables of bins by class of all stated attributes: a patient is in one cell of each, so that the squared L2 sensitivity
is the number of attributes. 70 % pays for forty noisy gradients of the logistic loss (`gradient.py`). What lies
between, shapes, bounds, scales, best attributes, rules, norm and every step of the solver, follows from noisy numbers
and the study, and is free. Attributes, values, classes and bins are stated; what is not named counts as `other`, any
class but the positive one as not positive. Supports and rates are withheld.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, StudyError
from concilium.models.intervals import WITHIN_95
from concilium.models.outcome import Outcome
from concilium.models.private_choice import find_better
from concilium.models.private_descent import descend, find_covariance
from concilium.models.private_start import (
    find_stated_classes,
    plan_start,
    start,
    states_attributes,
    states_classes,
)
from concilium.models.threshold import decide
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.privacy.shares import is_too_small, widen_sensitivity
from concilium.protocol.attributes import Attribute, choose_cutoffs
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.grid import are_days
from concilium.protocol.questions import Conversation, Gaussian, Learned, Partners
from concilium.protocol.schema import say_left_out, state_values
from concilium.protocol.sums import read_reals
from concilium.records.columns import Value, label
from concilium.rulefit.body import Curve, RuleBody, TakenTerm
from concilium.rulefit.cutoffs import RULE_DEVIATION, Noise, judge_bins, measure
from concilium.rulefit.fitting import Coefficients
from concilium.rulefit.gradient import AskGradient
from concilium.rulefit.private_terms import (
    NoisyPatients,
    Shape,
    count_patients,
    draw_rules,
    find_products,
    multiply,
    shape,
)
from concilium.rulefit.terms import Line, RuleTerms, Steps, write_terms

if TYPE_CHECKING:
    from concilium.rulefit.rulefit import RuleFit

SHARE_OF_TABLES = Fraction(3, 10)
GRADIENTS = 40
RULES = 40
# A model of more attributes than this would be one of their noise.
MOST_ATTRIBUTES = 100
PLACES = 16
# How sites make rules and how much coefficients shrink has no place in a private study.
NOT_OF_PRIVATE = (
    "trees",
    "leaves",
    "shrinkage",
    "penalty",
    "solver",
    "support",
    "scale",
    "noise",
    "max_values",
    "max_conditions",
    "max_terms",
)

# Chosen on simulated data (experiments/rulefit_private.py says which). Heights are in units in which a shape weighs
# against rules as the noise should be spread over them; rows are scaled to this part of their root mean square.
HEIGHT = 2.0
LINE_DEVIATION = 0.8
NORM = 0.8
# Shapes of single attributes overlap: together they say less than each for itself.
START = 0.6
# How far log odds may lie from the start: for fulfilling a rule, for a deviation more of a number, for a whole shape.
DOUBT_OF_RULES = 0.2
DOUBT_OF_LINES = 0.25
DOUBT_OF_SHAPES = 0.5
LARGEST = 1e4
CAUTIOUS = (
    "risks are somewhat too close to the base rate (a calibration slope above 1): long rows are shortened, so that "
    "noise hides each patient"
)
NOT_RULES = (
    "this model has a shape of each attribute, and {rules} of {drawn} rules that were drawn at random: noise hides the "
    "effect of the others"
)


@dataclass(frozen=True)
class PrivateFit:
    """How a RuleFit learns under `private`; `check` says what its study lacks."""

    rulefit: RuleFit
    # The same with its classes and cutoffs, once they are known.
    stated: RuleFit | None = None

    def check(self) -> None:
        rulefit = self.rulefit
        parameters = rulefit.parameters()
        for name in NOT_OF_PRIVATE:
            if getattr(rulefit, name) != parameters[name].kept_default:
                raise StudyError(
                    f"a private RuleFit has no {name!r}: its rules are drawn from the 'seed', and noise decides how "
                    "much coefficients shrink"
                )
        if rulefit.epsilon is None:
            raise StudyError("a private RuleFit needs an 'epsilon', such as 1.0")
        if is_too_small(self.rho_of_gradient):
            raise StudyError(
                f"an 'epsilon' of {rulefit.epsilon} is too small for any question to be answered"
            )
        if rulefit.target in rulefit.bins:
            raise StudyError(
                "a private RuleFit predicts yes or no: say which value is 'positive', without bins"
            )
        if states_classes(rulefit):
            _ = self.classes
        twice = sorted(rulefit.values.keys() & rulefit.bins.keys())
        if twice:
            raise StudyError(f"{twice[0]!r} has both 'values' and 'bins': a RuleFit needs one of them")

    @property
    def pure_price(self) -> Fraction | None:
        """None: its noise is Gaussian."""
        return None

    @property
    def rho_of_tables(self) -> Fraction:
        return self.rulefit.rho_of_fit * SHARE_OF_TABLES

    @property
    def rho_of_gradient(self) -> Fraction:
        """Of each of the gradients."""
        return self.rulefit.rho_of_fit * (1 - SHARE_OF_TABLES) / GRADIENTS

    @property
    def classes(self) -> list[Value]:
        """What is not predicted and what is: two stated classes, or the positive one against all others."""
        rulefit = self.stated or self.rulefit
        return find_stated_classes(rulefit, rulefit.positive)

    @property
    def attributes(self) -> list[Attribute]:
        """Those of the study, numbers first as they are counted, each kind by name."""
        rulefit = self.stated or self.rulefit
        values, bins = rulefit.values, rulefit.bins
        chosen = {*values, *bins} if rulefit.attributes is None else set(rulefit.attributes)
        names = sorted(chosen - {self.rulefit.target})
        numbers = [
            Attribute(name, tuple(bins[name]), date=are_days(bins[name])) for name in names if name in bins
        ]
        return numbers + [Attribute(name, (), state_values(values[name])) for name in names if name in values]

    def plan(self) -> Plan:
        """Every question, with what it costs."""
        known = f"{len(self.attributes)} " if states_attributes(self.rulefit) else ""
        better = find_better(self.rulefit, self.attributes)
        tables = f"tables by class of all {known}attributes{f' ({better})' if better else ''}"
        gradient = PlannedQuestion("rulefit.gradient", self.rho_of_gradient, "noisy gradients")
        first = PlannedQuestion("counts", self.rho_of_tables, tables)
        return Plan("rho", (*plan_start(self.rulefit), first, *[gradient] * GRADIENTS))

    def converse(self, partners: Partners) -> Conversation[Learned[RuleBody]]:
        completed, warnings = yield from start(self.rulefit, partners)
        return (yield from replace(self, stated=completed).learn(partners, warnings))

    def learn(self, partners: Partners, said_first: list[str]) -> Conversation[Learned[RuleBody]]:
        """Learn from what is stated by now."""
        rulefit = self.rulefit
        negative, positive = self.classes
        outcome = Outcome(positive=positive)
        tables, variance = yield from self._ask_tables(partners, positive)
        patients = count_patients(tables)
        attributes, tables, said_of_bins = _leave_out_lone(
            self.attributes, tables, Noise(2 * variance * float(partners.noise_factor))
        )
        shapes, lines = _draw_shapes(attributes, tables, rulefit.most_cutoffs, patients, variance)
        terms = _choose_terms(shapes, lines, rulefit.seed)
        moments = _find_moments(terms, shapes)
        terms = msgspec.structs.replace(terms, norm=_choose_norm(moments))
        w, covariance = yield from self._descend(partners, outcome, terms, moments, patients)
        w, dropped = _drop_hidden_rules(w, covariance, moments, len(terms.rules))
        inside = np.flatnonzero(np.concatenate([[1.0], w[1:]]))
        kept = covariance[np.ix_(inside, inside)]
        deviation = np.sqrt(np.maximum(np.diag(moments) - moments[0] ** 2, 0.0))
        # Of noisy tables that are paid for: post-processing.
        decided, said = decide(rulefit.threshold, positive, patients.positive / patients.total)
        body = RuleBody(
            target=rulefit.target,
            query=rulefit.query,
            outcome=outcome,
            classes=[negative, positive],
            decided=decided,
            terms=terms,
            intercept=float(w[0]),
            coefficients=w[1:].tolist(),
            taken=[
                TakenTerm(column, None, None, None, float(deviation[column + 1]))
                for column in np.flatnonzero(w[1:]).tolist()
            ],
            patients=None,
            mean=float(np.clip(patients.positive / patients.total, 0.0, 1.0)),  # of noisy tables as well
            covariance=kept[np.triu_indices(len(kept))].tolist(),
            curves=_trace_curves(terms, shapes, w, covariance, moments),
        )
        warnings = [
            rulefit.say_price(),
            f"by the noisy tables there are about {patients.total:.0f} patients, {patients.positive:.0f} of them "
            f"{rulefit.target} = {label(positive)}; supports and rates are withheld, importances are those of "
            "independent attributes",
            NOT_RULES.format(rules=len(terms.rules) - dropped, drawn=len(terms.rules)),
            CAUTIOUS,
            *said_first,
            *said_of_bins,
            *filter(None, [find_better(rulefit, self.attributes)]),
        ]
        return Learned(body, warnings=warnings, decision=said)

    def _ask_tables(
        self, partners: Partners, positive: Value
    ) -> Conversation[tuple[list[NDArray[np.int64]], float]]:
        """Each attribute's noisy table, [code, negative or positive], and the variance of its cells."""
        attributes = self.attributes
        variance = partners.variance(self.rho_of_tables, len(attributes))
        counts = yield AskCounts(
            query=self.rulefit.query,
            target=self.rulefit.target,
            attributes=tuple(attributes),
            classes=Attribute(self.rulefit.target, (), (positive,), missing=False),
            totals=False,
            noise=Gaussian(str(variance)),
        )
        # The positive class has the first column, any other the last.
        return [table[:, ::-1] for table in split_counts(attributes, counts).values()], float(variance)

    def _descend(
        self,
        partners: Partners,
        outcome: Outcome,
        terms: RuleTerms,
        moments: NDArray[np.float64],
        patients: NoisyPatients,
    ) -> Conversation[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """The coefficients, intercept first, and their covariance."""
        assert terms.norm is not None
        widened = widen_sensitivity(Fraction(terms.norm) ** 2, len(terms) + 1, PLACES)
        variance = partners.variance(self.rho_of_gradient, widened)
        sent = write_terms(terms)

        def ask(w: NDArray[np.float64]) -> Conversation[NDArray[np.float64]]:
            total = yield AskGradient(
                query=self.rulefit.query,
                target=self.rulefit.target,
                outcome=outcome,
                terms=sent,
                at=Coefficients.of(np.clip(w, -LARGEST, LARGEST)),
                places=PLACES,
                noise=Gaussian(str(variance)),
            )
            return read_reals(total, PLACES) / patients.total

        rate = patients.positive / patients.total
        noise = float(variance) ** 0.5 * 2.0**-PLACES / patients.total
        start, doubt = _begin(terms, patients)
        hessian = rate * (1 - rate) * moments
        w = yield from descend(ask, start, hessian, doubt, noise, GRADIENTS)
        really = (
            noise * float(partners.noise_factor) ** 0.5
        )  # in shares there is somewhat more than was asked
        shrunk = hessian * _find_shrinking(terms, moments) ** 2
        return w, find_covariance(shrunk, doubt, really, GRADIENTS, patients.total)


def _find_shrinking(terms: RuleTerms, moments: NDArray[np.float64]) -> float:
    """What a row of mean length is scaled by."""
    assert terms.norm is not None
    return min(1.0, terms.norm / math.sqrt(float(np.trace(moments))))


def _drop_hidden_rules(
    w: NDArray[np.float64], covariance: NDArray[np.float64], moments: NDArray[np.float64], rules: int
) -> tuple[NDArray[np.float64], int]:
    """The coefficients without those of rules that noise hides, and how many these are; what they add on average goes
    to the intercept. Post-processing."""
    hidden = np.zeros(len(w), dtype=np.bool_)
    errors = np.sqrt(np.diag(covariance))[1 : 1 + rules]
    hidden[1 : 1 + rules] = np.abs(w[1 : 1 + rules]) < WITHIN_95 * errors
    left = np.where(hidden, 0.0, w)
    left[0] += float(w[hidden] @ moments[0][hidden])
    return left, int(hidden.sum())


def _trace_curves(
    terms: RuleTerms,
    shapes: Sequence[Shape],
    w: NDArray[np.float64],
    covariance: NDArray[np.float64],
    moments: NDArray[np.float64],
) -> list[Curve]:
    """What every attribute does by its shape and its linear term together, code by code, with its error."""
    shrinking, curves = _find_shrinking(terms, moments), []
    products = find_products(terms, _find_middles(shapes))
    for index, each in enumerate(shapes):
        columns = [
            1 + column
            for column, term in enumerate(terms.in_order)
            if not isinstance(term, tuple) and term.attribute == index
        ]
        if not columns:  # all of it is in rules
            continue
        table = np.array([products[column][index] for column in columns])
        table = (table - (table @ each.shares)[:, None]) * shrinking
        moved = w[columns] @ table
        steps = [column for column in columns if isinstance(terms.in_order[column - 1], Steps)]
        heights = HEIGHT * each.errors if steps else np.zeros(len(each.errors))
        own = np.einsum("ac,ab,bc->c", table, covariance[np.ix_(columns, columns)], table)
        of_heights = (w[steps].sum() * shrinking * heights) ** 2
        errors = np.sqrt(own + of_heights)
        curves.append(Curve(index, each.shares.tolist(), moved.tolist(), errors.tolist(), heights.tolist()))
    return curves


def _leave_out_lone(
    attributes: Sequence[Attribute], tables: Sequence[NDArray[np.int64]], noise: Noise
) -> tuple[list[Attribute], list[NDArray[np.int64]], list[str]]:
    """The attributes and tables without the numbers whose patients are all in one bin, by counts over both classes with
    so much noise; and what to say of those, and of numbers of which noise hides where patients are."""
    pairs = list(zip(attributes, tables, strict=True))
    left_out, hidden = judge_bins([(a, table.sum(axis=1)) for a, table in pairs if a.numeric], noise)
    kept = [(attribute, table) for attribute, table in pairs if attribute.name not in left_out]
    if not kept:
        raise HouseError(
            "no attribute is left to make rules of: "
            + "; ".join(f"{name}: {why}" for name, why in left_out.items())
        )
    said = [say_left_out(left_out)] if left_out else []
    return [attribute for attribute, _ in kept], [table for _, table in kept], said + hidden


def _draw_shapes(
    attributes: Sequence[Attribute],
    tables: Sequence[NDArray[np.int64]],
    cutoffs: int | None,
    patients: NoisyPatients,
    variance: float,
) -> tuple[list[Shape], list[Line]]:
    """The shapes of the best attributes, in order of names, with at most so many cutoffs, and their linear terms."""
    shapes = []
    for attribute, table in zip(attributes, tables, strict=True):
        kept, merged, cells = _merge_bins(attribute, table, cutoffs)
        shapes.append(shape(kept, merged, patients, variance * cells))
    best = sorted(range(len(shapes)), key=lambda i: (-shapes[i].deviation, i))[:MOST_ATTRIBUTES]
    best.sort(key=lambda i: attributes[i].name)
    lines = []
    for index, i in enumerate(best):
        line = measure(index, attributes[i].edges, tables[i].sum(axis=1)) if attributes[i].numeric else None
        if line is not None:
            lines.append(msgspec.structs.replace(line, scale=line.scale * LINE_DEVIATION / RULE_DEVIATION))
    return [shapes[i] for i in best], lines


def _merge_bins(
    attribute: Attribute, table: NDArray[np.int64], cutoffs: int | None
) -> tuple[Attribute, NDArray[np.int64], NDArray[np.float64]]:
    """The attribute with at most so many cutoffs, its table, and how many cells each row of that is the sum of."""
    if not attribute.numeric or cutoffs is None or len(attribute.edges) <= cutoffs:
        return attribute, table, np.ones(len(table))
    chosen = choose_cutoffs(table.sum(axis=1), attribute.edges, cutoffs) or attribute.edges[:1]
    starts = [0, 1, *(attribute.edges.index(edge) + 2 for edge in chosen)]
    merged = np.add.reduceat(table, starts, axis=0)
    cells = np.diff([*starts, len(table)]).astype(np.float64)
    return Attribute(attribute.name, tuple(chosen), date=attribute.date), merged, cells


def _choose_terms(shapes: Sequence[Shape], lines: Sequence[Line], seed: int) -> RuleTerms:
    """Rules from the seed, the linear terms, and every shape that is not flat."""
    steps = [
        Steps(index, tuple((HEIGHT * each.heights).tolist()))
        for index, each in enumerate(shapes)
        if each.deviation > 0
    ]
    return RuleTerms(
        tuple(each.attribute for each in shapes),
        tuple(draw_rules(shapes, RULES, seed)),
        tuple(lines),
        tuple(steps),
    )


def _find_moments(terms: RuleTerms, shapes: Sequence[Shape]) -> NDArray[np.float64]:
    """The second moments of all columns, intercept first, as if attributes were independent."""
    return multiply(find_products(terms, _find_middles(shapes)), [each.shares for each in shapes])


def _find_middles(shapes: Sequence[Shape]) -> list[NDArray[np.float64]]:
    """What each code of each attribute stands for in its linear term."""
    middles = []
    for each in shapes:
        edges = each.attribute.edges or (0.0,)
        inner = [edges[0], *((low + high) / 2 for low, high in pairwise(edges)), edges[-1]]
        middles.append(np.array([np.nan, *inner]))
    return middles


def _choose_norm(moments: NDArray[np.float64]) -> float:
    """The length to which rows are scaled down, in quarters: it enters the price, which is kept in short fractions."""
    return max(4, math.ceil(4 * NORM * float(np.sqrt(np.trace(moments))))) / 4


def _begin(terms: RuleTerms, patients: NoisyPatients) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the coefficients start, and how far from there each may be."""
    counts = [1, len(terms.rules), len(terms.lines), len(terms.steps)]
    start = np.repeat([patients.log_odds, 0.0, 0.0, START / HEIGHT], counts)
    doubts = [1.0, DOUBT_OF_RULES, DOUBT_OF_LINES / LINE_DEVIATION, DOUBT_OF_SHAPES / HEIGHT]
    return start, np.repeat(doubts, counts)
