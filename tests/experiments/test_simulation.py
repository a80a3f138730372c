"""The paper's simulated hospitals: sizes, shares and chances as section 3.1 states them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from simulation import (
    COVARIATES,
    PATIENTS,
    SHAPES,
    Cell,
    Shape,
    as_records,
    deal,
    draw_patients,
    list_cells,
    log_odds,
    pool,
)

CELLS = list_cells()


def test_there_are_twenty_settings_of_a_thousand_patients() -> None:
    assert len(CELLS) == len(set(CELLS)) == 20
    assert all(sum(cell.sizes) == PATIENTS for cell in CELLS)
    assert {len(cell.sizes) for cell in CELLS if cell.scenario == 1} == {2, 5, 10, 20}
    severe = {cell.scenario: cell for cell in CELLS if cell.setting == "S"}
    assert severe[2].sizes == (50, 100, 150, 250, 450)
    assert severe[3].positives == (25, 50, 75, 175, 175)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.shape}-{cell.scenario}-{cell.setting}")
def test_every_site_has_its_patients_and_its_share_of_outcomes(cell: Cell) -> None:
    dealt = deal(cell, seed=1, repetition=0)
    assert tuple(len(outcome) for _, outcome in dealt.sites) == cell.sizes
    if cell.positives is not None:
        assert tuple(int(outcome.sum()) for _, outcome in dealt.sites) == cell.positives
        assert dealt.test[1].sum() == sum(cell.positives)
    assert dealt.test[0].shape == (PATIENTS, COVARIATES)
    learned = {row.tobytes() for row in pool(dealt.sites)[0]}
    assert len(learned) == PATIENTS
    assert not learned & {row.tobytes() for row in dealt.test[0]}


def test_the_seed_and_the_repetition_decide_the_patients() -> None:
    first, again, next_one = (deal(CELLS[0], 1, repetition).test for repetition in (0, 0, 1))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.any(first[0] == next_one[0])
    assert not np.any(first[0] == deal(CELLS[0], 2, 0).test[0])
    assert not np.any(first[0] == deal(CELLS[1], 1, 0).test[0])


@pytest.mark.parametrize(
    ("shape", "row", "expected"),
    [
        ("linear", [1, 2, 3, 4, 5], 5 - 8 + 9 - 8 + 5),
        ("nonlinear", [0, 0, 0, 0, 0], 0),
        ("nonlinear", [0, 9, math.pi / 2, 0, 0], 16),
        ("nonlinear", [9, 1, 0, math.pi / 2, math.pi / 2], -10 * math.exp(-2) - 2),
    ],
)
def test_log_odds_are_those_of_the_paper(shape: Shape, row: list[float], expected: float) -> None:
    patient = np.array([[*row, *np.full(5, 77.0)]])
    assert log_odds(shape, patient)[0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_outcomes_follow_their_chances(shape: Shape) -> None:
    matrix, outcome = draw_patients(shape, 40_000, np.random.default_rng(11))
    for column in matrix.T:
        assert kstest(column, "norm").pvalue > 1e-6
    chance = 1 / (1 + np.exp(-log_odds(shape, matrix)))
    bands = np.array_split(np.argsort(chance), 20)
    spread = sum(
        (outcome[band].sum() - chance[band].sum()) ** 2 / (chance[band] * (1 - chance[band])).sum()
        for band in bands
    )
    assert chi2.sf(spread, len(bands)) > 1e-6


def test_fixing_the_share_of_outcomes_does_not_change_who_has_one() -> None:
    """Given the outcome, patients of a site with a fixed share are like those of any other."""
    cell = Cell("linear", 3, "one site", (4000,), (500,))
    ((matrix, outcome),) = deal(cell, 1, 0).sites
    free, happened = draw_patients("linear", 8000, np.random.default_rng(12))
    for value in (0, 1):
        pairs = zip(matrix[outcome == value].T, free[happened == value].T, strict=True)
        assert all(kstest(*pair).pvalue > 1e-6 for pair in pairs)


def test_records_hold_the_same_patients() -> None:
    matrix, outcome = deal(CELLS[0], 1, 0).test
    table = as_records(matrix, outcome)
    assert table.names == (*(f"x{place}" for place in range(1, 11)), "y")
    assert table.values("y") == outcome.astype(int).tolist()
    assert table.values("x3") == matrix[:, 2].tolist()
    assert "y" not in as_records(matrix)
