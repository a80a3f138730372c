"""The page of threats names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = re.findall(r"`pytest ([^`]*)`", (ROOT / "docs" / "threats.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_runs_is_there(command):
    places, _, chosen = command.partition(" -k ")
    files = [
        file
        for place in places.split()
        for file in ([ROOT / place] if place.endswith(".py") else (ROOT / place).glob("test_*.py"))
    ]
    tests = [
        name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    ]
    assert [name for name in tests if chosen in name], command
    assert all(file.is_file() for file in files)


def test_the_page_names_them():
    assert len(COMMANDS) > 15
