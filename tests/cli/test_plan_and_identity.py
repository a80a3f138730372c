"""`run --plan` and `identity`: what a study would cost, and who a hospital is."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from concilium.cli.main import app
from concilium.ledger.ledger import Ledger
from concilium.privacy.accounting import rho_for_epsilon
from concilium.privacy.identity import Identity

STUDY = """
[study]
name = "falls"
method = "tree"
target = "fall"
[privacy]
release = "RELEASE"
epsilon = 1.0
[values]
fall = ["n", "y"]
sex = ["f", "m"]
[bins]
age = [60, 75]
[tree]
max_depth = 2
"""


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sites = ""
    for number, name in enumerate(("north", "south", "west")):
        rows = [f"{50 + i % 40},{'fm'[i % 2]},{'ny'[(i + number) % 3 == 0]}" for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("age,sex,fall\n" + "\n".join(rows) + "\n")
        (tmp_path / f"{name}.toml").write_text('[budget]\ntotal = "1/10"\n')
        sites += f'[[site]]\nname = "{name}"\nrecords = "{name}.csv"\none_row_per_patient = true\n'
        sites += f'policy = "{name}.toml"\nledger = "{name}.ledger"\n'
    for release in ("private", "masked", "exact"):
        (tmp_path / f"{release}.toml").write_text(STUDY.replace("RELEASE", release) + sites)
    return tmp_path


def test_a_plan_says_every_question_its_cost_and_what_is_left(folder: Path) -> None:
    result = ask("run", str(folder / "private.toml"), "--plan")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\ncounts ") == 3
    assert "epsilon = 1 at delta = 1e-6 for every patient" in result.stdout
    lines = [line.split("  ") for line in result.stdout.splitlines() if line.rstrip().endswith(" fits")]
    assert [[cell.strip() for cell in line if cell.strip()] for line in lines] == [
        [name, "all", "rho 0", "rho 0.1 (epsilon = 2.142)", "rho ~0.075644 (epsilon = 1.841)", "fits"]
        for name in ("north", "south", "west")
    ]
    assert not list(folder.glob("*.ledger"))


def test_a_plan_for_machines_is_exact_and_a_run_spends_no_more(folder: Path) -> None:
    planned = json.loads(ask("run", str(folder / "private.toml"), "--plan", "--json").stdout)
    total = Fraction(planned["total"])
    assert sum(Fraction(question["cost"]) for question in planned["questions"]) == total
    assert total <= rho_for_epsilon("1", "1e-6")
    result = ask("run", str(folder / "private.toml"), "--out", str(folder / "out"))
    assert result.exit_code == 0, result.output
    for name in ("north", "south", "west"):
        with Ledger.open_readonly(folder / f"{name}.ledger") as book:
            assert 0 < book.spent() <= rho_for_epsilon("1", "1e-6")
            assert book.verify() > 0
    again = ask("run", str(folder / "private.toml"), "--plan")
    assert "fits" in again.stdout


def test_a_plan_that_does_not_fit_is_said_and_the_run_refused_with_a_receipt(folder: Path) -> None:
    for name in ("north", "south", "west"):
        (folder / f"{name}.toml").write_text('[budget]\ntotal = "1/1000"\n')
    planned = ask("run", str(folder / "private.toml"), "--plan")
    assert (planned.stdout.count("does not fit"), planned.exit_code) == (3, 2)
    result = ask("run", str(folder / "private.toml"), "--out", str(folder / "out"))
    assert result.exit_code == 2
    assert "costs rho ~0.024356, and north has no room for that (rho 0.001 is left)" in result.stderr
    assert not list(folder.glob("*.ledger"))
    assert not (folder / "out").exists()


def test_a_plan_shows_the_month_beside_the_total(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concilium.ledger.chain.now", lambda: "2026-11-30T12:00:00.000000+00:00")
    (folder / "south.toml").write_text('[budget]\ntotal = "1/10"\nper_month = "1/30"\n')
    planned = ask("run", str(folder / "private.toml"), "--plan")
    assert planned.exit_code == 0, planned.output
    (month,) = [line.split() for line in planned.stdout.splitlines() if " 2026-11 " in line]
    assert (month[0], month[-1]) == ("south", "fits")
    assert ask("run", str(folder / "private.toml"), "--out", str(folder / "out")).exit_code == 0
    planned = ask("run", str(folder / "private.toml"), "--plan")
    assert planned.exit_code == 2
    (month,) = [line for line in planned.stdout.splitlines() if " 2026-11 " in line]
    assert month.rstrip().endswith("does not fit")
    south = json.loads(ask("run", str(folder / "private.toml"), "--plan", "--json").stdout)["sites"][1]
    assert Fraction(south["month"]["spent"]) == Fraction(south["spent"])
    assert Fraction(south["month"]["left"]) == Fraction(1, 30) - Fraction(south["spent"])
    assert (south["month"]["month"], south["fits"]) == ("2026-11", False)
    shown = ask("ledger", str(folder / "south.ledger")).stdout
    assert "in 2026-11 ~0.0243" in shown
    assert "of ~0.0333333 is spent" in shown


@pytest.mark.parametrize(
    ("policy", "release", "said"),
    [
        ('modes = ["exact"]', "private", "south will refuse: its policy releases nothing as 'private'"),
        ('kinds = ["tree.schema"]', "exact", "south will refuse: its policy answers no 'counts'"),
        ('kinds = ["tree.schema", "counts"]', "masked", "answers no 'mask.open'"),
    ],
)
def test_a_plan_names_what_a_policy_forbids(folder: Path, policy: str, release: str, said: str) -> None:
    (folder / "south.toml").write_text(f"[release]\n{policy}\n")
    planned = ask("run", str(folder / f"{release}.toml"), "--plan")
    assert planned.exit_code == 2
    assert said in planned.stdout
    assert json.loads(ask("run", str(folder / f"{release}.toml"), "--plan", "--json").stdout)["sites"][1][
        "forbidden"
    ]


def test_a_plan_says_that_hospitals_are_too_few_for_masks(folder: Path) -> None:
    (folder / "south.toml").write_text("[release]\ncolluders = 2\n")
    planned = ask("run", str(folder / "masked.toml"), "--plan")
    assert planned.exit_code == 2
    (said,) = [line for line in planned.stdout.splitlines() if "will refuse" in line]
    assert "with 2 tolerated colluders at least 4 are needed" in said
    result = ask("run", str(folder / "masked.toml"), "--out", str(folder / "out"))
    assert "at least 4 are needed" in result.stderr
    assert "nothing was asked" in result.stderr


def test_an_unlimited_budget_is_planned_and_shown_as_such(folder: Path) -> None:
    (folder / "south.toml").write_text('[budget]\ntotal = "unlimited"\n')
    planned = ask("run", str(folder / "private.toml"), "--plan")
    (south,) = [line for line in planned.stdout.splitlines() if line.startswith("south")]
    assert south.count("unlimited") == 2
    assert ask("run", str(folder / "private.toml"), "--out", str(folder / "out")).exit_code == 0
    assert "the budget is unlimited, as the policy says" in ask("ledger", str(folder / "south.ledger")).stdout
    card = json.loads((folder / "out" / "card.json").read_text())
    assert any(
        "an unlimited budget" in warning and warning.endswith(": south") for warning in card["warnings"]
    )


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_what_has_no_bound_is_planned_as_unlimited(folder: Path, release: str) -> None:
    result = ask("run", str(folder / f"{release}.toml"), "--plan")
    assert result.exit_code == 0, result.output
    assert f"{release} releases have no bound" in result.stdout


def test_without_a_place_for_results_nothing_runs(folder: Path) -> None:
    result = ask("run", str(folder / "exact.toml"))
    assert result.exit_code == 2
    assert "--out DIR" in result.stderr


def test_a_private_study_that_names_no_classes_pays_for_finding_them(folder: Path) -> None:
    text = (folder / "private.toml").read_text().replace('fall = ["n", "y"]', "")
    (folder / "unsaid.toml").write_text(text)
    planned = json.loads(ask("run", str(folder / "unsaid.toml"), "--plan", "--json").stdout)
    stated = json.loads(ask("run", str(folder / "private.toml"), "--plan", "--json").stdout)
    first, *others = planned["questions"]
    assert first["note"] == "which classes fall has, among 0, 1; no, yes; No, Yes and 6 more pairs"
    assert Fraction(first["cost"]) > 0
    assert [one["note"] for one in others] == [one["note"] for one in stated["questions"]]
    for one in (planned, stated):
        assert sum(Fraction(question["cost"]) for question in one["questions"]) == Fraction(one["total"])
    assert Fraction(planned["total"]) <= rho_for_epsilon("1", "1e-6")


def test_an_identity_is_made_once_and_shown_again(tmp_path: Path) -> None:
    file = tmp_path / "north.ledger.identity"
    first = ask("identity", str(file))
    assert first.exit_code == 0
    fingerprint = first.stdout.split()[0]
    assert first.stdout.endswith("(new)\n")
    assert ask("identity", str(file)).stdout == f"{fingerprint}\n"
    assert json.loads(ask("identity", str(file), "--json").stdout)["fingerprint"] == fingerprint
    assert Identity.load(file).fingerprint == fingerprint
    file.write_text("nonsense")
    result = ask("identity", str(file))
    assert result.exit_code == 2
    assert "not an identity" in result.stderr
