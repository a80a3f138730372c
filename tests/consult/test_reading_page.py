"""docs/reading-a-model.md shows what models say: its answers and pictures are those of the command that draws them."""

from __future__ import annotations

import sys
from pathlib import Path

from concilium.registry import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reading-a-model.md").read_text(encoding="utf-8")


def test_its_tree_and_answers_are_those_of_the_command(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    draw_models = __import__("draw_models")
    model = draw_models.MODELS["tree"]()
    assert f"```\n{model.explain(draw_models.PATIENT)}\n```" in PAGE
    assert f"```\n{model.explain({**draw_models.PATIENT, 'age': 20})}\n```" in PAGE
    picture = next(iter(model.pictures().values()))
    assert (ROOT / "docs" / "reading" / "tree.svg").read_text(encoding="utf-8") == picture
    assert set(METHODS) - {"describe"} <= set(draw_models.MODELS)  # a table of the population has no picture
    for name in draw_models.MODELS:
        assert f"(reading/{name}.svg)" in PAGE
        assert (ROOT / "docs" / "reading" / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
    del sys.modules["draw_models"]
