"""A model that exists meets hospitals that may have had no part in it: figures, hospital by hospital where the release
shows them, how far hospitals differ, and what local recalibration would gain.

All of it follows from the one table that hospitals answer (models/validation.py), and is covered by what it cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from concilium.evaluation.alarms import find_alarms
from concilium.evaluation.drift import find_drift
from concilium.evaluation.metrics import FIGURE_HEAD, FIGURES, list_figures
from concilium.evaluation.risk_tables import compare_sites, find_untold, summarise_table
from concilium.models.measuring import RiskTable
from concilium.models.method import Method
from concilium.models.validation import Validation
from concilium.protocol.card import Card
from concilium.protocol.held_out import Holdout
from concilium.protocol.house import House
from concilium.protocol.subgroups import Subgroup, read_subgroups
from concilium.records.columns import Value
from concilium.records.dictionary import Dictionary


@dataclass(frozen=True, repr=False)
class ValidationFigures:
    """What a validation found: `overall` figures with intervals, those of `sites` where the release shows them,
    `subgroups` where these were asked for, `heterogeneity` between hospitals, `risks` for curves, `drift` since the
    model was learned, `alarms`, and `notes` on what could not be told."""

    table: RiskTable
    card: Card
    positive: Value
    model: Method[Any]
    since: str = ""

    def __repr__(self) -> str:
        figures = "".join(f", {name}={value}" for name, value, _ in self._list_figures()[:3])
        return f"ValidationFigures({self.model.target} = {self.positive}{figures})"

    def _repr_html_(self) -> str:
        """For notebooks: what to look into first, the figures, and what could not be told."""
        from html import escape  # which a hospital's process needs not, as the next

        from concilium.statistics.results import draw_html

        found = self.metrics
        alarms = "".join(f"<li><b>{escape(one)}</b></li>" for one in found["alarms"])
        notes = "".join(f"<p>{escape(one)}</p>" for one in found["notes"])
        return f"<ul>{alarms}</ul>{draw_html([FIGURE_HEAD, *self._list_figures()])}{notes}"

    def _list_figures(self) -> list[tuple[str, str, str]]:
        return list_figures(summarise_table(self.table)["overall"], FIGURES)

    @property
    def metrics(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        found, drift = summarise_table(self.table), self._find_drift()
        return {
            "threshold": self.table.threshold,
            "overall": found["overall"],
            "sites": found["sites"],
            "risks": found["risks"],
            "noise": found["noise"],
            **{name: found[name] for name in ("subgroups", "follow_up") if name in found},
            "heterogeneity": compare_sites(self.table) if self.table.sites else None,
            **({} if drift is None else {"drift": drift}),
            "alarms": [*self._find_alarms(found), *([] if drift is None else drift["alarms"])],
            "notes": self.list_notes(found),
        }

    def _find_drift(self) -> dict[str, Any] | None:
        """What has changed since the model was learned, where patients of a later time were measured."""
        before = self.model.card.performance
        return None if before is None or not self.since else find_drift(before, self.table)

    def _find_alarms(self, found: Mapping[str, Any]) -> list[str]:
        about = {"target": self.model.target, "positive": self.positive}
        risks = self.model.tells_risks
        return find_alarms(
            {**found, **found["overall"], **about}, risks=risks, dictionary=self.model.card.dictionary
        )

    def list_notes(self, found: Mapping[str, Any]) -> list[str]:
        """What could not be told, and why, site by site."""
        notes = [f"{one.site}: {one.reason}" for one in self.card.refusals]
        if self.table.follow_up is not None:
            notes.append(self.table.follow_up.say())
        known = sorted({one.name for one in self.card.sites} & {one.name for one in self.model.card.sites})
        if known:
            notes.append(
                f"{', '.join(known)}: had a part in the model by name; figures there may be of patients learned from"
            )
        if self.since and self.model.card.performance is None:
            notes.append(
                "the model's card has no figures of its own, so that nothing tells whether it has drifted: learn it "
                "with [evaluate]"
            )
        return [*notes, *find_untold(found, self.positive)]


def validate(
    model: Method[Any],
    house: House | Mapping[str, Any] | Iterable[Any],
    *,
    positive: Value | None = None,
    release: str = "exact",
    epsilon: Any = None,
    delta: Any = "1e-6",
    date: str = "",
    since: str = "",
    by: Iterable[str | Subgroup] = (),
) -> ValidationFigures:
    """Measure a model on the patients of a house; with `date` and `since`, on those whose date is that day or later.

    `by` names attributes in whose groups it is measured as well, such as `"sex"` or `"age=50,65,80"`; the values of a
    category are those of the dictionary of the model, or of the house.
    """
    house = House.of(house)
    dictionary = Dictionary({**house.dictionary.entries, **model.card.dictionary})
    held = Holdout(column=date, since=since) if date or since else None
    if held is not None:
        held.check()
    study = Validation.of(
        model,
        positive=positive,
        release=release,
        epsilon=epsilon,
        delta=delta,
        since=held,
        subgroups=read_subgroups(by, dictionary.values, dictionary.bins),
    ).fit(house)
    return ValidationFigures(study.body, study.card, study.positive, model, since)
