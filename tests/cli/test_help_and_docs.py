"""Help that is quick and complete, and pages that leave no command, option or study key out."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.registry import METHODS
from concilium.study import Study
from concilium.study.study import SECTIONS

REPOSITORY = Path(__file__).parents[2]
COMMANDS_PAGE = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
STUDIES_PAGE = (REPOSITORY / "docs" / "studies.md").read_text(encoding="utf-8")


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, (*path, name))


COMMANDS = dict(every_command(typer.main.get_command(app)))
LEAVES = [path for path, command in COMMANDS.items() if not hasattr(command, "commands")]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_and_option_is_on_the_page(path: tuple[str, ...]) -> None:
    assert f"concilium {' '.join(path)}" in COMMANDS_PAGE
    section = COMMANDS_PAGE.split(f"## concilium {path[0]}")[1].split("\n## ")[0]
    for parameter in COMMANDS[path].params:
        for option in parameter.opts:
            if option.startswith("--") and option != "--help":
                assert f"`{option}" in section, f"{' '.join(path)} {option}"


def test_the_page_names_no_option_that_does_not_exist() -> None:
    known = {
        option for command in COMMANDS.values() for parameter in command.params for option in parameter.opts
    }
    assert set(re.findall(r"--[a-z][a-z0-9-]*", COMMANDS_PAGE)) <= known | {"--help", "--version"}


@pytest.mark.parametrize("path", [*LEAVES, ("ledger",), ("studies",)], ids=" ".join)
def test_every_command_helps_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert re.search(r"Examples?:\n +(cat .* \| )?concilium " + path[0], result.stdout)
    _, _, below_usage = result.stdout.partition("\n")
    assert "..." not in below_usage


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_study_is_on_the_page(section: str) -> None:
    title = "## [[site]]" if section == "site" else f"## [{section}]"
    text = STUDIES_PAGE.split(f"{title}\n")[1].split("\n## ")[0]
    keys = SECTIONS[section]
    documented = set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE))
    if keys is not None:
        assert documented == {field.name for field in msgspec.structs.fields(keys)}


def test_methods_are_on_the_page() -> None:
    for method in METHODS:
        assert f'`"{method}"`' in STUDIES_PAGE


def test_the_studies_that_are_shown_are_studies(tmp_path: Path) -> None:
    whole, split = re.findall(r"```toml\n(.*?)```", STUDIES_PAGE, flags=re.DOTALL)
    (tmp_path / "study.toml").write_text(whole)
    assert Study.read(tmp_path / "study.toml").evaluate is not None
    listed = whole[whole.index("[sites]") : whole.index("[evaluate]")]
    (tmp_path / "study.toml").write_text(whole.replace(listed, split))
    assert Study.read(tmp_path / "study.toml").split is not None


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_every_example_is_a_study_or_a_policy(path: Path) -> None:
    if "study" in tomllib.loads(path.read_text(encoding="utf-8")):
        assert Study.read(path).open_method() is not None
    else:
        cc.Policy.read(path)


def test_the_version_is_the_package_s() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"concilium {cc.__version__}\n"


def test_a_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, found in (("concilium cons", {"consult", "console"}), ("concilium run --pl", {"--plan"})):
        asked = {
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
            "_CONCILIUM_COMPLETE": "complete_bash",
        }
        result = CliRunner().invoke(app, [], prog_name="concilium", env=asked)
        assert set(result.stdout.split()) == found


def test_no_command_is_help() -> None:
    result = CliRunner().invoke(app, [])
    assert "Usage: " in result.output
    for path in LEAVES:
        assert path[0] in result.output


def test_an_unknown_command_is_a_matter_of_usage() -> None:
    result = CliRunner().invoke(app, ["rum"])
    assert result.exit_code == 2
    assert "rum" in result.stderr


def test_help_loads_nothing_but_the_command_line() -> None:
    code = (
        "import sys\nfrom concilium.cli.main import main\n"
        "try:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('numpy', 'msgspec', 'rich', 'jinja2', 'pandas', 'duckdb') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
