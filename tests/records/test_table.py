from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import RecordsError
from concilium.records.columns import Coded, Numbers, label
from concilium.records.table import Records

ROWS = [
    {"age": 63, "sex": "male", "site": 2, "weight": 71.5, "smoker": True},
    {"age": 41.0, "sex": "female", "site": 1, "weight": None, "smoker": False},
    {"age": None, "sex": None, "site": 2, "weight": 80.25},
    {"age": 63, "sex": "female", "site": 10, "weight": float("nan"), "smoker": True},
]
cells = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_infinity=False), st.text(max_size=3)
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (5.0, "5"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        ("5.0", "5.0"),
        ("", ""),
        (None, "(missing)"),
        (float("nan"), "(missing)"),
        (float("inf"), "inf"),
    ],
)
def test_label_is_one_text_for_one_value(value: object, text: str) -> None:
    assert label(value) == text


def test_rows_become_codes_and_numbers() -> None:
    records = Records.from_rows(ROWS)
    assert len(records) == 4
    assert records.names == ("age", "sex", "site", "weight", "smoker")
    age, sex, weight, smoker = (records[name] for name in ("age", "sex", "weight", "smoker"))
    assert isinstance(age, Coded)
    assert age.values == (41, 63)
    assert all(type(value) is int for value in age.values)
    assert age.codes.tolist() == [2, 1, 0, 2]
    assert age.numeric
    assert isinstance(sex, Coded)
    assert sex.values == ("female", "male")
    assert not sex.numeric
    assert isinstance(weight, Numbers)
    assert np.isnan(weight.numbers).tolist() == [False, True, False, True]
    assert isinstance(smoker, Coded)
    assert smoker.values == (False, True)
    assert not smoker.numeric
    assert records.values("smoker") == [True, False, None, True]


def test_a_stated_kind_overrides_inference() -> None:
    records = Records.from_rows(ROWS, schema={"site": "code", "age": "number"})
    site, age = records["site"], records["age"]
    assert isinstance(site, Coded)
    assert site.values == (1, 2, 10)
    assert site.stated
    assert not site.numeric
    assert isinstance(age, Numbers)
    with pytest.raises(RecordsError, match=r"column 'sex' is stated as a number, but row 1 holds 'male'"):
        Records.from_rows(ROWS, schema={"sex": "number"})
    with pytest.raises(RecordsError, match=r"'wieght' that is not there; did you mean 'weight'\?"):
        Records.from_rows(ROWS, schema={"wieght": "number"})
    with pytest.raises(RecordsError, match=r"a 'codes', but a column is .* did you mean 'code'\?"):
        Records.from_rows(ROWS, schema={"sex": "codes"})


def test_unknown_columns_name_the_nearest() -> None:
    records = Records.from_rows(ROWS)
    assert "age" in records
    assert "agee" not in records
    with pytest.raises(RecordsError, match=r"no column 'agee'; did you mean 'age'\?"):
        records["agee"]


def test_tables_that_are_none() -> None:
    with pytest.raises(RecordsError, match="no patients"):
        Records.from_rows([])
    for wrong in ({"a": 1}, [5]):
        with pytest.raises(RecordsError, match="row 1 must map names to values"):
            Records.from_rows(wrong)
    with pytest.raises(RecordsError, match="at least one column"):
        Records.from_rows([{}])
    with pytest.raises(RecordsError, match="'b' has 2 rows, but column 'a' has 1"):
        Records({"a": Numbers(np.zeros(1)), "b": Numbers(np.zeros(2))})
    with pytest.raises(RecordsError, match="column 2 has no name"):
        Records.from_rows([{"a": 1, " ": 2}])
    with pytest.raises(RecordsError, match="column 'a' holds a list in row 2"):
        Records.from_rows([{"a": 1}, {"a": [1]}])


@pytest.mark.parametrize(
    ("values", "dtype"), [(255, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.uint32)]
)
def test_codes_take_the_narrowest_type(values: int, dtype: type) -> None:
    column = Coded(np.arange(values + 1, dtype=np.int64), tuple(range(values)))
    assert column.codes.dtype == dtype
    assert int(column.codes.max()) == values


def test_codes_without_a_value_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Coded(np.array([2], dtype=np.uint8), ("a",))
    with pytest.raises(ValueError, match="between 0 and 1"):
        Coded(np.array([-1]), ("a",))
    with pytest.raises(TypeError, match="vector of whole numbers"):
        Coded(np.array([1.0]), ("a",))


@settings(deadline=None)
@given(st.lists(st.fixed_dictionaries({"a": cells, "b": cells}), min_size=1, max_size=12), st.data())
def test_take_is_the_rows_and_keeps_all_values(rows: list[dict[str, object]], data: st.DataObject) -> None:
    records = Records.from_rows(rows)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    chosen = np.flatnonzero(mask)
    for taken in (records.take(mask), records.take(chosen), records.take(chosen.tolist())):
        assert len(taken) == mask.sum()
        for name in records.names:
            whole, part = records[name], taken[name]
            assert taken.values(name) == [
                value for value, kept in zip(records.values(name), mask, strict=True) if kept
            ]
            if isinstance(whole, Coded):
                assert isinstance(part, Coded)
                assert (part.values, part.codes.dtype) == (whole.values, whole.codes.dtype)


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(RecordsError, match="mask of 2 rows does not fit a table of 4 patients"):
        Records.from_rows(ROWS).take(np.array([True, False]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 10, 700]), cells), min_size=1, max_size=20))
def test_split_gives_every_patient_to_its_own_part_in_order(rows: list[tuple[int, object]]) -> None:
    records = Records.from_rows([{"site": site, "x": cell} for site, cell in rows])
    parts = records.split("site")
    assert list(parts) == [str(site) for site in sorted({site for site, _ in rows})]
    natural = records.values("x")
    for name, part in parts.items():
        assert part.names == ("x",)
        assert part.values("x") == [
            value for value, (site, _) in zip(natural, rows, strict=True) if str(site) == name
        ]


def test_split_refuses_what_would_lose_patients() -> None:
    records = Records.from_rows(ROWS)
    with pytest.raises(RecordsError, match=r"'sex' is missing for 1 of 4 patients, first in row 3"):
        records.split("sex")
    with pytest.raises(RecordsError, match="'weight' holds measurements"):
        records.split("weight")
    with pytest.raises(RecordsError, match="no column but 'site'"):
        Records.from_rows([{"site": 1}]).split("site")


def test_a_table_without_patients_is_still_a_table() -> None:
    none = Records.from_rows([*ROWS, {"empty": None}]).take(np.zeros(5, dtype=bool))
    assert len(none) == 0
    assert none.split("sex") == none.split("empty") == {}
    assert none.values("age") == []
    assert none.digest != Records.from_rows(ROWS).digest


def test_split_leaves_out_values_that_nobody_has() -> None:
    parts = Records.from_rows(ROWS).take(np.array([0, 1])).split("site")
    assert list(parts) == ["1", "2"]


def test_a_million_patients_with_262_codes_fit_in_300_megabytes() -> None:
    rows = 20_000
    cells = np.random.default_rng(1).integers(0, 9, (rows, 262)).astype(np.float64)
    cells[cells == 8] = np.nan
    records = Records.read(pd.DataFrame(cells))
    assert len(records.names) == 262
    held = sum(records[name].codes.nbytes for name in records.names)
    assert held * (1_000_000 // rows) <= 300_000_000


def test_a_patient_is_read_without_duckdb() -> None:
    check = "import sys; from concilium.records.table import Records; Records.from_rows([{'a': 1}]); "
    heavy = "print([name for name in ('duckdb', 'pandas', 'psycopg', 'numba') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check + heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
