"""A few made-up stays for tests of experts: who falls ill has a rising heart rate in the hours before."""

from __future__ import annotations

import numpy as np

import concilium as cc
from concilium.experts.expert_task import ExpertTask, NetworkSettings, PublicRange

RANGES = {"HR": (60.0, 100.0), "Temp": (36.0, 38.0)}


def make_series(patients, seed, ill=0.5, hours=(6, 40)):
    """Stays of these lengths, some of them with the outcome, some values missing."""
    dice = np.random.default_rng(seed)
    longest = hours[1]
    grids = {name: np.full((longest, patients), np.nan) for name in (*RANGES, "sepsis")}
    lengths = dice.integers(hours[0], longest + 1, patients)
    for patient, length in enumerate(lengths):
        times = np.arange(length)
        falls = dice.random() < ill
        onset = int(dice.integers(length // 2, length)) if falls else 10 * longest
        course = np.clip((times - onset + 6) / 6, 0, 1)
        grids["HR"][:length, patient] = 80 + dice.normal(0, 4, length) + 25 * course
        grids["Temp"][:length, patient] = 37 + dice.normal(0, 0.2, length) + 0.8 * course
        for name in RANGES:
            grids[name][:length, patient][dice.random(length) < 0.2] = np.nan
        grids["sepsis"][:length, patient] = times >= onset
    return cc.Series(grids, lengths=lengths)


def make_task(**more):
    network = NetworkSettings(units=3, epochs=5)
    ranges = tuple(PublicRange(name, *ends) for name, ends in RANGES.items())
    usual = {"target": "sepsis", "variables": ranges, "window": "12h", "lead": "6h", "network": network}
    return ExpertTask(**{**usual, **more})
