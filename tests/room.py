"""Whether a charge would be accepted, as a yes or no: `Ledger.check_room` raises."""

from concilium.errors import BudgetError


def has_room(ledger, cost, currency=None):
    try:
        ledger.check_room(cost, currency)
    except BudgetError:
        return False
    return True
