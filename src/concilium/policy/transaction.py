"""A transaction: a message as a graph of nodes and edges with plain attributes (docs/methods.md, section 3.3).

`{"nodes": [{"id": "a", "sex": "f"}, ...], "edges": [["a", "b"], ["a", "c", {"kind": "treats"}]]}`. What no rule could
see (other parts of a message, values inside values, attributes of an edge from a node to itself) is refused, and an
error never repeats the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concilium.errors import PolicyError

TransactionNode = Mapping[str, Any]

# Sets of nodes are integers with a bit for each: more would let one small message take minutes and gigabytes.
MOST_NODES = 20_000
MOST_RELATIONS = 100_000
TOO_MANY = f"a message may have at most {MOST_NODES:,} nodes and {MOST_RELATIONS:,} edges; send it in parts"

_PLAIN_KINDS = frozenset({str, int, float, bool, type(None)})
_NOTHING: TransactionNode = {}


@dataclass(frozen=True)
class Transaction:
    """A graph that was checked: nodes with plain attributes, edges between nodes that are there."""

    nodes: tuple[TransactionNode, ...]
    edges: tuple[tuple[int, int], ...]
    relations: tuple[TransactionNode, ...]

    def __post_init__(self) -> None:
        if len(self.nodes) > MOST_NODES or len(self.edges) > MOST_RELATIONS:
            raise PolicyError(TOO_MANY)

    @classmethod
    def read(cls, graph: Any) -> Transaction:
        """The graph, or a PolicyError that says which part of it is wrong (and not what it holds)."""
        if not isinstance(graph, Mapping) or not isinstance(graph.get("nodes"), list | tuple):
            raise PolicyError(
                'a transaction is {"nodes": [...], "edges": [...]}; this one has no list of nodes'
            )
        if not graph.keys() <= {"nodes", "edges"}:
            raise PolicyError(
                "a transaction has nodes and edges and nothing else: no rule would see the rest"
            )
        nodes = tuple(graph["nodes"])
        for position, node in enumerate(nodes, start=1):
            if not isinstance(node, dict) or not _is_plain(node):
                _check_attributes(node, f"node {position}", '{"id": "a", "sex": "f"}')
        ends: list[tuple[int, int]] = []
        relations: list[TransactionNode] = []
        for pair, relation in _read_edges(nodes, graph.get("edges", ())):
            ends.append(pair)
            relations.append(relation)
        return cls(nodes, tuple(ends), tuple(relations))

    def copy(self) -> list[dict[str, Any]]:
        """The nodes, free to be changed."""
        return [dict(node) if list not in map(type, node.values()) else _copy(node) for node in self.nodes]

    def copy_relations(self) -> list[dict[str, Any]]:
        """What the edges have, free to be changed."""
        return [_copy(relation) if relation else {} for relation in self.relations]


def _copy(node: TransactionNode) -> dict[str, Any]:
    return {name: list(value) if value.__class__ is list else value for name, value in node.items()}


def _is_plain(node: dict[Any, Any]) -> bool:
    return {*map(type, node)} <= {str} and {*map(type, node.values())} <= _PLAIN_KINDS


def _check_attributes(node: Any, who: str, example: str) -> None:
    if not isinstance(node, Mapping) or not {*map(type, node)} <= {str}:
        raise PolicyError(f"{who} is not an object of attributes, such as {example}")
    for value in node.values():
        items = value if type(value) is list else [value]
        if not {*map(type, items)} <= _PLAIN_KINDS:
            raise PolicyError(
                f"{who} has an attribute that is neither text, number, true, false nor a list of those; no rule could "
                "see inside it"
            )


def _read_edges(
    nodes: Sequence[TransactionNode], edges: Any
) -> Iterator[tuple[tuple[int, int], TransactionNode]]:
    if not isinstance(edges, list | tuple):
        raise PolicyError('the edges of a transaction are a list of pairs, such as ["a", "b"]')
    position: dict[tuple[type, Any], int] = {}
    for index, node in enumerate(nodes):
        name = node.get("id")
        if name is None:
            continue
        if type(name) not in (str, int):
            raise PolicyError(f"the id of node {index + 1} is neither text nor a whole number")
        if position.setdefault((type(name), name), index) != index:
            raise PolicyError(f"node {index + 1} has the id of an earlier node; ids must differ")
    for index, edge in enumerate(edges, start=1):
        if not isinstance(edge, list | tuple) or len(edge) not in (2, 3):
            raise PolicyError(
                f'edge {index} is not a pair of ids, such as ["a", "b"], with its attributes after them if it has any'
            )
        ends = [position.get((type(end), end)) if type(end) in (str, int) else None for end in edge[:2]]
        if ends[0] is None or ends[1] is None:
            raise PolicyError(f"edge {index} ends at a node that is not in the transaction")
        relation = edge[2] if len(edge) == 3 else _NOTHING
        if relation is not _NOTHING:
            _check_attributes(relation, f"what edge {index} has", '{"kind": "treats"}')
        if relation and ends[0] == ends[1]:
            raise PolicyError(
                f"edge {index} joins a node to itself and has attributes, which no rule could see"
            )
        yield (ends[0], ends[1]), relation
