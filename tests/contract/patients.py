"""One small federation that every method of the closed list can learn from, made of what its parameters declare."""

from __future__ import annotations

import random

import concilium as cc
from concilium.closed_lists import METHODS, load

SITES = ("north", "south", "east", "west")
BINS = {"age": [30.0, 45.0, 60.0, 75.0], "pressure": [100.0, 120.0, 140.0]}
VALUES = {"sex": ["f", "m"], "ward": ["a", "b", "c"], "y": ["no", "yes"]}
SCHEMA = {"age": "number", "pressure": "number", "sex": "code", "ward": "code", "y": "code"}
# What a study says, whatever the method; a method is given what it declares.
STUDY = {"target": "y", "positive": "yes", "bins": BINS, "values": VALUES, "epsilon": 4.0}


def make_rows(count, seed):
    """Patients whose outcome follows from age, ward and chance; some values are missing."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        age, ward = draw.uniform(20, 90), draw.choice("abc")
        risk = 0.1 + 0.5 * (age > 60) + 0.3 * (ward == "c")
        rows.append(
            {
                "age": None if draw.random() < 0.05 else round(age, 1),
                "pressure": round(draw.gauss(125, 20), 1),
                "sex": draw.choice(["f", "m"]),
                "ward": None if draw.random() < 0.05 else ward,
                "y": "yes" if draw.random() < risk else "no",
            }
        )
    return rows


ROWS = {name: make_rows(60 + 20 * place, place) for place, name in enumerate(SITES)}
EVERYONE = [row for rows in ROWS.values() for row in rows]


def open_site(name, rows, **options):
    return cc.Site(name, cc.Records.from_rows(rows, schema=SCHEMA), **options)


def open_sites(rows=None, **options):
    return [open_site(name, listed, **options) for name, listed in (rows or ROWS).items()]


def method_types():
    """Every method of the closed list, by name."""
    return {name: load(place) for name, place in METHODS.items()}


def make(method, release=None, **more):
    """A method with what it declares of the study, for one of its releases."""
    declared = method.parameters()
    given = {name: value for name, value in {**STUDY, **more}.items() if name in declared}
    # Statements of a private study mean nothing to the others.
    if release != "private":
        given.pop("values", None)
    return method(**given, **({} if release is None else {"release": release}))


def cases():
    """Every method with each of its releases."""
    return [(name, release) for name, method in method_types().items() for release in method.releases]


# What each method asks by itself, and what it asks only when told to: every kind of question is among it.
VARIANTS = [
    *((name, release, {}) for name, release in cases()),
    ("rulefit", "exact", {"solver": "fedda", "penalty": 0.01}),
    ("voting-trees", "exact", {"imbalance": 1, "max_depth": 2}),
]
