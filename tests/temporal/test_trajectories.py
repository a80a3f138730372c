"""Pictures of courses: well-formed whatever the names, with the courses, limits and gaps that there are."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from concilium.errors import FormulaError, ModelError, RecordsError
from concilium.records.series import Series
from concilium.temporal.formula import Always, Limit
from concilium.temporal.parsing import parse
from concilium.temporal.trajectories import BREAKS, FULFILS, draw_trajectories

SVG = "{http://www.w3.org/2000/svg}"
NAN = float("nan")


def read_texts(picture):
    return [element.text for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def read_courses(picture, colour):
    """The strokes of each panel in this colour."""
    paths = ElementTree.fromstring(picture).iter(f"{SVG}path")
    return [path.get("d") for path in paths if path.get("stroke") == colour]


def count_courses(strokes):
    """Whole courses have one beginning."""
    return strokes.count("M")


def test_courses_are_grouped_by_whether_they_fulfil_the_rule():
    series = Series({"HR": [[100, 80, 95, 90], [100, 80, 85, 90]]})
    picture = draw_trajectories(parse("G[0,1] HR >= 90"), series)
    assert {"2 fulfil it", "2 break it", ">= 90", "HR", "G[0,1] HR >= 90"} <= set(read_texts(picture))
    assert [count_courses(read_courses(picture, colour)[0]) for colour in (FULFILS, BREAKS)] == [2, 2]


def test_a_value_at_the_limit_goes_by_truth_and_not_by_robustness():
    series = Series({"HR": [[90.0]]})
    assert "1 break it" in read_texts(draw_trajectories(parse("G[0,0] HR < 90"), series))
    assert "1 fulfil it" in read_texts(draw_trajectories(parse("G[0,0] HR >= 90"), series))


def test_windows_in_which_the_rule_is_unknown_are_not_drawn():
    series = Series({"HR": [[100, NAN, 80], [100, 100, NAN]]}, lengths=[2, 2, 2])
    picture = draw_trajectories(parse("G[0,1] HR >= 90"), series)
    assert {"1 fulfil it", "1 break it"} <= set(read_texts(picture))  # the third is false whatever is missing
    assert sum(count_courses(read_courses(picture, colour)[0]) for colour in (FULFILS, BREAKS)) == 2


@pytest.mark.parametrize(("most", "shown"), [(25, 25), (3, 3), (0, 0)])
def test_of_many_courses_some_are_shown_and_all_are_counted(most, shown):
    values = np.linspace(40, 140, 1001)
    series = Series({"HR": np.stack([values, values])})
    picture = draw_trajectories(parse("G[0,1] HR >= 90"), series, most)
    assert {f"501 fulfil it, {shown} shown", f"500 break it, {shown} shown"} <= set(read_texts(picture))
    assert [count_courses(read_courses(picture, colour)[0]) for colour in (FULFILS, BREAKS)] == [shown] * 2


def test_every_variable_has_a_panel_with_its_limits():
    series = Series({"HR": [[100, 80]] * 3, "Temp": [[38, 36]] * 3, "MAP": [[70, 70]] * 3})
    picture = draw_trajectories(parse("G[0,2](HR >= 90 and HR < 120) or F[1,2] Temp >= 38.5"), series)
    texts = read_texts(picture)
    assert {"HR", "Temp", ">= 90", "< 120", ">= 38.5"} <= set(texts)
    assert "MAP" not in texts
    lines = [
        line for line in ElementTree.fromstring(picture).iter(f"{SVG}line") if line.get("stroke-dasharray")
    ]
    assert len(lines) == 3
    boxes = [float(box.get("x")) for box in ElementTree.fromstring(picture).iter(f"{SVG}rect")]
    assert len(boxes) == 3  # two frames, and the interval that is not the whole window


def test_an_interval_in_hours_is_drawn_in_steps():
    series = Series({"HR": [[100.0]] * 9}, step="15min")
    picture = draw_trajectories(parse("F[1h,2h] HR >= 90"), series)
    frame, interval = ElementTree.fromstring(picture).iter(f"{SVG}rect")
    assert float(interval.get("width")) == pytest.approx(float(frame.get("width")) / 2)
    assert "2" in read_texts(picture)  # the last of eight quarters of an hour


def test_missing_and_infinite_values_break_lines():
    series = Series({"HR": [[100], [101], [NAN], [103], [np.inf], [105]], "Temp": [[38]] * 6})
    picture = draw_trajectories(parse("F[0,5] HR >= 100 and G[0,5] Temp >= 37"), series)
    heart, temperature = read_courses(picture, FULFILS)
    assert count_courses(heart) == 3
    assert count_courses(temperature) == 1
    assert not re.search("nan|inf", heart)


def test_names_are_escaped():
    name = '<b>&"\x00'
    series = Series({name: [[1.0, 2.0]] * 2})
    picture = draw_trajectories(Always((0, 1), Limit(name, ">=", 1.5)), series)
    assert "<b>" not in picture
    assert '<b>&"\ufffd' in read_texts(picture)


def test_windows_of_one_step_have_one_time():
    picture = draw_trajectories(parse("G[0,0] HR >= 90"), Series({"HR": [[100.0, 80.0]]}))
    texts = read_texts(picture)
    assert texts.count("0") == 1
    assert "1" not in texts
    assert [count_courses(read_courses(picture, colour)[0]) for colour in (FULFILS, BREAKS)] == [1, 1]


def test_the_interval_of_one_step_stays_in_its_frame():
    picture = draw_trajectories(parse("G[3,3] HR >= 90"), Series({"HR": [[100.0]] * 4}))
    frame, interval = (
        (float(box.get("x")), float(box.get("width")))
        for box in ElementTree.fromstring(picture).iter(f"{SVG}rect")
    )
    assert interval[1] > 0
    assert sum(interval) <= sum(frame)


@pytest.mark.parametrize("patients", [0, 2])
def test_nothing_measured_is_an_empty_picture(patients):
    series = Series({"HR": np.full((3, patients), np.nan)}, lengths=np.full(patients, 3))
    texts = read_texts(draw_trajectories(parse("G[0,2] HR >= 90"), series))
    assert {"0 fulfil it", "0 break it", ">= 90"} <= set(texts)


@pytest.mark.parametrize(
    ("text", "error", "problem"),
    [
        ("true", ModelError, "without variables"),
        ("G[0,1] Pulse >= 90", RecordsError, "no variable 'Pulse'"),
        ("G[0,1] HR >= ?", FormulaError, "template"),
        ("G[0,9] HR >= 90", FormulaError, "longer than any stay"),
    ],
)
def test_what_cannot_be_drawn(text, error, problem):
    with pytest.raises(error, match=problem):
        draw_trajectories(parse(text), Series({"HR": [[100.0]] * 2}))
