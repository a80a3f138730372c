"""Functions that a hospital defines in its policy: what they give, that they are total and bounded, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import PolicyError
from concilium.policy import parse
from concilium.policy.explain import describe_function, find_oddities

SECRET = b"a secret for these tests"

BANDS = """
function age_band {
    when value < 18 give 'child';
    when value between 18 and 64 give /round(10)/;
    when value < 90 give value;
    otherwise give '90 or older';
}
"""
CODES = r"""
function chapter { when value in {'E11.9', 'E10.9'} give 'diabetes'; when value > 'F' give nothing; otherwise give
    /generalise(3)/ then /[A-Z](\d)\d/\1xx/; }
function kept { when value = 'I10' give /chapter()/; when value is not missing give /chapter()/ then /first3()/; }
"""


def change(functions: str, name: str, value: Any) -> Any:
    rules = parse(f"{functions} graph S {{ node x substitute x.v =~ /{name}()/; }}", secret=SECRET)
    changed = rules.apply({"nodes": [{"v": value}]})
    assert changed is not None
    return changed["nodes"][0].get("v")


@pytest.mark.parametrize(
    ("functions", "name", "value", "changed"),
    [
        (BANDS, "age_band", 7, "child"),
        (BANDS, "age_band", "7", "child"),
        (BANDS, "age_band", 43, 40),
        (BANDS, "age_band", "43", 40),
        (BANDS, "age_band", 77, 77),
        (BANDS, "age_band", "77", "77"),
        (BANDS, "age_band", 103, "90 or older"),
        (BANDS, "age_band", "unknown", None),
        (BANDS, "age_band", True, None),
        (BANDS, "age_band", [7, 103, "?", None], ["child", "90 or older"]),
        (CODES, "chapter", "E11.9", "diabetes"),
        (CODES, "chapter", "C34.1", "3xx"),
        (CODES, "chapter", "G20", None),
        (CODES, "chapter", "cough", None),
        (CODES, "kept", "E11.9", "dia"),
        ("function f { when value = 1 give 2; }", "f", 1, 2),
        ("function f { when value = 1 give 2; }", "f", 3, None),
        ("function f { otherwise give true; }", "f", "x", True),
        ("function f { otherwise give /a/b/ then /b/c/ then /c/d/; }", "f", "abc", "ddd"),
        (f"function f {{ otherwise give '{'y' * 2_000}'; }}", "f", "x", "y" * 2_000),
        ("function f { otherwise give value; }", "f", "x" * 2_000, "x" * 2_000),
        ("function f { otherwise give value; }", "f", "x" * 2_001, None),
        ("function f { otherwise give /a/aaaaaaaaaa/; }", "f", "a" * 201, None),
        ("FUNCTION `my own` { When value = 'when' GIVE 'give'; } function f { otherwise give /year()/; }",
         "f", "1950-01-31", "1950"),
    ],
)  # fmt: skip
def test_what_functions_give(functions: str, name: str, value: Any, changed: Any) -> None:
    given_back = change(functions, name, value)
    assert given_back == changed
    assert type(given_back) is type(changed)


def test_a_function_may_use_the_secret_and_then_needs_it() -> None:
    function = "function f { when value = 'a' give value; otherwise give /hash()/; }"
    rules = parse(f"{function} graph S {{ node x substitute x.v =~ /f()/; }}")
    assert rules.needs_secret
    with pytest.raises(PolicyError, match="need the site's secret"):
        rules.apply({"nodes": [{"v": "b"}]})
    assert len(change(function, "f", "b")) == 32


def test_a_definition_is_part_of_what_a_policy_says() -> None:
    one = parse(f"{BANDS} graph S {{ node x substitute x.v =~ /age_band()/; }}")
    other = parse(f"{BANDS.replace('90', '89')} graph S {{ node x substitute x.v =~ /age_band()/; }}")
    assert one.graphs != other.graphs
    assert one.functions != other.functions


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("function f { when value < 5 give 'low'; }", 1, "there is no graph here"),
        ("function f { } graph G { node x; }", 1, "expected 'when' or 'otherwise'"),
        ("function f { when value < 5 'low'; }", 1, "'give'"),
        ("function f { when value < 5 give low; }", 1, "what to give: a text in quotes, a number, value, nothing or"),
        ("function f { when age < 5 give 1; }", 1, "a function sees its value and nothing else"),
        ("function f { when x.value < 5 give 1; }", 1, "a function sees its value and nothing else"),
        ("function f { when value < x.b give 1; }", 1, "a function sees its value and nothing else"),
        ("function f { when value > true give 1; }", 1, "has no order"),
        ("function f { when value between 1 and 'b' give 1; }", 1, "not of one kind"),
        ("function f { otherwise give 1; when value = 2 give 2; }", 1, "no case after otherwise can ever hold"),
        ("function f { otherwise give /f()/; }", 1, "there is no function f"),
        ("function f { otherwise give /g()/; } function g { otherwise give 1; }", 1, "there is no function g"),
        ("function f { otherwise give 1; }\nfunction f { otherwise give 2; }", 2, "two functions named f"),
        ("function year { otherwise give 1; }", 1, "there is a function year already"),
        ("function f { otherwise give /shift_dates()/; }", 1, "depends on whose value it is"),
        ("function f { otherwise give /a/b/ then /a/b/ then /a/b/ then /a/b/ then /a/b/ then /a/b/; }", 1, "at most 5"),
        ("function f { otherwise give /(a+)+b/x/; }", 1, "cannot tell where to stop"),
        ("function bands { otherwise give 1; }\ngraph G { node x substitute x.a =~ /band()/; }", 2,
         "did you mean 'bands'?"),
        ("function f { otherwise give 1; }\ngraph G { node x substitute x.a =~ /f(3)/; }", 2, "takes nothing"),
        ("function f { otherwise give __import__('os'); }", 1, "expected"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence_at_its_place(text: str, line: int, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(text)
    problem = str(caught.value).splitlines()[0]
    assert words in problem
    assert f"(line {line}, " in problem


def test_a_text_that_is_too_long_to_be_given_is_refused_when_it_is_read() -> None:
    given = "x" * 2_001
    policy = (
        f"function f {{ when value = 1 give 'a';\n  when value = 2 give '{given}'; }} graph G {{ node x; }}"
    )
    with pytest.raises(PolicyError) as caught:
        parse(policy)
    assert str(caught.value).splitlines()[0] == (
        "a function gives at most 2,000 characters; give a shorter text (line 2, column 23)"
    )


def test_work_is_bounded_however_functions_use_each_other() -> None:
    many = "function f0 { otherwise give /a/b/; }\n" + "".join(
        f"function f{n} {{ otherwise give /f{n - 1}()/ then /f{n - 1}()/ then /f{n - 1}()/; }}\n"
        for n in range(1, 9)
    )
    with pytest.raises(PolicyError, match="function f7 leads to more than 1,000 conditions and steps"):
        parse(f"{many} graph G {{ node x; }}")
    cases = " ".join(f"when value = {n} give {n};" for n in range(101))
    with pytest.raises(PolicyError, match="at most 100 cases"):
        parse(f"function f {{ {cases} }} graph G {{ node x; }}")
    functions = " ".join(f"function f{n} {{ otherwise give 1; }}" for n in range(101))
    with pytest.raises(PolicyError, match="at most 100 functions"):
        parse(f"{functions} graph G {{ node x; }}")


def test_functions_in_words() -> None:
    rules = parse(f"{BANDS}{CODES} graph G {{ node x substitute x.v =~ /kept()/; }}")
    bands, chapter, kept = map(describe_function, rules.functions)
    assert bands == [
        "where value < 18: gives 'child'",
        "where value between 18 and 64: changes it by round(10)",
        "where value < 90: leaves it as it is",
        "otherwise: gives '90 or older'",
    ]
    assert chapter[1] == "where value > 'F': takes it out"
    assert kept[-2:] == [
        "where value is not missing: changes it by chapter(), then first3()",
        "otherwise: takes it out",
    ]
    assert [oddity for oddity in find_oddities(rules) if "function" in oddity] == [
        "function age_band is used nowhere"
    ]


# The oracle: cases as Python tuples, decided by Python's own comparisons.

SIGNS = {
    "<": lambda value, bound: value < bound,
    ">=": lambda value, bound: value >= bound,
    "=": lambda value, bound: value == bound,
    "!=": lambda value, bound: value != bound,
}
RESULTS = st.one_of(st.integers(-5, 5), st.sampled_from(["value", "nothing"]))
CASES = st.lists(
    st.tuples(st.sampled_from(sorted(SIGNS)), st.integers(-3, 3), RESULTS), min_size=1, max_size=5
)


@settings(max_examples=150, deadline=None)
@given(
    CASES, st.booleans(), st.lists(st.one_of(st.integers(-4, 4), st.floats(-4, 4)), min_size=1, max_size=6)
)
def test_the_first_case_that_holds_decides(
    cases: list[tuple[str, int, Any]], otherwise: bool, values: list[float]
) -> None:
    written = " ".join(f"when value {sign} {bound} give {result};" for sign, bound, result in cases)
    written += " otherwise give 9;" if otherwise else ""

    def expected(value: float) -> Any:
        for sign, bound, result in cases:
            if SIGNS[sign](value, bound):
                return value if result == "value" else None if result == "nothing" else result
        return 9 if otherwise else None

    rules = parse(f"function f {{ {written} }} graph S {{ node x + substitute x.v =~ /f()/; }}")
    changed = rules.apply({"nodes": [{"v": value} for value in values]})
    assert changed is not None
    assert [node.get("v") for node in changed["nodes"]] == [expected(value) for value in values]
