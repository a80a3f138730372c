"""Hospitals remember how far each other's ledgers have come, and no house has to be trusted with that."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from conversation import ROWS

import concilium as cc
from concilium.errors import HouseError
from concilium.federation.messages import decode, encode, open_envelope
from concilium.privacy.identity import Identity
from concilium.privacy.study_keys import Roll, Witness


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
