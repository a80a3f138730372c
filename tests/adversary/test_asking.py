"""What one who may ask learns about one patient of another hospital in a month of questions: nothing beyond the cube.

The adversary knows all patients but one, and everything of that one but the outcome. He asks whatever he likes, and
searches: every cell, every value of every predictor, alone and together. What he can learn is bounded by what the cube
tells, since his answers are a function of it; and under noise by epsilon, whatever he does with them.
"""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest

import concilium as cc
from concilium.privacy.accounting import rho_for_epsilon
from contract.patients import BINS, ROWS, SCHEMA, VALUES, make, open_sites

GRID = ["age", "sex"]


def release(release="exact", rows=None, **more):
    method = make(cc.Consultation, release, **more).set_params(grid=GRID)
    return method.fit(cc.House(open_sites(rows)))


def ask_everything(model):
    """The answers to every question that there is: each cell, and each set of predictors entered."""
    ages = [None, 25, 50, 70]
    pressures = [None, 90, 150]
    answers = []
    for age, sex, ward, pressure in itertools.product(
        ages, (None, "f", "m"), (None, "a", "b", "c"), pressures
    ):
        patient = {"age": age, "sex": sex, "ward": ward, "pressure": pressure}
        entered = {name: value for name, value in patient.items() if value is not None}
        if {*entered} & {*GRID}:
            answer = model.ask(entered)
            answers.append((answer.patients, *answer.chances, *answer.interval))
    return answers


def test_two_patients_who_exchange_what_the_cube_does_not_tell_look_alike_in_every_answer():
    """Ward and pressure of two patients of one cell and outcome: counted apart, never together."""
    rows = {name: [dict(row) for row in listed] for name, listed in ROWS.items()}
    one, other = find_two(rows["north"])
    one["ward"], other["ward"] = other["ward"], one["ward"]
    before, after = release(), release(rows=rows)
    assert rows["north"] != ROWS["north"]
    assert before.body == after.body
    assert ask_everything(before) == ask_everything(after)


def find_two(rows):
    """Two patients of one cell and outcome with other wards and other pressures."""

    def place(row):
        return row["age"] and sum(edge <= row["age"] for edge in BINS["age"]), row["sex"], row["y"]

    def band(row):
        return sum(edge <= row["pressure"] for edge in BINS["pressure"])

    return next(
        (one, other)
        for one, other in itertools.combinations(rows, 2)
        if place(one) == place(other) and one["ward"] != other["ward"] and band(one) != band(other)
    )


def test_a_month_of_questions_leaves_nothing_but_the_release_in_the_ledger():
    sites = open_sites()
    model = make(cc.Consultation, "exact").set_params(grid=GRID).fit(cc.House(sites))
    kinds = [[(entry.kind, entry.numbers) for entry in site.ledger.entries()] for site in sites]
    ask_everything(model)
    assert [[(entry.kind, entry.numbers) for entry in site.ledger.entries()] for site in sites] == kinds


def test_the_best_guess_of_a_hidden_outcome_is_no_better_than_the_price_allows():
    """He knows all but the outcome of one patient, and decides by the likelihood of the whole release, which no search
    among answers can beat. A changed outcome is two steps of a neighbour: four times rho of the study (zCDP). By
    Pinsker he is right in at most half and sqrt(2 rho) / 2 of all cases."""
    epsilon = "1"
    body = release("private", values=VALUES, epsilon=epsilon).body
    moved = 2 * (
        len(body.predictors) + 1
    )  # counts, by one each, in each of the two tables: of his cell, of everybody
    most = math.sqrt(2 * rho_for_epsilon(epsilon, "1e-6")) / 2
    draw, rounds = np.random.default_rng(4), 20_000
    has = draw.random(rounds) < 0.5
    seen = has[:, None] + draw.normal(0, body.variance**0.5, (rounds, 2 * moved))
    advantage = np.mean((seen.sum(axis=1) > moved) == has) - 0.5
    assert 0 < advantage < most < 0.15


def test_private_answers_depend_on_the_release_alone():
    """Loaded from its file, without hospitals, ledger or house, the consultation answers the same."""
    model = release("private", values=VALUES, epsilon=2.0)
    copy = cc.Consultation.from_body(msgspec.json.encode(model.body), model.card, model.get_params())
    assert ask_everything(copy) == ask_everything(model)


def find_rows(body, patient):
    """The cell of a patient in the cube, and the rows of its table that count this patient."""
    places = [column.attribute for column in (*body.by, *body.predictors)]
    codes = []
    for one in places:
        value = patient[one.name]
        if value is None:
            codes.append(0)
        elif one.edges:
            codes.append(one.first + sum(edge <= value for edge in one.edges))
        else:
            codes.append(one.first + one.values.index(value))
    cell = 0
    for size, code in zip(body.sizes, codes, strict=False):
        cell = cell * size + code
    starts = np.cumsum([1, *body.widths])
    return cell, [0, *(int(start) + code for start, code in zip(starts, codes[len(body.by) :], strict=False))]


def search(counts, cell, rows):
    """The outcome that is certain, since some row that counts the patient has patients of one outcome only."""
    for row in rows:
        present = np.flatnonzero(counts[cell, row])
        if len(present) == 1:
            return int(present[0])
    return None


@pytest.mark.parametrize("kind", ["exact", "masked"])
def test_a_search_of_an_exact_month_finds_the_outcomes_that_the_cube_tells_and_only_those(kind):
    """He works at north, knows its patients, and of another hospital's patient all but the outcome."""
    body = release(kind, values=VALUES).body
    own = make(cc.Consultation, "exact", values=VALUES).set_params(grid=GRID)
    site = cc.Site("north", cc.Records.from_rows(ROWS["north"], schema=SCHEMA))
    mine = own.set_params(release="exact").fit(cc.House([site])).body
    assert [one.attribute for one in mine.by] == [one.attribute for one in body.by]
    others = body.released - mine.released
    certain = right = 0
    victims = [row for name in ("south", "east", "west") for row in ROWS[name]]
    for row in victims:
        outcome = search(others, *find_rows(body, row))
        if outcome is not None:
            certain += 1
            right += body.classes[outcome] == row["y"]
    assert (certain, right, len(victims)) == (88, 88, 300)  # docs/asking.md states it


def test_a_search_of_a_private_month_gains_no_more_than_its_price_allows():
    """He knows everything but one outcome, tries hundreds of weightings of all released counts and every threshold, and
    keeps what works best on two thousand releases. On two thousand others he is right no more often than Pinsker's
    bound: a changed outcome is two steps of a neighbour, four times rho of the study."""
    epsilon = "1"
    rows = {name: [dict(row) for row in listed] for name, listed in ROWS.items()}
    victim = next(row for row in rows["east"] if row["age"] and row["pressure"])
    cubes = []
    for outcome in ("no", "yes"):
        victim["y"] = outcome
        cubes.append(release("exact", rows, values=VALUES).body.released)
    moved = np.concatenate([(cubes[1] - cubes[0]).ravel(), (cubes[1] - cubes[0]).sum(axis=0).ravel()])
    moved = moved[moved != 0]
    assert (
        len(moved) == 2 * 2 * 3
    )  # of his cell and of everybody: two outcomes in the totals and of two predictors
    variance = release("private", values=VALUES, epsilon=epsilon).body.variance
    most = math.sqrt(2 * rho_for_epsilon(epsilon, "1e-6")) / 2
    draw, releases = np.random.default_rng(8), 4000
    has = draw.random(releases) < 0.5
    seen = has[:, None] * moved + draw.normal(0, variance**0.5, (releases, len(moved)))
    tried, kept = slice(0, releases // 2), slice(releases // 2, None)
    best = 0.0, 0.0
    for weights in [moved, *np.diag(moved), *draw.normal(0, 1, (300, len(moved)))]:
        score = seen @ weights
        for limit in np.quantile(score[tried], np.linspace(0.05, 0.95, 19)):
            found = (score > limit) == has
            best = max(best, (float(np.mean(found[tried])), float(np.mean(found[kept]))))
    assert 0.5 < best[1] < 0.5 + most, (best, most)
