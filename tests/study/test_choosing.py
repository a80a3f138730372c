"""The house chooses hospitals by what they declare, and by nothing that a patient could change."""

from __future__ import annotations

import warnings

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import StudyError
from contract.patients import ROWS
from contract.test_contract import write_table

STUDY = '[study]\nname = "ward"\nmethod = "tree"\ntarget = "y"\n'
DECLARED = {
    "north": 'declares = ["age", "sex", "ward"]\nsize = [100, 999]',
    "south": 'declares = ["age", "sex"]\nsize = [100, 999]',
    "east": 'declares = ["age", "sex", "ward"]\nsize = [10, 99]',
    "west": "",
}


def write_study(folder, choose, declared=DECLARED, *, records=True):
    sites = ""
    for name, text in declared.items():
        if records:
            write_table(folder / f"{name}.csv", ROWS[name], "records")
        sites += f'[[site]]\nname = "{name}"\n{text}\n' + (f'records = "{name}.csv"\n' if records else "")
    path = folder / "study.toml"
    path.write_text(f"{STUDY}[choose]\n{choose}\n{sites}")
    return path


@pytest.mark.parametrize(
    ("choose", "chosen"),
    [
        ("", ["north", "south", "east", "west"]),
        ('columns = ["ward"]', ["north", "east"]),
        ("least = 100", ["north", "south"]),
        ("most = 99", ["east"]),
        ("least = 5\nmost = 999", ["north", "south", "east"]),
        ('columns = ["ward", "sex"]\nleast = 100', ["north"]),
    ],
)
def test_those_take_part_who_declare_what_is_wanted(choose, chosen, tmp_path):
    study = cc.Study.read(write_study(tmp_path, choose))
    assert [one.name for one in study.hospitals] == chosen
    assert set(study.plan().passed_over) == set(DECLARED) - set(chosen)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        card = study.run().card
    assert [site.name for site in card.sites] == chosen
    assert any("not chosen: " in str(one.message) for one in said) == bool(choose)


def test_no_table_of_anybody_is_looked_at(tmp_path):
    path = write_study(tmp_path, "least = 100", records=True)
    (tmp_path / "east.csv").unlink()
    assert list(cc.Study.read(path).passed_over) == ["east", "west"]
    elsewhere = cc.Study.read(write_study(tmp_path, "least = 100", records=False), elsewhere=True)
    assert [one.name for one in elsewhere.hospitals] == ["north", "south"]


def test_the_plan_says_why(tmp_path):
    path = write_study(tmp_path, 'columns = ["ward"]\nleast = 100')
    said = CliRunner().invoke(app, ["run", str(path), "--plan"])
    assert said.exit_code == 0, said.output
    assert "south is not chosen: it declares no column 'ward'" in said.output
    assert "east is not chosen: it declares 10 to 99 patients, which may be fewer than 100" in said.output


@pytest.mark.parametrize(
    ("choose", "declared", "said"),
    [
        ("least = 5000", DECLARED, r"\[choose\] leaves no hospital: north declares 100 to 999 patients"),
        ("least = 0", DECLARED, "least"),
        ("size = 3", DECLARED, "size"),
        (
            "least = 1",
            {"north": "size = [99, 10]"},
            r"size must be a band such as \[100, 999\]; got \[99, 10\]",
        ),
        ("least = 1", {"north": "size = 50"}, "size"),
    ],
)
def test_a_choice_that_cannot_be_made_is_a_sentence(choose, declared, said, tmp_path):
    with pytest.raises(StudyError, match=said):
        cc.Study.read(write_study(tmp_path, choose, declared))
