"""Why the one-level model says what it says about one patient: what each attribute moved, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from concilium.records.table import Value, label
from concilium.trees.explanation import Reason

if TYPE_CHECKING:
    from concilium.trees.naive_bayes import NaiveBayesBody

SHOWN = 8


@dataclass(frozen=True)
class Weighing:
    """A prediction for one patient. It begins with the share of the predicted class among all `patients`; the reasons
    move it one after the other, the strongest first, and the last of them ends at `probability`."""

    target: str
    prediction: Value
    probability: float
    share: float
    patients: int
    reasons: tuple[Reason, ...]
    unknown: tuple[str, ...]

    def __str__(self) -> str:
        named = label(self.prediction)
        lines = [
            f"{self.target} = {named} ({self.probability:.0%} likely; {self.share:.0%} of all "
            f"{self.patients} patients)."
        ]
        for number, reason in enumerate(self.reasons[:SHOWN], start=1):
            lines.append(
                f"{number}. {reason.condition}: {named} goes from {reason.before:.0%} to {reason.after:.0%} "
                f"({reason.patients} patients)."
            )
        rest = self.reasons[SHOWN:]
        if rest:
            lines.append(
                f"{len(rest)} more attribute{'' if len(rest) == 1 else 's'}, each of which says less: {named} goes "
                f"from {rest[0].before:.0%} to {rest[-1].after:.0%}."
            )
        if self.unknown:
            lines.append(f"Not known here, or not seen before: {', '.join(self.unknown)}.")
        return "\n".join(lines)


def weigh(body: NaiveBayesBody, reached: Sequence[int]) -> Weighing:
    """The weighing of a patient who reaches these nodes of the attributes' trees (0: of none)."""
    evidence = [body.evidence(number)[node] for number, node in enumerate(reached)]
    start = np.log(body.class_shares)
    best = int(np.argmax(start + sum(evidence, np.zeros_like(start))))
    told = [number for number, node in enumerate(reached) if node]
    # How far the attribute alone would move the odds of the predicted class.
    alone = {number: odds(start + evidence[number], best) - odds(start, best) for number in told}
    reasons, score = [], start
    for number in sorted(told, key=lambda n: (-abs(alone[n]), body.names[n])):
        before, score = share(score, best), score + evidence[number]
        nodes = body.attributes[number]
        condition = dict(nodes[0].ways(body.bins))[reached[number]]
        patients = sum(nodes[reached[number]].counts)
        reasons.append(Reason(body.names[number], condition, before, share(score, best), patients))
    return Weighing(
        target=body.target,
        prediction=body.classes[best],
        probability=share(score, best),
        share=share(start, best),
        patients=sum(body.counts),
        reasons=tuple(reasons),
        unknown=tuple(name for name, node in zip(body.names, reached, strict=True) if not node),
    )


def share(score: np.ndarray, best: int) -> float:
    """The share of one class by the logarithms of all, up to a constant."""
    likely = np.exp(score - score.max())
    return float(likely[best] / likely.sum())


def odds(score: np.ndarray, best: int) -> float:
    """The logarithm of the odds of one class."""
    others = np.delete(score, best)
    return float(score[best] - np.logaddexp.reduce(others)) if len(others) else 0.0
