"""A hospital's map: its own columns, values, units, dates and customs become those of the dictionary, cell by cell."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import ConciliumError, RecordsError, StudyError
from concilium.records.columns import label
from concilium.records.dictionary import Dictionary
from concilium.records.table_map import TableMap, _count_time

DICTIONARY = Dictionary.parse(
    {
        "age": {"unit": "years", "range": [0, 120]},
        "sex": {"values": {"f": "female", "m": "male"}},
        "chol": {"unit": "mg/dl", "range": [80, 700], "molar_mass": 386.65},
        "bp": {"unit": "mmHg", "range": [40, 300]},
        "disease": {"values": [0, 1]},
    },
    "d.toml",
)
CSV = (
    "geb;aufn;geschlecht;chol;rr;num\n"
    '01.02.1960;03.02.2020;1;"5,2";120;0\n'
    '05.05.1950;04.05.2020;2;"6";0;2\n'
    "?;04.05.2020;01;?;130;?\n"
)
MAP = """
missing = ["?"]
decimal = ","
dates = "%d.%m.%Y"
[columns]
age = { from = "geb", until = "aufn", in = "years" }
sex = { from = "geschlecht", values = { 1 = "m", 2 = "f" } }
chol = { from = "chol", unit = "mmol/l" }
bp = { from = "rr", missing = ["0"] }
disease = "num > 0"
"""


def parse(text):
    return TableMap.parse(tomllib.loads(text), "north.map.toml")


def read(tmp_path, csv, text, dictionary=DICTIONARY):
    path = tmp_path / "north.csv"
    path.write_text(csv, encoding="utf-8")
    return cc.Records.read(path, dictionary=dictionary, map=parse(text))


def test_a_german_table_becomes_the_study_s(tmp_path):
    records = read(tmp_path, CSV, MAP)
    assert records.values("age") == [60, 69, None]  # born on the 5th, admitted on the 4th
    assert records.values("sex") == ["m", "f", "m"]
    assert records.values("chol") == [201.058, 231.99, None]
    assert records.values("bp") == [120, None, 130]
    assert records.values("disease") == [0, 1, None]
    assert "geb" not in records
    assert "num" in records
    assert all(records[name].by_itself for name in DICTIONARY)


def test_a_ledger_is_bound_to_the_table_as_it_was_read(tmp_path):
    mapped = read(tmp_path, CSV, MAP)
    plain = cc.Records.read(tmp_path / "north.csv")
    assert mapped.digest == plain.digest
    assert mapped.take(np.array([0, 2])).digest == plain.take(np.array([0, 2])).digest
    names = sorted(plain.names)
    assert sorted(mapped.lasting_names) == names
    np.testing.assert_array_equal(mapped.tell_apart(names), plain.tell_apart(names))


def test_a_map_can_be_mended_and_the_ledger_goes_on(tmp_path):
    csv = "g,y\n" + "".join(f"{i % 2},{int(i % 3 == 0)}\n" for i in range(30))
    for text in ("", '[columns]\nsex = { from = "g", values = { 0 = "f", 1 = "m" } }'):
        records = read(tmp_path, csv, text)
        cc.Site("north", records, ledger=tmp_path / "north.ledger").ledger.close()


@pytest.mark.parametrize(
    ("cell", "text", "value"),
    [
        ("1.234,5", 'decimal = ","\nthousands = "."', 1234.5),
        ("1'234.5", 'thousands = "\'"', 1234.5),
        ("-9.0", "missing = [-9]", None),
        ("180", '[columns.chol]\nfrom = "chol"\nunit = "mg/dl"', 180),
        ("1.8", '[columns.chol]\nfrom = "chol"\nunit = "g/l"', 180),
        ("none", '[columns.chol]\nfrom = "chol"\nvalues = { none = 0 }', 0),
    ],
)
def test_how_numbers_are_written(tmp_path, cell, text, value):
    assert read(tmp_path, f'chol;y\n"{cell}";1\n', text).values("chol") == [value]


@pytest.mark.parametrize(
    ("cell", "text", "problem"),
    [
        (
            "?",
            "",
            r"chol is a number by the dictionary, but line 2 holds '\?'; name it as missing under \[map\]",
        ),
        ("5,2", "", "line 2 holds '5,2'; if commas are decimal here, write decimal = \",\""),
        ("5.2", 'decimal = ","', r"line 2 holds '5\.2'; numbers have ',' by \[map\]"),
        (
            "5",
            '[columns]\nchol = "cholesterol"',
            "'chol' comes from 'cholesterol', a column that .* does not have",
        ),
        ("5", '[columns.chol]\nfrom = "chol"\nunit = "mmHg"', "mmHg cannot be converted to mg/dl"),
        ("5", '[columns.chol]\nfrom = "chol"\nunit = "foo"', "foo is no unit that is known"),
        ("x", '[columns]\nage = { from = "chol", until = "2020-01-01" }', "'x' is no date as ISO 8601"),
        ("1", '[columns]\ndisease = "nom > 0"', "there is no attribute nom"),
    ],
)
def test_what_does_not_fit_is_said_with_line_and_remedy(tmp_path, cell, text, problem):
    with pytest.raises(RecordsError, match=problem):
        read(tmp_path, f'chol;y\n"{cell}";1\n', text)


ODD_CELLS = {
    "": ["180", "5,2", "4,9", "?", "x", "200"],
    'decimal = ","': ["180", "5,2", "4.9", "1.5", "?", "x"],
    '[columns]\nage = { from = "chol", until = "2020-01-01" }': ["1999-01-01", "1970-05-31", "x", "1.1.1970"],
}


@given(st.data(), st.sampled_from(list(ODD_CELLS)))
def test_the_first_line_that_does_not_fit_is_named(tmp_path_factory, data, text):
    folder = tmp_path_factory.mktemp("lines")
    cells = data.draw(st.lists(st.sampled_from(ODD_CELLS[text]), min_size=1, max_size=30))

    def fits(cell):
        try:
            return read(folder, f'chol;y\n"{cell}";1\n', text) is not None
        except RecordsError:
            return False

    wrong = [line for line, cell in enumerate(cells, start=2) if not fits(cell)]
    table = "chol;y\n" + "".join(f'"{cell}";1\n' for cell in cells)
    if not wrong:
        assert len(read(folder, table, text)) == len(cells)
        return
    line = wrong[0]
    with pytest.raises(RecordsError, match=rf"line {line}[ :]") as error:
        read(folder, table, text)
    assert repr(cells[line - 2]) in str(error.value)


def test_a_row_of_a_sheet_is_named_by_its_number_there(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in ([], ["chol", "y"], [180, 1], [], ["5,2", 1], ["4,9", 0]):
        book.active.append(row)
    book.save(tmp_path / "north.xlsx")
    with pytest.raises(RecordsError, match="row 5 holds '5,2'"):
        cc.Records.read(tmp_path / "north.xlsx", dictionary=DICTIONARY, map=parse(""))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('mising = ["?"]', "[map] has no key 'mising'; did you mean 'missing'?"),
        ('age = "alter"', "[map] has no key 'age'; columns stand under [map.columns]"),
        ('decimal = ";"', 'decimal is "." or ","'),
        ('decimal = ","\nthousands = ","', "decimal and thousands must differ"),
        ('[columns]\nage = { form = "x" }', "[map.columns] age has no key 'form'; did you mean 'from'?"),
        ("[columns]\nage = 5", "must be the name of a column, a condition, or keys"),
        ('[columns]\nage = { unit = "kg" }', "needs either from, a column of the hospital's own, or where"),
        ('[columns]\nd = "num >"', "[map.columns] d: expected a value"),
        ('[columns]\nage = { from = "a", in = "years" }', "in goes with until"),
        ('[columns]\nage = { from = "a", until = "b", in = "decades" }', "invalid enum value 'decades'"),
    ],
)
def test_a_mistake_in_a_map_is_one_sentence(text, problem):
    with pytest.raises(StudyError) as caught:
        parse(text)
    assert problem in str(caught.value)


def test_typed_sources_are_mapped_too(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"g": [1, 2, 1], "c": [5.2, -9.0, 6.0], "num": [0, 3, 1]})
    text = 'missing = ["-9"]\ndecimal = ","\n[columns]\nsex = { from = "g", values = { 1 = "m", 2 = "f" } }\n'
    text += 'chol = { from = "c", unit = "mmol/l" }\ndisease = "num > 0"'
    records = cc.Records.read(frame, dictionary=DICTIONARY, map=parse(text))
    assert records.values("sex") == ["m", "f", "m"]
    assert records.values("chol") == [201.058, None, 231.99]
    assert records.values("disease") == [0, 1, 1]
    assert records.digest == cc.Records.read(frame).digest


CELLS = st.sampled_from(["1", "1.0", "01", "2", "?", "", "x", "5,5", "TRUE", "m", "Male", "NA", "7"])


@given(
    st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6), st.lists(st.tuples(CELLS, CELLS), max_size=6)
)
def test_how_a_cell_is_read_never_depends_on_another_patient(tmp_path_factory, rows, others):
    """The oracle reads every patient from a file of his own."""
    folder = tmp_path_factory.mktemp("map")
    text = 'missing = ["?"]\n[columns]\nsex = { from = "a", values = { 1 = "m" } }\ndisease = "b > 1"'

    def labels(patients):
        csv = "a;b;c\n" + "".join(f'"{a}";"{b}";0\n' for a, b in patients)
        records = read(folder, csv, text)
        return [
            tuple(None if v is None else label(v) for v in row)
            for row in zip(records.values("sex"), records.values("disease"), strict=True)
        ]

    together = labels([*rows, *others])[: len(rows)]
    assert together == [labels([row])[0] for row in rows]


def test_months_and_years_are_those_completed():
    begin = np.array(["2000-02-29", "2000-01-31", "1999-12-31"], dtype="datetime64[us]")
    end = np.array(["2001-02-28", "2000-02-29", "2000-12-31"], dtype="datetime64[us]")
    assert _count_time(begin, end, "years").tolist() == [0, 0, 1]
    assert _count_time(begin, end, "months").tolist() == [11, 0, 12]
    assert _count_time(begin, end, "days").tolist() == [365, 29, 366]


def test_without_the_extra_the_command_that_installs_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pint", None)
    with pytest.raises(ConciliumError, match=r"pip install 'concilium\[units\]'"):
        read(tmp_path, "chol;y\n5;1\n", '[columns.chol]\nfrom = "chol"\nunit = "mmol/l"')
