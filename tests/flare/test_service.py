"""House and site as services: under the units that are shipped, nothing else writable, on a real network."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import psutil
import pytest

from concilium.privacy.identity import Identity
from flare_network import CONCILIUM, PATIENCE, PERSON, FlareNetwork, invoke, run_command, write_records

pytest.importorskip("nvflare")

UNITS = Path(str(files("concilium.transports.flare") / "units"))
VIEW = [
    "unshare",
    "--map-root-user",
    "--mount",
    sys.executable,
    str(Path(__file__).with_name("strict_view.py")),
]
OTHER = "bob@example.org"

STUDY = """
[study]
name = "{name}"
method = "tree"
target = "death"
[privacy]
release = "exact"
[bins]
age = [30, 50, 70]
bsa = [10, 20, 40, 60]
"""

SITE = """
[site]
records = "../../records/north.csv"
policy = "policy.toml"
ledger = "../../north-state/north.ledger"
[schema]
age = "number"
bsa = "number"
sex = "code"
ward = "code"
death = "code"
"""


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about within {PATIENCE} s")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_systemd_finds_nothing_wrong_with_the_units(unit, tmp_path):
    # Where the program is, is this machine's affair.
    text = (UNITS / unit).read_text().replace("/opt/concilium/bin/concilium", "/bin/true")
    path = tmp_path / unit
    path.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert unit not in done.stderr
    role = "site" if "@" in unit else "house"
    assert invoke("flare", "unit", role).stdout == (UNITS / unit).read_text()


def is_view_possible(tmp):
    for name in ("srv/concilium", "opt", "cache"):
        (tmp / name).mkdir(parents=True)
    unit = UNITS / "concilium-house.service"
    script = "import pathlib\nfor p in '/srv/concilium', '/tmp', '/var/cache/concilium': pathlib.Path(p, 'a').touch()\n"
    script += "try: pathlib.Path('/opt/a').touch()\nexcept OSError: print('read-only')"
    done = subprocess.run(
        [*VIEW, unit, "", tmp, sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE
    )
    return done.stdout == "read-only\n"


class Services(FlareNetwork):
    """A house and one site where the units say they are."""

    def __init__(self, folder):
        self.folder, self.sites = folder, ("north",)
        self.kits = folder / "srv" / "concilium"
        self.extra, self.processes, self.started = {}, {}, {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        project = folder / "network.toml"
        project.write_text(
            f'[project]\nname = "burns"\npeople = ["{PERSON}", "{OTHER}"]\n'
            f'[house]\nhost = "localhost"\nport = {self.port}\n[[site]]\nname = "north"\n'
        )
        invoke("flare", "provision", project, "--out", self.kits)
        (self.kits / "records").mkdir()
        write_records(self.kits / "records")
        program = folder / "opt" / "concilium" / "bin" / "concilium"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {" ".join(CONCILIUM)} "$@"\n')
        program.chmod(0o755)
        (self.kits / "house-state").mkdir(mode=0o700)
        house = Identity.at(self.kits / "house-state" / "house.identity").fingerprint
        local = self.kits / "north" / "local"
        (local / "policy.toml").write_text(
            f'[houses]\nhouse = "{house}"\n[agree]\nreleases = ["exact"]\nmethods = ["tree"]\n'
        )
        (local / "concilium.toml").write_text(SITE)

    def start(self, name):
        unit = "concilium-house.service" if name == "house" else "concilium-site@.service"
        self.started[name] = time.time()
        with (self.folder / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*VIEW, UNITS / unit, name, self.folder],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    if not is_view_possible(tmp_path_factory.mktemp("probe")):
        pytest.skip("needs user and mount namespaces")
    folder = tmp_path_factory.mktemp("services")
    for name in ("srv", "cache"):
        (folder / name).mkdir()
    network = Services(folder)
    try:
        yield network.start("house").start("north").wait_until_connected()
    finally:
        network.stop()


def submit(services, name, *options):
    study = services.write_study(name, STUDY.format(name=name))
    out = services.folder / "new" / name  # whose folder is not there the first time
    return [
        *CONCILIUM,
        *("flare", "submit", str(study), "--kit", str(services.kits / PERSON), "--out", str(out), *options),
    ], out


def find_children(services, name):
    """The processes of jobs, those that run."""
    found = set()
    for child in psutil.Process(services.processes[name].pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "worker_process" in " ".join(child.cmdline()):
                found.add(child.pid)
    return found


def send(processes, number):
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_study_runs_where_nothing_but_the_unit_s_folders_can_be_written(services):
    command, out = submit(services, "quiet")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, (done.stderr, services.read_outputs(), services.log("north"))
    assert (out / "model.json").exists()
    assert list(
        (services.folder / "cache" / "concilium").rglob("*.nbi")
    )  # kernels were kept for the next process
    assert (services.kits / "north-state" / "north.ledger").exists()
    said = "".join(path.read_text() for path in (services.kits / "house").rglob("log.txt"))
    said += services.read_outputs()["house.out"]
    assert "target_unreachable" not in said
    assert "app command" not in said
    assert "no connection to child" not in said


def test_a_second_start_of_the_same_kit_is_refused_and_a_check_is_not(services):
    for role, kit in (("house", "house"), ("site", "north")):
        done = run_command("flare", role, services.kits / kit, check=False)
        assert done.returncode == 2
        assert f"{kit}: runs already, as process {services.processes[kit].pid}" in done.stderr
    done = run_command("flare", "site", services.kits / "north", "--check")
    assert "the house at" in done.stdout
    assert "lies in the kit" not in done.stdout


def test_whoever_is_on_the_machine_without_a_certificate_cannot_speak_to_its_processes(services):
    """Parents listen for the processes of their jobs, which FLARE leaves open and in clear text."""
    listening = {
        name: {
            one.laddr.port
            for one in psutil.Process(services.processes[name].pid).net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
        }
        for name in ("house", "north")
    }
    assert listening["north"]
    assert len(listening["house"]) == 2
    for port in (*listening["north"], *listening["house"]):
        context = ssl.create_default_context(cafile=str(services.kits / "north" / "startup" / "rootCA.pem"))
        context.check_hostname = False
        assert not is_let_in(context, port, PATIENCE)
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as plain:
            plain.sendall(b"\0" * 64)
            assert len(read_to_end(plain)) < 16  # clear text is answered by an alert of TLS at most
        context.load_cert_chain(
            services.kits / "north" / "startup" / "client.crt",
            services.kits / "north" / "startup" / "client.key",
        )
        assert is_let_in(context, port, 0.5)


def read_to_end(connection):
    heard = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            heard += part
    return heard


def is_let_in(context, port, patience):
    """Whether whoever shakes hands so hears something, or is not hung up on while patience lasts."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), PATIENCE) as plain,
            context.wrap_socket(plain) as secured,
        ):
            secured.settimeout(patience)
            return secured.recv(1) != b""
    except TimeoutError:
        return True
    except (ssl.SSLError, ConnectionError):
        return False


def test_a_person_ends_a_job_of_their_own_and_nobody_else_s(services):
    before = find_children(services, "north")
    jobs = {path.name for path in (services.kits / "house").iterdir()}
    command, out = submit(services, "ended")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    stopped = wait_for(lambda: find_children(services, "north") - before, "a job at the site")
    send(stopped, signal.SIGSTOP)  # so that the study lasts
    try:
        (job,) = wait_for(
            lambda: [
                path.name
                for path in (services.kits / "house").iterdir()
                if path.name not in jobs and path.is_dir() and path.name.count("-") == 4
            ],
            "a job at the house",
        )
        refused = services.run("flare", "end", job[:13], "--kit", services.kits / OTHER)
        assert refused.returncode == 2
        assert process.poll() is None
        unknown = services.run("flare", "end", "0000", "--kit", services.kits / PERSON)
        assert "no job has an id that begins with 0000" in unknown.stderr
        done = services.run("flare", "end", job[:13], "--kit", services.kits / PERSON)
        assert done.stdout == f"ended: {job}\n", (done.stderr, refused.stderr)
        said = process.communicate(timeout=PATIENCE)[0]
        assert process.returncode == 2
        assert "--resume" in said
    finally:
        send(stopped, signal.SIGKILL)
        process.kill()
    # What was submitted goes on by its ticket, though the folder of the results is there now.
    tickets = list((services.kits / "house-state" / "studies").iterdir())
    out.parent.mkdir(exist_ok=True)
    out.mkdir()
    command, _ = submit(services, "ended", "--resume")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert list((services.kits / "house-state" / "studies").iterdir()) == tickets
    assert json.loads((out / "card.json").read_text())["sites"]
