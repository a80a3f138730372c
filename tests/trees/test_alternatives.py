"""One question for several trees: as if each had been asked alone, exactly or not at all."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import check, deliver
from concilium.errors import MessageError
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import VERSION, Answer, Envelope, decode, encode, open_reply
from concilium.protocol.questions import Gaussian
from concilium.protocol.schema import AskSchema, SchemaSeen, share_schema
from concilium.protocol.splits import Split
from concilium.protocol.sums import read_sum
from strategies import tables


def ask(site, kind, question, release="exact", name="q"):
    envelope = Envelope(
        version=VERSION,
        id=f"question-{name}",
        study="s",
        kind=kind,
        release=release,
        body=encode(question),
    )
    return open_reply(deliver(site, encode(envelope)))


def schema_of(site):
    seen = decode(ask(site, "tree.schema", AskSchema(query="", target="y"), name="schema").body, SchemaSeen)
    return share_schema({"a": seen}, {}, "y", {})


def question_of(schema, tree, nodes):
    return AskCounts(
        query="", target="y", classes=schema.classes, attributes=schema.attributes, tree=tree, nodes=nodes
    )


@given(tables(most_rows=60), st.data())
@settings(max_examples=60)
def test_several_trees_at_once_are_counted_as_one_by_one(rows, data):
    site = cc.Site("a", cc.Records.from_rows(rows), cc.Policy(minimum_patients=0))
    schema = schema_of(site)
    if not schema.attributes:
        return
    splits, nodes, alone = [], [], []
    last = 0
    for number in range(data.draw(st.integers(1, 4))):
        attribute = data.draw(st.integers(0, len(schema.attributes) - 1))
        children = list(range(last + 1, last + 1 + schema.attributes[attribute].size))
        last = children[-1]
        splits.append(Split(0, attribute, children))
        wanted = data.draw(st.lists(st.sampled_from(children), min_size=1, unique=True))
        nodes += wanted
        one = question_of(schema, [Split(0, attribute, children)], wanted)
        answer = ask(site, "counts", one, name=f"alone {number}")
        alone.append(read_sum(answer.body, one))
    every = question_of(schema, splits, nodes)
    together = ask(site, "counts", every, name="together")
    np.testing.assert_array_equal(read_sum(together.body, every), np.concatenate(alone))


ROWS = [{"a": i % 3, "b": "xyz"[i % 7 % 3], "y": i * i % 5 % 2} for i in range(60)]


def forest(schema):
    return question_of(
        schema, [Split(0, 0, [1, 2, 3]), Split(0, 1, [4, 5, 6]), Split(4, 0, [7, 8, 9])], [1, 7, 5]
    )


def test_below_a_common_top_patients_go_every_way():
    site = cc.Site("a", cc.Records.from_rows(ROWS))
    schema = schema_of(site)
    counts = read_sum(ask(site, "counts", forest(schema)).body, forest(schema))
    paths = [lambda r: r["a"] == 0, lambda r: r["b"] == "x" and r["a"] == 0, lambda r: r["b"] == "y"]
    for node, path in zip(counts, paths, strict=True):
        here = [row for row in ROWS if path(row)]
        assert node[0].tolist() == [sum(row["y"] == c for row in here) for c in (0, 1)]
        assert node[1:4].sum() == node[4:7].sum() == len(here)


@pytest.mark.parametrize("release", ["masked", "private"])
def test_under_masks_and_noise_there_is_one_tree(release):
    site = cc.Site("a", cc.Records.from_rows(ROWS))
    schema = schema_of(site)
    more = {}
    if release == "private":
        attributes = tuple(msgspec.structs.replace(a, other=True) for a in schema.attributes)
        schema = replace(schema, attributes=attributes)
        more = {"noise": Gaussian("100"), "counted": [0]}
    tree = [
        Split(0, 0, [*range(1, 1 + schema.attributes[0].size)]),
        Split(0, 0, [*range(9, 9 + schema.attributes[0].size)]),
    ]
    stated = {"query": "", "target": "y", "classes": schema.classes, "attributes": schema.attributes, **more}
    check(AskCounts(tree=tree[:1], nodes=[1], **stated), release)
    question = AskCounts(tree=tree, nodes=[1], **stated)
    with pytest.raises(MessageError, match="split twice"):
        check(question, release)
    check(forest(schema_of(site)), "exact")


def test_a_site_that_looks_for_small_cells_is_asked_about_one_tree():
    site = cc.Site("a", cc.Records.from_rows(ROWS), cc.Policy(minimum_cell=2))
    schema = schema_of(site)
    refusal = ask(site, "counts", forest(schema))
    assert not isinstance(refusal, Answer)
    assert "one tree at a time" in refusal.reason


def test_more_than_many_trees_at_once_is_refused(monkeypatch):
    monkeypatch.setattr("concilium.protocol.counts.MOST_TREES", 8)
    site = cc.Site("a", cc.Records.from_rows(ROWS))
    schema = schema_of(site)

    def asked(trees):
        splits = [Split(0, 0, [3 * i + 1, 3 * i + 2, 3 * i + 3]) for i in range(trees)]
        question = question_of(schema, splits, [3 * i + 1 for i in range(trees)])
        return ask(site, "counts", question, name=f"{trees} trees")

    assert isinstance(asked(16), Answer)
    refusal = asked(17)
    assert refusal.rule == "message"
    assert "more was asked at once than 8 trees" in refusal.reason
