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

Memory and work grow with the bytes of a bundle, whatever its shape. Every value stands once, in a tree, and a path is
looked up when a rule asks for it. Too deep, too long and too many is refused while the tree is built.
"""

from __future__ import annotations

import re
import uuid
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from concilium.errors import PolicyError
from concilium.policy.actions import (
    MOST_NODES,
    MOST_RELATIONS,
    TOO_MANY,
    ConstraintGraphs,
    Decision,
    Deed,
    Transaction,
)
from concilium.policy.functions import Change
from concilium.policy.judging import is_missing
from concilium.policy.language import Eliminate
from concilium.policy.matching import each
from concilium.records.columns import label

DEEPEST = 50
DEEPEST_RESOURCES = 5
"""How many resources may lie in each other: a bundle in a bundle, parameters, a resource and what it contains."""
LONGEST_PATH = 500
LONGEST_ID = 64
"""Of an id and of a resourceType, as FHIR has it."""

_FIELD = re.compile(r"_?[A-Za-z][A-Za-z0-9]*")
_ADDRESS = re.compile(r"(?:.*/)?(?P<local>[A-Z][A-Za-z]*/[^/#?]+?)(?:/_history/[^/]*)?", re.DOTALL)
_KINDS = frozenset({dict, str, int, float, bool, type(None)})
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")


@dataclass(eq=False, slots=True)
class _Leaf:
    """One value of a resource: what it was, what it has become, and the resource it is the address of, if any."""

    before: Any
    owner: _Resource | None = None
    in_extension: bool = False
    is_type: bool = False
    leads_to: _Resource | None = None
    now: Any = None
    gone: bool = False

    def __post_init__(self) -> None:
        self.now = self.before

    @property
    def changed(self) -> bool:
        return self.gone or self.now != self.before


@dataclass(eq=False, slots=True)
class _Branch:
    """An object, with its fields in order."""

    fields: dict[str, Item] = field(default_factory=dict)
    gone: bool = False


Item = _Leaf | _Branch | list[Any]


@dataclass(eq=False)
class _Resource:
    """A node: the object it came as, its id and its address."""

    branch: _Branch
    kind: str
    position: int
    entry: int
    id: _Leaf
    url: str | None = None
    named_by_url: bool = False

    def find(self, path: str) -> list[Item]:
        """What stands at a path: the field itself in every object there, and its extensions."""
        if self.named_by_url and path == "id":
            return [self.id]
        items: list[Item] = [self.branch]
        for name in path.split("."):
            items = [
                branch.fields[key]
                for branch in _objects(items)
                for key in (name, f"_{name}")
                if key in branch.fields and not name.startswith("_")
            ]
        return items

    def leaves(self, path: str | None = None) -> Iterator[_Leaf]:
        """All values at a path and beneath it, or of the whole resource."""
        if path is None and self.named_by_url:
            yield self.id
        yield from _all_leaves(self.find(path) if path is not None else self.branch)

    @cached_property
    def attributes(self) -> _ResourceAttributes:
        return _ResourceAttributes(self)

    @property
    def changed(self) -> bool:
        return any(leaf.changed for leaf in self.leaves())

    @property
    def local(self) -> str | None:
        """The address that needs no server."""
        return None if self.id.before is None else f"{self.kind}/{self.id.before}"


class _ResourceAttributes(Mapping[str, Any]):
    """Each path of a resource with its own values, or with all beneath it; looked up once, when a rule asks for it."""

    def __init__(self, resource: _Resource) -> None:
        self._resource = resource
        self._looked_up: dict[str, Any] = {}

    def __getitem__(self, path: str) -> Any:
        value = self.get(path)
        if value is None:
            raise KeyError(path)
        return value

    def get(self, path: str, default: Any = None) -> Any:
        if path not in self._looked_up:
            self._looked_up[path] = self._look_up(path)
        value = self._looked_up[path]
        return default if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._resource.branch.fields)

    def __len__(self) -> int:
        return len(self._resource.branch.fields)

    def values(self) -> Any:
        """Every value once, however deep it lies."""
        return (leaf.before for leaf in self._resource.leaves())

    def _look_up(self, path: str) -> Any:
        items = self._resource.find(path)
        own = [leaf for leaf in _values(items) if not leaf.in_extension]
        leaves = own or list(_all_leaves(items))
        values = [leaf.before for leaf in leaves if leaf.before is not None]
        return values[0] if len(values) == 1 else values if leaves else None


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


class _Place(NamedTuple):
    """Where a value of a bundle stands: in which entry and resource, at which path of it, how deep."""

    entry: int
    owner: _Resource | None = None
    path: str = ""
    depth: int = 0
    resources: int = 0
    in_extension: bool = False


class _Exchange:
    """A bundle, taken apart so that rules can reach every value in it."""

    def __init__(self, bundle: Any) -> None:
        if not isinstance(bundle, dict) or bundle.get("resourceType") != "Bundle":
            raise PolicyError("a FHIR message is a Bundle; put the resource into one as an entry")
        entries = bundle.get("entry", [])
        if not isinstance(entries, list):
            raise PolicyError("the entries of a bundle are a list")
        if len(entries) > MOST_NODES:
            raise PolicyError(TOO_MANY)
        self.kind = bundle.get("type")
        if self.kind is not None and not (
            isinstance(self.kind, str) and re.fullmatch("[a-z-]{1,40}", self.kind)
        ):
            raise PolicyError("the type of a bundle is a code, such as collection")
        self.resources: list[_Resource] = []
        self.edges: list[tuple[int, int]] = []
        self.paths: list[str] = []
        self.addresses: list[_Leaf | None] = []
        self.tops: list[_Resource] = []
        self.requests: list[dict[str, Any] | None] = []
        self.texts: list[_Leaf] = []
        self.reference_paths: dict[_Leaf, str] = {}
        for number, entry in enumerate(entries, start=1):
            self._open_entry(number, entry)
        self._find_addresses()
        self.attributes = [resource.attributes for resource in self.resources]
        self._originals: dict[int, Mapping[str, Any]] = {}

    def substitute(self, deed: Deed, nodes: int) -> None:
        """Change the values of an attribute, or of all of them; what cannot be changed is taken out."""
        assert deed.change_for is not None
        for index in each(nodes):
            resource = self.resources[index]
            change = deed.change_for(self._original(index))
            path = deed.action.attribute
            for leaf in resource.leaves(path):
                if path is not None or not leaf.is_type:
                    _change(leaf, change)

    def eliminate(self, path: str | None, nodes: int) -> None:
        """Take out a path with everything beneath it, or the whole resource."""
        for index in each(nodes):
            resource = self.resources[index]
            if path is None:
                _take_out(resource.branch)
                resource.id.gone = True
            for leaf in () if path is None else resource.leaves(path):
                leaf.gone = True

    def cut(self, edges: int) -> None:
        """Take out references; what is contained in another resource cannot be without it, and goes."""
        cut = {self.addresses[index] for index in each(edges)}
        for index in each(edges):
            if self.addresses[index] is None:
                self.eliminate(None, 1 << self.edges[index][1])
        for top in self.tops if cut - {None} else ():
            for branch in _all_branches(top.branch):
                reference = branch.fields.get("reference")
                if isinstance(reference, _Leaf) and reference in cut:
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
        place = len(self.resources)
        self._open_object(content, _Place(number))
        resource = self.resources[place]
        resource.url = url
        if resource.id.before is None and url is not None:
            resource.id, resource.named_by_url = _Leaf(re.split("[:/]", url)[-1]), True
        self.tops.append(resource)
        self.requests.append(self._open_request(number, entry.get("request"), resource))

    def _open_request(self, number: int, request: Any, resource: _Resource) -> dict[str, Any] | None:
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

    def _open_object(self, content: dict[Any, Any], place: _Place) -> _Branch:
        """An object and all in it."""
        if place.depth == DEEPEST:
            raise PolicyError(f"the resource of entry {place.entry} is nested more than {DEEPEST} deep")
        if len(place.path) > LONGEST_PATH:
            raise PolicyError(
                f"the resource of entry {place.entry} has a path of more than {LONGEST_PATH} characters"
            )
        branch = _Branch()
        kind = content.get("resourceType")
        if isinstance(kind, str):
            place = self._open_resource(branch, kind, place)
        for name, value in content.items():
            if not isinstance(name, str) or not _FIELD.fullmatch(name):
                raise PolicyError(
                    f"the resource of entry {place.entry} has a field whose name is not one of FHIR's"
                )
            item = branch.fields[name] = self._open_value(value, name, place)
            if name == "resourceType" and isinstance(item, _Leaf):
                item.is_type = True
            if name == "id" and isinstance(kind, str) and not place.in_extension:
                for leaf in _values([item]):
                    self._name(place, leaf)
        return branch

    def _open_resource(self, branch: _Branch, kind: str, place: _Place) -> _Place:
        """Make a node of a resource and join it to the one around it."""
        if len(self.resources) == MOST_NODES:
            raise PolicyError(TOO_MANY)
        if len(kind) > LONGEST_ID:
            raise PolicyError(f"a resourceType in entry {place.entry} has more than {LONGEST_ID} characters")
        if place.resources == DEEPEST_RESOURCES:
            raise PolicyError(
                f"entry {place.entry} has more than {DEEPEST_RESOURCES} resources inside each other"
            )
        inner = _Resource(branch, kind, len(self.resources), place.entry, _Leaf(None))
        if place.owner is not None:
            self._join(place.owner, inner, place.path, None)
        self.resources.append(inner)
        return place._replace(owner=inner, path="", resources=place.resources + 1)

    def _name(self, place: _Place, leaf: _Leaf) -> None:
        assert place.owner is not None
        if leaf.before is not None and len(label(leaf.before)) > LONGEST_ID:
            raise PolicyError(f"an id in entry {place.entry} has more than {LONGEST_ID} characters")
        place.owner.id = leaf

    def _open_value(self, value: Any, name: str, place: _Place) -> Item:
        items = value if isinstance(value, list) else [value]
        kinds = {*map(type, items)}
        if not kinds <= _KINDS:
            problem = "has a list inside a list; no rule could see it"
            if list not in kinds:
                problem = "holds something that is not JSON"
            raise PolicyError(f"the resource of entry {place.entry} {problem}")
        inside = place.in_extension or name.startswith("_")
        below = place
        if dict in kinds:
            plain = name.removeprefix("_")
            path = f"{place.path}.{plain}" if place.path else plain
            below = place._replace(path=path, depth=place.depth + 1, in_extension=inside)
        opened = [
            self._open_object(item, below)
            if type(item) is dict
            else self._open_leaf(item, name, place, inside)
            for item in items
        ]
        return opened if isinstance(value, list) else opened[0]

    def _open_leaf(self, value: Any, name: str, place: _Place, inside: bool) -> _Leaf:
        if value != value:
            raise PolicyError(f"the resource of entry {place.entry} holds something that is not JSON")
        leaf = _Leaf(value, place.owner, inside)
        if type(value) is str:
            self.texts.append(leaf)
            if name == "reference":
                self.reference_paths[leaf] = place.path
        return leaf

    def _join(self, resource: _Resource, target: _Resource, path: str, address: _Leaf | None) -> None:
        """An edge: the reference at a path of a resource, or what is contained in it there."""
        if len(self.edges) == MOST_RELATIONS:
            raise PolicyError(TOO_MANY)
        self.edges.append((resource.position, target.position))
        self.paths.append(path)
        self.addresses.append(address)

    def _find_addresses(self) -> None:
        """Find out which values are addresses of resources of this bundle: references must be, others may be."""
        by_address: dict[str, _Resource] = {}
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
        for leaf in self.texts:
            owner = leaf.owner
            assert owner is not None
            leaf.leads_to = (
                by_address.get(leaf.before)
                or inside.get((owner.entry, leaf.before))
                or _resolve(leaf.before, by_address)
            )
            path = self.reference_paths.get(leaf)
            if path is None or leaf.leads_to is owner:
                continue
            if leaf.leads_to is None:
                raise PolicyError(
                    f"the resource of entry {owner.entry} refers to a resource that is not in the bundle"
                )
            self._join(owner, leaf.leads_to, path, leaf)

    def _original(self, index: int) -> Mapping[str, Any]:
        """The attributes of a resource, with the patient it is about: dates of one patient move together."""
        if index not in self._originals:
            resource = self.resources[index]
            patients = {resource} if resource.kind == "Patient" else set()
            if not patients:
                targets = {leaf.leads_to for leaf in resource.leaves()}
                patients = {target for target in targets if target is not None and target.kind == "Patient"}
            number = next(iter(patients)).id.before if len(patients) == 1 else None
            patient = {} if number is None else {"patient": number}
            self._originals[index] = ChainMap(patient, self.attributes[index])  # type: ignore[arg-type]
        return self._originals[index]

    def _follow(self, changed: set[int]) -> None:
        """Let addresses follow the ids they lead to, and references say nothing more about what was changed."""
        for top in self.tops:
            for branch in _all_branches(top.branch):
                _follow_reference(branch, changed)
            for leaf in top.leaves():
                if leaf.leads_to is None or leaf.gone:
                    continue
                address = _rename(leaf.before, leaf.leads_to)
                if leaf.now == leaf.before:
                    leaf.now, leaf.gone = address, address is None
                elif address != leaf.before and str(leaf.leads_to.id.before) in str(leaf.now):
                    # A substitution of the address itself that leaves the old id in it.
                    leaf.gone = True


def _change(leaf: _Leaf, change: Change) -> None:
    if is_missing(leaf.now) or leaf.gone:
        return
    # An extension says something else about the same field; changed like the field it would make no sense.
    leaf.now = None if leaf.in_extension else change(leaf.now)
    leaf.gone = is_missing(leaf.now)


def _follow_reference(branch: _Branch, changed: set[int]) -> None:
    """Take out a reference to a resource that is gone, and all but the address of one to a resource that changed."""
    reference = branch.fields.get("reference")
    if not isinstance(reference, _Leaf) or (target := reference.leads_to) is None:
        return
    if target.id.gone or target.branch.gone:
        _take_out(branch)
    elif target.position in changed:
        for name, item in branch.fields.items():
            if name not in ("reference", "type"):
                _take_out(item)


def _rename(address: str, resource: _Resource) -> str | None:
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


def _resolve(text: str, by_address: Mapping[str, _Resource]) -> _Resource | None:
    """The resource at this address, if the server before it (where one is named) is the one it came from."""
    match = _ADDRESS.fullmatch(text)
    target = None if match is None else by_address.get(match["local"])
    if match is None or target is None:
        return None
    server = text[: match.start("local")]
    return target if not server or (target.url or "").startswith(server) else None


def _redirect(request: dict[str, Any], resource: _Resource) -> dict[str, Any] | None:
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
    if isinstance(item, _Branch):
        for inner in item.fields.values():
            _take_out(inner)


def _write(item: Item) -> Any:
    """What is left of a value: None, an empty object or an empty list where that is nothing."""
    if isinstance(item, _Leaf):
        return None if item.gone else item.now
    if isinstance(item, list):
        values = [_write(inner) for inner in item]
        # FHIR keeps lists of values and of their extensions in step by nulls, which mean nothing on their own.
        return [] if all(map(_is_nothing, values)) else values
    if item.gone:
        return {}
    written = {name: _write(inner) for name, inner in item.fields.items()}
    return _keep_in_step({name: value for name, value in written.items() if not _is_nothing(value)})


def _keep_in_step(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave nulls out of lists, but where a list of values goes with one of their extensions."""
    for name, value in fields.items():
        if isinstance(value, list):
            in_step = f"_{name}" in fields or (name.startswith("_") and name[1:] in fields)
            values = [None if _is_nothing(one) else one for one in value]
            fields[name] = values if in_step else [one for one in values if one is not None]
    return fields


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, dict | list) and not value)


def _values(items: list[Item]) -> Iterator[_Leaf]:
    """The values among items, and in lists of them; not what lies in objects."""
    for item in items:
        for one in item if isinstance(item, list) else (item,):
            if isinstance(one, _Leaf):
                yield one


def _objects(items: list[Item]) -> Iterator[_Branch]:
    for item in items:
        for one in item if isinstance(item, list) else (item,):
            if isinstance(one, _Branch):
                yield one


def _all_leaves(item: Item) -> Iterator[_Leaf]:
    """Every value of an item, in order, without recursion: it is asked of every value at every depth."""
    left: list[Item] = [item]
    while left:
        one = left.pop()
        if isinstance(one, _Leaf):
            yield one
        else:
            left += reversed(one if isinstance(one, list) else one.fields.values())


def _all_branches(item: Item) -> Iterator[_Branch]:
    for inner in (
        item if isinstance(item, list) else item.fields.values() if isinstance(item, _Branch) else ()
    ):
        yield from _all_branches(inner)
    if isinstance(item, _Branch):
        yield item
