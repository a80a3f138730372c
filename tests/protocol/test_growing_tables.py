"""A table grows: its ledger goes on where patients are known by an id, and differencing goes over all versions."""

from __future__ import annotations

import random

import numpy as np
import pytest

import concilium as cc
from concilium.errors import LedgerError

ROWS = [
    {"mrn": f"p{i:03}", "sex": "fm"[i % 2], "ward": "abc"[i % 3], "death": int(i % 5 == 0)} for i in range(60)
]


def open_site(tmp_path, rows, name="north", by="mrn", file="north.ledger"):
    table = cc.Records.from_rows(rows)
    return cc.Site(name, cc.Patients(table=table, by=by) if by else table, ledger=tmp_path / file)


def ask(tmp_path, rows, query="", **more):
    """What a fit says: the tree, or why the hospital refused."""
    site = open_site(tmp_path, rows, **more)
    try:
        cc.DecisionTree("death", query=query, attributes=["sex", "ward"]).fit(cc.House([site]))
    except cc.errors.HouseError as error:
        return str(error)
    finally:
        site.ledger.close()
    return "answered"


def test_a_ledger_goes_on_when_patients_are_added_or_corrected_and_enters_it(tmp_path):
    assert ask(tmp_path, ROWS) == "answered"
    with cc.Ledger.open_readonly(tmp_path / "north.ledger") as book:
        spent = len(book.entries())
    more = [*ROWS, *({**row, "mrn": f"q{i}"} for i, row in enumerate(ROWS[:10]))]
    corrected = [{**row, "ward": "c"} if row["mrn"] == "p001" else row for row in more]
    site = open_site(tmp_path, corrected)
    assert site.grown == (
        "the table has changed since its ledger was last used: 70 patients now; of 60 patients who are remembered 60 "
        "are in it"
    )
    entries = site.ledger.entries()
    assert len(entries) == spent + 1
    assert entries[-1].kind == "rebind"
    assert site.grown in entries[-1].note
    site.ledger.verify()
    site.ledger.close()
    again = open_site(tmp_path, corrected)
    assert again.grown == ""
    again.ledger.close()


def test_order_never_matters(tmp_path):
    assert ask(tmp_path, ROWS) == "answered"
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    site = open_site(tmp_path, shuffled)
    assert site.grown == ""
    site.ledger.close()
    assert ask(tmp_path, shuffled) == "answered"


@pytest.mark.parametrize(("added", "answered"), [(1, False), (3, False), (4, True), (12, True)])
def test_differencing_goes_over_all_versions_of_the_table(tmp_path, added, answered):
    """The oracle is the rule itself: two groups that differ by one to three patients are not both told."""
    assert ask(tmp_path, ROWS) == "answered"
    more = [*ROWS, *({**row, "mrn": f"q{i}"} for i, row in enumerate(ROWS[:added]))]
    assert (ask(tmp_path, more) == "answered") == answered
    # A third version without the new ones is compared with both that were answered.
    assert ask(tmp_path, ROWS) == "answered"


def test_patients_who_left_count_as_a_difference(tmp_path):
    assert ask(tmp_path, ROWS) == "answered"
    assert ask(tmp_path, ROWS[:-2]) != "answered"
    assert ask(tmp_path, ROWS[:-20]) == "answered"


def test_it_does_not_go_on_with_another_hospital_s_ledger_or_table(tmp_path):
    assert ask(tmp_path, ROWS) == "answered"
    strangers = [{**row, "mrn": f"x{i}"} for i, row in enumerate(ROWS)]
    with pytest.raises(LedgerError, match="is the ledger of 'north' and bound to other records"):
        open_site(tmp_path, strangers)
    with pytest.raises(LedgerError, match="is the ledger of 'north', and was given to 'south'"):
        open_site(tmp_path, strangers, name="south")
    with cc.Ledger.open_readonly(tmp_path / "north.ledger") as book:
        before = book.head()
    (tmp_path / "north.ledger.identity").unlink()
    with pytest.raises(LedgerError):
        open_site(tmp_path, [*ROWS, {**ROWS[0], "mrn": "q"}])
    with cc.Ledger.open_readonly(tmp_path / "north.ledger") as book:
        assert book.head() == before  # nothing was written in it


def test_without_ids_a_table_that_changed_needs_a_person(tmp_path):
    plain = [{key: row[key] for key in row if key != "mrn"} for row in ROWS]
    assert ask(tmp_path, plain, by=None) == "answered"
    with pytest.raises(LedgerError, match="rebind the ledger to it"):
        open_site(tmp_path, [*plain, plain[0]], by=None)


def test_a_study_names_the_column(tmp_path):
    def write(rows):
        lines = [",".join(map(str, row.values())) for row in rows]
        (tmp_path / "north.csv").write_text("\n".join([",".join(rows[0]), *lines]))

    write(ROWS)
    study = tmp_path / "study.toml"
    study.write_text(
        '[study]\nname = "s"\nmethod = "tree"\ntarget = "death"\n'
        '[[site]]\nname = "north"\nrecords = "north.csv"\nledger = "north.ledger"\npatient = "mrn"\n'
    )
    said = []
    results = cc.Study.read(study).run(warn=said.append)
    assert "mrn" not in results.model.attributes_
    assert said == []
    write([*ROWS, *({**row, "mrn": f"q{i}"} for i, row in enumerate(ROWS[:8]))])
    cc.Study.read(study).run(warn=said.append)
    (warning,) = said
    assert warning.startswith("north: the table has changed since its ledger was last used: 68 patients now")
    write([*ROWS, ROWS[0]])
    with pytest.raises(
        cc.errors.StudyError, match="site 'north': 1 patient is more than once in column 'mrn'"
    ):
        cc.Study.read(study).run()


def test_masked_and_private_studies_go_on_too(tmp_path):
    def run(rows):
        table = cc.Records.from_rows(rows, schema=dict.fromkeys(("mrn", "sex", "ward", "death"), "code"))
        parts = np.array_split(np.arange(len(table)), 3)
        sites = [
            cc.Site(n, cc.Patients(table=table.take(part), by="mrn"), ledger=tmp_path / f"{n}.ledger")
            for n, part in zip("abc", parts, strict=True)
        ]
        values = {"death": [0, 1], "sex": ["f", "m"], "ward": ["a", "b", "c"]}
        bayes = cc.NaiveBayes("death", release="private", epsilon=1.0, values=values).fit(cc.House(sites))
        spent = [site.ledger.spent() for site in sites]
        for site in sites:
            site.ledger.close()
        return bayes.card.refusals, spent

    refusals, spent = run(ROWS)
    assert refusals == []
    again, more = run([*ROWS, {**ROWS[3], "mrn": "q"}])
    assert again == []
    assert all(after == 2 * before for before, after in zip(spent, more, strict=True))
