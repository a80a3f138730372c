"""Learning rules from labelled windows: an evolutionary search over formulas (docs/methods.md, section 6.4).

Structure by crossing and mutating syntax trees (search_space.py), numbers by trying all public limits of one place at a
time; what is looked for is separation of robustness (after Nenzi et al. 2018, with a squashed robustness, so that the
place of a limit matters and not only its variable). Whoever has windows of one class only gets a description instead
(`_describe_windows`). The search is deterministic under its seed. How much each rule counts in a weighted vote is
learned from training patients, and from nobody else (section 6.6).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from random import Random
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import ModelError, RecordsError, StudyError
from concilium.records.columns import label
from concilium.records.series import Series
from concilium.records.series_times import count_steps
from concilium.temporal.evaluation import robustness_all, satisfied_all
from concilium.temporal.formula import Always, Conjunction, Eventually, Formula, Limit
from concilium.temporal.search_space import Breeder, SearchSpace

Floats = NDArray[np.float64]

MOST_ROUNDS = 50
CLOSE = 1e-8


@dataclass(frozen=True, eq=False)
class RuleVote:
    """Each rule votes with its weight where it holds, against it where it does not, and abstains where that is unknown;
    the outcome is positive where the sum is above zero."""

    rules: tuple[Formula, ...]
    weights: tuple[float, ...]
    bias: float

    def __post_init__(self) -> None:
        if len(self.rules) != len(self.weights):
            raise ModelError(f"there are {len(self.rules)} rules and {len(self.weights)} weights")

    @classmethod
    def fit(
        cls, rules: Sequence[Formula | LearnedRule], windows: LabelledWindows, strength: float = 10.0
    ) -> RuleVote:
        """Weights by logistic regression on the votes, both classes counting the same, held back by a ridge of this
        strength: rules that say the same share their weight. No rule votes against what it says: those that would
        are left out."""
        if not rules:
            raise ModelError("a vote needs at least one rule")
        if not (np.isfinite(strength) and strength > 0):
            raise ModelError(f"the strength of the ridge is a number above zero; got {strength!r}")
        if windows.labels.all() or not windows.labels.any():
            raise ModelError("a vote is learned from positive and negative windows; these are of one kind")
        formulas = [rule.formula if isinstance(rule, LearnedRule) else rule for rule in rules]
        votes = cast_votes(formulas, windows.series)
        kept = np.arange(len(formulas))
        while True:
            weights, bias = _fit_ridge(votes[:, kept], windows.labels, strength)
            if (weights >= 0).all():
                return cls(tuple(formulas[place] for place in kept.tolist()), tuple(weights.tolist()), bias)
            kept = kept[weights > 0]

    def score(self, series: Series) -> Floats:
        """The sum of votes for each window: log odds, were both outcomes as frequent."""
        sums: Floats = cast_votes(self.rules, series) @ np.array(self.weights)
        return sums + self.bias

    def predict(self, series: Series) -> NDArray[np.bool_]:
        return self.score(series) > 0

    def __str__(self) -> str:
        order = sorted(zip(self.weights, map(str, self.rules), strict=True), key=lambda one: -abs(one[0]))
        return "\n".join(f"{weight:+7.3f}  {rule}" for weight, rule in [*order, (self.bias, "always")])


def cast_votes(rules: Sequence[Formula], series: Series) -> Floats:
    """[window, rule]: 1 where a rule holds, -1 where it does not, 0 where that is unknown."""
    truths = satisfied_all(list(rules), series, absent=True)
    return np.where(np.ma.getmaskarray(truths), 0.0, np.where(truths.data, 1.0, -1.0)).T


def _fit_ridge(votes: Floats, positive: NDArray[np.bool_], strength: float) -> tuple[Floats, float]:
    """Newton's method on the weighted logistic loss with a ridge on all but the bias; equal rows are taken together."""
    rows, group = np.unique(np.column_stack([votes, positive]), axis=0, return_inverse=True)
    count = np.bincount(group.ravel()).astype(np.float64)
    label = rows[:, -1]
    design = np.column_stack([rows[:, :-1], np.ones(len(rows))])
    share = np.where(label == 1, 0.5 / positive.mean(), 0.5 / (1 - positive.mean())) * count
    ridge = np.diag([strength] * votes.shape[1] + [0.0])
    weights = np.zeros(design.shape[1])
    for _ in range(MOST_ROUNDS):
        chance = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        slope = design.T @ (share * (label - chance)) - ridge @ weights
        curve = (design * (share * np.maximum(chance * (1 - chance), 1e-9))[:, None]).T @ design + ridge
        step = np.linalg.solve(curve + 1e-9 * np.eye(len(curve)), slope)
        weights += step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < CLOSE:
            break
    return weights[:-1], float(weights[-1])


@dataclass(frozen=True, eq=False)
class LabelledWindows:
    """A series whose "patients" are windows; `labels` says which are positive, `owners` whose (a row of the series that
    they were cut from)."""

    series: Series
    labels: NDArray[np.bool_]
    owners: NDArray[np.intp]

    def __post_init__(self) -> None:
        labels, owners = np.asarray(self.labels), np.asarray(self.owners)
        shape = (len(self.series),)
        if labels.shape != shape or labels.dtype != np.bool_:
            raise RecordsError(f"labels are true or false, one for each of the {len(self.series)} windows")
        if owners.shape != shape or not np.issubdtype(owners.dtype, np.integer) or (owners < 0).any():
            raise RecordsError(
                f"owners are whole numbers from 0, one for each of the {len(self.series)} windows"
            )
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "owners", owners)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> LabelledWindows:
        return LabelledWindows(self.series.take(rows), self.labels[rows], self.owners[rows])


def cut_windows(
    series: Series, outcome: str | ArrayLike, length: int | str, every: int | str = 1
) -> LabelledWindows:
    """All windows of this length, one `every` so many steps, back from the end of each stay.

    `outcome` names the variable of 0 and 1 whose value in a window's last step is its label, and which is left out of
    the windows; or it has a label for each patient, which all windows of the patient get. Windows whose label is
    missing are left out, as are stays that are shorter than a window; where nothing is left, that is an error.

    docs/methods.md, section 6.3.
    """
    steps, stride = count_steps(length, series.step, "length"), count_steps(every, series.step, "every")
    if steps < 1 or stride < 1:
        raise RecordsError(
            f"windows have at least one step and are at least one apart; got {length!r}, {every!r}"
        )
    longest = int(series.lengths.max(initial=0))
    if longest < steps:
        raise RecordsError(f"no stay is as long as a window of {steps} steps; the longest has {longest}")
    counts = np.where(series.lengths >= steps, (series.lengths - steps) // stride + 1, 0)
    owners = np.repeat(np.arange(len(series)), counts)
    nth = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = series.lengths[owners] - nth * stride
    if isinstance(outcome, str):
        series.check([outcome])
        labels = series.stays[outcome][series.starts[:-1][owners] + ends - 1]
        others = [name for name in series.names if name != outcome]
        if not others:
            raise RecordsError(f"there is no variable beside the outcome {outcome!r}")
        series = series.choose(others)
    else:
        try:
            each = np.asarray(outcome, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise RecordsError(f"an outcome is 0 or 1, or missing (NaN): {error}") from None
        if each.shape != (len(series),):
            raise RecordsError(f"the outcome has one label for each of the {len(series)} patients")
        labels = each[owners]
    odd = ~np.isnan(labels) & (labels != 0) & (labels != 1)
    if odd.any():
        raise RecordsError(f"an outcome is 0 or 1, or missing; got {labels[odd][0]}")
    labelled = ~np.isnan(labels)
    if not labelled.any():
        raise RecordsError("the outcome is missing in every window")
    owners, ends, labels = owners[labelled], ends[labelled], labels[labelled]
    return LabelledWindows(series.cut(ends, steps, owners), labels == 1, owners)


SOFTNESS = 0.1
"""The robustness, in units of a variable's width, that counts half as much as any amount more."""
CONTESTANTS = 3
REFINED = 4
PATIENTS_AT_ONCE = 500
DIGITS = 9
MOST_COMPARED = 1000
MOST_CELLS = 1 << 24
"""Formulas times windows that are evaluated at once: 64 megabytes."""
SAME = 0.99
"""Rules whose windows correlate more than this are one rule in two forms, of which the better is given out."""


@dataclass(frozen=True)
class LearnedRule:
    """A rule, and how well it tells positive windows from negative ones: 1 is perfect, 0 is chance; of a description,
    how tight it is, at most a half."""

    formula: Formula
    fitness: float


@dataclass(frozen=True, kw_only=True)
class RuleLearner:
    """`RuleLearner(space=SearchSpace.from_ranges(["HR", "Temp"], steps=6)).learn(windows)`.

    At most `rules` for a patient (or a cohort), canonical, no two the same, nor two that hold in the same windows.
    A search has so many `generations` of a `population`, and stops when `patience` of them brought nothing
    better. `penalty` is what an operator or a limit costs, `least` how good a rule must be to be given out at all.
    """

    space: SearchSpace
    rules: int = 10
    population: int = 40
    generations: int = 15
    patience: int = 3
    penalty: float = 0.01
    least: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("rules", 1), ("population", 4), ("generations", 1), ("patience", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise StudyError(f"{name} must be a whole number from {least}; got {value!r}")
        for name in ("penalty", "least"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1:
                raise StudyError(f"{name} is a number from 0 to 1, and below 1; got {value!r}")
        if not isinstance(self.seed, int):
            raise StudyError(f"seed must be a whole number; got {self.seed!r}")

    def learn(self, windows: LabelledWindows) -> list[LearnedRule]:
        """The rules of a cohort, the best first."""
        self._check(windows)
        if not len(windows):
            raise StudyError("there are no windows to learn from")
        return self._learn(windows, "cohort")

    def learn_each(
        self,
        windows: LabelledWindows,
        processes: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> dict[int, list[LearnedRule]]:
        """The rules of each patient, from that patient's windows alone, by `owners`.

        A patient's rules depend on nobody else: the limits are public, and the seed goes with the patient's id (without
        ids that is the patient's place in the series). With more than one of `processes`, the program that calls this
        must be importable (`if __name__ == "__main__"`).
        """
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
            raise StudyError(f"processes must be a whole number from 1; got {processes!r}")
        self._check(windows)
        if not len(windows):
            return {}
        order = np.argsort(windows.owners, kind="stable")
        begins = np.flatnonzero(np.diff(windows.owners[order], prepend=-1))
        patients = np.split(order, begins[1:])
        chunks = [
            patients[start : start + PATIENTS_AT_ONCE] for start in range(0, len(patients), PATIENTS_AT_ONCE)
        ]
        works = ((self, windows.take(np.concatenate(chunk))) for chunk in chunks)
        learned: dict[int, list[LearnedRule]] = {}
        for part in _spread(works, processes):
            learned.update(part)
            if progress is not None:
                progress(len(part))
        return learned

    def _check(self, windows: LabelledWindows) -> None:
        windows.series.check(self.space.names)
        if windows.series.points != self.space.steps:
            raise StudyError(
                f"the search space is of windows of {self.space.steps} steps, and these have {windows.series.points}"
            )

    def _learn(self, windows: LabelledWindows, name: str) -> list[LearnedRule]:
        positive = windows.labels
        if positive.all() or not positive.any():
            described = _describe_windows(self.space, windows.series, self.rules)
            return [LearnedRule(formula, tightness) for formula, tightness in described]
        seed = hashlib.sha256(f"{self.seed}\n{name}".encode("utf-8", "surrogatepass")).digest()
        return _Evolution(self, self.space.scale(windows.series), positive, Random(seed)).run()


@lru_cache(maxsize=1 << 17)
def _make_canonical(formula: Formula) -> Formula:
    """Patients' searches draw from one public space, and come to the same formulas again and again."""
    return formula.canonical()


class _Evolution:
    """One search. Everything that was ever looked at is kept, by its canonical form."""

    def __init__(
        self, learner: RuleLearner, series: Series, positive: NDArray[np.bool_], random: Random
    ) -> None:
        self._learner, self._series, self._random = learner, series, random
        self._breeder = Breeder(learner.space, random)
        # + 1/positives and - 1/negatives: the mean of one class against that of the other.
        count = int(positive.sum())
        self._weights = np.where(positive, 0.5 / count, -0.5 / (len(positive) - count))
        self._fitness: dict[Formula, float] = {}
        self._refined: set[Formula] = set()

    def run(self) -> list[LearnedRule]:
        learner = self._learner
        living = self._judge(self._breeder.draw() for _ in range(2 * learner.population))
        best, since = -1.0, 0
        for _ in range(learner.generations):
            living = self._select(living)
            if self._fitness[living[0]] > best + 1e-6:
                best, since = self._fitness[living[0]], 0
            else:
                since += 1
            if since >= learner.patience:
                break
            young = [self._beget(living) for _ in range(learner.population)]
            refined = [
                variant for formula in self._find_unrefined(living) for variant in self._breeder.vary(formula)
            ]
            living = [*living, *self._judge([*young, *refined])]
        return self._choose()

    def _beget(self, living: Sequence[Formula]) -> Formula:
        one = self._pick(living)
        if self._random.random() < 0.5:
            return self._breeder.cross(one, self._pick(living))
        return self._breeder.mutate(one)

    def _pick(self, living: Sequence[Formula]) -> Formula:
        """The best of some; they are in order."""
        return living[min(self._random.randrange(len(living)) for _ in range(CONTESTANTS))]

    def _find_unrefined(self, living: Sequence[Formula]) -> list[Formula]:
        """The best whose numbers and intervals were not all tried before."""
        new = [formula for formula in living if formula not in self._refined][:REFINED]
        self._refined.update(new)
        return new

    def _select(self, formulas: Sequence[Formula]) -> list[Formula]:
        return self._rank(dict.fromkeys(formulas))[: self._learner.population]

    def _judge(self, formulas: Iterable[Formula]) -> list[Formula]:
        """The canonical forms, with the fitness of those that are new entered."""
        forms = [_make_canonical(formula) for formula in formulas]
        new = [form for form in dict.fromkeys(forms) if form not in self._fitness]
        if new:
            for form, separation in zip(new, self._separate(new), strict=True):
                self._fitness[form] = separation - self._learner.penalty * (form.size - 2)
        return forms

    def _separate(self, formulas: list[Formula]) -> list[float]:
        separations: list[float] = []
        for some in self._share_out(formulas):
            robustness = robustness_all(some, self._series, absent=True)
            squashed = robustness / (np.abs(robustness) + np.float32(SOFTNESS))
            np.nan_to_num(squashed, copy=False, nan=0.0, posinf=1.0, neginf=-1.0)
            # Rounded, so that no processor's order of adding up decides between two formulas.
            separations += (squashed.astype(np.float64) @ self._weights).round(DIGITS).tolist()
        return separations

    def _find_where_they_hold(self, formulas: list[Formula]) -> NDArray[np.bool_]:
        """[formula, window], unknown taken as not."""
        held = np.zeros((len(formulas), len(self._series)), dtype=np.bool_)
        start = 0
        for some in self._share_out(formulas):
            held[start : start + len(some)] = satisfied_all(some, self._series, absent=True).filled(False)
            start += len(some)
        return held

    def _share_out(self, formulas: list[Formula]) -> Iterator[list[Formula]]:
        """In parts that fit in memory, however many the windows are."""
        most = max(1, MOST_CELLS // len(self._series))
        for start in range(0, len(formulas), most):
            yield formulas[start : start + most]

    def _choose(self) -> list[LearnedRule]:
        """One rule after the other: the best, less what it repeats of those before it."""
        learner = self._learner
        good = [form for form, fitness in self._fitness.items() if fitness >= learner.least]
        good = self._rank(good)[:MOST_COMPARED]
        chosen = _pick_unlike(
            np.array([self._fitness[form] for form in good]),
            self._find_where_they_hold(good),
            learner.rules,
        )
        return [
            LearnedRule(
                learner.space.unscale_formula(good[place]).canonical(), round(self._fitness[good[place]], 6)
            )
            for place in chosen
        ]

    def _rank(self, formulas: Iterable[Formula]) -> list[Formula]:
        return sorted(formulas, key=lambda one: (-self._fitness[one], one.size))


def _pick_unlike(fitness: NDArray[np.float64], held: NDArray[np.bool_], most: int) -> list[int]:
    """At most so many of the rules, best first: each time the one whose fitness is highest after what it shares with
    one picked before, as the square of the correlation of where they hold ([rule, window]), is taken off."""
    windows = held.shape[1]
    count = held.sum(axis=1).astype(np.float64)
    spread = count * (windows - count)  # the variance, times the windows squared; zero where always or never
    shared = np.zeros(len(fitness))
    picked: list[int] = []
    left = np.flatnonzero(spread > 0)
    while len(left) and len(picked) < most:
        best = left[np.argmax(fitness[left] * (1 - shared[left]))]
        picked.append(int(best))
        both = (held[left] & held[best]).sum(axis=1)
        covariance = windows * both - count[left] * count[best]
        shared[left] = np.maximum(shared[left], covariance**2 / (spread[left] * spread[best]))
        left = left[shared[left] < SAME]
    return picked


def _spread(
    works: Iterable[tuple[RuleLearner, LabelledWindows]], processes: int
) -> Iterable[dict[int, list[LearnedRule]]]:
    if processes <= 1:
        yield from map(_learn_some, works)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(_learn_some, works)
        except BrokenProcessPool:
            raise StudyError(
                "a process that learned rules ended before its time: out of memory, or the program that called it is "
                'not importable; call it under `if __name__ == "__main__":`, or with processes=1'
            ) from None


def _learn_some(work: tuple[RuleLearner, LabelledWindows]) -> dict[int, list[LearnedRule]]:
    learner, windows = work
    learned: dict[int, list[LearnedRule]] = {}
    windows = _describe_alike(learner, windows, learned)
    if not len(windows):
        return learned
    begins = np.flatnonzero(np.diff(windows.owners, prepend=-1))
    for first, last in zip(begins, [*begins[1:], len(windows)], strict=True):
        own = windows.take(np.arange(first, last))
        name = own.series.ids[0]
        learned[int(own.owners[0])] = learner._learn(own, "" if name is None else label(name))
    return learned


def _describe_windows(space: SearchSpace, series: Series, most: int) -> list[tuple[Formula, float]]:
    """At most so many formulas, the tightest first, each with how tight it is: of all that `>=` and `<` can say of its
    variable and the public limits, the share that it says, which is at most a half.

    Of each variable: between which limits it always is, and what it rises above and falls below at some time, each in
    the interval where that says most. Where a variable was not measured throughout, nothing is said of it.

    docs/methods.md, section 6.5.
    """
    return next(_describe_each(space, series, np.zeros(1, dtype=np.intp), most))


def _describe_each(
    space: SearchSpace, series: Series, begins: NDArray[np.intp], most: int
) -> Iterator[list[tuple[Formula, float]]]:
    """The same for each of several patients, whose windows begin at these and lie one after the other."""
    found = [_describe_variable(name, space, series, begins) for name in space.names]
    tightness, sizes, first, interval, low, high = map(np.concatenate, zip(*found, strict=True))
    kinds = np.arange(len(tightness))
    # As if patients were described one by one: by variable, and there by the interval in which a kind first occurs.
    places = kinds[:, None] // 3 * (3 * len(space.intervals) + 3) + 3 * first + kinds[:, None] % 3
    for patient in range(len(begins)):
        order = np.lexsort((places[:, patient], sizes[:, patient], -tightness[:, patient]))
        there = [kind for kind in order.tolist() if tightness[kind, patient] > 0][:most]
        yield [
            (
                _make_description(
                    space.names[kind // 3],
                    KINDS[kind % 3],
                    space.limits[space.names[kind // 3]],
                    space.intervals[interval[kind, patient]],
                    int(low[kind, patient]),
                    int(high[kind, patient]),
                ),
                float(tightness[kind, patient]),
            )
            for kind in there
        ]


KINDS = ("always", "rises", "falls")


def _describe_variable(
    name: str, space: SearchSpace, series: Series, begins: NDArray[np.intp]
) -> tuple[NDArray[Any], ...]:
    """What always holds of a variable, what it rises above and what it falls below in every window: of each kind and
    patient the tightest formula, [kind, patient], by its tightness, its size, the interval in which the kind first
    occurs, the interval of the formula, and the numbers of its limits. Of equally tight ones always says more of a long
    interval, at some time of a short one."""
    values, numbers = series[name], np.array(space.limits[name], dtype=np.float32)
    count = len(numbers)

    def place(values_of_patients: NDArray[np.float32]) -> NDArray[np.intp]:
        return np.searchsorted(numbers, values_of_patients, side="right")

    shape = (3, len(space.intervals), len(begins))
    tightness, sizes, low, high = (
        np.zeros(shape),
        np.full(shape, 2),
        np.zeros(shape, int),
        np.zeros(shape, int),
    )
    for number, (first, last) in enumerate(space.intervals):
        part = np.where(series.lengths > last, values[first : last + 1], np.float32(np.nan))
        least, greatest = part.min(axis=0), part.max(axis=0)
        known = ~np.isnan(np.add.reduceat(least, begins))
        floor = place(np.minimum.reduceat(least, begins)) - 1  # the largest limit that is reached
        ceiling = place(np.maximum.reduceat(greatest, begins))  # the smallest that never is
        # At some time in every window: the peak of the lowest window, and the trough of the highest.
        peak = place(np.minimum.reduceat(greatest, begins)) - 1
        trough = place(np.maximum.reduceat(least, begins))
        limits = (floor >= 0).astype(np.int64) + (ceiling < count)
        ruled_out = ((floor + 1) / count + (count - ceiling) / count) / 2
        sizes[0, number] = 2 * limits
        low[:, number], high[:, number] = (floor, peak, trough), (ceiling, peak, trough)
        tightness[0, number] = np.where(known & (limits > 0), ruled_out, 0.0)
        tightness[1, number] = np.where(known & (peak > floor), (peak + 1) / count / 2, 0.0)
        crosses = known & (trough < ceiling) & (trough < count)
        tightness[2, number] = np.where(crosses, (count - trough) / count / 2, 0.0)
    there = tightness > 0
    occurs = np.where(there.any(axis=1), there.argmax(axis=1), len(space.intervals))
    lengths = np.array([last - first for first, last in space.intervals])
    long, short = np.argsort(-lengths, kind="stable"), np.argsort(lengths, kind="stable")
    chosen = np.array(
        [order[one[order].argmax(axis=0)] for one, order in zip(tightness, (long, short, short), strict=True)]
    )
    taken = [np.take_along_axis(one, chosen[:, None], axis=1)[:, 0] for one in (tightness, sizes, low, high)]
    return taken[0].round(6), taken[1], occurs, chosen, taken[2], taken[3]


def _describe_alike(
    learner: RuleLearner, windows: LabelledWindows, learned: dict[int, list[LearnedRule]]
) -> LabelledWindows:
    """Enter the rules of patients whose windows are all of one class; return the windows of the others."""
    begins = np.flatnonzero(np.diff(windows.owners, prepend=-1))
    counts = np.diff([*begins, len(windows)])
    positive = np.add.reduceat(windows.labels.astype(np.int64), begins)
    alike = (positive == 0) | (positive == counts)
    if alike.any():
        own = windows.take(np.repeat(alike, counts))
        starts = np.flatnonzero(np.diff(own.owners, prepend=-1))
        described = _describe_each(learner.space, own.series, starts, learner.rules)
        for owner, rules in zip(own.owners[starts].tolist(), described, strict=True):
            learned[owner] = [LearnedRule(formula, tightness) for formula, tightness in rules]
    return windows.take(np.repeat(~alike, counts))


@lru_cache(maxsize=1 << 14)
def _make_description(
    name: str, kind: str, limits: tuple[float, ...], interval: tuple[int, int], low: int, high: int
) -> Formula:
    if kind == "rises":
        return Eventually(interval, Limit(name, ">=", limits[low]))
    if kind == "falls":
        return Eventually(interval, Limit(name, "<", limits[low]))
    parts = [Limit(name, ">=", limits[low])] if low >= 0 else []
    if high < len(limits):
        parts.append(Limit(name, "<", limits[high]))
    return Always(interval, parts[0] if len(parts) == 1 else Conjunction(parts).canonical())
