"""A site holds one population: a table, or a table and more parts, with one digest, and a patient column that nobody
outside knows of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from conversation import ROWS, schema_message, site_of, wrap

import concilium as cc
from agreed import deliver, draft
from concilium import registry as registry
from concilium.errors import LedgerError, PolicyError, StudyError
from concilium.protocol.attributes import Attribute, Workload
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Answer, Refusal, decode, encode, open_reply
from concilium.protocol.questions import PLAIN, Gaussian, Summed
from concilium.protocol.schema import AskSchema, SchemaSeen
from concilium.protocol.sums import read_sum
from concilium.records.row_hashes import hash_labels

# Of a few patients, so that nothing but `by` says that the column tells them apart.
IDS = [3, 1, 2, 0, 5, 4]
PEOPLE = [{"patient": number, "sex": "fm"[number % 2], "y": "np"[number % 3 == 0]} for number in IDS]
TABLE = cc.Records.from_rows(PEOPLE)
STATED = cc.Records.from_rows(PEOPLE, schema={"patient": "code", "sex": "code", "y": "code"})


@dataclass(frozen=True)
class Notes:
    """A part of the smallest kind."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]

    @property
    def digest(self):
        return hashlib.sha256(repr((self.ids, self.texts)).encode()).hexdigest()

    @property
    def hashes(self):
        return hash_labels(self.texts)

    def take(self, rows):
        return Notes(tuple(self.ids[row] for row in rows), tuple(self.texts[row] for row in rows))

    def __len__(self):
        return len(self.texts)


NOTES = Notes(tuple(range(6)), tuple(f"note of {number}" for number in range(6)))


class AskNotes(Summed, frozen=True, kw_only=True):
    """A question about more than the table."""

    kind: ClassVar[str] = "test.notes"
    releases: ClassVar[frozenset[str]] = PLAIN
    reads: ClassVar[frozenset[str]] = frozenset({"table", "series"})

    @property
    def shape(self):
        return (1,)

    def estimate(self, patients, columns):
        return Workload(patients, patients)

    def compute(self, cohort):
        return np.array([len(cohort)])


def ask(site, message):
    return open_reply(deliver(site, message))


def test_a_table_and_patients_of_a_table_are_one_site():
    replies = []
    for data in (TABLE, cc.Patients(table=TABLE)):
        site = cc.Site("a", data)
        assert repr(site) == "Site('a', 6 patients)"
        replies.append(decode(ask(site, schema_message()).body, SchemaSeen))
    assert replies[0] == replies[1]


@pytest.mark.parametrize("data", [ROWS, None, "patients.csv", NOTES, {"table": TABLE}])
def test_what_is_neither_is_said(data):
    with pytest.raises(StudyError, match=f"or Patients; got {type(data).__name__}"):
        cc.Site("a", data)


def test_a_site_without_a_table_is_asked_about_everyone_it_has(monkeypatch):
    monkeypatch.setitem(registry.KINDS, AskLengths.kind, f"{__name__}:AskLengths")
    series = cc.Series({"HR": np.ones((4, 5))}, lengths=[1, 2, 3, 4, 4])
    for data in (series, cc.Patients(series=series)):
        site = cc.Site("a", data, cc.Policy(kinds=tuple(registry.KINDS)))
        assert repr(site) == "Site('a', 5 patients)"
        assert count_steps(site, AskLengths(query="", target="")) == 14
        for query in ("age > 3", "here = 1"):
            reply = ask(site, encode(wrap(AskLengths.kind, AskLengths(query=query, target=""), name=query)))
            assert isinstance(reply, Refusal)


def test_one_query_on_the_table_selects_for_every_part(monkeypatch):
    monkeypatch.setitem(registry.KINDS, AskLengths.kind, f"{__name__}:AskLengths")
    series = cc.Series({"HR": np.ones((7, 6))}, lengths=[1, 2, 3, 4, 5, 6], ids=[0, 1, 2, 3, 4, 5])
    policy = cc.Policy(kinds=tuple(registry.KINDS), minimum_patients=1)
    site = cc.Site("a", cc.Patients(table=TABLE, series=series, by="patient"), policy)
    women = sum(number + 1 for number in IDS if number % 2 == 0)
    assert count_steps(site, AskLengths(query="sex = 'f'", target="y")) == women
    assert count_steps(site, AskLengths(query="", target="")) == 21


def test_a_site_may_hold_rule_sets_alone():
    site = cc.Site("a", cc.RuleSets([["G[0,6] HR >= 90"], [], ["HR < 50", "F[0,3] Temp > 38"]]))
    assert repr(site) == "Site('a', 3 patients)"
    refusal = ask(site, schema_message())
    assert isinstance(refusal, Refusal)


class AskLengths(Summed, frozen=True, kw_only=True):
    """How many steps the stays of the patients have together."""

    kind: ClassVar[str] = "test.lengths"
    releases: ClassVar[frozenset[str]] = PLAIN
    reads: ClassVar[frozenset[str]] = frozenset({"series"})

    @property
    def shape(self):
        return (1,)

    def estimate(self, patients, columns):
        return Workload(patients, patients)

    def compute(self, cohort):
        return np.array([cohort.take_part("series").lengths.sum()], dtype=np.int64)


def count_steps(site, question):
    reply = ask(site, encode(wrap(question.kind, question, name=f"question {question.query}")))
    assert isinstance(reply, Answer), reply
    return int(read_sum(reply.body, question).item())


@pytest.mark.parametrize("policy", [cc.Policy(), cc.Policy(allow=("patient",))])
@pytest.mark.parametrize("parts", [{}, {"series": NOTES}])
def test_nobody_outside_knows_of_the_patient_column(policy, parts):
    site = cc.Site("a", cc.Patients(table=TABLE, by="patient", **parts), policy)
    seen = ask(site, schema_message())
    assert b"patient" not in seen.body.replace(b"patients", b"")
    assert [attribute.name for attribute in decode(seen.body, SchemaSeen).attributes] == ["sex"]
    for query in ("patient = 3", "patient < 3", "patient is missing"):
        assert ask(site, schema_message("question-2", query=query)).rule == "query"
    named = (
        AskSchema(query="", target="patient"),
        AskCounts(totals=False, query="", target="patient", attributes=(Attribute("sex", (1.0,)),)),
        AskCounts(totals=False, query="", target="y", attributes=(Attribute("patient", (1.0, 2.0)),)),
    )
    for number, question in enumerate(named):
        reply = ask(site, encode(wrap(question.kind, question, name=f"question-{number + 3}")))
        assert (reply.rule, "there is no column 'patient'" in reply.reason) == ("attribute", True)
    assert "patient" not in seen.site
    # Without a column to join by, the same table would have told it.
    told = decode(ask(cc.Site("a", TABLE, policy), schema_message()).body, SchemaSeen)
    assert "patient" in {attribute.name for attribute in told.attributes}


def test_nor_do_private_questions():
    sites = [cc.Site(name, cc.Patients(table=STATED, by="patient")) for name in "abc"]
    for target, attribute in (("y", Attribute("patient", (1.0,))), ("patient", Attribute("sex", (), ("f",)))):
        question = AskCounts(
            totals=False, query="", target=target, attributes=(attribute,), noise=Gaussian("100")
        )
        with (
            cc.House(sites).open(draft("private", target=target)) as run,
            pytest.raises(cc.errors.HouseError, match="there is no column 'patient'"),
        ):
            run.ask(question)


def test_a_table_that_is_nothing_but_ids_is_no_table():
    alone = cc.Records.from_rows([{"patient": number} for number in IDS])
    with pytest.raises(PolicyError, match="nothing is left"):
        cc.Site("a", cc.Patients(table=alone, by="patient"))


def test_a_ledger_of_a_table_alone_stays_valid_for_patients_of_that_table(tmp_path):
    path = tmp_path / "a.ledger"
    first = cc.Site("a", TABLE, ledger=path)
    stored = deliver(first, schema_message())
    first.ledger.close()
    for data in (cc.Patients(table=TABLE), cc.Patients(table=TABLE, by="patient"), TABLE):
        again = cc.Site("a", data, ledger=path)
        assert deliver(again, schema_message()) == stored
        again.ledger.close()


def test_a_ledger_is_that_of_all_parts(tmp_path):
    path = tmp_path / "a.ledger"
    cc.Site("a", TABLE, ledger=path).ledger.close()
    more = cc.Patients(table=TABLE, series=NOTES, by="patient")
    # What else is held of the same patients opens no new account: the ledger stays that of the table.
    for data in (more, TABLE):
        site = cc.Site("a", data, ledger=path)
        assert site.ledger.settings.records == TABLE.digest
        site.ledger.close()
    fewer = cc.Site("a", more.take(np.arange(5)), ledger=path)  # by their ids they are the same patients
    assert fewer.grown.startswith("the table has changed since its ledger was last used: 5 patients now")
    fewer.ledger.close()
    other = tmp_path / "b.ledger"
    cc.Site("a", more, ledger=other).ledger.close()
    # In whichever order the part came: the join undoes it.
    turned = NOTES.take(np.array([5, 0, 3, 1, 4, 2]))
    cc.Site("a", cc.Patients(table=TABLE, series=turned, by="patient"), ledger=other).ledger.close()
    changed = Notes(NOTES.ids, ("another note", *NOTES.texts[1:]))
    with pytest.raises(LedgerError, match="rebind"):
        cc.Site("a", TABLE, ledger=other)  # without their ids nobody is known
    corrected = cc.Site("a", cc.Patients(table=TABLE, series=changed, by="patient"), ledger=other)
    assert corrected.ledger.entries()[-1].kind == "rebind"
    corrected.ledger.close()


def test_the_memory_of_differencing_is_that_of_the_whole_population():
    """One digest for the ledger and for circles of hospitals."""
    more = cc.Patients(table=TABLE, series=NOTES, by="patient")
    for data in (TABLE, more):
        site = cc.Site("a", data)
        assert isinstance(ask(site, schema_message()), Answer)
        assert len(site.ledger.recall_patients().populations) == 1
        assert site.ledger.settings.records == data.digest
    assert more.digest != TABLE.digest


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_a_question_about_a_part_that_is_not_there_is_refused_as_its_kind_is(monkeypatch, release):
    monkeypatch.setitem(registry.KINDS, AskNotes.kind, f"{__name__}:AskNotes")
    policy = cc.Policy(kinds=tuple(registry.KINDS))
    message = encode(wrap(AskNotes.kind, AskNotes(query="", target="y"), study="notes", release=release))
    for data in (TABLE, cc.Patients(table=TABLE, codes=NOTES, by="patient")):
        site = cc.Site("a", data, policy)
        reply = ask(site, message)
        assert isinstance(reply, Refusal)
        assert (reply.rule, reply.asked) == ("kind", AskNotes.kind)
        assert reply.reason == "this hospital holds no series of its patients"
        assert not [entry for entry in site.ledger.entries() if entry.question]
    holding = cc.Site("a", cc.Patients(table=TABLE, series=NOTES, by="patient"), policy)
    if release == "exact":
        (count,) = read_sum(ask(holding, message).body, AskNotes(query="", target="y"))
        assert count == 6
    else:
        assert ask(holding, message).rule == "mask"  # it would be answered, once the study was joined


def test_a_house_goes_on_without_the_hospital_that_does_not_hold_the_part(monkeypatch):
    monkeypatch.setitem(registry.KINDS, AskNotes.kind, f"{__name__}:AskNotes")
    policy = cc.Policy(kinds=tuple(registry.KINDS))
    holding = cc.Site("holding", cc.Patients(table=TABLE, series=NOTES, by="patient"), policy)
    with cc.House([holding, site_of(name="other", policy=policy)]).open(draft()) as run:
        total = run.ask(AskNotes(query="", target="y"))
        card = run.finish({})
    assert total.tolist() == [6]
    assert [(refusal.site, refusal.rule) for refusal in card.refusals] == [("other", "kind")]
