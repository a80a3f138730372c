from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import RecordsError
from concilium.records.coding import (
    Kind,
    Numbering,
    Place,
    _arrange,
    _drop_missing,
    _guess_values,
    code_dictionary,
    code_numbers,
    code_texts,
    code_values,
    reads_as_number,
)
from concilium.records.columns import Coded, Column, Numbers, label
from concilium.records.grammar import TRUTH, canonical, is_moment, is_number, is_whole, tidy_moment
from concilium.records.table import Records

HERE = Place("here", "column")
numbers = st.one_of(
    st.integers(-(2**53), 2**53).map(float),
    st.integers(-3, 3).map(float),
    st.floats(width=32),
    st.just(float("nan")),
)
kinds = st.sampled_from([None, "code", "number"])


def natural(column: Column) -> list[object]:
    if isinstance(column, Coded):
        return [None if code == 0 else column.values[code - 1] for code in column.codes.tolist()]
    return [None if np.isnan(number) else number for number in column.numbers.tolist()]


def expected(values: list[float], kind: Kind | None) -> tuple[list[object], bool]:
    """The rules, value by value: the natural values and whether they are codes."""
    present = {value for value in values if value == value}
    whole = all(
        abs(value) < 2**53 and Fraction(value).denominator == 1 for value in present if abs(value) != np.inf
    )
    whole = whole and not any(abs(value) == np.inf for value in present)
    if kind == "number" or (kind is None and not (whole and len(present) <= 256)):
        return [value if value == value else None for value in values], False
    if whole:
        return [int(value) if value == value else None for value in values], True
    return [label(value) if value == value else None for value in values], True


odd_texts = st.one_of(
    st.sampled_from(["1", "-2", "0.5", "01", "TRUE", "false", "inf", "-Inf", "Ice", "P01", " x", " 3", "3 ", "", "NA"]),
    st.sampled_from(["2020-01-02 00:00:00", "2020-01-02", "9007199254740993", "é", "(missing)", "1,5", "\t"]),
)  # fmt: skip


@given(st.lists(odd_texts, max_size=12))
def test_texts_stand_for_what_they_stand_for_one_by_one_or_all_together(texts):
    """The rules of the module, without a way around for columns of plain text."""
    bare = [text.strip(" \t") for text in texts]
    if bare and all(text in TRUTH for text in bare):
        rule = [TRUTH[text] for text in bare]
    elif all(is_whole(text) and abs(int(text)) < 2**53 for text in bare):
        rule = [int(text) for text in bare]
    elif all(map(reads_as_number, bare)) and any(map(is_number, bare)):
        rule = [float(text) for text in bare]
    elif all(map(is_moment, bare)):
        rule = [tidy_moment(text) for text in bare]
    else:
        rule = [canonical(text) for text in texts]
    found = _guess_values(texts)
    assert list(found) == rule
    assert list(map(type, found)) == list(map(type, rule))


@given(st.lists(st.one_of(st.none(), odd_texts), max_size=12), st.booleans())
def test_categories_are_in_order_whatever_order_they_come_in(values, in_order):
    if in_order:
        values = sorted({value for value in values if value is not None})
    categories, codes = _arrange(values, None)
    assert list(categories) == sorted({value for value in values if value is not None})
    assert [None if code == 0 else categories[code - 1] for code in codes] == values


@given(st.lists(odd_texts, max_size=12), st.sampled_from([("",), ("", "NA"), ("P01", "3"), ()]))
def test_what_is_missing_is_missing_with_blanks_around_it(texts, missing):
    expected = [None if text.strip(" \t") in missing else text for text in texts]
    assert list(_drop_missing(texts, frozenset(missing))) == expected


@settings(deadline=None)
@given(st.lists(numbers, max_size=30), kinds)
def test_numbers_become_columns_by_the_rules_however_they_come(
    values: list[float], kind: Kind | None
) -> None:
    wanted, coded = expected(values, kind)
    index = Numbering()
    codes = index.code([None if value != value else value for value in values])
    ways = [
        code_numbers(np.array(values, dtype=np.float64), kind),
        code_values(values, kind, HERE),
        code_dictionary(codes, index.distinct, kind, HERE),
    ]
    for column in ways:
        assert natural(column) == wanted
        assert isinstance(column, Coded) == coded
        if isinstance(column, Coded):
            assert list(column.values) == sorted({value for value in wanted if value is not None})
            assert column.stated == (kind == "code")


@pytest.mark.parametrize("spread", [1, 10_000_019])
@pytest.mark.parametrize(
    ("distinct", "kind", "coded"), [(256, None, True), (257, None, False), (257, "code", True)]
)
def test_whole_numbers_are_codes_up_to_256_distinct_values(
    distinct: int, kind: Kind | None, coded: bool, spread: int
) -> None:
    cells = np.resize(np.arange(distinct, dtype=np.float64), 30_000) * spread - 7
    cells[::13] = np.nan
    column = code_numbers(cells, kind)
    assert isinstance(column, Coded) == coded
    if isinstance(column, Coded):
        values, codes = np.unique(cells[~np.isnan(cells)], return_inverse=True)
        assert column.values == tuple(values.astype(int).tolist())
        assert np.array_equal(column.codes[~np.isnan(cells)], codes + 1)
        assert not column.codes[np.isnan(cells)].any()
    else:
        assert np.array_equal(column.numbers, cells, equal_nan=True)


def test_a_column_that_turns_to_fractions_late_is_numbers() -> None:
    cells = np.ones(30_000)
    cells[-1] = 0.5
    assert isinstance(code_numbers(cells), Numbers)


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["5", "-3", "0"], [5, -3, 0]),
        ([" 5", "5\t"], [5, 5]),
        (["5", "5.0", "1e1"], [5, 5, 10]),
        (["0.5", ".5", "5."], [0.5, 0.5, 5.0]),
        (["1.5", "inf", "-Infinity"], [1.5, float("inf"), float("-inf")]),
        (["inf", "ant"], ["inf", "ant"]),
        (["inf"], ["inf"]),
        (["0389", "4019"], ["0389", "4019"]),
        (["038.9", "401.9"], ["038.9", "401.9"]),
        (["-01"], ["-01"]),
        (["+1", "2"], ["+1", "2"]),
        (["1_000", "2"], ["1_000", "2"]),
        (["9007199254740991", "1"], [9007199254740991, 1]),
        (["9007199254740993", "1"], ["9007199254740993", "1"]),
        (["9007199254740993", "1.5"], ["9007199254740993", "1.5"]),
        (["12345678901234567890.5", "1"], [1.2345678901234567e19, 1.0]),
        (["true", "False", "TRUE"], [True, False, True]),
        (["true", "1"], ["true", "1"]),
        (["2020-01-02 00:00:00", "2020-01-02T03:04:05.50"], ["2020-01-02", "2020-01-02 03:04:05.5"]),
        (
            ["2020-01-02T03:04:05Z", "2020-01-02 03:04:05+0200"],
            ["2020-01-02 03:04:05+00:00", "2020-01-02 01:04:05+00:00"],
        ),
        (["2020-13-02 00:00:00"], ["2020-13-02 00:00:00"]),
        (["2020-01-02 00:00:00.1234567"], ["2020-01-02 00:00:00.1234567"]),
        (["2020-01-02 00:00:00", "later"], ["2020-01-02", "later"]),
        (["2020-01-02", "5"], ["2020-01-02", "5"]),
        (["None", "5"], ["None", "5"]),
        (["NA", "", "5", " ?"], [None, None, 5, None]),
        (["NA"], [None]),
        (["٣", "5"], ["٣", "5"]),
    ],
)
def test_what_texts_of_a_file_stand_for(texts: list[str], values: list[object]) -> None:
    index = Numbering()
    column = code_texts(
        index.code(texts),
        [str(t) for t in index.distinct],
        None,
        HERE,
        frozenset({"", "NA", "?"}),
        guess=True,
    )
    assert natural(column) == values
    assert [type(value) for value in natural(column)] == [type(value) for value in values]


def test_a_stated_code_is_read_cell_by_cell() -> None:
    def read(*texts: str) -> list[object]:
        codes = np.arange(1, len(texts) + 1)
        return natural(code_texts(codes, texts, "code", HERE, frozenset({"NA"}), guess=True))

    assert read("250.0", "250.00") == [250, 250]
    assert read("5", "12") == [5, 12]
    assert read("007", "12") == ["007", "12"]
    assert read("TRUE", "false") == [True, False]
    assert read("TRUE", "unknown", "1.0", ".5", "NA") == ["true", "unknown", "1", "0.5", None]


def test_a_stated_number_reads_what_inference_would_leave_alone() -> None:
    column = code_texts(np.array([1, 2, 3, 0]), ["007", "+5", "-INF"], "number", HERE)
    assert natural(column) == [7.0, 5.0, float("-inf"), None]
    with pytest.raises(
        RecordsError, match=r"here: column 'column' is stated as a number, but row 2 holds '1_0'"
    ):
        code_texts(np.array([0, 2, 1, 2]), ["x", "1_0"], "number", HERE)
    with pytest.raises(RecordsError, match="row 1 holds True"):
        code_dictionary(np.array([2]), (False, True), "number", HERE)


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=20),
    kinds.filter(lambda kind: kind != "number"),
)
def test_text_is_coded_in_its_own_order(values: list[str | None], kind: Kind | None) -> None:
    column = code_values(values, kind, HERE)
    assert natural(column) == values
    assert isinstance(column, Coded)
    assert list(column.values) == sorted({value for value in values if value is not None})


@pytest.mark.parametrize(
    ("values", "coded"),
    [
        ([1, "a", None, 2.0], ["1", "a", None, "2"]),
        ([True, 2], ["true", "2"]),
        ([2**53, 1], [str(2**53), "1"]),
        ([Decimal("1.5"), Decimal("2")], [1.5, 2.0]),
        ([Decimal("7"), Decimal("NaN")], [7, None]),
        ([Decimal(2**60)], [str(2**60)]),
        ([np.int64(3), np.float32("nan"), np.bool_(True)], ["3", None, "true"]),
        ([np.datetime64("2020-01-02T03:04:05", "ns"), np.datetime64("NaT")], ["2020-01-02 03:04:05", None]),
        ([date(2020, 1, 2), datetime(2020, 1, 2)], ["2020-01-02", "2020-01-02"]),
        ([datetime(2020, 1, 2, 3, 4, 5, 500_000)], ["2020-01-02 03:04:05.5"]),
        ([datetime(2020, 1, 2, tzinfo=UTC)], ["2020-01-02 00:00:00+00:00"]),
        ([datetime(2020, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))], ["2020-01-02 01:00:00+00:00"]),
    ],
)
def test_python_values_become_natural_values(values: list[object], coded: list[object]) -> None:
    column = code_values(values, None, HERE)
    assert natural(column) == coded
    assert [type(value) for value in natural(column)] == [type(value) for value in coded]


def test_a_dictionary_may_hold_unused_equal_and_missing_values() -> None:
    column = code_dictionary(np.array([3, 1, 0, 4, 5]), ["b", "unused", "a", "b", None], None, HERE)
    assert isinstance(column, Coded)
    assert column.values == ("a", "b")
    assert column.codes.tolist() == [1, 2, 0, 2, 0]


@given(
    st.sampled_from(["int8", "uint8", "int32", "uint32", "int64", "uint64"]),
    st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=30),
    st.sampled_from([3, 300, 2**22, 2**60]),
    st.sampled_from([None, "code", "number"]),
)
def test_whole_numbers_of_a_frame_are_coded_as_numbers_are(form, given, size, kind):
    """Without their detour over float64 they are what the same numbers are as a list."""
    limits = np.iinfo(form)
    numbers = np.array([min(max(n % size, limits.min), limits.max) for n in given], dtype=form)
    frame = Records.read(pd.DataFrame({"n": numbers}), schema=None if kind is None else {"n": kind})
    rows = [{"n": n} for n in numbers.tolist()]
    if kind != "number" or size < 2**53:
        listed = Records.from_rows(rows, schema=None if kind is None else {"n": kind})
        assert type(frame["n"]) is type(listed["n"])
        assert frame.values("n") == listed.values("n")
        assert frame.digest == listed.digest
        assert getattr(frame["n"], "values", None) == getattr(listed["n"], "values", None)
