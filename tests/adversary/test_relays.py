"""Whoever sits between houses and hospitals: repeats, reorders, forges and swaps what they say to each other, for all
that every listed method says. A hospital answers nothing that it would not have answered in an honest study and charges
nothing; a house learns the model of honest hospitals, or says in one sentence that it learned none.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps
from typing import Any

import msgspec
import pytest

import concilium as cc
from adversary.recordings import (
    GENEROUS,
    NAMES,
    PLACES,
    ROWS,
    STUDIES,
    Exchange,
    Recording,
    Relay,
    few_rounds,
    make_small,
    record,
    run,
)
from agreed import Asker
from concilium.errors import ConciliumError
from concilium.ledger.chain import Head
from concilium.ledger.study_book import ENDED
from concilium.privacy.identity import Identity
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.masking import Greeting
from concilium.protocol.messages import (
    VERSION,
    Answer,
    Refusal,
    _write_signed,
    decode,
    encode,
    open_envelope,
    open_reply,
)
from concilium.protocol.questions import Step
from concilium.protocol.region import Region
from concilium.protocol.relay import Relay as PassedOn
from concilium.protocol.relay import _Relayed, pass_on
from concilium.protocol.terms import Propose, Terms, name_study, sign_terms
from concilium.registry import KINDS, load
from contract.patients import VARIANTS, cases, make_rows, open_site, open_sites

BEFORE_STUDY = {
    kind for kind, place in KINDS.items() if issubclass(load(place), Step) and load(place).before_study
}
KEY = b"the key of these tests"
STRANGER = Identity.create()
# The last study of each release, of those that take little time.
ONE_OF_EACH = list({release: place for place, (_, release) in enumerate(cases())}.values())
every_study = pytest.mark.parametrize("place", PLACES, ids=NAMES)


def every_study_in_turn(name: str, values: list[Any]) -> Any:
    """Every study with one of these values, in turn, and one study of each release with all of them."""
    pairs = {(place, place % len(values)) for place in PLACES}
    pairs |= {(place, turn) for place in ONE_OF_EACH for turn in range(len(values))}
    cases = [
        pytest.param(place, values[turn], id=f"{NAMES[place]}-{values[turn]}")
        for place, turn in sorted(pairs)
    ]
    return pytest.mark.parametrize(("place", name), cases)


every_method = pytest.mark.parametrize("place", range(len(cases())), ids=NAMES[: len(cases())])


def is_before_study(exchange: Exchange) -> bool:
    return isinstance(exchange.question, Step) and exchange.question.before_study


def look_at(site: cc.Site) -> tuple[Any, ...]:
    """All that a site has let out, charged and agreed to."""
    entries = [(entry.question, entry.numbers, entry.cost) for entry in site.ledger.entries()]
    return entries, [(study.id, study.status, study.spent) for study in site.ledger.studies.list()]


def is_fine(reply: bytes) -> bool:
    """Whether a reply is an answer or a refusal in one sentence, and not that something broke."""
    opened = open_reply(reply)
    if isinstance(opened, Answer):
        return True
    return opened.rule != "internal" and "\n" not in opened.reason and "Traceback" not in opened.reason


def find(recording: Recording, name: str) -> cc.Site:
    return next(site for site in recording.sites if site.name == name)


def test_every_kind_is_relayed():
    """And asked by a variant of the contract, with whose numbers tests/protocol/test_hostile_numbers.py meddles."""
    variants = range(len(VARIANTS))  # of STUDIES they are the first
    seen = {exchange.envelope.kind for place in variants for exchange in record(place).exchanges}
    # What a region is given to pass on is one of these already (tests/protocol/test_relay.py).
    assert seen == set(KINDS) - {"region.relay"}


# At the hospital


@every_study_in_turn("order", ["as it was", "backwards", "shuffled"])
def test_a_study_said_again_gets_what_was_said_and_costs_nothing(place, order):
    recording = record(place)
    site, messages = find(recording, "north"), recording.few_of_each_kind("north", 3)
    before = look_at(site)
    if order != "as it was":
        messages.reverse()
    if order == "shuffled":
        random.Random(place).shuffle(messages)
    for exchange in messages:
        reply = site.answer(exchange.message)
        assert is_fine(reply)
        opened = open_reply(reply)
        if isinstance(opened, Answer) and not is_before_study(exchange):
            # What was let out is what was stored; nothing of a study under masks is opened once it has ended.
            assert reply == exchange.reply
    assert look_at(site) == before


@every_study
def test_what_was_said_to_one_hospital_is_said_to_no_other(place):
    recording = record(place)
    other = find(recording, "south")
    before = look_at(other)
    for exchange in recording.few_of_each_kind("north"):
        reply = open_reply(other.answer(exchange.message))
        if not is_before_study(exchange):
            assert (reply.rule, reply.site) == ("house", "south"), exchange.envelope.kind
    assert look_at(other) == before


@every_study
def test_what_was_said_in_one_study_is_said_in_no_other(place):
    """A study in the same words, of the same house or of another, is another study."""
    name, release, _ = STUDIES[place]
    recording = record(place)
    site = find(recording, "north")
    for identity in (recording.house.identity, STRANGER):
        asker = Asker(
            recording.sites,
            method=name,
            release=release,
            parameters=recording.method.get_params(),
            identity=identity,
            nonce=f"another study {place}",
        )
        assert isinstance(open_reply(asker.propose(site)), Answer)
        before = look_at(site)
        for exchange in recording.few_of_each_kind("north"):
            if is_before_study(exchange):
                continue
            moved = msgspec.structs.replace(exchange.envelope, study=asker.study)
            assert open_reply(site.answer(encode(moved))).rule == "house"
            # Under an id of its own it is no stored answer either.
            renamed = msgspec.structs.replace(moved, id="an id of its own", study=exchange.envelope.study)
            assert open_reply(site.answer(encode(renamed))).rule == "house"
        assert look_at(site) == before


def change_one_bit(data: bytes, dice: random.Random) -> bytes:
    if not data:
        return b"\0"
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :]


def forge(exchange: Exchange, recording: Recording, dice: random.Random) -> list[dict[str, Any]]:
    """The message with one of its fields changed, in every way that a relay may like."""
    envelope = exchange.envelope
    others = [one for one in recording.at(exchange.site) if one.envelope.digest != envelope.digest]
    other = dice.choice(others).envelope
    changes: list[dict[str, Any]] = [
        {"body": change_one_bit(envelope.body, dice)},
        {"body": other.body, "kind": other.kind},
        {"template": change_one_bit(envelope.template, dice)},
        {"proof": change_one_bit(envelope.proof, dice)},
        {"proof": b""},
        {"proof": other.proof},
        {"id": other.id},
        {"id": "an id of its own"},
        {"kind": dice.choice([kind for kind in KINDS if kind != envelope.kind])},
        {
            "release": dice.choice(
                [one for one in ("exact", "masked", "private", "") if one != envelope.release]
            )
        },
        {"study": other.study[::-1]},
        {"version": VERSION + 1},
    ]
    if envelope.seen is not None:
        head = envelope.seen
        changes += [
            {"seen": None},
            {"seen": msgspec.structs.replace(head, count=head.count - 1)},
            {"seen": msgspec.structs.replace(head, hash=head.hash[::-1])},
        ]
    return changes


@every_study
def test_no_field_of_a_message_can_be_changed(place):
    recording, dice = record(place), random.Random(place)
    site = find(recording, "north")
    before = look_at(site)
    for exchange in recording.few_of_each_kind("north"):
        if is_before_study(exchange):
            continue
        for changes in forge(exchange, recording, dice):
            forged = msgspec.structs.replace(exchange.envelope, **changes)
            if forged == exchange.envelope:
                continue
            reply = site.answer(encode(forged))
            assert is_fine(reply), (exchange.envelope.kind, changes)
            if forged.kind not in BEFORE_STUDY:  # which are answered to everybody, and tell nothing
                assert isinstance(open_reply(reply), Refusal), (exchange.envelope.kind, changes)
    assert look_at(site) == before


def open_again(recording: Recording, name: str) -> cc.Site:
    """The hospital with its key and its patients, and without any memory."""
    old = find(recording, name)
    site = open_site(name, ROWS[name], policy=GENEROUS, identity=old.identity, division_key=old.division_key)
    peers = {peer.name: peer.identity.fingerprint for peer in recording.sites}
    site.introduce(peers, recording.house.identity.fingerprint)
    return site


@every_study_in_turn("seed", [0, 1, 2])
def test_in_another_order_nothing_is_answered_but_what_an_honest_study_gets(place, seed):
    """Opened before it is covered, met before it is joined, asked before it is proposed."""
    recording = record(place)
    site, messages = open_again(recording, "north"), recording.few_of_each_kind("north")
    random.Random(seed).shuffle(messages)
    messages = messages if seed else messages[::-1]
    for exchange in messages:
        reply = site.answer(exchange.message)
        assert is_fine(reply)
        opened, honest = open_reply(reply), exchange.opened
        if isinstance(opened, Answer) and opened.charge is not None:
            assert isinstance(honest, Answer)
            assert opened.charge == honest.charge
            assert opened.body == honest.body or recording.method.answers_at_random
            assert exchange.envelope.release == "exact" or "mask" not in exchange.envelope.kind


@every_study
def test_not_a_byte_of_a_proposal_can_be_changed(place):
    recording, dice = record(place), random.Random(place)
    site = open_again(recording, "north")
    exchange = next(one for one in recording.at("north") if isinstance(one.question, Propose))
    proposal, envelope = exchange.question, msgspec.structs.replace(exchange.envelope, seen=None)
    terms = msgspec.json.decode(proposal.terms, type=Terms)
    house = recording.house.identity
    backwards = msgspec.structs.replace(
        terms, participants=terms.participants[::-1], identities=terms.identities[::-1]
    ).encoded
    without = msgspec.structs.replace(
        terms, participants=terms.participants[:-2], identities=terms.identities[:-2]
    ).encoded
    forged = [
        *((change_one_bit(proposal.terms, dice), proposal.signature) for _ in range(20)),
        *((proposal.terms, change_one_bit(proposal.signature, dice)) for _ in range(3)),
        (proposal.terms, sign_terms(proposal.terms, STRANGER)),
        (proposal.terms + b" ", sign_terms(proposal.terms + b" ", house)),
        (backwards, sign_terms(backwards, house)),
        (without, proposal.signature),
    ]
    for changed, signature in forged:
        body = encode(Propose(terms=changed, signature=signature))
        for study in (envelope.study, name_study(changed)):
            message = encode(msgspec.structs.replace(envelope, body=body, study=study))
            reply = open_reply(site.answer(message))
            assert isinstance(reply, Refusal), changed
            assert reply.rule in ("message", "mask"), reply
    assert look_at(site)[1] == []
    assert isinstance(open_reply(site.answer(encode(envelope))), Answer)


@pytest.mark.parametrize("place", ONE_OF_EACH, ids=[NAMES[place] for place in ONE_OF_EACH])
def test_a_study_that_a_person_ended_is_asked_nothing_more(place):
    recording = run(*STUDIES[place], open_sites(ROWS, policy=GENEROUS))
    site = find(recording, "north")
    study = recording.method.card.study
    site.ledger.studies.decide(study, ENDED, "a steward", "the committee changed its mind", site.identity)
    before = look_at(site)
    for exchange in recording.few_of_each_kind("north"):
        reply = site.answer(exchange.message)
        assert is_fine(reply)
        opened = open_reply(reply)
        if exchange.envelope.kind != "mask.hello":
            assert (opened.rule, "the committee changed its mind" in opened.reason) == ("ended", True)
    assert look_at(site) == before


# At the house


class Meddler(Relay):
    """Gives back something else once, to the message of this number; `others` are what the hospitals replied last."""

    def meddle(self, change: Callable[..., bytes], at: int, others: dict[str, bytes]) -> Relay:
        self.change, self.left, self.others, self.before = change, at, others, []
        return self

    def give_back(self, message: bytes, reply: bytes) -> bytes:
        self.left -= 1
        if self.left == -1:
            reply = self.change(self, open_envelope(message), reply)
        self.before.append(reply)
        return reply


def refuse(meddler: Meddler, envelope: Any, reply: bytes, **said: Any) -> Refusal:
    reason = {"rule": "patients", "reason": "too few patients"}
    return Refusal(version=VERSION, id=envelope.id, site=meddler.name, **{**reason, **said})


def refuse_unsigned(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    return encode(refuse(meddler, envelope, reply))


def refuse_as_itself(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    signature = open_reply(reply).signature
    return encode(refuse(meddler, envelope, reply, identity=meddler.identity.public, signature=signature))


def refuse_as_a_stranger(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    return _write_signed(refuse(meddler, envelope, reply, identity=STRANGER.public), STRANGER)


def answer_as_a_stranger(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    opened = open_reply(reply)
    return _write_signed(msgspec.structs.replace(opened, identity=STRANGER.public), STRANGER)


def swap(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    return meddler.others["south"]


def swap_and_rename(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    opened = open_reply(meddler.others["south"])
    return encode(msgspec.structs.replace(opened, id=envelope.id, site=meddler.name))


def say_it_again(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    return meddler.before[-1] if meddler.before else b""


def say_an_old_one(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    """The signed reply to a question like this in a study before."""
    recorded = [one for one in record(0).at("north") if one.envelope.kind == envelope.kind]
    return recorded[0].reply if recorded else b""


def change_a_bit(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    return change_one_bit(reply, random.Random(envelope.kind))


def cut_short(meddler: Meddler, envelope: Any, reply: bytes) -> bytes:
    return reply[: len(reply) // 2]


MEDDLING = [
    refuse_unsigned,
    refuse_as_itself,
    refuse_as_a_stranger,
    answer_as_a_stranger,
    swap,
    swap_and_rename,
    say_it_again,
    say_an_old_one,
    change_a_bit,
    cut_short,
]


class Noting(Relay):
    """A hospital of which a meddler knows the last reply."""

    def note(self, others: dict[str, bytes]) -> Relay:
        self.others = others
        return self

    def give_back(self, message: bytes, reply: bytes) -> bytes:
        self.others[self.name] = reply
        return reply


def learn(place: int, sites: list[Any], **identities: bytes) -> Any:
    """The method learned without noise by a house that knows these hospitals, or the one sentence that it was not."""
    name, release, more = STUDIES[place]
    house = cc.House(sites, timeout=600)
    house.identities |= identities
    try:
        with zero_noise(), few_rounds():
            return make_small(name, release, **more).fit(house)
    except ConciliumError as error:
        return error


@every_method
def test_a_house_is_told_the_truth_or_knows_that_it_is_not(place, monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    honest, rest = (
        learn(place, open_sites(ROWS, policy=GENEROUS, division_key=KEY)[first:]) for first in (0, 1)
    )
    dice = random.Random(place)
    for change in MEDDLING[place % 5 :: 5]:
        others: dict[str, bytes] = {}
        north, *more = open_sites(ROWS, policy=GENEROUS, division_key=KEY)
        at = dice.randrange(1, 5) if change is say_it_again else dice.randrange(5)
        meddled = Meddler(north).meddle(change, at, others)
        # Asked last, so that there is something to swap with.
        sites = [*(Noting(site).note(others) for site in more), meddled]
        model = learn(place, sites, north=north.identity.public)
        if isinstance(model, ConciliumError):
            assert "\n" not in str(model)
            assert "its own log says why" not in str(model)
            continue
        # Nobody is dropped in the name of a hospital: that its answer was lost is all there is to say.
        assert model.card.refusals == []
        lost = {lost.site for lost in model.card.dropouts}
        if STUDIES[place][1] == "local":
            # Every report is drawn at random, so that no two models are the same.
            assert lost <= {"north"}
            continue
        assert model.body in (honest.body, rest.body), change
        assert model.body == honest.body or lost == {"north"}


def test_a_house_that_knows_no_hospital_yet_takes_no_unsigned_refusal():
    sites = open_sites(ROWS, policy=GENEROUS)
    forged = Meddler(sites[0]).meddle(refuse_unsigned, 0, {})
    model = make_small("tree", "exact").fit(cc.House([forged, *sites[1:]], timeout=600))
    assert model.card.refusals == []
    assert [lost.site for lost in model.card.dropouts] == ["north"]


# At a region


class LyingRegion:
    """A region under masks that passes on what suits it: `lie` is given its turn, the messages and their replies."""

    def __init__(self, region: Region, lie: Callable[..., Any], dice: random.Random) -> None:
        self.name, self.identity, self.region, self.dice = region.name, region.identity, region, dice
        self.lie, self.turn, self.messages, self.replies = lie, 0, [], []

    @property
    def hospitals(self) -> Any:
        return self.region.hospitals

    def answer(self, message: bytes) -> bytes:
        envelope, reply = open_envelope(message), self.region.answer(message)
        self.turn += 1
        if envelope.kind == PassedOn.kind:
            asked, told = decode(envelope.body, PassedOn).messages, decode(reply, _Relayed)
            self.messages.append(asked)
            self.replies.append(told.replies)
            return encode(self.lie(self, asked, told))
        return self.lie(self, None, reply) or reply

    def ask(self, messages: dict[str, bytes]) -> _Relayed:
        """Have its hospitals asked anything."""
        return decode(pass_on(PassedOn(messages=messages), self.region.house.transport, 60), _Relayed)

    def greet(self, reply: bytes, *below: str) -> bytes:
        """A greeting of its own, signed as it should be."""
        said = msgspec.structs.replace(open_reply(reply), body=encode(Greeting(0, below)))
        return _write_signed(said, self.identity)


def only_passing(change: Callable[..., _Relayed]) -> Callable[..., Any]:
    return wraps(change)(lambda region, asked, told: None if asked is None else change(region, asked, told))


def only_greeting(change: Callable[..., bytes]) -> Callable[..., Any]:
    return wraps(change)(lambda region, asked, told: change(region, told) if asked is None else told)


@only_passing
def say_all_twice(region: LyingRegion, asked: dict[str, bytes], told: _Relayed) -> _Relayed:
    return region.ask(asked)


@only_passing
def replay_an_old_round(region: LyingRegion, asked: dict[str, bytes], told: _Relayed) -> _Relayed:
    """To the hospitals: joined, met, asked or opened once more, in the middle of the study."""
    region.ask(region.dice.choice(region.messages))
    return told


@only_passing
def answer_from_an_old_round(region: LyingRegion, asked: dict[str, bytes], told: _Relayed) -> _Relayed:
    old = region.dice.choice(region.replies) if region.dice.random() < 0.2 else told.replies
    return _Relayed(old, {})


@only_passing
def tell_each_what_the_other_is_told(
    region: LyingRegion, asked: dict[str, bytes], told: _Relayed
) -> _Relayed:
    names = list(asked)
    return region.ask(dict(zip(names, [asked[name] for name in reversed(names)], strict=True)))


@only_passing
def show_each_another_list(region: LyingRegion, asked: dict[str, bytes], told: _Relayed) -> _Relayed:
    """Another template: other keys in a roll, other answers when a sum is opened."""
    changed = {}
    for name, message in asked.items():
        envelope = open_envelope(message)
        old = [open_envelope(before[name]).template for before in region.messages if name in before]
        template = region.dice.choice([*old, change_one_bit(envelope.template, region.dice)])
        changed[name] = encode(msgspec.structs.replace(envelope, template=template))
    return region.ask(changed)


@only_passing
def drop_some(region: LyingRegion, asked: dict[str, bytes], told: _Relayed) -> _Relayed:
    """Once the study is agreed to: a hospital that is never reached is left out of it, as any other."""
    gone = region.dice.choice([None, None, None, *asked]) if region.turn > AGREED else None
    silent = {} if gone is None else {gone: "\x1b[31mit is gone\n"}
    return _Relayed({name: reply for name, reply in told.replies.items() if name != gone}, silent)


@only_passing
def answer_for_strangers(region: LyingRegion, asked: dict[str, bytes], told: _Relayed) -> _Relayed:
    return _Relayed({**told.replies, "elsewhere": b"x", "east": next(iter(told.replies.values()), b"")}, {})


@only_greeting
def name_more(region: LyingRegion, reply: bytes) -> bytes:
    return region.greet(reply, "north", "south", f"nobody {region.turn}")


@only_greeting
def name_itself(region: LyingRegion, reply: bytes) -> bytes:
    return region.greet(reply, "north", region.name)


@only_greeting
def name_those_of_others(region: LyingRegion, reply: bytes) -> bytes:
    return region.greet(reply, "north", "south", "east")


@only_greeting
def name_nobody(region: LyingRegion, reply: bytes) -> bytes:
    """Pose as a hospital."""
    return region.greet(reply)


@only_greeting
def name_with_controls(region: LyingRegion, reply: bytes) -> bytes:
    return region.greet(reply, "north", "south", "\x1b[2Jwest")


@only_greeting
def name_a_crowd(region: LyingRegion, reply: bytes) -> bytes:
    return region.greet(reply, *(f"hospital {number}" for number in range(200_000)))


def name_one_after_the_other(region: LyingRegion, asked: Any, told: Any) -> Any:
    """Behind each region another one, for ever."""
    if asked is None:
        return region.greet(told, "next 0")
    replies = {}
    for name, message in asked.items():
        envelope, depth = open_envelope(message), 0
        while envelope.kind == PassedOn.kind:
            ((name_below, inner),) = decode(envelope.body, PassedOn).messages.items()
            envelope, depth, last = open_envelope(inner), depth + 1, name_below
        last = last if depth else name
        said = Answer(
            version=VERSION,
            id=envelope.id,
            site=last,
            body=encode(Greeting(0, (f"{last}+",))),
            charge=None,
            ledger=Head(0, ""),
            identity=region.identity.public,
        )
        reply, path = _write_signed(said, region.identity), open_envelope(message)
        names = []
        while path.kind == PassedOn.kind:
            ((below, inner),) = decode(path.body, PassedOn).messages.items()
            names.append(below)
            path = open_envelope(inner)
        for below in reversed(names):
            reply = encode(_Relayed({below: reply}, {}))
        replies[name] = reply
    return _Relayed(replies, {})


AGREED = 3  # greeted, its hospitals greeted, and the study proposed to them
REGION_LIES = [
    say_all_twice,
    replay_an_old_round,
    answer_from_an_old_round,
    tell_each_what_the_other_is_told,
    show_each_another_list,
    drop_some,
    answer_for_strangers,
    name_more,
    name_itself,
    name_those_of_others,
    name_nobody,
    name_with_controls,
    name_a_crowd,
    name_one_after_the_other,
]
MASKED_TREES = [("tree", "masked", {"max_depth": 2}), ("tree", "private", {"max_depth": 1})]


def open_pinned(names: tuple[str, ...] = ("north", "south", "east", "west")) -> dict[str, cc.Site]:
    """Hospitals that pinned each other, and take no house's word for who is who."""
    keys = {name: Identity.create() for name in names}
    peers = {name: key.fingerprint for name, key in keys.items()}
    policy = cc.Policy(budget=cc.Budget("unlimited"), peers=peers)
    rows = {name: ROWS.get(name) or make_rows(30, 7) for name in names}
    return {
        name: open_site(name, rows[name], policy=policy, identity=keys[name], division_key=KEY)
        for name in names
    }


def learn_from(members: list[Any], name: str, release: str, more: dict[str, Any]) -> Any:
    try:
        with zero_noise(), few_rounds():
            return make_small(name, release, **more).fit(cc.House(members))
    except ConciliumError as error:
        return error


@pytest.mark.parametrize("lie", REGION_LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize(("name", "release", "more"), MASKED_TREES, ids=["masked", "private"])
def test_a_lying_region_changes_no_model_and_no_charge(name, release, more, lie, monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    honest = open_pinned()
    expected = learn_from(list(honest.values()), name, release, more).body
    charged = {one.name: (one.ledger.spent(), one.ledger.unbounded_numbers()) for one in honest.values()}
    for seed in range(2):
        sites = open_pinned()
        region = Region("r0", cc.House([sites["north"], sites["south"]]))
        liar = LyingRegion(region, lie, random.Random(f"{lie.__name__} {seed}"))
        model = learn_from([liar, sites["east"], sites["west"]], name, release, more)
        if isinstance(model, ConciliumError):
            assert str(model).isprintable(), str(model)
            assert "its own log says why" not in str(model)
        else:
            assert model.body == expected
        for one in sites.values():
            spent, numbers = charged[one.name]
            assert one.ledger.spent() <= spent
            assert one.ledger.unbounded_numbers() <= numbers


@pytest.mark.parametrize("puppets", [("north",), ("north", "south"), ("north", "south", "more")])
@pytest.mark.parametrize(("name", "release", "more"), MASKED_TREES, ids=["masked", "private"])
def test_a_region_cannot_pose_as_its_hospitals(name, release, more, puppets, monkeypatch):
    """It answers with keys and patients of its own: those whose fingerprints were compared refuse, and tell nothing."""
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    sites = open_pinned()
    posing = open_pinned(("north", "south", "more"))
    below = [
        posing[one] if one in puppets else sites[one] for one in dict.fromkeys(("north", "south", *puppets))
    ]
    region = Region("r0", cc.House(below))
    model = learn_from([region, sites["east"], sites["west"]], name, release, more)
    assert isinstance(model, ConciliumError)
    assert "pinned" in str(model)
    for one in sites.values():
        assert (one.ledger.spent(), one.ledger.unbounded_numbers()) == (0, 0)


def test_a_region_that_is_the_house_gains_nothing_by_that(monkeypatch):
    """One key for both: hospitals behind it are participants of one study, by name, and open one sum."""
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    sites = open_pinned()
    region = Region("r0", cc.House([sites["north"], sites["south"]]))
    house = cc.House([region, sites["east"], sites["west"]], identity=region.identity)
    with zero_noise():
        model = make_small("tree", "masked", max_depth=2).fit(house)
    assert [site.name for site in model.card.sites] == ["north", "south", "east", "west"]
    # Nor can it ask its two alone, under masks or not: there would be a sum of two, or of one.
    for members in ([sites["north"], sites["south"]], [sites["north"]]):
        error = learn_from(members, "tree", "masked", {"max_depth": 2})
        assert isinstance(error, ConciliumError)
        assert "needed" in str(error)
