"""[series] of a study file: hospitals by a column, what is left out, step and windows, outcomes of a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import concilium as cc
from concilium.cli.demo_patients import make_ward
from concilium.errors import RecordsError, StudyError
from concilium.models.model_file import load
from concilium.study.courses import _say_quiet, read_populations

STUDY = """
[study]
name = "before sepsis"
method = "discovery"
outcome = "{outcome}"
[privacy]
epsilon = 6.0
[bins]
HR = [60, 80, 90, 100, 120]
[discovery]
limits = 1
[series]
{series}
[sites]
{sites}
"""


@pytest.fixture
def ward(tmp_path):
    stays = make_ward(30, 1)
    stays["clinic"] = stays["patient"].map(lambda name: "A" if int(name[1:]) % 3 else "B")
    stays["nurse"] = "Kim"
    stays.loc[0, "HR"] = -1
    stays.to_csv(tmp_path / "stays.csv", index=False)
    return tmp_path


def read(folder, series, sites='series = "stays.csv"', outcome="sepsis"):
    path = folder / "study.toml"
    path.write_text(STUDY.format(series=series, sites=sites, outcome=outcome))
    return cc.Study.read(path)


SERIES = 'by = "clinic"\nleave_out = ["nurse"]\nmissing = [-1]\nstep = "2h"\nwindows = "6h"'


def test_hospitals_are_those_of_a_column(ward):
    study = read(ward, SERIES)
    parts = read_populations(study)
    assert {name: len(part) for name, part in parts.items()} == {"A": 20, "B": 10}
    series = parts["A"].series
    assert (series.step, study.open_method().window) == ("2h", "6h")
    assert "nurse" not in series.names
    assert "clinic" not in series.names
    assert np.nanmin(series.stays["HR"]) > 0
    dealt = read_populations(read(ward, SERIES, 'series = "stays.csv"\ngateways = 2'))
    assert {name: len(part) for name, part in dealt.items()} == {
        "A gateway 1": 10,
        "A gateway 2": 10,
        "B gateway 1": 5,
        "B gateway 2": 5,
    }
    ids = [one for part in dealt.values() for one in part.series.ids]
    assert len(set(ids)) == 30


def test_rules_are_about_the_variables_of_the_files_unless_bins_name_them(ward):
    study = read(ward, f'{SERIES}\nvariables = ["HR", "Temp", "sepsis"]')
    assert study.open_method().task.names == ("HR",)  # as bins say
    (ward / "study.toml").write_text(
        (ward / "study.toml").read_text().replace("[bins]\nHR", "[values]\nward")
    )
    assert cc.Study.read(ward / "study.toml").open_method().task.names == ("HR", "Temp")


def test_the_outcome_may_come_from_a_table_of_the_same_patients(ward):
    dead = {f"p{number:04}": number % 2 for number in range(1, 31)}
    (ward / "deaths.csv").write_text(
        "patient,death\n" + "".join(f"{name},{truth}\n" for name, truth in dead.items())
    )
    sites = 'series = "stays.csv"\nrecords = "deaths.csv"\ngateways = 3'
    parts = read_populations(read(ward, 'windows = "6h"\nmissing = [-1]', sites, "death"))
    for part in parts.values():
        for row, name in enumerate(part.series.ids):
            own = part.series.stays["death"][part.series.starts[row] : part.series.starts[row + 1]]
            assert own[-1] == dead[name]
            assert np.isnan(own[:-1]).all()


def test_what_contradicts_itself_is_a_sentence(ward):
    text = STUDY.format(series=SERIES, sites='series = "stays.csv"', outcome="sepsis")
    (ward / "twice.toml").write_text(text.replace("limits = 1", 'limits = 1\nwindow = "4h"'))
    with pytest.raises(StudyError, match=r"\[series\] windows and \[discovery\] window state the same"):
        cc.Study.read(ward / "twice.toml")
    with pytest.raises(StudyError, match=r"gateways = 3, say, or to hospitals by a column"):
        read(ward, 'windows = "6h"')
    with pytest.raises(StudyError, match=r"is in no hospital, or in two"):
        read_populations(read(ward, SERIES.replace("clinic", "hour")))


def add_age(ward):
    """The stays with ages, a column that does not change: the even ones are old."""
    stays = pd.read_csv(ward / "stays.csv")
    stays["Age"] = stays["patient"].map(lambda name: 80 if int(name[1:]) % 2 else 40)
    stays.to_csv(ward / "stays.csv", index=False)


def test_static_columns_are_stated_where_the_columns_are(ward):
    add_age(ward)
    study = read(ward, f'{SERIES}\nstatic = ["Age"]\nvariables = ["HR", "sepsis"]')
    method = study.open_method()
    assert (method.static, method.task.static_names, method.task.names) == (["Age"], ("Age",), ("HR",))
    series = read_populations(study)["A"].series
    assert series.names == ("HR", "sepsis", "Age")
    assert series.static == ("Age",)
    assert any("conditions on Age" in about for _, _, about in study.plan().rows)
    for more, problem in [
        ('static = ["Age"]\nvariables = ["Age", "HR"]', "'Age' is under static and under variables"),
        ("static = 3", r"\[series\] static must be a list of columns"),
    ]:
        with pytest.raises(StudyError, match=problem):
            read(ward, f"{SERIES}\n{more}")
    with pytest.raises(RecordsError, match="static names a column 'Height' that is not there"):
        read_populations(read(ward, f'{SERIES}\nstatic = ["Height"]'))
    text = STUDY.format(series=f'{SERIES}\nstatic = ["Age"]', sites='series = "stays.csv"', outcome="sepsis")
    (ward / "twice.toml").write_text(text.replace("limits = 1", 'limits = 1\nstatic = ["Age"]'))
    with pytest.raises(StudyError, match=r"\[series\] static and \[discovery\] static state the same"):
        cc.Study.read(ward / "twice.toml")
    experts = text.replace('"discovery"', '"experts"').replace("[discovery]\nlimits = 1", "")
    (ward / "experts.toml").write_text(experts.replace("outcome =", "target ="))
    with pytest.raises(StudyError, match=r"\[series\] static is for temporal rules"):
        cc.Study.read(ward / "experts.toml")


def test_across_machines_a_study_states_static_columns_and_hospitals_their_files(tmp_path):
    path = tmp_path / "study.toml"
    text = STUDY.format(series='static = ["Age"]\nwindows = "6h"', sites="", outcome="sepsis")
    path.write_text(text.replace("[sites]\n", ""))
    assert cc.Study.read(path, elsewhere=True).open_method().task.static_names == ("Age",)
    path.write_text(text.replace("[sites]\n", "").replace("windows", 'patient = "id"\nwindows'))
    with pytest.raises(StudyError, match=r"\[series\] names columns of files"):
        cc.Study.read(path, elsewhere=True)


def test_a_run_puts_age_beside_the_rules_and_says_what_never_changes(tmp_path):
    stays = make_ward(900, 1)
    stays["Age"] = stays["patient"].map(lambda name: 80 if int(name[1:]) % 2 else 40)
    stays.to_csv(tmp_path / "stays.csv", index=False)
    text = STUDY.format(
        series='windows = "6h"\nstatic = ["Age"]',
        sites='series = "stays.csv"\ngateways = 3',
        outcome="sepsis",
    )
    (tmp_path / "policy.toml").write_text('[budget]\ntotal = "unlimited"\n')
    text = text.replace("gateways = 3", 'gateways = 3\npolicy = "policy.toml"').replace(
        "limits = 1", "limits = 1\nprevalence = 0.2"
    )
    path = tmp_path / "study.toml"
    path.write_text(text)
    said = []
    results = cc.Study.read(path).run(tmp_path / "results", warn=said.append)
    model = load(tmp_path / "results" / "model.json")
    assert results is not None
    assert not any("Age" in rule.text for rule in model.rules_)
    assert {one.text for one in model.beside_} == {"Age >= 45", "Age >= 65", "Age >= 80"}
    assert not any("one value in each stay" in one for one in said)
    report = (tmp_path / "results" / "report.html").read_text()
    assert "Beside the rules" in report
    path.write_text(text.replace('static = ["Age"]', "static = []").replace("[bins]", "[bins]\nAge = [65]"))
    cc.Study.read(path).run(tmp_path / "before", warn=said.append)
    assert any("'Age' has one value in each stay" in one for one in said)


def test_a_threshold_that_flags_nobody_is_named(ward):
    study = read(ward, SERIES)
    assert "nobody is predicted sepsis = 1" in (
        _say_quiet(study, {"sensitivity": 0.0, "specificity": 1.0}) or ""
    )
    assert _say_quiet(study, {"sensitivity": 0.1, "specificity": 1.0}) is None
    assert _say_quiet(study, {}) is None  # where nothing was measured
