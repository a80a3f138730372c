"""A house that plays foul: each way it could learn more than it is charged for, and that it is closed."""

from __future__ import annotations

import itertools
import shutil
import threading

import msgspec
import numpy as np
import pytest
from conversation import wrap

import concilium as cc
from agreed import Asker, deliver, set_up_masks
from concilium.errors import HouseError
from concilium.privacy.manifest import Participant, compose
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.privacy.shares import HALF_RING
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.masking import Join, MaskedStudy
from concilium.protocol.messages import Answer, Refusal, decode, encode, open_reply
from concilium.protocol.schema import AskSchema, SchemaSeen
from concilium.protocol.splits import STAYS, Branching, Split, route
from concilium.protocol.sums import read_sum
from concilium.protocol.terms import Propose, sign_terms
from side_door import find_side_doors, state

NAMES = itertools.count()
ROWS = [
    {"sex": "fm"[i % 2], "age": 20 + i % 37 + 0.5, "death": "yes" if i % 5 == 0 else "no"} for i in range(120)
]


def site_of(name, rows=ROWS, **options):
    return cc.Site(name, cc.Records.from_rows(rows), **options)


def ask(site, kind, question, *, study="study-x", release="exact"):
    envelope = wrap(kind, question, name=f"hostile-{next(NAMES):06d}", study=study, release=release)
    return open_reply(deliver(site, encode(envelope)))


def classes(*values, of=0, target="death"):
    return Attribute(target, (), values, missing=False, other=False, of=of)


@pytest.mark.parametrize("release", ["masked", "private"])
def test_a_limit_of_the_houses_choosing_is_no_oracle(release):
    """No message can carry one: the largest number that a site enters follows from how many take part."""
    sites = [site_of(name) for name in "abc"]
    for largest in (1, 24, 2**40):
        own = Asker(sites, release=release, target="death")
        changed = msgspec.json.encode({**msgspec.json.decode(own.terms), "largest": largest})
        proposal = Propose(terms=changed, signature=sign_terms(changed, own.identity))
        reply = open_reply(sites[0].answer(encode(own.wrap(proposal))))
        assert (reply.rule, "unknown field `largest`" in reply.reason) == ("message", True)
    agreed = set_up_masks(sites, release, target="death")
    manifest = compose("x", [Participant(s.name, s.identity.public) for s in sites], largest=24)
    for more in ({"manifest": manifest.encoded}, {"largest": 24}):
        joining = msgspec.structs.replace(
            agreed.wrap(Join(), name="joining-1"), body=msgspec.msgpack.encode(more)
        )
        reply = open_reply(agreed.ask(sites[0], joining))
        assert (reply.rule, "unknown field" in reply.reason) == ("message", True)
    for site in sites:
        assert site._context.memberships.at(agreed.study).manifest.largest == (HALF_RING - 1) // 3


def test_leaving_a_class_out_does_not_tell_whether_somebody_is_of_it():
    sites = [site_of(name) for name in "abc"]
    agreed = set_up_masks(sites, target="death")
    replies = set()
    for node in (1, 2, 3, 4):
        question = AskCounts(
            query="",
            target="death",
            classes=classes("no"),
            attributes=(Attribute("age", (30.0, 31.0)),),
            tree=[Split(0, 0, [1, 2, 3, 4])],
            nodes=[node],
            counted=[],
        )
        replies.add(type(agreed.put(sites[0], question)))
    assert replies == {Answer}
    assert {entry.numbers for entry in sites[0].ledger.entries() if entry.question} == {1}


MIXED = {
    "one": [{"ward": f"w{i % 6}", "lab": i % 9, "y": "np"[i % 3 == 0]} for i in range(90)],
    "two": [{"ward": f"w{i % 6}", "lab": i % 9, "y": "np"[i % 4 == 0]} for i in range(60)],
    "ten": [{"ward": f"w{i}", "lab": 2 * i, "y": "np"[i % 2]} for i in range(11)],
}
ODD = {"ward": "w0", "lab": "n/a", "y": "p"}


def private(house, query=""):
    values = {"ward": [f"w{i}" for i in range(6)], "y": ["n", "p"]}
    tree = cc.DecisionTree(
        "y", query, release="private", epsilon=40, values=values, bins={"lab": [3, 6]}, max_depth=1
    )
    return tree.fit(house)


@pytest.mark.parametrize("query", ["", "lab > 3", "lab = 4 or ward = 'w1'", "not ward in {'w1', 'w2'}"])
@pytest.mark.parametrize(("name", "row"), [("one", 90), ("ten", 11), ("ten", 10)])
def test_how_a_column_is_read_does_not_hang_on_one_patient(monkeypatch, query, name, row):
    """A value that makes a column text, or a patient with whom a column identifies patients, opens no side door."""
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    sites = {site: [*rows, ODD] if site == name else rows for site, rows in MIXED.items()}
    assert find_side_doors(sites, (name, row), lambda house: private(house, query)) == []


def test_one_odd_value_changes_no_other_patients_count(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    add_up, seen = MaskedStudy.add_up, []

    def listen(study, question, release):
        seen.append((question.sensitivity.squared, add_up(study, question, release)))
        return seen[-1][1]

    monkeypatch.setattr(MaskedStudy, "add_up", listen)
    policy = cc.Policy(budget=cc.Budget("unlimited"))
    for extra in ([], [ODD]):
        tables = {name: state([*rows, *extra] if name == "one" else rows) for name, rows in MIXED.items()}
        house = cc.House([cc.Site(name, table, policy) for name, table in tables.items()])
        with zero_noise():
            private(house)
    half = len(seen) // 2
    assert half == 2  # the root, and the leaves
    for (allowed, before), (_, after) in zip(seen[:half], seen[half:], strict=True):
        assert abs(after - before).sum() <= allowed


def test_masked_sums_of_two_circles_cannot_be_compared_however_the_question_is_written():
    sites = [site_of(name, ROWS[i::4]) for i, name in enumerate("abcd")]
    cc.DecisionTree("death", release="masked", max_depth=1).fit(cc.House(sites))
    for query in ("", " ", "age > 30"):
        with pytest.raises(HouseError, match="opens none with another circle of hospitals"):
            cc.DecisionTree("death", query, release="masked", max_depth=1).fit(cc.House(sites[1:]))
    cc.DecisionTree("death", "age > 30", release="masked", max_depth=1).fit(cc.House(sites))


def test_a_table_that_changed_is_no_way_to_another_circle(tmp_path):
    """Some patients more at every hospital, and the two sums would still differ by the answer of a."""

    def sites(rows):
        return [site_of(n, rows[i::4], ledger=tmp_path / f"{n}.ledger") for i, n in enumerate("abcd")]

    def study(circle):
        cc.DecisionTree("death", release="masked", max_depth=1).fit(cc.House(circle))

    before = sites(ROWS[:-16])
    study(before)
    for site, rows in zip(before, (ROWS[i::4] for i in range(4)), strict=True):
        site.ledger.rebind(cc.Records.from_rows(rows).digest)
        site.ledger.close()
    after = sites(ROWS)
    with pytest.raises(HouseError, match="opens none with another circle of hospitals"):
        study(after[1:])
    study(after)


def test_what_a_refusal_of_another_circle_advises_works():
    """After sums of three, a study of five is refused; each way that the sentence names is then taken."""

    def open_five(**policy):
        return [
            cc.Site(n, state(ROWS[i::5], age="number"), cc.Policy(**policy)) for i, n in enumerate("abcde")
        ]

    def masked(circle, query=""):
        return cc.DecisionTree("death", query, release="masked", max_depth=1).fit(cc.House(circle))

    five = open_five()
    masked(five[:3])
    with pytest.raises(HouseError) as refused:
        masked(five)
    said = str(refused.value)
    assert "has opened masked sums with a, b, c," in said
    assert "resume" not in said  # which would be refused again
    assert "a masked study with those same hospitals" in said
    masked(five[:3], "age > 30")
    assert "release = 'private' with any" in said
    public = {"values": {"death": sorted({row["death"] for row in ROWS})}, "bins": {"age": [40]}}
    cc.DecisionTree("death", release="private", epsilon=1, max_depth=1, **public).fit(cc.House(five))
    assert "sets other_circles = true" in said
    five = open_five(other_circles=True)
    masked(five[:3])
    masked(five, "age > 30")
    assert "a question that was opened before stays with its circle even then" in said
    with pytest.raises(
        HouseError, match=r"opened here for a, b, c and is not opened for.*Ask it of the same hospitals"
    ):
        masked(five)
    masked(five[:3])


def test_a_policy_may_allow_other_circles():
    sites = [site_of(n, ROWS[i::4], policy=cc.Policy(other_circles=True)) for i, n in enumerate("abcd")]
    cc.DecisionTree("death", release="masked", max_depth=1).fit(cc.House(sites))
    cc.DecisionTree("death", "age > 30", release="masked", max_depth=1).fit(cc.House(sites[1:]))


def test_private_sums_of_several_circles_are_charged_each_time():
    sites = [cc.Site(name, state(ROWS[i::4], age="number")) for i, name in enumerate("abcd")]
    values = {"sex": ["f", "m"], "death": ["no", "yes"]}
    spent = []
    for circle in (sites, sites[1:], sites[:3]):
        tree = cc.DecisionTree("death", release="private", epsilon=1, values=values, max_depth=1)
        tree.fit(cc.House(circle))
        spent.append(sites[1].ledger.spent())
    assert spent[0] < spent[1] < spent[2]


def test_whole_numbers_that_number_the_patients_are_not_released():
    rows = [
        {
            "mrn": 100_000 + 7 * i,
            "shuffled": 617 * i % 1000,
            "long": 7_654_321 * i % 10_000_019 + 10**7,
            "rising": 3 * i**2,
            "five_digits": 10_000 + 7919 * i % 89_989,
            "PatientID": 7919 * i % 9973,
            "case number": 7919 * i % 9973,
            "age": 20 + i % 60,
            "hiv": "no" if i % 50 else "yes",
        }
        for i in range(1000)
    ]
    site = site_of("a", rows)
    numbering = {"PatientID", "case number", "five_digits", "long", "mrn", "rising", "shuffled"}
    seen = ask(site, "tree.schema", AskSchema(query="", target="hiv"), study="plain")
    assert isinstance(seen, Answer)
    told = decode(seen.body, SchemaSeen)
    # Nothing of them is told but that they are left out, which the schema says by name.
    assert set(told.identifying) == numbering
    assert not numbering & (told.names | set(told.quartiles) | set(told.odd))
    assert "age" in told.names
    for question in (
        AskSchema(query="", target="hiv", bins={"mrn": [100_013.0, 100_014.0]}),
        AskSchema(query="mrn = 100014", target="hiv"),
        AskSchema(query="mrn < 100030", target="hiv"),
    ):
        reply = ask(site, "tree.schema", question)
        if isinstance(reply, Answer):
            told = decode(reply.body, SchemaSeen)
            assert not numbering & (told.names | set(told.quartiles) | set(told.odd))
    cut = AskSchema(query="", target="hiv", bins={"age": [40.0]})
    seen = ask(site, "tree.schema", cut, study="another")  # which a study asks once
    assert isinstance(seen, Answer)
    assert b"age" in seen.body


def crosstables(classes, *attributes, **options):
    asked = {"query": "", "target": "death", "tree": [], "nodes": [0], **options}
    return AskCounts(classes=classes, attributes=attributes, **asked)


@pytest.mark.parametrize(
    "question",
    [
        crosstables(classes(of=2**20)),
        crosstables(classes(of=2**24)),
        crosstables(classes(of=2), *(Attribute("age", (float(i),)) for i in range(4000)), counted=[]),
        crosstables(classes(of=2), Attribute("sex", of=2**40), counted=[]),
        crosstables(classes(of=2), *(Attribute(f"x{i}", of=2**20) for i in range(5))),
        AskSchema(query="", target="d" * 20_000_000),
    ],
)
def test_a_small_message_costs_little(question):
    reply = ask(site_of("a"), question.kind, question)
    assert isinstance(reply, Refusal)
    assert len(reply.reason) < 500


def test_an_attribute_asked_for_many_times_is_told_once():
    reply = ask(site_of("a"), "tree.schema", AskSchema(query="", target="death", attributes=["sex"] * 20_000))
    assert isinstance(reply, Answer)
    assert reply.body.count(b"sex") == 1


def test_a_wide_split_is_routed_in_one_go():
    draw = np.random.default_rng(0)
    codes = draw.integers(0, 1000, 5000).astype(np.uint16)
    child = np.array([STAYS, *range(1, 1000)], dtype=np.int32)
    found = route(np.arange(5000, dtype=np.int32), {0: Branching(codes, child)})
    for node, rows in found.items():
        wanted = np.flatnonzero(codes == node) if node else np.flatnonzero(codes == 0)
        assert rows.tolist() == wanted.tolist()


def test_a_policys_colluders_are_counted_on_by_all():
    sites = [
        site_of(n, ROWS[i::5], policy=cc.Policy(colluders=2 if i == 3 else 1)) for i, n in enumerate("abcde")
    ]
    tree = cc.DecisionTree("death", release="masked", max_depth=1).fit(cc.House(sites))
    assert len(tree.card.sites) == 5
    few = [site_of(n, ROWS[i::3], policy=cc.Policy(colluders=2)) for i, n in enumerate("abc")]
    with pytest.raises(Exception, match="at least 4 are needed"):
        cc.DecisionTree("death", release="masked", max_depth=1).fit(cc.House(few))


def test_the_cap_on_numbers_holds_for_threads_that_ask_at_once():
    site = site_of("a", policy=cc.Policy(numbers_per_patient=0.05))
    question = crosstables(classes("no", "yes"))
    replies = []

    def work():
        replies.append(ask(site, "counts", question))

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = [reply for reply in replies if isinstance(reply, Answer)]
    assert len(answers) == 3
    assert sum(read_sum(answer.body, question).sum() for answer in answers) == 3 * len(ROWS)
    assert site.ledger.numbers() == 6


def test_a_house_with_a_memory_notices_a_ledger_put_back(tmp_path):
    def house():
        sites = [site_of(n, ROWS[i::2], ledger=tmp_path / f"{n}.ledger") for i, n in enumerate("ab")]
        return cc.House(sites, memory=tmp_path / "house.json"), sites

    def study():
        opened, sites = house()
        tree = cc.DecisionTree("death", max_depth=1).fit(opened)
        for site in sites:
            site.ledger.close()
        return tree

    study()
    for ending in ("", ".head"):
        shutil.copy(tmp_path / f"a.ledger{ending}", tmp_path / f"kept{ending}")
    study()
    for file in tmp_path.glob("a.ledger-*"):
        file.unlink()
    for ending in ("", ".head"):  # both, or the site itself would say so
        shutil.copy(tmp_path / f"kept{ending}", tmp_path / f"a.ledger{ending}")
    with pytest.raises(HouseError, match="a ledger cannot be trusted: a: "):
        study()
    (tmp_path / "house.json").write_text("{")
    with pytest.raises(HouseError, match=r"house\.json: this is not what a house remembers"):
        house()
