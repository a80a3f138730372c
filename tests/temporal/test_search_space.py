"""Public limits: round numbers around the reference range, whoever the patients are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from concilium.errors import StudyError
from concilium.records.clinical_ranges import CLINICAL_RANGES, place_limits
from concilium.records.series import Series
from concilium.temporal.parsing import parse
from concilium.temporal.search_space import SearchSpace


@pytest.mark.parametrize("name", list(CLINICAL_RANGES))
def test_limits_lie_in_and_around_the_reference_range(name):
    clinical = CLINICAL_RANGES[name]
    limits = place_limits(clinical)
    assert all(clinical.lowest <= number <= clinical.highest for number in limits)
    assert all(first < second for first, second in itertools.pairwise(limits))
    assert 1 <= len(limits) <= 20
    assert limits[-1] > clinical.low


def test_limits_are_numbers_that_people_say():
    assert place_limits(CLINICAL_RANGES["HR"]) == tuple(range(40, 141, 10))
    assert place_limits(CLINICAL_RANGES["Temp"]) == (35.5, 36.0, 36.5, 37.0, 37.5, 38.0, 38.5, 39.0)


def test_intervals_stay_in_the_window():
    for steps in range(1, 30):
        space = SearchSpace({"HR": (90.0,)}, steps)
        assert all(0 <= first <= last < steps for first, last in space.intervals)
        assert (0, steps - 1) in space.intervals


def test_scaling_changes_no_comparison_and_comes_back():
    space = SearchSpace.from_ranges(["Temp", "Lactate"], 3)
    draw = np.random.default_rng(2)
    grids = {name: draw.choice(np.array(space.limits[name], np.float32), (3, 50)) for name in space.names}
    series = Series(grids)
    scaled = space.scale(series)
    for name in space.names:
        for number, other in zip(space.limits[name], space.scaled_limits[name], strict=True):
            formula, form = parse(f"G[0,2] {name} >= {number}"), parse(f"G[0,2] {name} >= {other!r}")
            assert (formula.satisfied(series) == form.satisfied(scaled)).all()
            assert space.unscale_formula(form) == formula


@pytest.mark.parametrize(
    ("limits", "steps", "widths", "problem"),
    [
        ({}, 3, None, "at least one variable"),
        ({"HR": ()}, 3, None, "finite numbers, at least one"),
        ({"HR": (1.0, float("nan"))}, 3, None, "finite"),
        ({"HR": (2.0, 1.0)}, 3, None, "must rise"),
        ({"HR": (1.0, 2.0)}, 0, None, "at least one step"),
        ({"HR": (1.0, 2.0)}, 3, {"HR": 0.0}, "above zero"),
        ({"HR": 90}, 3, None, "finite numbers"),
        ({"HR": ("high",)}, 3, None, "finite numbers"),
        ({"HR": (1e39,)}, 3, None, "fit 32 bits"),
        ({"HR": (1e9, 1e9 + 1)}, 3, None, "must rise, as numbers of 32 bits"),
        ({"HR": (1.0, 2.0)}, "6h", None, "whole number of steps"),
        ({"HR": (1.0, 2.0)}, 3, {"hr": 5.0}, "width of 'hr', but no limits; did you mean 'HR'"),
    ],
)
def test_bad_spaces(limits, steps, widths, problem):
    with pytest.raises(StudyError, match=problem):
        SearchSpace(limits, steps, widths)


def test_a_variable_without_a_range_is_named():
    with pytest.raises(StudyError, match="no clinical range of 'Temparature'"):
        SearchSpace.from_ranges(["Temparature"], 3)
