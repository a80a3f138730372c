"""Odd patients: what is wrong with them, and where, is said in one sentence."""

from __future__ import annotations

import pytest
from test_tree_equals_pooled import house_of

import concilium as cc
from concilium.errors import HouseError
from concilium.trees.schemas import find_lonely_classes, say_constant

ROWS = [
    {"age": 20.5 + i % 60, "sex": "fm"[i % 2], "unit": "icu", "y": "yes" if i % 3 == 0 else "no"}
    for i in range(90)
]
SITES = {"north": ROWS[::3], "south": ROWS[1::3], "coast": ROWS[2::3]}


def learn(sites, **options):
    return cc.DecisionTree("y", **options).fit(house_of(sites))


def warnings(sites, **options):
    return learn(sites, **options).card.warnings


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_a_query_that_leaves_one_class(release):
    mixed = {
        name: [{**row, "y": "yes" if i % 3 == 0 else "no"} for i, row in enumerate(rows)]
        for name, rows in SITES.items()
    }
    said = warnings(mixed, query="y = 'no'", release=release)
    assert "every patient of the query \"y = 'no'\" has y = no: there is nothing to learn" in said


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_a_class_that_one_site_alone_has_is_named_with_the_site(release):
    rows = [{"a": i % 3, "y": "yes" if i % 4 == 0 else "no"} for i in range(60)]
    slips = [{**row, "y": "Yes" if row["y"] == "yes" else "no"} for row in rows]
    sites = {"north": rows, "south": slips, "coast": rows}
    (said,) = [warning for warning in warnings(sites, release=release) if "one site alone" in warning]
    assert said == (
        "values of the target that one site alone has: y = Yes at south; check how they are written"
    )
    assert learn(sites, release=release).classes_ == ["Yes", "no", "yes"]
    assert not any("one site alone" in warning for warning in warnings({"north": rows, "coast": rows}))
    assert not any("one site alone" in warning for warning in warnings({"south": slips}))


def test_many_such_classes_are_counted():
    (said,) = find_lonely_classes("y", {"a": [*range(9)], "b": [0, 1]})
    assert said.startswith("values of the target that one site alone has: y = 2 at a, y = 3 at a")
    assert "and 2 more; check" in said
    assert find_lonely_classes("y", {"a": [1, 2], "b": ["1", "2"]}) == []


def test_bins_for_text_name_the_site_and_the_attribute():
    text = [{**row, "age": "old" if i % 2 else "young"} for i, row in enumerate(ROWS)]
    with pytest.raises(HouseError) as caught:
        learn({"north": ROWS, "south": text}, bins={"age": [40, 60]})
    assert str(caught.value) == (
        "the study does not fit every site: south: attribute 'age' holds text, so bins do not apply to it; fix the "
        "column, or give no bins for it (where the text stands for missing, or has a decimal comma, the hospital's map "
        "says so)"
    )


def test_a_number_here_and_text_there_without_bins_is_left_out_and_said():
    text = [{**row, "age": "old" if i % 2 else "young"} for i, row in enumerate(ROWS)]
    said = "left out: age (a number at north, text at south, whose map can fix it)"
    about = {"attributes": ["age", "sex"]}
    assert said in warnings({"north": ROWS, "south": text}, **about)
    whole = [{**row, "age": int(row["age"])} for row in ROWS]
    assert not any("left out" in warning for warning in warnings({"north": ROWS, "south": whole}, **about))


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_what_is_the_same_everywhere_is_named(release):
    sites = {name: [{**row, "empty": None} for row in rows] for name, rows in SITES.items()}
    model = learn(sites, bins={"age": [400]}, release=release)
    said = [w for w in model.card.warnings if "of no use" in w]
    assert said == ["the same for every patient learned from, at every site, and so of no use: age"]
    assert "left out: empty (missing for everybody); unit (the same for everybody)" in model.text()
    assert not any("of no use" in w for w in warnings(sites, attributes=["sex"], release=release))
    other = {**sites, "isle": [{**row, "unit": "ward", "empty": 1} for row in ROWS]}
    assert not any("of no use" in w for w in warnings(other, bins={"age": [40]}, release=release))


def test_what_a_site_leaves_out_is_not_called_the_same():
    rows = [{"a": "u" if i else "v", "b": "pq"[i % 2], "y": "ny"[i // 2 % 2]} for i in range(80)]
    site = cc.Site("s", cc.Records.from_rows(rows), cc.Policy(minimum_cell=3))
    assert not any("of no use" in w for w in cc.DecisionTree("y").fit(cc.House([site])).card.warnings)


def test_many_names_are_counted():
    assert say_constant([f"x{i}" for i in range(7)])[0].endswith("x0, x1, x2, x3, x4 and 2 more")
    assert say_constant([]) == []
