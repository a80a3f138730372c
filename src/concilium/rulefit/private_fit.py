"""`RuleFit(release="private")`: shapes from noisy tables, rules from a public seed, coefficients from noisy gradients.

Claim: every patient of every site is protected from the house and up to t colluding sites, by the epsilon and delta of
the study, which all its questions together cost (METHODS.md, section 2, last paragraph). 30 % of the budget pays for
tables of bins by class of all stated attributes: a patient is in one cell of each, so that the squared L2 sensitivity
is the number of attributes. 70 % pays for forty noisy gradients of the logistic loss (`gradient.py`). What lies
between, shapes, bounds, scales, best attributes, rules, norm and every step of the solver, follows from noisy numbers
and the study, and is free. Attributes, values, classes and bins are stated; what is not named counts as `other`, any
class but the positive one as not positive. Supports and rates are withheld.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.federation.histograms import AskHistograms, choose_cutoffs
from concilium.federation.run import Run
from concilium.federation.schema import in_order
from concilium.federation.stated import canonical
from concilium.privacy.accounting import Plan, PlannedQuestion, epsilon_from_rho, rho_for_epsilon, say_epsilon
from concilium.privacy.fixed_point import widen_sensitivity
from concilium.privacy.shares import PRICE_STEP, RESERVE
from concilium.records.table import Value, label
from concilium.rulefit import newton
from concilium.rulefit.body import RuleBody, Told
from concilium.rulefit.cutoffs import RULE_DEVIATION, measure
from concilium.rulefit.drawing import draw_rules
from concilium.rulefit.gradient import AskGradient
from concilium.rulefit.moments import find_products, multiply
from concilium.rulefit.noisy_descent import descend
from concilium.rulefit.outcome import Outcome
from concilium.rulefit.rules import Attribute
from concilium.rulefit.shapes import Patients, Shape, count_patients, shape
from concilium.rulefit.terms import Line, Steps, Terms, write_terms

SHARE_OF_TABLES = Fraction(3, 10)
GRADIENTS = 40
RULES = 40
# A model of more attributes than this would be one of their noise.
MOST_ATTRIBUTES = 100
PLACES = 16

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
class Budget:
    """rho spread over the questions of a private fit."""

    rho: Fraction

    @property
    def tables(self) -> Fraction:
        return self.rho * SHARE_OF_TABLES

    @property
    def gradient(self) -> Fraction:
        return self.rho * (1 - SHARE_OF_TABLES) / GRADIENTS

    @property
    def too_small(self) -> bool:
        """Whether the reserve of a question would not cover what adding noise in shares costs more."""
        return self.gradient * RESERVE < 100 * PRICE_STEP


@dataclass(frozen=True)
class PrivateFit:
    """What a study states, checked when it is made; `fit` asks the sites of a run."""

    target: str
    positive: Value | None
    query: str
    values: Mapping[str, Sequence[Value]]
    bins: Mapping[str, Sequence[float]]
    attributes: Sequence[str] | None
    cutoffs: int | None
    epsilon: str | int | Fraction | None
    delta: str | int | Fraction
    seed: int

    def __post_init__(self) -> None:
        if self.epsilon is None:
            raise StudyError("a private RuleFit needs an 'epsilon', such as 1.0")
        if self.budget.too_small:
            raise StudyError(f"an 'epsilon' of {self.epsilon} is too small for any question to be answered")
        if self.target in self.bins:
            raise StudyError(
                "a private RuleFit predicts yes or no: say which value is 'positive', without bins"
            )
        _ = self.classes
        stated = {*self.values, *self.bins} - {self.target}
        twice = sorted(self.values.keys() & self.bins.keys())
        if twice:
            raise StudyError(f"{twice[0]!r} has both 'values' and 'bins': a RuleFit needs one of them")
        unsaid = sorted(set(self.attributes or ()) - stated)
        if unsaid:
            raise StudyError(f"a private RuleFit needs 'values' or 'bins' for {', '.join(map(repr, unsaid))}")
        if not self.asked:
            raise StudyError(
                "a private RuleFit needs its attributes: give 'values' of codes, 'bins' of numbers"
            )

    @property
    def budget(self) -> Budget:
        assert self.epsilon is not None
        return Budget(rho_for_epsilon(self.epsilon, self.delta))

    @property
    def classes(self) -> list[Value]:
        """What is not predicted and what is: two stated classes, or the positive one against all others."""
        stated = state(self.values.get(self.target, ()))
        if self.positive is None:
            if len(stated) != 2:
                raise StudyError(
                    f"a private RuleFit needs 'positive', or the two classes: values = {{{self.target!r}: [...]}}"
                )
            return stated
        own = state([self.positive])[0]
        known = [label(value) for value in stated]
        if known and label(own) not in known:
            raise StudyError(f"'positive' is {label(own)}, but the stated classes are {', '.join(known)}")
        others = [value for value in stated if label(value) != label(own)]
        return [others[0], own] if len(others) == 1 else [f"not {label(own)}", label(own)]

    @property
    def asked(self) -> list[Attribute]:
        """The stated attributes, numbers first as they are counted, each kind by name."""
        chosen = {*self.values, *self.bins} if self.attributes is None else set(self.attributes)
        names = sorted(chosen - {self.target})
        numbers = [Attribute(n, tuple(map(float, self.bins[n]))) for n in names if n in self.bins]
        return numbers + [Attribute(n, (), tuple(state(self.values[n]))) for n in names if n in self.values]

    def plan(self) -> Plan:
        """Every question, with what it costs."""
        tables = f"tables by class of {len(self.asked)} attributes"
        gradient = PlannedQuestion("rulefit.gradient", self.budget.gradient, "noisy gradients")
        return Plan(
            "rho", (PlannedQuestion("histograms", self.budget.tables, tables), *[gradient] * GRADIENTS)
        )

    def fit(self, run: Run) -> tuple[RuleBody, list[str]]:
        """The model, and what the card has to say."""
        negative, positive = self.classes
        outcome = Outcome(positive=positive)
        tables, variance = self._ask_tables(run, positive)
        patients = count_patients(tables)
        shapes, lines = draw_shapes(self.asked, tables, self.cutoffs, patients, variance)
        terms = choose_terms(shapes, lines, self.seed)
        moments = find_moments(terms, shapes)
        terms = msgspec.structs.replace(terms, norm=choose_norm(moments))
        w = self._descend(run, outcome, terms, moments, patients)
        deviation = np.sqrt(np.maximum(np.diag(moments) - moments[0] ** 2, 0.0))
        told = [Told(c, None, None, None, float(deviation[c + 1])) for c in np.flatnonzero(w[1:]).tolist()]
        body = RuleBody(
            target=self.target,
            query=self.query,
            outcome=outcome,
            classes=[negative, positive],
            terms=terms,
            intercept=float(w[0]),
            coefficients=w[1:].tolist(),
            told=told,
            patients=None,
            mean=None,
        )
        epsilon = say_epsilon(epsilon_from_rho(self.budget.rho, self.delta))
        return body, [
            f"differential privacy per patient: epsilon = {epsilon} at delta = {self.delta}",
            f"by the noisy tables there are about {patients.total:.0f} patients, {patients.positive:.0f} of them "
            f"{self.target} = {label(positive)}; supports and rates are withheld, importances are those of independent "
            "attributes",
        ]

    def _ask_tables(self, run: Run, positive: Value) -> tuple[list[NDArray[np.int64]], float]:
        """Each attribute's noisy table, [code, negative or positive], and the variance of its cells."""
        asked = self.asked
        variance = run.masked.variance(self.budget.tables, len(asked))
        question = AskHistograms(
            query=self.query,
            target=self.target,
            edges={a.name: list(a.edges) for a in asked if a.numeric},
            values={a.name: list(a.values) for a in asked if not a.numeric},
            classes=[positive],
            variance=str(variance),
        )
        counted = question.split(run.add_up("histograms", question, (question.numbers,)))
        return [counted[a.name][:, ::-1] for a in asked], float(variance)

    def _descend(
        self, run: Run, outcome: Outcome, terms: Terms, moments: NDArray[np.float64], patients: Patients
    ) -> NDArray[np.float64]:
        """The coefficients, intercept first."""
        assert terms.norm is not None
        widened = widen_sensitivity(Fraction(terms.norm) ** 2, len(terms) + 1, PLACES)
        variance = run.masked.variance(self.budget.gradient, widened)
        sent = write_terms(terms)

        def ask(w: NDArray[np.float64]) -> NDArray[np.float64]:
            question = AskGradient(
                query=self.query,
                target=self.target,
                outcome=outcome,
                terms=sent,
                at=newton.write(np.clip(w, -LARGEST, LARGEST)),
                places=PLACES,
                variance=str(variance),
            )
            total = run.add_up("rulefit.gradient", question, (question.numbers,))
            return np.ldexp(total.astype(np.float64), -PLACES) / patients.total

        rate = patients.positive / patients.total
        noise = float(variance) ** 0.5 * 2.0**-PLACES / patients.total
        start, doubt = begin(terms, patients)
        return descend(ask, start, rate * (1 - rate) * moments, doubt, noise, GRADIENTS)


def state(values: Sequence[Value]) -> list[Value]:
    """Stated values, each once and in order, as the sites will read them."""
    named = in_order(canonical(value) if isinstance(value, str) else value for value in values)
    return [value for value in named if value is not None]


def draw_shapes(
    attributes: Sequence[Attribute],
    tables: Sequence[NDArray[np.int64]],
    cutoffs: int | None,
    patients: Patients,
    variance: float,
) -> tuple[list[Shape], list[Line]]:
    """The shapes of the best attributes, in order of names, with at most so many cutoffs, and their linear terms."""
    shapes = []
    for attribute, table in zip(attributes, tables, strict=True):
        kept, merged, cells = attribute, table, np.ones(len(table))
        if attribute.numeric and cutoffs is not None and len(attribute.edges) > cutoffs:
            chosen = choose_cutoffs(table.sum(axis=1), attribute.edges, cutoffs) or attribute.edges[:1]
            kept = Attribute(attribute.name, tuple(chosen))
            starts = [0, 1, *(attribute.edges.index(edge) + 2 for edge in chosen)]
            merged = np.add.reduceat(table, starts, axis=0)
            cells = np.diff([*starts, len(table)]).astype(np.float64)
        shapes.append(shape(kept, merged, patients, variance * cells))
    best = sorted(range(len(shapes)), key=lambda i: (-shapes[i].deviation, i))[:MOST_ATTRIBUTES]
    best.sort(key=lambda i: attributes[i].name)
    lines = []
    for index, i in enumerate(best):
        line = measure(index, attributes[i].edges, tables[i].sum(axis=1)) if attributes[i].numeric else None
        if line is not None:
            lines.append(msgspec.structs.replace(line, scale=line.scale * LINE_DEVIATION / RULE_DEVIATION))
    return [shapes[i] for i in best], lines


def choose_terms(shapes: Sequence[Shape], lines: Sequence[Line], seed: int) -> Terms:
    """Rules from the seed, the linear terms, and every shape that is not flat."""
    steps = [
        Steps(index, tuple((HEIGHT * each.heights).tolist()))
        for index, each in enumerate(shapes)
        if each.deviation > 0
    ]
    return Terms(
        tuple(each.attribute for each in shapes),
        tuple(draw_rules(shapes, RULES, seed)),
        tuple(lines),
        tuple(steps),
    )


def find_moments(terms: Terms, shapes: Sequence[Shape]) -> NDArray[np.float64]:
    """The second moments of all columns, intercept first, as if attributes were independent."""
    middles = []
    for each in shapes:
        edges = each.attribute.edges or (0.0,)
        inner = [edges[0], *((low + high) / 2 for low, high in pairwise(edges)), edges[-1]]
        middles.append(np.array([np.nan, *inner]))
    return multiply(find_products(terms, middles), [each.shares for each in shapes])


def choose_norm(moments: NDArray[np.float64]) -> float:
    """The length to which rows are scaled down, in quarters: it enters the price, which is kept in short fractions."""
    return max(4, math.ceil(4 * NORM * float(np.sqrt(np.trace(moments))))) / 4


def begin(terms: Terms, patients: Patients) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the coefficients start, and how far from there each may be."""
    counts = [1, len(terms.rules), len(terms.lines), len(terms.steps)]
    start = np.repeat([patients.log_odds, 0.0, 0.0, START / HEIGHT], counts)
    doubts = [1.0, DOUBT_OF_RULES, DOUBT_OF_LINES / LINE_DEVIATION, DOUBT_OF_SHAPES / HEIGHT]
    return start, np.repeat(doubts, counts)
