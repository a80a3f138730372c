"""Where rules are looked for: public limits of each variable, intervals of a window (docs/methods.md, section 6.4).

Claim. Protected: a patient whose rules are shared, from whoever knows other patients' rules. The limits come from
public clinical ranges (or are stated by hand), never from other patients' values, so that a patient's rules depend on
that patient alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from concilium.errors import StudyError, nearest
from concilium.records.clinical_ranges import CLINICAL_RANGES, ClinicalRange, place_limits
from concilium.records.series import Series
from concilium.temporal.formula import LARGEST_NUMBER, Formula, Limit
from concilium.temporal.rebuilding import rebuild


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """`limits` are the numbers that each variable may be compared with, rising; a window has so many `steps`.

    `widths` says for each variable what counts as one unit of robustness (without it: the span of its limits), so that
    degrees and millimetres of mercury can be weighed against each other.
    """

    limits: Mapping[str, tuple[float, ...]]
    steps: int
    widths: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if not self.limits:
            raise StudyError("a search needs at least one variable with limits")
        limits = {name: _read_limits(name, numbers) for name, numbers in self.limits.items()}
        object.__setattr__(self, "limits", limits)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise StudyError(f"a window has a whole number of steps, at least one step; got {self.steps!r}")
        odd = [name for name in self.widths or {} if name not in limits]
        if odd:
            raise StudyError(f"there is a width of {odd[0]!r}, but no limits{nearest(odd[0], limits)}")
        widths = {name: self._find_width(name) for name in self.limits}
        object.__setattr__(self, "widths", widths)

    @classmethod
    def from_ranges(
        cls,
        names: Iterable[str],
        steps: int,
        ranges: Mapping[str, ClinicalRange] = CLINICAL_RANGES,
    ) -> SearchSpace:
        """Limits at round numbers in and around the reference range of each variable."""
        chosen = list(names)
        unknown = [name for name in chosen if name not in ranges]
        if unknown:
            raise StudyError(
                f"there is no clinical range of {unknown[0]!r}{nearest(unknown[0], ranges)}; state its limits, as in "
                f"SearchSpace({{{unknown[0]!r}: (1.0, 2.0)}}, steps={steps})"
            )
        widths = {name: ranges[name].high - ranges[name].low for name in chosen}
        return cls({name: place_limits(ranges[name]) for name in chosen}, steps, widths)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.limits)

    @cached_property
    def intervals(self) -> tuple[tuple[int, int], ...]:
        """The whole window, its halves, and its quarters at the end."""
        last = self.steps - 1
        middle, late = self.steps // 2, self.steps - max(1, self.steps // 4)
        every = {(0, last), (0, max(0, middle - 1)), (middle, last), (late, last), (last, last)}
        return tuple(sorted(every))

    def scale(self, series: Series) -> Series:
        """The variables of the space in units of their widths."""
        assert self.widths is not None
        chosen = series.choose(self.names)
        return chosen.with_stays(
            {name: values / np.float32(self.widths[name]) for name, values in chosen.stays.items()}
        )

    @cached_property
    def scaled_limits(self) -> Mapping[str, tuple[float, ...]]:
        """The limits in units of their widths, as they are compared with what `scale` gives."""
        assert self.widths is not None
        return {
            name: tuple((np.array(numbers, np.float32) / np.float32(self.widths[name])).tolist())
            for name, numbers in self.limits.items()
        }

    def unscale_formula(self, formula: Formula) -> Formula:
        """A formula about the scaled variables, about the variables as they are."""

        def unscale(part: Formula) -> Formula:
            if not isinstance(part, Limit):
                return part
            assert isinstance(part.variable, str)
            assert isinstance(part.number, float)
            place = self.scaled_limits[part.variable].index(part.number)
            return Limit(part.variable, part.relation, self.limits[part.variable][place])

        return rebuild(formula, unscale)

    def _find_width(self, name: str) -> float:
        numbers = self.limits[name]
        width = (self.widths or {}).get(name, numbers[-1] - numbers[0] or 1.0)
        if not (math.isfinite(width) and width > 0):
            raise StudyError(f"the width of {name!r} must be a number above zero; got {width!r}")
        return float(width)


def _read_limits(name: str, numbers: Iterable[float]) -> tuple[float, ...]:
    try:
        limits = tuple(float(number) for number in numbers)
    except (TypeError, ValueError):
        limits = ()
    if not limits or not all(abs(number) <= LARGEST_NUMBER for number in limits):
        raise StudyError(
            f"the limits of {name!r} must be finite numbers, at least one, that fit 32 bits; got {numbers!r}"
        )
    if any(np.float32(second) <= np.float32(first) for first, second in pairwise(limits)):
        raise StudyError(f"the limits of {name!r} must rise, as numbers of 32 bits; got {numbers!r}")
    return limits
