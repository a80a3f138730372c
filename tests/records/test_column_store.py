"""What can go wrong with columns on disk: changed files, half-written and damaged stores, a full disk, other users."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from itertools import product

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import concilium as cc
from concilium.cli.main import main
from concilium.errors import PolicyError, RecordsError
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import WorkLimits
from concilium.protocol.cohort import View
from concilium.protocol.disclosure import Populations
from concilium.protocol.held_out import recall_tickets
from concilium.protocol.releases import find_release
from concilium.records import blocks, column_store
from concilium.records.columns import RowValues, label
from concilium.records.unchanged import END_BYTES, identify_file


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A text file that counts as large, and did not change just now."""
    monkeypatch.setattr(column_store, "LARGE", 1)
    monkeypatch.setattr(column_store, "YOUNG", 0)
    path = tmp_path / "north.csv"
    write(path)
    return path


def write(path, rows=300, seed=1):
    draw = np.random.default_rng(seed)
    lines = [
        f"{n:.3f},{'abc'[k]},{k}"
        for n, k in zip(draw.normal(0, 9, rows), draw.integers(0, 3, rows), strict=True)
    ]
    path.write_text("lab,ward,died\n" + "\n".join(lines) + "\n", encoding="ascii")


def root_of(path):
    return path.with_name("north.ledger.columns")


def read(path):
    return cc.Records.read(path, columns=root_of(path))


def count_readings(monkeypatch):
    """How often a table is read: a list that grows."""
    readings, code = [], column_store._code_batches

    def note(*arguments):
        readings.append(1)
        return code(*arguments)

    monkeypatch.setattr(column_store, "_code_batches", note)
    return readings


def test_a_table_is_read_once_until_it_changes(table, monkeypatch):
    readings = count_readings(monkeypatch)
    first = read(table).digest
    assert read(table).digest == first
    assert len(readings) == 1
    assert first == cc.Records.read(table).digest
    changes = [
        lambda: write(table, seed=2),
        lambda: os.utime(table, ns=(1, 1)),
        lambda: table.write_bytes(table.read_bytes().replace(b",a,", b",b,", 1) + b"1,a,0\n"),
        lambda: (
            table.with_name("other").write_bytes(table.read_bytes()),
            table.with_name("other").replace(table),
        ),
    ]
    for number, change in enumerate(changes, start=2):
        change()
        assert read(table).digest == cc.Records.read(table).digest
        assert len(readings) == number
        assert len(column_store.list_stores(root_of(table))) == 1  # the one before is gone
    cc.Records.read(table, schema={"died": "code"}, columns=root_of(table))
    assert len(column_store.list_stores(root_of(table))) == 2  # read in another way


def test_a_change_in_the_log_of_a_database_is_noticed(table, monkeypatch):
    path = table.with_name("north.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = wal")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        database.execute("CREATE TABLE patients AS SELECT 'a' AS ward, 1 AS died UNION SELECT 'b', 0")
        database.commit()
        before = path.stat()
        first, readings = len(read(path)), count_readings(monkeypatch)
        assert len(read(path)) == first == 2
        database.execute("INSERT INTO patients VALUES ('c', 1)")
        database.commit()
        assert path.stat() == before
        assert len(read(path)) == 3
        assert len(readings) == 1


def test_all_of_a_parquet_footer_is_looked_at(tmp_path):
    table = pyarrow.table({f"column{i}": [1, 2] for i in range(900)})
    path = tmp_path / "north.parquet"
    parquet.write_table(table, path)
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little")
    assert footer > 2 * END_BYTES
    before = identify_file(path)["ends"]
    content[len(content) - 8 - footer + 5] ^= 1
    path.write_bytes(content)
    assert identify_file(path)["ends"] != before


def test_a_file_that_changed_just_now_is_read_again(table, monkeypatch):
    readings = count_readings(monkeypatch)
    monkeypatch.setattr(column_store, "YOUNG", 3600 * 10**9)
    read(table)
    read(table)
    assert len(readings) == 2


def test_a_table_that_is_open_stays_when_another_version_is_read(table, capsys):
    first = read(table)
    values = cc.Records.read(table).values("lab")
    write(table, seed=3)
    second = read(table)
    assert first.values("lab") == values  # first mapped now
    assert second.digest != first.digest
    assert len(column_store.list_stores(root_of(table))) == 2
    main_ends(["columns", "remove", str(table.with_name("north.ledger"))], 0)
    assert "0 tables were removed; 2 more are open: stop the site first" in capsys.readouterr().out
    del first
    write(table, seed=4)
    third = read(table)  # the one that is closed is deleted
    assert len(column_store.list_stores(root_of(table))) == 2
    del second, third
    assert column_store.remove_stores(root_of(table)) == (2, 0)


def test_only_the_owner_can_read_it(table):
    before = os.umask(0)
    try:
        read(table)
    finally:
        os.umask(before)
    root = root_of(table)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for place in root.rglob("*"):
        assert stat.S_IMODE(place.stat().st_mode) == (0o700 if place.is_dir() else 0o600)


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest", "format"])
def test_what_is_broken_is_read_again(table, damage, monkeypatch):
    digest = read(table).digest
    readings = count_readings(monkeypatch)
    (store,) = column_store.list_stores(root_of(table))
    if damage == "cut":
        os.truncate(store.folder / "0.numbers", 100)
    elif damage == "gone":
        (store.folder / "1.codes").unlink()
    else:
        manifest = store.folder / column_store.MANIFEST
        text = manifest.read_text()
        manifest.write_text(text[:50] if damage == "manifest" else text.replace("columns@1", "columns@0"))
    assert read(table).digest == digest
    assert len(readings) == 1
    assert read(table).digest == digest
    assert len(readings) == 1


def test_a_flipped_bit_is_found_by_check(table, capsys):
    read(table)
    ledger = str(table.with_name("north.ledger"))
    main_ends(["columns", "check", ledger], 0)
    assert "1 table is as written" in capsys.readouterr().out
    (store,) = column_store.list_stores(root_of(table))
    place = store.folder / "1.codes"
    content = bytearray(place.read_bytes())
    content[7] ^= 1
    place.write_bytes(content)
    main_ends(["columns", "check", ledger], 2)
    assert "1.codes" in capsys.readouterr().err
    main_ends(["columns", ledger], 0)
    assert "300" in capsys.readouterr().out
    main_ends(["columns", "remove", ledger], 0)
    assert column_store.list_stores(root_of(table)) == []
    main_ends(["columns", "list", ledger], 0)
    assert "no table is kept" in capsys.readouterr().out


def main_ends(arguments, code):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code


KILLED = """
    import os, signal, sys
    import concilium as cc
    from concilium.records import column_store
    column_store.LARGE, column_store.YOUNG = 1, 0
    write, left = column_store._write_array, [int(sys.argv[2])]
    def write_some(path, parts):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(path, parts)
    column_store._write_array = write_some
    cc.Records.read(sys.argv[1], columns=sys.argv[1].replace(".csv", ".ledger.columns"))
"""


@pytest.mark.parametrize("files", [0, 2])
def test_a_process_that_is_killed_leaves_nothing_that_is_believed(table, files):
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(table), str(files)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert [one.name[:5] for one in root_of(table).iterdir() if one.is_dir()] == ["part-"]
    assert column_store.list_stores(root_of(table)) == []
    assert read(table).digest == cc.Records.read(table).digest
    assert len([one for one in root_of(table).iterdir() if one.is_dir()]) == 1


FULL = """
    import resource, sys
    import concilium as cc
    from concilium.errors import RecordsError
    from concilium.records import column_store
    column_store.LARGE, column_store.YOUNG = 1, 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    try:
        cc.Records.read(sys.argv[1], columns=sys.argv[1].replace(".csv", ".ledger.columns"))
    except RecordsError as error:
        print(error)
"""


def test_a_full_disk_says_so_and_leaves_what_was_there(table):
    read(table)
    (before,) = column_store.list_stores(root_of(table))
    write(table, rows=500, seed=4)
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), str(table)], check=True, capture_output=True, text=True
    ).stdout
    assert "there is no room for the columns of this table" in said
    (after,) = column_store.list_stores(root_of(table))
    assert after == before
    assert after.find_damage() == []
    assert [one for one in root_of(table).iterdir() if one.is_dir()] == [before.folder]


def write_ids(path, rows, kind, severe=None):
    """A table with a column of ids of which nearly every patient has another; perhaps with one cell corrected."""
    draw = np.random.default_rng(7)
    ids = [f"P{n:05d}" for n in draw.permutation(rows)]
    if kind == "gaps":
        ids[3], ids[5], ids[8], ids[9] = "", "?", " 4.0", ids[0]
    if kind == "twice":
        ids[90:] = ids[:20] * 20
        ids = ids[:rows]
    if kind == "numbers":
        ids = [str(1000 + n) for n in draw.permutation(rows)]
    died = draw.random(rows) < 0.3
    levels = draw.integers(0, 3, rows) + 2 * died
    levels[0] = levels[0] if severe is None else severe
    if path.suffix == ".csv":
        lines = [f"{one},{level},{dead}" for one, level, dead in zip(ids, levels, died, strict=True)]
        path.write_text("pid,severe,died\n" + "\n".join(lines) + "\n", encoding="ascii")
        return
    table = {"pid": list(map(int, ids)) if kind == "numbers" else ids, "severe": levels, "died": died}
    parquet.write_table(pyarrow.table(table), path)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("kind", "by"),
    [*product(["texts", "gaps", "numbers"], [None, "pid"]), ("twice", "pid"), ("twice", "encounters")],
)
def test_ids_of_very_many_patients_stay_on_disk(table, monkeypatch, ending, kind, by):
    monkeypatch.setattr("concilium.records.streaming.MOST_DISTINCT", 40)
    path = table.with_name(f"ids.{ending}")
    write_ids(path, 200, kind)
    corrected = path.with_name(f"later.{ending}")
    write_ids(corrected, 200, kind, severe=9)
    options = {"schema": {"pid": "code"} if kind == "numbers" or by else {}, "missing": ["", "?"]}
    memory = cc.Records.read(path, **options)
    found = []
    for records, rows in ((memory, blocks.ROWS_AT_ONCE), (None, 33)):
        monkeypatch.setattr(blocks, "ROWS_AT_ONCE", rows)
        records = records or cc.Records.read(path, **options, columns=root_of(path))
        assert (records.store is None) == (records is memory)
        said = [records.digest, list(map(label, records.values("pid"))), records.tell_apart().tolist()]
        rows_are = {"by": by and "pid", "encounters": by == "encounters"}
        try:
            patients = cc.Patients(table=records, **rows_are)
            site = cc.Site("north", patients, ledger=Ledger(), division_key=b"k" * 32)
        except RecordsError as error:
            found.append([*said, str(error)])
            continue
        tree = cc.DecisionTree("died", max_depth=2).fit(cc.House([site]))
        tickets = recall_tickets(site._context.view).tolist()
        hidden, told = sorted(site._context.view.hidden), tree.text()
        other = cc.Records.read(corrected, **options, columns=records.store and root_of(corrected))
        view = View(other, cc.Policy(), by=rows_are["by"])
        news = Populations(site.ledger, cc.Patients(table=other, **rows_are), 5, view)
        found.append([*said, tickets, patients.people, hidden, told, news.count_news()])
    assert isinstance(records["pid"].values, RowValues)
    assert found[1] == found[0]
    if len(found[1]) > 4:
        assert "severe" in found[1][-2]
        assert found[1][-1] == (0, 1 if by else 0, 0)


def test_small_tables_and_other_sources_stay_in_memory(table, monkeypatch):
    monkeypatch.setattr(column_store, "LARGE", 1 << 25)
    assert read(table).store is None
    assert not root_of(table).exists()


def test_a_site_says_what_it_takes_and_keeps_to_it(table, monkeypatch, caplog):
    monkeypatch.setattr(blocks, "ROWS_AT_ONCE", 50)
    caplog.set_level("INFO", "concilium")
    policy = cc.Policy(work=WorkLimits(memory="400 MB"))
    site = cc.Site("north", read(table), policy)
    assert "300 rows x 3 columns on disk" in caplog.text
    assert "250 MB of memory, and 150 MB more for a question at most" in caplog.text
    assert site._context.meter._most_memory == 150_000_000
    large = cc.Site("north", read(table), cc.Policy(work=WorkLimits(memory="2 GB")))
    large._context.meter._rounded = 1 << 26
    large._context.meter.admit_selection("lab > 90 and ward = 'a'", find_release("exact"))  # not refused
    with pytest.raises(PolicyError, match="Allow 350 MB"):
        cc.Site("north", read(table), cc.Policy(work=WorkLimits(memory="300 MB")))


def test_a_table_that_changes_while_it_is_read_is_not_kept(table, monkeypatch):
    code = column_store._code_batches

    def change(*arguments):
        found = code(*arguments)
        write(table, seed=9)
        return found

    monkeypatch.setattr(column_store, "_code_batches", change)
    with pytest.raises(RecordsError, match="changed while it was read"):
        read(table)
    assert column_store.list_stores(root_of(table)) == []
