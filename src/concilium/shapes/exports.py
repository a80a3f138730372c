"""A shape model for other software: every cell as plain conditions with its log odds, as JSON.

A patient's log odds are the intercept and `log_odds` of the one cell of each term whose conditions all hold. A
condition holds where one of its `any_of` does: `from` (that number or more), `below`, `values`, `missing`, or `other`
(any value that no cell of the attribute lists). Where no cell of a term holds, the term adds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from concilium.protocol.attributes import MISSING, Attribute, find_runs
from concilium.shapes.body import ShapeBody, ShapeTerm
from concilium.shapes.reading import WITHIN_95, order_terms


def to_json(body: ShapeBody) -> str:
    """The model as JSON; the term that moves risks most comes first."""
    sheet = body.sheet
    document = {
        "target": body.target,
        "query": body.query,
        "classes": body.classes,
        "predicts": body.classes[1],
        "threshold": None if body.decided is None else body.decided.threshold,
        "share_of_patients": body.mean,
        "intercept": body.intercept,
        "points": {"log_odds_of_none": sheet.start, "log_odds_of_one": sheet.unit},
        "terms": [
            {
                "attributes": [body.names[index] for index in term.cells.attributes],
                "cells": _list_cells(body, term),
            }
            for term in order_terms(body)
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _list_cells(body: ShapeBody, term: ShapeTerm) -> list[dict[str, Any]]:
    sizes = term.cells.sizes(body.attributes)
    sides = []
    for place, index in enumerate(term.cells.attributes):
        attribute = body.attributes[index]
        groups = term.cells.groups[place] if term.cells.groups else range(attribute.size)
        members = [[code for code, own in enumerate(groups) if own == group] for group in range(sizes[place])]
        sides.append([_describe(attribute, codes) for codes in members])
    crossed = [[one] for one in sides[0]] if len(sides) == 1 else [[a, b] for a in sides[0] for b in sides[1]]
    return [
        {
            "conditions": conditions,
            "log_odds": term.values[cell],
            "interval_95": [term.values[cell] + side * WITHIN_95 * term.errors[cell] for side in (-1, 1)],
            "points": term.points[cell],
            "share": term.shares[cell],
        }
        for cell, conditions in enumerate(crossed)
    ]


def _describe(attribute: Attribute, codes: Sequence[int]) -> dict[str, Any]:
    """What holds of a patient with one of these codes of an attribute."""
    any_of: list[dict[str, Any]] = []
    if attribute.missing and MISSING in codes:
        any_of.append({"missing": True})
    if attribute.numeric:
        edges = attribute.edges
        for first, last in find_runs(code - attribute.first for code in codes if code >= attribute.first):
            lower = {"from": edges[first - 1]} if first else {}
            any_of.append({**lower, **({"below": edges[last]} if last < len(edges) else {})})
    else:
        values = dict(zip(attribute.cells, attribute.values, strict=True))
        if listed := [values[code] for code in codes if code in values]:
            any_of.append({"values": listed})
        if attribute.other_cell in codes:
            any_of.append({"other": True})
    return {"attribute": attribute.name, "any_of": any_of}
