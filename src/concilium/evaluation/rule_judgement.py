"""How well a vote of temporal rules does on windows that it has not seen (docs/methods.md, section 6.6)."""

from __future__ import annotations

import numpy as np

from concilium.evaluation.metrics import Figures, measure
from concilium.temporal.labelled_windows import LabelledWindows
from concilium.temporal.rule_vote import RuleVote


def judge_vote(vote: RuleVote, windows: LabelledWindows) -> Figures:
    """Balanced accuracy, F1 and more on these windows; for an honest figure, windows of patients whom neither the rules
    nor their weights were learned from."""
    score = vote.score(windows.series)
    chance = 1 / (1 + np.exp(-np.clip(score, -500, 500)))
    return measure(
        windows.labels.tolist(),
        (score > 0).tolist(),
        np.column_stack([1 - chance, chance]),
        (False, True),
        positive=True,
    )
