"""What every site can be asked about, and the attributes that rules may be made of (section 2.2.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from concilium.protocol.attributes import Attribute, present, unite
from concilium.protocol.edges import MOST_EDGES
from concilium.protocol.schema import AskSchema, SchemaSeen, find_unbinned, say_lacking
from concilium.records.columns import Value


class AskRuleSchema(AskSchema, frozen=True, kw_only=True):
    """Which attributes, values and classes are there among the patients of this query, to make rules of?"""

    kind: ClassVar[str] = "rulefit.schema"
    merges: ClassVar[bool] = False

    def find_known(self, reply: SchemaSeen) -> Mapping[str, Sequence[Value | None]]:
        """Nothing: rules name values to every site, since a term is about all that its attribute can be."""
        return {}


def share_attributes(
    schemas: Mapping[str, SchemaSeen], bins: Mapping[str, Sequence[float]], wanted: Sequence[str] = ()
) -> tuple[list[Attribute], dict[str, str]]:
    """The attributes that every site has, and what is left out and why; `wanted` are those that the study names.

    A number has its public bins; whole numbers that the sites list as values have an edge between any two of them.
    """
    united, lacking = unite({site: schema.attributes for site, schema in schemas.items()})
    left_out = {name: "no site knows it" for name in wanted if name not in {*united, *lacking}}
    left_out |= {name: say_lacking(site) for name, site in lacking.items()} | find_unbinned(schemas)
    attributes = []
    for name, seen in united.items():
        values = present(seen.values)
        if name in left_out:
            continue
        if name in bins:
            attributes.append(Attribute(name, tuple(map(float, bins[name]))))
        elif len(values) < 2:
            left_out[name] = "the same for everybody"
        elif not seen.numeric or any(isinstance(value, str) for value in values):
            attributes.append(Attribute(name, (), values))
        elif len(values) > MOST_EDGES + 1:
            left_out[name] = f"a number with {len(values)} values; give bins for it"
        else:
            edges = [(low + high) / 2 for low, high in pairwise(float(value) for value in values)]
            attributes.append(Attribute(name, tuple(edges)))
    return attributes, left_out
