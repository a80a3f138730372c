"""The gate: what it lets out, what it refuses and in which words."""

from __future__ import annotations

import shutil

import pytest
from conversation import ROWS, crosstable_envelope, read_schema, schema_message, site_of, wrap

import concilium as cc
from agreed import deliver
from concilium.errors import LedgerError, PolicyError, StudyError
from concilium.protocol.messages import Answer, Refusal, encode, open_reply
from concilium.protocol.schema import AskSchema


def ask(site, message):
    return open_reply(deliver(site, message))


def test_an_answer_carries_its_charge_and_the_ledgers_head():
    site = site_of()
    reply = ask(site, schema_message())
    assert isinstance(reply, Answer)
    assert (reply.site, reply.id) == ("a", "question-1")
    assert (reply.charge.release, reply.charge.cost) == ("exact", None)
    head = site.ledger.head()
    assert (reply.ledger.count, reply.ledger.hash) == (head.count, head.hash)
    (entry,) = [entry for entry in site.ledger.entries() if entry.question == "question-1"]
    assert (entry.mode, entry.cost, entry.kind, entry.numbers) == ("exact", None, "tree.schema", 12)


def test_the_same_question_gets_the_stored_answer_free():
    site = site_of()
    message = encode(crosstable_envelope(site))
    first = deliver(site, message)
    entries = len(site.ledger.entries())
    assert deliver(site, message) == first
    assert len(site.ledger.entries()) == entries


def test_the_same_id_with_other_content_is_refused():
    site = site_of()
    deliver(site, schema_message())
    reply = ask(site, schema_message(query="a = 1"))
    assert isinstance(reply, Refusal)
    assert reply.rule == "ledger"


def test_too_few_patients_has_one_fixed_text_without_numbers():
    texts = set()
    for query in ("a = 1 and age < 21", "a = 1 and age < 23", "age > 1000"):
        reply = ask(site_of(), schema_message(query=query))
        assert isinstance(reply, Refusal)
        assert reply.rule == "patients"
        texts.add(reply.reason)
    assert len(texts) == 1
    assert not any(character.isdigit() for character in texts.pop())


def test_minimum_counts_only_patients_whose_target_is_known():
    rows = [{**row, "y": row["y"] if i < 3 else None} for i, row in enumerate(ROWS)]
    assert ask(site_of(rows), schema_message()).rule == "patients"
    assert isinstance(ask(site_of(rows, policy=cc.Policy(minimum_patients=3)), schema_message()), Answer)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (cc.Policy(kinds=("counts",)), "kind"),
        (cc.Policy(kinds=()), "kind"),
        (cc.Policy(modes=("masked", "private")), "mode"),
        (cc.Policy(numbers_per_patient=0.0), "numbers"),
        (cc.Policy(minimum_patients=61), "patients"),
        (cc.Policy(withhold=("y",)), "attribute"),
    ],
)
def test_what_policy_does_not_allow_is_refused(policy, rule):
    site = site_of(policy=policy)
    reply = ask(site, schema_message())
    assert isinstance(reply, Refusal)
    assert reply.rule == rule
    assert not [entry for entry in site.ledger.entries() if entry.question == "question-1"]
    assert len(site.ledger.refusals()) == 1


def test_the_cap_on_numbers_counts_what_was_released_before():
    site = site_of(policy=cc.Policy(numbers_per_patient=0.7))
    envelope = crosstable_envelope(site)
    first = ask(site, encode(envelope))
    assert isinstance(first, Answer)
    again = ask(
        site, encode(wrap(envelope.kind, envelope.body, name="question-9", template=envelope.template))
    )
    assert isinstance(again, Refusal)
    assert again.rule == "numbers"
    assert "40 are released already and the cap is 0.7 per patient, 42 in all" in again.reason


PATIENTS = [
    {
        "mrn": f"MRN-{7919 * i % 1000:04d}",
        "name": f"patient number {i}",
        "religion": ["r-one", "r-two"][i % 2],
        "sex": "mf"[i % 2],
        "y": i % 3 % 2,
    }
    for i in range(40)
]


def whole_conversation(policy):
    """Every byte that leaves a site while a tree is grown, and the tree."""
    said = []

    class Listening(cc.Site):
        def answer(self, message):
            reply = super().answer(message)
            said.append(reply)
            return reply

    site = Listening("a", cc.Records.from_rows(PATIENTS), policy=policy)
    tree = cc.DecisionTree("y").fit(cc.House([site]))
    return b"".join(said), tree


def test_no_record_no_identifier_and_nothing_withheld_is_in_the_bytes():
    said, tree = whole_conversation(cc.Policy(withhold=("religion",)))
    assert b"sex" in said
    # That these columns identify patients, and are left out, is said by name, once; nothing else of them is.
    left_out = b"\xabidentifying\x92\xa3mrn\xa4name\xa9quartiles"
    assert said.count(left_out) == 1
    said = said.replace(left_out, b"")
    for row in PATIENTS:
        assert row["mrn"].encode() not in said
        assert row["name"].encode() not in said
    for hidden in (b"mrn", b"MRN", b"\xa4name\xa4name", b"religion", b"r-one", b"r-two"):
        assert hidden not in said
    assert {node.attribute for node in tree.body.nodes} <= {"sex", None}


def test_without_the_rule_the_same_bytes_would_hold_it():
    said, _ = whole_conversation(cc.Policy(allow=("mrn",)))
    assert b"religion" in said
    assert b"MRN-" in said


@pytest.mark.parametrize("query", ["mrn = 'MRN-0000'", "religion = 'r-one'", "name != 'x'"])
def test_what_is_hidden_cannot_be_asked_about_either(query):
    site = cc.Site("a", cc.Records.from_rows(PATIENTS), policy=cc.Policy(withhold=("religion",)))
    reply = ask(site, schema_message(query=query))
    assert isinstance(reply, Refusal)
    assert reply.rule == "query"


def test_a_branch_floor_empties_small_branches_and_says_so():
    site = site_of(policy=cc.Policy(branch_floor=21))
    seen = read_schema(site)
    assert seen.floored
    tree = cc.DecisionTree("y", growth="id3").fit(cc.House([site_of(policy=cc.Policy(branch_floor=21))]))
    assert any("not that of the pooled patients" in warning for warning in tree.card.warnings)
    assert len(tree.body.nodes) < len(cc.DecisionTree("y", growth="id3").fit([site_of()]).body.nodes)


def test_an_older_copy_of_the_ledger_is_noticed(tmp_path):
    path = tmp_path / "a.ledger"
    site = site_of(ledger=path)
    deliver(site, schema_message("question-1"))
    site.ledger.close()
    for file in tmp_path.glob("a.ledger*"):
        shutil.copy(file, str(file).replace("a.ledger", "old.ledger"))
    site = site_of(ledger=path)
    later = ask(site, schema_message("question-2"))
    site.ledger.close()
    for file in tmp_path.glob("a.ledger*"):
        file.unlink()
    for file in tmp_path.glob("old.ledger*"):
        shutil.copy(file, str(file).replace("old.ledger", "a.ledger"))
    site = site_of(ledger=path)
    seen = (later.ledger.count, later.ledger.hash)
    reply = ask(
        site, encode(wrap("tree.schema", AskSchema(query="", target="y"), name="question-3", seen=seen))
    )
    assert isinstance(reply, Refusal)
    assert reply.rule == "rollback"
    assert "older copy" in reply.reason


def test_a_ledger_of_another_site_or_other_records_is_refused(tmp_path):
    path = tmp_path / "a.ledger"
    site_of(ledger=path).ledger.close()
    with pytest.raises(LedgerError, match=r"a\.ledger"):
        site_of(ledger=path, name="b")
    with pytest.raises(LedgerError, match="rebind"):
        site_of(ROWS[:-1], ledger=path)


def test_a_fault_inside_is_a_refusal_that_tells_nothing(monkeypatch, caplog):
    site = site_of()

    def fail(*_):
        raise ZeroDivisionError("secret 42")

    monkeypatch.setattr(AskSchema, "compute", fail)
    reply = ask(site, schema_message())
    assert isinstance(reply, Refusal)
    assert reply.rule == "internal"
    assert "42" not in reply.reason
    assert "secret 42" in caplog.text


def test_bad_names_and_bad_policies_are_said():
    with pytest.raises(StudyError, match="name must have"):
        site_of(name="")
    with pytest.raises(PolicyError, match="nothing is left"):
        cc.Site("a", cc.Records.from_rows(ROWS), policy=cc.Policy(withhold=("a", "b", "age", "y")))
