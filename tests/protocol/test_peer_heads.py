"""Hospitals remember how far each other's ledgers have come, and no house has to be trusted with that."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from conversation import ROWS

import concilium as cc
from agreed import set_up_masks
from concilium.errors import HouseError
from concilium.privacy.identity import Identity
from concilium.privacy.study_keys import Roll, Witness
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.masking import Covered, Open
from concilium.protocol.messages import Answer, decode, encode, open_envelope
from concilium.protocol.questions import Gaussian
from side_door import state


def open_sites(folder):
    return [
        cc.Site(f"s{i}", cc.Records.from_rows(ROWS[i::3]), ledger=folder / f"s{i}.ledger") for i in range(3)
    ]


def fit(sites, **house):
    return cc.NaiveBayes("y", attributes=["a"], release="masked").fit(cc.House(sites, **house))


def put_back(folder, name, copy):
    """The ledger and all that lies beside it as they were: nothing on this machine tells."""
    for file in folder.glob(f"{name}.ledger*"):
        if not file.name.endswith(".identity"):
            file.unlink()
    for file in copy.iterdir():
        shutil.copy2(file, folder / file.name)


def keep(folder, name, copy):
    copy.mkdir()
    for file in folder.glob(f"{name}.ledger*"):
        if not file.name.endswith(".identity"):
            shutil.copy2(file, copy / file.name)


def close(sites):
    for site in sites:
        site.ledger.close()


def test_a_ledger_put_back_with_its_head_file_is_noticed_by_its_peers(tmp_path):
    sites = open_sites(tmp_path)
    fit(sites)
    close(sites)
    keep(tmp_path, "s1", tmp_path / "copy")
    sites = open_sites(tmp_path)
    fit(sites)
    close(sites)
    put_back(tmp_path, "s1", tmp_path / "copy")
    sites = open_sites(tmp_path)
    with pytest.raises(
        HouseError, match=r"s1: s0 remembers entry \d+ of this hospital's ledger, which does not"
    ):
        fit(sites, identity=Identity.create())  # a house that has never seen any of them
    close(sites)


def test_studies_one_after_the_other_and_at_once_go_on(tmp_path):
    sites = open_sites(tmp_path)
    for _ in range(3):
        fit(sites)
    first, second = (cc.House(sites).open(cc.NaiveBayes("y", release="masked").draft()) for _ in range(2))
    # The keys of the first are met after those of the second, and say less of the ledgers.
    assert first.masked_study is not None
    assert second.masked_study is not None
    assert fit(sites).card.sites
    close(sites)


def test_a_house_cannot_forge_what_a_hospital_remembers(tmp_path):
    class Meddling:
        """A relay that has a hospital's peers remember another ledger of it."""

        def __init__(self, site):
            self._site, self.name, self.identity, self.introduce = (
                site,
                site.name,
                site.identity,
                site.introduce,
            )

        def answer(self, message):
            envelope = open_envelope(message)
            if envelope.kind == "mask.meet":
                roll = decode(envelope.template, Roll)
                lie = Witness({sites[2].identity.fingerprint: "1000000 " + "f" * 64})
                keys = (roll.keys[0], msgspec.structs.replace(roll.keys[1], witness=lie), *roll.keys[2:])
                template = encode(msgspec.structs.replace(roll, keys=keys))
                message = encode(msgspec.structs.replace(envelope, template=template))
            return self._site.answer(message)

    sites = open_sites(tmp_path)
    with pytest.raises(HouseError, match="s1"):
        fit([sites[0], Meddling(sites[1]), sites[2]])
    assert not sites[1].ledger.peer_heads()
    close(sites)


def ask_for_ages(number):
    edges = Attribute("age", (20.0 + number,))
    return AskCounts(totals=False, query="", target="y", attributes=(edges,), noise=Gaussian("100"))


def cover_all(asker, sites, question):
    return [decode(asker.put(site, question).body, Covered).masked.commitment for site in sites]


def open_all(asker, sites, question, commitments):
    opening = Open(kind_asked=question.kind, body=encode(question))
    return [asker.put(site, opening, asker.show(site, commitments)) for site in sites]


@pytest.mark.parametrize("others", [["s0", "s1", "s2"], ["s0", "s3", "s4"]])
def test_a_sum_may_wait_while_other_studies_go_on(others):
    """With the same hospitals, or with others, and more rounds of them than a site shows of its ledger."""
    policy = cc.Policy(budget=cc.Budget("unlimited"))
    sites = {f"s{i}": cc.Site(f"s{i}", state(ROWS, age="number"), policy) for i in range(5)}
    first = [sites[name] for name in ("s0", "s1", "s2")]
    peers = {site.name: site.identity.fingerprint for site in sites.values()}
    slow = set_up_masks(first, "private", nonce="the slow one")
    quick = set_up_masks([sites[name] for name in others], "private", nonce="the quick one")
    for site in sites.values():
        site.introduce(peers, slow.identity.fingerprint)

    def go_on(rounds):
        for number in rounds:
            partners = [sites[name] for name in others]
            question = ask_for_ages(number)
            replies = open_all(quick, partners, question, cover_all(quick, partners, question))
            assert all(isinstance(reply, Answer) for reply in replies)

    for number in range(3):
        question = ask_for_ages(100 + number)
        commitments = cover_all(slow, first, question)
        go_on(range(number * 40, number * 40 + 20))
        replies = open_all(slow, first, question, commitments)
        assert [getattr(reply, "reason", "") for reply in replies] == [""] * 3
        go_on(range(number * 40 + 20, number * 40 + 40))
