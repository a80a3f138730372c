"""A tree drawn with lines, for terminals and logs, and as a picture, for reports that must stand alone.

The picture is SVG, drawn without a library. The root is at the left. A box says how it is reached, what is asked there
or what is predicted, how many patients came this way, and in a bar how their classes are mixed. Nothing in it is
fetched and nothing runs; the full text of every box is in its tooltip. Large trees are drawn to the branches with most
patients, and say where they go on.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

from concilium.models.pictures import COLOURS, INK, RULE, SMALL, SOFT, draw_frame, element_text
from concilium.models.threshold import say_decided
from concilium.records.columns import label
from concilium.trees.body import TreeBody, class_shares

WIDTH, GAP, BETWEEN = 188, 34, 9
PADDING, LINE, BAR = 9, 16, 6
LINES = 3
LARGE, BOLD = 13, 1.14
ATTRIBUTE = 16
PAPER, WASH = "#ffffff", "#f4f6f8"


def draw(body: TreeBody) -> str:
    """One line a node: how it is reached, and for a leaf its class, share and patients."""
    lines = [f"{body.target} ({sum(body.nodes[0].counts)} patients)" + _ending(body, 0)]
    # Depth first without recursion: trees over long-tailed codes can be deeper than Python's stack.
    waiting = [(*way, "") for way in _branches(body, 0)]
    while waiting:
        node, reached, last, indent = waiting.pop()
        lines.append(f"{indent}{'└─' if last else '├─'} {reached}{_ending(body, node)}")
        below = indent + ("   " if last else "│  ")
        waiting += [(*way, below) for way in _branches(body, node)]
    if body.decided is not None:
        lines.append(say_decided(body.decided))
    return "\n".join(lines)


def _branches(body: TreeBody, node: int) -> list[tuple[int, str, bool]]:
    """A node's ways, last first (for a stack), each with whether it is the last."""
    ways = body.nodes[node].ways(body)
    return [(child, reached, index == len(ways) - 1) for index, (child, reached) in enumerate(ways)][::-1]


def _ending(body: TreeBody, node: int) -> str:
    """What a leaf says; nothing for a node that asks on."""
    if body.nodes[node].attribute is not None:
        return ""
    counts = body.nodes[node].counts
    best = body.call(counts)
    return f": {label(body.classes[best])} ({counts[best]} of {sum(counts)})"


@dataclass
class _Box:
    """A node as it is drawn: where it lies, what it says, and what hangs on it."""

    node: int
    depth: int
    condition: str
    reached: list[str]
    says: list[str]
    hidden: int
    children: list[_Box] = field(default_factory=list)
    top: float = 0.0
    span: float = 0.0

    @property
    def height(self) -> float:
        lines = len(self.reached) + len(self.says) + 1 + (self.hidden > 0)
        return 2 * PADDING + LINE * lines + BAR

    @property
    def middle(self) -> float:
        return self.top + self.height / 2

    @property
    def inside(self) -> float:
        """The height of all that hangs on it."""
        return sum(child.span for child in self.children) + BETWEEN * max(len(self.children) - 1, 0)


def to_svg(body: TreeBody, *, most_leaves: int | None = None) -> str:
    """The picture as text; with `most_leaves`, the branches with fewest patients are left folded."""
    root = _build(body, _unfold(body, most_leaves))
    boxes = _arrange(root)
    depth = max(box.depth for box in boxes)
    legend, below = _draw_legend(body, root.span + BETWEEN)
    width = max((depth + 1) * WIDTH + depth * GAP, WIDTH) + 2
    title = f"Decision tree for {body.target}: {len(body.nodes)} nodes, {sum(body.nodes[0].counts)} patients"
    parts = [
        *(_connect(box, child) for box in boxes for child in box.children),
        *(line for box in boxes for line in _draw_box(body, box)),
        *legend,
    ]
    return draw_frame(title, parts, width, below + 2, margin=1)


def _unfold(body: TreeBody, most_leaves: int | None) -> set[int]:
    """The nodes that show what is below them: those with most patients first, while the leaves are not too many."""
    if most_leaves is None:
        return {index for index, node in enumerate(body.nodes) if node.attribute is not None}
    opened: set[int] = set()
    leaves = 1
    waiting = [0]
    while waiting:
        waiting.sort(key=lambda index: (sum(body.nodes[index].counts), -index))
        index = waiting.pop()
        children = body.nodes[index].children
        if not children or leaves - 1 + len(children) > most_leaves:
            continue
        opened.add(index)
        leaves += len(children) - 1
        waiting += children
    return opened


def _build(body: TreeBody, opened: set[int]) -> _Box:
    """The boxes, hanging on the root."""
    below = _count_leaves(body)
    root = _Box(0, 0, "", [], _describe(body, 0), 0 if 0 in opened else below[0])
    waiting = [root]
    while waiting:
        box = waiting.pop()
        if box.node not in opened:
            continue
        for child, reached in body.nodes[box.node].ways(body):
            folded = 0 if child in opened else below[child]
            lines = _shorten(reached, body.nodes[box.node].attribute or "")
            box.children.append(_Box(child, box.depth + 1, reached, lines, _describe(body, child), folded))
        waiting += box.children
    return root


def _describe(body: TreeBody, index: int) -> list[str]:
    """What is asked at a node, or what is predicted there."""
    node = body.nodes[index]
    if node.attribute is not None:
        return _wrap(f"{node.attribute}?", LARGE * BOLD)
    return _wrap(f"{body.target} = {label(body.classes[body.call(node.counts)])}", LARGE * BOLD)


def _shorten(condition: str, attribute: str) -> list[str]:
    """A condition in lines; where it is too long, its attribute is cut, which the box before has said."""
    lines = _wrap(condition, SMALL)
    if lines[-1].endswith("…") and len(attribute) > ATTRIBUTE:
        lines = _wrap(condition.replace(attribute, attribute[:ATTRIBUTE] + "…", 1), SMALL)
    return lines


def _count_leaves(body: TreeBody) -> list[int]:
    """How many leaves are below each node, none below a leaf; children come after their parents."""
    leaves = [0] * len(body.nodes)
    for index in reversed(range(len(body.nodes))):
        leaves[index] = sum(leaves[child] or 1 for child in body.nodes[index].children)
    return leaves


def _arrange(root: _Box) -> list[_Box]:
    """All boxes, parents first, each in the middle of a strip of its own that no other branch enters."""
    boxes = [root]
    for box in boxes:
        boxes += box.children
    for box in reversed(boxes):
        box.span = max(box.height, box.inside)
    root.top = (root.span - root.height) / 2
    for box in boxes:
        start = box.middle - box.inside / 2
        for child in box.children:
            child.top = start + (child.span - child.height) / 2
            start += child.span + BETWEEN
    return boxes


def _connect(box: _Box, child: _Box) -> str:
    """The line from a node to a child."""
    start, end = box.depth * (WIDTH + GAP) + WIDTH, child.depth * (WIDTH + GAP)
    turn = start + GAP / 2
    return (
        f'<path d="M{start:g} {box.middle:g}H{turn:g}V{child.middle:g}H{end:g}" fill="none" stroke="{RULE}" '
        'stroke-width="1.5"/>'
    )


def _draw_box(body: TreeBody, box: _Box) -> list[str]:
    node = body.nodes[box.node]
    left, patients = box.depth * (WIDTH + GAP), sum(node.counts)
    ends = node.attribute is None
    best = body.call(node.counts)
    colour = COLOURS[best % len(COLOURS)] if ends else RULE
    dashed = ' stroke-dasharray="5 3"' if box.hidden else ""
    lines = [
        "<g>",
        f"<title>{element_text(_tooltip(body, box))}</title>",
        f'<rect x="{left:g}" y="{box.top:g}" width="{WIDTH}" height="{box.height:g}" rx="6" '
        f'fill="{PAPER if ends else WASH}" stroke="{colour}" stroke-width="{1.5 if ends else 1}"{dashed}/>',
    ]
    x, y = left + PADDING, box.top + PADDING + LINE - 4
    counted = f"{node.counts[best]} of {patients}" if ends else f"{patients} patients"
    below = [f"… {box.hidden} leaves below"] if box.hidden else []
    bold = range(len(box.reached), len(box.reached) + len(box.says))
    for number, text in enumerate((*box.reached, *box.says, counted, *below)):
        lines.append(_write(text, x, y, bold=number in bold))
        y += LINE
    start = float(x)
    for index, share in enumerate(class_shares(node.counts)):
        width = share * (WIDTH - 2 * PADDING)
        if width > 0:
            lines.append(
                f'<rect x="{start:.2f}" y="{y - LINE + 8:g}" width="{width:.2f}" height="{BAR}" '
                f'fill="{COLOURS[index % len(COLOURS)]}"/>'
            )
        start += width
    return [*lines, "</g>"]


def _tooltip(body: TreeBody, box: _Box) -> str:
    """Everything about a box, unshortened."""
    node = body.nodes[box.node]
    mixed = ", ".join(f"{label(v)}: {count}" for v, count in zip(body.classes, node.counts, strict=True))
    best = label(body.classes[body.call(node.counts)])
    what = f"asks {node.attribute}" if node.attribute else f"{body.target} = {best}"
    return f"{box.condition}: {what} ({mixed})" if box.condition else f"{what} ({mixed})"


def _draw_legend(body: TreeBody, top: float) -> tuple[list[str], float]:
    """The classes and their colours, one under the other, whether counts have noise, and where the picture ends."""
    lines = []
    for index, value in enumerate(body.classes):
        y = top + LINE * index
        lines.append(
            f'<rect x="0" y="{y + 3:g}" width="10" height="10" fill="{COLOURS[index % len(COLOURS)]}"/>'
        )
        (text, *_) = _wrap(f"{body.target} = {label(value)}", SMALL, 3 * WIDTH) or [""]
        lines.append(_write(text, 16, y + 12))
    below = top + LINE * len(body.classes)
    if body.nodes[0].variance:
        lines.append(_write("all numbers of patients have noise", 0, below + 12))
        below += LINE
    return lines, below


def _write(text: str, x: float, y: float, bold: bool = False) -> str:
    style = (
        f'fill="{INK}" font-size="{LARGE}" font-weight="600"'
        if bold
        else f'fill="{SOFT}" font-size="{SMALL}"'
    )
    return f'<text x="{x:g}" y="{y:g}" {style}>{element_text(text)}</text>'


def _wrap(text: str, size: float, width: float = WIDTH - 2 * PADDING) -> list[str]:
    """Text in lines that fit a box; long words are cut, and what does not fit in the last line is left out."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if _measure(longer, size) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        for character in word:
            if _measure(lines[-1] + character, size) > width:
                lines.append("")
            lines[-1] += character
    if len(lines) > LINES:
        lines = lines[:LINES]
        while lines[-1] and _measure(lines[-1] + "…", size) > width:
            lines[-1] = lines[-1][:-1]
        lines[-1] += "…"
    return lines


def _measure(text: str, size: float) -> float:
    """About how wide a text is in a common sans serif, rather too wide than too narrow."""
    return sum(_breadth(character) for character in text) * size


def _breadth(character: str) -> float:
    """The width of a character in its own height."""
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    if character in "il.,:;|'!j()[]{} ftrI/\\":
        return 0.36
    if character in "mwMW@%…→":
        return 0.95
    return 0.72 if character.isupper() else 0.6
