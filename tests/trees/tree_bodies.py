"""Trees of every shape and decision, not only those that growing would give, and patients to send down them."""

from __future__ import annotations

from hypothesis import strategies as st

from concilium.models.threshold import Decided
from concilium.trees.body import TreeBody, TreeBranch, TreeNode

EDGES = {"age": [40.0, 60.5], "dose <mg>": [0.125], "lab\"'s": [-3.0, 0.0, 7.25]}
CODES = {
    "sex": ["f", "m", 'it\'s "x"\\'],
    "stage & grade": [1, 2, 30],
    "share": [0.5, 1.5, 2.0],
    "smoker": [True, False],
    "naïve\nward": ["<a>", "ü", "1"],
}
CLASSES = st.sampled_from([["no", "yes"], [0, 1], [False, True], ["a&b", "c'd", 'e"f'], [1.5, 2.0]])


@st.composite
def bodies(draw, most_nodes=30):
    """A tree with branches for some values, for missing ones or not, and sometimes one for all others; several values
    may share a branch."""
    classes = draw(CLASSES)
    counts = st.lists(st.integers(0, 50), min_size=len(classes), max_size=len(classes))
    parts = [{"counts": draw(counts)}]
    waiting = [(0, frozenset())]
    while waiting and len(parts) < most_nodes:
        index, asked = waiting.pop(0)
        left = [name for name in [*EDGES, *CODES] if name not in asked]
        if not left or (index and draw(st.booleans())):
            continue
        attribute = draw(st.sampled_from(left))
        known = list(range(len(EDGES[attribute]) + 1)) if attribute in EDGES else CODES[attribute]
        values = draw(st.lists(st.sampled_from([*known, None]), min_size=1, max_size=4, unique_by=repr))
        branches = []
        for value in values:
            if branches and draw(st.integers(0, 3)) == 0:
                branches.append(TreeBranch(value, draw(st.sampled_from(branches)).node))  # a group of values
                continue
            branches.append(TreeBranch(value, len(parts)))
            waiting.append((len(parts), asked | {attribute}))
            parts.append({"counts": draw(counts)})
        parts[index] |= {"attribute": attribute, "branches": branches}
        others = draw(st.integers(0, 7))
        if others < 2:
            parts[index]["other"] = len(parts)
            parts.append({"counts": draw(counts)})
        elif others == 2:
            parts[index]["other"] = draw(st.sampled_from(branches)).node
    decided = None
    if len(classes) == 2 and draw(st.booleans()):
        threshold = draw(st.sampled_from([0.0, 0.02, 0.1, 0.25, 0.5, 2 / 3, 1.0]))
        decided = Decided("prevalence", draw(st.sampled_from(classes)), threshold)
    return TreeBody(
        target="outcome <1>",
        classes=classes,
        query=draw(st.sampled_from(["", "age > 20 and sex = 'f'"])),
        bins=EDGES,
        nodes=[TreeNode(**part) for part in parts],
        decided=decided,
    )


@st.composite
def patients(draw):
    """A patient with values known to trees, values they never met, and gaps."""
    row = {name: draw(st.sampled_from([None, *values, "never met"])) for name, values in CODES.items()}
    row |= {"stage & grade": draw(st.sampled_from([None, 1, 2, 30, 99]))}
    row |= {"share": draw(st.sampled_from([None, 0.5, 1.5, 2.0, 9.75]))}
    row |= {"smoker": draw(st.sampled_from([None, True, False]))}
    for name, edges in EDGES.items():
        row[name] = draw(st.one_of(st.none(), st.sampled_from(edges), st.floats(-100, 100)))
    return row
