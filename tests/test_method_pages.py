"""The first example on each method's page runs on plain files, and nothing has to be stated. Its model is as good as
scikit-learn's gradient boosting on the pooled rows, but for private ones, which noise keeps from it."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

import concilium as cc

DOCS = Path(__file__).parent.parent / "docs"
NAMES = ("north", "south", "west")
TARGETS = {
    "rulefit.md": ("mortality", (0, 1)),
    "voting-trees.md": ("bleeding", ("no", "yes")),
    "private-trees.md": ("died", ("no", "yes")),
}
EXAMPLES = {
    "../README.md": ("death", ("n", "y"), ["tree", "rules"]),
    "rulefit.md": (*TARGETS["rulefit.md"], ["model"]),
    "voting-trees.md": (*TARGETS["voting-trees.md"], ["model"]),
}


def find_first(page: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.S)
    assert found is not None
    return found[1]


def write_tables(
    folder: Path, target: str, classes: tuple[Any, Any], *, seed: int = 2, patients: int = 300
) -> None:
    """Plain tables: numbers, a code, a date, and the outcome."""
    draw = random.Random(seed)
    for name in NAMES:
        rows = [f"age,GCS,ISS,sex,admitted,{target}"]
        for _ in range(patients):
            age, gcs, iss = draw.randint(18, 95), draw.randint(3, 15), round(draw.expovariate(0.05), 1)
            positive = draw.random() < 0.06 + 0.25 * (age > 70) + 0.4 * (gcs < 6)
            day = f"2024-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}"
            rows.append(f"{age},{gcs},{iss},{draw.choice('fm')},{day},{classes[positive]}")
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("page", TARGETS)
def test_the_first_example_runs_on_plain_files(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path, *TARGETS[page])
    example = find_first(page, "python")
    assert "bins" not in example
    assert "values=" not in example
    names: dict[str, Any] = {}
    exec(compile(example, page, "exec"), names)
    assert "age" in names["model"].attributes_
    assert {site.name for site in names["model"].card.sites} == set(NAMES)


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_first_example_is_as_good_as_boosting(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, classes, models = EXAMPLES[page]
    (tmp_path / "others").mkdir()
    write_tables(tmp_path, target, classes)
    write_tables(tmp_path / "others", target, classes, seed=3, patients=2000)
    (tmp_path / "policy.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(find_first(page, "python"), page, "exec"), names)
    learned, others = (
        pd.concat([pd.read_csv(folder / f"{name}.csv") for name in NAMES])
        for folder in (tmp_path, tmp_path / "others")
    )
    coded = [
        frame.assign(sex=frame.sex == "f", admitted=pd.to_datetime(frame.admitted).dt.day_of_year).drop(
            columns=target
        )
        for frame in (learned, others)
    ]
    boosting = HistGradientBoostingClassifier(random_state=0).fit(coded[0], learned[target])
    positive = others[target] == classes[1]
    best = roc_auc_score(positive, boosting.predict_proba(coded[1])[:, 1])
    for name in models:
        risk = names[name].predict_proba(others.drop(columns=target))[:, 1]
        assert roc_auc_score(positive, risk) > best - 0.02, name


@pytest.mark.parametrize("page", ["rulefit.md", "voting-trees.md"])
def test_the_first_study_runs_on_plain_files(page: str, tmp_path: Path) -> None:
    write_tables(tmp_path, *TARGETS[page])
    sites = "".join(f'[[site]]\nname = "{name}"\nrecords = "{name}.csv"\n' for name in NAMES)
    study = tmp_path / "study.toml"
    study.write_text(find_first(page, "toml") + sites)
    results: Any = cc.Study.read(study).run(warn=lambda text: None)
    assert "GCS" in results.model.attributes_
    assert not [warning for warning in results.card.warnings if warning.startswith("left out")]


def test_rules_write_dates_as_dates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(4)
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        rows = ["admitted,age,died"]
        for _ in range(200):
            month = draw.randint(1, 12)
            died = draw.random() < 0.1 + 0.7 * (month > 6)
            rows.append(f"2024-{month:02d}-{draw.randint(1, 28):02d},{draw.randint(18, 95)},{int(died)}")
        Path(f"{name}.csv").write_text("\n".join(rows) + "\n")
    model = cc.RuleFit("died").fit({name: f"{name}.csv" for name in NAMES})
    assert re.search(r"admitted (<|>=) 2024-0[67]-\d\d", model.text())
    assert not re.search(r"73\d{4}", model.text())
    assert cc.load(_save(model)).text() == model.text()
    late, early = model.predict_proba(
        cc.Records.from_rows([{"admitted": f"2024-{month}-03", "age": 50} for month in ("10", "02")])
    )[:, 1]
    assert late > early + 0.3


def _save(model: Any) -> str:
    model.save("model.json")
    return "model.json"


@pytest.mark.parametrize("make", [cc.RuleFit, cc.DecisionTree, cc.NaiveBayes])
def test_whole_numbers_here_and_words_there_are_left_out(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path, "died", (0, 1))
    rows = [row.split(",") for row in Path("west.csv").read_text().splitlines()]
    for place, row in enumerate(rows[1:]):
        row[0] = ["young", "old"][place % 2]
    Path("west.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    model = make("died", release="exact").fit({name: f"{name}.csv" for name in NAMES})
    assert "age" not in model.attributes_
    assert "left out: age (a number at north, text at west, whose map can fix it)" in model.text()
