"""Several methods in one study file: the same patients, a price that is the sum, a table and a stated pick."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import RunStopped, StudyError, StudyPending
from concilium.privacy.randomness import zero_noise
from concilium.study import several
from concilium.study.several import _choose, _say_absent
from small_study import HOSPITALS, SEVERAL, SPLIT, lay_out

METHODS = '["tree", "naive-bayes"]'
TWO = SPLIT.replace('"tree"', METHODS) + "[evaluate]\nholdout = 0.3\nsimulation = true\n"
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


def make_results(**methods: tuple[Any, ...]) -> dict[str, Any]:
    """AUC, half of its interval's width, lines, and perhaps calibration slope, of synthetic results."""

    class Model:
        tells_risks = True

        def __init__(self, lines: int) -> None:
            self.lines = lines

        def text(self) -> str:
            return "\n".join(["x"] * self.lines)

    class Results:
        def __init__(self, auc: float | None, half: float, lines: int, slope: float = 1.0) -> None:
            risks = {"slope": slope, "slope_interval": [slope - 0.1, slope + 0.1]}
            self.model = Model(lines)
            self.study = type("Study", (), {"method": "tree", "release": "exact"})()
            self.card = type("Card", (), {"releases": [], "study": "s", "alarms": []})()
            known = None if auc is None else {"auc": [auc - half, auc + half]}
            overall = {"auc": auc, "intervals": known, "epsilon": None, "seconds": 0.0}
            self.metrics = {"overall": overall, "risks": risks}

    return {name: Results(*told) for name, told in methods.items()}


def test_the_pick_is_the_shortest_within_a_standard_error(tmp_path: Path) -> None:
    study = cc.Study.read(lay_out(tmp_path, TWO))
    near = _choose(study, make_results(a=(0.80, 0.04, 100), b=(0.785, 0.04, 10), c=(0.70, 0.04, 2)))
    assert near.method == "b"  # one standard error of the best is 0.0204
    assert "within one standard error (0.020) of the best (a, 0.800)" in near.why
    far = _choose(study, make_results(a=(0.80, 0.02, 100), b=(0.785, 0.04, 10)))
    assert far.method == "a"
    assert "by more than one standard error" in far.why
    assert _choose(study, make_results(a=(None, 0, 1))).method is None


def test_none_is_taken_that_tells_nothing_or_whose_risks_do_not_come_true(tmp_path: Path) -> None:
    study = cc.Study.read(lay_out(tmp_path, TWO))
    chance = _choose(study, make_results(a=(0.28, 0.04, 5), b=(0.52, 0.04, 3)))
    assert chance.method is None
    assert "none is better than chance" in chance.why
    wrong = _choose(study, make_results(a=(0.85, 0.02, 5, 0.3), b=(0.75, 0.02, 9), c=(0.53, 0.05, 2)))
    assert wrong.method == "b"
    assert "cannot be told from chance: c" in wrong.why
    assert "passed over for a calibration slope outside 0.5 to 2: a" in wrong.why
    only = _choose(study, make_results(a=(0.85, 0.02, 5, 0.3), b=(None, 0, 1)))
    assert only.method == "a"
    assert only.why.startswith("its AUC is 0.850 (standard error 0.010), and no other can be taken")
    assert "could not be measured: b" in only.why
    assert "adapt it before use" in only.why


def test_none_is_taken_that_ranks_the_patients_of_a_hospital_the_wrong_way(tmp_path: Path) -> None:
    study = cc.Study.read(lay_out(tmp_path, TWO))
    results = make_results(a=(0.75, 0.02, 5), b=(0.70, 0.02, 9))
    right, inverted = {"intervals": {"auc": [0.70, 0.80]}}, {"intervals": {"auc": [0.26, 0.37]}}
    results["a"].metrics["sites"] = {"north": right, "west": inverted}
    results["b"].metrics["sites"] = {"north": right, "west": right}
    passed = _choose(study, results)
    assert passed.method == "b"
    assert "patients are ranked the wrong way round: a" in passed.why
    results["b"].metrics["sites"] = {"north": right, "west": inverted}
    none = _choose(study, results)
    assert none.method is None
    assert "patients of west are ranked the wrong way round" in none.why


def test_a_method_measured_without_a_hospital_is_named() -> None:
    def answer(*names: str) -> Any:
        return SimpleNamespace(card=SimpleNamespace(sites=[SimpleNamespace(name=name) for name in names]))

    assert _say_absent({"a": answer("x", "y"), "b": answer("x", "y")}) == ""
    assert _say_absent({"a": answer("x", "y", "z"), "b": answer("x")}) == "; b without y and z"


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


RELEASED = (
    PRIVATE.replace(METHODS, '["tree exact", "voting-trees masked", "naive-bayes private"]')
    .replace('release = "private"\n', "")
    .replace('target = "death"', 'target = "death"\npositive = 1')
    .replace('"sex"]', '"sex", "smoker"]')
    .replace('sex = ["f", "m"]', 'sex = ["f", "m"]\nsmoker = ["yes", "no"]')
) + "[evaluate]\nholdout = 0.4\nepsilon = 2\n"


def test_releases_stand_side_by_side_on_the_same_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCILIUM_FIX_NOISE", "tests-only")
    study = lay_out(tmp_path, RELEASED)
    write_policies(tmp_path, '[budget]\ntotal = "5"\n')
    for name in HOSPITALS:  # a column that identifies patients is seen by private studies alone
        lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        named = [f"{line},{'who' if not at else f'patient {at * 17}'}" for at, line in enumerate(lines)]
        (tmp_path / f"{name}.csv").write_text("\n".join(named) + "\n")
    planned = cc.Study.read(study).plan()
    notes = [question.note for question in planned.questions.questions if question.kind == "model.risks"]
    assert [note.split(":")[0] for note in notes] == [
        "tree-exact",
        "voting-trees-masked",
        "naive-bayes-private",
    ]
    with zero_noise():
        results = cc.Study.read(study).run(tmp_path / "out", warn=lambda text: None)
    rows = results.metrics["methods"]
    assert [row["release"] for row in rows.values()] == ["exact", "masked", "private"]
    assert len({(row["patients"], row["events"]) for row in rows.values()}) == 1
    assert [row["epsilon"] is None for row in rows.values()] == [True, True, False]
    assert results.metrics["epsilon"] is None  # of all together
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'href="naive-bayes-private/report.html"' in page
    assert cc.load(tmp_path / "out" / "tree-exact" / "model.json").method == "tree"
    assert results.picked.study.variant == (results.pick.method or "tree-exact")


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ('["tree exact", "tree exact"]', "a list of different methods"),
        ('["tree exact twice"]', "perhaps with its release"),
        ('["tree exat"]', "there is no release 'exat'"),
    ],
)
def test_a_list_of_methods_and_releases_is_checked(tmp_path: Path, listed: str, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        cc.Study.read(lay_out(tmp_path, TWO.replace(METHODS, listed)))
