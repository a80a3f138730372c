"""Refusals are counted for each house; a steward can let them no longer count, and the ledger says so."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import HouseError, LedgerError
from contract.patients import ROWS, hold

MOST = 3


def open_site(path, houses):
    policy = cc.Policy(
        refusals_per_month=MOST,
        houses={name: one.identity.fingerprint for name, one in houses.items()},
        agree=cc.policy.policy.Agree(releases=("exact",), methods=("tree",)),
    )
    return cc.Site("north", hold(ROWS["north"]), policy=policy, ledger=path)


def make_houses(path):
    """Two houses of their own keys, and the site that lists them."""
    listed = {name: cc.House([cc.Site("x", hold(ROWS["north"]))]) for name in ("one", "two")}
    site = open_site(path, listed)
    return site, {name: cc.House([site], identity=one.identity) for name, one in listed.items()}


def ask(house, age):
    cc.DecisionTree("y", query=f"age > {age}").fit(house)


def use_up(house):
    for place in range(MOST):
        with pytest.raises(HouseError, match="too few patients match this study"):
            ask(house, 300 + place)
    with pytest.raises(
        HouseError, match="too many different studies of this month were refused to this house"
    ):
        ask(house, 20)


def test_the_mistakes_of_one_house_do_not_stop_another(tmp_path):
    _, houses = make_houses(tmp_path / "north.ledger")
    use_up(houses["one"])
    ask(houses["two"], 20)
    use_up(houses["two"])


def test_a_steward_forgives_and_the_ledger_says_so(tmp_path):
    path = tmp_path / "north.ledger"
    site, houses = make_houses(path)
    use_up(houses["one"])
    use_up(houses["two"])
    name = houses["one"].identity.fingerprint
    said = CliRunner().invoke(app, ["ledger", "forgive", str(path), "--house", name, "--reason", "mistyped"])
    assert said.exit_code == 0, said.output
    assert said.output == f"{MOST} refusals of this month no longer count; it is entered\n"
    entry = list(site.ledger.entries())[-1]
    assert entry.note == f"{MOST} refusals of {name} forgiven: mistyped"
    site.ledger.verify()
    ask(houses["one"], 20)
    with pytest.raises(HouseError, match="too many different studies"):
        ask(houses["two"], 25)
    with pytest.raises(LedgerError, match="needs a reason, which is entered"):
        site.ledger.forgive_refusals(" ")


def test_houses_that_are_not_listed_share_one_count():
    policy = cc.Policy(refusals_per_month=MOST)
    site = cc.Site("north", hold(ROWS["north"]), policy=policy)
    for place in range(MOST):
        with pytest.raises(HouseError, match="too few patients match this study"):
            ask(cc.House([site]), 300 + place)
    with pytest.raises(HouseError, match="too many different studies"):
        ask(cc.House([site]), 20)
