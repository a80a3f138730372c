"""Questions about attributes whose values are hidden: each site is told, with the question, its own values only.

A region is told the values of all its sites, and tells each of them that site's own (docs/methods.md, 1.17).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from concilium.errors import MessageError
from concilium.federation.attributes import Attribute, OwnValues
from concilium.federation.messages import decode, encode
from concilium.federation.questions import Summed
from concilium.federation.schema import AskSchema, ConditionalSchema, SchemaSeen, place_own
from concilium.records.columns import Value, label

if TYPE_CHECKING:
    from concilium.federation.undertaking import Undertaking


class Conditional(Summed, frozen=True, kw_only=True):
    """A question that goes with a conditional schema: what the house makes of the sites' own metadata."""

    attributes: tuple[Attribute, ...]

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    def read_template(self, template: bytes) -> ConditionalSchema:
        """What this site is told of the schema; MessageError unless it fits the question."""
        conditional = decode(template, ConditionalSchema)
        if len(conditional.attributes) != len(self.attributes):
            raise MessageError("the conditional schema does not fit the question")
        return conditional

    def check_told(self, release: str) -> None:
        """MessageError unless values are hidden under `exact`, where each site is told its own, and stated under masks:
        a house that told each site something else could have them count into cells of their own, and read one site's
        numbers off the sum."""
        if any(bool(one.values) if release == "exact" else bool(one.hidden) for one in self.named):
            raise MessageError("under masks, and only there, all sites are told one common schema")

    @property
    def hides_values(self) -> bool:
        """Whether each site is told its own values."""
        return any(attribute.hidden for attribute in self.named)

    def asked_before(self, study: Undertaking[Any]) -> AskSchema:
        asked = {name: value for name, value in study.get_params().items() if name in ("bins", "attributes")}
        return AskSchema(query=study.query, target=study.must_know, **asked)

    def tell_on(self, template: bytes, replies: Mapping[str, SchemaSeen]) -> dict[str, bytes]:
        conditional = self.read_template(template)
        return {site: encode(self._narrow(conditional, seen)) for site, seen in replies.items()}

    def _narrow(self, regional: ConditionalSchema, seen: SchemaSeen) -> ConditionalSchema:
        """A region's conditional schema for one of its sites."""
        values = {attribute.name: attribute.values for attribute in seen.attributes}
        if any(attribute.name not in values for attribute in self.attributes):
            raise MessageError("the conditional schema does not fit the question")
        pairs = zip(self.attributes, regional.attributes, strict=True)
        return ConditionalSchema(
            classes=narrow(regional.classes, seen.classes),
            attributes=[narrow(own, values[attribute.name]) for attribute, own in pairs],
        )


def narrow(regional: OwnValues, values: Sequence[Value | None]) -> OwnValues:
    """Where a site's values stand, of those that its region was told."""
    try:
        return place_own(dict(zip(map(label, regional.values), regional.cells, strict=False)), values)
    except KeyError:
        raise MessageError("the conditional schema does not know a value of this region") from None
