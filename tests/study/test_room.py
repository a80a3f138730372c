"""Nothing is asked unless all of it fits: a study that cannot be finished spends no budget at any hospital."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import concilium as cc
from concilium.errors import HouseError, MaskError, StudyError, StudyPending
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import Agree, Budget, WorkLimits
from concilium.privacy.accounting import shown
from concilium.protocol.messages import open_envelope
from concilium.registry import KINDS
from small_study import HOSPITALS, SEVERAL, lay_out

PRIVATE = '[privacy]\nrelease = "private"\nepsilon = 1\n[values]\nsex = ["f", "m"]\ndeath = [0, 1]\n'
STEPS = ("mask.join", "mask.meet", "mask.open", "mask.end")
METHODS = {
    "tree": cc.DecisionTree,
    "rulefit": cc.RuleFit,
    "naive-bayes": cc.NaiveBayes,
}


def find_spent(folder: Path) -> dict[str, Fraction]:
    found = {}
    for name in HOSPITALS:
        path = folder / f"{name}.ledger"
        if path.exists():
            with Ledger.open_readonly(path) as book:
                found[name] = book.spent()
    return found


SCHEMA = {"age": "number", "sex": "code", "death": "code"}


def open_house(
    folder: Path, policies: dict[str, cc.Policy], lacking: dict[str, str] | None = None
) -> tuple[cc.House, list[cc.Site]]:
    """Three hospitals in memory; some lack a column."""
    lay_out(folder)
    sites = []
    for name in HOSPITALS:
        table = cc.Records.read(folder / f"{name}.csv", schema=SCHEMA)
        if lacking and name in lacking:
            table = cc.Records({one: table[one] for one in table.names if one != lacking[name]})
        sites.append(cc.Site(name, cc.Patients(table=table, one_row_per_patient=True), policies.get(name)))
    return cc.House(sites), sites


def make_private(method: str) -> Any:
    return METHODS[method](
        target="death",
        release="private",
        epsilon=1,
        bins={"age": [40, 60]},
        values={"sex": ["f", "m"], "death": [0, 1]},
        **({} if method == "tree" else {"positive": 1}),
    )


@pytest.mark.parametrize("method", list(METHODS))
def test_a_private_study_that_does_not_fit_one_budget_spends_nothing_anywhere(
    method: str, tmp_path: Path
) -> None:
    learner = make_private(method)
    short = learner.plan().total * Fraction(98, 100)
    house, sites = open_house(tmp_path, {"south": cc.Policy(budget=Budget(total=str(short)))})
    with pytest.raises(HouseError, match=r"south: .*would fit"):
        learner.fit(house)
    assert [site.ledger.spent() for site in sites] == [0, 0, 0]


def test_a_month_and_a_currency_that_do_not_fit_are_found_before_the_first_charge(tmp_path: Path) -> None:
    learner = make_private("tree")
    for budget, words in (
        (Budget(per_month=str(learner.plan().total / 2)), "south: .*this month"),
        (Budget(currency="epsilon"), "south: this hospital's budget is in epsilon"),
    ):
        house, sites = open_house(tmp_path, {"south": cc.Policy(budget=budget)})
        with pytest.raises(HouseError, match=words):
            learner.fit(house)
        assert [site.ledger.spent() for site in sites] == [0, 0, 0]


@pytest.mark.parametrize("column", ["death", "age"])
def test_a_column_that_one_hospital_lacks_is_found_before_the_first_charge(
    column: str, tmp_path: Path
) -> None:
    house, sites = open_house(tmp_path, {}, lacking={"coast": column})
    with pytest.raises(HouseError, match=f"coast: there is no column '{column}'"):
        make_private("tree").fit(house)
    assert [site.ledger.spent() for site in sites] == [0, 0, 0]


def test_a_study_file_that_does_not_fit_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    text = SEVERAL.replace('records = "south.csv"', 'records = "south.csv"\npolicy = "south.toml"') + PRIVATE
    measured = "[evaluate]\nholdout = 0.3\nepsilon = 1\n"
    (tmp_path / "south.toml").touch()
    price = cc.Study.read(lay_out(tmp_path, text)).plan().total
    (tmp_path / "south.toml").write_text(f'[budget]\ntotal = "{price * Fraction(3, 2)}"\n')
    study = cc.Study.read(lay_out(tmp_path, text + measured))
    assert study.plan().total > price
    assert not study.plan().fits
    with pytest.raises(StudyError, match=r"south has no room for that .*nothing was asked"):
        study.run(warn=lambda text: None)
    assert find_spent(tmp_path) == {}
    cc.Study.read(lay_out(tmp_path, text)).run(warn=lambda text: None)
    assert all(spent <= price for spent in find_spent(tmp_path).values())


def make_masked() -> Any:
    """It asks for cutoffs with noise, and for everything else without."""
    bins = {"age": [*range(20, 90, 2)]}
    return cc.RuleFit(target="death", positive=1, release="masked", epsilon=1, bins=bins, trees=4)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"modes": ("exact", "masked")}, "nothing is released as 'private' here"),
        *[({"kinds": tuple({*KINDS} - {kind})}, f"'{kind}' are not answered") for kind in STEPS],
        ({"work": WorkLimits(memory_per_question="2 MB")}, "allows 2 MB for one question"),
        ({"work": WorkLimits(operations_per_question=10**6)}, "allows 1e[+]06 for one question"),
        ({"work": WorkLimits(operations_per_day=10**8)}, "this study may take .* for a day"),
    ],
)
@pytest.mark.parametrize("make", [lambda: make_private("tree"), make_masked], ids=["private", "masked"])
def test_what_a_policy_will_refuse_later_it_refuses_before_the_first_charge(
    make: Any, policy: dict[str, Any], words: str, tmp_path: Path
) -> None:
    house, sites = open_house(tmp_path, {"south": cc.Policy(**policy)})
    with pytest.raises(HouseError, match=f"south: .*{words}"):
        make().fit(house)
    assert [site.ledger.spent() for site in sites] == [0, 0, 0]


def test_a_circle_of_other_hospitals_is_found_before_the_first_charge(tmp_path: Path) -> None:
    house, sites = open_house(tmp_path, {})
    cc.DecisionTree(target="death", release="masked", bins={"age": [40, 60]}).fit(house)
    table = cc.Records.read(tmp_path / "north.csv", schema=SCHEMA)
    sites.append(cc.Site("west", cc.Patients(table=table, one_row_per_patient=True)))
    with pytest.raises(HouseError, match="opens none with another circle of hospitals"):
        make_masked().fit(cc.House(sites))
    assert [site.ledger.spent() for site in sites] == [0, 0, 0, 0]


NO_MEASURING = tuple(kind for kind in KINDS if kind != "model.risks")


@pytest.mark.parametrize(
    ("policy", "error", "words"),
    [
        (cc.Policy(kinds=NO_MEASURING), HouseError, "south: .*'model.risks' are not answered"),
        (cc.Policy(modes=("private",)), HouseError, "south: nothing is released as 'exact'"),
        (cc.Policy(agree=Agree(methods=("tree",))), StudyPending, "south"),
        (cc.Policy(agree=Agree(price_per_month="1/30")), StudyPending, "south"),
    ],
)
def test_a_hospital_that_would_refuse_what_follows_is_asked_nothing(
    policy: cc.Policy, error: type[Exception], words: str, tmp_path: Path
) -> None:
    learner = make_private("tree")
    house, sites = open_house(tmp_path, {"south": policy})
    house.after, house.total = ("validation private", "tree exact"), 2 * learner.plan().total
    with pytest.raises(error, match=words):
        learner.fit(house)
    assert [site.ledger.spent() for site in sites] == [0, 0, 0]


def test_a_study_whose_folds_would_be_too_small_is_not_begun(tmp_path: Path) -> None:
    """Three hospitals can learn together, and no two of them."""
    learner = make_private("tree")
    house, sites = open_house(tmp_path, {})
    house.spare = 1
    with pytest.raises(MaskError, match="2 participants; with 1 tolerated colluder at least 3 are needed"):
        learner.fit(house)
    assert [site.ledger.spent() for site in sites] == [0, 0, 0]


def test_what_follows_a_study_must_fit_too(tmp_path: Path) -> None:
    learner = make_private("tree")
    house, sites = open_house(tmp_path, {"south": cc.Policy(budget=Budget(total=str(learner.plan().total)))})
    house.total = 2 * learner.plan().total
    with pytest.raises(HouseError, match=r"south: .*would fit"):
        learner.fit(house)
    assert [site.ledger.spent() for site in sites] == [0, 0, 0]
    house.total = None
    learner.fit(house)
    assert all(0 < site.ledger.spent() <= learner.plan().total for site in sites)


class Failing:
    """A site that answers so many questions but one, and then refuses."""

    def __init__(self, site: cc.Site, after: int) -> None:
        self.site, self.name, self.identity, self.introduce = site, site.name, site.identity, site.introduce
        self.left = after

    def answer(self, message: bytes) -> bytes:
        if open_envelope(message).kind == "counts":
            self.left -= 1
        return self.site.answer(message if self.left > 0 else b"damaged")


def test_a_refusal_of_the_first_question_says_that_others_may_have_been_charged(tmp_path: Path) -> None:
    learner = make_private("tree")
    _, sites = open_house(tmp_path, {})
    with pytest.raises(
        HouseError, match=r"an unfinished question, at hospitals that answered it, and at most"
    ):
        learner.fit(cc.House([sites[0], sites[1], Failing(sites[2], 1)]))
    assert all(0 < site.ledger.spent() < learner.plan().total for site in sites[:2])


def test_a_refusal_midway_says_what_was_charged_and_that_is_no_more_than_planned(tmp_path: Path) -> None:
    learner = make_private("tree")
    _, sites = open_house(tmp_path, {})
    with pytest.raises(
        HouseError, match=r"charged until then, for nothing unless it is resumed: .*rho "
    ) as error:
        learner.fit(cc.House([sites[0], sites[1], Failing(sites[2], 2)]))
    spent = [site.ledger.spent() for site in sites[:2]]
    assert all(0 < one < learner.plan().total for one in spent)
    told = float(re.search(r"north, south, coast: rho ~([\d.]+), and", str(error.value))[1])  # type: ignore[index]
    assert 0 < told <= float(spent[0]) < float(learner.plan().total)
    assert f"at most rho {shown(learner.plan().total)}" in str(error.value)


def open_stays(name: str, fault: str) -> cc.Site:
    """Twenty stays of ten hours."""
    pulse, outcome = np.full((10, 20), 70.0), np.zeros((10, 20))
    if fault == "no series":
        table = cc.Records.from_rows([{"age": age} for age in range(20)])
        return cc.Site(name, cc.Patients(table=table, one_row_per_patient=True))
    stays = {"HR": pulse} if fault == "no outcome" else {"HR": pulse, "sepsis": outcome}
    series = cc.Series(stays, step="2h" if fault == "another step" else "1h")
    series.stated = fault != "unstated"
    return cc.Site(name, cc.Patients(series=series))


@pytest.mark.parametrize("method", [cc.RuleDiscovery, cc.Experts])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no series", "holds no series"),
        ("no outcome", "series have no 'sepsis'"),
        ("another step", "have a step of 2h"),
        ("unstated", "no variable of the series is stated"),
    ],
)
def test_series_that_do_not_fit_are_found_before_the_first_charge(
    method: Any, fault: str, words: str
) -> None:
    how: dict[str, Any] = {"bins": {"HR": [60, 100]}, "window": "4h", "epsilon": 1}
    if method is cc.RuleDiscovery:
        learner = method(outcome="sepsis", clients=1000, prevalence=0.3, **how)
    else:
        learner = method(target="sepsis", public=cc.Series({"HR": np.full((10, 5), 70.0)}), **how)
    sites = [open_stays(name, "") for name in HOSPITALS] + [open_stays("west", fault)]
    with pytest.raises(HouseError, match=f"west: .*{words}"):
        learner.fit(cc.House(sites))
    assert [site.ledger.spent() for site in sites] == [0, 0, 0, 0]


def test_a_study_says_what_follows_it(tmp_path: Path) -> None:
    left_out = SEVERAL + '[evaluate]\nleave_out = "site"\nsimulation = false\n'
    assert cc.Study.read(lay_out(tmp_path, left_out)).following == ("tree exact", "validation exact")
    three = SEVERAL.replace('method = "tree"', 'method = ["tree", "naive-bayes", "rulefit masked"]')
    several = cc.Study.read(lay_out(tmp_path, three))
    assert several.find_variant(several.several[0].variant).following == (
        "naive-bayes exact",
        "rulefit masked",
    )
    assert cc.Study.read(lay_out(tmp_path)).following == ()
