"""A small site and well-formed questions to it, for tests that look at single messages."""

from __future__ import annotations

import concilium as cc
from concilium.federation.messages import VERSION, Answer, Envelope, LedgerHead, encode, open_reply
from concilium.federation.schema import AskSchema, merge, read_schema
from concilium.trees.crosstables import AskCrosstables, AskedAttribute, Split

ROWS = [{"a": i % 3, "b": "xyz"[i % 7 % 3], "age": 20 + i % 60 + 0.5, "y": i * i % 5 % 2} for i in range(60)]


def site_of(rows=ROWS, name="a", **options):
    return cc.Site(name, cc.Records.from_rows(rows), **options)


def wrap(kind, question, *, name="question-1", study="s", template=b"", release="exact", seen=None):
    head = None if seen is None else LedgerHead(*seen)
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


def schema_message(name="question-1", **changes):
    return encode(wrap("tree.schema", AskSchema(**{"query": "", "target": "y", **changes}), name=name))


def crosstable_envelope(site=None, name="question-2", bins=None):
    """The root's question and, below it, a level of a partial tree, as a house would ask them."""
    site = site or site_of()
    bins = bins or {}
    reply = open_reply(site.answer(schema_message("schema-for-" + name, bins=bins)))
    assert isinstance(reply, Answer), reply
    seen = read_schema(reply.body)
    schema = merge({"a": seen}, bins, "y")
    attributes = [AskedAttribute(a.name, a.size, list(a.edges)) for a in schema.attributes]
    question = AskCrosstables(
        query="", target="y", classes=2, attributes=attributes, tree=[Split(0, 0, [1, 2, 3])], nodes=[1, 3]
    )
    return wrap("tree.crosstables", question, name=name, template=encode(schema.conditional(seen)))
