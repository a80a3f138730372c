"""A sharing of codes as one page of HTML for the data steward who signs for it. Half a page says what leaves, what
somebody learns who knows all but one entry, and who knows a patient, what was tried and what it cost. The evidence
follows. It compares recorded with shared codes: it is the hospital's own.

docs/methods.md, section 7.12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import markupsafe

from concilium.codes.agreed_sharing import NOT_FOR_CARE
from concilium.codes.block_response import BlockResponse
from concilium.codes.sharing_parameters import SINCE_FIRST
from concilium.codes.sharing_report import BLOT, PLAIN, SharingReport, draw_curves
from concilium.consult.report import render
from concilium.ledger.budgets import Balance
from concilium.privacy.accounting import shown

FOLDED = 12
"""A longer list of codes is folded."""


@dataclass(frozen=True)
class SharingOccasion:
    """By whom, to whom and how much of what the report is about; `balance` is what is left after it, and `affordable`
    the largest pure epsilon that it pays for (None: no cap)."""

    site: str
    card: Mapping[str, Any]
    balance: Balance
    plan: str
    source: str
    auxiliary: int
    shared: int
    codes: int
    cut: int
    file: str
    affordable: Fraction | None


def render_sharing_page(report: SharingReport, occasion: SharingOccasion) -> str:
    """The page."""
    sharing, loss = report.sharing, report.measured.loss
    mechanism = sharing.mechanism_
    assert isinstance(mechanism, BlockResponse)
    describe = sharing.taxonomy.describe
    by_code = report.measured.patients.by_code
    judged = [
        (code, describe(code), guessed, people)
        for code, guessed, people in zip(sharing.sensitive, report.measured.precisions, by_code, strict=True)
    ]
    left = occasion.balance.left
    return render(
        "sharing_page.html.jinja",
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
        price_factor=math.exp(min(float(sharing.price), 700.0)),
        protected=len(sharing.protected_),
        lengths=", ".join(map(str, sharing.lengths)),
        since_first=sharing.dates == SINCE_FIRST,
        shown_share=report.shown_share,
        charged=_say_charged(occasion),
        left="no cap is set" if left is None else _say_left(occasion, left),
        loss=loss,
        false_entries=round(loss.changed * report.events),
        false_sensitive=round(loss.false_sensitive * report.events),
        others=compare(report),
        guesses=[(code, title, one) for code, title, one, _ in judged if one.guesses or one.hidden],
        people_by_code=[(code, title, one) for code, title, _, one in judged if one.having],
        leaks=[(one, "" if one.teller is None else describe(one.teller)) for one in report.leaks],
        pictures=[markupsafe.Markup(picture) for picture in _draw_pictures(report)],
        folded=FOLDED,
    )


def _say_left(occasion: SharingOccasion, left: Fraction) -> str:
    """What is left in the ledger's currency, and as the pure epsilon of a release that it pays for."""
    pays = occasion.affordable
    more = "" if pays is None else f", enough for one more release of epsilon = {float(pays):g}"
    return f"{occasion.balance.currency} = {shown(left)} is left{more}"


def _say_charged(occasion: SharingOccasion) -> str:
    """What that is in the ledger's currency, where it is another."""
    cost = next((one["cost"] for one in occasion.card["releases"] if one["site"] == occasion.site), None)
    return f" (rho = {shown(Fraction(cost))})" if cost and occasion.balance.currency == "rho" else ""


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


def _draw_pictures(report: SharingReport) -> list[str]:
    """Loss on sensitive codes, and the precision of the attack, over epsilon."""
    if not report.curves:
        return []
    return [
        draw_curves(report.curves, lambda point: point.measured.loss.sensitive, "loss on sensitive codes"),
        draw_curves(report.curves, lambda point: point.measured.largest, "precision of the attack"),
    ]
