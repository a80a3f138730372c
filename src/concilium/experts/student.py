"""The student: a network and readable rules that learn from what ensembles said of public stays.

Claim: it is made of released labels and public stays alone, so that nothing of it costs more than the labels did,
however often it is asked. The model file never holds an expert.

docs/methods.md, section 8.5.
"""

from __future__ import annotations

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
from concilium.experts.expert_task import ExpertTask, NetworkSettings, check_task
from concilium.experts.network import NETWORKS, Weights, open_network
from concilium.experts.patient_windows import LaidOut, lay_out
from concilium.policy.policy import Policy
from concilium.protocol.card import Card
from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.series import Series
from concilium.records.table import Numbers, Records
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
    `center`), where its alarm is (`alarm`, `spread`), and the readable one: a RuleFit's body on these `features`."""

    task: ExpertTask
    weights: dict[str, _StoredArray]
    center: float
    scale: float
    alarm: float
    spread: float
    features: list[str]
    readable: dict[str, Any] | None

    def __post_init__(self) -> None:
        try:
            check_task(self.task)
        except MessageError as error:
            raise ValueError(str(error)) from None
        numbers = [self.center, self.scale, self.alarm, self.spread]
        if self.task.network.kind not in NETWORKS or not all(map(math.isfinite, numbers)) or self.spread <= 0:
            raise ValueError("a student has a network of the list, and finite numbers")

    @property
    def arrays(self) -> Weights:
        return {
            name: np.array(one.values, dtype=np.float64).reshape(one.shape)
            for name, one in self.weights.items()
        }


class StudentBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`selection` is "unselected" or "grown"; `size` how many experts taught, as the study says or as hospitals told,
    `septic` how many of these had the outcome, where that was told; `labels` how many steps were asked about,
    `deviation` of the noise on each. `student` is None until there are public stays; `answer` is what
    ensembles said of the one stay that they were asked about."""

    target: str
    query: str
    selection: str
    size: int
    septic: int | None
    labels: int
    deviation: float
    protects: str
    student: StoredStudent | None
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


def _name_features(task: ExpertTask) -> list[str]:
    """The features in the order of `find_features`, such as "HR highest"."""
    return [f"{name} {feature}" for feature in FEATURES for name in task.names]


def find_features(laid: LaidOut) -> NDArray[np.float64]:
    """[cell, feature], on the scale of the networks: over the last window of each step, or as much as there is."""
    steps, width = laid.task.steps, laid.values.shape[1]
    found = np.empty((len(laid.values), len(FEATURES) * width))
    for first, last in zip(laid.starts[:-1].tolist(), laid.starts[1:].tolist(), strict=True):
        stay = laid.values[first:last].astype(np.float64)
        padded = np.concatenate([np.repeat(stay[:1], steps - 1, axis=0), stay])
        seen = sliding_window_view(padded, steps, axis=0)
        sums = np.cumsum(stay, axis=0)
        sums[steps:] -= sums[:-steps].copy()
        counts = np.minimum(np.arange(1, len(stay) + 1), steps)[:, None]
        found[first:last] = np.concatenate([stay, sums / counts, seen.max(axis=2), seen.min(axis=2)], axis=1)
    return found


def _in_units(features: NDArray[np.float64], task: ExpertTask) -> NDArray[np.float64]:
    """Features in the units of their variables."""
    middle = np.array([(one.low + one.high) / 2 for one in task.variables])
    half = np.array([(one.high - one.low) / 2 for one in task.variables])
    spread: NDArray[np.float64] = features * np.tile(2 * half, len(FEATURES)) + np.tile(middle, len(FEATURES))
    return spread


Reals = NDArray[np.float64]

MOST_FEATURES, MOST_ROWS, TREES = 20, 4_000, 60
SEVERITY = "severity"
FLAT = 1e-9


@dataclass(frozen=True, eq=False)
class Lesson:
    """Public stays with the `labels` of the cells that were `asked` about, and the `deviation` of their noise."""

    laid: LaidOut
    asked: NDArray[np.int64]
    labels: Reals
    deviation: float

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
        return smooth(self.features, self.asked, self.labels, self.deviation, self.laid.task.bound)


def teach(
    lesson: Lesson, settings: NetworkSettings, cutoffs: Mapping[str, tuple[float, ...]], alarms: float
) -> StoredStudent:
    """Both students of a lesson. `cutoffs` are the public numbers of each variable that rules may cut at; an alarm is
    where the student says more than in all but this share (`alarms`) of the public steps."""
    student = teach_network(lesson.laid, lesson.targets, settings)
    said = tell(student, lesson.laid)
    features, readable = _write_rules(lesson, lesson.targets, cutoffs)
    return msgspec.structs.replace(
        student,
        alarm=float(np.quantile(said, 1 - alarms)),
        spread=max(float(said.std()), FLAT),
        features=features,
        readable=readable,
    )


def teach_network(laid: LaidOut, targets: Reals, settings: NetworkSettings) -> StoredStudent:
    """The network alone, of stays and what it is to say at each step (NaN: nothing)."""
    known = targets[~np.isnan(targets)]
    center, scale = float(known.mean()), max(float(known.std()), FLAT)
    own = msgspec.structs.replace(laid.task, network=settings)
    network = open_network(settings, len(own.variables))
    windows, _, _ = replace(laid, task=own, severity=(targets - center) / scale).gather(np.arange(len(laid)))
    return StoredStudent(
        task=own,
        weights=_store(network.train(windows)),
        center=center,
        scale=scale,
        alarm=0.0,
        spread=1.0,
        features=[],
        readable=None,
    )


def tell(student: StoredStudent, laid: LaidOut) -> Reals:
    """The severity of every cell, held to [0, B]."""
    network = open_network(student.task.network, len(student.task.variables))
    windows, places, cells = laid.gather(np.arange(len(laid)))
    told = np.empty(len(laid.values))
    told[cells] = network.run([student.arrays], windows)[0].ravel()[places]
    severity: Reals = np.clip(student.center + student.scale * told, 0, student.task.bound)
    return severity


def judge(student: StoredStudent, series: Series) -> tuple[Reals, Reals]:
    """The severity at the end of each stay, and how far that is to an alarm: above a half where there is one."""
    laid = lay_out(series, student.task, labelled=False)
    severity = tell(student, laid)[laid.starts[1:] - 1]
    return severity, _find_chances(student, severity)


def _find_chances(student: StoredStudent, severity: Reals) -> Reals:
    with np.errstate(over="ignore"):
        chances: Reals = 1 / (1 + np.exp(-(severity - student.alarm) / student.spread))
    return chances


def _write_rules(
    lesson: Lesson, targets: Reals, cutoffs: Mapping[str, tuple[float, ...]]
) -> tuple[list[str], dict[str, Any] | None]:
    """The features that say most of the targets, at most 20, and the body of a RuleFit on them."""
    rows = lesson.asked[:: max(1, -(-len(lesson.asked) // MOST_ROWS))]
    truth, task = targets[rows], lesson.laid.task
    seen = _in_units(lesson.features, task)[rows]
    names = _name_features(task)
    told_apart = [
        len(np.unique(np.searchsorted(cutoffs[name.rsplit(" ", 1)[0]], seen[:, place], side="right"))) > 1
        for place, name in enumerate(names)
    ]
    features = _choose_features(seen, truth, np.array(told_apart))
    if not features or truth.std() < FLAT:
        return [], None
    columns = {names[place]: Numbers(seen[:, place]) for place in features}
    margin = float(truth.std())
    ends = [float(truth.min()) - margin, float(truth.max()) + margin]
    bins = {names[place]: list(cutoffs[names[place].rsplit(" ", 1)[0]]) for place in features}
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


def read_features(student: StoredStudent, series: Series) -> list[dict[str, float]]:
    """The features of the last step of each stay, as the readable student sees them."""
    laid = lay_out(series, student.task, labelled=False)
    seen = _in_units(find_features(laid), student.task)[laid.starts[1:] - 1]
    places = {name: place for place, name in enumerate(_name_features(student.task))}
    return [{name: float(row[places[name]]) for name in student.features} for row in seen]
