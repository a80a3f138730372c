"""Against a real PostgreSQL server, started here on the loopback address and stopped afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from cdm import HOSPITAL, SECTIONS, list_statements, write_cohort, write_duckdb
from concilium.errors import RecordsError
from concilium.records import column_store
from concilium.records.columns import Coded, Numbers
from concilium.records.query import read_as_labels
from concilium.records.series import Series
from concilium.records.table import Records
from concilium.records.table_map import TableMap
from concilium.records.unchanged import COUNTING_VERSION

psycopg = pytest.importorskip("psycopg")

PASSWORD = "correct horse"


def find_programs() -> Path | None:
    """The folder of initdb and pg_ctl: what Debian keeps off the path, or where the path leads."""
    packaged = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name.split(".")[0])
    )
    on_path = shutil.which("initdb")
    for folder in [*packaged[::-1], *([Path(on_path).parent] if on_path else [])]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    return None


def find_user() -> pwd.struct_passwd | None:
    """Whom the server runs as: PostgreSQL refuses to run as root, so root lends it to someone else."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


@dataclass(frozen=True)
class Server:
    port: int

    def url(self, user: str = "postgres", password: str = PASSWORD, database: str = "postgres") -> str:
        return f"postgresql://{user}:{password.replace(' ', '%20')}@127.0.0.1:{self.port}/{database}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    programs, user = find_programs(), find_user()
    if programs is None or user is None:
        pytest.skip("no PostgreSQL programs on this machine, or nobody to run them as")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    data, secret = folder / "data", folder / "password"
    secret.write_text(PASSWORD)
    for path in (folder, secret):
        os.chown(path, user.pw_uid, user.pw_gid)

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        lend = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        return subprocess.run(
            [str(programs / program), "-D", str(data), *arguments],
            cwd=folder, env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=120, check=False, **lend,
        )  # fmt: skip

    try:
        made = run(
            "initdb",
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
            "--pwfile",
            str(secret),
            "-E",
            "UTF8",
            "--no-sync",
        )
        assert made.returncode == 0, made.stdout
        settings = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        started = run("pg_ctl", "-w", "-t", "60", "-l", str(folder / "log"), "-o", settings, "start")
        assert started.returncode == 0, started.stdout + (folder / "log").read_text()
        yield Server(port)
    finally:
        if data.exists():
            run("pg_ctl", "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)


SETUP = """
    CREATE TABLE patients (
        id int, large bigint, code varchar(8), dose numeric(8, 2), exact numeric, weight double precision,
        rough real, alive boolean, born date, seen timestamp, sent timestamptz, note text, nothing int
    );
    INSERT INTO patients VALUES
        (1, 9007199254740993, '0389', 1.50, 12345678901234567890, 70.25, 0.5, true, '2020-01-02',
         '2020-01-02 03:04:05.5', '2020-01-02 03:04:05+02', E'a "quoted",\\nnote', NULL),
        (2, 5, '4019', 2, 7, 'NaN', 1, false, '0044-03-15', '2020-01-02', '2020-01-02 00:00:00+00', '', NULL),
        (NULL, NULL, NULL, NULL, 'NaN', NULL, NULL, NULL, NULL, NULL, NULL, 'é', NULL);
    CREATE SCHEMA clinic;
    CREATE TABLE clinic."Odd ""name""; DROP" AS SELECT 3 AS a;
    CREATE VIEW clinic.seen AS SELECT 4 AS a;
    CREATE MATERIALIZED VIEW kept AS SELECT 5 AS a;
    CREATE TABLE nobody (a int);
    CREATE TABLE secret AS SELECT 1 AS a;
    CREATE TABLE many AS SELECT g AS row, g % 7 AS week, 'P' || g AS id, g / 4.0::float8 AS quarter, g % 3 = 0 AS third
        FROM generate_series(1, 25000) AS g;
    CREATE USER reader PASSWORD 'read';
    GRANT SELECT (a) ON nobody TO reader;
    GRANT TRIGGER ON secret TO reader;
"""


@pytest.fixture(scope="module")
def filled(server: Server) -> Server:
    with psycopg.connect(server.url()) as connection:
        connection.execute(SETUP)
    return server


def test_types_state_columns_and_a_stated_numeric_is_read_cell_by_cell(filled: Server) -> None:
    """What a numeric with all its digits is must not hang on whether somebody else's has a fraction."""
    records = Records.read(filled.url(), table="patients")
    assert {name for name in records.names if not records[name].by_itself} == {"dose", "exact"}
    with psycopg.connect(filled.url()) as connection:
        connection.execute(
            "CREATE TABLE digits (x numeric); INSERT INTO digits"
            " VALUES (9007199254740993), (7), (0.50), ('NaN'), (1e20)"
        )
        connection.execute("CREATE VIEW whole AS SELECT * FROM digits WHERE x = trunc(x) AND x <> 'NaN'")
    schema = {"x": "code"}
    together = Records.read(filled.url(), table="digits", schema=schema)
    assert together["x"].by_itself
    assert together.values("x") == ["9007199254740993", "7", "0.5", None, "100000000000000000000"]
    whole = Records.read(filled.url(), table="whole", schema=schema)
    assert whole.values("x") == ["9007199254740993", "7", "100000000000000000000"]


def test_types_of_postgres_become_natural_values(filled: Server) -> None:
    records = Records.read(filled.url(), table="patients")
    assert {name: records.values(name) for name in records.names} == {
        "id": [1, 2, None],
        "large": ["9007199254740993", "5", None],
        "code": ["0389", "4019", None],
        "dose": [1.5, 2.0, None],
        "exact": ["12345678901234567890", "7", None],
        "weight": [70.25, None, None],
        "rough": [0.5, 1.0, None],
        "alive": [True, False, None],
        "born": ["2020-01-02", "0044-03-15", None],
        "seen": ["2020-01-02 03:04:05.5", "2020-01-02", None],
        "sent": ["2020-01-02 01:04:05+00:00", "2020-01-02 00:00:00+00:00", None],
        "note": ['a "quoted",\nnote', "", "é"],
        "nothing": [None, None, None],
    }
    assert isinstance(records["id"], Coded)
    assert isinstance(records["dose"], Numbers)


def test_a_schema_and_missing_tokens_apply(filled: Server) -> None:
    schema = {"id": "code", "large": "number"}
    records = Records.read(filled.url(), table="patients", schema=schema, missing=("", "é"))
    assert isinstance(records["id"], Coded)
    assert records["id"].stated
    assert records.values("large") == [9007199254740992.0, 5.0, None]
    assert records.values("note")[1:] == [None, None]
    with pytest.raises(RecordsError, match="column 'note' is stated as a number, but row 1 holds 'a "):
        Records.read(filled.url(), table="patients", schema={"note": "number"})
    with pytest.raises(RecordsError, match="'doze' that is not there; did you mean 'dose'"):
        Records.read(filled.url(), table="patients", schema={"doze": "number"})


def test_the_same_table_has_the_same_digest_from_a_file(filled: Server, tmp_path: Path) -> None:
    """More rows than are fetched at once."""
    path = tmp_path / "many.parquet"
    duckdb.sql(
        "SELECT g AS row, g % 7 AS week, 'P' || g AS id, g / 4 AS quarter, g % 3 = 0 AS third"
        " FROM range(1, 25001) AS r(g)"
    ).write_parquet(str(path))
    served = Records.read(filled.url(), table="many")
    assert len(served) == 25_000
    assert served.digest == Records.read(path).digest


@pytest.mark.parametrize(
    ("table", "value"), [('clinic.Odd "name"; DROP', 3), ("clinic.seen", 4), ("kept", 5), ("public.kept", 5)]
)
def test_tables_and_views_are_quoted(filled: Server, table: str, value: int) -> None:
    assert Records.read(filled.url(), table=table).values("a") == [value]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("patient", "there is no table 'patient'; did you mean 'patients'"),
        ("patients; DROP TABLE patients", "there is no table"),
        ("pg_catalog.pg_authid", "there is no table"),
        ("nobody", "table 'nobody' holds no patients"),
        (None, "say which table to read"),
    ],
)
def test_a_table_that_is_not_there_or_empty(filled: Server, table: str | None, sentence: str) -> None:
    with pytest.raises(RecordsError, match=sentence):
        Records.read(filled.url(), table=table)
    assert len(Records.read(filled.url(), table="patients")) == 3


def test_a_table_this_user_may_not_read(filled: Server) -> None:
    with pytest.raises(RecordsError, match="table 'secret': this user may not read it"):
        Records.read(filled.url("reader", "read"), table="secret")


def test_a_server_that_does_not_let_us_in_is_named_without_the_password(filled: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        silent = f"postgresql://postgres:opensesame@127.0.0.1:{free.getsockname()[1]}/postgres"
        refusals = {
            silent: "does not answer",
            filled.url(password="opensesame"): "does not accept this user and password",
            filled.url(database="opensesame"): "has no such database",
            "postgresql://postgres:opensesame@[half/x": "this is not a PostgreSQL address",
        }
        for url, sentence in refusals.items():
            with pytest.raises(RecordsError, match=sentence) as refusal:
                Records.read(url, table="patients")
            assert "opensesame" not in str(refusal.value)
            assert "\n" not in str(refusal.value)
            assert refusal.value.__suppress_context__


def test_series_of_a_server(filled: Server) -> None:
    with psycopg.connect(filled.url()) as connection:
        connection.execute(
            """
            CREATE TABLE clinic.visits (stay_id int, charttime timestamp, item text, valuenum numeric, ward text);
            INSERT INTO clinic.visits VALUES
                (7, '2130-01-02 10:20', 'HR', 80, 'a'), (7, '2130-01-02 12:19', 'HR', 91.5, 'a'),
                (3, '2131-05-06 07:00', 'Temp', 37.5, 'b'), (3, '2131-05-06 08:00', 'HR', NULL, 'b')
            """
        )
    series = Series.read(filled.url(), table="clinic.visits")
    assert (list(series.ids), series.lengths.tolist()) == ([3, 7], [2, 2])
    assert series["HR"][:, 1].tolist() == [80.0, 91.5]
    assert series["Temp"][0].tolist()[0] == 37.5


@pytest.mark.parametrize(
    "map",
    [
        {},
        {"decimal": ",", "thousands": "."},
        {"missing": ["5"], "columns": {"high": "exact > 1 or large = 5"}},
        {"decimal": ",", "columns": {"high": "exact = 7 or note = '1.5'"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("schema", [{}, {"exact": "code", "large": "code", "dose": "number"}], ids=str)
def test_one_patient_changes_no_reading_of_the_others(filled: Server, map, schema) -> None:
    """The first row has a whole number of too many digits; without it, numbers are few and small, or missing."""
    with psycopg.connect(filled.url()) as connection:
        connection.execute(
            "CREATE OR REPLACE VIEW fewer AS SELECT * FROM patients WHERE id IS DISTINCT FROM 1"
        )
    all_rows, fewer = (
        Records.read(filled.url(), table=table, schema=schema, map=TableMap.parse(map, "the map"))
        for table in ("patients", "fewer")
    )
    stated = {name: all_rows[name].by_itself for name in all_rows.names}
    assert stated == {name: fewer[name].by_itself for name in fewer.names}
    for name in (name for name in stated if stated[name]):
        first, second = (
            Records({name: read_as_labels(table[name])}).values(name) for table in (all_rows, fewer)
        )
        assert first[1:] == second, name


HOSTILE = """
    CREATE SCHEMA evil;
    CREATE FUNCTION evil.trunc(numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT 666::numeric';
    CREATE FUNCTION evil.abs(numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT 9e20::numeric';
    CREATE FUNCTION evil.same(numeric, numeric) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
    CREATE OPERATOR evil.= (LEFTARG = numeric, RIGHTARG = numeric, FUNCTION = evil.same);
    CREATE FUNCTION evil.current_schema() RETURNS name LANGUAGE sql AS $$ SELECT 'evil'::name $$;
    CREATE FUNCTION evil.leak() RETURNS text LANGUAGE sql AS $$ SELECT 'evil' $$;
    CREATE VIEW evil.pg_matviews AS SELECT 'evil'::text AS schemaname, 'patients'::text AS matviewname;
    CREATE DOMAIN evil.text AS varchar(1);
    CREATE DOMAIN evil.float8 AS pg_catalog.float8 CHECK (false);
    CREATE TABLE evil.heights AS SELECT 1 AS x;
    CREATE TABLE heights AS SELECT 1.5::numeric AS x, 'long' AS note UNION ALL SELECT 2.5, 'longer';
    CREATE USER misled PASSWORD 'read';
    GRANT USAGE ON SCHEMA evil TO misled;
    GRANT SELECT ON heights, evil.heights, evil.pg_matviews TO misled;
    ALTER ROLE misled SET search_path = evil, public, pg_catalog;
"""


def test_no_schema_on_the_search_path_changes_what_is_read(filled: Server) -> None:
    with psycopg.connect(filled.url()) as connection:
        connection.execute(HOSTILE)
    for table in ("public.heights", "heights"):
        with psycopg.connect(filled.url("misled", "read")) as connection:
            assert connection.execute("SELECT trunc(1.5)").fetchone() == (666,)  # the attack works by itself
        records = Records.read(filled.url("misled", "read"), table=table)
        if table == "public.heights":
            assert records.values("x") == [1.5, 2.5]
            assert records.values("note") == ["long", "longer"]
    for path in ("", "nowhere", '"$user"'):
        url = f"{filled.url()}?options=-csearch_path%3D{quote(path)}"
        assert Records.read(url, table="clinic.seen").values("a") == [4]


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=15
) | st.sampled_from(
    [
        'a"b',
        "a; DROP TABLE heights; --",
        "%s %(x)s",
        "{}",
        "{0}",
        "a'b",
        "\u202eevil",
        "select",
        "$$",
        "a.b",
        "A b",
        "/*",
    ]
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    schema=NAMES, table=NAMES, columns=st.lists(NAMES.filter(str.strip), min_size=1, max_size=3, unique=True)
)
def test_whatever_tables_and_columns_are_called_they_are_read(filled, schema, table, columns):
    schema = f"s{schema}"
    names = [psycopg.sql.Identifier(name) for name in (schema, table)]
    whole = psycopg.sql.SQL(".").join(names)
    cells = psycopg.sql.SQL(", ").join(
        psycopg.sql.SQL("{} AS {}").format(psycopg.sql.Literal(place), psycopg.sql.Identifier(name))
        for place, name in enumerate(columns)
    )
    with psycopg.connect(filled.url()) as connection:
        connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(names[0]))
        connection.execute(psycopg.sql.SQL("CREATE TABLE {} AS SELECT {}").format(whole, cells))
    try:
        records = Records.read(filled.url(), table=f"{schema}.{table}")
        assert {name: records.values(name) for name in records.names} == {
            name: [place] for place, name in enumerate(columns)
        }
    finally:
        with psycopg.connect(filled.url()) as connection:
            connection.execute(psycopg.sql.SQL("DROP SCHEMA {} CASCADE").format(names[0]))


def test_a_table_cannot_pass_for_one_of_another_schema(filled: Server) -> None:
    """Whoever may create tables in the usual schema does not thereby replace those of others."""
    with psycopg.connect(filled.url()) as connection:
        connection.execute('CREATE TABLE public."clinic.seen" AS SELECT 666 AS a')
    try:
        with pytest.raises(RecordsError, match=r"two tables are called 'clinic\.seen'; rename one of them"):
            Records.read(filled.url(), table="clinic.seen")
        assert Records.read(filled.url(), table="kept").values("a") == [5]
    finally:
        with psycopg.connect(filled.url()) as connection:
            connection.execute('DROP TABLE public."clinic.seen"')


def test_a_cdm_in_a_schema_is_the_table_that_a_file_of_it_is(server: Server, tmp_path: Path) -> None:
    write_duckdb(tmp_path / "x.duckdb", HOSPITAL)
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE SCHEMA cdm")
        for statement in list_statements(HOSPITAL, schema="cdm"):
            connection.execute(statement)
        connection.execute("CREATE ROLE cdm_reader LOGIN PASSWORD 'r'")
        connection.execute("GRANT USAGE ON SCHEMA cdm TO cdm_reader")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA cdm TO cdm_reader")
    sections = SECTIONS.replace("WAY", "")
    ours = cc.Patients.read(write_cohort(tmp_path / "duckdb.toml", 'omop = "x.duckdb"', sections))
    # A user who may read and nothing else: nothing is written, no table for a while either.
    source = f'omop = "{server.url("cdm_reader", "r")}"\nschema = "cdm"'
    path = write_cohort(tmp_path / "server.toml", source, sections)
    theirs = cc.Patients.read(path)
    assert theirs.digest == ours.digest
    with psycopg.connect(server.url()) as connection:
        connection.execute("REVOKE SELECT ON cdm.measurement FROM cdm_reader")
    with pytest.raises(RecordsError, match="has no table 'measurement' that can be read"):
        cc.Records.read(path)
    write_cohort(path, source.replace('"cdm"', '"omop"'), sections)
    with pytest.raises(RecordsError, match="there is no schema 'omop'; there are: cdm, "):
        cc.Records.read(path)


def test_a_large_table_is_read_again_when_the_server_counts_a_change(filled: Server, tmp_path, monkeypatch):
    monkeypatch.setattr(column_store, "LARGE", 1)
    readings, code = [], column_store._code_batches

    def note(*arguments):
        readings.append(1)
        return code(*arguments)

    monkeypatch.setattr(column_store, "_code_batches", note)

    def read(table: str) -> int:
        before, url = len(readings), filled.url()
        found = Records.read(url, table=table, columns=tmp_path / "north.ledger.columns")
        assert found.digest == Records.read(url, table=table).digest
        return len(readings) - before

    with psycopg.connect(filled.url(), autocommit=True) as connection:
        if connection.info.server_version < COUNTING_VERSION:
            pytest.skip("this server may lose what it counts, so that no store is kept")

        def change(statement: str) -> None:
            connection.execute(statement)
            connection.execute("SELECT pg_stat_force_next_flush()")

        change("CREATE TABLE growing AS SELECT generate_series(1, 50) AS a")
        change("CREATE TABLE other AS SELECT 1 AS a")
        change("CREATE VIEW seen AS SELECT a + 1 AS b FROM growing")
        try:
            assert [read("growing"), read("growing"), read("seen"), read("seen")] == [1, 0, 1, 0]
            change("INSERT INTO other VALUES (2)")
            assert [read("growing"), read("seen"), read("seen")] == [0, 1, 0]
            for statement in (
                "UPDATE growing SET a = 99 WHERE a = 1",
                "DELETE FROM growing WHERE a = 2",
                "TRUNCATE growing",
                "INSERT INTO growing SELECT generate_series(1, 50)",
                "ALTER TABLE growing ADD COLUMN c int",
            ):
                change(statement)
                if "TRUNCATE" not in statement:
                    assert [read("growing"), read("growing")] == [1, 0]
        finally:
            connection.execute("DROP TABLE growing CASCADE")
            connection.execute("DROP TABLE other")
    manifests = list((tmp_path / "north.ledger.columns").rglob("table.json"))
    assert manifests
    assert not any(word in one.read_text() for one in manifests for word in PASSWORD.split())
