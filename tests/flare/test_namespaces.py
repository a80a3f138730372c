"""House and hospitals in network namespaces of their own, where the way from a site to the house's port is the only
one.

Between them stands a gate that forwards no packets: a process in it carries connections that sites open to one port of
the house, as a firewall with one rule would. Nothing leads from the house, or from one site, to another.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flare_network import PERSON, FlareNetwork

pytest.importorskip("nvflare")

HOST = "house.test"
SITES = ("coast", "north")
NETNS = Path("/etc/netns")
STUDY = """
[study]
name = "apart"
method = "tree"
target = "death"
[privacy]
release = "exact"
[bins]
age = [30, 50, 70]
bsa = [10, 20, 40, 60]
"""


def run_ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=600)


def reason_to_skip():
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "there is no `ip` command to make network namespaces with"
    probe = f"cc{os.getpid()}p"
    made = run_ip("netns", "add", probe)
    if made.returncode:
        return f"network namespaces may not be made here ({made.stderr.strip()})"
    run_ip("netns", "del", probe)
    return ""


class Namespaces:
    """A gate with a link to the house and one to each site; each end knows `HOST` as what it can reach."""

    def __init__(self, names):
        tag = f"cc{os.getpid() % 10000}"
        self.names = {name: f"{tag}{number}" for number, name in enumerate(names, start=1)}
        self.gate = f"{tag}g"
        self.addresses = {}

    def __enter__(self):
        self._ip("netns", "add", self.gate)
        self._ip("-n", self.gate, "link", "set", "lo", "up")
        for number, (name, space) in enumerate(self.names.items(), start=1):
            here, there = f"{space}a", f"{space}b"
            self._ip("netns", "add", space)
            self._ip("link", "add", here, "type", "veth", "peer", "name", there)
            self._ip("link", "set", here, "netns", space)
            self._ip("link", "set", there, "netns", self.gate)
            self.addresses[name] = f"10.77.{number}.2"
            for one, link, address in (
                (space, here, f"10.77.{number}.2"),
                (self.gate, there, f"10.77.{number}.1"),
            ):
                self._ip("-n", one, "addr", "add", f"{address}/24", "dev", link)
                self._ip("-n", one, "link", "set", link, "up")
            self._ip("-n", space, "link", "set", "lo", "up")
            known = self.addresses[name] if name == "house" else f"10.77.{number}.1"
            (NETNS / space).mkdir(parents=True, exist_ok=True)
            (NETNS / space / "hosts").write_text(f"127.0.0.1 localhost\n{known} {HOST}\n")
        return self

    def inside(self, name):
        return ["ip", "netns", "exec", self.gate if name == "gate" else self.names[name]]

    def _ip(self, *arguments):
        done = run_ip(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)

    def __exit__(self, *exception):
        for space in (*self.names.values(), self.gate):
            run_ip("netns", "del", space)
            shutil.rmtree(NETNS / space, ignore_errors=True)


def can_connect(before, address, port):
    code = f"import socket; socket.create_connection(({address!r}, {port}), 2).close()"
    done = subprocess.run([*before, sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    return done.returncode == 0


def test_a_study_needs_nothing_but_the_way_from_sites_to_the_house_s_port(tmp_path):
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Namespaces(("house", *SITES)) as spaces:
        network = FlareNetwork(tmp_path, host=HOST, sites=SITES)
        for name in ("house", *SITES):
            network.extra[name] = spaces.inside(name)
        network.extra[PERSON] = spaces.inside("house")
        script = Path(__file__).with_name("forward_port.py")
        gate = subprocess.Popen(
            [
                *spaces.inside("gate"),
                sys.executable,
                str(script),
                str(network.port),
                spaces.addresses["house"],
            ]
        )
        try:
            network.start().wait_until_connected()
            for name in SITES:  # no other port of the house, no way to a site from anywhere
                assert can_connect(spaces.inside(name), HOST, network.port)
                assert not can_connect(spaces.inside(name), HOST, network.port + 1)
                assert not can_connect(spaces.inside(name), spaces.addresses["house"], network.port)
                assert not can_connect(spaces.inside("house"), spaces.addresses[name], network.port)
            study = network.write_study("apart", STUDY)
            _, out = network.submit(study)
            alone = network.run_embedded(study)
            body = json.loads((out / "model.json").read_text())["body"]
            assert body == json.loads(alone.files["model.json"].read_text())["body"]
            assert [one["name"] for one in json.loads((out / "card.json").read_text())["sites"]] == sorted(
                SITES
            )
        finally:
            network.stop()
            gate.kill()
            gate.wait(600)
