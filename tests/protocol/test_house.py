"""Rounds, silence, refusals, restarts and resuming."""

from __future__ import annotations

import os
import stat
import threading

import msgspec
import pytest
from conversation import ROWS, schema_message, site_of

import concilium as cc
from agreed import deliver, draft
from concilium.errors import HouseError, StudyError
from concilium.privacy.identity import Identity, is_signed
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import (
    VERSION,
    Refusal,
    _write_signed,
    encode,
    find_signed,
    open_envelope,
    open_reply,
)
from concilium.protocol.run import together
from concilium.protocol.schema import AskSchema


class Hanging:
    """A site that answers some questions and then is silent until the test ends."""

    def __init__(self, site, answers):
        self.name, self._site, self._left = site.name, site, answers
        self.identity, self.introduce = site.identity, site.introduce
        self.released = threading.Event()

    def answer(self, message):
        if self._left <= 0:
            self.released.wait(20)
        self._left -= 1
        return self._site.answer(message)


class Crashing(Hanging):
    def answer(self, message):
        if self._left <= 0:
            raise ConnectionError("the wire is cut")
        self._left -= 1
        return self._site.answer(message)


class Counting:
    def __init__(self, site):
        self.name, self._site, self.asked = site.name, site, 0
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        self.asked += 1
        return self._site.answer(message)


def parts(count=3):
    return [site_of(ROWS[i::count], name=f"s{i}") for i in range(count)]


def tree(house, **options):
    return cc.DecisionTree("y", **options).fit(house)


@pytest.mark.parametrize("lose_after", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [Hanging, Crashing])
def test_a_lost_site_leaves_the_tree_of_the_rest(lose_after, kind):
    expected = tree(cc.House([*parts()[::2]]))  # and whatever a first tree has to compile
    sites = parts()
    lost = kind(sites[1], lose_after)
    found = tree(cc.House([sites[0], lost, sites[2]], timeout=2 if kind is Hanging else 30))
    if kind is Hanging:
        lost.released.set()
    assert found.body == expected.body
    assert [site.name for site in found.card.sites] == ["s0", "s2"]
    (dropout,) = found.card.dropouts
    assert dropout.site == "s1"
    assert ("no answer within" if kind is Hanging else "the wire is cut") in dropout.reason
    assert any("lost on the way: s1;" in warning for warning in found.card.warnings)


def test_questions_asked_again_after_a_loss_are_not_charged_again():
    sites = parts()
    tree(cc.House([sites[0], Crashing(sites[1], 3), sites[2]]))
    for site in (sites[0], sites[2]):
        questions = [entry.question for entry in site.ledger.entries() if entry.question]
        assert len(questions) == len(set(questions))


def test_stop_stops_with_the_name_of_the_site():
    sites = parts()
    with pytest.raises(HouseError, match=r"stopped in round 2: s1: .*the wire is cut"):
        tree(cc.House([sites[0], Crashing(sites[1], 2), sites[2]], on_loss="stop"))
    with pytest.raises(HouseError, match=r"stopped when the study was proposed: s1: .*the wire is cut"):
        tree(cc.House([sites[0], Crashing(sites[1], 0), sites[2]], on_loss="stop"))


def test_a_refusing_site_is_on_the_card_or_stops_the_study():
    shy = site_of(ROWS[1::3], name="s1", policy=cc.Policy(minimum_patients=1000))
    sites = parts()
    found = tree(cc.House([sites[0], shy, sites[2]]))
    (refusal,) = found.card.refusals
    assert (refusal.site, refusal.rule) == ("s1", "patients")
    with pytest.raises(HouseError, match="s1: too few patients"):
        tree(cc.House([*parts()[:1], shy], on_loss="stop"))


class Relay:
    """Between a house and a site, and not honest: it changes what the site replies after so many questions."""

    def __init__(self, site, change, after=0):
        self.name, self._site, self._change, self._left = site.name, site, change, after
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        self._left -= 1
        reply = open_reply(self._site.answer(message))
        if self._left >= 0:
            return encode(reply)
        return encode(self._change(reply, open_envelope(message)))


def refuse_for(reply, envelope, **changes):
    """A refusal in the name of the site that replied."""
    fields = {"rule": "attribute", "reason": "there is no such attribute", **changes}
    return Refusal(version=VERSION, id=envelope.id, site=reply.site, **fields)


def refuse_unsigned(reply, envelope):
    return refuse_for(reply, envelope)


def refuse_under_its_identity(reply, envelope):
    return refuse_for(reply, envelope, identity=reply.identity, signature=reply.signature)


def refuse_under_another(reply, envelope):
    other = Identity.create()
    return open_reply(_write_signed(refuse_for(reply, envelope, identity=other.public), other))


FORGERIES = [refuse_unsigned, refuse_under_its_identity, refuse_under_another]


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_refusal_in_a_sites_name_is_taken_for_silence(forge):
    """Else a relay could drop a hospital, or end the study as one that does not fit, in the hospital's name."""
    sites = parts()
    found = tree(cc.House([sites[0], Relay(sites[1], forge, after=1), sites[2]]))
    assert found.card.refusals == []
    (dropout,) = found.card.dropouts
    assert dropout.site == "s1"
    assert dropout.reason == "its refusal is not signed by the identity it had before"


def test_a_signed_refusal_is_one_and_no_word_of_it_can_be_changed():
    policy = cc.Policy(budget=cc.Budget("1"), modes=("masked",))
    refusal = open_reply(deliver(site_of(policy=policy), schema_message()))
    assert is_signed(find_signed(refusal), refusal.signature, refusal.identity)
    assert refusal.would_fit == "masked"
    for field in ("id", "site", "rule", "reason", "asked", "spent", "left", "would_fit"):
        changed = msgspec.structs.replace(refusal, **{field: "changed"})
        assert not is_signed(find_signed(changed), changed.signature, refusal.identity)


def test_the_first_identity_of_a_site_stays_whether_it_answers_or_refuses():
    shy = site_of(ROWS[1::3], name="s1", policy=cc.Policy(minimum_patients=1000))
    house = cc.House([parts()[0], shy])
    tree(house)
    assert house.identities["s1"] == shy.identity.public
    impostor = site_of(ROWS[1::3], name="s1")
    later = cc.House([parts()[0], impostor])
    later.identities["s1"] = shy.identity.public
    (dropout,) = tree(later).card.dropouts
    assert dropout.reason == "its answer is not signed by the identity it had before"


def test_no_identity_is_believed_before_its_signature_is():
    sites = parts()
    other = Identity.create().public
    forged = Relay(sites[1], lambda reply, envelope: msgspec.structs.replace(reply, identity=other))
    house = cc.House([sites[0], forged, sites[2]])
    assert [loss.site for loss in tree(house).card.dropouts] == ["s1"]
    assert "s1" not in house.identities


def test_an_unsigned_refusal_of_a_site_that_never_spoke_is_taken_for_silence_too():
    sites = parts()
    found = tree(cc.House([sites[0], Relay(sites[1], lambda r, e: refuse_for(r, e, rule="mode")), sites[2]]))
    assert found.card.refusals == []
    (dropout,) = found.card.dropouts
    assert (dropout.site, dropout.reason) == ("s1", "its refusal is not signed by the identity it names")


def test_when_nobody_answers_every_reason_is_named():
    with pytest.raises(HouseError, match=r"no site answered: s0, s1, s2 and 1 more: too few patients match"):
        tree(cc.House(parts(4)), query="age > 500")
    with pytest.raises(HouseError, match=r"no site answered: s0: .*the wire is cut"):
        tree(cc.House([Crashing(parts(1)[0], 0)]))


def test_a_study_that_does_not_fit_a_site_stops_naming_it():
    sites = parts()
    other = site_of([{"a": i % 2, "z": i % 3} for i in range(20)], name="other")
    with pytest.raises(HouseError, match=r"does not fit every site: other: .*'y'"):
        tree(cc.House([*sites, other]))
    with pytest.raises(HouseError, match=r"no attribute agee; did you mean 'age'\? \(column 5"):
        tree(cc.House(parts()), query="not agee > 3")


def test_two_sites_of_one_name_no_sites_and_bad_settings():
    with pytest.raises(HouseError, match="two sites are named 's0'"):
        cc.House([*parts(), *parts(1)])
    with pytest.raises(HouseError, match="at least one site"):
        cc.House([])
    with pytest.raises(StudyError, match="on_loss"):
        cc.House(parts(), on_loss="perhaps")
    with pytest.raises(StudyError, match="timeout"):
        cc.House(parts(), timeout=0)


class Lying:
    """A site that answers with something else."""

    name = "s1"

    def __init__(self, reply):
        self.reply = reply

    def answer(self, message):
        return self.reply(message)


@pytest.mark.parametrize(
    "reply", [lambda m: b"", lambda m: m, lambda m: deliver(site_of(name="elsewhere"), m)]
)
def test_what_is_not_an_answer_counts_as_silence(reply):
    found = tree(cc.House([parts()[0], Lying(reply)]))
    assert [loss.site for loss in found.card.dropouts] == ["s1"]


def test_a_hanging_site_does_not_silence_the_others():
    hanging = [Hanging(site, 0) for site in parts(4)[:3]]
    last = parts(4)[3]
    found = tree(cc.House([*hanging, last], timeout=3))
    for site in hanging:
        site.released.set()
    assert [site.name for site in found.card.sites] == ["s3"]


def test_rounds_and_bytes_are_counted_and_told():
    told = []
    found = tree(cc.House(parts(), on_round=told.append))
    assert found.card.rounds == len(told) == found.depth + 4  # a schema, two histograms, a level each
    assert found.card.bytes > 1000
    assert all(f"round {number}" in text for number, text in enumerate(told, 1))


def test_an_interrupted_run_resumes_from_the_last_finished_round(tmp_path):
    journal = tmp_path / "run.journal"
    whole = tree(cc.House(parts()))
    sites = parts()
    with pytest.raises(HouseError, match="stopped in round 3"):
        tree(cc.House([sites[0], Crashing(sites[1], 3), sites[2]], on_loss="stop", journal=journal))
    counting = [Counting(site) for site in sites]
    resumed = tree(cc.House(counting, on_loss="stop", journal=journal))
    assert resumed.body == whole.body
    assert resumed.card.rounds == whole.card.rounds
    # Two rounds were finished; in the third, only the lost site had still to answer. The study was proposed again.
    assert [site.asked for site in counting] == [
        whole.card.rounds - 2,
        whole.card.rounds - 1,
        whole.card.rounds - 2,
    ]
    for site in sites:
        questions = [entry.question for entry in site.ledger.entries() if entry.question]
        assert len(questions) == len(set(questions)) == whole.card.rounds


def test_a_journal_of_another_study_is_refused(tmp_path):
    journal = tmp_path / "run.journal"
    tree(cc.House(parts(), journal=journal))
    with pytest.raises(HouseError, match=r"run\.journal: this journal belongs to another study"):
        tree(cc.House(parts(), journal=journal), max_depth=1)
    bad = tmp_path / "bad.journal"
    bad.write_text("this is not a database, whatever it is called" * 100)
    with pytest.raises(HouseError, match=r"bad\.journal: cannot be used"):
        tree(cc.House(parts(), journal=bad))


def test_the_card_warns_when_many_numbers_left():
    found = tree(cc.House(parts()))
    (warned,) = [warning for warning in found.card.warnings if "exact number for every two" in warning]
    assert warned.startswith("3 sites, ")
    calm = tree(cc.House([site_of([{"a": i % 2, "y": i % 3 % 2} for i in range(500)])]))
    assert not [warning for warning in calm.card.warnings if "exact number for every two" in warning]


def test_a_rolled_back_ledger_is_refused_through_the_house():
    sites = parts(2)
    house = cc.House(sites)
    tree(house)
    fresh = cc.House(parts(2))
    fresh.heads = dict(house.heads)
    with pytest.raises(HouseError, match="a ledger cannot be trusted: s0, s1: this site's ledger is behind"):
        tree(fresh)


def test_reasons_are_told_together():
    assert together([("a", "x"), ("b", "y"), ("c", "x")]) == "a, c: x; b: y"


on_posix = pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")


class Peeking:
    """A site that looks at the files of the house while it is asked."""

    def __init__(self, site, folder):
        self.name, self._site, self._folder, self.modes = site.name, site, folder, {}
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        for file in self._folder.iterdir():
            self.modes.setdefault(file.name, set()).add(stat.S_IMODE(file.stat().st_mode))
        return self._site.answer(message)


@on_posix
@pytest.mark.parametrize("kept", [False, True])
def test_only_its_owner_can_read_what_a_house_keeps(tmp_path, kept):
    """Under exact that is each site's numbers. Files that were made otherwise are closed to others on opening."""
    names = ("run.journal", "house.json", "house.json.part")
    if kept:
        cc.House([site_of()], journal=tmp_path / names[0]).open(draft()).close()
        (tmp_path / "house.json").write_text("{}")
        (tmp_path / "house.json.part").write_text("half")
        for name in names:
            (tmp_path / name).chmod(0o644)
    before = os.umask(0)
    try:
        site = Peeking(site_of(), tmp_path)
        house = cc.House([site], journal=tmp_path / "run.journal", memory=tmp_path / "house.json")
        run = house.open(draft())
        site.modes.clear()
        run.gather(AskSchema(query="", target="y"))
        run.gather(AskCounts(totals=False, query="", target="y", attributes=(Attribute("age", (40.0,)),)))
    finally:
        os.umask(before)
    assert site.modes.pop("run.journal") == {0o600}
    assert site.modes.pop("run.journal-wal") == {0o600}
    assert site.modes.pop("run.journal-shm") == {0o600}
    assert stat.S_IMODE((tmp_path / "house.json").stat().st_mode) == 0o600
    run.close()


def test_a_journal_that_cannot_be_written_is_said_in_one_sentence(tmp_path):
    with pytest.raises(HouseError, match=r"run\.journal: cannot be used as a journal \(No such file"):
        cc.House(parts(), journal=tmp_path / "gone" / "run.journal").open(draft())
