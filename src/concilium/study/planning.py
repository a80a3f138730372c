"""What a study would ask, what each question costs, and whether every ledger has room. Nothing is asked or spent."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.policy.policy import Policy
from concilium.privacy.accounting import Plan
from concilium.privacy.ledger import Ledger
from concilium.records.sources import TEXT_FILES
from concilium.study.sources import read_tables

if TYPE_CHECKING:
    from concilium.study.sections import Hospital
    from concilium.study.study import Study


@dataclass(frozen=True)
class SiteBalance:
    """What a site has left, None where no budget is set, and whether the study fits into it."""

    site: str
    left: Fraction | None
    currency: str
    fits: bool


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
        """Whether every site has room for the whole study."""
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
            "sites": [
                {
                    "site": site.site,
                    "left": None if site.left is None else f"{site.currency} {site.left}",
                    "fits": site.fits,
                }
                for site in self.sites
            ],
            "unstated": list(self.unstated),
        }


def plan_study(study: Study) -> StudyPlan:
    """The plan of one fit, how often it is charged, and what each hospital has left."""
    questions, models = study.open_method().plan(), count_models(study)
    total = questions.total * models
    balances = tuple(read_balance(study, hospital, total) for hospital in study.hospitals)
    return StudyPlan(questions, models, balances, find_unstated(study))


def find_unstated(study: Study) -> tuple[str, ...]:
    """The columns still to be stated, where a table is a text file: databases state theirs by their types."""
    sources = [study.split] if study.split is not None else study.hospitals
    return study.unstated if any(source.records.lower().endswith(TEXT_FILES) for source in sources) else ()


def count_models(study: Study) -> int:
    """How many models one site may be asked for: the one of all sites, and one for each fold it takes part in."""
    evaluate = study.evaluate
    if evaluate is None or evaluate.leave_out is None:
        return 1
    if evaluate.bands is not None:
        return evaluate.bands
    return max(1, len(study.hospitals) if study.hospitals else len(read_tables(study)))


def read_balance(study: Study, hospital: Hospital, total: Fraction) -> SiteBalance:
    """What a hospital has left: by its ledger if there is one already, else by the budget of its policy."""
    file = Path(study.locate(hospital.ledger)) if hospital.ledger else None
    if file is not None and file.exists():
        with Ledger.open_readonly(file) as book:
            balance, currency = book.remaining(), book.currency
    else:
        policy = Policy.read(study.locate(hospital.policy)) if hospital.policy else Policy()
        balance = None if policy.budget is None else policy.budget.amount
        currency = "rho" if policy.budget is None else policy.budget.currency
    fits = not study.way_out.bounded or (currency == "rho" and (balance is None or total <= balance))
    return SiteBalance(hospital.name, balance, str(currency), fits)
