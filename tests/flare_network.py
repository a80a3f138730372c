"""A real network on this machine: a provisioned FLARE with a house and three hospitals, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.privacy.identity import Identity

SITES = ("coast", "north", "south")
PERSON = "ana@example.org"
CONCILIUM = [sys.executable, "-m", "concilium.cli.main"]
# Nothing here may hang: whatever takes longer than this has failed.
PATIENCE = 240.0
# What a process of a hospital, or of the house, looks into first.
HOSPITAL = Path(__file__).parent / "flare" / "hospital"

SCHEMA = """
[schema]
age = "number"
bsa = "number"
sex = "code"
ward = "code"
death = "code"
"""

RULE = '"F[0,3] HR >= 100"'

AGREES = """
[agree]
releases = ["exact", "masked", "private", "local"]
methods = ["tree", "voting-trees", "rulefit", "naive-bayes", "discovery", "experts"]
"""


def prepend_path(*folders):
    """Environment of a process of Python that looks there first."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))}


def find_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


COURSE = "patient,hour,HR,sepsis"


def write_course(patient, draw, ill):
    """Ten hours of a stay, of which the last are ill, if they are."""
    return [
        f"{patient},{hour},{draw.randrange(60, 90) + 8 * hour * ill},{int(ill and hour > 6)}"
        for hour in range(10)
    ]


def write_records(folder, seed=7, patients=160):
    """A table for each hospital, and all of them together."""
    draw = random.Random(seed)
    lines = {site: ["patient,age,sex,ward,bsa,death"] for site in SITES}
    rules = {site: ["patient,rule"] for site in SITES}
    courses = {site: [COURSE] for site in SITES}
    for number in range(patients * len(SITES)):
        age, sex, ward = draw.randrange(18, 90), draw.choice("fm"), draw.choice("abc")
        bsa = draw.randrange(1, 95)
        death = int(age + 1.2 * bsa + draw.gauss(0, 18) > 105)
        site = draw.choice(SITES)
        lines[site].append(f"p{number},{age},{sex},{ward},{bsa},{death}")
        rules[site].append(f"p{number},{'' if number % 10 == 0 else RULE}")
        courses[site] += write_course(f"p{number}", draw, bool(number % 3))
    public = [COURSE, *(line for one in range(6) for line in write_course(f"q{one}", draw, bool(one % 2)))]
    (folder / "public.csv").write_text("\n".join(public) + "\n")
    paths = {}
    for site, rows in lines.items():
        (folder / f"{site}-rules.csv").write_text("\n".join(rules[site]) + "\n")
        (folder / f"{site}-series.csv").write_text("\n".join(courses[site]) + "\n")
        paths[site] = folder / f"{site}.csv"
        paths[site].write_text("\n".join(rows) + "\n")
    return paths


class FlareNetwork:
    """`start()` the house and all sites; `submit` a study as a person does, by the command."""

    def __init__(self, folder, policy=AGREES, host="localhost", port=None, sites=SITES):
        self.folder, self.sites = Path(folder), sites
        self.port = port or find_port()
        self.kits = self.folder / "kits"
        self.processes, self.started = {}, {}
        self.extra = {}
        project = self.folder / "network.toml"
        project.write_text(
            f'[project]\nname = "burns"\npeople = ["{PERSON}"]\n'
            f'[house]\nhost = "{host}"\nport = {self.port}\n'
            + "".join(f'[[site]]\nname = "{s}"\n' for s in sites)
        )
        invoke("flare", "provision", project, "--out", self.kits)
        self.records = write_records(self.folder)
        self.house_fingerprint = Identity.at(self.make_house_folder() / "house.identity").fingerprint
        for site in sites:
            self.ledger(site).parent.mkdir(mode=0o700)
        self.identities = {s: Identity.at(self.ledger(s).with_name(f"{s}.ledger.identity")) for s in sites}
        for site in sites:
            self.set_policy(site, policy)
            self.set_records(site)

    def make_house_folder(self):
        folder = self.kits / "house-state"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def ledger(self, site):
        return self.kits / f"{site}-state" / f"{site}.ledger"

    def set_records(self, site, courses=False):
        """What the next job of a site reads: its table, and with `courses` the rules and series of its patients."""
        kept = f'rules = "{self.folder}/{site}-rules.csv"\nseries = "{self.folder}/{site}-series.csv"\n'
        (self.kits / site / "local" / "concilium.toml").write_text(
            f'[site]\nrecords = "{self.records[site]}"\npatient = "patient"\n{kept if courses else ""}'
            f'policy = "policy.toml"\nledger = "../../{site}-state/{site}.ledger"\n{SCHEMA}'
        )

    def set_policy(self, site, more=AGREES):
        peers = "".join(
            f'{other} = "{self.identities[other].fingerprint}"\n' for other in self.sites if other != site
        )
        (self.kits / site / "local" / "policy.toml").write_text(
            f'[houses]\nnetwork = "{self.house_fingerprint}"\n[peers]\n{peers}{more}'
        )

    def start(self, *names):
        for name in names or ("house", *self.sites):
            role = "house" if name == "house" else "site"
            self.started[name] = time.time()
            log = (self.folder / f"{name}.out").open("ab")
            self.processes[name] = subprocess.Popen(
                [*self.extra.get(name, []), *CONCILIUM, "flare", role, str(self.kits / name)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | prepend_path(HOSPITAL) | self.extra.get(f"{name} environment", {}),
            )
            log.close()
        return self

    def wait_until_connected(self, *sites):
        """Until the house has heard from them lately, and since they were started last."""
        lately = time.time() - 30
        moments = [f"{site}={max(lately, self.started[site])}" for site in sites or self.sites]
        script = str(Path(__file__).parent / "flare" / "watch_network.py")
        watching = subprocess.Popen(
            [*self.extra.get(PERSON, []), sys.executable, script, str(self.kits / PERSON), *moments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        end = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < end and watching.poll() is None:
                ended = [name for name, process in self.processes.items() if process.poll() is not None]
                assert not ended, self.read_outputs()
                time.sleep(0.05)
        finally:
            watching.kill()
            said = watching.communicate()[0]
        assert watching.returncode == 0, f"not connected: {said}; {self.read_outputs()}"
        return self

    def read_outputs(self):
        return {path.name: path.read_text()[-2000:] for path in self.folder.glob("*.out")}

    def log(self, name):
        path = self.kits / name / "concilium.log"
        return path.read_text() if path.exists() else ""

    def kill(self, name):
        """The whole of a site or house at once, with the processes of its jobs."""
        import psutil

        process = self.processes.pop(name)
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)

    def stop(self):
        for name in list(self.processes):
            self.kill(name)

    def write_study(self, name, text):
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return path

    def submit(self, study, *options, check=True, timeout=PATIENCE):
        out = self.folder / f"{study.stem}-results"
        done = self.run(
            "flare",
            "submit",
            study,
            "--kit",
            self.kits / PERSON,
            "--out",
            out,
            *options,
            timeout=timeout,
        )
        if check:
            logs = {name: self.log(name)[-1500:] for name in ("house", *self.sites)}
            assert done.returncode == 0, (done.stdout, done.stderr, logs, self.read_outputs())
        return done, out

    def start_submit(self, study, *options):
        out = self.folder / f"{study.stem}-results"
        command = [*CONCILIUM, "flare", "submit", study, "--kit", self.kits / PERSON, "--out", out, *options]
        return (
            subprocess.Popen(
                [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ),
            out,
        )

    def run(self, *arguments, timeout=PATIENCE):
        """A command of the person who submits studies."""
        return run_command(*arguments, before=self.extra.get(PERSON, []), check=False, timeout=timeout)

    def run_embedded(self, study):
        """The same study in one process, on the same tables, or on the same series."""
        text = study.read_text()
        reads_series = "[experts]" in text
        houses = "".join(
            f'[[site]]\nname = "{s}"\n'
            + (
                f'series = "{s}-series.csv"\n'
                if reads_series
                else f'records = "{self.records[s]}"\none_row_per_patient = true\n'
            )
            for s in self.sites
        )
        copy = self.folder / f"{study.stem}-embedded.toml"
        copy.write_text(text.split("[[site]]")[0] + "\n" + ("" if reads_series else SCHEMA) + houses)
        return cc.Study.read(copy).run(self.folder / f"{study.stem}-embedded")

    def charges(self, site):
        if not self.ledger(site).exists():
            return []
        with cc.Ledger.open_readonly(self.ledger(site)) as book:
            return [(entry.question, entry.study, entry.kind) for entry in book.entries() if entry.question]

    def delete(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def run_command(*arguments, before=(), check=True, timeout=PATIENCE):
    command = [*before, *CONCILIUM, *(str(one) for one in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if check:
        assert done.returncode == 0, (done.stdout, done.stderr)
    return done


def invoke(*arguments, check=True):
    """A command that takes a moment, in this process."""
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    if check:
        assert done.exit_code == 0, done.output
    return done
