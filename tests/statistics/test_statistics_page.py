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
    survival, lifelines, regression, statsmodels, by_horizon = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    # Without masks, which change no number and take most of the time of 67 hospitals.
    survival = survival.replace('("event", ', '("event", release="exact", ')
    names: dict[str, Any] = {}
    exec(compile(survival, "statistics.md", "exec"), names)
    assert names["hazards"].text() in PAGE
    exec(compile(lifelines, "statistics.md", "exec"), names)
    coefficients = [*names["peer"].params_.drop("num_age"), names["peer"].params_["num_age"]]
    assert names["hazards"].coef_ == pytest.approx(coefficients, abs=1e-7)
    assert len(names["table"].card.sites) == 67
    names = {}
    exec(compile(regression, "statistics.md", "exec"), names)
    assert names["model"].body.patients == 5735
    exec(compile(statsmodels, "statistics.md", "exec"), names)
    lines = {one.term: one for one in names["model"].list_terms()}
    for term, called in {"num_aps1": "num_aps1", "fac_swang1 = RHC": "fac_swang1[T.RHC]"}.items():
        assert lines[term].coefficient == pytest.approx(names["peer"].params[called], abs=1e-8)
        assert lines[term].error == pytest.approx(names["peer"].bse[called], abs=1e-8)
    names = {}
    exec(compile(by_horizon, "statistics.md", "exec"), names)
    assert names["tree"].attributes_ == ["fac_disease", "num_age"]
    assert "The risk is that by time = 24." in str(
        names["tree"].explain({"num_age": 71, "fac_disease": "renal"})
    )
