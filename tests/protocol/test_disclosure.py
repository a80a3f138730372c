"""Disclosure rules: what they leave out, against brute force; and what nobody can work out from the rest."""

from __future__ import annotations

import itertools
import random
import threading

import numpy as np
import pytest
from conversation import ROWS, read_schema, schema_message, site_of, wrap
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

import concilium as cc
from agreed import deliver
from concilium.errors import HouseError, LedgerError, PolicyError
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import MOST_REFUSALS
from concilium.protocol.counts import AskCounts
from concilium.protocol.disclosure import Family, Guard, Population, Populations, withhold
from concilium.protocol.messages import Answer, Refusal, decode, encode, open_envelope, open_reply
from concilium.protocol.schema import AskSchema
from concilium.protocol.studies import NO_MORE, TOO_FEW
from concilium.protocol.sums import read_sum
from strategies import tables


def ask(site, message):
    return open_reply(deliver(site, message))


# Small cells and dominance, on single tables


@pytest.mark.parametrize(
    ("table", "guard", "left_out"),
    [
        ([[5, 5], [5, 5]], Guard(5), False),
        ([[5, 4], [5, 5]], Guard(5), True),
        ([[5, 0], [0, 5]], Guard(5), False),
        ([[1, 9], [9, 1]], Guard(1), False),
        ([[1, 9], [9, 1]], Guard(0, 0.9), False),
        ([[1, 10], [10, 1]], Guard(0, 0.9), True),
        ([[0, 10], [10, 10]], Guard(0, 0.99), True),
        ([[50, 50], [3, 3]], Guard(0, 0.9), True),
        ([[50, 50], [30, 30]], Guard(0, 0.9), False),
        ([[0, 0], [0, 0]], Guard(5, 0.5), False),
    ],
)
def test_which_tables_are_left_out(table, guard, left_out):
    assert guard.withholds(np.array([table])).tolist() == [left_out]


def test_a_guard_is_off_by_default_and_on_by_either_rule():
    assert [Guard().on, Guard(1).on, Guard(2).on, Guard(0, 0.5).on] == [False, False, True, True]


def test_class_counts_are_looked_at_too():
    assert Guard(5).withholds_classes(np.array([100, 4]))
    assert not Guard(5).withholds_classes(np.array([100, 5, 0]))
    assert Guard(0, 0.9).withholds_classes(np.array([91, 9]))


def test_siblings_and_what_is_below_go_with_a_table_that_is_left_out():
    """Node 0 splits on attribute 0 into 1 and 2, node 2 on attribute 1 into 3 and 4."""
    fine, small = [[9, 9], [9, 9]], [[9, 2], [9, 9]]
    families = [Family(0, 0, [1, 2]), Family(2, 1, [3, 4])]
    kept = np.array([fine] * 5)
    second = np.array([fine, small, fine, fine, fine])
    dropped, empty = withhold(Guard(3), np.array([50, 50]), [kept, second], families)
    assert dropped.tolist() == [[False] * 5, [False, True, True, True, True]]
    assert empty.tolist() == [False, False, False, True, True]
    dropped, empty = withhold(Guard(3), np.array([50, 2]), [kept, kept], families)
    assert not dropped.any()
    assert empty.all()


# Small cells, in what a house hears while a tree grows


class Overheard(cc.Site):
    """A site that keeps every crosstable it sends, under the node it is about."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.said, self.asked = [], []

    def answer(self, message):
        reply = super().answer(message)
        envelope, opened = open_envelope(message), open_reply(reply)
        if envelope.kind == "counts" and isinstance(opened, Answer):
            question = decode(envelope.body, AskCounts)
            self.asked.append(question)
            self.said.append(read_sum(opened.body, question))
        return reply


def grow(rows, policy, other=None, **options):
    site = Overheard("a", cc.Records.from_rows(rows), policy=policy)
    sites = [site] if other is None else [site, cc.Site("b", cc.Records.from_rows(other))]
    tree = cc.DecisionTree("y", **{"growth": "id3", **options}).fit(cc.House(sites))
    return site, tree


def told(site):
    """What was told: {(node, attribute name or None for class counts): table}, zeros among it."""
    tables = {}
    for question, counts in zip(site.asked, site.said, strict=True):
        for node, table in zip(question.nodes, counts, strict=True):
            tables[node, None] = table[0].astype(int)
            start = 1
            for attribute in question.attributes:
                tables[node, attribute.name] = table[start : start + attribute.size].astype(int)
                start += attribute.size
    return tables


SMALL = 4


@settings(max_examples=60)
@given(tables(most_rows=120, most_columns=4, most_values=3))
def test_no_small_cell_is_told_in_any_answer(rows):
    site, _ = grow(rows, cc.Policy(minimum_patients=0, minimum_cell=SMALL))
    for counts in site.said:
        assert not ((counts > 0) & (counts < SMALL)).any()


def random_rows(dice, count):
    return [
        {"a": dice.choice("uv"), "b": dice.choice("pqr"), "c": dice.choice([0, 1]), "y": dice.choice("nnny")}
        for _ in range(count)
    ]


def members(rows, site, everyone):
    """The site's patients in every node of the tree, whose values are those of everyone."""
    question = site.asked[-1]
    names = [attribute.name for attribute in question.attributes]
    groups = {0: list(rows)}
    for split in question.tree:
        name = names[split.attribute]
        values = sorted({row[name] for row in everyone})
        for value, child in zip(values, split.children, strict=True):
            if child != -1:
                here = [row for row in groups[split.node] if row[name] == value]
                groups[child] = groups.get(child, []) + here
    return groups, {split.node: sorted(set(split.children) - {-1}) for split in question.tree}


def leaves_below(node, children):
    return (
        [leaf for child in children[node] for leaf in leaves_below(child, children)]
        if node in children
        else [node]
    )


def work_out(rows, everyone, site, name):
    """Small cells of an attribute, and which of them follow from what was told by adding and subtracting.

    Unknown are the patients by leaf of the tree, value and class; all that was told (the attribute's tables and the
    class counts) are sums of unknowns, and a sum of 0 says that all of its unknowns are 0. A cell follows if it is a
    combination of those sums.
    """
    groups, children = members(rows, site, everyone)
    values, classes = sorted({row[name] for row in everyone}), sorted({row["y"] for row in everyone})
    unknown = list(itertools.product(leaves_below(0, children), values, classes))

    def vector(node, some_values, outcome):
        below = set(leaves_below(node, children))
        return np.array(
            [leaf in below and v in some_values and c == outcome for leaf, v, c in unknown], dtype=float
        )

    heard, sums = [], []
    for (node, attribute), table in told(site).items():
        if attribute not in (None, name) or not table.any():
            continue
        rows_of_table = [values] if attribute is None else [[value] for value in values]
        for some_values, counts in zip(rows_of_table, np.atleast_2d(table), strict=True):
            for outcome, count in zip(classes, counts, strict=True):
                heard.append(vector(node, some_values, outcome))
                sums.append(count)
    heard = np.array(heard).reshape(-1, len(unknown))
    open_ = ~heard[np.array(sums, dtype=int) == 0].any(axis=0)
    rank = np.linalg.matrix_rank(heard[:, open_]) if heard.size else 0
    for node, value, outcome in itertools.product(groups, values, classes):
        count = sum(row[name] == value and row["y"] == outcome for row in groups[node])
        if 0 < count < SMALL:
            asked = np.vstack([heard, vector(node, [value], outcome)])[:, open_]
            yield node, np.linalg.matrix_rank(asked) == rank


@pytest.mark.parametrize("group", [False, True])
def test_small_cells_cannot_be_worked_out_by_adding_and_subtracting(group):
    dice = random.Random(3)
    found = []
    for _ in range(30):
        rows, other = random_rows(dice, dice.choice([60, 100, 200])), random_rows(dice, 300)
        site, _ = grow(rows, cc.Policy(minimum_patients=0, minimum_cell=SMALL), other, group=group)
        for name in "abc":
            found += work_out(rows, [*rows, *other], site, name)
    assert not any(follows for _, follows in found)
    assert sum(node != 0 for node, _ in found) > 100


def test_the_same_reckoning_finds_what_no_rule_hides():
    dice = random.Random(3)
    rows, other = random_rows(dice, 60), random_rows(dice, 300)
    site, _ = grow(rows, cc.Policy(minimum_patients=0), other)
    found = [follows for name in "abc" for _, follows in work_out(rows, [*rows, *other], site, name)]
    assert found
    assert all(found)


def test_a_small_cell_costs_the_attribute_only_where_it_is_small():
    rows = [{"a": "uv"[i % 2], "b": "pq"[i % 40 == 0], "y": "ny"[i // 2 % 2]} for i in range(80)]
    site, tree = grow(rows, cc.Policy(minimum_cell=3))
    known = told(site)
    assert known[0, "a"].tolist() == [[20, 20], [20, 20]]
    assert not known[0, "b"].any()
    assert known[0, None].tolist() == [40, 40]
    assert any("not that of the pooled patients" in warning for warning in tree.card.warnings)


@pytest.mark.parametrize("policy", [{"minimum_cell": 3}, {"dominance": 0.9}, {"branch_floor": 3}])
def test_the_house_is_told_that_sums_are_not_exact_and_does_not_subtract(policy):
    seen = read_schema(site_of(policy=cc.Policy(**policy)))
    assert seen.floored


def test_under_masks_nothing_is_left_out():
    parts = {name: ROWS[start::3] for start, name in enumerate("abc")}
    trees = []
    for policy in (cc.Policy(), cc.Policy(minimum_cell=5, dominance=0.6)):
        sites = [cc.Site(name, cc.Records.from_rows(rows), policy=policy) for name, rows in parts.items()]
        trees.append(cc.DecisionTree("y", release="masked").fit(cc.House(sites)))
    assert trees[0].body == trees[1].body


# Differencing


def patients(count=26):
    return cc.Patients(table=cc.Records.from_rows([{"a": row} for row in range(count)]))


def population(rows):
    return Population(np.array(sorted(rows), dtype=np.int32))


def admit(populations, ledger, rows, name):
    """Ask as the gate does: inside the transaction of a charge."""

    class NotAdmitted(Exception):
        pass

    def seal(head):
        if not populations.admit(population(rows)):
            raise NotAdmitted
        return b"an answer"

    try:
        ledger.charge(name, "digest", study="s", kind="k", mode="exact", seal=seal)
    except NotAdmitted:
        return False
    return True


def too_close(least, asked, before):
    """The rule of the books, by counting."""
    return (
        any(0 < len(some) < least for b in before for some in (asked, asked - b, b - asked))
        or 0 < len(asked) < least
    )


@settings(max_examples=150)
@given(
    st.integers(0, 5),
    st.lists(st.sets(st.integers(0, 25), max_size=26), min_size=1, max_size=25),
    st.integers(0, 25),
)
def test_differencing_equals_the_rule_by_brute_force(least, questions, restart):
    with Ledger() as ledger:
        populations = Populations(ledger, patients(), least)
        answered = []
        for number, asked in enumerate(questions):
            if number == restart:
                populations = Populations(ledger, patients(), least)
            fine = admit(populations, ledger, asked, f"question {number}")
            assert fine == (not too_close(least, asked, answered))
            if fine:
                answered.append(asked)


QUERIES = [
    "",
    "a = 1",
    "a != 1",
    "age < 60",
    "age < 61",
    "age < 62",
    "age < 70 or b = 'x'",
    "b in {'x', 'y'}",
    "a = 1 and b = 'x'",
    "not (a = 1 and b = 'x')",
    "age > 1000",
    "age between 30 and 33",
]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(QUERIES), min_size=1, max_size=12), st.integers(1, 6))
def test_the_gate_answers_and_refuses_as_the_rule_says(queries, least):
    site = site_of(policy=cc.Policy(minimum_patients=least))
    records = cc.Records.from_rows(ROWS)
    answered = []
    for number, query in enumerate(queries):
        asked = set(np.flatnonzero(cc.Query.parse(query).mask(records)).tolist())
        reply = ask(site, schema_message(f"question-{number}", query=query))
        fine = len(asked) >= least and not too_close(least, asked, answered)
        assert isinstance(reply, Answer) == fine
        if fine:
            answered.append(asked)
        else:
            assert (reply.rule, reply.reason) == ("patients", TOO_FEW)
            assert not any(character.isdigit() for character in reply.reason)


def test_what_was_asked_is_remembered_across_a_restart_and_only_with_an_answer(tmp_path):
    path = tmp_path / "a.ledger"
    policy = cc.Policy(minimum_patients=4)
    site = site_of(policy=policy, ledger=path)
    assert isinstance(ask(site, schema_message("question-1", query="age < 60")), Answer)
    assert isinstance(ask(site, schema_message("question-2", query="age < 61")), Refusal)
    site.ledger.close()
    site = site_of(policy=policy, ledger=path)
    assert isinstance(ask(site, schema_message("question-3", query="age < 61")), Refusal)
    # The refused population was never told, so it does not stand in the way of others.
    assert isinstance(ask(site, schema_message("question-4", query="age < 60")), Answer)
    assert isinstance(ask(site, schema_message("question-5", query="age < 50")), Answer)
    assert len(site.ledger.recall_patients().populations) == 2
    assert site.ledger.verify() == len(site.ledger.entries())


def test_a_charge_that_fails_leaves_no_memory_behind():
    with Ledger() as ledger:
        populations = Populations(ledger, patients(), 4)

        def seal(head):
            assert populations.admit(population(range(20)))
            raise OSError("the disk is gone")

        with pytest.raises(OSError, match="the disk is gone"):
            ledger.charge("question 1", "digest", study="s", kind="k", mode="exact", seal=seal)
        assert admit(populations, ledger, set(range(19)), "question 2")
        assert not admit(populations, ledger, set(range(20)), "question 3")


def test_a_population_that_failed_before_is_remembered_once_it_is_let_out():
    with Ledger() as ledger:
        populations = Populations(ledger, patients(), 4)

        def seal(head):
            assert populations.admit(population(range(20)))
            raise OSError("the disk is gone")

        for number in range(3):
            with pytest.raises(OSError, match="the disk is gone"):
                ledger.charge(f"failing {number}", "digest", study="s", kind="k", mode="exact", seal=seal)
        for number in range(3):
            assert admit(populations, ledger, set(range(20)), f"question {number}")
        assert not admit(populations, ledger, set(range(19)), "question 4")
        assert len(ledger.recall_patients().populations) == 1


def test_it_can_be_switched_off_and_holds_for_what_masked_studies_tell_of_a_site():
    queries = ["age < 60", "age < 61", "age < 62"]
    site = site_of(policy=cc.Policy(differencing=False))
    for number, query in enumerate(queries):
        assert isinstance(ask(site, schema_message(f"question-{number}", query=query)), Answer)
    # Which values occur among a site's patients is told by the site itself, under masks too.
    site = site_of()
    found = []
    for query in queries:
        question = AskSchema(query=query, target="y", count_patients=False)
        found.append(
            ask(site, encode(wrap("tree.schema", question, name=f"question-{query}", release="masked")))
        )
    assert isinstance(found[0], Answer)
    assert [refusal.rule for refusal in found[1:]] == ["patients", "patients"]


@settings(max_examples=15)
@given(tables(most_rows=60), st.integers(2, 6))
def test_a_tree_is_not_in_its_own_way(rows, least):
    """All questions of a study are about one population, so differencing never refuses any but the first."""
    assume(len(rows) >= least)
    trees = []
    for differencing in (True, False):
        policy = cc.Policy(minimum_patients=least, differencing=differencing)
        trees.append(cc.DecisionTree("y").fit(cc.House([site_of(rows, policy=policy)])))
    assert trees[0].body == trees[1].body
    assert trees[0].card.refusals == []


def test_patients_whom_policy_takes_out_are_not_in_the_population():
    rows = [{**row, "consent": "no" if i < 3 else "yes"} for i, row in enumerate(ROWS)]
    constraints = "graph R { node x where x.consent = 'no' exists x; }"
    policy = cc.Policy(constraints=constraints, minimum_patients=4)
    site = site_of(rows, policy=policy)
    assert isinstance(ask(site, schema_message("question-1")), Answer)
    ((_, _, stored),) = site.ledger.recall_patients().populations
    assert list(BitMap.deserialize(stored)) == list(range(3, len(ROWS)))


# A study that feels its way along


def ask_schema(site, name, *, study="s", release="exact", query=""):
    question = AskSchema(query=query, target="y", count_patients=release == "exact")
    return ask(site, encode(wrap("tree.schema", question, name=name, study=study, release=release)))


def be_refused(site, count):
    """So many different questions about nobody, each in a study of its own."""
    for number in range(count):
        reply = ask_schema(site, f"refused-{number}", study=f"study {number}", query=f"age > {1000 + number}")
        assert reply.rule == "patients"


def at(monkeypatch, moment):
    monkeypatch.setattr("concilium.ledger.chain.now", lambda: f"{moment}T12:00:00.000000+00:00")


def test_after_twenty_refusals_in_a_month_nothing_is_answered_that_could_be_refused(tmp_path, monkeypatch):
    """Whatever the house calls its studies and questions, and however often the site is opened again."""
    at(monkeypatch, "2026-12-03")
    path = tmp_path / "a.ledger"
    site = site_of(ledger=path)
    assert isinstance(ask(site, schema_message("question-0")), Answer)
    be_refused(site, MOST_REFUSALS)
    site.ledger.close()
    at(monkeypatch, "2026-12-31")
    site = site_of(ledger=path)
    for release in ("exact", "masked"):
        ended = ask_schema(site, f"question-{release}", study="another", release=release)
        assert (ended.rule, ended.reason) == ("ended", NO_MORE.format(until="2027-01-01"))
    assert isinstance(ask(site, schema_message("question-0")), Answer)  # stored: nothing new is told
    at(monkeypatch, "2027-01-01")
    assert isinstance(ask_schema(site, "question-new-year"), Answer)
    at(monkeypatch, "2026-12-31")  # the clock is put back, and the month is still the next
    assert isinstance(ask_schema(site, "question-old-year", study="o"), Answer)


def test_a_clock_that_is_put_back_begins_no_month_anew(monkeypatch):
    at(monkeypatch, "2026-12-03")
    site = site_of()
    be_refused(site, MOST_REFUSALS)
    at(monkeypatch, "2026-11-30")
    assert ask_schema(site, "question-99").reason == NO_MORE.format(until="2027-01-01")


def test_the_same_question_again_is_not_one_more_refusal_whatever_it_is_called():
    site = site_of()
    for number in range(2 * MOST_REFUSALS):
        reply = ask_schema(site, f"refused-{number}", study=f"study {number}", query="age > 1000")
        assert reply.rule == "patients"
    assert isinstance(ask(site, schema_message("question-2")), Answer)
    assert [note.rule for note in site.ledger.refusals()] == ["patients"]


def test_other_refusals_do_not_push_the_count_out(monkeypatch):
    monkeypatch.setattr("concilium.ledger.memory.MOST_NOTES", 30)
    site = site_of()
    be_refused(site, MOST_REFUSALS)
    for number in range(100):
        assert open_reply(site.answer(schema_message(f"unknown-{number}"))).rule == "proposed"
        assert ask_schema(site, f"unknown-{number}", query=f"agee > {number}").rule == "ended"
    assert ask_schema(site, "question-99").rule == "ended"
    rules = [note.rule for note in site.ledger.refusals()]
    assert (len(rules), rules.count("patients")) == (30, MOST_REFUSALS)


def test_a_policy_says_how_many_refusals_there_are_in_a_month():
    site = site_of(policy=cc.Policy(refusals_per_month=2))
    be_refused(site, 2)
    assert ask_schema(site, "question-99").rule == "ended"
    with pytest.raises(PolicyError, match="refusals_per_month must be 1 or more"):
        cc.Policy(refusals_per_month=0)


def test_questions_asked_at_once_are_not_refused_more_often():
    site = site_of()
    replies = []

    def work(number):
        replies.append(ask_schema(site, f"refused-{number:03d}", query=f"age > {1000 + number}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3 * MOST_REFUSALS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rules = [reply.rule for reply in replies]
    assert (rules.count("patients"), rules.count("ended")) == (MOST_REFUSALS, 2 * MOST_REFUSALS)


def test_a_refusal_that_cannot_be_noted_is_not_told(monkeypatch):
    """Else a full disk would make the count stand still."""
    site = site_of()

    def fail(*texts):
        raise LedgerError("the disk is full")

    monkeypatch.setattr(site.ledger, "refuse_for_patients", fail)
    assert ask_schema(site, "refused-1", query="age > 1000").rule == "ledger"


@pytest.mark.parametrize("release", ["masked", "private"])
def test_when_the_month_is_over_only_private_sums_are_opened(release):
    schema = {"a": "code", "b": "code", "y": "code"}
    tables = [cc.Records.from_rows(ROWS[i::3], schema=schema) for i in range(3)]
    sites = [cc.Site(name, table) for name, table in zip("abc", tables, strict=True)]
    be_refused(sites[0], MOST_REFUSALS)
    private = {"epsilon": 5, "values": {"y": [0, 1], "a": [0, 1, 2], "b": ["x", "y", "z"]}}
    model = cc.NaiveBayes("y", release=release, **(private if release == "private" else {}))
    if release == "private":
        assert model.fit(cc.House(sites)).card.refusals == []
    else:
        with pytest.raises(HouseError, match="a: too many different studies of this month"):
            model.fit(cc.House(sites, on_loss="stop"))
