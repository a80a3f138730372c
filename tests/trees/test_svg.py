"""The picture: well-formed, nothing overlaps or sticks out, nothing is lost, whatever names and values say."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pmml import CARD
from tree_bodies import bodies

from concilium.models.pictures import SMALL
from concilium.trees.body import TreeBody, TreeBranch, TreeNode
from concilium.trees.drawing import (
    ATTRIBUTE,
    LINES,
    WIDTH,
    _arrange,
    _build,
    _measure,
    _shorten,
    _unfold,
    _wrap,
    to_svg,
)
from concilium.trees.tree import DecisionTree

NS = "{http://www.w3.org/2000/svg}"


def leaves_of(body):
    return sum(node.attribute is None for node in body.nodes)


@given(bodies(), st.one_of(st.none(), st.integers(1, 20)))
@settings(max_examples=150)
def test_boxes_lie_inside_the_picture_and_never_on_each_other(body, most):
    root = ElementTree.fromstring(to_svg(body, most_leaves=most))
    left, top, width, height = map(float, root.get("viewBox").split())
    boxes = [
        tuple(float(box.get(side)) for side in ("x", "y", "width", "height"))
        for box in root.iter(NS + "rect")
        if box.get("rx")
    ]
    for x, y, w, h in boxes:
        assert left <= x
        assert x + w <= left + width
        assert top <= y
        assert y + h <= top + height
    for index, (x, y, w, h) in enumerate(boxes):
        for other in boxes[index + 1 :]:
            apart = (
                x + w <= other[0] or other[0] + other[2] <= x or y + h <= other[1] or other[1] + other[3] <= y
            )
            assert apart


@given(bodies(), st.integers(1, 20))
def test_what_is_folded_is_told(body, most):
    boxes = _arrange(_build(body, _unfold(body, most)))
    shown = [box for box in boxes if body.nodes[box.node].attribute is None]
    folded = [box for box in boxes if box.hidden]
    assert len(shown) + len(folded) <= most
    assert len(shown) + sum(box.hidden for box in folded) == leaves_of(body)
    assert all(not box.children for box in folded)


@given(bodies())
def test_without_a_limit_every_node_is_drawn_and_every_leaf_says_its_class(body):
    boxes = _arrange(_build(body, _unfold(body, None)))
    assert sorted(box.node for box in boxes) == list(range(len(body.nodes)))
    assert not any(box.hidden for box in boxes)
    text = to_svg(body)
    assert text.count("<g>") == len(body.nodes)
    assert "<script" not in text
    assert "href" not in text
    assert "url(" not in text


def test_the_branches_with_most_patients_are_unfolded_first():
    nodes = [
        TreeNode([5, 5], "a", [TreeBranch("x", 1), TreeBranch("y", 2)]),
        TreeNode([1, 1], "b", [TreeBranch("x", 3), TreeBranch("y", 4)]),
        TreeNode([4, 4], "b", [TreeBranch("x", 5), TreeBranch("y", 6)]),
        *[TreeNode([1, 0])] * 4,
    ]
    body = TreeBody(target="t", classes=["n", "y"], query="", bins={}, nodes=nodes)
    assert _unfold(body, 3) == {0, 2}
    assert _unfold(body, 1) == set()
    assert "… 4 leaves below" in to_svg(body, most_leaves=1)
    assert "… 2 leaves below" in DecisionTree.of(body, CARD).to_svg(most_leaves=3)


@given(st.text(max_size=200), st.integers(10, 14))
def test_lines_fit_their_box(text, size):
    lines = _wrap(text, size)
    assert 1 <= len(lines) <= LINES
    assert all(_measure(line, size) <= WIDTH for line in lines)
    if not lines[-1].endswith("…"):
        assert "".join(lines).replace(" ", "") == "".join(text.split())


def test_a_long_attribute_gives_way_to_its_value():
    attribute = "a name that is much longer than anybody would wish, and goes on and on" * 2
    lines = _shorten(f"{attribute} = seventeen", attribute)
    assert lines[-1].endswith("seventeen")
    assert lines[0].startswith(attribute[: ATTRIBUTE - 5])
    assert _shorten("sex = f", "sex") == ["sex = f"]


def test_hostile_names_stay_text():
    nodes = [
        TreeNode([1, 1], "</svg><script>alert(1)</script>", [TreeBranch("]]>\x00&", 1)]),
        TreeNode([0, 1]),
    ]
    body = TreeBody(target="<t>", classes=['"', "'"], query="", bins={}, nodes=nodes)
    root = ElementTree.fromstring(to_svg(body))
    assert not list(root.iter(NS + "script"))
    assert "script" in "".join(root.itertext())


def test_a_deep_tree_needs_no_deep_stack():
    nodes = [TreeNode([1, 1], f"x{i}", [TreeBranch("a", i + 1)]) for i in range(3000)]
    body = TreeBody(target="y", classes=[0, 1], query="", bins={}, nodes=[*nodes, TreeNode([1, 0])])
    assert to_svg(body).count("<g>") == 3001
    assert to_svg(body, most_leaves=5).count("<g>") == 3001


@pytest.mark.parametrize(
    ("text", "wider"), [("iiii", "MMMM"), ("abc", "abcd"), ("e\u0301", "ee"), ("ab", "日本")]
)
def test_widths_are_ordered(text, wider):
    assert _measure(text, SMALL) < _measure(wider, SMALL)
