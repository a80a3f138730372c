"""`ShapeModel`: the penalised fit of the pooled patients, whatever the split; readable; honest about its errors."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import concilium as cc
from concilium.errors import HouseError, StudyError
from concilium.protocol.attributes import Attribute
from concilium.shapes.cells import Cells, group_codes
from concilium.shapes.pairs import SPREADS, Table, cut_pair, find_factors
from concilium.shapes.plain_fit import LEAST_EVIDENCE, choose_ends, find_least, fit_margins
from concilium.shapes.shape_sums import AskShapes
from concilium.shapes.smoothing import Solved, hold_directions, invert
from shapes.shape_patients import SCHEMA, draw_patients, list_rows, open_house, true_odds

BINS = {
    "age": [float(edge) for edge in range(25, 90, 5)],
    "lab": [-1.0, -0.5, 0.0, 0.5, 1.0],
    "noise": [-1.0, 0.0, 1.0],
}


NUMBER = Attribute("lab", (1.0, 2.0, 3.0), missing=False)
CATEGORY = Attribute("ward", (), ("a", "b", "c", "d"), missing=False)


@pytest.fixture(scope="module")
def columns():
    return draw_patients(4000, 1)


@pytest.fixture(scope="module")
def model(columns):
    return cc.ShapeModel("y", positive="yes", release="exact").fit(open_house(columns))


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    hospitals=st.integers(3, 6),
    release=st.sampled_from(["exact", "masked"]),
    rules=st.sampled_from([0, 4]),
)
def test_whatever_the_split_it_is_the_model_of_the_pooled_table(seed, hospitals, release, rules):
    columns = draw_patients(300, seed, crossed=0.8)
    said = {"positive": "yes", "threshold": "prevalence", "rules": rules}
    pooled = cc.ShapeModel("y", release="exact", **said).fit(open_house(columns, 1))
    split = cc.ShapeModel("y", release=release, **said).fit(open_house(columns, hospitals, seed))
    assert split.body == pooled.body


def one_hot(model, patients):
    """The design of the pooled table, written apart: a column for each cell."""
    columns = [np.ones(len(patients))]
    for attribute in model.body.attributes:
        values = [row[attribute.name] for row in patients]
        missing = np.array([value is None for value in values])
        columns += [missing.astype(float)] if attribute.missing else []
        if attribute.numeric:
            numbers = np.array([np.nan if value is None else value for value in values])
            ends = [-np.inf, *attribute.edges, np.inf]
            columns += [((numbers >= a) & (numbers < b)).astype(float) for a, b in itertools.pairwise(ends)]
        else:
            columns += [np.array([value == one for value in values], dtype=float) for one in attribute.values]
    return np.column_stack(columns)


def test_the_gradient_of_the_penalised_likelihood_is_zero(columns):
    """By a design, a likelihood and penalties that share no code with the fit, at the smoothing that it chose."""
    model = cc.ShapeModel("y", positive="yes", release="exact", bins=BINS, max_pairs=0).fit(
        open_house(columns)
    )
    rows = list_rows(columns)
    design = one_hot(model, rows)
    outcome = (columns["y"] == "yes").astype(float)
    at = np.array([model.intercept_, *itertools.chain.from_iterable(t.values for t in model.body.terms)])
    odds = design @ at
    np.testing.assert_allclose(odds, model.decide(cc.Records.from_rows(rows, schema=SCHEMA)), atol=1e-9)
    score = design.T @ (outcome - 1 / (1 + np.exp(-odds)))
    assert abs(score[0]) < 0.5  # the mean risk is the mean outcome
    # What the data pull at is held by a penalty whose forces on one shape add up to nothing, or nearly.
    start = 1
    for term in model.body.terms:
        pull = score[start : start + len(term.values)]
        assert abs(pull.sum()) < 1.0
        start += len(term.values)
    better = at + 0.05 * np.random.default_rng(0).normal(size=len(at))
    loss = lambda b: np.sum(np.logaddexp(0, design @ b) - outcome * (design @ b))  # noqa: E731
    assert loss(at) < loss(better)


def test_it_is_as_good_as_the_truth_lets_it_be(columns, model):
    fresh = draw_patients(5000, 2)
    found = model.decide(cc.Records.from_rows(list_rows(fresh), schema=SCHEMA))
    assert np.corrcoef(found, fresh["odds"])[0, 1] > 0.97
    assert np.polyfit(found, fresh["odds"], 1)[0] == pytest.approx(1, abs=0.12)
    assert next(iter(model.importances())) == "age"


def test_bands_hold_the_truth_at_their_level():
    """The curve of age against its mean, in all bins of 25 draws of patients."""
    held = total = 0
    for seed in range(25):
        columns = draw_patients(1500, 100 + seed)
        model = cc.ShapeModel("y", positive="yes", release="exact", bins=BINS, max_pairs=0).fit(
            open_house(columns, 1)
        )
        term = model.body.terms[model.body.names.index("age")]
        grid = np.linspace(20, 90, 14_001)[:-1]
        truth = true_odds(grid, np.zeros(len(grid)), np.ones(len(grid), dtype=int))
        means = [
            truth[(grid >= a) & (grid < b)].mean() for a, b in itertools.pairwise([20, *BINS["age"], 90])
        ]
        shares = np.array(term.shares[1:])
        off = np.array(term.values[1:]) - (np.array(means) - shares @ means)
        held += int((np.abs(off) <= 1.96 * np.array(term.errors[1:])).sum())
        total += len(off)
    assert 0.9 <= held / total <= 0.99


def test_a_pair_is_found_where_there_is_one_and_only_there(model):
    assert all(len(term.cells.attributes) == 1 for term in model.body.terms)
    crossed = cc.ShapeModel("y", positive="yes", release="exact").fit(
        open_house(draw_patients(4000, 3, crossed=0.7))
    )
    pairs = [crossed.body.name(term) for term in crossed.body.terms if len(term.cells.attributes) > 1]
    assert pairs == ["age and lab"]
    # Pairs are what curves leave over: their errors are no larger than what a cell of patients tells.
    term = next(term for term in crossed.body.terms if len(term.cells.attributes) > 1)
    told = [error for error, share in zip(term.errors, term.shares, strict=True) if share > 0.01]
    assert max(told) < 0.5
    table = (np.array(term.values) * term.shares).reshape(term.cells.sizes(crossed.body.attributes))
    assert max(np.abs(table.sum(axis=0)).max(), np.abs(table.sum(axis=1)).max()) < 1e-3
    assert "pair of age and lab" in crossed.pictures()
    none = cc.ShapeModel("y", positive="yes", release="exact", max_pairs=0, max_terms=2)
    assert len(none.fit(open_house(draw_patients(2000, 3, crossed=0.7))).body.terms) == 2


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_evidence_for_a_pair_is_that_of_two_normal_laws(seed):
    draw = np.random.default_rng(seed)
    weight = draw.uniform(1, 30, (4, 5))
    gradient = draw.normal(size=(4, 5)) * np.sqrt(weight) * draw.uniform(0.5, 3)
    factors = [find_factors(NUMBER, (0, 1, 2, 3)), find_factors(CATEGORY, (0, 1, 2, 3, 4))]
    # What rows and columns explain is taken out by a basis of what is beside them, written apart.
    sides = np.hstack([np.kron(np.eye(4), np.ones((5, 1))), np.kron(np.ones((4, 1)), np.eye(5))])
    left, values, _ = np.linalg.svd(np.sqrt(weight.ravel())[:, None] * sides)
    beside = left[:, (values > 1e-9).sum() :]
    said = beside.T @ (gradient.ravel() / np.sqrt(weight.ravel()))
    reach = beside.T @ (np.sqrt(weight.ravel())[:, None] * np.kron(*factors))
    law, size = multivariate_normal, len(said)
    wanted = max(
        law.logpdf(said, cov=np.eye(size) + spread**2 * reach @ reach.T) - law.logpdf(said, cov=np.eye(size))
        for spread in SPREADS
    )
    assert Table(gradient, weight).score(*factors) == pytest.approx(wanted, abs=1e-6)


def test_chance_alone_hardly_ever_reaches_the_evidence_for_a_pair():
    draw = np.random.default_rng(5)
    factors = [find_factors(CATEGORY, range(5)), find_factors(CATEGORY, range(6))]
    reached = 0
    for _ in range(400):
        rows, columns = draw.integers(0, 5, 2000), draw.integers(0, 6, 2000)
        cells = rows * 6 + columns
        residual = (draw.random(2000) < 0.3) - 0.3
        gradient, weight = np.bincount(cells, residual, 30), np.bincount(cells, minlength=30) * 0.21
        reached += Table(gradient.reshape(5, 6), weight.reshape(5, 6)).score(*factors) > LEAST_EVIDENCE
    assert reached <= 8


def test_many_pairs_join_by_less_evidence_than_one():
    many = [*np.linspace(9, 2.6, 20), *[0.0] * 180]
    assert sum(score >= find_least(many) for score in many) == 20
    for few in ([3.5, *[0.0] * 199], [2.9, 2.8], [9.0, *np.linspace(3.6, 2.6, 7), *[0.0] * 192]):
        assert sum(score >= find_least(few) for score in few) == (few[0] == 9)


def test_thinned_cutoffs_keep_the_ends():
    edges = tuple(map(float, range(1, 100)))
    kept = choose_ends(np.full(100, 20), edges, 9)
    assert kept == (2.0, 10.0, 21.0, 35.0, 50.0, 65.0, 79.0, 90.0, 98.0)
    assert choose_ends(np.array([990, 5, 5]), (1.0, 2.0), 1) == (1.0,)


@pytest.mark.parametrize("size", [1, 127, 300])
def test_a_matrix_is_inverted_in_blocks(size):
    half = np.random.default_rng(size).normal(size=(size, 2 * size))
    matrix = half @ half.T + np.diag(np.geomspace(1e-3, 1e6, size))
    np.testing.assert_allclose(invert(matrix) @ matrix, np.eye(size), atol=1e-6)


def test_a_pair_is_cut_where_two_steps_act_together():
    draw = np.random.default_rng(2)
    first, second = draw.integers(0, 20, 20_000), draw.integers(0, 20, 20_000)
    ten, wide = (Attribute(name, tuple(map(float, range(1, 20))), missing=False) for name in ("a", "b"))
    risk = np.where((first >= 7) & (second >= 12), 0.6, 0.3)
    residual = (draw.random(20_000) < risk) - 0.3
    cells = first * 20 + second
    tables = [np.bincount(cells, one, 400).reshape(20, 20) for one in (residual, np.full(20_000, 0.21))]
    fine = Cells((0, 1), (tuple(range(20)), tuple(range(20))))
    pair = cut_pair(fine, (ten, wide), *tables, np.bincount(cells, minlength=400).reshape(20, 20))
    assert pair.groups == ((0,) * 7 + (1,) * 13, (0,) * 12 + (1,) * 8)


def score(document, row):
    """The log odds by the exported conditions alone."""

    def holds(one, value):
        if "missing" in one or value is None:
            return "missing" in one and value is None
        if "values" in one:
            return value in one["values"]
        return one.get("from", -np.inf) <= value < one.get("below", np.inf)

    odds = document["intercept"]
    for term in document["terms"]:
        held = [
            cell["log_odds"]
            for cell in term["cells"]
            if all(any(holds(one, row[c["attribute"]]) for one in c["any_of"]) for c in cell["conditions"])
        ]
        assert len(held) == 1
        odds += held[0]
    return odds


@pytest.mark.parametrize("joined", [{}, {"rules": 5, "max_pairs": 0}])
def test_other_software_finds_the_same_risk_in_the_export(joined):
    columns = draw_patients(3000, 3, crossed=0.7)
    model = cc.ShapeModel("y", positive="yes", release="exact", **joined).fit(open_house(columns))
    document = json.loads(model.to_json())
    assert any(len(term["attributes"]) == 2 for term in document["terms"])
    rows = list_rows(columns)[:200]
    found = [score(document, row) for row in rows]
    np.testing.assert_allclose(found, model.decide(cc.Records.from_rows(rows, schema=SCHEMA)), atol=1e-9)


def test_a_direction_is_kept(columns):
    said = {"positive": "yes", "release": "exact", "monotone": {"age": "rising", "lab": "falling"}}
    model = cc.ShapeModel("y", **said).fit(open_house(columns))
    for term in model.body.terms:
        steps = np.diff(term.values[1:])
        if model.body.name(term) == "age":
            assert (steps >= -1e-9).all()
            assert steps.max() > 0.05
        if model.body.name(term) == "lab":
            assert (steps <= 1e-9).all()
    with pytest.raises(StudyError, match="'monotone' names 'ward', which is no number"):
        cc.ShapeModel("y", positive="yes", release="exact", monotone={"ward": "rising"}).fit(
            open_house(columns)
        )
    with pytest.raises(StudyError, match="'monotone' of a ShapeModel must be"):
        cc.ShapeModel("y", monotone={"age": "up"})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 7))
def test_directions_are_those_of_the_best_active_set(seed, size):
    """Against all sets of equal neighbours, tried one by one."""
    draw = np.random.default_rng(seed)
    root = draw.normal(size=(size, size))
    covariance = root @ root.T + 0.1 * np.eye(size)
    beta = draw.normal(size=size)
    precision = np.linalg.inv(covariance)
    found = hold_directions(Solved(beta, covariance), [(at, at + 1) for at in range(size - 1)])
    best = np.inf
    for ties in itertools.product([False, True], repeat=size - 1):
        groups = np.concatenate([[0], np.cumsum(~np.array(ties))])
        table = np.eye(groups[-1] + 1)[groups]
        held = table @ np.linalg.solve(table.T @ precision @ table, table.T @ precision @ beta)
        if (np.diff(held) >= -1e-9).all():
            best = min(best, (held - beta) @ precision @ (held - beta))
    assert (np.diff(found) >= -1e-7).all()
    assert (found - beta) @ precision @ (found - beta) == pytest.approx(best, rel=1e-5, abs=1e-7)


def test_it_reads(columns, model):
    text = model.text()
    assert "odds ratio" in text
    assert "whole points lose" in text
    rows = model.list_terms()
    assert all(row.low <= row.odds_ratio <= row.high for row in rows)
    for name in ("age", "lab", "ward"):
        assert sum(row.share for row in rows if row.term == name) == pytest.approx(1, abs=0.02)
    assert any(row.condition == "missing" for row in rows if row.term == "lab")
    for picture in [
        *model.pictures(whole=True).values(),
        model.draw_patient({"age": 50, "lab": None, "ward": "b"}),
    ]:
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_the_score_sheet_adds_up_to_the_model(columns, model):
    """Points added up by hand are the model's risk up to rounding; the loss is the measured one."""
    sheet = model.score_sheet()
    rows = list_rows(columns)[:300]
    records = cc.Records.from_rows(rows, schema=SCHEMA)
    body = model.body
    from concilium.shapes.reading import find_cells

    cells = find_cells(body, model.read(records), len(rows))
    points = sum(np.array(term.points)[own] for term, own in zip(body.terms, cells, strict=True))
    odds = np.log(1 / (1 / np.array([sheet.risk(int(one)) for one in points]) - 1))
    assert np.corrcoef(odds, model.decide(records))[0, 1] > 0.985
    assert all(isinstance(row.points, int) and row.points >= 0 for row in sheet.rows)
    assert sheet.loss == pytest.approx(body.sheet.auc_of_model - body.sheet.auc)
    assert -0.002 < sheet.loss < 0.01
    everyone = cc.Records.from_rows(list_rows(columns), schema=SCHEMA)
    assert sheet.auc_of_model == pytest.approx(
        find_auc(model.decide(everyone), columns["y"] == "yes"), abs=2e-3
    )
    assert f"{sheet.largest:>6}" in str(sheet) or "risk" in str(sheet)


def find_auc(odds, positive):
    ranks = np.argsort(np.argsort(odds)) + 1
    return (ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / (
        positive.sum() * (~positive).sum()
    )


def test_an_answer_says_why_and_how_sure(model):
    said = model.explain({"age": 25.0, "lab": 0.9, "ward": "c", "noise": 0.0})
    assert {reason.attributes[0] for reason in said.reasons} >= {"age", "lab", "ward"}
    assert "against the mean patient" in str(said)
    odds = model.intercept_ + sum(reason.moved for reason in said.reasons)
    assert said.chances[1] == pytest.approx(1 / (1 + np.exp(-odds)))
    unknown = model.explain({"ward": "never seen", "age": 25.0})
    assert "No patient of the model had the value of ward" in str(unknown)


def test_intervals_of_patients_hold_the_true_risk(columns, model):
    """Over fresh patients, whose risk is known."""
    fresh = draw_patients(400, 9)
    held = 0
    for row, odds in zip(list_rows(fresh), fresh["odds"], strict=True):
        said = model.explain({name: value for name, value in row.items() if name != "y"})
        risk = 1 / (1 + np.exp(-odds))
        low, high = said.interval
        held += low <= (risk if said.prediction == "yes" else 1 - risk) <= high
    assert held / 400 > 0.88


def test_thresholds_and_classes(columns):
    house = open_house(columns)
    chosen = cc.ShapeModel("y", positive="yes", release="masked", threshold="youden").fit(house)
    assert 0 < chosen.decided.threshold < 1
    assert chosen.decided.sensitivity > 0.5
    with pytest.raises(StudyError, match="no patient has y = maybe; there are no, yes"):
        cc.ShapeModel("y", positive="maybe", release="exact").fit(house)
    alike = {name: values[:50] for name, values in columns.items()}
    alike["y"] = np.full(50, "no")
    with pytest.raises(HouseError, match="all patients of the query have y = no"):
        cc.ShapeModel("y", release="exact").fit(open_house(alike, 1))


def test_where_nothing_tells_anything_it_has_no_terms_to_speak_of():
    columns = draw_patients(1500, 4)
    columns["y"] = np.where(np.random.default_rng(999).random(1500) < 0.3, "yes", "no")
    model = cc.ShapeModel("y", positive="yes", release="exact").fit(open_house(columns))
    risks = model.predict_proba(cc.Records.from_rows(list_rows(columns), schema=SCHEMA))[:, 1]
    assert risks.std() < 0.06
    assert risks.mean() == pytest.approx(0.3, abs=0.03)


def test_groups_keep_order_and_missing_alone():
    number = Attribute("x", (1.0, 2.0, 3.0, 4.0))
    assert group_codes(np.array([5.0, 10, 10, 10, 10, 10]), 5, attribute=number) == (0, 1, 2, 3, 4, 5)
    assert group_codes(np.array([0.0, 10, 10, 10, 10, 10]), 2, attribute=number)[0] == 0
    code = Attribute("w", (), ("a", "b", "c"), other=False)
    assert group_codes(np.array([3.0, 1, 9, 2]), 2, attribute=code) == (0, 2, 1, 2)
    assert Cells((0, 1), ((0, 1, 1), (0, 1))).count([number, code]) == 4


def test_few_grams_are_asked_for_even_where_outcomes_are_told_apart_almost_wholly(monkeypatch):
    """A Gram is most of what a fit sends; steps between Grams still end where the likelihood's gradient is zero."""
    draw = np.random.default_rng(8)
    numbers = {f"x{place}": draw.normal(size=400).round(2) for place in range(6)}
    outcome = sum(numbers.values()) + 0.2 * draw.normal(size=400) > 0
    grams: list[bool] = []
    asked = AskShapes.compute
    monkeypatch.setattr(
        AskShapes, "compute", lambda self, cohort: grams.append(self.gram) or asked(self, cohort)
    )
    frame = pd.DataFrame({**numbers, "y": np.where(outcome, "yes", "no")})
    house = cc.House([cc.Site("one", cc.Records.read(frame))])
    model = cc.ShapeModel("y", positive="yes", release="exact").fit(house)
    assert sum(grams) <= 12
    assert len(grams) <= 40
    # 400 patients do not fill 6 x 25 cells and more: there are as many as patients can tell apart.
    assert all(len(one.edges) <= 400 // 2 // 6 for one in model.body.attributes)
    assert find_auc(model.decide(cc.Records.read(frame)), outcome) > 0.97


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_gram_of_before_gets_the_present_margins(seed):
    """Where weights change by a factor for each cell of each term, the table that fits them is known in closed form."""
    draw = np.random.default_rng(seed)
    codes = np.stack([draw.integers(0, 3, 500), draw.integers(0, 4, 500)])
    design = np.hstack([np.ones((500, 1)), np.eye(3)[codes[0]], np.eye(4)[codes[1]]])
    factors = np.concatenate([[1.0], draw.uniform(0.3, 2, 7)])
    weight = factors[1:4][codes[0]] * factors[4:8][codes[1]]
    before, now = design.T @ design, design.T @ (design * weight[:, None])
    found = fit_margins(before, np.diag(now), [1, 4, 8])
    np.testing.assert_allclose(found, now, rtol=0.02, atol=0.5)
    np.testing.assert_allclose(np.diag(found), np.diag(now))


@pytest.mark.parametrize("method", [cc.ShapeModel, cc.NaiveBayes])
@pytest.mark.parametrize(("events", "warned"), [(9, True), (10, False)])
def test_a_class_of_few_patients_is_a_warning(columns, method, events, warned):
    alike = {name: values[:150] for name, values in columns.items()}
    alike["y"] = np.where(np.arange(150) < events, "yes", "no")
    warnings = method("y", release="exact").fit(open_house(alike)).card.warnings
    few = [one for one in warnings if one.startswith(f"{events} of 150 patients have y = yes: too few")]
    assert bool(few) == warned


def test_a_sheet_that_nobody_adds_up_says_how_to_shorten_it(columns):
    many = {name: values[:400] for name, values in columns.items()}
    draw = np.random.default_rng(3)
    many |= {f"x{k}": (columns["odds"][:400] + 2 * draw.normal(size=400)).round(1) for k in range(16)}
    house = open_house(many, schema=SCHEMA | {f"x{k}": "number" for k in range(16)})
    said = str(cc.ShapeModel("y", release="exact").fit(house).score_sheet())
    assert "terms are many to add up by hand: max_terms = 8" in said
    short = cc.ShapeModel("y", release="exact", max_terms=8).fit(house).score_sheet()
    assert "by hand" not in str(short)
    assert len({row.term for row in short.rows}) <= 8
