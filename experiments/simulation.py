"""Simulated hospitals: the patients of section 3.1 of Federated RuleFit (arXiv 2604.17956; docs/methods.md, 2.14).

Ten independent N(0, 1) covariates, five of them informative; log odds that are linear in them (model 1) or not (model
2). A thousand patients to learn from and a thousand to test on are dealt to hospitals, which differ in number
(scenario 1), in size (2) or in the share of patients with the outcome (3). Randomness here makes patients up and never
protects one: it is seeded, so that whoever repeats a simulation meets the same patients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from concilium.records.columns import Coded, Column, Numbers
from concilium.records.table import Records

Floats = NDArray[np.float64]
Site = tuple[Floats, Floats]
Shape = Literal["linear", "nonlinear"]

COVARIATES = 10
PATIENTS = 1000
TARGET = "y"
SHAPES: tuple[Shape, ...] = ("linear", "nonlinear")
SIZES = {
    "B": (0.2, 0.2, 0.2, 0.2, 0.2),
    "M": (0.1, 0.15, 0.2, 0.25, 0.3),
    "S": (0.05, 0.1, 0.15, 0.25, 0.45),
}
PREVALENCES = {
    "B": (0.5, 0.5, 0.5, 0.5, 0.5),
    "M": (0.25, 0.375, 0.5, 0.625, 0.75),
    "S": (0.125, 0.25, 0.375, 0.875, 0.875),
}


@dataclass(frozen=True)
class Cell:
    """One setting: patients of every hospital, and how many of them have the outcome where that is fixed."""

    shape: Shape
    scenario: int
    setting: str
    sizes: tuple[int, ...]
    positives: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Dealt:
    """The patients of one repetition: the hospitals to learn from, and all to test on."""

    sites: list[Site]
    test: Site


def list_cells(patients: int = PATIENTS) -> list[Cell]:
    """The twenty settings of the paper: linear and nonlinear, scenario by scenario."""
    cells = []
    for shape in SHAPES:
        for sites in (2, 5, 10, 20):
            cells.append(Cell(shape, 1, f"M = {sites}", (patients // sites,) * sites))
        for name, shares in SIZES.items():
            cells.append(Cell(shape, 2, name, tuple(round(share * patients) for share in shares)))
        for name, prevalences in PREVALENCES.items():
            size = patients // len(prevalences)
            positives = tuple(round(share * size) for share in prevalences)
            cells.append(Cell(shape, 3, name, (size,) * len(prevalences), positives))
    return cells


def deal(cell: Cell, seed: int, repetition: int) -> Dealt:
    """A repetition's patients: the same for the same seed, others for every repetition and setting."""
    draw = np.random.default_rng([seed, repetition, *repr(cell).encode()])
    sites, tests = ([_draw_site(cell, which, draw) for which in range(len(cell.sizes))] for _ in range(2))
    return Dealt(sites, pool(tests))


def pool(sites: list[Site]) -> Site:
    """One table of all hospitals, which nobody holds."""
    return np.concatenate([matrix for matrix, _ in sites]), np.concatenate([outcome for _, outcome in sites])


def draw_patients(
    shape: Shape, patients: int, draw: np.random.Generator, covariates: int = COVARIATES
) -> Site:
    """Covariates, and an outcome that is 1 with the probability that the model gives."""
    matrix = draw.normal(size=(patients, covariates))
    chance = 1 / (1 + np.exp(-log_odds(shape, matrix)))
    return matrix, (draw.random(patients) < chance).astype(np.float64)


def log_odds(shape: Shape, matrix: Floats) -> Floats:
    """Model 1 or model 2."""
    x1, x2, x3, x4, x5 = matrix[:, :5].T
    if shape == "linear":
        return np.asarray(5 * x1 - 4 * x2 + 3 * x3 - 2 * x4 + x5)
    bumps = 10 * np.exp(-2 * x1**2) - 10 * np.exp(-2 * x2**2)
    return np.asarray(bumps + 6 * np.sin(x3) - 4 * np.sin(x4) + 2 * np.sin(x5))


def as_records(matrix: Floats, outcome: Floats | None = None) -> Records:
    """Patients as a site holds them: x1, x2, ... and, where it is known, the outcome y of 0 and 1."""
    columns: dict[str, Column] = {
        f"x{place}": Numbers(np.ascontiguousarray(column), by_itself=True)
        for place, column in enumerate(matrix.T, start=1)
    }
    if outcome is not None:
        columns[TARGET] = Coded(outcome.astype(np.uint8) + 1, (0, 1), by_itself=True)
    return Records(columns)


def _draw_site(cell: Cell, which: int, draw: np.random.Generator) -> Site:
    size = cell.sizes[which]
    if cell.positives is None:
        return draw_patients(cell.shape, size, draw)
    wanted = {1: cell.positives[which], 0: size - cell.positives[which]}
    matrix, outcome = draw_patients(cell.shape, size, draw)
    while any(np.sum(outcome == value) < count for value, count in wanted.items()):
        matrix, outcome = pool([(matrix, outcome), draw_patients(cell.shape, size, draw)])
    kept = np.sort(np.concatenate([np.flatnonzero(outcome == v)[:count] for v, count in wanted.items()]))
    return matrix[kept], outcome[kept]
