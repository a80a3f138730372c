"""Regions: the tree through tiers is the tree of one house, and a region loses, refuses and restarts definitely."""

from __future__ import annotations

import numpy as np
import pytest
from conversation import ROWS, Listening, crosstable_envelope, read_schema, schema_message, site_of, wrap
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import Asker, deliver
from concilium.errors import ConciliumError, HouseError, MaskError, StudyError
from concilium.privacy.identity import Identity, is_signed
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Answer, Refusal, decode, encode, find_signed, open_reply
from concilium.protocol.questions import _cannot_be_united
from concilium.protocol.region import Region
from concilium.protocol.schema import AskSchema
from concilium.protocol.sums import read_sum
from strategies import deal_tiers, federations


class Crashing:
    """A site that answers some questions and then is gone."""

    def __init__(self, site, answers):
        self.name, self._site, self._left = site.name, site, answers
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        if self._left <= 0:
            raise ConnectionError("the wire is cut")
        self._left -= 1
        return self._site.answer(message)


class Recording:
    """A site, and the envelopes that reached it."""

    def __init__(self, site):
        self.name, self._site, self.messages = site.name, site, []
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        self.messages.append(message)
        return self._site.answer(message)


def parts(count=6):
    return [site_of(ROWS[i::count], name=f"s{i}") for i in range(count)]


def regions(sites, size=2, **options):
    """The sites, two by two, in regions."""
    return [
        Region(f"r{start // size}", cc.House(sites[start : start + size], **options))
        for start in range(0, len(sites), size)
    ]


def grow(members, **options):
    house = options.pop("house", {})
    return cc.DecisionTree("y", bins={"age": [40, 60]}, growth="id3", **options).fit(
        cc.House(members, **house)
    )


@given(federations(most_sites=8), st.data(), st.one_of(st.none(), st.integers(0, 3)), st.integers(1, 3))
@settings(max_examples=120)
def test_a_tree_through_tiers_is_the_tree_of_one_house(tables, data, max_depth, min_leaf):
    def sites():
        return [cc.Site(name, cc.Records.from_rows(rows)) for name, rows in tables.items()]

    members = deal_tiers(data, sites())
    tree = cc.DecisionTree("y", max_depth=max_depth, min_leaf=min_leaf)
    try:
        expected = cc.DecisionTree("y", max_depth=max_depth, min_leaf=min_leaf).fit(cc.House(sites()))
    except HouseError:
        with pytest.raises(HouseError, match="too few patients"):
            tree.fit(cc.House(members))
        return
    tree.fit(cc.House(members))
    assert tree.body == expected.body
    assert sum(site.patients for site in tree.card.sites) == sum(s.patients for s in expected.card.sites)
    assert tree.card.rounds == expected.card.rounds


def test_three_tiers_say_on_the_card_who_is_trusted_and_charge_what_one_house_would():
    flat = grow(parts())
    tiered = grow([Region("north", cc.House(regions(parts()[:4]))), *parts()[4:]])
    assert tiered.body == flat.body
    assert [(site.name, site.patients) for site in tiered.card.sites] == [
        ("north", 40),
        ("s4", 10),
        ("s5", 10),
    ]
    assert any("regions north (4 hospitals)" in warning for warning in tiered.card.warnings)
    assert not any("regions" in warning for warning in flat.card.warnings)

    def numbers(tree):
        return sum(release.numbers for release in tree.card.releases)

    assert numbers(tiered) == numbers(flat)


def test_many_regions_are_told_in_one_sentence():
    (said,) = [w for w in grow(regions(parts(), size=1)).card.warnings if "regions" in w]
    assert said.endswith("the regions r0 (1 hospital), r1 (1 hospital), r2 (1 hospital) and 3 more")


def test_a_region_answers_what_its_sites_answer_together():
    region, (one, other) = regions(parts(2))[0], parts(2)
    seen = read_schema(region)
    apart = [read_schema(site) for site in (one, other)]
    assert seen.patients == sum(schema.patients for schema in apart)
    assert {a.name: set(a.values) for a in seen.attributes} == {
        name: {v for s in apart for a in s.attributes if a.name == name for v in a.values}
        for name in ("a", "b")
    }
    assert seen.unbinned == ["age"]
    question = crosstable_envelope(region)
    asked = decode(question.body, AskCounts)
    total, *below = (
        read_sum(open_reply(deliver(member, encode(question))).body, asked) for member in (region, one, other)
    )
    np.testing.assert_array_equal(total, below[0] + below[1])


def test_an_answer_is_signed_and_carries_what_was_charged_below():
    sites = parts(2)
    region = regions(sites)[0]
    first = open_reply(deliver(region, schema_message("question-1")))
    second = open_reply(deliver(region, schema_message("question-2", query="a = 1")))
    for answer in (first, second):
        assert is_signed(find_signed(answer), answer.signature, region.identity.public)
        assert answer.below == 2
        assert answer.charge.numbers == sum(
            entry.numbers for site in sites for entry in site.ledger.entries() if entry.question
        ) - (first.charge.numbers if answer is second else 0) - (
            second.charge.numbers if answer is first else 0
        )
        assert answer.charge.cost is None
    assert second.ledger.count == sum(site.ledger.head().count for site in sites) > first.ledger.count
    # Who takes part is the first half of the hash, and how far their ledgers have come the second.
    assert first.ledger.hash[:32] == second.ledger.hash[:32]
    assert first.ledger.hash[32:] != second.ledger.hash[32:]


def test_a_refusal_is_signed_too():
    region = regions(parts(2))[0]
    for message in (b"", schema_message(query="age > 500")):
        refusal = open_reply(deliver(region, message))
        assert isinstance(refusal, Refusal)
        assert is_signed(find_signed(refusal), refusal.signature, region.identity.public)


def test_a_repeated_question_is_charged_once_and_answered_alike():
    sites = parts(2)
    region = regions(sites)[0]
    first = deliver(region, schema_message())
    entries = [len(site.ledger.entries()) for site in sites]
    assert deliver(region, schema_message()) == first
    assert [len(site.ledger.entries()) for site in sites] == entries


def test_a_site_is_told_of_its_own_values_only():
    rows = [{"a": "x", "y": i % 2} for i in range(8)]
    other = [{"a": "secret-value", "y": i % 3 % 2} for i in range(9)]
    mine = Recording(site_of(rows, name="mine"))
    region = Region("r", cc.House([mine, site_of(other, name="other")]))
    far = site_of([{"a": "far-value", "y": 1} for _ in range(8)], name="far")
    assert cc.DecisionTree("y", growth="id3").fit(cc.House([region, far])).attributes_ == ["a"]
    assert len(mine.messages) == 4
    for message in mine.messages:
        assert b"secret-value" not in message
        assert b"far-value" not in message


@pytest.mark.parametrize("lose_after", [0, 1, 2, 3])
def test_a_site_lost_in_a_region(lose_after):
    sites = parts()
    lost = Crashing(sites[1], lose_after)
    members = [Region("r0", cc.House([sites[0], lost])), Region("r1", cc.House(sites[2:4])), *sites[4:]]
    found = grow(members)
    if lose_after < 2:  # when the study is proposed, or in the first round: the region goes on without it
        rest = [site for i, site in enumerate(parts()) if i != 1]
        assert [site.patients for site in found.card.sites] == [10, 20, 10, 10]
        assert not found.card.refusals
        assert members[0].card(found.card.study).dropouts[0].site == "s1"
    else:  # later: its sums are of all or nothing, so the house goes on without the region, and says so
        rest = parts()[2:]
        (refusal,) = found.card.refusals
        assert (refusal.site, refusal.rule) == ("r0", "lost")
        assert "lost sites after its first answer" in refusal.reason
        assert refusal.reason.endswith(": 1 of 2 sites: no answer")
    assert found.body == grow(rest).body


def test_a_region_that_stops_for_a_lost_site_refuses():
    sites = parts()
    strict = Region("r0", cc.House([sites[0], Crashing(sites[1], 0)], on_loss="stop"))
    found = grow([strict, *sites[2:]])
    (refusal,) = found.card.refusals
    assert (refusal.site, refusal.rule) == ("r0", "region")
    assert refusal.reason == "stopped when the study was proposed: 1 of 2 sites: no answer"
    with pytest.raises(HouseError, match=f"stopped when the study was proposed: r0: {refusal.reason}"):
        grow([strict, *sites[2:]], house={"on_loss": "stop"})


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "agee > 3",
            "the study does not fit every site: r0, r1, r2: the study does not fit every site: 2 of 2 sites: .*'age'",
        ),
        (
            "age > 500",
            "no site answered: r0, r1, r2: stopped when the study was proposed: 2 of 2 sites: too few patients",
        ),
    ],
)
def test_what_is_wrong_below_is_said_above(query, said):
    with pytest.raises(HouseError, match=said):
        grow(regions(parts()), query=query)


def test_a_rolled_back_ledger_below_is_no_loss_but_distrust():
    house = cc.House(parts(2))
    region = Region("r", house)
    grow([region])
    fresh = cc.House(parts(2))
    fresh.heads = dict(house.heads)
    with pytest.raises(
        HouseError, match=r"a ledger cannot be trusted: r: a ledger cannot be trusted: 2 of 2 sites: "
    ):
        grow([Region("r", fresh)])


class Grumbling:
    """A site whose every failure names it."""

    def __init__(self, site, answers, reason):
        self.name, self._site, self._left, self._reason = site.name, site, answers, reason
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        self._left -= 1
        if self._left < 0:
            raise ConnectionError(self._reason)
        return self._site.answer(message)


NAMED = "the-hospital-that-nobody-may-know"


@pytest.mark.parametrize("on_loss", ["continue", "stop"])
@pytest.mark.parametrize("answers", [0, 1, 2, 3])
@pytest.mark.parametrize("query", ["", "age > 500", "agee > 3"])
@pytest.mark.parametrize("tiers", [1, 2])
def test_no_refusal_of_a_region_names_its_hospitals(on_loss, answers, query, tiers):
    """Whatever goes wrong below, and through however many tiers."""
    sites = [site_of(ROWS[i::2], name=f"{NAMED}-{i}") for i in range(2)]
    member = Region(f"{NAMED}-0", cc.House(sites, on_loss=on_loss)) if tiers == 2 else sites[0]
    cut = Grumbling(sites[1], answers, f"no route to {NAMED}-1.example")
    region = Region("r", cc.House([member, cut], on_loss=on_loss))
    replies = []
    message = schema_message(query=query)
    for _ in range(3):
        replies.append(open_reply(deliver(region, message)))
        ages = Attribute("age", (40.0 + len(replies),))
        question = AskCounts(totals=False, query=query, target="y", attributes=(ages,))
        message = encode(wrap(question.kind, question, name=f"question-{len(replies)}"))
    refusals = [reply for reply in replies if isinstance(reply, Refusal)]
    assert bool(refusals) == (query != "" or answers > 1 or on_loss == "stop")
    for refusal in refusals:
        assert NAMED not in refusal.reason
        assert " of 2 sites: " in refusal.reason or " of 1 site: " in refusal.reason


def test_a_file_of_the_region_is_not_named_either(tmp_path):
    memory = tmp_path / "gone" / f"{NAMED}.json"
    region = Region("r", cc.House(parts(2), memory=memory))
    refusal = open_reply(deliver(region, schema_message()))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "the region could not answer; its own log says why"


def test_a_region_answers_exactly_or_not_at_all():
    """Under masks its hospitals take part by name (test_relay.py), and it answers nothing for them."""
    question = AskSchema(query="", target="y", count_patients=False)
    reply = open_reply(regions(parts())[0].answer(encode(wrap("tree.schema", question, release="masked"))))
    assert isinstance(reply, Refusal)
    assert "a region adds up exact numbers" in reply.reason


def test_a_restarted_region_goes_on_with_the_same_sites_or_not_at_all(tmp_path):
    def open_sites():
        return [
            cc.Site(f"s{i}", cc.Records.from_rows(ROWS[i::2]), ledger=tmp_path / f"{i}.ledger")
            for i in (0, 1)
        ]

    def begin():
        return Region("r", cc.House(open_sites()), identity=tmp_path / "r.identity")

    first = begin()
    schema = open_reply(deliver(first, schema_message("question-1")))
    question = crosstable_envelope(first)
    root = open_reply(deliver(first, encode(question)))
    seen = (root.ledger.count, root.ledger.hash)

    def asked(name, seen):
        return encode(wrap("counts", question.body, name=name, seen=seen))

    again = open_reply(deliver(begin(), asked("question-9", seen)))
    assert isinstance(again, Answer)
    assert again.body == root.body
    assert again.identity == schema.identity
    fewer = Region("r", cc.House(open_sites()[:1]), identity=tmp_path / "r.identity")
    for region, head in ((fewer, seen), (begin(), None)):
        refusal = open_reply(deliver(region, asked("question-10", head)))
        assert isinstance(refusal, Refusal)
        assert refusal.rule == "lost"
        assert "started again" in refusal.reason
        later = open_reply(deliver(region, asked("question-11", seen)))
        assert later.rule == "lost"


def test_what_a_region_cannot_pass_on_is_refused(monkeypatch):
    region = regions(parts())[0]
    with monkeypatch.context() as patch:
        patch.setattr(AskSchema, "unite", lambda question, replies: _cannot_be_united(question.kind))
        refusal = open_reply(deliver(region, schema_message("question-7")))
    assert refusal.rule == "kind"
    assert "ask the hospitals themselves" in refusal.reason


def test_no_hospital_reads_a_value_that_only_others_have():
    """Through however many tiers: the bytes that reach a hospital hold none."""
    rows = [
        [{"drug": f"{name}-only", "sex": "fm"[i % 2], "y": i * i % 5 % 2} for i in range(40)]
        for name in "abcd"
    ]
    sites = [Listening(site_of(some, name=name)) for name, some in zip("abcd", rows, strict=True)]
    tiers = [Region("north", cc.House([Region("coast", cc.House(sites[:2])), sites[2]])), sites[3]]
    tree = cc.DecisionTree("y", max_depth=2).fit(cc.House(tiers))
    assert tree.body == cc.DecisionTree("y", max_depth=2).fit(cc.House([s.site for s in sites])).body
    for site in sites:
        heard = b"".join(site.heard)
        assert f"{site.name}-only".encode() in heard
        for other in "abcd".replace(site.name, ""):
            assert f"{other}-only".encode() not in heard


@given(st.binary(max_size=200))
def test_whatever_arrives_is_met_with_a_refusal(message):
    assert isinstance(open_reply(deliver(REGION, message)), Refusal)


REGION = Region("r", cc.House(parts(2)))


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb"])
def test_a_region_needs_a_name(name):
    with pytest.raises(StudyError, match="a region's name"):
        Region(name, cc.House(parts(1)))


def test_a_journal_an_unknown_study_and_a_bad_identity_are_said(tmp_path):
    with pytest.raises(StudyError, match="has a journal"):
        Region("r", cc.House(parts(1), journal=tmp_path / "run.journal"))
    with pytest.raises(HouseError, match="was not asked in study 'x'"):
        REGION.card("x")
    (tmp_path / "bad").write_text("no key")
    (tmp_path / "bad").chmod(0o600)
    with pytest.raises(MaskError):
        Region("r", cc.House(parts(1)), identity=tmp_path / "bad")
    own = Identity.create()
    assert Region("r", cc.House(parts(1)), identity=own).identity is own
    assert issubclass(MaskError, ConciliumError)


def test_only_the_latest_studies_are_remembered(monkeypatch):
    monkeypatch.setattr("concilium.protocol.region.REMEMBERED_STUDIES", 2)
    region = regions(parts(2))[0]
    askers = [Asker([region], nonce=f"study-of-{number}") for number in range(3)]
    for asker in askers:
        question = asker.wrap(AskSchema(query="", target="y"))
        assert isinstance(open_reply(asker.ask(region, question)), Answer)
    assert region.card(askers[2].study).method == "anything"
    with pytest.raises(HouseError):
        region.card(askers[0].study)
    # A house that goes on with it is asked to propose it again.
    assert open_reply(askers[0].ask(region, question)).rule == "proposed"
