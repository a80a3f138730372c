"""Hospitals behind regions under masks: the model of one house over all of them, through wires that can only fail."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from conversation import ROWS, site_of
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import HOUSE
from concilium.errors import HouseError
from concilium.privacy import randomness
from concilium.protocol.masking import Covered
from concilium.protocol.messages import (
    VERSION,
    Answer,
    Envelope,
    Refusal,
    decode,
    encode,
    open_envelope,
    open_reply,
)
from concilium.protocol.region import Region
from concilium.protocol.relay import Relay, _Relayed, ask_through, pass_on
from concilium.transports.embedded import Embedded
from strategies import deal_tiers, federations

PRIVATE = {"epsilon": 1, "values": {"y": [0, 1], "a": [0, 1, 2]}}


def parts(count=6):
    stated = {name: "number" if name == "age" else "code" for name in ROWS[0]}
    tables = [cc.Records.from_rows(ROWS[i::count], schema=stated) for i in range(count)]
    return [cc.Site(f"s{i}", table) for i, table in enumerate(tables)]


def in_regions(sites, size=2):
    return [
        Region(f"r{start // size}", cc.House(sites[start : start + size]))
        for start in range(0, len(sites), size)
    ]


def grow(members, release="masked", **options):
    return cc.DecisionTree("y", release=release, max_depth=2, **options).fit(cc.House(members))


class Wire:
    """A region that someone has a hand in: `change` is given the messages of each exchange and its replies."""

    def __init__(self, region, change):
        self.name, self.identity, self._region, self._change = region.name, region.identity, region, change

    @property
    def hospitals(self):
        return self._region.hospitals

    def answer(self, message):
        reply = self._region.answer(message)
        if open_envelope(message).kind != Relay.kind:
            return reply
        relay = msgspec.msgpack.decode(open_envelope(message).body, type=Relay)
        return encode(self._change(relay.messages, decode(reply, _Relayed)))


@given(federations(most_sites=8), st.data(), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_a_masked_tree_through_tiers_is_the_tree_of_one_house(tables, data, max_depth):
    def sites():
        return [cc.Site(name, cc.Records.from_rows(rows)) for name, rows in tables.items()]

    def fit(members):
        try:
            return cc.DecisionTree("y", max_depth=max_depth, release="masked").fit(cc.House(members))
        except HouseError as error:
            return str(error)[:20]
        except cc.errors.MaskError as error:
            return str(error)[:5]

    flat, tiered = fit(sites()), fit(deal_tiers(data, sites()))
    if isinstance(flat, str):
        assert isinstance(tiered, str)
    else:
        assert tiered.body == flat.body
        assert {site.name for site in tiered.card.sites} == {site.name for site in flat.card.sites}


@pytest.mark.parametrize("release", ["masked", "private"])
def test_hospitals_take_part_by_name_and_are_charged_as_in_one_house(release, monkeypatch):
    monkeypatch.setenv(randomness.SWITCH, randomness.SWITCHED_ON)
    options = PRIVATE if release == "private" else {"bins": {"age": [40, 60]}}
    sites, flat = parts(), parts()
    with randomness.zero_noise():
        tiered = grow([Region("north", cc.House(in_regions(sites[:4]))), *sites[4:]], release, **options)
        expected = grow(flat, release, **options)
    assert tiered.body == expected.body
    assert [site.name for site in tiered.card.sites] == [site.name for site in sites]
    assert {site.name: site.identity for site in tiered.card.sites} == {
        site.name: site.identity.fingerprint for site in sites
    }
    for one, other in zip(sites, flat, strict=True):
        assert one.ledger.spent() == other.ledger.spent()
        assert one.ledger.unbounded_numbers() == other.ledger.unbounded_numbers()
    (said,) = [warning for warning in tiered.card.warnings if "reached through" in warning]
    assert "r0, r1" in said
    assert not any("trusted with the numbers" in warning for warning in tiered.card.warnings)


def test_a_region_sees_vectors_under_masks_and_nothing_that_the_house_does_not():
    """All that passes are envelopes of the house and replies signed by hospitals; no vector is near a count."""
    passed = []

    def watch(messages, relayed):
        passed.extend((open_envelope(messages[name]), reply) for name, reply in relayed.replies.items())
        return relayed

    sites = parts()
    first, *others = in_regions(sites)
    grow([Wire(first, watch), *others])
    covered = [
        np.frombuffer(decode(open_reply(reply).body, Covered).masked.vector, dtype="<u8")
        for envelope, reply in passed
        if envelope.kind == "counts"
    ]
    assert len(covered) >= 2
    assert all((vector > 2**40).all() for vector in covered)
    assert {envelope.kind for envelope, _ in passed} >= {
        "mask.hello",
        "study.propose",
        "mask.join",
        "mask.open",
    }
    assert all(isinstance(open_reply(reply), Answer) for _, reply in passed)


def tamper(messages, relayed):
    """Another number in one hospital's masked vector."""
    name = next(iter(relayed.replies))
    if open_envelope(messages[name]).kind != "counts":
        return relayed
    answer = open_reply(relayed.replies[name])
    covered = decode(answer.body, Covered).masked
    lie = msgspec.structs.replace(covered, vector=bytes(len(covered.vector)))
    forged = msgspec.structs.replace(answer, body=encode(Covered(lie)))
    return _Relayed({**relayed.replies, name: encode(forged)}, {})


def swap(messages, relayed):
    """One hospital's reply as that of another."""
    names = list(relayed.replies)
    if open_envelope(messages[names[0]]).kind != "counts":
        return relayed
    return _Relayed(dict(zip(names, [relayed.replies[name] for name in reversed(names)], strict=True)), {})


def drop(messages, relayed):
    kinds = {open_envelope(message).kind for message in messages.values()}
    if "mask.open" not in kinds:
        return relayed
    return _Relayed({name: reply for name, reply in relayed.replies.items() if name != "s1"}, {"s1": "gone"})


@pytest.mark.parametrize(
    ("change", "said"),
    [(tamper, "s0: .*not signed"), (swap, "answered another question"), (drop, "s1: .*r0.*gone")],
)
def test_whatever_a_region_changes_stops_the_study_by_name(change, said):
    first, *others = in_regions(parts())
    with pytest.raises(HouseError, match=said):
        grow([Wire(first, change), *others])


def test_a_region_that_is_gone_is_its_hospitals_gone():
    class Gone(Wire):
        def answer(self, message):
            if open_envelope(message).kind == Relay.kind:
                raise ConnectionError("the wire is cut")
            return self._region.answer(message)

    first, *others = in_regions(parts())
    tree = grow([Gone(first, None), *others])  # never reached: the others begin without its hospitals
    assert [site.name for site in tree.card.sites] == ["s2", "s3", "s4", "s5"]
    assert {loss.site for loss in tree.card.dropouts} == {"s0", "s1"}


def test_two_hospitals_of_one_name_are_told_apart_by_nobody():
    twins = [Region(name, cc.House([site_of(ROWS, name="same"), *parts(2)])) for name in ("east", "west")]
    with pytest.raises(HouseError, match="two hospitals or regions are named 'same'"):
        grow(twins)


def test_a_relay_asks_its_own_hospitals_only():
    relay = Relay(messages={"s0": b"x", "elsewhere": b"y"})
    replies = decode(pass_on(relay, Embedded({site.name: site for site in parts(2)}), 5), _Relayed)
    assert isinstance(open_reply(replies.replies["s0"]), Refusal)
    assert replies.silent == {"elsewhere": "there is no such hospital in the region"}


def test_ways_through_any_number_of_regions():
    """Each message reaches its hospital, and each reply comes back under its name."""

    class Echo:
        def __init__(self, name):
            self.name = name

        def answer(self, message):
            return self.name.encode() + b" got " + message

    inner = Region("inner", cc.House([Echo("a"), Echo("b")]))
    outer = Region("outer", cc.House([inner, Echo("c")]))
    transport = Embedded({"outer": outer, "d": Echo("d")})
    routes = {"a": ("outer", "inner"), "b": ("outer", "inner"), "c": ("outer",)}
    messages = {name: f"to {name}".encode() for name in "abcd"}
    replies = ask_through(transport, messages, routes, "masked", 5)
    assert replies == {name: f"{name} got to {name}".encode() for name in "abcd"}


def test_a_hospital_passes_nothing_on():
    site = parts(1)[0]
    site.introduce({}, HOUSE.fingerprint)
    body = encode(Relay(messages={"s1": b"x"}))
    envelope = Envelope(
        version=VERSION, id="relay-12", study="", kind=Relay.kind, release="masked", body=body
    )
    assert isinstance(open_reply(site.answer(encode(envelope))), Refusal)
