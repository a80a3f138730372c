"""`release="private"`: no side door, exact charges, plans that hold, and a tree that is worth having."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import concilium as cc
from concilium.errors import HouseError, StudyError
from concilium.privacy.accounting import epsilon_from_rho, rho_for_epsilon
from concilium.privacy.randomness import SWITCH, SWITCHED_ON
from concilium.records.columns import Coded
from concilium.records.table import Records
from side_door import UNLIMITED, find_side_doors, state

VALUES = {"a": ["0", "1"], "b": ["x", "y", "z"], "y": ["n", "p"]}


def rows(count, shift=0):
    """Patients whose outcome follows `a` with some exceptions, so that one patient changes no decision."""
    return [
        {
            "a": "01"[i % 2],
            "b": "xyz"[(i + shift) % 3],
            "y": "np"[(i % 2) ^ (i % 11 == 0)],
            "mrn": f"m{i}{shift}",
        }
        for i in range(count)
    ]


def study(house, **options):
    settings_ = {"values": VALUES, "epsilon": 20, "max_depth": 2, **options}
    return cc.DecisionTree("y", release="private", **settings_).fit(house)


@pytest.fixture
def fixed_noise(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)


SITES = {"big": rows(150), "small": rows(40, 1), "tiny": rows(1, 2), "one": rows(3, 3)}


@pytest.mark.parametrize("leave_out", [("big", 0), ("big", 77), ("small", 11), ("tiny", 0), ("one", 2)])
@pytest.mark.parametrize("options", [{}, {"query": "b = 'x' or a = '1'"}, {"query": "b = 'z' and a = '0'"}])
def test_a_private_tree_has_no_side_door(fixed_noise, leave_out, options):
    assert find_side_doors(SITES, leave_out, lambda house: study(house, **options)) == []


def test_the_harness_finds_the_side_doors_of_exact_trees(fixed_noise):
    four = {**SITES, "four": rows(4, 4)}
    found = find_side_doors(four, ("four", 2), lambda house: cc.DecisionTree("y", max_depth=2).fit(house))
    assert any(other.answered[:2] == ("refusal", "patients") for _, other in found if other is not None)


def test_the_harness_finds_a_refusal_that_depends_on_patients(fixed_noise, monkeypatch):
    from concilium.protocol.cohort import View
    from concilium.protocol.messages import Refused
    from concilium.protocol.studies import TOO_FEW

    select = View.select

    def refusing(view, query, target):
        cohort = select(view, query, target)
        if len(cohort) == 1:
            raise Refused("patients", TOO_FEW)
        return cohort

    monkeypatch.setattr(View, "select", refusing)
    assert find_side_doors(SITES, ("tiny", 0), study)


def test_the_harness_finds_a_charge_that_depends_on_patients(fixed_noise, monkeypatch):
    from concilium.protocol.releases.private import Private
    from concilium.protocol.site_context import Cost, SiteContext

    price = Private.price

    def by_site(release, context, study, question):
        cost, times = price(release, context, study, question), 2 if context.name == "big" else 1
        return Cost(cost.rho * times, cost.amount * times, cost.currency)

    monkeypatch.setattr(Private, "price", by_site)
    assert find_side_doors(SITES, ("big", 0), study) == []  # a price by site is not one by patient
    enter = SiteContext.enter

    def by_patients(context, envelope, name, numbers, cost, keep):
        dearer = cost.rho * len(context.view.records)
        return enter(context, envelope, name, numbers, Cost(dearer, dearer, "rho"), keep)

    monkeypatch.setattr(SiteContext, "enter", by_patients)
    assert find_side_doors(SITES, ("big", 0), study)


def test_charges_are_what_was_planned_and_no_more():
    sites = [cc.Site(name, state(r), UNLIMITED) for name, r in SITES.items()]
    tree = study(cc.House(sites), epsilon=1)
    planned = tree.plan()
    assert planned.total <= rho_for_epsilon(1, "1/1000000")
    assert epsilon_from_rho(planned.total, Fraction(1, 10**6)) <= 1
    spent = {site.ledger.spent() for site in sites}
    assert len(spent) == 1
    assert 0 < spent.pop() <= rho_for_epsilon(1, "1/1000000")
    for release in tree.card.releases:
        assert release.release == "private"
        assert Fraction(release.cost) == sites[0].ledger.spent()
    assert all(entry.mode == "private" for entry in sites[0].ledger.entries() if entry.question)
    assert any("epsilon = 1 at delta" in warning for warning in tree.card.warnings)
    assert [site.patients for site in tree.card.sites] == [None] * 4


def test_a_budget_too_small_is_refused_with_a_receipt_before_anything_is_spent():
    policy = cc.Policy(budget=cc.Budget(total="1/100000"))
    sites = [cc.Site(name, state(r), policy) for name, r in SITES.items()]
    with pytest.raises(HouseError, match=r"this would cost rho = .* 1e-05 is left \(0 is spent\)"):
        study(cc.House(sites))
    assert all(site.ledger.spent() == 0 for site in sites)
    receipt = sites[0].ledger.refusals()[0]
    assert receipt.rule == "budget"


def test_a_ledger_in_pure_epsilon_refuses_gaussian_noise():
    policy = cc.Policy(budget=cc.Budget(total="10", currency="epsilon"))
    sites = [cc.Site(name, state(r), policy) for name, r in SITES.items()]
    with pytest.raises(HouseError, match=r"budget is in epsilon, .* the noise of this question is Gaussian"):
        study(cc.House(sites))


def test_a_study_that_states_codes_alone_says_that_numbers_are_not_asked_about():
    said = "only attributes that the study states are asked about: a, b. For numbers, state bins"
    for options, expected in (({}, True), ({"attributes": ["a", "b"]}, False)):
        house = cc.House([cc.Site(name, state(rows(100)), policy=UNLIMITED) for name in "abc"])
        assert any(said in warning for warning in study(house, **options).card.warnings) == expected


def test_values_the_study_does_not_name_count_as_other(fixed_noise):
    from concilium.privacy.randomness import zero_noise

    sites = [cc.Site(name, state(r), UNLIMITED) for name, r in SITES.items()]
    with zero_noise():
        tree = study(cc.House(sites), values={**VALUES, "a": ["1"]})
    root = tree.body.nodes[0]
    assert root.attribute == "a"
    assert [branch.value for branch in root.branches] == ["1"]
    assert root.other is not None
    assert list(tree.predict([{"a": "1", "b": "x"}, {"a": "0", "b": "x"}, {"a": None, "b": "x"}])) == [
        "p",
        "n",
        "n",
    ]


def test_a_private_tree_learns_at_a_fair_price():
    draw = np.random.default_rng(3)
    codes = draw.integers(1, 4, size=(8, 12_000)).astype(np.uint8)
    chance = 1 / (1 + np.exp(-1.5 * (codes[0].astype(float) - codes[1])))
    outcome = (draw.random(12_000) < chance).astype(np.uint8) + 1

    def part(where):
        columns = {f"x{i}": Coded(codes[i, where], (0, 1, 2), stated=True) for i in range(8)}
        return Records({**columns, "y": Coded(outcome[where], (0, 1), stated=True)})

    sites = [cc.Site(f"s{i}", part(slice(2000 * i, 2000 * i + 2000))) for i in range(5)]
    values = {**{f"x{i}": [0, 1, 2] for i in range(8)}, "y": [0, 1]}
    tree = cc.DecisionTree("y", release="private", epsilon=1.0, values=values, max_depth=3).fit(
        cc.House(sites)
    )
    test = slice(10_000, 12_000)
    accuracy = np.mean(tree.predict(part(test)) == outcome[test] - 1)
    best = np.mean((chance[test] > 0.5) == (outcome[test] == 2))
    assert accuracy > best - 0.06
    assert {"x0", "x1"} <= set(tree.attributes_)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": None}, "needs an 'epsilon'"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": float("inf")}, "epsilon"),
        ({"delta": "2"}, "delta"),
        ({"values": {"a": ["0", "1"]}, "positive": "p"}, "needs the classes"),
        ({"max_depth": 0}, "'max_depth' of 1 or more"),
    ],
)
def test_what_a_private_study_must_say(options, said):
    from concilium.errors import ConciliumError

    with pytest.raises(ConciliumError, match=said):
        study(cc.House([cc.Site("s", cc.Records.from_rows(rows(10)))]), **options)


def test_what_a_private_study_does_not_say_is_looked_for(fixed_noise):
    """Numbers by their names; classes among the words for no and yes, and else the study must name them."""
    wards = {name: [{**row, "b": f"ward {row['b']}"} for row in r] for name, r in SITES.items()}
    sites = [cc.Site(name, state(r), UNLIMITED) for name, r in wards.items()]
    tree = study(cc.House(sites), values={"y": ["n", "p"]})
    assert tree.attributes_ == ["a"]
    assert tree.classes_ == ["n", "p"]
    said = (
        "left out: b (text or missing, as far as noise lets tell; state values, which `concilium dictionary` "
        "drafts); mrn (its name says that it identifies patients)"
    )
    assert said in tree.card.warnings
    with pytest.raises(
        HouseError, match="noise hides which classes 'y' has, or they are other words than 0, 1, no"
    ):
        study(cc.House(sites), values={"a": ["0", "1"]})
    words = {
        name: [{**row, "y": {"n": "no", "p": "yes"}[row["y"]]} for row in r] for name, r in SITES.items()
    }
    sites = [cc.Site(name, state(r), UNLIMITED) for name, r in words.items()]
    assert study(cc.House(sites), values={"a": ["0", "1"]}).classes_ == ["no", "yes"]


def test_two_sites_are_too_few():
    sites = [cc.Site(name, cc.Records.from_rows(SITES[name])) for name in ("big", "small")]
    with pytest.raises(Exception, match="at least 3 are needed"):
        study(cc.House(sites))


def test_study_error_is_one_of_ours():
    with pytest.raises(StudyError, match="needs an 'epsilon'"):
        cc.DecisionTree("y", release="private", values=VALUES)


def test_a_private_tree_draws_and_explains_patients_with_other_values(fixed_noise):
    from concilium.privacy.randomness import zero_noise

    sites = [cc.Site(name, state(r), UNLIMITED) for name, r in SITES.items()]
    with zero_noise():
        tree = study(cc.House(sites), values={**VALUES, "a": ["1"]}, max_depth=1)
    assert "└─ a is missing or anything else: n" in tree.text()
    explanation = tree.explain({"a": "0", "b": "x"})
    assert explanation.prediction == "n"
    assert explanation.reasons[0].condition == "a is missing or anything else"
    for row in SITES["big"]:
        assert tree.explain(row).prediction == tree.predict([row])[0]


def test_a_node_that_noise_emptied_is_explained_without_a_fault():
    import msgspec

    sites = [cc.Site(name, state(r), UNLIMITED) for name, r in SITES.items()]
    tree = study(cc.House(sites), max_depth=1)
    empty = [msgspec.structs.replace(node, counts=[0, 0]) for node in tree.body.nodes]
    bare = cc.DecisionTree.of(msgspec.structs.replace(tree.body, nodes=empty), tree.card)
    assert bare.explain({"a": "0", "b": "x"}).probability == 0.5
    assert bare.release == "private"


def test_the_chosen_attributes_of_a_private_tree_are_all_it_asks_about():
    sites = [cc.Site(name, state(r), UNLIMITED) for name, r in SITES.items()]
    tree = study(cc.House(sites), attributes=["b"])
    assert set(tree.attributes_) <= {"b"}
    tree = study(cc.House(sites), attributes=["b", "c"])
    assert set(tree.attributes_) <= {"b"}
    assert "left out: c (not known at big, or withheld there)" in tree.card.warnings
    with pytest.raises(HouseError, match="noise hides which columns hold numbers, or none does"):
        study(cc.House(sites), attributes=["c"])
    for options in ({"min_leaf": 5}, {"criterion": "gain-ratio"}, {"reduce": 0.1}):
        with pytest.raises(StudyError, match="has no 'min_leaf'"):
            study(cc.House(sites), **options)


def test_a_budget_of_exactly_the_plan_is_enough():
    planned = study_without_fitting(epsilon=1).plan().total
    policy = cc.Policy(budget=cc.Budget(total=str(planned)))
    sites = [cc.Site(name, state(r), policy) for name, r in SITES.items()]
    tree = study(cc.House(sites), epsilon=1)
    assert all(site.ledger.spent() <= planned for site in sites)
    assert tree.card.releases
    with pytest.raises(StudyError, match="too small"):
        study_without_fitting(epsilon="1/1000000000")


def study_without_fitting(**options):
    return cc.DecisionTree("y", release="private", values=VALUES, max_depth=2, **options)
