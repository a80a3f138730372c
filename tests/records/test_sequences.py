"""Dated codes from lists: order, times of every kind, selection, digest, and their place in a population."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import RecordsError

DAYS = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6))
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1))
CODES = st.sampled_from(["250.00", "250.0", "042", "42", "V08", "1e3", "x y"])


def people(times=DAYS, least=0):
    return st.lists(st.lists(st.tuples(times, CODES), max_size=6), min_size=least, max_size=6)


def in_order(lists, count=float):
    return [
        sorted([(count(time), code) for time, code in events], key=lambda event: event[0]) for events in lists
    ]


def count_days(moment):
    """The float nearest to the days of the nearest millisecond."""
    return round((moment - datetime(1970, 1, 1)) / timedelta(milliseconds=1)) / 86_400_000


@given(people())
def test_events_are_in_the_order_of_time_and_of_the_list(lists):
    sequences = cc.Sequences(lists)
    assert sequences.to_lists() == list(sequences) == in_order(lists)
    assert len(sequences) == len(lists) == len(sequences.patients)
    assert list(sequences.labels) == sorted({code for events in lists for _, code in events})
    assert sequences.counts.tolist() == [len(events) for events in lists]
    assert sequences.owners.tolist() == [row for row, events in enumerate(lists) for _ in events]
    assert (sequences.offsets.dtype, sequences.codes.dtype, sequences.times.dtype) == ("i8", "i4", "f8")


@given(people(MOMENTS))
def test_dates_are_days_since_1970_however_they_are_written(lists):
    expected = in_order(lists, count_days)
    as_text = [[(moment.isoformat(), code) for moment, code in events] for events in lists]
    as_numpy = [[(np.datetime64(moment), code) for moment, code in events] for events in lists]
    for ways in (lists, as_text, as_numpy):
        assert cc.Sequences(ways).to_lists() == expected


def test_one_moment_in_every_way():
    noon = datetime(2024, 5, 1, 12)
    for way in (noon, "2024-05-01 12:00", "2024-05-01T12:00:00", np.datetime64(noon)):
        assert cc.Sequences([[(way, "a")]]).times.tolist() == [19844.5]
    for way in (date(2024, 5, 1), "2024-05-01", np.datetime64("2024-05-01")):
        assert cc.Sequences([[(way, "a")]]).times.tolist() == [19844.0]
    two = timezone(timedelta(hours=2))
    for way in (noon.replace(tzinfo=UTC), noon.replace(hour=14, tzinfo=two), "2024-05-01T14:00+02:00"):
        sequences = cc.Sequences([[(way, "a")]])
        assert (sequences.times.tolist(), sequences.clock) == ([19844.5], "zoned dates")
    for way in (3, 3.0, "3", np.int64(3), np.float32(3)):
        sequences = cc.Sequences([[(way, "a")]])
        assert (sequences.times.tolist(), sequences.clock) == ([3.0], "days")


def test_codes_are_text_without_blanks_letter_by_letter():
    sequences = cc.Sequences(
        [[(1, " 250.00 "), (2, "250.0"), (3, "250"), (4, "0250"), (5, "v08"), (6, "V08")]]
    )
    assert sequences.labels == ("0250", "250", "250.0", "250.00", "V08", "v08")


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        ([[(1, 250)]], "event 1 of patient 'p' has the code 250; a code is text"),
        ([[(1, "a"), (2, " ")]], "event 2 of patient 'p' has the code ' '"),
        ([[(1, None)]], "has the code None"),
        ([[(1, float("nan"))]], "has the code nan"),
        (
            [[(None, "a")]],
            "event 1 of patient 'p' has the time None; write a number of days, or a date such as",
        ),
        ([[("soon", "a")]], "has the time 'soon'"),
        ([[("2024-13-01", "a")]], "has the time '2024-13-01'"),
        ([[(float("nan"), "a")]], "has the time nan"),
        ([[(1, "a"), (float("inf"), "a")]], "event 2 of patient 'p' has the time inf"),
        ([[(10**400, "a")]], "has the time 1000"),
        ([[(True, "a")]], "has the time True"),
        (
            [[(1, "a"), ("2024-05-01", "a")]],
            "event 2 .* but times before it are numbers; write all times in one way",
        ),
        (
            [[("2024-05-01", "a"), ("2024-05-01T00:00Z", "a")]],
            "times before it are dates without a time zone",
        ),
        ([["a"]], r"event 1 of patient 'p' must be \(time, code\); got 'a'"),
        ([[(1, "a", "b")]], r"must be \(time, code\)"),
        (["ab"], r"patient 'p' must be a list of \(time, code\), empty where there are none; got 'ab'"),
        ([None], "got None"),
        ([[], []], "there are 2 patients and 1 names of them"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(lists, problem):
    with pytest.raises(RecordsError, match=problem):
        cc.Sequences(lists, patients=["p"])


@given(people(least=1), people())
def test_how_a_patient_is_read_never_depends_on_the_others(lists, others):
    alone = cc.Sequences(lists[:1])
    among = cc.Sequences([*others, lists[0], *others])
    assert among[len(others)] == alone[0]
    one = among.take(np.array([len(others)]))
    assert one.labels == alone.labels
    assert one.codes.tolist() == alone.codes.tolist()


@given(people(least=1), st.data())
def test_a_selection_has_its_patients_and_their_codes_only(lists, data):
    sequences = cc.Sequences(lists, patients=[f"p{row}" for row in range(len(lists))])
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), unique=True))
    selection = sequences.take(np.array(rows, dtype=np.intp))
    assert selection.to_lists() == [in_order(lists)[row] for row in rows]
    assert list(selection.patients) == [f"p{row}" for row in rows]
    assert list(selection.labels) == sorted({code for row in rows for _, code in lists[row]})
    mask = np.isin(np.arange(len(lists)), rows)
    assert sequences.take(mask).to_lists() == [in_order(lists)[row] for row in sorted(rows)]


@given(people(least=1), st.data())
def test_the_digest_is_that_of_the_content(lists, data):
    digest = cc.Sequences(lists).digest
    shuffled = [data.draw(st.permutations(events)) for events in lists]
    assert cc.Sequences(shuffled).digest == digest  # of one moment, codes count in any order
    assert cc.Sequences(lists).take(np.arange(len(lists))).digest == digest
    row = data.draw(st.integers(0, len(lists) - 1))
    more = [[*events, (0, "another")] if place == row else events for place, events in enumerate(lists)]
    assert cc.Sequences(more).digest != digest
    assert cc.Sequences(lists, patients=[f"{place}x" for place in range(len(lists))]).digest != digest
    assert cc.Sequences([*lists, []]).digest != digest


def test_the_digest_tells_days_from_dates_and_times_apart():
    digests = {
        cc.Sequences(lists).digest
        for lists in (
            [[(0, "a")]],
            [[("1970-01-01", "a")]],
            [[("1970-01-01T00:00Z", "a")]],
            [[(1, "a")]],
            [[(0, "b")]],
            [[(0, "a"), (0, "a")]],
            [[(0, "a")], []],
            [[], [(0, "a")]],
        )
    }
    assert len(digests) == 8
    assert cc.Sequences([[(-0.0, "a")]]).digest == cc.Sequences([[(0, "a")]]).digest


@given(people(), st.data())
def test_other_codes_for_the_same_events(lists, data):
    sequences = cc.Sequences(lists)
    names = [data.draw(st.sampled_from(["one", "two"])) for _ in sequences.labels]
    new_name = dict(zip(sequences.labels, names, strict=True))
    expected = [[(time, new_name[code]) for time, code in events] for events in sequences]
    for given_names in (names, new_name):
        renamed = sequences.rename(given_names)
        assert renamed.to_lists() == expected
        assert list(renamed.labels) == sorted({code for events in expected for _, code in events})
    flat = np.array(
        [names.index(new_name[code]) for events in sequences for _, code in events], dtype=np.int64
    )
    assert sequences.with_codes(flat, names).to_lists() == expected


def test_codes_for_all_events_and_no_others():
    sequences = cc.Sequences([[(0, "a"), (1, "b")]])
    with pytest.raises(RecordsError, match="2 events and 1 codes"):
        sequences.with_codes(np.array([0]), ["a"])
    with pytest.raises(RecordsError, match="2 codes and 1 names"):
        sequences.rename(["a"])
    with pytest.raises(RecordsError, match="2 codes, 1 times, and offsets for 2 events"):
        cc.Sequences.from_arrays(np.array([0, 2]), np.array([0, 0]), np.zeros(1), ["a"])


def test_a_site_may_hold_codes_alone():
    sequences = cc.Sequences([[(0, "250.00")], [], [(1, "042"), (0, "250.00")]])
    assert repr(sequences) == "Sequences(3 patients, 3 events, 2 codes)"
    assert repr(cc.Site("a", sequences)) == "Site('a', 3 patients)"
    assert sequences[-1] == [(0.0, "250.00"), (1.0, "042")]
    with pytest.raises(IndexError, match="there are 3 patients"):
        sequences[3]


def test_codes_are_joined_with_the_table_by_the_patient():
    table = cc.Records.from_rows([{"id": number, "y": "np"[number % 2]} for number in (3, 1, 2)])
    sequences = cc.Sequences([[(1, "one")], [(2, "two")], []], patients=["1", "2", "3"])
    patients = cc.Patients(table=table, codes=sequences, by="id")
    assert patients.codes.to_lists() == [[], [(1.0, "one")], [(2.0, "two")]]
    assert patients.take(np.array([2])).codes.labels == ("two",)
    other_order = cc.Patients(table=table, codes=sequences.take(np.array([2, 0, 1])), by="id")
    assert other_order.digest == patients.digest
    changed = cc.Sequences([[(1, "one")], [(2, "too")], []], patients=["1", "2", "3"])
    assert cc.Patients(table=table, codes=changed, by="id").digest != patients.digest
    with pytest.raises(RecordsError, match="1 patient is not in the codes"):
        cc.Patients(table=table, codes=sequences.take(np.array([0, 1])), by="id")
