"""The recipes of docs/statistics.md run, and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_recipes_run() -> None:
    pytest.importorskip("SurvSet")
    survival, regression, by_horizon = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    # Without masks, which change no number and take most of the time of 67 hospitals.
    survival = survival.replace('("event", ', '("event", release="exact", ')
    names: dict[str, Any] = {}
    exec(compile(survival, "statistics.md", "exec"), names)
    assert names["hazards"].text() in PAGE
    assert len(names["table"].card.sites) == 67
    names = {}
    exec(compile(regression, "statistics.md", "exec"), names)
    assert names["model"].body.patients == 5735
    names = {}
    exec(compile(by_horizon, "statistics.md", "exec"), names)
    assert names["tree"].attributes_ == ["fac_disease", "num_age"]
    assert "The risk is that by time = 24." in str(
        names["tree"].explain({"num_age": 71, "fac_disease": "renal"})
    )
