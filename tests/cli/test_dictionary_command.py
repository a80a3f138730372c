"""`concilium dictionary` of all tables of a study: one draft that holds for each, from which a private study starts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app

NAMES = ("north", "south", "west")
STUDY = """
study = {{ name = "ward", method = "{method}", target = "died" }}
privacy = {{ release = "private", epsilon = 1 }}
dictionary = {{ file = "ward.toml" }}
site = [{sites}]
"""


def write_tables(folder: Path) -> list[str]:
    """Three tables with numbers, codes, free text and ids, not all alike."""
    draw = random.Random(3)
    files = []
    for name in NAMES:
        rows = ["patient_id,age,crp,sex,stage,ward,words,bmi,died" + (",extra" if name == "north" else "")]
        for i in range(200):
            age, crp = draw.randint(20, 95), round(draw.lognormvariate(2 if name != "south" else 3, 0.5), 1)
            sex = draw.choice("FM" if name == "south" else "fm")
            stage = draw.choice(["1", "2"] if name == "west" else ["2", "3"])
            ward = draw.choice(["0389", "0412", *([] if name == "north" else ["0500"])])
            bmi = draw.choice(["low", "high"]) if name == "west" else round(draw.gauss(26, 4), 1)
            words = " ".join(draw.choice(["well", "ill", "pale", "tired"]) for _ in range(6))
            died = int(draw.random() < 0.1 + 0.6 * (age > 70))
            cells = [f"{name}{i}", age, crp, sex, stage, ward, words, bmi, died]
            rows.append(",".join(map(str, cells + ([i % 3] if name == "north" else []))))
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
        files.append(str(folder / f"{name}.csv"))
    return files


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "200"})


def test_a_draft_holds_for_every_table(tmp_path: Path) -> None:
    out = tmp_path / "ward.toml"
    result = invoke("dictionary", *write_tables(tmp_path), "--out", out)
    assert result.exit_code == 0, result.output
    draft = cc.Dictionary.read(out)
    assert set(draft) == {"age", "crp", "sex", "stage", "ward", "died"}
    assert draft["age"].range == (0, 120)
    assert list(draft["stage"].values) == ["1", "2", "3"]  # no table has all of them
    assert draft["ward"].type == "text"
    assert list(draft["ward"].values) == ["0389", "0412", "0500"]
    assert len(draft["sex"].values) == 2  # F and f are one
    assert draft["sex"].read("M") == draft["sex"].read("m")
    for name in NAMES:
        crp = cc.Records.read(tmp_path / f"{name}.csv").values("crp")
        low, high = draft["crp"].range or (0, 0)
        assert sum(low <= float(value or 0) <= high for value in crp) >= 0.95 * len(crp)


def test_a_draft_says_what_it_leaves_out_and_why(tmp_path: Path) -> None:
    out = tmp_path / "ward.toml"
    result = invoke("dictionary", *write_tables(tmp_path), "--out", out)
    reasons = {
        "bmi": "numbers in north.csv, south.csv, text in west.csv",
        "extra": "not in south.csv, west.csv",
        "patient_id": "it identifies patients, by its name",
        "words": "about one value for each in north.csv",
    }
    for name, why in reasons.items():
        assert why in result.stdout
        assert name in result.stdout
        assert any(
            line.startswith(f"# {name}: left out: ") and why in line for line in out.read_text().splitlines()
        )
    assert "pale" not in out.read_text()


@pytest.mark.parametrize("method", ["tree", "naive-bayes", "rulefit"])
def test_a_private_study_starts_from_the_draft(tmp_path: Path, method: str) -> None:
    invoke("dictionary", *write_tables(tmp_path), "--out", tmp_path / "ward.toml")
    sites = [f'{{ name = "{n}", records = "{n}.csv", one_row_per_patient = true }}' for n in NAMES]
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(method=method, sites=", ".join(sites)))
    plan = invoke("run", study, "--plan")
    assert plan.exit_code == 0, plan.output
    assert "columns " not in plan.stdout  # nothing is paid for to find out what there is
    result = invoke("run", study, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    model: Any = cc.load(tmp_path / "out" / "model.json")
    assert model.card.release == "private"
    assert len(model.card.sites) == 3


@pytest.mark.parametrize(
    ("place", "factor", "note"),
    [
        (1, 386, "much larger in north.csv than in south.csv: is it another unit there?"),
        (
            0,
            1000,
            "left out: about 1000 times as large at west.csv as at north.csv, as in another unit; maps convert it",
        ),
    ],
)
def test_another_unit_is_noticed_without_a_number(
    tmp_path: Path, place: int, factor: float, note: str
) -> None:
    files = write_tables(tmp_path)
    text = Path(files[place]).read_text().splitlines()
    rows = [row.split(",") for row in text[1:]]
    for row in rows:
        row[2] = str(float(row[2]) / factor)
    Path(files[place]).write_text("\n".join([text[0], *(",".join(row) for row in rows)]) + "\n")
    said = invoke("dictionary", *files).stdout
    assert f"# crp: {note}" in said
    assert ("[dictionary.crp]" in said) == (factor == 386)
    assert "# A private study also needs one_row_per_patient = true under [sites]" in said


def test_true_and_1_are_one_value(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,died\n" + "1.5,true\n2.5,false\n" * 20)
    (tmp_path / "b.csv").write_text("x,died\n" + "1.5,1\n2.5,0\n" * 20)
    out = tmp_path / "d.toml"
    assert invoke("dictionary", tmp_path / "a.csv", tmp_path / "b.csv", "--out", out).exit_code == 0
    died = cc.Dictionary.read(out)["died"]
    assert list(died.values) == ["0", "1"]
    assert died.read("true") == died.read("1")


def test_codes_of_few_patients_and_of_many(tmp_path: Path) -> None:
    few = [f"rare{i // 4}" for i in range(600)]
    many = [f"K{i % 57:02d}" for i in range(600)]
    for place, name in enumerate(("a", "b")):
        part = range(300 * place, 300 * place + 300)
        (tmp_path / f"{name}.csv").write_text("few,many\n" + "".join(f"{few[i]},{many[i]}\n" for i in part))
    out = tmp_path / "d.toml"
    result = invoke("dictionary", tmp_path / "a.csv", tmp_path / "b.csv", "--out", out)
    draft = cc.Dictionary.read(out)
    assert "few" not in draft
    assert "free text, or codes of fewer than 10 patients each" in result.stdout
    assert len(draft["many"].values) == 50
    assert "# many: the 50 most common of 57 values" in out.read_text()


def test_maps_come_once_for_every_table(tmp_path: Path) -> None:
    files = write_tables(tmp_path)
    (tmp_path / "m.toml").write_text('[map]\n[map.columns]\nbody = "bmi"\n')
    result = invoke("dictionary", *files, "--map", tmp_path / "m.toml")
    assert result.exit_code == 2
    assert "give --map once for every table" in result.stderr
    said = invoke("dictionary", *files, *["--map", tmp_path / "m.toml"] * 3).stdout
    assert "# body: left out: numbers in north.csv" in said
