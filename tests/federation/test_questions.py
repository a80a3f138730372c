"""Opening a question: once for all sites of a process, with the same checks."""

from __future__ import annotations

import msgspec
import pytest

from concilium.errors import MessageError
from concilium.federation.messages import VERSION, Envelope, encode
from concilium.federation.questions import MOST_REMEMBERED, open_question
from concilium.federation.schema import AskSchema


def envelope(body, kind="tree.schema", release="exact"):
    return Envelope(version=VERSION, id="question-1", study="s", kind=kind, release=release, body=body)


def test_the_same_bytes_are_read_once():
    asked = AskSchema(query="a > 1", target="y")
    first, again = (open_question(envelope(encode(asked))) for _ in range(2))
    assert first is again
    assert first == asked
    other = msgspec.structs.replace(asked, target="z")
    assert open_question(envelope(encode(other))) == other


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
    for change in ({"body": b"other"}, {"attempt": 2}, {"template": b"t"}, {"study": "u"}):
        assert msgspec.structs.replace(one, **change).digest != one.digest
