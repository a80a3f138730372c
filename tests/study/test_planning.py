"""A study's plan as a value: what it would ask and cost, and whether hospitals have room, with nothing asked."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import StudyError
from concilium.privacy.accounting import rho_for_epsilon
from small_study import HOSPITALS, SEVERAL, SPLIT, lay_out

PRIVATE = '[privacy]\nrelease = "private"\nepsilon = 1\n[values]\nsex = ["f", "m"]\ndeath = [0, 1]\n'
LEAVE_OUT = '[evaluate]\nleave_out = "site"\nsimulation = true\n'


def test_a_private_plan_is_exact_and_asks_nothing(tmp_path: Path) -> None:
    path = lay_out(tmp_path, SEVERAL + PRIVATE)
    before = sorted(tmp_path.rglob("*"))
    plan = cc.Study.read(path).plan()
    assert sorted(tmp_path.rglob("*")) == before
    assert plan.models == 1
    assert plan.total == sum(question.cost or 0 for question in plan.questions.questions)
    assert 0 < plan.total <= rho_for_epsilon("1", "1e-6")
    assert [(site.site, site.left, site.fits) for site in plan.sites] == [
        (name, 1, True) for name in HOSPITALS
    ]
    assert all(site.balance.source == "default" for site in plan.sites)
    assert plan.fits
    assert {kind for kind, _, _ in plan.rows} == {"counts"}
    shown = CliRunner().invoke(app, ["run", str(path), "--plan", "--json"]).stdout
    assert json.loads(shown) == plan.to_dict()


def test_what_a_ledger_has_left_is_what_must_do(tmp_path: Path) -> None:
    text = SEVERAL.replace('records = "south.csv"', 'records = "south.csv"\npolicy = "south.toml"') + PRIVATE
    (tmp_path / "south.toml").write_text('[budget]\ntotal = "1/30"\n')
    study = cc.Study.read(lay_out(tmp_path, text))
    plan = study.plan()
    south = next(site for site in plan.sites if site.site == "south")
    assert (south.left, south.currency, south.fits) == (Fraction(1, 30), "rho", True)
    study.run()
    again = study.plan()
    south = next(site for site in again.sites if site.site == "south")
    assert south.left is not None
    assert south.left < Fraction(1, 30)
    assert south.fits == again.fits == (again.total <= south.left)


def test_every_fold_that_is_charged_is_counted(tmp_path: Path) -> None:
    one = cc.Study.read(lay_out(tmp_path, SPLIT + PRIVATE)).plan()
    plan = cc.Study.read(lay_out(tmp_path, SPLIT + PRIVATE + LEAVE_OUT)).plan()
    assert plan.models == len(HOSPITALS)
    assert plan.total == 3 * one.total
    (each,) = plan.sites
    assert (each.site, each.left, each.cost, each.fits) == ("each site", 1, plan.total, True)


def test_what_has_no_bound_fits_everywhere(tmp_path: Path) -> None:
    text = SEVERAL.replace('records = "south.csv"', 'records = "south.csv"\npolicy = "south.toml"')
    (tmp_path / "south.toml").write_text('[budget]\ntotal = "1/1000000"\n')
    plan = cc.Study.read(lay_out(tmp_path, text)).plan()
    assert (plan.total, plan.fits) == (0, True)
    assert all(cost == "unlimited" for _, cost, _ in plan.rows)


def test_a_private_study_that_names_no_classes_plans_a_question_for_them(tmp_path: Path) -> None:
    study = cc.Study.read(lay_out(tmp_path, SPLIT + PRIVATE.replace("death = [0, 1]\n", "")))
    stated = cc.Study.read(lay_out(tmp_path, SPLIT + PRIVATE)).plan()
    first, *others = study.plan().questions.questions
    assert first.note.startswith("which classes death has, among 0, 1; ")
    assert [one.note for one in others] == [one.note for one in stated.questions.questions]
    assert study.plan().total <= stated.total * Fraction(101, 100)


def test_a_plan_names_the_columns_that_are_still_to_be_stated(tmp_path: Path) -> None:
    text = SEVERAL.replace("target", "query = \"smoker = 'yes' and age > 30\"\ntarget") + PRIVATE
    study = cc.Study.read(lay_out(tmp_path, text))
    assert study.plan().unstated == ("smoker",)
    shown = CliRunner().invoke(app, ["run", str(study.path), "--plan"]).stdout
    assert '\'smoker\' is not stated: write smoker = "number" or smoker = "code" under [schema]' in " ".join(
        shown.split()
    )
    with pytest.raises(StudyError, match="'smoker' is not stated"):
        study.run()
    stated = cc.Study.read(lay_out(tmp_path, text + '[schema]\nsmoker = "code"\n'))
    assert stated.plan().unstated == ()
    stated.run()


def test_what_a_private_study_lists_is_stated_and_its_ledgers_go_on(tmp_path: Path) -> None:
    """A study without secrets, a private one and again the first, all on the same books."""
    plain = lay_out(tmp_path, SEVERAL)
    cc.Study.read(plain).run()
    study = cc.Study.read(lay_out(tmp_path, SEVERAL + PRIVATE))
    assert study.reading == {"age": "number", "sex": "code", "death": "code"}
    study.run()
    cc.Study.read(lay_out(tmp_path, SEVERAL)).run()


def test_a_plan_names_what_a_policy_withholds_and_which_houses_it_pins(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL + PRIVATE)
    study.write_text(
        study.read_text().replace('records = "north.csv"', 'records = "north.csv"\npolicy = "north.toml"')
    )
    (tmp_path / "north.toml").write_text(
        '[release]\nwithhold = ["sex"]\n[houses]\nnetwork = "ABCD-EFGH-ABCD-EFGH-ABCD-EFGH-ABCD-EFGH"\n'
    )
    plan = cc.Study.read(study).plan()
    north = next(site for site in plan.sites if site.site == "north")
    assert north.forbidden == (
        "its policy withholds 'sex'",
        "its policy pins the houses that may ask, and [house] of the study names no identity",
    )
    assert not plan.fits
