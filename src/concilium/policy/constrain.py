"""Constraint graphs on a site's own records, before any question sees a patient (docs/methods.md, section 3.4).

Every patient is a transaction of one node, whose attributes are the columns, and no edges: the engine of
`matching.py` decides, once for every way in which a patient can fulfil the conditions, and functions run once for
every value of a column, so that the cost is a few passes over the columns that rules mention. Who is protected: the
patients, from everyone who asks the site, as far as rules name what identifies them. It is a filter, not a
guarantee. A test holds it to the engine, patient by patient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import PolicyError
from concilium.policy.actions import ConstraintGraphs, Deed, GraphStep, TransactionNode
from concilium.policy.definitions import Definition
from concilium.policy.functions import Call
from concilium.policy.judging import Unfit, comparer, is_listed, judge_predicate
from concilium.policy.language import Eliminate, Node, Substitute
from concilium.policy.matching import match_alone, own_condition
from concilium.records.coding import Place, code_dictionary, unify
from concilium.records.columns import EXACT, Coded, Column, Numbers, Value, label
from concilium.records.expression import (
    FALSE,
    TRUE,
    UNKNOWN,
    And,
    AttributeComparison,
    Comparison,
    Expression,
    ListMembership,
    Missing,
    Not,
    Or,
    Predicate,
    Range,
    bounds,
    literals,
    predicates,
)
from concilium.records.grammar import all_labels, read_text
from concilium.records.table import Records

MOST_NAMED = 5
Mask = NDArray[np.bool_]
Truth = NDArray[np.uint8]


@dataclass(frozen=True)
class Constrained:
    """What the rules leave of a table.

    `rows` are the patients who are left, by their row in the original table. `eliminated` names the attributes
    that no longer exist and the graph behind each; `replaced` those to which a function was applied for everyone.
    `idle` names the graphs that concern no patient, which is a slip more often than not.
    """

    columns: Mapping[str, Column]
    rows: NDArray[np.int64]
    eliminated: Mapping[str, str]
    replaced: frozenset[str]
    idle: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Reach:
    """The patients whom a rule reaches; `everyone` where that was decided without a look at any of them."""

    mask: Mask
    everyone: bool


@dataclass
class _Work:
    """A column while it is being changed: codes (0: missing) into values of any kind."""

    codes: NDArray[np.int64]
    values: list[Value]
    replaced: bool = False

    @classmethod
    def of(cls, column: Column) -> _Work:
        if isinstance(column, Coded):
            # Each as it is by itself: a function must not change 5 in another way because somebody else has text.
            values = [read_text(v) if column.stated and isinstance(v, str) else v for v in column.values]
            return cls(column.codes.astype(np.int64), values)
        return cls(*_number_off(column.numbers, column.numbers))

    def change(self, reach: _Reach, outcome: Callable[[Value], Value | None]) -> None:
        """Put the outcome in the place of every value that a reached patient has."""
        codes = np.unique(self.codes[reach.mask])
        table = np.arange(len(self.values) + 1)
        for code in codes[codes > 0].tolist():
            table[code] = self._code(outcome(self.values[code - 1]))
        self.codes = np.where(reach.mask, table[self.codes], self.codes)

    def change_each(
        self, reach: _Reach, others: Sequence[_Work], outcome: Callable[..., Value | None]
    ) -> None:
        """The same, where the outcome also depends on what the patient has in other columns."""
        rows = np.flatnonzero(reach.mask & (self.codes > 0))
        keys = np.stack([self.codes[rows], *(work.codes[rows] for work in others)])
        combinations, places = np.unique(keys, axis=1, return_inverse=True)
        new = [
            self._code(outcome(self.values[code - 1], *(w.at(c) for w, c in zip(others, by, strict=True))))
            for code, *by in combinations.T.tolist()
        ]
        codes = self.codes.copy()
        codes[rows] = np.array(new, dtype=np.int64)[places.reshape(-1)] if len(rows) else 0
        self.codes = codes

    def at(self, code: int) -> Value | None:
        return self.values[code - 1] if code else None

    def _code(self, value: Value | None) -> int:
        if value is None or value != value:
            return 0
        self.values.append(value)
        return len(self.values)

    def finish(self, name: str, stated: bool) -> Column:
        """The column that the values make up, coded as if they had been read from a file."""
        present = np.bincount(self.codes, minlength=len(self.values) + 1)[1:] > 0
        values = unify([value if here else None for value, here in zip(self.values, present, strict=True)])
        return code_dictionary(self.codes, values, "code" if stated else None, Place("policy", name))


def _eliminate(
    columns: dict[str, Column], refusals: Mask, deeds: Sequence[tuple[str, Deed, _Reach]]
) -> dict[str, str]:
    """Take patients, columns and cells out; the columns that are gone, and by which rule."""
    eliminated: dict[str, str] = {}
    for rule_name, deed, reach in deeds:
        action = deed.action
        if not isinstance(action, Eliminate):
            continue
        if action.attribute is None:
            refusals |= reach.mask
        elif reach.everyone:
            eliminated.setdefault(action.attribute, rule_name)
            columns.pop(action.attribute, None)
        elif action.attribute in columns:
            columns[action.attribute] = _blank(columns[action.attribute], reach.mask)
    return eliminated


def constrain(records: Records, graphs: ConstraintGraphs) -> Constrained:
    """The table as its site's constraint graphs let it be known; PolicyError where a rule does not fit it."""
    graphs.require_secret()
    graphs.check(records.names)
    look = _Look(records)
    refusals = np.zeros(len(records), dtype=np.bool_)
    deeds: list[tuple[str, Deed, _Reach]] = []
    idle: list[str] = []
    for rule in graphs.rules:
        refused = np.zeros(0, dtype=np.bool_)
        if rule.refusal is not None:
            refused = look.all_exist(rule.name, rule.refusal)
            refusals |= refused
        rule_deeds = [(rule.name, *pair) for step in rule.changes for pair in look.reach(rule.name, step)]
        deeds += sorted(rule_deeds, key=lambda each: each[1].action.place)
        if len(records) and not refused.any() and not any(reach.mask.any() for _, _, reach in rule_deeds):
            idle.append(rule.name)
    works = _substitute(records, deeds)
    columns = {name: records[name] for name in records.names}
    for name, work in works.items():
        before = records[name]
        columns[name] = work.finish(name, isinstance(before, Coded) and before.stated)
    eliminated = _eliminate(columns, refusals, deeds)
    rows = np.flatnonzero(~refusals)
    if len(rows) < len(records) and columns:
        selection = Records(columns).take(rows)
        columns = {name: _forget_unused(selection[name]) for name in selection.names}
    replaced = frozenset(name for name, work in works.items() if work.replaced)
    return Constrained(columns, rows, eliminated, replaced, tuple(idle))


def explain_idle(records: Records, graphs: ConstraintGraphs, idle: Iterable[str]) -> list[str]:
    """Why graphs concern no patient of this table, as far as their conditions tell: for the hospital alone, since it
    names what patients have."""
    sentences = []
    for graph in graphs.graphs:
        if graph.name not in idle:
            continue
        about = [
            one for node in graph.nodes if node.condition is not None for one in predicates(node.condition)
        ]
        held = "; ".join(
            dict.fromkeys(f"{one.name.attribute} is {say_held(records[one.name.attribute])}" for one in about)
        )
        sentences.append(
            f"graph {graph.name} concerns no patient of this table{f' ({held})' if held else ''}: is it written as the "
            "table has it?"
        )
    return sentences


def say_held(column: Column) -> str:
    """The commonest values of a column, in words."""
    if isinstance(column, Numbers):
        known = column.numbers[~np.isnan(column.numbers)]
        return f"{known.min():g} to {known.max():g}" if known.size else "missing for everyone"
    counts = np.bincount(column.codes, minlength=len(column.values) + 1)[1:]
    order = [place for place in np.argsort(-counts, kind="stable") if counts[place]]
    names = [label(column.values[place]) for place in order]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more if names else "missing for everyone"


def _blank(column: Column, rows: Mask) -> Column:
    """The column with these patients' values missing, and no trace of values that nobody has any more."""
    if isinstance(column, Numbers):
        return Numbers(np.where(rows, np.nan, column.numbers))
    return _forget_unused(Coded(np.where(rows, 0, column.codes), column.values, column.stated))


def _forget_unused(column: Column) -> Column:
    """The column without the values that no patient has."""
    if isinstance(column, Numbers):
        return column
    present = np.bincount(column.codes, minlength=len(column.values) + 1) > 0
    present[0] = True
    if present.all():
        return column
    values = tuple(value for value, here in zip(column.values, present[1:], strict=True) if here)
    return Coded((np.cumsum(present) - 1)[column.codes], values, column.stated)


def _substitute(records: Records, deeds: Iterable[tuple[str, Deed, _Reach]]) -> dict[str, _Work]:
    """The columns that substitutions change, each in the order written."""
    works: dict[str, _Work] = {}
    for _, (action, change_for, _), reach in deeds:
        if not isinstance(action, Substitute) or change_for is None or not reach.mask.any():
            continue
        for name in records.names if action.attribute is None else (action.attribute,):
            transform = action.transform
            if name not in works:
                works[name] = _open(records[name], transform, reach)
            if isinstance(transform, Call) and transform.per_patient:
                _change_per_patient(works[name], records, transform, change_for, reach)
            else:
                works[name].change(reach, change_for({}))
            # A pattern may leave a value as it was; a function never does, unless it is as coarse already.
            works[name].replaced |= reach.everyone and (
                isinstance(transform, Call)
                or (isinstance(transform, Definition) and transform.changes_everything)
            )
    return works


def _open(column: Column, transform: Any, reach: _Reach) -> _Work:
    """A column to work on. Where all of its numbers are rounded, those that end up equal are taken together."""
    if (
        isinstance(column, Numbers)
        and isinstance(transform, Call)
        and transform.name == "round"
        and reach.mask.all()
    ):
        step = float(next(iter(transform.arguments), 1.0))
        with np.errstate(over="ignore"):
            multiples = np.floor(column.numbers / step + 0.5)
        return _Work(*_number_off(column.numbers, multiples))
    return _Work.of(column)


def _values_of(column: Column) -> tuple[NDArray[np.int64], Sequence[Value]]:
    """Codes of a column (0: missing) and what each stands for."""
    if isinstance(column, Coded):
        return column.codes.astype(np.int64), column.values
    return _number_off(column.numbers, column.numbers)


def _number_off(
    numbers: NDArray[np.float64], by: NDArray[np.float64]
) -> tuple[NDArray[np.int64], list[Value]]:
    """Codes for numbers, the same code where `by` is the same, and a number that stands for each code."""
    present = np.flatnonzero(~np.isnan(numbers))
    _, first, places = np.unique(by[present], return_index=True, return_inverse=True)
    codes = np.zeros(len(numbers), dtype=np.int64)
    codes[present] = places + 1
    return codes, [*numbers[present][first].tolist()]


def _change_per_patient(
    work: _Work,
    records: Records,
    transform: Call,
    change_for: Callable[[TransactionNode], Callable[[Value], Value | None]],
    reach: _Reach,
) -> None:
    names = [name for name in transform.patient_attributes if name in records]

    def outcome(value: Value, *patient: Value | None) -> Value | None:
        return change_for(dict(zip(names, patient, strict=True)))(value)

    work.change_each(reach, [_Work.of(records[name]) for name in names], outcome)


class _Look:
    """A table as the rules see it: for which patients each condition is true, each looked at once."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._true: dict[tuple[Expression | None, tuple[str, ...]], Mask | None] = {}

    def reach(self, rule: str, step: GraphStep) -> list[tuple[Deed, _Reach]]:
        """The step's actions with the patients that they reach."""
        fits, everyone = self._fits(rule, step)
        # Decided for everyone, it holds for nobody as well: an empty table has no more attributes than a full one.
        return [
            (deed, _Reach(fits[tag], everyone is not None))
            for tag, deed in step.actions
            # No edge joins patients of a table.
            if not deed.to_edges and (fits[tag].any() if everyone is None else everyone[tag])
        ]

    def all_exist(self, rule: str, step: GraphStep) -> Mask:
        """The patients for whom the motif is found and every `exists` holds."""
        fits, _ = self._fits(rule, step)
        if any(deed.to_edges for _, deed in step.actions):
            return np.zeros(len(self._records), dtype=np.bool_)
        return reduce(
            np.logical_and,
            (
                fits[tag]
                if deed.action.attribute is None
                else fits[tag] & self._present(deed.action.attribute)
                for tag, deed in step.actions
            ),
        )

    def _fits(self, rule: str, step: GraphStep) -> tuple[list[Mask], list[bool] | None]:
        """For each tag the patients who fit it where the motif matches; and whether everyone does, where no patient had
        to be looked at.

        The tags a patient can stand for are one number, a bit for each tag: the matcher decides once per number.
        """
        conditions = [self._fulfil(rule, node) for node in step.nodes]
        if all(mask is None for mask in conditions):
            fits = match_alone(step.motif, [1] * len(conditions)) or [0] * len(conditions)
            everyone = [bool(fit) for fit in fits]
            return [np.full(len(self._records), fit) for fit in everyone], everyone
        key = np.zeros(len(self._records), dtype=np.uint16)
        for tag, mask in enumerate(conditions):
            key |= np.uint16(1 << tag) if mask is None else np.left_shift(mask, tag, dtype=np.uint16)
        table = np.zeros((len(conditions), 1 << len(conditions)), dtype=np.bool_)
        for pattern in np.flatnonzero(np.bincount(key)).tolist():
            candidates = [pattern >> tag & 1 for tag in range(len(conditions))]
            fits = match_alone(step.motif, candidates) or [0] * len(conditions)
            table[:, pattern] = np.array(fits[: len(conditions)], dtype=np.bool_)
        return [row[key] for row in table], None

    def _fulfil(self, rule: str, node: Node) -> Mask | None:
        """For whom the tag's condition is definitely true; None where it has none."""
        condition = own_condition(node)
        key = (condition, node.quantifier.listed)
        if key not in self._true:
            try:
                parts = [] if condition is None else [self._truth(condition) == TRUE]
            except Unfit as unfit:
                raise PolicyError(
                    f"graph {rule} compares {unfit.attribute} with {unfit.kind}, but the records hold something "
                    "else there; compare it with = or in {..}, or with a value of its own kind"
                ) from None
            if node.quantifier.listed:
                parts.append(self._listed(all_labels(node.quantifier.listed)))
            self._true[key] = reduce(np.logical_and, parts) if parts else None
        return self._true[key]

    def _truth(self, expression: Expression) -> Truth:
        match expression:
            case Not(inner):
                return np.subtract(TRUE, self._truth(inner), dtype=np.uint8)
            case And(parts):
                return reduce(np.minimum, map(self._truth, parts))
            case Or(parts):
                return reduce(np.maximum, map(self._truth, parts))
            case AttributeComparison():
                return self._compare_columns(expression)
            case _:
                column = self._records[expression.name.attribute]
                if isinstance(column, Coded):
                    return _judge_codes(expression, column)
                return _judge_numbers(expression, column.numbers)

    def _compare_columns(self, term: AttributeComparison) -> Truth:
        """The verdict of the engine on every pair of values that some patient has."""
        works = [_values_of(self._records[name.attribute]) for name in (term.left, term.right)]
        pairs, places = np.unique(np.stack([codes for codes, _ in works]), axis=1, return_inverse=True)
        compare = comparer(term)
        verdicts = [
            compare(
                *(values[code - 1] if code else None for code, (_, values) in zip(pair, works, strict=True))
            )
            for pair in pairs.T.tolist()
        ]
        return np.array(verdicts, dtype=np.uint8)[places.reshape(-1)]

    def _listed(self, words: frozenset[str]) -> Mask:
        mask = np.zeros(len(self._records), dtype=np.bool_)
        for name in self._records.names:
            column = self._records[name]
            if isinstance(column, Coded):
                table = [False, *(is_listed(name, value, words) for value in column.values)]
                mask |= np.array(table)[column.codes]
            else:
                mask |= _equals(column.numbers, words)
                if name in words:
                    mask |= ~np.isnan(column.numbers) & (column.numbers != 0)
        return mask

    def _present(self, name: str) -> Mask:
        column = self._records[name]
        return column.codes != 0 if isinstance(column, Coded) else ~np.isnan(column.numbers)


def _judge_codes(predicate: Predicate, column: Coded) -> Truth:
    """The verdict of the engine on every value of a column, looked up for every patient."""
    judge, attribute = judge_predicate(predicate), predicate.name.attribute
    verdicts = np.zeros(len(column.values) + 1, dtype=np.uint8)
    verdicts[0] = judge({attribute: None})
    unfit: dict[int, Unfit] = {}
    for code, value in enumerate(column.values, start=1):
        try:
            verdicts[code] = judge({attribute: value})
        except Unfit as problem:
            unfit[code] = problem
    if unfit and np.isin(column.codes, list(unfit)).any():
        raise next(iter(unfit.values()))
    return np.take(verdicts, column.codes)


def _judge_numbers(predicate: Predicate, numbers: NDArray[np.float64]) -> Truth:
    absent = np.isnan(numbers)
    match predicate:
        case Missing():
            return np.where(absent, TRUE, FALSE).astype(np.uint8)
        case Comparison(operator="=" | "!=") | ListMembership():
            holds = _equals(numbers, all_labels(literal.value for literal in literals(predicate)))
            if isinstance(predicate, Comparison) and predicate.operator == "!=":
                holds = ~holds
        case Comparison() | Range():
            if bounds(predicate)[0].kind != "number":
                if not absent.all():
                    raise Unfit(predicate.name.attribute, "text")
                return np.full(len(numbers), UNKNOWN, dtype=np.uint8)
            holds = _compare(predicate, numbers)
    return np.where(absent, UNKNOWN, np.where(holds, TRUE, FALSE)).astype(np.uint8)


def _compare(predicate: Comparison | Range, numbers: NDArray[np.float64]) -> Mask:
    values: list[Any] = [literal.value for literal in bounds(predicate)]
    # Whole numbers up to EXACT are the same as float64, so that numpy compares them as Python does.
    low, *rest = [float(value) if abs(value) <= EXACT else value for value in values]
    if any(isinstance(value, int) for value in (low, *rest)):
        judge, attribute = judge_predicate(predicate), predicate.name.attribute
        verdicts = [judge({attribute: number}) == TRUE for number in numbers.tolist()]
        return np.array(verdicts, dtype=np.bool_)
    match predicate:
        case Range():
            return (numbers >= low) & (numbers <= rest[0])
        case Comparison(operator="<"):
            return numbers < low
        case Comparison(operator="<="):
            return numbers <= low
        case Comparison(operator=">"):
            return numbers > low
        case _:
            return numbers >= low


def _equals(numbers: NDArray[np.float64], words: Iterable[str]) -> Mask:
    """Where a number's label is one of the words: labels of different numbers differ, so numbers can be compared."""
    values = []
    for word in words:
        try:
            number = float(word)
        except ValueError:
            continue
        if label(number) == word:
            values.append(number)
    return np.isin(numbers, values)
