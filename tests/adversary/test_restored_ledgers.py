"""Ledgers that are put back to an older copy, head, log and identity with them, at any point of private studies.

The house is hostile: it echoes no head (`seen`), or an old one, replays keys and covered answers, and has sums opened
late and in any order. One hospital is put back again and again; the others are not. Whatever they do, the sums that the
house reads never cost that hospital more than its budget: its neighbours are shown its ledger with every answer, and
open no sum with one that does not go on from what they remember.
"""

from __future__ import annotations

import random
import shutil
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

import concilium as cc
from agreed import Asker
from concilium.errors import BudgetError, LedgerError, MaskError
from concilium.ledger import chain as ledger_chain
from concilium.ledger.budgets import Allowance
from concilium.ledger.chain import Head
from concilium.ledger.ledger import Ledger
from concilium.privacy.masks import MaskedRound, MaskedVector, Seed
from concilium.privacy.study_keys import StudyKey, call_roll
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.masking import Covered, Join, Joined, Meet, Open, Opened
from concilium.protocol.messages import Answer, Refusal, decode, encode, open_reply
from concilium.protocol.questions import Gaussian
from concilium.protocol.site_context import SiteContext
from side_door import state

NAMES = ("s0", "s1", "s2")
VICTIM = "s1"
ROWS = [{"age": 30 + place, "y": place % 2} for place in range(12)]
BUDGET = Fraction(3, 400)  # of one question, and half of another
STUDIES = 5


def ask(number: int) -> AskCounts:
    """A question that costs 1/200, and a trifle."""
    return AskCounts(
        totals=False,
        query="",
        target="y",
        attributes=(Attribute("age", (40.0 + number,)),),
        noise=Gaussian("100"),
    )


class Hospitals:
    """Three hospitals with their files, of which one is put back at times."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.copies = folder, []
        self.sites = {name: self.open(name) for name in NAMES}
        self.introduce()

    def open(self, name: str) -> cc.Site:
        policy = cc.Policy(budget=cc.Budget(str(BUDGET if name == VICTIM else 1)))
        return cc.Site(name, state(ROWS, age="number"), policy, ledger=self.folder / f"{name}.ledger")

    def introduce(self) -> None:
        peers = {name: site.identity.fingerprint for name, site in self.sites.items()}
        for site in self.sites.values():
            site.introduce(peers, "")

    def files(self) -> list[Path]:
        return list(self.folder.glob(f"{VICTIM}.ledger*"))

    def copy(self) -> None:
        """The hospital's files as they are now, its log (-wal) among them."""
        target = self.folder / f"copy {len(self.copies)}"
        target.mkdir()
        for file in self.files():
            if file.is_file():
                shutil.copy2(file, target / file.name)
        self.copies.append(target)

    def restore(self, copy: Path) -> None:
        self.sites[VICTIM].ledger.close()
        for file in self.files():
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        for file in copy.iterdir():
            shutil.copy2(file, self.folder / file.name)
        self.sites[VICTIM] = self.open(VICTIM)
        self.introduce()


class HostileHouse:
    """Keeps all it is ever told, and uses what suits it: `dice` decide whether it takes old things or asks anew."""

    def __init__(self, hospitals: Hospitals, dice: random.Random, seen: str) -> None:
        self.hospitals, self.dice, self.seen = hospitals, dice, seen
        some = list(hospitals.sites.values())
        self.studies = [Asker(some, release="private", nonce=f"study number {k}") for k in range(STUDIES)]
        self.keys: dict[tuple[int, str], StudyKey] = {}
        self.covered: dict[tuple[int, int, str], list[Covered]] = {}
        self.heads: list[Head] = []
        self.refusals: list[Refusal] = []
        self.opened: dict[tuple[int, int], dict[str, Seed]] = {}
        self.sums: set[bytes] = set()

    def put(self, study: int, name: str, question, template=b"") -> Answer | None:
        asker, site = self.studies[study], self.hospitals.sites[name]
        envelope = asker.wrap(question, name=f"question-{self.dice.getrandbits(60)}", template=template)
        if name == VICTIM and self.heads and self.seen != "omitted":
            # An old head that the ledger may hold; the newest would only serve the hospital.
            old = self.heads[0] if self.seen == "the first" else self.dice.choice(self.heads)
            envelope = msgspec.structs.replace(envelope, seen=old)
        reply = open_reply(asker.ask(site, envelope))
        if isinstance(reply, Refusal) and reply.rule == "proposed":
            asker.propose(site)
            reply = open_reply(asker.ask(site, envelope))
        if isinstance(reply, Refusal):
            self.refusals.append(reply)
            return None
        if name == VICTIM:
            self.heads.append(reply.ledger)
        return reply

    def join(self, study: int, name: str) -> None:
        reply = self.put(study, name, Join())
        if reply is not None:
            self.keys[study, name] = decode(reply.body, Joined).key

    def meet(self, study: int, name: str) -> None:
        keys = [self.keys[study, one] for one in NAMES if (study, one) in self.keys]
        if len(keys) == len(NAMES):
            self.put(study, name, Meet(), encode(call_roll(self.studies[study].manifest, keys)[name]))

    def cover(self, study: int, number: int, name: str) -> None:
        reply = self.put(study, name, ask(number))
        if reply is not None:
            self.covered.setdefault((study, number, name), []).append(decode(reply.body, Covered))

    def open(self, study: int, number: int, names=NAMES) -> None:
        """Have a sum opened from any covered answers that go together, and read it."""
        question, manifest = ask(number), self.studies[study].manifest
        opening = Open(kind_asked=question.kind, body=encode(question))
        for name in names:
            options = [self.covered.get((study, number, one), []) for one in NAMES]
            if not all(options):
                return
            vectors = [self.dice.choice(some[-2:]).masked for some in options]
            shown = MaskedRound(manifest, b"", b"").show([one.commitment for one in vectors])[name]
            reply = self.put(study, name, opening, encode(shown))
            if reply is not None:
                self.opened.setdefault((study, number), {})[name] = decode(reply.body, Opened).seed
        self.read(study, number)

    def read(self, study: int, number: int) -> None:
        seeds = self.opened.get((study, number), {})
        if len(seeds) < len(NAMES):
            return
        keys = [self.keys[study, name] for name in NAMES]
        manifest, question = self.studies[study].manifest, ask(number)
        content = Open(kind_asked=question.kind, body=encode(question)).content
        rounds = MaskedRound(manifest, call_roll(manifest, keys)[NAMES[0]].root, content)
        for answer in self.covered[study, number, VICTIM]:
            others = [self.covered[study, number, name][-1].masked for name in NAMES if name != VICTIM]
            try:
                rounds.unmask([answer.masked, *others], seeds.values())
            except MaskError:
                continue
            self.sums.add(answer.masked.vector)


def act(house: HostileHouse, hospitals: Hospitals, dice: random.Random) -> None:
    study, number, name = dice.randrange(STUDIES), dice.randrange(2), dice.choice(NAMES)
    match dice.choice(["round", "round", "cover", "join", "open", "restore"]):
        case "round":
            for one in NAMES:
                if (study, one) not in house.keys or dice.random() < 0.3:
                    house.join(study, one)
            for one in NAMES:
                house.meet(study, one)
                house.cover(study, number, one)
            house.open(study, number, dice.sample(NAMES, 3 if dice.random() < 0.8 else 2))
        case "cover":
            house.cover(study, number, name)
        case "join":
            house.join(study, name)
        case "open":
            house.open(study, number, dice.sample(NAMES, 3))
        case "restore":
            hospitals.restore(dice.choice(hospitals.copies))
    hospitals.copy()


@pytest.mark.parametrize("seen", ["omitted", "the first", "any"])
@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_restores_and_sums_goes_beyond_the_budget(tmp_path, seen, seed):
    dice = random.Random(f"{seed} {seen}")
    hospitals = Hospitals(tmp_path)
    house = HostileHouse(hospitals, dice, seen)
    hospitals.copy()
    for _ in range(16):
        act(house, hospitals, dice)
    assert len(house.sums) * Fraction(1, 200) <= BUDGET


# One study after the other, each of one sum, and the hospital put back in between.


@pytest.mark.parametrize("prepared", ["as it comes", "joined", "covered", "opened late"])
def test_a_nightly_restore_is_noticed_by_the_neighbours(tmp_path, prepared):
    """To whatever point: before it joined, before it was charged, or after it covered."""
    hospitals = Hospitals(tmp_path)
    house = HostileHouse(hospitals, random.Random(0), "omitted")
    if prepared != "as it comes":  # all keys are made, and shown, before there is anything to remember
        for study in range(STUDIES):
            for step in (house.join, house.meet):
                for name in NAMES:
                    step(study, name)
    if prepared in ("covered", "opened late"):
        for study in range(STUDIES):
            for name in ("s0", "s2"):
                house.cover(study, 0, name)
    hospitals.copy()
    for study in range(STUDIES):
        for step in (house.join, house.meet):
            for name in NAMES if prepared == "as it comes" else (VICTIM,):
                step(study, name)
        for name in NAMES:
            house.cover(study, 0, name)
        house.open(study, 0, (VICTIM,) if prepared == "opened late" else NAMES)
        hospitals.restore(hospitals.copies[0])
    for study in range(STUDIES):
        house.open(study, 0, ("s0", "s2"))
    assert 1 <= len(house.sums) <= BUDGET / Fraction(1, 200)
    assert any("remember" in refusal.reason for refusal in house.refusals)


def test_hospitals_go_on_once_people_have_said_so(tmp_path):
    hospitals = Hospitals(tmp_path)
    house = HostileHouse(hospitals, random.Random(0), "omitted")
    hospitals.copy()

    def add_up(study: int) -> int:
        for step in (house.join, house.meet, lambda study, name: house.cover(study, 0, name)):
            for name in NAMES:
                step(study, name)
        house.open(study, 0)
        return len(house.sums)

    assert add_up(0) == 1
    hospitals.restore(hospitals.copies[0])
    assert add_up(1) == 1
    for name in ("s0", "s2"):
        own = hospitals.sites[VICTIM].identity.fingerprint
        hospitals.sites[name].ledger.forget_peer(own, "the disk of s1 failed")
    assert add_up(2) == 2


# Without neighbours


def spend(ledger: Ledger, question: str, cost: str = "1/100") -> bytes:
    return ledger.charge(
        question, "digest", study="s", kind="k", mode="private", cost=cost, seal=lambda head: b"answer"
    )


def test_a_head_on_another_disk_notices_what_nobody_else_can(tmp_path):
    """All that lies beside a ledger is put back: the link to the head is, and the head is not."""
    place, elsewhere = tmp_path / "site", tmp_path / "other disk"
    place.mkdir()
    elsewhere.mkdir()
    (place / "a.ledger.head").symlink_to(elsewhere / "a.head")

    with Ledger(place / "a.ledger", budget=1) as ledger:
        spend(ledger, "one")
    shutil.copytree(place, tmp_path / "copy", symlinks=True)
    with Ledger(place / "a.ledger") as ledger:
        spend(ledger, "two")
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "copy", place, symlinks=True)
    with pytest.raises(LedgerError, match="a restored backup"):
        Ledger(place / "a.ledger")
    Ledger.accept_restored(place / "a.ledger", "the disk failed")
    assert (place / "a.ledger.head").is_symlink()
    with Ledger(place / "a.ledger") as ledger:
        spend(ledger, "three")
    (elsewhere / "a.head").unlink()
    with pytest.raises(LedgerError, match="is missing"):
        Ledger(place / "a.ledger")


# Copies, processes and clocks


@pytest.mark.parametrize("entries", [1, 3, 7])
def test_a_copy_without_its_log_is_whole_or_refused(tmp_path, entries):
    """A file that is copied while it is in use lacks what its log (-wal) holds; the head beside it knows."""
    with Ledger(tmp_path / "a.ledger") as ledger:
        for number in range(entries):
            spend(ledger, f"question {number}")
        for number, endings in enumerate([("", ".head"), ("", ".head", "-shm"), ("", "-wal", ".head")]):
            folder = tmp_path / str(number)
            folder.mkdir()
            for ending in endings:
                shutil.copy2(tmp_path / f"a.ledger{ending}", folder / f"a.ledger{ending}")
            if "-wal" in endings:
                with Ledger(folder / "a.ledger") as copy:
                    assert copy.spent() == ledger.spent()
            else:
                with pytest.raises(LedgerError, match=r"not as it was left|is damaged|not a ledger"):
                    Ledger(folder / "a.ledger")


def run_twice(folder: Path) -> tuple[HostileHouse, cc.Site, cc.Site]:
    """A hospital in two processes, both of which joined the same study."""
    hospitals = Hospitals(folder)
    first = hospitals.sites[VICTIM]
    second = hospitals.open(VICTIM)
    house = HostileHouse(hospitals, random.Random(0), "omitted")
    for step in (house.join, house.meet):
        for name in NAMES:
            step(0, name)
    hospitals.sites[VICTIM] = second
    hospitals.introduce()
    house.join(0, VICTIM)
    house.meet(0, VICTIM)
    return house, first, second


def cover_once(house: HostileHouse, site: cc.Site) -> MaskedVector:
    study = house.studies[0]
    reply = open_reply(study.ask(site, study.wrap(ask(0), name="the same question")))
    assert isinstance(reply, Answer), reply
    return decode(reply.body, Covered).masked


def test_a_hospital_that_runs_twice_charges_and_answers_once(tmp_path):
    """Both are asked at the same time: one charge, one vector, and one chain to show."""
    house, first, second = run_twice(tmp_path)
    answers = []

    def cover(site: cc.Site) -> None:
        answers.append(cover_once(house, site))

    threads = [threading.Thread(target=cover, args=(site,)) for site in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.vector for answer in answers}) == 1
    assert first.ledger.spent() == second.ledger.spent() < 2 * Fraction(1, 200)
    for name in NAMES:
        house.cover(0, 0, name)
    house.open(0, 0)
    assert len(house.sums) == 1


def test_a_question_that_the_other_process_paid_for_meanwhile_is_answered(tmp_path, monkeypatch):
    """The budget is of one such question: the second process finds it used, and the answer stored."""
    house, first, second = run_twice(tmp_path)
    answers, check_room = [], SiteContext.check_room

    def check_room_later(self, cost):
        monkeypatch.setattr(SiteContext, "check_room", check_room)
        answers.append(cover_once(house, first))
        return check_room(self, cost)

    monkeypatch.setattr(SiteContext, "check_room", check_room_later)
    answers.append(cover_once(house, second))
    assert len({answer.vector for answer in answers}) == 1
    assert first.ledger.spent() == second.ledger.spent() < 2 * Fraction(1, 200)


@pytest.mark.parametrize("seed", range(20))
def test_no_clock_that_goes_back_spends_a_month_twice(tmp_path, seed, monkeypatch):
    """A clock may jump anywhere: no month, as entries name it, has more than its cap, and all have no more than all."""
    dice = random.Random(seed)
    clock = [datetime(2026, 1, 15, tzinfo=UTC)]
    monkeypatch.setattr(ledger_chain, "now", lambda: clock[0].isoformat(timespec="microseconds"))
    allowance = Allowance(total=Fraction(8, 100), per_month=Fraction(2, 100))
    with Ledger(tmp_path / "a.ledger", allowance=allowance) as ledger:
        latest = clock[0]
        for number in range(40):
            clock[0] += timedelta(days=dice.choice([-400, -31, -1, 0, 0, 1, 20]))
            with suppress(BudgetError):
                spend(ledger, f"question {number}")
                latest = max(latest, clock[0])
        months: dict[str, Fraction] = {}
        for entry in ledger.entries():
            assert entry.time <= latest
            if entry.cost:
                month = f"{entry.time:%Y-%m}"
                months[month] = months.get(month, Fraction(0)) + entry.cost
        assert months
        assert max(months.values()) <= allowance.per_month
        assert sum(months.values()) <= allowance.total
        ledger.verify()
