"""Bad input through a house: each a sentence that says what is wrong and where, or a line on the card."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pooled_lasso import find_optimum, objective
from rule_patients import (
    BINS,
    Forging,
    deal,
    draw,
    open_house,
    open_site,
    records_of,
    rows_of,
    site_of,
    small_rulefit,
)

import concilium as cc
from concilium.errors import HouseError, MaskError, ModelError, QueryError, StudyError
from concilium.privacy.identity import Identity
from concilium.protocol.cohort import View
from concilium.protocol.held_out import Folds
from concilium.protocol.messages import encode
from concilium.records.columns import Coded
from concilium.records.table import Records
from concilium.rulefit.cross_validation import PATH_LENGTH
from concilium.rulefit.generation import Rules
from side_door import state


@pytest.fixture(scope="module")
def patients():
    return draw(240, 1)


def said(model):
    return "\n".join(model.card.warnings)


def house_of(*sites, **options):
    return cc.House([site_of(rows, f"s{number}") for number, rows in enumerate(sites)], **options)


def rows_with(patients, **more):
    return rows_of(
        *patients, **{name: [make(i) for i in range(len(patients[1]))] for name, make in more.items()}
    )


def test_a_site_with_one_class_only_adds_to_the_fit_but_has_no_rules(patients):
    table, y = patients
    order = np.argsort(y, kind="stable")
    none, mixed = order[:60], order[60:]
    parts = [records_of(table[rows], y[rows]) for rows in (none, mixed[::2], mixed[1::2])]
    model = small_rulefit().fit(cc.House([cc.Site(f"s{i}", part) for i, part in enumerate(parts)]))
    assert "s0 had no rule to tell: its patients are alike, of one class" in said(model)
    assert "s1 had no rule" not in said(model)
    assert model.body.patients == 240
    design = model.design(records_of(table, y))
    reached = objective(design, y, model.intercept_, model.coef_, 0.01)
    assert reached <= find_optimum(design, y.astype(float), 0.01) + 1e-7


def test_a_constant_column_is_left_out_by_name(patients):
    rows = rows_with(patients, same=lambda i: 7, text=lambda i: "x", bound=lambda i: 0.35)
    bins = {**BINS, "bound": BINS["a"]}
    model = small_rulefit(bins=bins).fit(house_of(rows[::2], rows[1::2]))
    assert (
        "left out: bound (all patients are in one of its bins); same, text (the same for everybody)"
        in said(model)
    )
    assert set(model.attributes_) <= set("abcd")


def test_a_column_that_is_constant_at_one_site_only_is_used(patients):
    table, y = patients
    table = table.copy()
    table[::3, 0] = 0.7
    model = small_rulefit().fit(open_house(table, y, 3))
    assert "left out" not in said(model)
    assert "a" in model.attributes_


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_an_attribute_whose_bins_miss_everybody_is_left_out_with_what_would_do(patients, release):
    """The rest goes on, and comes to what it would without that attribute."""
    bins = {**BINS, "c": [1000.0, 2000.0, 3000.0], "d": [-50.0, -40.0, -30.0]}
    model = small_rulefit(bins=bins, release=release, epsilon=None).fit(open_house(*patients, 3))
    would = "miss all patients: edges between -10 and 10 would do"
    assert f"left out: c (its bins, 1000 to 3000, {would}); d (its bins, -50 to -30, {would})" in said(model)
    without = {name: edges for name, edges in BINS.items() if name in "ab"}
    other = small_rulefit(bins=without, attributes=["a", "b"], release=release, epsilon=None)
    assert model.body == other.fit(open_house(*patients, 3)).body


def test_patients_of_a_query_who_all_lie_beyond_the_bins_end_no_study(patients):
    table, y = patients
    rows = [
        {**dict(zip("abcd", map(float, row), strict=True)), "ward": "ab"[i % 2], "y": int(y[i])}
        for i, row in enumerate(table)
    ]
    for row in rows:
        row["a"] += 100 * (row["ward"] == "b")
    records = cc.Records.from_rows(rows)
    model = small_rulefit(query="ward = 'b'").fit(cc.House([cc.Site("s", records)]))
    assert "left out: a (its bins, " in said(model)
    assert "edges between 10 and 1000 would do" in said(model)
    assert set(model.attributes_) <= set("bcd")


def test_bins_that_miss_everybody_where_sites_leave_small_counts_out(patients):
    sites = [
        cc.Site(f"s{i}", part, policy=cc.Policy(minimum_cell=3)) for i, part in enumerate(deal(*patients, 2))
    ]
    with pytest.raises(
        HouseError, match=r"no attribute is left .* left out: c \(its bins, 1000 to 3000, miss all patients"
    ):
        small_rulefit(bins={"c": [1000.0, 2000.0, 3000.0]}, attributes=["c"]).fit(cc.House(sites))


def test_more_rules_than_patients_is_said_and_fits(patients):
    table, y = patients[0][:60], patients[1][:60]
    model = small_rulefit(trees=60, support=5, penalty=0.02).fit(open_house(table, y, 2))
    assert len(model.terms_) > 60
    candidates = f"of {len(model.terms_)} candidate terms were selected, by 60 patients"
    assert f"{len(model.list_terms())} {candidates}" in said(model)
    design = model.design(records_of(table, y))
    reached = objective(design, y, model.intercept_, model.coef_, 0.02)
    assert reached <= find_optimum(design, y.astype(float), 0.02) + 1e-7


def test_a_feature_missing_at_one_site_is_left_out_with_the_site(patients):
    rows = rows_of(*patients)
    lacking = [{name: value for name, value in row.items() if name != "b"} for row in rows[1::2]]
    model = small_rulefit().fit(house_of(rows[::2], lacking))
    assert "left out: b (not known at s1, or withheld there)" in said(model)
    assert "b" not in model.attributes_


def test_text_in_a_numeric_column_names_column_and_site(patients):
    rows = rows_of(*patients)
    broken = [{**row, "b": "high" if row["b"] > 0 else "low"} for row in rows[1::2]]
    with pytest.raises(
        HouseError, match=r"does not fit every site: s1: attribute 'b' holds text, so bins do not"
    ):
        small_rulefit().fit(house_of(rows[::2], broken))


def test_a_number_without_bins_is_cut_on_the_grid(patients):
    bins = {name: edges for name, edges in BINS.items() if name != "d"}
    model = small_rulefit(bins=bins).fit(open_house(*patients, 2))
    assert "left out" not in said(model)
    assert any("d " in term for term in model.terms_)


def test_names_that_no_site_knows(patients):
    model = small_rulefit(bins={**BINS, "agee": [1, 2]}).fit(open_house(*patients, 2))
    assert "left out: agee (no site knows it)" in said(model)
    with pytest.raises(
        HouseError, match=r"no attribute is left to make rules of: left out: e \(no site knows it\)"
    ):
        small_rulefit(attributes=["e"]).fit(open_house(*patients, 2))


def test_a_positive_value_that_nobody_has_and_too_many_values(patients):
    with pytest.raises(StudyError, match=r"no patient has y = dead; there are 0, 1"):
        small_rulefit(positive="dead").fit(open_house(*patients, 2))
    rows = rows_with(patients, grade=lambda i: "abc"[i % 3])
    with pytest.raises(StudyError, match=r"'grade' has 3 values \(a, b, c\): say which is 'positive'"):
        small_rulefit(target="grade").fit(house_of(rows[::2], rows[1::2]))


def test_a_target_that_is_a_number_text_or_nowhere(patients):
    with pytest.raises(HouseError, match="the target 'a' is a number"):
        small_rulefit(target="a", bins={"b": BINS["b"]}).fit(open_house(*patients, 2))
    with pytest.raises(StudyError, match="'bins' of 'a' must give the range of a number"):
        small_rulefit(target="a", bins={**BINS, "a": [1]}).fit(open_house(*patients, 2))
    rows = rows_with(patients, grade=lambda i: "abc"[i % 3])
    with pytest.raises(HouseError, match="'grade' holds text"):
        small_rulefit(target="grade", bins={**BINS, "grade": [0, 1]}).fit(house_of(rows))
    with pytest.raises(HouseError, match="no column 'nowhere'"):
        small_rulefit(target="nowhere").fit(open_house(*patients, 2))
    with pytest.raises(QueryError):
        small_rulefit(query="a >")


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_a_range_that_misses_everybody_says_which_would_do(patients, release):
    options = {"target": "cost", "release": release, "positive": None}
    numbers = dict.fromkeys((*BINS, "cost"), "number")
    parts = [
        state(rows_with(patients, cost=lambda i: 2000 + 0.5 * i)[part::3], **numbers) for part in range(3)
    ]

    def open_parts():
        return cc.House([cc.Site(f"s{number}", part) for number, part in enumerate(parts)])

    for wrong in ([0, 100], [5000, 6000]):
        with pytest.raises(
            StudyError,
            match=r"'cost' cannot be predicted: its bins, .* miss all patients: edges between 1000 and 10000",
        ):
            small_rulefit(**options, bins={**BINS, "cost": wrong}).fit(open_parts())
    partly = small_rulefit(**options, bins={**BINS, "cost": [2000, 2050]}).fit(open_parts())
    count = len(patients[1])
    beyond = sum(2000 + 0.5 * i > 2050 for i in range(count))
    assert f"{beyond / count:.1%} of the patients have a cost beyond its range, 2,000 to 2,050" in said(
        partly
    )
    highest = 2000 + 0.5 * (count - 1)
    whole = small_rulefit(**options, bins={**BINS, "cost": [2000, highest]}).fit(open_parts())
    assert "beyond its range" not in said(whole)


def test_text_in_the_number_to_predict_names_the_site(patients):
    rows = rows_with(patients, cost=lambda i: i % 7 + 0.5)
    odd = rows_with(patients, cost=lambda i: "none" if i == 40 else i % 7 + 0.5)
    with pytest.raises(HouseError, match="does not fit every site: s1: attribute 'cost' holds text"):
        small_rulefit(target="cost", bins={**BINS, "cost": [0, 100]}).fit(house_of(rows[::2], odd[::2]))


def test_patients_with_missing_values_are_fitted_like_the_others(patients):
    table, y = patients[0].copy(), patients[1]
    table[np.random.default_rng(1).random(table.shape) < 0.2] = np.nan
    model = small_rulefit(penalty=0.005).fit(open_house(table, y, 3))
    design = model.design(records_of(table, y))
    reached = objective(design, y, model.intercept_, model.coef_, 0.005)
    assert reached <= find_optimum(design, y.astype(float), 0.005) + 1e-7
    assert any("missing" in rule for rule in model.rules_)


def test_categories_stored_differently_at_each_site_are_one(patients):
    table, y = patients
    kinds = (np.arange(240) * 7 % 3 + 1).astype(np.uint8)
    y = ((kinds == 2) ^ (np.random.default_rng(0).random(240) < 0.1)).astype(np.uint8)
    stored = [(1, 2, 3), ("1", "2", "3")]
    sites = []
    for part, values in enumerate(stored):
        rows = np.arange(part, 240, 2)
        column = Coded(kinds[rows], values)
        own = records_of(table[rows], y[rows])
        sites.append(cc.Site(f"s{part}", Records({**{n: own[n] for n in own.names}, "kind": column})))
    model = small_rulefit(attributes=["kind"], trees=5).fit(cc.House(sites))
    assert any(row.rule == "kind = 2" for row in model.list_terms())
    found = [model.predict([{"kind": kind}]).tolist()[0] for kind in (2, "2", 2.0, 1, "3", "new")]
    assert found == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "kinds", list(itertools.combinations(["rulefit.schema", "counts", "rulefit.rules"], 2))
)
def test_a_policy_that_does_not_list_a_kind_refuses_it(patients, kinds):
    sites = [
        cc.Site(f"s{i}", part, policy=cc.Policy(kinds=kinds)) for i, part in enumerate(deal(*patients, 2))
    ]
    with pytest.raises(
        HouseError, match=r"no site answered: s0, s1: questions of kind '[a-z.]+' are not answered here"
    ):
        small_rulefit().fit(cc.House(sites))


def test_small_cells_forbid_exact_gradients_and_allow_masked_ones(patients):
    parts = deal(*patients, 3)
    policies = [cc.Policy(minimum_cell=2), None, None]

    def open_again():
        return cc.House(
            [
                cc.Site(f"s{i}", part, policy=p)
                for i, (part, p) in enumerate(zip(parts, policies, strict=True))
            ]
        )

    with pytest.raises(
        HouseError, match=r"s0: this site leaves small counts out .* a gradient cannot do that: ask masked"
    ):
        small_rulefit().fit(open_again())
    model = small_rulefit(release="masked", epsilon=None).fit(open_again())
    assert model.body.patients == 240
    for solver, said in (("newton", "a gradient cannot do that"), ("fedda", "ask masked")):
        with pytest.raises(HouseError, match=said):
            small_rulefit(solver=solver).fit(open_again())


def test_two_sites_cannot_mask(patients):
    with pytest.raises(MaskError, match="at least 3 are needed"):
        small_rulefit(release="masked").fit(open_house(*patients, 2))


def test_the_card_lists_rounds_bytes_and_releases(patients):
    told = []
    model = small_rulefit().fit(open_house(*patients, 3, on_round=told.append))
    card = model.card
    assert card.rounds == len(told) > 5
    assert card.bytes > 10_000
    assert [site.patients for site in card.sites] == [80, 80, 80]
    kinds = ["counts", "rulefit.fit", "rulefit.rates", "rulefit.rules", "rulefit.schema"]
    assert sorted({release.kind for release in card.releases}) == kinds
    for site in ("site 0", "site 1", "site 2"):
        own = {release.kind: release for release in card.releases if release.site == site}
        assert sum(release.answers for release in own.values()) == card.rounds
        assert own["counts"].numbers == sum(len(edges) + 2 for edges in BINS.values())
        assert own["rulefit.rates"].numbers == 3 + 3 * len(model.list_terms())
        assert all(release.cost is None for release in own.values())
    assert any("more than one exact number for every two patients" in warning for warning in card.warnings)


def test_under_masks_no_site_tells_how_many_patients_it_has(patients):
    card = small_rulefit(release="masked", epsilon=None).fit(open_house(*patients, 3)).card
    assert [site.patients for site in card.sites] == [None, None, None]
    assert card.release == "masked"


def test_the_penalty_is_chosen_by_loss_on_patients_held_out(patients):
    """The folds are dealt again as every site deals them, and the model without terms is judged on them."""
    table, y = patients
    sites = [open_site(part, records) for part, records in enumerate(deal(table, y, 3))]
    model = small_rulefit(penalty=[0.002, 0.01, 0.03, 0.1]).fit(cc.House(sites))
    assert [choice.penalty for choice in model.path_] == [np.inf, 0.1, 0.03, 0.01, 0.002]
    dealt = np.zeros((2, 240), dtype=int)
    for part, (records, site) in enumerate(zip(deal(table, y, 3), sites, strict=True)):
        cohort = View(records, cc.Policy(), division_key=site.division_key).select("", "y")
        dealt[:, part::3] = Folds(repeats=2).deal(cohort)
    losses = 0.0
    for fold in range(10):
        held = dealt[fold // 5] == fold
        mean = y[~held].mean()
        losses -= np.log(np.where(y[held] == 1, mean, 1 - mean)).sum()
    assert model.path_[0].deviance == pytest.approx(losses / 480, abs=1e-6)
    best = min(model.path_, key=lambda choice: choice.deviance)
    chosen = next(choice for choice in model.path_ if choice.deviance <= best.deviance + choice.error)
    assert model.body.validation.penalty == chosen.penalty
    assert f"penalty {chosen.penalty:.3g}, chosen by 10 folds of cross-validation" in said(model)


def test_a_penalty_can_be_found_without_being_given(patients):
    model = small_rulefit(penalty="auto").fit(open_house(*patients, 3))
    assert 4 <= len(model.path_) <= PATH_LENGTH + 1
    assert 0 < len(model.list_terms()) < len(model.terms_)


@pytest.mark.parametrize("rules", [(((0, 5, 2),),), (((9, 1, 1),),), ((),), (((0, 0, 42),),)])
def test_a_site_that_sends_what_is_no_rule_is_named(patients, rules):
    sites = [cc.Site(f"s{i}", part, identity=Identity.create()) for i, part in enumerate(deal(*patients, 2))]
    house = cc.House([sites[0], Forging(sites[1], "rulefit.rules", encode(Rules(rules)))])
    with pytest.raises(HouseError, match="s1 answered with what was not asked for: a rule"):
        small_rulefit(attributes=["a"], cutoffs=None).fit(house)


@pytest.mark.parametrize(
    "options",
    [
        {"target": ""},
        {"target": 3},
        {"query": 3},
        {"trees": 0},
        {"trees": 10_001},
        {"trees": True},
        {"support": 4},
        {"seed": -1},
        {"seed": 2**63},
        {"cutoffs": 0},
        {"cutoffs": True},
        {"leaves": 1},
        {"leaves": "4"},
        {"leaves": float("nan")},
        {"shrinkage": 0},
        {"shrinkage": None},
        {"solver": "saga"},
        {"release": "private and exact"},
        {"attributes": "abc"},
        {"penalty": 0},
        {"penalty": -1},
        {"penalty": []},
        {"penalty": "small"},
        {"penalty": [0.1, None]},
        {"penalty": float("nan")},
        {"bins": {"a": []}},
        {"bins": {"a": [2, 1]}},
        {"bins": {"a": ["x"]}},
        {"bins": {"a": 3}},
        {"bins": {"a": [float("inf")]}},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_at_once(options):
    with pytest.raises(StudyError, match=r"RuleFit|bins"):
        small_rulefit(**options)


def test_a_budget_that_is_none_is_refused_at_once():
    for epsilon in (0, -1, -0.5, float("nan"), float("inf"), "x", "1/0", True, [1], 10**400):
        with pytest.raises(StudyError, match=r"the 'epsilon' of a RuleFit must be a number above 0.* got "):
            small_rulefit(epsilon=epsilon)
    for delta in (2, 0, -1, float("nan"), "x", None):
        with pytest.raises(
            StudyError, match=r"the 'delta' of a RuleFit must be a number between 0 and 1.* got "
        ):
            small_rulefit(delta=delta)


def test_nothing_is_told_before_it_is_fitted():
    model = small_rulefit()
    for ask in ("table", "text", "importances"):
        with pytest.raises(ModelError, match="not fitted yet"):
            getattr(model, ask)()
    for name in ("card", "coef_", "rules_", "classes_"):
        with pytest.raises(ModelError, match="not fitted yet"):
            getattr(model, name)


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_a_site_that_leaves_small_branches_out_tells_no_sums_over_rules(patients, release):
    """A rule of another site may hold for one patient here, whose outcome the gradient would tell."""
    sites = [
        cc.Site(f"s{i}", part, policy=cc.Policy(branch_floor=10 if i == 1 else 0))
        for i, part in enumerate(deal(*patients, 3))
    ]
    with pytest.raises(HouseError, match="s1: this site leaves branches of few patients out"):
        small_rulefit(release=release).fit(cc.House(sites))
