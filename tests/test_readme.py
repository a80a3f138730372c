"""The README: short enough to read, its example and that of notebooks run, links lead somewhere."""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from concilium.cli.main import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")})


def test_it_is_short():
    assert len(README.split()) < 1200


def test_its_example_and_that_of_notebooks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dice = random.Random(1)
    for name in ("north", "south", "west"):
        ages = [dice.randint(18, 95) for _ in range(200)]
        rows = [f"{age},{dice.choice('fm')},{'ny'[dice.random() < age / 100]}" for age in ages]
        Path(f"{name}.csv").write_text("age,sex,death\n" + "\n".join(rows) + "\n")
    Path("policy.toml").write_text("[release]\nminimum_patients = 5\n")
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    said = capsys.readouterr().out
    assert "├─ age < " in said  # nothing was stated, and it learns from numbers
    assert "death = " in said
    assert "age" in names["rules"].attributes_
    assert Path("tree.json").exists()
    (command,) = re.findall(r"^    concilium (ask .*?) #", README, re.M)
    tables = sorted(path.name for path in Path().glob("*.csv"))
    asked = CliRunner().invoke(app, shlex.split(command.replace("*.csv", " ".join(tables))))
    assert "Patients like this one: age 58 to below 72, sex f; 50 patients." in asked.output, asked.output
    page = (ROOT / "docs" / "notebooks.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(block, "notebooks.md", "exec"), names)
    assert capsys.readouterr().out.startswith("[0.")
    assert {"age", "death"} <= {*names["patients"].columns}


def list_anchors(page: Path) -> set[str]:
    """What links to headings of a page may end in."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if not link.startswith(("http:", "https:", "mailto:")):
            found = page.parent / link if link else page
            assert found.exists(), link
            assert not anchor or anchor in list_anchors(found), f"{link}#{anchor}"


def test_the_navigation_of_the_site_leads_somewhere():
    listed = re.findall(r"^ +- (?:Start: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if "docs" in page.parts}
    made = {"index.md", "contributing.md", "changes.md"}
    assert {one for one in listed if not one.startswith("reference/")} - made <= pages
    assert {"clinicians.md", "stewards.md", "scientists.md", "auditors.md"} <= {*listed}
    assert len(listed) == len(set(listed))
