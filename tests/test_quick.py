"""`make quick` chooses tests for every package, by names that exist."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = runpy.run_path(str(ROOT / ".ci" / "quick.py"))
PACKAGES = sorted(path.parent.name for path in (ROOT / "src" / "concilium").glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_change_of_a_package_runs_its_tests(package, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert len(QUICK["choose_tests"]([f"src/concilium/{package}/some.py"])) > 1


def test_every_name_is_that_of_a_file_or_folder():
    places = [*QUICK["SLOW"], *(place for listed in QUICK["ELSEWHERE"].values() for place in listed)]
    assert not [place for place in places if not list(ROOT.glob(place))]


def test_what_tests_share_runs_the_tests_that_share_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "tests/contract" in QUICK["choose_tests"](["tests/contract/patients.py"])


def test_of_many_packages_those_tests_run_that_name_a_changed_module(monkeypatch):
    monkeypatch.chdir(ROOT)
    modules = ("rulefit/newton", "trees/pruning", "temporal/parsing", "privacy/shares")
    chosen = QUICK["choose_tests"]([f"src/concilium/{one}.py" for one in modules])
    assert {"tests/rulefit/test_newton.py", "tests/privacy/test_shares.py"} <= set(chosen)
    assert not [place for place in chosen if not place.endswith(".py")]
    assert not any((ROOT / place).match("tests/rulefit/test_rulefit_exports.py") for place in chosen)
