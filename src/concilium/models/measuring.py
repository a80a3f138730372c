"""Measuring a model through the gate: what is asked, what it costs, and the table that comes of it.

As part of a study that learns (`learn_and_measure`): its terms say whom every site holds out, and after the model is
learned one question more is asked, in the same study, at the price that hospitals agreed to. A model that exists is
measured by a study of its own (validation.py).

Bins of risk are public: of a model with few different risks, such as a tree, one for each; else equal steps of log
odds, wider where cells are noisy. The threshold is always an edge, so that figures at it are exact counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, sqrt
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.models.follow_up import FollowUp, describe_follow_up, share_censored
from concilium.models.method import Method
from concilium.models.risk_counts import AskRiskCounts, make_bare_card
from concilium.privacy.accounting import PlannedQuestion, rho_for_epsilon
from concilium.protocol.held_out import Holdout
from concilium.protocol.house import House
from concilium.protocol.questions import BySite, Conversation, Gaussian, Learned, Partners
from concilium.protocol.releases.release import Release
from concilium.protocol.subgroups import Subgroup
from concilium.protocol.terms import MEASURED, Draft, say_subgroups
from concilium.records.columns import Value, label
from concilium.records.dictionary import DictionaryEntry

# Log odds from here to there, and the width of a bin: without noise, and with it.
ENDS, WIDTH, NOISY_WIDTH = 6.0, 0.125, 0.5
# Noise hides all figures below this many of its standard deviations, of patients with the outcome or without it.
DEVIATIONS = 3.0
# A model with more different risks than this is measured in bins of log odds.
MOST_LEVELS, MOST_NOISY_LEVELS = 64, 24


class _GroupTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same counts of the patients of one `group` of an attribute; `sites` where the release shows them."""

    attribute: str
    group: str
    counts: list[list[float]]
    sites: list[list[list[float]]] = []


class RiskTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Counts of measured patients, [bin][without the outcome, with it], rising in risk.

    `edges` are between the bins, and `risks` stands for each; `called` is the first bin that is predicted positive, at
    `threshold`. `variance` is that of the noise of each cell, 0 where there is none. `sites` are the same counts by
    hospital, where the release shows them. `groups` are those of subgroups, where the study measures these too. Of a
    model of survival, counts have parts of patients who were censored before the horizon (`follow_up`).
    """

    edges: list[float]
    risks: list[float]
    counts: list[list[float]]
    threshold: float
    called: int
    variance: float = 0.0
    sites: dict[str, list[list[float]]] = {}
    groups: list[_GroupTable] = []
    follow_up: FollowUp | None = None

    @property
    def known(self) -> float:
        """For how many patients each one counts: one of whom the outcome is not known says nothing new."""
        return 1.0 if self.follow_up is None else max(1 - self.follow_up.censored, 0.01)


@dataclass(frozen=True)
class Evaluation:
    """Whom a study measures its model on, and what that may cost in rho; `rho` is None where the release has no price.

    `positive` is the value of the target whose risk is measured; None: the second of two classes. All of `subgroups`
    and the whole are one question, at one price.
    """

    holdout: Holdout | None
    rho: Fraction | None = None
    positive: Value | None = None
    subgroups: tuple[Subgroup, ...] = ()

    @classmethod
    def priced(cls, holdout: Holdout, epsilon: Any, delta: Any, positive: Value | None = None) -> Evaluation:
        """The same at the price of an epsilon."""
        return cls(holdout, rho_for_epsilon(epsilon, delta), positive)

    @property
    def planned(self) -> PlannedQuestion:
        """Its line of the study's plan."""
        whom = "all patients" if self.holdout is None else self.holdout.describe()
        needed = say_needed(self.rho, len(self.subgroups))
        return PlannedQuestion(
            MEASURED, self.rho, f"predicted risk x outcome{say_subgroups(self.subgroups)} of {whom}{needed}"
        )

    def extend(self, draft: Draft) -> Draft:
        """A study's draft with the measuring in it."""
        price = None if self.rho is None else (draft.price or 0) + self.rho
        return replace(
            draft,
            holdout=self.holdout,
            evaluation=self.rho,
            subgroups=self.subgroups,
            price=price or draft.price,
        )


def learn_and_measure(
    method: Method[Any], house: House | Mapping[str, Any] | Iterable[Any], evaluation: Evaluation
) -> RiskTable:
    """Have the sites of a house learn, holding patients out, and measure the model on these; the method is fitted."""
    house = House.of(house)
    dictionary = house.dictionary.entries

    def begin(partners: Partners) -> Conversation[Learned[Any]]:
        learned = yield from method.converse(partners)
        model = type(method).of(learned.body, make_bare_card(method.method, method.release, dictionary))
        table = yield from ask_table(model, evaluation, method.query, dictionary, partners, method.way_out)
        return replace(learned, body=(learned.body, table))

    (body, table), card = house.learn(evaluation.extend(method.draft()), begin)
    method.take(body, card)
    measured: RiskTable = table
    return measured


def ask_table(
    model: Method[Any],
    evaluation: Evaluation,
    query: str,
    dictionary: Mapping[str, DictionaryEntry],
    partners: Partners,
    release: Release,
    left_out: Mapping[str, Method[Any]] | None = None,
) -> Conversation[RiskTable]:
    """The one question that measures a model, and its table.

    With `left_out`, every hospital is measured by the model of the others; bins and threshold are those of `model`,
    which is that of all hospitals.
    """
    place = find_place(model, evaluation.positive)
    edges, risks, called, threshold = _choose_bins(
        model, place, noisy=evaluation.rho is not None, levels=left_out is None
    )
    attributes = {name for one in (model, *(left_out or {}).values()) for name in one.attributes_}
    question = AskRiskCounts(
        query=query,
        target=model.target,
        method=model.method,
        body=b"" if left_out else msgspec.json.encode(model.body),
        bodies={site: msgspec.json.encode(one.body) for site, one in (left_out or {}).items()},
        positive=model.classes_[place],
        edges=tuple(edges),
        dictionary={name: dictionary[name] for name in sorted(attributes & set(dictionary))},
        noise=None
        if evaluation.rho is None
        else Gaussian(variance=str(partners.variance(evaluation.rho, 1 + len(evaluation.subgroups)))),
        by=evaluation.subgroups,
        times=() if model.followed is None else model.followed.cut(noisy=evaluation.rho is not None),
    )
    by_site: Mapping[str, Any] = {}
    variance = 0.0
    if release.tells_each:
        by_site = yield BySite(question)
        counts = sum(by_site.values(), np.zeros(question.shape, dtype=np.int64))
    else:
        counts = yield question
        variance = float(question.variance * partners.noise_factor) if evaluation.rho is not None else 0.0
    tables = counts.reshape(-1, question.bins, question.ends)
    sites = {site: table.reshape(tables.shape) for site, table in by_site.items()}
    follow_up = None
    if model.followed is not None:
        ends = tables[0].astype(np.float64)
        follow_up = describe_follow_up(model.followed, ends, noisy=variance > 0)
        tables = share_censored(tables.astype(np.float64), ends)
        sites = {site: share_censored(table.astype(np.float64), ends) for site, table in sites.items()}
        variance *= question.ends  # of an outcome at most: it has a part of every end
    names = [(one.name, group) for one in evaluation.subgroups for group in one.groups]
    return RiskTable(
        edges=edges,
        risks=risks,
        counts=tables[0].tolist(),
        threshold=threshold,
        called=called,
        variance=variance,
        sites={site: table[0].tolist() for site, table in sites.items()},
        groups=[
            _GroupTable(*name, tables[place].tolist(), [table[place].tolist() for table in sites.values()])
            for place, name in enumerate(names, start=1)
        ],
        follow_up=follow_up,
    )


def say_needed(rho: Fraction | None, groupings: int = 0) -> str:
    """Below how many patients of each outcome noise at this price may hide all figures; nothing without a price.

    A tree with few risks has fewer bins, and needs fewer patients. Where some partners may collude, hospitals add
    more noise than this counts.
    """
    if not rho:
        return ""
    cells = len(lay_grid(0.5, noisy=True)[1])
    needed = ceil(DEVIATIONS * sqrt(cells * (1 + groupings) / (2 * rho)))
    return f"; below about {needed} with the outcome, or without it, noise may hide all figures"


def find_place(model: Method[Any], positive: Value | None) -> int:
    """Where the positive class is among the model's; StudyError where it is not, or nobody says which it is."""
    labels = [label(value) for value in model.classes_]
    if positive is None and model.decided is not None:
        positive = model.decided.positive
    if positive is None and len(labels) == 2:
        return 1
    if positive is None or label(positive) not in labels:
        said = (
            "nobody says which is the positive one"
            if positive is None
            else f"{label(positive)!r} is none of them"
        )
        raise StudyError(f"the model tells {', '.join(labels)} apart, and {said}: give 'positive'")
    return labels.index(label(positive))


def _choose_bins(
    model: Method[Any], place: int, *, noisy: bool, levels: bool = True
) -> tuple[list[float], list[float], int, float]:
    """The edges of risk, what stands for each bin, the first that is predicted positive, and the threshold."""
    threshold = float(np.nextafter(0.5, 1)) if model.decided is None else model.decided.threshold
    risks_of = model.list_risks(place) if levels else None
    if risks_of is not None and len(risks_of) <= (MOST_NOISY_LEVELS if noisy else MOST_LEVELS):
        edges = [risk for risk in risks_of[1:] if risk > 0] or [0.5]
        risks = [*risks_of] if len(risks_of) > 1 else [risks_of[0]] * 2
        return edges, risks, sum(risk < threshold for risk in risks), threshold
    edges, risks = lay_grid(threshold, noisy=noisy)
    return edges, risks, sum(edge < threshold for edge in edges) + 1, threshold


def lay_grid(threshold: float, *, noisy: bool) -> tuple[list[float], list[float]]:
    """Edges of risk in equal steps of log odds, the nearest moved to the threshold, and what stands for each bin."""
    width = NOISY_WIDTH if noisy else WIDTH
    steps = np.arange(-ENDS, ENDS + width / 2, width)
    grid = 1 / (1 + np.exp(-steps))
    if 0 < threshold < 1:
        grid[np.argmin(np.abs(grid - threshold))] = threshold
    edges = sorted(set(grid.tolist()))
    odds = np.log(edges) - np.log1p(-np.array(edges))
    middles = np.concatenate([[odds[0] - width / 2], (odds[1:] + odds[:-1]) / 2, [odds[-1] + width / 2]])
    return edges, (1 / (1 + np.exp(-middles))).tolist()


def count_risks(risks: NDArray[np.float64], outcomes: NDArray[np.float64]) -> RiskTable:
    """The table of patients whose predicted risks are at hand, as in a simulation."""
    edges, middles = lay_grid(0.5, noisy=False)
    cells = 2 * np.searchsorted(edges, risks, side="right") + outcomes.astype(np.int64)
    counts = np.bincount(cells, minlength=2 * len(middles)).reshape(-1, 2)
    return RiskTable(
        edges=edges, risks=middles, counts=counts.astype(np.float64).tolist(), threshold=0.5, called=0
    )
