"""The page of threats names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("threats*.md"))]
COMMANDS = sorted({command for page in PAGES for command in re.findall(r"`pytest ([^`]*)`", page)})


def test_what_every_command_runs_is_there():
    for command in COMMANDS:
        check_command(command)


def check_command(command):
    places, _, chosen = command.partition(" -k ")
    words = chosen.strip('"').split(" or ")
    files = [
        file
        for place in places.split()
        for file in ([ROOT / place] if place.endswith(".py") else (ROOT / place).glob("test_*.py"))
    ]
    assert all(file.is_file() for file in files), command
    texts = [file.read_text(encoding="utf-8") for file in files]
    tests = [name for text in texts for name in re.findall(r"def (test_\w+)", text)]
    for word in words:  # of a test's name, or of what it is parametrised by
        assert any(word in name for name in tests) or any(word in text for text in texts), command


def test_the_page_names_them():
    assert len(COMMANDS) > 15
