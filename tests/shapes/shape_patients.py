"""Patients whose log odds are known, for tests of shapes."""

from __future__ import annotations

import numpy as np

import concilium as cc

SCHEMA = {"age": "number", "lab": "number", "ward": "code", "noise": "number", "y": "code"}
# The same patients, of whom a number is known instead.
STAYS = {**{name: kind for name, kind in SCHEMA.items() if name != "y"}, "stay": "number"}
DAYS, DEVIATION = 10.0, 3.0
WARDS = np.array(["a", "b", "c"])
OF_WARD = np.array([-0.8, 0.0, 0.8])


def true_odds(age, lab, ward):
    """A curve, a threshold, and a value for each ward."""
    return -1.0 + 1.2 * np.sin(age / 15) + 1.0 * (np.nan_to_num(lab, nan=0.0) > 0.5) + OF_WARD[ward]


def draw_patients(count, seed, *, crossed=0.0):
    """Columns of so many patients; some lack `lab`. `crossed`: how far age and lab act together. `stay` is a number
    that follows from the log odds."""
    draw = np.random.default_rng(seed)
    age, lab = draw.uniform(20, 90, count).round(1), draw.normal(size=count).round(2)
    lab[draw.random(count) < 0.1] = np.nan
    ward = draw.integers(0, 3, count)
    odds = true_odds(age, lab, ward) + crossed * np.where((age > 55) == (lab > 0), 1.0, -1.0)
    return {
        "age": age,
        "lab": lab,
        "ward": WARDS[ward],
        "noise": draw.normal(size=count).round(2),
        "y": np.where(draw.random(count) < 1 / (1 + np.exp(-odds)), "yes", "no"),
        "odds": odds,
        "stay": (DAYS + DEVIATION * (odds + draw.normal(size=count))).round(2),
    }


def list_rows(columns, rows=None, schema=SCHEMA):
    """Patients as a hospital's table has them."""
    chosen = range(len(columns["y"])) if rows is None else rows
    return [
        {
            name: None
            if isinstance(columns[name][at], float) and np.isnan(columns[name][at])
            else columns[name][at].item()
            if hasattr(columns[name][at], "item")
            else columns[name][at]
            for name in schema
        }
        for at in chosen
    ]


def open_house(columns, hospitals=3, seed=0, schema=SCHEMA):
    """A house over hospitals among which the patients are dealt."""
    dealt = np.random.default_rng(seed).integers(0, hospitals, len(columns["y"]))
    budget = cc.Policy(budget=cc.Budget("1000"))
    return cc.House(
        [
            cc.Site(
                f"h{place}",
                cc.Records.from_rows(
                    list_rows(columns, np.flatnonzero(dealt == place), schema), schema=schema
                ),
                budget,
            )
            for place in range(hospitals)
        ]
    )
