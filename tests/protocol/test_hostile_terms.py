"""A house that asks without a study, outside of its study, in somebody else's name, or for terms that cannot be."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import msgspec
import pytest
from conversation import ROWS, crosstables, site_of

import concilium as cc
from agreed import ABSENT, HOUSE, Asker, introduce_house, set_up_masks
from concilium.policy.policy import Agree
from concilium.privacy.identity import Identity
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.held_out import Part, Sample
from concilium.protocol.masking import Covered, End, Hello, Join, Meet, Open
from concilium.protocol.messages import Refusal, decode, encode, open_reply
from concilium.protocol.questions import Gaussian
from concilium.protocol.schema import AskSchema, SchemaSeen
from concilium.protocol.terms import MOST_DAYS, Propose, sign_terms, today
from concilium.trees.ensemble import AskClassCounts
from concilium.trees.votes import AskVotes, Voter
from side_door import state

STRANGER = Identity.create()
SCHEMA = AskSchema(query="", target="y")


def pinning(*houses, **options):
    return cc.Policy(
        houses={f"house {i}": house.fingerprint for i, house in enumerate(houses)},
        **{"agree": Agree(releases=("exact",), methods=("tree",)), **options},
    )


def told(site):
    """What a site has let out, and agreed to."""
    return [entry.kind for entry in site.ledger.entries() if entry.question], site.ledger.studies.list()


def rule(reply):
    opened = open_reply(reply) if isinstance(reply, bytes) else reply
    return opened.rule if isinstance(opened, Refusal) else "answer"


# Without a study, or in another's name


@pytest.mark.parametrize("release", ["exact", "masked", "private"])
def test_nothing_but_a_greeting_is_answered_outside_of_a_study(release):
    site = site_of()
    asker = Asker([site, *ABSENT], release=release)
    tables = AskCounts(
        totals=False, query="", target="y", attributes=(Attribute("a", (), (0, 1)),), noise=Gaussian("100")
    )
    asked = {
        "exact": [SCHEMA, AskClassCounts(query="", target="y", sample=Sample(positive=1))],
        "masked": [msgspec.structs.replace(SCHEMA, count_patients=False)],
        "private": [tables],
    }[release]
    steps = [] if release == "exact" else [Join(), Meet(), Open(kind_asked="x", body=b""), End()]
    for number, question in enumerate([*asked, *steps]):
        reply = open_reply(site.answer(encode(asker.wrap(question, name=f"question-{number}"))))
        assert (reply.rule, "propose it first" in reply.reason) == ("proposed", True)
    if release != "exact":
        assert rule(site.answer(encode(asker.wrap(Hello())))) == "answer"
    assert told(site) == ([], [])


def test_nobody_asks_in_the_name_of_the_house():
    site, other = site_of(), site_of(name="b")
    agreed = Asker([site, other])
    assert rule(agreed.propose(site)) == rule(agreed.propose(other)) == "answer"
    envelope = agreed.wrap(SCHEMA)
    sealed = decode(agreed.seal(site, envelope), type(envelope))
    forged = {
        "no proof": msgspec.structs.replace(sealed, proof=b""),
        "one bit": msgspec.structs.replace(sealed, proof=bytes([sealed.proof[0] ^ 1, *sealed.proof[1:]])),
        "cut short": msgspec.structs.replace(sealed, proof=sealed.proof[:16]),
        "another id": msgspec.structs.replace(sealed, id="question-2"),
        "another question": msgspec.structs.replace(
            sealed, body=encode(AskSchema(query="a = 1", target="y"))
        ),
        "another template": msgspec.structs.replace(sealed, template=b"x"),
        "that of another site": decode(agreed.seal(other, envelope), type(envelope)),
    }
    for name, message in forged.items():
        assert rule(site.answer(encode(message))) == "house", name
    # Whoever knows the terms, and has keys of his own, cannot prove anything either.
    stranger = Asker([site], identity=STRANGER)
    stranger.study = agreed.study
    stranger._keys = {"a": STRANGER.share_secret(site.identity.exchange_key, b"")}
    assert rule(site.answer(stranger.seal(site, envelope))) == "house"
    assert told(site)[0] == []
    assert rule(site.answer(encode(sealed))) == "answer"


def test_what_was_proven_with_an_echo_of_the_ledger_has_that_echo():
    """Who takes the echo out of a message would have an older ledger go unnoticed."""
    site = site_of()
    agreed = Asker([site])
    first = open_reply(agreed.ask(site, agreed.wrap(SCHEMA)))
    with_echo = msgspec.structs.replace(agreed.wrap(SCHEMA, name="question-2"), seen=first.ledger)
    sealed = decode(agreed.seal(site, with_echo), type(with_echo))
    assert rule(site.answer(encode(msgspec.structs.replace(sealed, seen=None)))) == "house"
    assert rule(site.answer(encode(sealed))) == "answer"


@pytest.mark.parametrize("policy", [cc.Policy(), pinning(Identity.create())])
def test_a_house_that_nobody_knows_is_refused(policy):
    site = site_of(policy=policy)
    introduce_house(site)
    reply = open_reply(site.answer(Asker([site], identity=STRANGER).write_proposal()))
    assert (reply.rule, STRANGER.fingerprint in reply.reason) == ("house", True)
    assert told(site) == ([], [])


def test_where_houses_are_pinned_one_of_the_same_process_is_a_stranger():
    site = site_of(policy=pinning(STRANGER))
    assert rule(Asker([site]).propose(site)) == "house"
    assert rule(Asker([site], method="tree", identity=STRANGER).propose(site)) == "answer"


def test_a_house_that_is_no_longer_pinned_gets_no_more_answers(tmp_path):
    path = tmp_path / "a.ledger"
    agreed = Asker([site_of()], method="tree", identity=STRANGER)
    for houses, expected in (((STRANGER,), "answer"), ((STRANGER, HOUSE), "answer"), ((HOUSE,), "house")):
        site = site_of(policy=pinning(*houses), ledger=path)
        reply = agreed.ask(site, agreed.wrap(SCHEMA, name=f"question-{len(houses)}-{houses[0].fingerprint}"))
        assert rule(reply) == expected
        site.ledger.close()


# Terms that cannot be


def test_terms_that_somebody_else_signed_are_nobodys():
    site = site_of()
    asker = Asker([site])
    introduce_house(site)
    for signature in (sign_terms(asker.terms, STRANGER), bytes(64), b"", HOUSE.sign(asker.terms)):
        reply = open_reply(site.answer(encode(asker.wrap(Propose(terms=asker.terms, signature=signature)))))
        assert (reply.rule, "not signed by the house" in reply.reason) == ("message", True)
    assert told(site) == ([], [])


@pytest.mark.parametrize(
    "change",
    [
        lambda terms: terms.replace(b'"models":1', b'"models": 1'),
        lambda terms: terms + b" ",
        lambda terms: terms.replace(b'"purpose":"a test"', b'"purpose":"a t\\u0065st"'),
        lambda terms: terms.replace(b'"models":1', b'"models":1,"models":1'),
        lambda terms: terms.replace(b'"purpose":"a test",', b"").replace(b'"ends"', b'"purpose":"a","ends"'),
    ],
)
def test_terms_are_written_in_one_way(change):
    site = site_of()
    asker = Asker([site])
    introduce_house(site)
    terms = change(asker.terms)
    assert terms != asker.terms
    reply = open_reply(
        site.answer(encode(asker.wrap(Propose(terms=terms, signature=sign_terms(terms, HOUSE)))))
    )
    assert (reply.rule, "canonical form" in reply.reason) == ("message", True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ends": (today() - timedelta(1)).isoformat()}, "ended"),
        ({"ends": (today() + timedelta(MOST_DAYS + 1)).isoformat()}, "message"),
        ({"ends": "tomorrow"}, "message"),
        ({"ends": "20270131"}, "message"),
        ({"price": "1e999999999"}, "message"),
        ({"price": "0"}, "message"),
        ({"price": "-1"}, "message"),
        ({"price": "2/4"}, "message"),
        ({"price": "9" * 10_001}, "message"),
        ({"price": "9" * 5000}, "message"),
        ({"models": 0}, "message"),
        ({"nonce": "short"}, "message"),
        ({"purpose": "x" * 2001}, "message"),
        ({"participants": ()}, "message"),
        ({"participants": ("b", "a")}, "message"),
        ({"participants": ("a", "a")}, "message"),
        ({"identities": (HOUSE.public,)}, "message"),
        ({"exchange_key": b""}, "mask"),
        ({"exchange_key": bytes(32)}, "mask"),
        ({"exchange_key": b"x" * 33}, "mask"),
        ({"house": b"x"}, "message"),
        ({"method": "trees"}, "message"),
    ],
)
def test_terms_that_cannot_be_are_refused_and_nothing_is_entered(changes, expected):
    site = site_of()
    assert rule(Asker([site], **changes).propose(site)) == expected
    assert told(site) == ([], [])


def test_a_site_that_is_not_asked_does_not_agree():
    site, other = site_of(), site_of(name="b")
    assert rule(Asker([other]).propose(site)) == "message"
    posing = Asker([other, *ABSENT], release="masked")
    assert rule(posing.propose(site)) == "message"
    assert told(site) == ([], [])


def test_a_masked_study_has_the_sites_own_key_and_the_colluders_it_asks_for():
    site, other = site_of(policy=cc.Policy(colluders=2)), site_of(policy=cc.Policy(colluders=2))
    more = [*ABSENT, site_of(name="b")]
    assert rule(Asker([other, *more], release="masked", colluders=2).propose(site)) == "mask"
    assert rule(Asker([site, *more], release="masked", colluders=1).propose(site)) == "mask"
    assert rule(Asker([site, *ABSENT], release="masked", colluders=2).propose(site)) == "mask"
    for keys in ([], [STRANGER] * 4, [HOUSE, STRANGER, site.identity], [site.identity] * 5):
        proposed = Asker(
            [site, *more], release="masked", colluders=2, identities=tuple(k.public for k in keys)
        )
        assert rule(proposed.propose(site)) in ("message", "mask")
    assert told(site) == ([], [])
    assert rule(Asker([site, *more], release="masked", colluders=2).propose(site)) == "answer"


# Outside of what was agreed


def tree_of(site, **parameters):
    return Asker([site], method="tree", parameters={"bins": {"age": [40.0, 60.0]}, **parameters})


def counting(schema, **changes):
    return crosstables(schema, {"age": [40.0, 60.0]}, **changes)


def replaced(question, **changes):
    return msgspec.structs.replace(question, **changes)


OUTSIDE = {
    "other patients": lambda q: replaced(q, query="a = 1"),
    "the same patients in other words": lambda q: replaced(q, query=" "),
    "another target": lambda q: replaced(q, target="b", classes=replaced(q.classes, name="b")),
    "a part that is not held out": lambda q: replaced(q, part=Part(percent=30, held=True)),
    "another cutoff": lambda q: replaced(
        q, attributes=tuple(replaced(a, stated_edges=(40.0, 61.0)) if a.numeric else a for a in q.attributes)
    ),
    "a cutoff of something else that is not on the public grid": lambda q: replaced(
        q, attributes=(Attribute("a", (1.0, 1.2345)), *q.attributes[1:])
    ),
}


@pytest.mark.parametrize("change", OUTSIDE.values(), ids=OUTSIDE)
def test_a_question_that_the_method_would_not_ask_is_not_agreed_to(change):
    site = site_of()
    agreed = tree_of(site)
    schema = agreed.put(site, replaced(SCHEMA, bins={"age": [40.0, 60.0]}))
    seen = decode(schema.body, SchemaSeen)
    question = counting(seen)
    before = told(site)[0]
    assert rule(agreed.put(site, change(question))) == "agreed"
    assert told(site)[0] == before
    assert rule(agreed.put(site, question)) == "answer"


@pytest.mark.parametrize(
    "question",
    [
        AskVotes(query="", target="y", positive=1, attributes=(), experts=[Voter([], [0])]),
        AskCounts(
            query="",
            target="y",
            classes=Attribute("y", (), (1,), missing=False),
            sample=Sample(positive=1, negatives=3),
        ),
        AskClassCounts(query="", target="y", sample=Sample(positive=1)),
        replaced(SCHEMA, bins={"age": [40.0]}),
        replaced(SCHEMA, bins={"age": [40.0, 60.0], "a": [1.0]}),
        replaced(SCHEMA, bins={"age": [40.0, 60.0]}, attributes=["a"]),
    ],
)
def test_nor_is_a_kind_that_it_does_not_ask_or_a_schema_of_something_else(question):
    site = site_of()
    reply = tree_of(site).put(site, question)
    assert (reply.rule, reply.reason.startswith("not agreed: ")) == ("agreed", True)
    assert told(site)[0] == []


def test_a_study_asks_about_its_attributes_only():
    site = site_of()
    agreed = tree_of(site, attributes=["a", "age"])
    schema = agreed.put(site, replaced(SCHEMA, bins={"age": [40.0, 60.0]}, attributes=["a", "age"]))
    seen = decode(schema.body, SchemaSeen)
    question = counting(seen)
    other = replaced(
        question, attributes=(replaced(question.attributes[0], name="b"), *question.attributes[1:])
    )
    reply = agreed.put(site, other)
    assert (reply.rule, "'b', which is not among the study's attributes" in reply.reason) == ("agreed", True)


@pytest.mark.parametrize("release", ["masked", "private"])
def test_a_study_under_masks_is_not_answered_in_plain(release):
    site = site_of()
    agreed = Asker([site, *ABSENT], release=release)
    assert rule(agreed.propose(site)) == "answer"
    plain = replaced(agreed.wrap(SCHEMA), release="exact")
    reply = open_reply(site.answer(agreed.seal(site, plain)))
    assert (reply.rule, "not as 'exact'" in reply.reason) == ("agreed", True)
    assert told(site)[0] == []


def test_what_is_gathered_is_gathered_once():
    site = site_of()
    agreed = Asker([site])
    assert rule(agreed.put(site, SCHEMA)) == "answer"
    assert rule(agreed.put(site, SCHEMA)) == "answer"  # the same once more tells nothing
    for question in (replaced(SCHEMA, bins={"age": [40.0]}), replaced(SCHEMA, attributes=["a"])):
        assert rule(agreed.put(site, question)) == "agreed"
    assert len(told(site)[0]) == 2


def test_a_study_costs_no_more_than_its_price_however_it_is_asked():
    sites = [cc.Site(name, state(ROWS, age="number"), cc.Policy()) for name in "abc"]
    agreed = set_up_masks(sites, "private", price="1/10")
    spent = []
    for number in range(8):
        question = AskCounts(
            totals=False,
            query="",
            target="y",
            attributes=(Attribute("age", (30.0 + number,)),),
            noise=Gaussian("20"),
        )
        covered = [agreed.put(site, question) for site in sites]
        spent.append(rule(covered[0]))
        if spent[-1] != "answer":
            continue
        shown = [decode(reply.body, Covered).masked.commitment for reply in covered]
        template = agreed.show(sites[0], shown)
        reply = agreed.put(sites[0], Open(kind_asked=question.kind, body=encode(question)), template)
        assert rule(reply) == "answer"
    assert spent[0] == "answer"
    assert spent[-1] == "agreed"
    assert Fraction(1, 20) < sites[0].ledger.spent() <= Fraction(1, 10)


def test_a_study_of_nothing_with_a_price_costs_nothing():
    sites = [cc.Site(name, state(ROWS, age="number")) for name in "abc"]
    agreed = set_up_masks(sites, "private", price=None)
    question = AskCounts(
        totals=False, query="", target="y", attributes=(Attribute("age", (30.0,)),), noise=Gaussian("20")
    )
    reply = agreed.put(sites[0], question)
    assert (reply.rule, sites[0].ledger.spent()) == ("agreed", 0)


# When it is over


def test_what_a_person_ends_is_ended_for_questions_that_come_after(tmp_path):
    """The steward's command is another process: the site looks at what it wrote."""
    site = site_of(ledger=tmp_path / "a.ledger")
    agreed = Asker([site])
    assert rule(agreed.ask(site, agreed.wrap(SCHEMA))) == "answer"
    with cc.Ledger(tmp_path / "a.ledger") as beside:
        beside.studies.decide(agreed.study, "ended", "the committee", "consent was withdrawn", site.identity)
    for message in (
        agreed.seal(site, agreed.wrap(SCHEMA, name="question-2")),
        agreed.seal(site, agreed.wrap(SCHEMA)),  # not even what was answered before
        agreed.write_proposal("proposal-2"),
    ):
        reply = open_reply(site.answer(message))
        assert (reply.rule, "consent was withdrawn" in reply.reason) == ("ended", True)


def test_a_study_ends_on_its_day(monkeypatch):
    site = site_of()
    agreed = Asker([site])
    assert rule(agreed.ask(site, agreed.wrap(SCHEMA))) == "answer"
    monkeypatch.setattr("concilium.protocol.studies.today", lambda: today() + timedelta(1))
    assert rule(site.answer(agreed.seal(site, agreed.wrap(SCHEMA, name="question-2")))) == "ended"
    assert rule(agreed.propose(site)) == "ended"


def test_a_question_that_is_being_answered_keeps_its_study(monkeypatch):
    """Another process may write the ledger at any moment, after which studies are looked up again."""
    site = site_of()
    agreed = Asker([site])
    assert rule(agreed.propose(site)) == "answer"
    studies = site._context.studies
    ask = studies.ask_in_plain
    monkeypatch.setattr(studies, "ask_in_plain", lambda envelope: (studies._running.clear(), ask(envelope)))
    assert rule(agreed.put(site, SCHEMA)) == "answer"
