"""A house that reads refusals, charges and memory instead of answers: what each would tell, and that none does."""

from __future__ import annotations

import itertools
import sqlite3
import tracemalloc

import pytest
from conversation import wrap

import concilium as cc
from agreed import Asker, deliver, set_up_masks
from concilium.ledger import mask_store
from concilium.models.outcome import Outcome
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.held_out import Sample
from concilium.protocol.masking import Covered, Open
from concilium.protocol.messages import Answer, Refusal, decode, encode, open_reply
from concilium.protocol.questions import Gaussian
from concilium.protocol.releases import find_release
from concilium.protocol.schema import AskSchema
from concilium.protocol.sums import read_sum
from concilium.rulefit.fitting import AskFit, AskRates, Coefficients
from concilium.rulefit.terms import RuleTerms, Steps, write_terms
from concilium.trees.ensemble import AskClassCounts, ClassCounts
from concilium.trees.votes import AskVotes, Voter
from side_door import state

NAMES = itertools.count()
CODES = {"hiv": "code", "y": "code"}
PEOPLE = [{"hiv": None, "y": "np"[i % 2]} for i in range(20)]


def ask(site, kind, question, *, study="study-x", release="exact"):
    envelope = wrap(kind, question, name=f"reader-{next(NAMES):06d}", study=study, release=release)
    return open_reply(deliver(site, encode(envelope)))


def said(reply):
    """All that a reply says besides what is random in it."""
    if isinstance(reply, Refusal):
        return reply.rule, reply.reason, reply.asked, reply.spent, reply.left, reply.would_fit
    return "answer", len(reply.body), reply.charge


def circle_of(records, release, policy=None, **about):
    """A site of these records, two more, and the study that they agreed to and joined."""
    site = cc.Site("a", records, policy)
    others = [cc.Site(name, cc.Records.from_rows(PEOPLE, schema=CODES)) for name in "bc"]
    return [site, *others], set_up_masks([site, *others], release, **about)


def ask_privately(records, question, policy=None):
    sites, agreed = circle_of(records, "private", policy, query=question.query, target=question.target)
    return said(agreed.put(sites[0], question))


def open_masked(sites, agreed, question):
    """The first site's reply to opening what all have answered."""
    covered = [agreed.put(site, question) for site in sites]
    shown = [decode(reply.body, Covered).masked.commitment for reply in covered]
    template = agreed.show(sites[0], shown)
    return agreed.put(sites[0], Open(kind_asked=question.kind, body=encode(question)), template)


@pytest.mark.parametrize("query", ["hiv < 'm'", "hiv >= 'm'", "hiv between 'a' and 'z'", "not hiv > 'a'"])
def test_a_private_query_is_refused_or_not_whoever_has_a_value(query):
    """The one patient who has a value in a column must not be why comparing it by size is refused."""
    asked = (Attribute("y", (), ("n", "p")),)
    question = AskCounts(totals=False, query=query, target="y", attributes=asked, noise=Gaussian("100"))
    somebody = [*PEOPLE, {"hiv": "positive", "y": "n"}]
    replies = [ask_privately(cc.Records.from_rows(r, schema=CODES), question) for r in (PEOPLE, somebody)]
    assert replies[0] == replies[1]
    assert replies[0][0] == "query"


@pytest.mark.parametrize("graph", ["node p + eliminate p.hiv;", "node p ? eliminate p.hiv;"])
def test_an_eliminated_attribute_does_not_come_back_with_the_last_patient_gone(graph):
    policy = cc.Policy(constraints=f"graph g {{ {graph} }}")
    asked = (Attribute("hiv", (), ("x",)),)
    question = AskCounts(totals=False, query="", target="y", attributes=asked, noise=Gaussian("100"))
    table = cc.Records.from_rows([{"hiv": "x", "y": "n"}] * 2, schema=CODES)
    replies = {ask_privately(table.take(range(count)), question, policy=policy) for count in (2, 1, 0)}
    assert len(replies) == 1
    assert next(iter(replies))[0] == "attribute"


def test_the_cap_on_numbers_does_not_tell_how_many_patients_there_are_under_masks():
    replies = set()
    for patients in (30, 34):
        rows = [{"hiv": "nyu"[i % 3], "y": "np"[i % 2]} for i in range(patients)]
        records = cc.Records.from_rows(rows, schema=CODES)
        sites, agreed = circle_of(records, "masked", cc.Policy(numbers_per_patient=0.1))
        reply = agreed.put(sites[0], crosstables_of(named("hiv", "n", "y", "u")))
        assert isinstance(reply, Refusal)
        replies.add(said(reply))
    assert len(replies) == 1
    rule, reason, *receipt = replies.pop()
    assert rule == "numbers"
    assert receipt == ["8", None, None, None]
    assert not any(digit in reason for digit in "0123456789")


def test_each_value_that_class_counts_tell_is_charged():
    rows = [{"job": f"job {i % 30}", "y": "np"[i % 2]} for i in range(90)]
    question = AskClassCounts(query="", target="job", sample=Sample(positive="job 1"))
    reply = ask(cc.Site("a", cc.Records.from_rows(rows)), "tree.classes", question)
    assert len(decode(reply.body, ClassCounts).values) == 30
    assert reply.charge.numbers == 32
    capped = cc.Site("a", cc.Records.from_rows(rows), cc.Policy(numbers_per_patient=0.1))
    assert ask(capped, "tree.classes", question).rule == "numbers"


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_about_one_value_per_patient_is_not_listed_by_calling_it_the_target(release):
    site = cc.Site("a", cc.Records.from_rows([{"age": 20 + i, "y": "np"[i % 2]} for i in range(40)]))
    listing = AskSchema(query="", target="age", count_patients=False)
    assert ask(site, "tree.schema", listing, release=release).rule == "attribute"
    counting = AskClassCounts(query="", target="age", sample=Sample(positive=21, negatives=100))
    assert ask(site, "tree.classes", counting).rule == "attribute"
    assert isinstance(ask(site, "tree.schema", AskSchema(query="", target="y")), Answer)


def named(name, *values, **cells):
    """A category with a cell for each of these values, and for nothing else unless it is said."""
    return Attribute(name, (), values, **{"missing": False, "other": False, **cells})


def crosstables_of(*attributes, **options):
    """Tables of these attributes by class, at the root."""
    asked = {"query": "", "target": "y", "classes": named("y", "n", "p"), **options}
    return AskCounts(attributes=attributes, tree=[], nodes=[0], **asked)


def test_values_that_python_holds_to_be_equal_are_counted_as_asked():
    rows = [{"flag": i % 3 == 0, "y": "np"[i % 2]} for i in range(30)]
    site = cc.Site("a", cc.Records.from_rows(rows))
    seen = []
    for values in ([0, 1], [False, True]):
        question = crosstables_of(named("flag", *values))
        reply = ask(site, "counts", question)
        seen.append(read_sum(reply.body, question)[0, 1:].sum(axis=1).tolist())
    assert seen == [[0, 0], [20, 10]]


LABS = [{"lab": i / 7, "y": "np"[i % 2]} for i in range(4000)]


def noisy_table(attribute, **options):
    """A private table of one attribute by a thousand classes, of which two occur."""
    classes = named("y", "n", "p", *range(998))
    asked = {"query": "", "target": "y", "tree": [], "nodes": [0], "counted": [0], **options}
    return AskCounts(attributes=(attribute,), classes=classes, noise=Gaussian("100"), **asked)


@pytest.mark.parametrize("values", [[], [0], [0, 1 / 7]])
def test_a_table_takes_no_more_memory_than_its_answer_whatever_the_patients_have(values):
    """Under private a measurement has a label for every patient: none of them has a row of its own for every class."""
    sites, agreed = circle_of(state(LABS, lab="number"), "private")
    question = noisy_table(named("lab", *values, other=True))
    first = AskCounts(
        totals=False, query="", target="y", attributes=(Attribute("lab", (1.0,)),), noise=Gaussian("100")
    )
    assert isinstance(agreed.put(sites[0], first), Answer)
    tracemalloc.start()
    reply = agreed.put(sites[0], question)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(reply, Answer)
    assert len(decode(reply.body, Covered).masked.vector) == 8 * 1000 * (2 + len(values))
    assert peak < 4_000_000  # a row for every label would be sixteen million
    cohort = find_release("private").select(sites[0]._context, question)
    counts = question.compute(cohort)[0, 1:]
    expected = [[int(i % 2 == 0), int(i % 2)] for i in range(len(values))]
    assert counts[: len(values), :2].tolist() == expected
    assert counts.sum() == 4000


@pytest.mark.parametrize("cells", [{"missing": True}, {"of": 2}, {}])
def test_a_private_table_in_which_somebody_has_no_cell_is_refused(cells):
    """Whether it would go wrong depends on who is there: it is refused before anybody is looked at."""
    sites, agreed = circle_of(state(LABS[:40], lab="number"), "private")
    reply = agreed.put(sites[0], noisy_table(named("lab", **cells)))
    assert reply.rule == "message"
    assert "every patient" in reply.reason


@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_nor_does_a_plain_table(release, size):
    """A code for every patient, and a thousand classes: the table has as many rows as the question has cells."""
    rows = [{"lab": f"code {i}", "y": "np"[i % 2]} for i in range(4000)]
    policy = cc.Policy(allow=("lab",))
    if release == "masked":
        (site, *_), agreed = circle_of(cc.Records.from_rows(rows), release, policy)
    else:
        site = cc.Site("a", cc.Records.from_rows(rows), policy)
        agreed = Asker([site])
    values = [f"code {i}" for i in range(size)]
    asked = crosstables_of(named("lab", *values), classes=named("y", "n", "p", *range(998)))
    warm = agreed.put(site, AskSchema(query="", target="y", count_patients=False))
    assert isinstance(warm, Answer)
    tracemalloc.start()
    reply = agreed.put(site, asked)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(reply, Answer), reply
    assert peak < 4_000_000
    if release == "exact":
        counts = read_sum(reply.body, asked)
        assert counts[0, 0, :2].tolist() == [2000, 2000]
        assert counts[0, 1:, :2].tolist() == [[int(i % 2 == 0), int(i % 2)] for i in range(size)]


def test_asking_without_opening_does_not_fill_the_disk(tmp_path, monkeypatch):
    """A hundred bytes ask for a vector of millions: the oldest that nobody opened are dropped."""
    monkeypatch.setattr(mask_store, "MOST_BYTES", 1 << 20)
    rows = [{"lab": i / 7, "y": "np"[i % 2]} for i in range(40)]
    site = cc.Site("a", cc.Records.from_rows(rows), ledger=tmp_path / "a.ledger")
    sites = [site, *(cc.Site(name, cc.Records.from_rows(rows)) for name in "bc")]
    agreed = set_up_masks(sites)
    wide = named("y", "n", "p", *range(998))

    def question(number):
        edges = tuple(float(edge + number) for edge in range(20))
        return crosstables_of(Attribute("lab", edges), classes=wide)

    vectors = []
    for number in (*range(100, 180), 100, 179):
        reply = agreed.put(site, question(number))
        vectors.append(decode(reply.body, Covered).masked.vector)
    assert len(vectors[0]) == 8 * 23_000
    with sqlite3.connect(tmp_path / "a.ledger") as connection:
        kept = connection.execute("SELECT count(*), sum(length(vector)) FROM mask_attempt").fetchone()
    connection.close()
    assert kept == (5, 5 * 8 * 23_000)
    assert vectors[-1] == vectors[-3]  # the newest are there still
    assert vectors[-2] != vectors[0]  # the oldest is answered anew
    assert (
        len([entry for entry in site.ledger.entries() if entry.mode == "masked"]) == 80
    )  # each entered once
    # What was dropped and is asked for again is opened as any other.
    assert isinstance(open_masked(sites, agreed, question(100)), Answer)


def test_what_a_site_covers_does_not_tell_how_many_of_its_patients_match():
    """Whether there are enough is told once, to the proposal, before anything is asked, and by nothing after."""
    proposed, covered, opened = [], set(), set()
    question = crosstables_of(named("hiv", "n", "y"), query="hiv = 'y'")
    for matching in (0, 1, 3, 4, 30):
        rows = [{"hiv": "y" if i < matching else "n", "y": "np"[i % 2]} for i in range(60)]
        sites = [cc.Site(name, cc.Records.from_rows(rows, schema=CODES)) for name in "abc"]
        reply = open_reply(Asker(sites, query=question.query, release="masked").propose(sites[0]))
        proposed.append(said(reply))
        if isinstance(reply, Refusal):
            continue
        agreed = set_up_masks(sites, query=question.query)
        covered.add(said(agreed.put(sites[0], question)))
        opened.add(said(open_masked(sites, agreed, question)))
    assert [reply[0] for reply in proposed] == ["patients"] * 3 + ["answer"] * 2
    assert len({*proposed[:3]}) == len({*proposed[3:]}) == 1
    assert len(covered) == len(opened) == 1
    assert covered.pop()[0] == opened.pop()[0] == "answer"


def test_masked_studies_that_are_refused_for_their_patients_are_counted_by_whom_they_are_about():
    rows = [{"hiv": "yn"[i % 2], "y": "np"[i % 2]} for i in range(60)]
    policy = cc.Policy(other_circles=True, refusals_per_month=3)
    sites = [cc.Site(name, cc.Records.from_rows(rows, schema=CODES), policy) for name in "abc"]
    rules = []
    for number, value in enumerate("1123y"):
        asker = Asker(sites, query=f"hiv = '{value}'", release="masked", nonce=f"nonce-{number}-of-a-test")
        rules.append(said(open_reply(asker.propose(sites[0])))[0])
    assert rules == ["patients"] * 4 + ["ended"]
    assert [(note.rule, note.kind) for note in sites[0].ledger.refusals()] == [
        *[("patients", "study.propose")] * 3,
        ("ended", "study.propose"),
    ]


@pytest.mark.parametrize(("places", "rule"), [(30, "answer"), (31, "answer"), (32, "mask")])
def test_a_sum_too_large_for_the_ring_is_no_oracle(places, rule):
    """With so many binary places that one large loss does not fit, a refusal would tell that somebody has it."""
    terms = RuleTerms((Attribute("hiv", (), ("y",)),), steps=(Steps(0, (0.0, 1000.0, 0.0)),))
    question = AskFit(
        query="",
        target="y",
        outcome=Outcome(positive="p"),
        terms=write_terms(terms),
        candidates=(Coefficients(0.0, (0,), (1e6,)),),
        gradient=False,
        places=places,
    )
    rates = AskRates(query="", target="y", outcome=Outcome(positive="p"), terms=terms, places=places)
    replies = set()
    for somebody in ([], [{"hiv": "y", "y": "n"}]):
        rows = [*({"hiv": "n", "y": "np"[i % 2]} for i in range(60)), *somebody]
        sites, agreed = circle_of(cc.Records.from_rows(rows, schema=CODES), "masked")
        for asked in (question, rates):
            replies.add(said(agreed.put(sites[0], asked))[0])
    assert replies == {rule}


@pytest.mark.parametrize(
    ("experts", "reason"),
    [
        ([Voter([], [0])] * 20_001, "at most 1001 experts can vote at a time"),
        ([Voter([], [0, 0])], "an expert votes at a node that its tree does not have, or twice at one"),
        ([Voter([], [1])], "an expert votes at a node that its tree does not have, or twice at one"),
    ],
)
def test_an_expert_has_one_vote_for_a_patient_and_there_are_not_too_many(experts, reason):
    question = AskVotes(query="", target="y", positive="p", attributes=(), experts=experts)
    site = cc.Site("a", cc.Records.from_rows(PEOPLE, schema=CODES))
    reply = ask(site, "tree.votes", question)
    assert (reply.rule, reply.reason) == ("message", reason)
