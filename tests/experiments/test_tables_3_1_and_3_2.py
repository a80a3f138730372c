"""Tables 3.1 and 3.2 of the thesis, made again: the distributed tree against an ID3 that is not the product's."""

from __future__ import annotations

import ast
import csv
import random
from pathlib import Path

import pytest

import concilium as cc
import pooled_id3
import tables_3_1_and_3_2 as tables

SCHOOLS = ("north", "east", "south")


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("seed", "values"), [(0, 2), (1, 3)])
def test_distributed_and_central_trees_agree_wherever_a_site_is_left_out(
    seed: int, values: int, backwards: bool
) -> None:
    drawn = tables.draw_instances(seed, values, instances=400)
    sites = {name: tables.rename(rows, "class", backwards) for name, rows in drawn.items()}
    found = []
    for left_out, tested in sites.items():
        others = {name: rows for name, rows in sites.items() if name != left_out}
        central = tables.try_central(others, tested, "class")
        assert tables.try_distributed(others, tested, "class") == central
        found.append(central)
    right, unseen = map(sum, zip(*found, strict=True))
    assert 100 < right < 400  # neither trivial nor always right
    assert unseen > 0 or values == 2


def test_the_central_tree_is_not_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(Path(pooled_id3.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not [name for name in imported if name and name.startswith("concilium")]
    for part in ("DecisionTree", "House", "Site"):
        monkeypatch.delattr(cc, part)
    sites = tables.draw_instances(0, 3, instances=100)
    right, _ = tables.leave_out(sites, "class", "ID3")
    assert 0 < right < 100


def write_students(folder: Path, students: int) -> None:
    """Relations as UCI has them, of students drawn."""
    draw = random.Random(3)
    names = [f"student{number}" for number in range(students)]

    def write(relation: str, columns: list[str], rows: list[list[str]]) -> None:
        with (folder / f"{relation}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])

    for flag in tables.FLAGS:
        write(flag, ["name"], [[name] for name in names if draw.random() < 0.3])
    organs = ["army", "foreign_legion", "peace_corps"]
    write("enlist", ["name", "organ"], [[name, draw.choice(organs)] for name in names if draw.random() < 0.4])
    months = [[name, str(draw.randrange(9))] for name in names]
    write("longest_absense_from_school", ["name", "month"], months)
    write("no_payment_due", ["name", "bool"], [[name, draw.choice(["pos", "neg"])] for name in names])
    enrolled = [
        [name, school, str(draw.randrange(16))] for name in names for school in draw.sample(SCHOOLS, k=2)
    ]
    write("enrolled", ["name", "school", "month"], enrolled)


def test_students_are_instances_by_school_and_the_trees_agree_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "student-loan").mkdir()
    write_students(tmp_path / "student-loan", 60)
    sites = tables.read_students(tmp_path, tables.FORCES)
    assert sorted(sites) == sorted(SCHOOLS)
    assert sum(map(len, sites.values())) == 120
    tables.tell("3.2", "drawn", sites, "no_payment_due")
    rows = [line.split("|")[3:8] for line in capsys.readouterr().out.splitlines()]
    central, distributed = rows[::2], rows[1::2]
    assert [(order, algorithm) for order, algorithm, *_ in central] == [
        (" forwards ", " ID3 "),
        (" backwards ", " ID3 "),
    ]
    assert [row[2:] for row in central] == [row[2:] for row in distributed]
    assert all(row[2].endswith("/120 ") for row in rows)
