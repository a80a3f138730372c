"""Who is held out: a matter of each patient and of the site's own key, the asked share of many, and never a way around
the gate."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from conversation import crosstables
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import Asker
from concilium.errors import MessageError
from concilium.protocol.cohort import View
from concilium.protocol.held_out import Part, _find_tickets
from concilium.protocol.messages import Answer, decode, encode, open_reply
from concilium.protocol.schema import AskSchema, SchemaSeen


def ask_parts(site, *parts):
    """What a site replies to the root's question about each of these parts, in a study that holds out such a share."""
    replies = []
    for part in parts:
        agreed = Asker([site], method="tree", parameters={"prune": part.percent / 100})
        reply = agreed.put(site, AskSchema(query="", target="y"))
        if isinstance(reply, Answer):
            reply = agreed.put(site, crosstables(decode(reply.body, SchemaSeen), part=part))
        replies.append(reply)
    return replies


CELLS = st.sampled_from([None, "a", "b", "7", "7.0", "0389", "x y"])
ROWS = st.lists(st.fixed_dictionaries({"a": CELLS, "b": CELLS, "y": st.sampled_from("np")}), min_size=1)


def records(rows, **schema):
    return cc.Records.from_rows(rows, schema={"a": "code", "b": "code", "y": "code", **schema})


def view(rows, by_itself=True, policy=None, key=b"the key of these tests", **schema):
    plain = View(records(rows, **schema), policy or cc.Policy(), division_key=key)
    return plain.each_by_itself if by_itself else plain


def held_out(view, percent=50, query="", least=0):
    """The rows of a view that are held out, and the others."""
    cohort = view.select(query, "y")
    parts = [Part(percent=percent, held=held).choose(cohort, least) for held in (True, False)]
    return [part.rows.tolist() for part in parts]


def reads(value):
    """What a value says by itself."""
    return 7.0 if value in ("7", "7.0") else value


def as_read(row):
    return tuple(reads(row[name]) for name in ("a", "b", "y"))


@given(rows=ROWS, data=st.data(), query=st.sampled_from(["", "a = 'a' or b = '7'"]))
@settings(max_examples=200)
def test_one_patient_less_changes_one_part_by_that_patient(rows, data, query):
    gone = data.draw(st.integers(0, len(rows) - 1))
    neighbour = [row for place, row in enumerate(rows) if place != gone]
    if not neighbour:
        return
    change = Counter()
    for sign, table in ((1, rows), (-1, neighbour)):
        for held, part in zip((True, False), held_out(view(table), query=query), strict=True):
            for row in part:
                change[as_read(table[row]), held] += sign
    left = {key: count for key, count in change.items() if count}
    assert sum(map(abs, left.values())) <= 1
    assert all(key[0] == as_read(rows[gone]) for key in left)
    assert query or left  # without a query everyone is in a part


@given(rows=ROWS, seed=st.randoms())
@settings(max_examples=60)
def test_the_order_of_the_table_does_not_matter(rows, seed):
    other = rows[:]
    seed.shuffle(other)
    parts = [Counter(as_read(t[row]) for row in held_out(view(t))[0]) for t in (rows, other)]
    assert parts[0] == parts[1]


def test_how_a_column_is_read_does_not_matter():
    plain = [{"a": str(i), "b": "x", "y": "np"[i % 2]} for i in range(200)]
    odd = [*plain, {"a": "not a number", "b": "x", "y": "n"}]
    as_numbers = view([{**row, "a": float(row["a"])} for row in plain], a="number")
    expected = held_out(view(plain))
    assert held_out(as_numbers) == expected
    assert [[row for row in part if row < 200] for part in held_out(view(odd))] == expected
    signed = view([{"a": -0.0, "b": "x", "y": "n"}, {"a": 0.0, "b": "x", "y": "n"}], a="number")
    first, second = _find_tickets(signed.records, b"key")
    assert first != second  # two that say the same are told apart by their number


def test_the_asked_share_is_held_out_and_no_share_is_another_and_a_few_more():
    rows = [{"a": f"p{i}", "b": "x", "y": "n"} for i in range(5000)]
    table = view(rows)
    seen = set()
    for percent in (1, 30, 31, 90):
        held, rest = held_out(table, percent)
        assert sorted([*held, *rest]) == list(range(5000))
        spread = (5000 * percent / 100 * (1 - percent / 100)) ** 0.5
        assert abs(len(held) - 50 * percent) < 5 * spread
        seen.add(tuple(held))
    assert len(seen) == 4
    one, other = set(held_out(table, 30)[0]), set(held_out(table, 31)[0])
    assert 300 < len(one & other) < 620  # as chance has it: 465


def test_whatever_is_asked_the_same_patients_are_held_out():
    """Before, other words divided the same patients anew, as often as a house liked."""
    table = view([{"a": f"p{i}", "b": "xy"[i % 2], "y": "n"} for i in range(600)])
    everyone = set(held_out(table, 30)[0])
    assert set(held_out(table, 30, query="y = 'n'")[0]) == everyone
    some = held_out(table, 30, query="b = 'x'")
    assert set(some[0]) == {row for row in everyone if row % 2 == 0}


def test_without_the_key_nobody_can_tell_who_is_held_out():
    """Before, whoever knew a patient's row could tell: two hospitals with one table divided it the same way."""
    rows = [{"a": f"p{i}", "b": "x", "y": "n"} for i in range(2000)]
    one, other = (set(held_out(view(rows, key=key), 50)[0]) for key in (b"one", b"other"))
    assert 400 < len(one & other) < 600  # as chance has it: 500
    sites = [cc.Site("s", records(rows)) for _ in range(2)]
    first, second = (set(held_out(site._context.view, 50)[0]) for site in sites)
    assert 400 < len(first & second) < 600
    assert sites[0].division_key != sites[1].division_key


def test_a_site_holds_out_the_same_patients_for_as_long_as_it_has_its_identity(tmp_path):
    rows = [{"a": f"p{i}", "b": "x", "y": "n"} for i in range(400)]
    found = []
    for patients in (rows, rows, rows[1:]):
        path = tmp_path / f"{len(patients)}.ledger"
        allowed = cc.Policy(allow=("a",))
        site = cc.Site("s", records(patients), allowed, ledger=path, identity=tmp_path / "s.identity")
        found.append({patients[row]["a"] for row in held_out(site._context.view, 30)[0]})
        by_itself = held_out(site._context.view.each_by_itself, 30)[0]
        assert found[-1] == {patients[row]["a"] for row in by_itself}
        site.ledger.close()
    assert found[0] == found[1]
    assert found[2] == found[0] - {"p0"}


def test_the_key_leaves_with_no_answer():
    rows = [{"a": "ab"[i % 2], "b": f"{i % 11}", "y": "np"[i // 2 % 2]} for i in range(100)]
    site = cc.Site("s", records(rows))
    (reply,) = ask_parts(site, Part(percent=30, held=True))
    assert isinstance(reply, Answer)
    assert site.division_key not in encode(reply)


def test_no_two_shares_tell_fewer_than_the_least_patients_apart():
    """All shares of one small hospital, in plain: what is told of any two differs by nobody, or by enough people."""
    rows = [{"a": "ab"[i % 2], "b": f"{i % 11}", "y": "np"[i // 2 % 2]} for i in range(30)]
    site = cc.Site("s", records(rows), policy=cc.Policy(refusals_per_month=10**6))
    cohort, told = site._context.view.select("", "y"), []
    for percent in range(1, 91, 3):
        asker = Asker([site], method="tree", parameters={"prune": percent / 100}, nonce=f"percent-{percent}")
        if isinstance(open_reply(asker.propose(site)), Answer):
            parts = [Part(percent=percent, held=held) for held in (True, False)]
            told += [set(part.choose(cohort, 4).rows.tolist()) for part in parts]
    assert 4 < len(told) < 60
    for one, other in itertools.permutations(told, 2):
        assert len(one - other) == 0 or len(one - other) >= 4


def test_equal_patients_are_dealt_to_both_parts():
    held, rest = held_out(view([{"a": "a", "b": "a", "y": "n"}] * 1000), 30)
    assert 220 < len(held) < 380
    assert len(held) + len(rest) == 1000


def test_withheld_columns_do_not_decide_who_is_held_out():
    rows = [{"a": f"{i % 7}", "b": f"p{i}", "y": "np"[i % 2]} for i in range(60)]
    others = [{**row, "b": f"q{i}"} for i, row in enumerate(rows)]
    policy = cc.Policy(withhold=("b",))
    assert held_out(view(rows, policy=policy)) == held_out(view(others, policy=policy))
    assert held_out(view(rows)) != held_out(view(others))


@pytest.mark.parametrize(("patients", "least", "held"), [(40, 4, True), (6, 4, False), (40, 40, False)])
def test_few_patients_are_not_divided(patients, least, held):
    rows = [{"a": f"p{i}", "b": "x", "y": "n"} for i in range(patients)]
    kept, rest = held_out(view(rows), least=least)
    assert bool(kept) == held
    assert len(kept) + len(rest) == patients
    assert not kept or min(len(kept), len(rest)) >= least


@pytest.mark.parametrize("percent", [0, -1, 91, 100])
def test_a_share_that_is_none_is_refused(percent):
    with pytest.raises(MessageError, match="1 to 90 percent"):
        Part(percent=percent, held=True).check()


@pytest.mark.parametrize("policy", [{"branch_floor": 2}, {"minimum_cell": 3}, {"dominance": 0.9}])
def test_a_site_that_leaves_small_counts_out_tells_no_part(policy):
    rows = [{"a": "ab"[i % 2], "y": "np"[i // 2 % 2]} for i in range(80)]
    site = cc.Site("s", cc.Records.from_rows(rows), policy=cc.Policy(**policy))
    for refused in ask_parts(site, Part(percent=30, held=True), Part(percent=30, held=False)):
        assert (refused.rule, "small counts" in refused.reason) == ("message", True)


def test_differencing_sees_the_part_that_was_asked_about():
    """Two parts of other shares differ by some; a site that keeps such differences larger refuses the second study."""
    rows = [{"a": "ab"[i % 2], "b": f"{i % 11}", "y": "np"[i // 2 % 2]} for i in range(100)]
    table = view(rows, by_itself=False)
    parts = [set(part) for percent in (30, 40) for part in held_out(table, percent)]
    closest = min(len(one - other) for one, other in itertools.permutations(parts, 2))
    assert 4 < closest < min(map(len, parts))
    for least, told in ((closest, True), (closest + 1, False)):
        policy = cc.Policy(minimum_patients=least)
        site = cc.Site("s", records(rows), policy=policy, division_key=b"the key of these tests")
        first, second = ask_parts(site, *(Part(percent=percent, held=False) for percent in (30, 40)))
        assert isinstance(first, Answer)
        assert getattr(second, "rule", "answer") == ("answer" if told else "patients")


def test_tickets_of_no_patients():
    assert _find_tickets(records([{"a": "a", "b": "b", "y": "n"}]).take([]), b"key").shape == (0,)
    rows = [{"a": str(i), "b": "b", "y": "n"} for i in range(99)]
    assert np.unique(_find_tickets(records(rows), b"key")).size == 99
