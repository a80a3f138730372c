"""The closed list of what may be asked, and opening a question: once for all sites, with the same checks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import msgspec
import pytest

import concilium as cc
from concilium.errors import MessageError
from concilium.protocol import questions
from concilium.protocol.messages import VERSION, Envelope, encode
from concilium.protocol.questions import (
    MOST_REMEMBERED,
    Gathered,
    Question,
    Reply,
    Reported,
    Statistic,
    Step,
    Summed,
    _read_question,
    open_question,
)
from concilium.protocol.schema import AskSchema
from concilium.records.patients import PARTS
from concilium.registry import KINDS, RELEASES, load


def envelope(body, kind="tree.schema", release="exact"):
    return Envelope(version=VERSION, id="question-1", study="s", kind=kind, release=release, body=body)


def structs_within(form):
    """The struct itself and all that its fields may hold."""
    found, waiting = {form}, [msgspec.inspect.type_info(form)]
    while waiting:
        match waiting.pop():
            case msgspec.inspect.StructType(cls=cls, fields=fields):
                found.add(cls)
                waiting += [field.type for field in fields]
            case msgspec.inspect.UnionType(types=types):
                waiting += types
            case msgspec.inspect.DictType(key_type=key, value_type=value):
                waiting += [key, value]
            case msgspec.inspect.TupleType(item_types=types):
                waiting += types
            case other:
                waiting += [other.item_type] if hasattr(other, "item_type") else []
                assert not isinstance(
                    other, msgspec.inspect.AnyType | msgspec.inspect.CustomType | msgspec.inspect.RawType
                )
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_listed_kind_declares_itself(kind):
    form = load(KINDS[kind])
    assert issubclass(form, Question)
    assert form.kind == kind
    assert form.__doc__
    assert form.releases
    assert form.releases <= set(RELEASES)
    assert isinstance(form.merges, bool)
    assert sum(issubclass(form, way) for way in (Step, Gathered, Summed)) == 1
    for struct in structs_within(form):
        assert struct.__struct_config__.frozen, struct
        assert struct.__struct_config__.forbid_unknown_fields, struct
    assert kind in cc.Policy().kinds


@pytest.mark.parametrize("kind", KINDS)
def test_every_question_about_patients_says_what_it_reads(kind):
    form = load(KINDS[kind])
    if issubclass(form, Step):
        return
    assert issubclass(form, Statistic)
    if not isinstance(form.reads, property):
        assert form.reads <= set(PARTS)
    assert {"query", "target"} <= set(form.__struct_fields__)
    if issubclass(form, Gathered):
        assert issubclass(form.reply, Reply)
        assert form.compute is not Gathered.compute
        for struct in structs_within(form.reply):
            assert struct.__struct_config__.frozen, struct
            assert struct.__struct_config__.forbid_unknown_fields, struct
    else:
        assert form.compute is not Summed.compute
        assert form.shape is not Summed.shape
        assert issubclass(form, Reported) == (form.releases == {"local"})
        assert bool({"private", "noised"} & form.releases) == (form.sensitivity is not Summed.sensitivity)


def test_no_two_kinds_are_one():
    assert len({load(place) for place in KINDS.values()}) == len(KINDS)


def test_the_same_bytes_are_read_once():
    asked = AskSchema(query="a > 1", target="y")
    first, again = (open_question(envelope(encode(asked))) for _ in range(2))
    assert first is again
    assert first == asked
    other = msgspec.structs.replace(asked, target="z")
    assert open_question(envelope(encode(other))) == other


def test_sites_that_ask_at_the_same_time_read_a_question_once(monkeypatch):
    """Each site has a thread of its own. What the first has read and checked, the others take."""
    reads = []

    def read_slowly(*envelope):
        reads.append(envelope)
        time.sleep(0.05)
        return _read_question(*envelope)

    monkeypatch.setattr(questions, "read_again", lru_cache(read_slowly))
    one = envelope(encode(AskSchema(query="", target="together")))
    with ThreadPoolExecutor(3) as sites:
        first, *others = sites.map(open_question, [one] * 3)
    assert len(reads) == 1
    assert all(other is first for other in others)


def test_a_question_is_checked_for_each_release():
    body = encode(AskSchema(query="", target="y"))
    open_question(envelope(body))
    with pytest.raises(MessageError, match="does not tell how many patients"):
        open_question(envelope(body, release="masked"))
    with pytest.raises(MessageError, match="cannot be released as 'private'"):
        open_question(envelope(body, release="private"))


def test_what_is_wrong_is_wrong_every_time():
    for _ in range(2):
        with pytest.raises(MessageError, match="not a well-formed AskSchema"):
            open_question(envelope(b"\x81"))
        with pytest.raises(MessageError, match=r"no kind of question 'tree.shema'; did you mean"):
            open_question(envelope(b"", kind="tree.shema"))


def test_a_large_question_is_not_kept():
    body = encode(AskSchema(query="", target="y", attributes=["x" * MOST_REMEMBERED]))
    first, again = (open_question(envelope(body)) for _ in range(2))
    assert first == again
    assert first is not again


def test_what_two_envelopes_must_share_to_be_one_question():
    one = envelope(b"body")
    assert one.digest == envelope(b"body").digest
    assert msgspec.structs.replace(one, id="question-2").digest == one.digest
    changes = ({"body": b"other"}, {"template": b"t"}, {"study": "u"}, {"kind": "k"}, {"release": "masked"})
    for change in changes:
        assert msgspec.structs.replace(one, **change).digest != one.digest
