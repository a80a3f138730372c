"""A series keeps every cell of every stay, in blocks as in arrays, and what is done to it is done within a patient."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import RecordsError
from concilium.records import series as series_module
from concilium.records.clinical_ranges import CLINICAL_RANGES, ClinicalRange, find_range
from concilium.records.series import Series

CELLS = st.one_of(st.none(), st.integers(-5, 5).map(float))


@st.composite
def stays_of(draw, least=1, most=6):
    """For each of two variables one list of values (None: missing) per patient, of that patient's length."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=least, max_size=most))
    return {
        name: [draw(st.lists(CELLS, min_size=length, max_size=length)) for length in lengths]
        for name in ("HR", "Temp")
    }


def build(stays, step="1h", **more):
    lengths = [len(stay) for stay in stays["HR"]]
    points = max(lengths) + more.pop("padding", 0)
    grids = {}
    for name, patients in stays.items():
        grid = np.full((points, len(lengths)), np.nan)
        for patient, stay in enumerate(patients):
            for time, value in enumerate(stay):
                grid[time, patient] = math.nan if value is None else value
        grids[name] = grid
    return Series(grids, step=step, lengths=lengths, **more)


def tell(series):
    """A series as plain lists again, read off its whole arrays."""
    lengths = series.lengths.tolist()
    plain = {}
    for name in series.names:
        grid = series[name]
        assert grid.dtype == np.float32
        assert all(np.isnan(grid[length:, patient]).all() for patient, length in enumerate(lengths))
        plain[name] = [
            [None if math.isnan(value) else value for value in grid[:length, patient].tolist()]
            for patient, length in enumerate(lengths)
        ]
    return plain


@given(stays_of(), st.integers(0, 3))
def test_arrays_come_back_as_they_were(stays, padding):
    series = build(stays, padding=padding)
    assert tell(series) == stays
    assert series["HR"].shape == (max(map(len, stays["HR"])) + padding, len(series))
    assert {name: grid.tolist() for name, grid in series.variables.items()}.keys() == stays.keys()
    assert series.ids == range(1, len(series) + 1)


@given(stays_of(most=12), st.one_of(st.none(), st.integers(1, 5)), st.sampled_from([1, 8, 30, 1 << 19]))
def test_blocks_hold_every_patient_once(stays, patients, cells):
    series = build(stays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series_module, "BLOCK_CELLS", cells)
        blocks = list(series.blocks(["Temp"], patients))
    rows = [row for block in blocks for row in block.rows.tolist()]
    assert sorted(rows) == list(range(len(series)))
    assert [series.lengths[row] for row in rows] == sorted(series.lengths)
    for block in blocks:
        grid = block.variables["Temp"]
        assert grid.shape == (block.lengths.max(), len(block))
        np.testing.assert_array_equal(grid, series["Temp"][: len(grid), block.rows])
        np.testing.assert_array_equal(block.lengths, series.lengths[block.rows])
        assert block.step_hours == series.step_hours
        assert patients is None or len(block) <= patients
        assert patients is not None or len(block) == 1 or grid.size <= cells


def test_a_few_long_stays_cost_the_others_nothing():
    lengths = [5] * 1000 + [900]
    stays = np.arange(sum(lengths), dtype=np.float32)
    series = Series.from_stays({"HR": stays}, np.array(lengths, np.int32), step="1h", ids=range(1001))
    assert sum(block.variables["HR"].size for block in series.blocks()) == len(stays)


@given(stays_of(), st.data())
def test_taking_patients(stays, data):
    series = build(stays)
    rows = data.draw(st.lists(st.integers(0, len(series) - 1)))
    part = series.take(np.array(rows, dtype=int))
    assert tell(part) == {name: [patients[row] for row in rows] for name, patients in stays.items()}
    assert list(part.ids) == [row + 1 for row in rows]
    mask = np.isin(np.arange(len(series)), rows)
    assert tell(series.take(mask)) == tell(series.take(np.flatnonzero(mask)))


@given(stays_of(), st.data())
def test_the_digest_is_that_of_the_content(stays, data):
    series = build(stays)
    assert series.digest == build(stays, padding=2).digest
    turned = series.take(np.arange(len(series))[::-1]).take(np.arange(len(series))[::-1])
    assert turned.digest == series.digest
    name = data.draw(st.sampled_from(["HR", "Temp"]))
    patient = data.draw(st.integers(0, len(series) - 1))
    time = data.draw(st.integers(0, len(stays[name][patient]) - 1))
    changed = {key: [list(stay) for stay in value] for key, value in stays.items()}
    changed[name][patient][time] = 77.0
    assert build(changed).digest != series.digest
    assert build(stays, step="2h").digest != series.digest
    assert build(stays, ids=[f"p{row}" for row in range(len(series))]).digest != series.digest


def carry(stay, limit):
    carried, last, age = [], None, 0
    for value in stay:
        age += 1
        if value is not None:
            last, age = value, 0
        carried.append(last if limit is None or age <= limit else None)
    return carried


@given(stays_of(), st.one_of(st.none(), st.integers(0, 4)))
def test_values_are_carried_forward_within_the_stay_and_the_limit(stays, limit):
    series = build(stays, step="30min")
    expected = {name: [carry(stay, limit) for stay in patients] for name, patients in stays.items()}
    assert tell(series.carry_forward(limit)) == expected
    if limit:
        assert tell(series.carry_forward(f"{30 * limit}min")) == expected
        assert tell(series.carry_forward(f"{30 * limit + 29}min")) == expected
    only = tell(series.carry_forward({"HR": limit}))
    assert only == {"HR": expected["HR"], "Temp": stays["Temp"]}


@given(stays_of())
def test_defaults_take_the_place_of_what_is_missing(stays):
    expected = [[5.5 if value is None else value for value in stay] for stay in stays["HR"]]
    assert tell(build(stays).fill({"HR": 5.5})) == {"HR": expected, "Temp": stays["Temp"]}


@given(stays_of())
def test_scaling_by_public_constants(stays):
    ranges = {"HR": (60.0, 100.0), "Temp": ClinicalRange(36, 38, 0, 50, "°C", "")}
    scaled = build(stays).scale(ranges)
    for name, (low, high) in {"HR": (60, 100), "Temp": (36, 38)}.items():
        values = [[np.nan if value is None else value for value in stay] for stay in stays[name]]
        for patient, stay in enumerate(values):
            got = scaled[name][: len(stay), patient]
            np.testing.assert_allclose(got, (np.array(stay) - low) / (high - low), rtol=1e-6)
    assert tell(build(stays).scale({"HR": (0, 1)}, keep=["Temp"])) == stays


def test_ranges_of_training_patients_are_quantiles():
    rng = np.random.default_rng(5)
    series = Series({"HR": rng.normal(80, 10, (20, 30)), "Temp": rng.normal(37, 1, (20, 30))})
    ranges = series.find_ranges_without_privacy()
    assert ranges["HR"] == pytest.approx(np.quantile(series["HR"], [0.05, 0.95]), rel=1e-5)
    assert series.scale(ranges)["HR"].mean() == pytest.approx(0.5, abs=0.05)
    with pytest.raises(RecordsError, match="'HR' takes no two values"):
        Series({"HR": np.ones((2, 2))}).find_ranges_without_privacy()
    with pytest.raises(RecordsError, match="'HR' was never measured"):
        Series({"HR": np.full((2, 2), np.nan)}).find_ranges_without_privacy()
    with pytest.raises(RecordsError, match="quantiles must be"):
        series.find_ranges_without_privacy(0.9, 0.1)


@given(stays_of(), st.integers(1, 9), st.data())
def test_windows_end_where_they_are_told_to(stays, length, data):
    series = build(stays, step="2h")
    ends = [data.draw(st.integers(1, len(stay))) for stay in stays["HR"]]
    expected = {
        name: [stay[max(0, end - length) : end] for stay, end in zip(patients, ends, strict=True)]
        for name, patients in stays.items()
    }
    assert tell(series.cut(ends, length)) == expected
    assert tell(series.cut(ends, f"{2 * length}h")) == expected


def test_what_was_measured_is_described():
    temp = [[98.6, 37.0], [np.nan, -1.0], [37.1, np.nan]]
    series = Series({"Temp": temp, "Mood": [[1.0, np.nan], [np.nan, np.nan], [2.0, np.nan]]})
    told = series.describe()
    (temp, mood) = told.variables
    assert (temp.patients, temp.values, temp.implausible, temp.below, temp.above) == (2, 4, 2, 1, 1)
    assert temp.lowest == -1
    assert temp.highest == pytest.approx(98.6)
    assert "1 are -1, which may stand for missing; 1 look like Fahrenheit" in temp.oddity
    assert (mood.patients, mood.values, mood.implausible, mood.oddity) == (1, 2, 0, "")
    # The second stay ends with its last value, so that it has two steps.
    assert (told.patients, told.steps, told.empty) == (2, 5, 0)
    assert mood.missing == pytest.approx(3 / 5)
    assert "Temp" in str(told)
    empty = Series({"HR": np.full((2, 3), np.nan)}).describe()
    assert (empty.empty, empty.variables[0].values, empty.variables[0].missing) == (3, 0, 1.0)


def test_chosen_variables():
    series = build({"HR": [[1.0]], "Temp": [[2.0]]})
    assert series.choose(["Temp"]).names == ("Temp",)
    assert "HR" in series
    assert repr(series) == "Series(1 patients, 2 variables, 1 steps of 1h)"


GOOD = {"HR": [[1.0, 2.0]], "Temp": [[1.0, 2.0]]}


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: Series({}), "at least one variable"),
        (lambda: Series({"HR": [1.0, 2.0]}), "'HR' is of shape"),
        (lambda: Series({"HR": [[1.0]], "Temp": [[1.0, 2.0]]}), "'Temp' is of shape"),
        (lambda: Series({"HR": np.empty((0, 3))}), "at least one point in time"),
        (lambda: Series(GOOD, ids=["a"]), "2 patients and 1 ids"),
        (lambda: Series(GOOD, lengths=[1]), "lengths are whole numbers, one for each of the 2 patients"),
        (lambda: Series(GOOD, lengths=[1, 2]), "each length is from 1 to 1"),
        (lambda: Series(GOOD, step="soon"), "step 'soon' is no time; write 15min, 1h or 1d"),
        (lambda: Series(GOOD, step="0h"), "step '0h' is no time"),
        (lambda: Series(GOOD)["Tmp"], "no variable 'Tmp'; did you mean 'Temp'"),
        (lambda: list(Series(GOOD).blocks(["HRR"])), "no variable 'HRR'; did you mean 'HR'"),
        (lambda: Series(GOOD).choose(["Hr"]), "no variable 'Hr'"),
        (lambda: Series(GOOD).carry_forward({"x": 1}), "no variable 'x'"),
        (lambda: Series(GOOD).carry_forward("often"), "limit 'often' is no time"),
        (lambda: Series(GOOD).carry_forward(-1), "limit -1 is negative"),
        (lambda: Series(GOOD).carry_forward(True), "limit True is no time"),
        (lambda: Series(GOOD).fill({"x": 1}), "no variable 'x'"),
        (lambda: Series(GOOD).fill({"HR": math.nan}), "default of 'HR' must be a finite number"),
        (lambda: Series(GOOD).scale({"HR": (0, 1)}), "no range to scale 'Temp' by; state it"),
        (lambda: Series(GOOD).scale({"HR": (1, 1), "Temp": (0, 1)}), "range of 'HR' must go from a lower"),
        (lambda: Series(GOOD).cut([1], 3), "one for each of the 2 patients"),
        (lambda: Series(GOOD).cut([1.0, 1.0], 3), "whole numbers of steps"),
        (lambda: Series(GOOD).cut([1, 2], 3), "patient 2 ends at step 2, but it must end from 1 to 1"),
        (lambda: Series(GOOD).cut([1, 1], "30min"), "at least one step of 1h"),
    ],
)
def test_what_is_wrong_is_told(action, message):
    with pytest.raises(RecordsError, match=message):
        action()


def test_a_missing_key_of_the_variables_is_a_missing_key():
    with pytest.raises(KeyError):
        Series(GOOD).variables["x"]
    assert len(Series(GOOD).variables) == 2


def test_public_ranges_are_in_order_and_go_by_many_names():
    for name, clinical in CLINICAL_RANGES.items():
        assert clinical.lowest <= clinical.low < clinical.high <= clinical.highest, name
        assert clinical.unit, name
        assert clinical.words, name
    assert find_range("NISysABP") is CLINICAL_RANGES["SBP"]
    assert find_range("heart_rate") is CLINICAL_RANGES["HR"]
    assert find_range("SepsisLabel") is None
    assert "hct" in CLINICAL_RANGES


def test_glucose_has_a_range_in_both_units():
    for conventional, other in (("Glucose", "Glucose_mmol"), ("CGM", "CGM_mmol")):
        for end in ("low", "high"):
            ratio = getattr(CLINICAL_RANGES[conventional], end) / getattr(CLINICAL_RANGES[other], end)
            assert ratio == pytest.approx(18.02, rel=0.01)


IDS = [3, 1, 2, 0, 5, 4]
TABLE = cc.Records.from_rows(
    [{"patient": number, "age": 50 + number, "y": "np"[number % 3 == 0]} for number in IDS]
)
HOLDING = Series(
    {"HR": np.arange(18.0).reshape(3, 6)},
    lengths=[1, 2, 3, 3, 2, 1],
    ids=[str(number) for number in range(6)],
)


def test_a_query_on_the_table_selects_the_series():
    patients = cc.Patients(table=TABLE, series=HOLDING, by="patient")
    assert list(patients.series.ids) == [str(number) for number in IDS]
    older = patients.take(cc.Query.parse("age > 52").mask(TABLE))
    assert list(older.series.ids) == ["3", "5", "4"]
    np.testing.assert_array_equal(older.series["HR"], HOLDING["HR"][:, [3, 5, 4]])
    nobody = patients.take(np.zeros(6, dtype=bool))
    assert len(nobody.series) == 0
    assert nobody.series["HR"].shape == (3, 0)
    assert list(nobody.series.blocks()) == []
    assert "0 patients" in str(nobody.series.describe())


def test_the_order_of_the_series_does_not_matter_to_patients():
    patients = cc.Patients(table=TABLE, series=HOLDING, by="patient")
    turned = HOLDING.take(np.array([5, 0, 3, 1, 4, 2]))
    assert cc.Patients(table=TABLE, series=turned, by="patient").digest == patients.digest
    other = HOLDING.fill({"HR": 1.0}).scale({"HR": (0, 2)})
    assert cc.Patients(table=TABLE, series=other, by="patient").digest != patients.digest
    assert cc.Patients(series=turned).digest == cc.Patients(series=HOLDING).digest
    assert len(cc.Patients(series=HOLDING).tell_apart(None).T) == 6


def test_a_site_holds_a_series(tmp_path):
    patients = cc.Patients(table=TABLE, series=HOLDING, by="patient")
    site = cc.Site("a", patients, ledger=tmp_path / "a.ledger")
    assert repr(site) == "Site('a', 6 patients)"
    site.ledger.close()
    again = cc.Patients(table=TABLE, series=HOLDING.take(np.arange(6)[::-1]), by="patient")
    cc.Site("a", again, ledger=tmp_path / "a.ledger").ledger.close()
    with pytest.raises(cc.errors.LedgerError, match="rebind"):
        cc.Site("a", TABLE, ledger=tmp_path / "a.ledger")
