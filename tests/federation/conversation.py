"""A small site and well-formed questions to it, for tests that look at single messages."""

from __future__ import annotations

import concilium as cc
from agreed import deliver
from concilium.federation.messages import VERSION, Answer, Envelope, LedgerHead, decode, encode, open_reply
from concilium.federation.schema import AskSchema, SchemaSeen, share_schema
from concilium.trees.crosstables import AskCrosstables
from concilium.federation.splits import Split

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


def schema_message(name="question-1", study="s", **changes):
    question = AskSchema(**{"query": "", "target": "y", **changes})
    return encode(wrap("tree.schema", question, name=name, study=study))


def read_schema(site, name="question-1", **changes):
    """What a site tells of its schema."""
    reply = open_reply(deliver(site, schema_message(name, **changes)))
    assert isinstance(reply, Answer), reply
    return decode(reply.body, SchemaSeen)


def crosstables(seen, bins=None, **changes):
    """A question of a house with this one site, and what it tells the site."""
    schema = share_schema({"a": seen}, bins or {}, "y")
    asked = {"query": "", "target": "y", "tree": [], "nodes": [0], **changes}
    hidden = schema.hidden
    question = AskCrosstables(classes=hidden.classes, attributes=hidden.attributes, **asked)
    return question, encode(schema.conditional(seen))


def crosstable_envelope(site=None, name="question-2", bins=None):
    """The root's question and, below it, a level of a partial tree, as a house would ask them."""
    seen = read_schema(site or site_of(), "schema-for-" + name, bins=bins or {})
    question, template = crosstables(seen, bins, tree=[Split(0, 0, [1, 2, 3])], nodes=[1, 3])
    return wrap("tree.crosstables", question, name=name, template=template)
