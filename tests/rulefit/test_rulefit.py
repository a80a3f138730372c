"""The federated fit is the pooled fit: the optimum is computed again, by another method, from the design it shows."""

from __future__ import annotations

from datetime import date, timedelta
from fractions import Fraction

import numpy as np
import pytest
from pooled_lasso import find_optimum, objective
from rule_patients import BINS, COLUMNS, draw, open_house, open_site, records_of, small_rulefit

import concilium as cc
from concilium.errors import HouseError, ModelError, StudyError
from concilium.privacy.accounting import rho_for_epsilon


@pytest.fixture(scope="module")
def patients():
    return draw(400, 1)


@pytest.mark.parametrize("penalty", [0.003, 0.01, 0.05])
def test_reaches_the_pooled_optimum_in_few_questions(patients, penalty):
    fitted = small_rulefit(trees=60, penalty=penalty).fit(open_house(*patients, 4))
    design = fitted.design(records_of(*patients))
    reached = objective(design, patients[1], fitted.intercept_, fitted.coef_, penalty)
    assert reached <= find_optimum(design, patients[1], penalty) + 1e-7
    asked = next(
        release.answers
        for release in fitted.card.releases
        if release.kind == "rulefit.fit" and release.site == "site 0"
    )
    assert asked <= 15


def test_masked_and_exact_are_one_model_to_the_last_bit(patients):
    exact = cc.RuleFit("y", 1, bins=BINS, trees=30, epsilon=None, release="exact").fit(
        open_house(*patients, 4)
    )
    masked = cc.RuleFit("y", 1, bins=BINS, trees=30, epsilon=None).fit(open_house(*patients, 4))
    assert masked.body == exact.body
    assert masked.release == "masked"
    assert any("do not protect patients" in warning for warning in masked.card.warnings)
    # What it says of rules is so: they are told by each site in plain, under masks as well.
    told = {release.kind for release in masked.card.releases if release.kind != "mask.open"}
    assert told == {"rulefit.schema", "rulefit.rules"}
    assert any("saw the rules of each site's own trees" in warning for warning in masked.card.warnings)


def test_a_saved_model_predicts_the_same(patients, tmp_path):
    fitted = cc.RuleFit("y", 1, bins=BINS, trees=30, release="exact").fit(open_house(*patients, 3))
    fitted.save(tmp_path / "rules.json")
    loaded = cc.load(tmp_path / "rules.json")
    records = records_of(*draw(50, 2))
    assert np.array_equal(loaded.predict_proba(records), fitted.predict_proba(records))
    assert loaded.list_terms() == fitted.list_terms()
    assert loaded.text() == fitted.text()


def test_noise_on_cutoffs_is_charged_whole(patients):
    fitted = cc.RuleFit("y", 1, bins=BINS, trees=20, cutoffs=10, epsilon="1/2").fit(open_house(*patients, 3))
    charged = [release for release in fitted.card.releases if release.release == "private"]
    assert [release.kind for release in charged] == ["mask.open"] * 3
    budget = rho_for_epsilon("1/2", "1/1000000")
    assert all(budget * Fraction(99, 100) < Fraction(release.cost) <= budget for release in charged)


def test_a_model_that_is_not_fitted_says_so():
    with pytest.raises(ModelError, match="not fitted yet"):
        cc.RuleFit("y").text()


def test_one_class_everywhere_is_nothing_to_predict(patients):
    table, outcome = patients
    with pytest.raises(HouseError, match="nothing to predict"):
        cc.RuleFit("y", bins=BINS, release="exact").fit(open_house(table, np.zeros_like(outcome), 3))


def test_hospitals_behind_regions_make_the_model_that_they_make_in_one_house(patients):
    """Rules and coefficients are those of one house over all; the rates as well."""
    table, outcome = patients
    sites = [open_site(part, records_of(table[part::6], outcome[part::6])) for part in range(6)]
    flat = cc.RuleFit("y", 1, bins=BINS, trees=20, release="exact").fit(cc.House(sites))
    again = [open_site(part, records_of(table[part::6], outcome[part::6])) for part in range(6)]
    regions = [cc.Region("north", cc.House(again[:4])), cc.Region("south", cc.House(again[4:]))]
    tiered = cc.RuleFit("y", 1, bins=BINS, trees=20, release="exact").fit(cc.House(regions))
    assert tiered.body == flat.body
    assert {site.name for site in tiered.card.sites} == {"north", "south"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"release": "exact"}, "about ten times"),
        ({"release": "exact", "penalty": [0.01, 0.03]}, "the same for 10 folds"),
        ({"release": "masked", "cutoffs": 3, "epsilon": 1}, "about ten times"),
        ({"release": "masked", "cutoffs": 3}, "about ten times"),
        ({"release": "exact", "solver": "fedda"}, "times: how far"),
    ],
)
def test_the_plan_names_every_question_that_is_asked_and_its_price(patients, options, said):
    table, y = patients
    model = small_rulefit(**options)
    plan = model.plan()
    assert said in plan.render()
    released = model.fit(open_house(table, y, 3)).card.releases
    assert {one.kind for one in released} - {"mask.open"} <= {one.kind for one in plan.questions}
    sites = {one.site for one in released}
    spent = [sum(Fraction(one.cost) for one in released if one.site == site and one.cost) for site in sites]
    assert max(spent) <= plan.total
    assert bool(plan.total) == ("epsilon" in options) == bool(max(spent))


def test_linear_terms_in_units_of_the_deviation_within_hospitals(patients):
    """Against the paper's formula on the hospitals' own tables: sum (N - 1) s^2 / sum (N - 1), of held values."""
    matrix, outcome = patients
    shifted = matrix + np.arange(len(matrix))[:, None] % 4  # hospital h has its numbers h higher
    bins = {name: [*np.linspace(-3, 6, 61)] for name in BINS}
    options = {"bins": bins, "trees": 20, "penalty": 0.02, "epsilon": None}
    overall, exact, masked = (
        cc.RuleFit("y", 1, scale=scale, release=release, **options).fit(open_house(shifted, outcome, 4))
        for scale, release in (("overall", "exact"), ("within", "exact"), ("within", "masked"))
    )
    assert masked.body == exact.body
    lines = exact.body.terms.lines
    assert [(line.low, line.high) for line in lines] == [
        (line.low, line.high) for line in overall.body.terms.lines
    ]
    for line, before in zip(lines, overall.body.terms.lines, strict=True):
        place = COLUMNS.index(exact.body.terms.attributes[line.attribute].name)
        held = np.clip(shifted[:, place], line.low, line.high)
        own = [held[site::4] for site in range(4)]
        free = sum(len(one) - 1 for one in own)
        pooled = np.sqrt(sum((len(one) - 1) * one.var(ddof=1) for one in own) / free)
        assert line.scale == pytest.approx(0.4 / pooled, rel=1e-5)
        assert line.scale > 1.2 * before.scale
    kinds = [question.kind for question in exact.plan().questions]
    assert kinds.count("rulefit.rates") == 2


def test_a_private_model_has_no_scale_within_hospitals():
    with pytest.raises(StudyError, match="a private RuleFit has no 'scale'"):
        cc.RuleFit("y", 1, bins=BINS, values={"y": [0, 1]}, release="private", scale="within")


@pytest.mark.parametrize("cutoffs", [5, "all"])
def test_dates_are_cut_by_days_and_written_as_dates(cutoffs):
    draws = np.random.default_rng(4)
    days = [date(2019, 1, 1) + timedelta(days=4 * int(day)) for day in draws.integers(0, 200, 600)]
    late = np.array([day >= date(2020, 3, 1) for day in days]) ^ (draws.random(600) < 0.1)
    rows = [{"seen": str(day), "y": int(y)} for day, y in zip(days, late, strict=True)]
    sites = [cc.Records.from_rows(rows[part::3]) for part in range(3)]
    model = cc.RuleFit("y", 1, trees=20, cutoffs=cutoffs).fit(sites)
    (attribute,) = model.body.terms.attributes
    assert attribute.date
    assert all(
        len(attribute.edges) >= 1 and date.fromordinal(int(edge)).day in (1, 16) for edge in attribute.edges
    )
    assert any("seen >= 2020-" in term or "seen < 2020-" in term for term in model.rules_)
    patients = [{"seen": "2020-12-24"}, {"seen": "2019-02-01"}]
    assert model.predict(patients).tolist() == [1, 0]
    assert "20" in str(model.explain(patients[0]))
