"""Several rows of one patient: held out, dealt into folds, counted and charged by patient.

One patient with all rows moves a sum by no more than is charged for, from the text of the table.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import concilium as cc
from adversary.test_neighbours import (
    COLUMNS,
    NAMES,
    POLICY,
    PRIVATE,
    QUERIES,
    SCHEMA,
    STUDIES,
    draw_row,
    list_questions,
)
from agreed import Asker
from concilium.cli.main import app
from concilium.consult.consent import find_study, write_page
from concilium.errors import HouseError, RecordsError, StudyError
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import Agree
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.cohort import _are_last
from concilium.protocol.held_out import Folds, Holdout, deal_blocks
from concilium.transports.flare.own_files import SiteFile
from small_study import HOSPITALS, SEVERAL, lay_out

# Those that ask a table; of the courses of patients there is one each.
OF_TABLES = [place for place in PRIVATE if STUDIES[place][0] not in ("discovery", "experts")]
STATED: dict[str, Any] = {"values": {"sex": ["f", "m"], "death": [0, 1]}, "bins": {"age": [40, 60]}}


@pytest.fixture(autouse=True, scope="module")
def fixed_noise():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, SWITCHED_ON)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def read(path: Path, rows: list[tuple[str, ...]]) -> cc.Patients:
    lines = [(*COLUMNS, "id"), *rows]
    path.write_text("\n".join(map(",".join, lines)) + "\n", encoding="utf-8", newline="")
    return cc.Patients(table=cc.Records.read(path, schema=SCHEMA | {"id": "code"}), by="id", encounters=True)


@pytest.mark.parametrize("place", OF_TABLES, ids=[NAMES[place] for place in OF_TABLES])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_one_patient_with_all_rows_moves_a_sum_by_what_is_charged(folder, place, seed):
    """Every private question of every method, from raw text: a patient of one to twenty rows comes or goes."""
    dice = random.Random(seed)
    ids = [f"p{i}" for i in range(dice.choice([2, 6, 15])) for _ in range(dice.choice([1, 1, 2, 5]))]
    new = ["new"] * dice.choice([1, 2, 20])
    order = [*ids, *new]
    dice.shuffle(order)
    rows = [(*draw_row(dice), name) for name in order]
    others = [row for row in rows if row[-1] != "new"]
    try:
        tables = [read(folder / f"{seed % 2**32}-{n}.csv", listed) for n, listed in enumerate((rows, others))]
    except RecordsError:  # such a table does not open
        return
    most, query = dice.choice([1, 2, 3]), dice.choice(QUERIES)
    views = [
        cc.Site("north", table, POLICY, division_key=b"the key of these tests")._context.view.read_alone(most)
        for table in tables
    ]
    for listed in list_questions(place):
        question = msgspec.structs.replace(listed, query=query)
        sums = []
        for view in views:
            cohort = view.select(question.query, question.target).telling_all()
            cohort = Holdout(percent=30).choose(cohort, 0, held=question.measures)
            if question.division is not None:
                cohort = question.division.choose(cohort, 0)
            assert np.bincount(cohort.view.owners.codes[cohort.rows], minlength=1).max(initial=0) <= most
            sums.append(question.compute(cohort).astype(object))
        change = (sums[0] - sums[1]).reshape(-1)
        assert sum(int(one) ** 2 for one in change) <= most**2 * question.sensitivity.squared
        if question.sensitivity.l1 is not None:
            assert sum(abs(int(one)) for one in change) <= most * question.sensitivity.l1


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(1, 3))
def test_the_last_rows_of_each_patient_are_kept(owners, most):
    kept = _are_last(np.array(owners, dtype=np.intp), most)
    for place, owner in enumerate(owners):
        assert kept[place] == (owners[place + 1 :].count(owner) < most)


def make_rows(patients: int, seed: int, most: int = 4) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    rows = []
    for patient in range(patients):
        for _ in range(dice.randint(1, most)):
            age = dice.randint(20, 90)
            day = f"202{dice.randint(0, 4)}-0{dice.randint(1, 9)}-11"
            death = int(dice.random() < 0.1 + 0.6 * (age > 60))
            rows.append(
                {"id": f"{seed}-{patient}", "age": age, "sex": dice.choice("fm"), "day": day, "death": death}
            )
    dice.shuffle(rows)
    return rows


KINDS = {"age": "number", "sex": "code", "day": "code", "death": "code", "id": "code"}


def open_site(name: str, rows: list[dict[str, Any]], *, encounters: bool = True, **policy: Any) -> cc.Site:
    table = cc.Records.from_rows(rows, schema=KINDS)
    patients = cc.Patients(table=table, by="id", encounters=encounters)
    return cc.Site(name, patients, cc.Policy(**policy), division_key=b"a key")


def fit(rows: dict[str, Any], most: int = 1, **site: Any) -> tuple[cc.NaiveBayes, list[cc.Site]]:
    sites = [open_site(name, listed, budget=cc.Budget("unlimited"), **site) for name, listed in rows.items()]
    model = cc.NaiveBayes("death", release="private", epsilon=1, **STATED)
    with zero_noise():
        return model.fit(cc.House(sites, encounters=most)), sites


def keep_last(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    ids = [row["id"] for row in rows]
    return [row for place, row in enumerate(rows) if ids[place + 1 :].count(row["id"]) < most]


def test_a_private_study_counts_the_last_rows_and_charges_for_all_that_count() -> None:
    rows = {name: make_rows(40, seed) for seed, name in enumerate(HOSPITALS)}
    once, sites = fit(rows)
    price = once.plan().total
    for site in sites:
        assert price * 0.9 < site.ledger.spent() <= price
    # One row each is what a table of the last rows has.
    last = {
        name: [{**row, "id": str(place)} for place, row in enumerate(keep_last(listed, 1))]
        for name, listed in rows.items()
    }
    assert once.body == fit(last, encounters=False)[0].body
    thrice, sites = fit(rows, 3)
    for site in sites:
        assert price * 0.9 < site.ledger.spent() <= price
    rows_of_three = {
        name: [{**row, "id": str(place)} for place, row in enumerate(keep_last(listed, 3))]
        for name, listed in rows.items()
    }
    apart = fit(rows_of_three, encounters=False)[0]
    for one, other in zip(thrice.body.attributes, apart.body.attributes, strict=True):
        assert [node.measured for node in one] == [node.measured for node in other]
        assert [node.variance for node in one] == pytest.approx(
            [9 * node.variance for node in other], rel=1e-9
        )


@pytest.mark.parametrize("method", [cc.DecisionTree, cc.NaiveBayes, cc.RuleFit, cc.Regression, cc.Describe])
def test_a_patient_with_several_rows_pays_what_the_study_says(method: Any) -> None:
    rows = {name: make_rows(40, seed) for seed, name in enumerate(HOSPITALS)}
    sites = [open_site(name, listed, budget=cc.Budget("unlimited")) for name, listed in rows.items()]
    ends = {"bins": {"age": [20, 40, 60, 90]}} if method in (cc.Regression, cc.Describe) else {}
    model = method("death", release="private", epsilon=1, **{**STATED, **ends})
    model.fit(cc.House(sites, encounters=3))
    price = model.plan().total
    assert all(price * 0.5 < site.ledger.spent() <= price for site in sites)
    assert model.card.warnings[0].startswith("differential privacy per patient: epsilon = 1 at delta")


def test_hospitals_behind_a_region_count_and_charge_the_same_rows() -> None:
    rows = {name: make_rows(40, seed) for seed, name in enumerate(HOSPITALS)}
    flat, sites = fit(rows, 3)
    behind = [open_site(name, listed, budget=cc.Budget("unlimited")) for name, listed in rows.items()]
    region = cc.Region("a region", cc.House(behind[:2]))
    model = cc.NaiveBayes("death", release="private", epsilon=1, **STATED)
    with zero_noise():
        tiered = model.fit(cc.House([region, *behind[2:]], encounters=3))
    assert tiered.body == flat.body
    assert [site.ledger.spent() for site in behind] == [site.ledger.spent() for site in sites]


def test_a_run_does_not_go_on_with_other_rows(tmp_path: Path) -> None:
    sites = [
        open_site(name, make_rows(40, seed), budget=cc.Budget("unlimited"))
        for seed, name in enumerate(HOSPITALS)
    ]
    for most in (2, 3):
        model = cc.NaiveBayes("death", release="private", epsilon=1, **STATED)
        house = cc.House(sites, encounters=most, journal=tmp_path / "a.journal")
        if most == 3:
            with pytest.raises(HouseError, match="belongs to another study"):
                model.fit(house)
        else:
            model.fit(house)


def test_who_is_held_out_and_in_which_fold_goes_by_patient() -> None:
    rows = make_rows(300, 5)
    cohort = open_site("a", rows)._context.view.select("", "death")
    whose = cohort.view.owners.codes[cohort.rows]
    for holdout in (Holdout(percent=30), Holdout(column="day", since="2023-06-01")):
        held = holdout.find_held(cohort)
        assert 0 < held.sum() < len(held)
        assert not set(whose[held]) & set(whose[~held])
    assert 50 < len(set(whose[Holdout(percent=30).find_held(cohort)])) < 130
    for dealt in (*Folds(repeats=2).deal(cohort), deal_blocks(cohort, 7)):
        assert len(set(dealt)) > 1
        assert len(set(zip(whose, dealt, strict=True))) == len(set(whose))


def test_patients_are_counted_and_not_their_rows() -> None:
    many = [{**row, "id": f"{place % 3}"} for place, row in enumerate(make_rows(30, 1))]
    with pytest.raises(HouseError, match="too few patients match"):
        cc.DecisionTree("death").fit([open_site("a", many)])
    rows = make_rows(60, 2)
    site = open_site("a", [*rows, *({**rows[0], "sex": "x", "id": "one"} for _ in range(10))])
    cc.DecisionTree("death", attributes=["age"]).fit([site])
    with pytest.raises(HouseError, match="too few patients match"):  # all but one patient, of ten rows
        cc.DecisionTree("death", attributes=["age"], query="sex != 'x'").fit([site])
    assert cc.DecisionTree("death").fit([open_site("a", rows)]).card.sites[0].patients == 60
    assert "60 patients" in repr(open_site("a", rows))


def test_a_corrected_row_is_noticed_whichever_it_is(tmp_path: Path) -> None:
    """A ledger tells a patient whose first of two rows was corrected from one whose rows are as they were."""
    rows = make_rows(40, 3, most=2)
    rows = sorted(rows, key=lambda row: row["id"])
    twice = next(place for place, row in enumerate(rows) if rows[place + 1]["id"] == row["id"])
    corrected = [*rows[:twice], {**rows[twice], "age": 21}, *rows[twice + 1 :]]
    for listed in (rows, corrected):
        table = cc.Records.from_rows(listed, schema=KINDS)
        site = cc.Site("a", cc.Patients(table=table, by="id", encounters=True), ledger=tmp_path / "a.ledger")
        tree = cc.DecisionTree("death", attributes=["age"])
        if listed is rows:
            tree.fit([site])
        else:
            with pytest.raises(HouseError, match="too few patients match"):
                tree.fit([site])
        site.ledger.close()


def test_the_terms_say_how_many_rows_count() -> None:
    sites = [open_site(name, make_rows(20, 1), agree=Agree(methods=())) for name in ("a", "b", "c")]
    model = cc.NaiveBayes("death", release="private", epsilon=1, **STATED)
    price = str(model.plan().total)
    asker = Asker(
        sites,
        release="private",
        method="naive-bayes",
        parameters=model.get_params(),
        price=price,
        encounters=2,
    )
    asker.propose(sites[0])
    site = sites[0]
    page = write_page(find_study(site.ledger, asker.study, site.policy), site.ledger, site.policy)
    assert "at most 2 rows of the table count" in " ".join(page.split())
    for wrong in (1, 0, 101, -2):
        reply = Asker(
            sites,
            release="private",
            method="naive-bayes",
            parameters=model.get_params(),
            price=price,
            encounters=wrong,
        ).propose(site)
        assert b"rows count" in reply
    with pytest.raises(StudyError, match="encounters must be a whole number from 1 to 100"):
        cc.House(sites, encounters=0)


PRIVATE_STUDY = '[privacy]\nrelease = "private"\nepsilon = "1"\n[values]\nsex = ["f", "m"]\ndeath = [0, 1]\n'


def lay_out_encounters(folder: Path, more: str = "") -> Path:
    text = SEVERAL.replace("one_row_per_patient = true", 'patient = "id"\nencounters = true')
    text = text.replace('method = "tree"', 'method = "naive-bayes"').replace("[tree]\nmax_depth = 3\n", "")
    study = lay_out(folder, text + more)
    for seed, name in enumerate(HOSPITALS):
        rows = make_rows(40, seed)
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return study


def test_a_study_plans_and_pays_for_rows_and_measures_by_patient(tmp_path: Path) -> None:
    said = PRIVATE_STUDY.replace('"1"', "0.2") + "[evaluate]\nholdout = 0.3\nepsilon = 0.2\n"
    study = lay_out_encounters(tmp_path, said)
    once = cc.Study.read(study).plan()
    study.write_text(study.read_text().replace('target = "death"', 'target = "death"\nencounters = 2'))
    planned = cc.Study.read(study).plan()
    assert planned.total == once.total
    results = cc.Study.read(study).run(warn=lambda text: None)
    for name in HOSPITALS:
        with Ledger.open_readonly(tmp_path / f"{name}.ledger") as book:
            assert planned.total * 0.9 < book.spent() <= planned.total
    assert 0.2 < results.metrics["epsilon"] <= 0.4
    exact = lay_out_encounters(tmp_path, "[evaluate]\nholdout = 0.3\n")
    metrics = cc.Study.read(exact).run(warn=lambda text: None).metrics
    assert "held back from learning by the site itself" in metrics["evaluation"]
    shown = CliRunner().invoke(app, ["check", str(exact)])
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("encounters = true\n", "", "'north'.* more than once in column 'id' .*encounters = true"),
        ('patient = "id"\n', "", "site 'north': one row is one encounter only in a table alone"),
        ('target = "death"', 'target = "death"\nencounters = 2', "encounters is for tables and release"),
        ('target = "death"', 'target = "death"\nencounters = 0', "encounters must be a whole number from 1"),
        (
            "[bins]",
            "[evaluate]\nholdout = 0.3\nsimulation = true\n[bins]",
            "divide rows, and north has several of a patient",
        ),
    ],
)
def test_what_cannot_be_is_a_sentence(tmp_path: Path, old: str, new: str, words: str) -> None:
    study = lay_out_encounters(tmp_path)
    study.write_text(study.read_text().replace(old, new))
    with pytest.raises(StudyError, match=words):
        cc.Study.read(study).run(warn=lambda text: None)


def test_a_hospital_states_its_encounters_in_its_own_file(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    (local / "concilium.toml").write_text(
        '[site]\npolicy = "policy.toml"\nledger = "site.ledger"\nrecords = "patients.csv"\npatient = "id"\n'
        'encounters = true\n[schema]\nsex = "code"\n'
    )
    (local / "policy.toml").write_text("")
    (local / "patients.csv").write_text("id,sex\na,f\na,m\nb,m\n")
    site = SiteFile.read(tmp_path).open("north")
    assert "2 patients" in repr(site)
    view = site._context.view
    assert [view.read_alone(most).select("", "sex").rows.tolist() for most in (1, 2)] == [[1, 2], [0, 1, 2]]


def test_since_a_day_measures_encounters_of_that_day_or_later() -> None:
    """Who has one is held out of learning with all encounters, and earlier ones would hide drift."""
    rows = [
        {"id": f"p{place % 40}", "day": f"202{3 + place // 40}-05-01", "death": "yes" if place % 3 else "no"}
        for place in range(100)
    ]
    records = cc.Records.from_rows(rows, schema={"id": "code", "day": "code", "death": "code"})
    site = cc.Site("a", cc.Patients(table=records, by="id", encounters=True))
    cohort = site._context.view.select("", "death")
    holdout = Holdout(column="day", since="2025-01-01")
    assert holdout.find_held(cohort).sum() == 60  # twenty patients with three encounters each
    assert list(holdout.choose(cohort, 1, held=True).rows) == list(range(80, 100))
    assert len(holdout.choose(cohort, 1, held=False).rows) == 40
