"""Where terms ask and policy agrees, a house learns which columns do not fit the dictionary: no value, no count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import HouseError, MessageError
from concilium.protocol.cohort import View
from concilium.protocol.messages import decode, encode
from concilium.protocol.terms import Agreed, TableFit, _Misfit, find_fit
from concilium.records.dictionary import Dictionary

DICTIONARY = Dictionary.parse(
    {
        "sex": {"values": {"f": "female", "m": "male"}},
        "ward": {"values": ["a", "b", "c"]},
        "age": {"type": "number", "range": [0, 120]},
        "death": {"values": ["0", "1"]},
    },
    "dictionary.toml",
)
ROWS = [
    {"sex": "fm"[i % 2], "ward": "abc"[i % 3], "age": 20.0 + i, "death": int(i % 5 == 0)} for i in range(40)
]
SCHEMA = {"sex": "code", "ward": "code", "age": "number", "death": "code"}
TELLS = cc.Policy(tell_fit=True)


def spoil(rows, count, **cells):
    return [{**row, **cells} if index < count else row for index, row in enumerate(rows)]


def drop(rows, name):
    return [{key: row[key] for key in row if key != name} for row in rows]


def fit(rows, policy=TELLS, check_tables=True, release="exact", attributes=("sex", "ward"), **options):
    """What the card says of the first hospital, and its ledger's entries."""
    schema = {name: kind for name, kind in SCHEMA.items() if name in rows[0]}
    north = cc.Site("north", cc.Records.from_rows(rows, schema), policy=policy)
    others = [cc.Site(name, cc.Records.from_rows(ROWS, SCHEMA)) for name in ("south", "west")]
    house = cc.House([north, *others], dictionary=DICTIONARY, check_tables=check_tables)
    tree = cc.DecisionTree("death", attributes=list(attributes), release=release, max_depth=1, **options)
    card = tree.fit(house).card
    said = [line.removeprefix("the table of north ") for line in card.warnings if "the dictionary" in line]
    return said, [entry for entry in north.ledger.entries() if entry.kind == "study.propose"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROWS, "fits the dictionary"),
        (spoil(ROWS, 4, sex="F?"), "does not fit the dictionary (sex: it has codes that are not listed)"),
        (spoil(ROWS, 3, sex="F?"), "fits the dictionary"),  # so few are not told
        (spoil(ROWS, 9, sex="x", ward="y"),
         "does not fit the dictionary (sex: it has codes that are not listed; ward: it has codes that are not listed)"),
    ],
)  # fmt: skip
def test_the_card_names_the_columns_that_do_not_fit(rows, said):
    told, entries = fit(rows)
    assert told == [said]
    (entry,) = entries
    assert entry.numbers == 3  # sex, ward and death were looked at
    assert "F?" not in said


@pytest.mark.parametrize(("count", "fits"), [(0, True), (1, True), (20, True), (21, False), (40, False)])
def test_a_number_that_is_mostly_not_plausible_does_not_fit(count, fits):
    """As in another unit; that some are not is told to nobody."""
    table = spoil(ROWS, count, age=999.0)
    said, (entry,) = fit(table, attributes=("sex", "age"), bins={"age": [30, 50]})
    assert entry.numbers == 3  # sex, age and death
    misfit = "does not fit the dictionary (age: most of its numbers are not plausible, as if in another unit)"
    assert said == ["fits the dictionary" if fits else misfit]
    private = View(cc.Records.from_rows(table, SCHEMA), cc.Policy())
    assert find_fit(private, DICTIONARY.entries, ["age"], 1, bounded=True) == TableFit()


def test_few_patients_with_numbers_in_another_unit_are_not_told():
    few = [{**row, "age": 999.0 if index < 3 else None} for index, row in enumerate(ROWS)]
    view = View(cc.Records.from_rows(few, SCHEMA), cc.Policy())
    assert not find_fit(view, DICTIONARY.entries, ["age"], 4, bounded=False).misfits
    assert find_fit(view, DICTIONARY.entries, ["age"], 3, bounded=False).misfits == (_Misfit("age", "range"),)


def test_it_is_told_where_terms_ask_and_policy_agrees_only():
    bad = spoil(ROWS, 9, sex="x")
    assert fit(bad, policy=cc.Policy()) == ([], [])
    assert fit(bad, check_tables=False) == ([], [])
    assert cc.Policy().tell_fit is False


def test_under_masks_it_is_told_and_entered_too():
    said, (entry,) = fit(spoil(ROWS, 9, sex="x"), release="masked")
    assert said == ["does not fit the dictionary (sex: it has codes that are not listed)"]
    assert (entry.mode, entry.numbers) == ("masked", 3)


def test_only_columns_that_the_study_asks_about_are_looked_at():
    said, (entry,) = fit(spoil(ROWS, 9, sex="x"), attributes=("ward",))
    assert said == ["fits the dictionary"]
    assert entry.numbers == 2


def test_absent_and_withheld_columns_look_alike():
    names = ("sex", "ward", "age", "death")
    absent = View(cc.Records.from_rows(drop(ROWS, "sex"), schema={"ward": "code"}), cc.Policy())
    withheld = View(cc.Records.from_rows(ROWS, SCHEMA), cc.Policy(withhold=("sex",)))
    for bounded in (False, True):
        found = [find_fit(v, DICTIONARY.entries, names, 4, bounded=bounded) for v in (absent, withheld)]
        assert found[0] == found[1]
        assert found[0].misfits == (_Misfit("sex", "absent"),)


rows_of_any = st.lists(
    st.fixed_dictionaries({"sex": st.sampled_from("fmx?"), "ward": st.sampled_from("abcz")}),
    min_size=1,
    max_size=20,
)


@given(rows_of_any, rows_of_any)
def test_under_noise_no_patient_changes_what_is_told(one, other):
    schema = {"sex": "code", "ward": "code"}
    told = [
        find_fit(
            View(cc.Records.from_rows(rows, schema), cc.Policy()),
            DICTIONARY.entries,
            ["sex", "ward"],
            1,
            bounded=True,
        )
        for rows in (one, other)
    ]
    assert told[0] == told[1] == TableFit()


@given(rows_of_any, st.integers(1, 5))
def test_a_column_does_not_fit_where_enough_patients_have_codes_that_are_not_listed(rows, least):
    """The oracle counts the rows by hand."""
    view = View(cc.Records.from_rows(rows, {"sex": "code", "ward": "code"}), cc.Policy(allow=("sex", "ward")))
    found = find_fit(view, DICTIONARY.entries, ["sex", "ward"], least, bounded=False)
    wrong = {"sex": "x?", "ward": "z"}
    expected = [name for name in wrong if sum(row[name] in wrong[name] for row in rows) >= least]
    assert [one.column for one in found.misfits] == expected


def test_a_private_study_tells_what_is_not_there_and_charges_nothing_for_it():
    values = {"death": [0, 1], "sex": ["f", "m"], "ward": ["a", "b", "c"]}
    said, entries = fit(spoil(ROWS, 9, sex="x"), release="private", epsilon=1.0, values=values)
    assert said == ["fits the dictionary"]
    assert entries == []


def test_a_site_cannot_name_what_is_no_column_of_the_dictionary(monkeypatch):
    invented = TableFit((_Misfit("<b>", "codes"),), 1)
    monkeypatch.setattr("concilium.protocol.studies.find_fit", lambda *_, **__: invented)
    with pytest.raises(HouseError, match="north answered with what was not asked for"):
        fit(ROWS)
    body = encode(Agreed(b"k" * 32, None, TableFit((_Misfit("sex", "because"),), 0)))
    with pytest.raises(MessageError):
        decode(body, Agreed)


def test_a_study_file_asks_for_it(tmp_path):
    lines = [",".join(map(str, row.values())) for row in spoil(ROWS, 9, sex="x")]
    (tmp_path / "north.csv").write_text("\n".join(["sex,ward,age,death", *lines]))
    (tmp_path / "north.toml").write_text("[release]\ntell_fit = true\n")
    (tmp_path / "d.toml").write_text(DICTIONARY.to_toml())
    study = tmp_path / "study.toml"
    study.write_text(
        '[study]\nname = "s"\nmethod = "tree"\ntarget = "death"\nattributes = ["sex", "ward"]\n'
        '[dictionary]\nfile = "d.toml"\n[house]\ncheck_tables = true\n'
        '[[site]]\nname = "north"\nrecords = "north.csv"\none_row_per_patient = true\npolicy = "north.toml"\n'
    )
    card = cc.Study.read(study).run(warn=lambda _: None).model.card
    assert any(
        line.startswith("the table of north does not fit the dictionary (sex") for line in card.warnings
    )
