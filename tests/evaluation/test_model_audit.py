"""Audits of every method of the closed list, what they say in words, and the page."""

from __future__ import annotations

import json

import numpy as np
import pytest

import concilium as cc
from concilium.consult.audit_report import render_audit
from concilium.errors import ModelError
from concilium.evaluation.attacks import AttributeFigures, Estimate, _Guess
from concilium.evaluation.audit import GUESSES, _say_guesses, audit_model, say_meaning
from concilium.evaluation.audited_patients import (
    NUMBER,
    AuditedPatients,
    _join_parts,
    observe,
    share_of_truth,
)
from concilium.registry import METHODS
from contract.patients import ROWS, VARIANTS, hold, make, make_rows, method_types, open_sites

OTHERS = {"elsewhere": hold(make_rows(120, 9))}
MEMBERS = {name: hold(rows) for name, rows in ROWS.items()}
AUDITED = AuditedPatients.join(MEMBERS, OTHERS)
_fitted = {}


def fitted(name, release, options):
    key = (name, release, *options)
    if key not in _fitted:
        _fitted[key] = make(method_types()[name], release, **options).fit(cc.House(open_sites()))
    return _fitted[key]


# How coefficients were found makes no difference to whoever attacks them.
@pytest.mark.parametrize(
    ("name", "release", "options"),
    [one for one in VARIANTS if one[0] in METHODS and "solver" not in one[2]],
    ids=str,
)
def test_every_model_that_predicts_can_be_audited(name, release, options):
    model = fitted(name, release, options)
    silent = None
    if getattr(model, "window", "") is None:
        silent = "without a window"  # rules that were given, and nothing of an outcome
    elif "answers" in options:
        silent = "no student yet"  # answers to single questions, and no model that goes out
    elif name == "discovery" and model.find_why_silent():
        silent = "predicts nothing"  # by chance: so few patients may leave no rule that says something
    if silent is not None:
        with pytest.raises(ModelError, match=silent):
            audit_model(model, AUDITED, resamples=10)
        return
    audit = audit_model(model, AUDITED, resamples=50)
    about = len(model.find_outcomes(AUDITED.patients).rows)
    assert sum(audit.about) == about
    assert audit.about[1] <= 120
    figures = audit.membership["threshold"]
    assert -1 <= figures.advantage.low <= figures.advantage.value <= figures.advantage.high <= 1
    assert 0 <= figures.auc.low <= figures.auc.value <= figures.auc.high <= 1
    assert (audit.bound is not None) == (release in ("private", "local"))
    sentences = " ".join(say_meaning(audit))
    assert "An attack that fails" in sentences
    assert ("no attack of any kind" in sentences) == (release in ("private", "local"))
    assert json.loads(json.dumps(audit.to_dict()))["meaning"] == say_meaning(audit)
    page = render_audit(audit, "model.json")
    assert page.count("<svg") == 1
    assert "What it means" in page


def test_losses_are_those_of_the_predictions():
    model = fitted("tree", "exact", {})
    table = AUDITED.patients.table
    responses = observe(model, AUDITED.patients)
    shares, truth = model.predict_proba(table), table.values("y")
    own = [shares[row, model.classes_.index(value)] for row, value in enumerate(truth)]
    np.testing.assert_allclose(responses.losses, [1 - one for one in own])
    kept = np.clip(own, 1e-4, 1 - 1e-4)
    np.testing.assert_allclose(responses.signals, np.log(kept / (1 - kept)))
    assert share_of_truth(model, table.take(np.arange(2)), ["yes", "never met"])[1] == 0


def test_losses_of_numbers_are_squared_errors_and_patients_count_once():
    rows = [{**row, "y": row["age"] or 50.0} for row in make_rows(90, 1)]
    table = cc.Records.from_rows(rows, schema={"age": "number", "y": "number"})
    model = cc.RuleFit("y", bins={"pressure": [120.0], "y": [0, 100]}, release="exact", trees=5).fit(
        cc.House([cc.Site("a", table)])
    )
    responses = observe(model, cc.Patients(table=table))
    np.testing.assert_allclose(responses.signals, model.predict(table))
    np.testing.assert_allclose(
        responses.losses, (model.predict(table) - [row["y"] for row in rows]) ** 2, atol=1e-9
    )

    class Twice(cc.RuleFit):
        def find_outcomes(self, patients):
            found = super().find_outcomes(patients)
            asked = found.asked.take(np.repeat(np.arange(len(found.rows)), 2))
            return type(found)(asked, np.repeat(found.truth, 2).tolist(), np.repeat(found.rows, 2))

    again = observe(Twice.of(model.body, model.card), cc.Patients(table=table))
    np.testing.assert_allclose(again.losses, responses.losses)
    assert again.rows.tolist() == responses.rows.tolist()


def test_patients_whom_the_model_is_not_about_are_left_out():
    model = cc.DecisionTree("y", query="sex = 'f'", bins={"age": [60]}).fit(cc.House(open_sites()))
    audit = audit_model(model, AUDITED, resamples=10)
    everyone = [*(row for rows in ROWS.values() for row in rows)]
    assert audit.about == (
        sum(row["sex"] == "f" for row in everyone),
        sum(row["sex"] == "f" for row in make_rows(120, 9)),
    )
    nobody = cc.DecisionTree("y", query="sex = 'f'", bins={"age": [60]}).fit(cc.House(open_sites()))
    men = AuditedPatients.join(MEMBERS, {"m": hold([r for r in make_rows(120, 9) if r["sex"] == "m"])})
    with pytest.raises(ModelError, match="nobody among the others"):
        audit_model(nobody, men, resamples=10)


def test_members_among_the_others_are_counted():
    rows = make_rows(50, 3)
    both = AuditedPatients.join({"a": hold(rows)}, {"b": hold([*rows[:20], *make_rows(30, 4)])})
    assert both.count_doubles() == 20
    audit = audit_model(fitted("tree", "exact", {}), both, resamples=10)
    assert any(sentence.startswith("20 of the others") for sentence in say_meaning(audit))


def test_joined_patients_keep_their_order_and_parts():
    first, second = hold(make_rows(5, 1)), hold(make_rows(7, 2))
    joined = _join_parts([first, second])
    assert joined.reads == ("table", "series")
    assert joined.by == NUMBER
    ages = [row["age"] for row in [*make_rows(5, 1), *make_rows(7, 2)]]
    assert joined.table.values("age") == ages
    course = joined.series["age"][0]
    np.testing.assert_allclose(course, [np.nan if age is None else age for age in ages], rtol=1e-6)
    with pytest.raises(ModelError, match="some of the patients have series and some have not"):
        _join_parts([first, cc.Patients(table=second.table)])
    with pytest.raises(ModelError, match="nobody among the others"):
        AuditedPatients.join({"a": first}, {})


def test_only_what_exceeds_the_groups_own_difference_is_put_down_to_membership():
    def guess(advantage, half=0.02):
        rate = Estimate(0.7, 0.68, 0.72)
        return _Guess(rate, rate, Estimate(advantage, advantage - half, advantage + half))

    def say(marginal, imputation, model, both):
        guesses = dict(zip(GUESSES, map(guess, (marginal, imputation, model, both)), strict=True))
        return " ".join(_say_guesses(AttributeFigures("ward", ["a", "b"], True, 100, 50, 50, guesses)))

    assert "because they were members" not in say(
        0.03, 0.0, 0.03, 0.0
    )  # members have the commonest ward more often
    assert "because they were members" in say(0.03, 0.0, 0.08, 0.0)
    assert "because they were members" in say(0.0, 0.0, 0.0, 0.05)
    assert "because they were members" not in say(-0.04, 0.0, -0.01, 0.0)


def test_attributes_of_courses_are_not_guessed():
    model = fitted("discovery", "private", {"window": "3h", "limits": 2})
    with pytest.raises(ModelError, match="a model of courses"):
        audit_model(model, AUDITED, attribute="sex", resamples=10)


def test_shadows_of_a_private_discovery_on_series(monkeypatch):
    # Rules are fitted though none is sure to say something: so few patients would leave that to chance.
    place = "concilium.temporal.outcome_fit.choose_fitted"
    monkeypatch.setattr(place, lambda effects: list(range(len(effects))))
    options = {"window": "3h", "limits": 2}
    told = []
    audit = audit_model(
        fitted("discovery", "private", options),
        AUDITED,
        shadows=4,
        make=lambda: make(method_types()["discovery"], "private", **options),
        resamples=10,
        tell=told.append,
    )
    assert audit.shadows == 4
    assert "shadow model 4 of 4" in told
    assert set(audit.membership) == {"threshold", "shadows"}


def test_shadows_need_parameters_and_number():
    model = fitted("tree", "exact", {})
    with pytest.raises(ModelError, match="need the parameters"):
        audit_model(model, AUDITED, shadows=4)
    with pytest.raises(ModelError, match="at least 4"):
        audit_model(model, AUDITED, shadows=3, make=lambda: model)
