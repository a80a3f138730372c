"""Rules in one canonical form, so that logically equal rules are one (docs/methods.md, section 2.4).

Every attribute has finitely many codes: 0 is missing; a number has one code for each interval between its shared
cutoffs, a category one for each value and a last one for all others. A condition is the set of codes that fulfil it,
written as rising runs (attribute, low, high, low, high, ...); a rule is a conjunction of conditions on different
attributes, in the order of attributes, and none of them is fulfilled by everybody. Two such rules hold for the same
patients, whoever they may be, if and only if they are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.attributes import MISSING, Attribute, check_attributes, find_runs
from concilium.records.columns import Value, label

Condition = tuple[int, ...]
Rule = tuple[Condition, ...]

# Each different condition is looked up in a table of its attribute's codes.
MOST_CELLS = 1 << 26


def check_coded(attributes: Sequence[Attribute]) -> None:
    """MessageError unless attributes are well formed, with a code for each patient: missing, and any other value."""
    check_attributes(attributes)
    if any(a.of or not (a.missing and a.other) for a in attributes):
        raise MessageError(
            "an attribute of a rule model has a code for what is missing and for any other value"
        )


def write_condition(attribute: int, codes: Iterable[int]) -> Condition:
    """The condition that exactly these codes fulfil."""
    return (attribute, *(end for run in find_runs(set(codes)) for end in run))


def read_codes(condition: Condition) -> set[int]:
    """The codes that fulfil a condition."""
    runs = zip(condition[1::2], condition[2::2], strict=True)
    return {code for low, high in runs for code in range(low, high + 1)}


def write_rule(allowed: Mapping[int, set[int]], sizes: Sequence[int]) -> Rule:
    """The rule with these codes for each attribute, without conditions that everybody fulfils."""
    return tuple(
        write_condition(attribute, codes)
        for attribute, codes in sorted(allowed.items())
        if len(codes) < sizes[attribute]
    )


def check_rules(rules: Sequence[Rule], attributes: Sequence[Attribute]) -> None:
    """MessageError unless every rule is in canonical form over these attributes."""
    lasts = [attribute.size - 1 for attribute in attributes]
    listed = list(chain.from_iterable(rules))
    fine = set(share(listed).values())
    for condition in fine:
        check_condition(condition, lasts)
    lengths = np.fromiter(map(len, rules), dtype=np.int64, count=len(rules))
    if not lengths.all():
        raise MessageError("a rule needs a condition")
    about = np.fromiter(map(itemgetter(0), listed), dtype=np.int64, count=len(listed))
    rising = np.diff(about) > 0
    rising[lengths.cumsum()[:-1] - 1] = True  # from one rule to the next
    if not rising.all():
        raise MessageError("a rule is not in canonical form: its conditions are out of order")
    if sum(lasts[condition[0]] + 1 for condition in fine) > MOST_CELLS:
        raise MessageError("the rules have too many different conditions on attributes with many values")


def share(listed: Sequence[Condition]) -> dict[int, Condition]:
    """Conditions by their id. Rules that were sent share theirs, and to hash a long one again for each of them would
    take long."""
    return dict(zip(map(id, listed), listed, strict=True))


def check_condition(condition: Condition, lasts: Sequence[int]) -> None:
    """MessageError unless a condition is made of rising runs of its attribute's codes; `lasts` are the last codes."""
    if len(condition) < 3 or len(condition) % 2 == 0 or not 0 <= condition[0] < len(lasts):
        raise MessageError("a rule's condition is not in canonical form")
    last, at = lasts[condition[0]], -2
    for low, high in zip(condition[1::2], condition[2::2], strict=True):
        if not at + 1 < low <= high <= last:
            raise MessageError("a rule's condition is not in canonical form")
        at = high
    if condition[1:] == (0, last):
        raise MessageError("a rule has a condition that everybody fulfils")


def tabulate(conditions: Sequence[Condition], size: int) -> NDArray[np.bool_]:
    """For conditions on one attribute, and each of its codes, whether it fulfils the condition: [condition, code]."""
    runs = [(row, run) for row, condition in enumerate(conditions) for run in range(1, len(condition), 2)]
    table = np.zeros((len(conditions), size + 1), dtype=np.int8)
    rows = [row for row, _ in runs]
    table[rows, [conditions[row][run] for row, run in runs]] = 1
    table[rows, [conditions[row][run + 1] + 1 for row, run in runs]] = -1
    return np.cumsum(table[:, :-1], axis=1, dtype=np.int8).astype(np.bool_)


def say_rule(rule: Rule, attributes: Sequence[Attribute]) -> str:
    """A rule in words: `age >= 57 & sex = f`."""
    return " & ".join(say_condition(condition, attributes[condition[0]]) for condition in rule)


def say_condition(condition: Condition, attribute: Attribute) -> str:
    codes = read_codes(condition)
    present = codes - {MISSING}
    if not present:
        return f"{attribute.name} is missing"
    if len(present) == attribute.size - 1:
        return f"{attribute.name} is not missing"
    if not attribute.numeric:
        return say_values(codes, attribute.name, attribute.values)
    text = say_intervals(present, attribute)
    return f"({text} or missing)" if MISSING in codes else text


def say_intervals(codes: set[int], attribute: Attribute) -> str:
    edges, last = attribute.edges, attribute.size - 1
    parts = []
    for low, high in find_runs(codes):
        if low == 1:
            parts.append(f"{attribute.name} < {say_edge(edges, high - 1)}")
        elif high == last:
            parts.append(f"{attribute.name} >= {say_edge(edges, low - 2)}")
        else:
            parts.append(f"{say_edge(edges, low - 2)} <= {attribute.name} < {say_edge(edges, high - 1)}")
    return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"


def say_edge(edges: Sequence[float], index: int) -> str:
    """An edge with six digits, or as many more as tell it from its neighbours: 100000.5 is not 100000."""
    edge = edges[index]
    beside = edges[max(0, index - 1) : index + 2]
    room = 1e-3 * min((abs(edge - other) for other in beside if other != edge), default=1e-9 * abs(edge))
    texts = (f"{edge:.{digits}g}" for digits in range(6, 18))
    return next(text for text in texts if abs(float(text) - edge) <= room)


def say_values(codes: set[int], name: str, values: Sequence[Value]) -> str:
    """`not` takes in whatever is not named, missing as well, unless it says that the value is known."""
    other = len(values) + 1
    if other in codes:
        left = [label(value) for code, value in enumerate(values, start=1) if code not in codes]
        but = "" if MISSING in codes else "known and "
        if len(left) == 1:
            return f"{name} is {but}not {left[0]}"
        return f"{name} {'is ' if but else ''}{but}not in {{{', '.join(left)}}}"
    labels = [label(values[code - 1]) for code in sorted(codes - {MISSING})]
    text = f"{name} = {labels[0]}" if len(labels) == 1 else f"{name} in {{{', '.join(labels)}}}"
    return f"({text} or missing)" if MISSING in codes else text
