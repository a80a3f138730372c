"""A site whose table is gone over by blocks gives the answers of one in memory, to the last bit: models, held-out
patients, what is left out of tables, and which populations are admitted."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import ConciliumError
from concilium.ledger.ledger import Ledger
from concilium.models.outcome import Outcome
from concilium.policy.policy import WorkLimits
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import _are_last
from concilium.protocol.disclosure import Population, Populations
from concilium.protocol.held_out import SIMULATION_KEY, recall_tickets
from concilium.protocol.questions import Gaussian
from concilium.records import blocks, column_store
from concilium.rulefit import design, fitting, generation
from concilium.shapes.private_sums import AskDirections, Direction
from concilium.statistics.columns import Column, Factor
from concilium.statistics.private_hazards import AskHazards
from concilium.statistics.regression_sums import AskRegression

SETTINGS = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LARGE = 1 << 20


@pytest.fixture
def by_blocks(monkeypatch):
    """Read what the function makes by blocks of so many rows, in a column store."""

    def set_rows(rows):
        monkeypatch.setattr(blocks, "ROWS_AT_ONCE", rows)
        monkeypatch.setattr(blocks, "ROWS_SORTED", max(1, rows // 2))
        monkeypatch.setattr(column_store, "LARGE", 1 if rows < LARGE else 1 << 25)

    yield set_rows
    monkeypatch.undo()


def write_patients(path, rows, seed, wide=False):
    """Codes, text, numbers with gaps and dates; many patients alike."""
    draw = np.random.default_rng(seed)
    lab = np.round(draw.normal(100, 20, rows), 1)
    severe = draw.integers(0, 4, rows)
    died = severe + draw.normal(0, 1, rows) + (lab > 110) > 2.5
    lines = ["lab,severe,ward,admitted,age,died"]
    for row in range(rows):
        value = "" if draw.random() < 0.1 else lab[row]
        ward = ("a", "b", "c d", "")[draw.integers(0, 4)]
        day = f"202{draw.integers(0, 5)}-0{draw.integers(1, 9)}-11"
        age = draw.integers(18, 99) if wide else draw.integers(1, 4)
        lines.append(f"{value},{severe[row]},{ward},{day},{age},{'yes' if died[row] else 'no'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def describe(model) -> list[object]:
    """What a model says, but for the keys and the ledger of the hospital that made it."""
    return [model.write()[: model.write().index(b'"card"')], model.text(), model.card.warnings]


POLICIES = {
    "open": {},
    "small cells": {"minimum_cell": 4},
    "dominance": {"dominance": 0.9, "minimum_cell": 2},
    "branches": {"branch_floor": 9},
}


def read(path, root):
    return cc.Records.read(path, schema={"died": "code"}, columns=root)


@SETTINGS
@given(
    st.integers(20, 400),
    st.sampled_from([7, 16, 64, 100, 399]),
    st.integers(0, 99),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(["", "lab > 90", "ward = 'a' or lab missing", "severe in {1, 2}"]),
)
def test_trees_are_the_same_to_the_last_bit(tmp_path, by_blocks, rows, block, seed, policy, query):
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    write_patients(path, rows, seed)

    def grow(records):
        site = cc.Site("north", records, cc.Policy(**POLICIES[policy]), division_key=SIMULATION_KEY)
        tree = cc.DecisionTree("died", query=query, max_depth=3, prune=0.3)
        return describe(tree.fit(cc.House([site])))

    by_blocks(LARGE)
    found = []
    for size, folder in ((LARGE, None), (block, root)):
        by_blocks(size)
        records = read(path, folder)
        assert (records.store is None) == (folder is None)
        try:
            found.append(grow(records))
        except ConciliumError as error:
            found.append(str(error))
    by_blocks(LARGE)
    assert found[0] == found[1]
    if rows >= 100 and policy == "open" and query == "":
        assert "severe" in found[1][1]  # it learned something


def regress(**more):
    return cc.Regression(
        "died", positive="yes", release="exact", attributes=["lab", "severe", "ward"], **more
    )


def count(**more):
    return cc.Regression(
        "severe", bins={"severe": [0, 4]}, release="exact", attributes=["lab", "age", "ward"], **more
    )


METHODS = {
    "shapes": lambda: cc.ShapeModel("died", positive="yes", release="exact"),
    "shapes, a number": lambda: cc.ShapeModel("lab", bins={"lab": [60, 140]}, release="exact"),
    "describe": lambda: cc.Describe("died", release="exact"),
    "regression": lambda: cc.Regression(
        "died", positive="yes", release="exact", attributes=["lab", "severe", "age"]
    ),
    "survival": lambda: cc.SurvivalCurve("died", time="age", positive="yes", by="ward", release="exact"),
    "hazards": lambda: cc.CoxRegression(
        "died", time="age", positive="yes", attributes=["lab", "severe"], baseline="common", release="exact"
    ),
    "hazards by hospital": lambda: cc.CoxRegression(
        "died",
        time="age",
        positive="yes",
        attributes=["lab", "severe", "ward"],
        release="exact",
        by_hospital=True,
    ),
    "own intercepts": lambda: regress(intercepts="hospital", by_hospital=True),
    "own intercepts of counts": lambda: count(family="poisson", intercepts="hospital"),
    "own intercepts of numbers": lambda: count(family="gaussian", intercepts="hospital", errors="robust"),
    "random intercepts": lambda: regress(intercepts="random"),
    "random intercepts of numbers": lambda: count(family="gaussian", intercepts="random"),
    "robust errors": lambda: regress(errors="robust"),
    "errors by hospital": lambda: count(family="poisson", errors="clustered"),
    "counts": lambda: count(family="negative-binomial"),
    "firth": lambda: regress(firth=True),
    "tree by a horizon": lambda: cc.DecisionTree(
        "died", max_depth=2, time="age", at=60, positive="yes", release="exact"
    ),
    "tree": lambda: cc.DecisionTree("died", max_depth=2),
    "rules": lambda: cc.RuleFit("died", positive="yes", release="exact", trees=9, threshold="youden"),
    "rules, a number": lambda: cc.RuleFit(
        "lab", bins={"lab": [60, 140]}, release="exact", trees=9, penalty=0.01, scale="within"
    ),
    "voting": lambda: cc.VotingTrees("died", positive="yes", imbalance=0.6, negatives=1, max_depth=2),
}


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("block", [37, 150, 299])
def test_other_methods_and_their_evaluation_are_those_of_memory(tmp_path, by_blocks, method, block):
    """To the last bit where sums are of whole numbers, or of the same blocks: a table in memory goes by blocks, too."""
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    write_patients(path, 300, 5, wide=True)
    found = []
    for folder in (None, root):
        by_blocks(block)
        site = cc.Site("north", read(path, folder), division_key=SIMULATION_KEY)
        assert (site._context.view.room is None) == (folder is None)
        house = cc.House([site])
        model = METHODS[method]().fit(house)
        said = describe(model) if hasattr(model, "write") else [str(model)]
        if method in ("shapes", "tree", "rules", "voting"):
            said.append(str(model.evaluate(house)))
        found.append(said)
    by_blocks(LARGE)
    assert found[0] == found[1]
    whole = METHODS[method]().fit(cc.House([cc.Site("north", read(path, None), division_key=SIMULATION_KEY)]))
    if method in ("shapes", "tree", "voting", "survival"):  # sums of whole numbers, whatever the blocks
        assert describe(whole)[:2] == found[0][:2]
    if isinstance(whole, cc.Regression | cc.CoxRegression):  # sums of reals, in another order
        for one, other in zip(whole.body.estimates, model.body.estimates, strict=True):
            told = [[each.coefficient, each.error or 0.0] for each in (one, other)]
            np.testing.assert_allclose(*told, rtol=1e-6)
        for one, other in zip(whole.body.between, model.body.between, strict=True):
            np.testing.assert_allclose(*([*each.own.values()] for each in (one, other)), rtol=1e-6)
    if method.startswith("rules"):  # of the same trees, whatever the blocks
        assert whole.body.terms.rules == model.body.terms.rules
        assert len(whole.body.terms.rules) > 5
        np.testing.assert_allclose(whole.coef_, model.coef_, atol=1e-6)


def fit_by_parts(tmp_path, monkeypatch, records, memory="2 GB"):
    """Rules of a site whose table is one block, and counts as a million patients."""
    monkeypatch.setattr(design, "MANY_PATIENTS", 100)
    for module in (design, fitting, generation):
        monkeypatch.setattr(module, "PATIENTS_AT_ONCE", 64)
    policy = cc.Policy(work=WorkLimits(memory=memory))
    site = cc.Site("north", records, policy, division_key=SIMULATION_KEY)
    site._context.meter._rounded = 1 << 20
    return describe(METHODS["rules"]().fit(cc.House([site])))


def test_rules_of_one_block_go_by_parts_and_need_little_memory(tmp_path, by_blocks, monkeypatch):
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    write_patients(path, 300, 5, wide=True)
    in_memory = fit_by_parts(tmp_path, monkeypatch, read(path, None))
    by_blocks(LARGE)
    monkeypatch.setattr(column_store, "LARGE", 1)
    stored = read(path, root)
    assert stored.store is not None
    assert fit_by_parts(tmp_path, monkeypatch, stored, "1.1 GB") == in_memory
    with pytest.raises(ConciliumError, match="may take"):
        fit_by_parts(tmp_path, monkeypatch, read(path, None), "1.1 GB")


@pytest.mark.parametrize("block", [37, 299])
def test_trees_of_a_sample_make_the_same_rules_which_are_counted_over_everybody(
    tmp_path, by_blocks, monkeypatch, block
):
    monkeypatch.setattr(generation, "MOST_LEARNED_FROM", 150)
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    write_patients(path, 300, 5, wide=True)
    found = []
    for folder in (None, root):
        by_blocks(block)
        site = cc.Site("north", read(path, folder), division_key=SIMULATION_KEY)
        cohort = site._context.view.select("", "died")
        learning = generation.draw_some(cohort, 0)
        assert 100 < len(learning) < 200
        found.append([learning.rows.tolist(), describe(METHODS["rules"]().fit(cc.House([site])))])
    by_blocks(LARGE)
    assert found[0] == found[1]
    assert any("drawn at random" in warning for warning in found[0][1][2])


def test_a_rule_is_about_enough_of_all_patients_where_some_taught_it():
    draw = np.random.default_rng(0)
    codes = [draw.integers(1, 9, 4000).astype(np.uint8)]
    outcome, attributes = (codes[0][:400] > 6).astype(float), (Attribute("x", tuple(range(7))),)
    asked = {"binary": True, "trees": 5, "leaves": 4, "shrinkage": 0.1, "seed": 0, "everyone": codes}
    rules = generation._boost([codes[0][:400]], outcome, attributes, support=40, **asked)
    assert rules
    codes[0][:] = 1
    assert generation._boost([codes[0][:400] + (outcome > 0)], outcome, attributes, support=40, **asked) == []


@SETTINGS
@given(st.integers(2, 300), st.sampled_from([5, 32, 100, 299]), st.integers(0, 99), st.booleans())
def test_who_is_held_out_is_the_same(tmp_path, by_blocks, rows, block, seed, wide):
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    write_patients(path, rows, seed, wide)
    tickets = []
    for size, folder in ((LARGE, None), (block, root)):
        by_blocks(size)
        site = cc.Site("north", read(path, folder), division_key=SIMULATION_KEY)
        view = site._context.view
        tickets.append((recall_tickets(view), view.select("", "died").digest, sorted(view.hidden)))
    by_blocks(LARGE)
    np.testing.assert_array_equal(tickets[0][0], tickets[1][0])
    assert tickets[0][1:] == tickets[1][1:]


@SETTINGS
@given(st.data())
def test_the_same_populations_are_admitted_whatever_was_remembered_how(tmp_path, by_blocks, data):
    """Tables that grow and shrink, each read in memory or by blocks, against one ledger that only knows memory."""
    sizes = data.draw(st.lists(st.integers(8, 200), min_size=1, max_size=4))
    answers = {}
    asked = [
        [
            np.random.default_rng(data.draw(st.integers(0, 9))).random(size) < share
            for share in (1.0, 0.6, 0.97)
        ]
        for size in sizes
    ]
    turns = [data.draw(st.sampled_from([LARGE, 6, 31, 64])) for _ in sizes]
    for way in ("memory", "blocks"):
        with Ledger() as ledger:
            for number, (size, masks) in enumerate(zip(sizes, asked, strict=True)):
                path, root = tmp_path / f"{number}.csv", tmp_path / f"{number}.columns"
                write_patients(path, size, 1)
                by_blocks(turns[number] if way == "blocks" else LARGE)
                column_store.remove_stores(root)
                table = read(path, root)
                populations = Populations(ledger, cc.Patients(table=table), 4)
                for turn, mask in enumerate(masks):
                    said = []

                    def seal(head, mask=mask, populations=populations, said=said):
                        said.append(populations.admit(Population(np.flatnonzero(mask).astype(np.int32))))
                        return b""

                    ledger.charge(f"{number} {turn}", "d", study="s", kind="k", mode="exact", seal=seal)
                    answers.setdefault(way, []).extend(said)
                again = Populations(ledger, cc.Patients(table=read(path, root)), 4)
                answers[way].append(again.count_known())
            answers[way].append(len(ledger.patient_names()) // 8)
    by_blocks(LARGE)
    assert answers["memory"] == answers["blocks"]


PRIVATE = {
    "hazards": lambda attributes, columns: AskHazards(
        query="",
        target="died",
        attributes=attributes,
        columns=columns,
        time="age",
        positive="yes",
        grid=(30.0, 60.0, 99.0),
        at=(-2.0, -2.0, -2.0, 0.3),
        noise=Gaussian("1"),
        places=12,
    ),
    "regression": lambda attributes, columns: AskRegression(
        query="",
        target="died",
        attributes=attributes,
        columns=columns,
        family="binomial",
        positive="yes",
        at=(-1.0, 0.3),
        noise=Gaussian("1"),
        places=12,
    ),
    "shapes": lambda attributes, columns: AskDirections(
        query="",
        target="died",
        attributes=(Attribute("lab", (80.0, 100.0, 120.0)),),
        outcome=Outcome(positive="yes"),
        directions=(Direction(0, (0.1, -1.0, 0.2, 0.7, 1.0)),),
        cap=1.0,
        lead=0.5,
        noise=Gaussian("1"),
    ),
}


@pytest.mark.parametrize("kind", sorted(PRIVATE))
@pytest.mark.parametrize("block", [37, 299])
def test_sums_with_a_price_are_those_of_all_patients_at_once(tmp_path, by_blocks, kind, block):
    """Whole numbers: to the last bit, whatever the blocks, so that no price depends on them."""
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    write_patients(path, 300, 5, wide=True)
    column = Column((Factor(0, low=50.0, high=150.0),))
    question = PRIVATE[kind]((Attribute("lab"),), (column,))
    found = []
    for rows, folder in ((LARGE, None), (block, root)):
        by_blocks(rows)
        view = cc.Site("north", read(path, folder), division_key=SIMULATION_KEY)._context.view
        found.append(question.compute_all(view.select("", "died")))
    by_blocks(LARGE)
    assert question.goes_by_blocks
    assert np.abs(found[0]).sum() > 1000
    np.testing.assert_array_equal(*found)


@SETTINGS
@given(
    st.integers(1, 200), st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 7, 64]), st.integers(0, 99)
)
def test_the_last_rows_of_each_patient_are_found_by_blocks(by_blocks, rows, patients, most, block, seed):
    owners = np.random.default_rng(seed).integers(0, patients, rows)
    by_blocks(block)
    last = _are_last(owners, most)
    by_blocks(LARGE)
    for patient in range(patients):
        own = np.flatnonzero(owners == patient)
        assert np.flatnonzero(last & (owners == patient)).tolist() == own[-most:].tolist()


@pytest.mark.parametrize("removed", [False, True])
def test_who_was_answered_about_is_known_without_the_columns(tmp_path, by_blocks, removed):
    """Numbers are of the ledger: 8 bytes a patient. What is beside the table is worked out of them again."""
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    write_patients(path, 3000, 3)
    by_blocks(700)
    said, numbers = [], []
    with Ledger() as ledger:
        for rows in (3000, 2999, 2000):
            table = read(path, root)
            assert table.store is not None
            populations = Populations(ledger, cc.Patients(table=table), 4)

            def seal(head, rows=rows, populations=populations):
                said.append(populations.admit(Population(np.arange(rows, dtype=np.int32))))
                return b""

            ledger.charge(f"{rows}", "d", study="s", kind="k", mode="exact", seal=seal)
            numbers.append(populations._numbers.find(ledger.recall_patients()).tolist())
            if removed:
                shutil.rmtree(root)
        assert len(ledger.patient_names()) == 8 * 3000
    by_blocks(LARGE)
    assert numbers[0] == numbers[1] == numbers[2]
    assert said == [True, False, True]  # all but one is refused, whatever became of the columns
