"""Rules beside curves: found where there are some and only there, chosen as an oracle chooses, readable."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.protocol.attributes import Attribute
from concilium.shapes.cells import Cells
from concilium.shapes.rules import DISTINCT, choose_rules, find_corners
from shapes.shape_patients import SCHEMA, draw_patients, list_rows, open_house


def with_rule(count, seed):
    """Patients of whom those older than 60 with a lab value above 0.5 fare worse than their curves say."""
    columns = draw_patients(count, seed)
    held = (columns["age"] >= 60) & (np.nan_to_num(columns["lab"], nan=-9) >= 0.5)
    columns["odds"] = columns["odds"] + 2.0 * held
    draw = np.random.default_rng(seed + 1)
    columns["y"] = np.where(draw.random(count) < 1 / (1 + np.exp(-columns["odds"])), "yes", "no")
    return columns, held


@pytest.fixture(scope="module")
def ruled():
    columns, held = with_rule(6000, 3)
    model = cc.ShapeModel("y", positive="yes", release="exact", rules=10, max_pairs=0).fit(
        open_house(columns)
    )
    return model, columns, held


def find_held(model, columns):
    """Whether each rule holds for each patient, by the words that the model prints: written apart."""
    found = []
    for term in model.body.terms:
        if not term.cells.rule:
            continue
        holds = np.ones(len(columns["y"]), dtype=bool)
        for condition in model.body.name(term).split(" and "):
            name, words = condition.split(" ", 1)
            values = columns[name]
            if words == "missing":
                holds &= np.isnan(values)
            elif words.startswith("below "):
                holds &= values < float(words.removeprefix("below "))
            elif words.endswith(" or more"):
                holds &= values >= float(words.removesuffix(" or more"))
            else:
                holds &= values == words
        found.append((term, holds))
    return found


def test_a_rule_is_found_where_there_is_one(ruled):
    model, columns, held = ruled
    found = find_held(model, columns)
    term, holds = max(found, key=lambda one: one[0].deviation)
    assert (holds & held).sum() / (holds | held).sum() > 0.85
    assert term.shares[1] == pytest.approx(holds.mean(), abs=1e-9)
    # The odds ratio of those for whom it holds against the others, and its interval.
    assert term.values[1] - term.values[0] == pytest.approx(2.0, abs=0.6)
    rows = [row for row in model.list_terms() if row.term == f"rule: {model.body.name(term)}"]
    assert [row.condition for row in rows] == ["holds", "does not hold"]
    assert rows[0].low > 1
    # Each patient is told apart as the model does.
    own = next(place for place, one in enumerate(model.body.terms) if one is term)
    from concilium.shapes.reading import find_cells

    records = cc.Records.from_rows(list_rows(columns), schema=SCHEMA)
    cells = find_cells(model.body, model.read(records), len(columns["y"]))[own]
    np.testing.assert_array_equal(cells == 1, holds)


def test_it_reads(ruled):
    model, columns, _ = ruled
    found = find_held(model, columns)
    assert len({holds.tobytes() for _, holds in found}) == len(found)
    for term, _ in found:
        row = next(row for row in model.list_terms() if row.term == f"rule: {model.body.name(term)}")
        assert f"{row.odds_ratio:.2f}" != "1.00"
        assert len(term.cells.attributes) == 2
        assert f"rule: {model.body.name(term)}" in model.text()
        assert f"rule: {model.body.name(term)}" in model.pictures(whole=True)
    patient = {"age": 80, "lab": 1.2, "ward": "a", "noise": 0.0}
    said = str(model.explain(patient))
    assert "the rule age" in said
    assert " holds: odds ratio" in said
    assert "1 rules" in repr(model) or "rule" in repr(model)


def test_no_rule_where_curves_say_all():
    found = 0
    for seed in range(6):
        model = cc.ShapeModel("y", positive="yes", release="exact", rules=10, max_pairs=0)
        fitted = model.fit(open_house(draw_patients(1500, 50 + seed), 1))
        found += sum(term.cells.rule for term in fitted.body.terms)
    assert found <= 1


def test_no_rule_has_an_attribute_of_a_stated_direction():
    columns, _ = with_rule(3000, 5)
    said = {"positive": "yes", "release": "exact", "rules": 10, "monotone": {"age": "rising"}}
    model = cc.ShapeModel("y", **said).fit(open_house(columns, 1))
    assert not any("age" in model.body.name(term) for term in model.body.terms if term.cells.rule)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(3, 6), columns=st.integers(3, 6))
def test_a_corner_scores_as_least_squares_say(seed, rows, columns):
    """The score of the best corner is the t value of its coefficient beside those of rows and columns."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(30, 200, (rows, columns)).astype(float)
    weight, gradient = counts * 0.2, draw.normal(size=(rows, columns)) * 20
    attributes = [Attribute("a", tuple(range(1, rows))), Attribute("b", tuple(range(1, columns)))]
    # Code 0 is missing, and nobody lacks a value: it stands with the first interval.
    groups = [(0, *range(size)) for size in (rows, columns)]
    found = find_corners(Cells((0, 1), tuple(groups)), attributes, gradient, weight, counts)
    sides = [
        np.array([*np.tril(np.ones((size, size)))[:-1], *np.triu(np.ones((size, size)))[1:]])
        for size in (rows, columns)
    ]
    own, other = (np.repeat(np.arange(rows), columns), np.tile(np.arange(columns), rows))
    base = np.hstack([np.eye(rows)[own], np.eye(columns)[other]])
    best = 0.0
    w, g, held = weight.ravel(), gradient.ravel(), counts.ravel()
    for one, two in itertools.product(*sides):
        corner = one[own] * two[other]
        solved = np.linalg.lstsq((base * w[:, None]).T @ base, base.T @ np.column_stack([g, w * corner]))[0]
        left = corner @ g - (w * corner) @ base @ solved[:, 0]
        variance = corner @ (w * corner) - (w * corner) @ base @ solved[:, 1]
        inside = corner @ (w * corner)
        least = max(0.01 * held.sum(), 20)
        if not least <= corner @ held <= held.sum() - least:
            continue
        if variance > DISTINCT * inside * (1 - inside / w.sum()):
            best = max(best, abs(left) / np.sqrt(variance))
    assert (abs(found[0].score) if found else 0.0) == pytest.approx(best if best >= 3 else 0.0, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 12))
def test_rules_are_taken_one_after_the_other(seed, size):
    """By regressions that share no code: each step takes what gains most beside those before it."""
    draw = np.random.default_rng(seed)
    design = draw.normal(size=(200, size)) + draw.normal(size=(200, 1))
    outcome = design @ (draw.normal(size=size) * 0.3) + draw.normal(size=200)
    chosen = choose_rules(design.T @ design, design.T @ outcome, 4, 2.0)
    taken: list[int] = []
    while len(taken) < 4:
        loss = lambda columns: (  # noqa: E731
            np.sum((outcome - design[:, columns] @ np.linalg.lstsq(design[:, columns], outcome)[0]) ** 2)
            if columns
            else np.sum(outcome**2)
        )
        open_to = []
        for one in set(range(size)) - set(taken):
            beside = design[:, taken]
            left = design[:, one] - (beside @ np.linalg.lstsq(beside, design[:, one])[0] if taken else 0)
            if left @ left >= DISTINCT * design[:, one] @ design[:, one]:
                open_to.append(one)
        gains = {one: loss(taken) - loss([*taken, one]) for one in open_to}
        if not gains or max(gains.values()) < 4.0:
            break
        taken.append(max(gains, key=gains.get))
    assert chosen == taken
