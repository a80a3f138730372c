"""Numbers at their extremes, in every question to the gate and in every answer to a house or region: an answer, a
refusal or one sentence, never a traceback. Generated over the closed lists, so that new kinds are covered."""

from __future__ import annotations

import collections
import itertools
import math
import random
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest

import concilium as cc
from agreed import Asker, introduce_house, set_up_masks
from concilium.errors import ConciliumError, HouseError, MessageError
from concilium.models.method import Method
from concilium.protocol.masking import Open
from concilium.protocol.messages import Answer, Refusal, _write_signed, encode, open_envelope, open_reply
from concilium.protocol.questions import Statistic, Summed, open_question
from concilium.protocol.region import Region
from concilium.protocol.releases import find_release
from concilium.protocol.releases.masked import Masked
from concilium.protocol.releases.private import Private
from concilium.protocol.sums import DTYPES, Array, Sum
from concilium.protocol.terms import Propose, prove, sign_terms
from concilium.rulefit import fedda
from contract.patients import EVERYONE, SITES, VARIANTS, make, open_sites, proposed_types
from pairwise import meet_in_pairs

WHOLE = [0, 1, -1, 2, 2**15, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1]
REAL = [0.0, -0.0, 0.5, 5e-324, 1e-300, 1e9, 1e300, -1e300, math.inf, -math.inf, math.nan]
TEXT = ["0", "-1", "1/0", "1e999999999", "9" * 200, "1/" + "9" * 198, "nan", "0." + "0" * 190 + "1"]
LIES = 4  # of each exact variant; of the others half as many
# What a process has tried at a place of a message it tries there again by so many in turn, whoever asks.
TRIED, EACH = collections.Counter(), 2
NAMES = itertools.count()
POLICY = cc.Policy(differencing=False, refusals_per_month=10**9, budget=cc.Budget("unlimited"))


def unfold(data):
    """Bytes that are a struct or a list inside, as that; None for others."""
    try:
        value = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict | list) else None


def find_numbers(value, path=()):
    """The places of all numbers in a decoded message, in bytes that hold one too; of a list its first and last."""
    if isinstance(value, bytes):
        inner = unfold(value)
        if inner is not None:
            yield from find_numbers(inner, (*path, None))
        elif value:
            yield path
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from find_numbers(part, (*path, key))
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 1}) if value else ():
            yield from find_numbers(value[index], (*path, index))
    elif isinstance(value, int | float) or is_fraction(value):
        yield path


def is_fraction(value):
    try:
        return isinstance(value, str) and bool(Fraction(value))
    except (ValueError, ZeroDivisionError):
        return False


def extremes(value):
    if isinstance(value, bytes):
        return [bytes([fill]) * len(value) for fill in (0, 0x7F, 0x80, 0xFF)]
    return TEXT if isinstance(value, str) else [*WHOLE, *REAL]


def find_untried(kind, field, path, value):
    """All extremes, the first time at a place of this kind of message, or of a release's terms; then the mild ones and
    the next few."""
    listed = extremes(value)
    place = (kind, field, *(step for step in path if not isinstance(step, int)), type(value))
    TRIED[place] += 1
    if TRIED[place] == 1:
        return listed
    mild, wild = listed[:2], listed[2:]  # 0 and 1 are what may be answered
    begin = EACH * TRIED[place]
    return [*mild, *(wild[number % len(wild)] for number in range(begin, begin + min(EACH, len(wild))))]


def look(value, path):
    for step in path:
        value = unfold(value) if step is None else value[step]
    return value


def put(value, path, new):
    """The same message with another value at that place."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if step is None:
        return msgspec.msgpack.encode(put(unfold(value), rest, new))
    changed = value.copy()
    changed[step] = put(value[step], rest, new)
    return changed


class Probed:
    """A site that is asked every question again with each of its numbers at its extremes: in the study itself, which
    may not have agreed to it, and in `anything`, a study that agreed to any number."""

    def __init__(self, site, most, anything=None):
        self.name, self._site, self._most, self._anything = site.name, site, most, anything
        self.identity, self.introduce, self.seen, self.failures = site.identity, site.introduce, {}, []
        self.rules = set()

    def answer(self, message):
        reply = self._site.answer(message)
        envelope = open_envelope(message)
        seen = self.seen.setdefault(envelope.kind, [])
        if len(seen) < self._most:
            seen.append(envelope.id)
            self._probe(envelope, msgspec.msgpack.decode(message))
        return reply

    def _probe(self, envelope, whole):
        in_any = self._anything is not None and isinstance(open_question(envelope), Statistic | Open)
        for field in ("body", "template", "seen"):
            for path in find_numbers(whole.get(field)):
                for extreme in find_untried(whole["kind"], field, path, look(whole[field], path)):
                    changed = {**whole, "id": self._name(), field: put(whole[field], path, extreme)}
                    probes = [self._prove(changed)]
                    if in_any and field != "seen":
                        own = msgspec.msgpack.encode({**changed, "id": self._name()})
                        probes.append(self._in_anything(own))
                    for probe in filter(None, probes):
                        self._try(probe, (whole["kind"], field, path, extreme))

    def _name(self):
        return f"probe-{next(NAMES):08d}"

    def _prove(self, changed):
        """The message as the house of the study would prove it."""
        try:
            envelope = open_envelope(msgspec.msgpack.encode(changed))
        except MessageError:
            return msgspec.msgpack.encode(changed)
        key = self._site._context.studies._running.get(envelope.study)
        proof = b"" if key is None else prove(key, envelope.id, envelope.digest, envelope.seen)
        return encode(msgspec.structs.replace(envelope, proof=proof))

    def _in_anything(self, message):
        try:
            return self._anything.seal(self._site, open_envelope(message))
        except MessageError:
            return None

    def _try(self, message, place):
        reply = open_reply(self._site.answer(message))
        self.rules.add(reply.rule if isinstance(reply, Refusal) else "answer")
        if isinstance(reply, Refusal) and reply.rule == "internal":
            self.failures.append(place)


every_variant = pytest.mark.parametrize(("name", "release", "more"), VARIANTS)


@pytest.fixture(autouse=True)
def _few_rounds_of_dual_averaging(monkeypatch):
    """All of its three hundred rounds ask the same, with other numbers."""
    monkeypatch.setitem(fedda.fit.__kwdefaults__, "rounds", 12)


@every_variant
def test_no_number_of_a_question_ends_in_a_traceback(name, release, more):
    sites = open_sites(policy=POLICY)
    by_site = find_release(release).by_site
    model = make(proposed_types()[name], release, **more)
    target = "" if model.handed_on else "y"
    anything = Asker(sites, release=release, target=target) if by_site else set_up_masks(sites, release)
    assert isinstance(open_reply(anything.propose(sites[0])), Answer)
    probed = Probed(sites[0], 2, anything)
    draft = model.draft()
    # What is opened once more under another name is paid for once more.
    draft = replace(draft, price=None if draft.price is None else 10**6 * draft.price)
    # What is answered at random without a price of its own is answered once, and the probe may have asked it before.
    with (
        pytest.raises(HouseError, match="once")
        if model.answers_at_random and by_site and not model.handed_on and release != "noised"
        else nullcontext()
    ):
        model.take(*cc.House([probed, *sites[1:]], timeout=600).learn(draft, model.converse))
        assert model.card.dropouts == model.card.refusals == []
    assert probed.failures == []
    assert {"answer", "message"} <= probed.rules
    assert "house" not in probed.rules


@every_variant
def test_no_number_of_the_terms_does_either(name, release, more):
    sites = open_sites(policy=POLICY)
    draft = make(proposed_types()[name], release, **more).draft()
    named = {"models": draft.models, "price": None if draft.price is None else str(draft.price)}
    asker = Asker(sites, release=release, method=name, parameters=draft.parameters, **named)
    introduce_house(sites[0])
    assert isinstance(open_reply(asker.propose(sites[0])), Answer)
    whole, rules = msgspec.json.decode(asker.terms), set()
    for path in find_numbers(whole):
        for extreme in find_untried(release, "terms", path, look(whole, path)):
            terms = msgspec.json.encode(put(whole, path, extreme))
            proposal = Propose(terms=terms, signature=sign_terms(terms, asker.identity))
            reply = open_reply(sites[0].answer(encode(asker.wrap(proposal))))
            rules.add(reply.rule if isinstance(reply, Refusal) else "answer")
            assert "internal" not in rules, (path, extreme)
    assert "message" in rules


class Lying:
    """A site that answers one question, the first or a later, with other numbers than it has, and signs them."""

    def __init__(self, site, chance):
        self.name, self._site, self._chance = site.name, site, chance
        self._left, self.lie = chance.randrange(6), None

    def answer(self, message):
        reply = open_reply(self._site.answer(message))
        question = open_question(open_envelope(message))
        if not isinstance(reply, Answer) or self.lie is not None:
            return encode(reply)
        self._left -= 1
        if self._left >= 0:
            return encode(reply)
        body = msgspec.msgpack.decode(reply.body)
        if isinstance(question, Summed) and "words" in body:
            body = self._make_sum(question)
        elif not (places := list(find_numbers(body))):
            return encode(reply)
        else:
            path = self._chance.choice(places)
            body = put(body, path, self._chance.choice(extremes(look(body, path))))
        self.lie = question.kind, body
        reply = msgspec.structs.replace(reply, body=msgspec.msgpack.encode(body))
        return _write_signed(reply, self._site.identity)

    def _make_sum(self, question):
        dtype = np.dtype("<" + self._chance.choice(sorted(DTYPES)))
        words = make_words(self._chance, question.numbers, dtype)
        places = question.binary_places if self._chance.random() < 0.9 else self._chance.choice(WHOLE)
        return msgspec.to_builtins(
            Sum(places, Array(dtype.str.lstrip("<|"), list(question.shape), words.tobytes())),
            builtin_types=(bytes,),
        )


def make_words(chance, count, dtype):
    """Numbers of any size and sign: all alike, or each as it comes."""
    if dtype.kind == "f":
        choices = np.array(REAL)
    else:
        limits = np.iinfo(dtype)
        choices = np.array(
            sorted(
                {
                    limits.min,
                    limits.min // 3,
                    *(w for w in WHOLE if limits.min <= w <= limits.max),
                    limits.max // 3,
                    limits.max,
                }
            ),
            dtype=dtype,
        )
    if chance.random() < 0.5:
        return np.full(count, choices[chance.randrange(len(choices))], dtype=dtype)
    return np.array([choices[chance.randrange(len(choices))] for _ in range(count)], dtype=dtype)


def fit_and_use(name, release, more, members):
    """A model of these members, or the one sentence that there is none, and everything that is said of it."""
    try:
        model = make(proposed_types()[name], release, **{**more, "max_depth": 2}).fit(
            cc.House(members, timeout=600)
        )
        assert msgspec.json.encode(model.body)
        if not isinstance(model, Method):
            return
        model.predict(EVERYONE[:3])
        model.explain(EVERYONE[0])
        assert model.text()
        assert model.pictures() is not None
    except ConciliumError:
        pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("variant", "tiers", "seed"),
    meet_in_pairs(
        [one for one in VARIANTS if one[1] == "exact" and "solver" not in one[2]], [1, 2], range(LIES)
    ),
)
def test_no_number_of_an_answer_ends_in_a_traceback(variant, tiers, seed):
    name, release, more = variant
    first, second, *others = open_sites()
    liar = Lying(first, random.Random(f"{name} {tiers} {seed}"))
    members = [liar, second, *others] if tiers == 1 else [Region("r", cc.House([liar, second])), *others]
    fit_and_use(name, release, more, members)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(LIES // 2))
@pytest.mark.parametrize(("name", "release", "more"), [one for one in VARIANTS if one[1] != "exact"])
def test_nor_does_one_under_masks(monkeypatch, name, release, more, seed):
    """Where nobody sees a site's numbers it may enter any, and in plain it may say any."""
    chance = random.Random(f"{name} {release} {seed}")
    sites = open_sites()
    entered = chance.randrange(8)
    if entered < 4:
        sites[0] = Lying(sites[0], chance)
    for kind in (Masked, Private):
        protect, left = kind.protect, itertools.count(-entered)

        def enter(self, context, study, question, words, protect=protect, left=left):
            words = protect(self, context, study, question, words)
            return (
                make_words(chance, len(words), words.dtype)
                if context.name == SITES[0] and next(left) >= 0
                else words
            )

        monkeypatch.setattr(kind, "protect", enter)
    fit_and_use(name, release, more, sites)
