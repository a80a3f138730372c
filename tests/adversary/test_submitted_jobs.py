"""Whoever submits jobs, runs the house, or is another member, against what FLARE would do for them: generated jobs,
archives and messages, driven through FLARE's own functions as our processes have changed them."""

from __future__ import annotations

import io
import json
import logging
import stat
import string
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("nvflare")

from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.cellnet import core_cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType, ReturnCode
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.stats_pool import StatsPoolManager
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.utils import wfconf
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.lighter.utils import sign_folders
from nvflare.private import json_configer
from nvflare.private.admin_defs import Message
from nvflare.private.defs import (
    ERROR_MSG_PREFIX,
    CellChannel,
    CellMessageHeaderKeys,
    RequestHeader,
    SysCommandTopic,
    TrainingTopic,
)
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.server import job_runner
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.server.server_commands import ServerCommands

from concilium.errors import HouseError
from concilium.transports.flare import process
from concilium.transports.flare.channel import FlareLine, listen
from concilium.transports.flare.guards import MANAGEMENT, _may_speak
from concilium.transports.flare.job import (
    SITE_CONFIG,
    STUDY,
    check_submitted_job,
    render_job,
    render_site_config,
    write_job,
)
from concilium.transports.flare.transport import Ended
from pairwise import meet_in_pairs

SECRET = "hunter2-of-the-house"
TEXT = '[study]\nname = "burns"\npurpose = "{$DB_PASSWORD} ${DB_PASSWORD}"\n'
JOB = "7b0a4d0e-6f7b-4c43-9d57-0b8d4a3c1f11"
SITES = ("north", "south")
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def guarded(monkeypatch):
    """Guards this process as another of FLARE's, until the test has ended."""
    replaced = [
        (ConfigFactory, "_fmt2Loader"),
        (ConfigFormat, "config_ext_formats"),
        (wfconf, "resolve_var_refs"),
        (json_configer, "resolve_var_refs"),
        (JobMetaValidator, "validate"),
        (FederatedServer, "process_job_failure"),
        (job_runner, "check_client_replies"),
        (job_runner.JobRunner, "resolve_client_outcome"),
        (core_cell.CoreCell, "__init__"),
        (ClientRequestProcessors, "request_processors"),
    ]
    for owner, name in replaced:
        value = getattr(owner, name)
        monkeypatch.setattr(owner, name, value.copy() if isinstance(value, dict | list) else value)
    monkeypatch.setitem(sys.modules, "pyhocon", pytest.importorskip("pyhocon"))
    monkeypatch.setitem(sys.modules, "omegaconf", None)
    logging.disable(logging.CRITICAL)
    yield process._guard
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    """The files of a job as a person submits it, by their paths, folders with None."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("submitted")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ana@example.org")])
    from datetime import UTC, datetime, timedelta

    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "ana.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    job = write_job(folder / "job", "burns", TEXT, "tree", "0" * 32, SITES, {"public.csv": "eJwDAAAAAAE="})
    sign_folders(str(job), key, str(folder / "ana.crt"))
    return {
        f"{path.relative_to(folder)}{'/' if path.is_dir() else ''}": None
        if path.is_dir()
        else path.read_bytes()
        for path in sorted(job.rglob("*"))
    }


def pack(entries, path, **details):
    """An archive of (name, content, mode, compression)."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content, mode, compression in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = (mode or (0o040755 if name.endswith("/") else 0o100644)) << 16
            with (
                pytest.warns(UserWarning, match="Duplicate name")
                if name in archive.namelist()
                else io.BytesIO()
            ):
                archive.writestr(info, content or b"", compress_type=compression)
    return str(path)


def plain(files):
    return [(name, content, 0, zipfile.ZIP_STORED) for name, content in files.items()]


def validate(archive, folder="job"):
    """What the house's main process says of an archive: FLARE's own function, of whom the house asks it."""
    valid, problem, _ = JobMetaValidator().validate(folder, archive)
    return valid, problem


def test_a_job_of_ours_is_accepted_signed_or_not(guarded, signed, tmp_path):
    guarded(process.HOUSE)
    bare = {name: content for name, content in signed.items() if ".__nvfl" not in name}
    for files in (signed, bare):
        assert validate(pack(plain(files), tmp_path / "job.zip")) == (True, "")


EVALUATED = [
    'include file("{secret}")',
    'include url("file://{secret}")',
    'include required(file("{secret}"))',
    'include file("/dev/zero")',
    "name = ${{DB_PASSWORD}}",
    "name: ${{oc.env:DB_PASSWORD}}",
]
PLACES = [
    ("job/meta", True),
    ("job/house/config/config_fed_server", True),
    ("job/site/config/config_fed_client", True),
    ("job/meta", False),
    ("job/house/config/config_fed_server", False),
]


ENDINGS = [".conf", ".yml", ".yaml", ".conf.default", ".json.default"]


@pytest.mark.parametrize(("text", "where", "ending"), meet_in_pairs(EVALUATED, PLACES, ENDINGS))
def test_a_configuration_that_is_evaluated_is_neither_accepted_nor_read(
    guarded, signed, tmp_path, monkeypatch, text, where, ending
):
    place, instead = where
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    secret = tmp_path / "house.conf"
    secret.write_text(f'password = "{SECRET}"\n')
    files = {name: content for name, content in signed.items() if not (instead and name == f"{place}.json")}
    files[f"{place}{ending}"] = text.format(secret=secret).encode()
    opened = []
    guarded(process.HOUSE)
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: opened.append(str(path)) or real(path, *a, **k)
    )
    valid, problem = validate(pack(plain(files), tmp_path / "job.zip"))
    assert not valid
    assert SECRET not in problem
    assert not {str(secret), "/dev/zero"} & set(opened)


@pytest.mark.parametrize("module", [process.HOUSE, process.SITE, process.HOUSE_JOB, process.SITE_JOB])
def test_no_process_reads_or_finds_anything_but_json(guarded, tmp_path, monkeypatch, module):
    """Behind the check of jobs: a configuration on disk, as a job's process looks for it."""
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    (tmp_path / "own.conf").write_text(f'password = "{SECRET}"\n')
    config = f'x = ${{DB_PASSWORD}}\ninclude file("{tmp_path}/own.conf")\n'
    (tmp_path / "config_fed_client.conf").write_text(config)
    read = ConfigFactory.load_config("config_fed_client.json", [str(tmp_path)]).to_dict()
    assert read == {"x": SECRET, "password": SECRET}  # FLARE's own doing
    guarded(module)
    assert ConfigFactory.load_config("config_fed_client.json", [str(tmp_path)]) is None
    assert not ConfigFactory.has_config("config_fed_client.json", [str(tmp_path)])
    for name in ("pyhocon", "omegaconf"):
        with pytest.raises(ImportError):
            __import__(name)
    for form in (ConfigFormat.PYHOCON, ConfigFormat.OMEGACONF):
        assert ConfigFactory.get_config_loader(form) is None


def test_variables_of_the_environment_are_not_put_into_configurations(guarded, tmp_path, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    config = {"format_version": 2, "study": TEXT.replace("${DB_PASSWORD}", ""), "one": "{$DB_PASSWORD}"}
    path = tmp_path / "config_fed_server.json"
    path.write_text(json.dumps(config))

    def read():
        reader = json_configer.JsonConfigurator(str(path), [], [])
        reader.configure()
        return reader.config_data

    assert SECRET in json.dumps(read())  # FLARE's own doing, and why the study is in no configuration
    guarded(process.HOUSE_JOB)
    assert read() == config


def test_the_study_is_in_no_file_that_flare_evaluates(signed):
    told = {name for name, content in signed.items() if content and b"DB_PASSWORD" in content}
    assert told == {f"job/house/config/{STUDY}"}


LINK, PIPE = stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o644
paths = st.one_of(
    st.sampled_from(
        [
            "../../local/policy.toml",
            "/etc/passwd",
            "job/../../x",
            "job/house/custom/code.py",
            "job/site/custom/",
            "job/house/config/../../../../x",
            "C:\\x",
            "job\\meta.json",
            "job/meta.json/x",
            "job/meta.JSON",
            "job/house/config/log_config.json",
            "job/house/config/inner.zip",
            "JOB/meta.json",
            "job//meta.json",
            "job/./meta.json",
            "other/meta.json",
            "job/house/config/.__nvfl_sig.json/x",
            "job/house/.__nvfl_sig.json.bak",
        ]
    ),
    st.lists(
        st.sampled_from(["job", "..", ".", "", "house", "site", "config", "meta.json", "x.conf", "~"]),
        min_size=1,
    ).map("/".join),
    st.text(string.printable, min_size=1, max_size=30),
)
contents = st.one_of(
    st.just(b""), st.just(b"PK\x03\x04nested"), st.binary(max_size=50), st.just(b'{"launcher_spec": {}}')
)


@st.composite
def attacks(draw, files):
    """The entries of a job's archive, changed in one way; and whether its files are changed by that."""
    entries = plain(files)
    kind = draw(st.sampled_from(["add", "drop", "change", "double", "mode", "compress", "swap"]))
    at = draw(st.integers(0, len(entries) - 1))
    name, content, mode, compression = entries[at]
    if kind == "add":
        added = draw(paths)
        entries.insert(draw(st.integers(0, len(entries))), (added, draw(contents), 0, compression))
        return entries, added not in files or not added.endswith("/")
    if kind == "drop":
        del entries[at]
        # Folders are FLARE's to ask for; half a signature is none.
        return entries, content is not None
    if kind == "double":
        entries.append(entries[at])
        return entries, True
    if kind == "mode":
        entries[at] = (
            name,
            content,
            draw(st.sampled_from([LINK, PIPE, stat.S_IFCHR, stat.S_IFSOCK])),
            compression,
        )
        return entries, True
    if content is None or not content:
        entries[at] = (name, draw(st.binary(min_size=1, max_size=9)), mode, compression)
        return entries, True
    if kind == "compress":
        entries[at] = (name, content, mode, draw(st.sampled_from([8, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])))
    elif kind == "swap":
        entries[at] = (name, b"../../x", LINK, compression)
    else:
        place = draw(st.integers(0, len(content) - 1))
        new = content[:place] + bytes([content[place] ^ draw(st.integers(1, 255))]) + content[place + 1 :]
        entries[at] = (name, new, mode, compression)
        # A signature, certificate or study that is another, and still one, is FLARE's to refuse: it verifies them.
        return entries, ".__nvfl" not in name and not name.endswith("/study.json")
    return entries, True


def test_a_file_outside_of_the_folder_does_not_pass_for_one_inside(signed, tmp_path):
    for name in signed:
        entries = [(name.removeprefix("job/"), b"", 0, 0), *plain(signed)]
        pack([entry for entry in entries if entry[0]], tmp_path / "job.zip")
        if name != "job/":
            with pytest.raises(HouseError):
                check_submitted_job("job", tmp_path / "job.zip")


@quick
@given(data=st.data())
def test_an_archive_that_differs_in_anything_is_refused_and_writes_nothing(signed, tmp_path, data):
    entries, differs = data.draw(attacks(signed))
    archive = tmp_path / "job.zip"
    try:
        pack(entries, archive)
    except ValueError:  # not even Python's own packer takes such a name
        return
    before = sorted(path.name for path in tmp_path.rglob("*"))
    try:
        study = check_submitted_job("job", archive)
    except HouseError:
        pass
    else:
        assert not differs
        files = {name.removeprefix("job/"): content for name, content, *_ in entries}
        assert all(files[name] == content for name, content in render_job(study).items())
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@quick
@given(
    field=st.sampled_from(["name", "ticket", "sites", "files", "study", "method", "launcher_spec", "job_id"]),
    value=st.one_of(
        st.sampled_from(
            [
                "",
                "../x",
                "a\nb",
                ["server"],
                ["@ALL"],
                ["a", "a"],
                [],
                ["../x"],
                {"../x": ""},
                {"/etc/x": ""},
                7,
                None,
            ]
        ),
        st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    ),
)
def test_a_study_of_another_form_is_refused_even_where_the_rest_follows_from_it(tmp_path, field, value):
    """The attacker writes the study, and has our own code make the files around it."""
    from concilium.transports.flare.job import SubmittedStudy

    good = {"name": "b", "study": "x", "method": "tree", "ticket": "0" * 32, "sites": ("north",), "files": {}}
    try:
        job = render_job(SubmittedStudy(**{**good, field: value}))
    except TypeError:
        return
    archive = pack(plain({f"job/{name}": content for name, content in job.items()}), tmp_path / "job.zip")
    try:
        study = check_submitted_job("job", archive)
    except HouseError:
        return
    assert isinstance(study.study, str)
    assert study.sites
    assert not set(study.sites) & {"server", "@ALL"}
    assert all("/" not in name and ".." not in name for name in (*study.sites, *study.files))


@pytest.mark.parametrize("folder", ["..", ".", "", "job/house", "/job", "job\n", "-", "a" * 101])
def test_the_folder_that_a_job_is_said_to_be_in_is_a_plain_name(signed, tmp_path, folder):
    moved = {name.replace("job/", f"{folder}/", 1): content for name, content in signed.items()}
    with pytest.raises(HouseError):
        check_submitted_job(f"{folder}" if folder != "-" else "-\\", pack(plain(moved), tmp_path / "job.zip"))


def write_deflated_bomb(path, signed):
    pack([*plain(signed), ("job/house/config/x.json", bytes(1 << 26), 0, zipfile.ZIP_DEFLATED)], path)


def write_bomb_of_entries(path, signed):
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1 << 14):
            archive.writestr(f"{number}", b"")


def write_overlapping_bomb(path, signed):
    """Entries of which each is said to hold the same bytes."""
    pack(
        [("job/meta.json", bytes(1 << 20), 0, 0), *((f"job/{n:04d}.json", b"", 0, 0) for n in range(60))],
        path,
    )
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    while (at := data.find(b"PK\x01\x02", at + 4)) > 0:
        data[at + 20 : at + 28] = (1 << 20).to_bytes(4, "little") * 2
    path.write_bytes(data)


def write_wide_directory(path, signed):
    """As a 64-bit archive, whose end may say anything."""
    path.write_bytes(b"PK\x06\x06" + bytes(52) + b"PK\x06\x07" + bytes(16) + b"PK\x05\x06" + bytes(18))


def write_large_job(path, signed):
    with path.open("wb") as file:
        file.truncate(1 << 34)


@pytest.mark.parametrize(
    "write",
    [
        write_deflated_bomb,
        write_bomb_of_entries,
        write_overlapping_bomb,
        write_wide_directory,
        write_large_job,
    ],
)
def test_an_archive_larger_inside_than_outside_takes_no_memory(signed, tmp_path, write):
    archive = tmp_path / "job.zip"
    write(archive, signed)
    tracemalloc.start()
    try:
        with pytest.raises(HouseError):
            check_submitted_job("job", archive)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def open_kit(folder):
    for name in ("local", "startup", "transfer"):
        (folder / name).mkdir(parents=True)
        (folder / name / "kept").write_text("kept")
    return SimpleNamespace(args=SimpleNamespace(workspace=str(folder)), get_client_name=lambda: "north")


def list_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


jobs = st.one_of(
    st.just(JOB),
    st.sampled_from(
        ["local", "startup", "transfer", "..", ".", "", "local/..", "/etc", f"{JOB}/..", f"../{JOB}", None, 7]
    ),
    st.text(max_size=12),
)


@quick
@given(
    job=jobs,
    body=st.sampled_from([b"", b"PK", "evil"]),
    meta=st.sampled_from(
        [None, {}, {"byoc": True}, {"launcher_spec": {"north": {"docker": {"image": "x"}}}}]
    ),
)
def test_a_hospital_takes_nothing_of_a_deployed_job_but_its_number(
    tmp_path_factory, guarded, job, body, meta
):
    guarded(process.SITE)
    folder = tmp_path_factory.mktemp("kit")
    engine = open_kit(folder)
    before = list_files(folder)
    (deploy,) = [
        one for one in ClientRequestProcessors.request_processors if TrainingTopic.DEPLOY in one.get_topics()
    ]
    request = Message(TrainingTopic.DEPLOY, b"PK\x03\x04" if body == "evil" else body)
    request.set_headers(
        {RequestHeader.JOB_ID: job, RequestHeader.JOB_META: meta, RequestHeader.APP_NAME: "../x"}
    )
    reply = deploy.process(request, engine)
    after = list_files(folder)
    if job == JOB:
        own = {name: content for name, content in after.items() if name not in before}
        assert own.pop(f"{JOB}/app_north/config/{Path(SITE_CONFIG).name}") == render_site_config()
        assert json.loads(own.pop(f"{JOB}/meta.json")) == {
            "job_id": JOB,
            "resource_spec": {},
            "job_clients": [],
        }
        assert not own
    else:
        assert "_error" in str(reply.headers)
    assert before.items() <= after.items()


def test_a_hospital_answers_requests_of_a_job_and_no_others(guarded):
    guarded(process.SITE)
    topics = {topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()}
    refused = {SysCommandTopic.SHELL, TrainingTopic.DELETE_RUN, TrainingTopic.SHUTDOWN, TrainingTopic.RESTART}
    assert not topics & {*refused, TrainingTopic.CONFIGURE_JOB_LOG, SysCommandTopic.CONFIGURE_SITE_LOG}
    assert len(topics) == 6


@pytest.mark.parametrize("job", ["local", "..", "startup"])
def test_a_request_about_what_is_no_job_is_refused(guarded, job):
    guarded(process.SITE)
    for one in ClientRequestProcessors.request_processors:
        request = Message(one.get_topics()[0], {})
        request.set_header(RequestHeader.JOB_ID, job)
        assert "_error" in str(one.process(request, None).headers)


# The cells of a network, and what each may be told by which.
CELLS = ["server", f"server.{JOB}", *(f"{site}{job}" for site in (*SITES, "ana") for job in ("", f".{JOB}"))]
CHANNELS = [
    CellChannel.CLIENT_MAIN,
    CellChannel.SERVER_COMMAND,
    CellChannel.CLIENT_COMMAND,
    CellChannel.AUX_COMMUNICATION,
    "concilium",
    MANAGEMENT,
]


def find_member(cell):
    return cell.split(".")[0]


def deliver(cell, neighbour, origin, channel, topic, more=None):
    """Whether a guarded cell takes a message to itself: by FLARE's own function."""
    taken = []
    cell.register_request_cb(channel, topic, lambda message: taken.append(message))
    message = CellMessage(
        {
            MessageHeaderKey.MSG_TYPE: MessageType.REQ,
            MessageHeaderKey.ORIGIN: origin,
            MessageHeaderKey.DESTINATION: cell.get_fqcn(),
            MessageHeaderKey.CHANNEL: channel,
            MessageHeaderKey.TOPIC: topic,
            **(more or {}),
        }
    )
    cell.process_message(Endpoint(neighbour), None, 0, message)
    return bool(taken)


def deliver_streamed(cell, neighbour, origin, channel, topic):
    """The same in a stream, which has the channel of streams and names its own besides."""
    own = {StreamHeaderKey.CHANNEL: channel, StreamHeaderKey.TOPIC: topic}
    return deliver(cell, neighbour, origin, STREAM_CHANNEL, STREAM_DATA_TOPIC, own)


@pytest.fixture
def cells(guarded, monkeypatch):
    guarded(process.SITE_JOB)
    monkeypatch.setattr(StatsPoolManager, "pools", {})
    made = {name: build_cell(name) for name in CELLS if find_member(name) != "ana"}
    yield made
    for name in made:
        core_cell.CoreCell.ALL_CELLS.pop(name, None)


def build_cell(name):
    return core_cell.CoreCell(
        fqcn=name,
        root_url="tcp://localhost:1",
        secure=False,
        credentials={},
        create_internal_listener=False,
        parent_url=None,
    )


def test_no_member_speaks_in_the_name_of_another(cells):
    """Every origin that can be written, over the connection of every member, to every process."""
    for own, cell in cells.items():
        for neighbour in CELLS:
            for origin in CELLS:
                if find_member(neighbour) == find_member(origin) or own != "server":
                    continue
                for channel in CHANNELS:
                    assert not deliver(cell, neighbour, origin, channel, "any"), (
                        own,
                        neighbour,
                        origin,
                        channel,
                    )


def test_a_hospital_hears_the_house_and_itself(cells):
    for own, cell in cells.items():
        if find_member(own) == "server":
            continue
        for origin in CELLS:
            heard = {channel for channel in CHANNELS if deliver(cell, "server", origin, channel, "any")}
            if find_member(origin) == find_member(own):
                assert heard == set(CHANNELS)
            else:
                assert heard == (set(CHANNELS) - {MANAGEMENT} if find_member(origin) == "server" else set())


@pytest.mark.parametrize("send", [deliver, deliver_streamed])
def test_only_the_house_itself_commands_the_process_of_a_study(cells, send):
    """A hospital, or another person, neither ends a study nor fetches what came of it."""
    cell = cells[f"server.{JOB}"]
    topics = {command.get_command_name() for command in ServerCommands.commands} - {"get_task"}
    assert {"abort", "app_command", "submit_update"} <= topics
    for origin in CELLS:
        for topic in topics:
            taken = send(cell, "server", origin, CellChannel.SERVER_COMMAND, topic)
            assert taken == (find_member(origin) == "server"), (origin, topic)
        masked = {StreamHeaderKey.CHANNEL: "concilium", StreamHeaderKey.TOPIC: "any"}
        taken = deliver(cell, "server", origin, CellChannel.SERVER_COMMAND, "abort", masked)
        assert taken == (find_member(origin) == "server")


def test_the_error_of_a_stream_at_which_flare_ends_itself_is_not_believed(cells):
    cell = cells[f"server.{JOB}"]
    error = {StreamHeaderKey.ERROR_TYPE: "BlobSizeError"}
    for origin in CELLS:
        taken = deliver(cell, "server", origin, STREAM_CHANNEL, STREAM_ERROR_TOPIC, error)
        assert taken == (find_member(origin) == "server")


@quick
@given(
    own=st.sampled_from(CELLS), origin=st.text("serv.norh", max_size=12), channel=st.sampled_from(CHANNELS)
)
def test_names_that_resemble_another_are_others(own, origin, channel):
    if find_member(own) not in ("server", origin.split(".")[0]) and find_member(origin) != "server":
        assert not _may_speak(own, "server", origin, channel, "any")
    if own == "server" and find_member(origin) != "north":
        assert not _may_speak(own, "north", origin, channel, "any")


@pytest.mark.parametrize("origin", [name for name in CELLS if name != f"server.{JOB}"])
def test_a_site_is_greeted_by_the_house_of_its_job_alone(origin):
    registered, heard = {}, []
    core = SimpleNamespace(register_request_cb=lambda channel, topic, take: registered.update({topic: take}))
    engine = SimpleNamespace(get_cell=lambda: SimpleNamespace(core_cell=core))
    listen(engine, JOB, "hello", lambda body: heard.append(body) or b"hello")

    def send(origin):
        reply = registered["hello"](CellMessage({MessageHeaderKey.ORIGIN: origin}, b"hi"))
        return reply.get_header(MessageHeaderKey.RETURN_CODE)

    assert send(origin) == ReturnCode.INVALID_REQUEST
    assert not heard
    assert send(f"server.{JOB}") == ReturnCode.OK


CODES = [getattr(ProcessExitCode, name) for name in vars(ProcessExitCode) if name.isupper()]


@pytest.mark.parametrize("code", [*CODES, 1, 9, -9, 255, "x", None])
def test_a_site_whose_process_fails_fails_nobody_else(guarded, code):
    guarded(process.HOUSE)
    resolved, ended = [], []
    runner = SimpleNamespace(
        is_client_outcome_pending=lambda job, site: True,
        fail_run=lambda *told: ended.append(told),
        stop_run=lambda *told: ended.append(told),
        resolve_client_outcome=lambda *told: resolved.append(told),
    )
    clients = {"token": SimpleNamespace(name="north")}
    server = SimpleNamespace(
        client_manager=SimpleNamespace(is_from_authorized_client=clients.__contains__, clients=clients),
        engine=SimpleNamespace(job_runner=runner, new_context=io.BytesIO),
        logger=logging.getLogger(),
    )
    report = CellMessage(
        {CellMessageHeaderKeys.TOKEN: "token"}, {"job_id": JOB, "code": code, "reason": "it failed"}
    )
    FederatedServer.process_job_failure(server, report)
    assert resolved == [(JOB, "north")]
    assert not ended


def test_the_process_of_a_study_learns_at_once_that_a_site_s_has_ended(guarded, tmp_path):
    guarded(process.HOUSE)
    runner = job_runner.JobRunner(str(tmp_path))
    calls = []
    engine = SimpleNamespace(get_client_from_name=lambda site: calls.append(site))
    line = FlareLine(engine, JOB, tmp_path / JOB, SimpleNamespace(triggered=False))
    runner.resolve_client_outcome(JOB, "north")  # of a job whose folder is gone: nothing is made
    assert not list(tmp_path.iterdir())
    (tmp_path / JOB).mkdir()
    runner.resolve_client_outcome(JOB, "north")
    assert isinstance(line("north", "hello", b"", 1.0), Ended)
    assert not isinstance(line("south", "hello", b"", 1.0), Ended)
    assert calls == ["south"]


@pytest.mark.parametrize("failing", [(), ("north",), SITES])
def test_a_site_that_cannot_start_a_job_is_left_out_of_it(guarded, failing):
    guarded(process.HOUSE)
    replies = [
        SimpleNamespace(
            client_name=site,
            reply=Message("start", f"{ERROR_MSG_PREFIX}: no launcher" if site in failing else "OK"),
        )
        for site in SITES
    ]
    assert job_runner.check_client_replies(replies, list(SITES), "start job") == []
    assert [one.client_name for one in replies if one.reply is None] == list(failing)


def test_a_guarded_process_is_one_of_four():
    done = subprocess.run(
        [sys.executable, "-m", process.__name__, "http.server"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1
    assert "http.server is not a process of the network" in done.stderr
