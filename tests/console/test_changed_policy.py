"""A gateway filters by its policy as it is now: no restart, and nothing let out by rules that cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from concilium.console.gateway import Gateway, PolicyFile
from concilium.errors import PolicyError

MESSAGE = json.dumps({"nodes": [{"id": "a", "name": "Weiss", "dob": "1950"}], "edges": []}).encode()


def write(path: Path, text: str) -> None:
    """As an editor writes it, at a time of its own: file systems tell times apart by a few milliseconds."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def fields(reply):
    return {*reply.content["nodes"][0]} if reply.status == 200 else reply.status


def test_a_changed_policy_holds_from_the_next_message_on(tmp_path):
    policy = tmp_path / "policy.toml"
    write(policy, "[constraints]\ntext = 'graph E { node x + eliminate x.name; }'\n")
    gateway = Gateway(PolicyFile(policy))
    assert fields(gateway.handle(MESSAGE)) == {"id", "dob"}
    write(policy, "[constraints]\ntext = 'graph E { node x + eliminate x.dob; }'\n")
    assert fields(gateway.handle(MESSAGE)) == {"id", "name"}


def test_so_do_changed_rules_that_a_policy_names(tmp_path):
    rules, policy = tmp_path / "own.graph", tmp_path / "policy.toml"
    write(rules, "graph E { node x + eliminate x.name; }")
    write(policy, "[constraints]\nfile = 'own.graph'\n")
    gateway = Gateway(PolicyFile(policy))
    assert fields(gateway.handle(MESSAGE)) == {"id", "dob"}
    write(rules, "graph E { node x + eliminate x.name, eliminate x.dob; }")
    assert fields(gateway.handle(MESSAGE)) == {"id"}
    write(policy, "[constraints]\nfile = 'other.graph'\n")
    assert fields(gateway.handle(MESSAGE)) == 503
    write(tmp_path / "other.graph", "graph E { node x + eliminate x.dob; }")
    assert fields(gateway.handle(MESSAGE)) == {"id", "name"}


@pytest.mark.parametrize("broken", ["graph E { node", "", None])
def test_what_cannot_be_read_lets_nothing_out_until_it_can(tmp_path, broken, caplog):
    rules = tmp_path / "own.graph"
    write(rules, "graph E { node x + eliminate x.name; }")
    gateway = Gateway(PolicyFile(rules))
    if broken is None:
        rules.unlink()
    else:
        write(rules, broken)
    for _ in range(2):
        reply = gateway.handle(MESSAGE)
        assert reply.status == 503
        assert "Weiss" not in json.dumps(reply.content)
    assert "Weiss" not in caplog.text
    write(rules, "graph E { node x + eliminate x.dob; }")
    assert fields(gateway.handle(MESSAGE)) == {"id", "name"}


def test_a_policy_without_graphs_starts_no_gateway(tmp_path):
    write(tmp_path / "policy.toml", "[budget]\ntotal = 1\n")
    with pytest.raises(PolicyError, match="a gateway would let everything through"):
        PolicyFile(tmp_path / "policy.toml")
