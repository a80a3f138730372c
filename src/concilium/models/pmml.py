"""Parts of PMML 4.4 documents, which the engines inside hospital systems score."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

import concilium
from concilium.models.pictures import printable
from concilium.protocol.attributes import find_runs
from concilium.records.columns import Value, label

NAMESPACE = "http://www.dmg.org/PMML-4_4"
# The second output of a score of log odds.
RISK = (
    '   <OutputField name="risk" optype="continuous" dataType="double" feature="transformedValue">',
    '    <Apply function="/"><Constant>1</Constant><Apply function="+"><Constant>1</Constant>'
    '<Apply function="exp"><Apply function="-"><Constant>0</Constant><FieldRef field="log odds"/></Apply>'
    "</Apply></Apply></Apply>",
    "   </OutputField>",
)


def begin_document(about: str) -> list[str]:
    """The first lines of a document."""
    return [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<PMML xmlns="{NAMESPACE}" version="4.4">',
        f" <Header{xml_attributes(description=about)}>",
        f"  <Application{xml_attributes(name='Concilium', version=concilium.__version__)}/>",
        " </Header>",
    ]


def predicate_of(attribute: str, values: Sequence[Value | None], edges: Sequence[float] | None) -> str:
    """What a patient must fulfil to take the branches for these values."""
    named = [value for value in values if value is not None]
    missing = f'<SimplePredicate{xml_attributes(field=attribute)} operator="isMissing"/>'
    if edges is None:
        parts = [compare(attribute, "equal", label(value)) for value in named]
    else:
        parts = [_within(attribute, *run, edges) for run in find_runs(map(int, named))]
    return join("or", [missing, *parts] if None in values else parts)


def _within(attribute: str, first: int, last: int, edges: Sequence[float]) -> str:
    """The bins from first to last."""
    lower = [compare(attribute, "greaterOrEqual", repr(float(edges[first - 1])))] if first else []
    upper = [compare(attribute, "lessThan", repr(float(edges[last])))] if last < len(edges) else []
    any_value = f'<SimplePredicate{xml_attributes(field=attribute)} operator="isNotMissing"/>'
    return join("and", [*lower, *upper] or [any_value])


def join(operator: str, predicates: Sequence[str]) -> str:
    """One predicate of several; PMML has a compound of two at least."""
    if len(predicates) == 1:
        return predicates[0]
    return f'<CompoundPredicate booleanOperator="{operator}">{"".join(predicates)}</CompoundPredicate>'


def compare(attribute: str, operator: str, value: str) -> str:
    """A comparison with a value."""
    return f"<SimplePredicate{xml_attributes(field=attribute, operator=operator, value=value)}/>"


def data_field(name: str, values: Sequence[Value], continuous: bool) -> list[str]:
    """An entry of the data dictionary."""
    if continuous:
        return [f'  <DataField{xml_attributes(name=name)} optype="continuous" dataType="double"/>']
    return [
        f'  <DataField{xml_attributes(name=name)} optype="categorical" dataType="{_data_type(values)}">',
        *(f"   <Value{xml_attributes(value=label(value))}/>" for value in values),
        "  </DataField>",
    ]


def _data_type(values: Sequence[Value]) -> str:
    """The PMML type that holds all of these values."""
    if all(isinstance(value, bool) for value in values):
        return "boolean"
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return "integer" if all(float(value).is_integer() for value in values) else "double"
    return "string"


def output_field(value: Value) -> str:
    name = f"probability({label(value)})"
    return (
        f'   <OutputField{xml_attributes(name=name)} optype="continuous" dataType="double" feature="probability"'
        f"{xml_attributes(value=label(value))}/>"
    )


def xml_attributes(**named: str) -> str:
    """XML attributes, each after a space."""
    return "".join(f" {name}={quoteattr(printable(value))}" for name, value in named.items())
