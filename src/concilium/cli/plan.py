"""`concilium run --plan`: what a study would ask, what each question costs, whether every ledger has room for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from concilium.cli.output import say, say_json, say_table

if TYPE_CHECKING:
    from concilium.study import Study
    from concilium.study.planning import StudyPlan


def tell_plan(study: Study, plan: StudyPlan, as_json: bool) -> None:
    """The plan of one fit, how often it is charged, and what each hospital has left."""
    from concilium.privacy.accounting import epsilon_from_rho, say_epsilon, shown
    from concilium.study.sources import say_missing

    if as_json:
        say_json(plan.to_dict())
        return
    say(f"{study.name}: what a fit asks of every site, and what that costs")
    say_table(["kind", "rho", "about"], plan.rows)
    if not study.way_out.bounded:
        say(f"{study.release} releases have no bound: epsilon is unlimited, whatever the budget")
        return
    for column in plan.unstated:
        say(say_missing(column))
    rho = plan.questions.total
    epsilon = say_epsilon(epsilon_from_rho(rho, study.privacy.delta))
    say(f"in all rho = {shown(rho)}: epsilon = {epsilon} at delta = {study.privacy.delta} for every patient")
    if plan.models > 1:
        say(
            f"the evaluation fits {plan.models - 1} more models, each charged: at most rho = {shown(plan.total)}"
        )
    for site in plan.sites:
        balance = "no budget is set" if site.left is None else f"{site.currency} {site.left} is left"
        say(f"{site.site}: {balance}; {'fits' if site.fits else 'does not fit'}")
