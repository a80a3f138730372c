"""docs/temporal-rules.md: what it shows runs, in order, and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import concilium as cc
from concilium.temporal.learning import RuleLearner

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "temporal-rules.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, flags=re.DOTALL)
    assert len(blocks) == 7
    for code, printed in blocks:
        exec(compile(code, "docs/temporal-rules.md", "exec"), names)
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == printed.splitlines()
    assert (tmp_path / "sepsis.html").read_text(encoding="utf-8").count("<svg") == 5
    assert (tmp_path / "rule.svg").read_text(encoding="utf-8").startswith("<svg")


def test_the_settings_are_those_of_the_learner():
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([\d., ]+) \|", PAGE, flags=re.MULTILINE)
    shown = {
        name.strip("`"): float(value)
        for names, values in rows
        for name, value in zip(names.split(", "), values.split(", "), strict=True)
    }
    assert shown == {field.name: field.default for field in fields(RuleLearner) if field.name != "space"}


def test_rules_on_the_page_read():
    rules = re.findall(r"^ ?[+]?\d\.\d+  (.*[<>].*)$", PAGE, flags=re.MULTILINE)
    assert len(rules) >= 20
    for rule in rules:
        assert str(cc.stl.parse(rule).canonical()) == rule


def test_links_lead_to_headings():
    for page, heading in re.findall(r"\]\(([\w-]+\.md)#([\w-]+)\)", PAGE):
        titles = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_what_learns_is_loaded_when_it_is_used():
    assert set(dir(cc.stl)) == set(cc.stl.__all__)
    for name in cc.stl.__all__:
        assert getattr(cc.stl, name) is not None
    later = ["numba", "concilium.temporal.learning", "concilium.protocol"]
    code = (
        "import concilium as cc, sys; cc.stl.parse('HR > 90'); "
        f"print([name for name in {later} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
