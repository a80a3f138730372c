"""`concilium check` and `concilium dictionary`: at the hospital, on its own table."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app

DICTIONARY = """
[dictionary.age]
unit = "years"
range = [0, 120]
[dictionary.sex]
values = { f = "female", m = "male" }
[dictionary.chol]
unit = "mg/dl"
range = [80, 700]
molar_mass = 386.65
[dictionary.ward]
type = "code"
[dictionary.hiv]
values = ["neg", "pos"]
[dictionary.disease]
values = [0, 1]
"""


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout


def write(folder: Path, **changes) -> Path:
    """Forty patients of whom nothing is odd, but for what is changed: a column by name, of the row's number."""
    columns = {
        "age": lambda i: 30 + i,
        "sex": lambda i: "fm"[i % 2],
        "chol": lambda i: 150 + 3 * i,
        "ward": lambda i: "abc"[i % 3],
        "hiv": lambda i: "pos" if i % 9 == 0 else "neg",
        "disease": lambda i: int(i % 4 == 0),
        **changes,
    }
    lines = [",".join(str(make(i)) for make in columns.values()) for i in range(40)]
    path = folder / "north.csv"
    path.write_text("\n".join([",".join(columns), *lines]))
    (folder / "heart.toml").write_text(DICTIONARY)
    return path


def find(folder, *options, code=2, **changes):
    """What is found, by column."""
    path = write(folder, **changes)
    plain = json.loads(
        run("check", path, "--dictionary", folder / "heart.toml", "--json", *options, code=code)
    )
    return {(one["level"], one["column"]): one["what"] for one in plain[0]["findings"]}


def test_a_table_that_fits_says_so(tmp_path):
    assert find(tmp_path, code=0) == {}
    text = run("check", tmp_path / "north.csv", "--dictionary", tmp_path / "heart.toml")
    assert text.startswith("north.csv: fits; 40 patients, 40 of them left by query and policy")


@pytest.mark.parametrize(
    ("column", "make", "level", "said"),
    [
        (
            "sex",
            lambda i: i % 2,
            "fault",
            "values that are not listed: '1' (20), '0' (20) and none of those listed",
        ),
        (
            "sex",
            lambda i: "x" if i == 3 else "f" if i % 2 else "m",
            "fault",
            "not listed: 'x' (1); listed are f, m",
        ),
        (
            "chol",
            lambda i: round(4 + i / 20, 2),
            "fault",
            'if this were mmol/l or g/l: say so in the map, unit = "mmol/l"',
        ),
        ("chol", lambda i: 1500 if i == 2 else 200 + i, "odd", "is not plausible for 1 patient (1500)"),
        (
            "chol",
            lambda i: "?" if i == 2 else 200 + i,
            "fault",
            "line 4 holds '?'; name it as missing under [map]",
        ),
        ("chol", lambda i: f'"{9 - i % 7},5"', "fault", "line 2 holds '9,5'; if commas are decimal here"),
        ("ward", lambda i: "a", "odd", "is the same for everyone (a)"),
        ("ward", lambda i: "", "fault", "is missing for everyone"),
        ("ward", lambda i: "ab"[i % 2] if i < 10 else "", "odd", "is missing for 75% of the patients"),
        ("ward", lambda i: f"w{i}", "fault", "does not exist for the study: identifies patients"),
        ("age", lambda i: "1.5x", "fault", "is a number by the dictionary, but line 2 holds '1.5x'"),
    ],
)
def test_what_is_wrong_with_a_column_is_said(tmp_path, column, make, level, said):
    found = find(tmp_path, code=2 if level == "fault" else 0, **{column: make})
    assert said in found[level, column]


def test_columns_that_are_absent_or_unknown_are_named(tmp_path):
    path = write(tmp_path)
    path.write_text(path.read_text().replace("chol", "chol_"))
    plain = json.loads(run("check", path, "--dictionary", tmp_path / "heart.toml", "--json", code=2))[0]
    assert [one["what"] for one in plain["findings"]] == [
        "is not in the table; did you mean 'chol_'? map it from a column",
        "not in the dictionary, and so no part of the study: chol_",
    ]


def test_rows_that_are_there_twice_are_counted(tmp_path):
    path = write(tmp_path)
    path.write_text(path.read_text() + "\n" + path.read_text().splitlines()[5])
    text = run("check", path, "--dictionary", tmp_path / "heart.toml")
    assert "check: 1 row says the same as an earlier one in every column" in text


def test_a_rule_that_concerns_nobody_is_said_with_what_the_column_holds(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("[constraints]\ntext = \"graph hiv { node p where p.hiv = 'positive' exists p; }\"\n")
    found = find(tmp_path, "--policy", policy, code=0)
    assert found["odd", None].startswith(
        "the policy's graph hiv concerns no patient of this table (hiv is neg, pos): is it written"
    )
    result = CliRunner().invoke(
        app, ["policy", "check", str(policy), "--records", str(tmp_path / "north.csv")]
    )
    assert "warning: graph hiv concerns no patient of this table (hiv is neg, pos)" in result.stderr
    policy.write_text(policy.read_text().replace("positive", "pos"))
    assert find(tmp_path, "--policy", policy, code=0) == {}


def test_a_query_that_leaves_nobody_is_a_fault(tmp_path):
    found = find(tmp_path, "--query", "age > 200", "--target", "disease")
    assert found["fault", None] == "the query leaves 0 patients, and the policy answers about 4 at least"
    plain = json.loads(
        run(
            "check",
            tmp_path / "north.csv",
            "--dictionary",
            tmp_path / "heart.toml",
            "--query",
            "age >= 50",
            "--json",
        )
    )
    assert plain[0]["selected"] == 20


def test_a_map_mends_it(tmp_path):
    sex = 'sex = { from = "sex", values = { 0 = "f", 1 = "m" } }'
    chol = 'chol = { from = "chol", unit = "mmol/l" }'
    (tmp_path / "north.map.toml").write_text(f"[map.columns]\n{sex}\n{chol}\n")
    changes = {"sex": lambda i: i % 2, "chol": lambda i: round(4 + i / 20, 2)}
    assert find(tmp_path, "--map", tmp_path / "north.map.toml", code=0, **changes) == {}


def test_the_page_shows_every_column_and_fetches_nothing(tmp_path):
    path = write(tmp_path, sex=lambda i: "<b>" if i == 1 else "f")
    page = tmp_path / "north.html"
    run("check", path, "--dictionary", tmp_path / "heart.toml", "--out", page, code=2)
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 6
    assert "<b>'" not in text
    assert "&lt;b&gt;" in text
    assert "src=" not in text


def test_a_study_file_checks_its_sites(tmp_path):
    write(tmp_path)
    (tmp_path / "south.csv").write_text((tmp_path / "north.csv").read_text().replace(",f,", ",w,"))
    study = tmp_path / "study.toml"
    study.write_text(
        '[study]\nname = "s"\nmethod = "tree"\ntarget = "disease"\n[dictionary]\nfile = "heart.toml"\n'
        + "".join(f'[[site]]\nname = "{n}"\nrecords = "{n}.csv"\n' for n in ("north", "south"))
    )
    assert [one["fits"] for one in json.loads(run("check", study, "--json", code=2))] == [True, False]
    assert run("check", study, "--site", "north").startswith("north: fits")
    result = CliRunner().invoke(app, ["check", str(study), "--site", "nort"])
    assert (result.exit_code, result.stderr) == (
        2,
        f"{study}: there is no site 'nort'; did you mean 'north'?\n",
    )


def test_a_draft_is_a_dictionary_that_the_table_fits(tmp_path):
    path = write(tmp_path, mrn=lambda i: f"p{i}", ward=lambda i: "rare" if i == 7 else "ab"[i % 2])
    out = tmp_path / "draft.toml"
    run("dictionary", path, "--out", out)
    draft = cc.Dictionary.read(out)
    assert draft["age"].range == (0, 120)  # what is known of ages in public
    assert draft["age"].unit == "years"
    assert draft["sex"].values == {"f": "", "m": ""}
    assert draft["ward"].values == {
        "a": "",
        "b": "",
    }  # a dictionary is public, and one patient's value is not
    assert "rare" not in out.read_text()
    assert draft["disease"].values == {"0": "", "1": ""}
    assert "mrn" not in draft
    assert tomllib.loads(run("dictionary", path))["dictionary"]["chol"]["type"] == "number"
    result = CliRunner().invoke(app, ["dictionary", str(path), "--out", str(out)])
    assert result.exit_code == 2


def test_a_draft_takes_decimal_commas_for_numbers_and_says_what_to_write(tmp_path):
    path = write(tmp_path, chol=lambda i: "?" if i == 7 else f'"{4 + i % 9},{i % 10}"')
    text = run("dictionary", path)
    assert '# chol: numbers with decimal commas: write decimal = "," under [map]' in text
    assert '[dictionary.chol]\ntype = "number"\n' in text
    assert "4,0" not in text
    (tmp_path / "north.map.toml").write_text('[map]\ndecimal = ","\nmissing = ["?"]\n')
    assert "range = [" in run("dictionary", path, "--map", tmp_path / "north.map.toml").split("chol]")[1]
    (tmp_path / "bare.map.toml").write_text('decimal = ","\n')
    result = CliRunner().invoke(app, ["dictionary", str(path), "--map", str(tmp_path / "bare.map.toml")])
    assert result.exit_code == 2
    assert "'decimal' stands outside [map]: begin the file with [map]" in result.stderr
