"""The three studies of temporal rules, on synthetic tables like theirs; held-out patients are held out whole."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

import temporal_rules as experiment
from concilium.temporal.learning import RuleLearner
from concilium.temporal.search_space import SearchSpace

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY.parent / "shared" / "data"

pytestmark = pytest.mark.filterwarnings("ignore::concilium.records.series_description.OddValues")


def write(path: Path, query: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    duckdb.connect().execute("select setseed(0.5)").execute(f"copy ({query}) to '{path}' (format parquet)")


@pytest.fixture
def sepsis(tmp_path: Path) -> Path:
    """Thirty stays of twenty hours, every third with sepsis from hour 10 on, the heart racing from hour 6."""
    others = ", ".join(f"80 + 5 * random() as {name}" for name in experiment.VITALS if name != "HR")
    write(
        tmp_path / "sepsis-challenge2019" / "challenge2019_sample2000.parquet",
        f"select 'p' || p as patient, h as ICULOS, {others}, "
        "80 + 8 * random() + 40 * (p % 3 = 0 and h >= 6)::int as HR, (p % 3 = 0 and h >= 10)::int as SepsisLabel "
        "from range(30) t(p), range(1, 21) u(h)",
    )
    return tmp_path


def test_sepsis_is_learned_judged_and_shown(
    sepsis: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = experiment.read_sepsis(sepsis)
    assert len(windows) == 30 * 15
    assert windows.labels.sum() == 10 * 11
    assert windows.series.names == tuple(experiment.VITALS)
    learner = RuleLearner(space=SearchSpace.from_ranges(experiment.VITALS, 6), generations=5)
    experiment.study("Sepsis in six hours", windows, learner, tmp_path / "pages")
    printed = capsys.readouterr().out
    rules, regression = (line.split() for line in printed.splitlines() if "balanced_accuracy" in line)
    assert float(rules[2]) > 0.9
    assert float(regression[3]) > 0.9
    assert "HR >= 1" in printed
    assert "<svg" in (tmp_path / "pages" / "sepsis.html").read_text(encoding="utf-8")


def test_the_regression_sees_mean_least_largest_and_last(sepsis: Path) -> None:
    windows = experiment.read_sepsis(sepsis)
    table = experiment.describe_by_numbers(windows)
    assert table.shape == (len(windows), 4 * len(experiment.VITALS))
    heart = windows.series["HR"].astype(float)
    expected = [heart.mean(axis=0), heart.min(axis=0), heart.max(axis=0), heart[-1]]
    np.testing.assert_allclose(table[:, :4].T, expected, rtol=1e-5)


def test_who_died_is_read_beside_the_stays(tmp_path: Path) -> None:
    values = ", ".join(f"('{name}')" for name in experiment.ICU)
    write(
        tmp_path / "physionet2012" / "set-a_long.parquet",
        "select 100 + p as RecordID, 60 * h as Minute, v as Parameter, random() as Value "
        f"from range(4) t(p), range(48) u(h), (values {values}) w(v)",
    )
    (tmp_path / "physionet2012" / "Outcomes-a.csv").write_text(
        "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n"
        + "".join(f"{100 + p},1,1,5,-1,{p % 2}\n" for p in reversed(range(4)))
    )
    windows = experiment.read_mortality(tmp_path)
    assert windows.labels.tolist() == [False, True, False, True]
    assert windows.series.points == 11


def test_glucose_is_of_people_and_looks_an_hour_ahead(tmp_path: Path) -> None:
    write(
        tmp_path / "shanghai-cgm" / "shanghai_cgm.parquet",
        "select f as file, split_part(f, '_', 1) as patient, "
        "timestamp '2021-07-30 16:00' + to_minutes(15 * i) as time, 100.0 + i + 100 * (f = '1001_1')::int as cgm_mgdl "
        "from (values ('1001_0'), ('1001_1'), ('2002_0')) t(f), range(100) u(i)",
    )
    windows = experiment.read_glucose(tmp_path)
    assert len(np.unique(windows.owners)) == 2  # two people, three recordings
    glucose = windows.series["CGM"]
    assert glucose.shape[0] == 8
    np.testing.assert_array_equal(windows.labels, glucose[-1] + 4 > 180)
    assert glucose[-1].max() <= 295  # the last hour has no future


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not beside the checkout")
def test_the_page_counts_the_windows_that_there_are() -> None:
    page = (REPOSITORY / "docs" / "temporal-rules.md").read_text(encoding="utf-8")
    for name, windows in (
        ("death in hospital", experiment.read_mortality(DATA)),
        ("glucose above 180", experiment.read_glucose(DATA)),
    ):
        fold = np.random.default_rng(experiment.SEED).integers(0, 4, int(windows.owners.max()) + 1)[
            windows.owners
        ]
        counts = f"{(fold > 0).sum():,}, {(fold == 0).sum():,} | {windows.labels.mean():.1%}".replace(
            "%", " %"
        )
        assert f"| {name} | {counts} |" in page
