"""Table 4.3 of the thesis, made again: the same by constraint graph as by not having the column, whoever blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

import concilium as cc
import table_4_3 as table

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY.parent / "shared" / "data" / "spect"


pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="SPECT Heart is not beside the checkout")


def test_there_are_256_instances_of_which_the_query_selects_37() -> None:
    rows = table.read_instances(DATA)
    assert len(rows) == 256
    assert cc.Query.parse(table.QUERY).mask(cc.Records.from_rows(rows)).sum() == 37
    sites, order = table.deal(rows, 1)
    assert [len(here) for here in sites.values()] == [16] * 16
    assert sorted(order) == sorted(sites)


def test_one_deal_gives_what_the_page_says() -> None:
    sites, order = table.deal(table.read_instances(DATA), 1)
    found = {
        (blocked, by_graph): table.count_right(sites, blocked, set(order[:4]), by_graph)
        for blocked in ("a13", "a10")
        for by_graph in (False, True)
    }
    assert found == {
        ("a13", False): (35, 37),
        ("a13", True): (35, 37),
        ("a10", False): (31, 37),
        ("a10", True): (31, 37),
    }
    page = (REPOSITORY / "docs" / "constraint-graphs.md").read_text(encoding="utf-8")
    assert "| a13 | 4, 12, 16 | 35/37 | 35/37 | 35/37 | 36/37 |" in page
    assert "| a10 | 4, 12, 16 | 31/37 | 31/37 | 30/37 | 32/37 |" in page
