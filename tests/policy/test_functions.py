"""The functions of substitutions, one by one, and the documentation's examples of them."""

from __future__ import annotations

import re
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.policy import parse
from concilium.policy.functions import (
    FUNCTIONS,
    SMALL_AREAS,
    Call,
    Secret,
    _shift_date,
    _shift_days,
    read_call,
)
from concilium.records.columns import Value
from concilium.records.expression import Mistake

DOCS = Path(__file__).parents[2] / "docs" / "constraint-graphs.md"
SECRET = Secret(b"0123456789abcdef")


def run(call: str, value: Value) -> Value | None:
    return read_call(call).change(SECRET, "patient")(value)


@pytest.mark.parametrize(
    ("call", "value", "changed"),
    [
        ("year()", "1950-01-31", "1950"),
        ("year()", "1950-01-31T10:00:00+01:00", "1950"),
        ("year()", "1950-01", "1950"),
        ("year()", "1950", "1950"),
        ("year()", 1950, "1950"),
        ("year()", "19500131", "1950"),
        ("year()", 19500131, "1950"),
        ("year()", "195001311030", "1950"),
        ("year()", "31.01.1950", "1950"),
        ("year()", "1/31/1950", "1950"),
        ("year()", "31/01.1950", None),
        ("year()", "about 1950", None),
        ("year()", "1950-01-31 Ann Lee", None),
        ("year()", 47, None),
        ("year()", True, None),
        ("decade()", "1957-03-02", "1950s"),
        ("decade()", 1957, "1950s"),
        ("decade()", 47, "40s"),
        ("decade()", "7.5", "0s"),
        ("decade()", -3, None),
        ("decade()", "old", None),
        ("first3()", "Schmidt", "Sch"),
        ("first3()", 12345, "123"),
        ("first3()", "ab", "ab"),
        ("zip3()", "02139", "021"),
        ("zip3()", "02139-4307", "021"),
        ("zip3()", 2139, "021"),
        ("zip3()", "03601", "000"),
        ("zip3()", "2139", None),
        ("zip3()", "SW1A 1AA", None),
        ("round()", 72.5, 73),
        ("round(5)", 72.6, 75),
        ("round(5)", "72.4", 70),
        ("round(5)", -2.5, 0),
        ("round(0.1)", 0.25, 0.3),
        ("round(10)", "n/a", None),
        ("round(10)", True, None),
        ("round(10)", float("inf"), None),
        ("generalise()", "E11.65", "E11.6"),
        ("generalise()", "E11.6", "E11"),
        ("generalise()", "E11", None),
        ("generalise()", "e119", "e11"),
        ("generalise()", "250.01", "250.0"),
        ("generalise()", 250.01, "250.0"),
        ("generalise()", "E812.0", "E812"),
        ("generalise()", "V58.61", "V58.6"),
        ("generalise()", "S72.001A", "S72.001"),
        ("generalise()", "73211009", None),
        ("generalise()", "diabetes", None),
        ("generalise(3)", "E11.65", "E11"),
        ("generalise(4)", "E11.65", "E11.6"),
        ("generalise(4)", "E11", "E11"),
        ("generalise(3)", "E812.0", "E81"),
        ("generalise(3)", "HIV", None),
    ],
)
def test_functions(call: str, value: Value, changed: Value | None) -> None:
    result = run(call, value)
    assert result == changed
    assert type(result) is type(changed)


def test_small_areas_are_those_of_safe_harbor() -> None:
    assert len(SMALL_AREAS) == 17
    assert all(run("zip3()", f"{area}01") == "000" for area in SMALL_AREAS)


def test_hash_depends_on_value_and_secret_only() -> None:
    one = run("hash()", "a")
    assert isinstance(one, str)
    assert re.fullmatch("[0-9a-f]{32}", one)
    assert one == run("hash()", "a") != run("hash()", "b")
    assert run("hash()", 5) == run("hash()", "5")
    assert read_call("hash()").change(Secret(b"another key of 16"))("a") != one
    assert read_call("hash()").change(None)("a") is None
    assert "0123" not in repr(SECRET)
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Secret(b"short")


def test_days_are_spread_over_the_whole_window_and_never_zero() -> None:
    days = [_shift_days(SECRET, str(patient), 5) for patient in range(2_000)]
    assert set(days) == {*range(-5, 0), *range(1, 6)}
    # Ten outcomes of 200 each: five standard deviations.
    assert all(abs(days.count(day) - 200) < 5 * (2_000 * 0.1 * 0.9) ** 0.5 for day in set(days))


dates = st.dates(date(1900, 1, 1), date(2100, 1, 1))


@given(dates, dates, st.integers(-3_650, 3_650))
def test_shifted_dates_keep_their_distances(one: date, two: date, days: int) -> None:
    first, second = _shift_date(one.isoformat(), days), _shift_date(two.strftime("%Y%m%d") + "1030", days)
    assert first == (one + timedelta(days=days)).isoformat()
    assert second == (two + timedelta(days=days)).strftime("%Y%m%d") + "1030"


@pytest.mark.parametrize(
    "value", ["1950", "1950-01", "2020-02-30", "20200230", "soon", "2020-01-01 at Ann's", "0001-01-01"]
)
def test_what_is_not_a_whole_date_is_not_shifted(value: str) -> None:
    assert _shift_date(value, -400) is None


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("shift_dates()", Call("shift_dates")),
        ("shift_dates(mrn)", Call("shift_dates", ("mrn",))),
        ("shift_dates( `medical record`, 30 )", Call("shift_dates", ("medical record", 30.0))),
        ("round (0.5)", Call("round", (0.5,))),
    ],
)
def test_calls_are_read(text: str, call: Call) -> None:
    assert read_call(text) == call


UNKNOWN = [
    "yeer()",
    "__import__(os)",
    "year(1)",
    "hash(x)",
    "round(a)",
    "round(1, 2)",
    "round(-1)",
    "round(1e400)",
]
UNFIT = [
    "generalise(2)",
    "shift_dates(a, b)",
    "shift_dates(0)",
    "shift_dates(1.5)",
    "shift_dates(a b)",
    "shift_dates(,)",
]


@pytest.mark.parametrize("text", UNKNOWN + UNFIT)
def test_calls_that_cannot_be_meant_are_refused(text: str) -> None:
    with pytest.raises(Mistake):
        read_call(text, place=3)


def documented() -> list[tuple[str, str, str]]:
    rows = re.findall(
        r"^\| `/(.*\))/` \| .* \| `(.*)` \| `(.*)` \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    return [(call, before, after) for call, before, after in rows]


def test_every_function_is_documented() -> None:
    assert {call.partition("(")[0] for call, _, _ in documented()} == set(FUNCTIONS)


@pytest.mark.parametrize(("call", "before", "after"), documented())
def test_documented_examples(call: str, before: str, after: str) -> None:
    rules = parse(f"graph S {{ node x substitute x.v =~ /{call}/; }}", secret=b"an example secret, not yours")
    node: dict[str, Any] = {"id": "a", "mrn": "7", "v": before}
    changed = rules.apply({"nodes": [node]})
    assert changed is not None
    assert str(changed["nodes"][0]["v"]) == after
