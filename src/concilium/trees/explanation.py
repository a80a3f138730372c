"""Why a tree says what it says about one patient: the path taken, and what each answer on it changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from concilium.records.table import Value, label

if TYPE_CHECKING:
    from concilium.trees.body import TreeBody


@dataclass(frozen=True)
class Reason:
    """One question on the path: what the patient fulfils, and the share of the predicted class before and after."""

    attribute: str
    condition: str
    before: float
    after: float
    patients: int


@dataclass(frozen=True)
class Explanation:
    """A prediction for one patient and the reasons for it; `stopped` says why the path ended early, if it did."""

    target: str
    prediction: Value
    probability: float
    patients: int
    reasons: tuple[Reason, ...]
    stopped: str | None

    def __str__(self) -> str:
        lines = [
            f"{self.target} = {label(self.prediction)} "
            f"({self.probability:.0%} of {self.patients} similar patient{'' if self.patients == 1 else 's'})."
        ]
        return "\n".join([*lines, *self.because()])

    def because(self, who: str = "The model") -> list[str]:
        """The reasons, a sentence each."""
        lines = [
            f"{number}. {reason.condition}: {label(self.prediction)} goes from {reason.before:.0%} "
            f"to {reason.after:.0%} ({reason.patients} patients)."
            for number, reason in enumerate(self.reasons, start=1)
        ]
        return [*(lines or [f"{who} asks nothing about the patient here."]), *filter(None, [self.stopped])]


def explain(
    body: TreeBody, path: Sequence[int], patient: Mapping[str, Any], said: int | None = None
) -> Explanation:
    """The explanation of a path from the root, for the most frequent class at its end, or for the one `said`."""
    counts = [body.nodes[node].counts for node in path]
    best = said
    if best is None:
        best = max(range(len(body.classes)), key=lambda index: (counts[-1][index], -index))
    # Noise may leave a node of a private tree without anybody: then no class is likelier than another.
    share = [node[best] / sum(node) if sum(node) else 1 / len(node) for node in counts]
    reasons = []
    for step in range(1, len(path)):
        parent = body.nodes[path[step - 1]]
        assert parent.attribute is not None
        reached = dict(parent.ways(body.bins))[path[step]]
        reasons.append(Reason(parent.attribute, reached, share[step - 1], share[step], sum(counts[step])))
    return Explanation(
        target=body.target,
        prediction=body.classes[best],
        probability=share[-1],
        patients=sum(counts[-1]),
        reasons=tuple(reasons),
        stopped=why_stopped(body, path[-1], patient),
    )


def why_stopped(body: TreeBody, node: int, patient: Mapping[str, Any]) -> str | None:
    """Why the path ended before a leaf: the patient's value is not known, or none of the model's patients had it."""
    attribute = body.nodes[node].attribute
    if attribute is None:
        return None
    value = patient.get(attribute)
    said = "is not known" if value is None else f"= {label(value)} was not seen"
    return f"The next question would be {attribute}, which {said} here; the answer is that of the patients so far."
