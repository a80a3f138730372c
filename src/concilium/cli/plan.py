"""`concilium run --plan`: what a study would ask, what each question costs, whether every ledger has room for it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from concilium.cli.output import say, say_json, say_table

if TYPE_CHECKING:
    from concilium.privacy.accounting import Plan
    from concilium.study import Study


def tell_plan(study: Study, as_json: bool) -> None:
    """The plan of one fit, how often it is charged, and what each hospital has left. Nothing is asked or spent."""
    from concilium.privacy.accounting import epsilon_from_rho, say_epsilon, shown

    plan = study.open_method().plan()
    fits, total = count_fits(study), Fraction(0)
    total = plan.total * fits
    balances = [balance(study, name, plan, total) for name in ledgers(study)]
    if as_json:
        questions = [
            {"kind": q.kind, "cost": None if q.cost is None else str(q.cost), "note": q.note}
            for q in plan.questions
        ]
        say_json(
            {"currency": "rho", "questions": questions, "fits": fits, "total": str(total), "sites": balances}
        )
        return
    say(f"{study.name}: what a fit asks of every site, and what that costs")
    rows = plan.rows()
    say_table(["kind", "rho", "about"], [list(row) for row in rows[:-1]])
    if study.privacy.release != "private":
        say(f"{study.privacy.release} releases have no bound: epsilon is unlimited, whatever the budget")
        return
    epsilon = say_epsilon(epsilon_from_rho(plan.total, study.privacy.delta))
    say(
        f"in all rho = {shown(plan.total)}: epsilon = {epsilon} "
        f"at delta = {study.privacy.delta} for every patient"
    )
    if fits > 1:
        say(f"the evaluation fits {fits - 1} more models, each charged: at most rho = {shown(total)}")
    for row in balances:
        verdict = "fits" if row["fits"] else "does not fit"
        say(
            f"{row['site']}: {'no budget is set' if row['left'] is None else row['left'] + ' is left'}; {verdict}"
        )


def count_fits(study: Study) -> int:
    """How many models one site may be asked for: the one of all sites, and one for each fold it takes part in."""
    evaluate = study.evaluate
    if evaluate is None or evaluate.leave_out is None:
        return 1
    if evaluate.bands is not None:
        return evaluate.bands
    return max(1, len(study.hospitals) if study.hospitals else len(study.read_tables()))


def ledgers(study: Study) -> list[str]:
    """The sites that keep a ledger or a budget of their own."""
    return [hospital.name for hospital in study.hospitals]


def balance(study: Study, site: str, plan: Plan, total: Fraction) -> dict[str, Any]:
    """What a site has left: by its ledger if there is one already, else by the budget of its policy."""
    from pathlib import Path

    from concilium.policy.policy import Policy
    from concilium.privacy.ledger import Ledger

    hospital = next(hospital for hospital in study.hospitals if hospital.name == site)
    file = Path(study.locate(hospital.ledger)) if hospital.ledger else None
    if file is not None and file.exists():
        with Ledger.open_readonly(file) as book:
            left, currency = book.remaining(), book.currency
    else:
        policy = Policy.read(study.locate(hospital.policy)) if hospital.policy else Policy()
        left = None if policy.budget is None else policy.budget.amount
        currency = "rho" if policy.budget is None else policy.budget.currency
    private = study.privacy.release == "private"
    fits = not private or (currency == "rho" and (left is None or total <= left))
    return {"site": site, "left": None if left is None else f"{currency} {left}", "fits": fits}
