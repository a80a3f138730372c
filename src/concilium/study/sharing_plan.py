"""What a sharing of codes would do, settled before anything is charged: the design, its hash, what budgets buy.

A plan fixes all that decides the copy: the hidden codes and where they come from, the blocks, epsilon, how many events
count, and the digest of the records that it was made for. Nothing in it is drawn. `--plan --out shared.csv` keeps it as
shared.plan.json; sharing to shared.csv then executes that plan, or refuses and says what differs. The curve says what
each budget buys on the hospital's own histories. It is computed from them without noise: a plan stays in the hospital.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from concilium.codes.agreed_sharing import AgreedSharing
from concilium.codes.code_design import open_design
from concilium.codes.shared_codes import count_kept
from concilium.codes.sharing import CodeSharing
from concilium.codes.sharing_report import expect_entries, find_expected_loss
from concilium.errors import BudgetError, StudyError
from concilium.ledger.budgets import Balance
from concilium.privacy.accounting import rho_from_pure
from concilium.records.sequences import Sequences

FORMAT = "concilium/sharing-plan@1"
FOLLOWING = ("hidden", "company", "block_size", "tree")  # what follows from the rest of a design
BUDGETS = ("0.5", "1.5", "5", "10", "25", "50", "100")
MOST_CURVED = 20_000
"""The curve looks at the histories of so many patients at most, evenly spread over the file."""


@dataclass(frozen=True)
class _BudgetPoint:
    """What one budget buys: pure epsilon of each patient, of each event, and what is expected to come of it."""

    price: Fraction
    epsilon: Fraction
    false: float
    false_sensitive: float
    loss: float
    loss_sensitive: float
    cost: Fraction
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        plain = {name: float(getattr(self, name)) for name in ("price", "epsilon", "cost")}
        return {**asdict(self), **plain}


@dataclass(frozen=True)
class Histories:
    """How long the histories are, for choosing max_events."""

    median: int
    most_of_them: int
    longest: int
    cut: float

    @classmethod
    def measure(cls, sequences: Sequences, sharing: CodeSharing) -> Histories:
        counts = sequences.counts
        kept = count_kept(counts, sharing.max_events, sharing.lengths)
        middle, most = (int(np.quantile(counts, share, method="higher")) for share in (0.5, 0.95))
        return cls(
            middle, most, int(counts.max(initial=0)), 1 - float(kept.sum()) / max(int(counts.sum()), 1)
        )


@dataclass(frozen=True)
class SharingPlan:
    """What would be shared and cost, before anything is; `room` says why it does not fit, if it does not.

    `source` says where the hidden codes come from, `auxiliary` how many patients taught them, `records` is the digest
    of the hospital's patients, `teacher` that of the auxiliary file.
    """

    sharing: CodeSharing
    agreed: AgreedSharing
    site: str
    purpose: str
    patients: int
    source: str
    auxiliary: int
    records: str
    teacher: str
    balance: Balance
    forbidden: tuple[str, ...]
    histories: Histories
    recorded: Sequences

    @property
    def cost(self) -> Fraction:
        """In the currency of the ledger."""
        return _charge(self.agreed.pure_price, self.balance)

    @property
    def room(self) -> str | None:
        try:
            self.balance.check(self.cost)
        except BudgetError as error:
            return f"{error}; {say_what_fits(self.sharing, self.balance)}"
        return None

    @property
    def fits(self) -> bool:
        return self.room is None and not self.forbidden

    @property
    def fixed(self) -> dict[str, Any]:
        """All that decides what is shared."""
        return {
            "format": FORMAT,
            "design": json.loads(msgspec.json.encode(self.agreed.design)),
            "query": self.agreed.query,
            "site": self.site,
            "purpose": self.purpose,
            "source": self.source,
            "auxiliary": self.teacher,
            "records": self.records,
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what is fixed: two plans with the same one share the same."""
        return _digest(self.fixed)

    @cached_property
    def curve(self) -> tuple[_BudgetPoint, ...]:
        """What other budgets would buy at the same max_events, on these histories; expected, without a draw."""
        return tuple(self._draw_curve())

    def _draw_curve(self) -> Iterator[_BudgetPoint]:
        prices = {*map(Fraction, BUDGETS), self.agreed.pure_price}
        left = find_left(self.balance)
        if left is not None and (most := find_affordable(left, self.balance.currency)) > 0:
            prices.add(most)
        step = max(1, len(self.recorded) // MOST_CURVED)
        recorded = self.recorded.take(np.arange(0, len(self.recorded), step))
        for price in sorted(prices):
            sharing = self.sharing.refit(epsilon=price / self.sharing.max_events)
            expected = expect_entries(sharing, recorded)
            cost = _charge(price, self.balance)
            yield _BudgetPoint(
                price,
                sharing.epsilon,
                expected.changed,
                expected.false_sensitive,
                expected.everything,
                expected.sensitive,
                cost,
                left is None or cost <= left,
            )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, exact numbers as text."""
        return {
            **self.fixed,
            "plan": self.digest,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "patients": self.patients,
            "auxiliary_patients": self.auxiliary,
            "histories": asdict(self.histories),
            "epsilon_per_event": str(self.sharing.epsilon),
            "epsilon_per_patient": str(self.agreed.pure_price),
            "currency": self.balance.currency,
            "cost": str(self.cost),
            "spent": str(self.balance.spent),
            "left": None if self.balance.left is None else str(self.balance.left),
            "expected_loss": find_expected_loss(self.sharing),
            "replaced": float(open_design(self.agreed.design)[1].replaced),
            "curve": [point.to_dict() for point in self.curve],
            "fits": self.fits,
            "forbidden": list(self.forbidden),
        }

    def follow(self, path: Path) -> None:
        """StudyError unless the plan that was kept in this file is this one; nothing to follow where there is none."""
        if not path.exists():
            return
        kept = _read_plan(path)
        if _digest(kept) == self.digest:
            return
        again = f"plan again (--plan --out), or delete {path.name} to share without a plan"
        if kept["records"] != self.records:
            raise StudyError(f"{path}: the records have changed since this plan was made; {again}")
        if kept["auxiliary"] != self.teacher:
            raise StudyError(f"{path}: the auxiliary file has changed since this plan was made; {again}")
        raise StudyError(
            f"{path}: this is not what was planned: {_say_difference(kept, self.fixed)}; {again}"
        )


def _charge(pure: Fraction, balance: Balance) -> Fraction:
    return rho_from_pure(pure) if balance.currency == "rho" else pure


def _digest(fixed: Mapping[str, Any]) -> str:
    text = json.dumps(fixed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _read_plan(path: Path) -> dict[str, Any]:
    """What a plan's file fixes."""
    names = ("format", "design", "query", "site", "purpose", "source", "auxiliary", "records")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        fixed = {name: document[name] for name in names}
        if fixed["format"] != FORMAT or _digest(fixed) != document["plan"]:
            raise ValueError
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise StudyError(
            f"{path}: this is no plan of a sharing, or it was edited since; plan again (--plan --out)"
        ) from None
    return fixed


def _say_difference(planned: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first thing that differs, as planned and as it would be."""
    pairs = {**planned, **planned["design"]}, {**now, **now["design"]}
    names = [name for name in pairs[1] if name != "design" and pairs[0].get(name) != pairs[1][name]]
    name = min(names, key=lambda one: (one in FOLLOWING, names.index(one)))
    before, after = (_say_value(pair.get(name)) for pair in pairs)
    return f"{name} is {after}, and {before} was planned"


def _say_value(value: Any) -> str:
    listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return listed if len(listed) <= 60 else f"{listed[:57]}..."


def find_left(balance: Balance) -> Fraction | None:
    """What is left, in all and of the month; None where nothing limits it."""
    lefts = [left for left in (balance.left, balance.month_left) if left is not None]
    return min(lefts, default=None)


def say_what_fits(sharing: CodeSharing, balance: Balance) -> str:
    """What could be shared with what is left."""
    left = find_left(balance)
    assert left is not None
    pure = find_affordable(left, balance.currency)
    events = math.floor(pure / sharing.epsilon)
    each = math.floor(pure / sharing.max_events * 10_000) / 10_000
    ways = [f"epsilon = {float(sharing.epsilon):g} with max_events = {events}"] if events else []
    ways += [f"max_events = {sharing.max_events} with epsilon = {each:g}"] if each else []
    fitting = f"what would fit: {' or '.join(ways)}; " if ways else ""
    return (
        f"everyone is charged max_events * epsilon = {float(sharing.price):g}, as many events as anyone may have; "
        f"{fitting}or give the hospital a larger budget (concilium ledger budget); --plan says what each budget buys"
    )


def find_affordable(left: Fraction, currency: str) -> Fraction:
    """The largest pure epsilon, to four digits, that costs no more than what is left."""
    if currency != "rho":
        return left
    low, high = 0, 10_000_000
    while low < high:
        middle = (low + high + 1) // 2
        if rho_from_pure(Fraction(middle, 10_000)) <= left:
            low = middle
        else:
            high = middle - 1
    return Fraction(low, 10_000)
