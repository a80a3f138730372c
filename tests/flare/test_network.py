"""Studies on a real FLARE: a house and three hospitals, each a process of its own, over mutual TLS."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest

import concilium as cc
from concilium.ledger.head import read_head
from flare_network import HOSPITAL, PATIENCE, PERSON, SITES, FlareNetwork, invoke, prepend_path, run_command

pytest.importorskip("nvflare")

# Everything is agreed to but naive Bayes, on which a person decides.
POLICY = """
[agree]
releases = ["exact", "masked", "private", "local"]
methods = [
  "tree", "voting-trees", "rulefit", "regression", "discovery", "experts", "validation", "consultation"
]
"""

STUDY = """
[study]
name = "{name}"
method = "{method}"
target = "death"
{about}
[privacy]
release = "{release}"
{privacy}
[bins]
age = [30, 50, 70]
bsa = [10, 20, 40, 60]
{more}
"""


def describe(name, method="tree", release="exact", about="", privacy="", more=""):
    return STUDY.format(name=name, method=method, release=release, about=about, privacy=privacy, more=more)


# Series are read at each hospital; public stays travel with the study.
TAUGHT = """
[study]
name = "taught"
method = "experts"
target = "sepsis"
[privacy]
release = "exact"
[bins]
HR = [60, 90, 120, 150]
[experts]
public = "public.csv"
experts = 4
limit = 2
units = 4
epochs = 2
window = "6h"
lead = "4h"
"""

# The dictionary is a file beside the study.
WORDS = """
[dictionary.age]
type = "number"
range = [18, 90]
[dictionary.bsa]
type = "number"
range = [1, 95]
[dictionary.sex]
values = { f = "female", m = "male" }
[dictionary.death]
values = { 0 = "alive", 1 = "dead" }
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    network = FlareNetwork(tmp_path_factory.mktemp("network"), policy=POLICY)
    for site in SITES:  # Python looks here first, in each process of a site: what makes it ill is put there
        own = network.folder / f"{site}-python"
        own.mkdir()
        network.extra[f"{site} environment"] = prepend_path(own, HOSPITAL)
    try:
        yield network.start().wait_until_connected()
    finally:
        network.stop()


def read_results(out):
    return {name: json.loads((out / f"{name}.json").read_text()) for name in ("model", "card", "metrics")}


def assert_charged_once(network):
    for site in network.sites:
        charges = network.charges(site)
        assert charges
        assert len(charges) == len(set(charges))
        with cc.Ledger.open_readonly(network.ledger(site)) as book:
            book.verify()


def compare_with_embedded(network, study, out, methods=("",)):
    """The model of a study, of each of its methods, equals that of the same study in one process, and the card says who
    took part."""
    alone = network.run_embedded(study)
    for method in methods:
        got = read_results(out / method)
        embedded = json.loads(alone.files[f"{method}/model.json".lstrip("/")].read_text())
        assert got["model"]["body"] == embedded["body"]
        assert [site["name"] for site in got["card"]["sites"]] == sorted(SITES)
    return got["card"]


def test_all_methods_at_once_equal_those_of_one_process(network):
    texts = {
        "taught": TAUGHT,
        "words": '[study]\nname = "words"\nmethod = ["tree", "rulefit"]\ntarget = "death"\npositive = 1\n'
        '[privacy]\nrelease = "masked"\n[dictionary]\nfile = "words-dictionary.toml"\n[rulefit]\ntrees = 20\n'
        # Left to cross-validation, a penalty comes of folds that each hospital deals by a key of its own.
        'penalty = 0.02\n[evaluate]\nfile = "coast.csv"\n',
    }
    (network.folder / "words-dictionary.toml").write_text(WORDS)
    for site in SITES:
        network.set_records(site, courses=True)
    studies = {name: network.write_study(name, text) for name, text in texts.items()}
    running = {name: network.start_submit(study) for name, study in studies.items()}
    for name, (process, out) in running.items():
        code, said = finish(process)
        assert code == 0, (name, said, {s: network.log(s)[-1500:] for s in ("house", *SITES)})
        assert (out / "report.html").exists()
        card = compare_with_embedded(
            network, studies[name], out, ("tree", "rulefit") if name == "words" else ("",)
        )
        assert {site["identity"] for site in card["sites"]} == {
            identity.fingerprint for identity in network.identities.values()
        }
        assert not card["dropouts"]
        assert not [one for one in card["warnings"] if "nobody verified it" in one]
    table = json.loads((running["words"][1] / "metrics.json").read_text())
    assert list(table["methods"]) == ["tree", "rulefit"]
    assert table["pick"] in table["methods"]
    assert min(row["auc"] for row in table["methods"].values()) > 0.7
    assert_charged_once(network)
    for site in SITES:
        network.set_records(site)


MEASURED = '[values]\nsex = ["f", "m"]\nward = ["a", "b", "c"]\ndeath = [0, 1]\n[evaluate]\nholdout = 0.3\n'


def count_patients(network, sites=SITES):
    return sum(len(network.records[site].read_text().splitlines()) - 1 for site in sites)


def test_a_model_that_exists_is_measured_by_the_hospitals_of_a_network(network):
    """As in one process. With noise: tests/study/test_measured_study.py."""
    sites = [cc.Site(name, cc.Records.read(path)) for name, path in network.records.items()]
    model = cc.DecisionTree("death", positive=1, max_depth=3).fit(sites)
    file = network.folder / "made-elsewhere.json"
    model.save(file)
    kit = ("--kit", network.kits / PERSON)
    exact = network.write_study("outside", describe("outside", more=MEASURED))
    out = network.folder / "outside-results"
    done = network.run("evaluate", file, exact, *kit, "--by", "sex", "--out", out)
    assert done.returncode == 0, (done.stdout, done.stderr, network.log("house")[-1500:])
    found, alone = json.loads((out / "evaluation.json").read_text()), model.evaluate(sites).metrics
    for key in ("overall", "sites", "risks", "heterogeneity"):
        assert found[key] == json.loads(json.dumps(alone[key]))
    assert sum(row["patients"] for row in found["subgroups"]["sex"].values()) == count_patients(network)
    assert (out / "report.html").exists()
    assert (out / "card.json").exists()


HOUSE = """[house]
timeout = {timeout}
on_loss = "{on_loss}"
"""


def read_entries(network):
    books = [cc.Ledger.open_readonly(network.ledger(site)) for site in SITES]
    return [len(list(book.entries())) for book in books]


def test_a_month_of_questions_is_one_job_that_the_house_hands_out_by_pass(network, tmp_path):
    signed = tmp_path / "weiss.pass"
    vouched = invoke(
        "identity",
        "vouch",
        network.ledger("north").with_name("north.ledger.identity"),
        "Dr. Weiss",
        "--role",
        "surgery",
        "--ends",
        "2999-01-01",
        "--out",
        signed,
    )
    signer = network.identities["north"].fingerprint
    assert signer in vouched.stdout
    listed = f'[consultation]\ngrid = ["age"]\nenough = 5\nrequesters = ["surgery"]\nsigners = ["{signer}"]\n'
    study = network.write_study("burns", describe("burns", "consultation", about="positive = 1", more=listed))
    question = ["ask", study, "age=63", "bsa=55", "--kit", network.kits / PERSON]
    without = network.run(*question)
    assert (without.returncode, "this consultation is asked with a pass" in without.stderr) == (2, True)
    before = read_entries(network)
    first = network.run(*question, "--pass", signed)
    assert first.returncode == 0, first.stderr
    assert "Hospitals that answered: coast, north, south." in first.stdout
    asked = read_entries(network)
    assert min(after - ago for after, ago in zip(asked, before, strict=True)) > 0
    assert network.run(*question, "--pass", signed).stdout == first.stdout
    shutil.rmtree(study.with_name("burns.asked"))  # another machine of somebody who may ask
    assert network.run(*question, "--pass", signed).stdout == first.stdout
    assert read_entries(network) == asked


def describe_lossy(name, on_loss, timeout=600, method="tree"):
    return describe(name, method, more=HOUSE.format(on_loss=on_loss, timeout=timeout))


def wait_for(condition, what, patience=PATIENCE, pause=0.01):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(pause)
    raise AssertionError(f"{what} did not come about within {patience} s")


def count_charges(network, site):
    return len(network.charges(site))


def list_studies(network, site):
    return {study for _, study, _ in network.charges(site)}


def find_job_processes(network, name):
    import psutil

    parent = psutil.Process(network.processes[name].pid)
    return {child.pid for child in parent.children(recursive=True)}


# What a site says in its log once it can answer.
OPENED = " answers as "


def stop_midway(network, site, before, known):
    """Stop the processes of a site's next job when it has answered the first question of another study than those
    known; they, and its id. They run in turns, between which the ledger is looked at, and in short ones once the site
    is open: however busy this machine is, none gets much further, and none takes long to open."""
    openings = network.log(site).count(OPENED)
    processes = wait_for(lambda: find_job_processes(network, site) - before, "a job", pause=0.1)
    seen = None

    def take_a_turn():
        nonlocal seen
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.005 if network.log(site).count(OPENED) > openings else 0.05)
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        last, seen = seen, read_head(network.ledger(site))
        return None if seen == last else list_studies(network, site) - known

    return processes, wait_for(take_a_turn, "the middle of the study", pause=0).pop()


def finish(process, timeout=2 * PATIENCE):
    said = process.communicate(timeout=timeout)
    return process.returncode, "".join(said)


# As where an installation is broken: the processes of jobs end before they have begun, the site's own goes on.
BROKEN = (
    'import sys\nif any("worker_process" in one for one in sys.orig_argv):\n    sys.exit("no such module")\n'
)


def test_a_site_whose_installation_is_broken_is_lost_by_its_name_and_jobs_of_others_making_are_refused(
    network,
):
    """The first is waited for while the others are submitted, with code, with another class, as HOCON. Meanwhile a
    person with a kit tells a hospital, in the house's name, to delete the folder of its ledger. The other hospitals
    measure the model on patients whom they hold out, by hospital and in subgroups; with noise:
    tests/study/test_measured_study.py."""
    from concilium.transports.flare.job import write_job

    broken = network.folder / "south-python" / "sitecustomize.py"
    broken.write_text(BROKEN)
    try:
        measured = f'{MEASURED}subgroups = ["sex"]\n{HOUSE.format(on_loss="continue", timeout=600)}'
        process, out = network.start_submit(network.write_study("broken", describe("broken", more=measured)))
        markers, folders = {}, []
        for case in ("code at site", "code at house", "class at site", "class at house", "hocon at house"):
            what, _, where = case.split(" ")
            folder = write_job(
                network.folder / case.replace(" ", "-"), case, describe("code"), "tree", "0" * 32, SITES
            )
            markers[case] = network.folder / f"{what}-{where}-ran"
            config = (
                folder / where / "config" / f"config_fed_{'client' if where == 'site' else 'server'}.json"
            )
            document = json.loads(config.read_text())
            intruder = {"path": "subprocess.Popen", "args": {"args": ["touch", str(markers[case])]}}
            if what == "code":
                (folder / where / "custom").mkdir()
                code = f"open({str(markers[case])!r}, 'w').write('ran')\nclass Intruder: pass\n"
                (folder / where / "custom" / "intruder.py").write_text(code)
                intruder = {"path": "intruder.Intruder", "args": {}}
            if what == "hocon":
                (folder / "meta.json").rename(folder / "meta.conf")
            else:
                document["components"] = [{"id": "intruder", **intruder}]
            config.write_text(json.dumps(document))
            folders.append(str(folder))
        script = [sys.executable, str(Path(__file__).with_name("submit_jobs.py")), str(network.kits / PERSON)]
        done = subprocess.run([*script, *folders], capture_output=True, text=True, timeout=2 * PATIENCE)
        assert done.returncode == 0, done.stderr
        ended = json.loads(done.stdout.splitlines()[-1])
        assert sorted(ended) == sorted(folders)
        assert {status.split(":")[0] for status in ended.values()} == {"refused"}
        assert all(
            "this job is not one that `concilium flare submit` writes" in one for one in ended.values()
        )
        assert not [marker for marker in markers.values() if marker.exists()]
        kept = sorted(path.name for path in (network.kits / "north" / "local").iterdir())
        script = [
            sys.executable,
            str(Path(__file__).with_name("speak_as_house.py")),
            str(network.kits / PERSON),
        ]
        done = subprocess.run([*script, "north", "local"], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in (network.kits / "north" / "local").iterdir()) == kept
        code, said = finish(process)
    finally:
        broken.unlink()
    assert code == 0, said
    shown = read_results(out)
    card, metrics = shown["card"], shown["metrics"]
    assert set(metrics["sites"]) == {"coast", "north"}
    assert sum(row["patients"] for row in metrics["sites"].values()) == metrics["patients"]
    assert sum(row["patients"] for row in metrics["subgroups"]["sex"].values()) == metrics["patients"]
    assert 0.15 < metrics["patients"] / count_patients(network, metrics["sites"]) < 0.45
    assert metrics["auc"] > 0.75
    assert card["performance"]["patients"] == metrics["patients"]
    assert [(one["site"], "has ended: its own log" in one["reason"]) for one in card["dropouts"]] == [
        ("south", True)
    ]
    assert "south" not in [site["name"] for site in card["sites"]]
    assert "south" in said


def test_a_study_waits_for_stewards_also_over_a_restart_and_goes_on_in_the_same_terms(network):
    study = network.write_study("bayes", describe("bayes", "naive-bayes", "masked"))
    done, out = network.submit(study, check=False)
    assert done.returncode == 2
    assert "waits for coast, north and south, where a person decides" in done.stderr
    assert "--resume" in done.stderr
    assert not out.exists()
    network.kill("north")  # overnight
    network.start("north")
    for site in SITES:
        listed = json.loads(invoke("studies", network.ledger(site), "--json").stdout)["studies"]
        waiting = [one["study"] for one in listed if one["status"] == "waiting"]
        assert len(waiting) == 1
        invoke(
            "studies",
            "agree",
            network.ledger(site),
            waiting[0][:12],
            "--who",
            "Dr. Meyer",
            "--why",
            "vote 12",
        )
    network.wait_until_connected()
    network.submit(study, "--resume")
    assert compare_with_embedded(network, study, out)["study"] == waiting[0]
    assert_charged_once(network)


# Hospitals are left out in turn, and measured at home by the model of the others.
LEFT_OUT = '[evaluate]\nleave_out = "site"\n'
NAMED = "".join(f'[[site]]\nname = "{site}"\n' for site in SITES)


def test_a_silent_site_a_killed_one_and_a_dry_ledger_end_studies_in_time(network):
    known = set().union(*(list_studies(network, site) for site in SITES))
    study = network.write_study("goes-on", describe_lossy("goes-on", "continue", timeout=20))
    before = find_job_processes(network, "coast")
    process, out = network.start_submit(study)
    frozen, new = stop_midway(network, "coast", before, known)
    try:
        wait_for(lambda: new in list_studies(network, "south"), "the middle of the study")
        more = LEFT_OUT + HOUSE.format(on_loss="stop", timeout=600) + NAMED
        killed = network.write_study("killed", describe("killed", "regression", more=more))
        before = find_job_processes(network, "south")
        second, killed_out = network.start_submit(killed)
        stop_midway(network, "south", before, {*known, new})
        network.kill("south")
        begun = time.monotonic()
        code, said = finish(second)
        assert code == 2, said
        assert "south" in said
        assert "--resume" in said
        assert not killed_out.exists()
        assert time.monotonic() - begun < 300
        code, said = finish(process)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGKILL)
    assert code == 0, said
    card = read_results(out)["card"]
    silent = next(one for one in card["dropouts"] if one["site"] == "coast")
    assert silent["reason"] == "no answer within 20 s"
    assert "coast" not in [site["name"] for site in card["sites"]]
    assert f"coast is not in the model (lost in round {silent['round']}: {silent['reason']})" in said

    with cc.Ledger.open_readonly(network.ledger("coast")) as book:
        spent = book.spent()
    room = spent + Fraction(1, 60)  # for the first of three questions, and not for all: it does not begin
    network.set_policy("coast", POLICY + f'[budget]\ntotal = "{room}"\n')
    network.start("south").wait_until_connected()
    values = '[values]\ndeath = [0, 1]\nsex = ["f", "m"]\nward = ["a", "b", "c"]\n[tree]\nmax_depth = 2\n'
    study = network.write_study("dry", describe("dry", release="private", privacy="epsilon = 1", more=values))
    process, dry_out = network.start_submit(study)
    network.submit(killed, "--resume")
    code, said = finish(process)
    network.set_policy("coast", POLICY)
    assert compare_with_embedded(network, killed, killed_out)["dropouts"] == []
    metrics = read_results(killed_out)["metrics"]
    seen = network.run_embedded(killed).metrics  # with all records at hand
    assert metrics["patients"] == seen["patients"] == count_patients(network)
    for site in SITES:
        for key in ("patients", "events", "accuracy", "sensitivity"):
            assert metrics["sites"][site][key] == pytest.approx(seen["sites"][site][key])
    assert metrics["auc"] == pytest.approx(seen["auc"], abs=0.01)
    assert code == 2, said
    assert "coast: this would cost" in said
    assert "is left" in said
    with cc.Ledger.open_readonly(network.ledger("coast")) as book:
        assert book.spent() == spent
    assert not dry_out.exists()
    assert_charged_once(network)


def test_a_house_that_is_killed_goes_on_from_its_last_finished_round(network):
    study = network.write_study("house", describe_lossy("house", "stop"))
    before = {site: count_charges(network, site) for site in SITES}
    known, running = list_studies(network, "north"), find_job_processes(network, "north")
    process, out = network.start_submit(study)
    stopped, _ = stop_midway(network, "north", running, known)
    network.kill("house")
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    begun = time.monotonic()
    code, said = finish(process)
    assert code == 2, said
    assert "--resume" in said
    assert not out.exists()
    assert time.monotonic() - begun < 300
    network.start("house").wait_until_connected()
    network.submit(study, "--resume")
    card = compare_with_embedded(network, study, out)
    assert_charged_once(network)
    for site in SITES:  # as many charges as a study has that nobody interrupted
        answers = sum(one["answers"] for one in card["releases"] if one["site"] == site)
        assert count_charges(network, site) - before[site] == answers


def test_sites_that_cannot_answer_are_named_with_the_remedy_at_the_house_and_in_their_logs(network):
    """One has lost its records, one runs another version, one has a wrong clock: nobody is left, and all are named."""
    away = network.records["north"].with_suffix(".away")
    changed = {
        "south": 'import concilium\nconcilium.__version__ = "0.0.9"\n',
        "coast": "import time\nright = time.time\ntime.time = lambda: right() + 7200\n",
    }
    placed = {network.folder / f"{site}-python" / "sitecustomize.py": code for site, code in changed.items()}
    study = network.write_study("ill", describe("ill"))
    network.records["north"].rename(
        away
    )  # while its site runs; so do the others, whose next processes are ill
    for path, code in placed.items():
        path.write_text(code)
    try:
        done, out = network.submit(study, check=False)
    finally:
        away.rename(network.records["north"])
        for path in placed:
            path.unlink()
    assert done.returncode == 2
    assert not out.exists()
    reasons = {
        "north": "its records, policy or ledger cannot be used: its own log, concilium.log, says which and what to do",
        "south": f"it runs concilium 0.0.9, and the house {cc.__version__}: install",
        "coast": "s ahead of the house's: set it, best by NTP, and start it again",
    }
    for site, reason in reasons.items():
        told = [line for line in network.log("house").splitlines() if f"{site} takes no part: " in line]
        assert reason in told[-1]
        assert reason in done.stderr
    assert str(network.folder) not in done.stderr
    assert f"{network.records['north']}; fix it" in network.log("north")
    assert f"the house runs concilium {cc.__version__}, and this site 0.0.9" in network.log("south")
    assert "this machine's clock is 7" in network.log("coast")


def say_hello(context, port):
    with (
        socket.create_connection(("localhost", port), 20) as plain,
        context.wrap_socket(plain) as secured,
    ):
        try:
            secured.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return secured.recv(1)
        except (ssl.SSLError, ConnectionError):
            return b""


def test_a_certificate_of_another_project_or_none_gets_nowhere(network, tmp_path):
    other = FlareNetwork(tmp_path, port=network.port)
    done = run_command("flare", "site", other.kits / "north", "--check", check=False)
    assert done.returncode == 2
    assert "north: at localhost" in done.stderr
    assert "is the house of another project" in done.stderr
    assert "is the house of another project" in other.log("north")
    # Whoever knows the house's authority, and has no certificate of it, is cut off before a word is said.
    context = ssl.create_default_context(cafile=str(network.kits / "north" / "startup" / "rootCA.pem"))
    context.check_hostname = False
    kits = (None, other.kits / "north" / "startup", network.kits / "north" / "startup")
    for own, heard in zip(kits, (b"", b"", b"H"), strict=True):
        if own is not None:
            context.load_cert_chain(own / "client.crt", own / "client.key")
        assert say_hello(context, network.port) == heard
    done = network.run("flare", "status", "--kit", network.kits / PERSON, "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["sites"]) == set(SITES)
    done = network.run("flare", "status", "--kit", network.kits / "north")
    assert done.returncode == 2
    assert "is the kit of a hospital" in done.stderr
