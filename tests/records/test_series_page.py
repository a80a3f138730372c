"""docs/series.md: what it shows runs, in order, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import concilium as cc
from concilium.records.series import Series

PAGE = (Path(__file__).parents[2] / "docs" / "series.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::concilium.records.series_description.OddValues")
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cc, "Series", Series, raising=False)
    for name, content in re.findall(r"`(\w+\.csv)`[^`]*```csv\n(.*?)```", PAGE, flags=re.DOTALL):
        (tmp_path / name).write_text(content)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, flags=re.DOTALL)
    assert len(blocks) >= 4
    for code, printed in blocks:
        exec(compile(code, "docs/series.md", "exec"), names)
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == printed.splitlines()
