"""A sharing of codes as one page of HTML for the data steward who signs for it: what is protected, from whom and at
what cost, what an attack finds, what is lost, and what stays open. It compares recorded with shared codes: it is the
hospital's own.

docs/methods.md, section 7.12.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import markupsafe

from concilium.codes.agreed_sharing import NOT_FOR_CARE
from concilium.codes.block_response import BlockResponse
from concilium.codes.sharing_report import BLOT, PLAIN, CurvePoint, SharingReport, draw_curves
from concilium.consult.report import make_environment
from concilium.ledger.budgets import Balance
from concilium.privacy.accounting import shown

FOLDED = 12
"""A longer list of codes is folded."""


@dataclass(frozen=True)
class SharingOccasion:
    """By whom, to whom and how much of what the report is about; `balance` is what is left after it."""

    site: str
    card: Mapping[str, Any]
    balance: Balance
    auxiliary: int
    held_back: bool
    shared: int
    codes: int
    cut: int
    file: str


def render_sharing_page(report: SharingReport, occasion: SharingOccasion) -> str:
    """The page."""
    sharing, loss = report.sharing, report.measured.loss
    mechanism = sharing.mechanism_
    assert isinstance(mechanism, BlockResponse)
    describe = sharing.taxonomy.describe
    precisions = zip(sharing.sensitive, report.measured.precisions, strict=True)
    extension = sharing.extension_
    leaks = zip(
        sharing.sensitive,
        extension.leakage_before,
        extension.leakage_after,
        extension.worst_before,
        extension.worst_after,
        strict=True,
    )
    return (
        make_environment()
        .get_template("sharing_page.html.jinja")
        .render(
            report=report,
            occasion=occasion,
            card=occasion.card,
            today=datetime.now(UTC).date().isoformat(),
            warning=NOT_FOR_CARE,
            sensitive=[(code, describe(code)) for code in sharing.sensitive],
            hidden=[(code, describe(code)) for code in report.hidden],
            company=[(code, describe(code)) for code in report.company],
            never_shown=len(mechanism.never_shown),
            block_size=mechanism.block_size,
            epsilon=float(sharing.epsilon),
            price=float(sharing.price),
            factor=float(mechanism.inside / mechanism.elsewhere),
            max_events=sharing.max_events,
            bounds=(sharing.gamma, sharing.gamma_max),
            charged=say_charged(occasion),
            left="no cap is set"
            if occasion.balance.left is None
            else f"{shown(occasion.balance.left)} is left",
            currency=occasion.balance.currency,
            loss=loss,
            false_entries=round(loss.changed * report.events),
            false_sensitive=round(loss.false_sensitive * report.events),
            others=compare(report),
            guesses=[(code, describe(code), one) for code, one in precisions if one.guesses or one.hidden],
            leaks=[(code, *map(float, numbers)) for code, *numbers in leaks],
            pictures=[markupsafe.Markup(picture) for picture in draw_pictures(report)],
            folded=FOLDED,
        )
    )


def say_charged(occasion: SharingOccasion) -> str:
    """What the ledger was charged, as the card has it: in rho, whatever its currency."""
    cost = next((one["cost"] for one in occasion.card["releases"] if one["site"] == occasion.site), None)
    return "nothing" if cost is None else f"rho = {shown(Fraction(cost))}"


def compare(report: SharingReport) -> list[dict[str, Any]]:
    """What was shared beside suppression and UMAXRR of the sensitive codes alone, at the same epsilon."""
    points = {point.series: point for point in report.curves if point.epsilon == report.sharing.epsilon}
    rows = [
        {
            "name": "this file",
            "measured": report.measured,
            "by_history": report.measured.largest_by_history,
        }
    ]
    named = {PLAIN: "UMAXRR, sensitive codes alone", BLOT: "suppression of the sensitive codes"}
    for series, name in named.items():
        if series in points:
            rows.append({"name": name, "measured": points[series].measured, "by_history": None})
    return rows


def draw_pictures(report: SharingReport) -> list[str]:
    """Loss on sensitive codes, and the precision of the attack, over epsilon."""
    if not report.curves:
        return []

    def lose(point: CurvePoint) -> float | None:
        return point.measured.loss.sensitive

    def find(point: CurvePoint) -> float | None:
        return point.measured.largest

    return [
        draw_curves(report.curves, lose, "loss on sensitive codes"),
        draw_curves(report.curves, find, "precision of the attack"),
    ]
