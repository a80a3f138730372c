"""Ways of learning beside each other on the patients whom a study holds back."""

from __future__ import annotations

from pathlib import Path

import pytest

import concilium as cc
from concilium.errors import StudyError
from concilium.evaluation.alone import fit_alone
from concilium.evaluation.leave_out import hold_out
from concilium.study.evaluating import compare_held_back, hold_back
from concilium.study.sources import read_tables
from small_study import HOSPITALS, SPLIT, lay_out


def test_those_held_back_and_those_learned_from_are_everyone_once(tmp_path: Path) -> None:
    study = cc.Study.read(lay_out(tmp_path, SPLIT + "[evaluate]\nholdout = 0.3\n"))
    tables = read_tables(study)
    learning, held_back = hold_back(study, tables)
    for name in HOSPITALS:
        held = hold_out(len(tables[name]), 0.3, name)
        assert held_back[name].digest == tables[name].take(held).digest
        assert learning[name].digest == tables[name].take(~held).digest
    assert hold_back(cc.Study.read(lay_out(tmp_path)), tables) == (tables, {})


@pytest.mark.parametrize("more", ["", '[privacy]\nrelease = "masked"\n[evaluate]\nholdout = 0.3\n'])
def test_where_nobody_is_held_back_there_is_nothing_to_compare(tmp_path: Path, more: str) -> None:
    study = cc.Study.read(lay_out(tmp_path, SPLIT + more))
    with pytest.raises(StudyError, match=r"it goes with \[evaluate\] holdout"):
        compare_held_back(study, read_tables(study))


def test_alone_and_pooled_are_measured_on_the_patients_of_the_study_s_own_figures(tmp_path: Path) -> None:
    study = cc.Study.read(lay_out(tmp_path, SPLIT + "[evaluate]\nholdout = 0.3\n"))
    results, tables = study.run(), read_tables(study)
    ways, pooled = compare_held_back(study, tables)
    # All sites answer, so that the federated tree is the pooled one.
    assert pooled.body == results.model.body
    assert ways["pooled"]["accuracy"] == pytest.approx(results.metrics["accuracy"])
    assert ways["pooled"]["auc"] == pytest.approx(results.metrics["auc"])
    wrong = 0
    learning, held_back = hold_back(study, tables)
    for name in HOSPITALS:
        own = fit_alone(study.open_method, name, learning[name])
        pairs = zip(own.predict(held_back[name]), held_back[name].values("death"), strict=True)
        wrong += sum(guess != truth for guess, truth in pairs)
    assert ways["local"]["wrong"] == wrong
    assert ways["local"]["patients"] == results.metrics["patients"]
