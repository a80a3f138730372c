"""How shapes are learned under `exact` and `masked`: the penalised fit of the pooled patients (docs/methods.md, 10.2).

Shared cutoffs, then Newton steps over the sums of all hospitals: first a shape for every attribute, then those that say
something, with the pairs that the shapes leave most unexplained. Each step is one question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, StudyError
from concilium.models.grid import ask_cutoffs, merge_cutoffs
from concilium.models.outcome import Outcome, check_range, order_classes, warn_of_few
from concilium.models.threshold import (
    LEARNED_FROM,
    LEFT_OUT_FIRST,
    PERCENT_LEFT_OUT,
    Tally,
    decide,
    warn_of_all_flagged,
    warn_of_specificity,
)
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.attributes import Attribute, choose_cutoffs
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.held_out import Part
from concilium.protocol.questions import Conversation, Learned
from concilium.protocol.schema import (
    AskSchema,
    SchemaSeen,
    find_cautions,
    find_numbers,
    say_left_out,
    share_schema,
)
from concilium.records.columns import Value
from concilium.shapes.body import ShapeBody, ShapeTerm, Sheet, factor_covariance
from concilium.shapes.cells import MOST_CELLS, Cells, Vector, find_starts, group_codes
from concilium.shapes.pairs import GROUPS, Table, cut_pair, find_factors, list_fine
from concilium.shapes.rules import FINE, Corner, choose_rules, find_corners
from concilium.shapes.shape_sums import STEPS_OF_NUMBER, AskShapes, ShapeSums, read_shapes
from concilium.shapes.smoothing import (
    Matrix,
    Penalised,
    Solved,
    add_penalties,
    hold_directions,
    is_positive,
    penalise,
    solve,
    solve_number,
)

if TYPE_CHECKING:
    from concilium.shapes.shape_model import ShapeModel

MOST_STEPS = 20
ROUNDS = (6, 3, 1)  # of the smoothing, in the first steps; then the last
STEP = 1e-3  # of patients' log odds (root mean square): a smaller one ends the fit, as does a fall of 10 times it
ROUGH_STEP = 1e-2  # where a fit only says which terms to keep
MARGINS = 6  # rounds in which tables get their margins
# A number is cut less often where there are fewer patients than this for each cell, but at so many places.
PATIENTS_OF_CELL, LEAST_CUTOFFS = 3, 5
FEWEST = 20  # patients of a cell that is cut off where quantiles fall together, or at an end
SHORTER = 0.3  # of a step that went too far
LONG, STALE = 0.3, 0.5  # a step longer than both, the second times the last step, asks for a new Gram
# A shape or a pair whose log odds hardly vary over patients is no term.
LEAST_DEVIATION, LEAST_OF_PAIR = 0.02, 0.03
LEAST_MOVED = 0.05  # by a rule that stays, of log odds
# Pairs are looked for among so many attributes, those whose shapes vary most.
MOST_CROSSED = 40
# A pair joins where its log evidence is above this, and above this part of the logarithm of how many there are; or,
# above the last of these, with so many others.
LEAST_EVIDENCE, SURE_OF_PAIR, LEAST_OF_MANY, MANY = 3.0, 0.7, 2.0, 10
MOST_IN_RULES, MOST_CORNERS, LEAST_SCORE = 24, 80, 4.8
LARGEST_STEP = 4.0
LEAST_SPREAD = 2.0**-18  # squared, of a number in its steps: less is rounding
LEAST_SQUARES = 1e-9  # of those of a number, that are left to explain where patients are alike
# The rounding of points may take this part of the variance of the log odds.
ROUNDED_AWAY = 0.01
NOT_PRIVATE = (
    "sums over the cells of shapes are exact: masks hide which hospital a sum comes from, and do not protect patients. "
    "Enough of them give back single outcomes"
)


@dataclass(frozen=True)
class Fitted:
    """Terms with their coefficients, covariance, patients in each cell (intercept first), and smoothing.

    Coefficients are log odds, or of a number parts of its residual deviation, which is `scale`.
    """

    terms: tuple[Cells, ...]
    solved: Solved
    counts: Vector
    weights: dict[Cells, tuple[float, ...]]
    scale: float = 1.0

    @property
    def at(self) -> tuple[float, ...]:
        return tuple((self.scale * self.solved.beta).tolist())


@dataclass(frozen=True)
class ShapeFit:
    """How a ShapeModel learns under `exact` and `masked`."""

    model: ShapeModel

    def plan(self) -> Plan:
        model = self.model
        questions = [
            PlannedQuestion("tree.schema", None, "which attributes, values and classes there are"),
            PlannedQuestion("counts", None, "histograms of numbers, for cutoffs"),
            PlannedQuestion(
                "shapes.sums",
                None,
                f"about {'twenty' if model.measured is None else 'eight'} times: residuals and weights in the cells of "
                "shapes",
            ),
        ]
        if model.rule.tallied:
            first = f"as often before, for a first fit without {PERCENT_LEFT_OUT} % of the patients"
            questions.append(PlannedQuestion("shapes.sums", None, first))
        return Plan("rho", tuple(questions))

    def converse(self) -> Conversation[Learned[ShapeBody]]:
        model = self.model
        seen: dict[str, SchemaSeen] = yield AskSchema(
            query=model.query,
            target=model.target,
            bins={name: list(edges) for name, edges in model.bins.items()},
            attributes=None if model.attributes is None else list(model.attributes),
            count_patients=model.way_out.by_site,
            measured=model.measured is not None,
        )
        outside: list[str] = []
        if model.measured is not None:
            outside = yield from check_range(model.target, model.measured, self._ask_histograms)
        attributes, classes, left_out, grouped = yield from self._settle(seen)
        check_directions(model, attributes)
        directions = find_directions(model, attributes)
        outcome = model.measured or Outcome(positive=classes[1])
        fit = _Fit(model, attributes, outcome, directions)
        fit, odds = yield from fit.thin_out()
        tally = None
        if model.rule.tallied:
            learning, held = (Part(percent=PERCENT_LEFT_OUT, held=held) for held in (False, True))
            first = yield from replace(fit, part=learning).learn(odds)
            tally = (
                yield from replace(fit, part=held).ask(first.terms, first.at, scores=(first.at,))
            ).tallies[0]
        fitted = yield from fit.learn(odds)
        body, own = yield from fit.tell(fitted, classes)
        warnings = [*outside, *([say_left_out(left_out)] if left_out else []), *find_cautions(seen, grouped)]
        said = ""
        if own is not None:
            chosen = tally if tally is not None and tally.tells else own
            decided, said = decide(
                model.threshold, classes[1], body.mean, chosen, None if chosen is own else own
            )
            body = msgspec.structs.replace(body, decided=decided)
            warnings += [*warn_of_specificity(decided), *warn_of_all_flagged(decided, own)]
        if body.binary:
            patients = body.patients or 0
            counts = [patients * (1 - body.mean), patients * body.mean]
            warnings += warn_of_few(model.target, classes, counts, model.horizon)
        if not body.terms:
            warnings.append(
                f"no attribute says anything of {model.target}: every patient gets the same answer"
            )
        if not model.way_out.by_site:
            warnings.append(NOT_PRIVATE)
        return Learned(body, {site: one.patients for site, one in seen.items()}, warnings, said)

    def _settle(
        self, seen: dict[str, SchemaSeen]
    ) -> Conversation[tuple[tuple[Attribute, ...], list[Value], dict[str, str], list[str]]]:
        """Attributes with their cutoffs, the two classes, what is left out and why, and numbers in two groups."""
        model = self.model
        bins = {name: list(edges) for name, edges in model.bins.items() if name != model.target}
        numbers, left_out = find_numbers(seen, bins, 2)
        grouped: list[str] = []

        def ask(attributes: tuple[Attribute, ...]) -> tuple[AskCounts, float]:
            return self._count(attributes), 0.0

        dates = {name for one in seen.values() for name in one.dates}
        chosen, without = yield from ask_cutoffs(
            numbers, ask, dates=dates, cutoffs=model.cutoffs, grouped=grouped, fewest=FEWEST
        )
        known = set.intersection(*(one.names for one in seen.values()))
        many = tuple(
            Attribute(name, tuple(edges))
            for name, edges in bins.items()
            if name in known and len(edges) > model.cutoffs
        )
        if many:
            histograms = yield from self._ask_histograms(many)
            for one in many:
                cut = choose_cutoffs(histograms[one.name], one.edges, model.cutoffs)
                bins[one.name] = cut or list(one.edges[:1])
        schema = share_schema(seen, merge_cutoffs(bins, chosen), model.target, {**left_out, **without})
        if not schema.attributes:
            why = say_left_out(dict(schema.left_out)) if schema.left_out else "hospitals share none"
            raise HouseError(f"no attribute is left to make shapes of: {why}")
        if sum(one.size for one in schema.attributes) > MOST_CELLS:
            raise StudyError(
                f"{len(schema.attributes)} attributes have more than {MOST_CELLS} cells together: name fewer "
                "'attributes', or lower 'cutoffs'"
            )
        found = schema.classes.values
        classes = order_classes(model.target, found, model.positive) if model.measured is None else []
        return schema.attributes, classes, dict(schema.left_out), grouped

    def _count(self, attributes: Sequence[Attribute]) -> AskCounts:
        model = self.model
        return AskCounts(query=model.query, target=model.target, attributes=tuple(attributes), totals=False)

    def _ask_histograms(self, attributes: Sequence[Attribute]) -> Conversation[dict[str, NDArray[np.int64]]]:
        counts = yield self._count(attributes)
        return {name: table[:, 0] for name, table in split_counts(attributes, counts).items()}


def find_directions(model: ShapeModel, attributes: Sequence[Attribute]) -> dict[int, int]:
    """For each attribute with a direction 1 where its curve rises, and -1 where it falls."""
    places = {one.name: place for place, one in enumerate(attributes) if one.numeric}
    return {
        places[name]: 1 if way == "rising" else -1 for name, way in model.monotone.items() if name in places
    }


def check_directions(model: ShapeModel, attributes: Sequence[Attribute]) -> None:
    """StudyError unless every direction is that of a number."""
    unknown = sorted(model.monotone.keys() - {one.name for one in attributes if one.numeric})
    if unknown:
        raise StudyError(f"'monotone' names {unknown[0]!r}, which is no number that all hospitals have")


def list_rising(
    terms: Sequence[Cells], attributes: Sequence[Attribute], directions: Mapping[int, int]
) -> list[tuple[int, int]]:
    """The cells of which the second may not be below the first, as the study's directions say."""
    rising = []
    for term, start in zip(terms, find_starts(terms, attributes), strict=False):
        way = directions.get(term.attributes[0]) if len(term.attributes) == 1 else None
        if way is None:
            continue
        one = attributes[term.attributes[0]]
        inner = range(start + one.first, start + one.size - 1)
        rising += [(at, at + 1) if way > 0 else (at + 1, at) for at in inner]
    return rising


def find_least(scores: Sequence[float]) -> float:
    """The least log evidence with which a pair joins. Where many pairs have some, less of it is enough for each: of m
    pairs without effect few more than m exp(-s) would have s, so the k best join together above log(m / k)."""
    most, best = len(scores), sorted(scores, reverse=True)
    alone = max(SURE_OF_PAIR * math.log(most), LEAST_EVIDENCE)
    together = [
        one for k, one in enumerate(best, 1) if k >= MANY and one > max(math.log(most / k), LEAST_OF_MANY)
    ]
    return min([alone, *together])


def choose_ends(cells: NDArray[np.int64], edges: Sequence[float], most: int) -> tuple[float, ...]:
    """`most` of the edges at most, closer to each other at both ends, where curves are steep: the nearest to even
    steps of the arcsine of the root of patients' shares."""
    shares = np.cumsum(cells[:-1]) / max(cells.sum(), 1)
    wanted = np.sin(np.pi / 2 * np.arange(1, most + 1) / (most + 1)) ** 2
    kept = np.abs(np.subtract.outer(wanted, shares)).argmin(axis=1)
    return tuple(edges[place] for place in np.unique(kept).tolist())


@dataclass(frozen=True)
class _Fit:
    """Shapes of these attributes, over all patients or over a part of them. `squares`: of a number, the sum of squares
    around its mean."""

    model: ShapeModel
    attributes: tuple[Attribute, ...]
    outcome: Outcome
    directions: dict[int, int]
    part: Part | None = None
    squares: float = 0.0

    def ask(
        self,
        terms: tuple[Cells, ...],
        at: Iterable[float],
        *,
        asked: tuple[Cells, ...] = (),
        gram: bool = False,
        scores: tuple[tuple[float, ...], ...] = (),
    ) -> Conversation[ShapeSums]:
        question = AskShapes(
            query=self.model.query,
            target=self.model.target,
            attributes=self.attributes,
            outcome=self.outcome,
            terms=terms,
            at=tuple(map(float, at)),
            asked=asked,
            gram=gram,
            scores=scores,
            part=self.part,
        )
        held = self.part is not None and self.part.held
        sums = read_shapes(question, (yield question), LEFT_OUT_FIRST if held else LEARNED_FROM)
        if not sums.patients:
            raise HouseError("there are no patients to learn from")
        return sums

    @property
    def shapes(self) -> tuple[Cells, ...]:
        return tuple(Cells((place,)) for place in range(len(self.attributes)))

    def thin_out(self) -> Conversation[tuple[Self, float]]:
        """The fit with no more cells than patients can tell apart, and the log odds, or the number, of everyone."""
        sums = yield from self.ask(self.shapes, (0.0,) * find_starts(self.shapes, self.attributes)[-1])
        cells = sums.patients // PATIENTS_OF_CELL - sum(one.size - len(one.edges) for one in self.attributes)
        most = max(len(one.edges) for one in self.attributes)
        while most > LEAST_CUTOFFS and sum(min(len(one.edges), most) for one in self.attributes) > cells:
            most -= 1
        thinned = []
        for one, start in zip(self.attributes, find_starts(self.shapes, self.attributes), strict=False):
            if len(one.edges) > most:
                histogram = np.rint(sums.counts[start : start + one.size]).astype(np.int64)
                one = msgspec.structs.replace(
                    one, stated_edges=choose_ends(histogram[one.first :], one.edges, most)
                )
            thinned.append(one)
        fit = replace(self, attributes=tuple(thinned))
        if self.outcome.binary:
            return fit, _log_odds(sums.events, sums.patients)
        mean = sums.events / sums.patients
        squares = 2 * sums.loss - sums.patients * mean**2
        if squares <= LEAST_SPREAD * sums.patients:
            raise HouseError(
                f"all patients of the query have the same {self.model.target}, or nearly so for its range: there is "
                "nothing to predict"
            )
        return replace(fit, squares=squares), mean

    def learn(self, odds: float) -> Conversation[Fitted]:
        """A shape for every attribute; then the terms that the model keeps, with pairs."""
        terms = self.shapes
        width = find_starts(terms, self.attributes)[-1]
        start = np.array([odds, *[0.0] * (width - 1)])
        first = yield from self._descend(terms, start, until=ROUGH_STEP)
        shapes = self._keep(first, self.model.max_terms)
        joined: tuple[Cells, ...] = ()
        if self.model.rules and len(shapes) > 1:
            joined = yield from self._find_rules(first, shapes)
            if joined and self.model.max_pairs:
                first = yield from self._go_on(first, self._order(shapes, joined), ROUGH_STEP)
        if self.model.max_pairs and len(shapes) > 1:
            joined += yield from self._find_pairs(first, shapes)
        fitted = yield from self._go_on(first, self._order(shapes, joined), STEP)
        weak = self._find_weak(fitted)
        if not weak:
            return fitted
        return (yield from self._go_on(fitted, tuple(one for one in fitted.terms if one not in weak), STEP))

    def _find_weak(self, fitted: Fitted) -> set[Cells]:
        """Rules that hardly move the log odds of patients for whom they hold, pairs over which these hardly vary."""
        weak = {
            term
            for term, spread in self._measure(fitted).items()
            if len(term.attributes) > 1 and not term.rule and spread < LEAST_OF_PAIR
        }
        for term, start in zip(fitted.terms, find_starts(fitted.terms, self.attributes), strict=False):
            outside = float(fitted.counts[start] / fitted.counts[0])
            moved = float(fitted.solved.beta[start + 1] - fitted.solved.beta[start]) * outside
            if term.rule and abs(moved) < LEAST_MOVED:
                weak.add(term)
        return weak

    def _measure(self, fitted: Fitted) -> dict[Cells, float]:
        """The standard deviation of patients' log odds by each term."""
        spread = {}
        for term, start in zip(fitted.terms, find_starts(fitted.terms, self.attributes), strict=False):
            own = slice(start, start + term.count(self.attributes))
            shares, values = fitted.counts[own] / fitted.counts[0], fitted.solved.beta[own]
            spread[term] = float(np.sqrt(shares @ (values - shares @ values) ** 2))
        return spread

    def _order(self, shapes: Sequence[Cells], joined: tuple[Cells, ...]) -> tuple[Cells, ...]:
        """As many of the shapes as there is room for, by attribute, and what joined them."""
        kept = shapes[: max(self.model.max_terms - len(joined), 1)]
        return (*sorted(kept, key=lambda term: term.attributes), *joined)

    def _go_on(self, first: Fitted, kept: tuple[Cells, ...], until: float) -> Conversation[Fitted]:
        """The fit of these terms, which begins where another ended."""
        start, ended = np.zeros(find_starts(kept, self.attributes)[-1]), np.array(first.at)
        start[0] = ended[0]
        before = dict(zip(first.terms, find_starts(first.terms, self.attributes), strict=False))
        for term, at in zip(kept, find_starts(kept, self.attributes), strict=False):
            size = term.count(self.attributes)
            if term in before:
                start[at : at + size] = ended[before[term] : before[term] + size]
        return (yield from self._descend(kept, start, weights=first.weights, until=until))

    def _descend(
        self,
        terms: tuple[Cells, ...],
        beta: Vector,
        crossed: ShapeSums | None = None,
        *,
        weights: Mapping[Cells, tuple[float, ...]] | None = None,
        until: float = STEP,
    ) -> Conversation[Fitted]:
        """Newton's steps from here, the smoothing with them, which begins as it was before.

        A Gram is most of what a fit sends. One serves many steps, with each cell scaled to its present weight: the
        gradient alone says where the fit ends. A new one is asked for where steps do not shrink.
        """
        penalised = penalise(terms, self.attributes)
        for one in penalised:
            one.weights = list((weights or {}).get(one.cells, one.weights))
        rising = list_rising(terms, self.attributes, self.directions)
        if not self.outcome.binary:
            sums = yield from self.ask(terms, beta, gram=True)
            squares = max(2 * sums.loss, LEAST_SQUARES * self.squares)
            solved, scale = solve_number(
                penalised, sums.gram, sums.gradient, beta, squares, sums.patients, rising
            )
            chosen = {one.cells: tuple(one.weights) for one in penalised}
            return Fitted(terms, solved, sums.counts, chosen, scale)
        starts = find_starts(terms, self.attributes)
        fresh, before, lowest = crossed is None, math.inf, math.inf
        base, led_astray, own_gram = beta, False, True
        for step in range(MOST_STEPS):
            sums = yield from self.ask(terms, beta, gram=fresh)
            objective = sums.loss + _weigh_penalties(penalised, beta)
            if objective > lowest + 1e-6 * abs(lowest):
                # Beyond where the quadratic holds: back, all of the way where its Gram was an old one.
                beta = base + SHORTER * (beta - base) if own_gram else base
                fresh = led_astray = own_gram = True
                continue
            crossed = sums if fresh else crossed
            assert crossed is not None
            gram = sums.gram if fresh else fit_margins(crossed.gram, sums.weights, starts)
            if not fresh and not is_positive(penalised, gram):
                fresh = True
                continue
            solved = solve(penalised, gram, gram @ beta + sums.gradient, ROUNDS[min(step, len(ROUNDS) - 1)])
            moved = np.clip(hold_directions(solved, rising) - beta, -LARGEST_STEP, LARGEST_STEP)
            fallen, lowest = lowest - objective, sums.loss + _weigh_penalties(penalised, beta)
            base, beta = beta, beta + moved
            reached = math.sqrt(max(float(moved @ gram @ moved), 0.0) / max(gram[0, 0], 1e-300))
            if reached < until or fallen < 10 * until:
                break
            # A Gram serves until long steps no longer shrink; where it led astray, each long step has its own.
            own_gram = fresh
            fresh = reached > LONG and (led_astray or reached > STALE * before)
            before = reached
        chosen = {one.cells: tuple(one.weights) for one in penalised}
        return Fitted(terms, Solved(beta, solved.covariance), sums.counts, chosen)

    def _keep(self, fitted: Fitted, most: int) -> list[Cells]:
        """The terms whose log odds vary over patients, the ones that vary most first."""
        spread = self._measure(fitted)
        order = sorted(spread, key=lambda term: (-spread[term], term.attributes))
        return [term for term in order if spread[term] >= LEAST_DEVIATION][:most]

    def _find_pairs(self, fitted: Fitted, shapes: Sequence[Cells]) -> Conversation[tuple[Cells, ...]]:
        """The pairs of attributes in whose cells outcomes differ most from the shapes, cut where they do (pairs.py)."""
        groups = self._group(fitted, GROUPS)
        # A direction that a clinician states would not be kept by a pair.
        free = [
            t.attributes[0] for t in shapes if t in fitted.terms and t.attributes[0] not in self.directions
        ]
        among = sorted(index for index in free[:MOST_CROSSED] if max(groups[index]) > 0)
        candidates = tuple(Cells((i, j), (groups[i], groups[j])) for i, j in combinations(among, 2))
        if not candidates:
            return ()
        factors = {index: find_factors(self.attributes[index], groups[index]) for index in among}
        scores = [
            Table(gradient, weight).score(*(factors[index] for index in pair.attributes))
            for pair, (gradient, weight, _) in (yield from self._ask_tables(fitted, candidates))
        ]
        order = np.argsort(-np.array(scores), kind="stable")[: self.model.max_pairs]
        least = find_least(scores)
        chosen = [candidates[place] for place in order.tolist() if scores[place] >= least]
        if not chosen:
            return ()
        tables = yield from self._ask_tables(
            fitted, tuple(list_fine(pair, self.attributes) for pair in chosen)
        )
        cut = [cut_pair(fine, self.attributes, *parts) for fine, parts in tables]
        return tuple(pair for pair in cut if pair is not None)

    def _ask_tables(
        self, fitted: Fitted, asked: tuple[Cells, ...]
    ) -> Conversation[list[tuple[Cells, list[Matrix]]]]:
        """Residuals, weights and patients in the cells of each of these pairs."""
        sums = yield from self.ask(fitted.terms, fitted.at, asked=asked)
        tables = []
        for pair, start in zip(asked, find_starts(asked, self.attributes), strict=False):
            sizes, inside = pair.sizes(self.attributes), slice(start, start + pair.count(self.attributes))
            numbers = (sums.gradient / fitted.scale, sums.weights, sums.counts)
            parts = [one[inside].reshape(sizes) for one in numbers]
            tables.append((pair, parts))
        return tables

    def _find_rules(self, fitted: Fitted, shapes: Sequence[Cells]) -> Conversation[tuple[Cells, ...]]:
        """Rules of two attributes in which outcomes differ from the shapes (rules.py)."""
        free = [term.attributes[0] for term in shapes if term.attributes[0] not in self.directions]
        groups = self._group(fitted, FINE)
        among = sorted(index for index in free[:MOST_IN_RULES] if max(groups[index]) > 0)
        tables = tuple(Cells((i, j), (groups[i], groups[j])) for i, j in combinations(among, 2))
        if not tables:
            return ()
        corners: list[Corner] = []
        for table, parts in (yield from self._ask_tables(fitted, tables)):
            corners += find_corners(table, self.attributes, *parts)
        corners = sorted(corners, key=lambda corner: -abs(corner.score))[:MOST_CORNERS]
        if not corners:
            return ()
        asked = (*self._order(shapes, ()), *(corner.cells for corner in corners))
        sums = yield from self.ask(fitted.terms, fitted.at, asked=asked, gram=True)
        starts = find_starts(asked, self.attributes)
        first = starts[len(asked) - len(corners)]
        holds = np.array([start + 1 for start in starts[len(asked) - len(corners) : -1]])
        penalised = penalise(asked[: len(asked) - len(corners)], self.attributes)
        for one in penalised:
            one.weights = list(fitted.weights[one.cells])
        covariance = np.linalg.inv(add_penalties(penalised, sums.gram[:first, :first]))
        beside = sums.gram[:first, holds]
        information = sums.gram[np.ix_(holds, holds)] - beside.T @ covariance @ beside
        pull = sums.gradient[holds] / fitted.scale
        chosen = choose_rules(information, pull, self.model.rules, LEAST_SCORE)
        return tuple(corners[place].cells for place in chosen)

    def _group(self, fitted: Fitted, most: int) -> dict[int, tuple[int, ...]]:
        """The codes of each attribute in so many groups at most."""
        groups = {}
        for term, start in zip(fitted.terms, find_starts(fitted.terms, self.attributes), strict=False):
            if len(term.attributes) == 1:
                index, own = term.attributes[0], fitted.counts[start : start + term.count(self.attributes)]
                groups[index] = group_codes(own, most, attribute=self.attributes[index])
        return groups

    def tell(self, fitted: Fitted, classes: list[Value]) -> Conversation[tuple[ShapeBody, Tally | None]]:
        """What the model file holds, and the training patients by class and risk; None of a number."""
        solved, number = fitted.solved, not self.outcome.binary
        unit = self.outcome.unit / STEPS_OF_NUMBER if number else 1.0
        middle = sum(self.outcome.ends) / 2 if number else 0.0
        body = make_body(
            self.model,
            self.attributes,
            fitted.terms,
            solved.beta,
            solved.covariance,
            fitted.counts,
            classes,
            unit=fitted.scale * unit,
            middle=middle,
        )
        # All attributes stay in the question: its terms are numbered among them.
        points = [body.sheet.start]
        for term in body.terms:
            points += [body.sheet.unit * value for value in term.points]
        told = []
        for at in (body.at.copy(), np.array(points)):
            at[0] -= middle
            told.append(tuple((at / unit).tolist()))
        sums = yield from self.ask(fitted.terms, told[0], scores=() if number else tuple(told))
        fits: list[float | None] = [find_auc(tally) for tally in sums.tallies]
        if number:
            of_points = yield from self.ask(fitted.terms, told[1])
            fits = [1 - 2 * one.loss / self.squares for one in (sums, of_points)]
        body = msgspec.structs.replace(
            body,
            sheet=msgspec.structs.replace(body.sheet, auc=fits[1], auc_of_model=fits[0]),
            mean=middle + unit * sums.events / sums.patients,
            patients=sums.patients,
        )
        return _drop_unused(body), None if number else sums.tallies[0]


def _weigh_penalties(terms: Sequence[Penalised], beta: Vector) -> float:
    return sum(float(beta[one.own] @ one.penalty @ beta[one.own]) for one in terms) / 2


def fit_margins(gram: Matrix, weights: Vector, starts: Sequence[int]) -> Matrix:
    """A Gram of before at the present weights of cells: each table of two terms keeps its odds ratios, and gets the
    present margins (iterative proportional fitting). Its diagonal is then exact."""
    blocks = [slice(start, end) for start, end in pairwise((0, *starts))]
    fitted = gram.copy()
    for _ in range(MARGINS):
        for turned in (fitted, fitted.T):
            # [cell, other term]: added up along the rows of the other one, which is where memory is.
            found = np.add.reduceat(turned, [block.start for block in blocks], axis=1)
            scale = np.divide(weights[:, None], found, out=np.ones_like(found), where=found > 0)
            for place, block in enumerate(blocks):
                turned[:, block] *= scale[:, place, None]
    fitted = (fitted + fitted.T) / 2
    for block in blocks:
        fitted[block, block] = 0.0
    np.fill_diagonal(fitted, weights)
    return fitted


def make_body(
    model: ShapeModel,
    attributes: tuple[Attribute, ...],
    fitted_terms: tuple[Cells, ...],
    beta: Vector,
    covariance: Matrix,
    counts: Vector,
    classes: list[Value],
    *,
    unit: float = 1.0,
    middle: float = 0.0,
) -> ShapeBody:
    """Shapes centred on the mean over patients, with their errors and points. Of a number a coefficient of 1 is one
    `unit`, and one of 0 its `middle`."""
    starts = find_starts(fitted_terms, attributes)
    width = starts[-1]
    total = max(float(counts[0]), 1.0)
    shares = np.maximum(counts, 0.0) / total
    centre = np.eye(width)
    for start, end in pairwise(starts):
        own = shares[start:end] / max(shares[start:end].sum(), 1e-12)
        centre[start:end, start:end] -= own
        centre[0, start:end] = own
    unseen = _find_unseen(fitted_terms, attributes, shares)
    centre[unseen] = 0.0
    centre = centre @ _purify(fitted_terms, attributes, shares)
    beta = unit * centre @ beta
    beta[0] += middle
    covariance = unit**2 * centre @ covariance @ centre.T
    shares[0] = 1.0
    # Of a value that nobody has only this is known: by how much the shape varies.
    for start, end in pairwise(starts):
        own = unseen[(unseen >= start) & (unseen < end)]
        covariance[own, own] = shares[start:end] @ beta[start:end] ** 2
    factors, rest = factor_covariance(covariance, shares)
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    point = _find_unit([(beta[a:b], shares[a:b]) for a, b in pairwise(starts)], unit)
    terms, begin = [], float(beta[0])
    for term, start, end in zip(fitted_terms, starts, starts[1:], strict=False):
        least = float(beta[start:end].min())
        begin += least
        points = np.rint((beta[start:end] - least) / point).astype(int).tolist()
        terms.append(
            ShapeTerm(
                term,
                beta[start:end].tolist(),
                errors[start:end].tolist(),
                shares[start:end].tolist(),
                points,
            )
        )
    return ShapeBody(
        target=model.target,
        query=model.query,
        classes=list(classes),
        attributes=attributes,
        terms=terms,
        intercept=float(beta[0]),
        mean=0.0,
        patients=None,
        factors=factors,
        rest=rest,
        sheet=Sheet(point, begin),
        range=None if model.measured is None else model.measured.ends,
    )


def _purify(terms: Sequence[Cells], attributes: Sequence[Attribute], shares: Vector) -> Matrix:
    """What moves to the curves what a pair says of each of its attributes alone: the pair is what they leave over."""
    starts = find_starts(terms, attributes)
    moved = np.eye(starts[-1])
    curves = {
        term.attributes[0]: start for term, start in zip(terms, starts, strict=False) if not term.groups
    }
    for term, start in zip(terms, starts, strict=False):
        if len(term.attributes) < 2 or term.rule or not set(term.attributes) <= set(curves):
            continue
        rows, columns = term.sizes(attributes)
        sides = np.hstack(
            [np.kron(np.eye(rows), np.ones((columns, 1))), np.kron(np.ones((rows, 1)), np.eye(columns))]
        )
        own = slice(start, start + rows * columns)
        weighted = sides.T * (shares[own] + 1e-9)
        alone = np.linalg.pinv(weighted @ sides, rcond=1e-6) @ weighted
        moved[own, own] -= sides @ alone
        for place, index in enumerate(term.attributes):
            for code, group in enumerate(term.groups[place]):
                moved[curves[index] + code, own] += alone[place * rows + group]
    return moved


def _find_unseen(terms: Sequence[Cells], attributes: Sequence[Attribute], shares: Vector) -> NDArray[np.intp]:
    """The cells of values that nobody has; intervals without patients have their neighbours."""
    unseen: list[int] = []
    for term, start in zip(terms, find_starts(terms, attributes), strict=False):
        one = attributes[term.attributes[0]]
        size = term.count(attributes)
        apart = one.first if one.numeric and len(term.attributes) == 1 else size
        unseen += [start + cell for cell in range(apart) if shares[start + cell] <= 0]
    return np.array(unseen, dtype=np.intp)


def _find_unit(terms: Sequence[tuple[Vector, Vector]], unit: float) -> float:
    """The log odds of one point: rounding may take a small part of the variance of patients' log odds."""
    variance = sum(float(shares @ values**2) for values, shares in terms)
    return max(math.sqrt(12 * ROUNDED_AWAY * variance / max(len(terms), 1)), 1e-6 * unit)


def find_auc(tally: Tally) -> float | None:
    """The area under the curve by counts of risks; patients of one bin count half."""
    negatives = np.maximum(np.array(tally.negatives, dtype=np.float64), 0.0)
    positives = np.maximum(np.array(tally.positives, dtype=np.float64), 0.0)
    if not negatives.sum() or not positives.sum():
        return None
    below = np.cumsum(negatives) - negatives / 2
    return float(positives @ below / (positives.sum() * negatives.sum()))


def _drop_unused(body: ShapeBody) -> ShapeBody:
    """The body with the attributes of its terms only."""
    used = sorted({index for term in body.terms for index in term.cells.attributes})
    place = {index: new for new, index in enumerate(used)}
    terms = [
        msgspec.structs.replace(
            term,
            cells=msgspec.structs.replace(
                term.cells, attributes=tuple(place[index] for index in term.cells.attributes)
            ),
        )
        for term in body.terms
    ]
    return msgspec.structs.replace(
        body, attributes=tuple(body.attributes[index] for index in used), terms=terms
    )


def _log_odds(events: float, patients: float) -> float:
    share = min(max(events, 0.5), patients - 0.5) / patients
    return math.log(share / (1 - share))
