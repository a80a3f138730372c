"""What comes of a question about a patient; how its values are read; and what to measure next."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError, RecordsError, nearest
from concilium.models.explanation import LEAST_NAME, Explanation, say_risk
from concilium.models.prediction import Entries, read_patient
from concilium.records.clinical_ranges import find_range
from concilium.records.columns import label, say_plain
from concilium.records.dictionary import DictionaryEntry, describe_entry
from concilium.records.grammar import read_number
from concilium.records.query import Query
from concilium.records.units import FACTORS_OF, find_likely_units, read_amount
from concilium.trees.naive_bayes import NaiveBayesBody

LEAST_MOVED = 0.02
"""A measurement that cannot move a risk by two percentage points is not worth asking for."""


@dataclass(frozen=True, repr=False)
class ConsultationAnswer(Explanation):
    """An explanation that says of whom it is.

    population    the patients who are like this one, in words
    matching      between which numbers of patients they are; the same number twice where there is no noise
    narrower      the populations that had too few patients, and how many: it was widened from one to the next
    measure_next  the attribute, not entered, that would move the answer most; None where there is none
    hospitals     those whose patients are counted
    missing       those that were asked and are not among them, each with why
    resources     of a FHIR bundle, what each attribute was read from
    too_old       attributes whose latest resource is too old to be used, with it
    """

    population: str = ""
    matching: tuple[int, int] = (0, 0)
    narrower: Mapping[str, int] = field(default_factory=dict)
    measure_next: str | None = None
    hospitals: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    too_old: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Following:
    """What to measure next: by how much the risk of the predicted class moves on average, and how far it may."""

    name: str
    moves: float
    risk: float
    lowest: float
    highest: float

    def say(self, dictionary: Entries) -> str:
        """It in a sentence, with the meaning of the name where the dictionary has one."""
        low, high = say_risk(self.lowest), say_risk(self.highest)
        entry = dictionary.get(self.name)
        meant = f" ({entry.label})" if entry is not None and entry.label not in ("", self.name) else ""
        return (
            f"Measure {self.name}{meant} next: of what was not entered it tells most. The {say_risk(self.risk)} "
            f"could become {low} to {high}."
        )


def find_next(
    learned: NaiveBayesBody,
    reached: Sequence[int],
    patient: Mapping[str, Any],
    said: Explanation,
) -> Following | None:
    """The attribute that was not entered and would move the answer most on average, over the values that such a patient
    may have; None where there is none, or where it would hardly change the answer."""
    best: Following | None = None
    if said.probability is None:
        return None
    place = [label(value) for value in learned.classes].index(label(said.prediction))
    score = np.log(learned.class_shares)
    evidence = [learned.evidence(number) for number in range(len(learned.attributes))]
    score = score + sum((evidence[number][node] for number, node in enumerate(reached)), np.zeros_like(score))
    now = _normalise(score)
    for number, name in enumerate(learned.names):
        if name in patient:
            continue
        counts = np.array([node.counts for node in learned.attributes[number]], dtype=np.float64)[1:]
        given = counts / np.maximum(counts.sum(axis=0), 1e-9)
        likely = given @ now  # how likely each value is for this patient
        after = np.array([_normalise(score + row)[place] for row in evidence[number][1:]])
        moves = float(likely @ np.abs(after - now[place]))
        if best is None or moves > best.moves:
            held = after[likely > 0.01]
            if len(held):
                best = Following(name, moves, float(now[place]), float(held.min()), float(held.max()))
    return None if best is None or best.highest - best.lowest < LEAST_MOVED else best


def _normalise(score: NDArray[np.float64]) -> NDArray[np.float64]:
    likely: NDArray[np.float64] = np.exp(score - score.max())
    likely /= likely.sum()
    return likely


def read_request(
    patient: Mapping[str, Any],
    grid: Collection[str],
    predictors: Collection[str],
    dictionary: Entries,
    query: str = "",
    *,
    target: str = "",
    numbers: Collection[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """A patient's values by the dictionary, and the names that nobody asks about; `numbers` are attributes that are
    numbers, whether or not the dictionary has them.

    ModelError for the first value that is impossible, before anything is sent.
    """
    known = {*grid, *predictors}
    asked = {*known, *Query.parse(query).attributes}
    read: dict[str, Any] = {}
    unused: list[str] = []
    for name, value in read_patient(patient).items():
        if name == target:
            raise ModelError(f"{name!r} is the outcome that is asked about: leave it out")
        entry = dictionary.get(name)
        if name not in asked:
            found = [
                other
                for other in asked
                if dictionary.get(other) and dictionary[other].label.casefold() == name.casefold()
            ]
            if len(found) != 1:
                if hint := nearest(name, asked - set(patient)):
                    raise ModelError(f"nobody is asked about {name!r}{hint}")
                unused.append(name)
                continue
            name, entry = found[0], dictionary.get(found[0])
        if name in read:
            raise ModelError(f"{name!r} is given twice")
        read[name] = read_value(name, value, entry, name in numbers)
    if grid and all(read.get(name) is None for name in grid):
        raise ModelError(
            f"nothing says which patients are like this one: give {' or '.join(grid)}, such as {next(iter(grid))}=..."
        )
    return read, unused


def read_value(name: str, value: Any, entry: DictionaryEntry | None, is_number: bool = False) -> Any:
    """A value as a model has it, by the dictionary; a number may carry its unit."""
    if value is None:
        return None
    if isinstance(value, list | dict):
        raise ModelError(f"{name} must be one value; got {value!r}")
    if entry is not None and entry.type != "number":
        found = entry.read(label(value))
        if not entry.lists(found):
            raise ModelError(f"{name} = {say_plain(value)} is no value of it: {describe_entry(entry)}")
        return found
    clinical = find_range(name) if entry is None and len(name) >= LEAST_NAME else None
    if entry is None and clinical is None and not is_number:
        return value
    unit = entry.unit if entry is not None else clinical.unit if clinical is not None else ""
    number = _read_number(name, value, unit, entry)
    limits = (
        (clinical.lowest, clinical.highest)
        if clinical is not None
        else entry.range
        if entry is not None
        else None
    )
    if limits is not None and not limits[0] <= number <= limits[1]:
        raise ModelError(
            f"{name} = {say_plain(value)} is impossible: {limits[0]:g} to {limits[1]:g}{f' {unit}' if unit else ''}. "
            f"Check the value{_find_unit(name, value, unit, limits, entry)}"
        )
    return number


def _find_unit(
    name: str, value: Any, unit: str, limits: tuple[float, float], entry: DictionaryEntry | None
) -> str:
    """The unit in which a number without one would be possible, as it may be entered; nothing where there is none."""
    number = read_number(str(value))
    if number is None or not FACTORS_OF.get(unit, True):
        return ""
    found = find_likely_units(number, unit, limits, None if entry is None else entry.molar_mass)
    return f', or write "{name}={number:g} {found[0]}" if it is in {found[0]}' if found else ""


def _read_number(name: str, value: Any, unit: str, entry: DictionaryEntry | None) -> float:
    if isinstance(value, bool):
        raise ModelError(f"{name} must be a number; got {say_plain(value)}")
    if isinstance(value, int | float):
        return value
    try:
        return read_amount(str(value), unit, name, None if entry is None else entry.molar_mass)
    except RecordsError as error:
        raise ModelError(str(error)) from None
