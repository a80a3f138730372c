"""A rule model for other software: as a PMML 4.4 Scorecard, and as a CQL library.

Both add up what each term adds to the log odds, or to the number that is predicted, in its own unit: a rule its
coefficient where it holds, a linear term its slope times the number held between its bounds, and nothing where that is
missing. A comparison with null is not true in either, so that a rule names what is missing where that fulfils it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.models.cql import write_condition, write_literal, write_name
from concilium.models.pmml import (
    RISK,
    begin_document,
    compare,
    data_field,
    join,
    predicate_of,
    xml_attributes,
)
from concilium.models.threshold import probability
from concilium.protocol.attributes import MISSING, Attribute
from concilium.records.columns import Value, label
from concilium.rulefit.body import RuleBody
from concilium.rulefit.terms import Line, Rule, Steps, list_attributes, read_codes

Adapt = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.intp]]]


def to_pmml(body: RuleBody) -> str:
    """A Scorecard of log odds, whose second output is the risk; or of the number that is predicted."""
    _check(body)
    used = _list_used(body)
    about = f"Rules for {_name_outcome(body)}" + (f", of patients with {body.query}" if body.query else "")
    score = "log odds" if body.outcome.binary else body.target
    lines = [
        *begin_document(about),
        f' <DataDictionary numberOfFields="{len(used)}">',
        *(
            line
            for one in used
            for line in data_field(one.name, () if one.numeric else one.values, one.numeric)
        ),
        " </DataDictionary>",
        f" <Scorecard{xml_attributes(modelName=body.target, initialScore=repr(_in_unit(body, body.intercept)))}"
        ' functionName="regression" useReasonCodes="false">',
        "  <MiningSchema>",
        *(f'   <MiningField{xml_attributes(name=one.name)} invalidValueTreatment="asIs"/>' for one in used),
        "  </MiningSchema>",
        "  <Output>",
        f'   <OutputField{xml_attributes(name=score)} optype="continuous" dataType="double" '
        'feature="predictedValue"/>',
        *(RISK if body.outcome.binary else ()),
        "  </Output>",
        "  <Characteristics>",
    ]
    for name, term, value in _list_terms(body):
        lines.append(f"   <Characteristic{xml_attributes(name=name)}>")
        lines += [f"    {one}" for one in _write_attributes(body, term, value)]
        lines.append("   </Characteristic>")
    if not body.taken:  # a Scorecard has a characteristic at least
        lines.append(
            '   <Characteristic name="none"><Attribute partialScore="0"><True/></Attribute></Characteristic>'
        )
    return "\n".join([*lines, "  </Characteristics>", " </Scorecard>", "</PMML>"]) + "\n"


def _write_attributes(body: RuleBody, term: Rule | Line | Steps, value: float) -> list[str]:
    """The cases of a term, of which the first that holds counts."""
    attributes = body.terms.attributes
    if isinstance(term, Line):
        name = attributes[term.attribute].name
        missing = predicate_of(name, [None], ())
        held = (
            f'<Apply function="min"><Constant>{float(term.high)!r}</Constant><Apply function="max">'
            f"<Constant>{float(term.low)!r}</Constant><FieldRef{xml_attributes(field=name)}/></Apply></Apply>"
        )
        moved = (
            f'<Apply function="*"><Constant>{float(value * term.scale)!r}</Constant><Apply function="-">{held}'
            f"<Constant>{float(term.center)!r}</Constant></Apply></Apply>"
        )
        return [
            f'<Attribute partialScore="0">{missing}</Attribute>',
            f"<Attribute><True/><ComplexPartialScore>{moved}</ComplexPartialScore></Attribute>",
        ]
    cases = [
        (
            join("and", [_write_predicate(attributes[index], codes) for index, codes in condition]),
            moved,
        )
        for condition, moved in _list_cases(term, value)
    ]
    return [
        *(f'<Attribute partialScore="{moved!r}">{holds}</Attribute>' for holds, moved in cases),
        '<Attribute partialScore="0"><True/></Attribute>',
    ]


def _list_cases(term: Rule | Steps, value: float) -> list[tuple[list[tuple[int, set[int]]], float]]:
    """The conditions of a term, each with what it adds."""
    if isinstance(term, Steps):
        return [
            ([(term.attribute, {code})], float(value * height))
            for code, height in enumerate(term.heights)
            if height
        ]
    return [([(condition[0], read_codes(condition)) for condition in term], value)]


def _split(attribute: Attribute, codes: set[int]) -> tuple[list[Value | None], list[Value] | None]:
    """The values that fulfil a condition (of a number its bins, None for missing), and where any value does that is
    not among others, these others."""
    held: list[Value | None] = [None] if MISSING in codes else []
    if attribute.numeric:
        return [*held, *(code - 1 for code in sorted(codes - {MISSING}))], None
    named = dict(enumerate(attribute.values, start=1))
    if attribute.size - 1 not in codes:
        return [*held, *(named[code] for code in sorted(codes - {MISSING}))], None
    return held, [value for code, value in named.items() if code not in codes]


def _write_predicate(attribute: Attribute, codes: set[int]) -> str:
    held, others = _split(attribute, codes)
    edges = attribute.edges if attribute.numeric else None
    if others is None:
        return predicate_of(attribute.name, held, edges)
    known = f'<SimplePredicate{xml_attributes(field=attribute.name)} operator="isNotMissing"/>'
    any_other = join("and", [known, *(compare(attribute.name, "notEqual", label(one)) for one in others)])
    return join("or", [predicate_of(attribute.name, held, edges), any_other]) if held else any_other


def to_cql(body: RuleBody) -> str:
    """A definition for each term, their sum, and the risk where there is one."""
    _check(body)
    defined, names, attributes = [], [], body.terms.attributes
    sums = "log odds" if body.outcome.binary else body.target
    for title, term, value in _list_terms(body):
        names.append(write_name(f"{sums} of {title}"))
        lines = [f"define {names[-1]}: case"]
        otherwise = write_literal(0.0)
        if isinstance(term, Line):
            name = write_name(attributes[term.attribute].name)
            low, high = (value * term.scale * (end - term.center) for end in (term.low, term.high))
            lines += [
                f"  when {name} is null then {write_literal(0.0)}",
                f"  when {name} < {write_literal(term.low)} then {write_literal(low)}",
                f"  when {name} >= {write_literal(term.high)} then {write_literal(high)}",
            ]
            otherwise = f"{write_literal(value * term.scale)} * ({name} - {write_literal(term.center)})"
        else:
            lines += [
                f"  when {' and '.join(_write_cql(attributes[index], codes) for index, codes in conditions)} "
                f"then {write_literal(moved)}"
                for conditions, moved in _list_cases(term, value)
            ]
        defined.append("\n".join([*lines, f"  else {otherwise} end"]))
    total = " + ".join([write_literal(_in_unit(body, body.intercept)), *names])
    defined.append(f"define {write_name(sums)}: {total}")
    if body.outcome.binary:
        defined.append('define "risk": 1.0 / (1.0 + Exp(-"log odds"))')
    return "\n\n".join(defined) + "\n"


def _write_cql(attribute: Attribute, codes: set[int]) -> str:
    held, others = _split(attribute, codes)
    edges = attribute.edges if attribute.numeric else None
    if others is None:
        return write_condition(attribute.name, held, edges)
    name = write_name(attribute.name)
    any_other = f"{name} is not null"
    if others:
        any_other += f" and not ({name} in {{{', '.join(map(write_literal, others))}}})"
    return f"({name} is null or ({any_other}))" if held else f"({any_other})"


def adapt_body(body: RuleBody, adapt: Adapt | None) -> RuleBody:
    """The rules as a hospital adapts them: a shift and a slope of log odds."""
    if adapt is None:
        return body
    if not body.outcome.binary:
        raise ModelError("an adapted model of a number is not written for other software")
    risk = probability(np.array([0.0, 1.0]))
    shares, _ = adapt(np.column_stack([1 - risk, risk]))
    shift, end = np.log(shares[:, 1] / shares[:, 0]).tolist()
    slope = end - shift
    return msgspec.structs.replace(
        body,
        coefficients=[slope * value for value in body.coefficients],
        intercept=shift + slope * body.intercept,
    )


def _check(body: RuleBody) -> None:
    if body.terms.norm is not None:
        raise ModelError(
            "a private RuleFit scales each patient's row down to a length, which is no sum of terms: neither PMML nor "
            "CQL can say it; export an exact or masked one, or private shapes"
        )


def _list_terms(body: RuleBody) -> list[tuple[str, Rule | Line | Steps, float]]:
    """The terms in the model: its name, and its coefficient in the unit of the outcome."""
    return [
        (
            body.name(one.column),
            body.terms.in_order[one.column],
            float(body.coefficients[one.column] * body.outcome.unit),
        )
        for one in body.taken
    ]


def _in_unit(body: RuleBody, predictor: float) -> float:
    return predictor if body.outcome.binary else float(body.outcome.unscale(np.array(predictor)))


def _list_used(body: RuleBody) -> list[Attribute]:
    used = {index for _, term, _ in _list_terms(body) for index in list_attributes(term)}
    return [body.terms.attributes[index] for index in sorted(used)]


def _name_outcome(body: RuleBody) -> str:
    return f"{body.target} = {label(body.classes[1])}" if body.outcome.binary else body.target
