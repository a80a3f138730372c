"""FHIR bundles as transactions (docs/methods.md, section 3.5): resources become nodes, references become edges.

Every resource is a node, also one inside another (`contained`), which is then joined to it. Its attributes are its
fields by their path, without the numbers of list items: `birthDate`, `name.family`, `address.postalCode`. A path stands
for its own values, or where it has parts, for everything beneath it; so what is done to `name` is done to all there is
under `name`, known to us or not, and the extensions of a field (`_birthDate`) belong to the field.

Who is protected: the people in a bundle, from its recipient, as far as rules name what identifies them. It is a
filter, not a guarantee. What rules take out must not come back by another way: references and other addresses follow
an id that changes and go with one that goes; a bundle that was changed loses its narratives, which repeat fields in
prose, and references to a changed resource lose what they say about it. Of the bundle itself only its type goes
on. What cannot be read in this way is an error that does not repeat the data, and nothing is let out.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from concilium.errors import PolicyError
from concilium.policy.actions import ConstraintGraphs, Decision, Deed
from concilium.policy.functions import Change
from concilium.policy.judging import is_missing
from concilium.policy.language import Eliminate
from concilium.policy.matching import each
from concilium.policy.transaction import Transaction

DEEPEST = 50

_FIELD = re.compile(r"_?[A-Za-z][A-Za-z0-9]*")
_ADDRESS = re.compile(r"(?:.*/)?(?P<local>[A-Z][A-Za-z]*/[^/#?]+?)(?:/_history/[^/]*)?", re.DOTALL)
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")


@dataclass(eq=False)
class Leaf:
    """One value of a resource: what it was, what it has become, and the resource it is the address of, if any."""

    before: Any
    owner: Resource | None = None
    in_extension: bool = False
    is_type: bool = False
    leads_to: Resource | None = None
    now: Any = None
    gone: bool = False

    def __post_init__(self) -> None:
        self.now = self.before

    @property
    def changed(self) -> bool:
        return self.gone or self.now != self.before


@dataclass(eq=False)
class Branch:
    """An object, with its fields in order."""

    fields: dict[str, Item] = field(default_factory=dict)
    gone: bool = False


Item = Leaf | Branch | list[Any]


@dataclass(eq=False)
class Resource:
    """A node: the object it came as, its values by path (all beneath it, or its own alone), and its address."""

    branch: Branch
    kind: str
    position: int
    entry: int
    id: Leaf
    leaves: dict[str, list[Leaf]] = field(default_factory=dict)
    own: dict[str, list[Leaf]] = field(default_factory=dict)
    values: list[Leaf] = field(default_factory=list)
    url: str | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        """Each path with its own values, or with all beneath it."""
        by_path: dict[str, Any] = {}
        for path, leaves in self.leaves.items():
            values = [leaf.before for leaf in self.own.get(path, leaves) if leaf.before is not None]
            by_path[path] = values[0] if len(values) == 1 else values
        return by_path

    @property
    def changed(self) -> bool:
        return self.id.changed or any(leaf.changed for leaf in self.values)

    @property
    def local(self) -> str | None:
        """The address that needs no server."""
        return None if self.id.before is None else f"{self.kind}/{self.id.before}"


def decide_bundle(graphs: ConstraintGraphs, bundle: Any) -> Decision:
    """What becomes of a FHIR bundle, and by which rules; the `graph` of the decision is the filtered bundle."""
    graphs.require_secret()
    exchange = _Exchange(bundle)
    relations = tuple({"path": path} for path in exchange.paths)
    plan = graphs.plan(Transaction(tuple(exchange.attributes), tuple(exchange.edges), relations))
    if plan.refused_by is not None:
        return Decision(None, plan.refused_by, plan.rules)
    for deed, nodes in plan.deeds:
        if deed.change_for is not None and not deed.to_edges:
            exchange.substitute(deed, nodes)
    for deed, nodes in plan.deeds:
        if deed.to_edges:
            exchange.cut(nodes)
        elif isinstance(deed.action, Eliminate):
            exchange.eliminate(deed.action.attribute, nodes)
    return Decision(exchange.write(), None, plan.rules)


def is_bundle(message: Any) -> bool:
    """Whether a message is meant as FHIR, rather than as a graph of ours."""
    return isinstance(message, Mapping) and "resourceType" in message


class _Exchange:
    """A bundle, taken apart so that rules can reach every value in it."""

    def __init__(self, bundle: Any) -> None:
        if not isinstance(bundle, dict) or bundle.get("resourceType") != "Bundle":
            raise PolicyError("a FHIR message is a Bundle; put the resource into one as an entry")
        entries = bundle.get("entry", [])
        if not isinstance(entries, list):
            raise PolicyError("the entries of a bundle are a list")
        self.kind = bundle.get("type")
        if self.kind is not None and not (
            isinstance(self.kind, str) and re.fullmatch("[a-z-]{1,40}", self.kind)
        ):
            raise PolicyError("the type of a bundle is a code, such as collection")
        self.resources: list[Resource] = []
        self.edges: list[tuple[int, int]] = []
        self.paths: list[str] = []
        self.addresses: list[Leaf | None] = []
        self.tops: list[Resource] = []
        self.requests: list[dict[str, Any] | None] = []
        for number, entry in enumerate(entries, start=1):
            self._open_entry(number, entry)
        self._find_addresses()
        self.attributes = [resource.attributes for resource in self.resources]

    def substitute(self, deed: Deed, nodes: int) -> None:
        """Change the values of an attribute, or of all of them; what cannot be changed is taken out."""
        assert deed.change_for is not None
        for index in each(nodes):
            resource = self.resources[index]
            change = deed.change_for(self._original(index))
            path = deed.action.attribute
            if path is None:
                leaves = [leaf for leaf in (*resource.values, resource.id) if not leaf.is_type]
            else:
                leaves = resource.leaves.get(path, [])
            for leaf in dict.fromkeys(leaves):
                _change(leaf, change)

    def eliminate(self, path: str | None, nodes: int) -> None:
        """Take out a path with everything beneath it, or the whole resource."""
        for index in each(nodes):
            resource = self.resources[index]
            if path is None:
                _take_out(resource.branch)
                resource.id.gone = True
            for leaf in () if path is None else resource.leaves.get(path, ()):
                leaf.gone = True

    def cut(self, edges: int) -> None:
        """Take out references; what is contained in another resource cannot be without it, and goes."""
        cut = [self.addresses[index] for index in each(edges)]
        for index in each(edges):
            if self.addresses[index] is None:
                self.eliminate(None, 1 << self.edges[index][1])
        for top in self.tops if any(cut) else ():
            for branch in _all_branches(top.branch):
                reference = branch.fields.get("reference")
                if isinstance(reference, Leaf) and any(leaf is reference for leaf in cut):
                    _take_out(branch)

    def write(self) -> dict[str, Any]:
        """The bundle as it may go out."""
        changed = {resource.position for resource in self.resources if resource.changed}
        if changed:
            for resource in self.resources:
                if (narrative := resource.branch.fields.get("text")) is not None:
                    _take_out(narrative)
            self._follow(changed)
        entries = []
        for resource, request in zip(self.tops, self.requests, strict=True):
            content = _write(resource.branch)
            if resource.branch.gone or not content:
                continue
            entry: dict[str, Any] = {}
            url = _rename(resource.url, resource) if resource.url is not None else None
            if url is not None:
                entry["fullUrl"] = url
            entry["resource"] = content
            if request is not None and (redirect := _redirect(request, resource)) is not None:
                entry["request"] = redirect
            entries.append(entry)
        kind = {} if self.kind is None else {"type": self.kind}
        return {"resourceType": "Bundle", **kind, "entry": entries}

    def _open_entry(self, number: int, entry: Any) -> None:
        if not isinstance(entry, dict) or not isinstance(entry.get("resource"), dict):
            raise PolicyError(f"entry {number} has no resource; no rule could see what it is about")
        content = entry["resource"]
        if not isinstance(content.get("resourceType"), str):
            raise PolicyError(f"the resource of entry {number} does not say its resourceType")
        url = entry.get("fullUrl")
        if url is not None and not isinstance(url, str):
            raise PolicyError(f"the fullUrl of entry {number} is not text")
        branch = self._open_object(content, number, [], DEEPEST, False)
        resource = next(candidate for candidate in self.resources if candidate.branch is branch)
        resource.url = url
        if resource.id.before is None and url is not None:
            resource.id = Leaf(re.split("[:/]", url)[-1])
            resource.leaves["id"] = resource.own["id"] = [resource.id]
        self.tops.append(resource)
        self.requests.append(self._open_request(number, entry.get("request"), resource))

    def _open_request(self, number: int, request: Any, resource: Resource) -> dict[str, Any] | None:
        if request is None:
            return None
        fine = isinstance(request, dict) and request.keys() == {"method", "url"}
        places = [address for address in (resource.kind, resource.local, resource.url) if address is not None]
        if not fine or request["method"] not in _METHODS or request["url"] not in places:
            raise PolicyError(
                f"the request of entry {number} says more than a method and the address of its resource, which no "
                "rule could see"
            )
        return dict(request)

    def _open_object(
        self,
        content: dict[Any, Any],
        number: int,
        above: list[tuple[Resource, str]],
        depth: int,
        extension: bool,
    ) -> Branch:
        """An object and all in it; `above` are the resources it is part of, each with the path down to here."""
        if depth == 0:
            raise PolicyError(f"the resource of entry {number} is nested more than {DEEPEST} deep")
        branch = Branch()
        kind = content.get("resourceType")
        if isinstance(kind, str):
            inner = Resource(branch, kind, len(self.resources), number, Leaf(None))
            if above:
                self._join(above[-1][0], inner, above[-1][1], None)
            self.resources.append(inner)
            above = [*above, (inner, "")]
        for name, value in content.items():
            if not isinstance(name, str) or not _FIELD.fullmatch(name):
                raise PolicyError(
                    f"the resource of entry {number} has a field whose name is not one of FHIR's"
                )
            below = [
                (owner, f"{path}.{name.lstrip('_')}" if path else name.lstrip("_")) for owner, path in above
            ]
            inside = extension or name.startswith("_")
            item = branch.fields[name] = self._open_value(value, number, below, depth - 1, inside)
            if name == "resourceType" and isinstance(item, Leaf):
                item.is_type = True
        return branch

    def _open_value(
        self, value: Any, number: int, above: list[tuple[Resource, str]], depth: int, extension: bool
    ) -> Item:
        if isinstance(value, dict):
            return self._open_object(value, number, above, depth, extension)
        if isinstance(value, list):
            if any(isinstance(item, list) for item in value):
                raise PolicyError(
                    f"the resource of entry {number} has a list inside a list; no rule could see it"
                )
            return [self._open_value(item, number, above, depth, extension) for item in value]
        if type(value) not in (str, int, float, bool, type(None)) or value != value:
            raise PolicyError(f"the resource of entry {number} holds something that is not JSON")
        leaf = Leaf(value, above[-1][0], extension)
        for resource, path in above:
            if path == "id" and not extension:
                resource.id = leaf
            resource.values.append(leaf)
            if not extension:
                resource.own.setdefault(path, []).append(leaf)
            parts = path.split(".")
            for end in range(1, len(parts) + 1):
                resource.leaves.setdefault(".".join(parts[:end]), []).append(leaf)
        return leaf

    def _join(self, resource: Resource, target: Resource, path: str, address: Leaf | None) -> None:
        """An edge: the reference at a path of a resource, or what is contained in it there."""
        self.edges.append((resource.position, target.position))
        self.paths.append(path)
        self.addresses.append(address)

    def _find_addresses(self) -> None:
        """Find out which values are addresses of resources of this bundle: references must be, others may be."""
        by_address: dict[str, Resource] = {}
        for resource in self.tops:
            for address in {resource.local, resource.url} - {None}:
                other = by_address.setdefault(str(address), resource)
                if other is not resource:
                    raise PolicyError(
                        f"entries {other.entry} and {resource.entry} have the same address; resources must differ"
                    )
        inside = {(resource.entry, "#"): resource for resource in self.tops}
        for resource in self.resources:
            if resource.id.before is not None:
                inside[resource.entry, f"#{resource.id.before}"] = resource
        for resource in self.resources:
            for path, leaves in resource.own.items():
                for leaf in leaves:
                    if not isinstance(leaf.before, str) or leaf.owner is not resource:
                        continue
                    target = by_address.get(leaf.before) or inside.get((resource.entry, leaf.before))
                    if target is None:
                        target = _resolve(leaf.before, by_address)
                    is_reference = path.rpartition(".")[2] == "reference"
                    if target is None:
                        if is_reference:
                            raise PolicyError(
                                f"the resource of entry {resource.entry} refers to a resource that is not in the bundle"
                            )
                        continue
                    leaf.leads_to = target
                    if is_reference and resource is not target:
                        self._join(resource, target, path.rpartition(".")[0], leaf)

    def _original(self, index: int) -> dict[str, Any]:
        """The attributes of a resource, with the patient it is about: dates of one patient move together."""
        attributes = self.attributes[index]
        resource = self.resources[index]
        about = resource if resource.kind == "Patient" else None
        if about is None:
            patients = {
                leaf.leads_to.position: leaf.leads_to
                for leaf in resource.values
                if leaf.leads_to is not None and leaf.leads_to.kind == "Patient"
            }
            about = next(iter(patients.values())) if len(patients) == 1 else None
        return (
            attributes
            if about is None or about.id.before is None
            else {**attributes, "patient": about.id.before}
        )

    def _follow(self, changed: set[int]) -> None:
        """Let addresses follow the ids they lead to, and references say nothing more about what was changed."""
        for top in self.tops:
            for branch in _all_branches(top.branch):
                reference = branch.fields.get("reference")
                if not isinstance(reference, Leaf) or (target := reference.leads_to) is None:
                    continue
                if target.id.gone or target.branch.gone:
                    _take_out(branch)
                elif target.position in changed:
                    for name, item in branch.fields.items():
                        if name not in ("reference", "type"):
                            _take_out(item)
            for leaf in top.values:
                if leaf.leads_to is None or leaf.gone:
                    continue
                address = _rename(leaf.before, leaf.leads_to)
                if leaf.now == leaf.before:
                    leaf.now, leaf.gone = address, address is None
                elif address != leaf.before and str(leaf.leads_to.id.before) in str(leaf.now):
                    # A substitution of the address itself that leaves the old id in it.
                    leaf.gone = True


def _change(leaf: Leaf, change: Change) -> None:
    if is_missing(leaf.now) or leaf.gone:
        return
    # An extension says something else about the same field; changed like the field it would make no sense.
    leaf.now = None if leaf.in_extension else change(leaf.now)
    leaf.gone = is_missing(leaf.now)


def _rename(address: str, resource: Resource) -> str | None:
    """The address of a resource after what happened to its id; None where it has lost it."""
    if resource.branch.gone or resource.id.gone:
        return None
    if not resource.id.changed or address == "#":
        return address
    new = str(resource.id.now)
    if address.startswith("#"):
        return f"#{new}"
    if address.startswith("urn:"):
        is_hash = address.startswith("urn:uuid:") and re.fullmatch("[0-9a-f]{32}", new)
        return f"{address.rpartition(':')[0]}:{uuid.UUID(new) if is_hash else new}"
    match = _ADDRESS.fullmatch(address)
    if match is None or match["local"] != resource.local:
        return None
    # Without what came after the id: a version of it, which tells it apart again.
    return f"{address[: match.start('local')]}{resource.kind}/{new}"


def _resolve(text: str, by_address: Mapping[str, Resource]) -> Resource | None:
    """The resource at this address, if the server before it (where one is named) is the one it came from."""
    match = _ADDRESS.fullmatch(text)
    target = None if match is None else by_address.get(match["local"])
    if match is None or target is None:
        return None
    server = text[: match.start("local")]
    return target if not server or (target.url or "").startswith(server) else None


def _redirect(request: dict[str, Any], resource: Resource) -> dict[str, Any] | None:
    """What a transaction asks for, at the new address; without one, a resource can only be created."""
    if request["url"] == resource.kind:
        return request
    address = _rename(request["url"], resource)
    if address is not None:
        return {**request, "url": address}
    return {"method": "POST", "url": resource.kind} if request["method"] == "PUT" else None


def _take_out(item: Item) -> None:
    if isinstance(item, list):
        for inner in item:
            _take_out(inner)
        return
    item.gone = True
    if isinstance(item, Branch):
        for inner in item.fields.values():
            _take_out(inner)


def _write(item: Item) -> Any:
    """What is left of a value: None, an empty object or an empty list where that is nothing."""
    if isinstance(item, Leaf):
        return None if item.gone else item.now
    if isinstance(item, list):
        values = [_write(inner) for inner in item]
        # FHIR keeps lists of values and of their extensions in step by nulls, which mean nothing on their own.
        return [] if all(map(_is_nothing, values)) else values
    if item.gone:
        return {}
    fields = {name: _write(inner) for name, inner in item.fields.items()}
    fields = {name: value for name, value in fields.items() if not _is_nothing(value)}
    for name, value in fields.items():
        if isinstance(value, list):
            in_step = f"_{name}" in fields or (name.startswith("_") and name[1:] in fields)
            values = [None if _is_nothing(one) else one for one in value]
            fields[name] = values if in_step else [one for one in values if one is not None]
    return fields


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, dict | list) and not value)


def _all_branches(item: Item) -> Iterator[Branch]:
    for inner in item if isinstance(item, list) else item.fields.values() if isinstance(item, Branch) else ():
        yield from _all_branches(inner)
    if isinstance(item, Branch):
        yield item
