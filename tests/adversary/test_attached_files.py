"""Files that a submitter sends with a study: whatever they are called and hold, the house reads nothing else, and says
nothing of what it read.

The attacker builds the job without our own checks, so that the house meets each file as it was made.
"""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import os
import re
import sqlite3
import zlib

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from concilium.errors import ConciliumError, RecordsError, StudyError
from concilium.records.relation import scratch_database
from concilium.records.table import Records
from concilium.study.attached_files import pack_attached, unpack_attached
from concilium.study.courses import open_learner
from concilium.study.study import Study

pytest.importorskip("nvflare")

MARKER = "MARKER-" + "7f3a9c"
KEY = f"-----BEGIN PRIVATE KEY-----\n{MARKER}\n-----END PRIVATE KEY-----\n"
TICKET = "0" * 32
EXPERTS = """
[study]
name = "stays"
method = "experts"
target = "SepsisLabel"
[privacy]
release = "exact"
[experts]
public = NAME
"""
WORDS = """
[study]
name = "words"
method = "tree"
target = "death"
[privacy]
release = "exact"
[dictionary]
file = NAME
"""
STAYS = "patient,hour,HR,Temp\n" + "".join(
    f"{p},{h},{60 + h},{36 + p / 9}\n" for p in range(9) for h in range(9)
)


def pack(content):
    return base64.b64encode(zlib.compress(content)).decode()


def conduct(text, files, folder, name=None):
    """What the house of a job says of it; its private key lies in its kit."""
    from concilium.transports.flare.house_job import FlareHouse
    from concilium.transports.flare.job import SubmittedStudy

    (folder / "kit").mkdir(exist_ok=True)
    (folder / "kit" / "house.identity").write_text(KEY)
    text = text.replace("NAME", json.dumps(name or next(iter(files))))
    method = "experts" if "[experts]" in text else "tree"
    packed = {one: pack(content) for one, content in files.items()}
    submitted = SubmittedStudy(
        name="a study", study=text, method=method, ticket=TICKET, sites=("a",), files=packed
    )
    return msgspec.json.encode(FlareHouse()._conduct(submitted, folder / "kit", folder, None, None)).decode()


def database(folder, *views):
    path = folder / "made.duckdb"
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as made:
        made.execute("CREATE TABLE t AS SELECT 1 AS patient, 0 AS hour, 1 AS HR")
        for place, view in enumerate(views):
            made.execute(f"CREATE VIEW v{place} AS {view}")
        if views:
            made.execute("DROP TABLE t")
    return path.read_bytes()


def parquet(**columns):
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def contents(folder):
    """A file of every kind that a reader of ours takes, with a marker where there is room for one."""
    key = str(folder / "kit" / "house.identity")
    lite = folder / "made.sqlite"
    lite.unlink(missing_ok=True)
    with sqlite3.connect(lite) as made:
        made.execute("CREATE TABLE t (patient, hour, HR)")
        made.execute("INSERT INTO t VALUES (1, 0, ?)", (MARKER,))
    made.close()
    arrow = io.BytesIO()
    with pa.ipc.new_file(arrow, pa.schema([("HR", pa.string())])) as writer:
        writer.write_table(pa.table({"HR": [MARKER]}))
    return {
        "view": database(folder, f"SELECT 1 AS patient, 0 AS hour, content AS HR FROM read_text('{key}')"),
        "tables": database(folder),
        "sqlite": lite.read_bytes(),
        "arrow": arrow.getvalue(),
        "zip": b"PK\x03\x04" + MARKER.encode(),
        "gzip": zlib.compress(MARKER.encode(), wbits=31),
        "cell": STAYS.encode() + f"9,9,{MARKER},36\n".encode(),
        "time": STAYS.encode() + f"9,{MARKER},60,36\n".encode(),
        "header": STAYS.replace("patient", MARKER).encode(),
        "ragged": STAYS.encode() + f"9,{MARKER}\n".encode(),
        "long": f"patient,hour,variable,value\n1,0,{MARKER},{MARKER}\n".encode(),
        "parquet": parquet(patient=[1, 2], hour=[0, 1], HR=[MARKER, "60"]),
        "words": f'[dictionary.age]\ntype = "{MARKER}"\n'.encode(),
        "twice": f"[dictionary.{MARKER}]\ntype = 'code'\n[dictionary.{MARKER}]\ntype = 'code'\n".encode(),
        "listed": f"[dictionary.age]\nvalues = ['{MARKER}', '{MARKER}']\n".encode(),
        "terms": json.dumps({"dictionary": {"age": {"type": MARKER}}}).encode(),
        "latin": f"patient,hour,HR\n1,0,{MARKER}\xe9\n".encode("latin-1"),
        "nul": STAYS.encode() + b"9,9,\0" + MARKER.encode() + b",36\n",
    }  # fmt: skip


ENDINGS = (
    ".csv",
    ".parquet",
    ".toml",
    ".json",
    ".tsv",
    ".csv.gz",
    ".duckdb",
    ".db",
    ".sqlite",
    ".xlsx",
    ".CSV",
)


@pytest.mark.parametrize("study", [EXPERTS, WORDS], ids=["stays", "words"])
def test_no_kind_of_file_under_any_name_brings_a_cell_back(tmp_path, study):
    for (kind, content), ending in itertools.product(contents(tmp_path).items(), ENDINGS):
        said = conduct(study, {f"x{ending}": content}, tmp_path)
        assert MARKER not in said, (kind, ending)
        assert '"ended":"failed"' in said


def test_good_files_are_read(tmp_path, caplog):
    typed = io.BytesIO()
    pq.write_table(pyarrow.csv.read_csv(io.BytesIO(STAYS.encode())), typed, compression="zstd")
    sent = {
        "x.csv": STAYS.encode(),
        "x.parquet": typed.getvalue(),
        "x.toml": b"[dictionary.a]\ntype = 'code'\n",
    }
    for name, content in sent.items():
        caplog.clear()
        conduct(WORDS if name == "x.toml" else EXPERTS, {name: content}, tmp_path)
        # It took the files, and stopped only at the kit that this test does not give it.
        assert "concilium.toml: cannot be read" in caplog.text


SIGNS = st.sampled_from(
    [*"abAB01_-. ~/\\:*?[]{}'\"$%\n\t\0", "..", "\u202e", "\uff0e", "\u2044", "/etc/", "://", "é"]
)
NAMES = st.one_of(st.lists(SIGNS, max_size=12).map("".join), st.text(max_size=300))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    before=NAMES,
    ending=st.sampled_from(["", ".csv", ".toml", ".parquet", ".csv/", ".toml\0.csv", ".csv::$DATA"]),
)
def test_no_name_leads_elsewhere(tmp_path, before, ending):
    """Whatever a file is called, it lands under that name in its folder or nowhere, and the study is not replaced."""
    name, folder = before + ending, tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    with contextlib.suppress(StudyError):
        unpack_attached({name: pack(b"patient,hour,HR\n1,0,60\n")}, folder)
    assert {path.name for path in folder.iterdir()} <= {name}
    assert {path.name for path in tmp_path.iterdir()} == {"folder"}
    assert not any(sign in name for sign in "/\\:*?[\0\n") or not list(folder.iterdir())


@pytest.mark.parametrize("name", ["study.toml", "STUDY.TOML", "Study.toml"])
def test_no_file_takes_the_place_of_the_study(tmp_path, name):
    (tmp_path / "study.toml").write_text("[study]\nname = 'mine'\n")
    with pytest.raises(StudyError):
        unpack_attached({name: pack(b"[study]\nname = 'theirs'\n")}, tmp_path)
    assert "mine" in (tmp_path / "study.toml").read_text()


def link(place, target):
    place.symlink_to(target)


def pipe(place, target):
    os.mkfifo(place)


def folder(place, target):
    place.mkdir()


@pytest.mark.parametrize("make", [link, pipe, folder])
@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.toml"])
def test_what_is_no_file_is_not_sent(tmp_path, make, name):
    """A study of somebody else's, submitted in good faith, sends nothing of the submitter's own machine."""
    (tmp_path / "key").write_text(KEY)
    inner = tmp_path / "inner"
    inner.mkdir()
    make(inner / name, tmp_path / "key")
    text = (WORDS if name == "x.toml" else EXPERTS).replace("NAME", json.dumps(name))
    (inner / "study.toml").write_text(text)
    with pytest.raises(StudyError, match="put the file itself beside the study"):
        pack_attached(inner / "study.toml")


def test_a_link_that_waits_is_not_written_through(tmp_path):
    (tmp_path / "key").write_text(KEY)
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "x.csv").symlink_to(tmp_path / "key")
    with pytest.raises(StudyError):
        unpack_attached({"x.csv": pack(STAYS.encode())}, inner)
    assert (tmp_path / "key").read_text() == KEY


def test_the_submitter_is_told_what_the_house_would_not_say(tmp_path):
    """The same files are refused where they lie, in full sentences."""
    for kind, content in contents(tmp_path).items():
        name = "x.toml" if kind in ("words", "twice", "listed", "terms") else "x.csv"
        (tmp_path / name).write_bytes(content)
        text = (WORDS if name == "x.toml" else EXPERTS).replace("NAME", json.dumps(name))
        (tmp_path / "study.toml").write_text(text)
        with pytest.raises(ConciliumError, match=re.escape(str(tmp_path / name))):
            submit(tmp_path / "study.toml")


def submit(path):
    """What `concilium flare submit` does with files before it sends them."""
    study = Study.read(path, elsewhere=True)
    pack_attached(path)
    if study.method_type.reads_courses:
        open_learner(study)


def find_readers():
    """Every table function of DuckDB that takes a text first: whatever may open a file is among them."""
    with duckdb.connect() as connection:
        return [
            name
            for (name,) in connection.execute(
                "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'table'"
                " AND len(parameter_types) > 0 AND parameter_types[1] IN ('VARCHAR', 'VARCHAR[]', 'ANY')"
                " AND function_name NOT LIKE '%external_resource%' ORDER BY ALL"
            ).fetchall()
        ]


def test_a_view_reads_nothing_but_its_own_file(tmp_path):
    """A hospital's own database, too: each reader that DuckDB has, on each way to write the path of a secret."""
    secret = tmp_path / "secret" / "house.identity"
    secret.parent.mkdir()
    row = f"patient,hour,{MARKER}\n1,0,{MARKER}\n"
    secret.write_text(row)
    (secret.parent / "s.csv").write_text(row)
    (secret.parent / "s.json").write_text(json.dumps([{"patient": MARKER}]))
    pq.write_table(pa.table({"patient": [MARKER]}), secret.parent / "s.parquet")
    with duckdb.connect(str(secret.parent / "s.duckdb")) as other:
        other.execute(f"CREATE TABLE t AS SELECT '{MARKER}' AS patient")
    files = [str(path) for path in secret.parent.iterdir()]
    paths = [*files, f"{tmp_path}/**/house.identity", f"file://{secret}", "/proc/self/environ"]
    sources = [f"{reader}('{path}')" for reader, path in itertools.product(find_readers(), paths)]
    sources += [f"'{path}'" for path in files]
    up = "current_setting(''temp_directory'') || ''/../secret/house.identity''"
    sources += [
        f"query('SELECT * FROM read_text({up})')",
        "read_text(current_setting('temp_directory') || '/**')",
    ]
    own = tmp_path / "own.duckdb"
    views = []
    with duckdb.connect(str(own)) as made:
        made.execute("CREATE TABLE wards AS SELECT 'a' AS ward")
        for source in sources:
            try:
                made.execute(f"CREATE VIEW v{len(views)} AS SELECT * FROM {source}")
            except duckdb.Error:
                continue
            views.append(source)
        made.execute("CREATE VIEW good AS SELECT ward FROM wards")
    assert len(views) > 20
    with scratch_database(own, attach=True) as (connection, _):
        for place, source in enumerate(views):
            with contextlib.suppress(duckdb.Error):
                rows = str(connection.execute(f"SELECT * FROM hospital.v{place}").fetchall())
                assert MARKER not in rows, source
                assert "PATH=" not in rows, source
        for attempt in ("SET enable_external_access = true", f"ATTACH '{files[0]}' AS other", "LOAD httpfs"):
            with pytest.raises(duckdb.Error):
                connection.execute(attempt)
    place = views.index(f"read_text('{secret}')")
    with pytest.raises(
        RecordsError, match="a view reads tables of its own file, and no other file"
    ) as caught:
        Records.read(own, f"v{place}")
    assert MARKER not in str(caught.value)
    assert list(Records.read(own, "good").values("ward")) == ["a"]
