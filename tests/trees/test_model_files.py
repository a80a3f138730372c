"""Model files of the version before load and say what they said then (tests/formats: generated patients only)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import concilium as cc

FORMATS = Path(__file__).parent.parent / "formats"
RECORDED = json.loads((FORMATS / "trees-recorded.json").read_text(encoding="utf-8"))
PATIENTS = RECORDED["patients"]


@pytest.mark.parametrize("name", RECORDED["models"])
def test_a_model_file_of_before_says_what_it_said(name, tmp_path):
    before = RECORDED["models"][name]
    model = cc.load(FORMATS / f"{name}.json")
    assert model.classes_ == before["classes"]
    assert model.attributes_ == before["attributes"]
    assert model.text() == before["text"]
    # Shares of counts are the same everywhere; the last digit of a logarithm is the processor's.
    last_digit = 1e-14 if model.method == "naive-bayes" else 0
    np.testing.assert_allclose(model.predict_proba(PATIENTS), before["shares"], rtol=last_digit, atol=0)
    assert model.predict(PATIENTS).tolist() == before["predictions"]
    assert [str(model.explain(patient)) for patient in PATIENTS] == before["explanations"]
    document = json.loads((FORMATS / f"{name}.json").read_text(encoding="utf-8"))
    assert model.release == document["card"]["release"]
    model.save(tmp_path / "again.json")
    again = cc.load(tmp_path / "again.json")
    assert (again.body, again.card, again.get_params()) == (model.body, model.card, model.get_params())


def test_there_is_a_file_of_every_method_and_release():
    documents = [json.loads((FORMATS / f"{name}.json").read_text()) for name in RECORDED["models"]]
    assert {(document["method"], document["card"]["release"]) for document in documents} == {
        ("tree", "exact"),
        ("tree", "masked"),
        ("tree", "private"),
        ("voting-trees", "exact"),
        ("naive-bayes", "exact"),
        ("naive-bayes", "private"),
    }
