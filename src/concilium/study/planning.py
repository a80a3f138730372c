"""What a study would ask, what each question costs, and whether every hospital would answer: its policy allows it, and
its ledger has room, in all and in this month. Nothing is asked or spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.errors import BudgetError
from concilium.ledger.budgets import Balance
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import Policy
from concilium.privacy.accounting import Plan
from concilium.privacy.identity import Identity, has_fingerprint
from concilium.records.sources import TEXT_FILES
from concilium.registry import KINDS
from concilium.study.sources import read_tables

if TYPE_CHECKING:
    from concilium.study.study import Study


@dataclass(frozen=True)
class SiteBalance:
    """What a site has spent and has left before the study, what this costs in the currency of its ledger (in rho where
    that cannot pay), and what its policy forbids of it."""

    site: str
    balance: Balance
    cost: Fraction
    forbidden: tuple[str, ...] = ()
    payable: bool = True

    @property
    def left(self) -> Fraction | None:
        """What is left of the budget; None where it is unlimited."""
        return self.balance.left

    @property
    def currency(self) -> str:
        return self.balance.currency

    @property
    def has_room(self) -> bool:
        """Whether the study fits into the budget and into this month."""
        if not self.cost:
            return True
        try:
            self.balance.check(self.cost)
        except BudgetError:
            return False
        return self.payable

    @property
    def fits(self) -> bool:
        """Whether it has room, and its policy forbids nothing of it."""
        return self.has_room and not self.forbidden

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, exact numbers as text; an amount of None has no cap."""
        balance = self.balance
        return {
            "site": self.site,
            "currency": self.currency,
            "delta": str(balance.delta),
            "spent": str(balance.spent),
            "left": write_exactly(self.left),
            "after": write_exactly(self.left, self.cost),
            "budget_set_by": balance.source or None,
            "month": None
            if balance.per_month is None
            else {
                "month": balance.month,
                "spent": str(balance.month_spent),
                "left": write_exactly(balance.month_left),
                "after": write_exactly(balance.month_left, self.cost),
            },
            "fits": self.fits,
            "forbidden": list(self.forbidden),
        }


def write_exactly(amount: Fraction | None, less: Fraction = Fraction(0)) -> str | None:
    return None if amount is None else str(amount - less)


@dataclass(frozen=True)
class StudyPlan:
    """The questions of one fit (`questions`), how many models each site may be asked for, and what sites have left.

    `unstated` names columns that a private study must state under [schema], or sites refuse it.
    """

    questions: Plan
    models: int
    sites: tuple[SiteBalance, ...]
    unstated: tuple[str, ...] = ()

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Kind, cost and note of each question of one fit, as people read them."""
        return self.questions.rows()[:-1]

    @property
    def total(self) -> Fraction:
        """The rho that a patient is charged at most, over all models; exact and masked questions have no price."""
        return self.questions.total * self.models

    @property
    def fits(self) -> bool:
        """Whether every site has room for the whole study, and allows it."""
        return all(site.fits for site in self.sites)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, exact numbers as text; `fits` counts the models, and each site says whether it fits."""
        return {
            "currency": self.questions.currency,
            "questions": [
                {"kind": q.kind, "cost": None if q.cost is None else str(q.cost), "note": q.note}
                for q in self.questions.questions
            ],
            "fits": self.models,
            "total": str(self.total),
            "sites": [site.to_dict() for site in self.sites],
            "unstated": list(self.unstated),
        }


def plan_study(study: Study) -> StudyPlan:
    """The plan of one fit, how often it is charged, and what each hospital has left."""
    method = study.open_method()
    method.check_before_proposing()
    questions, models = method.plan(), count_models(study)
    total = questions.total * models
    sites = [(hospital.name, hospital.policy, hospital.ledger) for hospital in study.hospitals]
    if study.split is not None:
        sites = [("each site", study.split.policy, None)]
    balances = []
    for name, file, ledger in sites:
        policy = Policy.read(study.locate(file)) if file else Policy()
        balance = read_balance(policy, Path(study.locate(ledger)) if ledger else None)
        forbidden = find_forbidden(study, questions, policy)
        pure = method.pure_price if balance.currency != questions.currency else None
        cost, payable = (
            (total, balance.currency == questions.currency) if pure is None else (pure * models, True)
        )
        balances.append(SiteBalance(name, balance, cost, forbidden, payable))
    return StudyPlan(questions, models, tuple(balances), find_unstated(study))


def plan_several(studies: Sequence[Study]) -> StudyPlan:
    """The same for several methods: every question of each, and what all of them cost together."""
    plans = {study.method: plan_study(study) for study in studies}
    first = next(iter(plans.values()))
    questions = Plan(
        first.questions.currency,
        tuple(
            replace(question, note=f"{method}: {question.note}" if question.note else method)
            for method, plan in plans.items()
            for question in plan.questions.questions
        ),
    )
    total = sum((plan.total for plan in plans.values()), Fraction(0))
    sites = tuple(
        SiteBalance(
            alike[0].site,
            alike[0].balance,
            total,
            tuple(dict.fromkeys(sentence for site in alike for sentence in site.forbidden)),
        )
        for alike in zip(*(plan.sites for plan in plans.values()), strict=True)
    )
    unstated = tuple(dict.fromkeys(name for plan in plans.values() for name in plan.unstated))
    return StudyPlan(questions, first.models, sites, unstated)


def find_unstated(study: Study) -> tuple[str, ...]:
    """The columns still to be stated, where a table is a text file: databases state theirs by their types."""
    sources = [study.split] if study.split is not None else study.hospitals
    return (
        study.unstated
        if any((source.records or "").lower().endswith(TEXT_FILES) for source in sources)
        else ()
    )


def count_models(study: Study) -> int:
    """How many models one site may be asked for: the one of all sites, and one for each fold it takes part in."""
    evaluate = study.evaluate
    if evaluate is None or evaluate.leave_out is None:
        return 1
    if evaluate.bands is not None:
        return evaluate.bands
    return max(1, len(study.hospitals) if study.hospitals else len(read_tables(study)))


def find_forbidden(study: Study, questions: Plan, policy: Policy) -> tuple[str, ...]:
    """What the study needs and a hospital's policy does not allow, in sentences."""
    kinds = dict.fromkeys(question.kind for question in questions.questions)
    if not study.way_out.by_site:
        kinds |= dict.fromkeys(kind for kind in KINDS if kind.startswith("mask."))
    modes = [study.release]
    if not study.way_out.bounded and any(question.cost is not None for question in questions.questions):
        modes.append("private")
    return (
        *(f"its policy releases nothing as {mode!r}" for mode in modes if mode not in policy.modes),
        *(f"its policy answers no {kind!r}" for kind in kinds if kind not in policy.kinds),
        *find_withheld(study, policy),
        *find_strange_house(study, policy),
    )


def find_withheld(study: Study, policy: Policy) -> tuple[str, ...]:
    """What the study cannot do without and a policy withholds: target, query, and what a private study asks about."""
    from concilium.records.query import Query

    needed = {
        *Query.parse(study.query).attributes,
        *([study.target] if not study.method_type.reads_courses else []),
    }
    if study.way_out.bounded:
        stated = {*study.values, *study.bins}
        needed |= stated if study.attributes is None else stated & set(study.attributes)
    hidden = dict.fromkeys(policy.withhold, "withholds") | dict.fromkeys(policy.identifiers, "hides")
    return tuple(f"its policy {hidden[name]} {name!r}" for name in sorted(needed & set(hidden)))


def find_strange_house(study: Study, policy: Policy) -> tuple[str, ...]:
    """Whether a policy pins the houses that may ask, and this study's is none of them, or revokes it."""
    file = None if study.house.identity is None else Path(study.locate(study.house.identity))
    if file is not None and file.exists() and policy.revokes(Identity.at(file).public):
        return (f"its policy revokes the house of {file.name}",)
    if not policy.houses:
        return ()
    if file is None:
        return ("its policy pins the houses that may ask, and [house] of the study names no identity",)
    if file.exists():
        public = Identity.at(file).public
        if any(has_fingerprint(public, pin) for pin in policy.houses.values()):
            return ()
    return (f"its policy pins the houses that may ask, and that of {file.name} is not among them",)


def read_balance(policy: Policy, ledger: Path | None) -> Balance:
    """What a hospital has left: by its ledger if there is one already, under the budget of its policy."""
    if ledger is not None and ledger.exists():
        with Ledger.open_readonly(ledger) as book:
            return book.balance(policy.allowance)
    budget = policy.budget
    with Ledger(
        currency=None if budget is None else budget.currency,
        delta=None if budget is None else budget.exact_delta,
        allowance=policy.allowance,
    ) as book:
        return book.balance()
