"""A ledger that was put back, at rest or under a running site, is noticed without any house: real files, processes."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing, suppress
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from concilium.cli.main import app
from concilium.errors import LedgerError
from concilium.ledger import file as ledger_file
from concilium.ledger.chain import Head
from concilium.ledger.head import HeadFile, read_head
from concilium.ledger.ledger import Ledger
from concilium.ledger.memory import MOST_PAST
from concilium.privacy.masks import LINK_BYTES, Standing


def charge(ledger, name, seal=lambda head: b"an answer" * 100):
    return ledger.charge(name, "d", study="s", kind="k", mode="private", cost="1/10", seal=seal)


def back_up(path, copy):
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(copy)) as other:
        one.backup(other)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.ledger"


@pytest.fixture
def put_back(path, tmp_path):
    """A ledger of three entries in whose place a copy of one entry was put; the head that it had."""
    with Ledger(path, budget=1000) as ledger:
        charge(ledger, "a")
        back_up(path, tmp_path / "copy")
        charge(ledger, "b")
        charge(ledger, "c")
        head = ledger.head()
    (tmp_path / "copy").replace(path)
    return head


def test_the_head_is_kept_with_every_entry_and_for_its_owner_only(path):
    with Ledger(path) as ledger:
        assert read_head(path) == ledger.head()
        for number in range(5):
            charge(ledger, f"q{number}")
            assert read_head(path) == ledger.head()
        ledger.set_budget(100, "why not")
        ledger.rebind("records")
        assert read_head(path) == ledger.head() == Head(7, ledger.head().hash)
    assert stat.S_IMODE(Path(f"{path}.head").stat().st_mode) == 0o600
    with Ledger() as ledger:
        charge(ledger, "q")
    assert not Path(":memory:.head").exists()


def test_a_restored_backup_says_so_and_stops(path, put_back):
    before = Path(f"{path}.head").read_bytes()
    for _ in range(2):
        with pytest.raises(
            LedgerError, match=r"it has 1 entries, and north\.ledger\.head says that it had 3"
        ) as said:
            Ledger(path)
        assert "a restored backup" in str(said.value)
        assert f"concilium ledger accept-restored {path} --reason" in str(said.value)
    with Ledger.open_readonly(path) as ledger:
        assert ledger.head().count == 1
        with pytest.raises(LedgerError, match="a restored backup"):
            ledger.verify()
    assert Path(f"{path}.head").read_bytes() == before


def test_a_restored_backup_is_accepted_knowingly_and_entered(path, put_back):
    def run(*arguments):
        return CliRunner().invoke(app, ["ledger", "accept-restored", *arguments])

    assert run(str(path)).exit_code == 2
    assert "needs a reason" in run(str(path), "--reason", " ").stderr
    assert "there is no ledger" in run(str(path) + "s", "--reason", "x").stderr
    done = run(str(path), "--reason", "the disk failed")
    assert done.exit_code == 0, done.output
    assert "lower the budget" in done.output
    with Ledger(path) as ledger:
        *_, entry = ledger.entries()
        assert (entry.kind, entry.mode, entry.sequence) == ("restored", "settings", 2)
        assert entry.note.startswith("the disk failed (")
        assert "says that it had 3" in entry.note
        assert not ledger.holds(put_back)
        charge(ledger, "d")
        assert ledger.verify() == 3
        assert read_head(path) == ledger.head()
    assert "nothing to accept" in run(str(path), "--reason", "again").stderr


@pytest.mark.parametrize("change", ["missing", "torn", "of another ledger", "empty"])
def test_a_head_that_is_gone_or_cannot_be_read_stops_too(path, tmp_path, change):
    with Ledger(path) as ledger:
        charge(ledger, "a")
    beside = Path(f"{path}.head")
    if change == "missing":
        beside.unlink()
    elif change == "of another ledger":
        with Ledger(tmp_path / "other.ledger") as other:
            charge(other, "a")
        shutil.copy(tmp_path / "other.ledger.head", beside)
    else:
        beside.write_bytes(beside.read_bytes()[: 0 if change == "empty" else 60])
    with pytest.raises(LedgerError, match="accept-restored"):
        Ledger(path)
    Ledger.accept_restored(path, "a reason")
    with Ledger(path) as ledger:
        assert ledger.verify() == 2


def test_a_head_that_lags_behind_is_no_fault(path):
    """As after a power cut, or a kill between an entry and its head."""
    with Ledger(path) as ledger:
        charge(ledger, "a")
        older = Path(f"{path}.head").read_bytes()
        charge(ledger, "b")
    Path(f"{path}.head").write_bytes(older)
    with Ledger(path) as ledger:
        charge(ledger, "c")
        assert read_head(path) == ledger.head()


def test_a_ledger_without_its_head_is_refused(path):
    with Ledger(path) as ledger:
        charge(ledger, "a")
    Path(f"{path}.head").unlink()
    with pytest.raises(LedgerError, match=r"its head file north\.ledger\.head is missing"):
        Ledger(path)


# Under a running site

SITE = textwrap.dedent(
    """
    import sys
    import concilium as cc
    from concilium.protocol.messages import Answer, open_reply
    sys.path[:0] = [sys.argv[2], sys.argv[2] + "/.."]
    from agreed import deliver
    from conversation import ROWS, schema_message
    from concilium.ledger import file
    file.CHECKPOINT_SECONDS = 1.0  # so long it waits for another process to say that it wrote: there is none
    site = cc.Site("north", cc.Records.from_rows(ROWS), ledger=sys.argv[1])
    for line in sys.stdin:
        for number in range(int(line)):
            message = schema_message(f"question {site.ledger.path} {line.strip()} {number}")
            reply = open_reply(deliver(site, message))
        print("answer" if isinstance(reply, Answer) else reply.rule, flush=True)
    """
)


class Running:
    """A site in a process of its own, which answers as many questions as it is told and says how the last one went."""

    def __init__(self, path):
        helpers = Path(__file__).parent.parent / "protocol"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SITE, str(path), str(helpers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.communicate()


def replace_file(path, copy):
    copy.replace(path)


def copy_in_place(path, copy):
    shutil.copyfile(copy, path)


def copy_in_place_and_drop_log(path, copy):
    shutil.copyfile(copy, path)
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").unlink()


def drop_log(path, copy):
    Path(f"{path}-wal").unlink()


@pytest.mark.parametrize("put", [replace_file, copy_in_place, copy_in_place_and_drop_log, drop_log])
@pytest.mark.parametrize("more", [2, 300])
def test_a_copy_in_the_place_of_a_running_sites_ledger_is_noticed_at_the_next_charge(
    path, tmp_path, put, more
):
    site = Running(path)
    try:
        assert site.ask(3) == "answer"
        back_up(path, tmp_path / "copy")
        assert site.ask(more) == "answer"
        had = read_head(path).count
        put(path, tmp_path / "copy")
        assert site.ask(1) == "ledger"
        assert read_head(path).count == had
    finally:
        site.kill()
    # However it is opened then: whole, or in one sentence.
    with suppress(LedgerError), Ledger(path) as ledger:
        ledger.verify()
        assert ledger.head().count == had


def test_a_killed_site_goes_on_and_a_backup_of_it_does_not(path, tmp_path):
    site = Running(path)
    try:
        assert site.ask(3) == "answer"
        back_up(path, tmp_path / "copy")
        assert site.ask(4) == "answer"
    finally:
        site.kill()
    with Ledger(path) as ledger:
        assert ledger.head() == read_head(path)
        ledger.verify()
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)
    shutil.copyfile(tmp_path / "copy", path)
    with pytest.raises(LedgerError, match="a restored backup"):
        Ledger(path)


def test_checkpoints_of_others_are_not_mistaken_for_a_copy(path, monkeypatch):
    """Also where a process is interrupted between its checkpoint and what it keeps of it."""
    monkeypatch.setattr(ledger_file, "MOST_COMMITS", 3)
    with Ledger(path) as one, Ledger(path) as other:
        for number in range(60):
            charge(one, f"one {number}")
            charge(other, f"other {number}")

    def work(side):
        with Ledger(path) as ledger:
            for number in range(40):
                charge(ledger, f"{side} {number}")

    monkeypatch.setattr(ledger_file, "MOST_COMMITS", 1)
    monkeypatch.setattr(ledger_file, "CHECKPOINT_SECONDS", 600.0)
    look, write, pauses = ledger_file._look_at, HeadFile.write_state, cycle((0, 0, 0.001, 0, 0.004))

    def look_and_pause(path):
        state = look(path)
        time.sleep(next(pauses))
        return state

    def pause_and_write(self, state):
        time.sleep(next(pauses))
        write(self, state)

    monkeypatch.setattr(ledger_file, "_look_at", look_and_pause)
    monkeypatch.setattr(HeadFile, "write_state", pause_and_write)
    threads = [threading.Thread(target=work, args=(f"thread {side}",), daemon=True) for side in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads)
    with Ledger(path) as ledger:
        assert ledger.verify() == 280
        assert ledger.holds(read_head(path))


def test_the_log_does_not_grow_for_ever(path, monkeypatch):
    monkeypatch.setattr(ledger_file, "MOST_LOG", 1 << 16)
    with Ledger(path) as ledger:
        for number in range(300):
            charge(ledger, f"q {number}", seal=lambda head: os.urandom(5000))
            assert Path(f"{path}-wal").stat().st_size < 1 << 19
        assert ledger.verify() == 300


def test_a_head_file_that_is_replaced_while_in_use_is_noticed(path, tmp_path):
    with Ledger(path) as ledger:
        charge(ledger, "a")
        shutil.copy(f"{path}.head", tmp_path / "copy")
        (tmp_path / "copy").replace(f"{path}.head")
        with pytest.raises(LedgerError, match=r"north\.ledger\.head was removed or replaced"):
            charge(ledger, "b")
        Path(f"{path}.head").unlink()
        with pytest.raises(LedgerError, match=r"north\.ledger"):
            charge(ledger, "b")


@given(st.integers(0, 2**63 - 1), st.text("0123456789abcdef", min_size=64, max_size=64), st.data())
def test_a_head_comes_back_as_it_was_or_not_at_all(count, link, data):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        name = Path(folder) / "x.ledger"
        file = HeadFile(name)
        file.make(Head(count, link))
        assert file.read() == Head(count, link) == read_head(name)
        file.close()
        record = bytearray(Path(f"{name}.head").read_bytes())
        place = data.draw(st.integers(0, len(record) - 1))
        record[place] ^= data.draw(st.integers(1, 255))
        Path(f"{name}.head").write_bytes(record)
        assert read_head(name) in (None, Head(count, link))


# Heads of others


def stand(count, *links):
    """A ledger at the last of these links, and what came before."""
    newest, *before = (bytes([link]) * 32 for link in reversed(links))
    return Standing(count, newest, b"".join(link[:LINK_BYTES] for link in before))


def test_ledgers_of_peers_are_followed_along_one_chain(path):
    with Ledger(path) as ledger:
        assert ledger.peer_heads() == {}
        assert ledger.follow_peer("ABC", stand(5, 1)) is None
        assert ledger.follow_peer("ABC", stand(5, 1)) is None
        # Another entry, fewer, as many or more of them: none shows that it holds the one that is remembered.
        for lie in (stand(5, 2), stand(4, 3), stand(9, 4), stand(9, 4, 5, 6), Standing()):
            assert "entry 5 of its ledger is remembered here" in ledger.follow_peer("ABC", lie)
        assert ledger.follow_peer("DEF", stand(5, 2)) is None
        assert ledger.follow_peer("ABC", stand(7, 1, 7)) is None
        assert ledger.follow_peer("ABC", stand(90, 8), held=bytes([7]) * LINK_BYTES) is None
    with Ledger(path) as ledger:
        assert ledger.follow_peer("ABC", stand(5, 1)) is None  # opened late, and known to be of the chain
        assert ledger.peer_heads() == {"ABC": Head(90, "08" * 32), "DEF": Head(5, "02" * 32)}
        assert "entry 90" in ledger.follow_peer("ABC", stand(91, 7, 9))
        for count in (-1, 2**63):
            with pytest.raises(LedgerError, match="cannot be at entry"):
                ledger.follow_peer("ABC", Standing(count, b"c" * 32))
        ledger.forget_peer("ABC", "they lost a disk")
        assert "entry 90 of the ledger of ABC was forgotten: they lost a disk" in ledger.entries()[-1].note
        assert ledger.follow_peer("ABC", stand(5, 2)) is None
        for fingerprint, reason in (("ABC", " "), ("XYZ", "a slip")):
            with pytest.raises(LedgerError, match=r"needs a reason|remembers no ledger"):
                ledger.forget_peer(fingerprint, reason)

        def seal(head):
            assert ledger.follow_peer("GHI", stand(5, 1)) is None
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            charge(ledger, "undone", seal=seal)
        assert json.dumps(sorted(ledger.peer_heads())) == '["ABC", "DEF"]'


def test_a_steward_takes_note_of_a_peers_restored_ledger(path):
    with Ledger(path) as ledger:
        assert ledger.follow_peer("ABC", stand(5, 1)) is None
    arguments = ["ledger", "forget-peer", str(path), "ABC", "--reason", "they lost a disk"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert CliRunner().invoke(app, arguments).exit_code != 0  # there is nothing left to forget
    with Ledger(path) as ledger:
        assert ledger.peer_heads() == {}
        assert "they lost a disk" in ledger.entries()[-1].note


def test_a_site_shows_the_last_of_its_masked_charges(path):
    with Ledger(path) as ledger:
        assert ledger.standing() == Standing()
        heads = []
        for place in range(2 * MOST_PAST):
            charge(ledger, f"plain {place}")

            def seal(head):
                heads.append(head)
                ledger.remember_masked(head)
                return b"answer"

            charge(ledger, f"masked {place}", seal=seal)
        charge(ledger, "plain again")
        links = [bytes.fromhex(head.hash)[:LINK_BYTES] for head in reversed(heads)]
        standing = ledger.standing()
        assert (standing.entries, standing.head.hex()) == (heads[-1].count, heads[-1].hash)
        assert standing.past == b"".join(links[1 : MOST_PAST + 1])
