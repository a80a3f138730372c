"""An inverted index of rule sets: which clients have a rule that a template matches, exactly as `template.matches`.

Every rule has one template of each level (rule_grammar.py), so that thousands of these are counted in one pass. Any
other template is compared with each distinct rule.

Claim. `count` and `list_templates` with `most` let one client, whatever its rules, into at most so many of the counts
asked for: which ones depends on the question and on that client's own rules alone, so that a client added or removed
moves the vector of counts by at most sqrt(most) in L2.

docs/methods.md, section 6.7.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, update_wrapper
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.privacy.local_reports import ListedAnswers
from concilium.temporal.formula import Formula, Limit
from concilium.temporal.rule_grammar import (
    LEVELS,
    SKELETON,
    STRUCTURE,
    VARIABLES,
    Bins,
    RuleGrammar,
    arrange,
    find_level,
)
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.templates import match_canonical

Asked = TypeVar("Asked")
Found = TypeVar("Found")


class work_out_once(Generic[Asked, Found]):
    """The same function, which remembers the last few results; whoever asks meanwhile waits for them.

    Several sites of one process often ask the same at the same time: one of their threads works it out for all.
    """

    def __init__(self, find: Callable[[Asked], Found]) -> None:
        self._remembered, self._lock = lru_cache(maxsize=8)(find), threading.Lock()
        update_wrapper(self, find)

    def __call__(self, asked: Asked) -> Found:
        with self._lock:
            return self._remembered(asked)

    def forget(self) -> None:
        """As if nothing had been asked."""
        self._remembered.cache_clear()


@compiled(boundscheck=False)
def _mark_clients(
    rules: NDArray[np.bool_],
    starts: NDArray[np.int64],
    clients: NDArray[np.int32],
    marks: NDArray[np.bool_],
) -> None:
    """Mark whoever has one of the rules; rule r is held by `clients[starts[r]:starts[r + 1]]`."""
    for rule in range(len(rules)):
        if rules[rule]:
            for place in range(starts[rule], starts[rule + 1]):
                marks[clients[place]] = True


@compiled(boundscheck=False)
def _list_entries(
    starts: NDArray[np.int64],
    members: NDArray[np.int32],
    entry_starts: NDArray[np.int64],
    entries: NDArray[np.int32],
    columns: int,
    most: int,
    begins: NDArray[np.int64],
    chosen: NDArray[np.int32],
) -> int:
    """The distinct columns of each client, the first `most` in the order of its rules, one client after the other.

    Rule r has the columns `entries[entry_starts[r]:entry_starts[r + 1]]`. Client c gets
    `chosen[begins[c]:begins[c + 1]]`; the return value is how many there are of all.
    """
    seen = np.full(columns, -1, dtype=np.int64)
    count = 0
    for client in range(len(starts) - 1):
        begins[client] = count
        own = 0
        for place in range(starts[client], starts[client + 1]):
            rule = members[place]
            for entry in range(entry_starts[rule], entry_starts[rule + 1]):
                column = entries[entry]
                if own < most and seen[column] != client:
                    seen[column] = client
                    chosen[count] = column
                    count += 1
                    own += 1
    begins[len(starts) - 1] = count
    return count


@work_out_once
def _find_places(templates: tuple[Formula, ...]) -> tuple[Mapping[Formula, list[int]], int | None]:
    """Where in a question each canonical template stands, and their level. Sites of one process are asked the same, and
    a question has tens of thousands of them."""
    places: dict[Formula, list[int]] = {}
    for place, template in enumerate(templates):
        places.setdefault(template.canonical(), []).append(place)
    return places, find_level(places)


class TemplateIndex:
    """`TemplateIndex(rule_sets).match(template)`: whether each client has a rule that the template matches."""

    def __init__(self, rule_sets: RuleSets) -> None:
        self.rule_sets = rule_sets

    @cached_property
    def _holders(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """For each rule where its clients begin, and the clients, one rule after the other."""
        rule_sets = self.rule_sets
        owners = np.repeat(np.arange(len(rule_sets), dtype=np.int32), rule_sets.counts)
        counts = np.bincount(rule_sets.members, minlength=len(rule_sets.rules))
        starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        return starts, owners[np.argsort(rule_sets.members, kind="stable")]

    @cached_property
    def _levels(self) -> Mapping[int, tuple[dict[Formula, int], NDArray[np.int32]]]:
        """For each level the templates that occur, and the one of each distinct rule."""
        levels: dict[int, tuple[dict[Formula, int], NDArray[np.int32]]] = {}
        structures: dict[Formula, int] = {}
        of_rule = [
            structures.setdefault(arrange(rule, STRUCTURE)[0], len(structures))
            for rule in self.rule_sets.rules
        ]
        finest = np.array(of_rule, dtype=np.int32)
        levels[STRUCTURE] = structures, finest
        for level in (VARIABLES, SKELETON):
            templates: dict[Formula, int] = {}
            of_structure = [
                templates.setdefault(arrange(form, level)[0], len(templates)) for form in structures
            ]
            levels[level] = templates, np.array(of_structure, dtype=np.int32)[finest]
        return levels

    def find_templates(self, level: int) -> tuple[Formula, ...]:
        """The templates of a level that occur among the rules. For the holder's own eyes: it is exact."""
        assert level in LEVELS
        return tuple(self._levels[level][0])

    def find_reached(self, grammar: RuleGrammar) -> NDArray[np.bool_]:
        """Whether each client has a rule that a search of the grammar can come to. For the holder's own eyes."""
        present, of_rule = self._levels[STRUCTURE]
        produced = np.array([grammar.produces(form) for form in present], dtype=np.bool_)
        marks = np.zeros(len(self.rule_sets), dtype=np.bool_)
        if len(present):
            _mark_clients(produced[of_rule], *self._holders, marks)
        return marks

    def match(self, template: Formula) -> NDArray[np.bool_]:
        """Whether each client has a rule that the template matches."""
        marks = np.zeros(len(self.rule_sets), dtype=np.bool_)
        _mark_clients(self.match_rules(template), *self._holders, marks)
        return marks

    def match_rules(self, template: Formula) -> NDArray[np.bool_]:
        """Whether the template matches each of the distinct rules.

        Every rule has one template of each level, so that those of a level, and whole rules, are looked up.
        """
        wanted = template.canonical()
        level = find_level([wanted])
        matched = np.zeros(len(self.rule_sets.rules), dtype=np.bool_)
        if level is not None:
            present, of_rule = self._levels[level]
            matched |= of_rule == present.get(wanted, -1)
        elif wanted.open_places:
            matched[:] = [match_canonical(wanted, rule) for rule in self.rule_sets.rules]
        elif wanted in self._numbers:
            matched[self._numbers[wanted]] = True
        return matched

    @cached_property
    def _numbers(self) -> Mapping[Formula, int]:
        """The row of each distinct rule."""
        return {rule: number for number, rule in enumerate(self.rule_sets.rules)}

    def count(self, templates: Sequence[Formula], most: int | None = None) -> NDArray[np.int64]:
        """How many clients match each template; with `most`, each client counts for at most so many of them."""
        entries = self.list_templates(templates, most)
        return np.bincount(entries.templates, minlength=len(templates)).astype(np.int64)

    def list_templates(self, templates: Sequence[Formula], most: int | None = None) -> ListedAnswers:
        """Which of the templates each client matches, by their place in the question, each once.

        In the order of the client's rules, and with `most` the first so many.
        """
        places, level = _find_places(tuple(templates))
        if level is None:
            rows, columns = self._match_each(places)
        else:
            present, of_rule = self._levels[level]
            numbers = np.full(len(present), -1, dtype=np.int64)
            for template, (place, *_) in places.items():
                if template in present:
                    numbers[present[template]] = place
            asked = numbers[of_rule] if len(present) else np.zeros(0, dtype=np.int64)
            rows = np.flatnonzero(asked >= 0)
            columns = asked[rows]
            for again, place in ((each[0], more) for each in places.values() for more in each[1:]):
                same = np.flatnonzero(asked == again)
                rows, columns = (
                    np.concatenate((rows, same)),
                    np.concatenate((columns, np.full(len(same), place))),
                )
        return self._list(rows, columns, len(templates), most)

    def _match_each(self, places: Mapping[Formula, list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows, columns = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for template, each in places.items():
            matched = np.flatnonzero(self.match_rules(template))
            for place in each:
                rows.append(matched)
                columns.append(np.full(len(matched), place, dtype=np.int64))
        return np.concatenate(rows), np.concatenate(columns)

    def list_variables(self, names: Sequence[str], most: int | None = None) -> ListedAnswers:
        """Which of these variables the rules of each client speak of, by their place, each once."""
        places = {name: place for place, name in enumerate(names)}
        rows, columns = [], []
        for number, rule in enumerate(self.rule_sets.rules):
            for name in {part.variable for part in rule.walk() if isinstance(part, Limit)}:
                if name in places:
                    rows.append(number)
                    columns.append(places[name])
        return self._list(np.array(rows, np.int64), np.array(columns, np.int64), len(names), most)

    def list_parameters(
        self, structures: Sequence[Formula], bins: Sequence[Sequence[Bins]], most: int | None = None
    ) -> ListedAnswers:
        """In which bin each parameter of each structure lies for each client: one column for each bin, structure by
        structure and parameter by parameter. With `most`, a client has at most so many columns.

        A client with several rules of one structure has the bins of all of them, each once.
        """
        present, of_rule = self._levels[STRUCTURE]
        rows, columns = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        offset = 0
        for structure, own in zip(structures, bins, strict=True):
            number = present.get(structure.canonical())
            held = np.flatnonzero(of_rule == number) if number is not None else np.zeros(0, dtype=np.int64)
            values = [arrange(self.rule_sets.rules[rule], STRUCTURE)[1] for rule in held.tolist()]
            first = 0
            for each in own:
                if values:
                    rows.append(held)
                    columns.append(offset + each.place([_take(row, first, each.holes) for row in values]))
                offset += len(each)
                first += each.holes
        return self._list(np.concatenate(rows), np.concatenate(columns), offset, most)

    def count_parameters(
        self, structures: Sequence[Formula], bins: Sequence[Sequence[Bins]], most: int | None = None
    ) -> NDArray[np.int64]:
        """How many clients have each bin of each parameter of each structure, in one vector, as `list_parameters`."""
        entries = self.list_parameters(structures, bins, most)
        size = sum(len(each) for own in bins for each in own)
        return np.bincount(entries.templates, minlength=size).astype(np.int64)

    def _list(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], size: int, most: int | None
    ) -> ListedAnswers:
        """What each client gets where rule `rows[i]` has column `columns[i]`."""
        rule_sets = self.rule_sets
        order = np.lexsort((columns, rows))
        counts = np.bincount(rows, minlength=len(rule_sets.rules))
        entry_starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        entries = columns[order].astype(np.int32)
        room = int(counts[rule_sets.members].sum()) if len(rule_sets.members) else 0
        chosen = np.empty(room, dtype=np.int32)
        begins = np.zeros(len(rule_sets) + 1, dtype=np.int64)
        limit = room if most is None else most
        length = _list_entries(
            rule_sets.starts, rule_sets.members, entry_starts, entries, size, limit, begins, chosen
        )
        return ListedAnswers(begins, chosen[:length])


def _take(row: tuple[Any, ...], first: int, holes: int) -> Any:
    """What fills one open place of a rule, or several that belong together."""
    return row[first] if holes == 1 else row[first : first + holes]
