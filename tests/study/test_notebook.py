"""What a notebook shows of results, plan, card, explanation and study: short, and nothing in it is markup of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import concilium as cc
from concilium.errors import ModelError
from concilium.models.pictures import Picture
from small_study import SPLIT, lay_out


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    text = SPLIT.replace('"small"', '"a <b>small</b> study"') + "[evaluate]\nholdout = 0.3\n"
    folder: Path = tmp_path_factory.mktemp("notebook")
    return cc.Study.read(lay_out(folder, text)).run(folder / "results")


def test_nothing_is_long(results: Any) -> None:
    explained = results.model.explain({"age": 70})
    for one in (results, results.study, results.study.plan(), results.card, explained):
        assert len(repr(one)) < 300
        assert "\n" not in repr(one)
    assert repr(explained).startswith("Explanation('death = ")
    assert repr(results.study) == "Study('a <b>small</b> study', tree, target='death', release=exact)"


def test_figures_are_those_measured(results: Any) -> None:
    assert f"{results.metrics['accuracy']:.3f}" in repr(results)
    page = results._repr_html_()
    low, high = results.metrics["overall"]["intervals"]["auc"]
    assert f"<td>{results.metrics['auc']:.3f}</td><td>{low:.3f} to {high:.3f}</td>" in page


def test_pages_are_escaped_and_well_formed(results: Any) -> None:
    explained = results.model.explain({"age": 70})
    for one in (results, results.study.plan(), results.card, explained):
        page = one._repr_html_()
        ElementTree.fromstring(f"<div>{page}</div>")
        assert "<b>small</b>" not in page
    assert explained.sentences[1] in ElementTree.tostring(
        ElementTree.fromstring(f"<div>{explained._repr_html_()}</div>"), encoding="unicode", method="text"
    )


def test_pictures_are_drawn(results: Any) -> None:
    for picture in (results.plot(), results.model.plot()):
        assert isinstance(picture, Picture)
        assert ElementTree.fromstring(picture._repr_svg_()).tag.endswith("svg")
    assert "ROC curve" in results.plot()


def test_a_model_without_a_picture_says_so(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(results.model), "pictures", lambda self: {})
    with pytest.raises(ModelError, match="has no picture"):
        results.model.plot()
