"""`concilium run --plan`: what a study would ask, what each question costs, what that takes of every hospital's budget
and month, and what its policy forbids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from concilium.cli.output import say, say_json, say_table

if TYPE_CHECKING:
    from fractions import Fraction

    from concilium.ledger.budgets import Balance
    from concilium.study import Study
    from concilium.study.planning import SiteBalance, StudyPlan


def tell_plan(study: Study, plan: StudyPlan, as_json: bool) -> None:
    """The plan of one fit, how often it is charged, and what each hospital has left before and after it."""
    from concilium.privacy.accounting import epsilon_from_rho, say_epsilon, shown
    from concilium.study.sources import say_missing

    if as_json:
        say_json(plan.to_dict())
        return
    say(f"{study.name}: what a fit asks of every site, and what that costs")
    say_table(["kind", "rho", "about"], plan.rows)
    if not study.way_out.bounded:
        say(f"{study.release} releases have no bound: epsilon is unlimited, whatever the budget")
    for column in plan.unstated:
        say(say_missing(column))
    if plan.total:
        rho = plan.questions.total
        epsilon = say_epsilon(epsilon_from_rho(rho, study.privacy.delta))
        say(
            f"in all rho = {shown(rho)}: epsilon = {epsilon} at delta = {study.privacy.delta} for every patient"
        )
        if plan.models > 1:
            more = f"the evaluation fits {plan.models - 1} more models, each charged"
            say(f"{more}: at most rho = {shown(plan.total)}")
        say_table(
            ["hospital", "of", "spent", "left", "after this study", "room"],
            [line for site in plan.sites for line in list_balance(site)],
        )
    for site in plan.sites:
        for sentence in site.forbidden:
            say(f"{site.site} will refuse: {sentence}")


def list_balance(site: SiteBalance) -> list[list[str]]:
    """A hospital's budget as lines of a table: all of it and, where that is capped, this month's."""
    balance = site.balance
    rows = [("all", balance.spent, balance.left)]
    if balance.per_month is not None:
        rows.append((balance.month, balance.month_spent, balance.month_left))
    lines = []
    for of, spent, left in rows:
        if left is None:
            after, room = "unlimited", "fits"
        else:
            room = "fits" if site.cost <= left else "does not fit"
            after = say_amount(balance, left - site.cost) if site.cost <= left else "–"
        if not site.payable:
            room = "does not fit: its budget is in epsilon, for pure mechanisms, and Gaussian noise costs rho"
        rest = "unlimited" if left is None else say_amount(balance, left)
        lines.append([site.site, of, say_amount(balance, spent), rest, after, room])
    return lines


def say_amount(balance: Balance, amount: Fraction) -> str:
    """An amount in the ledger's currency and, where that is rho, as epsilon."""
    from concilium.privacy.accounting import shown

    exact = f"{balance.currency} {shown(amount)}"
    return f"{exact} ({balance.show_epsilon(amount)})" if balance.currency == "rho" and amount else exact
