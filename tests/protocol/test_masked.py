"""`release="masked"`: the same tree as exact, nothing but sums at the house, a definite end when a site is lost."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from conversation import ROWS, Listening, site_of, wrap
from hypothesis import given, settings

import concilium as cc
from agreed import deliver
from concilium.errors import HouseError, MaskError
from concilium.protocol.counts import AskCounts
from concilium.protocol.masking import Covered
from concilium.protocol.messages import Answer, Refusal, decode, encode, open_envelope, open_reply
from concilium.protocol.schema import AskSchema
from concilium.protocol.sums import Sum
from strategies import federations


def parts(count=4, **options):
    return [site_of(ROWS[i::count], name=f"s{i}", **options) for i in range(count)]


def tree(sites, release="masked", **options):
    house = options.pop("house", {})
    return cc.DecisionTree("y", release=release, **options).fit(cc.House(sites, **house))


@given(sites=federations(most_sites=5))
@settings(max_examples=40)
def test_a_masked_tree_equals_the_exact_one(sites):
    taking_part = {name: rows for name, rows in sites.items() if len(rows) >= 4}
    if len(taking_part) < 3:
        return

    def make():
        return [cc.Site(name, cc.Records.from_rows(rows)) for name, rows in sites.items()]

    exact, masked = tree(make(), "exact"), tree(make(), "masked")
    assert masked.body == exact.body
    assert [site.name for site in masked.card.sites] == [site.name for site in exact.card.sites]


def test_the_house_receives_no_plain_count_and_no_patient_number():
    sites = [Listening(site) for site in parts()]
    masked = tree(sites)
    for site in sites:
        for reply in site.answers("counts"):
            assert isinstance(reply, Answer)
            assert reply.charge is None
            vector = np.frombuffer(decode(reply.body, Covered).masked.vector, "<u8")
            assert vector.min() > 2**32
    assert all(site.patients is None for site in masked.card.sites)
    assert "not which patient" in masked.card.meaning
    assert any("nobody verified it" in warning for warning in masked.card.warnings)


def test_what_is_opened_is_charged_once_and_covering_is_free():
    sites = parts()
    masked = tree(sites)
    for site in sites:
        kinds = [entry.kind for entry in site.ledger.entries() if entry.question]
        assert set(kinds) == {"tree.schema", "mask.open"}
        assert site.ledger.verify() > 0
        opened = [entry for entry in site.ledger.entries() if entry.kind == "mask.open"]
        assert all(entry.mode == "masked" and entry.cost is None and entry.numbers > 0 for entry in opened)
    assert {release.kind for release in masked.card.releases} == {"tree.schema", "mask.open"}


def test_fewer_than_three_sites_are_refused():
    with pytest.raises(MaskError, match=r"2 participants; .* at least 3 are needed"):
        tree(parts(2))


@pytest.mark.parametrize("fail_at", [("counts", 1), ("mask.open", 1), ("mask.open", 2), ("mask.join", 1)])
def test_a_lost_site_stops_the_study_which_resumes_to_the_same_tree(tmp_path, fail_at):
    journal = tmp_path / "run.journal"
    sites = [Listening(site) for site in parts()]
    sites[1].fail_at = fail_at
    with pytest.raises(HouseError, match=r"stopped in round \d+: s1: .*gone; a masked study cannot go on"):
        tree(sites, house={"journal": journal})
    resumed = tree(sites, house={"journal": journal})
    assert resumed.body == tree(parts(), "exact").body
    for site in sites:
        questions = [entry.question for entry in site.site.ledger.entries() if entry.question]
        assert len(questions) == len(set(questions))
        assert len(site.answers("counts")) >= 1


def test_a_site_restarted_in_between_takes_its_seat_again(tmp_path):
    journal, ledger = tmp_path / "run.journal", tmp_path / "s1.ledger"
    sites = [Listening(site) for site in parts()]
    sites[1] = Listening(site_of(ROWS[1::4], name="s1", ledger=ledger), fail_at=("mask.open", 2))
    with pytest.raises(HouseError, match="s1"):
        tree(sites, house={"journal": journal})
    sites[1].site.ledger.close()
    sites[1] = Listening(site_of(ROWS[1::4], name="s1", ledger=ledger))
    resumed = tree(sites, house={"journal": journal})
    assert resumed.body == tree(parts(), "exact").body


def test_pinned_peers_stand_and_an_unpinned_one_stops_the_study():
    identities = {f"s{i}": cc.privacy.Identity.create() for i in range(4)}
    pins = {name: identity.fingerprint for name, identity in identities.items()}

    def make(pinned):
        return [
            site_of(ROWS[i::4], name=name, identity=identity, policy=cc.Policy(peers=pinned))
            for i, (name, identity) in enumerate(identities.items())
        ]

    fitted = tree(make(pins))
    assert not any("nobody verified it" in warning for warning in fitted.card.warnings)
    with pytest.raises(HouseError, match=r"s3 takes part in study .* but is not pinned at s0"):
        tree(make({name: key for name, key in pins.items() if name != "s3"}))
    with pytest.raises(HouseError, match="somebody poses as that hospital"):
        tree(make({**pins, "s3": pins["s2"]}))


def test_under_masks_a_site_tells_no_house_how_many_patients_it_has():
    site = site_of()
    reply = open_reply(
        deliver(site, encode(wrap("tree.schema", AskSchema(query="", target="y"), release="masked")))
    )
    assert isinstance(reply, Refusal)
    assert "does not tell how many patients" in reply.reason


def test_a_masked_question_never_leaves_as_plain_counts():
    site = Listening(site_of(ROWS[::4], name="s0"))
    tree([site, *parts()[1:]])
    for message, reply in zip(site.heard, site.said, strict=True):
        if open_envelope(message).kind == "counts":
            with pytest.raises(Exception, match="Sum"):
                decode(open_reply(reply).body, Sum)


def test_a_site_is_told_all_values_under_masks():
    """A house that told each site something else could have them count into cells of their own."""
    sites = [Listening(site) for site in parts()]
    tree(sites)
    envelopes = [open_envelope(m) for m in sites[0].heard]
    asked = [(one, decode(one.body, AskCounts)) for one in envelopes if one.kind == "counts"]
    envelope, question = next((one, question) for one, question in asked if question.classes is not None)
    narrow = [attribute.narrow(()) for attribute in question.attributes]
    for changed in (
        msgspec.structs.replace(question, classes=question.classes.narrow(())),
        msgspec.structs.replace(question, attributes=(*narrow[:1], *question.attributes[1:])),
        msgspec.structs.replace(question, attributes=tuple(narrow), classes=question.classes.narrow(())),
    ):
        other = msgspec.structs.replace(envelope, id="another-id", body=encode(changed), seen=None)
        reply = open_reply(deliver(sites[0].site, encode(other)))
        assert isinstance(reply, Refusal)
        assert "all sites are told the same values" in reply.reason
