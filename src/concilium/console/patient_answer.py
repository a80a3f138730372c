"""What the console says about one patient: the model's own explanation, and it as pictures.

No number here is the console's: each comes from `Method.explain`, which the command line prints too. Pictures draw the
same reasons: shares on a tree's way, odds of rules and attributes, curves and measurements where the model draws them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from concilium.consultations.consultation import Consultation
from concilium.errors import ModelError
from concilium.models.explanation import Explanation, Reason, say_share
from concilium.models.pictures import COLOURS, INK, RULE, SOFT, draw_frame, element_text
from concilium.models.recalibrated import AdaptedModel
from concilium.records.columns import Value, label
from concilium.records.dictionary import say_value
from concilium.trees.body import TreeBody, class_shares, find_path

WIDTH, ROW, NAMES, BAR = 620, 34, 300, 230
SCALE = 330  # as wide as a phone
MOST_REASONS = 12
MOST_LETTERS = 46
MOST_NODES = 600
_MARK = r"\d+\. |- "


@dataclass(frozen=True)
class WalkedNode:
    """A node of a tree to walk: how it is reached, what is asked or predicted there, and what is below it."""

    reached: str
    says: str
    patients: int
    is_on_path: bool
    is_leaf: bool
    children: tuple[WalkedNode, ...] = ()


@dataclass(frozen=True)
class PatientAnswer:
    """An explanation with its pictures, as SVG by title; `walk` is the tree with the patient's path marked."""

    explanation: Explanation
    pictures: Mapping[str, str] = field(default_factory=dict)
    walk: WalkedNode | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the model is not about this patient, and so says nothing."""
        return self.explanation.prediction is None and bool(self.explanation.outside)

    @property
    def headline(self) -> str:
        return self.explanation.sentences[0]

    @property
    def reasons(self) -> list[str]:
        """The sentences of a list, without their number or dash."""
        return [re.sub(_MARK, "", text) for text in self.explanation.sentences[1:] if re.match(_MARK, text)]

    @property
    def lead(self) -> str:
        """What stands right before the list, and ends in a colon: against whom its reasons are told."""
        said = self.explanation.sentences[1:]
        first = next((place for place, text in enumerate(said) if re.match(_MARK, text)), 0)
        return said[first - 1] if first and said[first - 1].endswith(":") else ""

    @property
    def remarks(self) -> list[str]:
        """All other sentences but the first; how to insist is a button here, no option."""
        rest = [text for text in self.explanation.sentences[1:] if not re.match(_MARK, text)]
        return [text.replace("`", "") for text in rest if "--anyway" not in text and text != self.lead]


def answer_patient(
    model: Any, patient: Mapping[str, Any], *, anyway: bool = False, requester: str = ""
) -> PatientAnswer:
    """What a model says of a patient; of a consultation, by its agreement (who may ask, and until when)."""
    if why := model.find_why_silent():
        raise ModelError(f"this model says nothing of a single patient: {why}")
    if isinstance(model, Consultation) and not anyway:
        explanation: Explanation = model.ask(patient, requester=requester)
    else:
        explanation = model.explain(patient, anyway=anyway)
    if explanation.prediction is None and explanation.outside:
        return PatientAnswer(explanation)
    pictures = {}
    place = _find_drawn(model, explanation)
    if drawn := _draw_risk(explanation, flipped=place is not None):
        said = model.classes_[place] if place is not None else explanation.prediction
        pictures[f"Probability of {model.target} = {_say_class(model, said)}"] = drawn
    if hasattr(model, "draw_patient"):
        pictures["Where this patient stands"] = model.draw_patient(patient)
    elif drawn := _draw_reasons(
        explanation.reasons, _say_class(model, explanation.prediction), _say_raised(model)
    ):
        pictures["What the reasons do"] = drawn
    body = model.body
    return PatientAnswer(
        explanation, pictures, walk_tree(model, patient) if isinstance(body, TreeBody) else None
    )


def _find_drawn(model: Any, explanation: Explanation) -> int | None:
    """The place of the positive class, where the first sentence tells its risk and another one is predicted: what is
    drawn is what is said."""
    tells_positive = (model.against_rest or model.reads_courses) and not isinstance(model, AdaptedModel)
    if not tells_positive or len(model.classes_) != 2:
        return None
    return None if label(explanation.prediction) == label(model.classes_[1]) else 1


def _say_class(model: Any, value: Value | None) -> str:
    """A class by its meaning."""
    return "" if value is None else say_value(value, model.card.dictionary.get(model.target))


def _say_raised(model: Any) -> str:
    """What a reason that adds to the log odds raises: those of the positive class, or the number that is predicted."""
    if not model.classes_:
        return str(model.target)
    positive = model.decided.positive if model.decided is not None else model.classes_[-1]
    return f"the odds of {model.target} = {_say_class(model, positive)}"


def _draw_risk(explanation: Explanation, *, flipped: bool = False) -> str:
    """A probability on a scale from none to all, with its interval and where everybody starts; `flipped`, that of the
    other class than the predicted one. Nothing where a number or a severity is predicted."""
    if explanation.probability is None:
        return ""

    def place(share: float) -> float:
        return 20 + (SCALE - 40) * min(max(1 - share if flipped else share, 0.0), 1.0)

    parts = [
        f'<rect x="20" y="26" width="{SCALE - 40}" height="10" rx="5" fill="{RULE}" fill-opacity="0.35"/>'
    ]
    if explanation.interval is not None:
        low, high = sorted(map(place, explanation.interval))
        parts.append(
            f'<rect x="{low:.1f}" y="23" width="{max(high - low, 2):.1f}" height="16" rx="4" fill="{COLOURS[5]}" '
            'fill-opacity="0.75"/>'
        )
    # `base` may be the share of another class than the predicted one; what the first reason starts from is not.
    base = explanation.reasons[0].before if explanation.reasons else None
    if base is not None:
        x = place(base)
        parts.append(
            f'<line x1="{x:.1f}" y1="18" x2="{x:.1f}" y2="44" stroke="{SOFT}" stroke-width="2" stroke-dasharray="4 3"/>'
        )
        anchor = "start" if x < SCALE / 4 else "end" if x > SCALE * 3 / 4 else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="13" text-anchor="{anchor}" fill="{SOFT}">all patients of the model</text>'
        )
    parts.append(f'<circle cx="{place(explanation.probability):.1f}" cy="31" r="8" fill="{COLOURS[0]}"/>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<text x="{20 + (SCALE - 40) * share:.1f}" y="58" text-anchor="middle" fill="{SOFT}">{share:.0%}</text>'
        )
    title = "The predicted probability on a scale; the band is its 95 % interval"
    return draw_frame(title, parts, SCALE, 66)


def _draw_reasons(reasons: Sequence[Reason], predicted: str, raised: str) -> str:
    """The reasons in their order: shares before and after each where they follow one another, what they add to the log
    odds otherwise; nothing where neither is known."""
    shares = [one for one in reasons if one.before is not None and one.after is not None]
    moved = sorted((one for one in reasons if one.moved), key=lambda one: -abs(one.moved or 0.0))
    if shares:
        return _draw_shares(shares[:MOST_REASONS], predicted)
    return _draw_moves(moved[:MOST_REASONS], raised) if moved else ""


def _name(reason: Reason, top: float) -> str:
    text = reason.condition
    short = text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
    return f'<text x="4" y="{top + 20:g}" fill="{INK}">{element_text(short)}<title>{element_text(text)}</title></text>'


def _draw_shares(reasons: Sequence[Reason], predicted: str) -> str:
    parts = []
    for number, reason in enumerate(reasons):
        top, before, after = number * ROW, reason.before or 0.0, reason.after or 0.0
        parts += [
            _name(reason, top),
            f'<rect x="{NAMES}" y="{top + 8:g}" width="{BAR}" height="16" rx="3" fill="{RULE}" fill-opacity="0.3"/>',
            f'<rect x="{NAMES}" y="{top + 8:g}" width="{max(BAR * after, 1):.1f}" height="16" rx="3" '
            f'fill="{COLOURS[0]}"/>',
            f'<line x1="{NAMES + BAR * before:.1f}" x2="{NAMES + BAR * before:.1f}" y1="{top + 4:g}" '
            f'y2="{top + 28:g}" stroke="{COLOURS[1]}" stroke-width="3"/>',
            f'<text x="{NAMES + BAR + 8}" y="{top + 20:g}" fill="{SOFT}">{say_share(before)} → '
            f"{say_share(after)}</text>",
        ]
    title = f"Share of {predicted} after each reason; the upright line is the share before it"
    return draw_frame(title, parts, WIDTH, len(reasons) * ROW + 4)


def _draw_moves(reasons: Sequence[Reason], raised: str) -> str:
    reach = max(abs(one.moved or 0.0) for one in reasons)
    middle, parts = NAMES + BAR / 2, []
    for number, reason in enumerate(reasons):
        top, moved = number * ROW, reason.moved or 0.0
        length = max(BAR / 2 * abs(moved) / reach, 1)
        parts += [
            _name(reason, top),
            f'<rect x="{middle if moved > 0 else middle - length:.1f}" y="{top + 8:g}" width="{length:.1f}" '
            f'height="16" rx="3" fill="{COLOURS[1] if moved > 0 else COLOURS[0]}"/>',
            f'<text x="{NAMES + BAR + 8}" y="{top + 20:g}" fill="{SOFT}">{"raises" if moved > 0 else "lowers"}</text>',
        ]
    height = len(reasons) * ROW + 4
    parts.append(f'<line x1="{middle:g}" x2="{middle:g}" y1="0" y2="{height}" stroke="{RULE}"/>')
    parts.append(
        f'<text x="{NAMES}" y="{height + 14}" fill="{SOFT}">raises or lowers {element_text(raised)}</text>'
    )
    return draw_frame(f"How much each reason raises or lowers {raised}", parts, WIDTH, height + 20)


def walk_tree(model: Any, patient: Mapping[str, Any] | None = None) -> WalkedNode:
    """A tree as nodes to fold; those that the patient passes, while all that is asked was entered, are on the path. Of
    a tree of very many nodes only the path is unfolded."""
    body: TreeBody = model.body
    said = body.in_words(model.card.dictionary)
    path: set[int] = set()
    if patient is not None:
        for place in find_path(body, patient, model.card.dictionary):
            path.add(place)
            if body.nodes[place].attribute not in {None, *patient}:
                break
    folds = len(body.nodes) > MOST_NODES
    made: dict[int, WalkedNode] = {}
    reached = {0: ""} | {child: text for node in said.nodes for child, text in node.ways(said)}
    for index in reversed(range(len(body.nodes))):  # children come after their parents
        node = body.nodes[index]
        best = body.call(node.counts)
        share = say_share(class_shares(node.counts)[best])
        is_leaf = node.attribute is None
        ends = f"{body.target} = {label(said.classes[best])} ({share})"
        children = () if folds and index not in path else tuple(made[child] for child in node.children)
        made[index] = WalkedNode(
            reached[index],
            ends if is_leaf else f"{node.attribute}?",
            sum(node.counts),
            index in path,
            is_leaf,
            children,
        )
    return made[0]
