"""From which chance on a classifier calls the positive class: chosen by the study, stored in the model.

`threshold` is one of

majority          the likeliest class, whatever it is: a half, where there are two
prevalence        the positive class where it is likelier than among all patients learned from
cost 5:1          where calling costs less than not, if a missed patient costs five times a false alarm: from 1 / 6 on
sensitivity 0.9   the highest chance from which on nine in ten positive patients are called
youden            the chance from which on sensitivity and specificity together are best (Youden, Cancer 3, 1950)

Price: none. A threshold is worked out from numbers that the model has told already: class counts, and for the last two
the counts of patients by class wherever they come to rest. Under `private` these are noisy, and what is made of them is
post-processing: the protection of a patient is the same, and so is the ledger (tests/protocol/test_decision.py).
Exact and masked models, whose answers have no bound, learn twice for the last two: from seven in ten patients of every
site, to choose by the others how many are called (they are counted by class and leaf, or by class and chance:
below, rulefit/fitting.py, trees/votes.py), and from everybody; the model calls as large a share of these. Not
from the same chance on: two fits of few rules or leaves give no patient quite the same chance. VotingTrees count
patients by class and votes, of bands left out where the study has such.

Counts of patients by class and predicted risk. Sites count risks as log odds in bins of one width, from the least to
the greatest that the model can give (or 8 on either side): they follow from the model that the question carries, and
no edge is asked for by itself. 514 numbers, by which a threshold is chosen to a 255th of what the model can say, a
sixteenth of log odds at the most. Only exact and masked studies ask for them, whose answers have no bound, and only
those that choose a threshold by sensitivity or by Youden: methods hold the questions of their studies to it
(`find_objection`, `plan`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.parameters import Parameter
from concilium.records.columns import Value, label

Kind = Literal["majority", "prevalence", "cost", "sensitivity", "youden", "alarm"]
# Those that need to know how many patients of each class have which chance.
TALLIED = ("sensitivity", "youden")
NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
FORM = re.compile(
    rf"majority|prevalence|youden|alarm|cost (?P<missed>{NUMBER}):(?P<alarm>{NUMBER})|sensitivity (?P<reach>{NUMBER})"
)


@dataclass(frozen=True)
class CallingRule:
    """A decision as it is read: `amount` is the threshold that costs lead to, or the sensitivity to reach."""

    kind: Kind
    amount: Fraction = Fraction(1, 2)

    @property
    def tallied(self) -> bool:
        return self.kind in TALLIED


def parse(text: str) -> CallingRule:
    """The rule that a text names; ValueError where it names none."""
    found = FORM.fullmatch(text)
    if found is None:
        raise ValueError
    kind = cast(Kind, text.split()[0])
    amount = Fraction(1, 2)
    if kind == "cost":
        missed, alarm = Fraction(found["missed"]), Fraction(found["alarm"])
        if not missed or not alarm:
            raise ValueError
        amount = alarm / (missed + alarm)
    elif kind == "sensitivity":
        amount = Fraction(found["reach"])
        if not 0 < amount <= 1:
            raise ValueError
    return CallingRule(kind, amount)


def _read_decision(value: Any) -> str:
    """A decision as it is kept, words one space apart."""
    if not isinstance(value, str):
        raise ValueError
    words = " ".join(value.split())
    if parse(words).kind == "alarm":  # a student has one by its own study, and nobody else
        raise ValueError
    return words


DecisionRule = Annotated[
    str,
    Parameter(
        "'majority', 'prevalence', 'youden', or as 'cost 5:1' and 'sensitivity 0.9' are written",
        _read_decision,
        'from which chance on the positive class is called: "majority": a half; "prevalence": more than among all '
        'patients learned from; "cost 5:1": where a missed patient costs five times a false alarm; "sensitivity 0.9": '
        'so that nine in ten are called; "youden": where sensitivity and specificity together are best. It costs '
        "nothing more",
        "study",
    ),
]


class Decided(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a model stores of it: the positive class is called from this chance on. `sensitivity` and `specificity` are
    those of the patients of whom it was chosen (`told_by` says who they are), where it was chosen by them. Where so
    many experts have `votes`, chances are shares of these, and the threshold lies between two of them."""

    rule: str
    positive: str | int | float | bool
    threshold: float
    sensitivity: float | None = None
    specificity: float | None = None
    told_by: str = ""
    votes: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        parse(self.rule)
        if not 0 <= self.threshold <= 1:
            raise ValueError("a decision has a threshold between 0 and 1")

    def place(self, classes: Sequence[Value]) -> int:
        """Which of two classes is the positive one."""
        return [label(value) for value in classes].index(label(self.positive))

    def check(self, classes: Sequence[Value]) -> None:
        """ValueError unless it tells apart these classes."""
        if len(classes) != 2 or label(self.positive) not in map(label, classes):
            raise ValueError("a decision tells the positive class from one other")


# Chances are worked out from odds and logarithms: a share that comes out so little above another is the same.
ROUNDING = 1e-9

# Who is counted in a tally: patients whom a model has learned from look better than others do, so that exact and masked
# models choose by those whom a first fit left out, so many in a hundred of each site, before they learn from everybody.
LEARNED_FROM = "the patients learned from"
HELD_OUT = "patients held out"
LEFT_OUT_FIRST = "patients left out of a first fit"
PERCENT_LEFT_OUT = 30


@dataclass(frozen=True)
class Tally:
    """How many patients of each class have which chance of being positive, and who they are."""

    chances: Sequence[float]
    negatives: Sequence[int]
    positives: Sequence[int]
    who: str

    def count(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The different chances, rising, and how many patients have each, [class, chance], negative first. Counts below
        zero, which noise makes, are none."""
        chances, place = np.unique(np.array(self.chances, dtype=np.float64), return_inverse=True)
        counted = np.zeros((2, len(chances)), dtype=np.int64)
        for row, counts in enumerate((self.negatives, self.positives)):
            np.add.at(counted[row], place, np.maximum(np.array(counts, dtype=np.int64), 0))
        return chances, counted

    @property
    def tells(self) -> bool:
        """Whether there are patients of both classes to choose by."""
        return any(count > 0 for count in self.negatives) and any(count > 0 for count in self.positives)


def choose(
    shares: NDArray[np.float64], classes: Sequence[Value], decided: Decided | None
) -> NDArray[np.intp]:
    """For each patient, of whom `shares` has a row, the class that is called: without a decision the likeliest, and the
    first of those that are equally likely."""
    if decided is None:
        best: NDArray[np.intp] = np.argmax(shares, axis=1)
        return best
    positive = decided.place(classes)
    return np.where(shares[:, positive] >= decided.threshold, positive, 1 - positive)


def choose_one(shares: Sequence[float], classes: Sequence[Value], decided: Decided | None) -> int:
    """The same for one patient."""
    return int(choose(np.array([shares], dtype=np.float64), classes, decided)[0])


def warn_of_specificity(decided: Decided | None) -> list[str]:
    """A warning where a threshold flags everybody by whom it was chosen."""
    if decided is None or decided.specificity is None or decided.specificity > 0:
        return []
    return [
        f"the threshold {decided.threshold:.3g} ({decided.rule}) flags all of {decided.told_by}: it tells nobody apart"
    ]


def warn_of_all_flagged(decided: Decided | None, tally: Tally | None) -> list[str]:
    """A warning where a threshold flags all patients whom a model has learned from, or none of them."""
    if decided is None or tally is None or not tally.tells:
        return []
    chances, counted = tally.count()
    flagged, patients = int(counted[:, chances >= decided.threshold].sum()), int(counted.sum())
    if 0 < flagged < patients:
        return []
    who = "all" if flagged else "none"
    return [
        f"the threshold {decided.threshold:.3g} ({decided.rule}) flags {who} of the {patients} training patients: it "
        "tells nobody apart"
    ]


def find_positive(
    decision: str, target: str, classes: Sequence[Value], positive: Value | None = None
) -> int | None:
    """Which of the classes a decision is about, the second of two where the study does not say; None where there is
    nothing to decide. StudyError where there are more than two, or where the positive one is not among them."""
    if parse(decision).kind == "majority" or len(classes) < 2:
        return None
    if len(classes) > 2:
        raise StudyError(
            f"a decision by {decision!r} is between two classes, and {target!r} has {len(classes)}: leave it out, or "
            "take a method that tells one value from all others (rulefit, voting-trees)"
        )
    if positive is None:
        return 1
    labels = [label(value) for value in classes]
    if label(positive) not in labels:
        raise StudyError(
            f"the positive class {label(positive)!r} is none of the classes of {target!r}: {', '.join(labels)}"
        )
    return labels.index(label(positive))


def decide(
    decision: str, positive: Value, prevalence: float, tally: Tally | None = None, own: Tally | None = None
) -> tuple[Decided | None, str]:
    """What the model stores, and what its card says of it; `prevalence` is the share of the positive class among those
    learned from, and `tally` is needed where the rule is `tallied`. With a tally of a first fit, `own` is that of the
    model itself."""
    rule = parse(decision)
    if rule.kind == "majority":
        return None, ""
    # More than the prevalence, by more than rounding makes it: a patient of whom the model knows nothing is not called.
    threshold, known = min(max(prevalence, 0.0) * (1 + ROUNDING), 1.0), None
    if rule.kind == "cost":
        threshold = float(rule.amount)
    elif rule.tallied and tally is not None:
        known = _find_threshold(rule, tally)
        if known is not None:
            threshold = _match_share(tally, known[0], own) if own is not None and own.tells else known[0]
    decided = Decided(decision, positive, threshold)
    if known is not None and tally is not None:
        decided = msgspec.structs.replace(
            decided, sensitivity=known[1], specificity=known[2], told_by=tally.who
        )
    failed = rule.tallied and known is None
    doubt = "; those counted are all of one class, so that it is the prevalence" if failed else ""
    return decided, say_decided(decided) + doubt


def _find_threshold(rule: CallingRule, tally: Tally) -> tuple[float, float, float] | None:
    """The chance from which on patients are called, with sensitivity and specificity there; None where only one class
    was counted. Of thresholds that do equally well it is the highest."""
    chances, counted = tally.count()
    everyone = counted.sum(axis=1).tolist()
    if not all(everyone):
        return None
    somebody = counted.any(axis=0)  # where nobody rests, nothing is told
    chances, counted = chances[somebody], counted[:, somebody]
    # From the highest chance down: how many of each class are called from there on.
    called = counted[:, ::-1].cumsum(axis=1).tolist()
    sensitivity = [Fraction(count, everyone[1]) for count in called[1]]
    alarms = [Fraction(count, everyone[0]) for count in called[0]]
    if rule.kind == "sensitivity":
        best = next(index for index, reached in enumerate(sensitivity) if reached >= rule.amount)
    else:
        best = max(range(len(chances)), key=lambda index: (sensitivity[index] - alarms[index], -index))
    return float(chances[::-1][best]), float(sensitivity[best]), float(1 - alarms[best])


def _match_share(tally: Tally, threshold: float, own: Tally) -> float:
    """The chance from which on a model calls most nearly the share of patients that another calls from its threshold
    on; of two that are equally near, the higher one."""
    chances, counted = tally.count()
    share = counted[:, chances >= threshold].sum() / counted.sum()
    chances, counted = own.count()
    called = counted.sum(axis=0)[::-1].cumsum()  # from the highest chance down
    away = np.where(called > 0, np.abs(called / called[-1] - share), np.inf)
    return float(chances[::-1][np.argmin(away)])


@dataclass(frozen=True)
class ErrorCosts:
    """What an error about a patient of each class weighs; `first` is the class that is called where two weigh the
    same."""

    weights: tuple[int, ...]
    first: int = 0

    def call(self, counts: Sequence[int]) -> int:
        """The class whose patients weigh most."""
        return max(
            range(len(counts)),
            key=lambda index: (counts[index] * self.weights[index], index == self.first, -index),
        )


def weigh_errors(decision: str, counts: Sequence[int], positive: int | None) -> ErrorCosts:
    """What errors weigh by the decision, where these are the patients learned from: the same for all classes under
    `majority`; by their costs; otherwise as balanced accuracy weighs them, so that a class is called where it is
    commoner than among all."""
    rule = parse(decision)
    if positive is None:
        return ErrorCosts((1,) * len(counts))
    if rule.kind == "cost":
        missed, alarm = rule.amount.denominator - rule.amount.numerator, rule.amount.numerator
    else:
        missed, alarm = max(int(counts[1 - positive]), 1), max(int(counts[positive]), 1)
    weights = (alarm, missed) if positive else (missed, alarm)
    return ErrorCosts(weights, positive if rule.kind == "cost" else 1 - positive)


def say_decided(decided: Decided) -> str:
    """At which risk the positive class is predicted, and why, for cards, reports and consultations."""
    rule = parse(decided.rule)
    least = f"a risk of {_say_chance(decided.threshold)}"
    if decided.votes is not None:
        least = f"{math.ceil(decided.threshold * decided.votes)} of {decided.votes} votes"
    said = f"predicts {label(decided.positive)} at {least} or more"
    if rule.kind == "prevalence":
        return f"{said}: the prevalence among the patients learned from"
    if rule.kind == "alarm":
        return f"{said}: where the student's alarm begins"
    if rule.kind == "cost":
        missed, alarm = decided.rule.split()[1].split(":")
        return f"{said}: a missed patient costs {missed}, a false alarm {alarm}"
    aim = f"for a sensitivity of {decided.rule.split()[1]}" if rule.kind == "sensitivity" else "by Youden"
    if decided.sensitivity is None or decided.specificity is None:
        return f"{said}, {aim}"
    everybody = "; that is everybody: no higher one does" if not decided.specificity else ""
    return (
        f"{said}, {aim}: among {decided.told_by} sensitivity {decided.sensitivity:.3f}, specificity "
        f"{decided.specificity:.3f}{everybody}"
    )


def _say_chance(chance: float) -> str:
    """A chance in percent, to three digits."""
    return f"{100 * chance:.3g} %"


EDGES = 256
# Of each class: a bin that ends with the first edge, one between every two, and one that begins with the last.
BINS = EDGES + 1
FURTHEST = 8.0
NARROWEST = 1e-6


def find_edges(low: float, high: float) -> NDArray[np.float64]:
    """Edges for a model whose log odds are between these. The first and the last are half a bin further out, so that no
    rounding puts those with the least or the greatest odds on another side than the model's own."""
    low, high = (min(max(end, -FURTHEST), FURTHEST) for end in (low, high))
    beyond = max(high - low, NARROWEST) / (2 * (EDGES - 2))
    return np.linspace(low - beyond, high + beyond, EDGES)


def count_chances(
    odds: NDArray[np.float64], positive: NDArray[np.bool_], edges: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Patients with these log odds by class and bin, [class, bin], negative first."""
    cells = positive * BINS + np.searchsorted(edges, odds, side="right")
    return np.bincount(cells, minlength=2 * BINS).reshape(2, BINS)


def read_chances(counts: NDArray[np.int64], edges: NDArray[np.float64], who: str = LEARNED_FROM) -> Tally:
    """What these counts tell; a bin stands for its lower end."""
    negatives, positives = counts.reshape(2, BINS).tolist()
    return Tally([0.0, *probability(edges).tolist()], negatives, positives, who)


def probability(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance that goes with log odds, without overflow."""
    half: NDArray[np.float64] = 0.5 * (1 + np.tanh(0.5 * odds))
    return half
