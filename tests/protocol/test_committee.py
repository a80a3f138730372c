"""The page on which a committee decides: true to the terms, readable, and safe to look at, whoever wrote the terms."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

import concilium as cc
from agreed import HOUSE, Asker
from concilium.consult.consent import decide_on_study, find_study, list_studies, write_page
from concilium.errors import LedgerError
from concilium.policy.policy import Agree
from concilium.privacy.accounting import epsilon_from_rho, rho_for_epsilon
from concilium.privacy.identity import Identity
from concilium.protocol.terms import open_method
from concilium.registry import PROPOSED, load
from contract.patients import write_parameters

STATED = {"bins": {"age": [40, 60]}, "values": {"sex": ["f", "m"], "y": ["n", "y"]}, "epsilon": "1"}
HOSTILE = "sex\x1b[2J\nDecision        Agreed by everyone\r\u202e\x9b31m"
RELEASES = [(name, release) for name in PROPOSED for release in load(PROPOSED[name]).releases]


def open_site(name: str, **policy: Any) -> cc.Site:
    rows = [{"age": 20 + i % 60, "sex": "fm"[i % 2], "y": "ny"[i % 3 == 0]} for i in range(90)]
    return cc.Site(name, cc.Records.from_rows(rows), policy=cc.Policy(agree=Agree(methods=()), **policy))


def propose(release: str, method: str, parameters: dict[str, Any], **changes: Any) -> tuple[cc.Site, str]:
    """A study that waits at the site of north, and its id."""
    policy = {
        name: changes.pop(name) for name in ("budget", "houses", "peers", "withhold") if name in changes
    }
    sites = [open_site("coast"), open_site("north", **policy), open_site("south")]
    declared = load(PROPOSED[method]).parameters()
    about = {name: value for name, value in {"target": "y", "release": release}.items() if name in declared}
    total = open_method(method, {**about, **parameters}).plan().total
    changes.setdefault("price", str(total) if total else None)
    asker = Asker(sites, release=release, method=method, parameters=parameters, **changes)
    asker.propose(sites[1])
    return sites[1], asker.study


def read_page(site: cc.Site, study: str, *, policy: bool = True) -> str:
    known = site.policy if policy else None
    page = write_page(find_study(site.ledger, study, known), site.ledger, known)
    assert all(line.isprintable() and len(line) <= 98 for line in page.split("\n"))
    return " ".join(page.split())


@pytest.mark.parametrize(("method", "release"), RELEASES)
def test_every_study_has_a_page(method: str, release: str) -> None:
    parameters = write_parameters(method, release, positive="y", time="age", **STATED)
    site, study = propose(release, method, parameters)
    text = read_page(site, study)
    opened = find_study(site.ledger, study).opened
    assert opened is not None
    for question in opened.method.plan().questions:
        assert question.kind in text
        assert question.note in text
    for name, one in opened.method.parameters().items():
        value = opened.method.get_params()[name]
        assert (f"- {name} = " in text) == (not one.parameter.section and value is not None)
    assert opened.method.way_out.meaning in text
    assert ("handing over these tables" in text) == (release == "exact")
    assert ("as likely as it would be" in text) == (opened.price is not None and release != "shared")
    assert all(" ".join(sentence.split()) in text for sentence in opened.method.worst_case)
    if not opened.method.way_out.by_site:
        assert site.identity.fingerprint in text
        assert "at most 1 of the 2 other hospitals sides with the house" in text
    if release == "masked":
        gathered = [kind for kind in opened.kinds if f"({kind}; this hospital's own answer" in text]
        assert gathered == [kind for kind in opened.kinds if kind.endswith((".schema", ".rules"))]


@pytest.mark.parametrize("epsilon", ["1/10", "1", "3", "8"])
def test_a_price_is_said_as_what_it_means_for_a_patient(epsilon: str) -> None:
    site, study = propose("private", "naive-bayes", {**STATED, "epsilon": epsilon})
    text = read_page(site, study)
    factor = float(text.split("makes it at most ")[1].split(" times")[0].replace(",", ""))
    assert math.exp(float(Fraction(epsilon))) * 0.99 < factor <= math.exp(float(Fraction(epsilon))) * 1.03
    assert ("that is hardly a bound" in text) == (epsilon == "8")


def test_what_nobody_could_call_a_bound_is_not_called_one() -> None:
    site, study = propose("private", "naive-bayes", {**STATED, "epsilon": "1000"})
    assert "No bound worth the name holds for all that leaves (epsilon = 1e+03)" in read_page(site, study)


def test_what_is_left_of_the_budget_and_the_month_after_it() -> None:
    price = rho_for_epsilon("1", "1e-6")
    one, two = f"rho ~{float(price):.6g}", f"rho ~{float(2 * price):.6g}"
    site, study = propose("private", "naive-bayes", STATED, budget=cc.Budget(str(2 * price)))
    text = read_page(site, study)
    assert (
        f"Of the budget, {two} is left now, and {one} after it; all private answers together come to" in text
    )
    assert "may cost, rho" not in text
    site, study = propose("private", "naive-bayes", STATED, budget=cc.Budget(str(price / 2)))
    assert "it does NOT fit" in read_page(site, study)
    month = cc.Budget("5", per_month=str(2 * price))
    site, study = propose("private", "naive-bayes", STATED, budget=month)
    assert f"may cost, {two} is left now, and {one} after it." in read_page(site, study)
    site, study = propose("private", "naive-bayes", STATED)
    assert "Of the budget (which holds by default), rho 1 is left now" in read_page(site, study)
    site, study = propose("private", "naive-bayes", STATED, budget=cc.Budget("unlimited"))
    assert "No budget limits private answers" in read_page(site, study)
    site, study = propose("private", "naive-bayes", STATED, budget=cc.Budget("1", "epsilon"))
    assert "The budget is in epsilon, to which such noise cannot be charged" in read_page(site, study)


def test_a_price_that_is_not_the_method_s_is_pointed_out() -> None:
    """What is agreed to is the price of the terms, whatever the method would take."""
    price = rho_for_epsilon("1", "1e-6")
    site, study = propose("private", "naive-bayes", STATED, price=str(10 * price))
    text = read_page(site, study)
    assert f"epsilon {epsilon_from_rho(10 * price, '1e-6'):.1f}" in text
    assert "The method's questions cost epsilon 1 (rho 0.0244) only." in text
    site, study = propose("private", "naive-bayes", STATED, price=str(price / 2))
    assert "and not all of them would be answered." in read_page(site, study)
    site, study = propose("private", "naive-bayes", STATED, price=None)
    assert "The terms name no price" in read_page(site, study)
    site, study = propose("private", "naive-bayes", STATED, price=str(2 * price), models=2)
    text = read_page(site, study)
    assert "2 models: hospitals are left out in turn" in text
    assert "The method's questions cost" not in text


def test_who_asks_and_who_takes_part_are_held_against_the_policy() -> None:
    site, study = propose("exact", "tree", {})
    assert "It is NOT pinned: the policy has no [houses]" in read_page(site, study)
    assert "shown with --policy FILE" in read_page(site, study, policy=False)
    site, study = propose("exact", "tree", {}, houses={"network": HOUSE.fingerprint})
    assert "It is pinned in the policy as network." in read_page(site, study)
    assert find_study(site.ledger, study, site.policy).house_name == "network"
    stranger = Identity.create().fingerprint
    known = cc.Policy(houses={"other": stranger}, peers={"coast": stranger})
    assert find_study(site.ledger, study, known).house_name is None
    site, study = propose("masked", "tree", {})
    page = write_page(find_study(site.ledger, study, known), site.ledger, known)
    assert "It is NOT pinned under [houses] of the policy" in " ".join(page.split())
    assert page.count("NOT the key that the policy pins") == 1


def test_what_the_policy_says_of_it() -> None:
    site, study = propose("exact", "tree", {"attributes": ["age", "sex"]}, withhold=("sex",))
    text = read_page(site, study)
    assert "2 attributes: age, sex; the policy withholds sex." in text
    assert "A person decides: it agrees to no 'tree' released as 'exact' by itself." in text
    for policy, words in (
        (cc.Policy(modes=("private",)), "It lets nothing out as 'exact'"),
        (cc.Policy(kinds=("tree.schema",)), "It answers no 'counts'"),
        (cc.Policy(), "It has no [agree]"),
        (cc.Policy(agree=Agree()), "A person decides"),
        (cc.Policy(agree=Agree(releases=("exact",))), "A person decides"),
        (cc.Policy(agree=Agree(releases=("exact",), methods=("tree",))), "[agree] covers it"),
    ):
        assert words in write_page(find_study(site.ledger, study, policy), site.ledger, policy)


def test_a_house_cannot_speak_to_the_terminal_or_write_lines_of_its_own() -> None:
    parameters = {"attributes": ["age", HOSTILE], "bins": {HOSTILE: [1.0]}}
    site, study = propose("exact", "tree", parameters)
    assert study in read_page(site, study)
    assert "sex\\x1b[2J\\nDecision" in write_page(find_study(site.ledger, study), site.ledger)
    (listed,) = list_studies(site.ledger)
    assert listed.status == "waiting"


def test_only_the_hospital_decides() -> None:
    site, study = propose("exact", "tree", {})
    with pytest.raises(LedgerError, match="would not count there"):
        decide_on_study(site.ledger, study, "agreed", "x", "y", Identity.create())
    decided = decide_on_study(site.ledger, study[:9], "agreed", " Dr. Meyer ", "vote", site.identity)
    assert (decided.status, decided.record.who, decided.record.why) == ("agreed", "Dr. Meyer", "vote")
    assert decided.record.is_sealed(site.identity.public)
    assert "Agreed by Dr. Meyer on" in read_page(site, study)
    ended = decide_on_study(site.ledger, study, "ended", "Dr. Meyer", "done", site.identity)
    assert ended.status == "ended"
    assert site.ledger.verify() > 2
