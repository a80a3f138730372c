"""Studies on a real FLARE: a house and three hospitals, each a process of its own, over mutual TLS."""

from __future__ import annotations

import json

import pytest

import concilium as cc
from flare_network import PATIENCE, SITES, FlareNetwork

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
