"""What a model predicts: one of two classes, or a number within a public range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, HouseError, MessageError, StudyError
from concilium.models.threshold import probability
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import MOST_INTEGER_VALUES, Cohort
from concilium.protocol.grid import DECADES
from concilium.protocol.questions import Conversation
from concilium.protocol.schema import set_against_rest
from concilium.records.columns import Coded, Value, label

# Public edges for a second look at a column of which no patient lies between the study's own.
WIDE_EDGES = DECADES

CELLS_OF_RANGE = 16
FEW = 10  # patients of a class; a model of fewer says so

# Given attributes: their histograms, missing first, by name.
AskHistograms = Callable[[Sequence[Attribute]], Conversation[dict[str, NDArray[np.int64]]]]


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a model: yes or no with logistic loss, or a number with squared loss.

    `positive` is the value that counts as yes; `low` and `high` are the range of a number. One or the other. A number
    is held between the public ends of its range and measured in half ranges from its middle, so that no single patient
    weighs more than the study says and sums keep their precision.
    """

    positive: str | int | float | bool | None = None
    low: float | None = None
    high: float | None = None

    @property
    def binary(self) -> bool:
        return self.positive is not None

    def check(self) -> None:
        ranged = self.low is not None and self.high is not None
        if self.binary == ranged or (self.low is None) != (self.high is None):
            raise MessageError("an outcome has a positive value or a range, and not both")
        if self.low is not None and self.high is not None and not -1e300 < self.low < self.high < 1e300:
            raise MessageError("the range of an outcome must rise from its low to its high end")

    def at_site(self, cohort: Cohort, target: str) -> NDArray[np.float64]:
        """The outcome of each patient of a cohort: 0 or 1, or from -1 to 1."""
        if not self.binary:
            return self.scale(cohort.view.measured(target, cohort.rows))
        column = cohort.view.records[target]
        if not isinstance(column, Coded):
            column = cohort.view.coded(target)
        return np.take(self.is_positive(column), column.codes[cohort.rows])

    def is_positive(self, column: Coded) -> NDArray[np.float64]:
        """For each code of a column 1 where it stands for the positive value (5 and '5' are one), otherwise 0."""
        if self.positive is None:
            raise DoesNotFit("this outcome is a number")
        name = label(self.positive)
        return np.array([0.0, *(float(label(value) == name) for value in column.values)])

    @property
    def ends(self) -> tuple[float, float]:
        """The range of a number."""
        if self.low is None or self.high is None:
            raise DoesNotFit("this outcome is no number")
        return self.low, self.high

    def scale(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers as half ranges from the middle of the range."""
        low, high = self.ends
        return (2 * np.clip(values, low, high) - (low + high)) / (high - low)

    def unscale(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What half ranges from the middle mean in the outcome's own unit."""
        low, high = self.ends
        return (values * (high - low) + (low + high)) / 2

    @property
    def unit(self) -> float:
        """What one step of the predictor is in the outcome's own unit: half a range; 1 where it is log odds."""
        return 1.0 if self.low is None or self.high is None else (self.high - self.low) / 2

    def loss(self, outcome: NDArray[np.float64], predictor: NDArray[np.float64]) -> NDArray[np.float64]:
        """What each patient adds to the loss; `predictor` may have several columns, [patient, candidate]."""
        outcome = outcome.reshape(-1, *[1] * (predictor.ndim - 1))
        if self.binary:
            return np.logaddexp(0, predictor) - outcome * predictor
        return 0.5 * (outcome - predictor) ** 2

    def residual(self, outcome: NDArray[np.float64], predictor: NDArray[np.float64]) -> NDArray[np.float64]:
        """The first derivative of each patient's loss."""
        return (probability(predictor) if self.binary else predictor) - outcome

    def curvature(self, predictor: NDArray[np.float64]) -> NDArray[np.float64]:
        """The second derivative of each patient's loss."""
        if not self.binary:
            return np.ones_like(predictor)
        chance = probability(predictor)
        return chance * (1 - chance)


def refuse_number(target: str, found: Sequence[Value], instead: str = "") -> None:
    """StudyError where a target without a range has more numbers as values than a model of classes can have."""
    numbers = [value for value in found if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(found) or len(found) <= MOST_INTEGER_VALUES:
        return
    low, high = min(numbers), max(numbers)
    raise StudyError(
        f"{target!r} is a number: hospitals have {len(found)} values of it, {say_number(low)} to {say_number(high)}. "
        f"ShapeModel, RuleFit and Regression (family = 'gaussian') predict it within its range, bins = "
        f"{{{target!r}: [{low}, {high}]}}{instead}"
    )


def order_classes(target: str, found: Sequence[Value], positive: Value | None) -> list[Value]:
    """The two classes of a target with these values, the positive one second: it, and all others together."""
    if len(found) < 2:
        only = f"{target} = {label(found[0])}" if found else f"no {target}"
        raise HouseError(f"all patients of the query have {only}: there is nothing to predict")
    if positive is None:
        if len(found) > 2:
            refuse_number(target, found, ". To tell one value from all others, state it as 'positive'")
            shown = ", ".join(map(label, found[:5])) + (", ..." if len(found) > 5 else "")
            raise StudyError(f"{target!r} has {len(found)} values ({shown}): say which is 'positive'")
        return list(found)
    own = [value for value in found if label(value) == label(positive)]
    if not own:
        raise StudyError(
            f"no patient has {target} = {label(positive)}; there are {', '.join(map(label, found[:10]))}"
        )
    return [*set_against_rest(own[0], [value for value in found if value is not own[0]])]


def warn_of_few(
    target: str, classes: Sequence[Value], counts: Sequence[float], by: object = None
) -> list[str]:
    """A caution where a class has fewer patients than anything can be learned from. `by`: the time of the outcome."""
    fewest, rarest = min(zip(counts, map(label, classes), strict=True))
    if fewest >= FEW:
        return []
    return [
        f"{fewest:.0f} of {sum(counts):.0f} patients have {target} = {rarest}{'' if by is None else f' by {by}'}: too "
        "few to learn from. What the model says about it may be chance"
    ]


def say_number(value: float, sign: str = "") -> str:
    """A number as people read it: four digits, or whole with its thousands set apart; `sign="+"` for a change."""
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value + 0.0:{sign}.4g}"


def missed(histogram: NDArray[np.int64]) -> bool:
    """Whether all patients with a value lie beyond the edges, on one side."""
    bins = np.maximum(histogram[1:], 0)
    return len(bins) > 2 and bool(bins.sum() > 0 and max(bins[0], bins[-1]) == bins.sum())


def say_missed(edges: Sequence[float], wide: NDArray[np.int64]) -> str:
    """What to say of bins that miss all data: which they are, and which range would do."""
    bins = np.maximum(wide[1:], 0)
    held = np.flatnonzero(bins)
    ends = (-np.inf, *WIDE_EDGES, np.inf)
    would = "give edges within the range of the column"
    if held.size:  # a site that leaves small counts out does not say where its patients are
        would = f"edges between {ends[held[0]]:g} and {ends[held[-1] + 1]:g} would do"
    return f"its bins, {edges[0]:g} to {edges[-1]:g}, miss all patients: {would}"


def find_range(target: str, edges: Sequence[float]) -> Outcome:
    """The outcome of which a study's bins give the range."""
    if len(edges) < 2:
        raise StudyError(f"the 'bins' of {target!r} must give the range of a number: two at least")
    return Outcome(low=edges[0], high=edges[-1])


def cut_range(outcome: Outcome) -> tuple[float, ...]:
    """Public edges between the ends of a number's range. The upper end itself is in it, and a bin would begin there."""
    *edges, last = np.linspace(*outcome.ends, CELLS_OF_RANGE + 1).tolist()
    return (*edges, math.nextafter(last, math.inf))


def check_range(target: str, outcome: Outcome, ask: AskHistograms) -> Conversation[list[str]]:
    """StudyError where no patient's number lies in the range that the study states; what to say where some do not."""
    low, high = outcome.ends
    edges = cut_range(outcome)[::CELLS_OF_RANGE]
    histogram = (yield from ask([Attribute(target, edges)]))[target]
    if missed(histogram):
        wide = (yield from ask([Attribute(target, WIDE_EDGES)]))[target]
        raise StudyError(f"{target!r} cannot be predicted: {say_missed(edges, wide)}")
    below, within, above = np.maximum(histogram[1:], 0).tolist()
    if not below + above:
        return []
    share = (below + above) / (below + within + above)
    return [
        f"{share:.1%} of the patients have a {target} beyond its range, {say_number(low)} to "
        f"{say_number(high)}, and count as its ends"
    ]
