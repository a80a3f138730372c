"""The report where ways of learning are compared and the model is drawn."""

from __future__ import annotations

from typing import Any

from test_report import Outline, card, metrics

from concilium.consult.report import render_report
from concilium.registry import METHODS, load
from concilium.trees.body import TreeBody, TreeBranch, TreeNode
from concilium.trees.drawing import to_svg

ROW = {"patients": 90, "wrong": 9, "accuracy": 0.9, "balanced_accuracy": 0.8, "auc": 0.85}
GAP = {"mean": 0.05, "low": -0.01, "high": 0.11, "error": 0.02, "folds": 3, "confidence": 0.95}
DONOR = {"site": "north", "accuracy": 0.97, "positives": 12, "auc": 0.9, "weight": 1.0}


def way(wrong: int, without: list[str] | None = None) -> dict[str, Any]:
    same = {**ROW, "wrong": wrong}
    return {**same, "without": without or [], "same_patients": same}


def comparison(donors: Any) -> dict[str, Any]:
    ways = {"local": way(20, ["tiny"]), "federated": way(9), "pooled": way(8)}
    return {
        "ways": ways if isinstance(donors, str) else {**ways, "donor": way(14)},
        "sites": {"north": {}, "south": {}, "tiny": {}},
        "intervals": {"local": GAP, "pooled": None},
        "donors": donors,
    }


def page(donors: Any, **pictures: str) -> str:
    return render_report(metrics(comparison=comparison(donors)), card(), "death (9 patients)", "", pictures)


def test_every_way_has_its_row_and_the_smallest_sites_are_told() -> None:
    text = Outline(page([DONOR, {**DONOR, "site": "south"}])).text
    for words in (
        "local 90 20 0.900 0.850 +0.050 (-0.010 to +0.110)",
        "federated 90 9",
        "pooled 90 8",
        "donor 90 14",
        "1 of 3 sites have too few patients for a model of their own",
        "Best donor: north , whose own model is right for 97.0 % of its patients (12 of them positive, AUC 0.900); it "
        "borrows from south",
    ):
        assert words in text, words


def test_no_donor_and_a_single_donor_are_said() -> None:
    assert "No donor model: nobody is good enough." in Outline(page("nobody is good enough")).text
    assert "it borrows from nobody" in Outline(page([DONOR])).text


def test_without_a_comparison_there_is_no_word_of_it() -> None:
    assert "pooled" not in render_report(metrics(), card(), "", "").lower()


def test_the_picture_is_in_the_page_and_brings_nothing_with_it() -> None:
    hostile = [
        TreeNode([2, 3], "</figure><script>x</script>", [TreeBranch("<marquee>", 1)]),
        TreeNode([0, 3]),
    ]
    body = TreeBody(target="death", classes=["no", "yes"], query="", bins={}, nodes=hostile)
    outline = Outline(page("nobody", tree=to_svg(body)))
    assert {"svg", "rect", "text", "path", "figure"} <= outline.tags
    assert not outline.tags & {"script", "link", "img", "iframe", "object", "form", "marquee"}
    assert outline.links == []
    assert "All of the model as text" in outline.text


def test_folds_that_shared_a_conversation_are_told() -> None:
    took = {"together": 10, "rounds": 4, "bytes": 5000, "numbers": 1234, "seconds": 0.5}
    text = Outline(render_report(metrics(folds_took=took), card(), "", "")).text
    assert "10 folds were learned in one conversation of 4 rounds, 5,000 bytes and 1,234 numbers" in text


def test_of_several_pictures_the_first_is_open() -> None:
    text = page("nobody", **{"expert 1 of 2": "<svg>one</svg>", "expert 2 of 2": "<svg>two</svg>"})
    assert '<details class="whole" open><summary>Expert 1 of 2</summary>' in text
    assert '<details class="whole" open><summary>Expert 2 of 2</summary>' in text
    assert "of 1</summary>" not in page("nobody", tree="<svg>one</svg>")


def test_every_method_has_words() -> None:
    for method, place in METHODS.items():
        words = load(place).description
        assert words in Outline(render_report(metrics(method=method), card(), "", "")).text
