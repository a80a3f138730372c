"""A malformed or hostile message gets a refusal: never a traceback, never memory out of proportion to its size."""

from __future__ import annotations

import random
import tracemalloc

import msgspec
import pytest
from conversation import crosstable_envelope, schema_message, site_of, wrap
from hypothesis import given, settings
from hypothesis import strategies as st

from agreed import HOUSE, Absent, Asker, deliver, introduce_house
from concilium.privacy.identity import Identity
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import MAX_MESSAGE, Answer, Refusal, encode, open_reply
from concilium.protocol.schema import AskSchema
from concilium.protocol.splits import Split
from concilium.protocol.terms import Propose, sign_terms
from concilium.registry import PROPOSED, load
from contract.patients import write_parameters

SITE = site_of()
VALID = [
    schema_message(),
    encode(crosstable_envelope(SITE)),
    schema_message("question-3", query="a = 1 and b != 'x'"),
    Asker([SITE], nonce="damaged-below").write_proposal(),
]
MUTATIONS = 4000


def reply_to(message, site=SITE):
    return open_reply(deliver(site, message))


def named(question, name):
    return encode(wrap("tree.schema", question, name=name))


def mutate(chance, data):
    """A valid message with some damage: bytes changed, cut, doubled, lengths blown up."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data))
        match chance.randrange(6):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                data[place] ^= 1 << chance.randrange(8)
            case 2:
                del data[place : place + chance.randint(1, 8)]
            case 3:
                data[place:place] = data[place : place + chance.randint(1, 40)]
            case 4:
                data[place : place + 5] = (
                    bytes([chance.choice([0xDD, 0xDF, 0xC6, 0xDB])]) + b"\xff\xff\xff\xff"
                )
            case 5:
                data = data[: max(1, place)]
        if not data:
            data = bytearray(b"\xc0")
    return bytes(data)


def test_random_damage_never_gets_through_as_an_error():
    chance = random.Random(20)
    outcomes = {"answer": 0, "refusal": 0}
    for _ in range(MUTATIONS):
        reply = reply_to(mutate(chance, chance.choice(VALID)))
        outcomes["answer" if isinstance(reply, Answer) else "refusal"] += 1
        assert not (isinstance(reply, Refusal) and reply.rule == "internal"), reply
    assert outcomes["refusal"] > MUTATIONS / 2


@given(st.binary(max_size=400))
@settings(max_examples=500)
def test_random_bytes_are_refused(data):
    reply = reply_to(data)
    assert isinstance(reply, Refusal)
    assert reply.rule == "message"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=5), below, max_size=4),
    max_leaves=12,
)


@given(
    kind=st.sampled_from(["tree.schema", "counts"]),
    field=st.sampled_from(
        ["query", "target", "bins", "attributes", "classes", "tree", "nodes", "noise", "sample", "extra"]
    ),
    value=JSON,
)
@settings(max_examples=600)
def test_any_value_in_any_field_is_answered_or_refused(kind, field, value):
    whole = msgspec.msgpack.decode(VALID[0 if kind == "tree.schema" else 1])
    body = msgspec.msgpack.decode(whole["body"])
    body[field] = value
    whole["body"] = msgspec.msgpack.encode(body)
    reply = reply_to(msgspec.msgpack.encode(whole))
    assert not (isinstance(reply, Refusal) and reply.rule == "internal"), reply


def big(count):
    """Questions that are small for what they ask: many nodes times many cells, wide trees, huge sizes."""
    wide = tuple(Attribute(f"a{number}", other=False, missing=False, of=count) for number in range(50))
    tree = [Split(0, 0, list(range(1, count + 1)))]
    ask = {"query": "", "target": "y", "classes": classes(2)}
    return [
        AskCounts(**ask, attributes=wide, tree=tree, nodes=list(range(1, count + 1))),
        AskCounts(**ask, attributes=(Attribute("a", of=2**60),), tree=[], nodes=[0]),
        AskCounts(**{**ask, "classes": classes(2**60)}, attributes=(), tree=[], nodes=[0]),
        AskCounts(**ask, attributes=(), tree=[], nodes=list(range(count))),
        AskCounts(**ask, attributes=(Attribute("a", of=2**20),), tree=[], nodes=[0], counted=[]),
    ]


def classes(count):
    return Attribute("y", missing=False, other=False, of=count)


@pytest.mark.parametrize("question", big(20_000))
def test_a_small_message_cannot_ask_for_a_large_answer(question):
    message = encode(wrap("counts", question))
    tracemalloc.start()
    reply = reply_to(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # What counts none of its attributes asks for one number, and may have it.
    assert isinstance(reply, Refusal) or len(reply.body) < 100
    assert peak < 100 * len(message) + 1_000_000


def propose(**options):
    """The message that proposes a study with these terms."""
    return Asker([SITE], **options).write_proposal()


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (b"\x91" * 200_000, 100),
        (b"\xdd\xff\xff\xff\xff" + b"\x90" * 100_000, 100),
        (b"\xc6\xff\xff\xff\xff" + b"x" * 1000, 100),
        (b"\xdf\x00\xff\xff\xff" * 50_000, 100),
        (named(b"\x91" * 200_000, "deep-body"), 100),
        (
            named(
                AskSchema(query="", target="y", bins={"age": [float(i) for i in range(50_000)]}), "many-bins"
            ),
            100,
        ),
        # Each word of a query becomes a token of about 300 bytes; a query is at most 64 kB of any terms.
        (propose(query="(" * 60_000), 300),
        (propose(query="a = 1 or " * 20_000), 300),
        (propose(query="a = 1 or " * 300_000), 100),
        (propose(method="tree", parameters={"bins": {"age": [float(i) for i in range(25_000)]}}), 100),
        (propose(method="tree", parameters={"attributes": ["a"] * 50_000, "values": 7}), 100),
        (propose(parameters={f"p{i}": i for i in range(20_000)}), 100),
    ],
)
def test_memory_stays_in_proportion_to_the_message(data, most):
    tracemalloc.start()
    reply = open_reply(SITE.answer(data))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(reply, Refusal)
    assert reply.rule == "message"
    assert len(reply.reason) < 1000
    assert peak < most * len(data) + 1_000_000


@pytest.mark.parametrize("query", ["(" * 60_000, "a = 1 or " * 300_000])
def test_a_query_that_no_study_has_is_not_even_read(query):
    data = named(AskSchema(query=query, target="y"), "deep-query")
    tracemalloc.start()
    reply = open_reply(SITE.answer(data))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply.rule == "proposed"
    assert peak < 10 * len(data) + 1_000_000


def test_an_oversized_message_is_refused_unread():
    reply = reply_to(bytes(MAX_MESSAGE + 1))
    assert isinstance(reply, Refusal)
    assert "at most" in reply.reason


def test_other_versions_kinds_and_releases_are_refused_by_name():
    envelope = wrap("tree.schema", AskSchema(query="", target="y"))
    cases = {
        "version 1": msgspec.structs.replace(envelope, version=1),
        "'tree.schem'; did you mean 'tree.schema'": msgspec.structs.replace(envelope, kind="tree.schem"),
        "cannot be released as 'private'": msgspec.structs.replace(envelope, release="private"),
        "8 to 128": msgspec.structs.replace(envelope, id="x"),
        "must be printable": msgspec.structs.replace(envelope, study="burns\x1b[2J"),
    }
    for said, case in cases.items():
        reply = open_reply(SITE.answer(encode(case)))
        assert isinstance(reply, Refusal)
        assert said in reply.reason


@pytest.mark.parametrize("field", ["id", "study", "kind", "release"])
@pytest.mark.parametrize("control", ["\x1b[2J", "\x9b31m", "\u202e", "\x00", "\r", "\n", "\x7f", "\u2028"])
def test_no_name_in_an_envelope_can_speak_to_a_terminal(field, control):
    site = site_of()
    envelope = wrap("tree.schema", AskSchema(query="", target="y"))
    named = msgspec.structs.replace(envelope, **{field: f"question{control}"})
    reply = open_reply(site.answer(encode(named)))
    assert isinstance(reply, Refusal)
    assert reply.rule == "message"
    assert (reply.id + reply.reason).isprintable()
    assert site.ledger.refusals() == []


@pytest.mark.parametrize("control", ["\x1b[2J", "\x9b31m", "\u202e", "\n"])
@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize("field", ["purpose", "nonce", "method", "name"])
def test_no_name_in_the_terms_of_a_study_can_either(field, release, control):
    site, text = site_of(), f"anything{control}"
    peers = [Absent(name, Identity.create()) for name in (text if field == "name" else "b", "c")]
    changes = {} if field == "name" else {field: text}
    reply = open_reply(Asker([site, *peers], release=release, **changes).propose(site))
    assert isinstance(reply, Refusal)
    assert (reply.rule, "must be printable" in reply.reason) == ("message", True)
    assert reply.reason.isprintable()
    assert site.ledger.studies.list() == []


@pytest.mark.parametrize(
    "parameters",
    [
        {"query": "a = 1 \x1b[2J"},
        {"query": "\u202ea"},
        {"target": "y\x1b[2J"},
        {"release": "exact\x1b[2J"},
        {"epsilon": "1\x1b[2J"},
        {"attributes": 7, "bins": {"\x1b[2J": [1]}},
        {"bins": {"\x1b[2J": ["\x1b[2J"]}},
        {"\x1b[2J": 1},
        {"values": "\x1b[2J"},
    ],
)
def test_nor_can_what_a_refusal_says_of_the_parameters(parameters):
    site = site_of()
    reply = open_reply(Asker([site], method="tree", parameters=parameters).propose(site))
    assert isinstance(reply, Refusal)
    assert reply.rule in ("message", "attribute")
    assert reply.reason.isprintable()
    assert site.ledger.studies.list() == []


def sign(terms):
    """A proposal of whatever terms these are, properly signed."""
    return encode(wrap("study.propose", Propose(terms=terms, signature=sign_terms(terms, HOUSE))))


def write_terms(method):
    release, *_ = load(PROPOSED[method]).releases
    parameters = write_parameters(method, release, bins={"age": [40.0, 60.0]}, positive=1, time="age")
    return msgspec.json.decode(Asker([SITE], method=method, release=release, parameters=parameters).terms)


TERMS = {method: write_terms(method) for method in PROPOSED}
PLACES = [
    *((method, (field,)) for method, whole in TERMS.items() for field in whole),
    *((m, ("parameters", name)) for m, place in PROPOSED.items() for name in load(place).parameters()),
    ("tree", ("participants", 0)),
]
# As text, too: numbers are written so.
TEXTS = st.sampled_from(
    ["1e999999999", "1e-999999999", "1/0", "nan", "9" * 5000, "1/" + "9" * 5000, "-1", "1_0"]
)


@given(place=st.sampled_from(PLACES), value=JSON.filter(lambda v: not isinstance(v, bytes)) | TEXTS)
@settings(max_examples=600)
def test_any_value_in_any_field_of_the_terms_is_agreed_to_or_refused(place, value):
    method, path = place
    try:
        message = sign(msgspec.json.encode(put(TERMS[method], path, value)))
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError):
        return  # cannot be written as JSON
    introduce_house(SITE)
    reply = open_reply(SITE.answer(message))
    assert not (isinstance(reply, Refusal) and reply.rule == "internal"), reply


def put(value, path, new):
    """The same terms with another value at that place."""
    if not path:
        return new
    changed = value.copy()
    inside = None if isinstance(value, dict) and path[0] not in value else value[path[0]]
    changed[path[0]] = put(inside, path[1:], new)
    return changed


@pytest.mark.parametrize("depth", [10, 400, 900, 3000, 100_000])
def test_terms_may_be_as_deep_as_they_like(depth):
    whole = {**TERMS["tree"], "parameters": {"target": "y", "bins": "DEEP"}}
    terms = msgspec.json.encode(whole).replace(b'"DEEP"', b"[" * depth + b"]" * depth)
    reply = open_reply(SITE.answer(sign(terms)))
    assert (reply.rule, len(reply.reason) < 1000) == ("message", True)
