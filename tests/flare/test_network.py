"""Studies on a real FLARE: a house and three hospitals, each a process of its own, over mutual TLS."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

import concilium as cc
from flare_network import PATIENCE, PERSON, SITES, FlareNetwork, run_command

pytest.importorskip("nvflare")

# Everything is agreed to but naive Bayes, on which a person decides.
POLICY = """
[agree]
methods = ["tree", "voting-trees", "rulefit", "discovery"]
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


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    network = FlareNetwork(tmp_path_factory.mktemp("network"), policy=POLICY)
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


def test_several_studies_at_once_equal_those_of_one_process(network):
    texts = {
        "exact": describe("exact"),
        "masked": describe("masked", release="masked"),
        "rules": describe("rules", "rulefit", "exact", about="positive = 1", more="[rulefit]\ntrees = 20\n"),
    }
    studies = {name: network.write_study(name, text) for name, text in texts.items()}
    running = {name: network.start_submit(study) for name, study in studies.items()}
    for name, (process, out) in running.items():
        said = process.communicate(timeout=2 * PATIENCE)
        assert process.returncode == 0, (name, said, {s: network.log(s)[-1500:] for s in ("house", *SITES)})
        got, alone = read_results(out), network.run_embedded(studies[name])
        assert got["model"]["body"] == json.loads((alone.files["model.json"]).read_text())["body"]
        assert [site["name"] for site in got["card"]["sites"]] == sorted(SITES)
        assert {site["identity"] for site in got["card"]["sites"]} == {
            identity.fingerprint for identity in network.identities.values()
        }
        assert not got["card"]["dropouts"]
        assert not [one for one in got["card"]["warnings"] if "vouched" in one]
        assert (out / "report.html").exists()
    assert_charged_once(network)


HOUSE = """[house]
timeout = {timeout}
on_loss = "{on_loss}"
"""


def describe_lossy(name, on_loss, timeout=60):
    return describe(name, more=HOUSE.format(on_loss=on_loss, timeout=timeout))


def wait_for(condition, what, patience=PATIENCE):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come about within {patience} s")


def count_charges(network, site):
    return len(network.charges(site)) if network.ledger(site).exists() else 0


def wait_until_midway(network, site, before):
    """Until the site has answered the first question of a tree. The next takes it longer, and there are some more."""
    wait_for(lambda: count_charges(network, site) > before, "the middle of the study")


def find_job_processes(network, name):
    import psutil

    parent = psutil.Process(network.processes[name].pid)
    return [child.pid for child in parent.children(recursive=True)]


def finish(process, timeout=2 * PATIENCE):
    said = process.communicate(timeout=timeout)
    return process.returncode, "".join(said)


def test_jobs_that_carry_code_or_name_another_class_are_not_run(network):
    from concilium.flare.job import write_job

    markers, folders = {}, []
    for case in ("code at site", "code at house", "class at site", "class at house"):
        what, _, where = case.split(" ")
        folder = write_job(network.folder / case.replace(" ", "-"), case, describe("code"), "0" * 32, SITES)
        markers[case] = network.folder / f"{what}-{where}-ran"
        config = folder / where / "config" / f"config_fed_{'client' if where == 'site' else 'server'}.json"
        document = json.loads(config.read_text())
        intruder = {"path": "subprocess.Popen", "args": {"args": ["touch", str(markers[case])]}}
        if what == "code":
            (folder / where / "custom").mkdir()
            code = f"open({str(markers[case])!r}, 'w').write('ran')\nclass Intruder: pass\n"
            (folder / where / "custom" / "intruder.py").write_text(code)
            intruder = {"path": "intruder.Intruder", "args": {}}
        document["components"] = [{"id": "intruder", **intruder}]
        config.write_text(json.dumps(document))
        folders.append(str(folder))
    script = [sys.executable, str(Path(__file__).with_name("submit_jobs.py")), str(network.kits / PERSON)]
    done = subprocess.run([*script, *folders], capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    assert sorted(ended) == sorted(folders)
    assert not [status for status in ended.values() if "COMPLETED" in status]
    assert not [marker for marker in markers.values() if marker.exists()]


def test_a_study_waits_for_stewards_also_over_a_restart_and_goes_on_in_the_same_terms(network):
    study = network.write_study("bayes", describe("bayes", "naive-bayes", "masked"))
    done, out = network.submit(study, check=False)
    assert done.returncode == 2
    assert "waits for coast, north, south, where a person decides" in done.stderr
    assert "--resume" in done.stderr
    assert not out.exists()
    network.kill("north")  # overnight
    network.start("north")
    for site in SITES:
        listed = json.loads(run_command("studies", network.ledger(site), "--json").stdout)["studies"]
        waiting = [one["study"] for one in listed if one["status"] == "waiting"]
        assert len(waiting) == 1
        run_command(
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
    got, alone = read_results(out), network.run_embedded(study)
    assert got["model"]["body"] == json.loads((alone.files["model.json"]).read_text())["body"]
    assert got["card"]["study"] == waiting[0]
    assert_charged_once(network)


def test_a_site_killed_in_a_round_stops_the_study_which_goes_on_when_it_is_back(network):
    study = network.write_study("killed", describe_lossy("killed", "stop"))
    before = count_charges(network, "south")
    process, out = network.start_submit(study)
    wait_until_midway(network, "south", before)
    network.kill("south")
    killed = time.monotonic()
    code, said = finish(process)
    assert code == 2, said
    assert "south" in said
    assert "--resume" in said
    assert time.monotonic() - killed < 60
    network.start("south").wait_until_connected()
    network.submit(study, "--resume")
    got, alone = read_results(out), network.run_embedded(study)
    assert got["model"]["body"] == json.loads((alone.files["model.json"]).read_text())["body"]
    assert sorted(site["name"] for site in got["card"]["sites"]) == sorted(SITES)
    assert_charged_once(network)


def test_a_site_that_never_answers_is_left_out_and_the_card_says_so(network):
    study = network.write_study("silent", describe_lossy("silent", "continue", timeout=15))
    before = count_charges(network, "coast")
    process, out = network.start_submit(study)
    wait_until_midway(network, "coast", before)
    frozen = find_job_processes(network, "coast")
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        code, said = finish(process)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGKILL)
    assert code == 0, said
    card = read_results(out)["card"]
    assert sorted(site["name"] for site in card["sites"]) == ["north", "south"]
    assert [one["site"] for one in card["dropouts"]] == ["coast"]
    assert "no answer within 15 s" in card["dropouts"][0]["reason"]
    assert_charged_once(network)


def test_a_house_that_is_killed_goes_on_from_its_last_finished_round(network):
    study = network.write_study("house", describe_lossy("house", "stop"))
    before = {site: count_charges(network, site) for site in SITES}
    process, out = network.start_submit(study)
    wait_until_midway(network, "north", before["north"])
    network.kill("house")
    killed = time.monotonic()
    code, said = finish(process)
    assert code == 2, said
    assert "--resume" in said
    assert time.monotonic() - killed < 90
    asked = {site: count_charges(network, site) for site in SITES}
    network.start("house").wait_until_connected()
    network.submit(study, "--resume")
    got, alone = read_results(out), network.run_embedded(study)
    assert got["model"]["body"] == json.loads((alone.files["model.json"]).read_text())["body"]
    assert_charged_once(network)
    for site in SITES:  # as many charges as a study has that nobody interrupted
        assert before[site] < asked[site] <= count_charges(network, site)
        answers = sum(one["answers"] for one in got["card"]["releases"] if one["site"] == site)
        assert count_charges(network, site) - before[site] == answers


def test_a_ledger_that_runs_dry_refuses_and_its_hospital_is_named(network):
    budget = '[budget]\ntotal = "1/1000"\n'
    network.set_policy("coast", POLICY + budget)
    values = '[values]\ndeath = [0, 1]\nsex = ["f", "m"]\nward = ["a", "b", "c"]\n[tree]\nmax_depth = 2\n'
    study = network.write_study(
        "dry", describe("dry", release="private", privacy="epsilon = 0.5", more=values)
    )
    try:
        done, out = network.submit(study, check=False)
    finally:
        network.set_policy("coast", POLICY)
    assert done.returncode == 2
    assert "coast" in done.stderr
    assert "is left" in done.stderr
    assert not out.exists()
    assert "refused" in network.log("coast")
    assert_charged_once(network)


def test_sites_that_cannot_answer_are_named_with_the_remedy_at_the_house_and_in_their_logs(network):
    away = network.records["north"].with_suffix(".away")
    network.records["north"].rename(away)  # while its site runs
    older = network.folder / "older"
    older.mkdir()
    (older / "sitecustomize.py").write_text('import concilium\nconcilium.__version__ = "0.0.9"\n')
    network.kill("south")
    network.extra["south environment"] = {"PYTHONPATH": str(older)}
    network.start("south").wait_until_connected()
    study = network.write_study("ill", describe("ill"))
    try:
        done, out = network.submit(study)
    finally:
        away.rename(network.records["north"])
        network.kill("south")
        del network.extra["south environment"]
        network.start("south")
    card = read_results(out)["card"]
    assert [site["name"] for site in card["sites"]] == ["coast"]
    reasons = {one["site"]: one["reason"] for one in card["dropouts"]}
    assert "records, policy or ledger cannot be used: its own log" in reasons["north"]
    assert str(network.folder) not in reasons["north"]
    assert f"it runs concilium 0.0.9, and the house {cc.__version__}: install" in reasons["south"]
    for site, reason in reasons.items():
        assert f"{site} takes no part: {reason}" in network.log("house")
        assert f"{site} was lost: {reason}" in done.stderr
    assert f"{network.records['north']}; mend it" in network.log("north")
    assert f"the house runs concilium {cc.__version__}, and this site 0.0.9" in network.log("south")
    network.wait_until_connected()


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
    done = network.run("flare", "status", "--kit", network.kits / "north")
    assert done.returncode == 2
    assert "is the kit of a hospital" in done.stderr
