"""[series] of a study file: hospitals by a column, what is left out, step and windows, outcomes of a table."""

from __future__ import annotations

import numpy as np
import pytest

import concilium as cc
from concilium.cli.demo_patients import make_ward
from concilium.errors import StudyError
from concilium.study.courses import read_populations

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
