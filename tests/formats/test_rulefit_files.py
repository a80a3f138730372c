"""Model files of the version before attributes had cells of their own: they load, predict and explain as they did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import concilium as cc

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "rulefit-recorded.json").read_text())
PATIENTS = RECORDED.pop("patients")


@pytest.mark.parametrize("name", RECORDED)
def test_a_file_says_of_patients_what_was_recorded(name, tmp_path):
    recorded = RECORDED[name]
    model = cc.load(HERE / f"{name}.json")
    records = cc.Records.from_rows(PATIENTS, schema={"age": "number", "sex": "code", "grade": "code"})
    again = tmp_path / "again.json"
    model.save(again)
    for one in (model, cc.load(again)):
        assert one.text() == recorded["text"]
        assert (one.classes_, one.attributes_) == (recorded["classes"], recorded["attributes"])
        assert (one.rules_, one.terms_) == (recorded["rules"], recorded["terms"])
        assert one.importances() == pytest.approx(recorded["importances"], rel=1e-12)
        assert one.decide(records) == pytest.approx(recorded["predictor"], rel=1e-12)
        for patient, reasons in zip(PATIENTS, recorded["reasons"], strict=True):
            moved = {reason.condition: reason.moved for reason in one.explain(patient).reasons}
            assert moved == pytest.approx(reasons, rel=1e-12)
        if one.classes_:
            assert one.predict(records).tolist() == recorded["predictions"]
            assert np.allclose(one.predict_proba(records), recorded["chances"], rtol=1e-12)
        else:
            assert one.predict(records) == pytest.approx(recorded["predictions"], rel=1e-12)


def test_a_model_from_a_file_has_the_parameters_that_it_tells():
    model = cc.load(HERE / "rulefit-private.json")
    assert (model.target, model.positive, model.release) == ("died", "yes", "private")
    assert repr(model).startswith("RuleFit(target='died', positive='yes', release='private') [")
    assert cc.load(HERE / "rulefit-number.json").positive is None
