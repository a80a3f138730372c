"""The pictures and answers of docs/reading-a-model.md: one model of each method, of made-up patients.

    python experiments/draw_models.py docs/reading

writes a picture of each model to the folder and prints what each says of a patient. Patients come from a fixed seed;
models with noise come out a little different every time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import concilium as cc

HOSPITALS = ("harbour", "hill", "lake", "valley")
SCHEMA = {"age": "number", "sex": "code", "pain": "code", "gcs": "number", "death": "code"}
DICTIONARY = {
    "age": {"type": "number", "unit": "years"},
    "sex": {"type": "code", "values": {"0": "female", "1": "male"}},
    "pain": {"type": "code", "label": "chest pain", "values": {"1": "angina", "2": "other", "3": "none"}},
    "gcs": {"type": "number", "label": "Glasgow Coma Scale"},
    "death": {"type": "code", "values": {"0": "survived", "1": "died"}},
}
VALUES = {"sex": [0, 1], "pain": [1, 2, 3], "death": [0, 1]}
BINS = {"age": [40.0, 55.0, 70.0], "gcs": [6.0, 9.0, 13.0]}
PATIENT = {"age": 72, "sex": "male", "pain": "none", "gcs": 7}


def make_table(patients: int, seed: int, base: float) -> cc.Records:
    """Draw patients whose odds of death rise with age, with silent ischaemia and with coma."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(patients):
        age, gcs, pain = int(draw.integers(30, 90)), int(draw.integers(3, 16)), int(draw.integers(1, 4))
        odds = np.exp(base + 1.1 * (age >= 65) + 1.0 * (pain == 3) + 1.3 * (gcs < 9))
        death = int(draw.random() < odds / (1 + odds))
        rows.append({"age": age, "sex": int(draw.integers(0, 2)), "pain": pain, "gcs": gcs, "death": death})
    return cc.Records.from_rows(rows, schema=SCHEMA)


def make_courses(patients: int, seed: int) -> cc.Patients:
    """Draw stays of six hours; in septic ones heart rate and temperature rise."""
    draw = np.random.default_rng(seed)
    septic = draw.random(patients) < 0.4
    hours = np.arange(6)[:, None]
    outcome = np.zeros((6, patients))
    outcome[5] = septic
    heart = 80 + 6 * septic * hours + draw.normal(0, 5, (6, patients))
    temperature = 37 + 0.3 * septic * hours + draw.normal(0, 0.3, (6, patients))
    rows = [{"id": place, "sepsis": int(ill)} for place, ill in enumerate(septic)]
    return cc.Patients(
        table=cc.Records.from_rows(rows, schema={"id": "code", "sepsis": "code"}),
        series=cc.Series(
            {"HR": heart, "Temp": temperature, "sepsis": outcome}, step="1h", ids=range(patients)
        ),
        by="id",
    )


def open_house(base: float = -2.2, patients: int = 300) -> cc.House:
    budget = cc.Policy(budget=cc.Budget("100"))
    sites = [
        cc.Site(name, make_table(patients, seed, base), policy=budget) for seed, name in enumerate(HOSPITALS)
    ]
    return cc.House(sites, dictionary=cc.Dictionary.parse(DICTIONARY, "draw_models.py"))


def open_followed() -> cc.House:
    """The same patients, followed for 90 days at most: the sicker, the earlier their death."""
    draw = np.random.default_rng(7)
    sites = []
    for seed, name in enumerate(HOSPITALS):
        table = make_table(300, seed, -2.2)
        rows = [{one: table.values(one)[place] for one in table.names} for place in range(len(table))]
        for row in rows:
            odds = np.exp(-2.2 + 1.1 * (row["age"] >= 65) + 1.0 * (row["pain"] == 3) + 1.3 * (row["gcs"] < 9))
            event, end = draw.exponential(60 / odds), draw.uniform(20, 91)
            row |= {"days": float(int(min(event, end))), "death": int(event <= end)}
        sites.append(cc.Site(name, cc.Records.from_rows(rows, schema={**SCHEMA, "days": "number"})))
    return cc.House(sites, dictionary=cc.Dictionary.parse(DICTIONARY, "draw_models.py"))


def fit_rare() -> Any:
    return cc.VotingTrees("death", 1, max_depth=3).fit(open_house(-6.2, 1500))


def fit_courses(method: Callable[..., Any], **parameters: Any) -> Any:
    budget = cc.Policy(budget=cc.Budget("100"))
    sites = [cc.Site(name, make_courses(150, seed), policy=budget) for seed, name in enumerate(HOSPITALS)]
    bins = {"HR": [70.0, 80.0, 90.0, 100.0, 110.0], "Temp": [36.5, 37.5, 38.0, 38.5]}
    return method(bins=bins, **parameters).fit(cc.House(sites))


MODELS: dict[str, Callable[[], Any]] = {
    "tree": lambda: cc.DecisionTree("death", query="age >= 35", max_depth=3).fit(open_house()),
    "private-tree": lambda: cc.DecisionTree(
        "death", release="private", epsilon=1.0, values=VALUES, bins=BINS
    ).fit(open_house()),
    "voting-trees": fit_rare,
    "naive-bayes": lambda: cc.NaiveBayes("death").fit(open_house()),
    "rulefit": lambda: cc.RuleFit("death", 1, trees=100, release="exact").fit(open_house()),
    "shapes": lambda: cc.ShapeModel("death", 1).fit(open_house()),
    "consultation": lambda: cc.Consultation("death").fit(open_house()),
    "regression": lambda: cc.Regression("death", positive=1, release="exact").fit(open_house()),
    "cox": lambda: cc.CoxRegression("death", "days", positive=1, release="exact").fit(open_followed()),
    "survival-curve": lambda: cc.SurvivalCurve("death", "days", positive=1, by="pain", release="exact").fit(
        open_followed()
    ),
    "discovery": lambda: fit_courses(
        cc.RuleDiscovery, outcome="sepsis", window="3h", prevalence=0.2, limits=1, most_rules=10, epsilon=8.0
    ),
    "experts": lambda: fit_courses(
        cc.Experts,
        target="sepsis",
        epsilon=8.0,
        experts=400,
        units=2,
        epochs=5,
        lead="2h",
        carry="3h",
        every="1h",
        public=make_courses(200, 99).series,
    ),
}
COURSE = {"HR": [82, 88, 93, 99, 104, 110], "Temp": [37.1, 37.4, 37.8, 38.0, 38.3, 38.6]}


def draw_all(names: list[str] | None = None) -> Iterator[tuple[str, str, str]]:
    """For each model its name, its first picture and what it says of a patient."""
    for name in names or MODELS:
        model = MODELS[name]()
        picture = next(iter(model.pictures().values()))
        yield name, picture, str(model.explain(COURSE if model.reads_courses else PATIENT))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for name, picture, said in draw_all():
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
        print(f"## {name}\n{said}\n")


if __name__ == "__main__":
    main()
