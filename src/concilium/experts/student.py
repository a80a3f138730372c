"""The student: a network and readable rules that learn from what ensembles said of public stays.

Claim: it is made of released labels and public stays alone, so that nothing of it costs more than the labels did,
however often it is asked. The model file never holds an expert.

docs/methods.md, section 8.5.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.experts.expert_task import NETWORKS, ExpertTask, NetworkSettings
from concilium.experts.network import Weights, open_network
from concilium.experts.patient_windows import SPREAD, LaidOut, lay_out
from concilium.models.explanation import read_odds
from concilium.policy.policy import Policy
from concilium.protocol.card import Card
from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.columns import Numbers
from concilium.records.series import Series
from concilium.records.table import Records
from concilium.registry import METHODS, load

if TYPE_CHECKING:
    from concilium.models.method import Method

PRIORS = 10.0 ** np.arange(-10.0, 2.01, 0.25)
"""Variances of the prior that are tried, in units of the labels' scale."""
LEAST_NOISE = 1e-3


def smooth(features: Reals, asked: NDArray[np.int64], labels: Reals, deviation: float, scale: float) -> Reals:
    """What the labels of the cells that were asked about say of every cell [cell, feature].

    `deviation` is that of the noise on each label, in units of the labels; `scale` the largest that a label can be.

    Linear regression on public features, with the noise's known variance. Coefficients have a normal prior whose
    variance is the one that makes the labels likeliest (Bishop 2006, section 3.5; the noise is not estimated, it is
    known). All of it is made from what was released, so that it costs no more.
    """
    center, spread = features.mean(axis=0), features.std(axis=0)
    kept = spread > 1e-6
    if not kept.any():
        return np.full(len(features), labels.mean())
    standard = (features[:, kept] - center[kept]) / spread[kept]
    seen = standard[asked]
    mean, middle = labels.mean(), seen.mean(axis=0)
    coefficients = _regress(seen - middle, (labels - mean) / scale, max(deviation / scale, LEAST_NOISE) ** 2)
    smoothed: Reals = mean + scale * ((standard - middle) @ coefficients)
    return smoothed


def _regress(design: Reals, labels: Reals, noise: float) -> Reals:
    """The mean of the posterior at the likeliest prior, noise of this variance given."""
    values, vectors = np.linalg.eigh(design.T @ design)
    values = np.maximum(values, 0.0)
    pulled = vectors.T @ (design.T @ labels)
    evidence = [_weigh_evidence(values, pulled, prior, noise) for prior in PRIORS]
    prior = PRIORS[int(np.argmax(evidence))]
    coefficients: Reals = vectors @ (pulled / (values + noise / prior))
    return coefficients


def _find_doubt(features: Reals, asked: NDArray[np.int64], labels: Reals, deviation: float) -> float:
    """How likely labels without any signal would vary so much along the features: noise of known variance makes that a
    chi-squared number (its upper tail by Wilson and Hilferty's cube root)."""
    seen = features[asked] - features[asked].mean(axis=0)
    values, vectors = np.linalg.eigh(seen.T @ seen)
    kept = values > 1e-9 * max(float(values[-1]), 1e-9)
    degrees = int(kept.sum())
    if not degrees:
        return 1.0
    along = (vectors[:, kept].T @ (seen.T @ (labels - labels.mean()))) ** 2 / values[kept]
    cube = (float(along.sum()) / (deviation**2 * degrees)) ** (1 / 3)
    return 0.5 * math.erfc((cube - 1 + 2 / (9 * degrees)) / math.sqrt(4 / (9 * degrees)))


def _weigh_evidence(values: Reals, pulled: Reals, prior: float, noise: float) -> float:
    """The log probability of the labels under a prior, but for what all priors have in common."""
    fits = (pulled**2 * prior / (noise * (noise + prior * values))).sum()
    return float(0.5 * (fits - np.log1p(prior * values / noise).sum()))


WIDE = 100


class _StoredArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of a network, plain, in C order."""

    shape: list[int]
    values: list[float]

    def __post_init__(self) -> None:
        if math.prod(self.shape) != len(self.values) or any(size < 0 for size in self.shape):
            raise ValueError("an array of a network has as many numbers as its shape says")


class StoredStudent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sequence model (`task` says which, `weights` what it learned; it tells severity in units of `scale` from
    `center`), where its alarm is (`alarm`, `spread`), the log odds there (`intercept`), and the readable one: a
    RuleFit's body on these `features`."""

    task: ExpertTask
    weights: dict[str, _StoredArray]
    center: float = 0.0
    scale: float = 1.0
    alarm: float = 0.0
    spread: float = 1.0
    intercept: float = 0.0
    features: list[str] = msgspec.field(default_factory=list)
    readable: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        try:
            self.task.check()
        except MessageError as error:
            raise ValueError(str(error)) from None
        numbers = [self.center, self.scale, self.alarm, self.spread, self.intercept]
        if self.task.network.kind not in NETWORKS or not all(map(math.isfinite, numbers)) or self.spread <= 0:
            raise ValueError("a student has a network of the list, and finite numbers")

    @property
    def risk_at_alarm(self) -> float:
        """The predicted risk above which there is an alarm."""
        return 1 / (1 + read_odds(-self.intercept))

    @property
    def arrays(self) -> Weights:
        return {
            name: np.array(one.values, dtype=np.float64).reshape(one.shape)
            for name, one in self.weights.items()
        }


class StudentBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`selection` is how experts were chosen; `size` how many taught, by a noisy count or as hospitals told,
    `septic` how many of these had the outcome, where that was told; `labels` how many steps were asked about,
    `deviation` of the noise on each; `prevalence` the share of patients whose outcome changes, by a noisy count, and
    `doubt` how likely labels like these are without any signal. `student` is None until there are public stays;
    `answer` is what ensembles said of the one stay that they were asked about."""

    target: str
    query: str
    selection: str
    size: int
    septic: int | None
    labels: int
    deviation: float
    protects: str
    student: StoredStudent | None
    prevalence: float | None = None
    doubt: float | None = None
    answer: list[float] = msgspec.field(default_factory=list)

    @property
    def classes(self) -> list[int]:
        """Without the outcome, and with it."""
        return [0, 1]


def _store(weights: Weights) -> dict[str, _StoredArray]:
    """Arrays as a model file holds them; floats of 32 bits are enough, and half as long to read."""
    return {
        name: _StoredArray(list(values.shape), np.float32(values).astype(np.float64).ravel().tolist())
        for name, values in weights.items()
    }


def write_student(body: StudentBody, table: str) -> str:
    """The model for terminals and logs: who taught it, at what price, and the readable student."""
    lines = [f"{body.target}: a student of {body.size} experts ({body.selection})"]
    if body.student is None:
        lines.append("no student yet: student(public) has the ensembles label public stays")
    else:
        noise = f", each with noise of deviation {body.deviation:.3g}" if body.deviation else ""
        lines.append(f"taught by {body.labels} labels of public stays{noise}")
        network = body.student.task.network
        rules = (
            f"rules on {len(body.student.features)} window features"
            if table
            else "none, for want of a cutoff"
        )
        lines.append(
            f"network: {network.kind}, {network.units} units, {len(body.student.task.variables)} variables, windows of "
            f"{body.student.task.window}; readable: {rules}"
        )
    return "\n".join([*lines, *([table] if table else []), *textwrap.wrap(body.protects, WIDE)])


FEATURES = ("latest", "mean", "highest", "lowest")


def _name_features(task: ExpertTask) -> dict[str, str]:
    """The features in the order of `find_features`, such as "HR highest in the latest 24h", each with its variable."""
    when = {"latest": ""}
    return {
        f"{name} {feature}{when.get(feature, f' in the latest {task.window}')}": name
        for feature in FEATURES
        for name in task.names
    }


def _find_known(laid: LaidOut) -> NDArray[np.bool_]:
    """[cell, variable]: whether it was measured, or carried forward from when it was."""
    return np.ones(laid.values.shape, dtype=np.bool_) if laid.known is None else laid.known


def _find_measured(laid: LaidOut) -> NDArray[np.bool_]:
    """[cell, feature]: whether the variable was known at any step of the window that ends there, or (latest) now."""
    known = _find_known(laid)
    ever = np.empty_like(known)
    for first, last in itertools.pairwise(laid.starts.tolist()):
        ever[first:last] = _sum_windows(known[first:last].astype(np.int64), laid.task.steps) > 0
    return np.concatenate([known, *[ever] * (len(FEATURES) - 1)], axis=1)


def _sum_windows(cells: NDArray[Any], steps: int) -> NDArray[Any]:
    """[step, variable]: the sum over the last so many steps, or as many as there are."""
    sums = np.cumsum(cells, axis=0)
    sums[steps:] -= sums[:-steps].copy()
    return sums


def find_features(laid: LaidOut) -> NDArray[np.float64]:
    """[cell, feature], on the scale of the networks: over the last window of each step, or as much as there is. Of
    what was not measured there, nothing counts; a variable of which nothing is known is in the middle."""
    steps, width = laid.task.steps, laid.values.shape[1]
    found = np.empty((len(laid.values), len(FEATURES) * width))
    known = _find_known(laid)
    for first, last in itertools.pairwise(laid.starts.tolist()):
        stay, there = laid.values[first:last].astype(np.float64), known[first:last]
        counts = _sum_windows(there.astype(np.int64), steps)
        mean = _sum_windows(np.where(there, stay, 0.0), steps) / np.maximum(counts, 1)
        ends = []
        for absent, reduce in ((-np.inf, np.max), (np.inf, np.min)):
            cells = np.concatenate([np.full((steps - 1, width), absent), np.where(there, stay, absent)])
            ends.append(np.where(counts > 0, reduce(sliding_window_view(cells, steps, axis=0), axis=2), 0.0))
        found[first:last] = np.concatenate([stay, mean, *ends], axis=1)
    return found


def _in_units(features: NDArray[np.float64], task: ExpertTask) -> NDArray[np.float64]:
    """Features in the units of their variables, to the digits that single precision keeps: 80 is not below 80."""
    middle = np.array([(one.low + one.high) / 2 for one in task.variables])
    whole = np.array([one.high - one.low for one in task.variables])
    spread = features * np.tile(whole, len(FEATURES)) + np.tile(middle, len(FEATURES))
    kept = np.tile(10.0 ** (5 - np.floor(np.log10(whole))), len(FEATURES))
    rounded: NDArray[np.float64] = np.rint(spread * kept) / kept
    return rounded


Reals = NDArray[np.float64]

MOST_FEATURES, MOST_ROWS, TREES = 20, 4_000, 60
SEVERITY = "severity"
FLAT, SMALL_RIDGE = 1e-9, 1e-4
LINEAR = "linear"
"""The kind of a student that is linear in window features, as noisy labels make it."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """Public stays with the `labels` of the cells that were `asked` about, and the `deviation` of their noise. Labels
    that are `centred` say how hours differ, and nothing of a level."""

    laid: LaidOut
    asked: NDArray[np.int64]
    labels: Reals
    deviation: float
    centred: bool = False

    @cached_property
    def features(self) -> Reals:
        return find_features(self.laid)

    @cached_property
    def targets(self) -> Reals:
        """What the student is to say at each step: labels as they are, or smoothed where they are noisy."""
        if not self.deviation:
            exact = np.full(len(self.laid.values), np.nan)
            exact[self.asked] = self.labels
            return exact
        bound = self.laid.task.bound
        smoothed = smooth(self.features, self.asked, self.labels, self.deviation, bound)
        if not self.centred:
            return smoothed
        # The scale of one expert: the middle is the mean public hour, and a deviation is an eighth of the bound.
        unit = bound * float(SPREAD) / max(float(smoothed.std()), FLAT)
        off = smoothed - smoothed.mean()
        scaled: Reals = bound / 2 + off * (unit if smoothed.std() > FLAT else 1.0)
        return scaled

    @cached_property
    def doubt(self) -> float | None:
        """How likely such labels are without any signal; None where they have no noise."""
        if not self.deviation:
            return None
        return _find_doubt(self.features, self.asked, self.labels, self.deviation)


def teach(
    lesson: Lesson,
    settings: NetworkSettings,
    cutoffs: Mapping[str, tuple[float, ...]],
    alarms: float,
    prevalence: float | None = None,
) -> StoredStudent:
    """Both students of a lesson. `cutoffs` are the public numbers of each variable that rules may cut at; an alarm is
    where the student says more than in all but this share (`alarms`) of the public steps. With a `prevalence` the mean
    risk at the ends of the public stays is that."""
    student = teach_network(lesson.laid, lesson.targets, settings)
    said = tell(student, lesson.laid)
    features, readable = _write_rules(lesson, lesson.targets, cutoffs)
    alarm, spread = float(np.quantile(said, 1 - alarms)), max(float(said.std()), FLAT)
    intercept = 0.0
    if prevalence is not None:
        intercept = _find_intercept((said[lesson.laid.starts[1:] - 1] - alarm) / spread, prevalence)
    return msgspec.structs.replace(
        student,
        alarm=alarm,
        spread=spread,
        intercept=intercept,
        features=features,
        readable=readable,
    )


def _find_intercept(scores: Reals, prevalence: float) -> float:
    """What must be added to these log odds for their mean risk to be the prevalence, by bisection."""
    low, high = -40.0 - float(scores.max()), 40.0 - float(scores.min())
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if float(_squash(scores + middle).mean()) < prevalence else (low, middle)
    return (low + high) / 2


def _squash(scores: Reals) -> Reals:
    with np.errstate(over="ignore"):
        squashed: Reals = 1 / (1 + np.exp(-scores))
    return squashed


def teach_network(laid: LaidOut, targets: Reals, settings: NetworkSettings) -> StoredStudent:
    """The network alone, of stays and what it is to say at each step (NaN: nothing)."""
    own = msgspec.structs.replace(laid.task, network=settings)
    if settings.kind == LINEAR:
        return StoredStudent(task=own, weights=_store(_imitate(find_features(laid), targets)))
    known = targets[~np.isnan(targets)]
    center, scale = float(known.mean()), max(float(known.std()), FLAT)
    network = open_network(settings, len(own.variables))
    windows, _, _ = replace(laid, task=own, severity=(targets - center) / scale).gather(np.arange(len(laid)))
    return StoredStudent(task=own, weights=_store(network.train(windows)), center=center, scale=scale)


def _imitate(features: Reals, targets: Reals) -> Weights:
    """What makes the targets of features, by least squares with a small ridge."""
    known = ~np.isnan(targets)
    seen, truth = features[known], targets[known]
    center, middle = seen.mean(axis=0), float(truth.mean())
    off = seen - center
    gram = off.T @ off / len(off)
    held = gram + np.diag(SMALL_RIDGE * np.diag(gram) + 1e-9)
    direction = np.linalg.solve(held, off.T @ (truth - middle) / len(off))
    return {"direction": direction, "offset": np.array([middle - direction @ center])}


def tell(student: StoredStudent, laid: LaidOut) -> Reals:
    """The severity of every cell, held to [0, B]."""
    if student.task.network.kind == LINEAR:
        arrays = student.arrays
        said = find_features(laid) @ arrays["direction"] + arrays["offset"]
        return np.clip(said, 0, student.task.bound)
    network = open_network(student.task.network, len(student.task.variables))
    windows, places, cells = laid.gather(np.arange(len(laid)))
    outputs = np.empty(len(laid.values))
    outputs[cells] = network.run([student.arrays], windows)[0].ravel()[places]
    return np.clip(student.center + student.scale * outputs, 0, student.task.bound)


def judge(student: StoredStudent, series: Series) -> tuple[Reals, Reals]:
    """The severity and the score at the end of each stay."""
    laid = lay_out(series, student.task, labelled=False)
    severity = tell(student, laid)[laid.starts[1:] - 1]
    return severity, _squash(student.intercept + (severity - student.alarm) / student.spread)


def _write_rules(
    lesson: Lesson, targets: Reals, cutoffs: Mapping[str, tuple[float, ...]]
) -> tuple[list[str], dict[str, Any] | None]:
    """The features that say most of the targets, at most 20, and the body of a RuleFit on them."""
    rows = lesson.asked[:: max(1, -(-len(lesson.asked) // MOST_ROWS))]
    truth, task = targets[rows], lesson.laid.task
    seen = _in_units(lesson.features, task)[rows]
    measured = _find_measured(lesson.laid)[rows]
    variables = _name_features(task)
    names = [*variables]
    told_apart = [
        len(np.unique(np.searchsorted(cutoffs[own], seen[measured[:, place], place], side="right"))) > 1
        for place, own in enumerate(variables.values())
    ]
    features = _choose_features(seen, truth, np.array(told_apart))
    if not features or truth.std() < FLAT:
        return [], None
    # What nobody measured is missing, and no reason for anything.
    columns = {
        names[place]: Numbers(np.where(measured[:, place], seen[:, place], np.nan)) for place in features
    }
    margin = float(truth.std())
    ends = [float(truth.min()) - margin, float(truth.max()) + margin]
    bins = {names[place]: list(cutoffs[variables[names[place]]]) for place in features}
    site = Site(
        "public", Records({**columns, SEVERITY: Numbers(truth)}), policy=Policy(allow=(*columns, SEVERITY))
    )
    model: Method[Any] = load(METHODS["rulefit"])(
        target=SEVERITY,
        bins={**bins, SEVERITY: ends},
        trees=TREES,
        shrinkage=0.1,
        cutoffs="all",
        penalty=0.002,
        release="exact",
    ).fit(House([site]))
    return [names[place] for place in features], msgspec.json.decode(msgspec.json.encode(model.body))


def _choose_features(seen: Reals, truth: Reals, told_apart: NDArray[np.bool_]) -> list[int]:
    """Those most correlated with the targets, of those that some cutoff tells apart."""
    spread = seen.std(axis=0)
    moving = np.flatnonzero((spread > 1e-6 * np.maximum(np.abs(seen).max(axis=0), 1e-6)) & told_apart)
    if not len(moving) or len(truth) < 2:
        return []
    shared = ((seen - seen.mean(axis=0)) * (truth - truth.mean())[:, None]).mean(axis=0)
    strength = np.abs(shared[moving]) / spread[moving]
    best = moving[np.argsort(-strength, kind="stable")[:MOST_FEATURES]]
    return sorted(best.tolist())


def open_rules(student: StoredStudent, card: Card) -> Method[Any] | None:
    """The readable student as a model; None where there is none."""
    if student.readable is None:
        return None
    model: Method[Any] = load(METHODS["rulefit"]).from_body(msgspec.json.encode(student.readable), card)
    return model


def read_features(student: StoredStudent, series: Series) -> list[dict[str, float | None]]:
    """The features of the last step of each stay, as the readable student sees them; None where nobody measured."""
    laid = lay_out(series, student.task, labelled=False)
    ends = laid.starts[1:] - 1
    seen, measured = _in_units(find_features(laid), student.task)[ends], _find_measured(laid)[ends]
    places = {name: place for place, name in enumerate(_name_features(student.task))}
    return [
        {name: float(row[places[name]]) if own[places[name]] else None for name in student.features}
        for row, own in zip(seen, measured, strict=True)
    ]
