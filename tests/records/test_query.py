"""Queries: what they select (against a row-by-row evaluator), how they print, and how they fail."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import QueryError
from concilium.records import expression as expression_module
from concilium.records import query as query_module
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.query import Query
from concilium.records.table import Records

Row = Mapping[str, Value | None]

KINDS = {
    "sex": "text",
    "born on": "text",
    "race": "number",
    "age": "float",
    "num.co": "number",
    "ward": "code",
    "smoker": "truth",
}
VALUES: dict[str, list[Value]] = {
    "sex": ["f", "m", "it's", ""],
    "born on": ["1950-01-31", "1962-12-01", "1999-07-07"],
    "race": [1, 2, 5, 12],
    "age": [-1.5, 0.0, 20.0, 40.5, 41.0],
    "num.co": [0, 0.5, 3],
    "ward": [1, 5, 17],
    "smoker": [False, True],
}


def column(values: Sequence[Value | None], kind: str) -> Column:
    if kind == "float":
        return Numbers(np.array([np.nan if value is None else float(value) for value in values]))
    present = tuple(sorted({value for value in values if value is not None}))
    codes = np.array([0 if value is None else present.index(value) + 1 for value in values], dtype=np.uint8)
    return Coded(codes, present, stated=kind == "code")


def table(rows: Sequence[Row]) -> Records:
    return Records({name: column([row[name] for row in rows], kind) for name, kind in KINDS.items()})


PATIENTS: list[Row] = [
    {"sex": "m", "born on": "1950-01-31", "race": 5, "age": 20.0, "num.co": 3, "ward": 5, "smoker": True},
    {"sex": "f", "born on": "1999-07-07", "race": 1, "age": 40.5, "num.co": 0, "ward": 1, "smoker": False},
    {"sex": None, "born on": None, "race": None, "age": None, "num.co": None, "ward": None, "smoker": None},
    {"sex": "m", "born on": "1962-12-01", "race": 12, "age": 41.0, "num.co": 0.5, "ward": 17, "smoker": True},
]


def selected(text: str) -> list[int]:
    return list(np.flatnonzero(Query.parse(text).mask(table(PATIENTS))))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [0, 1, 2, 3]),
        (" \n # everyone", [0, 1, 2, 3]),
        ("age > 20 and age < 41 and race = 1", [1]),
        ("age >= 20 AND age <= 40.5", [0, 1]),
        ("20 < age", [1, 3]),
        ("20 <= age and 41 > age", [0, 1]),
        ("race = 5", [0]),
        ("race = '5'", [0]),
        ("race == 5.0", [0]),
        ("5 = race", [0]),
        ("race <> 5", [1, 3]),
        ("race != 5", [1, 3]),
        ("not race = 5", [1, 3]),
        ("race > 1", [0, 3]),
        ("race = 99 or sex = 'x'", []),
        ("ward = 5 or ward = '17'", [0, 3]),
        ("sex in {'f', \"x\"}", [1]),
        ("sex not in {'f'}", [0, 3]),
        ("NOT sex IN {'f'}", [0, 3]),
        ("race in {1, '12'}", [1, 3]),
        ("age in {20, 41}", [0, 3]),
        ("age not in {20, 41}", [1]),
        ("age between 20 and 40.5", [0, 1]),
        ("age not between 20 and 40.5", [3]),
        ("race between 1 and 5 and sex = 'm'", [0]),
        ("`born on` >= '1960' and `born on` < '1990-01-01'", [3]),
        ("`born on` between '1950-01-31' and '1962-12-01'", [0, 3]),
        ("smoker = true", [0, 3]),
        ("smoker = FALSE", [1]),
        ("smoker = 'true'", [0, 3]),
        ("smoker = 1", []),
        ("num.co > 0.4", [0, 3]),
        ("`num.co` < .5", [1]),
        ("age is missing", [2]),
        ("sex is missing", [2]),
        ("age IS NOT MISSING", [0, 1, 3]),
        ("not age is not missing", [2]),
        ("age = 20 or sex is missing", [0, 2]),
        ("sex = ‘m’ and race = “5”", [0]),
        ("age > -2 and age < 2.05e1", [0]),
        # Unknown or true is true, unknown and false is false, unknown stays unknown under not.
        ("age > 20 or sex is missing", [1, 2, 3]),
        ("not (age > 20 and sex is not missing)", [0, 2]),
        ("not age > 20", [0]),
        ("age > 20 or not age > 20", [0, 1, 3]),
    ],
)
def test_selects(text: str, rows: list[int]) -> None:
    assert selected(text) == rows


def test_quotes_are_doubled_inside_quotes() -> None:
    rows = table([{**PATIENTS[0], "sex": "it's"}, PATIENTS[1]])
    for text in ["sex = 'it''s'", 'sex = "it\'s"', "sex != 'f'"]:
        assert Query.parse(text).mask(rows).tolist() == [True, False]
    odd = Records({"a`b": column([1, 2], "number")})
    assert Query.parse("`a``b` = 2").mask(odd).tolist() == [False, True]


def test_inferred_columns_are_compared_by_what_they_hold() -> None:
    rows = [{"age": 30, "bmi": 22.5, "code": 1}, {"age": 50, "bmi": 31.25, "code": 2}]
    inferred, stated = (
        Records.from_rows(rows),
        Records.from_rows(rows, schema={"code": "code", "age": "number"}),
    )
    for records in (inferred, stated):
        assert Query.parse("age > 40 and bmi > 31 and code = 2").mask(records).tolist() == [False, True]
    assert Query.parse("code < 2").mask(inferred).tolist() == [True, False]
    with pytest.raises(QueryError, match="code is a code, not a number"):
        Query.parse("code < 2").mask(stated)


def test_codes_of_every_width_are_looked_up() -> None:
    values = tuple(range(70_000))
    codes = np.arange(70_001, dtype=np.uint32)
    mask = Query.parse("n >= 69990").mask(Records({"n": Coded(codes, values)}))
    assert np.flatnonzero(mask).tolist() == list(range(69_991, 70_001))


def test_a_column_without_values_is_missing_throughout() -> None:
    empty = Records({"n": Coded(np.zeros(3, dtype=np.uint8), ())})
    assert Query.parse("n > 5 or n < 'a' or n = 1").mask(empty).tolist() == [False] * 3
    assert Query.parse("n is missing").mask(empty).all()


def test_many_conditions_on_a_column_of_many_values_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A house may write thousands of conditions, and a column may have a value for every patient."""
    calls = []

    def counting(value: Value | None) -> str:
        calls.append(value)
        return label(value)

    for module in (query_module, expression_module):
        monkeypatch.setattr(module, "label", counting)
    values = tuple(f"v{number:04d}" for number in range(1000))
    records = Records(
        {"ward": Coded(np.arange(1, 1001), values), "sex": Coded(np.arange(1000) % 3, ("f", "m"))}
    )
    chosen = [f"ward = '{value}'" for value in values[::5]]
    text = (
        f"({' or '.join(chosen)} or ward in {{'v0001', 'v0002', 'x'}}) and not ward != 'v0005' or sex != 'f'"
    )
    mask = Query.parse(text).mask(records)
    expected = [number == 5 or number % 3 == 2 for number in range(1000)]
    assert mask.tolist() == expected
    assert len(calls) < 3 * 1000


def test_attributes_are_named() -> None:
    assert Query.parse("a = 1 and not (`b c` in {1} or 3 < d.e) and a is missing").attributes == {
        "a",
        "b c",
        "d.e",
    }
    assert Query.parse("").attributes == frozenset()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("20 < age", "age > 20"),
        ("age == 5 and b <> 1", "age = 5.0 AND b != 1"),
        ("a = 1 and (b = 2 and c = 3)", "(a = 1 and b = 2) and c = 3"),
        ("(a = 1) or ((b = 2))", "a = 1 or b = 2"),
        ("a in {2, 1, 2}", "a in {1, 2}"),
        ("not a in {1}", "a not in {1}"),
        ("not a is missing", "a is not missing"),
        ("not a between 1 and 2", "a not between 1 and 2"),
        ("`a.b` = 'x'", 'a.b = "x"'),
    ],
)
def test_equal_by_meaning(one: str, other: str) -> None:
    assert Query.parse(one) == Query.parse(other)
    assert hash(Query.parse(one)) == hash(Query.parse(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = 1", "a = true"),
        ("a = 1", "a = '1'"),
        ("a in {true}", "a in {1}"),
        ("a = 1 and b = 2 or c = 3", "a = 1 and (b = 2 or c = 3)"),
        ("a < 1", "a <= 1"),
        ("a = 'x'", "a = 'X'"),
        ("A = 1", "a = 1"),
    ],
)
def test_different_by_meaning(one: str, other: str) -> None:
    assert Query.parse(one) != Query.parse(other)


@pytest.mark.parametrize(
    ("text", "line", "place", "words"),
    [
        ("age >", 1, 6, "expected a value, such as 5 or 'yes', but the text ends here"),
        ("age > 20 and", 1, 13, "expected a condition, such as age > 20"),
        ("age", 1, 4, "expected a comparison, such as = 5"),
        ("age =\n  yes", 2, 3, "write it in quotes: 'yes'"),
        ("race in {white, black}", 1, 10, "write it in quotes: 'white'"),
        ("race between low and 3", 1, 14, "write it in quotes: 'low'"),
        ("race = african american", 1, 16, "written in quotes"),
        ("born > 2020-01-01", 1, 12, "dates are written in quotes"),
        ("20 < age < 41", 1, 10, "joined by and"),
        ("5 = 5", 1, 1, "one side must name an attribute"),
        ("in = 5", 1, 1, "`in`, in backquotes"),
        ("a = 'x", 1, 5, "never closed"),
        ("`a = 5", 1, 1, "never closed"),
        ("a in (1, 2)", 1, 6, "expected values in braces, such as {1, 2}, but found '('"),
        ("a in {}", 1, 7, "expected a value"),
        ("a in {1 2}", 1, 9, "expected a comma or a closing brace, but found '2'"),
        ("(a = 1", 1, 7, "expected a closing parenthesis, but the text ends here"),
        ("a = 1)", 1, 6, "no opening one"),
        ("a is 5", 1, 6, "expected 'missing' or 'not missing'"),
        ("a not 5", 1, 7, "expected 'in' or 'between'"),
        ("a between 1", 1, 12, "expected 'and'"),
        ("a = 1 && b = 2", 1, 7, "expected 'and', 'or' or the end, but found '&'"),
        ("a. = 5", 1, 4, "expected a name"),
        ("a = 1e999", 1, 5, "too large"),
        ("a = 1\n\n\n  and", 4, 6, "expected a condition"),
        ("a\u2028= 5 5", 2, 5, "expected 'and', 'or' or the end"),
    ],
)
def test_syntax_errors_say_what_was_expected_and_where(text: str, line: int, place: int, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        Query.parse(text)
    assert (caught.value.line, caught.value.column) == (line, place)
    assert words in caught.value.problem
    assert str(caught.value).splitlines()[-1].index("^") == place + 1


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("agee > 5", 1, "there is no attribute agee; did you mean 'age'?"),
        ("sex = 'm' and\tAge > 5", 15, "did you mean 'age'?"),
        ("`born in` is missing", 1, "did you mean 'born on'?"),
        ("zzz is missing", 1, "there is no attribute zzz"),
        ("age = '20'", 7, "age is a number, but '20' is text"),
        ("age in {20, 'x'}", 13, "age is a number, but 'x' is text"),
        ("age = true", 7, "age is a number, but true is neither"),
        ("race > '5'", 8, "race is a number, but '5' is text"),
        ("race between 1 and 'x'", 20, "race is a number, but 'x' is text"),
        ("sex > 5", 7, "sex is text, not a number"),
        ("5 > sex", 1, "sex is text, not a number"),
        ("`born on` < 1990", 13, "such as '1990'"),
        ("ward > 5", 1, "ward is a code, not a number"),
        ("ward between 1 and 5", 1, "ward is a code, not a number"),
        ("smoker < true", 1, "smoker is a code, not a number"),
    ],
)
def test_what_does_not_fit_the_table_is_pointed_at(text: str, place: int, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        Query.parse(text).mask(table(PATIENTS))
    assert (caught.value.line, caught.value.column) == (1, place)
    assert words in caught.value.problem


def test_a_column_of_mixed_kinds_has_no_order() -> None:
    mixed = Records({"dose": Coded(np.array([1, 2], dtype=np.uint8), (5, "high"))})
    assert Query.parse("dose = 'high'").mask(mixed).tolist() == [False, True]
    with pytest.raises(QueryError, match="dose is a code, not a number"):
        Query.parse("dose > 3").mask(mixed)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "a = 1" + ")" * 10_000,
        "(" * 10_000,
        "not " * 10_000 + "a = 1",
        "not (" * 5_000 + "a = 1" + ")" * 5_000,
        "(a = 1 and " * 4_000 + "a = 1" + ")" * 4_000,
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(QueryError):
        Query.parse(text)


def test_nesting_and_length_that_people_use_are_read() -> None:
    assert Query.parse("(" * 40 + "a = 1" + ")" * 40) == Query.parse("a = 1")
    long = Query.parse(" or ".join(f"a = {number}" for number in range(5_000)))
    assert Query.parse(str(long)) == long
    assert long.mask(Records({"a": column([4_999, 5_000], "number")})).tolist() == [True, False]


def test_a_very_long_text_is_refused_in_one_sentence() -> None:
    with pytest.raises(QueryError, match=r"1,000,007 characters long; at most 65,536 are read") as caught:
        Query.parse("a = 1 #" + "x" * 1_000_000)
    assert len(str(caught.value)) < 200


# The oracle: conditions as nested tuples, evaluated row by row with True, False and None for unknown.

Condition = tuple[object, ...]
SIGNS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluate(condition: Condition, row: Row) -> bool | None:
    match condition:
        case ("not", inner):
            found = evaluate(inner, row)
            return None if found is None else not found
        case ("and", left, right):
            both = [evaluate(left, row), evaluate(right, row)]
            return False if False in both else None if None in both else True
        case ("or", left, right):
            both = [evaluate(left, row), evaluate(right, row)]
            return True if True in both else None if None in both else False
        case ("missing", name):
            return row[str(name)] is None
        case (sign, name, *operands):
            value = row[str(name)]
            if value is None:
                return None
            if sign == "between":
                low, high = operands
                return low <= value <= high
            if sign == "in":
                return any(evaluate(("=", name, operand), row) for operand in operands[0])
            if sign in {"=", "!="} and KINDS[str(name)] != "float":
                return SIGNS[sign](label(value), label(operands[0]))
            return SIGNS[str(sign)](value, operands[0])
    raise AssertionError(condition)


def spell(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def write(condition: Condition, dice: random.Random) -> str:
    """One of the many ways to write a condition."""

    def cased(word: str) -> str:
        return dice.choice([word, word.upper(), word.title()])

    def wrapped(inner: Condition) -> str:
        bare = inner[0] not in {"and", "or"} and dice.random() < 0.7
        return write(inner, dice) if bare else "(" * (n := dice.randint(1, 2)) + write(inner, dice) + ")" * n

    space = dice.choice([" ", "  ", "\n", " # why\n"])
    if condition[0] == "not":
        return f"{cased('not')}{space}{wrapped(condition[1])}"
    if condition[0] in {"and", "or"}:
        return f"{wrapped(condition[1])}{space}{cased(condition[0])} {wrapped(condition[2])}"
    sign, attribute, *operands = condition
    name = f"`{attribute}`" if " " in attribute or dice.random() < 0.3 else attribute
    if sign == "missing":
        return f"{name} {cased('is')} {cased('missing')}"
    if sign == "between":
        return f"{name} {cased('between')} {spell(operands[0])} {cased('and')} {spell(operands[1])}"
    if sign == "in":
        return f"{name} {cased('in')} {{{', '.join(map(spell, operands[0]))}}}"
    mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(sign, sign)
    written = {"=": dice.choice(["=", "=="]), "!=": dice.choice(["!=", "<>"])}
    if dice.random() < 0.3:
        return f"{spell(operands[0])}{written.get(sign, mirrored)} {name}"
    return f"{name} {written.get(sign, sign)}{spell(operands[0])}"


@st.composite
def leaves(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from(sorted(KINDS)))
    value = st.sampled_from(VALUES[name])
    ordered = KINDS[name] not in {"code", "truth"}
    shape = draw(
        st.sampled_from(["=", "!=", "in", "missing", *(["<", "<=", ">", ">=", "between"] if ordered else [])])
    )
    if shape == "missing":
        return (shape, name)
    if shape == "between":
        return (shape, name, draw(value), draw(value))
    if shape == "in":
        return (shape, name, tuple(draw(st.lists(value, min_size=1, max_size=3))))
    return (shape, name, draw(value))


conditions = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or"]), inner, inner)
    ),
    max_leaves=8,
)
rows = st.fixed_dictionaries({name: st.one_of(st.none(), st.sampled_from(VALUES[name])) for name in KINDS})


@settings(max_examples=300, deadline=None)
@given(conditions, st.lists(rows, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_selects_what_a_row_by_row_evaluator_selects(
    condition: Condition, patients: list[Row], dice: random.Random
) -> None:
    query = Query.parse(write(condition, dice))
    assert query.mask(table(patients)).tolist() == [evaluate(condition, row) is True for row in patients]


@settings(max_examples=300, deadline=None)
@given(conditions, st.randoms(use_true_random=False))
def test_prints_as_it_reads(condition: Condition, dice: random.Random) -> None:
    query = Query.parse(write(condition, dice))
    again = Query.parse(str(query))
    assert again == query
    assert hash(again) == hash(query)
    assert str(again) == str(query)
    assert again == Query.parse(write(condition, random.Random(1)))


awkward = st.text(st.sampled_from("ab`'\"=.{ #\n1é"), max_size=6)


@given(awkward, awkward, st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**30), 10**30))
def test_any_name_and_value_can_be_written(name: str, value: str, real: float, whole: int) -> None:
    name_text, value_text = name.replace("`", "``"), value.replace("'", "''")
    query = Query.parse(f"`{name_text}` in {{'{value_text}', {real!r}, {whole}}}")
    assert query.attributes == {name}
    assert Query.parse(str(query)) == query
    texts = Records({name + "n": column([value, value + "x"], "text")})
    assert Query.parse(f"`{name_text}n` = '{value_text}'").mask(texts).tolist() == [True, False]


SEEDS = [
    "age > 20 and age < 41 and race = 5",
    "not (sex = 'm' or `born on` <= '1960-01-01') and race in {1, 2, 'x'}",
    "20 < age or num.co between -1 and 5e2 and smoker is not missing",
    'ward not in {"5", 17} # those two\n or smoker = true',
]
LARK_WORDS = re.compile(
    r"\b(?:LPAR|RPAR|LBRACE|RBRACE|COMMA|DOT|NUMBER|TEXT|TRUTH|BARE|BACKQUOTED|COMPARISON)\b|\$END|_[A-Z]+"
)


def attempt(text: str, patients: Records) -> QueryError | None:
    try:
        query = Query.parse(text)
        assert Query.parse(str(query)) == query
        query.mask(patients)
    except QueryError as error:
        return error
    return None


def test_mutated_queries_end_in_a_query_or_an_error_that_points_into_the_text() -> None:
    dice = random.Random(20)
    pieces = [
        *"()'\"`{},.=<>!#& \n\t0159eE-+_é\x00\u2028",
        "and",
        " or ",
        "not ",
        "in",
        "is",
        "missing",
        "age",
        "true",
    ]
    patients, errors = table(PATIENTS), 0
    for _ in range(5_000):
        text = dice.choice(SEEDS)
        for _ in range(dice.randint(1, 4)):
            start, end = sorted(dice.choices(range(len(text) + 1), k=2))
            end = min(end, start + 4)
            piece = dice.choice([dice.choice(pieces), "", text[start:end] * 2])
            text = text[:start] + piece + text[end if dice.random() < 0.5 else start :]
        error = attempt(text, patients)
        if error is not None:
            errors += 1
            lines = text.splitlines() or [""]
            assert 1 <= error.line <= len(lines)
            assert 1 <= error.column <= len(lines[error.line - 1]) + 1
            assert "something else" not in error.problem
            assert not LARK_WORDS.search(error.problem.split(", but found")[0])
    assert 500 < errors < 4_500
