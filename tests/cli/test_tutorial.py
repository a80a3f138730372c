"""docs/tutorial.md, walked as it is printed: its files are written, its commands run in order, and what it shows is in
what they say. A line `...` stands for lines that are not shown. After it docs/asking.md, which asks its departments."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from concilium.cli.main import app

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [(DOCS / name).read_text(encoding="utf-8") for name in ("tutorial.md", "asking.md")]
BLOCKS = re.findall(r"```(toml|console)\n(.*?)```", "\n".join(PAGES), flags=re.DOTALL)


def find_lines(text: str) -> list[str]:
    """The lines that say something, blanks as one."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def is_shown(shown: list[str], said: list[str]) -> str | None:
    """The first line shown that is not there: at once after the one before it, or after `...` anywhere later."""
    place, anywhere = 0, False
    for line in shown:
        if line == "...":
            anywhere = True
            continue
        if anywhere:
            while place < len(said) and said[place] != line:
                place += 1
        if place >= len(said) or said[place] != line:
            return line
        place, anywhere = place + 1, False
    return None if anywhere or place == len(said) else "(the end)"


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    if words[0] != "concilium":
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout
    result = CliRunner().invoke(app, words[1:])
    assert "Traceback" not in result.output
    assert result.exit_code == (2 if "does NOT fit" in result.stdout else 0), result.output
    return result.stdout


def test_the_tutorial_is_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path
    monkeypatch.chdir(folder)
    commands = 0
    for kind, block in BLOCKS:
        if kind == "toml":
            first, _, content = block.partition("\n")
            if first.startswith("# file: "):
                (folder / first.removeprefix("# file: ")).write_text(content, encoding="utf-8")
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            if command.startswith("cd "):
                folder /= command.removeprefix("cd ")
                monkeypatch.chdir(folder)
                continue
            said = run(command, folder)
            missing = is_shown(find_lines(shown), [line for line in find_lines(said) if set(line) != {"─"}])
            assert missing is None, f"$ {command}\nshows {missing!r}, and says\n{said}"
            commands += 1
    assert commands == 14
    assert (folder / "results" / "rulefit" / "report.html").exists()
    assert "adapted at lake" in (folder / "lake.html").read_text(encoding="utf-8")
