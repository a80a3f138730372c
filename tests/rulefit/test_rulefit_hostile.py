"""A house that sends damaged, lying or absurd questions about rules gets a refusal: never a traceback."""

from __future__ import annotations

import math
import random
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_patients import BINS, draw, records_of

import concilium as cc
from agreed import deliver
from concilium.models.outcome import Outcome
from concilium.protocol.attributes import Attribute
from concilium.protocol.messages import VERSION, Answer, Envelope, Refusal, encode, open_reply
from concilium.protocol.sums import pack
from concilium.rulefit.fedda import AskDual
from concilium.rulefit.fitting import AskFit, AskRates, Coefficients, Part
from concilium.rulefit.generation import AskRules
from concilium.rulefit.terms import Line, RuleTerms, Steps, write_terms

NUMBERS = tuple(Attribute(name, tuple(edges)) for name, edges in sorted(BINS.items()))
TERMS = RuleTerms(
    NUMBERS,
    (((0, 1, 20),), ((0, 25, 42), (1, 1, 24)), ((2, 0, 10, 30, 42),)),
    (Line(0, -2.0, 2.0, 0.0, 0.4),),
    (Steps(1, tuple(float(code) / 10 for code in range(43))),),
    4.0,
)
BASE = {"query": "", "target": "y", "outcome": Outcome(positive=1)}
QUESTIONS = {
    "rulefit.rules": AskRules(
        **BASE, attributes=NUMBERS, trees=2, leaves=4.0, shrinkage=0.1, support=10, seed=0
    ),
    "rulefit.fit": AskFit(
        **BASE,
        terms=write_terms(TERMS),
        candidates=(Coefficients(0.1, (0, 3), (1.0, -1.0)), Coefficients()),
        working=(0, 4),
        part=Part(percent=30, held=False),
    ),
    "rulefit.dual": AskDual(
        **BASE, terms=write_terms(TERMS), dual=pack(np.zeros(6)), penalty=0.01, before=0.0, step=0.1, local=2
    ),
    "rulefit.rates": AskRates(**BASE, terms=TERMS),
}
FIELDS = sorted({name for question in QUESTIONS.values() for name in question.__struct_fields__})
names = iter(range(10**9))


@pytest.fixture(scope="module")
def site():
    return cc.Site("s", records_of(*draw(80, 1)))


def envelope(kind, body, release="exact"):
    return Envelope(
        version=VERSION,
        id=f"question-{next(names)}",
        study="s",
        kind=kind,
        release=release,
        body=body,
        template=b"",
    )


def ask(site, kind, body, release="exact"):
    return open_reply(deliver(site, encode(envelope(kind, body, release))))


@pytest.mark.parametrize("kind", QUESTIONS)
def test_the_questions_that_are_damaged_below_are_fine_themselves(site, kind):
    reply = ask(site, kind, encode(QUESTIONS[kind]))
    assert isinstance(reply, Answer), reply
    with_other_release = ask(site, kind, encode(QUESTIONS[kind]), "private")
    assert "cannot be released as 'private'" in with_other_release.reason


def damage(chance, data):
    data = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                data[place] ^= 1 << chance.randrange(8)
            case 2:
                del data[place : place + chance.randint(1, 8)]
            case 3:
                data[place:place] = data[place : place + chance.randint(1, 20)]
        data = data or bytearray(b"\xc0")
    return bytes(data)


def test_random_damage_never_gets_through_as_an_error(site):
    chance = random.Random(6)
    seen = {"answer": 0, "refusal": 0}
    for _ in range(1200):
        kind = chance.choice(list(QUESTIONS))
        reply = ask(site, kind, damage(chance, encode(QUESTIONS[kind])))
        seen["answer" if isinstance(reply, Answer) else "refusal"] += 1
        assert not (isinstance(reply, Refusal) and reply.rule == "internal"), reply
    assert min(seen.values()) > 50


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -0.0, 5e-324, 0.5, 2, 3])
    | st.sampled_from(["", "y", "a", "nope", "\x00", "a" * 2000])
    | st.binary(max_size=5),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=10,
)


@given(kind=st.sampled_from(sorted(QUESTIONS)), field=st.sampled_from(FIELDS), value=ODD)
@settings(max_examples=500)
def test_any_value_in_any_field_is_answered_or_refused(site, kind, field, value):
    body = msgspec.to_builtins(QUESTIONS[kind], builtin_types=(bytes,))
    body[field] = value
    reply = ask(site, kind, msgspec.msgpack.encode(body))
    assert not (isinstance(reply, Refusal) and reply.rule == "internal"), reply


FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1.0, 1e-300, 1e6, 1e12, 1e300, 0.3])
CODES = st.integers(-1, 60)


@st.composite
def lying_terms(draw_):
    """Terms of the right types with any numbers in them."""
    some = {"max_size": 3}
    edges = st.lists(FLOATS, **some).map(lambda found: tuple(sorted(found, key=str)))
    values = st.lists(st.sampled_from(["a", 0, 1.5, True, math.nan, "0"]), **some).map(tuple)
    attributes = st.lists(
        st.builds(
            Attribute,
            st.sampled_from(["a", "b", "y", "zz"]),
            edges,
            values,
            st.booleans(),
            st.booleans(),
            st.integers(-1, 2),
        )
        | st.sampled_from(NUMBERS),
        **some,
    )
    rules = st.lists(st.lists(st.lists(CODES, max_size=5).map(tuple), **some).map(tuple), **some)
    lines = st.lists(st.builds(Line, CODES, FLOATS, FLOATS, FLOATS, FLOATS), **some)
    steps = st.lists(st.builds(Steps, CODES, st.lists(FLOATS, **some).map(tuple)), **some)
    return RuleTerms(
        *(tuple(draw_(part)) for part in (attributes, rules, lines, steps)), draw_(st.none() | FLOATS)
    )


@given(
    terms=lying_terms() | st.just(TERMS),
    outcome=st.builds(
        Outcome,
        st.none() | st.sampled_from([1, "1", math.nan, True]),
        st.none() | FLOATS,
        st.none() | FLOATS,
    ),
    target=st.sampled_from(["y", "a", "nope"]),
    columns=st.lists(st.integers(-1, 6), max_size=4),
    values=st.lists(FLOATS, max_size=4),
    kind=st.sampled_from(["rulefit.fit", "rulefit.dual", "rulefit.rates"]),
)
@settings(max_examples=500)
def test_well_formed_lies_are_answered_or_refused(site, terms, outcome, target, columns, values, kind):
    whole = {"outcome": outcome, "target": target}
    match kind:
        case "rulefit.fit":
            candidates = (Coefficients(values[0] if values else 0.0, tuple(columns), tuple(values)),)
            whole |= {"terms": write_terms(terms), "candidates": candidates, "working": tuple(columns)}
        case "rulefit.dual":
            whole |= {"terms": write_terms(terms), "dual": pack(np.array(values or [0.0])), "step": 0.9}
        case _:
            whole |= {"terms": terms}
    reply = ask(site, kind, encode(msgspec.structs.replace(QUESTIONS[kind], **whole)))
    assert not (isinstance(reply, Refusal) and reply.rule == "internal"), reply


def test_a_small_message_cannot_ask_for_a_matrix_out_of_proportion(site):
    """Fifty thousand rules about eighty patients are bits; as numbers they would be thirty megabytes at once."""
    terms = RuleTerms(NUMBERS, (((0, 1, 20),),) * 50_000)
    columns = tuple(range(50_000))
    fit = msgspec.structs.replace(
        QUESTIONS["rulefit.fit"],
        terms=write_terms(terms),
        candidates=(Coefficients(0.0, columns, (1e-3,) * 50_000),),
        working=None,
    )
    rates = msgspec.structs.replace(QUESTIONS["rulefit.rates"], terms=terms)
    for kind, question in (("rulefit.fit", fit), ("rulefit.rates", rates)):
        message = encode(envelope(kind, encode(question)))
        tracemalloc.start()
        reply = open_reply(deliver(site, message))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert isinstance(reply, Answer)
        assert peak < 100 * len(message)


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (
            RuleTerms(NUMBERS[:1], lines=(Line(0, 0.0, 0.0, 0.0, 1.0),) * 20_000),
            "an attribute has two linear terms, or two shapes",
        ),
        (
            RuleTerms(NUMBERS[:1], steps=(Steps(0, (0.0,) * NUMBERS[0].size),) * 2),
            "an attribute has two linear terms, or two shapes",
        ),
        (
            RuleTerms(
                (Attribute("a", (), tuple(range(10_000))),),
                tuple(((0, low, high),) for low in range(100) for high in range(low + 1, low + 101)),
            ),
            "the rules have too many different conditions on attributes with many values",
        ),
    ],
)
def test_a_small_message_cannot_ask_for_a_table_out_of_proportion(site, terms, reason):
    """Twenty thousand lines are a few bytes each, and would be a number for every patient each; ten thousand conditions
    would be looked up among ten thousand values each."""
    fit = msgspec.structs.replace(
        QUESTIONS["rulefit.fit"], terms=write_terms(terms), candidates=(Coefficients(),)
    )
    rates = msgspec.structs.replace(QUESTIONS["rulefit.rates"], terms=terms)
    for kind, question in (("rulefit.fit", fit), ("rulefit.rates", rates)):
        message = encode(envelope(kind, encode(question)))
        tracemalloc.start()
        reply = open_reply(deliver(site, message))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (reply.rule, reply.reason) == ("message", reason)
        assert peak < 100 * len(message) + 1_000_000


def test_one_attribute_cannot_be_named_a_thousand_times(site):
    question = msgspec.structs.replace(QUESTIONS["rulefit.rules"], attributes=NUMBERS[:1] * 1000)
    reply = ask(site, "rulefit.rules", encode(question))
    assert (reply.rule, reply.reason) == ("message", "an attribute is named twice")


def test_a_rule_about_an_attribute_that_is_withheld_is_refused_like_one_that_does_not_exist():
    hiding = cc.Site("s", records_of(*draw(80, 1)), policy=cc.Policy(withhold=("d",)))
    hidden = msgspec.structs.replace(
        QUESTIONS["rulefit.rates"], terms=RuleTerms(NUMBERS[3:], (((0, 1, 20),),))
    )
    unknown = RuleTerms((msgspec.structs.replace(NUMBERS[3], name="e"),), (((0, 1, 20),),))
    replies = [
        ask(hiding, "rulefit.rates", encode(question))
        for question in (hidden, msgspec.structs.replace(hidden, terms=unknown))
    ]
    assert [reply.rule for reply in replies] == ["attribute", "attribute"]
    assert replies[0].reason.split("?")[0].replace("'d'", "'e'") == replies[1].reason.split("?")[0]
