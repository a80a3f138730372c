"""Why a model says what it says about one patient: one shape for every method, data and sentences.

What else must be said of a patient: values that are hardly plausible, and what names mean, by the dictionary of the
model's study; of an attribute that it does not have, by public clinical ranges.

Whom a model is about: the query it was learned under, held against one patient. It learned from patients
for whom its query was definitely true (records/query.py). Of anybody else it knows nothing. So a condition that fails,
and one that cannot be judged because a value is missing or was not entered, both mean that the model does not answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from concilium.errors import name_some
from concilium.protocol.card import OPTED_OUT, Card
from concilium.records.clinical_ranges import find_range
from concilium.records.columns import Column, Value, label, say_plain
from concilium.records.dictionary import DictionaryEntry, describe_entry, say_value
from concilium.records.expression import FALSE, TRUE, And, Expression, bounds, predicates
from concilium.records.query import Query, read_as_asked
from concilium.records.table import Records


@dataclass(frozen=True)
class Reason:
    """One thing that holds for the patient, and what it did to the prediction.

    attributes       what it looks at
    condition        what the patient fulfils, in words
    before, after    the share of the predicted class before and after it, where reasons follow each other
    moved            what it adds to the log odds of the positive class, or to a number that is predicted
    patients         how many of those learned from are like this (so far), where that is known
    support          the share of all patients who fulfil it, where that is known
    """

    attributes: tuple[str, ...]
    condition: str
    before: float | None = None
    after: float | None = None
    moved: float | None = None
    patients: int | None = None
    support: float | None = None


@dataclass(frozen=True, repr=False)
class Explanation:
    """A prediction for one patient and the reasons for it; prints as sentences.

    prediction    the class or number that is predicted; None where the patient is outside of the model's query
    probability   how likely the predicted class is by the model; None where a number or a severity is predicted
    base          where everybody starts: the share of the predicted class (or of the positive one), or the number
    patients      how many patients the prediction rests on, where that is known
    notes         what else must be said: why it stopped, what is not known of the patient
    votes         the explanations of the experts of an ensemble, each for itself
    called_from   the chance from which on the positive class is called; None: the likeliest class is
    chances       how likely each class is, in the order of the model's classes, where that is known
    interval      95 % interval of `probability`, or of the number that is predicted; None where it is not known
    outside       conditions of the model's query that the patient fails or leaves unknown; empty: the model applies
    sentences     all of it in words, a line each
    """

    target: str
    prediction: Value | None
    probability: float | None
    reasons: tuple[Reason, ...]
    sentences: tuple[str, ...]
    base: float | None = None
    patients: int | None = None
    notes: tuple[str, ...] = ()
    votes: tuple[Explanation, ...] = ()
    called_from: float | None = None
    chances: tuple[float, ...] = ()
    interval: tuple[float, float] | None = None
    outside: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sentences[0]!r}, reasons={len(self.reasons)})"

    def _repr_html_(self) -> str:
        """For notebooks: the sentences, the first one first in sight."""
        first, *others = map(escape, self.sentences)
        return f"<p><b>{first}</b></p>" + "".join(f"<div>{one}</div>" for one in others)


def say_share(share: float) -> str:
    """A share in percent, `12%`. One that is neither none nor all is never rounded to that."""
    return f"{_percent(share)}%"


def say_interval(interval: tuple[float, float]) -> str:
    """A 95 % interval of a share in words: `95% interval 12% to 34%`."""
    low, high = map(say_share, interval)
    return f"95% interval {low} to {high}"


def say_risk(risk: float) -> str:
    """A risk that a model works out, in percent. Nobody was counted: it is never said to be none or certain."""
    if not LEAST_RISK <= risk <= 1 - LEAST_RISK:
        return "below 0.1%" if risk < 0.5 else "above 99.9%"
    return f"{100 * risk:.0f}%" if 0.01 <= risk <= 0.99 else f"{100 * risk:.1f}%".replace(".0%", "%")


def say_risk_interval(interval: tuple[float, float]) -> str:
    """A 95 % interval of such a risk in words."""
    low, high = map(say_risk, interval)
    beyond = low == high and low.startswith(("below", "above"))
    return f"95% interval {low}" if beyond else f"95% interval {low} to {high}"


def say_open(explanation: Explanation) -> Explanation:
    """The explanation with a warning where the interval of the risk holds most risks: beside the class, which is all
    that some will read, and after the first sentence."""
    low, high = explanation.interval or (0.0, 0.0)
    if explanation.probability is None or high - low < ALMOST_ALL:
        return explanation
    first, *others = explanation.sentences
    return replace(
        explanation,
        notes=(OPEN, *explanation.notes),
        sentences=(LAST_BRACKETS.sub(r", uncertain\g<0>", first), OPEN, *others),
    )


LARGEST_LOG = 700.0  # of odds: exp of more is no number


def read_odds(moved: float) -> float:
    """The odds ratio of a step of log odds, which is a number however far the step goes."""
    return math.exp(max(-LARGEST_LOG, min(moved, LARGEST_LOG)))


def say_odds(odds: float) -> str:
    """An odds ratio; beyond a thousand times nothing is known but the direction."""
    if not 1e-3 <= odds <= 1e3:
        return "> 1000" if odds > 1 else "< 0.001"
    return f"{odds:.2f}" if odds >= 0.1 else f"{odds:.2g}"


def say_hidden(names: Sequence[str], moved: str) -> str:
    """Which attributes noise hides, and what they do together."""
    listed = name_some(list(dict.fromkeys(names)), MOST_HIDDEN)
    if len(set(names)) == 1:
        return f"Noise hides what {listed} does: {moved}."
    return f"Noise hides what these do: {listed}. Together: {moved}."


ALMOST_ALL = 0.8
LAST_BRACKETS = re.compile(r" \((?:[^()]|\([^()]*\))*\)\.?$")
OPEN = "The interval leaves almost every risk open: the model knows next to nothing about this patient."
LEAST_RISK = 0.001
MOST_DIGITS = 3
MOST_HIDDEN = 10


def _percent(share: float) -> str:
    for digits in range(MOST_DIGITS + 1):
        said = f"{100 * share:.{digits}f}"
        if float(said) not in (0.0, 100.0) or share in (0.0, 1.0):
            return said
    return f"below {10**-MOST_DIGITS}" if share < 0.5 else f"above {100 - 10**-MOST_DIGITS}"


LEAST_NAME = 3  # `ca` may be calcium, or the number of vessels
LEAST_NAME_OF_COURSE = 2  # `HR` is measured every hour


def annotate(
    explanation: Explanation,
    patient: Mapping[str, Any],
    asked: Iterable[str],
    dictionary: Mapping[str, DictionaryEntry],
) -> Explanation:
    """The explanation with what is odd about the patient's values right after its first sentence, and what is meant
    last."""
    odd = tuple(_find_implausible(patient, asked, dictionary))
    reasons = (name for reason in explanation.reasons for name in reason.attributes)
    spoken = dict.fromkeys([explanation.target, *reasons])
    meant = tuple(_say_meaning(name, dictionary[name]) for name in spoken if name in dictionary)
    if not odd and not meant:
        return explanation
    return replace(
        explanation,
        notes=(*odd, *explanation.notes),
        sentences=(explanation.sentences[0], *odd, *explanation.sentences[1:], *filter(None, meant)),
    )


def _find_implausible(
    patient: Mapping[str, Any], asked: Iterable[str], dictionary: Mapping[str, DictionaryEntry]
) -> Iterator[str]:
    """Values that are hardly meant."""
    for name in asked:
        value, entry = patient.get(name), dictionary.get(name)
        if isinstance(value, list | tuple):  # a course, of which the first number that is odd is said
            low, high, words = _find_ends(name, entry, LEAST_NAME_OF_COURSE)
            numbers = (one for one in value if isinstance(one, int | float) and math.isfinite(one))
            odd = next((one for one in numbers if not low <= one <= high), None)
            if odd is not None:
                yield f"{name} = {say_plain(odd)} is hardly plausible: {words}. Check it."
            continue
        if value is None or isinstance(value, dict):
            continue
        if entry is not None and entry.values:
            if not entry.lists(entry.read(label(value))):
                yield f"{name} = {say_plain(value)} is no value of it: {describe_entry(entry)}. Check it."
        elif isinstance(value, int | float) and not isinstance(value, bool):
            low, high, words = _find_ends(name, entry, LEAST_NAME)
            if not low <= value <= high:
                yield f"{name} = {say_plain(value)} is hardly plausible: {words}. Check it."


def _find_ends(name: str, entry: DictionaryEntry | None, least: int) -> tuple[float, float, str]:
    if entry is not None and entry.range is not None:
        return *entry.range, entry.say_range()
    clinical = find_range(name) if len(name) >= least else None
    another = (
        entry is not None
        and clinical is not None
        and _plain_unit(entry.unit) not in ("", _plain_unit(clinical.unit))
    )
    if clinical is None or another:
        return float("-inf"), float("inf"), ""
    return clinical.lowest, clinical.highest, f"{clinical.lowest:g} to {clinical.highest:g} {clinical.unit}"


def _plain_unit(unit: str) -> str:
    """A unit without what the ways to write it differ by: mmol/l and mmol/L, °C and Cel, 1/min and {beats}/min."""
    plain = re.sub(r"\{.*?\}|[°\[\]\s]|beats|breaths|\b1(?=/)", "", unit.casefold())
    return {"cel": "c", "a": "years", "yr": "years", "bpm": "/min"}.get(plain, plain)


def _say_meaning(name: str, entry: DictionaryEntry) -> str:
    """What a name of the reasons stands for, and its unit; nothing where the dictionary does not say. What its values
    mean stands in the reasons themselves."""
    said = ", ".join(filter(None, [entry.label if entry.label != name else "", entry.unit]))
    return f"{name}: {said}." if said else ""


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
