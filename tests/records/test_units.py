"""Units as hospitals write them: by UCUM or by pint, and a sentence where neither is sure."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import RecordsError
from concilium.records.units import convert


@pytest.mark.parametrize(
    ("unit", "to", "factor"),
    [
        ("mmol/L", "umol/L", 1000),
        ("mg/dL", "g/l", 0.01),
        ("mg/dl", "mg/L", 10),
        ("10*9/L", "10^9/l", 1),
        ("10*9/L", "1/l", 1e9),
        ("10*3/uL", "10*9/L", 1),
        ("10^12/L", "10*6/uL", 1),
        ("/uL", "10*9/L", 0.001),
        ("mm[Hg]", "mmHg", 1),
        ("kPa", "mm[Hg]", 7.500615758),
        ("cm[H2O]", "mm[Hg]", 0.7355591353),
        ("%", "1", 0.01),
        ("mmol/mol", "%", 0.1),
        ("/min", "{beats}/min", 1),
        ("{beats}/min", "1/s", 1 / 60),
        ("mL/min/{1.73_m2}", "ml/min", 1),
        ("mg/g{creat}", "mg/g", 1),
        ("kg/m2", "kg/m^2", 1),
        ("u[IU]/mL", "m[IU]/L", 1),
        ("U/L", "mU/mL", 1),
        ("[lb_av]", "kg", 0.45359237),
        ("[in_i]", "cm", 2.54),
        ("wk", "day", 7),
        ("µmol/l", "umol/L", 1),
        ("{score}", "1", 1),
    ],
)
def test_units_of_laboratories(unit, to, factor):
    there = convert(np.array([1.0, 250.0]), unit, to, "x")
    assert there == pytest.approx([factor, 250 * factor], rel=1e-9)
    assert convert(there, to, unit, "x") == pytest.approx([1, 250], rel=1e-9)


def test_temperatures_have_another_zero():
    for celsius in ("Cel", "degC", "°C"):
        for fahrenheit in ("[degF]", "degF", "°F"):
            assert convert(np.array([98.6, 212]), fahrenheit, celsius, "x").tolist() == [37, 100]


@pytest.mark.parametrize(
    ("unit", "to", "sentence"),
    [
        ("10E9/L", "10*9/L", r"the unit 10E9/L is not clear: 10E9 may be meant as 10\*9 or as 10\*10"),
        ("10 * 9/L", "1/l", "the unit 10 . 9/L is not clear: write 10.9/L without blanks"),
        ("mL/min/1.73.m2", "ml/min", "a factor such as 1.73 belongs in braces"),
        ("K/uL", "10*9/L", r"K is kelvin: thousands in a microlitre are 10\*3/uL"),
        ("meq/L", "mmol/L", "how many equivalents a mole has is the ion's charge"),
        ("mEq/L", "mmol/L", r"mEq/L is no unit that is known; write it in UCUM, such as mmol/L, 10\*9/L"),
        ("bpm", "/min", "bpm is no unit that is known"),
        ("mmol/l", "mg/dl", "need its molar_mass, in g/mol"),
        ("mmHg", "mg/dl", "mmHg cannot be converted to mg/dl"),
        ("9^9^9^9", "1", "a power has one or two digits"),
        ("9**9**9", "1", "a power has one or two digits"),
        ("10*999999999/L", "1/l", "a power has one or two digits"),
        ("m" * 100, "1", "at most 60 characters"),
        ("", "mg/dl", "cannot be converted|no unit"),
    ],
)
def test_what_is_not_sure_is_a_sentence(unit, to, sentence):
    with pytest.raises(RecordsError, match=sentence) as refusal:
        convert(np.array([1.0]), unit, to, "north.csv, column 'x'")
    assert str(refusal.value).startswith("north.csv, column 'x': ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("mass", "mmol", "mg_dl"),
    [(386.65, 5.0, 193.325), (180.156, 5.5, 99.0858), (113.12, 0.1, 1.1312)],
)
def test_amounts_of_substance_need_the_molar_mass(mass, mmol, mg_dl):
    """Cholesterol, glucose, creatinine; the oracle is the definition: mmol/l x g/mol / 10 is mg/dl."""
    assert convert(np.array([mmol]), "mmol/L", "mg/dL", "x", molar_mass=mass) == pytest.approx([mg_dl])
    assert convert(np.array([mg_dl]), "mg/dL", "mmol/L", "x", molar_mass=mass) == pytest.approx([mmol])


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("mgdlLuUol/10*9^.[]{}%HKeE -"), max_size=8))
def test_any_text_is_a_unit_or_a_sentence(text):
    with suppress(RecordsError):
        assert convert(np.array([1.0]), text, "mg/dl", "x").shape == (1,)
