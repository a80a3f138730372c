"""`concilium donors`: ranking, loan and measuring, each a study that hospitals agree to, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.ledger.ledger import Ledger
from concilium.registry import RELEASES
from concilium.study.donating import find_donors
from small_study import HOSPITALS, SEVERAL, lay_out

POSITIVE = SEVERAL.replace('target = "death"', 'target = "death"\npositive = 1')
LENT = POSITIVE + "[donors]\naccuracy = 0.6\n"
PRIVATE = (
    '[privacy]\nrelease = "private"\nepsilon = 1\n[values]\nsex = ["f", "m"]\nsmoker = ["yes", "no"]\n'
    "death = [0, 1]\n"
)
POLICY = '[release]\nkinds = ["model.own"]\n'


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["donors", *map(str, arguments)])


def give_policy(study: Path, site: str, policy: str) -> None:
    (study.parent / f"{site}.toml").write_text(policy)
    named = f'name = "{site}"\n'
    study.write_text(study.read_text().replace(named, f'{named}policy = "{site}.toml"\n'))


def kinds_in(book: Path) -> list[str]:
    with Ledger.open_readonly(book) as ledger:
        return [entry.kind for entry in ledger.entries() if entry.mode in RELEASES and entry.numbers]


def test_the_best_hospital_lends_and_the_others_measure(tmp_path: Path) -> None:
    study = lay_out(tmp_path, LENT)
    planned = run(study, "--plan")
    assert planned.exit_code == 0
    assert "of the donor alone, exact" in planned.stdout
    assert not list(tmp_path.glob("*.ledger"))
    shown = run(study, "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert "south borrows from coast: wrong for 24 of 65 patients (its own model: 33 of 65)" in shown.stdout
    metrics = json.loads((tmp_path / "out" / "donors.json").read_text())
    assert [row["site"] for row in metrics["hospitals"]] == ["coast", "north", "south"]
    assert {name: row["donor"] for name, row in metrics["borrowers"].items()} == {
        "north": "coast",
        "south": "coast",
    }
    lent = cc.load(tmp_path / "out" / metrics["models"]["coast"])
    assert [site.name for site in lent.card.sites] == ["coast"]
    # A borrower releases its figures and what measures the loan; only the donor releases a model.
    assert {"tree.schema", "counts"} <= set(kinds_in(tmp_path / "coast.ledger"))
    assert set(kinds_in(tmp_path / "north.ledger")) == {"model.own", "model.risks"}
    assert not (tmp_path / ".out.partial").exists()


def test_a_donor_that_refuses_is_passed_over_and_charged_nothing_more(tmp_path: Path) -> None:
    study = lay_out(tmp_path, LENT.replace("0.6", "0.5"))
    give_policy(study, "north", POLICY)
    metrics = json.loads(run(study, "--json").stdout)
    # Two are above a half, and the best of them does not lend.
    assert [row["site"] for row in metrics["hospitals"] if row["weight"]] == ["north", "coast"]
    assert metrics["borrowers"]["south"]["donor"] == "coast"
    assert any(note.startswith("north: does not lend its model") for note in metrics["notes"])
    study.write_text(study.read_text() + 'borrowers = ["south", "north"]\n')
    metrics = json.loads(run(study, "--json").stdout)
    assert metrics["borrowers"]["south"]["donor"] == "coast"
    assert any(note.startswith("north: the model could not be measured there") for note in metrics["notes"])
    assert set(kinds_in(tmp_path / "north.ledger")) == {"model.own"}


def test_a_person_of_the_donor_s_hospital_agrees_to_the_loan(tmp_path: Path) -> None:
    study = lay_out(tmp_path, LENT)
    give_policy(study, "coast", '[agree]\nreleases = ["exact"]\nmethods = ["own-models"]\n')
    out = tmp_path / "out"
    waiting = run(study, "--out", out)
    assert waiting.exit_code == 2
    assert "waits for coast" in waiting.stderr
    assert "--resume" in waiting.stderr
    assert set(kinds_in(tmp_path / "coast.ledger")) == {"model.own"}
    with Ledger.open_readonly(tmp_path / "coast.ledger") as book:
        loan = next(one for one in book.studies.list() if one.status == "waiting")
    assert b"to lend this hospital's own model" in loan.terms
    agreed = CliRunner().invoke(
        app,
        [
            "studies",
            "agree",
            str(tmp_path / "coast.ledger"),
            loan.id[:12],
            "--who",
            "Dr X",
            "--why",
            "fine",
        ],
    )
    assert agreed.exit_code == 0, agreed.output
    shown = run(study, "--out", out, "--resume")
    assert shown.exit_code == 0, shown.output
    assert "south borrows from coast" in shown.stdout
    # The ranking was not asked again.
    assert kinds_in(tmp_path / "north.ledger").count("model.own") == 1


def test_noisy_figures_are_planned_and_charged_and_nobody_measures_through_the_gate(tmp_path: Path) -> None:
    study = lay_out(tmp_path, POSITIVE + PRIVATE + "[donors]\nblocks = 2\naccuracy = 0.01\n")
    plan = json.loads(run(study, "--plan", "--json").stdout)
    assert (plan["questions"][0]["kind"], plan["sites"][0]["fits"]) == ("model.own", True)
    metrics = find_donors(cc.Study.read(study)).metrics
    assert metrics["noise"]["accuracy"] == pytest.approx(1.77, abs=0.01)
    for name in HOSPITALS:
        with Ledger.open_readonly(tmp_path / f"{name}.ledger") as book:
            assert str(book.spent()) == plan["total"]
            assert "model.risks" not in kinds_in(tmp_path / f"{name}.ledger")
    study.write_text(study.read_text().replace("epsilon = 1", "epsilon = 3"))
    refused = run(study)
    assert (refused.exit_code, "north has no room for that" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SEVERAL, "donors are ranked by positive patients: give [study] positive"),
        (POSITIVE + '[privacy]\nrelease = "masked"\n', "which 'masked' does not show"),
        (POSITIVE + PRIVATE, "give [donors] blocks, such as 50"),
        (POSITIVE + "[donors]\nblocks = 9\n", 'blocks goes with release = "private" only'),
        (POSITIVE + "[donors]\naccuracy = 95\n", "[donors] accuracy must be a number between 0 and 1"),
        (
            POSITIVE + '[donors]\nborrowers = ["nord"]\n',
            "'nord', which is no hospital; did you mean 'north'?",
        ),
        (POSITIVE.replace('"tree"', '["tree", "naive-bayes"]'), "donors lend models of one method"),
        (
            POSITIVE.replace('"tree"', '"regression"').replace(
                "[tree]\nmax_depth = 3", '[privacy]\nrelease = "exact"'
            ),
            "learned by tree",
        ),
    ],
)
def test_what_cannot_be_is_a_sentence_and_charges_nothing(tmp_path: Path, text: str, words: str) -> None:
    shown = run(lay_out(tmp_path, text))
    assert shown.exit_code == 2
    assert words in shown.stderr
    assert not any(kinds_in(book) for book in tmp_path.glob("*.ledger"))


def test_a_table_that_does_not_fit_is_a_sentence_that_names_the_site(tmp_path: Path) -> None:
    study = lay_out(tmp_path, LENT.replace("[bins]", 'attributes = ["age", "smoker"]\n[bins]', 1))
    tables = {name: (tmp_path / f"{name}.csv").read_text().splitlines() for name in HOSPITALS}
    without = [
        ",".join(cell for place, cell in enumerate(row.split(",")) if place != 2) for row in tables["north"]
    ]
    (tmp_path / "north.csv").write_text("\n".join(without) + "\n")
    shown = run(study)
    assert (shown.exit_code, "north: there is no column 'smoker' at this hospital" in shown.stderr) == (
        2,
        True,
    )
    assert not any(kinds_in(book) for book in tmp_path.glob("*.ledger"))

    study = lay_out(tmp_path, LENT.replace("0.6", "0.5"))
    (tmp_path / "coast.csv").write_text("\n".join(tables["coast"][:4]) + "\n")  # three patients
    coded = [row[:-1] + {"1": "dead", "0": "alive"}.get(row[-1], row[-1]) for row in tables["south"]]
    (tmp_path / "south.csv").write_text("\n".join(coded) + "\n")
    for book in tmp_path.glob("*.ledger*"):
        book.unlink()
    study.write_text(study.read_text() + 'borrowers = ["coast", "north", "south"]\n')
    metrics = json.loads(run(study, "--json").stdout)
    notes = {note.split(":")[0]: note for note in reversed(metrics["notes"])}
    assert notes["coast"].startswith("coast: too few patients match")
    assert "coded otherwise" in notes["south"]
    assert set(kinds_in(tmp_path / "south.ledger")) <= {"model.own"}
    assert kinds_in(tmp_path / "coast.ledger") == []


def test_a_hospital_that_will_refuse_is_named_before_anything_is_asked(tmp_path: Path) -> None:
    study = lay_out(tmp_path, LENT)
    give_policy(study, "south", '[release]\nmodes = ["private"]\n')
    shown = run(study)
    assert "south will refuse: its policy releases nothing as 'exact' (nothing was asked)" in shown.stderr
    assert run(study, "--plan").exit_code == 2
    assert not any(kinds_in(book) for book in tmp_path.glob("*.ledger"))
