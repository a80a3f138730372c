"""Driving a conversation: what is sent into it, who is excused, and what a house says to answers that are none."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np
import pytest
from conversation import ROWS, crosstables, read_schema, schema_message, site_of, wrap

import concilium as cc
from agreed import deliver, draft
from concilium import registry as registry
from concilium.errors import ConciliumError, HouseError
from concilium.protocol.attributes import Attribute, Workload
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Answer, encode, find_signed, open_envelope, open_reply
from concilium.protocol.questions import PLAIN, Among, Gathered, Learned, Reply
from concilium.protocol.schema import AskSchema
from concilium.protocol.sums import Sum, pack, write_sum

AGES = AskCounts(totals=False, query="", target="y", attributes=(Attribute("age", (40.0, 60.0)),))


class Presence(Reply, frozen=True):
    """Whether a site takes part, and how many patients it has."""

    patients: int

    @property
    def leaves(self):
        return f"only {self.patients} patients" if self.patients < 20 else None


class AskPresence(Gathered[Presence], frozen=True, kw_only=True):
    """How many are you?"""

    kind: ClassVar[str] = "test.presence"
    releases: ClassVar[frozenset[str]] = PLAIN
    reply: ClassVar[type[Presence]] = Presence

    def compute(self, cohort):
        return Presence(len(cohort))

    def estimate(self, patients, columns):
        return Workload(patients, patients)


class Lying(cc.Site):
    """A site that signs another body than it computed."""

    def __init__(self, name, body, kind=None):
        super().__init__(name, cc.Records.from_rows(ROWS))
        self._lie, self._kind = body, kind

    def answer(self, message):
        reply = open_reply(super().answer(message))
        kind = open_envelope(message).kind
        if not isinstance(reply, Answer) or (
            kind == "study.propose" if self._kind is None else kind != self._kind
        ):
            return encode(reply)
        lie = msgspec.structs.replace(reply, body=self._lie, signature=b"")
        return encode(msgspec.structs.replace(lie, signature=self.identity.sign(find_signed(lie))))


def parts(count=3, **options):
    return [site_of(ROWS[i::count], name=f"s{i}", **options) for i in range(count)]


def test_answers_come_by_site_and_sums_as_one_array():
    def converse(run):
        seen = yield AskSchema(query="", target="y")
        total = yield AGES
        told = yield question
        some = yield Among(question, ["s0", "s2"])
        return Learned(body=(seen, total, told, some), patients={"s0": 20}, warnings=["a warning"])

    sites = parts()
    question = crosstables(read_schema(sites[0]))
    (seen, total, told, some), card = cc.House(sites).learn(draft(), converse)
    assert list(seen) == ["s0", "s1", "s2"]
    assert [one.patients for one in seen.values()] == [20, 20, 20]
    assert (total.dtype, total.shape, total.sum()) == (np.int64, (1, 4, 1), 60)
    assert told.shape == question.shape
    assert told[0, 0].sum() == 60
    assert some[0, 0].sum() == 40
    assert [site.patients for site in card.sites] == [20, None, None]
    assert "a warning" in card.warnings


@pytest.mark.parametrize("small", [[], [1], [0, 2], [0, 1, 2]])
def test_who_takes_no_part_is_excused_unless_nobody_does(monkeypatch, small):
    monkeypatch.setitem(registry.KINDS, AskPresence.kind, f"{__name__}:AskPresence")
    policy = cc.Policy(kinds=tuple(registry.KINDS))
    rows = [ROWS[:10] if number in small else ROWS[:30] for number in range(3)]
    sites = [site_of(some, name=f"s{number}", policy=policy) for number, some in enumerate(rows)]

    def converse(run):
        replies = yield AskPresence(query="", target="y")
        total = yield AGES
        return Learned(body=(replies, total))

    (replies, total), card = cc.House(sites).learn(draft(), converse)
    assert [reply.patients for reply in replies.values()] == list(map(len, rows))  # of all, leaving or not
    staying = [number for number in range(3) if number not in small or len(small) == 3]
    assert total.sum() == sum(len(rows[number]) for number in staying)
    assert [site.name for site in card.sites] == [f"s{number}" for number in staying]
    told = [warning for warning in card.warnings if warning.startswith("opted out: ")]
    assert len(told) == (0 < len(small) < 3)
    # What was released was released, whoever stayed.
    assert {release.site for release in card.releases} == {"s0", "s1", "s2"}


NO_SUM = [
    b"",
    b"\xc0",
    encode(write_sum(np.zeros(3, dtype=np.int64), 0)),
    encode(write_sum(np.zeros((1, 4), dtype=np.int64), 0)),
    encode(write_sum(np.zeros(4, dtype=np.int64), 1)),
    encode(Sum(0, pack(np.full(4, np.nan)))),
    encode(Sum(0, pack(np.full(4, 2**64 - 1, dtype=np.uint64)))),
    encode(Sum(0, msgspec.structs.replace(pack(np.zeros(4)), shape=[2**39, 2**39]))),
]


@pytest.mark.parametrize("body", NO_SUM)
def test_what_cannot_be_added_up_stops_the_run_naming_the_site(body):
    members = [*parts(2), Lying("liar", body)]
    with (
        cc.House(members).open(draft()) as run,
        pytest.raises(HouseError, match=r"^liar answered with what cannot be added up: "),
    ):
        run.ask(AGES)
    region = cc.Region("r", cc.House([Lying("liar", body), *parts(1)]))
    reply = open_reply(deliver(region, encode(wrap(AGES.kind, AGES))))
    assert (reply.rule, reply.reason) == (
        "region",
        "the region's sites answered with what cannot be added up",
    )


@pytest.mark.parametrize("body", [b"", b"\x80", encode(write_sum(np.zeros(1), 0)), b"\xc1" * 50])
def test_what_was_not_asked_for_stops_the_run_naming_the_site(body):
    question = AskSchema(query="", target="y")
    with (
        cc.House([*parts(2), Lying("liar", body)]).open(draft()) as run,
        pytest.raises(
            HouseError, match=r"^liar answered with what was not asked for: this is not a well-formed"
        ),
    ):
        run.ask(question)
    region = cc.Region("r", cc.House([Lying("liar", body), *parts(1)]))
    assert open_reply(deliver(region, schema_message())).rule == "message"


@pytest.mark.parametrize("kind", ["mask.hello", "mask.join", "counts", "mask.open"])
def test_nor_does_a_lie_get_through_under_masks(kind):
    members = [*parts(3), Lying("liar", b"\x80", kind)]
    with cc.House(members).open(draft("masked")) as run, pytest.raises(ConciliumError):
        run.ask(AGES)


def test_numbers_beyond_what_was_entered_by_honest_sites_do_not_crash_a_sum():
    """A site may count any number of patients: the house adds them, to the last bit, and cannot know better. It knows
    that nobody counts fewer than none."""
    lie = np.array([2**62, 2**31, 0, 1]).reshape(1, 4, 1)
    honest = parts(1)[0]
    with (
        cc.House([honest, Lying("liar", encode(write_sum(-lie, 0)))]).open(draft()) as run,
        pytest.raises(HouseError, match=r"^liar answered with .*: a count of patients is below zero$"),
    ):
        run.ask(AGES)
    with cc.House([honest, Lying("liar", encode(write_sum(lie, 0)))]).open(draft()) as run:
        total = run.ask(AGES)
    with cc.House(parts(1)).open(draft()) as run:
        alone = run.ask(AGES)
    np.testing.assert_array_equal(total - alone, lie)
    assert read_schema(honest, "question-9").patients == len(ROWS)
