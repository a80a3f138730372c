"""The student: a network and readable rules that learn from what ensembles said of public stays, and then ship.

Claim: it is made of released labels and public stays alone, so that nothing of it costs more than the labels did,
however often it is asked. docs/methods.md, section 8.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.experts.expert_task import NetworkSettings
from concilium.experts.network import open_network
from concilium.experts.patient_windows import LaidOut, lay_out
from concilium.experts.smoothing import smooth
from concilium.experts.student_body import StoredStudent, store
from concilium.experts.window_features import find_features, in_units, name_features
from concilium.policy.policy import Policy
from concilium.protocol.card import Card
from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.series import Series
from concilium.records.table import Numbers, Records
from concilium.registry import METHODS, load

if TYPE_CHECKING:
    from concilium.models.method import Method

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
    features, readable = write_rules(lesson, lesson.targets, cutoffs)
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
        weights=store(network.train(windows)),
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
    return severity, find_chances(student, severity)


def find_chances(student: StoredStudent, severity: Reals) -> Reals:
    with np.errstate(over="ignore"):
        chances: Reals = 1 / (1 + np.exp(-(severity - student.alarm) / student.spread))
    return chances


def write_rules(
    lesson: Lesson, targets: Reals, cutoffs: Mapping[str, tuple[float, ...]]
) -> tuple[list[str], dict[str, Any] | None]:
    """The features that say most of the targets, at most 20, and the body of a RuleFit on them."""
    rows = lesson.asked[:: max(1, -(-len(lesson.asked) // MOST_ROWS))]
    truth, task = targets[rows], lesson.laid.task
    seen = in_units(lesson.features, task)[rows]
    names = name_features(task)
    told_apart = [
        len(np.unique(np.searchsorted(cutoffs[name.rsplit(" ", 1)[0]], seen[:, place], side="right"))) > 1
        for place, name in enumerate(names)
    ]
    features = choose_features(seen, truth, np.array(told_apart))
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


def choose_features(seen: Reals, truth: Reals, told_apart: NDArray[np.bool_]) -> list[int]:
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
    seen = in_units(find_features(laid), student.task)[laid.starts[1:] - 1]
    places = {name: place for place, name in enumerate(name_features(student.task))}
    return [{name: float(row[places[name]]) for name in student.features} for row in seen]
