"""Kits: made, hardened, checked before anything starts; whatever is wrong is a sentence with a site and a remedy."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import ConciliumError, KitError, MissingExtra, StudyError
from concilium.study.study import Study
from concilium.transports.flare.kit import HouseNotThere, Kit
from concilium.transports.flare.own_files import SiteFile
from concilium.transports.flare.own_log import start_own_log
from concilium.transports.flare.parent import _watch_dates
from concilium.transports.flare.provisioning import SITE_FILE, FlareProject
from concilium.transports.flare.starting import prepare_site
from flare_network import PERSON, FlareNetwork, invoke

pytest.importorskip("nvflare")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return FlareNetwork(tmp_path_factory.mktemp("kits"))


@pytest.fixture
def kits(network, tmp_path):
    """A copy of the kits that a test may spoil."""
    return shutil.copytree(network.kits, tmp_path / "kits")


@pytest.fixture(autouse=True)
def no_log_after():
    """A command's log is its process's; here it ends with the test."""
    yield
    logger = logging.getLogger("concilium")
    logger.setLevel(logging.NOTSET)
    for handler in [one for one in logger.handlers if isinstance(one, logging.FileHandler)]:
        logger.removeHandler(handler)
        handler.close()


def check(*arguments):
    done = invoke("flare", *arguments, "--check", check=False)
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('name = "burns"', 'name = "burns and more"'), "[project] name must be a name of letters"),
        (('"ana@example.org"', '"ana"'), "'ana' is not an e-mail address"),
        (("port = 8402", "port = 0"), "[house] port must be a whole number from 1 to 65535"),
        (('name = "south"', 'name = "North"'), "two are named 'North'"),
        (('name = "south"', 'name = "house"'), "'house' is the name of something else"),
        (('name = "south"', 'name = "north-state"'), "'north-state' is the name of something else"),
        (("[house]", "[hose]"), "there is no section [hose]; did you mean 'house'?"),
        (('[[site]]\nname = "north"\n[[site]]\nname = "south"\n', ""), "name every hospital by a [[site]]"),
    ],
)
def test_a_project_file_that_is_wrong_is_one_sentence(tmp_path, change, complaint):
    path = tmp_path / "network.toml"
    text = (
        '[project]\nname = "burns"\npeople = ["ana@example.org"]\n[house]\nhost = "house.example.org"\nport = 8402\n'
        '[[site]]\nname = "north"\n[[site]]\nname = "south"\n'
    )
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(KitError) as error:
        FlareProject.read(path)
    assert complaint in str(error.value)
    assert str(path) in str(error.value)


def test_kits_hold_what_each_needs_and_keys_are_their_owner_s(network):
    for kit in (*network.sites, "house", PERSON):
        for key in (network.kits / kit / "startup").glob("*.key"):
            assert key.stat().st_mode & 0o077 == 0
        assert not list((network.kits / kit).rglob("*.sh"))
    assert (network.kits / "north").stat().st_mode & 0o077 == 0
    rules = json.loads((network.kits / "north" / "local" / "authorization.json").read_text())["permissions"]
    assert {rights["byoc"] for rights in rules.values()} == {"none"}
    assert {rights["shell_commands"] for rights in rules.values()} == {"none"}
    resources = json.loads((network.kits / "north" / "local" / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == ["concilium.transports.flare.site_job.FlareSite"]
    assert resources["allow_log_streaming"] is False
    assert not any("log" in component["id"] for component in resources["components"])


def test_a_hospital_is_added_and_a_kit_made_anew_without_touching_others(network, tmp_path):
    kits = shutil.copytree(network.kits, tmp_path / "kits")
    project = tmp_path / "network.toml"
    project.write_text((network.folder / "network.toml").read_text() + '[[site]]\nname = "east"\n')
    before = {kit: (kits / kit / "startup" / "client.crt").read_bytes() for kit in network.sites}
    shutil.rmtree(kits / "coast")
    made = json.loads(invoke("flare", "provision", project, "--out", kits, "--json").stdout)
    assert sorted(made) == ["coast", "east"]
    for kit in ("north", "south"):
        assert (kits / kit / "startup" / "client.crt").read_bytes() == before[kit]
    assert (kits / "coast" / "startup" / "client.crt").read_bytes() != before["coast"]
    assert (kits / "east" / "startup" / "rootCA.pem").read_bytes() == (
        kits / "north" / "startup" / "rootCA.pem"
    ).read_bytes()


def test_a_renewed_kit_has_a_new_certificate_and_all_else_as_it_was(network, tmp_path):
    """Whoever deletes a kit to have it renewed deletes a ledger that lies in it, and the house's identity."""
    kits = shutil.copytree(network.kits, tmp_path / "kits")
    (kits / "north" / "local" / "north.ledger").write_bytes(b"what has left")

    def read(kit, startup):
        return {
            path.relative_to(kits): path.read_bytes()
            for path in sorted((kits / kit).rglob("*"))
            if path.is_file() and ("startup" in path.parts) == startup
        }

    kept = {kit: read(kit, startup=False) for kit in ("house", "north", "south", "coast")}
    others = {kit: read(kit, startup=True) for kit in ("south", "coast", PERSON)}
    command = ("flare", "provision", network.folder / "network.toml", "--out", kits)
    made = json.loads(invoke(*command, "--renew", "north", "--renew", "house", "--json").stdout)
    assert sorted(made) == ["house", "north"]
    assert {kit: read(kit, startup=False) for kit in kept} == kept
    assert {kit: read(kit, startup=True) for kit in others} == others
    for kit, role, stem in (("north", "site", "client"), ("house", "house", "server")):
        own = Kit.open(kits / kit, role)
        assert own.certificate != Kit.open(network.kits / kit, role).certificate
        assert (kits / kit / "startup" / f"{stem}.key").stat().st_mode & 0o077 == 0
        assert not list((kits / kit / "startup").glob("*.sh"))
    done = invoke(*command, "--renew", "nroth", check=False)
    assert "there is no kit 'nroth' to renew; did you mean 'north'?" in done.stderr
    assert "--renew" in invoke(*command, check=False).stderr


def reissue(kits, name, starts, ends):
    """The certificate of a kit with other dates, by the authority of its project."""
    state = json.loads((kits / "authority" / "burns" / "state" / "cert.json").read_text())
    authority = load_pem_private_key(state["root_pri_key"].encode(), password=None)
    path = kits / name / "startup" / "client.crt"
    old = x509.load_pem_x509_certificate(path.read_bytes())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + starts)
        .not_valid_after(now + ends)
    )
    path.write_bytes(builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM))


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


DAY = timedelta(days=1)
SPOILED = {
    "expired": (lambda kits: reissue(kits, "north", -10 * DAY, -DAY), "north: its certificate expired on"),
    "not yet": (lambda kits: reissue(kits, "north", DAY, 9 * DAY), "this machine's clock says"),
    "mixed": (
        lambda kits: shutil.copy(kits / "south/startup/client.key", kits / "north/startup/client.key"),
        "files of two kits, or of two projects, were mixed",
    ),
    "byoc": (
        lambda kits: edit(
            kits / "north/local/authorization.json",
            lambda rules: rules["permissions"]["lead"].update(byoc="any"),
        ),
        "authorization.json: these are not the rules that concilium writes",
    ),
    "classes": (
        lambda kits: edit(
            kits / "north/local/resources.json",
            lambda rules: rules["class_allow_list"].append("subprocess.Popen"),
        ),
        "resources.json: these are not the rules that concilium writes",
    ),
    "logs": (
        lambda kits: edit(
            kits / "north/local/resources.json", lambda rules: rules.update(allow_log_streaming=True)
        ),
        "no log leaves; delete the file",
    ),
    "custom": (
        lambda kits: (kits / "north/local/custom").mkdir(),
        "a folder with code for jobs has no place",
    ),
    "records": (
        lambda kits: (kits / "north/local/concilium.toml").write_text(
            '[site]\nrecords = "gone.csv"\npolicy = "policy.toml"\nledger = "north.ledger"\n'
        ),
        "gone.csv",
    ),
    "policy": (lambda kits: (kits / "north/local/policy.toml").unlink(), "policy.toml: cannot be read"),
    "key": (
        lambda kits: (kits / "north/local/concilium.toml").write_text('[site]\nrecord = "gone.csv"\n'),
        "[site] has no key 'record'; did you mean 'records'?",
    ),
    "nothing": (
        lambda kits: (kits / "north/local/concilium.toml").write_text(
            '[site]\npolicy = "policy.toml"\nledger = "north.ledger"\n'
        ),
        "[site] needs the key 'records'",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_site_with_a_spoiled_kit_does_not_start_and_says_why_in_its_log_too(kits, case):
    spoil, complaint = SPOILED[case]
    spoil(kits)
    with pytest.raises(ConciliumError) as error:
        prepare_site(Kit.open(kits / "north", "site"), lambda text: None)
    assert complaint in str(error.value)
    if case != "mixed":  # of whose kit it is, nothing is known
        assert complaint in (kits / "north" / "concilium.log").read_text()


def test_a_kit_of_another_role_and_a_folder_that_is_none(kits, tmp_path):
    assert (
        check("site", kits / "house")[1]
        .strip()
        .endswith("is the kit of the house, and this command needs that of a hospital")
    )
    assert "is not a kit" in check("house", tmp_path)[1]


def test_a_house_whose_port_is_in_use_names_it(kits, network):
    with socket.socket() as other:
        other.bind(("0.0.0.0", network.port))
        other.listen()
        code, said = check("house", kits / "house")
    assert code == 2
    assert f"port {network.port} cannot be listened at (Address already in use)" in said
    assert f"port {network.port}" in (kits / "house" / "concilium.log").read_text()


class Listener:
    """TLS as the house would do it, with the certificate of some kit."""

    def __init__(self, kit, port, authority=None):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(kit / "startup/server.crt", kit / "startup/server.key")
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.load_verify_locations(authority or kit / "startup/rootCA.pem")
        self.port = port

    def __enter__(self):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", self.port))
        self.socket.listen()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        return self

    def serve(self):
        while True:
            try:
                plain, _ = self.socket.accept()
            except OSError:
                return
            try:
                with self.context.wrap_socket(plain, server_side=True) as secured:
                    secured.settimeout(5)
                    secured.recv(1)
            except OSError:
                pass

    def __exit__(self, *exception):
        self.socket.shutdown(socket.SHUT_RDWR)  # which ends the wait for another connection
        self.socket.close()
        self.thread.join(600)


def test_a_site_knows_its_house_from_others_and_from_nobody(network, tmp_path):
    other = FlareNetwork(tmp_path, port=network.port)
    kit = Kit.open(network.kits / "north", "site")
    with pytest.raises(HouseNotThere, match=rf"north: nobody answers at localhost:{network.port}"):
        kit.check_house()
    with Listener(network.kits / "house", network.port):
        kit.check_house()
    with (
        Listener(other.kits / "house", network.port),
        pytest.raises(KitError, match=r"north: at localhost.*is the house of another project than 'burns'"),
    ):
        kit.check_house()
    authority = other.kits / "house/startup/rootCA.pem"
    with (
        Listener(network.kits / "house", network.port, authority),
        pytest.raises(KitError, match=r"north: the house at .* does not take this kit's certificate"),
    ):
        kit.check_house()


@pytest.mark.parametrize("house", ["nobody", "silent"])
def test_a_check_ends_where_the_house_cannot_be_reached(kits, network, house, monkeypatch):
    """It had tried again for ever; a site that is started still does."""
    monkeypatch.setattr("concilium.transports.flare.kit.CONNECTED_WITHIN", 0.3)
    monkeypatch.setattr(
        "concilium.transports.flare.starting.time.sleep", lambda pause: pytest.fail("it waits")
    )
    with contextlib.ExitStack() as stack:
        if house == "silent":  # takes the connection and never says a word
            other = stack.enter_context(socket.create_server(("127.0.0.1", network.port)))
            other.listen()
        with pytest.raises(HouseNotThere, match=rf"north: nobody answers at localhost:{network.port}"):
            prepare_site(Kit.open(kits / "north", "site"), lambda text: None, wait=False)
    assert "nobody answers" in (kits / "north" / "concilium.log").read_text()


@pytest.fixture(scope="module")
def kit(network):
    return Kit.open(network.kits / "north", "site")


@given(days=st.integers(-400, 400), hours=st.integers(0, 23))
@settings(max_examples=60, deadline=None)
def test_an_end_is_said_thirty_days_ahead_and_every_day_of_them(kit, days, hours):
    ends = kit.certificate.not_valid_after_utc
    now = ends - timedelta(days=days, hours=hours)
    if days < 0:
        with pytest.raises(KitError, match=r"its certificate expired on .*--renew"):
            kit.check_dates(now)
    elif now < kit.certificate.not_valid_before_utc:
        with pytest.raises(KitError, match="set the clock"):
            kit.check_dates(now)
    else:
        said = kit.check_dates(now)
        assert (f"expires on {ends:%Y-%m-%d}, in {days} days" in said) == (days < 30)


def test_the_end_of_the_authority_is_said_too(kit):
    forever = SimpleNamespace(
        not_valid_before_utc=kit.certificate.not_valid_before_utc,
        not_valid_after_utc=kit.authority.not_valid_after_utc + 400 * DAY,
    )
    late = replace(kit, certificate=forever)
    assert "the authority of this network ends on" in late.check_dates(
        kit.authority.not_valid_after_utc - 9 * DAY
    )


def test_a_running_process_looks_every_day(kits, monkeypatch):
    """The certificate ends while the site runs, which had been said at the start alone."""
    reissue(kits, "north", -10 * DAY, 40.5 * DAY)
    kit = Kit.open(kits / "north", "site")
    days = iter(range(1, 60))
    now = datetime.now(UTC)
    check = Kit.check_dates
    monkeypatch.setattr(Kit, "check_dates", lambda self: check(self, now + next(days) * DAY))

    class Stop:
        asked: ClassVar[list[float]] = []

        def wait(self, seconds):
            self.asked.append(seconds)
            if len(self.asked) == 20:
                reissue(kits, "north", -DAY, 300 * DAY)
            return len(self.asked) > 45

    log = start_own_log(kit.folder, "north")
    _watch_dates(kit, log, Stop())
    assert set(Stop.asked) == {24 * 3600.0}
    lines = (kits / "north" / "concilium.log").read_text().splitlines()
    assert [line.split()[2] for line in lines] == ["WARNING"] * 30 + ["ERROR"] * 5
    assert "start again, and it is used" not in lines[0]
    assert "start again, and it is used" in lines[-1]


def test_a_ledger_in_the_kit_is_warned_of_and_the_file_that_is_made_names_another_place(kits, tmp_path):
    for site in ("north", "south"):  # one as provisioned
        text = SITE_FILE.format(name=site).replace("records.csv", str(tmp_path / "a.csv"))
        (kits / site / "local" / "concilium.toml").write_text(text)
    rows = "\n".join(f"{age},{age % 2}" for age in range(30, 60))
    (tmp_path / "a.csv").write_text(f"age,death\n{rows}\n")
    inside = text.replace("../../south-state/", "")
    (kits / "south" / "local" / "concilium.toml").write_text(inside)
    shutil.rmtree(kits / "north-state")
    for site, warned in (("north", False), ("south", True)):
        said = []
        with pytest.raises(HouseNotThere):
            prepare_site(Kit.open(kits / site, "site"), said.append, wait=False)
        assert any("lies in the kit and must outlive it" in line for line in said) == warned
    assert (kits / "north-state" / "north.ledger").exists()
    assert (kits / "north-state").stat().st_mode & 0o077 == 0


def test_a_hospital_s_own_map_and_dictionary_say_how_its_table_is_read(kits):
    rows = "\n".join(f"{age},{age % 2}" for age in range(30, 60))
    (kits / "north/local/own.csv").write_text(f"age,death\n{rows}\n?,1\n")
    (kits / "north/local/concilium.toml").write_text(
        '[site]\nrecords = "own.csv"\npolicy = "policy.toml"\nledger = "own.ledger"\n[map]\nmissing = ["?"]\n'
        '[dictionary.age]\ntype = "number"\nunit = "years"\n[dictionary.death]\ntype = "code"\n'
    )
    site = SiteFile.read(kits / "north").open("north")
    assert "31 patients" in repr(site)
    site.ledger.close()
    (kits / "north/local/own.csv").write_text(f"age,death\n{rows}\nold,1\n")
    with pytest.raises(ConciliumError, match="old"):
        SiteFile.read(kits / "north").open("north")


STUDY = '[study]\nname = "a"\nmethod = "tree"\ntarget = "death"\n'


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ('[sites]\nrecords = "a.csv"\nby = "ward"\n', "[sites] splits one table"),
        ('[[site]]\nname = "north"\nrecords = "a.csv"\n', "[[site]] number 1 has 'records'"),
        ('[[site]]\nname = "north"\npolicy = "a.toml"\n', "[[site]] number 1 has 'policy'"),
        ('[house]\nidentity = "a"\n', "[house] identity is not for this file"),
        ('[evaluate]\nleave_out = "site"\n', "[evaluate] leave_out needs the hospitals' names"),
        ('[evaluate]\nleave_out = "band:10"\n', "bands go by numbers of patients"),
        ("[evaluate]\n", "[evaluate] of this kind needs all records at hand"),
        ('[schema]\nage = "number"\n', "[schema] says how records are read"),
        ('[[site]]\nname = "a"\n[[site]]\nname = "a"\n', "two sites are named 'a'"),
    ],
)
def test_a_study_across_machines_says_nothing_that_hospitals_say_themselves(tmp_path, more, complaint):
    path = tmp_path / "study.toml"
    path.write_text(STUDY + more)
    with pytest.raises(StudyError) as error:
        Study.read(path, elsewhere=True)
    assert complaint in str(error.value)


def test_a_study_in_one_process_still_needs_records(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(STUDY + '[[site]]\nname = "north"\n')
    assert [hospital.name for hospital in Study.read(path, elsewhere=True).hospitals] == ["north"]
    with pytest.raises(StudyError, match="needs the key 'records'"):
        Study.read(path)


def test_without_the_extra_the_command_says_how_to_install_it(monkeypatch):
    from concilium.cli import flare

    monkeypatch.setattr(flare.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'concilium\[flare\]'"):
        flare.require_flare()


def test_a_session_reads_no_settings_of_the_folder_it_is_opened_in(kits, tmp_path, monkeypatch):
    """FLARE looks for them where a person happens to be, in all folders below, and has HOCON evaluated."""
    from nvflare.fuel.flare_api import flare_api
    from nvflare.fuel.utils.config_service import ConfigService

    from concilium.transports.flare.session import open_session

    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "comm_config.conf").write_text("max_message_size = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ConfigService, "_config_path", [])
    assert ConfigService.load_configuration("comm_config.json") is not None
    monkeypatch.setattr(Kit, "check_house", lambda kit: None)
    monkeypatch.setattr(
        flare_api,
        "new_secure_session",
        lambda *_, **__: ConfigService.load_configuration("comm_config.json"),
    )
    with open_session(Kit.open(kits / PERSON, "person")) as found:
        assert found is None
