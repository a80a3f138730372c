"""What docs/temporal-logic.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import concilium as cc

PAGE = (Path(__file__).parents[2] / "docs" / "temporal-logic.md").read_text(encoding="utf-8")


def test_the_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)


def test_formulas_in_the_text_read():
    texts = [
        text
        for text in re.findall(r"`([^`\n|]+)`", PAGE)
        if re.match(r"[GF]\[[^ab]|\w+ [<>]=? [0-9]|\?|not \w", text)
    ]
    assert len(texts) >= 10
    for text in texts:
        cc.stl.parse(text)
