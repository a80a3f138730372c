"""A malformed or hostile message gets a refusal: never a traceback, never memory out of proportion to its size."""

from __future__ import annotations

import random
import tracemalloc

import msgspec
import pytest
from conversation import crosstable_envelope, schema_message, site_of, wrap
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.federation.attributes import Attribute
from concilium.federation.masking import Join
from concilium.federation.messages import MAX_MESSAGE, Answer, Refusal, encode, open_reply
from concilium.federation.schema import AskSchema
from concilium.privacy.identity import Identity
from concilium.privacy.manifest import Manifest, Participant
from concilium.trees.crosstables import AskCrosstables
from concilium.trees.splits import Split

SITE = site_of()
VALID = [
    schema_message(),
    encode(crosstable_envelope(SITE)),
    schema_message("question-3", query="a = 1 and b != 'x'"),
]
MUTATIONS = 4000


def reply_to(message, site=SITE):
    return open_reply(site.answer(message))


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
    kind=st.sampled_from(["tree.schema", "tree.crosstables"]),
    field=st.sampled_from(
        ["query", "target", "bins", "attributes", "classes", "tree", "nodes", "template", "extra"]
    ),
    value=JSON,
)
@settings(max_examples=600)
def test_any_value_in_any_field_is_answered_or_refused(kind, field, value):
    whole = msgspec.msgpack.decode(VALID[0 if kind == "tree.schema" else 1])
    body = msgspec.msgpack.decode(whole["body"])
    if field == "template":
        whole["template"] = msgspec.msgpack.encode(value)
    else:
        body[field] = value
    whole["body"] = msgspec.msgpack.encode(body)
    reply = reply_to(msgspec.msgpack.encode(whole))
    assert not (isinstance(reply, Refusal) and reply.rule == "internal"), reply


def big(count):
    """Questions that are small for what they ask: many nodes times many cells, wide trees, huge sizes."""
    wide = tuple(Attribute(f"a{number}", other=False, missing=False, hidden=count) for number in range(50))
    tree = [Split(0, 0, list(range(1, count + 1)))]
    ask = {"query": "", "target": "y", "classes": classes(2)}
    return [
        AskCrosstables(**ask, attributes=wide, tree=tree, nodes=list(range(1, count + 1))),
        AskCrosstables(**ask, attributes=(Attribute("a", hidden=2**60),), tree=[], nodes=[0]),
        AskCrosstables(**{**ask, "classes": classes(2**60)}, attributes=(), tree=[], nodes=[0]),
        AskCrosstables(**ask, attributes=(), tree=[], nodes=list(range(count))),
        AskCrosstables(**ask, attributes=(Attribute("a", hidden=2**20),), tree=[], nodes=[0], counted=[]),
    ]


def classes(count):
    return Attribute("y", missing=False, other=False, hidden=count)


@pytest.mark.parametrize("question", big(20_000))
def test_a_small_message_cannot_ask_for_a_large_answer(question):
    message = encode(wrap("tree.crosstables", question))
    tracemalloc.start()
    reply = reply_to(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(reply, Refusal)
    assert peak < 100 * len(message) + 1_000_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 200_000,
        b"\xdd\xff\xff\xff\xff" + b"\x90" * 100_000,
        b"\xc6\xff\xff\xff\xff" + b"x" * 1000,
        b"\xdf\x00\xff\xff\xff" * 50_000,
        named(b"\x91" * 200_000, "deep-body"),
        named(AskSchema(query="(" * 60_000, target="y"), "deep-query"),
        named(AskSchema(query="", target="y", bins={"age": [float(i) for i in range(50_000)]}), "many-bins"),
        named(AskSchema(query="a = 1 or " * 300_000, target="y"), "long-query"),
    ],
)
def test_memory_stays_in_proportion_to_the_message(data):
    tracemalloc.start()
    reply = reply_to(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(reply, Refusal)
    assert reply.rule in ("message", "query")
    # Each word of a query becomes a token of about 300 bytes; a query is at most 64 kB of any message.
    assert peak < (300 if reply.rule == "query" else 100) * len(data) + 1_000_000


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
        reply = reply_to(encode(case))
        assert isinstance(reply, Refusal)
        assert said in reply.reason


@pytest.mark.parametrize("field", ["id", "study", "kind", "release"])
@pytest.mark.parametrize("control", ["\x1b[2J", "\x9b31m", "\u202e", "\x00", "\r", "\n", "\x7f", "\u2028"])
def test_no_name_in_an_envelope_can_speak_to_a_terminal(field, control):
    site = site_of()
    envelope = wrap("tree.schema", AskSchema(query="", target="y"))
    named = msgspec.structs.replace(envelope, **{field: f"question{control}"})
    reply = reply_to(encode(named), site)
    assert isinstance(reply, Refusal)
    assert reply.rule == "message"
    assert (reply.id + reply.reason).isprintable()
    assert site.ledger.refusals() == []


@pytest.mark.parametrize("field", ["study", "name"])
def test_no_name_in_a_manifest_can_either(field):
    names = {"study": "burns", "name": "b", field: "b\x1b[2J"}
    members = [(name, Identity.create().public) for name in ("a", names["name"], "c")]
    manifest = Manifest(
        study=names["study"],
        participants=tuple(Participant(name, public) for name, public in members),
        colluders=1,
        largest=2**60,
        nonce=bytes(16),
    )
    join = Join(manifest=manifest.encoded)
    reply = reply_to(encode(wrap("mask.join", join, study=manifest.study_id.hex(), release="masked")))
    assert isinstance(reply, Refusal)
    assert "printable" in reply.reason
    assert reply.reason.isprintable()
