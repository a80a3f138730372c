"""A tiny scorer of PMML TreeModels and Scorecards, written from the standard (4.4) and apart from the product."""

from __future__ import annotations

from xml.etree import ElementTree

NS = "{http://www.dmg.org/PMML-4_4}"

# Of the PMML 4.4 schema, what a TreeModel document of ours may hold: attributes (required ones first, then
# optional ones) and children in their order, with how often each may come.
SCHEMA = {
    "PMML": (["version"], [], ["Header:1", "DataDictionary:1", "TreeModel:1"]),
    "Header": ([], ["copyright", "description", "modelVersion"], ["Application:?"]),
    "Application": (["name"], ["version"], []),
    "DataDictionary": ([], ["numberOfFields"], ["DataField:+"]),
    "DataField": (["name", "optype", "dataType"], ["displayName"], ["Interval:*", "Value:*"]),
    "Value": (["value"], ["displayValue", "property"], []),
    "TreeModel": (
        ["functionName"],
        ["modelName", "algorithmName", "missingValueStrategy", "noTrueChildStrategy", "splitCharacteristic"],
        ["MiningSchema:1", "Output:?", "Node:1"],
    ),
    "MiningSchema": ([], [], ["MiningField:+"]),
    "MiningField": (["name"], ["usageType", "optype", "missingValueTreatment", "invalidValueTreatment"], []),
    "Output": ([], [], ["OutputField:+"]),
    "OutputField": (["name", "dataType"], ["optype", "feature", "value", "targetField"], []),
    "Node": (["score"], ["id", "recordCount"], ["PREDICATE:1", "ScoreDistribution:*", "Node:*"]),
    "ScoreDistribution": (["value", "recordCount"], ["confidence", "probability"], []),
    "SimplePredicate": (["field", "operator"], ["value"], []),
    "CompoundPredicate": (["booleanOperator"], [], ["PREDICATE:+"]),
    "True": ([], [], []),
}
PREDICATES = {"SimplePredicate", "CompoundPredicate", "True"}
CHOICES = {
    ("DataField", "optype"): {"categorical", "ordinal", "continuous"},
    ("DataField", "dataType"): {"string", "integer", "float", "double", "boolean"},
    ("TreeModel", "functionName"): {"classification"},
    ("TreeModel", "missingValueStrategy"): {"none", "lastPrediction", "nullPrediction", "defaultChild"},
    ("TreeModel", "noTrueChildStrategy"): {"returnNullPrediction", "returnLastPrediction"},
    ("TreeModel", "splitCharacteristic"): {"binarySplit", "multiSplit"},
    ("MiningField", "usageType"): {"active", "predicted", "target", "supplementary"},
    ("MiningField", "invalidValueTreatment"): {"returnInvalid", "asIs", "asMissing"},
    ("OutputField", "feature"): {"predictedValue", "probability", "confidence"},
    ("SimplePredicate", "operator"): {
        "equal",
        "notEqual",
        "lessThan",
        "lessOrEqual",
        "greaterThan",
        "greaterOrEqual",
        "isMissing",
        "isNotMissing",
    },
    ("CompoundPredicate", "booleanOperator"): {"or", "and", "xor", "surrogate"},
}


def check(element):
    """Whatever breaks the structure of PMML 4.4 fails an assertion."""
    waiting = [element]
    while waiting:
        here = waiting.pop()
        assert here.tag.startswith(NS), here.tag
        name = here.tag.removeprefix(NS)
        required, optional, children = SCHEMA[name]
        assert set(required) <= set(here.attrib) <= {*required, *optional}, (name, here.attrib)
        for attribute, value in here.attrib.items():
            assert value in CHOICES.get((name, attribute), {value}), (name, attribute, value)
        kinds = [child.tag.removeprefix(NS) for child in here]
        kinds = ["PREDICATE" if kind in PREDICATES else kind for kind in kinds]
        place = 0
        for child in children:
            wanted, times = child.split(":")
            count = 0
            while place < len(kinds) and kinds[place] == wanted:
                place, count = place + 1, count + 1
            assert {"1": count == 1, "?": count <= 1, "+": count >= 1, "*": True}[times], (
                name,
                wanted,
                count,
            )
        assert place == len(kinds), (name, kinds[place:])
        if name == "CompoundPredicate":
            assert len(here) >= 2
        waiting += here


class Scorer:
    """A document ready to score patients."""

    def __init__(self, text):
        self.root = ElementTree.fromstring(text)
        self.model = next(one for one in self.root if one.find(NS + "MiningSchema") is not None)
        self.types = {field.get("name"): field.get("dataType") for field in self.root.iter(NS + "DataField")}
        self.listed = {
            field.get("name"): {value.get("value") for value in field.findall(NS + "Value")}
            for field in self.root.iter(NS + "DataField")
        }
        self.fields = {field.get("name"): field for field in self.model.iter(NS + "MiningField")}

    def score(self, patient):
        """The predicted class and the probability of every class, as text."""
        values = {name: self.prepare(name, patient.get(name)) for name in self.types}
        node = self.model.find(NS + "Node")
        assert self.holds(node[0], values) is True
        while True:
            child = self.next(node, values)
            if child is None:
                break
            node = child
        shares = {s.get("value"): float(s.get("probability")) for s in node.findall(NS + "ScoreDistribution")}
        return node.get("score"), shares

    def add_up(self, patient):
        """The score of a Scorecard: of each characteristic the first attribute whose predicate is true."""
        values = {name: self.prepare(name, patient.get(name)) for name in self.types}
        total = float(self.model.get("initialScore"))
        for characteristic in self.model.iter(NS + "Characteristic"):
            holds = (one for one in characteristic.findall(NS + "Attribute") if self.holds(one[0], values))
            found = next(holds)
            worked_out = found.find(NS + "ComplexPartialScore")
            total += (
                float(found.get("partialScore"))
                if worked_out is None
                else self.work_out(worked_out[0], values)
            )
        return total

    def work_out(self, expression, values):
        """The number that an expression stands for."""
        kind = expression.tag.removeprefix(NS)
        if kind == "Constant":
            return float(expression.text)
        if kind == "FieldRef":
            return float(values[expression.get("field")])
        parts = [self.work_out(part, values) for part in expression]
        if expression.get("function") in ("min", "max"):
            return {"min": min, "max": max}[expression.get("function")](parts)
        one, other = parts
        return {"*": one * other, "-": one - other}[expression.get("function")]

    def next(self, node, values):
        """The first child whose predicate is true; a comparison with a missing value is not (strategy `none`)."""
        assert self.model.get("missingValueStrategy") == "none"
        assert self.model.get("noTrueChildStrategy") == "returnLastPrediction"
        for child in node.findall(NS + "Node"):
            if self.holds(child[0], values):
                return child
        return None

    def prepare(self, name, value):
        """A value as the mining schema lets it through."""
        if value is None:
            return None
        if isinstance(value, bool):
            text = str(value).lower()
        else:
            text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        if self.listed[name] and text not in self.listed[name]:
            treatment = self.fields[name].get("invalidValueTreatment", "returnInvalid")
            assert treatment != "returnInvalid", "a value outside the dictionary would have no result"
            text = None if treatment == "asMissing" else text
        if text is None or self.types[name] in ("string", "boolean"):
            return text
        try:
            return float(value)
        except ValueError:
            return text

    def holds(self, predicate, values):
        kind = predicate.tag.removeprefix(NS)
        if kind == "True":
            return True
        if kind == "CompoundPredicate":
            together = {"and": all, "or": any}[predicate.get("booleanOperator")]
            return together(self.holds(part, values) for part in predicate)
        value, operator = values[predicate.get("field")], predicate.get("operator")
        if operator in ("isMissing", "isNotMissing"):
            return (value is None) == (operator == "isMissing")
        if value is None:
            return False
        other = predicate.get("value")
        if self.types[predicate.get("field")] not in ("string", "boolean"):
            if isinstance(value, str):
                return False
            other = float(other)
        return {
            "equal": lambda: value == other,
            "notEqual": lambda: value != other,
            "lessThan": lambda: value < other,
            "greaterOrEqual": lambda: value >= other,
        }[operator]()
