"""Nobody is without a budget by accident: the default, what a policy and a steward say, months, and older ledgers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import BudgetError, HouseError, LedgerError, PolicyError
from concilium.ledger import chain as ledger_chain
from concilium.ledger.budgets import DEFAULT_BUDGETS, Allowance, find_end
from concilium.privacy.accounting import epsilon_from_rho
from room import has_room

ROWS = [{"a": "xy"[row % 2], "y": "ny"[row % 3 == 0]} for row in range(30)]
TABLE = cc.Records.from_rows(ROWS, schema={"a": "code", "y": "code"})
VALUES = {"a": ["x", "y"], "y": ["n", "y"]}
UNLIMITED = cc.Policy(budget=cc.Budget("unlimited"))


def release(ledger, question, cost):
    return ledger.charge(
        question, "d", study="s", kind="count", mode="private", cost=cost, seal=lambda head: b"noisy"
    )


def fit(sites):
    return cc.NaiveBayes("y", release="private", epsilon=1, values=VALUES).fit(cc.House(sites))


def open_sites(policy=None, ledgers=(None, None, None)):
    return [
        cc.Site(name, TABLE, policy=policy, ledger=ledger)
        for name, ledger in zip("abc", ledgers, strict=True)
    ]


def at(monkeypatch, day):
    monkeypatch.setattr(ledger_chain, "now", lambda: f"{day}T12:00:00.000000+00:00")


def test_three_hundred_private_answers_do_not_average_out_to_the_truth():
    """Without a word about a budget: 41 answers at epsilon = 1, and then none."""
    sites = open_sites()
    for _ in range(41):
        fit(sites)
    with pytest.raises(HouseError, match=r"is left .* the hospital has set no budget, so that the default"):
        fit(sites)
    for site in sites:
        assert site.ledger.spent() <= site.ledger.settings.budget == DEFAULT_BUDGETS["rho"]
        assert site.ledger.settings.source == "default"
    assert 7 < epsilon_from_rho(DEFAULT_BUDGETS["rho"], "1e-6") < 8


def test_a_site_opens_with_the_default_and_nothing_else_in_its_book(tmp_path):
    site = cc.Site("a", TABLE, ledger=tmp_path / "a.ledger")
    assert site.ledger.settings.budget == 1
    assert [entry.kind for entry in site.ledger.entries()] == ["bind"]
    site.ledger.close()
    again = cc.Site("a", TABLE, ledger=tmp_path / "a.ledger")
    assert again.ledger.head().count == 1


def test_an_unlimited_budget_is_a_decision_that_the_ledger_and_the_card_repeat():
    sites = open_sites(UNLIMITED)
    model = fit(sites)
    assert sites[0].ledger.settings.budget is None
    assert sites[0].ledger.settings.source == "policy"
    (warning,) = [warning for warning in model.card.warnings if "unlimited budget" in warning]
    assert warning.endswith("has no bound: a, b, c")
    assert not any("unlimited budget" in warning for warning in fit(open_sites()).card.warnings)


def test_a_ledger_object_without_a_budget_is_given_one_by_its_site():
    ledger = cc.Ledger()
    site = cc.Site("a", TABLE, ledger=ledger)
    assert site.ledger.settings.budget == 1
    assert ledger.entries()[0].note == "no budget was set: rho = 1 holds by default"
    stated = cc.Ledger(budget=3)
    cc.Site("a", TABLE, ledger=stated)
    assert stated.settings.budget == 3
    with pytest.raises(LedgerError, match=r"has budget 3, not 2; a budget is changed by set_budget"):
        cc.Site("a", TABLE, policy=cc.Policy(budget=cc.Budget("2")), ledger=stated)


def make_old(path, spent):
    """A ledger as it was made before there was a default: no cap, and no word of who said so."""
    with cc.Ledger(path, records=TABLE.digest) as ledger:
        if spent:
            release(ledger, "before", spent)


def test_an_old_ledger_without_a_cap_gets_the_default_entered_with_the_reason(tmp_path):
    path = tmp_path / "a.ledger"
    make_old(path, "1/4")
    with cc.Site("a", TABLE, ledger=path).ledger as ledger:
        assert ledger.balance().left == Fraction(3, 4)
        notes = [entry.note for entry in ledger.entries() if entry.kind == "budget"]
        assert notes == ["no budget was set: rho = 1 holds by default"]
        ledger.verify()


def test_an_old_ledger_that_spent_more_says_so_and_answers_nothing_private_until_a_budget_is_set(
    tmp_path, caplog
):
    path = tmp_path / "a.ledger"
    make_old(path, 5)
    sites = open_sites(ledgers=(path, None, None))
    said = "5 is spent already, so that no private question is answered until a budget is set"
    assert said in caplog.text
    assert said in next(entry.note for entry in sites[0].ledger.entries() if entry.kind == "budget")
    assert sites[0].ledger.balance().left == 0
    with pytest.raises(HouseError, match="but 0 is left"):
        fit(sites)
    cc.NaiveBayes("y").fit(cc.House(sites))  # what has no price goes on
    sites[0].ledger.set_budget(6, "the committee agreed")
    fit(sites)
    sites[0].ledger.verify()


def test_an_old_ledger_stays_without_a_cap_where_its_policy_says_so(tmp_path):
    make_old(tmp_path / "a.ledger", 5)
    with cc.Site("a", TABLE, policy=UNLIMITED, ledger=tmp_path / "a.ledger").ledger as ledger:
        assert (ledger.settings.budget, ledger.settings.source) == (None, "policy")
        assert next(e.note for e in ledger.entries() if e.kind == "budget") == "the policy says unlimited"


def test_what_the_steward_set_stands_also_where_that_is_no_cap(tmp_path):
    path = tmp_path / "a.ledger"
    with cc.Site("a", TABLE, ledger=path).ledger as ledger:
        ledger.set_budget(None, "a simulation")
    with cc.Site("a", TABLE, ledger=path).ledger as ledger:
        assert (ledger.settings.budget, ledger.settings.source) == (None, "steward")
    with pytest.raises(LedgerError, match=r"has budget without a cap, not 0\.5"):
        cc.Site("a", TABLE, policy=cc.Policy(budget=cc.Budget("1/2")), ledger=path)


def test_a_policy_takes_the_place_of_the_default_and_an_unlimited_one_that_is_gone_gives_it_back(tmp_path):
    path = tmp_path / "a.ledger"
    cc.Site("a", TABLE, ledger=path).ledger.close()
    with cc.Site("a", TABLE, policy=UNLIMITED, ledger=path).ledger as ledger:
        assert ledger.settings.budget is None
    with cc.Site("a", TABLE, ledger=path).ledger as ledger:
        assert ledger.settings.budget == 1
        release(ledger, "q", "3/4")
    with pytest.raises(LedgerError, match=r"budget of rho = 0\.5 cannot be kept: 0\.75 is spent already"):
        cc.Site("a", TABLE, policy=cc.Policy(budget=cc.Budget("1/2")), ledger=path)
    with cc.Site("a", TABLE, policy=cc.Policy(budget=cc.Budget("3/2")), ledger=path).ledger as ledger:
        assert ledger.balance().left == Fraction(3, 4)
        ledger.verify()
    with cc.Site("a", TABLE, ledger=path).ledger as ledger:  # the section is gone: what it set stands
        assert ledger.settings.budget == Fraction(3, 2)


def test_a_month_has_its_own_cap_and_a_clock_that_is_put_back_begins_none_anew(tmp_path, monkeypatch):
    path = tmp_path / "a.ledger"
    policy = cc.Policy(budget=cc.Budget("1", per_month="1/10"))
    at(monkeypatch, "2026-11-03")
    with cc.Site("a", TABLE, policy=policy, ledger=path).ledger as ledger:
        release(ledger, "q1", "1/20")
        release(ledger, "q2", "1/20")
        with pytest.raises(BudgetError) as caught:
            release(ledger, "q3", "1/100")
        assert (caught.value.left, caught.value.spent, caught.value.until) == (
            0,
            Fraction(1, 10),
            "2026-12-01",
        )
        assert str(caught.value) == (
            "this would cost rho = 0.01, but 0 is left of this month (0.1 is spent); a question that costs at most 0 "
            "would fit, and more from 2026-12-01 on"
        )
        at(monkeypatch, "2026-12-31")
        release(ledger, "q4", "1/20")
    at(monkeypatch, "2026-11-30")  # put back: it is still December
    with cc.Site("a", TABLE, policy=policy, ledger=path).ledger as ledger:
        assert ledger.balance().month_left == Fraction(1, 20)
        assert not has_room(ledger, "1/10")
        release(ledger, "q5", "1/20")
        assert not has_room(ledger, "1/100")
        at(monkeypatch, "2027-01-01")
        assert has_room(ledger, "1/10")
        assert not has_room(ledger, "1/9")
        ledger.verify()
        assert ledger.spent() == Fraction(1, 5)


def test_a_house_is_told_what_is_left_of_the_month_and_the_total_still_holds(monkeypatch):
    at(monkeypatch, "2026-11-03")
    sites = open_sites(cc.Policy(budget=cc.Budget("1/25", per_month="1/30")))
    fit(sites)
    with pytest.raises(HouseError, match=r"is left of this month .* and more from 2026-12-01 on"):
        fit(sites)
    at(monkeypatch, "2026-12-01")
    with pytest.raises(HouseError) as caught:
        fit(sites)  # the month has room, and the total has not
    assert "of this month" not in str(caught.value)


def test_a_month_s_cap_is_the_policy_s_and_may_be_lowered_below_what_is_spent(monkeypatch):
    at(monkeypatch, "2026-11-03")
    ledger = cc.Ledger()
    ledger.settle(Allowance(total=Fraction(2), per_month=Fraction(1)))
    release(ledger, "q1", "1/2")
    assert (
        ledger.settle(Allowance(total=Fraction(2), per_month=Fraction(1, 4)))
        == "the policy caps a month at 0.25"
    )
    assert ledger.balance().month_left == 0
    assert not has_room(ledger, "1/1000")
    ledger.verify()
    assert ledger.settle(Allowance(total=Fraction(2))) == "the policy caps no month"
    assert has_room(ledger, "3/2")


def test_a_chain_that_overspends_a_month_is_found(monkeypatch):
    at(monkeypatch, "2026-11-03")
    ledger = cc.Ledger()
    ledger.settle(Allowance(per_month=Fraction(1, 10)))
    with ledger._file.writing():
        head = ledger_chain.append(
            ledger._file,
            ledger_chain.read_tail(ledger._file),
            kind="count",
            mode="private",
            question="q",
            digest="d",
            cost=Fraction(1, 5),
        )
        ledger_chain.store(ledger._file, head, b"")
    with pytest.raises(LedgerError, match="entry 2 overspends its month"):
        ledger.verify()


@given(
    per_month=st.fractions("1/10", 1, max_denominator=20),
    asked=st.lists(
        st.tuples(st.integers(0, 40), st.fractions("1/50", "1/2", max_denominator=50)), max_size=20
    ),
)
def test_whatever_the_clock_does_no_month_and_no_total_is_overspent(per_month, asked):
    with pytest.MonkeyPatch.context() as patch:
        at(patch, "2026-01-01")
        ledger = cc.Ledger(allowance=Allowance(per_month=per_month))
        latest, spent = "2026-01-01", {}
        for number, (day, cost) in enumerate(asked):
            moment = f"2026-{1 + day // 10:02d}-{1 + day % 10:02d}"
            at(patch, moment)
            month = max(latest, moment)[:7]
            fits = spent.get(month, 0) + cost <= per_month and sum(spent.values()) + cost <= 1
            assert has_room(ledger, cost) == fits
            try:
                release(ledger, f"q{number}", cost)
            except BudgetError:
                assert not fits
                continue
            assert fits
            latest, spent[month] = max(latest, moment), spent.get(month, 0) + cost
        ledger.verify()
        assert ledger.spent() == sum(spent.values())


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"total": "plenty"}, "total must be a finite number"),
        ({"total": "0"}, "total must be above zero"),
        ({"per_month": "-1"}, "per_month must be above zero"),
        ({"per_month": "unlimited"}, "per_month must be a finite number"),
    ],
)
def test_a_budget_that_is_none_is_refused(budget, said):
    with pytest.raises(PolicyError, match=said):
        cc.Policy(budget=cc.Budget(**budget))


def test_the_default_is_in_the_ledger_s_own_currency():
    site = cc.Site("a", TABLE, policy=cc.Policy(budget=cc.Budget(currency="epsilon")))
    assert (site.ledger.settings.currency, site.ledger.settings.budget) == ("epsilon", 8)


@pytest.mark.parametrize(("month", "end"), [("2026-11", "2026-12-01"), ("2026-12", "2027-01-01")])
def test_a_month_ends_with_the_first_of_the_next(month, end):
    assert find_end(month) == end
