"""Rules are equal if and only if they hold for the same patients; brute force over every patient there could be."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import MessageError
from concilium.protocol.attributes import MOST_VALUES, Attribute
from concilium.rulefit.terms import (
    _say_condition,
    _write_condition,
    check_rules,
    read_codes,
    say_rule,
    tabulate,
    write_rule,
)

AGE = Attribute("age", (40.0, 60.5, 80.0))
SEX = Attribute("sex", (), ("f", "m"))
FLAG = Attribute("flag", (0.5,))
ALL = (AGE, SEX, FLAG)
SIZES = [attribute.size for attribute in ALL]
EVERYBODY = list(itertools.product(*(range(size) for size in SIZES)))


def codes_within(size):
    return st.sets(st.integers(0, size - 1), min_size=1)


RULES = st.fixed_dictionaries({}, optional={i: codes_within(size) for i, size in enumerate(SIZES)})


def patients_of(rule):
    """Who of all there could be fulfils a rule, by reading its runs one by one."""
    return frozenset(
        patient
        for patient in EVERYBODY
        if all(
            any(
                low <= patient[condition[0]] <= high
                for low, high in zip(condition[1::2], condition[2::2], strict=True)
            )
            for condition in rule
        )
    )


@given(RULES, RULES)
@settings(max_examples=300)
def test_two_rules_are_equal_if_and_only_if_they_hold_for_the_same_patients(one, other):
    first, second = write_rule(one, SIZES), write_rule(other, SIZES)
    meant = frozenset(p for p in EVERYBODY if all(p[a] in codes for a, codes in one.items()))
    assert patients_of(first) == meant
    assert (first == second) == (patients_of(first) == patients_of(second))


@given(RULES)
def test_what_is_written_is_canonical_and_reads_back(allowed):
    rule = write_rule(allowed, SIZES)
    for condition in rule:
        assert read_codes(condition) == allowed[condition[0]]
    if rule:
        check_rules([rule], ALL)
        sent = msgspec.msgpack.encode(rule)
        assert msgspec.msgpack.decode(sent, type=tuple[tuple[int, ...], ...]) == rule
    else:
        assert all(len(codes) == SIZES[attribute] for attribute, codes in allowed.items())


@given(st.lists(st.sets(st.integers(0, 8), min_size=1), min_size=1, max_size=6))
def test_a_table_says_which_codes_fulfil_conditions_on_an_attribute(sets):
    table = tabulate([_write_condition(3, codes) for codes in sets], 9)
    assert [set(np.flatnonzero(row).tolist()) for row in table] == sets


@given(st.lists(st.lists(st.integers(-2, 6), max_size=6).map(tuple), max_size=3).map(tuple))
@settings(max_examples=500)
def test_whatever_is_not_what_would_be_written_is_refused(rule):
    """The one canonical form of a rule is what `write_rule` makes of its codes; all else is refused."""
    try:
        check_rules([rule], ALL)
    except MessageError:
        fine = False
    else:
        fine = True
    known = all(len(c) % 2 == 1 and 0 <= c[0] < len(ALL) and min(c) >= 0 for c in rule)
    canonical = (
        known
        and len({c[0] for c in rule}) == len(rule) > 0
        and all(c[i] <= c[i + 1] < SIZES[c[0]] for c in rule for i in range(1, len(c), 2))
        and write_rule({c[0]: read_codes(c) for c in rule}, SIZES) == rule
        and all(len(c) > 1 for c in rule)
    )
    assert fine == canonical


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ((), "needs a condition"),
        (((0,),), "canonical"),
        (((0, 1),), "canonical"),
        (((0, 1, 2, 3),), "canonical"),
        (((3, 1, 1),), "canonical"),
        (((-1, 1, 1),), "canonical"),
        (((1, 1, 1), (0, 1, 1)), "canonical"),
        (((0, 1, 1), (0, 2, 2)), "canonical"),
        (((0, 2, 1),), "canonical"),
        (((0, 1, 1, 2, 2),), "canonical"),
        (((0, 3, 3, 1, 1),), "canonical"),
        (((0, 1, 3, 2, 4),), "canonical"),
        (((0, 0, 5),), "canonical"),
        (((0, -1, 2),), "canonical"),
        (((0, 0, 4),), "everybody"),
        (((0, 2**63, 2**63),), "canonical"),
    ],
)
def test_each_way_not_to_be_canonical_is_refused(rule, said):
    with pytest.raises(MessageError, match=said):
        check_rules([rule], ALL)


@pytest.mark.parametrize(
    ("attribute", "codes", "said"),
    [
        (AGE, {0}, "age is missing"),
        (AGE, {1, 2, 3, 4}, "age is not missing"),
        (AGE, {1}, "age < 40"),
        (AGE, {1, 2}, "age < 60.5"),
        (AGE, {4}, "age >= 80"),
        (AGE, {2, 3, 4}, "age >= 40"),
        (AGE, {2}, "40 <= age < 60.5"),
        (AGE, {2, 3}, "40 <= age < 80"),
        (AGE, {1, 4}, "(age < 40 or age >= 80)"),
        (AGE, {1, 3}, "(age < 40 or 60.5 <= age < 80)"),
        (AGE, {0, 1}, "(age < 40 or missing)"),
        (AGE, {0, 3, 4}, "(age >= 60.5 or missing)"),
        (SEX, {0}, "sex is missing"),
        (SEX, {1}, "sex = f"),
        (SEX, {1, 2}, "sex in {f, m}"),
        (SEX, {2, 3}, "sex is not f"),
        (SEX, {3}, "sex not in {f, m}"),
        (SEX, {0, 2, 3}, "(sex is not f or missing)"),
        (SEX, {0, 3}, "(sex not in {f, m} or missing)"),
        (SEX, {1, 2, 3}, "sex is not missing"),
        (SEX, {0, 2}, "(sex = m or missing)"),
        (FLAG, {2}, "flag >= 0.5"),
        (Attribute("code", (), (5, 7.5, True)), {1, 3}, "code in {5, true}"),
        (Attribute("big", (100000.5, 100001.5, 1e7)), {2}, "100000.5 <= big < 100001.5"),
        (Attribute("one", (100000.5,)), {2}, "one >= 100000.5"),
        (Attribute("third", (0.0, 1 / 3, 0.1 + 0.2 + 0.1)), {2}, "0 <= third < 0.333333"),
        (Attribute("fine", (1.0000001, 1.0000002)), {2}, "1.0000001 <= fine < 1.0000002"),
    ],
)
def test_conditions_in_words(attribute, codes, said):
    assert _say_condition(_write_condition(0, codes), attribute) == said


def test_a_rule_in_words_is_its_conditions():
    assert say_rule(((0, 3, 4), (1, 1, 1)), ALL) == "age >= 60.5 & sex = f"


@given(RULES, RULES)
def test_different_rules_have_different_words(one, other):
    first, second = write_rule(one, SIZES), write_rule(other, SIZES)
    assert (say_rule(first, ALL) == say_rule(second, ALL)) == (first == second)


def test_codes_of_an_attribute_are_missing_intervals_or_values_and_other():
    assert SIZES == [5, 4, 3]
    assert Attribute("none").size == 2
    assert (AGE.numeric, SEX.numeric, Attribute("none").numeric) == (True, False, False)


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        (Attribute("x", (1.0,), ("a",)), "both a number and a category"),
        (Attribute("x", (2.0, 1.0)), "must rise"),
        (Attribute("x", (float("nan"),)), "finite"),
        (Attribute("x", (1.0, float("inf"))), "finite"),
        (Attribute("x", (), ("a", "a")), "different values"),
        (Attribute("x", (), (5, "5")), "different values"),
        (Attribute("x", (), (5, 5.0)), "different values"),
        (Attribute("x", (), tuple(range(MOST_VALUES + 1))), f"at most {MOST_VALUES}"),
        (Attribute("x", tuple(map(float, range(1001)))), "1 to 1000"),
    ],
)
def test_attributes_that_are_not_well_formed(attribute, said):
    with pytest.raises(MessageError, match=said):
        attribute.check()


def test_a_condition_that_nobody_can_fulfil_is_not_a_rule():
    with pytest.raises(MessageError):
        check_rules([write_rule({0: set()}, SIZES)], ALL)
