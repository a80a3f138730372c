"""Where a release shows sums over sites alone, an evaluation shows no figure of a single site, and says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.evaluation.leave_out import measure_model
from concilium.evaluation.summary import summarise
from concilium.study.evaluating import hold_back, widen
from concilium.study.sources import read_tables, read_test_file
from small_study import HOSPITALS, SPLIT, lay_out, make_patients, write_csv

STATED = '[values]\nsex = ["f", "m"]\nsmoker = ["no", "yes"]\ndeath = [0, 1]\n'
MASKED = '[privacy]\nrelease = "masked"\n'
PRIVATE = f'[privacy]\nrelease = "private"\nepsilon = 5\n{STATED}'
HOLDOUT, FILE = "[evaluate]\nholdout = 0.3\nsimulation = true\n", '[evaluate]\nfile = "new.csv"\n'


def measure_each(study: cc.Study, model: Any) -> set[float]:
    """How well risks come true at each single site: sums of squares and slopes, which are hardly any other figure."""
    tables = read_tables(study)
    patients = widen({**hold_back(study, tables)[1], **read_test_file(study)}, tables.values())
    found = summarise([measure_model(model, 0.0, patients, classes=[0, 1])], 1)
    return set(list_fractions([row["calibration"] for row in found["sites"].values()]))


def list_fractions(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from list_fractions(one)
    elif isinstance(value, float) and 0 < abs(value) < 1:
        yield value


def name_places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where in a JSON value a hospital is named."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from name_places(one, (*path, key))
            if key in HOSPITALS:
                yield (*path, key)
    elif isinstance(value, list):
        for one in value:
            yield from name_places(one, path)
    elif value in HOSPITALS:
        yield path


@pytest.mark.parametrize("method", ["tree", "naive-bayes", "rulefit", "voting-trees"])
@pytest.mark.parametrize("privacy", [MASKED, PRIVATE], ids=["masked", "private"])
@pytest.mark.parametrize("evaluate", [HOLDOUT, FILE], ids=["holdout", "file"])
def test_no_figure_of_a_single_site_comes_out(
    tmp_path: Path, method: str, privacy: str, evaluate: str
) -> None:
    if (method, privacy) == ("voting-trees", PRIVATE):
        pytest.skip("voting trees are exact or masked")
    text = SPLIT.replace('method = "tree"', f'method = "{method}"\npositive = 1').replace(
        "[tree]\nmax_depth = 3\n", ""
    )
    path = lay_out(tmp_path, text + privacy + evaluate)
    write_csv(tmp_path / "new.csv", make_patients(90, seed=8))
    shown = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "out")])
    assert shown.exit_code == 0, shown.output
    files = {name: (tmp_path / "out" / name).read_text() for name in ("metrics.json", "card.json")}
    metrics = json.loads(files["metrics.json"])
    single = measure_each(cc.Study.read(path), cc.load(tmp_path / "out" / "model.json"))
    assert len(single) >= len(HOSPITALS)
    for text in files.values():
        assert not single & set(list_fractions(json.loads(text)))
    assert not list(name_places(metrics))
    report = (tmp_path / "out" / "report.html").read_text()
    performance = re.search(r"<h2>Performance</h2>(.*?)<h2>Who took part", report, re.DOTALL)
    assert performance is not None
    for name in HOSPITALS:
        assert f">{name}<" not in performance[1]
        assert not re.search(rf"^\W*{name}\b", shown.output, re.MULTILINE)
    # The figures over all sites are there, and what they are stands beside them, wherever they are shown.
    assert metrics["accuracy"] > 0
    for place in (metrics["evaluation"], performance[1], shown.output):
        assert "figures of single sites are withheld" in " ".join(place.split())
        assert ("no ledger was charged" if privacy is MASKED else "not covered by epsilon") in " ".join(
            place.split()
        )


def test_folds_of_a_private_study_say_what_they_took_and_no_figure(tmp_path: Path) -> None:
    path = lay_out(
        tmp_path,
        SPLIT + PRIVATE.replace("= 5", "= 1") + '[evaluate]\nleave_out = "site"\nsimulation = true\n',
    )
    rows = make_patients()
    write_csv(tmp_path / "all.csv", [{**row, "hospital": f"h{place % 4}"} for place, row in enumerate(rows)])
    metrics = cc.Study.read(path).run(tmp_path / "out").metrics
    assert len(metrics["folds"]) == 4
    assert all(set(fold) == {"left_out", "rounds", "bytes", "seconds"} for fold in metrics["folds"])
    assert metrics["sites"] == {}


def test_an_exact_study_shows_every_site(tmp_path: Path) -> None:
    """What the house sees of each site anyway; and that the test above could find figures of single sites."""
    path = lay_out(tmp_path, SPLIT + HOLDOUT)
    results = cc.Study.read(path).run(tmp_path / "out")
    assert sorted(results.metrics["sites"]) == sorted(HOSPITALS)
    single = measure_each(cc.Study.read(path), results.model)
    assert single <= set(list_fractions(results.metrics))
    assert "withheld" not in results.metrics["evaluation"]
