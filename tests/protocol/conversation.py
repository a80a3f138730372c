"""A small site and well-formed questions to it, for tests that look at single messages."""

from __future__ import annotations

import concilium as cc
from agreed import deliver
from concilium.ledger.chain import Head
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import (
    VERSION,
    Answer,
    Envelope,
    decode,
    encode,
    open_envelope,
    open_reply,
)
from concilium.protocol.schema import AskSchema, SchemaSeen, share_schema
from concilium.protocol.splits import Split

ROWS = [{"a": i % 3, "b": "xyz"[i % 7 % 3], "age": 20 + i % 60 + 0.5, "y": i * i % 5 % 2} for i in range(60)]


def site_of(rows=ROWS, name="a", **options):
    return cc.Site(name, cc.Records.from_rows(rows), **options)


def wrap(kind, question, *, name="question-1", study="s", template=b"", release="exact", seen=None):
    head = None if seen is None else Head(*seen)
    body = question if isinstance(question, bytes) else encode(question)
    return Envelope(
        version=VERSION,
        id=name,
        study=study,
        kind=kind,
        release=release,
        body=body,
        template=template,
        seen=head,
    )


def schema_message(name="question-1", study="s", **changes):
    question = AskSchema(**{"query": "", "target": "y", **changes})
    return encode(wrap("tree.schema", question, name=name, study=study))


def read_schema(site, name="question-1", **changes):
    """What a site tells of its schema."""
    reply = open_reply(deliver(site, schema_message(name, **changes)))
    assert isinstance(reply, Answer), reply
    return decode(reply.body, SchemaSeen)


def crosstables(seen, bins=None, **changes):
    """A question of a house with this one site."""
    schema = share_schema({"a": seen}, bins or {}, "y")
    asked = {"query": "", "target": "y", "tree": [], "nodes": [0], **changes}
    return AskCounts(classes=schema.classes, attributes=schema.attributes, **asked)


def crosstable_envelope(site=None, name="question-2", bins=None):
    """The root's question and, below it, a level of a partial tree, as a house would ask them."""
    seen = read_schema(site or site_of(), "schema-for-" + name, bins=bins or {})
    question = crosstables(seen, bins, tree=[Split(0, 0, [1, 2, 3])], nodes=[1, 3])
    return wrap("counts", question, name=name)


class Listening:
    """A site whose conversation is kept; it may be made to fail at the n-th message of a kind."""

    def __init__(self, site, fail_at=None):
        self.site, self.name, self.identity = site, site.name, site.identity
        self.introduce = site.introduce
        self.heard, self.said = [], []
        self.fail_at = fail_at

    def answer(self, message):
        kind = open_envelope(message).kind
        self.heard.append(message)
        if self.fail_at == (kind, sum(open_envelope(m).kind == kind for m in self.heard)):
            self.fail_at = None
            raise ConnectionError("gone")
        self.said.append(self.site.answer(message))
        return self.said[-1]

    def answers(self, kind):
        pairs = zip(self.heard, self.said, strict=False)
        return [open_reply(reply) for message, reply in pairs if open_envelope(message).kind == kind]
