"""The matrix of a model's terms, against one made patient by patient."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_patients import design_of

import concilium as cc
from concilium.errors import MessageError
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.messages import encode
from concilium.records.columns import Coded, Numbers, label
from concilium.records.table import Records
from concilium.rulefit.design import build_at_site, recall_at_site
from concilium.rulefit.terms import (
    MOST_COLUMNS,
    Line,
    RuleTerms,
    Steps,
    _SentTerms,
    keep,
    read_terms,
    write_rule,
    write_terms,
)

AGE = Attribute("age", (40.0, 60.0, 80.0))
LAB = Attribute("lab", (-1.0, 0.0, 2.5))
SEX = Attribute("sex", (), ("f", "m"))
CODE = Attribute("code", (), (1, 2, 7.5))
ATTRIBUTES = (AGE, LAB, SEX, CODE)
SIZES = [attribute.size for attribute in ATTRIBUTES]

AGES = st.one_of(st.none(), st.sampled_from([40.0, 60.0, 80.0]), st.floats(-1e3, 1e3))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "age": AGES,
            "lab": AGES,
            "sex": st.sampled_from(["f", "m", "x", None]),
            "code": st.sampled_from([1, 2, 7.5, 9, None]),
        }
    ),
    min_size=1,
    max_size=30,
)


@st.composite
def terms_of(draw):
    allowed = st.fixed_dictionaries(
        {}, optional={i: st.sets(st.integers(0, size - 1), min_size=1) for i, size in enumerate(SIZES)}
    )
    rules = {write_rule(one, SIZES) for one in draw(st.lists(allowed, max_size=20))} - {()}
    lines = []
    for attribute in draw(st.lists(st.sampled_from([0, 1]), max_size=2, unique=True)):
        low, center, high = sorted(draw(st.lists(st.floats(-100, 100), min_size=3, max_size=3)))
        lines.append(Line(attribute, low, high, center, draw(st.floats(0.01, 4))))
    steps = []
    for attribute in draw(st.lists(st.integers(0, 3), max_size=2, unique=True)):
        size = SIZES[attribute]
        heights = draw(st.lists(st.floats(-5, 5), min_size=size, max_size=size))
        steps.append(Steps(attribute, tuple(heights)))
    norm = draw(st.one_of(st.none(), st.floats(0.5, 3)))
    return RuleTerms(ATTRIBUTES, tuple(sorted(rules)), tuple(lines), tuple(steps), norm)


def code_of(attribute, value):
    """What a patient's value is called: 0 missing; intervals from the left; values in order, then other."""
    if value is None:
        return 0
    if attribute.edges:
        return 1 + sum(edge <= value for edge in attribute.edges)
    names = [label(known) for known in attribute.values]
    return names.index(label(value)) + 1 if label(value) in names else len(names) + 1


def row_of(terms, patient):
    codes = [code_of(a, patient.get(a.name)) for a in terms.attributes]
    row = [
        float(
            all(any(lo <= codes[c[0]] <= hi for lo, hi in zip(c[1::2], c[2::2], strict=True)) for c in rule)
        )
        for rule in terms.rules
    ]
    for line in terms.lines:
        value = patient.get(terms.attributes[line.attribute].name)
        held = None if value is None else min(max(value, line.low), line.high)
        row.append(0.0 if held is None else line.scale * (held - line.center))
    row += [steps.heights[codes[steps.attribute]] for steps in terms.steps]
    length = math.sqrt(1 + sum(value**2 for value in row))
    shrink = 1.0 if terms.norm is None else min(1.0, terms.norm / length)
    return [shrink, *(shrink * value for value in row)]


def records_of(rows):
    return Records.from_rows(rows, schema={"age": "number", "lab": "number", "sex": "code", "code": "code"})


@given(terms_of(), ROWS)
@settings(max_examples=150)
def test_the_matrix_is_that_of_each_patient_alone(terms, rows):
    terms.check()
    design = design_of(terms, records_of(rows))
    naive = np.array([row_of(terms, row) for row in rows])
    assert np.allclose(design.matrix(), naive[:, 1:], atol=1e-12)
    assert np.allclose(design.ones, naive[:, 0])
    weights = np.linspace(-1, 2, len(rows))
    assert np.allclose(design.add_up(weights), weights @ naive[:, 1:], atol=1e-10)
    if terms.norm is not None:
        assert np.all(np.linalg.norm(naive, axis=1) <= terms.norm + 1e-9)


@given(terms_of(), ROWS, st.data())
@settings(max_examples=80)
def test_terms_that_are_kept_are_the_same_columns(terms, rows, data):
    if terms.norm is not None:
        terms = RuleTerms(terms.attributes, terms.rules, terms.lines, terms.steps)
    columns = data.draw(st.sets(st.integers(0, max(0, len(terms) - 1)), max_size=len(terms)).map(sorted))
    columns = [column for column in columns if column < len(terms)]
    kept = keep(terms, columns)
    kept.check()
    records = records_of(rows)
    assert np.array_equal(design_of(kept, records).matrix(), design_of(terms, records).matrix()[:, columns])
    used = {c[0] for rule in kept.rules for c in rule}
    used |= {term.attribute for term in (*kept.lines, *kept.steps)}
    assert used == set(range(len(kept.attributes)))


@given(terms_of(), ROWS)
@settings(max_examples=60)
def test_a_site_and_a_model_make_the_same_matrix_of_a_patient(terms, rows):
    rows = [{**row, "y": index % 2} for index, row in enumerate(rows)]
    records = Records.from_rows(
        rows, schema={"age": "number", "lab": "number", "sex": "code", "code": "code", "y": "code"}
    )
    view = View(records, cc.Policy(allow=("age", "lab", "sex", "code", "y")))
    for query in ("", "sex = 'f'"):
        cohort = view.select(query, "y")
        there = build_at_site(terms, cohort)
        here = design_of(terms, records.take(cohort.rows))
        assert np.array_equal(there.matrix(), here.matrix())


def test_a_site_remembers_the_last_matrix_and_no_other():
    rows = [{"age": float(age), "y": age % 2} for age in range(30, 90)]
    view = View(Records.from_rows(rows, schema={"age": "number"}), cc.Policy(allow=("age",)))
    one, other = (write_terms(RuleTerms((AGE,), (((0, code, code),),))) for code in (1, 2))
    everyone, old = view.select("", "y"), view.select("age >= 60", "y")
    first = recall_at_site(one, everyone, ("", "y"))
    assert recall_at_site(one, view.select("", "y"), ("", "y")) is first
    assert recall_at_site(one, old, ("age >= 60", "y")).patients == 30
    assert recall_at_site(other, old, ("age >= 60", "y")).matrix().sum() == 0
    assert np.array_equal(recall_at_site(one, everyone, ("", "y")).matrix(), first.matrix())


@pytest.mark.parametrize(
    "column",
    [
        Coded(np.array([1, 2, 3, 4, 0]), (1, 2, 7.5, 9)),
        Coded(np.array([1, 2, 3, 4, 0]), ("1", "2", "7.5", "9")),
        Coded(np.array([2, 3, 4, 1, 0]), ("x", "1", "2", "7.5")),
        Numbers(np.array([1, 2, 7.5, 9, np.nan])),
    ],
)
def test_categories_may_be_stored_as_numbers_or_text(column):
    """5 and '5' are one value; what nobody had when the model was made is other, and missing is missing."""
    terms = RuleTerms((CODE,), tuple(((0, code, code),) for code in range(5)))
    held = design_of(terms, Records({"code": column})).matrix()
    assert held.argmax(axis=1).tolist() == [1, 2, 3, 4, 0]
    assert held.sum(axis=1).tolist() == [1] * 5


def test_numbers_at_the_edges_belong_to_the_right():
    terms = RuleTerms((AGE,), tuple(((0, code, code),) for code in range(5)))
    column = Numbers(np.array([39.999, 40, 59.999, 60, 80, np.inf, -np.inf, np.nan]))
    held = design_of(terms, Records({"age": column})).matrix()
    assert held.argmax(axis=1).tolist() == [1, 2, 2, 3, 4, 4, 1, 0]


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (RuleTerms((AGE, AGE)), "named twice"),
        (RuleTerms((Attribute("x", (), ("a",), missing=False),)), "a code for what is missing"),
        (RuleTerms((Attribute("x", (), ("a",), other=False),)), "for any other value"),
        (RuleTerms((Attribute("x", (1.0,), missing=False),)), "a code for what is missing"),
        (RuleTerms((Attribute("x", of=3),)), "a code for what is missing"),
        (RuleTerms((AGE,), (((0, 1, 9),),)), "canonical"),
        (RuleTerms((AGE,), lines=(Line(1, 0, 1, 0, 1),)), "needs a number"),
        (RuleTerms((AGE,), lines=(Line(-1, 0, 1, 0, 1),)), "needs a number"),
        (RuleTerms((SEX,), lines=(Line(0, 0, 1, 0, 1),)), "needs a number"),
        (RuleTerms((AGE,), lines=(Line(0, 1, 0, 0, 1),)), "out of range"),
        (RuleTerms((AGE,), lines=(Line(0, 0, 1, 2, 1),)), "out of range"),
        (RuleTerms((AGE,), lines=(Line(0, 0, 1, 0, 0),)), "out of range"),
        (RuleTerms((AGE,), lines=(Line(0, 0, 1, 0, -1),)), "out of range"),
        (RuleTerms((AGE,), lines=(Line(0, 0, 1, 0, 1001),)), "out of range"),
        (RuleTerms((AGE,), lines=(Line(0, 0, 1, 0, math.inf),)), "out of range"),
        (RuleTerms((AGE,), lines=(Line(0, math.nan, 1, 0, 1),)), "out of range"),
        (RuleTerms((AGE,), lines=(Line(0, -math.inf, math.inf, 0, 1),)), "out of range"),
        (RuleTerms((AGE,), lines=(Line(0, 0, 1, math.nan, 1),)), "out of range"),
        (RuleTerms((AGE,), steps=(Steps(1, (0.0,) * 5),)), "no attribute"),
        (RuleTerms((AGE,), steps=(Steps(0, (0.0,) * 4),)), "does not fit"),
        (RuleTerms((AGE,), steps=(Steps(0, (0.0, 0, 0, 0, math.nan)),)), "does not fit"),
        (RuleTerms((AGE,), steps=(Steps(0, (0.0, 0, 0, 0, 2000.0)),)), "does not fit"),
        (RuleTerms((AGE,), lines=(Line(0, 0, 1, 0, 1),) * 2), "two linear terms"),
        (RuleTerms((AGE,), steps=(Steps(0, (0.0,) * 5),) * 2), "two shapes"),
        (RuleTerms((AGE,), norm=0.0), "norm"),
        (RuleTerms((AGE,), norm=math.nan), "norm"),
        (RuleTerms((AGE,), (((0, 1, 1),),) * (MOST_COLUMNS + 1)), "at most 100000 terms"),
    ],
)
def test_terms_that_do_not_fit_together_are_refused(terms, said):
    with pytest.raises(MessageError, match=said):
        terms.check()
    with pytest.raises(MessageError, match=f"{said}|length <= {MOST_COLUMNS}"):
        read_terms(write_terms(terms))


def test_terms_are_sent_with_each_condition_once():
    old, young, women = (0, 3, 4), (0, 1, 2), (1, 1, 1)
    rules = ((old,), (old, women), (young,), (young, women), (women,))
    terms = RuleTerms(
        (AGE, SEX), rules, (Line(0, 30.0, 90.0, 60.0, 0.1),), (Steps(1, (0.0, 0.5, -0.5, 0.0)),), 2.0
    )
    sent = write_terms(terms)
    read = read_terms(sent)
    assert read == terms
    assert read.rules[0][0] is read.rules[1][0]
    assert sent.count(bytes([0x93, *old])) == sent.count(bytes([0x93, *women])) == 1
    many = RuleTerms((AGE, SEX), rules * 10)
    assert len(write_terms(many)) < len(encode(many)) * 0.7


@pytest.mark.parametrize("rules", [((2,),), ((-1,),), ((0, 5),)])
def test_a_condition_that_is_not_listed_is_refused(rules):
    sent = _SentTerms((AGE, SEX), ((0, 1, 2), (1, 1, 1)), rules, (), (), None)
    with pytest.raises(MessageError, match="condition that is not listed"):
        read_terms(encode(sent))


def test_a_listed_condition_must_be_one():
    for condition in ((0, 9, 9), (7, 1, 1), (0,), (0, 0, 4)):
        sent = _SentTerms((AGE, SEX), (condition, (1, 1, 1)), ((0,), (0, 1)), (), (), None)
        with pytest.raises(MessageError, match="condition"):
            read_terms(encode(sent))


@pytest.mark.parametrize(
    ("field", "count", "reason"),
    [
        ("conditions", 1_000_000, "would take more than 32 MB of memory to read"),
        ("rules", 1_000_000, "would take more than 32 MB of memory to read"),
        ("rules", 200_000, "Expected `array` of length <="),
    ],
)
def test_a_list_that_is_too_long_is_refused_before_memory_is_taken_for_it(field, count, reason):
    many = {"conditions": (), "rules": (), field: ((0,),) * count}
    message = encode(_SentTerms((AGE,), lines=(), steps=(), norm=None, **many))
    tracemalloc.start()
    with pytest.raises(MessageError, match=reason):
        read_terms(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(message)
