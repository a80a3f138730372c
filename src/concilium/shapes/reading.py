"""A shape model to read: a table of points, a score sheet, and the reasons for one patient's prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from concilium.errors import name_some
from concilium.models.explanation import (
    Explanation,
    Reason,
    read_odds,
    say_hidden,
    say_odds,
    say_risk,
    say_risk_interval,
    say_share,
)
from concilium.models.intervals import WITHIN_95, find_unentered, log_odds_interval, share_interval
from concilium.models.outcome import say_number
from concilium.models.prediction import Entries, NewPatients
from concilium.models.threshold import choose_one, probability, say_decided
from concilium.protocol.attributes import recode
from concilium.records.columns import say_plain
from concilium.shapes.body import ShapeBody, ShapeTerm, name_outcome, say_horizon, translate_classes
from concilium.shapes.cells import Vector

# Cells that hardly anybody is in are not printed: their interval is all there would be to read.
LEAST_SHARE = 0.002
REASONS_SHOWN = 8
MOST_NAMED = 10
LONG = 15  # A score sheet of more terms than these is not added up by hand.
NOISY = "The model was learned with noise, which protects single patients; the interval includes it."


@dataclass(frozen=True)
class ShapeRow:
    """Some neighbouring cells of a term with the same points: the term, the condition in words, the odds ratio against
    the mean over patients with its 95 % interval, the points, and the share of patients. Where a number is predicted
    there is no odds ratio, and `adds` says what is added to it."""

    term: str
    condition: str
    odds_ratio: float | None
    adds: float | None
    low: float
    high: float
    points: int
    share: float


def say_effect(body: ShapeBody, moved: float) -> str:
    """What a cell does, against the mean over patients: an odds ratio, or what it adds to a number."""
    return say_odds(read_odds(moved)) if body.binary else say_added(moved)


def say_added(moved: float) -> str:
    return f"{moved:+,.0f}" if abs(moved) >= 100 else f"{moved + 0.0:+.2g}"


def name_effect(body: ShapeBody) -> str:
    return "odds ratio" if body.binary else "adds"


def order_terms(body: ShapeBody) -> list[ShapeTerm]:
    """The terms, the one that moves risks most first."""
    return sorted(body.terms, key=lambda term: (-term.deviation, body.name(term)))


def list_rows(body: ShapeBody, dictionary: Entries) -> list[ShapeRow]:
    return [row for term in order_terms(body) for row in _list_term(body, term, dictionary)]


def _list_term(body: ShapeBody, term: ShapeTerm, dictionary: Entries) -> list[ShapeRow]:
    first = body.attributes[term.cells.attributes[0]]
    rows = []
    if term.cells.rule:
        return [
            _make_row(body, f"rule: {body.name(term)}", words, term, [cell])
            for cell, (words,) in reversed(list(enumerate(body.say_cells(term, dictionary))))
        ]
    if len(term.cells.attributes) == 1:
        inner = [code for code in range(first.size) if term.shares[code] >= LEAST_SHARE]
        # Neighbouring intervals; values of a category; missing always by itself.
        runs = [
            list(codes)
            for _, codes in groupby(
                inner, key=lambda code: (first.numeric and code >= first.first, term.points[code])
            )
        ]
        runs = [run for codes in runs for run in ([codes] if first.numeric else [[code] for code in codes])]
        for codes in runs:
            # Cells between those that are printed belong to the run.
            words = body.say_cells_of(
                codes if not first.numeric else range(codes[0], codes[-1] + 1), term, dictionary
            )
            rows.append(_make_row(body, body.name(term), words, term, codes))
        return rows
    for cell, (one, other) in enumerate(body.say_cells(term, dictionary)):
        names = body.name(term).split(" and ")
        if term.shares[cell] >= LEAST_SHARE:
            words = f"{names[0]} {one}, {names[1]} {other}"
            rows.append(_make_row(body, body.name(term), words, term, [cell]))
    return rows


def _make_row(body: ShapeBody, name: str, words: str, term: ShapeTerm, cells: list[int]) -> ShapeRow:
    shares = np.array([term.shares[cell] for cell in cells])
    weights = shares / shares.sum()
    value = float(weights @ [term.values[cell] for cell in cells])
    # At most this, whatever the errors of neighbours have in common.
    error = float(weights @ [term.errors[cell] for cell in cells])
    middle, low, high = (value + side * WITHIN_95 * error for side in (0, -1, 1))
    odds, adds = (None, middle) if not body.binary else (read_odds(middle), None)
    if body.binary:
        low, high = read_odds(low), read_odds(high)
    return ShapeRow(name, words, odds, adds, low, high, term.points[cells[0]], float(shares.sum()))


def say_model(body: ShapeBody, dictionary: Entries) -> str:
    outcome = name_outcome(body, dictionary)
    base = f"{say_share(body.mean)} of all patients have {outcome}"
    if not body.binary:
        base = f"The mean {outcome}{say_unit(body, dictionary)} is {say_number(body.mean)}"
    if not body.terms:
        return f"{base}; no attribute says more, and every patient gets this answer"
    what = "Odds ratios are" if body.binary else "What is added is"
    lines = [f"{base}. {what} against the mean over patients.", ""]
    lines.append(f"  points  {name_effect(body):>10}          95 % CI  patients")
    for name, rows in groupby(list_rows(body, dictionary), key=lambda row: row.term):
        lines.append(name)
        lines += [
            f"  {row.points:>6}  {say_row(row):>10}  {say_band(row):>15}  {row.share:>8.1%}  {row.condition}"
            for row in rows
        ]
    lines += ["", *_say_sheet(body, dictionary)]
    if body.decided is not None:
        lines.append(say_decided(body.decided))
    return "\n".join(lines)


def say_unit(body: ShapeBody, dictionary: Entries) -> str:
    """The unit of the target, where the dictionary says it."""
    entry = dictionary.get(body.target)
    return f" ({entry.unit})" if entry is not None and entry.unit else ""


def say_row(row: ShapeRow) -> str:
    return say_odds(row.odds_ratio) if row.odds_ratio is not None else say_added(row.adds or 0.0)


def say_band(row: ShapeRow) -> str:
    say = say_odds if row.adds is None else say_added
    return f"{say(row.low)} to {say(row.high)}"


@dataclass(frozen=True)
class ScoreSheet:
    """Points of each condition, and the risk that goes with their sum. `auc` and `auc_of_model` are those of the
    training patients; None where they were not measured. Where a number is predicted there is no `positive` class, and
    R squared stands for the AUC."""

    target: str
    positive: str | None
    rows: tuple[ShapeRow, ...]
    unit: float
    start: float
    auc: float | None
    auc_of_model: float | None
    by: str = ""  # which time the risk is by

    @property
    def loss(self) -> float | None:
        """The AUC, or R squared, that whole points lose."""
        return None if self.auc is None or self.auc_of_model is None else self.auc_of_model - self.auc

    @property
    def largest(self) -> int:
        """The most points that a patient can have."""
        return sum(
            max(row.points for row in rows) for _, rows in groupby(self.rows, key=lambda row: row.term)
        )

    def risk(self, points: int) -> float:
        """The risk, or the number, of a patient with so many points."""
        told = self.start + self.unit * points
        return told if self.positive is None else float(probability(np.array([told]))[0])

    @property
    def outcome(self) -> str:
        return self.target if self.positive is None else f"{self.target} = {self.positive}{self.by}"

    @property
    def predicts(self) -> str:
        """What goes with a sum of points."""
        return self.target if self.positive is None else "risk"

    def say(self, risk: float) -> str:
        return say_number(float(f"{risk:.3g}")) if self.positive is None else say_risk(risk)

    def list_risks(self) -> list[tuple[int, str]]:
        """About twenty sums of points, each with its risk in words; no risk twice."""
        found: dict[str, int] = {}
        for points in range(0, self.largest + 1, max(self.largest // 20, 1)):
            found.setdefault(self.say(self.risk(points)), points)
        return [(points, said) for said, points in found.items()]

    def __str__(self) -> str:
        lines = [
            f"Score sheet for {self.outcome}: add up the points of each line that holds",
            "",
        ]
        for name, rows in groupby(self.rows, key=lambda row: row.term):
            lines += [name, *(f"  {row.points:>4}  {row.condition}" for row in rows)]
        lines += ["", f"points  {self.predicts}"]
        lines += [f"{points:>6}  {said}" for points, said in self.list_risks()]
        return "\n".join([*lines, "", self.say_loss(), *self.say_long()])

    def say_long(self) -> list[str]:
        """What makes the sheet shorter, where nobody would add it up."""
        terms = len({row.term for row in self.rows})
        if terms <= LONG:
            return []
        return [f"{terms} terms are many to add up by hand: max_terms = 8 makes a model of eight at most."]

    def say_loss(self) -> str:
        figure = "AUC" if self.positive is not None else "R²"
        if self.auc is None or self.auc_of_model is None:
            return f"What {figure} whole points lose was not measured: noise protects the patients."
        return (
            f"{figure} of the points {self.auc:.3f}, of the model {self.auc_of_model:.3f} on the training patients: "
            f"whole points lose {max(self.auc_of_model - self.auc, 0.0):.4f}."
        )


def make_sheet(body: ShapeBody, dictionary: Entries) -> ScoreSheet:
    positive = translate_classes(body, dictionary)[1] if body.binary else None
    sheet = body.sheet
    rows = tuple(list_rows(body, dictionary))
    return ScoreSheet(
        body.target, positive, rows, sheet.unit, sheet.start, sheet.auc, sheet.auc_of_model, say_horizon(body)
    )


def _say_sheet(body: ShapeBody, dictionary: Entries) -> list[str]:
    sheet = make_sheet(body, dictionary)
    what = "a risk: log odds" if body.binary else sheet.target
    equals = f"{sheet.start:.3g} + {sheet.unit:.3g} x points"
    return [f"Points add up to {what} = {equals}. {sheet.say_loss()}"]


def find_cells(body: ShapeBody, source: NewPatients, patients: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """The cell of each patient in each term, [term, patient]; -1 for a value that the model has no cell for."""
    codes = []
    for attribute in body.attributes:
        own, cells = recode(attribute, source)
        codes.append(cells[own].astype(np.intp))
    found = np.empty((len(body.terms), patients), dtype=np.intp)
    for place, term in enumerate(body.terms):
        unknown = np.zeros(patients, dtype=np.bool_)
        held = list(codes)
        for index in term.cells.attributes:
            unknown |= codes[index] < 0
            held[index] = np.maximum(codes[index], 0)
        found[place] = term.cells.place(held, body.attributes)
        found[place][unknown] = -1
    return found


def add_up(body: ShapeBody, source: NewPatients, patients: int) -> Vector:
    """The log odds, or the number, of each patient."""
    cells = find_cells(body, source, patients)
    odds = np.full(patients, body.intercept)
    for own, term in zip(cells, body.terms, strict=True):
        odds += np.array([*term.values, 0.0])[own]
    return odds


def explain(
    body: ShapeBody, source: NewPatients, patient: Mapping[str, Any], dictionary: Entries
) -> Explanation:
    """The explanation of a patient; what was not entered counts as the mean over patients."""
    cells = find_cells(body, source, 1)[:, 0].tolist() if body.terms else []
    reasons, inside, odds, silent, absent = [], [0], body.intercept, 0.0, 0.0
    unheard, hidden = set[str](), _find_hidden(body)
    for term, cell, start in zip(body.terms, cells, body.starts, strict=False):
        names = tuple(body.names[index] for index in term.cells.attributes)
        if not all(name in patient for name in names):
            silent += term.deviation**2
            absent += term.deviation**2
            continue
        if cell < 0 or (_is_elsewhere(body, term, cell) and not term.shares[cell] and body.patients):
            unheard.update(names)
            silent += term.deviation**2
            continue
        if _is_elsewhere(body, term, cell) and abs(term.values[cell]) <= WITHIN_95 * term.errors[cell]:
            hidden.update([] if body.patients else names)
        inside.append(start + cell)
        odds += term.values[cell]
        reasons.append(
            Reason(
                names,
                _say_place(body, term, cell, patient, dictionary),
                moved=term.values[cell],
                support=term.shares[cell],
            )
        )
    reasons.sort(key=lambda reason: -abs(reason.moved or 0.0))
    # The mean risk is not the risk of a mean patient: who is unknown has the mean risk, in part who is known in part.
    total = sum(term.deviation**2 for term in body.terms)
    mean = body.mean
    if body.binary:
        held = min(max(mean, 1e-9), 1 - 1e-9)
        mean = math.log(held / (1 - held))
    odds += (absent / total if total else 1.0) * (mean - body.intercept)
    notes = (*_say_absent(body, patient, unheard), *([NOISY] if body.patients is None else []))
    if not body.binary:
        unknown = find_unentered(math.sqrt(silent)) if len(inside) > 1 else 0.0
        reach = WITHIN_95 * math.sqrt(body.find_error(inside) ** 2 + unknown)
        return _explain_number(body, odds, reach, reasons, _say_reasons(body, reasons, hidden), notes)
    positive = float(probability(np.array([odds]))[0])
    if len(inside) == 1:
        interval = share_interval(body.mean * (body.patients or 0), body.patients or 0, including=positive)
        if body.patients is None:
            interval = log_odds_interval(odds, odds, body.find_error(inside) ** 2)
    else:
        variance = body.find_error(inside) ** 2 + find_unentered(math.sqrt(silent))
        interval = log_odds_interval(odds, odds, variance)
    chances = [1 - positive, positive]
    place = choose_one(chances, body.classes, body.decided)
    classes = translate_classes(body, dictionary)
    whose = "" if place else f"{classes[1]}: "
    first = (
        f"{body.target} = {classes[place]} ({whose}{say_risk(positive)}; {say_risk_interval(interval)}; base rate "
        f"{say_share(body.mean)})."
    )
    return Explanation(
        target=body.target,
        prediction=body.classes[place],
        probability=chances[place],
        reasons=tuple(reasons),
        sentences=(first, *_say_reasons(body, reasons, hidden), *notes),
        base=body.mean,
        notes=notes,
        interval=interval if place else (1 - interval[1], 1 - interval[0]),
        chances=tuple(chances),
    )


def _explain_number(
    body: ShapeBody,
    number: float,
    reach: float,
    reasons: list[Reason],
    said: list[str],
    notes: tuple[str, ...],
) -> Explanation:
    low, high = number - reach, number + reach
    within = f"95% interval of the mean {say_number(low)} to {say_number(high)}"
    first = f"{body.target} = {say_number(number)} ({within}); mean {say_number(body.mean)}."
    return Explanation(
        target=body.target,
        prediction=number,
        probability=None,
        reasons=tuple(reasons),
        sentences=(first, *said, *notes),
        base=body.mean,
        notes=notes,
        interval=(low, high),
    )


def _is_elsewhere(body: ShapeBody, term: ShapeTerm, cell: int) -> bool:
    """Whether a cell is that of a shape for missing values, or for any that no other cell is for."""
    if len(term.cells.attributes) > 1:
        return False
    attribute = body.attributes[term.cells.attributes[0]]
    return cell in (attribute.missing_cell, attribute.other_cell)


def _say_place(
    body: ShapeBody, term: ShapeTerm, cell: int, patient: Mapping[str, Any], dictionary: Entries
) -> str:
    """What the patient has, and the cell in which that is where it is an interval; of a rule whether it holds."""
    if term.cells.rule:
        return f"the rule {body.name(term)} {body.say_cells(term, dictionary)[cell][0]}"
    parts = []
    for index, words in zip(term.cells.attributes, body.say_cells(term, dictionary)[cell], strict=True):
        attribute = body.attributes[index]
        value = patient[attribute.name]
        if value is None:
            parts.append(f"{attribute.name} is missing")
        elif attribute.numeric:
            parts.append(f"{attribute.name} = {say_plain(value)} ({words})")
        else:
            parts.append(f"{attribute.name} = {words}")
    return " and ".join(parts)


def _find_hidden(body: ShapeBody) -> set[str]:
    """The attributes of a private model whose curves have no cell that noise lets tell from the mean."""
    if body.patients is not None:
        return set()
    return {
        body.name(term)
        for term in body.terms
        if all(
            abs(value) <= WITHIN_95 * error
            for value, error, share in zip(term.values, term.errors, term.shares, strict=True)
            if share >= LEAST_SHARE
        )
    }


def _say_reasons(body: ShapeBody, every: list[Reason], unseen: set[str]) -> list[str]:
    what = name_effect(body)
    hidden = [reason for reason in every if " and ".join(reason.attributes) in unseen]
    reasons = [reason for reason in every if reason not in hidden]
    lines = [
        f"- {reason.condition}: {what} {say_effect(body, reason.moved or 0.0)} against the mean patient"
        for reason in reasons[:REASONS_SHOWN]
    ]
    rest = reasons[REASONS_SHOWN:]
    if rest:
        together = say_effect(body, sum(reason.moved or 0.0 for reason in rest))
        lines.append(f"- {len(rest)} more, each of which says less: {what} {together} together")
    if hidden:
        together = say_effect(body, sum(reason.moved or 0.0 for reason in hidden))
        names = [name for reason in hidden for name in reason.attributes]
        lines.append("- " + say_hidden(names, f"{what} {together}"))
    return lines


def _say_absent(body: ShapeBody, patient: Mapping[str, Any], unheard: set[str]) -> list[str]:
    said = []
    absent = [name for name in sorted(body.names) if name not in patient]
    if absent and body.terms:
        said.append(f"Not entered, and counted as the mean over patients: {name_some(absent, MOST_NAMED)}.")
    missing = sorted(name for name in unheard if patient[name] is None)
    if missing:
        said.append(f"Missing, which no patient of the model had, and so not counted: {', '.join(missing)}.")
    if unknown := sorted(unheard - set(missing)):
        said.append(f"No patient of the model had the value of {', '.join(unknown)}: it is not counted.")
    if not body.terms:
        said.append("The model has no terms: every patient gets this answer.")
    return said
