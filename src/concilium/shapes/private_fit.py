"""How shapes are learned under `private`: noisy tables first, then noisy gradients where they are in doubt (10.6).

*Protects:* every patient of every hospital, from the house and up to t colluding hospitals. *Cost:* the epsilon and
delta of the study for all questions together. *Assumes:* attributes, values, classes and bins are public, or found at
a planned price. All that lies between the questions follows from noisy numbers and the study, and is free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.models.outcome import Outcome, cut_range, say_number
from concilium.models.private_choice import find_better
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
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.grid import are_days
from concilium.protocol.questions import Conversation, Gaussian, Learned, Partners
from concilium.protocol.schema import state_values
from concilium.protocol.sums import read_reals
from concilium.records.columns import Value, label
from concilium.shapes.body import ShapeBody
from concilium.shapes.cells import Cells, Vector, find_starts
from concilium.shapes.evidence import Evidence, Matrix, weigh_priors
from concilium.shapes.plain_fit import check_directions, find_directions, list_rising, make_body
from concilium.shapes.private_pairs import (
    CROSSED,
    GROUPS,
    MOST_PAIRS,
    NoisyPair,
    choose_pairs,
    list_pairs,
    split_cells,
    weigh_pairs,
)
from concilium.shapes.private_sums import PLACES, AskDirections, Direction
from concilium.shapes.smoothing import Solved, hold_directions

if TYPE_CHECKING:
    from concilium.shapes.shape_model import ShapeModel

# Of the budget. Chosen on splits of eight data sets that no figure is told of (docs/shapes.md). What products or pairs
# would cost goes to the later gradients where noise would hide them.
TABLES, PRODUCTS, FIRST_GRADIENTS = Fraction(30, 100), Fraction(8, 100), Fraction(17, 100)
PAIRS = Fraction(15, 100)
FEW, MANY = 2, 4  # gradients: of the first share, and of the rest
# Of the price of the tables where a number is predicted: where it lies, patients in each cell; the rest: its sums.
SPREAD, COUNTS = Fraction(15, 100), Fraction(30, 100)
FURTHEST = 4.0  # standard deviations of a number from its mean; what is further away counts as that
LEAST_DISPERSION = 0.1
MOST_SHAPES = 40
COVERED = 0.999  # of the variance of log odds, by the shapes that are kept
WEIGHT = 0.9  # of p (1 - p): risks differ
CAP, LEAD = 0.9, 0.3
MOST_DIRECTIONS, FLATTEN, LEAST_DOUBT = 5, 0.2, 1e-4
DRIFT = 0.8  # how far an older gradient may be from a new one, as shapes have moved
# Beyond this noise in a correlation of two shapes its products are not worth their price; nor are pairs where noise is
# more than this part of the weight of a cell.
MOST_NOISE, MOST_NOISE_OF_PAIRS = 0.3, 0.15
SHARE = 0.35  # of a pair's cells in a gradient
LARGEST_STEP = 0.3


class _Prices(NamedTuple):
    """Of tables, products, each first gradient, pairs, and each later gradient."""

    tables: Fraction
    products: Fraction
    first: Fraction
    pairs: Fraction
    later: Fraction


@dataclass(frozen=True)
class PrivateShapes:
    """How a ShapeModel learns under `private`."""

    model: ShapeModel

    def check(self) -> None:
        model = self.model
        if model.epsilon is None:
            raise StudyError("a private ShapeModel needs an 'epsilon', such as 1.0")
        if model.rules:
            raise StudyError("a private ShapeModel has no 'rules': it has curves and few pairs")
        if is_too_small(min(price for price in self.prices if price)):
            raise StudyError(f"an 'epsilon' of {model.epsilon} is too small for any question to be answered")
        if model.measured is None and states_classes(model):
            _ = find_stated_classes(model, model.positive)
        twice = sorted(model.values.keys() & model.bins.keys())
        if twice:
            raise StudyError(f"{twice[0]!r} has both 'values' and 'bins': a ShapeModel needs one of them")

    @property
    def prices(self) -> _Prices:
        rho, pairs = self.model.rho_of_fit, PAIRS if self.model.max_pairs else Fraction(0)
        rest = 1 - TABLES - PRODUCTS - FIRST_GRADIENTS - pairs
        return _Prices(
            rho * TABLES, rho * PRODUCTS, rho * FIRST_GRADIENTS / FEW, rho * pairs, rho * rest / MANY
        )

    def plan(self) -> Plan:
        model, prices = self.model, self.prices
        known = f"{len(_list_stated(model))} " if states_attributes(model) else ""
        better = find_better(model, _list_stated(model))
        beside = f" ({better})" if better else ""
        unless = "; where noise would hide it, gradients get its price"
        gradient = "noisy gradients along what is in doubt of the curves"
        tables = [
            PlannedQuestion("counts", prices.tables, f"tables by class of all {known}attributes{beside}")
        ]
        if model.measured is not None:
            spread, counts, sums = _split_price(prices.tables)
            tables = [
                PlannedQuestion("counts", spread, f"where {model.target} lies within its range"),
                PlannedQuestion("counts", counts, f"tables of all {known}attributes"),
                PlannedQuestion("shapes.directions", sums, f"sums of {model.target} in their cells"),
            ]
        questions = [
            *tables,
            PlannedQuestion("shapes.directions", prices.products, f"how curves overlap{unless}"),
            *[PlannedQuestion("shapes.directions", prices.first, gradient)] * FEW,
            *[PlannedQuestion("shapes.directions", prices.pairs, f"what pairs add{unless}")]
            * bool(prices.pairs),
            *[PlannedQuestion("shapes.directions", prices.later, gradient)] * MANY,
        ]
        return Plan("rho", (*plan_start(model), *questions))

    def converse(self, partners: Partners) -> Conversation[Learned[ShapeBody]]:
        stated, said_first = yield from start(self.model, partners)
        classes: list[Value] = []
        outcome = stated.measured
        if outcome is None:
            classes = find_stated_classes(stated, stated.positive)
            positive = state_values([stated.positive])[0] if stated.positive is not None else classes[1]
            outcome = Outcome(positive=positive)
        attributes = _list_stated(stated)
        if not attributes:
            raise StudyError("a private ShapeModel has at least one attribute")
        check_directions(stated, attributes)
        fit = _PrivateFit(stated, partners, outcome)
        body, patients = yield from fit.learn(attributes, classes, self.prices)
        about, said = f"by the noisy tables there are about {patients:.0f} patients, ", ""
        if outcome.binary:
            decided, said = decide(self.model.threshold, classes[1], body.mean)
            body = msgspec.structs.replace(body, decided=decided)
            by = "" if self.model.horizon is None else f" by {self.model.horizon}"
            positive = label(outcome.positive or False)
            about += f"{patients * body.mean:.0f} of them {self.model.target} = {positive}{by}"
        else:
            (low, high), (least, most) = fit.outcome.ends, outcome.ends
            narrower = [f"below {say_number(low)}"] * (low > least) + [f"above {say_number(high)}"] * (
                high < most
            )
            about += f"whose mean {self.model.target} is {say_number(body.mean)}"
            about += f"; what is {' or '.join(narrower)} counts as that" if narrower else ""
        warnings = [
            self.model.say_price(),
            about,
            *said_first,
            *filter(None, [find_better(self.model, attributes)]),
        ]
        return Learned(body, warnings=warnings, decision=said)


def _split_price(tables: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """The price of tables where a number is predicted: of where it lies, of patients, of sums."""
    return tables * SPREAD, tables * COUNTS, tables * (1 - SPREAD - COUNTS)


def _list_stated(model: ShapeModel) -> list[Attribute]:
    """The attributes of a private study, by name."""
    chosen = {*model.values, *model.bins} if model.attributes is None else set(model.attributes)
    found = []
    for name in sorted(chosen - {model.target}):
        if name in model.bins:
            edges = tuple(model.bins[name])
            found.append(Attribute(name, edges, date=are_days(edges)))
        elif name in model.values:
            found.append(Attribute(name, (), state_values(model.values[name])))
    return found


@dataclass
class _Shape:
    """One attribute as noisy answers tell it: shares of patients, weights, prior and heights of its codes."""

    place: int
    shares: Vector
    weights: Vector
    prior: Matrix
    heights: Vector
    own: slice = field(default_factory=lambda: slice(0, 0))

    @property
    def deviation(self) -> float:
        return math.sqrt(max(float(self.shares @ (self.heights - self.shares @ self.heights) ** 2), 0.0))


@dataclass(frozen=True)
class _Begun:
    """What tables say: evidence for each shape with the variance of its noise, patients and the weight of one of them,
    the mean outcome, and the log odds of everyone, or the number."""

    evidence: list[Evidence]
    noise: float
    patients: float
    weight: float
    mean: float
    start: float


@dataclass
class _PrivateFit:
    """`outcome`: of a number, between the ends that it is held by, with its standard deviation as `unit` of all
    coefficients."""

    model: ShapeModel
    partners: Partners
    outcome: Outcome
    unit: float = 1.0

    def learn(
        self, attributes: list[Attribute], classes: list[Value], prices: _Prices
    ) -> Conversation[tuple[ShapeBody, float]]:
        asked = self._ask_classes if self.outcome.binary else self._ask_number
        begun = yield from asked(attributes, prices.tables)
        evidence, patients, weight = begun.evidence, begun.patients, begun.weight
        found = weigh_priors(evidence)
        shapes = [
            _Shape(place, one.shares, one.weights, prior, heights)
            for place, (one, (prior, heights)) in enumerate(zip(evidence, found, strict=True))
        ]
        kept = _keep(shapes, min(MOST_SHAPES, self.model.max_terms))
        end = 0
        for shape in kept:
            shape.own = slice(end, end + len(shape.shares))
            end += len(shape.shares)
        among = [attributes[shape.place] for shape in kept]
        overlap = yield from self._ask_products(kept, among, patients, prices.products)
        left = Fraction(0) if overlap is not None else prices.products
        own = [evidence[shape.place] for shape in kept]
        state = _State(kept, patients * weight, np.eye(len(kept)) if overlap is None else overlap)
        state.add_tables(np.concatenate([one.target for one in own]), begun.noise)
        directions = _find_directions(kept, own)
        state.move_to(np.zeros(end))
        ask = _Gradients(self, among, directions, state, begun.start)
        for _ in range(FEW):
            yield from ask.step(prices.first, own)
        pairs = yield from self._ask_pairs(ask, patients, weight, prices.pairs)
        if pairs is None:
            left += prices.pairs
        ask.pairs = pairs or []
        for _ in range(MANY):
            yield from ask.step(prices.later + left / MANY, own)
        return self._tell(classes, ask, begun.mean), patients

    def _ask_classes(self, attributes: list[Attribute], price: Fraction) -> Conversation[_Begun]:
        positive = self.outcome.positive if self.outcome.positive is not None else False
        classes = Attribute(self.model.target, (), (positive,), missing=False)
        tables, noise = yield from self._count(attributes, price, classes)
        tables = [table[:, ::-1] for table in tables]
        patients, rate = count_patients(tables)
        weight, noise_of_sums = rate * (1 - rate) * WEIGHT, noise * ((1 - rate) ** 2 + rate**2)
        evidence = [
            Evidence.of_sums(
                table.sum(axis=1),
                math.sqrt(2 * noise),
                (1 - rate) * table[:, 1] - rate * table[:, 0],
                noise_of_sums,
                patients * weight,
                attribute,
            )
            for table, attribute in zip(tables, attributes, strict=True)
        ]
        return _Begun(evidence, noise_of_sums, patients, weight, rate, math.log(rate / (1 - rate)))

    def _ask_number(self, attributes: list[Attribute], price: Fraction) -> Conversation[_Begun]:
        """Where the number lies; then patients, and sums of the number, in the cells of all attributes."""
        spread, counts, sums = _split_price(price)
        yield from self._narrow(spread)
        tables, noise = yield from self._count(attributes, counts)
        patients = count_patients([np.hstack([0 * table, table]) for table in tables])[0]
        cells = tuple(Cells((place,)) for place in range(len(attributes)))
        numbers = find_starts(cells, attributes)[-1]
        variance = self.partners.variance(sums, widen_sensitivity(Fraction(len(cells)), numbers, PLACES))
        total = yield AskDirections(
            query=self.model.query,
            target=self.model.target,
            attributes=tuple(attributes),
            outcome=self.outcome,
            directions=(),
            cap=CAP,
            pairs=cells,
            share=1.0,
            noise=Gaussian(str(variance)),
        )
        found = split_cells(read_reals(total, PLACES)[1:] / self.unit, cells, attributes)
        noise_of_sums = self.find_noise(variance)
        weights = np.array([1 / len(own) for own in found])
        start = float(weights @ [own.sum() for own in found] / weights.sum()) / patients
        evidence = [
            Evidence.of_sums(
                table[:, 0],
                math.sqrt(noise),
                own - start * np.maximum(table[:, 0], 0.0),
                noise_of_sums,
                patients,
                attribute,
            )
            for table, own, attribute in zip(tables, found, attributes, strict=True)
        ]
        mean = float(self.outcome.unscale(np.array(self.unit * start)))
        return _Begun(evidence, noise_of_sums, patients, 1.0, mean, start)

    def _narrow(self, price: Fraction) -> Conversation[None]:
        """Find where the number lies, by a noisy histogram: from then on what is far from its mean counts as less far,
        and all coefficients are in units of its deviation."""
        edges = cut_range(self.outcome)
        tables, noise = yield from self._count([Attribute(self.model.target, edges)], price)
        (low, high), counted = self.outcome.ends, tables[0][1:, 0]
        width = (high - low) / (len(edges) - 1)
        places = np.array([low, *(np.array(edges[:-1]) + width / 2), high])
        everyone = max(float(counted.sum()), math.sqrt(noise * len(counted)), 1.0)
        mean = min(max(float(counted @ places) / everyone, low), high)
        squares = (places - mean) ** 2
        # Rather too wide than too narrow, by one standard deviation of the noise.
        variance = (float(counted @ squares) + math.sqrt(noise * float(squares @ squares))) / everyone
        deviation = math.sqrt(min(max(variance - width**2 / 12, width**2 / 12), (high - low) ** 2 / 4))
        reach = min(max(high - mean, mean - low), FURTHEST * deviation)
        self.outcome, self.unit = Outcome(low=mean - reach, high=mean + reach), deviation / reach

    def _count(
        self, attributes: list[Attribute], price: Fraction, classes: Attribute | None = None
    ) -> Conversation[tuple[list[Matrix], float]]:
        """Noisy tables of the attributes, [code, class], and the variance of the noise."""
        variance = self.partners.variance(price, len(attributes))
        counts = yield AskCounts(
            query=self.model.query,
            target=self.model.target,
            attributes=tuple(attributes),
            classes=classes,
            totals=False,
            noise=Gaussian(str(variance)),
        )
        tables = [table.astype(np.float64) for table in split_counts(attributes, counts).values()]
        return tables, float(variance) * float(self.partners.noise_factor)

    def find_noise(self, variance: Fraction) -> float:
        """The variance of the noise in sums of residuals, in units of coefficients."""
        return float(variance) * float(self.partners.noise_factor) * 4.0**-PLACES / self.unit**2

    def _ask_products(
        self, kept: list[_Shape], among: list[Attribute], patients: float, price: Fraction
    ) -> Conversation[Matrix | None]:
        """The correlations of shapes over patients; None where noise would hide them, and nothing is asked."""
        size = len(kept)
        cap = round(1.1 * math.sqrt(size), 6)
        widened = widen_sensitivity(Fraction(cap) ** 4, size * (size + 1) // 2, PLACES)
        variance = self.partners.variance(price, widened)
        noise = float(variance) * float(self.partners.noise_factor) * 4.0**-PLACES / 2 / patients**2
        if size < 2 or noise > MOST_NOISE**2:
            return None
        total = yield AskDirections(
            query=self.model.query,
            target=self.model.target,
            attributes=tuple(among),
            outcome=self.outcome,
            directions=tuple(Direction(at, tuple(_unit(one).tolist())) for at, one in enumerate(kept)),
            cap=cap,
            products=True,
            noise=Gaussian(str(variance)),
        )
        upper = read_reals(total, PLACES) / patients
        overlap = np.zeros((size, size))
        overlap[np.triu_indices(size)] = upper
        apart = overlap[np.triu_indices(size, 1)] / math.sqrt(2)
        # Drawn to their mean by what is known of the noise, then made a matrix of correlations again: heights lie
        # along risk, so that most correlations are above zero.
        mean = float(apart.mean())
        signal = max(float(((apart - mean) ** 2).mean()) - noise, 0.0)
        overlap = np.zeros((size, size))
        overlap[np.triu_indices(size, 1)] = mean + (apart - mean) * signal / (signal + noise)
        overlap += overlap.T + np.eye(size)
        values, vectors = np.linalg.eigh(overlap)
        overlap = (vectors * np.maximum(values, 0.15)) @ vectors.T
        scale = np.sqrt(np.diag(overlap))
        return np.asarray(overlap / np.outer(scale, scale))

    def _ask_pairs(
        self, ask: _Gradients, patients: float, weight: float, price: Fraction
    ) -> Conversation[list[NoisyPair] | None]:
        """The pairs that say what curves do not; None where noise would hide them, and nothing is asked."""
        state, most = ask.state, min(self.model.max_pairs, self.model.max_terms - len(ask.among))
        free = {
            place for place, one in enumerate(ask.among) if one.name not in self.model.monotone
        }  # a direction that a clinician states would not be kept by a pair
        order = sorted(free, key=lambda place: (-state.find_deviation(place), place))
        shares = {place: state.shapes[place].shares for place in order[:CROSSED]}
        cells = list_pairs(ask.among, shares)
        if not cells or most < 1:
            return None
        variance = self.partners.variance(price, widen_sensitivity(Fraction(len(cells)), 0, PLACES))
        noise = self.find_noise(variance)
        if math.sqrt(noise) > MOST_NOISE_OF_PAIRS * patients * weight / GROUPS**2:
            return None
        numbers = sum(one.count(ask.among) for one in cells)
        variance = self.partners.variance(price, widen_sensitivity(Fraction(len(cells)), numbers, PLACES))
        total = yield ask.make(variance, pairs=cells, share=1.0)
        residuals = split_cells(read_reals(total, PLACES)[1:] / self.unit, cells, ask.among)
        pairs = [
            NoisyPair.of(one, shares, patients * weight, own, noise)
            for one, own in zip(cells, residuals, strict=True)
        ]
        return choose_pairs(pairs, min(most, MOST_PAIRS))

    def _tell(self, classes: list[Value], ask: _Gradients, mean: float) -> ShapeBody:
        among, state = ask.among, ask.state
        terms = tuple(Cells((place,)) for place in range(len(among)))
        width = 1 + len(state.beta) + sum(len(pair.values) for pair in ask.pairs)
        covariance, end = np.zeros((width, width)), 1 + len(state.beta)
        covariance[0, 0], covariance[1:end, 1:end] = ask.error, state.find_covariance()
        for pair in ask.pairs:
            own = slice(end, end + len(pair.values))
            covariance[own, own], end = pair.covariance, own.stop
        rising = list_rising(terms, among, find_directions(self.model, among))
        beta = hold_directions(
            Solved(
                np.array([ask.odds, *state.beta]), covariance[: 1 + len(state.beta)][:, : 1 + len(state.beta)]
            ),
            rising,
        )
        beta = np.concatenate([beta, *(pair.values for pair in ask.pairs)])
        counts = np.array(
            [
                1.0,
                *np.concatenate([shape.shares for shape in state.shapes]),
                *(s for pair in ask.pairs for s in pair.shares),
            ]
        )
        terms += tuple(pair.cells for pair in ask.pairs)
        unit = middle = 0.0
        if not self.outcome.binary:
            unit, middle = self.unit * self.outcome.unit, sum(self.outcome.ends) / 2
        body = make_body(
            self.model,
            tuple(among),
            terms,
            beta,
            covariance,
            counts,
            classes,
            unit=unit or 1.0,
            middle=middle,
        )
        return msgspec.structs.replace(body, mean=mean)


@dataclass
class _Gradients:
    """Noisy gradients along directions, one after the other, and where the fit stands after them."""

    fit: _PrivateFit
    among: list[Attribute]
    directions: list[Direction]
    state: _State
    odds: float
    error: float = 0.0
    pairs: list[NoisyPair] = field(default_factory=list)

    def make(self, variance: Fraction, **more: Any) -> AskDirections:
        """A question about the residuals of the model as it stands."""
        return AskDirections(
            query=self.fit.model.query,
            target=self.fit.model.target,
            attributes=tuple(self.among),
            outcome=self.fit.outcome,
            **{"directions": (), "cap": CAP, **more},
            intercept=self.fit.unit * self.odds,
            shapes=tuple(
                tuple((self.fit.unit * self.state.beta[one.own]).tolist()) for one in self.state.shapes
            ),
            noise=Gaussian(str(variance)),
        )

    def step(self, price: Fraction, own: Sequence[Evidence]) -> Conversation[None]:
        """Ask for residuals along the directions, their sum, and their sums in the cells of pairs."""
        partners, state, pairs = self.fit.partners, self.state, tuple(pair.cells for pair in self.pairs)
        numbers = len(self.directions) + find_starts(pairs, self.among)[-1]
        squared = Fraction(CAP) ** 2 + Fraction(LEAD) ** 2 + len(pairs) * Fraction(SHARE) ** 2
        variance = partners.variance(price, widen_sensitivity(squared, numbers, PLACES))
        total = yield self.make(
            variance,
            directions=tuple(self.directions),
            lead=LEAD,
            pairs=pairs,
            heights=tuple(tuple((self.fit.unit * pair.values).tolist()) for pair in self.pairs),
            share=SHARE if pairs else 0.0,
        )
        reals = read_reals(total, PLACES) / self.fit.unit
        noise = self.fit.find_noise(variance)
        end = 1 + len(self.directions)
        spread = noise / LEAD**2
        step = min(max(float(reals[0]) / LEAD / state.scale, -LARGEST_STEP), LARGEST_STEP)
        self.odds += step * state.scale**2 / (state.scale**2 + 10 * spread)
        self.error = spread / state.scale**2 + 1 / state.scale
        for pair, residuals in zip(self.pairs, split_cells(reals[end:], pairs, self.among), strict=True):
            pair.add(residuals / SHARE, noise / SHARE**2)
        state.add_gradient(self.directions, reals[1:end], noise)
        if not self.fit.outcome.binary:
            state.explain()
        state.weigh_again(own)
        weigh_pairs(self.pairs)


def count_patients(tables: Sequence[Matrix]) -> tuple[float, float]:
    """About how many patients there are, and the share with the outcome: each is once in every table."""
    weights = np.array([1 / table.size for table in tables])
    sums = np.array([table.sum(axis=0) for table in tables])
    negative, positive = np.maximum(weights @ sums / weights.sum(), 5.0).tolist()
    return negative + positive, positive / (negative + positive)


def _keep(shapes: list[_Shape], most: int) -> list[_Shape]:
    """The shapes that make up nearly all of the variance of log odds, in the order of their attributes."""
    order = sorted(shapes, key=lambda shape: (-shape.deviation, shape.place))
    reached = np.cumsum([shape.deviation**2 for shape in order])
    count = int(np.searchsorted(reached, COVERED * reached[-1])) + 1
    return sorted(order[: min(max(count, 4), most)], key=lambda shape: shape.place)


def _unit(shape: _Shape) -> Vector:
    """The shape with mean zero and variance one over patients."""
    unit: Vector = (shape.heights - shape.shares @ shape.heights) / max(shape.deviation, 1e-3)
    return unit


def _find_directions(kept: list[_Shape], evidence: list[Evidence]) -> list[Direction]:
    """What is still in doubt of each shape, as directions over its codes, longer where more is in doubt."""
    found: list[tuple[float, int, Vector]] = []
    for place, (shape, one) in enumerate(zip(kept, evidence, strict=True)):
        centred = shape.heights - shape.shares @ shape.heights
        doubt = one.find_posterior(shape.prior) + np.outer(centred, centred)
        root = np.sqrt(shape.shares)
        values, vectors = np.linalg.eigh(root[:, None] * doubt * root)
        for at in np.argsort(-values)[:MOST_DIRECTIONS].tolist():
            if values[at] > 1e-5:
                heights = np.clip(vectors[:, at] / np.maximum(root, 0.03), -3, 3)
                found.append((float(values[at]), place, heights))
    if not found:
        found = [(1.0, place, np.ones(len(shape.shares))) for place, shape in enumerate(kept[:1])]
    largest = max(value for value, _, _ in found)
    found = [one for one in found if one[0] > LEAST_DOUBT * largest]
    total = math.sqrt(sum(value ** (2 * FLATTEN) for value, _, _ in found))
    return [
        Direction(place, tuple((heights * value**FLATTEN / total).tolist()))
        for value, place, heights in found
    ]


@dataclass(frozen=True)
class _Answer:
    """A noisy answer about H b along a basis: its variance, how far each direction reaches, the shape that each is of,
    and where the shapes were."""

    basis: Matrix
    target: Vector
    variance: float
    reach: Vector
    owner: NDArray[np.intp]
    then: Vector


class _State:
    """Where the fit stands: all answers so far, combined by their known variances."""

    def __init__(self, shapes: list[_Shape], scale: float, overlap: Matrix) -> None:
        self.shapes, self.scale = shapes, scale
        self.weights = np.concatenate([shape.weights for shape in shapes])
        self.shares = np.concatenate([shape.shares for shape in shapes])
        self.owner = np.repeat(np.arange(len(shapes)), [len(shape.shares) for shape in shapes])
        size = len(self.weights)
        self.prior, self.hessian = np.zeros((size, size)), np.zeros((size, size))
        units = np.concatenate([_unit(shape) for shape in shapes]) * self.weights
        self.hessian = overlap[np.ix_(self.owner, self.owner)] * np.outer(units, units) / scale
        for shape in shapes:
            self.prior[shape.own, shape.own] = shape.prior + 1e-8 * np.eye(len(shape.shares))
            self.hessian[shape.own, shape.own] = np.diag(shape.weights)
        self.beta = np.zeros(size)
        self.dispersion = 1.0  # of residuals, against the scale
        self._answers: list[_Answer] = []

    def add_tables(self, target: Vector, variance: float) -> None:
        basis = np.eye(len(self.beta))
        then = np.zeros(len(self.beta))
        self._answers.append(_Answer(basis, target, variance, self.weights, self.owner, then))

    def add_gradient(self, directions: list[Direction], gradient: Vector, variance: float) -> None:
        basis = np.zeros((len(self.beta), len(directions)))
        reach = np.zeros(len(directions))
        for place, one in enumerate(directions):
            shape = self.shapes[one.attribute]
            basis[shape.own, place] = one.heights
            reach[place] = self.scale * math.sqrt(float(shape.shares @ np.array(one.heights) ** 2))
        target = basis.T @ (self.hessian @ self.beta) + gradient
        owner = np.array([one.attribute for one in directions])
        self._answers.append(_Answer(basis, target, variance, reach, owner, self.beta))
        self.move_to(self.beta)

    def find_deviation(self, place: int) -> float:
        """How much the log odds of patients differ by a shape, as the fit stands."""
        own = self.shapes[place].own
        return math.sqrt(float(self.shares[own] @ self.beta[own] ** 2))

    def explain(self) -> None:
        """Of a number: what shapes explain does not vary by chance."""
        explained = float(self.beta @ self.hessian @ self.beta) / self.scale
        self.dispersion = min(max(1 - explained, LEAST_DISPERSION), 1.0)

    def move_to(self, at: Vector) -> None:
        """Solve for the shapes; how far answers are out of date follows from how far the shapes have moved."""
        for _ in range(3 if len(self._answers) > 1 else 1):
            spread, target = self._combine(at)
            middle = self.hessian @ self.prior @ self.hessian.T + self.dispersion * self.hessian + spread
            beta = self.prior @ self.hessian.T @ np.linalg.solve((middle + middle.T) / 2, target)
            at = np.concatenate([beta[one.own] - one.shares @ beta[one.own] for one in self.shapes])
        self.beta = at

    def weigh_again(self, evidence: Sequence[Evidence]) -> None:
        """Choose the priors anew, by all answers: of each shape what the others leave to it."""
        spread, target = self._combine(self.beta)
        left = target - self.hessian @ self.beta + self.weights * self.beta
        anew = [
            replace(
                one,
                target=left[shape.own],
                noise=spread[shape.own, shape.own] - (1 - self.dispersion) * np.diag(one.weights),
            )
            for one, shape in zip(evidence, self.shapes, strict=True)
        ]
        for shape, (prior, _) in zip(self.shapes, weigh_priors(anew), strict=True):
            self.prior[shape.own, shape.own] = prior + 1e-8 * np.eye(len(shape.shares))
        self.move_to(self.beta)

    def find_covariance(self) -> Matrix:
        """Of the posterior: what patients and noise leave in doubt."""
        spread, _ = self._combine(self.beta)
        middle = self.hessian @ self.prior @ self.hessian.T + self.dispersion * self.hessian + spread
        gain = self.prior @ self.hessian.T
        found = self.prior - gain @ np.linalg.solve((middle + middle.T) / 2, gain.T)
        return np.asarray((found + found.T) / 2)

    def _combine(self, at: Vector) -> tuple[Matrix, Vector]:
        """The covariance of the noise in H b, and its best estimate, of all answers together."""
        precision = np.zeros_like(self.prior)
        pull = np.zeros(len(self.beta))
        for one in self._answers:
            moved = np.bincount(self.owner, self.shares * (one.then - at) ** 2, len(self.shapes))
            noise = one.variance + (DRIFT * one.reach) ** 2 * (0.5 * moved[one.owner] + 0.5 * moved.mean())
            precision += (one.basis / noise) @ one.basis.T
            pull += one.basis @ (one.target / noise)
        spread = np.linalg.inv(precision)
        return (spread + spread.T) / 2, spread @ pull
