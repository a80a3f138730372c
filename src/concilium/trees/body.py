"""What a tree's model file holds: nodes, their tests and their patients, checked whole when it is made or loaded.

Below: where a new patient comes to rest in such a tree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.models.follow_up import Followed
from concilium.models.intervals import CHOSEN, WITHIN_95, Interval, share_interval
from concilium.models.prediction import NO_ENTRIES, Entries, NewPatients
from concilium.models.threshold import Decided, choose_one
from concilium.protocol.attributes import Attribute, find_runs, present, recode, say_edge
from concilium.protocol.splits import STAYS, Branching, route
from concilium.records.columns import Value, label
from concilium.records.dictionary import say_value

# Patients that every node or value is given beforehand where nothing may be certain, with the class shares of all.
BEFOREHAND = 1.0


Told = tuple[Sequence[Sequence[float]], Sequence[int]]
"""Of each node of a tree the class shares, and which class is called where a patient rests there."""


class TreeBranch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Patients with this value (None: missing; for a binned attribute the number of the bin) go to this node."""

    value: str | int | float | bool | None
    node: int


class _ValueGroup(NamedTuple):
    """The values of all branches that lead to one node, and whether values that no branch names do too."""

    node: int
    values: list[Value | None]
    rest: bool


class TreeNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Patients by class, and, unless it is a leaf, the attribute that is asked and where each value leads.

    `other` is the node for values that no branch names, where there is one. Several branches may lead to one node. Of a
    private tree `counts` are estimates; `measured` are the counts with noise as they were answered, each of this
    `variance`: what an interval is made of.
    """

    counts: list[int]
    attribute: str | None = None
    branches: list[TreeBranch] = []
    other: int | None = None
    measured: list[int] = []
    variance: float = 0.0

    def find_interval(self, place: int, *, chosen: bool = False) -> Interval:
        """The interval of the share of one class among patients like these; `chosen`: the same patients chose the
        questions that lead here, which noise hides where there is some."""
        counts = self.measured or self.counts
        return share_interval(
            counts[place],
            sum(counts),
            noise=self.variance,
            classes=len(counts),
            including=class_shares(self.counts)[place],
            z=CHOSEN if chosen and not self.variance else WITHIN_95,
        )

    @property
    def children(self) -> list[int]:
        """The nodes it leads to, each once."""
        return [group.node for group in self.groups]

    @property
    def groups(self) -> list[_ValueGroup]:
        """The nodes it leads to, each once, and for which values."""
        values: dict[int, list[Value | None]] = {}
        for branch in self.branches:
            values.setdefault(branch.node, []).append(branch.value)
        if self.other is not None:
            values.setdefault(self.other, [])
        return [_ValueGroup(node, named, node == self.other) for node, named in values.items()]

    def ways(self, body: BodyOfTrees) -> list[tuple[int, str]]:
        """Where it leads and, in words, for whom."""
        if self.attribute is None:
            return []
        edges = body.say_edges(self.attribute)
        # Where no branch is for missing values, they go with those that no branch names.
        elsewhere = edges is None and all(branch.value is not None for branch in self.branches)
        return [
            (
                node,
                _say_branch(self.attribute, [*values, None] if rest and elsewhere else values, edges, rest),
            )
            for node, values, rest in self.groups
        ]


class BodyOfTrees(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, dict=True
):
    """What the model file of a tree, or of several, begins with."""

    target: str
    classes: Sequence[str | int | float | bool]
    query: str
    bins: dict[str, list[float]]
    decided: Decided | None = None
    dates: list[str] = []
    followed: Followed | None = None

    def tree(self, nodes: list[TreeNode], decided: Decided | None = None) -> TreeBody:
        """These nodes as a tree of its own."""
        return TreeBody(
            target=self.target,
            classes=list(self.classes),
            query=self.query,
            bins=self.bins,
            nodes=nodes,
            decided=decided,
            dates=self.dates,
        )

    def say_edges(self, name: str) -> list[str] | None:
        """The cutoffs of a number as they are written; None for a category."""
        edges = self.bins.get(name)
        return None if edges is None else [say_edge(edge, date=name in self.dates) for edge in edges]

    def in_words(self, dictionary: Entries) -> Self:
        """The same to be read: classes and values as what the dictionary says they mean. It predicts nothing."""
        if not dictionary:
            return self
        kept = self.__dict__.get("_words")
        if kept is None or kept[0] is not dictionary:
            kept = self.__dict__["_words"] = dictionary, self._put_in_words(dictionary)
        return cast(Self, kept[1])

    def _put_in_words(self, dictionary: Entries) -> Self:
        entry = dictionary.get(self.target)
        words = [say_value(value, entry) for value in self.classes]
        if len(set(words)) < len(words):
            words = [label(value) for value in self.classes]
        decided = self.decided
        if decided is not None:
            decided = msgspec.structs.replace(decided, positive=words[decided.place(self.classes)])
        return msgspec.structs.replace(
            self,
            classes=tuple(words) if isinstance(self.classes, tuple) else words,
            decided=decided,
            **self._translate(dictionary),
        )

    def _translate(self, dictionary: Entries) -> dict[str, Any]:
        """The fields that hold nodes, with the values of their branches as what they mean."""
        return {}

    def __post_init__(self) -> None:
        if self.decided is not None:
            self.decided.check(self.classes)


class TreeBody(BodyOfTrees, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a tree's model file holds; node 0 is the root, children come after their parents."""

    nodes: list[TreeNode]

    def _translate(self, dictionary: Entries) -> dict[str, Any]:
        return {"nodes": translate(self.nodes, dictionary)}

    @property
    def asked(self) -> list[str]:
        """The attributes that are asked about, in order."""
        return sorted({node.attribute for node in self.nodes if node.attribute is not None})

    @property
    def shares(self) -> NDArray[np.float64]:
        """For each node the share of each class; where noise left nobody, no class is likelier than another."""
        return np.array([class_shares(node.counts) for node in self.nodes], dtype=np.float64)

    def call(self, counts: Sequence[int]) -> int:
        """Which class is called where these patients rest."""
        return choose_one(class_shares(counts), self.classes, self.decided)

    @property
    def leaves(self) -> list[TreeNode]:
        return [node for node in self.nodes if node.attribute is None]

    @property
    def told(self) -> Told:
        """What the nodes tell."""
        return self.shares.tolist(), [self.call(node.counts) for node in self.nodes]

    @property
    def soft_shares(self) -> NDArray[np.float64]:
        """The same with `BEFOREHAND` patients more at every node, with the class shares of everybody: three who are all
        alike do not make the fourth certain."""
        patients = np.array([sum(node.counts) for node in self.nodes], dtype=np.float64)
        return self.soften(self.shares, patients[:, None])

    def soften(
        self, shares: NDArray[np.float64], patients: NDArray[np.float64] | float
    ) -> NDArray[np.float64]:
        """Shares of so many patients, with those more."""
        everyone = np.maximum(np.array(self.nodes[0].counts, dtype=np.float64), 0.5)
        soft: NDArray[np.float64] = (shares * patients + BEFOREHAND * everyone / everyone.sum()) / (
            patients + BEFOREHAND
        )
        return soft

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.classes or not self.nodes or not self.target:
            raise ValueError("a tree needs a target, classes and nodes")
        if len({label(value) for value in self.classes}) != len(self.classes):
            raise ValueError("a tree's classes must differ")
        reached = {0}
        for index, node in enumerate(self.nodes):
            self._check_node(index, node)
            for child in node.children:
                if not index < child < len(self.nodes) or child in reached:
                    raise ValueError(
                        f"node {index} has a branch that leads nowhere or to a node reached before"
                    )
                reached.add(child)
        if len(reached) != len(self.nodes):
            raise ValueError("a node is never reached")

    def _check_node(self, index: int, node: TreeNode) -> None:
        """Raise ValueError unless the node's counts, attribute and branches fit together."""
        if len(node.counts) != len(self.classes) or min(node.counts) < 0:
            raise ValueError(f"node {index} must have one count for each class")
        if len(node.measured) not in (0, len(self.classes)) or not 0 <= node.variance < math.inf:
            raise ValueError(f"node {index} must have one measured count for each class, and a variance")
        if (node.attribute is None) != (not node.branches):
            raise ValueError(f"node {index} must have an attribute and branches, or neither")
        edges = self.bins.get(node.attribute or "")
        if edges is not None and any(
            b.value is not None and (not isinstance(b.value, int) or not 0 <= b.value <= len(edges))
            for b in node.branches
        ):
            raise ValueError(f"node {index} has a branch for a bin that its attribute does not have")


def translate(nodes: Sequence[TreeNode], dictionary: Entries) -> list[TreeNode]:
    """The nodes with the values of their branches as what they mean; a number has no meaning but its bin."""
    return [
        msgspec.structs.replace(
            node,
            branches=[
                branch if branch.value is None else TreeBranch(entry.say(branch.value), branch.node)
                for branch in node.branches
            ],
        )
        if (entry := dictionary.get(node.attribute or "")) is not None and entry.type != "number"
        else node
        for node in nodes
    ]


def class_shares(counts: Sequence[int]) -> list[float]:
    """The share of each class; where noise left nobody, no class is likelier than another."""
    everyone = sum(counts)
    return [count / everyone if everyone else 1 / len(counts) for count in counts]


def _say_branch(
    attribute: str, values: Sequence[Value | None], edges: Sequence[str] | None, rest: bool = False
) -> str:
    """Say a branch in words: `sex = f`, `race in {1, 2, 5}`, `40 <= age < 60`, `smoker = n or missing`.

    Of a binned attribute `values` are numbers of bins. With `rest` the branch is also for values that none names.
    """
    named = [value for value in values if value is not None]
    besides = ["missing"] * (None in values) + ["anything else"] * rest
    if not named:
        return f"{attribute} is {' or '.join(besides)}"
    if edges is not None:
        parts = [_say_range(attribute, *run, edges) for run in find_runs(map(int, named))]
    elif len(named) == 1:
        parts = [f"{attribute} = {label(named[0])}"]
    else:
        parts = [f"{attribute} in {{{', '.join(map(label, named))}}}"]
    return " or ".join([*parts, *besides])


def _say_range(attribute: str, first: int, last: int, edges: Sequence[str]) -> str:
    """The bins from first to last."""
    if first == 0:
        return f"{attribute} is known" if last == len(edges) else f"{attribute} < {edges[last]}"
    if last == len(edges):
        return f"{attribute} >= {edges[first - 1]}"
    return f"{edges[first - 1]} <= {attribute} < {edges[last]}"


def settle(body: TreeBody, patients: NewPatients) -> NDArray[np.intp]:
    """For each patient the node where it comes to rest."""
    nodes = np.zeros(len(patients), dtype=np.intp)
    rows = np.arange(len(patients), dtype=np.int32)
    for node, here in route(rows, _find_tests(body, patients)).items():
        nodes[here] = node
    return nodes


def find_path(body: TreeBody, patient: Mapping[str, Any], dictionary: Entries = NO_ENTRIES) -> list[int]:
    """The nodes that a patient (of plain values) passes, the root first."""
    row = {name: patient.get(name) for name in body.asked}
    tests = _find_tests(body, NewPatients([row], dictionary)) if row else {}
    path = [0]
    while (test := tests.get(path[-1])) is not None:
        child = int(test.child[test.codes[0]])
        if child == STAYS:
            break
        path.append(child)
    return path


def spread(body: TreeBody, patient: Mapping[str, Any], dictionary: Entries = NO_ENTRIES) -> dict[int, float]:
    """The nodes where a patient (of plain values) may come to rest, with weights that add up to 1.

    What was not entered (a name that the patient lacks) is not evidence: there the patient goes every way, in parts as
    large as the share of the model's patients who went it (Quinlan, C4.5: Programs for Machine Learning, 1993, chapter
    3). A value that is said to be missing (None) is one, and goes where such patients went.
    """
    row = {name: patient.get(name) for name in body.asked}
    tests = _find_tests(body, NewPatients([row], dictionary)) if row else {}
    resting: dict[int, float] = {}
    moving = [(0, 1.0)]
    while moving:
        index, weight = moving.pop()
        node, test = body.nodes[index], tests.get(index)
        ways: dict[int, float] = {}
        if node.attribute is not None and node.attribute not in patient:
            sizes = {child: float(sum(body.nodes[child].counts)) for child in node.children}
            everyone = sum(sizes.values())
            ways = {child: size / everyone for child, size in sizes.items() if size} if everyone else {}
        elif test is not None:
            child = int(test.child[test.codes[0]])
            ways = {} if child == STAYS else {child: 1.0}
        if not ways:
            resting[index] = resting.get(index, 0.0) + weight
        moving.extend((child, weight * share) for child, share in ways.items())
    return resting


def mix_shares(body: TreeBody, resting: Mapping[int, float]) -> NDArray[np.float64]:
    """The shares of the classes where a patient is spread over nodes."""
    shares: NDArray[np.float64] = body.shares
    mixed: NDArray[np.float64] = sum(
        (weight * shares[node] for node, weight in resting.items()), np.zeros(len(body.classes))
    )
    return mixed


def _find_tests(body: TreeBody, patients: NewPatients) -> dict[int, Branching]:
    """The tests of a tree, by node, on the columns of these patients."""
    attributes = _list_attributes(body)
    columns = {name: recode(attribute, patients) for name, attribute in attributes.items()}
    tests = {}
    for index, node in enumerate(body.nodes):
        if node.attribute is None:
            continue
        codes, cells = columns[node.attribute]
        tests[index] = Branching(codes, _list_children(node, attributes[node.attribute])[cells])
    return tests


def _list_attributes(body: TreeBody) -> dict[str, Attribute]:
    """The attributes that a tree asks about, with the bins or values that its branches name."""
    values: dict[str, list[Any]] = {}
    for node in body.nodes:
        if node.attribute is not None:
            values.setdefault(node.attribute, []).extend(branch.value for branch in node.branches)
    return {
        name: Attribute(name, tuple(body.bins[name]))
        if name in body.bins
        else Attribute(name, (), present(own))
        for name, own in values.items()
    }


def _list_children(node: TreeNode, attribute: Attribute) -> NDArray[np.int32]:
    """Where each cell of the node's attribute leads, in the order of cells: missing, the values, any other."""
    inner = range(attribute.inner) if attribute.edges else map(label, attribute.values)
    goes = {b.value if attribute.edges or b.value is None else label(b.value): b.node for b in node.branches}
    elsewhere = STAYS if node.other is None else node.other
    children = [goes.get(name, elsewhere) for name in (None, *inner)] + [elsewhere]
    return np.array(children, dtype=np.int32)
