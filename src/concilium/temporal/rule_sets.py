"""One list of rules for each client: what a hospital holds of its patients for rule discovery.

The distinct rules are kept once, canonical, and each client as row numbers among them, in the client's own order and
each once. A client may have no rules. A client's rules depend on that client alone (the learner sees to it); nothing
here looks across clients except that equal rules are stored once.

docs/methods.md, section 6.7.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import ConciliumError, FormulaError, RecordsError
from concilium.records.columns import Value, label
from concilium.records.row_hashes import Hashes, hash_contents, hash_texts
from concilium.records.series_times import count_steps
from concilium.records.table import Records, number_rows
from concilium.temporal.formula import Formula
from concilium.temporal.parsing import parse
from concilium.temporal.templates import fill, holes

if TYPE_CHECKING:
    from pandas import DataFrame

    from concilium.records.series import Series
    from concilium.temporal.learning import LearnedRule, RuleLearner

SHOWN = 60  # characters of a rule in an error
CHUNK = 1 << 20


class RuleSets:
    """`RuleSets([["G[0,6] HR >= 90", ...], [], ...])`: for each client its rules, as text or as formulas.

    `ids` names the clients (without it: 1, 2, ...). Equal meanings by the canonical form are one rule.
    """

    part: ClassVar[str] = "rules"

    def __init__(
        self, clients: Iterable[Iterable[str | Formula]], ids: Sequence[Value] | None = None
    ) -> None:
        reading = _Reading()
        members: list[int] = []
        starts = [0]
        for client in clients:
            members.extend(reading.number(client, len(starts)))
            starts.append(len(members))
        names: Sequence[Value | None] = range(1, len(starts)) if ids is None else ids
        if len(names) != len(starts) - 1:
            raise RecordsError(f"there are {len(starts) - 1} clients and {len(names)} ids")
        reading.refuse_bad_rules(names)
        self._set(tuple(reading.rules), np.array(starts, np.int64), np.array(members, np.int32), names)

    def _set(
        self,
        rules: tuple[Formula, ...],
        starts: NDArray[np.int64],
        members: NDArray[np.int32],
        ids: Sequence[Value | None],
    ) -> None:
        self.rules = rules
        """The distinct rules, canonical."""
        self.starts = starts
        """Client c has `members[starts[c]:starts[c + 1]]`."""
        self.members = members
        """Row numbers in `rules`, in each client's own order."""
        self.ids = ids

    @classmethod
    def learn(
        cls,
        series: Series,
        learner: RuleLearner,
        outcome: str | ArrayLike,
        length: int | str,
        every: int | str = 1,
        *,
        processes: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> RuleSets:
        """What the local learner finds for each patient of a series, from that patient's windows alone.

        `outcome`, `length` and `every` are those of `cut_windows`; who has no window has no rules.
        """
        from concilium.temporal.learning import cut_windows

        learned: dict[int, list[LearnedRule]] = {}
        if (series.lengths >= count_steps(length, series.step, "length")).any():
            learned = learner.learn_each(cut_windows(series, outcome, length, every), processes, progress)
        each = ([rule.formula for rule in learned.get(row, ())] for row in range(len(series)))
        rule_sets = cls(each)
        rule_sets.ids = list(series.ids)
        return rule_sets

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str] | DataFrame,
        table: str | None = None,
        *,
        patient: str = "patient",
        rule: str = "rule",
    ) -> RuleSets:
        """From a long table, one row for each rule of a client, from any source that `Records.read` takes.

        A client without rules has one row, in which the rule is missing.
        """
        records = Records.read(source, table, schema={patient: "code", rule: "code"})
        clients: dict[Value, list[str]] = {}
        for row, (name, text) in enumerate(
            zip(records.values(patient), records.values(rule), strict=True), start=1
        ):
            if name is None:
                raise RecordsError(f"row {row} has no {patient!r}")
            rules = clients.setdefault(name, [])
            if text is not None:
                rules.append(str(text))
        return cls(clients.values(), list(clients))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __repr__(self) -> str:
        return f"RuleSets({len(self)} clients, {len(self.members)} rules, {len(self.rules)} distinct)"

    def __getitem__(self, row: int) -> tuple[Formula, ...]:
        """The rules of one client, in its own order."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"there are {len(self)} clients")
        row %= len(self)
        return tuple(
            self.rules[rule] for rule in self.members[self.starts[row] : self.starts[row + 1]].tolist()
        )

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many rules each client has."""
        return np.diff(self.starts)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> RuleSets:
        """The clients of a mask or of row numbers, in that order, with their rules and nobody else's."""
        numbers = number_rows(rows, len(self))
        counts = self.counts[numbers]
        starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        cells = np.arange(starts[-1]) + np.repeat(self.starts[:-1][numbers] - starts[:-1], counts)
        held, members = np.unique(self.members[cells], return_inverse=True)
        selection = object.__new__(RuleSets)
        selection._set(
            tuple(self.rules[rule] for rule in held.tolist()),
            starts,
            members.astype(np.int32),
            [self.ids[row] for row in numbers.tolist()],
        )
        return selection

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids and rules, in this order of clients and in each client's order of rules."""
        content = hashlib.sha256(b"concilium/rule-sets@1\n")
        for client in self.ids:
            text = label(client).encode("utf-8", "surrogatepass")
            content.update(len(text).to_bytes(8, "little") + text)
        content.update(self.counts.astype("<i8").tobytes())
        hashes = np.frombuffer(
            b"".join(
                hashlib.sha256(str(rule).encode("utf-8", "surrogatepass")).digest() for rule in self.rules
            ),
            dtype=np.uint8,
        ).reshape(-1, 32)
        for first in range(0, len(self.members), CHUNK):
            content.update(hashes[self.members[first : first + CHUNK]].tobytes())
        return content.hexdigest()

    @cached_property
    def hashes(self) -> Hashes:
        """Of the rules of each client, in its own order."""
        owners = np.repeat(np.arange(len(self)), self.counts)
        places = (np.arange(len(self.members)) - self.starts[:-1][owners]).astype(np.uint64)
        kinds = hash_texts([str(rule) for rule in self.rules])[self.members]
        return hash_contents(places, kinds, owners, len(self))


class _Reading:
    """Rules as row numbers among the distinct ones; each text is parsed once, and what does not read is kept."""

    def __init__(self) -> None:
        self.rules: list[Formula] = []
        self._texts = _RuleTexts()
        self._number_of: dict[Formula, int] = {}
        self._seen: dict[Any, int] = {}
        self._problems: dict[Any, str] = {}
        self._bad_count = 0
        self._first_bad: tuple[int, int, Any] | None = None

    def number(self, client: Iterable[str | Formula], row: int) -> Iterable[int]:
        """The distinct rules of one client, counted from 1, in its order."""
        if isinstance(client, str | Formula) or not isinstance(client, Iterable):
            raise RecordsError(
                f"client {row} must be a list of rules, empty where there are none; got {client!r}"
            )
        seen = self._seen
        numbers: dict[int, None] = {}
        for place, rule in enumerate(client, start=1):
            code = seen.get(rule) if isinstance(rule, str | Formula) else self._note(rule, "it is no rule")
            if code is None:
                code = self._read(rule)
            if code < 0:
                self._bad_count += 1
                self._first_bad = self._first_bad or (row, place, rule)
            else:
                numbers[code] = None
        return numbers

    def _read(self, rule: str | Formula) -> int:
        try:
            formula = (self._texts.read(rule) if isinstance(rule, str) else rule).canonical()
        except ConciliumError as error:
            return self._note(rule, str(error).splitlines()[0])
        if formula.open_places:
            return self._note(rule, "it is a template with holes, and a client's rule has none")
        code = self._number_of.setdefault(formula, len(self.rules))
        if code == len(self.rules):
            self.rules.append(formula)
        self._seen[rule] = code
        return code

    def _note(self, rule: Any, problem: str) -> int:
        if isinstance(rule, str | Formula):
            self._seen[rule] = -1
        self._problems[str(rule)] = problem
        return -1

    def refuse_bad_rules(self, ids: Sequence[Value | None]) -> None:
        """An error that names the first rule that cannot be used, and says how many there are."""
        if self._first_bad is None:
            return
        row, place, rule = self._first_bad
        text = str(rule) if len(str(rule)) <= SHOWN else f"{str(rule)[:SHOWN]}..."
        count = "1 rule" if self._bad_count == 1 else f"{self._bad_count} rules"
        raise RecordsError(
            f"{count} cannot be read, first rule {place} of client {label(ids[row - 1])!r}, {text!r}: "
            f"{self._problems[str(rule)]}"
        )


_NUMERAL = re.compile(r"(?<![\w.])-?[0-9]+(?:\.[0-9]+)?(?![\w.])")
_UNUSUAL = re.compile(r"[?#`]")


def _read_bound(numeral: str) -> int | str:
    return int(numeral) if numeral.isdecimal() else numeral


_READERS: dict[str, Any] = {"number": float, "bound": _read_bound}


class _RuleTexts:
    """Remembers the forms that were read.

    Rules often differ in their numbers only: each form is parsed once, and the numbers are filled in.
    `_RuleTexts().read(text)` gives exactly what `parse(text)` gives, or raises what it raises: whatever is not
    plainly a form with numbers goes through `parse` itself.
    """

    def __init__(self) -> None:
        self._forms: dict[str, tuple[Formula, list[Any]] | None] = {}

    def read(self, text: str) -> Formula:
        """The formula that a text says."""
        if not isinstance(text, str) or _UNUSUAL.search(text):
            return parse(text)
        form = _NUMERAL.sub("?", text)
        if form not in self._forms:
            self._forms[form] = _read_form(form)
        entry = self._forms[form]
        numerals = _NUMERAL.findall(text)
        if entry is None or len(entry[1]) != len(numerals):
            return parse(text)
        template, readers = entry
        try:
            return fill(
                template, [reader(numeral) for reader, numeral in zip(readers, numerals, strict=True)]
            )
        except FormulaError:
            return parse(text)


def _read_form(form: str) -> tuple[Formula, list[Any]] | None:
    """The template, and how to read the text of what fills each hole; None where a hole is no number or bound."""
    try:
        template = parse(form)
    except FormulaError:
        return None
    kinds = [hole.kind for hole in holes(template)]
    return (template, [_READERS[kind] for kind in kinds]) if set(kinds) <= set(_READERS) else None
