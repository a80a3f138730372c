"""A shape model for other software: as JSON, as a CQL library, and as a PMML 4.4 Scorecard.

JSON has every cell as plain conditions with its log odds. A patient's log odds are the intercept and `log_odds` of the
one cell of each term whose conditions all hold; a number is the intercept and `adds` of these cells. A condition holds
where one of its `any_of` does: `from` (that number or more), `below`, `values`, `missing`, or `other` (any value that
no cell of the attribute lists). Where no cell of a term holds, the term adds nothing. A rule has a cell for each way in
which it may not hold, all with the same numbers; `share` is that of all of them.

CQL and PMML take the first cell whose condition is true. What stands for any other value comes last, without a
condition of its own. A comparison with null is not true in either, so that a value that no cell has adds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.models.cql import write_condition, write_literal, write_name
from concilium.models.intervals import WITHIN_95
from concilium.models.pmml import RISK, begin_document, data_field, join, predicate_of, xml_attributes
from concilium.models.threshold import probability
from concilium.protocol.attributes import MISSING, Attribute, find_runs
from concilium.records.columns import label
from concilium.shapes.body import ShapeBody, ShapeTerm
from concilium.shapes.reading import order_terms

Adapt = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.intp]]]


def to_json(body: ShapeBody) -> str:
    """The model as JSON; the term that moves risks most comes first."""
    sheet = body.sheet
    about: dict[str, Any] = {"range": body.range, "mean": body.mean}
    points = {"of_none": sheet.start, "of_one": sheet.unit}
    if body.binary:
        about = {
            "classes": body.classes,
            "predicts": body.classes[1],
            "threshold": None if body.decided is None else body.decided.threshold,
            "share_of_patients": body.mean,
        }
        points = {f"log_odds_{name}": value for name, value in points.items()}
    document = {
        "target": body.target,
        "query": body.query,
        **about,
        "intercept": body.intercept,
        "points": points,
        "terms": [
            {
                "attributes": [body.names[index] for index in term.cells.attributes],
                "cells": _list_cells(body, term),
            }
            for term in order_terms(body)
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _cross(body: ShapeBody, term: ShapeTerm) -> list[list[tuple[Attribute, list[int]]]]:
    """For each cell the codes of each of its attributes."""
    sizes = term.cells.sizes(body.attributes)
    sides = []
    for place, index in enumerate(term.cells.attributes):
        attribute = body.attributes[index]
        groups = term.cells.groups[place] if term.cells.groups else range(attribute.size)
        members = [[code for code, own in enumerate(groups) if own == group] for group in range(sizes[place])]
        sides.append([(attribute, codes) for codes in members])
    return [list(cell) for cell in product(*sides)]


def _number_cells(term: ShapeTerm, crossed: int) -> list[int]:
    """The number of the term's cell for each combination of its attributes' groups: a rule holds in the last one."""
    return [*[0] * (crossed - 1), 1] if term.cells.rule else list(range(crossed))


def _list_cells(body: ShapeBody, term: ShapeTerm) -> list[dict[str, Any]]:
    crossed = [[_describe(*one) for one in cell] for cell in _cross(body, term)]
    return [
        {
            "conditions": conditions,
            "log_odds" if body.binary else "adds": term.values[cell],
            "interval_95": [term.values[cell] + side * WITHIN_95 * term.errors[cell] for side in (-1, 1)],
            "points": term.points[cell],
            "share": term.shares[cell],
        }
        for cell, conditions in zip(_number_cells(term, len(crossed)), crossed, strict=True)
    ]


def _order_cells(body: ShapeBody, term: ShapeTerm) -> list[tuple[list[tuple[Attribute, list[Any]]], float]]:
    """The cells in the order in which they are tried: what each attribute has (bins of a number, None for missing),
    and log odds. An attribute that any other value will do for is not among them."""
    found = []
    crossed = _cross(body, term)
    for cell, number in zip(crossed, _number_cells(term, len(crossed)), strict=True):
        value = term.values[number]
        needed: list[tuple[Attribute, list[Any]]] = []
        for attribute, codes in cell:
            if attribute.other_cell in codes:
                continue
            listed: dict[int, Any] = dict(zip(attribute.cells, attribute.values, strict=True))
            if attribute.numeric:
                listed = {code: code - attribute.first for code in codes}
            if attribute.missing:
                listed[MISSING] = None
            held = [listed[code] for code in codes]
            needed.append((attribute, held))
        found.append((needed, value))
    return sorted(found, key=lambda one: -len(one[0]))


def to_cql(body: ShapeBody) -> str:
    """A definition for each term, their sum, and the risk; or the number that is predicted."""
    defined, names = [], []
    score = "log odds" if body.binary else body.target
    for term in order_terms(body):
        names.append(
            write_name(f"{score} of {body.name(term)}" if body.binary else f"{body.name(term)} adds")
        )
        lines = [f"define {names[-1]}: case"]
        otherwise = 0.0
        for needed, value in _order_cells(body, term):
            if needed:
                condition = " and ".join(
                    write_condition(one.name, held, one.edges if one.numeric else None)
                    for one, held in needed
                )
                lines.append(f"  when {condition} then {write_literal(float(value))}")
            else:
                otherwise = float(value)
        defined.append("\n".join([*lines, f"  else {write_literal(otherwise)} end"]))
    total = " + ".join([write_literal(float(body.intercept)), *names])
    defined.append(f"define {write_name(score)}: {total}")
    if body.binary:
        defined.append('define "risk": 1.0 / (1.0 + Exp(-"log odds"))')
    return "\n\n".join(defined) + "\n"


def to_pmml(body: ShapeBody) -> str:
    """A Scorecard of log odds, whose second output is the risk; or of the number that is predicted."""
    outcome = f"{body.target} = {label(body.classes[1])}" if body.binary else body.target
    about = f"Shapes for {outcome}" + (f", of patients with {body.query}" if body.query else "")
    score = "log odds" if body.binary else body.target
    fields = [
        line
        for one in body.attributes
        for line in data_field(one.name, () if one.numeric else one.values, one.numeric)
    ]
    lines = [
        *begin_document(about),
        f' <DataDictionary numberOfFields="{len(body.attributes)}">',
        *fields,
        " </DataDictionary>",
        f" <Scorecard{xml_attributes(modelName=body.target, initialScore=repr(float(body.intercept)))}"
        ' functionName="regression" useReasonCodes="false">',
        "  <MiningSchema>",
        *(
            f'   <MiningField{xml_attributes(name=one.name)} invalidValueTreatment="asIs"/>'
            for one in body.attributes
        ),
        "  </MiningSchema>",
        "  <Output>",
        f'   <OutputField{xml_attributes(name=score)} optype="continuous" dataType="double" '
        'feature="predictedValue"/>',
        *(RISK if body.binary else ()),
        "  </Output>",
        "  <Characteristics>",
    ]
    for term in order_terms(body):
        lines.append(f"   <Characteristic{xml_attributes(name=body.name(term))}>")
        cells = _order_cells(body, term)
        if cells[-1][0]:
            cells.append(([], 0.0))
        for needed, value in cells:
            predicates = [
                predicate_of(one.name, held, one.edges if one.numeric else None) for one, held in needed
            ]
            condition = join("and", predicates) if predicates else "<True/>"
            lines.append(f'    <Attribute partialScore="{float(value)!r}">{condition}</Attribute>')
        lines.append("   </Characteristic>")
    return "\n".join([*lines, "  </Characteristics>", " </Scorecard>", "</PMML>"]) + "\n"


def adapt_body(body: ShapeBody, adapt: Adapt | None) -> ShapeBody:
    """The shapes as a hospital adapts them: a shift and a slope of log odds."""
    if adapt is None:
        return body
    if not body.binary:
        raise ModelError("an adapted model of a number is not written for other software")
    risk = probability(np.array([0.0, 1.0]))
    shares, _ = adapt(np.column_stack([1 - risk, risk]))
    shift, end = np.log(shares[:, 1] / shares[:, 0]).tolist()
    terms = [
        msgspec.structs.replace(term, values=[(end - shift) * value for value in term.values])
        for term in body.terms
    ]
    return msgspec.structs.replace(body, terms=terms, intercept=shift + (end - shift) * body.intercept)


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
