"""Whom a model is about: the query it was learned under, held against one patient.

A model learned from patients for whom its query was definitely true (records/query.py). Of anybody else it knows
nothing. So a condition that fails, and one that cannot be judged because a value is missing or was not entered, both
mean that the model does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from concilium.models.explanation import Explanation
from concilium.protocol.card import OPTED_OUT, Card
from concilium.records.columns import Column, label
from concilium.records.dictionary import DictionaryEntry, say_value
from concilium.records.expression import FALSE, TRUE, And, Expression, bounds, predicates
from concilium.records.query import Query, read_as_asked
from concilium.records.table import Records

ANYWAY = "To predict all the same: --anyway (in Python: explain(patient, anyway=True))."


def find_outside(
    query: Query, patient: Mapping[str, Any], dictionary: Mapping[str, DictionaryEntry]
) -> tuple[str, ...]:
    """Say which conditions of the query the patient fails or leaves unknown, a sentence each; none: it is about him."""
    if query.condition is None:
        return ()
    row = {name: _read(patient.get(name), dictionary.get(name)) for name in sorted(query.attributes)}
    parts = query.condition.parts if isinstance(query.condition, And) else (query.condition,)
    said = []
    for part in parts:
        truth = _judge(part, row)
        if truth == TRUE:
            continue
        names = sorted({one.name.attribute for one in predicates(part)})
        values = [_say_value(name, row[name], name in patient, dictionary.get(name)) for name in names]
        fails = "fails" if truth == FALSE else "cannot be judged"
        said.append(f"{_say_condition(part, dictionary)} {fails}: {' and '.join(values)}")
    return tuple(said)


def _read(value: Any, entry: DictionaryEntry | None) -> Any:
    """A value as the query speaks of it; of a course that has one value, that one."""
    if isinstance(value, list | tuple):
        value = value[0] if len(value) == 1 else None
    if value is None or entry is None or entry.type == "number":
        return value
    return entry.read(label(value))


def _judge(condition: Expression, row: Mapping[str, Any]) -> int:
    """TRUE, FALSE or UNKNOWN for one patient, each value read by itself, whatever columns hold elsewhere."""
    query = Query(condition)
    own = {name: row[name] for name in sorted(query.attributes)}
    records = Records.from_rows([own])
    # Text that is compared by size, such as a date, has an order only as it is.
    ordered = {
        one.name.attribute
        for one in predicates(condition)
        if any(literal.kind == "text" for literal in bounds(one))
    }
    asked = read_as_asked(records, query)
    columns: dict[str, Column] = {name: (records if name in ordered else asked)[name] for name in own}
    return int(query.truth(Records(columns))[0])


def _say_value(name: str, value: Any, entered: bool, entry: DictionaryEntry | None) -> str:
    if value is None:
        return f"{name} is missing" if entered else f"{name} was not entered"
    return f"{name} is {say_value(value, entry)}"


def _say_condition(condition: Expression, dictionary: Mapping[str, DictionaryEntry]) -> str:
    """The condition as it is written, with what its codes mean."""
    meanings = {
        f"{literal} is {meant}"
        for one in predicates(condition)
        if (entry := dictionary.get(one.name.attribute)) is not None
        for literal in getattr(one, "literals", None) or filter(None, [getattr(one, "literal", None)])
        if (meant := entry.say(literal.value)) != label(literal.value)
    }
    return f"{condition} ({', '.join(sorted(meanings))})" if meanings else str(condition)


def say_query(query: Query, dictionary: Mapping[str, DictionaryEntry]) -> str:
    """The query as it is written, with what its codes mean."""
    return "" if query.condition is None else _say_condition(query.condition, dictionary)


def decline(target: str, query: str, outside: tuple[str, ...]) -> Explanation:
    """No prediction, and why; `query` says whom the model is about."""
    return Explanation(
        target=target,
        prediction=None,
        probability=None,
        reasons=(),
        sentences=(
            f"No prediction of {target}: the model is about patients with {query}.",
            *(f"{one}." for one in outside),
            ANYWAY,
        ),
        outside=outside,
    )


def warn_outside(explanation: Explanation, query: str, outside: tuple[str, ...]) -> Explanation:
    """The prediction for somebody the model is not about, which says so first."""
    if not outside:
        return explanation
    first = f"The model is not about this patient, but about patients with {query}: {'; '.join(outside)}."
    return replace(
        explanation,
        outside=outside,
        notes=(first, *explanation.notes),
        sentences=(first, *explanation.sentences),
    )


def say_missing_sites(card: Card) -> tuple[str, ...]:
    """Say which hospitals the model did not learn from, where some were lost or refused."""
    missing = [f"{site} ({why})" for site, why in card.find_missing_sites().items()]
    missing += [one.removeprefix(OPTED_OUT) for one in card.warnings if one.startswith(OPTED_OUT)]
    return (f"Hospitals that are not in the model: {'; '.join(missing)}.",) if missing else ()
