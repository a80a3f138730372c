"""Why the one-level model says what it says about one patient: what each attribute moved, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from concilium.models.explanation import Explanation, Reason
from concilium.models.threshold import choose_one
from concilium.records.columns import label
from concilium.trees.explanation import say_reasons

if TYPE_CHECKING:
    from concilium.trees.naive_bayes import NaiveBayesBody

SHOWN = 8


def explain_evidence(body: NaiveBayesBody, reached: Sequence[int]) -> Explanation:
    """The explanation for a patient who reaches these nodes of the attributes' trees (0: of none). It begins with the
    share of the predicted class among all patients; the reasons move it one after the other, the strongest first."""
    evidence = [body.evidence(number)[node] for number, node in enumerate(reached)]
    start = np.log(body.class_shares)
    end = start + sum(evidence, np.zeros_like(start))
    best = choose_one([share(end, index) for index in range(len(end))], body.classes, body.decided)
    speaking = [number for number, node in enumerate(reached) if node]
    # How far the attribute alone would move the odds of the predicted class.
    alone = {number: odds(start + evidence[number], best) - odds(start, best) for number in speaking}
    reasons, score = [], start
    for number in sorted(speaking, key=lambda n: (-abs(alone[n]), body.names[n])):
        before, score = share(score, best), score + evidence[number]
        nodes = body.attributes[number]
        reasons.append(
            Reason(
                attributes=(body.names[number],),
                condition=dict(nodes[0].ways(body.bins))[reached[number]],
                before=before,
                after=share(score, best),
                patients=sum(nodes[reached[number]].counts),
            )
        )
    silent = [name for name, node in zip(body.names, reached, strict=True) if not node]
    notes = (f"Not known here, or not seen before: {', '.join(silent)}.",) if silent else ()
    named, patients = label(body.classes[best]), sum(body.counts)
    first = (
        f"{body.target} = {named} ({share(score, best):.0%} likely; {share(start, best):.0%} of all "
        f"{patients} patients)."
    )
    return Explanation(
        target=body.target,
        prediction=body.classes[best],
        probability=share(score, best),
        base=share(start, best),
        patients=patients,
        reasons=tuple(reasons),
        notes=notes,
        sentences=(first, *say_evidence(named, reasons), *notes),
        chances=tuple(share(score, place) for place in range(len(body.classes))),
    )


def say_evidence(named: str, reasons: Sequence[Reason]) -> list[str]:
    """The strongest reasons, a sentence each, and one for all others."""
    lines = say_reasons(named, reasons[:SHOWN])
    rest = reasons[SHOWN:]
    if rest:
        lines.append(
            f"{len(rest)} more attribute{'' if len(rest) == 1 else 's'}, each of which says less: {named} goes "
            f"from {rest[0].before:.0%} to {rest[-1].after:.0%}."
        )
    return lines


def share(score: NDArray[np.float64], best: int) -> float:
    """The share of one class by the logarithms of all, up to a constant."""
    likely = np.exp(score - score.max())
    return float(likely[best] / likely.sum())


def odds(score: NDArray[np.float64], best: int) -> float:
    """The logarithm of the odds of one class."""
    others = np.delete(score, best)
    return float(score[best] - np.logaddexp.reduce(others)) if len(others) else 0.0
