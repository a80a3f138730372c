"""A model's card: who took part, what it cost, what was refused, who was lost, and what to be warned of."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from concilium.records.dictionary import DictionaryEntry

OPTED_OUT = "opted out: "
"""How a warning begins that names hospitals which had nothing to add."""


class SiteCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One site that took part; `patients` are those who matched the query (None where that is not released).

    `ledger_entries` and `ledger_head` are a receipt: the site's ledger must still hold that head later.
    """

    name: str
    patients: int | None
    identity: str
    ledger_entries: int
    ledger_head: str


class ReleaseCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one site released for one kind of question. `cost` is None where there is no bound."""

    site: str
    kind: str
    release: str
    answers: int
    numbers: int
    cost: str | None


class RefusalCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    site: str
    kind: str
    rule: str
    reason: str


class DropoutCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    site: str
    round: int
    reason: str


class Performance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How good the model was when it was learned, on patients held out of that: figures with their 95 % intervals, and
    the shares of patients between `edges` of predicted risk. What comes later is compared with it
    (evaluation/drift.py); `noise` is the variance that noise adds to a share."""

    evaluation: str
    patients: int
    figures: dict[str, float]
    intervals: dict[str, list[float]]
    edges: list[float]
    shares: list[float]
    noise: float = 0.0


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Everything a reader must know of how a model came about, apart from what it predicts.

    `study` is the hash of the terms that the sites agreed to, by person or policy, and `purpose` is what they say;
    `dictionary` is what they say of the attributes. `decision` is from which chance on the positive class is called,
    and why; empty where it calls the likeliest. `alarms` must be looked into before anybody believes the model
    (evaluation/alarms.py); `date` is the day (UTC) on which it was learned. `performance` are its own figures, where it
    was measured by what hospitals released.
    """

    study: str
    purpose: str = ""
    dictionary: dict[str, DictionaryEntry] = {}
    method: str
    release: str
    meaning: str
    sites: list[SiteCard]
    rounds: int
    bytes: int
    releases: list[ReleaseCard]
    refusals: list[RefusalCard]
    dropouts: list[DropoutCard]
    warnings: list[str]
    decision: str = ""
    alarms: list[str] = []
    date: str = ""
    performance: Performance | None = None
    version: str

    def find_missing_sites(self) -> dict[str, str]:
        """The hospitals that were asked and are not in the model, each with why."""
        reasons: dict[str, str] = {}
        for refusal in self.refusals:
            reasons.setdefault(refusal.site, f"refused: {refusal.rule}: {refusal.reason}")
        for loss in self.dropouts:
            reasons.setdefault(loss.site, f"lost in round {loss.round}: {loss.reason}")
        there = {site.name for site in self.sites}
        return {site: why for site, why in reasons.items() if site not in there}

    def _list_facts(self) -> dict[str, str]:
        """What fits on a few lines."""
        counted = [site.patients for site in self.sites if site.patients is not None]
        facts = {
            "method": self.method,
            "release": self.release,
            "hospitals": str(len(self.sites)),
            "patients": f"{sum(counted):,}" if counted else "not released",
            "rounds": str(self.rounds),
            "warnings": str(len(self.warnings)),
            "alarms": str(len(self.alarms)),
        }
        return facts | ({"date": self.date} if self.date else {})

    def __repr__(self) -> str:
        return f"Card({', '.join(f'{name}={text}' for name, text in self._list_facts().items())})"

    def _repr_html_(self) -> str:
        """For notebooks: what matters most, what to look into first, and what to be careful about."""
        rows = "".join(
            f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self._list_facts().items()
        )
        lists = "".join(f"<li>{escape(one)}</li>" for one in (*self.alarms, *self.warnings))
        return f"<p>{escape(self.meaning)}</p><table>{rows}</table><ul>{lists}</ul>"

    def to_dict(self) -> dict[str, Any]:
        """The card as plain JSON values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
