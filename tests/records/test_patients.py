"""One population in several parts: one row number is one patient everywhere, or the parts are refused."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import concilium as cc
from concilium.errors import RecordsError
from concilium.records.columns import Numbers, Value
from concilium.records.patients import PARTS, Patients
from concilium.records.table import Records

OTHERS = PARTS[1:]


@dataclass(frozen=True)
class Notes:
    """A part of the smallest kind: one text for each patient."""

    ids: Sequence[Value | None]
    texts: tuple[str, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr((list(map(str, self.ids)), self.texts)).encode()).hexdigest()

    def take(self, rows: NDArray[np.intp]) -> Notes:
        return Notes([self.ids[row] for row in rows], tuple(self.texts[row] for row in rows))

    def __len__(self) -> int:
        return len(self.texts)


def write_table(ids: Sequence[Value | None]) -> Records:
    return Records.from_rows([{"patient": one, "text": f"table of {one}"} for one in ids])


def write_notes(name: str, ids: Sequence[Value | None]) -> Notes:
    return Notes(ids, tuple(f"{name} of {one}" for one in ids))


def join(parts: dict[str, Sequence[Value | None]]) -> Patients:
    """Patients of parts that have these ids, in this order."""
    made = {name: write_notes(name, ids) for name, ids in parts.items() if name != "table"}
    if "table" in parts:
        return Patients(table=write_table(parts["table"]), by="patient", **made)
    return Patients(**made)


def read_rows(patients: Patients) -> list[tuple[object, ...]]:
    """What every part says in each row."""
    texts = [
        part.values("text") if isinstance(part, Records) else part.texts for part in patients.parts.values()
    ]
    return list(zip(*texts, strict=True))


# Whole numbers and texts whose labels differ; a number may stand as its own text in another part.
people = st.lists(
    st.one_of(st.integers(0, 10**6), st.text(alphabet="abc ", min_size=1, max_size=4)),
    min_size=1,
    max_size=12,
    unique_by=str,
)
some_parts = st.lists(st.sampled_from(PARTS), min_size=2, max_size=4, unique=True)


@given(people, some_parts, st.data())
def test_a_row_is_one_patient_in_every_part_whatever_their_orders(ids, names, data):
    given_parts = {name: data.draw(st.permutations(ids), label=name) for name in names}
    written = {
        name: [str(one) if data.draw(st.booleans()) else one for one in order]
        for name, order in given_parts.items()
    }
    patients = join(written)
    first = next(name for name in PARTS if name in names)
    assert patients.reads == tuple(name for name in PARTS if name in names)
    assert len(patients) == len(ids)
    assert read_rows(patients) == [
        tuple(f"{name} of {one}" for name in patients.reads) for one in given_parts[first]
    ]


@given(people, some_parts, st.data())
def test_the_order_of_a_part_that_is_joined_changes_nothing(ids, names, data):
    patients = join(dict.fromkeys(names, ids))
    moved = data.draw(st.sampled_from(patients.reads[1:]))
    again = join(dict.fromkeys(names, ids) | {moved: data.draw(st.permutations(ids))})
    assert read_rows(again) == read_rows(patients)
    assert again.digest == patients.digest


@given(people, st.booleans())
def test_the_digest_of_a_table_alone_is_the_tables(ids, named):
    table = write_table(ids)
    assert Patients(table=table, by="patient" if named else None).digest == table.digest


@given(people, some_parts, st.randoms(use_true_random=False))
def test_the_digest_is_of_what_the_parts_hold_and_not_of_the_order_they_were_given_in(ids, names, dice):
    parts = dict.fromkeys(names, ids)
    shuffled = dict(dice.sample(list(parts.items()), len(parts)))
    patients = join(parts)
    assert join(shuffled).digest == patients.digest
    assert patients.digest not in {part.digest for part in patients.parts.values()}
    for name in set(names) - {"table"}:
        others = {key: part for key, part in patients.parts.items() if key != name}
        by = "patient" if "table" in names else None
        changed = dataclasses.replace(patients.parts[name], texts=("other",) * len(ids))
        assert Patients(**others, **{name: changed}, by=by).digest != patients.digest
        assert Patients(**others, by=by).digest != patients.digest


def test_a_digest_tells_one_kind_of_part_from_another():
    notes = write_notes("any", ["a", "b"])
    assert len({Patients(**{name: notes}).digest for name in OTHERS} | {notes.digest}) == 4


@given(people, some_parts, st.data())
def test_a_patient_that_a_part_lacks_or_has_twice_is_refused(ids, names, data):
    parts = dict.fromkeys(names, ids)
    at = data.draw(st.sampled_from(names))
    somebody = data.draw(st.sampled_from(ids))
    with pytest.raises(RecordsError, match=f"1 patient is more than once in .*{at}.* keep one row"):
        join(parts | {at: [*ids, somebody]})
    lacking = [one for one in ids if one != somebody]
    told = f"1 patient is not in the {at} " if lacking else f"there is no patient in the {at};"
    if lacking or at != "table":  # a table of no rows cannot even be written
        with pytest.raises(RecordsError, match=told):
            join(parts | {at: lacking})
    with pytest.raises(RecordsError, match=r"1 patient is without an id in .*, first in row"):
        join(parts | {at: [None if one == somebody else one for one in ids]})


@given(people, some_parts, st.data())
def test_a_selection_is_the_same_patients_in_every_part(ids, names, data):
    patients = join({name: data.draw(st.permutations(ids)) for name in names})
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))))
    rows = read_rows(patients)
    for chosen in (patients.take(mask), patients.take(np.flatnonzero(mask))):
        assert (len(chosen), chosen.reads, chosen.by) == (mask.sum(), patients.reads, patients.by)
        assert read_rows(chosen) == [row for row, kept in zip(rows, mask, strict=True) if kept]
    backwards = np.arange(len(ids))[::-1]
    assert read_rows(patients.take(backwards)) == rows[::-1]
    with pytest.raises(RecordsError, match=f"mask of {len(ids) + 1} rows does not fit"):
        patients.take(np.ones(len(ids) + 1, dtype=bool))


def test_one_query_on_the_table_selects_for_every_part():
    table = Records.from_rows([{"id": one, "age": age} for one, age in ((1, 30), (2, 50), (3, 70))])
    patients = cc.Patients(table=table, codes=write_notes("codes", ["3", "1", "2"]), by="id")
    old = patients.take(cc.Query.parse("age > 40").mask(patients.table))
    assert old.table.values("id") == [2, 3]
    assert old.codes.texts == ("codes of 2", "codes of 3")


def test_a_part_in_the_right_order_is_not_copied():
    table, notes = write_table([1, 2, 3]), write_notes("rules", [1.0, "2", 3])
    patients = Patients(table=table, rules=notes, by="patient")
    assert patients.table is table
    assert patients.rules is notes


def test_patients_are_a_frozen_value_that_says_nothing_about_anybody():
    patients = join({"table": ["ann", "bob"], "series": ["bob", "ann"]})
    assert repr(patients) == "Patients(2 patients: table, series)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        patients.by = "text"
    with pytest.raises(TypeError):
        patients.parts["table"] = write_table(["eve"])
    with pytest.raises(TypeError):
        Patients(write_table(["eve"]))


def test_ids_of_measurements_are_compared_by_their_labels():
    numbers = np.arange(300.0)
    table = Records({"id": Numbers(numbers), "other": Numbers(numbers)})
    notes = write_notes("series", [str(number) for number in range(299, -1, -1)])
    assert Patients(table=table, series=notes, by="id").series.texts[7] == "series of 7"
    digits = Records({"id": Numbers(numbers + 2**53)})
    with pytest.raises(RecordsError, match=r"digits of an id may be lost; read .* schema=\{'id': \"code\"\}"):
        Patients(table=digits, series=notes, by="id")


TABLE = write_table([1, 2, 3])
NOTES = write_notes("series", [1, 2, 3])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "there are no patients: give at least one of table, series, codes and rules"),
        ({"table": pd.DataFrame({"a": [1]})}, r"must be Records, not DataFrame; .* Records\.read\(\.\.\.\)"),
        ({"table": "patients.csv"}, r"must be Records, not str; read it with Records\.read"),
        ({"series": pd.DataFrame({"a": [1]})}, "the series must tell the ids .* DataFrame does not"),
        ({"rules": TABLE}, "the rules must tell the ids of their patients; Records does not"),
        ({"table": TABLE.take(np.zeros(3, dtype=bool)), "by": "patient"}, "there is no patient in the table"),
        ({"series": NOTES.take(np.zeros(0, dtype=np.intp))}, "there is no patient in the series"),
        ({"table": TABLE, "series": NOTES}, "by must name the table's column .* join it with the series"),
        ({"table": TABLE, "series": NOTES, "rules": NOTES}, "join it with the series and the rules"),
        ({"series": NOTES, "by": "patient"}, "by names 'patient', a column of the table, but there is no"),
        ({"table": TABLE, "by": "patients"}, r"'patients', which is no column .*; did you mean 'patient'\?"),
        ({"table": TABLE, "by": ["patient"]}, r"by names \['patient'\], which is no column of the table"),
        ({"table": write_table([1, 1]), "by": "patient"}, r"1 patient is more .* 'patient' of the table \('1'\)"),
        ({"codes": write_notes("", [5, "5", 6])}, r"1 patient is more than once in the codes \('5'\)"),
        ({"rules": write_notes("", ["a", float("nan"), None])}, "2 patients are without an id in the rules, .* row 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(parts, message):
    with pytest.raises(RecordsError, match=message):
        Patients(**parts)


def test_who_lacks_where_is_said_for_every_part_at_once():
    with pytest.raises(RecordsError) as error:
        join({"table": range(1, 6), "series": [1, "9"], "rules": [9, 1, 2, 3, 4, 5]})
    assert str(error.value) == (
        "1 patient is not in the table ('9') and 4 patients are not in the series ('2', '3', '4', ...), but all parts "
        "must have the same patients; add them there or leave them out of the other parts"
    )
