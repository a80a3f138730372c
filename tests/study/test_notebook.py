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


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Any:
    text = SPLIT.replace('"small"', '"a <b>small</b> study"').replace('"tree"', '["tree", "naive-bayes"]')
    folder: Path = tmp_path_factory.mktemp("several")
    return cc.Study.read(lay_out(folder, text + "[evaluate]\nholdout = 0.3\n")).run()


@pytest.fixture(scope="module")
def validated(results: Any) -> Any:
    table = results.study.path.parent / "all.csv"
    return results.model.evaluate(cc.House([cc.Site("here", cc.Records.read(table))]))


def test_nothing_is_long(results: Any, several: Any, validated: Any) -> None:
    explained = results.model.explain({"age": 70})
    plan, picture = results.study.plan(), results.plot()
    for one in (results, results.study, plan, results.card, explained, picture, several, validated):
        assert len(repr(one)) < 300
        assert "\n" not in repr(one)
    site = cc.Site("here", cc.Records.from_rows([{"age": 3}]))
    assert repr(cc.House([site])) == "House(1 site: here)"
    assert repr(cc.Policy()) == "Policy()"
    assert repr(cc.Policy(minimum_patients=9)) == "Policy(minimum_patients=9)"
    assert repr(explained).startswith("Explanation('death = ")
    assert repr(results.study) == "Study('a <b>small</b> study', tree, target='death', release=exact)"


def test_figures_are_those_measured(results: Any) -> None:
    assert f"{results.metrics['accuracy']:.3f}" in repr(results)
    page = results._repr_html_()
    low, high = results.metrics["overall"]["intervals"]["auc"]
    assert f"<td>{results.metrics['auc']:.3f}</td><td>{low:.3f} to {high:.3f}</td>" in page


def test_pages_are_escaped_and_well_formed(results: Any, several: Any, validated: Any) -> None:
    explained = results.model.explain({"age": 70})
    plan, study = results.study.plan(), results.study
    for one in (results, study, plan, results.card, explained, several, several.study, validated):
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


def test_a_model_of_terms_is_a_frame(results: Any) -> None:
    table = results.study.path.parent / "all.csv"
    rules = cc.RuleFit("death", trees=20, release="exact").fit({"here": table})
    frame = rules.table()
    assert frame["rule"].tolist() == [one.rule for one in rules.list_terms()]
    assert frame["odds_ratio"].tolist() == [one.odds_ratio for one in rules.list_terms()]
    described = cc.Describe("death", release="exact").fit({"here": table})
    assert described.table().to_csv(index=False).splitlines()[0] == described.to_csv().splitlines()[0]
    with pytest.raises(ModelError, match="a DecisionTree is no table"):
        results.model.table()


def test_a_model_without_a_picture_says_so(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(results.model), "pictures", lambda self: {})
    with pytest.raises(ModelError, match="has no picture"):
        results.model.plot()
