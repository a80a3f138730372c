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
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, StudyError
from concilium.models.threshold import decide
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.privacy.fixed_point import widen_sensitivity
from concilium.privacy.shares import is_too_small
from concilium.protocol.attributes import Attribute
from concilium.protocol.conversation import Conversation, Learned, Partners
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.edges import choose_cutoffs
from concilium.protocol.questions import Gaussian
from concilium.protocol.schema import set_against_rest, state_values
from concilium.protocol.sums import read_reals
from concilium.records.columns import Value, label
from concilium.rulefit.body import Outcome, RuleBody, TakenTerm
from concilium.rulefit.cutoffs import RULE_DEVIATION, Noise, judge_bins, measure
from concilium.rulefit.fitting import Coefficients
from concilium.rulefit.gradient import AskGradient, descend
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
NOT_OF_PRIVATE = ("trees", "leaves", "shrinkage", "penalty", "solver", "support", "scale", "noise")

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


@dataclass(frozen=True)
class PrivateFit:
    """How a RuleFit learns under `private`; `check` says what its study lacks."""

    rulefit: RuleFit

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
        _ = self.classes
        stated = {*rulefit.values, *rulefit.bins} - {rulefit.target}
        twice = sorted(rulefit.values.keys() & rulefit.bins.keys())
        if twice:
            raise StudyError(f"{twice[0]!r} has both 'values' and 'bins': a RuleFit needs one of them")
        unsaid = sorted(set(rulefit.attributes or ()) - stated)
        if unsaid:
            raise StudyError(f"a private RuleFit needs 'values' or 'bins' for {', '.join(map(repr, unsaid))}")
        if not self.attributes:
            raise StudyError(
                "a private RuleFit needs its attributes: give 'values' of codes, 'bins' of numbers"
            )

    @property
    def pure_price(self) -> Fraction | None:
        """None: its noise is Gaussian."""
        return None

    @property
    def rho_of_tables(self) -> Fraction:
        return self.rulefit.rho * SHARE_OF_TABLES

    @property
    def rho_of_gradient(self) -> Fraction:
        """Of each of the gradients."""
        return self.rulefit.rho * (1 - SHARE_OF_TABLES) / GRADIENTS

    @property
    def classes(self) -> list[Value]:
        """What is not predicted and what is: two stated classes, or the positive one against all others."""
        target, positive = self.rulefit.target, self.rulefit.positive
        stated = state_values(self.rulefit.values.get(target, ()))
        if positive is None:
            if len(stated) != 2:
                raise StudyError(
                    f"a private RuleFit needs 'positive', or the two classes: values = {{{target!r}: [...]}}"
                )
            return list(stated)
        own = state_values([positive])[0]
        labels = [label(value) for value in stated]
        if labels and label(own) not in labels:
            raise StudyError(f"'positive' is {label(own)}, but the stated classes are {', '.join(labels)}")
        others = [value for value in stated if label(value) != label(own)]
        return [*set_against_rest(own, others)]

    @property
    def attributes(self) -> list[Attribute]:
        """Those of the study, numbers first as they are counted, each kind by name."""
        values, bins = self.rulefit.values, self.rulefit.bins
        chosen = {*values, *bins} if self.rulefit.attributes is None else set(self.rulefit.attributes)
        names = sorted(chosen - {self.rulefit.target})
        numbers = [Attribute(name, tuple(bins[name])) for name in names if name in bins]
        return numbers + [Attribute(name, (), state_values(values[name])) for name in names if name in values]

    def plan(self) -> Plan:
        """Every question, with what it costs."""
        tables = f"tables by class of {len(self.attributes)} attributes"
        gradient = PlannedQuestion("rulefit.gradient", self.rho_of_gradient, "noisy gradients")
        first = PlannedQuestion("counts", self.rho_of_tables, tables)
        return Plan("rho", (first, *[gradient] * GRADIENTS))

    def converse(self, partners: Partners) -> Conversation[Learned[RuleBody]]:
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
        w = yield from self._descend(partners, outcome, terms, moments, patients)
        deviation = np.sqrt(np.maximum(np.diag(moments) - moments[0] ** 2, 0.0))
        # Of noisy tables that are paid for: post-processing.
        decided, said = decide(rulefit.decision, positive, patients.positive / patients.total)
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
            mean=None,
        )
        warnings = [
            rulefit.say_price(),
            f"by the noisy tables there are about {patients.total:.0f} patients, {patients.positive:.0f} of them "
            f"{rulefit.target} = {label(positive)}; supports and rates are withheld, importances are those of "
            "independent attributes",
            *said_of_bins,
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
    ) -> Conversation[NDArray[np.float64]]:
        """The coefficients, intercept first."""
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
        return (yield from descend(ask, start, rate * (1 - rate) * moments, doubt, noise, GRADIENTS))


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
    said = [f"left out: {name} ({why})" for name, why in sorted(left_out.items())]
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
    return Attribute(attribute.name, tuple(chosen)), merged, cells


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
    middles = []
    for each in shapes:
        edges = each.attribute.edges or (0.0,)
        inner = [edges[0], *((low + high) / 2 for low, high in pairwise(edges)), edges[-1]]
        middles.append(np.array([np.nan, *inner]))
    return multiply(find_products(terms, middles), [each.shares for each in shapes])


def _choose_norm(moments: NDArray[np.float64]) -> float:
    """The length to which rows are scaled down, in quarters: it enters the price, which is kept in short fractions."""
    return max(4, math.ceil(4 * NORM * float(np.sqrt(np.trace(moments))))) / 4


def _begin(terms: RuleTerms, patients: NoisyPatients) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the coefficients start, and how far from there each may be."""
    counts = [1, len(terms.rules), len(terms.lines), len(terms.steps)]
    start = np.repeat([patients.log_odds, 0.0, 0.0, START / HEIGHT], counts)
    doubts = [1.0, DOUBT_OF_RULES, DOUBT_OF_LINES / LINE_DEVIATION, DOUBT_OF_SHAPES / HEIGHT]
    return start, np.repeat(doubts, counts)
