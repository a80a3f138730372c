"""Who is held back from learning, and how a model does on them (docs/methods.md, section 1.14).

Leaving out a site asks how a model serves a hospital that had no part in it; a holdout asks how it serves the
next patient of a hospital that had. All of this is a simulation's privilege: the records of the left-out site
are at hand, and predictions are made and compared in this process, past any gate. Real hospitals evaluate locally and
release counts through their own gates (folds.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.evaluation.metrics import Figures, measure, measure_numbers
from concilium.models.method import Method
from concilium.models.threshold import Decided
from concilium.protocol.cohort import read_numbers
from concilium.protocol.schema import name_rest
from concilium.records.columns import Coded, Value, label
from concilium.records.patients import Patients
from concilium.records.query import Query
from concilium.records.table import Records
from concilium.trees.ensemble import deal_bands


@dataclass(frozen=True)
class Fold:
    """One turn: the model of the sites in `learn` is measured at the sites in `left_out`."""

    left_out: tuple[str, ...]
    learn: tuple[str, ...]


class Predictions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model said of the patients of one site, beside what happened; probabilities follow `classes`, of which
    there are none where a number is predicted. If asked for, `soft` are the same where nothing is certain, and
    `decided` is the threshold at which the positive class was predicted."""

    site: str
    classes: tuple[Value, ...]
    truth: list[Value]
    predicted: list[Value]
    probabilities: list[list[float]]
    soft: list[list[float]] = []
    decided: Decided | None = None


class FoldResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one model said at the sites it was measured at, and what making it took."""

    left_out: tuple[str, ...]
    predictions: list[Predictions]
    rounds: int
    bytes: int
    seconds: float


def leave_sites_out(sizes: Mapping[str, int]) -> list[Fold]:
    """Every site left out once, in the order given."""
    return _leave_groups_out([(name,) for name in sizes])


def leave_bands_out(sizes: Mapping[str, int], bands: int) -> list[Fold]:
    """Bands of sites ("mega-hospitals") left out in turn (trees/ensemble.py)."""
    if bands > len(sizes):
        raise StudyError(f'leave_out = "band:{bands}" needs at least {bands} sites; there are {len(sizes)}')
    return _leave_groups_out(deal_bands(sizes, bands))


def deal_folds(sizes: Mapping[str, int], bands: int | None) -> list[Fold]:
    """Every site left out in turn, or so many bands of them."""
    return leave_sites_out(sizes) if bands is None else leave_bands_out(sizes, bands)


def _leave_groups_out(groups: Sequence[tuple[str, ...]]) -> list[Fold]:
    """A fold for every group of sites."""
    if len(groups) < 2:
        raise StudyError("leaving a site out needs at least two sites, so that one is left to learn from")
    everyone = [name for group in groups for name in group]
    return [Fold(group, tuple(name for name in everyone if name not in set(group))) for group in groups]


def hold_out(rows: int, share: float, site: str, division: str = "") -> NDArray[np.bool_]:
    """Which rows of a site are held back: the given share of them, at least one and never all.

    Rows are ordered by the SHA-256 of division, site and row number, and the first of that order are held back: no
    random state, the same rows for everyone and in every study, whatever it is called; another division, another draw.
    """
    if rows < 2:
        raise StudyError(f"site {site!r} has {rows} patients: too few to hold some back")
    prefix = hashlib.sha256(f"{division}\n{site}\n".encode())
    ranks = []
    for row in range(rows):
        ticket = prefix.copy()
        ticket.update(str(row).encode())
        ranks.append(ticket.digest())
    count = min(max(round(share * rows), 1), rows - 1)
    mask = np.zeros(rows, dtype=np.bool_)
    mask[sorted(range(rows), key=ranks.__getitem__)[:count]] = True
    return mask


def find_classes(tables: Iterable[Records], target: str) -> list[Value]:
    """All values of the target, numbers by size, then text by text."""
    # By label, since True and 1 are one thing to a set and two to a study.
    values = {label(value): value for table in tables for value in table.values(target) if value is not None}
    numbers = sorted(value for value in values.values() if not isinstance(value, str))
    return [*numbers, *sorted(value for value in values.values() if isinstance(value, str))]


def set_apart(classes: Sequence[Value], positive: Value) -> list[Value]:
    """The classes for a method that tells one value from all others: two values as they are, of more the rest first."""
    return list(classes) if len(classes) <= 2 else [name_rest(positive), positive]


def is_set_apart(classes: Sequence[Value]) -> bool:
    """Whether these classes are one value and all others together."""
    return len(classes) == 2 and label(classes[0]) == name_rest(classes[1])


def find_column(classes: Sequence[Value]) -> Callable[[Value | None], int]:
    """Which of the classes a value of the target belongs to."""
    columns = {label(value): column for column, value in enumerate(classes)}
    if is_set_apart(classes):
        return lambda value: columns.get(label(value), 0)
    return lambda value: columns[label(value)]


def complete(records: Records, names: Iterable[str]) -> Records:
    """The records with every other named column as missing: what a site that never asked it would enter."""
    absent = dict.fromkeys(names, Coded(np.zeros(len(records), dtype=np.uint8), ()))
    return Records({**absent, **{name: records[name] for name in records.names}})


def select_patients(model: Method[Any], records: Records) -> Records:
    """The patients whom a model is about: its query selects them, and their outcome is known."""
    has_outcome = np.array([value is not None for value in records.values(model.target)], dtype=np.bool_)
    return records.take(Query.parse(model.query).mask(records) & has_outcome)


def predict_at(
    site: str, model: Method[Any], records: Records, classes: Sequence[Value], *, soft: bool = False
) -> Predictions:
    """What the model says of the patients at a site whom it is about; with `soft`, also what the site would adapt.

    Where the model tells one value from all others, these two are the classes, whatever values the target has.
    """
    patients = select_patients(model, records)
    truth: Sequence[Value | None] = patients.values(model.target)
    if model.followed is not None:
        found = model.find_outcomes(Patients(table=records))
        patients, truth = found.asked, found.truth
    if not model.classes_:
        predictions = model.predict(patients).tolist() if len(patients) else []
        measured = read_numbers(model.target, patients[model.target], patients.room)
        return Predictions(site, (), measured.tolist(), predictions, [])
    if is_set_apart(model.classes_) and not is_set_apart(classes):
        classes = model.classes_
    column = find_column(classes)
    probabilities, softened = (np.zeros((len(patients), len(classes))) for _ in range(2))
    places = [column(value) for value in model.classes_]
    if len(patients):
        probabilities[:, places] = model.predict_proba(patients)
        if soft:
            softened[:, places] = model.soft_proba(patients)
    predicted = model.predict(patients).tolist() if len(patients) else []
    return Predictions(
        site=site,
        classes=tuple(classes),
        truth=[classes[column(value)] for value in truth],
        predicted=[classes[column(value)] for value in predicted],
        probabilities=probabilities.tolist(),
        soft=softened.tolist() if soft else [],
        decided=model.decided if soft else None,
    )


def measure_model(
    model: Method[Any],
    seconds: float,
    patients: Mapping[str, Records],
    *,
    classes: Sequence[Value],
    left_out: tuple[str, ...] = (),
    soft: bool = False,
) -> FoldResult:
    """What a model says of these patients, by site; `seconds` is how long it took to make."""
    predictions = [predict_at(site, model, table, classes, soft=soft) for site, table in patients.items()]
    return FoldResult(left_out, predictions, model.card.rounds, model.card.bytes, round(seconds, 3))


def figures(predictions: Sequence[Predictions], positive: Value | None) -> Figures:
    """The figures over the patients of these sites taken together: pooled predictions, no mean of means."""
    if not predictions[0].classes:
        return measure_numbers(*join_numbers(predictions))
    return measure(*join_classes(predictions), positive)


def join_classes(
    predictions: Sequence[Predictions],
) -> tuple[list[Value], list[Value], NDArray[np.float64], tuple[Value, ...]]:
    """The true and the predicted classes of the patients of all these sites, how likely each class was said to be, and
    the classes."""
    classes = predictions[0].classes
    truth = [value for at_site in predictions for value in at_site.truth]
    predicted = [value for at_site in predictions for value in at_site.predicted]
    rows = [row for at_site in predictions for row in at_site.probabilities]
    return truth, predicted, np.array(rows).reshape(len(truth), len(classes)), classes


def join_numbers(predictions: Iterable[Predictions]) -> tuple[list[float], list[float]]:
    """What happened to the patients of all these sites and what was predicted, where that is a number."""
    pairs = [pair for at_site in predictions for pair in zip(at_site.truth, at_site.predicted, strict=True)]
    return [float(true) for true, _ in pairs], [float(guess) for _, guess in pairs]
