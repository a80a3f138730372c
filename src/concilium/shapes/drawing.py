"""Shapes as pictures: a curve with its 95 % band for each number, a dot with its interval for each value, a heat map
for each pair. With a patient, where the patient stands on each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from concilium.models.intervals import WITHIN_95
from concilium.models.pictures import COLOURS, INK, RULE, SOFT, draw_frame, element_text
from concilium.models.prediction import Entries, NewPatients
from concilium.protocol.attributes import MISSING, say_edge
from concilium.shapes.body import ShapeBody, ShapeTerm, name_outcome
from concilium.shapes.reading import LEAST_SHARE, find_cells, name_effect, order_terms, say_added, say_effect

MOST_DRAWN = 12
WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 560, 190, 56, 90, 12, 34
ROW, NAMES = 20, 190
TICKS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
LEAST_REACH, MOST_REACH = math.log(1.5), math.log(20)
LETTERS = 28


def draw_terms(body: ShapeBody, dictionary: Entries, *, whole: bool = False) -> dict[str, str]:
    """A picture of each term by its name, the terms that matter most first."""
    shown = order_terms(body)
    outcome = name_outcome(body, dictionary)
    return {
        _title(body, term): _draw_term(body, term, dictionary, outcome)
        for term in (shown if whole else shown[:MOST_DRAWN])
    }


def draw_patient(
    body: ShapeBody,
    dictionary: Entries,
    read: Callable[[Any], NewPatients],
    patient: Mapping[str, Any],
) -> str:
    """All terms of which the patient's values are known, one below the other, with a mark where the patient stands."""
    row = {name: patient.get(name) for name in body.names} or {body.target: None}
    cells = find_cells(body, read([row]), 1)[:, 0].tolist()
    place = {id(term): cell for term, cell in zip(body.terms, cells, strict=True)}
    outcome = name_outcome(body, dictionary)
    parts, top = [], 4.0
    for term in order_terms(body):
        known = all(body.names[index] in patient for index in term.cells.attributes)
        cell = place[id(term)]
        if not known or cell < 0:
            continue
        picture = _draw_term(body, term, dictionary, outcome, cell, patient)
        moved = f"{name_effect(body)} {say_effect(body, term.values[cell])}"
        parts.append(
            f'<text x="8" y="{top + 12:g}" font-weight="600">{element_text(body.name(term))}: {moved}</text>'
        )
        height = float(picture.split('height="', 1)[1].split('"', 1)[0])
        parts.append(f'<g transform="translate(0 {top + 18:g})">{picture}</g>')
        top += height + 30
    if not parts:
        parts, top = ['<text x="8" y="16">Nothing that the model asks for was entered.</text>'], 24.0
    return draw_frame(f"Where this patient stands, for {outcome}", parts, WIDTH + 20, top)


def _title(body: ShapeBody, term: ShapeTerm) -> str:
    if term.cells.rule:
        return f"rule: {body.name(term)}"
    return f"{'shape' if len(term.cells.attributes) == 1 else 'pair'} of {body.name(term)}"


def _draw_term(
    body: ShapeBody,
    term: ShapeTerm,
    dictionary: Entries,
    outcome: str,
    here: int | None = None,
    patient: Mapping[str, Any] | None = None,
) -> str:
    """One term; `here` is the cell of a patient."""
    what = f"Odds ratio of {outcome} by {body.name(term)}"
    if not body.binary:
        what = f"What {body.name(term)} adds to {outcome}"
    title = f"{what}, against the mean over patients"
    if len(term.cells.attributes) > 1 and not term.cells.rule:
        return _draw_map(body, term, dictionary, title, here)
    attribute = body.attributes[term.cells.attributes[0]]
    if attribute.numeric and len(attribute.edges) > 1 and not term.cells.rule:
        value = None if patient is None else patient.get(attribute.name)
        return _draw_curve(body, term, f"{title}, with a 95 % interval", here, value)
    return _draw_dots(body, term, dictionary, f"{title}, with a 95 % interval", here)


def _reach(body: ShapeBody, term: ShapeTerm) -> float:
    """How far log odds, or a number, are drawn."""
    shown = [
        abs(value) + WITHIN_95 * error
        for value, error, share in zip(term.values, term.errors, term.shares, strict=True)
        if share >= LEAST_SHARE
    ]
    if not body.binary:
        return max(shown, default=0.0) or 1.0
    return min(max([LEAST_REACH, *shown]), MOST_REACH)


def _list_ticks(body: ShapeBody, reach: float) -> list[tuple[float, str]]:
    """Where lines are drawn, and what stands beside them."""
    if body.binary:
        return [(math.log(odds), f"{odds:g}") for odds in TICKS if abs(math.log(odds)) <= reach]
    size = 10.0 ** math.floor(math.log10(reach))
    step = next(part * size for part in (5, 2, 1, 0.5) if 2 * part * size <= reach)
    places = range(-int(reach / step), int(reach / step) + 1)
    return [(place * step, say_added(place * step) if place else "0") for place in places]


def _draw_curve(body: ShapeBody, term: ShapeTerm, title: str, here: int | None, value: Any) -> str:
    attribute = body.attributes[term.cells.attributes[0]]
    edges, reach = attribute.edges, _reach(body, term)
    margin = (edges[-1] - edges[0]) / max(len(edges) - 1, 1)
    low, high = edges[0] - margin, edges[-1] + margin
    width, bottom = WIDTH - LEFT - RIGHT, HEIGHT - FOOT

    def across(number: float) -> float:
        return LEFT + width * (min(max(number, low), high) - low) / (high - low)

    def up(moved: float) -> float:
        held = min(max(moved, -reach), reach)
        return TOP + (bottom - TOP) * (reach - held) / (2 * reach)

    parts = _draw_ticks(up, _list_ticks(body, reach), LEFT, LEFT + width)
    ends = [low, *edges, high]
    steps = list(zip(ends, ends[1:], range(attribute.first, attribute.size), strict=False))
    upper, lower, line = [], [], []
    for start, end, code in steps:
        moved, error = term.values[code], WITHIN_95 * term.errors[code]
        for x in (across(start), across(end)):
            upper.append(f"{x:.1f},{up(moved + error):.1f}")
            lower.append(f"{x:.1f},{up(moved - error):.1f}")
            line.append(f"{x:.1f},{up(moved):.1f}")
    parts.append(
        f'<polygon points="{" ".join([*upper, *lower[::-1]])}" fill="{COLOURS[5]}" fill-opacity="0.35"/>'
    )
    parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>')
    for place in sorted({0, len(edges) // 2, len(edges) - 1}):
        said = element_text(say_edge(edges[place], date=attribute.date))
        parts.append(
            f'<text x="{across(edges[place]):.1f}" y="{bottom + 15:g}" text-anchor="middle" fill="{SOFT}">{said}</text>'
        )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 4}" fill="{SOFT}">{element_text(attribute.name)}</text>')
    beside = LEFT + width + 42
    if attribute.missing and term.shares[MISSING] >= LEAST_SHARE:
        moved, error = term.values[MISSING], WITHIN_95 * term.errors[MISSING]
        parts += [
            f'<line x1="{beside}" x2="{beside}" y1="{up(moved + error):.1f}" y2="{up(moved - error):.1f}" '
            f'stroke="{COLOURS[5]}" stroke-width="5"/>',
            f'<circle cx="{beside}" cy="{up(moved):.1f}" r="4" fill="{COLOURS[0]}"/>',
            f'<text x="{beside}" y="{bottom + 15:g}" text-anchor="middle" fill="{SOFT}">missing</text>',
        ]
    if here is not None:
        known = isinstance(value, int | float) and not isinstance(value, bool)
        start, end = (
            (ends[here - attribute.first], ends[here - attribute.first + 1])
            if here >= attribute.first
            else (0, 0)
        )
        x = beside if here < attribute.first else across(float(value) if known else (start + end) / 2)
        parts += _draw_mark(x, up(term.values[here]))
    return draw_frame(title, parts, WIDTH, HEIGHT)


def _draw_mark(x: float, y: float) -> list[str]:
    return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{COLOURS[1]}" stroke="{INK}"/>']


def _draw_ticks(
    up: Callable[[float], float], ticks: list[tuple[float, str]], left: float, right: float
) -> list[str]:
    parts = []
    for moved, said in ticks:
        y, stroke = up(moved), RULE if moved else SOFT
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{stroke}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{SOFT}">{said}</text>')
    return parts


def _shorten(words: str) -> str:
    return words if len(words) <= LETTERS else f"{words[: LETTERS - 1]}…"


def _draw_dots(body: ShapeBody, term: ShapeTerm, dictionary: Entries, title: str, here: int | None) -> str:
    reach, width = _reach(body, term), WIDTH - NAMES - 40
    shown = [cell for cell in range(len(term.values)) if term.shares[cell] >= LEAST_SHARE or cell == here]
    words = [one for (one,) in body.say_cells(term, dictionary)]

    def across(moved: float) -> float:
        return NAMES + width * (min(max(moved, -reach), reach) + reach) / (2 * reach)

    bottom = 4 + ROW * len(shown)
    parts = []
    for moved, said in _list_ticks(body, reach):
        x, stroke = across(moved), RULE if moved else SOFT
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}" stroke="{stroke}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" fill="{SOFT}">{said}</text>')
    for place, cell in enumerate(shown):
        y, moved, error = 4 + ROW * (place + 0.5), term.values[cell], WITHIN_95 * term.errors[cell]
        parts += [
            f'<text x="{NAMES - 10}" y="{y + 4:g}" text-anchor="end">{element_text(_shorten(words[cell]))}</text>',
            f'<line x1="{across(moved - error):.1f}" x2="{across(moved + error):.1f}" y1="{y:g}" y2="{y:g}" '
            f'stroke="{COLOURS[5]}" stroke-width="5"/>',
            f'<circle cx="{across(moved):.1f}" cy="{y:g}" r="4" fill="{COLOURS[0]}"/>',
        ]
        if cell == here:
            parts += _draw_mark(across(moved), y)
    return draw_frame(title, parts, WIDTH, bottom + 20)


def _draw_map(body: ShapeBody, term: ShapeTerm, dictionary: Entries, title: str, here: int | None) -> str:
    """Rows are groups of the first attribute, columns of the second; each cell has its odds ratio, or what it adds."""
    rows, columns = term.cells.sizes(body.attributes)
    words = body.say_cells(term, dictionary)
    wide, tall, reach = (WIDTH - NAMES - 10) / columns, 24.0, _reach(body, term)
    first, second = (body.names[index] for index in term.cells.attributes)
    parts = [
        f'<text x="{NAMES - 10}" y="14" text-anchor="end" fill="{SOFT}">{element_text(_shorten(first))}</text>'
    ]
    for row in range(rows):
        y = 20 + tall * row
        said = element_text(_shorten(words[row * columns][0]))
        parts.append(f'<text x="{NAMES - 10}" y="{y + 16:g}" text-anchor="end">{said}</text>')
        for column in range(columns):
            cell = row * columns + column
            moved = term.values[cell]
            strength = min(abs(moved) / reach, 1.0)
            colour, x = COLOURS[1] if moved > 0 else COLOURS[0], NAMES + wide * column
            edge = f'stroke="{INK}" stroke-width="3"' if cell == here else f'stroke="{RULE}"'
            said = say_effect(body, moved) if term.shares[cell] > 0 else ""
            parts += [
                f'<rect x="{x:.1f}" y="{y:g}" width="{wide - 2:.1f}" height="{tall - 2:g}" fill="{colour}" '
                f'fill-opacity="{0.75 * strength:.2f}" {edge}/>',
                f'<text x="{x + wide / 2 - 1:.1f}" y="{y + 15:g}" text-anchor="middle">{said}</text>',
            ]
    bottom = 20 + tall * rows
    short = max(int(wide / 6.2), 3)
    for column in range(columns):
        said = words[column][1] if len(words[column][1]) <= short else f"{words[column][1][: short - 1]}…"
        x = NAMES + wide * (column + 0.5)
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 13:g}" text-anchor="middle" fill="{SOFT}">{element_text(said)}'
            f"<title>{element_text(words[column][1])}</title></text>"
        )
    parts.append(f'<text x="{NAMES}" y="{bottom + 30:g}" fill="{SOFT}">{element_text(second)}</text>')
    return draw_frame(title, parts, WIDTH, bottom + 38)
