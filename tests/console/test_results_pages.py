"""Results side by side, and terms of models to sort and find, without script."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from test_console import open_console

import concilium as cc
from concilium.console.rule_table import list_terms
from concilium.console.sorted_table import TableCell, TableColumn, arrange
from small_study import SEVERAL, lay_out

METHODS = '["tree", "rulefit", "shapes", "regression"]'
TEXT = (
    SEVERAL.replace('method = "tree"', f"method = {METHODS}\npositive = 1")
    + '[privacy]\nrelease = "exact"\n[rulefit]\ntrees = 20\n'
    '[values]\nsex = ["f", "m"]\n[evaluate]\nholdout = 0.3\nsubgroups = ["sex"]\n'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    cc.Study.read(lay_out(folder, TEXT)).run(folder / "results")
    return folder


@pytest.fixture(scope="module")
def browser(folder: Path) -> TestClient:
    return open_console(folder)


def read_column(page: str, place: int) -> list[str]:
    """The cells of a column of the one table of a page."""
    rows = re.findall(r"<tr>(.*?)</tr>", page[page.index("<tbody>") :], re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [unescape(re.sub(r"<small>.*?</small>|<[^>]+>", "", row[place])).strip() for row in cells]


def test_all_runs_stand_side_by_side(folder: Path, browser: TestClient) -> None:
    page = browser.get("/compare").text
    assert sorted(read_column(page, 1)) == sorted(["tree", "rulefit", "shapes", "regression"])
    metrics = cc.Study.read(folder / "study.toml").several
    assert len(metrics) == 4
    assert "Methods side by side" in page
    sorted_page = browser.get("/compare?sort=auc&down=1").text
    aucs = [float(one) for one in read_column(sorted_page, 4)]
    assert aucs == sorted(aucs, reverse=True)
    assert 'aria-sort="descending"' in sorted_page
    assert read_column(browser.get("/compare?find=rulefit").text, 1) == ["rulefit"]
    assert "0 of 4" in browser.get("/compare?find=nonsense").text
    assert browser.get("/compare?sort=nonsense&down=x&find=%00").status_code == 200


def test_the_report_of_several_leads_to_that_of_each(browser: TestClient) -> None:
    place = "/report/results/"
    page = browser.get(place)
    assert page.status_code == 200
    links = set(re.findall(r'href="([^"]+)"', page.text))
    assert links >= {f"{name}/report.html" for name in ("tree", "rulefit", "shapes")}
    for link in links:
        reply = browser.get(place + link)
        assert reply.status_code == 200
        assert "sandbox" in reply.headers["content-security-policy"]


def test_a_model_page_has_its_figures_and_subgroups(browser: TestClient) -> None:
    page = browser.get("/models/results/shapes").text
    assert "On held-out patients" in page
    assert "By sex" in page


@pytest.mark.parametrize("method", ["rulefit", "shapes", "regression"])
def test_terms_are_those_of_the_model(folder: Path, browser: TestClient, method: str) -> None:
    model = cc.load(folder / "results" / method / "model.json")
    page = browser.get(f"/terms/results/{method}").text
    listed = list_terms(model)
    assert listed is not None
    assert read_column(page, 0) == [row[0].text for row in listed[1]]
    assert len(listed[1]) == len(model.list_terms())
    column = listed[0][1].key
    turned = read_column(browser.get(f"/terms/results/{method}?sort={column}&down=1").text, 1)
    straight = read_column(browser.get(f"/terms/results/{method}?sort={column}").text, 1)
    assert sorted(turned) == sorted(straight)


def test_a_tree_is_no_list_of_terms(browser: TestClient) -> None:
    assert browser.get("/terms/results/tree").status_code == 404


CELLS = st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-5, 5))


@given(st.lists(CELLS), st.booleans(), st.text(max_size=5))
def test_sorting_loses_no_row_and_unknown_ones_come_last(
    values: list[float | None], down: bool, find: str
) -> None:
    rows = [[TableCell(f"row {n} {value}", value)] for n, value in enumerate(values)]
    wanted = {"sort": "x", "down": "1" if down else "0"}
    table = arrange([TableColumn("x", "X", True)], rows, wanted)
    orders = [row[0].order for row in table.rows]
    known = [one for one in orders if one is not None]
    assert known == sorted((one for one in values if one is not None), reverse=down)
    assert orders[len(known) :] == [None] * (len(values) - len(known))
    found = arrange(table.columns, rows, {"find": find})
    words = find.casefold().split()
    assert [row[0].text for row in found.rows] == [
        row[0].text for row in rows if all(word in row[0].text for word in words)
    ]
