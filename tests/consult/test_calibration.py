"""The picture of predicted against observed numbers: where its dots and ticks are, and that names stay text."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from concilium.consult.report import DOTS_SIDE, _draw_calibration, _find_ticks

SVG = "{http://www.w3.org/2000/svg}"


def group(predicted: float, observed: float, patients: int = 9) -> dict[str, float]:
    return {"patients": patients, "predicted": predicted, "observed": observed}


def dots(picture: str) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(picture)
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in root.iter(f"{SVG}circle")]


def diagonal(picture: str) -> tuple[float, float, float, float]:
    (line,) = [
        line
        for line in ElementTree.fromstring(picture).iter(f"{SVG}line")
        if "stroke-dasharray" in line.attrib
    ]
    x1, y1, x2, y2 = (float(line.attrib[name]) for name in ("x1", "y1", "x2", "y2"))
    return x1, y1, x2, y2


def test_dots_of_right_predictions_lie_on_the_line_and_others_above_or_below() -> None:
    picture = _draw_calibration([group(2, 2), group(5, 9), group(8, 4)], "stay")
    x1, y1, x2, y2 = diagonal(picture)
    heights = [y1 + (x - x1) * (y2 - y1) / (x2 - x1) - y for x, y in dots(picture)]
    assert heights[0] == pytest.approx(0, abs=0.2)
    assert heights[1] == pytest.approx(DOTS_SIDE * 4 / 8, abs=0.2)  # from 2 to 10, a tick at every 2
    assert heights[2] == pytest.approx(-DOTS_SIDE * 4 / 8, abs=0.2)


def test_every_dot_says_how_many_patients_it_stands_for() -> None:
    picture = _draw_calibration([group(1200, 1180, 1500), group(2400.4, 2500, 3)], "cost")
    said = [dot.findtext(f"{SVG}title") for dot in ElementTree.fromstring(picture).iter(f"{SVG}circle")]
    assert said == [
        "1,500 patients: predicted 1,200, observed 1,180",
        "3 patients: predicted 2,400, observed 2,500",
    ]


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=10))
def test_every_dot_is_inside(pairs: list[tuple[float, float]]) -> None:
    picture = _draw_calibration([group(*pair) for pair in pairs], "x")
    left, bottom, right, top = diagonal(picture)
    assert len(dots(picture)) == len(pairs)
    for x, y in dots(picture):
        assert left - 0.2 <= x <= right + 0.2
        assert top - 0.2 <= y <= bottom + 0.2


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
@example(-5e-324, 1e9)
def test_ticks_are_even_and_hold_everything(low: float, width: float) -> None:
    ticks = _find_ticks(low, low + width)
    assert ticks[0] <= low + 1e-6 * abs(low)
    assert ticks[-1] >= low + width - 1e-6 * abs(low)
    assert 2 <= len(ticks) <= 8
    steps = [after - before for before, after in pairwise(ticks)]
    assert min(steps) > 0
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


def test_round_numbers_are_ticks() -> None:
    assert _find_ticks(0.5, 9.4) == [0, 2, 4, 6, 8, 10]
    assert _find_ticks(5400, 19_300) == [5000, 10_000, 15_000, 20_000]
    assert _find_ticks(0, 0)[0] == 0


def test_a_name_cannot_write_svg() -> None:
    picture = _draw_calibration([group(1, 2)], "</svg><script>x</script>&")
    assert "<script>" not in picture
    ElementTree.fromstring(picture)
