"""Proposals as a weapon. A stranger's take what their bytes take, a known house's are metered, and no parameter,
however extreme, ends in anything but a definite reply in bounded time and memory."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

import concilium as cc
from agreed import Asker
from concilium.consult.consent import find_study, write_page
from concilium.errors import StudyError
from concilium.policy.policy import Agree, WorkLimits
from concilium.privacy.identity import Identity
from concilium.protocol import meter, terms
from concilium.protocol.messages import VERSION, Answer, Envelope, Refusal, encode, open_reply
from concilium.protocol.terms import Propose, name_study, sign_terms
from concilium.registry import PROPOSED, load
from contract.patients import write_parameters

ROWS = [{"age": 20 + i % 60, "sex": "fm"[i % 2], "y": "ny"[i % 3 == 0]} for i in range(40)]
TABLE = cc.Records.from_rows(ROWS, schema={"age": "number", "sex": "code", "y": "code"})
STATED = {"bins": {"age": [40, 60]}, "values": {"sex": ["f", "m"], "y": ["n", "y"]}, "epsilon": "1"}
VALID: dict[tuple[str, str], dict[str, Any]] = {
    (name, release): write_parameters(name, release, positive="y", time="age", **STATED)
    for name, place in PROPOSED.items()
    for release in load(place).releases
}
# A whole proposal, page and all, on a machine that does other things; the attacks took minutes or all memory.
MOST_SECONDS, MOST_MEMORY = 2.0, 32 << 20
WHOLE = [-1, 0, 1, 10**3, 10**6, 10**9, 2**31, 2**53, 2**63 - 1]
NUMBERS = [*WHOLE, 0.5, -0.5, 5e-324, 1e-300, 1e-9, 1e9, 1e300, 1.7e308, True]
TEXTS = [
    "",
    "0",
    "-1",
    "1e-400",
    "1e-300",
    "1e300",
    "1e999999999",
    "1e-999999999",
    "nan",
    "inf",
    f"1/{10**300}",
]
TEXTS += [f"{10**300}/{10**299 + 1}", "9" * 5000, "1s", "1000000000h", f"{'9' * 300}h", "0.0000001h", "h"]
HOUSE, STRANGER = Identity.create(), Identity.create()
ABSENT = [cc.Site(name, TABLE) for name in ("coast", "south")]


def open_site(**options: Any) -> cc.Site:
    houses = {"network": HOUSE.fingerprint}
    return cc.Site("north", TABLE, policy=cc.Policy(houses=houses, **{"agree": Agree(methods=()), **options}))


def write(
    site: cc.Site, method: str, release: str, parameters: dict[str, Any], house: Identity = HOUSE
) -> Asker:
    return Asker([site, *ABSENT], method=method, release=release, parameters=parameters, identity=house)


def send(site: cc.Site, written: bytes, house: Identity, release: str) -> Answer | Refusal:
    proposal = Propose(terms=written, signature=sign_terms(written, house))
    envelope = Envelope(
        version=VERSION,
        id="proposal-1",
        study=name_study(written),
        kind=Propose.kind,
        release=release,
        body=encode(proposal),
        template=b"",
    )
    return open_reply(site.answer(encode(envelope)))


def list_numeric() -> Iterator[tuple[str, str, str]]:
    """Each method, release and parameter that takes a number, in any way of writing one."""
    for (method, release), valid in VALID.items():
        for name, one in load(PROPOSED[method]).parameters().items():
            words = one.parameter.takes
            if valid.get(name) is not None and isinstance(valid[name], dict | list):
                continue
            if any(word in words for word in ("number", "share", "time", "delta")) and "lists" not in words:
                yield method, release, name


@pytest.fixture(scope="module")
def site() -> cc.Site:
    one = open_site()
    for (method, release), parameters in VALID.items():  # what is loaded once is no proposal's work
        reply = send(one, write(one, method, release, parameters).terms, HOUSE, release)
        assert isinstance(reply, Refusal)
        assert reply.rule == "waiting", (method, release, reply.reason)
    return one


@pytest.mark.parametrize("method", sorted(PROPOSED))
def test_no_extreme_parameter_ends_in_internal_or_takes_long(site: cc.Site, method: str) -> None:
    """Every value of every parameter, under each of the method's releases in turn."""
    releases: dict[str, list[str]] = {}
    for _, release, name in (one for one in list_numeric() if one[0] == method):
        releases.setdefault(name, []).append(release)
    assert releases
    tried = 0
    for name, possible in releases.items():
        whole = load(PROPOSED[method]).parameters()[name].takes.startswith("a whole number")
        for place, value in enumerate((*WHOLE, 1e9, True, "1") if whole else (*NUMBERS, *TEXTS)):
            release = possible[(place + tried) % len(possible)]
            parameters = {**VALID[method, release], name: value}
            asker = write(site, method, release, parameters)
            tracemalloc.start()
            began = time.process_time()
            try:
                reply = send(site, asker.terms, HOUSE, release)
                if isinstance(reply, Refusal) and reply.rule == "waiting":
                    write_page(find_study(site.ledger, asker.study, site.policy), site.ledger, site.policy)
                took, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            about = (method, release, name, str(value)[:40])
            assert isinstance(reply, Refusal), about
            assert reply.rule in ("waiting", "message"), (*about, reply.rule, reply.reason)
            assert took < MOST_SECONDS, (*about, took)
            assert peak < MOST_MEMORY, (*about, peak)
            tried += 1
    assert tried > 20


def mutate(dice: random.Random, parameters: dict[str, Any]) -> dict[str, Any]:
    """Valid parameters with something of them made large, deep, many or strange."""
    changed: dict[str, Any] = json.loads(json.dumps(parameters))
    size = dice.choice([50, 500, 5000])
    names = [f"v{dice.randrange(10**6)}" for _ in range(size)]
    large: list[Any] = [
        {name: [float(edge) for edge in range(3)] for name in names},
        {name: ["a", "b"] for name in names},
        {"age": [float(edge) for edge in range(min(size, 1000))]},
        names,
        [f"{code:03d}" for code in range(1, min(size, 1000))],
        dict.fromkeys(names, "(root)"),
        {name: names[place - 1] if place else "(root)" for place, name in enumerate(dict.fromkeys(names))},
        " or ".join(f"age = {place}" for place in range(size)),
        "(" * size,
        "9" * size,
        [1 / (place + 1) for place in range(size)],
        dice.choice([*NUMBERS, *TEXTS]),
        None,
    ]
    for _ in range(dice.randint(1, 3)):
        name = dice.choice(
            [*changed, "bins", "values", "attributes", "query", "tree", "clients", "penalty", "hidden"]
        )
        changed[name] = dice.choice(large)
    return changed


def test_a_stranger_s_work_is_bounded_by_the_bytes_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a stranger's terms is opened: no method, no query, no dictionary; nothing is entered or remembered."""
    site = open_site(agree=Agree(releases=("exact", "masked", "shared"), methods=tuple(PROPOSED)))

    def never(*_: Any) -> Any:
        raise AssertionError("a stranger's terms were opened")

    monkeypatch.setattr(terms, "open_method", never)
    monkeypatch.setattr(terms, "_check_form", never)
    dice = random.Random(5)
    for number in range(80):
        method, release = dice.choice(list(VALID))
        try:
            asker = write(site, method, release, mutate(dice, VALID[method, release]), STRANGER)
        except (ValueError, OverflowError):
            continue
        began = time.process_time()
        reply = send(site, asker.terms, STRANGER, release)
        took = time.process_time() - began
        assert isinstance(reply, Refusal)
        assert reply.rule == ("house" if len(asker.terms) <= terms.MOST_BYTES else "message"), (
            number,
            reply.reason,
        )
        assert took < 0.2 + 2e-6 * len(asker.terms), (number, method, took, len(asker.terms))
    assert site.ledger.studies.list() == []
    assert site.ledger.count_work(0) == site._context.meter._unwritten == 0


def test_a_known_house_s_work_is_bounded_by_the_bytes_of_its_proposals(site: cc.Site) -> None:
    """Mutations of valid terms of every method: what each takes is what the meter counts for it, at most."""
    generous = open_site(
        agree=Agree(releases=("exact", "masked", "shared"), methods=tuple(PROPOSED), sensitive=("042",))
    )
    dice, slow = random.Random(6), 0.0
    for number in range(80):
        method, release = dice.choice(list(VALID))
        asker = write(generous, method, release, mutate(dice, VALID[method, release]))
        before = generous._context.meter._unwritten
        began = time.process_time()
        reply = send(generous, asker.terms, HOUSE, release)
        took = time.process_time() - began
        assert not isinstance(reply, Refusal) or reply.rule != "internal", (number, method, reply)
        counted = generous._context.meter._unwritten - before
        if len(asker.terms) <= terms.MOST_BYTES:  # what is larger is not even read
            assert counted >= meter.OF_EACH_BYTE * len(asker.terms)
        slow = max(slow, took / (0.3 + counted * 4e-9))
    assert slow < 1, slow


def test_a_house_that_proposes_without_end_is_refused_and_others_are_not(
    tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(meter, "LEAST_OF_A_HOUSE", 10**7)
    houses = {"one": HOUSE.fingerprint, "other": STRANGER.fingerprint}
    policy = cc.Policy(houses=houses, agree=Agree(methods=()), work=WorkLimits(operations_per_day=1e9))

    def open_again() -> cc.Site:
        return cc.Site("north", TABLE, policy=policy, ledger=tmp_path / "north.ledger")

    one, rules = open_again(), []
    for number in range(12):
        if number % 3 == 2:  # through restarts
            one.ledger.close()
            one = open_again()
        asker = Asker([one], method="tree", identity=HOUSE, nonce=f"nonce-of-{number}")
        rules.append(send(one, asker.terms, HOUSE, "exact"))
    assert [reply.rule for reply in rules[:2]] == ["waiting", "waiting"]
    assert [reply.rule for reply in rules[-2:]] == ["work", "work"]
    assert "propose again after midnight" in rules[-1].reason
    other = Asker([one], method="tree", identity=STRANGER)
    assert send(one, other.terms, STRANGER, "exact").rule == "waiting"


@pytest.mark.parametrize("trust", ["local", "rule", "secure-sum"])
def test_whether_a_study_can_work_is_found_by_the_house_and_by_no_hospital(site: cc.Site, trust: str) -> None:
    release = {"local": "local", "rule": "exact", "secure-sum": "private"}[trust]
    parameters = {
        "outcome": "y",
        "trust": trust,
        "epsilon": "1/10",
        "clients": 300,
        "bins": {"age": [20, 40]},
    }
    with pytest.raises(StudyError, match="this study cannot work"):
        cc.RuleDiscovery(**parameters).draft()
    reply = send(site, write(site, "discovery", release, parameters).terms, HOUSE, release)
    assert isinstance(reply, Refusal)
    assert reply.rule == "waiting"


@pytest.mark.parametrize("shape", ["deep", "flat"])
def test_the_tree_of_a_sharing_takes_what_its_bytes_take(site: cc.Site, shape: str) -> None:
    """Distances between codes take their square times the levels of the tree: none are measured when terms are read."""
    leaves = [f"l{place}" for place in range(1900)]
    tree = dict.fromkeys(leaves, "(root)")
    if shape == "deep":
        tree = {f"n{place}": f"n{place - 1}" if place else "(root)" for place in range(1900)}
        tree |= {leaf: f"n{place}" for place, leaf in enumerate(leaves)}
    parameters = {"sensitive": leaves, "epsilon": "1", "max_events": 2, "block_size": 2}
    asker = write(site, "code-sharing", "shared", {**parameters, "taxonomy": "tree", "tree": tree})
    began = time.process_time()
    reply = send(site, asker.terms, HOUSE, "shared")
    assert time.process_time() - began < MOST_SECONDS
    assert isinstance(reply, Refusal)
    assert reply.rule == ("message" if shape == "deep" else "waiting")
    assert ("levels at most" in reply.reason) == (shape == "deep")
