"""Several methods in one study file: the same patients, a price that is the sum, a table and a stated pick."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import RunStopped, StudyError, StudyPending
from concilium.study import several
from concilium.study.several import choose
from small_study import HOSPITALS, SEVERAL, SPLIT, lay_out

METHODS = '["tree", "naive-bayes"]'
TWO = SPLIT.replace('"tree"', METHODS) + "[evaluate]\nholdout = 0.3\n"
PRIVATE = f"""
[study]
name = "small"
method = {METHODS}
target = "death"
attributes = ["age", "sex"]
[privacy]
release = "private"
epsilon = 1
[bins]
age = [40, 60]
[values]
sex = ["f", "m"]
death = [0, 1]
[tree]
max_depth = 2
""" + "".join(
    f'[[site]]\nname = "{name}"\nrecords = "{name}.csv"\none_row_per_patient = true\n'
    f'ledger = "{name}.ledger"\npolicy = "{name}.toml"\n'
    for name in HOSPITALS
)


def write_policies(folder: Path, text: str) -> None:
    for name in HOSPITALS:
        (folder / f"{name}.toml").write_text(text)


def test_each_method_is_what_it_would_be_alone(tmp_path: Path) -> None:
    study = lay_out(tmp_path, TWO)
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert list(metrics["methods"]) == ["tree", "naive-bayes"]
    for method in metrics["methods"]:
        alone = tmp_path / f"{method}.toml"
        text = TWO.replace(METHODS, f'"{method}"')
        alone.write_text(text if method == "tree" else text.replace("[tree]\nmax_depth = 3\n", ""))
        other = cc.Study.read(alone).run()
        assert metrics["methods"][method]["auc"] == other.metrics["auc"]
        assert metrics["methods"][method]["lines"] == len(other.model.text().splitlines())
        model = cc.load(tmp_path / "out" / method / "model.json")
        assert model.body == other.model.body
        for name in ("card.json", "report.html", "terms.json", "metrics.json"):
            assert (tmp_path / "out" / method / name).exists()
    assert f"to take: {metrics['pick']}; {metrics['why']}" in result.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert metrics["why"].split(";")[0] in page
    assert 'href="naive-bayes/report.html"' in page
    assert not list(tmp_path.glob(".out*"))
    again = cc.Study.read(study).run(tmp_path / "out")
    assert again.pick.method == metrics["pick"]
    assert again.model.method == metrics["pick"]
    assert again.files["tree/model.json"] == tmp_path / "out" / "tree" / "model.json"


def make_results(**methods: tuple[float | None, float, int]) -> dict[str, object]:
    """AUC, half of its interval's width, and lines, of made-up results."""

    class Model:
        def __init__(self, lines: int) -> None:
            self.lines = lines

        def text(self) -> str:
            return "\n".join(["x"] * self.lines)

    class Results:
        def __init__(self, auc: float | None, half: float, lines: int) -> None:
            self.model = Model(lines)
            self.card = type("Card", (), {"releases": [], "study": "s"})()
            known = None if auc is None else {"auc": [auc - half, auc + half]}
            overall = {"auc": auc, "intervals": known, "epsilon": None, "seconds": 0.0}
            self.metrics = {"overall": overall, "risks": None}

    return {name: Results(*told) for name, told in methods.items()}


def test_the_pick_is_the_shortest_within_a_standard_error(tmp_path: Path) -> None:
    study = cc.Study.read(lay_out(tmp_path, TWO))
    near = choose(study, make_results(a=(0.80, 0.04, 100), b=(0.785, 0.04, 10), c=(0.70, 0.04, 2)))
    assert near.method == "b"  # one standard error of the best is 0.0204
    assert "within one standard error (0.020) of the best (a, 0.800)" in near.why
    far = choose(study, make_results(a=(0.80, 0.02, 100), b=(0.785, 0.04, 10)))
    assert far.method == "a"
    assert "by more than one standard error" in far.why
    assert choose(study, make_results(a=(None, 0, 1))).method is None


def test_the_price_is_the_sum_and_is_looked_at_before_anything_is_asked(tmp_path: Path) -> None:
    study = lay_out(tmp_path, PRIVATE)
    write_policies(tmp_path, '[budget]\ntotal = "1/2"\n')
    plan = cc.Study.read(study).plan()
    alone = [cc.Study.read(study).find_variant(m).plan().total for m in ("tree", "naive-bayes")]
    assert plan.total == sum(alone, Fraction(0)) > max(alone)
    assert {row[2].split(":")[0] for row in plan.rows} == {"tree", "naive-bayes"}
    assert plan.fits
    # Room for either, and not for both.
    write_policies(tmp_path, '[budget]\ntotal = "1/40"\n')
    tight = cc.Study.read(study)
    assert all(one.plan().fits for one in tight.several)
    assert not tight.plan().fits
    with pytest.raises(StudyError, match=r"tree, naive-bayes together cost .* \(nothing was asked"):
        tight.run(tmp_path / "out")
    assert not list(tmp_path.glob("*.ledger"))
    said = CliRunner().invoke(app, ["run", str(study), "--plan"])
    assert said.exit_code == 2
    assert "does not fit" in said.output


def test_hospitals_are_charged_for_both(tmp_path: Path) -> None:
    study = lay_out(tmp_path, PRIVATE)
    write_policies(tmp_path, '[budget]\ntotal = "1/2"\n')
    read = cc.Study.read(study)
    plan = read.plan()
    results = read.run(tmp_path / "out")
    with cc.Ledger.open_readonly(tmp_path / "north.ledger") as book:
        assert plan.total * 99 / 100 < book.spent() <= plan.total
    assert results.metrics["pick"] is None
    assert results.metrics["epsilon"] > 1
    assert len({one.card.study for one in results.results.values()}) == 2


def test_all_methods_are_proposed_in_one_sitting(tmp_path: Path) -> None:
    study = lay_out(tmp_path, PRIVATE)
    write_policies(tmp_path, '[agree]\nreleases = []\n[budget]\ntotal = "1/2"\n')
    read = cc.Study.read(study)
    with pytest.raises(StudyPending) as waits:
        read.run(tmp_path / "out")
    assert len({waits.value.study, *(one.study for one in waits.value.others)}) == 2
    said = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out"), "--resume"])
    assert said.exit_code == 2
    assert said.output.count("waits for") == 2
    for name in HOSPITALS:
        for one in (waits.value, *waits.value.others):
            ledger = str(tmp_path / f"{name}.ledger")
            agreed = CliRunner().invoke(
                app, ["studies", "agree", ledger, one.study[:12], "--who", "A. Steward", "--why", "ethics"]
            )
            assert agreed.exit_code == 0, agreed.output
    assert set(read.run(tmp_path / "out", resume=True).results) == {"tree", "naive-bayes"}


def test_a_finished_method_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = cc.Study.read(lay_out(tmp_path, SEVERAL.replace('"tree"', METHODS)))
    real, asked = several.conduct, []

    def breaks(one, *rest):
        asked.append(one.method)
        if one.method == "naive-bayes" and len(asked) == 2:
            raise StudyError("a hospital's disk is full")
        return real(one, *rest)

    monkeypatch.setattr(several, "conduct", breaks)
    with pytest.raises(RunStopped, match="naive-bayes: a hospital's disk is full"):
        study.run(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = study.run(tmp_path / "out", resume=True)
    assert asked == ["tree", "naive-bayes", "naive-bayes"]
    assert set(done.results) == {"tree", "naive-bayes"}


@pytest.mark.parametrize(
    ("methods", "problem"),
    [
        ('["tree", "tree"]', "a list of different methods"),
        ("[]", "a list of different methods"),
        ('["tree", "forest"]', "there is no method 'forest'"),
        ('["tree", "rulefit"]', "methods are compared under one release"),
    ],
)
def test_lists_that_are_none(tmp_path: Path, methods: str, problem: str) -> None:
    text = SPLIT.replace('method = "tree"', f"method = {methods}\npositive = 1")
    with pytest.raises(StudyError, match=problem):
        cc.Study.read(lay_out(tmp_path, text))
    with pytest.raises(StudyError, match=r"\[rulefit\] is for method = 'rulefit'"):
        cc.Study.read(lay_out(tmp_path, TWO + "[rulefit]\ntrees = 3\n"))


def test_across_machines_each_method_is_a_study_of_the_same_file(tmp_path: Path) -> None:
    across = tmp_path / "across.toml"
    across.write_text('[study]\nname = "x"\nmethod = ["tree", "naive-bayes"]\ntarget = "death"\n')
    study = cc.Study.read(across, elsewhere=True)
    assert [study.find_variant(one).method for one in ("tree", "naive-bayes")] == ["tree", "naive-bayes"]
    assert all(one.elsewhere for one in study.several)


def test_ways_of_learning_stand_in_the_table(tmp_path: Path) -> None:
    text = SPLIT.replace('"tree"', METHODS) + '[evaluate]\nleave_out = "site"\ncompare = true\n'
    result = CliRunner().invoke(app, ["run", str(lay_out(tmp_path, text)), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    for method, row in metrics["methods"].items():
        own = json.loads((tmp_path / "out" / method / "metrics.json").read_text())["comparison"]["ways"]
        assert row["ways"] == {way: told["same_patients"]["auc"] for way, told in own.items()}
        assert {"local", "federated", "adapted", "pooled"} <= set(row["ways"])
    assert "AUC on the same patients, when learned" in result.stdout
    assert "Alone, together, adapted, pooled" in (tmp_path / "out" / "report.html").read_text()
