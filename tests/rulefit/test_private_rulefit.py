"""`RuleFit(release="private")`: no side door, exact charges, plans that hold, and a model that is worth having."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize

import concilium as cc
from concilium.errors import ConciliumError, HouseError, StudyError
from concilium.privacy.accounting import epsilon_from_rho, rho_for_epsilon
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.records.columns import Coded, Numbers
from concilium.records.table import Records
from side_door import find_side_doors, state

VALUES = {"sex": ["f", "m"], "ward": ["a", "b", "c"], "y": ["n", "p"]}
BINS = {"age": [30, 50, 70]}
SCHEMA = {"age": "number", "sex": "code", "ward": "code", "y": "code"}


def rows(count, shift=0):
    """Patients whose outcome follows age and ward, with exceptions, so that one of them changes no decision."""
    return [
        {
            "age": None if i % 19 == 5 else float(20 + (7 * i + shift) % 70),
            "sex": "fm"[i % 2],
            "ward": "abcd"[(i // 2 + shift) % 4],
            "y": "np"[((7 * i + shift) % 70 > 35) ^ (i % 7 == 0)],
        }
        for i in range(count)
    ]


SITES = {"big": rows(150), "small": rows(40, 1), "tiny": rows(1, 2), "one": rows(3, 3)}


UNLIMITED = cc.Policy(budget=cc.Budget("unlimited"))  # an epsilon of 20 is beyond the default


def make_sites(policy=UNLIMITED):
    return [cc.Site(name, cc.Records.from_rows(part, schema=SCHEMA), policy) for name, part in SITES.items()]


def study(**options):
    return cc.RuleFit("y", release="private", **{"values": VALUES, "bins": BINS, "epsilon": 20, **options})


@pytest.fixture
def fixed_noise(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)


@pytest.mark.parametrize(
    ("leave_out", "options"),
    [
        (("big", 0), {}),
        (("big", 77), {"cutoffs": 2}),
        (("small", 11), {"query": "ward = 'a' or age > 40"}),
        (("tiny", 0), {}),
        (("one", 2), {"query": "ward = 'c' and sex = 'f'"}),
    ],
)
def test_a_private_rulefit_has_no_side_door(fixed_noise, leave_out, options):
    assert find_side_doors(SITES, leave_out, lambda house: study(**options).fit(house), schema=SCHEMA) == []


def test_an_odd_value_of_one_patient_changes_nobody_elses(fixed_noise):
    """Codes that read as numbers become text for everybody where one does not: under `private` nobody may notice."""

    def fit(last):
        parts = {
            name: [{"age": i % 80, "y": "1.0" if (i % 80) > 40 else "0"} for i in range(count)]
            for name, count in (("a", 90), ("b", 80), ("c", 70))
        }
        parts["a"].append({"age": 10, "y": last})
        sites = [cc.Site(n, state(part, age="number"), UNLIMITED) for n, part in parts.items()]
        with zero_noise():
            return cc.RuleFit(
                "y", bins={"age": [20, 40, 60]}, values={"y": [0, 1]}, epsilon=20, release="private"
            ).fit(cc.House(sites))

    tidy, odd = fit("0"), fit("none of these")
    # Both are negative, so that the models are one.
    assert odd.body == tidy.body
    assert odd.coef_[-1] > 0.1


def test_charges_are_what_was_planned_and_no_more():
    sites = make_sites()
    fitted = study(epsilon=1).fit(cc.House(sites))
    plan = fitted.plan()
    assert [question.kind for question in plan.questions] == ["counts", *["rulefit.gradient"] * 40]
    assert plan.questions[0].cost == plan.total * Fraction(3, 10)
    assert plan.total == rho_for_epsilon(1, "1/1000000")
    assert epsilon_from_rho(plan.total, Fraction(1, 10**6)) <= 1
    spent = {site.ledger.spent() for site in sites}
    assert len(spent) == 1
    assert plan.total * Fraction(999, 1000) < spent.pop() <= plan.total
    assert {release.release for release in fitted.card.releases} == {"private"}
    assert all(Fraction(release.cost) == sites[0].ledger.spent() for release in fitted.card.releases)
    assert any("epsilon = 1 at delta = 1/1000000" in warning for warning in fitted.card.warnings)
    assert [site.patients for site in fitted.card.sites] == [None] * 4


def test_a_budget_of_exactly_the_plan_is_enough_and_less_is_refused_before_anything_is_spent():
    planned = study(epsilon=1).plan().total
    study(epsilon=1).fit(cc.House(make_sites(cc.Policy(budget=cc.Budget(total=str(planned))))))
    sites = make_sites(cc.Policy(budget=cc.Budget(total="1/1000000")))
    with pytest.raises(HouseError, match="this would cost rho"):
        study(epsilon=1).fit(cc.House(sites))
    assert all(site.ledger.spent() == 0 for site in sites)


def test_supports_rates_and_the_number_of_patients_are_withheld(tmp_path):
    fitted = study().fit(cc.House(make_sites()))
    assert fitted.body.patients is None
    # The base rate is that of the noisy tables, as the card has it: it costs no more.
    noisy = re.search(r"about (\d+) patients, (\d+) of them", "; ".join(fitted.card.warnings))
    assert fitted.body.mean == pytest.approx(int(noisy[2]) / int(noisy[1]), abs=0.02)
    assert all(row.support is row.rate_in is row.rate_out is None for row in fitted.list_terms())
    assert max(row.importance for row in fitted.list_terms()) == pytest.approx(100)
    assert max(fitted.importances().values()) == pytest.approx(100)
    said = str(fitted.explain({"age": 80.0, "sex": "f", "ward": "a"}))
    assert "holds for" not in said
    assert "odds ratio" in said
    assert "The model was learned with noise" in said
    fitted.save(tmp_path / "private.json")
    again = cc.load(tmp_path / "private.json")
    assert again.body == fitted.body
    assert again.card.release == "private"


def test_values_the_study_does_not_name_count_as_other(fixed_noise):
    with zero_noise():
        fitted = study(values={**VALUES, "ward": ["a"]}, attributes=["age", "ward"]).fit(
            cc.House(make_sites())
        )
    patients = [{"age": 40.0, "ward": ward} for ward in ("b", "c", "never seen")]
    assert len(set(fitted.decide(patients).tolist())) == 1
    assert fitted.attributes_ == ["age", "ward"]


def test_the_positive_class_is_stated_or_the_second_of_two(fixed_noise):
    assert study()._way.classes == ["n", "p"]
    assert study(positive="n")._way.classes == ["p", "n"]
    several = {**VALUES, "y": ["n", "p", "q"]}
    assert study(values=several, positive="p")._way.classes == ["not p", "p"]
    assert study(values={"sex": ["f"]}, positive=1)._way.classes == ["not 1", "1"]
    with zero_noise():
        yes, no = (
            study(positive=positive).fit(cc.House(make_sites())).decide(SITES["big"])
            for positive in ("p", "n")
        )
    assert np.corrcoef(yes, no)[0, 1] < -0.9


def logistic(patients, seed):
    draws = np.random.default_rng(seed)
    table = draws.normal(size=(patients, 8))
    log_odds = 1.5 * table[:, 0] - np.abs(table[:, 1]) + 2 * (table[:, 2] > 0) * (table[:, 0] > 0)
    outcome = draws.random(patients) < 1 / (1 + np.exp(0.5 - log_odds))
    columns = {f"x{i}": Numbers(table[:, i].copy(), by_itself=True) for i in range(8)}
    return (
        Records({**columns, "y": Coded(outcome.astype(np.uint8) + 1, (0, 1), by_itself=True)}),
        outcome,
        log_odds,
    )


EDGES = np.linspace(-2, 2, 9).tolist()


def find_auc(outcome, score):
    order = np.argsort(np.argsort(score))
    positive = outcome.sum()
    return (order[outcome].sum() - positive * (positive - 1) / 2) / (positive * (len(outcome) - positive))


def fit_logistic(epsilon, parts):
    sites = [cc.Site(f"s{i}", part[0], UNLIMITED) for i, part in enumerate(parts)]
    return cc.RuleFit(
        "y",
        bins={f"x{i}": EDGES for i in range(8)},
        values={"y": [0, 1]},
        epsilon=epsilon,
        release="private",
    ).fit(cc.House(sites))


def test_a_private_rulefit_learns_at_a_fair_price():
    fitted = fit_logistic(1.0, [logistic(2500, seed) for seed in range(4)])
    records, outcome, log_odds = logistic(5000, 9)
    assert find_auc(outcome, fitted.decide(records)) > find_auc(outcome, log_odds) - 0.04
    assert next(iter(fitted.importances())) == "x0"
    assert len(fitted.body.terms.rules) == 40
    assert len(fitted.body.terms.lines) == 8
    assert fitted.body.terms.norm is not None


def test_without_noise_it_comes_near_the_optimum_of_its_own_terms(fixed_noise):
    parts = [logistic(1000, seed) for seed in range(3)]
    with zero_noise():
        fitted = fit_logistic(10**5, parts)
    design = np.concatenate([fitted.design(records) for records, _, _ in parts])
    outcome = np.concatenate([part[1] for part in parts])
    predictor = np.concatenate([fitted.decide(records) for records, _, _ in parts])

    def loss(predictor):
        return float(np.mean(np.logaddexp(0, predictor) - outcome * predictor))

    ones = np.concatenate([fitted._find_columns(records)[1] for records, _, _ in parts])
    wide = np.column_stack([ones, design])
    best = minimize(
        lambda w: loss(wide @ w),
        np.zeros(wide.shape[1]),
        jac=lambda w: wide.T @ (1 / (1 + np.exp(-wide @ w)) - outcome) / len(wide),
        method="L-BFGS-B",
        options={"maxiter": 300},
    ).fun
    assert best <= loss(predictor) < best + 0.01
    share = outcome.mean()
    assert loss(predictor) < 0.9 * -(share * np.log(share) + (1 - share) * np.log(1 - share))


def test_a_private_model_is_read_as_shapes_with_the_band_of_their_noise():
    """Every shape is the predictor over its bins, and what stands out of its band is printed and drawn."""
    fitted = study().fit(cc.House(make_sites()))
    shapes = {shape.attribute: shape for shape in fitted.shapes()}
    assert set(shapes) == {"age", "sex", "ward"}
    for curve in fitted.body.curves:
        moved, shares = np.array(curve.moved), np.array(curve.shares)
        assert abs(moved @ shares) < 1e-9  # against the mean
        assert np.all(np.array(curve.errors) > 0)
    for shape in shapes.values():
        assert all(one.low < one.odds_ratio < one.high for one in shape.bins)
        assert (f"shape of {shape.attribute}" in fitted.pictures()) != shape.hidden
        assert shape.attribute in fitted.text()
    left = [row for row in fitted.list_terms() if row.is_rule]
    assert all(row.low > 1 or row.high < 1 for row in left)  # rules below their noise are dropped
    drawn = len(fitted.body.terms.rules)
    assert any(
        f"{len(left)} of {drawn} rules that were drawn at random" in said for said in fitted.card.warnings
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": "1/1000000000"}, "too small for any question"),
        ({"delta": "2"}, "delta"),
        ({"values": {**VALUES, "y": ["a", "b", "c"]}}, "needs 'positive', or the two classes"),
        ({"positive": "x"}, "'positive' is x, but the stated classes are n, p"),
        ({"values": {**VALUES, "age": [1]}}, "'age' has both 'values' and 'bins'"),
        ({"bins": {"y": [1, 2]}}, "predicts yes or no"),
        ({"trees": 10}, "has no 'trees'"),
        ({"leaves": 3}, "has no 'leaves'"),
        ({"shrinkage": 0.1}, "has no 'shrinkage'"),
        ({"penalty": 0.02}, "has no 'penalty'"),
        ({"max_terms": 5}, "has no 'max_terms'"),
        ({"solver": "fedda"}, "has no 'solver'"),
        ({"support": 20}, "has no 'support'"),
    ],
)
def test_what_a_private_study_must_say_and_what_it_may_not(options, said):
    with pytest.raises(ConciliumError, match=said):
        study(**options)


def test_what_a_private_study_leaves_unsaid_is_asked_and_priced():
    stated = study().plan()
    assert study(epsilon=None).plan().total <= rho_for_epsilon("1", "1/1000000")
    unsaid = study(values={"sex": ["f", "m"]}).plan()
    assert [one.note[:21] for one in unsaid.questions[:2]] == [
        "which classes y has, ",
        "tables by class of all"[:21],
    ]
    for options in ({"values": {"y": ["n", "p"]}, "bins": {}}, {"attributes": ["age", "height"]}):
        plan = study(**options).plan()
        assert [one.kind for one in plan.questions[:4]] == ["columns", "counts", "counts", "counts"]
        assert plan.questions[0].cost == 0
        assert plan.total == pytest.approx(float(stated.total))


def test_two_sites_are_too_few():
    with pytest.raises(ConciliumError, match="at least 3 are needed"):
        study().fit(cc.House(make_sites()[:2]))


def test_a_column_that_a_site_does_not_have_is_named():
    with pytest.raises((HouseError, StudyError), match="height"):
        study(bins={**BINS, "height": [150, 180]}).fit(cc.House(make_sites()))
