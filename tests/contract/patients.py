"""One small federation that every method of the closed list can learn from, made of what its parameters declare."""

from __future__ import annotations

import copy
import random

import numpy as np

import concilium as cc
from concilium.evaluation.donors import OwnModels
from concilium.models.validation import Validation
from concilium.protocol.cohort import View
from concilium.registry import METHODS, PROPOSED, load
from concilium.temporal.rule_discovery import TRUST

SITES = ("north", "south", "east", "west")
BINS = {"age": [30.0, 45.0, 60.0, 75.0], "pressure": [100.0, 120.0, 140.0]}
VALUES = {"sex": ["f", "m"], "ward": ["a", "b", "c"], "y": ["no", "yes"]}
SCHEMA = {"age": "number", "pressure": "number", "sex": "code", "ward": "code", "y": "code"}
# What a study says, whatever the method; a method is given what it declares.
STUDY = {"target": "y", "positive": "yes", "bins": BINS, "values": VALUES, "epsilon": 4.0}
# Any number above zero can be a time. And for methods that learn from rules of patients (those of `list_rules`).
STUDY |= {"time": "pressure", "outcome": "y", "prevalence": 0.5, "limits": 1, "most_rules": 5, "horizon": 1}
# And for what hands on the codes of patients (those of `list_codes`).
STUDY |= {"sensitive": ["042", "303", "304", "305"], "hidden": ["571"], "max_events": 3, "block_size": 2}
# And for those that learn from series: a few small networks, and public stays for a student to learn from.
STUDY |= {"experts": 60, "units": 2, "epochs": 3, "lead": "2h", "carry": "3h", "every": "1h"}
BUDGET = cc.Policy(budget=cc.Budget("20"))


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


def list_rules(row):
    """The rules of a patient, which follow from the row as its series of one step would have them."""
    rules = []
    for name, edges in BINS.items():
        if name in row and row[name] is not None:
            edge = edges[len(edges) // 2]
            rules.append(f"{name} >= {edge}" if row[name] >= edge else f"{name} < {edge}")
    return [*rules, "G pressure >= 100"]  # which is common to all


def list_codes(row):
    """The dated codes of a patient, which follow from the row: nobody with two ills has no code."""
    codes = ["571.2", "303.9"] if row.get("ward") == "c" else ["250.00"] if row.get("ward") else []
    return [(day, code) for day, code in enumerate([*codes, *(["428"] if row.get("y") == "yes" else [])])]


def make_series(rows, names, target, positive, ids=None):
    """Courses of three steps, the same in all of them, but that the outcome is there in the last one only."""

    def measure(value):
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if plain and abs(value) < 1e30 else np.nan

    courses = {name: np.tile([measure(row.get(name)) for row in rows], (3, 1)) for name in names}
    outcome = np.zeros((3, len(rows)))
    outcome[2] = [row.get(target) == positive for row in rows]
    return cc.Series({**courses, target: outcome}, ids=ids)


HELD = {}


def hold(rows, schema=SCHEMA):
    """Patients with a table, and with the rules and series of the same patients. They never change: whoever asks for
    the same ones again is given them."""
    key = repr((rows, schema))
    if key not in HELD:
        HELD[key] = join(rows, schema)
    return HELD[key]


def join(rows, schema):
    table = cc.Records.from_rows([{**row, "id": place} for place, row in enumerate(rows)], schema=schema)
    if not rows:
        return table
    ids = range(len(rows))
    series = make_series(rows, BINS, "y", "yes", ids)
    codes = cc.Sequences(map(list_codes, rows), ids)
    rules = cc.RuleSets(map(list_rules, rows), ids)
    return cc.Patients(table=table, rules=rules, series=series, codes=codes, by="id")


def look_at(rows, policy=None, schema=SCHEMA):
    """The same patients as questions see them."""
    held = hold(rows, schema)
    return View(held.table, policy or cc.Policy(), by="id", parts=held.parts)


def open_site(name, rows, **options):
    return cc.Site(name, hold(rows), **{"policy": BUDGET, "division_key": name.encode(), **options})


def open_sites(rows=None, **options):
    return [open_site(name, listed, **options) for name, listed in (rows or ROWS).items()]


def method_types():
    """Every method of the closed list, by name."""
    return {name: load(place) for name, place in METHODS.items()}


def proposed_types():
    """These, and what hands on entries of patients."""
    return {name: load(place) for name, place in PROPOSED.items()}


MODELS = {}


def learn_tree(bins, values, positive):
    """A private model of what a study states, for whatever takes one that exists; learned once."""
    key = repr((bins, values, positive))
    if key not in MODELS:
        draw = random.Random(key)
        stated = {**{name: (0.0, *edges) for name, edges in bins.items()}, **values}
        rows = [{name: draw.choice(listed) for name, listed in stated.items()} for _ in range(90)]
        schema = {**dict.fromkeys(bins, "number"), **dict.fromkeys(values, "code")}
        sites = [
            cc.Site(name, cc.Records.from_rows(rows[place::3], schema=schema), BUDGET)
            for place, name in enumerate(SITES[:3])
        ]
        said = {"bins": bins, "values": values, "positive": positive}
        MODELS[key] = cc.DecisionTree("y", release="private", epsilon=8, max_depth=2, **said).fit(sites)
    return MODELS[key]


def make(method, release=None, **more):
    """A method with what it declares of the study, for one of its releases."""
    if method is Validation:
        model = copy.copy(learn_tree(*({**STUDY, **more}[name] for name in ("bins", "values", "positive"))))
        vars(model)["query"] = more.get("query", "")
        return Validation.of(model, release=release, epsilon=4.0 if release == "private" else None)
    if method is OwnModels:
        study, noisy = {**STUDY, **more}, {"epsilon": 4.0, "blocks": 2} if release == "noised" else {}
        names = sorted({*study["bins"], *study["values"]} - {"y"})
        said = {"bins": study["bins"], "attributes": names, "query": more.get("query", ""), "max_depth": 1}
        return OwnModels.of(cc.DecisionTree("y", **said), positive=study["positive"], **noisy)
    declared = method.parameters()
    given = {name: value for name, value in {**STUDY, **more}.items() if name in declared}
    # Statements of a private study mean nothing to the others.
    if release != "private":
        given.pop("values", None)
    if "public" in declared:
        stays = 1 if "answers" in more else 60  # of one stay, or to teach a student
        names = given.get("bins", BINS)
        rows = [{**dict.fromkeys(names, row["pressure"] / 50), **row} for row in make_rows(stays, 99)]
        given["public"] = make_series(rows, names, "y", "yes")
        if stays > 1 and "epsilon" not in more:
            given["epsilon"] = (
                8.0  # some 150 patients here have the outcome, and less would teach a student noise
            )
    if release is not None and "release" in declared:
        given["release"] = release
    elif release is not None and "trust" in declared:
        given["trust"] = next(trust for trust, way_out in TRUST.items() if way_out == release)
        # So few patients need that, or chance would decide now and then what is found.
        enough = {"local": {"prevalence": 0.1, "epsilon": 12.0}, "exact": {"epsilon": 8.0}}.get(release, {})
        given |= {name: value for name, value in enough.items() if name not in more}
    return method(**given)


def write_parameters(name, release, **more):
    """The parameters of a study of this method, as its terms have them."""
    return make(proposed_types()[name], release, **more).draft().parameters


def cases():
    """Every method with each of its releases."""
    return [(name, release) for name, method in method_types().items() for release in method.releases]


# What each method asks by itself, and what it asks only when told to: every kind of question is among it.
VARIANTS = [
    *((name, release, {}) for name, release in cases()),
    ("rulefit", "exact", {"solver": "fedda", "penalty": 0.01}),
    ("rulefit", "masked", {"cutoffs": 1, "noise": "laplace"}),
    *(("regression", release, {"by_hospital": True}) for release in ("exact", "masked")),
    ("naive-bayes", "private", {"bins": {}, "values": {"y": ["no", "yes"]}, "epsilon": 8.0}),
    ("voting-trees", "exact", {"imbalance": 1, "max_depth": 2}),
    ("discovery", "private", {"window": "3h", "limits": 2, "epsilon": 20.0}),
    # Noise never hides all rules here: what they say of the outcome is asked of found ones only.
    ("discovery", "local", {"window": "3h", "prevalence": 0.03, "epsilon": 16.0}),
    ("code-counts", "noised", {}),
    ("code-sharing", "shared", {}),
    ("experts", "private", {"answers": "step", "epsilon": 1.0}),
    *(("validation", release, {}) for release in Validation.releases),
    *(("own-models", release, {}) for release in OwnModels.releases),
]
