"""How strong a penalty is: repeated cross-validation over sites, one-standard-error rule (docs/methods.md, 2.8).

Every site deals its patients into five folds, several times (protocol/held_out.py). For each fold the sites make rules
of all other patients, a path over penalties is fitted to those, and its models are judged on the fold. Rules made of
everybody would have seen the fold: on pure noise they would look good there. All paths are walked in step, so that a
step of all fits is one question. The models judged are those that are released: terms selected by the penalty, with
coefficients that are not shrunk (by one Newton step from the penalised fit, which asks nothing).

Of the models whose mean loss is within one standard error of the best one's, that of the largest penalty is taken; the
error is that of the difference between the two over folds. The model without terms is among them: where nothing beats
it, there is no signal that these patients could show.

The folds also say how sure a prediction is (`_find_doubt`). The covariance of the refit takes the terms as given. What
the folds' models lose from their own patients to those held out, their optimism, counts the selection as well: k terms
that were fixed beforehand lose k / n (Akaike 1974; with selection: Ye, J. Am. Stat. Assoc. 93, 1998), and the variance
of a prediction is multiplied by how much more these lose. Divided by the mean weight of a patient, optimism is the mean
variance of the predictor. It is added once more: a penalty of least held-out loss has about as much squared bias as
variance. What the chosen penalty loses against the best, 2 loss / weight, is added as well. Without terms a prediction
is the base rate, and its interval is that of the base rate: nothing is known of how patients differ around it.
experiments/rulefit_coverage.py measures how often such intervals hold a patient's true risk.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.held_out import FOLDS
from concilium.protocol.questions import Conversation
from concilium.rulefit.body import PenaltyChoice
from concilium.rulefit.fit_questions import FitQuestions
from concilium.rulefit.fitting import Coefficients, FoldFit, Sums
from concilium.rulefit.newton import Columns, Point, fit
from concilium.rulefit.refit import Optimum, descend, relax, shrink
from concilium.rulefit.terms import Line, Rule, RuleTerms, Steps, keep

# A path has so many penalties, down to this part of the largest at which a term comes in.
PATH_LENGTH = 12
PATH_END = 0.01
# So many penalties are walked before models are judged; where none of them is better than those before, no more are.
AT_A_TIME = 3
REFIT_STEPS = 5
FACTORS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
# Of every fold's columns those with the largest gradients are worked on: a path of few terms takes no others.
MOST_COLUMNS = 200
Term: TypeAlias = Rule | Line | Steps
Walk: TypeAlias = Generator[FoldFit, Sums, None]
T = TypeVar("T")


@dataclass(frozen=True)
class PenaltyTried:
    """A penalty with the mean loss of its models on held-out patients, the standard error of its difference to the
    least, and how many terms the models have in the mean. An infinite penalty leaves no term."""

    penalty: float
    deviance: float
    error: float
    terms: float


@dataclass(frozen=True)
class Validated:
    """The penalty that was chosen (None: no term beats the intercept), all that were tried, the terms that every fold's
    model has at it, by what coefficients are multiplied (None: by nothing, a weak prior shrinks them), and what makes
    the interval of a prediction wider than the coefficients do (`PenaltyChoice`)."""

    penalty: float | None
    tried: list[PenaltyTried]
    selected: list[list[Term]]
    factor: float | None = 1.0
    inflation: float = 1.0
    misfit: float = 0.0

    @property
    def summary(self) -> PenaltyChoice:
        """What the model keeps of it."""
        chosen = next(one for one in self.tried if one.penalty == (self.penalty or np.inf))
        return PenaltyChoice(
            len(self.selected),
            self.penalty,
            chosen.deviance,
            self.tried[0].deviance,
            self.factor,
            self.inflation,
            self.misfit,
        )


def choose_penalty(
    questions: FitQuestions,
    rules_of_folds: Sequence[Sequence[Rule]],
    penalties: Sequence[float] | None,
    most_terms: int,
) -> Conversation[Validated | None]:
    """The penalty for the lines of these questions and rules like those of the folds; None where no fold has both
    patients to fit a model to and others to judge it by."""
    lines = questions.terms.lines
    united = sorted({rule for rules in rules_of_folds for rule in rules})
    place = {rule: index for index, rule in enumerate(united)}
    own = [
        np.array(
            [*(place[rule] for rule in rules), *range(len(united), len(united) + len(lines))], dtype=np.intp
        )
        for rules in rules_of_folds
    ]
    terms = RuleTerms(questions.terms.attributes, tuple(united), lines)
    points = yield from _begin(questions.with_terms(terms), len(rules_of_folds))
    tops = {fold: _find_top(points[fold], own[fold]) for fold in points}
    worked_on = np.unique(np.concatenate([np.zeros(0, dtype=np.intp), *tops.values()]))
    named = [terms.in_order[column] for column in worked_on.tolist()]
    terms = keep(terms, worked_on.tolist())
    questions = questions.with_terms(terms)
    largest = max(
        (float(np.abs(points[f].gradient[1:][tops[f]]).max(initial=0.0)) for f in points), default=0.0
    )
    stop = len(terms)
    if penalties is None:
        penalties = np.geomspace(largest or 1.0, PATH_END * (largest or 1.0), PATH_LENGTH + 1)[1:].tolist()
        stop = 2 * most_terms
    listed = sorted(penalties, reverse=True)
    paths = [_Path.of(fold, points[fold], tops[fold], worked_on, terms) for fold in points]
    judged: _Judged | None = None
    for start in range(0, len(listed), AT_A_TIME):
        penalties = listed[start : start + AT_A_TIME]
        yield from _in_step(questions, {path.fold: path.walk(penalties, stop) for path in paths})
        judged = yield from _judge(questions, paths)
        if judged is None or (start and judged.best <= start) or any(path.ended for path in paths):
            break
    if judged is None:
        return None
    validated = judged.choose(paths, named, listed)
    chosen = [one.penalty for one in validated.tried].index(validated.penalty or np.inf)
    if chosen == 0:
        return validated
    refitted = yield from _in_step(
        questions, {path.fold: path.refit(chosen, binary=questions.outcome.binary) for path in paths}
    )
    told = yield from questions.ask_folds(
        [
            FoldFit(one.fold, tuple(Coefficients.of(one.shrink(factor)) for factor in FACTORS), None)
            for one in refitted.values()
        ]
    )
    losses = np.sum([sums.losses for sums in told], axis=0)
    held_out = float(losses[FACTORS.index(1.0)] / sum(sums.patients for sums in told))
    factor = _find_factor(losses)
    inflation, misfit = _find_doubt(list(refitted.values()), held_out)
    lost = float(judged.mean[chosen] - judged.mean[judged.best])
    misfit += 2 * lost / float(np.mean([one.optimum.weight for one in refitted.values()]))
    return replace(validated, factor=factor, inflation=inflation / factor**2, misfit=misfit)


def _find_doubt(refitted: Sequence[_FoldModel], held_out: float) -> tuple[float, float]:
    """By how much selection multiplies the variance of a prediction, and how large that variance is in the mean, from
    the loss of the folds' models on held-out patients."""
    own = float(np.mean([one.optimum.loss for one in refitted]))
    weight = float(np.mean([one.optimum.weight for one in refitted]))
    fixed = float(np.mean([one.optimum.scale * one.size / one.patients for one in refitted]))
    optimism = max(held_out - own, fixed)
    return optimism / fixed, optimism / weight


def _find_factor(losses: NDArray[np.float64]) -> float:
    """By what coefficients are best multiplied, from the held-out losses at each of `FACTORS`."""
    best = int(np.clip(np.argmin(losses), 1, len(FACTORS) - 2))
    before, at, after = losses[best - 1 : best + 2].tolist()
    bent = before - 2 * at + after  # of the parabola through the three
    step = FACTORS[1] - FACTORS[0]
    factor = FACTORS[best] + (0.5 * step * (before - after) / bent if bent > 0 else 0.0)
    return float(np.clip(factor, FACTORS[0], 1.0))


@dataclass(frozen=True)
class _FoldModel:
    """A fold's model without penalty: coefficients of all columns that are worked on, the mean of what its terms add,
    and how many coefficients it has and patients it was fitted to."""

    fold: int
    w: NDArray[np.float64]
    mean: float
    size: int
    patients: float
    optimum: Optimum

    def shrink(self, factor: float) -> NDArray[np.float64]:
        return shrink(self.w, self.mean, factor)


@dataclass
class _Path:
    """The path of one fold: its columns among those that are worked on, where it stands, and its models so far, each a
    vector over all that are worked on; the first is the one without terms."""

    fold: int
    columns: NDArray[np.intp]
    local: Columns
    point: Point
    models: list[NDArray[np.float64]]
    ended: bool = False

    @classmethod
    def of(
        cls, fold: int, begin: Point, own: NDArray[np.intp], worked_on: NDArray[np.intp], terms: RuleTerms
    ) -> Self:
        columns = np.searchsorted(worked_on, own)
        gradient = np.concatenate([begin.gradient[:1], begin.gradient[1:][own]])
        point = Point(begin.w[: len(own) + 1], begin.loss, gradient, begin.hessian, [], begin.patients)
        without = np.zeros(len(terms) + 1)
        without[0] = begin.w[0]
        return cls(fold, columns, Columns.of(keep(terms, columns.tolist())), point, [without])

    def walk(self, penalties: Sequence[float], stop: int) -> Walk:
        """Fit a model at each penalty, up to the first of more terms than `stop`."""
        for penalty in penalties:
            fitted = yield from fit(self._ask, self.local, penalty, tolerance=1e-4, start=self.point)
            self.point = fitted.point
            if np.count_nonzero(self.point.w[1:]) > stop:
                self.ended = True
                break
            self.models.append(self._spread(relax(self.point)))

    def refit(self, place: int, *, binary: bool) -> Generator[FoldFit, Sums, _FoldModel]:
        """The model at a place, fitted without penalty to the end."""
        w = np.concatenate([self.models[place][:1], self.models[place][1 + self.columns]])
        columns = np.flatnonzero(w[1:]).tolist()
        best = yield from descend(self._ask, w, columns, binary=binary, most_steps=REFIT_STEPS)
        mean = float(best.means @ best.w[1:][columns])
        return _FoldModel(self.fold, self._spread(best.w), mean, 1 + len(columns), self.point.patients, best)

    def _spread(self, w: NDArray[np.float64]) -> NDArray[np.float64]:
        """Coefficients of the fold's columns as those of all that are worked on."""
        whole = np.zeros_like(self.models[0])
        whole[0], whole[1 + self.columns] = w[0], w[1:]
        return whole

    def _ask(
        self, candidates: tuple[Coefficients, ...], working: tuple[int, ...]
    ) -> Generator[FoldFit, Sums, Sums]:
        named = tuple(
            Coefficients(one.intercept, tuple(self.columns[list(one.columns)].tolist()), one.values)
            for one in candidates
        )
        sums = yield FoldFit(self.fold, named, tuple(self.columns[list(working)].tolist()))
        assert sums.gradient is not None
        own = np.concatenate([[0], self.columns + 1])
        return Sums(sums.patients, sums.losses, sums.gradient[own], sums.hessian)


def _begin(questions: FitQuestions, folds: int) -> Conversation[dict[int, Point]]:
    """Where every fold's path begins: the model without terms. Folds without anybody to fit to are left out."""
    at_zero = yield from questions.ask_folds([FoldFit(fold, (Coefficients(),), ()) for fold in range(folds)])
    begins: dict[int, float] = {}
    for fold, sums in enumerate(at_zero):
        if sums.patients > 0 and sums.gradient is not None:
            mean = -float(sums.gradient[0]) / sums.patients
            if not questions.outcome.binary:
                begins[fold] = mean
            elif abs(mean) < 0.5:  # patients of both classes
                begins[fold] = float(np.log((0.5 + mean) / (0.5 - mean)))
    fits = [FoldFit(fold, (Coefficients(start),), ()) for fold, start in begins.items()]
    points: dict[int, Point] = {}
    for (fold, start), sums in zip(begins.items(), (yield from questions.ask_folds(fits)), strict=True):
        assert sums.gradient is not None
        assert sums.hessian is not None
        w = np.zeros(len(sums.gradient))
        w[0] = start
        n = sums.patients
        points[fold] = Point(w, float(sums.losses[0] / n), sums.gradient / n, sums.hessian / n, [], n)
    return points


def _find_top(point: Point, own: NDArray[np.intp]) -> NDArray[np.intp]:
    """The columns of a fold with the largest gradients."""
    steep = np.argsort(-np.abs(point.gradient[1:][own]), kind="stable")[:MOST_COLUMNS]
    return np.sort(own[steep])


def _in_step(
    questions: FitQuestions, fits: Mapping[int, Generator[FoldFit, Sums, T]]
) -> Conversation[dict[int, T]]:
    """What comes of a fit to each fold; what they ask at the same time is one question."""
    ended: dict[int, T] = {}
    answers: dict[int, Sums | None] = dict.fromkeys(fits)
    while answers:
        asked: dict[int, FoldFit] = {}
        for fold, sums in answers.items():
            try:
                asked[fold] = next(fits[fold]) if sums is None else fits[fold].send(sums)
            except StopIteration as end:
                ended[fold] = end.value
        told = (yield from questions.ask_folds(list(asked.values()))) if asked else []
        answers = dict(zip(asked, told, strict=True))
    return ended


def _judge(questions: FitQuestions, paths: Sequence[_Path]) -> Conversation[_Judged | None]:
    """The loss of each fold's models on the fold's own patients, for as many penalties as all paths have come to."""
    if not paths:
        return None
    length = min(len(path.models) for path in paths)
    told = yield from questions.ask_folds(
        [FoldFit(path.fold, tuple(map(Coefficients.of, path.models[:length])), None) for path in paths]
    )
    judged = [place for place, sums in enumerate(told) if sums.patients > 0]
    if len(judged) < 2:
        return None
    return _Judged(
        judged, np.array([told[p].patients for p in judged]), np.array([told[p].losses for p in judged])
    )


@dataclass(frozen=True)
class _Judged:
    """The summed losses of models on held-out patients, [fold, penalty], of the paths at these places."""

    places: list[int]
    patients: NDArray[np.float64]
    losses: NDArray[np.float64]

    @property
    def mean(self) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = self.losses.sum(axis=0) / self.patients.sum()
        return mean

    @property
    def best(self) -> int:
        """Which model has the least loss."""
        return int(np.argmin(self.mean))

    @property
    def errors(self) -> NDArray[np.float64]:
        """The standard error of each model's mean loss less that of the best. Repetitions deal the same patients again:
        they make the spread better known, and the patients no more."""
        apart = (self.losses - self.losses[:, [self.best]]) / self.patients[:, None]
        folds = len(apart) / max(1, round(len(apart) / FOLDS))
        errors: NDArray[np.float64] = apart.std(axis=0, ddof=1) / np.sqrt(folds)
        return errors

    def choose(self, paths: Sequence[_Path], terms: Sequence[Term], penalties: Sequence[float]) -> Validated:
        """The largest penalty within one standard error of the best."""
        mean, errors = self.mean, self.errors
        chosen = int(np.flatnonzero(mean <= mean[self.best] + errors)[0])
        own = [paths[place].models for place in self.places]
        tried = [
            PenaltyTried(
                ([np.inf, *penalties])[index],
                float(mean[index]),
                float(errors[index]),
                float(np.mean([np.count_nonzero(models[index][1:]) for models in own])),
            )
            for index in range(len(mean))
        ]
        selected = [
            [terms[column] for column in np.flatnonzero(models[chosen][1:]).tolist()] for models in own
        ]
        return Validated(tried[chosen].penalty if chosen else None, tried, selected)
