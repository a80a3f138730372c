"""Whether quartiles of hospitals show two units."""

from __future__ import annotations

import pytest

from concilium.records.columns import say_plain
from concilium.records.units import find_other_unit

GLUCOSE = (88.0, 100.0, 120.0)


def scale(quartiles, factor, start=0.0):
    return tuple(each * factor + start for each in quartiles)


@pytest.mark.parametrize("factor", [10, 18.02, 38.67, 88.4, 100, 1000])
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_hospital_in_another_unit_is_named(factor, odd):
    tables = {name: GLUCOSE if place != odd else scale(GLUCOSE, factor) for place, name in enumerate("abc")}
    found = find_other_unit("glu", tables)
    assert (found.larger, found.factor) == ("abc"[odd], factor)
    tables = {
        name: GLUCOSE if place != odd else scale(GLUCOSE, 1 / factor) for place, name in enumerate("abc")
    }
    found = find_other_unit("glu", tables)
    assert (found.smaller, found.factor) == ("abc"[odd], factor)


def test_names_that_are_known_have_their_own_factors():
    temperature, height = (36.5, 36.8, 37.2), (160.0, 168.0, 175.0)
    assert find_other_unit("Temp", {"a": temperature, "b": scale(temperature, 1.8, 32)}).factor == 2.66
    assert find_other_unit("Height", {"a": height, "b": scale(height, 1 / 2.54)}).factor == 2.54
    newborns, adults = (2.9, 3.3, 3.6), (65.0, 76.0, 88.0)
    assert find_other_unit("Weight", {"a": adults, "b": newborns}) is None
    assert find_other_unit("Weight", {"a": adults, "b": scale(adults, 2.2046)}).factor == 2.2
    assert find_other_unit("Age", {"a": (6.0, 7.0, 8.0), "b": (74.0, 80.0, 85.0)}) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1.3, 2.4, 7.1), (29.3, 44.1, 58.2)),  # ages of burnt children and adults: 18 times, and wide
        ((7.0, 10.0, 14.0), (25.0, 34.0, 45.0)),  # diabetes, juvenile and adult
        ((1.0, 1.0, 1.0), (10.0, 10.0, 10.0)),  # a code
        ((-1.0, 1.0, 2.0), (10.0, 20.0, 30.0)),
        (GLUCOSE, scale(GLUCOSE, 5)),  # no units differ by that
    ],
)
def test_other_patients_are_no_other_unit(one, other):
    assert find_other_unit("x", {"a": one, "b": other}) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.426999807, "0.427"),
        (71.25, "71.25"),
        (71.0, "71"),
        (12345.678, "12346"),
        ("0.426999807", "0.426999807"),
        (True, "true"),
        (None, "(missing)"),
    ],
)
def test_values_are_said_with_four_digits(value, said):
    assert say_plain(value) == said
