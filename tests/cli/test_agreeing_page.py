"""docs/agreeing.md: its study, its policy and its commands do what the page says, and its page is the one printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from concilium.cli.main import app
from concilium.ledger.ledger import Ledger
from concilium.privacy.identity import Identity
from small_study import HOSPITALS, lay_out

PAGE = (Path(__file__).parents[2] / "docs" / "agreeing.md").read_text(encoding="utf-8")


def call(folder: Path, command: str) -> Any:
    arguments = shlex.split(command, comments=True)
    assert arguments[0] == "concilium"
    return CliRunner().invoke(app, arguments[1:])


def without_chance(text: str) -> str:
    """Without what differs from run to run: ids, fingerprints and dates."""
    text = re.sub(r"\b([A-Z2-7]{4}-){7}[A-Z2-7]{4}\b", "FINGERPRINT", text)
    text = re.sub(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{12}\b", "ID", text)
    return re.sub(r"\b\d{4}-\d{2}-\d{2}\b", "DATE", text)


def test_the_example_is_as_shown(tmp_path: Path, monkeypatch: Any) -> None:
    policy, study = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    lay_out(tmp_path, study)
    monkeypatch.chdir(tmp_path)
    fingerprint = Identity.at("network.identity").fingerprint
    for name in HOSPITALS:
        (tmp_path / f"{name}.toml").write_text(re.sub('network = ".*"', f'network = "{fingerprint}"', policy))

    propose, resume, _ = re.findall(r"^    (concilium run .*)$", PAGE, flags=re.MULTILINE)
    assert "waits for north, south and coast" in call(tmp_path, propose).stderr
    with Ledger.open_readonly("north.ledger") as ledger:
        (record,) = ledger.studies.list()
    show = re.search(r"`(concilium studies show [^`]*)`", PAGE)
    assert show is not None
    printed = call(tmp_path, show[1].replace("ID", record.id[:6])).stdout
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert without_chance(printed).rstrip() == without_chance(shown).rstrip()

    agree, refuse, end = re.findall(r"^    (concilium studies .*)$", PAGE, flags=re.MULTILINE)
    assert (refuse.split()[2], end.split()[2]) == ("refuse", "end")
    for name in ("south", "coast"):
        done = call(tmp_path, agree.replace("north", name).replace("3f2a9c", record.id[:6]))
        assert done.exit_code == 0, done.output
    (python,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(f"{record.id[:12]} waiting ")
    done = call(tmp_path, resume)
    assert done.exit_code == 0, done.output
    assert call(tmp_path, end.replace("3f2a9c", record.id[:6])).exit_code == 0
