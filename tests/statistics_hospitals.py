"""Generated patients of three hospitals, in one data frame and as sites."""

from __future__ import annotations

import numpy as np
import pandas as pd

import concilium as cc

SCHEMA = {"age": "number", "pressure": "number", "sex": "code", "ward": "code", "death": "code"}


def draw_patients(count=600, seed=1):
    """Patients whose death, visits and cost follow from age, sex, ward and hospital; times are whole days."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": draw.normal(60, 12, count).round(1),
            "pressure": draw.normal(130, 20, count).round(1),
            "sex": draw.choice(["f", "m"], count),
            "ward": draw.choice(["a", "b", "c"], count),
            "hospital": draw.choice(["north", "south", "east"], count),
        }
    )
    eta = -5 + 0.05 * frame.age + 0.01 * frame.pressure + 0.5 * (frame.sex == "m")
    eta += 0.7 * (frame.ward == "c") + 0.5 * (frame.hospital == "south")
    frame["death"] = np.where(draw.random(count) < 1 / (1 + np.exp(-eta)), "yes", "no")
    frame["visits"] = draw.poisson(np.exp(-1 + 0.02 * frame.age + 0.3 * (frame.sex == "m")))
    frame["cost"] = 2 + 0.1 * frame.age - 0.3 * (frame.ward == "b") + draw.normal(0, 2, count)
    event, censored = draw.exponential(200 / np.exp(eta - eta.mean())), draw.uniform(0, 600, count)
    frame["days"] = np.floor(np.minimum(event, censored))
    frame["event"] = np.where(event <= censored, "yes", "no")
    return frame


def open_house(frame, schema=None, **options):
    """The patients at their hospitals; whole days are no ids."""
    policy = cc.Policy(budget=cc.Budget("100"), allow=("days",))
    sites = [
        cc.Site(name, cc.Records.read(part.drop(columns="hospital"), schema=schema), policy=policy)
        for name, part in frame.groupby("hospital")
    ]
    return cc.House(sites, **options)


def design(frame, *, hospitals=False):
    """The columns of age, pressure, sex and ward, in the order of terms: an intercept, or one per hospital, first."""
    columns = {
        "age": frame.age,
        "pressure": frame.pressure,
        "sex = m": (frame.sex == "m").astype(float),
        "ward = b": (frame.ward == "b").astype(float),
        "ward = c": (frame.ward == "c").astype(float),
    }
    if hospitals:
        first = {name: (frame.hospital == name).astype(float) for name in sorted(set(frame.hospital))}
    else:
        first = {"intercept": np.ones(len(frame))}
    return pd.DataFrame({**first, **columns})
