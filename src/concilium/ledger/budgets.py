"""What a hospital's private answers may cost: in all, and in a calendar month; and what holds where it says nothing.

Who is protected: every patient of the hospital, from everyone who sees its private answers and averages the noise
away. Three hundred answers to one question, each harmless alone, give the truth to within a seventeenth of the noise of
one; so no hospital is without a cap by accident. One that wants none says `total = "unlimited"` in its policy, and its
ledger and models' cards repeat that. Months are those of the entries' times (UTC), which never go back: a clock that
is put back begins no month anew. Assumption: nobody puts the hospital's own clock forward.

The default, rho = 1, is shown as epsilon = 7.8 at delta 1e-6: some forty studies at epsilon = 1, or one at epsilon = 7.
It is below the epsilon of 10 up to which Ponomareva et al. call a guarantee reasonable for one model (tier 2; "How to
DP-fy ML", 2023), here for all answers that a hospital ever gives, and amid the rho of 0.2 to 2 of each of Gboard's
language models (Xu et al., "Federated Learning of Gboard Language Models with Differential Privacy", 2023). A ledger
kept in pure epsilon has 8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from concilium.errors import BudgetError, LedgerError
from concilium.privacy.accounting import epsilon_from_rho, float_above, pure_from_rho, say_epsilon, shown

if TYPE_CHECKING:
    from concilium.ledger.chain import LedgerSettings

DEFAULT_BUDGETS = {"rho": Fraction(1), "epsilon": Fraction(8)}

BY_DEFAULT, BY_POLICY, BY_STEWARD = "default", "policy", "steward"
"""Who set a ledger's budget; the steward does so with `concilium ledger budget`."""


@dataclass(frozen=True)
class Allowance:
    """What a policy says of the budget: the total (None: nothing), or that there is none, and what a month may cost."""

    total: Fraction | None = None
    unlimited: bool = False
    per_month: Fraction | None = None


@dataclass(frozen=True)
class Balance:
    """What is spent and what is left, in all and in the month; a budget or a month's cap of None is no cap."""

    currency: str
    delta: Fraction
    spent: Fraction
    budget: Fraction | None
    source: str
    month: str
    month_spent: Fraction = Fraction(0)
    per_month: Fraction | None = None

    @property
    def left(self) -> Fraction | None:
        return None if self.budget is None else self.budget - self.spent

    @property
    def month_left(self) -> Fraction | None:
        """What is left of the month's cap, which may have been lowered since; the total may leave less."""
        return None if self.per_month is None else max(Fraction(0), self.per_month - self.month_spent)

    def show_epsilon(self, amount: Fraction, *, pure: bool = False) -> str:
        """An amount as people compare it: the epsilon at the ledger's delta, rounded up; of one release whose mechanism
        is pure, its own epsilon, for which there is no delta."""
        if self.currency == "rho" and not pure:
            epsilon = epsilon_from_rho(amount, self.delta)
        else:
            epsilon = float_above(pure_from_rho(amount) if self.currency == "rho" else amount)
        return f"epsilon = {say_epsilon(epsilon, digits=4)}"

    def check(self, price: Fraction) -> None:
        """BudgetError unless a question of this price fits, in all and in the month."""
        left, month_left = self.left, self.month_left
        if month_left is not None and price > month_left and (left is None or month_left < left):
            raise BudgetError(self.currency, price, self.month_spent, month_left, until=find_end(self.month))
        if left is not None and price > left:
            raise BudgetError(self.currency, price, self.spent, left, by_default=self.source == BY_DEFAULT)


def settle(settings: LedgerSettings, spent: Fraction, allowance: Allowance) -> tuple[LedgerSettings, str]:
    """A ledger's settings under what its hospital's policy says, and what to enter of the change: nothing, where there
    is none. A budget that the steward set, or an earlier policy, stands: the ledger's binding refuses another."""
    after, notes = settings, []
    if allowance.unlimited or allowance.total is not None:
        is_open = settings.source == BY_DEFAULT or (settings.budget is None and not settings.source)
        total = None if allowance.unlimited else allowance.total
        if is_open:
            if total is not None and total < spent:
                raise LedgerError(
                    f"the policy's budget of {settings.currency} = {shown(total)} cannot be kept: {shown(spent)} is "
                    "spent already, and what was released cannot be taken back; set total to that or more"
                )
            after = replace(after, budget=total, source=BY_POLICY)
            amount = "unlimited" if total is None else f"{settings.currency} = {shown(total)}"
            notes.append(f"the policy says {amount}")
    elif settings.budget is None and settings.source != BY_STEWARD:
        default = DEFAULT_BUDGETS[settings.currency]
        after = replace(after, budget=max(default, spent), source=BY_DEFAULT)
        notes.append(f"no budget was set: {settings.currency} = {shown(default)} holds by default")
        if spent > default:
            notes.append(
                f"{shown(spent)} is spent already, so that no private question is answered until a budget is set"
            )
    if allowance.per_month != settings.per_month:
        after = replace(after, per_month=allowance.per_month)
        cap = allowance.per_month
        notes.append(
            "the policy caps no month" if cap is None else f"the policy caps a month at {shown(cap)}"
        )
    return after, "; ".join(notes)


def find_end(month: str) -> str:
    """The first day after a month such as 2026-11."""
    year, number = divmod(12 * int(month[:4]) + int(month[5:7]), 12)
    return f"{year:04d}-{number + 1:02d}-01"
