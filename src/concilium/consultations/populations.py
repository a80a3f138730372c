"""Which patients are like this one: a population of cells of the grid, widened until enough of them match.

The order is the same for everybody, and stated: first the patient's own cell; then the neighbouring bands of each
number of the grid; then one attribute of the grid after the other is dropped, the last one first; at the end everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from concilium.consultations.cube import Chosen, CubeBody, CubeColumn
from concilium.models.intervals import WITHIN_95
from concilium.models.prediction import Entries
from concilium.protocol.attributes import say_edge
from concilium.records.columns import label
from concilium.records.dictionary import say_value

EVERYBODY = "all patients"


@dataclass(frozen=True)
class MatchingPatients:
    """Cells of the grid, how many patients they have, the noise of that, and the narrower ones that had too few."""

    chosen: Chosen
    patients: float
    noise: float
    narrower: tuple[MatchingPatients, ...] = ()

    @property
    def interval(self) -> tuple[int, int]:
        """Between which numbers of patients the truth is, as far as noise hides it."""
        reach = WITHIN_95 * self.noise
        return max(round(self.patients - reach), 0), max(round(self.patients + reach), 0)

    def say_patients(self) -> str:
        """How many patients they are, in words."""
        if not self.noise:
            return f"{self.patients:.0f} patient{'' if self.patients == 1 else 's'}"
        low, high = self.interval
        return f"about {max(self.patients, 0):.0f} patients ({low} to {high}: noise hides the exact number)"


def widen(body: CubeBody, cells: Chosen) -> Iterator[Chosen]:
    """The populations that are looked at for a patient in these cells, the narrowest first (None: was not entered)."""
    yield cells
    chosen = list(cells)
    for place, one in enumerate(body.by):
        attribute, own = one.attribute, chosen[place]
        if not one.edges or own is None or own[0] < attribute.first:
            continue
        near = range(max(own[0] - 1, attribute.first), min(own[0] + 2, attribute.size))
        chosen[place] = tuple(near)
        yield tuple(chosen)
    for place in reversed(range(len(chosen))):
        if chosen[place] is not None:
            chosen[place] = None
            yield tuple(chosen)


def find_population(body: CubeBody, cells: Chosen) -> MatchingPatients:
    """The first of these populations with enough patients, beyond what noise hides; everybody where none has."""
    narrower: list[MatchingPatients] = []
    for chosen in widen(body, cells):
        found = MatchingPatients(chosen, *body.count(chosen), tuple(narrower))
        if found.patients - found.noise >= body.enough:
            break
        narrower.append(found)
    return found


def say_cells(body: CubeBody, chosen: Chosen, dictionary: Entries) -> str:
    """A population in words: `sex male, age 60 to below 70`."""
    said = [
        _say_side(one, cells, dictionary)
        for one, cells in zip(body.by, chosen, strict=True)
        if cells is not None
    ]
    return ", ".join(said) or EVERYBODY


def _say_side(one: CubeColumn, cells: tuple[int, ...], dictionary: Entries) -> str:
    attribute, entry = one.attribute, dictionary.get(one.name)
    places = [cell - attribute.first for cell in cells]
    if places[0] < 0:
        return f"{one.name} missing"
    if one.edges:
        edges = [say_edge(edge, date=one.date) for edge in one.edges]
        low, high = places[0], places[-1]
        if low == 0 and high >= len(edges):
            return f"any {one.name}"
        if low == 0:
            return f"{one.name} below {edges[high]}"
        return (
            f"{one.name} {edges[low - 1]} or above"
            if high >= len(edges)
            else f"{one.name} {edges[low - 1]} to below {edges[high]}"
        )
    named = [
        say_value(one.values[place], entry) if place < len(one.values) else "of another value"
        for place in places
    ]
    return f"{one.name} {' or '.join(map(label, named))}"
