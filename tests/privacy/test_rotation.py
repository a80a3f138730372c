"""A rotated identity: the old key is worth nothing any more, and what must last does."""

from __future__ import annotations

import hashlib
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import concilium as cc
from concilium.cli.main import main
from concilium.consult.consent import decide_on_study
from concilium.errors import HouseError, KitError, LedgerError, MaskError, PolicyError, StudyPending
from concilium.ledger.rotation import rotate_identity
from concilium.ledger.study_book import REFUSED
from concilium.policy.policy import Agree
from concilium.privacy.identity import Identity
from concilium.protocol.house import KnownSite

GRAPH = "graph E { node x + substitute x.ward =~ /hash()/; }"
AGREES = Agree(releases=("exact",), methods=("tree",))


def make_rows(seed: int, count: int = 60) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {"nr": f"{seed}-{n}", "age": draw.randrange(20, 90), "ward": draw.choice("abc"), "death": n % 2}
        for n in range(count)
    ]


def open_site(folder: Path, name: str = "north", policy: cc.Policy | None = None, seed: int = 1) -> cc.Site:
    table = cc.Records.from_rows(make_rows(seed))
    patients = cc.Patients(table=table, by="nr")
    return cc.Site(name, patients, policy=policy or cc.Policy(), ledger=folder / f"{name}.ledger")


def rotate(folder: Path, name: str = "north") -> Any:
    file = folder / f"{name}.ledger.identity"
    return rotate_identity(file, folder / f"{name}.ledger", "a laptop was stolen")


def learn(*sites: cc.Site, **options: Any) -> Any:
    house = cc.House(list(sites), **options)
    return cc.DecisionTree("death", bins={"age": [40, 60]}, max_depth=2, growth="id3").fit(house)


def test_a_rotated_site_keeps_its_division_its_secrets_and_its_ledger(tmp_path: Path) -> None:
    site = open_site(tmp_path, policy=cc.Policy(constraints=GRAPH))
    model = learn(site)
    assert "ward" in model.attributes_
    division, spent = site.division_key, [entry.hash for entry in site.ledger.entries()]
    remembered = site._context.studies._populations.count_known()
    old = site.identity
    site.ledger.close()
    made = rotate(tmp_path)
    again = open_site(tmp_path, policy=cc.Policy(constraints=GRAPH))
    assert (made.old, made.new) == (old.fingerprint, again.identity.fingerprint)
    assert made.old != made.new
    assert again.division_key == division
    assert learn(again).body == model.body  # its wards are hashed as before
    assert again._context.studies._populations.count_known() == remembered
    assert again.identity.exchange_key != old.exchange_key
    entries = again.ledger.entries()
    assert [entry.hash for entry in entries][: len(spent)] == spent
    (entered,) = [entry for entry in entries if entry.kind == "identity"]
    assert made.old in entered.note
    assert made.new in entered.note
    assert "a laptop was stolen" in entered.note
    again.ledger.verify()
    again.ledger.close()


def test_rotations_follow_each_other_and_old_files_are_kept_for_their_owner(tmp_path: Path) -> None:
    site = open_site(tmp_path)
    division, seen = site.division_key, [site.identity.fingerprint]
    site.ledger.close()
    for _ in range(3):
        made = rotate(tmp_path)
        assert stat.S_IMODE(made.aside.stat().st_mode) == 0o600
        assert Identity.load(made.aside).fingerprint == made.old == seen[-1]
        seen.append(made.new)
    file = tmp_path / "north.ledger.identity"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(set(seen)) == 4
    site = open_site(tmp_path)
    assert site.division_key == division
    site.ledger.close()
    # Whoever puts an old file back has no site: the ledger knows the newest.
    file.write_bytes(made.aside.read_bytes())
    with pytest.raises(LedgerError, match="keep its identity file beside it"):
        open_site(tmp_path)


KILLED = """
import os, sys
from pathlib import Path
from concilium.ledger import rotation
at = int(sys.argv[2])
folder = Path(sys.argv[1])
calls = 0
def count(name, real):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == at:
            os._exit(9)
        return real(*arguments, **options)
    return call
rotation.Ledger.replace_identity = count("enter", rotation.Ledger.replace_identity)
rotation.Path.rename = count("rename", rotation.Path.rename)
rotation.Path.replace = count("replace", rotation.Path.replace)
rotation.os.link = count("link", rotation.os.link)
rotation.sync_folder = count("sync", rotation.sync_folder)
rotation.rotate_identity(folder / "north.ledger.identity", folder / "north.ledger", "killed")
"""


def test_a_rotation_that_is_killed_is_ended_by_the_same_command(tmp_path: Path) -> None:
    kills = 0
    for moment in range(1, 20):
        folder = tmp_path / str(moment)
        folder.mkdir()
        site = open_site(folder)
        division, first = site.division_key, site.identity.fingerprint
        site.ledger.close()
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(moment)], check=False)
        if done.returncode == 0:
            break
        assert done.returncode == 9
        kills += 1
        rotate(folder)
        site = open_site(folder)
        assert site.division_key == division
        assert site.identity.fingerprint != first
        entered = [entry for entry in site.ledger.entries() if entry.kind == "identity"]
        assert len(entered) in (1, 2)  # two where it was killed when all was done
        site.ledger.close()
    assert kills >= 5


def test_what_people_decided_stays_decided(tmp_path: Path) -> None:
    """A refusal that no longer counted would leave the study to the policy, which may agree to it."""
    house = Identity.create()
    asked = cc.Policy(houses={"house": house.fingerprint}, agree=Agree(methods=()))
    site = open_site(tmp_path, policy=asked)
    with pytest.raises(StudyPending):
        learn(site, identity=house, journal=tmp_path / "journal")
    (record,) = site.ledger.studies.list()
    decide_on_study(site.ledger, record.id, REFUSED, "Dr. Meyer", "no", site.identity)
    site.ledger.close()
    rotate(tmp_path)
    agreeing = cc.Policy(houses={"house": house.fingerprint}, agree=AGREES)
    site = open_site(tmp_path, policy=agreeing)
    (record,) = site.ledger.studies.list()
    assert record.status == REFUSED
    assert record.is_sealed(site.identity.public)
    with pytest.raises(HouseError, match="refused the study: no"):
        learn(site, identity=house, journal=tmp_path / "journal")
    site.ledger.close()


def test_a_site_that_runs_on_with_its_old_key_answers_nothing(tmp_path: Path) -> None:
    site = open_site(tmp_path)
    learn(site)
    rotate(tmp_path)
    with pytest.raises(HouseError, match="ledger does not allow"):
        cc.DecisionTree("death", bins={"age": [30]}, max_depth=1).fit(cc.House([site]))
    site.ledger.close()


def test_the_ledger_of_another_hospital_is_not_rotated(tmp_path: Path) -> None:
    for name in ("north", "south"):
        open_site(tmp_path, name).ledger.close()
    with pytest.raises(LedgerError, match="name the ledger that belongs to it"):
        rotate_identity(tmp_path / "north.ledger.identity", tmp_path / "south.ledger", "a slip")
    with pytest.raises(LedgerError, match="needs a reason"):
        rotate_identity(tmp_path / "north.ledger.identity", tmp_path / "north.ledger", " ")
    for name in ("north", "south"):
        open_site(tmp_path, name).ledger.close()


def test_a_revoked_house_is_refused_even_where_it_is_pinned_or_of_this_process(tmp_path: Path) -> None:
    house = Identity.create()
    for number, houses in enumerate(({}, {"house": house.fingerprint})):
        (tmp_path / str(number)).mkdir()
        policy = cc.Policy(houses=houses, revoked={"until May": house.fingerprint}, agree=AGREES)
        site = open_site(tmp_path / str(number), policy=policy)
        with pytest.raises(HouseError, match="is revoked at this hospital"):
            learn(site, identity=house)
        assert not [entry for entry in site.ledger.entries() if entry.question]
        learn(open_site(tmp_path / str(number), "other", seed=2), identity=house)  # who does not revoke it
        site.ledger.close()


def test_a_house_revoked_since_gets_no_further_answer_of_a_study_that_was_agreed_to(tmp_path: Path) -> None:
    house = Identity.create()
    agree = AGREES
    site = open_site(tmp_path, policy=cc.Policy(agree=agree))
    learn(site, identity=house, journal=tmp_path / "journal")
    answered = len(site.ledger.entries())
    site.ledger.close()
    site = open_site(tmp_path, policy=cc.Policy(agree=agree, revoked={"it": house.fingerprint}))
    (tmp_path / "journal").rename(tmp_path / "kept")
    with pytest.raises(HouseError, match="revoked"):
        learn(site, identity=house, journal=tmp_path / "journal")
    assert len(site.ledger.entries()) == answered
    site.ledger.close()


def test_a_revoked_hospital_takes_no_part_under_masks_even_where_it_is_pinned(tmp_path: Path) -> None:
    names = ("coast", "north", "south")
    keys = {name: Identity.create() for name in names}
    pins = {name: key.fingerprint for name, key in keys.items()}

    def fit(revoked: dict[str, str]) -> Any:
        sites = [
            cc.Site(
                name,
                cc.Records.from_rows(make_rows(number)),
                policy=cc.Policy(peers=pins, revoked=revoked if name == "south" else {}),
                identity=keys[name],
            )
            for number, name in enumerate(names)
        ]
        return cc.DecisionTree(
            "death", bins={"age": [40]}, max_depth=1, release="masked", attributes=["age"]
        ).fit(cc.House(sites))

    fit({"somebody": Identity.create().fingerprint})
    with pytest.raises(HouseError, match=r"north takes part under .*, which is revoked at south"):
        fit({"north until May": pins["north"]})


def test_a_site_whose_own_key_is_revoked_does_not_open(tmp_path: Path) -> None:
    site = open_site(tmp_path)
    own = site.identity.fingerprint
    site.ledger.close()
    with pytest.raises(PolicyError, match="its own identity: rotate it"):
        open_site(tmp_path, policy=cc.Policy(revoked={"old": own}))


def test_a_house_believes_no_revoked_identity_also_of_a_site_it_never_saw(tmp_path: Path) -> None:
    site, other = open_site(tmp_path), open_site(tmp_path, "south", seed=2)
    house = cc.House([site, other], revoked=[site.identity.fingerprint.lower()])
    model = cc.DecisionTree("death", bins={"age": [40, 60]}, max_depth=2, growth="id3").fit(house)
    assert [lost.site for lost in model.card.dropouts] == ["north"]
    assert "is revoked at the house" in model.card.dropouts[0].reason
    for one in (site, other):
        one.ledger.close()


@pytest.mark.parametrize("house", [False, True])
def test_the_command_says_what_others_must_do(tmp_path: Path, capsys: Any, house: bool) -> None:
    file = tmp_path / ("house.identity" if house else "north.ledger.identity")
    if house:
        Identity.at(file)
    else:
        open_site(tmp_path).ledger.close()
    old = Identity.load(file).fingerprint
    arguments = ["identity", "rotate", str(file), "--reason", "yearly"]
    if house:
        with pytest.raises(SystemExit):
            main(arguments)
        assert "say whose identity it is" in capsys.readouterr().err
        assert Identity.load(file).fingerprint == old
    with pytest.raises(SystemExit) as ended:
        main([*arguments, *(["--house"] if house else [])])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert f"old: {old}" in said
    assert f"new: {Identity.load(file).fingerprint}" in said
    assert "[revoked]" in said
    assert ("[houses]" if house else "[peers]") in said


def test_a_house_that_pins_the_new_identity_goes_on_and_still_knows_how_far_the_ledger_was(
    tmp_path: Path,
) -> None:
    pytest.importorskip("nvflare")
    from concilium.transports.flare.own_files import FILE, HouseFile

    kit = tmp_path / "kit"
    (kit / FILE).parent.mkdir(parents=True)
    (kit / FILE).write_text("[house]\n")
    own = HouseFile.read(kit)
    site = open_site(tmp_path)
    learn(site, memory=own.memory)
    head = site.ledger.head()
    site.ledger.close()
    made = rotate(tmp_path)
    site = open_site(tmp_path)
    with pytest.raises(HouseError, match="not signed by the identity it had before"):
        learn(site, memory=own.memory)
    (kit / FILE).write_text(f'[house]\n[sites]\nnorth = "{made.new}"\n[revoked]\nold = "{made.old}"\n')
    own = HouseFile.read(kit)
    assert own.revoked == (made.old,)
    learn(site, memory=own.memory, revoked=own.revoked)
    site.ledger.close()
    known = msgspec.json.decode(own.memory.read_bytes(), type=dict[str, KnownSite])["north"]
    assert known.identity == site.identity.public.hex()
    assert known.head.count > head.count
    assert stat.S_IMODE(own.memory.stat().st_mode) == 0o600
    (kit / FILE).write_text(f'[sites]\nnorth = "{made.old}"\n[revoked]\nold = "{made.old}"\n')
    with pytest.raises(KitError, match=r"\[sites\] north: .* stands under \[revoked\]"):
        HouseFile.read(kit)
    (kit / FILE).write_text('[sites]\nnorth = "ABCD-EFGH-0000"\n')
    with pytest.raises(KitError, match=r"'0'.*have it read out again"):
        HouseFile.read(kit)


def test_the_secrets_of_an_identity_that_was_never_rotated_are_what_they_were() -> None:
    identity = Identity.create()
    assert identity.derive(b"for this") == hashlib.sha256(identity.sign(b"for this")).digest()


def test_a_file_of_three_keys_is_none(tmp_path: Path) -> None:
    Identity.create().rotate().save(tmp_path / "a")
    Identity.create().save(tmp_path / "b")
    both = tmp_path / "both"
    both.touch(0o600)
    both.write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    with pytest.raises(MaskError, match="key"):
        Identity.load(both)
