"""A private `ShapeModel`: what one patient can change, what noise leaves, and bands that say so."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import StudyError
from concilium.models.outcome import Outcome
from concilium.policy.policy import Policy
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.questions import Gaussian
from concilium.shapes.cells import Cells
from concilium.shapes.private_sums import PLACES, AskDirections, Direction
from shapes.shape_patients import SCHEMA, draw_patients, list_rows, open_house, true_odds

AGES = [float(edge) for edge in range(25, 90, 5)]
STATED = {
    "bins": {"age": AGES, "lab": [-1.0, -0.5, 0.0, 0.5, 1.0], "noise": [-1.0, 0.0, 1.0]},
    "values": {"ward": ["a", "b", "c"], "y": ["no", "yes"]},
}
ATTRIBUTES = (Attribute("age", (40.0, 60.0)), Attribute("ward", (), ("a", "b", "c")))
GROUPS = ((0, 1, 2, 2), (1, 0, 0, 1, 1))
PAIR = Cells((0, 1), GROUPS)


def fit(columns, epsilon, **options):
    said = {"positive": "yes", "release": "private", "epsilon": epsilon, **STATED, **options}
    return cc.ShapeModel("y", **said).fit(open_house(columns, 4))


def answer(question, rows):
    """What a site computes for these patients, before noise, as whole numbers."""
    schema = {"age": "number", "ward": "code", "y": "code"}
    patients = cc.Records.from_rows([*rows, {"age": 1.0, "ward": "a", "y": "no"}], schema=schema)
    view = View(patients.take(np.arange(len(rows))), Policy()).each_by_itself
    return question.compute(view.select("", "y").telling_all()).astype(float)


NUMBERS = st.floats(-50, 50)
PATIENT = st.fixed_dictionaries(
    {
        "age": st.one_of(st.none(), st.floats(0, 100)),
        "ward": st.sampled_from(["a", "b", "c", "x", None]),
        "y": st.sampled_from(["no", "yes", "other", "3", "12", "5.5", "-1e300", "1e300"]),
    }
)
CLASSES, NUMBER = Outcome(positive="yes"), Outcome(low=2.0, high=10.0)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(PATIENT, min_size=1, max_size=4),
    heights=st.lists(
        st.tuples(st.integers(0, 1), st.lists(NUMBERS, min_size=5, max_size=5)), min_size=1, max_size=6
    ),
    cap=st.floats(0.01, 9),
    products=st.booleans(),
    intercept=NUMBERS,
    share=st.sampled_from([None, 0.35, 1.0]),
    outcome=st.sampled_from([CLASSES, NUMBER]),
)
def test_no_patient_moves_an_answer_by_more_than_its_sensitivity(
    rows, heights, cap, products, intercept, share, outcome
):
    sizes = [one.size for one in ATTRIBUTES]
    pairs = (PAIR,) if share and not products else ()
    crossed = np.array([0.0, 1, -2, 3, -0.5, 0.25])
    question = AskDirections(
        query="",
        target="y",
        attributes=ATTRIBUTES,
        outcome=outcome,
        directions=tuple(Direction(at, tuple(listed[: sizes[at]])) for at, listed in heights),
        cap=cap,
        lead=0.3,
        intercept=intercept,
        shapes=tuple(tuple(heights[0][1][:size]) for size in sizes),
        products=products,
        pairs=pairs,
        heights=(tuple(crossed),) if pairs else (),
        share=share or 0.0,
        noise=Gaussian("9"),
    )
    moved = answer(question, rows) - answer(question, rows[1:])
    assert float(moved @ moved) <= float(question.sensitivity.squared)
    # And it is the stated sum: a row cut to the cap, times the residual.
    row = rows[0]
    codes = [0 if row["age"] is None else 1 + (row["age"] >= 40) + (row["age"] >= 60)]
    codes.append({"a": 1, "b": 2, "c": 3, None: 0}.get(row["ward"], 4))
    along = np.array([listed[codes[at]] for at, listed in heights])
    length = np.linalg.norm(along)
    along = along * min(1.0, cap / length) if length else along
    cell = GROUPS[0][codes[0]] * 2 + GROUPS[1][codes[1]]
    odds = intercept + sum(heights[0][1][code] for code in codes) + (crossed[cell] if pairs else 0.0)
    residual = (row["y"] == "yes") - 0.5 * (1 + np.tanh(odds / 2))
    if not outcome.binary:  # who has text there adds nothing
        number = float(row["y"]) if row["y"] not in ("no", "yes", "other") else np.nan
        residual = np.nan_to_num(np.clip((np.clip(number, 2, 10) - 6) / 4 - odds, -1, 1))
    upper = np.outer(along, along)[np.triu_indices(len(along))]
    twice = np.where(np.eye(len(along), dtype=bool), 1, np.sqrt(2))[np.triu_indices(len(along))]
    inside = [share * (place == cell) for place in range(6)] if pairs else []
    expected = upper * twice if products else residual * np.array([0.3, *along, *inside])
    np.testing.assert_allclose(moved, expected * 2**PLACES, atol=1.01)


def test_without_noise_it_finds_the_curves(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    columns = draw_patients(4000, 1)
    with zero_noise():
        model = fit(columns, 3)
    fresh = draw_patients(3000, 2)
    found = model.decide(cc.Records.from_rows(list_rows(fresh), schema=SCHEMA))
    assert np.corrcoef(found, fresh["odds"])[0, 1] > 0.97
    assert np.polyfit(found, fresh["odds"], 1)[0] == pytest.approx(1, abs=0.15)
    assert model.body.patients is None
    assert "was not measured" in model.text()


def test_a_pair_joins_where_noise_lets_one_see_it(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    crossed, fresh = draw_patients(6000, 3, crossed=0.8), draw_patients(2000, 4, crossed=0.8)
    with zero_noise():
        model, alone = (fit(crossed, 4, max_pairs=most) for most in (6, 0))
        assert not [
            term for term in fit(draw_patients(6000, 5), 4).body.terms if len(term.cells.attributes) > 1
        ]
    pairs = [model.body.name(term) for term in model.body.terms if len(term.cells.attributes) > 1]
    assert pairs[0] == "age and lab"
    records = cc.Records.from_rows(list_rows(fresh), schema=SCHEMA)
    errors = [np.mean((one.decide(records) - fresh["odds"]) ** 2) for one in (model, alone)]
    assert errors[0] < 0.6 * errors[1]
    assert "age and lab" in model.text()


def test_where_noise_hides_products_and_pairs_gradients_get_their_price():
    budget = cc.Policy(budget=cc.Budget("1000"))
    rows = list_rows(draw_patients(300, 6, crossed=0.8))
    sites = [cc.Site(f"h{at}", cc.Records.from_rows(rows[at::3], schema=SCHEMA), budget) for at in range(3)]
    model = cc.ShapeModel("y", positive="yes", release="private", epsilon=0.5, **STATED).fit(cc.House(sites))
    assert not [term for term in model.body.terms if len(term.cells.attributes) > 1]
    spent, planned = sites[0].ledger.spent(), model.plan().total
    assert 0.999 * planned < spent <= planned
    asked = [entry for entry in sites[0].ledger.entries() if entry.cost]
    assert len(asked) == 7 < len(model.plan().questions)


def test_a_stated_direction_is_kept(monkeypatch):
    columns = draw_patients(1500, 7)
    model = fit(columns, 1, monotone={"noise": "rising", "age": "falling"})
    for name, way in (("noise", 1), ("age", -1)):
        values = np.array(model.body.terms[model.body.names.index(name)].values)
        assert (way * np.diff(values[1:]) >= -1e-9).all()
    with pytest.raises(StudyError, match="'monotone' names 'ward'"):
        fit(columns, 1, monotone={"ward": "rising"})


def test_bands_include_the_noise():
    """The curve of age against its mean, in all bins of six draws of patients and noise."""
    held = total = 0
    widths = {}
    for epsilon, seeds in ((0.5, range(6)), (8, range(2))):
        for seed in seeds:
            columns = draw_patients(3000, 100 + seed)
            model = fit(columns, epsilon)
            term = model.body.terms[model.body.names.index("age")]
            grid = np.linspace(20, 90, 7001)[:-1]
            truth = true_odds(grid, np.zeros(len(grid)), np.ones(len(grid), dtype=int))
            means = [truth[(grid >= a) & (grid < b)].mean() for a, b in itertools.pairwise([20, *AGES, 90])]
            off = np.array(term.values[1:]) - (np.array(means) - truth.mean())
            widths.setdefault(epsilon, []).append(np.mean(term.errors[1:]))
            if epsilon < 1:
                held += int((np.abs(off) <= 1.96 * np.array(term.errors[1:])).sum())
                total += len(off)
    assert held / total > 0.8
    assert np.mean(widths[0.5]) > 1.12 * np.mean(widths[8])


def test_what_a_private_one_does_not_have_is_said():
    said = {"positive": "yes", "release": "private", **STATED}
    with pytest.raises(StudyError, match="needs an 'epsilon'"):
        cc.ShapeModel("y", **said)
    with pytest.raises(StudyError, match="a private ShapeModel has no 'rules'"):
        cc.ShapeModel("y", epsilon=1, **said, rules=3)
    with pytest.raises(StudyError, match="cannot decide by 'youden'"):
        cc.ShapeModel("y", epsilon=1, threshold="youden", **said)
    with pytest.raises(StudyError, match="'positive' is maybe, but the stated classes are no, yes"):
        cc.ShapeModel("y", epsilon=1, **{**said, "positive": "maybe"})
    model = cc.ShapeModel("y", epsilon=1, **said)
    assert model.plan().total <= model.rho
    assert len([one for one in model.plan().questions if one.kind == "shapes.directions"]) == 8


def test_a_plan_names_the_method_that_is_better_by_what_is_public():
    said = {"positive": "yes", "release": "private", "epsilon": 1}
    many = {f"x{place}": [float(edge) for edge in range(12)] for place in range(40)}
    for bins, better, other in (
        (STATED["bins"], cc.ShapeModel, cc.RuleFit),
        (many, cc.RuleFit, cc.ShapeModel),
    ):
        assert "usually predicts better" not in better("y", bins=bins, **said).plan().render()
        assert f'method = "{better.method}" usually' in other("y", bins=bins, **said).plan().render()
    # Columns that a study does not state are not known before it asks.
    assert "usually predicts better" not in cc.RuleFit("y", **said).plan().render()
