"""docs/rule-discovery.md: what it shows runs, in order, with hospitals of the default policy."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from concilium.cli.demo_patients import make_ward

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "rule-discovery.md").read_text(encoding="utf-8")
SEPSIS = REPOSITORY.parent / "shared" / "data" / "sepsis-challenge2019" / "challenge2019_sample2000.parquet"
NAMES = ["HR", "Temp", "Resp", "MAP"]


def write_real_wards():
    """A thousand stays of the sepsis challenge, dealt to three files."""
    columns = ["patient", "ICULOS", *NAMES, "SepsisLabel"]
    table = pd.read_parquet(SEPSIS, columns=columns).rename(
        columns={"ICULOS": "time", "SepsisLabel": "sepsis"}
    )
    places = table["patient"].rank(method="dense").astype(int)
    for place, name in enumerate(("north", "south", "west")):
        table[(places <= 1000) & (places % 3 == place)].to_csv(f"{name}.csv", index=False)


@pytest.mark.filterwarnings("ignore::concilium.records.series_description.OddValues")
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    """On real stays where they are at hand, on synthetic ones elsewhere."""
    monkeypatch.chdir(tmp_path)
    real = SEPSIS.exists()
    if real:
        write_real_wards()
    for seed, name in enumerate(("north", "south", "west")):
        if not real:
            make_ward(60, seed).to_csv(f"{name}.csv", index=False)
        rows = [f'{number},"G[0,5] HR >= {90 if number % 3 else 60}"' for number in range(1200)]
        Path(f"{name}-rules.csv").write_text("\n".join(["patient,rule", *rows]) + "\n")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for code in blocks:
        exec(compile(code, "docs/rule-discovery.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "G[0,5] HR >= 90 0." in printed
    assert "protected is each patient" in printed
    said = "left out: variables without a known clinical range, if there are any (give bins for them)"
    assert said in names["found"].text()
    assert set(names["found"].attributes_) <= {"HR", "Resp", "Temp", "MAP"}
    assert ElementTree.fromstring(names["picture"]).tag.endswith("svg")
    assert {len(course) for course in names["patient"].values()} == {6}  # a window has six hours
