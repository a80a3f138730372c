"""Patterns: the same outcome as Python's own, for those accepted; in bounded time, whatever is sent."""

from __future__ import annotations

import re
import time
import warnings

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from concilium.policy.patterns import LONGEST_VALUE, read_pattern
from concilium.records.expression import Mistake

HOSTILE = [
    r"(a+)+b", r"(a*)*b", r"(a|a)*b", r"(a|aa)+$", r"(.*a){20}b", r"^(\w+\s?)+$x", r"(x+x+)+y", r"([a-zA-Z]+)*!",
    r"a*a*a*a*a*b", r".*.*.*=.*", r"(a?){30}a{30}", r"a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?aaaaaaaaaaaaaaaaaaa",
    r"(\d+)*-", r"a{1,1000}a{1,1000}b", r"((a{1,30}){1,30}){1,30}b", r"(a|b|ab){1,40}c", r".*@.*", r"(?:a+)+$",
    r"([^@]+@?)+\.com", r"(\s*\w+\s*)+,", r"((ab|a)(b|)){1,30}c", r"(é|[é-ü])+x", r"(\w|\d)+x",
]  # fmt: skip


@pytest.mark.parametrize("pattern", HOSTILE)
def test_hostile_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(
        Mistake, match=r"too many ways|cannot tell where to stop|can be empty|nothing to replace"
    ):
        read_pattern(pattern, "x")


@pytest.mark.parametrize(
    ("pattern", "place", "words"),
    [
        (r"(a)\1", 3, "cannot refer back"),
        (r"a(?=b)", 1, "no looking around"),
        (r"(?<=a)b", 0, "no looking around"),
        (r"(?P<n>a)", 0, "only plain groups"),
        (r"(?i)a", 0, "only plain groups"),
        (r"x*", 0, "matches even where there is nothing"),
        (r"^$", 0, "matches even where there is nothing"),
        (r"a|", 0, "matches even where there is nothing"),
        (r"ab**", 3, "one repetition sign after another"),
        (r"ab+?", 3, "one repetition sign after another"),
        (r"*a", 0, "nothing to repeat"),
        (r"^*a", 0, "nothing to repeat"),
        (r"a{,3}", 1, "expected a count"),
        (r"a{3,2}", 1, "can never hold"),
        (r"a{2000}", 1, "can never hold"),
        (r"(ab", 0, "never closed"),
        (r"ab)", 2, "no opening one"),
        (r"a[bc", 1, "never closed"),
        (r"a[]", 1, "empty"),
        (r"[z-a]", 4, "backwards"),
        ("[\u0100-\uffff]", 4, "too wide"),
        (r"[[:digit:]]", 1, "instead of a class by name"),
        (r"a\p", 1, r"there is no \p"),
        ("a\\", 2, "ends too early"),
        ("(" * 21 + "a" + ")" * 21, 20, "nested more than 20 deep"),
        ("(a)" * 10, 0, "at most nine groups"),
        ("a" * 501, 0, "at most 500 characters"),
    ],
)
def test_mistakes_have_a_place(pattern: str, place: int, words: str) -> None:
    with pytest.raises(Mistake) as caught:
        read_pattern(pattern, "x", place=100)
    assert words in caught.value.problem
    assert caught.value.place == 100 + place


USEFUL = [
    (r"\d{3}-\d{4}", "x", "call 555-1234 now", "call x now"),
    (r"(\d{4})-\d\d-\d\d", r"\1", "from 1950-01-31 to 1960-02-01", "from 1950 to 1960"),
    (r"\b(Mr|Mrs|Dr)\.? [A-Z][a-z]+", r"\1 X", "Dr. House and Mrs Who", "Dr X and Mrs X"),
    (r"[^@ ]+@[^@ ]+", "(mail)", "to ann@x.org, b@c.de", "to (mail) (mail)"),
    (r"^.+$", "gone", "anything at all", "gone"),
    (r"\b\d{5}(-\d{4})?\b", "zip", "02139 02139-4307 123456", "zip zip 123456"),
    (r"[\w.]+\/", r"\/", "a.b/c", "/c"),
    (r"(a)|(b)", r"[\1\2]", "ab", "[a][b]"),
    (r"[a-zé]+", "X", "café 5", "X 5"),
    (r"\.", r"\\", "a.b", "a\\b"),
    (r"\t", r"\n", "a\tb", "a\nb"),
]


@pytest.mark.parametrize(("pattern", "replacement", "value", "changed"), USEFUL)
def test_useful_patterns_are_accepted(pattern: str, replacement: str, value: str, changed: str) -> None:
    assert read_pattern(pattern, replacement).substitute(value) == changed


@pytest.mark.parametrize("replacement", [r"\2", r"\0", r"\g<1>", "a\\"])
def test_replacements_refer_to_groups_that_are_there(replacement: str) -> None:
    with pytest.raises(Mistake):
        read_pattern("(a)", replacement)


def test_long_values_are_not_searched() -> None:
    assert read_pattern("a", "b").substitute("a" * LONGEST_VALUE) == "b" * LONGEST_VALUE
    assert read_pattern("a", "b").substitute("a" * (LONGEST_VALUE + 1)) is None


atoms = st.sampled_from(["a", "b", "ab", ".", r"\d", r"\w", "[ab]", "[^a]", "1", r"\b", "é", " "])
pieces = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"({'|'.join(options)})"),
    ),
    max_leaves=6,
)
values = st.text(st.sampled_from("aab1 é\n"), max_size=12)


@settings(max_examples=400, deadline=None)
@given(pieces, values)
def test_accepted_patterns_do_what_python_does(pattern: str, value: str) -> None:
    try:
        ours = read_pattern(pattern, "<>")
    except Mistake:
        assume(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ours.substitute(value) == re.sub(pattern, "<>", value)


@settings(max_examples=150, deadline=None)
@given(
    pieces, st.lists(st.sampled_from("aab1 é"), min_size=1, max_size=4).map("".join), st.sampled_from("!a1 ")
)
def test_accepted_patterns_are_quick_on_long_values(pattern: str, period: str, end: str) -> None:
    try:
        ours = read_pattern(pattern + "!", "<>")
    except Mistake:
        assume(False)
    value = (period * LONGEST_VALUE)[: LONGEST_VALUE - 1] + end
    start = time.process_time()
    ours.substitute(value)
    # The worst measured is an eighth of a second; a pattern that runs away takes years.
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("pattern", "replacement", "value", "becomes"),
    [
        ("[a-z]", "[A-Z]", "ab1", "AB1"),
        ("[a-zA-Z]", "[b-zaB-ZA]", "Hal zZ", "Ibm aA"),
        ("[0-9]", "[5-90-4]", "2019-05", "7564-50"),
        ("[abc]", "[xyz]", "cabbage", "zxyyxge"),
        ("[aeiou]", "[.....]", "patient", "p.t..nt"),
        (r"[\-\]]", "[+)]", "a-b]", "a+b)"),
        ("[-a]", "[a-]", "a-", "-a"),
    ],
)
def test_a_range_becomes_the_other(pattern: str, replacement: str, value: str, becomes: str) -> None:
    assert read_pattern(pattern, replacement).substitute(value) == becomes


@given(st.text("abcxyzABC019 -", max_size=30), st.permutations("abcxyz"))
def test_ranges_are_translated_as_python_translates(value: str, order: list[str]) -> None:
    old, new = "abcxyz", "".join(order)
    assert read_pattern(f"[{old}]", f"[{new}]").substitute(value) == value.translate(str.maketrans(old, new))
    assert read_pattern("[a-z]", "[A-Z]").substitute(value) == value.upper()


@pytest.mark.parametrize(
    ("pattern", "replacement", "place", "words"),
    [
        ("[a-z]", "[0-9]", 6, "26 are in the first and 10 in this"),
        ("[0-9]", "[redacted]", 6, r"write \\\[ for the bracket"),
        ("[a-za]", "[A-ZA]", 0, "twice in this range"),
        (r"[\d]", "[a-j]", 0, r"such as \[0-9\]"),
        ("[a-c]", "[z-x]", 6, "backwards"),
        ("x[a-z]", "[A-Z]", 7, "a range replaces a range"),
        ("[a-z]+", "[A-Z]", 7, "a range replaces a range"),
        ("[^a-z]", "[A-Z]", 7, "a range replaces a range"),
        (r"(\d)", r"\1-[a-zA-Z]", 8, "a range replaces a range"),
    ],
)
def test_a_range_that_replaces_no_range_is_pointed_at(
    pattern: str, replacement: str, place: int, words: str
) -> None:
    with pytest.raises(Mistake, match=words) as caught:
        read_pattern(pattern, replacement)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("pattern", "replacement", "becomes"),
    [
        (r"\d+", "[redacted]", "a[redacted]"),
        (r"\d+", "[de-identified]", "a[de-identified]"),
        (r"\d+", r"\[A-Z]", "a[A-Z]"),
        ("[0-9]", r"\[x\]", "a[x][x]"),
        ("[0-9]", "x", "axx"),
    ],
)
def test_brackets_that_are_no_range_stay_brackets(pattern: str, replacement: str, becomes: str) -> None:
    assert read_pattern(pattern, replacement).substitute("a12") == becomes
