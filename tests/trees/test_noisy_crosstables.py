"""Noisy crosstables: the counts of the definition, one patient's worth of change, no question that tells more."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import check, deliver
from concilium.errors import MessageError
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.counts import AskCounts
from concilium.protocol.held_out import Part
from concilium.protocol.messages import Refusal, encode, open_reply
from concilium.protocol.questions import MOST_NOISY_NUMBERS, Gaussian
from concilium.protocol.splits import STAYS, Split
from protocol.conversation import wrap

A = Attribute("a", (), ("u", "v"), missing=False)
B = Attribute("b", (), ("1", "2", "x"))
AGE = Attribute("age", (40.0, 60.0))
CLASSES = Attribute("y", (), ("n", "p"), missing=False, other=False)
SCHEMA = {"a": "code", "b": "code", "age": "number", "y": "code"}
QUESTION = AskCounts(
    query="",
    target="y",
    attributes=(A, B, AGE),
    classes=CLASSES,
    tree=[],
    nodes=[0],
    counted=[0, 1, 2],
    noise=Gaussian("9"),
)

patients = st.fixed_dictionaries(
    {
        "a": st.sampled_from(["u", "v", "w", None]),
        "b": st.sampled_from(["1", "2", "x", "new", None]),
        "age": st.none() | st.integers(20, 90),
        "y": st.sampled_from(["n", "p", "another", None]),
    }
)


def cell(attribute, value):
    """Where a patient is counted, from the definition: missing first, intervals or values, any other last."""
    if attribute.edges:
        return 0 if value is None else 1 + sum(value >= edge for edge in attribute.edges)
    if value is None and attribute.missing:
        return 0
    named = [label for label in attribute.values if label == value]
    return attribute.missing + (attribute.values.index(value) if named else len(attribute.values))


@st.composite
def questions(draw):
    """A tree of up to three splits, of which some leaves and attributes are counted."""
    leaves, tree, born = [0], [], 1
    for _ in range(draw(st.integers(0, 3))):
        if not leaves:
            break
        node = leaves.pop(draw(st.integers(0, len(leaves) - 1)))
        attribute = draw(st.integers(0, 2))
        children = []
        for _ in range(QUESTION.attributes[attribute].size):
            kind = draw(st.sampled_from(["new", "none", "same"]))
            children.append(
                STAYS if kind == "none" else children[-1] if kind == "same" and children else born
            )
            born = max(born, children[-1] + 1)
        tree.append(Split(node, attribute, children))
        leaves += sorted(set(children) - {STAYS})
    if not leaves:
        tree, leaves = [], [0]
    nodes = draw(st.lists(st.sampled_from(leaves), min_size=1, unique=True))
    counted = draw(st.lists(st.integers(0, 2), unique=True))
    return msgspec.structs.replace(QUESTION, tree=tree, nodes=nodes, counted=counted)


def view_of(rows):
    anyone = {"a": "u", "b": "1", "age": 1, "y": "n"}
    records = cc.Records.from_rows([*rows, anyone], schema=SCHEMA).take(np.arange(len(rows)))
    return View(records, cc.Policy(), division_key=b"the key of these tests").each_by_itself


def count(question, rows):
    cohort = view_of(rows).select(question.query, question.target).telling_all()
    return question.compute(cohort)


def expected(question, rows):
    """Every patient by hand."""
    counts = np.zeros(question.shape, dtype=np.int64)
    splits = {split.node: split for split in question.tree}
    for row in rows:
        if row["y"] not in CLASSES.values:
            continue
        node = 0
        while node in splits:
            attribute = question.attributes[splits[node].attribute]
            child = splits[node].children[cell(attribute, row[attribute.name])]
            if child == STAYS:
                break
            node = child
        if node not in question.nodes:
            continue
        table, outcome, start = counts[question.nodes.index(node)], CLASSES.values.index(row["y"]), 1
        table[0, outcome] += 1
        for index in question.counted:
            attribute = question.attributes[index]
            table[start + cell(attribute, row[attribute.name]), outcome] += 1
            start += attribute.size
    return counts


@given(question=questions(), rows=st.lists(patients, max_size=25))
@settings(max_examples=200)
def test_counts_are_those_of_the_definition(question, rows):
    check(question, "private")
    # Who rests at an inner node is in no leaf, and so in no table.
    np.testing.assert_array_equal(count(question, rows), expected(question, rows))


@given(question=questions(), rows=st.lists(patients, min_size=1, max_size=15), data=st.data())
@settings(max_examples=200)
def test_one_patient_changes_no_more_than_is_charged(question, rows, data):
    if data.draw(st.booleans()):
        question = msgspec.structs.replace(question, part=Part(percent=30, held=data.draw(st.booleans())))
    gone = data.draw(st.integers(0, len(rows) - 1))
    both = []
    for table in (rows, rows[:gone] + rows[gone + 1 :]):
        cohort = view_of(table).select("", "y").telling_all()
        if question.division is not None:
            cohort = question.division.choose(cohort, 0)
        both.append(question.compute(cohort))
    assert ((both[0].astype(np.int64) - both[1]) ** 2).sum() <= question.sensitivity.squared


@given(asked=st.lists(questions(), min_size=2, max_size=4), rows=st.lists(patients, max_size=20))
@settings(max_examples=60)
def test_what_is_remembered_from_question_to_question_changes_no_count(asked, rows):
    view = view_of(rows)
    for question in asked:
        answer = question.compute(view.select("", "y").telling_all())
        np.testing.assert_array_equal(answer, count(question, rows))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise": Gaussian("0")}, "a variance above 0"),
        ({"attributes": (A.narrow({"u"}), B, AGE)}, "told the same values"),
        ({"classes": CLASSES.narrow(())}, "told the same values"),
        ({"attributes": (msgspec.structs.replace(A, other=False), B, AGE)}, "for every patient"),
        ({"attributes": (msgspec.structs.replace(B, other=False),), "counted": [0]}, "for every patient"),
        ({"attributes": (msgspec.structs.replace(AGE, missing=False),), "counted": [0]}, "for every patient"),
        ({"classes": msgspec.structs.replace(CLASSES, name="a")}, "values of the target"),
        ({"classes": AGE, "target": "age"}, "values of the target"),
        ({"classes": msgspec.structs.replace(CLASSES, values=())}, "1 to 1000 classes"),
        ({"counted": [0, 0]}, "each once"),
        ({"counted": [3]}, "each once"),
        ({"nodes": []}, "only leaves"),
        ({"nodes": [0, 0]}, "each once"),
        ({"nodes": [1]}, "only leaves"),
        ({"tree": [Split(0, 0, [1, 2, 3])]}, "only leaves"),
        ({"tree": [Split(0, 0, [1, 2, 3]), Split(0, 0, [4, 5, 6])], "nodes": [1]}, "split twice"),
        ({"tree": [Split(0, 0, [1, 2])], "nodes": [1]}, "does not fit its attribute"),
        ({"attributes": (A, A), "counted": [0]}, "named twice"),
        ({"part": Part(percent=0, held=True)}, "1 to 90 percent"),
    ],
)
def test_a_question_that_could_tell_more_is_refused(changes, said):
    question = msgspec.structs.replace(QUESTION, **changes)
    with pytest.raises(MessageError, match=said):
        check(question, "private")


def test_an_answer_has_so_many_numbers_and_no_more():
    wide = Attribute("b", (), tuple(range(MOST_NOISY_NUMBERS // 2)))
    with pytest.raises(MessageError, match=f"1 to {MOST_NOISY_NUMBERS} numbers"):
        check(msgspec.structs.replace(QUESTION, attributes=(wide,), counted=[0]), "private")


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_it_is_released_with_noise_only(release):
    site = cc.Site(
        "s", cc.Records.from_rows([{"a": "u", "b": "1", "age": 50, "y": "np"[i % 2]} for i in range(9)])
    )
    reply = open_reply(deliver(site, encode(wrap("counts", QUESTION, release=release))))
    assert isinstance(reply, Refusal)
    assert (reply.rule, "other noise, or none" in reply.reason) == ("message", True)
