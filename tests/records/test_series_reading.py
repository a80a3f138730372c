"""A series read from a table is what a plain loop over the rows of each patient makes of them."""

from __future__ import annotations

import datetime as dt
import math
from fractions import Fraction

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import RecordsError
from concilium.records.series import Series
from concilium.records.series_description import OddValues

NAMES = ("HR", "Temp", "pH")
# Plausible for each of the names, so that nothing warns.
VALUES = {"HR": [60.0, 71.5, 90.0], "Temp": [36.0, 37.25, 39.5], "pH": [7.0, 7.25, 7.5]}
STEPS = {"15min": 15, "1h": 60, "7min": 7, "1.5h": 90}
MINUTES = st.one_of(st.integers(0, 400), st.sampled_from([0, 5, 5, 30, 30, 59, 60, 90]))  # so that many meet
WITHIN = ("last", "first", "mean", "min", "max")


@st.composite
def long_rows(draw, least=1):
    """Rows (patient, minute, variable, value), in any order, also at the same time."""
    rows = []
    for _ in range(draw(st.integers(least, 25))):
        name = draw(st.sampled_from([*NAMES, "HR", "HR"]))
        value = draw(st.one_of(st.none(), st.sampled_from(VALUES[name])))
        rows.append((draw(st.sampled_from(["a", "b", "c"])), draw(MINUTES), name, value))
    return rows


def grid_by_hand(rows, minutes, within):
    """{patient: {variable: [value or None, ...]}} by a loop."""
    grids = {}
    for patient in sorted({row[0] for row in rows}):
        own = [row for row in rows if row[0] == patient]
        length = max(minute // minutes for _, minute, _, _ in own) + 1
        grids[patient] = {}
        for name in sorted({row[2] for row in rows}):
            cells = []
            for cell in range(length):
                here = [
                    (minute, value)
                    for _, minute, variable, value in own
                    if variable == name and minute // minutes == cell and value is not None
                ]
                cells.append(choose(here, within))
            grids[patient][name] = cells
    return grids


def choose(here, within):
    if not here:
        return None
    values = [value for _, value in here]
    if within == "mean":
        return float(sum(map(Fraction, values)) / len(values))
    if within in ("min", "max"):
        return {"min": min, "max": max}[within](values)
    at = {"last": max, "first": min}[within](minute for minute, _ in here)
    return max(value for minute, value in here if minute == at)


def tell(series):
    return {
        patient: {
            name: [
                None if math.isnan(value) else value
                for value in series[name][: series.lengths[row], row].tolist()
            ]
            for name in sorted(series.names)
        }
        for row, patient in enumerate(series.ids)
    }


def same(told, expected):
    rounded = {
        patient: {
            name: [None if value is None else float(np.float32(value)) for value in stay]
            for name, stay in stays.items()
        }
        for patient, stays in expected.items()
    }
    assert told == rounded


def long_frame(rows):
    return pd.DataFrame(rows, columns=["patient", "minute", "variable", "value"])


@given(long_rows(), st.sampled_from(list(STEPS)), st.sampled_from(WITHIN))
def test_a_long_table_is_read_as_by_hand(rows, step, within):
    series = Series.read(long_frame(rows), step=step, within=within)
    same(tell(series), grid_by_hand(rows, STEPS[step], within))


@given(long_rows(), st.sampled_from(WITHIN), st.randoms())
def test_the_order_of_rows_never_matters(rows, within, random):
    shuffled = random.sample(rows, len(rows))
    first, second = (Series.read(long_frame(some), within=within) for some in (rows, shuffled))
    assert first.digest == second.digest


@given(long_rows(), st.sampled_from(list(STEPS)), st.sampled_from(WITHIN))
def test_a_wide_table_is_its_long_one(rows, step, within):
    # Every row of the wide table holds one value, so that it is the same measurements.
    wide = pd.DataFrame(
        [{"patient": p, "minute": m, **dict.fromkeys(NAMES), name: value} for p, m, name, value in rows]
    )
    series = Series.read(wide, step=step, within=within, variables=sorted({row[2] for row in rows}))
    assert series.digest == Series.read(long_frame(rows), step=step, within=within).digest


@given(long_rows(least=2), long_rows())
def test_a_patient_depends_on_that_patient_alone(rows, others):
    """Whatever the other patients have, even if they are not there."""
    own = [row for row in rows if row[0] == "a"] or [("a", 5, "HR", 60.0)]
    others = [row for row in others if row[0] != "a"]
    filler = [("z", 0, name, None) for name in NAMES]  # so that all tables have the same variables
    alone = Series.read(long_frame([*own, *filler]), within="last")
    among = Series.read(long_frame([*own, *filler, *others]), within="last")
    assert tell(alone)["a"] == tell(among)["a"]
    moments = [(p, dt.datetime(2024, 5, 1) + dt.timedelta(minutes=m), v, x) for p, m, v, x in [*own, *filler]]
    later = [(p, dt.datetime(2020, 1, 1) + dt.timedelta(minutes=m), v, x) for p, m, v, x in others]
    alone, among = (
        Series.read(pd.DataFrame(some, columns=["patient", "time", "variable", "value"]))
        for some in (moments, moments + later)
    )
    assert tell(alone)["a"] == tell(among)["a"]


@given(long_rows())
def test_dates_count_from_the_first_row_of_the_patient(rows):
    start = {
        "a": dt.datetime(2024, 5, 1, 13, 7),
        "b": dt.datetime(2130, 2, 28, 23, 59),
        "c": dt.datetime(1999, 1, 1),
    }
    dated = [(p, start[p] + dt.timedelta(minutes=m), v, x) for p, m, v, x in rows]
    frame = pd.DataFrame(dated, columns=["patient", "time", "variable", "value"])
    first = {p: min(m for q, m, _, _ in rows if q == p) for p, _, _, _ in rows}
    shifted = [(p, m - first[p], v, x) for p, m, v, x in rows]
    same(tell(Series.read(frame, step="15min")), grid_by_hand(shifted, 15, "last"))
    assert tell(Series.read(frame, origin="first")) == tell(Series.read(frame))
    # From admission, by a column or by a mapping, as numbers from 0.
    admitted = frame.assign(admission=[start[p] for p in frame["patient"]])
    by_hand = grid_by_hand(rows, 60, "last")
    same(tell(Series.read(admitted, origin="admission")), by_hand)
    same(tell(Series.read(frame, origin=start)), by_hand)
    texts = frame.assign(time=[moment.isoformat() for moment in frame["time"]])
    same(tell(Series.read(texts, origin={p: moment.isoformat() for p, moment in start.items()})), by_hand)


ROWS = [
    ("1", 0.0, "HR", 80.0),
    ("1", 2.5, "Temp", 37.5),
    ("7", 1.0, "HR", 95.0),
    ("7", 3.0, "HR", None),
    ("12", 0.5, "Temp", 36.5),
]
BY_HAND = {
    1: {"HR": [80.0, None, None], "Temp": [None, None, 37.5]},
    7: {"HR": [None, 95.0, None, None], "Temp": [None] * 4},
    12: {"HR": [None], "Temp": [36.5]},
}


def write(folder, kind):
    """The same long table in a file of this kind."""
    path = folder / f"visits.{kind}"
    frame = pd.DataFrame(ROWS, columns=["patient", "time", "variable", "value"]).astype({"patient": int})
    if kind in ("csv", "csv.gz", "tsv"):
        frame.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    elif kind == "parquet":
        duckdb.from_df(frame).write_parquet(str(path))
    else:
        with duckdb.connect(str(path)) as database:
            database.execute("CREATE TABLE other (x INTEGER)")
            database.register("frame", frame)
            database.execute("CREATE TABLE visits AS SELECT * FROM frame")
    return path


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "parquet", "duckdb"])
def test_files_of_every_kind(tmp_path, kind):
    series = Series.read(write(tmp_path, kind), table="visits" if kind == "duckdb" else None)
    assert tell(series) == BY_HAND
    assert (series.step, series.step_hours, series.points) == ("1h", 1.0, 4)


def test_the_same_table_wide_in_a_text_file(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(
        "Patient ID,hour,ward,HR,Temp\n1,0,A,80,\n1,2.5,A,,37.5\n7,1,B,95,NA\n7,3,B,,\n12,0.5,B,,36.5\n"
    )
    assert tell(Series.read(path, leave_out=["ward"])) == BY_HAND
    assert tell(Series.read(path, variables=["HR", "Temp"])) == BY_HAND
    only = Series.read(path, variables=["Temp"])
    assert (only.names, only.lengths.tolist()) == (("Temp",), [3, 4, 1])
    with pytest.raises(
        RecordsError,
        match=r"variable 'ward' holds 'A', 'B', which is no finite number, in 5 rows, first in line 2; .*leave_out=",
    ):
        Series.read(path, variables=["ward", "HR"])
    named = Series.read(path)  # a column of text that nobody asked for is named, and missing
    assert named.names == ("ward", "HR", "Temp")
    assert np.isnan(named.stays["ward"]).all()
    assert any("'ward'" in note for note in named.notes)
    path.write_text(path.read_text().replace("1,0,A,", "1,0,3,"))
    with pytest.raises(RecordsError, match="variable 'ward' holds 'A', 'B', which is no finite number"):
        Series.read(path)


def test_chosen_patients_come_in_their_order():
    series = Series.read(long_frame(ROWS).rename(columns={"minute": "time"}), patients=["12", "40", 1])
    assert list(series.ids) == ["12", "40", 1]
    assert tell(series) == {"12": BY_HAND[12], "40": {"HR": [None], "Temp": [None]}, 1: BY_HAND[1]}
    assert series.describe().empty == 1
    for patients, message in (([], "names nobody"), ([1, "1"], "more than once")):
        with pytest.raises(RecordsError, match=message):
            Series.read(long_frame(ROWS), patients=patients)


def test_a_time_just_before_a_cell_by_rounding_belongs_to_it():
    times = [number / 100 for number in range(300)]
    frame = pd.DataFrame({"patient": 1, "hour": times, "HR": [60.0 + number % 7 for number in range(300)]})
    series = Series.read(frame, step="0.01h")
    assert series["HR"][:, 0].tolist() == frame["HR"].tolist()


@pytest.mark.parametrize(
    ("column", "time_unit", "hours"),
    [
        ("Minute", None, [0, 2]),
        ("minutes", None, [0, 2]),
        ("offset", None, [0, 120]),
        ("time", "days", [0, 2880]),
        ("hours", None, [0, 120]),
        ("t_s", "seconds", [0, 0]),
        ("day", "hours", [0, 120]),
    ],
)
def test_units_of_time(column, time_unit, hours):
    frame = pd.DataFrame({"patient": [1, 1], column: [0, 120], "HR": [61.0, 62.0]})
    series = Series.read(frame, time=column, time_unit=time_unit)
    assert series.lengths.tolist() == [hours[1] + 1]


def test_markers_of_missing(tmp_path):
    path = tmp_path / "marked.csv"
    path.write_text(
        "id,time,variable,value\n1,0,Height,-1\n1,0,HR,pending\n1,1,HR,70\n1,1,Score,-1\n1,2,HR, -\n2,0,Height,170\n"
    )
    with pytest.raises(
        RecordsError,
        match=r"marked.csv: variable 'HR' holds 'pending', ' -', which is no finite number, in 2 rows, first in line 3;"
        r" list what stands for a missing value in missing=",
    ):
        Series.read(path)
    by_variable = Series.read(path, missing={"Height": [-1], "HR": ["pending", "-"]})
    assert tell(by_variable)[1] == {"HR": [None, 70, None], "Height": [None] * 3, "Score": [None, -1, None]}
    everywhere = Series.read(path, missing=["pending", "-", "-1.0"])
    assert tell(everywhere)[1]["Score"] == [None] * 3
    with pytest.raises(
        RecordsError, match="missing names a variable 'Hight' that is not there; did you mean 'Height'"
    ):
        Series.read(path, missing={"Hight": [-1]})
    frame = pd.DataFrame({"patient": [1, 1], "time": [0, 1], "HR": [-1.0, 70.5], "Temp": ["?", "37.5"]})
    assert tell(Series.read(frame, missing=[-1, "?"])) == {1: {"HR": [None, 70.5], "Temp": [None, 37.5]}}


def test_odd_values_are_kept_and_told():
    frame = pd.DataFrame(
        {"patient": [1, 1, 2], "time": [0, 1, 0], "Temp": [98.6, 37.0, 99.5], "HR": [70.0, -1, 80]}
    )
    with pytest.warns(
        OddValues, match=r"plausible are kept as they are \(Temp 2, HR 1\); print\(series.describe"
    ):
        series = Series.read(frame)
    assert series["HR"][1, 0] == -1
    temp, heart = series.describe().variables
    assert "2 look like Fahrenheit" in temp.oddity
    assert "1 are -1" in heart.oddity


def test_truth_values_are_one_and_zero():
    frame = pd.DataFrame({"patient": [1, 1, 1], "time": [0, 1, 2], "meal": [True, False, True]})
    assert tell(Series.read(frame)) == {1: {"meal": [1, 0, 1]}}
    mixed = frame.assign(meal=["true", "0", "FALSE"])
    assert tell(Series.read(mixed)) == {1: {"meal": [1, 0, 0]}}


def test_rows_outside_are_refused_or_left_out():
    frame = pd.DataFrame(
        {"patient": [1, 1, 2, 2, 3], "time": [-1.0, 0, 5000, 1, np.nan], "HR": [60.0, 61, 62, 63, 64]}
    )
    with pytest.raises(
        RecordsError, match=r"there is no time in column 'time' in row 5; .*outside=\"leave out\""
    ):
        Series.read(frame)
    with pytest.raises(RecordsError, match="a time before the patient's time begins in row 1"):
        Series.read(frame.iloc[:4])
    with pytest.raises(RecordsError, match=r"a time beyond the 100 steps that longest=100 allows in row 2"):
        Series.read(frame.iloc[1:4], longest=100)
    series = Series.read(frame, longest=100, outside="leave out")
    assert tell(series) == {1: {"HR": [61]}, 2: {"HR": [None, 63]}, 3: {"HR": [None]}}
    assert [note.split(":")[0] for note in series.describe().notes] == ["left out"] * 3
    assert "1 of 5 rows, with a time before" in str(series.describe())
    far = pd.DataFrame({"patient": [1, 1, 1], "day": [1e308, -1e308, 2.0], "HR": [60.0, 61, 62]})
    assert Series.read(far, step="1min", outside="leave out").lengths.tolist() == [2 * 24 * 60 + 1]


def test_what_shares_a_step_is_told():
    rows = [
        ("a", 0, "HR", 60.0),
        ("a", 0, "HR", 90.0),
        ("a", 30, "HR", 71.5),
        ("b", 0, "HR", 60.0),
        ("b", 0, "HR", 90.0),
    ]
    series = Series.read(long_frame(rows))
    assert tell(series) == {"a": {"HR": [71.5]}, "b": {"HR": [90.0]}}
    assert series.notes == (
        "5 measurements share a step with others: the last is kept",
        "2 measurements contradict another at the same time: the largest is kept",
    )


def test_memory_is_checked_before_it_is_taken():
    frame = pd.DataFrame({"patient": range(2000), "time": 9999, "HR": 60.0, "Temp": 37.0})
    with pytest.raises(
        RecordsError, match=r"0.2 GB \(2000 patients, 20000000 steps in all, 2 variables\), more than the 0.1"
    ):
        Series.read(frame, gigabytes=0.1)


BASE = pd.DataFrame({"patient": [1, 1], "time": [0, 1], "HR": [60.0, 61.0]})


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (
            BASE,
            {"patient": "patent"},
            "patient names a column 'patent' that is not there; did you mean 'patient'",
        ),
        (
            BASE,
            {"time": "when"},
            "time names a column 'when' that is not there; there are 'patient', 'time', 'HR'",
        ),
        (BASE, {"value": "HR"}, "no column is recognised as the variable; say which with variable="),
        (BASE, {"variable": "HR", "value": "HR"}, "column 'HR' cannot be both the variable and the value"),
        (BASE, {"variables": ["time"]}, "column 'time' is the time, not a variable"),
        (BASE, {"variables": ["Hr"]}, "variables names a column 'Hr' that is not there; did you mean 'HR'"),
        (BASE, {"leave_out": "ward"}, "leave_out names a column 'ward' that is not there"),
        (BASE, {"leave_out": "HR"}, "no column of measurements beside 'patient' and 'time'"),
        (
            BASE.rename(columns={"patient": "who"}),
            {},
            "no column is recognised as the patient; say which with patient=",
        ),
        (
            BASE.rename(columns={"patient": "ID"}).assign(Subject_ID=1),
            {},
            "'ID' and 'Subject_ID' could both be the patient",
        ),
        (
            BASE.rename(columns={"time": "Hour"}).assign(date=1),
            {},
            "'Hour' and 'date' could both be the time; say which",
        ),
        (BASE, {"step": "hourly"}, "step 'hourly' is no time"),
        (BASE, {"time_unit": "hour"}, "time_unit 'hour' is none of .*did you mean 'hours'"),
        (BASE, {"within": "median"}, "within must be one of last, first, mean, min, max; got 'median'"),
        (BASE, {"outside": "drop"}, "outside must be one of refuse, leave out"),
        (BASE, {"longest": 0}, "longest must be a whole number of steps"),
        (BASE, {"origin": "admission"}, "origin names a column 'admission' that is not there"),
        (BASE, {"origin": {1: "2024-01-01"}}, "the times are numbers, but the origins are dates without"),
        (
            BASE.assign(time=["2024-01-01T10:00"] * 2),
            {"origin": {1: "2024-01-01T10:00Z"}},
            "the times are dates without a time zone, but the origins are dates with",
        ),
        (BASE, {"origin": {2: 0}}, r"origin has no time for 1 of 1 patients \('1'\)"),
        (BASE.assign(began=[0, 1]), {"origin": "began"}, "'began' must hold one time for each patient"),
        (BASE.assign(began=np.nan), {"origin": "began"}, "'began' holds no time for the patients in 2 rows"),
        (BASE.assign(patient=[1, None]), {}, "column 'patient' names no patient in row 2"),
        (
            BASE.assign(time=["0", "noon"]),
            {},
            "column 'time' holds 'noon', which is no time, in row 2; write numbers",
        ),
        (
            BASE.assign(time=["1", "2024-01-01 10:00"]),
            {},
            "holds numbers and dates without a time zone; write all",
        ),
        (
            BASE.assign(time=["2024-01-01T10:00", "2024-01-01T10:00Z"]),
            {},
            "holds dates without a time zone and dates with a time zone",
        ),
        (
            BASE.assign(time=["2024-01-01T10:00"] * 2),
            {"time_unit": "hours"},
            "holds dates, so time_unit has no meaning",
        ),
        (BASE.assign(time=[0.0, np.inf]), {}, "column 'time' holds an infinite time in row 2"),
        (BASE.assign(HR=[1.0, np.inf]), {}, "variable 'HR' holds inf, which is no finite number, in row 2"),
        (BASE.assign(HR=[1.0, 1e39]), {}, "variable 'HR' holds 1e.39, which is no finite number, in row 2"),
        (BASE.assign(HR=["{a}", "1"]), {}, "variable 'HR' holds '{a}', which is no finite number, in row 1"),
        (BASE.iloc[:0], {}, "holds no patients"),
        (long_frame([(1, 0, None, 5.0)]), {}, "column 'variable' names no variable"),
        (long_frame([(1, 0, "HR", 60.0), (1, 0, None, 5.0)]), {}, "names no variable for a value in row 2"),
    ],
)
def test_what_cannot_be_read_is_told(frame, options, message):
    with pytest.raises(RecordsError, match=message):
        Series.read(frame, **options)


def test_a_row_without_a_variable_and_a_value_is_a_time_of_the_stay():
    rows = [(1, 0, "HR", 60.0), (1, 600, None, None)]
    assert Series.read(long_frame(rows)).lengths.tolist() == [11]


def test_sources_that_are_none():
    for source, message in (
        ("visits.txt", "cannot tell what kind"),
        ("no.csv", "there is no file"),
        (7, "from a int"),
    ):
        with pytest.raises(RecordsError, match=message):
            Series.read(source)


@settings(max_examples=20)
@given(long_rows(), st.sampled_from(WITHIN))
def test_a_text_file_is_its_frame(tmp_path_factory, rows, within):
    path = tmp_path_factory.mktemp("long") / "long.csv"
    long_frame(rows).to_csv(path, index=False)
    assert Series.read(path, within=within).digest == Series.read(long_frame(rows), within=within).digest


MOMENTS = ["2024-05-01 13:30:15", "2024-05-01", "2024-05-01T14:00", "2024-05-03 00:00:00.250"]
ZONED = ["2024-05-01 13:30:15+02:00", "2024-05-01 12:30:15Z", "2024-05-03 00:00:00.250-05:00"]


@pytest.mark.parametrize(("texts", "zoned"), [(MOMENTS, False), (ZONED, True)])
def test_dates_are_the_same_times_from_every_source(tmp_path, texts, zoned):
    frame = pd.DataFrame({"patient": [1] * len(texts), "time": texts, "HR": np.arange(60.0, 60 + len(texts))})
    expected = Series.read(frame, step="15min").digest
    frame.to_csv(tmp_path / "dates.csv", index=False)
    assert Series.read(tmp_path / "dates.csv", step="15min").digest == expected
    typed = frame.assign(time=pd.to_datetime(frame["time"], format="ISO8601", utc=zoned))
    assert Series.read(typed, step="15min").digest == expected
    with duckdb.connect(str(tmp_path / "dates.duckdb")) as database:
        database.execute(
            f"CREATE TABLE dates (patient INTEGER, time TIMESTAMP{'TZ' if zoned else ''}, HR DOUBLE)"
        )
        database.executemany("INSERT INTO dates VALUES (?, ?, ?)", frame.to_numpy().tolist())
    assert Series.read(tmp_path / "dates.duckdb", step="15min").digest == expected


def test_days_without_a_clock(tmp_path):
    with duckdb.connect(str(tmp_path / "days.duckdb")) as database:
        database.execute(
            "CREATE TABLE days AS"
            " SELECT 1 AS patient, DATE '2024-02-28' + d::INTEGER AS time, 60 + d AS HR FROM range(3) t(d)"
        )
    assert tell(Series.read(tmp_path / "days.duckdb", step="1d")) == {1: {"HR": [60, 61, 62]}}


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", "there is no time in column 'time' in line 3"),
        ("NA", "there is no time in column 'time' in line 3"),
        ("2024-02-30 10:00", "column 'time' holds '2024-02-30 10:00', which is no time, in line 3"),
        ("2024-02-28 24:00", "which is no time, in line 3"),
        ("28.2.2024", "which is no time, in line 3"),
        ("7", "holds numbers and dates without a time zone"),
        ("infinity", "holds numbers and dates|infinite time"),
    ],
)
def test_one_time_that_is_none_among_dates(tmp_path, cell, message):
    path = tmp_path / "dates.csv"
    path.write_text(f"patient,time,HR\n1,2024-02-28 10:00,60\n1,{cell},61\n1,2024-02-28 12:00:00,62\n")
    with pytest.raises(RecordsError, match=message):
        Series.read(path)


def test_an_infinite_moment_of_a_database(tmp_path):
    with duckdb.connect(str(tmp_path / "x.duckdb")) as database:
        database.execute("CREATE TABLE x AS SELECT 1 AS patient, 'infinity'::TIMESTAMP AS time, 60 AS HR")
    with pytest.raises(RecordsError, match="infinite time"):
        Series.read(tmp_path / "x.duckdb")


def test_a_stated_variable_that_no_row_names_is_missing_throughout_and_the_hospital_is_warned():
    with pytest.warns(OddValues, match="no row names 'Hr', so it is missing; did you mean 'HR'"):
        series = Series.read(long_frame(ROWS), variables=["Hr", "HR"])
    assert series.names == ("Hr", "HR")
    assert series.stated
    assert np.isnan(series.stays["Hr"]).all()
    assert not np.isnan(series.stays["HR"]).all()


def test_rows_state_no_variables_and_columns_do():
    long, wide = Series.read(long_frame(ROWS)), Series.read(BASE)
    assert not long.stated
    assert wide.stated
    for made in (
        long.take([0]),
        long.choose(long.names),
        long.cut(long.lengths, 1),
        long.carry_forward(None),
    ):
        assert not made.stated
    stated = long.state(["Temp", "HR"])
    assert (stated.stated, stated.names) == (True, ("Temp", "HR"))
