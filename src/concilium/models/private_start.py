"""How a private study begins where it states no attributes: columns by name, classes and cutoffs by noisy counts.

Who is protected: every patient, at the price of the study, as in all that follows. Three things are asked for. The
names of columns are the header of the hospital's table after its policy: no patient decides about them, so that they
cost nothing. Classes are looked for among the words that most tables have for yes and no, by one noisy count. Numbers
are cut at quantiles on the public grid (grid.py), by two. The second counts common words (`WORDS`, the same for every
study) in the columns that turn out to hold no numbers. Every cell is read by itself (records/query.py): what is no
number counts as missing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from concilium.errors import HouseError, StudyError
from concilium.models.grid import (
    ALIKE,
    ALIKE_TEXT,
    BEYOND,
    CUTOFFS,
    HIDDEN,
    SURELY,
    TEXT,
    TWO_UNITS,
    ask_cutoffs,
)
from concilium.privacy.accounting import PlannedQuestion
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.questions import Conversation, Gaussian, Partners
from concilium.protocol.schema import (
    AskColumns,
    say_groups,
    say_lacking,
    say_left_out,
    set_against_rest,
    state_values,
)
from concilium.records.columns import Value, label
from concilium.records.patients import names_patients

if TYPE_CHECKING:
    from concilium.models.method import Method, PrivateMethod

# Which classes there are, where the study names none: pairs of no and yes.
CLASSES: tuple[tuple[Value, Value], ...] = (
    (0, 1),
    ("no", "yes"),
    ("No", "Yes"),
    ("n", "y"),
    ("N", "Y"),
    ("false", "true"),
    ("alive", "dead"),
    ("negative", "positive"),
    ("benign", "malignant"),
)
# What is looked for in columns of text where the study states no values: each as it is here, and with a capital.
COMMON_WORDS = (
    "m f male female man woman y n t yes no true false pos neg positive negative present absent normal abnormal alive "
    "dead benign malignant none never former current ex mild moderate severe low medium intermediate high small large "
    "left right both early late a b c ab o i ii iii iv v white black asian hispanic other unknown single married "
    "divorced widowed elective emergency urgent medical surgical home hospital public private"
)
SHORT = 3  # So many letters at most may all be capitals.
WORDS = state_values(
    form
    for word in COMMON_WORDS.split()
    for form in (word, word.capitalize(), word.upper() if len(word) <= SHORT else word)
)
SHARE_OF_CLASSES, SHARE_OF_CUTOFFS = Fraction(1, 20), Fraction(1, 5)
DEVIATIONS = 3.0
NAMES_PATIENTS = "its name says that it identifies patients"

M = TypeVar("M", bound="PrivateMethod[Any]")


def find_stated_classes(method: Method[Any], positive: Value | None) -> list[Value]:
    """What is not predicted and what is: two stated classes, or the positive one against all others."""
    stated = state_values(_get(method, "values").get(method.target, ()))
    if positive is None:
        if len(stated) != 2:
            raise StudyError(
                f"a private {type(method).__name__} needs 'positive', or the two classes: "
                f"values = {{{method.target!r}: [...]}}"
            )
        return list(stated)
    own = state_values([positive])[0]
    others = [value for value in stated if label(value) != label(own)]
    if len(others) == len(stated) > 0:
        said = ", ".join(map(label, stated))
        raise StudyError(f"'positive' is {label(own)}, but the stated classes are {said}")
    return [*set_against_rest(own, others)]


def states_attributes(method: Method[Any]) -> bool:
    """Whether the study says itself what it is about, so that nothing has to be asked first."""
    stated = ({*_get(method, "values")} | {*_get(method, "bins")}) - {method.target}
    wanted = getattr(method, "attributes", None)
    return bool(stated) and (wanted is None or set(wanted) <= stated)


def states_classes(method: PrivateMethod[Any]) -> bool:
    """Whether the study names its classes, or the one that it tells from all others, or predicts a number."""
    if getattr(method, "measured", None) is not None:
        return True
    one = method.against_rest and getattr(method, "positive", None) is not None
    return one or method.target in _get(method, "values")


def _get(method: Method[Any], name: str) -> dict[str, Any]:
    return dict(getattr(method, name, None) or {})


def share_of_start(method: PrivateMethod[Any]) -> Fraction:
    """The part of a private study's price that is spent before it learns."""
    cutoffs = Fraction(0) if states_attributes(method) else SHARE_OF_CUTOFFS
    return cutoffs + (Fraction(0) if states_classes(method) else SHARE_OF_CLASSES)


def plan_start(method: PrivateMethod[Any]) -> tuple[PlannedQuestion, ...]:
    """What is asked first, and what that costs."""
    questions: list[PlannedQuestion] = []
    if not states_classes(method):
        words = "; ".join(f"{label(no)}, {label(yes)}" for no, yes in CLASSES[:3])
        questions.append(
            PlannedQuestion(
                "counts",
                method.rho * SHARE_OF_CLASSES,
                f"which classes {method.target} has, among {words} and {len(CLASSES) - 3} more pairs",
            )
        )
    if not states_attributes(method):
        half = method.rho * SHARE_OF_CUTOFFS / 2
        questions += [
            PlannedQuestion(
                "columns",
                Fraction(0),
                "which columns there are; each may be a number",
                of_no_patient=True,
            ),
            PlannedQuestion("counts", half, "histograms of all of them by sign and decade, for cutoffs"),
            PlannedQuestion(
                "counts",
                half,
                f"the same by digits, where patients are; of text by {len(WORDS)} common words",
            ),
        ]
    return tuple(questions)


def start(method: M, partners: Partners) -> Conversation[tuple[M, list[str]]]:
    """The method with its classes, attributes and cutoffs stated, and what the card must say of them."""
    warnings: list[str] = []
    completed = method
    if not states_classes(method):
        classes = yield from _find_classes(method, partners)
        completed = completed.stating(values={**_get(method, "values"), method.target: classes})
    if not states_attributes(method):
        bins, values, warnings = yield from _find_cutoffs(method, partners)
        completed = completed.stating(bins={**bins, **_get(method, "bins")})
        completed = completed.stating(values={**values, **_get(completed, "values")})
    elif not {*_get(method, "bins")} - {method.target} and getattr(method, "attributes", None) is None:
        stated = sorted({*_get(method, "values")} - {method.target})
        more = f" and {len(stated) - 3} more" if len(stated) > 3 else ""
        warnings.append(
            f"only attributes that the study states are asked about: {', '.join(stated[:3])}{more}. For numbers, state "
            "bins of them, or no attribute at all"
        )
    return completed, warnings


def _find_classes(method: PrivateMethod[Any], partners: Partners) -> Conversation[list[Value]]:
    """The words for no and yes that most patients have: of a pair one may be as rare as noise."""
    words = tuple(word for pair in CLASSES for word in pair)
    attribute = Attribute(method.target, (), words)
    variance = partners.variance(method.rho * SHARE_OF_CLASSES, 1)
    counts = yield AskCounts(
        query=method.query,
        target=method.target,
        attributes=(attribute,),
        totals=False,
        noise=Gaussian(str(variance)),
    )
    _, *found, others = split_counts((attribute,), counts)[method.target][:, 0].tolist()
    deviation = math.sqrt(float(variance) * float(partners.noise_factor))
    positive = getattr(method, "positive", None)
    pairs = [
        (found[2 * i] + found[2 * i + 1], pair)
        for i, pair in enumerate(CLASSES)
        if positive is None or label(positive) in map(label, pair)
    ]
    patients, best = max(pairs, key=lambda one: one[0])
    # Somebody may have neither word by mistake, and not one in twenty.
    if patients <= DEVIATIONS * deviation or others > max(SURELY * deviation, patients / 20):
        raise HouseError(
            f"noise hides which classes {method.target!r} has, or they are other words than "
            f"{', '.join(label(word) for word in words[:6])}, ...: state them, values = "
            f"{{{method.target!r}: [...]}}, or raise epsilon; {float(SHARE_OF_CLASSES):.0%} of the price is spent"
        )
    return list(best)


def find_unusable(names: Iterable[str], columns: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The columns that a private study which states nothing leaves out by their names, and why: no private count would
    show that a column identifies patients."""
    left_out = {}
    for name in sorted(names):
        lacking = [site for site, known in columns.items() if name not in known]
        if lacking or names_patients(name):
            left_out[name] = say_lacking(lacking[0]) if lacking else NAMES_PATIENTS
    return left_out


def _find_cutoffs(
    method: PrivateMethod[Any], partners: Partners
) -> Conversation[tuple[dict[str, list[float]], dict[str, list[Value]], list[str]]]:
    """Cutoffs of numbers, values of text, and what to say of columns that have neither or lie in two groups."""
    replies = yield AskColumns(query=method.query, target=method.target)
    columns = {site: set(reply.names) for site, reply in replies.items()}
    wanted = getattr(method, "attributes", None)
    stated = {*_get(method, "values"), *_get(method, "bins"), method.target}
    names = (set[str]().union(*columns.values()) if wanted is None else set(wanted)) - stated
    left_out = find_unusable(names, columns)
    numbers = sorted(names - set(left_out))
    rho = method.rho * SHARE_OF_CUTOFFS / 2

    def ask(attributes: tuple[Attribute, ...]) -> tuple[AskCounts, float]:
        variance = partners.variance(rho, len(attributes))
        question = AskCounts(
            query=method.query,
            target=method.target,
            attributes=attributes,
            totals=False,
            noise=Gaussian(str(variance)),
        )
        return question, float(variance) * float(partners.noise_factor)

    cutoffs = getattr(method, "cutoffs", None)
    grouped: list[str] = []
    worded: dict[str, list[Value]] = {}
    chosen, without = yield from ask_cutoffs(
        numbers,
        ask,
        cutoffs=cutoffs if isinstance(cutoffs, int) else CUTOFFS,
        grouped=grouped,
        words=WORDS,
        worded=worded,
    )
    asked = stated if wanted is None else stated & set(wanted)
    if not chosen and not worded and not asked - {method.target}:
        raise HouseError(
            "noise hides which columns hold numbers, or none does: state them, as `concilium dictionary` drafts, or "
            f"raise epsilon; up to {float(share_of_start(method)):.0%} of the price is spent"
        )
    without = {
        name: why if why in (ALIKE, ALIKE_TEXT, BEYOND, TEXT) or why.startswith(TWO_UNITS) else HIDDEN
        for name, why in without.items()
    }
    warnings = say_groups(grouped) + (
        [say_left_out(left_out)] if (left_out := {**left_out, **without}) else []
    )
    return {name: list(edges) for name, edges in chosen.items()}, worded, warnings
