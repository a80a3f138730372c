"""Constraint graphs on a table: column by column the same as the engine on one patient after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium import policy
from concilium.errors import PolicyError
from concilium.policy.constrain import constrain
from concilium.records.columns import Coded, Numbers, label

SECRET = b"a secret for these tests"
Row = dict[str, Any]


def table(rows: list[Row], **schema: str) -> cc.Records:
    return cc.Records.from_rows(rows, schema=schema or None)


def constrained(text: str, rows: list[Row], **schema: str) -> list[Row]:
    """What is left of the rows: labels of what is there, by attribute."""
    left = constrain(table(rows, **schema), policy.parse(text, secret=SECRET))
    if not left.columns:
        return [{} for _ in left.rows]
    records = cc.Records(left.columns)
    values = {name: records.values(name) for name in records.names}
    return [
        {name: label(listed[row]) for name, listed in values.items() if listed[row] is not None}
        for row in range(len(records))
    ]


def row_by_row(text: str, records: cc.Records) -> list[Row]:
    """The same by the engine, one transaction per patient."""
    rules = policy.parse(text, secret=SECRET)
    values = {name: records.values(name) for name in records.names}
    left = []
    for row in range(len(records)):
        found = rules.apply({"nodes": [{name: listed[row] for name, listed in values.items()}]})
        left += [
            {name: label(value) for name, value in node.items() if value is not None}
            for node in (found or {"nodes": []})["nodes"]
        ]
    return left


ROWS: list[Row] = [
    {
        "id": "p1",
        "sex": "f",
        "age": 91,
        "zip": "02139",
        "weight": 61.5,
        "code": "E11.65",
        "dob": "1930-01-31",
    },
    {"id": "p2", "sex": "m", "age": 40, "zip": "10001", "weight": 80.25, "code": "I10", "dob": "1981-02-28"},
    {"id": "p3", "sex": None, "age": None, "zip": None, "weight": None, "code": None, "dob": None},
    {"id": "p4", "sex": "m", "age": 95, "zip": "03601", "weight": 99.0, "code": "E11.9", "dob": "1926-12-31"},
]

EXAMPLES = [
    "graph E { node x + eliminate x.dob; }",
    "graph E { node x + where x.age > 89 eliminate x.zip, substitute x.age =~ /decade()/; }",
    "graph E { node x + where x.age > 89 or x.age is missing eliminate x; }",
    "graph C { node x where x.sex = 'm' exists x.dob, exists x.zip; }",
    "graph C { node x exists x.age; }",
    "graph S { node x substitute x.zip =~ /zip3()/, substitute x.code =~ /generalise()/; }",
    "graph S { node x substitute x.weight =~ /round(10)/, substitute x.age =~ /round(20)/; }",
    "graph S { node x where x.weight < 90 substitute x.weight =~ /round(0.5)/; }",
    "graph S { node x where x.sex = 'f' substitute x.weight =~ /decade()/; }",
    "graph S { node x substitute x.dob =~ /shift_dates()/; node y where y.age > 92 eliminate y.id; }",
    "graph S { node x substitute x.dob =~ /shift_dates(zip, 30)/, substitute x.id =~ /hash()/; }",
    "graph S { node x substitute x =~ /[0-9]/#/; }",
    "graph S { node x substitute x.sex =~ /m/f/; node y substitute y.sex =~ /f/m/; }",
    "graph A { node x eliminate x.sex; } graph B { node x where x.sex = 'f' substitute x.sex =~ /f/m/; }",
    "graph Q { node x ? eliminate x.age; }",
    "graph Q { node x {2} eliminate x.age; }",
    "graph Q { node x {2,} where x.age > 1 eliminate x.age; }",
    "graph Q { node x where x.sex = 'm' eliminate x.age; node y where y.sex = 'm' eliminate y.zip; }",
    "graph Q { node x where x.sex = 'm' eliminate x.age; node y where y.age > 90; }",
    "graph Q { node x where x.sex = 'm' eliminate x.age; node y {0} where y.age > 90; }",
    "graph Q { node x eliminate x.age; node y; edge (x, y); }",
    "graph Q { node x eliminate x.age; node y {0} where y.sex = 'm'; edge (x, y); }",
    "graph Q { node x {0,3} where x.sex = 'm' eliminate x.age; node y {1,2} where y.age > 50; }",
    "graph L { node x ['E11.65', m] where x.age > 50 eliminate x.id; }",
    "graph L { node x [weight] eliminate x.id; }",
    "graph L { node x ['99', 61.5] eliminate x.id; }",
    "graph N { node x where x.weight = 99 eliminate x.id; node y where y.weight in {61.5, '80.25'} eliminate y.sex; }",
    "graph N { node x where x.weight != 99 eliminate x.sex; }",
    "graph N { node y where not y.weight between 60 and 81 eliminate y.id; }",
    "graph N { node x where x.weight >= 9007199254740993 or x.weight <= 80.25 eliminate x.id; }",
    "graph N { node x where x.zip > 9000 eliminate x.id; }",
    "graph V { node x where x.age > x.weight eliminate x.zip; }",
    "graph V { node x where x.age = x.weight or x.sex != x.code eliminate x.zip; }",
    "graph V { node x where not x.dob < x.id eliminate x.zip; node y where y.zip = z.zip eliminate y.sex; node z; }",
    "graph V { node x eliminate x.sex; node y {0} where y.zip = x.zip; }",
    "graph V { node x eliminate x.sex; node y; edge e(x, y) where e.kind = 'kin' eliminate e, exists e.note; }",
    """function band { when value < 50 give 'young'; when value < 92 give /decade()/; }
       graph V { node x substitute x.age =~ /band()/, substitute x.weight =~ /band()/; }""",
    """function keep { when value in {'m', 'f'} give value; otherwise give 3; }
       graph V { node x substitute x =~ /keep()/; }""",
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_table_is_filtered_as_its_patients_are(text: str) -> None:
    assert constrained(text, ROWS) == row_by_row(text, table(ROWS))
    stated = {"age": "number", "zip": "code"}
    assert constrained(text, ROWS, **stated) == row_by_row(text, table(ROWS, **stated))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "sex": st.sampled_from(["f", "m", None]),
    "n": st.sampled_from([0, 1, 2, 5, 40, None]),
    "w": st.sampled_from([0.0, 0.5, 2.5, 12.25, -3.75, 1e16, None]),
    "t": st.sampled_from(["1", "2139", "02139", "E11.65", "no", "1950-01-31", "", None]),
    "b": st.sampled_from([True, False, None]),
    "id": st.sampled_from(["a", "b", "c"]),
}
TABLES = st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=12)
NUMBERS = st.sampled_from(["0", "2", "2.5", "40", "1e16", "10000000000000000"])
CONDITION = st.one_of(
    st.builds("@.{} {} {}".format, st.sampled_from("nw"), st.sampled_from(["<", ">=", "=", "!="]), NUMBERS),
    st.builds("@.{} {} {}".format, st.sampled_from("nwtb"), st.sampled_from(["=", "!="]), NUMBERS),
    st.builds("@.{} in {{{}, 'no', 'true', 'm'}}".format, st.sampled_from([*VALUES]), NUMBERS),
    st.builds("@.{} is missing".format, st.sampled_from([*VALUES])),
    st.builds("not @.{} between {} and 50".format, st.sampled_from("nw"), NUMBERS),
    st.just("@.sex = 'm'"),
    st.builds(
        "@.{} {} @.{}".format, st.sampled_from("nw"), st.sampled_from(["<", ">="]), st.sampled_from("nw")
    ),
    st.builds("@.{} = @.{}".format, st.sampled_from([*VALUES]), st.sampled_from([*VALUES])),
)
FUNCTIONS = ["year()", "decade()", "first3()", "zip3()", "round(5)", "round(0.1)", "generalise()", "hash()"]
PATTERNS = ["shift_dates()", "shift_dates(sex, 9)", "[0-9]+/N", "1/", "o/0"]
TRANSFORM = st.sampled_from([f"/{written}/" for written in (*FUNCTIONS, *PATTERNS)])
ACTION = st.one_of(
    st.builds("exists @.{}".format, st.sampled_from([*VALUES])),
    st.builds("eliminate @.{}".format, st.sampled_from([*VALUES])),
    st.builds("substitute @.{} =~ {}".format, st.sampled_from([*VALUES]), TRANSFORM),
    st.sampled_from(["eliminate @", "substitute @ =~ /m/x/", "substitute @ =~ /first3()/"]),
)
QUANTIFIER = st.sampled_from(["", "", "", "+", "?", "{1}", "{2}", "{0,2}", "{1,}", "[m, n, '12.25']", "[b]"])


@st.composite
def policies(draw: st.DrawFn) -> str:
    graphs = []
    for number in range(draw(st.integers(1, 3))):
        nodes = []
        for tag in "xyz"[: draw(st.integers(1, 3))]:
            conditions = " or ".join(
                " and ".join(draw(CONDITION).replace("@", tag) for _ in range(draw(st.integers(1, 2))))
                for _ in range(draw(st.integers(0, 2)))
            )
            actions = ", ".join(draw(ACTION).replace("@", tag) for _ in range(draw(st.integers(0, 3))))
            where = f" where {conditions}" if conditions else ""
            nodes.append(f"node {tag} {draw(QUANTIFIER)}{where} {actions};")
        edge = " edge (x, y);" if len(nodes) > 1 and draw(st.integers(0, 5)) == 0 else ""
        graphs.append(f"graph G{number} {{ {' '.join(nodes)}{edge} }}")
    return "\n".join(graphs)


@settings(max_examples=600)
@given(TABLES, policies())
def test_any_policy_on_any_table_equals_the_engine_row_by_row(rows: list[Row], text: str) -> None:
    assert constrained(text, rows) == row_by_row(text, table(rows))


def test_the_generated_policies_do_something() -> None:
    """Guards the test above: most of what it draws must have an effect."""
    effects = []

    @settings(max_examples=100, database=None, derandomize=True)
    @given(TABLES, policies())
    def look(rows: list[Row], text: str) -> None:
        effects.append(row_by_row(text, table(rows)) != row_by_row("graph N { node x; }", table(rows)))

    look()
    assert sum(effects) > len(effects) / 3


def test_without_a_condition_an_attribute_is_gone_and_with_one_it_is_missing() -> None:
    left = constrain(table(ROWS), policy.parse("graph E { node x + eliminate x.dob; }"))
    assert "dob" not in left.columns
    assert dict(left.eliminated) == {"dob": "E"}
    everyone = "graph E { node x + where x.id is not missing eliminate x.dob; }"
    left = constrain(table(ROWS), policy.parse(everyone))
    assert not left.eliminated
    dob = left.columns["dob"]
    assert isinstance(dob, Coded)
    assert not dob.codes.any()


def test_no_value_that_nobody_has_any_more_is_kept() -> None:
    rules = policy.parse(
        "graph R { node x where x.age > 92 exists x; } graph E { node y where y.sex = 'f' eliminate y.id; }"
    )
    left = constrain(table(ROWS), rules)
    assert left.rows.tolist() == [0, 1, 2]
    assert {name: column.values for name, column in left.columns.items() if isinstance(column, Coded)} == {
        "id": ("p2", "p3"),
        "sex": ("f", "m"),
        "age": (40, 91),
        "zip": ("02139", "10001"),
        "code": ("E11.65", "I10"),
        "dob": ("1930-01-31", "1981-02-28"),
    }
    assert isinstance(left.columns["weight"], Numbers)


def test_attributes_that_a_function_replaced_for_everyone_are_known() -> None:
    text = """graph S { node x substitute x.zip =~ /zip3()/, substitute x.code =~ /E/F/; }
              graph T { node x where x.age > 0 substitute x.dob =~ /year()/; }"""
    assert constrain(table(ROWS), policy.parse(text)).replaced == {"zip"}


def test_stated_codes_stay_codes_and_the_table_itself_is_never_changed() -> None:
    records = table(ROWS, zip="code")
    before = records.digest
    left = constrain(
        records, policy.parse("graph S { node x substitute x.zip =~ /zip3()/, eliminate x.sex; }")
    )
    assert left.columns["zip"].stated
    assert cc.Records({name: records[name] for name in records.names}).digest == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graph G { node x + eliminate x.dbo; }", "mentions dbo, .* did you mean 'dob'"),
        ("graph G { node x + where x.agee > 5 eliminate x.dob; }", "did you mean 'age'"),
        ("graph G { node x substitute x.dob =~ /shift_dates(idd)/; }", "mentions idd"),
        ("graph G { node x where x.sex > 5 eliminate x.dob; }", "graph G compares sex with a number"),
        ("graph G { node x where x.age > 'f' eliminate x.dob; }", "graph G compares age with text"),
        ("graph G { node x where x.weight > 'f' eliminate x.dob; }", "graph G compares weight with text"),
    ],
)
def test_a_rule_that_does_not_fit_the_table_is_an_error(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        constrain(table(ROWS), policy.parse(text, secret=SECRET))


def test_a_value_that_no_patient_has_does_not_make_a_rule_unfit() -> None:
    mixed = cc.Records({"t": Coded(np.array([1, 0]), ("5", "x")), "y": Coded(np.array([1, 2]), ("n", "y"))})
    left = constrain(mixed, policy.parse("graph G { node x where x.t > 4 eliminate x.y; }"))
    assert cc.Records(left.columns).values("y") == [None, "y"]


def test_rules_that_need_a_secret_do_not_run_without_one() -> None:
    with pytest.raises(PolicyError, match="need the site's secret"):
        constrain(table(ROWS), policy.parse("graph S { node x substitute x.id =~ /hash()/; }"))


def test_nobody_and_nothing_may_be_left() -> None:
    left = constrain(table(ROWS), policy.parse("graph R { node x eliminate x; }"))
    assert left.rows.tolist() == []
    text = "graph E { node x " + ", ".join(f"eliminate x.{name}" for name in ROWS[0]) + "; }"
    assert constrain(table(ROWS), policy.parse(text)).columns == {}
