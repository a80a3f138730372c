"""Attribute inference: a sensitive attribute of a patient, guessed from the model and all else that is known of them.

Fredrikson et al. (Privacy in Pharmacogenetics, 2014; section 5 of Yeom et al., 2018): the attacker knows the outcome
and every other attribute, tries each value of the sensitive one, and asks the model how likely the outcome would be
with it. By Bayes' rule value v is guessed by P(v) x P(outcome | v, the rest), where the model gives the second factor.

Four guesses, from less to more knowledge:

marginal     the commonest value
imputation   a naive Bayes model of the attribute given the outcome and all other attributes, learned from some of the
             others: what the population says, without the model under audit
model        the marginal, weighed by the model
both         naive Bayes given the other attributes (not the outcome), weighed by the model

Each is made for members and for others, none of them among those whom the attacker learned from. That a guess is right
more often than the marginal shows what the population says. Only what it gains on members above others is there
because they were members (Yeom's advantage). Numbers are guessed by the quarter in which they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError, nearest
from concilium.evaluation.alone import fit_alone
from concilium.evaluation.attack_figures import RESAMPLES, TAILS, Estimate, Floats
from concilium.evaluation.audited_patients import AuditedPatients
from concilium.evaluation.responses import LEAST_SHARE, share_of_truth
from concilium.models.method import Method
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.table import Records
from concilium.trees.naive_bayes import NaiveBayes

QUARTERS = (0.25, 0.5, 0.75)
TENTHS = tuple(tenth / 10 for tenth in range(1, 10))
MOST_VALUES = 100
LEAST_OTHERS = 20


class Guess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a guess is right of members and of others; `advantage` is the difference."""

    members: Estimate
    others: Estimate
    advantage: Estimate


class AttributeFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`asked` is whether the model asks about the attribute at all; `learned_from` are the others whom the attacker
    learned from, and `guesses` those four by name."""

    attribute: str
    values: list[str]
    asked: bool
    members: int
    others: int
    learned_from: int
    guesses: dict[str, Guess]


@dataclass(frozen=True)
class Candidates:
    """The values that an attribute may have: how each is called, and what a model is told to try it."""

    names: list[str]
    tried: list[Column]
    place: NDArray[np.intp]
    """Of each patient's own value; -1 where it is missing, or nobody of those learned from has it."""


def attack_attribute(
    model: Method[Any],
    audited: AuditedPatients,
    attribute: str,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> AttributeFigures:
    """How often each guess of an attribute is right."""
    table = find_table(model, audited, attribute)
    rows = model.find_outcomes(audited.patients).rows
    about, member = table.take(rows), audited.member[rows]
    draw = np.random.default_rng(seed)
    reference = np.zeros(len(about), dtype=np.bool_)
    outside = np.flatnonzero(~member)
    if len(outside) < LEAST_OTHERS:
        raise ModelError(
            f"guessing {attribute!r} takes at least {LEAST_OTHERS} others, of whom the attacker learns from half; "
            f"there are {len(outside)}"
        )
    reference[draw.permutation(outside)[: len(outside) // 2]] = True
    candidates = list_candidates(about[attribute], reference, attribute)
    known = candidates.place >= 0
    marginal = np.bincount(candidates.place[reference & known], minlength=len(candidates.names)) + 0.5
    marginal /= marginal.sum()
    likely = weigh(model, about, attribute, candidates, reference)
    priors = {
        "marginal": np.tile(marginal, (len(about), 1)),
        "imputation": impute(about, attribute, candidates, reference & known, None),
        "model": marginal * likely,
        "both": impute(about, attribute, candidates, reference & known, model.target) * likely,
    }
    inside, outside_rest = member & known, ~member & ~reference & known
    if not inside.any() or not outside_rest.any():
        raise ModelError(f"{attribute!r} is missing for all members, or for all others")
    guesses = {}
    for name, scores in priors.items():
        right = np.argmax(scores, axis=1) == candidates.place
        guesses[name] = compare_guesses(right[inside], right[outside_rest], resamples, draw)
    return AttributeFigures(
        attribute,
        candidates.names,
        attribute in model.attributes_,
        int(inside.sum()),
        int(outside_rest.sum()),
        int(reference.sum()),
        guesses,
    )


def find_table(model: Method[Any], audited: AuditedPatients, attribute: str) -> Records:
    if model.reads_courses or audited.patients.table is None:
        raise ModelError(
            "a model of courses is asked about series, not about attributes of a table, so that none is guessed from it"
        )
    table = audited.patients.table
    if attribute == model.target:
        raise ModelError(f"{attribute!r} is what the model predicts; name an attribute that it is told")
    if attribute not in table:
        raise ModelError(f"the patients have no attribute {attribute!r}{nearest(attribute, table.names)}")
    return table


def list_candidates(column: Column, reference: NDArray[np.bool_], attribute: str) -> Candidates:
    """The values that some of the reference have, or quarters of their numbers, each tried by its median."""
    if isinstance(column, Numbers):
        held = column.numbers[reference & ~np.isnan(column.numbers)]
        edges = np.unique(np.quantile(held, QUARTERS)) if len(held) else np.array([])
        places = np.searchsorted(edges, column.numbers, side="right")
        own = np.searchsorted(edges, held, side="right")
        there = np.unique(own)
        if len(there) < 2:
            raise ModelError(f"{attribute!r} is nearly the same for everybody; there is nothing to guess")
        renumber = np.full(len(edges) + 1, -1)
        renumber[there] = np.arange(len(there))
        place = np.where(np.isnan(column.numbers), -1, renumber[places])
        medians = [float(np.median(held[own == group])) for group in there]
        names = [name_quarter(edges, group) for group in there]
        size = len(column.numbers)
        return Candidates(names, [Numbers(np.full(size, median)) for median in medians], place)
    codes = np.unique(column.codes[reference])
    codes = codes[codes > 0]
    if len(codes) < 2:
        raise ModelError(f"{attribute!r} is the same for everybody; there is nothing to guess")
    if len(codes) > MOST_VALUES:
        raise ModelError(f"{attribute!r} has {len(codes)} values; at most {MOST_VALUES} can be guessed from")
    renumber = np.full(len(column.values) + 1, -1)
    renumber[codes] = np.arange(len(codes))
    tried: list[Column] = [
        Coded(np.full(len(column), code), column.values, column.stated, column.by_itself) for code in codes
    ]
    return Candidates([label(column.values[code - 1]) for code in codes], tried, renumber[column.codes])


def name_quarter(edges: Floats, group: int) -> str:
    low = "" if group == 0 else f"from {edges[group - 1]:g}"
    high = "" if group == len(edges) else f"below {edges[group]:g}"
    return " ".join(filter(None, [low, high]))


def weigh(
    model: Method[Any],
    about: Records,
    attribute: str,
    candidates: Candidates,
    reference: NDArray[np.bool_],
) -> Floats:
    """How likely each patient's outcome is by the model with each value of the attribute, [patient, value]."""
    columns = {name: about[name] for name in about.names}
    truth = about.values(model.target)
    if model.classes_:
        given = [
            share_of_truth(model, Records({**columns, attribute: tried}), truth) for tried in candidates.tried
        ]
        return np.maximum(np.column_stack(given), LEAST_SHARE)
    outcome = np.array([float(value) for value in truth if value is not None])
    errors = np.column_stack(
        [
            outcome - np.asarray(model.predict(Records({**columns, attribute: tried})), dtype=np.float64)
            for tried in candidates.tried
        ]
    )
    # Errors are taken as normal, as wide as those of the reference with their own values.
    held = reference & (candidates.place >= 0)
    own = errors[held, candidates.place[held]]
    spread = max(float(np.mean(own**2)), np.finfo(np.float64).tiny)
    log = -0.5 * errors**2 / spread
    likely: Floats = np.exp(log - log.max(axis=1, keepdims=True))
    return likely


def impute(
    about: Records,
    attribute: str,
    candidates: Candidates,
    reference: NDArray[np.bool_],
    hidden: str | None,
) -> Floats:
    """The shares of the values by naive Bayes from all other columns but `hidden`, learned from the reference."""
    columns: dict[str, Column] = {
        name: about[name] for name in about.names if name not in (attribute, hidden)
    }
    names = tuple(map(str, range(len(candidates.names))))
    bins: Mapping[str, list[float]] = {
        name: edges.tolist()
        for name, column in columns.items()
        if isinstance(column, Numbers) and len(edges := find_tenths(column.numbers[reference]))
    }
    sought = Coded((candidates.place + 1).astype(np.uint32), names, stated=True)
    table = Records({**columns, attribute: sought})
    imputer = fit_alone(
        lambda: NaiveBayes(target=attribute, bins=bins), "what the attacker knows", table.take(reference)
    )
    shares = np.zeros((len(about), len(names)))
    classes: list[Value] = imputer.classes_
    shares[:, [int(label(value)) for value in classes]] = imputer.predict_proba(table)
    return shares


def find_tenths(numbers: Floats) -> Floats:
    """Edges at the tenths of what was measured; none where everybody has the same."""
    there = numbers[~np.isnan(numbers)]
    edges: Floats = np.unique(np.quantile(there, TENTHS)) if len(there) else there
    return edges[(edges > there.min()) & (edges <= there.max())] if len(edges) else edges


def compare_guesses(
    inside: NDArray[np.bool_], outside: NDArray[np.bool_], resamples: int, draw: np.random.Generator
) -> Guess:
    """How often guesses were right; resampling right and wrong with replacement is drawing from a binomial."""
    rates = [float(right.mean()) for right in (inside, outside)]
    drawn = [
        draw.binomial(len(right), rate, resamples) / len(right)
        for right, rate in zip((inside, outside), rates, strict=True)
    ]
    measured = [(rates[0], drawn[0]), (rates[1], drawn[1]), (rates[0] - rates[1], drawn[0] - drawn[1])]
    return Guess(*(Estimate(value, *map(float, np.percentile(spread, TAILS))) for value, spread in measured))
