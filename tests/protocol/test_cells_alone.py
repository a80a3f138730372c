"""Private questions on tables of raw text: one patient with an odd cell changes no other patient's cell."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import ConciliumError, DoesNotFit, RecordsError
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.counts import AskCounts
from concilium.protocol.held_out import Part
from concilium.protocol.messages import Refusal, open_reply
from concilium.protocol.questions import Gaussian
from concilium.protocol.releases import find_release
from concilium.protocol.schema import AskColumns, state_values
from concilium.records.columns import label
from concilium.records.query import Query, read_as_asked, read_as_labels, read_as_numbers
from concilium.records.table import Records

ODD = [
    "unknown",
    "TRUE",
    "1.0",
    ".5",
    "5.",
    "01",
    "+5",
    "1e3",
    "inf",
    "9007199254740993",
    " 5 ",
    "NA",
    "2020-01-02",
]
HEAD = "flag,size,y"
ROWS = [
    f"{['TRUE', 'FALSE'][i % 3 == 0]},{['.5', '5.', '7'][i % 3]},{['TRUE', 'FALSE'][i % 2]}"
    for i in range(40)
]
SCHEMA = {"flag": "code", "size": "code", "y": "code"}


@pytest.fixture
def write(tmp_path):
    def write_csv(name, rows, head=HEAD):
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join([head, *rows, ""]), encoding="utf-8")
        return path

    return write_csv


@pytest.fixture
def fixed_noise(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)


def count(path, schema, question):
    """What a site would add noise to."""
    view = View(Records.read(path, schema=schema), cc.Policy())
    cohort = find_release("private").select(SimpleNamespace(view=view), question)
    return question.compute(cohort)


def ask(target="y", query="", attributes=None):
    classes = Attribute(target, (), ("false", "true"), missing=False)
    return AskCounts(
        totals=False,
        query=query,
        target=target,
        attributes=attributes or (Attribute("flag", (), ("false", "true"), missing=False),),
        classes=classes,
        noise=Gaussian("9"),
    )


@pytest.mark.parametrize("column", ["flag", "size", "y"])
@pytest.mark.parametrize("odd", ODD)
def test_one_odd_cell_in_a_file_moves_one_patient_and_no_other(write, column, odd):
    """The attack: `unknown` among TRUE and FALSE turned every label of the site."""
    patient = {"flag": "TRUE", "size": "7", "y": "TRUE", column: odd}
    question = ask(
        attributes=(
            Attribute("flag", (), ("false", "true"), missing=False),
            Attribute("size", (), ("0.5", "5", "7"), missing=False),
        )
    )
    one = count(write("without", ROWS), SCHEMA, question)
    other = count(write("with", [*ROWS, ",".join(patient.values())]), SCHEMA, question)
    moved = int(((other.astype(np.int64) - one) ** 2).sum())
    assert moved <= question.sensitivity.squared
    assert one[0, :2].sum() == 40  # everybody's flag was read


@pytest.mark.parametrize(
    "query", ["flag = true", "flag = 'TRUE'", "size >= 0.5", "size = 5", "size = '5.0'", "y != false"]
)
@pytest.mark.parametrize("odd", ODD)
def test_one_odd_cell_does_not_change_whom_a_query_selects(write, query, odd):
    column = query.split()[0]
    patient = {"flag": "TRUE", "size": "7", "y": "TRUE", column: odd}
    question = ask(query=query)
    one = count(write("without", ROWS), SCHEMA, question)
    other = count(write("with", [*ROWS, ",".join(patient.values())]), SCHEMA, question)
    assert one.sum() > 0
    assert int(((other.astype(np.int64) - one) ** 2).sum()) <= question.sensitivity.squared


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_cell_in_any_column_does_not_change_who_is_held_out(write, odd):
    """Also where the column is not stated and holds moments, which together are read in another way."""
    head = HEAD + ",when"
    rows = [f"{row},2020-01-{i % 9 + 1:02} 0{i % 7}:00:00" for i, row in enumerate(ROWS)]

    def held(path):
        view = View(Records.read(path, schema=SCHEMA), cc.Policy(), division_key=b"key").each_by_itself
        cohort = view.select("", "y").telling_all()
        return set(Part(percent=30, held=True).choose(cohort, 0).rows.tolist())

    one = held(write("without", rows, head))
    other = held(write("with", [*rows, f"TRUE,7,TRUE,{odd}"], head))
    assert other - {40} == one


cells = st.one_of(
    st.sampled_from([*ODD, "true", "False", "7", "a", ""]),
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters='",;|'), max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(cells, min_size=1, max_size=8), cells)
def test_readings_for_private_questions_are_those_of_each_cell(tmp_path_factory, column, odd):
    folder = tmp_path_factory.mktemp("tables")

    def read(some):
        path = folder / "t.csv"
        path.write_text("\n".join(["x,who", *(f'"{cell}",p' for cell in some), ""]), encoding="utf-8")
        records = Records.read(path, schema={"x": "code"})
        coded = read_as_labels(records["x"])
        by_size = read_as_asked(records, Query.parse("x > 1"))["x"]
        labels = [label(None if code == 0 else coded.values[code - 1]) for code in coded.codes]
        return labels, [*map(str, read_as_numbers(records["x"]))], [*map(str, by_size.numbers)]

    for alone, together in zip(read(column), read([*column, odd]), strict=True):
        assert together[:-1] == alone


def test_private_naive_bayes_counts_everybody_else_the_same(write, fixed_noise):
    """Two files that differ by one patient with an odd cell in every column: all others are where they were."""

    def fit(rows):
        sites = [
            cc.Site(name, Records.read(write(name, own), schema=SCHEMA))
            for name, own in (("a", rows), ("b", ROWS), ("c", ROWS))
        ]
        with zero_noise():
            return cc.NaiveBayes(
                "y",
                release="private",
                epsilon=0.1,
                values={"flag": ["TRUE", "FALSE"], "size": [0.5, "5.", 7], "y": ["TRUE", "FALSE"]},
            ).fit(cc.House(sites))

    one, other = fit(ROWS), fit([*ROWS, "unknown,unknown,unknown"])
    patients = [{"flag": flag, "size": size} for flag in (True, False) for size in (0.5, 5, 7)]
    np.testing.assert_allclose(one.predict_proba(patients), other.predict_proba(patients), atol=0.02)


@pytest.mark.parametrize("schema", [{}, *({n: k for n, k in SCHEMA.items() if n != one} for one in SCHEMA)])
@pytest.mark.parametrize("query", ["", "size >= 0.5", "flag = true"])
def test_a_column_that_is_not_stated_is_read_cell_by_cell(write, schema, query):
    """What is guessed of a column as a whole decides nothing: counts are those of the stated one."""
    question = ask(
        query=query,
        attributes=(Attribute("flag", (), ("false", "true"), missing=False), Attribute("size", (6.0,))),
    )
    one = count(write("t", ROWS), schema, question)
    np.testing.assert_array_equal(one, count(write("t", ROWS), SCHEMA, question))
    for odd in ODD:
        other = count(write("u", [*ROWS, f"{odd},{odd},{odd}"]), schema, question)
        assert int(((other.astype(np.int64) - one) ** 2).sum()) <= question.sensitivity.squared


def test_the_gate_says_which_column_there_is_not(write, fixed_noise):
    replies = []

    class Heard(cc.Site):
        def answer(self, message):
            replies.append(super().answer(message))
            return replies[-1]

    sites = [Heard(name, Records.read(write(name, ROWS))) for name in "abc"]
    values = {"flag": [True, False], "height": [7], "y": [True, False]}
    with zero_noise(), pytest.raises(ConciliumError, match="no column 'height'"):
        cc.NaiveBayes("y", release="private", epsilon=1.0, values=values).fit(cc.House(sites))
    refusals = [reply for reply in map(open_reply, replies) if isinstance(reply, Refusal)]
    assert {refusal.rule for refusal in refusals} == {"attribute"}
    assert all("\n" not in refusal.reason for refusal in refusals)


GUESSED = [
    *(
        "1",
        "1.0",
        "01",
        "0",
        "-0",
        "1e3",
        "1000",
        "true",
        "True",
        "TRUE",
        "false",
        "yes",
        "NA",
        "?",
        "",
        " 5",
        "5 ",
    ),
    *(
        "2015-01-01",
        "2015-01-01 00:00:00",
        "9007199254740993",
        "9007199254740992",
        "1e400",
        "-1e400",
        "nan",
        "inf",
    ),
    *(
        "0x10",
        "1_000",
        "\u0661",
        "\u00bd",
        "1,5",
        ".5",
        "5.",
        "+5",
        "abc",
        "null",
        "None",
        "N/A",
        "-",
        "1e-320",
    ),
    *("0.1", "0.10", "00012", "12345678901234567890"),
]
texts = st.one_of(
    st.sampled_from(GUESSED),
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False).map(repr),
    st.text("ab1. -e", max_size=4),
)
values = st.one_of(
    texts,
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(),
    st.dates(),
    st.datetimes(),
)


def read_alone(column):
    """A guessed column as private questions read it: labels, and numbers."""
    coded = read_as_labels(column)
    labels = [None if code == 0 else coded.values[code - 1] for code in coded.codes]
    return labels, [*map(str, read_as_numbers(column))]


def check_alone(read, column, place, extra):
    """One row more, and so one row less, changes no other row's reading."""
    more = read_alone(read([*column[:place], extra, *column[place:]]))
    for alone, together in zip(read_alone(read(column)), more, strict=True):
        assert [*together[:place], *together[place + 1 :]] == alone


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, min_size=1, max_size=6), texts, st.data())
def test_a_guessed_column_of_a_file_is_read_cell_by_cell(tmp_path_factory, column, extra, data):
    path = tmp_path_factory.mktemp("guessed") / "t.csv"

    def read(cells):
        path.write_text("x,who\n" + "".join(f'"{cell}",p\n' for cell in cells), encoding="utf-8")
        return Records.read(path)["x"]

    check_alone(read, column, data.draw(st.integers(0, len(column))), extra)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_guessed_column_of_a_data_frame_is_read_cell_by_cell(data):
    cells = data.draw(
        st.sampled_from([values, st.integers(-(2**53), 2**53), st.floats(), st.booleans(), texts, st.dates()])
    )
    column = data.draw(st.lists(cells, min_size=1, max_size=6))
    extra = data.draw(st.one_of(cells, st.none()))

    def read(own):
        return Records.read(pd.DataFrame({"x": pd.Series(own, dtype=object), "who": "p"}))["x"]

    check_alone(read, column, data.draw(st.integers(0, len(column))), extra)


def test_a_rule_that_looks_at_a_column_that_is_not_stated_ends_private_questions(write):
    policy = cc.Policy(constraints="graph A { node p where p.size = '.5' exists p.flag; }")
    schema = {"flag": "code", "y": "code"}
    view = View(Records.read(write("t", ROWS), schema=schema), policy, b"a secret of these tests")
    with pytest.raises(
        RecordsError, match="a rule of this hospital's policy looks at a column that is not stated"
    ):
        view.each_by_itself.select("", "y")
    stated = View(Records.read(write("t", ROWS), schema=SCHEMA), policy, b"a secret of these tests")
    assert len(stated.each_by_itself.select("", "y")) == 26


def test_a_function_of_the_policy_changes_a_cell_whatever_the_others_are(write):
    policy = cc.Policy(constraints="graph Z { node p + substitute p.zip =~ /zip3()/; }")

    def read(*cells):
        path = write("t", [f"{cell},x" for cell in cells], "zip,y")
        view = View(
            Records.read(path, schema={"zip": "code", "y": "code"}), policy, b"a secret of these tests"
        ).each_by_itself
        coded = view.coded("zip")
        return [label(None if code == 0 else coded.values[code - 1]) for code in coded.codes]

    assert read("1234", "10115", "unknown")[:2] == read("1234", "10115")


def test_values_of_a_study_are_read_as_a_table_is():
    assert state_values(["TRUE", "1.0", ".5", "01", 2.0]) == state_values(["true", "1", "0.5", "01", 2])


def test_a_column_that_one_row_adds_is_not_told_to_a_private_study():
    """Rows without a header: whether there is a column would depend on a patient."""
    rows = [{"a": str(place % 3), "y": "no"} for place in range(9)]
    told = []
    for listed in (rows, [*rows, {"a": "1", "y": "no", "rare disease": "yes"}]):
        records = Records.from_rows(listed, schema={"a": "code", "y": "code"})
        view = View(records, cc.Policy()).each_by_itself
        told.append(AskColumns(query="", target="").compute(view.select("", "")).names)
    assert told == [["a", "y"], ["a", "y"]]
    with pytest.raises(DoesNotFit, match="no column is stated"):
        _ = View(Records.from_rows(rows), cc.Policy()).each_by_itself
