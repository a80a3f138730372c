"""What a steward sees of a hospital's ledger: studies, what is spent and by which, until when it lasts."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from concilium.console.results_folder import MOST_FILES, FileCache, FoundFiles
from concilium.consult.consent import StudyOverview, describe_cost, list_studies, say_amount
from concilium.errors import ConciliumError, MaskError
from concilium.ledger.budgets import Balance
from concilium.ledger.head import name_site
from concilium.ledger.ledger import Ledger
from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text
from concilium.policy.policy import Policy
from concilium.privacy.identity import Identity

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 620, 230, 70, 20, 16, 30
PACE_DAYS = 30
ROW, NAMES, MOST_STUDIES = 26, 260, 12


@dataclass(frozen=True)
class LedgerOverview:
    """A ledger at one moment: its studies, its balance and its pictures; `forecast` says until when it lasts."""

    site: str
    balance: Balance
    studies: tuple[StudyOverview, ...]
    entries: int
    forecast: str
    pictures: dict[str, str]
    policy: Path | None

    @property
    def waiting(self) -> list[StudyOverview]:
        return [one for one in self.studies if one.status == "waiting"]

    @cached_property
    def spent(self) -> str:
        return say_amount(self.balance.spent, self.balance)

    @cached_property
    def left(self) -> str:
        return "unlimited" if self.balance.left is None else say_amount(self.balance.left, self.balance)

    def price(self, study: StudyOverview) -> str:
        price = study.record.price
        if price is None:
            return "–" if study.opened is None else "unbounded"
        return say_amount(price, self.balance, pure=study.is_pure).split(" (")[0]

    def cost(self, study: StudyOverview) -> str:
        return describe_cost(study, self.balance)


class LedgerViews:
    """Overviews by ledger, kept while the ledger, its policy and its identity stay as they are."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[tuple[object, ...], LedgerOverview]] = {}
        self._policies = FileCache(_find_policies, MOST_FILES)
        self._named: tuple[FoundFiles, dict[Path, Path]] | None = None

    def look(self, ledger: Path, found: FoundFiles) -> LedgerOverview:
        policy = self.find_policy(ledger, found)
        beside = [Path(f"{ledger}{end}") for end in ("", "-wal", ".identity")]
        seen = (*map(_state, [*beside, *([policy] if policy else [])]), datetime.now(UTC).date())
        if ledger in self._kept and self._kept[ledger][0] == seen:
            return self._kept[ledger][1]
        made = _look_at_ledger(ledger, policy)
        self._kept[ledger] = seen, made
        return made

    def find_policy(self, ledger: Path, found: FoundFiles) -> Path | None:
        """The policy that a study file of the folder names beside this ledger."""
        known = self._named
        if known is None or known[0] is not found:
            there, named = set(found.policies.values()), dict[Path, Path]()
            for study in found.studies.values():
                for one, policy in self._policies.get(study).items():
                    if policy in there:
                        named.setdefault(one, policy)
            self._named = known = found, named
        return known[1].get(ledger)


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def _find_policies(study: Path) -> dict[Path, Path]:
    """By ledger the policy that a study file names for the same hospital."""
    try:
        sites: Any = tomllib.loads(study.read_text(encoding="utf-8")).get("site", [])
    except (OSError, ValueError, RecursionError):
        return {}
    named: dict[Path, Path] = {}
    for site in sites if isinstance(sites, list) else []:
        if (
            isinstance(site, dict)
            and isinstance(site.get("ledger"), str)
            and isinstance(site.get("policy"), str)
        ):
            named[(study.parent / site["ledger"]).resolve()] = (study.parent / site["policy"]).resolve()
    return named


def read_public(ledger: Path) -> bytes | None:
    """The hospital's key, to see whether decisions are its own; None where it may not be read here."""
    try:
        return Identity.load(f"{ledger}.identity").public
    except MaskError:
        return None


def read_policy(path: Path | None) -> Policy | None:
    return None if path is None else Policy.read(path)


def _look_at_ledger(path: Path, policy_path: Path | None) -> LedgerOverview:
    """All that a steward sees of a ledger at first; a policy that cannot be read is left out, and its page says why."""
    try:
        policy = read_policy(policy_path)
    except ConciliumError:
        policy = None
    with Ledger.open_readonly(path) as ledger:
        balance, site = ledger.balance(), ledger.settings.site
        studies = tuple(list_studies(ledger, policy, read_public(path)))
        spending, count = ledger.spending(), ledger.head().count
    pictures = {}
    if balance.spent:
        pictures[f"Spent over time; dotted: at the pace of the last {PACE_DAYS} days"] = _draw_spending(
            spending, balance
        )
        pictures["By study"] = _draw_studies(studies, balance)
    return LedgerOverview(
        path.stem if site is None else name_site(site),
        balance,
        studies,
        count,
        _say_forecast(spending, balance, datetime.now(UTC)),
        pictures,
        policy_path,
    )


def _say_forecast(spending: Sequence[tuple[datetime, Fraction]], balance: Balance, now: datetime) -> str:
    """Until when the budget lasts at the pace of the last days, in words. Of a long ledger some entries are
    looked at, so that the pace is rather too fast than too slow."""
    if balance.left is None:
        return "There is no budget, so it is never used up."
    if balance.left <= 0:
        return "The budget is used up: no private answer leaves any more."
    pace = _find_pace(spending, balance, now)
    if pace <= 0:
        return f"Nothing was spent in the last {PACE_DAYS} days."
    days = float(balance.left / pace) * PACE_DAYS
    if days > 3650:
        return f"At the pace of the last {PACE_DAYS} days it lasts more than ten years."
    until = (now + timedelta(days=days)).date()
    return f"At the pace of the last {PACE_DAYS} days it is used up around {until}."


def _find_pace(spending: Sequence[tuple[datetime, Fraction]], balance: Balance, now: datetime) -> Fraction:
    """What was spent in the last days."""
    since = now - timedelta(days=PACE_DAYS)
    before = [spent for when, spent in spending if when < since]
    return balance.spent - (before[-1] if before else Fraction(0))


def _draw_spending(spending: Sequence[tuple[datetime, Fraction]], balance: Balance) -> str:
    """What was spent in all, as steps over time, the budget as a line above, and where the pace of the last days leads
    to: until the budget is used up, or for as long as the ledger has been."""
    start, now = spending[0][0], max(spending[-1][0], datetime.now(UTC))
    pace, left, end = _find_pace(spending, balance, now), balance.left, now
    if pace > 0 and (left is None or left > 0):
        ahead = max(now - start, timedelta(days=PACE_DAYS))
        if left is not None and left / pace * PACE_DAYS < ahead.total_seconds() / 86_400:
            ahead = timedelta(days=float(left / pace) * PACE_DAYS)
        end = now + ahead
    forecast = float(balance.spent) + float(pace) * (end - now) / timedelta(days=PACE_DAYS)
    long = max((end - start).total_seconds(), 1.0)
    top = max(float(balance.spent), float(balance.budget or 0), forecast) * 1.05
    right, bottom = WIDTH - RIGHT, HEIGHT - FOOT

    def across(when: datetime) -> float:
        return LEFT + (right - LEFT) * (when - start).total_seconds() / long

    def up(amount: Fraction | float) -> float:
        return bottom - (bottom - TOP) * float(amount) / top

    points, last = [], 0.0
    for when, spent in spending:
        points += [f"{across(when):.1f},{up(last):.1f}", f"{across(when):.1f},{up(spent):.1f}"]
        last = float(spent)
    points.append(f"{across(now):.1f},{up(last):.1f}")
    parts = [
        f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="{RULE}"/>',
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>',
        f'<text x="{LEFT - 8}" y="{up(last) + 4:.1f}" text-anchor="end" fill="{SOFT}">{last:.3g}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="{SOFT}">{start:%Y-%m-%d}</text>',
        f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end" fill="{SOFT}">{end:%Y-%m-%d}</text>',
    ]
    if end > now:
        parts += [
            f'<line x1="{across(now):.1f}" y1="{up(last):.1f}" x2="{right}" y2="{up(forecast):.1f}" '
            f'stroke="{COLOURS[0]}" stroke-width="2" stroke-dasharray="2 4"/>',
        ]
        if LEFT + 100 < across(now) < right - 100:  # else it is written over a date
            parts.append(
                f'<text x="{across(now):.1f}" y="{HEIGHT - 8}" text-anchor="middle" fill="{SOFT}">today</text>'
            )
    if balance.budget is not None:
        y = up(balance.budget)
        parts += [
            f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{COLOURS[1]}" stroke-width="2" '
            'stroke-dasharray="6 4"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{SOFT}">'
            f"{float(balance.budget):.3g}</text>",
            f'<text x="{right}" y="{y + 16:.1f}" text-anchor="end" fill="{SOFT}">budget</text>',
        ]
    return draw_frame(
        f"{balance.currency} spent over time, against the budget; dotted: at the pace of the last {PACE_DAYS} days",
        parts,
        WIDTH,
        HEIGHT,
    )


def _draw_studies(studies: Sequence[StudyOverview], balance: Balance) -> str:
    """What each study has cost, the dearest first."""
    dear = sorted((one for one in studies if one.record.spent), key=lambda one: -one.record.spent)
    shown = dear[:MOST_STUDIES]
    most = float(shown[0].record.spent) if shown else 1.0
    parts = []
    for number, one in enumerate(shown):
        top, spent = number * ROW, float(one.record.spent)
        length = max((WIDTH - NAMES - 90) * spent / most, 1)
        parts += [
            f'<text x="4" y="{top + 17}">{element_text(one.name)}</text>',
            f'<rect x="{NAMES}" y="{top + 5}" width="{length:.1f}" height="15" rx="3" fill="{COLOURS[0]}"/>',
            f'<text x="{NAMES + length + 6:.1f}" y="{top + 17}" fill="{SOFT}">{spent:.3g}</text>',
        ]
    if len(dear) > len(shown):
        parts.append(
            f'<text x="4" y="{len(shown) * ROW + 17}" fill="{SOFT}">{len(dear) - len(shown)} more</text>'
        )
    height = (len(shown) + (len(dear) > len(shown))) * ROW + 4
    return draw_frame(f"{balance.currency} spent by study", parts, WIDTH, max(height, ROW))
