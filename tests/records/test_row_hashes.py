"""One digest for one table, in any order, from any source and however it is read; another for other patients."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.records.columns import Numbers
from concilium.records.delimited import look
from concilium.records.grammar import DEFAULT_MISSING
from concilium.records.row_hashes import count_before
from concilium.records.table import Records
from csv_oracle import read_carefully

cells = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_infinity=False), st.text(max_size=3)
)
numbers = st.sampled_from(
    [
        "1",
        "1.0",
        "1.",
        " 1",
        "0",
        "-0",
        "007",
        "7",
        "+5",
        "5",
        ".5",
        "0.5",
        "1e3",
        "1000",
        "inf",
        "-inf",
        "1e400",
        "9007199254740993",
        "9007199254740992",
        "",
        "NA",
        "null",
        "+0",
        "00",
        "-01",
        "-1",
        "Infinity",
        "+inf",
    ]
)
texts = st.one_of(
    numbers,
    st.sampled_from(
        ["TRUE", "true", "False", "a", " a", "-", "999", "2020-01-02", "2020-01-02 00:00:00", "(missing)"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=3),
)


def write(folder: str, columns: dict[str, list[str]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    path = Path(folder) / "t.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 6))
def test_the_digest_is_of_the_raw_rows_however_they_are_read(data, count):
    def column(cell):
        return st.lists(cell, min_size=count, max_size=count)

    columns = {"a": data.draw(column(numbers)), "b": data.draw(column(texts)), "c": data.draw(column(texts))}
    stated = st.fixed_dictionaries(
        {},
        optional={
            "a": st.sampled_from(["code", "number"]),
            "b": st.just("code"),
            "c": st.just("code"),
        },
    )
    missing = st.sets(st.sampled_from(["", "NA", "999", "a", "7", "007", "-", "1"])).map(sorted)
    order = data.draw(st.permutations(range(count)))
    turned = {
        name: [columns[name][row] for row in order] for name in data.draw(st.permutations(list(columns)))
    }
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, columns)
        digest = Records.read(path).digest
        read_as = {"schema": data.draw(stated), "missing": {*data.draw(missing), "", "NA", "null"}}
        assert Records.read(path, **read_as).digest == digest
        assert (
            Records(
                read_carefully(look(path), dict.fromkeys(look(path).names), frozenset(DEFAULT_MISSING))
            ).digest
            == digest
        )
        assert Records.read(write(folder, turned), schema=data.draw(stated)).digest == digest
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert Records.from_rows(rows).digest == digest
    assert Records.read(pd.DataFrame(rows)).digest == digest


@pytest.mark.parametrize("kind", ["number", "code"])
@pytest.mark.parametrize("odd", ["007", "+7", "NA", "999"])
def test_columns_of_many_numbers_are_no_exception(tmp_path, kind, odd):
    many = [f"{number / 7:.5f}" for number in range(5000)]
    digests = []
    for cell in (odd, "7"):
        path = write(str(tmp_path), {"x": [*many, cell]})
        plain = Records.read(path).digest
        for missing in (None, ["", "NA", "999"], ["", "NA", "0.14286"]):
            assert Records.read(path, schema={"x": kind}, missing=missing).digest == plain
        part = Records.read(path, schema={"x": kind}, missing=["NA", "999"]).take(np.arange(4000, 5001))
        assert part.digest == Records.read(write(str(tmp_path), {"x": [*many[4000:], cell]})).digest
        digests.append(plain)
    assert digests[0] != digests[1]


@settings(deadline=None)
@given(st.lists(st.fixed_dictionaries({"a": cells, "b": cells}), min_size=1, max_size=8), st.randoms())
def test_the_digest_is_of_all_rows_and_names_and_of_no_order(rows, dice):
    records = Records.from_rows(rows)
    assert len(records.digest) == 64
    assert records.digest == Records.from_rows(dice.sample(rows, len(rows))).digest
    assert records.digest == Records({name: records[name] for name in records.names[::-1]}).digest
    assert records.digest != Records({f"{name}c": records[name] for name in records.names}).digest
    assert records.digest != Records({"a": records["b"], "b": records["a"], "c": records["a"]}).digest
    assert records.digest != Records.from_rows([*rows, rows[0]]).digest
    longer = [*rows, {"a": "someone", "b": "else"}]
    assert Records.from_rows(longer).digest not in (records.digest, Records.from_rows([*longer, {}]).digest)
    parts = records.take(np.arange(len(rows)) % 2 == 0)
    assert parts.digest == Records.from_rows(rows[::2]).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 0], [True, False]),
        (["ab", "c"], ["a", "bc"]),
        ([0.5, None], [0.5, 0.0]),
        (["x", None], ["x", "-"]),
        (["007", "7"], ["7", "7"]),
        (["0389"], ["389"]),
        (["a"], [" a"]),
        ([1.0], [np.nextafter(1.0, 2)]),
    ],
)
def test_the_digest_tells_cells_apart(one: list[object], other: list[object]) -> None:
    first, second = (Records.from_rows([{"a": value} for value in values]) for values in (one, other))
    assert first.digest != second.digest


def test_cells_that_move_between_rows_make_other_patients() -> None:
    rows = [{"a": "x", "b": 1}, {"a": "y", "b": 2}]
    crossed = [{"a": "x", "b": 2}, {"a": "y", "b": 1}]
    assert Records.from_rows(rows).digest != Records.from_rows(crossed).digest
    assert Records.from_rows([{"a": 1, "b": 2}]).digest != Records.from_rows([{"a": 2, "b": 1}]).digest


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.data())
def test_patients_are_told_apart_also_where_they_are_equal(letters, data):
    records = Records.from_rows([{"a": letter, "b": 1} for letter in letters])
    apart = records.tell_apart()
    assert len({tuple(pair) for pair in apart.T.tolist()}) == len(letters)
    rows = np.array(data.draw(st.lists(st.integers(0, len(letters) - 1), unique=True)), dtype=np.intp)
    part = records.take(rows)
    assert np.array_equal(part.tell_apart(), apart[:, rows])
    assert np.array_equal(part.take(np.arange(len(part))[::-1]).tell_apart(), apart[:, rows[::-1]])
    turned = Records.from_rows([{"b": 1, "a": letter, "c": None} for letter in letters[::-1]])
    assert set(turned.tell_apart(["a", "b"])[0].tolist()) == set(apart[0].tolist())
    before = count_before(np.array([[ord(letter) for letter in letters]] * 2, dtype=np.uint64))
    wanted = [letters[:row].count(letter) for row, letter in enumerate(letters)]
    assert (before.tolist() if before is not None else [0] * len(letters)) == wanted


# What ledgers of an earlier version are bound to


@settings(deadline=None)
@given(st.lists(st.fixed_dictionaries({"a": cells, "b": cells}), min_size=1, max_size=8))
def test_digest_in_order_is_of_the_content(rows: list[dict[str, object]]) -> None:
    records = Records.from_rows(rows)
    same = Records({name: records[name] for name in records.names})
    assert records.digest_in_order == same.digest_in_order
    assert len(records.digest_in_order) == 64
    assert (
        records.digest_in_order
        != Records({f"{name}c": records[name] for name in records.names}).digest_in_order
    )
    assert (
        records.digest_in_order
        != Records({name: records[name] for name in records.names[::-1]}).digest_in_order
    )
    assert records.digest_in_order != Records.from_rows([*rows, rows[0]]).digest_in_order
    longer = [*rows, {"a": "someone", "b": "else"}]
    assert Records.from_rows(longer).digest_in_order != Records.from_rows(longer[::-1]).digest_in_order


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 0], [True, False]),
        ([1, 0], ["1", "0"]),
        (["ab", "c"], ["a", "bc"]),
        ([0.5, None], [0.5, 0.0]),
        (["x", None], ["x", ""]),
    ],
)
def test_digest_in_order_tells_values_apart(one: list[object], other: list[object]) -> None:
    first, second = (Records.from_rows([{"a": value} for value in values]) for values in (one, other))
    assert first.digest_in_order != second.digest_in_order


def test_digest_in_order_tells_a_stated_code_from_a_number_and_forgets_the_sign_of_zero() -> None:
    rows = [{"a": 1}, {"a": 2}]
    assert Records.from_rows(rows).digest_in_order != Records.from_rows(rows, {"a": "code"}).digest_in_order
    assert Records.from_rows(rows).digest_in_order != Records.from_rows(rows, {"a": "number"}).digest_in_order
    zeros = [Records({"a": Numbers(np.array([zero, 0.5]))}).digest_in_order for zero in (0.0, -0.0)]
    assert zeros[0] == zeros[1]
