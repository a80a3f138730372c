"""docs/shared-codes.md: what it shows runs, in order, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
PAGE = (Path(__file__).parents[2] / "docs" / "shared-codes.md").read_text(encoding="utf-8")


def test_the_page_runs(capsys):
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, flags=re.DOTALL)
    assert len(blocks) == 4
    for code, printed in blocks:
        exec(compile(code, "docs/shared-codes.md", "exec"), names)
        assert capsys.readouterr().out == printed
